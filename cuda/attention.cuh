/* SPDX-License-Identifier: Apache-2.0
 *
 * attention: what the attention kernels share: which rows a query sees, in which order.
 *
 * The rows of a query are numbered 0 .. n-1: its window by position, then its compressed entries, ascending.  Kernels
 * walk them in that order in blocks counted from the query's own row 0, so a query's bits depend on nothing else.
 */
#ifndef LF_ATTENTION_CUH
#define LF_ATTENTION_CUH

#include "cuda.cuh"

typedef struct lf_attend {                 /* a kernel's argument */
    lf_attn a;
    int width, window;
    float scale;                           /* width^-1/2 */
} lf_attend;

typedef struct lf_seen {
    int64_t win;                           /* first window row, counted in a.win */
    int wins, n;                           /* rows of the window; rows in all */
    int skip;                              /* chosen entries that lie before row_first */
} lf_seen;

/* How many of n numbers, ascending as unsigned (-1: the end), are below key.  By a whole warp, same arguments. */
__device__ __forceinline__ int lf_warp_below(const int32_t *sel, int n, uint32_t key)
{
    int lane = (int)threadIdx.x & 31, from = 0, to = n;

    while (from < to) {
        int step = (to - from + 31) / 32, at = from + lane * step;
        bool below = at < to && (uint32_t)sel[at] < key;
        int count = __popc(__ballot_sync(~0u, below));
        if (count == 0)
            break;
        to = min(to, from + count * step);
        from += (count - 1) * step + 1;
    }
    return from;
}

/* The rows that query i sees.  By a whole warp, same arguments. */
__device__ __forceinline__ lf_seen lf_seen_by(const lf_attend &p, int64_t i)
{
    const lf_attn &a = p.a;
    int64_t t = a.pos0 + i, count = 0;
    lf_seen s = { 0, 0, 0, 0 };

    if (a.win && a.win_rows > 0) {
        int64_t first = max(max((int64_t)0, t - p.window + 1), a.win_pos0);
        int64_t last = min(t, a.win_pos0 + a.win_rows - 1);
        s.wins = (int)max((int64_t)0, last - first + 1);
        s.win = first - a.win_pos0;
    }
    if (a.rows && a.sel) {
        const int32_t *sel = a.sel + i * a.sel_ld;
        s.skip = lf_warp_below(sel, (int)a.sel_ld, (uint32_t)a.row_first);
        count = lf_warp_below(sel, (int)a.sel_ld, (uint32_t)(a.row_first + a.row_count)) - s.skip;
    } else if (a.rows) {
        count = max((int64_t)0, min((t + 1) / a.ratio - a.row_first, a.row_count));
    }
    s.n = s.wins + (int)count;
    return s;
}

/* Row r < n of query i. */
template <typename T> __device__ __forceinline__ const T *lf_seen_row(const lf_attend &p, const lf_seen &s, int64_t i,
                                                                      int r)
{
    if (r < s.wins)
        return (const T *)(const void *)p.a.win + (s.win + r) * p.width;
    int64_t e = r - s.wins;
    if (p.a.sel)
        e = p.a.sel[i * p.a.sel_ld + s.skip + e] - p.a.row_first;
    return (const T *)(const void *)p.a.rows + e * p.width;
}

/* What is left of a head's softmax: top is the largest scaled score (-inf: nothing seen) and sum the sum of
 * exp(score - top).  Gives what to multiply the sum of exp(score - top) * row by, and the log-sum-exp, both with the
 * sink if there is one. */
__device__ __forceinline__ float lf_seen_finish(float top, float sum, const float *sink, float *lse)
{
    float base = sink ? fmaxf(top, *sink) : top;

    if (base == -INFINITY) {
        *lse = -INFINITY;
        return 0;
    }
    float part = expf(top - base), whole = part * sum + (sink ? expf(*sink - base) : 0);
    *lse = base + logf(whole);
    return part / whole;
}

/* attention_wgmma.cu: bf16 activations, width 512. */
void lf_attend_wgmma(lf_cuda *c, const lf_attend *p);

#endif
