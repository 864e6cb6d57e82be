/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step: micro-batches go through the table of the pipeline, whose stages are layers; gradients go
 * to replicas in buckets while the last backward runs, weights come back while the first forward
 * does; the optimizer is between the two.
 */
#include <math.h>
#include <string.h>

#include <lap/tensor.h>

#include "core/status.h"
#include "nn/nn_fields.h"
#include "plan/step.h"
#include "util/alloc.h"

#define LAYERS_MOST 16384

const char *const lap_plan_kind_names[LAP_PLAN_KINDS + 1] = {
    "compute", "tp", "cp", "pp bubble", "pp", "dp", "optimizer", NULL};
const char *const lap_plan_memory_names[LAP_PLAN_MEMORIES + 1] = {
    "weights", "gradients", "optimizer", "activations", "work", "reserved", NULL};

lap_plan_config_t lap_plan_config(const lap_nn_desc_t *model)
{
    return (lap_plan_config_t){
        .model = *model,
        .type = LAP_PLAN_BF16,
        .gpus = 1,
        .tp = 1,
        .pp = 1,
        .cp = 1,
        .dp = 1,
        .virtual_pp = 1,
        .schedule = "1f1b",
        .micro_batch = 1,
        .global_batch = 1,
        .tp_overlap = true,
        .cp_overlap = true,
        .dp_overlap = true,
        .pp_overlap = true,
        .sequence_parallel = true,
        .sharded_optimizer = true,
        .grad_bytes = 4,
    };
}

/* ---- whether it is a grid ---- */

static lap_status_t check_divides(const char *what, size_t value, const char *by, size_t divisor)
{
    if (divisor == 0 || value % divisor != 0)
        return lap_error(LAP_ERR_INVALID, "%s is %zu, expected a multiple of %s, %zu", what, value,
                         by, divisor);
    return LAP_OK;
}

lap_status_t lap_plan_check_sizes(const lap_plan_config_t *config)
{
    const lap_nn_desc_t *model = &config->model;
    if (model->layers < 1 || model->layers > LAYERS_MOST)
        return lap_error(LAP_ERR_INVALID, "layers is %zu, expected 1 to %d", model->layers,
                         LAYERS_MOST);
    if (config->gpus < 1 || config->gpus > LAP_PLAN_GPUS_MOST)
        return lap_error(LAP_ERR_INVALID, "gpus is %zu, expected 1 to %d", config->gpus,
                         LAP_PLAN_GPUS_MOST);
    if (config->global_batch < 1 || config->global_batch > LAP_PLAN_BATCH_MOST)
        return lap_error(LAP_ERR_INVALID, "global-batch is %zu, expected 1 to %d",
                         config->global_batch, LAP_PLAN_BATCH_MOST);
    return LAP_OK;
}

lap_status_t lap_plan_check_type(const lap_plan_config_t *config, const lap_machine_t *machine)
{
    if (machine->peak[config->type] <= 0)
        return lap_error(LAP_ERR_INVALID, "%s multiplies no %s: it has no peak_tflops of it",
                         machine->name, lap_plan_type_names[config->type]);
    return LAP_OK;
}

void lap_plan_grid_text(const lap_plan_config_t *config, char text[LAP_PLAN_GRID_TEXT])
{
    const char *const names[] = {"tp", "pp", "cp", "dp"};
    const size_t sizes[] = {config->tp, config->pp, config->cp, config->dp};
    size_t used = 0;
    *text = '\0';
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && used < LAP_PLAN_GRID_TEXT; i++)
        if (sizes[i] > 0)
            used += (size_t)snprintf(text + used, LAP_PLAN_GRID_TEXT - used, "%s%s %zu",
                                     used ? ", " : "", names[i], sizes[i]);
}

lap_status_t lap_plan_check(const lap_plan_config_t *config, const lap_machine_t *machine)
{
    char grid[LAP_PLAN_GRID_TEXT];
    const lap_nn_desc_t *model = &config->model;
    LAP_TRY(lap_plan_check_sizes(config));
    LAP_TRY(lap_plan_check_type(config, machine));
    if (config->micro_batch == 0 || config->virtual_pp == 0)
        return lap_error(LAP_ERR_INVALID,
                         "micro-batch and virtual-pp are %zu and %zu, expected at least 1 of each",
                         config->micro_batch, config->virtual_pp);
    lap_plan_grid_text(config, grid);
    if (config->tp * config->pp * config->cp * config->dp != config->gpus)
        return lap_error(LAP_ERR_INVALID,
                         "the grid is %s, expected the %zu GPUs as the product of its sizes", grid,
                         config->gpus);
    if (config->virtual_pp > 1 && config->pp == 1)
        return lap_error(LAP_ERR_INVALID,
                         "virtual-pp is %zu with pp 1, expected 1: a pipeline has more than a rank",
                         config->virtual_pp);
    LAP_TRY(check_divides("heads", model->heads, "tp", config->tp));
    LAP_TRY(check_divides("kv_heads", lap_nn_kv_heads(model), "tp", config->tp));
    if (model->head_dim == 0)
        return lap_error(LAP_ERR_INVALID, "hidden is %zu, expected a multiple of heads, %zu",
                         model->hidden, model->heads);
    LAP_TRY(check_divides("seq", model->seq, "cp", config->cp));
    if (config->cp > 1)
        LAP_TRY(check_divides("seq", model->seq, "2 * cp", 2 * config->cp));
    LAP_TRY(check_divides("global-batch", config->global_batch, "dp * micro-batch",
                          config->dp * config->micro_batch));
    if (config->pp * config->virtual_pp > model->layers + 2)
        return lap_error(LAP_ERR_INVALID,
                         "pp * virtual-pp is %zu * %zu, expected at most the %zu layers and two",
                         config->pp, config->virtual_pp, model->layers);
    return LAP_OK;
}

/* ---- FLOPs ---- */

double lap_plan_flops(const lap_plan_config_t *config, bool causal)
{
    const lap_nn_desc_t *model = &config->model;
    const double h = (double)model->hidden, ffn = (double)model->ffn, seq = (double)model->seq;
    const double kv = (double)lap_nn_kv_heads(model);
    const double dim = (double)model->head_dim;
    const double queries = dim * (double)model->heads;
    const double gated = model->activation == LAP_SWIGLU ? 3 : 2;
    const double weights = h * (queries + 2 * kv * dim) + queries * h + gated * h * ffn;
    const double scores = 2 * seq * queries * (causal ? 0.5 : 1); /* of both products, per token */
    const double token = (double)model->layers * (weights + scores) + h * (double)model->vocab;
    return 6 * token * (double)config->global_batch * seq;
}

/* ---- stages ---- */

size_t lap_plan_stages(const lap_plan_config_t *config)
{
    return config->pp * (strcmp(config->schedule, "zb-v") == 0 ? 2 : config->virtual_pp);
}

size_t lap_plan_stage_layers(const lap_plan_config_t *config, size_t stage)
{
    const size_t all = config->model.layers, nstages = lap_plan_stages(config);
    const bool both = nstages > 1 && all % nstages != 0 && (all + 2) % nstages == 0;
    if (!both)
        return lap_shard(all, (int)nstages, (int)stage, NULL);
    return (all + 2) / nstages - (stage == 0 || stage + 1 == nstages);
}

static void add_span(lap_plan_span_t *sum, const lap_plan_span_t *part, double times)
{
    sum->seconds += times * part->seconds;
    sum->compute += times * part->compute;
    sum->tp += times * part->tp;
    sum->cp += times * part->cp;
    sum->tp_s += times * part->tp_s;
    sum->cp_s += times * part->cp_s;
}

lap_plan_span_t lap_plan_stage_span(const lap_plan_state_t *state, size_t stage, int pass)
{
    lap_plan_span_t span = {.seconds = 0};
    add_span(&span, &state->layer->layer[pass], (double)state->layers[stage]);
    if (stage == 0)
        add_span(&span, &state->layer->embedding[pass], 1);
    if (stage + 1 == state->nstages)
        add_span(&span, &state->layer->head[pass], 1);
    return span;
}

size_t lap_plan_rank_of(const lap_plan_state_t *state, size_t stage)
{
    const size_t pp = state->config->pp;
    if (strcmp(state->config->schedule, "zb-v") == 0)
        return stage < pp ? stage : 2 * pp - 1 - stage;
    return stage % pp;
}

double lap_plan_stage_weights(const lap_plan_state_t *state, size_t stage)
{
    const lap_plan_layer_t *layer = state->layer;
    const bool last = stage + 1 == state->nstages;
    double weights = (double)state->layers[stage] * layer->weights;
    weights += stage == 0 ? layer->embedding_weights : 0;
    weights += last ? layer->head_weights : 0;
    /* Both ends have the table of a model that shares it. */
    weights +=
        last && state->nstages > 1 && state->config->model.tied ? layer->embedding_weights : 0;
    return weights;
}

/* Of the rank that has most. */
static double most_weights(const lap_plan_state_t *state)
{
    double most = 0;
    for (size_t s = 0; s < state->nstages; s++)
        state->of_ranks[lap_plan_rank_of(state, s)] += lap_plan_stage_weights(state, s);
    for (size_t r = 0; r < state->config->pp; r++) {
        most = fmax(most, state->of_ranks[r]);
        state->of_ranks[r] = 0;
    }
    return most;
}

double lap_plan_rank_weights(const lap_plan_state_t *state, size_t rank)
{
    double weights = 0;
    for (size_t s = 0; s < state->nstages; s++)
        weights += lap_plan_rank_of(state, s) == rank ? lap_plan_stage_weights(state, s) : 0;
    return weights;
}

/* ---- the pipeline ---- */

static void set_message(lap_plan_state_t *state)
{
    const lap_plan_config_t *config = state->config;
    const lap_machine_t *machine = state->machine;
    const lap_plan_wire_t *wire = lap_machine_wire(machine, config->gpus);
    if (config->pp <= 1)
        return;
    state->message_bytes = (double)config->model.seq / (double)config->cp *
                           (double)config->micro_batch * (double)config->model.hidden /
                           (double)config->tp * 2;
    state->message_s = state->message_bytes / lap_wire_rate(wire) + wire->latency_s;
}

/* Messages that are not overlapped take the time of the rank. */
static void set_stages(lap_plan_state_t *state)
{
    const double blocking = state->config->pp_overlap ? 0 : state->message_s;
    for (size_t s = 0; s < state->nstages; s++) {
        const double forward = lap_plan_stage_span(state, s, LAP_PLAN_FORWARD).seconds;
        const double backward = lap_plan_stage_span(state, s, LAP_PLAN_BACKWARD).seconds;
        const double weights = (double)state->layers[s] * state->layer->weight_grad;
        state->costs[s] = (lap_pipe_costs_t){.forward = forward + blocking,
                                             .input_grad = backward - weights + blocking,
                                             .weight_grad = weights};
    }
}

static lap_status_t run_table(lap_plan_state_t *state, size_t micros, double message_s,
                              double *span_p)
{
    const lap_plan_config_t *config = state->config;
    lap_pipeline_t pipeline;
    lap_pipe_times_t times = {.span = 0};
    const lap_pipe_costs_t costs = {.message = message_s, .stages = state->costs};
    lap_status_t status =
        lap_pipeline_build(config->schedule, (uint32_t)config->pp, (uint32_t)config->virtual_pp,
                           (uint32_t)micros, &pipeline);
    if (status == LAP_OK)
        status = lap_pipeline_simulate_ranks(&pipeline, &costs, &times);
    for (size_t r = 0; status == LAP_OK && r < config->pp; r++)
        if (times.ranks[r].busy > times.ranks[state->rank].busy)
            state->rank = r;
    *span_p = times.span;
    lap_pipe_times_clear(&times, pipeline.ranks);
    lap_pipeline_clear(&pipeline);
    return status;
}

/*
 * In its middle a pipeline repeats itself: of many micro-batches only some are played. Interleaved wants a
 * multiple of the ranks, and says what is wrong with others.
 */
static bool plays_some(const lap_plan_config_t *config, size_t micros)
{
    const size_t pp = config->pp;
    return micros > 4 * pp && (micros % pp == 0 || config->virtual_pp == 1);
}

static lap_status_t span_of(lap_plan_state_t *state, double message_s, double *span_p)
{
    const size_t pp = state->config->pp, few = 2 * pp, more = 3 * pp;
    double first, second;
    if (!plays_some(state->config, state->micros))
        return run_table(state, state->micros, message_s, span_p);
    LAP_TRY(run_table(state, few, message_s, &first));
    LAP_TRY(run_table(state, more, message_s, &second));
    *span_p = first + (second - first) / (double)pp * (double)(state->micros - few);
    return LAP_OK;
}

static size_t micros_of(const lap_plan_config_t *config)
{
    return config->global_batch / config->dp / config->micro_batch;
}

lap_plan_table_t lap_plan_table(const lap_plan_config_t *config)
{
    const size_t micros = micros_of(config);
    return (lap_plan_table_t){config->schedule, config->pp, config->virtual_pp,
                              plays_some(config, micros) ? 3 * config->pp : micros};
}

lap_status_t lap_plan_most_live(const lap_plan_table_t *table, size_t *most_live_p)
{
    lap_pipeline_t pipeline;
    *most_live_p = 1;
    if (table->pp <= 1)
        return LAP_OK;
    const lap_status_t status =
        lap_pipeline_build(table->schedule, (uint32_t)table->pp, (uint32_t)table->virtual_pp,
                           (uint32_t)table->micros, &pipeline);
    for (uint32_t r = 0; status == LAP_OK && r < pipeline.ranks; r++) {
        const size_t live = lap_pipe_most_live(&pipeline.rows[r]);
        *most_live_p = live > *most_live_p ? live : *most_live_p;
    }
    lap_pipeline_clear(&pipeline);
    return status;
}

/* Not `whole`: messages that nobody waits for are not told from the bubble. */
static lap_status_t play_pipeline(lap_plan_state_t *state, bool whole)
{
    const double message_s = state->config->pp_overlap ? state->message_s : 0;
    if (state->config->pp <= 1) {
        const lap_pipe_costs_t *only = &state->costs[0];
        state->span = state->fast_span =
            (double)state->micros * (only->forward + only->input_grad + only->weight_grad);
        return LAP_OK;
    }
    if (state->span == 0)
        LAP_TRY(span_of(state, message_s, &state->span));
    if (whole && message_s > 0)
        return span_of(state, 0, &state->fast_span);
    state->fast_span = state->span;
    return LAP_OK;
}

/*
 * Where each rank has one stage: until its first gradient has come back, the first rank has only gone forward, for no
 * more micro-batches than it holds at once.
 */
static double least_of_first(const lap_plan_state_t *state, double message_s)
{
    const lap_pipe_costs_t *first = &state->costs[0];
    const double micros = (double)state->micros, live = fmin(micros, (double)state->most_live);
    double way = 2 * message_s * (double)(state->nstages - 1);
    for (size_t s = 0; s < state->nstages; s++)
        way += state->costs[s].forward + state->costs[s].input_grad;
    return way + (micros - live) * first->forward + (micros - 1) * first->input_grad +
           micros * first->weight_grad;
}

/*
 * A rank begins when the stages before its first one have gone forward once, and does all of its work. Where
 * gradients of weights are not put off, the stages before have their backward after it.
 */
static double least_span(lap_plan_state_t *state)
{
    const bool puts_off = strncmp(state->config->schedule, "zb-", 3) == 0;
    const double message_s = state->config->pp_overlap ? state->message_s : 0;
    double before = 0;
    double least = state->nstages == state->config->pp ? least_of_first(state, message_s) : 0;
    for (size_t s = 0; s < state->nstages; s++) {
        const lap_pipe_costs_t *costs = &state->costs[s];
        state->of_ranks[lap_plan_rank_of(state, s)] +=
            costs->forward + costs->input_grad + costs->weight_grad;
    }
    for (size_t r = 0; r < state->config->pp; r++) { /* the first stage of a rank has its number */
        const lap_pipe_costs_t *costs = &state->costs[r];
        least = fmax(least, before + state->of_ranks[r] * (double)state->micros);
        before += costs->forward + message_s;
        before += puts_off ? 0 : costs->input_grad + costs->weight_grad + message_s;
        state->of_ranks[r] = 0;
    }
    return least;
}

/* ---- results ---- */

static void add_passes(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    lap_plan_span_t sum = {.seconds = 0};
    double stages = 0;
    for (size_t s = 0; s < state->nstages; s++)
        for (int pass = 0; pass < LAP_PLAN_PASSES && lap_plan_rank_of(state, s) == state->rank;
             pass++) {
            const lap_plan_span_t span = lap_plan_stage_span(state, s, pass);
            add_span(&sum, &span, (double)state->micros);
            stages++;
        }
    const double messages = state->message_s * stages * (double)state->micros;
    const double blocking = state->config->pp_overlap ? 0 : messages;
    const double waiting = state->span - state->fast_span;
    result->exposed[LAP_PLAN_COMPUTE] = sum.compute;
    result->exposed[LAP_PLAN_TP] = sum.tp;
    result->exposed[LAP_PLAN_CP] = sum.cp;
    result->hidden[LAP_PLAN_TP] = fmax(0, sum.tp_s - sum.tp);
    result->hidden[LAP_PLAN_CP] = fmax(0, sum.cp_s - sum.cp);
    result->exposed[LAP_PLAN_PP] = blocking + waiting;
    result->hidden[LAP_PLAN_PP] = fmax(0, messages - blocking - waiting);
    result->exposed[LAP_PLAN_BUBBLE] = fmax(0, state->fast_span - sum.seconds - blocking);
}

static void add_memory(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    const lap_plan_config_t *config = state->config;
    const lap_plan_layer_t *layer = state->layer;
    const double shards = lap_plan_group_size(state);
    const double weights = most_weights(state);
    double layers = 0;
    for (size_t s = 0; s < state->nstages; s++)
        layers = fmax(layers, (double)state->layers[s]);
    double *bytes = result->bytes;
    bytes[LAP_PLAN_WEIGHTS] = weights * layer->weight_bytes / (config->fsdp ? shards : 1);
    bytes[LAP_PLAN_GRADIENTS] = weights * 4 / (config->fsdp ? shards : 1);
    bytes[LAP_PLAN_STATE] = weights * 12 / (config->fsdp || config->sharded_optimizer ? shards : 1);
    bytes[LAP_PLAN_ACTIVATIONS] = (double)state->most_live * layers * layer->saved_bytes;
    bytes[LAP_PLAN_WORK] = layer->work_bytes + (config->fsdp ? 4 * layer->weights : 0);
    bytes[LAP_PLAN_RESERVED] = state->machine->reserved_bytes;
    for (int i = 0; i < LAP_PLAN_MEMORIES; i++)
        result->total_bytes += bytes[i];
    result->fits = result->total_bytes <= state->machine->memory_bytes;
}

static void add_rates(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    const lap_plan_config_t *config = state->config;
    const double peak = state->machine->peak[config->type] * (double)config->gpus;
    for (int i = 0; i < LAP_PLAN_KINDS; i++)
        result->seconds += result->exposed[i];
    result->tokens_per_s =
        (double)config->global_batch * (double)config->model.seq / result->seconds;
    result->model_flops = lap_plan_flops(config, true);
    result->mfu = result->model_flops / result->seconds / peak;
    result->mfu_full = lap_plan_flops(config, false) / result->seconds / peak;
    result->micro_batches = state->micros;
    for (size_t s = 0; s < state->nstages; s++)
        if (lap_plan_rank_of(state, s) == state->rank)
            result->layers_most += state->layers[s];
}

lap_status_t lap_plan_state_init(lap_plan_state_t *state, const lap_plan_config_t *config,
                                 const lap_machine_t *machine, const lap_plan_layer_t *layer)
{
    *state = (lap_plan_state_t){.config = config, .machine = machine, .layer = layer};
    state->nstages = lap_plan_stages(config);
    state->micros = micros_of(config);
    state->layers = lap_alloc(state->nstages, sizeof(*state->layers));
    state->costs = lap_alloc(state->nstages, sizeof(*state->costs));
    state->of_ranks = lap_alloc(config->pp, sizeof(*state->of_ranks));
    if (!state->layers || !state->costs || !state->of_ranks)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu stages", state->nstages);
    for (size_t s = 0; s < state->nstages; s++)
        state->layers[s] = lap_plan_stage_layers(config, s);
    set_message(state);
    set_stages(state);
    return LAP_OK;
}

void lap_plan_state_clear(lap_plan_state_t *state)
{
    lap_free(state->layers);
    lap_free(state->costs);
    lap_free(state->of_ranks);
}

typedef enum depth {
    MEMORY, /* what it needs, and the least that it may take: no table is played */
    LOCAL,  /* a step without what replicas tell each other */
    ALL
} depth_t;

static lap_status_t plan_parts(lap_plan_state_t *state, depth_t depth, lap_plan_result_t *result)
{
    const lap_plan_table_t table = lap_plan_table(state->config);
    if (state->most_live == 0)
        LAP_TRY(lap_plan_most_live(&table, &state->most_live));
    add_memory(state, result);
    if (depth == MEMORY) {
        result->seconds = least_span(state);
        return LAP_OK;
    }
    LAP_TRY(play_pipeline(state, depth == ALL));
    if (depth == ALL)
        LAP_TRY(lap_plan_add_replicas(state, result));
    add_passes(state, result);
    result->exposed[LAP_PLAN_OPTIMIZER] = lap_plan_optimizer_s(state);
    add_rates(state, result);
    return LAP_OK;
}

static lap_status_t plan_step(const lap_plan_config_t *config, const lap_machine_t *machine,
                              const lap_plan_layer_t *layer, depth_t depth,
                              lap_plan_played_t *played, lap_plan_result_t *result_p)
{
    lap_plan_layer_t own;
    lap_plan_state_t state;
    lap_plan_result_t result = {.seconds = 0};
    LAP_TRY(lap_plan_check(config, machine));
    if (!layer)
        LAP_TRY(lap_plan_layer(config, machine, &own));
    lap_status_t status = lap_plan_state_init(&state, config, machine, layer ? layer : &own);
    state.most_live = played->most_live;
    state.span = played->span;
    state.rank = played->rank;
    if (status == LAP_OK)
        status = plan_parts(&state, depth, &result);
    if (status == LAP_OK) {
        *played = (lap_plan_played_t){state.most_live, state.rank, state.span};
        *result_p = result;
    }
    lap_plan_state_clear(&state);
    return status;
}

lap_status_t lap_plan_step(const lap_plan_config_t *config, const lap_machine_t *machine,
                           const lap_plan_layer_t *layer, lap_plan_result_t *result_p)
{
    lap_plan_played_t played = {.span = 0};
    return plan_step(config, machine, layer, ALL, &played, result_p);
}

lap_status_t lap_plan_step_played(const lap_plan_config_t *config, const lap_machine_t *machine,
                                  const lap_plan_layer_t *layer, lap_plan_played_t *played,
                                  lap_plan_result_t *result_p)
{
    return plan_step(config, machine, layer, ALL, played, result_p);
}

lap_status_t lap_plan_step_local(const lap_plan_config_t *config, const lap_machine_t *machine,
                                 const lap_plan_layer_t *layer, lap_plan_played_t *played,
                                 lap_plan_result_t *result_p)
{
    return plan_step(config, machine, layer, LOCAL, played, result_p);
}

lap_status_t lap_plan_step_least(const lap_plan_config_t *config, const lap_machine_t *machine,
                                 const lap_plan_layer_t *layer, lap_plan_played_t *played,
                                 lap_plan_result_t *result_p)
{
    return plan_step(config, machine, layer, MEMORY, played, result_p);
}
