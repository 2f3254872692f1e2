/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of `longfill prefill` over a device that fails: one that recovers costs its prompts, one that does not ends
 * the job and leaves the prompts to the next run.  Each run is a process of its own, with the CPU's operations and
 * faults among them.
 */
#include "job.h"
#include "synthdir.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPTS = 5, TOKENS = 100, BAD_PASS = 2 };

/* What goes wrong in pass BAD_PASS: it fails in the middle, or is refused before it begins; and whether the device
 * fails from then on. */
typedef struct fault {
    int middle, refused, dead;
} fault;

static lf_dev_ops ops;
static fault planted;
static int pass, told;                     /* begun so far; in this one sync has failed */

static int fault_reserve(lf_dev *d, const lf_dev_load *load, lf_err *err)
{
    (void)d;
    (void)load;
    told = 0;
    return ++pass == BAD_PASS && planted.refused ? lf_fail(err, "no memory for this pass") : 0;
}

static int fault_sync(lf_dev *d, lf_err *err)
{
    (void)d;
    if (pass < BAD_PASS || (!planted.dead && (!planted.middle || pass > BAD_PASS || told)))
        return 0;
    told = 1;
    return lf_fail(err, "the GPU fails in pass %d", pass);
}

/* As cmd_prefill does it, with the faults put in between. */
static int job(const char *model, const char *prompts, const char *out)
{
    char *argv[] = { "-m", (char *)(uintptr_t)model, "-i", (char *)(uintptr_t)prompts, "-o",
                     (char *)(uintptr_t)out, "--device", "cpu", "--report", (char *)(uintptr_t)"/dev/null", "-q" };
    int argc = 0, code;
    char **none = NULL;
    lf_options o;
    lf_job j = { .o = &o };
    lf_err err = { "" };

    if (lf_options_parse(&o, "prefill", (int)(sizeof argv / sizeof *argv), argv, &err) ||
        lf_topo_start(&argc, &none, &j.rank, &j.world, &err) || lf_job_check(&j, &code, &err) ||
        lf_job_open(&j, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 99;
    }
    ops = *j.dev->ops;
    ops.sync = fault_sync;
    ops.reserve = fault_reserve;
    j.dev->ops = &ops;
    code = LF_EXIT_DONE;
    if (lf_job_run(&j, &err) || lf_job_report(&j, &code, &err)) {
        fprintf(stderr, "%s\n", err.text);
        code = 98;
    }
    lf_job_close(&j);
    lf_options_free(&o);
    lf_topo_end();
    return code;
}

/* Its exit code; what it says and reports is in the file `said`. */
static int run(fault f, const char *name)
{
    char *model = synthdir_path("model"), *prompts = synthdir_path("prompts"), *out = synthdir_path(name);
    char *said = synthdir_path("said");
    int status = 0;

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        planted = f;
        if (!freopen(said, "w", stderr) || !freopen("/dev/null", "w", stdout))
            _exit(97);
        exit(job(model, prompts, out));
    }
    waitpid(child, &status, 0);
    free(model);
    free(prompts);
    free(out);
    free(said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

/* Lines of a file that hold a text. */
static int lines(const char *name, const char *file, const char *text)
{
    char *dir = synthdir_path(name), *path = lf_printf("%s%s%s", dir, *file ? "/" : "", file), line[4096];
    FILE *f = fopen(path, "r");
    int n = 0;

    while (f && fgets(line, sizeof line, f))
        n += strstr(line, text) != NULL;
    if (f)
        fclose(f);
    free(path);
    free(dir);
    return n;
}

static void say(void)
{
    char *path = synthdir_path("said"), line[2048];
    FILE *f = fopen(path, "r");

    while (f && fgets(line, sizeof line, f))
        printf("# %s", line);
    if (f)
        fclose(f);
    free(path);
}

static int results(const char *name, const char *status)
{
    char *text = lf_printf("\"status\":\"%s\"", status);
    int n = lines(name, "results.jsonl", text);

    free(text);
    return n;
}

static void test_recovers(fault f, const char *name, const char *why)
{
    int code = run(f, name), ok = results(name, "ok"), failed = results(name, "failed");

    say();
    TAP_CHECK(code == LF_EXIT_SOME_FAILED && ok == PROMPTS - 1 && failed == 1,
              "%s, once: exit %d, %d done, %d failed", name, code, ok, failed);
    TAP_CHECK(lines(name, "results.jsonl", why) == 1, "%s: results.jsonl says why: %s", name, why);
}

static void test_lost(fault f, const char *name, const char *why)
{
    int code = run(f, name), ok = results(name, "ok"), failed = results(name, "failed");

    say();
    TAP_CHECK(code == LF_EXIT_FAILED && failed == 0, "%s, for good: exit %d, %d prompts recorded as failed", name, code,
              failed);
    TAP_CHECK(ok == BAD_PASS - 1, "%s: what was computed before is kept: %d of %d", name, ok, BAD_PASS - 1);
    TAP_CHECK(lines("said", "", why) == 1 && lines("said", "", "run the same command again") == 1,
              "%s: it is said once, with the reason", name);
    code = run((fault){ 0 }, name);
    ok = results(name, "ok");
    TAP_CHECK(code == LF_EXIT_DONE && ok == PROMPTS, "%s: the next run does the rest: exit %d, %d done", name, code,
              ok);
}

static int prompts_write(void)
{
    char *path = synthdir_path("prompts");
    FILE *f = fopen(path, "w");

    for (int i = 0; f && i < PROMPTS; i++) {
        fprintf(f, "{\"custom_id\": \"p%d\", \"token_ids\": [%d", i, i);
        for (int t = 1; t < TOKENS; t++)
            fprintf(f, ", %d", (i * 31 + t * 7) % 96);
        fprintf(f, "]}\n");
    }
    free(path);
    return f && fclose(f) == 0 ? 0 : -1;
}

int main(void)
{
    lf_synth_options o = { .preset = "nano", .seed = 3 };
    lf_err err = { "" };

    synthdir_make();
    if (synthdir_write("model", o, &err) || prompts_write()) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    test_recovers((fault){ .middle = 1 }, "middle", "the GPU fails in pass 2");
    test_recovers((fault){ .refused = 1 }, "refused", "no memory for this pass");
    test_lost((fault){ .middle = 1, .dead = 1 }, "middle-dead", "the GPU fails in pass 2");
    test_lost((fault){ .refused = 1, .dead = 1 }, "refused-dead", "no memory for this pass");
    synthdir_remove();
    return tap_done();
}
