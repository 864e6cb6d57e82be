/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole steps where streams of a GPU share hardware queues. A step whose foreground waits for its buckets is proved as
 * it is launched there: a graph for each segment. As one graph it is refused, since a bucket may wait before layers
 * that are listed earlier have sent.
 */
#include "core/status.h"
#include "describe.h"
#include "nn/program.h"
#include "schedule/lower.h"
#include "schedule/segments.h"
#include "tap.h"
#include "util/alloc.h"

static lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;

typedef struct grid {
    const char *name;
    int tp, replicas;
    size_t cp;
    bool shards, ahead, clips;
} grid_t;

static const grid_t grids[] = {
    {"tp 2 x dp 2", 2, 2, 1, false, false, true},
    {"tp 2 x dp 2 without a norm", 2, 2, 1, false, false, false},
    {"tp 2 x dp 2, a distributed optimizer", 2, 2, 1, true, true, true},
    {"tp 2 x cp 2", 2, 1, 2, false, false, true},
    {"cp 2 x dp 2", 1, 2, 2, false, false, true},
};

static lap_status_t make(const grid_t *grid, const lap_target_t *target, lap_nn_plan_t *plan,
                         lap_nn_programs_t *programs)
{
    const lap_nn_linking_t linking = {.target = target,
                                      .optimizer = &optimizer,
                                      .replication = {.replicas = grid->replicas,
                                                      .bucket = 300,
                                                      .wire = LAP_FLOAT32,
                                                      .ahead = grid->ahead,
                                                      .starts = grid->ahead}};
    lap_nn_desc_t desc = describe(LAP_NN_MODEL);
    optimizer.clip_norm = grid->clips ? 1 : 0;
    desc.layers = 2;
    desc.cp = grid->cp;
    if (grid->shards) {
        desc.shards = (size_t)grid->replicas;
        desc.shard_bucket = 300;
    }
    LAP_TRY(lap_nn_plan_init(&desc, grid->tp, plan));
    return lap_nn_programs_init(programs, plan, &linking);
}

/* A graph of one set, which waits for others with its first fragment only; how many there are. */
static size_t count_segments(const lap_linked_t *linked, bool *good)
{
    bool *begins = lap_alloc((size_t)linked->nfragments + 1, sizeof(*begins));
    size_t count = 0;
    if (!begins)
        return 0;
    lap_linked_cut(linked, begins);
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        const lap_fragment_t *fragment = &linked->fragments[f];
        count += begins[f];
        *good = *good && (begins[f] || (f > 0 && linked->fragments[f - 1].schedule.set ==
                                                     fragment->schedule.set));
        for (uint32_t i = 0; i < fragment->nlinks; i++)
            *good = *good &&
                    (begins[f] || linked->fragments[fragment->links[i].fragment].schedule.set ==
                                      fragment->schedule.set);
    }
    lap_free(begins);
    return count;
}

static void set_all(lap_nn_programs_t *programs, lap_stream_set_t *sets, bool restore)
{
    size_t at = 0;
    for (int rank = 0; rank < programs->size; rank++)
        for (uint32_t f = 0; f < programs->programs[rank].nfragments; f++, at++) {
            lap_stream_set_t *set = &programs->programs[rank].fragments[f].schedule.set;
            if (!restore)
                sets[at] = *set;
            *set = restore ? sets[at] : LAP_FOREGROUND;
        }
}

static void try_grid(const grid_t *grid, const lap_target_t *target)
{
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    if (!tap_success(make(grid, target, &plan, &programs), "%s: its programs", grid->name))
        return;
    bool good = true;
    size_t fragments = 0;
    for (int rank = 0; rank < programs.size; rank++) {
        const lap_linked_t *linked = &programs.programs[rank];
        fragments += linked->nfragments;
        good = good && lap_linked_goes_back(linked) && count_segments(linked, &good) > 2;
    }
    tap_ok(good, "... are segments of one set, each of which begins where it waits for another");
    tap_success(lap_linked_check(programs.list, programs.size, true),
                "... and are proved where streams share queues");
    lap_stream_set_t *sets = lap_alloc(fragments, sizeof(*sets));
    if (sets) {
        set_all(&programs, sets, false); /* the streams stay, and all of it is one segment */
        tap_success(lap_linked_check(programs.list, programs.size, false),
                    "as one graph they are proved where each stream has a queue");
        tap_failure(lap_linked_check(programs.list, programs.size, true), LAP_ERR_CHECK,
                    "a wait that may hold up a shared queue", "WAIT", "does not come after",
                    "listed before it in the same graph", NULL);
        set_all(&programs, sets, true);
        tap_success(lap_linked_check(programs.list, programs.size, true), "as it was, it is");
    }
    lap_free(sets);
    lap_nn_programs_clear(&programs);
}

/* What is in the foreground alone is one segment, and may be one graph however few queues there are. */
static void try_alone(const lap_target_t *target)
{
    const grid_t alone = {"tp 4", 4, 1, 1, false, false, true};
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    bool good = true;
    if (!tap_success(make(&alone, target, &plan, &programs), "%s: its programs", alone.name))
        return;
    for (int rank = 0; rank < programs.size; rank++)
        good = good && !lap_linked_goes_back(&programs.programs[rank]) &&
               count_segments(&programs.programs[rank], &good) == 1;
    tap_ok(good, "... are one segment each");
    tap_success(lap_linked_check(programs.list, programs.size, true), "... and proved");
    lap_nn_programs_clear(&programs);
}

int main(void)
{
    const lap_target_t *target;
    tap_success(lap_target_find("cuda", &target), "a target whose streams share queues");
    for (size_t i = 0; i < sizeof(grids) / sizeof(grids[0]); i++)
        try_grid(&grids[i], target);
    try_alone(target);
    return tap_done();
}
