/*
 * copies.cpp -- copies and memset.
 *
 * How they behave towards the host is what NVIDIA documents under "API synchronization
 * behavior", in each case the least that is promised: memory that is not pinned is read
 * before a call returns and written before it returns; pinned memory is read and written
 * when the work runs. With CUDAEMUL_PAGEABLE=direct, all memory of the host is like pinned
 * memory, as it may be for devices that access the host's page tables.
 */
#include "emulator.h"

#include <cstring>
#include <vector>

using namespace emul;

namespace {

struct Copy {
  const char *name;
  char *to;
  size_t to_pitch;
  const char *from;
  size_t from_pitch;
  size_t width, height;
  cudaMemcpyKind kind;

  size_t to_extent() const { return (height - 1) * to_pitch + width; }
  size_t from_extent() const { return (height - 1) * from_pitch + width; }
  void run() const {
    for (size_t i = 0; i < height; i++)
      memmove(to + i * to_pitch, from + i * from_pitch, width);
  }
};

/* Work that makes the copy. Until then, the contents of pinned memory are unspecified;
   but what was queued before may still read them. */
std::function<void()> copying(const Copy &copy, bool spoil) {
  if (!spoil) return [copy] { copy.run(); };
  auto done = std::make_shared<bool>(false);
  after_readers(copy.to, copy.to_extent(), [copy, done] {
    if (*done) return;
    for (size_t i = 0; i < copy.height; i++)
      memset(copy.to + i * copy.to_pitch, 0xFF, copy.width);
  });
  return [copy, done] {
    copy.run();
    *done = true;
  };
}

bool fits(Where where, bool device) {
  return device ? where == Where::device || where == Where::pinned
                : where == Where::pageable || where == Where::pinned;
}

cudaError_t check(const Copy &copy, Where to, Where from) {
  if (copy.kind < cudaMemcpyHostToHost || copy.kind > cudaMemcpyDefault)
    return refuse(cudaErrorInvalidMemcpyDirection, "%s: kind is %d", copy.name,
                  int(copy.kind));
  if (copy.height > 1 && (copy.width > copy.to_pitch || copy.width > copy.from_pitch))
    return refuse(cudaErrorInvalidPitchValue, "%s: width %zu, pitches %zu and %zu",
                  copy.name, copy.width, copy.to_pitch, copy.from_pitch);
  if (to == Where::invalid)
    return refuse(cudaErrorInvalidValue, "%s: destination: %s", copy.name,
                  why_invalid(copy.to, copy.to_extent()).c_str());
  if (from == Where::invalid)
    return refuse(cudaErrorInvalidValue, "%s: source: %s", copy.name,
                  why_invalid(copy.from, copy.from_extent()).c_str());
  if (copy.kind == cudaMemcpyDefault) return cudaSuccess;
  const bool to_device = copy.kind & 1, from_device = copy.kind & 2;
  if (fits(to, to_device) && fits(from, from_device)) return cudaSuccess;
  return refuse(cudaErrorInvalidValue, "%s: the pointers are not of kind %d", copy.name,
                int(copy.kind));
}

void count(Where to, Where from, size_t bytes) {
  const bool to_device = to == Where::device, from_device = from == Where::device;
  (to_device ? from_device ? counters.d2d_copies : counters.h2d_copies
             : from_device ? counters.d2h_copies : counters.h2h_copies)++;
  (to_device ? from_device ? counters.d2d_bytes : counters.h2d_bytes
             : from_device ? counters.d2h_bytes : counters.h2h_bytes) += bytes;
  counters.pageable_copies += to == Where::pageable || from == Where::pageable;
}

cudaError_t start(Copy copy, cudaStream_t handle, bool blocking) {
  CUstream_st *stream = find_stream(handle);
  if (!stream)
    return refuse(cudaErrorInvalidResourceHandle, "%s: not a stream", copy.name);
  if (!copy.width || !copy.height) return cudaSuccess;
  if (copy.height == 1) copy.to_pitch = copy.from_pitch = copy.width;

  const Where to = locate(copy.to, copy.to_extent());
  const Where from = locate(copy.from, copy.from_extent());
  const cudaError_t error = check(copy, to, from);
  if (error != cudaSuccess) return error;
  count(to, from, copy.width * copy.height);
  counters.blocking_copies += blocking;

  const bool on_host = to != Where::device && from != Where::device;
  const bool on_device = to == Where::device && from == Where::device;
  const bool direct = settings().pageable == Pageable::direct;
  const bool staged = from == Where::pageable && !on_host && !direct;
  const bool wait = (to == Where::pageable && !direct) || on_host ||
                    (blocking && !on_device && !staged);

  Operation operation{Running::copy, copy.name, nullptr};
  if (staged && blocking) synchronize(stream);
  if (staged) {
    /* The caller may overwrite it, and the work is yet to be done. */
    auto stage = std::make_shared<std::vector<char>>(copy.width * copy.height);
    Copy in = copy, out = copy;
    in.to = stage->data();
    out.from = stage->data();
    in.to_pitch = out.from_pitch = copy.width;
    in.run();
    operation.run = [out, stage] { out.run(); };
  } else {
    if (from != Where::device)
      operation.reads.push_back({copy.from, copy.from_extent()});
    operation.run = copying(copy, to != Where::device && !wait);
  }
  if (to != Where::device) operation.writes.push_back({copy.to, copy.to_extent()});
  const Point point = enqueue(stream, std::move(operation));
  if (wait) finish(point);
  return note(sticky());
}

cudaError_t set(const char *name, void *pointer, int value, size_t bytes,
                cudaStream_t handle, bool blocking) {
  CUstream_st *stream = find_stream(handle);
  if (!stream) return refuse(cudaErrorInvalidResourceHandle, "%s: not a stream", name);
  if (!bytes) return cudaSuccess;
  const Where where = locate(pointer, bytes);
  if (!fits(where, true))
    return refuse(cudaErrorInvalidValue, "%s: not memory of a device: %s", name,
                  where == Where::pageable ? "host memory"
                                           : why_invalid(pointer, bytes).c_str());
  counters.memsets++;
  const Point point = enqueue(
      stream, {Running::copy, name, [=] { memset(pointer, value, bytes); }});
  if (blocking && where == Where::pinned) finish(point);
  return note(sticky());
}

Copy linear(const char *name, void *to, const void *from, size_t bytes,
            cudaMemcpyKind kind) {
  return {name, static_cast<char *>(to), bytes, static_cast<const char *>(from), bytes,
          bytes, 1, kind};
}

}  // namespace

extern "C" cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
                                  cudaMemcpyKind kind) {
  ENTER();
  return start(linear(__func__, to, from, bytes, kind), nullptr, true);
}

extern "C" cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                       cudaMemcpyKind kind, cudaStream_t stream) {
  ENTER();
  return start(linear(__func__, to, from, bytes, kind), stream, false);
}

extern "C" cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from,
                                    size_t from_pitch, size_t width, size_t height,
                                    cudaMemcpyKind kind) {
  ENTER();
  return start({__func__, static_cast<char *>(to), to_pitch,
                static_cast<const char *>(from), from_pitch, width, height, kind},
               nullptr, true);
}

extern "C" cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                                         size_t from_pitch, size_t width, size_t height,
                                         cudaMemcpyKind kind, cudaStream_t stream) {
  ENTER();
  return start({__func__, static_cast<char *>(to), to_pitch,
                static_cast<const char *>(from), from_pitch, width, height, kind},
               stream, false);
}

extern "C" cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
  ENTER();
  return set(__func__, pointer, value, bytes, nullptr, true);
}

extern "C" cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes,
                                       cudaStream_t stream) {
  ENTER();
  return set(__func__, pointer, value, bytes, stream, false);
}
