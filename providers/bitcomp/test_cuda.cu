/*
 * test_cuda.cu -- the bitcomp provider on a GPU, against itself on the host, whose part
 * is tested in depth by common/test_lossy.c.
 */
#include "devitocomp.h"

#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST DEVITOCOMP_EXECUTION_HOST
#define CUDA DEVITOCOMP_EXECUTION_CUDA

static long checks, failures;
static char context[128];
static cudaStream_t streams[2];

#define CHECK(condition) check(!!(condition), __LINE__, #condition)

static void check(int passed, int line, const char *what) {
  checks++;
  if (passed) return;
  failures++;
  fprintf(stderr, "test_cuda.cu:%d: %s: failed: %s\n", line, context, what);
}

static void cuda(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "test_cuda: %s: %s\n", what, cudaGetErrorString(error));
  exit(2);
}

/* Memory of either kind, which starts as bytes of 0xA5. */
static unsigned char *allocate(uint32_t kind, size_t bytes) {
  void *pointer = NULL;
  if (kind == CUDA) {
    cuda(cudaMalloc(&pointer, bytes), "cudaMalloc");
    cuda(cudaMemset(pointer, 0xA5, bytes), "cudaMemset");
    cuda(cudaDeviceSynchronize(), "cudaMemset"); /* The streams do not wait for it */
  } else if ((pointer = malloc(bytes))) {
    memset(pointer, 0xA5, bytes);
  }
  return (unsigned char *)pointer;
}

static void release(uint32_t kind, void *pointer) {
  if (kind == CUDA)
    cudaFree(pointer);
  else
    free(pointer);
}

static devitocomp_execution_t execution(uint32_t kind, int stream) {
  devitocomp_execution_t exec = {sizeof(exec), kind, 2, 0, NULL};
  if (kind == CUDA) exec.stream = streams[stream];
  return exec;
}

static devitocomp_plan_t *create(uint32_t kind, const devitocomp_tensor_t *tensor,
                                 const char *options) {
  devitocomp_execution_t exec = execution(kind, 0);
  devitocomp_plan_t *plan = NULL;
  int status = devitocomp_plan_create(DEVITOCOMP_ABI_VERSION, tensor, &exec, options,
                                      &plan);
  if (status) {
    fprintf(stderr, "test_cuda: no plan: %d, %s\n", status, devitocomp_message(NULL));
    exit(2);
  }
  return plan;
}

static devitocomp_limits_t limits_of(const devitocomp_plan_t *plan) {
  devitocomp_limits_t limits;
  memset(&limits, 0, sizeof(limits));
  limits.struct_size = sizeof(limits);
  CHECK(devitocomp_plan_limits(plan, &limits) == DEVITOCOMP_OK);
  return limits;
}

typedef enum content { ZEROS, SMOOTH, NOISE, TINY, NOT_FINITE, CONTENTS } content_t;

static double value(content_t content, int is_float32, size_t i, size_t n) {
  double noise = (double)(i * 2654435761u % 1000003) / 500001.5 - 1;
  switch (content) {
  case ZEROS: return 0;
  case SMOOTH: return i > n / 2 ? sin(0.01 * (double)i) : 0;
  case NOISE: return noise;
  case TINY: return noise * (is_float32 ? 1e-40 : 1e-310);
  default: return i == n - 1 ? NAN : noise;
  }
}

static double get(const unsigned char *data, int is_float32, size_t i) {
  return is_float32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

/* Compressed by one kind, decompressed by another, on a stream each. */
static void test_roundtrip(uint32_t from, uint32_t to, const devitocomp_tensor_t *tensor,
                           size_t room, content_t content, const char *options) {
  int is_float32 = tensor->dtype == DEVITOCOMP_FLOAT32;
  size_t size = is_float32 ? 4 : 8, bytes = room * size, used = 0, i;
  devitocomp_execution_t exec = execution(from, 0), other = execution(to, 1);
  devitocomp_plan_t *writer = create(from, tensor, options);
  devitocomp_plan_t *reader = create(to, tensor, options);
  devitocomp_limits_t limits = limits_of(writer);
  size_t capacity = (size_t)limits.max_compressed_bytes;
  unsigned char *original = allocate(HOST, bytes), *copy = allocate(HOST, bytes);
  unsigned char *input = allocate(from, bytes), *output = allocate(to, bytes);
  unsigned char *payload = allocate(from, capacity + 8);
  unsigned char *moved = allocate(to, capacity), *bits = allocate(HOST, capacity + 8);
  double maximum = 0, worst = 0;
  int gaps_hold = 1, is_refused = content == NOT_FINITE && strcmp(options, "0"), status;

  snprintf(context, sizeof(context), "from kind %u to %u, rank %u, content %d, error %s",
           from, to, tensor->rank, content, options);
  for (i = 0; i < room; i++) {
    if (is_float32)
      ((float *)original)[i] = (float)value(content, 1, i, room);
    else
      ((double *)original)[i] = value(content, 0, i, room);
  }
  cuda(cudaMemcpy(input, original, bytes, cudaMemcpyDefault), "cudaMemcpy");
  cuda(cudaDeviceSynchronize(), "cudaMemcpy");

  status = devitocomp_compress(writer, &exec, input, payload, capacity, &used, NULL);
  CHECK(status == (is_refused ? DEVITOCOMP_UNSUPPORTED : DEVITOCOMP_OK));
  if (status) goto done;
  CHECK(used > 0 && used <= capacity && (content != ZEROS || used < 64));
  cuda(cudaStreamSynchronize(streams[0]), "compress");
  cuda(cudaMemcpy(bits, payload, capacity + 8, cudaMemcpyDefault), "cudaMemcpy");
  for (i = used; i < capacity + 8; i++)
    if (bits[i] != 0xA5) break;
  CHECK(i == capacity + 8);
  cuda(cudaMemcpy(moved, bits, used, cudaMemcpyDefault), "cudaMemcpy");
  cuda(cudaDeviceSynchronize(), "cudaMemcpy");

  CHECK(devitocomp_decompress(reader, &other, moved, used, NULL, output) ==
        DEVITOCOMP_OK);
  cuda(cudaStreamSynchronize(streams[1]), "decompress");
  cuda(cudaMemcpy(copy, output, bytes, cudaMemcpyDefault), "cudaMemcpy");
  for (i = 0; i < room; i++) {
    int64_t rest = (int64_t)i, inside = 1;
    uint32_t d;
    for (d = 0; d < tensor->rank; d++) {
      inside &= rest / tensor->strides[d] < tensor->dims[d];
      rest %= tensor->strides[d];
    }
    inside &= rest == 0;
    if (!inside) {
      size_t k;
      for (k = 0; k < size; k++) gaps_hold &= copy[i * size + k] == 0xA5;
    } else if (limits.error_kind == DEVITOCOMP_ERROR_LOSSLESS) {
      if (memcmp(original + i * size, copy + i * size, size)) worst = INFINITY;
    } else {
      double x = get(original, is_float32, i);
      double error = fabs(x - get(copy, is_float32, i));
      if (fabs(x) > maximum) maximum = fabs(x);
      if (!(error <= worst)) worst = error;
    }
  }
  CHECK(gaps_hold);
  CHECK(worst <= limits.error_bound * maximum);

  /* Too small a buffer; damage. */
  CHECK(devitocomp_compress(writer, &exec, input, payload, used - 1, &used, NULL) ==
        DEVITOCOMP_BUFFER_TOO_SMALL);
  for (i = 0; i < used; i += used / 7 + 1) {
    unsigned char wrong = bits[i] ^ 4;
    cuda(cudaMemcpy(moved + i, &wrong, 1, cudaMemcpyDefault), "cudaMemcpy");
    cuda(cudaDeviceSynchronize(), "cudaMemcpy");
    CHECK(devitocomp_decompress(reader, &other, moved, used, NULL, output));
    CHECK(*devitocomp_message(reader));
    cuda(cudaMemcpy(moved + i, bits + i, 1, cudaMemcpyDefault), "cudaMemcpy");
    cuda(cudaDeviceSynchronize(), "cudaMemcpy");
  }
  CHECK(devitocomp_decompress(reader, &other, moved, used, NULL, output) ==
        DEVITOCOMP_OK);

done:
  devitocomp_plan_destroy(writer);
  devitocomp_plan_destroy(reader);
  release(HOST, original);
  release(HOST, copy);
  release(HOST, bits);
  release(from, input);
  release(from, payload);
  release(to, output);
  release(to, moved);
}

int main(void) {
  static const int64_t shapes[][3] = {{1, 1, 1}, {3, 5, 7}, {64, 63, 65}, {129, 90, 131}};
  static const char *const errors[] = {"0", "1e-2", "1e-5"};
  static const uint32_t kinds[][2] = {{CUDA, CUDA}, {CUDA, HOST}, {HOST, CUDA}};
  uint32_t dtype;
  size_t s, e, k, padding;
  int content;

  cuda(cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking), "no CUDA device");
  cuda(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking), "no CUDA device");
  for (s = 0; s < sizeof(shapes) / sizeof(*shapes); s++)
    for (dtype = DEVITOCOMP_FLOAT32; dtype <= DEVITOCOMP_FLOAT64; dtype++)
      for (padding = 0; padding <= 3; padding += 3) {
        devitocomp_tensor_t tensor;
        size_t room = 1;
        memset(&tensor, 0, sizeof(tensor));
        tensor.struct_size = sizeof(tensor);
        tensor.dtype = dtype;
        tensor.rank = 3;
        for (k = 3; k-- > 0;) {
          tensor.dims[k] = shapes[s][k];
          tensor.strides[k] = (int64_t)room;
          room *= (size_t)shapes[s][k] + padding;
        }
        for (k = 0; k < 3; k++)
          for (e = 0; e < 3; e++)
            for (content = 0; content < CONTENTS; content++)
              test_roundtrip(kinds[k][0], kinds[k][1], &tensor, room,
                             (content_t)content, errors[e]);
      }
  printf("%s %s, CUDA execution: %ld checks, %ld failures\n", devitocomp_provider_name(),
         devitocomp_provider_version(), checks, failures);
  return failures != 0;
}
