/* A PJRT plugin with two devices that computes nothing: an execution returns copies of its arguments.
 *
 * Tests reshape it with mock() before it is loaded: leave a slot null, report another version or a shorter table, fail
 * on purpose. It counts what is alive, and what was destroyed too late. */
#include "pjrt.h"

#define DEVICES 2

typedef struct { int code; char message[160]; } error_t;

struct mock {
  /* Set by tests. */
  int major, minor;
  size_t table_size;
  int null_slot;
  bool null_api, null_outputs, ignore_options, no_extensions;
  /* Counted here. */
  int initialized, live_clients, live_buffers, live_executables, live_loaded, live_events, live_errors;
  int clients_destroyed, used_after_client;
  char kv_log[256];
};
static struct mock state = {.major = 0, .minor = 114, .null_slot = -1};
struct mock *mock(void) { return &state; }

typedef struct { int id; } device_t;
typedef struct { int devices; device_t device[DEVICES]; void *list[DEVICES]; } client_t;
typedef struct { client_t *client; device_t *device; int type; size_t rank; int64_t dims[8]; size_t bytes; char *data;
                 } buffer_t;
typedef struct { client_t *client; } loaded_t;
typedef struct { client_t *client; } event_t;

static error_t *fail(int code, const char *message) {
  error_t *error = calloc(1, sizeof *error);
  error->code = code;
  strncpy(error->message, message, sizeof error->message - 1);
  state.live_errors++;
  return error;
}

/* Errors */

static void error_destroy(handle_args *a) { state.live_errors--; free(a->handle); }

static void error_message(text_args *a) {
  a->text = ((error_t *)a->handle)->message;
  a->text_size = strlen(a->text);
}

static void *error_get_code(int_args *a) { a->out = ((error_t *)a->handle)->code; return NULL; }

static void *plugin_initialize(head_t *a) {
  (void)a;
  state.initialized++;
  return NULL;
}

/* Attributes: elements longer than the caller's struct, as a newer plugin's would be. */

static void *plugin_attributes(struct { size_t size; void *ext; const named_value *list; size_t count; } *a) {
  static named_value list[] = {
      {sizeof(named_value), NULL, "mock_version", 12, 1, {.number = 3}, 1, ""},
      {sizeof(named_value), NULL, "vendor", 6, 0, {.text = "nobody"}, 6, ""},
      {sizeof(named_value), NULL, "of_a_newer_kind", 15, 99, {.number = 0}, 1, ""},
  };
  a->list = list;
  a->count = 3;
  return NULL;
}

/* Events: all have happened. */

static event_t *new_event(client_t *client) {
  event_t *event = malloc(sizeof *event);
  event->client = client;
  state.live_events++;
  return event;
}

static void *event_destroy(handle_args *a) {
  state.live_events--;
  if (!state.live_clients) state.used_after_client++;
  free(a->handle);
  return NULL;
}

static void *event_is_ready(bool_args *a) { a->out = true; return NULL; }

static void *event_await(handle_args *a) { (void)a; return NULL; }

static void *event_on_ready(
    struct { size_t size; void *ext; void *event; void (*callback)(void *, void *); void *user_arg; } *a) {
  a->callback(fail(14, "on purpose"), a->user_arg);
  return NULL;
}

/* The client */

static void *make_error(int code, const char *message, size_t size) {
  char text[160] = "";
  strncat(text, message, size < 159 ? size : 159);
  return fail(code, text);
}

static void log_kv(const char *what, void *error, const char *value, size_t size) {
  strcat(state.kv_log, what);
  if (error) {
    strcat(state.kv_log, ((error_t *)error)->message);
    error_destroy(&(handle_args){.handle = error});
  } else {
    strncat(state.kv_log, value, size);
  }
  strcat(state.kv_log, ";");
}

static void use_key_value_store(client_create_args *a) {
  callback_error error = make_error;
  kv_put_args put = {sizeof put, NULL, "mock/key", 8, "value", 5, &error, a->put_arg};
  log_kv("put ", a->put(&put), "", 0);
  kv_get_args get = {sizeof get, NULL, "mock/key", 8, 2000, &error, a->get_arg, NULL, 0, NULL};
  void *failure = a->get(&get);
  log_kv("get ", failure, get.value, get.value_size);
  if (!failure) get.deleter(get.value);
  kv_try_get_args there = {sizeof there, NULL, "mock/key", 8, &error, a->try_get_arg, NULL, 0, NULL};
  failure = a->try_get(&there);
  log_kv("try ", failure, there.value, there.value_size);
  if (!failure) there.deleter(there.value);
  kv_try_get_args missing = {sizeof missing, NULL, "missing", 7, &error, a->try_get_arg, NULL, 0, NULL};
  log_kv("try ", a->try_get(&missing), missing.value, missing.value_size);
  kv_get_args panics = {sizeof panics, NULL, "panic", 5, 1, &error, a->get_arg, NULL, 0, NULL};
  log_kv("get ", a->get(&panics), panics.value, panics.value_size);
}

static void *client_create(client_create_args *a) {
  int devices = DEVICES;
  for (size_t i = 0; i < a->num_options; i++) {
    /* The caller's elements are as long as the caller says. */
    const named_value *option = (const void *)((const char *)a->options + i * a->options->size);
    if (option->name_size == 4 && !memcmp(option->name, "fail", 4)) return fail(3, "told to fail");
    if (option->name_size == 16 && !memcmp(option->name, "cpu_device_count", 16) && !state.ignore_options)
      devices = (int)option->value.number;
  }
  if (a->get) use_key_value_store(a);
  client_t *client = calloc(1, sizeof *client);
  client->devices = devices;
  for (int i = 0; i < DEVICES; i++) {
    client->device[i].id = i;
    client->list[i] = &client->device[i];
  }
  state.live_clients++;
  a->client = client;
  return NULL;
}

static void *client_destroy(handle_args *a) {
  state.live_clients--;
  state.clients_destroyed++;
  free(a->handle);
  return NULL;
}

static void *platform_name(text_args *a) { a->text = "mock"; a->text_size = 4; return NULL; }

static void *process_index(int_args *a) { a->out = 0; return NULL; }

static void *client_devices(list_args *a) {
  client_t *client = a->handle;
  a->list = client->list;
  a->count = client->devices;
  return NULL;
}

static void *addressable_memories(list_args *a) { a->list = NULL; a->count = 0; return NULL; }

static void *device_id(int_args *a) { a->out = ((device_t *)a->handle)->id; return NULL; }

static void *get_description(pointer_args *a) { a->out = a->handle; return NULL; }

static void *is_addressable(bool_args *a) { a->out = true; return NULL; }

static void *default_memory(pointer_args *a) { a->out = NULL; return NULL; }

/* Buffers */

static buffer_t *new_buffer(client_t *client, device_t *device, int type, const int64_t *dims, size_t rank,
                            const void *data, size_t bytes) {
  buffer_t *buffer = calloc(1, sizeof *buffer);
  *buffer = (buffer_t){.client = client, .device = device, .type = type, .rank = rank, .bytes = bytes};
  if (rank) memcpy(buffer->dims, dims, rank * sizeof *dims);
  buffer->data = malloc(bytes ? bytes : 1);
  memcpy(buffer->data, data, bytes);
  state.live_buffers++;
  return buffer;
}

static void *buffer_from_host(from_host_args *a) {
  size_t bytes = 4; /* f32 only */
  for (size_t i = 0; i < a->num_dims; i++) bytes *= (size_t)a->dims[i];
  a->buffer = new_buffer(a->client, a->device, a->type, a->dims, a->num_dims, a->data, bytes);
  a->done = new_event(a->client);
  return NULL;
}

static void *buffer_destroy(handle_args *a) {
  buffer_t *buffer = a->handle;
  state.live_buffers--;
  if (!state.live_clients) state.used_after_client++;
  free(buffer->data);
  free(buffer);
  return NULL;
}

static void *buffer_type(int_args *a) { a->out = ((buffer_t *)a->handle)->type; return NULL; }

static void *buffer_dims(list_args *a) {
  buffer_t *buffer = a->handle;
  a->list = buffer->dims;
  a->count = buffer->rank;
  return NULL;
}

static void *buffer_device(pointer_args *a) { a->out = ((buffer_t *)a->handle)->device; return NULL; }

static void *is_deleted(bool_args *a) { a->out = false; return NULL; }

static void *to_host(struct { size_t size; void *ext; buffer_t *src; void *layout; void *dst; size_t dst_size;
                              void *event; } *a) {
  a->dst_size = a->src->bytes;
  if (!a->dst) return NULL;
  memcpy(a->dst, a->src->data, a->src->bytes);
  a->event = new_event(a->src->client);
  return NULL;
}

/* Executables */

static void *compile(struct { size_t size; void *ext; client_t *client; const program_t *program; const char *options;
                              size_t options_size; void *executable; } *a) {
  if (a->program->code_size == 3 && !memcmp(a->program->code, "bad", 3)) return fail(12, "cannot compile this");
  loaded_t *loaded = malloc(sizeof *loaded);
  loaded->client = a->client;
  state.live_loaded++;
  a->executable = loaded;
  return NULL;
}

static void *get_executable(pointer_args *a) {
  loaded_t *executable = malloc(sizeof *executable);
  *executable = *(loaded_t *)a->handle;
  state.live_executables++;
  a->out = executable;
  return NULL;
}

static void *executable_destroy(handle_args *a) { state.live_executables--; free(a->handle); return NULL; }

static void *loaded_destroy(handle_args *a) {
  state.live_loaded--;
  if (!state.live_clients) state.used_after_client++;
  free(a->handle);
  return NULL;
}

static void *num_outputs(struct { size_t size; void *ext; void *handle; size_t out; } *a) { a->out = 1; return NULL; }

static void *loaded_devices(list_args *a) {
  a->list = ((loaded_t *)a->handle)->client->list;
  a->count = ((loaded_t *)a->handle)->client->devices;
  return NULL;
}

static void *execute(struct { size_t size; void *ext; loaded_t *executable; void *options; buffer_t *const *const *args;
                              size_t num_devices; size_t num_args; buffer_t **const *outputs; void **events;
                              void *device; } *a) {
  if (!a->num_args) return fail(9, "nothing to copy");
  for (size_t i = 0; i < a->num_devices; i++) {
    buffer_t *in = a->args[i][0];
    if (!state.null_outputs)
      a->outputs[i][0] = new_buffer(in->client, in->device, in->type, in->dims, in->rank, in->data, in->bytes);
    a->events[i] = new_event(in->client);
  }
  return NULL;
}

/* The table */

typedef struct extension { size_t size; int type; struct extension *next; } extension_t;
static extension_t newer = {sizeof newer, 777, NULL};
/* Too short to hold the functions of its type. */
static extension_t short_ffi = {sizeof short_ffi, 5, &newer};

static api_t api;

const void *GetPjrtApi(void) {
  void *slots[SLOTS] = {
      [0] = error_destroy,   [1] = error_message,     [2] = error_get_code,  [3] = plugin_initialize,
      [4] = plugin_attributes, [5] = event_destroy,   [6] = event_is_ready,  [8] = event_await,
      [9] = event_on_ready,  [10] = client_create,    [11] = client_destroy, [12] = platform_name,
      [13] = process_index,  [15] = client_devices,   [16] = client_devices, [19] = addressable_memories,
      [20] = compile,        [22] = buffer_from_host, [23] = device_id,      [24] = process_index,
      [29] = get_description, [30] = is_addressable,  [31] = device_id,      [33] = default_memory,
      [40] = executable_destroy, [44] = num_outputs,  [50] = loaded_destroy, [51] = get_executable,
      [52] = loaded_devices, [55] = execute,          [58] = buffer_destroy, [59] = buffer_type,
      [60] = buffer_dims,    [65] = buffer_device,    [68] = is_deleted,       [70] = to_host,
  };
  if (state.null_api) return NULL;
  memcpy(api.slots, slots, sizeof slots);
  if (state.null_slot >= 0) api.slots[state.null_slot] = NULL;
  api.size = state.table_size ? state.table_size : sizeof api;
  api.ext = state.no_extensions ? NULL : &short_ffi;
  api.version.size = sizeof api.version;
  api.version.major = state.major;
  api.version.minor = state.minor;
  return &api;
}
