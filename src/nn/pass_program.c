/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making passes: parts of the list become a linked program, with the methods that the operators of the
 * layers have chosen. It is made when it is first needed, and stored for the next time.
 */
#include "core/status.h"
#include "nn/nn.h"
#include "nn/program.h"
#include "overlap/op.h"
#include "schedule/digest.h"
#include "util/alloc.h"

/* As the operators of the layers have chosen their methods; the context is the layers. */
static lap_status_t build_chosen(void *context, const lap_nn_list_t *list, uint32_t step, size_t m,
                                 lap_schedule_t *schedule_p)
{
    const lap_nn_t *nn = context;
    const lap_op_t *op = nn->calls[step].op;
    const int group = list->steps[step].group;
    const bool of_norm = group == LAP_NN_BY_LAYERS && op->group != nn->group;
    LAP_TRY(lap_op_schedule(op, m, of_norm ? op->group->rank : lap_nn_slice(list, group).rank,
                            schedule_p));
    return lap_op_check_fits(op, schedule_p);
}

lap_nn_source_t lap_nn_chosen(lap_nn_t *nn)
{
    return (lap_nn_source_t){build_chosen, nn};
}

lap_nn_replication_t lap_nn_replication(const lap_nn_t *nn)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const lap_nn_background_t *background = nn->background;
    const lap_nn_buckets_t *buckets = background ? background->replicas.buckets : NULL;
    if (!background)
        return (lap_nn_replication_t){.replicas =
                                          (int)(desc->shards > 1 ? desc->shards / desc->cp : 0),
                                      .bucket = desc->shard_bucket,
                                      .by_layer = desc->shard_by_layer != 0,
                                      .wire = LAP_FLOAT32};
    return (lap_nn_replication_t){.replicas = buckets->replicas / (int)desc->cp,
                                  .bucket = buckets->elements,
                                  .by_layer = buckets->by_layer,
                                  .wire = buckets->wire,
                                  .late = !background->overlap,
                                  .ahead = background->ahead,
                                  .starts = background->starts};
}

lap_status_t lap_nn_prove_own(lap_nn_t *nn)
{
    if (lap_nn_list_is_stage(&nn->list))
        return nn->prove_stage ? nn->prove_stage(nn->stage) : LAP_OK;
    const lap_nn_source_t source = lap_nn_chosen(nn);
    const lap_nn_linking_t how = {.target = &nn->calls[0].op->target,
                                  .source = &source,
                                  .replication = lap_nn_replication(nn),
                                  .optimizer = nn->has_optimizer ? &nn->optimizer : NULL};
    lap_nn_proof_t proof;
    return lap_nn_prove_linking(&nn->list.plan, &how, &proof);
}

lap_op_t *lap_nn_call_of(const lap_nn_t *nn, uint32_t origin, lap_trace_t **trace_p)
{
    const lap_nn_background_t *background = nn->background;
    size_t index;
    int which;
    if (lap_nn_bucket_of(origin, &index, &which))
        return which == LAP_NN_BUCKET_SCATTER || which == LAP_NN_BUCKET_GATHER
                   ? background->call(background->context, index, which, trace_p)
                   : NULL;
    const lap_nn_entry_t *entry = &nn->list.entries[origin];
    if (entry->work != LAP_NN_OPERATOR)
        return NULL;
    *trace_p = nn->tracing ? nn->calls[entry->index].trace : NULL;
    return nn->calls[entry->index].op;
}

static lap_binding_t numbers_of(void *context, uint32_t origin, size_t m)
{
    const lap_nn_t *nn = context;
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    if (origin < LAP_NN_BUCKET_ORIGIN)
        return lap_nn_numbers(nn, &nn->list.entries[origin], m);
    lap_op_t *op = lap_nn_call_of(nn, origin, &args.trace);
    args.m = m;
    return lap_op_bind(op, &args);
}

static lap_status_t make_exec(lap_nn_t *nn, lap_linked_t *linked, lap_exec_t **exec_p)
{
    const lap_exec_owner_t owner = {lap_nn_base, numbers_of, lap_nn_issue_kernel, nn};
    return lap_exec_create(nn->engine, linked, &owner, exec_p);
}

/* The norm over a pipeline has a group and a buffer of its own. */
static lap_status_t link_step(lap_nn_t *nn, const lap_nn_source_t *source, lap_nn_mode_t mode,
                              lap_linked_t *linked)
{
    LAP_TRY(mode.starts ? lap_nn_link_step_start(&nn->list, source, mode.replicas, linked)
                        : lap_nn_link_step(&nn->list, source, mode.refreshes ? mode.replicas : NULL,
                                           linked));
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        lap_fragment_t *fragment = &linked->fragments[f];
        lap_trace_t *trace;
        const lap_op_t *op = nn->norm_group ? lap_nn_call_of(nn, fragment->origin, &trace) : NULL;
        if (!op || op->group != nn->norm_group)
            continue;
        fragment->buffer = LAP_NN_BY_NORM;
        fragment->base = linked->rank - op->group->rank;
    }
    return LAP_OK;
}

int lap_nn_number(const lap_nn_t *nn)
{
    return nn->background ? nn->background->group->rank * nn->list.plan.nranks + nn->list.rank
                          : lap_nn_list_place(&nn->list);
}

static lap_status_t make_pass(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    const lap_nn_source_t source = lap_nn_chosen(nn);
    lap_linked_t linked = {.rank = lap_nn_number(nn),
                           .shares_queues = nn->engine->device->ops->facts.shares_queues};
    lap_status_t status = LAP_OK;
    lap_nn_link_regions(&nn->list, pass->mode.first, &linked);
    if (pass->mode.replicas)
        lap_nn_link_wire(&nn->list, pass->mode.replicas, &linked);
    for (int part = 0; part < LAP_NN_LIST_PARTS && status == LAP_OK; part++) {
        lap_nn_mode_t mode = pass->mode;
        if (part == LAP_NN_FORWARD ? !mode.gathers
                                   : part != LAP_NN_SYNC && part != LAP_NN_REFRESH &&
                                         (!mode.sends || lap_nn_has_part(pass->parts, LAP_NN_SYNC)))
            mode.replicas = NULL; /* or gradients go after backward */
        if (lap_nn_has_part(pass->parts, part))
            status = part == LAP_NN_STEP
                         ? link_step(nn, &source, pass->mode, &linked)
                         : lap_nn_link_part(&nn->list, part, pass->seq, mode, &source, &linked);
    }
    if (status == LAP_OK)
        status = lap_link(&linked);
    if (status == LAP_OK)
        status = lap_linked_digest(&linked, &pass->digest);
    if (status == LAP_OK)
        status = make_exec(nn, &linked, &pass->exec);
    lap_linked_clear(&linked);
    return status;
}

static void free_pass(lap_nn_pass_t *pass)
{
    lap_exec_destroy(pass->exec);
    *pass = (lap_nn_pass_t){.exec = NULL};
}

void lap_nn_free_passes(lap_nn_t *nn)
{
    for (int i = 0; i < LAP_NN_PASSES; i++)
        free_pass(&nn->passes.cache[i]);
}

void lap_nn_free_part(lap_nn_t *nn, int part)
{
    for (int i = 0; i < LAP_NN_PASSES; i++)
        if (lap_nn_has_part(nn->passes.cache[i].parts, part))
            free_pass(&nn->passes.cache[i]);
}

/* Whether replicas put another program in the place of one, at least where steps have one micro-batch. */
static bool is_replaced(const lap_nn_pass_t *pass, const lap_nn_background_t *background)
{
    const bool alone = !pass->is_in_flight && !pass->mode.replicas;
    return alone && background &&
           ((background->overlap && pass->parts == 1u << LAP_NN_BACKWARD) ||
            (background->ahead && pass->parts == 1u << LAP_NN_FORWARD));
}

/* Programs with buckets know them by what was given. */
void lap_nn_set_background(lap_nn_t *nn, const lap_nn_background_t *background)
{
    for (int i = 0; i < LAP_NN_PASSES; i++)
        if (nn->passes.cache[i].mode.replicas || is_replaced(&nn->passes.cache[i], background))
            free_pass(&nn->passes.cache[i]);
    nn->background = background;
    nn->backgrounds++;
    nn->started = false;
}

static bool is_pass(const lap_nn_pass_t *pass, unsigned parts, size_t seq, lap_nn_mode_t mode)
{
    return pass->exec && pass->parts == parts && pass->seq == seq &&
           pass->mode.looks == mode.looks && pass->mode.first == mode.first &&
           pass->mode.more == mode.more && pass->mode.replicas == mode.replicas &&
           pass->mode.sends == mode.sends && pass->mode.gathers == mode.gathers &&
           pass->mode.starts == mode.starts && pass->mode.refreshes == mode.refreshes &&
           pass->mode.started == mode.started;
}

lap_status_t lap_nn_get_pass(lap_nn_t *nn, unsigned parts, size_t seq, lap_nn_mode_t mode,
                             lap_nn_pass_t **pass_p)
{
    lap_nn_pass_t *found = NULL, *oldest = NULL;
    for (int i = 0; i < LAP_NN_PASSES && !found; i++) {
        lap_nn_pass_t *pass = &nn->passes.cache[i];
        if (is_pass(pass, parts, seq, mode))
            found = pass;
        else if (!pass->is_in_flight && (!oldest || pass->used < oldest->used))
            oldest = pass;
    }
    if (!found) {
        free_pass(oldest);
        oldest->parts = parts;
        oldest->seq = seq;
        oldest->mode = mode;
        LAP_TRY(make_pass(nn, oldest));
        found = oldest;
    }
    found->used = ++nn->passes.count;
    *pass_p = found;
    return LAP_OK;
}
