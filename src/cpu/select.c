/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact top-k.  The order is total: score descending, then index ascending; NaN after everything.
 */
#include "cpu.h"

#include <stdlib.h>

/* Larger key = better: the score's bits made monotone above, the complement of the index below. */
static uint64_t key_of(float score, int64_t index)
{
    uint32_t u = lf_f32_bits(score + 0.0f);            /* -0 counts as 0 */

    if ((u & 0x7fffffffu) > 0x7f800000u)
        u = 0;
    else
        u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~(uint32_t)index;
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t t = *a;

    *a = *b;
    *b = t;
}

static uint64_t middle(uint64_t a, uint64_t b, uint64_t c)
{
    return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
}

/* Quickselect (keys are distinct): afterwards the k largest stand in front. */
static void part(uint64_t *key, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n - 1;

    while (lo < hi) {
        uint64_t pivot = middle(key[lo], key[lo + (hi - lo) / 2], key[hi]);
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (key[i] > pivot)
                i++;
            while (key[j] < pivot)
                j--;
            if (i <= j)
                swap(&key[i++], &key[j--]);
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

static int better_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x > y ? -1 : x < y;
}

static int lower_index_first(const void *a, const void *b)
{
    uint32_t x = ~(uint32_t)*(const uint64_t *)a, y = ~(uint32_t)*(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static int best(int32_t *idx, int64_t n, int k, int by_score, uint64_t *key)
{
    int count = (int)lf_min(k, n);

    if (count < n)
        part(key, n, count);
    qsort(key, (size_t)count, sizeof *key, by_score ? better_first : lower_index_first);
    for (int i = 0; i < count; i++)
        idx[i] = (int32_t)~(uint32_t)key[i];
    return count;
}

int lf_cpu_select(int32_t *idx, const float *score, int64_t n, int k, int by_score, uint64_t *key)
{
    for (int64_t i = 0; i < n; i++)
        key[i] = key_of(score[i], i);
    return best(idx, n, k, by_score, key);
}

int lf_cpu_select_rows(int32_t *out, const int32_t *row, const float *score, int64_t n, int k, uint64_t *key)
{
    for (int64_t i = 0; i < n; i++)
        key[i] = key_of(score[i], row[i]);
    return best(out, n, k, 0, key);
}
