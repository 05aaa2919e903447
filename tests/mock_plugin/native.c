/* A PJRT plugin that sees the devices of other processes by itself, as those for GPUs do: it is told its node and their
 * number, and meets its peers through the key-value store. A program returns its arguments, once all nodes run it.
 *
 * Each node has MOCK_DEVICES devices ("1,2" gives node 1 two), or those of the option visible_devices. The node MOCK_ABSENT
 * comes, and never says a word. Ids are (node << 4 | device), so nobody may take them for dense. */
#include <stdio.h>
#include <unistd.h>

#include "pjrt.h"

#define MOST 64

typedef struct { int code; char message[300]; } error_t;
typedef struct client { int node, nodes, local, count; struct device { int id, node; } device[MOST]; void *list[MOST];
                        client_create_args kv; } client_t;
typedef struct device device_t;
typedef struct { device_t *device; int type; size_t rank; int64_t dims[8]; size_t bytes; char *data; } buffer_t;
typedef struct { client_t *client; size_t outputs, count; void *device[MOST]; } loaded_t;

static error_t *fail(int code, const char *message) {
  error_t *error = calloc(1, sizeof *error);
  error->code = code;
  strncpy(error->message, message, sizeof error->message - 1);
  return error;
}

static void destroy(handle_args *a) { free(a->handle); }
static void *destroyed(handle_args *a) { free(a->handle); return NULL; }
static void error_message(text_args *a) { a->text = ((error_t *)a->handle)->message; a->text_size = strlen(a->text); }
static void *error_code(int_args *a) { a->out = ((error_t *)a->handle)->code; return NULL; }
static void *nothing(head_t *a) { (void)a; return NULL; }
static void *yes(bool_args *a) { a->out = true; return NULL; }
static void *no(bool_args *a) { a->out = false; return NULL; }
static void *itself(pointer_args *a) { a->out = a->handle; return NULL; }

/* The key-value store */

static void *make_error(int code, const char *message, size_t size) {
  char text[300] = "";
  strncat(text, message, size < 299 ? size : 299);
  return fail(code, text);
}
static callback_error to_error = make_error;

static void *put(client_t *client, const char *key, const char *value) {
  kv_put_args a = {sizeof a, NULL, key, strlen(key), value, strlen(value), &to_error, client->kv.put_arg};
  return client->kv.put(&a);
}

static void *get_number(client_t *client, const char *key, int *number) {
  kv_get_args a = {sizeof a, NULL, key, strlen(key), 30000, &to_error, client->kv.get_arg, NULL, 0, NULL};
  void *error = client->kv.get(&a);
  if (error) return error;
  char text[16] = "";
  memcpy(text, a.value, a.value_size < 15 ? a.value_size : 15);
  a.deleter(a.value);
  *number = atoi(text);
  return NULL;
}

/* Says this node's number under a name, and hears those of all. */
static void *exchange(client_t *client, const char *what, int own, int *all) {
  char key[64], value[16];
  snprintf(key, sizeof key, "mock/%s/%d", what, client->node);
  snprintf(value, sizeof value, "%d", own);
  void *error = client->nodes > 1 ? put(client, key, value) : NULL;
  for (int node = 0; !error && node < client->nodes; node++) {
    if (node == client->node) { all[node] = own; continue; }
    snprintf(key, sizeof key, "mock/%s/%d", what, node);
    error = get_number(client, key, &all[node]);
  }
  return error;
}

/* The client */

static void *client_create(client_create_args *a) {
  client_t *client = calloc(1, sizeof *client);
  client->nodes = 1;
  client->kv = *a;
  for (size_t i = 0; i < a->num_options; i++) {
    const named_value *option = (const void *)((const char *)a->options + i * a->options->size);
    char name[64] = "";
    strncat(name, option->name, option->name_size < 63 ? option->name_size : 63);
    struct { const char *name; int kind; } known[] = {
        {"allocator", 0}, {"node_id", 1}, {"num_nodes", 1}, {"visible_devices", 2}, {"memory_fraction", 3},
        {"preallocate", 4}};
    bool fits = false;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
      fits |= !strcmp(name, known[k].name) && option->kind == known[k].kind;
    if (!fits) {
      char message[128];
      snprintf(message, sizeof message, "Unexpected option name or type passed to PJRT_Client_Create: %s", name);
      free(client);
      return fail(3, message);
    }
    if (!strcmp(name, "node_id")) client->node = (int)option->value.number;
    if (!strcmp(name, "num_nodes")) client->nodes = (int)option->value.number;
    if (!strcmp(name, "visible_devices")) client->local = (int)option->value_size;
  }
  if (!client->local) {
    const char *list = getenv("MOCK_DEVICES") ? getenv("MOCK_DEVICES") : "2";
    for (int node = 0; node < client->node && strchr(list, ','); node++) list = strchr(list, ',') + 1;
    client->local = atoi(list);
  }
  if (client->nodes > 1 && (!a->get || !a->put || !a->try_get)) return fail(3, "several nodes and no key-value store");
  if (getenv("MOCK_ABSENT") && atoi(getenv("MOCK_ABSENT")) == client->node) for (;;) sleep(1);
  int devices[MOST];
  void *error = exchange(client, "topology", client->local, devices);
  if (error) return error;
  for (int node = 0; node < client->nodes; node++)
    for (int i = 0; i < devices[node] && client->count < MOST; i++, client->count++) {
      client->device[client->count] = (device_t){node << 4 | i, node};
      client->list[client->count] = &client->device[client->count];
    }
  a->client = client;
  return NULL;
}

static void *platform_name(text_args *a) { a->text = "mock_gpu"; a->text_size = 8; return NULL; }
static void *process_index(int_args *a) { a->out = ((client_t *)a->handle)->node; return NULL; }

static void *devices(list_args *a) {
  client_t *client = a->handle;
  a->list = client->list;
  a->count = client->count;
  return NULL;
}

static void *addressable_devices(list_args *a) {
  client_t *client = a->handle;
  int first = 0;
  while (client->device[first].node != client->node) first++;
  a->list = client->list + first;
  a->count = client->local;
  return NULL;
}

/* The client that a device is of would be known to a real plugin; there is one in a process. */
static int own_node(void) { return getenv("SPMD_PROCESS_INDEX") ? atoi(getenv("SPMD_PROCESS_INDEX")) : 0; }
static void *device_id(int_args *a) { a->out = ((device_t *)a->handle)->id; return NULL; }
static void *device_node(int_args *a) { a->out = ((device_t *)a->handle)->node; return NULL; }
static void *local_id(int_args *a) { a->out = ((device_t *)a->handle)->id & 15; return NULL; }
static void *device_kind(text_args *a) { a->text = "mock GPU"; a->text_size = 8; return NULL; }
static void *is_addressable(bool_args *a) { a->out = ((device_t *)a->handle)->node == own_node(); return NULL; }

/* Buffers of four bytes per element */

static buffer_t *new_buffer(device_t *device, int type, const int64_t *dims, size_t rank, const void *data) {
  buffer_t *buffer = calloc(1, sizeof *buffer);
  *buffer = (buffer_t){.device = device, .type = type, .rank = rank, .bytes = 4};
  for (size_t i = 0; i < rank; i++) buffer->bytes *= (size_t)(buffer->dims[i] = dims[i]);
  buffer->data = malloc(buffer->bytes + 1);
  memcpy(buffer->data, data, buffer->bytes);
  return buffer;
}

static void *buffer_from_host(from_host_args *a) {
  a->buffer = new_buffer(a->device, a->type, a->dims, a->num_dims, a->data);
  a->done = malloc(1);
  return NULL;
}

static void *buffer_destroy(handle_args *a) { free(((buffer_t *)a->handle)->data); free(a->handle); return NULL; }
static void *buffer_type(int_args *a) { a->out = ((buffer_t *)a->handle)->type; return NULL; }
static void *buffer_device(pointer_args *a) { a->out = ((buffer_t *)a->handle)->device; return NULL; }

static void *buffer_dims(list_args *a) {
  a->list = ((buffer_t *)a->handle)->dims;
  a->count = ((buffer_t *)a->handle)->rank;
  return NULL;
}

struct to_host { size_t size; void *ext; buffer_t *src; void *layout; void *dst; size_t dst_size; void *event; };
static void *to_host(struct to_host *a) {
  a->dst_size = a->src->bytes;
  if (!a->dst) return NULL;
  memcpy(a->dst, a->src->data, a->src->bytes);
  a->event = malloc(1);
  return NULL;
}

/* Programs: of the protobufs only what matters is looked at. */

typedef struct { const unsigned char *at, *end; } bytes_t;

static uint64_t varint(bytes_t *b) {
  uint64_t value = 0;
  for (int shift = 0; b->at < b->end && shift < 64; shift += 7) {
    value |= (uint64_t)(*b->at & 127) << shift;
    if (*b->at++ < 128) break;
  }
  return value;
}

/* The next field of a message: its number, with its value or its bytes; 0 at the end. */
static int field(bytes_t *b, uint64_t *value, bytes_t *inner) {
  if (b->at >= b->end) return 0;
  uint64_t tag = varint(b);
  *inner = (bytes_t){b->at, b->at};
  switch (tag & 7) {
    case 0: *value = varint(b); break;
    case 1: b->at += 8; break;
    case 5: b->at += 4; break;
    case 2: {
      uint64_t length = varint(b);
      if (length > (uint64_t)(b->end - b->at)) return 0;
      *inner = (bytes_t){b->at, b->at + length};
      b->at += length;
    }
  }
  return (int)(tag >> 3);
}

static bytes_t message(bytes_t b, int wanted) {
  uint64_t value;
  bytes_t inner, found = {NULL, NULL};
  for (int number; (number = field(&b, &value, &inner));) if (number == wanted) found = inner;
  return found;
}

struct compile { size_t size; void *ext; client_t *client; const program_t *program; const char *options;
                 size_t options_size; void *executable; };
static void *compile(struct compile *a) {
  client_t *client = a->client;
  uint64_t replicas = 0, partitions = 0, value = 0;
  bytes_t inner, options = message((bytes_t){(void *)a->options, (void *)(a->options + a->options_size)}, 3);
  bytes_t assignment = message(options, 9);
  for (int number; (number = field(&options, &value, &inner));) {
    if (number == 4) replicas = value;
    if (number == 5) partitions = value;
  }
  if (replicas != 1 || partitions != (uint64_t)client->count) return fail(3, "a program for other than all devices");
  loaded_t *loaded = calloc(1, sizeof *loaded);
  loaded->client = client;
  for (int number; (number = field(&assignment, &value, &inner));) {
    if (number != 3) continue;
    bytes_t ids = message(inner, 1);
    int id = (int)varint(&ids);
    for (int i = 0; i < client->count; i++)
      if (client->device[i].id == id && client->device[i].node == client->node)
        loaded->device[loaded->count++] = &client->device[i];
  }
  if (loaded->count != (size_t)client->local) return fail(3, "the device assignment leaves devices of this node out");
  bytes_t program = {(void *)a->program->code, (void *)(a->program->code + a->program->code_size)};
  bytes_t shape = message(program, 4);
  for (int number; (number = field(&shape, &value, &inner));) loaded->outputs += number == 1;
  a->executable = loaded;
  return NULL;
}

static void *get_executable(pointer_args *a) {
  a->out = malloc(sizeof(loaded_t));
  memcpy(a->out, a->handle, sizeof(loaded_t));
  return NULL;
}

struct count { size_t size; void *ext; loaded_t *handle; size_t out; };
static void *num_outputs(struct count *a) { a->out = a->handle->outputs; return NULL; }
static void *loaded_devices(list_args *a) {
  a->list = ((loaded_t *)a->handle)->device;
  a->count = ((loaded_t *)a->handle)->count;
  return NULL;
}

struct execute_options { size_t size; void *ext, *send, *receive; size_t num_send, num_receive; int launch_id; };
struct execute { size_t size; void *ext; loaded_t *executable; struct execute_options *options;
                 buffer_t *const *const *args; size_t num_devices, num_args; buffer_t **const *outputs; void **events; };
static void *execute(struct execute *a) {
  int all[MOST];
  char name[32];
  snprintf(name, sizeof name, "run/%d", a->options->launch_id);
  void *error = exchange(a->executable->client, name, 1, all);
  if (error) return error;
  for (size_t i = 0; i < a->num_devices; i++) {
    for (size_t j = 0; j < a->num_args; j++) {
      buffer_t *in = a->args[i][j];
      a->outputs[i][j] = new_buffer(in->device, in->type, in->dims, in->rank, in->data);
    }
    a->events[i] = malloc(1);
  }
  return NULL;
}

static api_t api = {
    .size = sizeof api,
    .version = {sizeof api.version, NULL, 0, 114},
    .slots = {
        [0] = destroy,         [1] = error_message,    [2] = error_code,      [3] = nothing,
        [5] = destroyed,       [6] = yes,              [8] = nothing,         [10] = client_create,
        [11] = destroyed,      [12] = platform_name,   [13] = process_index,  [14] = platform_name,
        [15] = devices,        [16] = addressable_devices, [20] = compile,    [22] = buffer_from_host,
        [23] = device_id,      [24] = device_node,     [25] = nothing,        [26] = device_kind,
        [29] = itself,         [30] = is_addressable,  [31] = local_id,       [40] = destroyed,
        [44] = num_outputs,    [50] = destroyed,       [51] = get_executable, [52] = loaded_devices,
        [55] = execute,        [58] = buffer_destroy,  [59] = buffer_type,    [60] = buffer_dims,
        [65] = buffer_device,  [68] = no,              [70] = to_host,
    },
};

const void *GetPjrtApi(void) { return &api; }
