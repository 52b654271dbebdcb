/*
 * cuda_runtime.h -- as much of the CUDA runtime as the dummy provider and the conformance
 * suite use, for machines without a GPU. Nothing is learnt about real devices with it, but
 * whether the suite waits for streams, and notices who uses the wrong one.
 */
#ifndef PRETEND_CUDA_RUNTIME_H
#define PRETEND_CUDA_RUNTIME_H

#include <stddef.h>

typedef int cudaError_t;
typedef struct cuda_stream *cudaStream_t;

enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2 };
enum { cudaMemcpyDefault = 4 };

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaMalloc(void **address, size_t bytes);
cudaError_t cudaFree(void *address);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind,
                            cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);

#endif /* PRETEND_CUDA_RUNTIME_H */
