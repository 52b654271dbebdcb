/* test_hip.cpp -- that HIP's names work: a round trip with a kernel. */
#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>

static void ok(hipError_t error, int line)
{
  if (error == hipSuccess) return;
  printf("failed: line %d: %s\n", line, hipGetErrorString(error));
  exit(1);
}
#define OK(call) ok(call, __LINE__)

static __global__ void twice(float *a, int n)
{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) a[i] *= 2;
}

int main()
{
  const int n = 100;
  float *d, *h;
  hipStream_t stream, other;
  hipEvent_t event;
  hipDeviceProp_t properties;
  OK(hipGetDeviceProperties(&properties, 0));
  OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  OK(hipStreamCreate(&other));
  OK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
  OK(hipMalloc((void **)&d, n * sizeof(float)));
  OK(hipHostMalloc((void **)&h, n * sizeof(float), hipHostMallocDefault));
  for (int i = 0; i < n; i++) h[i] = float(i);
  OK(hipMemcpyAsync(d, h, n * sizeof(float), hipMemcpyHostToDevice, stream));
  hipLaunchKernelGGL(twice, dim3(2), dim3(64), 0, stream, d, n);
  OK(hipGetLastError());
  OK(hipEventRecord(event, stream));
  OK(hipStreamWaitEvent(other, event, 0));
  OK(hipMemcpyAsync(h, d, n * sizeof(float), hipMemcpyDeviceToHost, other));
  OK(hipStreamSynchronize(other));
  for (int i = 0; i < n; i++)
    if (h[i] != 2 * i) return 1;
  hipLaunchKernelGGL(twice, dim3(0), dim3(64), 0, stream, d, n);
  if (hipGetLastError() != hipErrorInvalidConfiguration) return 1;
  OK(hipEventDestroy(event));
  OK(hipStreamDestroy(stream));
  OK(hipStreamDestroy(other));
  OK(hipHostFree(h));
  OK(hipFree(d));
  printf("%s: HIP's names work\n", properties.name);
  return 0;
}
