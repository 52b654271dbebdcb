/* host.c -- HOST execution: threads share the slabs. See plan.h. */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Large enough for Bitcomp's blocks of 8 KiB not to be wasted, small enough for many
   threads to get their share, and for what is left of zero to go. */
#define SLAB_BYTES ((int64_t)256 << 10)

/* Of a slab, besides what the interface has. */
#define DAMAGED (-1)

/* ---- Rows -------------------------------------------------------------------------- */

/* The elements from one to another, in C order, as rows along the fastest dimension. */
typedef struct rows {
  int64_t position, left; /* what comes next */
  int64_t offset, length, stride; /* of the row at hand, in elements */
} rows_t;

static rows_t rows_of_slab(const devitocomp_plan_t *plan, ptrdiff_t index) {
  rows_t rows = {0, 0, 0, 0, 0};
  rows.position = slab_start(plan, index);
  rows.left = slab_count(plan, index);
  return rows;
}

static int next_row(const devitocomp_plan_t *plan, rows_t *rows) {
  const devitocomp_tensor_t *tensor = &plan->tensor;
  int64_t rest = rows->position;
  uint32_t i;

  if (!rows->left) return 0;
  rows->offset = rows->position;
  rows->length = rows->left;
  rows->stride = 1;
  if (!plan->contiguous) {
    rows->offset = 0;
    for (i = tensor->rank; i-- > 0;) {
      rows->offset += rest % tensor->dims[i] * tensor->strides[i];
      rest /= tensor->dims[i];
    }
    i = tensor->rank - 1;
    rest = tensor->dims[i] - rows->position % tensor->dims[i];
    if (rest < rows->length) rows->length = rest;
    rows->stride = tensor->strides[i];
  }
  rows->position += rows->length;
  rows->left -= rows->length;
  return 1;
}

/* Between a row, and as many elements without gaps. to or from may be the row. */
static void copy_row(size_t itemsize, char *to, int64_t to_stride, const char *from,
                     int64_t from_stride, int64_t length) {
  int64_t i;

  if (to_stride == 1 && from_stride == 1) {
    memcpy(to, from, (size_t)length * itemsize);
  } else if (itemsize == sizeof(float)) {
    for (i = 0; i < length; i++)
      memcpy(to + (size_t)(i * to_stride) * 4, from + (size_t)(i * from_stride) * 4, 4);
  } else {
    for (i = 0; i < length; i++)
      memcpy(to + (size_t)(i * to_stride) * 8, from + (size_t)(i * from_stride) * 8, 8);
  }
}

static void gather(const devitocomp_plan_t *plan, ptrdiff_t index, const char *tensor,
                   char *data) {
  rows_t rows = rows_of_slab(plan, index);

  for (; next_row(plan, &rows); data += (size_t)rows.length * plan->itemsize)
    copy_row(plan->itemsize, data, 1, tensor + (size_t)rows.offset * plan->itemsize,
             rows.stride, rows.length);
}

static void scatter(const devitocomp_plan_t *plan, ptrdiff_t index, const char *data,
                    char *tensor) {
  rows_t rows = rows_of_slab(plan, index);

  for (; next_row(plan, &rows); data += (size_t)rows.length * plan->itemsize)
    copy_row(plan->itemsize, tensor + (size_t)rows.offset * plan->itemsize, rows.stride,
             data, 1, rows.length);
}

static void clear(const devitocomp_plan_t *plan, ptrdiff_t index, char *tensor) {
  static const char zero[sizeof(double)];
  rows_t rows = rows_of_slab(plan, index);

  while (next_row(plan, &rows)) {
    char *row = tensor + (size_t)rows.offset * plan->itemsize;
    if (rows.stride == 1)
      memset(row, 0, (size_t)rows.length * plan->itemsize);
    else
      copy_row(plan->itemsize, row, rows.stride, zero, 0, rows.length);
  }
}

static uint64_t max_row(const char *row, size_t itemsize, int64_t n, int64_t stride) {
  uint64_t magnitude = itemsize == sizeof(float) ? INT32_MAX : INT64_MAX, most = 0, x = 0;
  int64_t i;

  for (i = 0; i < n; i++) {
    memcpy(&x, row + (size_t)(i * stride) * itemsize, itemsize);
    x &= magnitude;
    most = x > most ? x : most;
  }
  return most;
}

/* More than compilers unroll: then they make vectors of it, which they do not otherwise. */
#define LANES 64

#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif

/* The largest of consecutive elements. Signed integers, which SSE2 can compare. */
static ALWAYS_INLINE uint64_t max_of_run32(const char *run, int64_t n) {
  int32_t most[LANES] = {0};
  uint64_t rest;
  int64_t i;
  int k;

  for (i = 0; i + LANES <= n; i += LANES)
    for (k = 0; k < LANES; k++) {
      int32_t x;
      memcpy(&x, run + (size_t)(i + k) * sizeof(x), sizeof(x));
      x &= INT32_MAX;
      most[k] = x > most[k] ? x : most[k];
    }
  rest = max_row(run + (size_t)i * sizeof(*most), sizeof(*most), n - i, 1);
  for (k = 1; k < LANES; k++) most[0] = most[k] > most[0] ? most[k] : most[0];
  return rest > (uint64_t)most[0] ? rest : (uint64_t)most[0];
}

#if defined(__GNUC__) && defined(__x86_64__)
/* Fast enough to wait for nothing but memory. */
__attribute__((target("avx2"))) static uint64_t max_run32_avx2(const char *run,
                                                               int64_t n) {
  return max_of_run32(run, n);
}
#endif

static uint64_t max_run32(const char *run, int64_t n) {
#if defined(__GNUC__) && defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return max_run32_avx2(run, n);
#endif
  return max_of_run32(run, n);
}

static uint64_t or_row(const char *row, size_t itemsize, int64_t n, int64_t stride) {
  uint64_t bits = 0, x = 0;
  int64_t i;

  for (i = 0; i < n; i++) {
    memcpy(&x, row + (size_t)(i * stride) * itemsize, itemsize);
    bits |= x;
  }
  return bits;
}

static uint64_t scan_slab(const devitocomp_plan_t *plan, ptrdiff_t index,
                          const char *tensor) {
  rows_t rows = rows_of_slab(plan, index);
  uint64_t most = 0, found;

  while (next_row(plan, &rows)) {
    const char *row = tensor + (size_t)rows.offset * plan->itemsize;
    if (plan->error == 0)
      most |= or_row(row, plan->itemsize, rows.length, rows.stride);
    else {
      if (plan->itemsize == sizeof(float) && rows.stride == 1)
        found = max_run32(row, rows.length);
      else
        found = max_row(row, plan->itemsize, rows.length, rows.stride);
      most = found > most ? found : most;
    }
  }
  return most;
}

static int is_within(const devitocomp_plan_t *plan, const void *data, const void *copy,
                     int64_t count, double tolerance) {
  const float *x32 = data, *y32 = copy;
  const double *x64 = data, *y64 = copy;
  int within = 1;
  int64_t i;

  if (plan->itemsize == sizeof(float))
    for (i = 0; i < count; i++)
      within &= fabs((double)x32[i] - (double)y32[i]) <= tolerance;
  else
    for (i = 0; i < count; i++) within &= fabs(x64[i] - y64[i]) <= tolerance;
  return within;
}

/* ---- Hashes ------------------------------------------------------------------------ */

/* Of a block, or of what there is of the last one. */
static uint64_t hash_block(const unsigned char *block, size_t words, size_t index) {
  uint64_t chain[CHAINS] = {0}, sum = 0;
  size_t i, k;

  for (i = 0; i + CHAINS <= words; i += CHAINS)
    for (k = 0; k < CHAINS; k++) chain[k] = link_word(chain[k], get_word(block, i + k));
  for (k = 0; i + k < words; k++) chain[k] = link_word(chain[k], get_word(block, i + k));
  for (k = 0; k < CHAINS; k++) sum += scramble(chain[k], index * CHAINS + k);
  return sum;
}

static uint64_t hash_stream(const unsigned char *stream, size_t bytes) {
  size_t words = bytes / WORD, start;
  uint64_t sum = 0;

  for (start = 0; start < words; start += BLOCK_WORDS)
    sum += hash_block(stream + start * WORD,
                      words - start < BLOCK_WORDS ? words - start : BLOCK_WORDS,
                      start / BLOCK_WORDS);
  return sum;
}

/* ---- Bitcomp ----------------------------------------------------------------------- */

/* What a thread needs for the duration of a call. */
typedef struct scratch {
  fenv_t environment;
  char *data; /* of a slab without gaps, if its tensor has some */
  char *copy; /* of a slab that is to be checked */
} scratch_t;

/* Whether it can be used. To be closed in any case, by the same thread. */
static int open_scratch(const devitocomp_plan_t *plan, scratch_t *scratch, int checks) {
  size_t bytes = (size_t)slab_count(plan, 0) * plan->itemsize;

  set_environment(&scratch->environment);
  scratch->data = plan->contiguous ? NULL : malloc(bytes);
  scratch->copy = checks ? malloc(bytes) : NULL;
  return (plan->contiguous || scratch->data) && (!checks || scratch->copy);
}

static void close_scratch(scratch_t *scratch) {
  free(scratch->data);
  free(scratch->copy);
  restore_environment(&scratch->environment);
}

static bitcompResult_t encode(const devitocomp_plan_t *plan, code_t code, double delta,
                              const void *data, int64_t count, void *stream,
                              size_t *bytes) {
  bitcompHandle_t handle;
  bitcompResult_t result = open_handle(plan, count, code, &handle);

  if (result) return result;
  if (code == LOSSLESS)
    result = bitcompHostCompressLossless(handle, data, stream);
  else if (plan->itemsize == sizeof(float))
    result = bitcompHostCompressLossy_fp32(handle, data, stream, (float)delta);
  else
    result = bitcompHostCompressLossy_fp64(handle, data, stream, delta);
  if (!result) result = bitcompGetCompressedSize(stream, bytes);
  bitcompDestroyPlan(handle);
  return result;
}

/* Of a stream that is intact. Whether it is one of this very slab, it says itself. */
static bitcompResult_t decode(const devitocomp_plan_t *plan, code_t code,
                              const void *stream, size_t bytes, int64_t count,
                              void *data) {
  size_t size = bytes, elements = 0;
  bitcompDataType_t type, expected;
  bitcompMode_t mode;
  bitcompAlgorithm_t algorithm;
  bitcompHandle_t handle;
  bitcompResult_t result = open_handle(plan, count, code, &handle);

  if (result) return result;
  if (!(result = bitcompGetDataTypeFromHandle(handle, &expected)) &&
      !(result = bitcompGetCompressedInfo(stream, &size, &elements, &type, &mode,
                                          &algorithm)))
    result = size == bytes && elements == (size_t)count * plan->itemsize &&
                 type == expected && (mode == BITCOMP_LOSSLESS) == (code == LOSSLESS)
               ? bitcompHostUncompress(handle, stream, data)
               : BITCOMP_INVALID_COMPRESSED_DATA;
  bitcompDestroyPlan(handle);
  return result;
}

static int status_of(bitcompResult_t result) {
  return !result                                     ? DEVITOCOMP_OK
         : result == BITCOMP_INVALID_COMPRESSED_DATA ? DEVITOCOMP_CORRUPT_PAYLOAD
                                                     : DEVITOCOMP_PROVIDER_ERROR;
}

/* The first failure, if any, described. */
static int slabs_status(devitocomp_plan_t *plan, const char *what) {
  ptrdiff_t i;

  for (i = 0; i < plan->slabs; i++)
    switch (plan->slab[i].status) {
    case DEVITOCOMP_OK: break;
    case DEVITOCOMP_OUT_OF_MEMORY:
      return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY, "no memory to %s", what);
    case DAMAGED: return refuse_damaged(plan, i);
    case DEVITOCOMP_CORRUPT_PAYLOAD:
      return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                  "Bitcomp does not recognise a stream: the payload is damaged, or of "
                  "another version of nvCOMP");
    default:
      return fail(plan->message, DEVITOCOMP_PROVIDER_ERROR, "Bitcomp cannot %s", what);
    }
  return DEVITOCOMP_OK;
}

/* To a stream, for which there is room. */
static void compress_slab(const devitocomp_plan_t *plan, scratch_t *scratch,
                          ptrdiff_t index, const char *tensor, const method_t *method,
                          unsigned char *stream) {
  slab_t *slab = plan->slab + index;
  int64_t count = slab_count(plan, index);
  const char *data = tensor + (size_t)slab_start(plan, index) * plan->itemsize;
  bitcompResult_t result;

  if (!plan->contiguous) {
    gather(plan, index, tensor, scratch->data);
    data = scratch->data;
  }
  slab->code = method->code;
  result = encode(plan, slab->code, method->delta, data, count, stream, &slab->bytes);
  if (!result && !method->safe &&
      (decode(plan, slab->code, stream, slab->bytes, count, scratch->copy) ||
       !is_within(plan, data, scratch->copy, count, method->tolerance))) {
    slab->code = LOSSLESS;
    result = encode(plan, LOSSLESS, 0, data, count, stream, &slab->bytes);
  }
  slab->status = status_of(result);
  if (result) {
    slab->bytes = 0;
  } else {
    memset(stream + slab->bytes, 0, whole_words(slab->bytes) - slab->bytes);
    slab->hash = hash_stream(stream, whole_words(slab->bytes));
  }
}

static void decompress_slab(const devitocomp_plan_t *plan, scratch_t *scratch,
                            ptrdiff_t index, const unsigned char *payload, char *tensor) {
  slab_t *slab = plan->slab + index;
  const unsigned char *stream;
  char *data = plan->contiguous
                 ? tensor + (size_t)slab_start(plan, index) * plan->itemsize
                 : scratch->data;

  slab->status = DEVITOCOMP_OK;
  if (slab->code == ZERO) {
    clear(plan, index, tensor);
    return;
  }
  stream = payload + slab->offset;
  /* Verified when Bitcomp is about to read it: then it is read from memory once. */
  slab->status = hash_stream(stream, whole_words(slab->bytes)) != slab->hash
                   ? DAMAGED
                   : status_of(decode(plan, slab->code, stream, slab->bytes,
                                      slab_count(plan, index), data));
  if (!slab->status && !plan->contiguous) scatter(plan, index, data, tensor);
}

/* ---- Rooms ------------------------------------------------------------------------- */

/*
 * Where a stream goes in the payload is known when all slabs before it have been
 * compressed. Until then it stays in a room. Whoever finishes a slab that others have
 * waited for moves their streams too, while they are in a cache: nobody has to wait.
 */

static int prepare_rooms(devitocomp_plan_t *plan) {
  size_t bytes = (size_t)plan->slabs * sizeof(*plan->rooms);

  if (!plan->rooms && !(plan->rooms = malloc(bytes)))
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY,
                "no memory for a workspace of %zu bytes", bytes);
  return DEVITOCOMP_OK;
}

static unsigned char *take_room(devitocomp_plan_t *plan) {
  unsigned char *room = NULL;

  #pragma omp critical(devitocomp_bitcomp)
  if (plan->idle) room = plan->rooms[--plan->idle];
  return room ? room : malloc(stream_room(plan));
}

static void move_stream(devitocomp_plan_t *plan, slab_t *slab, unsigned char *payload,
                        size_t capacity) {
  size_t bytes = whole_words(slab->bytes);

  if (!slab->room) return;
  if (bytes <= capacity && slab->offset <= capacity - bytes)
    memcpy(payload + slab->offset, slab->room, bytes);
  #pragma omp critical(devitocomp_bitcomp)
  plan->rooms[plan->idle++] = slab->room;
}

/* A slab is done, and with it, maybe, all before some others. */
static void finish_slab(devitocomp_plan_t *plan, ptrdiff_t index, unsigned char *payload,
                        size_t capacity) {
  ptrdiff_t first, last;

  #pragma omp critical(devitocomp_bitcomp)
  {
    plan->slab[index].done = 1;
    first = plan->placed;
    while (plan->placed < plan->slabs && plan->slab[plan->placed].done) place_slab(plan);
    last = plan->placed;
  }
  for (; first < last; first++)
    move_stream(plan, plan->slab + first, payload, capacity);
}

/* ---- In parallel ------------------------------------------------------------------- */

static int host_scan(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                     const void *tensor) {
  int threads = count_threads(exec, (size_t)plan->slabs);
  ptrdiff_t i;

  (void)threads;
  #pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (i = 0; i < plan->slabs; i++) plan->slab[i].maximum = scan_slab(plan, i, tensor);
  return DEVITOCOMP_OK;
}

/* What keeps a slab from being compressed is its status. */
static void write_slab(devitocomp_plan_t *plan, scratch_t *scratch, int ready,
                       ptrdiff_t index, const char *tensor, const method_t *method) {
  slab_t *slab = plan->slab + index;

  slab->status = DEVITOCOMP_OK;
  slab->bytes = 0;
  slab->hash = 0;
  slab->code = ZERO;
  slab->room = NULL;
  if (!slab->maximum) return;
  if (ready && (slab->room = take_room(plan)))
    compress_slab(plan, scratch, index, tensor, method, slab->room);
  else
    slab->status = DEVITOCOMP_OUT_OF_MEMORY;
}

static int host_compress(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                         const void *tensor, const method_t *method, void *payload,
                         size_t capacity) {
  int threads = count_threads(exec, (size_t)plan->slabs), status;
  ptrdiff_t i;

  if ((status = prepare_rooms(plan))) return status;
  for (i = 0; i < plan->slabs; i++) plan->slab[i].done = 0;
  (void)threads;
  #pragma omp parallel num_threads(threads)
  {
    scratch_t scratch;
    int ready = open_scratch(plan, &scratch, !method->safe);

    #pragma omp for schedule(dynamic) nowait
    for (i = 0; i < plan->slabs; i++) {
      write_slab(plan, &scratch, ready, i, tensor, method);
      finish_slab(plan, i, payload, capacity);
    }
    close_scratch(&scratch);
  }
  return slabs_status(plan, "compress");
}

static int host_decompress(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                           const void *payload, void *tensor) {
  int threads = count_threads(exec, (size_t)plan->slabs);
  ptrdiff_t i;

  (void)threads;
  #pragma omp parallel num_threads(threads)
  {
    scratch_t scratch;
    int ready = open_scratch(plan, &scratch, 0);

    #pragma omp for schedule(dynamic) nowait
    for (i = 0; i < plan->slabs; i++)
      if (ready)
        decompress_slab(plan, &scratch, i, payload, tensor);
      else
        plan->slab[i].status = DEVITOCOMP_OUT_OF_MEMORY;
    close_scratch(&scratch);
  }
  return slabs_status(plan, "decompress");
}

static int host_read(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                     const void *payload, size_t start, uint64_t *words, size_t count) {
  (void)plan;
  (void)exec;
  memcpy(words, (const char *)payload + start * WORD, count * WORD);
  return DEVITOCOMP_OK;
}

/* The streams are there already. */
static int host_pack(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                     void *payload, const uint64_t *words, size_t count) {
  (void)plan;
  (void)exec;
  memcpy(payload, words, count * WORD);
  return DEVITOCOMP_OK;
}

static int host_create(devitocomp_plan_t *plan, char *message) {
  (void)plan;
  (void)message;
  return DEVITOCOMP_OK;
}

static void host_destroy(devitocomp_plan_t *plan) {
  while (plan->idle) free(plan->rooms[--plan->idle]);
  free(plan->rooms);
}

const place_t host_place = {
  host_scan, host_compress, host_pack, host_read, host_decompress, host_create,
  host_destroy, SLAB_BYTES
};
