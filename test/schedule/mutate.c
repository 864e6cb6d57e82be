/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutation tests of the checker. Takes each single WAIT, RAISE, signal of a PUT, wait or raise of a
 * block, scale and dependency out of the schedules of every method, on one rank or on all, in one
 * call of three: the checker must object each time. So it misses nothing, and no method carries
 * synchronisation that it does not need.
 *
 * With the name of a target, the same is done to what that target is given. There a mutant may
 * survive by one of two rules: see is_equivalent.
 */
#include "drop.h"
#include "sequence.h"

/* What is done to a step, or to a block of it. */
typedef enum mutation {
    DROP_STEP, /* a WAIT, RAISE, PUT or CONSUME does nothing */
    DROP_SIGNAL,
    DROP_DEP,
    DROP_BLOCK_WAIT,
    DROP_BLOCK_RAISE,
    DROP_BOTH_SIDES, /* the only raise of a word in a call, its account, and the waits for it */
    LESS,            /* a wait for one raise less */
    SHIFT,           /* a PUT, COPY or block of a GEMM writes elsewhere */
    DROP_WORK,       /* a COPY, REDUCE, SUMS or block of a GEMM does nothing */
    DROP_SCALE,      /* a block of a GEMM or a REDUCE does without scales */
    AGAIN,           /* a REDUCE, GEMM, SUMS or COPY to a result is done once more at the end */
    MUTATIONS
} mutation_t;

static const char *const mutation_names[MUTATIONS] = {
    "a WAIT, RAISE, PUT or CONSUME taken out",
    "a PUT without its signal",
    "a dependency taken out",
    "a block without its wait",
    "a block without its raise",
    "a signal taken out on both sides",
    "a wait for one raise less",
    "a write to another place",
    "a COPY, REDUCE, SUMS or block taken out",
    "a block or REDUCE without scales",
    "a result written twice",
};

typedef struct tally {
    size_t mutants, survivors;
} tally_t;

static const lap_target_t *target; /* NULL: schedules as they were built */
static sequence_t built;           /* before it was lowered */

static lap_status_t prove(const sequence_t *sequence)
{
    const lap_schedule_t *list[MAX_SCHEDULES];
    for (int i = 0; i < MAX_SCHEDULES; i++)
        list[i] = &sequence->schedules[i];
    if (!target)
        return sequence_check(sequence);
    return lap_lowered_check(list, sequence->ncalls, sequence->size, target);
}

/* A range of the same shape that begins one row further; false when it has no row to move by. */
static bool shift(lap_range_t *range)
{
    if (range->rows == 0 || range->row_bytes == 0)
        return false;
    range->offset += range->stride;
    return true;
}

/* The scales of a sum come last. */
static bool drop_scales(const lap_schedule_t *schedule, lap_step_t *step)
{
    uint32_t count;
    (void)lap_step_uses(schedule, step, LAP_ROLE_SCALE, &count);
    step->nuses -= count;
    return count > 0;
}

/*
 * Changes a step of a schedule; `item` counts its dependencies or tiles. False: there is nothing
 * to change, and nothing was changed.
 */
static bool change_step(lap_schedule_t *schedule, uint32_t index, mutation_t mutation,
                        uint32_t item)
{
    lap_step_t *step = &schedule->steps[index];
    bool moves = step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_COPY;
    bool waits = step->kind == LAP_STEP_WAIT;
    switch (mutation) {
    case DROP_STEP:
        if (item > 0 || !(waits || step->kind == LAP_STEP_RAISE || step->kind == LAP_STEP_PUT ||
                          step->kind == LAP_STEP_CONSUME))
            return false;
        make_idle(step);
        return true;
    case DROP_SIGNAL:
        return item == 0 && drop_signal(step);
    case DROP_DEP:
        return drop_dep(schedule, index, item);
    case LESS:
        if (item > 0 || !waits || step->signal.count < 2)
            return false;
        step->signal.count--;
        return true;
    case SHIFT:
        return item == 0 && moves && step->nuses > 0 &&
               shift(step_range(schedule, index, LAP_ROLE_D));
    case DROP_WORK:
        if (item > 0 || (step->kind != LAP_STEP_COPY && step->kind != LAP_STEP_REDUCE &&
                         step->kind != LAP_STEP_SUMS))
            return false;
        make_idle(step);
        return true;
    case DROP_SCALE:
        return item == 0 && step->kind == LAP_STEP_REDUCE && drop_scales(schedule, step);
    default:
        return false;
    }
}

/* Repeats a step that writes a result, as the last one of its stream. */
static bool repeat_step(lap_schedule_t *schedule, uint32_t index, uint32_t item)
{
    lap_step_t step = schedule->steps[index];
    const lap_place_t place =
        step.ntiles > 0
            ? lap_tile_range(schedule, &schedule->tiles[step.first_tile], LAP_ROLE_D)->place
            : lap_step_range(schedule, &step, LAP_ROLE_D)->place;
    const bool result = place == LAP_OUTPUT || place == LAP_GATHERED || place == LAP_SCALES;
    if (item > 0 || (!result && step.kind != LAP_STEP_SUMS))
        return false;
    const uint32_t last = lap_add_step(schedule, &step);
    schedule->steps[last] = step;
    return true;
}

static bool change_tile(lap_schedule_t *schedule, uint32_t index, mutation_t mutation,
                        uint32_t item)
{
    const lap_step_t *step = &schedule->steps[index];
    if (item >= step->ntiles)
        return false;
    const uint32_t at = step->first_tile + item;
    lap_tile_t *tile = &schedule->tiles[at];
    switch (mutation) {
    case DROP_BLOCK_WAIT:
        return drop_tile_signal(&tile->wait);
    case DROP_BLOCK_RAISE:
        return drop_tile_signal(&tile->raise);
    case LESS:
        if (tile->wait.word == LAP_NO_SIGNAL || tile->wait.count < 2)
            return false;
        tile->wait.count--;
        return true;
    case SHIFT:
        return shift(tile_range(schedule, at, LAP_ROLE_D));
    case DROP_WORK:
        tile_range(schedule, at, LAP_ROLE_A)->rows = 0;
        tile_range(schedule, at, LAP_ROLE_D)->rows = 0;
        return true;
    case DROP_SCALE:
        if (lap_tile_range(schedule, tile, LAP_ROLE_SCALE)->rows == 0)
            return false;
        tile->nuses--; /* it is the last one */
        return true;
    default:
        return false;
    }
}

/* Takes the wait of `signal` out of a schedule, wherever it is, and its account. */
static bool forget_signal(lap_schedule_t *schedule, uint32_t signal)
{
    if (schedule->raised[signal] != 1)
        return false;
    schedule->raised[signal] = 0;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        if (schedule->steps[i].kind == LAP_STEP_WAIT && schedule->steps[i].signal.word == signal)
            make_idle(&schedule->steps[i]);
    for (uint32_t i = 0; i < schedule->ntiles; i++)
        if (schedule->tiles[i].wait.word == signal)
            schedule->tiles[i].wait.word = LAP_NO_SIGNAL;
    return true;
}

static bool change_both_sides(sequence_t *sequence, uint32_t call, int rank, uint32_t index,
                              uint32_t item)
{
    lap_schedule_t *schedule = sequence_at(sequence, call, rank);
    lap_step_t *step = &schedule->steps[index];
    const int peer = step->signal.peer;
    const uint32_t signal = step->signal.word;
    if (item > 0 || (step->kind != LAP_STEP_RAISE && step->kind != LAP_STEP_PUT) ||
        signal == LAP_NO_SIGNAL)
        return false;
    if (!forget_signal(sequence_at(sequence, call, peer), signal))
        return false;
    if (step->kind == LAP_STEP_PUT)
        step->signal.word = LAP_NO_SIGNAL;
    else
        make_idle(step);
    return true;
}

static bool change(sequence_t *sequence, uint32_t call, int rank, uint32_t index,
                   mutation_t mutation, uint32_t item)
{
    lap_schedule_t *schedule = sequence_at(sequence, call, rank);
    if (index >= schedule->nsteps)
        return false;
    if (mutation == DROP_BOTH_SIDES)
        return change_both_sides(sequence, call, rank, index, item);
    if (mutation == AGAIN)
        return repeat_step(schedule, index, item);
    if (schedule->steps[index].kind == LAP_STEP_GEMM && mutation != DROP_DEP)
        return change_tile(schedule, index, mutation, item);
    return change_step(schedule, index, mutation, item);
}

/* Puts a schedule back after a change; its arrays may have grown, but never shrink. */
static void copy_schedule(lap_schedule_t *to, const lap_schedule_t *from)
{
    to->nsteps = from->nsteps;
    if (from->nsteps)
        memcpy(to->steps, from->steps, from->nsteps * sizeof(lap_step_t));
    if (from->nuses)
        memcpy(to->uses, from->uses, from->nuses * sizeof(lap_use_t));
    if (from->ntiles)
        memcpy(to->tiles, from->tiles, from->ntiles * sizeof(lap_tile_t));
    memcpy(to->raised, from->raised, from->nsignals * sizeof(uint32_t));
}

static void restore(sequence_t *sequence, const sequence_t *original, uint32_t call)
{
    for (int rank = 0; rank < sequence->size; rank++)
        copy_schedule(sequence_at(sequence, call, rank),
                      &original->schedules[call * (uint32_t)sequence->size + (uint32_t)rank]);
}

/* Whether another step that was made from the same GEMM depends on `dep`, too. */
static bool other_block_has(const lap_schedule_t *schedule, uint32_t index, uint32_t dep)
{
    bool found = false;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        for (uint16_t d = 0; d < schedule->steps[i].ndeps; d++)
            found = found || (i != index && lap_step_dep(schedule, &schedule->steps[i], d) == dep &&
                              schedule->steps[i].origin == schedule->steps[index].origin);
    return found;
}

/*
 * Lowering only adds order to what was proved, so that what was needed may be implied now. A mutant
 * may survive if it takes out
 * (a) a dependency that others imply, or a wait for what another wait before it has waited for: the
 *     order stays as it is;
 * (b) a dependency between steps that the builder had on one stream: that order came with the
 *     stream, whether anything needs it or not;
 * (c) a dependency of a GEMM that another block of it, in the other lane, still has: the builder
 *     cannot say which of the blocks need it.
 */
static bool is_equivalent(const sequence_t *original, uint32_t call, int rank, uint32_t index,
                          mutation_t mutation, uint32_t item)
{
    const bool waits = mutation == DROP_STEP || mutation == LESS;
    if (!target || (mutation != DROP_DEP && !waits))
        return false;
    for (int r = rank < 0 ? 0 : rank; r < (rank < 0 ? original->size : rank + 1); r++) {
        const uint32_t at = call * (uint32_t)original->size + (uint32_t)r;
        const lap_schedule_t *schedule = &original->schedules[at];
        if (index >= schedule->nsteps)
            continue;
        const lap_step_kind_t kind = schedule->steps[index].kind;
        const bool taken = kind == LAP_STEP_WAIT || kind == LAP_STEP_RAISE ||
                           kind == LAP_STEP_PUT || kind == LAP_STEP_CONSUME;
        if (waits && taken && !is_waited_for(schedule, index, &schedule->steps[index]))
            return false;
        if (waits || item >= schedule->steps[index].ndeps)
            continue;
        const lap_step_t *step = &schedule->steps[index];
        const uint32_t dep = lap_step_dep(schedule, step, item);
        const lap_step_t *steps = built.schedules[at].steps;
        if (steps[step->origin].stream != steps[schedule->steps[dep].origin].stream &&
            !is_behind(schedule, index, dep, item) && !other_block_has(schedule, index, dep))
            return false;
    }
    return true;
}

/* Changes one rank, or all (rank -1) in the same place, and sees whether the checker objects. */
static void try_mutant(sequence_t *sequence, const sequence_t *original, uint32_t call, int rank,
                       uint32_t index, mutation_t mutation, uint32_t item, tally_t *tally)
{
    bool changed = false;
    for (int r = rank < 0 ? 0 : rank; r < (rank < 0 ? sequence->size : rank + 1); r++)
        changed = change(sequence, call, r, index, mutation, item) || changed;
    if (!changed)
        return;
    tally->mutants++;
    if (prove(sequence) != LAP_ERR_CHECK &&
        !is_equivalent(original, call, rank, index, mutation, item) && tally->survivors++ == 0) {
        char text[256];
        lap_step_describe(
            &original->schedules[call * (uint32_t)sequence->size + (uint32_t)(rank < 0 ? 0 : rank)],
            index, text, sizeof(text));
        tap_note("survived: %s: call %u rank %d %s, item %u", mutation_names[mutation], call, rank,
                 text, item);
    }
    restore(sequence, original, call);
}

static void try_step(sequence_t *sequence, const sequence_t *original, uint32_t call, int rank,
                     uint32_t index, tally_t *tallies)
{
    for (int mutation = 0; mutation < MUTATIONS; mutation++)
        for (uint32_t item = 0; item < 64; item++)
            try_mutant(sequence, original, call, rank, index, (mutation_t)mutation, item,
                       &tallies[mutation]);
}

/* All mutants of three calls. False when they are not safe as they are. */
static bool try_sequence(const lap_op_desc_t descs[3], const size_t rows[3], int size, unsigned can,
                         tally_t *tallies)
{
    static sequence_t sequence, original;
    bool safe = sequence_build(&sequence, descs, rows, 3, size, can) == LAP_OK &&
                sequence_build(&original, descs, rows, 3, size, can) == LAP_OK &&
                sequence_build(&built, descs, rows, 3, size, can) == LAP_OK;
    if (target)
        safe = safe && sequence_lower(&sequence, target->name, NULL) == LAP_OK &&
               sequence_lower(&original, target->name, NULL) == LAP_OK;
    safe = safe && prove(&sequence) == LAP_OK;
    for (uint32_t call = 0; safe && call < 3; call++)
        for (int rank = -1; rank < size; rank++)
            for (uint32_t i = 0; i < sequence_at(&sequence, call, rank < 0 ? 0 : rank)->nsteps; i++)
                try_step(&sequence, &original, call, rank, i, tallies);
    safe = safe && prove(&sequence) == LAP_OK;
    sequence_clear(&sequence);
    sequence_clear(&original);
    sequence_clear(&built);
    return safe;
}

/* With lanes, too, where it has them: up to four ranks, which have seen two rounds of them. */
static bool try_variant(const variant_t *variant, int size, size_t n, const size_t rows[3],
                        tally_t *tallies)
{
    const lap_op_desc_t desc = describe(variant, rows[0], n, 3), descs[] = {desc, desc, desc};
    if (target)
        return try_sequence(descs, rows, size, target->can, tallies);
    return try_sequence(descs, rows, size, CAN_PLAIN, tallies) &&
           (size > 4 || !has_lanes(variant, size) ||
            try_sequence(descs, rows, size, CAN_LANES, tallies));
}

static void add_tallies(tally_t *sums, const tally_t *tallies, tally_t *all)
{
    for (int i = 0; i < MUTATIONS; i++) {
        all->mutants += tallies[i].mutants;
        all->survivors += tallies[i].survivors;
        sums[i].mutants += tallies[i].mutants;
        sums[i].survivors += tallies[i].survivors;
    }
}

static void test_variant(const variant_t *variant, tally_t *sums)
{
    char name[64];
    tally_t tallies[MUTATIONS] = {{0, 0}}, all = {0, 0};
    bool safe = true;
    variant_name(variant, name, sizeof(name));
    /* Scales and epilogues add steps, but no new ways in which ranks meet. */
    const bool more = variant->dtype == FP8 || variant->epilogue || variant->kind > LAP_GEMM_AR;
    const int most = more ? 4 : variant->aggregate ? 6 : 5;
    for (int size = 2; size <= (!target ? most : variant->aggregate ? 4 : 3); size++) {
        size_t p = (size_t)size, few = p > 2 ? p - 1 : 2;
        if (!fits(variant, size))
            continue;
        /* Even and ragged rows; then fewer rows and features than ranks. */
        safe &= try_variant(variant, size, 2 * p + 1, (size_t[]){4 * p, 3 * p + 1, 4 * p}, tallies);
        safe &= try_variant(variant, size, few, (size_t[]){p + 1, p - 1, 1}, tallies);
    }
    add_tallies(sums, tallies, &all);
    tap_ok(safe, "%s is safe as it is", name);
    tap_ok(all.mutants > 0 && all.survivors == 0, "%s: none of %zu mutants survives (%zu did)",
           name, all.mutants, all.survivors);
}

/* Different operators in turn on one buffer. */
static void test_mixtures(tally_t *sums)
{
    tally_t tallies[MUTATIONS] = {{0, 0}}, all = {0, 0};
    const size_t rows[3] = {9, 7, 8};
    bool safe = true;
    const size_t third = (NVARIANTS + 2) / 3;
    for (size_t v = 0; v < third; v++) {
        lap_op_desc_t descs[3];
        for (size_t call = 0; call < 3; call++)
            descs[call] = describe(&variants[(v + third * call) % NVARIANTS], 9, 9, 5);
        safe &= try_sequence(descs, rows, 4, v % 2 ? CAN_LANES : CAN_PLAIN, tallies);
    }
    add_tallies(sums, tallies, &all);
    tap_ok(safe, "mixtures are safe as they are");
    tap_ok(all.mutants > 0 && all.survivors == 0,
           "mixtures: none of %zu mutants survives (%zu did)", all.mutants, all.survivors);
}

/* A step that does nothing must not be what the checker objects to. */
static void test_idle(void)
{
    static sequence_t sequence;
    lap_op_desc_t desc = describe(&variants[2], 9, 9, 3);
    size_t rows[1] = {9};
    tap_success(sequence_build(&sequence, &desc, rows, 1, 3, CAN_PLAIN), "a ring of three");
    for (int rank = 0; rank < 3; rank++) {
        lap_schedule_t *schedule = sequence_at(&sequence, 0, rank);
        lap_range_t nothing = {.place = LAP_SCRATCH, .rank = rank};
        uint32_t step = lap_add_copy(schedule, LAP_STREAM_SEND, nothing, nothing);
        make_idle(&schedule->steps[step]);
    }
    tap_success(sequence_check(&sequence), "steps that do nothing are no reason to object");
    sequence_clear(&sequence);
}

/* Whether the target can do a method. */
static bool is_done(const variant_t *variant)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    const lap_op_desc_t desc = describe(variant, 8, 8, 8);
    return !target || lap_problem_init(&problem, &builder, &desc, 2, target->can) == LAP_OK;
}

int main(int argc, char **argv)
{
    tally_t sums[MUTATIONS] = {{0, 0}};
    if (argc > 1)
        tap_success(lap_target_find(argv[1], &target), "what target %s is given", argv[1]);
    test_idle();
    for (size_t v = 0; v < NVARIANTS; v++)
        if (is_done(&variants[v]))
            test_variant(&variants[v], sums);
    if (!target)
        test_mixtures(sums);
    for (int i = 0; i < MUTATIONS; i++) {
        const bool none = target && (i == DROP_BLOCK_WAIT || i == DROP_BLOCK_RAISE);
        tap_ok((none || sums[i].mutants > 0) && sums[i].survivors == 0,
               "%s: %zu mutants, %zu survive", mutation_names[i], sums[i].mutants,
               sums[i].survivors);
    }
    return tap_done();
}
