#define _GNU_SOURCE /* strtod_l */
#include "devitocomp.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 0x1p-22      /* what rounding to float costs, relative to max|x| */
#define LEAST_ERROR 0x1p-15 /* below which 16 bits do not suffice */

struct devitocomp_plan {
  size_t elements;
  double error; /* 0: lossless */
  const char *message;
};

static __thread const char *create_message = ""; /* of plans that were never created */

static int fail(devitocomp_plan_t *plan, int status, const char *message) {
  *(plan ? &plan->message : &create_message) = message;
  return status;
}

DEVITOCOMP_EXPORT uint32_t devitocomp_abi_version(void) { return DEVITOCOMP_ABI_VERSION; }
DEVITOCOMP_EXPORT const char *devitocomp_provider_name(void) { return "documented"; }
DEVITOCOMP_EXPORT const char *devitocomp_provider_version(void) { return "1.0"; }

DEVITOCOMP_EXPORT int devitocomp_plan_limits(const devitocomp_plan_t *plan,
                                             devitocomp_limits_t *limits) {
  devitocomp_limits_t filled = {
    .flags = DEVITOCOMP_DETERMINISTIC | DEVITOCOMP_THREAD_INDEPENDENT,
    .execution_kinds = DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST),
    .portable_kinds = DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST),
    .dtypes = DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32),
    .ranks = DEVITOCOMP_BIT(1) | DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3),
    .payload_version = 1};

  if (!limits || limits->struct_size < sizeof(filled)) return DEVITOCOMP_INVALID_ARGUMENT;
  filled.struct_size = limits->struct_size;
  if (plan) {
    filled.error_kind =
      plan->error > 0 ? DEVITOCOMP_ERROR_RELATIVE_MAX : DEVITOCOMP_ERROR_LOSSLESS;
    filled.error_bound = plan->error;
    filled.max_compressed_bytes = sizeof(double) + plan->elements * sizeof(float);
    filled.payload_alignment = sizeof(double);
    filled.sidecar_alignment = 1;
  }
  memcpy(limits, &filled, sizeof(filled));
  return DEVITOCOMP_OK;
}

static int check_execution(devitocomp_plan_t *plan, const devitocomp_execution_t *exec) {
  if (!exec || exec->struct_size < sizeof(*exec) || exec->reserved)
    return fail(plan, DEVITOCOMP_INVALID_ARGUMENT, "exec is NULL, short or reserved");
  if (exec->kind != DEVITOCOMP_EXECUTION_HOST)
    return fail(plan, DEVITOCOMP_UNSUPPORTED, "only HOST execution is offered");
  return DEVITOCOMP_OK;
}

static int check_tensor(const devitocomp_tensor_t *tensor, size_t *elements) {
  int64_t total = 1;

  if (!tensor || tensor->struct_size < sizeof(*tensor) || tensor->reserved ||
      tensor->rank < 1 || tensor->rank > DEVITOCOMP_MAX_RANK)
    return fail(NULL, DEVITOCOMP_INVALID_ARGUMENT, "there is no such tensor");
  if (tensor->dtype != DEVITOCOMP_FLOAT32 || tensor->rank > 3)
    return fail(NULL, DEVITOCOMP_UNSUPPORTED, "only float32 of rank 1 to 3 is offered");
  for (uint32_t i = tensor->rank; i-- > 0; total *= tensor->dims[i]) {
    if (tensor->dims[i] < 1 || tensor->dims[i] > (INT64_C(1) << 48) / total)
      return fail(NULL, DEVITOCOMP_INVALID_ARGUMENT, "an extent is out of range");
    if (tensor->strides[i] != total)
      return fail(NULL, DEVITOCOMP_UNSUPPORTED, "the tensor is not contiguous");
  }
  *elements = (size_t)total;
  return DEVITOCOMP_OK;
}

static int parse_error(const char *options, double *error) {
  locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  char *end;

  *error = options ? strtod_l(options, &end, c_locale) : 1e-3;
  freelocale(c_locale);
  if (options && (end == options || *end || !(*error >= 0 && isfinite(*error))))
    return fail(NULL, DEVITOCOMP_INVALID_ARGUMENT, "options are no tolerance");
  *error = *error < LEAST_ERROR ? 0 : fmin(*error, 1);
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_plan_create(uint32_t abi_version,
                                             const devitocomp_tensor_t *tensor,
                                             const devitocomp_execution_t *exec,
                                             const char *options,
                                             devitocomp_plan_t **plan) {
  devitocomp_plan_t created = {0, 0, ""};
  int status;

  if (plan) *plan = NULL;
  if (abi_version != DEVITOCOMP_ABI_VERSION)
    return fail(NULL, DEVITOCOMP_VERSION_MISMATCH, "only ABI version 1 is offered");
  if (!plan) return fail(NULL, DEVITOCOMP_INVALID_ARGUMENT, "plan is NULL");
  if ((status = check_tensor(tensor, &created.elements)) ||
      (status = check_execution(NULL, exec)) ||
      (status = parse_error(options, &created.error)))
    return status;
  if (!(*plan = malloc(sizeof(created))))
    return fail(NULL, DEVITOCOMP_OUT_OF_MEMORY, "there is no memory for a plan");
  **plan = created;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan) { free(plan); }

static double choose_step(const devitocomp_plan_t *plan, const float *from) {
  double maximum = 0;

  for (size_t i = 0; i < plan->elements; i++) {
    if (!isfinite(from[i])) return 0;
    maximum = fmax(maximum, fabs(from[i]));
  }
  if (maximum == 0) return 1;
  if (plan->error == 0 || maximum < 1e-30 || maximum > 1e38) return 0;
  return 2 * (plan->error - MARGIN) * maximum;
}

static size_t payload_bytes(const devitocomp_plan_t *plan, double step) {
  return sizeof(step) + plan->elements * (step > 0 ? sizeof(int16_t) : sizeof(float));
}

static int check_call(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      const void *tensor, const void *payload) {
  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if (!tensor || (uintptr_t)tensor % sizeof(float) || !payload ||
      (uintptr_t)payload % sizeof(double))
    return fail(plan, DEVITOCOMP_INVALID_ARGUMENT, "a pointer is NULL or misaligned");
  return check_execution(plan, exec);
}

DEVITOCOMP_EXPORT int devitocomp_compress(devitocomp_plan_t *plan,
                                          const devitocomp_execution_t *exec,
                                          const void *tensor, void *payload,
                                          size_t capacity, size_t *compressed_bytes,
                                          void *sidecar) {
  int status = check_call(plan, exec, tensor, payload);
  const float *from = tensor;
  double *stored = payload;
  int16_t *codes = (int16_t *)(stored + 1);

  (void)sidecar;
  if (status) return status;
  if (!compressed_bytes)
    return fail(plan, DEVITOCOMP_INVALID_ARGUMENT, "compressed_bytes is NULL");
  double step = choose_step(plan, from);
  if (capacity < payload_bytes(plan, step))
    return fail(plan, DEVITOCOMP_BUFFER_TOO_SMALL, "the capacity is too small");

  *stored = step;
  if (step == 0) memcpy(codes, from, plan->elements * sizeof(float));
  for (size_t i = 0; step > 0 && i < plan->elements; i++)
    codes[i] = (int16_t)lrint(from[i] / step);
  *compressed_bytes = payload_bytes(plan, step);
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                            const devitocomp_execution_t *exec,
                                            const void *payload, size_t compressed_bytes,
                                            const void *sidecar, void *tensor) {
  int status = check_call(plan, exec, tensor, payload);
  const double *stored = payload;
  const int16_t *codes = (const int16_t *)(stored + 1);
  float *to = tensor;

  (void)sidecar;
  if (status) return status;
  if (compressed_bytes < sizeof(*stored) ||
      compressed_bytes != payload_bytes(plan, *stored))
    return fail(plan, DEVITOCOMP_CORRUPT_PAYLOAD, "this is no payload of that tensor");

  double step = *stored;
  if (!(step > 0)) memcpy(to, codes, plan->elements * sizeof(float));
  for (size_t i = 0; step > 0 && i < plan->elements; i++)
    to[i] = (float)(codes[i] * step);
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan) {
  return plan ? plan->message : create_message;
}
