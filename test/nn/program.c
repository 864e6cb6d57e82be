/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs of whole passes. They are proved for every kind of layers and on every target. Then each
 * single link, WAIT, RAISE, PUT, signal of a PUT, wait or raise of a block and dependency is
 * taken out of a program, on one rank or on all: the proof must object each time. So it misses
 * nothing, and linking adds no link that is not needed. Lowering may leave a dependency that others
 * imply, and linking one to what was sent from scratch memory; then that is shown. Each kernel is taken out,
 * too, also one that works in place. Fragments are taken out of all ranks, and moved to earlier places: order.h. Of a forward that gathers its weights each
 * gather is moved after all readers: they would read those of the step before.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../schedule/drop.h"
#include "core/status.h"
#include "describe.h"
#include "nn/program.h"
#include "order.h"
#include "schedule/lower.h"
#include "tap.h"

typedef enum mutation {
    DROP_LINK,
    DROP_STEP,
    DROP_SIGNAL,
    DROP_DEP,
    DROP_BLOCK_WAIT,
    DROP_BLOCK_RAISE,
    DROP_KERNEL,
    MUTATIONS
} mutation_t;

static const char *const mutation_names[MUTATIONS] = {
    "a link taken out",       "a WAIT, RAISE or PUT taken out", "a PUT without its signal",
    "a dependency taken out", "a block without its wait",       "a block without its raise",
    "a kernel taken out",
};

/* A later pass, one whose gradients are added to those before, and the first. */
typedef enum variant { PASS, PASS_MORE, PASS_FIRST } variant_t;

typedef struct tally {
    size_t mutants, implied, survivors;
} tally_t;

/* A fragment as it was: what a mutation may change. */
typedef struct saved {
    lap_step_t step;
    lap_tile_t *tiles;
    uint32_t nlinks;
    lap_link_dep_t *links;
} saved_t;

static void *copy_of(const void *array, size_t count, size_t size)
{
    void *copy = malloc(count * size + 1);
    if (!copy)
        exit(1);
    if (count)
        memcpy(copy, array, count * size);
    return copy;
}

static saved_t save(const lap_fragment_t *fragment, uint32_t index)
{
    return (saved_t){
        .step = fragment->schedule.steps[index],
        .tiles = copy_of(fragment->schedule.tiles, fragment->schedule.ntiles, sizeof(lap_tile_t)),
        .nlinks = fragment->nlinks,
        .links = copy_of(fragment->links, fragment->nlinks, sizeof(lap_link_dep_t)),
    };
}

static void restore(lap_fragment_t *fragment, uint32_t index, saved_t *saved)
{
    fragment->schedule.steps[index] = saved->step;
    if (fragment->schedule.ntiles)
        memcpy(fragment->schedule.tiles, saved->tiles,
               fragment->schedule.ntiles * sizeof(lap_tile_t));
    fragment->nlinks = saved->nlinks;
    if (saved->nlinks)
        memcpy(fragment->links, saved->links, saved->nlinks * sizeof(lap_link_dep_t));
    free(saved->tiles);
    free(saved->links);
}

/* Takes the `item`-th link of a step out; the others stay in their order. */
static bool drop_link(lap_fragment_t *fragment, uint32_t index, uint32_t item)
{
    for (uint32_t i = 0; i < fragment->nlinks; i++)
        if (fragment->links[i].step == index && item-- == 0) {
            memmove(&fragment->links[i], &fragment->links[i + 1],
                    (--fragment->nlinks - i) * sizeof(fragment->links[0]));
            return true;
        }
    return false;
}

static bool change(const lap_linked_t *linked, lap_fragment_t *fragment, uint32_t index,
                   mutation_t mutation, uint32_t item)
{
    if (index >= fragment->schedule.nsteps)
        return false;
    lap_step_t *step = &fragment->schedule.steps[index];
    lap_tile_t *tile =
        item < step->ntiles ? &fragment->schedule.tiles[step->first_tile + item] : NULL;
    switch (mutation) {
    case DROP_LINK:
        return drop_link(fragment, index, item);
    case DROP_STEP:
        if (item > 0 || (step->kind != LAP_STEP_WAIT && step->kind != LAP_STEP_RAISE &&
                         step->kind != LAP_STEP_PUT))
            return false;
        make_idle(step);
        return true;
    case DROP_SIGNAL:
        return item == 0 && drop_signal(step);
    case DROP_DEP:
        return drop_dep(&fragment->schedule, index, item);
    case DROP_BLOCK_WAIT:
        return tile && drop_tile_signal(&tile->wait);
    case DROP_KERNEL:
        if (item > 0 || step->kind != LAP_STEP_KERNEL || !order_writes(linked, fragment))
            return false;
        step->nuses = 0;
        return true;
    default:
        return tile && drop_tile_signal(&tile->raise);
    }
}

static bool in_line(const lap_target_t *target)
{
    return target->device.shares_queues;
}

/* As lap_nn_prove does, but of the calls only the one that was changed. */
static bool objects(const lap_nn_programs_t *programs, const lap_target_t *target, uint32_t f)
{
    const lap_schedule_t *call[16];
    for (int rank = 0; rank < programs->size; rank++) {
        const lap_fragment_t *first = &programs->programs[rank].fragments[f];
        const int size = first->schedule.size;
        if (first->schedule.rank != 0 || first->schedule.steps[0].kind == LAP_STEP_KERNEL)
            continue;
        for (int r = 0; r < size; r++)
            call[r] = &programs->programs[lap_fragment_rank(first, r)].fragments[f].schedule;
        if (lap_lowered_check(call, 1, size, target) == LAP_ERR_CHECK)
            return true;
    }
    return lap_linked_check(programs->list, programs->size, in_line(target)) == LAP_ERR_CHECK;
}

/* Whether a link is from a step that sends from scratch memory to a GEMM that writes there. */
static bool is_of_scratch(const lap_linked_t *linked, const saved_t *saved,
                          const lap_schedule_t *schedule, uint32_t index, uint32_t item)
{
    for (uint32_t i = 0; i < saved->nlinks; i++) {
        const lap_link_dep_t *link = &saved->links[i];
        if (link->step != index || item-- > 0)
            continue;
        const lap_step_t *from = &linked->fragments[link->fragment].schedule.steps[link->dep];
        const lap_step_t *to = &schedule->steps[index];
        const lap_schedule_t *sends = &linked->fragments[link->fragment].schedule;
        return from->kind == LAP_STEP_PUT &&
               lap_step_range(sends, from, LAP_ROLE_A)->place == LAP_SCRATCH && to->ntiles > 0 &&
               lap_tile_range(schedule, &schedule->tiles[to->first_tile], LAP_ROLE_D)->place ==
                   LAP_SCRATCH;
    }
    return true; /* it has none */
}

/*
 * Whether what was taken out is implied by what is left, on all ranks: a dependency by others, a
 * wait by one before it. Lowering adds order to what was needed, and may leave what that implies.
 * Linking sees one rank: of scratch memory that two operators share it cannot know that a peer's
 * answer shows that what was sent from there has left. The proof of all ranks does.
 */
static bool is_implied(const lap_nn_programs_t *programs, uint32_t f, int first, int end,
                       uint32_t index, mutation_t mutation, uint32_t item, const saved_t *saved)
{
    bool implied = mutation == DROP_DEP || mutation == DROP_STEP || mutation == DROP_LINK;
    for (int r = first; r < end && implied; r++) {
        const lap_schedule_t *schedule = &programs->programs[r].fragments[f].schedule;
        const lap_step_t *step = &saved[r].step;
        if (index >= schedule->nsteps || (mutation == DROP_DEP && item >= step->ndeps))
            continue;
        if (mutation == DROP_LINK) {
            implied = is_of_scratch(&programs->programs[r], &saved[r], schedule, index, item);
            continue;
        }
        implied = mutation == DROP_DEP
                      ? is_behind(schedule, index, lap_step_dep(schedule, step, item), UINT32_MAX)
                      : is_waited_for(schedule, index, step);
    }
    return implied;
}

/* Changes a step on one rank, or on all with rank -1, and sees whether the proof objects. */
static void try_mutant(lap_nn_programs_t *programs, const lap_target_t *target, uint32_t f,
                       int rank, uint32_t index, mutation_t mutation, uint32_t item, tally_t *tally)
{
    const int first = rank < 0 ? 0 : rank, end = rank < 0 ? programs->size : rank + 1;
    saved_t saved[16];
    bool changed = false;
    for (int r = first; r < end; r++) {
        lap_fragment_t *fragment = &programs->programs[r].fragments[f];
        const bool there = index < fragment->schedule.nsteps;
        saved[r] = save(fragment, there ? index : 0);
        changed |= change(&programs->programs[r], fragment, index, mutation, item);
    }
    if (changed) {
        tally->mutants++;
        const bool found = objects(programs, target, f);
        const bool implied =
            !found && is_implied(programs, f, first, end, index, mutation, item, saved);
        tally->implied += implied;
        if (!found && !implied && tally->survivors++ < 4) {
            char text[256];
            const lap_fragment_t *fragment = &programs->programs[first].fragments[f];
            lap_step_describe(&fragment->schedule, index, text, sizeof(text));
            tap_note("survived: %s: fragment %u (%s) rank %d %s, item %u", mutation_names[mutation],
                     (unsigned)f, fragment->schedule.method, rank, text, (unsigned)item);
        }
    }
    for (int r = first; r < end; r++) {
        lap_fragment_t *fragment = &programs->programs[r].fragments[f];
        restore(fragment, index < fragment->schedule.nsteps ? index : 0, &saved[r]);
    }
}

static uint32_t most_steps(const lap_nn_programs_t *programs, uint32_t f)
{
    uint32_t most = 0;
    for (int r = 0; r < programs->size; r++) {
        const uint32_t count = programs->programs[r].fragments[f].schedule.nsteps;
        most = count > most ? count : most;
    }
    return most;
}

static void try_all(lap_nn_programs_t *programs, const lap_target_t *target, tally_t *tallies)
{
    for (uint32_t f = 0; f < programs->programs[0].nfragments; f++)
        for (int rank = -1; rank < programs->size; rank++)
            for (uint32_t i = 0; i < most_steps(programs, f); i++)
                for (int mutation = 0; mutation < MUTATIONS; mutation++)
                    for (uint32_t item = 0; item < 8; item++)
                        try_mutant(programs, target, f, rank, i, (mutation_t)mutation, item,
                                   &tallies[mutation]);
}

static lap_nn_replication_t replication; /* of what follows */
static lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
static bool has_step = true;

static lap_nn_linking_t linking_of(const lap_target_t *target, variant_t variant)
{
    return (lap_nn_linking_t){.target = target,
                              .more = variant == PASS_MORE,
                              .first = variant == PASS_FIRST,
                              .replication = replication,
                              .optimizer = has_step && variant != PASS_FIRST ? &optimizer : NULL};
}

/* False, and a failed check, where it is not proved. */
static bool prove(const lap_nn_desc_t *desc, int nranks, variant_t variant,
                  const lap_target_t *target, const char *name)
{
    static const char *const variants[] = {"", ", gradients added", ", the first pass"};
    const lap_nn_linking_t linking = linking_of(target, variant);
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    lap_status_t status = lap_nn_plan_init(desc, nranks, &plan);
    if (status == LAP_OK)
        status = lap_nn_programs_init(&programs, &plan, &linking);
    if (status == LAP_OK)
        status = lap_linked_check(programs.list, programs.size, in_line(target));
    tap_success(status, "%s of %d ranks on %s%s is proved", name, nranks, target->name,
                variants[variant]);
    lap_nn_programs_clear(&programs);
    return status == LAP_OK;
}

static void prove_all(void)
{
    const lap_target_t *target;
    for (size_t t = 0; (target = lap_target_at(t)); t++)
        for (int kind = LAP_NN_LINEAR; kind <= LAP_NN_MODEL; kind++)
            for (int nranks = 1; nranks <= 4; nranks++)
                for (int way = 0; way < 6; way++) {
                    lap_nn_desc_t desc = describe((lap_nn_kind_t)kind);
                    desc.layers = kind >= LAP_NN_TRANSFORMER ? 2 : 1;
                    desc.recompute = (lap_recompute_t)(way % 3);
                    desc.fp8 = (lap_fp8_recipe_t)((way + nranks) % 3);
                    desc.activation = way < 3 ? LAP_GELU : LAP_SWIGLU;
                    desc.sequence_parallel = way != 4;
                    desc.row_parallel = kind == LAP_NN_LINEAR && way == 5;
                    optimizer.kind = way % 2 ? LAP_SGD : LAP_ADAMW;
                    optimizer.clip_norm = way % 3 ? 1 : 0;
                    (void)prove(&desc, nranks, (variant_t)((way + way / 3) % 3), target,
                                lap_nn_kind_name((lap_nn_kind_t)kind));
                }
}

static void mutate(const lap_nn_desc_t *desc, int nranks, variant_t variant,
                   const lap_target_t *target, tally_t *sums)
{
    tally_t tallies[MUTATIONS] = {{0, 0, 0}};
    const lap_nn_linking_t linking = linking_of(target, variant);
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    bool good = lap_nn_plan_init(desc, nranks, &plan) == LAP_OK &&
                lap_nn_programs_init(&programs, &plan, &linking) == LAP_OK &&
                lap_linked_check(programs.list, programs.size, in_line(target)) == LAP_OK;
    if (good)
        try_all(&programs, target, tallies);
    good = good && lap_linked_check(programs.list, programs.size, in_line(target)) == LAP_OK;
    tap_ok(good, "%s of %d ranks on %s is proved before and after", lap_nn_kind_name(desc->kind),
           nranks, target->name);
    lap_nn_programs_clear(&programs);
    tally_t all = {0, 0, 0};
    for (int i = 0; i < MUTATIONS; i++) {
        all.mutants += tallies[i].mutants;
        all.survivors += tallies[i].survivors;
        all.implied += tallies[i].implied;
        sums[i].mutants += tallies[i].mutants;
        sums[i].survivors += tallies[i].survivors;
        sums[i].implied += tallies[i].implied;
    }
    tap_ok(all.mutants > 0 && all.survivors == 0,
           "%s of %d ranks on %s: none of %zu mutants survives (%zu did) but for %zu that "
           "others imply",
           lap_nn_kind_name(desc->kind), nranks, target->name, all.mutants, all.survivors,
           all.implied);
}

/* Fragment f of a program becomes the last one; what it comes after, and who after it, is found anew. */
static lap_status_t move_last(lap_linked_t *linked, uint32_t f)
{
    const lap_fragment_t moved = linked->fragments[f];
    memmove(&linked->fragments[f], &linked->fragments[f + 1],
            (linked->nfragments - f - 1) * sizeof(moved));
    linked->fragments[linked->nfragments - 1] = moved;
    for (uint32_t i = 0; i < linked->nfragments; i++)
        linked->fragments[i].nlinks = 0;
    return lap_link(linked);
}

static bool is_of_weights(const lap_linked_t *linked, uint32_t f, int fragment)
{
    size_t index;
    int which;
    return lap_nn_bucket_of(linked->fragments[f].origin, &index, &which) && which == fragment;
}

/* Each gather of weights, with what packs them, is moved after all that reads them. */
static void gather_late(const lap_nn_desc_t *desc, variant_t variant, const lap_target_t *target)
{
    const lap_nn_linking_t linking = linking_of(target, variant);
    uint32_t tried = 0, found = 0, count = 2; /* until it is known */
    for (uint32_t f = 1; f < count; f++) {
        lap_nn_plan_t plan;
        lap_nn_programs_t programs = {.size = 0};
        bool good = lap_nn_plan_init(desc, 1, &plan) == LAP_OK &&
                    lap_nn_programs_init(&programs, &plan, &linking) == LAP_OK;
        count = good ? programs.programs[0].nfragments : 0;
        if (good && is_of_weights(&programs.programs[0], f, LAP_NN_BUCKET_GATHER)) {
            tried++;
            for (int r = 0; r < 2 * programs.size; r++)
                good = move_last(&programs.programs[r / 2], f - 1) == LAP_OK && good;
            found +=
                good &&
                lap_linked_check(programs.list, programs.size, in_line(target)) == LAP_ERR_CHECK &&
                (strstr(lap_last_error(), "a read of unwritten memory") ||
                 strstr(lap_last_error(), "not in the order of the list"));
        }
        lap_nn_programs_clear(&programs);
    }
    tap_ok(tried > 1 && found == tried,
           "weights of %s that are read before they are gathered, on %s: %u of %u found",
           lap_dtype_name(desc->dtype), target->name, (unsigned)found, (unsigned)tried);
}

/* See order.h. Buckets travel during backward or after it, weights of a shared optimizer before forward, during it or after the step. */
static void try_orders(void)
{
    for (int way = 0; way < 8; way++) {
        lap_nn_desc_t desc = describe(way % 4 == 3 ? LAP_NN_MODEL : LAP_NN_LAYERNORM_MLP);
        const lap_target_t *target = lap_target_at((size_t)way % 2);
        lap_nn_linking_t linking;
        lap_nn_plan_t plan;
        lap_nn_programs_t programs = {.size = 0};
        char what[64];
        desc.hidden = 16;
        desc.heads = 2;
        desc.seq = 4;
        desc.fp8 = way == 6 ? LAP_FP8_DELAYED : LAP_FP8_NONE;
        desc.recompute = way == 7 ? LAP_RECOMPUTE_FULL : LAP_RECOMPUTE_NONE;
        if (way % 4 == 2) {
            desc.shards = 2;
            desc.shard_bucket = 300;
        }
        replication = (lap_nn_replication_t){.replicas = way == 7 ? 0 : 2,
                                             .bucket = 300,
                                             .wire = way % 2 ? LAP_BFLOAT16 : LAP_FLOAT32,
                                             .late = way == 4,
                                             .ahead = way == 2,
                                             .starts = way == 2};
        linking = linking_of(target, way == 5 ? PASS_MORE : PASS);
        snprintf(what, sizeof(what), "order %d", way);
        tap_success(lap_nn_plan_init(&desc, way == 7 ? 2 : 1, &plan), "a plan");
        tap_success(lap_nn_programs_init(&programs, &plan, &linking), "its programs");
        order_mutate(&programs, way != 1, way == 1 ? 1 : 5, what);
        lap_nn_programs_clear(&programs);
    }
    replication = (lap_nn_replication_t){.replicas = 0};
}

/* Gradients go to replicas in the background of backward, or after it, in buckets of several sizes. */
static void try_replicas(const lap_target_t *target, tally_t *sums)
{
    for (int way = 0; way < 4; way++) {
        lap_nn_desc_t desc = describe(way % 2 ? LAP_NN_TRANSFORMER : LAP_NN_LAYERNORM_MLP);
        replication = (lap_nn_replication_t){.replicas = 2 + way / 2,
                                             .bucket = way == 1 ? 1 : (size_t)4000,
                                             .by_layer = way == 3,
                                             .wire = way % 2 ? LAP_FLOAT32 : LAP_BFLOAT16,
                                             .late = way == 2};
        for (int nranks = 1; nranks <= 2; nranks++)
            (void)prove(&desc, nranks, PASS_MORE, target, "replicas");
        if (way % 2 == 0)
            mutate(&desc, 2 - way / 2, PASS_MORE, target, sums);
        desc.shards = (size_t)replication.replicas;
        desc.shard_bucket = replication.bucket;
        desc.shard_by_layer = replication.by_layer;
        desc.dtype = way % 2 ? LAP_BFLOAT16 : LAP_FLOAT32;
        for (int nranks = 1; nranks <= 2; nranks++)
            (void)prove(&desc, nranks, PASS_MORE, target, "replicas that share the optimizer");
        if (way % 2 == 0) { /* a norm of all ranks would imply that a peer's memory is free */
            optimizer.clip_norm = 0;
            mutate(&desc, 1, PASS_MORE, target, sums);
            optimizer.clip_norm = 1;
        }
        replication.ahead = true;
        (void)prove(&desc, 1 + way % 2, PASS_FIRST, target, "weights gathered after forward");
        desc.fp8 = way / 2 ? LAP_FP8_DELAYED : LAP_FP8_CURRENT;
        desc.fp8_params = way % 2;
        (void)prove(&desc, 1 + way % 2, PASS_FIRST, target, "FP8 weights gathered after forward");
        desc.fp8 = LAP_FP8_NONE;
        desc.fp8_params = 0;
        for (int type = 0; way == 0 && type < 2; type++) {
            desc.dtype = type ? LAP_BFLOAT16 : LAP_FLOAT32;
            mutate(&desc, 1, PASS, target, sums);
            gather_late(&desc, PASS, target);
            gather_late(&desc, PASS_FIRST, target);
        }
    }
    replication = (lap_nn_replication_t){.replicas = 0};
}

int main(void)
{
    const lap_target_t *target;
    tally_t sums[MUTATIONS] = {{0, 0, 0}};
    prove_all();
    optimizer = (lap_optimizer_desc_t)LAP_OPTIMIZER_DESC_INIT;
    optimizer.clip_norm = 1;
    try_orders();
    for (size_t t = 0; (target = lap_target_at(t)); t++)
        try_replicas(target, sums);
    for (size_t t = 0; (target = lap_target_at(t)); t++)
        for (int nranks = 2; nranks <= 4; nranks++) {
            lap_nn_desc_t desc = describe(LAP_NN_LAYERNORM_MLP);
            lap_tp_overlap_t fused;
            mutate(&desc, nranks, PASS_MORE, target, sums);
            tap_success(lap_tp_overlap_init(nranks, &fused), "rules");
            for (int i = 0; i < LAP_TP_GEMMS; i++) /* all that can be */
                fused.rules[i].atomic_gemm = fused.rules[i].method == LAP_TP_RING_EXCHANGE ||
                                             fused.rules[i].method == LAP_TP_PIPELINE;
            desc.overlap = &fused;
            if (target->can & LAP_CAN_ADDRESS) /* else there are no such methods */
                mutate(&desc, nranks, PASS_MORE, target, sums);
            if (nranks > 3)
                continue;
            has_step = false; /* what follows another backward is no news */
            desc = describe(LAP_NN_TRANSFORMER);
            desc.recompute = LAP_RECOMPUTE_FULL;
            desc.fp8 = nranks == 2 ? LAP_FP8_DELAYED : LAP_FP8_NONE;
            mutate(&desc, nranks, PASS_MORE, target, sums);
            desc.sequence_parallel = 0;
            mutate(&desc, nranks, PASS_MORE, target, sums);
            desc = describe(LAP_NN_MODEL);
            desc.sequence_parallel = nranks == 2;
            mutate(&desc, nranks, PASS_MORE, target, sums);
            desc = describe(LAP_NN_LAYERNORM_MLP);
            desc.fp8 = nranks == 2 ? LAP_FP8_DELAYED : LAP_FP8_CURRENT;
            mutate(&desc, nranks, PASS_FIRST, target, sums);
            has_step = true;
        }
    for (int i = 0; i < MUTATIONS; i++)
        tap_ok(sums[i].mutants > 0 && sums[i].survivors == 0,
               "%s: %zu mutants, %zu survive, %zu are implied by others", mutation_names[i],
               sums[i].mutants, sums[i].survivors, sums[i].implied);
    return tap_done();
}
