/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/buckets.h"

#include "core/status.h"
#include "nn/context.h"
#include "nn/program.h"
#include "util/alloc.h"

#define ALIGNED 16u     /* floats: parameters begin at multiples of it */
#define COLS_MOST 4096u /* of a bucket as a matrix */
#define EVEN_ROWS 16u   /* of each replica, so that none has much more than others */

/* ---- which there are ---- */

static const lap_nn_weight_t *weight_at(const lap_nn_list_t *list, uint32_t place)
{
    return &list->weights[list->order[place]];
}

static size_t begin_of(const lap_nn_list_t *list, uint32_t place)
{
    size_t offset;
    if (place == list->nweights)
        return list->regions[list->grads].cols;
    (void)lap_nn_region_root(list, weight_at(list, place)->grad, &offset);
    return offset / sizeof(float);
}

/*
 * Rows as long as their number allows: sums and copies go row by row. Replicas that share the optimizer
 * have nearly as many each.
 */
static void shape_bucket(lap_nn_bucket_t *bucket, size_t rows_least)
{
    const size_t units = bucket->count / ALIGNED;
    size_t wide = 1;
    for (size_t d = 2; d <= COLS_MOST / ALIGNED && units / d >= rows_least; d++)
        wide = units % d == 0 ? d : wide;
    bucket->cols = wide * ALIGNED;
    bucket->rows = units / wide;
}

/* Those that are complete when backward ends would hold up whatever shares their bucket. */
static bool is_late(const lap_nn_list_t *list, uint32_t place)
{
    return lap_nn_is_late(list, weight_at(list, place));
}

static lap_dtype_t type_of(const lap_nn_list_t *list, uint32_t place)
{
    return lap_nn_gathered_type(list, weight_at(list, place));
}

/* Whether a weight may be in the bucket of another. */
static bool goes_with(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets, uint32_t place,
                      uint32_t other)
{
    return is_late(list, place) == is_late(list, other) &&
           (!buckets->sharded || type_of(list, place) == type_of(list, other)) &&
           (!buckets->by_layer || weight_at(list, place)->layer == weight_at(list, other)->layer);
}

static void measure(lap_nn_buckets_t *buckets)
{
    buckets->most = buckets->most_own = 1;
    for (size_t i = 0; i < buckets->count; i++) {
        const size_t own = lap_nn_bucket_rows(buckets, i) * buckets->list[i].cols;
        const size_t all = buckets->list[i].count;
        buckets->most = all > buckets->most ? all : buckets->most;
        buckets->most_own = own > buckets->most_own ? own : buckets->most_own;
    }
}

/* From the last parameter to the first: a bucket is closed when it is full, or its layer ends. */
lap_status_t lap_nn_buckets_init(lap_nn_buckets_t *buckets, const lap_nn_list_t *list,
                                 size_t elements, bool by_layer, lap_dtype_t wire, int replicas,
                                 int replica)
{
    const bool sharded = list->plan.desc.shards > 1;
    if (elements == 0)
        elements = by_layer ? SIZE_MAX : LAP_NN_BUCKET_ELEMENTS;
    *buckets = (lap_nn_buckets_t){.replicas = replicas,
                                  .replica = replica,
                                  .elements = elements,
                                  .by_layer = by_layer,
                                  .wire = wire,
                                  .sharded = sharded};
    buckets->list = lap_alloc(list->nweights, sizeof(*buckets->list));
    if (!buckets->list)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for buckets of %u parameters",
                         (unsigned)list->nweights);
    for (uint32_t last = list->nweights; last-- > 0;) {
        lap_nn_bucket_t *bucket = &buckets->list[buckets->count++];
        const size_t end = begin_of(list, last + 1);
        uint32_t first = last;
        while (first > 0 && goes_with(list, buckets, first - 1, last) &&
               end - begin_of(list, first) < elements)
            first--;
        *bucket = (lap_nn_bucket_t){.first = first, .last = last, .begin = begin_of(list, first)};
        bucket->count = end - bucket->begin;
        bucket->weights = type_of(list, first);
        shape_bucket(bucket, sharded ? EVEN_ROWS * (size_t)replicas : 0);
        last = first;
    }
    measure(buckets);
    return LAP_OK;
}

void lap_nn_buckets_clear(lap_nn_buckets_t *buckets)
{
    lap_free(buckets->list);
    *buckets = (lap_nn_buckets_t){.count = 0};
}

size_t lap_nn_bucket_rows(const lap_nn_buckets_t *buckets, size_t index)
{
    return lap_shard(buckets->list[index].rows, buckets->replicas, buckets->replica, NULL);
}

size_t lap_nn_bucket_shard(const lap_nn_buckets_t *buckets, size_t index, int replica,
                           size_t *begin_p)
{
    const lap_nn_bucket_t *bucket = &buckets->list[index];
    size_t first;
    const size_t rows = lap_shard(bucket->rows, buckets->replicas, replica, &first);
    *begin_p = bucket->begin + first * bucket->cols;
    return rows * bucket->cols;
}

size_t lap_nn_shard_begin(const lap_nn_buckets_t *buckets, size_t index, int replica)
{
    size_t count = 0, begin;
    for (size_t i = 0; i < index; i++)
        count += lap_nn_bucket_shard(buckets, i, replica, &begin);
    return count;
}

size_t lap_nn_shard_count(const lap_nn_buckets_t *buckets, int replica)
{
    return lap_nn_shard_begin(buckets, buckets->count, replica);
}

lap_nn_share_t lap_nn_own_share(const lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    const lap_nn_buckets_t *shards = list->shards;
    const size_t from = begin_of(list, weight->place),
                 to = from + weight->param.rows * weight->param.cols;
    size_t bucket = 0, begin;
    while (weight->place < shards->list[bucket].first)
        bucket++;
    const size_t own = lap_nn_bucket_shard(shards, bucket, list->shard, &begin);
    const size_t first = from > begin ? from : begin, end = to < begin + own ? to : begin + own;
    if (first >= end)
        return (lap_nn_share_t){.begin = from};
    return (lap_nn_share_t){first, end - first,
                            lap_nn_shard_begin(shards, bucket, list->shard) + first - begin};
}

uint32_t lap_nn_bucket_weights(const lap_nn_list_t *list, const lap_nn_bucket_t *bucket,
                               size_t *offset_p)
{
    const lap_nn_gathered_t *gathered = list->gathered;
    while (gathered->dtype != bucket->weights)
        gathered++;
    *offset_p = (bucket->begin - gathered->begin) * lap_dtype_size(bucket->weights);
    return gathered->region;
}

/* Whether a bucket has a fragment of this kind. */
static bool bucket_has(const lap_nn_buckets_t *buckets, int which)
{
    const bool casts = buckets->wire != LAP_FLOAT32;
    return which == LAP_NN_BUCKET_CAST     ? casts
           : which == LAP_NN_BUCKET_UNCAST ? casts || buckets->sharded
           : which == LAP_NN_BUCKET_PACK   ? buckets->sharded
                                           : true;
}

/* Of those, whether gradients have it. */
static bool is_of_gradients(const lap_nn_buckets_t *buckets, int which)
{
    const bool weights = which == LAP_NN_BUCKET_PACK || which == LAP_NN_BUCKET_GATHER;
    return bucket_has(buckets, which) && !(buckets->sharded && weights);
}

lap_op_desc_t lap_nn_bucket_desc(const lap_nn_buckets_t *buckets, size_t index, int which)
{
    const lap_nn_bucket_t *bucket = &buckets->list[index];
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = which == LAP_NN_BUCKET_SCATTER ? LAP_EXTERNAL_RS : LAP_EXTERNAL_AG;
    const bool weights = buckets->sharded && which == LAP_NN_BUCKET_GATHER;
    desc.m = bucket->rows;
    desc.cols = bucket->cols;
    desc.dtype = weights ? bucket->weights : buckets->wire;
    if (lap_dtype_is_fp8(desc.dtype)) { /* without a scale: bytes are bytes */
        desc.dtype = LAP_FLOAT32;
        desc.cols /= sizeof(float);
    }
    desc.method = "direct";
    desc.background = 1;
    return desc;
}

static bool is_in(const lap_nn_bucket_t *bucket, const lap_nn_list_t *list,
                  const lap_nn_entry_t *entry)
{
    if (entry->work != LAP_NN_READY)
        return false;
    const uint32_t place = list->weights[entry->index].place;
    return place >= bucket->first && place <= bucket->last;
}

bool lap_nn_bucket_has_weight(const lap_nn_buckets_t *buckets, size_t index,
                              const lap_nn_list_t *list, uint32_t weight)
{
    const lap_nn_entry_t ready = {.work = LAP_NN_READY, .index = weight};
    return is_in(&buckets->list[index], list, &ready);
}

bool lap_nn_bucket_completed(const lap_nn_buckets_t *buckets, const lap_nn_list_t *list, int part,
                             uint32_t entry, size_t *index_p)
{
    for (size_t i = 0; i < buckets->count; i++) {
        bool last = is_in(&buckets->list[i], list, &list->entries[entry]);
        if (!last)
            continue;
        for (uint32_t e = entry + 1; e < list->parts[part + 1] && last; e++)
            last = !is_in(&buckets->list[i], list, &list->entries[e]);
        *index_p = i;
        return last;
    }
    return false;
}

/* ---- linking ---- */

static uint32_t region_of(const lap_nn_list_t *list, int which)
{
    return list->nregions + list->nsteps + (uint32_t)which;
}

void lap_nn_link_wire(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                      lap_linked_t *linked)
{
    const lap_nn_buckets_t *buckets = replicas->buckets;
    const size_t width = lap_dtype_size(buckets->wire);
    const size_t own = buckets->sharded ? sizeof(float) : width;
    (void)lap_link_add_region(linked, "bucket as it travels", LAP_NN_WIRE_MEMORY + LAP_NN_WIRE, 0,
                              buckets->most * width, false);
    (void)lap_link_add_region(linked, "rows of a bucket", LAP_NN_WIRE_MEMORY + LAP_NN_SUM, 0,
                              buckets->most_own * own, false);
    for (uint32_t i = 0; i < LAP_NN_WIRE_REGIONS && linked->status == LAP_OK; i++)
        linked->regions[region_of(list, (int)i)].scope =
            LAP_SCOPE_ITERATION; /* one for all buckets */
}

/* The gradients of a bucket, what travels of it, or this replica's rows of the sum. */
static lap_link_place_t place_of(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets,
                                 size_t index, uint32_t region)
{
    const lap_nn_bucket_t *bucket = &buckets->list[index];
    const bool gradients = region == list->grads;
    const size_t row = bucket->cols * (gradients ? sizeof(float) : lap_dtype_size(buckets->wire));
    return (lap_link_place_t){.region = region,
                              .dtype = gradients ? LAP_FLOAT32 : buckets->wire,
                              .offset = gradients ? bucket->begin * sizeof(float) : 0,
                              .row_bytes = row,
                              .stride = row};
}

/* What a fragment takes and what it makes, and how many rows of a bucket that are. */
typedef struct ends {
    lap_link_place_t from, to;
    size_t rows;
} ends_t;

/* The own rows, of gradients or masters. */
static lap_link_place_t own_place(const lap_nn_bucket_t *bucket, uint32_t region, size_t begin)
{
    const size_t row = bucket->cols * sizeof(float);
    return (lap_link_place_t){region, LAP_FLOAT32, begin * sizeof(float), row, row};
}

/* Where replicas share the optimizer: see LAP_NN_BUCKET_PACK. */
static ends_t ends_of_shard(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets,
                            size_t index, int which)
{
    const lap_nn_bucket_t *bucket = &buckets->list[index];
    ends_t ends = {.rows = lap_nn_bucket_rows(buckets, index)};
    const size_t row = bucket->cols * lap_dtype_size(bucket->weights);
    const lap_link_place_t packed = {region_of(list, LAP_NN_SUM), bucket->weights, 0, row, row};
    lap_link_place_t weights = packed;
    size_t begin;
    (void)lap_nn_bucket_shard(buckets, index, buckets->replica, &begin);
    weights.region = lap_nn_bucket_weights(list, bucket, &weights.offset);
    if (which == LAP_NN_BUCKET_UNCAST) {
        ends.from = place_of(list, buckets, index, region_of(list, LAP_NN_SUM));
        ends.to = own_place(bucket, list->grads, begin);
    } else {
        ends.from = which == LAP_NN_BUCKET_PACK
                        ? own_place(bucket, list->masters,
                                    lap_nn_shard_begin(buckets, index, buckets->replica))
                        : packed;
        ends.to = which == LAP_NN_BUCKET_PACK ? packed : weights;
    }
    return ends;
}

static ends_t ends_of(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets, size_t index,
                      int which)
{
    const bool casts = buckets->wire != LAP_FLOAT32;
    const lap_link_place_t grads = place_of(list, buckets, index, list->grads),
                           wire = place_of(list, buckets, index, region_of(list, LAP_NN_WIRE)),
                           own = place_of(list, buckets, index, region_of(list, LAP_NN_SUM));
    const size_t rows = buckets->list[index].rows;
    switch (which) {
    case LAP_NN_BUCKET_CAST:
        return (ends_t){grads, wire, rows};
    case LAP_NN_BUCKET_SCATTER:
        return (ends_t){casts ? wire : grads, own, rows};
    default:
        if (buckets->sharded)
            return ends_of_shard(list, buckets, index, which);
        return which == LAP_NN_BUCKET_GATHER ? (ends_t){own, casts ? wire : grads, rows}
                                             : (ends_t){wire, grads, rows};
    }
}

static lap_status_t add_cast(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                             size_t index, int which, lap_linked_t *linked)
{
    const lap_nn_buckets_t *buckets = replicas->buckets;
    const ends_t ends = ends_of(list, buckets, index, which);
    lap_problem_t problem = {.rank = buckets->replica, .size = buckets->replicas};
    problem.desc.background = 1;
    if (!lap_link_kernel(linked, &problem, "bucket",
                         lap_stream_of(LAP_BACKGROUND, LAP_STREAM_COMPUTE), "cast"))
        return linked->status;
    lap_link_operand(linked, LAP_NN_CAST_FROM, false, &ends.from, ends.rows);
    if (which == LAP_NN_BUCKET_PACK && lap_dtype_is_fp8(buckets->list[index].weights)) {
        const size_t bytes = list->nfp8_weights * (size_t)LAP_FP8_SLOT * sizeof(float);
        const lap_link_place_t scales = {list->fp8_scales, LAP_FLOAT32, 0, bytes, bytes};
        lap_link_operand(linked, LAP_NN_CAST_SCALES, false, &scales, 1);
    }
    lap_link_operand(linked, LAP_NN_CAST_TO, true, &ends.to, ends.rows);
    return linked->status;
}

static lap_status_t add_call(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                             size_t index, int which, lap_linked_t *linked)
{
    const ends_t ends = ends_of(list, replicas->buckets, index, which);
    lap_schedule_t schedule = {.nsteps = 0};
    const lap_status_t status = replicas->build(replicas->context, index, which, &schedule);
    lap_fragment_t *fragment = status == LAP_OK ? lap_link_fragment(linked) : NULL;
    if (!fragment) {
        lap_schedule_clear(&schedule);
        return status == LAP_OK ? linked->status : status;
    }
    fragment->schedule = schedule;
    fragment->places[LAP_MOVED] = ends.from;
    fragment->places[LAP_GATHERED] = ends.to;
    return LAP_OK;
}

static lap_status_t link_fragment(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                                  size_t index, bool weights, int which, lap_linked_t *linked)
{
    const bool call = which == LAP_NN_BUCKET_SCATTER || which == LAP_NN_BUCKET_GATHER;
    LAP_TRY(call ? add_call(list, replicas, index, which, linked)
                 : add_cast(list, replicas, index, which, linked));
    LAP_TRY(linked->status);
    lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    fragment->origin = lap_nn_bucket_origin(index, which);
    fragment->buffer = LAP_NN_BY_REPLICAS;
    fragment->iteration = 2 * (uint32_t)index + weights;
    fragment->order = weights ? 0 : (uint32_t)which + 1;
    fragment->phase = weights ? LAP_NN_PHASE_GATHER : LAP_NN_PHASE_SYNC;
    fragment->base = replicas->base;
    fragment->stride = replicas->stride;
    return LAP_OK;
}

lap_status_t lap_nn_link_bucket(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                                size_t index, bool weights, lap_linked_t *linked)
{
    if (weights) {
        LAP_TRY(link_fragment(list, replicas, index, true, LAP_NN_BUCKET_PACK, linked));
        return link_fragment(list, replicas, index, true, LAP_NN_BUCKET_GATHER, linked);
    }
    for (int which = 0; which < LAP_NN_BUCKET_FRAGMENTS; which++)
        if (is_of_gradients(replicas->buckets, which))
            LAP_TRY(link_fragment(list, replicas, index, false, which, linked));
    return LAP_OK;
}

/* What all ranks have of a bucket is never empty; the rows of one may be. */
static void expect_fragment(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets,
                            size_t index, int which, lap_linked_t *linked)
{
    const bool own = which == LAP_NN_BUCKET_SCATTER || which == LAP_NN_BUCKET_PACK ||
                     (buckets->sharded && which == LAP_NN_BUCKET_UNCAST);
    if (linked->status == LAP_OK && !(own && lap_nn_bucket_rows(buckets, index) == 0))
        linked->regions[ends_of(list, buckets, index, which).to.region].writers++;
}

void lap_nn_expect_bucket(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets, size_t index,
                          bool weights, lap_linked_t *linked)
{
    for (int which = 0; which < LAP_NN_BUCKET_FRAGMENTS; which++)
        if (weights ? which == LAP_NN_BUCKET_PACK || which == LAP_NN_BUCKET_GATHER
                    : is_of_gradients(buckets, which))
            expect_fragment(list, buckets, index, which, linked);
}
