/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that have no kernel yet: an error, never something else.  Weak, and last in the archive: the file that
 * brings an operation needs no change here.
 */
#include "cuda.cuh"

#define ABSENT(name, ...)                                                                                     \
    __attribute__((weak)) void lf_cuda_##name(lf_dev *d, ##__VA_ARGS__)                                       \
    {                                                                                                         \
        lf_cuda_fail(lf_cuda_of(d), "the operation " #name " is not there yet");                              \
    }

ABSENT(hc_pre, lf_act *, float *, const lf_act *, int64_t, const lf_hc *, const float *)
ABSENT(hc_post, lf_act *, const lf_act *, const float *, int64_t)
ABSENT(hc_head, lf_act *, const lf_act *, int64_t, const lf_hc *, const float *)
ABSENT(norm, lf_act *, int64_t, int64_t, const float *)
ABSENT(query, lf_act *, int64_t, int, const int64_t *, const lf_rope *)
ABSENT(rotate, lf_act *, int64_t, int, int64_t, const int64_t *, const lf_rope *, int)
ABSENT(window, lf_act *, const int64_t *, const lf_act *, int64_t, const float *, const int64_t *, const lf_rope *)
ABSENT(index_query, lf_act *, int64_t, int, int64_t, const int64_t *, const lf_rope *)
ABSENT(add_ape, float *, int64_t, int64_t, const float *, int)
ABSENT(compress, const lf_compress *)
ABSENT(row_pack, uint8_t *, const lf_act *, int64_t, int64_t, lf_row_fmt, int)
ABSENT(row_unpack, lf_act *, const uint8_t *, int64_t, int64_t, lf_row_fmt)
ABSENT(index_topk, const lf_topk *)
ABSENT(topk_merge, int32_t *, const int32_t *, const float *, int, int64_t, int)
ABSENT(attention, const lf_attn *)
ABSENT(merge, lf_act *, const lf_act *, const float *, int, int64_t, int, const float *)
ABSENT(logits_topk, int32_t *, float *, const float *, int64_t, int64_t, int)
ABSENT(logprob, float *, const float *, const uint32_t *, int64_t, int64_t)
