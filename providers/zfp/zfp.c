/*
 * zfp.c -- a provider on libzfp.
 *
 * The tensor is cut into slabs along its slowest dimension, and each becomes a zfp stream
 * of its own: so all threads take part in both directions, which libzfp itself offers for
 * compression only. Where the cuts are depends on the tensor alone, hence the payload does
 * not depend on the threads. zfp codes blocks of 4^rank elements independently of each
 * other; as slabs are a multiple of 4 thick, cutting costs next to nothing.
 *
 * Payloads
 * --------
 * 64-bit words, little-endian:
 *
 *     magic, payload version and codec version of zfp
 *     hash of all the rest
 *     hash of dtype, rank and dims
 *     bytes of the payload
 *
 * which is all there is of a snapshot of zeros. Otherwise follow
 *
 *     for each slab, a code (16 bits: ZERO, REVERSIBLE, or a base-2 exponent, see
 *     slab.h) and the length of its stream in words (48 bits)
 *     the streams
 *
 * How the error bound is kept: slab.c.
 */
#include "slab.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "zfp streams are words of the machine, payloads are little-endian"
#endif

#define PROVIDER_VERSION "1.0.0"
#define PAYLOAD_VERSION 1
#define DEFAULT_ERROR 1e-4

/* Less than that is not worth a thread. */
#define BYTES_PER_COPY ((size_t)1 << 20)

#define ALIGNMENT 8
#define HEADER_BYTES (4 * (size_t)WORD)
#define MAGIC "DCzfp\n"
#define CODE_SHIFT 48

static const offer_t offer = {
  DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST),
  DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32) | DEVITOCOMP_BIT(DEVITOCOMP_FLOAT64),
  DEVITOCOMP_BIT(1) | DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3) | DEVITOCOMP_BIT(4)
};

static __thread char create_message[MESSAGE_BYTES];

/* What compress and decompress have in common. */
static int check_call(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      const void *tensor, const void *payload) {
  char *message = plan->message;
  int status;

  if ((status = check_execution(message, &offer, exec)) ||
      (status = check_pointer(message, "tensor", tensor, plan->traits->itemsize)))
    return status;
  return check_pointer(message, "payload", payload, ALIGNMENT);
}

/* The first word: six letters, two versions. */
static uint64_t magic_word(void) {
  unsigned char bytes[WORD];
  memcpy(bytes, MAGIC, 6);
  bytes[6] = PAYLOAD_VERSION;
  bytes[7] = (unsigned char)zfp_codec_version;
  return get_word(bytes, 0);
}

/* The second word, given the others, and the slabs' hashes unless there are none. */
static uint64_t hash_payload(const devitocomp_plan_t *plan, const unsigned char *payload,
                             int has_slabs) {
  uint64_t hash = mix(mix(get_word(payload, 0), get_word(payload, 2)),
                      get_word(payload, 3));
  ptrdiff_t i;

  for (i = 0; has_slabs && i < plan->slabs; i++) {
    hash = mix(hash, get_word(payload + HEADER_BYTES, (size_t)i));
    hash = mix(hash, plan->slab[i].hash);
  }
  return hash;
}

/* ---- Slabs in parallel ------------------------------------------------------------- */

/* The first failure, if any, described. */
static int slabs_status(devitocomp_plan_t *plan, const char *what) {
  ptrdiff_t i;

  for (i = 0; i < plan->slabs; i++)
    switch (plan->slab[i].status) {
    case DEVITOCOMP_OK: break;
    case DEVITOCOMP_CORRUPT_PAYLOAD:
      return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                  "libzfp does not find the end of a stream: the payload is damaged, or "
                  "of a libzfp with other compile-time options");
    default:
      return fail(plan->message, DEVITOCOMP_PROVIDER_ERROR, "libzfp cannot %s", what);
    }
  return DEVITOCOMP_OK;
}

static int ensure_workspace(devitocomp_plan_t *plan) {
  size_t slabs = (size_t)plan->slabs;

  if (!plan->work) plan->work = malloc(slabs * plan->slab_bytes);
  if (!plan->exponents && plan->error > 0)
    plan->exponents = malloc(slabs * plan->slab_blocks * sizeof(*plan->exponents));
  if (!plan->work || (!plan->exponents && plan->error > 0))
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY,
                "no memory for a workspace of %zu bytes", slabs * plan->slab_bytes);
  return DEVITOCOMP_OK;
}

static int thread_index(void) {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

/* What to do to all slabs, and with what. */
typedef struct work {
  enum { SCAN, COMPRESS, DECOMPRESS } what;
  const method_t *method;       /* COMPRESS */
  const unsigned char *payload; /* DECOMPRESS */
  char *tensor;                 /* written by DECOMPRESS only */
} work_t;

static int work_on_slabs(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                         const work_t *work) {
  int threads = count_threads(exec, (size_t)plan->slabs);

  if (!ensure_scratch(plan, threads))
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY,
                "no memory for libzfp and streams of %zu bytes, on %d threads",
                plan->slab_bytes, threads);
  #pragma omp parallel num_threads(threads)
  {
    scratch_t *scratch = plan->scratch + thread_index();
    fenv_t environment;
    ptrdiff_t i;

    set_environment(&environment);
    #pragma omp for schedule(dynamic) nowait
    for (i = 0; i < plan->slabs; i++)
      if (work->what == SCAN)
        scan_slab(plan, scratch, i, work->tensor);
      else if (work->what == COMPRESS)
        compress_slab(plan, scratch, i, work->tensor, work->method);
      else
        decompress_slab(plan, scratch, i, work->payload, work->tensor);
    restore_environment(&environment);
  }
  return slabs_status(plan, work->what == DECOMPRESS ? "decompress" : "compress");
}

static void pack_slab(const devitocomp_plan_t *plan, ptrdiff_t i, unsigned char *payload) {
  memcpy(payload + plan->slab[i].offset, plan->work + (size_t)i * plan->slab_bytes,
         plan->slab[i].bytes);
}

/* From the workspace to the payload. A team of one thread would not be free either. */
static void pack_slabs(const devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                       unsigned char *payload, size_t total) {
  int threads = count_threads(exec, total / BYTES_PER_COPY);
  ptrdiff_t i;

  if (threads == 1) {
    for (i = 0; i < plan->slabs; i++) pack_slab(plan, i, payload);
    return;
  }
  #pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (i = 0; i < plan->slabs; i++) pack_slab(plan, i, payload);
}

/* ---- Decompression ----------------------------------------------------------------- */

/* Read the table, and see that it makes sense for this plan. */
static int read_slabs(devitocomp_plan_t *plan, const unsigned char *payload,
                      size_t bytes) {
  const char *nonsense = "the payload is damaged: its table of slabs makes no sense";
  size_t offset = HEADER_BYTES + (size_t)plan->slabs * WORD;
  ptrdiff_t i;

  if (bytes < offset)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD, "%s", nonsense);
  for (i = 0; i < plan->slabs; i++) {
    slab_t *slab = plan->slab + i;
    uint64_t word = get_word(payload + HEADER_BYTES, (size_t)i);
    uint64_t words = word & ((UINT64_C(1) << CODE_SHIFT) - 1);

    slab->code = (int)(word >> CODE_SHIFT);
    slab->offset = offset;
    if (words > (bytes - offset) / WORD || words > plan->slab_bytes / WORD ||
        (slab->code == ZERO) != !words ||
        (slab->code > REVERSIBLE && (slab->code < MIN_MINEXP + CODE_BIAS ||
                                     slab->code > MAX_MINEXP + CODE_BIAS)))
      return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD, "%s", nonsense);
    slab->bytes = (size_t)words * WORD;
    offset += slab->bytes;
  }
  if (offset != bytes)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD, "%s", nonsense);
  return DEVITOCOMP_OK;
}

/* All that can be said without looking at the slabs. */
static int check_header(devitocomp_plan_t *plan, const unsigned char *payload,
                        size_t bytes) {
  unsigned char expected[WORD];

  put_word(expected, 0, magic_word());
  if (bytes < HEADER_BYTES || memcmp(payload, expected, 6))
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload, of %zu bytes, is not of the zfp provider", bytes);
  if (payload[6] != expected[6] || payload[7] != expected[7])
    return fail(plan->message, DEVITOCOMP_VERSION_MISMATCH,
                "the payload is of version %d and zfp codec %d, this provider of version "
                "%d and zfp codec %d", payload[6], payload[7], expected[6], expected[7]);
  if (get_word(payload, 3) != bytes)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload has %zu bytes, but was written with %" PRIu64, bytes,
                get_word(payload, 3));
  if (get_word(payload, 2) != plan->tag)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload is of a tensor of another dtype or shape, or damaged");
  return DEVITOCOMP_OK;
}

static void hash_slab(devitocomp_plan_t *plan, ptrdiff_t i, const unsigned char *payload) {
  slab_t *slab = plan->slab + i;

  slab->hash = slab->code == ZERO ? 0 : hash_words(payload + slab->offset, slab->bytes);
}

static void hash_slabs(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                       const unsigned char *payload, size_t bytes) {
  int threads = count_threads(exec, bytes / BYTES_PER_COPY);
  ptrdiff_t i;

  if (threads == 1) {
    for (i = 0; i < plan->slabs; i++) hash_slab(plan, i, payload);
    return;
  }
  #pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (i = 0; i < plan->slabs; i++) hash_slab(plan, i, payload);
}

/* ---- The interface ----------------------------------------------------------------- */

DEVITOCOMP_EXPORT uint32_t devitocomp_abi_version(void) {
  return DEVITOCOMP_ABI_VERSION;
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_name(void) {
  return "zfp";
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_version(void) {
  return PROVIDER_VERSION " (libzfp " ZFP_VERSION_STRING ")";
}

static int fill_plan(devitocomp_plan_t *plan) {
  if (!cut_into_slabs(plan))
    return fail(create_message, DEVITOCOMP_PROVIDER_ERROR,
                "libzfp does not know how much room it needs, or has no memory");

  plan->max_bytes = HEADER_BYTES + (size_t)plan->slabs * (WORD + plan->slab_bytes);
  if (!(plan->slab = calloc((size_t)plan->slabs, sizeof(*plan->slab))))
    return fail(create_message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for %td slabs",
                plan->slabs);
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_plan_create(uint32_t abi_version,
                                             const devitocomp_tensor_t *tensor,
                                             const devitocomp_execution_t *exec,
                                             const char *options,
                                             devitocomp_plan_t **plan) {
  devitocomp_plan_t *created;
  double error = 0;
  int status;

  if (plan) *plan = NULL;
  /* First of all: with another version, no argument means what it seems to. */
  if ((status = check_abi_version(create_message, "zfp", abi_version))) return status;
  if (!plan) return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT, "plan is NULL");
  if ((status = check_tensor(create_message, &offer, tensor)) ||
      (status = check_execution(create_message, &offer, exec)) ||
      (status = parse_tolerance(create_message, options, DEFAULT_ERROR, &error)))
    return status;
  if (zfp_codec_version != ZFP_CODEC)
    return fail(create_message, DEVITOCOMP_PROVIDER_ERROR,
                "libzfp has codec version %u, but the provider was compiled for %d",
                zfp_codec_version, ZFP_CODEC);

  if (!(created = calloc(1, sizeof(*created))))
    return fail(create_message, DEVITOCOMP_OUT_OF_MEMORY,
                "no memory for a plan of %zu bytes", sizeof(*created));
  memcpy(&created->tensor, tensor, sizeof(created->tensor));
  created->traits = tensor->dtype == DEVITOCOMP_FLOAT32 ? &float32 : &float64;
  /* No error is larger than the maximum, and so small ones cannot be made use of. */
  created->error = error < 1 ? error : 1;
  if (error < ldexp(1, created->traits->hopeless - 1)) created->error = 0;
  created->tag = tag_tensor(tensor);
  if ((status = fill_plan(created))) {
    devitocomp_plan_destroy(created);
    return status;
  }
  *plan = created;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan) {
  int i;

  if (!plan) return;
  for (i = 0; i < plan->threads; i++) close_scratch(plan->scratch + i);
  free(plan->scratch);
  free(plan->slab);
  free(plan->work);
  free(plan->exponents);
  free(plan);
}

DEVITOCOMP_EXPORT int devitocomp_plan_limits(const devitocomp_plan_t *plan,
                                             devitocomp_limits_t *limits) {
  devitocomp_limits_t filled;

  memset(&filled, 0, sizeof(filled));
  filled.flags = DEVITOCOMP_STRIDED | DEVITOCOMP_DETERMINISTIC |
                 DEVITOCOMP_THREAD_INDEPENDENT | DEVITOCOMP_DETECTS_CORRUPTION;
  filled.execution_kinds = offer.kinds;
  filled.portable_kinds = offer.kinds;
  filled.dtypes = offer.dtypes;
  filled.ranks = offer.ranks;
  filled.payload_version = PAYLOAD_VERSION;
  if (plan) {
    filled.error_kind = plan->error > 0 ? DEVITOCOMP_ERROR_RELATIVE_MAX
                                        : DEVITOCOMP_ERROR_LOSSLESS;
    filled.error_bound = plan->error;
    filled.max_compressed_bytes = plan->max_bytes;
    filled.payload_alignment = ALIGNMENT;
    filled.sidecar_alignment = 1;
  }
  return hand_out_limits(&filled, limits);
}

DEVITOCOMP_EXPORT int devitocomp_compress(devitocomp_plan_t *plan,
                                          const devitocomp_execution_t *exec,
                                          const void *tensor, void *payload,
                                          size_t capacity, size_t *compressed_bytes,
                                          void *sidecar) {
  size_t total = HEADER_BYTES;
  uint64_t maximum = 0;
  fenv_t environment;
  method_t method;
  work_t work = {SCAN, &method, NULL, (char *)tensor};
  int status, is_zero = 1;
  ptrdiff_t i;

  (void)sidecar;
  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload))) return status;
  if (!compressed_bytes)
    return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT, "compressed_bytes is NULL");
  if ((status = ensure_workspace(plan))) return status;

  if (plan->error > 0) {
    if ((status = work_on_slabs(plan, exec, &work))) return status;
    for (i = 0; i < plan->slabs; i++)
      if (plan->slab[i].maximum > maximum) maximum = plan->slab[i].maximum;
    if (!bits_are_finite(plan->tensor.dtype, maximum))
      return refuse_not_finite(plan->message, &plan->tensor, tensor);
  }
  set_environment(&environment);
  method = choose_method(plan, maximum);
  restore_environment(&environment);
  work.what = COMPRESS;
  if ((status = work_on_slabs(plan, exec, &work))) return status;

  for (i = 0; i < plan->slabs; i++) is_zero &= plan->slab[i].code == ZERO;
  if (!is_zero) total += (size_t)plan->slabs * WORD;
  for (i = 0; i < plan->slabs; i++) {
    plan->slab[i].offset = total;
    total += plan->slab[i].bytes;
  }
  if (capacity < total)
    return fail(plan->message, DEVITOCOMP_BUFFER_TOO_SMALL,
                "the capacity is %zu bytes, the snapshot needs %zu", capacity, total);

  if (!is_zero) {
    for (i = 0; i < plan->slabs; i++)
      put_word((unsigned char *)payload + HEADER_BYTES, (size_t)i,
               (uint64_t)plan->slab[i].code << CODE_SHIFT | plan->slab[i].bytes / WORD);
    pack_slabs(plan, exec, payload, total);
  }
  put_word(payload, 0, magic_word());
  put_word(payload, 2, plan->tag);
  put_word(payload, 3, total);
  put_word(payload, 1, hash_payload(plan, payload, !is_zero));
  *compressed_bytes = total;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                            const devitocomp_execution_t *exec,
                                            const void *payload, size_t compressed_bytes,
                                            const void *sidecar, void *tensor) {
  int has_slabs = compressed_bytes > HEADER_BYTES, status;
  work_t work = {DECOMPRESS, NULL, payload, tensor};
  ptrdiff_t i;

  (void)sidecar;
  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload)) ||
      (status = check_header(plan, payload, compressed_bytes)))
    return status;
  if (has_slabs) {
    if ((status = read_slabs(plan, payload, compressed_bytes))) return status;
    hash_slabs(plan, exec, payload, compressed_bytes);
  } else {
    for (i = 0; i < plan->slabs; i++) plan->slab[i].code = ZERO;
  }
  if (get_word(payload, 1) != hash_payload(plan, payload, has_slabs))
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload is damaged: its checksum is wrong");
  return work_on_slabs(plan, exec, &work);
}

DEVITOCOMP_EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan) {
  return plan ? plan->message : create_message;
}
