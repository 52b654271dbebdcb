/*
 * store.c -- the front of a store: runs, failures, views and statistics.
 *
 * Where payloads lie is the business of a layer (layer.h).
 */
#define _GNU_SOURCE
#include "devitocomp_store.h"
#include "domain.h"
#include "layer.h"
#include "pages.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Views remembered at a time: more than the time indices that one operator reads. */
#define MAX_RESIDENTS 16

#define MAX_SIZE (UINT64_C(1) << 62)

/* "(100, 200, 300)", for messages. */
typedef char dims_text_t[DEVITOCOMP_MAX_RANK * 22 + 3];

typedef struct record {
  double compress_seconds;
  double decompress_seconds;
  uint32_t decompressions;
  uint32_t empty;  /* nonzero if it was stored from a view without points */
} record_t;

/* A view that holds a decoded snapshot. */
typedef struct resident {
  int64_t index;  /* -1 if this one is free */
  devitocomp_view_t view;
} resident_t;

typedef enum activity { IDLE = 0, COMPRESSING, DECOMPRESSING } activity_t;

struct devitocomp_store {
  char *name;
  devitocomp_store_config_t config;
  domain_t domain;
  int64_t packed_strides[DEVITOCOMP_MAX_RANK];
  uint64_t raw_bytes;

  layer_t *layer;
  const devitocomp_memory_t *memory;  /* of payloads, unless it is the host's: then NULL */
  record_t *records;
  devitocomp_limits_t limits;
  int bound;

  char busy;  /* held by a run, or by a call of the owner */
  int num_threads;
  devitocomp_failure_t failure;

  /* The slot that the provider is working on. */
  activity_t activity;
  int64_t index;
  int flags;
  int tentative;  /* nonzero while failures do not count */
  layer_span_t span;

  pages_t staging;
  resident_t residents[MAX_RESIDENTS];
  int next_victim;
};

/* What lies behind the room given to a provider. Any bytes that it is unlikely to write
   there by accident. */
static const unsigned char guard[LAYER_GUARD_BYTES] = {
  0xc5, 0x3a, 0x91, 0x6e, 0x27, 0xd8, 0x4b, 0xb4, 0xf2, 0x0d, 0x7c, 0x83, 0x5e,
  0xa1, 0x19, 0xe6, 0x68, 0x97, 0x34, 0xcb, 0xad, 0x52, 0xef, 0x10, 0x76, 0x89,
  0xda, 0x25, 0x43, 0xbc, 0x08, 0xf7, 0x9b, 0x64, 0x3d, 0xc2, 0xb1, 0x4e, 0x72,
  0x8d, 0xe9, 0x16, 0x5a, 0xa5, 0xd4, 0x2b, 0x87, 0x78, 0x1f, 0xe0, 0x6b, 0x94,
  0xcf, 0x30, 0x55, 0xaa, 0x0e, 0xf1, 0xb8, 0x47, 0x7d, 0x82, 0x39, 0xc6
};

static double now(void)
{
  struct timespec time;

  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static size_t size_of_dtype(uint32_t dtype)
{
  switch (dtype) {
    case DEVITOCOMP_FLOAT16: return 2;
    case DEVITOCOMP_FLOAT32: return 4;
    case DEVITOCOMP_INT32: return 4;
    case DEVITOCOMP_FLOAT64: return 8;
    case DEVITOCOMP_INT64: return 8;
    default: return 0;
  }
}

/* *** Failures */

static const char *default_message(int status)
{
  switch (status) {
    case DEVITOCOMP_INVALID_ARGUMENT: return "invalid argument";
    case DEVITOCOMP_UNSUPPORTED: return "unsupported";
    case DEVITOCOMP_BUFFER_TOO_SMALL: return "the buffer is too small";
    case DEVITOCOMP_OUT_OF_MEMORY: return "out of memory";
    case DEVITOCOMP_CORRUPT_PAYLOAD: return "the payload is corrupt";
    case DEVITOCOMP_VERSION_MISMATCH: return "version mismatch";
    default: return "the provider failed";
  }
}

__attribute__((format(printf, 5, 6)))
static void fail(devitocomp_store_t *store, int status, int64_t index, const char *action,
                 const char *format, ...)
{
  devitocomp_failure_t *const failure = &store->failure;
  va_list args;

  if (failure->status != DEVITOCOMP_OK || store->tentative) {
    return;
  }
  failure->index = index;
  snprintf(failure->action, sizeof(failure->action), "%s", action);
  va_start(args, format);
  vsnprintf(failure->message, sizeof(failure->message), format, args);
  va_end(args);
  /* Last, as other threads may be asking. */
  __atomic_store_n(&failure->status, status, __ATOMIC_RELEASE);
}

/* A provider returned status, which is not DEVITOCOMP_OK. */
static void fail_provider(devitocomp_store_t *store, int status, int64_t index,
                          const char *action, const char *message)
{
  const char *const text = message && *message ? message : default_message(status);

  if (status > DEVITOCOMP_OK && status <= DEVITOCOMP_PROVIDER_ERROR) {
    fail(store, status, index, action, "%s", text);
  } else {
    fail(store, DEVITOCOMP_PROVIDER_ERROR, index, action,
         "%s (the provider returned the unknown status %d)", text, status);
  }
}

static void fail_unbound(devitocomp_store_t *store, int64_t index, const char *action)
{
  fail(store, DEVITOCOMP_INVALID_ARGUMENT, index, action,
       "the store was not told the limits of its payloads");
}

static void clear_failure(devitocomp_store_t *store)
{
  memset(&store->failure, 0, sizeof(store->failure));
  store->failure.index = -1;
}

/* *** Who may use the store */

static int claim(devitocomp_store_t *store)
{
  return !__atomic_test_and_set(&store->busy, __ATOMIC_ACQUIRE);
}

static void unclaim(devitocomp_store_t *store)
{
  __atomic_clear(&store->busy, __ATOMIC_RELEASE);
}

static int is_busy(const devitocomp_store_t *store)
{
  return __atomic_load_n(&store->busy, __ATOMIC_RELAXED) != 0;
}

/* *** Views */

static char *first_point(const devitocomp_store_t *store, const devitocomp_view_t *view)
{
  return (char *)view->data + view->offset * (int64_t)store->domain.itemsize;
}

static int is_on_host(const devitocomp_view_t *view)
{
  return view->kind == DEVITOCOMP_EXECUTION_HOST;
}

static int is_empty(const int64_t *dims, uint32_t rank)
{
  uint32_t i;

  for (i = 0; i < rank; i++) {
    if (dims[i] == 0) {
      return 1;
    }
  }
  return 0;
}

static int holds(const devitocomp_store_t *store, int64_t index)
{
  return store->layer->ops->holds(store->layer, index);
}

static int is_packed(const devitocomp_store_t *store, const devitocomp_view_t *view)
{
  return domain_same_strides(&store->domain, view->strides, store->packed_strides);
}

/* Nonzero if the provider cannot be given the view itself. */
static int needs_staging(const devitocomp_store_t *store, const devitocomp_view_t *view)
{
  return !(store->limits.flags & DEVITOCOMP_STRIDED) && !is_packed(store, view);
}

static const char *write_dims(char *text, size_t size, const int64_t *dims, uint32_t rank)
{
  size_t used = 0;
  uint32_t i;

  for (i = 0; i < rank && i < DEVITOCOMP_MAX_RANK; i++) {
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? ", " : "(",
                             dims[i]);
  }
  snprintf(text + used, size - used, i ? ")" : "()");
  return text;
}

/* *** Residents */

static void forget_all(devitocomp_store_t *store)
{
  int i;

  for (i = 0; i < MAX_RESIDENTS; i++) {
    store->residents[i].index = -1;
  }
}

static void forget_index(devitocomp_store_t *store, int64_t index)
{
  int i;

  for (i = 0; i < MAX_RESIDENTS; i++) {
    if (store->residents[i].index == index) {
      store->residents[i].index = -1;
    }
  }
}

/* Forget all that shares memory with view, which is about to be, or was, written to. */
static void forget_view(devitocomp_store_t *store, const devitocomp_view_t *view)
{
  uintptr_t low, high, other_low, other_high;
  int i;

  domain_extent(&store->domain, first_point(store, view), view->strides, &low, &high);
  for (i = 0; i < MAX_RESIDENTS; i++) {
    resident_t *const other = &store->residents[i];
    if (other->index < 0) {
      continue;
    }
    domain_extent(&store->domain, first_point(store, &other->view), other->view.strides,
                  &other_low, &other_high);
    if (low < other_high && other_low < high) {
      other->index = -1;
    }
  }
}

static void remember(devitocomp_store_t *store, const devitocomp_view_t *view,
                     int64_t index)
{
  resident_t *resident = NULL;
  int i;

  for (i = 0; i < MAX_RESIDENTS && !resident; i++) {
    if (store->residents[i].index < 0) {
      resident = &store->residents[i];
    }
  }
  if (!resident) {
    resident = &store->residents[store->next_victim];
    store->next_victim = (store->next_victim + 1) % MAX_RESIDENTS;
  }
  resident->index = index;
  resident->view = *view;
}

/* Nonzero if that is the view of a resident. */
static int is_view_of(const devitocomp_store_t *store, const resident_t *resident,
                      const devitocomp_view_t *view)
{
  return first_point(store, &resident->view) == first_point(store, view)
         && domain_same_strides(&store->domain, resident->view.strides, view->strides);
}

/* Who holds a snapshot: that very view if it does, else any; NULL if none does. */
static const resident_t *find_resident(const devitocomp_store_t *store,
                                       const devitocomp_view_t *view, int64_t index)
{
  const resident_t *found = NULL;
  int i;

  for (i = 0; i < MAX_RESIDENTS; i++) {
    const resident_t *const resident = &store->residents[i];
    if (resident->index == index) {
      found = resident;
      if (is_view_of(store, resident, view)) {
        break;
      }
    }
  }
  return found;
}

/* *** Slots */

/* Nonzero if payloads are where this process's own code can access them. */
static int can_touch_payloads(const devitocomp_store_t *store)
{
  return devitocomp_store_kind(store) == DEVITOCOMP_EXECUTION_HOST;
}

static int is_intact(const void *room, uint64_t bytes)
{
  return !memcmp((const char *)room + bytes, guard, sizeof(guard));
}

/* Put the view, or staging in its place, into the slot. */
static int attach_tensor(devitocomp_store_t *store, devitocomp_slot_t *slot)
{
  slot->tensor = first_point(store, &slot->view);
  if (!needs_staging(store, &slot->view)) {
    return 1;
  }
  if (!store->staging.base && !pages_map(&store->staging, (size_t)store->raw_bytes)) {
    return 0;
  }
  slot->tensor = store->staging.base;
  return 1;
}

static int is_staged(const devitocomp_store_t *store, const devitocomp_slot_t *slot)
{
  return store->staging.base && slot->tensor == store->staging.base;
}

/* Whether a snapshot can be stored from, or loaded into, the view of a new slot; if not,
   the store has failed. */
static int admit(devitocomp_store_t *store, const devitocomp_slot_t *slot,
                 const char *action)
{
  const devitocomp_store_config_t *const config = &store->config;
  const devitocomp_view_t *const view = &slot->view;
  const int64_t index = slot->index;
  dims_text_t given, wanted;

  if (store->failure.status != DEVITOCOMP_OK) {
    return 0;
  }
  if (!is_busy(store)) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, index, action, "no run was begun");
  } else if (store->activity != IDLE) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, index, action,
         "snapshot %" PRId64 " is still being %s", store->index,
         store->activity == COMPRESSING ? "compressed" : "decompressed");
  } else if (!devitocomp_store_covers(store, index)) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, index, action,
         "snapshot index %" PRId64 " is outside [0, %" PRId64 ")", index,
         config->nsnapshots);
  } else if (view->rank != config->rank
             || (!is_empty(view->dims, view->rank)
                 && memcmp(view->dims, config->dims, view->rank * sizeof(*view->dims)))) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, index, action,
         "a view of shape %s does not fit the snapshots of %s, of shape %s",
         write_dims(given, sizeof(given), view->dims, view->rank), store->name,
         write_dims(wanted, sizeof(wanted), config->dims, config->rank));
  } else if (view->kind < DEVITOCOMP_EXECUTION_HOST
             || view->kind > DEVITOCOMP_EXECUTION_HIP) {
    fail(store, DEVITOCOMP_UNSUPPORTED, index, action,
         "views of execution kind %" PRIu32 " are not supported", view->kind);
  } else if (!is_on_host(view) && !is_packed(store, view)) {
    fail(store, DEVITOCOMP_UNSUPPORTED, index, action,
         "a view in the memory of a device is not contiguous");
  } else if (!view->data && !is_empty(view->dims, view->rank)) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, index, action, "the view has no data");
  } else {
    return 1;
  }
  return 0;
}

static devitocomp_slot_t new_slot(int64_t index, const devitocomp_view_t *view)
{
  devitocomp_slot_t slot;

  memset(&slot, 0, sizeof(slot));
  slot.start = now();
  slot.index = index;
  slot.view = *view;
  return slot;
}

/* Give a slot to the provider. */
static void open_slot(devitocomp_store_t *store, devitocomp_slot_t *slot,
                      activity_t activity, int flags)
{
  slot->payload = store->span.payload;
  slot->sidecar = store->span.sidecar;
  slot->ready = 1;
  store->activity = activity;
  store->index = slot->index;
  store->flags = flags;
}

/* Take a slot back from the provider. Returns zero if it is not the one it was given. */
static int close_slot(devitocomp_store_t *store, devitocomp_slot_t *slot,
                      activity_t activity, const char *action)
{
  if (!slot->ready) {
    return 0;
  }
  slot->ready = 0;
  if (store->activity != activity || store->index != slot->index
      || store->span.payload != slot->payload) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, slot->index, action, "the slot is not open");
    return 0;
  }
  store->activity = IDLE;
  return 1;
}

/* A snapshot without points counts as stored. */
static void mark_empty(devitocomp_store_t *store, int64_t index)
{
  const layer_ops_t *const ops = store->layer->ops;
  int status;

  if (!store->raw_bytes && ops->mark && (status = ops->mark(store->layer, index))) {
    fail(store, status, index, "store", "%s", store->layer->message);
    return;
  }
  store->records[index].empty = 1;
}

/* *** Called by generated code */

DEVITOCOMP_EXPORT
devitocomp_tensor_t devitocomp_store_tensor(const devitocomp_store_t *store,
                                            devitocomp_view_t view)
{
  devitocomp_tensor_t tensor;
  domain_t domain;
  int i;

  memset(&tensor, 0, sizeof(tensor));
  tensor.struct_size = (uint32_t)sizeof(tensor);
  tensor.dtype = store->config.dtype;
  tensor.rank = view.rank < DEVITOCOMP_MAX_RANK ? view.rank : DEVITOCOMP_MAX_RANK;
  domain.itemsize = store->domain.itemsize;
  domain.rank = (int)tensor.rank;
  domain.dims = tensor.dims;
  for (i = 0; i < domain.rank; i++) {
    /* Providers know no empty tensors. Such a rank has a plan and never uses it. */
    tensor.dims[i] = view.dims[i] ? view.dims[i] : 1;
    tensor.strides[i] = view.strides[i];
  }
  if (!(store->limits.flags & DEVITOCOMP_STRIDED) || is_empty(view.dims, tensor.rank)) {
    domain_pack_strides(&domain, tensor.strides);
  }
  return tensor;
}

DEVITOCOMP_EXPORT
void devitocomp_store_planned(devitocomp_store_t *store, int status, const char *message,
                              devitocomp_limits_t limits)
{
  static const char action[] = "create a plan";
  const devitocomp_limits_t *const bound = &store->limits;

  if (!store->raw_bytes) {
    return;
  }
  if (status != DEVITOCOMP_OK) {
    fail_provider(store, status, -1, action, message);
  } else if (!store->bound) {
    fail_unbound(store, -1, action);
  } else if (limits.payload_version != bound->payload_version) {
    fail(store, DEVITOCOMP_VERSION_MISMATCH, -1, action,
         "the plan has payload version %" PRIu32 ", the store %" PRIu32,
         limits.payload_version, bound->payload_version);
  } else if (limits.max_compressed_bytes > bound->max_compressed_bytes) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, -1, action,
         "the plan needs up to %" PRIu64 " bytes for a payload, the store gives %" PRIu64,
         limits.max_compressed_bytes, bound->max_compressed_bytes);
  } else if (!limits.payload_alignment
             || bound->payload_alignment % limits.payload_alignment) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, -1, action,
         "the plan needs payloads aligned to %" PRIu64 " bytes, the store aligns to %"
         PRIu64,
         limits.payload_alignment, bound->payload_alignment);
  } else if (limits.sidecar_bytes != bound->sidecar_bytes
             || limits.sidecar_alignment != bound->sidecar_alignment) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, -1, action,
         "the plan has sidecars of %" PRIu64 " bytes aligned to %" PRIu64
         ", the store of %" PRIu64 " aligned to %" PRIu64,
         limits.sidecar_bytes, limits.sidecar_alignment, bound->sidecar_bytes,
         bound->sidecar_alignment);
  } else if (bound->flags & ~limits.flags & DEVITOCOMP_STRIDED) {
    fail(store, DEVITOCOMP_INVALID_ARGUMENT, -1, action,
         "the plan takes contiguous tensors only, the store relies on strided ones");
  }
}

DEVITOCOMP_EXPORT
devitocomp_slot_t devitocomp_store_reserve(devitocomp_store_t *store, int64_t index,
                                           devitocomp_view_t view)
{
  static const char action[] = "store";
  devitocomp_slot_t slot = new_slot(index, &view);
  int status;

  if (!admit(store, &slot, action)) {
    return slot;
  }
  if (is_empty(view.dims, view.rank)) {
    mark_empty(store, index);
    return slot;
  }
  /* Whoever stores a view has written to it. */
  if (is_on_host(&view)) {
    forget_view(store, &view);
  }
  if (!store->bound) {
    fail_unbound(store, index, action);
    return slot;
  }
  if (!attach_tensor(store, &slot)) {
    fail(store, DEVITOCOMP_OUT_OF_MEMORY, index, action,
         "cannot allocate %" PRIu64 " bytes to make the snapshot contiguous",
         store->raw_bytes);
    return slot;
  }
  status = store->layer->ops->reserve(store->layer, index,
                                      (size_t)store->limits.max_compressed_bytes,
                                      &store->span);
  if (status != DEVITOCOMP_OK) {
    fail(store, status, index, action, "%s", store->layer->message);
    return slot;
  }
  if (can_touch_payloads(store)) {
    memcpy((char *)store->span.payload + store->span.bytes, guard, sizeof(guard));
  }
  if (store->span.sidecar) {
    memcpy((char *)store->span.sidecar + store->limits.sidecar_bytes, guard,
           sizeof(guard));
  }
  if (is_staged(store, &slot)) {
    domain_copy(&store->domain, slot.tensor, store->packed_strides,
                first_point(store, &view), view.strides, store->num_threads);
  }
  slot.capacity = store->span.bytes;
  open_slot(store, &slot, COMPRESSING, 0);
  return slot;
}

DEVITOCOMP_EXPORT
void devitocomp_store_commit(devitocomp_store_t *store, devitocomp_slot_t *slot,
                             int status, const char *message)
{
  static const char action[] = "compress";
  const int64_t index = slot->index;
  const layer_ops_t *const ops = store->layer->ops;
  record_t *record;

  if (!close_slot(store, slot, COMPRESSING, action)) {
    return;
  }
  /* Before the status: a provider that overran is not to be trusted in anything else. */
  if (can_touch_payloads(store)
      && !is_intact(store->span.payload, store->span.bytes)) {
    fail(store, DEVITOCOMP_PROVIDER_ERROR, index, action,
         "the provider wrote beyond the %zu bytes it was given", store->span.bytes);
  } else if (store->span.sidecar
             && !is_intact(store->span.sidecar, store->limits.sidecar_bytes)) {
    fail(store, DEVITOCOMP_PROVIDER_ERROR, index, action,
         "the provider wrote beyond the %" PRIu64 " bytes of the sidecar it was given",
         store->limits.sidecar_bytes);
  } else if (status != DEVITOCOMP_OK) {
    fail_provider(store, status, index, action, message);
  } else if (slot->payload_bytes > store->span.bytes) {
    fail(store, DEVITOCOMP_PROVIDER_ERROR, index, action,
         "the provider claims to have used %zu of the %zu bytes it was given",
         slot->payload_bytes, store->span.bytes);
  }
  if (store->failure.status != DEVITOCOMP_OK) {
    ops->abandon(store->layer);
    return;
  }
  status = ops->commit(store->layer, slot->payload_bytes);
  if (status != DEVITOCOMP_OK) {
    fail(store, status, index, "store", "%s", store->layer->message);
    return;
  }
  forget_index(store, index);
  record = &store->records[index];
  record->empty = 0;
  record->compress_seconds = now() - slot->start;
}

/* Bring a snapshot into a view on the host. Returns zero if it has to be decoded. */
static int fill_on_host(devitocomp_store_t *store, int64_t index,
                        const devitocomp_view_t *view, int flags)
{
  const resident_t *resident = find_resident(store, view, index);
  devitocomp_view_t source;

  if (resident && is_view_of(store, resident, view)) {
    if (flags & DEVITOCOMP_WILL_MODIFY) {
      forget_view(store, view);
    }
    return 1;
  }
  /* This may forget the resident, if it shares memory with the view. */
  forget_view(store, view);
  if (resident && resident->index < 0) {
    resident = NULL;
  }
  if (!resident && holds(store, index)) {
    return 0;
  }
  if (resident) {
    source = resident->view;
  }
  domain_copy(&store->domain, first_point(store, view), view->strides,
              resident ? first_point(store, &source) : NULL,
              resident ? source.strides : NULL, store->num_threads);
  if (!(flags & DEVITOCOMP_WILL_MODIFY)) {
    remember(store, view, index);
  }
  return 1;
}

/* The body of devitocomp_store_acquire. Returns zero on failure. */
static int acquire(devitocomp_store_t *store, devitocomp_slot_t *slot, int flags)
{
  static const char action[] = "load";
  const devitocomp_view_t *const view = &slot->view;
  const int64_t index = slot->index;
  int status;

  if (!admit(store, slot, action)) {
    return 0;
  }
  if (is_empty(view->dims, view->rank)) {
    return 1;
  }
  slot->unwritten = !holds(store, index);
  if (is_on_host(view) ? fill_on_host(store, index, view, flags) : slot->unwritten) {
    return 1;
  }
  if (!store->bound) {
    fail_unbound(store, index, action);
    return 0;
  }
  if (!attach_tensor(store, slot)) {
    fail(store, DEVITOCOMP_OUT_OF_MEMORY, index, action,
         "cannot allocate %" PRIu64 " bytes for a contiguous snapshot", store->raw_bytes);
    return 0;
  }
  status = store->layer->ops->acquire(store->layer, index, &store->span);
  if (status != DEVITOCOMP_OK) {
    fail(store, status, index, action, "%s", store->layer->message);
    return 0;
  }
  slot->payload_bytes = store->span.bytes;
  open_slot(store, slot, DECOMPRESSING, flags);
  return 1;
}

DEVITOCOMP_EXPORT
devitocomp_slot_t devitocomp_store_acquire(devitocomp_store_t *store, int64_t index,
                                           devitocomp_view_t view, int flags)
{
  devitocomp_slot_t slot = new_slot(index, &view);

  store->tentative = flags & DEVITOCOMP_TENTATIVE;
  slot.failed = !acquire(store, &slot, flags);
  if (!slot.ready) {
    store->tentative = 0;
  }
  return slot;
}

/* The body of devitocomp_store_release. */
static void release(devitocomp_store_t *store, const devitocomp_slot_t *slot, int status,
                    const char *message)
{
  record_t *const record = &store->records[slot->index];

  store->layer->ops->release(store->layer, slot->index);
  if (status != DEVITOCOMP_OK) {
    fail_provider(store, status, slot->index, "decompress", message);
    return;
  }
  if (is_staged(store, slot)) {
    domain_copy(&store->domain, first_point(store, &slot->view), slot->view.strides,
                slot->tensor, store->packed_strides, store->num_threads);
  }
  if (is_on_host(&slot->view) && !(store->flags & DEVITOCOMP_WILL_MODIFY)) {
    remember(store, &slot->view, slot->index);
  }
  record->decompress_seconds += now() - slot->start;
  record->decompressions++;
}

DEVITOCOMP_EXPORT
void devitocomp_store_release(devitocomp_store_t *store, devitocomp_slot_t *slot,
                              int status, const char *message)
{
  if (close_slot(store, slot, DECOMPRESSING, "decompress")) {
    release(store, slot, status, message);
  }
  store->tentative = 0;
}

DEVITOCOMP_EXPORT
int devitocomp_store_kind(const devitocomp_store_t *store)
{
  return store->memory ? (int)store->memory->kind : DEVITOCOMP_EXECUTION_HOST;
}

DEVITOCOMP_EXPORT
devitocomp_tensor_t devitocomp_store_packed(const devitocomp_store_t *store)
{
  devitocomp_view_t view;

  memset(&view, 0, sizeof(view));
  view.rank = store->config.rank;
  memcpy(view.dims, store->config.dims, sizeof(view.dims));
  memcpy(view.strides, store->packed_strides, sizeof(view.strides));
  return devitocomp_store_tensor(store, view);
}

DEVITOCOMP_EXPORT
int devitocomp_store_covers(const devitocomp_store_t *store, int64_t index)
{
  return index >= 0 && index < store->config.nsnapshots;
}

DEVITOCOMP_EXPORT
int devitocomp_store_failed(const devitocomp_store_t *store)
{
  return __atomic_load_n(&store->failure.status, __ATOMIC_ACQUIRE) != DEVITOCOMP_OK;
}

/* *** Called by the owner of the store */

/* A store without a layer; NULL if out of memory, or if config makes no sense. */
static devitocomp_store_t *new_store(const devitocomp_store_config_t *config)
{
  const size_t itemsize = size_of_dtype(config->dtype);
  devitocomp_store_t *store;
  uint64_t bytes = itemsize;
  uint32_t i;

  if (!itemsize || config->nsnapshots < 0 || config->rank < 1
      || config->rank > DEVITOCOMP_MAX_RANK) {
    return NULL;
  }
  for (i = 0; i < config->rank; i++) {
    if (config->dims[i] < 0
        || (config->dims[i] && bytes > MAX_SIZE / (uint64_t)config->dims[i])) {
      return NULL;
    }
    bytes *= (uint64_t)config->dims[i];
  }
  store = calloc(1, sizeof(*store));
  if (!store) {
    return NULL;
  }
  store->config = *config;
  store->domain.itemsize = itemsize;
  store->domain.rank = (int)config->rank;
  store->domain.dims = store->config.dims;
  domain_pack_strides(&store->domain, store->packed_strides);
  store->raw_bytes = bytes;
  store->num_threads = 1;
  store->name = strdup(config->name ? config->name : "the function");
  store->records = calloc(config->nsnapshots ? (size_t)config->nsnapshots : 1,
                          sizeof(*store->records));
  clear_failure(store);
  forget_all(store);
  if (!store->name || !store->records) {
    devitocomp_store_destroy(store);
    return NULL;
  }
  return store;
}

DEVITOCOMP_EXPORT
devitocomp_store_t *devitocomp_store_create(const devitocomp_store_config_t *config)
{
  return devitocomp_store_create_in(config, NULL);
}

DEVITOCOMP_EXPORT
devitocomp_store_t *devitocomp_store_create_in(const devitocomp_store_config_t *config,
                                               const devitocomp_memory_t *memory)
{
  devitocomp_store_t *const store = new_store(config);

  if (store) {
    store->memory = memory;
    store->layer = layer_host_create(config->nsnapshots, memory);
    if (!store->layer) {
      devitocomp_store_destroy(store);
      return NULL;
    }
  }
  return store;
}

DEVITOCOMP_EXPORT
devitocomp_store_t *devitocomp_store_open(const devitocomp_store_config_t *config,
                                          const devitocomp_disk_t *disk,
                                          devitocomp_failure_t *failure)
{
  static const char action[] = "open";
  devitocomp_store_t *const store = new_store(config);
  char message[LAYER_MESSAGE_BYTES];
  int status;

  memset(failure, 0, sizeof(*failure));
  failure->index = -1;
  if (!store) {
    failure->status = DEVITOCOMP_INVALID_ARGUMENT;
    snprintf(failure->action, sizeof(failure->action), "%s", action);
    snprintf(failure->message, sizeof(failure->message),
             "there is no memory for such a store");
    return NULL;
  }
  store->layer = layer_disk_create(&store->config, disk, &status, message);
  if (!store->layer) {
    fail(store, status, -1, action, "%s", message);
    *failure = store->failure;
    devitocomp_store_destroy(store);
    return NULL;
  }
  return store;
}

DEVITOCOMP_EXPORT
void devitocomp_store_destroy(devitocomp_store_t *store)
{
  if (!store) {
    return;
  }
  if (store->layer) {
    store->layer->ops->destroy(store->layer);
  }
  pages_unmap(&store->staging);
  free(store->records);
  free(store->name);
  free(store);
}

static int is_alignment(uint64_t value, size_t largest)
{
  return value && !(value & (value - 1)) && value <= largest;
}

DEVITOCOMP_EXPORT
int devitocomp_store_bind(devitocomp_store_t *store, const devitocomp_limits_t *limits)
{
  static const char action[] = "store";
  const int invalid = DEVITOCOMP_INVALID_ARGUMENT;
  const size_t largest = store->memory ? store->memory->alignment : LAYER_MAX_ALIGNMENT;
  int status;

  if (!claim(store)) {
    return invalid;
  }
  clear_failure(store);
  if (!limits || limits->struct_size < sizeof(*limits)) {
    fail(store, invalid, -1, action, "the limits are incomplete");
  } else if (!is_alignment(limits->payload_alignment, largest)) {
    fail(store, invalid, -1, action,
         "a payload alignment of %" PRIu64 " is not a power of two up to %zu",
         limits->payload_alignment, largest);
  } else if (!is_alignment(limits->sidecar_alignment, LAYER_MAX_ALIGNMENT)) {
    fail(store, invalid, -1, action,
         "a sidecar alignment of %" PRIu64 " is not a power of two up to %d",
         limits->sidecar_alignment, LAYER_MAX_ALIGNMENT);
  } else if (limits->max_compressed_bytes > MAX_SIZE
             || limits->sidecar_bytes > MAX_SIZE) {
    fail(store, invalid, -1, action,
         "payloads of up to %" PRIu64 " and sidecars of %" PRIu64 " bytes are too large",
         limits->max_compressed_bytes, limits->sidecar_bytes);
  } else if ((status = store->layer->ops->bind(store->layer, limits))) {
    fail(store, status, -1, action, "%s", store->layer->message);
  }
  if (store->failure.status == DEVITOCOMP_OK) {
    store->limits = *limits;
    store->bound = 1;
  }
  unclaim(store);
  return store->failure.status;
}

DEVITOCOMP_EXPORT
int devitocomp_store_begin(devitocomp_store_t *store, int num_threads)
{
  if (!claim(store)) {
    return DEVITOCOMP_INVALID_ARGUMENT;
  }
  clear_failure(store);
  forget_all(store);
  store->num_threads = num_threads > 1 ? num_threads : 1;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT
void devitocomp_store_end(devitocomp_store_t *store)
{
  const layer_ops_t *const ops = store->layer->ops;

  if (!is_busy(store)) {
    return;
  }
  if (store->activity == COMPRESSING) {
    ops->abandon(store->layer);
  } else if (store->activity == DECOMPRESSING) {
    ops->release(store->layer, store->index);
  }
  store->activity = IDLE;
  ops->settle(store->layer);
  unclaim(store);
}

DEVITOCOMP_EXPORT
void devitocomp_store_clear(devitocomp_store_t *store)
{
  int status;

  if (!claim(store)) {
    return;
  }
  clear_failure(store);
  status = store->layer->ops->discard(store->layer);
  if (status != DEVITOCOMP_OK) {
    fail(store, status, -1, "clear", "%s", store->layer->message);
  } else {
    pages_unmap(&store->staging);
    memset(store->records, 0,
           (size_t)store->config.nsnapshots * sizeof(*store->records));
  }
  unclaim(store);
}

DEVITOCOMP_EXPORT
int devitocomp_store_sync(devitocomp_store_t *store)
{
  const layer_ops_t *const ops = store->layer->ops;
  int status = DEVITOCOMP_OK;

  if (!claim(store)) {
    return DEVITOCOMP_INVALID_ARGUMENT;
  }
  clear_failure(store);
  if (ops->sync && (status = ops->sync(store->layer))) {
    fail(store, status, -1, "flush", "%s", store->layer->message);
  }
  unclaim(store);
  return status;
}

DEVITOCOMP_EXPORT
void devitocomp_store_failure(const devitocomp_store_t *store,
                              devitocomp_failure_t *failure)
{
  *failure = store->failure;
}

DEVITOCOMP_EXPORT
void devitocomp_store_usage(const devitocomp_store_t *store, devitocomp_usage_t *usage)
{
  store->layer->ops->usage(store->layer, usage);
  usage->resident_bytes += store->staging.bytes;
  usage->metadata_bytes += sizeof(*store) + strlen(store->name) + 1
    + (uint64_t)store->config.nsnapshots * sizeof(*store->records);
}

DEVITOCOMP_EXPORT
int devitocomp_store_info(const devitocomp_store_t *store, int64_t index,
                          devitocomp_snapshot_info_t *info)
{
  const record_t *record;
  int held;

  memset(info, 0, sizeof(*info));
  if (!devitocomp_store_covers(store, index)) {
    return DEVITOCOMP_INVALID_ARGUMENT;
  }
  record = &store->records[index];
  held = holds(store, index);
  info->stored = held || record->empty;
  info->compress_seconds = record->compress_seconds;
  info->decompress_seconds = record->decompress_seconds;
  info->decompressions = record->decompressions;
  if (held && store->raw_bytes) {
    info->raw_bytes = store->raw_bytes;
    info->payload_bytes = store->layer->ops->payload_bytes(store->layer, index);
    info->sidecar_bytes = store->limits.sidecar_bytes;
  }
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT
int devitocomp_store_peek(devitocomp_store_t *store, int64_t index,
                          const void **payload, size_t *bytes, const void **sidecar)
{
  const layer_ops_t *const ops = store->layer->ops;
  layer_span_t content = {NULL, 0, NULL};
  int status = DEVITOCOMP_OK;

  if (!devitocomp_store_covers(store, index) || !claim(store)) {
    return DEVITOCOMP_INVALID_ARGUMENT;
  }
  clear_failure(store);
  if (!holds(store, index) && (store->raw_bytes || !store->records[index].empty)) {
    status = DEVITOCOMP_INVALID_ARGUMENT;
  } else if (store->raw_bytes && !store->bound) {
    status = DEVITOCOMP_VERSION_MISMATCH;
    fail_unbound(store, index, "load");
  } else if (store->raw_bytes) {
    status = ops->acquire(store->layer, index, &content);
    if (status != DEVITOCOMP_OK) {
      fail(store, status, index, "load", "%s", store->layer->message);
    } else {
      ops->release(store->layer, index);
    }
  }
  unclaim(store);
  if (status == DEVITOCOMP_OK) {
    *payload = content.payload;
    *bytes = content.bytes;
    *sidecar = content.sidecar;
  }
  return status;
}

/* The body of devitocomp_store_put. */
static void put(devitocomp_store_t *store, int64_t index, const void *payload,
                size_t bytes, const void *sidecar)
{
  static const char action[] = "store";
  const int invalid = DEVITOCOMP_INVALID_ARGUMENT;
  const layer_ops_t *const ops = store->layer->ops;
  layer_span_t room;
  int status;

  if (!devitocomp_store_covers(store, index)) {
    fail(store, invalid, index, action,
         "snapshot index %" PRId64 " is outside [0, %" PRId64 ")", index,
         store->config.nsnapshots);
    return;
  }
  if (!store->raw_bytes && !bytes) {
    mark_empty(store, index);
    return;
  }
  if (!store->raw_bytes) {
    fail(store, invalid, index, action, "snapshots without points have no payload");
    return;
  }
  if (!store->bound) {
    fail_unbound(store, index, action);
    return;
  }
  if (bytes > store->limits.max_compressed_bytes) {
    fail(store, invalid, index, action,
         "a payload of %zu bytes is larger than the limit of %" PRIu64, bytes,
         store->limits.max_compressed_bytes);
    return;
  }
  if ((bytes && !payload) || (store->limits.sidecar_bytes && !sidecar)) {
    fail(store, invalid, index, action, "the payload or its sidecar is missing");
    return;
  }
  status = ops->reserve(store->layer, index, bytes, &room);
  if (status == DEVITOCOMP_OK) {
    if (bytes && can_touch_payloads(store)) {
      memcpy(room.payload, payload, bytes);
    } else if (bytes && !store->memory->copy(room.payload, payload, bytes)) {
      ops->abandon(store->layer);
      fail(store, DEVITOCOMP_PROVIDER_ERROR, index, action, "copying to %s failed",
           store->memory->name);
      return;
    }
    if (room.sidecar) {
      memcpy(room.sidecar, sidecar, (size_t)store->limits.sidecar_bytes);
    }
    status = ops->commit(store->layer, bytes);
  }
  if (status != DEVITOCOMP_OK) {
    fail(store, status, index, action, "%s", store->layer->message);
    return;
  }
  memset(&store->records[index], 0, sizeof(store->records[index]));
}

DEVITOCOMP_EXPORT
int devitocomp_store_put(devitocomp_store_t *store, int64_t index, const void *payload,
                         size_t bytes, const void *sidecar)
{
  int status;

  if (!claim(store)) {
    return DEVITOCOMP_INVALID_ARGUMENT;
  }
  clear_failure(store);
  put(store, index, payload, bytes, sidecar);
  status = store->failure.status;
  unclaim(store);
  return status;
}
