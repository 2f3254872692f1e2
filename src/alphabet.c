/* SPDX-License-Identifier: Apache-2.0 */
#include "alphabet.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = LF_MAX_CHARSETS / 64 };

typedef struct signature {
    uint64_t w[WORDS];                     /* which sets a code point is in */
} signature;

int lf_alphabet_add(lf_alphabet *a, lf_charset *set, lf_err *err)
{
    lf_charset_tidy(set);
    for (int i = 0; i < a->sets; i++) {
        if (lf_charset_same(&a->set[i], set)) {
            lf_charset_free(set);
            return i;
        }
    }
    if (a->sets == LF_MAX_CHARSETS) {
        lf_charset_free(set);
        return lf_fail(err, "the patterns name more than %d different sets of characters", LF_MAX_CHARSETS);
    }
    a->set[a->sets] = *set;
    *set = (lf_charset){ 0 };
    return a->sets++;
}

void lf_alphabet_free(lf_alphabet *a)
{
    for (int i = 0; i < a->sets; i++)
        lf_charset_free(&a->set[i]);
    free(a->cell);
    a->cell = NULL;
}

static int u32_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* Where any set begins or ends: between two of these points the signature does not change.  Ends with
 * 0x110000. */
static uint32_t *boundaries(const lf_alphabet *a, size_t *count)
{
    size_t n = 0, kept = 1, total = 2;
    uint32_t *at;

    for (int i = 0; i < a->sets; i++)
        total += 2 * (size_t)a->set[i].n;
    at = lf_alloc(total * sizeof *at);
    at[n++] = 0;
    at[n++] = LF_CODE_POINTS;
    for (int i = 0; i < a->sets; i++) {
        for (int k = 0; k < a->set[i].n; k++) {
            at[n++] = a->set[i].range[k][0];
            at[n++] = a->set[i].range[k][1] + 1;
        }
    }
    qsort(at, n, sizeof *at, u32_order);
    for (size_t i = 1; i < n; i++) {
        if (at[i] != at[kept - 1])
            at[kept++] = at[i];
    }
    *count = kept;
    return at;
}

static signature signature_at(const lf_alphabet *a, uint32_t code, int *cursor)
{
    signature s = { { 0 } };

    for (int i = 0; i < a->sets; i++) {
        const lf_charset *set = &a->set[i];
        while (cursor[i] < set->n && set->range[cursor[i]][1] < code)
            cursor[i]++;
        if (cursor[i] < set->n && set->range[cursor[i]][0] <= code)
            s.w[i >> 6] |= UINT64_C(1) << (i & 63);
    }
    return s;
}

/* The class with this signature, made if there is none; -1 when there is no room. */
static int class_of(lf_alphabet *a, signature *known, const signature *s)
{
    for (int c = 0; c < a->classes; c++) {
        if (memcmp(&known[c], s, sizeof *s) == 0)
            return c;
    }
    if (a->classes == LF_MAX_CLASSES)
        return -1;
    known[a->classes] = *s;
    for (int i = 0; i < a->sets; i++) {
        if (s->w[i >> 6] >> (i & 63) & 1)
            a->member[i][a->classes >> 6] |= UINT64_C(1) << (a->classes & 63);
    }
    return a->classes++;
}

/* at[0..n) with the class from at[i] up to at[i+1] in class[i], turned into pages; one-class pages are
 * shared. */
static void fill_pages(lf_alphabet *a, const uint32_t *at, const uint8_t *class)
{
    int uniform[LF_MAX_CLASSES];
    size_t rows = 0, cap = 0, i = 0;

    memset(uniform, -1, sizeof uniform);
    for (uint32_t page = 0; page < LF_CODE_POINTS >> 8; page++) {
        uint32_t first = page << 8;
        while (at[i + 1] <= first)
            i++;
        int whole = at[i + 1] >= first + 256;
        if (whole && uniform[class[i]] >= 0) {
            a->page[page] = (uint16_t)uniform[class[i]];
            continue;
        }
        if (rows == cap) {
            cap = cap ? 2 * cap : 64;
            a->cell = lf_realloc(a->cell, cap * sizeof *a->cell);
        }
        size_t k = i;
        for (uint32_t c = 0; c < 256; c++) {
            while (at[k + 1] <= first + c)
                k++;
            a->cell[rows][c] = class[k];
        }
        if (whole)
            uniform[class[i]] = (int)rows;
        a->page[page] = (uint16_t)rows++;
    }
}

int lf_alphabet_close(lf_alphabet *a, lf_err *err)
{
    signature *known = lf_alloc(LF_MAX_CLASSES * sizeof *known);
    int cursor[LF_MAX_CHARSETS] = { 0 };
    size_t n;
    uint32_t *at = boundaries(a, &n);
    uint8_t *class = lf_alloc(n);
    int bad = 0;

    for (size_t i = 0; i + 1 < n && !bad; i++) {
        signature s = signature_at(a, at[i], cursor);
        int c = class_of(a, known, &s);
        bad = c < 0;
        class[i] = (uint8_t)c;
    }
    if (!bad) {
        fill_pages(a, at, class);
        for (uint32_t c = 0; c < 128; c++)
            a->ascii[c] = (uint8_t)lf_alphabet_class(a, c);
    }
    free(known);
    free(at);
    free(class);
    return bad ? lf_fail(err, "the patterns tell more than %d kinds of characters apart", LF_MAX_CLASSES) : 0;
}

size_t lf_alphabet_map(const lf_alphabet *a, const uint8_t *text, size_t bytes, uint8_t *out)
{
    size_t n = 0, i = 0;

    while (i < bytes) {
        if (text[i] < 0x80) {
            out[n++] = a->ascii[text[i++]];
        } else {
            int size;
            out[n++] = (uint8_t)lf_alphabet_class(a, lf_utf8_at(text + i, &size));
            i += (size_t)size;
        }
    }
    return n;
}

/* Length of the valid sequence at p (n > 0 bytes left), 0 if there is none. */
static size_t utf8_step(const uint8_t *p, size_t n)
{
    size_t need = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;

    if (need == 0 || need > n)
        return 0;
    for (size_t k = 1; k < need; k++) {
        if ((p[k] & 0xc0) != 0x80)
            return 0;
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return need;
}

size_t lf_utf8_valid(const uint8_t *text, size_t bytes)
{
    size_t i = 0;

    while (i < bytes) {
        uint64_t w;
        if (bytes - i >= 8 && (memcpy(&w, text + i, 8), (w & UINT64_C(0x8080808080808080)) == 0)) {
            i += 8;
            continue;
        }
        size_t step = utf8_step(text + i, bytes - i);
        if (step == 0)
            return i;
        i += step;
    }
    return bytes;
}
