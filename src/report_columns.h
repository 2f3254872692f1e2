/* SPDX-License-Identifier: Apache-2.0
 *
 * report_columns: the table that all formats of the report are printed from.  Floor 5; used by report*.c, and by
 * bench_*.c for its own table.
 */
#ifndef LF_REPORT_COLUMNS_H
#define LF_REPORT_COLUMNS_H

#include "report.h"

typedef enum lf_column_type {
    LF_COLUMN_TEXT,                        /* const char *, NULL: absent */
    LF_COLUMN_CHARS,                       /* char array */
    LF_COLUMN_INT,                         /* int64_t */
    LF_COLUMN_COUNT,                       /* int64_t; negative: absent */
    LF_COLUMN_SMALL,                       /* int */
    LF_COLUMN_STATUS,                      /* lf_report_status */
    LF_COLUMN_REAL                         /* double with so many decimals; NaN: absent */
} lf_column_type;

typedef struct lf_column {
    const char *key;
    lf_column_type type;
    int decimals;
    size_t at;
} lf_column;

/* The seconds of each phase, double [LF_PHASES] at `at`. */
#define LF_PHASE_COLUMN(key, phase, at) { key, LF_COLUMN_REAL, 6, (at) + (phase) * sizeof(double) }
#define LF_PHASE_COLUMNS(at)                                                                                         \
    LF_PHASE_COLUMN("projections_s", LF_PHASE_PROJECTIONS, at), LF_PHASE_COLUMN("indexer_s", LF_PHASE_INDEXER, at),  \
    LF_PHASE_COLUMN("attention_s", LF_PHASE_ATTENTION, at), LF_PHASE_COLUMN("moe_s", LF_PHASE_MOE, at),              \
    LF_PHASE_COLUMN("mhc_s", LF_PHASE_MHC, at), LF_PHASE_COLUMN("head_s", LF_PHASE_HEAD, at),                        \
    LF_PHASE_COLUMN("communication_s", LF_PHASE_COMMUNICATION, at),                                                  \
    LF_PHASE_COLUMN("write_wait_s", LF_PHASE_WRITE_WAIT, at)
_Static_assert(LF_PHASES == 8, "a phase without a column");

extern const lf_column lf_report_columns[];             /* of lf_report; all tables end with a NULL key */
extern const lf_column lf_rank_columns[];               /* of lf_report_rank */
extern const lf_column lf_row_columns[];                /* of lf_row_shown */

/* A prompt as it is shown: its row, and what follows from it. */
typedef struct lf_row_shown {
    lf_report_row row;
    double ttft_ms, compute_s, durable_s, rate;
} lf_row_shown;

void lf_row_show(lf_row_shown *s, const lf_report_row *row);

/* The value as text, owned by the caller; NULL: absent. */
char *lf_column_text(const lf_column *c, const void *base);
/* The same value: a real is rounded to its decimals, absent is null.  A new reference. */
json_t *lf_column_json(const lf_column *c, const void *base);

/* All of them into an object. */
void lf_columns_json(json_t *object, const lf_column *c, const void *base);
/* A field of CSV, quoted where it has to be. */
void lf_csv_field(FILE *out, const char *text);

#endif
