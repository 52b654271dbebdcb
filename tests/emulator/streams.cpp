/*
 * streams.cpp -- queues of work, in which order it runs, and events.
 *
 * Work gets a number when it is queued. It may run when its predecessors in its stream
 * have, what it waits for has, and the rule of the legacy default stream is met: this one
 * and the other streams, unless created with cudaStreamNonBlocking, wait for each other.
 * All of that has smaller numbers, so that there is always something that may run.
 */
#include "emulator.h"

#include <chrono>
#include <unordered_set>
#include <vector>

using emul::Point;

struct CUstream_st {
  int device;
  bool legacy, blocking;
  std::deque<emul::Operation> queue;
};

struct CUevent_st {
  bool timing;
  Point recorded;
  std::shared_ptr<double> time;  // in milliseconds, set by the work
};

namespace emul {

namespace {

uint64_t last_sequence;

/* Handles that are valid. Objects are never freed, so that no address comes twice. */
std::unordered_set<CUstream_st *> &streams = *new std::unordered_set<CUstream_st *>;
std::unordered_set<CUevent_st *> &events = *new std::unordered_set<CUevent_st *>;
/* Those with work, by age of the last time that they had none. */
std::vector<CUstream_st *> &busy = *new std::vector<CUstream_st *>;

CUstream_st *legacy_stream(int device) {
  static std::vector<CUstream_st *> &all = *new std::vector<CUstream_st *>;
  while (all.size() <= size_t(device))
    all.push_back(new CUstream_st{int(all.size()), true, false, {}});
  return all[device];
}

/* What the first in the stream's queue still has to wait for. */
bool blocked(const CUstream_st *stream, Point *by) {
  const Operation &first = stream->queue.front();
  if (!first.after.reached()) {
    *by = first.after;
    return true;
  }
  if (!stream->legacy && !stream->blocking) return false;
  for (CUstream_st *other : busy) {
    if (other->device != stream->device) continue;
    if (stream->legacy ? !other->blocking : !other->legacy) continue;
    const Point before = {other, first.sequence - 1};
    if (!before.reached()) {
      *by = before;
      return true;
    }
  }
  return false;
}

void run_first(CUstream_st *stream) {
  const Operation &first = stream->queue.front();
  if (first.run) {
    counters.operations++;
    current = {first.what, first.name.c_str()};
    open_memory(first.what == Running::host_function ? -2 : first.device);
    first.run();
    check_opened(current.describe());
    current = {Running::nothing, nullptr};
  }
  if (sticky() != cudaSuccess) return drop_work();
  stream->queue.pop_front();
  if (!stream->queue.empty()) return;
  for (size_t i = 0; i < busy.size(); i++)
    if (busy[i] == stream) {
      busy.erase(busy.begin() + i);
      break;
    }
}

/* No more than necessary, and in this sense as late as possible. */
void run_needed(const Point &point) {
  std::vector<Point> targets{point};
  while (!targets.empty()) {
    Point target = targets.back(), obstacle;
    if (target.reached())
      targets.pop_back();
    else if (blocked(target.stream, &obstacle))
      targets.push_back(obstacle);
    else
      run_first(target.stream);
  }
}

/* Mostly from the same stream as the last time, so that it may get far ahead. */
void run_any() {
  static CUstream_st *favourite = nullptr;
  Point obstacle;
  if (!favourite || favourite->queue.empty() || blocked(favourite, &obstacle) || !draw(4))
    do {
      favourite = busy[draw(busy.size())];
    } while (blocked(favourite, &obstacle));
  run_first(favourite);
}

/* The streams whose last work is the youngest come first: often it is what should have
   waited. */
void finish_where(bool all) {
  while (true) {
    Point latest;
    for (CUstream_st *stream : busy)
      if ((all || stream->device == current_device()) &&
          stream->queue.back().sequence > latest.sequence)
        latest = {stream, stream->queue.back().sequence};
    if (!latest.stream) return;
    finish(latest);
  }
}

Point end_of(CUstream_st *stream) { return {stream, last_sequence}; }

double now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

bool Point::reached() const {
  return !stream || stream->queue.empty() || stream->queue.front().sequence > sequence;
}

int device_of(const CUstream_st *stream) { return stream->device; }

CUstream_st *find_stream(cudaStream_t handle) {
  if (!handle || handle == cudaStreamLegacy) return legacy_stream(current_device());
  return streams.count(handle) ? handle : nullptr;
}

Point enqueue(CUstream_st *stream, Operation operation) {
  operation.sequence = ++last_sequence;
  if (stream->queue.empty()) busy.push_back(stream);
  stream->queue.push_back(std::move(operation));
  const Point point = {stream, last_sequence};
  if (settings().order == Order::eager) finish(point);
  return point;
}

void finish(const Point &point) {
  if (point.reached()) return;
  OpenMemory open;
  if (settings().order == Order::random)
    while (!point.reached()) run_any();
  else
    run_needed(point);
}

/* Of the legacy stream, this waits for what the next work in it would wait for. */
void synchronize(CUstream_st *stream) {
  if (stream->legacy) enqueue(stream, {Running::nothing, "", nullptr});
  finish(end_of(stream));
}

void finish_device() { finish_where(false); }
void finish_all() { finish_where(true); }

/* More or less often, depending on the seed. */
void run_some() {
  static const uint64_t rarity = 1 + draw(6);
  if (busy.empty() || draw(1 << rarity)) return;
  OpenMemory open;
  for (uint64_t count = 1 + draw(4); count-- && !busy.empty();) run_any();
}

bool touches(const std::vector<Operation::Range> &ranges, const char *pointer,
             size_t bytes) {
  for (auto &range : ranges)
    if (range.begin < pointer + bytes && pointer < range.begin + range.bytes) return true;
  return false;
}

bool in_use(const char *pointer, size_t bytes) {
  for (CUstream_st *stream : busy)
    for (const Operation &i : stream->queue)
      if (touches(i.reads, pointer, bytes) || touches(i.writes, pointer, bytes))
        return true;
  return false;
}

/* Of host functions nobody knows what they read. */
void after_readers(const char *pointer, size_t bytes, std::function<void()> action) {
  auto left = std::make_shared<size_t>(1);
  auto step = [=] {
    if (!--*left) action();
  };
  for (CUstream_st *stream : busy)
    for (Operation &i : stream->queue) {
      if (i.what != Running::host_function && !touches(i.reads, pointer, bytes)) continue;
      ++*left;
      i.run = [run = std::move(i.run), step] {
        run();
        step();
      };
    }
  step();
}

void drop_work() {
  for (CUstream_st *stream : busy) stream->queue.clear();
  busy.clear();
}

size_t pending_work() {
  size_t count = 0;
  for (CUstream_st *stream : busy) count += stream->queue.size();
  return count;
}

}  // namespace emul

using namespace emul;

/* What the interface does with a handle that is none. */
#define STREAM(variable, handle) \
  CUstream_st *variable = find_stream(handle); \
  if (!variable) \
    return refuse(cudaErrorInvalidResourceHandle, "%s: not a stream: %p", __func__, \
                  static_cast<void *>(handle))
#define EVENT(handle) \
  if (!events.count(handle)) \
    return refuse(cudaErrorInvalidResourceHandle, "%s: not an event: %p", __func__, \
                  static_cast<void *>(handle))

static cudaError_t create_stream(cudaStream_t *stream, unsigned int flags) {
  if (!stream || flags > cudaStreamNonBlocking)
    return refuse(cudaErrorInvalidValue, "creation of a stream: flags are %u", flags);
  *stream = new CUstream_st{current_device(), false, !(flags & cudaStreamNonBlocking),
                            {}};
  streams.insert(*stream);
  counters.live_streams++;
  return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  ENTER();
  return create_stream(stream, cudaStreamDefault);
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream,
                                                 unsigned int flags) {
  ENTER();
  return create_stream(stream, flags);
}

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream,
                                                    unsigned int flags, int) {
  ENTER();
  return create_stream(stream, flags);
}

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  ENTER();
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

/* Its work goes on. */
extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER();
  if (!streams.erase(stream))
    return refuse(cudaErrorInvalidResourceHandle, "cudaStreamDestroy: not a stream: %p",
                  static_cast<void *>(stream));
  counters.live_streams--;
  return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ENTER();
  STREAM(stream, handle);
  counters.synchronizations++;
  synchronize(stream);
  return note(sticky());
}

extern "C" cudaError_t cudaDeviceSynchronize(void) {
  ENTER();
  counters.synchronizations++;
  finish_device();
  return note(sticky());
}

/* Those who poll must see progress, but not at once. */
static cudaError_t query(const Point &point) {
  if (point.reached()) return cudaSuccess;
  Point target = point, obstacle;
  while (blocked(target.stream, &obstacle)) target = obstacle;
  OpenMemory open;
  run_first(target.stream);
  return note(cudaErrorNotReady);
}

extern "C" cudaError_t cudaStreamQuery(cudaStream_t handle) {
  ENTER();
  STREAM(stream, handle);
  return query(end_of(stream));
}

extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event,
                                           unsigned int flags) {
  ENTER();
  STREAM(stream, handle);
  EVENT(event);
  if (flags > 1) return refuse(cudaErrorInvalidValue, "cudaStreamWaitEvent: flags");
  /* Nothing to wait for is no error; but scarcely what was meant. */
  if (!event->recorded.stream) {
    counters.unrecorded_waits++;
    return cudaSuccess;
  }
  counters.events_waited++;
  enqueue(stream, {Running::nothing, "", nullptr, event->recorded});
  return cudaSuccess;
}

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function,
                                          void *data) {
  ENTER();
  STREAM(stream, handle);
  if (!function) return refuse(cudaErrorInvalidValue, "cudaLaunchHostFunc: NULL");
  counters.host_functions++;
  enqueue(stream, {Running::host_function, "cudaLaunchHostFunc",
                   [=] { function(data); }});
  return cudaSuccess;
}

static cudaError_t create_event(cudaEvent_t *event, unsigned int flags) {
  if (!event || flags > 7)
    return refuse(cudaErrorInvalidValue, "creation of an event: flags are %u", flags);
  *event = new CUevent_st{!(flags & cudaEventDisableTiming), {}, nullptr};
  events.insert(*event);
  counters.live_events++;
  return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *event) {
  ENTER();
  return create_event(event, cudaEventDefault);
}

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  ENTER();
  return create_event(event, flags);
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER();
  EVENT(event);
  events.erase(event);
  counters.live_events--;
  return cudaSuccess;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  ENTER();
  STREAM(stream, handle);
  EVENT(event);
  counters.events_recorded++;
  auto time = std::make_shared<double>(0);
  event->time = time;
  event->recorded = enqueue(stream, {Running::nothing, "cudaEventRecord",
                                     [time] { *time = now(); }});
  return cudaSuccess;
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER();
  EVENT(event);
  counters.synchronizations++;
  finish(event->recorded);
  return note(sticky());
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER();
  EVENT(event);
  return query(event->recorded);
}

extern "C" cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start,
                                            cudaEvent_t end) {
  ENTER();
  EVENT(start);
  EVENT(end);
  if (!milliseconds) return refuse(cudaErrorInvalidValue, "cudaEventElapsedTime: NULL");
  if (!start->timing || !end->timing || !start->time || !end->time)
    return refuse(cudaErrorInvalidResourceHandle,
                  "cudaEventElapsedTime: without timing, or not recorded");
  if (!start->recorded.reached() || !end->recorded.reached())
    return note(cudaErrorNotReady);
  *milliseconds = float(*end->time - *start->time);
  return cudaSuccess;
}
