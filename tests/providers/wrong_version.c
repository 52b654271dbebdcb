/* wrong_version.c -- a library of another ABI version than the header beside it. */
#define BASE_NAME "wrong_version"
#define BASE_ABI_VERSION 999
#include "strided.c"
