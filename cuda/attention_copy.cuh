/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_copy: the shared memory of attention_wgmma.cu, and the warpgroup that fills it.  For that file alone.
 *
 * Barriers: full[place][half] when a half has landed, empty[place][half] when its last reader is done, told[place]
 * when the weights of its rows lie ready; q_full and q_empty likewise for the query, n with it.
 */
#ifndef LF_ATTENTION_COPY_CUH
#define LF_ATTENTION_COPY_CUH

#include "attention.cuh"
#include "wgmma.cuh"

enum {
    WIDTH = 512, HEADS = 64, BLOCK = 64,
    GROUP = 128, THREADS = 3 * GROUP,      /* a warpgroup; all of them */
    PANEL = BLOCK * 128, PANELS = WIDTH / 64, HALF = PANELS / 2,
    COPY_REGISTERS = 40, MATH_REGISTERS = 232,
    MEET_END = 1                           /* a named barrier: the sums */
};

typedef struct memory {
    uint8_t q[PANELS][PANEL];              /* later: the output */
    uint8_t rows[2][PANELS][PANEL];
    uint8_t weight[2][PANEL];
    float top[2][HEADS], sum[2][HEADS];
    uint64_t full[2][2], empty[2][2];      /* [place][half] */
    uint64_t told[2], q_full, q_empty;
    int n;                                 /* rows of the query */
} memory;

typedef struct copier {
    memory *m;
    int warp, lane;
    uint32_t parity;                       /* bit: how often that place has been filled, odd or even */
} copier;

/* One half of 16 rows, whose addresses lanes 0 .. 15 hold (NULL: zeros), to rows 16 warp .. of the panels. */
static __device__ __forceinline__ void copy_half(const copier &c, uint8_t (*panels)[PANEL], int half,
                                                 const __nv_bfloat16 *mine, const void *valid)
{
    uint32_t to = lf_shared(panels[half * HALF + c.lane / 8]);

#pragma unroll 4
    for (int j = 0; j < 16; j++) {
        const __nv_bfloat16 *p = (const __nv_bfloat16 *)__shfl_sync(~0u, (unsigned long long)mine, j);
        lf_copy16(to + lf_panel_at((uint32_t)(c.warp * 16 + j), (uint32_t)c.lane & 7),
                  p ? (const void *)(p + half * (WIDTH / 2) + c.lane * 8) : valid, p != NULL);
    }
}

static __device__ void copy_block(copier &c, const lf_attend &p, const lf_seen &s, int64_t i, int block)
{
    int place = block & 1, r = block * BLOCK + c.warp * 16 + (c.lane & 15);
    const __nv_bfloat16 *mine = r < s.n ? lf_seen_row<__nv_bfloat16>(p, s, i, r) : NULL;

    for (int half = 0; half < 2; half++) {
        lf_bar_wait(&c.m->empty[place][half], (c.parity >> place & 1) ^ 1);
        copy_half(c, c.m->rows[place], half, mine, p.a.q);
        lf_bar_arrive_copies(&c.m->full[place][half]);
    }
    c.parity ^= 1u << place;
}

static __device__ void copy_query(const copier &c, const lf_attend &p, int64_t i, int head0, int n, uint32_t turn)
{
    int h = head0 + c.warp * 16 + (c.lane & 15);
    const __nv_bfloat16 *mine = h < p.a.heads
                                    ? (const __nv_bfloat16 *)(const void *)p.a.q + (i * p.a.heads + h) * WIDTH
                                    : NULL;

    lf_bar_wait(&c.m->q_empty, (turn & 1) ^ 1);
    if (threadIdx.x % GROUP == 0) {
        c.m->n = n;
        lf_bar_arrive(&c.m->q_full);
    }
    for (int half = 0; half < 2; half++)
        copy_half(c, c.m->q, half, mine, p.a.q);
    lf_bar_arrive_copies(&c.m->q_full);
}

/* A query's first rows go ahead of the query itself: that must wait until the one before is written out. */
static __device__ void copy_all(const lf_attend &p, int64_t items, int tiles, memory *m)
{
    copier c = { m, (int)(threadIdx.x % GROUP) / 32, (int)threadIdx.x & 31, 0 };
    uint32_t turn = 0;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x, turn++) {
        int64_t i = item / tiles;
        lf_seen s = lf_seen_by(p, i);
        if (s.n)
            copy_block(c, p, s, i, 0);
        copy_query(c, p, i, (int)(item % tiles) * HEADS, s.n, turn);
        for (int block = 1; block * BLOCK < s.n; block++)
            copy_block(c, p, s, i, block);
    }
    lf_copies_wait();
}

#endif
