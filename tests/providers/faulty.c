/*
 * faulty.c -- a copying provider that misbehaves on demand.
 *
 * The environment variable DEVITOCOMP_FAULT, read at each plan_create, says how; unset
 * or empty, nothing goes wrong. K counts the compress (or decompress) calls of each plan
 * from 0.
 *
 *     plan           plan_create returns PROVIDER_ERROR
 *     limitsfail     plan_limits returns PROVIDER_ERROR
 *     align0, align3, alignhuge
 *                    the payload alignment is 0, 3, 2^40
 *     maxhuge        max_compressed_bytes is 2^63
 *     sidecarhuge    sidecar_bytes is 2^62
 *     compress:K     call K returns PROVIDER_ERROR
 *     decompress:K   likewise
 *     status:K       compress call K returns a status that does not exist, 99
 *     overlong:K     compress call K reports more bytes than the capacity
 *     zerobytes:K    compress call K reports 0 bytes
 *     overrun:K      compress call K writes 64 bytes beyond the capacity
 *     nomessage      compress call 0 returns PROVIDER_ERROR, devitocomp_message NULL
 */
#define BASE_NAME "faulty"
#define BASE_PLAN_FIELDS \
  int fault; \
  long fault_call, compress_calls, decompress_calls;
#define BASE_LIMITS_STATUS(plan) \
  ((plan)->fault == LIMITSFAIL ? DEVITOCOMP_PROVIDER_ERROR : DEVITOCOMP_OK)
#define BASE_MESSAGE(plan) ((plan)->fault == NOMESSAGE ? NULL : (plan)->message)

enum fault {
  NONE,
  PLAN,
  LIMITSFAIL,
  ALIGN0,
  ALIGN3,
  ALIGNHUGE,
  MAXHUGE,
  SIDECARHUGE,
  NOMESSAGE,
  /* The faults of one call. */
  COMPRESS,
  DECOMPRESS,
  STATUS,
  OVERLONG,
  ZEROBYTES,
  OVERRUN
};

#include "base.h"

static const char *const fault_names[] = {
  "",        "plan",     "limitsfail",  "align0",    "align3",
  "alignhuge", "maxhuge", "sidecarhuge", "nomessage", "compress",
  "decompress", "status", "overlong",    "zerobytes", "overrun"};

#define OVERRUN_BYTES 64
#define UNLISTED_STATUS 99

static void provider_claims(devitocomp_limits_t *limits) {
  limits->flags = DEVITOCOMP_DETERMINISTIC | DEVITOCOMP_THREAD_INDEPENDENT |
                  DEVITOCOMP_USES_SIDECAR;
  limits->dtypes = DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32);
  limits->ranks = DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3);
}

/* A name that is misspelt must not let a test pass for want of a fault. */
static int parse_fault(devitocomp_plan_t *plan) {
  const char *text = getenv("DEVITOCOMP_FAULT");
  size_t length, i;
  char *end;

  if (!text) text = "";
  length = strcspn(text, ":");
  for (i = 0; i < sizeof(fault_names) / sizeof(*fault_names); i++) {
    if (strlen(fault_names[i]) != length || strncmp(fault_names[i], text, length))
      continue;
    if (i < COMPRESS ? text[length] != '\0' : text[length] != ':') break;
    plan->fault = (int)i;
    if (i >= COMPRESS) {
      plan->fault_call = strtol(text + length + 1, &end, 10);
      if (end == text + length + 1 || *end || plan->fault_call < 0) break;
    }
    return DEVITOCOMP_OK;
  }
  return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT,
              "DEVITOCOMP_FAULT is \"%.100s\", which is no fault of this provider", text);
}

static int injected(devitocomp_plan_t *plan, int status) {
  return fail(plan->message, status, "injected failure");
}

static int provider_setup(devitocomp_plan_t *plan) {
  devitocomp_limits_t *limits = &plan->limits;
  int status;

  limits->payload_alignment = 8;
  limits->sidecar_bytes = sizeof(uint64_t);
  limits->sidecar_alignment = 8;
  if ((status = parse_fault(plan))) return status;
  if (plan->fault == PLAN) return injected(plan, DEVITOCOMP_PROVIDER_ERROR);
  if (plan->fault == LIMITSFAIL) injected(plan, DEVITOCOMP_PROVIDER_ERROR);
  if (plan->fault == ALIGN0) limits->payload_alignment = 0;
  if (plan->fault == ALIGN3) limits->payload_alignment = 3;
  if (plan->fault == ALIGNHUGE) limits->payload_alignment = UINT64_C(1) << 40;
  if (plan->fault == MAXHUGE) limits->max_compressed_bytes = UINT64_C(1) << 63;
  if (plan->fault == SIDECARHUGE) limits->sidecar_bytes = UINT64_C(1) << 62;
  return DEVITOCOMP_OK;
}

static uint64_t tag(const devitocomp_plan_t *plan) {
  return UINT64_C(0xfa017) << 32 ^ plan->bytes;
}

static int provider_compress(devitocomp_plan_t *plan, const void *tensor, void *payload,
                             size_t capacity, size_t *compressed_bytes, void *sidecar) {
  long call = plan->compress_calls++;
  int fault = plan->fault >= COMPRESS && call != plan->fault_call ? NONE : plan->fault;
  uint64_t word = tag(plan);

  if (fault == COMPRESS || (fault == NOMESSAGE && call == 0))
    return injected(plan, DEVITOCOMP_PROVIDER_ERROR);
  if (fault == STATUS) return injected(plan, UNLISTED_STATUS);
  if (capacity < plan->bytes) return too_small(plan, capacity, plan->bytes);

  pack(plan, tensor, payload);
  memcpy(sidecar, &word, sizeof(word));
  *compressed_bytes = plan->bytes;
  if (fault == OVERLONG) *compressed_bytes = capacity + OVERRUN_BYTES;
  if (fault == ZEROBYTES) *compressed_bytes = 0;
  if (fault == OVERRUN) memset((char *)payload + capacity, 0xee, OVERRUN_BYTES);
  return DEVITOCOMP_OK;
}

static int provider_decompress(devitocomp_plan_t *plan, const void *payload,
                               size_t compressed_bytes, const void *sidecar,
                               void *tensor) {
  long call = plan->decompress_calls++;
  uint64_t word;

  if (plan->fault == DECOMPRESS && call == plan->fault_call)
    return injected(plan, DEVITOCOMP_PROVIDER_ERROR);
  memcpy(&word, sidecar, sizeof(word));
  if (compressed_bytes != plan->bytes || word != tag(plan))
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "payload and sidecar are not of this tensor");
  unpack(plan, payload, tensor);
  return DEVITOCOMP_OK;
}
