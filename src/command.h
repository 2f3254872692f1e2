/* SPDX-License-Identifier: Apache-2.0
 *
 * command: the subcommands, one file each (cmd_<name>.c).  Floor 6.
 *
 * A command gets its parsed options and returns the exit code of the process.  When that is not LF_EXIT_DONE, err
 * says why in one line that main prints; an empty text means that it is already said (per prompt in results.jsonl,
 * say) and main prints nothing.  Results go to stdout, which main flushes and checks.
 * A command that uses MPI starts and ends it; main only sees to it that one rank, not all, prints usage errors.
 */
#ifndef LF_COMMAND_H
#define LF_COMMAND_H

#include "options.h"

enum {
    LF_EXIT_DONE = 0,
    LF_EXIT_FAILED = 1,                    /* the run failed */
    LF_EXIT_USAGE = 2,                     /* the command line, the model's files or the prompts */
    LF_EXIT_SOME_FAILED = 3,               /* finished, some prompts failed: see results.jsonl */
    LF_EXIT_UNDECIDED = 4,                 /* verify --deep: files that it can call neither right nor wrong */
    LF_EXIT_AGAIN = 75                     /* stopped early: run the same command again */
};

int lf_cmd_prefill(const lf_options *o, lf_err *err);
int lf_cmd_plan(const lf_options *o, lf_err *err);
int lf_cmd_bench(const lf_options *o, lf_err *err);
int lf_cmd_info(const lf_options *o, lf_err *err);
int lf_cmd_verify(const lf_options *o, lf_err *err);
int lf_cmd_synth(const lf_options *o, lf_err *err);

#endif
