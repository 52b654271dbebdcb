/*
 * lossy.c -- a provider that loses as much as it is allowed to.
 *
 * Elements are rounded to multiples of a step chosen from max|x| and the tolerance (1e-3
 * by default). A payload is a bitmap with a bit for each block of 256 elements, followed
 * by the multiples, 2 or 4 bytes each, of the blocks whose bit is set; the other blocks
 * are all zero. Step and code size are in the sidecar, without which no payload can be
 * read.
 *
 * A snapshot that cannot be kept within the tolerance that way (not finite, close to the
 * limits of its type), or would not shrink, is stored as it is. A plan whose tolerance is
 * 0, or too small for codes of 4 bytes, stores all of them so, and says it is lossless.
 */
#define BASE_NAME "lossy"
#include "base.h"

#define DEFAULT_ERROR 1e-3
#define BLOCK ((size_t)256)

/* What rounding of the arithmetic may cost, relative to max|x|, and the least tolerance
   that leaves room for it. */
#define FLOAT32_MARGIN 0x1p-22
#define FLOAT32_LEAST 0x1p-20
#define FLOAT64_MARGIN 0x1p-49
#define FLOAT64_LEAST 0x1p-30

typedef struct lossy_sidecar {
  double step;
  uint32_t code_bytes;    /* 0 for a snapshot stored as it is */
  uint32_t payload_bytes; /* modulo 2^32, to notice another payload's sidecar */
} lossy_sidecar_t;

static void provider_claims(devitocomp_limits_t *limits) {
  limits->flags = DEVITOCOMP_STRIDED | DEVITOCOMP_DETERMINISTIC |
                  DEVITOCOMP_THREAD_INDEPENDENT | DEVITOCOMP_USES_SIDECAR;
  limits->dtypes = DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32) |
                   DEVITOCOMP_BIT(DEVITOCOMP_FLOAT64);
  limits->ranks = DEVITOCOMP_BIT(1) | DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3) |
                  DEVITOCOMP_BIT(4);
}

static int is_float32(const devitocomp_plan_t *plan) {
  return plan->tensor.dtype == DEVITOCOMP_FLOAT32;
}

static int provider_setup(devitocomp_plan_t *plan) {
  double error = plan->error < 0 ? DEFAULT_ERROR : plan->error;

  plan->limits.payload_alignment = 16;
  plan->limits.sidecar_bytes = sizeof(lossy_sidecar_t);
  plan->limits.sidecar_alignment = 8;
  if (error >= (is_float32(plan) ? FLOAT32_LEAST : FLOAT64_LEAST)) {
    plan->limits.error_kind = DEVITOCOMP_ERROR_RELATIVE_MAX;
    plan->limits.error_bound = error < 1 ? error : 1;
  }
  return DEVITOCOMP_OK;
}

static double load(const devitocomp_plan_t *plan, size_t i) {
  float narrow;
  double wide;

  if (is_float32(plan)) {
    memcpy(&narrow, plan->work + i * sizeof(narrow), sizeof(narrow));
    return (double)narrow;
  }
  memcpy(&wide, plan->work + i * sizeof(wide), sizeof(wide));
  return wide;
}

static void store(devitocomp_plan_t *plan, size_t i, double wide) {
  float narrow = (float)wide;

  if (is_float32(plan))
    memcpy(plan->work + i * sizeof(narrow), &narrow, sizeof(narrow));
  else
    memcpy(plan->work + i * sizeof(wide), &wide, sizeof(wide));
}

static int32_t encode(double x, double step) {
  return (int32_t)(x / step + (x < 0 ? -0.5 : 0.5));
}

static size_t block_end(const devitocomp_plan_t *plan, size_t start) {
  return plan->elements - start < BLOCK ? plan->elements : start + BLOCK;
}

static size_t bitmap_bytes(const devitocomp_plan_t *plan) {
  return ((plan->elements + BLOCK - 1) / BLOCK + 7) / 8;
}

/* Choose step and code size for what is in plan->work. */
static lossy_sidecar_t choose(const devitocomp_plan_t *plan) {
  lossy_sidecar_t sidecar = {0, 0, 0};
  double least = is_float32(plan) ? 1e-30 : 1e-290;
  double most = is_float32(plan) ? 1e38 : 1e300;
  double maximum = 0, tolerance;
  size_t i;

  if (plan->limits.error_kind == DEVITOCOMP_ERROR_LOSSLESS) return sidecar;
  for (i = 0; i < plan->elements; i++) {
    double x = load(plan, i);
    if (x < 0) x = -x;
    if (!(x <= most)) return sidecar; /* NaN too */
    if (x > maximum) maximum = x;
  }
  if (maximum > 0 && maximum < least) return sidecar;

  tolerance = plan->limits.error_bound -
              (is_float32(plan) ? FLOAT32_MARGIN : FLOAT64_MARGIN);
  sidecar.step = maximum > 0 ? 2 * tolerance * maximum : 1;
  sidecar.code_bytes = 1 / (2 * tolerance) < 32766 ? 2 : 4;
  return sidecar;
}

static int is_present(const unsigned char *bitmap, size_t block) {
  return bitmap[block / 8] >> (block % 8) & 1;
}

static int block_is_zero(const devitocomp_plan_t *plan, size_t start, double step) {
  size_t i, end = block_end(plan, start);

  for (i = start; i < end; i++)
    if (encode(load(plan, i), step)) return 0;
  return 1;
}

static int provider_compress(devitocomp_plan_t *plan, const void *tensor, void *payload,
                             size_t capacity, size_t *compressed_bytes, void *sidecar) {
  unsigned char *bitmap = payload, *codes = bitmap + bitmap_bytes(plan);
  size_t used = bitmap_bytes(plan), start, i;
  lossy_sidecar_t chosen;

  pack(plan, tensor, plan->work);
  chosen = choose(plan);
  if (chosen.code_bytes)
    for (start = 0; start < plan->elements; start += BLOCK)
      if (!block_is_zero(plan, start, chosen.step))
        used += (block_end(plan, start) - start) * chosen.code_bytes;
  if (!chosen.code_bytes || used >= plan->bytes) {
    used = plan->bytes;
    chosen.code_bytes = 0;
    chosen.step = 0;
  }
  if (capacity < used) return too_small(plan, capacity, used);

  if (!chosen.code_bytes) {
    memcpy(payload, plan->work, used);
  } else {
    memset(bitmap, 0, bitmap_bytes(plan));
    for (start = 0; start < plan->elements; start += BLOCK) {
      size_t block = start / BLOCK, end = block_end(plan, start);
      if (block_is_zero(plan, start, chosen.step)) continue;
      bitmap[block / 8] |= (unsigned char)(1 << (block % 8));
      for (i = start; i < end; i++, codes += chosen.code_bytes) {
        int32_t code = encode(load(plan, i), chosen.step);
        int16_t half = (int16_t)code;
        if (chosen.code_bytes == 2)
          memcpy(codes, &half, sizeof(half));
        else
          memcpy(codes, &code, sizeof(code));
      }
    }
  }
  chosen.payload_bytes = (uint32_t)used;
  memcpy(sidecar, &chosen, sizeof(chosen));
  *compressed_bytes = used;
  return DEVITOCOMP_OK;
}

static int corrupt(devitocomp_plan_t *plan) {
  return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
              "payload and sidecar do not belong together");
}

static int provider_decompress(devitocomp_plan_t *plan, const void *payload,
                               size_t compressed_bytes, const void *sidecar,
                               void *tensor) {
  const unsigned char *bitmap = payload, *codes = bitmap + bitmap_bytes(plan);
  size_t expected = bitmap_bytes(plan), start, i;
  lossy_sidecar_t chosen;

  memcpy(&chosen, sidecar, sizeof(chosen));
  if (chosen.payload_bytes != (uint32_t)compressed_bytes) return corrupt(plan);
  if (!chosen.code_bytes) {
    if (compressed_bytes != plan->bytes) return corrupt(plan);
    unpack(plan, payload, tensor);
    return DEVITOCOMP_OK;
  }

  /* All that decides where to read is verified before anything is read by it. */
  if ((chosen.code_bytes != 2 && chosen.code_bytes != 4) ||
      !(chosen.step > 0 && chosen.step <= DBL_MAX) || compressed_bytes < expected)
    return corrupt(plan);
  for (start = 0; start < plan->elements; start += BLOCK)
    if (is_present(bitmap, start / BLOCK))
      expected += (block_end(plan, start) - start) * chosen.code_bytes;
  if (compressed_bytes != expected) return corrupt(plan);

  for (start = 0; start < plan->elements; start += BLOCK) {
    size_t end = block_end(plan, start);
    int present = is_present(bitmap, start / BLOCK);
    for (i = start; i < end; i++) {
      int32_t code = 0;
      int16_t half;
      if (present && chosen.code_bytes == 2) {
        memcpy(&half, codes, sizeof(half));
        code = half;
      } else if (present) {
        memcpy(&code, codes, sizeof(code));
      }
      if (present) codes += chosen.code_bytes;
      store(plan, i, code * chosen.step);
    }
  }
  unpack(plan, plan->work, tensor);
  return DEVITOCOMP_OK;
}
