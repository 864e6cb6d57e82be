/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallelism: buckets of gradients, each a reduce-scatter and then an all-gather in the
 * background of backward. Sharding the optimizer, so that the all-gather is of weights, is left
 * out.
 */
#include "parallel/data_parallel.h"

#include <string.h>

#include "core/options.h"
#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "schedule/run.h"
#include "schedule/trace.h"
#include "util/alloc.h"
#include "util/clock.h"

#define BUCKET_ELEMENTS ((size_t)4 << 20)
#define ALIGNED 16u     /* floats: parameters begin at multiples of it */
#define COLS_MOST 4096u /* of a bucket as a matrix */

/* A matrix does not care where its rows came from: a bucket is one, so that its rows can be shared. */
typedef struct bucket {
    size_t first, last;  /* parameters */
    size_t begin, count; /* floats of all gradients */
    size_t rows, cols;
    size_t missing; /* parameters whose gradients are still to come in this backward */
    lap_op_t *scatter, *gather;
    lap_trace_t *traces[2];
    lap_reduce_t cast, uncast; /* gradients to the wire's type and back */
    const void *sources[2];    /* of the two */
    size_t source_strides[2];
    bool begun;
} bucket_t;

struct lap_dp {
    lap_nn_t *nn;
    lap_group_t *group;
    lap_dp_options_t options;
    lap_engine_t *engine; /* in whose background the buckets travel */
    lap_buffer_t *buffer;
    size_t bytes, nsignals; /* of the buffer */
    bucket_t *buckets;
    size_t nbuckets;
    void *sum;  /* the own rows of the bucket that travels, summed */
    void *wire; /* all of it, in the wire's type; NULL: that is fp32, and the gradients serve */
    lap_event_t *end;
    bool joined; /* the layers know of it */
    bool measures;
    double total_s, exposed_s;
    lap_interval_t exposed; /* when that was */
};

/* On which gradients are cast. */
static lap_stream_t *stream_of(const lap_dp_t *dp)
{
    return dp->engine->streams[lap_stream_of(LAP_BACKGROUND, LAP_STREAM_COMPUTE)];
}

/* ---- buckets ---- */

static size_t begin_of(lap_nn_t *nn, size_t param)
{
    size_t count;
    float *all = lap_nn_gradients(nn, &count);
    return param < lap_nn_params(nn) ? (size_t)((float *)lap_nn_param(nn, param)->grad.data - all)
                                     : count;
}

/* Rows as long as their number allows: sums and copies go row by row. */
static void shape_bucket(bucket_t *bucket)
{
    const size_t units = bucket->count / ALIGNED;
    size_t wide = 1;
    for (size_t d = 2; d <= COLS_MOST / ALIGNED; d++)
        wide = units % d == 0 ? d : wide;
    bucket->cols = wide * ALIGNED;
    bucket->rows = units / wide;
}

/*
 * What every rank that shares weights has alike, the ranks had to add up: it is there when backward
 * ends, and would hold up whatever shares its bucket.
 */
static bool is_late(const lap_dp_t *dp, size_t param)
{
    return lap_nn_param(dp->nn, param)->replicated;
}

/* From the last parameter to the first: a bucket is closed when it is full. */
static lap_status_t cut_buckets(lap_dp_t *dp)
{
    const size_t nparams = lap_nn_params(dp->nn);
    dp->buckets = lap_alloc(nparams, sizeof(*dp->buckets));
    if (!dp->buckets)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for buckets of %zu parameters", nparams);
    for (size_t last = nparams; last-- > 0;) {
        bucket_t *bucket = &dp->buckets[dp->nbuckets++];
        const size_t end = begin_of(dp->nn, last + 1);
        size_t first = last;
        while (first > 0 && is_late(dp, first - 1) == is_late(dp, last) &&
               end - begin_of(dp->nn, first) < dp->options.bucket)
            first--;
        *bucket = (bucket_t){.first = first, .last = last, .begin = begin_of(dp->nn, first)};
        bucket->count = end - bucket->begin;
        shape_bucket(bucket);
        last = first;
    }
    return LAP_OK;
}

static void reset(lap_dp_t *dp)
{
    for (size_t i = 0; i < dp->nbuckets; i++) {
        dp->buckets[i].missing = dp->buckets[i].last - dp->buckets[i].first + 1;
        dp->buckets[i].begun = false;
    }
}

/* ---- making it ---- */

static lap_op_desc_t describe(const lap_dp_t *dp, const bucket_t *bucket, lap_op_kind_t kind)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = bucket->rows;
    desc.cols = bucket->cols;
    desc.dtype = dp->options.wire_dtype;
    desc.method = "direct";
    desc.buffer = dp->buffer;
    desc.background = 1;
    return desc;
}

/* One buffer for all buckets: they travel one after the other. */
static lap_status_t size_buffer(lap_dp_t *dp)
{
    static const lap_op_kind_t kinds[] = {LAP_EXTERNAL_RS, LAP_EXTERNAL_AG};
    for (size_t i = 0; i < 2 * dp->nbuckets; i++) {
        size_t own_bytes, own_signals;
        const lap_op_desc_t desc = describe(dp, &dp->buckets[i / 2], kinds[i % 2]);
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
        const lap_op_desc_t scatter = describe(dp, bucket, LAP_EXTERNAL_RS);
        const lap_op_desc_t gather = describe(dp, bucket, LAP_EXTERNAL_AG);
        LAP_TRY(lap_op_create(dp->group, &scatter, &bucket->scatter));
        LAP_TRY(lap_op_create(dp->group, &gather, &bucket->gather));
    }
    return LAP_OK;
}

static size_t own_rows(const lap_dp_t *dp, const bucket_t *bucket)
{
    return lap_shard(bucket->rows, dp->group->size, dp->group->rank, NULL);
}

/* Memory for the largest bucket. */
static lap_status_t alloc_memory(lap_dp_t *dp)
{
    lap_device_t *device = dp->engine->device;
    const size_t width = lap_dtype_size(dp->options.wire_dtype);
    size_t most = 1, most_own = 1;
    for (size_t i = 0; i < dp->nbuckets; i++) {
        const bucket_t *bucket = &dp->buckets[i];
        const size_t own = own_rows(dp, bucket) * bucket->cols;
        most = bucket->count > most ? bucket->count : most;
        most_own = own > most_own ? own : most_own;
    }
    LAP_TRY(device->ops->alloc(device, most_own * width, &dp->sum));
    if (dp->options.wire_dtype != LAP_FLOAT32)
        LAP_TRY(device->ops->alloc(device, most * width, &dp->wire));
    return device->ops->event_create(device, &dp->end);
}

/* The conversions of a bucket; what they are given must live as long as they run. */
static void set_casts(lap_dp_t *dp, bucket_t *bucket)
{
    size_t count;
    float *grads = lap_nn_gradients(dp->nn, &count) + bucket->begin;
    const lap_dtype_t wire = dp->options.wire_dtype;
    const size_t narrow = bucket->cols * lap_dtype_size(wire), wide = bucket->cols * sizeof(float);
    bucket->sources[0] = grads;
    bucket->sources[1] = dp->wire;
    bucket->source_strides[0] = wide;
    bucket->source_strides[1] = narrow;
    const lap_reduce_t both = {.nsrc = 1, .rows = bucket->rows, .cols = bucket->cols};
    bucket->cast = bucket->uncast = both;
    bucket->cast.from = bucket->uncast.to = LAP_FLOAT32;
    bucket->cast.to = bucket->uncast.from = wire;
    bucket->cast.dst = dp->wire;
    bucket->cast.dst_stride = narrow;
    bucket->cast.srcs = &bucket->sources[0];
    bucket->cast.src_strides = &bucket->source_strides[0];
    bucket->uncast.dst = grads;
    bucket->uncast.dst_stride = wide;
    bucket->uncast.srcs = &bucket->sources[1];
    bucket->uncast.src_strides = &bucket->source_strides[1];
}

static lap_status_t on_gradient(void *context, size_t index);

static lap_status_t read_options(const lap_dp_options_t *given, lap_dp_options_t *options_p)
{
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    if (given)
        LAP_TRY(lap_read_options(&options, sizeof(options), given, "LAP_DP_OPTIONS"));
    if (options.wire_dtype != LAP_FLOAT32 && options.wire_dtype != LAP_BFLOAT16)
        return lap_error(LAP_ERR_UNSUPPORTED, "wire_dtype is %s, expected float32 or bfloat16",
                         lap_dtype_name(options.wire_dtype));
    if (options.bucket == 0)
        options.bucket = BUCKET_ELEMENTS;
    *options_p = options;
    return LAP_OK;
}

/* Local: all that needs no other rank, and can fail on one alone. */
static lap_status_t plan(lap_dp_t *dp, const lap_dp_options_t *given)
{
    LAP_TRY(read_options(given, &dp->options));
    if (dp->nn->joined)
        return lap_error(LAP_ERR_INVALID,
                         "lap_dp_create: the layers have replicas already, expected lap_dp_destroy "
                         "of these before");
    LAP_TRY(cut_buckets(dp));
    LAP_TRY(size_buffer(dp));
    reset(dp);
    LAP_TRY(lap_engine_get(dp->group->world, &dp->engine));
    LAP_TRY(lap_engine_need_background(dp->engine));
    LAP_TRY(alloc_memory(dp));
    for (size_t i = 0; i < dp->nbuckets; i++)
        set_casts(dp, &dp->buckets[i]);
    return LAP_OK;
}

/* Collective. */
static lap_status_t compare(const lap_dp_t *dp, lap_nn_t *nn, lap_group_t *group,
                            lap_status_t status)
{
    lap_terms_t terms = {.of = "lap_dp_create"};
    if (status == LAP_OK) {
        lap_terms_number(&terms, "bucket", dp->options.bucket);
        lap_terms_text(&terms, "wire_dtype", lap_dtype_name(dp->options.wire_dtype));
        lap_terms_number(&terms, "overlap", dp->options.overlap != 0);
    }
    status = lap_nn_compare_replicas(nn, group, &terms, status);
    lap_terms_clear(&terms);
    return status;
}

/* From now on the layers know whose their gradients are. */
static void join(lap_dp_t *dp)
{
    dp->joined = dp->nn->joined = true;
    dp->nn->sync = LAP_NN_OWN;
    dp->nn->replicas = dp->group;
    if (dp->options.overlap)
        lap_nn_on_gradient(dp->nn, on_gradient, dp);
}

static void leave(lap_dp_t *dp)
{
    if (!dp->joined)
        return;
    dp->nn->joined = false;
    dp->nn->replicas = NULL;
    if (dp->options.overlap)
        lap_nn_on_gradient(dp->nn, NULL, NULL);
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
    if (status != LAP_OK) {
        lap_dp_destroy(dp);
        return status;
    }
    join(dp);
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
        if (dp->sum)
            device->ops->free(device, dp->sum);
        if (dp->wire)
            device->ops->free(device, dp->wire);
        if (dp->end)
            device->ops->event_destroy(dp->end);
    }
    lap_buffer_destroy(dp->buffer);
    lap_nn_let_go(dp->nn);
    lap_group_t *group = dp->group;
    lap_free(dp->buckets);
    lap_free(dp);
    lap_group_let_go(group);
    lap_error_restore(&saved);
}

/* ---- travelling ---- */

/* Issues a conversion behind all that was issued before; so is what follows in the background. */
static lap_status_t issue_cast(lap_dp_t *dp, const lap_reduce_t *cast)
{
    if (!dp->wire)
        return LAP_OK;
    LAP_TRY(lap_engine_join(dp->engine, LAP_BACKGROUND));
    return dp->engine->device->ops->reduce(stream_of(dp), cast);
}

/* Issues all that a bucket needs, behind all that was issued to make its gradients. */
static lap_status_t begin_bucket(lap_dp_t *dp, bucket_t *bucket)
{
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    size_t count;
    float *grads = lap_nn_gradients(dp->nn, &count) + bucket->begin;
    const lap_dtype_t wire = dp->options.wire_dtype;
    const lap_tensor_t all =
        lap_tensor(dp->wire ? dp->wire : grads, wire, bucket->rows, bucket->cols);
    const lap_tensor_t own = lap_tensor(dp->sum, wire, own_rows(dp, bucket), bucket->cols);
    bucket->begun = true;
    LAP_TRY(issue_cast(dp, &bucket->cast));
    args.m = bucket->rows;
    args.x = all;
    args.y = own;
    args.trace = dp->measures ? bucket->traces[0] : NULL;
    LAP_TRY(lap_op_begin(bucket->scatter, &args));
    args.x = own;
    args.y = all;
    args.trace = dp->measures ? bucket->traces[1] : NULL;
    LAP_TRY(lap_op_begin(bucket->gather, &args));
    return issue_cast(dp, &bucket->uncast);
}

/* Buckets travel as they are filled: the same layers fill them in the same order on every rank. */
static lap_status_t begin_ready(lap_dp_t *dp)
{
    for (size_t i = 0; i < dp->nbuckets; i++)
        if (!dp->buckets[i].begun && dp->buckets[i].missing == 0)
            LAP_TRY(begin_bucket(dp, &dp->buckets[i]));
    return LAP_OK;
}

static lap_status_t on_gradient(void *context, size_t index)
{
    lap_dp_t *dp = context;
    for (size_t i = 0; i < dp->nbuckets; i++)
        if (index >= dp->buckets[i].first && index <= dp->buckets[i].last)
            dp->buckets[i].missing--;
    return begin_ready(dp);
}

/* Ends what was begun, also after a failure, which is then the first one. */
static lap_status_t end_buckets(lap_dp_t *dp, lap_status_t status)
{
    lap_saved_error_t saved;
    if (status != LAP_OK)
        lap_error_save(&saved);
    for (size_t i = 0; i < 2 * dp->nbuckets; i++) {
        bucket_t *bucket = &dp->buckets[i / 2];
        if (!bucket->begun)
            continue;
        const lap_status_t own = lap_op_end(i % 2 ? bucket->gather : bucket->scatter);
        if (status == LAP_OK && own != LAP_OK) {
            status = own;
            lap_error_save(&saved);
        }
    }
    if (status != LAP_OK)
        lap_error_restore(&saved);
    return status;
}

static lap_status_t finish(lap_dp_t *dp)
{
    for (size_t i = 0; i < dp->nbuckets; i++)
        dp->buckets[i].missing = 0;
    LAP_TRY(end_buckets(dp, begin_ready(dp)));
    LAP_TRY(dp->engine->device->ops->event_record(dp->end, stream_of(dp)));
    return lap_engine_await(dp->engine, dp->end);
}

/* ---- what it cost ---- */

static lap_status_t measure(lap_dp_t *dp)
{
    dp->total_s = 0;
    for (size_t i = 0; i < 2 * dp->nbuckets; i++) {
        lap_trace_t *trace = dp->buckets[i / 2].traces[i % 2];
        lap_trace_view_t view;
        lap_trace_trim(trace);
        LAP_TRY(lap_trace_view(trace, dp->group->rank, &view));
        dp->total_s += (double)view.flight_ns * 1e-9;
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

lap_status_t lap_dp_find_causes(lap_dp_t *dp, uint64_t cause_ns[LAP_CAUSES], double *bytes_p)
{
    lap_trace_t *all = NULL;
    lap_interval_t exposed = dp->exposed;
    lap_trace_view_t view = {.idle = &exposed, .nidle = 1};
    lap_status_t status = lap_group_agree(dp->group, join_traces(dp, &all));
    const uint64_t begin = all ? all->begin : 0;
    *bytes_p = all ? lap_trace_bytes(all) : 0;
    if (status == LAP_OK)
        status = lap_trace_share(all, dp->group);
    if (status == LAP_OK) { /* the clock is that of rank 0 from here on */
        exposed.begin += all->calls[dp->group->rank].begin - begin;
        exposed.end += all->calls[dp->group->rank].begin - begin;
        status = lap_trace_find_causes(all, dp->group->rank, &view);
    }
    if (status == LAP_OK)
        memcpy(cause_ns, view.cause_ns, sizeof(view.cause_ns));
    lap_free(view.exposed);
    lap_trace_destroy(all);
    return status;
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
    const lap_status_t status = finish(dp);
    dp->exposed = (lap_interval_t){begin, lap_now_ns()};
    dp->exposed_s = (double)(dp->exposed.end - begin) * 1e-9;
    reset(dp);
    LAP_TRY(status);
    dp->nn->sync = LAP_NN_SUMMED;
    return dp->measures ? measure(dp) : LAP_OK;
}

lap_status_t lap_dp_measure(lap_dp_t *dp, int on)
{
    if (!dp)
        return lap_error(LAP_ERR_INVALID, "lap_dp_measure: dp is NULL");
    for (size_t i = 0; on && i < 2 * dp->nbuckets; i++)
        if (!dp->buckets[i / 2].traces[i % 2])
            LAP_TRY(lap_trace_create(&dp->buckets[i / 2].traces[i % 2]));
    dp->measures = on != 0;
    return LAP_OK;
}

void lap_dp_cost(const lap_dp_t *dp, double *total_s_p, double *exposed_s_p)
{
    *total_s_p = dp->measures ? dp->total_s : 0;
    *exposed_s_p = dp->exposed_s;
}

size_t lap_dp_buckets(const lap_dp_t *dp)
{
    return dp ? dp->nbuckets : 0;
}

size_t lap_dp_bucket(const lap_dp_t *dp, size_t index)
{
    return dp && index < dp->nbuckets ? dp->buckets[index].count : 0;
}
