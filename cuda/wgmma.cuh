/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma: Hopper's own instructions as functions: barriers in shared memory, asynchronous copies, warpgroup products.
 *
 * A panel is the layout that the products below read: rows of 64 bf16 (128 bytes), contiguous, from a multiple of
 * 1024 bytes on; 16-byte chunk c of row r lies at chunk c ^ (r & 7).  One panel serves both ways: rows as the outer
 * dimension (Q, K), and rows as the summed dimension (V).
 */
#ifndef LF_WGMMA_CUH
#define LF_WGMMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

/* Byte offset of a 16-byte chunk in a panel. */
__device__ __forceinline__ uint32_t lf_panel_at(uint32_t row, uint32_t chunk)
{
    return row * 128 + ((chunk ^ (row & 7)) << 4);
}

__device__ __forceinline__ uint32_t lf_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers in shared memory: `count` arrivals complete a phase; phases alternate in parity, from 0 ----
 *
 * Each thread arrives for itself.  One for its warp, after __syncwarp(), were as good by the memory model, but
 * racecheck takes an arrival for that thread's alone, and one at a named barrier (bar.arrive) for nobody's. */

__device__ __forceinline__ void lf_bar_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(lf_shared(bar)), "r"(count) : "memory");
}

__device__ __forceinline__ void lf_bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(lf_shared(bar)) : "memory");
}

/* Until the phase of this parity is complete; parity 1 of a fresh barrier counts as complete. */
__device__ __forceinline__ void lf_bar_wait(uint64_t *bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni over;\n"
                 "bra.uni again;\n"
                 "over:\n"
                 "}" :: "r"(lf_shared(bar)), "r"(parity) : "memory");
}

/* This thread arrives when its copies so far have landed. */
__device__ __forceinline__ void lf_bar_arrive_copies(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(lf_shared(bar)) : "memory");
}

/* A barrier of `threads` threads; id 1 .. 15. */
__device__ __forceinline__ void lf_meet(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

/* ---- copies ---- */

/* 16 bytes into shared memory, asynchronously; zeros if !valid (p must be an address all the same). */
__device__ __forceinline__ void lf_copy16(uint32_t to, const void *p, bool valid)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(__cvta_generic_to_global(p)), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void lf_copies_wait(void)   /* this thread's */
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Four 8 x 8 tiles of 16-bit elements: lane l gives the address of row l & 7 of tile l / 8, and gets two elements
 * of each. */
__device__ __forceinline__ void lf_ldmatrix4(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

/* Between ordinary accesses (cp.async is one) to shared memory and products that read it. */
__device__ __forceinline__ void lf_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- products, by 128 threads together ---- */

__device__ __forceinline__ void lf_wgmma_fence(void)   /* before the first of a chain */
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void lf_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void lf_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

/* The compiler may not move uses of these registers across this place: they change while a product runs. */
template <int N> __device__ __forceinline__ void lf_wgmma_pin(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i]) :: "memory");
}

/* Panels as operands: address and strides in 16-byte units, 128-byte swizzle.  `rows` outer: the next 8 rows are 1024
 * bytes on (the other stride is not used).  `rows` summed: so too, and the next 64 channels are panel_bytes on. */
__device__ __forceinline__ uint64_t lf_panel_desc(uint32_t address, uint32_t panel_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(panel_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           1ull << 62;
}

/* Operand lists: LF_F16(d, 0) names d[0] .. d[15]. */
#define LF_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LF_F16(d, i) LF_F4(d, i), LF_F4(d, i + 4), LF_F4(d, i + 8), LF_F4(d, i + 12)
#define LF_F32(d, i) LF_F16(d, i), LF_F16(d, i + 16)
#define LF_F128(d) LF_F32(d, 0), LF_F32(d, 32), LF_F32(d, 64), LF_F32(d, 96)

#define LF_WGMMA_D32                                                                                              \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                     \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define LF_WGMMA_D128                                                                                             \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                     \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                            \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                            \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                            \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                            \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                            \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"

/* d [64, 64] = (add ? d : 0) + a b^T over 16 channels: a, b panels, rows outer.  A thread, in warp w and with lane
 * 4 g + c, has of d rows 16 w + g (elements 4 j, 4 j + 1) and 16 w + g + 8 (4 j + 2, 4 j + 3), of columns 8 j + 2 c
 * and the next. */
__device__ __forceinline__ void lf_wgmma_64x64(float (&d)[32], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " LF_WGMMA_D32 ", %32, %33, p, 1, 1, 0, 0;\n}"
                 : LF_F32(d, 0) : "l"(a), "l"(b), "r"(add));
}

/* The same with a in registers: bytes 4 c .. 4 c + 3 of rows g, g + 8 of the step's 32 bytes, then bytes 16 + 4 c
 * ..; b as above.  Of bf16 a step is 16 channels, of e4m3 (b then has rows of 128) 32. */
__device__ __forceinline__ void lf_wgmma_64x64(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " LF_WGMMA_D32
                 ", {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
                 : LF_F32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ __forceinline__ void lf_wgmma_64x64_e4m3(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 " LF_WGMMA_D32
                 ", {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
                 : LF_F32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* d [64, 256] += a b over 16 rows of b: a panel with rows outer, b panels with rows summed.  d as above. */
__device__ __forceinline__ void lf_wgmma_64x256(float (&d)[128], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " LF_WGMMA_D128 ", %128, %129, 1, 1, 1, 0, 1;"
                 : LF_F128(d) : "l"(a), "l"(b));
}

/* The same with a in registers: pairs of neighbouring columns 2 c, 2 c + 1 of rows g, g + 8, then columns + 8. */
__device__ __forceinline__ void lf_wgmma_64x256(float (&d)[128], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " LF_WGMMA_D128
                 ", {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : LF_F128(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <int REGISTERS> __device__ __forceinline__ void lf_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void lf_registers_less(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}

#endif
