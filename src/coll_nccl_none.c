/* SPDX-License-Identifier: Apache-2.0 */
#include "coll_nccl.h"

static int none(lf_err *err)
{
    return lf_fail(err, "this longfill was built without NCCL: configure --with-nccl");
}

int lf_nccl_here(void)
{
    return 0;
}

int lf_nccl_id(void *id, lf_err *err)
{
    (void)id;
    return none(err);
}

int lf_nccl_open(lf_nccl **out, lf_dev *d, const void *id, int size, int rank, const char *name, lf_err *err)
{
    (void)out;
    (void)d;
    (void)id;
    (void)size;
    (void)rank;
    (void)name;
    return none(err);
}

void lf_nccl_close(lf_nccl *n)
{
    (void)n;
}

int lf_nccl_move(lf_nccl *n, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, double *seconds,
                 lf_err *err)
{
    (void)n;
    (void)send;
    (void)sends;
    (void)recv;
    (void)recvs;
    (void)seconds;
    return none(err);
}

int lf_nccl_sum(lf_nccl *n, float *x, int64_t count, double *seconds, lf_err *err)
{
    (void)n;
    (void)x;
    (void)count;
    (void)seconds;
    return none(err);
}
