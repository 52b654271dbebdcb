/*
 * provider.h -- what providers have in common: checked arguments, options, words of a
 * payload and their hash, the floating-point environment, threads.
 *
 * Compiled into a provider, not a library of its own.
 */
#ifndef DEVITOCOMP_COMMON_PROVIDER_H
#define DEVITOCOMP_COMMON_PROVIDER_H

#include "devitocomp.h"

#include <fenv.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MESSAGE_BYTES 256
#define WORD 8

/* Neither a snapshot nor any size derived from it comes near an overflow. */
#define MAX_TENSOR_BYTES (INT64_C(1) << 46)

/* What a provider offers, whatever the plan. */
typedef struct offer {
  uint32_t kinds, dtypes, ranks; /* masks, as in devitocomp_limits_t */
} offer_t;

/* Write a message of MESSAGE_BYTES at most; returns the status, for `return fail(...)`. */
int fail(char *message, int status, const char *format, ...)
#if defined(__GNUC__)
  __attribute__((format(printf, 3, 4)))
#endif
  ;

/* Options: NULL for the default, or a finite decimal number >= 0, in any locale. */
int parse_tolerance(char *message, const char *options, double by_default, double *error);

/* Arguments. A tensor may have any strides, of which those of extents of 1 are ignored. */
int check_abi_version(char *message, const char *name, uint32_t abi_version);
int check_execution(char *message, const offer_t *offer,
                    const devitocomp_execution_t *exec);
int check_tensor(char *message, const offer_t *offer, const devitocomp_tensor_t *tensor);
int check_pointer(char *message, const char *name, const void *pointer,
                  size_t alignment);

/* Copy as much of `filled` as the caller has room for. */
int hand_out_limits(const devitocomp_limits_t *filled, devitocomp_limits_t *limits);

/* The bytes of an element of a type that a provider offers. */
size_t size_of_dtype(uint32_t dtype);

/* Words of a payload. */
static inline uint64_t get_word(const void *payload, size_t index) {
  uint64_t word;
  memcpy(&word, (const unsigned char *)payload + index * WORD, WORD);
  return word;
}

static inline void put_word(void *payload, size_t index, uint64_t word) {
  memcpy((unsigned char *)payload + index * WORD, &word, WORD);
}

/* Hashes that no change of a single word leaves as they are. */
uint64_t mix(uint64_t hash, uint64_t word);
uint64_t hash_words(const void *data, size_t bytes);
uint64_t tag_tensor(const devitocomp_tensor_t *tensor);

/*
 * The bits of non-negative floating-point numbers, as integers, are ordered as the numbers
 * are, infinity and NaN last: nothing but the maximum is needed to notice these.
 */
int bits_are_finite(uint32_t dtype, uint64_t bits);
double value_of_bits(uint32_t dtype, uint64_t bits);

/* Say which element of a tensor in host memory is not finite. Returns UNSUPPORTED. */
int refuse_not_finite(char *message, const devitocomp_tensor_t *tensor, const void *data);

/*
 * Callers may have told their threads to flush subnormals to zero (what -ffast-math does
 * at program start), to round otherwise, or to raise signals for what goes on in a codec
 * when numbers are close to the limits of their type. Nothing of that must get there.
 */
void set_environment(fenv_t *callers);
void restore_environment(const fenv_t *callers);

/* How many threads to use for parts that can be worked on separately. */
int count_threads(const devitocomp_execution_t *exec, size_t parts);

#ifdef __cplusplus
}
#endif

#endif
