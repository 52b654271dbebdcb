/*
 * checksum.c -- see checksum.h; docs/store-format.md describes the computation.
 *
 * Every step maps a state to another one to one, for any word that it absorbs. So damage
 * that is confined to one word is always found, and any other but for a chance of 2^-64.
 */
#include "checksum.h"

#include <string.h>

/* As many as it takes to keep a multiplier busy. */
#define LANES 4

#define MULTIPLIER UINT64_C(0xd2bc035513b16ec7)

static inline uint64_t absorb(uint64_t state, uint64_t word)
{
  const uint64_t product = (state ^ word) * MULTIPLIER;
  return product << 29 | product >> 35;
}

static inline void absorb_block(uint64_t *lanes, const void *data)
{
  uint64_t words[LANES];
  int i;

  memcpy(words, data, sizeof(words));
  for (i = 0; i < LANES; i++) {
    lanes[i] = absorb(lanes[i], words[i]);
  }
}

uint64_t checksum(uint64_t seed, const void *data, size_t bytes)
{
  const char *at = data;
  uint64_t lanes[LANES], last[LANES] = {0};
  uint64_t state = absorb(seed, bytes);
  size_t blocks = bytes / sizeof(last);
  const size_t rest = bytes % sizeof(last);
  int i;

  for (i = 0; i < LANES; i++) {
    lanes[i] = absorb(state, (uint64_t)i + 1);
  }
  for (; blocks; blocks--) {
    absorb_block(lanes, at);
    at += sizeof(last);
  }
  if (rest) {
    memcpy(last, at, rest);
    absorb_block(lanes, last);
  }
  for (i = 0; i < LANES; i++) {
    state = absorb(state, lanes[i]);
  }
  /* So that all bits depend on the last word too. */
  state = absorb(state, state >> 32);
  return state ^ state >> 31;
}
