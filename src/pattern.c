/* SPDX-License-Identifier: Apache-2.0 */
#include "pattern_parse.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lf_pattern {
    lf_units units;                        /* until compiled */
    pcre2_code *code;
    int jit;
};

struct lf_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

int lf_pattern_parse(lf_pattern **out, const char *text, size_t bytes, int literal, lf_alphabet *a,
                     lf_err *err)
{
    lf_pattern *p = lf_alloc(sizeof *p);
    int bad;

    if (bytes > LF_MAX_PATTERN)
        bad = lf_fail(err, "a pattern of %zu bytes; at most %d are read", bytes, LF_MAX_PATTERN);
    else if (literal)
        bad = lf_units_literal(&p->units, text, bytes, a, err);
    else
        bad = lf_units_parse(&p->units, text, bytes, a, err);

    if (bad) {
        lf_pattern_free(p);
        return -1;
    }
    *out = p;
    return 0;
}

void lf_pattern_free(lf_pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p->units.v);
    free(p);
}

/* A set as a PCRE2 class of bytes. */
static void write_set(FILE *f, const lf_alphabet *a, int set)
{
    int count = 0;

    for (int c = 0; c < a->classes; c++)
        count += lf_alphabet_has(a, set, c);
    if (count == 0) {
        fputs("(?!)", f);
        return;
    }
    fputs(count > 1 ? "[" : "", f);
    for (int c = 0; c < a->classes; c++) {
        if (lf_alphabet_has(a, set, c))
            fprintf(f, "\\x%02x", (unsigned)c);
    }
    fputs(count > 1 ? "]" : "", f);
}

static char *write_pattern(const lf_units *u, const lf_alphabet *a, size_t *bytes)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, bytes);

    for (size_t i = 0; f && i < u->n; i++) {
        if (u->v[i] >= LF_UNIT_SET)
            write_set(f, a, (int)(u->v[i] - LF_UNIT_SET));
        else
            fputc((int)u->v[i], f);
    }
    if (f)
        fclose(f);
    return text;
}

int lf_pattern_compile(lf_pattern *p, const lf_alphabet *a, lf_err *err)
{
    PCRE2_UCHAR why[200];
    int code;
    size_t bytes = 0;
    PCRE2_SIZE at;
    char *text = write_pattern(&p->units, a, &bytes);

    if (!text)
        return lf_fail(err, "out of memory for a pattern");
    p->code = pcre2_compile((PCRE2_SPTR)text, bytes, PCRE2_NO_AUTO_CAPTURE, &code, &at, NULL);
    free(text);
    if (!p->code) {
        pcre2_get_error_message(code, why, sizeof why);
        return lf_fail(err, "PCRE2 does not take it: %s", (char *)why);
    }
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    free(p->units.v);
    p->units = (lf_units){ 0 };
    return 0;
}

lf_matcher *lf_matcher_new(void)
{
    lf_matcher *m = lf_alloc(sizeof *m);

    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    /* A repeated group takes stack per round: a run of a million must fit.  NULL when there is no JIT. */
    m->stack = pcre2_jit_stack_create(64 << 10, 256 << 20, NULL);
    if (m->context && m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return m;
}

void lf_matcher_free(lf_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

static int match_failed(int code, size_t from, lf_err *err)
{
    PCRE2_UCHAR why[200];

    pcre2_get_error_message(code, why, sizeof why);
    return lf_fail(err, "matching a pattern of tokenizer.json failed at character %zu of a piece of text: %s",
                   from, (char *)why);
}

int lf_pattern_find(const lf_pattern *p, lf_matcher *m, const uint8_t *classes, size_t n, size_t from,
                    size_t *first, size_t *end, lf_err *err)
{
    int rc;

    if (!m->data || !m->context)
        return lf_fail(err, "out of memory for matching patterns");
    if (p->jit) {
        rc = pcre2_jit_match(p->code, classes, n, from, 0, m->data, m->context);
    } else {
        /* The interpreter counts a step per character of a run that it gives back. */
        pcre2_set_match_limit(m->context, n > 300000000 ? UINT32_MAX : (uint32_t)(10000000 + 10 * n));
        rc = pcre2_match(p->code, classes, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return match_failed(rc, from, err);
    PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    *first = at[0];
    *end = at[1];
    return 1;
}

void lf_pattern_library(char version[64])
{
    int n = pcre2_config(PCRE2_CONFIG_VERSION, NULL);

    version[0] = 0;
    if (n > 0 && n <= 64)                  /* it does not ask for the room */
        pcre2_config(PCRE2_CONFIG_VERSION, version);
}
