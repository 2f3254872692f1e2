/* SPDX-License-Identifier: Apache-2.0 */
#include "request.h"

#include "request_line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BAD_SHOWN = 20 };

typedef struct reader {
    lf_requests *out;
    int64_t room;
    json_t *seen;                          /* custom_id -> line */
    const char *where;
    int64_t bad, bad_line[BAD_SHOWN];
    lf_err first;
} reader;

static void request_free(lf_request *q)
{
    free(q->id);
    free(q->ids);
}

void lf_requests_free(lf_requests *r)
{
    for (int64_t i = 0; i < r->n; i++)
        request_free(&r->v[i]);
    free(r->v);
    *r = (lf_requests){ 0, NULL, 0, 0 };
}

static int unique(reader *rd, const lf_request *q, lf_err *err)
{
    json_t *old = json_object_get(rd->seen, q->id);

    if (old)
        return lf_fail(err, "custom_id \"%s\" is already that of line %lld", q->id,
                       (long long)json_integer_value(old));
    json_object_set_new(rd->seen, q->id, json_integer(q->line));
    return 0;
}

static void keep(reader *rd, const lf_request *q)
{
    lf_requests *r = rd->out;

    if (r->n == rd->room) {
        rd->room = rd->room ? 2 * rd->room : 16;
        r->v = lf_realloc(r->v, (size_t)rd->room * sizeof *r->v);
    }
    r->v[r->n] = *q;
    r->v[r->n].place = r->n;
    r->n++;
    r->tokens += q->tokens;
    r->texts += q->source == LF_FROM_TEXT || q->source == LF_FROM_TEXT_FILE;
}

static void line_take(reader *rd, const lf_request_context *c, const char *text, size_t n, int64_t line)
{
    lf_request q = { .line = line };
    lf_err err;

    if (!lf_request_line(&q, c, text, n, &err) && !unique(rd, &q, &err)) {
        keep(rd, &q);
        return;
    }
    request_free(&q);
    if (rd->bad == 0)
        rd->first = err;
    if (rd->bad < BAD_SHOWN)
        rd->bad_line[rd->bad] = line;
    rd->bad++;
}

/* The first bad line with its reason, the others by number. */
static int bad_lines(const reader *rd, lf_err *err)
{
    char others[512] = "";
    size_t n = 0;
    int64_t shown = lf_min(rd->bad, BAD_SHOWN);

    for (int64_t i = 1; i < shown; i++)
        n += (size_t)snprintf(others + n, sizeof others - n, "%s%lld", i > 1 ? ", " : "",
                              (long long)rd->bad_line[i]);
    if (rd->bad > shown)
        snprintf(others + n, sizeof others - n, ", ...");
    if (rd->bad == 1)
        return lf_fail(err, "%s:%lld: %.600s", rd->where, (long long)rd->bad_line[0], rd->first.text);
    return lf_fail(err, "%s:%lld: %.300s (%lld more bad line%s: %s)", rd->where, (long long)rd->bad_line[0],
                   rd->first.text, (long long)rd->bad - 1, lf_s(rd->bad - 1), others);
}

static int blank(const char *text, size_t n)
{
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\t' || text[n - 1] == '\r' || text[n - 1] == '\n'))
        n--;
    return n == 0;
}

/* -1 with err when the stream itself fails; bad lines are counted. */
static int lines_take(reader *rd, const lf_request_context *c, FILE *in, lf_err *err)
{
    char *buf = NULL;
    size_t room = 0;
    int64_t line = 0;
    ssize_t n;

    errno = 0;
    while ((n = getline(&buf, &room, in)) > 0) {
        size_t bom = ++line == 1 && n >= 3 && !memcmp(buf, "\xef\xbb\xbf", 3) ? 3 : 0;
        if (!blank(buf + bom, (size_t)n - bom))
            line_take(rd, c, buf + bom, (size_t)n - bom, line);
        errno = 0;
    }
    int why = errno;
    free(buf);
    if (ferror(in) || !feof(in))
        return lf_fail(err, "%s: line %lld cannot be read: %s", rd->where, (long long)line + 1, strerror(why));
    return 0;
}

int lf_requests_parse(lf_requests *r, FILE *in, const char *where, const char *dir,
                      const lf_request_rules *rules, lf_err *err)
{
    reader rd = { .out = r, .where = where, .seen = json_object() };
    lf_request_context c = { rules, dir };

    *r = (lf_requests){ 0, NULL, 0, 0 };
    int bad = lines_take(&rd, &c, in, err);
    json_decref(rd.seen);
    if (!bad && rd.bad)
        bad = bad_lines(&rd, err);
    else if (!bad && r->n == 0)
        bad = lf_fail(err, "%s: there is no prompt in it; a line looks like "
                      "{\"custom_id\": \"a\", \"prompt\": \"...\"}", where);
    if (bad)
        lf_requests_free(r);
    return bad;
}

static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? lf_printf("%.*s", (int)(slash - path + 1), path) : lf_strdup("");
}

int lf_requests_read(lf_requests *r, const char *path, const lf_request_rules *rules, lf_err *err)
{
    struct stat st;

    *r = (lf_requests){ 0, NULL, 0, 0 };
    if (!strcmp(path, "-"))
        return lf_requests_parse(r, stdin, "(stdin)", "", rules, err);
    FILE *in = fopen(path, "rb");
    if (!in)
        return lf_fail(err, "cannot open the prompts file %s: %s", path, strerror(errno));
    if (fstat(fileno(in), &st) || S_ISDIR(st.st_mode)) {
        fclose(in);
        return lf_fail(err, "the prompts file %s is a directory; it takes a file of JSON lines", path);
    }
    if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) {
        fclose(in);
        return lf_fail(err, "the prompts file %s is a device; it takes a file of JSON lines, or - for stdin", path);
    }
    char *dir = directory_of(path);
    int bad = lf_requests_parse(r, in, path, dir, rules, err);
    free(dir);
    fclose(in);
    return bad;
}

void lf_requests_shard(lf_requests *r, int64_t shard, int64_t shards)
{
    int64_t kept = 0;

    r->tokens = r->texts = 0;
    for (int64_t i = 0; i < r->n; i++) {
        lf_request *q = &r->v[i];
        if (q->place % shards != shard) {
            request_free(q);
            continue;
        }
        r->tokens += q->tokens;
        r->texts += q->source == LF_FROM_TEXT || q->source == LF_FROM_TEXT_FILE;
        r->v[kept++] = *q;
    }
    r->n = kept;
}
