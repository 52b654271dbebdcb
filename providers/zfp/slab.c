/*
 * slab.c -- one slab of a tensor, from and to a zfp stream, within the error bound.
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
#include "slab.h"

#include "blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BLOCK 256 /* elements: 4^MAX_RANK */

/* Thick enough for the 16 bytes that a slab costs on average, thin enough for many
   threads to get their share. */
#define MIN_SLAB_BYTES ((int64_t)64 << 10)

const traits_t float32 = {
  zfp_type_float, sizeof(float), -126, {0, -19, -19, -18, -16}, -95, 126, -26
};
const traits_t float64 = {
  zfp_type_double, sizeof(double), -1022, {0, -48, -49, -49, -48}, -959, 1022, -56
};

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

/* Whether a box and a contiguous copy of it differ by at most the tolerance. */
static int is_within(const devitocomp_plan_t *plan, const box_t *box, const char *data,
                     const void *copy, double tolerance) {
  const float *floats = copy;
  const double *doubles = copy;
  size_t rows = count_rows(box), row;
  int64_t n = box->dims[3], stride = box->strides[3], i;
  int within = 1;

  for (row = 0; row < rows && within; row++) {
    const char *from = data + row_offset(box, row, plan->traits->itemsize);
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

/* line[i] = max(line[i], |row[i]|). Signed integers, which SSE2 can compare. */
static void raise32(int32_t *line, const char *row, int64_t n, int64_t stride) {
  int64_t i;

  if (stride == 1)
    for (i = 0; i < n; i++) {
      int32_t x;
      memcpy(&x, row + (size_t)i * sizeof(x), sizeof(x));
      x &= INT32_MAX;
      line[i] = x > line[i] ? x : line[i];
    }
  else
    for (i = 0; i < n; i++) {
      int32_t x;
      memcpy(&x, row + (size_t)(i * stride) * sizeof(x), sizeof(x));
      x &= INT32_MAX;
      line[i] = x > line[i] ? x : line[i];
    }
}

static void raise64(int64_t *line, const char *row, int64_t n, int64_t stride) {
  int64_t i;

  for (i = 0; i < n; i++) {
    int64_t x;
    memcpy(&x, row + (size_t)(i * stride) * sizeof(x), sizeof(x));
    x &= INT64_MAX;
    line[i] = x > line[i] ? x : line[i];
  }
}

/* The exponent of the number that these are the bits of, as zfp takes it. */
static int exponent_of(const traits_t *traits, uint64_t bits) {
  return traits->min_exponent + (int)(bits >> (traits == &float32 ? 23 : 52));
}

/* The maximum of a box, and the exponents of its blocks. line: room for a row, and 3. */
static uint64_t scan_box(const devitocomp_plan_t *plan, const box_t *box,
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
        blocks = part_of_box(box, p, 4, traits->itemsize, &offset);
        rows = count_rows(&blocks);
        memset(line, 0, (size_t)padded * traits->itemsize);
        for (row = 0; row < rows; row++) {
          const char *from = data + offset + row_offset(&blocks, row, traits->itemsize);
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

static int open_scratch(const devitocomp_plan_t *plan, scratch_t *scratch) {
  bitstream *bits;

  scratch->zfp = zfp_stream_open(NULL);
  scratch->field = zfp_field_alloc();
  scratch->line = malloc(((size_t)plan->box.dims[3] + 3) * plan->traits->itemsize);
  scratch->stream = malloc(plan->slab_bytes);
  if (!scratch->zfp || !scratch->field || !scratch->line || !scratch->stream) return 0;
  if (!(bits = stream_open(scratch->stream, plan->slab_bytes))) return 0;
  zfp_stream_set_bit_stream(scratch->zfp, bits);
  return 1;
}

int ensure_scratch(devitocomp_plan_t *plan, int threads) {
  scratch_t *grown;

  if (threads <= plan->threads) return 1;
  grown = realloc(plan->scratch, (size_t)threads * sizeof(*grown));
  if (!grown) return 0;
  plan->scratch = grown;
  memset(grown + plan->threads, 0, (size_t)(threads - plan->threads) * sizeof(*grown));
  for (; plan->threads < threads; plan->threads++)
    if (!open_scratch(plan, grown + plan->threads)) {
      close_scratch(grown + plan->threads);
      return 0;
    }
  return 1;
}

void close_scratch(scratch_t *scratch) {
  if (scratch->zfp) {
    if (zfp_stream_bit_stream(scratch->zfp))
      stream_close(zfp_stream_bit_stream(scratch->zfp));
    zfp_stream_close(scratch->zfp);
  }
  if (scratch->field) zfp_field_free(scratch->field);
  free(scratch->line);
  free(scratch->stream);
  free(scratch->copy);
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

/* Compress a box to the scratch stream, given the exponents of its blocks, if they are
   known. Returns its bytes, whole words, or 0 on failure. */
static size_t encode(const devitocomp_plan_t *plan, scratch_t *scratch, const box_t *box,
                     const char *data, const int16_t *exponents, int code) {
  size_t bytes;

  zfp_stream_rewind(scratch->zfp);
  set_mode(scratch->zfp, code);
  if (exponents && code != REVERSIBLE) {
    bytes = encode_blocks(plan, scratch->zfp, box, data, exponents, code - CODE_BIAS);
  } else {
    set_field(plan, scratch->field, box, data, 0);
    bytes = zfp_compress(scratch->zfp, scratch->field);
  }
  /* libzfp may have been compiled for shorter words. */
  for (; bytes % WORD; bytes++) scratch->stream[bytes] = 0;
  return bytes;
}

/* Decompress a box from the scratch stream, which has been found intact: zfp relies on
   that. */
static int decode(const devitocomp_plan_t *plan, scratch_t *scratch, const box_t *box,
                  void *data, int contiguous, int code, size_t bytes) {
  size_t used;

  zfp_stream_rewind(scratch->zfp);
  set_mode(scratch->zfp, code);
  if (!contiguous && code != REVERSIBLE) {
    used = decode_blocks(plan, scratch->zfp, box, data);
  } else {
    set_field(plan, scratch->field, box, data, contiguous);
    used = zfp_decompress(scratch->zfp, scratch->field);
  }
  return (used + WORD - 1) / WORD * WORD == bytes ? DEVITOCOMP_OK
                                                  : DEVITOCOMP_CORRUPT_PAYLOAD;
}

/* ---- Cutting ----------------------------------------------------------------------- */

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

/* What a slab can take, in either mode. 0 if libzfp cannot tell. */
static size_t most_bytes(const devitocomp_plan_t *plan, const box_t *slab) {
  zfp_stream *zfp = zfp_stream_open(NULL);
  zfp_field *field = zfp_field_alloc();
  size_t most = 0, bytes;

  if (zfp && field) {
    set_field(plan, field, slab, NULL, 1);
    set_mode(zfp, REVERSIBLE);
    most = zfp_stream_maximum_size(zfp, field);
    set_mode(zfp, MIN_MINEXP + CODE_BIAS);
    bytes = zfp_stream_maximum_size(zfp, field);
    if (bytes > most) most = bytes;
  }
  if (zfp) zfp_stream_close(zfp);
  if (field) zfp_field_free(field);
  return most;
}

int cut_into_slabs(devitocomp_plan_t *plan) {
  int64_t plane = (int64_t)plan->traits->itemsize;
  size_t offset, blocks = 1;
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
  plan->slab_bytes = most_bytes(plan, &box);
  plan->slab_bytes = (plan->slab_bytes + 63) / 64 * 64;
  return plan->slab_bytes > 0;
}

/* ---- Compression ------------------------------------------------------------------- */

method_t choose_method(const devitocomp_plan_t *plan, uint64_t maximum) {
  const traits_t *traits = plan->traits;
  method_t method = {REVERSIBLE, 0, 0, 0};
  int exponent = exponent_of(traits, maximum);

  if (plan->error == 0) return method;
  method.tolerance = plan->error * value_of_bits(plan->tensor.dtype, maximum);
  if (method.tolerance == 0) return method;
  frexp(method.tolerance, &method.minexp);
  method.minexp--;
  if (method.minexp - exponent < traits->hopeless || method.minexp <= MIN_MINEXP)
    return method;
  method.code = method.minexp + CODE_BIAS;
  method.safe = method.minexp - exponent >= traits->least[plan->rank] &&
              method.minexp - 2 * plan->rank >= traits->tiny && exponent <= traits->huge;
  return method;
}

/* Whether a block comes back as it should. */
static int survives(const devitocomp_plan_t *plan, scratch_t *scratch, const box_t *block,
                    const char *data, const method_t *method) {
  double copy[MAX_BLOCK];
  size_t bytes = encode(plan, scratch, block, data, NULL, method->code);

  return bytes && !decode(plan, scratch, block, copy, 1, method->code, bytes) &&
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
            box_t block = part_of_box(box, p, 4, plan->traits->itemsize, &offset);
            if (!survives(plan, scratch, &block, data + offset, method)) return 0;
          }
  return 1;
}

/* Whether a slab does that is in the scratch stream. */
static int slab_survives(const devitocomp_plan_t *plan, scratch_t *scratch,
                         const box_t *box, const char *data, size_t bytes,
                         const method_t *method) {
  box_t largest;
  size_t offset;

  if (!scratch->copy) {
    largest = slab_box(plan, 0, &offset);
    scratch->copy = malloc(count_elements(&largest) * plan->traits->itemsize);
    /* Reversible mode needs none. */
    if (!scratch->copy) return 0;
  }
  return !decode(plan, scratch, box, scratch->copy, 1, method->code, bytes) &&
         is_within(plan, box, data, scratch->copy, method->tolerance);
}

void scan_slab(devitocomp_plan_t *plan, scratch_t *scratch, ptrdiff_t index,
               const char *tensor) {
  size_t offset;
  box_t box = slab_box(plan, index, &offset);

  plan->slab[index].status = DEVITOCOMP_OK;
  plan->slab[index].maximum =
    scan_box(plan, &box, tensor + offset, scratch->line,
             plan->exponents + (size_t)index * plan->slab_blocks);
}

/* Whether zeros are what a slab is to come back as. */
static int is_dropped(const devitocomp_plan_t *plan, const slab_t *slab, const box_t *box,
                      const char *data, const method_t *method) {
  if (plan->error == 0) return is_clear(box, data, plan->traits->itemsize);
  if (method->code == REVERSIBLE) return !slab->maximum;
  return drops_block(plan->rank, exponent_of(plan->traits, slab->maximum),
                     method->minexp);
}

void compress_slab(devitocomp_plan_t *plan, scratch_t *scratch, ptrdiff_t index,
                   const char *tensor, const method_t *method) {
  slab_t *slab = plan->slab + index;
  unsigned char *stream = plan->work + (size_t)index * plan->slab_bytes;
  const int16_t *exponents =
    plan->error == 0 ? NULL : plan->exponents + (size_t)index * plan->slab_blocks;
  size_t offset;
  box_t box = slab_box(plan, index, &offset);
  const char *data = tensor + offset;
  int code;

  slab->status = DEVITOCOMP_OK;
  slab->bytes = 0;
  slab->hash = 0;
  slab->code = ZERO;
  if (is_dropped(plan, slab, &box, data, method)) return;

  slab->code = method->code;
  slab->bytes = encode(plan, scratch, &box, data, exponents, slab->code);
  if (slab->bytes && method->code != REVERSIBLE) {
    code = method->code;
    if (!method->safe && !slab_survives(plan, scratch, &box, data, slab->bytes, method))
      code = REVERSIBLE;
    /* Single blocks take the place of the slab in the scratch stream */
    memcpy(stream, scratch->stream, slab->bytes);
    if (method->safe && !blocks_survive(plan, scratch, &box, data, exponents, method))
      code = method->code - 1;
    if (code != slab->code) {
      slab->code = code;
      slab->bytes = encode(plan, scratch, &box, data, exponents, code);
      memcpy(stream, scratch->stream, slab->bytes);
    }
  } else {
    memcpy(stream, scratch->stream, slab->bytes);
  }
  if (!slab->bytes) slab->status = DEVITOCOMP_PROVIDER_ERROR;
  slab->hash = hash_words(stream, slab->bytes);
}

/* ---- Decompression ----------------------------------------------------------------- */

void decompress_slab(devitocomp_plan_t *plan, scratch_t *scratch, ptrdiff_t index,
                     const unsigned char *payload, char *tensor) {
  slab_t *slab = plan->slab + index;
  size_t offset;
  box_t box = slab_box(plan, index, &offset);

  slab->status = DEVITOCOMP_OK;
  if (slab->code == ZERO) {
    clear_box(&box, tensor + offset, plan->traits->itemsize);
    return;
  }
  memcpy(scratch->stream, payload + slab->offset, slab->bytes);
  slab->status =
    decode(plan, scratch, &box, tensor + offset, 0, slab->code, slab->bytes);
}
