/* testing.h -- what the tests of the runtime store have in common. */
#ifndef TESTING_H
#define TESTING_H

#include "devitocomp_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks, failures;

#define CHECK(condition) check(!!(condition), #condition, __func__, __LINE__)

static int check(int passed, const char *text, const char *function, int line)
{
  checks++;
  if (!passed) {
    failures++;
    fprintf(stderr, "%s:%d: failed: %s\n", function, line, text);
  }
  return passed;
}

static int report(const char *name)
{
  printf("%s: %d checks, %d failed\n", name, checks, failures);
  return failures != 0;
}

/* Random numbers, for a seed other than 0. */
static uint64_t seed;

static uint64_t draw(uint64_t below)
{
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (seed >> 11) % below;
}

#endif /* TESTING_H */
