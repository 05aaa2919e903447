// What this machine allows: bounds copy|sockets SIZE ITERS PROCESSES. Processes at once copy SIZE bytes from one array to
// another, or send them to each other over loopback TCP, process i to n-1-i (a middle one copies), with nothing but write and read. Prints the
// slowest one's median microseconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, PAGE = 2 << 20 };

typedef struct {
  atomic_long arrived;
  double median[MOST];
} Shared;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static char *array(size_t size) {
  size_t whole = (size + PAGE - 1) / PAGE * PAGE;
  char *memory = aligned_alloc(PAGE, whole);
  madvise(memory, whole, MADV_HUGEPAGE);
  return memset(memory, 1, whole);
}

static void exchange(int peer, const char *out, char *in, size_t size) {
  for (size_t sent = 0, got = 0; sent < size || got < size;) {
    ssize_t wrote = sent < size ? write(peer, out + sent, size - sent < 1 << 18 ? size - sent : 1 << 18) : 0;
    ssize_t read_ = got < size ? read(peer, in + got, size - got) : 0;
    if ((wrote < 0 || read_ < 0) && errno != EAGAIN) exit(1);
    sent += wrote > 0 ? wrote : 0, got += read_ > 0 ? read_ : 0;
    if (wrote <= 0 && read_ <= 0) sched_yield();
  }
}

static int connected(int index, int n, const int *listeners) {
  int other = n - 1 - index, one = 1, peer;
  if (index == other) return -1;
  if (index < other) {
    peer = accept(listeners[index], 0, 0);
  } else {
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    getsockname(listeners[other], (struct sockaddr *)&address, &len);
    peer = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(peer, (struct sockaddr *)&address, len)) exit(1);
  }
  setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(peer, F_SETFL, O_NONBLOCK);
  return peer;
}

int main(int argc, char **argv) {
  int sockets = !strcmp(argv[1], "sockets"), n = atoi(argv[4]);
  size_t size = atol(argv[2]);
  long iters = atol(argv[3]), warmup = iters / 10 + 2;
  if (n > MOST) return 1;
  Shared *shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int listeners[MOST];
  for (int i = 0; i < n; i++) {
    struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listeners[i] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listeners[i], (struct sockaddr *)&loopback, sizeof loopback) || listen(listeners[i], 1)) return 1;
  }
  for (int index = 0; index < n; index++) {
    if (fork()) continue;
    char *out = array(size), *in = array(size);
    double *times = malloc(iters * sizeof(double));
    int peer = sockets ? connected(index, n, listeners) : -1;
    for (long i = -warmup; i < iters; i++) {
      // All begin together.
      atomic_fetch_add(&shared->arrived, 1);
      while (atomic_load(&shared->arrived) < n * (i + warmup + 1)) sched_yield();
      double start = now();
      if (peer >= 0) exchange(peer, out, in, size);
      else memcpy(in, out, size);
      if (i >= 0) times[i] = now() - start;
    }
    qsort(times, iters, sizeof(double), ascending);
    shared->median[index] = times[iters / 2];
    _exit(0);
  }
  int status, failed = 0;
  while (wait(&status) > 0) failed |= status;
  double slowest = 0;
  for (int i = 0; i < n; i++) slowest = shared->median[i] > slowest ? shared->median[i] : slowest;
  if (!failed) printf("%.3f\n", slowest);
  return failed != 0;
}
