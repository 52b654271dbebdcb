/* file.c -- see file.h. */
#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The end of a path that a message still has room for. */
#define LONGEST_NAME 320

int file_explain(char *message, int status, const char *format, ...)
{
  va_list args;

  va_start(args, format);
  vsnprintf(message, LAYER_MESSAGE_BYTES, format, args);
  va_end(args);
  return status;
}

const char *file_name(const file_t *file)
{
  const size_t length = strlen(file->path);

  return length > LONGEST_NAME ? file->path + length - LONGEST_NAME : file->path;
}

/* After a system call has failed. */
static int explain_errno(const file_t *file, const char *action, char *message)
{
  return file_explain(message, DEVITOCOMP_IO_ERROR, "cannot %s %s: %s", action,
                      file_name(file), strerror(errno));
}

int file_init(file_t *file, const char *directory, const char *name)
{
  const size_t bytes = strlen(directory) + strlen(name) + 2;

  file->fd = -1;
  file->path = malloc(bytes);
  if (file->path) {
    snprintf(file->path, bytes, "%s/%s", directory, name);
  }
  return file->path != NULL;
}

void file_free(file_t *file)
{
  if (file->path) {
    file_close(file);
    free(file->path);
    file->path = NULL;
  }
}

int file_open(file_t *file, int flags, int *missing, char *message)
{
  do {
    file->fd = open(file->path, flags | O_CLOEXEC, 0666);
  } while (file->fd < 0 && errno == EINTR);
  if (missing) {
    *missing = file->fd < 0 && errno == ENOENT;
    if (*missing) {
      return DEVITOCOMP_OK;
    }
  }
  return file->fd < 0 ? explain_errno(file, "open", message) : DEVITOCOMP_OK;
}

void file_close(file_t *file)
{
  if (file->fd >= 0) {
    (void)close(file->fd);
    file->fd = -1;
  }
}

int file_size(const file_t *file, uint64_t *bytes, char *message)
{
  struct stat status;

  if (fstat(file->fd, &status)) {
    return explain_errno(file, "look at", message);
  }
  *bytes = (uint64_t)status.st_size;
  return DEVITOCOMP_OK;
}

int file_resize(const file_t *file, uint64_t bytes, char *message)
{
  int failed;

  do {
    failed = ftruncate(file->fd, (off_t)bytes);
  } while (failed && errno == EINTR);
  return failed ? explain_errno(file, "resize", message) : DEVITOCOMP_OK;
}

/* Drop what has been transferred from the parts. Returns how many parts are left. */
static int advance(struct iovec **parts, int count, size_t bytes)
{
  while (count && bytes >= (*parts)->iov_len) {
    bytes -= (*parts)->iov_len;
    (*parts)++;
    count--;
  }
  if (count) {
    (*parts)->iov_base = (char *)(*parts)->iov_base + bytes;
    (*parts)->iov_len -= bytes;
  }
  return count;
}

int file_read(const file_t *file, struct iovec *parts, int count, uint64_t offset,
              char *message)
{
  count = advance(&parts, count, 0);
  while (count) {
    const ssize_t got = preadv(file->fd, parts, count, (off_t)offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return explain_errno(file, "read", message);
    }
    if (!got) {
      return file_explain(message, DEVITOCOMP_CORRUPT_PAYLOAD,
                          "%s is truncated: nothing is left at byte %" PRIu64,
                          file_name(file), offset);
    }
    offset += (uint64_t)got;
    count = advance(&parts, count, (size_t)got);
  }
  return DEVITOCOMP_OK;
}

int file_write(const file_t *file, struct iovec *parts, int count, uint64_t offset,
               char *message)
{
  count = advance(&parts, count, 0);
  while (count) {
    const ssize_t done = pwritev(file->fd, parts, count, (off_t)offset);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      errno = done ? errno : EIO;
      return explain_errno(file, "write to", message);
    }
    offset += (uint64_t)done;
    count = advance(&parts, count, (size_t)done);
  }
  return DEVITOCOMP_OK;
}

int file_check_named(const file_t *file, char *message)
{
  struct stat status;

  if (fstat(file->fd, &status)) {
    return explain_errno(file, "look at", message);
  }
  if (!status.st_nlink) {
    return file_explain(message, DEVITOCOMP_IO_ERROR, "%s has been removed while in use",
                        file_name(file));
  }
  return DEVITOCOMP_OK;
}

int file_sync(const file_t *file, char *message)
{
  int failed;

  do {
    failed = fdatasync(file->fd);
  } while (failed && errno == EINTR);
  /* A file system that cannot has nothing to wait for. */
  return failed && errno != EINVAL && errno != ENOSYS
    ? explain_errno(file, "flush", message) : DEVITOCOMP_OK;
}

void file_will_need(const file_t *file, uint64_t offset, uint64_t bytes)
{
  (void)posix_fadvise(file->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}

void file_dont_need(const file_t *file, uint64_t offset, uint64_t bytes)
{
  (void)posix_fadvise(file->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
}
