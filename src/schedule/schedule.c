/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a schedule: the adders that builders use, and steps and ranges in words. A failure is stored
 * in the schedule, so that a builder reads as a list of steps. What the steps mean to one another
 * is left to check.c.
 */
#include "schedule/schedule.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "util/alloc.h"

void lap_schedule_init(lap_schedule_t *schedule, const lap_problem_t *problem, const char *method)
{
    memset(schedule, 0, sizeof(*schedule));
    schedule->kind = problem->kind;
    schedule->method = method;
    schedule->rank = problem->rank;
    schedule->size = problem->size;
    schedule->m = problem->m;
    schedule->types = problem->types;
    schedule->layout = problem->layout;
    schedule->epilogue = problem->epilogue;
    schedule->set = problem->desc.background ? LAP_BACKGROUND : LAP_FOREGROUND;
    schedule->nsignals = lap_signal_count(problem->size);
    schedule->output.rank = schedule->gathered.rank = schedule->scales.rank = problem->rank;
    schedule->output.place = LAP_OUTPUT;
    schedule->gathered.place = LAP_GATHERED;
    schedule->scales.place = LAP_SCALES;
    schedule->raised = lap_alloc(schedule->nsignals, sizeof(uint32_t));
    if (!schedule->raised)
        schedule->status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %u signals of a schedule",
                                     (unsigned)schedule->nsignals);
}

void lap_schedule_clear(lap_schedule_t *schedule)
{
    lap_free(schedule->steps);
    lap_free(schedule->deps);
    lap_free(schedule->uses);
    lap_free(schedule->tiles);
    lap_free(schedule->raised);
    memset(schedule, 0, sizeof(*schedule));
}

/* Makes room for one more element. Returns the array, or NULL with the failure noted. */
static void *grow(lap_schedule_t *schedule, void *array, uint32_t count, size_t *room_p,
                  size_t element)
{
    void *grown = lap_grow(array, count, room_p, element);
    if (!grown)
        schedule->status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a schedule of %u elements",
                                     (unsigned)count + 1);
    return grown;
}

uint32_t lap_add_step(lap_schedule_t *schedule, const lap_step_t *step)
{
    if (schedule->status != LAP_OK)
        return 0;
    lap_step_t *steps = grow(schedule, schedule->steps, schedule->nsteps, &schedule->steps_room,
                             sizeof(lap_step_t));
    if (!steps)
        return 0;
    schedule->steps = steps;
    steps[schedule->nsteps] = *step;
    steps[schedule->nsteps].ndeps = 0;
    return schedule->nsteps++;
}

/* A step without signal whose uses and tiles, if it gets any, come next. */
static uint32_t add_step(lap_schedule_t *schedule, lap_step_kind_t kind, uint16_t stream)
{
    const lap_step_t step = {.kind = kind,
                             .stream = stream,
                             .first_use = schedule->nuses,
                             .first_tile = schedule->ntiles,
                             .signal = LAP_SIGNAL_NONE};
    return lap_add_step(schedule, &step);
}

/*
 * Appends a use to those that begin at `*first_p`. They follow one another: where others came since,
 * they move to the end of the table.
 */
static void append_use(lap_schedule_t *schedule, uint32_t *first_p, uint32_t *count_p,
                       const lap_use_t *use)
{
    const uint32_t old = *first_p, moved = old + *count_p != schedule->nuses ? *count_p : 0;
    if (moved > 0 || *count_p == 0)
        *first_p = schedule->nuses;
    for (uint32_t i = 0; i <= moved && schedule->status == LAP_OK; i++) {
        lap_use_t *uses =
            grow(schedule, schedule->uses, schedule->nuses, &schedule->uses_room, sizeof(*uses));
        if (!uses)
            return;
        schedule->uses = uses;
        uses[schedule->nuses++] = i < moved ? uses[old + i] : *use;
    }
    ++*count_p;
}

void lap_add_use(lap_schedule_t *schedule, uint32_t step, uint32_t tile, const lap_use_t *use)
{
    if (schedule->status != LAP_OK)
        return;
    lap_step_t *of = &schedule->steps[step];
    if (tile == LAP_NO_STEP)
        append_use(schedule, &of->first_use, &of->nuses, use);
    else
        append_use(schedule, &schedule->tiles[tile].first_use, &schedule->tiles[tile].nuses, use);
}

/* A use of the step that was added last; `tile`: of its last tile. */
static void add_use(lap_schedule_t *schedule, bool tile, lap_range_t range, lap_role_t role,
                    lap_dtype_t dtype)
{
    const lap_use_t use = {.range = range,
                           .role = (uint8_t)role,
                           .access = role == LAP_ROLE_D ? LAP_WRITE : LAP_READ,
                           .dtype = dtype};
    lap_add_use(schedule, schedule->nsteps - 1, tile ? schedule->ntiles - 1 : LAP_NO_STEP, &use);
}

static uint32_t add_move(lap_schedule_t *schedule, lap_step_kind_t kind, uint16_t stream,
                         lap_range_t src, lap_range_t dst)
{
    const uint32_t step = add_step(schedule, kind, stream);
    add_use(schedule, false, src, LAP_ROLE_A, LAP_FLOAT32);
    add_use(schedule, false, dst, LAP_ROLE_D, LAP_FLOAT32);
    return step;
}

/* Gives the signal of a step that was added. */
static uint32_t set_signal(lap_schedule_t *schedule, uint32_t step, lap_signal_t signal)
{
    if (schedule->status == LAP_OK)
        schedule->steps[step].signal = signal;
    return step;
}

uint32_t lap_add_put(lap_schedule_t *schedule, uint16_t stream, int peer, uint32_t signal,
                     lap_range_t src, lap_range_t dst)
{
    const size_t bytes = signal == LAP_NO_SIGNAL ? 0 : src.rows * src.row_bytes;
    return set_signal(schedule, add_move(schedule, LAP_STEP_PUT, stream, src, dst),
                      (lap_signal_t){.peer = peer, .word = signal, .bytes = bytes});
}

uint32_t lap_add_raise(lap_schedule_t *schedule, uint16_t stream, int peer, uint32_t signal,
                       size_t bytes)
{
    return set_signal(schedule, add_step(schedule, LAP_STEP_RAISE, stream),
                      (lap_signal_t){.peer = peer, .word = signal, .bytes = bytes});
}

uint32_t lap_add_wait(lap_schedule_t *schedule, uint16_t stream, int peer, uint32_t signal,
                      uint32_t count)
{
    return set_signal(schedule, add_step(schedule, LAP_STEP_WAIT, stream),
                      (lap_signal_t){.peer = peer, .word = signal, .count = count});
}

uint32_t lap_add_copy(lap_schedule_t *schedule, uint16_t stream, lap_range_t src, lap_range_t dst)
{
    return add_move(schedule, LAP_STEP_COPY, stream, src, dst);
}

uint32_t lap_add_sums(lap_schedule_t *schedule, uint16_t stream, lap_range_t src)
{
    const uint32_t step = add_step(schedule, LAP_STEP_SUMS, stream);
    const lap_types_t *types = &schedule->types;
    add_use(schedule, false, src, LAP_ROLE_A, src.place == LAP_OUTPUT ? types->out : types->a);
    return step;
}

uint32_t lap_add_kernel(lap_schedule_t *schedule, uint16_t stream, const char *name)
{
    const uint32_t step = add_step(schedule, LAP_STEP_KERNEL, stream);
    if (schedule->status == LAP_OK)
        schedule->steps[step].name = name;
    return step;
}

uint32_t lap_add_reduce(lap_schedule_t *schedule, uint16_t stream, lap_range_t dst, lap_dtype_t to)
{
    const uint32_t step = add_step(schedule, LAP_STEP_REDUCE, stream);
    add_use(schedule, false, dst, LAP_ROLE_D, to);
    return step;
}

void lap_reduce_source(lap_schedule_t *schedule, lap_range_t src, lap_dtype_t from)
{
    add_use(schedule, false, src, LAP_ROLE_A, from);
}

void lap_reduce_scale(lap_schedule_t *schedule, lap_range_t scale)
{
    add_use(schedule, false, scale, LAP_ROLE_SCALE, LAP_FLOAT32);
}

uint32_t lap_add_gemm(lap_schedule_t *schedule, uint16_t stream, lap_range_t b, bool any_order)
{
    const uint32_t step = add_step(schedule, LAP_STEP_GEMM, stream);
    add_use(schedule, false, b, LAP_ROLE_B, schedule->types.b);
    if (schedule->status == LAP_OK)
        schedule->steps[step].any_order = any_order;
    return step;
}

lap_tile_t *lap_gemm_rows(lap_schedule_t *schedule, lap_range_t a, lap_range_t d)
{
    const lap_types_t *types = &schedule->types;
    if (schedule->status != LAP_OK)
        return &schedule->spare;
    lap_tile_t *tiles =
        grow(schedule, schedule->tiles, schedule->ntiles, &schedule->tiles_room, sizeof(*tiles));
    if (!tiles)
        return &schedule->spare;
    schedule->tiles = tiles;
    lap_tile_t *tile = &tiles[schedule->ntiles++];
    *tile = (lap_tile_t){
        .first_use = schedule->nuses, .wait = LAP_SIGNAL_NONE, .raise = LAP_SIGNAL_NONE};
    add_use(schedule, true, a, LAP_ROLE_A, types->a);
    add_use(schedule, true, d, LAP_ROLE_D, d.place == LAP_OUTPUT ? types->out : types->wire);
    assert(schedule->steps[schedule->nsteps - 1].kind == LAP_STEP_GEMM);
    schedule->steps[schedule->nsteps - 1].ntiles++;
    return tile;
}

void lap_gemm_scale(lap_schedule_t *schedule, lap_range_t scale)
{
    add_use(schedule, true, scale, LAP_ROLE_SCALE, LAP_FLOAT32);
}

/* Those of a role among `count` uses from `first` on. */
static const lap_use_t *find_uses(const lap_schedule_t *schedule, uint32_t first, uint32_t count,
                                  lap_role_t role, uint32_t *count_p)
{
    static const lap_use_t none = {.access = LAP_READ};
    const bool there = (size_t)first + count <= schedule->nuses; /* else check_form.c says so */
    const uint32_t end = there ? first + count : first;
    while (first < end && schedule->uses[first].role != role)
        first++;
    uint32_t last = first;
    while (last < end && schedule->uses[last].role == role)
        last++;
    *count_p = last - first;
    return first < last ? &schedule->uses[first] : &none;
}

const lap_use_t *lap_step_uses(const lap_schedule_t *schedule, const lap_step_t *step,
                               lap_role_t role, uint32_t *count_p)
{
    return find_uses(schedule, step->first_use, step->nuses, role, count_p);
}

const lap_use_t *lap_tile_uses(const lap_schedule_t *schedule, const lap_tile_t *tile,
                               lap_role_t role, uint32_t *count_p)
{
    return find_uses(schedule, tile->first_use, tile->nuses, role, count_p);
}

lap_gemm_shape_t lap_tile_shape(const lap_schedule_t *schedule, const lap_step_t *step,
                                const lap_tile_t *tile)
{
    const lap_range_t *b = lap_step_range(schedule, step, LAP_ROLE_B);
    const size_t rows = lap_tile_range(schedule, tile, LAP_ROLE_D)->rows;
    const size_t b_cols = b->row_bytes / lap_dtype_size(schedule->types.b);
    const bool plain = schedule->layout != LAP_FORWARD; /* b is [k, n] */
    return (lap_gemm_shape_t){rows, plain ? b_cols : b->rows, plain ? b->rows : b_cols};
}

bool lap_step_waits(const lap_schedule_t *schedule, uint32_t index)
{
    const lap_step_t *step = &schedule->steps[index];
    bool found = step->kind == LAP_STEP_WAIT;
    for (uint32_t t = 0; t < step->ntiles; t++)
        found = found || schedule->tiles[step->first_tile + t].wait.word != LAP_NO_SIGNAL;
    return found;
}

bool lap_step_sends(const lap_schedule_t *schedule, uint32_t index)
{
    const lap_step_t *step = &schedule->steps[index];
    bool found = step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE;
    for (uint32_t t = 0; t < step->ntiles; t++)
        found = found || schedule->tiles[step->first_tile + t].raise.word != LAP_NO_SIGNAL;
    return found;
}

void lap_go_together(lap_schedule_t *schedule, uint32_t first)
{
    for (uint32_t i = first; i < schedule->nsteps; i++) {
        const lap_step_kind_t kind = schedule->steps[i].kind;
        schedule->steps[i].together =
            kind == LAP_STEP_PUT || kind == LAP_STEP_COPY || kind == LAP_STEP_REDUCE;
    }
}

static void append_dep(lap_schedule_t *schedule, uint32_t dep)
{
    if (schedule->status != LAP_OK)
        return;
    uint32_t *deps = grow(schedule, schedule->deps, schedule->ndeps, &schedule->deps_room,
                          sizeof(*schedule->deps));
    if (!deps)
        return;
    schedule->deps = deps;
    deps[schedule->ndeps++] = dep;
}

/* Those of a step follow one another: where others came since, they move to the end of the table. */
void lap_add_dep(lap_schedule_t *schedule, uint32_t step, uint32_t dep)
{
    if (schedule->status != LAP_OK)
        return;
    lap_step_t *later = &schedule->steps[step];
    if (dep >= step) {
        schedule->status = lap_error(LAP_ERR_INTERNAL, "step %u of %s cannot depend on step %u",
                                     (unsigned)step, schedule->method, (unsigned)dep);
        return;
    }
    const uint32_t first = later->first_dep, count = later->ndeps;
    if (first + count != schedule->ndeps) {
        later->first_dep = schedule->ndeps;
        for (uint32_t i = 0; i < count; i++)
            append_dep(schedule, schedule->deps[first + i]);
    }
    append_dep(schedule, dep);
    later->ndeps++;
}

void lap_expect(lap_schedule_t *schedule, uint32_t signal)
{
    if (schedule->status != LAP_OK)
        return;
    assert(signal < schedule->nsignals);
    schedule->raised[signal]++;
}

void lap_signal_name(int size, uint32_t signal, char *text, size_t bytes)
{
    static const char *const families[] = {"data", "credit", "open", "done"};
    uint32_t family = signal / (uint32_t)size;
    if (family < 4)
        snprintf(text, bytes, "%s[%u]", families[family], (unsigned)(signal % (uint32_t)size));
    else
        snprintf(text, bytes, "%u", (unsigned)signal);
}

const char *lap_stream_name(uint16_t stream)
{
    static const char *const names[LAP_STREAMS] = {"compute",
                                                   "send",
                                                   "receive",
                                                   "compute2",
                                                   "background compute",
                                                   "background send",
                                                   "background receive",
                                                   "background compute2",
                                                   "downstream compute",
                                                   "downstream send",
                                                   "downstream receive",
                                                   "downstream compute2",
                                                   "upstream compute",
                                                   "upstream send",
                                                   "upstream receive",
                                                   "upstream compute2",
                                                   "unused compute",
                                                   "send2",
                                                   "receive2",
                                                   "unused compute2"};
    return stream < LAP_STREAMS ? names[stream] : "?";
}

const char *lap_step_kind_name(lap_step_kind_t kind)
{
    static const char *const names[LAP_STEP_KINDS] = {"GEMM", "PUT",  "RAISE",  "WAIT",   "REDUCE",
                                                      "COPY", "SUMS", "KERNEL", "CONSUME"};
    return (unsigned)kind < LAP_STEP_KINDS ? names[kind] : "unknown";
}

bool lap_step_computes(uint32_t kind, uint32_t stream)
{
    static const bool computes[LAP_STEP_KINDS] = {
        [LAP_STEP_GEMM] = true, [LAP_STEP_REDUCE] = true, [LAP_STEP_COPY] = true,
        [LAP_STEP_SUMS] = true, [LAP_STEP_KERNEL] = true,
    };
    const uint32_t lane = stream % LAP_STREAM_KINDS;
    return stream < LAP_STREAMS && (lane == LAP_STREAM_COMPUTE || lane == LAP_STREAM_LANE) &&
           kind < LAP_STEP_KINDS && computes[kind];
}

const char *lap_place_name(lap_place_t place)
{
    static const char *const names[LAP_PLACES] = {"input",  "weight",  "x",
                                                  "scale",  "output",  "gathered",
                                                  "scales", "scratch", "symmetric buffer"};
    return (unsigned)place < LAP_PLACES ? names[place] : "unknown place";
}

/* "rows 8..15 of scratch": rows as the range's own stride counts them. */
static void describe_rows(const lap_range_t *range, char *text, size_t bytes)
{
    size_t first = range->stride ? range->offset / range->stride : 0;
    if (range->rows == 0)
        snprintf(text, bytes, "nothing");
    else
        snprintf(text, bytes, "rows %zu..%zu of %s", first, first + range->rows - 1,
                 lap_place_name(range->place));
}

static void describe_signal(const lap_schedule_t *schedule, uint32_t signal, char *text,
                            size_t bytes)
{
    char name[32];
    lap_signal_name(schedule->size, signal, name, sizeof(name));
    snprintf(text, bytes, "signal %s", name);
}

void lap_step_describe(const lap_schedule_t *schedule, uint32_t index, char *text, size_t bytes)
{
    const lap_step_t *step = &schedule->steps[index];
    char src[80], dst[80], signal[48];
    uint32_t nsources;
    (void)lap_step_uses(schedule, step, LAP_ROLE_A, &nsources);
    describe_rows(lap_step_range(schedule, step, LAP_ROLE_A), src, sizeof(src));
    describe_rows(lap_step_range(schedule, step, LAP_ROLE_D), dst, sizeof(dst));
    describe_signal(schedule, step->signal.word, signal, sizeof(signal));
    int used =
        snprintf(text, bytes, "step %u %s ", (unsigned)index, lap_step_kind_name(step->kind));
    size_t at = used < 0 || (size_t)used >= bytes ? bytes : (size_t)used;
    text += at;
    bytes -= at;
    switch (step->kind) {
    case LAP_STEP_GEMM:
        snprintf(text, bytes, "of %u block%s", (unsigned)step->ntiles,
                 step->ntiles == 1 ? "" : "s");
        break;
    case LAP_STEP_PUT:
        snprintf(text, bytes, "%s -> rank %d", src, step->signal.peer);
        break;
    case LAP_STEP_RAISE:
        snprintf(text, bytes, "%s of rank %d", signal, step->signal.peer);
        break;
    case LAP_STEP_WAIT:
        snprintf(text, bytes, "%s from rank %d, count %u", signal, step->signal.peer,
                 (unsigned)step->signal.count);
        break;
    case LAP_STEP_REDUCE:
        snprintf(text, bytes, "%u ranges -> %s", (unsigned)nsources, dst);
        break;
    case LAP_STEP_COPY:
        snprintf(text, bytes, "%s -> %s", src, dst);
        break;
    case LAP_STEP_SUMS:
        snprintf(text, bytes, "of the columns of %s", src);
        break;
    case LAP_STEP_KERNEL:
        snprintf(text, bytes, "%s", step->name);
        break;
    case LAP_STEP_CONSUME:
        snprintf(text, bytes, "the signals of the call");
        break;
    default:
        break;
    }
}

void lap_range_describe(const lap_range_t *range, char *text, size_t bytes)
{
    const char *place = lap_place_name(range->place);
    if (range->rows == 0 || range->row_bytes == 0)
        snprintf(text, bytes, "%s of rank %d, no bytes", place, range->rank);
    else if (range->rows == 1 || range->stride == range->row_bytes)
        snprintf(text, bytes, "%s of rank %d, bytes %zu..%zu", place, range->rank, range->offset,
                 range->offset + range->rows * range->row_bytes - 1);
    else
        snprintf(text, bytes, "%s of rank %d, bytes %zu..%zu and %zu more such rows, %zu apart",
                 place, range->rank, range->offset, range->offset + range->row_bytes - 1,
                 range->rows - 1, range->stride);
}
