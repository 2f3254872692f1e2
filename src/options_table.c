/* SPDX-License-Identifier: Apache-2.0 */
#include "options_table.h"

#include <limits.h>

#define AT(field) offsetof(lf_options, field)

enum {
    PREFILL = LF_CMD_PREFILL, PLAN = LF_CMD_PLAN, INFO = LF_CMD_INFO, VERIFY = LF_CMD_VERIFY,
    SYNTH = LF_CMD_SYNTH, BENCH = LF_CMD_BENCH,
    ALL = PREFILL | PLAN | INFO | VERIFY | SYNTH | BENCH
};

#define HUGE_INT 9007199254740992.0        /* 2^53: what JSON readers keep exactly */

const lf_option lf_option_table[] = {
    { "model", 'm', LF_OPT_STRING, "DIR", 0, 0, NULL, AT(model), PREFILL | PLAN | BENCH | VERIFY,
      PREFILL | PLAN | BENCH,
      "checkpoint directory: config.json and safetensors" },
    { "input", 'i', LF_OPT_STRING, "FILE", 0, 0, NULL, AT(input), PREFILL, PREFILL,
      "prompts, one JSON object a line; - reads stdin" },
    { "output", 'o', LF_OPT_STRING, "DIR", 0, 0, NULL, AT(output), PREFILL, PREFILL,
      "where kv/, results.jsonl and report.json go" },
    { "dp", 0, LF_OPT_INT, "N", 1, 1 << 20, NULL, AT(dp), PREFILL, 0,
      "groups of ranks that take prompts; dp x pcp x tp ranks are started, and what is not given follows" },
    { "pcp", 0, LF_OPT_INT, "N", 1, 1 << 20, NULL, AT(pcp), PREFILL, 0,
      "ranks that share the tokens of a prompt" },
    { "tp", 0, LF_OPT_INT, "N", 1, 1 << 20, NULL, AT(tp), PREFILL, 0,
      "ranks that share the heads of every layer" },
    { "device", 0, LF_OPT_CHOICE, "auto|cuda|cpu", 0, 0, "auto", AT(device), PREFILL | BENCH, 0,
      "where to compute; auto takes a GPU if there is one" },
    { "device", 0, LF_OPT_CHOICE, "auto|cuda|cpu", 0, 0, "auto", AT(device), PLAN, 0,
      "whose memory: a GPU's, which auto means too, or that of the CPU" },
    { "numerics", 0, LF_OPT_CHOICE, "exact|released", 0, 0, "released", AT(numerics), PREFILL | PLAN | BENCH, 0,
      "released rounds where the released model does; exact keeps float32" },
    { "kv-dtype", 0, LF_OPT_CHOICE, "auto|fp8|bf16|f32", 0, 0, "auto", AT(kv_dtype), PREFILL | PLAN | BENCH, 0,
      "stored KV rows; auto: fp8 for released, f32 for exact" },
    { "pcp-attention", 0, LF_OPT_CHOICE, "gather|merge|auto", 0, 0, "auto", AT(pcp_attention), PREFILL | PLAN | BENCH,
      0,
      "gather: every rank gets all compressed rows; merge: they stay where they are and results are merged; "
      "auto is gather" },
    { "logits", 0, LF_OPT_LOGITS, "last|none|topk:K|all", 0, 0, "last", AT(logits), PREFILL, 0,
      "which logits to store" },
    { "logprobs", 0, LF_OPT_FLAG, NULL, 0, 0, NULL, AT(logprobs), PREFILL, 0,
      "store the log-probability of every actual next token" },
    { "shard", 0, LF_OPT_SHARD, "I/N", 0, 0, "0/1", AT(shard), PREFILL, 0,
      "take only the prompts whose place is I modulo N, 0 <= I < N" },
    { "max-seconds", 0, LF_OPT_DOUBLE, "S", 1e-3, 1e9, NULL, AT(max_seconds), PREFILL, 0,
      "start no prompt after S seconds; exit 75 when some are left" },
    { "dry-run", 0, LF_OPT_FLAG, NULL, 0, 0, NULL, AT(dry_run), PREFILL, 0,
      "check model, prompts and output, print the plan, compute nothing" },
    { "overwrite", 0, LF_OPT_FLAG, NULL, 0, 0, NULL, AT(overwrite), PREFILL, 0,
      "redo prompts that are already done; the default resumes" },
    { "report", 0, LF_OPT_STRING, "FILE", 0, 0, NULL, AT(report), PREFILL, 0,
      "where the report goes; default report.json in the output directory" },
    { "format", 0, LF_OPT_CHOICE, "text|csv|json", 0, 0, "text", AT(format), PREFILL | BENCH, 0,
      "how the report is printed on stdout" },
    { "progress", 0, LF_OPT_DOUBLE, "SEC", 0, 1e6, "5", AT(progress), PREFILL, 0,
      "seconds between progress lines on stderr; 0 turns them off" },
    { "length", 'l', LF_OPT_SIZE, "TOKENS", 1, HUGE_INT, "128k", AT(length), PLAN, 0,
      "tokens of the prompt to plan for" },
    { "deep", 0, LF_OPT_FLAG, NULL, 0, 0, NULL, AT(deep), VERIFY, 0,
      "also run the first tokens through the model again and compare" },
    { "length", 'l', LF_OPT_SIZE, "TOKENS", 1, HUGE_INT, "512", AT(length), VERIFY, 0,
      "with --deep: how many tokens to run" },
    { "ranks", 0, LF_OPT_INT, "N", 1, 4096, "1", AT(ranks), PLAN, 0, "ranks (GPUs) to plan for: all their grids" },
    { "grid", 0, LF_OPT_STRING, "DPxPCPxTP", 0, 0, NULL, AT(grid), PLAN, 0, "plan for this grid only" },
    { "memory", 0, LF_OPT_SIZE, "BYTES", 1, HUGE_INT, "139g", AT(memory), PLAN, 0,
      "device memory of a rank; 139g is what an H200 has" },
    { "grids", 0, LF_OPT_STRING, "DPxPCPxTP,...", 0, 0, NULL, AT(grids), BENCH, 0,
      "grids to compare, the first being what the others are compared with; default 1xNx1 with all ranks" },
    { "lengths", 'l', LF_OPT_STRING, "TOKENS,...", 0, 0, "8k", AT(lengths), BENCH, 0, "tokens of the prompts to time" },
    { "repeat", 0, LF_OPT_INT, "N", 1, 1000, "3", AT(repeat), BENCH, 0,
      "timed passes of each length and grid, after one that is not" },
    { "weights", 0, LF_OPT_CHOICE, "real|dummy", 0, 0, "real", AT(weights), PREFILL | BENCH, 0,
      "those of the checkpoint, or made up from config.json alone" },
    { "json", 0, LF_OPT_FLAG, NULL, 0, 0, NULL, AT(json), PLAN | INFO, 0, "print JSON" },
    { "preset", 0, LF_OPT_STRING, "NAME", 0, 0, "mini", AT(preset), SYNTH, 0,
      "geometry to start from: nano, mini, flash or pro" },
    { "seed", 0, LF_OPT_INT, "N", 0, HUGE_INT, "0", AT(seed), PREFILL, 0,
      "of made-up weights (--weights dummy)" },
    { "seed", 0, LF_OPT_INT, "N", 0, HUGE_INT, "0", AT(seed), SYNTH, 0,
      "of the made-up weights" },
    { "seed", 0, LF_OPT_INT, "N", 0, HUGE_INT, "0", AT(seed), BENCH, 0,
      "of the tokens and of made-up weights" },
    { "weights", 0, LF_OPT_CHOICE, "quant|bf16", 0, 0, "quant", AT(weights), SYNTH, 0,
      "fp8 and packed fp4 as released, or bf16" },
    { "set", 0, LF_OPT_LIST, "KEY=VALUE", 0, 0, NULL, AT(set), SYNTH, 0,
      "a field of config.json; may be repeated" },
    { "shard-size", 0, LF_OPT_SIZE, "BYTES", 1, HUGE_INT, "4g", AT(shard_size), SYNTH, 0,
      "start a new file after so many bytes" },
    { "sparse", 0, LF_OPT_FLAG, NULL, 0, 0, NULL, AT(sparse), SYNTH, 0,
      "write headers only: the data are holes that read as zeros" },
    { "verbose", 'v', LF_OPT_FLAG, NULL, 0, 0, NULL, AT(verbose), ALL, 0, "say more on stderr" },
    { "quiet", 'q', LF_OPT_FLAG, NULL, 0, 0, NULL, AT(quiet), ALL, 0, "say on stderr only what went wrong" },
    { "help", 'h', LF_OPT_FLAG, NULL, 0, 0, NULL, AT(help), ALL, 0, "show this and exit" },
    { .name = NULL }
};

_Static_assert(sizeof lf_option_table / sizeof *lf_option_table <= LF_MAX_OPTIONS,
               "lf_options.given is too short");

const lf_option_command lf_option_commands[] = {
    { "prefill", PREFILL, NULL, 0, 0, "run prompts through the model; write KV files, logits and a report" },
    { "plan", PLAN, NULL, 0, 0, "device memory of every grid, and bytes of weights and KV, from headers alone" },
    { "bench", BENCH, NULL, 0, 0, "time to first token and tokens per second of grids over lengths, as one table" },
    { "info", INFO, "FILE", 1, 1, "what a KV file holds" },
    { "verify", VERIFY, "FILE", 1, INT_MAX, "check every part and checksum of KV files" },
    { "synth", SYNTH, "DIR", 1, 1, "write a checkpoint with made-up weights in the released format" },
    { .name = NULL }
};

const lf_option_pair lf_option_conflicts[] = {
    { "verbose", "quiet" },
    { "grid", "ranks" },
    { NULL, NULL }
};

const lf_option_pair lf_option_unbuilt[] = {
    { "frontier", "the state is kept at the end of the prompt only" },
    { "kv-dir", "prompts start from their first token" },
    { NULL, NULL }
};
