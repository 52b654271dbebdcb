/*
 * cudaemul.h -- the C++ part of cuda_runtime.h, which includes it: launches, and what
 * kernels may call.
 */
#ifndef CUDAEMUL_H
#define CUDAEMUL_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

/* *** Launches */

namespace cudaemul {

/* A kernel and its arguments. */
struct Call {
  virtual ~Call() {}
  virtual void operator()() = 0;
};

template <typename... Params>
class KernelCall : public Call {
 public:
  template <typename... Args>
  explicit KernelCall(void (*kernel)(Params...), Args &&...args)
      : kernel_(kernel), args_(static_cast<Params>(std::forward<Args>(args))...) {}
  void operator()() override { call(std::index_sequence_for<Params...>()); }

 private:
  template <std::size_t... I>
  void call(std::index_sequence<I...>) {
    kernel_(std::get<I>(args_)...);
  }

  void (*kernel_)(Params...);
  std::tuple<typename std::remove_cv<Params>::type...> args_;
};

template <typename T>
typename std::enable_if<std::is_object<T>::value || std::is_void<T>::value,
                        const void *>::type
pointer_in(T *const &pointer) {
  return const_cast<const void *>(static_cast<const volatile void *>(pointer));
}
inline const void *pointer_in(...) { return nullptr; }

/* Takes over `call`. Of each argument, pointers has it if it is one, else NULL. */
cudaError_t launch(const cudaLaunchConfig_t *config, const void *kernel, Call *call,
                   const void *const *pointers, int count);

}  // namespace cudaemul

template <typename... Params, typename... Args>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                      void (*kernel)(Params...), Args &&...args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "arguments of the kernel");
  return [&](typename std::remove_cv<Params>::type... values) {
    const void *pointers[] = {nullptr, cudaemul::pointer_in(values)...};
    return cudaemul::launch(config, reinterpret_cast<const void *>(kernel),
                            new cudaemul::KernelCall<Params...>(kernel, values...),
                            pointers + 1, (int)sizeof...(Params));
  }(std::forward<Args>(args)...);
}

namespace cudaemul {
template <typename... Params, std::size_t... I>
cudaError_t launch_packed(const cudaLaunchConfig_t *config, void (*kernel)(Params...),
                          void **args, std::index_sequence<I...>) {
  (void)args;
  return cudaLaunchKernelEx(
      config, kernel, *static_cast<typename std::remove_cv<Params>::type *>(args[I])...);
}
}  // namespace cudaemul

/* Not for kernels cast to const void *, whose parameters nobody knows. */
template <typename... Params>
inline cudaError_t cudaLaunchKernel(void (*kernel)(Params...), dim3 grid, dim3 block,
                                    void **args, std::size_t shared = 0,
                                    cudaStream_t stream = 0) {
  cudaLaunchConfig_t config = {grid, block, shared, stream, nullptr, 0};
  return cudaemul::launch_packed(&config, kernel, args,
                                 std::index_sequence_for<Params...>());
}

/* Casts that C does without. */
template <typename T>
inline cudaError_t cudaMalloc(T **pointer, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void **>(pointer), bytes);
}
template <typename T>
inline cudaError_t cudaMallocHost(T **pointer, std::size_t bytes, unsigned flags = 0) {
  void **const generic = reinterpret_cast<void **>(pointer);
  return flags ? cudaHostAlloc(generic, bytes, flags) : cudaMallocHost(generic, bytes);
}
template <typename T>
inline cudaError_t cudaHostAlloc(T **pointer, std::size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void **>(pointer), bytes, flags);
}
template <typename T>
inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned flags) {
  return cudaHostGetDevicePointer(reinterpret_cast<void **>(device), host, flags);
}
inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned flags) {
  return cudaEventCreateWithFlags(event, flags);
}

/* *** Kernels: where they are */

/* Of the process, not of a thread: one kernel runs at a time, on one thread. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

void __syncthreads();
void __trap();
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

/* *** Atomics, which need be none: see above */

#define CUDAEMUL_ATOMIC(name, type, result) \
  inline type name(type *address, type value) { \
    const type old = *address; \
    *address = (result); \
    return old; \
  }
#define CUDAEMUL_INTEGER_ATOMICS(type) \
  CUDAEMUL_ATOMIC(atomicAdd, type, (type)(old + value)) \
  CUDAEMUL_ATOMIC(atomicMin, type, value < old ? value : old) \
  CUDAEMUL_ATOMIC(atomicMax, type, value > old ? value : old) \
  CUDAEMUL_ATOMIC(atomicAnd, type, old & value) \
  CUDAEMUL_ATOMIC(atomicOr, type, old | value) \
  CUDAEMUL_ATOMIC(atomicExch, type, value) \
  inline type atomicCAS(type *address, type expected, type value) { \
    const type old = *address; \
    if (old == expected) *address = value; \
    return old; \
  }
CUDAEMUL_INTEGER_ATOMICS(int)
CUDAEMUL_INTEGER_ATOMICS(unsigned int)
CUDAEMUL_INTEGER_ATOMICS(unsigned long long)
CUDAEMUL_ATOMIC(atomicAdd, float, old + value)
CUDAEMUL_ATOMIC(atomicAdd, double, old + value)
CUDAEMUL_ATOMIC(atomicExch, float, value)
CUDAEMUL_ATOMIC(atomicSub, int, (int)((unsigned)old - (unsigned)value))
CUDAEMUL_ATOMIC(atomicSub, unsigned int, old - value)
CUDAEMUL_ATOMIC(atomicMin, long long, value < old ? value : old)
CUDAEMUL_ATOMIC(atomicMax, long long, value > old ? value : old)
#undef CUDAEMUL_INTEGER_ATOMICS
#undef CUDAEMUL_ATOMIC

/* *** Mathematics */

#define CUDAEMUL_MINMAX(common, a_type, b_type) \
  inline common min(a_type a, b_type b) { \
    return (common)a < (common)b ? (common)a : (common)b; \
  } \
  inline common max(a_type a, b_type b) { \
    return (common)a > (common)b ? (common)a : (common)b; \
  }
#define CUDAEMUL_INTEGER_MINMAX(sign, type) \
  CUDAEMUL_MINMAX(sign type, sign type, sign type)
#define CUDAEMUL_MIXED_MINMAX(type) \
  CUDAEMUL_MINMAX(unsigned type, type, unsigned type) \
  CUDAEMUL_MINMAX(unsigned type, unsigned type, type)
CUDAEMUL_INTEGER_MINMAX(signed, int)
CUDAEMUL_INTEGER_MINMAX(unsigned, int)
CUDAEMUL_INTEGER_MINMAX(signed, long)
CUDAEMUL_INTEGER_MINMAX(unsigned, long)
CUDAEMUL_INTEGER_MINMAX(signed, long long)
CUDAEMUL_INTEGER_MINMAX(unsigned, long long)
CUDAEMUL_MIXED_MINMAX(int)
CUDAEMUL_MIXED_MINMAX(long)
CUDAEMUL_MIXED_MINMAX(long long)
#undef CUDAEMUL_MIXED_MINMAX
#undef CUDAEMUL_INTEGER_MINMAX
#undef CUDAEMUL_MINMAX

/* Those of floating point ignore NaNs. */
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(float a, double b) { return std::fmin(a, b); }
inline double max(float a, double b) { return std::fmax(a, b); }
inline double min(double a, float b) { return std::fmin(a, b); }
inline double max(double a, float b) { return std::fmax(a, b); }

namespace cudaemul {
template <typename To, typename From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
}  // namespace cudaemul

inline int __float_as_int(float x) { return cudaemul::bits<int>(x); }
inline float __int_as_float(int x) { return cudaemul::bits<float>(x); }
inline unsigned int __float_as_uint(float x) { return cudaemul::bits<unsigned>(x); }
inline float __uint_as_float(unsigned int x) { return cudaemul::bits<float>(x); }
inline long long __double_as_longlong(double x) { return cudaemul::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cudaemul::bits<double>(x); }

/* glibc declares some of these for itself, exactly so, and defines none. */
extern "C" {
inline float __sinf(float x) noexcept(true) { return std::sin(x); }
inline float __cosf(float x) noexcept(true) { return std::cos(x); }
inline float __tanf(float x) noexcept(true) { return std::tan(x); }
inline float __expf(float x) noexcept(true) { return std::exp(x); }
inline float __logf(float x) noexcept(true) { return std::log(x); }
inline float __log2f(float x) noexcept(true) { return std::log2(x); }
inline float __log10f(float x) noexcept(true) { return std::log10(x); }
inline float __powf(float x, float y) noexcept(true) { return std::pow(x, y); }
inline float __exp10f(float x) noexcept(true) { return std::pow(10.f, x); }
inline void __sincosf(float x, float *s, float *c) noexcept(true) {
  *s = std::sin(x);
  *c = std::cos(x);
}
}
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }

template <typename T>
inline T __ldg(const T *pointer) {
  return *pointer;
}

#endif /* CUDAEMUL_H */
