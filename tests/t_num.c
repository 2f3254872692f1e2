/* SPDX-License-Identifier: Apache-2.0 */
#include "num.h"
#include "tap.h"

#include <math.h>
#include <stdlib.h>

/* The value of an e4m3 code from the definition of the format, in double. */
static double e4m3_value(int c)
{
    int s = c >> 7, e = c >> 3 & 15, m = c & 7;
    double v = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);

    return s ? -v : v;
}

static void check_dtypes(void)
{
    static const struct {
        const char *name;
        lf_dtype t;
        size_t bytes;
    } want[] = {
        { "F32", LF_F32, 4 },      { "BF16", LF_BF16, 2 }, { "F16", LF_F16, 2 }, { "F8_E4M3", LF_E4M3, 1 },
        { "F8_E8M0", LF_E8M0, 1 }, { "I8", LF_I8, 1 },     { "U8", LF_U8, 1 },   { "I32", LF_I32, 4 },
        { "I64", LF_I64, 8 },      { "U32", LF_U32, 4 },
    };
    int bad = 0;
    lf_dtype t = LF_DTYPES;

    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        TAP_QUIET(bad, lf_dtype_parse(want[i].name, &t) == 0 && t == want[i].t, "parse %s", want[i].name);
        TAP_QUIET(bad, lf_dtype_bytes(want[i].t) == want[i].bytes, "bytes of %s", want[i].name);
        TAP_QUIET(bad, strcmp(lf_dtype_name(want[i].t), want[i].name) == 0, "name of %s", want[i].name);
    }
    TAP_CHECK(bad == 0 && sizeof want / sizeof *want == LF_DTYPES,
              "every storage type has its name and size");
    TAP_CHECK(lf_dtype_parse("F64", &t) == -1 && lf_dtype_parse("f32", &t) == -1 &&
                  lf_dtype_parse("", &t) == -1,
              "names of other types are not accepted");
}

static void check_tables(void)
{
    int bad = 0, bad2 = 0, bad8 = 0;
    static const double e2m1[8] = { 0, .5, 1, 1.5, 2, 3, 4, 6 };

    for (int c = 0; c < 256; c++) {
        float v = lf_e4m3_table[c];
        if ((c & 0x7f) == 0x7f)
            TAP_QUIET(bad, isnan(v), "code %02x is NaN", c);
        else
            TAP_QUIET(bad, v == e4m3_value(c) && !!signbit(v) == c >> 7, "code %02x: %g", c, v);
        float s = lf_e8m0_f32((uint8_t)c);
        TAP_QUIET(bad8, c == 255 ? isnan(s) : s == ldexp(1, c - 127), "e8m0 %02x: %g", c, s);
    }
    for (int c = 0; c < 16; c++) {
        float v = lf_e2m1_table[c];
        TAP_QUIET(bad2, fabs(v) == e2m1[c & 7] && !!signbit(v) == c >> 3, "e2m1 code %x: %g", c, v);
    }
    TAP_CHECK(bad == 0, "all 256 e4m3 codes have the value of their definition");
    TAP_CHECK(bad8 == 0, "all 256 e8m0 codes have the value of their definition");
    TAP_CHECK(bad2 == 0, "all 16 e2m1 codes have the value of their definition");
}

static void check_round_trip(void)
{
    int bad4 = 0, bad8 = 0;

    for (int c = 0; c < 256; c++) {
        int want = c == 0xff ? 0x7f : c;
        TAP_QUIET(bad8, lf_f32_e4m3(lf_e4m3_table[c]) == want, "e4m3 %02x", c);
    }
    for (int c = 0; c < 16; c++)
        TAP_QUIET(bad4, lf_f32_e2m1(lf_e2m1_table[c]) == c, "e2m1 %x", c);
    TAP_CHECK(bad8 == 0, "every e4m3 value converts to its own code");
    TAP_CHECK(bad4 == 0, "every e2m1 value converts to its own code, zero keeping its sign");
}

/* Around the middle of each pair of neighbours: below it the lower code, above it the upper, on it the even one. */
static void check_middles(void)
{
    int bad8 = 0, bad4 = 0;

    for (int c = 0; c < 0x7e; c++) {
        float mid = (float)((e4m3_value(c) + e4m3_value(c + 1)) / 2);
        int even = c & 1 ? c + 1 : c;
        for (int s = 0; s < 2; s++) {
            float k = s ? -1 : 1;
            TAP_QUIET(bad8, lf_f32_e4m3(k * nextafterf(mid, 0)) == (s << 7 | c),
                      "below the middle after %02x", c);
            TAP_QUIET(bad8, lf_f32_e4m3(k * mid) == (s << 7 | even), "the middle after %02x", c);
            TAP_QUIET(bad8, lf_f32_e4m3(k * nextafterf(mid, 1e9f)) == (s << 7 | (c + 1)), "above %02x", c);
        }
    }
    for (int c = 0; c < 7; c++) {
        float mid = (lf_e2m1_table[c] + lf_e2m1_table[c + 1]) / 2;
        int even = c & 1 ? c + 1 : c;
        for (int s = 0; s < 2; s++) {
            float k = s ? -1 : 1;
            TAP_QUIET(bad4, lf_f32_e2m1(k * nextafterf(mid, 0)) == (s << 3 | c), "below the middle after %x",
                      c);
            TAP_QUIET(bad4, lf_f32_e2m1(k * mid) == (s << 3 | even), "the middle after %x", c);
            TAP_QUIET(bad4, lf_f32_e2m1(k * nextafterf(mid, 1e9f)) == (s << 3 | (c + 1)), "above %x", c);
        }
    }
    TAP_CHECK(bad8 == 0, "e4m3 rounds to nearest, ties to even, at all 126 middles of both signs");
    TAP_CHECK(bad4 == 0, "e2m1 rounds to nearest, ties to even, at all 7 middles of both signs");
}

static void check_ends(void)
{
    TAP_CHECK(lf_f32_e4m3(449) == 0x7e && lf_f32_e4m3(464) == 0x7e && lf_f32_e4m3(1e30f) == 0x7e &&
                  lf_f32_e4m3(INFINITY) == 0x7e,
              "e4m3 clamps at 448");
    TAP_CHECK(lf_f32_e4m3(-449) == 0xfe && lf_f32_e4m3(-INFINITY) == 0xfe, "e4m3 clamps at -448");
    TAP_CHECK(lf_f32_e4m3(NAN) == 0x7f && lf_f32_e4m3(-NAN) == 0x7f, "NaN becomes e4m3 0x7f");
    TAP_CHECK(lf_f32_e4m3(0x1p-149f) == 0 && lf_f32_e4m3(-0x1p-149f) == 0x80,
              "the least float becomes e4m3 zero");
    TAP_CHECK(lf_f32_e2m1(7) == 7 && lf_f32_e2m1(INFINITY) == 7 && lf_f32_e2m1(-1e9f) == 15,
              "e2m1 clamps at 6");
    TAP_CHECK(lf_f32_e2m1(NAN) == 0 && lf_f32_e2m1(-NAN) == 0, "NaN becomes e2m1 0");
}

/* Every float of a coarse walk over all bit patterns goes to the nearest code by brute force. */
static void check_nearest(void)
{
    int bad = 0;

    for (uint64_t u = 0; u < 0x7f800000u; u += 40009) {
        float f = lf_bits_f32((uint32_t)u);
        double a = fmin(f, 448), best = 1e9;
        int got = lf_f32_e4m3(f);
        for (int c = 0; c < 0x7f; c++)
            best = fmin(best, fabs(a - e4m3_value(c)));
        TAP_QUIET(bad, fabs(a - e4m3_value(got)) == best, "%a went to %02x", f, got);
    }
    TAP_CHECK(bad == 0, "53,000 floats go to the nearest e4m3 value");
}

static void check_f16_bf16(void)
{
    int bad = 0, badb = 0;

    for (int h = 0; h < 65536; h++) {
        int e = h >> 10 & 31, m = h & 1023;
        double v = e ? ldexp(1 + m / 1024.0, e - 15) : ldexp(m / 1024.0, -14);
        float f = lf_f16_f32((uint16_t)h);
        if (e == 31 && m)
            TAP_QUIET(bad, isnan(f), "f16 %04x is NaN", h);
        else if (e == 31)
            TAP_QUIET(bad, isinf(f) && !!signbit(f) == h >> 15, "f16 %04x is infinite", h);
        else
            TAP_QUIET(bad, fabs(f) == v && !!signbit(f) == h >> 15, "f16 %04x: %g", h, f);
        float b = lf_bf16_f32((uint16_t)h);
        uint16_t back = lf_f32_bf16(b);
        TAP_QUIET(badb, isnan(b) ? isnan(lf_bf16_f32(back)) : back == h, "bf16 %04x", h);
    }
    TAP_CHECK(bad == 0, "all 65,536 f16 patterns have the value of their definition");
    TAP_CHECK(badb == 0, "all 65,536 bf16 patterns go to float32 and back");
    TAP_CHECK(lf_f32_bf16(lf_bits_f32(0x3f808000)) == 0x3f80 &&
                  lf_f32_bf16(lf_bits_f32(0x3f818000)) == 0x3f82,
              "bf16 ties go to even");
    TAP_CHECK(isnan(lf_bf16_f32(lf_f32_bf16(lf_bits_f32(0x7f800001)))),
              "a NaN whose high bits are zero stays NaN");
    TAP_CHECK(lf_f32_bf16(3.4e38f) == 0x7f80, "bf16 overflows to infinity");
}

/* The least k with a <= max * 2^k, by trying: every product is exact in double. */
static int least_exponent(double a, double max)
{
    int k = -140;

    while (a > ldexp(max, k))
        k++;
    return k;
}

static void one_scale(int *bad, float a)
{
    double want8 = least_exponent(fmax(a, (double)1e-4f), 448),
           want4 = least_exponent(fmax(a, ldexp(6, -126)), 6);

    TAP_QUIET(*bad, lf_scale_e4m3(a) == want8 + 127, "e4m3 scale of %a: %d", a, lf_scale_e4m3(a) - 127);
    TAP_QUIET(*bad, lf_scale_e2m1(a) == want4 + 127, "e2m1 scale of %a: %d", a, lf_scale_e2m1(a) - 127);
}

static void check_scales(void)
{
    int edges = 0, walk = 0;

    for (int k = -149; k < 128; k++)
        for (int m = 4; m < 8; m++) { /* powers of two, 1.25, 1.5 (6) and 1.75 (448) times them */
            float a = (float)ldexp(m / 4.0, k);
            one_scale(&edges, a);
            one_scale(&edges, nextafterf(a, 0));
            one_scale(&edges, fminf(nextafterf(a, INFINITY), 3.4028234e38f));
        }
    one_scale(&edges, 0);
    one_scale(&edges, 1e-4f);
    TAP_CHECK(edges == 0, "scales are exact at every power of two, at max * 2^k, and at their neighbours");
    for (uint64_t u = 0; u < 0x7f800000u; u += 100003)
        one_scale(&walk, lf_bits_f32((uint32_t)u));
    TAP_CHECK(walk == 0, "scales are exact on 21,000 floats from the least denormal to the largest");
    TAP_CHECK(lf_scale_e4m3(NAN) == 255 && lf_scale_e2m1(NAN) == 255, "the scale of NaN is NaN");
    TAP_CHECK(lf_scale_e4m3(448) == 127 && lf_scale_e4m3(0) == 127 - 22 && lf_scale_e2m1(6) == 127 &&
                  lf_scale_e2m1(0) == 1,
              "scales of 448, 6 and of zero are those of model.md");
}

int main(void)
{
    check_dtypes();
    check_tables();
    check_round_trip();
    check_middles();
    check_ends();
    check_nearest();
    check_f16_bf16();
    check_scales();
    return tap_done();
}
