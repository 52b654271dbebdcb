/*
 * plan.h -- plans, and the two places where their work is done: host.c and cuda.cu.
 */
#ifndef DEVITOCOMP_BITCOMP_PLAN_H
#define DEVITOCOMP_BITCOMP_PLAN_H

#include "provider.h"

#include <nvcomp/native/bitcomp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of a payload: magic and versions, hash of all the rest, hash of dtype, rank and dims,
   bytes, elements of a slab. Unless all is zero, the slabs follow. */
#define HEADER_WORDS 5
#define HEADER_BYTES (HEADER_WORDS * (size_t)WORD)

/* What a slab is, in the most significant byte of its word; bytes of its stream below. */
typedef enum code { ZERO, LOSSLESS, LOSSY } code_t;
#define CODE_SHIFT 56

/* What is going on with a slab, for the duration of a call. */
typedef struct slab {
  uint64_t maximum; /* the bits of max|x|; lossless: of all elements, ORed */
  size_t offset;    /* in the payload */
  size_t bytes;     /* of the stream, which has room for whole words */
  code_t code;
  int status;
} slab_t;

/* How a snapshot is to be compressed. */
typedef struct method {
  code_t code;
  int safe;         /* whether Bitcomp need not be checked; see choose_method */
  double delta;     /* LOSSY: the distance between neighbours that are kept, 2^n */
  double tolerance; /* LOSSY */
} method_t;

struct devitocomp_plan {
  devitocomp_tensor_t tensor;
  uint32_t kind;
  double error;         /* 0 for lossless */
  uint64_t tag;         /* the hash of dtype, rank and dims */
  size_t itemsize;
  int64_t elements;
  int contiguous;

  int64_t slab_elements; /* of the snapshot at hand: another plan may have cut otherwise */
  ptrdiff_t slabs;
  slab_t *slab;
  ptrdiff_t slab_room;   /* slabs that there is memory for */

  unsigned char *work;   /* HOST: a stream of each slab, from the first compress on */
  struct device *device; /* CUDA */
  char message[MESSAGE_BYTES];
};

/* In C order, slabs are so many consecutive elements, the last one what is left. */
int64_t slab_start(const devitocomp_plan_t *plan, ptrdiff_t index);
int64_t slab_count(const devitocomp_plan_t *plan, ptrdiff_t index);
/* The most bytes that a stream of the plan's slabs takes, as whole words. */
size_t stream_room(const devitocomp_plan_t *plan);
size_t whole_words(size_t bytes);

/* A Bitcomp handle for a number of elements. Lossless is for integers only. */
bitcompResult_t open_handle(const devitocomp_plan_t *plan, int64_t count, code_t code,
                            bitcompHandle_t *handle);
const char *result_name(bitcompResult_t result);

/*
 * The hash of a payload is a sum over its words, each of them scrambled together with its
 * position: in whatever order they are added up, and no change of one goes unnoticed.
 */
#if defined(__CUDACC__)
__host__ __device__
#endif
static inline uint64_t scramble(uint64_t word, uint64_t index) {
  word ^= index * UINT64_C(0x9e3779b97f4a7c15);
  word = (word ^ (word >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  word = (word ^ (word >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  return word ^ (word >> 32);
}

/*
 * Each place offers these, in this order. They return a status and leave a message.
 *
 * scan        the maximum of each slab
 * compress    each slab to a stream of its own: code and bytes
 * pack        to the payload, of so many bytes: words, which are the header and the table
 *             of slabs, then the streams. The second word becomes the hash given plus that
 *             of everything from the end of the header
 * read        words of the payload to host memory
 * hash        of words of the payload
 * decompress  a payload that has been verified
 */
typedef struct place {
  int (*scan)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *tensor);
  int (*compress)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *tensor,
                  const method_t *);
  int (*pack)(devitocomp_plan_t *, const devitocomp_execution_t *, void *payload,
              size_t bytes, const uint64_t *words, size_t count, uint64_t hash);
  int (*read)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *payload,
              size_t start, uint64_t *words, size_t count);
  int (*hash)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *payload,
              size_t start, size_t end, uint64_t *hash);
  int (*decompress)(devitocomp_plan_t *, const devitocomp_execution_t *,
                    const void *payload, void *tensor);
  int (*create)(devitocomp_plan_t *, char *message);
  void (*destroy)(devitocomp_plan_t *);
  int64_t slab_bytes;
} place_t;

extern const place_t host_place;
#ifdef BITCOMP_CUDA
extern const place_t cuda_place;
#endif

#ifdef __cplusplus
}
#endif

#endif
