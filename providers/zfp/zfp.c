/*
 * zfp.c -- a provider on libzfp.
 *
 * The tensor is cut into slabs along its slowest dimension, and each becomes a zfp stream
 * of its own: so all threads take part in both directions, which libzfp itself offers for
 * compression only. Where the cuts are depends on the tensor alone, hence the payload does
 * not depend on the threads. zfp codes blocks of 4^rank elements independently of each
 * other; as slabs are a multiple of 4 thick, cutting costs next to nothing.
 *
 * Payloads
 * --------
 * 64-bit words, little-endian:
 *
 *     magic, payload version and codec version of zfp
 *     hash of all the rest
 *     hash of dtype, rank and dims
 *     bytes of the payload
 *
 * which is all there is of a snapshot of zeros. Otherwise follow
 *
 *     for each slab, a code (16 bits: ZERO, REVERSIBLE, or a base-2 exponent, see below)
 *     and the length of its stream in words (48 bits)
 *     the streams
 *
 * Error bounds
 * ------------
 * In its fixed-accuracy mode zfp drops bit planes below 2^minexp, such that the error of
 * each element is meant to stay below 2^minexp. With 2^minexp <= error * max|x|, that is
 * what is asked for here, except that three things are left out of account:
 *
 *   1. Rounding. What zfp computes with are integers, 2^30 or 2^62 standing for a power
 *      of two above the maximum of a block, and it halves them a lot. Of the error that
 *      dropping bit planes may cause, at most (15/16)^rank * 2^minexp, 2^minexp leaves
 *      enough room for rounding as long as minexp is well above the last bit of these
 *      integers. See the limits below.
 *   2. Range. Numbers close to the limits of their type overflow on the way to integers
 *      (tiny ones) or when they come back slightly larger (huge ones).
 *   3. Wrap-around. Where a block has a maximum between 2^(minexp-2) and 2^(minexp-1), the
 *      error may take elements to more than twice that maximum, where integers wrap and
 *      the sign is lost: up to 1.5 * 2^minexp in all. Smaller blocks cannot go wrong by
 *      that much whatever happens, larger ones have smaller errors in relation to their
 *      maximum. It is rare: seen with rank 1 only, and there with blocks made for it.
 *
 * So blocks as in 3. are decompressed and looked at; if one went wrong, minexp - 1 will do
 * for its slab. Snapshots that meet 1. or 2. are decompressed altogether, slabs that went
 * wrong being compressed once more in zfp's reversible mode, which is lossless.
 */
#define _POSIX_C_SOURCE 200809L
#include "devitocomp.h"

#include <fenv.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#endif

#include <zfp.h>

#if !defined(ZFP_VERSION_MAJOR) || ZFP_VERSION_MAJOR < 1
#error "libzfp 1.0 or later is needed"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "zfp streams are words of the machine, payloads are little-endian"
#endif

#define PROVIDER_VERSION "1.0.0"
#define PAYLOAD_VERSION 1
#define DEFAULT_ERROR 1e-4

#define MESSAGE_BYTES 256
#define MAX_RANK 4
#define MAX_BLOCK 256 /* elements: 4^MAX_RANK */
#define MAX_BLOCK_BYTES ((ZFP_MAX_BITS + ZFP_HEADER_MAX_BITS) / 8 + 64)

/* Thick enough for the 16 bytes that a slab costs on average, thin enough for many
   threads to get their share. */
#define MIN_SLAB_BYTES ((int64_t)64 << 10)
/* Neither a snapshot nor any size derived from it comes near an overflow. */
#define MAX_TENSOR_BYTES (INT64_C(1) << 46)
/* Less than that is not worth a thread. */
#define BYTES_PER_COPY ((size_t)1 << 20)
/* libgomp ends the process when it cannot create a thread, which a provider must not. */
#define MAX_THREADS 256

#define ALIGNMENT 8
#define WORD 8
#define HEADER_BYTES (4 * (size_t)WORD)
#define MAGIC "DCzfp\n"

/* Codes of slabs: one of these, or minexp + CODE_BIAS. */
#define ZERO 0
#define REVERSIBLE 1
#define CODE_BIAS 4096
#define CODE_SHIFT 48
#define MIN_MINEXP (ZFP_MIN_EXP)
#define MAX_MINEXP 1024

#define EXECUTION_KINDS DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST)
#define DTYPES (DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32) | DEVITOCOMP_BIT(DEVITOCOMP_FLOAT64))
#define RANKS (DEVITOCOMP_BIT(1) | DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3) | \
               DEVITOCOMP_BIT(4))

/* Sizes of version 1, not sizeof: a header that grew must not turn old callers away. */
#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define MIN_EXECUTION_SIZE END_OF(devitocomp_execution_t, stream)
#define MIN_TENSOR_SIZE END_OF(devitocomp_tensor_t, strides)
#define MIN_LIMITS_SIZE END_OF(devitocomp_limits_t, sidecar_alignment)

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

static const traits_t float32 = {
  zfp_type_float, sizeof(float), -126, {0, -19, -19, -18, -16}, -95, 126, -26
};
static const traits_t float64 = {
  zfp_type_double, sizeof(double), -1022, {0, -48, -49, -49, -48}, -959, 1022, -56
};

/* A part of the tensor, slowest dimension first, leading dimensions 1 below MAX_RANK. */
typedef struct box {
  int64_t dims[MAX_RANK];
  int64_t strides[MAX_RANK];
} box_t;

/* What is going on with a slab, for the duration of a call. */
typedef struct slab {
  uint64_t maximum; /* the bits of max|x| */
  uint64_t hash;
  size_t offset;    /* in the payload */
  size_t bytes;
  int code;
  int status;
} slab_t;

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
  unsigned char *work;      /* slab_bytes for each slab, from the first compress on */
  int16_t *exponents;       /* of each block, likewise, unless lossless */
  char message[MESSAGE_BYTES];
};

static __thread char create_message[MESSAGE_BYTES];

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static int fail(char *message, int status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, MESSAGE_BYTES, format, args);
  va_end(args);
  return status;
}

/*
 * Callers may have told their threads to flush subnormals to zero (what -ffast-math does
 * at program start), to round otherwise, or to raise signals for what goes on in libzfp
 * when numbers are close to the limits of their type. Nothing of that must get there.
 */
static void set_environment(fenv_t *callers) {
  fegetenv(callers);
  fesetenv(FE_DFL_ENV);
}

static void restore_environment(const fenv_t *callers) {
  fesetenv(callers);
}

/* ---- Checking arguments ------------------------------------------------------------ */

/* Whether text is a decimal number. strtod takes other things as well. */
static int is_decimal(const char *text) {
  int digits = 0, point = 0;

  if (*text == '-' || *text == '+') text++;
  for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++)
    if (*text == '.')
      point = 1;
    else
      digits = 1;
  if (!digits) return 0;
  if (*text == 'e' || *text == 'E') {
    text++;
    if (*text == '-' || *text == '+') text++;
    if (*text < '0' || *text > '9') return 0;
    while (*text >= '0' && *text <= '9') text++;
  }
  return !*text;
}

static int parse_error(char *message, const char *options, double *error) {
  locale_t c_locale, previous;
  fenv_t environment;

  *error = DEFAULT_ERROR;
  if (!options) return DEVITOCOMP_OK;
  *error = -1;
  if (is_decimal(options)) {
    if (!(c_locale = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0)))
      return fail(message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for a locale");
    previous = uselocale(c_locale);
    set_environment(&environment);
    *error = strtod(options, NULL);
    restore_environment(&environment);
    uselocale(previous);
    freelocale(c_locale);
  }
  if (!(*error >= 0 && *error <= 1.7976931348623157e308))
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "options are \"%.100s\", not a finite number >= 0", options);
  return DEVITOCOMP_OK;
}

static int check_execution(char *message, const devitocomp_execution_t *exec) {
  if (!exec) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "exec is NULL");
  if (exec->struct_size < MIN_EXECUTION_SIZE)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->struct_size is %" PRIu32 ", less than %zu", exec->struct_size,
                MIN_EXECUTION_SIZE);
  if (exec->kind != DEVITOCOMP_EXECUTION_HOST)
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "execution kind %" PRIu32 " is not offered, only HOST (1)", exec->kind);
  if (exec->reserved)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->reserved is %" PRIu32 ", not 0", exec->reserved);
  if (exec->stream)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->stream is not NULL for HOST execution");
  return DEVITOCOMP_OK;
}

/* Whether no two elements can be in one place, as far as sorted strides tell. */
static int is_free_of_overlaps(const devitocomp_tensor_t *tensor) {
  int64_t last = 0, stride = 0; /* of the dimensions that have been seen */
  uint32_t i, j;

  for (i = 0; i < tensor->rank; i++) {
    /* The dimension with the least stride that has not been seen. */
    uint32_t next = tensor->rank, equal = 0;
    for (j = 0; j < tensor->rank; j++)
      if (tensor->dims[j] > 1 && tensor->strides[j] > stride &&
          (next == tensor->rank || tensor->strides[j] < tensor->strides[next]))
        next = j;
    if (next == tensor->rank) break;
    for (j = 0; j < tensor->rank; j++)
      equal += tensor->dims[j] > 1 && tensor->strides[j] == tensor->strides[next];
    stride = tensor->strides[next];
    if (equal > 1 || stride <= last) return 0;
    last += (tensor->dims[next] - 1) * stride;
  }
  return 1;
}

static int check_tensor(char *message, const devitocomp_tensor_t *tensor) {
  int64_t elements = 1, last = 0, most = MAX_TENSOR_BYTES / (int64_t)sizeof(double);
  uint32_t i;

  if (!tensor) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "tensor is NULL");
  if (tensor->struct_size < MIN_TENSOR_SIZE)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "tensor->struct_size is %" PRIu32 ", less than %zu", tensor->struct_size,
                MIN_TENSOR_SIZE);
  if (tensor->reserved)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "tensor->reserved is %" PRIu32 ", not 0", tensor->reserved);
  if (tensor->rank < 1 || tensor->rank > DEVITOCOMP_MAX_RANK)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "rank %" PRIu32 " is not in the range 1 to %d", tensor->rank,
                DEVITOCOMP_MAX_RANK);

  /* Invalid before unsupported: it says more about where the caller went wrong. */
  for (i = tensor->rank; i-- > 0;) {
    if (tensor->dims[i] < 1)
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "dims[%" PRIu32 "] is %" PRId64 ", less than 1", i, tensor->dims[i]);
    if (tensor->strides[i] < 1)
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "strides[%" PRIu32 "] is %" PRId64 ", less than 1", i,
                  tensor->strides[i]);
    if (tensor->dims[i] > most / elements ||
        tensor->dims[i] - 1 > (most - last) / tensor->strides[i])
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "the tensor does not fit in memory: dims[%" PRIu32 "] is %" PRId64
                  ", strides[%" PRIu32 "] %" PRId64, i, tensor->dims[i], i,
                  tensor->strides[i]);
    elements *= tensor->dims[i];
    last += (tensor->dims[i] - 1) * tensor->strides[i];
  }

  if (tensor->dtype > 31 || !(DTYPES & DEVITOCOMP_BIT(tensor->dtype)))
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "dtype %" PRIu32 " is not supported, only FLOAT32 (%d) and FLOAT64 (%d)",
                tensor->dtype, DEVITOCOMP_FLOAT32, DEVITOCOMP_FLOAT64);
  if (!(RANKS & DEVITOCOMP_BIT(tensor->rank)))
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "rank %" PRIu32 " is not supported, only 1 to %d", tensor->rank,
                MAX_RANK);
  if (!is_free_of_overlaps(tensor))
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "with these strides, elements overlap or interleave");
  return DEVITOCOMP_OK;
}

static int check_pointer(char *message, const char *name, const void *pointer,
                         size_t alignment) {
  if (!pointer) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "%s is NULL", name);
  if ((uintptr_t)pointer % alignment)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "%s is not aligned to %zu bytes",
                name, alignment);
  return DEVITOCOMP_OK;
}

/* What compress and decompress have in common. */
static int check_call(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      const void *tensor, const void *payload) {
  char *message = plan->message;
  int status;

  if ((status = check_execution(message, exec)) ||
      (status = check_pointer(message, "tensor", tensor, plan->traits->itemsize)))
    return status;
  return check_pointer(message, "payload", payload, ALIGNMENT);
}

/* ---- Payload words ----------------------------------------------------------------- */

static uint64_t get_word(const unsigned char *payload, size_t index) {
  uint64_t word;
  memcpy(&word, payload + index * WORD, WORD);
  return word;
}

static void put_word(unsigned char *payload, size_t index, uint64_t word) {
  memcpy(payload + index * WORD, &word, WORD);
}

/* One-to-one in hash and in word, so that no change of a single word goes unnoticed. */
static uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9fb21c651e98df25);
  return hash ^ (hash >> 32);
}

/* Four at a time: one multiplication would have to wait for the other. */
static uint64_t hash_words(const unsigned char *data, size_t bytes) {
  uint64_t a = 1, b = 2, c = 3, d = 4;
  size_t words = bytes / WORD, i;

  for (i = 0; i + 4 <= words; i += 4) {
    a = mix(a, get_word(data, i));
    b = mix(b, get_word(data, i + 1));
    c = mix(c, get_word(data, i + 2));
    d = mix(d, get_word(data, i + 3));
  }
  for (; i < words; i++) a = mix(a, get_word(data, i));
  return mix(mix(mix(mix(words, a), b), c), d);
}

static uint64_t tag_tensor(const devitocomp_tensor_t *tensor) {
  uint64_t hash = mix(tensor->dtype, tensor->rank);
  uint32_t i;

  for (i = 0; i < tensor->rank; i++) hash = mix(hash, (uint64_t)tensor->dims[i]);
  return hash;
}

/* The first word: six letters, two versions. */
static uint64_t magic_word(void) {
  unsigned char bytes[WORD];
  memcpy(bytes, MAGIC, 6);
  bytes[6] = PAYLOAD_VERSION;
  bytes[7] = (unsigned char)zfp_codec_version;
  return get_word(bytes, 0);
}

/* The second word, given the others, and the slabs' hashes unless there are none. */
static uint64_t hash_payload(const devitocomp_plan_t *plan, const unsigned char *payload,
                             int has_slabs) {
  uint64_t hash = mix(mix(get_word(payload, 0), get_word(payload, 2)),
                      get_word(payload, 3));
  ptrdiff_t i;

  for (i = 0; has_slabs && i < plan->slabs; i++) {
    hash = mix(hash, get_word(payload + HEADER_BYTES, (size_t)i));
    hash = mix(hash, plan->slab[i].hash);
  }
  return hash;
}

/* ---- Boxes ------------------------------------------------------------------------- */

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* The dimension that slabs are cut along. */
static int slow_axis(const devitocomp_plan_t *plan) {
  return MAX_RANK - plan->rank;
}

/* The index-th slab, and where in the tensor it is, in bytes. */
static box_t slab_box(const devitocomp_plan_t *plan, ptrdiff_t index, size_t *offset) {
  box_t box = plan->box;
  int axis = slow_axis(plan);
  int64_t start = index * plan->planes;

  box.dims[axis] = smaller(plan->planes, box.dims[axis] - start);
  *offset = (size_t)(start * box.strides[axis]) * plan->traits->itemsize;
  return box;
}

/* The block that begins at a position of a box, likewise. */
static box_t block_box(const devitocomp_plan_t *plan, const box_t *box,
                       const int64_t *position, size_t *offset) {
  box_t block = *box;
  int64_t elements = 0;
  int i;

  for (i = 0; i < MAX_RANK; i++) {
    block.dims[i] = smaller(4, box->dims[i] - position[i]);
    elements += position[i] * box->strides[i];
  }
  *offset = (size_t)elements * plan->traits->itemsize;
  return block;
}

static size_t count_elements(const box_t *box) {
  return (size_t)(box->dims[0] * box->dims[1] * box->dims[2] * box->dims[3]);
}

/* Rows, along the fastest dimension, are numbered from 0. */
static size_t count_rows(const box_t *box) {
  return (size_t)(box->dims[0] * box->dims[1] * box->dims[2]);
}

static size_t row_offset(const devitocomp_plan_t *plan, const box_t *box, size_t row) {
  int64_t i2 = (int64_t)row % box->dims[2], rest = (int64_t)row / box->dims[2];
  int64_t i1 = rest % box->dims[1], i0 = rest / box->dims[1];

  return (size_t)(i0 * box->strides[0] + i1 * box->strides[1] + i2 * box->strides[2]) *
         plan->traits->itemsize;
}

static void clear_box(const devitocomp_plan_t *plan, const box_t *box, char *data) {
  size_t itemsize = plan->traits->itemsize, rows = count_rows(box), row;
  int64_t i;

  for (row = 0; row < rows; row++) {
    char *to = data + row_offset(plan, box, row);
    if (box->strides[3] == 1)
      memset(to, 0, (size_t)box->dims[3] * itemsize);
    else
      for (i = 0; i < box->dims[3]; i++)
        memset(to + (size_t)(i * box->strides[3]) * itemsize, 0, itemsize);
  }
}

/* Whether all bits are zero. */
static int is_clear(const devitocomp_plan_t *plan, const box_t *box, const char *data) {
  static const char zeros[sizeof(double)];
  size_t itemsize = plan->traits->itemsize, rows = count_rows(box), row;
  int64_t i;

  for (row = 0; row < rows; row++) {
    const char *from = data + row_offset(plan, box, row);
    if (memcmp(from, zeros, itemsize)) return 0;
    if (box->strides[3] == 1) {
      /* Each byte like the one before. */
      if (memcmp(from, from + 1, (size_t)box->dims[3] * itemsize - 1)) return 0;
      continue;
    }
    for (i = 1; i < box->dims[3]; i++)
      if (memcmp(from + (size_t)(i * box->strides[3]) * itemsize, zeros, itemsize))
        return 0;
  }
  return 1;
}

/* Whether a box and a contiguous copy of it differ by at most the tolerance. */
static int is_within(const devitocomp_plan_t *plan, const box_t *box, const char *data,
                     const void *copy, double tolerance) {
  const float *floats = copy;
  const double *doubles = copy;
  size_t rows = count_rows(box), row;
  int64_t n = box->dims[3], stride = box->strides[3], i;
  int within = 1;

  for (row = 0; row < rows && within; row++) {
    const char *from = data + row_offset(plan, box, row);
    if (plan->traits == &float32) {
      const float *x = (const float *)from;
      for (i = 0; i < n; i++)
        within &= fabs((double)x[i * stride] - (double)floats[i]) <= tolerance;
      floats += n;
    } else {
      const double *x = (const double *)from;
      for (i = 0; i < n; i++) within &= fabs(x[i * stride] - doubles[i]) <= tolerance;
      doubles += n;
    }
  }
  return within;
}

/* ---- Maxima ------------------------------------------------------------------------ */

/*
 * The bits of non-negative floating-point numbers, as integers, are ordered as the numbers
 * are, infinity and NaN last. So nothing but the maximum is needed to notice these.
 */
#define SIGN32 UINT32_C(0x80000000)
#define SIGN64 UINT64_C(0x8000000000000000)
#define INFINITY32 UINT64_C(0x7f800000)
#define INFINITY64 UINT64_C(0x7ff0000000000000)

/* line[i] = max(line[i], |row[i]|). Signed integers, which SSE2 can compare. */
static void raise32(int32_t *line, const char *row, int64_t n, int64_t stride) {
  int64_t i;

  if (stride == 1)
    for (i = 0; i < n; i++) {
      int32_t x;
      memcpy(&x, row + (size_t)i * sizeof(x), sizeof(x));
      x &= (int32_t)~SIGN32;
      line[i] = x > line[i] ? x : line[i];
    }
  else
    for (i = 0; i < n; i++) {
      int32_t x;
      memcpy(&x, row + (size_t)(i * stride) * sizeof(x), sizeof(x));
      x &= (int32_t)~SIGN32;
      line[i] = x > line[i] ? x : line[i];
    }
}

static void raise64(int64_t *line, const char *row, int64_t n, int64_t stride) {
  int64_t i;

  for (i = 0; i < n; i++) {
    int64_t x;
    memcpy(&x, row + (size_t)(i * stride) * sizeof(x), sizeof(x));
    x &= (int64_t)~SIGN64;
    line[i] = x > line[i] ? x : line[i];
  }
}

/* The exponent of the number that these are the bits of, as zfp takes it. */
static int exponent_of(const traits_t *traits, uint64_t bits) {
  return traits->min_exponent + (int)(bits >> (traits == &float32 ? 23 : 52));
}

static double value_of(const traits_t *traits, uint64_t bits) {
  uint32_t half = (uint32_t)bits;
  float narrow;
  double wide;

  if (traits == &float32) {
    memcpy(&narrow, &half, sizeof(narrow));
    return (double)narrow;
  }
  memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

static int is_finite(const traits_t *traits, uint64_t bits) {
  return bits < (traits == &float32 ? INFINITY32 : INFINITY64);
}

/* The maximum of a slab, and the exponents of its blocks. line: room for a row, and 3. */
static uint64_t scan_slab(const devitocomp_plan_t *plan, const box_t *box,
                          const char *data, void *line, int16_t *exponents) {
  const traits_t *traits = plan->traits;
  int64_t n = box->dims[3], padded = (n + 3) / 4 * 4, p[MAX_RANK], i;
  uint64_t maximum = 0;

  for (p[0] = 0; p[0] < box->dims[0]; p[0] += 4)
    for (p[1] = 0; p[1] < box->dims[1]; p[1] += 4)
      for (p[2] = 0; p[2] < box->dims[2]; p[2] += 4) {
        size_t offset, rows, row;
        box_t blocks;

        p[3] = 0;
        blocks = block_box(plan, box, p, &offset);
        rows = count_rows(&blocks);
        memset(line, 0, (size_t)padded * traits->itemsize);
        for (row = 0; row < rows; row++) {
          const char *from = data + offset + row_offset(plan, &blocks, row);
          if (traits == &float32)
            raise32(line, from, n, box->strides[3]);
          else
            raise64(line, from, n, box->strides[3]);
        }
        for (i = 0; i < padded; i += 4) {
          uint64_t most = 0;
          int k;
          for (k = 0; k < 4; k++) {
            uint64_t bits = traits == &float32 ? (uint64_t)((int32_t *)line)[i + k]
                                               : (uint64_t)((int64_t *)line)[i + k];
            most = bits > most ? bits : most;
          }
          *exponents++ = (int16_t)exponent_of(traits, most);
          maximum = most > maximum ? most : maximum;
        }
      }
  return maximum;
}

/* ---- libzfp ------------------------------------------------------------------------ */

/* What a thread needs for the duration of a call. */
typedef struct scratch {
  fenv_t environment;
  zfp_stream *zfp;
  zfp_field *field;
  void *line;  /* of a row, and 3 elements more */
  void *copy;  /* of a slab, allocated when needed */
} scratch_t;

static int open_scratch(const devitocomp_plan_t *plan, scratch_t *scratch) {
  set_environment(&scratch->environment);
  scratch->zfp = zfp_stream_open(NULL);
  scratch->field = zfp_field_alloc();
  scratch->line = malloc(((size_t)plan->box.dims[3] + 3) * plan->traits->itemsize);
  scratch->copy = NULL;
  return scratch->zfp && scratch->field && scratch->line;
}

static void close_scratch(scratch_t *scratch) {
  if (scratch->zfp) zfp_stream_close(scratch->zfp);
  if (scratch->field) zfp_field_free(scratch->field);
  free(scratch->line);
  free(scratch->copy);
  restore_environment(&scratch->environment);
}

/* Describe a box of this plan to zfp: fastest dimension first. */
static void set_field(const devitocomp_plan_t *plan, zfp_field *field, const box_t *box,
                      const void *data, int contiguous) {
  const int64_t *n = box->dims, *s = box->strides;

  zfp_field_set_type(field, plan->traits->type);
  zfp_field_set_pointer(field, (void *)data);
  switch (plan->rank) {
  case 1: zfp_field_set_size_1d(field, (size_t)n[3]); break;
  case 2: zfp_field_set_size_2d(field, (size_t)n[3], (size_t)n[2]); break;
  case 3: zfp_field_set_size_3d(field, (size_t)n[3], (size_t)n[2], (size_t)n[1]); break;
  default:
    zfp_field_set_size_4d(field, (size_t)n[3], (size_t)n[2], (size_t)n[1], (size_t)n[0]);
  }
  if (contiguous)
    zfp_field_set_stride_4d(field, 0, 0, 0, 0);
  else
    zfp_field_set_stride_4d(field, (ptrdiff_t)s[3], plan->rank > 1 ? (ptrdiff_t)s[2] : 0,
                            plan->rank > 2 ? (ptrdiff_t)s[1] : 0,
                            plan->rank > 3 ? (ptrdiff_t)s[0] : 0);
}

static void set_mode(zfp_stream *zfp, int code) {
  if (code == REVERSIBLE)
    zfp_stream_set_reversible(zfp);
  else
    zfp_stream_set_params(zfp, ZFP_MIN_BITS, ZFP_MAX_BITS, ZFP_MAX_PREC,
                          code - CODE_BIAS);
}

/* Compress a box. Returns the bytes of the stream, whole words, or 0 on failure. */
static size_t encode(const devitocomp_plan_t *plan, scratch_t *scratch, const box_t *box,
                     const char *data, int code, unsigned char *stream, size_t room) {
  bitstream *bits = stream_open(stream, room);
  size_t bytes;

  if (!bits) return 0;
  zfp_stream_set_bit_stream(scratch->zfp, bits);
  set_mode(scratch->zfp, code);
  set_field(plan, scratch->field, box, data, 0);
  bytes = zfp_compress(scratch->zfp, scratch->field);
  stream_close(bits);
  /* libzfp may have been compiled for shorter words. */
  for (; bytes % WORD; bytes++) stream[bytes] = 0;
  return bytes;
}

/* Decompress a box, from a stream that has been found intact: zfp relies on that. */
static int decode(const devitocomp_plan_t *plan, scratch_t *scratch, const box_t *box,
                  void *data, int contiguous, int code, const unsigned char *stream,
                  size_t bytes) {
  bitstream *bits = stream_open((void *)stream, bytes);
  size_t used;

  if (!bits) return DEVITOCOMP_OUT_OF_MEMORY;
  zfp_stream_set_bit_stream(scratch->zfp, bits);
  set_mode(scratch->zfp, code);
  set_field(plan, scratch->field, box, data, contiguous);
  used = zfp_decompress(scratch->zfp, scratch->field);
  stream_close(bits);
  return (used + WORD - 1) / WORD * WORD == bytes ? DEVITOCOMP_OK
                                                  : DEVITOCOMP_CORRUPT_PAYLOAD;
}

/* ---- Compression ------------------------------------------------------------------- */

/* How a snapshot is to be compressed. */
typedef struct method {
  int code;         /* for all slabs but those of zeros, and those that go wrong */
  int minexp;
  int safe;         /* whether 1. and 2. at the top of this file do not matter */
  double tolerance;
} method_t;

static method_t choose_method(const devitocomp_plan_t *plan, uint64_t maximum) {
  const traits_t *traits = plan->traits;
  method_t method = {REVERSIBLE, 0, 0, 0};
  int exponent = exponent_of(traits, maximum);

  if (plan->error == 0) return method;
  method.tolerance = plan->error * value_of(traits, maximum);
  if (method.tolerance == 0) return method;
  frexp(method.tolerance, &method.minexp);
  method.minexp--;
  if (method.minexp - exponent < traits->hopeless || method.minexp <= MIN_MINEXP) return method;
  method.code = method.minexp + CODE_BIAS;
  method.safe = method.minexp - exponent >= traits->least[plan->rank] &&
              method.minexp - 2 * plan->rank >= traits->tiny && exponent <= traits->huge;
  return method;
}

/* Whether a block comes back as it should. */
static int survives(const devitocomp_plan_t *plan, scratch_t *scratch, const box_t *block,
                    const char *data, const method_t *method) {
  double copy[MAX_BLOCK];
  uint64_t stream[MAX_BLOCK_BYTES / sizeof(uint64_t)];
  unsigned char *bytes = (unsigned char *)stream;
  size_t used = encode(plan, scratch, block, data, method->code, bytes, sizeof(stream));

  return used &&
         !decode(plan, scratch, block, copy, 1, method->code, bytes, used) &&
         is_within(plan, block, data, copy, method->tolerance);
}

/* Whether all blocks do that zfp might let wrap around. */
static int blocks_survive(const devitocomp_plan_t *plan, scratch_t *scratch,
                          const box_t *box, const char *data, const int16_t *exponents,
                          const method_t *method) {
  int64_t p[MAX_RANK];

  for (p[0] = 0; p[0] < box->dims[0]; p[0] += 4)
    for (p[1] = 0; p[1] < box->dims[1]; p[1] += 4)
      for (p[2] = 0; p[2] < box->dims[2]; p[2] += 4)
        for (p[3] = 0; p[3] < box->dims[3]; p[3] += 4)
          if (*exponents++ == method->minexp - 1) {
            size_t offset;
            box_t block = block_box(plan, box, p, &offset);
            if (!survives(plan, scratch, &block, data + offset, method)) return 0;
          }
  return 1;
}

/* Whether a slab does. */
static int slab_survives(const devitocomp_plan_t *plan, scratch_t *scratch,
                         const box_t *box, const char *data, const unsigned char *stream,
                         size_t bytes, const method_t *method) {
  box_t largest;
  size_t offset;

  if (!scratch->copy) {
    largest = slab_box(plan, 0, &offset);
    scratch->copy = malloc(count_elements(&largest) * plan->traits->itemsize);
    /* Reversible mode needs none. */
    if (!scratch->copy) return 0;
  }
  return !decode(plan, scratch, box, scratch->copy, 1, method->code, stream, bytes) &&
         is_within(plan, box, data, scratch->copy, method->tolerance);
}

/* Compress the index-th slab to the plan's workspace. */
static void compress_slab(devitocomp_plan_t *plan, scratch_t *scratch, ptrdiff_t index,
                          const char *tensor, const method_t *method) {
  slab_t *slab = plan->slab + index;
  unsigned char *stream = plan->work + (size_t)index * plan->slab_bytes;
  size_t offset;
  box_t box = slab_box(plan, index, &offset);
  const char *data = tensor + offset;
  int code;

  slab->status = DEVITOCOMP_OK;
  slab->bytes = 0;
  slab->hash = 0;
  slab->code = ZERO;
  if (plan->error == 0 ? is_clear(plan, &box, data) : !slab->maximum) return;

  slab->code = method->code;
  slab->bytes = encode(plan, scratch, &box, data, slab->code, stream, plan->slab_bytes);
  if (slab->bytes && method->code != REVERSIBLE) {
    code = method->code;
    if (!method->safe && !slab_survives(plan, scratch, &box, data, stream, slab->bytes, method))
      code = REVERSIBLE;
    if (method->safe &&
        !blocks_survive(plan, scratch, &box, data,
                        plan->exponents + (size_t)index * plan->slab_blocks, method))
      code = method->code - 1;
    if (code != slab->code) {
      slab->code = code;
      slab->bytes = encode(plan, scratch, &box, data, code, stream, plan->slab_bytes);
    }
  }
  if (!slab->bytes) slab->status = DEVITOCOMP_PROVIDER_ERROR;
  slab->hash = hash_words(stream, slab->bytes);
}

/* How many threads to use for parts that can be worked on separately. */
static int count_threads(const devitocomp_execution_t *exec, size_t parts) {
#ifdef _OPENMP
  size_t threads = exec->num_threads ? exec->num_threads : (size_t)omp_get_max_threads();

  if (threads > parts) threads = parts;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  return threads ? (int)threads : 1;
#else
  (void)exec;
  (void)parts;
  return 1;
#endif
}

/* The first failure, if any, described. */
static int slabs_status(devitocomp_plan_t *plan, const char *what) {
  ptrdiff_t i;

  for (i = 0; i < plan->slabs; i++)
    switch (plan->slab[i].status) {
    case DEVITOCOMP_OK: break;
    case DEVITOCOMP_OUT_OF_MEMORY:
      return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY, "no memory to %s", what);
    case DEVITOCOMP_CORRUPT_PAYLOAD:
      return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                  "libzfp does not find the end of a stream: the payload is damaged, or "
                  "of a libzfp with other compile-time options");
    default:
      return fail(plan->message, DEVITOCOMP_PROVIDER_ERROR, "libzfp cannot %s", what);
    }
  return DEVITOCOMP_OK;
}

static int refuse_not_finite(devitocomp_plan_t *plan, const char *tensor) {
  const devitocomp_tensor_t *t = &plan->tensor;
  int64_t index[DEVITOCOMP_MAX_RANK] = {0};
  char where[DEVITOCOMP_MAX_RANK * 24] = "";
  size_t length = 0;
  uint32_t i;

  for (;;) {
    int64_t offset = 0;
    uint64_t bits = 0;
    const char *what;

    for (i = 0; i < t->rank; i++) offset += index[i] * t->strides[i];
    memcpy(&bits, tensor + (size_t)offset * plan->traits->itemsize,
           plan->traits->itemsize);
    what = bits & (plan->traits == &float32 ? SIGN32 : SIGN64) ? "-inf" : "inf";
    bits &= plan->traits == &float32 ? ~SIGN32 : ~SIGN64;
    if (!is_finite(plan->traits, bits)) {
      if (bits != (plan->traits == &float32 ? INFINITY32 : INFINITY64)) what = "nan";
      for (i = 0; i < t->rank; i++)
        length += (size_t)snprintf(where + length, sizeof(where) - length, "[%" PRId64 "]",
                                   index[i]);
      return fail(plan->message, DEVITOCOMP_UNSUPPORTED,
                  "element %s is %s: no error bound can be kept for what is not finite, "
                  "only error 0 (lossless) stores it", where, what);
    }
    for (i = t->rank; i-- > 0 && ++index[i] == t->dims[i];) index[i] = 0;
    if (i == UINT32_MAX) break;
  }
  return fail(plan->message, DEVITOCOMP_UNSUPPORTED, "the tensor changes all the time");
}

static int ensure_workspace(devitocomp_plan_t *plan) {
  size_t slabs = (size_t)plan->slabs;

  if (!plan->work) plan->work = malloc(slabs * plan->slab_bytes);
  if (!plan->exponents && plan->error > 0)
    plan->exponents = malloc(slabs * plan->slab_blocks * sizeof(*plan->exponents));
  if (!plan->work || (!plan->exponents && plan->error > 0))
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY,
                "no memory for a workspace of %zu bytes", slabs * plan->slab_bytes);
  return DEVITOCOMP_OK;
}

/* The maximum of each slab. */
static int scan(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                const char *tensor) {
  int threads = count_threads(exec, (size_t)plan->slabs);

  (void)threads;
  #pragma omp parallel num_threads(threads)
  {
    scratch_t scratch;
    int ready = open_scratch(plan, &scratch);
    ptrdiff_t i;

    #pragma omp for schedule(dynamic) nowait
    for (i = 0; i < plan->slabs; i++) {
      size_t offset;
      box_t box = slab_box(plan, i, &offset);
      plan->slab[i].status = ready ? DEVITOCOMP_OK : DEVITOCOMP_OUT_OF_MEMORY;
      if (ready)
        plan->slab[i].maximum =
          scan_slab(plan, &box, tensor + offset, scratch.line,
                    plan->exponents + (size_t)i * plan->slab_blocks);
    }
    close_scratch(&scratch);
  }
  return slabs_status(plan, "compress");
}

static int compress_slabs(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                          const char *tensor, const method_t *method) {
  int threads = count_threads(exec, (size_t)plan->slabs);

  (void)threads;
  #pragma omp parallel num_threads(threads)
  {
    scratch_t scratch;
    int ready = open_scratch(plan, &scratch);
    ptrdiff_t i;

    #pragma omp for schedule(dynamic) nowait
    for (i = 0; i < plan->slabs; i++) {
      plan->slab[i].status = DEVITOCOMP_OUT_OF_MEMORY;
      if (ready) compress_slab(plan, &scratch, i, tensor, method);
    }
    close_scratch(&scratch);
  }
  return slabs_status(plan, "compress");
}

/* From the workspace to the payload. */
static void pack_slabs(const devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                       unsigned char *payload, size_t total) {
  int threads = count_threads(exec, total / BYTES_PER_COPY);
  ptrdiff_t i;

  (void)threads;
  #pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (i = 0; i < plan->slabs; i++)
    memcpy(payload + plan->slab[i].offset, plan->work + (size_t)i * plan->slab_bytes,
           plan->slab[i].bytes);
}

/* ---- Decompression ----------------------------------------------------------------- */

/* Read the table, and see that it makes sense for this plan. */
static int read_slabs(devitocomp_plan_t *plan, const unsigned char *payload, size_t bytes) {
  const char *nonsense = "the payload is damaged, or of a tensor of another dtype or shape";
  size_t offset = HEADER_BYTES + (size_t)plan->slabs * WORD;
  ptrdiff_t i;

  if (bytes < offset)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD, "%s", nonsense);
  for (i = 0; i < plan->slabs; i++) {
    slab_t *slab = plan->slab + i;
    uint64_t word = get_word(payload + HEADER_BYTES, (size_t)i);
    uint64_t words = word & ((UINT64_C(1) << CODE_SHIFT) - 1);

    slab->code = (int)(word >> CODE_SHIFT);
    slab->status = DEVITOCOMP_OK;
    slab->offset = offset;
    if (words > (bytes - offset) / WORD || words > plan->slab_bytes / WORD ||
        (slab->code == ZERO) != !words ||
        (slab->code > REVERSIBLE && (slab->code < MIN_MINEXP + CODE_BIAS ||
                                     slab->code > MAX_MINEXP + CODE_BIAS)))
      return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD, "%s", nonsense);
    slab->bytes = (size_t)words * WORD;
    offset += slab->bytes;
  }
  if (offset != bytes)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD, "%s", nonsense);
  return DEVITOCOMP_OK;
}

/* All that can be said without looking at the slabs. */
static int check_header(devitocomp_plan_t *plan, const unsigned char *payload,
                        size_t bytes) {
  unsigned char expected[WORD];

  put_word(expected, 0, magic_word());
  if (bytes < HEADER_BYTES || memcmp(payload, expected, 6))
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload, of %zu bytes, is not of the zfp provider", bytes);
  if (payload[6] != expected[6] || payload[7] != expected[7])
    return fail(plan->message, DEVITOCOMP_VERSION_MISMATCH,
                "the payload is of version %d and zfp codec %d, this provider of version "
                "%d and zfp codec %d", payload[6], payload[7], expected[6], expected[7]);
  if (get_word(payload, 3) != bytes)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload has %zu bytes, but was written with %" PRIu64, bytes,
                get_word(payload, 3));
  if (get_word(payload, 2) != plan->tag)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload is of a tensor of another dtype or shape, or damaged");
  return DEVITOCOMP_OK;
}

static void hash_slabs(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                       const unsigned char *payload, size_t bytes) {
  int threads = count_threads(exec, bytes / BYTES_PER_COPY);
  ptrdiff_t i;

  (void)threads;
  #pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (i = 0; i < plan->slabs; i++)
    plan->slab[i].hash = plan->slab[i].code == ZERO
                           ? 0
                           : hash_words(payload + plan->slab[i].offset,
                                        plan->slab[i].bytes);
}

/* From the payload, all of which has been verified, to the tensor. */
static int decompress_slabs(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                            const unsigned char *payload, char *tensor) {
  int threads = count_threads(exec, (size_t)plan->slabs);

  (void)threads;
  #pragma omp parallel num_threads(threads)
  {
    scratch_t scratch;
    int ready = open_scratch(plan, &scratch);
    ptrdiff_t i;

    #pragma omp for schedule(dynamic) nowait
    for (i = 0; i < plan->slabs; i++) {
      slab_t *slab = plan->slab + i;
      size_t offset;
      box_t box = slab_box(plan, i, &offset);

      if (slab->code == ZERO)
        clear_box(plan, &box, tensor + offset);
      else
        slab->status = ready ? decode(plan, &scratch, &box, tensor + offset, 0, slab->code,
                                      payload + slab->offset, slab->bytes)
                             : DEVITOCOMP_OUT_OF_MEMORY;
    }
    close_scratch(&scratch);
  }
  return slabs_status(plan, "decompress");
}

/* ---- The interface ----------------------------------------------------------------- */

DEVITOCOMP_EXPORT uint32_t devitocomp_abi_version(void) {
  return DEVITOCOMP_ABI_VERSION;
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_name(void) {
  return "zfp";
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_version(void) {
  return PROVIDER_VERSION " (libzfp " ZFP_VERSION_STRING ")";
}

/* Drop the dimensions of extent 1, which zfp would pad to 4, and align the rest right. */
static void set_box(devitocomp_plan_t *plan) {
  const devitocomp_tensor_t *tensor = &plan->tensor;
  uint32_t i;
  int to = MAX_RANK;

  for (i = 0; i < MAX_RANK; i++) {
    plan->box.dims[i] = 1;
    plan->box.strides[i] = 1;
  }
  for (i = tensor->rank; i-- > 0;)
    if (tensor->dims[i] > 1) {
      to--;
      plan->box.dims[to] = tensor->dims[i];
      plan->box.strides[to] = tensor->strides[i];
    }
  plan->rank = to < MAX_RANK ? MAX_RANK - to : 1;
}

/* Everything but the slabs' array. */
static int set_up(devitocomp_plan_t *plan, zfp_stream *zfp, zfp_field *field) {
  size_t offset, blocks = 1;
  int64_t plane = (int64_t)plan->traits->itemsize;
  int axis, i;
  box_t box;

  set_box(plan);
  axis = slow_axis(plan);
  for (i = axis + 1; i < MAX_RANK; i++) plane *= plan->box.dims[i];
  plan->planes = 4 * ((MIN_SLAB_BYTES + 4 * plane - 1) / (4 * plane));
  plan->planes = smaller(plan->planes, (plan->box.dims[axis] + 3) / 4 * 4);
  plan->slabs = (ptrdiff_t)((plan->box.dims[axis] + plan->planes - 1) / plan->planes);

  box = slab_box(plan, 0, &offset);
  for (i = 0; i < MAX_RANK; i++) blocks *= (size_t)((box.dims[i] + 3) / 4);
  plan->slab_blocks = blocks;
  set_field(plan, field, &box, NULL, 1);
  zfp_stream_set_reversible(zfp);
  plan->slab_bytes = zfp_stream_maximum_size(zfp, field);
  zfp_stream_set_params(zfp, ZFP_MIN_BITS, ZFP_MAX_BITS, ZFP_MAX_PREC, ZFP_MIN_EXP);
  offset = zfp_stream_maximum_size(zfp, field);
  if (offset > plan->slab_bytes) plan->slab_bytes = offset;
  if (!plan->slab_bytes)
    return fail(create_message, DEVITOCOMP_PROVIDER_ERROR,
                "libzfp does not know how much room it needs");
  plan->slab_bytes = (plan->slab_bytes + 63) / 64 * 64;
  plan->max_bytes = HEADER_BYTES + (size_t)plan->slabs * (WORD + plan->slab_bytes);
  return DEVITOCOMP_OK;
}

static int fill_plan(devitocomp_plan_t *plan) {
  zfp_stream *zfp = zfp_stream_open(NULL);
  zfp_field *field = zfp_field_alloc();
  int status = zfp && field
                 ? set_up(plan, zfp, field)
                 : fail(create_message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for libzfp");

  if (zfp) zfp_stream_close(zfp);
  if (field) zfp_field_free(field);
  if (status) return status;
  if (!(plan->slab = calloc((size_t)plan->slabs, sizeof(*plan->slab))))
    return fail(create_message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for %td slabs",
                plan->slabs);
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_plan_create(uint32_t abi_version,
                                             const devitocomp_tensor_t *tensor,
                                             const devitocomp_execution_t *exec,
                                             const char *options,
                                             devitocomp_plan_t **plan) {
  devitocomp_plan_t *created;
  double error = 0;
  int status;

  if (plan) *plan = NULL;
  /* First of all: with another version, no argument means what it seems to. */
  if (abi_version != DEVITOCOMP_ABI_VERSION)
    return fail(create_message, DEVITOCOMP_VERSION_MISMATCH,
                "the caller uses ABI version %" PRIu32 ", the zfp provider %d",
                abi_version, DEVITOCOMP_ABI_VERSION);
  if (!plan) return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT, "plan is NULL");
  if ((status = check_tensor(create_message, tensor)) ||
      (status = check_execution(create_message, exec)) ||
      (status = parse_error(create_message, options, &error)))
    return status;
  if (zfp_codec_version != ZFP_CODEC)
    return fail(create_message, DEVITOCOMP_PROVIDER_ERROR,
                "libzfp has codec version %u, but the provider was compiled for %d",
                zfp_codec_version, ZFP_CODEC);

  if (!(created = calloc(1, sizeof(*created))))
    return fail(create_message, DEVITOCOMP_OUT_OF_MEMORY,
                "no memory for a plan of %zu bytes", sizeof(*created));
  memcpy(&created->tensor, tensor, sizeof(created->tensor));
  created->traits = tensor->dtype == DEVITOCOMP_FLOAT32 ? &float32 : &float64;
  /* No error is larger than the maximum, and so small ones cannot be made use of. */
  created->error = error < 1 ? error : 1;
  if (error < ldexp(1, created->traits->hopeless - 1)) created->error = 0;
  created->tag = tag_tensor(tensor);
  if ((status = fill_plan(created))) {
    devitocomp_plan_destroy(created);
    return status;
  }
  *plan = created;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan) {
  if (!plan) return;
  free(plan->slab);
  free(plan->work);
  free(plan->exponents);
  free(plan);
}

DEVITOCOMP_EXPORT int devitocomp_plan_limits(const devitocomp_plan_t *plan,
                                             devitocomp_limits_t *limits) {
  devitocomp_limits_t filled;
  size_t size;

  if (!limits || limits->struct_size < MIN_LIMITS_SIZE)
    return DEVITOCOMP_INVALID_ARGUMENT;

  memset(&filled, 0, sizeof(filled));
  filled.struct_size = limits->struct_size;
  filled.flags = DEVITOCOMP_STRIDED | DEVITOCOMP_DETERMINISTIC |
                 DEVITOCOMP_THREAD_INDEPENDENT | DEVITOCOMP_DETECTS_CORRUPTION;
  filled.execution_kinds = EXECUTION_KINDS;
  filled.portable_kinds = EXECUTION_KINDS;
  filled.dtypes = DTYPES;
  filled.ranks = RANKS;
  filled.payload_version = PAYLOAD_VERSION;
  if (plan) {
    filled.error_kind = plan->error > 0 ? DEVITOCOMP_ERROR_RELATIVE_MAX
                                        : DEVITOCOMP_ERROR_LOSSLESS;
    filled.error_bound = plan->error;
    filled.max_compressed_bytes = plan->max_bytes;
    filled.payload_alignment = ALIGNMENT;
    filled.sidecar_alignment = 1;
  }
  size = limits->struct_size < sizeof(filled) ? limits->struct_size : sizeof(filled);
  memcpy(limits, &filled, size);
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_compress(devitocomp_plan_t *plan,
                                          const devitocomp_execution_t *exec,
                                          const void *tensor, void *payload,
                                          size_t capacity, size_t *compressed_bytes,
                                          void *sidecar) {
  size_t total = HEADER_BYTES;
  uint64_t maximum = 0;
  fenv_t environment;
  method_t method;
  int status, is_zero = 1;
  ptrdiff_t i;

  (void)sidecar;
  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload))) return status;
  if (!compressed_bytes)
    return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT, "compressed_bytes is NULL");
  if ((status = ensure_workspace(plan))) return status;

  if (plan->error > 0) {
    if ((status = scan(plan, exec, tensor))) return status;
    for (i = 0; i < plan->slabs; i++)
      if (plan->slab[i].maximum > maximum) maximum = plan->slab[i].maximum;
    if (!is_finite(plan->traits, maximum)) return refuse_not_finite(plan, tensor);
  }
  set_environment(&environment);
  method = choose_method(plan, maximum);
  restore_environment(&environment);
  if ((status = compress_slabs(plan, exec, tensor, &method))) return status;

  for (i = 0; i < plan->slabs; i++) is_zero &= plan->slab[i].code == ZERO;
  if (!is_zero) total += (size_t)plan->slabs * WORD;
  for (i = 0; i < plan->slabs; i++) {
    plan->slab[i].offset = total;
    total += plan->slab[i].bytes;
  }
  if (capacity < total)
    return fail(plan->message, DEVITOCOMP_BUFFER_TOO_SMALL,
                "the capacity is %zu bytes, the snapshot needs %zu", capacity, total);

  if (!is_zero) {
    for (i = 0; i < plan->slabs; i++)
      put_word((unsigned char *)payload + HEADER_BYTES, (size_t)i,
               (uint64_t)plan->slab[i].code << CODE_SHIFT | plan->slab[i].bytes / WORD);
    pack_slabs(plan, exec, payload, total);
  }
  put_word(payload, 0, magic_word());
  put_word(payload, 2, plan->tag);
  put_word(payload, 3, total);
  put_word(payload, 1, hash_payload(plan, payload, !is_zero));
  *compressed_bytes = total;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                            const devitocomp_execution_t *exec,
                                            const void *payload, size_t compressed_bytes,
                                            const void *sidecar, void *tensor) {
  int has_slabs = compressed_bytes > HEADER_BYTES, status;
  ptrdiff_t i;

  (void)sidecar;
  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload)) ||
      (status = check_header(plan, payload, compressed_bytes)))
    return status;
  if (has_slabs) {
    if ((status = read_slabs(plan, payload, compressed_bytes))) return status;
    hash_slabs(plan, exec, payload, compressed_bytes);
  } else {
    for (i = 0; i < plan->slabs; i++) {
      plan->slab[i].code = ZERO;
      plan->slab[i].status = DEVITOCOMP_OK;
    }
  }
  if (get_word(payload, 1) != hash_payload(plan, payload, has_slabs))
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload is damaged: its checksum is wrong");
  return decompress_slabs(plan, exec, payload, tensor);
}

DEVITOCOMP_EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan) {
  return plan ? plan->message : create_message;
}
