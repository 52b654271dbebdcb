/* expect.h -- what common/test_lossy.c should find. */
#define NAME "bitcomp"
#define RANKS 0x1eu
#define PAYLOAD_VERSION 2
#define LOSSY_FROM 1e-7
#define LOSSLESS_BELOW 1e-17
#define ZERO_BYTES 40
#define SPARSE_BYTES 8192
#define ROOM(bytes) (16384 + (bytes) + (bytes) / 64)
#define CODEC "nvCOMP 7"
