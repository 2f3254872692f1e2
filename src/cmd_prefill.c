/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "dev_cuda.h"
#include "job.h"
#include "log.h"
#include "pattern.h"

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

/* From 2.13 on it tells at run time. */
static const char *jansson_text(void)
{
#if JANSSON_VERSION_HEX >= 0x020d00
    return jansson_version_str();
#else
    return JANSSON_VERSION;
#endif
}

/* "13.1", or with patch >= 0 "2.28.9"; nothing where there is none. */
static void version_add(lf_report *r, const char *name, int major, int minor, int patch)
{
    char text[48];

    snprintf(text, sizeof text, patch < 0 ? "%d.%d" : "%d.%d.%d", major, minor, patch);
    if (major || minor)
        lf_report_library(r, name, text);
}

static void gpu_libraries(lf_report *r, int shared)
{
    lf_cuda_versions v;

    lf_cuda_versions_get(&v);
    version_add(r, "cuda_runtime", v.runtime / 1000, v.runtime % 1000 / 10, -1);
    version_add(r, "cuda_driver", v.driver / 1000, v.driver % 1000 / 10, -1);
    version_add(r, "cublaslt", v.cublaslt[0], v.cublaslt[1], v.cublaslt[2]);
    if (shared)
        version_add(r, "nccl", v.nccl / 10000, v.nccl / 100 % 100, v.nccl % 100);
}

void lf_job_libraries(lf_report *r, const char *device, int shared)
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
    lf_report_library(r, "jansson", jansson_text());
    lf_pattern_library(text);
    lf_report_library(r, "pcre2", text);
    if (device && strcmp(device, "cuda") == 0)
        gpu_libraries(r, shared);
    else if (device)
        lf_report_library(r, "blis", lf_cpu_blis());
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
