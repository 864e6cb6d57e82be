/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of a step of a rank of a pipeline: made once for a number of tokens, and bound to the memory of
 * the layers, of messages and of replicas. What it does is in stage_link.c.
 */
#include "core/status.h"
#include "overlap/op.h"
#include "parallel/stage_prove.h"
#include "parallel/stage_run.h"
#include "schedule/digest.h"
#include "util/alloc.h"

static lap_status_t build_tied(void *context, const lap_nn_list_t *list, int rank,
                               lap_stage_kind_t which, lap_schedule_t *schedule_p)
{
    const lap_pp_t *pp = context;
    const lap_op_t *op = pp->tied[which == LAP_STAGE_GATHER];
    (void)list;
    return lap_op_schedule(op, op->problem.capacity, rank, schedule_p);
}

const lap_nn_background_t *lap_stage_background(const lap_pp_t *pp, bool steps)
{
    const lap_nn_background_t *background = pp->nn->background;
    return background && (steps || background->overlap || background->ahead) ? background : NULL;
}

/* Ranks have the numbers of a proof: those that share layers are neighbours, see lap_stage_programs_t. */
static lap_stage_linking_t linking_of(lap_pp_t *pp, const lap_nn_source_t *source,
                                      const lap_nn_replicas_t *replicas)
{
    const lap_nn_background_t *background = pp->nn->background;
    const lap_nn_desc_t *desc = &pp->nn->list.plan.desc;
    const int places = background ? background->group->size : (int)desc->cp;
    return (lap_stage_linking_t){
        .stages = &pp->stages,
        .rank = (uint32_t)pp->pipeline->rank,
        .list = &pp->nn->list,
        .base = lap_nn_number(pp->nn),
        .stride = pp->nn->list.plan.nranks * places,
        .replicas = replicas,
        .sends = replicas && background->overlap,
        .gathers = replicas && background->ahead,
        .started = replicas && pp->started,
        .late = replicas && !background->overlap && pp->steps,
        .starts = replicas && background->starts && pp->steps,
        .steps = pp->steps,
        .seq = pp->seq,
        .first = pp->first,
        .overlap = pp->options.overlap != 0,
        .target = &pp->target,
        .source = source,
        .tied = build_tied,
        .context = pp,
    };
}

lap_op_t *lap_stage_op(const lap_pp_t *pp, const lap_stage_item_t *item, lap_trace_t **trace_p)
{
    switch (item->kind) {
    case LAP_STAGE_ENTRY:
        return lap_nn_call_of(pp->nn, item->entry, trace_p);
    case LAP_STAGE_SCATTER:
    case LAP_STAGE_GATHER:
        *trace_p = NULL;
        return pp->tied[item->kind == LAP_STAGE_GATHER];
    case LAP_STAGE_BUCKET:
        return lap_nn_call_of(pp->nn, lap_nn_bucket_origin(item->bucket, item->which), trace_p);
    default:
        return NULL;
    }
}

/* ---- as the owner of its program: see lap_exec_owner_t ---- */

static lap_bound_place_t base_of(void *context, uint32_t memory)
{
    const lap_pp_t *pp = context;
    const lap_bound_place_t tied = {.base = pp->sum};
    return memory == LAP_NN_TIED_MEMORY ? tied : lap_nn_base(pp->nn, memory);
}

static lap_binding_t numbers_of(void *context, uint32_t origin, size_t m)
{
    const lap_pp_t *pp = context;
    const lap_stage_item_t *item = &pp->program.items[origin];
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    lap_binding_t numbers = {.scale = 1, .a_scale = 1, .d_scale = 1, .wire_scale = 1};
    args.m = m;
    if (item->kind == LAP_STAGE_ENTRY)
        numbers = lap_nn_numbers(pp->nn, &pp->nn->list.entries[item->entry], m);
    else if (item->kind == LAP_STAGE_SEND || item->kind == LAP_STAGE_RECEIVE)
        numbers.buffer = pp->peers[item->pair].buffers[item->upstream];
    else
        numbers = lap_op_bind(lap_stage_op(pp, item, &args.trace), &args);
    numbers.traced = item->kind == LAP_STAGE_BUCKET ? pp->buckets_traced : pp->traced;
    return numbers;
}

static lap_status_t copy(const lap_pp_t *pp, const lap_operands_t *operands, lap_stream_t *stream)
{
    const lap_arg_t *from = lap_operand(operands, LAP_STAGE_FROM);
    const lap_arg_t *to = lap_operand(operands, LAP_STAGE_TO);
    const lap_copy_t all = {.dst = to->data,
                            .src = from->data,
                            .rows = from->rows,
                            .row_bytes = from->cols * lap_dtype_size(from->dtype),
                            .dst_stride = to->pitch,
                            .src_stride = from->pitch};
    return pp->nn->engine->device->ops->copy(stream, &all);
}

static lap_status_t issue_kernel(void *context, uint32_t origin, const lap_operands_t *operands,
                                 lap_stream_t *stream)
{
    lap_pp_t *pp = context;
    const lap_stage_item_t *item = &pp->program.items[origin];
    if (item->kind == LAP_STAGE_COPY)
        return copy(pp, operands, stream);
    if (item->kind == LAP_STAGE_BUCKET)
        return lap_nn_issue_cast(pp->nn, item->bucket, item->which, operands, stream);
    pp->nn->micro = item->micro;
    const lap_status_t status = lap_nn_issue_entry(pp->nn, item->entry, operands, stream);
    pp->nn->micro = 0;
    return status;
}

static lap_status_t bind_all(lap_pp_t *pp)
{
    pp->bound = false; /* half of it may be, after a failure */
    lap_exec_time_kernels(pp->exec, pp->traced);
    LAP_TRY(lap_exec_bind(pp->exec));
    pp->bound = true;
    return LAP_OK;
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
                                 .how.replication = lap_nn_replication(pp->nn),
                                 .how.optimizer = pp->nn->has_optimizer ? &pp->nn->optimizer : NULL,
                                 .how.target = &pp->target};
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

lap_status_t lap_stage_get_program(lap_pp_t *pp, size_t seq, bool steps)
{
    const lap_nn_source_t source = lap_nn_chosen(pp->nn);
    const lap_nn_background_t *background = lap_stage_background(pp, steps);
    const bool first = is_first(pp);
    const bool same = pp->exec && pp->seq == seq && pp->steps == steps && pp->first == first &&
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
    pp->steps = steps;
    pp->first = first;
    pp->backgrounds = pp->nn->backgrounds;
    pp->background = background;
    pp->started = pp->nn->started;
    lap_nn_replicas_t replicas;
    if (background)
        replicas = background->replicas;
    const lap_stage_linking_t linking = linking_of(pp, &source, background ? &replicas : NULL);
    if (background) /* of this stage */
        replicas.base += pp->pipeline->rank * linking.stride;
    LAP_TRY(lap_stage_link(&linking, &pp->program));
    LAP_TRY(lap_linked_digest(&pp->program.linked, &pp->digest));
    const lap_exec_owner_t owner = {base_of, numbers_of, issue_kernel, pp};
    LAP_TRY(lap_exec_create(pp->nn->engine, &pp->program.linked, &owner, &pp->exec));
    return bind_all(pp);
}
