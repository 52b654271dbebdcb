/*
 * file.h -- files that are read and written whole, or not without a message.
 *
 * Functions that return an int return a devitocomp_status_t or DEVITOCOMP_IO_ERROR, and
 * explain a failure in message, which has room for LAYER_MESSAGE_BYTES.
 */
#ifndef DEVITOCOMP_FILE_H
#define DEVITOCOMP_FILE_H

#include "layer.h"

#include <sys/uio.h>

typedef struct file {
  int fd;  /* -1 if it is not open */
  char *path;
} file_t;

/* Fill in message, and return status. */
__attribute__((format(printf, 3, 4)))
int file_explain(char *message, int status, const char *format, ...);

/* How messages name a file: its path, or the end of a very long one. */
const char *file_name(const file_t *file);

/* Find out the path of a file that is not open. Returns nonzero on success. */
int file_init(file_t *file, const char *directory, const char *name);

/* Also closes it. */
void file_free(file_t *file);

/* Open with those flags of open(2). *missing, unless NULL, is set to whether there is no
   such file, which then is no failure. */
int file_open(file_t *file, int flags, int *missing, char *message);
void file_close(file_t *file);

int file_size(const file_t *file, uint64_t *bytes, char *message);
int file_resize(const file_t *file, uint64_t bytes, char *message);

/* Read, in one go if possible. A file that ends too early is a corrupt payload. The
   parts are used up. */
int file_read(const file_t *file, struct iovec *parts, int count, uint64_t offset,
              char *message);

/* Write, in one go if possible. On failure some of it may have been written. The parts
   are used up. */
int file_write(const file_t *file, struct iovec *parts, int count, uint64_t offset,
               char *message);

/* Fail if the file has no name any more, so that what is written to it will be lost. */
int file_check_named(const file_t *file, char *message);

/* Wait until all that was written has reached the device. */
int file_sync(const file_t *file, char *message);

/* Nothing happens where advice is not taken. */
void file_will_need(const file_t *file, uint64_t offset, uint64_t bytes);
void file_dont_need(const file_t *file, uint64_t offset, uint64_t bytes);

#endif /* DEVITOCOMP_FILE_H */
