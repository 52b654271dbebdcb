/* no_symbol.c -- a library without devitocomp_decompress. */
#define BASE_NAME "no_symbol"
#define BASE_DECOMPRESS_EXPORT
#include "strided.c"
