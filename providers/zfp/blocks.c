/*
 * blocks.c -- see blocks.h.
 */
#include "blocks.h"

/*
 * What libzfp calls a partial block has less than 4 elements along some axis; the fastest
 * axis comes first, of extents n and strides s. DEFINE(encode, float, const) defines
 * encode_float(), and so on.
 */
#define DEFINE(verb, scalar, qualifier)                                                   \
  static void verb##_##scalar(zfp_stream *zfp, int rank, const box_t *block,              \
                              qualifier void *data) {                                     \
    qualifier scalar *p = data;                                                           \
    const int64_t *n = block->dims, *s = block->strides;                                  \
    size_t nx = (size_t)n[3], ny = (size_t)n[2], nz = (size_t)n[1], nw = (size_t)n[0];    \
    ptrdiff_t sx = (ptrdiff_t)s[3], sy = (ptrdiff_t)s[2], sz = (ptrdiff_t)s[1],           \
              sw = (ptrdiff_t)s[0];                                                       \
                                                                                          \
    switch (rank) {                                                                       \
    case 1:                                                                               \
      if (nx == 4)                                                                        \
        zfp_##verb##_block_strided_##scalar##_1(zfp, p, sx);                              \
      else                                                                                \
        zfp_##verb##_partial_block_strided_##scalar##_1(zfp, p, nx, sx);                  \
      break;                                                                              \
    case 2:                                                                               \
      if (nx == 4 && ny == 4)                                                             \
        zfp_##verb##_block_strided_##scalar##_2(zfp, p, sx, sy);                          \
      else                                                                                \
        zfp_##verb##_partial_block_strided_##scalar##_2(zfp, p, nx, ny, sx, sy);          \
      break;                                                                              \
    case 3:                                                                               \
      if (nx == 4 && ny == 4 && nz == 4)                                                  \
        zfp_##verb##_block_strided_##scalar##_3(zfp, p, sx, sy, sz);                      \
      else                                                                                \
        zfp_##verb##_partial_block_strided_##scalar##_3(zfp, p, nx, ny, nz, sx, sy, sz);  \
      break;                                                                              \
    default:                                                                              \
      if (nx == 4 && ny == 4 && nz == 4 && nw == 4)                                       \
        zfp_##verb##_block_strided_##scalar##_4(zfp, p, sx, sy, sz, sw);                  \
      else                                                                                \
        zfp_##verb##_partial_block_strided_##scalar##_4(zfp, p, nx, ny, nz, nw, sx, sy,   \
                                                        sz, sw);                          \
    }                                                                                     \
  }

DEFINE(encode, float, const)
DEFINE(encode, double, const)
DEFINE(decode, float, )
DEFINE(decode, double, )

int drops_block(int rank, int exponent, int minexp) {
  return exponent - minexp + 2 * (rank + 1) <= 0;
}

size_t encode_blocks(const devitocomp_plan_t *plan, zfp_stream *zfp, const box_t *box,
                     const char *data, const int16_t *exponents, int minexp) {
  size_t itemsize = plan->traits->itemsize;
  bitstream *bits = zfp_stream_bit_stream(zfp);
  int64_t p[MAX_RANK];
  bitstream_size dropped = 0;

  for (p[0] = 0; p[0] < box->dims[0]; p[0] += 4)
    for (p[1] = 0; p[1] < box->dims[1]; p[1] += 4)
      for (p[2] = 0; p[2] < box->dims[2]; p[2] += 4)
        for (p[3] = 0; p[3] < box->dims[3]; p[3] += 4) {
          size_t offset;
          box_t block;

          if (drops_block(plan->rank, *exponents++, minexp)) {
            dropped++;
            continue;
          }
          stream_pad(bits, dropped);
          dropped = 0;
          block = part_of_box(box, p, 4, itemsize, &offset);
          if (plan->traits == &float32)
            encode_float(zfp, plan->rank, &block, data + offset);
          else
            encode_double(zfp, plan->rank, &block, data + offset);
        }
  stream_pad(bits, dropped);
  zfp_stream_flush(zfp);
  return stream_size(bits);
}

/* Clear the elements of a row of blocks from one position to another one. */
static void clear_run(const box_t *box, const int64_t *position, int64_t from,
                      int64_t to, size_t itemsize, char *data) {
  int64_t start[MAX_RANK] = {position[0], position[1], position[2], from};
  size_t offset;
  box_t run = part_of_box(box, start, to - from, itemsize, &offset);

  clear_box(&run, data + offset, itemsize);
}

size_t decode_blocks(const devitocomp_plan_t *plan, zfp_stream *zfp, const box_t *box,
                     char *data) {
  size_t itemsize = plan->traits->itemsize;
  bitstream *bits = zfp_stream_bit_stream(zfp);
  int64_t p[MAX_RANK], clear;

  for (p[0] = 0; p[0] < box->dims[0]; p[0] += 4)
    for (p[1] = 0; p[1] < box->dims[1]; p[1] += 4)
      for (p[2] = 0; p[2] < box->dims[2]; p[2] += 4) {
        /* What is from here on is to be cleared */
        clear = 0;
        for (p[3] = 0; p[3] < box->dims[3]; p[3] += 4) {
          size_t offset;
          box_t block;

          if (!stream_read_bit(bits)) continue;
          stream_rseek(bits, stream_rtell(bits) - 1);
          if (clear < p[3]) clear_run(box, p, clear, p[3], itemsize, data);
          clear = p[3] + 4;
          block = part_of_box(box, p, 4, itemsize, &offset);
          if (plan->traits == &float32)
            decode_float(zfp, plan->rank, &block, data + offset);
          else
            decode_double(zfp, plan->rank, &block, data + offset);
        }
        if (clear < box->dims[3]) clear_run(box, p, clear, box->dims[3], itemsize, data);
      }
  zfp_stream_align(zfp);
  return stream_size(bits);
}
