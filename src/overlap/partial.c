/* SPDX-License-Identifier: Apache-2.0 */
/* Partial results, their slots and their sums: see partial.h. */
#include "overlap/partial.h"

lap_columns_t lap_all_columns(const lap_problem_t *p)
{
    return (lap_columns_t){0, p->n};
}

lap_columns_t lap_split_columns(const lap_problem_t *p, size_t i)
{
    size_t part = p->n / p->num_splits, more = p->n % p->num_splits;
    return (lap_columns_t){i * part + (i < more ? i : more), part + (i < more)};
}

size_t lap_columns_bytes(const lap_problem_t *p, lap_columns_t columns)
{
    return columns.count * lap_dtype_size(p->dtype);
}

lap_range_t lap_partial(const lap_problem_t *p, lap_columns_t columns)
{
    return lap_range_packed(LAP_SCRATCH, p->rank, p->m * columns.begin * lap_dtype_size(p->dtype),
                            p->m, lap_columns_bytes(p, columns));
}

lap_range_t lap_partial_of(const lap_problem_t *p, int owner, lap_columns_t columns)
{
    size_t first;
    lap_range_t range = lap_partial(p, columns);
    range.rows = lap_shard(p->m, p->size, owner, &first);
    range.offset += first * range.stride;
    return range;
}

static size_t k_bytes(const lap_problem_t *p)
{
    return lap_shard(p->k, p->size, p->rank, NULL) * lap_dtype_size(p->dtype);
}

lap_range_t lap_partial_input(const lap_problem_t *p, size_t first, size_t rows)
{
    return lap_range_packed(LAP_INPUT, p->rank, first * k_bytes(p), rows, k_bytes(p));
}

lap_range_t lap_partial_weight(const lap_problem_t *p, lap_columns_t columns)
{
    return lap_range_packed(LAP_WEIGHT, p->rank, columns.begin * k_bytes(p), columns.count,
                            k_bytes(p));
}

lap_range_t lap_slot(const lap_problem_t *p, int owner, int source, lap_columns_t columns)
{
    size_t rows = lap_rows_of(p, owner), index = (size_t)(source - (source > owner));
    size_t before = (size_t)(p->size - 1) * columns.begin + index * columns.count;
    return lap_range_packed(LAP_SYMMETRIC, owner, before * rows * lap_dtype_size(p->dtype), rows,
                            lap_columns_bytes(p, columns));
}

size_t lap_slots_bytes(const lap_problem_t *p)
{
    return (size_t)(p->size - 1) * lap_shard(p->capacity, p->size, 0, NULL) *
           lap_columns_bytes(p, lap_all_columns(p));
}

size_t lap_row_blocks(const lap_problem_t *p, int owner)
{
    size_t rows = lap_rows_of(p, owner);
    return rows / p->block_rows + (rows % p->block_rows > 0);
}

uint32_t lap_add_partial(const lap_problem_t *p, lap_schedule_t *s, lap_columns_t columns)
{
    uint32_t gemm = lap_add_gemm(s, LAP_STREAM_COMPUTE, lap_partial_weight(p, columns), false);
    lap_gemm_rows(s, lap_partial_input(p, 0, p->m), lap_partial(p, columns));
    return gemm;
}

void lap_add_alone(const lap_problem_t *p, lap_schedule_t *s)
{
    if (p->m == 0)
        return;
    lap_add_gemm(s, LAP_STREAM_COMPUTE, lap_partial_weight(p, lap_all_columns(p)), false);
    lap_gemm_rows(s, lap_partial_input(p, 0, p->m), s->output);
}

void lap_add_partial_blocks(const lap_problem_t *p, lap_schedule_t *s, int owner, lap_range_t own)
{
    size_t first, rows = lap_shard(p->m, p->size, owner, &first);
    lap_range_t dst = owner == p->rank ? own : lap_slot(p, owner, p->rank, lap_all_columns(p));
    for (size_t at = 0; at < rows; at += p->block_rows) {
        lap_range_t d = dst;
        d.offset += at * d.stride;
        d.rows = rows - at < p->block_rows ? rows - at : p->block_rows;
        lap_block_t *block = lap_gemm_rows(s, lap_partial_input(p, first + at, d.rows), d);
        if (owner == p->rank)
            continue;
        block->raise_peer = owner;
        block->raise_signal = lap_signal_data(p->rank);
        if (at == 0) {
            block->wait_peer = owner;
            block->wait_signal = lap_signal_credit(p->size, owner);
            block->wait_count = 1;
            lap_expect(s, block->wait_signal);
        }
    }
}

uint32_t lap_add_sum(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                     lap_columns_t columns, lap_range_t own, lap_range_t dst)
{
    uint32_t step = lap_add_reduce(s, stream, dst);
    for (int source = 0; source < p->size; source++)
        lap_reduce_source(s, source == p->rank ? own : lap_slot(p, p->rank, source, columns));
    return step;
}
