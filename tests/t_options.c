/* SPDX-License-Identifier: Apache-2.0 */
#include "options_table.h"
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
        { "prefill", "--json", "unknown option --json; it is of plan and info, and prefill has no such thing" },
        { "bench", "--length 8k", "did you mean --lengths?" },
        { "plan", "--lengths 8k", "did you mean --length?" },
        { "prefill", "-tp 2", "unknown option -tp; it is written --tp" },
        { "prefill", "-m=M", "-m takes its value without '=': -m M" },
        { "plan", "-m M --tensor-parallel-size 2",
          "unknown option --tensor-parallel-size; a grid is --grid DPxPCPxTP" },
        { "bench", "-m M --dp-size 2", "unknown option --dp-size; grids are --grids DPxPCPxTP" },
        { "prefill", "--ranks 2", "unknown option --ranks; there is none: `mpirun -n N`" },
        { "prefill", "--grid 1x1x1", "unknown option --grid; a grid is --dp, --pcp and --tp" },
        { "prefill", "-model M", "unknown option -model; it is written --model" },
        { "prefill", "-pcp=2", "unknown option -pcp; it is written --pcp" },
        { "plan", "-tp 2", "unknown option -tp; a grid is --grid DPxPCPxTP" },
        { "prefill", "-m M -i I -o O --logprobs 5", "--logprobs takes no value, but got '5'; the K largest logits" },
        { "prefill", "-m M -i I -o O --logprobs=5", "--logits topk:K" },
        { "prefill", "-m M -i I -o O --overwrite yes", "--overwrite takes no value, but got 'yes'" },
        { "prefill", "-m M -i I -o O -- --logprobs", "'--logprobs': prefill takes options only" },
        { "plan", "-m M --memory 80GB", "--memory '80GB': write 80g, which is 80 GiB" },
        { "synth", "D --shard-size 4mb", "write 4m, which is 4 MiB" },
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

static int command_has(unsigned bit, const char *name, size_t n)
{
    for (const lf_option *opt = lf_option_table; opt->name; opt++)
        if (strlen(opt->name) == n && !strncmp(opt->name, name, n) && (opt->commands & bit))
            return 1;
    return 0;
}

/* Every --WORD of a text is an option: in backquotes of the command that stands there, else of the one asked. */
static int options_exist(unsigned bit, const char *text)
{
    unsigned of = bit;

    for (const char *p = text; *p; p++) {
        if (!strncmp(p, "`longfill ", 10)) {
            const lf_option_command *c = lf_option_commands;
            while (c->name && strncmp(p + 10, c->name, strlen(c->name)))
                c++;
            of = c->name ? c->bit : 0;
            p += 9;
        } else if (*p == '`') {
            of = bit;
        } else if (!strncmp(p, " --", 3)) {
            size_t n = strspn(p + 3, "abcdefghijklmnopqrstuvwxyz-");
            if (!command_has(of, p + 3, n) && strncmp(p + 3, "version", n))
                return 0;
        }
    }
    return 1;
}

/* What the user reads for one row and command. */
static int foreign_shown(const lf_option_foreign *f, const lf_option_command *c)
{
    const lf_option_foreign *own = lf_option_foreigns;             /* of what it is called here */
    int has = f->option && command_has(c->bit, f->option, strlen(f->option));
    const char *note = f->note ? f->note : "";
    char args[128], *want = has         ? lf_printf("here it is --%s%s%s", f->option, *note ? ", " : "", note)
                            : f->option ? lf_printf("it is --%s of ", f->option)
                                        : lf_strdup(note);
    lf_options o;
    lf_err err;
    line l;

    while (f->option && !has && own->name && (strcmp(own->name, f->option) || !(own->commands & c->bit)))
        own++;
    if (f->option && !has && own->name) {
        free(want);
        want = lf_strdup(own->note);
    }
    snprintf(args, sizeof args, "--%s=1", f->name);
    int bad = parse(&o, &l, c->name, args, &err);
    const char *hint = strchr(err.text, ';');
    int ok = bad == -1 && hint && !strncmp(hint + 2, want, strlen(want)) &&
             (!strncmp(want, "it is --", 8) || options_exist(c->bit, hint));
    if (!ok)
        printf("# longfill %s %s: %s, not %s\n", c->name, args, err.text, want);
    if (!bad)
        lf_options_free(&o);
    free(want);
    return ok;
}

/* No name is one that the command has, or the row would never be looked at. */
static void test_foreign(void)
{
    for (const lf_option_foreign *f = lf_option_foreigns; f->name; f++) {
        int ok = !f->option || command_has(~0u, f->option, strlen(f->option));
        for (const lf_option_command *c = lf_option_commands; c->name; c++)
            if (f->commands & c->bit)
                ok = ok && !command_has(c->bit, f->name, strlen(f->name)) && foreign_shown(f, c);
        TAP_CHECK(ok, "--%s of others: %s", f->name, f->option ? f->option : f->note);
    }
    for (const lf_option_pair *p = lf_option_flag_notes; p->a; p++)
        TAP_CHECK(command_has(LF_CMD_PREFILL, p->a, strlen(p->a)) && options_exist(LF_CMD_PREFILL, p->b),
                  "--%s takes no value: %s", p->a, p->b);
}

/* Names of vLLM, SGLang and others, one by one, as the user reads the hint. */
static void test_other_names(void)
{
    static const char *const said[][3] = {
        { "prefill", "--tensor-parallel-size 8", "; here it is --tp" },
        { "prefill", "--tp-size=8", "; here it is --tp" },
        { "prefill", "--prefill-context-parallel-size 8", "; here it is --pcp" },
        { "prefill", "--cp 8", "; here it is --pcp" },
        { "prefill", "--data-parallel-size 2", "; here it is --dp" },
        { "prefill", "--pipeline-parallel-size 2", "; there is none: every rank has all layers" },
        { "prefill", "--pp 2", "; there is none: every rank has all layers" },
        { "prefill", "--ep 2", "; there is none: the pcp x tp ranks" },
        { "prefill", "--enable-expert-parallel", "always share the experts" },
        { "prefill", "--max-model-len 8192", "`longfill plan -l TOKENS` says what fits" },
        { "prefill", "--max-num-batched-tokens 8192", "a prompt is never cut" },
        { "prefill", "--chunked-prefill-size 8192", "a prompt is never cut" },
        { "prefill", "--gpu-memory-utilization 0.9", "; there is none: a run takes what `longfill plan` says" },
        { "plan", "--gpu-memory-utilization 0.9", "; here it is --memory, in bytes" },
        { "prefill", "--kv-cache-dtype fp8", "; here it is --kv-dtype" },
        { "prefill", "--dtype bfloat16", "; --numerics is how it computes, --kv-dtype how KV rows are stored" },
        { "prefill", "--load-format dummy", "--weights dummy makes them up" },
        { "prefill", "--model-path M", "; here it is --model" },
        { "prefill", "--prompt-logprobs 5", "--logits topk:K the K largest logits" },
        { "prefill", "--output-dir O", "; here it is --output" },
        { "prefill", "--input-file I", "; here it is --input" },
        { "prefill", "--num-gpus 8", "`mpirun -n N` or srun starts N ranks" },
        { "prefill", "--resume", "; there is none: a run resumes by itself" },
        { "prefill", "--force", "; here it is --overwrite" },
        { "verify", "--force x", "; it is --overwrite of prefill, and verify has no such thing" },
        { "plan", "--tp 2", "; a grid is --grid DPxPCPxTP" },
        { "bench", "--pcp 2", "; grids are --grids DPxPCPxTP" },
        { "plan", "--gpus 8", "; here it is --ranks" },
        { "plan", "--input-len 1m", "; here it is --length" },
        { "synth", "--dtype bf16 D", "; here it is --weights" },
        { "prefill", "--version", "`longfill --version` prints it" },
        { "plan", "-V", "`longfill --version` prints it" },
    };

    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        refused(said[i][0], said[i][1], said[i][2]);
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
    test_foreign();
    test_other_names();
    test_json();
    test_bench();
    test_help();
    TAP_CHECK(!strcmp(lf_options_nearest("tokens_ids", names, 3), "token_ids"), "nearest: one edit");
    TAP_CHECK(!strcmp(lf_options_nearest("tok", names, 3), "token_ids"), "nearest: a beginning");
    TAP_CHECK(!lf_options_nearest("completion", names, 3), "nearest: nothing near");
    return tap_done();
}
