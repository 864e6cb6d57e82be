/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/buckets.h"

#include "core/status.h"
#include "nn/context.h"
#include "util/alloc.h"

#define ALIGNED 16u     /* floats: parameters begin at multiples of it */
#define COLS_MOST 4096u /* of a bucket as a matrix */

/* ---- which there are ---- */

static size_t begin_of(const lap_nn_list_t *list, uint32_t weight)
{
    size_t offset;
    if (weight == list->nweights)
        return list->regions[list->grads].cols;
    (void)lap_nn_region_root(list, list->weights[weight].grad, &offset);
    return offset / sizeof(float);
}

/* Rows as long as their number allows: sums and copies go row by row. */
static void shape_bucket(lap_nn_bucket_t *bucket)
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
static bool is_late(const lap_nn_list_t *list, uint32_t weight)
{
    return list->weights[weight].param.replicated;
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

/* From the last parameter to the first: a bucket is closed when it is full. */
lap_status_t lap_nn_buckets_init(lap_nn_buckets_t *buckets, const lap_nn_list_t *list,
                                 size_t elements, lap_dtype_t wire, int replicas, int replica)
{
    *buckets = (lap_nn_buckets_t){.replicas = replicas, .replica = replica, .wire = wire};
    if (elements == 0)
        elements = LAP_NN_BUCKET_ELEMENTS;
    buckets->elements = elements;
    buckets->list = lap_alloc(list->nweights, sizeof(*buckets->list));
    if (!buckets->list)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for buckets of %u parameters",
                         (unsigned)list->nweights);
    for (uint32_t last = list->nweights; last-- > 0;) {
        lap_nn_bucket_t *bucket = &buckets->list[buckets->count++];
        const size_t end = begin_of(list, last + 1);
        uint32_t first = last;
        while (first > 0 && is_late(list, first - 1) == is_late(list, last) &&
               end - begin_of(list, first) < elements)
            first--;
        *bucket = (lap_nn_bucket_t){.first = first, .last = last, .begin = begin_of(list, first)};
        bucket->count = end - bucket->begin;
        shape_bucket(bucket);
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

lap_op_desc_t lap_nn_bucket_desc(const lap_nn_buckets_t *buckets, size_t index, int which)
{
    const lap_nn_bucket_t *bucket = &buckets->list[index];
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = which == LAP_NN_BUCKET_SCATTER ? LAP_EXTERNAL_RS : LAP_EXTERNAL_AG;
    desc.m = bucket->rows;
    desc.cols = bucket->cols;
    desc.dtype = buckets->wire;
    desc.method = "direct";
    desc.background = 1;
    return desc;
}

static bool is_in(const lap_nn_bucket_t *bucket, const lap_nn_entry_t *entry)
{
    return entry->work == LAP_NN_READY && entry->index >= bucket->first &&
           entry->index <= bucket->last;
}

bool lap_nn_bucket_has_weight(const lap_nn_buckets_t *buckets, size_t index,
                              const lap_nn_list_t *list, uint32_t weight)
{
    const lap_nn_entry_t ready = {.work = LAP_NN_READY, .index = weight};
    (void)list;
    return is_in(&buckets->list[index], &ready);
}

int lap_nn_bucket_count(const lap_nn_buckets_t *buckets)
{
    return buckets->wire == LAP_FLOAT32 ? 2 : LAP_NN_BUCKET_FRAGMENTS;
}

bool lap_nn_bucket_completed(const lap_nn_buckets_t *buckets, const lap_nn_list_t *list, int part,
                             uint32_t entry, size_t *index_p)
{
    for (size_t i = 0; i < buckets->count; i++) {
        bool last = is_in(&buckets->list[i], &list->entries[entry]);
        if (!last)
            continue;
        for (uint32_t e = entry + 1; e < list->parts[part + 1] && last; e++)
            last = !is_in(&buckets->list[i], &list->entries[e]);
        *index_p = i;
        return last;
    }
    return false;
}

/* ---- linking ---- */

enum { WIRE, SUM };
_Static_assert(SUM + 1 == LAP_NN_WIRE_REGIONS, "all of them");

static uint32_t region_of(const lap_nn_list_t *list, int which)
{
    return list->nregions + list->nsteps + (uint32_t)which;
}

void lap_nn_link_wire(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                      lap_linked_t *linked)
{
    const lap_nn_buckets_t *buckets = replicas->buckets;
    const size_t width = lap_dtype_size(buckets->wire);
    const uint32_t memory = LAP_NN_MEMORIES + list->nregions + list->nsteps;
    (void)lap_link_add_region(linked, "bucket as it travels", memory + WIRE, 0,
                              buckets->most * width, false);
    (void)lap_link_add_region(linked, "sum of a bucket", memory + SUM, 0, buckets->most_own * width,
                              false);
}

/* The gradients of a bucket, what travels of it, or this replica's rows of the sum. */
static lap_link_place_t place_of(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets,
                                 size_t index, uint32_t region)
{
    const lap_nn_bucket_t *bucket = &buckets->list[index];
    const bool gradients = region == list->grads;
    const size_t row = bucket->cols * (gradients ? sizeof(float) : lap_dtype_size(buckets->wire));
    return (lap_link_place_t){.region = region,
                              .offset = gradients ? bucket->begin * sizeof(float) : 0,
                              .row_bytes = row,
                              .stride = row};
}

static void use(lap_linked_t *linked, const lap_link_place_t *place, size_t rows, bool write)
{
    const lap_range_t range = {
        .place = (lap_place_t)(LAP_PLACES + place->region),
        .rank = linked->rank,
        .offset = place->offset,
        .rows = rows,
        .row_bytes = place->row_bytes,
        .stride = place->stride,
    };
    lap_link_access(linked, 0, LAP_NO_STEP, write, range);
}

static lap_status_t add_cast(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                             size_t index, int which, lap_linked_t *linked)
{
    const lap_nn_buckets_t *buckets = replicas->buckets;
    const size_t rows = buckets->list[index].rows;
    const bool back = which == LAP_NN_BUCKET_UNCAST;
    lap_problem_t problem = {.rank = buckets->replica, .size = buckets->replicas};
    lap_fragment_t *fragment = lap_link_fragment(linked);
    if (!fragment)
        return linked->status;
    problem.desc.background = 1;
    lap_schedule_init(&fragment->schedule, &problem, "bucket");
    (void)lap_add_kernel(&fragment->schedule, lap_stream_of(LAP_BACKGROUND, LAP_STREAM_COMPUTE),
                         "cast");
    LAP_TRY(fragment->schedule.status);
    const lap_link_place_t grads = place_of(list, buckets, index, list->grads);
    const lap_link_place_t wire = place_of(list, buckets, index, region_of(list, WIRE));
    use(linked, back ? &wire : &grads, rows, false);
    use(linked, back ? &grads : &wire, rows, true);
    return LAP_OK;
}

static lap_status_t add_call(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                             size_t index, int which, lap_linked_t *linked)
{
    const lap_nn_buckets_t *buckets = replicas->buckets;
    const bool scatter = which == LAP_NN_BUCKET_SCATTER;
    const lap_link_place_t all = place_of(
        list, buckets, index, buckets->wire == LAP_FLOAT32 ? list->grads : region_of(list, WIRE));
    const lap_link_place_t own = place_of(list, buckets, index, region_of(list, SUM));
    lap_schedule_t schedule = {.nsteps = 0};
    const lap_status_t status = replicas->build(replicas->context, index, which, &schedule);
    lap_fragment_t *fragment = status == LAP_OK ? lap_link_fragment(linked) : NULL;
    if (!fragment) {
        lap_schedule_clear(&schedule);
        return status == LAP_OK ? linked->status : status;
    }
    fragment->schedule = schedule;
    fragment->places[LAP_MOVED] = scatter ? all : own;
    fragment->places[LAP_GATHERED] = scatter ? own : all;
    return LAP_OK;
}

lap_status_t lap_nn_link_bucket(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                                size_t index, lap_linked_t *linked)
{
    const bool casts = replicas->buckets->wire != LAP_FLOAT32;
    for (int which = 0; which < LAP_NN_BUCKET_FRAGMENTS; which++) {
        const bool call = which == LAP_NN_BUCKET_SCATTER || which == LAP_NN_BUCKET_GATHER;
        if (!call && !casts)
            continue;
        LAP_TRY(call ? add_call(list, replicas, index, which, linked)
                     : add_cast(list, replicas, index, which, linked));
        LAP_TRY(linked->status);
        lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
        fragment->origin = lap_nn_bucket_origin(index, which);
        fragment->buffer = LAP_NN_BY_REPLICAS;
        fragment->base = replicas->base;
        fragment->stride = replicas->stride;
    }
    return LAP_OK;
}
