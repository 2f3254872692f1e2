/* SPDX-License-Identifier: Apache-2.0
 *
 * The self-check on the CPU backend: small models pass in every layer, planted faults are found, near-ties excused.
 */
#include "selfcheck_run.h"

enum { PROMPTS = 2, POSITIONS = 44 };

/* Read by AddressSanitizer.  Open MPI keeps memory until the end in modules that are unloaded by then: no list of
 * suppressions could name it. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

static const lf_prompt *prompts_of(const lf_model *m, const int64_t *length, lf_prompt p[PROMPTS])
{
    for (int i = 0; i < PROMPTS; i++)
        p[i] = (lf_prompt){ made_ids(length[i], m->vocab, (uint32_t)i + 1), length[i] };
    return p;
}

/* The start, both sides of block, window and tile boundaries, the end, and some in between; within each prompt. */
static int positions_of(lf_probe_at *at, const int64_t *length)
{
    static const int64_t fixed[] = { 0, 1, 3, 4, 7, 8, 63, 127, 128, 129, 255, 256, 383 };
    int n = 0;
    uint32_t seed = 5;

    for (int s = 0; s < PROMPTS; s++) {
        for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
            if (fixed[i] < length[s] - 2)
                at[n++] = (lf_probe_at){ s, fixed[i] };
        for (int i = 0; i < 5; i++) {
            seed = seed * 1664525u + 1013904223u;
            at[n++] = (lf_probe_at){ s, (seed >> 8) % length[s] };
        }
        at[n++] = (lf_probe_at){ s, length[s] - 2 };
        at[n++] = (lf_probe_at){ s, length[s] - 1 };
    }
    return n;
}

static int observe(look *l, const lf_model *m, lf_numerics numerics, const int64_t *length, lf_err *err)
{
    uint8_t layers[LF_MAX_LAYERS];
    lf_probe_at at[POSITIONS];
    lf_prompt p[PROMPTS];
    look_setting s = { .pcp = 1, .tp = 1, .device = LF_DEVICE_CPU, .numerics = numerics, .tile = 256,
                       .kv = lf_kv_resolve(LF_KV_AUTO, numerics), .layers = layers, .at = at };

    memset(layers, 1, sizeof layers);
    s.positions = positions_of(at, length);
    int bad = look_run(l, m, 0, 1, &s, PROMPTS, prompts_of(m, length, p), err);
    TAP_CHECK(!bad, "the pass runs");
    TAP_CHECK(bad || l->queries == s.positions * m->layers, "every position is told of in every layer: %d of %d",
              l->queries, s.positions * m->layers);
    TAP_CHECK(bad || l->layers == PROMPTS * m->layers, "every layer's rows come once for each prompt");
    for (int i = 0; i < PROMPTS; i++)
        free((void *)(uintptr_t)p[i].ids);
    return bad;
}

static void passes(const look *l, const char *name)
{
    look_record *r = look_check(l, 0);
    int bad = 0;

    for (int i = 0; i < l->queries; i++)
        TAP_QUIET(bad, !r[i].bad, "%s: layer %d prompt %d position %lld: %s", name, r[i].layer, r[i].seq,
                  (long long)r[i].pos, r[i].text);
    TAP_CHECK(bad == 0, "%s: all positions agree with float64", name);
    look_summary(r, l->queries);
    free(r);
}

/* ---- planted faults ---- */

typedef struct subject {
    const look *l;
    lf_selfcheck_layer *y;
    lf_selfcheck_query *q;
} subject;

static subject subject_of(const look *l, lf_kind kind)
{
    subject s = { l, NULL, NULL };

    for (int i = 0; i < l->queries; i++)
        if (l->model->kind[l->query[i].layer] == kind && l->query[i].seq == 0)
            s.q = !s.q || l->query[i].pos > s.q->pos ? &l->query[i] : s.q;
    s.y = (lf_selfcheck_layer *)(uintptr_t)look_find(l, s.q);
    return s;
}

static void found(const subject *s, const char *text, const char *what)
{
    lf_selfcheck_result r;
    lf_err err = { "" };
    int bad = lf_selfcheck(&r, s->y, s->q, &err);

    TAP_CHECK(bad && strstr(err.text, text), "%s is found", what);
    if (!bad || !strstr(err.text, text))
        printf("# got: %s\n", bad ? err.text : "no complaint");
}

static void sound(const subject *s, const char *what, int64_t exchanged)
{
    lf_selfcheck_result r;
    lf_err err = { "" };
    int bad = lf_selfcheck(&r, s->y, s->q, &err);

    TAP_CHECK(!bad && r.exchanged == exchanged, "%s passes", what);
    if (bad || r.exchanged != exchanged)
        printf("# got: %s; %lld exchanged\n", err.text, (long long)r.exchanged);
}

static double score_of(const subject *s, int64_t row)
{
    const lf_selfcheck_layer *y = s->y;
    const float *key = (const float *)y->keys + row * y->index_dim, *q = s->q->index_q;
    double all = 0;

    for (int h = 0; h < y->index_heads; h++) {
        double dot = 0;
        for (int j = 0; j < y->index_dim; j++)
            dot += (double)q[h * y->index_dim + j] * (double)key[j];
        all += (double)s->q->index_w[h] * fmax(dot, 0);
    }
    return all;
}

static int lowest(const subject *s)
{
    int low = 0;

    for (int i = 1; i < s->y->topk; i++)
        low = s->q->score[i] < s->q->score[low] ? i : low;
    return low;
}

static int is_chosen(const subject *s, int64_t row)
{
    for (int i = 0; i < s->y->topk; i++)
        if (s->q->sel[i] == row)
            return 1;
    return 0;
}

/* The next entry in one direction that is not chosen; -1: there is none. */
static int64_t unchosen(const subject *s, int64_t from, int step)
{
    int64_t visible = (s->q->pos + 1) / 4;

    do
        from += step;
    while (from >= 0 && from < visible && is_chosen(s, from));
    return from >= 0 && from < visible ? from : -1;
}

static void set_chosen(const subject *s, int i, int32_t row, double score)
{
    s->q->sel[i] = s->q->again[i] = row;
    s->q->score[i] = (float)score;
}

static void list_faults(const subject *s)
{
    int i = s->y->topk - 1;
    int32_t *sel = s->q->sel, *again = s->q->again, a = sel[0], b = sel[1], last = sel[i];
    int64_t other = unchosen(s, last, 1) >= 0 ? unchosen(s, last, 1) : unchosen(s, last, -1);
    float score = s->q->score[i];

    sound(s, "the query as it was", 0);
    set_chosen(s, i, (int32_t)other, score_of(s, other));
    found(s, "is chosen with score", "a worse entry in place of a better one");
    set_chosen(s, i, last, (double)score);
    sel[1] = a;
    found(s, "twice", "an entry chosen twice");
    sel[0] = b;
    found(s, "not ascending", "a list out of order");
    sel[0] = a;
    sel[1] = b;
    sel[i] = (int32_t)((s->q->pos + 1) / 4);
    found(s, "are complete", "an entry of the future");
    sel[i] = -1;
    found(s, "are visible", "a list with too few");
    sel[i] = last;
    again[0]++;
    found(s, "alone", "a choice that depends on the tile");
    again[0]--;
    s->q->score[i] = score + 1e-3f * (fabsf(score) + 1);
    found(s, "in float64", "a wrong score");
    s->q->score[i] = score;
    sound(s, "the query as it was, again", 0);
}

/* Makes `other` look like the lowest chosen entry, times `factor`. */
static void imitate(const subject *s, int64_t other, float factor, float *save)
{
    float *keys = s->y->keys;
    int64_t d = s->y->index_dim, from = s->q->sel[lowest(s)];

    memcpy(save, keys + other * d, sizeof *save * (size_t)d);
    for (int64_t j = 0; j < d; j++)
        keys[other * d + j] = keys[from * d + j] * factor;
}

static void ties(const subject *s)
{
    int32_t row = s->q->sel[lowest(s)];
    int64_t below = unchosen(s, row, -1), above = unchosen(s, row, 1), d = s->y->index_dim;
    float *save = lf_alloc(sizeof *save * (size_t)d), *keys = s->y->keys;

    TAP_CHECK(below >= 0 && above >= 0 && score_of(s, row) > 0, "there are entries left out on both sides");
    imitate(s, above, 1, save);
    sound(s, "a later entry of the same bytes, left out,", 0);
    imitate(s, above, 1 + 0x1p-20f, save);
    sound(s, "an entry better by less than float32 can tell, left out,", 1);
    imitate(s, above, 1 + 0x1p-8f, save);
    found(s, "is chosen with score", "an entry that is better beyond doubt, left out,");
    memcpy(keys + above * d, save, sizeof *save * (size_t)d);
    imitate(s, below, 1, save);
    found(s, "is chosen with score", "an earlier entry of the same bytes, left out,");
    memcpy(keys + below * d, save, sizeof *save * (size_t)d);
    free(save);
}

static void value_fault(const subject *s, void *values, int64_t i, double by, const char *what)
{
    float *x = values, was = x[i];

    x[i] = (float)((double)was + by);
    found(s, "the output of head", what);
    x[i] = was;
}

/* `by`: what is enough to be wrong in an output of magnitude one. */
static void output_faults(const subject *s, double by)
{
    const lf_selfcheck_layer *y = s->y;
    int64_t d = y->head_dim, entry = y->ratio == 4 ? s->q->sel[0] : 0;
    double norm = 0;

    for (int64_t j = 0; j < d; j++)
        norm += pow((double)((float *)s->q->out)[(y->heads - 1) * d + j], 2);
    value_fault(s, s->q->out, y->heads * d - 1, by * sqrt(norm), "one wrong value of an output");
    value_fault(s, s->q->out, 0, NAN, "an output that is not a number");
    value_fault(s, s->q->window, 0, 1e3, "another first row of the window");
    if (y->ratio)
        value_fault(s, y->rows, entry * d + 3, 1e3, "another value in an entry");
    value_fault(s, y->sink, 0, 20, "another sink");
    s->q->window_rows--;
    found(s, "in the window", "a window that is too short");
    s->q->window_rows++;
    sound(s, "the query as it was", 0);
}

static void refused(const lf_model *m)
{
    look_setting s = { .pcp = 1, .tp = 1, .merge = 1, .device = LF_DEVICE_CPU, .kv = LF_KV_F32 };
    uint32_t id = 0;
    lf_prompt p = { &id, 1 };
    lf_err err = { "" };
    look l;

    TAP_CHECK(look_run(&l, m, 0, 1, &s, 1, &p, &err) && strstr(err.text, "gather mode"), "merge mode is refused");
}

static void one_model(const char *preset, const int64_t *length)
{
    lf_model m = { 0 };
    lf_err err = { "" };
    int bad = look_model(&m, preset, NULL, 0, &err);

    TAP_CHECK(!bad, "%s: a model", preset);
    for (lf_numerics n = LF_EXACT; n <= LF_RELEASED && !bad; n++) {
        look l;
        if (observe(&l, &m, n, length, &err)) {
            printf("# %s\n", err.text);
            continue;
        }
        passes(&l, n == LF_EXACT ? "exact" : "released");
        for (lf_kind k = LF_SWA; k <= LF_C128; k++) {
            subject s = subject_of(&l, k);
            output_faults(&s, n == LF_EXACT ? 3e-5 : 1e-2);
        }
        subject s = subject_of(&l, LF_C4);
        list_faults(&s);
        if (n == LF_EXACT)
            ties(&s);
        look_free(&l);
    }
    if (!bad)
        refused(&m);
    lf_model_free(&m);
}

int main(int argc, char **argv)
{
    static const int64_t nano[PROMPTS] = { 1153, 131 }, mini[PROMPTS] = { 517, 260 };
    lf_err err = { "" };
    int rank, size;

    if (lf_topo_start(&argc, &argv, &rank, &size, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    one_model("nano", nano);
    one_model("mini", mini);
    lf_topo_end();
    return tap_done();
}
