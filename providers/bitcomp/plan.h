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

/* Of a payload: magic and versions, hash of header and table, hash of dtype, rank and
   dims, bytes, elements of a slab. Unless all is zero, the table of slabs follows. */
#define HEADER_WORDS 5
#define HEADER_BYTES (HEADER_WORDS * (size_t)WORD)

/* Of a slab, in the table: its code, in the most significant byte, with the bytes of its
   stream below; and the hash of the stream. */
#define ENTRY_WORDS 2
typedef enum code { ZERO, LOSSLESS, LOSSY } code_t;
#define CODE_SHIFT 56

/* What is going on with a slab, for the duration of a call. */
typedef struct slab {
  uint64_t maximum;    /* the bits of max|x|; lossless: of all elements, ORed */
  size_t offset;       /* in the payload */
  size_t bytes;        /* of the stream, which has room for whole words */
  uint64_t hash;       /* of the stream, as whole words */
  code_t code;
  int status;
  int done;            /* HOST: compressed, or given up */
  unsigned char *room; /* HOST: where the stream is, if not yet in the payload */
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

  /* Of the payload that is being written. */
  ptrdiff_t placed; /* slabs whose place is known */
  size_t end;       /* of the last of these */

  unsigned char **rooms; /* HOST: for a stream each, of those not in use */
  ptrdiff_t idle;        /* HOST: how many of them there are */
  struct device *device; /* CUDA */
  char message[MESSAGE_BYTES];
};

/* In C order, slabs are so many consecutive elements, the last one what is left. */
int64_t slab_start(const devitocomp_plan_t *plan, ptrdiff_t index);
int64_t slab_count(const devitocomp_plan_t *plan, ptrdiff_t index);
/* The most bytes that a stream of the plan's slabs takes, as whole words. */
size_t stream_room(const devitocomp_plan_t *plan);
size_t whole_words(size_t bytes);
/* Give the first slab that has none its place in the payload. Its size is known. */
void place_slab(devitocomp_plan_t *plan);

/* Of a slab whose checksum is wrong. Returns CORRUPT_PAYLOAD. */
int refuse_damaged(devitocomp_plan_t *plan, ptrdiff_t index);

/* A Bitcomp handle for a number of elements. Lossless is for integers only. */
bitcompResult_t open_handle(const devitocomp_plan_t *plan, int64_t count, code_t code,
                            bitcompHandle_t *handle);
const char *result_name(bitcompResult_t result);

/*
 * The hash of a stream. Its words, in blocks, are dealt out to chains, which do not wait
 * for each other; each chain is scrambled together with its position, and they are added
 * up, in whatever order. No change of a single word goes unnoticed.
 */
#if defined(__CUDACC__)
#define EVERYWHERE __host__ __device__
#else
#define EVERYWHERE
#endif

#define CHAINS 8 /* of a block */
#define LINKS 64 /* of a chain */
#define BLOCK_WORDS ((size_t)CHAINS * LINKS)

/* Those of so many words, with some that are empty in the last block. */
static EVERYWHERE inline size_t chains_of(size_t words) {
  return (words + BLOCK_WORDS - 1) / BLOCK_WORDS * CHAINS;
}

static EVERYWHERE inline uint64_t link_word(uint64_t chain, uint64_t word) {
  chain = (chain ^ word) * UINT64_C(0x9fb21c651e98df25);
  return chain << 32 | chain >> 32;
}

static EVERYWHERE inline uint64_t scramble(uint64_t word, uint64_t index) {
  word ^= index * UINT64_C(0x9e3779b97f4a7c15);
  word = (word ^ (word >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  word = (word ^ (word >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  return word ^ (word >> 32);
}

/*
 * Each place offers these, in this order. They return a status and leave a message.
 *
 * scan        the maximum of each slab
 * compress    each slab to a stream of its own: code, bytes, hash, and place. What of the
 *             payload's capacity is left may be used
 * pack        to the payload: words, which are the header and the table of slabs, and
 *             what streams are not there yet. There is room for that
 * read        words of the payload to host memory
 * decompress  a payload whose header and table have been verified, and its streams not
 */
typedef struct place {
  int (*scan)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *tensor);
  int (*compress)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *tensor,
                  const method_t *, void *payload, size_t capacity);
  int (*pack)(devitocomp_plan_t *, const devitocomp_execution_t *, void *payload,
              const uint64_t *words, size_t count);
  int (*read)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *payload,
              size_t start, uint64_t *words, size_t count);
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
