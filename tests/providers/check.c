/*
 * check.c -- see that the test providers behave, or misbehave, as intended.
 *
 *     check DIR    DIR holds a DEVITOCOMP_ROOT for each, as the Makefile lays them out
 */
#define _POSIX_C_SOURCE 200809L
#include "devitocomp.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64
#define CANARY 0xA5
#define GAP (-12345.0) /* what is between the elements of a strided tensor */

static long checks, failures;
static char context[256];

#define CHECK(condition) check(!!(condition), __LINE__, #condition)

static int check(int passed, int line, const char *what) {
  checks++;
  if (!passed) {
    failures++;
    fprintf(stderr, "check.c:%d: %s: failed: %s\n", line, context, what);
  }
  return passed;
}

/* ---- Loading ----------------------------------------------------------------------- */

typedef struct provider {
  void *library;
  uint32_t (*abi_version)(void);
  const char *(*name)(void);
  int (*create)(uint32_t, const devitocomp_tensor_t *, const devitocomp_execution_t *,
                const char *, devitocomp_plan_t **);
  void (*destroy)(devitocomp_plan_t *);
  int (*limits)(const devitocomp_plan_t *, devitocomp_limits_t *);
  int (*compress)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *,
                  void *, size_t, size_t *, void *);
  int (*decompress)(devitocomp_plan_t *, const devitocomp_execution_t *, const void *,
                    size_t, const void *, void *);
  const char *(*message)(const devitocomp_plan_t *);
} provider_t;

/* Through memcpy, as ISO C does not convert object to function pointers. */
#define LOAD(provider, member, name) \
  do { \
    void *symbol = dlsym((provider).library, name); \
    memcpy(&(provider).member, &symbol, sizeof(symbol)); \
  } while (0)

static provider_t provider_open(const char *root, const char *name) {
  provider_t p;
  char path[4096];

  memset(&p, 0, sizeof(p));
  snprintf(context, sizeof(context), "%s", name);
  snprintf(path, sizeof(path), "%s/%s/lib/libdevitocomp.so", root, name);
  if (!(p.library = dlopen(path, RTLD_NOW | RTLD_LOCAL))) return p;
  LOAD(p, abi_version, "devitocomp_abi_version");
  LOAD(p, name, "devitocomp_provider_name");
  LOAD(p, create, "devitocomp_plan_create");
  LOAD(p, destroy, "devitocomp_plan_destroy");
  LOAD(p, limits, "devitocomp_plan_limits");
  LOAD(p, compress, "devitocomp_compress");
  LOAD(p, decompress, "devitocomp_decompress");
  LOAD(p, message, "devitocomp_message");
  return p;
}

/* The provider that the rest of this program cannot do without. */
static provider_t provider_need(const char *root, const char *name) {
  provider_t p = provider_open(root, name);
  if (!p.library || !p.decompress) {
    fprintf(stderr, "check: %s: cannot be loaded\n", name);
    exit(2);
  }
  CHECK(p.abi_version() == DEVITOCOMP_ABI_VERSION);
  CHECK(!strcmp(p.name(), name));
  return p;
}

/* ---- Tensors ----------------------------------------------------------------------- */

enum layout { CONTIGUOUS, PADDED, TRANSPOSED, LAYOUTS };
enum content {
  ZERO,
  SMOOTH,
  EARLY,
  NOISE,
  NEGATIVE,
  TINY,
  HUGE_VALUES,
  NOT_FINITE,
  CONTENTS
};

static const devitocomp_execution_t host = {sizeof(host), DEVITOCOMP_EXECUTION_HOST, 1, 0,
                                            NULL};

static devitocomp_tensor_t make_tensor(uint32_t dtype, uint32_t rank, const int64_t *dims,
                                       enum layout layout) {
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

/* Where the i-th element is. */
static size_t position(const devitocomp_tensor_t *tensor, size_t i) {
  size_t offset = 0;
  uint32_t d;
  for (d = tensor->rank; d-- > 0;) {
    offset += i % (size_t)tensor->dims[d] * (size_t)tensor->strides[d];
    i /= (size_t)tensor->dims[d];
  }
  return offset;
}

static double value(enum content content, size_t i, size_t n) {
  static uint32_t seed = 1;
  double x = (double)i / (double)n;

  seed = seed * 1664525 + 1013904223;
  switch (content) {
  case SMOOTH: return 3e4 * (x - 0.4) * (x - 0.7) * x + 17;
  case EARLY: return x < 0.2 ? x * (0.2 - x) : 0;
  case NOISE: return seed / 4294967296.0 - 0.5;
  case NEGATIVE: return -1e-3 * x;
  case TINY: return 1e-36 * (seed >> 31);
  case HUGE_VALUES: return (seed >> 31 ? 1 : -1) * 3e38 * x;
  case NOT_FINITE: return i % 7 == 3 ? (seed >> 31 ? NAN : -INFINITY) : x;
  default: return 0;
  }
}

static double get(const devitocomp_tensor_t *tensor, const void *data, size_t position) {
  return tensor->dtype == DEVITOCOMP_FLOAT64 ? ((const double *)data)[position]
                                             : (double)((const float *)data)[position];
}

static void set(const devitocomp_tensor_t *tensor, void *data, size_t position,
                double x) {
  if (tensor->dtype == DEVITOCOMP_FLOAT64)
    ((double *)data)[position] = x;
  else
    ((float *)data)[position] = (float)x;
}

static int guarded(const unsigned char *data, size_t bytes) {
  size_t i;
  for (i = 0; i < GUARD; i++)
    if (data[-1 - (ptrdiff_t)i] != CANARY || data[bytes + i] != CANARY) return 0;
  return 1;
}

static void *buffer_new(size_t bytes) {
  void *base;
  if (posix_memalign(&base, GUARD, bytes + 2 * GUARD)) abort();
  memset(base, CANARY, bytes + 2 * GUARD);
  return (char *)base + GUARD;
}

static void buffer_free(void *data) {
  free((char *)data - GUARD);
}

/* ---- Good providers ---------------------------------------------------------------- */

/* Hold one snapshot to what the limits promise. Returns the bytes used. */
static size_t test_snapshot(const provider_t *p, const devitocomp_tensor_t *tensor,
                            const char *options, enum content content) {
  devitocomp_limits_t limits = {sizeof(limits), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  size_t n = count(tensor), span = position(tensor, n - 1) + 1, used = 0, again = 0, i;
  size_t itemsize = tensor->dtype == DEVITOCOMP_FLOAT64 ? 8 : 4, bytes = span * itemsize;
  void *input = buffer_new(bytes), *output = buffer_new(bytes), *same, *small;
  unsigned char *payload, *sidecar;
  devitocomp_plan_t *plan = NULL;
  double maximum = 0, worst = 0;
  int finite = 1, exact = 1, gaps = 1, status;

  for (i = 0; i < span; i++) {
    set(tensor, input, i, GAP);
    set(tensor, output, i, GAP);
  }
  for (i = 0; i < n; i++) {
    double x = value(content, i, n);
    set(tensor, input, position(tensor, i), x);
    set(tensor, output, position(tensor, i), 1);
    x = fabs(get(tensor, input, position(tensor, i)));
    if (x > maximum) maximum = x;
    finite &= !!isfinite(x);
  }
  same = buffer_new(bytes);
  memcpy(same, input, bytes);

  CHECK(p->create(DEVITOCOMP_ABI_VERSION, tensor, &host, options, &plan) ==
        DEVITOCOMP_OK);
  CHECK(p->limits(plan, &limits) == DEVITOCOMP_OK);
  CHECK(limits.max_compressed_bytes <= n * itemsize);
  payload = buffer_new(limits.max_compressed_bytes);
  sidecar = buffer_new(limits.sidecar_bytes);
  CHECK(p->compress(plan, &host, input, payload, limits.max_compressed_bytes, &used,
                    sidecar) == DEVITOCOMP_OK);
  CHECK(used > 0 && used <= limits.max_compressed_bytes);

  /* It fits in what it uses, and not in less. */
  small = buffer_new(used);
  CHECK(p->compress(plan, &host, input, small, used, &again, sidecar) == DEVITOCOMP_OK);
  CHECK(again == used && !memcmp(small, payload, used));
  CHECK(p->compress(plan, &host, input, small, used - 1, &again, sidecar) ==
        DEVITOCOMP_BUFFER_TOO_SMALL);
  CHECK(*p->message(plan) != '\0');
  CHECK(guarded(small, used));

  CHECK(p->decompress(plan, &host, payload, used, sidecar, output) == DEVITOCOMP_OK);
  for (i = 0; i < n; i++) {
    size_t at = position(tensor, i);
    double error = fabs(get(tensor, output, at) - get(tensor, input, at));
    if (error > worst) worst = error;
    exact &= !memcmp((char *)input + at * itemsize, (char *)output + at * itemsize,
                     itemsize);
    set(tensor, output, at, GAP);
  }
  for (i = 0; i < span; i++) gaps &= get(tensor, output, i) == GAP;
  CHECK(gaps);
  if (limits.error_kind == DEVITOCOMP_ERROR_RELATIVE_MAX && finite) {
    CHECK(worst <= limits.error_bound * maximum);
    if (options) CHECK(limits.error_bound <= strtod(options, NULL));
  } else {
    CHECK(exact);
  }

  /* Damage is noticed or not, but survived. */
  for (i = 0; i < 24; i++) {
    unsigned char *byte = i < limits.sidecar_bytes ? sidecar + i
                                                   : payload + i * 37 % used;
    *byte ^= (unsigned char)(1 + i * 11);
    status = p->decompress(plan, &host, payload, used, sidecar, output);
    CHECK(status == DEVITOCOMP_OK || status == DEVITOCOMP_CORRUPT_PAYLOAD);
    *byte ^= (unsigned char)(1 + i * 11);
  }
  if (limits.sidecar_bytes) {
    memset(sidecar, 0xff, limits.sidecar_bytes);
    CHECK(p->decompress(plan, &host, payload, used, sidecar, output) ==
          DEVITOCOMP_CORRUPT_PAYLOAD);
  }

  CHECK(guarded(input, bytes) && !memcmp(input, same, bytes));
  CHECK(guarded(output, bytes));
  CHECK(guarded(payload, limits.max_compressed_bytes));
  CHECK(guarded(sidecar, limits.sidecar_bytes));
  p->destroy(plan);
  buffer_free(input);
  buffer_free(output);
  buffer_free(same);
  buffer_free(small);
  buffer_free(payload);
  buffer_free(sidecar);
  return used;
}

static void test_good(const provider_t *p) {
  static const char *const options[] = {NULL, "0", "0.01", "1e-3", "2.5e-5", "1.52e-5",
                                        "1e-6", "1e-8", "1e-12", "0.9", "1", "1000"};
  static const int64_t dims[][4] = {{1, 1, 1, 1}, {3, 5, 2, 7}, {2, 1, 31, 9},
                                    {25, 11, 6, 3}};
  devitocomp_limits_t claims = {sizeof(claims), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  uint32_t dtype, rank;
  size_t o, d;
  int layout, content;

  CHECK(p->limits(NULL, &claims) == DEVITOCOMP_OK);
  for (dtype = DEVITOCOMP_FLOAT32; dtype <= DEVITOCOMP_FLOAT64; dtype++)
    for (rank = 1; rank <= 4; rank++)
      for (layout = CONTIGUOUS; layout < LAYOUTS; layout++) {
        if (!(claims.dtypes & DEVITOCOMP_BIT(dtype)) ||
            !(claims.ranks & DEVITOCOMP_BIT(rank)) ||
            (layout != CONTIGUOUS && !(claims.flags & DEVITOCOMP_STRIDED)))
          continue;
        for (d = 0; d < sizeof(dims) / sizeof(*dims); d++)
          for (o = 0; o < sizeof(options) / sizeof(*options); o++)
            for (content = ZERO; content < CONTENTS; content++) {
              devitocomp_tensor_t tensor = make_tensor(dtype, rank, dims[d],
                                                       (enum layout)layout);
              snprintf(context, sizeof(context),
                       "%s, dtype %u, rank %u, layout %d, dims[%d], options %s, "
                       "content %d", p->name(), (unsigned)dtype, (unsigned)rank, layout,
                       (int)d, options[o] ? options[o] : "NULL", content);
              test_snapshot(p, &tensor, options[o], (enum content)content);
            }
      }
}

/* That payloads are smaller, and of several lengths. */
static void test_sizes(const provider_t *lossy, const provider_t *strided) {
  static const int64_t dims[] = {40, 30, 20};
  devitocomp_tensor_t tensor = make_tensor(DEVITOCOMP_FLOAT32, 3, dims, CONTIGUOUS);
  size_t raw = 40 * 30 * 20 * sizeof(float);

  snprintf(context, sizeof(context), "sizes");
  CHECK(test_snapshot(lossy, &tensor, "1e-3", ZERO) < 16);
  CHECK(test_snapshot(lossy, &tensor, "1e-3", EARLY) < raw / 8);
  CHECK(test_snapshot(lossy, &tensor, "1e-3", NOISE) < raw * 6 / 10);
  CHECK(test_snapshot(lossy, &tensor, "0", NOISE) == raw);
  CHECK(test_snapshot(strided, &tensor, NULL, ZERO) == raw / 40);
  CHECK(test_snapshot(strided, &tensor, NULL, EARLY) == raw / 5);
  CHECK(test_snapshot(strided, &tensor, NULL, NOISE) == raw);
}

/* ---- Bad providers ----------------------------------------------------------------- */

#define FAULTY_ROOM 1024

typedef struct faulty_run {
  int create, limits;
  devitocomp_limits_t l;
  int compress[3], decompress[3];
  size_t used[3];
  int overrun[3];
  char message[128];
} faulty_run_t;

/* Three snapshots there and back, under the fault. */
static faulty_run_t faulty_try(const provider_t *p, const char *fault) {
  static const int64_t dims[] = {4, 6};
  static const float input[24] = {1, 2, 3};
  float output[24];
  unsigned char room[FAULTY_ROOM];
  uint64_t payload[FAULTY_ROOM / 8], sidecar = 0;
  devitocomp_tensor_t tensor = make_tensor(DEVITOCOMP_FLOAT32, 2, dims, CONTIGUOUS);
  devitocomp_plan_t *plan;
  faulty_run_t run;
  const char *message;
  int i;

  memset(&run, 0, sizeof(run));
  memset(room, CANARY, sizeof(room));
  snprintf(context, sizeof(context), "faulty, %s", fault);
  setenv("DEVITOCOMP_FAULT", fault, 1);
  run.create = p->create(DEVITOCOMP_ABI_VERSION, &tensor, &host, NULL, &plan);
  if (plan) {
    run.l.struct_size = sizeof(run.l);
    run.limits = p->limits(plan, &run.l);
    for (i = 0; i < 3; i++) {
      memset(payload, CANARY, sizeof(payload));
      run.compress[i] = p->compress(plan, &host, input, payload, sizeof(input),
                                    &run.used[i], &sidecar);
      run.overrun[i] = !!memcmp((char *)payload + sizeof(input), room,
                                sizeof(payload) - sizeof(input));
    }
    for (i = 0; i < 3; i++)
      run.decompress[i] = p->decompress(plan, &host, payload, sizeof(input), &sidecar,
                                        output);
  }
  message = p->message(plan);
  snprintf(run.message, sizeof(run.message), "%s", message ? message : "(null)");
  p->destroy(plan);
  unsetenv("DEVITOCOMP_FAULT");
  return run;
}

static void test_faulty(const provider_t *p) {
  static const char *const nonsense[] = {"compress", "compress:", "compress:x", "plan:1",
                                         "compress:-1", "unheard-of", ":1"};
  faulty_run_t run;
  size_t i;
  int call;

  run = faulty_try(p, "");
  CHECK(!run.create && !run.limits && !*run.message);
  for (call = 0; call < 3; call++)
    CHECK(!run.compress[call] && run.used[call] == 96 && !run.overrun[call] &&
          !run.decompress[call]);

  run = faulty_try(p, "plan");
  CHECK(run.create == DEVITOCOMP_PROVIDER_ERROR);
  CHECK(!strcmp(run.message, "injected failure"));
  run = faulty_try(p, "limitsfail");
  CHECK(!run.create && run.limits == DEVITOCOMP_PROVIDER_ERROR && *run.message);
  CHECK(faulty_try(p, "align0").l.payload_alignment == 0);
  CHECK(faulty_try(p, "align3").l.payload_alignment == 3);
  CHECK(faulty_try(p, "alignhuge").l.payload_alignment == UINT64_C(1) << 40);
  CHECK(faulty_try(p, "maxhuge").l.max_compressed_bytes == UINT64_C(1) << 63);
  CHECK(faulty_try(p, "sidecarhuge").l.sidecar_bytes == UINT64_C(1) << 62);

  run = faulty_try(p, "compress:1");
  CHECK(!run.compress[0] && run.compress[1] == DEVITOCOMP_PROVIDER_ERROR &&
        !run.compress[2]);
  CHECK(!strcmp(run.message, "injected failure"));
  run = faulty_try(p, "decompress:2");
  CHECK(!run.compress[2] && !run.decompress[1] &&
        run.decompress[2] == DEVITOCOMP_PROVIDER_ERROR);
  CHECK(!strcmp(run.message, "injected failure"));
  run = faulty_try(p, "status:0");
  CHECK(run.compress[0] == 99 && !run.compress[1]);
  run = faulty_try(p, "overlong:2");
  CHECK(run.used[1] == 96 && !run.compress[2] && run.used[2] > 96 && !run.overrun[2]);
  run = faulty_try(p, "zerobytes:1");
  CHECK(run.used[0] == 96 && !run.compress[1] && run.used[1] == 0);
  run = faulty_try(p, "overrun:1");
  CHECK(!run.overrun[0] && !run.compress[1] && run.overrun[1] && !run.overrun[2]);
  run = faulty_try(p, "nomessage");
  CHECK(run.compress[0] == DEVITOCOMP_PROVIDER_ERROR && !run.compress[1]);
  CHECK(!strcmp(run.message, "(null)"));

  for (i = 0; i < sizeof(nonsense) / sizeof(*nonsense); i++)
    CHECK(faulty_try(p, nonsense[i]).create == DEVITOCOMP_INVALID_ARGUMENT);
}

static int header_defines(const char *root, const char *name, int version) {
  char path[4096], line[256], expected[64];
  FILE *file;
  int found = 0;

  snprintf(path, sizeof(path), "%s/%s/include/devitocomp.h", root, name);
  snprintf(expected, sizeof(expected), "#define DEVITOCOMP_ABI_VERSION %d\n", version);
  if (!(file = fopen(path, "r"))) return 0;
  while (fgets(line, sizeof(line), file)) found |= !strcmp(line, expected);
  fclose(file);
  return found;
}

static void test_bad(const char *root) {
  static const int64_t dims[] = {4, 6};
  devitocomp_tensor_t tensor = make_tensor(DEVITOCOMP_FLOAT32, 2, dims, CONTIGUOUS);
  devitocomp_plan_t *plan;
  provider_t p;

  p = provider_open(root, "wrong_version");
  if (CHECK(p.library && p.abi_version() == 999)) {
    CHECK(p.create(DEVITOCOMP_ABI_VERSION, &tensor, &host, NULL, &plan) ==
          DEVITOCOMP_VERSION_MISMATCH);
    CHECK(!plan && strstr(p.message(NULL), "999"));
  }
  CHECK(header_defines(root, "wrong_version", DEVITOCOMP_ABI_VERSION));

  p = provider_open(root, "no_symbol");
  CHECK(p.library && p.compress && p.message && !p.decompress);

  p = provider_open(root, "not_a_library");
  CHECK(!p.library);
  CHECK(header_defines(root, "not_a_library", DEVITOCOMP_ABI_VERSION));

  p = provider_open(root, "old_header");
  CHECK(p.library && p.decompress && p.abi_version() == DEVITOCOMP_ABI_VERSION);
  CHECK(!header_defines(root, "old_header", DEVITOCOMP_ABI_VERSION));
  CHECK(header_defines(root, "old_header", 0));
}

int main(int argc, char **argv) {
  provider_t lossy, strided, faulty;

  if (argc != 2) {
    fprintf(stderr, "usage: check DIR\n");
    return 2;
  }
  unsetenv("DEVITOCOMP_FAULT");
  lossy = provider_need(argv[1], "lossy");
  strided = provider_need(argv[1], "strided");
  faulty = provider_need(argv[1], "faulty");
  test_good(&lossy);
  test_good(&strided);
  test_good(&faulty);
  test_sizes(&lossy, &strided);
  test_faulty(&faulty);
  test_bad(argv[1]);
  printf("test providers: %ld checks, %ld failures\n", checks, failures);
  return failures != 0;
}
