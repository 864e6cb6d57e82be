/* SPDX-License-Identifier: Apache-2.0 */
/* Running steps of a rank of a pipeline: its program is issued, waited for, and ended after a failure. */
#include "parallel/stage_run.h"
#include "core/status.h"
#include "core/world.h"
#include "schedule/digest.h"
#include "schedule/flight.h"
#include "util/alloc.h"
#include "util/clock.h"

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
    if (pp->steps && pp->nn->norm_buffer)
        LAP_TRY(each(pp, pp->nn->norm_group, pp->nn->norm_buffer, &pp->in_flight[LAP_NN_BY_NORM]));
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

/* What has happened is the sentence in lap_last_error. */
static lap_status_t break_buffer(lap_pp_t *pp, lap_group_t *group, lap_buffer_t *buffer,
                                 lap_in_flight_t *in_flight)
{
    (void)in_flight;
    (void)lap_flight_break(group, buffer, pp->cause);
    return LAP_OK;
}

/* All groups of the step are broken, so that nobody waits for this rank's part of it. */
static lap_status_t break_all(lap_pp_t *pp, lap_status_t cause)
{
    const lap_nn_background_t *replicas = pp->nn->background; /* perhaps of no step yet */
    pp->cause = cause;
    (void)each_buffer(pp, break_buffer);
    if (replicas && replicas != pp->background)
        (void)lap_flight_break(replicas->group, replicas->buffer, cause);
    return cause;
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
        lap_trace_t *trace;
        const lap_op_t *op = item->kind == LAP_STAGE_BUCKET ? lap_stage_op(pp, item, &trace) : NULL;
        if (!op || !trace)
            continue;
        if (ends) {
            lap_op_end_trace(lap_exec_runnable(pp->exec, f), trace);
            continue;
        }
        LAP_TRY(lap_op_begin_trace(op, lap_exec_runnable(pp->exec, f), trace));
        lap_trace_start(trace);
    }
    return LAP_OK;
}

static lap_status_t issue(lap_pp_t *pp)
{
    LAP_TRY(each_bucket_trace(pp, false));
    LAP_TRY(lap_engine_calls_begin(pp->nn->engine));
    lap_status_t status = lap_exec_begin(pp->exec);
    if (status == LAP_OK)
        status = lap_exec_issue(pp->exec, 0, lap_exec_nfragments(pp->exec));
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
    return break_all(pp, failed);
}

/* What this rank needs of its own for a step. */
static lap_status_t prepare(lap_pp_t *pp, size_t seq, const int32_t *tokens, const int32_t *targets,
                            bool steps)
{
    if (!tokens || !targets)
        return lap_error(LAP_ERR_INVALID, "lap_pp_step: %s is NULL", tokens ? "targets" : "tokens");
    if (pp->nn->stale && !(pp->nn->background && pp->nn->background->ahead))
        return lap_error(
            LAP_ERR_INVALID,
            "lap_pp_step: the ranks that share the optimizer have not gathered its "
            "weights: expected lap_dp_create, which joins them, before the first step");
    if (pp->nn->started)
        LAP_TRY(lap_nn_end_part(pp->nn, LAP_NN_STEP));
    LAP_TRY(put_tokens(pp, seq, tokens, targets));
    LAP_TRY(lap_stage_get_program(pp, seq, steps));
    LAP_TRY(each_buffer(pp, check_usable));
    return lap_engine_check_free(pp->nn->engine);
}

/* The step of the optimizer has left: gradients are used, and weights new ones. */
static void note_step(lap_pp_t *pp)
{
    lap_nn_t *nn = pp->nn;
    lap_nn_note_step(nn);
    nn->started = nn->stale && nn->background->starts;
    if (!nn->tracing) /* a step that is traced has other programs */
        nn->digest = lap_digest_add(LAP_NO_DIGEST, pp->digest);
}

lap_status_t lap_stage_step(lap_pp_t *pp, size_t seq, const int32_t *tokens, const int32_t *targets,
                            bool steps)
{
    LAP_TRY(lap_stage_end(pp, true));
    const lap_status_t prepared = prepare(pp, seq, tokens, targets, steps);
    if (prepared != LAP_OK) /* the others would wait for this rank's part */
        return break_all(pp, prepared);
    (void)each_buffer(pp, enter_flight);
    pp->failures_before = pp->nn->engine->failures;
    pp->begun = pp->sending = pp->stepped = true;
    pp->nn->held = 0;
    pp->nn->fresh = pp->nn->stale = pp->nn->started = false;
    pp->nn->sync = LAP_NN_LEAVING;
    pp->begin_ns = lap_now_ns();
    const lap_status_t status = issue(pp);
    if (status == LAP_OK) {
        lap_nn_set_seen(pp->nn, true, true);
        if (steps)
            note_step(pp);
        return LAP_OK;
    }
    lap_saved_error_t saved;
    const lap_status_t cause = fail(pp, status);
    lap_error_save(&saved);
    (void)lap_stage_end(pp, true);
    lap_error_restore(&saved);
    return cause;
}

lap_status_t lap_pp_step(lap_pp_t *pp, size_t seq, const int32_t *tokens, const int32_t *targets)
{
    if (!pp)
        return lap_error(LAP_ERR_INVALID, "lap_pp_step: pp is NULL");
    return lap_stage_step(pp, seq, tokens, targets, false);
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
    /* Replicas are waited for apart from it, unless the optimizer has waited for them. */
    const bool sends = pp->background && pp->background->overlap && !pp->steps;
    return sends && pp->nn->engine->failures == pp->failures_before ? LAP_OK : end_rest(pp);
}

lap_status_t lap_stage_end(void *context, bool background)
{
    lap_pp_t *pp = context;
    LAP_TRY(lap_pp_wait(pp));
    return background ? end_rest(pp) : LAP_OK;
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
