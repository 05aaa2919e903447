// Collectives of a plain MPI library: mpi OP SIZE ITERS, f32, in nccl-tests' sizes. Rank 0 prints the slowest rank's
// median microseconds and whether every rank's result was right.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int n, rank;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const char *op = argv[1];
  long size = atol(argv[2]), iters = atol(argv[3]), count = size / sizeof(float), part = count / n;
  float *in = malloc(size), *out = malloc(size);
  double *times = malloc(iters * sizeof(double));
  for (long i = 0; i < count; i++) in[i] = rank + 1 + i % 251, out[i] = 0;
  int scatters = !strcmp(op, "reduce_scatter"), peer = n - 1 - rank;
  for (long i = -iters / 10 - 2; i < iters; i++) {
    double start = MPI_Wtime();
    if (!strcmp(op, "all_reduce")) MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(op, "all_gather")) MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
    else if (scatters) MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(op, "alltoall")) MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
    else
      MPI_Sendrecv(in, count, MPI_FLOAT, peer, 0, out, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (i >= 0) times[i] = MPI_Wtime() - start;
    else if (i == -1) MPI_Barrier(MPI_COMM_WORLD);
  }
  int right = 1, all_right;
  for (long i = 0; i < (scatters ? part : count); i++) {
    float sum = n * (n + 1) / 2, want;
    if (!strcmp(op, "all_reduce")) want = sum + n * (i % 251);
    else if (scatters) want = sum + n * ((rank * part + i) % 251);
    else if (!strcmp(op, "all_gather")) want = i / part + 1 + i % part % 251;
    else if (!strcmp(op, "alltoall")) want = i / part + 1 + (rank * part + i % part) % 251;
    else want = peer + 1 + i % 251;
    right &= out[i] == want;
  }
  qsort(times, iters, sizeof(double), ascending);
  double slowest;
  MPI_Reduce(&times[iters / 2], &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Reduce(&right, &all_right, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%.3f %d\n", slowest * 1e6, all_right);
  MPI_Finalize();
  return 0;
}
