/*
 * emulator.h -- what the parts of libcudaemul.so know of each other.
 *
 * One lock protects everything; Entry takes it at the door of each function of the
 * interface. Work runs under it, on the thread of whoever waits for the work.
 */
#ifndef EMULATOR_H
#define EMULATOR_H

#include "cuda_runtime.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace emul {

/* *** Settings: the environment variables CUDAEMUL_* */

enum class Order { lazy, eager, random };
enum class Threads { forward, reverse, shuffle };

struct Settings {
  Order order;
  Threads threads;
  uint64_t seed;
  size_t memory;  // of a device
  int devices;
  bool guard_before, report, verbose;
  std::string fail;  // NAME:COUNT[:CODE]
};
const Settings &settings();

uint64_t draw(uint64_t below);  // a random number

/* *** Counters */

struct Counters {
  uint64_t launches, threads, host_functions, memsets;
  uint64_t h2d_bytes, d2h_bytes, d2d_bytes, h2h_bytes;
  uint64_t h2d_copies, d2h_copies, d2d_copies, h2h_copies;
  uint64_t pageable_copies, blocking_copies, synchronizations;
  uint64_t allocations, live_allocations, live_bytes, peak_bytes;
  uint64_t live_pinned, pinned_bytes;
  uint64_t events_recorded, events_waited, unrecorded_waits;
  uint64_t live_streams, live_events, operations;
};
extern Counters counters;

/* *** Errors */

class Entry {
 public:
  explicit Entry(const char *function);
  ~Entry();
  Entry(const Entry &) = delete;
  cudaError_t refused;  // unless cudaSuccess, to be returned at once
 private:
  bool locked_ = false;
};

#define ENTER() \
  emul::Entry entry_(__func__); \
  if (entry_.refused != cudaSuccess) return emul::note(entry_.refused)

/* Makes it the last error of this thread. */
cudaError_t note(cudaError_t error);
/* ... and, if CUDAEMUL_VERBOSE is set, says why. */
cudaError_t refuse(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* An error of work: of all calls from now on. */
void set_sticky(cudaError_t error);
cudaError_t sticky();
/* Whether CUDAEMUL_FAIL wants this call to fail, and how. */
cudaError_t injected(const char *name, cudaError_t usual);

int current_device();

/* *** Faults end the process */

constexpr int fault_status = 86;
constexpr const char *prefix = "emulated CUDA: ";

[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
void install_handler();

/* What this process runs at present, for messages. */
enum class Running { nothing, kernel, copy, host_function };
struct Current {
  Running what;
  const char *name;
  std::string describe() const;
};
extern thread_local Current current;

/* *** Memory */

struct Allocation {
  enum Kind { device_memory, pinned, registered } kind;
  char *base;  // what the caller has
  size_t bytes;
  char *low, *high;  // the pages, between guards
  int id, device;
  std::atomic<bool> live;
  Allocation *older;  // all there ever were, for the handler of signals

  std::string describe() const;
};
const char *kind_name(Allocation::Kind kind);
extern std::atomic<Allocation *> newest_allocation;

enum class Where { device, pinned, pageable, invalid };
/* Where so many bytes are. */
Where locate(const void *pointer, size_t bytes, Allocation **found = nullptr);
/* An explanation of Where::invalid. */
std::string why_invalid(const void *pointer, size_t bytes);
bool in_arena(const void *pointer);

/* While one exists, device memory can be accessed. */
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory &) = delete;
};
/* Lets work on that device begin; device < 0: on all. Within OpenMemory. */
void open_memory(int device);
/* Ends the process if bytes around allocations changed. */
void check_canaries(const std::string &by);
void list_leaks();

/* *** Streams */

/* A place in a stream; reached when what was queued up to there is done. */
struct Point {
  CUstream_st *stream = nullptr;
  uint64_t sequence = 0;
  bool reached() const;
};

struct Operation {
  Running what;
  std::string name;
  std::function<void()> run;
  Point after = {};  // besides its predecessor in the stream
  int device = -1;   // whose memory it accesses; < 0: all
  struct Range {
    const char *begin;
    size_t bytes;
  };
  std::vector<Range> reads = {};  // pinned memory, as far as known
  uint64_t sequence = 0;
};

Point enqueue(CUstream_st *stream, Operation operation);
void finish(const Point &point);
void synchronize(CUstream_st *stream);
void finish_device();  // all streams of the current device
void finish_all();
void run_some();       // in random order: work may run at any time
/* Whether queued work may read pinned memory there. */
bool may_be_read(const void *pointer, size_t bytes);
/* The stream for a handle, NULL if there is none. */
CUstream_st *find_stream(cudaStream_t handle);
int device_of(const CUstream_st *stream);
void drop_work();
size_t pending_work();

}  // namespace emul

#endif /* EMULATOR_H */
