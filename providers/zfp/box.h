/*
 * box.h -- parts of a tensor.
 */
#ifndef DEVITOCOMP_ZFP_BOX_H
#define DEVITOCOMP_ZFP_BOX_H

#include <stddef.h>
#include <stdint.h>

#define MAX_RANK 4

/* Slowest dimension first, leading dimensions 1 below MAX_RANK. Strides are elements. */
typedef struct box {
  int64_t dims[MAX_RANK];
  int64_t strides[MAX_RANK];
} box_t;

/* The block that begins at a position of a box, or the blocks that follow it, to a length
   along the fastest dimension; and where in the box they are, in bytes. */
static inline box_t part_of_box(const box_t *box, const int64_t *position,
                                int64_t length, size_t itemsize, size_t *offset) {
  int64_t most[MAX_RANK] = {4, 4, 4, length};
  box_t part = *box;
  int64_t elements = 0;
  int i;

  for (i = 0; i < MAX_RANK; i++) {
    int64_t rest = box->dims[i] - position[i];
    part.dims[i] = most[i] < rest ? most[i] : rest;
    elements += position[i] * box->strides[i];
  }
  *offset = (size_t)elements * itemsize;
  return part;
}

size_t count_elements(const box_t *box);

/* Rows, along the fastest dimension, are numbered from 0. Offsets are bytes. */
size_t count_rows(const box_t *box);
size_t row_offset(const box_t *box, size_t row, size_t itemsize);

/* Make all bits zero; whether they are. */
void clear_box(const box_t *box, char *data, size_t itemsize);
int is_clear(const box_t *box, const char *data, size_t itemsize);

#endif
