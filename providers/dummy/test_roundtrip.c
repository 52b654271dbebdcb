/*
 * test_roundtrip.c -- the dummy provider, through its interface.
 *
 * Compiled with ROUNDTRIP_CUDA it runs every test for CUDA execution too, on device
 * memory and a stream of its own. Data is made and compared on the host.
 */
#include "devitocomp.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ROUNDTRIP_CUDA
#include <cuda_runtime.h>
#endif

#define HOST DEVITOCOMP_EXECUTION_HOST
#define CUDA DEVITOCOMP_EXECUTION_CUDA

/* Bytes before and after every buffer that must keep their value. */
#define GUARD 64
#define CANARY 0xA5

static long checks, failures;
static char context[128];

#define CHECK(condition) check(!!(condition), __LINE__, #condition)
#define CHECK_STATUS(expected, plan, call) \
  check_status(expected, call, plan, __LINE__, #call)

static int check(int passed, int line, const char *what) {
  checks++;
  if (!passed) {
    failures++;
    fprintf(stderr, "test_roundtrip.c:%d: %s: failed: %s\n", line, context, what);
  }
  return passed;
}

/* A failure must come with a message. */
static void check_status(int expected, int status, const devitocomp_plan_t *plan,
                         int line, const char *call) {
  char what[512];
  snprintf(what, sizeof(what), "status %d instead of %d from %s: \"%s\"", status,
           expected, call, devitocomp_message(plan));
  check(status == expected, line, what);
  if (expected != DEVITOCOMP_OK)
    check(*devitocomp_message(plan) != '\0', line, "the failure has no message");
}

static void die(const char *what, const char *why) {
  fprintf(stderr, "test_roundtrip: %s: %s\n", what, why);
  exit(2);
}

/* ---- Memory of an execution kind --------------------------------------------------- */

#ifdef ROUNDTRIP_CUDA
static cudaStream_t stream;

static void cuda(cudaError_t error, const char *what) {
  if (error != cudaSuccess) die(what, cudaGetErrorString(error));
}
#else
static void *stream;
#endif

static void put(uint32_t kind, void *to, const void *from, size_t bytes) {
#ifdef ROUNDTRIP_CUDA
  if (kind == CUDA) {
    cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "put");
    cuda(cudaStreamSynchronize(stream), "put");
    return;
  }
#endif
  (void)kind;
  memcpy(to, from, bytes);
}

static void get(uint32_t kind, void *to, const void *from, size_t bytes) {
#ifdef ROUNDTRIP_CUDA
  if (kind == CUDA) {
    cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "get");
    cuda(cudaStreamSynchronize(stream), "get");
    return;
  }
#endif
  (void)kind;
  memcpy(to, from, bytes);
}

/* A buffer between two guards. */
typedef struct buffer {
  uint32_t kind;
  size_t bytes;
  char *base;
  void *data;
} buffer_t;

static void *host_alloc(size_t bytes) {
  void *pointer = malloc(bytes);
  if (!pointer) die("malloc", "no memory");
  return pointer;
}

static buffer_t buffer_new(uint32_t kind, size_t bytes) {
  buffer_t buffer = {kind, bytes, NULL, NULL};
  size_t total = bytes + 2 * GUARD;
  char *canaries = host_alloc(total);

#ifdef ROUNDTRIP_CUDA
  if (kind == CUDA)
    cuda(cudaMalloc((void **)&buffer.base, total), "cudaMalloc");
  else
#endif
    buffer.base = host_alloc(total);
  memset(canaries, CANARY, total);
  put(kind, buffer.base, canaries, total);
  free(canaries);
  buffer.data = buffer.base + GUARD;
  return buffer;
}

static void buffer_free(buffer_t *buffer) {
#ifdef ROUNDTRIP_CUDA
  if (buffer->kind == CUDA) {
    cuda(cudaFree(buffer->base), "cudaFree");
    return;
  }
#endif
  free(buffer->base);
}

/* Whether the guards, and unless expected is NULL the contents, are as they should be. */
static int buffer_is(const buffer_t *buffer, const void *expected) {
  size_t total = buffer->bytes + 2 * GUARD, i;
  unsigned char *copy = host_alloc(total);
  int same = 1;

  get(buffer->kind, copy, buffer->base, total);
  for (i = 0; i < GUARD; i++)
    same &= copy[i] == CANARY && copy[total - 1 - i] == CANARY;
  if (expected) same &= !memcmp(copy + GUARD, expected, buffer->bytes);
  free(copy);
  return same;
}

/* ---- Descriptors ------------------------------------------------------------------- */

static devitocomp_execution_t execution(uint32_t kind, uint32_t num_threads) {
  devitocomp_execution_t exec = {sizeof(exec), 0, 0, 0, NULL};
  exec.kind = kind;
  exec.num_threads = num_threads;
  if (kind == CUDA) exec.stream = stream;
  return exec;
}

static devitocomp_tensor_t contiguous(uint32_t rank, const int64_t *dims) {
  devitocomp_tensor_t tensor = {sizeof(tensor), DEVITOCOMP_FLOAT32, 0, 0, {0}, {0}};
  int64_t stride = 1;
  uint32_t i;

  tensor.rank = rank;
  for (i = rank; i-- > 0;) {
    tensor.dims[i] = dims[i];
    tensor.strides[i] = stride;
    stride *= dims[i];
  }
  return tensor;
}

static devitocomp_plan_t *create(uint32_t kind, uint32_t rank, const int64_t *dims,
                                 uint32_t num_threads, const char *options) {
  devitocomp_tensor_t tensor = contiguous(rank, dims);
  devitocomp_execution_t exec = execution(kind, num_threads);
  devitocomp_plan_t *plan = NULL;

  CHECK_STATUS(DEVITOCOMP_OK, NULL,
               devitocomp_plan_create(DEVITOCOMP_ABI_VERSION, &tensor, &exec, options,
                                      &plan));
  if (!plan) die("no plan to go on with", devitocomp_message(NULL));
  return plan;
}

/* Bits of every sort, among them NaNs with a payload, infinities, -0 and subnormals. */
static void fill(void *data, size_t bytes, uint32_t seed) {
  static const uint32_t special[] = {0x7fc01234, 0x7f800001, 0xffc00000, 0x7f800000,
                                     0xff800000, 0x80000000, 0x00000001, 0x807fffff};
  uint32_t *words = data;
  size_t i;

  for (i = 0; i < bytes / sizeof(*words); i++) {
    seed = seed * 1664525 + 1013904223;
    words[i] = seed >> 28 ? seed : special[(seed >> 16) % 8];
  }
}

/* ---- Tests ------------------------------------------------------------------------- */

static void test_limits(uint32_t kind, const devitocomp_plan_t *plan, size_t bytes) {
  struct {
    devitocomp_limits_t known;
    unsigned char future[16];
  } limits;
  devitocomp_limits_t *l = &limits.known;
  size_t i;
  int untouched = 1;

  memset(&limits, CANARY, sizeof(limits));
  l->struct_size = sizeof(*l);
  CHECK(devitocomp_plan_limits(plan, l) == DEVITOCOMP_OK);
  for (i = 0; i < sizeof(limits.future); i++) untouched &= limits.future[i] == CANARY;
  CHECK(untouched);
  CHECK(l->struct_size == sizeof(*l));
  CHECK(l->flags == (DEVITOCOMP_DETERMINISTIC | DEVITOCOMP_THREAD_INDEPENDENT |
                     DEVITOCOMP_USES_SIDECAR));
  CHECK(l->execution_kinds & DEVITOCOMP_BIT(kind));
  CHECK(l->portable_kinds == l->execution_kinds);
  CHECK(l->dtypes == DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32));
  CHECK(l->ranks == (DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3)));
  CHECK(l->payload_version == 1);
  CHECK(l->error_bound == 0);
  if (plan) {
    CHECK(l->error_kind == DEVITOCOMP_ERROR_LOSSLESS);
    CHECK(l->max_compressed_bytes == bytes);
    CHECK(l->payload_alignment == 8);
    CHECK(l->sidecar_bytes == 8);
    CHECK(l->sidecar_alignment == 8);
  } else {
    CHECK(!l->error_kind && !l->max_compressed_bytes && !l->payload_alignment &&
          !l->sidecar_bytes && !l->sidecar_alignment);
  }

  l->struct_size = sizeof(*l) - 1;
  CHECK(devitocomp_plan_limits(plan, l) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_plan_limits(plan, NULL) == DEVITOCOMP_INVALID_ARGUMENT);
  /* A caller from the future may know more fields. */
  l->struct_size = sizeof(limits);
  CHECK(devitocomp_plan_limits(plan, l) == DEVITOCOMP_OK);
}

static void test_roundtrip(uint32_t kind, uint32_t rank, const int64_t *dims,
                           uint32_t threads) {
  size_t bytes = sizeof(float), used = 0, i;
  buffer_t input, other_input, payload, other, output, sidecar, other_sidecar;
  devitocomp_execution_t exec = execution(kind, threads);
  devitocomp_execution_t wrong;
  devitocomp_plan_t *plan, *reshaped;
  int64_t shape[3];
  void *data, *other_data;
  unsigned char *word;

  for (i = 0; i < rank; i++) bytes *= (size_t)dims[i];
  snprintf(context, sizeof(context), "kind %" PRIu32 ", %zu bytes, rank %" PRIu32
           ", %" PRIu32 " threads", kind, bytes, rank, threads);

  plan = create(kind, rank, dims, threads, "0.01");
  CHECK(*devitocomp_message(plan) == '\0');
  test_limits(kind, plan, bytes);

  data = host_alloc(bytes);
  other_data = host_alloc(bytes);
  fill(data, bytes, 1);
  fill(other_data, bytes, 2);
  input = buffer_new(kind, bytes);
  other_input = buffer_new(kind, bytes);
  payload = buffer_new(kind, bytes);
  other = buffer_new(kind, bytes);
  output = buffer_new(kind, bytes);
  sidecar = buffer_new(HOST, 8);
  other_sidecar = buffer_new(HOST, 8);
  word = sidecar.data;
  put(kind, input.data, data, bytes);
  put(kind, other_input.data, other_data, bytes);

  /* There and back, without synchronizing in between. */
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_compress(plan, &exec, input.data, payload.data, bytes, &used,
                                   sidecar.data));
  CHECK(used == bytes);
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_decompress(plan, &exec, payload.data, used, sidecar.data,
                                     output.data));
  CHECK(buffer_is(&input, data));
  CHECK(buffer_is(&output, data));
  CHECK(buffer_is(&payload, data));
  CHECK(buffer_is(&sidecar, NULL));

  /* Equal whatever the threads are; and a snapshot outlives its plan. */
  devitocomp_plan_destroy(plan);
  plan = create(kind, rank, dims, 1, NULL);
  exec.num_threads = threads + 1;
  put(kind, output.data, other_data, bytes);
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_compress(plan, &exec, input.data, other.data, bytes + 1, &used,
                                   other_sidecar.data));
  CHECK(buffer_is(&other, data));
  CHECK(buffer_is(&other_sidecar, sidecar.data));
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_decompress(plan, &exec, payload.data, bytes, sidecar.data,
                                     output.data));
  CHECK(buffer_is(&output, data));

  /* Too small a buffer stays as it is. */
  put(kind, other.data, other_data, bytes);
  CHECK_STATUS(DEVITOCOMP_BUFFER_TOO_SMALL, plan,
               devitocomp_compress(plan, &exec, input.data, other.data, bytes - 1, &used,
                                   other_sidecar.data));
  CHECK_STATUS(DEVITOCOMP_BUFFER_TOO_SMALL, plan,
               devitocomp_compress(plan, &exec, input.data, other.data, 0, &used,
                                   other_sidecar.data));
  CHECK(buffer_is(&other, other_data));

  /* Snapshots mixed up. CUDA execution cannot tell those of equal shape apart. */
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_compress(plan, &exec, other_input.data, other.data, bytes,
                                   &used, other_sidecar.data));
  CHECK(buffer_is(&other_sidecar, NULL));
  if (kind == HOST) {
    CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, plan,
                 devitocomp_decompress(plan, &exec, payload.data, bytes,
                                       other_sidecar.data, output.data));
    CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, plan,
                 devitocomp_decompress(plan, &exec, other.data, bytes, sidecar.data,
                                       output.data));
  }
  for (i = 0; i < rank; i++) shape[i] = dims[rank - 1 - i];
  if (memcmp(shape, dims, rank * sizeof(*shape))) {
    reshaped = create(kind, rank, shape, threads, NULL);
    CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, reshaped,
                 devitocomp_decompress(reshaped, &exec, payload.data, bytes,
                                       sidecar.data, output.data));
    devitocomp_plan_destroy(reshaped);
  }

  /* A damaged sidecar, a payload of another length. */
  for (i = 0; i < 8; i++) {
    word[i] ^= 0x10;
    if (kind == HOST || i >= 4)
      CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, plan,
                   devitocomp_decompress(plan, &exec, payload.data, bytes, word,
                                         output.data));
    word[i] ^= 0x10;
  }
  CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, plan,
               devitocomp_decompress(plan, &exec, payload.data, bytes - 1, sidecar.data,
                                     output.data));
  CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, plan,
               devitocomp_decompress(plan, &exec, payload.data, bytes + 1, sidecar.data,
                                     output.data));
  CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, plan,
               devitocomp_decompress(plan, &exec, payload.data, 0, sidecar.data,
                                     output.data));
  CHECK(buffer_is(&output, data));

  /* Arguments that make no sense. */
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_compress(plan, NULL, input.data, other.data, bytes, &used,
                                   other_sidecar.data));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_compress(plan, &exec, NULL, other.data, bytes, &used,
                                   other_sidecar.data));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_compress(plan, &exec, input.data, NULL, bytes, &used,
                                   other_sidecar.data));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_compress(plan, &exec, input.data, other.data, bytes, NULL,
                                   other_sidecar.data));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_compress(plan, &exec, input.data, other.data, bytes, &used,
                                   NULL));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_compress(plan, &exec, input.data, (char *)other.data + 4,
                                   bytes, &used, other_sidecar.data));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_decompress(plan, &exec, (char *)payload.data - 4, bytes,
                                     sidecar.data, output.data));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_decompress(plan, &exec, payload.data, bytes, word - 4,
                                     output.data));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_decompress(plan, &exec, payload.data, bytes, NULL,
                                     output.data));
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_decompress(plan, &exec, payload.data, bytes, sidecar.data,
                                     NULL));
  CHECK(devitocomp_compress(NULL, &exec, input.data, other.data, bytes, &used,
                            other_sidecar.data) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_decompress(NULL, &exec, payload.data, bytes, sidecar.data,
                              output.data) == DEVITOCOMP_INVALID_ARGUMENT);
  wrong = exec;
  wrong.struct_size--;
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_decompress(plan, &wrong, payload.data, bytes, sidecar.data,
                                     output.data));
#ifdef ROUNDTRIP_CUDA
  wrong = execution(kind == HOST ? CUDA : HOST, threads);
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan,
               devitocomp_decompress(plan, &wrong, payload.data, bytes, sidecar.data,
                                     output.data));
#endif

  /* After all that, the plan is none the worse, and nothing was written elsewhere. */
  put(kind, output.data, other_data, bytes);
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_decompress(plan, &exec, payload.data, bytes, sidecar.data,
                                     output.data));
  devitocomp_plan_destroy(plan);
  CHECK(buffer_is(&output, data));
  CHECK(buffer_is(&input, data));
  CHECK(buffer_is(&other_input, other_data));
  CHECK(buffer_is(&payload, data));
  CHECK(buffer_is(&other, other_data));
  CHECK(buffer_is(&sidecar, NULL));
  CHECK(buffer_is(&other_sidecar, NULL));

  buffer_free(&input);
  buffer_free(&other_input);
  buffer_free(&payload);
  buffer_free(&other);
  buffer_free(&output);
  buffer_free(&sidecar);
  buffer_free(&other_sidecar);
  free(data);
  free(other_data);
}

/* A snapshot compressed by one execution kind, decompressed by another. */
static void test_portability(uint32_t from, uint32_t to) {
  static const int64_t dims[] = {5, 70, 131};
  size_t bytes = 5 * 70 * 131 * sizeof(float), used = 0;
  devitocomp_execution_t exec = execution(from, 2);
  devitocomp_plan_t *plan = create(from, 3, dims, 2, NULL);
  buffer_t input = buffer_new(from, bytes), payload = buffer_new(from, bytes);
  buffer_t moved = buffer_new(to, bytes), output = buffer_new(to, bytes);
  void *data = host_alloc(bytes), *copy = host_alloc(bytes);
  uint64_t sidecar = 0;

  snprintf(context, sizeof(context), "from kind %" PRIu32 " to %" PRIu32, from, to);
  fill(data, bytes, 3);
  put(from, input.data, data, bytes);
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_compress(plan, &exec, input.data, payload.data, bytes, &used,
                                   &sidecar));
  get(from, copy, payload.data, bytes);
  put(to, moved.data, copy, bytes);
  devitocomp_plan_destroy(plan);

  exec = execution(to, 2);
  plan = create(to, 3, dims, 2, NULL);
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_decompress(plan, &exec, moved.data, used, &sidecar,
                                     output.data));
  CHECK(buffer_is(&output, data));
  devitocomp_plan_destroy(plan);

  buffer_free(&input);
  buffer_free(&payload);
  buffer_free(&moved);
  buffer_free(&output);
  free(data);
  free(copy);
}

/* What plan_create must refuse, and with which status. */
static void test_refusals(uint32_t kind) {
  static const char *const good[] = {"0",    "0.01", "1e-3", "+2.5E+2", ".5",
                                     "5.",   "-0.0", "1e-400", "1e308",
                                     "0.000000000000000000000000000000000000000001"};
  static const char *const bad[] = {"",    " ",    "-1",   "nan",   "inf",   "1e400",
                                    "0,1", "0.1 ", " 0.1", "1e",    "1e+",   ".",
                                    "-",   "0x1p", "1.2.3", "fast", "-1e-30"};
  static const int64_t dims[DEVITOCOMP_MAX_RANK] = {4, 3, 2, 2, 2, 2, 2, 2};
  devitocomp_tensor_t ok = contiguous(3, dims), tensor;
  devitocomp_execution_t exec_ok = execution(kind, 1), exec;
  devitocomp_plan_t *plan;
  char versions[2][16];
  size_t i;

#define REFUSED_WITH(status, version, tensor, exec, options) \
  do { \
    plan = (devitocomp_plan_t *)&ok; \
    CHECK_STATUS(status, NULL, \
                 devitocomp_plan_create(version, tensor, exec, options, &plan)); \
    CHECK(!plan); \
  } while (0)
#define REFUSED(status, tensor, exec) \
  REFUSED_WITH(status, DEVITOCOMP_ABI_VERSION, tensor, exec, NULL)
#define TENSOR_REFUSED(status, change) \
  do { \
    tensor = ok; \
    tensor.change; \
    REFUSED(status, &tensor, &exec_ok); \
  } while (0)
#define EXEC_REFUSED(status, change) \
  do { \
    exec = exec_ok; \
    exec.change; \
    REFUSED(status, &ok, &exec); \
  } while (0)

  snprintf(context, sizeof(context), "refusals of kind %" PRIu32, kind);
  REFUSED_WITH(DEVITOCOMP_VERSION_MISMATCH, 4711, &ok, &exec_ok, NULL);
  snprintf(versions[0], sizeof(versions[0]), "%d", 4711);
  snprintf(versions[1], sizeof(versions[1]), "%d", DEVITOCOMP_ABI_VERSION);
  CHECK(strstr(devitocomp_message(NULL), versions[0]));
  CHECK(strstr(devitocomp_message(NULL), versions[1]));
  REFUSED_WITH(DEVITOCOMP_VERSION_MISMATCH, 0, NULL, NULL, "?");

  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, NULL,
               devitocomp_plan_create(DEVITOCOMP_ABI_VERSION, &ok, &exec_ok, NULL, NULL));
  REFUSED(DEVITOCOMP_INVALID_ARGUMENT, NULL, &exec_ok);
  REFUSED(DEVITOCOMP_INVALID_ARGUMENT, &ok, NULL);

  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, struct_size = sizeof(tensor) - 1);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, struct_size = 0);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, reserved = 1);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, rank = 0);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, rank = DEVITOCOMP_MAX_RANK + 1);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, dims[0] = 0);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, dims[2] = -2);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, strides[1] = -2);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, dims[0] = INT64_MAX);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, dims[0] = INT64_MAX / 6);
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, strides[0] = 8);
  CHECK(strstr(devitocomp_message(NULL), "strides[0] is 8"));
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, strides[2] = 2);
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, dtype = 0);
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, dtype = DEVITOCOMP_FLOAT64);
  CHECK(strstr(devitocomp_message(NULL), "dtype 2"));
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, dtype = 1000);

  for (i = 1; i <= DEVITOCOMP_MAX_RANK; i++) {
    if (i == 2 || i == 3) continue;
    tensor = contiguous((uint32_t)i, dims);
    REFUSED(DEVITOCOMP_UNSUPPORTED, &tensor, &exec_ok);
  }

  EXEC_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, struct_size = sizeof(exec) - 1);
  EXEC_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, reserved = 1);
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = 0);
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = DEVITOCOMP_EXECUTION_HIP);
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = 32);
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = UINT32_MAX);
#ifndef ROUNDTRIP_CUDA
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = CUDA);
#endif
  if (kind == HOST) EXEC_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, stream = &ok);

  for (i = 0; i < sizeof(bad) / sizeof(*bad); i++)
    REFUSED_WITH(DEVITOCOMP_INVALID_ARGUMENT, DEVITOCOMP_ABI_VERSION, &ok, &exec_ok,
                 bad[i]);
  for (i = 0; i < sizeof(good) / sizeof(*good); i++)
    devitocomp_plan_destroy(create(kind, 3, dims, 0, good[i]));

  /* A caller from the future may know more fields. */
  tensor = ok;
  tensor.struct_size += 64;
  exec = exec_ok;
  exec.struct_size += 64;
  CHECK_STATUS(DEVITOCOMP_OK, NULL,
               devitocomp_plan_create(DEVITOCOMP_ABI_VERSION, &tensor, &exec, NULL,
                                      &plan));
  devitocomp_plan_destroy(plan);
}

static void test_kind(uint32_t kind) {
  /* From one element to enough for several threads and a sampled sidecar. */
  static const struct {
    uint32_t rank;
    int64_t dims[3];
  } shapes[] = {{2, {1, 1, 0}},   {3, {1, 1, 1}},    {2, {1, 7, 0}},   {2, {7, 1, 0}},
                {3, {1, 5, 1}},   {2, {13, 17, 0}},  {3, {3, 5, 7}},   {3, {2, 1, 9}},
                {2, {128, 64, 0}}, {2, {91, 91, 0}}, {3, {37, 129, 211}}};
  static const uint32_t threads[] = {1, 2, 5};
  size_t i, j;

  test_refusals(kind);
  test_limits(kind, NULL, 0);
  for (i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
    for (j = 0; j < sizeof(threads) / sizeof(*threads); j++)
      test_roundtrip(kind, shapes[i].rank, shapes[i].dims, threads[j]);
}

int main(void) {
  const char *kinds = "host";

  snprintf(context, sizeof(context), "start");
  CHECK(devitocomp_abi_version() == DEVITOCOMP_ABI_VERSION);
  CHECK(!strcmp(devitocomp_provider_name(), "dummy"));
  CHECK(*devitocomp_provider_version() != '\0');
  CHECK(*devitocomp_message(NULL) == '\0');
  devitocomp_plan_destroy(NULL);

#ifdef ROUNDTRIP_CUDA
  kinds = "host and CUDA";
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "no CUDA device");
#endif
  test_kind(HOST);
  test_portability(HOST, HOST);
#ifdef ROUNDTRIP_CUDA
  test_kind(CUDA);
  test_portability(HOST, CUDA);
  test_portability(CUDA, HOST);
  test_portability(CUDA, CUDA);
  cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
#endif

  printf("%s %s, %s execution: %ld checks, %ld failures\n", devitocomp_provider_name(),
         devitocomp_provider_version(), kinds, checks, failures);
  return failures != 0;
}
