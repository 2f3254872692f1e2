/* SPDX-License-Identifier: Apache-2.0
 *
 * options_table: the rows behind options.h.  Included by options*.c and their test only.
 */
#ifndef LF_OPTIONS_TABLE_H
#define LF_OPTIONS_TABLE_H

#include "options.h"

enum { LF_CMD_PREFILL = 1, LF_CMD_PLAN = 2, LF_CMD_INFO = 4, LF_CMD_VERIFY = 8, LF_CMD_SYNTH = 16, LF_CMD_BENCH = 32 };

typedef enum lf_option_type {
    LF_OPT_FLAG,                           /* int, 0 or 1; takes no value */
    LF_OPT_INT, LF_OPT_SIZE,               /* int64_t within lo..hi */
    LF_OPT_DOUBLE,                         /* double within lo..hi, finite */
    LF_OPT_STRING,                         /* const char *, not empty */
    LF_OPT_CHOICE,                         /* int, the index in arg split at '|' */
    LF_OPT_LIST,                           /* lf_strings, repeatable */
    LF_OPT_LOGITS,                         /* last | none | topk:K | all: fields logits and topk */
    LF_OPT_SHARD                           /* I/N: fields shard and shards */
} lf_option_type;

typedef struct lf_option {
    const char *name;                      /* of one option a command; two commands may each have their own */
    char letter;                           /* 0: none */
    lf_option_type type;
    const char *arg;                       /* what --help calls the value; the words of a choice */
    double lo, hi;
    const char *dflt;                      /* a text, or NULL: absent (zero) */
    size_t at;                             /* offset in lf_options */
    unsigned commands, required;           /* bits: has it, cannot do without it */
    const char *help;
} lf_option;

typedef struct lf_option_command {
    const char *name;
    unsigned bit;
    const char *operand;                   /* NULL: takes none */
    int min, max;                          /* of operands */
    const char *help;
} lf_option_command;

typedef struct lf_option_pair {            /* two options that exclude each other, or a name and a text */
    const char *a, *b;
} lf_option_pair;

/* A name that a command does not have, and what to say instead: the option that it is, with a note on its value or
 * NULL, or (option NULL) the note alone.  The first row of a name that is for the command counts. */
typedef struct lf_option_foreign {
    const char *name;
    unsigned commands;
    const char *option, *note;
} lf_option_foreign;

extern const lf_option lf_option_table[];               /* ends with a NULL name, as do the others */
extern const lf_option_command lf_option_commands[];
extern const lf_option_pair lf_option_conflicts[];
extern const lf_option_pair lf_option_unbuilt[];        /* planned names, and what to do meanwhile */
extern const lf_option_foreign lf_option_foreigns[];    /* options_known.c, as is the next */
extern const lf_option_pair lf_option_flag_notes[];     /* what one may have wanted that gives a flag a value */

#endif
