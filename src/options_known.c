/* SPDX-License-Identifier: Apache-2.0
 *
 * What other engines and other programs call things. */
#include "options_table.h"

enum {
    PREFILL = LF_CMD_PREFILL, PLAN = LF_CMD_PLAN, SYNTH = LF_CMD_SYNTH, BENCH = LF_CMD_BENCH,
    RUN = PREFILL | BENCH, GRID = RUN | PLAN, ALL = GRID | SYNTH | LF_CMD_INFO | LF_CMD_VERIFY
};

#define NO_PIPELINE "there is none: every rank has all layers; ranks share a prompt's tokens (pcp) or heads (tp)"
#define EXPERTS     "there is none: the pcp x tp ranks of a group always share the experts"
#define POSITIONS   "there is none: the model's positions are the limit, and `longfill plan -l TOKENS` says what fits"
#define NEVER_CUT   "there is none: a prompt is never cut; `longfill plan -l TOKENS` says what fits"
#define NO_SHARE    "there is none: a run takes what `longfill plan` says; `longfill plan --memory 80g` plans for less"
#define NO_DECODING "there is none: nothing is decoded"
#define LAUNCHER    "there is none: `mpirun -n N` or srun starts N ranks, one for each GPU"
#define PLAN_GRID   "a grid is --grid DPxPCPxTP, and --ranks N has all grids of N ranks"
#define BENCH_GRID  "grids are --grids DPxPCPxTP,..."
#define NUMERICS    "--numerics is how it computes, --kv-dtype how KV rows are stored; weights stay as they are"

const lf_option_foreign lf_option_foreigns[] = {
    { "dp", PLAN, NULL, PLAN_GRID },
    { "dp", BENCH, NULL, BENCH_GRID },
    { "pcp", PLAN, NULL, PLAN_GRID },
    { "pcp", BENCH, NULL, BENCH_GRID },
    { "tp", PLAN, NULL, PLAN_GRID },
    { "tp", BENCH, NULL, BENCH_GRID },
    { "grid", PREFILL, NULL, "a grid is --dp, --pcp and --tp" },
    { "grids", PREFILL, NULL, "a grid is --dp, --pcp and --tp" },
    { "ranks", RUN, NULL, LAUNCHER },
    { "tensor-parallel-size", ALL, "tp", NULL },
    { "tp-size", ALL, "tp", NULL },
    { "prefill-context-parallel-size", ALL, "pcp", NULL },
    { "context-parallel-size", ALL, "pcp", NULL },
    { "pcp-size", ALL, "pcp", NULL },
    { "cp-size", ALL, "pcp", NULL },
    { "cp", ALL, "pcp", NULL },
    { "data-parallel-size", ALL, "dp", NULL },
    { "dp-size", ALL, "dp", NULL },
    { "decode-context-parallel-size", GRID, NULL, NO_DECODING },
    { "dcp", GRID, NULL, NO_DECODING },
    { "pipeline-parallel-size", GRID, NULL, NO_PIPELINE },
    { "pp-size", GRID, NULL, NO_PIPELINE },
    { "pp", GRID, NULL, NO_PIPELINE },
    { "enable-expert-parallel", GRID, NULL, EXPERTS },
    { "expert-parallel-size", GRID, NULL, EXPERTS },
    { "ep-size", GRID, NULL, EXPERTS },
    { "ep", GRID, NULL, EXPERTS },
    { "nnodes", GRID, NULL, LAUNCHER },
    { "num-gpus", RUN, NULL, LAUNCHER },
    { "num-gpus", PLAN, "ranks", NULL },
    { "gpus", RUN, NULL, LAUNCHER },
    { "gpus", PLAN, "ranks", NULL },
    { "max-model-len", GRID, NULL, POSITIONS },
    { "context-length", GRID, NULL, POSITIONS },
    { "max-num-batched-tokens", GRID, NULL, NEVER_CUT },
    { "chunked-prefill-size", GRID, NULL, NEVER_CUT },
    { "enable-chunked-prefill", GRID, NULL, NEVER_CUT },
    { "gpu-memory-utilization", RUN, NULL, NO_SHARE },
    { "gpu-memory-utilization", PLAN, "memory", "in bytes, such as 80g" },
    { "mem-fraction-static", RUN, NULL, NO_SHARE },
    { "mem-fraction-static", PLAN, "memory", "in bytes, such as 80g" },
    { "input-len", PREFILL, NULL, "there is none: prompts are as long as the prompts file has them" },
    { "input-len", PLAN, "length", NULL },
    { "input-len", BENCH, "lengths", NULL },
    { "max-tokens", GRID, NULL, NO_DECODING },
    { "output-len", GRID, NULL, NO_DECODING },
    { "kv-cache-dtype", ALL, "kv-dtype", NULL },
    { "dtype", GRID, NULL, NUMERICS },
    { "dtype", SYNTH, "weights", "quant or bf16" },
    { "quantization", GRID, NULL, "there is none: weights are used as the checkpoint has them" },
    { "load-format", RUN, NULL, "there is none: weights are safetensors, or --weights dummy makes them up" },
    { "trust-remote-code", GRID, NULL, "there is none: no code of a checkpoint is run" },
    { "model-path", ALL, "model", NULL },
    { "tokenizer", PREFILL, NULL, "there is none: tokenizer.json of the model's directory is used" },
    { "prompt-logprobs", PREFILL, NULL,
      "--logprobs stores that of every actual next token, --logits topk:K the K largest logits of every token" },
    { "input-file", ALL, "input", NULL },
    { "output-dir", ALL, "output", NULL },
    { "output-file", ALL, "output", "a directory" },
    { "resume", PREFILL, NULL, "there is none: a run resumes by itself; --overwrite does everything anew" },
    { "force", ALL, "overwrite", NULL },
    { "version", ALL, NULL, "`longfill --version` prints it" },
    { "V", ALL, NULL, "`longfill --version` prints it" },
    { .name = NULL }
};

const lf_option_pair lf_option_flag_notes[] = {
    { "logprobs", "the K largest logits of every token are --logits topk:K" },
    { NULL, NULL }
};
