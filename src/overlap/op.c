/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators: a cache of the schedules that one has built (one per number of active rows), and the
 * calls themselves. They are made in op_create.c.
 */
#include "overlap/op.h"

#include "core/options.h"
#include "overlap/auto.h"
#include "schedule/flight.h"
#include "schedule/lower.h"
#include "schedule/run.h"
#include "util/clock.h"

const char *lap_op_method(const lap_op_t *op)
{
    return op ? op->builder->name : "";
}

lap_status_t lap_op_prediction(const lap_op_t *op, size_t index, const char **method_p,
                               double *seconds_p)
{
    if (!op || !method_p || !seconds_p)
        return lap_error(LAP_ERR_INVALID, "lap_op_prediction: %s is NULL",
                         !op         ? "op"
                         : !method_p ? "method_p"
                                     : "seconds_p");
    if (!op->choice)
        return lap_error(LAP_ERR_INVALID, "this operator was made with method '%s', expected '%s'",
                         op->builder->name, LAP_AUTO);
    if (index >= op->choice->capacity.count)
        return lap_error(LAP_ERR_INVALID, "index is %zu, expected less than %zu", index,
                         op->choice->capacity.count);
    *method_p = op->choice->capacity.candidates[index].label;
    *seconds_p = op->choice->capacity.seconds[index];
    return LAP_OK;
}

lap_buffer_t *lap_op_buffer(lap_op_t *op)
{
    return op ? op->buffer : NULL;
}

void lap_op_set_chaos(lap_op_t *op, uint64_t seed)
{
    op->chaos = seed;
}

/* ---- the cache of schedules ---- */

/* What calls with `m` active rows are made from. */
static const lap_builder_t *find_builder(const lap_op_t *op, size_t m, lap_problem_t *problem_p)
{
    const lap_candidate_t *chosen = op->choice ? lap_auto_for(op->choice, m) : NULL;
    *problem_p = chosen ? chosen->problem : op->problem;
    problem_p->rank = op->group->rank;
    problem_p->desc.buffer = op->problem.desc.buffer;
    problem_p->m = m;
    return chosen ? chosen->builder : op->builder;
}

lap_op_desc_t lap_op_chosen(const lap_op_t *op, size_t m)
{
    lap_problem_t problem;
    const lap_builder_t *builder = find_builder(op, m, &problem);
    problem.desc.method = builder->name;
    return problem.desc;
}

lap_status_t lap_op_build(const lap_op_t *op, size_t m, lap_schedule_t *schedule)
{
    lap_problem_t problem;
    const lap_builder_t *builder = find_builder(op, m, &problem);
    return lap_build(builder, &problem, schedule);
}

lap_status_t lap_op_schedule(const lap_op_t *op, size_t m, int rank, lap_schedule_t *schedule_p)
{
    lap_problem_t problem;
    const lap_builder_t *builder = find_builder(op, m, &problem);
    problem.rank = rank;
    LAP_TRY(lap_build(builder, &problem, schedule_p));
    return lap_lower(schedule_p, 1, &op->target, NULL);
}

void lap_op_drop_runnables(lap_op_t *op)
{
    for (int i = 0; i < LAP_OP_PROGRAMS; i++) {
        lap_runnable_destroy(op->cache[i].runnable);
        op->cache[i] = (lap_op_cached_t){.runnable = NULL};
    }
}

static lap_status_t make_runnable(const lap_op_t *op, size_t m, lap_runnable_t **runnable_p)
{
    lap_schedule_t schedule;
    const lap_status_t status = lap_op_schedule(op, m, op->group->rank, &schedule);
    if (status != LAP_OK) {
        lap_schedule_clear(&schedule);
        return status;
    }
    return lap_runnable_create(op->engine, &schedule, runnable_p);
}

/* Of those that can go, the one used longest ago; NULL: all must stay. */
static lap_op_cached_t *find_room(lap_op_t *op)
{
    lap_op_cached_t *oldest = NULL;
    for (int i = 0; i < LAP_OP_PROGRAMS; i++)
        if (!op->cache[i].captured && (!oldest || op->cache[i].used < oldest->used))
            oldest = &op->cache[i];
    return oldest;
}

static lap_status_t make_cached(lap_op_t *op, size_t m, lap_op_cached_t **cached_p)
{
    lap_runnable_t *runnable;
    lap_op_cached_t *cached = find_room(op);
    if (!cached)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "captured graphs hold calls of this operator with %d different values of "
                         "m, which is the maximum",
                         LAP_OP_PROGRAMS);
    if (cached->runnable && op->stays_in_flight) /* it may still run */
        LAP_TRY(lap_engine_await_enqueued(op->engine));
    LAP_TRY(make_runnable(op, m, &runnable));
    lap_runnable_destroy(cached->runnable);
    *cached = (lap_op_cached_t){.runnable = runnable, .m = m};
    *cached_p = cached;
    return LAP_OK;
}

lap_status_t lap_op_cached(lap_op_t *op, size_t m, lap_op_cached_t **cached_p)
{
    lap_op_cached_t *cached = NULL;
    for (int i = 0; i < LAP_OP_PROGRAMS && !cached; i++)
        if (op->cache[i].runnable && op->cache[i].m == m)
            cached = &op->cache[i];
    if (!cached)
        LAP_TRY(make_cached(op, m, &cached));
    cached->used = ++op->calls;
    *cached_p = cached;
    return LAP_OK;
}

/* ---- calling ---- */

lap_status_t lap_op_check_fits(const lap_op_t *op, const lap_schedule_t *schedule)
{
    if (schedule->scratch_bytes > op->scratch_bytes ||
        schedule->symmetric_bytes > op->buffer->bytes || schedule->nsignals > op->buffer->nsignals)
        return lap_error(LAP_ERR_INTERNAL, "%s for m = %zu needs more memory than for m = %zu",
                         schedule->method, schedule->m, op->problem.capacity);
    return LAP_OK;
}

static lap_bound_place_t place_of(const lap_tensor_t *tensor)
{
    const size_t element = lap_dtype_size(tensor->dtype);
    return (lap_bound_place_t){tensor->data, tensor->cols * element, tensor->stride * element};
}

lap_binding_t lap_op_bind(lap_op_t *op, const lap_op_args_t *args)
{
    const lap_problem_t *p = &op->problem;
    const bool ag = p->kind == LAP_AG_GEMM;
    const lap_candidate_t *chosen = op->choice ? lap_auto_for(op->choice, args->m) : NULL;
    const lap_op_desc_t *desc = chosen ? &chosen->problem.desc : &p->desc;
    const float sent_scale = ag ? args->a_scale : args->wire_scale;
    const float *sent_ptr = ag ? args->a_scale_ptr : args->wire_scale_ptr;
    if (!op->engine->device->ops->transport && !sent_ptr) /* memory of the host */
        *op->own_scale = sent_scale;
    lap_binding_t binding = {
        .places[LAP_INPUT] = place_of(&args->a),
        .places[LAP_WEIGHT] = place_of(&args->b),
        .places[LAP_MOVED] = place_of(&args->x),
        .places[LAP_SCALE] = {(char *)(uintptr_t)(sent_ptr ? sent_ptr : op->own_scale), 0, 0},
        .places[LAP_OUTPUT] = place_of(&args->d),
        .places[LAP_GATHERED] = place_of(ag ? &args->gathered : &args->y),
        .places[LAP_SCALES] = {(char *)args->scales, 0, 0},
        .places[LAP_SCRATCH] = {op->scratch->memory, 0, 0},
        /* The scales of a gathered a come with its shards. */
        .scale = args->alpha * args->b_scale * (ag ? 1 : args->a_scale),
        .beta = args->beta,
        .a_scale = args->a_scale,
        .d_scale = args->d_scale,
        .wire_scale = args->wire_scale,
        .sent_scale = sent_scale,
        .sets_scale = !sent_ptr,
        .a_scale_ptr = args->a_scale_ptr,
        .b_scale_ptr = args->b_scale_ptr,
        .bias = args->bias,
        .bias_grad = args->bias_grad,
        .copy_sms = desc->num_sm,
        .spare_sms = desc->set_sm_margin ? desc->num_sm : 0,
        .buffer = op->buffer,
        .foreign = op->foreign,
        .op_index = op->index,
        .traced = args->trace != NULL,
        .chaos = op->chaos ? op->chaos + op->calls : 0,
    };
    if (p->epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU))
        binding.aux = args->aux;
    return binding;
}

lap_status_t lap_op_ready(lap_op_t *op, const lap_op_args_t *args, lap_op_cached_t **cached_p,
                          lap_binding_t *binding_p)
{
    LAP_TRY(lap_op_cached(op, args->m, cached_p));
    LAP_TRY(lap_op_check_fits(op, lap_runnable_schedule((*cached_p)->runnable)));
    *binding_p = lap_op_bind(op, args);
    return LAP_OK;
}

lap_status_t lap_op_break(lap_op_t *op, lap_status_t status)
{
    return lap_flight_break(op->group, op->buffer, status);
}

/* What this rank is in, for sentences. */
static lap_flight_t flight_of(const lap_op_t *op)
{
    return (lap_flight_t){.engine = op->engine,
                          .group = op->group,
                          .what = lap_op_kind_name(op->problem.kind),
                          .method = op->builder->name};
}

lap_status_t lap_op_check_usable(lap_op_t *op)
{
    const lap_flight_t flight = flight_of(op);
    if (op->runnable)
        return lap_error(LAP_ERR_BUSY, "the last call of this operator has not been ended");
    return lap_flight_check_usable(&flight, op->group, op->buffer, "was about to call");
}

lap_status_t lap_op_find_cause(const lap_op_t *op, lap_status_t status)
{
    const lap_flight_t flight = flight_of(op);
    return lap_flight_find_cause(&flight, status);
}

void lap_op_enter_flight(lap_op_t *op)
{
    op->in_flight.group = op->group;
    op->in_flight.foreign = op->foreign;
    op->in_flight.what = lap_op_kind_name(op->problem.kind);
    op->in_flight.method = op->builder->name;
    op->in_flight.buffer = op->buffer;
    lap_engine_add_in_flight(op->engine, &op->in_flight);
}

lap_status_t lap_op_begin_trace(const lap_op_t *op, const lap_runnable_t *runnable,
                                lap_trace_t *trace)
{
    const lap_schedule_t *schedule = lap_runnable_schedule(runnable);
    trace->group = op->group->kind;
    return lap_trace_begin(trace, op->problem.kind, schedule->method, op->group->size, schedule->m,
                           lap_buffer_is_paced(op->buffer), lap_runnable_records(runnable));
}

/* Gets ready and issues; whatever fails here leaves the peers without this rank's part. */
static lap_status_t issue(lap_op_t *op, const lap_op_args_t *args)
{
    lap_op_cached_t *cached;
    lap_binding_t binding;
    LAP_TRY(lap_op_ready(op, args, &cached, &binding));
    lap_runnable_t *runnable = cached->runnable;
    if (args->trace)
        LAP_TRY(lap_op_begin_trace(op, runnable, args->trace));
    op->failures_before = op->engine->failures;
    op->trace = args->trace;
    if (op->trace)
        lap_trace_start(op->trace);
    lap_status_t status = lap_runnable_issue(runnable, &binding);
    op->runnable = runnable;
    op->buffer->in_flight++;
    return status;
}

lap_status_t lap_op_begin(lap_op_t *op, const lap_op_args_t *given)
{
    if (!op || !given)
        return lap_error(LAP_ERR_INVALID, "lap_op_begin: %s is NULL", op ? "args" : "op");
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    LAP_TRY(lap_read_options(&args, sizeof(args), given, "LAP_OP_ARGS"));
    LAP_TRY(lap_op_check_usable(op));
    LAP_TRY(lap_engine_check_free(op->engine));
    LAP_TRY(lap_args_check(op, &args));
    if (!op->stays_in_flight)
        lap_op_enter_flight(op);
    lap_status_t status = issue(op, &args);
    if (status == LAP_OK)
        return LAP_OK;
    status = lap_op_find_cause(op, status);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    lap_op_break(op, status);
    if (op->runnable) { /* steps already issued may wait for peers: they have been let go */
        lap_error_restore(&saved);
        lap_engine_fail(op->engine, status, NULL);
        (void)lap_op_end(op);
    } else if (!op->stays_in_flight) {
        lap_engine_remove_in_flight(op->engine, &op->in_flight);
    }
    lap_error_restore(&saved);
    return status;
}

void lap_op_end_trace(const lap_runnable_t *runnable, lap_trace_t *trace)
{
    trace->end = lap_now_ns();
    lap_runnable_read_trace(runnable, trace);
    for (size_t i = 0; i < trace->nrecords; i++)
        lap_record_set_ready(&trace->records[i]);
}

lap_status_t lap_op_end(lap_op_t *op)
{
    if (!op || !op->runnable)
        return lap_error(LAP_ERR_INVALID, "lap_op_end: %s",
                         op ? "no call was begun" : "op is NULL");
    const uint64_t number = lap_runnable_number(op->runnable);
    lap_await_begin(op->group->world, op->buffer, number, number);
    lap_status_t status = lap_op_find_cause(op, lap_runnable_wait(op->runnable));
    lap_await_end(op->group->world);
    /*
     * A rank that fails lets its streams run out, into memory of its peers, after it has broken the
     * group: if that is whole now, nothing of this call was touched.
     */
    const lap_flight_t flight = flight_of(op);
    if (status == LAP_OK && op->engine->device->ops->waits_by_itself)
        status = lap_flight_check(&flight, op->group, "was in");
    if (status != LAP_OK)
        lap_engine_fail(op->engine, status, NULL); /* for all calls in flight */
    if (!op->stays_in_flight)
        lap_engine_remove_in_flight(op->engine, &op->in_flight);
    op->buffer->in_flight--;
    if (op->trace)
        lap_op_end_trace(op->runnable, op->trace);
    op->runnable = NULL;
    op->trace = NULL;
    if (op->engine->failures != op->failures_before)
        return lap_op_break(op, lap_error(op->engine->status, "%s", op->engine->text));
    return LAP_OK;
}

lap_status_t lap_op_run(lap_op_t *op, const lap_op_args_t *args)
{
    LAP_TRY(lap_op_begin(op, args));
    return lap_op_end(op);
}
