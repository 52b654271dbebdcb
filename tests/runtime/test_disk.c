/*
 * test_disk.c -- the runtime store on disk: what it keeps, what survives, what it refuses.
 *
 * The tests play the provider. A payload is made of the snapshot's index and a version
 * number, so that whoever reads it can tell whether it is whole, and which one it is.
 */
#define _GNU_SOURCE
#include "testing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { POINTS = 16, MOST = 3000, SIDECAR = 20 };

static const uint64_t STORE_ID = UINT64_C(0x123456789abcdef0);

static char scratch[] = "/tmp/test_disk.XXXXXX";
static char directory[512];

/* *** Between the store and the operating system */

static enum { NOTHING = 0, FAIL, FAIL_LATER, SHORTEN, DIE } fault;
static int fault_errno;
static int fault_at;     /* the call to strike at, from 1 on; 0 for none */
static int fault_calls;  /* calls so far that change something */
static int read_errno;   /* with which reads from the data file fail */

ssize_t __real_pwritev(int fd, const struct iovec *parts, int count, off_t offset);
ssize_t __real_preadv(int fd, const struct iovec *parts, int count, off_t offset);
int __real_ftruncate(int fd, off_t bytes);
int __real_fdatasync(int fd);
int __real_rename(const char *from, const char *to);
int __real_open(const char *path, int flags, ...);

ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *parts, int count, off_t offset);
int __wrap_ftruncate(int fd, off_t bytes);
int __wrap_fdatasync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_open(const char *path, int flags, ...);

static int strikes(void)
{
  return fault && ++fault_calls == fault_at;
}

/* A call other than a write. Returns nonzero if it is to fail. */
static int strikes_here(void)
{
  if (!strikes() || fault == SHORTEN) {
    return 0;
  }
  if (fault == DIE) {
    kill(getpid(), SIGKILL);
  }
  errno = fault_errno;
  return 1;
}

static ssize_t write_some(int fd, const struct iovec *parts, off_t offset, size_t most)
{
  struct iovec part = parts[0];

  part.iov_len = part.iov_len < most ? part.iov_len : most;
  return part.iov_len ? __real_pwritev(fd, &part, 1, offset) : 0;
}

ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
  const int struck = strikes();
  const size_t bytes = parts[0].iov_len;

  if (struck && fault == DIE) {
    /* No machine writes half of an aligned word of 8 bytes. */
    (void)write_some(fd, parts, offset, (size_t)draw(bytes + 1) & ~(size_t)7);
    kill(getpid(), SIGKILL);
  }
  if (struck && fault == FAIL_LATER && bytes > 8) {
    fault_at++;
    return write_some(fd, parts, offset, (8 + (size_t)draw(bytes - 8)) & ~(size_t)7);
  }
  if (struck && fault != SHORTEN) {
    errno = fault_errno;
    return -1;
  }
  if (fault == SHORTEN && draw(2)) {
    if (draw(4) == 0) {
      errno = EINTR;
      return -1;
    }
    return write_some(fd, parts, offset, 1 + (size_t)draw(bytes));
  }
  return __real_pwritev(fd, parts, count, offset);
}

ssize_t __wrap_preadv(int fd, const struct iovec *parts, int count, off_t offset)
{
  struct iovec part = parts[0];

  if (read_errno) {
    errno = read_errno;
    return -1;
  }
  if (fault == SHORTEN && draw(2)) {
    if (draw(4) == 0) {
      errno = EINTR;
      return -1;
    }
    part.iov_len = 1 + (size_t)draw(part.iov_len);
    return __real_preadv(fd, &part, 1, offset);
  }
  return __real_preadv(fd, parts, count, offset);
}

int __wrap_ftruncate(int fd, off_t bytes)
{
  return strikes_here() ? -1 : __real_ftruncate(fd, bytes);
}

int __wrap_fdatasync(int fd)
{
  return strikes_here() ? -1 : __real_fdatasync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
  return strikes_here() ? -1 : __real_rename(from, to);
}

int __wrap_open(const char *path, int flags, ...)
{
  return (flags & O_CREAT) && strikes_here() ? -1 : __real_open(path, flags, 0666);
}

static void arm(int what, int error, int at)
{
  fault = what;
  fault_errno = error;
  fault_at = at;
  fault_calls = 0;
}

static void disarm(void)
{
  fault = NOTHING;
  read_errno = 0;
}

/* *** Directories and files */

static const char *path_of(const char *file)
{
  static char path[1024];

  snprintf(path, sizeof(path), "%s/%s", directory, file);
  return path;
}

static const char INDEX[] = "snapshots.index";
static const char DATA[] = "snapshots.data";

static void new_directory(void)
{
  static int count;

  snprintf(directory, sizeof(directory), "%s/%d", scratch, count++);
  CHECK(!mkdir(directory, 0777));
}

static void remove_tree(const char *path)
{
  char command[700];

  snprintf(command, sizeof(command), "chmod -R u+w '%s'; rm -rf '%s'", path, path);
  CHECK(!system(command));
}

static size_t size_of_file(const char *file)
{
  struct stat status;

  return stat(path_of(file), &status) ? 0 : (size_t)status.st_size;
}

typedef struct content {
  char *bytes;
  size_t size;
} content_t;

static content_t read_file(const char *file)
{
  content_t content = {NULL, size_of_file(file)};
  FILE *const stream = fopen(path_of(file), "rb");

  content.bytes = malloc(content.size + 1);
  CHECK(stream && fread(content.bytes, 1, content.size, stream) == content.size);
  fclose(stream);
  return content;
}

static void write_file(const char *file, const char *bytes, size_t size)
{
  const int fd = __real_open(path_of(file), O_WRONLY | O_CREAT | O_TRUNC, 0666);

  CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
  close(fd);
}

static void flip(const char *file, size_t byte, int mask)
{
  const int fd = __real_open(path_of(file), O_RDWR);
  unsigned char value;

  CHECK(pread(fd, &value, 1, (off_t)byte) == 1);
  value ^= (unsigned char)mask;
  CHECK(pwrite(fd, &value, 1, (off_t)byte) == 1);
  close(fd);
}

static int open_files(void)
{
  DIR *const entries = opendir("/proc/self/fd");
  int count = 0;

  while (entries && readdir(entries)) {
    count++;
  }
  if (entries) {
    closedir(entries);
  }
  return count;
}

/* *** Snapshots */

static const devitocomp_limits_t default_limits = {
  .struct_size = sizeof(devitocomp_limits_t),
  .payload_version = 7,
  .max_compressed_bytes = MOST,
  .payload_alignment = 8,
  .sidecar_bytes = SIDECAR,
  .sidecar_alignment = 8,
};

static devitocomp_store_config_t config_of(int64_t nsnapshots)
{
  const devitocomp_store_config_t config = {
    "usave", nsnapshots, DEVITOCOMP_FLOAT32, 1, {POINTS}
  };
  return config;
}

static devitocomp_failure_t opening;

static devitocomp_store_t *open_as(int64_t nsnapshots, int read_only, uint64_t cache,
                                   uint64_t store_id)
{
  const devitocomp_store_config_t config = config_of(nsnapshots);
  const devitocomp_disk_t disk = {directory, store_id, cache, read_only};

  return devitocomp_store_open(&config, &disk, &opening);
}

static devitocomp_store_t *open_with(int64_t nsnapshots, int read_only, uint64_t cache,
                                     const devitocomp_limits_t *limits)
{
  devitocomp_store_t *const store = open_as(nsnapshots, read_only, cache, STORE_ID);

  if (!CHECK(store)) {
    fprintf(stderr, "%s: %s\n", opening.action, opening.message);
    exit(1);
  }
  CHECK(opening.status == DEVITOCOMP_OK);
  CHECK(devitocomp_store_bind(store, limits) == DEVITOCOMP_OK);
  return store;
}

static devitocomp_store_t *open_writer(int64_t nsnapshots)
{
  return open_with(nsnapshots, 0, 0, &default_limits);
}

static devitocomp_store_t *open_reader(int64_t nsnapshots)
{
  return open_with(nsnapshots, 1, 0, &default_limits);
}

static devitocomp_view_t view(void)
{
  static float data[POINTS];
  devitocomp_view_t v;

  memset(&v, 0, sizeof(v));
  v.data = data;
  v.rank = 1;
  v.kind = DEVITOCOMP_EXECUTION_HOST;
  v.dims[0] = POINTS;
  v.strides[0] = 1;
  return v;
}

static uint64_t scramble(uint64_t index, uint64_t version)
{
  uint64_t x = index * UINT64_C(0x9e3779b97f4a7c15) + version + 1;

  x ^= x >> 29;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  return x ^ x >> 32;
}

static size_t most = MOST;
static size_t least;

static size_t size_of(int64_t index, int64_t version)
{
  return least + (size_t)(scramble((uint64_t)index, (uint64_t)version)
                          % (most - least + 1));
}

static void make(unsigned char *payload, size_t bytes, int64_t index, int64_t version)
{
  uint64_t x = scramble((uint64_t)index, (uint64_t)version);
  size_t i;

  for (i = 0; i < bytes; i++) {
    x += x << 7 ^ x >> 9 ^ i;
    payload[i] = (unsigned char)(x >> 24);
  }
}

/* Store a version, from 1 on, of a snapshot. Returns nonzero on success. */
static int save(devitocomp_store_t *store, int64_t index, int64_t version)
{
  devitocomp_slot_t slot;

  if (devitocomp_store_begin(store, 1) != DEVITOCOMP_OK) {
    return 0;
  }
  slot = devitocomp_store_reserve(store, index, view());
  if (slot.ready) {
    slot.payload_bytes = size_of(index, version);
    make(slot.payload, slot.payload_bytes, index, version);
    if (slot.sidecar) {
      memcpy(slot.sidecar, &version, sizeof(version));
      memcpy((char *)slot.sidecar + 8, &index, sizeof(index));
    }
    devitocomp_store_commit(store, &slot, DEVITOCOMP_OK, NULL);
  }
  devitocomp_store_end(store);
  return !devitocomp_store_failed(store);
}

enum { FAILED = -1 };

/* The version that a snapshot has, which is then whole; 0 if it was never stored; FAILED
   if the store has failed. */
static int64_t load(devitocomp_store_t *store, int64_t index)
{
  devitocomp_slot_t slot;
  int64_t version = 0, claimed;
  unsigned char *wanted;

  CHECK(devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  slot = devitocomp_store_acquire(store, index, view(), DEVITOCOMP_WILL_MODIFY);
  if (slot.ready) {
    memcpy(&version, slot.sidecar, sizeof(version));
    memcpy(&claimed, (char *)slot.sidecar + 8, sizeof(claimed));
    wanted = malloc(slot.payload_bytes + 1);
    make(wanted, slot.payload_bytes, index, version);
    CHECK(version > 0 && claimed == index);
    CHECK(slot.payload_bytes == size_of(index, version));
    CHECK(!memcmp(slot.payload, wanted, slot.payload_bytes));
    CHECK(!memcmp((char *)slot.sidecar + 16, "\0\0\0", SIDECAR - 16));
    free(wanted);
    devitocomp_store_release(store, &slot, DEVITOCOMP_OK, NULL);
  }
  devitocomp_store_end(store);
  return devitocomp_store_failed(store) ? FAILED : version;
}

static devitocomp_failure_t failure_of(const devitocomp_store_t *store)
{
  devitocomp_failure_t failure;

  devitocomp_store_failure(store, &failure);
  return failure;
}

/* Whether that failure has a status and two texts. */
static int is_failure(devitocomp_failure_t failure, int status, const char *text,
                      const char *file)
{
  const int matches = failure.status == status && strstr(failure.message, text)
    && strstr(failure.message, file);

  if (!matches) {
    fprintf(stderr, "failure: status %d, snapshot %" PRId64 ", %s: %s\n", failure.status,
            failure.index, failure.action, failure.message);
  }
  return matches;
}

static int names_directory(devitocomp_failure_t failure)
{
  return strstr(failure.message, directory) != NULL;
}

static devitocomp_usage_t usage_of(const devitocomp_store_t *store)
{
  devitocomp_usage_t usage;

  devitocomp_store_usage(store, &usage);
  return usage;
}

static int is_stored(devitocomp_store_t *store, int64_t index)
{
  devitocomp_snapshot_info_t info;

  CHECK(devitocomp_store_info(store, index, &info) == DEVITOCOMP_OK);
  return info.stored;
}

/* *** Tests */

static void test_basics(void)
{
  const void *payload, *sidecar;
  devitocomp_snapshot_info_t info;
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *store, *host;
  devitocomp_store_config_t config = config_of(5);
  uint64_t sum = 0;
  size_t bytes;
  int64_t i;

  new_directory();
  store = open_writer(5);
  for (i = 0; i < 5; i++) {
    CHECK(!is_stored(store, i) && load(store, i) == 0);
    CHECK(i == 3 || save(store, i, 10 + i));
    sum += i == 3 ? 0 : SIDECAR + size_of(i, 10 + i);
  }
  CHECK(devitocomp_store_sync(store) == DEVITOCOMP_OK);
  CHECK(usage_of(store).stored_bytes == sum);
  CHECK(usage_of(store).resident_bytes == 0);
  CHECK(size_of_file(DATA) <= sum + 6 * 64);
  CHECK(size_of_file(INDEX) == 256 + 6 * 128);
  devitocomp_store_destroy(store);

  /* Again, as often as one likes. */
  for (i = 0; i < 3; i++) {
    store = open_with(5, i == 1, i == 2 ? 100000 : 0, &default_limits);
    CHECK(load(store, 4) == 14 && load(store, 0) == 10 && load(store, 3) == 0);
    CHECK(load(store, 2) == 12 && load(store, 1) == 11);
    CHECK(usage_of(store).stored_bytes == sum);
    CHECK(devitocomp_store_info(store, 2, &info) == DEVITOCOMP_OK && info.stored);
    CHECK(info.payload_bytes == size_of(2, 12) && info.sidecar_bytes == SIDECAR);
    CHECK(info.raw_bytes == POINTS * 4 && info.decompressions == 1);
    CHECK(i == 1 || save(store, 1, 11));
    devitocomp_store_destroy(store);
  }

  /* Pickling, from disk to memory and back. */
  store = open_writer(5);
  host = devitocomp_store_create(&config);
  CHECK(devitocomp_store_bind(host, &limits) == DEVITOCOMP_OK);
  for (i = 0; i < 5; i++) {
    const int status = devitocomp_store_peek(store, i, &payload, &bytes, &sidecar);
    CHECK(status == (i == 3 ? DEVITOCOMP_INVALID_ARGUMENT : DEVITOCOMP_OK));
    CHECK(i == 3 || devitocomp_store_put(host, i, payload, bytes, sidecar) == 0);
  }
  devitocomp_store_clear(store);
  CHECK(!devitocomp_store_failed(store) && usage_of(store).stored_bytes == 0);
  CHECK(size_of_file(DATA) == 64);
  for (i = 0; i < 5; i++) {
    CHECK(!is_stored(store, i) && load(store, i) == 0);
    if (devitocomp_store_peek(host, i, &payload, &bytes, &sidecar) == DEVITOCOMP_OK) {
      CHECK(devitocomp_store_put(store, i, payload, bytes, sidecar) == 0);
    }
  }
  CHECK(load(store, 4) == 14 && load(store, 3) == 0 && load(store, 0) == 10);
  devitocomp_store_destroy(host);

  /* A payload of other limits. */
  limits.payload_version++;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(is_failure(failure_of(store), DEVITOCOMP_INVALID_ARGUMENT, "payload version 7",
                   INDEX));
  limits = default_limits;
  limits.sidecar_bytes = 0;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  /* What is about memory may change. */
  limits = default_limits;
  limits.max_compressed_bytes = 10;
  limits.payload_alignment = limits.sidecar_alignment = 4096;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  CHECK(load(store, 4) == 14);
  devitocomp_store_clear(store);
  limits.payload_version = 99;
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_OK);
  devitocomp_store_destroy(store);

  /* Dropped for good, and bound to the other limits when there is something. */
  store = open_with(5, 0, 0, &default_limits);
  CHECK(load(store, 4) == 0 && save(store, 4, 1));
  devitocomp_store_destroy(store);
  store = open_as(5, 0, 0, STORE_ID);
  CHECK(devitocomp_store_bind(store, &limits) == DEVITOCOMP_INVALID_ARGUMENT);
  CHECK(devitocomp_store_peek(store, 4, &payload, &bytes, &sidecar)
        == DEVITOCOMP_VERSION_MISMATCH);
  CHECK(load(store, 4) == FAILED);
  CHECK(strstr(failure_of(store).message, "limits"));
  devitocomp_store_destroy(store);
}

/* Any sequence of calls against plain arrays, and what another store sees of it. */
static void test_random(uint64_t start)
{
  enum { N = 12, STEPS = 1200 };
  int64_t model[N] = {0}, version = 0;
  devitocomp_limits_t limits = default_limits;
  devitocomp_store_t *store, *reader;
  uint64_t cache;
  int step, i;

  seed = start * UINT64_C(0x9e3779b97f4a7c15) + 1;
  limits.payload_alignment = UINT64_C(1) << draw(13);
  limits.sidecar_alignment = UINT64_C(1) << draw(13);
  limits.max_compressed_bytes += draw(4) ? 0 : 100000;
  cache = draw(3) ? draw(40000) : 0;
  arm(draw(2) ? SHORTEN : NOTHING, 0, 0);
  new_directory();
  store = open_with(N, 0, cache, &limits);
  reader = open_with(N, 1, draw(2) ? cache : 0, &limits);
  for (step = 0; step < STEPS; step++) {
    const int index = (int)draw(N);
    const uint64_t what = draw(20);

    if (what < 8) {
      CHECK(save(store, index, ++version));
      model[index] = version;
    } else if (what < 14) {
      CHECK(load(store, index) == model[index]);
    } else if (what < 18) {
      CHECK(is_stored(reader, index) == (model[index] > 0));
      CHECK(load(reader, index) == model[index]);
    } else if (what < 19) {
      devitocomp_store_t **const which = draw(2) ? &store : &reader;
      devitocomp_store_destroy(*which);
      *which = open_with(N, which == &reader, draw(2) ? cache : 0, &limits);
    } else if (!draw(10)) {
      devitocomp_store_clear(store);
      memset(model, 0, sizeof(model));
    }
  }
  for (i = 0; i < N; i++) {
    CHECK(load(store, i) == model[i] && load(reader, i) == model[i]);
  }
  CHECK(usage_of(store).stored_bytes == usage_of(reader).stored_bytes);
  devitocomp_store_destroy(store);
  devitocomp_store_destroy(reader);
  disarm();
  remove_tree(directory);
}

/* A fixed sequence of changes, of which `done` tells how many were made. */
enum { WORK_N = 4, WORK_STEPS = 14 };

static int64_t work_model[WORK_N];

static int work(devitocomp_store_t *store, int step)
{
  static const int indices[WORK_STEPS] = {0, 1, 2, 1, 0, 0, 3, 2, -1, 1, 0, 1, 3, 1};

  if (indices[step] < 0) {
    devitocomp_store_clear(store);
    return !devitocomp_store_failed(store);
  }
  return save(store, indices[step], step + 1);
}

/* Whether the store holds what it does after so many steps. */
static int is_after(devitocomp_store_t *store, int steps)
{
  static const int indices[WORK_STEPS] = {0, 1, 2, 1, 0, 0, 3, 2, -1, 1, 0, 1, 3, 1};
  int64_t wanted[WORK_N] = {0};
  int i, same = 1;

  for (i = 0; i < steps; i++) {
    if (indices[i] < 0) {
      memset(wanted, 0, sizeof(wanted));
    } else {
      wanted[indices[i]] = i + 1;
    }
  }
  for (i = 0; i < WORK_N; i++) {
    work_model[i] = load(store, i);
    same &= work_model[i] == wanted[i];
  }
  return same;
}

/* Die at every system call that changes something, in the middle of it. */
static void test_deaths(void)
{
  int at, calls = 1000, round;

  for (at = 1; at <= calls; at++) {
    for (round = 0; round < 3; round++) {
      devitocomp_store_t *store;
      int pipes[2], status, done = 0;
      char byte;
      pid_t child;

      new_directory();
      CHECK(!pipe(pipes));
      seed = (uint64_t)(100 * at + round);
      child = fork();
      if (!child) {
        int step;
        arm(DIE, 0, at);
        store = open_writer(WORK_N);
        for (step = 0; step < WORK_STEPS; step++) {
          if (!work(store, step) || write(pipes[1], "x", 1) != 1) {
            _exit(1);
          }
        }
        _exit(fault_calls > 250 ? 250 : fault_calls);
      }
      close(pipes[1]);
      while (read(pipes[0], &byte, 1) == 1) {
        done++;
      }
      close(pipes[0]);
      CHECK(waitpid(child, &status, 0) == child);
      if (WIFEXITED(status)) {
        CHECK(done == WORK_STEPS);
        calls = WEXITSTATUS(status);
      } else {
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && done < WORK_STEPS);
      }
      /* Who only looks finds the same as who goes on. */
      store = open_reader(WORK_N);
      if (!CHECK(is_after(store, done) || is_after(store, done + 1))) {
        fprintf(stderr, "died at call %d, after %d steps: %d %d %d %d\n", at, done,
                (int)work_model[0], (int)work_model[1], (int)work_model[2],
                (int)work_model[3]);
      }
      devitocomp_store_destroy(store);
      store = open_writer(WORK_N);
      CHECK(is_after(store, done) || is_after(store, done + 1));
      CHECK(save(store, 2, 99) && load(store, 2) == 99);
      devitocomp_store_destroy(store);
      store = open_writer(WORK_N);
      CHECK(load(store, 2) == 99);
      devitocomp_store_destroy(store);
      remove_tree(directory);
    }
  }
  CHECK(calls > 2 * WORK_STEPS && calls < 250);
}

/* Die at any time. */
static void test_kills(void)
{
  enum { N = 20, ROUNDS = 60 };
  struct { int64_t index, version; } said;
  int64_t known[N] = {0};
  int64_t version = 0;
  int round, i, progress = 0;

  new_directory();
  for (round = 0; round < ROUNDS; round++) {
    devitocomp_store_t *store;
    int pipes[2], status;
    pid_t child;

    CHECK(!pipe(pipes));
    seed = (uint64_t)round + 77;
    child = fork();
    if (!child) {
      store = open_with(N, 0, draw(2) ? 20000 : 0, &default_limits);
      for (;;) {
        said.index = (int64_t)draw(N);
        said.version = ++version;
        if (!save(store, said.index, said.version)
            || write(pipes[1], &said, sizeof(said)) != sizeof(said)) {
          _exit(1);
        }
      }
    }
    close(pipes[1]);
    usleep(2000 + (useconds_t)draw(20000));
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    while (read(pipes[0], &said, sizeof(said)) == sizeof(said)) {
      known[said.index] = version = said.version;
      progress++;
    }
    close(pipes[0]);
    store = round % 2 ? open_reader(N) : open_writer(N);
    for (i = 0; i < N; i++) {
      /* It may have been killed between a commit and telling of it. */
      const int64_t found = load(store, i);
      if (!CHECK(found == known[i] || found == version + 1)) {
        fprintf(stderr, "snapshot %d: %d, not %d or %d\n", i, (int)found, (int)known[i],
                (int)version + 1);
      }
      known[i] = found;
    }
    for (i = 0; i < N; i++) {
      version = known[i] > version ? known[i] : version;
    }
    devitocomp_store_destroy(store);
  }
  CHECK(progress > ROUNDS);
}

/* A store with some history, whose snapshots have these versions. */
enum { OLD_N = 4 };

static const int64_t old_versions[OLD_N] = {21, 2, 0, 24};

static void make_old_store(void)
{
  devitocomp_store_t *store;

  new_directory();
  store = open_writer(OLD_N);
  CHECK(save(store, 0, 1) && save(store, 1, 2) && save(store, 3, 4));
  CHECK(save(store, 0, 21) && save(store, 3, 24));
  devitocomp_store_destroy(store);
}

/*
 * Check a store that was damaged: whatever can be read is right, and what cannot is said
 * to be damaged, naming the file. Returns how many snapshots cannot be read.
 */
static int survey(void)
{
  devitocomp_store_t *store;
  int read_only, i, bad = 0;

  for (read_only = 1; read_only >= 0; read_only--) {
    store = open_as(OLD_N, read_only, 0, STORE_ID);
    bad = 0;
    if (!store) {
      CHECK(opening.status != DEVITOCOMP_OK && names_directory(opening));
      bad = OLD_N;
      continue;
    }
    if (devitocomp_store_bind(store, &default_limits) != DEVITOCOMP_OK) {
      CHECK(names_directory(failure_of(store)));
      devitocomp_store_destroy(store);
      bad = OLD_N;
      continue;
    }
    for (i = 0; i < OLD_N; i++) {
      const int64_t version = load(store, i);
      if (version == FAILED) {
        const devitocomp_failure_t failure = failure_of(store);
        CHECK(failure.status == DEVITOCOMP_CORRUPT_PAYLOAD && failure.index == i);
        CHECK(names_directory(failure) && is_stored(store, i));
        bad++;
      } else {
        if (!CHECK(version == old_versions[i])) {
          fprintf(stderr, "snapshot %d is %d, not %d\n", i, (int)version,
                  (int)old_versions[i]);
        }
      }
    }
    devitocomp_store_destroy(store);
  }
  return bad;
}

static void test_bit_flips(void)
{
  size_t at, bytes;
  int bit;

  make_old_store();
  CHECK(survey() == 0);
  bytes = size_of_file(INDEX);
  for (at = 0; at < bytes; at++) {
    for (bit = 0; bit < 8; bit++) {
      content_t before = read_file(DATA);
      flip(INDEX, at, 1 << bit);
      (void)survey();
      flip(INDEX, at, 1 << bit);
      /* Looking has repaired nothing, and cut nothing that is needed. */
      write_file(DATA, before.bytes, before.size);
      free(before.bytes);
    }
  }
  CHECK(survey() == 0);
  bytes = size_of_file(DATA);
  for (at = 0; at < bytes; at++) {
    flip(DATA, at, 1 << (at % 8));
    CHECK(survey() <= (at < 64 ? OLD_N : 1));
    flip(DATA, at, 1 << (at % 8));
  }
  CHECK(survey() == 0);
}

static void test_truncation(void)
{
  content_t index, data;
  size_t bytes;
  int i;

  make_old_store();
  index = read_file(INDEX);
  data = read_file(DATA);
  for (bytes = 0; bytes <= index.size + 64; bytes += 8) {
    if (bytes != index.size) {
      char *const longer = calloc(1, index.size + 64);
      memcpy(longer, index.bytes, bytes < index.size ? bytes : index.size);
      write_file(INDEX, longer, bytes);
      CHECK(survey() == OLD_N);
      CHECK(strstr(opening.message, INDEX));
      free(longer);
    }
  }
  write_file(INDEX, index.bytes, index.size);
  for (i = 0; i < 300; i++) {
    bytes = (size_t)draw(data.size);
    write_file(DATA, data.bytes, bytes);
    CHECK(survey() >= (bytes < 64 ? OLD_N : 1));
  }
  write_file(DATA, data.bytes, data.size);
  CHECK(survey() == 0);

  /* One file without the other. */
  CHECK(!unlink(path_of(DATA)));
  CHECK(survey() == OLD_N && strstr(opening.message, DATA));
  write_file(DATA, data.bytes, data.size);
  CHECK(!unlink(path_of(INDEX)));
  CHECK(survey() == OLD_N && strstr(opening.message, INDEX));
  write_file(INDEX, index.bytes, index.size);
  CHECK(survey() == 0);
  free(index.bytes);
  free(data.bytes);
}

/* Whole pieces that are not where they belong. */
static void test_swaps(void)
{
  enum { FIRST = 256, CELL = 64, PAIR = 2 * CELL };
  content_t index, data, other_index, other_data;
  char *bytes;
  char home[512];
  devitocomp_store_t *store;
  int i, j, k;

  make_old_store();
  index = read_file(INDEX);
  data = read_file(DATA);

  /* Records of a snapshot in the place of another's; blanked ones. */
  bytes = malloc(index.size);
  for (i = 0; i < OLD_N + 1; i++) {
    for (j = 0; j < OLD_N + 1; j++) {
      for (k = 0; k < 3; k++) {
        const size_t length = k ? CELL : PAIR;
        const size_t from = FIRST + PAIR * (size_t)i + (k == 2 ? CELL : 0);
        const size_t to = FIRST + PAIR * (size_t)j;
        memcpy(bytes, index.bytes, index.size);
        memcpy(bytes + to, index.bytes + from, length);
        memcpy(bytes + from, index.bytes + to, length);
        write_file(INDEX, bytes, index.size);
        if (!CHECK(survey() >= (i != j && k == 0))) {
          fprintf(stderr, "swapped %d with %d, %d\n", i, j, k);
        }
        write_file(DATA, data.bytes, data.size);
      }
    }
    memcpy(bytes, index.bytes, index.size);
    memset(bytes + FIRST + PAIR * i, 0, PAIR);
    write_file(INDEX, bytes, index.size);
    /* Of never written ones there is nothing to lose; of the state, the limits. */
    if (i != 3 && i != 4) {
      CHECK(survey() == OLD_N);
      CHECK(strstr(opening.message, "are missing"));
    }
    write_file(DATA, data.bytes, data.size);
  }
  write_file(INDEX, index.bytes, index.size);
  CHECK(survey() == 0);

  /* Payloads of equal size that change places. */
  new_directory();
  least = most = 1000;
  store = open_writer(OLD_N);
  CHECK(save(store, 0, 1) && save(store, 1, 1));
  devitocomp_store_destroy(store);
  other_data = read_file(DATA);
  memcpy(other_data.bytes + 64, other_data.bytes + 64 + 1024, 1020);
  memcpy(other_data.bytes + 64 + 1024, other_data.bytes + 64, 1020);
  write_file(DATA, other_data.bytes, other_data.size);
  store = open_writer(OLD_N);
  CHECK(load(store, 0) == FAILED);
  CHECK(is_failure(failure_of(store), DEVITOCOMP_CORRUPT_PAYLOAD, "snapshot 0", DATA));
  devitocomp_store_destroy(store);
  free(other_data.bytes);
  least = 0;
  most = MOST;

  /* Files of another store. */
  new_directory();
  strcpy(home, directory);
  store = open_as(OLD_N, 0, 0, STORE_ID + 1);
  CHECK(store && devitocomp_store_bind(store, &default_limits) == DEVITOCOMP_OK);
  CHECK(save(store, 0, 1) && save(store, 1, 2) && save(store, 3, 4));
  CHECK(save(store, 0, 21) && save(store, 3, 24));
  devitocomp_store_destroy(store);
  other_index = read_file(INDEX);
  other_data = read_file(DATA);
  CHECK(!open_as(OLD_N, 0, 0, STORE_ID));
  CHECK(is_failure(opening, DEVITOCOMP_CORRUPT_PAYLOAD, "another store", INDEX));
  make_old_store();
  write_file(DATA, other_data.bytes, other_data.size);
  CHECK(survey() == OLD_N);
  CHECK(is_failure(opening, DEVITOCOMP_CORRUPT_PAYLOAD, "another store", DATA));
  write_file(DATA, index.bytes, index.size);
  CHECK(survey() == OLD_N);
  CHECK(is_failure(opening, DEVITOCOMP_CORRUPT_PAYLOAD, "foreign", DATA));
  memset(bytes, 'x', index.size);
  write_file(INDEX, bytes, index.size);
  CHECK(survey() == OLD_N);
  CHECK(is_failure(opening, DEVITOCOMP_CORRUPT_PAYLOAD, "foreign", INDEX));

  /* Only its records, or only its payloads. */
  memcpy(bytes, index.bytes, index.size);
  memcpy(bytes + FIRST + PAIR, other_index.bytes + FIRST + PAIR, index.size - FIRST - PAIR);
  write_file(INDEX, bytes, index.size);
  write_file(DATA, data.bytes, data.size);
  CHECK(survey() == OLD_N);
  write_file(INDEX, index.bytes, index.size);
  write_file(DATA, data.bytes, data.size);
  CHECK(survey() == 0);

  /* Another format version. */
  bytes[0] = index.bytes[12];
  flip(INDEX, 12, 2);
  CHECK(!open_as(OLD_N, 1, 0, STORE_ID));
  CHECK(is_failure(opening, DEVITOCOMP_VERSION_MISMATCH, "format version 3", INDEX));
  flip(INDEX, 12, 2);
  free(bytes);
  free(index.bytes);
  free(data.bytes);
  free(other_index.bytes);
  free(other_data.bytes);
  CHECK(strcmp(home, directory));
}

/* A snapshot that was damaged is whole again once it is stored again. */
static void test_healing(void)
{
  devitocomp_store_t *store;
  int i, cell;

  for (cell = 0; cell < 3; cell++) {
    make_old_store();
    for (i = 0; i < 2; i++) {
      if (cell == 2 || cell == i) {
        flip(INDEX, (size_t)(256 + 128 + 64 * i + 20), 4);
      }
    }
    store = open_writer(OLD_N);
    CHECK(load(store, 0) == FAILED && load(store, 1) == 2);
    CHECK(is_failure(failure_of(store), DEVITOCOMP_OK, "", ""));
    CHECK(save(store, 0, 5) && load(store, 0) == 5);
    devitocomp_store_destroy(store);
    store = open_writer(OLD_N);
    CHECK(load(store, 0) == 5 && load(store, 1) == 2 && load(store, 3) == 24);
    CHECK(save(store, 0, 6) && load(store, 0) == 6);
    devitocomp_store_destroy(store);
    store = open_reader(OLD_N);
    CHECK(load(store, 0) == 6 && load(store, 1) == 2 && load(store, 3) == 24);
    devitocomp_store_destroy(store);

    flip(INDEX, (size_t)(256 + 128 + 64 + 20), 4);
    store = open_writer(OLD_N);
    CHECK(load(store, 0) == FAILED);
    devitocomp_store_clear(store);
    CHECK(load(store, 0) == 0);
    devitocomp_store_destroy(store);
    store = open_writer(OLD_N);
    CHECK(load(store, 0) == 0 && load(store, 1) == 0 && save(store, 1, 3));
    devitocomp_store_destroy(store);
    store = open_reader(OLD_N);
    CHECK(load(store, 0) == 0 && load(store, 1) == 3);
    devitocomp_store_destroy(store);
  }
}

/* Every call fails once. */
static void test_errors(void)
{
  static const int errors[] = {ENOSPC, EIO, EDQUOT};
  int at, kind, e = 0, failed = 1, total = 0;

  for (kind = FAIL; kind <= FAIL_LATER; kind++) {
    for (at = 1, failed = 1; failed; at++) {
      devitocomp_store_t *store;
      const int error = errors[e++ % 3];
      int step, done = 0;

      failed = 0;
      new_directory();
      seed = (uint64_t)(at * 3 + kind);
      arm(kind, error, at);
      store = open_as(WORK_N, 0, 0, STORE_ID);
      if (!store) {
        CHECK(is_failure(opening, DEVITOCOMP_IO_ERROR, strerror(error), directory));
        failed = 1;
      } else if (devitocomp_store_bind(store, &default_limits) != DEVITOCOMP_OK) {
        CHECK(is_failure(failure_of(store), DEVITOCOMP_IO_ERROR, strerror(error),
                         directory));
        failed = 1;
      }
      for (step = 0; !failed && step < WORK_STEPS; step++) {
        if (work(store, step)) {
          done++;
          continue;
        }
        CHECK(is_failure(failure_of(store), DEVITOCOMP_IO_ERROR, strerror(error),
                         directory));
        CHECK(step == 8 || !strcmp(failure_of(store).action, "store"));
        failed = 1;
      }
      disarm();
      total += failed;
      if (store && done) {
        /* Nothing was lost; a clear may have been complete but for cutting the file. */
        CHECK(is_after(store, done) || (done == 8 && is_after(store, done + 1)));
        devitocomp_store_destroy(store);
        store = open_reader(WORK_N);
        CHECK(is_after(store, done) || (done == 8 && is_after(store, done + 1)));
        devitocomp_store_destroy(store);
        store = open_writer(WORK_N);
        CHECK(is_after(store, done) || (done == 8 && is_after(store, done + 1)));
      } else if (!store) {
        store = open_writer(WORK_N);
      } else {
        CHECK(devitocomp_store_bind(store, &default_limits) == DEVITOCOMP_OK);
      }
      /* The same store goes on as soon as it can. */
      CHECK(save(store, 1, 77) && load(store, 1) == 77);
      devitocomp_store_destroy(store);
      store = open_writer(WORK_N);
      CHECK(load(store, 1) == 77);
      devitocomp_store_destroy(store);
      remove_tree(directory);
    }
  }
  CHECK(total > 50);

  /* Reading and flushing. */
  make_old_store();
  {
    devitocomp_store_t *store = open_writer(OLD_N);
    read_errno = EIO;
    CHECK(load(store, 0) == FAILED);
    CHECK(is_failure(failure_of(store), DEVITOCOMP_IO_ERROR, "cannot read", DATA));
    CHECK(!strcmp(failure_of(store).action, "load") && failure_of(store).index == 0);
    disarm();
    CHECK(load(store, 0) == 21);
    arm(FAIL, EIO, 1);
    CHECK(devitocomp_store_sync(store) == DEVITOCOMP_IO_ERROR);
    CHECK(is_failure(failure_of(store), DEVITOCOMP_IO_ERROR, "cannot flush", DATA));
    disarm();
    CHECK(devitocomp_store_sync(store) == DEVITOCOMP_OK);
    devitocomp_store_destroy(store);
  }
}

/* Fill up what room there is. Returns how many snapshots fitted. */
static int fill_up(const char *reason)
{
  enum { N = 200 };
  devitocomp_store_t *store;
  size_t before;
  int i, stored = 0;

  least = most = MOST;
  store = open_with(N, 0, 0, &default_limits);
  while (stored < N && save(store, stored, 1)) {
    stored++;
  }
  CHECK(stored > 10 && stored < N);
  CHECK(is_failure(failure_of(store), DEVITOCOMP_IO_ERROR, reason, DATA));
  before = size_of_file(DATA);
  CHECK(before <= 64 + (size_t)stored * 3072);
  CHECK(!save(store, stored, 1) && size_of_file(DATA) == before);
  for (i = 0; i < N; i++) {
    CHECK(load(store, i) == (i < stored));
  }
  devitocomp_store_destroy(store);
  store = open_reader(N);
  for (i = 0; i < N; i++) {
    CHECK(load(store, i) == (i < stored));
  }
  devitocomp_store_destroy(store);
  least = 0;
  most = MOST;
  return stored;
}

static void test_full(void)
{
  struct rlimit old, limit;
  struct stat status;
  char mounted[512];

  signal(SIGXFSZ, SIG_IGN);
  CHECK(!getrlimit(RLIMIT_FSIZE, &old));
  limit = old;
  limit.rlim_cur = 200 * 1000;
  new_directory();
  CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
  (void)fill_up("File too large");
  CHECK(!setrlimit(RLIMIT_FSIZE, &old));

  new_directory();
  strcpy(mounted, directory);
  if (mount("none", mounted, "tmpfs", 0, "size=256k")) {
    printf("test_disk: no tmpfs can be mounted (%s); its test is left out\n",
           strerror(errno));
    return;
  }
  (void)fill_up("No space left on device");
  CHECK(!stat(path_of(DATA), &status));
  {
    /* With room again, it goes on where it was. */
    devitocomp_store_t *store = open_writer(200);
    devitocomp_store_clear(store);
    CHECK(save(store, 199, 3) && load(store, 199) == 3);
    devitocomp_store_destroy(store);
  }
  CHECK(!umount(mounted));
}

static void test_vanishing(void)
{
  devitocomp_store_t *store;
  int which;

  for (which = 0; which < 3; which++) {
    new_directory();
    store = open_with(4, 0, which ? 50000 : 0, &default_limits);
    CHECK(save(store, 0, 1));
    if (which == 2) {
      remove_tree(directory);
    } else {
      CHECK(!unlink(path_of(which ? INDEX : DATA)));
    }
    CHECK(!save(store, 1, 1));
    CHECK(is_failure(failure_of(store), DEVITOCOMP_IO_ERROR, "has been removed",
                     directory));
    /* What was there is, as long as somebody has it open. */
    CHECK(load(store, 0) == 1 && load(store, 1) == 0);
    devitocomp_store_destroy(store);
    if (which == 2) {
      CHECK(!open_as(4, 0, 0, STORE_ID));
      CHECK(is_failure(opening, DEVITOCOMP_IO_ERROR, "No such file", directory));
    } else {
      CHECK(!open_as(4, 0, 0, STORE_ID));
      CHECK(names_directory(opening));
    }
  }
}

static void test_read_only(void)
{
  devitocomp_store_t *store;
  devitocomp_snapshot_info_t info;
  int status;
  pid_t child;

  make_old_store();
  store = open_reader(OLD_N);
  CHECK(!save(store, 1, 9) && load(store, 1) == 2);
  CHECK(devitocomp_store_put(store, 1, "x", 1, scratch) != DEVITOCOMP_OK);
  CHECK(is_failure(failure_of(store), DEVITOCOMP_INVALID_ARGUMENT, "for reading only",
                   DATA));
  devitocomp_store_clear(store);
  CHECK(devitocomp_store_failed(store) && load(store, 1) == 2);
  CHECK(devitocomp_store_sync(store) == DEVITOCOMP_OK);
  devitocomp_store_destroy(store);

  CHECK(!chmod(path_of(INDEX), 0444) && !chmod(path_of(DATA), 0444));
  CHECK(!chmod(directory, 0555) && !chmod(scratch, 0755));
  child = fork();
  if (!child) {
    failures = 0;
    if (geteuid() == 0 && setuid(65534)) {
      _exit(77);
    }
    store = open_reader(OLD_N);
    CHECK(load(store, 0) == 21 && load(store, 1) == 2 && load(store, 2) == 0);
    devitocomp_store_destroy(store);
    CHECK(!open_as(OLD_N, 0, 0, STORE_ID));
    CHECK(is_failure(opening, DEVITOCOMP_IO_ERROR, "Permission denied", INDEX));
    _exit(failures != 0);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);

  /* Nothing there yet; it comes while one waits. */
  new_directory();
  store = open_reader(OLD_N);
  CHECK(load(store, 0) == 0 && !is_stored(store, 0));
  CHECK(size_of_file(INDEX) == 0);
  {
    devitocomp_limits_t limits = default_limits;
    devitocomp_store_t *writer = open_writer(OLD_N);
    CHECK(load(store, 0) == 0);
    CHECK(save(writer, 0, 5) && is_stored(store, 0) && load(store, 0) == 5);
    devitocomp_store_clear(writer);
    CHECK(!is_stored(store, 0) && load(store, 0) == 0);
    CHECK(save(writer, 0, 6) && load(store, 0) == 6);
    CHECK(devitocomp_store_info(store, 0, &info) == DEVITOCOMP_OK);
    CHECK(info.payload_bytes == size_of(0, 6));
    devitocomp_store_clear(writer);
    limits.payload_version++;
    CHECK(devitocomp_store_bind(writer, &limits) == DEVITOCOMP_OK && save(writer, 0, 7));
    CHECK(load(store, 0) == FAILED);
    CHECK(is_failure(failure_of(store), DEVITOCOMP_VERSION_MISMATCH, "another provider",
                     INDEX));
    devitocomp_store_destroy(writer);
  }
  devitocomp_store_destroy(store);
}

/* What is in the files is not what is asked for. */
static void test_mismatch(void)
{
  devitocomp_store_config_t config = config_of(4);
  const devitocomp_disk_t disk = {directory, STORE_ID, 0, 0};
  devitocomp_store_t *store;

  new_directory();
  store = open_writer(4);
  devitocomp_store_destroy(store);
  CHECK(!open_as(5, 0, 0, STORE_ID));
  CHECK(is_failure(opening, DEVITOCOMP_INVALID_ARGUMENT, "4 snapshots, not of 5", INDEX));
  CHECK(!strcmp(opening.action, "open") && opening.index == -1);
  config.dtype = DEVITOCOMP_FLOAT64;
  CHECK(!devitocomp_store_open(&config, &disk, &opening));
  CHECK(is_failure(opening, DEVITOCOMP_INVALID_ARGUMENT, "dtype 1, not 2", INDEX));
  config = config_of(4);
  config.dims[0]++;
  CHECK(!devitocomp_store_open(&config, &disk, &opening));
  CHECK(is_failure(opening, DEVITOCOMP_INVALID_ARGUMENT, "16 points along dimension 0",
                   INDEX));
  config = config_of(4);
  config.rank = 2;
  CHECK(!devitocomp_store_open(&config, &disk, &opening));
  CHECK(is_failure(opening, DEVITOCOMP_INVALID_ARGUMENT, "rank 1, not 2", INDEX));
  config.rank = 99;
  CHECK(!devitocomp_store_open(&config, &disk, &opening));
  CHECK(opening.status == DEVITOCOMP_INVALID_ARGUMENT);
}

/* A rank without points, and a function without snapshots. */
static void test_empty(void)
{
  devitocomp_store_config_t config = config_of(3);
  const devitocomp_disk_t disk = {directory, STORE_ID, 0, 0};
  devitocomp_view_t v = view();
  devitocomp_store_t *store;
  const void *payload, *sidecar;
  size_t bytes = 1;

  config.dims[0] = v.dims[0] = 0;
  new_directory();
  store = devitocomp_store_open(&config, &disk, &opening);
  CHECK(store && devitocomp_store_begin(store, 1) == DEVITOCOMP_OK);
  CHECK(!devitocomp_store_reserve(store, 1, v).ready);
  CHECK(!devitocomp_store_reserve(store, 1, v).ready && !devitocomp_store_failed(store));
  devitocomp_store_end(store);
  CHECK(is_stored(store, 1) && !is_stored(store, 0));
  CHECK(devitocomp_store_put(store, 2, NULL, 0, NULL) == DEVITOCOMP_OK);
  devitocomp_store_destroy(store);
  store = devitocomp_store_open(&config, &disk, &opening);
  CHECK(store && is_stored(store, 1) && is_stored(store, 2) && !is_stored(store, 0));
  CHECK(devitocomp_store_peek(store, 1, &payload, &bytes, &sidecar) == DEVITOCOMP_OK);
  CHECK(!payload && !bytes && !sidecar);
  devitocomp_store_clear(store);
  CHECK(!is_stored(store, 1));
  devitocomp_store_destroy(store);

  new_directory();
  store = open_writer(0);
  CHECK(usage_of(store).stored_bytes == 0);
  devitocomp_store_destroy(store);
  store = open_reader(0);
  devitocomp_store_destroy(store);
}

/* Storing the same snapshots again and again, in any order, with similar sizes. */
static void test_rewriting(void)
{
  enum { N = 100, RUNS = 100 };
  devitocomp_store_t *store;
  int64_t model[N] = {0}, version = 0;
  size_t largest = 0;
  int run, step;

  new_directory();
  least = 2700;
  store = open_writer(N);
  for (run = 0; run < RUNS; run++) {
    for (step = 0; step < N; step++) {
      const int i = run % 3 == 0 ? step : run % 3 == 1 ? N - 1 - step : (int)draw(N);
      CHECK(save(store, i, ++version));
      model[i] = version;
    }
    if (run % 10 == 5) {
      devitocomp_store_destroy(store);
      store = open_writer(N);
    }
    largest = size_of_file(DATA) > largest ? size_of_file(DATA) : largest;
  }
  for (step = 0; step < N; step++) {
    CHECK(load(store, step) == model[step]);
  }
  if (!CHECK(largest <= (size_t)N * (MOST + SIDECAR) * 13 / 10)) {
    fprintf(stderr, "%d payloads of %d bytes occupied %zu\n", N, MOST, largest);
  }
  CHECK(size_of_file(INDEX) == 256 + 128 * (N + 1));

  least = 0;
  most = 10;
  for (step = 0; step < N; step++) {
    CHECK(save(store, step, ++version));
  }
  CHECK(size_of_file(DATA) <= largest);
  devitocomp_store_clear(store);
  CHECK(size_of_file(DATA) == 64);
  devitocomp_store_destroy(store);
  most = MOST;
}

/* Memory, for any number of snapshots. */
static void test_memory(void)
{
  static const uint64_t caches[] = {0, 20000, 100000};
  devitocomp_store_t *store;
  size_t c;
  int i, pass;

  least = MOST / 2;
  for (c = 0; c < 3; c++) {
    const size_t room = MOST + SIDECAR + 2 * 64 + 3 * 64;
    const uint64_t cap = (caches[c] > room ? caches[c] : room) + 4096;
    uint64_t resident = 0;

    new_directory();
    store = open_with(1000, 0, caches[c], &default_limits);
    for (pass = 0; pass < 2; pass++) {
      for (i = 0; i < 1000; i++) {
        if (pass) {
          CHECK(load(store, 999 - i) == 1);
        } else {
          CHECK(save(store, i, 1));
        }
        resident = usage_of(store).resident_bytes;
        CHECK(resident <= cap && (!caches[c] || resident));
      }
    }
    CHECK(caches[c] ? resident > caches[c] * 8 / 10 : !resident);
    devitocomp_store_destroy(store);
    remove_tree(directory);
  }
  least = 0;
}

/* What is in memory is not read again. */
static void test_cache(void)
{
  devitocomp_store_t *store;
  int i;

  new_directory();
  least = most = 2000;
  store = open_with(100, 0, 50000, &default_limits);
  for (i = 0; i < 100; i++) {
    CHECK(save(store, i, 1));
  }
  read_errno = EIO;
  for (i = 0; i < 20; i++) {
    CHECK(load(store, 99 - i) == 1);
  }
  CHECK(load(store, 50) == FAILED);
  read_errno = 0;
  for (i = 0; i < 20; i++) {
    CHECK(load(store, 50 + i) == 1);
  }
  CHECK(save(store, 60, 2));
  read_errno = EIO;
  for (i = 19; i >= 0; i--) {
    CHECK(load(store, 50 + i) == (i == 10 ? 2 : 1));
  }
  disarm();
  devitocomp_store_destroy(store);
  least = 0;
  most = MOST;
}

/* One process writes the same snapshots again and again, another reads them. */
static void test_reader_and_writer(void)
{
  enum { N = 6, LOADS = 4000 };
  devitocomp_store_t *store;
  int64_t latest[N] = {0};
  int i, status, changes = 0;
  pid_t child;

  new_directory();
  store = open_writer(N);
  for (i = 0; i < N; i++) {
    CHECK(save(store, i, 1));
  }
  devitocomp_store_destroy(store);
  child = fork();
  if (!child) {
    int64_t version = 1;
    store = open_with(N, 0, 5000, &default_limits);
    while (save(store, (int64_t)draw(N), ++version)) {
      if (version % 50 == 0) {
        usleep(100);
      }
    }
    _exit(1);
  }
  store = open_reader(N);
  for (i = 0; i < LOADS; i++) {
    const int at = (int)draw(N);
    const int64_t found = load(store, at);
    if (!CHECK(found >= latest[at])) {
      fprintf(stderr, "%s\n", failure_of(store).message);
    }
    changes += found != latest[at];
    latest[at] = found;
    if (i % 100 == 99) {
      devitocomp_store_destroy(store);
      store = open_reader(N);
    }
  }
  CHECK(changes > 10);
  devitocomp_store_destroy(store);
  kill(child, SIGKILL);
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

static void test_forks(void)
{
  devitocomp_store_t *store;
  int status;
  pid_t child;

  new_directory();
  store = open_writer(4);
  CHECK(save(store, 0, 1));
  child = fork();
  if (!child) {
    failures = 0;
    CHECK(load(store, 0) == 1);
    CHECK(!save(store, 1, 1));
    CHECK(is_failure(failure_of(store), DEVITOCOMP_INVALID_ARGUMENT, "fork", DATA));
    devitocomp_store_clear(store);
    CHECK(devitocomp_store_failed(store));
    devitocomp_store_destroy(store);
    _exit(failures != 0);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(load(store, 0) == 1 && save(store, 1, 2) && load(store, 1) == 2);
  devitocomp_store_destroy(store);
}

static void test_long_path(void)
{
  char home[512];
  int i;

  new_directory();
  strcpy(home, directory);
  for (i = 0; i < 4; i++) {
    strcat(directory, "/abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"
                      "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
    CHECK(!mkdir(directory, 0777));
  }
  {
    devitocomp_store_t *store = open_writer(3);
    arm(FAIL, ENOSPC, 1);
    CHECK(!save(store, 0, 1));
    CHECK(is_failure(failure_of(store), DEVITOCOMP_IO_ERROR, strerror(ENOSPC), DATA));
    disarm();
    devitocomp_store_destroy(store);
  }
  strcpy(directory, home);
}

static double now(void)
{
  struct timespec time;

  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void test_opening(void)
{
  enum { N = 10000 };
  devitocomp_store_t *store;
  double start;
  int i;

  new_directory();
  most = 100;
  store = open_writer(N);
  for (i = 0; i < N; i++) {
    CHECK(save(store, i, 1 + i % 7));
  }
  devitocomp_store_destroy(store);
  for (i = 0; i < 2; i++) {
    start = now();
    store = open_with(N, i, 0, &default_limits);
    start = now() - start;
    if (!CHECK(start < 0.5)) {
      fprintf(stderr, "opening took %g s\n", start);
    }
    CHECK(load(store, 1234) == 1 + 1234 % 7);
    devitocomp_store_destroy(store);
  }
  most = MOST;
}

int main(void)
{
  const char *const parent = getenv("TMPDIR");
  char *cwd;
  int before;
  uint64_t i;

  (void)parent;
  cwd = mkdtemp(scratch);
  if (!cwd) {
    perror(scratch);
    return 1;
  }
  seed = 20240229;
  before = open_files();
  test_basics();
  test_mismatch();
  test_empty();
  test_read_only();
  test_cache();
  test_memory();
  test_rewriting();
  test_bit_flips();
  test_truncation();
  test_swaps();
  test_healing();
  test_errors();
  test_full();
  test_vanishing();
  test_deaths();
  test_kills();
  test_reader_and_writer();
  test_forks();
  test_long_path();
  test_opening();
  for (i = 0; i < 60; i++) {
    test_random(i);
  }
  CHECK(open_files() == before);
  remove_tree(scratch);
  return report("test_disk");
}
