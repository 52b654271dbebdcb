/* extents.c -- see extents.h. */
#include "extents.h"

#include <stdlib.h>
#include <string.h>

/* The position of the first extent that starts there or further up. */
static size_t find(const extents_t *extents, uint64_t start)
{
  size_t low = 0, high = extents->count;

  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (extents->list[middle].start < start) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static void remove_at(extents_t *extents, size_t i)
{
  extents->count--;
  memmove(&extents->list[i], &extents->list[i + 1],
          (extents->count - i) * sizeof(*extents->list));
}

int extents_prepare(extents_t *extents, size_t more)
{
  const size_t needed = extents->count + more;
  size_t room;
  extent_t *list;

  if (needed <= extents->room) {
    return 1;
  }
  room = needed < 16 ? 16 : 2 * needed;
  list = realloc(extents->list, room * sizeof(*list));
  if (!list) {
    return 0;
  }
  extents->list = list;
  extents->room = room;
  return 1;
}

void extents_add(extents_t *extents, uint64_t start, uint64_t bytes)
{
  extent_t *const list = extents->list;
  const size_t i = bytes ? find(extents, start) : 0;
  const int joins_left = i > 0 && list[i - 1].start + list[i - 1].bytes == start;
  const int joins_right = i < extents->count && start + bytes == list[i].start;

  if (!bytes) {
    return;
  }
  if (joins_left) {
    list[i - 1].bytes += bytes;
    if (joins_right) {
      list[i - 1].bytes += list[i].bytes;
      remove_at(extents, i);
    }
  } else if (joins_right) {
    list[i].start = start;
    list[i].bytes += bytes;
  } else {
    memmove(&list[i + 1], &list[i], (extents->count - i) * sizeof(*list));
    list[i].start = start;
    list[i].bytes = bytes;
    extents->count++;
  }
}

uint64_t extents_take(extents_t *extents, uint64_t bytes)
{
  size_t best = extents->count;
  uint64_t start;
  size_t i;

  for (i = 0; i < extents->count; i++) {
    const uint64_t available = extents->list[i].bytes;
    if (available >= bytes
        && (best == extents->count || available < extents->list[best].bytes)) {
      best = i;
      if (available == bytes) {
        break;
      }
    }
  }
  if (best == extents->count) {
    return EXTENTS_NONE;
  }
  start = extents->list[best].start;
  extents->list[best].start += bytes;
  extents->list[best].bytes -= bytes;
  if (!extents->list[best].bytes) {
    remove_at(extents, best);
  }
  return start;
}

uint64_t extents_pop(extents_t *extents, uint64_t end)
{
  const size_t i = find(extents, end);
  uint64_t start;

  if (!i || extents->list[i - 1].start + extents->list[i - 1].bytes != end) {
    return end;
  }
  start = extents->list[i - 1].start;
  remove_at(extents, i - 1);
  return start;
}

void extents_free(extents_t *extents)
{
  free(extents->list);
  memset(extents, 0, sizeof(*extents));
}
