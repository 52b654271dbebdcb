/*
 * extents.h -- the free pieces of a range of addresses or file offsets, for whoever packs
 * payloads of changing size into it.
 */
#ifndef DEVITOCOMP_EXTENTS_H
#define DEVITOCOMP_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

#define EXTENTS_NONE UINT64_MAX

typedef struct extent {
  uint64_t start;
  uint64_t bytes;
} extent_t;

/* All zero if there are none. */
typedef struct extents {
  extent_t *list;  /* by address; no two touch each other */
  size_t count;
  size_t room;
} extents_t;

/* Get the memory to add that many extents, so that adding cannot fail. Returns nonzero on
   success. */
int extents_prepare(extents_t *extents, size_t more);

/* Add an extent, which joins with those it touches. */
void extents_add(extents_t *extents, uint64_t start, uint64_t bytes);

/* Take bytes out of the smallest extent that holds them. Returns where they start, or
   EXTENTS_NONE. */
uint64_t extents_take(extents_t *extents, uint64_t bytes);

/* Remove the extent that ends there. Returns where it started, or end if there is none. */
uint64_t extents_pop(extents_t *extents, uint64_t end);

/* Remove all, and free their memory. */
void extents_free(extents_t *extents);

#endif /* DEVITOCOMP_EXTENTS_H */
