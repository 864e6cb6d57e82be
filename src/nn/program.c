/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From lists to programs: each entry becomes a fragment or a kernel, and each region of the list one
 * of the program. Runs nothing.
 */
#include "nn/program.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "nn/context.h"

/* ---- memory ---- */

/* Private and lasting regions share a memory each; the caller's are apart. */
static uint32_t memory_of(const lap_nn_list_t *list, uint32_t region)
{
    const lap_nn_memory_t memory = list->regions[region].memory;
    return memory == LAP_NN_EXTERNAL ? LAP_NN_GIVEN_MEMORY + region : (uint32_t)memory;
}

/* All regions of a parameter have its name in the list: those that are not its master say what they are. */
static void rename_region(lap_linked_t *linked, const lap_nn_weight_t *weight, uint32_t region,
                          const char *suffix)
{
    char *name = linked->status == LAP_OK ? linked->regions[region].name : NULL;
    if (name && region != weight->master && strcmp(name, weight->name) == 0)
        snprintf(name, sizeof(linked->regions[region].name), "%s%s", weight->name, suffix);
}

static void name_weights(const lap_nn_list_t *list, lap_linked_t *linked)
{
    for (uint32_t i = 0; i < list->nweights; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        rename_region(linked, weight, weight->grad, ".grad");
        rename_region(linked, weight, weight->copy, ".copy");
        rename_region(linked, weight, weight->turned, ".transposed");
        if (!weight->param.vector)
            continue;
        rename_region(linked, weight, weight->partial, ".partial");
        if (weight->summed)
            rename_region(linked, weight, weight->sums, ".sum");
    }
}

bool lap_nn_is_given(const lap_nn_list_t *list, uint32_t region)
{
    return list->regions[region].memory == LAP_NN_EXTERNAL && region != list->y &&
           region != list->dy && region != list->dx;
}

static void set_scope(lap_linked_t *linked, uint32_t region, uint32_t root, lap_link_scope_t scope)
{
    if (linked->status != LAP_OK)
        return;
    linked->regions[region].root = root;
    linked->regions[region].scope = scope;
}

/* The regions of a program are those of its list, with the same numbers, and then scratch memory. */
void lap_nn_link_regions(const lap_nn_list_t *list, bool first, lap_linked_t *linked)
{
    for (uint32_t i = 0; i < list->nregions; i++) {
        const lap_nn_region_t *region = &list->regions[i];
        const bool given = lap_nn_is_given(list, i);
        const bool filled = region->memory == LAP_NN_LASTING
                                ? !(first && region->made)
                                : region->memory == LAP_NN_STATE && !region->made;
        char name[64];
        size_t offset;
        const uint32_t root = lap_nn_region_root(list, i, &offset);
        const lap_nn_region_t *named = region->made ? &list->regions[root] : region;
        const bool slotted = named->slot != LAP_NN_NONE && named->memory == LAP_NN_PRIVATE;
        char slot[24] = "";
        if (slotted)
            snprintf(slot, sizeof(slot), "slot%u.", (unsigned)named->slot);
        if (named->block == LAP_NN_NONE)
            snprintf(name, sizeof(name), "%s%s", slot, named->name);
        else
            snprintf(name, sizeof(name), "%sblock%u.%s", slot, (unsigned)named->block, named->name);
        const size_t copies = region->memory == LAP_NN_EXTERNAL ? lap_nn_micros(list) : 1;
        const uint32_t added = lap_link_add_region(
            linked, name, memory_of(list, root), list->regions[root].offset + offset,
            copies * lap_nn_region_bytes(region), filled || given);
        const bool scales = lap_nn_list_fp8(list) && i == list->scales; /* of what a call gathers */
        set_scope(linked, added, root,
                  scales    ? LAP_SCOPE_CALL
                  : slotted ? LAP_SCOPE_ITERATION
                            : LAP_SCOPE_PROGRAM);
        if (linked->status == LAP_OK)
            linked->regions[added].lasts = list->regions[root].memory == LAP_NN_LASTING ||
                                           list->regions[root].memory == LAP_NN_STATE;
    }
    name_weights(list, linked);
    for (uint32_t i = 0; i < list->nsteps; i++) {
        const uint32_t added =
            lap_link_add_region(linked, "scratch of an operator",
                                LAP_NN_SCRATCH_MEMORY + i % LAP_NN_SCRATCHES, 0, SIZE_MAX, false);
        set_scope(linked, added, added, LAP_SCOPE_CALL);
    }
}

/* Who makes a region may write all of it and who reads a part: it is one to the checker. */
uint32_t lap_nn_linked_region(const lap_nn_list_t *list, uint32_t region, size_t *offset_p)
{
    const lap_nn_region_t *matrix = &list->regions[region];
    *offset_p = 0;
    return matrix->made ? lap_nn_region_root(list, region, offset_p) : region;
}

lap_link_place_t lap_nn_place(const lap_nn_list_t *list, uint32_t region)
{
    lap_link_place_t place = {.region = LAP_NO_REGION};
    if (region == LAP_NN_NONE)
        return place;
    const lap_nn_region_t *matrix = &list->regions[region];
    const size_t element = lap_dtype_size(matrix->dtype);
    place.region = lap_nn_linked_region(list, region, &place.offset);
    place.dtype = matrix->dtype;
    place.row_bytes = matrix->cols * element;
    place.stride = matrix->stride * element;
    return place;
}

/* A vector as one row, whatever its shape. */
static lap_link_place_t vector_of(const lap_nn_list_t *list, uint32_t region)
{
    lap_link_place_t place = lap_nn_place(list, region);
    if (region != LAP_NN_NONE)
        place.row_bytes = place.stride = lap_nn_region_bytes(&list->regions[region]);
    return place;
}

/* The slot of the scale of an FP8 matrix. */
static lap_link_place_t scale_of(const lap_nn_list_t *list, uint32_t region)
{
    return lap_nn_place(list, region == LAP_NN_NONE ? region : list->regions[region].scale);
}

/* ---- entries ---- */

uint32_t lap_nn_operand_region(const lap_nn_entry_t *entry, uint32_t role)
{
    return role < LAP_NN_READS ? entry->reads[role] : entry->writes[role - LAP_NN_READS];
}

void lap_nn_call_places(const lap_nn_list_t *list, const lap_nn_entry_t *entry, lap_op_kind_t kind,
                        lap_link_place_t places[LAP_CALL_OPERANDS])
{
    const uint32_t *reads = entry->reads, *writes = entry->writes;
    const bool gathers = kind == LAP_AG_GEMM; /* the scale of a comes with it */
    const bool keeps_input = writes[LAP_NN_AUX_OUT] != LAP_NN_NONE;
    places[LAP_INPUT] = lap_nn_place(list, reads[LAP_NN_A]);
    places[LAP_WEIGHT] = lap_nn_place(list, reads[LAP_NN_B]);
    places[LAP_MOVED] = lap_nn_place(list, reads[LAP_NN_X]);
    places[LAP_SCALE] = scale_of(list, reads[gathers ? LAP_NN_A : LAP_NN_X]);
    places[LAP_OUTPUT] = lap_nn_place(list, writes[LAP_NN_D]);
    places[LAP_GATHERED] = lap_nn_place(list, writes[LAP_NN_SECOND]);
    places[LAP_SCALES] = lap_nn_place(list, writes[LAP_NN_SCALES]);
    places[LAP_SCRATCH] = (lap_link_place_t){.region = list->nregions + entry->index};
    places[LAP_AUX] =
        lap_nn_place(list, keeps_input ? writes[LAP_NN_AUX_OUT] : reads[LAP_NN_AUX_IN]);
    places[LAP_BIAS] = vector_of(list, reads[LAP_NN_BIAS]);
    places[LAP_BIAS_GRAD] = vector_of(list, writes[LAP_NN_BIAS_GRAD]);
    places[LAP_A_SCALE] = scale_of(list, gathers ? LAP_NN_NONE : reads[LAP_NN_A]);
    places[LAP_B_SCALE] = scale_of(list, reads[LAP_NN_B]);
}

bool lap_nn_operand(const lap_nn_list_t *list, const lap_nn_entry_t *entry, uint32_t role,
                    size_t seq, lap_link_place_t *place_p, size_t *rows_p)
{
    const uint32_t region = lap_nn_operand_region(entry, role);
    size_t first;
    if (region == LAP_NN_NONE)
        return false;
    *place_p = lap_nn_place(list, region);
    *rows_p = lap_nn_entry_rows(list, entry, region, seq, &first);
    place_p->offset += first * place_p->stride;
    return true;
}

static void use(const lap_nn_list_t *list, size_t seq, const lap_nn_entry_t *entry,
                lap_linked_t *linked, uint32_t role, bool write)
{
    lap_link_place_t place;
    size_t rows;
    if (lap_nn_operand(list, entry, role, seq, &place, &rows))
        lap_link_operand(linked, role, write, &place, rows);
}

/* All operands of an entry; what it adds to it reads, too. */
static void use_all(const lap_nn_list_t *list, size_t seq, const lap_nn_entry_t *entry,
                    lap_linked_t *linked)
{
    for (uint32_t role = 0; role < LAP_NN_READS; role++)
        use(list, seq, entry, linked, role, false);
    if (entry->beta != 0)
        use(list, seq, entry, linked, LAP_NN_READS, false);
    for (uint32_t role = LAP_NN_READS; role < LAP_NN_READS + LAP_NN_WRITES; role++)
        use(list, seq, entry, linked, role, true);
}

static const char *kernel_name(lap_nn_work_t work)
{
    static const char *const others[] = {
#define NAME(work, name, issuer) name,
        LAP_NN_OTHER_LIST(NAME)
#undef NAME
    };
    return (unsigned)work < LAP_KERNELS ? lap_kernel_name((lap_kernel_id_t)work)
                                        : others[work - (lap_nn_work_t)LAP_KERNELS];
}

static void add_kernel(const lap_nn_list_t *list, size_t seq, const lap_nn_entry_t *entry,
                       lap_linked_t *linked)
{
    const lap_problem_t problem = {.rank = list->rank, .size = list->plan.nranks};
    if (lap_link_kernel(linked, &problem, entry->name, LAP_STREAM_COMPUTE,
                        kernel_name(entry->work)))
        use_all(list, seq, entry, linked);
}

static lap_status_t add_call(const lap_nn_list_t *list, size_t seq, const lap_nn_entry_t *entry,
                             const lap_nn_source_t *source, lap_linked_t *linked)
{
    lap_schedule_t schedule = {.nsteps = 0};
    lap_status_t status = source->build(source->context, list, entry->index,
                                        lap_nn_step_rows(list, entry->index, seq), &schedule);
    lap_fragment_t *fragment = status == LAP_OK ? lap_link_fragment(linked) : NULL;
    if (!fragment) {
        lap_schedule_clear(&schedule);
        return status == LAP_OK ? linked->status : status;
    }
    fragment->schedule = schedule;
    lap_nn_call_places(list, entry, schedule.kind, fragment->places);
    if (lap_schedule_is_kernel(&schedule)) /* another library's: nobody sees its steps */
        use_all(list, seq, entry, linked);
    else
        lap_link_epilogue(linked, entry->writes[LAP_NN_AUX_OUT] != LAP_NN_NONE, entry->beta != 0);
    return LAP_OK;
}

size_t lap_nn_step_rows(const lap_nn_list_t *list, uint32_t step, size_t seq)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    const size_t m = lap_nn_tokens(list, seq) * desc->batch;
    switch (list->steps[step].extent) {
    case LAP_NN_FIXED:
        return list->steps[step].desc.m;
    case LAP_NN_GROUP_TOKENS:
        return lap_nn_group_tokens(desc, seq, (size_t)list->cp_rank / desc->cp_a2a);
    case LAP_NN_SEQ_TOKENS:
        return seq;
    case LAP_NN_RANKS_ROWS:
        return m * (size_t)list->plan.nranks;
    default:
        return m;
    }
}

bool lap_nn_entry_runs(const lap_nn_entry_t *entry, lap_nn_mode_t mode)
{
    if (entry->when == LAP_NN_FIRST ? !mode.first
                                    : entry->when == LAP_NN_LATER && (mode.first || mode.more))
        return false;
    return entry->work != LAP_NN_READY && (mode.looks || entry->work != LAP_NN_LOOK);
}

/* The call of an entry: the groups of a list are slices of the world. */
static void join_group(const lap_nn_list_t *list, uint32_t index, lap_fragment_t *fragment,
                       int rank)
{
    const lap_nn_entry_t *entry = &list->entries[index];
    const int group =
        entry->work == LAP_NN_OPERATOR ? list->steps[entry->index].group : LAP_NN_BY_LAYERS;
    const lap_nn_slice_t slice = lap_nn_slice(list, group);
    fragment->origin = index;
    fragment->order = index + 1;
    fragment->phase = index >= list->parts[LAP_NN_STEP]     ? LAP_NN_PHASE_STEP
                      : index < list->parts[LAP_NN_REFRESH] ? LAP_NN_PHASE_LAYERS
                      : index < list->scaled                ? LAP_NN_PHASE_SCALES
                                                            : LAP_NN_PHASE_COPIES;
    fragment->buffer = (uint32_t)group;
    fragment->base = rank - slice.rank * slice.stride;
    fragment->stride = slice.stride;
}

lap_status_t lap_nn_link_entry(const lap_nn_list_t *list, uint32_t index, size_t seq,
                               const lap_nn_source_t *source, lap_linked_t *linked)
{
    const lap_nn_entry_t *entry = &list->entries[index];
    if (entry->work == LAP_NN_OPERATOR)
        LAP_TRY(add_call(list, seq, entry, source, linked));
    else
        add_kernel(list, seq, entry, linked);
    LAP_TRY(linked->status);
    join_group(list, index, &linked->fragments[linked->nfragments - 1], linked->rank);
    return LAP_OK;
}

lap_status_t lap_nn_link_part(const lap_nn_list_t *list, int part, size_t seq, lap_nn_mode_t mode,
                              const lap_nn_source_t *source, lap_linked_t *linked)
{
    if (part == LAP_NN_FORWARD && list->shards && mode.replicas)
        return lap_nn_link_prefetch(list, seq, mode, source, linked);
    const bool gathers = part == LAP_NN_REFRESH && list->shards && mode.replicas;
    const size_t nbuckets = part == LAP_NN_SYNC || gathers ? mode.replicas->buckets->count : 0;
    uint32_t first = list->parts[part], serial;
    size_t bucket;
    if (gathers) /* FP8 weights are made with their scales, and then gathered */
        for (; first < list->scaled; first++)
            LAP_TRY(lap_nn_link_entry(list, first, seq, source, linked));
    serial = linked->nfragments;
    for (size_t i = 0; i < nbuckets; i++)
        LAP_TRY(lap_nn_link_bucket(list, mode.replicas, gathers ? nbuckets - 1 - i : i, gathers,
                                   linked));
    lap_link_set_serial(linked, serial);
    for (uint32_t i = first; i < list->parts[part + 1]; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        if (mode.replicas &&
            lap_nn_bucket_completed(mode.replicas->buckets, list, part, i, &bucket))
            LAP_TRY(lap_nn_link_bucket(list, mode.replicas, bucket, false, linked));
        if (!lap_nn_entry_runs(entry, mode))
            continue;
        LAP_TRY(lap_nn_link_entry(list, i, seq, source, linked));
    }
    return LAP_OK;
}

lap_status_t lap_nn_link_step(const lap_nn_list_t *list, const lap_nn_source_t *source,
                              const lap_nn_replicas_t *replicas, lap_linked_t *linked)
{
    const lap_nn_mode_t mode = {.first = false, .replicas = replicas};
    LAP_TRY(lap_nn_link_part(list, LAP_NN_STEP, 0, mode, source, linked));
    if (list->shards && !replicas)
        return LAP_OK; /* what follows needs the parts of the others */
    const uint32_t first = linked->nfragments;
    LAP_TRY(lap_nn_link_part(list, LAP_NN_REFRESH, 0, mode, source, linked));
    lap_nn_set_after_step(linked, first);
    return LAP_OK;
}
