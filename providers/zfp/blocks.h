/*
 * blocks.h -- a box of a tensor, block by block, from and to a zfp stream.
 *
 * The streams are those of zfp_compress and zfp_decompress, bit by bit. But most blocks of
 * a wavefield are far from the wave: they have nothing above what is to be dropped, and a
 * single bit says so. libzfp gathers, or scatters, 4^rank elements for each. Here runs of
 * such blocks are skipped, or cleared, row by row.
 */
#ifndef DEVITOCOMP_ZFP_BLOCKS_H
#define DEVITOCOMP_ZFP_BLOCKS_H

#include "slab.h"

/* Whether zfp, in its fixed-accuracy mode, keeps nothing of a block with this exponent. */
int drops_block(int rank, int exponent, int minexp);

/* Compress a box to the bit stream of a zfp stream whose parameters are set, given the
   exponents of its blocks. Returns the bytes of the stream, whole words. */
size_t encode_blocks(const devitocomp_plan_t *plan, zfp_stream *zfp, const box_t *box,
                     const char *data, const int16_t *exponents, int minexp);

/* Decompress a box likewise. Returns the bytes read. */
size_t decode_blocks(const devitocomp_plan_t *plan, zfp_stream *zfp, const box_t *box,
                     char *data);

#endif
