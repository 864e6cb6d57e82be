/* SPDX-License-Identifier: Apache-2.0 */
/* Partial results, their slots and their sums, and what else builders share: see partial.h. */
#include "overlap/partial.h"

#include "transport/transport.h"

#define ALIGNMENT 64u    /* a multiple of every element's size, and of what vectors like */
#define SCALE_STRIDE 16u /* from scale to scale: cuBLASLt takes them at such addresses only */

lap_columns_t lap_all_columns(const lap_problem_t *p)
{
    return (lap_columns_t){0, lap_kind_sums_x(p->kind) ? p->desc.cols : p->n};
}

lap_columns_t lap_split_columns(const lap_problem_t *p, size_t i)
{
    lap_columns_t columns;
    columns.count = lap_shard_features(p->n, (int)p->desc.num_splits, (int)i, &columns.begin);
    return columns;
}

lap_range_t lap_weight(const lap_problem_t *p, size_t n, size_t k, lap_columns_t columns)
{
    const size_t element = lap_dtype_size(p->types.b);
    if (p->layout == LAP_FORWARD)
        return lap_range_packed(LAP_WEIGHT, p->rank, columns.begin * k * element, columns.count,
                                k * element);
    return (lap_range_t){LAP_WEIGHT, p->rank, columns.begin * element, k, columns.count * element,
                         n * element};
}

lap_range_t lap_own_scale(const lap_problem_t *p)
{
    return lap_range_packed(LAP_SCALE, p->rank, 0, 1, sizeof(float));
}

size_t lap_align(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

lap_range_t lap_scale_range(int rank, size_t bytes, int first, int count)
{
    return (lap_range_t){
        LAP_SYMMETRIC, rank,          lap_align(bytes) + (size_t)first * SCALE_STRIDE,
        (size_t)count, sizeof(float), SCALE_STRIDE};
}

size_t lap_scales_end(size_t bytes, int count)
{
    return lap_align(bytes) + (size_t)count * SCALE_STRIDE;
}

/*
 * The layouts: a [m, k] times b, whichever way round that is stored, is d [m, n]; or a [m, n]
 * transposed times b [m, k] is d [n, k], summed over the active rows.
 */
void lap_add_local_gemm(const lap_problem_t *p, lap_schedule_t *s)
{
    const bool wgrad = p->layout == LAP_WGRAD;
    const size_t n = lap_n_of(p, p->rank), k = lap_k_of(p, p->rank);
    const size_t rows = wgrad ? n : p->m, columns = wgrad ? k : n;
    if (!lap_kind_is_local(p->kind) || rows == 0 || columns == 0)
        return;
    lap_range_t a =
        lap_range_packed(LAP_INPUT, p->rank, 0, p->m, (wgrad ? n : k) * lap_dtype_size(p->types.a));
    s->output =
        lap_range_packed(LAP_OUTPUT, p->rank, 0, rows, columns * lap_dtype_size(p->types.out));
    lap_add_gemm(s, LAP_STREAM_COMPUTE,
                 lap_weight(p, columns, wgrad ? p->m : k, (lap_columns_t){0, columns}), false);
    lap_gemm_rows(s, a, s->output);
}

size_t lap_columns_bytes(const lap_problem_t *p, lap_columns_t columns)
{
    return columns.count * lap_dtype_size(p->types.wire);
}

lap_range_t lap_partial(const lap_problem_t *p, lap_columns_t columns)
{
    if (lap_kind_sums_x(p->kind))
        return lap_range_packed(LAP_MOVED, p->rank, 0, p->m, lap_columns_bytes(p, columns));
    return lap_range_packed(LAP_SCRATCH, p->rank,
                            p->m * columns.begin * lap_dtype_size(p->types.wire), p->m,
                            lap_columns_bytes(p, columns));
}

lap_range_t lap_partial_of(const lap_problem_t *p, int owner, lap_columns_t columns)
{
    size_t first;
    lap_range_t range = lap_partial(p, columns);
    range.rows = lap_shard(p->m, p->size, owner, &first);
    range.offset += first * range.stride;
    return range;
}

lap_range_t lap_partial_input(const lap_problem_t *p, size_t first, size_t rows)
{
    const size_t row_bytes = lap_k_of(p, p->rank) * lap_dtype_size(p->types.a);
    return lap_range_packed(LAP_INPUT, p->rank, first * row_bytes, rows, row_bytes);
}

lap_range_t lap_partial_weight(const lap_problem_t *p, lap_columns_t columns)
{
    return lap_weight(p, p->n, lap_k_of(p, p->rank), columns);
}

lap_range_t lap_slot(const lap_problem_t *p, int owner, int source, lap_columns_t columns)
{
    size_t rows = lap_rows_of(p, owner), index = (size_t)(source - (source > owner));
    size_t before = (size_t)(p->size - 1) * columns.begin + index * columns.count;
    return lap_range_packed(LAP_SYMMETRIC, owner, before * rows * lap_dtype_size(p->types.wire),
                            rows, lap_columns_bytes(p, columns));
}

/* The slots, without the rest. */
static size_t data_bytes(const lap_problem_t *p)
{
    return (size_t)(p->size - 1) * lap_shard(p->capacity, p->size, 0, NULL) *
           lap_columns_bytes(p, lap_all_columns(p));
}

size_t lap_slots_bytes(const lap_problem_t *p)
{
    return lap_is_scaled(p) ? lap_scales_end(data_bytes(p), p->size) : data_bytes(p);
}

/* Where the scale of `source` arrives. */
static lap_range_t slot_scale(const lap_problem_t *p, int owner, int source)
{
    return lap_scale_range(owner, data_bytes(p), source, 1);
}

size_t lap_row_blocks(const lap_problem_t *p, int owner)
{
    size_t rows = lap_rows_of(p, owner);
    return rows / p->desc.block_rows + (rows % p->desc.block_rows > 0);
}

uint32_t lap_add_partial(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                         lap_columns_t columns)
{
    uint32_t gemm = lap_add_gemm(s, stream, lap_partial_weight(p, columns), false);
    lap_gemm_rows(s, lap_partial_input(p, 0, p->m), lap_partial(p, columns));
    return gemm;
}

void lap_add_single_rank(const lap_problem_t *p, lap_schedule_t *s)
{
    if (p->m == 0)
        return;
    lap_add_gemm(s, LAP_STREAM_COMPUTE, lap_partial_weight(p, lap_all_columns(p)), false);
    lap_gemm_rows(s, lap_partial_input(p, 0, p->m), s->output);
}

static uint32_t add_part(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int owner,
                         lap_columns_t columns, lap_range_t src, uint32_t signal)
{
    uint32_t first = s->nsteps;
    if (lap_is_scaled(p) && columns.begin == 0)
        lap_add_put(s, stream, owner, LAP_NO_SIGNAL, lap_own_scale(p),
                    slot_scale(p, owner, p->rank));
    lap_add_put(s, stream, owner, signal, src, lap_slot(p, owner, p->rank, columns));
    return first;
}

uint32_t lap_add_part(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int owner,
                      lap_columns_t columns, lap_range_t src)
{
    return add_part(p, s, stream, owner, columns, src, lap_signal_data(p->rank));
}

/* The first columns wait for the credit of their owner. */
static void await_owner(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int owner,
                        lap_columns_t columns)
{
    if (columns.begin == 0)
        lap_await_credit(p, s, stream, owner);
}

static uint32_t add_in_turn(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                            lap_columns_t columns)
{
    uint32_t first = LAP_NO_STEP;
    for (int i = 1; i < p->size; i++) {
        const int owner = lap_peer_at(p, i);
        if (lap_rows_of(p, owner) == 0)
            continue;
        await_owner(p, s, stream, owner, columns);
        const uint32_t part =
            lap_add_part(p, s, stream, owner, columns, lap_partial_of(p, owner, columns));
        first = first == LAP_NO_STEP ? part : first;
    }
    return first;
}

/* First all credits, then all rows, then all signals. */
static uint32_t add_together(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                             lap_columns_t columns)
{
    for (int i = 1; i < p->size; i++)
        if (lap_rows_of(p, lap_peer_at(p, i)) > 0)
            await_owner(p, s, stream, lap_peer_at(p, i), columns);
    const uint32_t first = s->nsteps;
    for (int i = 1; i < p->size; i++) {
        const int owner = lap_peer_at(p, i);
        if (lap_rows_of(p, owner) > 0)
            add_part(p, s, stream, owner, columns, lap_partial_of(p, owner, columns),
                     LAP_NO_SIGNAL);
    }
    if (s->nsteps == first)
        return LAP_NO_STEP;
    for (int i = 1; i < p->size; i++) {
        const lap_range_t rows = lap_partial_of(p, lap_peer_at(p, i), columns);
        if (rows.rows > 0)
            lap_add_raise(s, stream, lap_peer_at(p, i), lap_signal_data(p->rank),
                          lap_range_bytes(&rows));
    }
    return first;
}

uint32_t lap_add_parts(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                       lap_columns_t columns)
{
    return p->lanes ? add_together(p, s, stream, columns) : add_in_turn(p, s, stream, columns);
}

void lap_add_scales(const lap_problem_t *p, lap_schedule_t *s)
{
    for (int i = 1; i < p->size && lap_is_scaled(p); i++) {
        int owner = lap_peer_at(p, i);
        if (lap_rows_of(p, owner) == 0)
            continue;
        lap_await_credit(p, s, LAP_STREAM_COMPUTE, owner);
        lap_add_put(s, LAP_STREAM_COMPUTE, owner, LAP_NO_SIGNAL, lap_own_scale(p),
                    slot_scale(p, owner, p->rank));
    }
}

void lap_add_partial_blocks(const lap_problem_t *p, lap_schedule_t *s, int owner, lap_range_t own)
{
    size_t first, rows = lap_shard(p->m, p->size, owner, &first);
    lap_range_t dst = owner == p->rank ? own : lap_slot(p, owner, p->rank, lap_all_columns(p));
    for (size_t at = 0; at < rows; at += p->desc.block_rows) {
        lap_range_t d = dst;
        d.offset += at * d.stride;
        d.rows = rows - at < p->desc.block_rows ? rows - at : p->desc.block_rows;
        lap_tile_t *tile = lap_gemm_rows(s, lap_partial_input(p, first + at, d.rows), d);
        if (owner == p->rank)
            continue;
        tile->raise = (lap_signal_t){
            .peer = owner, .word = lap_signal_data(p->rank), .bytes = lap_range_bytes(&d)};
        if (at == 0 && !lap_is_scaled(p)) {
            const uint32_t credit = lap_signal_credit(p->size, owner);
            tile->wait = (lap_signal_t){.peer = owner, .word = credit, .count = 1};
            lap_expect(s, credit);
        }
    }
}

uint32_t lap_add_sum(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                     lap_columns_t columns, lap_range_t own, lap_range_t dst)
{
    uint32_t step =
        lap_add_reduce(s, stream, dst, dst.place == LAP_GATHERED ? p->types.y : p->types.out);
    for (int source = 0; source < p->size; source++)
        lap_reduce_source(s, source == p->rank ? own : lap_slot(p, p->rank, source, columns),
                          p->types.wire);
    for (int source = 0; source < p->size && lap_is_scaled(p); source++)
        lap_reduce_scale(s, source == p->rank ? lap_own_scale(p) : slot_scale(p, p->rank, source));
    return step;
}
