/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planned step as a timeline: a rank for each rank of the pipeline, which stands for all that do
 * the same. Actions of the table are kernels, messages are puts that release the actions that need
 * them; then come gradients on their way to replicas, and the optimizer.
 */
#include <stdio.h>
#include <string.h>

#include "plan/step.h"
#include "plan/step_trace.h"

#define NS 1e9

enum { COMPUTE_STREAM = 0, FORWARD_STREAM, BACKWARD_STREAM, REPLICAS_STREAM };

typedef struct writer {
    const lap_plan_state_t *state;
    const lap_pipeline_t *pipeline;
    const lap_pipe_times_t *times;
    lap_trace_t *timeline;
    uint64_t free; /* when the rank has ended the action before */
} writer_t;

static const char *const works[LAP_PIPE_WORKS] = {"forward", "backward", "input gradient",
                                                  "weight gradient"};

/* The number of the message of an action, for both of its ends. */
static uint32_t message_of(const writer_t *writer, const lap_pipe_action_t *action, uint32_t stage)
{
    const uint32_t back = action->work != LAP_PIPE_FORWARD;
    return (action->micro * (uint32_t)writer->state->nstages + stage) * 2 + back;
}

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * NS) + 1; /* 0 is no time */
}

static lap_trace_record_t record_of(uint32_t rank, lap_step_kind_t kind, uint32_t stream,
                                    double begin, double end)
{
    lap_trace_record_t record = {.rank = (int32_t)rank,
                                 .kind = kind,
                                 .stream = stream,
                                 .peer = -1,
                                 .signal = LAP_NO_SIGNAL,
                                 .from = -1,
                                 .awaited = LAP_NO_SIGNAL,
                                 .layer = -1};
    record.span.ready = record.span.begin = ns_of(begin);
    record.span.end = ns_of(end);
    return record;
}

/* The stage that an action's result goes to, or comes from; false: it stays on its rank. */
static bool find_other(const writer_t *writer, const lap_pipe_action_t *action, bool receives,
                       uint32_t *stage_p)
{
    const bool forward = action->work == LAP_PIPE_FORWARD;
    const bool up = forward != receives;
    const uint32_t stages = (uint32_t)writer->state->nstages;
    if (action->work == LAP_PIPE_WEIGHT_GRAD ||
        (up ? action->stage + 1 == stages : action->stage == 0))
        return false;
    *stage_p = up ? action->stage + 1 : action->stage - 1;
    return lap_plan_rank_of(writer->state, *stage_p) !=
           lap_plan_rank_of(writer->state, action->stage);
}

static void add_message(writer_t *writer, uint32_t rank, const lap_pipe_action_t *action,
                        double end)
{
    const lap_plan_state_t *state = writer->state;
    const bool forward = action->work == LAP_PIPE_FORWARD;
    uint32_t other;
    if (!find_other(writer, action, false, &other))
        return;
    lap_trace_record_t record =
        record_of(rank, LAP_STEP_PUT, forward ? FORWARD_STREAM : BACKWARD_STREAM, end,
                  end + state->message_s);
    record.peer = (int32_t)lap_plan_rank_of(state, other);
    record.call = message_of(writer, action, action->stage);
    record.group.size = 2;
    record.signal = 0;
    record.bytes = (uint64_t)state->message_bytes;
    record.flight = record.span;
    record.traffic = LAP_TRAFFIC_PP;
    snprintf(record.name, sizeof(record.name), "%s", forward ? "activations" : "gradients");
    snprintf(record.op, sizeof(record.op), "to stage %u", (unsigned)other);
    lap_trace_add(writer->timeline, &record);
}

static void add_action(writer_t *writer, uint32_t rank, uint32_t index)
{
    const lap_plan_state_t *state = writer->state;
    const lap_pipe_action_t *action = &writer->pipeline->rows[rank].actions[index];
    const lap_pipe_costs_t costs = {.stages = state->costs};
    const double begin = writer->times->begins[rank][index];
    const double end = begin + lap_pipe_cost(&costs, action);
    lap_trace_record_t record = record_of(rank, LAP_STEP_KERNEL, COMPUTE_STREAM, begin, end);
    char text[LAP_PIPE_TEXT];
    uint32_t other;
    record.span.ready = index > 0 ? writer->free : ns_of(0);
    writer->free = record.span.end;
    if (find_other(writer, action, true, &other)) {
        record.from = (int32_t)lap_plan_rank_of(state, other);
        record.call = message_of(writer, action, other);
        record.group.size = 2;
        record.awaited = 0;
        record.count = 1;
    }
    snprintf(record.name, sizeof(record.name), "%s", lap_pipe_text(action, text));
    snprintf(record.op, sizeof(record.op), "%s", works[action->work]);
    lap_trace_add(writer->timeline, &record);
    add_message(writer, rank, action, end);
}

/* What is after the last backward of all ranks. */
static void add_end(writer_t *writer, uint32_t rank, const lap_plan_result_t *result)
{
    const double end = writer->times->span;
    const double exposed = result->exposed[LAP_PLAN_DP];
    const double hidden = result->hidden[LAP_PLAN_DP];
    if (exposed + hidden > 0) {
        lap_trace_record_t record = record_of(rank, LAP_STEP_PUT, REPLICAS_STREAM,
                                              end > hidden ? end - hidden : 0, end + exposed);
        record.traffic = LAP_TRAFFIC_DP;
        record.flight = record.span;
        snprintf(record.name, sizeof(record.name), "replicas");
        snprintf(record.op, sizeof(record.op), "gradients and weights");
        lap_trace_add(writer->timeline, &record);
    }
    lap_trace_record_t record = record_of(rank, LAP_STEP_KERNEL, COMPUTE_STREAM, end + exposed,
                                          end + exposed + result->exposed[LAP_PLAN_OPTIMIZER]);
    snprintf(record.name, sizeof(record.name), "optimizer");
    snprintf(record.op, sizeof(record.op), "adamw");
    lap_trace_add(writer->timeline, &record);
}

static lap_status_t fill(lap_plan_state_t *state, const lap_plan_result_t *result,
                         lap_trace_t *timeline)
{
    const lap_plan_config_t *config = state->config;
    const lap_pipe_costs_t costs = {.message = config->pp_overlap ? state->message_s : 0,
                                    .stages = state->costs};
    lap_pipeline_t pipeline;
    lap_pipe_times_t times = {.span = 0};
    lap_status_t status =
        lap_pipeline_build(config->schedule, (uint32_t)config->pp, (uint32_t)config->virtual_pp,
                           (uint32_t)state->micros, &pipeline);
    if (status == LAP_OK)
        status = lap_pipeline_simulate(&pipeline, &costs, &times);
    writer_t writer = {state, &pipeline, &times, timeline, 0};
    for (uint32_t r = 0; status == LAP_OK && r < pipeline.ranks; r++) {
        for (uint32_t i = 0; i < pipeline.rows[r].nactions; i++)
            add_action(&writer, r, i);
        add_end(&writer, r, result);
    }
    lap_pipe_times_clear(&times, pipeline.ranks);
    lap_pipeline_clear(&pipeline);
    return status;
}

lap_status_t lap_plan_timeline(const lap_plan_config_t *config, const lap_machine_t *machine,
                               const lap_plan_result_t *result, lap_trace_t *timeline)
{
    lap_plan_layer_t layer;
    lap_plan_state_t state;
    LAP_TRY(lap_plan_layer(config, machine, &layer));
    lap_status_t status = lap_plan_state_init(&state, config, machine, &layer);
    if (status == LAP_OK)
        status = fill(&state, result, timeline);
    lap_plan_state_clear(&state);
    return status;
}
