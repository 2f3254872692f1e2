/* SPDX-License-Identifier: Apache-2.0 */
#include "coll_mpi.h"

/* What a rank says of a call, as all ranks see it: one card, then what it sends to and expects from every
 * rank. */
typedef struct lf_card {
    int64_t kind, call, n, root;
} lf_card;

typedef struct lf_card_pair {
    int64_t out_bytes, out_pieces, out_shape;            /* shape: a hash of the pieces' sizes in order */
    int64_t in_bytes, in_pieces, in_shape;
} lf_card_pair;

static const char *kind_name(int64_t kind)
{
    static const char *const name[] = { "exchange", "gather", "all_to_all", "sum", "counts", "bcast",
                                       "barrier", "any" };

    return kind >= 0 && kind <= LF_COLL_ANY ? name[kind] : "an unknown call";
}

static void shape_add(int64_t *bytes, int64_t *pieces, int64_t *shape, size_t n)
{
    if (n == 0)
        return;
    *bytes += (int64_t)n;
    *pieces += 1;
    *shape = (int64_t)(((uint64_t)*shape ^ (uint64_t)n) * 0x9e3779b97f4a7c15u);
}

static void card_fill(const lf_comm *c, const lf_call *call, lf_card *card, lf_card_pair *pair)
{
    *card = (lf_card){ call->kind, (int64_t)c->stats.calls, call->n, call->root };
    for (int r = 0; r < c->size; r++)
        pair[r] = (lf_card_pair){ 0 };
    for (int i = 0; i < call->sends; i++) {
        lf_card_pair *p = &pair[call->send[i].peer];
        shape_add(&p->out_bytes, &p->out_pieces, &p->out_shape, call->send[i].bytes);
    }
    for (int i = 0; i < call->recvs; i++) {
        lf_card_pair *p = &pair[call->recv[i].peer];
        shape_add(&p->in_bytes, &p->in_pieces, &p->in_shape, call->recv[i].bytes);
    }
}

static int cards_differ(const lf_comm *c, const lf_card *a, const lf_card *b, int rank, lf_err *err)
{
    const char *name = c->stats.name, *kind = kind_name(a->kind);
    long long call = (long long)a->call;

    if (a->kind != b->kind || a->call != b->call)
        return lf_fail(err, "ranks of communicator %s differ: rank %d makes call %lld, %s; "
                       "rank 0 makes call %lld, %s",
                       name, rank, (long long)b->call, kind_name(b->kind), call, kind);
    if (a->n != b->n)
        return lf_fail(err, "ranks of communicator %s differ in call %lld, %s: rank %d gives the size %lld, "
                       "rank 0 gives %lld", name, call, kind, rank, (long long)b->n, (long long)a->n);
    if (a->root != b->root)
        return lf_fail(err, "ranks of communicator %s differ in call %lld, %s: rank %d names root %lld, "
                       "rank 0 names %lld", name, call, kind, rank, (long long)b->root, (long long)a->root);
    return 0;
}

static int pairs_differ(const lf_comm *c, const lf_card *card, const lf_card_pair *out,
                        const lf_card_pair *in, int from, int to, lf_err *err)
{
    int numbers = out->out_bytes == in->in_bytes && out->out_pieces == in->in_pieces;

    if (numbers && out->out_shape == in->in_shape)
        return 0;
    return lf_fail(err, "ranks of communicator %s differ in call %lld, %s: rank %d sends %lld byte%s in %lld "
                   "piece%s to rank %d, which expects %lld byte%s in %lld piece%s%s",
                   c->stats.name, (long long)card->call, kind_name(card->kind), from, (long long)out->out_bytes,
                   lf_s(out->out_bytes), (long long)out->out_pieces, lf_s(out->out_pieces), to,
                   (long long)in->in_bytes, lf_s(in->in_bytes), (long long)in->in_pieces, lf_s(in->in_pieces),
                   numbers ? " of other sizes" : "");
}

/* All ranks see all cards, so all of them fail, with the same text. */
int lf_comm_check(lf_comm *c, const lf_call *call, lf_err *err)
{
    size_t size = (size_t)c->size, one = sizeof(lf_card) + size * sizeof(lf_card_pair);
    char *mine = lf_scratch_room(&c->card, one * (size + 1)), *all = mine + one;

    card_fill(c, call, (lf_card *)mine, (lf_card_pair *)(mine + sizeof(lf_card)));
    MPI_Request q;
    int rc = MPI_Iallgather(mine, (int)one, MPI_BYTE, all, (int)one, MPI_BYTE, c->mpi, &q);
    if (lf_comm_wait(c, rc, &q, one, "comparing calls", err))
        return -1;
    for (int r = 1; r < c->size; r++)
        if (cards_differ(c, (lf_card *)all, (lf_card *)(all + (size_t)r * one), r, err))
            return -1;
    for (int from = 0; from < c->size; from++)
        for (int to = 0; to < c->size; to++) {
            const lf_card_pair *out = (lf_card_pair *)(all + (size_t)from * one + sizeof(lf_card)) + to;
            const lf_card_pair *in = (lf_card_pair *)(all + (size_t)to * one + sizeof(lf_card)) + from;
            if (pairs_differ(c, (lf_card *)all, out, in, from, to, err))
                return -1;
        }
    return 0;
}
