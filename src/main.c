/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "command.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

static const struct command {
    const char *name;                      /* a row of lf_option_commands, which has its help */
    int (*run)(const lf_options *o, lf_err *err);
} commands[] = {
    { "prefill", lf_cmd_prefill },
    { "plan", lf_cmd_plan },
    { "bench", lf_cmd_bench },
    { "info", lf_cmd_info },
    { "verify", lf_cmd_verify },
    { "synth", lf_cmd_synth },
};

static const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    return NULL;
}

/* Usage is wrong before MPI starts, so the launcher's word has to do: a thousand ranks say it once. */
static int launched_rank(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return atoi(getenv(names[i]));
    return 0;
}

static int usage(const char *text)
{
    if (launched_rank() == 0)
        lf_error("%s", text);
    return LF_EXIT_USAGE;
}

static int no_command(const char *name)
{
    const char *known[sizeof commands / sizeof *commands];
    int n = (int)(sizeof commands / sizeof *commands);
    lf_err err;

    for (int i = 0; i < n; i++)
        known[i] = commands[i].name;
    const char *near = lf_options_nearest(name, known, n);
    lf_fail(&err, near ? "unknown command '%.64s'; did you mean %s?"
                       : "unknown command '%.64s'; `longfill --help` lists them", name, near);
    return usage(err.text);
}

static int help(const char *name)
{
    if (name && !command_find(name))
        return no_command(name);
    if (launched_rank() == 0)
        lf_options_help(stdout, name);
    return LF_EXIT_DONE;
}

static int run(const struct command *c, int argc, char **argv)
{
    lf_options o;
    lf_err err = { "" };

    if (lf_options_parse(&o, c->name, argc, argv, &err))
        return usage(err.text);
    if (o.help) {
        lf_options_free(&o);
        return help(c->name);
    }
    lf_log_setup(0, o.quiet ? LF_QUIET : o.verbose ? LF_VERBOSE : LF_NORMAL);
    int code = c->run(&o, &err);
    if (code != LF_EXIT_DONE && err.text[0])
        lf_error("%s", err.text);
    lf_options_free(&o);
    return code;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2)
        return usage("which command? `longfill --help` lists them");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
        return help(argc > 2 ? argv[2] : NULL);
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("longfill %s\n", PACKAGE_VERSION);
        return LF_EXIT_DONE;
    }
    const struct command *c = command_find(argv[1]);
    return c ? run(c, argc - 2, argv + 2) : no_command(argv[1]);
}

/* Closed ones would be given to the next files and sockets: a log line must not end in one of those.  Opened the other
 * way round, their use fails as that of closed ones does. */
static void standard_streams_hold(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    standard_streams_hold();
    int code = dispatch(argc, argv);

    if ((fflush(stdout) || ferror(stdout)) && code == LF_EXIT_DONE) {
        lf_error("cannot write to standard output");
        code = LF_EXIT_FAILED;
    }
    return code;
}
