/* SPDX-License-Identifier: Apache-2.0 */
#include "options_table.h"

#include <stdlib.h>
#include <string.h>

/* Text set from column `from` on, in lines of 96 columns. */
static void wrap(FILE *out, const char *text, int from, int column)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > from && column + 1 + n > 96) {
            fprintf(out, "\n%*s", from, "");
            column = from;
        } else if (column > from) {
            column += fprintf(out, " ");
        }
        column += fprintf(out, "%.*s", n, text);
        text += n;
        text += *text == ' ';
    }
    fprintf(out, "\n");
}

static void option_help(FILE *out, const lf_option *opt)
{
    enum { COLUMN = 34 };
    char left[128];
    char letter[] = { '-', opt->letter, ',', 0 };
    int n = snprintf(left, sizeof left, "  %3s --%s%s%s", opt->letter ? letter : "", opt->name,
                     opt->arg ? " " : "", opt->arg ? opt->arg : "");
    char *text = opt->dflt ? lf_printf("%s (default %s)", opt->help, opt->dflt) : lf_strdup(opt->help);

    fprintf(out, "%s", left);
    fprintf(out, n < COLUMN - 1 ? "%*s" : "\n%*s", n < COLUMN - 1 ? COLUMN - n : COLUMN, "");
    wrap(out, text, COLUMN, COLUMN);
    free(text);
}

static void program_help(FILE *out)
{
    fprintf(out, "usage: longfill COMMAND [options]\n\n"
                 "Prefills long prompts offline: prompts in, KV files and logits out.\n\ncommands:\n");
    for (const lf_option_command *c = lf_option_commands; c->name; c++)
        fprintf(out, "  %-10s %s\n", c->name, c->help);
    fprintf(out,
            "\n`longfill help COMMAND` lists a command's options; `longfill --version` prints the version.\n");
}

static void usage_line(FILE *out, const lf_option_command *c)
{
    fprintf(out, "usage: longfill %s", c->name);
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if (opt->required & c->bit)
            fprintf(out, " -%c %s", opt->letter, opt->arg);
    fprintf(out, " [options]");
    if (c->operand)
        fprintf(out, " %s%s", c->operand, c->max > 1 ? "..." : "");
    fprintf(out, "\n\n%s\n\noptions:\n", c->help);
}

void lf_options_help(FILE *out, const char *command)
{
    const lf_option_command *c = lf_option_commands;

    while (command && c->name && strcmp(c->name, command))
        c++;
    if (!command || !c->name) {
        program_help(out);
        return;
    }
    usage_line(out, c);
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if (opt->commands & c->bit)
            option_help(out, opt);
}

/* ---- the config block ---- */

static json_t *strings_json(const lf_strings *s)
{
    json_t *a = json_array();

    for (int i = 0; i < s->n; i++)
        json_array_append_new(a, json_string(s->v[i]));
    return a;
}

static json_t *choice_json(const char *words, int i)
{
    while (i-- > 0 && strchr(words, '|'))
        words = strchr(words, '|') + 1;
    return json_stringn(words, strcspn(words, "|"));
}

static json_t *text_json(char *owned)
{
    json_t *j = json_string(owned);

    free(owned);
    return j;
}

/* Without a default and not given: null, which is not the same as zero. */
static json_t *value_json(const lf_options *o, const lf_option *opt)
{
    const void *field = (const char *)o + opt->at;
    int absent = !opt->dflt && !o->given[opt - lf_option_table];

    switch (opt->type) {
    case LF_OPT_FLAG:
        return json_boolean(*(const int *)field);
    case LF_OPT_INT:
    case LF_OPT_SIZE:
        return absent ? json_null() : json_integer(*(const int64_t *)field);
    case LF_OPT_DOUBLE:
        return absent ? json_null() : json_real(*(const double *)field);
    case LF_OPT_STRING:
        return absent ? json_null() : json_string(*(const char *const *)field);
    case LF_OPT_CHOICE:
        return choice_json(opt->arg, *(const int *)field);
    case LF_OPT_LIST:
        return strings_json(field);
    case LF_OPT_LOGITS:
        return o->logits == LF_KEEP_TOPK ? text_json(lf_printf("topk:%lld", (long long)o->topk))
                                           : choice_json("last|none|topk|all", o->logits);
    case LF_OPT_SHARD:
        return text_json(lf_printf("%lld/%lld", (long long)o->shard, (long long)o->shards));
    }
    return json_null();
}

json_t *lf_options_json(const lf_options *o)
{
    const lf_option_command *c = lf_option_commands;
    json_t *all = json_object();

    while (c->name && strcmp(c->name, o->command))
        c++;
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if ((opt->commands & c->bit) && strcmp(opt->name, "help")) {
            json_t *v = value_json(o, opt);
            json_object_set_new(all, opt->name, v ? v : json_string("(not UTF-8)"));
        }
    if (o->operands.n)
        json_object_set_new(all, "operands", strings_json(&o->operands));
    return all;
}
