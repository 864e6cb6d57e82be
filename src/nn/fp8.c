/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP8 operands: every matrix that a GEMM takes gets a copy in FP8 and one scale for all ranks, so
 * that shards gathered from several of them are one matrix. Scales are powers of two, which change
 * seldom and lose nothing; the largest magnitude comes to at most the largest number of the type.
 *
 * Each such matrix has a slot for its scale and a place for its magnitude, in memory of the device.
 * An all-gather exchanges magnitudes, a kernel makes scales of them, and casts and GEMMs read the
 * slots: the host sees none of it. Delayed scaling takes the largest magnitude of the passes before,
 * which casts find on their way and ranks exchange once per forward. Current scaling takes that of
 * the matrix itself; so does the first pass, which knows no other. Weights are scaled by themselves,
 * all at once, and have a second copy that is transposed, for dgrad. Lists it all; runs nothing.
 */
#include "core/status.h"
#include "nn/list.h"

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

void lap_nn_add_scale(lap_nn_list_t *list, uint32_t region)
{
    const size_t number = list->nfp8;
    const char *name = list->status == LAP_OK ? list->regions[region].name : "";
    const uint32_t scale = part_of(list, name, list->fp8_scales, number, 1, LAP_FP8_SLOT),
                   amax = part_of(list, name, list->fp8_amax, number, 1, 1);
    if (list->status != LAP_OK || list->same_regions)
        return;
    lap_nn_region_t *matrix = &list->regions[region];
    matrix->scale = scale;
    matrix->amax = amax;
    list->regions[scale].block = list->regions[amax].block = matrix->block;
    list->regions[list->fp8_scales].cols += LAP_FP8_SLOT;
    list->regions[list->fp8_amax].cols++;
    list->regions[list->fp8_scales].stride = list->regions[list->fp8_scales].cols;
    list->regions[list->fp8_amax].stride = list->regions[list->fp8_amax].cols;
    /* One kernel renews all that are delayed; slots of a pipeline, which are not, come one after the other. */
    if (is_delayed(list) && matrix->dtype == LAP_FLOAT8_E4M3 && list->nfp8_e4m3 != list->nfp8)
        list->status = lap_error(LAP_ERR_INTERNAL, "%s is e4m3, and comes after a matrix of e5m2",
                                 matrix->name);
    list->nfp8_e4m3 += matrix->dtype == LAP_FLOAT8_E4M3;
    list->nfp8++;
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

/* Gathers the magnitudes of all ranks; the only rank of a group has them. */
static lap_nn_entry_t *exchange(lap_nn_list_t *list, uint32_t b, size_t count, lap_nn_when_t when)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_EXTERNAL_AG;
    desc.method = "direct";
    desc.m = (size_t)list->plan.nranks;
    desc.cols = count;
    lap_nn_entry_t *entry = lap_nn_add_call(list, "amax", LAP_NN_NONE, (lap_tp_gemm_t)0, &desc);
    entry->block = b;
    entry->when = when;
    return entry;
}

/* Scales of `count` matrices, of which `narrow` are e4m3, from the magnitudes of this pass alone. */
static void scale_now(lap_nn_list_t *list, uint32_t b, lap_nn_memory_t memory, uint32_t amax,
                      uint32_t scales, size_t count, size_t narrow, lap_nn_when_t when)
{
    uint32_t found = amax;
    if (list->plan.nranks > 1) {
        found = lap_nn_add_region(list, "found", b, memory, LAP_NN_FIXED, LAP_FLOAT32,
                                  (size_t)list->plan.nranks, count);
        lap_nn_entry_t *gather = exchange(list, b, count, when);
        gather->reads[LAP_NN_X] = amax;
        gather->writes[LAP_NN_SECOND] = found;
    }
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
    if (!is_delayed(list))
        return;
    list->renew = list->nentries;
    if (list->plan.nranks > 1)
        (void)exchange(list, LAP_NN_NONE, 1, LAP_NN_LATER);
    lap_nn_add_entry(list, LAP_NN_SCALE, "scale", LAP_NN_NONE)->when = LAP_NN_LATER;
}

void lap_nn_list_renew_end(lap_nn_list_t *list)
{
    const uint32_t first = list->nfp8_weights;
    const size_t count = list->nfp8 - first;
    if (!is_delayed(list) || list->status != LAP_OK)
        return;
    const uint32_t amax = part_of(list, "amax", list->fp8_amax, first, count, 1),
                   scales = part_of(list, "scale", list->fp8_scales, first, count, LAP_FP8_SLOT);
    uint32_t found = amax;
    list->fp8_history = add_array(list, "fp8_history", list->plan.desc.amax_history, count);
    if (list->plan.nranks > 1)
        found = add_array(list, "found", (size_t)list->plan.nranks, count);
    if (list->status != LAP_OK)
        return;
    lap_nn_entry_t *entry = &list->entries[list->renew];
    if (list->plan.nranks > 1) {
        list->steps[entry->index].desc.cols = count;
        entry->reads[LAP_NN_X] = amax;
        entry->writes[LAP_NN_SECOND] = found;
        entry++;
    }
    entry->reads[0] = found;
    entry->reads[1] = list->fp8_history;
    entry->writes[0] = scales;
    entry->writes[1] = list->fp8_history;
    entry->writes[2] = amax;
    entry->index = list->nfp8_e4m3 - first;
}

/* ---- weights ---- */

void lap_nn_list_refresh(lap_nn_list_t *list)
{
    const uint32_t count = list->nfp8_weights;
    if (list->status != LAP_OK)
        return;
    for (uint32_t i = 0; i < list->nweights; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        const uint32_t amax = list->regions[weight->copy].amax;
        if (amax != LAP_NN_NONE)
            find_amax(list, LAP_NN_NONE, weight->master, amax, LAP_NN_ALWAYS);
        else if (weight->copy != weight->master)
            add_cast(list, LAP_NN_NONE, weight->master, weight->copy, false);
    }
    if (count == 0)
        return;
    const uint32_t amax = part_of(list, "amax", list->fp8_amax, 0, count, 1),
                   scales = part_of(list, "scale", list->fp8_scales, 0, count, LAP_FP8_SLOT);
    /* Not among what forward leaves for backward: weights may change in between. */
    scale_now(list, LAP_NN_NONE, LAP_NN_LASTING, amax, scales, count, count, LAP_NN_ALWAYS);
    for (uint32_t i = 0; i < list->nweights && list->status == LAP_OK; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        if (list->regions[weight->copy].scale == LAP_NN_NONE)
            continue;
        add_cast(list, LAP_NN_NONE, weight->master, weight->copy, false);
        lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_TRANSPOSE, weight->name, LAP_NN_NONE);
        entry->reads[0] = weight->copy;
        entry->writes[0] = weight->turned;
    }
}
