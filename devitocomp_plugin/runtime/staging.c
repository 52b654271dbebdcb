/*
 * staging.c -- see staging.h.
 *
 * The memory is a ring. A room is made at the head, from where on the oldest payloads
 * lie, and has to be contiguous: if it does not fit before the end it is made at the
 * beginning.
 */
#include "staging.h"

#include <stdlib.h>
#include <string.h>

/* Rooms are aligned to at least this much. */
#define MIN_ALIGNMENT 64

static size_t round_up(size_t bytes, size_t alignment)
{
  return (bytes + alignment - 1) & ~(alignment - 1);
}

int staging_init(staging_t *staging, int64_t nsnapshots, size_t cache_bytes)
{
  const size_t count = nsnapshots ? (size_t)nsnapshots : 1;
  int64_t i;

  memset(staging, 0, sizeof(*staging));
  staging->places = malloc(count * sizeof(*staging->places));
  if (!staging->places) {
    return 0;
  }
  staging->nsnapshots = nsnapshots;
  staging->cache_bytes = cache_bytes;
  for (i = 0; i < nsnapshots; i++) {
    staging->places[i].start = STAGING_NONE;
  }
  staging->oldest = staging->newest = -1;
  staging_bind(staging, 1, 0, 1);
  return 1;
}

void staging_free(staging_t *staging)
{
  pages_unmap(&staging->pages);
  free(staging->places);
  staging->places = NULL;
}

void staging_forget(staging_t *staging, int64_t index)
{
  place_t *const place = &staging->places[index];

  if (place->start == STAGING_NONE) {
    return;
  }
  *(place->older < 0 ? &staging->oldest : &staging->places[place->older].newer)
    = place->newer;
  *(place->newer < 0 ? &staging->newest : &staging->places[place->newer].older)
    = place->older;
  place->start = STAGING_NONE;
}

void staging_forget_all(staging_t *staging)
{
  while (staging->oldest >= 0) {
    staging_forget(staging, staging->oldest);
  }
  staging->head = 0;
}

void staging_bind(staging_t *staging, size_t alignment, size_t sidecar_bytes,
                  size_t sidecar_alignment)
{
  staging_forget_all(staging);
  pages_unmap(&staging->pages);
  staging->touched = 0;
  if (alignment < sidecar_alignment) {
    alignment = sidecar_alignment;
  }
  staging->alignment = alignment < MIN_ALIGNMENT ? MIN_ALIGNMENT : alignment;
  staging->sidecar_bytes = sidecar_bytes;
  staging->sidecar_room
    = sidecar_bytes ? round_up(sidecar_bytes + LAYER_GUARD_BYTES, staging->alignment) : 0;
}

/* What a room for so many bytes takes. */
static size_t size_of_room(const staging_t *staging, size_t bytes)
{
  return round_up(staging->sidecar_room + bytes + LAYER_GUARD_BYTES, staging->alignment);
}

static void point_to(const staging_t *staging, size_t start, layer_span_t *span)
{
  char *const base = staging->pages.base + start;

  span->sidecar = staging->sidecar_bytes ? base : NULL;
  span->payload = base + staging->sidecar_room;
}

/* Map at least that much. */
static int prepare(staging_t *staging, size_t largest)
{
  const size_t wanted
    = largest > staging->cache_bytes ? largest : staging->cache_bytes;

  if (staging->pages.base && staging->pages.bytes >= largest) {
    return 1;
  }
  staging_forget_all(staging);
  pages_unmap(&staging->pages);
  staging->touched = 0;
  return pages_map(&staging->pages, wanted) || pages_map(&staging->pages, largest);
}

size_t staging_reserve(staging_t *staging, size_t bytes, size_t largest,
                       layer_span_t *room)
{
  const size_t needed = size_of_room(staging, bytes);
  const size_t most = size_of_room(staging, largest > bytes ? largest : bytes);
  size_t end;

  if (!prepare(staging, most)) {
    return most;
  }
  if (staging->pages.bytes - staging->head < needed) {
    /* What lies between the head and the end is older than what lies at the beginning. */
    while (staging->oldest >= 0
           && staging->places[staging->oldest].start >= staging->head) {
      staging_forget(staging, staging->oldest);
    }
    staging->head = 0;
  }
  end = staging->head + needed;
  while (staging->oldest >= 0 && staging->places[staging->oldest].start >= staging->head
         && staging->places[staging->oldest].start < end) {
    staging_forget(staging, staging->oldest);
  }
  if (staging->touched < end) {
    staging->touched = end;
  }
  staging->reserved = staging->head;
  point_to(staging, staging->head, room);
  room->bytes = bytes;
  return 0;
}

void staging_keep(staging_t *staging, int64_t index, size_t bytes)
{
  place_t *const place = &staging->places[index];

  staging_forget(staging, index);
  place->start = staging->reserved;
  place->older = staging->newest;
  place->newer = -1;
  *(place->older < 0 ? &staging->oldest : &staging->places[place->older].newer) = index;
  staging->newest = index;
  staging->head = staging->reserved + size_of_room(staging, bytes);
}

int staging_find(const staging_t *staging, int64_t index, layer_span_t *content)
{
  const size_t start = staging->places[index].start;

  if (start == STAGING_NONE) {
    return 0;
  }
  point_to(staging, start, content);
  return 1;
}

void staging_drop(staging_t *staging)
{
  char *const base = staging->pages.base;

  staging_forget_all(staging);
  if (staging->touched) {
    pages_drop(base, base + round_up(staging->touched, PAGES_ALIGNMENT));
    staging->touched = 0;
  }
}

uint64_t staging_resident(const staging_t *staging)
{
  return staging->touched ? pages_resident(&staging->pages, staging->touched) : 0;
}
