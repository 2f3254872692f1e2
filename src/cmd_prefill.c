/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "job.h"
#include "log.h"

#include <hdf5.h>
#include <mpi.h>

#include <stdlib.h>
#include <string.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

const char *lf_job_version(void)
{
    return PACKAGE_VERSION;
}

void lf_job_libraries(lf_report *r)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    unsigned a, b, c;
    int n;

    MPI_Get_library_version(text, &n);
    text[strcspn(text, ",\n")] = 0;        /* the rest says who built it when */
    lf_report_library(r, "mpi", text);
    H5get_libversion(&a, &b, &c);
    snprintf(text, sizeof text, "%u.%u.%u", a, b, c);
    lf_report_library(r, "hdf5", text);
    lf_report_library(r, "jansson", JANSSON_VERSION);
}

/* Being told to stop is a question asked between passes; a full disk or a closed pipe is an error like any
 * other.  Before MPI starts, so that its threads and ours have the same mask. */
static void signals_setup(lf_job *j)
{
    sigemptyset(&j->stops);
    sigaddset(&j->stops, SIGTERM);
    sigaddset(&j->stops, SIGUSR1);
    sigprocmask(SIG_BLOCK, &j->stops, NULL);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

static int prefill(lf_job *j, lf_err *err)
{
    int code;

    if (lf_job_check(j, &code, err))
        return code;
    if ((j->plan.n || j->o->dry_run) && lf_job_open(j, err))
        return LF_EXIT_FAILED;
    if (j->o->dry_run)
        return lf_job_dry(j, err) ? LF_EXIT_FAILED : LF_EXIT_DONE;
    if (j->plan.n && lf_job_run(j, err))
        return LF_EXIT_FAILED;
    code = LF_EXIT_DONE;
    return lf_job_report(j, &code, err) ? LF_EXIT_FAILED : code;
}

int lf_cmd_prefill(const lf_options *o, lf_err *err)
{
    lf_job *j = lf_alloc(sizeof *j);
    int argc = 0, code;
    char **argv = NULL;

    j->o = o;
    j->born = lf_now();
    lf_report_clock(j->started);
    signals_setup(j);
    if (lf_topo_start(&argc, &argv, &j->rank, &j->world, err)) {
        free(j);
        return LF_EXIT_FAILED;
    }
    lf_log_setup(j->rank, lf_log_level());
    code = prefill(j, err);
    if (code != LF_EXIT_DONE && err->text[0])
        lf_error("%s", err->text);         /* now: when another rank exits first, the launcher ends this one */
    err->text[0] = 0;
    lf_job_close(j);
    lf_topo_end();
    free(j);
    return code;
}
