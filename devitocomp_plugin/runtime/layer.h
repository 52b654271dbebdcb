/*
 * layer.h -- what a place where payloads rest offers to the store in front of it.
 *
 * The store knows views, runs, failures and statistics; a layer knows bytes and where
 * they lie. One call at a time is made to a layer, and one room is reserved at a time.
 *
 * A layer learns its access pattern from the calls: the indices of successive acquires
 * show the direction to read ahead in. The kind of memory that room and content live in
 * is the layer's own choice; for the host layer, any host thread can access it.
 */
#ifndef DEVITOCOMP_LAYER_H
#define DEVITOCOMP_LAYER_H

#include "devitocomp_store.h"

/* What follows a room or a spare sidecar, in bytes: the store's, to detect overruns. */
#define LAYER_GUARD_BYTES 64

/* The largest alignment that a layer must provide. */
#define LAYER_MAX_ALIGNMENT 4096

typedef struct layer layer_t;

/* Room for a snapshot, or a stored one. */
typedef struct layer_span {
  void *payload;  /* never NULL, aligned as the limits ask */
  size_t bytes;
  void *sidecar;  /* NULL if the limits ask for none */
} layer_span_t;

/* Functions that return an int, without further ado, return a devitocomp_status_t or
   DEVITOCOMP_IO_ERROR, and explain a failure in layer_t.message. A failure leaves stored
   snapshots as they were. */
typedef struct layer_ops {
  /* Make room for a snapshot of at most capacity bytes, followed by a guard; the same
     for its sidecar, which is zeroed. What index holds stays as it is. */
  int (*reserve)(layer_t *layer, int64_t index, size_t capacity, layer_span_t *room);

  /* Let the first bytes of the reserved room become the content of its index. */
  int (*commit)(layer_t *layer, size_t bytes);

  /* Forget the reserved room. */
  void (*abandon)(layer_t *layer);

  /* Remember that a snapshot without points was stored. NULL if nothing of the layer
     outlives the store. */
  int (*mark)(layer_t *layer, int64_t index);

  /* Nonzero if index has content: committed here, or by whoever else may. */
  int (*holds)(layer_t *layer, int64_t index);

  /* Find the content of an index, which it holds. It stays valid until the next reserve,
     acquire, bind, settle or discard. */
  int (*acquire)(layer_t *layer, int64_t index, layer_span_t *content);

  /* Nobody reads what was last acquired any more. */
  void (*release)(layer_t *layer, int64_t index);

  /* Bytes in the payload of an index, which it holds. */
  size_t (*payload_bytes)(const layer_t *layer, int64_t index);

  /* A run is over: give back what only the next one could use. */
  void (*settle)(layer_t *layer);

  /* Work within those limits from now on. DEVITOCOMP_INVALID_ARGUMENT if there is content
     that does not obey them. */
  int (*bind)(layer_t *layer, const devitocomp_limits_t *limits);

  /* Drop all content and what it occupies. */
  int (*discard)(layer_t *layer);

  /* Guard all content against a power failure. NULL if that is in vain. */
  int (*sync)(layer_t *layer);

  void (*usage)(const layer_t *layer, devitocomp_usage_t *usage);
  void (*destroy)(layer_t *layer);
} layer_ops_t;

#define LAYER_MESSAGE_BYTES 512

/* The beginning of every layer. */
struct layer {
  const layer_ops_t *ops;
  char message[LAYER_MESSAGE_BYTES];
};

/* Payloads in that memory, or in the host's if it is NULL; NULL if out of memory. */
layer_t *layer_host_create(int64_t nsnapshots, const devitocomp_memory_t *memory);

/* Payloads in files; NULL on failure, which *status and message tell, the latter having
   room for LAYER_MESSAGE_BYTES. */
layer_t *layer_disk_create(const devitocomp_store_config_t *config,
                           const devitocomp_disk_t *disk, int *status, char *message);

#endif /* DEVITOCOMP_LAYER_H */
