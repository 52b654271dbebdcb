/*
 * slab.h -- plans, and what can be done to one slab of a tensor. See slab.c.
 */
#ifndef DEVITOCOMP_ZFP_SLAB_H
#define DEVITOCOMP_ZFP_SLAB_H

#include "box.h"
#include "provider.h"

#include <zfp.h>

#if !defined(ZFP_VERSION_MAJOR) || ZFP_VERSION_MAJOR < 1
#error "libzfp 1.0 or later is needed"
#endif

/* Codes of slabs: one of these, or minexp + CODE_BIAS. */
#define ZERO 0
#define REVERSIBLE 1
#define CODE_BIAS 4096
#define MIN_MINEXP ZFP_MIN_EXP
#define MAX_MINEXP 1024

/*
 * What depends on the type. All exponents are in the sense of frexp: |x| < 2^exponent.
 *
 * Let u = 2^(e-30) or 2^(e-62) be the unit of the integers of a block whose exponent is e.
 * Rounding costs, in coefficients, one unit for the conversion to integers and at most two
 * for each of the rank forward transforms; each inverse transform adds at most two, and
 * multiplies what there is by at most 15/4; converting large integers back rounds by 64
 * (512) units. In all that is at most 78, 144, 471, 2064 (526, 592, 919, 2512) units for
 * rank 1 to 4, which (1 - (15/16)^rank) * 2^minexp has to exceed. (15/16)^rank holds for
 * all ways to round that libzfp can be compiled with; it is less for the default one.
 */
typedef struct traits {
  zfp_type type;
  size_t itemsize;
  int min_exponent;        /* of a block with other elements than 0, to zfp */
  int least[MAX_RANK + 1]; /* minexp - exponent of max|x| below which rounding matters */
  int tiny;                /* minexp - 2 * rank below which numbers get out of range */
  int huge;                /* exponent of max|x| above which they do */
  int hopeless;            /* minexp - exponent of max|x| below which nothing is gained */
} traits_t;

extern const traits_t float32, float64;

/* What is going on with a slab, for the duration of a call. */
typedef struct slab {
  uint64_t maximum; /* the bits of max|x| */
  uint64_t hash;
  size_t offset;    /* in the payload */
  size_t bytes;
  int code;
  int status;
} slab_t;

/* What a thread works with, kept for the next call. */
typedef struct scratch {
  zfp_stream *zfp;        /* on the stream below */
  zfp_field *field;
  void *line;             /* of a row, and 3 elements more */
  unsigned char *stream;  /* slab_bytes */
  void *copy;             /* of a slab, allocated when needed */
} scratch_t;

struct devitocomp_plan {
  devitocomp_tensor_t tensor;
  const traits_t *traits;
  double error;             /* 0 for lossless */
  int rank;                 /* without dimensions of extent 1 */
  box_t box;                /* neither */
  uint64_t tag;             /* the hash of dtype, rank and dims */
  int64_t planes;           /* of a slab, but the last */
  ptrdiff_t slabs;
  size_t slab_bytes;        /* that a stream can have, but for the last */
  size_t slab_blocks;       /* likewise */
  size_t max_bytes;
  slab_t *slab;
  scratch_t *scratch;       /* of each thread */
  int threads;
  unsigned char *work;      /* slab_bytes for each slab, from the first compress on */
  int16_t *exponents;       /* of each block, likewise, unless lossless */
  char message[MESSAGE_BYTES];
};

/* How a snapshot is to be compressed. */
typedef struct method {
  int code;         /* for all slabs but those of zeros, and those that go wrong */
  int minexp;
  int safe;         /* whether 1. and 2. in slab.c do not matter */
  double tolerance;
} method_t;

/* Have a scratch for each of so many threads. Returns whether there was memory. */
int ensure_scratch(devitocomp_plan_t *plan, int threads);
void close_scratch(scratch_t *scratch);

/* Cut the tensor of a plan, whose tensor, traits and error are there, into slabs. Returns
   whether libzfp can tell how much room they need. */
int cut_into_slabs(devitocomp_plan_t *plan);

/* Given max|x| of the whole tensor, as bits. */
method_t choose_method(const devitocomp_plan_t *plan, uint64_t maximum);

/* The index-th slab: find its maximum and the exponents of its blocks, compress it to the
   plan's workspace, or decompress it from a stream that has been found intact. */
void scan_slab(devitocomp_plan_t *plan, scratch_t *scratch, ptrdiff_t index,
               const char *tensor);
void compress_slab(devitocomp_plan_t *plan, scratch_t *scratch, ptrdiff_t index,
                   const char *tensor, const method_t *method);
void decompress_slab(devitocomp_plan_t *plan, scratch_t *scratch, ptrdiff_t index,
                     const unsigned char *payload, char *tensor);

#endif
