/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallelism: buckets of gradients, each a reduce-scatter and then an all-gather in the
 * background of backward, or after it. Where replicas share the optimizer, the all-gather is of weights, in the
 * background of the next forward, or after the step.
 */
#include "parallel/data_parallel.h"

#include <string.h>

#include "core/options.h"
#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "overlap/op.h"
#include "schedule/run.h"
#include "schedule/trace.h"
#include "util/alloc.h"
#include "util/clock.h"

typedef struct bucket {
    lap_op_t *scatter, *gather;
    lap_trace_t *traces[2];
} bucket_t;

struct lap_dp {
    lap_nn_t *nn;
    lap_group_t *group;
    lap_dp_options_t options;
    lap_engine_t *engine; /* in whose background the buckets travel */
    lap_buffer_t *buffer;
    size_t bytes, nsignals; /* of the buffer */
    lap_nn_buckets_t cut;   /* which buckets there are */
    bucket_t *buckets;
    size_t nbuckets;
    lap_nn_background_t background; /* what they add to backward */
    void *memory[LAP_NN_WIRE_REGIONS];
    bool joined; /* the layers know of it */
    bool measures;
    double total_s, waited_s;
    lap_interval_t waited; /* when that was */
};

/* On which gradients are cast. */
static lap_stream_t *stream_of(const lap_dp_t *dp)
{
    return dp->engine->streams[lap_stream_of(LAP_BACKGROUND, LAP_STREAM_COMPUTE)];
}

/* ---- making it ---- */

static lap_op_desc_t describe(const lap_dp_t *dp, size_t index, int which)
{
    lap_op_desc_t desc = lap_nn_bucket_desc(&dp->cut, index, which);
    desc.buffer = dp->buffer;
    return desc;
}

/* One buffer for all buckets: they travel one after the other. */
static lap_status_t size_buffer(lap_dp_t *dp)
{
    static const int calls[] = {LAP_NN_BUCKET_SCATTER, LAP_NN_BUCKET_GATHER};
    for (size_t i = 0; i < 2 * dp->nbuckets; i++) {
        size_t own_bytes, own_signals;
        const lap_op_desc_t desc = describe(dp, i / 2, calls[i % 2]);
        LAP_TRY(lap_op_buffer_size(&desc, dp->group->size, &own_bytes, &own_signals));
        dp->bytes = own_bytes > dp->bytes ? own_bytes : dp->bytes;
        dp->nsignals = own_signals > dp->nsignals ? own_signals : dp->nsignals;
    }
    return LAP_OK;
}

/* Collective. */
static lap_status_t make_operators(lap_dp_t *dp)
{
    LAP_TRY(lap_buffer_create(dp->group, dp->bytes, dp->nsignals, dp->options.buffer_options,
                              &dp->buffer));
    for (size_t i = 0; i < dp->nbuckets; i++) {
        bucket_t *bucket = &dp->buckets[i];
        const lap_op_desc_t scatter = describe(dp, i, LAP_NN_BUCKET_SCATTER);
        const lap_op_desc_t gather = describe(dp, i, LAP_NN_BUCKET_GATHER);
        LAP_TRY(lap_op_create(dp->group, &scatter, &bucket->scatter));
        LAP_TRY(lap_op_create(dp->group, &gather, &bucket->gather));
        lap_op_drop_runnables(bucket->scatter);
        lap_op_drop_runnables(bucket->gather);
    }
    return LAP_OK;
}

/* Memory for the largest bucket; where gradients travel as they are, they serve for all of it. */
static lap_status_t alloc_memory(lap_dp_t *dp)
{
    lap_device_t *device = dp->engine->device;
    const size_t width = lap_dtype_size(dp->options.wire_dtype);
    const size_t own = dp->cut.sharded ? sizeof(float) : width;
    LAP_TRY(device->ops->alloc(device, dp->cut.most_own * own, &dp->memory[LAP_NN_SUM]));
    return dp->options.wire_dtype == LAP_FLOAT32
               ? LAP_OK
               : device->ops->alloc(device, dp->cut.most * width, &dp->memory[LAP_NN_WIRE]);
}

static lap_status_t read_options(const lap_dp_options_t *given, lap_dp_options_t *options_p)
{
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    if (given)
        LAP_TRY(lap_read_options(&options, sizeof(options), given, "LAP_DP_OPTIONS"));
    if (options.wire_dtype != LAP_FLOAT32 && options.wire_dtype != LAP_BFLOAT16)
        return lap_error(LAP_ERR_UNSUPPORTED, "wire_dtype is %s, expected float32 or bfloat16",
                         lap_dtype_name(options.wire_dtype));
    *options_p = options;
    return LAP_OK;
}

/* Layers that share the optimizer with other ranks have their buckets already. */
static lap_status_t choose_bucket(lap_dp_t *dp)
{
    const lap_nn_buckets_t *shards = dp->nn->list.shards;
    if (shards && !lap_nn_is_same_group(dp->group, dp->nn->sharers))
        return lap_error(LAP_ERR_INVALID,
                         "lap_dp_create: group has %d ranks, expected the %d of shard_group, which "
                         "share the optimizer of these layers",
                         dp->group->size, dp->nn->sharers->size);
    if (shards && dp->options.bucket != 0 && shards->elements == SIZE_MAX)
        return lap_error(LAP_ERR_INVALID,
                         "bucket is %zu, expected 0: with shard_by_layer a bucket is a layer",
                         dp->options.bucket);
    if (shards && dp->options.bucket != 0 && dp->options.bucket != shards->elements)
        return lap_error(LAP_ERR_INVALID,
                         "bucket is %zu, expected 0 or the %zu elements of shard_bucket",
                         dp->options.bucket, shards->elements);
    if (shards && dp->options.by_layer && !shards->by_layer)
        return lap_error(
            LAP_ERR_INVALID,
            "by_layer is %d, expected 0, as shard_by_layer is: the optimizer is shared",
            dp->options.by_layer);
    if (shards) {
        dp->options.bucket = shards->elements;
        dp->options.by_layer = shards->by_layer;
    }
    return LAP_OK;
}

/* Local: all that needs no other rank, and can fail on a single one. */
static lap_status_t plan(lap_dp_t *dp, const lap_dp_options_t *given)
{
    LAP_TRY(read_options(given, &dp->options));
    if (dp->nn->joined)
        return lap_error(LAP_ERR_INVALID,
                         "lap_dp_create: the layers have replicas already, expected lap_dp_destroy "
                         "of these before");
    LAP_TRY(choose_bucket(dp));
    LAP_TRY(lap_nn_buckets_init(&dp->cut, &dp->nn->list, dp->options.bucket,
                                dp->options.by_layer != 0, dp->options.wire_dtype, dp->group->size,
                                dp->group->rank));
    dp->buckets = lap_alloc(dp->cut.count, sizeof(*dp->buckets));
    if (!dp->buckets)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu buckets", dp->cut.count);
    dp->nbuckets = dp->cut.count;
    LAP_TRY(size_buffer(dp));
    LAP_TRY(lap_engine_get(dp->group->world, &dp->engine));
    LAP_TRY(lap_engine_need_set(dp->engine, LAP_BACKGROUND));
    return alloc_memory(dp);
}

/* Collective. */
static lap_status_t compare(const lap_dp_t *dp, lap_nn_t *nn, lap_group_t *group,
                            lap_status_t status)
{
    lap_terms_t terms = {.of = "lap_dp_create"};
    if (status == LAP_OK) {
        lap_terms_number(&terms, "by_layer", dp->cut.by_layer);
        lap_terms_number(&terms, "bucket", dp->cut.elements);
        lap_terms_text(&terms, "wire_dtype", lap_dtype_name(dp->options.wire_dtype));
        lap_terms_number(&terms, "overlap", dp->options.overlap != 0);
        lap_terms_number(&terms, "overlap_weights", dp->options.overlap_weights != 0);
        lap_terms_number(&terms, "overlap_step", dp->options.overlap_step != 0);
    }
    status = lap_nn_compare_replicas(nn, group, &terms, status);
    lap_terms_clear(&terms);
    return status;
}

/* ---- as a part of passes ---- */

/* The call of a bucket: see lap_nn_background_t. */
static lap_op_t *call_of(void *context, size_t index, int which, lap_trace_t **trace_p)
{
    const lap_dp_t *dp = context;
    const bucket_t *bucket = &dp->buckets[index];
    const bool scatter = which == LAP_NN_BUCKET_SCATTER;
    *trace_p = dp->measures ? bucket->traces[!scatter] : NULL;
    return scatter ? bucket->scatter : bucket->gather;
}

static lap_status_t build(void *context, size_t index, int which, lap_schedule_t *schedule_p)
{
    const lap_dp_t *dp = context;
    lap_trace_t *trace;
    const lap_op_t *op = call_of(context, index, which, &trace);
    return lap_op_schedule(op, dp->cut.list[index].rows, dp->group->rank, schedule_p);
}

/* Ranks are numbered as in a proof: those that share weights are neighbours, then contexts, then replicas. */
static void join(lap_dp_t *dp)
{
    dp->background = (lap_nn_background_t){
        .replicas = {.buckets = &dp->cut,
                     .base = dp->nn->list.rank,
                     .stride = dp->nn->list.plan.nranks,
                     .build = build,
                     .context = dp},
        .group = dp->group,
        .buffer = dp->buffer,
        .overlap = dp->options.overlap != 0,
        .ahead = dp->cut.sharded && dp->options.overlap_weights != 0,
        .starts =
            dp->cut.sharded && dp->options.overlap_weights != 0 && dp->options.overlap_step != 0,
        .memory = dp->memory,
        .call = call_of,
        .context = dp,
    };
    dp->joined = dp->nn->joined = true;
    dp->nn->sync = LAP_NN_OWN;
    dp->nn->replicas = dp->group;
    lap_nn_set_background(dp->nn, &dp->background);
}

static void leave(lap_dp_t *dp)
{
    if (!dp->joined)
        return;
    dp->nn->joined = false;
    dp->nn->replicas = NULL;
    (void)lap_nn_end_passes(dp->nn);
    (void)lap_nn_end_background(dp->nn);
    lap_nn_set_background(dp->nn, NULL);
}

/*
 * What runs from now on, if the layers of this rank are to prove it. Collective: each rank decides for itself
 * whether it proves.
 */
static lap_status_t prove(lap_dp_t *dp)
{
    const bool proves = dp->nn->list.plan.desc.debug;
    return lap_group_agree(dp->group, proves ? lap_nn_prove_own(dp->nn) : LAP_OK);
}

/*
 * What one group of replicas fails of fails those of the other ranks of the layers, too, or of all stages, where they know
 * one another: these would wait for its ranks in the next pass. Collective over them.
 */
static lap_status_t agree_layers(lap_nn_t *nn, lap_status_t status)
{
    lap_group_t *layers = nn->norm_group ? nn->norm_group : nn->group;
    const char *before = lap_enter(layers->world, "lap_dp_create");
    status = lap_group_agree(layers, status);
    lap_leave(layers->world, before);
    return status;
}

lap_status_t lap_dp_create(lap_nn_t *nn, lap_group_t *group, const lap_dp_options_t *given,
                           lap_dp_t **dp_p)
{
    if (!nn || !group || !dp_p)
        return lap_error(LAP_ERR_INVALID, "lap_dp_create: %s is NULL",
                         !nn     ? "nn"
                         : group ? "dp_p"
                                 : "group");
    lap_dp_t *dp = lap_alloc(1, sizeof(*dp));
    lap_status_t status = LAP_OK;
    if (dp) {
        dp->nn = lap_nn_keep(nn);
        dp->group = lap_group_keep(group);
        status = plan(dp, given);
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for replicas");
    }
    const char *before = lap_enter(group->world, "lap_dp_create");
    status = compare(dp, nn, group, status);
    if (status == LAP_OK)
        status = make_operators(dp);
    lap_leave(group->world, before);
    if (status == LAP_OK) {
        join(dp);
        status = prove(dp);
    }
    if (status == LAP_OK && nn->sharers && !dp->background.ahead)
        status = lap_nn_gather_weights(nn);
    status = agree_layers(nn, status);
    if (status != LAP_OK) {
        lap_dp_destroy(dp);
        return status;
    }
    *dp_p = dp;
    return LAP_OK;
}

void lap_dp_destroy(lap_dp_t *dp)
{
    lap_saved_error_t saved;
    if (!dp)
        return;
    lap_error_save(&saved);
    leave(dp);
    for (size_t i = 0; i < dp->nbuckets; i++) {
        lap_op_destroy(dp->buckets[i].scatter);
        lap_op_destroy(dp->buckets[i].gather);
        lap_trace_destroy(dp->buckets[i].traces[0]);
        lap_trace_destroy(dp->buckets[i].traces[1]);
    }
    if (dp->engine) {
        lap_device_t *device = dp->engine->device;
        if (stream_of(dp))
            (void)device->ops->stream_synchronize(stream_of(dp));
        for (unsigned i = 0; i < LAP_NN_WIRE_REGIONS; i++)
            if (dp->memory[i])
                device->ops->free(device, dp->memory[i]);
    }
    lap_buffer_destroy(dp->buffer);
    lap_nn_let_go(dp->nn);
    lap_group_t *group = dp->group;
    lap_free(dp->buckets);
    lap_nn_buckets_clear(&dp->cut);
    lap_free(dp);
    lap_group_let_go(group);
    lap_error_restore(&saved);
}

/* ---- what it cost ---- */

/* For how long this rank's gradients were in flight. */
static lap_status_t measure(const lap_dp_t *dp, double *total_s_p)
{
    *total_s_p = 0;
    for (size_t i = 0; i < 2 * dp->nbuckets; i++) {
        lap_trace_t *trace = dp->buckets[i / 2].traces[i % 2];
        lap_trace_view_t view;
        if (dp->cut.sharded && i % 2) /* of weights: see lap_dp_weights_trace */
            continue;
        lap_trace_trim(trace);
        LAP_TRY(lap_trace_view(trace, dp->group->rank, NULL, &view));
        *total_s_p += (double)view.times.flight_ns * 1e-9;
        lap_trace_view_clear(&view);
    }
    return LAP_OK;
}

/* The traces of all buckets as one; the caller destroys it. */
static lap_status_t join_traces(const lap_dp_t *dp, lap_trace_t **all_p)
{
    lap_trace_t *all;
    LAP_TRY(lap_trace_create(&all));
    lap_status_t status = LAP_OK;
    for (size_t i = 0; i < 2 * dp->nbuckets && status == LAP_OK; i++) {
        const lap_trace_t *trace = dp->buckets[i / 2].traces[i % 2];
        if (dp->cut.sharded && i % 2)
            continue;
        if (i == 0)
            status = lap_trace_begin(all, trace->kind, trace->method, trace->size, trace->m,
                                     trace->emulated, 0);
        if (i == 0)
            all->begin = UINT64_MAX;
        if (status == LAP_OK)
            status = lap_trace_join(all, trace);
    }
    if (status != LAP_OK) {
        lap_trace_destroy(all);
        return status;
    }
    *all_p = all;
    return LAP_OK;
}

lap_trace_t *lap_dp_weights_trace(const lap_dp_t *dp, size_t index)
{
    lap_trace_t *trace = dp->cut.sharded ? dp->buckets[index].traces[1] : NULL;
    return trace && trace->nrecords > 0 ? trace : NULL;
}

lap_status_t lap_dp_gradients(const lap_dp_t *dp, lap_trace_t **trace_p, lap_interval_t *waited_p)
{
    *waited_p = dp->waited;
    return join_traces(dp, trace_p);
}

lap_status_t lap_dp_wait(lap_dp_t *dp)
{
    if (!dp)
        return lap_error(LAP_ERR_INVALID, "lap_dp_wait: dp is NULL");
    LAP_TRY(lap_nn_step_ended(dp->nn, "lap_dp_wait"));
    if (dp->nn->sync != LAP_NN_LEAVING)
        return lap_error(LAP_ERR_INVALID,
                         "lap_dp_wait: no gradients are on their way: expected one call after the "
                         "last backward of a step");
    LAP_TRY(lap_nn_wait(dp->nn));
    const uint64_t begin = lap_now_ns();
    const lap_status_t status = lap_nn_send_all(dp->nn);
    dp->waited = (lap_interval_t){begin, lap_now_ns()};
    dp->waited_s = (double)(dp->waited.end - begin) * 1e-9;
    LAP_TRY(status);
    return dp->measures ? measure(dp, &dp->total_s) : LAP_OK;
}

lap_status_t lap_dp_measure(lap_dp_t *dp, int on)
{
    if (!dp)
        return lap_error(LAP_ERR_INVALID, "lap_dp_measure: dp is NULL");
    for (size_t i = 0; on && i < 2 * dp->nbuckets; i++)
        if (!dp->buckets[i / 2].traces[i % 2])
            LAP_TRY(lap_trace_create(&dp->buckets[i / 2].traces[i % 2]));
    dp->measures = dp->background.traced = on != 0;
    return LAP_OK;
}

void lap_dp_cost(const lap_dp_t *dp, double *total_s_p, double *waited_s_p)
{
    if (total_s_p)
        *total_s_p = dp && dp->measures ? dp->total_s : 0;
    if (waited_s_p)
        *waited_s_p = dp ? dp->waited_s : 0;
}

size_t lap_dp_buckets(const lap_dp_t *dp)
{
    return dp ? dp->nbuckets : 0;
}

size_t lap_dp_bucket(const lap_dp_t *dp, size_t index)
{
    return dp && index < dp->nbuckets ? dp->cut.list[index].count : 0;
}
