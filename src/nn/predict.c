/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicting a pass: what its fragments cost by themselves is measured (probe.h), and the simulator
 * does the rest.
 */
#include "nn/predict.h"

#include <string.h>

#include "core/status.h"
#include "nn/probe.h"
#include "nn/program.h"
#include "schedule/timeline.h"
#include "util/alloc.h"

/* ---- costs ---- */

/* What a kernel uses, by the rate of sums. */
static void add_bytes(void *context, const lap_range_t *range, bool write)
{
    (void)write;
    *(double *)context += (double)range->rows * (double)range->row_bytes;
}

static double estimate(const lap_linked_t *linked, uint32_t f, const lap_cost_t *cost)
{
    double bytes = 0;
    lap_link_each(linked, &linked->fragments[f], 0, LAP_NO_STEP, add_bytes, &bytes);
    return bytes / cost->reduce;
}

/* Of a bucket: one of its two operators, or a cast. */
static lap_fragment_cost_t bucket_cost(const lap_probe_t *probe, size_t index, int which)
{
    const lap_nn_buckets_t *buckets = lap_probe_replicas(probe)->replicas.buckets;
    lap_fragment_cost_t cost = {.cost = &probe->bucket_cost};
    if (which != LAP_NN_BUCKET_SCATTER && which != LAP_NN_BUCKET_GATHER) {
        cost.kernel_s = probe->cast * (double)buckets->list[index].count;
        return cost;
    }
    const lap_probed_t *probed = &probe->buckets[2 * index + (which == LAP_NN_BUCKET_GATHER)];
    cost.steps = probed->steps;
    cost.nsteps = probed->count;
    return cost;
}

static lap_fragment_cost_t cost_of(const lap_probe_t *probe, const lap_linked_t *linked, uint32_t f)
{
    const lap_nn_list_t *list = &probe->nn->list;
    const uint32_t origin = linked->fragments[f].origin;
    size_t index;
    int which;
    if (lap_nn_bucket_of(origin, &index, &which))
        return bucket_cost(probe, index, which);
    const lap_nn_entry_t *entry = &list->entries[origin];
    if (entry->work == LAP_NN_OPERATOR)
        return (lap_fragment_cost_t){.cost = &probe->costs[entry->index],
                                     .finish = probe->finishes[entry->index],
                                     .steps = probe->calls[entry->index].steps,
                                     .nsteps = probe->calls[entry->index].count};
    const lap_cost_t *cost = &probe->costs[0];
    return (lap_fragment_cost_t){.cost = cost,
                                 .kernel_s = estimate(linked, f, cost),
                                 .steps = &probe->kernels[origin],
                                 .nsteps = 1};
}

/* ---- a timeline of what is played ---- */

typedef struct player {
    const lap_nn_programs_t *programs;
    lap_timeline_t *timeline;
    uint32_t *numbers; /* of each fragment of each rank, among the calls of its group */
    uint64_t *live;    /* bytes that are live at each fragment */
    lap_step_watch_t watch;
} player_t;

static bool is_kernel(const lap_schedule_t *schedule)
{
    return schedule->steps[0].kind == LAP_STEP_KERNEL;
}

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * 1e9) + 1; /* 0 is no time */
}

static void add_step(void *context, int rank, uint32_t f, uint32_t step, uint32_t block,
                     const lap_step_times_t *times)
{
    const player_t *player = context;
    const lap_linked_t *program = &player->programs->programs[rank];
    const lap_nn_list_t *list = &player->programs->lists[rank];
    const lap_fragment_t *fragment = &program->fragments[f];
    const lap_schedule_t *schedule = &fragment->schedule;
    const lap_span_t span = {ns_of(times->ready), ns_of(times->begin), ns_of(times->end)};
    char name[64];
    lap_nn_fragment_name(list, fragment->origin, name, sizeof(name));
    const lap_timeline_call_t call = {
        .name = name,
        .layer = (int)lap_nn_fragment_layer(list, fragment->origin),
        .base = fragment->base,
        .stride = fragment->stride,
        .traffic = schedule->set == LAP_BACKGROUND ? LAP_TRAFFIC_DP : LAP_TRAFFIC_TP,
        .live_bytes = player->live[f],
    };
    if (is_kernel(schedule)) {
        lap_timeline_add_span(player->timeline, program->rank, LAP_STEP_KERNEL,
                              schedule->steps[0].stream, &call, schedule->steps[0].name, &span);
        return;
    }
    lap_timeline_record_t record = lap_timeline_describe(
        &call, player->numbers[(size_t)rank * program->nfragments + f], schedule, step, block);
    record.ready = span.ready;
    record.begin = span.begin;
    record.end = span.end;
    record.sent = times->came > 0 ? ns_of(times->sent) : 0;
    record.came = times->came > 0 ? ns_of(times->came) : 0;
    lap_timeline_add(player->timeline, &record);
}

/* Numbers calls as ranks that run them do. Cleared by the caller, also after a failure. */
static lap_status_t player_init(player_t *player, const lap_nn_programs_t *programs,
                                lap_timeline_t *timeline)
{
    const uint32_t count = programs->programs[0].nfragments;
    *player = (player_t){.programs = programs, .timeline = timeline, .watch = {add_step, player}};
    player->numbers = lap_alloc((size_t)programs->size * count, sizeof(*player->numbers));
    player->live = lap_alloc(count, sizeof(*player->live));
    if (!player->numbers || !player->live)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a timeline of %d ranks", programs->size);
    for (int r = 0; r < programs->size; r++) {
        lap_linked_t *program = &programs->programs[r];
        lap_timeline_t counter = {.size = programs->size};
        program->watch = &player->watch;
        for (uint32_t f = 0; f < count; f++) {
            const lap_fragment_t *fragment = &program->fragments[f];
            const bool listed = fragment->origin < programs->lists[r].parts[LAP_NN_STEP];
            if (r == 0 && listed)
                player->live[f] = lap_nn_live_bytes(&programs->lists[0], fragment->origin);
            if (!is_kernel(&fragment->schedule))
                player->numbers[(size_t)r * count + f] =
                    lap_timeline_number(&counter, fragment->base, fragment->stride);
        }
    }
    return LAP_OK;
}

static void player_clear(player_t *player)
{
    lap_free(player->numbers);
    lap_free(player->live);
}

/* ---- playing ---- */

static lap_status_t play(const lap_probe_t *probe, const lap_nn_programs_t *programs,
                         double *seconds_p, int rank, lap_fragment_span_t *spans)
{
    const lap_linked_t *own = &programs->programs[0];
    lap_fragment_cost_t *costs = lap_alloc(own->nfragments, sizeof(*costs));
    lap_simulated_t simulated;
    if (!costs)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %u fragments",
                         (unsigned)own->nfragments);
    for (uint32_t f = 0; f < own->nfragments; f++)
        costs[f] = cost_of(probe, own, f);
    const lap_status_t status =
        lap_linked_simulate(programs->list, programs->size, costs, &simulated, rank, spans);
    lap_free(costs);
    if (status == LAP_OK)
        *seconds_p = simulated.foreground;
    return status;
}

/* Whether the last pass of a step has more in it than those before. */
static bool has_last(const lap_probe_t *probe, const lap_nn_prediction_t *prediction)
{
    return lap_probe_replicas(probe) || prediction->step;
}

/* `last`: gradients go to replicas, and are all that a step needs. */
static lap_status_t play_variant(const lap_probe_t *probe, bool more, bool last,
                                 lap_nn_prediction_t *prediction)
{
    const lap_nn_background_t *replicas = last ? lap_probe_replicas(probe) : NULL;
    lap_fragment_span_t *spans = more || last ? NULL : prediction->spans;
    lap_timeline_t *timeline = more || last != (prediction->last && has_last(probe, prediction))
                                   ? NULL
                                   : prediction->timeline;
    player_t player = {.numbers = NULL};
    const lap_nn_source_t source = lap_nn_chosen(probe->nn);
    lap_nn_linking_t linking = {
        .target = &probe->nn->calls[0].op->target, .more = more, .source = &source};
    if (replicas) {
        const lap_nn_buckets_t *buckets = replicas->replicas.buckets;
        linking.replication = (lap_nn_replication_t){.replicas = buckets->replicas /
                                                                 (int)probe->nn->list.plan.desc.cp,
                                                     .bucket = buckets->elements,
                                                     .ahead = replicas->ahead,
                                                     .wire = buckets->wire};
    }
    if (last && prediction->step)
        linking.optimizer = &probe->nn->optimizer;
    lap_nn_programs_t programs;
    lap_status_t status = lap_nn_programs_init(&programs, &probe->nn->list.plan, &linking);
    if (status == LAP_OK && timeline)
        status = player_init(&player, &programs, timeline);
    if (status == LAP_OK)
        status = play(probe, &programs, &prediction->seconds[more][last], prediction->rank, spans);
    player_clear(&player);
    lap_nn_programs_clear(&programs);
    return status;
}

static lap_status_t play_all(const lap_probe_t *probe, lap_nn_prediction_t *prediction)
{
    for (int more = 0; more < 2; more++)
        for (int last = 0; last < 2; last++) {
            if (last && !has_last(probe, prediction))
                prediction->seconds[more][1] = prediction->seconds[more][0];
            else
                LAP_TRY(play_variant(probe, more, last, prediction));
        }
    return LAP_OK;
}

/* Rank 0 plays for all. */
static lap_status_t share(const lap_probe_t *probe, lap_nn_prediction_t *prediction)
{
    lap_group_t *group = probe->nn->group;
    lap_status_t status = LAP_OK;
    if (group->rank == 0)
        status = play_all(probe, prediction);
    LAP_TRY(lap_probe_agree(probe, status));
    void *all;
    LAP_TRY(lap_group_collect(group, prediction->seconds, sizeof(prediction->seconds), &all));
    memcpy(prediction->seconds, all, sizeof(prediction->seconds));
    lap_free(all);
    return LAP_OK;
}

lap_status_t lap_nn_predict(lap_nn_t *nn, lap_nn_prediction_t *prediction)
{
    lap_probe_t probe;
    lap_status_t status = lap_probe_init(&probe, nn);
    status = lap_probe_agree(&probe, status);
    if (status == LAP_OK)
        status = lap_probe_measure(&probe);
    if (status == LAP_OK)
        status = share(&probe, prediction);
    lap_probe_clear(&probe);
    return status;
}
