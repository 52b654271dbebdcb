/*
 * devitocomp_store.h -- where the compressed snapshots of one function live.
 *
 * Generated code includes this header next to devitocomp.h. It never sees how a layer
 * stores bytes: it asks the store for room, lets the provider fill it, and commits; or
 * asks for a snapshot, lets the provider decode it, and releases.
 *
 *     slot = devitocomp_store_reserve(store, index, view);
 *     if (slot.ready) {
 *       status = devitocomp_compress(plan, &exec, slot.tensor, slot.payload,
 *                                    slot.capacity, &slot.payload_bytes, slot.sidecar);
 *       devitocomp_store_commit(store, &slot, status, devitocomp_message(plan));
 *     }
 *
 *     slot = devitocomp_store_acquire(store, index, view, 0);
 *     if (slot.ready) {
 *       status = devitocomp_decompress(plan, &exec, slot.payload, slot.payload_bytes,
 *                                      slot.sidecar, slot.tensor);
 *       devitocomp_store_release(store, &slot, status, devitocomp_message(plan));
 *     }
 *
 * A store is sticky: the first failure is kept, later calls do nothing (ready is 0), and
 * devitocomp_store_failed tells. Whoever runs the generated code reads the failure and
 * begins the next run with devitocomp_store_begin, which clears it.
 *
 * One run (from begin to end) may use a store at a time; within a run, one thread, which
 * commits or releases a slot before it asks for the next. (Others may ask whether the
 * store has failed.)
 *
 * Snapshots in the memory of a device
 * -----------------------------------
 * The view's kind says so. The store then copies nothing: such views have to be contiguous,
 * they are not remembered, and where a snapshot was never written the caller zeroes the
 * view. Unless devitocomp_store_kind is the view's kind, payloads are host memory: whoever
 * compresses on the device copies them to slot.payload before the commit, and from there
 * after the acquire.
 */
#ifndef DEVITOCOMP_STORE_H
#define DEVITOCOMP_STORE_H

#include "devitocomp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct devitocomp_store devitocomp_store_t;

/*
 * One snapshot as it lies, uncompressed, in memory: the domain (no halo, no padding) of
 * a Devito function at one time index.
 */
typedef struct devitocomp_view {
  void *data;       /* the function's whole allocation */
  int64_t offset;   /* of the first domain point, in elements */
  uint32_t rank;    /* space dimensions */
  uint32_t kind;    /* a devitocomp_execution_kind_t: who can access data */
  int64_t dims[DEVITOCOMP_MAX_RANK];
  int64_t strides[DEVITOCOMP_MAX_RANK];  /* in elements */
} devitocomp_view_t;

/* What a provider call needs to know about one snapshot. */
typedef struct devitocomp_slot {
  int ready;             /* nonzero if the provider is to be called */
  int64_t index;         /* of the snapshot */
  void *tensor;          /* its first element: in the view, or in contiguous staging */
  void *payload;
  size_t capacity;       /* bytes available at payload (reserve) */
  size_t payload_bytes;  /* set by compress; given to decompress */
  void *sidecar;
  double start;          /* seconds, for the statistics */
  devitocomp_view_t view;
  int unwritten;         /* nonzero if there is no such snapshot yet (acquire) */
  int failed;            /* nonzero if there is no telling what it is (acquire) */
} devitocomp_slot_t;

/* Flags of devitocomp_store_acquire. */
#define DEVITOCOMP_WILL_MODIFY 1 /* the caller is going to write into the view */
#define DEVITOCOMP_TENTATIVE 2   /* nobody needs the snapshot yet: let no failure count */

/* A status of stores only: a file could not be read or written. */
#define DEVITOCOMP_IO_ERROR 64

/* How a store is made. */
typedef struct devitocomp_store_config {
  const char *name;  /* of the function, for messages */
  int64_t nsnapshots;
  uint32_t dtype;
  uint32_t rank;
  int64_t dims[DEVITOCOMP_MAX_RANK];
} devitocomp_store_config_t;

/* Where a store on disk lies. */
typedef struct devitocomp_disk {
  const char *directory;  /* which exists */
  uint64_t store_id;      /* any number, which the files then carry: no others will do */
  uint64_t cache_bytes;   /* memory for payloads on their way; at least one is held */
  int read_only;          /* nonzero: change nothing, though somebody else may */
} devitocomp_disk_t;

/*
 * Memory other than the host's for a store to keep payloads in. Its functions may be called
 * by any thread, and act upon the device that is active in that thread, or upon that of
 * the memory given.
 */
typedef struct devitocomp_memory {
  uint32_t kind;     /* a devitocomp_execution_kind_t: who can access it */
  const char *name;  /* "device memory", for messages */
  size_t alignment;  /* of what is allocated: a power of two */

  /* NULL if there is no such memory left. */
  void *(*allocate)(size_t bytes);
  void (*release)(void *memory);

  /* Copy between this memory, or the host's, and this memory, or the host's. All is done
     when it returns, nonzero on success. */
  int (*copy)(void *to, const void *from, size_t bytes);
} devitocomp_memory_t;

/* What is known about one snapshot. */
typedef struct devitocomp_snapshot_info {
  int stored;             /* nonzero if it has ever been committed */
  uint64_t raw_bytes;
  uint64_t payload_bytes;
  uint64_t sidecar_bytes;
  double compress_seconds;    /* of the latest compression */
  double decompress_seconds;  /* of all decompressions */
  uint64_t decompressions;
} devitocomp_snapshot_info_t;

/* The first failure since devitocomp_store_begin. */
typedef struct devitocomp_failure {
  int status;        /* a devitocomp_status_t, DEVITOCOMP_OK if there is none, or
                        DEVITOCOMP_IO_ERROR */
  int64_t index;     /* of the snapshot, -1 if the failure belongs to none */
  char action[32];   /* "compress", "decompress", "create a plan", "store", "load",
                        "clear", "flush", "open" */
  char message[512];
} devitocomp_failure_t;

/* What a store occupies. */
typedef struct devitocomp_usage {
  uint64_t stored_bytes;    /* payloads and sidecars of committed snapshots */
  uint64_t resident_bytes;  /* memory held for payloads, in use or free, and staging */
  uint64_t metadata_bytes;  /* all else, with the room for sidecars */
} devitocomp_usage_t;

/* *** Called by generated code */

/*
 * Describe the domain of a Devito function from the fields of its `struct dataobj`.
 *
 * ndim: dimensions of the function. lead: the index along its first dimension if that
 * is not a dimension of the snapshot (a time or slot dimension), else -1.
 */
static inline devitocomp_view_t devitocomp_view(void *data, const int *size,
                                                const unsigned long *dsize,
                                                const int *oofs, int ndim, long lead)
{
  devitocomp_view_t view;
  const int first = lead < 0 ? 0 : 1;
  int64_t stride = 1;
  int i;

  view.data = data;
  view.offset = 0;
  view.rank = (uint32_t)(ndim - first);
  view.kind = DEVITOCOMP_EXECUTION_HOST;
  for (i = 0; i < DEVITOCOMP_MAX_RANK; i++) {
    view.dims[i] = view.strides[i] = 0;
  }
  for (i = ndim - 1; i >= first; i--) {
    view.dims[i - first] = (int64_t)dsize[i];
    view.strides[i - first] = stride;
    view.offset += stride * oofs[2 * i];
    stride *= size[i];
  }
  if (first) {
    view.offset += stride * lead;
  }
  return view;
}

/* Host execution with that many threads. */
static inline devitocomp_execution_t devitocomp_host(int num_threads)
{
  devitocomp_execution_t exec;
  exec.struct_size = (uint32_t)sizeof(exec);
  exec.kind = DEVITOCOMP_EXECUTION_HOST;
  exec.num_threads = (uint32_t)(num_threads > 0 ? num_threads : 0);
  exec.reserved = 0;
  exec.stream = NULL;
  return exec;
}

/* The tensor to create a plan with for such views: with the view's strides if the
   provider can use them, else contiguous (then the store stages). */
devitocomp_tensor_t devitocomp_store_tensor(const devitocomp_store_t *store,
                                            devitocomp_view_t view);

/* The limits of a plan; all zero for NULL. Runs in the caller, so that it asks the
   provider that the caller is linked with. */
static inline devitocomp_limits_t devitocomp_limits(const devitocomp_plan_t *plan)
{
  static devitocomp_limits_t none;
  devitocomp_limits_t limits = none;
  limits.struct_size = (uint32_t)sizeof(limits);
  if (plan) {
    devitocomp_plan_limits(plan, &limits);
  }
  return limits;
}

/* Report the outcome of devitocomp_plan_create and the plan's limits, which must fit
   those that the store was bound to. Ignored if snapshots have no points. */
void devitocomp_store_planned(devitocomp_store_t *store, int status, const char *message,
                              devitocomp_limits_t limits);

/* Make room for the snapshot held by view. ready is 0 if the store has failed or the
   view is empty (a rank without points), which counts as stored. */
devitocomp_slot_t devitocomp_store_reserve(devitocomp_store_t *store, int64_t index,
                                           devitocomp_view_t view);

/* Make the snapshot visible if status is DEVITOCOMP_OK; otherwise the previous content
   of that index stays, and the store fails with status and message. */
void devitocomp_store_commit(devitocomp_store_t *store, devitocomp_slot_t *slot,
                             int status, const char *message);

/*
 * Get a snapshot into view. ready is 0 if no decoding is needed: the view holds it
 * already, it was copied from another view that does, it was never written (then the
 * view is zeroed), or the store has failed (then the view is left alone).
 *
 * Without DEVITOCOMP_WILL_MODIFY the view is remembered as holding the snapshot, until
 * another is acquired into it, the snapshot is written again, or the run ends.
 */
devitocomp_slot_t devitocomp_store_acquire(devitocomp_store_t *store, int64_t index,
                                           devitocomp_view_t view, int flags);

/* End an acquire whose slot was ready. */
void devitocomp_store_release(devitocomp_store_t *store, devitocomp_slot_t *slot,
                              int status, const char *message);

/* Nonzero if the store has a snapshot of that index, written or not: for accesses that
   are to be skipped, rather than to fail, where they leave it. */
int devitocomp_store_covers(const devitocomp_store_t *store, int64_t index);

/* A devitocomp_execution_kind_t: who can access payloads. */
int devitocomp_store_kind(const devitocomp_store_t *store);

/* The tensor to create a plan with for contiguous views. */
devitocomp_tensor_t devitocomp_store_packed(const devitocomp_store_t *store);

/* Nonzero once the store has failed. */
int devitocomp_store_failed(const devitocomp_store_t *store);

/* *** Called by the owner of the store */

/* A store in host memory; NULL if out of memory, or for an unknown dtype, a bad rank, a
   negative size or one above 2^62. Nothing is allocated for payloads until they come. */
devitocomp_store_t *devitocomp_store_create(const devitocomp_store_config_t *config);

/* The same in other memory; *memory must outlive it. */
devitocomp_store_t *devitocomp_store_create_in(const devitocomp_store_config_t *config,
                                               const devitocomp_memory_t *memory);

/*
 * A store on disk, with what it holds already: a new one if the directory has none. On
 * failure NULL, and *failure tells the reason, which may be that the files are of another
 * store, or of other snapshots than config describes.
 *
 * What is committed is in the files at once, and survives the death of the process at any
 * moment; only devitocomp_store_sync guards it against a power failure. One store may
 * write into a directory at a time, which is for the caller to ensure. Any number may be
 * reading, and see what it commits.
 */
devitocomp_store_t *devitocomp_store_open(const devitocomp_store_config_t *config,
                                          const devitocomp_disk_t *disk,
                                          devitocomp_failure_t *failure);

/* Wait until all that was committed has reached the device. Not during a run. */
int devitocomp_store_sync(devitocomp_store_t *store);

/* Free all; files stay. The store must not be in a run. */
void devitocomp_store_destroy(devitocomp_store_t *store);

/*
 * Tell the store which limits its payloads obey. Allowed at any time outside a run; with
 * limits that those stored do not obey only while the store is empty. (On disk only payload
 * version and sidecar bytes matter: the rest is about memory.)
 * Returns DEVITOCOMP_OK, _INVALID_ARGUMENT (alignment 0, not a power of two or above
 * 4096; a size above 2^62; see devitocomp_store_failure for the message),
 * _OUT_OF_MEMORY or _IO_ERROR.
 */
int devitocomp_store_bind(devitocomp_store_t *store, const devitocomp_limits_t *limits);

/* Begin a run with that many threads for the store's own copies: clear the failure,
   forget which views hold what. _INVALID_ARGUMENT if a run is in progress. */
int devitocomp_store_begin(devitocomp_store_t *store, int num_threads);
void devitocomp_store_end(devitocomp_store_t *store);

/* Drop all snapshots and what they occupy; devitocomp_store_failure tells whether that
   failed, which it can on disk only. Not during a run. */
void devitocomp_store_clear(devitocomp_store_t *store);

/* The first failure of the latest run, or of a call of the owner that came after it. */
void devitocomp_store_failure(const devitocomp_store_t *store,
                              devitocomp_failure_t *failure);

void devitocomp_store_usage(const devitocomp_store_t *store, devitocomp_usage_t *usage);

/* _INVALID_ARGUMENT if there is no such index. */
int devitocomp_store_info(const devitocomp_store_t *store, int64_t index,
                          devitocomp_snapshot_info_t *info);

/* Set *payload, *bytes and *sidecar to a stored snapshot, which is where
   devitocomp_store_kind says, valid until the next peek, run or change of the store. _INVALID_ARGUMENT if it is not stored, or during a run; another
   status, and a failure, if it is stored but cannot be read. For pickling. */
int devitocomp_store_peek(devitocomp_store_t *store, int64_t index,
                          const void **payload, size_t *bytes, const void **sidecar);

/* Store a snapshot that peek returned, here or in another process. For unpickling. */
int devitocomp_store_put(devitocomp_store_t *store, int64_t index, const void *payload,
                         size_t bytes, const void *sidecar);

#ifdef __cplusplus
}
#endif

#endif /* DEVITOCOMP_STORE_H */
