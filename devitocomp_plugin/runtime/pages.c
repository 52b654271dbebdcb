/* pages.c -- see pages.h. */
#define _GNU_SOURCE
#include "pages.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

static size_t page_size(void)
{
  const long size = sysconf(_SC_PAGESIZE);
  return size > 0 ? (size_t)size : PAGES_ALIGNMENT;
}

static uintptr_t round_up(uintptr_t value, size_t alignment)
{
  return (value + alignment - 1) & ~(uintptr_t)(alignment - 1);
}

int pages_map(pages_t *pages, size_t bytes)
{
  /* The excess always outlasts the alignment of base, which keeps neighbours apart. */
  const size_t excess = bytes < PAGES_HUGE ? 0 : PAGES_HUGE;
  void *map;

  pages->base = NULL;
  pages->bytes = 0;
  if (!bytes) {
    bytes = 1;
  }
  if (bytes > (SIZE_MAX >> 1) - PAGES_HUGE) {
    return 0;
  }
  map = mmap(NULL, bytes + excess, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    return 0;
  }
  pages->map = map;
  pages->map_bytes = bytes + excess;
  pages->base = excess ? (char *)round_up((uintptr_t)map, PAGES_HUGE) : map;
  pages->bytes = bytes;
  /* Huge pages are not asked for. Where the host of a virtual machine takes back what is
     free, as it does by the huge page, they come from it again, at 5 s/GB and more, while
     small ones are mostly at hand (0.3 to 0.7 s/GB): dense arrays have these too. */
  return 1;
}

void pages_unmap(pages_t *pages)
{
  if (pages->base) {
    munmap(pages->map, pages->map_bytes);
    pages->base = NULL;
    pages->bytes = 0;
  }
}

void pages_drop(char *from, char *to)
{
  const size_t page = page_size();
  const uintptr_t first = round_up((uintptr_t)from, page);
  const uintptr_t last = (uintptr_t)to & ~(uintptr_t)(page - 1);

  if (first < last) {
    (void)madvise((void *)first, last - first, MADV_DONTNEED);
  }
}

uint64_t pages_resident(const pages_t *pages, size_t bytes)
{
  enum { BATCH = 4096 };
  unsigned char state[BATCH];
  const size_t page = page_size();
  const size_t count = (bytes + page - 1) / page;
  uint64_t resident = 0;
  size_t done, n, i;

  for (done = 0; done < count; done += n) {
    n = count - done < BATCH ? count - done : BATCH;
    if (mincore(pages->base + done * page, n * page, (void *)state)) {
      return bytes;
    }
    for (i = 0; i < n; i++) {
      resident += (uint64_t)(state[i] & 1) * page;
    }
  }
  return resident;
}
