/* disk_index.c -- see disk_index.h. */
#define _GNU_SOURCE
#include "disk_index.h"
#include "checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "snapshots.index";
static const char name_of_new[] = "snapshots.index.new";
static const char magic[] = "DVTCOMPI";

#define BYTE_ORDER_MARK UINT32_C(0x01020304)

/* How often a reader looks again, when the writer seems to be in the middle of it. */
#define PATIENCE 20

typedef struct index_header {
  disk_header_t header;
  int64_t nsnapshots;
  uint32_t dtype;
  uint32_t rank;
  int64_t dims[DEVITOCOMP_MAX_RANK];
  uint64_t reserved[13];
  uint64_t seal;
} index_header_t;

/* What is written at once, the seal last. Zero means that it was not written to its end. */
typedef struct cell {
  uint64_t sequence;
  int64_t snapshot;  /* STATE if it is about the store as a whole */
  uint64_t epoch;
  union {
    struct {
      uint64_t offset;
      uint64_t bytes;
      uint64_t checksum;
      uint64_t digest;
    } record;
    struct {
      uint64_t described;
      uint64_t payload_version;
      uint64_t sidecar_bytes;
      uint64_t reserved;
    } state;
  } of;
  uint64_t seal;
} cell_t;

typedef struct pair {
  cell_t cells[2];
} pair_t;

enum { STATE = -1 };

/* The layout of the file must not depend on the compiler. */
typedef char check_header[sizeof(disk_header_t) == 64 ? 1 : -1];
typedef char check_index_header[sizeof(index_header_t) == 256 ? 1 : -1];
typedef char check_cell[sizeof(cell_t) == 64 ? 1 : -1];

static uint64_t position_of(int64_t snapshot)
{
  return sizeof(index_header_t) + (uint64_t)(snapshot - STATE) * sizeof(pair_t);
}

/* *** Seals */

static uint64_t seal_of(uint64_t seed, const void *data, size_t bytes)
{
  const uint64_t seal = checksum(seed, data, bytes);

  return seal ? seal : 1;
}

static uint64_t cell_seal(const disk_index_t *index, const cell_t *cell)
{
  return seal_of(index->store_id, cell, offsetof(cell_t, seal));
}

void disk_header_make(disk_header_t *header, const char *text, uint64_t store_id)
{
  memset(header, 0, sizeof(*header));
  memcpy(header->magic, text, sizeof(header->magic));
  header->byte_order = BYTE_ORDER_MARK;
  header->format = DISK_FORMAT;
  header->store_id = store_id;
  header->seal = seal_of(0, header, offsetof(disk_header_t, seal));
}

int disk_header_check(const disk_header_t *header, const file_t *file, const char *text,
                      uint64_t store_id, char *message)
{
  const char *const path = file_name(file);

  if (memcmp(header->magic, text, sizeof(header->magic))) {
    return file_explain(message, DEVITOCOMP_CORRUPT_PAYLOAD,
                        "%s is a foreign file: it does not begin with %s", path, text);
  }
  if (header->byte_order != BYTE_ORDER_MARK) {
    return file_explain(message, DEVITOCOMP_UNSUPPORTED,
                        "%s was written on a machine of another byte order", path);
  }
  if (header->format != DISK_FORMAT) {
    return file_explain(message, DEVITOCOMP_VERSION_MISMATCH,
                        "%s has format version %" PRIu32 ", and only %d can be used",
                        path, header->format, DISK_FORMAT);
  }
  if (header->seal != seal_of(0, header, offsetof(disk_header_t, seal))) {
    return file_explain(message, DEVITOCOMP_CORRUPT_PAYLOAD, "%s has a damaged header",
                        path);
  }
  if (header->store_id != store_id) {
    return file_explain(message, DEVITOCOMP_CORRUPT_PAYLOAD,
                        "%s belongs to another store: its identity is %016" PRIx64
                        ", not %016" PRIx64, path, header->store_id, store_id);
  }
  return DEVITOCOMP_OK;
}

/* *** Entries */

int disk_index_holds(const disk_index_t *index, int64_t snapshot)
{
  const disk_entry_t *const entry = &index->entries[snapshot];

  return entry->sequence || entry->damaged;
}

static uint64_t digest_of(const disk_index_t *index, int64_t snapshot, uint64_t sequence)
{
  const uint64_t words[2] = {(uint64_t)snapshot, sequence};

  return sequence ? checksum(index->store_id, words, sizeof(words)) : 0;
}

/* Replace what is known about a snapshot. */
static void set_entry(disk_index_t *index, int64_t snapshot, const disk_entry_t *entry)
{
  disk_entry_t *const old = &index->entries[snapshot];

  index->nstored -= disk_index_holds(index, snapshot);
  index->stored_bytes -= old->bytes;
  index->digest -= digest_of(index, snapshot, old->sequence);
  *old = *entry;
  index->nstored += disk_index_holds(index, snapshot);
  index->stored_bytes += old->bytes;
  index->digest += digest_of(index, snapshot, old->sequence);
}

/*
 * Find out which of two cells counts, of those with the right epoch (of all for the
 * state). Returns it, or NULL if none does.
 */
static const cell_t *choose(const disk_index_t *index, int64_t snapshot,
                            const pair_t *pair, disk_entry_t *entry)
{
  const cell_t *best = NULL;
  int i;

  memset(entry, 0, sizeof(*entry));
  for (i = 0; i < 2; i++) {
    const cell_t *const cell = &pair->cells[i];
    if (!cell->seal) {
      continue;
    }
    entry->used |= (uint8_t)(1 << i);
    if (cell->seal != cell_seal(index, cell)) {
      entry->damaged |= (uint8_t)(1 << i);
    } else if (cell->snapshot != snapshot) {
      entry->damaged |= (uint8_t)(1 << i);
      entry->misplaced |= (uint8_t)(1 << i);
    } else if ((snapshot == STATE || cell->epoch == index->epoch)
               && (!best || cell->sequence > best->sequence)) {
      best = cell;
      entry->cell = (uint8_t)i;
    }
  }
  /* A damaged cell may be the newer one. */
  if (entry->damaged) {
    return NULL;
  }
  if (best) {
    entry->sequence = best->sequence;
    if (snapshot != STATE) {
      entry->offset = best->of.record.offset;
      entry->bytes = best->of.record.bytes;
      entry->checksum = best->of.record.checksum;
    }
  }
  return best;
}

int disk_index_explain_damage(const disk_index_t *index, int64_t snapshot)
{
  return file_explain(index->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                      "%s is damaged: %s where it describes snapshot %" PRId64,
                      file_name(&index->file),
                      index->entries[snapshot].misplaced
                        ? "there is the record of another one"
                        : "a checksum does not match", snapshot);
}

/* *** Reading */

static int read_at(const disk_index_t *index, void *data, size_t bytes, uint64_t offset)
{
  struct iovec part = {data, bytes};

  return file_read(&index->file, &part, 1, offset, index->message);
}

static int check_file(const disk_index_t *index)
{
  const uint64_t wanted = position_of(index->nsnapshots);
  const char *const path = file_name(&index->file);
  const int corrupt = DEVITOCOMP_CORRUPT_PAYLOAD;
  const int differs = DEVITOCOMP_INVALID_ARGUMENT;
  char *const message = index->message;
  index_header_t found;
  uint64_t bytes;
  uint32_t i;
  int status;

  if ((status = file_size(&index->file, &bytes, message))) {
    return status;
  }
  if (bytes < sizeof(found)) {
    return file_explain(message, corrupt, "%s is truncated to %" PRIu64 " bytes", path,
                        bytes);
  }
  if ((status = read_at(index, &found, sizeof(found), 0))
      || (status = disk_header_check(&found.header, &index->file, magic, index->store_id,
                                     message))) {
    return status;
  }
  if (found.seal != seal_of(index->store_id, &found, offsetof(index_header_t, seal))) {
    return file_explain(message, corrupt, "%s has a damaged header", path);
  }
  if (found.nsnapshots != index->nsnapshots) {
    return file_explain(message, differs,
                        "%s is of %" PRId64 " snapshots, not of %" PRId64, path,
                        found.nsnapshots, index->nsnapshots);
  }
  if (found.dtype != index->dtype) {
    return file_explain(message, differs, "%s is of dtype %" PRIu32 ", not %" PRIu32,
                        path, found.dtype, index->dtype);
  }
  if (found.rank != index->rank) {
    return file_explain(message, differs, "%s is of rank %" PRIu32 ", not %" PRIu32, path,
                        found.rank, index->rank);
  }
  for (i = 0; i < index->rank; i++) {
    if (found.dims[i] != index->dims[i]) {
      return file_explain(message, differs,
                          "%s is of snapshots with %" PRId64 " points along dimension %"
                          PRIu32 ", not %" PRId64, path, found.dims[i], i,
                          index->dims[i]);
    }
  }
  if (bytes != wanted) {
    return file_explain(message, corrupt, "%s is %s to %" PRIu64 " bytes from %" PRIu64,
                        path, bytes < wanted ? "truncated" : "extended", bytes, wanted);
  }
  return DEVITOCOMP_OK;
}

/* Read the state of the store as a whole, without looking at snapshots. */
static int load_state(disk_index_t *index)
{
  const cell_t *cell;
  pair_t pair;
  int status;

  if ((status = read_at(index, &pair, sizeof(pair), position_of(STATE)))) {
    return status;
  }
  cell = choose(index, STATE, &pair, &index->state_cells);
  if (index->state_cells.damaged) {
    return file_explain(index->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                        "%s is damaged: a checksum does not match at byte %" PRIu64,
                        file_name(&index->file), position_of(STATE));
  }
  index->epoch = cell ? cell->epoch : 0;
  index->described = cell && cell->of.state.described;
  index->payload_version = cell ? (uint32_t)cell->of.state.payload_version : 0;
  index->sidecar_bytes = cell ? cell->of.state.sidecar_bytes : 0;
  return DEVITOCOMP_OK;
}

/*
 * Whether all that was committed is there, by the digest in the latest record: what is
 * blank may have been lost, and what is old may have been replaced. One snapshot may be
 * damaged: then the digest tells what it was, or else that this is not all.
 */
static int is_complete(const disk_index_t *index, uint64_t expected, int64_t ndamaged,
                       int64_t damaged)
{
  const uint64_t missing = expected - index->digest;
  uint64_t sequence;

  if (!missing) {
    return ndamaged < 2;
  }
  for (sequence = 1; ndamaged == 1 && sequence <= index->sequence + 1; sequence++) {
    if (missing == digest_of(index, damaged, sequence)) {
      return 1;
    }
  }
  return 0;
}

/* Read all. *complete is set to whether no record is missing. */
static int load_once(disk_index_t *index, int *complete)
{
  enum { BATCH = 1024 };
  pair_t *const pairs = malloc(BATCH * sizeof(*pairs));
  uint64_t expected = 0;
  int64_t ndamaged = 0, damaged = 0;
  int64_t first, i, n;
  int status = DEVITOCOMP_OK;
  int k;

  if (!pairs) {
    return file_explain(index->message, DEVITOCOMP_OUT_OF_MEMORY,
                        "cannot allocate %zu bytes to read %s", BATCH * sizeof(*pairs),
                        file_name(&index->file));
  }
  status = load_state(index);
  index->sequence = 0;
  for (first = 0; !status && first < index->nsnapshots; first += n) {
    n = index->nsnapshots - first < BATCH ? index->nsnapshots - first : BATCH;
    status = read_at(index, pairs, (size_t)n * sizeof(*pairs), position_of(first));
    for (i = 0; !status && i < n; i++) {
      disk_entry_t entry;
      (void)choose(index, first + i, &pairs[i], &entry);
      for (k = 0; k < 2; k++) {
        const cell_t *const cell = &pairs[i].cells[k];
        /* Wherever it is found, the latest record is the one to believe. */
        if (cell->seal && !((entry.damaged & ~entry.misplaced) & 1 << k)
            && cell->snapshot != STATE && cell->epoch == index->epoch
            && cell->sequence > index->sequence) {
          index->sequence = cell->sequence;
          expected = cell->of.record.digest;
        }
      }
      if (entry.damaged) {
        damaged = first + i;
        ndamaged++;
      }
      set_entry(index, first + i, &entry);
    }
  }
  free(pairs);
  *complete = is_complete(index, expected, ndamaged, damaged)
    && (index->described || !index->stored_bytes);
  return status;
}

static int load(disk_index_t *index)
{
  int attempt, complete, status;

  for (attempt = 0; attempt < PATIENCE; attempt++) {
    const uint64_t sequence = index->sequence;
    if ((status = load_once(index, &complete)) || complete) {
      return status;
    }
    if (!index->read_only || (attempt && index->sequence == sequence)) {
      return file_explain(index->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                          "%s is damaged: records of snapshots that were committed are "
                          "missing", file_name(&index->file));
    }
    sched_yield();
  }
  /* A writer is at it, which has seen for itself that nothing is missing. */
  return DEVITOCOMP_OK;
}

int disk_index_open(disk_index_t *index, int *missing)
{
  int status = file_open(&index->file, index->read_only ? O_RDONLY : O_RDWR, missing,
                         index->message);

  if (status || *missing) {
    return status;
  }
  if ((status = check_file(index)) || (status = load(index))) {
    file_close(&index->file);
  }
  return status;
}

int disk_index_look(disk_index_t *index, int64_t snapshot)
{
  const uint64_t epoch = index->epoch;
  disk_entry_t entry;
  pair_t pair;
  int attempt, status;

  for (attempt = 0; attempt < PATIENCE; attempt++) {
    if ((status = load_state(index))) {
      sched_yield();
      continue;
    }
    if (index->epoch != epoch) {
      return load(index);
    }
    if ((status = read_at(index, &pair, sizeof(pair), position_of(snapshot)))) {
      return status;
    }
    (void)choose(index, snapshot, &pair, &entry);
    set_entry(index, snapshot, &entry);
    if (!entry.damaged) {
      break;
    }
    sched_yield();
  }
  return status;
}

/* *** Writing */

static int write_at(disk_index_t *index, const void *data, size_t bytes, uint64_t offset)
{
  struct iovec part = {(void *)(uintptr_t)data, bytes};

  return file_write(&index->file, &part, 1, offset, index->message);
}

/* Let a cell count no more. So few bytes are written all or none. */
static int break_seal(disk_index_t *index, int64_t snapshot, int i)
{
  static const uint64_t blank = 0;

  return write_at(index, &blank, sizeof(blank),
                  position_of(snapshot) + (uint64_t)i * sizeof(cell_t)
                    + offsetof(cell_t, seal));
}

/* Seal a cell and let it count, instead of the two that there are. */
static int replace(disk_index_t *index, cell_t *cell, disk_entry_t *entry)
{
  const int64_t snapshot = cell->snapshot;
  const int to = entry->damaged ? !(entry->damaged & 1)
                                : entry->sequence ? !entry->cell : 0;
  const uint64_t position = position_of(snapshot) + (uint64_t)to * sizeof(*cell);
  int status, i;

  if (index->broken) {
    return file_explain(index->message, DEVITOCOMP_IO_ERROR,
                        "%s could not be written to before; open the store again",
                        file_name(&index->file));
  }
  /* Were the new one not written to its end, it would have a blank seal, not another's. */
  for (i = 0; i < 2; i++) {
    if (entry->used & (1 << i) && (i == to || entry->damaged & (1 << i))) {
      if ((status = break_seal(index, snapshot, i))) {
        return status;
      }
    }
  }
  cell->seal = cell_seal(index, cell);
  status = write_at(index, cell, sizeof(*cell), position);
  if (status) {
    /* It is not to turn up later, all the same. */
    char message[LAYER_MESSAGE_BYTES];
    memcpy(message, index->message, sizeof(message));
    index->broken = break_seal(index, snapshot, to) != DEVITOCOMP_OK;
    memcpy(index->message, message, sizeof(message));
    return status;
  }
  entry->sequence = cell->sequence;
  entry->cell = (uint8_t)to;
  entry->used = (uint8_t)((entry->used & ~entry->damaged) | 1 << to);
  entry->damaged = entry->misplaced = 0;
  return DEVITOCOMP_OK;
}

int disk_index_commit(disk_index_t *index, int64_t snapshot, uint64_t offset,
                      uint64_t bytes, uint64_t content)
{
  disk_entry_t entry = index->entries[snapshot];
  cell_t cell;
  int status;

  memset(&cell, 0, sizeof(cell));
  cell.sequence = index->sequence + 1;
  cell.snapshot = snapshot;
  cell.epoch = index->epoch;
  cell.of.record.offset = offset;
  cell.of.record.bytes = bytes;
  cell.of.record.checksum = content;
  cell.of.record.digest = index->digest - digest_of(index, snapshot, entry.sequence)
    + digest_of(index, snapshot, cell.sequence);
  if ((status = replace(index, &cell, &entry))) {
    return status;
  }
  entry.offset = offset;
  entry.bytes = bytes;
  entry.checksum = content;
  set_entry(index, snapshot, &entry);
  index->sequence = cell.sequence;
  return DEVITOCOMP_OK;
}

static int write_state(disk_index_t *index, uint64_t epoch, int described,
                       uint32_t payload_version, uint64_t sidecar_bytes)
{
  cell_t cell;

  memset(&cell, 0, sizeof(cell));
  cell.sequence = index->state_cells.sequence + 1;
  cell.snapshot = STATE;
  cell.epoch = epoch;
  cell.of.state.described = (uint64_t)described;
  cell.of.state.payload_version = payload_version;
  cell.of.state.sidecar_bytes = sidecar_bytes;
  return replace(index, &cell, &index->state_cells);
}

int disk_index_describe(disk_index_t *index, uint32_t payload_version,
                        uint64_t sidecar_bytes)
{
  const int status = write_state(index, index->epoch, 1, payload_version, sidecar_bytes);

  if (!status) {
    index->described = 1;
    index->payload_version = payload_version;
    index->sidecar_bytes = sidecar_bytes;
  }
  return status;
}

int disk_index_clear(disk_index_t *index)
{
  const int status = write_state(index, index->epoch + 1, index->described,
                                 index->payload_version, index->sidecar_bytes);
  int64_t i;
  int k;

  if (status) {
    return status;
  }
  index->epoch++;
  for (i = 0; i < index->nsnapshots; i++) {
    disk_entry_t entry = {0};
    entry.used = index->entries[i].used;
    for (k = 0; k < 2; k++) {
      /* Its epoch cannot be told. */
      if (index->entries[i].damaged & (1 << k)) {
        (void)break_seal(index, i, k);
      }
    }
    set_entry(index, i, &entry);
  }
  return DEVITOCOMP_OK;
}

/* *** Lifetime */

int disk_index_init(disk_index_t *index, const char *directory)
{
  const size_t count = index->nsnapshots ? (size_t)index->nsnapshots : 1;

  index->entries = calloc(count, sizeof(*index->entries));
  return index->entries && file_init(&index->file, directory, name);
}

void disk_index_free(disk_index_t *index)
{
  file_free(&index->file);
  free(index->entries);
}

int disk_index_create(disk_index_t *index)
{
  const size_t directory_bytes = strlen(index->file.path) - sizeof(name);
  char *const directory = strndup(index->file.path, directory_bytes);
  file_t file = {-1, NULL};
  index_header_t header;
  struct iovec part = {&header, sizeof(header)};
  int status;

  if (!directory || !file_init(&file, directory, name_of_new)) {
    free(directory);
    return file_explain(index->message, DEVITOCOMP_OUT_OF_MEMORY, "out of memory");
  }
  free(directory);
  memset(&header, 0, sizeof(header));
  disk_header_make(&header.header, magic, index->store_id);
  header.nsnapshots = index->nsnapshots;
  header.dtype = index->dtype;
  header.rank = index->rank;
  memcpy(header.dims, index->dims, index->rank * sizeof(*header.dims));
  header.seal = seal_of(index->store_id, &header, offsetof(index_header_t, seal));

  status = file_open(&file, O_RDWR | O_CREAT | O_TRUNC, NULL, index->message);
  if (!status && !(status = file_resize(&file, position_of(index->nsnapshots),
                                        index->message))) {
    status = file_write(&file, &part, 1, 0, index->message);
  }
  if (!status && rename(file.path, index->file.path)) {
    status = file_explain(index->message, DEVITOCOMP_IO_ERROR, "cannot make %s: %s",
                          file_name(&index->file), strerror(errno));
  }
  if (!status) {
    index->file.fd = file.fd;
    file.fd = -1;
  } else if (file.fd >= 0) {
    (void)remove(file.path);
  }
  file_free(&file);
  return status;
}
