/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a rank of a pipeline: its layers, the groups and buffers of its messages, and the program of a
 * step, made once and issued again and again. What the program does is in stage_link.c.
 */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "overlap/op.h"
#include "parallel/stage.h"
#include "parallel/stage_prove.h"
#include "parallel/stage_run.h"
#include "schedule/flight.h"
#include "util/alloc.h"
#include "util/clock.h"

/* ---- making ---- */

/* Local: all that needs no other rank. */
static lap_status_t plan(lap_pp_t *pp, lap_group_t *group, const lap_nn_desc_t *desc,
                         const lap_pp_options_t *given, lap_nn_cut_t *cut_p, lap_terms_t *terms)
{
    lap_nn_plan_t whole = {.nranks = group->size};
    LAP_TRY(lap_stage_options(given, &pp->options));
    LAP_TRY(lap_nn_plan_init(desc, group->size, &whole));
    LAP_TRY(lap_stage_plan(&whole.desc, pp->pipeline->size, &pp->options, &pp->stages));
    LAP_TRY(lap_stages_cut(&pp->stages, (uint32_t)pp->pipeline->rank, cut_p));
    pp->peers = lap_alloc(pp->stages.npairs + 1, sizeof(*pp->peers));
    pp->counted = lap_alloc(pp->stages.micros, sizeof(*pp->counted));
    if (!pp->peers || !pp->counted)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a pipeline of %d ranks",
                         pp->pipeline->size);
    lap_terms_text(terms, "schedule", pp->options.schedule);
    lap_terms_number(terms, "micro_batches", pp->options.micro_batches);
    lap_terms_number(terms, "stages", pp->stages.stages);
    lap_terms_number(terms, "overlap", pp->options.overlap != 0);
    for (uint32_t s = 0; s < pp->stages.stages; s++) {
        char name[40];
        snprintf(name, sizeof(name), "layers of stage %u", (unsigned)s);
        lap_terms_number(terms, name, pp->stages.layers[s]);
    }
    lap_terms_number(terms, "ranks that share layers", (uint64_t)group->size);
    lap_nn_list_terms(&whole, terms);
    return LAP_OK;
}

/* The groups of two ranks. Collective over the pipeline. */
static lap_status_t split_pairs(lap_pp_t *pp)
{
    for (uint32_t i = 0; i < pp->stages.npairs; i++) {
        const uint32_t *ranks = pp->stages.pairs[i].ranks, own = (uint32_t)pp->pipeline->rank;
        const bool in = ranks[0] == own || ranks[1] == own;
        LAP_TRY(lap_group_split(pp->pipeline, in ? 0 : LAP_NO_GROUP, pp->pipeline->rank,
                                &pp->peers[i].group));
    }
    return LAP_OK;
}

static size_t message_bytes(const lap_pp_t *pp)
{
    const lap_nn_list_t *list = &pp->nn->list;
    const lap_nn_region_t *x = &list->regions[list->slots[0].x];
    return x->rows * x->cols * lap_dtype_size(x->dtype);
}

/* Collective over both ranks of each pair. */
static lap_status_t make_buffers(lap_pp_t *pp)
{
    for (uint32_t i = 0; i < pp->stages.npairs; i++) {
        lap_stage_peer_t *peer = &pp->peers[i];
        for (uint32_t b = 0; b < LAP_STAGE_BUFFERS && peer->group; b++) {
            if (pp->stages.pairs[i].tied)
                continue;
            LAP_TRY(lap_buffer_create(peer->group, message_bytes(pp), lap_signal_count(2),
                                      pp->options.buffer_options, &peer->buffers[b]));
            pp->target = lap_target_of(pp->nn->engine->device->ops, peer->buffers[b]->ops);
            if (peer->buffers[b]->in_person)
                pp->target.device.graphs = false;
        }
    }
    return LAP_OK;
}

/* Collective over the two ranks that have tied weights. */
static lap_status_t make_tied(lap_pp_t *pp)
{
    static const lap_stage_kind_t kinds[] = {LAP_STAGE_SCATTER, LAP_STAGE_GATHER};
    const lap_nn_list_t *list = &pp->nn->list;
    lap_device_t *device = pp->nn->engine->device;
    for (uint32_t i = 0; i < pp->stages.npairs; i++) {
        lap_stage_peer_t *peer = &pp->peers[i];
        size_t bytes = 0, nsignals = 0;
        if (!pp->stages.pairs[i].tied || !peer->group)
            continue;
        for (int k = 0; k < 2; k++) {
            const lap_op_desc_t desc = lap_stage_tied_desc(list, kinds[k]);
            size_t own_bytes, own_signals;
            LAP_TRY(lap_op_buffer_size(&desc, 2, &own_bytes, &own_signals));
            bytes = own_bytes > bytes ? own_bytes : bytes;
            nsignals = own_signals > nsignals ? own_signals : nsignals;
        }
        LAP_TRY(lap_buffer_create(peer->group, bytes, nsignals, pp->options.buffer_options,
                                  &peer->buffers[0]));
        for (int k = 0; k < 2; k++) {
            lap_op_desc_t desc = lap_stage_tied_desc(list, kinds[k]);
            desc.buffer = peer->buffers[0];
            LAP_TRY(lap_op_create(peer->group, &desc, &pp->tied[k]));
        }
        const lap_nn_weight_t *weight = lap_stage_tied(list);
        LAP_TRY(device->ops->alloc(device, weight->rows * weight->param.cols * sizeof(float),
                                   &pp->sum));
    }
    return LAP_OK;
}

/* ---- the program ---- */

static lap_status_t build_tied(void *context, const lap_nn_list_t *list, int rank,
                               lap_stage_kind_t which, lap_schedule_t *schedule_p)
{
    const lap_pp_t *pp = context;
    const lap_op_t *op = pp->tied[which == LAP_STAGE_GATHER];
    (void)list;
    return lap_op_schedule(op, op->problem.capacity, rank, schedule_p);
}

/* What the next step sends to replicas; NULL: nothing. Of the latest, pp->background is. */
static const lap_nn_background_t *background_of(const lap_pp_t *pp)
{
    const lap_nn_background_t *background = pp->nn->background;
    return background && background->overlap ? background : NULL;
}

/* The numbers of ranks are those of this pipeline and of those that share layers, one after the other. */
static lap_stage_linking_t linking_of(lap_pp_t *pp, const lap_nn_source_t *source,
                                      const lap_nn_replicas_t *replicas)
{
    const int sharers = pp->nn->list.plan.nranks * (int)pp->nn->list.plan.desc.cp;
    return (lap_stage_linking_t){
        .stages = &pp->stages,
        .rank = (uint32_t)pp->pipeline->rank,
        .list = &pp->nn->list,
        .base = lap_nn_list_place(&pp->nn->list),
        .stride = sharers,
        .replicas = replicas,
        .seq = pp->seq,
        .overlap = pp->options.overlap != 0,
        .target = &pp->target,
        .source = source,
        .tied = build_tied,
        .context = pp,
    };
}

static lap_op_args_t tied_args(const lap_pp_t *pp, bool scatter)
{
    const lap_nn_weight_t *weight = lap_stage_tied(&pp->nn->list);
    const lap_op_t *op = pp->tied[!scatter];
    const size_t rows = weight->rows, cols = weight->param.cols;
    const lap_tensor_t all =
        lap_tensor(pp->nn->tensors[weight->grad].data, LAP_FLOAT32, rows, cols);
    const lap_tensor_t own =
        lap_tensor(pp->sum, LAP_FLOAT32, lap_shard(rows, 2, op->group->rank, NULL), cols);
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = rows;
    args.x = scatter ? all : own;
    args.y = scatter ? own : all;
    return args;
}

lap_op_t *lap_stage_op(const lap_pp_t *pp, const lap_stage_item_t *item, lap_op_args_t *args_p)
{
    const lap_nn_entry_t *entry = &pp->nn->list.entries[item->entry];
    const lap_nn_background_t *background = pp->background;
    switch (item->kind) {
    case LAP_STAGE_ENTRY:
        if (entry->work != LAP_NN_OPERATOR)
            return NULL;
        *args_p = lap_nn_args_of(pp->nn, entry);
        return pp->nn->calls[entry->index].op;
    case LAP_STAGE_SCATTER:
    case LAP_STAGE_GATHER:
        *args_p = tied_args(pp, item->kind == LAP_STAGE_SCATTER);
        return pp->tied[item->kind == LAP_STAGE_GATHER];
    case LAP_STAGE_BUCKET:
        if (item->which != LAP_NN_BUCKET_SCATTER && item->which != LAP_NN_BUCKET_GATHER)
            return NULL;
        return background->call(background->context, item->bucket, item->which, args_p);
    default:
        return NULL;
    }
}

static bool is_message(const lap_stage_item_t *item)
{
    return item->kind == LAP_STAGE_SEND || item->kind == LAP_STAGE_RECEIVE;
}

static lap_status_t make_program(lap_pp_t *pp, const lap_stage_linking_t *linking,
                                 const lap_stage_item_t *item, lap_program_t **program_p)
{
    lap_op_args_t args;
    lap_op_t *op = lap_stage_op(pp, item, &args);
    if (op)
        return lap_op_program(op, args.m, program_p);
    if (!is_message(item))
        return LAP_OK; /* a kernel */
    lap_schedule_t schedule;
    const lap_status_t status = lap_stage_message(linking, item, &schedule);
    if (status == LAP_OK)
        return lap_program_create(pp->nn->engine, &schedule, program_p);
    lap_schedule_clear(&schedule);
    return status;
}

static lap_binding_t bind_message(const lap_pp_t *pp, const lap_stage_item_t *item)
{
    const bool sends = item->kind == LAP_STAGE_SEND;
    const lap_tensor_t *matrix = &pp->nn->tensors[sends ? item->from : item->to];
    const size_t element = lap_dtype_size(matrix->dtype);
    lap_binding_t binding = {.scale = 1,
                             .a_scale = 1,
                             .d_scale = 1,
                             .wire_scale = 1,
                             .buffer = pp->peers[item->pair].buffers[item->upstream]};
    binding.places[sends ? LAP_MOVED : LAP_GATHERED] =
        (lap_bound_place_t){matrix->data, matrix->cols * element, matrix->stride * element};
    return binding;
}

static lap_status_t copy(const lap_pp_t *pp, const lap_stage_item_t *item, lap_stream_t *stream)
{
    const lap_tensor_t from = lap_nn_tensor(pp->nn, item->from);
    const lap_tensor_t to = lap_nn_tensor(pp->nn, item->to);
    const size_t element = lap_dtype_size(from.dtype);
    const lap_copy_t all = {.dst = to.data,
                            .src = from.data,
                            .rows = from.rows,
                            .row_bytes = from.cols * element,
                            .dst_stride = to.stride * element,
                            .src_stride = from.stride * element};
    return pp->nn->engine->device->ops->copy(stream, &all);
}

static lap_status_t issue_kernel(void *context, uint32_t origin, lap_stream_t *stream)
{
    lap_pp_t *pp = context;
    const lap_stage_item_t *item = &pp->program.items[origin];
    const lap_nn_background_t *background = pp->background;
    if (item->kind == LAP_STAGE_COPY)
        return copy(pp, item, stream);
    if (item->kind == LAP_STAGE_BUCKET)
        return background->cast(background->context, item->bucket, item->which, stream);
    pp->nn->micro = item->micro;
    const lap_status_t status = lap_nn_issue_kernel(pp->nn, item->entry, stream);
    pp->nn->micro = 0;
    return status;
}

static lap_status_t bind_all(lap_pp_t *pp)
{
    pp->bound = false; /* half of it may be, after a failure */
    for (uint32_t f = 0; f < lap_exec_linked(pp->exec)->nfragments; f++) {
        const lap_stage_item_t *item = &pp->program.items[f];
        lap_op_args_t args;
        lap_op_t *op = lap_stage_op(pp, item, &args);
        if (op)
            *lap_exec_binding(pp->exec, f) = lap_op_bind(op, &args);
        else if (is_message(item))
            *lap_exec_binding(pp->exec, f) = bind_message(pp, item);
        if (lap_exec_program(pp->exec, f))
            lap_exec_binding(pp->exec, f)->traced =
                item->kind == LAP_STAGE_BUCKET ? pp->buckets_traced : pp->traced;
    }
    lap_exec_time_kernels(pp->exec, pp->traced);
    LAP_TRY(lap_exec_rebound(pp->exec));
    pp->bound = true;
    return LAP_OK;
}

static lap_status_t make_exec(lap_pp_t *pp, const lap_stage_linking_t *linking)
{
    const uint32_t count = pp->program.linked.nfragments;
    lap_program_t **programs = lap_alloc((size_t)count + 1, sizeof(*programs));
    lap_status_t status = LAP_OK;
    if (!programs)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a step of %u fragments",
                         (unsigned)count);
    for (uint32_t f = 0; f < count && status == LAP_OK; f++)
        status = make_program(pp, linking, &pp->program.items[f], &programs[f]);
    if (status == LAP_OK)
        status = lap_exec_create(pp->nn->engine, &pp->program.linked, programs, issue_kernel, pp,
                                 &pp->exec);
    else
        for (uint32_t f = 0; f < count; f++)
            lap_program_destroy(programs[f]);
    lap_free(programs);
    return status;
}

/*
 * A step of all ranks, with replicas where it sends to some, for this device and transport; methods
 * that were chosen by trial are taken as serial.
 */
static lap_status_t prove(const lap_pp_t *pp)
{
    const lap_nn_plan_t *plan = &pp->nn->list.plan;
    lap_nn_desc_t desc = plan->desc;
    desc.overlap = &plan->overlap; /* what was given may be gone */
    lap_stage_proving_t proving = {.desc = &desc,
                                   .tp = plan->nranks,
                                   .pp = pp->pipeline->size,
                                   .options = &pp->options,
                                   .target = &pp->target};
    lap_nn_proof_t proof;
    if (pp->background) {
        const lap_nn_buckets_t *buckets = pp->background->replicas.buckets;
        proving.replication = (lap_nn_replication_t){.replicas = buckets->replicas / (int)desc.cp,
                                                     .bucket = buckets->elements,
                                                     .wire = buckets->wire};
    }
    return pp->target.name ? lap_stage_prove(&proving, &proof) : LAP_OK; /* no name: no messages */
}

/* The program for a number of active tokens; the one before is forgotten. */
static lap_status_t get_program(lap_pp_t *pp, size_t seq)
{
    const lap_nn_source_t source = lap_nn_chosen(pp->nn);
    const lap_nn_background_t *background = background_of(pp);
    const bool same = pp->exec && pp->seq == seq && pp->backgrounds == pp->nn->backgrounds;
    const bool traced = pp->nn->tracing, buckets_traced = background && background->traced;
    if (same && pp->bound && pp->traced == traced && pp->buckets_traced == buckets_traced)
        return LAP_OK;
    pp->traced = traced;
    pp->buckets_traced = buckets_traced;
    if (same)
        return bind_all(pp);
    lap_exec_destroy(pp->exec);
    pp->exec = NULL;
    lap_stage_program_clear(&pp->program);
    pp->seq = pp->nn->seq = seq;
    pp->backgrounds = pp->nn->backgrounds;
    pp->background = background;
    lap_nn_replicas_t replicas;
    if (background)
        replicas = background->replicas;
    if (background && pp->nn->list.plan.desc.debug)
        LAP_TRY(prove(pp));
    const lap_stage_linking_t linking = linking_of(pp, &source, background ? &replicas : NULL);
    /* Replicas are ranks of a world of their own, in which this one has its number. */
    if (background)
        replicas.base = linking.base + pp->pipeline->rank * linking.stride -
                        background->group->rank * replicas.stride;
    LAP_TRY(lap_stage_link(&linking, &pp->program));
    LAP_TRY(make_exec(pp, &linking));
    return bind_all(pp);
}

/* ---- create, destroy ---- */

static lap_status_t end_step(void *context);

static lap_status_t fill(lap_pp_t *pp, lap_group_t *group, const lap_nn_desc_t *desc,
                         const lap_nn_cut_t *cut)
{
    LAP_TRY(lap_group_agree(pp->pipeline, lap_nn_create_stage(group, desc, cut, &pp->nn)));
    pp->nn->end_stage = end_step;
    pp->nn->stage = pp;
    LAP_TRY(split_pairs(pp));
    LAP_TRY(lap_group_agree(pp->pipeline, make_buffers(pp)));
    LAP_TRY(lap_group_agree(pp->pipeline, make_tied(pp)));
    LAP_TRY(lap_group_agree(pp->pipeline, desc->debug ? prove(pp) : LAP_OK));
    return lap_group_agree(pp->pipeline, get_program(pp, pp->nn->list.plan.desc.seq));
}

lap_status_t lap_pp_create(lap_group_t *group, lap_group_t *pipeline, const lap_nn_desc_t *desc,
                           const lap_pp_options_t *options, lap_pp_t **pp_p)
{
    if (!group || !pipeline || !pp_p)
        return lap_error(LAP_ERR_INVALID, "lap_pp_create: %s is NULL",
                         !group      ? "group"
                         : !pipeline ? "pipeline"
                                     : "pp_p");
    lap_pp_t *pp = lap_alloc(1, sizeof(*pp));
    lap_terms_t terms = {.of = "lap_pp_create"};
    lap_nn_cut_t cut;
    lap_status_t status = LAP_OK;
    const char *before = lap_enter(group->world, "lap_pp_create");
    if (pp) {
        pp->pipeline = lap_group_keep(pipeline);
        status = plan(pp, group, desc, options, &cut, &terms);
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a pipeline");
    }
    status = lap_terms_agree(&terms, pipeline, status);
    lap_terms_clear(&terms);
    if (status == LAP_OK)
        status = fill(pp, group, desc, &cut);
    lap_leave(group->world, before);
    if (status != LAP_OK) {
        lap_pp_destroy(pp);
        return status;
    }
    *pp_p = pp;
    return LAP_OK;
}

void lap_pp_destroy(lap_pp_t *pp)
{
    lap_saved_error_t saved;
    if (!pp)
        return;
    lap_error_save(&saved);
    if (pp->nn)
        (void)end_step(pp);
    lap_exec_destroy(pp->exec);
    lap_stage_program_clear(&pp->program);
    lap_op_destroy(pp->tied[0]);
    lap_op_destroy(pp->tied[1]);
    if (pp->sum)
        pp->nn->engine->device->ops->free(pp->nn->engine->device, pp->sum);
    for (uint32_t i = 0; pp->peers && i < pp->stages.npairs; i++) {
        for (uint32_t b = 0; b < LAP_STAGE_BUFFERS; b++)
            lap_buffer_destroy(pp->peers[i].buffers[b]);
        lap_group_destroy(pp->peers[i].group);
    }
    if (pp->nn)
        pp->nn->end_stage = NULL; /* what was made for the layers may still be there */
    lap_nn_destroy(pp->nn);
    lap_stages_clear(&pp->stages);
    lap_group_t *pipeline = pp->pipeline;
    lap_free(pp->peers);
    lap_free(pp->counted);
    lap_free(pp->clocks);
    lap_free(pp);
    lap_group_let_go(pipeline);
    lap_error_restore(&saved);
}

lap_nn_t *lap_pp_layers(lap_pp_t *pp)
{
    return pp ? pp->nn : NULL;
}

/* ---- steps ---- */

/* Calls `each` for all groups of the step and their buffers; ends with the first failure. */
typedef lap_status_t (*each_buffer_t)(lap_pp_t *pp, lap_group_t *group, lap_buffer_t *buffer,
                                      lap_in_flight_t *in_flight);
static lap_status_t each_buffer(lap_pp_t *pp, each_buffer_t each)
{
    const lap_nn_background_t *background = pp->background;
    if (background)
        LAP_TRY(
            each(pp, background->group, background->buffer, &pp->in_flight[LAP_NN_BY_REPLICAS]));
    for (int i = 0; i < LAP_NN_GROUPS; i++)
        if (pp->nn->wires[i].group)
            LAP_TRY(each(pp, pp->nn->wires[i].group, pp->nn->wires[i].buffer, &pp->in_flight[i]));
    for (uint32_t i = 0; i < pp->stages.npairs; i++)
        for (uint32_t b = 0; b < LAP_STAGE_BUFFERS; b++)
            if (pp->peers[i].buffers[b])
                LAP_TRY(each(pp, pp->peers[i].group, pp->peers[i].buffers[b],
                             &pp->peers[i].in_flight[b]));
    return LAP_OK;
}

/* What this rank is in, for sentences. */
static lap_flight_t flight_of(const lap_pp_t *pp)
{
    return (lap_flight_t){
        .engine = pp->nn->engine, .group = pp->pipeline, .what = "a step of a pipeline"};
}

static lap_status_t check_usable(lap_pp_t *pp, lap_group_t *group, lap_buffer_t *buffer,
                                 lap_in_flight_t *in_flight)
{
    const lap_flight_t flight = flight_of(pp);
    (void)in_flight;
    return lap_flight_check_usable(&flight, group, buffer, "was about to begin");
}

static lap_status_t enter_flight(lap_pp_t *pp, lap_group_t *group, lap_buffer_t *buffer,
                                 lap_in_flight_t *in_flight)
{
    lap_flight_enter(pp->nn->engine, in_flight, group, buffer);
    return LAP_OK;
}

static lap_status_t leave_flight(lap_pp_t *pp, lap_group_t *group, lap_buffer_t *buffer,
                                 lap_in_flight_t *in_flight)
{
    (void)group;
    lap_flight_leave(pp->nn->engine, in_flight, buffer);
    return LAP_OK;
}

/* The engine's failure is the sentence in lap_last_error. */
static lap_status_t break_buffer(lap_pp_t *pp, lap_group_t *group, lap_buffer_t *buffer,
                                 lap_in_flight_t *in_flight)
{
    (void)in_flight;
    (void)lap_flight_break(group, buffer, pp->nn->engine->status);
    return LAP_OK;
}

static lap_status_t look_at_group(lap_pp_t *pp, lap_group_t *group, lap_buffer_t *buffer,
                                  lap_in_flight_t *in_flight)
{
    const lap_flight_t flight = flight_of(pp);
    (void)buffer;
    (void)in_flight;
    return lap_flight_check(&flight, group, "was in");
}

static lap_status_t put_tokens(lap_pp_t *pp, size_t seq, const int32_t *tokens,
                               const int32_t *targets)
{
    const size_t count = seq * pp->nn->list.plan.desc.batch;
    for (uint32_t m = 0; m < pp->stages.micros; m++)
        LAP_TRY(lap_nn_put_micro(pp->nn, m, seq, tokens + m * count, targets + m * count,
                                 &pp->counted[m]));
    return LAP_OK;
}

/* The traces of what goes to replicas are theirs. */
static lap_status_t each_bucket_trace(lap_pp_t *pp, bool ends)
{
    for (uint32_t f = 0; f < pp->program.nitems && pp->buckets_traced; f++) {
        const lap_stage_item_t *item = &pp->program.items[f];
        lap_op_args_t args;
        const lap_op_t *op = item->kind == LAP_STAGE_BUCKET ? lap_stage_op(pp, item, &args) : NULL;
        if (!op || !args.trace)
            continue;
        if (ends) {
            lap_op_end_trace(lap_exec_program(pp->exec, f), args.trace);
            continue;
        }
        LAP_TRY(lap_op_begin_trace(op, lap_exec_program(pp->exec, f), args.trace));
        lap_trace_start(args.trace);
    }
    return LAP_OK;
}

static lap_status_t issue(lap_pp_t *pp)
{
    LAP_TRY(each_bucket_trace(pp, false));
    LAP_TRY(lap_engine_calls_begin(pp->nn->engine));
    lap_status_t status = lap_exec_begin(pp->exec);
    if (status == LAP_OK)
        status = lap_exec_issue(pp->exec, 0, lap_exec_linked(pp->exec)->nfragments);
    if (status == LAP_OK)
        status = lap_exec_end(pp->exec);
    lap_engine_calls_end(pp->nn->engine);
    return status;
}

/* After a failure nothing of the step runs any more, here or on the ranks that wait for it. */
static lap_status_t fail(lap_pp_t *pp, lap_status_t status)
{
    const lap_flight_t flight = flight_of(pp);
    status = lap_flight_find_cause(&flight, status);
    lap_engine_fail(pp->nn->engine, status, NULL);
    return status;
}

/* Waits for a set of streams. A failure is noted by the engine. */
static lap_status_t await(lap_pp_t *pp, lap_stream_set_t set)
{
    const lap_nn_background_t *background = set == LAP_BACKGROUND ? pp->background : NULL;
    uint64_t first, last;
    lap_exec_numbers(pp->exec, background ? LAP_NN_BY_REPLICAS : LAP_NN_BY_LAYERS, &first, &last);
    lap_await_begin(pp->pipeline->world, background ? background->buffer : pp->nn->buffer, first,
                    last);
    const lap_status_t status = lap_exec_wait(pp->exec, set);
    lap_await_end(pp->pipeline->world);
    if (status != LAP_OK && pp->nn->engine->failures == pp->failures_before)
        (void)fail(pp, status);
    return status;
}

/* Waits for the rest of a step: what is in the background. All of it has ended then. */
static lap_status_t end_rest(lap_pp_t *pp)
{
    lap_engine_t *engine = pp->nn->engine;
    if (!pp->sending)
        return LAP_OK;
    pp->sending = false;
    lap_status_t status = await(pp, LAP_BACKGROUND);
    if (status == LAP_OK && engine->device->ops->waits_by_itself)
        status = each_buffer(pp, look_at_group);
    if (status != LAP_OK && engine->failures == pp->failures_before)
        (void)fail(pp, status);
    (void)each_buffer(pp, leave_flight);
    (void)each_bucket_trace(pp, true);
    if (engine->failures == pp->failures_before) {
        lap_stage_add_to_timeline(pp, true);
        return LAP_OK;
    }
    const lap_status_t failed = lap_error(engine->status, "%s", engine->text);
    (void)each_buffer(pp, break_buffer);
    return failed;
}

lap_status_t lap_pp_step(lap_pp_t *pp, size_t seq, const int32_t *tokens, const int32_t *targets)
{
    if (!pp || !tokens || !targets)
        return lap_error(LAP_ERR_INVALID, "lap_pp_step: %s is NULL",
                         !pp       ? "pp"
                         : !tokens ? "tokens"
                                   : "targets");
    LAP_TRY(end_step(pp));
    LAP_TRY(put_tokens(pp, seq, tokens, targets));
    LAP_TRY(get_program(pp, seq));
    LAP_TRY(each_buffer(pp, check_usable));
    LAP_TRY(lap_engine_check_free(pp->nn->engine));
    (void)each_buffer(pp, enter_flight);
    pp->failures_before = pp->nn->engine->failures;
    pp->begun = pp->sending = pp->stepped = true;
    pp->nn->held = 0;
    pp->nn->fresh = false;
    pp->nn->sync = LAP_NN_LEAVING;
    pp->begin_ns = lap_now_ns();
    const lap_status_t status = issue(pp);
    if (status == LAP_OK)
        return LAP_OK;
    lap_saved_error_t saved;
    const lap_status_t cause = fail(pp, status);
    lap_error_save(&saved);
    (void)end_step(pp);
    lap_error_restore(&saved);
    return cause;
}

lap_status_t lap_pp_wait(lap_pp_t *pp)
{
    if (!pp)
        return lap_error(LAP_ERR_INVALID, "lap_pp_wait: pp is NULL");
    if (!pp->begun)
        return LAP_OK;
    lap_status_t status = LAP_OK;
    pp->begun = false;
    for (int set = 0; set < LAP_STREAM_SETS && status == LAP_OK; set++)
        if (set != LAP_BACKGROUND)
            status = await(pp, (lap_stream_set_t)set);
    if (pp->nn->engine->failures == pp->failures_before)
        lap_stage_add_to_timeline(pp, false);
    /* Replicas are waited for apart from it. */
    return pp->background && pp->nn->engine->failures == pp->failures_before ? LAP_OK
                                                                             : end_rest(pp);
}

/* All of a step: sets of streams leave its buffers together. */
static lap_status_t end_step(void *context)
{
    lap_pp_t *pp = context;
    LAP_TRY(lap_pp_wait(pp));
    return end_rest(pp);
}

lap_status_t lap_pp_loss(lap_pp_t *pp, double *loss_p)
{
    if (!pp || !loss_p)
        return lap_error(LAP_ERR_INVALID, "lap_pp_loss: %s is NULL", pp ? "loss_p" : "pp");
    if (!pp->stepped || pp->begun)
        return lap_error(LAP_ERR_INVALID,
                         "lap_pp_loss: expected lap_pp_step and lap_pp_wait before");
    double mine = 0;
    void *all;
    for (uint32_t m = 0; m < pp->stages.micros; m++)
        mine += pp->nn->loss[m] / (double)pp->counted[m] / pp->stages.micros;
    LAP_TRY(lap_group_collect(pp->pipeline, &mine, sizeof(mine), &all));
    mine = ((const double *)all)[pp->stages.rank_of[pp->stages.stages - 1]];
    lap_free(all);
    LAP_TRY(lap_nn_add_contexts(pp->nn, &mine));
    *loss_p = mine;
    return LAP_OK;
}
