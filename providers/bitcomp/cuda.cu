/*
 * cuda.cu -- CUDA execution, on the stream given and no other. See plan.h.
 *
 * What the host has to know is waited for: the maxima before, and the sizes after, slabs
 * are compressed; and whether a payload is intact, before Bitcomp gets to see it. All
 * else, the decompression above all, may still be queued when a call returns. Since the
 * next call may come with another stream, each waits there for what the last one queued.
 */
#include "plan.h"

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

/* Bitcomp keeps a device busy with far less, and a snapshot is mostly one slab. */
#define SLAB_BYTES ((int64_t)256 << 20)
#define THREADS 256
#define MAX_BLOCKS 2048

struct device {
  int id;
  cudaEvent_t done;         /* all that was queued up to now */
  unsigned char *stage;     /* a tensor without gaps, if the plan's has some */
  unsigned char *work;      /* the streams, from the first compress on */
  uint64_t *words;          /* a word for each slab */
  size_t words_room;
  /* By Bitcomp: of full slabs and of the last, LOSSLESS and LOSSY. */
  struct {
    bitcompHandle_t handle;
    int64_t count;
  } handles[2][2];
};

/* Where elements are. */
typedef struct layout {
  int64_t dims[DEVITOCOMP_MAX_RANK], strides[DEVITOCOMP_MAX_RANK];
  int rank, contiguous;
} layout_t;

/* ---- Kernels ----------------------------------------------------------------------- */

static __device__ int64_t offset_of(const layout_t &layout, int64_t element) {
  int64_t offset = 0;

  if (layout.contiguous) return element;
  for (int i = layout.rank - 1; i >= 0; i--) {
    offset += element % layout.dims[i] * layout.strides[i];
    element /= layout.dims[i];
  }
  return offset;
}

/*
 * The elements from start to end, as words without a sign, or'ed or the largest of them,
 * to *found; and, if there is a stage, to that.
 */
template <typename word_t>
static __global__ void scan_kernel(layout_t layout, const word_t *tensor, word_t *stage,
                                   int64_t start, int64_t end, int is_lossless,
                                   unsigned long long *found) {
  const word_t magnitude = (word_t)~(word_t)0 >> 1;
  int64_t step = (int64_t)gridDim.x * blockDim.x;
  unsigned long long mine = 0, other;

  for (int64_t i = start + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < end;
       i += step) {
    word_t x = tensor[offset_of(layout, i)];
    if (stage) stage[i] = x;
    if (is_lossless) {
      mine |= x;
    } else {
      x &= magnitude;
      mine = x > mine ? x : mine;
    }
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    other = __shfl_down_sync(0xffffffffu, mine, lane);
    mine = is_lossless ? mine | other : other > mine ? other : mine;
  }
  if (threadIdx.x % 32 == 0 && mine) {
    if (is_lossless)
      atomicOr(found, mine);
    else
      atomicMax(found, mine);
  }
}

template <typename word_t>
static __global__ void scatter_kernel(layout_t layout, const word_t *stage,
                                      word_t *tensor, int64_t elements) {
  int64_t step = (int64_t)gridDim.x * blockDim.x;

  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements;
       i += step)
    tensor[offset_of(layout, i)] = stage[i];
}

/* A chain for each thread: neighbours read neighbours. */
static __global__ void hash_kernel(const uint64_t *words, size_t count,
                                   unsigned long long *hash) {
  size_t step = (size_t)gridDim.x * blockDim.x, chains = chains_of(count);
  unsigned long long mine = 0;

  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < chains; i += step) {
    size_t start = i / CHAINS * BLOCK_WORDS, end = start + BLOCK_WORDS;
    uint64_t chain = 0;
    for (size_t k = start + i % CHAINS; k < end && k < count; k += CHAINS)
      chain = link_word(chain, words[k]);
    mine += scramble(chain, i);
  }
  for (int lane = 16; lane > 0; lane /= 2)
    mine += __shfl_down_sync(0xffffffffu, mine, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(hash, mine);
}

static unsigned blocks_for(int64_t threads) {
  int64_t blocks = (threads + THREADS - 1) / THREADS;
  return (unsigned)(blocks < 1 ? 1 : blocks > MAX_BLOCKS ? MAX_BLOCKS : blocks);
}

/* ---- Errors and order -------------------------------------------------------------- */

static int cuda_fail(char *message, const char *what, cudaError_t error) {
  /* Reported here, hence not left behind for the caller to stumble upon. */
  (void)cudaGetLastError();
  return fail(message,
              error == cudaErrorMemoryAllocation ? DEVITOCOMP_OUT_OF_MEMORY
                                                 : DEVITOCOMP_PROVIDER_ERROR,
              "%s: %s", what, cudaGetErrorString(error));
}

#define TRY(plan, call) \
  do { \
    cudaError_t error_ = (call); \
    if (error_ != cudaSuccess) return cuda_fail((plan)->message, #call, error_); \
  } while (0)

static int bitcomp_fail(devitocomp_plan_t *plan, const char *what,
                        bitcompResult_t result) {
  return fail(plan->message,
              result == BITCOMP_INVALID_COMPRESSED_DATA ? DEVITOCOMP_CORRUPT_PAYLOAD
                                                        : DEVITOCOMP_PROVIDER_ERROR,
              "Bitcomp cannot %s: %s", what, result_name(result));
}

static cudaStream_t stream_of(const devitocomp_execution_t *exec) {
  return (cudaStream_t)exec->stream;
}

/* Before anything is queued. */
static int enter(devitocomp_plan_t *plan, const devitocomp_execution_t *exec) {
  int active;

  TRY(plan, cudaGetDevice(&active));
  if (active != plan->device->id)
    return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT,
                "the active device is %d, that of the plan %d", active, plan->device->id);
  TRY(plan, cudaStreamWaitEvent(stream_of(exec), plan->device->done, 0));
  return DEVITOCOMP_OK;
}

/* After something may have been queued, whatever came of it. */
static int leave(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                 int status) {
  cudaError_t error = cudaEventRecord(plan->device->done, stream_of(exec));

  if (status || error == cudaSuccess) return status;
  return cuda_fail(plan->message, "cudaEventRecord", error);
}

/* ---- Memory and handles ------------------------------------------------------------ */

static int reserve(devitocomp_plan_t *plan, unsigned char **pointer, size_t bytes) {
  if (!*pointer) TRY(plan, cudaMalloc((void **)pointer, bytes));
  return DEVITOCOMP_OK;
}

static int reserve_words(devitocomp_plan_t *plan) {
  struct device *device = plan->device;
  size_t count = (size_t)plan->slabs;

  if (count <= device->words_room) return DEVITOCOMP_OK;
  /* cudaFree waits for what is queued. */
  TRY(plan, cudaFree(device->words));
  device->words = NULL;
  device->words_room = 0;
  TRY(plan, cudaMalloc((void **)&device->words, count * WORD));
  device->words_room = count;
  return DEVITOCOMP_OK;
}

static layout_t layout_of(const devitocomp_plan_t *plan) {
  layout_t layout;

  memcpy(layout.dims, plan->tensor.dims, sizeof(layout.dims));
  memcpy(layout.strides, plan->tensor.strides, sizeof(layout.strides));
  layout.rank = (int)plan->tensor.rank;
  layout.contiguous = plan->contiguous;
  return layout;
}

/* A handle for a slab. They outlive the call, as Bitcomp does not say when kernels that
   are still queued no longer need them. */
static int handle_for(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      ptrdiff_t index, code_t code, bitcompHandle_t *handle) {
  struct device *device = plan->device;
  int is_last = index + 1 == plan->slabs, is_lossy = code == LOSSY;
  int64_t count = slab_count(plan, index);
  bitcompResult_t result;

  if (device->handles[is_last][is_lossy].count != count) {
    if (device->handles[is_last][is_lossy].count) {
      TRY(plan, cudaStreamSynchronize(stream_of(exec)));
      bitcompDestroyPlan(device->handles[is_last][is_lossy].handle);
      device->handles[is_last][is_lossy].count = 0;
    }
    result = open_handle(plan, count, code, &device->handles[is_last][is_lossy].handle);
    if (result) return bitcomp_fail(plan, "make a plan", result);
    device->handles[is_last][is_lossy].count = count;
  }
  *handle = device->handles[is_last][is_lossy].handle;
  result = bitcompSetStream(*handle, stream_of(exec));
  return result ? bitcomp_fail(plan, "use the stream", result) : DEVITOCOMP_OK;
}

/* The words of all slabs, once what fills them in has run. */
static int fetch_words(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                       uint64_t *words) {
  TRY(plan, cudaMemcpyAsync(words, plan->device->words, (size_t)plan->slabs * WORD,
                            cudaMemcpyDeviceToHost, stream_of(exec)));
  TRY(plan, cudaStreamSynchronize(stream_of(exec)));
  return DEVITOCOMP_OK;
}

/* ---- The place --------------------------------------------------------------------- */

static int queue_scan(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      const void *tensor) {
  struct device *device = plan->device;
  cudaStream_t stream = stream_of(exec);
  layout_t layout = layout_of(plan);
  int is_lossless = plan->error == 0, status;
  ptrdiff_t i;

  if ((status = reserve_words(plan)) ||
      (!plan->contiguous &&
       (status = reserve(plan, &device->stage, (size_t)plan->elements * plan->itemsize))))
    return status;
  TRY(plan, cudaMemsetAsync(device->words, 0, (size_t)plan->slabs * WORD, stream));
  for (i = 0; i < plan->slabs; i++) {
    int64_t start = slab_start(plan, i), end = start + slab_count(plan, i);
    unsigned long long *found = (unsigned long long *)device->words + i;
    if (plan->itemsize == sizeof(float))
      scan_kernel<<<blocks_for(end - start), THREADS, 0, stream>>>(
        layout, (const uint32_t *)tensor, (uint32_t *)device->stage, start, end,
        is_lossless, found);
    else
      scan_kernel<<<blocks_for(end - start), THREADS, 0, stream>>>(
        layout, (const uint64_t *)tensor, (uint64_t *)device->stage, start, end,
        is_lossless, found);
    TRY(plan, cudaGetLastError());
  }
  return DEVITOCOMP_OK;
}

static int cuda_scan(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                     const void *tensor) {
  uint64_t *words;
  ptrdiff_t i;
  int status;

  if ((status = enter(plan, exec))) return status;
  if (!(words = (uint64_t *)malloc((size_t)plan->slabs * WORD)))
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for maxima");
  if (!(status = queue_scan(plan, exec, tensor))) status = fetch_words(plan, exec, words);
  if (!status)
    for (i = 0; i < plan->slabs; i++) plan->slab[i].maximum = words[i];
  free(words);
  return leave(plan, exec, status);
}

static unsigned char *stream_at(const devitocomp_plan_t *plan, ptrdiff_t index) {
  return plan->device->work + (size_t)index * stream_room(plan);
}

/* The hash of each stream, in a payload or else where it was compressed to. */
static int fetch_hashes(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                        const unsigned char *payload, uint64_t *hashes) {
  cudaStream_t stream = stream_of(exec);
  ptrdiff_t i;
  int status = reserve_words(plan);

  if (status) return status;
  TRY(plan, cudaMemsetAsync(plan->device->words, 0, (size_t)plan->slabs * WORD, stream));
  for (i = 0; i < plan->slabs; i++) {
    const slab_t *slab = plan->slab + i;
    const unsigned char *at = payload ? payload + slab->offset : stream_at(plan, i);
    size_t count = whole_words(slab->bytes) / WORD;

    if (slab->code == ZERO) continue;
    hash_kernel<<<blocks_for((int64_t)chains_of(count)), THREADS, 0, stream>>>(
      (const uint64_t *)at, count, (unsigned long long *)plan->device->words + i);
    TRY(plan, cudaGetLastError());
  }
  return fetch_words(plan, exec, hashes);
}

static int queue_compress(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                          const unsigned char *data, const method_t *method) {
  ptrdiff_t i;
  int status;

  status = reserve(plan, &plan->device->work, (size_t)plan->slabs * stream_room(plan));
  if (status) return status;
  for (i = 0; i < plan->slabs; i++) {
    slab_t *slab = plan->slab + i;
    const void *from = data + (size_t)slab_start(plan, i) * plan->itemsize;
    bitcompHandle_t handle;
    bitcompResult_t result;

    slab->bytes = 0;
    slab->hash = 0;
    slab->code = ZERO;
    if (!slab->maximum) continue;
    /* Where Bitcomp might need checking, it is not worth that. */
    slab->code = method->safe ? method->code : LOSSLESS;
    if ((status = handle_for(plan, exec, i, slab->code, &handle))) return status;
    if (slab->code == LOSSLESS)
      result = bitcompCompressLossless(handle, from, stream_at(plan, i));
    else if (plan->itemsize == sizeof(float))
      result = bitcompCompressLossy_fp32(handle, (const float *)from, stream_at(plan, i),
                                         (float)method->delta);
    else
      result = bitcompCompressLossy_fp64(handle, (const double *)from, stream_at(plan, i),
                                         method->delta);
    if (!result)
      result = bitcompGetCompressedSizeAsync(
        stream_at(plan, i), (size_t *)(plan->device->words + i), stream_of(exec));
    if (result) return bitcomp_fail(plan, "compress", result);
  }
  return DEVITOCOMP_OK;
}

/* Take note of what came of it, and fill up the last words. */
static int read_sizes(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      uint64_t *words) {
  ptrdiff_t i;
  int status = fetch_words(plan, exec, words);

  for (i = 0; !status && i < plan->slabs; i++) {
    slab_t *slab = plan->slab + i;
    if (slab->code == ZERO) continue;
    if (words[i] < 1 || words[i] > stream_room(plan))
      return fail(plan->message, DEVITOCOMP_PROVIDER_ERROR,
                  "Bitcomp says that a stream has %llu bytes, of %zu at most",
                  (unsigned long long)words[i], stream_room(plan));
    slab->bytes = (size_t)words[i];
    TRY(plan, cudaMemsetAsync(stream_at(plan, i) + slab->bytes, 0,
                              whole_words(slab->bytes) - slab->bytes, stream_of(exec)));
  }
  return status;
}

static int cuda_compress(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                         const void *tensor, const method_t *method, void *payload,
                         size_t capacity) {
  const unsigned char *data =
    plan->contiguous ? (const unsigned char *)tensor : plan->device->stage;
  uint64_t *words;
  ptrdiff_t i;
  int status;

  (void)payload;
  (void)capacity;
  if ((status = enter(plan, exec))) return status;
  if (!(words = (uint64_t *)malloc((size_t)plan->slabs * WORD)))
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for sizes");
  if (!(status = queue_compress(plan, exec, data, method)) &&
      !(status = read_sizes(plan, exec, words)) &&
      !(status = fetch_hashes(plan, exec, NULL, words)))
    for (i = 0; i < plan->slabs; i++) {
      plan->slab[i].hash = words[i];
      place_slab(plan);
    }
  free(words);
  return leave(plan, exec, status);
}

static int queue_pack(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      unsigned char *payload, const uint64_t *words, size_t count) {
  cudaStream_t stream = stream_of(exec);
  ptrdiff_t i;

  /* From pageable memory, which is copied before the call returns. */
  TRY(plan, cudaMemcpyAsync(payload, words, count * WORD, cudaMemcpyDefault, stream));
  for (i = 0; i < plan->slabs; i++)
    if (plan->slab[i].code != ZERO)
      TRY(plan, cudaMemcpyAsync(payload + plan->slab[i].offset, stream_at(plan, i),
                                whole_words(plan->slab[i].bytes), cudaMemcpyDefault,
                                stream));
  return DEVITOCOMP_OK;
}

static int cuda_pack(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                     void *payload, const uint64_t *words, size_t count) {
  int status = enter(plan, exec);

  if (status) return status;
  status = queue_pack(plan, exec, (unsigned char *)payload, words, count);
  return leave(plan, exec, status);
}

static int cuda_read(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                     const void *payload, size_t start, uint64_t *words, size_t count) {
  int status = enter(plan, exec);

  if (status) return status;
  TRY(plan, cudaMemcpyAsync(words, (const uint64_t *)payload + start, count * WORD,
                            cudaMemcpyDefault, stream_of(exec)));
  TRY(plan, cudaStreamSynchronize(stream_of(exec)));
  return DEVITOCOMP_OK;
}

/* Whether all streams are as they were when they were written. */
static int check_streams(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                         const unsigned char *payload) {
  uint64_t *hashes = (uint64_t *)malloc((size_t)plan->slabs * WORD);
  ptrdiff_t i;
  int status;

  if (!hashes)
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for checksums");
  status = fetch_hashes(plan, exec, payload, hashes);
  for (i = 0; !status && i < plan->slabs; i++)
    if (plan->slab[i].code != ZERO && hashes[i] != plan->slab[i].hash)
      status = refuse_damaged(plan, i);
  free(hashes);
  return status;
}

static int queue_decompress(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                            const unsigned char *payload, void *tensor) {
  cudaStream_t stream = stream_of(exec);
  unsigned char *data = (unsigned char *)tensor;
  ptrdiff_t i;
  int status;

  if (!plan->contiguous) {
    status = reserve(plan, &plan->device->stage, (size_t)plan->elements * plan->itemsize);
    if (status) return status;
    data = plan->device->stage;
  }
  for (i = 0; i < plan->slabs; i++) {
    slab_t *slab = plan->slab + i;
    unsigned char *to = data + (size_t)slab_start(plan, i) * plan->itemsize;
    bitcompHandle_t handle;
    bitcompResult_t result;

    if (slab->code == ZERO) {
      TRY(plan, cudaMemsetAsync(to, 0, (size_t)slab_count(plan, i) * plan->itemsize,
                                stream));
      continue;
    }
    if ((status = handle_for(plan, exec, i, slab->code, &handle))) return status;
    result = bitcompUncompress(handle, payload + slab->offset, to);
    if (result) return bitcomp_fail(plan, "decompress", result);
  }
  if (!plan->contiguous) {
    layout_t layout = layout_of(plan);
    if (plan->itemsize == sizeof(float))
      scatter_kernel<<<blocks_for(plan->elements), THREADS, 0, stream>>>(
        layout, (const uint32_t *)data, (uint32_t *)tensor, plan->elements);
    else
      scatter_kernel<<<blocks_for(plan->elements), THREADS, 0, stream>>>(
        layout, (const uint64_t *)data, (uint64_t *)tensor, plan->elements);
    TRY(plan, cudaGetLastError());
  }
  return DEVITOCOMP_OK;
}

static int cuda_decompress(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                           const void *payload, void *tensor) {
  const unsigned char *streams = (const unsigned char *)payload;
  int status = enter(plan, exec);

  if (status) return status;
  if (!(status = check_streams(plan, exec, streams)))
    status = queue_decompress(plan, exec, streams, tensor);
  return leave(plan, exec, status);
}

static int cuda_create(devitocomp_plan_t *plan, char *message) {
  cudaError_t error;

  plan->device = (struct device *)calloc(1, sizeof(*plan->device));
  if (!plan->device)
    return fail(message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for a plan");
  error = cudaGetDevice(&plan->device->id);
  if (error == cudaSuccess)
    error = cudaEventCreateWithFlags(&plan->device->done, cudaEventDisableTiming);
  if (error == cudaSuccess) return DEVITOCOMP_OK;
  return cuda_fail(message, "no CUDA device can be used", error);
}

static void cuda_destroy(devitocomp_plan_t *plan) {
  struct device *device = plan->device;
  int i, j;

  if (!device) return;
  if (device->done) cudaEventSynchronize(device->done);
  for (i = 0; i < 2; i++)
    for (j = 0; j < 2; j++)
      if (device->handles[i][j].count) bitcompDestroyPlan(device->handles[i][j].handle);
  cudaFree(device->stage);
  cudaFree(device->work);
  cudaFree(device->words);
  if (device->done) cudaEventDestroy(device->done);
  (void)cudaGetLastError();
  free(device);
}

extern "C" const place_t cuda_place = {
  cuda_scan, cuda_compress, cuda_pack, cuda_read, cuda_decompress, cuda_create,
  cuda_destroy, SLAB_BYTES
};
