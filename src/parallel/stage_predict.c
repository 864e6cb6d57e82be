/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicting a step of a pipeline. Each rank measures what its own layers cost, at the same time as the other
 * stages do; ranks give each other these figures, and the first one simulates the programs of all, which
 * follow from the table. What messages cost is measured over the whole pipeline.
 */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "nn/predict.h"
#include "overlap/op.h"
#include "parallel/stage_prove.h"
#include "parallel/stage_run.h"
#include "schedule/play.h"
#include "util/alloc.h"

/* ---- what ranks give each other ---- */

/* How many of each a rank has; of all ranks: the most that any of them has. */
enum { ENTRIES, CALLS, BUCKETS, STEPS, EXTENTS };

/* The figures of a rank, in memory that travels. */
typedef struct table {
    lap_step_cost_t *kernels; /* of each entry */
    lap_cost_t *costs;        /* of each operator, */
    double *finishes;
    uint64_t *counts; /* of steps that were measured: of operators, then of those of buckets */
    lap_step_cost_t *steps; /* all of these */
    lap_cost_t *bucket_cost;
    double *cast;
    double *rates; /* of updates, and of sums of squares */
} table_t;

static void *take(char *memory, size_t *used, size_t count, size_t bytes)
{
    void *place = memory ? memory + *used : NULL;
    *used += (count * bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double);
    return place;
}

/* Returns the bytes of a table. */
static size_t lay_out(const double extents[EXTENTS], char *memory, table_t *table)
{
    const size_t calls = (size_t)extents[CALLS];
    size_t used = 0;
    table->kernels = take(memory, &used, (size_t)extents[ENTRIES], sizeof(*table->kernels));
    table->costs = take(memory, &used, calls, sizeof(*table->costs));
    table->finishes = take(memory, &used, calls, sizeof(*table->finishes));
    table->counts = take(memory, &used, calls + (size_t)extents[BUCKETS], sizeof(*table->counts));
    table->steps = take(memory, &used, (size_t)extents[STEPS], sizeof(*table->steps));
    table->bucket_cost = take(memory, &used, 1, sizeof(*table->bucket_cost));
    table->cast = take(memory, &used, 1, sizeof(*table->cast));
    table->rates = take(memory, &used, 2, sizeof(*table->rates));
    return used;
}

/* The operators of layers, then those of buckets. */
static const lap_probed_t *probed_of(const lap_probe_t *probe, size_t i)
{
    const size_t calls = probe->nn->list.nsteps;
    return i < calls ? &probe->calls[i] : &probe->buckets[i - calls];
}

static size_t count_buckets(const lap_probe_t *probe)
{
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    return replicas ? 2 * replicas->replicas.buckets->count : 0;
}

static void fill_table(const lap_probe_t *probe, const double extents[EXTENTS], table_t *table)
{
    const lap_nn_t *nn = probe->nn;
    const size_t calls = nn->list.nsteps, all = calls + count_buckets(probe);
    size_t used = 0;
    memcpy(table->kernels, probe->kernels, nn->list.nentries * sizeof(*table->kernels));
    memcpy(table->costs, probe->costs, calls * sizeof(*table->costs));
    memcpy(table->finishes, probe->finishes, calls * sizeof(*table->finishes));
    for (size_t i = 0; i < all; i++) {
        const lap_probed_t *probed = probed_of(probe, i);
        table->counts[i < calls ? i : (size_t)extents[CALLS] + i - calls] = probed->count;
        if (probed->count > 0)
            memcpy(table->steps + used, probed->steps, probed->count * sizeof(*table->steps));
        used += probed->count;
    }
    *table->bucket_cost = probe->bucket_cost;
    *table->cast = probe->cast;
    table->rates[0] = probe->update_rate;
    table->rates[1] = probe->squares_rate;
}

/* The figures of all ranks, as if they had been measured here. */
typedef struct figures {
    void *all;           /* tables, one after the other */
    lap_probe_t *probes; /* of each rank; without layers */
    lap_probed_t *probed;
    lap_cost_t message;
} figures_t;

static void figures_clear(figures_t *figures)
{
    lap_free(figures->all);
    lap_free(figures->probes);
    lap_free(figures->probed);
}

static void read_table(const table_t *table, const double extents[EXTENTS], lap_probed_t *probed,
                       lap_probe_t *probe)
{
    const size_t calls = (size_t)extents[CALLS], all = calls + (size_t)extents[BUCKETS];
    lap_step_cost_t *steps = table->steps;
    *probe = (lap_probe_t){.kernels = table->kernels,
                           .costs = table->costs,
                           .finishes = table->finishes,
                           .calls = probed,
                           .buckets = probed + calls,
                           .bucket_cost = *table->bucket_cost,
                           .cast = *table->cast,
                           .update_rate = table->rates[0],
                           .squares_rate = table->rates[1]};
    for (size_t i = 0; i < all; i++) {
        const uint32_t count = (uint32_t)table->counts[i];
        probed[i] = (lap_probed_t){.steps = count > 0 ? steps : NULL, .count = count};
        steps += count;
    }
}

static lap_status_t read_all(lap_group_t *pipeline, const double extents[EXTENTS],
                             figures_t *figures)
{
    const size_t size = (size_t)pipeline->size;
    const size_t each = (size_t)extents[CALLS] + (size_t)extents[BUCKETS];
    figures->probes = lap_alloc(size, sizeof(*figures->probes));
    figures->probed = lap_alloc(size * each + 1, sizeof(*figures->probed));
    if (!figures->probes || !figures->probed)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %zu stages", size);
    for (size_t r = 0; r < size; r++) {
        table_t table;
        const size_t bytes = lay_out(extents, NULL, &table);
        (void)lay_out(extents, (char *)figures->all + r * bytes, &table);
        read_table(&table, extents, figures->probed + r * each, &figures->probes[r]);
    }
    return LAP_OK;
}

/* Collective over the pipeline. */
static lap_status_t share_figures(const lap_probe_t *probe, lap_group_t *pipeline,
                                  figures_t *figures)
{
    const size_t calls = probe->nn->list.nsteps, buckets = count_buckets(probe);
    double extents[EXTENTS] = {
        [ENTRIES] = probe->nn->list.nentries, [CALLS] = (double)calls, [BUCKETS] = (double)buckets};
    table_t table;
    for (size_t i = 0; i < calls + buckets; i++)
        extents[STEPS] += probed_of(probe, i)->count;
    for (int i = 0; i < EXTENTS; i++)
        LAP_TRY(lap_group_max(pipeline, &extents[i]));
    const size_t bytes = lay_out(extents, NULL, &table);
    char *memory = lap_alloc(bytes, 1);
    lap_status_t status = LAP_OK;
    if (!memory)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of a stage");
    status = lap_group_agree(pipeline, status);
    if (status == LAP_OK && memory) {
        (void)lay_out(extents, memory, &table);
        fill_table(probe, extents, &table);
        status = lap_group_collect(pipeline, memory, bytes, &figures->all);
    }
    lap_free(memory);
    LAP_TRY(status);
    return lap_group_agree(pipeline, read_all(pipeline, extents, figures));
}

/* ---- measuring ---- */

/* Of messages, of any of the pairs. Collective over the pipeline. */
static lap_status_t measure_messages(const lap_pp_t *pp, const lap_probe_t *probe, lap_cost_t *cost)
{
    const lap_buffer_t *buffer = NULL;
    for (uint32_t i = 0; i < pp->stages.npairs && !buffer; i++)
        buffer = pp->stages.pairs[i].tied ? NULL : pp->peers[i].buffers[0];
    *cost = probe->costs[0];
    return buffer ? lap_probe_calibrate(probe, pp->pipeline, buffer, pp->nn->list.plan.desc.dtype,
                                        0, 0, cost)
                  : LAP_OK; /* a pipeline of one rank */
}

static lap_status_t measure(lap_pp_t *pp, figures_t *figures)
{
    lap_probe_t probe;
    lap_status_t status = lap_probe_init(&probe, pp->nn);
    probe.ranks *= pp->pipeline->size;
    status = lap_probe_agree(&probe, status);
    if (status == LAP_OK)
        status = lap_probe_measure(&probe, true);
    status = lap_group_agree(pp->pipeline, status);
    if (status == LAP_OK)
        status = measure_messages(pp, &probe, &figures->message);
    if (status == LAP_OK)
        status = share_figures(&probe, pp->pipeline, figures);
    status = lap_probe_agree(&probe, status);
    lap_probe_clear(&probe);
    return status;
}

/* ---- simulating ---- */

/* The programs of all ranks, and how they are numbered. */
typedef struct played {
    const lap_stage_programs_t *programs;
    const lap_stage_proving_t *proving;
} played_t;

static int world_rank(const void *context, int rank)
{
    return lap_stage_world_rank(((const played_t *)context)->proving, rank);
}

static void describe(void *context, int rank, uint32_t f, lap_trace_label_t *label, char *name,
                     size_t bytes)
{
    const played_t *played = context;
    const lap_nn_list_t *list = &played->programs->all.lists[rank];
    const lap_stage_item_t *item = &played->programs->programs[rank].items[f];
    const lap_fragment_t *fragment = &played->programs->all.programs[rank].fragments[f];
    const bool entry = item->kind == LAP_STAGE_ENTRY;
    const bool layers = entry || item->kind == LAP_STAGE_BUCKET;
    lap_stage_name(list, item, name, bytes);
    *label = (lap_trace_label_t){
        .layer = entry ? (int)lap_nn_fragment_layer(list, item->entry) : -1,
        .traffic = layers ? lap_nn_fragment_traffic(fragment->schedule.size, fragment->buffer)
                          : LAP_TRAFFIC_PP,
        .live_bytes = entry ? lap_nn_live_bytes(list, item->entry) : 0,
    };
}

/* Of a rank that has fragment f. */
static lap_fragment_cost_t cost_of(const figures_t *figures, const lap_stage_programs_t *programs,
                                   int rank, int stage, uint32_t f)
{
    const lap_stage_item_t *item = &programs->programs[rank].items[f];
    const lap_linked_t *linked = &programs->all.programs[rank];
    const lap_probe_t *probe = &figures->probes[stage];
    switch (item->kind) {
    case LAP_STAGE_ENTRY:
        return lap_nn_entry_cost(probe, &programs->all.lists[rank], item->entry, linked, f);
    case LAP_STAGE_BUCKET:
        return lap_nn_bucket_cost(probe, &programs->buckets[rank], item->bucket, item->which);
    case LAP_STAGE_COPY:
        return (lap_fragment_cost_t){.cost = probe->costs,
                                     .kernel_s =
                                         lap_nn_kernel_estimate(linked, f, probe->costs->reduce)};
    default:
        return (lap_fragment_cost_t){.cost = &figures->message};
    }
}

static lap_status_t simulate(const figures_t *figures, const lap_stage_programs_t *programs,
                             int stages, int shown, lap_fragment_span_t *spans,
                             lap_simulated_t *simulated_p)
{
    const int size = programs->all.size, sharers = size / stages;
    size_t count = 0;
    for (int rank = 0; rank < size; rank++)
        count += programs->all.programs[rank].nfragments;
    lap_fragment_cost_t *own = lap_alloc(count + 1, sizeof(*own)), *next = own;
    const lap_fragment_cost_t **all = lap_alloc((size_t)size, sizeof(*all));
    lap_status_t status = LAP_OK;
    if (!all || !own)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %zu fragments", count);
    for (int rank = 0; rank < size && status == LAP_OK; rank++) {
        all[rank] = next;
        for (uint32_t f = 0; f < programs->all.programs[rank].nfragments; f++)
            *next++ = cost_of(figures, programs, rank, rank / sharers, f);
    }
    if (status == LAP_OK)
        status = lap_linked_simulate_each(programs->all.list, size, all, simulated_p, shown, spans);
    lap_free(own);
    lap_free(all);
    return status;
}

/*
 * Kernels and operators that are simulated at most, of all ranks, micro-batches and replicas. Linked, each takes
 * about 12 KB of one rank, which trains at the same time.
 */
#define MOST_SIMULATED 10000u

/* What lap_pp_wait waits for: without replicas also the sum of tied gradients, and all that `steps` is with. */
static lap_status_t play(const lap_pp_t *pp, const figures_t *figures, bool steps,
                         lap_trace_t *timeline, const lap_stage_viewer_t *viewer, double *seconds_p)
{
    lap_fragment_span_t *spans = NULL;
    lap_nn_desc_t desc;
    lap_stage_proving_t proving = lap_stage_own_proving(pp, &desc);
    const lap_nn_background_t *background = lap_stage_background(pp, steps);
    lap_stage_programs_t programs;
    lap_simulated_t simulated;
    if (!steps)
        proving.how.optimizer = NULL;
    if (!background) /* nor do contexts send any gradients */
        proving.how.replication = (lap_nn_replication_t){.late = true};
    const int shown = viewer ? lap_stage_number(&proving, viewer->rank) : 0;
    proving.most = MOST_SIMULATED;
    lap_status_t status = lap_stage_programs_init(&programs, &proving);
    played_t played = {&programs, &proving};
    lap_play_t watching = {.timeline = timeline,
                           .programs = programs.all.programs,
                           .size = programs.all.size,
                           .describe = describe,
                           .world_rank = world_rank,
                           .context = &played};
    if (status == LAP_OK && timeline)
        status = lap_play_init(&watching);
    if (status == LAP_OK && viewer) {
        spans = lap_alloc(programs.all.programs[shown].nfragments, sizeof(*spans));
        if (!spans)
            status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of a step");
    }
    if (status == LAP_OK)
        status = simulate(figures, &programs, pp->pipeline->size, shown, spans, &simulated);
    if (status == LAP_OK)
        *seconds_p =
            background && background->overlap && !steps ? simulated.foreground : simulated.seconds;
    if (status == LAP_OK && viewer)
        status = viewer->view(viewer->context, &proving, spans,
                              programs.all.programs[shown].nfragments, *seconds_p, simulated.call);
    lap_free(spans);
    lap_play_clear(&watching);
    lap_stage_programs_clear(&programs);
    return status;
}

/* Rank 0 of the world simulates: what it takes to do so is there once. */
lap_status_t lap_stage_predict(lap_pp_t *pp, lap_group_t *world, bool steps, lap_trace_t *timeline,
                               const lap_stage_viewer_t *viewer, double *seconds_p)
{
    figures_t figures = {.all = NULL};
    double seconds = 0;
    lap_status_t status = measure(pp, &figures);
    if (status == LAP_OK && world->rank == 0)
        status = play(pp, &figures, steps, timeline, viewer, &seconds);
    status = lap_group_agree(world, status);
    figures_clear(&figures);
    LAP_TRY(status);
    LAP_TRY(lap_group_broadcast(world, &seconds, sizeof(seconds)));
    *seconds_p = seconds;
    return LAP_OK;
}
