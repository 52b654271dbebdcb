/*
 * broken.c -- a good provider, and what becomes of it with one fault.
 *
 * Compiled with -DBROKEN=NAME, where NAME is one of the faults below, it has that fault
 * and no other. The conformance suite is tested with it: NOTHING has to pass all checks,
 * and each fault has to be found by the checks that are meant to find it.
 *
 * The good provider takes float32 tensors of rank 2 with any strides. It stores them as
 * 16-bit multiples of a step, or as they are where that would not do, or, if all are
 * zero, not at all. The sidecar has the step and a hash of everything.
 */
#define _DEFAULT_SOURCE
#include "devitocomp.h"

#include <fenv.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum fault {
  NOTHING,
  STILLBORN,         /* ends the process that loads it */
  /* Of plans. */
  ANY_VERSION,       /* takes any ABI version */
  ANY_SIZE,          /* takes tensors of any struct_size */
  ANY_KIND,          /* takes any kind of execution */
  RESERVED,          /* ignores what is reserved in tensors */
  OVERFLOW,          /* computes sizes without looking for overflow */
  PLAN_LEFT,         /* leaves *plan as it is on failure */
  DEAF,              /* ignores the tolerance, and says so */
  CLAIMS,            /* claims something else of plans */
  SHARED_MESSAGE,    /* has one message for all threads */
  DIES,              /* ends the process over the option "nan" */
  HANGS,             /* hangs over the option "" */
  DESTROYS_NULL,     /* dereferences a NULL plan to destroy */
  LEAKS,             /* forgets some memory of each plan */
  PRINTS,            /* prints to stdout */
  /* Of the data. */
  COARSE,            /* loses twice as much as it promises, with the option "0.01" */
  FLUSHES,           /* flushes denormal numbers to zero */
  NO_NAN,            /* turns NaN into zeros */
  /* Of calls. */
  NULL_PLAN,         /* dereferences a NULL plan to compress with */
  OFF_BY_ONE,        /* is content with one byte less than it writes */
  GREEDY,            /* wants one byte more than it writes */
  OVERRUNS,          /* writes beyond the capacity */
  FILLS_GAPS,        /* writes between the elements of strided tensors */
  SPOILS_INPUT,      /* changes the tensor that it compresses */
  PICKY,             /* needs a larger alignment than it says */
  ROUNDS_UP,         /* leaves another rounding mode behind */
  ODD_STATUS,        /* returns a status that there is not */
  SILENT,            /* fails without a message */
  STATIC,            /* has one workspace for all plans */
  /* Of payloads. */
  STALE_BYTES,       /* leaves padding as it was */
  COUNTS_THREADS,    /* has a step that depends on the number of threads */
  STORES_STRIDES,    /* makes payloads that depend on strides */
  REGISTRY,          /* keeps steps in the process, and their number in the sidecar */
  NEEDY,             /* does not say that it needs the sidecar */
  IDLE_SIDECAR,      /* says that it needs a sidecar in which there is nothing */
  LAZY_HASH,         /* hashes the first bytes only */
  OVERREADS          /* trusts in the length that a payload should have */
};

#ifndef BROKEN
#define BROKEN NOTHING
#endif
#define FAULT(name) (BROKEN == name)

#define ALIGNMENT 16
#define DEFAULT_ERROR 1e-3
#define LEAST_ERROR 4e-5 /* below which 16 bits do not suffice */
#define MARGIN 0x1p-22   /* what rounding to float may cost, relative to max|x| */
#define MAX_ELEMENTS (INT64_C(1) << 40)
#define STEPS 4096

typedef struct sidecar {
  double step; /* 0: as they are */
  uint64_t hash;
} sidecar_t;

struct devitocomp_plan {
  devitocomp_tensor_t tensor;
  size_t elements;
  double error; /* 0: lossless */
  float *work;
  char message[128];
};

static __thread char thread_message[128];
static char process_message[128];
static float *process_work;
static double steps[STEPS];
static size_t known_steps;

static char *create_message(void) {
  return FAULT(SHARED_MESSAGE) ? process_message : thread_message;
}

static int fail(char *message, int status, const char *what) {
  strcpy(message, FAULT(SILENT) && status == DEVITOCOMP_BUFFER_TOO_SMALL ? "" : what);
  return status;
}

#if defined(__GNUC__)
__attribute__((constructor))
#endif
static void load(void) {
  if (FAULT(STILLBORN)) abort();
}

/* ---- Plans ------------------------------------------------------------------------- */

static int check_execution(char *message, const devitocomp_execution_t *exec, int is_call) {
  if (!exec || exec->struct_size < sizeof(*exec) || exec->reserved)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "exec is NULL, short or reserved");
  if (exec->kind != DEVITOCOMP_EXECUTION_HOST && (is_call || !FAULT(ANY_KIND)))
    return fail(message, DEVITOCOMP_UNSUPPORTED, "only HOST execution is offered");
  return DEVITOCOMP_OK;
}

static int check_tensor(const devitocomp_tensor_t *tensor) {
  char *message = create_message();
  int i;

  if (!tensor || (tensor->struct_size < sizeof(*tensor) && !FAULT(ANY_SIZE)) ||
      (tensor->reserved && !FAULT(RESERVED)))
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "tensor is NULL, short, reserved");
  if (tensor->rank < 1 || tensor->rank > DEVITOCOMP_MAX_RANK)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "there is no such rank");
  if (tensor->dtype != DEVITOCOMP_FLOAT32 || tensor->rank != 2)
    return fail(message, DEVITOCOMP_UNSUPPORTED, "only float32 of rank 2 is offered");
  for (i = 0; i < 2; i++)
    if (tensor->dims[i] < 1 || tensor->strides[i] < 1 ||
        (tensor->dims[i] > MAX_ELEMENTS && !FAULT(OVERFLOW)))
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "an extent or stride is wrong");
  if (tensor->dims[0] > MAX_ELEMENTS / tensor->dims[1] && !FAULT(OVERFLOW))
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "the tensor is too large");
  return DEVITOCOMP_OK;
}

static int parse_error(const char *options, double *error) {
  char *end = NULL;

  *error = DEFAULT_ERROR;
  if (!options) return DEVITOCOMP_OK;
  if (FAULT(DIES) && !strcmp(options, "nan")) exit(0);
  while (FAULT(HANGS) && !*options) sleep(1);
  if (*options >= '0' && *options <= '9') *error = strtod(options, &end);
  if (!end || *end || !isfinite(*error))
    return fail(create_message(), DEVITOCOMP_INVALID_ARGUMENT, "options are no tolerance");
  if (*error < LEAST_ERROR) *error = 0;
  if (*error > 1) *error = 1;
  if (FAULT(DEAF)) *error = DEFAULT_ERROR;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT uint32_t devitocomp_abi_version(void) {
  return DEVITOCOMP_ABI_VERSION;
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_name(void) {
  return "broken";
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_version(void) {
  return "0.1";
}

DEVITOCOMP_EXPORT int devitocomp_plan_create(uint32_t abi_version,
                                             const devitocomp_tensor_t *tensor,
                                             const devitocomp_execution_t *exec,
                                             const char *options,
                                             devitocomp_plan_t **plan) {
  devitocomp_plan_t *created;
  double error;
  int status;

  if (plan && !FAULT(PLAN_LEFT)) *plan = NULL;
  if (abi_version != DEVITOCOMP_ABI_VERSION && !FAULT(ANY_VERSION))
    return fail(create_message(), DEVITOCOMP_VERSION_MISMATCH, "the ABI is another one");
  if (!plan) return fail(create_message(), DEVITOCOMP_INVALID_ARGUMENT, "plan is NULL");
  if ((status = check_tensor(tensor)) ||
      (status = check_execution(create_message(), exec, 0)) ||
      (status = parse_error(options, &error)))
    return status;
  if (FAULT(PRINTS)) printf("a plan is created\n");

  created = calloc(1, sizeof(*created));
  if (!created) return fail(create_message(), DEVITOCOMP_OUT_OF_MEMORY, "no memory");
  created->tensor = *tensor;
  created->elements = (size_t)tensor->dims[0] * (size_t)tensor->dims[1];
  created->error = error;
  /* Not more than is used at all, where the number of elements has overflown. */
  created->work = FAULT(OVERFLOW) && created->elements > MAX_ELEMENTS
                    ? NULL
                    : malloc(created->elements * sizeof(float));
  if (!created->work && !FAULT(OVERFLOW)) {
    free(created);
    return fail(create_message(), DEVITOCOMP_OUT_OF_MEMORY, "no memory for a workspace");
  }
  *plan = created;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan) {
  if (!plan && !FAULT(DESTROYS_NULL)) return;
  free(plan->work);
  if (!FAULT(LEAKS)) free(plan);
}

static size_t max_bytes(const devitocomp_plan_t *plan) {
  return plan->elements * sizeof(float) + 3 * ALIGNMENT;
}

DEVITOCOMP_EXPORT int devitocomp_plan_limits(const devitocomp_plan_t *plan,
                                             devitocomp_limits_t *limits) {
  devitocomp_limits_t filled;

  if (!limits || limits->struct_size < sizeof(filled)) return DEVITOCOMP_INVALID_ARGUMENT;
  memset(&filled, 0, sizeof(filled));
  filled.struct_size = limits->struct_size;
  filled.flags = DEVITOCOMP_STRIDED | DEVITOCOMP_DETERMINISTIC |
                 DEVITOCOMP_THREAD_INDEPENDENT | DEVITOCOMP_DETECTS_CORRUPTION |
                 (FAULT(NEEDY) ? 0 : DEVITOCOMP_USES_SIDECAR);
  filled.execution_kinds = DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST);
  filled.portable_kinds = filled.execution_kinds;
  filled.dtypes = DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32);
  filled.ranks = DEVITOCOMP_BIT(2);
  filled.payload_version = plan && FAULT(CLAIMS) ? 2 : 1;
  if (plan) {
    filled.error_kind =
      plan->error > 0 ? DEVITOCOMP_ERROR_RELATIVE_MAX : DEVITOCOMP_ERROR_LOSSLESS;
    filled.error_bound = plan->error;
    filled.max_compressed_bytes = max_bytes(plan);
    filled.payload_alignment = ALIGNMENT;
    filled.sidecar_bytes = sizeof(sidecar_t);
    filled.sidecar_alignment = 8;
  }
  memcpy(limits, &filled, sizeof(filled));
  return DEVITOCOMP_OK;
}

/* ---- Calls ------------------------------------------------------------------------- */

static int check_call(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      const void *tensor, const void *payload, const void *sidecar) {
  uintptr_t alignment = FAULT(PICKY) ? 4 * ALIGNMENT : ALIGNMENT;
  int status = check_execution(plan->message, exec, 1);

  if (status) return status;
  if (!tensor || (uintptr_t)tensor % sizeof(float) || !payload ||
      (uintptr_t)payload % alignment || !sidecar || (uintptr_t)sidecar % 8)
    return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT,
                "a pointer is NULL or misaligned");
  return DEVITOCOMP_OK;
}

static size_t offset_of(const devitocomp_plan_t *plan, size_t i) {
  const devitocomp_tensor_t *tensor = &plan->tensor;
  size_t row = i / (size_t)tensor->dims[1], column = i % (size_t)tensor->dims[1];
  return row * (size_t)tensor->strides[0] + column * (size_t)tensor->strides[1];
}

static float *workspace(devitocomp_plan_t *plan) {
  if (!FAULT(STATIC)) return plan->work;
  if (!process_work) process_work = malloc((size_t)4 << 20);
  return process_work;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *next = data;
  size_t i;

  for (i = 0; i < bytes; i++) hash = (hash ^ next[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* Each step is a bijection of the hash, so that no change of a single byte is missed. */
static uint64_t hash_snapshot(const devitocomp_plan_t *plan, const void *payload,
                              size_t bytes, double step) {
  uint64_t hash = hash_bytes(UINT64_C(0xcbf29ce484222325), plan->tensor.dims, 16);

  if (FAULT(STORES_STRIDES)) hash = hash_bytes(hash, plan->tensor.strides, 16);
  hash = hash_bytes(hash, &step, sizeof(step));
  return hash_bytes(hash, payload, FAULT(LAZY_HASH) && bytes > 64 ? 64 : bytes);
}

static size_t payload_bytes(const devitocomp_plan_t *plan, double step) {
  size_t bytes = plan->elements * (step > 0 ? sizeof(int16_t) : sizeof(float));

  if (step < 0) bytes = 0;
  if (FAULT(STALE_BYTES)) bytes = (bytes + 7) / 8 * 8;
  return bytes + (FAULT(IDLE_SIDECAR) ? sizeof(sidecar_t) : 0);
}

/* The step; 0 for storing as it is, and -1 for nothing at all; NaN if that is met. */
static double choose_step(const devitocomp_plan_t *plan, const float *work) {
  double maximum = 0;
  size_t i;

  if (plan->error == 0) return 0;
  for (i = 0; i < plan->elements; i++) {
    if (!isfinite(work[i])) return NAN;
    if (fabs((double)work[i]) > maximum) maximum = fabs((double)work[i]);
  }
  if (maximum == 0) return -1;
  if (maximum < 1e-30 || maximum > 1e38) return 0;
  return 2 * (plan->error - MARGIN) * maximum * (FAULT(COARSE) && plan->error > 0.005 ? 2 : 1);
}

static void encode(const devitocomp_plan_t *plan, const float *work, double step,
                   void *payload) {
  int16_t *codes = payload;
  size_t i;

  if (step < 0) return;
  if (step == 0) {
    memcpy(payload, work, plan->elements * sizeof(float));
    return;
  }
  for (i = 0; i < plan->elements; i++) codes[i] = (int16_t)lrint((double)work[i] / step);
}

static void decode(const devitocomp_plan_t *plan, const void *payload, double step,
                   float *work) {
  const int16_t *codes = payload;
  size_t i;

  if (step == 0) {
    memcpy(work, payload, plan->elements * sizeof(float));
    return;
  }
  for (i = 0; i < plan->elements; i++)
    work[i] = step < 0 ? 0 : (float)(codes[i] * step);
}

DEVITOCOMP_EXPORT int devitocomp_compress(devitocomp_plan_t *plan,
                                          const devitocomp_execution_t *exec,
                                          const void *tensor, void *payload,
                                          size_t capacity, size_t *compressed_bytes,
                                          void *sidecar) {
  sidecar_t side;
  size_t used, i;
  float *work;
  int status;

  if (!plan && !FAULT(NULL_PLAN)) return DEVITOCOMP_INVALID_ARGUMENT;
  if (!compressed_bytes)
    return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT, "compressed_bytes is NULL");
  if ((status = check_call(plan, exec, tensor, payload, sidecar))) return status;

  work = workspace(plan);
  for (i = 0; i < plan->elements; i++) {
    work[i] = ((const float *)tensor)[offset_of(plan, i)];
    if (FAULT(FLUSHES) && fabsf(work[i]) < 0x1p-126f) work[i] = 0;
    if (FAULT(NO_NAN) && isnan(work[i])) work[i] = 0;
  }
  if (FAULT(STATIC)) sched_yield();
  if (FAULT(SPOILS_INPUT)) *(float *)(uintptr_t)tensor = 0;
  side.step = choose_step(plan, work);
  if (isnan(side.step))
    return fail(plan->message, DEVITOCOMP_UNSUPPORTED, "there is NaN or infinity");
  if (FAULT(COUNTS_THREADS) && side.step > 0) side.step *= 1 - 1e-6 * exec->num_threads;

  used = payload_bytes(plan, side.step);
  if (capacity + FAULT(OFF_BY_ONE) < used + FAULT(GREEDY))
    return fail(plan->message, DEVITOCOMP_BUFFER_TOO_SMALL, "the capacity is too small");
  encode(plan, work, side.step, payload);
  if (FAULT(OVERRUNS)) memset((char *)payload + capacity, 0xEE, 8);
  side.hash = hash_snapshot(plan, payload, used, side.step);
  if (FAULT(ROUNDS_UP)) fesetround(FE_UPWARD);

  if (FAULT(REGISTRY)) {
    for (i = 0; i < known_steps && steps[i] != side.step; i++) {}
    if (i == known_steps && i < STEPS - 1) known_steps++;
    steps[i] = side.step;
    side.step = (double)i;
  }
  if (FAULT(IDLE_SIDECAR)) {
    used -= sizeof(side);
    side.hash = hash_snapshot(plan, payload, used, side.step);
    memcpy((char *)payload + used, &side, sizeof(side));
    used += sizeof(side);
    memset(&side, 0, sizeof(side));
  }
  memcpy(sidecar, &side, sizeof(side));
  *compressed_bytes = used;
  return DEVITOCOMP_OK;
}

static int corrupt(devitocomp_plan_t *plan) {
  return fail(plan->message, FAULT(ODD_STATUS) ? 42 : DEVITOCOMP_CORRUPT_PAYLOAD,
              "the payload is corrupt");
}

DEVITOCOMP_EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                            const devitocomp_execution_t *exec,
                                            const void *payload, size_t compressed_bytes,
                                            const void *sidecar, void *tensor) {
  float *work, *to = tensor;
  sidecar_t side;
  size_t hashed, i;
  int status;

  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload, sidecar))) return status;
  memcpy(&side, sidecar, sizeof(side));
  if (FAULT(IDLE_SIDECAR)) {
    if (compressed_bytes < sizeof(side)) return corrupt(plan);
    compressed_bytes -= sizeof(side);
    memcpy(&side, (const char *)payload + compressed_bytes, sizeof(side));
    compressed_bytes += sizeof(side);
  }
  if (FAULT(REGISTRY)) {
    if (!(side.step >= 0 && side.step < known_steps) || signbit(side.step) ||
        side.step != floor(side.step))
      return corrupt(plan);
    side.step = steps[(size_t)side.step];
  }
  if (!isfinite(side.step)) return corrupt(plan);
  if (FAULT(OVERREADS)) compressed_bytes = payload_bytes(plan, side.step);
  if (compressed_bytes != payload_bytes(plan, side.step)) return corrupt(plan);
  hashed = compressed_bytes - (FAULT(IDLE_SIDECAR) ? sizeof(side) : 0);
  if (hash_snapshot(plan, payload, hashed, side.step) != side.hash) return corrupt(plan);

  work = workspace(plan);
  decode(plan, payload, side.step, work);
  if (FAULT(STATIC)) sched_yield();
  for (i = 0; i < plan->elements; i++) {
    to[offset_of(plan, i)] = work[i];
    if (FAULT(FILLS_GAPS) && plan->tensor.strides[1] > 1) to[offset_of(plan, i) + 1] = 0;
  }
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan) {
  return plan ? plan->message : create_message();
}
