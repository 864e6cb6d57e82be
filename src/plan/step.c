/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step: micro-batches go through the table of the pipeline, whose stages are layers; gradients go
 * to replicas in buckets while the last backward runs, weights come back while the first forward
 * does; the optimizer is between the two.
 */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "parallel/pipeline.h"
#include "plan/plan.h"
#include "util/alloc.h"

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

lap_status_t lap_plan_check(const lap_plan_config_t *config, const lap_machine_t *machine)
{
    const lap_nn_desc_t *model = &config->model;
    if (machine->peak[config->type] <= 0)
        return lap_error(LAP_ERR_INVALID, "%s multiplies no %s: it has no peak_tflops of it",
                         machine->name, lap_plan_type_names[config->type]);
    if (config->gpus == 0 || config->micro_batch == 0 || config->virtual_pp == 0)
        return lap_error(LAP_ERR_INVALID,
                         "gpus, micro-batch and virtual-pp are %zu, %zu and %zu, expected at least "
                         "1 of each",
                         config->gpus, config->micro_batch, config->virtual_pp);
    if (config->tp * config->pp * config->cp * config->dp != config->gpus)
        return lap_error(LAP_ERR_INVALID,
                         "tp * pp * cp * dp is %zu * %zu * %zu * %zu, expected the %zu GPUs",
                         config->tp, config->pp, config->cp, config->dp, config->gpus);
    LAP_TRY(check_divides("heads", model->heads, "tp", config->tp));
    LAP_TRY(check_divides("kv_heads", model->kv_heads ? model->kv_heads : model->heads, "tp",
                          config->tp));
    LAP_TRY(check_divides("hidden", model->hidden, "heads", model->heads));
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
    const double kv = (double)(model->kv_heads ? model->kv_heads : model->heads);
    const double dim = h / (double)model->heads;
    const double gated = model->activation == LAP_SWIGLU ? 3 : 2;
    const double weights = h * (h + 2 * kv * dim) + h * h + gated * h * ffn;
    const double scores = 2 * seq * h * (causal ? 0.5 : 1); /* of both products, per token */
    const double token = (double)model->layers * (weights + scores) + h * (double)model->vocab;
    return 6 * token * (double)config->global_batch * seq;
}

/* ---- stages ---- */

/*
 * The layers of each stage. Embedding and head count as a layer each where that divides evenly;
 * else what is left over goes to the stages after the first.
 */
static void divide_layers(const lap_plan_config_t *config, size_t nstages, size_t *layers)
{
    const size_t all = config->model.layers;
    const bool both = nstages > 1 && all % nstages != 0 && (all + 2) % nstages == 0;
    const size_t whole = both ? all + 2 : all;
    for (size_t s = 0; s < nstages; s++) {
        const size_t rest = whole % nstages;
        layers[s] = whole / nstages + (s >= 1 && s <= rest ? 1 : 0);
        if (both && (s == 0 || s + 1 == nstages))
            layers[s]--;
    }
}

/* ---- a step that is being planned ---- */

typedef struct step {
    const lap_plan_config_t *config;
    const lap_machine_t *machine;
    const lap_plan_layer_t *layer;
    size_t nstages, micros;
    size_t *layers;          /* of each stage */
    lap_pipe_costs_t *costs; /* of each stage */
    double message_s;
    double span, fast_span;      /* of all micro-batches, and with messages that take no time */
    size_t rank;                 /* of the pipeline: the one with the most work */
    size_t most_live;            /* stages' micro-batches that a rank holds at once */
    double fsdp_s, fsdp_exposed; /* of a step */
} step_t;

static void add_span(lap_plan_span_t *sum, const lap_plan_span_t *part, double times)
{
    sum->seconds += times * part->seconds;
    sum->compute += times * part->compute;
    sum->tp += times * part->tp;
    sum->cp += times * part->cp;
    sum->tp_s += times * part->tp_s;
    sum->cp_s += times * part->cp_s;
}

/* A pass of a micro-batch through a stage. */
static lap_plan_span_t stage_span(const step_t *step, size_t stage, int pass)
{
    lap_plan_span_t span = {.seconds = 0};
    add_span(&span, &step->layer->layer[pass], (double)step->layers[stage]);
    if (stage == 0)
        add_span(&span, &step->layer->embedding[pass], 1);
    if (stage + 1 == step->nstages)
        add_span(&span, &step->layer->head[pass], 1);
    return span;
}

/* The rank of the pipeline that has a stage. */
static size_t rank_of(const step_t *step, size_t stage)
{
    const size_t pp = step->config->pp;
    if (strcmp(step->config->schedule, "zb-v") == 0)
        return stage < pp ? stage : 2 * pp - 1 - stage;
    return stage % pp;
}

/* The parameters of a rank. */
static double rank_weights(const step_t *step, size_t rank)
{
    const lap_plan_layer_t *layer = step->layer;
    double weights = 0;
    for (size_t s = 0; s < step->nstages; s++) {
        if (rank_of(step, s) != rank)
            continue;
        weights += (double)step->layers[s] * layer->weights;
        weights += s == 0 ? layer->embedding_weights : 0;
        weights += s + 1 == step->nstages ? layer->head_weights : 0;
        /* Both ends have the table of a model that shares it. */
        weights += s + 1 == step->nstages && step->nstages > 1 && step->config->model.tied
                       ? layer->embedding_weights
                       : 0;
    }
    return weights;
}

/* ---- replicas ---- */

/* The ranks that have the same weights: replicas, and parts of sequences. */
static double group_size(const step_t *step)
{
    return (double)(step->config->dp * step->config->cp);
}

/* Bytes per second of a collective of replicas: NVLink inside a node, all their NICs between nodes. */
static double group_rate(const step_t *step)
{
    const lap_machine_t *machine = step->machine;
    const double nvlink = lap_wire_rate(&machine->nvlink);
    const double inside = fmax(1, floor(machine->gpus_per_node / (double)step->config->tp));
    if (group_size(step) <= inside)
        return nvlink;
    return fmin(nvlink, inside * lap_wire_rate(&machine->network));
}

/* A gather or a reduce-scatter of so many bytes. */
static double collective_s(const step_t *step, double bytes)
{
    const double size = group_size(step);
    const double latency = step->machine->network.latency_s * 2 * log2(fmax(size, 1));
    return size > 1 ? bytes * (size - 1) / size / group_rate(step) + latency : 0;
}

/* A bucket, in elements: as large as Megatron has them. */
static double bucket_elements(const step_t *step)
{
    return fmax(40e6, 1e6 * (double)step->config->dp);
}

/*
 * What of a collective is exposed, when it is in buckets that run while something else takes
 * `window`: the last bucket begins when that ends, or the first must be there before it begins.
 */
static double exposed_s(const step_t *step, double elements, double bytes, double window)
{
    const double buckets = fmax(1, ceil(elements / bucket_elements(step)));
    const double all = buckets * collective_s(step, bytes / buckets);
    if (!step->config->dp_overlap)
        return all;
    return fmax(all / buckets, all - window * (buckets - 1) / buckets);
}

/* Time of the rank's passes in which the last gradients, or the first weights, travel. */
static double window_s(const step_t *step, int pass)
{
    const size_t chunks = step->config->virtual_pp;
    const double turns =
        (double)(chunks - 1) *
            (double)(step->config->pp < step->micros ? step->config->pp : step->micros) +
        1;
    return turns * stage_span(step, 0, pass).seconds;
}

static void add_replicas(const step_t *step, lap_plan_result_t *result)
{
    const lap_plan_config_t *config = step->config;
    const double elements = rank_weights(step, 0);
    const double weight_bytes =
        fmax(1, step->layer->weight_bytes > 2 ? 2 : step->layer->weight_bytes);
    if (group_size(step) <= 1 || config->fsdp)
        return;
    const double scatter = elements * config->grad_bytes;
    const double gather =
        elements * (config->sharded_optimizer ? weight_bytes : config->grad_bytes);
    double exposed = exposed_s(step, elements, scatter, window_s(step, LAP_PLAN_BACKWARD));
    exposed += config->sharded_optimizer
                   ? exposed_s(step, elements, gather, window_s(step, LAP_PLAN_FORWARD))
                   : collective_s(step, gather);
    const double all = collective_s(step, scatter) + collective_s(step, gather);
    const double hidden = fmax(0, all - exposed);
    /* Collectives take SMs from what they are hidden under. */
    exposed += hidden * step->machine->network.sms / step->machine->sms;
    result->exposed[LAP_PLAN_DP] = exposed;
    result->hidden[LAP_PLAN_DP] = hidden;
}

/*
 * With weights sharded too, each layer's are gathered before its forward and before its backward,
 * and its gradients scattered after it, of every micro-batch, while the layer before runs.
 */
static void add_fsdp(step_t *step)
{
    const lap_plan_layer_t *layer = step->layer;
    const double gather = collective_s(step, 2 * layer->weights);
    const double scatter = collective_s(step, step->config->grad_bytes * layer->weights);
    const double layers = (double)step->config->model.layers / (double)step->config->pp;
    const double sms = step->machine->network.sms / step->machine->sms;
    const double forward = layer->layer[LAP_PLAN_FORWARD].seconds;
    const double backward = layer->layer[LAP_PLAN_BACKWARD].seconds;
    if (!step->config->fsdp || group_size(step) <= 1)
        return;
    const double all = layers * (2 * gather + scatter);
    double exposed = gather + scatter;
    exposed += layers * (fmax(0, gather - forward) + fmax(0, gather + scatter - backward));
    exposed += fmax(0, all - exposed) * sms;
    step->fsdp_s = (double)step->micros * all;
    step->fsdp_exposed = (double)step->micros * exposed;
}

/* Adam on this rank's share: gradient, master and two moments, and the copy of the weight. */
#define OPTIMIZER_BYTES 34.0

static double optimizer_s(const step_t *step)
{
    const lap_machine_t *machine = step->machine;
    const bool sharded = step->config->sharded_optimizer || step->config->fsdp;
    const double elements = rank_weights(step, 0) / (sharded ? group_size(step) : 1);
    return elements * OPTIMIZER_BYTES / (machine->memory_bytes_per_s * machine->memory_efficiency);
}

/* ---- the pipeline ---- */

static double message_seconds(const step_t *step)
{
    const lap_plan_config_t *config = step->config;
    const lap_machine_t *machine = step->machine;
    const double bytes = (double)config->model.seq / (double)config->cp *
                         (double)config->micro_batch * (double)config->model.hidden /
                         (double)config->tp * 2;
    const bool inside = (double)config->gpus <= machine->gpus_per_node;
    const lap_plan_wire_t *wire = inside ? &machine->nvlink : &machine->network;
    return config->pp > 1 ? bytes / lap_wire_rate(wire) + wire->latency_s : 0;
}

/* Messages that are not overlapped take the time of the rank. */
static void set_stages(step_t *step)
{
    const double blocking = step->config->pp_overlap ? 0 : step->message_s;
    for (size_t s = 0; s < step->nstages; s++) {
        const double forward = stage_span(step, s, LAP_PLAN_FORWARD).seconds;
        const double backward = stage_span(step, s, LAP_PLAN_BACKWARD).seconds;
        const double weights = (double)step->layers[s] * step->layer->weight_grad;
        step->costs[s] = (lap_pipe_costs_t){.forward = forward + blocking,
                                            .input_grad = backward - weights + blocking,
                                            .weight_grad = weights};
    }
}

static lap_status_t run_table(step_t *step, size_t micros, double message_s, double *span_p)
{
    const lap_plan_config_t *config = step->config;
    lap_pipeline_t pipeline;
    lap_pipe_times_t times = {.span = 0};
    const lap_pipe_costs_t costs = {.message = message_s, .stages = step->costs};
    lap_status_t status =
        lap_pipeline_build(config->schedule, (uint32_t)config->pp, (uint32_t)config->virtual_pp,
                           (uint32_t)micros, &pipeline);
    if (status == LAP_OK)
        status = lap_pipeline_simulate(&pipeline, &costs, &times);
    for (size_t r = 0; status == LAP_OK && r < config->pp; r++) {
        if (times.ranks[r].busy > times.ranks[step->rank].busy)
            step->rank = r;
        if (times.ranks[r].most_live > step->most_live)
            step->most_live = times.ranks[r].most_live;
    }
    *span_p = times.span;
    lap_pipe_times_clear(&times, pipeline.ranks);
    lap_pipeline_clear(&pipeline);
    return status;
}

/* In its middle a pipeline repeats itself: of many micro-batches only some are played. */
static lap_status_t span_of(step_t *step, double message_s, double *span_p)
{
    const size_t pp = step->config->pp, few = 2 * pp, more = 3 * pp;
    double first, second;
    if (step->micros <= more + pp)
        return run_table(step, step->micros, message_s, span_p);
    if (step->micros % pp != 0 && step->config->virtual_pp > 1)
        return run_table(step, step->micros, message_s, span_p); /* which says what is wrong */
    LAP_TRY(run_table(step, few, message_s, &first));
    LAP_TRY(run_table(step, more, message_s, &second));
    *span_p = first + (second - first) / (double)pp * (double)(step->micros - few);
    return LAP_OK;
}

static lap_status_t play_pipeline(step_t *step)
{
    const double message_s = step->config->pp_overlap ? step->message_s : 0;
    set_stages(step);
    if (step->config->pp <= 1) {
        const lap_pipe_costs_t *only = &step->costs[0];
        step->most_live = 1;
        step->span = step->fast_span =
            (double)step->micros * (only->forward + only->input_grad + only->weight_grad);
        return LAP_OK;
    }
    LAP_TRY(span_of(step, 0, &step->fast_span));
    if (message_s > 0)
        return span_of(step, message_s, &step->span);
    step->span = step->fast_span;
    return LAP_OK;
}

/* ---- results ---- */

static void add_passes(const step_t *step, lap_plan_result_t *result)
{
    lap_plan_span_t sum = {.seconds = 0};
    double stages = 0;
    for (size_t s = 0; s < step->nstages; s++)
        for (int pass = 0; pass < LAP_PLAN_PASSES && rank_of(step, s) == step->rank; pass++) {
            const lap_plan_span_t span = stage_span(step, s, pass);
            add_span(&sum, &span, (double)step->micros);
            stages++;
        }
    const double messages = step->message_s * stages * (double)step->micros;
    const double blocking = step->config->pp_overlap ? 0 : messages;
    const double waiting = step->span - step->fast_span;
    result->exposed[LAP_PLAN_COMPUTE] = sum.compute;
    result->exposed[LAP_PLAN_TP] = sum.tp;
    result->exposed[LAP_PLAN_CP] = sum.cp;
    result->hidden[LAP_PLAN_TP] = fmax(0, sum.tp_s - sum.tp);
    result->hidden[LAP_PLAN_CP] = fmax(0, sum.cp_s - sum.cp);
    result->exposed[LAP_PLAN_PP] = blocking + waiting;
    result->hidden[LAP_PLAN_PP] = fmax(0, messages - blocking - waiting);
    result->exposed[LAP_PLAN_BUBBLE] = fmax(0, step->fast_span - sum.seconds - blocking);
}

static void add_memory(const step_t *step, lap_plan_result_t *result)
{
    const lap_plan_config_t *config = step->config;
    const lap_plan_layer_t *layer = step->layer;
    const double shards = group_size(step);
    double weights = 0, layers = 0;
    for (size_t r = 0; r < config->pp; r++)
        weights = fmax(weights, rank_weights(step, r));
    for (size_t s = 0; s < step->nstages; s++)
        layers = fmax(layers, (double)step->layers[s]);
    double *bytes = result->bytes;
    bytes[LAP_PLAN_WEIGHTS] = weights * layer->weight_bytes / (config->fsdp ? shards : 1);
    bytes[LAP_PLAN_GRADIENTS] = weights * 4 / (config->fsdp ? shards : 1);
    bytes[LAP_PLAN_STATE] = weights * 12 / (config->fsdp || config->sharded_optimizer ? shards : 1);
    bytes[LAP_PLAN_ACTIVATIONS] = (double)step->most_live * layers * layer->saved_bytes;
    bytes[LAP_PLAN_WORK] = layer->work_bytes + (config->fsdp ? 4 * layer->weights : 0);
    bytes[LAP_PLAN_RESERVED] = step->machine->reserved_bytes;
    for (int i = 0; i < LAP_PLAN_MEMORIES; i++)
        result->total_bytes += bytes[i];
    result->fits = result->total_bytes <= step->machine->memory_bytes;
}

static void add_rates(const step_t *step, lap_plan_result_t *result)
{
    const lap_plan_config_t *config = step->config;
    const double peak = step->machine->peak[config->type] * (double)config->gpus;
    for (int i = 0; i < LAP_PLAN_KINDS; i++)
        result->seconds += result->exposed[i];
    result->tokens_per_s =
        (double)config->global_batch * (double)config->model.seq / result->seconds;
    result->model_flops = lap_plan_flops(config, true);
    result->mfu = result->model_flops / result->seconds / peak;
    result->mfu_full = lap_plan_flops(config, false) / result->seconds / peak;
    result->micro_batches = step->micros;
    for (size_t s = 0; s < step->nstages; s++)
        if (rank_of(step, s) == step->rank)
            result->layers_most += step->layers[s];
}

static lap_status_t plan(step_t *step, lap_plan_result_t *result_p)
{
    lap_plan_result_t result = {.seconds = 0};
    step->layers = lap_alloc(step->nstages, sizeof(*step->layers));
    step->costs = lap_alloc(step->nstages, sizeof(*step->costs));
    if (!step->layers || !step->costs)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu stages", step->nstages);
    divide_layers(step->config, step->nstages, step->layers);
    step->message_s = message_seconds(step);
    LAP_TRY(play_pipeline(step));
    add_passes(step, &result);
    add_replicas(step, &result);
    add_fsdp(step);
    result.exposed[LAP_PLAN_DP] += step->fsdp_exposed;
    result.hidden[LAP_PLAN_DP] += fmax(0, step->fsdp_s - step->fsdp_exposed);
    result.exposed[LAP_PLAN_OPTIMIZER] = optimizer_s(step);
    add_memory(step, &result);
    add_rates(step, &result);
    *result_p = result;
    return LAP_OK;
}

lap_status_t lap_plan_step(const lap_plan_config_t *config, const lap_machine_t *machine,
                           const lap_plan_layer_t *layer, lap_plan_result_t *result_p)
{
    lap_plan_layer_t own;
    step_t step = {.config = config, .machine = machine, .layer = layer};
    LAP_TRY(lap_plan_check(config, machine));
    if (!layer)
        LAP_TRY(lap_plan_layer(config, machine, &own));
    step.layer = layer ? layer : &own;
    step.nstages = config->pp * (strcmp(config->schedule, "zb-v") == 0 ? 2 : config->virtual_pp);
    step.micros = config->global_batch / config->dp / config->micro_batch;
    const lap_status_t status = plan(&step, result_p);
    lap_free(step.layers);
    lap_free(step.costs);
    return status;
}
