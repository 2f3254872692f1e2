/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

/* A command line written as one text, its words parted by single spaces. */
typedef struct line {
    char text[512];
    char *argv[32];
} line;

static int parse(lf_options *o, line *l, const char *command, const char *args, lf_err *err)
{
    int argc = 0;

    err->text[0] = 0;
    snprintf(l->text, sizeof l->text, "%s", args);
    for (char *w = strtok(l->text, " "); w; w = strtok(NULL, " "))
        l->argv[argc++] = w;
    return lf_options_parse(o, command, argc, l->argv, err);
}

static void refused(const char *command, const char *args, const char *words)
{
    lf_options o;
    lf_err err;
    line l;
    int bad = parse(&o, &l, command, args, &err);

    int said = bad == -1 && strstr(err.text, words) && !strchr(err.text, '\n');

    if (!TAP_CHECK(said, "%s %s: %s", command, args, words))
        printf("# returned %d, said: %s\n", bad, err.text);
    if (!bad)
        lf_options_free(&o);
}

static void test_defaults(void)
{
    lf_options o;
    lf_err err;
    line l;

    TAP_CHECK(parse(&o, &l, "prefill", "-m M --input=- -oOUT", &err) == 0, "the least prefill %s", err.text);
    TAP_CHECK(!strcmp(o.model, "M") && !strcmp(o.input, "-") && !strcmp(o.output, "OUT"),
              "three ways to give a value");
    TAP_CHECK(o.numerics == LF_RELEASED && o.kv_dtype == LF_KV_AUTO && o.device == LF_DEVICE_AUTO,
              "choices default");
    TAP_CHECK(o.logits == LF_KEEP_LAST && o.topk == 0 && o.shard == 0 && o.shards == 1,
              "logits and shard default");
    TAP_NEAR(o.progress, 5, 0, "progress every 5 s");
    TAP_CHECK(o.max_seconds == 0 && o.dp == 0 && !o.report && !o.overwrite, "absent is zero");
    TAP_CHECK(lf_options_given(&o, "model") && !lf_options_given(&o, "numerics"),
              "given is what was written");
    lf_options_free(&o);
}

static void test_values(void)
{
    lf_options o;
    lf_err err;
    line l;

    const char *text = "-m M -i I -o O --numerics exact --kv-dtype=bf16 --logits topk:20 --shard 3/8 "
                       "--max-seconds 2.5 --dp 4 --pcp 2 --tp=3 --pcp-attention merge --device cpu --format csv "
                       "--progress 0 --dry-run -v";
    TAP_CHECK(!parse(&o, &l, "prefill", text, &err), "a long line %s", err.text);
    TAP_CHECK(o.numerics == LF_EXACT && o.kv_dtype == LF_KV_BF16 && o.device == LF_DEVICE_CPU, "choices");
    TAP_CHECK(o.logits == LF_KEEP_TOPK && o.topk == 20 && o.shard == 3 && o.shards == 8, "topk:20, 3/8");
    TAP_CHECK(o.max_seconds == 2.5 && o.progress == 0 && o.dp == 4 && o.format == LF_FORMAT_CSV, "numbers");
    TAP_CHECK(o.pcp == 2 && o.tp == 3 && o.pcp_attention == LF_PCP_MERGE, "the grid");
    TAP_CHECK(o.dry_run && o.verbose && !o.quiet, "flags");
    lf_options_free(&o);
    TAP_CHECK(!parse(&o, &l, "synth", "--set a=1 DIR --set b=2=3 --shard-size 3m "
                     "--seed 9007199254740992", &err),
              "synth %s", err.text);
    TAP_CHECK(o.set.n == 2 && !strcmp(o.set.v[1], "b=2=3") && o.shard_size == 3 << 20,
              "a repeated option, a size");
    TAP_CHECK(o.seed == 9007199254740992 && o.operands.n == 1 && !strcmp(o.operands.v[0], "DIR"),
              "seed, operand");
    lf_options_free(&o);
    TAP_CHECK(!parse(&o, &l, "verify", "a - -- -v --deep", &err) && o.operands.n == 4 && !o.verbose &&
              !strcmp(o.operands.v[3], "--deep"), "-- ends the options, - is an operand");
    lf_options_free(&o);
    TAP_CHECK(!parse(&o, &l, "prefill", "--help", &err) && o.help, "help asks for nothing else");
    lf_options_free(&o);
    TAP_CHECK(!parse(&o, &l, "plan", "-m M -l 1M", &err) && o.length == 1 << 20, "1M = 1048576");
    lf_options_free(&o);
}

static void test_refused(void)
{
    static const char *const bad[][3] = {
        { "prefil", "", "unknown command 'prefil'" },
        { "prefill", "-m M -i I", "prefill needs --output DIR" },
        { "prefill", "-m M -i I -o O x", "'x': prefill takes options only" },
        { "prefill", "-m M -i I -o O -m N", "--model is given twice" },
        { "prefill", "-m M -i I -o O -v -q", "--verbose and --quiet exclude each other" },
        { "prefill", "-m M -i I -o", "--output needs a value" },
        { "prefill", "-m --input I -o O", "--model needs a value" },
        { "prefill", "--model=", "--model ''" },
        { "prefill", "--modle M", "did you mean --model?" },
        { "prefill", "--num exact", "did you mean --numerics?" },
        { "prefill", "--zzzzzzzz", "longfill help prefill" },
        { "prefill", "-z", "unknown option '-z'" },
        { "prefill", "--tp 0", "whole number from 1" },
        { "prefill", "--pcp=x", "whole number from 1" },
        { "prefill", "--frontier 128", "--frontier is not in this version" },
        { "prefill", "--pcp-attention both", "it takes one of gather|merge|auto" },
        { "verify", "--deep=1 x", "--deep takes no value" },
        { "prefill", "--numerics half", "it takes one of exact|released" },
        { "prefill", "--numerics exact|released", "it takes one of exact|released" },
        { "prefill", "--device=", "--device ''" },
        { "prefill", "--dp 0", "whole number from 1" },
        { "prefill", "--dp 2k", "whole number from 1" },
        { "prefill", "--dp 2x", "whole number from 1" },
        { "prefill", "--dp 99999999999999999999", "whole number from 1" },
        { "prefill", "--max-seconds nan", "number from 0.001" },
        { "prefill", "--max-seconds 0", "number from 0.001" },
        { "prefill", "--progress -1", "number from 0 " },
        { "prefill", "--logits topk", "topk:K" },
        { "prefill", "--logits topk:0", "topk:K" },
        { "prefill", "--logits topk:5x", "topk:K" },
        { "prefill", "--shard 4/4", "0 <= I < N" },
        { "prefill", "--shard -1/4", "0 <= I < N" },
        { "prefill", "--shard 1", "0 <= I < N" },
        { "prefill", "--shard 1/2/3", "0 <= I < N" },
        { "prefill", "--dry-run=yes", "--dry-run takes no value" },
        { "prefill", "--json", "unknown option --json" },
        { "synth", "", "synth needs DIR" },
        { "synth", "a b", "'b' is too much" },
        { "synth", "a --set novalue", "KEY=VALUE" },
        { "synth", "a --set =x", "KEY=VALUE" },
        { "synth", "a --shard-size 9999999999g", "powers of 1024" },
        { "synth", "a --shard-size 1kk", "powers of 1024" },
        { "info", "a b", "'b' is too much" },
        { "verify", "", "verify needs FILE" },
        { "plan", "-m M --length 0", "from 1 to" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(bad[i][0], bad[i][1], bad[i][2]);
}

static void test_json(void)
{
    lf_options o;
    lf_err err;
    line l;

    parse(&o, &l, "prefill", "-m M -i I -o O --logits topk:7 --shard 1/2 -q", &err);
    json_t *j = lf_options_json(&o);
    TAP_CHECK(!strcmp(json_string_value(json_object_get(j, "model")), "M"), "config: model");
    TAP_CHECK(!strcmp(json_string_value(json_object_get(j, "logits")), "topk:7"), "config: logits");
    TAP_CHECK(!strcmp(json_string_value(json_object_get(j, "shard")), "1/2"), "config: shard");
    TAP_CHECK(!strcmp(json_string_value(json_object_get(j, "numerics")), "released"), "config: a default");
    TAP_CHECK(json_is_null(json_object_get(j, "max-seconds")), "config: absent is null");
    TAP_CHECK(json_is_true(json_object_get(j, "quiet")) && json_is_false(json_object_get(j, "verbose")),
              "config: flags");
    TAP_CHECK(!json_object_get(j, "preset") && !json_object_get(j, "help"), "config: of this command only");
    json_decref(j);
    lf_options_free(&o);
}

/* Two commands may each have an option of one name. */
static void test_bench(void)
{
    lf_options o;
    lf_err err;
    line l;
    int64_t v;

    TAP_CHECK(!parse(&o, &l, "bench",
                     "-m M --weights dummy --grids 1x2x1,1x1x2 -l 8k,128k --seed 7 --format csv", &err),
              "bench %s", err.text);
    TAP_CHECK(o.weights == LF_WEIGHTS_DUMMY && !strcmp(o.grids, "1x2x1,1x1x2") && !strcmp(o.lengths, "8k,128k") &&
                  o.seed == 7 && o.repeat == 3 && o.format == LF_FORMAT_CSV && lf_options_given(&o, "weights"),
              "its values");
    lf_options_free(&o);
    TAP_CHECK(!parse(&o, &l, "synth", "--weights bf16 D", &err) && o.weights == LF_SYNTH_BF16 &&
                  lf_options_given(&o, "weights") && !lf_options_given(&o, "seed"),
              "synth has its own --weights");
    lf_options_free(&o);
    TAP_CHECK(!parse(&o, &l, "prefill", "-m M -i I -o O --weights dummy --seed 5", &err) &&
                  o.weights == LF_WEIGHTS_DUMMY && o.seed == 5,
              "prefill has bench's");
    lf_options_free(&o);
    TAP_CHECK(!parse(&o, &l, "bench", "-m M --seed 5", &err) && o.seed == 5, "bench has a seed of its tokens");
    lf_options_free(&o);
    refused("prefill", "-m M -i I -o O --seed 1", "--seed is of made-up weights: give --weights dummy");
    refused("prefill", "-m M -i I -o O --seed 1 --weights real", "--weights dummy");
    refused("bench", "-m M --weights bf16", "real|dummy");
    refused("synth", "--weights dummy D", "quant|bf16");
    refused("plan", "-m M --grid 1x1x1 --ranks 2", "exclude each other");
    TAP_CHECK(!lf_size_parse("128k", &v) && v == 131072 && !lf_size_parse("7", &v) && v == 7, "sizes by themselves");
    TAP_CHECK(!lf_size_parse("80GiB", &v) && v == 80LL << 30 && !lf_size_parse("3mib", &v) && v == 3 << 20, "GiB");
    TAP_CHECK(lf_size_parse("80GB", &v) && lf_size_parse("80iB", &v), "which are powers of 1024");
    TAP_CHECK(lf_size_parse("-1", &v) && lf_size_parse("", &v) && lf_size_parse("1x", &v) &&
                  lf_size_parse("99999999999g", &v),
              "and what is none");
}

static void test_help(void)
{
    int commands = 0, bad = 0;

    for (const char *c; (c = lf_options_command(commands)); commands++) {
        char *text;
        size_t n, widest = 0;
        FILE *f = open_memstream(&text, &n);
        lf_options_help(f, c);
        fclose(f);
        for (char *w = strtok(text, "\n"); w; w = strtok(NULL, "\n"))
            widest = strlen(w) > widest ? strlen(w) : widest;
        TAP_QUIET(bad, widest <= 96, "%s: %zu columns", c, widest);
        free(text);
    }
    TAP_CHECK(commands == 6 && bad == 0, "help of every command fits 96 columns");
}

int main(void)
{
    static const char *const names[] = { "token_ids", "prompt", "file" };

    test_defaults();
    test_values();
    test_refused();
    test_json();
    test_bench();
    test_help();
    TAP_CHECK(!strcmp(lf_options_nearest("tokens_ids", names, 3), "token_ids"), "nearest: one edit");
    TAP_CHECK(!strcmp(lf_options_nearest("tok", names, 3), "token_ids"), "nearest: a beginning");
    TAP_CHECK(!lf_options_nearest("completion", names, 3), "nearest: nothing near");
    return tap_done();
}
