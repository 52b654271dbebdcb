/*
 * test_store.c -- the runtime store, without any provider: the tests compress and
 * decompress themselves.
 */
#define _GNU_SOURCE
#include "testing.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* *** Functions as Devito lays them out */

enum { NX = 5, NY = 6, NZ = 7, POINTS = NX * NY * NZ, RAW = POINTS * 4 };

/* slots x (NX, NY, NZ) with a halo, which holds OUTSIDE. */
typedef struct function {
  int halo;
  int nslots;
  int size[4];
  unsigned long dsize[4];
  int oofs[8];
  float *data;
  size_t count;
} function_t;

static const float OUTSIDE = -7.5f;

static function_t new_function(int nslots, int halo)
{
  static const int domain[4] = {0, NX, NY, NZ};
  function_t f;
  size_t i;

  memset(&f, 0, sizeof(f));
  f.halo = halo;
  f.nslots = f.size[0] = nslots;
  f.dsize[0] = (unsigned long)nslots;
  f.count = (size_t)nslots;
  for (i = 1; i < 4; i++) {
    f.size[i] = domain[i] + 2 * halo;
    f.dsize[i] = (unsigned long)domain[i];
    f.oofs[2 * i] = f.oofs[2 * i + 1] = halo;
    f.count *= (size_t)f.size[i];
  }
  f.data = malloc(f.count * sizeof(float));
  for (i = 0; i < f.count; i++) {
    f.data[i] = OUTSIDE;
  }
  return f;
}

static devitocomp_view_t view_of(const function_t *f, long slot)
{
  return devitocomp_view(f->data, f->size, f->dsize, f->oofs, 4, slot);
}

static float *point(const function_t *f, int slot, int x, int y, int z)
{
  const int h = f->halo;
  return f->data + ((((size_t)slot * (size_t)f->size[1] + (size_t)(x + h))
                     * (size_t)f->size[2] + (size_t)(y + h)) * (size_t)f->size[3]
                    + (size_t)(z + h));
}

static void fill(const function_t *f, int slot, const float *values)
{
  int x, y, z;
  for (x = 0; x < NX; x++) {
    for (y = 0; y < NY; y++) {
      for (z = 0; z < NZ; z++) {
        *point(f, slot, x, y, z) = values ? *values++ : (float)draw(1000);
      }
    }
  }
}

static int equals(const function_t *f, int slot, const float *values)
{
  int x, y, z;
  for (x = 0; x < NX; x++) {
    for (y = 0; y < NY; y++) {
      for (z = 0; z < NZ; z++) {
        if (*point(f, slot, x, y, z) != (values ? *values++ : 0.0f)) {
          return 0;
        }
      }
    }
  }
  return 1;
}

static int halo_is_intact(const function_t *f)
{
  const size_t points = (size_t)f->nslots * POINTS;
  size_t outside = 0, i;
  for (i = 0; i < f->count; i++) {
    outside += f->data[i] == OUTSIDE;
  }
  return outside >= f->count - points;
}

static void draw_values(float *values)
{
  int i;
  for (i = 0; i < POINTS; i++) {
    values[i] = (float)draw(1000);
  }
}

/* *** The provider that the tests play: a payload is the values and some padding */

enum { EXTRA = 100, SIDECAR = 12 };

static int compressions, decompressions;

static const devitocomp_limits_t default_limits = {
  .struct_size = sizeof(devitocomp_limits_t),
  .payload_version = 1,
  .max_compressed_bytes = RAW + EXTRA,
  .payload_alignment = 8,
  .sidecar_bytes = SIDECAR,
  .sidecar_alignment = 8,
};

static void copy_tensor(float *packed, float *tensor, const int64_t *strides, int pack)
{
  int64_t x, y, z;
  for (x = 0; x < NX; x++) {
    for (y = 0; y < NY; y++) {
      for (z = 0; z < NZ; z++) {
        float *const element = tensor + x * strides[0] + y * strides[1] + z * strides[2];
        if (pack) {
          *packed++ = *element;
        } else {
          *element = *packed++;
        }
      }
    }
  }
}

static devitocomp_store_t *new_store(int64_t nsnapshots,
                                     const devitocomp_limits_t *limits)
{
  const devitocomp_store_config_t config = {
    "usave", nsnapshots, DEVITOCOMP_FLOAT32, 3, {NX, NY, NZ}
  };
  devitocomp_store_t *const store = devitocomp_store_create(&config);
  CHECK(store);
  CHECK(devitocomp_store_bind(store, limits ? limits : &default_limits) == DEVITOCOMP_OK);
  return store;
}

/* Store a snapshot of RAW + padding bytes, or fail with status. */
static void save(devitocomp_store_t *store, int64_t index, const function_t *f, int at,
                 size_t padding, int status)
{
  const devitocomp_view_t view = view_of(f, at);
  const devitocomp_tensor_t tensor = devitocomp_store_tensor(store, view);
  devitocomp_slot_t slot = devitocomp_store_reserve(store, index, view);

  if (!slot.ready) {
    return;
  }
  compressions++;
  CHECK(slot.capacity >= RAW + padding);
  memset(slot.payload, 0x55, slot.capacity);
  if (status == DEVITOCOMP_OK) {
    copy_tensor(slot.payload, slot.tensor, tensor.strides, 1);
  }
  slot.payload_bytes = RAW + padding;
  if (slot.sidecar) {
    memset(slot.sidecar, 0, SIDECAR);
    memcpy(slot.sidecar, &index, sizeof(index));
  }
  devitocomp_store_commit(store, &slot, status, status ? "did not want to" : NULL);
}

/* Load a snapshot. Returns nonzero if the provider was asked. */
static int load(devitocomp_store_t *store, int64_t index, const function_t *f, int at,
                int flags, int status)
{
  const devitocomp_view_t view = view_of(f, at);
  const devitocomp_tensor_t tensor = devitocomp_store_tensor(store, view);
  devitocomp_slot_t slot = devitocomp_store_acquire(store, index, view, flags);

  if (!slot.ready) {
    return 0;
  }
  decompressions++;
  CHECK(slot.payload_bytes >= RAW);
  if (slot.sidecar) {
    CHECK(!memcmp(slot.sidecar, &index, sizeof(index)));
  }
  if (status == DEVITOCOMP_OK) {
    copy_tensor(slot.payload, slot.tensor, tensor.strides, 0);
  }
  devitocomp_store_release(store, &slot, status, status ? "could not" : NULL);
  return 1;
}

static devitocomp_failure_t failure_of(const devitocomp_store_t *store)
{
  devitocomp_failure_t failure;
  devitocomp_store_failure(store, &failure);
  return failure;
}

static int failed_with(const devitocomp_store_t *store, int status, int64_t index,
                       const char *action, const char *text)
{
  const devitocomp_failure_t failure = failure_of(store);
  const int matches = devitocomp_store_failed(store) && failure.status == status
    && failure.index == index && !strcmp(failure.action, action)
    && strstr(failure.message, text);
  if (!matches) {
    fprintf(stderr, "failure: status %d, index %" PRId64 ", %s: %s\n", failure.status,
            failure.index, failure.action, failure.message);
  }
  return matches;
}

static devitocomp_usage_t usage_of(const devitocomp_store_t *store)
{
  devitocomp_usage_t usage;
  devitocomp_store_usage(store, &usage);
  return usage;
}

/* *** Tests */

static void test_views(void)
{
  function_t f = new_function(3, 2);
  const devitocomp_view_t view = view_of(&f, 1);
  const devitocomp_view_t whole = devitocomp_view(f.data, f.size, f.dsize, f.oofs, 4, -1);
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *store;
  devitocomp_tensor_t tensor;

  CHECK(view.rank == 3 && whole.rank == 4);
  CHECK(view.dims[0] == NX && view.dims[2] == NZ && whole.dims[0] == 3);
  CHECK((float *)view.data + view.offset == point(&f, 1, 0, 0, 0));
  CHECK((float *)whole.data + whole.offset == point(&f, 0, 0, 0, 0));

  store = new_store(4, NULL);
  tensor = devitocomp_store_tensor(store, view);
  CHECK(tensor.struct_size == sizeof(tensor) && tensor.rank == 3);
  CHECK(tensor.dtype == DEVITOCOMP_FLOAT32 && tensor.dims[1] == NY);
  CHECK(tensor.strides[0] == NY * NZ && tensor.strides[1] == NZ);
  CHECK(tensor.strides[2] == 1);
  devitocomp_store_destroy(store);

  limits.flags = DEVITOCOMP_STRIDED;
  store = new_store(4, &limits);
  tensor = devitocomp_store_tensor(store, view);
  CHECK(!memcmp(tensor.strides, view.strides, sizeof(tensor.strides)));
  CHECK(tensor.strides[1] == NZ + 4);
  devitocomp_store_destroy(store);
  free(f.data);
}

static void test_staging(void)
{
  const int threads[] = {0, 1, 3};
  float values[POINTS];
  int strided, halo, i;

  for (strided = 0; strided < 2; strided++) {
    for (halo = 0; halo < 3; halo++) {
      for (i = 0; i < 3; i++) {
        function_t f = new_function(2, halo);
        devitocomp_limits_t limits = default_limits;
        devitocomp_store_t *store;
        devitocomp_slot_t slot;

        limits.flags = strided ? DEVITOCOMP_STRIDED : 0;
        store = new_store(3, &limits);
        CHECK(devitocomp_store_begin(store, threads[i]) == DEVITOCOMP_OK);
        draw_values(values);
        fill(&f, 1, values);
        slot = devitocomp_store_reserve(store, 2, view_of(&f, 1));
        CHECK(slot.ready && slot.index == 2 && slot.capacity == RAW + EXTRA);
        CHECK((slot.tensor == point(&f, 1, 0, 0, 0)) == (strided || !halo));
        CHECK((uintptr_t)slot.tensor % (strided || !halo ? 4 : 64) == 0);
        slot.payload_bytes = 0;
        devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
        CHECK(!slot.ready);

        save(store, 2, &f, 1, 5, DEVITOCOMP_OK);
        fill(&f, 1, NULL);
        CHECK(load(store, 2, &f, 0, 0, DEVITOCOMP_OK));
        CHECK(equals(&f, 0, values));
        CHECK(halo_is_intact(&f));
        CHECK(!devitocomp_store_failed(store));
        devitocomp_store_end(store);
        devitocomp_store_destroy(store);
        free(f.data);
      }
    }
  }
}

/* Domains large enough for the store's copies to run in parallel. */
static void test_large_copies(void)
{
  enum { N = 70, PAD = 3, SIZE = N + 2 * PAD };
  const devitocomp_store_config_t config = {
    "usave", 2, DEVITOCOMP_FLOAT64, 3, {N, N, N}
  };
  const int size[4] = {2, SIZE, SIZE, SIZE};
  const unsigned long dsize[4] = {2, N, N, N};
  const int oofs[8] = {0, 0, PAD, PAD, PAD, PAD, PAD, PAD};
  const size_t slot_count = (size_t)SIZE * SIZE * SIZE;
  double *const data = malloc(2 * slot_count * sizeof(double));
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *store = devitocomp_store_create(&config);
  devitocomp_view_t views[2];
  devitocomp_slot_t slot;
  size_t i, wrong = 0;
  int step;

  limits.max_compressed_bytes = (uint64_t)N * N * N * sizeof(double);
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 4) == DEVITOCOMP_OK);
  for (i = 0; i < 2 * slot_count; i++) {
    data[i] = (double)i;
  }
  views[0] = devitocomp_view(data, size, dsize, oofs, 4, 0);
  views[1] = devitocomp_view(data, size, dsize, oofs, 4, 1);

  slot = devitocomp_store_reserve(store, 0, views[0]);
  CHECK(slot.ready);
  memcpy(slot.payload, slot.tensor, slot.capacity);
  slot.payload_bytes = slot.capacity;
  devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);

  for (step = 0; step < 3; step++) {
    /* Decoded, then copied from one view to the other, then zeroed. */
    const devitocomp_view_t view = views[step ? 0 : 1];
    double *const at = data + (step ? 0 : slot_count);
    size_t x, y, z;
    slot = devitocomp_store_acquire(store, step == 2, view, 0);
    CHECK(slot.ready == (step == 0));
    if (slot.ready) {
      memcpy(slot.tensor, slot.payload, slot.payload_bytes);
      devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
    }
    for (x = 0; x < SIZE; x++) {
      for (y = 0; y < SIZE; y++) {
        for (z = 0; z < SIZE; z++) {
          const size_t k = (x * SIZE + y) * SIZE + z;
          const int inside = x - PAD < N && y - PAD < N && z - PAD < N;
          const double outside = (double)(k + (step ? 0 : slot_count));
          wrong += at[k] != (inside ? (step == 2 ? 0.0 : (double)k) : outside);
        }
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(!devitocomp_store_failed(store));
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
  free(data);
}

/* Elements that are not next to each other, and dimensions of one. */
static void test_odd_strides(void)
{
  const devitocomp_store_config_t config = {
    "usave", 1, DEVITOCOMP_FLOAT16, 3, {3, 1, 4}
  };
  devitocomp_store_t *const store = devitocomp_store_create(&config);
  uint16_t data[256], loaded[256];
  devitocomp_view_t view;
  devitocomp_slot_t slot;
  int i, x, z;

  CHECK(devitocomp_store_bind(store, &default_limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  for (i = 0; i < 256; i++) {
    data[i] = (uint16_t)i;
    loaded[i] = 999;
  }
  memset(&view, 0, sizeof(view));
  view.data = data;
  view.offset = 200;
  view.rank = 3;
  view.kind = DEVITOCOMP_EXECUTION_HOST;
  view.dims[0] = 3;
  view.dims[1] = 1;
  view.dims[2] = 4;
  view.strides[0] = -40;
  view.strides[1] = 12345;
  view.strides[2] = 3;
  slot = devitocomp_store_reserve(store, 0, view);
  CHECK(slot.ready);
  for (x = 0; x < 3; x++) {
    for (z = 0; z < 4; z++) {
      CHECK(((uint16_t *)slot.tensor)[4 * x + z] == 200 - 40 * x + 3 * z);
    }
  }
  memcpy(slot.payload, slot.tensor, 24);
  slot.payload_bytes = 24;
  devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);

  view.data = loaded;
  slot = devitocomp_store_acquire(store, 0, view, 0);
  CHECK(slot.ready);
  memcpy(slot.tensor, slot.payload, 24);
  devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
  for (i = 0; i < 256; i++) {
    int inside = 0;
    for (x = 0; x < 3; x++) {
      for (z = 0; z < 4; z++) {
        inside |= i == 200 - 40 * x + 3 * z;
      }
    }
    CHECK(loaded[i] == (inside ? i : 999));
  }
  /* Contiguous but for the stride of a dimension of one: no staging. */
  view.strides[0] = 4;
  view.strides[2] = 1;
  slot = devitocomp_store_acquire(store, 0, view, 0);
  CHECK(slot.ready && slot.tensor == loaded + 200);
  devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
}

static void test_residency(void)
{
  function_t f = new_function(20, 1);
  devitocomp_store_t *const store = new_store(30, NULL);
  devitocomp_view_t view;
  devitocomp_slot_t slot;
  float a[POINTS], b[POINTS];
  int i;

  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  draw_values(a);
  draw_values(b);
  fill(&f, 0, a);
  save(store, 4, &f, 0, 0, DEVITOCOMP_OK);

  /* What was stored is not remembered: with a lossy provider it differs. */
  CHECK(load(store, 4, &f, 0, 0, DEVITOCOMP_OK));
  CHECK(!load(store, 4, &f, 0, 0, DEVITOCOMP_OK));
  CHECK(!load(store, 4, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, a));

  /* A copy into a view that will be modified is not remembered, the original is. */
  CHECK(!load(store, 4, &f, 2, DEVITOCOMP_WILL_MODIFY, DEVITOCOMP_OK));
  CHECK(equals(&f, 2, a));
  fill(&f, 2, b);
  CHECK(!load(store, 4, &f, 2, 0, DEVITOCOMP_OK) && equals(&f, 2, a));

  /* A view that holds the snapshot is forgotten when it is going to be modified. */
  CHECK(!load(store, 4, &f, 2, DEVITOCOMP_WILL_MODIFY, DEVITOCOMP_OK));
  fill(&f, 2, b);
  CHECK(!load(store, 4, &f, 2, 0, DEVITOCOMP_OK) && equals(&f, 2, a));

  /* Storing another snapshot from a view forgets that view only. */
  fill(&f, 0, b);
  save(store, 5, &f, 0, 0, DEVITOCOMP_OK);
  CHECK(!load(store, 4, &f, 0, 0, DEVITOCOMP_OK) && equals(&f, 0, a));

  /* Storing a snapshot again forgets all that hold it. */
  fill(&f, 3, b);
  save(store, 4, &f, 3, 7, DEVITOCOMP_OK);
  CHECK(load(store, 4, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, b));
  CHECK(!load(store, 4, &f, 0, 0, DEVITOCOMP_OK) && equals(&f, 0, b));

  /* Never written: zeros, remembered like others. */
  CHECK(!load(store, 9, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, NULL));
  *point(&f, 1, 0, 0, 0) = 1;
  CHECK(!load(store, 9, &f, 1, DEVITOCOMP_WILL_MODIFY, DEVITOCOMP_OK));
  CHECK(*point(&f, 1, 0, 0, 0) == 1);
  CHECK(!load(store, 9, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, NULL));

  /* A snapshot that is stored after it was read as zeros. */
  fill(&f, 6, a);
  save(store, 9, &f, 6, 0, DEVITOCOMP_OK);
  CHECK(load(store, 9, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, a));

  /* A view that overlaps: one row further. */
  view = view_of(&f, 1);
  view.offset += f.size[3];
  slot = devitocomp_store_acquire(store, 4, view, 0);
  CHECK(!slot.ready);
  CHECK(load(store, 9, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, a));
  slot = devitocomp_store_acquire(store, 9, view, 0);
  CHECK(slot.ready);
  devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
  for (i = 0; i < f.size[0]; i++) {
    fill(&f, i, NULL);
  }

  /* A view of the same memory with other strides is another view. */
  devitocomp_store_end(store);
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  CHECK(load(store, 9, &f, 1, 0, DEVITOCOMP_OK));
  view = view_of(&f, 1);
  view.strides[0] = 1;
  view.strides[2] = f.size[2] * f.size[3];
  slot = devitocomp_store_acquire(store, 9, view, 0);
  CHECK(slot.ready);
  devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);

  /* Runs forget. */
  devitocomp_store_end(store);
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  CHECK(load(store, 4, &f, 1, 0, DEVITOCOMP_OK));
  CHECK(load(store, 9, &f, 6, 0, DEVITOCOMP_OK));

  /* More views than are remembered. */
  for (i = 0; i < 20; i++) {
    (void)load(store, i % 2 ? 4 : 9, &f, i, 0, DEVITOCOMP_OK);
    CHECK(equals(&f, i, i % 2 ? b : a));
  }
  for (i = 0; i < 20; i++) {
    (void)load(store, i % 2 ? 4 : 9, &f, i, 0, DEVITOCOMP_OK);
    CHECK(equals(&f, i, i % 2 ? b : a));
  }
  CHECK(!devitocomp_store_failed(store));
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
  free(f.data);
}

static void test_failures(void)
{
  function_t f = new_function(2, 1);
  devitocomp_store_t *const store = new_store(5, NULL);
  const int unknown[] = {-1, 8, 4711};
  devitocomp_view_t view;
  devitocomp_slot_t slot, other;
  devitocomp_snapshot_info_t info;
  float a[POINTS], b[POINTS];
  char longest[2000], number[16];
  int i, status;

  draw_values(a);
  draw_values(b);

  /* Outside a run. */
  save(store, 0, &f, 0, 0, DEVITOCOMP_OK);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, 0, "store", "run"));

  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  CHECK(!devitocomp_store_failed(store) && failure_of(store).index == -1);
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_store_bind(store, &default_limits) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(!devitocomp_store_failed(store));
  fill(&f, 0, a);
  save(store, 0, &f, 0, 0, DEVITOCOMP_OK);
  devitocomp_store_clear(store);
  CHECK(load(store, 0, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, a));

  /* Every status, to compress and to decompress; the first failure wins. */
  for (status = 1; status <= DEVITOCOMP_PROVIDER_ERROR; status++) {
    devitocomp_store_end(store);
    CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
    fill(&f, 0, b);
    save(store, 0, &f, 0, 3, status);
    CHECK(failed_with(store, status, 0, "compress", "did not want to"));
    fill(&f, 1, b);
    compressions = decompressions = 0;
    CHECK(!load(store, 0, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, b));
    CHECK(!load(store, 3, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, b));
    save(store, 1, &f, 0, 0, DEVITOCOMP_OK);
    save(store, 77, &f, 0, 0, DEVITOCOMP_OK);
    devitocomp_store_planned(store, DEVITOCOMP_UNSUPPORTED, "no", default_limits);
    CHECK(!compressions && !decompressions);
    CHECK(failed_with(store, status, 0, "compress", "did not want to"));
    devitocomp_store_end(store);
    CHECK(failed_with(store, status, 0, "compress", "did not want to"));
    CHECK(devitocomp_store_info(store, 1, &info) == DEVITOCOMP_OK && !info.stored);

    CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
    CHECK(load(store, 0, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, a));
    CHECK(!load(store, 1, &f, 1, 0, DEVITOCOMP_OK));
    CHECK(load(store, 0, &f, 1, 0, status));
    CHECK(failed_with(store, status, 0, "decompress", "could not"));
    devitocomp_store_end(store);
    CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
    CHECK(load(store, 0, &f, 1, 0, DEVITOCOMP_OK) && equals(&f, 1, a));
  }

  /* Statuses that are none, and messages that are missing or too long. */
  memset(longest, 'x', sizeof(longest));
  longest[sizeof(longest) - 1] = '\0';
  for (i = 0; i < 3; i++) {
    devitocomp_store_end(store);
    CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
    slot = devitocomp_store_acquire(store, 0, view_of(&f, 1), 0);
    CHECK(slot.ready);
    devitocomp_store_release(store, &slot, unknown[i], NULL);
    snprintf(number, sizeof(number), "%d", unknown[i]);
    CHECK(failed_with(store, DEVITOCOMP_PROVIDER_ERROR, 0, "decompress", number));
    devitocomp_store_end(store);
    CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
    slot = devitocomp_store_acquire(store, 0, view_of(&f, 1), 0);
    CHECK(slot.ready);
    devitocomp_store_release(store, &slot, 5, i == 0 ? NULL : i == 1 ? "" : longest);
    CHECK(failed_with(store, 5, 0, "decompress", i < 2 ? "corrupt" : "xxxx"));
  }

  /* Indices and views that do not fit. */
  for (i = 0; i < 6; i++) {
    static const int64_t wrong[] = {-1, 5, INT64_MAX, INT64_MIN};
    devitocomp_store_end(store);
    CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
    if (i < 4) {
      slot = devitocomp_store_reserve(store, wrong[i], view_of(&f, 0));
      CHECK(!slot.ready);
      CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, wrong[i], "store",
                        "is outside [0, 5)"));
      devitocomp_store_end(store);
      CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
      slot = devitocomp_store_acquire(store, wrong[i], view_of(&f, 0), 0);
      CHECK(!slot.ready);
      CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, wrong[i], "load",
                        "is outside [0, 5)"));
    } else {
      view = view_of(&f, 0);
      if (i == 4) {
        view.dims[1]++;
      } else {
        view.rank = 2;
      }
      slot = devitocomp_store_acquire(store, 0, view, 0);
      CHECK(!slot.ready);
      CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, 0, "load",
                        i == 4 ? "(5, 7, 7)" : "(5, 6)"));
    }
  }
  devitocomp_store_end(store);
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  view = view_of(&f, 0);
  view.kind = DEVITOCOMP_EXECUTION_HIP + 1;
  slot = devitocomp_store_reserve(store, 0, view);
  CHECK(!slot.ready);
  CHECK(failed_with(store, DEVITOCOMP_UNSUPPORTED, 0, "store", "execution kind 4"));
  devitocomp_store_end(store);
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  view.kind = DEVITOCOMP_EXECUTION_HOST;
  view.data = NULL;
  slot = devitocomp_store_reserve(store, 0, view);
  CHECK(!slot.ready);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, 0, "store", "no data"));
  devitocomp_store_end(store);

  /* One slot at a time. */
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  slot = devitocomp_store_reserve(store, 1, view_of(&f, 0));
  CHECK(slot.ready);
  other = devitocomp_store_acquire(store, 0, view_of(&f, 1), 0);
  CHECK(!other.ready);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, 0, "load", "snapshot 1"));
  slot.payload_bytes = RAW;
  devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
  CHECK(devitocomp_store_info(store, 1, &info) == DEVITOCOMP_OK && !info.stored);
  devitocomp_store_end(store);

  /* A slot that was never committed, in a run that ended, is void. */
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  slot = devitocomp_store_reserve(store, 1, view_of(&f, 0));
  CHECK(slot.ready);
  devitocomp_store_end(store);
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, 1, "compress", "slot"));
  devitocomp_store_end(store);
  devitocomp_store_end(store);

  CHECK(halo_is_intact(&f));
  devitocomp_store_destroy(store);
  free(f.data);
}

static void test_plans(void)
{
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *store;
  int i;

  limits.flags = DEVITOCOMP_STRIDED;
  store = new_store(3, &limits);
  for (i = 0; i < 9; i++) {
    static const char *const texts[] = {
      "no device", "payload version 9", "1000000 bytes", "aligned to 16", "aligned to 0",
      "sidecars of 13", "aligned to 16", "contiguous", ""
    };
    devitocomp_limits_t plan = limits;
    int status = DEVITOCOMP_INVALID_ARGUMENT;

    switch (i) {
      case 0: status = DEVITOCOMP_UNSUPPORTED; break;
      case 1: status = DEVITOCOMP_VERSION_MISMATCH; plan.payload_version = 9; break;
      case 2: plan.max_compressed_bytes = 1000000; break;
      case 3: plan.payload_alignment = 16; break;
      case 4: plan.payload_alignment = 0; break;
      case 5: plan.sidecar_bytes = 13; break;
      case 6: plan.sidecar_alignment = 16; break;
      case 7: plan.flags = DEVITOCOMP_DETERMINISTIC; break;
      default:
        status = DEVITOCOMP_OK;
        plan.max_compressed_bytes--;
        plan.payload_alignment = 4;
        plan.flags |= DEVITOCOMP_DETERMINISTIC;
    }
    CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
    devitocomp_store_planned(store, i ? DEVITOCOMP_OK : status, "no device", plan);
    if (status) {
      CHECK(failed_with(store, status, -1, "create a plan", texts[i]));
    } else {
      CHECK(!devitocomp_store_failed(store));
    }
    devitocomp_store_end(store);
  }
  devitocomp_store_destroy(store);
}

static void test_bind(void)
{
  static const uint64_t bad[] = {0, 3, 48, 8192, UINT64_C(1) << 63};
  function_t f = new_function(1, 0);
  const devitocomp_store_config_t config = {
    "usave", 3, DEVITOCOMP_FLOAT32, 3, {NX, NY, NZ}
  };
  devitocomp_store_config_t broken;
  devitocomp_limits_t limits;
  devitocomp_store_t *store = devitocomp_store_create(&config);
  size_t i;

  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  devitocomp_store_planned(store, DEVITOCOMP_OK, NULL, default_limits);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, -1, "create a plan", "limits"));
  devitocomp_store_end(store);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  save(store, 1, &f, 0, 0, DEVITOCOMP_OK);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, 1, "store", "limits"));
  devitocomp_store_end(store);

  CHECK(devitocomp_store_put(store, 0, &f, 1, &f) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, 0, "store", "limits"));

  for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
    limits = default_limits;
    limits.payload_alignment = bad[i];
    CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
    CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, -1, "store", "payload align"));
    limits = default_limits;
    limits.sidecar_alignment = bad[i];
    CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
    CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, -1, "store", "sidecar align"));
  }
  limits = default_limits;
  limits.max_compressed_bytes = (UINT64_C(1) << 62) + 1;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  limits = default_limits;
  limits.struct_size = 8;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_store_bind(store, NULL) == DEVITOCOMP_INVALID_ARGUMENT);

  /* A request that no machine can serve. */
  limits = default_limits;
  limits.max_compressed_bytes = UINT64_C(1) << 62;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  save(store, 1, &f, 0, 0, DEVITOCOMP_OK);
  CHECK(failed_with(store, DEVITOCOMP_OUT_OF_MEMORY, 1, "store", "46116860"));
  devitocomp_store_end(store);
  limits = default_limits;
  limits.sidecar_bytes = UINT64_C(1) << 62;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  save(store, 1, &f, 0, 0, DEVITOCOMP_OK);
  CHECK(failed_with(store, DEVITOCOMP_OUT_OF_MEMORY, 1, "store", "sidecars"));
  devitocomp_store_end(store);

  /* Other limits once something is stored. */
  CHECK(devitocomp_store_bind(store, &default_limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  save(store, 1, &f, 0, 0, DEVITOCOMP_OK);
  devitocomp_store_end(store);
  CHECK(devitocomp_store_bind(store, &default_limits) == DEVITOCOMP_OK);
  limits = default_limits;
  limits.payload_version++;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, -1, "store", "other limits"));
  limits = default_limits;
  limits.payload_alignment *= 2;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  limits = default_limits;
  limits.sidecar_bytes--;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  /* Those that it obeys: room is as large as asked for, from now on. */
  limits = default_limits;
  limits.max_compressed_bytes += 10;
  limits.payload_alignment /= 2;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  save(store, 2, &f, 0, EXTRA + 10, DEVITOCOMP_OK);
  CHECK(load(store, 1, &f, 0, 0, DEVITOCOMP_OK));
  CHECK(!devitocomp_store_failed(store));
  devitocomp_store_end(store);
  limits.payload_version++;
  devitocomp_store_clear(store);
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  devitocomp_store_destroy(store);
  devitocomp_store_destroy(NULL);

  broken = config;
  broken.dtype = 99;
  CHECK(!devitocomp_store_create(&broken));
  broken = config;
  broken.rank = 9;
  CHECK(!devitocomp_store_create(&broken));
  broken = config;
  broken.dims[1] = -1;
  CHECK(!devitocomp_store_create(&broken));
  broken = config;
  broken.dims[0] = broken.dims[1] = INT64_C(1) << 40;
  CHECK(!devitocomp_store_create(&broken));
  broken = config;
  broken.nsnapshots = -1;
  CHECK(!devitocomp_store_create(&broken));
  free(f.data);
}

static void test_overruns(void)
{
  function_t f = new_function(1, 0);
  devitocomp_store_t *const store = new_store(3, NULL);
  devitocomp_slot_t slot;
  devitocomp_snapshot_info_t info;
  float a[POINTS];
  int i;

  draw_values(a);
  fill(&f, 0, a);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  save(store, 1, &f, 0, 0, DEVITOCOMP_OK);
  devitocomp_store_end(store);
  for (i = 0; i < 8; i++) {
    CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
    slot = devitocomp_store_reserve(store, 1, view_of(&f, 0));
    CHECK(slot.ready);
    CHECK(((char *)slot.sidecar)[0] == 0 && ((char *)slot.sidecar)[SIDECAR - 1] == 0);
    memset(slot.payload, 1, slot.capacity);
    memset(slot.sidecar, 1, SIDECAR);
    slot.payload_bytes = 100;
    switch (i) {
      case 0: ((char *)slot.payload)[slot.capacity] ^= 1; break;
      case 1: memset((char *)slot.payload + slot.capacity, 0, 64); break;
      case 2: ((char *)slot.payload)[slot.capacity + 63] ^= 1; break;
      case 3: ((char *)slot.sidecar)[SIDECAR] ^= 1; break;
      case 4: ((char *)slot.sidecar)[SIDECAR + 63] ^= 1; break;
      case 5: slot.payload_bytes = slot.capacity + 1; break;
      case 6: slot.payload_bytes = SIZE_MAX; break;
      default: ((char *)slot.payload)[slot.capacity] ^= 1;
    }
    devitocomp_store_commit(store, &slot, i == 7 ? DEVITOCOMP_OUT_OF_MEMORY : 0, "no");
    CHECK(failed_with(store, DEVITOCOMP_PROVIDER_ERROR, 1, "compress",
                      i == 3 || i == 4 ? "beyond the 12 bytes of the sidecar"
                      : i == 5 ? "941 of the 940 bytes"
                      : i == 6 ? "940" : "wrote beyond the 940 bytes it was given"));
    devitocomp_store_end(store);
    CHECK(devitocomp_store_info(store, 1, &info) == DEVITOCOMP_OK);
    CHECK(info.stored && info.payload_bytes == RAW);
    CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
    fill(&f, 0, NULL);
    CHECK(load(store, 1, &f, 0, 0, DEVITOCOMP_OK) && equals(&f, 0, a));
    devitocomp_store_end(store);
  }
  devitocomp_store_destroy(store);
  free(f.data);
}

/* A rank that has no points of the function. */
static void test_empty(void)
{
  const devitocomp_store_config_t config = {
    "usave", 3, DEVITOCOMP_FLOAT32, 3, {NX, 0, NZ}
  };
  function_t f = new_function(1, 0);
  const void *payload = &config, *sidecar = &config;
  devitocomp_store_t *store = devitocomp_store_create(&config);
  devitocomp_snapshot_info_t info;
  devitocomp_view_t view = view_of(&f, 0);
  devitocomp_tensor_t tensor;
  devitocomp_slot_t slot;
  size_t bytes = 1;

  view.dims[1] = 0;
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  tensor = devitocomp_store_tensor(store, view);
  CHECK(tensor.dims[0] == NX && tensor.dims[1] == 1 && tensor.strides[0] == NZ);
  devitocomp_store_planned(store, DEVITOCOMP_UNSUPPORTED, "too thin", default_limits);
  slot = devitocomp_store_reserve(store, 2, view);
  CHECK(!slot.ready);
  devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
  slot = devitocomp_store_acquire(store, 2, view, 0);
  CHECK(!slot.ready);
  slot = devitocomp_store_acquire(store, 1, view, 0);
  CHECK(!slot.ready && !devitocomp_store_failed(store));
  slot = devitocomp_store_reserve(store, 3, view);
  CHECK(!slot.ready);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, 3, "store", "outside [0, 3)"));
  devitocomp_store_end(store);
  CHECK(devitocomp_store_info(store, 2, &info) == DEVITOCOMP_OK);
  CHECK(info.stored && !info.raw_bytes && !info.payload_bytes);
  CHECK(devitocomp_store_info(store, 1, &info) == DEVITOCOMP_OK && !info.stored);
  CHECK(devitocomp_store_peek(store, 2, &payload, &bytes, &sidecar) == DEVITOCOMP_OK);
  CHECK(!payload && !bytes && !sidecar);
  CHECK(devitocomp_store_put(store, 0, payload, bytes, sidecar) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_put(store, 0, &f, 1, NULL) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_store_info(store, 0, &info) == DEVITOCOMP_OK && info.stored);
  CHECK(usage_of(store).stored_bytes == 0 && usage_of(store).resident_bytes == 0);
  devitocomp_store_destroy(store);

  /* An empty view leaves what a store with points holds alone. */
  store = new_store(2, NULL);
  CHECK(devitocomp_store_begin(store, 2) == DEVITOCOMP_OK);
  save(store, 1, &f, 0, 0, DEVITOCOMP_OK);
  slot = devitocomp_store_reserve(store, 1, view);
  CHECK(!slot.ready);
  slot = devitocomp_store_reserve(store, 0, view);
  CHECK(!slot.ready && !devitocomp_store_failed(store));
  CHECK(load(store, 1, &f, 0, 0, DEVITOCOMP_OK));
  CHECK(!load(store, 0, &f, 0, 0, DEVITOCOMP_OK) && equals(&f, 0, NULL));
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
  free(f.data);
}

/* Payloads start where the provider asks, the next right behind the last. */
static void test_packing(void)
{
  enum { N = 40 };
  function_t f = new_function(1, 0);
  uint64_t alignment;

  for (alignment = 1; alignment <= 4096; alignment *= 2) {
    devitocomp_limits_t limits = default_limits;
    devitocomp_store_t *store;
    devitocomp_usage_t usage;
    const char *expected = NULL;
    uint64_t sum = 0;
    int64_t i;

    limits.payload_alignment = alignment;
    limits.sidecar_alignment = alignment;
    store = new_store(N, &limits);
    CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
    for (i = 0; i < N; i++) {
      devitocomp_slot_t slot = devitocomp_store_reserve(store, i, view_of(&f, 0));
      CHECK(slot.ready && (!expected || slot.payload == expected));
      CHECK((uintptr_t)slot.payload % alignment == 0);
      CHECK((uintptr_t)slot.sidecar % alignment == 0);
      slot.payload_bytes = (size_t)draw(slot.capacity + 1);
      if (i % 10 == 9) {
        slot.payload_bytes = i % 20 == 9 ? 0 : slot.capacity;
      }
      sum += slot.payload_bytes;
      expected = (char *)slot.payload
        + (slot.payload_bytes + alignment - 1) / alignment * alignment;
      devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
    }
    for (i = 0; i < N; i++) {
      devitocomp_slot_t slot = devitocomp_store_acquire(store, i, view_of(&f, 0), 0);
      CHECK(slot.ready && slot.payload && (uintptr_t)slot.payload % alignment == 0);
      CHECK((uintptr_t)slot.sidecar % alignment == 0);
      devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
    }
    CHECK(!devitocomp_store_failed(store));
    CHECK(usage_of(store).stored_bytes == sum + N * SIDECAR);
    devitocomp_store_end(store);
    usage = usage_of(store);
    if (!CHECK(usage.resident_bytes <= sum + N * alignment + 4096)) {
      fprintf(stderr, "payloads of %" PRIu64 " bytes aligned to %" PRIu64 " occupied %"
              PRIu64 "\n", sum, alignment, usage.resident_bytes);
    }
    devitocomp_store_clear(store);
    CHECK(usage_of(store).stored_bytes == 0 && usage_of(store).resident_bytes == 0);
    devitocomp_store_destroy(store);
  }
  free(f.data);
}

/* Payloads of a megabyte over several chunks: overhead in memory really occupied. */
static void test_overhead(void)
{
  enum { N = 150, MOST = 4 << 20, LEAST = 1 << 20 };
  const devitocomp_store_config_t config = {
    "usave", N, DEVITOCOMP_FLOAT32, 1, {MOST / 4}
  };
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *const store = devitocomp_store_create(&config);
  float *const data = calloc(MOST, 1);
  devitocomp_view_t view;
  devitocomp_usage_t usage;
  uint64_t sum = 0, sum_resident;
  int64_t i;
  int round;

  memset(&view, 0, sizeof(view));
  view.data = data;
  view.rank = 1;
  view.kind = DEVITOCOMP_EXECUTION_HOST;
  view.dims[0] = MOST / 4;
  view.strides[0] = 1;
  limits.max_compressed_bytes = MOST;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  for (round = 0; round < 3; round++) {
    CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
    sum = 0;
    for (i = 0; i < N; i++) {
      devitocomp_slot_t slot = devitocomp_store_reserve(store, i, view);
      if (!CHECK(slot.ready)) {
        break;
      }
      slot.payload_bytes = LEAST + (size_t)draw(LEAST / 8);
      sum += slot.payload_bytes;
      memset(slot.payload, (int)i, slot.payload_bytes);
      devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
    }
    usage = usage_of(store);
    CHECK(usage.resident_bytes <= 11 * sum / 10 + 2 * MOST);
    devitocomp_store_end(store);
    usage = usage_of(store);
    sum_resident = round ? 11 * sum / 10 : 102 * sum / 100;
    CHECK(usage.stored_bytes == sum + N * SIDECAR);
    if (!CHECK(usage.resident_bytes >= sum && usage.resident_bytes <= sum_resident)) {
      fprintf(stderr, "round %d: stored %" PRIu64 ", resident %" PRIu64 "\n", round,
              usage.stored_bytes, usage.resident_bytes);
    }
  }
  devitocomp_store_destroy(store);
  free(data);
}

/* Storing the same snapshots again and again, in any order, with similar sizes. */
static void test_rewriting(void)
{
  enum { N = 100, BASE = 40000, SPREAD = 4000, CAPACITY = 1 << 20 };
  const devitocomp_store_config_t config = {
    "usave", N, DEVITOCOMP_FLOAT32, 3, {NX, NY, NZ}
  };
  function_t f = new_function(1, 0);
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *const store = devitocomp_store_create(&config);
  devitocomp_usage_t usage;
  uint64_t most = 0;
  unsigned char written[N] = {0};
  size_t sizes[N] = {0};
  int run, step;

  limits.max_compressed_bytes = CAPACITY;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  for (run = 0; run < 100; run++) {
    CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
    for (step = 0; step < N; step++) {
      const int i = run % 3 == 0 ? step : run % 3 == 1 ? N - 1 - step : (int)draw(N);
      devitocomp_slot_t slot = devitocomp_store_reserve(store, i, view_of(&f, 0));
      CHECK(slot.ready);
      written[i] = (unsigned char)draw(256);
      sizes[i] = BASE + (size_t)draw(SPREAD);
      memset(slot.payload, written[i], sizes[i]);
      slot.payload_bytes = sizes[i];
      devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
    }
    for (step = 0; step < N; step++) {
      devitocomp_slot_t slot = devitocomp_store_acquire(store, step, view_of(&f, 0), 1);
      const unsigned char *const bytes = slot.payload;
      size_t k, wrong = 0;
      CHECK(slot.ready && slot.payload_bytes == sizes[step]);
      for (k = 0; slot.ready && k < slot.payload_bytes; k++) {
        wrong += bytes[k] != written[step];
      }
      CHECK(wrong == 0);
      devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
    }
    devitocomp_store_end(store);
    usage = usage_of(store);
    most = usage.resident_bytes > most ? usage.resident_bytes : most;
  }
  if (!CHECK(most <= N * (BASE + SPREAD) * 13 / 10)) {
    fprintf(stderr, "%d payloads of %d bytes occupied %" PRIu64 "\n", N, BASE, most);
  }
  devitocomp_store_destroy(store);
  free(f.data);
}

/* Store a snapshot of that many bytes, and tell where it went. */
static const char *place(devitocomp_store_t *store, int64_t index, const function_t *f,
                         size_t bytes)
{
  devitocomp_slot_t slot = devitocomp_store_reserve(store, index, view_of(f, 0));
  CHECK(slot.ready);
  slot.payload_bytes = bytes;
  devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
  slot = devitocomp_store_acquire(store, index, view_of(f, 0), DEVITOCOMP_WILL_MODIFY);
  CHECK(slot.ready && slot.payload_bytes == bytes);
  devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
  return slot.payload;
}

/* What becomes of the room of snapshots that are stored again. */
static void test_holes(void)
{
  function_t f = new_function(1, 0);
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *store;
  const char *base;
  int i;

  limits.max_compressed_bytes = 10000;
  store = new_store(5, &limits);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  base = place(store, 0, &f, 1000);
  for (i = 1; i < 5; i++) {
    CHECK(place(store, i, &f, 1000) == base + 1000 * i);
  }
  /* Holes to both sides of an extent join with it. */
  CHECK(place(store, 0, &f, 2000) == base + 5000);
  CHECK(place(store, 2, &f, 2000) == base + 7000);
  CHECK(place(store, 1, &f, 3000) == base);
  /* The smallest hole that suffices is taken, and what remains of it is used. */
  CHECK(place(store, 0, &f, 4000) == base + 9000);
  CHECK(place(store, 3, &f, 1000) == base + 3000);
  CHECK(place(store, 4, &f, 900) == base + 4000);
  CHECK(place(store, 2, &f, 1100) == base + 4904);
  /* The end of the arena comes down through the hole before it. */
  CHECK(place(store, 0, &f, 9000) == base + 6008);
  CHECK(place(store, 2, &f, 9000) == base + 15008);
  CHECK(place(store, 2, &f, 1104) == base + 4904);
  CHECK(place(store, 0, &f, 0) != NULL);
  CHECK(place(store, 0, &f, 10000) == base + 6008);
  CHECK(!devitocomp_store_failed(store));
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
  free(f.data);
}

static size_t address_space(void)
{
  FILE *const file = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  if (file) {
    CHECK(fscanf(file, "%zu", &pages) == 1);
    fclose(file);
  }
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Address space that runs out: a failure, and nothing lost. */
static void test_exhaustion(void)
{
  enum { CAPACITY = 9 << 20, MOST = 100 };
  const devitocomp_store_config_t config = {
    "usave", MOST, DEVITOCOMP_FLOAT32, 3, {NX, NY, NZ}
  };
  function_t f = new_function(1, 0);
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *const store = devitocomp_store_create(&config);
  struct rlimit old, none;
  devitocomp_snapshot_info_t info;
  int64_t i, stored = 0;

  limits.max_compressed_bytes = CAPACITY;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  getrlimit(RLIMIT_AS, &old);
  for (i = 0; i < MOST; i++) {
    devitocomp_slot_t slot = devitocomp_store_reserve(store, i, view_of(&f, 0));
    if (!slot.ready) {
      break;
    }
    memset(slot.payload, (int)i, 100);
    slot.payload_bytes = CAPACITY - 5;
    devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
    stored++;
    if (i == 1) {
      none = old;
      none.rlim_cur = address_space() + (30 << 20);
      CHECK(!setrlimit(RLIMIT_AS, &none));
    }
  }
  setrlimit(RLIMIT_AS, &old);
  /* A chunk of eight, then what is left one by one. */
  CHECK(stored > 8 && stored < MOST);
  CHECK(failed_with(store, DEVITOCOMP_OUT_OF_MEMORY, stored, "store", " bytes"));
  CHECK(devitocomp_store_info(store, stored, &info) == DEVITOCOMP_OK && !info.stored);
  devitocomp_store_end(store);

  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  for (i = 0; i < stored; i++) {
    devitocomp_slot_t slot = devitocomp_store_acquire(store, i, view_of(&f, 0), 0);
    CHECK(slot.ready && slot.payload_bytes == CAPACITY - 5);
    CHECK(((unsigned char *)slot.payload)[99] == i);
    devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
  }
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
  free(f.data);
}

static void test_statistics(void)
{
  function_t f = new_function(1, 1);
  devitocomp_store_t *const store = new_store(2, NULL);
  devitocomp_snapshot_info_t info;
  int i;

  CHECK(devitocomp_store_info(store, -1, &info) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_store_info(store, 2, &info) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_store_info(store, 1, &info) == DEVITOCOMP_OK);
  CHECK(!info.stored && !info.raw_bytes);
  for (i = 0; i < 3; i++) {
    CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
    save(store, 1, &f, 0, 20, DEVITOCOMP_OK);
    CHECK(load(store, 1, &f, 0, 0, DEVITOCOMP_OK));
    CHECK(!load(store, 1, &f, 0, 0, DEVITOCOMP_OK));
    CHECK(!load(store, 0, &f, 0, 0, DEVITOCOMP_OK));
    devitocomp_store_end(store);
    CHECK(devitocomp_store_info(store, 1, &info) == DEVITOCOMP_OK);
    CHECK(info.stored && info.raw_bytes == RAW && info.payload_bytes == RAW + 20);
    CHECK(info.sidecar_bytes == SIDECAR && info.decompressions == (uint64_t)i + 1);
    CHECK(info.compress_seconds > 0 && info.compress_seconds < 1);
    CHECK(info.decompress_seconds > 0 && info.decompress_seconds < 1);
  }
  devitocomp_store_clear(store);
  CHECK(devitocomp_store_info(store, 1, &info) == DEVITOCOMP_OK && !info.stored);
  CHECK(!info.decompressions);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  fill(&f, 0, NULL);
  CHECK(!load(store, 1, &f, 0, 0, DEVITOCOMP_OK) && equals(&f, 0, NULL));
  save(store, 1, &f, 0, 20, DEVITOCOMP_OK);
  CHECK(load(store, 1, &f, 0, 0, DEVITOCOMP_OK));
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
  free(f.data);
}

static void test_pickling(void)
{
  function_t f = new_function(1, 1);
  devitocomp_store_t *const from = new_store(6, NULL);
  devitocomp_store_t *const to = new_store(6, NULL);
  const void *payload, *sidecar;
  float values[6][POINTS];
  size_t bytes;
  int i;

  CHECK(devitocomp_store_begin(from, 1) == DEVITOCOMP_OK);
  for (i = 0; i < 6; i++) {
    draw_values(values[i]);
    fill(&f, 0, values[i]);
    if (i != 3) {
      save(from, i, &f, 0, (size_t)i, DEVITOCOMP_OK);
    }
  }
  CHECK(devitocomp_store_peek(from, 0, &payload, &bytes, &sidecar) != DEVITOCOMP_OK);
  CHECK(devitocomp_store_put(from, 0, values, RAW, values) != DEVITOCOMP_OK);
  devitocomp_store_end(from);
  for (i = -1; i <= 6; i++) {
    const int status = devitocomp_store_peek(from, i, &payload, &bytes, &sidecar);
    if (i < 0 || i > 5 || i == 3) {
      CHECK(status == DEVITOCOMP_INVALID_ARGUMENT);
      continue;
    }
    CHECK(status == DEVITOCOMP_OK && bytes == RAW + (size_t)i && sidecar);
    CHECK(devitocomp_store_put(to, i, payload, bytes, sidecar) == DEVITOCOMP_OK);
    CHECK(devitocomp_store_put(to, i, payload, bytes, sidecar) == DEVITOCOMP_OK);
  }
  CHECK(usage_of(from).stored_bytes == usage_of(to).stored_bytes);
  CHECK(devitocomp_store_begin(to, 1) == DEVITOCOMP_OK);
  for (i = 0; i < 6; i++) {
    CHECK(load(to, i, &f, 0, 0, DEVITOCOMP_OK) == (i != 3));
    CHECK(equals(&f, 0, i == 3 ? NULL : values[i]));
  }
  devitocomp_store_end(to);

  CHECK(devitocomp_store_put(to, 6, values, RAW, values) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(failed_with(to, DEVITOCOMP_INVALID_ARGUMENT, 6, "store", "outside [0, 6)"));
  CHECK(devitocomp_store_put(to, 0, NULL, 9, values) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_store_put(to, 0, values, 9, NULL) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_store_put(to, 0, values, RAW + EXTRA + 1, values)
        == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(failed_with(to, DEVITOCOMP_INVALID_ARGUMENT, 0, "store", "941 bytes"));
  CHECK(devitocomp_store_put(to, 0, NULL, 0, values) == DEVITOCOMP_OK);
  CHECK(!devitocomp_store_failed(to));
  CHECK(devitocomp_store_peek(to, 0, &payload, &bytes, &sidecar) == DEVITOCOMP_OK);
  CHECK(payload && !bytes && !memcmp(sidecar, values, SIDECAR));
  devitocomp_store_destroy(from);
  devitocomp_store_destroy(to);
  free(f.data);
}

static void test_metadata(void)
{
  enum { N = 10000 };
  function_t f = new_function(1, 1);
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *store;
  int i;

  limits.sidecar_bytes = 8;
  limits.flags = DEVITOCOMP_STRIDED;
  store = new_store(N, &limits);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  for (i = 0; i < N; i++) {
    devitocomp_slot_t slot = devitocomp_store_reserve(store, i, view_of(&f, 0));
    slot.payload_bytes = 1;
    devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
  }
  CHECK(!devitocomp_store_failed(store));
  devitocomp_store_end(store);
  CHECK(usage_of(store).stored_bytes == N * (1 + 8));
  CHECK(usage_of(store).metadata_bytes <= N * 50 + 8192);
  CHECK(usage_of(store).resident_bytes <= N * 8 + 4096);
  devitocomp_store_destroy(store);
  free(f.data);
}

/* Any sequence of calls against plain arrays. */
/* *** Memory that nobody can access */

enum { CHUNK = 80 << 20 };

static size_t device_left, device_used;

static size_t *device_header(void *memory)
{
  return (size_t *)((char *)memory - 4096);
}

static void *device_allocate(size_t bytes)
{
  char *base;

  if (bytes > device_left) {
    return NULL;
  }
  base = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
              0);
  *(size_t *)base = bytes;
  mprotect(base + 4096, bytes, PROT_NONE);
  device_left -= bytes;
  device_used += bytes;
  return base + 4096;
}

static void device_release(void *memory)
{
  const size_t bytes = *device_header(memory);

  device_left += bytes;
  device_used -= bytes;
  munmap(device_header(memory), bytes + 4096);
}

static char *device_range;  /* what copies may access: all of one allocation */
static size_t device_range_bytes;

static int device_copy(void *to, const void *from, size_t bytes)
{
  const int overlap = (char *)to < (const char *)from + bytes
    && (const char *)from < (char *)to + bytes;

  CHECK(!overlap);
  mprotect(device_range, device_range_bytes, PROT_READ | PROT_WRITE);
  memcpy(to, from, bytes);
  mprotect(device_range, device_range_bytes, PROT_NONE);
  return 1;
}

static const devitocomp_memory_t device_memory = {
  DEVITOCOMP_EXECUTION_CUDA, "device memory", 256, device_allocate, device_release,
  device_copy
};

static devitocomp_view_t device_view(void *data)
{
  devitocomp_view_t view;

  memset(&view, 0, sizeof(view));
  view.data = data;
  view.rank = 3;
  view.kind = DEVITOCOMP_EXECUTION_CUDA;
  view.dims[0] = NX;
  view.dims[1] = NY;
  view.dims[2] = NZ;
  view.strides[0] = NY * NZ;
  view.strides[1] = NZ;
  view.strides[2] = 1;
  return view;
}

/* Store bytes that begin with a number. */
static int device_save(devitocomp_store_t *store, int64_t index, int value, size_t bytes)
{
  static char payload[RAW + EXTRA];
  devitocomp_slot_t slot = devitocomp_store_reserve(store, index,
                                                    device_view(&device_left));

  if (!slot.ready) {
    return 0;
  }
  if (!device_range) {
    device_range = slot.payload;
    device_range_bytes = *device_header(slot.payload);
  }
  CHECK(slot.tensor == &device_left);
  CHECK((uintptr_t)slot.payload % 64 == 0);
  memset(payload, value, sizeof(payload));
  device_copy(slot.payload, payload, bytes);
  slot.payload_bytes = bytes;
  memcpy(slot.sidecar, &index, sizeof(index));
  devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
  return 1;
}

static int device_holds(devitocomp_store_t *store, int64_t index, int value, size_t bytes)
{
  devitocomp_slot_t slot = devitocomp_store_acquire(store, index,
                                                    device_view(&device_left), 0);
  char payload[RAW + EXTRA];
  int good;

  if (!slot.ready) {
    return 0;
  }
  device_copy(payload, slot.payload, bytes);
  good = slot.payload_bytes == bytes && !memcmp(slot.sidecar, &index, sizeof(index))
    && payload[0] == (char)value && payload[bytes - 1] == (char)value;
  devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
  return good;
}

static void test_device(void)
{
  const devitocomp_store_config_t config = {
    "usave", 40, DEVITOCOMP_FLOAT32, 3, {NX, NY, NZ}
  };
  devitocomp_store_t *const store = devitocomp_store_create_in(&config, &device_memory);
  devitocomp_limits_t limits = default_limits;
  devitocomp_view_t view;
  devitocomp_slot_t slot;
  const void *payload, *sidecar;
  size_t sizes[40], stored = 0, bytes;
  int i, round;

  device_left = CHUNK;
  CHECK(devitocomp_store_kind(store) == DEVITOCOMP_EXECUTION_CUDA);
  limits.payload_alignment = 512;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(failed_with(store, DEVITOCOMP_INVALID_ARGUMENT, -1, "store", "up to 256"));
  limits.payload_alignment = 64;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);

  /* Never written: the caller zeroes. */
  slot = devitocomp_store_acquire(store, 3, device_view(&device_left), 0);
  CHECK(!slot.ready && slot.unwritten && !slot.failed);

  for (round = 0; round < 3; round++) {
    for (i = 0; i < 40; i++) {
      stored -= round ? sizes[i] + SIDECAR : 0;
      sizes[i] = 1 + draw(RAW + EXTRA);
      stored += sizes[i] + SIDECAR;
      CHECK(device_save(store, i, i + round, sizes[i]));
      CHECK(usage_of(store).stored_bytes == stored || !round);
    }
    for (i = 0; i < 40; i++) {
      CHECK(device_holds(store, i, i + round, sizes[i]));
    }
  }
  /* Larger by a little each time: the room overlaps with where it is to go. */
  for (i = 0; i < 20; i++) {
    CHECK(device_save(store, 7, i, (size_t)(300 + i)));
    CHECK(device_holds(store, 7, i, (size_t)(300 + i)));
  }
  stored += 319 - sizes[7];
  CHECK(usage_of(store).stored_bytes == stored);
  CHECK(usage_of(store).resident_bytes >= device_used - 4096);
  CHECK(!devitocomp_store_failed(store));

  /* Failures that do not count, and the same one when it does. */
  slot = devitocomp_store_acquire(store, 40, device_view(&device_left),
                                  DEVITOCOMP_TENTATIVE);
  CHECK(!slot.ready && slot.failed && !devitocomp_store_failed(store));
  slot = devitocomp_store_acquire(store, 5, device_view(&device_left),
                                  DEVITOCOMP_TENTATIVE);
  CHECK(slot.ready);
  devitocomp_store_release(store, &slot, DEVITOCOMP_CORRUPT_PAYLOAD, "bad");
  CHECK(!devitocomp_store_failed(store));
  slot = devitocomp_store_acquire(store, 5, device_view(&device_left), 0);
  devitocomp_store_release(store, &slot, DEVITOCOMP_CORRUPT_PAYLOAD, "bad");
  CHECK(failed_with(store, DEVITOCOMP_CORRUPT_PAYLOAD, 5, "decompress", "bad"));
  devitocomp_store_end(store);

  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  view = device_view(&device_left);
  view.strides[1]++;
  slot = devitocomp_store_reserve(store, 0, view);
  CHECK(!slot.ready);
  CHECK(failed_with(store, DEVITOCOMP_UNSUPPORTED, 0, "store", "not contiguous"));
  devitocomp_store_end(store);

  /* Pickling: in by way of put, out by way of peek. */
  memset(sizes, 9, sizeof(sizes));
  CHECK(devitocomp_store_put(store, 11, sizes, 77, sizes) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_peek(store, 11, &payload, &bytes, &sidecar) == DEVITOCOMP_OK);
  CHECK(bytes == 77);
  device_copy(sizes, payload, 77);
  CHECK(((char *)sizes)[76] == 9);

  /* All is given back. */
  devitocomp_store_clear(store);
  CHECK(device_used == 0);
  device_range = NULL;

  /* No memory: what is stored stays. */
  device_left = CHUNK;
  limits.max_compressed_bytes = 30 << 20;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  CHECK(device_save(store, 0, 42, 100));
  limits.max_compressed_bytes = 100 << 20;
  devitocomp_store_end(store);
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  CHECK(!device_save(store, 1, 43, 100));
  CHECK(failed_with(store, DEVITOCOMP_OUT_OF_MEMORY, 1, "store", "host-device"));
  devitocomp_store_end(store);
  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  CHECK(device_holds(store, 0, 42, 100));
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
  CHECK(device_used == 0);
}

static void test_random(uint64_t start)
{
  enum { N = 12, SLOTS = 3, STEPS = 1500 };
  function_t f[2];
  float model[N][POINTS];
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *store;
  int step, i;

  seed = start * UINT64_C(0x9e3779b97f4a7c15) + 1;
  f[0] = new_function(SLOTS, (int)draw(3));
  f[1] = new_function(SLOTS, (int)draw(3));
  memset(model, 0, sizeof(model));
  limits.payload_alignment = UINT64_C(1) << (2 + draw(11));
  limits.sidecar_alignment = UINT64_C(1) << draw(13);
  limits.sidecar_bytes = draw(4) ? SIDECAR : 0;
  limits.flags = draw(2) ? DEVITOCOMP_STRIDED : 0;
  limits.max_compressed_bytes += draw(4) ? 0 : 3 << 20;
  store = new_store(N, &limits);
  CHECK(devitocomp_store_begin(store, (int)draw(4)) == DEVITOCOMP_OK);
  for (step = 0; step < STEPS; step++) {
    const function_t *const g = &f[draw(2)];
    const int at = (int)draw(SLOTS);
    const int index = (int)draw(N);
    const uint64_t what = draw(20);
    float values[POINTS];

    if (what < 7) {
      const int status = draw(12) ? DEVITOCOMP_OK : 1 + (int)draw(7);
      draw_values(values);
      fill(g, at, values);
      save(store, index, g, at, (size_t)draw(EXTRA + 1), status);
      CHECK(devitocomp_store_failed(store) == (status != DEVITOCOMP_OK));
      if (status == DEVITOCOMP_OK) {
        memcpy(model[index], values, sizeof(values));
      }
    } else if (what < 18) {
      const int flags = draw(3) ? 0 : DEVITOCOMP_WILL_MODIFY;
      const int status = draw(20) ? DEVITOCOMP_OK : 1 + (int)draw(7);
      const int asked = load(store, index, g, at, flags, status);
      CHECK(devitocomp_store_failed(store) == (asked && status != DEVITOCOMP_OK));
      if (!devitocomp_store_failed(store)) {
        CHECK(equals(g, at, model[index]));
      }
      if (flags) {
        fill(g, at, NULL);
      }
    } else if (what < 19) {
      const void *payload, *sidecar;
      size_t bytes;
      const int to = (int)draw(N);
      devitocomp_store_end(store);
      if (!limits.sidecar_bytes
          && !devitocomp_store_peek(store, index, &payload, &bytes, &sidecar)) {
        void *const copy = malloc(bytes);
        memcpy(copy, payload, bytes);
        CHECK(devitocomp_store_put(store, to, copy, bytes, NULL) == DEVITOCOMP_OK);
        memcpy(model[to], model[index], sizeof(model[to]));
        free(copy);
      }
      CHECK(devitocomp_store_begin(store, (int)draw(4)) == DEVITOCOMP_OK);
    } else if (!draw(10)) {
      devitocomp_store_end(store);
      devitocomp_store_clear(store);
      memset(model, 0, sizeof(model));
      CHECK(devitocomp_store_begin(store, (int)draw(4)) == DEVITOCOMP_OK);
    }
    if (devitocomp_store_failed(store)) {
      devitocomp_store_end(store);
      CHECK(devitocomp_store_begin(store, (int)draw(4)) == DEVITOCOMP_OK);
    }
  }
  for (i = 0; i < N; i++) {
    (void)load(store, i, &f[0], 0, 0, DEVITOCOMP_OK);
    CHECK(equals(&f[0], 0, model[i]));
  }
  CHECK(!devitocomp_store_failed(store));
  CHECK(halo_is_intact(&f[0]) && halo_is_intact(&f[1]));
  devitocomp_store_end(store);
  devitocomp_store_destroy(store);
  free(f[0].data);
  free(f[1].data);
}

int main(void)
{
  uint64_t i;

  seed = 20240229;
  test_views();
  test_staging();
  test_large_copies();
  test_odd_strides();
  test_residency();
  test_failures();
  test_plans();
  test_bind();
  test_overruns();
  test_empty();
  test_packing();
  test_overhead();
  test_rewriting();
  test_holes();
  test_exhaustion();
  test_statistics();
  test_pickling();
  test_metadata();
  test_device();
  for (i = 0; i < 60; i++) {
    test_random(i);
  }
  return report("test_store");
}
