/*
 * cudart.c -- see cuda_runtime.h. Device memory is host memory; copies wait in a queue
 * until somebody waits for their stream. Streams do not wait for each other.
 */
#include "cuda_runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct copy {
  struct copy *next;
  void *to;
  const void *from;
  size_t bytes;
  cudaStream_t stream;
} copy_t;

struct cuda_stream {
  int number;
};

static copy_t *first, **last = &first;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

cudaError_t cudaGetDeviceCount(int *count) {
  const char *devices = getenv("PRETEND_CUDA_DEVICES");
  *count = devices ? atoi(devices) : 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
  *address = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!*address) return cudaErrorMemoryAllocation;
  memset(*address, 0xA5, bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
  free(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind,
                            cudaStream_t stream) {
  copy_t *copy = malloc(sizeof(*copy));

  if (kind != cudaMemcpyDefault) return cudaErrorInvalidValue;
  if (!copy) return cudaErrorMemoryAllocation;
  copy->next = NULL;
  copy->to = to;
  copy->from = from;
  copy->bytes = bytes;
  copy->stream = stream;
  pthread_mutex_lock(&mutex);
  *last = copy;
  last = &copy->next;
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  (void)flags;
  *stream = calloc(1, sizeof(**stream));
  return *stream ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  copy_t **link = &first, *copy;

  pthread_mutex_lock(&mutex);
  while ((copy = *link)) {
    if (copy->stream != stream) {
      link = &copy->next;
      continue;
    }
    memcpy(copy->to, copy->from, copy->bytes);
    *link = copy->next;
    free(copy);
  }
  last = link;
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "invalid value";
}
