/* expect.h -- what common/test_lossy.c should find. */
#define NAME "zfp"
#define RANKS 0x1eu
#define PAYLOAD_VERSION 1
#define LOSSY_FROM 1e-7
#define LOSSLESS_BELOW 1e-17
#define ZERO_BYTES 32
#define SPARSE_BYTES 1024
#define ROOM(bytes) (2 * 256 * sizeof(double) + 2 * 16 * (bytes))
#define CODEC "codec"
