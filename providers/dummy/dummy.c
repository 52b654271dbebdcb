/*
 * dummy.c -- a provider that copies instead of compressing.
 *
 * It exists to exercise callers, hence the eight-byte payload alignment and the sidecar,
 * neither of which a copy needs. Compiled with DUMMY_CUDA it offers CUDA execution too.
 *
 * The sidecar
 * -----------
 * One native-endian 64-bit word that decompress really checks:
 *
 *     high half   a hash of dtype, rank and dims, never 0
 *     low half    a hash of a sample of the payload, never 0; or 0 if nobody looked at it
 *
 * HOST execution fills in both halves. CUDA execution cannot look at the payload without
 * waiting for the stream, so it leaves the low half 0, and when decompressing it ignores
 * what HOST execution put there. Thus either kind decodes the payloads of the other, and
 * each checks what it can: mixed-up snapshots of equal shape go unnoticed only if one
 * side was CUDA, or if they agree in every byte that was sampled.
 */
#include "devitocomp.h"

#include <float.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef DUMMY_CUDA
#include <cuda_runtime.h>
#endif

#define MESSAGE_BYTES 256

#define PAYLOAD_ALIGNMENT 8
#define SIDECAR_BYTES sizeof(uint64_t)
#define SIDECAR_ALIGNMENT 8

/* A thread costs more than it saves on less than this. */
#define BYTES_PER_THREAD ((size_t)256 << 10)
/* libgomp ends the process when it cannot create a thread, which a provider must not. */
#define MAX_THREADS 256

/* The sample is one cache line in each of so many places, 32 KiB in all: some 20
   microseconds, little even next to a copy. */
#define SAMPLE_BYTES ((size_t)64)
#define SAMPLES ((size_t)512)

#ifdef DUMMY_CUDA
#define EXECUTION_KINDS \
  (DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST) | DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_CUDA))
#else
#define EXECUTION_KINDS DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST)
#endif
#define DTYPES DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32)
#define RANKS (DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3))

/* Sizes of version 1, not sizeof: a header that grew must not turn old callers away. */
#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define MIN_EXECUTION_SIZE END_OF(devitocomp_execution_t, stream)
#define MIN_TENSOR_SIZE END_OF(devitocomp_tensor_t, strides)
#define MIN_LIMITS_SIZE END_OF(devitocomp_limits_t, sidecar_alignment)

struct devitocomp_plan {
  uint32_t kind;
  int device; /* CUDA only */
  size_t bytes;
  uint32_t tensor_tag;
  char message[MESSAGE_BYTES];
};

static __thread char create_message[MESSAGE_BYTES];

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static int fail(char *message, int status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, MESSAGE_BYTES, format, args);
  va_end(args);
  return status;
}

/* ---- Checking arguments ------------------------------------------------------------ */

/*
 * Whether text is a finite number >= 0 in decimal notation. Not strtod, which follows the
 * locale. The value is of no further use, as a copy satisfies any tolerance, so that
 * rounding errors in it do not matter.
 */
static int is_tolerance(const char *text) {
  double value = 0, power = 1;
  long exponent = 0;
  int digits = 0, point = 0, negative = *text == '-';

  if (*text == '-' || *text == '+') text++;
  for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++) {
    if (*text == '.') {
      point = 1;
      continue;
    }
    digits = 1;
    /* More digits than a double holds only move the point. */
    if (value < 1e18) {
      value = 10 * value + (*text - '0');
      exponent -= point;
    } else {
      exponent += !point;
    }
  }
  if (!digits) return 0;

  if (*text == 'e' || *text == 'E') {
    long magnitude = 0;
    int down = *++text == '-';
    if (*text == '-' || *text == '+') text++;
    if (*text < '0' || *text > '9') return 0;
    for (; *text >= '0' && *text <= '9'; text++)
      if (magnitude < 100000) magnitude = 10 * magnitude + (*text - '0');
    exponent += down ? -magnitude : magnitude;
  }
  if (*text) return 0;

  if (value == 0) return 1;
  for (; exponent > 0 && power <= DBL_MAX; exponent--) power *= 10;
  return !negative && value <= DBL_MAX / power;
}

static int check_execution(char *message, const devitocomp_execution_t *exec) {
  if (!exec) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "exec is NULL");
  if (exec->struct_size < MIN_EXECUTION_SIZE)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->struct_size is %" PRIu32 ", less than %zu", exec->struct_size,
                MIN_EXECUTION_SIZE);
  if (exec->kind > 31 || !(EXECUTION_KINDS & DEVITOCOMP_BIT(exec->kind)))
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "execution kind %" PRIu32 " is not offered; this build offers %s",
                exec->kind,
                EXECUTION_KINDS & DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_CUDA)
                    ? "HOST (1) and CUDA (2)"
                    : "HOST (1)");
  if (exec->reserved)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->reserved is %" PRIu32 ", not 0", exec->reserved);
  if (exec->kind == DEVITOCOMP_EXECUTION_HOST && exec->stream)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->stream is not NULL for HOST execution");
  return DEVITOCOMP_OK;
}

static int check_tensor(char *message, const devitocomp_tensor_t *tensor, size_t *bytes) {
  int64_t elements = 1;
  uint32_t i;

  if (!tensor) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "tensor is NULL");
  if (tensor->struct_size < MIN_TENSOR_SIZE)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "tensor->struct_size is %" PRIu32 ", less than %zu", tensor->struct_size,
                MIN_TENSOR_SIZE);
  if (tensor->reserved)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "tensor->reserved is %" PRIu32 ", not 0", tensor->reserved);
  if (tensor->rank < 1 || tensor->rank > DEVITOCOMP_MAX_RANK)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "rank %" PRIu32 " is not in the range 1 to %d", tensor->rank,
                DEVITOCOMP_MAX_RANK);

  /* Invalid before unsupported: it says more about where the caller went wrong. */
  for (i = tensor->rank; i-- > 0;) {
    if (tensor->dims[i] < 1)
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "dims[%" PRIu32 "] is %" PRId64 ", less than 1", i, tensor->dims[i]);
    if (tensor->strides[i] < 1)
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "strides[%" PRIu32 "] is %" PRId64 ", less than 1", i,
                  tensor->strides[i]);
    if (tensor->dims[i] > (int64_t)(PTRDIFF_MAX / sizeof(float)) / elements)
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "the tensor does not fit in memory: dims[%" PRIu32 "] is %" PRId64, i,
                  tensor->dims[i]);
    elements *= tensor->dims[i];
  }

  if (tensor->dtype != DEVITOCOMP_FLOAT32)
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "dtype %" PRIu32 " is not supported, only FLOAT32 (%d)", tensor->dtype,
                DEVITOCOMP_FLOAT32);
  if (!(RANKS & DEVITOCOMP_BIT(tensor->rank)))
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "rank %" PRIu32 " is not supported, only 2 and 3", tensor->rank);

  elements = 1;
  for (i = tensor->rank; i-- > 0;) {
    if (tensor->strides[i] != elements)
      return fail(message, DEVITOCOMP_UNSUPPORTED,
                  "strides[%" PRIu32 "] is %" PRId64 ", but only contiguous tensors are "
                  "supported: %" PRId64 " here", i, tensor->strides[i], elements);
    elements *= tensor->dims[i];
  }
  *bytes = (size_t)elements * sizeof(float);
  return DEVITOCOMP_OK;
}

static int check_pointer(char *message, const char *name, const void *pointer,
                         size_t alignment) {
  if (!pointer) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "%s is NULL", name);
  if ((uintptr_t)pointer % alignment)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "%s is not aligned to %zu bytes",
                name, alignment);
  return DEVITOCOMP_OK;
}

/* What compress and decompress have in common. */
static int check_call(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      const void *tensor, const void *payload, const void *sidecar) {
  char *message = plan->message;
  int status;

  if ((status = check_execution(message, exec))) return status;
  if (exec->kind != plan->kind)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "execution kind %" PRIu32 " is not %" PRIu32 ", that of the plan",
                exec->kind, plan->kind);
  if ((status = check_pointer(message, "tensor", tensor, sizeof(float)))) return status;
  if ((status = check_pointer(message, "payload", payload, PAYLOAD_ALIGNMENT)))
    return status;
  return check_pointer(message, "sidecar", sidecar, SIDECAR_ALIGNMENT);
}

/* ---- Sidecars ---------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9fb21c651e98df25);
  return hash ^ (hash >> 32);
}

static uint64_t mix_bytes(uint64_t hash, const unsigned char *data, size_t bytes) {
  uint64_t word = 0;

  for (; bytes >= sizeof(word); data += sizeof(word), bytes -= sizeof(word)) {
    memcpy(&word, data, sizeof(word));
    hash = mix(hash, word);
  }
  if (bytes) {
    word = 0;
    memcpy(&word, data, bytes);
    hash = mix(hash, word);
  }
  return hash;
}

/* 32 bits of a hash, 0 being taken. */
static uint32_t fold(uint64_t hash) {
  uint32_t half = (uint32_t)(mix(hash, 0) >> 32);
  return half ? half : 1;
}

static uint32_t tag_tensor(const devitocomp_tensor_t *tensor) {
  uint64_t hash = mix(tensor->dtype, tensor->rank);
  uint32_t i;

  for (i = 0; i < tensor->rank; i++) hash = mix(hash, (uint64_t)tensor->dims[i]);
  return fold(hash);
}

static uint32_t tag_payload(const void *payload, size_t bytes) {
  const unsigned char *data = payload;
  size_t step, i;
  uint64_t hash = bytes;

  if (bytes <= SAMPLES * SAMPLE_BYTES) return fold(mix_bytes(hash, data, bytes));

  hash = mix_bytes(hash, data, SAMPLE_BYTES);
  hash = mix_bytes(hash, data + bytes - SAMPLE_BYTES, SAMPLE_BYTES);
  /* Regular steps might coincide with the rows of the tensor, and then see nothing but
     its boundary: so one place, as good as random, in each step. */
  step = (bytes - SAMPLE_BYTES) / SAMPLES;
  for (i = 0; i < SAMPLES; i++) {
    size_t offset = i * step + (size_t)(mix(i + 1, 0) % step);
    hash = mix_bytes(hash, data + offset - offset % SAMPLE_BYTES, SAMPLE_BYTES);
  }
  return fold(hash);
}

/* ---- Copying ----------------------------------------------------------------------- */

static void copy_on_host(void *to, const void *from, size_t bytes, uint32_t num_threads) {
#ifdef _OPENMP
  size_t parts = bytes / BYTES_PER_THREAD;
  size_t threads = num_threads ? num_threads : (size_t)omp_get_max_threads();

  if (parts > threads) parts = threads;
  if (parts > MAX_THREADS) parts = MAX_THREADS;
  if (parts > 1) {
    /* Cut at cache lines, or neighbours would fight over the one they share. */
    size_t size = (bytes / parts + 63) / 64 * 64;
    int part;

    #pragma omp parallel for num_threads((int)parts) schedule(static)
    for (part = 0; part < (int)parts; part++) {
      size_t start = (size_t)part * size;
      if (start < bytes)
        memcpy((char *)to + start, (const char *)from + start,
               part + 1 < (int)parts && size < bytes - start ? size : bytes - start);
    }
    return;
  }
#else
  (void)num_threads;
#endif
  memcpy(to, from, bytes);
}

#ifdef DUMMY_CUDA
static int cuda_fail(char *message, const char *what, cudaError_t error) {
  /* Reported here, hence not left behind for the caller to stumble upon. */
  (void)cudaGetLastError();
  return fail(message, DEVITOCOMP_PROVIDER_ERROR, "%s: %s", what,
              cudaGetErrorString(error));
}

static int active_device(char *message, int *device) {
  cudaError_t error = cudaGetDevice(device);
  return error == cudaSuccess ? DEVITOCOMP_OK
                              : cuda_fail(message, "cudaGetDevice", error);
}

static int copy_on_cuda(devitocomp_plan_t *plan, void *to, const void *from,
                        void *stream) {
  cudaError_t error;
  int device, status;

  if ((status = active_device(plan->message, &device))) return status;
  if (device != plan->device)
    return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT,
                "the active device is %d, that of the plan %d", device, plan->device);
  /* Not cudaMemcpyDeviceToDevice: what a device can access may be host memory. */
  error = cudaMemcpyAsync(to, from, plan->bytes, cudaMemcpyDefault,
                          (cudaStream_t)stream);
  return error == cudaSuccess ? DEVITOCOMP_OK
                              : cuda_fail(plan->message, "cudaMemcpyAsync", error);
}
#endif

static int copy(devitocomp_plan_t *plan, const devitocomp_execution_t *exec, void *to,
                const void *from) {
#ifdef DUMMY_CUDA
  if (plan->kind == DEVITOCOMP_EXECUTION_CUDA)
    return copy_on_cuda(plan, to, from, exec->stream);
#endif
  copy_on_host(to, from, plan->bytes, exec->num_threads);
  return DEVITOCOMP_OK;
}

/* ---- The interface ----------------------------------------------------------------- */

DEVITOCOMP_EXPORT uint32_t devitocomp_abi_version(void) {
  return DEVITOCOMP_ABI_VERSION;
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_name(void) {
  return "dummy";
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_version(void) {
  return "1.0.0";
}

DEVITOCOMP_EXPORT int devitocomp_plan_create(uint32_t abi_version,
                                             const devitocomp_tensor_t *tensor,
                                             const devitocomp_execution_t *exec,
                                             const char *options,
                                             devitocomp_plan_t **plan) {
  devitocomp_plan_t *created;
  size_t bytes = 0;
  int device = 0, status;

  if (plan) *plan = NULL;
  /* First of all: with another version, no argument means what it seems to. */
  if (abi_version != DEVITOCOMP_ABI_VERSION)
    return fail(create_message, DEVITOCOMP_VERSION_MISMATCH,
                "the caller uses ABI version %" PRIu32 ", the dummy provider %d",
                abi_version, DEVITOCOMP_ABI_VERSION);
  if (!plan) return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT, "plan is NULL");
  if ((status = check_tensor(create_message, tensor, &bytes))) return status;
  if ((status = check_execution(create_message, exec))) return status;
  if (options && !is_tolerance(options))
    return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT,
                "options are \"%.100s\", not a finite number >= 0", options);
#ifdef DUMMY_CUDA
  if (exec->kind == DEVITOCOMP_EXECUTION_CUDA &&
      (status = active_device(create_message, &device)))
    return status;
#endif

  if (!(created = calloc(1, sizeof(*created))))
    return fail(create_message, DEVITOCOMP_OUT_OF_MEMORY,
                "no memory for a plan of %zu bytes", sizeof(*created));
  created->kind = exec->kind;
  created->device = device;
  created->bytes = bytes;
  created->tensor_tag = tag_tensor(tensor);
  *plan = created;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan) {
  /* Queued copies need nothing of the plan, so there is nothing to wait for. */
  free(plan);
}

DEVITOCOMP_EXPORT int devitocomp_plan_limits(const devitocomp_plan_t *plan,
                                             devitocomp_limits_t *limits) {
  devitocomp_limits_t filled;
  size_t size;

  if (!limits || limits->struct_size < MIN_LIMITS_SIZE)
    return DEVITOCOMP_INVALID_ARGUMENT;

  memset(&filled, 0, sizeof(filled));
  filled.struct_size = limits->struct_size;
  filled.flags = DEVITOCOMP_DETERMINISTIC | DEVITOCOMP_THREAD_INDEPENDENT |
                 DEVITOCOMP_USES_SIDECAR;
  filled.execution_kinds = EXECUTION_KINDS;
  filled.portable_kinds = EXECUTION_KINDS;
  filled.dtypes = DTYPES;
  filled.ranks = RANKS;
  filled.payload_version = 1;
  if (plan) {
    filled.error_kind = DEVITOCOMP_ERROR_LOSSLESS;
    filled.error_bound = 0;
    filled.max_compressed_bytes = plan->bytes;
    filled.payload_alignment = PAYLOAD_ALIGNMENT;
    filled.sidecar_bytes = SIDECAR_BYTES;
    filled.sidecar_alignment = SIDECAR_ALIGNMENT;
  }
  size = limits->struct_size < sizeof(filled) ? limits->struct_size : sizeof(filled);
  memcpy(limits, &filled, size);
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_compress(devitocomp_plan_t *plan,
                                          const devitocomp_execution_t *exec,
                                          const void *tensor, void *payload,
                                          size_t capacity, size_t *compressed_bytes,
                                          void *sidecar) {
  uint64_t word;
  int status;

  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload, sidecar))) return status;
  if (!compressed_bytes)
    return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT, "compressed_bytes is NULL");
  if (capacity < plan->bytes)
    return fail(plan->message, DEVITOCOMP_BUFFER_TOO_SMALL,
                "the capacity is %zu bytes, the snapshot needs %zu", capacity,
                plan->bytes);
  if ((status = copy(plan, exec, payload, tensor))) return status;

  word = (uint64_t)plan->tensor_tag << 32;
  if (plan->kind == DEVITOCOMP_EXECUTION_HOST) word |= tag_payload(payload, plan->bytes);
  memcpy(sidecar, &word, sizeof(word));
  *compressed_bytes = plan->bytes;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                            const devitocomp_execution_t *exec,
                                            const void *payload, size_t compressed_bytes,
                                            const void *sidecar, void *tensor) {
  uint64_t word;
  int status;

  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload, sidecar))) return status;
  if (compressed_bytes != plan->bytes)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload has %zu bytes, this tensor needs %zu", compressed_bytes,
                plan->bytes);

  memcpy(&word, sidecar, sizeof(word));
  if (word >> 32 != plan->tensor_tag)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the sidecar is not of a tensor of this dtype and shape");
  if ((status = copy(plan, exec, tensor, payload))) return status;
  /* In the copy, which is in a cache: finding each place in the payload would take as long
     as copying it. */
  if (plan->kind == DEVITOCOMP_EXECUTION_HOST && (uint32_t)word &&
      (uint32_t)word != tag_payload(tensor, plan->bytes))
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the sidecar is not the one of this payload");
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan) {
  return plan ? plan->message : create_message;
}
