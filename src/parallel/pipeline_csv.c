/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline tables as files: see pipeline.h. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "parallel/pipeline.h"
#include "util/alloc.h"

/* ---- reading ---- */

/* Kinds of actions that follow from the others. */
static bool is_implied(const char *name)
{
    static const char *const names[] = {"SEND_F",  "RECV_F",  "SEND_B",      "RECV_B",
                                        "UNSHARD", "RESHARD", "REDUCE_GRAD", NULL};
    size_t i = 0;
    while (names[i] && strcmp(names[i], name) != 0)
        i++;
    return names[i] != NULL;
}

/* Digits at *text, which then points after them; UINT32_MAX: none, or too large a number. */
static uint32_t read_number(const char **text)
{
    uint32_t number = isdigit((unsigned char)**text) ? 0 : UINT32_MAX;
    for (; isdigit((unsigned char)**text); (*text)++)
        number = number < LAP_PIPE_MOST ? 10 * number + (uint32_t)(**text - '0') : LAP_PIPE_MOST;
    return number < LAP_PIPE_MOST ? number : UINT32_MAX;
}

/* The beginning of a cell, for a sentence: what no terminal should be sent is \xNN. */
enum { SHOWN = 40 };
static const char *show_cell(const char *cell, char text[4 * SHOWN + 1])
{
    size_t used = 0;
    for (int i = 0; i < SHOWN && cell[i]; i++) {
        const unsigned char byte = (unsigned char)cell[i];
        const bool plain = byte >= ' ' && byte < 0x7f;
        used += (size_t)snprintf(text + used, 5, plain ? "%c" : "\\x%02x", byte);
    }
    text[used] = '\0';
    return text;
}

static lap_status_t read_action(lap_pipeline_t *pipeline, const char *text, const char *name)
{
    const uint32_t rank = pipeline->ranks - 1;
    const char *rest = text, *letters = "FBIW";
    char word[16], shown[4 * SHOWN + 1];
    const uint32_t stage = read_number(&rest);
    const size_t length = strspn(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    snprintf(word, sizeof(word), "%.*s", (int)length, rest);
    rest += length;
    if (stage != UINT32_MAX && is_implied(word))
        return LAP_OK;
    const uint32_t micro = read_number(&rest);
    const char *letter = length == 1 ? strchr(letters, word[0]) : NULL;
    if (stage == UINT32_MAX || micro == UINT32_MAX || !letter || *rest != '\0')
        return lap_error(LAP_ERR_INVALID,
                         "%s, line %u: the action is '%s', expected one such as 0F3: a stage, F, "
                         "B, I or W, and a micro-batch, both less than %u",
                         name, (unsigned)rank + 1, show_cell(text, shown), LAP_PIPE_MOST);
    pipeline->stages = stage >= pipeline->stages ? stage + 1 : pipeline->stages;
    pipeline->micros = micro >= pipeline->micros ? micro + 1 : pipeline->micros;
    lap_pipe_add(pipeline, rank, (lap_pipe_work_t)(letter - letters), stage, micro);
    return pipeline->status;
}

/* Takes the spaces around a cell away. */
static char *trim(char *cell)
{
    if (strncmp(cell, "\xef\xbb\xbf", 3) == 0) /* a byte-order mark */
        cell += 3;
    cell += strspn(cell, " \t\r\n\"");
    size_t length = strlen(cell);
    while (length > 0 && strchr(" \t\r\n\"", cell[length - 1]))
        cell[--length] = '\0';
    return cell;
}

static lap_status_t read_line(lap_pipeline_t *pipeline, char *line, const char *name)
{
    uint32_t room = pipeline->ranks;
    lap_pipe_row_t *rows =
        lap_realloc(pipeline->rows, room, (size_t)room + 1, sizeof(*pipeline->rows));
    if (!rows)
        return lap_error(LAP_ERR_NO_MEMORY, "%s: no memory for %u ranks", name, (unsigned)room + 1);
    pipeline->rows = rows;
    if (++pipeline->ranks > LAP_PIPE_MOST)
        return lap_error(LAP_ERR_INVALID, "%s has more than %u lines, expected one per rank", name,
                         LAP_PIPE_MOST);
    for (char *cell = line, *next; cell; cell = next) {
        next = strchr(cell, ',');
        if (next)
            *next++ = '\0';
        const char *text = trim(cell);
        if (*text)
            LAP_TRY(read_action(pipeline, text, name));
    }
    return LAP_OK;
}

lap_status_t lap_pipeline_read(FILE *file, const char *name, lap_pipeline_t *pipeline_p)
{
    char *line = NULL;
    size_t room = 0;
    lap_status_t status = LAP_OK;
    *pipeline_p = (lap_pipeline_t){.ranks = 0};
    errno = 0;
    for (ssize_t length; status == LAP_OK && (length = getline(&line, &room, file)) >= 0;) {
        if (strlen(line) != (size_t)length)
            status = lap_error(LAP_ERR_INVALID, "%s, line %u has a byte 0, expected text", name,
                               (unsigned)pipeline_p->ranks + 1);
        else if (*trim(line)) /* an empty line at the end is no rank */
            status = read_line(pipeline_p, line, name);
    }
    if (status == LAP_OK && (ferror(file) || (errno != 0 && !feof(file))))
        status = lap_error(LAP_ERR_SYSTEM, "cannot read %s: %s", name, strerror(errno));
    free(line);
    if (status == LAP_OK && pipeline_p->stages == 0)
        status =
            lap_error(LAP_ERR_INVALID, "%s has no actions, expected a line of them per rank", name);
    return status;
}

/* ---- writing ---- */

lap_status_t lap_pipeline_write(const lap_pipeline_t *pipeline, FILE *file)
{
    const lap_pipe_costs_t unit = {.forward = 1, .input_grad = 0.5, .weight_grad = 0.5};
    const lap_pipe_costs_t split = {.forward = 1, .input_grad = 1, .weight_grad = 1};
    bool parts = false;
    for (uint32_t rank = 0; rank < pipeline->ranks; rank++)
        for (uint32_t i = 0; i < pipeline->rows[rank].nactions; i++)
            parts = parts || pipeline->rows[rank].actions[i].work == LAP_PIPE_INPUT_GRAD;
    lap_pipe_times_t times;
    lap_status_t status = lap_pipeline_simulate(pipeline, parts ? &split : &unit, &times);
    for (uint32_t rank = 0; status == LAP_OK && rank < pipeline->ranks; rank++) {
        uint64_t column = 0;
        for (uint32_t i = 0; i < pipeline->rows[rank].nactions; i++) {
            char text[LAP_PIPE_TEXT];
            for (; column < (uint64_t)times.begins[rank][i]; column++)
                fputc(',', file);
            fprintf(file, "%s%s", lap_pipe_text(&pipeline->rows[rank].actions[i], text),
                    i + 1 < pipeline->rows[rank].nactions ? "," : "");
            column++;
        }
        fputc('\n', file);
    }
    lap_pipe_times_clear(&times, pipeline->ranks);
    if (status == LAP_OK && ferror(file))
        status = lap_error(LAP_ERR_SYSTEM, "cannot write the table: %s", strerror(errno));
    return status;
}
