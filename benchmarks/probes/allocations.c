/*
 * allocations.c -- counts allocations by who makes them. To be preloaded.
 *
 * Counted are the calls of malloc, calloc, realloc, aligned_alloc, memalign,
 * posix_memalign, mmap and mmap64, from any thread and any library, the C library's own
 * calls through other entries excepted. For glibc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_CALLERS 512

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

typedef struct caller {
  const char *function;
  void *address;
  uint64_t calls, bytes;
} caller_t;

static caller_t callers[MAX_CALLERS];
static int used, counting;
static char lock;

void count_allocations(int on)
{
  __atomic_store_n(&counting, on, __ATOMIC_SEQ_CST);
}

static void count(const char *function, void *address, size_t bytes)
{
  int i;

  if (!__atomic_load_n(&counting, __ATOMIC_RELAXED)) {
    return;
  }
  while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {
  }
  for (i = 0; i < used && (callers[i].address != address
                           || callers[i].function != function); i++) {
  }
  if (i < MAX_CALLERS) {
    used += i == used;
    callers[i].function = function;
    callers[i].address = address;
    callers[i].calls++;
    callers[i].bytes += bytes;
  }
  __atomic_clear(&lock, __ATOMIC_RELEASE);
}

/* A line for each caller: calls, bytes, function, library. Returns their number. */
int list_allocations(char *text, size_t size)
{
  size_t end = 0;
  int i;

  text[0] = 0;
  for (i = 0; i < used && end < size; i++) {
    Dl_info info;
    const char *const from = dladdr(callers[i].address, &info) ? info.dli_fname : "?";
    end += (size_t)snprintf(text + end, size - end, "%llu %llu %s %s\n",
                            (unsigned long long)callers[i].calls,
                            (unsigned long long)callers[i].bytes, callers[i].function,
                            from);
  }
  return used;
}

#define COUNT(bytes) count(__func__, __builtin_return_address(0), bytes)

void *malloc(size_t bytes)
{
  COUNT(bytes);
  return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
  COUNT(n * bytes);
  return __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
  COUNT(bytes);
  return __libc_realloc(old, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
  COUNT(bytes);
  return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
  COUNT(bytes);
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
  COUNT(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
  COUNT(bytes);
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file,
             off_t offset)
{
  COUNT(bytes);
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}
