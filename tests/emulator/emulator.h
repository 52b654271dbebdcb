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
enum class Pageable { staged, direct };

struct Settings {
  Order order;
  Threads threads;
  Pageable pageable;
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

/* A function, by its address, or any place in it. */
std::string name_of(const void *function);
/* ... as the linker calls it; without memory from the heap. */
void name_code(const void *address, char *text, size_t length);

/* What this thread runs at present, for messages. */
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
  void describe(char *text, size_t size) const;  // without memory from the heap
};
extern std::atomic<Allocation *> newest_allocation;

enum class Where { device, pinned, pageable, invalid };
/* Where so many bytes are. */
Where locate(const void *pointer, size_t bytes, Allocation **found = nullptr);
/* An explanation of Where::invalid. */
std::string why_invalid(const void *pointer, size_t bytes);
bool in_arena(const void *pointer);

/* While one exists, work can access device memory. */
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory &) = delete;
};
/* From now on, memory of that device; of all if < 0, of none if < -1. */
void open_memory(int device);
/* For the handler: opens what the address belongs to, if it may be accessed now. */
bool open_at(const void *address);
/* End the process if something was written around allocations. */
void check_opened(const std::string &by);
void check_pinned();
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
  std::vector<Range> reads = {}, writes = {};  // memory of the host, as far as known
  uint64_t sequence = 0;
};

Point enqueue(CUstream_st *stream, Operation operation);
void finish(const Point &point);
void synchronize(CUstream_st *stream);
void finish_device();  // all streams of the current device
void finish_all();
void run_some();       // in random order: work may run at any time
/* Whether queued work, as far as known, reads or writes that memory of the host. */
bool in_use(const char *pointer, size_t bytes);
/* Once no work that is queued now can read that memory of the host any more. */
void after_readers(const char *pointer, size_t bytes, std::function<void()> action);
/* The stream for a handle, NULL if there is none. */
CUstream_st *find_stream(cudaStream_t handle);
int device_of(const CUstream_st *stream);
void drop_work();
size_t pending_work();

}  // namespace emul

#endif /* EMULATOR_H */
