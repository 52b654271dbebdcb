/*
 * staging.h -- memory of bounded size for payloads on their way to or from a file.
 *
 * Payloads stay until their memory is needed for others, first in first out.
 */
#ifndef DEVITOCOMP_STAGING_H
#define DEVITOCOMP_STAGING_H

#include "layer.h"
#include "pages.h"

/* Where a snapshot lies. */
typedef struct place {
  size_t start;  /* STAGING_NONE if it does not */
  int64_t older;
  int64_t newer;
} place_t;

#define STAGING_NONE SIZE_MAX

typedef struct staging {
  pages_t pages;
  size_t cache_bytes;
  size_t alignment;
  size_t sidecar_bytes;
  size_t sidecar_room;  /* what precedes every payload */
  size_t head;          /* where the next room begins */
  size_t reserved;      /* where the latest room began */
  size_t touched;       /* no byte from here on was ever used */

  place_t *places;
  int64_t nsnapshots;
  int64_t oldest;  /* -1 if there is none */
  int64_t newest;
} staging_t;

/* Returns nonzero on success. */
int staging_init(staging_t *staging, int64_t nsnapshots, size_t cache_bytes);
void staging_free(staging_t *staging);

/* Forget all, and lay out rooms so from now on. */
void staging_bind(staging_t *staging, size_t alignment, size_t sidecar_bytes,
                  size_t sidecar_alignment);

/*
 * Make room for a payload of so many bytes and a guard, and for its sidecar and a guard.
 * largest: the most that any room may need, for which memory is mapped if there is none
 * yet. Returns the bytes that could not be had, 0 on success.
 */
size_t staging_reserve(staging_t *staging, size_t bytes, size_t largest,
                       layer_span_t *room);

/* What was reserved last holds a snapshot, whose payload has so many bytes. */
void staging_keep(staging_t *staging, int64_t index, size_t bytes);

/* Nonzero if there is a snapshot, of which payload and sidecar are then set. */
int staging_find(const staging_t *staging, int64_t index, layer_span_t *content);

/* Afterwards a snapshot is not found any more. Its bytes stay until the next room. */
void staging_forget(staging_t *staging, int64_t index);
void staging_forget_all(staging_t *staging);

/* Forget all, and give back its memory. */
void staging_drop(staging_t *staging);

/* Memory that is occupied now. */
uint64_t staging_resident(const staging_t *staging);

#endif /* DEVITOCOMP_STAGING_H */
