/* SPDX-License-Identifier: Apache-2.0 */
/* What replicas have to tell each other in a step, and the optimizer. */
#include <math.h>

#include "plan/step.h"

double lap_plan_group_size(const lap_plan_state_t *state)
{
    return (double)(state->config->dp * state->config->cp);
}

/* Bytes per second of a collective of replicas: NVLink inside a node, all their NICs between nodes. */
static double group_rate(const lap_plan_state_t *state)
{
    const lap_machine_t *machine = state->machine;
    const double nvlink = lap_wire_rate(&machine->nvlink);
    const double inside = fmax(1, floor(machine->gpus_per_node / (double)state->config->tp));
    if (lap_plan_group_size(state) <= inside)
        return nvlink;
    return fmin(nvlink, inside * lap_wire_rate(&machine->network));
}

/* A gather or a reduce-scatter of so many bytes. */
static double collective_s(const lap_plan_state_t *state, double bytes)
{
    const double size = lap_plan_group_size(state);
    const double latency = state->machine->network.latency_s * 2 * log2(fmax(size, 1));
    return size > 1 ? bytes * (size - 1) / size / group_rate(state) + latency : 0;
}

/* A bucket, in elements: as large as Megatron has them. */
static double bucket_elements(const lap_plan_state_t *state)
{
    return fmax(40e6, 1e6 * (double)state->config->dp);
}

/*
 * What of a collective is exposed, when it is in buckets that run while something else takes
 * `window`: the last bucket begins when that ends, or the first must be there before it begins.
 */
static double exposed_s(const lap_plan_state_t *state, double elements, double bytes, double window)
{
    const double buckets = fmax(1, ceil(elements / bucket_elements(state)));
    const double all = buckets * collective_s(state, bytes / buckets);
    if (!state->config->dp_overlap)
        return all;
    return fmax(all / buckets, all - window * (buckets - 1) / buckets);
}

/* Time of the rank's passes in which the last gradients, or the first weights, travel. */
static double window_s(const lap_plan_state_t *state, int pass)
{
    const size_t chunks = state->config->virtual_pp;
    const double turns =
        (double)(chunks - 1) *
            (double)(state->config->pp < state->micros ? state->config->pp : state->micros) +
        1;
    return turns * lap_plan_stage_span(state, 0, pass).seconds;
}

static void add_buckets(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    const lap_plan_config_t *config = state->config;
    const double elements = lap_plan_rank_weights(state, 0);
    const double weight_bytes =
        fmax(1, state->layer->weight_bytes > 2 ? 2 : state->layer->weight_bytes);
    if (lap_plan_group_size(state) <= 1 || config->fsdp)
        return;
    const double scatter = elements * config->grad_bytes;
    const double gather =
        elements * (config->sharded_optimizer ? weight_bytes : config->grad_bytes);
    double exposed = exposed_s(state, elements, scatter, window_s(state, LAP_PLAN_BACKWARD));
    exposed += config->sharded_optimizer
                   ? exposed_s(state, elements, gather, window_s(state, LAP_PLAN_FORWARD))
                   : collective_s(state, gather);
    const double all = collective_s(state, scatter) + collective_s(state, gather);
    const double hidden = fmax(0, all - exposed);
    /* Collectives take SMs from what they are hidden under. */
    exposed += hidden * state->machine->network.sms / state->machine->sms;
    result->exposed[LAP_PLAN_DP] = exposed;
    result->hidden[LAP_PLAN_DP] = hidden;
}

/*
 * With weights sharded too, each layer's are gathered before its forward and before its backward,
 * and its gradients scattered after it, of every micro-batch, while the layer before runs.
 */
static void add_fsdp(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    const lap_plan_layer_t *layer = state->layer;
    const double gather = collective_s(state, 2 * layer->weights);
    const double scatter = collective_s(state, state->config->grad_bytes * layer->weights);
    const double layers = (double)state->config->model.layers / (double)state->config->pp;
    const double sms = state->machine->network.sms / state->machine->sms;
    const double forward = layer->layer[LAP_PLAN_FORWARD].seconds;
    const double backward = layer->layer[LAP_PLAN_BACKWARD].seconds;
    if (!state->config->fsdp || lap_plan_group_size(state) <= 1)
        return;
    const double all = layers * (2 * gather + scatter);
    double exposed = gather + scatter;
    exposed += layers * (fmax(0, gather - forward) + fmax(0, gather + scatter - backward));
    exposed += fmax(0, all - exposed) * sms;
    result->exposed[LAP_PLAN_DP] += (double)state->micros * exposed;
    result->hidden[LAP_PLAN_DP] += (double)state->micros * fmax(0, all - exposed);
}

/* Adam on this rank's share. */
static double optimizer_s(const lap_plan_state_t *state)
{
    const lap_machine_t *machine = state->machine;
    const bool sharded = state->config->sharded_optimizer || state->config->fsdp;
    const double elements =
        lap_plan_rank_weights(state, 0) / (sharded ? lap_plan_group_size(state) : 1);
    const double part = machine->optimizer_efficiency > 0 ? machine->optimizer_efficiency
                                                          : machine->memory_efficiency;
    return elements * LAP_PLAN_OPTIMIZER_BYTES / (machine->memory_bytes_per_s * part);
}

void lap_plan_add_replicas(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    add_buckets(state, result);
    add_fsdp(state, result);
    result->exposed[LAP_PLAN_OPTIMIZER] = optimizer_s(state);
}
