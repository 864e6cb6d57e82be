/* SPDX-License-Identifier: Apache-2.0 */
/* What passes of layers add to a timeline: names of fragments, and the memory that is live. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "nn/nn.h"
#include "nn/program.h"
#include "overlap/op.h"
#include "util/alloc.h"

/* ---- names ---- */

void lap_nn_fragment_name(const lap_nn_list_t *list, uint32_t origin, char *text, size_t bytes)
{
    static const char *const head[] = {"head_fprop", "head_dgrad", "head_wgrad"};
    size_t index;
    int which;
    if (lap_nn_bucket_of(origin, &index, &which)) {
        const bool weights =
            list->shards && (which == LAP_NN_BUCKET_PACK || which == LAP_NN_BUCKET_GATHER);
        snprintf(text, bytes, weights ? "weights %zu" : "bucket %zu", index);
        return;
    }
    const lap_nn_entry_t *entry = &list->entries[origin];
    if (entry->work != LAP_NN_OPERATOR || entry->block == LAP_NN_NONE) {
        snprintf(text, bytes, "%s", entry->name);
        return;
    }
    const lap_tp_gemm_t gemm = list->steps[entry->index].gemm;
    snprintf(text, bytes, "%s",
             list->blocks[entry->block].shape.head ? head[gemm % 3] : lap_tp_gemm_name(gemm));
}

long lap_nn_fragment_layer(const lap_nn_list_t *list, uint32_t origin)
{
    const uint32_t block =
        origin < LAP_NN_BUCKET_ORIGIN ? list->entries[origin].block : LAP_NN_NONE;
    if (block == LAP_NN_NONE || list->blocks[block].shape.head)
        return -1;
    return (long)list->blocks[block].shape.layer;
}

lap_traffic_t lap_nn_fragment_traffic(int size, uint32_t buffer)
{
    static const lap_traffic_t by_group[] = {
        [LAP_NN_BY_LAYERS] = LAP_TRAFFIC_TP, [LAP_NN_BY_REPLICAS] = LAP_TRAFFIC_DP,
        [LAP_NN_BY_RING] = LAP_TRAFFIC_CP,   [LAP_NN_BY_HEADS] = LAP_TRAFFIC_CP,
        [LAP_NN_BY_SHARDS] = LAP_TRAFFIC_DP, [LAP_NN_BY_NORM] = LAP_TRAFFIC_PP};
    return size > 1 ? by_group[buffer] : LAP_TRAFFIC_NONE;
}

/* ---- memory ---- */

static bool is_same(const lap_nn_entry_t *a, const lap_nn_entry_t *b)
{
    return a->work == b->work && a->block == b->block && strcmp(a->name, b->name) == 0;
}

/*
 * Lifetimes are counted in entries of the backward that adds to gradients (lap_nn_find_lifetimes). It has
 * those of the other one in their order, with more between them; the last ones of the other, which renew
 * scales, come after all of its own. `before` is what the entry before this one counts as.
 */
static uint32_t counted_after(const lap_nn_list_t *list, uint32_t entry, uint32_t before)
{
    const uint32_t end = list->parts[LAP_NN_BACKWARD_MORE + 1];
    uint32_t at = before + 1;
    if (at >= end)
        return before;
    while (at < end && !is_same(&list->entries[entry], &list->entries[at]))
        at++;
    return at;
}

static bool is_counted_elsewhere(const lap_nn_list_t *list, uint32_t entry)
{
    return !lap_nn_list_is_stage(list) && entry >= list->parts[LAP_NN_BACKWARD] &&
           entry < list->parts[LAP_NN_BACKWARD_MORE];
}

static uint32_t counted_entry(const lap_nn_list_t *list, uint32_t entry)
{
    uint32_t at = list->parts[LAP_NN_BACKWARD_MORE] - 1;
    if (!is_counted_elsewhere(list, entry))
        return entry;
    for (uint32_t i = list->parts[LAP_NN_BACKWARD]; i <= entry; i++)
        at = counted_after(list, i, at);
    return at;
}

static bool is_activation(const lap_nn_region_t *region)
{
    return region->memory == LAP_NN_PRIVATE && region->part_of == LAP_NN_NONE &&
           region->first != LAP_NN_NONE;
}

static uint64_t bytes_of(const lap_nn_region_t *region)
{
    return region->rows * region->cols * lap_dtype_size(region->dtype);
}

uint64_t lap_nn_live_bytes(const lap_nn_list_t *list, uint32_t origin)
{
    uint64_t bytes = 0;
    const uint32_t entry = counted_entry(list, origin);
    for (uint32_t i = 0; i < list->nregions; i++) {
        const lap_nn_region_t *region = &list->regions[i];
        if (is_activation(region) && region->first <= entry && entry <= region->last)
            bytes += bytes_of(region);
    }
    return bytes;
}

/*
 * The same of the first `count` entries, without going through all regions for each: with hundreds of layers that took
 * longer than all the rest of a set-up. `live` has room for nentries + 2.
 */
static void fill_live(const lap_nn_list_t *list, uint32_t count, uint64_t *live, uint64_t *live_p)
{
    uint32_t at = list->parts[LAP_NN_BACKWARD_MORE] - 1;
    /* What begins to live with an entry, less what no longer does: modulo 2^64, as it may be less than nothing. */
    for (uint32_t i = 0; i < list->nregions; i++) {
        const lap_nn_region_t *region = &list->regions[i];
        if (!is_activation(region))
            continue;
        live[region->first] += bytes_of(region);
        live[(region->last < list->nentries ? region->last : list->nentries) + 1] -=
            bytes_of(region);
    }
    for (uint32_t i = 1; i <= list->nentries; i++)
        live[i] += live[i - 1];
    for (uint32_t i = 0; i < count; i++) {
        if (is_counted_elsewhere(list, i))
            at = counted_after(list, i, at);
        live_p[i] = live[is_counted_elsewhere(list, i) ? at : i];
    }
}

lap_status_t lap_nn_set_timeline(lap_nn_t *nn, lap_trace_t *timeline)
{
    const lap_nn_list_t *list = &nn->list;
    const uint32_t count = list->parts[LAP_NN_STEP]; /* the step has no activations */
    if (timeline && !nn->live_bytes) {
        uint64_t *live = lap_alloc((size_t)list->nentries + 2, sizeof(*live));
        nn->live_bytes = live ? lap_alloc(count, sizeof(*nn->live_bytes)) : NULL;
        if (nn->live_bytes)
            fill_live(list, count, live, nn->live_bytes);
        lap_free(live);
        if (!nn->live_bytes)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for a timeline of %u entries",
                             (unsigned)count);
    }
    nn->timeline = timeline;
    return LAP_OK;
}

/* ---- fragments ---- */

void lap_nn_add_fragment(const lap_nn_t *nn, lap_exec_t *exec, uint32_t f, const lap_group_t *group,
                         lap_trace_label_t label)
{
    const lap_runnable_t *runnable = lap_exec_runnable(exec, f);
    const lap_exec_fragment_t *fragment = lap_exec_fragment(exec, f);
    lap_op_text_t op;
    for (int r = 0; r < group->size; r++)
        lap_trace_group_add(&label.group, group->members[r]);
    label.ranks = group->members;
    if (!runnable) {
        label.op = fragment->kernel;
        label.delays = lap_exec_kernel_delays(exec, f);
        lap_trace_add_span(nn->timeline, nn->group->world->rank, LAP_STEP_KERNEL, fragment->stream,
                           &label, lap_exec_kernel_span(exec, f));
        return;
    }
    const lap_schedule_t *schedule = lap_runnable_schedule(runnable);
    op = lap_op_text(schedule->kind, schedule->method);
    label.op = op.text;
    lap_trace_add_call(nn->timeline, &label, lap_runnable_records_of(runnable),
                       lap_runnable_records(runnable));
}

void lap_nn_add_to_timeline(const lap_nn_t *nn, lap_exec_t *exec, uint32_t f, const lap_op_t *op)
{
    const lap_exec_fragment_t *fragment = lap_exec_fragment(exec, f);
    const lap_group_t *group = op ? op->group : nn->group;
    char name[64];
    lap_nn_fragment_name(&nn->list, fragment->origin, name, sizeof(name));
    const lap_trace_label_t label = {
        .name = name,
        .layer = (int)lap_nn_fragment_layer(&nn->list, fragment->origin),
        .traffic = lap_nn_fragment_traffic(fragment->size, fragment->buffer),
        .live_bytes =
            fragment->origin < nn->list.parts[LAP_NN_STEP] ? nn->live_bytes[fragment->origin] : 0,
    };
    lap_nn_add_fragment(nn, exec, f, group, label);
}
