/* SPDX-License-Identifier: Apache-2.0 */
#include "dev_cuda.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT = 1, FORGOT = 2 };             /* what a child found wrong */

/* What job_run.c tells a lost GPU by: sync, asked again, has forgotten an error that the GPU has got over. */
static int fail_once(lf_dev *d)
{
    int not_taken;
    lf_err err;

    d->ops->give(d, &not_taken);
    return d->ops->sync(d, &err) != -1 || d->ops->sync(d, &err) ? KEPT : 0;
}

/* A row far outside of everything, gathered in layer 5, tile 3, and work of layer 6 behind it.  For good. */
static int fail_in_layer_5(lf_dev *d, lf_err *err)
{
    lf_err again;
    int32_t far = INT32_MAX;
    void *idx, *rows;

    if (d->ops->take(d, &idx, sizeof far, "a test", err) || d->ops->take(d, &rows, 1 << 20, "a test", err))
        return FORGOT;
    d->ops->put(d, idx, &far, sizeof far);
    d->ops->at(d, 4, 7);
    d->ops->at(d, 5, 3);
    d->ops->gather(d, rows, rows, idx, 1, 4096);
    d->ops->at(d, 6, 0);
    d->ops->fill(d, rows, 0, 4096);
    return d->ops->sync(d, err) != -1 || d->ops->sync(d, &again) != -1 ? FORGOT : 0;
}

/* In a process of its own: a GPU that has met a wild pointer does nothing more for the process.  Its error's text; what
 * was wrong. */
static int text_of_a_failure(char *text, size_t bytes, const char *blocking)
{
    static lf_model m = { .index_dim = 32 };
    int ends[2], wrong = 0, status = 0;

    text[0] = 0;
    if (pipe(ends))
        return -1;
    pid_t child = fork();
    if (child == 0) {
        lf_dev *d;
        lf_err err = { .text = "" };
        setenv("CUDA_LAUNCH_BLOCKING", blocking, 1);
        if (!lf_cuda_open(&d, &m, LF_EXACT, 4, 0, &err)) {
            wrong = fail_once(d);
            wrong |= fail_in_layer_5(d, &err);
        }
        ssize_t n = write(ends[1], err.text, strlen(err.text));
        _exit(n < 0 ? -1 : wrong);
    }
    close(ends[1]);
    for (size_t at = 0; at + 1 < bytes;) {
        ssize_t n = read(ends[0], text + at, bytes - 1 - at);
        if (n <= 0)
            break;
        at += (size_t)n;
        text[at] = 0;
    }
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int has(const char *text, const char *part)
{
    if (!strstr(text, part))
        printf("# \"%s\" is not in: %s\n", part, text);
    return strstr(text, part) != NULL;
}

static void failures(const char *late, const char *named)
{
    TAP_CHECK(has(late, "GPU 0, layer 5, tile 3: a kernel failed:"), "a failure later on says where the GPU was");
    TAP_CHECK(has(late, "CUDA_LAUNCH_BLOCKING=1"), "and how to hear the kernel's name");
    TAP_CHECK(has(named, "GPU 0, layer 5, tile 3: kernel gather:"), "asked for, the kernel's name is told");
}

int main(void)
{
    char late[1024], named[1024];
    int count = -1;
    lf_err err;

    int wrong = text_of_a_failure(late, sizeof late, "0");         /* before this process knows the GPU: it forks */
    wrong |= text_of_a_failure(named, sizeof named, "1");
    err.text[0] = 0;
    if (lf_cuda_devices(&count, &err) != 0) {
        TAP_CHECK(count == 0, "without a GPU the count is 0");
        TAP_CHECK(err.text[0] != 0, "and there is a reason");
        tap_skip("a GPU answers", err.text);
    } else {
        TAP_CHECK(count >= 1, "a GPU answers");
        failures(late, named);
        TAP_CHECK(wrong >= 0 && !(wrong & KEPT), "an error that the GPU gets over is told once");
        TAP_CHECK(wrong >= 0 && !(wrong & FORGOT), "one that it does not is told again and again");
    }
    return tap_done();
}
