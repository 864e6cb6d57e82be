/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicting a pass: what its fragments cost by themselves is measured (probe.h), and the simulator
 * does the rest.
 */
#include "nn/predict.h"

#include <string.h>

#include "core/status.h"
#include "nn/context.h"
#include "nn/program.h"
#include "schedule/play.h"
#include "util/alloc.h"

/* ---- costs ---- */

/* What a kernel reads and writes. */
static void add_bytes(void *context, const lap_range_t *range, bool write)
{
    (void)write;
    *(double *)context += (double)range->rows * (double)range->row_bytes;
}

double lap_nn_kernel_estimate(const lap_linked_t *linked, uint32_t f, double rate)
{
    double bytes = 0;
    lap_link_each(linked, &linked->fragments[f], 0, LAP_NO_STEP, add_bytes, &bytes);
    return bytes / rate;
}

lap_fragment_cost_t lap_nn_bucket_cost(const lap_probe_t *probe, const lap_nn_buckets_t *buckets,
                                       size_t index, int which)
{
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

/* The copies of weights and the updates that they follow are as fast: memory is all that they need. */
static double rate_of(const lap_probe_t *probe, const lap_nn_list_t *list, uint32_t index)
{
    return list->entries[index].work == LAP_NN_SQUARES ? probe->squares_rate
           : index >= list->parts[LAP_NN_REFRESH]      ? probe->update_rate
                                                       : probe->costs[0].reduce;
}

lap_fragment_cost_t lap_nn_entry_cost(const lap_probe_t *probe, const lap_nn_list_t *list,
                                      uint32_t index, const lap_linked_t *linked, uint32_t f)
{
    const lap_nn_entry_t *entry = &list->entries[index];
    if (entry->work == LAP_NN_OPERATOR)
        return (lap_fragment_cost_t){.cost = &probe->costs[entry->index],
                                     .finish = probe->finishes[entry->index],
                                     .steps = probe->calls[entry->index].steps,
                                     .nsteps = probe->calls[entry->index].count};
    const double rate = rate_of(probe, list, index);
    return (lap_fragment_cost_t){.cost = &probe->costs[0],
                                 .kernel_s = lap_nn_kernel_estimate(linked, f, rate),
                                 .steps = &probe->kernels[index],
                                 .nsteps = 1};
}

static lap_fragment_cost_t cost_of(const lap_probe_t *probe, const lap_linked_t *linked, uint32_t f)
{
    const uint32_t origin = linked->fragments[f].origin;
    size_t index;
    int which;
    if (lap_nn_bucket_of(origin, &index, &which))
        return lap_nn_bucket_cost(probe, lap_probe_replicas(probe)->replicas.buckets, index, which);
    return lap_nn_entry_cost(probe, &probe->nn->list, origin, linked, f);
}

/* ---- a timeline of what is simulated ---- */

static void describe(void *context, int rank, uint32_t f, lap_trace_label_t *label, char *name,
                     size_t bytes)
{
    const lap_nn_programs_t *programs = context;
    const lap_nn_list_t *list = &programs->lists[rank];
    const lap_fragment_t *fragment = &programs->programs[rank].fragments[f];
    const bool listed = fragment->origin < list->parts[LAP_NN_STEP];
    lap_nn_fragment_name(list, fragment->origin, name, bytes);
    *label = (lap_trace_label_t){
        .layer = (int)lap_nn_fragment_layer(list, fragment->origin),
        .traffic = lap_nn_fragment_traffic(fragment->schedule.size, fragment->buffer),
        .live_bytes = listed ? lap_nn_live_bytes(list, fragment->origin) : 0,
    };
}

/* ---- playing ---- */

static lap_status_t play(const lap_probe_t *probe, const lap_nn_programs_t *programs, int rank,
                         lap_fragment_span_t *spans, lap_simulated_t *simulated_p)
{
    const lap_linked_t *own = &programs->programs[0];
    lap_fragment_cost_t *costs = lap_alloc(own->nfragments, sizeof(*costs));
    if (!costs)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %u fragments",
                         (unsigned)own->nfragments);
    for (uint32_t f = 0; f < own->nfragments; f++)
        costs[f] = cost_of(probe, own, f);
    const lap_status_t status =
        lap_linked_simulate(programs->list, programs->size, costs, simulated_p, rank, spans);
    lap_free(costs);
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
    const bool wanted = !more && last == (prediction->last && has_last(probe, prediction));
    lap_fragment_span_t *spans = wanted ? prediction->spans : NULL;
    lap_trace_t *timeline = wanted ? prediction->timeline : NULL;
    const lap_nn_source_t source = lap_nn_chosen(probe->nn);
    lap_nn_linking_t linking = {
        .target = &probe->nn->calls[0].op->target, .more = more, .source = &source};
    if (lap_probe_replicas(probe)) /* weights that forward gathers come with the first of a step */
        linking.replication = lap_nn_replication(probe->nn);
    linking.replication.held = !last;
    if (last && prediction->step)
        linking.optimizer = &probe->nn->optimizer;
    lap_nn_programs_t programs;
    lap_simulated_t simulated;
    lap_status_t status = lap_nn_programs_init(&programs, &probe->nn->list.plan, &linking);
    lap_play_t watching = {.timeline = timeline,
                           .programs = programs.programs,
                           .size = programs.size,
                           .describe = describe,
                           .context = &programs};
    if (status == LAP_OK && timeline)
        status = lap_play_init(&watching);
    if (status == LAP_OK)
        status = play(probe, &programs, prediction->rank, spans, &simulated);
    if (status == LAP_OK) {
        prediction->seconds[more][last] = simulated.foreground;
        prediction->call_s = simulated.call;
    }
    lap_play_clear(&watching);
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
    return lap_group_broadcast(group, prediction->seconds, sizeof(prediction->seconds));
}

lap_status_t lap_nn_predict(lap_nn_t *nn, lap_nn_prediction_t *prediction)
{
    lap_probe_t probe;
    lap_status_t status = lap_probe_init(&probe, nn);
    status = lap_probe_agree(&probe, status);
    if (status == LAP_OK)
        status = lap_probe_measure(&probe, prediction->step);
    if (status == LAP_OK)
        status = share(&probe, prediction);
    lap_probe_clear(&probe);
    return status;
}
