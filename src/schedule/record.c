/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the records of a trace say of steps besides their times: which signals they wait for and
 * raise, what they come after, and which rows they are about.
 */
#include <string.h>

#include "schedule/trace.h"

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
    size_t first = gathers && step->dst.stride ? step->dst.offset / step->dst.stride : 0;
    if (scatters)
        (void)lap_shard(schedule->m, schedule->size, step->peer, &first);
    record->first_row = first;
    record->rows = gathers || scatters ? step->src.rows : 0;
}

/* The same for a block of a GEMM: rows of the result, or of what it is a part of. */
static void note_block_rows(const lap_schedule_t *schedule, const lap_block_t *block,
                            lap_trace_record_t *record)
{
    const bool parts = schedule->kind == LAP_GEMM_RS || schedule->kind == LAP_GEMM_AR;
    const lap_range_t *range = parts ? &block->a : &block->d;
    const bool known = range->place == (parts ? LAP_INPUT : LAP_OUTPUT) && range->stride > 0;
    record->first_row = known ? range->offset / range->stride : 0;
    record->rows = known ? range->rows : 0;
}

static void note_deps(const lap_step_t *step, lap_trace_record_t *record)
{
    record->signal = LAP_NO_SIGNAL;
    record->from = -1;
    record->ndeps = step->ndeps;
    memcpy(record->deps, step->deps, sizeof(record->deps));
}

static void note_wait(int peer, uint32_t signal, uint32_t count, lap_trace_record_t *record)
{
    record->from = peer;
    record->awaited = signal;
    record->count = count;
}

void lap_record_step(const lap_schedule_t *schedule, uint32_t index, lap_trace_record_t *record)
{
    const lap_step_t *step = &schedule->steps[index];
    note_deps(step, record);
    if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE)
        record->signal = step->signal;
    if (step->kind == LAP_STEP_PUT && step->signal != LAP_NO_SIGNAL)
        note_put_rows(schedule, step, record);
    if (step->kind == LAP_STEP_WAIT)
        note_wait(step->peer, step->signal, step->count, record);
}

void lap_record_block(const lap_schedule_t *schedule, uint32_t index, const lap_block_t *block,
                      lap_trace_record_t *record)
{
    note_deps(&schedule->steps[index], record);
    note_block_rows(schedule, block, record);
    if (block->raise_signal != LAP_NO_SIGNAL)
        record->signal = block->raise_signal;
    if (block->wait_signal != LAP_NO_SIGNAL)
        note_wait(block->wait_peer, block->wait_signal, block->wait_count, record);
}
