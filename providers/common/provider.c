/* provider.c -- see provider.h. */
#define _POSIX_C_SOURCE 200809L
#include "provider.h"

#include <inttypes.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#endif

/* libgomp ends the process when it cannot create a thread, which a provider must not. */
#define MAX_THREADS 256

/* Sizes of version 1, not sizeof: a header that grew must not turn old callers away. */
#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define MIN_EXECUTION_SIZE END_OF(devitocomp_execution_t, stream)
#define MIN_TENSOR_SIZE END_OF(devitocomp_tensor_t, strides)
#define MIN_LIMITS_SIZE END_OF(devitocomp_limits_t, sidecar_alignment)

int fail(char *message, int status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, MESSAGE_BYTES, format, args);
  va_end(args);
  return status;
}

void set_environment(fenv_t *callers) {
  fegetenv(callers);
  fesetenv(FE_DFL_ENV);
}

void restore_environment(const fenv_t *callers) {
  fesetenv(callers);
}

/* ---- Checking arguments ------------------------------------------------------------ */

/* Whether text is a decimal number. strtod takes other things as well. */
static int is_decimal(const char *text) {
  int digits = 0, point = 0;

  if (*text == '-' || *text == '+') text++;
  for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++)
    if (*text == '.')
      point = 1;
    else
      digits = 1;
  if (!digits) return 0;
  if (*text == 'e' || *text == 'E') {
    text++;
    if (*text == '-' || *text == '+') text++;
    if (*text < '0' || *text > '9') return 0;
    while (*text >= '0' && *text <= '9') text++;
  }
  return !*text;
}

int parse_tolerance(char *message, const char *options, double by_default,
                    double *error) {
  locale_t c_locale, previous;
  fenv_t environment;

  *error = by_default;
  if (!options) return DEVITOCOMP_OK;
  *error = -1;
  if (is_decimal(options)) {
    if (!(c_locale = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0)))
      return fail(message, DEVITOCOMP_OUT_OF_MEMORY, "no memory for a locale");
    previous = uselocale(c_locale);
    set_environment(&environment);
    *error = strtod(options, NULL);
    restore_environment(&environment);
    uselocale(previous);
    freelocale(c_locale);
  }
  if (!(*error >= 0 && *error <= 1.7976931348623157e308))
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "options are \"%.100s\", not a finite number >= 0", options);
  return DEVITOCOMP_OK;
}

int check_abi_version(char *message, const char *name, uint32_t abi_version) {
  if (abi_version == DEVITOCOMP_ABI_VERSION) return DEVITOCOMP_OK;
  return fail(message, DEVITOCOMP_VERSION_MISMATCH,
              "the caller uses ABI version %" PRIu32 ", the %s provider %d", abi_version,
              name, DEVITOCOMP_ABI_VERSION);
}

static int is_in(uint32_t mask, uint32_t bit) {
  return bit < 32 && mask & DEVITOCOMP_BIT(bit);
}

/* The members of a mask, by name, for a message. */
static const char *list(char *text, size_t room, uint32_t mask, const char *const *names,
                        size_t count) {
  size_t length = 0, i;

  *text = '\0';
  for (i = 0; i < count && length < room; i++)
    if (is_in(mask, (uint32_t)i))
      length += (size_t)snprintf(text + length, room - length, "%s%s (%zu)",
                                 length ? ", " : "", names[i], i);
  return text;
}

int check_execution(char *message, const offer_t *offer,
                    const devitocomp_execution_t *exec) {
  static const char *const names[] = {"?", "HOST", "CUDA", "HIP"};
  char offered[64];

  if (!exec) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "exec is NULL");
  if (exec->struct_size < MIN_EXECUTION_SIZE)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->struct_size is %" PRIu32 ", less than %zu", exec->struct_size,
                MIN_EXECUTION_SIZE);
  if (!is_in(offer->kinds, exec->kind))
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "execution kind %" PRIu32 " is not offered, only: %s", exec->kind,
                list(offered, sizeof(offered), offer->kinds, names, 4));
  if (exec->reserved)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->reserved is %" PRIu32 ", not 0", exec->reserved);
  if (exec->kind == DEVITOCOMP_EXECUTION_HOST && exec->stream)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "exec->stream is not NULL for HOST execution");
  return DEVITOCOMP_OK;
}

int check_tensor(char *message, const offer_t *offer, const devitocomp_tensor_t *tensor) {
  static const char *const names[] = {"?", "FLOAT32", "FLOAT64", "FLOAT16", "INT32",
                                      "INT64"};
  char offered[96];
  int64_t elements = 1, last = 0, most = MAX_TENSOR_BYTES / (int64_t)sizeof(double);
  uint32_t i;

  if (!tensor) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "tensor is NULL");
  if (tensor->struct_size < MIN_TENSOR_SIZE)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "tensor->struct_size is %" PRIu32 ", less than %zu", tensor->struct_size,
                MIN_TENSOR_SIZE);
  if (tensor->reserved)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "tensor->reserved is %" PRIu32 ", not 0", tensor->reserved);
  if (tensor->rank < 1 || tensor->rank > DEVITOCOMP_MAX_RANK)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                "rank %" PRIu32 " is not in the range 1 to %d", tensor->rank,
                DEVITOCOMP_MAX_RANK);

  /* Invalid before unsupported: it says more about where the caller went wrong. */
  for (i = tensor->rank; i-- > 0;) {
    if (tensor->dims[i] < 1)
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "dims[%" PRIu32 "] is %" PRId64 ", less than 1", i, tensor->dims[i]);
    /* Without a neighbour, the distance to it means nothing. */
    if (tensor->dims[i] == 1) continue;
    if (tensor->strides[i] < 1)
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "strides[%" PRIu32 "] is %" PRId64 ", less than 1", i,
                  tensor->strides[i]);
    if (tensor->dims[i] > most / elements ||
        tensor->dims[i] - 1 > (most - last) / tensor->strides[i])
      return fail(message, DEVITOCOMP_INVALID_ARGUMENT,
                  "the tensor does not fit in memory: dims[%" PRIu32 "] is %" PRId64
                  ", strides[%" PRIu32 "] %" PRId64, i, tensor->dims[i], i,
                  tensor->strides[i]);
    elements *= tensor->dims[i];
    last += (tensor->dims[i] - 1) * tensor->strides[i];
  }

  if (!is_in(offer->dtypes, tensor->dtype))
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "dtype %" PRIu32 " is not supported, only: %s", tensor->dtype,
                list(offered, sizeof(offered), offer->dtypes, names, 6));
  if (!is_in(offer->ranks, tensor->rank)) {
    for (i = DEVITOCOMP_MAX_RANK; !is_in(offer->ranks, i); i--) {}
    return fail(message, DEVITOCOMP_UNSUPPORTED,
                "rank %" PRIu32 " is not supported, only 1 to %" PRIu32, tensor->rank, i);
  }
  return DEVITOCOMP_OK;
}

int check_pointer(char *message, const char *name, const void *pointer,
                  size_t alignment) {
  if (!pointer) return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "%s is NULL", name);
  if ((uintptr_t)pointer % alignment)
    return fail(message, DEVITOCOMP_INVALID_ARGUMENT, "%s is not aligned to %zu bytes",
                name, alignment);
  return DEVITOCOMP_OK;
}

int hand_out_limits(const devitocomp_limits_t *filled, devitocomp_limits_t *limits) {
  uint32_t size;

  if (!limits || limits->struct_size < MIN_LIMITS_SIZE)
    return DEVITOCOMP_INVALID_ARGUMENT;
  size = limits->struct_size;
  memcpy(limits, filled, size < sizeof(*filled) ? size : sizeof(*filled));
  limits->struct_size = size;
  return DEVITOCOMP_OK;
}

size_t size_of_dtype(uint32_t dtype) {
  return dtype == DEVITOCOMP_FLOAT32 ? sizeof(float) : sizeof(double);
}

/* ---- Payload words ----------------------------------------------------------------- */

/* One-to-one in hash and in word, so that no change of a single word goes unnoticed. */
uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9fb21c651e98df25);
  return hash ^ (hash >> 32);
}

/* Four at a time: one multiplication would have to wait for the other. */
uint64_t hash_words(const void *data, size_t bytes) {
  uint64_t a = 1, b = 2, c = 3, d = 4;
  size_t words = bytes / WORD, i;

  for (i = 0; i + 4 <= words; i += 4) {
    a = mix(a, get_word(data, i));
    b = mix(b, get_word(data, i + 1));
    c = mix(c, get_word(data, i + 2));
    d = mix(d, get_word(data, i + 3));
  }
  for (; i < words; i++) a = mix(a, get_word(data, i));
  return mix(mix(mix(mix(words, a), b), c), d);
}

uint64_t tag_tensor(const devitocomp_tensor_t *tensor) {
  uint64_t hash = mix(tensor->dtype, tensor->rank);
  uint32_t i;

  for (i = 0; i < tensor->rank; i++) hash = mix(hash, (uint64_t)tensor->dims[i]);
  return hash;
}

/* ---- Bits of numbers --------------------------------------------------------------- */

#define SIGN32 UINT64_C(0x80000000)
#define SIGN64 UINT64_C(0x8000000000000000)
#define INFINITY32 UINT64_C(0x7f800000)
#define INFINITY64 UINT64_C(0x7ff0000000000000)

int bits_are_finite(uint32_t dtype, uint64_t bits) {
  return bits < (dtype == DEVITOCOMP_FLOAT32 ? INFINITY32 : INFINITY64);
}

double value_of_bits(uint32_t dtype, uint64_t bits) {
  uint32_t half = (uint32_t)bits;
  float narrow;
  double wide;

  if (dtype == DEVITOCOMP_FLOAT32) {
    memcpy(&narrow, &half, sizeof(narrow));
    return (double)narrow;
  }
  memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

/* Of the element at an offset: without the sign, which is told apart. */
static uint64_t element_bits(uint32_t dtype, const char *data, int64_t offset,
                             int *is_negative) {
  uint64_t sign = dtype == DEVITOCOMP_FLOAT32 ? SIGN32 : SIGN64, bits = 0;
  size_t size = size_of_dtype(dtype);

  memcpy(&bits, data + (size_t)offset * size, size);
  *is_negative = (bits & sign) != 0;
  return bits & ~sign;
}

int refuse_not_finite(char *message, const devitocomp_tensor_t *tensor,
                      const void *data) {
  int64_t index[DEVITOCOMP_MAX_RANK] = {0};
  char where[DEVITOCOMP_MAX_RANK * 24] = "";
  size_t length = 0;
  uint32_t i;

  do {
    int64_t offset = 0;
    uint64_t bits;
    int is_negative;

    for (i = 0; i < tensor->rank; i++) offset += index[i] * tensor->strides[i];
    bits = element_bits(tensor->dtype, data, offset, &is_negative);
    if (!bits_are_finite(tensor->dtype, bits)) {
      int is_infinity = bits_are_finite(tensor->dtype, bits - 1);
      for (i = 0; i < tensor->rank; i++)
        length += (size_t)snprintf(where + length, sizeof(where) - length,
                                   "[%" PRId64 "]", index[i]);
      return fail(message, DEVITOCOMP_UNSUPPORTED,
                  "element %s is %s: no error bound can be kept for what is not finite, "
                  "only error 0 (lossless) stores it", where,
                  !is_infinity ? "nan" : is_negative ? "-inf" : "inf");
    }
    for (i = tensor->rank; i-- > 0 && ++index[i] == tensor->dims[i];) index[i] = 0;
  } while (i != UINT32_MAX);
  return fail(message, DEVITOCOMP_UNSUPPORTED,
              "the tensor changed while it was compressed: it had an element that is not "
              "finite");
}

/* ---- Threads ----------------------------------------------------------------------- */

/* How many threads to use for parts that can be worked on separately. */
int count_threads(const devitocomp_execution_t *exec, size_t parts) {
#ifdef _OPENMP
  size_t threads = exec->num_threads ? exec->num_threads : (size_t)omp_get_max_threads();

  if (threads > parts) threads = parts;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  return threads ? (int)threads : 1;
#else
  (void)exec;
  (void)parts;
  return 1;
#endif
}
