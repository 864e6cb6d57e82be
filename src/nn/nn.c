/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making layers from the list of what their passes do: one symmetric buffer for all their operators,
 * the operators, and the memory of all regions. What can be asked about it all is in query.c.
 */
#include "nn/nn.h"

#include <string.h>

#include "core/options.h"
#include "core/status.h"
#include "nn/context.h"
#include "overlap/overlap.h"
#include "schedule/digest.h"
#include "util/alloc.h"

/* ---- before there are ranks ---- */

/* Of a group of the list: see context.h. */
static lap_status_t buffer_size(const lap_nn_list_t *list, int group, size_t *bytes_p,
                                size_t *nsignals_p)
{
    const int size = lap_nn_slice(list, group).size;
    const lap_op_desc_t norm = lap_nn_norm_desc(size); /* of an optimizer to come */
    const bool sums = group == LAP_NN_BY_LAYERS || group == LAP_NN_BY_SHARDS;
    size_t most_bytes = 0, most_signals = 0;
    for (uint32_t i = 0; i <= list->nsteps; i++) {
        const lap_op_desc_t *desc = i < list->nsteps ? &list->steps[i].desc : &norm;
        size_t bytes, nsignals;
        if (i < list->nsteps ? list->steps[i].group != group : !sums)
            continue;
        LAP_TRY(lap_op_buffer_size(desc, size, &bytes, &nsignals));
        most_bytes = bytes > most_bytes ? bytes : most_bytes;
        most_signals = nsignals > most_signals ? nsignals : most_signals;
    }
    *bytes_p = most_bytes;
    *nsignals_p = most_signals;
    return LAP_OK;
}

lap_status_t lap_nn_buffer_size(const lap_nn_desc_t *desc, int nranks, size_t *bytes_p,
                                size_t *nsignals_p)
{
    lap_nn_list_t list = {.nregions = 0};
    if (!bytes_p || !nsignals_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected a pointer to a size_t",
                         bytes_p ? "nsignals_p" : "bytes_p");
    lap_nn_plan_t plan = {.nranks = nranks};
    LAP_TRY(lap_nn_plan_init(desc, nranks, &plan));
    lap_status_t status = lap_nn_list_init(&list, &plan, 0, NULL);
    if (status == LAP_OK)
        status = buffer_size(&list, LAP_NN_BY_LAYERS, bytes_p, nsignals_p);
    lap_nn_list_clear(&list);
    return status;
}

/* ---- memory ---- */

/* Where each region lies, from one on. */
static void bind_regions(lap_nn_t *nn, uint32_t first)
{
    const lap_nn_list_t *list = &nn->list;
    for (uint32_t i = first; i < list->nregions; i++) {
        const lap_nn_region_t *region = &list->regions[i];
        size_t offset;
        const uint32_t root = lap_nn_region_root(list, i, &offset);
        char *memory = nn->memory[region->memory];
        nn->tensors[i] =
            (lap_tensor_t){memory ? memory + list->regions[root].offset + offset : NULL,
                           region->dtype, region->rows, region->cols, region->stride};
    }
}

static void bind_params(lap_nn_t *nn)
{
    const lap_nn_list_t *list = &nn->list;
    for (uint32_t i = 0; i < list->nweights; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        lap_nn_param_t *param = &nn->list.weights[i].param;
        param->master = nn->tensors[weight->master];
        param->grad = nn->tensors[weight->grad];
        param->weight = nn->tensors[weight->copy];
        param->master.rows = param->grad.rows = param->weight.rows = param->rows;
    }
}

/* The gradients of vectors are scaled, those of GEMMs by their alpha. */
static void set_reduction(lap_nn_t *nn, const lap_nn_entry_t *entry)
{
    const bool add = entry->work == LAP_NN_ADD, gelu = entry->work == LAP_NN_ACTIVATE;
    if (!add && !gelu && entry->work != LAP_NN_CONVERT)
        return;
    nn->reductions[entry->index] = (lap_nn_reduction_t){
        .scale = add ? nn->grad_scale : NULL,
        .finish = {.epilogue = gelu ? LAP_EPILOGUE_GELU : LAP_EPILOGUE_NONE,
                   .scale = 1,
                   .beta = entry->beta},
    };
}

static lap_status_t alloc_all(lap_nn_t *nn)
{
    lap_device_t *device = nn->engine->device;
    const lap_nn_list_t *list = &nn->list;
    void *memory;
    LAP_TRY(device->ops->event_create(device, &nn->end));
    LAP_TRY(device->ops->alloc_shared(device, lap_nn_micros(list) * sizeof(*nn->loss), &memory));
    nn->loss = memory;
    LAP_TRY(device->ops->alloc_shared(device, sizeof(*nn->grad_scale), &memory));
    nn->grad_scale = memory;
    *nn->grad_scale = 1 / list->plan.desc.loss_scale;
    nn->loss_factor = 1;
    nn->tensors = lap_alloc(list->nregions, sizeof(*nn->tensors));
    nn->reductions = lap_alloc((size_t)list->nreductions + 1, sizeof(*nn->reductions));
    if (!nn->tensors || !nn->reductions)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a list of %u regions",
                         (unsigned)list->nregions);
    for (int i = 0; i < LAP_NN_MEMORIES; i++)
        if (list->bytes[i] > 0)
            LAP_TRY(device->ops->alloc(device, list->bytes[i], &nn->memory[i]));
    bind_regions(nn, 0);
    bind_params(nn);
    for (uint32_t i = 0; i < list->nentries; i++)
        set_reduction(nn, &list->entries[i]);
    return LAP_OK;
}

/* ---- making ---- */

/* The ranks of a group that share the memory of this host. */
static int ranks_here(const lap_group_t *group)
{
    int count = 0;
    for (int rank = 0; rank < group->size; rank++)
        count += group->world->kind != LAP_WORLD_WIRED ||
                 group->world->peers[group->members[rank]].heap_fd >= 0;
    return count;
}

/*
 * Whether the ranks of the group that are on this host may have as many bytes each. The system gives
 * out more memory of the host than there is, and kills who uses it; what a GPU has not is refused
 * when it is asked for.
 */
static lap_status_t check_memory(const lap_nn_t *nn, const lap_nn_desc_t *desc, double bytes)
{
    const int here = ranks_here(nn->group);
    const double room = (double)lap_memory_room();
    if (bytes * here <= room || nn->engine->device->ops->transport)
        return LAP_OK;
    return lap_error(LAP_ERR_NO_MEMORY,
                     "%zu layer%s need at least %.0f bytes of memory on %d rank%s of this host, "
                     "and %.0f are available",
                     desc->layers, desc->layers == 1 ? "" : "s", bytes * here, here,
                     here == 1 ? "" : "s", room);
}

static lap_status_t check_context(const lap_nn_t *nn, const lap_nn_plan_t *plan)
{
    const size_t given = nn->context ? (size_t)nn->context->size : 1;
    if (given == plan->desc.cp)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "cp is %zu, expected the %zu rank%s of cp_group%s",
                     plan->desc.cp, given, given == 1 ? "" : "s",
                     nn->context ? "" : ", which is NULL");
}

/* Ranks that share sequences are neighbours among those that share the optimizer. */
static lap_status_t check_sharers(const lap_nn_t *nn, const lap_nn_plan_t *plan)
{
    const size_t given = nn->sharers ? (size_t)nn->sharers->size : 1;
    if (given != plan->desc.shards)
        return lap_error(LAP_ERR_INVALID, "shards is %zu, expected the %zu rank%s of shard_group%s",
                         plan->desc.shards, given, given == 1 ? "" : "s",
                         nn->sharers ? "" : ", which is NULL");
    if (nn->sharers && nn->context && nn->sharers->rank % nn->context->size != nn->context->rank)
        return lap_error(LAP_ERR_INVALID,
                         "rank %d of cp_group is rank %d of shard_group, expected those of a "
                         "context next to each other and in their order",
                         nn->context->rank, nn->sharers->rank);
    return LAP_OK;
}

/* Local: everything that can be found wrong without the other ranks. */
static lap_status_t prepare(lap_nn_t *nn, const lap_nn_desc_t *desc, const lap_nn_cut_t *cut)
{
    lap_nn_plan_t plan = {.nranks = nn->group->size};
    LAP_TRY(cut ? lap_nn_plan_stage(desc, nn->group->size, cut, &plan)
                : lap_nn_plan_init(desc, nn->group->size, &plan));
    LAP_TRY(check_context(nn, &plan));
    LAP_TRY(check_sharers(nn, &plan));
    LAP_TRY(lap_engine_get(nn->group->world, &nn->engine));
    LAP_TRY(lap_kernels_of(nn->engine->device, &nn->kernels));
    const lap_group_t *others = nn->sharers ? nn->sharers : nn->context;
    const int rank = (others ? others->rank : 0) * plan.nranks + nn->group->rank;
    double bytes;
    LAP_TRY(lap_nn_list_bytes(&plan, rank, nn->kernels, 0, &bytes));
    LAP_TRY(check_memory(nn, &plan.desc, bytes));
    LAP_TRY(lap_nn_list_init(&nn->list, &plan, rank, nn->kernels));
    nn->ncalls = nn->list.nsteps;
    nn->calls = lap_alloc(nn->ncalls, sizeof(*nn->calls));
    return nn->calls ? LAP_OK
                     : lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu operators", nn->ncalls);
}

/* Collective over the group of the call. */
static lap_status_t create_call(lap_nn_t *nn, size_t index)
{
    lap_nn_call_t *call = &nn->calls[index];
    lap_op_desc_t desc = nn->list.steps[index].desc;
    size_t nsignals;
    const lap_nn_wire_t *wire = &nn->wires[nn->list.steps[index].group];
    LAP_TRY(lap_group_agree(wire->group,
                            lap_op_buffer_size(&desc, wire->group->size, &call->bytes, &nsignals)));
    desc.buffer = wire->buffer;
    LAP_TRY(lap_op_create_sharing(wire->group, &desc, &nn->scratch[index % LAP_NN_SCRATCHES],
                                  &call->op));
    lap_op_drop_runnables(call->op);
    return LAP_OK;
}

/* Those of one group. Collective over it. */
static lap_status_t create_calls(lap_nn_t *nn, int group)
{
    for (size_t i = 0; i < nn->ncalls; i++)
        if (nn->list.steps[i].group == group)
            LAP_TRY(create_call(nn, i));
    return LAP_OK;
}

static void destroy_call(lap_nn_t *nn, size_t index)
{
    lap_op_destroy(nn->calls[index].op);
    lap_trace_destroy(nn->calls[index].trace);
    nn->calls[index] = (lap_nn_call_t){.op = NULL};
}

/* Collective. */
static lap_status_t create_buffer_of(const lap_nn_t *nn, lap_group_t *group, int which,
                                     lap_buffer_t **buffer_p)
{
    size_t bytes, nsignals;
    LAP_TRY(lap_group_agree(group, buffer_size(&nn->list, which, &bytes, &nsignals)));
    return lap_buffer_create(group, bytes, nsignals, nn->list.plan.desc.buffer_options, buffer_p);
}

/* Collective. */
static lap_status_t create_buffer(lap_nn_t *nn)
{
    nn->buffer = nn->list.plan.desc.buffer;
    if (!nn->buffer) {
        LAP_TRY(create_buffer_of(nn, nn->group, LAP_NN_BY_LAYERS, &nn->buffer));
        nn->owns_buffer = true;
    }
    nn->wires[LAP_NN_BY_LAYERS] = (lap_nn_wire_t){nn->group, nn->buffer, false};
    return LAP_OK;
}

/* A group of the context, with a buffer of its own. Collective over the context. */
static lap_status_t create_context(lap_nn_t *nn, int which)
{
    const lap_nn_slice_t slice = lap_nn_slice(&nn->list, which);
    lap_nn_wire_t *wire = &nn->wires[which];
    if (!nn->context || slice.size == 1)
        return LAP_OK;
    if (slice.size == nn->context->size) {
        wire->group = nn->context;
    } else {
        LAP_TRY(lap_group_split(
            nn->context, nn->context->rank - slice.rank * slice.stride / nn->list.plan.nranks,
            slice.rank, &wire->group));
        wire->owns_group = true;
    }
    wire->group->kind = nn->context->kind;
    return create_buffer_of(nn, wire->group, which, &wire->buffer);
}

/* Of the sums of an optimizer to come. Collective over the ranks that share it. */
static lap_status_t create_sharers(lap_nn_t *nn)
{
    lap_nn_wire_t *wire = &nn->wires[LAP_NN_BY_SHARDS];
    if (!nn->sharers)
        return LAP_OK;
    wire->group = nn->sharers;
    return create_buffer_of(nn, wire->group, LAP_NN_BY_SHARDS, &wire->buffer);
}

static void destroy_wires(lap_nn_t *nn)
{
    for (int i = LAP_NN_BY_RING; i <= LAP_NN_BY_SHARDS; i++) {
        lap_buffer_destroy(nn->wires[i].buffer);
        if (nn->wires[i].owns_group)
            lap_group_destroy(nn->wires[i].group);
    }
}

/* What a pass of the capacity needs is there before the first one. */
static lap_status_t make_passes(lap_nn_t *nn)
{
    const size_t seq = nn->list.plan.desc.seq;
    lap_nn_pass_t *pass;
    for (int first = nn->list.plan.desc.fp8 == LAP_FP8_DELAYED; first >= 0; first--) {
        const lap_nn_mode_t mode = {.first = first};
        LAP_TRY(lap_nn_get_pass(nn, 1u << LAP_NN_FORWARD, seq, mode, &pass));
        LAP_TRY(lap_nn_get_pass(nn, 1u << LAP_NN_LOSS_PART, seq, mode, &pass));
        LAP_TRY(lap_nn_get_pass(nn, 1u << LAP_NN_BACKWARD, seq, mode, &pass));
    }
    return LAP_OK;
}

static lap_status_t fill(lap_nn_t *nn)
{
    const bool stage = lap_nn_list_is_stage(&nn->list);
    if (nn->list.plan.desc.debug)
        LAP_TRY(lap_nn_prove_own(nn));
    LAP_TRY(alloc_all(nn));
    if (!stage)
        LAP_TRY(make_passes(nn));
    LAP_TRY(lap_nn_fill_params(nn));
    LAP_TRY(lap_nn_model_start(nn));
    nn->fresh = true;
    nn->digests = LAP_NO_DIGEST;
    return LAP_OK;
}

/* The copies of the weights: with FP8 the ranks agree on scales. Collective. */
static lap_status_t finish(lap_nn_t *nn)
{
    nn->stale = nn->sharers != NULL;
    if (!nn->stale)
        LAP_TRY(lap_nn_refresh(nn));
    return lap_nn_wait(nn);
}

/* The groups that make layers together; NULL: there is none of that kind. */
typedef struct groups {
    lap_group_t *layers, *context, *sharers;
} groups_t;

static groups_t groups_of(lap_group_t *group, const lap_nn_desc_t *given)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    if (!given || lap_read_options(&desc, sizeof(desc), given, "LAP_NN_DESC") != LAP_OK)
        return (groups_t){.layers = group}; /* it will be refused */
    return (groups_t){group, desc.cp_group, desc.shard_group};
}

/*
 * What all ranks of one of the groups know is known to those of the others from here on: a rank that goes on
 * alone would wait for who has failed.
 */
static lap_status_t share(const groups_t *groups, lap_status_t status)
{
    if (!groups->context && !groups->sharers)
        return status;
    status = lap_group_agree(groups->layers, status);
    if (groups->context)
        status = lap_group_agree(groups->context, status);
    return groups->sharers ? lap_group_agree(groups->sharers, status) : status;
}

static lap_status_t agree_on_terms(const groups_t *groups, const lap_terms_t *terms,
                                   lap_status_t status)
{
    status = lap_terms_agree(terms, groups->layers, status);
    if (groups->context)
        status = lap_terms_agree(terms, groups->context, status);
    if (groups->sharers)
        status = lap_terms_agree(terms, groups->sharers, status);
    return share(groups, status);
}

/* Collective over all groups. */
static lap_status_t create_all(lap_nn_t *nn, const groups_t *groups)
{
    LAP_TRY(share(groups, create_buffer(nn)));
    LAP_TRY(share(groups, create_context(nn, LAP_NN_BY_RING)));
    LAP_TRY(share(groups, create_context(nn, LAP_NN_BY_HEADS)));
    LAP_TRY(share(groups, create_sharers(nn)));
    for (int which = LAP_NN_BY_LAYERS; which <= LAP_NN_BY_SHARDS; which++)
        LAP_TRY(share(groups, create_calls(nn, which)));
    LAP_TRY(share(groups, lap_group_agree(groups->layers, fill(nn))));
    return finish(nn);
}

static lap_status_t create(lap_group_t *group, const lap_nn_desc_t *desc, const lap_nn_cut_t *cut,
                           lap_nn_t **nn_p)
{
    const groups_t groups = groups_of(group, desc);
    lap_status_t status = LAP_OK;
    lap_nn_t *nn = lap_alloc(1, sizeof(*nn));
    if (nn) {
        nn->group = lap_group_keep(group);
        nn->context = groups.context ? lap_group_keep(groups.context) : NULL;
        nn->sharers = groups.sharers ? lap_group_keep(groups.sharers) : NULL;
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for layers");
    }
    lap_terms_t terms = {.of = "lap_nn_create"};
    if (status == LAP_OK)
        status = prepare(nn, desc, cut);
    if (status == LAP_OK)
        lap_nn_list_terms(&nn->list.plan, &terms);
    status = agree_on_terms(&groups, &terms, status);
    lap_terms_clear(&terms);
    if (status == LAP_OK)
        status = create_all(nn, &groups);
    if (status != LAP_OK) {
        lap_nn_destroy(nn);
        return status;
    }
    *nn_p = nn;
    return LAP_OK;
}

static void free_memory(lap_nn_t *nn)
{
    lap_device_t *device = nn->engine->device;
    for (int i = 0; i < LAP_NN_MEMORIES; i++)
        if (nn->memory[i])
            device->ops->free(device, nn->memory[i]);
    for (unsigned i = 0; i < LAP_NN_SCRATCHES; i++)
        lap_scratch_clear(&nn->scratch[i], device);
    if (nn->loss)
        device->ops->free_shared(device, nn->loss);
    if (nn->grad_scale)
        device->ops->free_shared(device, nn->grad_scale);
    if (nn->tokens.ids)
        device->ops->free_shared(device, nn->tokens.ids);
    if (nn->tokens.entropy)
        device->ops->free_shared(device, nn->tokens.entropy);
    if (nn->end)
        device->ops->event_destroy(nn->end);
}

lap_status_t lap_nn_create(lap_group_t *group, const lap_nn_desc_t *desc, lap_nn_t **nn_p)
{
    if (!group || !nn_p)
        return lap_error(LAP_ERR_INVALID, "lap_nn_create: %s is NULL", group ? "nn_p" : "group");
    const char *before = lap_enter(group->world, "lap_nn_create");
    const lap_status_t status = create(group, desc, NULL, nn_p);
    lap_leave(group->world, before);
    return status;
}

lap_status_t lap_nn_create_stage(lap_group_t *group, const lap_nn_desc_t *desc,
                                 const lap_nn_cut_t *cut, lap_nn_t **nn_p)
{
    return create(group, desc, cut, nn_p);
}

static void end(lap_nn_t *nn)
{
    if (nn->end)
        (void)lap_nn_wait(nn);
    (void)lap_nn_end_background(nn);
    lap_nn_free_passes(nn);
    for (size_t i = 0; nn->calls && i < nn->ncalls; i++)
        destroy_call(nn, i);
    if (nn->engine)
        free_memory(nn);
    destroy_wires(nn);
    if (nn->owns_buffer)
        lap_buffer_destroy(nn->buffer);
    lap_free(nn->live_bytes);
    lap_free(nn->tokens.starts);
    lap_free(nn->tensors);
    lap_free(nn->reductions);
    lap_free(nn->calls);
    lap_nn_list_clear(&nn->list);
    lap_group_t *group = nn->group, *context = nn->context, *sharers = nn->sharers;
    lap_free(nn);
    lap_group_let_go(sharers);
    lap_group_let_go(context);
    lap_group_let_go(group);
}

void lap_nn_destroy(lap_nn_t *nn)
{
    lap_saved_error_t saved;
    if (!nn)
        return;
    lap_error_save(&saved);
    nn->is_destroyed = true;
    if (nn->keepers == 0)
        end(nn);
    lap_error_restore(&saved);
}

lap_nn_t *lap_nn_keep(lap_nn_t *nn)
{
    nn->keepers++;
    return nn;
}

void lap_nn_let_go(lap_nn_t *nn)
{
    if (nn && --nn->keepers == 0 && nn->is_destroyed)
        lap_nn_destroy(nn);
}

/* ---- the step of an optimizer ---- */

/* More regions and operators have the same places as before. */
static lap_status_t grow(lap_nn_t *nn)
{
    const lap_nn_list_t *list = &nn->list;
    lap_tensor_t *tensors =
        lap_realloc(nn->tensors, list->own_regions, list->nregions, sizeof(*tensors));
    nn->tensors = tensors ? tensors : nn->tensors;
    lap_nn_call_t *calls = lap_realloc(nn->calls, nn->ncalls, list->nsteps, sizeof(*calls));
    nn->calls = calls ? calls : nn->calls;
    return tensors && calls ? LAP_OK
                            : lap_error(LAP_ERR_NO_MEMORY, "no memory for a step of %u entries",
                                        (unsigned)(list->nentries - list->parts[LAP_NN_STEP]));
}

bool lap_nn_is_same_group(const lap_group_t *a, const lap_group_t *b)
{
    bool same = a->size == b->size;
    for (int r = 0; r < a->size && same; r++)
        same = a->members[r] == b->members[r];
    return same;
}

lap_status_t lap_nn_add_step(lap_nn_t *nn, lap_group_t *group, const lap_optimizer_desc_t *desc)
{
    lap_device_t *device = nn->engine->device;
    lap_stream_t *stream;
    void *memory;
    nn->norm_group = lap_nn_is_same_group(group, nn->group) ? NULL : group;
    LAP_TRY(lap_nn_list_step(&nn->list, desc, group->size));
    LAP_TRY(grow(nn));
    LAP_TRY(device->ops->alloc_shared(device, 2 * sizeof(*nn->rates), &memory));
    nn->rates = memory;
    const size_t bytes = nn->list.bytes[LAP_NN_STATE], floats = bytes / sizeof(float);
    LAP_TRY(device->ops->alloc(device, bytes, &nn->memory[LAP_NN_STATE]));
    bind_regions(nn, nn->list.own_regions);
    const lap_fill_normal_t zeros = {
        .out = lap_tensor(nn->memory[LAP_NN_STATE], LAP_FLOAT32, 1, floats)};
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->fill_normal(stream, &zeros);
}

/* The sum of squares over a pipeline, over what the layers work in. Collective. */
static lap_status_t create_norm(lap_nn_t *nn, size_t index)
{
    lap_op_desc_t desc = lap_nn_norm_desc(nn->norm_group->size);
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    lap_nn_call_t *call = &nn->calls[index];
    size_t nsignals;
    options.transport = nn->buffer->ops->name;
    options.link = nn->buffer->link;
    LAP_TRY(lap_group_agree(
        nn->norm_group, lap_op_buffer_size(&desc, nn->norm_group->size, &call->bytes, &nsignals)));
    LAP_TRY(lap_buffer_create(nn->norm_group, call->bytes, nsignals, &options, &nn->norm_buffer));
    desc.buffer = nn->norm_buffer;
    return lap_op_create(nn->norm_group, &desc, &call->op);
}

lap_status_t lap_nn_start_step(lap_nn_t *nn)
{
    const groups_t groups = {.layers = nn->norm_group ? nn->norm_group : nn->group,
                             .sharers = nn->sharers};
    const lap_nn_mode_t mode = {.first = false};
    lap_nn_pass_t *pass;
    while (nn->ncalls < nn->list.nsteps) {
        const size_t index = nn->ncalls++;
        const bool norm = nn->norm_group && nn->list.steps[index].group == LAP_NN_BY_LAYERS;
        LAP_TRY(share(&groups, norm ? create_norm(nn, index) : create_call(nn, index)));
    }
    lap_status_t status = nn->list.plan.desc.debug ? lap_nn_prove_own(nn) : LAP_OK;
    if (status == LAP_OK)
        status = lap_nn_get_pass(nn, 1u << LAP_NN_STEP, 0, mode, &pass);
    return share(&groups, lap_group_agree(groups.layers, status));
}

void lap_nn_drop_step(lap_nn_t *nn)
{
    lap_device_t *device = nn->engine->device;
    (void)lap_nn_wait(nn);
    lap_nn_free_part(nn, LAP_NN_STEP);
    for (size_t i = nn->list.own_steps; i < nn->ncalls; i++) /* there may be no room for more */
        destroy_call(nn, i);
    nn->ncalls = nn->list.own_steps;
    if (nn->memory[LAP_NN_STATE])
        device->ops->free(device, nn->memory[LAP_NN_STATE]);
    if (nn->rates)
        device->ops->free_shared(device, nn->rates);
    nn->memory[LAP_NN_STATE] = NULL;
    nn->rates = NULL;
    nn->has_optimizer = false;
    lap_buffer_destroy(nn->norm_buffer);
    nn->norm_buffer = NULL;
    nn->norm_group = NULL;
    lap_nn_list_drop_step(&nn->list);
}
