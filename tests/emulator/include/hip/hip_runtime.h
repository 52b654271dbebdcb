/*
 * hip_runtime.h -- HIP's names for what cuda_runtime.h has, emulated on the host.
 *
 * HIP differs in numbers of errors only, and in few of those that are here.
 */
#ifndef CUDAEMUL_HIP_RUNTIME_H
#define CUDAEMUL_HIP_RUNTIME_H

#include "../cuda_runtime.h"

#define HIPEMUL 1

#define hipError_t cudaError_t
#define hipSuccess cudaSuccess
#define hipErrorInvalidValue cudaErrorInvalidValue
#define hipErrorOutOfMemory cudaErrorMemoryAllocation
#define hipErrorInvalidConfiguration cudaErrorInvalidConfiguration
#define hipErrorInvalidMemcpyDirection cudaErrorInvalidMemcpyDirection
#define hipErrorNoDevice cudaErrorNoDevice
#define hipErrorInvalidDevice cudaErrorInvalidDevice
#define hipErrorInvalidHandle cudaErrorInvalidResourceHandle
#define hipErrorNotReady cudaErrorNotReady
#define hipErrorIllegalAddress cudaErrorIllegalAddress
#define hipErrorLaunchFailure cudaErrorLaunchFailure
#define hipErrorUnknown cudaErrorUnknown
#define hipGetLastError cudaGetLastError
#define hipPeekAtLastError cudaPeekAtLastError
#define hipGetErrorName cudaGetErrorName
#define hipGetErrorString cudaGetErrorString

#define hipDeviceProp_t cudaDeviceProp
#define hipGetDeviceCount cudaGetDeviceCount
#define hipGetDevice cudaGetDevice
#define hipSetDevice cudaSetDevice
#define hipGetDeviceProperties cudaGetDeviceProperties
#define hipDeviceSynchronize cudaDeviceSynchronize
#define hipMemGetInfo cudaMemGetInfo
#define hipRuntimeGetVersion cudaRuntimeGetVersion

#define hipMemcpyKind cudaMemcpyKind
#define hipMemcpyHostToHost cudaMemcpyHostToHost
#define hipMemcpyHostToDevice cudaMemcpyHostToDevice
#define hipMemcpyDeviceToHost cudaMemcpyDeviceToHost
#define hipMemcpyDeviceToDevice cudaMemcpyDeviceToDevice
#define hipMemcpyDefault cudaMemcpyDefault
#define hipHostMallocDefault cudaHostAllocDefault
#define hipHostMallocPortable cudaHostAllocPortable
#define hipHostMallocMapped cudaHostAllocMapped
#define hipHostRegisterDefault cudaHostRegisterDefault
#define hipHostRegisterPortable cudaHostRegisterPortable
#define hipMalloc cudaMalloc
#define hipFree cudaFree
#define hipHostFree cudaFreeHost
#define hipHostRegister cudaHostRegister
#define hipHostUnregister cudaHostUnregister
#define hipPointerAttribute_t cudaPointerAttributes
#define hipPointerGetAttributes cudaPointerGetAttributes
#define hipMemcpy cudaMemcpy
#define hipMemcpyAsync cudaMemcpyAsync
#define hipMemcpy2D cudaMemcpy2D
#define hipMemcpy2DAsync cudaMemcpy2DAsync
#define hipMemset cudaMemset
#define hipMemsetAsync cudaMemsetAsync

#define hipStream_t cudaStream_t
#define hipStreamDefault cudaStreamDefault
#define hipStreamNonBlocking cudaStreamNonBlocking
#define hipStreamCreate cudaStreamCreate
#define hipStreamCreateWithFlags cudaStreamCreateWithFlags
#define hipStreamCreateWithPriority cudaStreamCreateWithPriority
#define hipStreamDestroy cudaStreamDestroy
#define hipStreamSynchronize cudaStreamSynchronize
#define hipStreamQuery cudaStreamQuery
#define hipStreamWaitEvent cudaStreamWaitEvent
#define hipHostFn_t cudaHostFn_t
#define hipLaunchHostFunc cudaLaunchHostFunc
#define hipEvent_t cudaEvent_t
#define hipEventDefault cudaEventDefault
#define hipEventBlockingSync cudaEventBlockingSync
#define hipEventDisableTiming cudaEventDisableTiming
#define hipEventCreate cudaEventCreate
#define hipEventCreateWithFlags cudaEventCreateWithFlags
#define hipEventRecord cudaEventRecord
#define hipEventSynchronize cudaEventSynchronize
#define hipEventQuery cudaEventQuery
#define hipEventElapsedTime cudaEventElapsedTime
#define hipEventDestroy cudaEventDestroy

#define hipLaunchKernel cudaLaunchKernel

#ifdef __cplusplus
template <typename T>
inline hipError_t hipHostMalloc(T **pointer, std::size_t bytes, unsigned int flags = 0) {
  return cudaHostAlloc(reinterpret_cast<void **>(pointer), bytes, flags);
}

/* Errors are left for hipGetLastError, as HIP does. */
template <typename... Params, typename... Args>
inline void hipLaunchKernelGGL(void (*kernel)(Params...), const dim3 &grid,
                               const dim3 &block, unsigned int shared, hipStream_t stream,
                               Args &&...args) {
  cudaLaunchConfig_t config = {grid, block, shared, stream, nullptr, 0};
  (void)cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}
#else
#define hipHostMalloc cudaHostAlloc
#endif

#endif /* CUDAEMUL_HIP_RUNTIME_H */
