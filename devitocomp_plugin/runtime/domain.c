/* domain.c -- see domain.h. */
#include "domain.h"

#include <string.h>

/* Below this, waking threads takes longer than copying. */
#define PARALLEL_BYTES (256 * 1024)

int64_t domain_points(const domain_t *domain)
{
  int64_t points = 1;
  int i;

  for (i = 0; i < domain->rank; i++) {
    points *= domain->dims[i];
  }
  return points;
}

void domain_pack_strides(const domain_t *domain, int64_t *strides)
{
  int64_t stride = 1;
  int i;

  for (i = domain->rank - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= domain->dims[i];
  }
}

int domain_same_strides(const domain_t *domain, const int64_t *a, const int64_t *b)
{
  int i;

  for (i = 0; i < domain->rank; i++) {
    if (domain->dims[i] > 1 && a[i] != b[i]) {
      return 0;
    }
  }
  return 1;
}

void domain_extent(const domain_t *domain, const void *first, const int64_t *strides,
                   uintptr_t *low, uintptr_t *high)
{
  const int64_t itemsize = (int64_t)domain->itemsize;
  int i;

  *low = (uintptr_t)first;
  *high = *low + domain->itemsize;
  for (i = 0; i < domain->rank; i++) {
    const int64_t reach = (domain->dims[i] - 1) * strides[i] * itemsize;
    *(reach < 0 ? low : high) += (uintptr_t)reach;
  }
}

static void copy_row(char *to, int64_t to_step, const char *from, int64_t from_step,
                     int64_t points, size_t itemsize)
{
  int64_t i;

  if (to_step == 1 && (!from || from_step == 1)) {
    if (from) {
      memcpy(to, from, (size_t)points * itemsize);
    } else {
      memset(to, 0, (size_t)points * itemsize);
    }
    return;
  }
  for (i = 0; i < points; i++) {
    if (from) {
      memcpy(to + i * to_step * (int64_t)itemsize,
             from + i * from_step * (int64_t)itemsize, itemsize);
    } else {
      memset(to + i * to_step * (int64_t)itemsize, 0, itemsize);
    }
  }
}

static void copy_rows(const domain_t *domain, char *to, const int64_t *to_strides,
                      const char *from, const int64_t *from_strides, int64_t row,
                      int64_t end)
{
  const int64_t itemsize = (int64_t)domain->itemsize;
  const int last = domain->rank - 1;
  int64_t at[DEVITOCOMP_MAX_RANK];
  int64_t rest = row;
  int i;

  for (i = last - 1; i >= 0; i--) {
    at[i] = rest % domain->dims[i];
    rest /= domain->dims[i];
  }
  for (; row < end; row++) {
    int64_t to_offset = 0, from_offset = 0;
    for (i = 0; i < last; i++) {
      to_offset += at[i] * to_strides[i];
      from_offset += from ? at[i] * from_strides[i] : 0;
    }
    copy_row(to + to_offset * itemsize, to_strides[last],
             from ? from + from_offset * itemsize : NULL, from ? from_strides[last] : 0,
             domain->dims[last], domain->itemsize);
    for (i = last - 1; i >= 0 && ++at[i] == domain->dims[i]; i--) {
      at[i] = 0;
    }
  }
}

void domain_copy(const domain_t *domain, void *to, const int64_t *to_strides,
                 const void *from, const int64_t *from_strides, int num_threads)
{
  const int64_t points = domain_points(domain);
  const int64_t rows = points ? points / domain->dims[domain->rank - 1] : 0;
  const int64_t bytes = points * (int64_t)domain->itemsize;
  int64_t blocks = bytes < PARALLEL_BYTES ? 1 : num_threads;
  int64_t i;

  if (blocks > rows) {
    blocks = rows;
  }
  if (blocks < 2) {
    copy_rows(domain, to, to_strides, from, from_strides, 0, rows);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads((int)blocks)
#endif
  for (i = 0; i < blocks; i++) {
    copy_rows(domain, to, to_strides, from, from_strides, rows * i / blocks,
              rows * (i + 1) / blocks);
  }
}
