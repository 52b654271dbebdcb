/*
 * checksum.h -- a fast 64-bit checksum against damage, not against malice.
 */
#ifndef DEVITOCOMP_CHECKSUM_H
#define DEVITOCOMP_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/*
 * The checksum of some bytes that follow those which seed is the checksum of; any seed
 * for the first ones. Depends on the byte order of the machine.
 */
uint64_t checksum(uint64_t seed, const void *data, size_t bytes);

#endif /* DEVITOCOMP_CHECKSUM_H */
