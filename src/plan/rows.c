/* SPDX-License-Identifier: Apache-2.0 */
/* Reads published rows. Fields are cut in place in the text of the file. */
#include "plan/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "util/alloc.h"

#define MOST_BYTES ((uint64_t)64 << 20)
#define MOST_COLUMNS 64

static const char *const text_names[LAP_ROW_TEXTS] = {
    [LAP_ROW_SOURCE] = "source",       [LAP_ROW_MODEL] = "model", [LAP_ROW_GPU] = "gpu",
    [LAP_ROW_PRECISION] = "precision", [LAP_ROW_NOTE] = "note",
};
static const char *const number_names[LAP_ROW_NUMBERS] = {
    [LAP_ROW_PARAMS_B] = "params_b",
    [LAP_ROW_LAYERS] = "layers",
    [LAP_ROW_HIDDEN] = "hidden",
    [LAP_ROW_FFN] = "ffn",
    [LAP_ROW_HEADS] = "heads",
    [LAP_ROW_KV_HEADS] = "kv_heads",
    [LAP_ROW_VOCAB] = "vocab",
    [LAP_ROW_SEQ] = "seq",
    [LAP_ROW_GBS] = "gbs",
    [LAP_ROW_MBS] = "mbs",
    [LAP_ROW_GPUS] = "gpus",
    [LAP_ROW_TP] = "tp",
    [LAP_ROW_PP] = "pp",
    [LAP_ROW_VP] = "vp",
    [LAP_ROW_CP] = "cp",
    [LAP_ROW_DP] = "dp",
    [LAP_ROW_TFLOPS] = "tflops_per_gpu",
    [LAP_ROW_TOKENS] = "tokens_per_s_per_gpu",
    [LAP_ROW_STEP_S] = "step_time_s",
};

/* What a column is: a text, LAP_ROW_TEXTS + a number, or neither. */
#define UNKNOWN (LAP_ROW_TEXTS + LAP_ROW_NUMBERS)

typedef struct reader {
    const char *path;
    char *at;
    size_t line;
    int columns[MOST_COLUMNS];
    size_t ncolumns;
    lap_plan_rows_t *rows;
} reader_t;

/* Cuts the next field out; its quotes go. False: its quotes do not end. *last_p: the line ends. */
static bool take_field(reader_t *reader, char **field_p, bool *last_p)
{
    char *from = reader->at, *to = reader->at;
    const bool quoted = *from == '"';
    from += quoted;
    *field_p = to;
    while (*from && (quoted || (*from != ',' && *from != '\n'))) {
        if (quoted && *from == '"' && from[1] != '"')
            break;
        from += quoted && *from == '"';
        reader->line += *from == '\n';
        *to++ = *from++;
    }
    if (quoted && *from++ != '"')
        return false;
    while (*from == '\r')
        from++;
    const char end = *from;
    if (end != ',' && end != '\n' && end != '\0')
        return false;
    while (to > *field_p && to[-1] == '\r')
        to--;
    reader->at = from + (end != '\0');
    *last_p = end != ',';
    *to = '\0';
    return true;
}

static lap_status_t not_csv(const reader_t *reader)
{
    return lap_error(LAP_ERR_INVALID, "%s:%zu: this is not CSV: a quote does not end", reader->path,
                     reader->line);
}

static lap_status_t read_names(reader_t *reader)
{
    bool last = false, known[UNKNOWN] = {false};
    while (!last) {
        char *name;
        int column = 0;
        if (!take_field(reader, &name, &last))
            return not_csv(reader);
        while (column < UNKNOWN &&
               strcmp(name, column < LAP_ROW_TEXTS ? text_names[column]
                                                   : number_names[column - LAP_ROW_TEXTS]) != 0)
            column++;
        if (reader->ncolumns == MOST_COLUMNS)
            return lap_error(LAP_ERR_INVALID, "%s:1: more than %d columns, expected fewer",
                             reader->path, MOST_COLUMNS);
        reader->columns[reader->ncolumns++] = column;
        if (column < UNKNOWN && known[column])
            return lap_error(LAP_ERR_INVALID, "%s:1: column %s is there twice, expected once",
                             reader->path, name);
        if (column < UNKNOWN)
            known[column] = true;
    }
    for (int i = 0; i < UNKNOWN; i++)
        if (!known[i] && i != LAP_ROW_NOTE)
            return lap_error(LAP_ERR_INVALID, "%s:1: there is no column %s, expected one",
                             reader->path,
                             i < LAP_ROW_TEXTS ? text_names[i] : number_names[i - LAP_ROW_TEXTS]);
    return LAP_OK;
}

static lap_status_t read_row(reader_t *reader, lap_plan_row_t *row)
{
    static char empty[] = "";
    bool last = false;
    *row = (lap_plan_row_t){.line = reader->line};
    for (int i = 0; i < LAP_ROW_TEXTS; i++)
        row->texts[i] = empty;
    for (size_t i = 0; !last; i++) {
        char *field, *end;
        if (!take_field(reader, &field, &last))
            return not_csv(reader);
        if (i >= reader->ncolumns || (last && i + 1 < reader->ncolumns))
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: the row has %zu fields, expected the %zu "
                             "of the first line",
                             reader->path, row->line, i + 1, reader->ncolumns);
        const int column = reader->columns[i];
        if (column < LAP_ROW_TEXTS)
            row->texts[column] = field;
        if (column < LAP_ROW_TEXTS || column == UNKNOWN || !*field)
            continue;
        const int which = column - LAP_ROW_TEXTS;
        const bool whole = which >= LAP_ROW_LAYERS && which <= LAP_ROW_DP;
        const double value = strtod(field, &end);
        if (*end || !(value > 0 && value < 1e15) || (whole && value != trunc(value)))
            return lap_error(
                LAP_ERR_INVALID, "%s:%zu: %s is '%s', expected a %snumber above 0, or nothing",
                reader->path, row->line, number_names[which], field, whole ? "whole " : "");
        row->numbers[which] = value;
    }
    return LAP_OK;
}

static lap_status_t read_rows(reader_t *reader)
{
    lap_plan_rows_t *rows = reader->rows;
    reader->line = 1;
    LAP_TRY(read_names(reader));
    while (*reader->at) {
        reader->line++;
        if (*reader->at == '\n') {
            reader->at++;
            continue;
        }
        lap_plan_row_t *list = lap_grow(rows->list, rows->count, &rows->room, sizeof(*list));
        if (!list)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for row %zu", rows->count + 1);
        rows->list = list;
        LAP_TRY(read_row(reader, &list[rows->count]));
        rows->count++;
    }
    if (rows->count == 0)
        return lap_error(LAP_ERR_INVALID, "%s has no rows after its first line, expected some",
                         reader->path);
    return LAP_OK;
}

lap_status_t lap_plan_rows_read(const char *path, lap_plan_rows_t *rows_p)
{
    uint64_t bytes;
    int fd;
    *rows_p = (lap_plan_rows_t){.count = 0};
    LAP_TRY(lap_file_open(path, &fd, &bytes));
    lap_status_t status = LAP_OK;
    if (bytes > MOST_BYTES)
        status = lap_error(LAP_ERR_INVALID, "%s has %llu bytes, expected at most %llu", path,
                           (unsigned long long)bytes, (unsigned long long)MOST_BYTES);
    else if (!(rows_p->text = lap_alloc((size_t)bytes + 1, 1)))
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to read %s", path);
    if (status == LAP_OK)
        status = lap_file_read(fd, path, rows_p->text, (size_t)bytes, 0);
    close(fd);
    LAP_TRY(status);
    reader_t reader = {.path = path, .at = rows_p->text, .rows = rows_p};
    static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8, as spreadsheets write it */
    if (strncmp(reader.at, mark, strlen(mark)) == 0)
        reader.at += strlen(mark);
    return read_rows(&reader);
}

void lap_plan_rows_clear(lap_plan_rows_t *rows)
{
    lap_free(rows->list);
    lap_free(rows->text);
    *rows = (lap_plan_rows_t){.count = 0};
}
