/* SPDX-License-Identifier: Apache-2.0
 *
 * hash: SHA-256 (FIPS 180-4) and CRC-32C (Castagnoli, reflected, as in iSCSI: RFC 3720 B.4).  Floor 0.
 */
#ifndef LF_HASH_H
#define LF_HASH_H

#include "base.h"

typedef struct lf_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} lf_sha256;

void lf_sha256_init(lf_sha256 *s);
void lf_sha256_add(lf_sha256 *s, const void *data, size_t bytes);
void lf_sha256_end(lf_sha256 *s, uint8_t digest[32]);
void lf_sha256_hex(const void *data, size_t bytes, char hex[65]);      /* of one piece, lower-case */
void lf_hex(const uint8_t *bytes, size_t n, char *hex);                /* 2n characters and a terminating 0 */

/* crc of what came before (0 to start) continued over data; uses SSE4.2 where the processor has it. */
uint32_t lf_crc32c(uint32_t crc, const void *data, size_t bytes);
uint32_t lf_crc32c_plain(uint32_t crc, const void *data, size_t bytes);        /* the same by table, on any processor */

#endif
