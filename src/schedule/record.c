/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the records of a trace say of steps besides their times: which signals they wait for and
 * raise, what they come after, and which rows they are about.
 */
#include <stdio.h>
#include <string.h>

#include "schedule/range.h"
#include "schedule/trace.h"
#include "util/digest.h"

/*
 * Which rows of the matrix of all ranks a put carries: what is gathered lies there as it is, parts
 * of sums go to whose rows they are.
 */
static void note_put_rows(const lap_schedule_t *schedule, const lap_step_t *step,
                          lap_trace_record_t *record)
{
    const lap_op_kind_t kind = schedule->kind;
    const bool gathers = kind == LAP_AG_GEMM || kind == LAP_BULK_AG || kind == LAP_EXTERNAL_AG;
    const bool scatters = kind == LAP_GEMM_RS || kind == LAP_BULK_RS || kind == LAP_EXTERNAL_RS;
    const lap_range_t *d = lap_step_range(schedule, step, LAP_ROLE_D);
    size_t first = gathers && d->stride ? d->offset / d->stride : 0;
    if (scatters)
        (void)lap_shard(schedule->m, schedule->size, step->signal.peer, &first);
    record->first_row = first;
    record->rows = gathers || scatters ? d->rows : 0;
}

/* The same for a tile of a GEMM: rows of the result, or of what it is a part of. */
static void note_tile_rows(const lap_schedule_t *schedule, const lap_tile_t *tile,
                           lap_trace_record_t *record)
{
    const bool parts = schedule->kind == LAP_GEMM_RS || schedule->kind == LAP_GEMM_AR;
    const lap_range_t *range = lap_tile_range(schedule, tile, parts ? LAP_ROLE_A : LAP_ROLE_D);
    const bool known = range->place == (parts ? LAP_INPUT : LAP_OUTPUT) && range->stride > 0;
    record->first_row = known ? range->offset / range->stride : 0;
    record->rows = known ? range->rows : 0;
}

static void note_step(const lap_schedule_t *schedule, uint32_t index, lap_trace_record_t *record)
{
    const lap_step_t *step = &schedule->steps[index];
    record->rank = schedule->rank;
    record->kind = (uint32_t)step->kind;
    record->stream = step->stream;
    record->step = index;
    record->group.size = schedule->size;
    record->layer = -1;
    record->peer = record->from = -1;
    record->signal = LAP_NO_SIGNAL;
    record->ndeps = step->ndeps;
    for (uint16_t d = 0; d < step->ndeps && d < LAP_RECORD_DEPS; d++)
        record->deps[d] = lap_step_dep(schedule, step, d);
}

static void note_wait(const lap_signal_t *signal, lap_trace_record_t *record)
{
    record->peer = record->from = signal->peer;
    record->awaited = signal->word;
    record->count = signal->count;
}

static void note_raise(const lap_signal_t *signal, lap_trace_record_t *record)
{
    record->peer = signal->peer;
    record->signal = signal->word;
    record->bytes = signal->bytes;
}

void lap_record_step(const lap_schedule_t *schedule, uint32_t index, lap_trace_record_t *record)
{
    const lap_step_t *step = &schedule->steps[index];
    note_step(schedule, index, record);
    if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE)
        note_raise(&step->signal, record);
    if (step->kind == LAP_STEP_PUT && step->signal.word != LAP_NO_SIGNAL)
        note_put_rows(schedule, step, record);
    if (step->kind == LAP_STEP_WAIT)
        note_wait(&step->signal, record);
}

void lap_record_tile(const lap_schedule_t *schedule, uint32_t index, const lap_tile_t *tile,
                     lap_trace_record_t *record)
{
    const lap_gemm_shape_t shape = lap_tile_shape(schedule, &schedule->steps[index], tile);
    note_step(schedule, index, record);
    note_tile_rows(schedule, tile, record);
    record->m = (uint32_t)shape.rows;
    record->n = (uint32_t)shape.n;
    record->k = (uint32_t)shape.k;
    if (tile->wait.word != LAP_NO_SIGNAL)
        note_wait(&tile->wait, record);
    if (tile->raise.word != LAP_NO_SIGNAL)
        note_raise(&tile->raise, record);
}

void lap_record_set_ready(lap_trace_record_t *record)
{
    if (record->span.ready == 0)
        record->span.ready = record->span.begin;
    if (record->flight.ready == 0)
        record->flight.ready = record->flight.begin;
}

/* ---- records of a step ---- */

const char *lap_traffic_name(lap_traffic_t traffic)
{
    static const char *const names[LAP_TRAFFICS] = {"none", "tp", "pp", "cp", "dp"};
    return (unsigned)traffic < LAP_TRAFFICS ? names[traffic] : "none";
}

lap_op_text_t lap_op_text(lap_op_kind_t kind, const char *method)
{
    lap_op_text_t text;
    snprintf(text.text, sizeof(text.text), "%s %s", lap_op_kind_name(kind), method ? method : "");
    return text;
}

void lap_trace_group_add(lap_trace_group_t *group, int rank)
{
    const int32_t number = rank;
    group->digest =
        lap_digest(group->size > 0 ? group->digest : LAP_DIGEST_INIT, &number, sizeof(number));
    group->size++;
}

static int32_t in_world(const lap_trace_label_t *label, int32_t rank)
{
    return rank < 0 || !label->ranks ? rank : label->ranks[rank];
}

void lap_record_label(lap_trace_record_t *record, const lap_trace_label_t *label, uint32_t number)
{
    record->rank = in_world(label, record->rank);
    record->peer = in_world(label, record->peer);
    record->from = in_world(label, record->from);
    record->call = number;
    record->group = label->group;
    record->layer = label->layer;
    record->traffic = (uint32_t)label->traffic;
    record->live_bytes = label->live_bytes;
    record->predicted_us = label->predicted_us;
    snprintf(record->name, sizeof(record->name), "%s", label->name);
    snprintf(record->op, sizeof(record->op), "%s", label->op);
}
