/*
 * box.c -- see box.h.
 */
#include "box.h"

#include <string.h>

size_t count_elements(const box_t *box) {
  return (size_t)(box->dims[0] * box->dims[1] * box->dims[2] * box->dims[3]);
}

size_t count_rows(const box_t *box) {
  return (size_t)(box->dims[0] * box->dims[1] * box->dims[2]);
}

size_t row_offset(const box_t *box, size_t row, size_t itemsize) {
  int64_t i2 = (int64_t)row % box->dims[2], rest = (int64_t)row / box->dims[2];
  int64_t i1 = rest % box->dims[1], i0 = rest / box->dims[1];

  return (size_t)(i0 * box->strides[0] + i1 * box->strides[1] + i2 * box->strides[2]) *
         itemsize;
}

static void clear_row(char *row, int64_t n, int64_t stride, size_t itemsize) {
  int64_t i;

  if (stride == 1)
    memset(row, 0, (size_t)n * itemsize);
  else
    for (i = 0; i < n; i++) memset(row + (size_t)(i * stride) * itemsize, 0, itemsize);
}

/* Without row_offset(), whose divisions would take longer than a short row. */
void clear_box(const box_t *box, char *data, size_t itemsize) {
  const int64_t *n = box->dims, *s = box->strides;
  int64_t i0, i1, i2;

  for (i0 = 0; i0 < n[0]; i0++)
    for (i1 = 0; i1 < n[1]; i1++)
      for (i2 = 0; i2 < n[2]; i2++)
        clear_row(data + (size_t)(i0 * s[0] + i1 * s[1] + i2 * s[2]) * itemsize, n[3],
                  s[3], itemsize);
}

int is_clear(const box_t *box, const char *data, size_t itemsize) {
  static const char zeros[sizeof(double)];
  size_t rows = count_rows(box), row;
  int64_t i;

  for (row = 0; row < rows; row++) {
    const char *from = data + row_offset(box, row, itemsize);
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
