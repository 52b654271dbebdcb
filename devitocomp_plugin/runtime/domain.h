/*
 * domain.h -- the points that a view describes, as they lie in memory.
 */
#ifndef DEVITOCOMP_DOMAIN_H
#define DEVITOCOMP_DOMAIN_H

#include "devitocomp_store.h"

/* A block of elements. */
typedef struct domain {
  size_t itemsize;
  int rank;
  const int64_t *dims;
} domain_t;

/* The number of points. */
int64_t domain_points(const domain_t *domain);

/* The strides of a domain without gaps. */
void domain_pack_strides(const domain_t *domain, int64_t *strides);

/* Nonzero if those strides address the same points; a dimension of one has any stride. */
int domain_same_strides(const domain_t *domain, const int64_t *a, const int64_t *b);

/* The bytes [*low, *high) that hold all points, first being the first of them. */
void domain_extent(const domain_t *domain, const void *first, const int64_t *strides,
                   uintptr_t *low, uintptr_t *high);

/* Copy all points, with up to that many threads. A NULL source is all zeros. */
void domain_copy(const domain_t *domain, void *to, const int64_t *to_strides,
                 const void *from, const int64_t *from_strides, int num_threads);

#endif /* DEVITOCOMP_DOMAIN_H */
