/*
 * device.cpp -- settings, counters, errors, devices, and the way into the library.
 */
#include "emulator.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace emul {

Counters counters;

namespace {

constexpr int max_devices = 64;

std::mutex &lock = *new std::mutex;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int device = 0;
std::atomic<cudaError_t> sticky_error{cudaSuccess};
uint64_t state;

const char *variable(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : nullptr;
}

[[noreturn]] void reject(const char *name, const char *value) {
  fprintf(stderr, "%s%s is %s\n", prefix, name, value);
  exit(fault_status);
}

/* Which of the words the variable is; without it, the first. */
int one_of(const char *name, std::initializer_list<const char *> words) {
  const char *value = variable(name);
  int i = 0;
  if (!value) return 0;
  for (const char *word : words) {
    if (!strcmp(word, value)) return i;
    i++;
  }
  reject(name, value);
}

unsigned long long number(const char *name, unsigned long long otherwise) {
  const char *value = variable(name);
  if (!value) return otherwise;
  char *end;
  const unsigned long long result = strtoull(value, &end, 10);
  if (*end || *value == '-') reject(name, value);
  return result;
}

Settings read_settings() {
  Settings s;
  s.order = Order(one_of("CUDAEMUL_ORDER", {"lazy", "eager", "random"}));
  s.threads = Threads(one_of("CUDAEMUL_THREADS", {"forward", "reverse", "shuffle"}));
  s.pageable = Pageable(one_of("CUDAEMUL_PAGEABLE", {"staged", "direct"}));
  s.guard_before = one_of("CUDAEMUL_GUARD", {"after", "before"});
  s.seed = number("CUDAEMUL_SEED", 1);
  s.memory = number("CUDAEMUL_MEMORY", 4ull << 30);
  s.devices = int(number("CUDAEMUL_DEVICES", 1));
  if (s.devices > max_devices) reject("CUDAEMUL_DEVICES", getenv("CUDAEMUL_DEVICES"));
  s.report = number("CUDAEMUL_REPORT", 0);
  s.verbose = number("CUDAEMUL_VERBOSE", 0);
  s.fail = variable("CUDAEMUL_FAIL") ? getenv("CUDAEMUL_FAIL") : "";
  state = s.seed;
  return s;
}

const struct {
  const char *name;
  uint64_t Counters::*value;
  bool kept;  // by a reset
} counter_names[] = {
#define COUNTER(name) {#name, &Counters::name, false}
#define KEPT(name) {#name, &Counters::name, true}
    COUNTER(launches), COUNTER(threads), COUNTER(host_functions), COUNTER(memsets),
    COUNTER(h2d_bytes), COUNTER(d2h_bytes), COUNTER(d2d_bytes), COUNTER(h2h_bytes),
    COUNTER(h2d_copies), COUNTER(d2h_copies), COUNTER(d2d_copies), COUNTER(h2h_copies),
    COUNTER(pageable_copies), COUNTER(blocking_copies), COUNTER(synchronizations),
    COUNTER(allocations), KEPT(live_allocations), KEPT(live_bytes), COUNTER(peak_bytes),
    KEPT(live_pinned), KEPT(pinned_bytes), COUNTER(events_recorded),
    COUNTER(events_waited), COUNTER(unrecorded_waits), KEPT(live_streams),
    KEPT(live_events), COUNTER(operations),
#undef COUNTER
#undef KEPT
};

void report() {
  fprintf(stderr, "%sreport\n", prefix);
  for (auto &i : counter_names)
    if (counters.*i.value)
      fprintf(stderr, "%s%s: %llu\n", prefix, i.name,
              static_cast<unsigned long long>(counters.*i.value));
  list_leaks();
  if (counters.live_streams)
    fprintf(stderr, "%sleaked: %d streams\n", prefix, int(counters.live_streams));
  if (counters.live_events)
    fprintf(stderr, "%sleaked: %d events\n", prefix, int(counters.live_events));
  if (pending_work())
    fprintf(stderr, "%snever done: %zu pieces of queued work\n", prefix, pending_work());
}

void start() {
  const bool reports = settings().report;
  install_handler();
  if (reports) atexit(report);
  atexit(check_pinned);
}

}  // namespace

const Settings &settings() {
  static const Settings &s = *new Settings(read_settings());
  return s;
}

uint64_t draw(uint64_t below) {
  state += 0x9E3779B97F4A7C15;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return (z ^ (z >> 31)) % below;
}

int current_device() { return device; }

/* *** Errors */

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t refuse(cudaError_t error, const char *format, ...) {
  if (settings().verbose) {
    va_list arguments;
    va_start(arguments, format);
    fputs(prefix, stderr);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, " (%s)\n", cudaGetErrorName(error));
    va_end(arguments);
  }
  return note(error);
}

void set_sticky(cudaError_t error) { sticky_error = error; }
cudaError_t sticky() { return sticky_error; }

cudaError_t injected(const char *name, cudaError_t usual) {
  const std::string &fail = settings().fail;
  const size_t colon = fail.find(':');
  static std::map<std::string, long> &calls = *new std::map<std::string, long>;
  if (fail.empty() || fail.compare(0, colon, name)) return cudaSuccess;
  char *end = nullptr;
  const long count = colon == fail.npos ? 1 : strtol(&fail[colon + 1], &end, 10);
  if (++calls[name] != count) return cudaSuccess;
  return end && *end == ':' ? cudaError_t(atoi(end + 1)) : usual;
}

Entry::Entry(const char *function) : refused(cudaSuccess) {
  if (current.what == Running::host_function) {
    refused = cudaErrorNotPermitted;
    return;
  }
  if (current.what != Running::nothing)
    fault("%s called by %s", function, current.describe().c_str());
  lock.lock();
  locked_ = true;
  static bool started = (start(), true);
  (void)started;
  if (settings().order == Order::random) run_some();
  refused = sticky();
  if (refused == cudaSuccess)
    refused = injected(function, strstr(function, "lloc") ? cudaErrorMemoryAllocation
                                                          : cudaErrorUnknown);
}

Entry::~Entry() {
  if (locked_) lock.unlock();
}

extern "C" cudaError_t cudaPeekAtLastError(void) {
  return sticky() != cudaSuccess ? sticky() : last_error;
}

extern "C" cudaError_t cudaGetLastError(void) {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

extern "C" const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NAME(name, value, text) \
  case name: return #name;
    CUDAEMUL_ERRORS(NAME)
#undef NAME
  default: return "unrecognized error code";
  }
}

extern "C" const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define TEXT(name, value, text) \
  case name: return text " (emulated)";
    CUDAEMUL_ERRORS(TEXT)
#undef TEXT
  default: return "unrecognized error code";
  }
}

}  // namespace emul

using namespace emul;

/* *** Counters */

/* Also for functions that run in a stream, whose thread has the lock. */
static std::unique_lock<std::mutex> guard() {
  return current.what == Running::nothing ? std::unique_lock<std::mutex>(lock)
                                          : std::unique_lock<std::mutex>();
}

extern "C" unsigned long long cudaemul_counter(const char *name) {
  const auto guarded = guard();
  for (auto &i : counter_names)
    if (!strcmp(i.name, name)) return counters.*i.value;
  return ~0ull;
}

extern "C" void cudaemul_reset_counters(void) {
  const auto guarded = guard();
  for (auto &i : counter_names)
    if (!i.kept) counters.*i.value = 0;
  counters.peak_bytes = counters.live_bytes;
}

/* *** Devices */

extern "C" cudaError_t cudaGetDeviceCount(int *count) {
  ENTER();
  if (!count) return refuse(cudaErrorInvalidValue, "cudaGetDeviceCount: NULL");
  *count = settings().devices;
  return *count ? cudaSuccess : refuse(cudaErrorNoDevice, "CUDAEMUL_DEVICES is 0");
}

extern "C" cudaError_t cudaGetDevice(int *device) {
  ENTER();
  if (!device) return refuse(cudaErrorInvalidValue, "cudaGetDevice: NULL");
  *device = current_device();
  return settings().devices ? cudaSuccess
                            : refuse(cudaErrorNoDevice, "CUDAEMUL_DEVICES is 0");
}

static bool there_is(int device) { return device >= 0 && device < settings().devices; }

extern "C" cudaError_t cudaSetDevice(int chosen) {
  ENTER();
  if (!there_is(chosen))
    return refuse(cudaErrorInvalidDevice, "cudaSetDevice: %d", chosen);
  device = chosen;
  return cudaSuccess;
}

static cudaDeviceProp properties_of(int device) {
  cudaDeviceProp p = {};
  snprintf(p.name, sizeof(p.name), "emulated device %d", device);
  p.totalGlobalMem = settings().memory;
  p.sharedMemPerBlock = 48 << 10;
  p.regsPerBlock = 65536;
  p.warpSize = warpSize;
  p.memPitch = 0x7FFFFFFF;
  p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7FFFFFFF;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.major = 8;
  p.textureAlignment = 512;
  p.multiProcessorCount = 4;
  p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = 1;
  p.asyncEngineCount = 2;
  p.memoryBusWidth = 64;
  p.l2CacheSize = 1 << 20;
  p.maxThreadsPerMultiProcessor = 2048;
  p.pciBusID = device + 1;
  return p;
}

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  ENTER();
  if (!properties || !there_is(device))
    return refuse(properties ? cudaErrorInvalidDevice : cudaErrorInvalidValue,
                  "cudaGetDeviceProperties: device %d", device);
  *properties = properties_of(device);
  return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute,
                                              int device) {
  ENTER();
  if (!value || !there_is(device))
    return refuse(value ? cudaErrorInvalidDevice : cudaErrorInvalidValue,
                  "cudaDeviceGetAttribute: device %d", device);
  const cudaDeviceProp p = properties_of(device);
  const std::map<int, size_t> values = {
      {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
      {cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1]},
      {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
      {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
      {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
      {cudaDevAttrMaxGridDimZ, p.maxGridSize[2]},
      {cudaDevAttrMaxSharedMemoryPerBlock, p.sharedMemPerBlock},
      {cudaDevAttrWarpSize, p.warpSize},
      {cudaDevAttrMaxPitch, p.memPitch},
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrIntegrated, p.integrated},
      {cudaDevAttrCanMapHostMemory, p.canMapHostMemory},
      {cudaDevAttrConcurrentKernels, p.concurrentKernels},
      {cudaDevAttrAsyncEngineCount, p.asyncEngineCount},
      {cudaDevAttrUnifiedAddressing, p.unifiedAddressing},
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrManagedMemory, 0},
      {cudaDevAttrPageableMemoryAccess, 0},
      {cudaDevAttrConcurrentManagedAccess, 0},
      {cudaDevAttrMemoryPoolsSupported, 0},
  };
  const auto found = values.find(attribute);
  if (found == values.end())
    return refuse(cudaErrorInvalidValue, "cudaDeviceGetAttribute: %d", int(attribute));
  *value = int(found->second);
  return cudaSuccess;
}

extern "C" cudaError_t cudaRuntimeGetVersion(int *version) {
  if (!version) return refuse(cudaErrorInvalidValue, "cudaRuntimeGetVersion: NULL");
  *version = CUDART_VERSION;
  return cudaSuccess;
}

extern "C" cudaError_t cudaDriverGetVersion(int *version) {
  return cudaRuntimeGetVersion(version);
}
