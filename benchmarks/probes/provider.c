/*
 * provider.c -- a provider that hands all to another, PROBED, and measures its calls.
 *
 * It also tells allocations.c, if that has been preloaded, when to start and when to stop
 * counting: at the beginning of two calls, with a whole number of time steps in between.
 */
#define _GNU_SOURCE
#include "devitocomp.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MAX_CALLS (1 << 17)

/* Read and written by benchmarks/overhead.py. */
typedef struct probe {
  int64_t calls;
  int64_t first, last;         /* the calls between which allocations are counted */
  double seconds;              /* of all calls */
  float duration[MAX_CALLS];   /* of each */
} probe_t;

DEVITOCOMP_EXPORT probe_t probe_compress, probe_decompress;

#define FUNCTIONS(X) \
  X(abi_version) X(provider_name) X(provider_version) X(plan_create) X(plan_destroy) \
  X(plan_limits) X(compress) X(decompress) X(message)

#define DECLARE(name) static __typeof__(devitocomp_##name) *real_##name;
FUNCTIONS(DECLARE)
static void (*count_allocations)(int);

__attribute__((constructor)) static void load(void) {
  void *const library = dlopen(PROBED, RTLD_NOW | RTLD_LOCAL);

  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
#define FIND(name) *(void **)&real_##name = dlsym(library, "devitocomp_" #name);
  FUNCTIONS(FIND)
  *(void **)&count_allocations = dlsym(RTLD_DEFAULT, "count_allocations");
}

static double now(void) {
  struct timespec time;

  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double begin(const probe_t *probe) {
  if (count_allocations && probe->last) {
    if (probe->calls == probe->first) count_allocations(1);
    if (probe->calls == probe->last) count_allocations(0);
  }
  return now();
}

static int end(probe_t *probe, double start, int status) {
  const double seconds = now() - start;

  if (probe->calls < MAX_CALLS) probe->duration[probe->calls] = (float)seconds;
  probe->calls++;
  probe->seconds += seconds;
  return status;
}

DEVITOCOMP_EXPORT uint32_t devitocomp_abi_version(void) {
  return real_abi_version();
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_name(void) {
  return real_provider_name();
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_version(void) {
  return real_provider_version();
}

DEVITOCOMP_EXPORT int devitocomp_plan_create(uint32_t abi_version,
                                             const devitocomp_tensor_t *tensor,
                                             const devitocomp_execution_t *exec,
                                             const char *options,
                                             devitocomp_plan_t **plan) {
  return real_plan_create(abi_version, tensor, exec, options, plan);
}

DEVITOCOMP_EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan) {
  real_plan_destroy(plan);
}

DEVITOCOMP_EXPORT int devitocomp_plan_limits(const devitocomp_plan_t *plan,
                                             devitocomp_limits_t *limits) {
  return real_plan_limits(plan, limits);
}

DEVITOCOMP_EXPORT int devitocomp_compress(devitocomp_plan_t *plan,
                                          const devitocomp_execution_t *exec,
                                          const void *tensor, void *payload,
                                          size_t capacity, size_t *compressed_bytes,
                                          void *sidecar) {
  const double start = begin(&probe_compress);

  return end(&probe_compress, start, real_compress(plan, exec, tensor, payload, capacity,
                                                   compressed_bytes, sidecar));
}

DEVITOCOMP_EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                            const devitocomp_execution_t *exec,
                                            const void *payload, size_t compressed_bytes,
                                            const void *sidecar, void *tensor) {
  const double start = begin(&probe_decompress);

  return end(&probe_decompress, start, real_decompress(plan, exec, payload,
                                                       compressed_bytes, sidecar,
                                                       tensor));
}

DEVITOCOMP_EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan) {
  return real_message(plan);
}
