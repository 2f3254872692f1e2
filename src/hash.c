/* SPDX-License-Identifier: Apache-2.0 */
#include "hash.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define HAVE_SSE42_PATH 1
#endif

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
};

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void sha_schedule(uint32_t w[64], const uint8_t *block)
{
    for (int i = 0; i < 16; i++)
        w[i] = load_be32(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        uint32_t s0 = rotr(a, 7) ^ rotr(a, 18) ^ a >> 3;
        uint32_t s1 = rotr(b, 17) ^ rotr(b, 19) ^ b >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static void sha_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], v[8];

    sha_schedule(w, block);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t ch = (e & v[5]) ^ (~e & v[6]);
        uint32_t maj = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        uint32_t t1 = v[7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ch + sha_k[i] + w[i];
        uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + maj;
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[0] = t1 + t2;
        v[4] += t1;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

void lf_sha256_init(lf_sha256 *s)
{
    static const uint32_t start[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19
    };

    memset(s, 0, sizeof *s);
    memcpy(s->state, start, sizeof start);
}

void lf_sha256_add(lf_sha256 *s, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t used = s->bytes % 64;

    s->bytes += bytes;
    if (used && bytes) {
        size_t n = bytes < 64 - used ? bytes : 64 - used;
        memcpy(s->block + used, p, n);
        p += n;
        bytes -= n;
        if (used + n < 64)
            return;
        sha_block(s->state, s->block);
    }
    for (; bytes >= 64; p += 64, bytes -= 64)
        sha_block(s->state, p);
    if (bytes)
        memcpy(s->block, p, bytes);
}

void lf_sha256_end(lf_sha256 *s, uint8_t digest[32])
{
    static const uint8_t pad[64] = { 0x80 };
    uint64_t bits = s->bytes * 8;
    uint8_t length[8];
    size_t used = s->bytes % 64;

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    lf_sha256_add(s, pad, used < 56 ? 56 - used : 120 - used);
    lf_sha256_add(s, length, 8);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void lf_hex(const uint8_t *bytes, size_t n, char *hex)
{
    static const char digit[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = digit[bytes[i] >> 4];
        hex[2 * i + 1] = digit[bytes[i] & 15];
    }
    hex[2 * n] = 0;
}

void lf_sha256_hex(const void *data, size_t bytes, char hex[65])
{
    lf_sha256 s;
    uint8_t digest[32];

    lf_sha256_init(&s);
    lf_sha256_add(&s, data, bytes);
    lf_sha256_end(&s, digest);
    lf_hex(digest, 32, hex);
}

/* Four bits a step: 64 bytes of table, constant, so there is nothing to initialise and nothing to race on. */
uint32_t lf_crc32c_plain(uint32_t crc, const void *data, size_t bytes)
{
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75
    };
    const uint8_t *p = data;

    crc = ~crc;
    while (bytes--) {
        crc ^= *p++;
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

#ifdef HAVE_SSE42_PATH
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t c = ~crc, word;

    for (; bytes >= 8; p += 8, bytes -= 8) {
        memcpy(&word, p, 8);
        c = _mm_crc32_u64(c, word);
    }
    for (; bytes; p++, bytes--)
        c = _mm_crc32_u8((uint32_t)c, *p);
    return ~(uint32_t)c;
}
#endif

uint32_t lf_crc32c(uint32_t crc, const void *data, size_t bytes)
{
#ifdef HAVE_SSE42_PATH
    if (__builtin_cpu_supports("sse4.2"))
        return crc32c_sse42(crc, data, bytes);
#endif
    return lf_crc32c_plain(crc, data, bytes);
}
