/* SPDX-License-Identifier: Apache-2.0
 *
 * options: the command line.  Floor 1, pure.
 *
 * One table (options_table.c) drives parsing, --help, the check of the man page and the report's config block.
 * Values land in lf_options; every field that the command does not have keeps zero.  Defaults are texts in the table
 * and go through the same parser as what the user writes.
 *
 * Syntax: --name=value, --name value, -m value, -mvalue; `--` ends the options; `-` alone is an operand.  Sizes
 * take k, m, g (powers of 1024).  Giving an option twice is an error unless it is repeatable.
 */
#ifndef LF_OPTIONS_H
#define LF_OPTIONS_H

#include "kvlayout.h"

#include <jansson.h>
#include <stdio.h>

typedef enum lf_device_choice { LF_DEVICE_AUTO, LF_DEVICE_CUDA, LF_DEVICE_CPU } lf_device_choice;
typedef enum lf_keep { LF_KEEP_LAST, LF_KEEP_NONE, LF_KEEP_TOPK, LF_KEEP_ALL } lf_keep;
typedef enum lf_format { LF_FORMAT_TEXT, LF_FORMAT_CSV, LF_FORMAT_JSON } lf_format;
typedef enum lf_pcp_attention { LF_PCP_GATHER, LF_PCP_MERGE, LF_PCP_AUTO } lf_pcp_attention;
typedef enum lf_run_weights { LF_WEIGHTS_REAL, LF_WEIGHTS_DUMMY } lf_run_weights;
typedef enum lf_synth_weights { LF_SYNTH_QUANT, LF_SYNTH_BF16 } lf_synth_weights;

enum { LF_MAX_OPTIONS = 64 };

typedef struct lf_strings {
    int n;
    const char **v;                        /* the array is owned, the texts are argv's */
} lf_strings;

/* Strings point into argv (or into the table, for defaults): argv must outlive the options. */
typedef struct lf_options {
    const char *command;                   /* "prefill" */
    int argc;                              /* what was parsed */
    char **argv;
    int help;                              /* -h, --help: nothing else was checked */
    lf_strings operands;                   /* what is not an option, in order; within the command's limits */

    const char *model;                     /* prefill, plan: checkpoint directory */
    const char *input;                     /* prefill: prompts file, "-" = stdin */
    const char *output;                    /* prefill: output directory */
    int64_t dp, pcp, tp;                   /* prefill: the grid; 0 = as lf_grid_make chooses */
    int device;                            /* lf_device_choice */
    int numerics;                          /* lf_numerics */
    int kv_dtype;                          /* lf_kv_dtype */
    int logits;                            /* lf_keep: which logits are stored */
    int64_t topk;                          /* K of --logits topk:K, else 0; not compared with the vocabulary */
    int logprobs;
    int64_t shard, shards;                 /* --shard I/N: 0 <= shard < shards; default 0/1 */
    double max_seconds;                    /* 0 = no limit */
    int dry_run, overwrite;
    const char *report;                    /* NULL: OUTPUT/report.json, never overwriting */
    int format;                            /* lf_format: what goes to stdout */
    double progress;                       /* seconds between lines; 0 = none */
    int verbose, quiet;

    int json;                              /* info, plan */
    int64_t length;                        /* plan: prompt tokens; verify: of --deep */
    int deep;                              /* verify */
    int64_t ranks, memory;                 /* plan; memory: bytes of a rank's device */
    const char *grid;                      /* plan: "DPxPCPxTP", or NULL: all grids of `ranks` */
    int pcp_attention;                     /* prefill, plan, bench: lf_pcp_attention */
    const char *grids, *lengths;           /* bench: lists; grids NULL: one of all ranks */
    int64_t repeat;

    const char *preset;                    /* synth */
    int64_t seed;
    int weights;                           /* synth: lf_synth_weights; prefill, bench: lf_run_weights */
    lf_strings set;                        /* "KEY=VALUE" texts, checked for the '=' only */
    int64_t shard_size;                    /* bytes */
    int sparse;

    unsigned char given[LF_MAX_OPTIONS];   /* by row of the table: the user wrote it */
} lf_options;

/* argv[0] is the first argument after the command's name.  Errors name the option, the value and what works. */
int lf_options_parse(lf_options *o, const char *command, int argc, char **argv, lf_err *err);
void lf_options_free(lf_options *o);

/* A whole number >= 0 with an optional k, m or g.  0, or -1. */
int lf_size_parse(const char *text, int64_t *out);

/* 1 when the user wrote the option (long name without dashes). */
int lf_options_given(const lf_options *o, const char *name);

/* Of one command, or (command NULL) of the program. */
void lf_options_help(FILE *out, const char *command);
/* The i-th command's name, NULL past the last. */
const char *lf_options_command(int i);

/* Every option of the command as given or its default ("auto" stays so); absent ones are null.  A new reference. */
json_t *lf_options_json(const lf_options *o);

/* The nearest of the n names (a few edits away at most), or NULL: for "did you mean". */
const char *lf_options_nearest(const char *word, const char *const *names, int n);

#endif
