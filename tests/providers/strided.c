/*
 * strided.c -- a lossless provider that takes any strides and needs no sidecar.
 *
 * What it leaves out are the zeros after the last plane (along the slowest dimension)
 * that has other bits. So payloads vary in length, and are rarely a multiple of the large
 * alignment that they ask for.
 */
#ifndef BASE_NAME
#define BASE_NAME "strided"
#endif
#include "base.h"

static void provider_claims(devitocomp_limits_t *limits) {
  limits->flags = DEVITOCOMP_STRIDED | DEVITOCOMP_DETERMINISTIC |
                  DEVITOCOMP_THREAD_INDEPENDENT;
  limits->dtypes = DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32) |
                   DEVITOCOMP_BIT(DEVITOCOMP_FLOAT64);
  limits->ranks = DEVITOCOMP_BIT(1) | DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3) |
                  DEVITOCOMP_BIT(4);
}

static int provider_setup(devitocomp_plan_t *plan) {
  plan->limits.payload_alignment = 64;
  return DEVITOCOMP_OK;
}

static int provider_compress(devitocomp_plan_t *plan, const void *tensor, void *payload,
                             size_t capacity, size_t *compressed_bytes, void *sidecar) {
  size_t plane = plan->bytes / (size_t)plan->tensor.dims[0];
  size_t used = plan->bytes;

  (void)sidecar;
  pack(plan, tensor, plan->work);
  while (used && !plan->work[used - 1]) used--;
  /* Whole planes, and at least one: an empty payload would be a special case. */
  used = used ? (used + plane - 1) / plane * plane : plane;
  if (capacity < used) return too_small(plan, capacity, used);
  memcpy(payload, plan->work, used);
  *compressed_bytes = used;
  return DEVITOCOMP_OK;
}

static int provider_decompress(devitocomp_plan_t *plan, const void *payload,
                               size_t compressed_bytes, const void *sidecar,
                               void *tensor) {
  size_t plane = plan->bytes / (size_t)plan->tensor.dims[0];

  (void)sidecar;
  if (!compressed_bytes || compressed_bytes > plan->bytes || compressed_bytes % plane)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "%zu bytes are not 1 to %" PRId64 " planes of %zu", compressed_bytes,
                plan->tensor.dims[0], plane);
  memcpy(plan->work, payload, compressed_bytes);
  memset(plan->work + compressed_bytes, 0, plan->bytes - compressed_bytes);
  unpack(plan, plan->work, tensor);
  return DEVITOCOMP_OK;
}
