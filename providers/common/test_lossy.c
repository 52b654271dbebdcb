/*
 * test_lossy.c -- a provider that keeps an error bound, through its interface.
 *
 * What differs from provider to provider is in a header of theirs, expect.h:
 *
 *     NAME              of the provider
 *     RANKS             the mask of ranks offered
 *     PAYLOAD_VERSION   of its payloads
 *     LOSSY_FROM        the least error for which a plan must be lossy
 *     LOSSLESS_BELOW    the error for which it must be lossless for every type
 *     ZERO_BYTES        the payload of a snapshot of zeros
 *     SPARSE_BYTES      one of 12.5 MiB, all zeros but for one element, stays below that
 *     ROOM(bytes)       max_compressed_bytes stays below that
 *     CODEC             how the message about another codec version calls it
 */
#define _POSIX_C_SOURCE 200809L
#include "devitocomp.h"
#include "expect.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#define FLOAT32 DEVITOCOMP_FLOAT32
#define FLOAT64 DEVITOCOMP_FLOAT64

/* Bytes before and after every buffer, and between strided elements, that must keep their
   value. */
#define GUARD 64
#define CANARY 0xA5

static long checks, failures;
static char context[256];

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define CHECK(condition) check(!!(condition), __LINE__, #condition)
#define CHECK_STATUS(expected, plan, call) \
  check_status(expected, call, plan, __LINE__, #call)

static int check(int passed, int line, const char *what) {
  checks++;
  if (!passed) {
    failures++;
    fprintf(stderr, "test_lossy.c:%d: %s: failed: %s\n", line, context, what);
  }
  return passed;
}

/* A failure must come with a message. */
static void check_status(int expected, int status, const devitocomp_plan_t *plan,
                         int line, const char *call) {
  char what[512];
  snprintf(what, sizeof(what), "status %d instead of %d from %s: \"%s\"", status,
           expected, call, devitocomp_message(plan));
  check(status == expected, line, what);
  if (expected != DEVITOCOMP_OK)
    check(*devitocomp_message(plan) != '\0', line, "the failure has no message");
}

static void die(const char *what, const char *why) {
  fprintf(stderr, "test_lossy: %s: %s\n", what, why);
  exit(2);
}

/* ---- Memory ------------------------------------------------------------------------ */

static void *host_alloc(size_t bytes) {
  void *pointer = malloc(bytes ? bytes : 1);
  if (!pointer) die("malloc", "no memory");
  return pointer;
}

/* A buffer between two guards. */
typedef struct buffer {
  size_t bytes;
  unsigned char *base;
  unsigned char *data;
} buffer_t;

static buffer_t buffer_new(size_t bytes) {
  buffer_t buffer = {bytes, NULL, NULL};
  buffer.base = host_alloc(bytes + 2 * GUARD);
  memset(buffer.base, CANARY, bytes + 2 * GUARD);
  buffer.data = buffer.base + GUARD;
  return buffer;
}

/* Whether the bytes from start to end are as they were in the beginning. */
static int is_untouched(const buffer_t *buffer, size_t start, size_t end) {
  size_t i;
  int untouched = 1;
  for (i = start; i < end; i++) untouched &= buffer->data[i] == CANARY;
  return untouched;
}

static int guards_hold(const buffer_t *buffer) {
  size_t i;
  int hold = 1;
  for (i = 0; i < GUARD; i++)
    hold &= buffer->base[i] == CANARY && buffer->data[buffer->bytes + i] == CANARY;
  return hold;
}

/* A copy in memory that ends where the copy does, as sanitizers notice. */
static void *exact_copy(const void *data, size_t bytes) {
  void *copy = host_alloc(bytes);
  memcpy(copy, data, bytes);
  return copy;
}

/* ---- Tensors ----------------------------------------------------------------------- */

typedef enum layout { CONTIGUOUS, PADDED, TRANSPOSED, LAYOUTS } layout_t;

static size_t itemsize(uint32_t dtype) {
  return dtype == FLOAT32 ? sizeof(float) : sizeof(double);
}

static devitocomp_execution_t execution(uint32_t num_threads) {
  devitocomp_execution_t exec = {sizeof(exec), DEVITOCOMP_EXECUTION_HOST, 0, 0, NULL};
  exec.num_threads = num_threads;
  return exec;
}

static devitocomp_tensor_t make_tensor(uint32_t dtype, uint32_t rank, const int64_t *dims,
                                       layout_t layout) {
  devitocomp_tensor_t tensor = {sizeof(tensor), 0, 0, 0, {0}, {0}};
  int64_t stride = layout == PADDED ? 2 : 1;
  uint32_t i;

  tensor.dtype = dtype;
  tensor.rank = rank;
  for (i = 0; i < rank; i++) {
    uint32_t dim = layout == TRANSPOSED ? i : rank - 1 - i;
    tensor.dims[dim] = dims[dim];
    tensor.strides[dim] = stride;
    stride *= dims[dim] + (layout == PADDED ? 3 : 0);
  }
  return tensor;
}

static size_t count(const devitocomp_tensor_t *tensor) {
  size_t elements = 1;
  uint32_t i;
  for (i = 0; i < tensor->rank; i++) elements *= (size_t)tensor->dims[i];
  return elements;
}

/* Where the i-th element is, in elements. */
static size_t position(const devitocomp_tensor_t *tensor, size_t i) {
  size_t offset = 0;
  uint32_t d;
  for (d = tensor->rank; d-- > 0;) {
    offset += i % (size_t)tensor->dims[d] * (size_t)tensor->strides[d];
    i /= (size_t)tensor->dims[d];
  }
  return offset;
}

/* From the first to the last element. */
static size_t extent(const devitocomp_tensor_t *tensor) {
  return (position(tensor, count(tensor) - 1) + 1) * itemsize(tensor->dtype);
}

static devitocomp_plan_t *create(const devitocomp_tensor_t *tensor, uint32_t num_threads,
                                 const char *options) {
  devitocomp_execution_t exec = execution(num_threads);
  devitocomp_plan_t *plan = NULL;

  CHECK_STATUS(DEVITOCOMP_OK, NULL,
               devitocomp_plan_create(DEVITOCOMP_ABI_VERSION, tensor, &exec, options,
                                      &plan));
  if (!plan) die("no plan to go on with", devitocomp_message(NULL));
  return plan;
}

static devitocomp_limits_t limits_of(const devitocomp_plan_t *plan) {
  devitocomp_limits_t limits = {sizeof(limits), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  CHECK(devitocomp_plan_limits(plan, &limits) == DEVITOCOMP_OK);
  return limits;
}

/* ---- Data -------------------------------------------------------------------------- */

typedef enum content {
  ZERO,
  NEGATIVE_ZERO,
  CONSTANT,
  SMOOTH,
  EARLY,      /* most of it zero */
  NOISE,
  OCTAVES,    /* noise, by a factor that differs from block to block */
  WRAPS,      /* what zfp itself gets wrong, see wrap_around() */
  SPIKES,
  DENORMAL,
  TINY,
  HUGE_NOISE,
  LARGEST,
  FINITE,     /* contents so far are finite */
  BITS = FINITE,
  CONTENTS
} content_t;

static const char *const content_names[] = {
  "zero", "negative zero", "constant", "smooth", "early", "noise", "octaves", "wraps",
  "spikes", "denormal", "tiny", "huge", "largest", "bits"
};

static uint64_t state;

static uint64_t random_bits(void) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (state ^ (state >> 29)) * UINT64_C(0x9fb21c651e98df25) >> 8;
}

/* From -1 to 1. */
static double noise(void) {
  return (double)(random_bits() >> 3) / (double)(UINT64_C(1) << 52) - 1;
}

/*
 * Rows of 4 which, for a tolerance of 2^-6 of the maximum (that of the last one here),
 * end up with the wrong sign in one-dimensional zfp.
 */
static double wrap_around(size_t i, size_t n) {
  static const double block[] = {-0.999, -0.999, 0.166, 0.993};
  if (i + 1 == n) return 1;
  return block[i % 4] * (1 - 0.02 * fabs(noise())) * 0x1p-7;
}

static double value(content_t content, uint32_t dtype, size_t i, size_t n,
                    int64_t fastest) {
  double x = (double)i / (double)n, largest = dtype == FLOAT32 ? 0x1.fffffep127
                                                               : 0x1.fffffffffffffp1023;
  switch (content) {
  case ZERO: return 0;
  case NEGATIVE_ZERO: return i % 3 ? -0.0 : 0.0;
  case CONSTANT: return -12.345;
  case SMOOTH:
    return 3 * sin(9 * x + 1) * cos(0.1 * (double)(i % (size_t)fastest)) + x;
  case EARLY: return x > 0.4 && x < 0.6 ? sin(400 * x) : 0;
  case NOISE: return noise();
  case OCTAVES: return ldexp(noise(), -(int)(i / 4 % 24));
  case WRAPS: return wrap_around(i, n);
  case SPIKES: return random_bits() % 50 ? 0 : noise() * 1e6;
  case DENORMAL:
    return dtype == FLOAT32 ? noise() * 0x1p-127 : ldexp(noise(), -1023);
  case TINY: return dtype == FLOAT32 ? noise() * 1e-36 : noise() * 1e-305;
  case HUGE_NOISE: return dtype == FLOAT32 ? noise() * 1e38 : noise() * 1e308;
  default: return i % 7 ? largest * noise() : i % 2 ? largest : -largest;
  }
}

static void put(const devitocomp_tensor_t *tensor, void *data, size_t i, double x) {
  if (tensor->dtype == FLOAT32)
    ((float *)data)[position(tensor, i)] = (float)x;
  else
    ((double *)data)[position(tensor, i)] = x;
}

static double get(const devitocomp_tensor_t *tensor, const void *data, size_t i) {
  return tensor->dtype == FLOAT32 ? (double)((const float *)data)[position(tensor, i)]
                                  : ((const double *)data)[position(tensor, i)];
}

/* Numbers of every sort, among them NaNs with a payload, infinities, -0, subnormals. */
static void put_bits(const devitocomp_tensor_t *tensor, void *data, size_t i) {
  static const uint64_t special[] = {
    UINT64_C(0x7fc0123400000000), UINT64_C(0x7f80000100000000),
    UINT64_C(0xffc0000000000000), UINT64_C(0x7f80000000000000),
    UINT64_C(0xff80000000000000), UINT64_C(0x8000000000000000),
    UINT64_C(0x0000000100000000), UINT64_C(0x807fffff00000000),
    UINT64_C(0x7ff0000000000000), UINT64_C(0xfff0000000000000),
    UINT64_C(0x7ff0000000000001), UINT64_C(0x7ff8000000abcdef),
    UINT64_C(0x0000000000000001), UINT64_C(0x800fffffffffffff),
    UINT64_C(0x3f80000000000000), UINT64_C(0x0000000000000000)};
  uint64_t bits = random_bits() << 8 ^ random_bits();
  uint32_t half;

  /* Whole blocks without and with few of them take other paths. */
  if (i / 64 % 3 == 0 && bits % 8 == 0) bits = special[bits / 8 % COUNT(special)];
  if (i / 64 % 3 == 1) bits = special[13 + bits % 3];
  if (tensor->dtype == FLOAT32) {
    half = (uint32_t)(bits >> 32);
    memcpy((char *)data + position(tensor, i) * sizeof(half), &half, sizeof(half));
  } else {
    memcpy((char *)data + position(tensor, i) * sizeof(bits), &bits, sizeof(bits));
  }
}

static void fill(const devitocomp_tensor_t *tensor, void *data, content_t content) {
  size_t n = count(tensor), i;

  state = (uint64_t)content + 17 * tensor->rank + n;
  for (i = 0; i < n; i++)
    if (content == BITS)
      put_bits(tensor, data, i);
    else
      put(tensor, data, i,
          value(content, tensor->dtype, i, n, tensor->dims[tensor->rank - 1]));
}

/* Whether a bound holds, computed as whoever reads the interface would. */
static int is_within(const devitocomp_tensor_t *tensor, const void *data,
                     const devitocomp_tensor_t *out, const void *copy, double error) {
  size_t n = count(tensor), i;
  double maximum = 0, worst = 0;

  for (i = 0; i < n; i++) {
    double x = fabs(get(tensor, data, i));
    if (x > maximum) maximum = x;
  }
  for (i = 0; i < n; i++) {
    double difference = fabs(get(tensor, data, i) - get(out, copy, i));
    if (!(difference <= worst)) worst = difference;
  }
  if (worst <= error * maximum) return 1;
  fprintf(stderr, "%s: worst error %g of maximum %g\n", context, worst, maximum);
  return 0;
}

static int is_same(const devitocomp_tensor_t *tensor, const void *data,
                   const devitocomp_tensor_t *out, const void *copy) {
  size_t n = count(tensor), bytes = itemsize(tensor->dtype), i;

  for (i = 0; i < n; i++)
    if (memcmp((const char *)data + position(tensor, i) * bytes,
               (const char *)copy + position(out, i) * bytes, bytes))
      return 0;
  return 1;
}

/* Whether nothing but elements of a tensor was written to its buffer. */
static int gaps_hold(const devitocomp_tensor_t *tensor, const buffer_t *buffer) {
  size_t n = count(tensor), bytes = itemsize(tensor->dtype), i, k;
  unsigned char *element = host_alloc(buffer->bytes / bytes);
  int hold = guards_hold(buffer);

  memset(element, 0, buffer->bytes / bytes);
  for (i = 0; i < n; i++) element[position(tensor, i)] = 1;
  for (i = 0; i < buffer->bytes / bytes; i++)
    for (k = 0; !element[i] && k < bytes; k++)
      hold &= buffer->data[i * bytes + k] == CANARY;
  free(element);
  return hold;
}

/* ---- Round trips ------------------------------------------------------------------- */

static const char *const errors[] = {"0",    "1e-300", "1e-12", "1e-7", "1e-6", "1e-5",
                                     "1e-4", "0.001",  "0.015625", "0.3", "1",  "250",
                                     NULL};

static void test_limits(const devitocomp_plan_t *plan, const char *options) {
  struct {
    devitocomp_limits_t known;
    unsigned char future[16];
  } limits;
  devitocomp_limits_t *l = &limits.known;
  double error = options ? strtod(options, NULL) : 1e-4;
  size_t i;
  int untouched = 1;

  memset(&limits, CANARY, sizeof(limits));
  l->struct_size = sizeof(*l);
  CHECK(devitocomp_plan_limits(plan, l) == DEVITOCOMP_OK);
  for (i = 0; i < sizeof(limits.future); i++) untouched &= limits.future[i] == CANARY;
  CHECK(untouched);
  CHECK(l->struct_size == sizeof(*l));
  CHECK(l->flags == (DEVITOCOMP_STRIDED | DEVITOCOMP_DETERMINISTIC |
                     DEVITOCOMP_THREAD_INDEPENDENT | DEVITOCOMP_DETECTS_CORRUPTION));
  CHECK(l->execution_kinds == DEVITOCOMP_BIT(DEVITOCOMP_EXECUTION_HOST));
  CHECK(l->portable_kinds == l->execution_kinds);
  CHECK(l->dtypes == (DEVITOCOMP_BIT(FLOAT32) | DEVITOCOMP_BIT(FLOAT64)));
  CHECK(l->ranks == RANKS);
  CHECK(l->payload_version == PAYLOAD_VERSION);
  if (plan) {
    CHECK(l->error_kind == DEVITOCOMP_ERROR_RELATIVE_MAX ||
          l->error_kind == DEVITOCOMP_ERROR_LOSSLESS);
    CHECK(l->error_bound == (l->error_kind == DEVITOCOMP_ERROR_LOSSLESS ? 0
                             : error < 1                                ? error
                                                                        : 1));
    CHECK((l->error_kind == DEVITOCOMP_ERROR_LOSSLESS) <= (error < LOSSY_FROM));
    CHECK((l->error_kind == DEVITOCOMP_ERROR_LOSSLESS) >= (error < LOSSLESS_BELOW));
    CHECK(l->payload_alignment == 8);
    CHECK(l->sidecar_alignment == 1);
  } else {
    CHECK(!l->error_kind && !l->error_bound && !l->max_compressed_bytes &&
          !l->payload_alignment && !l->sidecar_alignment);
  }
  CHECK(l->sidecar_bytes == 0);

  l->struct_size = sizeof(*l) - 1;
  CHECK(devitocomp_plan_limits(plan, l) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_plan_limits(plan, NULL) == DEVITOCOMP_INVALID_ARGUMENT);
  /* A caller from the future may know more fields. */
  l->struct_size = sizeof(limits);
  CHECK(devitocomp_plan_limits(plan, l) == DEVITOCOMP_OK);
}

/* From one layout, and number of threads, to another. */
static void test_roundtrip(uint32_t dtype, uint32_t rank, const int64_t *dims,
                           content_t content, const char *options, layout_t from,
                           layout_t to) {
  devitocomp_tensor_t in = make_tensor(dtype, rank, dims, from);
  devitocomp_tensor_t out = make_tensor(dtype, rank, dims, to);
  buffer_t input = buffer_new(extent(&in)), output = buffer_new(extent(&out)), payload;
  devitocomp_plan_t *plan = create(&in, 1, options), *other = create(&out, 2, options);
  devitocomp_limits_t limits = limits_of(plan);
  size_t room = (size_t)limits.max_compressed_bytes, used = 0, again = 0;
  devitocomp_execution_t exec = execution(1);
  int lossless = limits.error_kind == DEVITOCOMP_ERROR_LOSSLESS;
  unsigned char *original, *copy, *exact;
  uint32_t threads;

  snprintf(context, sizeof(context), "%s %" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64
           " of rank %" PRIu32 ", %s, error %s, layout %d to %d",
           dtype == FLOAT32 ? "float32" : "float64", dims[0], dims[1], dims[2], dims[3],
           rank, content_names[content], options ? options : "default", from, to);
  CHECK(limits.max_compressed_bytes == limits_of(other).max_compressed_bytes);
  CHECK(room < ROOM(count(&in) * itemsize(dtype)));
  CHECK(*devitocomp_message(plan) == '\0');
  test_limits(plan, options);

  fill(&in, input.data, content);
  original = exact_copy(input.data, input.bytes);
  payload = buffer_new(room);
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_compress(plan, &exec, input.data, payload.data, room, &used,
                                   NULL));
  CHECK(!memcmp(input.data, original, input.bytes));
  CHECK(guards_hold(&payload));
  CHECK(used >= ZERO_BYTES && used <= room);
  CHECK(used < room && is_untouched(&payload, used, room));
  if (content == ZERO || (content == NEGATIVE_ZERO && !lossless)) CHECK(used == ZERO_BYTES);

  exec.num_threads = 2;
  exact = exact_copy(payload.data, used);
  CHECK_STATUS(DEVITOCOMP_OK, other,
               devitocomp_decompress(other, &exec, exact, used, NULL, output.data));
  CHECK(!memcmp(exact, payload.data, used));
  CHECK(gaps_hold(&out, &output));
  if (lossless)
    CHECK(is_same(&in, input.data, &out, output.data));
  else
    CHECK(is_within(&in, input.data, &out, output.data, limits.error_bound));
  free(exact);

  /* The same payload, whatever the threads, with no more room than it takes. */
  copy = exact_copy(payload.data, used);
  for (threads = 0; threads <= 3; threads++) {
    exec.num_threads = threads;
    memset(payload.data, CANARY, used);
    CHECK_STATUS(DEVITOCOMP_OK, plan,
                 devitocomp_compress(plan, &exec, input.data, payload.data, used, &again,
                                     NULL));
    CHECK(again == used);
    CHECK(!memcmp(payload.data, copy, used));
    CHECK(is_untouched(&payload, used, room));
  }
  memset(payload.data, CANARY, used);
  CHECK_STATUS(DEVITOCOMP_BUFFER_TOO_SMALL, plan,
               devitocomp_compress(plan, &exec, input.data, payload.data, used - 1,
                                   &again, NULL));
  CHECK(is_untouched(&payload, used - 1, room));
  memset(payload.data, CANARY, used);
  CHECK_STATUS(DEVITOCOMP_BUFFER_TOO_SMALL, plan,
               devitocomp_compress(plan, &exec, input.data, payload.data, 0, &again,
                                   NULL));
  CHECK(is_untouched(&payload, 0, room));

  /* Nor do threads make a difference to what comes back. */
  exec.num_threads = 3;
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_decompress(plan, &exec, copy, used, NULL, input.data));
  CHECK(is_same(&in, input.data, &out, output.data));

  devitocomp_plan_destroy(plan);
  devitocomp_plan_destroy(other);
  free(input.base);
  free(output.base);
  free(payload.base);
  free(original);
  free(copy);
}

/* From single elements to several slabs, the last one not a multiple of 4 thick. The last
   two of each line are large. */
static const struct {
  uint32_t rank;
  int64_t dims[4];
} shapes[] = {
  {1, {1}},          {1, {5}},          {1, {128}},        {1, {4096}},
  {1, {50021}},      {2, {1, 1}},       {2, {7, 1}},       {2, {13, 17}},
  {2, {257, 211}},   {2, {3, 8209}},    {3, {1, 1, 1}},    {3, {2, 1, 9}},
  {3, {3, 5, 7}},    {3, {19, 61, 67}}, {3, {67, 19, 31}}, {4, {1, 9, 1, 11}},
  {4, {2, 3, 5, 1}}, {4, {5, 3, 2, 7}}, {4, {11, 13, 17, 19}}, {4, {5, 4, 33, 32}},
};

static void test_roundtrips(void) {
  static const uint32_t dtypes[] = {FLOAT32, FLOAT64};
  size_t s, e, c, d, turn = 0;

  for (d = 0; d < COUNT(dtypes); d++)
    for (s = 0; s < COUNT(shapes); s++)
      for (e = 0; e < COUNT(errors); e++)
        for (c = 0; c < CONTENTS; c++, turn++) {
          /* Only the first two are lossless. Of large tensors, one combination in 7. */
          if (c >= FINITE && e >= 2) continue;
          if (s % 5 >= 3 && c != WRAPS && (c + e + d) % 7) continue;
          test_roundtrip(dtypes[d], shapes[s].rank, shapes[s].dims, (content_t)c,
                         errors[e], (layout_t)(turn % LAYOUTS),
                         (layout_t)(turn / LAYOUTS % LAYOUTS));
        }
}

/* Zeros around what is not cost little, whatever the mode. */
static void test_zero_slabs(void) {
  static const int64_t dims[] = {200, 128, 128, 0};
  static const char *const options[] = {"0.001", "0"};
  devitocomp_tensor_t tensor = make_tensor(FLOAT32, 3, dims, CONTIGUOUS);
  devitocomp_execution_t exec = execution(2);
  float *data = host_alloc(extent(&tensor)), *copy = host_alloc(extent(&tensor));
  void *payload;
  size_t used = 0, i;

  for (i = 0; i < COUNT(options); i++) {
    devitocomp_plan_t *plan = create(&tensor, 2, options[i]);
    devitocomp_limits_t limits = limits_of(plan);

    snprintf(context, sizeof(context), "slabs of zeros, error %s", options[i]);
    payload = host_alloc((size_t)limits.max_compressed_bytes);
    memset(data, 0, extent(&tensor));
    data[100 * 128 * 128 + 64 * 128 + 64] = 1;
    memset(copy, CANARY, extent(&tensor));
    CHECK_STATUS(DEVITOCOMP_OK, plan,
                 devitocomp_compress(plan, &exec, data, payload,
                                     (size_t)limits.max_compressed_bytes, &used, NULL));
    CHECK(used < SPARSE_BYTES);
    CHECK_STATUS(DEVITOCOMP_OK, plan,
                 devitocomp_decompress(plan, &exec, payload, used, NULL, copy));
    CHECK(is_within(&tensor, data, &tensor, copy, limits.error_bound));
    devitocomp_plan_destroy(plan);
    free(payload);
  }
  free(data);
  free(copy);
}

/* ---- Damage ------------------------------------------------------------------------ */

static void refused(devitocomp_plan_t *plan, const void *payload, size_t bytes,
                    void *output, int line) {
  devitocomp_execution_t exec = execution(2);
  /* Exactly as long: what reads beyond the end is noticed. */
  void *copy = exact_copy(payload, bytes);
  int status = devitocomp_decompress(plan, &exec, copy, bytes, NULL, output);

  check(status == DEVITOCOMP_CORRUPT_PAYLOAD || status == DEVITOCOMP_VERSION_MISMATCH,
        line, "a damaged payload passes");
  check(*devitocomp_message(plan) != '\0', line, "the failure has no message");
  free(copy);
}

#define REFUSED(payload, bytes) refused(plan, payload, bytes, output.data, __LINE__)

static void test_damage(uint32_t dtype, content_t content, const char *options) {
  static const int64_t dims[] = {41, 37, 53, 0}, reshaped[] = {53, 37, 41, 0};
  devitocomp_tensor_t tensor = make_tensor(dtype, 3, dims, PADDED);
  devitocomp_tensor_t other = make_tensor(dtype, 3, reshaped, CONTIGUOUS);
  buffer_t input = buffer_new(extent(&tensor)), output = buffer_new(extent(&tensor));
  devitocomp_plan_t *plan = create(&tensor, 2, options), *wrong;
  devitocomp_execution_t exec = execution(2);
  size_t room = (size_t)limits_of(plan).max_compressed_bytes, used = 0, step, i;
  unsigned char *payload = host_alloc(room + 64);
  uint64_t word;

  snprintf(context, sizeof(context), "damage, dtype %" PRIu32 ", %s, error %s", dtype,
           content_names[content], options);
  memset(payload, 0, room + 64);
  fill(&tensor, input.data, content);
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_compress(plan, &exec, input.data, payload, room, &used, NULL));

  step = used > 2000 ? used / 2000 : 1;
  for (i = 0; i < used; i += i < 200 ? 1 : step) {
    payload[i] ^= (unsigned char)(1 << i % 8);
    REFUSED(payload, used);
    payload[i] ^= (unsigned char)(1 << i % 8);
    payload[i] ^= 0xff;
    REFUSED(payload, used);
    payload[i] ^= 0xff;
  }
  for (i = 0; i < used; i += i < 200 ? 1 : step) REFUSED(payload, i);
  for (i = 1; i < 16; i++) REFUSED(payload, used - i);
  for (i = 1; i <= 64; i++) REFUSED(payload, used + i);

  /* Whatever the header says the length is. */
  for (i = 0; i < used; i += i < 200 ? 1 : step) {
    memcpy(&word, payload + 24, sizeof(word));
    memcpy(payload + 24, &i, sizeof(i));
    REFUSED(payload, i);
    memcpy(payload + 24, &word, sizeof(word));
  }
  /* Words swapped, and overwritten. */
  for (i = 0; i + 16 <= used; i += i < 200 ? 8 : step / 8 * 8 + 8) {
    unsigned char words[16], zeros[16] = {0};
    memcpy(words, payload + i, 16);
    if (memcmp(words, words + 8, 8)) {
      memcpy(payload + i, words + 8, 8);
      memcpy(payload + i + 8, words, 8);
      REFUSED(payload, used);
    }
    if (memcmp(words, zeros, 16)) {
      memset(payload + i, 0, 16);
      REFUSED(payload, used);
    }
    memcpy(payload + i, words, 16);
  }

  /* Another version, by name. */
  for (i = 6; i < 8; i++) {
    payload[i]++;
    CHECK_STATUS(DEVITOCOMP_VERSION_MISMATCH, plan,
                 devitocomp_decompress(plan, &exec, payload, used, NULL, output.data));
    CHECK(strstr(devitocomp_message(plan), i == 6 ? "version 2" : CODEC));
    payload[i]--;
  }

  /* Another tensor. */
  wrong = create(&other, 2, options);
  CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, wrong,
               devitocomp_decompress(wrong, &exec, payload, used, NULL, output.data));
  CHECK(strstr(devitocomp_message(wrong), "shape"));
  devitocomp_plan_destroy(wrong);
  other = make_tensor(FLOAT32 + FLOAT64 - dtype, 3, dims, CONTIGUOUS);
  wrong = create(&other, 2, options);
  CHECK_STATUS(DEVITOCOMP_CORRUPT_PAYLOAD, wrong,
               devitocomp_decompress(wrong, &exec, payload, used, NULL, input.data));
  devitocomp_plan_destroy(wrong);

  /* After all that, the plan is none the worse, and nothing was written elsewhere. */
  fill(&tensor, input.data, content);
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_decompress(plan, &exec, payload, used, NULL, output.data));
  CHECK(is_within(&tensor, input.data, &tensor, output.data, strtod(options, NULL)));
  CHECK(gaps_hold(&tensor, &output));
  devitocomp_plan_destroy(plan);
  free(input.base);
  free(output.base);
  free(payload);
}

/* ---- Refusals ---------------------------------------------------------------------- */

static void test_not_finite(void) {
  static const int64_t dims[] = {23, 29, 71, 0};
  static const struct {
    double value;
    const char *name;
  } bad[] = {{NAN, " is nan"}, {INFINITY, " is inf"}, {-INFINITY, " is -inf"}};
  static const uint32_t dtypes[] = {FLOAT32, FLOAT64};
  devitocomp_execution_t exec = execution(2);
  size_t d, b, k, used = 0;
  layout_t layout;

  for (d = 0; d < COUNT(dtypes); d++)
    for (b = 0; b < COUNT(bad); b++)
      for (layout = CONTIGUOUS; layout < LAYOUTS; layout++) {
        devitocomp_tensor_t tensor = make_tensor(dtypes[d], 3, dims, layout);
        buffer_t buffer = buffer_new(extent(&tensor));
        devitocomp_plan_t *plan = create(&tensor, 2, "1e-3");
        size_t room = (size_t)limits_of(plan).max_compressed_bytes;
        void *payload = host_alloc(room);
        const size_t where[] = {count(&tensor) - 1, (17 * 29 + 3) * 71 + 5, 0};
        static const char *const names[] = {"[22][28][70]", "[17][3][5]", "[0][0][0]"};

        snprintf(context, sizeof(context), "not finite, %zu, %zu, %d", d, b, layout);
        fill(&tensor, buffer.data, SMOOTH);
        for (k = 0; k < COUNT(where); k++) {
          put(&tensor, buffer.data, where[k], bad[b].value);
          CHECK_STATUS(DEVITOCOMP_UNSUPPORTED, plan,
                       devitocomp_compress(plan, &exec, buffer.data, payload, room, &used,
                                           NULL));
          CHECK(strstr(devitocomp_message(plan), names[k]));
          CHECK(strstr(devitocomp_message(plan), bad[b].name));
        }
        fill(&tensor, buffer.data, SMOOTH);
        CHECK_STATUS(DEVITOCOMP_OK, plan,
                     devitocomp_compress(plan, &exec, buffer.data, payload, room, &used,
                                         NULL));
        devitocomp_plan_destroy(plan);
        free(buffer.base);
        free(payload);
      }
}

static void test_arguments(void) {
  static const int64_t dims[] = {5, 6, 7, 0};
  devitocomp_tensor_t tensor = make_tensor(FLOAT64, 3, dims, CONTIGUOUS);
  devitocomp_plan_t *plan = create(&tensor, 1, NULL);
  size_t room = (size_t)limits_of(plan).max_compressed_bytes, used = 0;
  devitocomp_execution_t exec = execution(1), wrong = exec;
  buffer_t data = buffer_new(extent(&tensor)), payload = buffer_new(room);

#define INVALID(call) CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, plan, call)
  snprintf(context, sizeof(context), "arguments");
  fill(&tensor, data.data, NOISE);
  INVALID(devitocomp_compress(plan, NULL, data.data, payload.data, room, &used, NULL));
  INVALID(devitocomp_compress(plan, &exec, NULL, payload.data, room, &used, NULL));
  INVALID(devitocomp_compress(plan, &exec, data.data, NULL, room, &used, NULL));
  INVALID(devitocomp_compress(plan, &exec, data.data, payload.data, room, NULL, NULL));
  INVALID(devitocomp_compress(plan, &exec, data.data + 4, payload.data, room, &used,
                              NULL));
  INVALID(devitocomp_compress(plan, &exec, data.data, payload.data + 4, room, &used,
                              NULL));
  CHECK_STATUS(DEVITOCOMP_OK, plan,
               devitocomp_compress(plan, &exec, data.data, payload.data, room, &used,
                                   NULL));
  INVALID(devitocomp_decompress(plan, NULL, payload.data, used, NULL, data.data));
  INVALID(devitocomp_decompress(plan, &exec, NULL, used, NULL, data.data));
  INVALID(devitocomp_decompress(plan, &exec, payload.data, used, NULL, NULL));
  INVALID(devitocomp_decompress(plan, &exec, payload.data + 4, used, NULL, data.data));
  INVALID(devitocomp_decompress(plan, &exec, payload.data, used, NULL, data.data + 4));
  wrong.struct_size--;
  INVALID(devitocomp_decompress(plan, &wrong, payload.data, used, NULL, data.data));
  wrong = exec;
  wrong.stream = &wrong;
  INVALID(devitocomp_decompress(plan, &wrong, payload.data, used, NULL, data.data));
  wrong = exec;
  wrong.kind = DEVITOCOMP_EXECUTION_CUDA;
  CHECK_STATUS(DEVITOCOMP_UNSUPPORTED, plan,
               devitocomp_decompress(plan, &wrong, payload.data, used, NULL, data.data));
  CHECK(devitocomp_compress(NULL, &exec, data.data, payload.data, room, &used, NULL) ==
        DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_decompress(NULL, &exec, payload.data, used, NULL, data.data) ==
        DEVITOCOMP_INVALID_ARGUMENT);
#undef INVALID
  devitocomp_plan_destroy(plan);
  free(data.base);
  free(payload.base);
}

/* What plan_create must refuse, and with which status. */
static void test_refusals(void) {
  static const char *const good[] = {"0",    "0.01", "1e-3", "+2.5E+2", ".5",
                                     "5.",   "-0.0", "1e-400", "1e308",
                                     "0.000000000000000000000000000000000000000001"};
  static const char *const bad[] = {"",    " ",    "-1",   "nan",   "inf",   "1e400",
                                    "0,1", "0.1 ", " 0.1", "1e",    "1e+",   ".",
                                    "-",   "0x1p", "1.2.3", "fast", "-1e-30", "0x1p-3",
                                    "1d-3", "1e-3f", "infinity"};
  static const int64_t dims[DEVITOCOMP_MAX_RANK] = {4, 3, 2, 2, 2, 2, 2, 2};
  devitocomp_tensor_t ok = make_tensor(FLOAT32, 3, dims, CONTIGUOUS), tensor;
  devitocomp_execution_t exec_ok = execution(1), exec;
  devitocomp_plan_t *plan;
  char versions[2][16];
  size_t i;

#define REFUSED_WITH(status, version, tensor, exec, options) \
  do { \
    plan = (devitocomp_plan_t *)&ok; \
    CHECK_STATUS(status, NULL, \
                 devitocomp_plan_create(version, tensor, exec, options, &plan)); \
    CHECK(!plan); \
  } while (0)
#define TENSOR_REFUSED(status, change) \
  do { \
    tensor = ok; \
    tensor.change; \
    REFUSED_WITH(status, DEVITOCOMP_ABI_VERSION, &tensor, &exec_ok, NULL); \
  } while (0)
#define EXEC_REFUSED(status, change) \
  do { \
    exec = exec_ok; \
    exec.change; \
    REFUSED_WITH(status, DEVITOCOMP_ABI_VERSION, &ok, &exec, NULL); \
  } while (0)

  snprintf(context, sizeof(context), "refusals");
  REFUSED_WITH(DEVITOCOMP_VERSION_MISMATCH, 4711, &ok, &exec_ok, NULL);
  snprintf(versions[0], sizeof(versions[0]), "%d", 4711);
  snprintf(versions[1], sizeof(versions[1]), "%d", DEVITOCOMP_ABI_VERSION);
  CHECK(strstr(devitocomp_message(NULL), versions[0]));
  CHECK(strstr(devitocomp_message(NULL), versions[1]));
  REFUSED_WITH(DEVITOCOMP_VERSION_MISMATCH, 0, NULL, NULL, "?");
  CHECK_STATUS(DEVITOCOMP_INVALID_ARGUMENT, NULL,
               devitocomp_plan_create(DEVITOCOMP_ABI_VERSION, &ok, &exec_ok, NULL, NULL));
  REFUSED_WITH(DEVITOCOMP_INVALID_ARGUMENT, DEVITOCOMP_ABI_VERSION, NULL, &exec_ok, NULL);
  REFUSED_WITH(DEVITOCOMP_INVALID_ARGUMENT, DEVITOCOMP_ABI_VERSION, &ok, NULL, NULL);

  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, struct_size = sizeof(tensor) - 1);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, struct_size = 0);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, reserved = 1);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, rank = 0);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, rank = DEVITOCOMP_MAX_RANK + 1);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, dims[0] = 0);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, dims[2] = -2);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, strides[1] = -2);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, strides[1] = INT64_MAX);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, dims[0] = INT64_MAX);
  TENSOR_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, dims[0] = INT64_MAX / 6);
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, dtype = 0);
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, dtype = DEVITOCOMP_FLOAT16);
  CHECK(strstr(devitocomp_message(NULL), "dtype 3"));
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, dtype = DEVITOCOMP_INT32);
  TENSOR_REFUSED(DEVITOCOMP_UNSUPPORTED, dtype = 1000);
  for (i = 1; i <= DEVITOCOMP_MAX_RANK; i++) {
    if (RANKS & DEVITOCOMP_BIT(i)) continue;
    tensor = make_tensor(FLOAT32, (uint32_t)i, dims, CONTIGUOUS);
    REFUSED_WITH(DEVITOCOMP_UNSUPPORTED, DEVITOCOMP_ABI_VERSION, &tensor, &exec_ok, NULL);
  }

  EXEC_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, struct_size = sizeof(exec) - 1);
  EXEC_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, reserved = 1);
  EXEC_REFUSED(DEVITOCOMP_INVALID_ARGUMENT, stream = &ok);
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = 0);
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = DEVITOCOMP_EXECUTION_CUDA);
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = DEVITOCOMP_EXECUTION_HIP);
  EXEC_REFUSED(DEVITOCOMP_UNSUPPORTED, kind = UINT32_MAX);

  for (i = 0; i < COUNT(bad); i++)
    REFUSED_WITH(DEVITOCOMP_INVALID_ARGUMENT, DEVITOCOMP_ABI_VERSION, &ok, &exec_ok,
                 bad[i]);
  CHECK(strstr(devitocomp_message(NULL), "infinity"));
  for (i = 0; i < COUNT(good); i++)
    devitocomp_plan_destroy(create(&ok, 0, good[i]));

  /* The strides of dimensions of extent 1 have no meaning. */
  tensor = ok;
  tensor.dims[1] = 1;
  tensor.strides[1] = -7;
  devitocomp_plan_destroy(create(&tensor, 0, NULL));

  /* Elements may interleave. */
  tensor = make_tensor(FLOAT32, 2, dims + 1, CONTIGUOUS);
  tensor.strides[0] = 2;
  tensor.strides[1] = 3;
  devitocomp_plan_destroy(create(&tensor, 0, NULL));

  /* A caller from the future may know more fields. */
  tensor = ok;
  tensor.struct_size += 64;
  exec = exec_ok;
  exec.struct_size += 64;
  CHECK_STATUS(DEVITOCOMP_OK, NULL,
               devitocomp_plan_create(DEVITOCOMP_ABI_VERSION, &tensor, &exec, NULL,
                                      &plan));
  devitocomp_plan_destroy(plan);
}

/* ---- The caller's settings --------------------------------------------------------- */

static void test_locale(void) {
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8",
                                      "fr_FR.utf8",  "it_IT.UTF-8", "es_ES.UTF-8"};
  static const int64_t dims[] = {4, 3, 2, 0};
  devitocomp_tensor_t tensor = make_tensor(FLOAT32, 3, dims, CONTIGUOUS);
  devitocomp_plan_t *plan;
  size_t i;

  for (i = 0; i < COUNT(names); i++)
    if (setlocale(LC_ALL, names[i])) break;
  snprintf(context, sizeof(context), "locale %s", setlocale(LC_ALL, NULL));
  plan = create(&tensor, 1, "0.25");
  CHECK(limits_of(plan).error_bound == 0.25);
  devitocomp_plan_destroy(plan);
  setlocale(LC_ALL, "C");
}

/* Programs compiled with -ffast-math have subnormals flushed to zero. Others round towards
   zero, and want a signal for whatever is odd. */
static void test_floating_point_environment(void) {
#ifdef __SSE__
  static const int64_t dims[] = {40, 30, 50, 0};
  static const char *const options[] = {"0", "1e-3", "1e-3"};
  static const content_t contents[] = {DENORMAL, DENORMAL, TINY};
  devitocomp_tensor_t tensor = make_tensor(FLOAT32, 3, dims, CONTIGUOUS);
  devitocomp_execution_t exec = execution(2);
  unsigned int control = _mm_getcsr();
  buffer_t data = buffer_new(extent(&tensor)), copy = buffer_new(extent(&tensor));
  size_t i, used = 0;

  for (i = 0; i < COUNT(options); i++) {
    devitocomp_plan_t *plan = create(&tensor, 2, options[i]);
    size_t room = (size_t)limits_of(plan).max_compressed_bytes;
    void *payload = host_alloc(room);

    snprintf(context, sizeof(context), "floating-point environment, %s, error %s",
             content_names[contents[i]], options[i]);
    fill(&tensor, data.data, contents[i]);
    _mm_setcsr((control & ~0x1f80u) | 0xe040);
    CHECK_STATUS(DEVITOCOMP_OK, plan,
                 devitocomp_compress(plan, &exec, data.data, payload, room, &used, NULL));
    CHECK_STATUS(DEVITOCOMP_OK, plan,
                 devitocomp_decompress(plan, &exec, payload, used, NULL, copy.data));
    CHECK((_mm_getcsr() & ~0x3fu) == ((control & ~0x1fbfu) | 0xe040));
    _mm_setcsr(control);
    CHECK(is_within(&tensor, data.data, &tensor, copy.data, strtod(options[i], NULL)));
    devitocomp_plan_destroy(plan);
    free(payload);
  }
  free(data.base);
  free(copy.base);
#endif
}

int main(void) {
  snprintf(context, sizeof(context), "start");
  CHECK(devitocomp_abi_version() == DEVITOCOMP_ABI_VERSION);
  CHECK(!strcmp(devitocomp_provider_name(), NAME));
  CHECK(*devitocomp_provider_version() != '\0');
  CHECK(*devitocomp_message(NULL) == '\0');
  devitocomp_plan_destroy(NULL);

  test_limits(NULL, NULL);
  test_refusals();
  test_arguments();
  test_not_finite();
  test_locale();
  test_floating_point_environment();
  test_zero_slabs();
  test_damage(FLOAT32, SMOOTH, "1e-2");
  test_damage(FLOAT64, NOISE, "1e-5");
  test_damage(FLOAT32, OCTAVES, "0");
  test_damage(FLOAT32, ZERO, "1e-3");
  test_roundtrips();

  printf("%s %s: %ld checks, %ld failures\n", devitocomp_provider_name(),
         devitocomp_provider_version(), checks, failures);
  return failures != 0;
}
