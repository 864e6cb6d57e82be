/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP8 operands: every matrix that a GEMM takes gets a copy in FP8 and one scale for all ranks, so
 * that shards gathered from several of them are one matrix. Scales are powers of two, which change
 * seldom and lose nothing; the largest magnitude comes to at most the largest number of the type.
 *
 * Each such matrix has a slot for its scale and a place for its magnitude, in memory of the device.
 * An all-gather exchanges magnitudes, a kernel makes scales of them, and casts and GEMMs read the
 * slots: the host sees none of it. Delayed scaling takes the largest magnitude of the passes before,
 * which casts find on their way and ranks exchange once per step: all micro-batches of a step have the same
 * scales, also those that are in flight at once in a pipeline. Current scaling takes that of
 * the matrix itself; so does the first pass, which knows no other. Weights are scaled by themselves,
 * all at once, and have a second copy that is transposed, for dgrad. Ranks that share masters find the magnitudes of
 * their parts: the scales are there before the first weight is gathered. Lists it all; runs nothing.
 */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "nn/buckets.h"
#include "nn/context.h"

bool lap_nn_list_fp8(const lap_nn_list_t *list)
{
    return list->plan.desc.fp8 != LAP_FP8_NONE;
}

static bool is_delayed(const lap_nn_list_t *list)
{
    return list->plan.desc.fp8 == LAP_FP8_DELAYED;
}

/* ---- slots ---- */

static uint32_t add_array(lap_nn_list_t *list, const char *name, size_t rows, size_t cols)
{
    const uint32_t array = lap_nn_add_region(list, name, LAP_NN_NONE, LAP_NN_LASTING, LAP_NN_FIXED,
                                             LAP_FLOAT32, rows, cols);
    if (list->status == LAP_OK)
        list->regions[array].made = true;
    return array;
}

void lap_nn_list_slots(lap_nn_list_t *list)
{
    if (!lap_nn_list_fp8(list))
        return;
    list->scales = lap_nn_add_region(list, "scales", LAP_NN_NONE, LAP_NN_LASTING, LAP_NN_FIXED,
                                     LAP_FLOAT32, 1, (size_t)list->plan.nranks);
    list->fp8_scales = add_array(list, "fp8_scales", 1, 0);
    list->fp8_amax = add_array(list, "fp8_amax", 1, 0);
}

/* `count` matrices from number `first` on: what they have of an array with `each` floats for one. */
static uint32_t part_of(lap_nn_list_t *list, const char *name, uint32_t array, size_t first,
                        size_t count, size_t each)
{
    return lap_nn_add_part(list, name, array, first * each * sizeof(float), 1, count * each,
                           count * each);
}

/* Whether the slot being listed is not the first of its chunk: they share delayed scales. */
static bool is_later_slot(const lap_nn_list_t *list)
{
    return list->slot > 0 && list->slots[list->slot - 1].chunk == list->slots[list->slot].chunk;
}

/* One kernel renews the scales of a chunk. */
static void add_to_renewal(lap_nn_list_t *list, lap_nn_renewal_t *renewal,
                           const lap_nn_region_t *matrix, uint32_t number)
{
    const bool narrow = matrix->dtype == LAP_FLOAT8_E4M3;
    if (renewal->count == 0)
        renewal->first = number;
    if (number != renewal->first + renewal->count || (narrow && renewal->narrow != renewal->count))
        list->status = lap_error(
            LAP_ERR_INTERNAL, "%s does not come after those of its chunk and type", matrix->name);
    renewal->narrow += narrow;
    renewal->count++;
}

void lap_nn_add_scale(lap_nn_list_t *list, uint32_t region)
{
    const bool renewed =
        is_delayed(list) && list->status == LAP_OK && list->regions[region].block != LAP_NN_NONE;
    lap_nn_renewal_t *renewal = &list->renewals[list->slots[list->slot].chunk];
    const bool shared = renewed && is_later_slot(list);
    const uint32_t number = shared ? renewal->first + list->next_fp8++ : list->nfp8;
    const char *name = list->status == LAP_OK ? list->regions[region].name : "";
    const uint32_t scale = part_of(list, name, list->fp8_scales, number, 1, LAP_FP8_SLOT),
                   amax = part_of(list, name, list->fp8_amax, number, 1, 1);
    if (list->status != LAP_OK || list->same_regions)
        return;
    lap_nn_region_t *matrix = &list->regions[region];
    matrix->scale = scale;
    matrix->amax = amax;
    list->regions[scale].block = list->regions[amax].block = matrix->block;
    if (shared)
        return;
    list->regions[list->fp8_scales].cols += LAP_FP8_SLOT;
    list->regions[list->fp8_amax].cols++;
    list->regions[list->fp8_scales].stride = list->regions[list->fp8_scales].cols;
    list->regions[list->fp8_amax].stride = list->regions[list->fp8_amax].cols;
    list->nfp8++;
    if (renewed)
        add_to_renewal(list, renewal, matrix, number);
}

void lap_nn_share_scale(lap_nn_list_t *list, uint32_t region, uint32_t other)
{
    if (list->status == LAP_OK)
        list->regions[region].scale = list->regions[other].scale;
}

/* ---- entries ---- */

static void find_amax(lap_nn_list_t *list, uint32_t b, uint32_t source, uint32_t amax,
                      lap_nn_when_t when)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_AMAX, "amax", b);
    entry->reads[0] = source;
    entry->writes[0] = amax;
    entry->when = when;
}

/* Gathers the magnitudes of all ranks of a group; the only one has them. */
static lap_nn_entry_t *exchange(lap_nn_list_t *list, uint32_t b, size_t count, int group,
                                lap_nn_when_t when)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_EXTERNAL_AG;
    desc.method = "direct";
    desc.m = (size_t)lap_nn_slice(list, group).size;
    desc.cols = count;
    lap_nn_entry_t *entry = lap_nn_add_call(list, "amax", LAP_NN_NONE, (lap_tp_gemm_t)0, &desc);
    entry->block = b;
    entry->when = when;
    if (list->status == LAP_OK)
        list->steps[entry->index].group = group;
    return entry;
}

/* A region as so many rows. */
static uint32_t view_of(lap_nn_list_t *list, uint32_t region, size_t rows, size_t cols)
{
    return lap_nn_add_part(list, "found", region, 0, rows, cols, cols);
}

/* The magnitudes of those that share masters, each with those of all that share its weights. */
static uint32_t find_shards(lap_nn_list_t *list, uint32_t found, size_t count)
{
    const size_t shards = list->plan.desc.shards, nranks = (size_t)list->plan.nranks;
    const uint32_t all = lap_nn_add_region(list, "found", LAP_NN_NONE, LAP_NN_LASTING, LAP_NN_FIXED,
                                           LAP_FLOAT32, shards * nranks, count);
    const uint32_t own = view_of(list, found, 1, nranks * count),
                   rows = view_of(list, all, shards, nranks * count);
    lap_nn_entry_t *gather =
        exchange(list, LAP_NN_NONE, nranks * count, LAP_NN_BY_SHARDS, LAP_NN_ALWAYS);
    gather->reads[LAP_NN_X] = own;
    gather->writes[LAP_NN_SECOND] = rows;
    return all;
}

/* Scales of `count` matrices, of which `narrow` are e4m3, from the magnitudes of this pass only. */
static void scale_now(lap_nn_list_t *list, uint32_t b, lap_nn_memory_t memory, uint32_t amax,
                      uint32_t scales, size_t count, size_t narrow, lap_nn_when_t when)
{
    uint32_t found = amax;
    if (list->plan.nranks > 1) {
        found = lap_nn_add_region(list, "found", b, memory, LAP_NN_FIXED, LAP_FLOAT32,
                                  (size_t)list->plan.nranks, count);
        lap_nn_entry_t *gather = exchange(list, b, count, LAP_NN_BY_LAYERS, when);
        gather->reads[LAP_NN_X] = amax;
        gather->writes[LAP_NN_SECOND] = found;
    }
    if (list->shards && memory == LAP_NN_LASTING) /* of weights */
        found = find_shards(list, found, count);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_SCALE, "scale", b);
    entry->reads[0] = found;
    entry->writes[0] = scales;
    entry->index = (uint32_t)narrow;
    entry->when = when;
}

static void add_cast(lap_nn_list_t *list, uint32_t b, uint32_t source, uint32_t copy, bool looks)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_CAST, "cast", b);
    const lap_nn_region_t *matrix = list->status == LAP_OK ? &list->regions[copy] : NULL;
    entry->reads[0] = source;
    entry->writes[0] = copy;
    if (!matrix || matrix->scale == LAP_NN_NONE)
        return;
    entry->reads[1] = matrix->scale;
    if (looks)
        entry->reads[2] = entry->writes[1] = matrix->amax;
}

uint32_t lap_nn_list_cast(lap_nn_list_t *list, uint32_t b, uint32_t source, uint32_t copy)
{
    const lap_nn_when_t when = is_delayed(list) ? LAP_NN_FIRST : LAP_NN_ALWAYS;
    if (!list->blocks[b].shape.fp8)
        return source;
    if (list->status != LAP_OK)
        return copy;
    const uint32_t amax = list->regions[copy].amax, scale = list->regions[copy].scale;
    find_amax(list, b, source, amax, when);
    scale_now(list, b, LAP_NN_PRIVATE, amax, scale, 1, list->regions[copy].dtype == LAP_FLOAT8_E4M3,
              when);
    add_cast(list, b, source, copy, is_delayed(list));
    return copy;
}

/* ---- delayed scaling ---- */

void lap_nn_list_renew(lap_nn_list_t *list)
{
    list->renew = list->nentries;
    for (uint32_t c = 0; is_delayed(list) && c < lap_nn_plan_chunks(&list->plan); c++) {
        if (lap_nn_plan_chunk(&list->plan, c).layers == 0)
            continue;
        if (list->plan.nranks > 1)
            (void)exchange(list, LAP_NN_NONE, 1, LAP_NN_BY_LAYERS, LAP_NN_LATER);
        lap_nn_add_entry(list, LAP_NN_SCALE, "scale", LAP_NN_NONE)->when = LAP_NN_LATER;
    }
    list->nrenew = list->nentries - list->renew;
}

/* The history of a chunk lies after those of the chunks before. */
static size_t history_begin(const lap_nn_list_t *list, const lap_nn_renewal_t *renewal)
{
    return list->plan.desc.amax_history * (renewal->first - list->nfp8_weights);
}

/* What the entries of a chunk, from `next` on, exchange and renew. Returns the entry after them. */
static uint32_t end_renewal(lap_nn_list_t *list, const lap_nn_renewal_t *renewal, uint32_t next)
{
    const uint32_t first = renewal->first;
    const size_t count = renewal->count, length = list->plan.desc.amax_history;
    const uint32_t amax = part_of(list, "amax", list->fp8_amax, first, count, 1),
                   scales = part_of(list, "scale", list->fp8_scales, first, count, LAP_FP8_SLOT),
                   history = lap_nn_add_part(list, "fp8_history", list->fp8_history,
                                             history_begin(list, renewal) * sizeof(float), length,
                                             count, count);
    uint32_t found = amax;
    if (list->plan.nranks > 1)
        found = add_array(list, "found", (size_t)list->plan.nranks, count);
    if (list->status != LAP_OK)
        return next;
    lap_nn_entry_t *entry = &list->entries[next];
    if (list->plan.nranks > 1) {
        list->steps[entry->index].desc.cols = count;
        entry->reads[LAP_NN_X] = amax;
        entry->writes[LAP_NN_SECOND] = found;
        entry++;
    }
    entry->reads[0] = found;
    entry->reads[1] = history;
    entry->writes[0] = scales;
    entry->writes[1] = history;
    entry->writes[2] = amax;
    entry->index = renewal->narrow;
    return (uint32_t)(entry + 1 - list->entries);
}

void lap_nn_list_renew_end(lap_nn_list_t *list)
{
    uint32_t next = list->renew;
    if (!is_delayed(list) || list->status != LAP_OK)
        return;
    list->fp8_history = add_array(list, "fp8_history", list->plan.desc.amax_history,
                                  list->nfp8 - list->nfp8_weights);
    for (uint32_t c = 0; c < lap_nn_plan_chunks(&list->plan) && list->status == LAP_OK; c++)
        if (list->renewals[c].count > 0)
            next = end_renewal(list, &list->renewals[c], next);
}

size_t lap_nn_fp8_delayed(const lap_nn_list_t *list)
{
    return is_delayed(list) ? list->nfp8 - list->nfp8_weights : 0;
}

/* Of block `b` the GEMM that takes a matrix, or makes what the matrix is the gradient of. */
static void name_of(const lap_nn_list_t *list, const lap_nn_region_t *matrix, char *text,
                    size_t bytes)
{
    const lap_nn_block_t *block = &list->blocks[matrix->block];
    const bool grad = matrix->dtype == LAP_FLOAT8_E5M2;
    const bool column = strcmp(matrix->name, grad ? "dpre8" : "input8") == 0;
    const char *name = (column ? block->column : block->row)->name;
    const char *end = strstr(name, ".weight");
    snprintf(text, bytes, "%.*s.%s", end ? (int)(end - name) : (int)strlen(name), name,
             grad ? "grad_output" : "input");
}

void lap_nn_fp8_name(const lap_nn_list_t *list, size_t i, char *text, size_t bytes)
{
    const size_t offset = (list->nfp8_weights + i) * sizeof(float);
    snprintf(text, bytes, "%zu", i);
    for (uint32_t r = 0; r < list->nregions; r++) {
        const lap_nn_region_t *matrix = &list->regions[r];
        if (matrix->amax == LAP_NN_NONE || list->regions[matrix->amax].offset != offset)
            continue;
        name_of(list, matrix, text, bytes);
        return;
    }
}

size_t lap_nn_fp8_history(const lap_nn_list_t *list, size_t i, size_t age)
{
    const size_t number = list->nfp8_weights + i;
    const lap_nn_renewal_t *renewal = list->renewals;
    while (number < renewal->first || number >= renewal->first + renewal->count)
        renewal++;
    return history_begin(list, renewal) + age * renewal->count + number - renewal->first;
}

/* ---- weights ---- */

/* The fp32 numbers of a weight that this rank has: all, or its part of them. */
static uint32_t own_master(lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    if (!list->shards)
        return weight->master;
    const lap_nn_share_t own = lap_nn_own_share(list, weight);
    return lap_nn_add_part(list, weight->name, list->masters, own.at * sizeof(float), 1, own.count,
                           own.count);
}

static void scale_weights(lap_nn_list_t *list)
{
    const uint32_t count = list->nfp8_weights;
    for (uint32_t i = 0; i < list->nweights && list->status == LAP_OK; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        const uint32_t amax = list->regions[weight->copy].amax;
        if (amax != LAP_NN_NONE)
            find_amax(list, LAP_NN_NONE, own_master(list, weight), amax, LAP_NN_ALWAYS);
    }
    if (count == 0)
        return;
    const uint32_t amax = part_of(list, "amax", list->fp8_amax, 0, count, 1),
                   scales = part_of(list, "scale", list->fp8_scales, 0, count, LAP_FP8_SLOT);
    /* Not among what forward leaves for backward: weights may change in between. */
    scale_now(list, LAP_NN_NONE, LAP_NN_LASTING, amax, scales, count, count, LAP_NN_ALWAYS);
}

void lap_nn_list_refresh(lap_nn_list_t *list)
{
    scale_weights(list);
    list->scaled = list->nentries;
    for (uint32_t i = 0; i < list->nweights && list->status == LAP_OK; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        if (weight->copy != weight->master)
            add_cast(list, LAP_NN_NONE, weight->master, weight->copy, false);
        if (list->regions[weight->copy].scale == LAP_NN_NONE)
            continue;
        lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_TRANSPOSE, weight->name, LAP_NN_NONE);
        entry->reads[0] = weight->copy;
        entry->writes[0] = weight->turned;
    }
}
