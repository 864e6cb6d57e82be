/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of a step of a rank of a pipeline: made once for a number of tokens, and bound to the memory of
 * the layers, of messages and of replicas. What it does is in stage_link.c.
 */
#include "core/status.h"
#include "overlap/op.h"
#include "parallel/stage_prove.h"
#include "parallel/stage_run.h"
#include "util/alloc.h"

static lap_status_t build_tied(void *context, const lap_nn_list_t *list, int rank,
                               lap_stage_kind_t which, lap_schedule_t *schedule_p)
{
    const lap_pp_t *pp = context;
    const lap_op_t *op = pp->tied[which == LAP_STAGE_GATHER];
    (void)list;
    return lap_op_schedule(op, op->problem.capacity, rank, schedule_p);
}

const lap_nn_background_t *lap_stage_background(const lap_pp_t *pp)
{
    const lap_nn_background_t *background = pp->nn->background;
    return background && (background->overlap || background->ahead) ? background : NULL;
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
        .sends = replicas && pp->nn->background->overlap,
        .gathers = replicas && pp->nn->background->ahead,
        .started = replicas && pp->started,
        .seq = pp->seq,
        .first = pp->first,
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

static lap_status_t make_runnable(lap_pp_t *pp, const lap_stage_linking_t *linking,
                                  const lap_stage_item_t *item, lap_runnable_t **runnable_p)
{
    lap_op_args_t args;
    lap_op_t *op = lap_stage_op(pp, item, &args);
    if (op)
        return lap_op_runnable(op, args.m, runnable_p);
    if (!is_message(item))
        return LAP_OK; /* a kernel */
    lap_schedule_t schedule;
    const lap_status_t status = lap_stage_message(linking, item, &schedule);
    if (status == LAP_OK)
        return lap_runnable_create(pp->nn->engine, &schedule, runnable_p);
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
    for (uint32_t f = 0; f < lap_exec_nfragments(pp->exec); f++) {
        const lap_stage_item_t *item = &pp->program.items[f];
        lap_op_args_t args;
        lap_op_t *op = lap_stage_op(pp, item, &args);
        if (op)
            *lap_exec_binding(pp->exec, f) = lap_op_bind(op, &args);
        else if (is_message(item))
            *lap_exec_binding(pp->exec, f) = bind_message(pp, item);
        if (lap_exec_runnable(pp->exec, f))
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
    lap_runnable_t **runnables = lap_alloc((size_t)count + 1, sizeof(*runnables));
    lap_status_t status = LAP_OK;
    if (!runnables)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a step of %u fragments",
                         (unsigned)count);
    for (uint32_t f = 0; f < count && status == LAP_OK; f++)
        status = make_runnable(pp, linking, &pp->program.items[f], &runnables[f]);
    if (status == LAP_OK)
        status = lap_exec_create(pp->nn->engine, &pp->program.linked, runnables, issue_kernel, pp,
                                 &pp->exec);
    else
        for (uint32_t f = 0; f < count; f++)
            lap_runnable_destroy(runnables[f]);
    lap_free(runnables);
    return status;
}

lap_stage_proving_t lap_stage_own_proving(const lap_pp_t *pp, lap_nn_desc_t *desc)
{
    const lap_nn_plan_t *plan = &pp->nn->list.plan;
    *desc = plan->desc;
    desc->overlap = &plan->overlap; /* what was given may be gone */
    return (lap_stage_proving_t){.desc = desc,
                                 .tp = plan->nranks,
                                 .pp = pp->pipeline->size,
                                 .options = &pp->options,
                                 .chosen = pp->choices.of,
                                 .replication = lap_nn_replication(pp->nn),
                                 .optimizer = pp->nn->has_optimizer ? &pp->nn->optimizer : NULL,
                                 .target = &pp->target};
}

lap_status_t lap_stage_prove_own(void *stage)
{
    const lap_pp_t *pp = stage;
    lap_nn_desc_t desc;
    lap_nn_proof_t proof;
    const lap_stage_proving_t proving = lap_stage_own_proving(pp, &desc);
    return pp->target.name ? lap_stage_prove(&proving, &proof) : LAP_OK; /* no name: no messages */
}

/* Whether delayed FP8 scales have no history: there was no step, here or before a checkpoint. */
static bool is_first(const lap_pp_t *pp)
{
    bool forward, backward;
    lap_nn_get_seen(pp->nn, &forward, &backward);
    return pp->nn->list.plan.desc.fp8 == LAP_FP8_DELAYED && !(forward && backward);
}

lap_status_t lap_stage_get_program(lap_pp_t *pp, size_t seq)
{
    const lap_nn_source_t source = lap_nn_chosen(pp->nn);
    const lap_nn_background_t *background = lap_stage_background(pp);
    const bool first = is_first(pp);
    const bool same = pp->exec && pp->seq == seq && pp->first == first &&
                      pp->backgrounds == pp->nn->backgrounds && pp->started == pp->nn->started;
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
    pp->first = first;
    pp->backgrounds = pp->nn->backgrounds;
    pp->background = background;
    pp->started = pp->nn->started;
    lap_nn_replicas_t replicas;
    if (background)
        replicas = background->replicas;
    const lap_stage_linking_t linking = linking_of(pp, &source, background ? &replicas : NULL);
    /* Replicas are ranks of a world of their own, in which this one has its number. */
    if (background)
        replicas.base = linking.base + pp->pipeline->rank * linking.stride -
                        background->group->rank * replicas.stride;
    LAP_TRY(lap_stage_link(&linking, &pp->program));
    LAP_TRY(make_exec(pp, &linking));
    return bind_all(pp);
}
