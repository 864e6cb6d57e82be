/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first part of the checker: that each schedule makes sense by itself. Streams, peers, signals,
 * dependencies and indices exist, matrices fit together, and every range lies inside its memory.
 */
#include "schedule/check.h"

#include "core/status.h"
#include "schedule/range.h"

/* One step being looked at, for the sentence when something is wrong with it. */
typedef struct form {
    const lap_check_t *check;
    const lap_schedule_t *schedule;
    uint32_t call, index;
    const lap_step_t *step;
} form_t;

static lap_status_t wrong(const form_t *form, const char *what, size_t value, size_t expected)
{
    char text[LAP_CHECK_TEXT];
    lap_step_describe(form->schedule, form->index, text, sizeof(text));
    return lap_error(LAP_ERR_CHECK, "call %u rank %d %s %s: %s is %zu, expected %zu",
                     (unsigned)form->call, form->schedule->rank, form->schedule->method, text, what,
                     value, expected);
}

static lap_status_t below(const form_t *form, const char *what, size_t value, size_t limit)
{
    char text[LAP_CHECK_TEXT];
    if (value < limit)
        return LAP_OK;
    lap_step_describe(form->schedule, form->index, text, sizeof(text));
    return lap_error(LAP_ERR_CHECK, "call %u rank %d %s %s: %s is %zu, expected less than %zu",
                     (unsigned)form->call, form->schedule->rank, form->schedule->method, text, what,
                     value, limit);
}

static lap_status_t equal(const form_t *form, const char *what, size_t value, size_t expected)
{
    return value == expected ? LAP_OK : wrong(form, what, value, expected);
}

/* Where the memory of a place ends; the caller's matrices are not known here. */
static size_t place_end(const lap_check_t *check, uint32_t call, const lap_range_t *range)
{
    const lap_schedule_t *owner = lap_check_schedule(check, call, range->rank);
    switch (range->place) {
    case LAP_SYMMETRIC:
        return owner->symmetric_bytes;
    case LAP_SCRATCH:
        return owner->scratch_bytes;
    case LAP_OUTPUT:
        return owner->output.offset + lap_range_bytes(&owner->output);
    case LAP_GATHERED:
        return owner->gathered.offset + lap_range_bytes(&owner->gathered);
    case LAP_SCALE:
        return sizeof(float);
    case LAP_SCALES:
        return owner->scales.offset + lap_range_bytes(&owner->scales);
    default:
        return SIZE_MAX;
    }
}

static lap_status_t check_range(const form_t *form, const lap_range_t *range, bool written)
{
    char text[LAP_CHECK_TEXT], where[128];
    size_t end, limit;
    LAP_TRY(below(form, "the place", (size_t)range->place, LAP_PLACES));
    if (range->place != LAP_SYMMETRIC)
        LAP_TRY(equal(form, "the rank of a local range", (size_t)range->rank,
                      (size_t)form->schedule->rank));
    LAP_TRY(below(form, "the rank of a range", (size_t)range->rank, (size_t)form->check->size));
    bool reserved = written && lap_place_is_input(range->place);
    limit = place_end(form->check, form->call, range);
    if (!reserved && lap_range_valid(range, &end) && (lap_range_bytes(range) == 0 || end <= limit))
        return LAP_OK;
    lap_step_describe(form->schedule, form->index, text, sizeof(text));
    lap_range_describe(range, where, sizeof(where));
    if (reserved)
        return lap_error(LAP_ERR_CHECK, "call %u rank %d %s %s writes %s, which is the caller's",
                         (unsigned)form->call, form->schedule->rank, form->schedule->method, text,
                         where);
    return lap_error(
        LAP_ERR_CHECK, "call %u rank %d %s %s uses %s: expected a range inside %zu bytes",
        (unsigned)form->call, form->schedule->rank, form->schedule->method, text, where, limit);
}

/* A wait is for a raise that the builder has announced. */
static lap_status_t check_wait(const form_t *form, const lap_signal_t *signal)
{
    char text[LAP_CHECK_TEXT];
    LAP_TRY(below(form, "the signal", signal->word, form->check->nsignals));
    const uint32_t raised = form->schedule->raised[signal->word];
    if (signal->count > 0 && signal->count <= raised)
        return LAP_OK;
    lap_step_describe(form->schedule, form->index, text, sizeof(text));
    return lap_error(LAP_ERR_CHECK,
                     "call %u rank %d %s %s: the count of a wait is %u, expected at least 1 and at "
                     "most the %u raises that lap_expect announces",
                     (unsigned)form->call, form->schedule->rank, form->schedule->method, text,
                     (unsigned)signal->count, (unsigned)raised);
}

static lap_status_t check_raise(const form_t *form, const lap_signal_t *signal)
{
    if (signal->word == LAP_NO_SIGNAL)
        return LAP_OK;
    LAP_TRY(below(form, "the peer", (size_t)signal->peer, (size_t)form->check->size));
    return below(form, "the signal", signal->word, form->check->nsignals);
}

static lap_status_t check_same_shape(const form_t *form, const lap_range_t *src,
                                     const lap_range_t *dst)
{
    LAP_TRY(equal(form, "the number of rows", src->rows, dst->rows));
    return equal(form, "the bytes of a row", src->row_bytes, dst->row_bytes);
}

/* Processors want the elements that they compute with at multiples of their size. */
static lap_status_t check_elements(const form_t *form, const lap_use_t *use)
{
    const size_t element = lap_dtype_size(use->dtype);
    const lap_range_t *range = &use->range;
    LAP_TRY(equal(form, "the place where a range begins within an element", range->offset % element,
                  0));
    LAP_TRY(
        equal(form, "the place where a row begins within an element", range->stride % element, 0));
    return equal(form, "the place where a row ends within an element", range->row_bytes % element,
                 0);
}

/* All uses are inside their memory; those that are computed with begin at elements. */
static lap_status_t check_uses(const form_t *form, uint32_t first, uint32_t count)
{
    const lap_schedule_t *schedule = form->schedule;
    const lap_step_kind_t kind = form->step->kind;
    LAP_TRY(below(form, "the end of the uses", (size_t)first + count, (size_t)schedule->nuses + 1));
    for (uint32_t i = first; i < first + count; i++) {
        const lap_use_t *use = &schedule->uses[i];
        if ((uint32_t)use->range.place >= LAP_PLACES)
            continue; /* of a program: check_access.c */
        LAP_TRY(check_range(form, &use->range, use->access == LAP_WRITE));
        if (use->role == LAP_ROLE_SCALE)
            LAP_TRY(
                equal(form, "the bytes of a scale", lap_range_bytes(&use->range), sizeof(float)));
        if (kind == LAP_STEP_REDUCE || (kind == LAP_STEP_GEMM && use->role != LAP_ROLE_B))
            LAP_TRY(check_elements(form, use));
    }
    return LAP_OK;
}

static lap_status_t check_move(const form_t *form)
{
    const lap_range_t *dst = lap_step_range(form->schedule, form->step, LAP_ROLE_D);
    const lap_signal_t *signal = &form->step->signal;
    LAP_TRY(check_same_shape(form, lap_step_range(form->schedule, form->step, LAP_ROLE_A), dst));
    if (form->step->kind == LAP_STEP_COPY)
        return LAP_OK;
    LAP_TRY(check_raise(form, signal));
    LAP_TRY(equal(form, "the place that a PUT writes", (size_t)dst->place, LAP_SYMMETRIC));
    return equal(form, "the rank whose memory a PUT writes", (size_t)dst->rank,
                 (size_t)signal->peer);
}

/* Whether a, the part of b and d of a tile are matrices that fit together. */
static lap_status_t check_shapes(const form_t *form, const lap_tile_t *tile)
{
    const lap_schedule_t *schedule = form->schedule;
    const lap_gemm_shape_t shape = lap_tile_shape(schedule, form->step, tile);
    const bool turned = schedule->layout == LAP_WGRAD; /* a is [k, rows] */
    const lap_range_t *a = lap_tile_range(schedule, tile, LAP_ROLE_A);
    uint32_t count;
    const lap_use_t *d = lap_tile_uses(schedule, tile, LAP_ROLE_D, &count);
    LAP_TRY(equal(form, "the number of rows of a block", a->rows, turned ? shape.k : shape.rows));
    LAP_TRY(equal(form, "the bytes of a row of a", a->row_bytes,
                  (turned ? shape.rows : shape.k) * lap_dtype_size(schedule->types.a)));
    return equal(form, "the bytes of a row of d", d->range.row_bytes,
                 shape.n * lap_dtype_size(d->dtype));
}

/* Rows that came from other ranks have scales of their own, if they are FP8. */
static lap_status_t check_tile_scale(const form_t *form, const lap_tile_t *tile)
{
    const lap_schedule_t *schedule = form->schedule;
    const bool scaled = schedule->kind == LAP_AG_GEMM && lap_dtype_is_fp8(schedule->types.a);
    uint32_t count;
    (void)lap_tile_uses(schedule, tile, LAP_ROLE_SCALE, &count);
    return equal(form, "the number of scales of a block", count, scaled);
}

static lap_status_t check_gemm(const form_t *form)
{
    const lap_step_t *step = form->step;
    LAP_TRY(below(form, "the end of the blocks", (size_t)step->first_tile + step->ntiles,
                  (size_t)form->schedule->ntiles + 1));
    for (uint32_t i = step->first_tile; i < step->first_tile + step->ntiles; i++) {
        const lap_tile_t *tile = &form->schedule->tiles[i];
        LAP_TRY(check_uses(form, tile->first_use, tile->nuses));
        LAP_TRY(check_shapes(form, tile));
        LAP_TRY(check_tile_scale(form, tile));
        if (tile->wait.word != LAP_NO_SIGNAL)
            LAP_TRY(check_wait(form, &tile->wait));
        LAP_TRY(check_raise(form, &tile->raise));
    }
    return LAP_OK;
}

static lap_status_t check_reduce(const form_t *form)
{
    uint32_t count, nscales, one;
    const lap_use_t *a = lap_step_uses(form->schedule, form->step, LAP_ROLE_A, &count);
    const lap_use_t *d = lap_step_uses(form->schedule, form->step, LAP_ROLE_D, &one);
    (void)lap_step_uses(form->schedule, form->step, LAP_ROLE_SCALE, &nscales);
    const size_t from = lap_dtype_size(a->dtype), to = lap_dtype_size(d->dtype);
    LAP_TRY(equal(form, "whether there are scales", nscales > 0, lap_dtype_is_fp8(a->dtype)));
    if (nscales > 0)
        LAP_TRY(equal(form, "the number of scales", nscales, count));
    for (uint32_t i = 0; i < count; i++) {
        LAP_TRY(equal(form, "the number of rows", a[i].range.rows, d->range.rows));
        LAP_TRY(equal(form, "the number of columns", a[i].range.row_bytes / from,
                      d->range.row_bytes / to));
    }
    return LAP_OK;
}

/* All of d, or a. */
static lap_status_t check_sums(const form_t *form)
{
    const lap_range_t *d = &form->schedule->output;
    const lap_range_t *src = lap_step_range(form->schedule, form->step, LAP_ROLE_A);
    const bool of_a = form->schedule->layout == LAP_WGRAD;
    LAP_TRY(
        equal(form, "the place that is summed", (size_t)src->place, of_a ? LAP_INPUT : LAP_OUTPUT));
    if (of_a)
        return LAP_OK;
    LAP_TRY(equal(form, "the place where the rows begin", src->offset, d->offset));
    return check_same_shape(form, src, d);
}

static bool conflict(const lap_range_t *x, const lap_range_t *y)
{
    const lap_range_t a = lap_range_normal(*x), b = lap_range_normal(*y);
    return x->place == y->place && x->rank == y->rank && lap_range_overlaps(&a, &b);
}

/* Whether one of two moves writes what the other one writes or reads. */
static bool in_the_way(const lap_schedule_t *schedule, const lap_step_t *step,
                       const lap_step_t *other)
{
    const lap_range_t *a = lap_step_range(schedule, step, LAP_ROLE_A),
                      *d = lap_step_range(schedule, step, LAP_ROLE_D),
                      *other_a = lap_step_range(schedule, other, LAP_ROLE_A),
                      *other_d = lap_step_range(schedule, other, LAP_ROLE_D);
    return conflict(d, other_d) || conflict(a, other_d) || conflict(d, other_a);
}

/*
 * Steps that go together are puts and copies, which then have no order: none writes what another
 * one writes or reads. A sum has only the signals after it with it.
 */
static lap_status_t check_together(const form_t *form)
{
    const lap_schedule_t *schedule = form->schedule;
    const lap_step_t *step = form->step;
    const bool moves = step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_COPY;
    if (!step->together)
        return LAP_OK;
    LAP_TRY(equal(form, "whether the step can go together with others",
                  moves || step->kind == LAP_STEP_REDUCE, true));
    if (step->kind == LAP_STEP_PUT && step->signal.word != LAP_NO_SIGNAL)
        return wrong(form, "the signal of a PUT that goes together with others", step->signal.word,
                     LAP_NO_SIGNAL);
    for (uint32_t i = form->index + 1; moves && i < schedule->nsteps; i++) {
        const lap_step_t *other = &schedule->steps[i];
        if (other->stream != step->stream)
            continue;
        if (!other->together || other->kind == LAP_STEP_REDUCE)
            break;
        LAP_TRY(equal(form, "whether a step that goes together with it is in its way",
                      in_the_way(schedule, step, other), false));
    }
    return LAP_OK;
}

static lap_status_t check_step(const form_t *form)
{
    const lap_step_t *step = form->step;
    LAP_TRY(below(form, "the stream", step->stream, LAP_STREAMS));
    const size_t end = (size_t)step->first_dep + step->ndeps;
    if (step->ndeps > 0)
        LAP_TRY(below(form, "the end of the dependencies", end, (size_t)form->schedule->ndeps + 1));
    for (uint16_t i = 0; i < step->ndeps; i++)
        LAP_TRY(below(form, "a dependency", lap_step_dep(form->schedule, step, i), form->index));
    LAP_TRY(check_uses(form, step->first_use, step->nuses));
    LAP_TRY(check_together(form));
    switch (step->kind) {
    case LAP_STEP_GEMM:
        return check_gemm(form);
    case LAP_STEP_PUT:
    case LAP_STEP_COPY:
        return check_move(form);
    case LAP_STEP_RAISE:
        return check_raise(form, &step->signal);
    case LAP_STEP_WAIT:
        return check_wait(form, &step->signal);
    case LAP_STEP_REDUCE:
        return check_reduce(form);
    case LAP_STEP_SUMS:
        return check_sums(form);
    case LAP_STEP_KERNEL:
        return LAP_OK;
    case LAP_STEP_CONSUME:
        return LAP_OK;
    default:
        return below(form, "the kind", (size_t)step->kind, LAP_STEP_KINDS);
    }
}

/* The gradient of the bias, which is no range of bytes here, is written once if it is wanted. */
static lap_status_t count_sums(const lap_schedule_t *schedule, uint32_t call)
{
    const uint32_t wanted = (schedule->epilogue & LAP_EPILOGUE_BIAS_GRAD) != 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        count += schedule->steps[i].kind == LAP_STEP_SUMS;
    if (count == wanted)
        return LAP_OK;
    return lap_error(LAP_ERR_CHECK, "call %u rank %d %s writes bias_grad %u times, expected %u",
                     (unsigned)call, schedule->rank, schedule->method, (unsigned)count,
                     (unsigned)wanted);
}

lap_status_t lap_check_form(const lap_check_t *check)
{
    for (uint32_t call = 0; call < check->ncalls; call++) {
        for (int rank = 0; rank < check->size; rank++) {
            const lap_schedule_t *schedule = lap_check_schedule(check, call, rank);
            form_t form = {.check = check, .schedule = schedule, .call = call};
            if (schedule->rank != rank || schedule->size != check->size ||
                schedule->nsignals != check->nsignals)
                return lap_error(LAP_ERR_CHECK,
                                 "the schedule of call %u rank %d is one for rank %d of %d with %u "
                                 "signals: expected rank %d of %d with %u",
                                 (unsigned)call, rank, schedule->rank, schedule->size,
                                 (unsigned)schedule->nsignals, rank, check->size,
                                 (unsigned)check->nsignals);
            for (form.index = 0; form.index < schedule->nsteps; form.index++) {
                form.step = &schedule->steps[form.index];
                LAP_TRY(check_step(&form));
            }
            LAP_TRY(count_sums(schedule, call));
        }
    }
    return LAP_OK;
}
