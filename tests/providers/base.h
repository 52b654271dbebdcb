/*
 * base.h -- the interface of the test providers; each adds how it compresses.
 *
 * A provider defines BASE_NAME, includes this file, and defines the four functions below
 * under "To be defined". Before the inclusion it may override what is under "Options".
 * HOST execution only, on the calling thread.
 */
#ifndef BASE_H
#define BASE_H

#include "devitocomp.h"

#include <float.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Options ----------------------------------------------------------------------- */

#ifndef BASE_ABI_VERSION
#define BASE_ABI_VERSION DEVITOCOMP_ABI_VERSION
#endif
/* Empty to leave devitocomp_decompress out of the library's symbols. */
#ifndef BASE_DECOMPRESS_EXPORT
#define BASE_DECOMPRESS_EXPORT DEVITOCOMP_EXPORT
#endif
#ifndef BASE_PLAN_FIELDS
#define BASE_PLAN_FIELDS
#endif
#ifndef BASE_LIMITS_STATUS
#define BASE_LIMITS_STATUS(plan) DEVITOCOMP_OK
#endif
#ifndef BASE_MESSAGE
#define BASE_MESSAGE(plan) (plan)->message
#endif

#define BASE_MESSAGE_BYTES 256

struct devitocomp_plan {
  devitocomp_tensor_t tensor;
  devitocomp_limits_t limits;
  double error;    /* the tolerance asked for, negative if none was */
  size_t itemsize;
  size_t elements;
  size_t bytes;    /* of the tensor without its gaps */
  char *work;      /* room for that */
  char message[BASE_MESSAGE_BYTES];
  BASE_PLAN_FIELDS
};

/* ---- To be defined by the provider ------------------------------------------------- */

/* Fill in flags, dtypes and ranks; the rest of the claims is common. */
static void provider_claims(devitocomp_limits_t *limits);

/* Fill in plan->limits, or fail. They describe a raw copy without a sidecar so far. */
static int provider_setup(devitocomp_plan_t *plan);

/* As in the interface, with arguments that have been checked. */
static int provider_compress(devitocomp_plan_t *plan, const void *tensor, void *payload,
                             size_t capacity, size_t *compressed_bytes, void *sidecar);
static int provider_decompress(devitocomp_plan_t *plan, const void *payload,
                               size_t compressed_bytes, const void *sidecar,
                               void *tensor);

/* ---- For use by the provider ------------------------------------------------------- */

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static int fail(char *message, int status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, BASE_MESSAGE_BYTES, format, args);
  va_end(args);
  return status;
}

static int too_small(devitocomp_plan_t *plan, size_t capacity, size_t needed) {
  return fail(plan->message, DEVITOCOMP_BUFFER_TOO_SMALL,
              "the capacity is %zu bytes, the snapshot needs %zu", capacity, needed);
}

static size_t row_offset(const devitocomp_plan_t *plan, size_t row) {
  size_t offset = 0;
  uint32_t i;

  for (i = plan->tensor.rank - 1; i-- > 0;) {
    size_t dim = (size_t)plan->tensor.dims[i];
    offset += row % dim * (size_t)plan->tensor.strides[i];
    row /= dim;
  }
  return offset * plan->itemsize;
}

/* Copy the elements of a tensor, without its gaps, to packed. */
static void pack(const devitocomp_plan_t *plan, const void *tensor, char *packed) {
  size_t itemsize = plan->itemsize;
  size_t length = (size_t)plan->tensor.dims[plan->tensor.rank - 1];
  size_t stride = (size_t)plan->tensor.strides[plan->tensor.rank - 1];
  size_t row, i;

  for (row = 0; row < plan->elements / length; row++, packed += length * itemsize) {
    const char *from = (const char *)tensor + row_offset(plan, row);
    if (stride == 1)
      memcpy(packed, from, length * itemsize);
    else
      for (i = 0; i < length; i++)
        memcpy(packed + i * itemsize, from + i * stride * itemsize, itemsize);
  }
}

/* The reverse. */
static void unpack(const devitocomp_plan_t *plan, const char *packed, void *tensor) {
  size_t itemsize = plan->itemsize;
  size_t length = (size_t)plan->tensor.dims[plan->tensor.rank - 1];
  size_t stride = (size_t)plan->tensor.strides[plan->tensor.rank - 1];
  size_t row, i;

  for (row = 0; row < plan->elements / length; row++, packed += length * itemsize) {
    char *to = (char *)tensor + row_offset(plan, row);
    if (stride == 1)
      memcpy(to, packed, length * itemsize);
    else
      for (i = 0; i < length; i++)
        memcpy(to + i * stride * itemsize, packed + i * itemsize, itemsize);
  }
}

/* ---- The interface ----------------------------------------------------------------- */

#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define MIN_EXECUTION_SIZE END_OF(devitocomp_execution_t, stream)
#define MIN_TENSOR_SIZE END_OF(devitocomp_tensor_t, strides)
#define MIN_LIMITS_SIZE END_OF(devitocomp_limits_t, sidecar_alignment)

static __thread char create_message[BASE_MESSAGE_BYTES];

/*
 * Read a finite decimal number >= 0, whatever the locale. Powers of ten up to 22 are
 * exact doubles, so that tolerances as people write them come out correctly rounded.
 */
static int parse_tolerance(const char *text, double *value) {
  double power = 1;
  int exponent = 0, digits = 0, point = 0;

  *value = 0;
  for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++) {
    if (*text == '.') {
      point = 1;
    } else if (*value < 1e16) {
      *value = 10 * *value + (*text - '0');
      exponent -= point;
      digits = 1;
    } else {
      exponent += !point;
    }
  }
  if (!digits) return 0;
  if (*text == 'e' || *text == 'E') {
    int magnitude = 0, down = text[1] == '-';
    text += 1 + (text[1] == '-' || text[1] == '+');
    if (*text < '0' || *text > '9') return 0;
    for (; *text >= '0' && *text <= '9'; text++)
      if (magnitude < 10000) magnitude = 10 * magnitude + (*text - '0');
    exponent += down ? -magnitude : magnitude;
  }
  if (*text) return 0;

  for (digits = exponent < 0 ? -exponent : exponent; digits > 0 && power <= DBL_MAX;
       digits--)
    power *= 10;
  if (exponent < 0)
    *value /= power;
  else if (*value > 0)
    *value *= power;
  return *value <= DBL_MAX;
}

static void fill_claims(devitocomp_limits_t *limits) {
  memset(limits, 0, sizeof(*limits));
  limits->execution_kinds = DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST);
  limits->portable_kinds = limits->execution_kinds;
  limits->payload_version = 1;
  provider_claims(limits);
}

static int check_execution(char *message, const devitocomp_execution_t *exec) {
  if (!exec || exec->struct_size < MIN_EXECUTION_SIZE)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "exec is NULL or too short");
  if (exec->kind != DEVITOCOMP_EXECUTION_HOST)
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "execution kind %" PRIu32 " is not supported, only HOST", exec->kind);
  if (exec->reserved)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "exec->reserved is not 0");
  return DEVITOCOMP_OK;
}

static int check_tensor(devitocomp_plan_t *plan, const devitocomp_tensor_t *tensor) {
  int64_t contiguous = 1, last = 0;
  uint32_t i;

  if (!tensor || tensor->struct_size < MIN_TENSOR_SIZE)
    return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT,
                "tensor is NULL or too short");
  if (tensor->reserved)
    return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT, "tensor->reserved is not 0");
  if (tensor->rank < 1 || tensor->rank > DEVITOCOMP_MAX_RANK)
    return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT,
                "rank %" PRIu32 " is not in the range 1 to %d", tensor->rank,
                DEVITOCOMP_MAX_RANK);
  if (tensor->dtype > 31 || !(plan->limits.dtypes & DEVITOCOMP_BIT(tensor->dtype)))
    return fail(create_message, DEVITOCOMP_UNSUPPORTED,
                "dtype %" PRIu32 " is not supported", tensor->dtype);
  if (!(plan->limits.ranks & DEVITOCOMP_BIT(tensor->rank)))
    return fail(create_message, DEVITOCOMP_UNSUPPORTED,
                "rank %" PRIu32 " is not supported", tensor->rank);
  plan->itemsize = tensor->dtype == DEVITOCOMP_FLOAT64 ? sizeof(double) : sizeof(float);

  for (i = tensor->rank; i-- > 0;) {
    int64_t limit = PTRDIFF_MAX / (int64_t)plan->itemsize;
    if (tensor->dims[i] < 1 || tensor->strides[i] < 1 ||
        tensor->dims[i] > limit / contiguous ||
        tensor->dims[i] - 1 > (limit - 1 - last) / tensor->strides[i])
      return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT,
                  "dims[%" PRIu32 "] = %" PRId64 " and its stride %" PRId64
                  " are not positive, or too large", i, tensor->dims[i],
                  tensor->strides[i]);
    if (tensor->strides[i] != contiguous && !(plan->limits.flags & DEVITOCOMP_STRIDED))
      return fail(create_message, DEVITOCOMP_UNSUPPORTED,
                  "strides[%" PRIu32 "] is %" PRId64 ", but only contiguous tensors are "
                  "supported", i, tensor->strides[i]);
    contiguous *= tensor->dims[i];
    last += (tensor->dims[i] - 1) * tensor->strides[i];
  }
  memcpy(&plan->tensor, tensor, sizeof(plan->tensor));
  plan->elements = (size_t)contiguous;
  plan->bytes = plan->elements * plan->itemsize;
  return DEVITOCOMP_OK;
}

static int check_pointer(char *message, const char *name, const void *pointer,
                         uint64_t alignment) {
  /* Providers may announce alignments that are none, to see them refused. */
  int power_of_two = alignment && !(alignment & (alignment - 1));
  if (!pointer || (power_of_two && (uintptr_t)pointer % alignment))
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "%s is NULL or not aligned to %" PRIu64 " bytes", name, alignment);
  return DEVITOCOMP_OK;
}

static int check_call(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      const void *tensor, const void *payload, const void *sidecar) {
  const devitocomp_limits_t *limits = &plan->limits;
  int status;

  if ((status = check_execution(plan->message, exec)) ||
      (status = check_pointer(plan->message, "tensor", tensor, plan->itemsize)) ||
      (status = check_pointer(plan->message, "payload", payload,
                              limits->payload_alignment)))
    return status;
  return limits->sidecar_bytes ? check_pointer(plan->message, "sidecar", sidecar,
                                               limits->sidecar_alignment)
                               : DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT uint32_t devitocomp_abi_version(void) {
  return BASE_ABI_VERSION;
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_name(void) {
  return BASE_NAME;
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_version(void) {
  return "0.1";
}

DEVITOCOMP_EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan) {
  if (!plan) return;
  free(plan->work);
  free(plan);
}

static int create(devitocomp_plan_t *plan, const devitocomp_tensor_t *tensor,
                  const devitocomp_execution_t *exec, const char *options) {
  int status;

  fill_claims(&plan->limits);
  plan->error = -1;
  if ((status = check_tensor(plan, tensor)) ||
      (status = check_execution(create_message, exec)))
    return status;
  if (options && !parse_tolerance(options, &plan->error))
    return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT,
                "options are \"%.100s\", not a finite number >= 0", options);

  plan->limits.error_kind = DEVITOCOMP_ERROR_LOSSLESS;
  plan->limits.max_compressed_bytes = plan->bytes;
  plan->limits.payload_alignment = 1;
  plan->limits.sidecar_alignment = 1;
  if ((status = provider_setup(plan))) {
    memcpy(create_message, plan->message, sizeof(create_message));
    return status;
  }
  if (!(plan->work = malloc(plan->bytes)))
    return fail(create_message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for %zu bytes",
                plan->bytes);
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_plan_create(uint32_t abi_version,
                                             const devitocomp_tensor_t *tensor,
                                             const devitocomp_execution_t *exec,
                                             const char *options,
                                             devitocomp_plan_t **plan) {
  int status;

  if (plan) *plan = NULL;
  if (abi_version != BASE_ABI_VERSION)
    return fail(create_message, DEVITOCOMP_VERSION_MISMATCH,
                "the caller uses ABI version %" PRIu32 ", this provider %d", abi_version,
                BASE_ABI_VERSION);
  if (!plan) return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT, "plan is NULL");
  if (!(*plan = calloc(1, sizeof(**plan))))
    return fail(create_message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for a plan");
  if ((status = create(*plan, tensor, exec, options))) {
    devitocomp_plan_destroy(*plan);
    *plan = NULL;
  }
  return status;
}

DEVITOCOMP_EXPORT int devitocomp_plan_limits(const devitocomp_plan_t *plan,
                                             devitocomp_limits_t *limits) {
  devitocomp_limits_t filled;
  size_t size;

  if (!limits || limits->struct_size < MIN_LIMITS_SIZE)
    return DEVITOCOMP_INVALID_ARGUMENT;
  if (plan)
    filled = plan->limits;
  else
    fill_claims(&filled);
  filled.struct_size = limits->struct_size;
  size = limits->struct_size < sizeof(filled) ? limits->struct_size : sizeof(filled);
  memcpy(limits, &filled, size);
  return plan ? BASE_LIMITS_STATUS(plan) : DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_compress(devitocomp_plan_t *plan,
                                          const devitocomp_execution_t *exec,
                                          const void *tensor, void *payload,
                                          size_t capacity, size_t *compressed_bytes,
                                          void *sidecar) {
  int status;

  if (!plan || !compressed_bytes) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload, sidecar))) return status;
  return provider_compress(plan, tensor, payload, capacity, compressed_bytes, sidecar);
}

BASE_DECOMPRESS_EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                                 const devitocomp_execution_t *exec,
                                                 const void *payload,
                                                 size_t compressed_bytes,
                                                 const void *sidecar, void *tensor) {
  int status;

  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload, sidecar))) return status;
  return provider_decompress(plan, payload, compressed_bytes, sidecar, tensor);
}

DEVITOCOMP_EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan) {
  return plan ? BASE_MESSAGE(plan) : create_message;
}

#endif /* BASE_H */
