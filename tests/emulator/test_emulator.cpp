/*
 * test_emulator.cpp -- programs for the emulator, one per call: NAME [broken].
 *
 * Correct ones end with 0 whatever the settings are. Broken, they lack a detail that they
 * need; check.py knows how that shows: as a wrong result, which ends with 1, or as a
 * fault, which ends the process. All of it compiles with nvcc, too.
 */
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

static bool broken;

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      printf("wrong: line %d: %s\n", __LINE__, #condition); \
      exit(1); \
    } \
  } while (0)
#define OK(call) fine(call, #call, __LINE__)
#define ERROR(expected, call) is_error(expected, call, #call, __LINE__)

static void fine(cudaError_t error, const char *call, int line)
{
  if (error == cudaSuccess) return;
  printf("failed: line %d: %s: %s\n", line, call, cudaGetErrorName(error));
  exit(2);
}

/* ... which is also the last one, once. */
static void is_error(cudaError_t expected, cudaError_t error, const char *call, int line)
{
  if (error == expected && cudaPeekAtLastError() == expected &&
      cudaGetLastError() == expected && cudaGetLastError() == cudaSuccess)
    return;
  printf("wrong: line %d: %s: %s\n", line, call, cudaGetErrorName(error));
  exit(1);
}

/* *** Kernels and what launches them */

static const int count = 1000;
static const size_t bytes = count * sizeof(float);

__device__ int first() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ int stride() { return gridDim.x * blockDim.x; }

__global__ void fill(float *a, const float value, int n)
{
  for (int i = first(); i < n; i += stride()) a[i] = value;
}

__global__ void add(float *__restrict__ a, const float *__restrict__ b, int n)
{
  for (int i = first(); i < n; i += stride()) a[i] += b[i];
}

__global__ void shift(float *a, const float *b, int offset, int n)
{
  for (int i = first(); i < n; i += stride()) a[i] = b[i + offset];
}

template <typename... Params, typename... Args>
static cudaError_t launch(cudaStream_t stream, void (*kernel)(Params...), Args &&...args)
{
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(3);
  config.blockDim = dim3(64);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Args &&>(args)...);
}

static cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking)
{
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

static cudaEvent_t new_event()
{
  cudaEvent_t event;
  OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

static float *new_array()
{
  float *array;
  OK(cudaMalloc(&array, bytes));
  return array;
}

static float *new_pinned(float value)
{
  float *array;
  OK(cudaMallocHost(&array, bytes));
  for (int i = 0; i < count; i++) array[i] = value;
  return array;
}

static bool all(const float *array, float value)
{
  for (int i = 0; i < count; i++)
    if (!(array[i] == value)) return false;
  return true;
}

/* What an array on the device holds, once all is done. */
static bool device_all(const float *array, float value)
{
  std::vector<float> copy(count);
  OK(cudaDeviceSynchronize());
  OK(cudaMemcpy(copy.data(), array, bytes, cudaMemcpyDeviceToHost));
  return all(copy.data(), value);
}

/* *** Programs that can be broken: an order that nothing enforces */

static void synchronize_before_reading()
{
  cudaStream_t stream = new_stream();
  float *d = new_array(), *h = new_pinned(0);
  OK(launch(stream, fill, d, 3.f, count));
  OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, stream));
  if (!broken) OK(cudaStreamSynchronize(stream));
  CHECK(all(h, 3));
}

static void synchronize_right_stream()
{
  cudaStream_t stream = new_stream(), other = new_stream();
  float *d = new_array(), *h = new_pinned(0);
  OK(launch(stream, fill, d, 3.f, count));
  OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, stream));
  OK(cudaStreamSynchronize(broken ? other : stream));
  CHECK(all(h, 3));
}

static void copy_in_right_stream()
{
  cudaStream_t stream = new_stream(), other = new_stream();
  float *d = new_array(), *h = new_pinned(0);
  OK(launch(stream, fill, d, 3.f, count));
  OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, broken ? other : stream));
  OK(cudaDeviceSynchronize());
  CHECK(all(h, 3));
}

/* The reader waits for the writer. */
static void wait_for_event()
{
  cudaStream_t compute = new_stream(), copies = new_stream();
  cudaEvent_t computed = new_event();
  float *d = new_array(), *h = new_pinned(0);
  OK(launch(compute, fill, d, 3.f, count));
  OK(cudaEventRecord(computed, compute));
  if (!broken) OK(cudaStreamWaitEvent(copies, computed, 0));
  OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, copies));
  OK(cudaStreamSynchronize(copies));
  CHECK(all(h, 3));
}

/* The event is recorded before the wait for it is queued; else there is no wait. */
static void record_before_waiting()
{
  cudaStream_t compute = new_stream(), copies = new_stream();
  cudaEvent_t computed = new_event();
  float *d = new_array(), *h = new_pinned(0);
  OK(launch(compute, fill, d, 3.f, count));
  if (!broken) OK(cudaEventRecord(computed, compute));
  OK(cudaStreamWaitEvent(copies, computed, 0));
  if (broken) OK(cudaEventRecord(computed, compute));
  OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, copies));
  OK(cudaStreamSynchronize(copies));
  CHECK(all(h, 3));
}

/* The next writer waits for the reader. */
static void wait_before_overwriting()
{
  cudaStream_t compute = new_stream(), copies = new_stream();
  cudaEvent_t computed = new_event(), copied = new_event();
  float *d = new_array(), *h = new_pinned(0);
  OK(launch(compute, fill, d, 3.f, count));
  OK(cudaEventRecord(computed, compute));
  OK(cudaStreamWaitEvent(copies, computed, 0));
  OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, copies));
  OK(cudaEventRecord(copied, copies));
  if (!broken) OK(cudaStreamWaitEvent(compute, copied, 0));
  OK(launch(compute, fill, d, 4.f, count));
  OK(cudaDeviceSynchronize());
  CHECK(all(h, 3));
}

/* What is to be copied is there before the copy is queued. */
static void fill_before_copying()
{
  cudaStream_t stream = new_stream();
  float *d = new_array(), *h = new_pinned(0);
  if (!broken)
    for (int i = 0; i < count; i++) h[i] = 5;
  OK(cudaMemcpyAsync(d, h, bytes, cudaMemcpyHostToDevice, stream));
  if (broken)
    for (int i = 0; i < count; i++) h[i] = 5;
  CHECK(device_all(d, 5));
}

static void keep_pinned_source()
{
  cudaStream_t stream = new_stream();
  float *d = new_array(), *h = new_pinned(5);
  OK(cudaMemcpyAsync(d, h, bytes, cudaMemcpyHostToDevice, stream));
  if (!broken) OK(cudaStreamSynchronize(stream));
  for (int i = 0; i < count; i++) h[i] = 6;
  CHECK(device_all(d, 5));
}

/* With CUDAEMUL_PAGEABLE=direct, other memory is like pinned memory. */
static void wait_for_pageable()
{
  cudaStream_t stream = new_stream();
  float *d = new_array();
  std::vector<float> h(count, 5.f), back(count, 0.f);
  OK(cudaMemcpyAsync(d, h.data(), bytes, cudaMemcpyHostToDevice, stream));
  OK(cudaMemcpyAsync(back.data(), d, bytes, cudaMemcpyDeviceToHost, stream));
  if (!broken) OK(cudaStreamSynchronize(stream));
  CHECK(all(back.data(), 5));
}

/* cudaStreamNonBlocking: the default stream does not wait for it. */
static void blocking_stream()
{
  cudaStream_t stream = new_stream(broken ? cudaStreamNonBlocking : cudaStreamDefault);
  float *d = new_array(), *e = new_array();
  std::vector<float> h(count);
  OK(launch(stream, fill, d, 3.f, count));
  OK(launch(nullptr, fill, e, 4.f, count));
  OK(launch(nullptr, add, d, e, count));
  OK(cudaMemcpy(h.data(), d, bytes, cudaMemcpyDeviceToHost));
  CHECK(all(h.data(), 7));
}

/* ... and the other way round. */
static void after_default_stream()
{
  cudaStream_t stream = new_stream(broken ? cudaStreamNonBlocking : cudaStreamDefault);
  float *d = new_array(), *h = new_pinned(0);
  OK(cudaMemset(d, 0, bytes));
  OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(all(h, 0));
}

static void initialize()
{
  float *d = new_array(), *e = new_array();
  if (!broken) OK(cudaMemset(d, 0, bytes));
  OK(launch(nullptr, fill, e, 2.f, count));
  OK(launch(nullptr, add, d, e, count));
  CHECK(device_all(d, 2));
}

/* *** ... and memory that is out of reach */

static void keep_host_out()
{
  float *d = new_array();
  OK(launch(nullptr, fill, d, 3.f, count));
  OK(cudaDeviceSynchronize());
  if (broken) CHECK(d[7] == 3);
  CHECK(device_all(d, 3));
}

static void keep_host_from_writing()
{
  float *d = new_array();
  if (broken) d[count - 1] = 3;
  OK(cudaMemset(d, 0, bytes));
}

static void stay_before_end()
{
  float *d = new_array();
  OK(launch(nullptr, fill, d, 3.f, broken ? count + 100 : count));
  CHECK(device_all(d, 3));
}

static void stay_close_before_end()
{
  float *d = new_array();
  OK(launch(nullptr, fill, d, 3.f, broken ? count + 1 : count));
  CHECK(device_all(d, 3));
}

static void stay_after_begin()
{
  float *d = new_array(), *e = new_array();
  OK(launch(nullptr, fill, e, 3.f, count));
  OK(launch(nullptr, shift, d, e, broken ? -1000 : 0, count));
  CHECK(device_all(d, 3));
}

static void stay_close_after_begin()
{
  float *d = new_array();
  OK(launch(nullptr, fill, broken ? d - 1 : d, 3.f, count));
  OK(cudaDeviceSynchronize());
}

static void stay_in_pinned()
{
  float *h = new_pinned(0);
  h[broken ? count + 1 : count - 1] = 3;
  OK(cudaFreeHost(h));
}

static void free_last()
{
  float *d = new_array(), *e = new_array();
  OK(launch(nullptr, fill, d, 3.f, count));
  if (broken) OK(cudaFree(d));
  float *f = new_array();
  OK(launch(nullptr, fill, f, 4.f, count));
  OK(launch(nullptr, fill, e, 3.f, count));
  OK(launch(nullptr, add, e, d, count));
  CHECK(device_all(e, 6));
}

static void free_pinned_last()
{
  float *h = new_pinned(1);
  if (broken) OK(cudaFreeHost(h));
  CHECK(h[count - 1] == 1);
}

static void unregister_last()
{
  std::vector<float> h(count, 0.f);
  float *d = new_array();
  cudaStream_t stream = new_stream();
  OK(cudaHostRegister(h.data(), bytes, cudaHostRegisterDefault));
  OK(launch(stream, fill, d, 3.f, count));
  OK(cudaMemcpyAsync(h.data(), d, bytes, cudaMemcpyDeviceToHost, stream));
  if (!broken) OK(cudaStreamSynchronize(stream));
  OK(cudaHostUnregister(h.data()));
  CHECK(all(h.data(), 3));
}

static void pass_device_pointer()
{
  float *d = new_array();
  std::vector<float> h(count);
  OK(launch(nullptr, fill, broken ? h.data() : d, 3.f, count));
  OK(cudaDeviceSynchronize());
}

static void pass_some_pointer()
{
  float *d = new_array();
  OK(launch(nullptr, fill, broken ? nullptr : d, 3.f, count));
  OK(cudaDeviceSynchronize());
}

__global__ void reverse(float *a, int n)
{
  __shared__ float block[64];
  const int i = threadIdx.x, base = blockIdx.x * blockDim.x;
  if (base + i >= n) return;
  block[i] = a[base + i];
  __syncthreads();
  const float value = block[63 - i];
  __syncthreads();
  a[base + i] = value + threadIdx.x;
}

static void whole_blocks()
{
  float *d = new_array();
  std::vector<float> h(count);
  for (int i = 0; i < count; i++) h[i] = float(i);
  OK(cudaMemcpy(d, h.data(), bytes, cudaMemcpyHostToDevice));
  OK(launch(nullptr, reverse, d, broken ? 130 : 192));
  OK(cudaMemcpy(h.data(), d, bytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 192; i++) CHECK(h[i] == i / 64 * 64 + 63);
  CHECK(h[192] == 192);
}

/* *** Programs that cannot */

static void default_stream()
{
  cudaStream_t streams[2] = {new_stream(0), new_stream(0)};
  float *d = new_array(), *e = new_array();
  OK(cudaMemset(d, 0, bytes));
  for (int i = 0; i < 20; i++) {
    OK(launch(streams[i % 2], fill, e, float(i), count));
    OK(launch(i % 3 ? nullptr : cudaStreamLegacy, add, d, e, count));
  }
  OK(cudaStreamSynchronize(nullptr));
  CHECK(device_all(d, 190));
  OK(cudaStreamDestroy(streams[0]));
  OK(cudaStreamDestroy(streams[1]));
}

/* A pipeline as in a time loop that saves: slots, and events in both directions. */
static void pipeline()
{
  const int slots = 3, steps = 40;
  cudaStream_t compute = new_stream(), copies = new_stream();
  cudaEvent_t computed[slots], copied[slots];
  float *d[slots], *sum = new_array();
  std::vector<float *> h;
  for (int i = 0; i < slots; i++) {
    computed[i] = new_event();
    copied[i] = new_event();
    d[i] = new_array();
  }
  OK(cudaMemsetAsync(sum, 0, bytes, compute));
  for (int i = 0; i < steps; i++) {
    const int slot = i % slots;
    h.push_back(new_pinned(-1));
    OK(cudaStreamWaitEvent(compute, copied[slot], 0));
    OK(launch(compute, fill, d[slot], float(i), count));
    OK(launch(compute, add, sum, d[slot], count));
    OK(cudaEventRecord(computed[slot], compute));
    OK(cudaStreamWaitEvent(copies, computed[slot], 0));
    OK(cudaMemcpyAsync(h[i], d[slot], bytes, cudaMemcpyDeviceToHost, copies));
    OK(cudaEventRecord(copied[slot], copies));
    if (i == 20) {
      OK(cudaEventSynchronize(copied[slot]));
      CHECK(all(h[i], float(i)));
    }
  }
  OK(cudaStreamDestroy(compute)); /* which does not end its work */
  OK(cudaStreamSynchronize(copies));
  for (int i = 0; i < steps; i++) CHECK(all(h[i], float(i)));
  CHECK(device_all(sum, steps * (steps - 1) / 2));
  for (int i = 0; i < slots; i++) {
    OK(cudaEventDestroy(computed[i]));
    OK(cudaEventDestroy(copied[i]));
    OK(cudaFree(d[i]));
  }
  for (float *i : h) OK(cudaFreeHost(i));
  OK(cudaFree(sum));
  OK(cudaStreamDestroy(copies));
}

/* Memory that is not pinned may be used again at once, and is there at once. */
static void pageable()
{
  cudaStream_t stream = new_stream();
  float *d = new_array(), *e = new_array();
  std::vector<float> h(count, 1.f);
  OK(cudaMemcpyAsync(d, h.data(), bytes, cudaMemcpyHostToDevice, stream));
  h.assign(count, 2.f);
  OK(cudaMemcpyAsync(e, h.data(), bytes, cudaMemcpyDefault, stream));
  h.assign(count, 3.f);
  OK(launch(stream, add, d, e, count));
  OK(cudaMemcpyAsync(h.data(), d, bytes, cudaMemcpyDeviceToHost, stream));
  CHECK(all(h.data(), 3));
  OK(cudaMemcpyAsync(e, d, bytes, cudaMemcpyDeviceToDevice, stream));
  CHECK(device_all(e, 3));
  std::vector<float> g(count, 0.f);
  OK(cudaMemcpy(g.data(), h.data(), bytes, cudaMemcpyHostToHost));
  CHECK(all(g.data(), 3));
}

/* A pinned buffer that is the source of one copy and the destination of the next. */
static void pinned_both_ways()
{
  cudaStream_t stream = new_stream();
  float *d = new_array(), *e = new_array(), *h = new_pinned(1);
  OK(launch(stream, fill, e, 2.f, count));
  OK(cudaMemcpyAsync(d, h, bytes, cudaMemcpyHostToDevice, stream));
  OK(cudaMemcpyAsync(h, e, bytes, cudaMemcpyDeviceToHost, stream));
  OK(launch(stream, add, d, h, count));
  OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(all(h, 3));
}

static void two_dimensions()
{
  float *d = new_array();
  std::vector<float> h(count, 0.f), g(count, 9.f);
  for (int i = 0; i < count; i++) h[i] = float(i);
  OK(cudaMemset(d, 0, bytes));
  /* 5 rows of 7 out of 10, to rows of 20 */
  OK(cudaMemcpy2DAsync(d, 80, h.data(), 40, 28, 5, cudaMemcpyHostToDevice, nullptr));
  OK(cudaMemcpy2D(g.data(), 32, d, 80, 32, 5, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 5; i++)
    for (int j = 0; j < 8; j++) CHECK(g[8 * i + j] == (j < 7 ? 10 * i + j : 0));
  CHECK(g[40] == 9);
  ERROR(cudaErrorInvalidPitchValue,
        cudaMemcpy2D(g.data(), 32, d, 80, 40, 5, cudaMemcpyDeviceToHost));
  ERROR(cudaErrorInvalidValue,
        cudaMemcpy2D(d, 1000, g.data(), 80, 28, 5, cudaMemcpyHostToDevice));
}

struct Notes {
  const float *pinned;
  std::vector<float> seen;
  cudaError_t inside;
};

static void take_note(void *data)
{
  Notes *notes = static_cast<Notes *>(data);
  notes->seen.push_back(notes->pinned[count - 1]);
  notes->inside = cudaDeviceSynchronize();
}

static void host_functions()
{
  cudaStream_t stream = new_stream();
  float *d = new_array(), *h = new_pinned(0);
  Notes notes = {h, {}, cudaSuccess};
  for (int i = 0; i < 3; i++) {
    OK(launch(stream, fill, d, float(i), count));
    OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaLaunchHostFunc(stream, take_note, &notes));
  }
  OK(cudaStreamSynchronize(stream));
  CHECK((notes.seen == std::vector<float>{0, 1, 2}));
  CHECK(notes.inside == cudaErrorNotPermitted);
}

static void polling()
{
  cudaStream_t stream = new_stream();
  cudaEvent_t begin, end;
  float *d = new_array(), milliseconds = -1;
  OK(cudaEventCreate(&begin));
  OK(cudaEventCreate(&end));
  OK(cudaEventQuery(end)); /* never recorded: nothing to wait for */
  OK(cudaEventSynchronize(end));
  ERROR(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, begin, end));
  OK(cudaStreamQuery(stream));
  OK(cudaEventRecord(begin, stream));
  OK(launch(stream, fill, d, 3.f, count));
  OK(cudaEventRecord(end, stream));
  while (cudaError_t status = cudaEventQuery(end)) CHECK(status == cudaErrorNotReady);
  OK(cudaStreamQuery(stream));
  (void)cudaGetLastError();
  OK(cudaEventElapsedTime(&milliseconds, begin, end));
  CHECK(milliseconds >= 0 && milliseconds < 1e5);
  OK(cudaEventDestroy(begin));
  ERROR(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, begin, end));
}

__global__ void reduce(const float *a, int n, float *sums, double *sum, int *ints,
                       unsigned long long *large)
{
  for (int i = first(); i < n; i += stride()) {
    atomicAdd(&sums[i % 2], a[i]);
    atomicAdd(sum, (double)a[i]);
    atomicAdd(&ints[0], 1);
    atomicMin(&ints[1], i);
    atomicMax(&ints[2], i);
    atomicAdd(large, 1ull << 32);
    unsigned int *word = (unsigned int *)&ints[3], old = *word, seen;
    do {
      seen = old;
      old = atomicCAS(word, seen, __float_as_int(max(__int_as_float(seen), a[i])));
    } while (old != seen);
  }
}

static void atomics()
{
  float *d = new_array(), sums[2] = {0, 0};
  double sum = 0;
  int ints[4] = {0, count, -1, 0};
  unsigned long long large = 0;
  char *results;
  OK(cudaMalloc(&results, 64));
  OK(launch(nullptr, fill, d, 2.f, count));
  OK(cudaMemcpy(results, &large, 8, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(results + 8, &sum, 8, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(results + 16, sums, 8, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(results + 24, ints, 16, cudaMemcpyHostToDevice));
  OK(launch(nullptr, reduce, d, count, (float *)(results + 16), (double *)(results + 8),
            (int *)(results + 24), (unsigned long long *)results));
  OK(cudaMemcpy(&large, results, 8, cudaMemcpyDeviceToHost));
  OK(cudaMemcpy(&sum, results + 8, 8, cudaMemcpyDeviceToHost));
  OK(cudaMemcpy(sums, results + 16, 8, cudaMemcpyDeviceToHost));
  OK(cudaMemcpy(ints, results + 24, 16, cudaMemcpyDeviceToHost));
  CHECK(large == 1000ull << 32 && sum == 2000 && sums[0] == 1000 && sums[1] == 1000);
  float largest;
  memcpy(&largest, &ints[3], 4);
  CHECK(ints[0] == count && ints[1] == 0 && ints[2] == count - 1 && largest == 2);
}

__global__ void mathematics(double *a, float x, double y, int i, unsigned int u)
{
  a[0] = __expf(x) + __logf(x) + __sinf(x) + __cosf(x) + __powf(x, 2.f);
  a[1] = min(x, 1.0f) + min(y, 1.0) + max(i, 5) + max(u, 6u) + min(x, y);
  a[2] = __fdividef(x, 2.f) + rsqrtf(4.f) + rsqrt(y) + __ldg(&a[0]) - a[0];
  a[3] = __longlong_as_double(__double_as_longlong(y)) +
         __int_as_float(__float_as_int(x)) + __fmaf_rn(x, x, x);
}

static void intrinsics()
{
  double *d, h[4];
  OK(cudaMalloc(&d, sizeof(h)));
  cudaLaunchConfig_t one = {};
  one.gridDim = one.blockDim = dim3();
  OK(cudaLaunchKernelEx(&one, mathematics, d, 1.0, 4.f, short(3), 4u));
  OK(cudaMemcpy(h, d, sizeof(h), cudaMemcpyDefault));
  CHECK(fabs(h[2] - 1.5) < 1e-5);
  float x = 1;
  double y = 4;
  int i = 3;
  unsigned int u = 4;
  void *arguments[] = {&d, &x, &y, &i, &u};
  OK(cudaMemset(d, 0, sizeof(h)));
  OK(cudaLaunchKernel(mathematics, dim3(1), dim3(1), arguments, 0, nullptr));
  OK(cudaMemcpy(h, d, sizeof(h), cudaMemcpyDefault));
  CHECK(fabs(h[0] - (exp(1.) + sin(1.) + cos(1.) + 1)) < 1e-5);
  CHECK(fabs(h[1] - 14) < 1e-5 && fabs(h[2] - 1.5) < 1e-5 && fabs(h[3] - 7) < 1e-5);
}

__global__ void mark(int *seen)
{
  atomicAdd(&seen[((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) *
                      blockDim.x * blockDim.y * blockDim.z +
                  (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x],
            1);
}

/* Every thread runs once. */
static void grids()
{
  const dim3 grids[] = {{1}, {7}, {2, 3, 5}, {1, 1, 9}};
  const dim3 blocks[] = {{1}, {32, 4}, {3, 2, 7}, {1024}, {1, 1, 64}};
  int *d;
  OK(cudaMalloc(&d, 30 * 1024 * sizeof(int)));
  for (dim3 grid : grids)
    for (dim3 block : blocks) {
      const int threads = int(grid.x * grid.y * grid.z * block.x * block.y * block.z);
      std::vector<int> h(threads);
      cudaLaunchConfig_t config = {};
      config.gridDim = grid;
      config.blockDim = block;
      OK(cudaMemset(d, 0, threads * sizeof(int)));
      OK(cudaLaunchKernelEx(&config, mark, d));
      OK(cudaMemcpy(h.data(), d, threads * sizeof(int), cudaMemcpyDeviceToHost));
      for (int i : h) CHECK(i == 1);
    }
}

static cudaError_t launch_shaped(dim3 grid, dim3 block, cudaStream_t stream = nullptr)
{
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, fill, (float *)nullptr, 0.f, 0);
}

static void errors()
{
  float *d = new_array(), *pinned = new_pinned(0), h[4] = {0};
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  int device, n;

  OK(launch_shaped(dim3(1), dim3(1024)));
  for (dim3 grid : {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1, 65536)})
    ERROR(cudaErrorInvalidConfiguration, launch_shaped(grid, dim3(32)));
  for (dim3 block : {dim3(0), dim3(1025), dim3(32, 33), dim3(1, 1, 65), dim3(4, 0)})
    ERROR(cudaErrorInvalidConfiguration, launch_shaped(dim3(1), block));

  OK(cudaMemcpy(d, h, 0, cudaMemcpyHostToDevice));
  ERROR(cudaErrorInvalidValue, cudaMemcpy(d, h, 16, cudaMemcpyDeviceToHost));
  ERROR(cudaErrorInvalidValue, cudaMemcpy(h, d, 16, cudaMemcpyHostToDevice));
  ERROR(cudaErrorInvalidValue, cudaMemcpy(d, h, 16, cudaMemcpyDeviceToDevice));
  ERROR(cudaErrorInvalidValue, cudaMemcpy(h, d, 16, cudaMemcpyHostToHost));
  ERROR(cudaErrorInvalidMemcpyDirection, cudaMemcpy(d, h, 16, (cudaMemcpyKind)5));
  ERROR(cudaErrorInvalidValue, cudaMemcpy(nullptr, h, 16, cudaMemcpyDefault));
  ERROR(cudaErrorInvalidValue, cudaMemcpy(d + count - 3, h, 16, cudaMemcpyDefault));
  ERROR(cudaErrorInvalidValue, cudaMemcpy(h, d - 1, 16, cudaMemcpyDeviceToHost));
  ERROR(cudaErrorInvalidValue, cudaMemset(h, 0, 16));
  ERROR(cudaErrorInvalidValue, cudaMemset(d, 0, bytes + 1));

  ERROR(cudaErrorInvalidValue, cudaMalloc((void **)nullptr, 1));
  ERROR(cudaErrorInvalidValue, cudaFree(h));
  ERROR(cudaErrorInvalidValue, cudaFree(d + 1));
  ERROR(cudaErrorInvalidValue, cudaFree(pinned));
  ERROR(cudaErrorInvalidValue, cudaFreeHost(d));
  OK(cudaFree(d));
  OK(cudaFree(nullptr));
  ERROR(cudaErrorInvalidValue, cudaFree(d));
  ERROR(cudaErrorInvalidValue, cudaMemset(d, 0, 4));
  ERROR(cudaErrorInvalidValue, cudaMemcpy(h, d, 4, cudaMemcpyDefault));

  OK(cudaStreamDestroy(stream));
  OK(cudaEventDestroy(event));
#ifdef CUDAEMUL /* real ones crash */
  ERROR(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
  ERROR(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(stream));
  ERROR(cudaErrorInvalidResourceHandle, cudaEventRecord(event, nullptr));
  ERROR(cudaErrorInvalidResourceHandle, launch_shaped(dim3(1), dim3(1), stream));
  ERROR(cudaErrorInvalidResourceHandle,
        cudaMemcpyAsync(pinned, h, 4, cudaMemcpyDefault, stream));
#endif

  OK(cudaGetDeviceCount(&n));
  ERROR(cudaErrorInvalidDevice, cudaSetDevice(n));
  ERROR(cudaErrorInvalidDevice, cudaSetDevice(-1));
  OK(cudaGetDevice(&device));
  CHECK(device == 0 && n == 1);
  CHECK(!strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady"));
  CHECK(strstr(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
}

static void registered()
{
  std::vector<float> h(count, 1.f);
  float *d = new_array(), *pinned = new_pinned(0);
  cudaStream_t stream = new_stream();
  cudaPointerAttributes a;
  OK(cudaPointerGetAttributes(&a, h.data()));
  CHECK(a.type == cudaMemoryTypeUnregistered && !a.devicePointer);
  OK(cudaHostRegister(h.data(), bytes, cudaHostRegisterDefault));
  ERROR(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(h.data(), bytes, 0));
  OK(cudaPointerGetAttributes(&a, &h[5]));
  CHECK(a.type == cudaMemoryTypeHost && a.hostPointer == &h[5] && a.devicePointer);
  OK(cudaPointerGetAttributes(&a, pinned));
  CHECK(a.type == cudaMemoryTypeHost);
  OK(cudaPointerGetAttributes(&a, d));
  CHECK(a.type == cudaMemoryTypeDevice && a.devicePointer == d && a.device == 0);
  OK(cudaMemcpyAsync(d, h.data(), bytes, cudaMemcpyHostToDevice, stream));
  OK(cudaStreamSynchronize(stream));
  h.assign(count, 2.f);
  CHECK(device_all(d, 1));
  OK(cudaHostUnregister(h.data()));
  ERROR(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(h.data()));
}

static void out_of_memory()
{
  size_t available, total, after;
  void *d = nullptr, *rest = nullptr, *none = &total;
  OK(cudaMemGetInfo(&available, &total));
  CHECK(total == 1 << 20 && available == total); /* CUDAEMUL_MEMORY */
  OK(cudaMalloc(&d, 1000));
  OK(cudaMemGetInfo(&after, &total));
  CHECK(after == available - 1000);
  ERROR(cudaErrorMemoryAllocation, cudaMalloc(&none, after + 1));
  CHECK(!none);
  OK(cudaMalloc(&rest, after));
  ERROR(cudaErrorMemoryAllocation, cudaMalloc(&none, 1));
  OK(cudaFree(d));
  OK(cudaMalloc(&none, 1000));
  OK(cudaMemset(none, 0, 1000));
}

static void properties()
{
  cudaDeviceProp p;
  int value;
  OK(cudaGetDeviceProperties(&p, 0));
  OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxThreadsPerBlock, 0));
  CHECK(value == 1024 && p.maxThreadsPerBlock == value && p.warpSize == 32);
  ERROR(cudaErrorInvalidDevice, cudaGetDeviceProperties(&p, 1));
  printf("%s\n", p.name);
}

/* Threads of the host, each with a stream, and one event that all wait for. */
static void host_threads()
{
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  float *b = new_array();
  OK(launch(stream, fill, b, 1.f, count));
  OK(cudaEventRecord(event, stream));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([=] {
      cudaStream_t own = new_stream();
      float *d = new_array(), *h = new_pinned(0);
      OK(cudaStreamWaitEvent(own, event, 0));
      for (int i = 0; i < 25; i++) {
        OK(launch(own, fill, d, float(t), count));
        OK(launch(own, add, d, b, count));
        OK(cudaMemcpyAsync(h, d, bytes, cudaMemcpyDeviceToHost, own));
        OK(cudaStreamSynchronize(own));
        CHECK(all(h, float(t + 1)));
        ERROR(cudaErrorInvalidValue, cudaMemset(h - 1, 0, 1));
      }
      OK(cudaFree(d));
      OK(cudaFreeHost(h));
      OK(cudaStreamDestroy(own));
    });
  for (auto &i : threads) i.join();
}

__global__ void trap() { __trap(); }

/* Errors of work come late, and stay. */
static void sticky()
{
  cudaStream_t stream = new_stream();
  float *d = new_array();
  cudaError_t error = launch(stream, trap);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  CHECK(error == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == error && cudaGetLastError() == error);
  CHECK(launch(stream, fill, d, 1.f, count) == error);
  CHECK(cudaMalloc(&d, 1) == error && cudaDeviceSynchronize() == error);
}

/* Run with CUDAEMUL_FAIL. */
static void injected()
{
  float *d = new_array(), *e = nullptr;
  ERROR(cudaErrorMemoryAllocation, cudaMalloc(&e, bytes));
  OK(cudaMalloc(&e, bytes));
  OK(cudaMemset(d, 0, bytes));
}

static void devices()
{
  float *d[2];
  cudaStream_t streams[2];
  for (int i = 0; i < 2; i++) {
    OK(cudaSetDevice(i));
    d[i] = new_array();
    streams[i] = new_stream();
    OK(launch(streams[i], fill, d[i], float(i), count));
  }
  ERROR(cudaErrorInvalidResourceHandle, launch(streams[0], fill, d[0], 0.f, count));
  OK(cudaStreamSynchronize(streams[0]));
  if (broken) OK(launch(streams[1], fill, d[0], 0.f, count));
  CHECK(device_all(d[1], 1));
  OK(cudaSetDevice(0));
  CHECK(device_all(d[0], 0));
}

#ifdef CUDAEMUL
static void counters()
{
  cudaStream_t stream = new_stream();
  float *d = new_array(), *e = new_array(), *h = new_pinned(0);
  OK(launch(stream, fill, d, 1.f, count));
  OK(cudaMemcpyAsync(h, d, 8, cudaMemcpyDeviceToHost, stream));
  OK(cudaMemcpyAsync(e, d, 16, cudaMemcpyDeviceToDevice, stream));
  OK(cudaMemcpyAsync(d, h, 32, cudaMemcpyHostToDevice, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(cudaemul_counter("launches") == 1 && cudaemul_counter("threads") == 192);
  CHECK(cudaemul_counter("d2h_bytes") == 8 && cudaemul_counter("d2d_bytes") == 16);
  CHECK(cudaemul_counter("h2d_bytes") == 32 && cudaemul_counter("h2d_copies") == 1);
  CHECK(cudaemul_counter("synchronizations") == 1);
  OK(cudaFree(e));
  CHECK(cudaemul_counter("live_bytes") == bytes);
  CHECK(cudaemul_counter("peak_bytes") == 2 * bytes);
  CHECK(cudaemul_counter("pinned_bytes") == bytes);
  CHECK(cudaemul_counter("no such counter") == ~0ull);
  cudaemul_reset_counters();
  CHECK(!cudaemul_counter("launches") && cudaemul_counter("peak_bytes") == bytes);
}

static void leaks()
{
  cudaStream_t stream = new_stream();
  float *d = new_array();
  cudaEvent_t event = new_event();
  OK(launch(stream, fill, d, 1.f, count));
  if (broken) return;
  OK(cudaEventDestroy(event));
  OK(cudaFree(d));
  OK(cudaStreamDestroy(stream));
}
#endif

#define PROGRAM(name) {#name, name}
static const struct {
  const char *name;
  void (*run)();
} programs[] = {
    PROGRAM(synchronize_before_reading), PROGRAM(synchronize_right_stream),
    PROGRAM(copy_in_right_stream), PROGRAM(wait_for_event),
    PROGRAM(record_before_waiting), PROGRAM(wait_before_overwriting),
    PROGRAM(fill_before_copying), PROGRAM(keep_pinned_source),
    PROGRAM(wait_for_pageable), PROGRAM(unregister_last), PROGRAM(blocking_stream),
    PROGRAM(after_default_stream), PROGRAM(initialize), PROGRAM(keep_host_out),
    PROGRAM(keep_host_from_writing), PROGRAM(stay_before_end),
    PROGRAM(stay_close_before_end), PROGRAM(stay_after_begin),
    PROGRAM(stay_close_after_begin), PROGRAM(stay_in_pinned), PROGRAM(free_last),
    PROGRAM(free_pinned_last), PROGRAM(pass_device_pointer), PROGRAM(pass_some_pointer),
    PROGRAM(whole_blocks), PROGRAM(default_stream), PROGRAM(pipeline), PROGRAM(pageable),
    PROGRAM(pinned_both_ways), PROGRAM(two_dimensions), PROGRAM(host_functions),
    PROGRAM(polling), PROGRAM(atomics), PROGRAM(intrinsics), PROGRAM(grids),
    PROGRAM(errors), PROGRAM(registered), PROGRAM(out_of_memory), PROGRAM(properties),
    PROGRAM(host_threads), PROGRAM(sticky), PROGRAM(injected), PROGRAM(devices),
#ifdef CUDAEMUL
    PROGRAM(counters), PROGRAM(leaks),
#endif
};

int main(int argc, char **argv)
{
  broken = argc > 2 && !strcmp(argv[2], "broken");
  for (auto &i : programs)
    if (argc > 1 && !strcmp(argv[1], i.name)) {
      i.run();
      return 0;
    }
  for (auto &i : programs) puts(i.name);
  return argc > 1 ? 3 : 0;
}
