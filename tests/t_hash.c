/* SPDX-License-Identifier: Apache-2.0
 *
 * Published vectors: SHA-256 from FIPS 180-4's examples and the NIST million-a message; CRC-32C from RFC 3720 B.4.
 */
#include "tap.h"
#include "../src/hash.h"

#include <stdlib.h>
#include <string.h>

static void sha_vector(const char *text, const char *want)
{
    char hex[65];

    lf_sha256_hex(text, strlen(text), hex);
    TAP_CHECK(!strcmp(hex, want), "sha256 of %zu characters", strlen(text));
}

static void sha_million(void)
{
    char hex[65], a[977];
    uint8_t digest[32];
    lf_sha256 s;
    size_t left = 1000000;

    memset(a, 'a', sizeof a);
    lf_sha256_init(&s);
    while (left > 0) {
        size_t n = left < sizeof a ? left : sizeof a;
        lf_sha256_add(&s, a, n);
        left -= n;
    }
    lf_sha256_end(&s, digest);
    lf_hex(digest, 32, hex);
    TAP_CHECK(!strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
              "sha256 of a million a in pieces of 977");
}

/* Every length around the padding's two cases, added whole and cut in two. */
static void sha_lengths(void)
{
    uint8_t data[200], digest[32];
    char whole[65], cut[65];
    int bad = 0;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 + 1);
    for (size_t n = 0; n <= sizeof data; n++) {
        lf_sha256_hex(data, n, whole);
        for (size_t at = 0; at <= n; at += 13) {
            lf_sha256 s;
            lf_sha256_init(&s);
            lf_sha256_add(&s, data, at);
            lf_sha256_add(&s, data + at, n - at);
            lf_sha256_end(&s, digest);
            lf_hex(digest, 32, cut);
            TAP_QUIET(bad, !strcmp(whole, cut), "%zu bytes cut at %zu", n, at);
        }
    }
    TAP_CHECK(bad == 0, "sha256 does not depend on the pieces");
}

static void crc_vector(const char *what, const uint8_t *data, size_t n, uint32_t want)
{
    TAP_CHECK(lf_crc32c(0, data, n) == want, "crc32c of %s", what);
    TAP_CHECK(lf_crc32c_plain(0, data, n) == want, "crc32c of %s by table", what);
}

static void crc_vectors(void)
{
    static const uint8_t read_pdu[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
        0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0
    };
    uint8_t b[32];

    crc_vector("the digits 1 to 9", (const uint8_t *)"123456789", 9, 0xe3069283);
    memset(b, 0, 32);
    crc_vector("32 zeros", b, 32, 0x8a9136aa);
    memset(b, 0xff, 32);
    crc_vector("32 ones", b, 32, 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        b[i] = (uint8_t)i;
    crc_vector("0 to 31", b, 32, 0x46dd794e);
    for (int i = 0; i < 32; i++)
        b[i] = (uint8_t)(31 - i);
    crc_vector("31 to 0", b, 32, 0x113fdb5c);
    crc_vector("an iSCSI read command", read_pdu, 48, 0xd9963a56);
}

static void crc_pieces(void)
{
    uint8_t data[77];
    int bad = 0;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * i + 3);
    uint32_t whole = lf_crc32c_plain(0, data, sizeof data);
    for (size_t at = 0; at <= sizeof data; at++) {
        uint32_t c = lf_crc32c(lf_crc32c(0, data, at), data + at, sizeof data - at);
        TAP_QUIET(bad, c == whole, "cut at %zu", at);
    }
    TAP_CHECK(bad == 0, "crc32c continues over pieces of any length and alignment");
}

int main(void)
{
    sha_vector("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha_vector("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha_vector("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    sha_vector("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
               "mnopqrstnopqrstu", "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    sha_million();
    sha_lengths();
    crc_vectors();
    crc_pieces();
    return tap_done();
}
