/*
 * memory.cpp -- memory of devices, and pinned memory.
 *
 * Both come from a large piece of address space that nobody can access. An allocation
 * opens some pages of it, far from others, and closes them for good when it is freed:
 * no address is ever used again. Memory of devices is open only while work runs, and of
 * that only what the work touches: the handler of faults opens it.
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

constexpr size_t page = 4096, large_page = size_t(2) << 20;
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
/* Reserved, as the handler may read it at any time. */
std::vector<Arena> &arenas = []() -> std::vector<Arena> & {
  auto *all = new std::vector<Arena>;
  all->reserve(size_t(1) << 10);
  return *all;
}();
/* By address; those that are live. */
std::map<const char *, Allocation *> &live = *new std::map<const char *, Allocation *>;
size_t live_bytes[64];
int next_id;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* So many bytes of address space, preceded and followed by a gap; NULL if there are
   none. */
char *reserve(size_t bytes) {
  const size_t needed = bytes + 2 * gap + large_page;
  if (arenas.empty() || needed > size_t(arenas.back().end - arenas.back().next)) {
    const size_t size = needed > arena_bytes ? needed : arena_bytes;
    void *memory = mmap(nullptr, size, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    char *begin = static_cast<char *>(memory);
    arenas.push_back({begin, begin + size, begin});
  }
  Arena &arena = arenas.back();
  /* Large pages are cheaper to open and to close. */
  const size_t boundary = bytes < large_page ? page : large_page;
  const uintptr_t memory = round_up(uintptr_t(arena.next) + gap, boundary);
  arena.next = reinterpret_cast<char *>(memory + bytes);
  return reinterpret_cast<char *>(memory);
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

Allocation *track(Allocation::Kind kind, char *base, size_t bytes, char *low,
                  char *high) {
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

/* Poisons whole pages. Those of large arrays are the same ones over and over, which
   become memory of their own when written to. */
bool poison_pages(char *begin, char *end) {
  constexpr size_t piece = size_t(32) << 20;
  static int file = -1;
  if (size_t(end - begin) < 8 * piece) {
    if (size_t(end - begin) >= large_page) madvise(begin, end - begin, MADV_HUGEPAGE);
    memset(begin, poison, end - begin);
    return true;
  }
  if (file < 0) {
    file = memfd_create("cudaemul", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, piece)) return false;
    void *memory = mmap(nullptr, piece, PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return false;
    memset(memory, poison, piece);
    munmap(memory, piece);
  }
  for (; begin < end; begin += piece) {
    const size_t size = size_t(end - begin) < piece ? size_t(end - begin) : piece;
    if (mmap(begin, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) ==
        MAP_FAILED)
      return false;
  }
  return true;
}

/* Gives the pages back, and keeps anyone from the addresses. */
void fence(char *low, size_t span) {
  mmap(low, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
}

Allocation *allocate(Allocation::Kind kind, size_t bytes) {
  const size_t rounded = round_up(bytes, alignment), span = round_up(rounded, page);
  char *low = reserve(span);
  if (!low) return nullptr;
  if (mprotect(low, span, PROT_READ | PROT_WRITE) || !poison_pages(low, low + span)) {
    fence(low, span);
    return nullptr;
  }
  char *base = settings().guard_before ? low : low + span - rounded;
  Allocation *a = track(kind, base, bytes, low, low + span);
  plant_canaries(*a);
  if (kind == Allocation::device_memory) mprotect(low, span, PROT_NONE);
  return a;
}

Allocation *starting_at(const void *pointer) {
  auto i = live.find(static_cast<const char *>(pointer));
  return i == live.end() ? nullptr : i->second;
}

/* Of which device memory may be opened: none (-2), all (-1). */
int opening = -2;
std::vector<Allocation *> &opened = *new std::vector<Allocation *>;

void close_memory() {
  for (Allocation *a : opened) mprotect(a->low, a->high - a->low, PROT_NONE);
  opened.clear();
}

void check(const Allocation &a, const std::string &by) {
  const char *at = dead_canary(a);
  if (!at) return;
  const bool before = at < a.base;
  fault("invalid write (found later), %td bytes %s %s, by %s",
        before ? a.base - at : at - (a.base + a.bytes),
        before ? "before" : "after the end of", a.describe().c_str(), by.c_str());
}

}  // namespace

OpenMemory::OpenMemory() {
  install_handler();
  opening = -1;
}

OpenMemory::~OpenMemory() { open_memory(-2); }

void open_memory(int device) {
  if (device == opening) return;
  close_memory();
  opening = device;
}

bool open_at(const void *address) {
  const char *p = static_cast<const char *>(address);
  /* The address may be less than a page before what the caller has. */
  auto i = live.upper_bound(p + page);
  if (i == live.begin()) return false;
  Allocation *a = std::prev(i)->second;
  if (a->kind != Allocation::device_memory || p < a->low || p >= a->high) return false;
  if (opening != -1 && opening != a->device) return false;
  opened.push_back(a);
  return !mprotect(a->low, a->high - a->low, PROT_READ | PROT_WRITE);
}

void check_opened(const std::string &by) {
  for (Allocation *a : opened) check(*a, by);
}

void check_pinned() {
  for (auto &i : live)
    if (i.second->kind == Allocation::pinned) check(*i.second, "the host or a kernel");
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
  if (kind == Allocation::pinned) check(*a, "the host or a kernel");
  forget(a);
  fence(a->low, a->high - a->low);
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

static cudaError_t pin(void **pointer, size_t bytes, unsigned int flags,
                       const char *name) {
  if (!pointer || flags > 7)
    return refuse(cudaErrorInvalidValue, "%s: pointer or flags", name);
  *pointer = nullptr;
  if (!bytes) return cudaSuccess;
  Allocation *a = allocate(Allocation::pinned, bytes);
  if (!a) return refuse(cudaErrorMemoryAllocation, "%s: %zu bytes", name, bytes);
  *pointer = a->base;
  return cudaSuccess;
}

extern "C" cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
  ENTER();
  return pin(pointer, bytes, flags, __func__);
}

extern "C" cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
  ENTER();
  return pin(pointer, bytes, cudaHostAllocDefault, __func__);
}

extern "C" cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int) {
  ENTER();
  if (!pointer || !bytes)
    return refuse(cudaErrorInvalidValue, "cudaHostRegister: %zu bytes", bytes);
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
  /* Nobody promises that it waits, and the caller is about to free the memory. */
  if (in_use(a->base, a->bytes))
    fault("%s: queued work uses %s", __func__, a->describe().c_str());
  forget(a);
  return cudaSuccess;
}

extern "C" cudaError_t cudaHostGetDevicePointer(void **device, void *host,
                                                unsigned int flags) {
  ENTER();
  if (!device || flags || locate(host, 1) != Where::pinned)
    return refuse(cudaErrorInvalidValue, "cudaHostGetDevicePointer: %p", host);
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
