/*
 * memory.cpp -- memory of devices, and pinned memory.
 *
 * Both come from a large piece of address space that nobody can access. An allocation
 * opens some pages of it, far from others, and closes them for good when it is freed:
 * no address is ever used again. Memory of devices is open only while work runs.
 */
#include "emulator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

namespace emul {

std::atomic<Allocation *> newest_allocation{nullptr};

namespace {

constexpr size_t page = 4096;
constexpr size_t alignment = 256;
/* Wide enough for a stencil that leaves its array by some rows. */
constexpr size_t gap = size_t(16) << 20;
constexpr size_t arena_bytes = size_t(1) << 40;
/* NaNs both of them, in either precision. */
constexpr unsigned char poison = 0xFF;
constexpr uint32_t canary = 0xFFFFC5A3;

struct Arena {
  char *begin, *end, *next;
};
std::vector<Arena> &arenas = *new std::vector<Arena>;
/* By address; those that are live. */
std::map<const char *, Allocation *> &live = *new std::map<const char *, Allocation *>;
size_t live_bytes[64];
int next_id;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* So many bytes of address space, preceded and followed by a gap; NULL if there are
   none. */
char *reserve(size_t bytes) {
  if (arenas.empty() || bytes + 2 * gap > size_t(arenas.back().end - arenas.back().next)) {
    const size_t size = bytes + 2 * gap > arena_bytes ? bytes + 2 * gap : arena_bytes;
    void *memory = mmap(nullptr, size, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    char *begin = static_cast<char *>(memory);
    arenas.push_back({begin, begin + size, begin});
  }
  Arena &arena = arenas.back();
  char *memory = arena.next + gap;
  arena.next = memory + bytes;
  return memory;
}

/* The words of canaries before (low to base) and after (end to high). */
uint32_t *word(const char *at) {
  return reinterpret_cast<uint32_t *>(reinterpret_cast<uintptr_t>(at));
}

char *end_of_words(const Allocation &a) {
  return a.base + round_up(a.bytes, sizeof(canary));
}

void plant_canaries(const Allocation &a) {
  for (char *i = a.low; i < a.base; i += sizeof(canary)) *word(i) = canary;
  for (char *i = end_of_words(a); i < a.high; i += sizeof(canary)) *word(i) = canary;
}

/* Up to three bytes, between the end and the first word, are poison. */
const char *dead_canary(const Allocation &a) {
  for (char *i = a.base; i > a.low;)
    if (*word(i -= sizeof(canary)) != canary) return i;
  for (char *i = a.base + a.bytes; i < end_of_words(a); i++)
    if (static_cast<unsigned char>(*i) != poison) return i;
  for (char *i = end_of_words(a); i < a.high; i += sizeof(canary))
    if (*word(i) != canary) return i;
  return nullptr;
}

Allocation *track(Allocation::Kind kind, char *base, size_t bytes, char *low, char *high) {
  auto *a = new Allocation{kind, base, bytes, low, high, ++next_id, current_device(),
                           {true}, newest_allocation};
  newest_allocation = a;
  live[base] = a;
  if (kind == Allocation::device_memory) {
    live_bytes[a->device] += bytes;
    counters.allocations++;
    counters.live_allocations++;
    counters.live_bytes += bytes;
    if (counters.peak_bytes < counters.live_bytes)
      counters.peak_bytes = counters.live_bytes;
  } else {
    counters.live_pinned++;
    counters.pinned_bytes += bytes;
  }
  return a;
}

void forget(Allocation *a) {
  a->live = false;
  live.erase(a->base);
  if (a->kind == Allocation::device_memory) {
    live_bytes[a->device] -= a->bytes;
    counters.live_allocations--;
    counters.live_bytes -= a->bytes;
  } else {
    counters.live_pinned--;
    counters.pinned_bytes -= a->bytes;
  }
}

Allocation *allocate(Allocation::Kind kind, size_t bytes) {
  const size_t rounded = round_up(bytes, alignment), span = round_up(rounded, page);
  char *low = reserve(span);
  if (!low || mprotect(low, span, PROT_READ | PROT_WRITE)) return nullptr;
  char *base = settings().guard_before ? low : low + span - rounded;
  Allocation *a = track(kind, base, bytes, low, low + span);
  plant_canaries(*a);
  memset(base, poison, end_of_words(*a) - base);
  if (kind == Allocation::device_memory) mprotect(low, span, PROT_NONE);
  return a;
}

/* Gives the pages back, and keeps anyone from the addresses. */
void release(Allocation *a) {
  forget(a);
  mmap(a->low, a->high - a->low, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

Allocation *starting_at(const void *pointer) {
  auto i = live.find(static_cast<const char *>(pointer));
  return i == live.end() ? nullptr : i->second;
}

/* Of which device memory is open: none (-2), all (-1). */
int opened = -2;

void protect(int device, int rights) {
  for (auto &i : live) {
    Allocation *a = i.second;
    if (a->kind == Allocation::device_memory && (device < 0 || device == a->device))
      mprotect(a->low, a->high - a->low, rights);
  }
}

}  // namespace

OpenMemory::OpenMemory() {
  /* Whatever happened to pinned memory by now was not work. */
  open_memory(-1);
  check_canaries("by the host");
}

OpenMemory::~OpenMemory() { open_memory(-2); }

void open_memory(int device) {
  if (device >= 0 && settings().devices == 1) device = -1;
  if (device == opened) return;
  if (opened != -2) protect(opened, PROT_NONE);
  opened = device;
  if (opened != -2) protect(opened, PROT_READ | PROT_WRITE);
}

void check_canaries(const std::string &by) {
  for (auto &i : live) {
    const Allocation &a = *i.second;
    if (a.kind == Allocation::registered) continue;
    if (a.kind == Allocation::device_memory && opened != -1 && opened != a.device) continue;
    if (const char *at = dead_canary(a)) {
      const bool before = at < a.base;
      fault("out of bounds: write %zu bytes %s %s, %s",
            size_t(before ? a.base - at : at - (a.base + a.bytes)),
            before ? "before" : "after the end of", a.describe().c_str(), by.c_str());
    }
  }
}

bool in_arena(const void *pointer) {
  const char *p = static_cast<const char *>(pointer);
  for (auto &arena : arenas)
    if (arena.begin <= p && p < arena.end) return true;
  return false;
}

Where locate(const void *pointer, size_t bytes, Allocation **found) {
  const char *p = static_cast<const char *>(pointer);
  if (!p || p + bytes < p) return Where::invalid;
  auto i = live.upper_bound(p);
  if (i != live.begin()) {
    Allocation *a = std::prev(i)->second;
    if (p < a->base + a->bytes) {
      if (bytes > size_t(a->base + a->bytes - p)) return Where::invalid;
      if (found) *found = a;
      return a->kind == Allocation::device_memory ? Where::device : Where::pinned;
    }
  }
  /* Neither freed, nor partly pinned. */
  if (in_arena(p) || (i != live.end() && i->first < p + bytes)) return Where::invalid;
  return Where::pageable;
}

std::string why_invalid(const void *pointer, size_t bytes) {
  char text[160];
  const char *p = static_cast<const char *>(pointer);
  if (!p) return "NULL";
  const Allocation *nearest = nullptr;
  for (const Allocation *a = newest_allocation; a; a = a->older)
    if (a->low <= p + bytes && p <= a->high && (!nearest || a->live)) nearest = a;
  if (!nearest) {
    snprintf(text, sizeof(text), "%p and %zu bytes, far from any allocation", pointer,
             bytes);
    return text;
  }
  snprintf(text, sizeof(text), "%zu bytes at offset %td of ", bytes, p - nearest->base);
  return text + nearest->describe();
}

std::string Allocation::describe() const {
  char text[128];
  snprintf(text, sizeof(text), "allocation %d (%zu bytes of %s%s)", id, bytes,
           kind_name(kind), live ? "" : ", freed");
  return text;
}

void list_leaks() {
  for (auto &i : live)
    fprintf(stderr, "%sleaked: %s\n", prefix, i.second->describe().c_str());
}

}  // namespace emul

using namespace emul;

extern "C" cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  ENTER();
  if (!pointer) return refuse(cudaErrorInvalidValue, "cudaMalloc: pointer is NULL");
  *pointer = nullptr;
  if (!bytes) return cudaSuccess;
  const size_t left = settings().memory - live_bytes[current_device()];
  if (bytes > left)
    return refuse(cudaErrorMemoryAllocation, "cudaMalloc: %zu bytes, %zu are left", bytes,
                  left);
  Allocation *a = allocate(Allocation::device_memory, bytes);
  if (!a) return refuse(cudaErrorMemoryAllocation, "cudaMalloc: no memory on the host");
  *pointer = a->base;
  return cudaSuccess;
}

static cudaError_t free_memory(void *pointer, Allocation::Kind kind, const char *name) {
  if (!pointer) return cudaSuccess;
  Allocation *a = starting_at(pointer);
  if (!a || a->kind != kind)
    return refuse(cudaErrorInvalidValue, "%s: %s", name, why_invalid(pointer, 0).c_str());
  /* As the real ones do: queued work may use it. */
  finish_all();
  {
    OpenMemory open;  // for a last look at the canaries
  }
  release(a);
  return cudaSuccess;
}

extern "C" cudaError_t cudaFree(void *pointer) {
  ENTER();
  return free_memory(pointer, Allocation::device_memory, __func__);
}

extern "C" cudaError_t cudaFreeHost(void *pointer) {
  ENTER();
  return free_memory(pointer, Allocation::pinned, __func__);
}

extern "C" cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
  ENTER();
  if (!pointer || flags > 7)
    return refuse(cudaErrorInvalidValue, "cudaHostAlloc: pointer or flags");
  *pointer = nullptr;
  if (!bytes) return cudaSuccess;
  Allocation *a = allocate(Allocation::pinned, bytes);
  if (!a) return refuse(cudaErrorMemoryAllocation, "cudaHostAlloc: %zu bytes", bytes);
  *pointer = a->base;
  return cudaSuccess;
}

extern "C" cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

extern "C" cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int) {
  ENTER();
  if (!pointer || !bytes)
    return refuse(cudaErrorInvalidValue, "cudaHostRegister: %p, %zu bytes", pointer, bytes);
  if (locate(pointer, bytes) != Where::pageable)
    return refuse(cudaErrorHostMemoryAlreadyRegistered, "cudaHostRegister: %s",
                  why_invalid(pointer, bytes).c_str());
  char *base = static_cast<char *>(pointer);
  track(Allocation::registered, base, bytes, base, base + bytes);
  return cudaSuccess;
}

extern "C" cudaError_t cudaHostUnregister(void *pointer) {
  ENTER();
  Allocation *a = starting_at(pointer);
  if (!a || a->kind != Allocation::registered)
    return refuse(cudaErrorHostMemoryNotRegistered, "cudaHostUnregister: %p", pointer);
  finish_all();
  forget(a);
  return cudaSuccess;
}

extern "C" cudaError_t cudaHostGetDevicePointer(void **device, void *host,
                                                unsigned int flags) {
  ENTER();
  if (!device || flags || locate(host, 1) != Where::pinned)
    return refuse(cudaErrorInvalidValue, "cudaHostGetDevicePointer: not pinned: %p", host);
  *device = host;
  return cudaSuccess;
}

extern "C" cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                                const void *pointer) {
  ENTER();
  if (!attributes) return refuse(cudaErrorInvalidValue, "cudaPointerGetAttributes: NULL");
  Allocation *a = nullptr;
  const Where where = locate(pointer, 1, &a);
  void *value = const_cast<void *>(pointer);
  *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, nullptr};
  if (where == Where::device)
    *attributes = {cudaMemoryTypeDevice, a->device, value, nullptr};
  else if (where == Where::pinned)
    *attributes = {cudaMemoryTypeHost, a->device, value, value};
  return cudaSuccess;
}

extern "C" cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  ENTER();
  if (!available || !total) return refuse(cudaErrorInvalidValue, "cudaMemGetInfo: NULL");
  *total = settings().memory;
  *available = *total - live_bytes[current_device()];
  return cudaSuccess;
}
