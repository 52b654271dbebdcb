/*
 * disk_index.h -- the file that tells which snapshots a store on disk holds, and where.
 *
 * docs/store-format.md describes it byte for byte. A snapshot has two cells, which are
 * written in turn: the newer one counts, and the older one is there until it is complete.
 */
#ifndef DEVITOCOMP_DISK_INDEX_H
#define DEVITOCOMP_DISK_INDEX_H

#include "file.h"

/* Version of the files, and how they begin. */
#define DISK_FORMAT 1

typedef struct disk_header {
  char magic[8];
  uint32_t byte_order;
  uint32_t format;
  uint64_t store_id;
  uint64_t reserved[4];
  uint64_t seal;  /* the checksum of what precedes it */
} disk_header_t;

/* Fill in a header. */
void disk_header_make(disk_header_t *header, const char *magic, uint64_t store_id);

/* Check a header that was read from a file. */
int disk_header_check(const disk_header_t *header, const file_t *file, const char *magic,
                      uint64_t store_id, char *message);

/* What is known about a snapshot. */
typedef struct disk_entry {
  uint64_t sequence;  /* of its latest commit; 0 if there was none */
  uint64_t offset;    /* in the data file: the payload, then the sidecar */
  uint64_t bytes;     /* of the payload */
  uint64_t checksum;  /* of payload and sidecar */
  uint8_t cell;       /* which of the two holds this */
  uint8_t used;       /* bit n: cell n has a seal */
  uint8_t damaged;    /* bit n: cell n holds no record; then the others count for nothing */
  uint8_t misplaced;  /* bit n: cell n holds the record of another snapshot */
} disk_entry_t;

typedef struct disk_index {
  file_t file;
  int read_only;
  char *message;  /* where failures are explained */

  uint64_t store_id;
  uint32_t dtype;
  uint32_t rank;
  int64_t nsnapshots;
  int64_t dims[DEVITOCOMP_MAX_RANK];

  disk_entry_t *entries;
  int64_t nstored;        /* with damaged ones */
  uint64_t stored_bytes;  /* payloads */

  /* Of the store as a whole. */
  disk_entry_t state_cells;
  uint64_t epoch;  /* changes when all is dropped */
  int described;   /* payload_version and sidecar_bytes are known */
  uint32_t payload_version;
  uint64_t sidecar_bytes;

  uint64_t sequence;  /* of the latest commit */
  uint64_t digest;    /* over all snapshots and the sequence of their latest commit */
  int broken;         /* the file may differ from what is known here */
} disk_index_t;

/* Get memory. The identity (from store_id to dims) must be set. Returns nonzero on
   success. */
int disk_index_init(disk_index_t *index, const char *directory);
void disk_index_free(disk_index_t *index);

/* Open the file and read it. *missing is set to whether there is none, which is no
   failure. */
int disk_index_open(disk_index_t *index, int *missing);

/* Make the file, which appears only when it is complete. */
int disk_index_create(disk_index_t *index);

/* Look at the file again, as far as one snapshot is concerned. For readers. */
int disk_index_look(disk_index_t *index, int64_t snapshot);

/* Record that a snapshot lies in the data file. */
int disk_index_commit(disk_index_t *index, int64_t snapshot, uint64_t offset,
                      uint64_t bytes, uint64_t content);

/* Record what payloads are like. */
int disk_index_describe(disk_index_t *index, uint32_t payload_version,
                        uint64_t sidecar_bytes);

/* Record that there are no snapshots any more. */
int disk_index_clear(disk_index_t *index);

/* Nonzero if a snapshot was ever committed, and perhaps damaged since. */
int disk_index_holds(const disk_index_t *index, int64_t snapshot);

/* Explain why a snapshot whose record is damaged cannot be read. */
int disk_index_explain_damage(const disk_index_t *index, int64_t snapshot);

#endif /* DEVITOCOMP_DISK_INDEX_H */
