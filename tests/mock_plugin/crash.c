/* A PJRT plugin that is the real one until it is told to end the process.
 *
 * SPMD_TEST_PLUGIN is the real one. SPMD_TEST_CRASH is the number of a signal, SPMD_TEST_CRASH_AT the slot whose function
 * ends the process with it, SPMD_TEST_CRASH_CALL the call that does, from 1, SPMD_TEST_CRASH_IN the process index. */
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 200

struct api { size_t size; void *ext; size_t version_size; void *version_ext; int major, minor; void *slots[SLOTS]; };
static struct api api;
static void *(*real)(void *);

static int number(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

static void *crash(void *args) {
  static int calls;
  if (number("SPMD_PROCESS_INDEX") != number("SPMD_TEST_CRASH_IN") || ++calls != number("SPMD_TEST_CRASH_CALL"))
    return real(args);
  fputs("F0000 00:00:1700000000.000001       1 compiler.cc:7] Check failed: shape.has_layout() f32[8]\n"
        "*** Check failure stack trace: ***\n    @     0x7f62ab52a5d4  (unknown)\n", stderr);
  int sent = number("SPMD_TEST_CRASH");
  signal(sent, SIG_DFL);
  raise(sent);
  abort();
}

const struct api *GetPjrtApi(void) {
  void *library = dlopen(getenv("SPMD_TEST_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  if (!library) return NULL;
  const struct api *found = ((const struct api *(*)(void))dlsym(library, "GetPjrtApi"))();
  memcpy(&api, found, found->size < sizeof api ? found->size : sizeof api);
  int slot = number("SPMD_TEST_CRASH_AT");
  real = (void *(*)(void *))api.slots[slot];
  api.slots[slot] = (void *)crash;
  return &api;
}
