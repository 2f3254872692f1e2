/* SPDX-License-Identifier: Apache-2.0 */
#include "options_table.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const lf_option_command *command_find(const char *name)
{
    for (const lf_option_command *c = lf_option_commands; c->name; c++)
        if (!strcmp(c->name, name))
            return c;
    return NULL;
}

const char *lf_options_command(int i)
{
    return lf_option_commands[i].name;
}

/* ---- values ---- */

/* A decimal number with an optional k, m or g (or KiB, MiB, GiB); these are legal for LF_OPT_SIZE only. */
static int integer_parse(const char *text, int sized, int64_t *out)
{
    static const char suffix[] = "kmg";
    char *end;

    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || (*text != '-' && (*text < '0' || *text > '9')))
        return -1;
    if (sized && *end) {
        const char *s = strchr(suffix, *end | 32);
        if (!s || !*s || (end[1] && strcasecmp(end + 1, "ib")) ||
            __builtin_mul_overflow(v, 1LL << (10 * (s - suffix + 1)), &v))
            return -1;
    } else if (*end) {
        return -1;
    }
    *out = v;
    return 0;
}

int lf_size_parse(const char *text, int64_t *out)
{
    return integer_parse(text, 1, out) || *out < 0 ? -1 : 0;
}

/* "80GB" and the like: a size if it ended before the B, which is what is meant. */
static int kilobytes_refuse(const lf_option *opt, const char *text, lf_err *err)
{
    size_t n = strlen(text), digits = strspn(text, "0123456789");
    int meant = digits && n == digits + 2 && strchr("kmgKMG", text[digits]) && (text[digits + 1] | 32) == 'b';

    if (meant)
        lf_fail(err, "--%s '%s': write %.*s%c, which is %.*s %ciB; there are no powers of 1000", opt->name, text,
                (int)digits, text, text[digits] | 32, (int)digits, text, text[digits] & ~32);
    return meant ? -1 : 0;
}

static int integer_set(void *field, const lf_option *opt, const char *text, lf_err *err)
{
    int sized = opt->type == LF_OPT_SIZE;
    int64_t v;

    if (sized && !strcmp(opt->arg, "BYTES") && kilobytes_refuse(opt, text, err))
        return -1;
    if (integer_parse(text, sized, &v) || (double)v < opt->lo || (double)v > opt->hi)
        return lf_fail(err, "--%s '%s': it takes a whole number from %.0f to %.0f%s", opt->name, text,
                       opt->lo, opt->hi, sized ? ", with k, m or g for powers of 1024" : "");
    *(int64_t *)field = v;
    return 0;
}

static int double_set(void *field, const lf_option *opt, const char *text, lf_err *err)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !isfinite(v) || v < opt->lo || v > opt->hi)
        return lf_fail(err, "--%s '%s': it takes a number from %g to %g", opt->name, text, opt->lo, opt->hi);
    *(double *)field = v;
    return 0;
}

static int choice_set(void *field, const lf_option *opt, const char *text, lf_err *err)
{
    size_t n = strlen(text);
    int i = 0;

    for (const char *w = opt->arg; w; w = strchr(w, '|') ? strchr(w, '|') + 1 : NULL, i++)
        if (n && strcspn(w, "|") == n && !strncmp(w, text, n)) {
            *(int *)field = i;
            return 0;
        }
    return lf_fail(err, "--%s '%s': it takes one of %s", opt->name, text, opt->arg);
}

static int list_add(void *field, const lf_option *opt, const char *text, lf_err *err)
{
    lf_strings *s = field;

    if (opt && (*text == '=' || !strchr(text, '=')))
        return lf_fail(err, "--%s '%s': it takes KEY=VALUE", opt->name, text);
    s->v = lf_realloc(s->v, (size_t)(s->n + 1) * sizeof *s->v);
    s->v[s->n++] = text;
    return 0;
}

static int logits_set(lf_options *o, const lf_option *opt, const char *text, lf_err *err)
{
    static const char *const word[] = { "last", "none", "topk:", "all" };
    int64_t k = 0;
    int i = 0;

    while (i < 4 && (i == LF_KEEP_TOPK ? strncmp(text, word[i], 5) : strcmp(text, word[i])))
        i++;
    if (i == 4 || (i == LF_KEEP_TOPK && (integer_parse(text + 5, 0, &k) || k < 1)))
        return lf_fail(err, "--%s '%s': it takes last, none, all, or topk:K with K a whole number from 1 on",
                       opt->name, text);
    o->logits = i;
    o->topk = k;
    return 0;
}

static int shard_set(lf_options *o, const lf_option *opt, const char *text, lf_err *err)
{
    const char *slash = strchr(text, '/');
    char first[24];
    int64_t i, n;

    if (slash && slash - text < (long)sizeof first) {
        snprintf(first, sizeof first, "%.*s", (int)(slash - text), text);
        if (!integer_parse(first, 0, &i) && !integer_parse(slash + 1, 0, &n) && i >= 0 && i < n) {
            o->shard = i;
            o->shards = n;
            return 0;
        }
    }
    return lf_fail(err, "--%s '%s': it takes I/N with 0 <= I < N, such as 0/4 for the first of four",
                   opt->name, text);
}

static int value_set(lf_options *o, const lf_option *opt, const char *text, lf_err *err)
{
    void *field = (char *)o + opt->at;

    switch (opt->type) {
    case LF_OPT_FLAG:
        *(int *)field = 1;
        return 0;
    case LF_OPT_INT:
    case LF_OPT_SIZE:
        return integer_set(field, opt, text, err);
    case LF_OPT_DOUBLE:
        return double_set(field, opt, text, err);
    case LF_OPT_STRING:
        if (!*text)
            return lf_fail(err, "--%s '': it takes a text that is not empty", opt->name);
        *(const char **)field = text;
        return 0;
    case LF_OPT_CHOICE:
        return choice_set(field, opt, text, err);
    case LF_OPT_LIST:
        return list_add(field, opt, text, err);
    case LF_OPT_LOGITS:
        return logits_set(o, opt, text, err);
    case LF_OPT_SHARD:
        return shard_set(o, opt, text, err);
    }
    return lf_fail(err, "--%s: a type the parser does not know", opt->name);
}

/* ---- names ---- */

static const lf_option *option_named(const char *name, size_t n, unsigned command)
{
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if (strlen(opt->name) == n && !strncmp(opt->name, name, n) && (opt->commands & command))
            return opt;
    return NULL;
}

static const lf_option *option_lettered(char letter, unsigned command)
{
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if (opt->letter == letter && (opt->commands & command))
            return opt;
    return NULL;
}

static int edits(const char *a, const char *b)
{
    enum { MAX = 32 };
    size_t n = strlen(b);
    int row[MAX + 1];

    if (n > MAX || strlen(a) > MAX)
        return MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = (int)j;
    for (size_t i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = (int)lf_min(change, lf_min(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

const char *lf_options_nearest(const char *word, const char *const *names, int n)
{
    const char *best = NULL;
    int least = 1 + (int)lf_min(3, (int64_t)(strlen(word) + 1) / 2);

    for (int i = 0; i < n; i++) {
        size_t typed = strlen(word);
        int d = typed >= 3 && !strncmp(word, names[i], typed) ? 1 : edits(word, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

/* "plan and info", of the commands that have the option; the caller's. */
static char *commands_having(const char *name)
{
    char *all = lf_strdup("");
    int left = 0;

    for (const lf_option_command *c = lf_option_commands; c->name; c++)
        left += option_named(name, strlen(name), c->bit) != NULL;
    for (const lf_option_command *c = lf_option_commands; c->name; c++) {
        if (!option_named(name, strlen(name), c->bit))
            continue;
        char *more = lf_printf("%s%s%s", all, c->name, --left > 1 ? ", " : left ? " and " : "");
        free(all);
        all = more;
    }
    return all;
}

static const lf_option_foreign *foreign_named(const char *name, unsigned command)
{
    const lf_option_foreign *f = lf_option_foreigns;

    while (f->name && (strcmp(f->name, name) || !(f->commands & command)))
        f++;
    return f;
}

/* What other programs call it.  -1 with the hint, or 0: no such row.  Where this command has not what it is called
 * here either, there may be a row for that. */
static int foreign_hint(const lf_option_command *cmd, const char *dashes, const char *name, lf_err *err)
{
    const lf_option_foreign *f = foreign_named(name, cmd->bit);

    if (!f->name)
        return 0;
    if (f->option && !option_named(f->option, strlen(f->option), cmd->bit) && foreign_named(f->option, cmd->bit)->name)
        f = foreign_named(f->option, cmd->bit);
    if (!f->option)
        return lf_fail(err, "unknown option %s%s; %s", dashes, name, f->note);
    if (option_named(f->option, strlen(f->option), cmd->bit))
        return lf_fail(err, "unknown option %s%s; here it is --%s%s%s", dashes, name, f->option, f->note ? ", " : "",
                       f->note ? f->note : "");
    char *having = commands_having(f->option);
    lf_fail(err, "unknown option %s%s; it is --%s of %s, and %s has no such thing", dashes, name, f->option, having,
            cmd->name);
    free(having);
    return -1;
}

static int option_unknown(const lf_option_command *cmd, const char *name, lf_err *err)
{
    const char *known[LF_MAX_OPTIONS];
    int n = 0;

    if (cmd->bit == LF_CMD_PREFILL)
        for (const lf_option_pair *p = lf_option_unbuilt; p->a; p++)
            if (!strcmp(p->a, name))
                return lf_fail(err, "--%s is not in this version: %s", name, p->b);
    if (foreign_hint(cmd, "--", name, err))
        return -1;
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if (opt->commands & cmd->bit)
            known[n++] = opt->name;
    const char *near = lf_options_nearest(name, known, n);
    if (option_named(name, strlen(name), ~0u) && !(near && edits(name, near) < 2)) {
        char *having = commands_having(name);
        lf_fail(err, "unknown option --%s; it is of %s, and %s has no such thing", name, having, cmd->name);
        free(having);
        return -1;
    }
    if (near)
        return lf_fail(err, "unknown option --%s; did you mean --%s?", name, near);
    return lf_fail(err, "unknown option --%s; `longfill help %s` lists what there is", name, cmd->name);
}

static int flag_valued(const lf_option *opt, const char *value, lf_err *err)
{
    const lf_option_pair *note = lf_option_flag_notes;

    while (note->a && strcmp(note->a, opt->name))
        note++;
    return lf_fail(err, "--%s takes no value, but got '%s'%s%s", opt->name, value, note->a ? "; " : "",
                   note->a ? note->b : "");
}

/* ---- the command line ---- */

/* One option at argv[*i], which is moved to its last argument. */
static int option_take(lf_options *o, const lf_option *opt, const char *attached, int *i, int argc,
                       char **argv, lf_err *err)
{
    const char *value = attached;

    if (opt->type == LF_OPT_FLAG && value)
        return flag_valued(opt, value, err);
    if (opt->type != LF_OPT_FLAG && !value) {
        const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
        int is_option = next && !strncmp(next, "--", 2) && option_named(next + 2, strcspn(next + 2, "="), ~0u);
        if (!next || is_option)
            return lf_fail(err, "--%s needs a value: --%s %s", opt->name, opt->name, opt->arg);
        value = next;
        ++*i;
    }
    unsigned char *given = &o->given[opt - lf_option_table];
    if (*given && opt->type != LF_OPT_LIST)
        return lf_fail(err, "--%s is given twice; once is enough", opt->name);
    *given = 1;
    return value_set(o, opt, value, err);
}

static int long_take(lf_options *o, const lf_option_command *cmd, int *i, int argc, char **argv, lf_err *err)
{
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    const lf_option *opt = option_named(name, n, cmd->bit);

    if (opt)
        return option_take(o, opt, equals ? equals + 1 : NULL, i, argc, argv, err);
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)lf_min((int64_t)n, 63), name);
    return option_unknown(cmd, word, err);
}

static int short_take(lf_options *o, const lf_option_command *cmd, int *i, int argc, char **argv, lf_err *err)
{
    const char *arg = argv[*i];
    const lf_option *opt = option_lettered(arg[1], cmd->bit);
    char word[64];

    snprintf(word, sizeof word, "%.*s", (int)lf_min((int64_t)strcspn(arg + 1, "="), 63), arg + 1);
    if (strlen(word) > 1 && option_named(word, strlen(word), cmd->bit))     /* -model is not -m odel */
        return lf_fail(err, "unknown option -%s; it is written --%s", word, word);
    if (!opt && foreign_hint(cmd, "-", word, err))
        return -1;
    if (!opt)
        return lf_fail(err, "unknown option '%s'; `longfill help %s` lists what there is", arg, cmd->name);
    if (arg[2] == '=')
        return lf_fail(err, "-%c takes its value without '=': -%c %s", arg[1], arg[1], arg + 3);
    return option_take(o, opt, arg[2] ? arg + 2 : NULL, i, argc, argv, err);
}

/* The flag that stands before an operand, or NULL. */
static const lf_option *flag_before(const lf_options *o, const lf_option_command *cmd, const char *operand)
{
    int i = 0;

    while (i < o->argc && o->argv[i] != operand)
        i++;
    const char *before = i > 0 && i < o->argc ? o->argv[i - 1] : "";
    const lf_option *opt = strncmp(before, "--", 2) ? NULL : option_named(before + 2, strlen(before + 2), cmd->bit);
    return opt && opt->type == LF_OPT_FLAG ? opt : NULL;
}

static int operands_check(const lf_options *o, const lf_option_command *cmd, lf_err *err)
{
    int n = o->operands.n;

    if (n > cmd->max && !cmd->operand) {
        const lf_option *flag = flag_before(o, cmd, o->operands.v[0]);
        return flag ? flag_valued(flag, o->operands.v[0], err)
                    : lf_fail(err, "'%s': %s takes options only", o->operands.v[0], cmd->name);
    }
    if (n > cmd->max)
        return lf_fail(err, "'%s' is too much: %s takes %d %s", o->operands.v[cmd->max], cmd->name, cmd->max,
                       cmd->operand);
    if (n < cmd->min)
        return lf_fail(err, "%s needs %s: longfill %s %s", cmd->name, cmd->operand, cmd->name, cmd->operand);
    return 0;
}

static int given_check(const lf_options *o, const lf_option_command *cmd, lf_err *err)
{
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if ((opt->required & cmd->bit) && !o->given[opt - lf_option_table])
            return lf_fail(err, "%s needs --%s %s (-%c)", cmd->name, opt->name, opt->arg, opt->letter);
    for (const lf_option_pair *p = lf_option_conflicts; p->a; p++)
        if (lf_options_given(o, p->a) && lf_options_given(o, p->b))
            return lf_fail(err, "--%s and --%s exclude each other: give one of them", p->a, p->b);
    if (cmd->bit == LF_CMD_PREFILL && lf_options_given(o, "seed") && o->weights != LF_WEIGHTS_DUMMY)
        return lf_fail(err, "--seed is of made-up weights: give --weights dummy");
    return 0;
}

static int defaults_set(lf_options *o, const lf_option_command *cmd, lf_err *err)
{
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if (opt->dflt && (opt->commands & cmd->bit) && !o->given[opt - lf_option_table] &&
            value_set(o, opt, opt->dflt, err))
            return -1;
    return 0;
}

static int arguments_take(lf_options *o, const lf_option_command *cmd, int argc, char **argv, lf_err *err)
{
    int ended = 0;

    for (int i = 0; i < argc && !o->help; i++) {
        const char *a = argv[i];
        int bad;
        if (!ended && !strcmp(a, "--")) {
            ended = 1;
            continue;
        }
        if (ended || a[0] != '-' || !a[1])
            bad = list_add(&o->operands, NULL, a, err);
        else if (a[1] == '-')
            bad = long_take(o, cmd, &i, argc, argv, err);
        else
            bad = short_take(o, cmd, &i, argc, argv, err);
        if (bad)
            return -1;
    }
    return 0;
}

int lf_options_parse(lf_options *o, const char *command, int argc, char **argv, lf_err *err)
{
    const lf_option_command *cmd = command_find(command);

    memset(o, 0, sizeof *o);
    if (!cmd)
        return lf_fail(err, "unknown command '%s'; `longfill --help` lists what there is", command);
    o->command = cmd->name;
    o->argc = argc;
    o->argv = argv;
    if (arguments_take(o, cmd, argc, argv, err) || defaults_set(o, cmd, err) ||
        (!o->help && (operands_check(o, cmd, err) || given_check(o, cmd, err)))) {
        lf_options_free(o);
        return -1;
    }
    return 0;
}

void lf_options_free(lf_options *o)
{
    free(o->operands.v);
    free(o->set.v);
    o->operands = o->set = (lf_strings){ 0, NULL };
}

int lf_options_given(const lf_options *o, const char *name)
{
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if (!strcmp(opt->name, name) && o->given[opt - lf_option_table])
            return 1;
    return 0;
}
