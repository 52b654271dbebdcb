/*
 * bitcomp.c -- a provider on NVIDIA's Bitcomp.
 *
 * Bitcomp takes consecutive numbers, so the tensor, in C order, is cut into slabs of
 * consecutive elements, each a stream of its own. On the host, threads share them.
 *
 * Payloads
 * --------
 * 64-bit words, little-endian:
 *
 *     magic, payload version and major version of nvCOMP
 *     hash of the rest of the header, and of the table
 *     hash of dtype, rank and dims
 *     bytes of the payload
 *     elements of a slab, but the last
 *
 * which is all there is of a snapshot of zeros. Otherwise follow
 *
 *     the table: for each slab, a code (8 bits: ZERO, LOSSLESS, LOSSY) and the bytes of
 *         its stream; the hash of its stream
 *     the streams, each filled up to a whole word with zeros
 *
 * Error bounds
 * ------------
 * Bitcomp divides by delta, rounds, and codes the integers. Its delta is a power of two,
 * or rounded down to one; the error is delta / 2 at most. So delta here is 2^n with
 * 2^(n-1) <= error * max|x|: dividing, rounding and multiplying are all exact then, and
 * integers that a number of the type cannot hold do not arise, being rounded from one.
 *
 * That leaves the limits of the type: subnormal deltas (lossless then), products that
 * overflow, quotients beyond the integers that Bitcomp has (which it says it handles).
 * Wherever these are near, slabs are decompressed and compared, or made lossless.
 */
#include "plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <nvcomp/version.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Bitcomp streams are words of the machine, payloads are little-endian"
#endif

#define PROVIDER_VERSION "1.0.0"
#define PAYLOAD_VERSION 2
#define DEFAULT_ERROR 1e-4

#define ALIGNMENT 8
#define MAGIC "DCbitc"

#define TEXT(value) #value
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

#define HOST DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST)
#ifdef BITCOMP_CUDA
#define KINDS (HOST | DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_CUDA))
#else
#define KINDS HOST
#endif

static const offer_t offer = {
  KINDS, DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32) | DEVITOCOMP_BIT(DEVITOCOMP_FLOAT64),
  DEVITOCOMP_BIT(1) | DEVITOCOMP_BIT(2) | DEVITOCOMP_BIT(3) | DEVITOCOMP_BIT(4)
};

static __thread char create_message[MESSAGE_BYTES];

static const place_t *place_of(const devitocomp_plan_t *plan) {
#ifdef BITCOMP_CUDA
  if (plan->kind == DEVITOCOMP_EXECUTION_CUDA) return &cuda_place;
#else
  (void)plan;
#endif
  return &host_place;
}

/* ---- Slabs ------------------------------------------------------------------------- */

int64_t slab_start(const devitocomp_plan_t *plan, ptrdiff_t index) {
  return index * plan->slab_elements;
}

int64_t slab_count(const devitocomp_plan_t *plan, ptrdiff_t index) {
  int64_t left = plan->elements - slab_start(plan, index);
  return left < plan->slab_elements ? left : plan->slab_elements;
}

size_t whole_words(size_t bytes) {
  return (bytes + WORD - 1) / WORD * WORD;
}

size_t stream_room(const devitocomp_plan_t *plan) {
  return whole_words(bitcompMaxBuflen((size_t)slab_count(plan, 0) * plan->itemsize));
}

bitcompResult_t open_handle(const devitocomp_plan_t *plan, int64_t count, code_t code,
                            bitcompHandle_t *handle) {
  bitcompDataType_t lossy = plan->tensor.dtype == DEVITOCOMP_FLOAT32 ? BITCOMP_FP32_DATA
                                                                     : BITCOMP_FP64_DATA;
  bitcompDataType_t lossless = plan->tensor.dtype == DEVITOCOMP_FLOAT32
                                 ? BITCOMP_UNSIGNED_32BIT
                                 : BITCOMP_UNSIGNED_64BIT;

  return bitcompCreatePlan(handle, (size_t)count * plan->itemsize,
                           code == LOSSY ? lossy : lossless,
                           code == LOSSY ? BITCOMP_LOSSY_FP_TO_SIGNED : BITCOMP_LOSSLESS,
                           BITCOMP_DEFAULT_ALGO);
}

const char *result_name(bitcompResult_t result) {
  switch (result) {
  case BITCOMP_SUCCESS: return "success";
  case BITCOMP_INVALID_PARAMETER: return "invalid parameter";
  case BITCOMP_INVALID_COMPRESSED_DATA: return "invalid compressed data";
  case BITCOMP_INVALID_ALIGNMENT: return "invalid alignment";
  case BITCOMP_INVALID_INPUT_LENGTH: return "invalid input length";
  case BITCOMP_CUDA_KERNEL_LAUNCH_ERROR: return "CUDA kernel launch error";
  case BITCOMP_CUDA_API_ERROR: return "CUDA API error";
  default: return "unknown error";
  }
}

/* Cut the tensor into slabs of so many elements, and make room to keep track of them. */
static int cut(devitocomp_plan_t *plan, int64_t slab_elements, char *message) {
  slab_t *slab;

  plan->slab_elements = slab_elements;
  plan->slabs = (ptrdiff_t)((plan->elements - 1) / slab_elements + 1);
  if (plan->slabs <= plan->slab_room) return DEVITOCOMP_OK;
  if (!(slab = realloc(plan->slab, (size_t)plan->slabs * sizeof(*slab))))
    return fail(message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for %td slabs",
                plan->slabs);
  plan->slab = slab;
  plan->slab_room = plan->slabs;
  return DEVITOCOMP_OK;
}

/* As this plan compresses. */
static int64_t own_slab_elements(const devitocomp_plan_t *plan) {
  int64_t elements = place_of(plan)->slab_bytes / (int64_t)plan->itemsize;
  return elements < plan->elements ? elements : plan->elements;
}

/* ---- Methods ----------------------------------------------------------------------- */

/*
 * What depends on the type. Exponents are in the sense of frexp: |x| < 2^exponent. At
 * `hopeless` below max|x|, delta is the distance between the largest numbers, and nothing
 * is gained by losing anything; quotients are 24 (53) bits long at most, to which Bitcomp
 * has 32 (64).
 */
static method_t choose_method(const devitocomp_plan_t *plan, uint64_t maximum) {
  int is_float32 = plan->tensor.dtype == DEVITOCOMP_FLOAT32;
  int hopeless = is_float32 ? -24 : -53;
  int least = is_float32 ? -125 : -1021, most = is_float32 ? 127 : 1023;
  int margin = is_float32 ? 100 : 900;
  method_t method = {LOSSLESS, 1, 0, 0};
  double value = value_of_bits(plan->tensor.dtype, maximum);
  int exponent, delta;

  method.tolerance = plan->error * value;
  if (plan->error == 0 || method.tolerance == 0) return method;
  frexp(value, &exponent);
  frexp(method.tolerance, &delta);
  if (delta - exponent <= hopeless || delta < least || delta > most) return method;
  method.code = LOSSY;
  method.delta = ldexp(1, delta);
  method.safe = delta >= -margin && exponent <= margin;
  return method;
}

/* ---- Payloads ---------------------------------------------------------------------- */

static uint64_t magic_word(void) {
  unsigned char bytes[WORD];
  memcpy(bytes, MAGIC, 6);
  bytes[6] = PAYLOAD_VERSION;
  bytes[7] = NVCOMP_VER_MAJOR;
  return get_word(bytes, 0);
}

void place_slab(devitocomp_plan_t *plan) {
  slab_t *slab = plan->slab + plan->placed++;

  slab->offset = plan->end;
  plan->end += whole_words(slab->bytes);
}

int refuse_damaged(devitocomp_plan_t *plan, ptrdiff_t index) {
  return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
              "the payload is damaged: the checksum of slab %td of %td is wrong",
              index + 1, plan->slabs);
}

static size_t table_words(const devitocomp_plan_t *plan) {
  return (size_t)plan->slabs * ENTRY_WORDS;
}

/* Of header and table, without the hash itself. */
static uint64_t hash_words_of(const uint64_t *words, size_t count) {
  uint64_t hash = mix(0, words[0]);
  size_t i;

  for (i = 2; i < count; i++) hash = mix(hash, words[i]);
  return hash;
}

/* The header of a payload that is now of so many bytes. */
static int check_header(devitocomp_plan_t *plan, const uint64_t *header, size_t bytes) {
  unsigned char found[WORD], expected[WORD];

  put_word(found, 0, header[0]);
  put_word(expected, 0, magic_word());
  if (memcmp(found, expected, 6))
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload, of %zu bytes, is not of the bitcomp provider", bytes);
  if (found[6] != expected[6] || found[7] != expected[7])
    return fail(plan->message, DEVITOCOMP_VERSION_MISMATCH,
                "the payload is of version %d and nvCOMP %d, this provider of version %d "
                "and nvCOMP %d", found[6], found[7], expected[6], expected[7]);
  if (header[3] != bytes)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload has %zu bytes, but was written with %" PRIu64, bytes,
                header[3]);
  if (header[2] != plan->tag)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload is of a tensor of another dtype or shape, or damaged");
  if (bytes % WORD || header[4] < 1 || header[4] > (uint64_t)plan->elements ||
      (bytes > HEADER_BYTES &&
       ((uint64_t)plan->elements - 1) / header[4] >=
         (bytes - HEADER_BYTES) / (ENTRY_WORDS * WORD)))
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload is damaged: its slabs do not fit in");
  return DEVITOCOMP_OK;
}

/* The table of a payload, whose hash is right. */
static int read_table(devitocomp_plan_t *plan, const uint64_t *table, size_t bytes) {
  size_t offset = HEADER_BYTES + table_words(plan) * WORD, room = stream_room(plan);
  ptrdiff_t i;

  for (i = 0; i < plan->slabs; i++, table += ENTRY_WORDS) {
    slab_t *slab = plan->slab + i;
    uint64_t code = table[0] >> CODE_SHIFT;
    uint64_t length = table[0] & ((UINT64_C(1) << CODE_SHIFT) - 1);

    if (code > LOSSY || (code == ZERO) != !length || length > room ||
        whole_words((size_t)length) > bytes - offset)
      return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                  "the payload is damaged: its table of slabs makes no sense");
    slab->code = (code_t)code;
    slab->bytes = (size_t)length;
    slab->hash = table[1];
    slab->offset = offset;
    offset += whole_words(slab->bytes);
  }
  if (offset != bytes)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload is damaged: its slabs are of another length");
  return DEVITOCOMP_OK;
}

/* Find out all about a payload, and that header and table are intact. */
static int verify(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                  const void *payload, size_t bytes) {
  const place_t *place = place_of(plan);
  uint64_t header[HEADER_WORDS], *words;
  size_t count = HEADER_WORDS;
  ptrdiff_t i;
  int status;

  if (bytes < HEADER_BYTES)
    return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                "the payload has %zu bytes, less than the %zu of its header", bytes,
                HEADER_BYTES);
  if ((status = place->read(plan, exec, payload, 0, header, HEADER_WORDS)) ||
      (status = check_header(plan, header, bytes)) ||
      (status = cut(plan, (int64_t)header[4], plan->message)))
    return status;

  if (bytes > HEADER_BYTES) count += table_words(plan);
  if (!(words = malloc(count * sizeof(*words))))
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for a table");
  status = place->read(plan, exec, payload, 0, words, count);
  if (!status && words[1] != hash_words_of(words, count))
    status = fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD,
                  "the payload is damaged: the checksum of its header is wrong");
  for (i = 0; i < plan->slabs; i++) plan->slab[i].code = ZERO;
  if (!status && bytes > HEADER_BYTES)
    status = read_table(plan, words + HEADER_WORDS, bytes);
  free(words);
  return status;
}

/* ---- The interface ----------------------------------------------------------------- */

DEVITOCOMP_EXPORT uint32_t devitocomp_abi_version(void) {
  return DEVITOCOMP_ABI_VERSION;
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_name(void) {
  return "bitcomp";
}

DEVITOCOMP_EXPORT const char *devitocomp_provider_version(void) {
  return PROVIDER_VERSION " (nvCOMP " VERSION(NVCOMP_VER_MAJOR, NVCOMP_VER_MINOR,
                                              NVCOMP_VER_PATCH) ")";
}

static int is_contiguous(const devitocomp_tensor_t *tensor) {
  int64_t stride = 1;
  uint32_t i;

  for (i = tensor->rank; i-- > 0;) {
    if (tensor->dims[i] > 1 && tensor->strides[i] != stride) return 0;
    stride *= tensor->dims[i];
  }
  return 1;
}

DEVITOCOMP_EXPORT int devitocomp_plan_create(uint32_t abi_version,
                                             const devitocomp_tensor_t *tensor,
                                             const devitocomp_execution_t *exec,
                                             const char *options,
                                             devitocomp_plan_t **plan) {
  devitocomp_plan_t *created;
  double error = 0;
  uint32_t i;
  int status;

  if (plan) *plan = NULL;
  /* First of all: with another version, no argument means what it seems to. */
  if ((status = check_abi_version(create_message, "bitcomp", abi_version))) return status;
  if (!plan) return fail(create_message, DEVITOCOMP_INVALID_ARGUMENT, "plan is NULL");
  if ((status = check_tensor(create_message, &offer, tensor)) ||
      (status = check_execution(create_message, &offer, exec)) ||
      (status = parse_tolerance(create_message, options, DEFAULT_ERROR, &error)))
    return status;

  if (!(created = calloc(1, sizeof(*created))))
    return fail(create_message, DEVITOCOMP_OUT_OF_MEMORY,
                "no memory for a plan of %zu bytes", sizeof(*created));
  memcpy(&created->tensor, tensor, sizeof(created->tensor));
  created->kind = exec->kind;
  created->itemsize = size_of_dtype(tensor->dtype);
  created->elements = 1;
  for (i = 0; i < tensor->rank; i++) created->elements *= tensor->dims[i];
  created->contiguous = is_contiguous(tensor);
  created->tag = tag_tensor(tensor);
  /* No error is larger than the maximum, and so small ones cannot be made use of. */
  created->error = error < 1 ? error : 1;
  if (error < (tensor->dtype == DEVITOCOMP_FLOAT32 ? 0x1p-25 : 0x1p-54))
    created->error = 0;
  if ((status = cut(created, own_slab_elements(created), create_message)) ||
      (status = place_of(created)->create(created, create_message))) {
    devitocomp_plan_destroy(created);
    return status;
  }
  *plan = created;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan) {
  if (!plan) return;
  place_of(plan)->destroy(plan);
  free(plan->slab);
  free(plan);
}

/* What a snapshot takes at most. */
static uint64_t max_bytes(const devitocomp_plan_t *plan) {
  uint64_t slab = (uint64_t)own_slab_elements(plan);
  uint64_t others = ((uint64_t)plan->elements - 1) / slab;
  uint64_t last = (uint64_t)plan->elements - others * slab;

  return HEADER_BYTES + (others + 1) * ENTRY_WORDS * WORD +
         others * whole_words(bitcompMaxBuflen((size_t)slab * plan->itemsize)) +
         whole_words(bitcompMaxBuflen((size_t)last * plan->itemsize));
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
    filled.max_compressed_bytes = max_bytes(plan);
    filled.payload_alignment = ALIGNMENT;
    filled.sidecar_alignment = 1;
  }
  return hand_out_limits(&filled, limits);
}

/* What compress and decompress have in common. */
static int check_call(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                      const void *tensor, const void *payload) {
  char *message = plan->message;
  int status;

  if ((status = check_execution(message, &offer, exec))) return status;
  if (exec->kind != plan->kind)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "execution kind %" PRIu32 " is not %" PRIu32 ", that of the plan",
                exec->kind, plan->kind);
  if ((status = check_pointer(message, "tensor", tensor, plan->itemsize))) return status;
  return check_pointer(message, "payload", payload, ALIGNMENT);
}

/* Header and table of what has been compressed. */
static void describe(const devitocomp_plan_t *plan, uint64_t *words, size_t count) {
  size_t i;

  words[0] = magic_word();
  words[2] = plan->tag;
  words[3] = plan->end;
  words[4] = (uint64_t)plan->slab_elements;
  for (i = HEADER_WORDS; i < count; i += ENTRY_WORDS) {
    const slab_t *slab = plan->slab + (i - HEADER_WORDS) / ENTRY_WORDS;
    words[i] = (uint64_t)slab->code << CODE_SHIFT | slab->bytes;
    words[i + 1] = slab->hash;
  }
  words[1] = hash_words_of(words, count);
}

/* Write all that has been compressed, if there is room for it. */
static int pack(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                void *payload, size_t capacity, size_t count) {
  uint64_t *words;
  int status;

  if (capacity < plan->end)
    return fail(plan->message, DEVITOCOMP_BUFFER_TOO_SMALL,
                "the capacity is %zu bytes, the snapshot needs %zu", capacity, plan->end);
  if (!(words = malloc(count * sizeof(*words))))
    return fail(plan->message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for a table");
  describe(plan, words, count);
  status = place_of(plan)->pack(plan, exec, payload, words, count);
  free(words);
  return status;
}

DEVITOCOMP_EXPORT int devitocomp_compress(devitocomp_plan_t *plan,
                                          const devitocomp_execution_t *exec,
                                          const void *tensor, void *payload,
                                          size_t capacity, size_t *compressed_bytes,
                                          void *sidecar) {
  const place_t *place;
  uint64_t maximum = 0;
  size_t count = HEADER_WORDS;
  fenv_t environment;
  method_t method;
  ptrdiff_t i;
  int status;

  (void)sidecar;
  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload))) return status;
  if (!compressed_bytes)
    return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT, "compressed_bytes is NULL");
  place = place_of(plan);
  if ((status = cut(plan, own_slab_elements(plan), plan->message)) ||
      (status = place->scan(plan, exec, tensor)))
    return status;

  for (i = 0; i < plan->slabs; i++)
    if (plan->slab[i].maximum > maximum) maximum = plan->slab[i].maximum;
  if (plan->error > 0 && !bits_are_finite(plan->tensor.dtype, maximum))
    return plan->kind == DEVITOCOMP_EXECUTION_HOST
             ? refuse_not_finite(plan->message, &plan->tensor, tensor)
             : fail(plan->message, DEVITOCOMP_UNSUPPORTED,
                    "the tensor holds nan or inf: no error bound can be kept for what is "
                    "not finite, only error 0 (lossless) stores it");
  set_environment(&environment);
  method = choose_method(plan, plan->error > 0 ? maximum : 0);
  restore_environment(&environment);
  /* Without a maximum, all is zero. */
  if (maximum) count += table_words(plan);
  plan->placed = 0;
  plan->end = count * WORD;
  if ((status = place->compress(plan, exec, tensor, &method, payload, capacity)) ||
      (status = pack(plan, exec, payload, capacity, count)))
    return status;
  *compressed_bytes = plan->end;
  return DEVITOCOMP_OK;
}

DEVITOCOMP_EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                            const devitocomp_execution_t *exec,
                                            const void *payload, size_t compressed_bytes,
                                            const void *sidecar, void *tensor) {
  int status;

  (void)sidecar;
  if (!plan) return DEVITOCOMP_INVALID_ARGUMENT;
  if ((status = check_call(plan, exec, tensor, payload)) ||
      (status = verify(plan, exec, payload, compressed_bytes)))
    return status;
  return place_of(plan)->decompress(plan, exec, payload, tensor);
}

DEVITOCOMP_EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan) {
  return plan ? plan->message : create_message;
}
