/*
 * pages.h -- memory by the page, for what is large and touched bit by bit.
 */
#ifndef DEVITOCOMP_PAGES_H
#define DEVITOCOMP_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* What a page may have if the system uses huge ones unasked. Mappings of at least this
   much are aligned to it, so that none is in two of them. */
#define PAGES_HUGE ((size_t)2 << 20)

/* No mapping is aligned to less than this. */
#define PAGES_ALIGNMENT ((size_t)4096)

typedef struct pages {
  char *base;    /* NULL if nothing is mapped */
  size_t bytes;  /* usable at base */
  void *map;
  size_t map_bytes;
} pages_t;

/*
 * Map that many bytes of zeros, of which only those touched will cost memory. Returns
 * nonzero on success. The usable bytes of two mappings of PAGES_HUGE or more are never
 * adjacent.
 */
int pages_map(pages_t *pages, size_t bytes);

/* Nothing happens if nothing is mapped. */
void pages_unmap(pages_t *pages);

/* Give back the memory of all whole pages in [from, to), which will read as anything. */
void pages_drop(char *from, char *to);

/* Memory that the first bytes of a mapping occupy now. */
uint64_t pages_resident(const pages_t *pages, size_t bytes);

#endif /* DEVITOCOMP_PAGES_H */
