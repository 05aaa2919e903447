/* What mock plugins need of the PJRT C API. Struct layouts are those of version 0.114. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 138

typedef struct { size_t size; void *ext; } head_t;
typedef struct { size_t size; void *ext; void *handle; } handle_args;
typedef struct { size_t size; void *ext; void *handle; const char *text; size_t text_size; } text_args;
typedef struct { size_t size; void *ext; void *handle; const void *list; size_t count; } list_args;
typedef struct { size_t size; void *ext; void *handle; void *out; } pointer_args;
typedef struct { size_t size; void *ext; void *handle; int out; } int_args;
typedef struct { size_t size; void *ext; void *handle; bool out; } bool_args;

typedef struct { size_t size; void *ext; const char *name; size_t name_size; int kind;
                 union { const char *text; int64_t number; } value; size_t value_size; char newer[24]; } named_value;

typedef void *(*callback_error)(int, const char *, size_t);
typedef struct { size_t size; void *ext; const char *key; size_t key_size; int timeout_in_ms; callback_error *error;
                 void *user_arg; char *value; size_t value_size; void (*deleter)(char *); } kv_get_args;
typedef struct { size_t size; void *ext; const char *key; size_t key_size; callback_error *error; void *user_arg;
                 char *value; size_t value_size; void (*deleter)(char *); } kv_try_get_args;
typedef struct { size_t size; void *ext; const char *key; size_t key_size; const char *value; size_t value_size;
                 callback_error *error; void *user_arg; } kv_put_args;
typedef struct { size_t size; void *ext; const named_value *options; size_t num_options;
                 void *(*get)(kv_get_args *); void *get_arg; void *(*put)(kv_put_args *); void *put_arg;
                 void *client; void *(*try_get)(kv_try_get_args *); void *try_get_arg; } client_create_args;

typedef struct { size_t size; void *ext; void *client; const void *data; int type; const int64_t *dims;
                 size_t num_dims; const int64_t *strides; size_t num_strides; int semantics; void *device;
                 void *memory; void *layout; void *done; void *buffer; } from_host_args;

typedef struct { size_t size; void *ext; char *code; size_t code_size; const char *format; size_t format_size; } program_t;

/* The whole table. */
typedef struct { size_t size; void *ext; struct { size_t size; void *ext; int major, minor; } version; void *slots[SLOTS];
               } api_t;
