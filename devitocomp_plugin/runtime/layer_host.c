/*
 * layer_host.c -- payloads packed into memory, be it the host's or a device's.
 *
 * Room is always reserved at the top of the arena, as large as the worst case, and
 * shrinks to what was used when it is committed: the next room starts right behind. So
 * payloads are written where they stay, and memory that no payload reaches is never
 * touched.
 *
 * When a snapshot is written again its old extent becomes a hole. A payload that fits
 * into a hole is moved there on commit, which costs a copy of compressed bytes and keeps
 * the top from creeping upwards from one run to the next.
 *
 * The arena grows by chunks; only the last one has a top. What remains of the others is
 * a hole like any other.
 */
#include "extents.h"
#include "layer.h"
#include "pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Address space is nearly free: large chunks keep the share of their tails low. Where it is
   not, in the memory of devices, they are no larger than that unless they have to be. */
#define MIN_CHUNK_BYTES ((size_t)64 << 20)
#define ROOMS_PER_CHUNK 8

typedef struct entry {
  char *payload;  /* NULL if never committed */
  size_t bytes;
} entry_t;

typedef struct chunk {
  pages_t pages;
  size_t touched;  /* no byte from here on was ever in a room */
} chunk_t;

typedef struct layer_host {
  layer_t layer;
  int64_t nsnapshots;
  const devitocomp_memory_t *memory;  /* NULL if it is the host's */
  entry_t *entries;

  devitocomp_limits_t limits;
  size_t max_bytes;
  size_t alignment;
  size_t sidecar_bytes;
  size_t sidecar_stride;
  int64_t nstored;
  uint64_t stored_bytes;

  chunk_t *chunks;
  size_t nchunks;
  size_t top;  /* in the last chunk */

  extents_t holes;  /* by address; none touches the top */

  pages_t sidecars;  /* one per snapshot, then a spare one */

  int64_t reserved;  /* index of the reserved room, at the top; -1 if there is none */
} layer_host_t;

static size_t round_up(size_t bytes, size_t alignment)
{
  return (bytes + alignment - 1) & ~(alignment - 1);
}

static int out_of_memory(layer_host_t *host, size_t bytes, const char *what)
{
  snprintf(host->layer.message, sizeof(host->layer.message),
           "cannot allocate %zu bytes of host memory for %s", bytes, what);
  return DEVITOCOMP_OUT_OF_MEMORY;
}

/* *** Memory */

static int map_chunk(const layer_host_t *host, pages_t *pages, size_t bytes)
{
  if (!host->memory) {
    return pages_map(pages, bytes);
  }
  memset(pages, 0, sizeof(*pages));
  /* More than is used, as holes of two chunks must not become one. */
  pages->base = host->memory->allocate(bytes + PAGES_ALIGNMENT);
  pages->bytes = pages->base ? bytes : 0;
  return pages->base != NULL;
}

static int out_of_chunks(layer_host_t *host, size_t bytes)
{
  if (!host->memory) {
    return out_of_memory(host, bytes, "a snapshot");
  }
  snprintf(host->layer.message, sizeof(host->layer.message),
           "cannot allocate %zu bytes of %s for a snapshot, on top of the %" PRIu64
           " that are stored; layers='host-device' keeps them in host memory", bytes,
           host->memory->name, host->stored_bytes);
  return DEVITOCOMP_OUT_OF_MEMORY;
}

static void unmap_chunk(const layer_host_t *host, pages_t *pages)
{
  if (host->memory) {
    host->memory->release(pages->base);
  } else {
    pages_unmap(pages);
  }
}

/* *** Holes */

static char *top_of(const layer_host_t *host)
{
  return host->chunks[host->nchunks - 1].pages.base + host->top;
}

/* The top is where the room begins: call only before the new payload is placed. */
static void free_extent(layer_host_t *host, char *start, size_t bytes)
{
  const uint64_t top = (uintptr_t)top_of(host);

  extents_add(&host->holes, (uintptr_t)start, bytes);
  host->top -= (size_t)(top - extents_pop(&host->holes, top));
}

/* Take an extent out of the smallest hole that holds it; NULL if none does. */
static char *fill_hole(layer_host_t *host, size_t bytes)
{
  const uint64_t start = extents_take(&host->holes, bytes);

  return start == EXTENTS_NONE ? NULL : (char *)(uintptr_t)start;
}

/* *** Chunks */

static int add_chunk(layer_host_t *host, size_t room)
{
  const size_t least = round_up(room, PAGES_HUGE);
  size_t bytes = round_up(host->max_bytes + LAYER_GUARD_BYTES, PAGES_HUGE);
  chunk_t *chunks;
  chunk_t chunk;

  bytes = bytes <= SIZE_MAX / ROOMS_PER_CHUNK ? bytes * ROOMS_PER_CHUNK : bytes;
  if (host->memory) {
    /* It is taken at once, not when it is touched. */
    bytes = bytes < MIN_CHUNK_BYTES ? bytes : MIN_CHUNK_BYTES;
    bytes = bytes < least ? least : bytes;
  } else if (bytes < MIN_CHUNK_BYTES) {
    bytes = MIN_CHUNK_BYTES;
  }
  chunks = realloc(host->chunks, (host->nchunks + 1) * sizeof(*chunks));
  if (!chunks) {
    return out_of_memory(host, (host->nchunks + 1) * sizeof(*chunks), "bookkeeping");
  }
  host->chunks = chunks;

  /* Where address space is limited, settle for what this snapshot needs. */
  if (!map_chunk(host, &chunk.pages, bytes) && !map_chunk(host, &chunk.pages, least)) {
    return out_of_chunks(host, least);
  }
  chunk.touched = 0;
  chunks[host->nchunks++] = chunk;
  if (host->nchunks > 1) {
    chunk_t *const previous = &chunks[host->nchunks - 2];
    const size_t tail = host->top;
    host->top = 0;
    previous->touched = previous->pages.bytes;
    free_extent(host, previous->pages.base + tail, previous->pages.bytes - tail);
  }
  host->top = 0;
  return DEVITOCOMP_OK;
}

/* *** Sidecars */

static char *sidecar_of(const layer_host_t *host, int64_t index)
{
  return host->sidecar_bytes ? host->sidecars.base + (size_t)index * host->sidecar_stride
                             : NULL;
}

static char *spare_sidecar(const layer_host_t *host)
{
  return sidecar_of(host, host->nsnapshots);
}

static int prepare_sidecars(layer_host_t *host)
{
  const size_t count = (size_t)host->nsnapshots;
  size_t bytes;

  if (!host->sidecar_bytes || host->sidecars.base) {
    return DEVITOCOMP_OK;
  }
  if (count > SIZE_MAX / host->sidecar_stride - 2) {
    return out_of_memory(host, SIZE_MAX, "sidecars");
  }
  bytes = (count + 1) * host->sidecar_stride + LAYER_GUARD_BYTES;
  return pages_map(&host->sidecars, bytes) ? DEVITOCOMP_OK
                                           : out_of_memory(host, bytes, "sidecars");
}

/* *** The layer */

static int host_reserve(layer_t *layer, int64_t index, size_t capacity,
                        layer_span_t *room)
{
  layer_host_t *const host = (layer_host_t *)layer;
  const size_t bytes = capacity + LAYER_GUARD_BYTES;
  chunk_t *chunk;
  int status;

  /* A commit must not fail for want of a place to note a hole: see to it beforehand. */
  if (!extents_prepare(&host->holes, 2)) {
    return out_of_memory(host, host->holes.room * sizeof(extent_t), "bookkeeping");
  }
  if ((status = prepare_sidecars(host))) {
    return status;
  }
  if (!host->nchunks || host->chunks[host->nchunks - 1].pages.bytes - host->top < bytes) {
    if ((status = add_chunk(host, bytes))) {
      return status;
    }
  }
  chunk = &host->chunks[host->nchunks - 1];
  if (chunk->touched < host->top + bytes) {
    chunk->touched = host->top + bytes;
  }
  host->reserved = index;
  room->payload = chunk->pages.base + host->top;
  room->bytes = capacity;
  room->sidecar = spare_sidecar(host);
  if (room->sidecar) {
    /* Sidecars are stored whole, even where the provider fills only a part. */
    memset(room->sidecar, 0, host->sidecar_bytes);
  }
  return DEVITOCOMP_OK;
}

/* Where a payload goes that is in the room, for want of a hole. */
static char *place_on_top(layer_host_t *host, char *room, size_t bytes)
{
  char *top = top_of(host);

  if (host->memory && top < room && (size_t)(room - top) < bytes) {
    /* A device does not copy to where it reads from. */
    extents_add(&host->holes, (uintptr_t)top, (size_t)(room - top));
    top = room;
  }
  host->top += (size_t)(top - top_of(host)) + round_up(bytes, host->alignment);
  return top;
}

/* Nonzero on success. */
static int move_payload(const layer_host_t *host, char *to, const char *from, size_t bytes)
{
  if (to == from || !bytes) {
    return 1;
  }
  if (host->memory) {
    return host->memory->copy(to, from, bytes);
  }
  /* They overlap where the top came down by less than a payload. */
  memmove(to, from, bytes);
  return 1;
}

static int host_commit(layer_t *layer, size_t bytes)
{
  layer_host_t *const host = (layer_host_t *)layer;
  entry_t *const entry = &host->entries[host->reserved];
  char *const room = top_of(host);

  if (entry->payload) {
    host->stored_bytes -= entry->bytes + host->sidecar_bytes;
    free_extent(host, entry->payload, round_up(entry->bytes, host->alignment));
  } else {
    host->nstored++;
  }
  entry->payload = fill_hole(host, round_up(bytes, host->alignment));
  if (!entry->payload) {
    entry->payload = place_on_top(host, room, bytes);
  }
  entry->bytes = bytes;
  if (!move_payload(host, entry->payload, room, bytes)) {
    snprintf(host->layer.message, sizeof(host->layer.message),
             "copying %zu bytes within %s failed", bytes, host->memory->name);
    return DEVITOCOMP_PROVIDER_ERROR;
  }
  if (host->sidecar_bytes) {
    memcpy(sidecar_of(host, host->reserved), spare_sidecar(host), host->sidecar_bytes);
  }
  host->stored_bytes += bytes + host->sidecar_bytes;
  host->reserved = -1;
  return DEVITOCOMP_OK;
}

static void host_abandon(layer_t *layer)
{
  ((layer_host_t *)layer)->reserved = -1;
}

static int host_holds(layer_t *layer, int64_t index)
{
  return ((layer_host_t *)layer)->entries[index].payload != NULL;
}

static int host_acquire(layer_t *layer, int64_t index, layer_span_t *content)
{
  const layer_host_t *const host = (const layer_host_t *)layer;

  content->payload = host->entries[index].payload;
  content->bytes = host->entries[index].bytes;
  content->sidecar = sidecar_of(host, index);
  return DEVITOCOMP_OK;
}

static void host_release(layer_t *layer, int64_t index)
{
  /* Content never moves between an acquire and the next reserve. */
  (void)layer;
  (void)index;
}

static size_t host_payload_bytes(const layer_t *layer, int64_t index)
{
  return ((const layer_host_t *)layer)->entries[index].bytes;
}

static void host_settle(layer_t *layer)
{
  layer_host_t *const host = (layer_host_t *)layer;
  chunk_t *chunk;

  if (host->nchunks && !host->memory) {
    /* What rooms as large as the worst case left above the top, by the huge page. */
    chunk = &host->chunks[host->nchunks - 1];
    pages_drop(chunk->pages.base + host->top,
               chunk->pages.base + round_up(chunk->touched, PAGES_HUGE));
    chunk->touched = host->top;
  }
}

static int host_discard(layer_t *layer)
{
  layer_host_t *const host = (layer_host_t *)layer;

  while (host->nchunks) {
    unmap_chunk(host, &host->chunks[--host->nchunks].pages);
  }
  pages_unmap(&host->sidecars);
  extents_free(&host->holes);
  host->top = 0;
  host->nstored = 0;
  host->stored_bytes = 0;
  host->reserved = -1;
  memset(host->entries, 0, (size_t)host->nsnapshots * sizeof(*host->entries));
  return DEVITOCOMP_OK;
}

/* Nonzero if payloads obeying either obey the other. */
static int same_limits(const devitocomp_limits_t *a, const devitocomp_limits_t *b)
{
  return a->payload_version == b->payload_version
         && a->max_compressed_bytes == b->max_compressed_bytes
         && a->payload_alignment == b->payload_alignment
         && a->sidecar_bytes == b->sidecar_bytes
         && a->sidecar_alignment == b->sidecar_alignment;
}

/* Nonzero if the payloads that are stored obey those limits too. */
static int content_obeys(const layer_host_t *host, const devitocomp_limits_t *limits)
{
  return limits->payload_version == host->limits.payload_version
         && limits->sidecar_bytes == host->limits.sidecar_bytes
         && limits->sidecar_alignment == host->limits.sidecar_alignment
         && limits->payload_alignment <= host->alignment;
}

static int host_bind(layer_t *layer, const devitocomp_limits_t *limits)
{
  layer_host_t *const host = (layer_host_t *)layer;

  if (same_limits(limits, &host->limits)) {
    return DEVITOCOMP_OK;
  }
  if (host->nstored && content_obeys(host, limits)) {
    host->limits = *limits;
    host->max_bytes = (size_t)limits->max_compressed_bytes;
    return DEVITOCOMP_OK;
  }
  if (host->nstored) {
    snprintf(host->layer.message, sizeof(host->layer.message),
             "it holds snapshots with other limits");
    return DEVITOCOMP_INVALID_ARGUMENT;
  }
  (void)host_discard(layer);
  host->limits = *limits;
  host->max_bytes = (size_t)limits->max_compressed_bytes;
  host->alignment = (size_t)limits->payload_alignment;
  host->sidecar_bytes = (size_t)limits->sidecar_bytes;
  host->sidecar_stride = round_up(host->sidecar_bytes, (size_t)limits->sidecar_alignment);
  return DEVITOCOMP_OK;
}

static void host_usage(const layer_t *layer, devitocomp_usage_t *usage)
{
  const layer_host_t *const host = (const layer_host_t *)layer;
  size_t i;

  usage->stored_bytes = host->stored_bytes;
  usage->resident_bytes = 0;
  for (i = 0; i < host->nchunks; i++) {
    const chunk_t *const chunk = &host->chunks[i];
    usage->resident_bytes += host->memory ? chunk->pages.bytes
      : pages_resident(&chunk->pages, round_up(chunk->touched, PAGES_HUGE));
  }
  usage->metadata_bytes = sizeof(*host)
    + (uint64_t)host->nsnapshots * sizeof(*host->entries)
    + host->nchunks * sizeof(*host->chunks)
    + host->holes.room * sizeof(extent_t)
    + host->sidecars.bytes;
}

static void host_destroy(layer_t *layer)
{
  layer_host_t *const host = (layer_host_t *)layer;

  (void)host_discard(layer);
  free(host->chunks);
  free(host->entries);
  free(host);
}

layer_t *layer_host_create(int64_t nsnapshots, const devitocomp_memory_t *memory)
{
  static const layer_ops_t ops = {
    .reserve = host_reserve,
    .commit = host_commit,
    .abandon = host_abandon,
    .holds = host_holds,
    .acquire = host_acquire,
    .release = host_release,
    .payload_bytes = host_payload_bytes,
    .settle = host_settle,
    .bind = host_bind,
    .discard = host_discard,
    .usage = host_usage,
    .destroy = host_destroy,
  };
  layer_host_t *const host = calloc(1, sizeof(*host));

  if (!host) {
    return NULL;
  }
  host->layer.ops = &ops;
  host->nsnapshots = nsnapshots;
  host->memory = memory;
  host->alignment = host->sidecar_stride = 1;
  host->reserved = -1;
  host->entries = calloc(nsnapshots ? (size_t)nsnapshots : 1, sizeof(*host->entries));
  if (!host->entries) {
    free(host);
    return NULL;
  }
  return &host->layer;
}
