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
#include "overlap/overlap.h"
#include "schedule/lower.h"
#include "util/alloc.h"

/* ---- memory ---- */

/* Private and lasting regions share a memory each; the caller's are apart. */
static uint32_t memory_of(const lap_nn_list_t *list, uint32_t region)
{
    const lap_nn_memory_t memory = list->regions[region].memory;
    return memory == LAP_NN_EXTERNAL ? LAP_NN_MEMORIES + region : (uint32_t)memory;
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

/* Whether a region is the caller's and has contents before a pass. */
static bool is_given(const lap_nn_list_t *list, uint32_t region)
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
        const bool given = is_given(list, i);
        const bool filled = region->memory == LAP_NN_LASTING
                                ? !(first && region->made)
                                : region->memory == LAP_NN_STATE && !region->made;
        char name[64];
        size_t offset;
        const uint32_t root = lap_nn_region_root(list, i, &offset);
        const lap_nn_region_t *named = region->made || region->view ? &list->regions[root] : region;
        const bool slotted = named->slot != LAP_NN_NONE && named->memory == LAP_NN_PRIVATE;
        char slot[24] = "";
        if (slotted)
            snprintf(slot, sizeof(slot), "slot%u.", (unsigned)named->slot);
        if (named->block == LAP_NN_NONE)
            snprintf(name, sizeof(name), "%s%s", slot, named->name);
        else
            snprintf(name, sizeof(name), "%sblock%u.%s", slot, (unsigned)named->block, named->name);
        const uint32_t added = lap_link_add_region(linked, name, memory_of(list, root),
                                                   list->regions[root].offset + offset,
                                                   lap_nn_region_bytes(region), filled || given);
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
        const uint32_t added = lap_link_add_region(
            linked, "scratch of an operator",
            LAP_NN_MEMORIES + list->nregions + i % LAP_NN_SCRATCHES, 0, SIZE_MAX, false);
        set_scope(linked, added, added, LAP_SCOPE_CALL);
    }
}

/* Who makes a region may write all of it and who reads a part: it is one to the checker. */
uint32_t lap_nn_linked_region(const lap_nn_list_t *list, uint32_t region, size_t *offset_p)
{
    const lap_nn_region_t *matrix = &list->regions[region];
    *offset_p = 0;
    return matrix->made || matrix->view ? lap_nn_region_root(list, region, offset_p) : region;
}

static lap_link_place_t place_of(const lap_nn_list_t *list, uint32_t region)
{
    lap_link_place_t place = {.region = LAP_NO_REGION};
    if (region == LAP_NN_NONE)
        return place;
    const lap_nn_region_t *matrix = &list->regions[region];
    const size_t element = lap_dtype_size(matrix->dtype);
    place.region = lap_nn_linked_region(list, region, &place.offset);
    place.row_bytes = matrix->cols * element;
    place.stride = matrix->stride * element;
    return place;
}

/* A vector as one row, whatever its shape. */
static lap_link_place_t vector_of(const lap_nn_list_t *list, uint32_t region)
{
    lap_link_place_t place = place_of(list, region);
    if (region != LAP_NN_NONE)
        place.row_bytes = place.stride = lap_nn_region_bytes(&list->regions[region]);
    return place;
}

/* The slot of the scale of an FP8 matrix. */
static lap_link_place_t scale_of(const lap_nn_list_t *list, uint32_t region)
{
    return place_of(list, region == LAP_NN_NONE ? region : list->regions[region].scale);
}

/* ---- entries ---- */

static void bind(const lap_nn_list_t *list, const lap_nn_entry_t *entry, lap_linked_t *linked)
{
    lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    lap_link_place_t *places = fragment->places;
    const uint32_t *reads = entry->reads, *writes = entry->writes;
    const bool gelu = writes[LAP_NN_AUX_OUT] != LAP_NN_NONE;
    const bool gathers = fragment->schedule.kind == LAP_AG_GEMM; /* the scale of a comes with it */
    const uint32_t aux = gelu ? writes[LAP_NN_AUX_OUT] : reads[LAP_NN_AUX_IN];
    places[LAP_INPUT] = place_of(list, reads[LAP_NN_A]);
    places[LAP_WEIGHT] = place_of(list, reads[LAP_NN_B]);
    places[LAP_MOVED] = place_of(list, reads[LAP_NN_X]);
    places[LAP_SCALE] = scale_of(list, reads[gathers ? LAP_NN_A : LAP_NN_X]);
    places[LAP_OUTPUT] = place_of(list, writes[LAP_NN_D]);
    places[LAP_GATHERED] = place_of(list, writes[LAP_NN_SECOND]);
    places[LAP_SCALES] = place_of(list, writes[LAP_NN_SCALES]);
    places[LAP_SCRATCH] = (lap_link_place_t){.region = list->nregions + entry->index};
    const lap_link_epilogue_t epilogue = {
        .aux = place_of(list, aux),
        .bias = vector_of(list, reads[LAP_NN_BIAS]),
        .bias_grad = vector_of(list, writes[LAP_NN_BIAS_GRAD]),
        .a_scale = scale_of(list, gathers ? LAP_NN_NONE : reads[LAP_NN_A]),
        .b_scale = scale_of(list, reads[LAP_NN_B]),
        .aux_element = aux == LAP_NN_NONE ? 0 : lap_dtype_size(list->regions[aux].dtype),
        .bias_element = reads[LAP_NN_BIAS] == LAP_NN_NONE
                            ? 0
                            : lap_dtype_size(list->regions[reads[LAP_NN_BIAS]].dtype),
        .writes_aux = gelu,
        .reads_d = entry->beta != 0,
    };
    lap_link_epilogue(linked, &epilogue);
}

/* All of a region that an entry of a pass with `seq` active tokens uses. */
static void use(const lap_nn_list_t *list, size_t seq, const lap_nn_entry_t *entry,
                lap_linked_t *linked, uint32_t region, bool write)
{
    if (region == LAP_NN_NONE)
        return;
    size_t first;
    const lap_link_place_t place = place_of(list, region);
    lap_range_t range = {
        .place = (lap_place_t)(LAP_PLACES + place.region),
        .rank = linked->rank,
        .offset = place.offset,
        .rows = lap_nn_entry_rows(list, entry, region, seq, &first),
        .row_bytes = place.row_bytes,
        .stride = place.stride,
    };
    range.offset += first * place.stride;
    lap_link_access(linked, 0, LAP_NO_STEP, write, range);
}

static const char *kernel_name(lap_nn_work_t work)
{
    static const char *const names[] = {
#define NAME(work, name, issuer) name,
        LAP_NN_WORK_LIST(NAME)
#undef NAME
    };
    return names[work];
}

static void add_kernel(const lap_nn_list_t *list, size_t seq, const lap_nn_entry_t *entry,
                       lap_linked_t *linked)
{
    lap_fragment_t *fragment = lap_link_fragment(linked);
    const lap_problem_t problem = {.rank = list->rank, .size = list->plan.nranks};
    if (!fragment)
        return;
    lap_schedule_init(&fragment->schedule, &problem, entry->name);
    (void)lap_add_kernel(&fragment->schedule, LAP_STREAM_COMPUTE, kernel_name(entry->work));
    if (linked->status == LAP_OK)
        linked->status = fragment->schedule.status;
    for (int i = 0; i < LAP_NN_READS; i++)
        use(list, seq, entry, linked, entry->reads[i], false);
    if (entry->beta != 0)
        use(list, seq, entry, linked, entry->writes[0], false);
    for (int i = 0; i < LAP_NN_WRITES; i++)
        use(list, seq, entry, linked, entry->writes[i], true);
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
    bind(list, entry, linked);
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
    uint32_t first = list->parts[part];
    size_t bucket;
    if (gathers) /* FP8 weights are made with their scales, and then gathered */
        for (; first < list->scaled; first++)
            LAP_TRY(lap_nn_link_entry(list, first, seq, source, linked));
    for (size_t i = 0; i < nbuckets; i++)
        LAP_TRY(lap_nn_link_bucket(list, mode.replicas, gathers ? nbuckets - 1 - i : i, gathers,
                                   linked));
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

/* ---- programs of all ranks ---- */

const lap_nn_kernels_t *lap_nn_kernels_for(const lap_target_t *target)
{
    const lap_nn_kernels_t *kernels = NULL;
    if (target->device.graphs && lap_nn_kernels_find("cuda", &kernels) != LAP_OK)
        kernels = NULL;
    return kernels;
}

/* From the descriptions of operators; the context is how they are linked. */
static lap_status_t build_described(void *context, const lap_nn_list_t *list, uint32_t step,
                                    size_t m, lap_schedule_t *schedule_p)
{
    const lap_nn_linking_t *linking = context;
    lap_op_desc_t desc = list->steps[step].desc;
    lap_problem_t problem;
    const lap_builder_t *builder;
    if (desc.method && strcmp(desc.method, LAP_AUTO) == 0)
        desc.method = "serial";
    const lap_nn_slice_t slice = lap_nn_slice(list, list->steps[step].group);
    LAP_TRY(lap_problem_init(&problem, &builder, &desc, slice.size, linking->target->can));
    problem.rank = slice.rank;
    problem.m = m;
    LAP_TRY(lap_build(builder, &problem, schedule_p));
    return linking->as_built ? LAP_OK : lap_lower(schedule_p, 1, linking->target, linking->after);
}

/* How the buckets of a replica are built from their descriptions. */
typedef struct bucket_source {
    const lap_nn_linking_t *linking;
    lap_nn_buckets_t buckets;
} bucket_source_t;

static lap_status_t build_bucket(void *context, size_t index, int which, lap_schedule_t *schedule_p)
{
    const bucket_source_t *source = context;
    const lap_nn_linking_t *linking = source->linking;
    const lap_op_desc_t desc = lap_nn_bucket_desc(&source->buckets, index, which);
    lap_problem_t problem;
    const lap_builder_t *builder;
    LAP_TRY(lap_problem_init(&problem, &builder, &desc, source->buckets.replicas,
                             linking->target->can));
    problem.rank = source->buckets.replica;
    LAP_TRY(lap_build(builder, &problem, schedule_p));
    return linking->as_built ? LAP_OK : lap_lower(schedule_p, 1, linking->target, linking->after);
}

static lap_status_t link_parts(const lap_nn_list_t *list, const lap_nn_linking_t *linking,
                               const lap_nn_source_t *source, const lap_nn_replicas_t *replicas,
                               lap_linked_t *linked)
{
    const size_t seq = list->plan.desc.seq;
    lap_nn_mode_t mode = {.first = linking->first, .more = linking->more};
    lap_nn_link_regions(list, linking->first, linked);
    if (replicas)
        lap_nn_link_wire(list, replicas, linked);
    const bool ahead = list->shards && replicas && linking->replication.ahead;
    mode.replicas = replicas;
    if (linking->first && !ahead)
        LAP_TRY(lap_nn_link_part(list, LAP_NN_REFRESH, seq, mode, source, linked));
    mode.replicas = ahead && !linking->more ? replicas : NULL; /* the first of a step gathers */
    LAP_TRY(lap_nn_link_part(list, LAP_NN_FORWARD, seq, mode, source, linked));
    mode.replicas = NULL;
    LAP_TRY(lap_nn_link_part(list, LAP_NN_LOSS_PART, seq, mode, source, linked));
    const bool late = linking->replication.late, held = linking->replication.held;
    mode.replicas = late || held ? NULL : replicas;
    LAP_TRY(lap_nn_link_part(list, linking->more ? LAP_NN_BACKWARD_MORE : LAP_NN_BACKWARD, seq,
                             mode, source, linked));
    mode.replicas = replicas;
    if (replicas && late && !held)
        LAP_TRY(lap_nn_link_part(list, LAP_NN_SYNC, seq, mode, source, linked));
    if (linking->optimizer)
        LAP_TRY(ahead && linking->replication.starts
                    ? lap_nn_link_step_start(list, source, replicas, linked)
                    : lap_nn_link_step(list, source, ahead ? NULL : replicas, linked));
    lap_nn_expect(list, linking, replicas ? replicas->buckets : NULL, linked);
    return lap_link(linked);
}

static lap_status_t link_rank(const lap_nn_list_t *list, const lap_nn_linking_t *linking,
                              const lap_nn_source_t *source, lap_linked_t *linked)
{
    const lap_nn_replication_t *replication = &linking->replication;
    const int nranks = list->plan.nranks;
    bucket_source_t buckets = {.linking = linking};
    const lap_nn_replicas_t replicas = {.buckets = &buckets.buckets,
                                        .base = list->rank,
                                        .stride = nranks,
                                        .build = build_bucket,
                                        .context = &buckets};
    const int sharers = replication->replicas * (int)list->plan.desc.cp;
    if (sharers <= 1)
        return link_parts(list, linking, source, NULL, linked);
    lap_status_t status =
        lap_nn_buckets_init(&buckets.buckets, list, replication->bucket, replication->by_layer,
                            replication->wire, sharers, linked->rank / nranks);
    if (status == LAP_OK)
        status = link_parts(list, linking, source, &replicas, linked);
    lap_nn_buckets_clear(&buckets.buckets);
    return status;
}

lap_status_t lap_nn_programs_init(lap_nn_programs_t *programs, const lap_nn_plan_t *plan,
                                  const lap_nn_linking_t *linking)
{
    lap_nn_linking_t known = *linking;
    const lap_nn_source_t described = {build_described, &known};
    const lap_nn_source_t *source = linking->source ? linking->source : &described;
    const int replicas = linking->replication.replicas > 1 ? linking->replication.replicas : 1;
    const int place = plan->nranks * (int)plan->desc.cp; /* ranks of a replica */
    const size_t size = (size_t)place * (size_t)replicas;
    *programs =
        (lap_nn_programs_t){.size = (int)size,
                            .separate_step = linking->separate_step,
                            .starts = linking->replication.starts && linking->replication.ahead,
                            .late = linking->replication.late};
    programs->lists = lap_alloc(size, sizeof(*programs->lists));
    programs->programs = lap_alloc(size, sizeof(*programs->programs));
    programs->list = lap_alloc(size, sizeof(*programs->list));
    if (!programs->lists || !programs->programs || !programs->list)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the programs of %zu ranks", size);
    for (int rank = 0; rank < programs->size; rank++) {
        lap_nn_list_t *list = &programs->lists[rank];
        lap_linked_t *linked = &programs->programs[rank];
        linked->rank = rank;
        programs->list[rank] = linked;
        LAP_TRY(lap_nn_list_init(list, plan, plan->desc.shards > 1 ? rank : rank % place,
                                 lap_nn_kernels_for(linking->target)));
        if (linking->optimizer)
            LAP_TRY(lap_nn_list_step(list, linking->optimizer, plan->nranks));
        LAP_TRY(link_rank(list, linking, source, linked));
    }
    return LAP_OK;
}

void lap_nn_programs_clear(lap_nn_programs_t *programs)
{
    for (int rank = 0; rank < programs->size; rank++) {
        if (programs->programs)
            lap_linked_clear(&programs->programs[rank]);
        if (programs->lists)
            lap_nn_list_clear(&programs->lists[rank]);
    }
    lap_free(programs->lists);
    lap_free(programs->programs);
    lap_free(programs->list);
    *programs = (lap_nn_programs_t){.size = 0};
}

static size_t larger(size_t x, size_t y)
{
    return x > y ? x : y;
}

static size_t given_bytes(const lap_nn_list_t *list)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < list->nregions; i++)
        bytes += is_given(list, i) ? lap_nn_region_bytes(&list->regions[i]) : 0;
    return bytes;
}

/* dy takes the place of y. */
static size_t made_bytes(const lap_nn_list_t *list)
{
    const lap_nn_region_t *y = &list->regions[list->y], *dx = &list->regions[list->dx];
    return y->memory == LAP_NN_EXTERNAL ? lap_nn_region_bytes(y) + lap_nn_region_bytes(dx) : 0;
}

/* What is issued at once: all of a step, or where the host comes in between, these by themselves. */
enum { RUN_PASS, RUN_SYNC, RUN_STEP, RUN_GATHER, RUNS };

/* `stepped`: the optimizer's step comes before the fragment. */
static int run_of(const lap_nn_programs_t *programs, const lap_nn_list_t *list, uint32_t origin,
                  bool stepped)
{
    size_t index;
    int which;
    const bool separate = programs->separate_step,
               bucket = lap_nn_bucket_of(origin, &index, &which);
    const bool weights =
        bucket && list->shards && (which == LAP_NN_BUCKET_PACK || which == LAP_NN_BUCKET_GATHER);
    if (stepped)
        return list->shards && !programs->starts ? RUN_GATHER : separate ? RUN_STEP : RUN_PASS;
    return separate && programs->late && bucket && !weights ? RUN_SYNC : RUN_PASS;
}

static bool is_in_background(const lap_linked_t *linked, uint32_t f)
{
    return linked->fragments[f].schedule.set == LAP_BACKGROUND;
}

/*
 * A program is a graph. Where the background takes turns with the rest and no step of the program waits
 * for it, there are several.
 */
static size_t count_launches(const lap_nn_programs_t *programs, int rank)
{
    const lap_linked_t *linked = &programs->programs[rank];
    const lap_nn_list_t *list = &programs->lists[rank];
    size_t turns[RUNS] = {0}, count = 0;
    bool waits[RUNS] = {false}, stepped = false;
    uint32_t last = LAP_NO_STEP, first = 0; /* the fragment before, and the first of the same run */
    int before = RUNS;
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        const lap_fragment_t *fragment = &linked->fragments[f];
        const uint32_t origin = fragment->origin;
        const bool step = origin >= list->parts[LAP_NN_STEP] && origin < LAP_NN_BUCKET_ORIGIN;
        const int run = !step                     ? run_of(programs, list, origin, stepped)
                        : programs->separate_step ? RUN_STEP
                                                  : RUN_PASS;
        stepped = stepped || step;
        first = run == before ? first : f;
        turns[run] +=
            run != before || is_in_background(linked, f) != is_in_background(linked, last);
        for (uint32_t i = 0; i < fragment->nlinks && !is_in_background(linked, f); i++)
            waits[run] = waits[run] || (fragment->links[i].fragment >= first &&
                                        is_in_background(linked, fragment->links[i].fragment));
        before = run;
        last = f;
    }
    for (int run = 0; run < RUNS; run++)
        count += waits[run] ? 1 : turns[run];
    return count;
}

lap_nn_proof_t lap_nn_programs_count(const lap_nn_programs_t *programs)
{
    lap_nn_proof_t most = {.steps = 0};
    for (int rank = 0; rank < programs->size; rank++) {
        const lap_linked_t *linked = &programs->programs[rank];
        const lap_nn_list_t *list = &programs->lists[rank];
        lap_nn_proof_t own = {.fragments = linked->nfragments};
        bool graphs = true;
        size_t bytes[LAP_NN_GROUPS] = {0}, scratch[LAP_NN_SCRATCHES] = {0};
        for (uint32_t f = 0; f < linked->nfragments; f++) {
            const lap_schedule_t *schedule = &linked->fragments[f].schedule;
            if (lap_nn_list_is_stage(list) && schedule->nsteps == 0) {
                own.fragments--; /* what another rank does */
                continue;
            }
            const bool kernel = schedule->nsteps == 1 && schedule->steps[0].kind == LAP_STEP_KERNEL;
            own.kernels += kernel;
            graphs = graphs && (kernel || schedule->graph);
            own.steps += schedule->nsteps;
            own.links += linked->fragments[f].nlinks;
            if (linked->fragments[f].origin < list->nentries) {
                size_t *room =
                    &scratch[list->entries[linked->fragments[f].origin].index % LAP_NN_SCRATCHES];
                *room = larger(*room, schedule->scratch_bytes);
            }
            const uint32_t buffer = linked->fragments[f].buffer; /* or one of a pipeline */
            size_t *most_bytes = &bytes[buffer < LAP_NN_GROUPS ? buffer : LAP_NN_BY_LAYERS];
            *most_bytes = larger(*most_bytes, schedule->symmetric_bytes);
        }
        size_t bucket_bytes = bytes[LAP_NN_BY_REPLICAS];
        most.symmetric_bytes =
            larger(most.symmetric_bytes, bytes[LAP_NN_BY_LAYERS] + bytes[LAP_NN_BY_RING] +
                                             bytes[LAP_NN_BY_HEADS] + bytes[LAP_NN_BY_SHARDS] +
                                             bytes[LAP_NN_BY_NORM]);
        for (uint32_t i = list->nregions + list->nsteps; i < linked->nregions; i++)
            bucket_bytes += linked->regions[i].bytes;
        most.bucket_bytes = larger(most.bucket_bytes, bucket_bytes);
        most.fragments = larger(most.fragments, own.fragments);
        most.kernels = larger(most.kernels, own.kernels);
        most.launches = larger(most.launches, graphs && !lap_nn_list_is_stage(list)
                                                  ? count_launches(programs, rank)
                                                  : own.fragments);
        most.steps = larger(most.steps, own.steps);
        most.links = larger(most.links, own.links);
        most.private_bytes = larger(most.private_bytes, list->bytes[LAP_NN_PRIVATE]);
        most.lasting_bytes = larger(most.lasting_bytes, list->bytes[LAP_NN_LASTING]);
        for (unsigned i = 0; i < LAP_NN_SCRATCHES; i++)
            own.scratch_bytes += scratch[i];
        most.scratch_bytes = larger(most.scratch_bytes, own.scratch_bytes);
        most.given_bytes = larger(most.given_bytes, given_bytes(list));
        most.made_bytes = larger(most.made_bytes, made_bytes(list));
        most.weights = larger(most.weights, lap_nn_optimized(list));
        most.state_bytes = larger(most.state_bytes, list->bytes[LAP_NN_STATE]);
    }
    return most;
}

/* ---- proofs ---- */

/* Each call by itself, for what the target demands of what it is given. */
static lap_status_t prove_call(const lap_nn_programs_t *programs, const lap_target_t *target,
                               uint32_t f, int first, const lap_schedule_t **group)
{
    const lap_fragment_t *fragment = &programs->programs[first].fragments[f];
    const int size = fragment->schedule.size;
    for (int rank = 0; rank < size; rank++)
        group[rank] = &programs->programs[lap_fragment_rank(fragment, rank)].fragments[f].schedule;
    return lap_lowered_check(group, 1, size, target);
}

/*
 * What is a call of some ranks, of which the first is this one. Without a pipeline, those of other replicas
 * are no others than those of the first.
 */
static bool is_call(const lap_nn_programs_t *programs, uint32_t f, int rank)
{
    const lap_fragment_t *fragment = &programs->programs[rank].fragments[f];
    const lap_schedule_t *schedule = &fragment->schedule;
    const bool stage = lap_nn_list_is_stage(&programs->lists[rank]);
    if (schedule->nsteps == 0 ? stage : schedule->steps[0].kind == LAP_STEP_KERNEL)
        return false;
    return stage ? schedule->rank == 0 : rank == 0;
}

lap_status_t lap_nn_programs_prove(const lap_nn_programs_t *programs, const lap_target_t *target)
{
    const lap_schedule_t **group = lap_alloc((size_t)programs->size, sizeof(*group));
    lap_status_t status = LAP_OK;
    if (!group)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %d ranks", programs->size);
    for (uint32_t f = 0; f < programs->programs[0].nfragments; f++)
        for (int rank = 0; rank < programs->size && status == LAP_OK; rank++)
            if (is_call(programs, f, rank))
                status = prove_call(programs, target, f, rank, group);
    lap_free(group);
    LAP_TRY(status);
    return lap_linked_check(programs->list, programs->size, target->device.shares_queues);
}

lap_status_t lap_nn_prove_linking(const lap_nn_plan_t *plan, const lap_nn_linking_t *how,
                                  lap_nn_proof_t *proof_p)
{
    lap_status_t status = LAP_OK;
    for (int i = 0; i < 3 && status == LAP_OK; i++) {
        const bool sets = i == 1;
        lap_nn_programs_t programs;
        lap_nn_linking_t linking = *how;
        linking.first = i == 0;
        linking.more = i == 2;
        status = lap_nn_programs_init(&programs, plan, &linking);
        /* All of it is in the first pass, too, unless scales come from passes before. */
        if (status == LAP_OK && (!sets || plan->desc.fp8 == LAP_FP8_DELAYED))
            status = lap_nn_programs_prove(&programs, how->target);
        if (status == LAP_OK && sets)
            *proof_p = lap_nn_programs_count(&programs);
        lap_nn_programs_clear(&programs);
    }
    return status;
}

lap_status_t lap_nn_prove(const lap_nn_plan_t *plan, const lap_target_t *target,
                          lap_nn_proof_t *proof_p)
{
    const lap_nn_linking_t how = {.target = target};
    return lap_nn_prove_linking(plan, &how, proof_p);
}

/* Layers of a kind repeat the same calls: two of them show all neighbours that calls can have. */
lap_status_t lap_nn_check(const lap_nn_desc_t *desc, int nranks, const char *transport)
{
    lap_nn_plan_t plan = {.nranks = nranks};
    lap_nn_proof_t proof;
    const lap_transport_ops_t *ops;
    const lap_device_ops_t *device;
    LAP_TRY(lap_nn_plan_init(desc, nranks, &plan));
    LAP_TRY(lap_transport_find(transport ? transport : "shm", &ops));
    LAP_TRY(lap_device_find(ops->device ? ops->device : "cpu", &device));
    const lap_target_t target = lap_target_of(device, ops);
    if (plan.desc.layers > 2)
        lap_nn_plan_cut(&plan, 2);
    return lap_nn_prove(&plan, &target, &proof);
}
