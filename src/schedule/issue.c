/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Issuing a call: a walk over the steps of a schedule that hands each to its stream, on any device
 * and transport.
 */
#include <stdio.h>

#include "schedule/bind.h"
#include "schedule/runnable.h"
#include "util/clock.h"

#define NO_TILE UINT32_MAX

/* ---- what a GEMM step's row-block signals call back ---- */

static lap_wait_t block_wait(const lap_gemm_context_t *context, size_t block)
{
    const uint32_t tile = context->step->first_tile + (uint32_t)block;
    const lap_signal_t *wait = &context->runnable->schedule.tiles[tile].wait;
    return (lap_wait_t){
        .peer = wait->peer,
        .signal = wait->word,
        .target = context->runnable->blocks[tile].wait.target,
        .reason = context->reason,
        .count = wait->count,
    };
}

static lap_status_t block_wait_failed(void *arg, size_t block, lap_status_t status)
{
    const lap_gemm_context_t *context = arg;
    lap_wait_t wait = block_wait(context, context->lost != NO_TILE ? context->lost : block);
    return lap_buffer_wait_failed(context->buffer, &wait, status);
}

static lap_status_t block_wait_passed(void *arg, size_t block)
{
    const lap_gemm_context_t *context = arg;
    const lap_wait_t wait = block_wait(context, block);
    return lap_buffer_wait_passed(context->buffer, &wait);
}

static lap_status_t block_raise(void *arg, void *raise)
{
    const lap_gemm_context_t *context = arg;
    return context->buffer->ops->raise_now(context->buffer, raise);
}

/*
 * While a GEMM waits for any of several ranks, it makes no sense to go on once one of them cannot
 * come any more.
 */
static lap_status_t look_for_blocks(void *arg)
{
    lap_gemm_context_t *context = arg;
    lap_buffer_t *buffer = context->buffer;
    const lap_schedule_t *schedule = &context->runnable->schedule;
    int last = -1;
    for (uint32_t i = 0; i < context->step->ntiles; i++) {
        const uint32_t tile = context->step->first_tile + i;
        const int peer = schedule->tiles[tile].wait.peer;
        const lap_gemm_block_t *block = &context->runnable->blocks[tile];
        if (!block->has_wait || peer == last ||
            lap_bank_reached(buffer->banks[schedule->rank], block->wait.word, block->wait.target))
            continue;
        last = peer;
        const lap_status_t status = lap_buffer_look(buffer, peer, context->reason);
        if (status != LAP_OK) {
            context->lost = i;
            return status;
        }
    }
    return lap_group_look(buffer->group);
}

/* ---- issuing ---- */

/* One call being issued. */
typedef struct issue {
    lap_runnable_t *runnable;
    const lap_binding_t *binding;
    const lap_device_ops_t *device;
    const lap_links_t *links;   /* NULL: a call by itself */
    lap_trace_record_t *record; /* of the next step or tile; NULL: no trace */
    uint64_t chaos;
} issue_t;

static void bind_block(issue_t *issue, uint32_t step_index, uint32_t index)
{
    lap_runnable_t *runnable = issue->runnable;
    lap_buffer_t *buffer = issue->binding->buffer;
    const lap_tile_t *tile = &runnable->schedule.tiles[index];
    const lap_range_t *a = lap_tile_range(&runnable->schedule, tile, LAP_ROLE_A),
                      *d = lap_tile_range(&runnable->schedule, tile, LAP_ROLE_D),
                      *scale = lap_tile_range(&runnable->schedule, tile, LAP_ROLE_SCALE);
    lap_gemm_block_t *block = &runnable->blocks[index];
    size_t unused;
    *block = (lap_gemm_block_t){.rows = d->rows};
    block->a = lap_bind_range(issue->binding, a, &block->a_stride);
    block->d = lap_bind_range(issue->binding, d, &block->d_stride);
    block->aux = lap_bind_aux(issue->binding, &runnable->schedule, d);
    if (scale->rows > 0)
        block->a_scale =
            (const float *)(const void *)lap_bind_range(issue->binding, scale, &unused);
    else if (runnable->schedule.kind != LAP_AG_GEMM)
        block->a_scale = issue->binding->a_scale_ptr;
    lap_trace_record_t *record = issue->record ? issue->record++ : NULL;
    if (record) {
        block->span = &record->span;
        block->delays = &record->delays;
        lap_record_tile(&runnable->schedule, step_index, tile, record);
    }
    if (tile->wait.word != LAP_NO_SIGNAL) {
        block->has_wait = true;
        block->wait.word = tile->wait.word;
        block->wait.target = buffer->consumed[tile->wait.word] + tile->wait.count;
    }
    if (tile->raise.word != LAP_NO_SIGNAL) {
        runnable->raises[index] = (lap_raise_t){
            .peer = tile->raise.peer,
            .signal = tile->raise.word,
            .tag = runnable->reasons[step_index].tag,
            .bytes = tile->raise.bytes,
            .span = record ? &record->flight : NULL,
        };
        block->raise_arg = &runnable->raises[index];
    }
}

/* `to` goes on when `from`, whose event this is, is here. */
static lap_status_t follow(const issue_t *issue, lap_event_t *event, lap_stream_t *from,
                           lap_stream_t *to)
{
    LAP_TRY(issue->device->event_record(event, from));
    return issue->device->stream_wait_event(to, event);
}

/* What the device is given for a GEMM step that has tiles, with all of them. */
static lap_gemm_t bind_gemm(issue_t *issue, uint32_t index)
{
    lap_runnable_t *runnable = issue->runnable;
    lap_buffer_t *buffer = issue->binding->buffer;
    const lap_schedule_t *schedule = &runnable->schedule;
    const lap_step_t *step = &schedule->steps[index];
    for (uint32_t t = 0; t < step->ntiles; t++)
        bind_block(issue, index, step->first_tile + t);

    lap_gemm_context_t *context = &runnable->gemms[index];
    *context = (lap_gemm_context_t){.runnable = runnable,
                                    .buffer = buffer,
                                    .step = step,
                                    .reason = &runnable->reasons[index],
                                    .lost = NO_TILE};
    const lap_world_t *world = buffer->group->world;
    context->watch = (lap_watch_t){.timeout_ns = world->timeout_ns,
                                   .spin_ns = world->spin_ns,
                                   .look = look_for_blocks,
                                   .context = context};

    const lap_tile_t *first = &schedule->tiles[step->first_tile];
    const lap_gemm_shape_t shape = lap_tile_shape(schedule, step, first);
    uint32_t one;
    const lap_use_t *d = lap_tile_uses(schedule, first, LAP_ROLE_D, &one);
    lap_gemm_t gemm = {
        .a_dtype = schedule->types.a,
        .b_dtype = schedule->types.b,
        .d_dtype = d->dtype,
        .a_transposed = schedule->layout == LAP_WGRAD,
        .b_plain = schedule->layout != LAP_FORWARD,
        .scale = issue->binding->scale,
        .b_scale = issue->binding->b_scale_ptr,
        .n = shape.n,
        .k = shape.k,
        .finish = lap_bind_finish(issue->binding, schedule, &d->range, d->dtype,
                                  &runnable->finishes[index]),
        .blocks = &runnable->blocks[step->first_tile],
        .nblocks = step->ntiles,
        .any_order = step->any_order,
        .wait_bank = buffer->banks[runnable->schedule.rank],
        .watch = &context->watch,
        .wait_failed = block_wait_failed,
        .wait_passed = block_wait_passed,
        .raise = block_raise,
        .context = context,
        .shuffle = issue->chaos,
        .spare_sms = issue->binding->spare_sms,
    };
    gemm.b =
        lap_bind_range(issue->binding, lap_step_range(schedule, step, LAP_ROLE_B), &gemm.b_stride);
    return gemm;
}

static lap_status_t issue_gemm(issue_t *issue, uint32_t index, lap_stream_t *stream)
{
    const lap_step_t *step = &issue->runnable->schedule.steps[index];
    if (step->ntiles == 0)
        return LAP_OK;
    lap_gemm_t gemm = bind_gemm(issue, index);
    if (issue->device->facts.gemm_signals || !issue->record)
        return issue->device->gemm(stream, &gemm);
    /* One tile, which has no times of its own. */
    LAP_TRY(issue->device->stamp(stream, &gemm.blocks->span->begin));
    LAP_TRY(issue->device->gemm(stream, &gemm));
    return issue->device->stamp(stream, &gemm.blocks->span->end);
}

/* Steps of a call that is traced are issued one by one: each has its time. */
static bool goes_together(const issue_t *issue, const lap_step_t *step)
{
    return step->together && !issue->record;
}

/* Where some uses of a sum are. */
static const void **bind_sources(const issue_t *issue, const lap_use_t *uses, uint32_t count)
{
    lap_runnable_t *runnable = issue->runnable;
    const size_t first = (size_t)(uses - runnable->schedule.uses);
    for (uint32_t i = 0; i < count; i++)
        runnable->sources[first + i] =
            lap_bind_range(issue->binding, &uses[i].range, &runnable->source_strides[first + i]);
    return &runnable->sources[first];
}

static lap_status_t issue_reduce(issue_t *issue, uint32_t index, lap_stream_t *stream)
{
    lap_runnable_t *runnable = issue->runnable;
    const lap_schedule_t *schedule = &runnable->schedule;
    const lap_step_t *step = &schedule->steps[index];
    uint32_t count, nscales, one;
    const lap_use_t *a = lap_step_uses(schedule, step, LAP_ROLE_A, &count);
    const lap_use_t *scales = lap_step_uses(schedule, step, LAP_ROLE_SCALE, &nscales);
    const lap_use_t *d = lap_step_uses(schedule, step, LAP_ROLE_D, &one);
    lap_reduce_t reduce = {
        .from = a->dtype,
        .to = d->dtype,
        .srcs = bind_sources(issue, a, count),
        .src_strides = &runnable->source_strides[a - schedule->uses],
        .nsrc = count,
        .rows = d->range.rows,
        .cols = d->range.row_bytes / lap_dtype_size(d->dtype),
        .finish = lap_bind_finish(issue->binding, schedule, &d->range, d->dtype,
                                  &runnable->finishes[index]),
        .aux = lap_bind_aux(issue->binding, schedule, &d->range),
        .together = goes_together(issue, step),
    };
    if (nscales > 0)
        reduce.scales = (const float *const *)(const void *)bind_sources(issue, scales, nscales);
    reduce.dst = lap_bind_range(issue->binding, &d->range, &reduce.dst_stride);
    return issue->device->reduce(stream, &reduce);
}

static lap_status_t issue_sums(issue_t *issue, const lap_step_t *step, lap_stream_t *stream)
{
    const lap_binding_t *binding = issue->binding;
    uint32_t one;
    const lap_use_t *src = lap_step_uses(&issue->runnable->schedule, step, LAP_ROLE_A, &one);
    const bool of_d = src->range.place == LAP_OUTPUT; /* else of a */
    lap_column_sums_t sums = {
        .from = src->dtype,
        .to = binding->bias_grad.dtype,
        .rows = src->range.rows,
        .cols = binding->bias_grad.cols,
        .scale = of_d ? binding->d_scale : binding->a_scale,
        .scaled_by = of_d ? NULL : binding->a_scale_ptr,
        .dst = binding->bias_grad.data,
    };
    sums.src = lap_bind_range(binding, &src->range, &sums.src_stride);
    return issue->device->column_sums(stream, &sums);
}

static lap_status_t issue_put(issue_t *issue, uint32_t index, lap_stream_t *stream,
                              lap_trace_record_t *record)
{
    lap_buffer_t *buffer = issue->binding->buffer;
    const lap_step_t *step = &issue->runnable->schedule.steps[index];
    const lap_range_t *src = lap_step_range(&issue->runnable->schedule, step, LAP_ROLE_A),
                      *dst = lap_step_range(&issue->runnable->schedule, step, LAP_ROLE_D);
    lap_put_t put = {
        .offset = dst->offset,
        .dst_stride = dst->stride,
        .rows = src->rows,
        .row_bytes = src->row_bytes,
        .peer = step->signal.peer,
        .signal = step->signal.word,
        .tag = issue->runnable->reasons[index].tag,
        .span = record ? &record->flight : NULL,
        .sms = issue->binding->copy_sms,
        .together = goes_together(issue, step),
    };
    put.src = lap_bind_range(issue->binding, src, &put.src_stride);
    return buffer->ops->put(buffer, issue->device, stream, &put);
}

static lap_status_t issue_raise(issue_t *issue, uint32_t index, lap_stream_t *stream,
                                lap_trace_record_t *record)
{
    lap_buffer_t *buffer = issue->binding->buffer;
    const lap_step_t *step = &issue->runnable->schedule.steps[index];
    const lap_raise_t raise = {
        .peer = step->signal.peer,
        .signal = step->signal.word,
        .tag = issue->runnable->reasons[index].tag,
        .bytes = step->signal.bytes,
        .span = record && step->signal.bytes ? &record->flight : NULL,
    };
    return buffer->ops->raise(buffer, issue->device, stream, &raise);
}

static lap_status_t issue_wait(issue_t *issue, uint32_t index, lap_stream_t *stream)
{
    lap_buffer_t *buffer = issue->binding->buffer;
    const lap_step_t *step = &issue->runnable->schedule.steps[index];
    const lap_wait_t wait = {
        .peer = step->signal.peer,
        .signal = step->signal.word,
        .target = buffer->consumed[step->signal.word] + step->signal.count,
        .reason = &issue->runnable->reasons[index],
        .count = step->signal.count,
    };
    return buffer->ops->wait(buffer, issue->device, stream, &wait);
}

static lap_status_t issue_copy(issue_t *issue, const lap_step_t *step, lap_stream_t *stream)
{
    lap_copy_t copy = lap_bind_copy(issue->binding, &issue->runnable->schedule, step);
    copy.together = goes_together(issue, step);
    return issue->device->copy(stream, &copy);
}

static lap_status_t issue_consume(issue_t *issue, lap_stream_t *stream)
{
    lap_buffer_t *buffer = issue->binding->buffer;
    const lap_schedule_t *schedule = &issue->runnable->schedule;
    return buffer->ops->end_signals(buffer, issue->device, stream, schedule->raised,
                                    schedule->nsignals);
}

static lap_status_t issue_foreign(issue_t *issue, lap_stream_t *stream)
{
    const lap_binding_t *binding = issue->binding;
    const lap_foreign_args_t args = {.a = binding->places[LAP_INPUT].base,
                                     .b = binding->places[LAP_WEIGHT].base,
                                     .d = binding->places[LAP_OUTPUT].base,
                                     .alpha = binding->scale,
                                     .a_scale = binding->a_scale_ptr,
                                     .b_scale = binding->b_scale_ptr,
                                     .bias = binding->bias.data,
                                     .aux = binding->aux.data};
    return binding->foreign->run(binding->foreign, stream, &args);
}

static lap_status_t issue_kind(issue_t *issue, uint32_t index, lap_stream_t *stream,
                               lap_trace_record_t *record)
{
    const lap_step_t *step = &issue->runnable->schedule.steps[index];
    switch (step->kind) {
    case LAP_STEP_GEMM:
        return issue_gemm(issue, index, stream);
    case LAP_STEP_PUT:
        return issue_put(issue, index, stream, record);
    case LAP_STEP_RAISE:
        return issue_raise(issue, index, stream, record);
    case LAP_STEP_WAIT:
        return issue_wait(issue, index, stream);
    case LAP_STEP_REDUCE:
        return issue_reduce(issue, index, stream);
    case LAP_STEP_COPY:
        return issue_copy(issue, step, stream);
    case LAP_STEP_SUMS:
        return issue_sums(issue, step, stream);
    case LAP_STEP_KERNEL:
        return issue_foreign(issue, stream);
    case LAP_STEP_CONSUME:
        return issue_consume(issue, stream);
    default:
        break;
    }
    return lap_error(LAP_ERR_INTERNAL, "step %u is of unknown kind %d", index, (int)step->kind);
}

static lap_status_t sleep_a_while(void *arg)
{
    lap_sleep_until_ns(lap_now_ns() + *(uint64_t *)arg);
    return LAP_OK;
}

/* Before one step in four, a delay of up to 0.3 ms: arrivals then come in every order. */
static lap_status_t issue_chaos(issue_t *issue, lap_stream_t *stream)
{
    issue->chaos = issue->chaos * 6364136223846793005u + 1442695040888963407u;
    uint64_t dice = issue->chaos >> 33;
    if (dice % 4 != 0)
        return LAP_OK;
    const uint64_t delay_ns = dice / 4 % 300000;
    return issue->device->stream_call(stream, sleep_a_while, &delay_ns, sizeof(delay_ns));
}

static lap_status_t issue_step(issue_t *issue, uint32_t index)
{
    lap_runnable_t *runnable = issue->runnable;
    const lap_step_t *step = &runnable->schedule.steps[index];
    lap_stream_t *stream = runnable->engine->streams[step->stream];
    if (issue->links)
        LAP_TRY(issue->links->before(issue->links->context, index, stream));
    for (uint16_t d = 0; d < step->ndeps; d++) {
        lap_event_t *event = runnable->events[lap_step_dep(&runnable->schedule, step, d)];
        LAP_TRY(issue->device->stream_wait_event(stream, event));
    }
    if (issue->chaos)
        LAP_TRY(issue_chaos(issue, stream));
    lap_trace_record_t *record = NULL; /* a GEMM's blocks have their own */
    if (issue->record && step->kind != LAP_STEP_GEMM && step->kind != LAP_STEP_CONSUME)
        record = issue->record++;
    if (record) {
        lap_record_step(&issue->runnable->schedule, index, record);
        LAP_TRY(issue->device->stamp_delay(stream, &record->delays.before));
        LAP_TRY(issue->device->stamp(stream, &record->span.begin));
    }
    LAP_TRY(issue_kind(issue, index, stream, record));
    if (record) {
        LAP_TRY(issue->device->stamp(stream, &record->span.end));
        LAP_TRY(issue->device->stamp_delay(stream, &record->delays.running));
    }
    return runnable->events[index] ? issue->device->event_record(runnable->events[index], stream)
                                   : LAP_OK;
}

/* The same for a profiler to see. */
static lap_status_t issue_marked(issue_t *issue, uint32_t index)
{
    lap_marks_t *marks = issue->runnable->engine->marks;
    char name[32];
    snprintf(name, sizeof(name), "%s %u",
             lap_step_kind_name(issue->runnable->schedule.steps[index].kind), index);
    lap_marks_push(marks, name);
    const lap_status_t status = issue_step(issue, index);
    lap_marks_pop(marks);
    return status;
}

/* Where calls are counted by streams, the first one ends after all of a call. */
static lap_status_t end_call(const issue_t *issue)
{
    const lap_runnable_t *runnable = issue->runnable;
    const lap_engine_t *engine = runnable->engine;
    const lap_buffer_t *buffer = issue->binding->buffer;
    lap_stream_t *streams[LAP_STREAMS];
    int first;
    if (!buffer || !issue->device->facts.counts_signals ||
        lap_runnable_streams(runnable, streams, &first) == 0)
        return LAP_OK;
    for (int s = first + 1; s < LAP_STREAMS; s++)
        if (runnable->ends[s])
            LAP_TRY(follow(issue, engine->call_ends[s], engine->streams[s], streams[0]));
    return LAP_OK;
}

/*
 * The scale of what this rank sends is written on each stream before that can read it; all write
 * the same, after all that read the one before.
 */
static lap_status_t set_scale(const issue_t *issue)
{
    lap_stream_t *streams[LAP_STREAMS];
    int first;
    if (!issue->runnable->sends_scale || !issue->binding->sets_scale ||
        !issue->device->transport) /* memory of the host: see lap_op_bind */
        return LAP_OK;
    float *scale = (float *)(void *)issue->binding->places[LAP_SCALE].base;
    const size_t count = lap_runnable_streams(issue->runnable, streams, &first);
    for (size_t i = 0; i < count; i++)
        LAP_TRY(issue->device->set(streams[i], scale, issue->binding->sent_scale));
    return LAP_OK;
}

static lap_status_t walk(issue_t *issue)
{
    lap_runnable_t *runnable = issue->runnable;
    LAP_TRY(set_scale(issue));
    for (uint32_t i = 0; i < runnable->schedule.nsteps; i++)
        LAP_TRY(runnable->engine->marks ? issue_marked(issue, i) : issue_step(issue, i));
    return LAP_OK;
}

static issue_t begin_issue(lap_runnable_t *runnable, const lap_binding_t *binding)
{
    return (issue_t){
        .runnable = runnable,
        .binding = binding,
        .device = runnable->engine->device->ops,
        .record = binding->traced ? runnable->records : NULL,
        .chaos = binding->chaos,
    };
}

/* What cannot be done once a wait has been issued comes before all of them. */
lap_status_t lap_runnable_issue_steps(lap_runnable_t *runnable, const lap_binding_t *binding)
{
    LAP_TRY(lap_runnable_prepare(runnable, binding, false));
    issue_t issue = begin_issue(runnable, binding);
    LAP_TRY(walk(&issue));
    return end_call(&issue);
}

lap_status_t lap_runnable_issue_linked(lap_runnable_t *runnable, const lap_binding_t *binding,
                                       const lap_links_t *links)
{
    issue_t issue = begin_issue(runnable, binding);
    issue.links = links;
    return walk(&issue);
}

lap_status_t lap_runnable_prepare(lap_runnable_t *runnable, const lap_binding_t *binding,
                                  bool tries)
{
    issue_t issue = {
        .runnable = runnable,
        .binding = binding,
        .device = runnable->engine->device->ops,
    };
    const lap_schedule_t *schedule = &runnable->schedule;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        if (step->ntiles == 0)
            continue;
        const lap_gemm_t gemm = bind_gemm(&issue, i);
        LAP_TRY(issue.device->gemm_prepare(runnable->engine->streams[step->stream], &gemm, tries));
    }
    return LAP_OK;
}
