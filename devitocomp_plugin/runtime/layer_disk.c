/*
 * layer_disk.c -- payloads in a file, and an index of them in another.
 *
 * A snapshot is committed by writing its payload and sidecar where nothing lies that
 * counts, and then its record in the index. What the record before it told of is free
 * from then on, for the next snapshot. So the file grows as little as host memory would.
 *
 * Payloads pass through memory of bounded size (staging.h), in which they stay as long as
 * possible. On their way from the file they are checked. Which ones are needed next shows
 * in the indices that are asked for; the operating system is told, and reads them while
 * others are being decoded.
 */
#define _GNU_SOURCE
#include "checksum.h"
#include "disk_index.h"
#include "extents.h"
#include "file.h"
#include "layer.h"
#include "staging.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char name[] = "snapshots.data";
static const char magic[] = "DVTCOMPD";

/* Payloads begin at multiples of this in the file: little enough to be wasted. */
#define ALIGNMENT 64

/* Where the first payload may begin. */
#define DATA_START sizeof(disk_header_t)

/* How far to read ahead, and how many snapshots at most. */
#define AHEAD_BYTES ((uint64_t)64 << 20)
#define AHEAD_COUNT 64

/* Snapshots that stay in the page cache behind the one that is read. */
#define BEHIND_COUNT 2

/* How often a reader looks again, when payloads change under its hands. */
#define PATIENCE 20

typedef struct layer_disk {
  layer_t layer;
  disk_index_t index;
  file_t data;
  pid_t owner;   /* forks may read on, not write */
  int attached;  /* the files are there, and open */
  int created;   /* ... since no sync */

  /* The owner may ask what the store holds while a run reads from it. */
  pthread_mutex_t lock;

  devitocomp_limits_t limits;
  int keeps_cache;
  staging_t staging;
  layer_span_t room;
  int64_t reserved;  /* -1 if there is no room */

  extents_t holes;   /* of the data file, before its end */
  uint64_t end;
  uint64_t written;  /* no byte from here on was written */

  int64_t last;   /* what was read, and how many snapshots after the one before */
  int64_t step;
  int64_t ahead;  /* how far along that way reading was announced */
} layer_disk_t;

static uint64_t round_up(uint64_t bytes)
{
  return (bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
}

static int out_of_memory(layer_disk_t *disk, size_t bytes, const char *what)
{
  return file_explain(disk->layer.message, DEVITOCOMP_OUT_OF_MEMORY,
                      "cannot allocate %zu bytes of host memory for %s", bytes, what);
}

static int check_writable(layer_disk_t *disk)
{
  char *const message = disk->layer.message;

  if (disk->index.read_only) {
    return file_explain(message, DEVITOCOMP_INVALID_ARGUMENT,
                        "%s was opened for reading only", file_name(&disk->data));
  }
  if (getpid() != disk->owner) {
    return file_explain(message, DEVITOCOMP_INVALID_ARGUMENT,
                        "%s belongs to process %ld, of which this one is a fork",
                        file_name(&disk->data), (long)disk->owner);
  }
  return DEVITOCOMP_OK;
}

/* What a snapshot takes in the file. */
static uint64_t extent_of(const layer_disk_t *disk, uint64_t payload_bytes)
{
  return round_up(payload_bytes + disk->index.sidecar_bytes);
}

/* Whatever a snapshot is mistaken for, its checksum differs. */
static uint64_t checksum_of(const layer_disk_t *disk, int64_t index, uint64_t sequence,
                            const layer_span_t *span, size_t bytes)
{
  const uint64_t words[5] = {(uint64_t)index, sequence, disk->index.epoch, bytes,
                             disk->index.sidecar_bytes};
  const uint64_t seed = checksum(disk->index.store_id, words, sizeof(words));

  return checksum(checksum(seed, span->payload, bytes), span->sidecar,
                  (size_t)disk->index.sidecar_bytes);
}

static int parts_of(const layer_disk_t *disk, const layer_span_t *span, size_t bytes,
                    struct iovec parts[2])
{
  parts[0].iov_base = span->payload;
  parts[0].iov_len = bytes;
  parts[1].iov_base = span->sidecar;
  parts[1].iov_len = (size_t)disk->index.sidecar_bytes;
  return 2;
}

/* *** Writing */

static int disk_reserve(layer_t *layer, int64_t index, size_t capacity,
                        layer_span_t *room)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;
  const int status = check_writable(disk);
  size_t missing;

  if (status) {
    return status;
  }
  /* A commit must not fail for want of a place to note a hole: see to it beforehand. */
  if (!extents_prepare(&disk->holes, 3)) {
    return out_of_memory(disk, disk->holes.room * sizeof(extent_t), "bookkeeping");
  }
  missing = staging_reserve(&disk->staging, capacity,
                            (size_t)disk->limits.max_compressed_bytes, room);
  if (missing) {
    return out_of_memory(disk, missing, "a snapshot");
  }
  if (room->sidecar) {
    /* Sidecars are stored whole, even where the provider fills only a part. */
    memset(room->sidecar, 0, (size_t)disk->limits.sidecar_bytes);
  }
  disk->room = *room;
  disk->reserved = index;
  return DEVITOCOMP_OK;
}

/* An extent of the file is free again. */
static void free_extent(layer_disk_t *disk, uint64_t offset, uint64_t bytes)
{
  extents_add(&disk->holes, offset, bytes);
  disk->end = extents_pop(&disk->holes, disk->end);
}

/* Find a place for so many bytes, which may make the file longer. */
static uint64_t take_extent(layer_disk_t *disk, uint64_t bytes)
{
  uint64_t offset = bytes ? extents_take(&disk->holes, bytes) : disk->end;

  if (offset == EXTENTS_NONE) {
    offset = disk->end;
    disk->end += bytes;
  }
  return offset;
}

/* Cut off what lies beyond the last payload. */
static int trim(layer_disk_t *disk)
{
  int status = DEVITOCOMP_OK;

  if (disk->written > disk->end) {
    status = file_resize(&disk->data, disk->end, disk->layer.message);
    if (!status) {
      disk->written = disk->end;
    }
  }
  return status;
}

/* Write payload and sidecar to the file, then their record. */
static int store(layer_disk_t *disk, int64_t index, const layer_span_t *span,
                 size_t bytes)
{
  char *const message = disk->layer.message;
  const disk_entry_t old = disk->index.entries[index];
  const uint64_t content
    = checksum_of(disk, index, disk->index.sequence + 1, span, bytes);
  const uint64_t extent = extent_of(disk, bytes);
  const uint64_t offset = take_extent(disk, extent);
  struct iovec parts[2];
  int status;

  if (disk->written < offset + extent) {
    disk->written = offset + extent;
  }
  status = file_write(&disk->data, parts, parts_of(disk, span, bytes, parts), offset,
                      message);
  if (!status && !(status = file_check_named(&disk->data, message))
      && !(status = file_check_named(&disk->index.file, message))) {
    status = disk_index_commit(&disk->index, index, offset, bytes, content);
  }
  if (status) {
    char reason[LAYER_MESSAGE_BYTES];
    memcpy(reason, message, sizeof(reason));
    if (!disk->index.broken) {
      free_extent(disk, offset, extent);
      (void)trim(disk);
    }
    memcpy(message, reason, sizeof(reason));
    return status;
  }
  if (old.sequence) {
    free_extent(disk, old.offset, extent_of(disk, old.bytes));
  }
  return DEVITOCOMP_OK;
}

static int disk_commit(layer_t *layer, size_t bytes)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;
  const int64_t index = disk->reserved;
  int status = check_writable(disk);

  disk->reserved = -1;
  if (!status) {
    status = store(disk, index, &disk->room, bytes);
  }
  if (!status) {
    staging_keep(&disk->staging, index, bytes);
  }
  return status;
}

static void disk_abandon(layer_t *layer)
{
  ((layer_disk_t *)layer)->reserved = -1;
}

static int disk_mark(layer_t *layer, int64_t index)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;
  int status = check_writable(disk);

  if (status || disk->index.entries[index].sequence
      || (status = file_check_named(&disk->index.file, layer->message))) {
    return status;
  }
  return disk_index_commit(&disk->index, index, 0, 0, 0);
}

/* *** Reading */

static int open_files(layer_disk_t *disk);

/* Take in what another process may have changed. */
static int look(layer_disk_t *disk, int64_t index)
{
  const uint64_t sequence = disk->index.entries[index].sequence;
  const uint64_t epoch = disk->index.epoch;
  int status = disk->attached ? DEVITOCOMP_OK : open_files(disk);

  if (!status && disk->attached) {
    status = disk_index_look(&disk->index, index);
  }
  if (disk->index.epoch != epoch) {
    staging_forget_all(&disk->staging);
  } else if (status || disk->index.entries[index].sequence != sequence) {
    staging_forget(&disk->staging, index);
  }
  return status;
}

static int disk_holds(layer_t *layer, int64_t index)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;
  int held;

  if (!disk->index.read_only) {
    return disk_index_holds(&disk->index, index);
  }
  pthread_mutex_lock(&disk->lock);
  /* Should looking fail, so will acquire, and tell. */
  held = look(disk, index) || disk_index_holds(&disk->index, index);
  pthread_mutex_unlock(&disk->lock);
  return held;
}

/* Read a snapshot into memory, and check it. */
static int fetch(layer_disk_t *disk, int64_t index, layer_span_t *content)
{
  char *const message = disk->layer.message;
  const disk_entry_t *const entry = &disk->index.entries[index];
  const uint64_t largest = disk->limits.max_compressed_bytes > entry->bytes
    ? disk->limits.max_compressed_bytes : entry->bytes;
  struct iovec parts[2];
  size_t missing;
  int status;

  if (entry->damaged) {
    return disk_index_explain_damage(&disk->index, index);
  }
  missing = staging_reserve(&disk->staging, (size_t)entry->bytes, (size_t)largest,
                            content);
  if (missing) {
    return out_of_memory(disk, missing, "a snapshot");
  }
  status = file_read(&disk->data, parts,
                     parts_of(disk, content, content->bytes, parts), entry->offset,
                     message);
  if (status) {
    return status;
  }
  if (checksum_of(disk, index, entry->sequence, content, content->bytes)
      != entry->checksum) {
    return file_explain(message, DEVITOCOMP_CORRUPT_PAYLOAD,
                        "%s is damaged: a checksum does not match in the %" PRIu64
                        " bytes from %" PRIu64 " on, which hold snapshot %" PRId64,
                        file_name(&disk->data), entry->bytes + disk->index.sidecar_bytes,
                        entry->offset, index);
  }
  staging_keep(&disk->staging, index, content->bytes);
  return DEVITOCOMP_OK;
}

static void announce(layer_disk_t *disk, int64_t index)
{
  const disk_entry_t *const entry = &disk->index.entries[index];
  const uint64_t bytes = entry->bytes + disk->index.sidecar_bytes;
  layer_span_t unused;

  if (entry->sequence && bytes && !staging_find(&disk->staging, index, &unused)) {
    file_will_need(&disk->data, entry->offset, bytes);
  }
}

/* Tell the operating system what will be read next, and what no more. */
static void advise(layer_disk_t *disk, int64_t index)
{
  const int64_t step = index - disk->last;
  const int64_t behind = index - BEHIND_COUNT * step;
  uint64_t bytes = 0;
  int64_t next;
  int count;

  if (!step) {
    return;
  }
  disk->last = index;
  if (step != disk->step) {
    disk->step = step;
    disk->ahead = index;
    return;
  }
  next = index + step;
  for (count = 0; count < AHEAD_COUNT && bytes < AHEAD_BYTES; count++) {
    if (next < 0 || next >= disk->index.nsnapshots) {
      break;
    }
    if (step > 0 ? next > disk->ahead : next < disk->ahead) {
      announce(disk, next);
      disk->ahead = next;
    }
    bytes += disk->index.entries[next].bytes;
    next += step;
  }
  if (!disk->keeps_cache && behind >= 0 && behind < disk->index.nsnapshots) {
    const disk_entry_t *const entry = &disk->index.entries[behind];
    if (entry->bytes) {
      file_dont_need(&disk->data, entry->offset, entry->bytes);
    }
  }
}

/* The body of disk_acquire. */
static int acquire(layer_disk_t *disk, int64_t index, layer_span_t *content)
{
  char *const message = disk->layer.message;
  disk_index_t *const about = &disk->index;
  const disk_entry_t *const entry = &about->entries[index];
  uint64_t tried = 0;
  int status = DEVITOCOMP_OK;
  int attempt;

  for (attempt = 0; attempt < PATIENCE; attempt++) {
    if (about->read_only) {
      const int failed = look(disk, index);
      if (failed) {
        return failed;
      }
      if (!disk_index_holds(about, index)) {
        return file_explain(message, DEVITOCOMP_IO_ERROR,
                            "snapshot %" PRId64 " was dropped from %s meanwhile", index,
                            file_name(&disk->data));
      }
      if (about->payload_version != disk->limits.payload_version
          || about->sidecar_bytes != disk->limits.sidecar_bytes) {
        return file_explain(message, DEVITOCOMP_VERSION_MISMATCH,
                            "%s was opened for another provider than the one that writes "
                            "to it now", file_name(&about->file));
      }
    }
    content->bytes = (size_t)entry->bytes;
    if (staging_find(&disk->staging, index, content)) {
      return DEVITOCOMP_OK;
    }
    if (attempt && entry->sequence == tried) {
      return status;
    }
    tried = entry->sequence;
    status = fetch(disk, index, content);
    if (status != DEVITOCOMP_CORRUPT_PAYLOAD || !about->read_only) {
      return status;
    }
    /* It may have been replaced while it was read. */
  }
  return file_explain(message, DEVITOCOMP_IO_ERROR,
                      "snapshot %" PRId64 " in %s is being written again and again",
                      index, file_name(&disk->data));
}

static int disk_acquire(layer_t *layer, int64_t index, layer_span_t *content)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;
  int status;

  pthread_mutex_lock(&disk->lock);
  status = acquire(disk, index, content);
  if (!status) {
    advise(disk, index);
  }
  pthread_mutex_unlock(&disk->lock);
  return status;
}

static void disk_release(layer_t *layer, int64_t index)
{
  /* What was read stays in memory until there is no more room. */
  (void)layer;
  (void)index;
}

static size_t disk_payload_bytes(const layer_t *layer, int64_t index)
{
  return (size_t)((const layer_disk_t *)layer)->index.entries[index].bytes;
}

/* *** The store as a whole */

static void disk_settle(layer_t *layer)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;

  pthread_mutex_lock(&disk->lock);
  if (!disk->keeps_cache) {
    staging_drop(&disk->staging);
  }
  pthread_mutex_unlock(&disk->lock);
  disk->reserved = -1;
  if (!disk->index.read_only && getpid() == disk->owner && !disk->index.broken) {
    (void)trim(disk);
  }
}

/* The body of disk_bind. */
static int bind(layer_disk_t *disk, const devitocomp_limits_t *limits)
{
  disk_index_t *const about = &disk->index;
  const int differs = !about->described
    || about->payload_version != limits->payload_version
    || about->sidecar_bytes != limits->sidecar_bytes;
  int status;

  if (differs && about->described && about->nstored) {
    return file_explain(disk->layer.message, DEVITOCOMP_INVALID_ARGUMENT,
                        "%s is of payload version %" PRIu32 " and has %" PRIu64
                        " bytes in a sidecar, not %" PRIu32 " and %" PRIu64,
                        file_name(&about->file), about->payload_version,
                        about->sidecar_bytes, limits->payload_version,
                        limits->sidecar_bytes);
  }
  if (differs && !about->read_only) {
    if ((status = check_writable(disk))
        || (status = disk_index_describe(about, limits->payload_version,
                                         limits->sidecar_bytes))) {
      return status;
    }
  }
  disk->limits = *limits;
  staging_bind(&disk->staging, (size_t)limits->payload_alignment,
               (size_t)limits->sidecar_bytes, (size_t)limits->sidecar_alignment);
  return DEVITOCOMP_OK;
}

static int disk_bind(layer_t *layer, const devitocomp_limits_t *limits)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;
  int status;

  pthread_mutex_lock(&disk->lock);
  status = bind(disk, limits);
  pthread_mutex_unlock(&disk->lock);
  return status;
}

static int disk_discard(layer_t *layer)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;
  int status = check_writable(disk);

  if (status || (status = disk_index_clear(&disk->index))) {
    return status;
  }
  staging_drop(&disk->staging);
  extents_free(&disk->holes);
  disk->end = DATA_START;
  disk->reserved = -1;
  return trim(disk);
}

static int sync_directory(layer_disk_t *disk)
{
  char *const message = disk->layer.message;
  const size_t length = strlen(disk->data.path) - sizeof(name);
  file_t directory = {-1, strndup(disk->data.path, length)};
  int status;

  if (!directory.path) {
    return out_of_memory(disk, length, "a path");
  }
  status = file_open(&directory, O_RDONLY | O_DIRECTORY, NULL, message);
  if (!status) {
    status = file_sync(&directory, message);
  }
  file_free(&directory);
  return status;
}

static int disk_sync(layer_t *layer)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;
  int status;

  if (disk->index.read_only || !disk->attached) {
    return DEVITOCOMP_OK;
  }
  if ((status = file_sync(&disk->data, layer->message))
      || (status = file_sync(&disk->index.file, layer->message))) {
    return status;
  }
  if (disk->created && !(status = sync_directory(disk))) {
    disk->created = 0;
  }
  return status;
}

static void disk_usage(const layer_t *layer, devitocomp_usage_t *usage)
{
  const layer_disk_t *const disk = (const layer_disk_t *)layer;
  const uint64_t count = (uint64_t)disk->index.nsnapshots;

  usage->stored_bytes = disk->index.stored_bytes
    + (uint64_t)disk->index.nstored * disk->index.sidecar_bytes;
  usage->resident_bytes = staging_resident(&disk->staging);
  usage->metadata_bytes = sizeof(*disk)
    + count * (sizeof(*disk->index.entries) + sizeof(*disk->staging.places))
    + disk->holes.room * sizeof(extent_t)
    + strlen(disk->data.path) + strlen(disk->index.file.path);
}

static void disk_destroy(layer_t *layer)
{
  layer_disk_t *const disk = (layer_disk_t *)layer;

  staging_free(&disk->staging);
  extents_free(&disk->holes);
  file_free(&disk->data);
  disk_index_free(&disk->index);
  pthread_mutex_destroy(&disk->lock);
  free(disk);
}

/* *** Opening */

static int create_files(layer_disk_t *disk)
{
  char *const message = disk->layer.message;
  disk_header_t header;
  struct iovec part = {&header, sizeof(header)};
  int status;

  /* The index comes last: with it there is a store. */
  disk_header_make(&header, magic, disk->index.store_id);
  if ((status = file_open(&disk->data, O_RDWR | O_CREAT | O_TRUNC, NULL, message))
      || (status = file_write(&disk->data, &part, 1, 0, message))
      || (status = disk_index_create(&disk->index))) {
    return status;
  }
  disk->created = disk->attached = 1;
  disk->end = disk->written = DATA_START;
  return DEVITOCOMP_OK;
}

/* There is no index. Make sure that there never was one. */
static int check_absence(layer_disk_t *disk)
{
  char *const message = disk->layer.message;
  uint64_t bytes = 0;
  int missing, status;

  status = file_open(&disk->data, O_RDONLY, &missing, message);
  if (status || missing) {
    return status;
  }
  status = file_size(&disk->data, &bytes, message);
  file_close(&disk->data);
  if (!status && bytes > DATA_START) {
    return file_explain(message, DEVITOCOMP_CORRUPT_PAYLOAD,
                        "%s is missing, although there are snapshots in %s",
                        file_name(&disk->index.file), name);
  }
  return status;
}

static int compare_extents(const void *a, const void *b)
{
  const uint64_t first = ((const extent_t *)a)->start;
  const uint64_t second = ((const extent_t *)b)->start;

  return first < second ? -1 : first > second;
}

/* Find out what is free in the data file. */
static int find_holes(layer_disk_t *disk)
{
  const size_t most = (size_t)disk->index.nstored;
  extent_t *const used = malloc((most ? most : 1) * sizeof(*used));
  size_t count = 0, i;
  int64_t k;

  if (!used || !extents_prepare(&disk->holes, most)) {
    free(used);
    return out_of_memory(disk, most * sizeof(*used), "bookkeeping");
  }
  for (k = 0; k < disk->index.nsnapshots; k++) {
    const disk_entry_t *const entry = &disk->index.entries[k];
    if (entry->sequence) {
      used[count].start = entry->offset;
      used[count++].bytes = extent_of(disk, entry->bytes);
    }
  }
  qsort(used, count, sizeof(*used), compare_extents);
  disk->end = DATA_START;
  for (i = 0; i < count; i++) {
    if (used[i].start > disk->end && used[i].bytes) {
      extents_add(&disk->holes, disk->end, used[i].start - disk->end);
    }
    if (used[i].bytes && used[i].start + used[i].bytes > disk->end) {
      disk->end = used[i].start + used[i].bytes;
    }
  }
  free(used);
  return DEVITOCOMP_OK;
}

static int open_data(layer_disk_t *disk)
{
  char *const message = disk->layer.message;
  const int flags = disk->index.read_only ? O_RDONLY : O_RDWR;
  disk_header_t header;
  struct iovec part = {&header, sizeof(header)};
  int status;

  if ((status = file_open(&disk->data, flags, NULL, message))) {
    return status;
  }
  if ((status = file_read(&disk->data, &part, 1, 0, message))
      || (status = disk_header_check(&header, &disk->data, magic, disk->index.store_id,
                                     message))
      || (status = file_size(&disk->data, &disk->written, message))) {
    file_close(&disk->data);
    return status;
  }
  disk->attached = 1;
  if (disk->index.read_only) {
    return DEVITOCOMP_OK;
  }
  return (status = find_holes(disk)) ? status : trim(disk);
}

static int open_files(layer_disk_t *disk)
{
  int missing, status;

  if ((status = disk_index_open(&disk->index, &missing))) {
    return status;
  }
  if (!missing) {
    status = open_data(disk);
    if (status) {
      file_close(&disk->index.file);
    }
    return status;
  }
  status = check_absence(disk);
  return status || disk->index.read_only ? status : create_files(disk);
}

layer_t *layer_disk_create(const devitocomp_store_config_t *config,
                           const devitocomp_disk_t *where, int *status, char *message)
{
  static const layer_ops_t ops = {
    .reserve = disk_reserve,
    .commit = disk_commit,
    .abandon = disk_abandon,
    .mark = disk_mark,
    .holds = disk_holds,
    .acquire = disk_acquire,
    .release = disk_release,
    .payload_bytes = disk_payload_bytes,
    .settle = disk_settle,
    .bind = disk_bind,
    .discard = disk_discard,
    .sync = disk_sync,
    .usage = disk_usage,
    .destroy = disk_destroy,
  };
  layer_disk_t *const disk = calloc(1, sizeof(*disk));
  disk_index_t *about;

  *status = DEVITOCOMP_OUT_OF_MEMORY;
  strcpy(message, "cannot allocate host memory for bookkeeping");
  if (!disk) {
    return NULL;
  }
  about = &disk->index;
  disk->layer.ops = &ops;
  disk->owner = getpid();
  pthread_mutex_init(&disk->lock, NULL);
  disk->reserved = disk->last = -1;
  disk->keeps_cache = where->cache_bytes > 0;
  about->message = disk->layer.message;
  about->read_only = where->read_only;
  about->store_id = where->store_id;
  about->nsnapshots = config->nsnapshots;
  about->dtype = config->dtype;
  about->rank = config->rank;
  memcpy(about->dims, config->dims, config->rank * sizeof(*config->dims));
  disk->data.fd = about->file.fd = -1;
  if (disk_index_init(about, where->directory)
      && file_init(&disk->data, where->directory, name)
      && staging_init(&disk->staging, config->nsnapshots, (size_t)where->cache_bytes)) {
    *status = open_files(disk);
    memcpy(message, disk->layer.message, sizeof(disk->layer.message));
  }
  if (*status) {
    disk_destroy(&disk->layer);
    return NULL;
  }
  return &disk->layer;
}
