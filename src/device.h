/* SPDX-License-Identifier: Apache-2.0
 *
 * device: which device a rank computes on.  Floor 3.   Source: engine.md, "The grid"; pitfalls.md, "Launching".
 *
 * A GPU rank takes the GPU of its number within the node, or the only one it sees.  Two ranks on one GPU, GPUs on some
 * ranks only, more ranks on a node than GPUs: refused, with the launcher's line that would work.
 */
#ifndef LF_DEVICE_H
#define LF_DEVICE_H

#include "options.h"
#include "topo.h"

/* Opens the device and, for GPUs, attaches the topology's communicators to it.  choice: lf_device_choice; auto takes
 * GPUs when every rank sees one and the program has the backend, and says so where a program that has it goes without
 * (rank 0, unless quiet).  kv_dtype (resolved) f32 with exact numerics keeps activations in float32.  threads: for the
 * CPU, which refuses LONGFILL_KERNELS (lf_kernels_none).  Collective over the world, as lf_topo_agree. */
int lf_device_open(lf_dev **out, lf_topo *t, const lf_model *m, lf_numerics numerics, lf_kv_dtype kv_dtype, int choice,
                   int threads, lf_err *err);

#endif
