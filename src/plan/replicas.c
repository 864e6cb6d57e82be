/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communication between replicas in a step, and the optimizer: a program of the last backward,
 * the step and the first forward of a rank, with buckets of gradients and of weights in the background.
 */
#include <math.h>

#include "core/status.h"
#include "plan/buckets.h"
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

/* Adam on this rank's share. */
double lap_plan_optimizer_s(const lap_plan_state_t *state)
{
    const lap_machine_t *machine = state->machine;
    const bool sharded = state->config->sharded_optimizer || state->config->fsdp;
    const double elements =
        lap_plan_rank_weights(state, 0) / (sharded ? lap_plan_group_size(state) : 1);
    const double part = machine->optimizer_efficiency > 0 ? machine->optimizer_efficiency
                                                          : machine->memory_efficiency;
    return elements * LAP_PLAN_OPTIMIZER_BYTES / (machine->memory_bytes_per_s * part);
}

/* ---- rows ---- */

#define BUCKETS_MOST 16384.0 /* of more they are planned larger: a plan has 1 GiB at most */
#define COLS_MOST 4096.0
#define LEAST_ROWS 2.0  /* of a bucket */
#define LAYER_GEMMS 4.0 /* of a layer: qkv, proj, fc1, fc2 */

/* The step of a rank that is being linked. Parameters lie as in forward: those of each stage in turn. */
typedef struct around {
    const lap_plan_state_t *state;
    lap_plan_buckets_t program;
    double elements;   /* parameters of the rank, */
    size_t cols, rows; /* as rows of a matrix, */
    size_t nbuckets;   /* and in buckets */
    size_t left;       /* buckets whose gradients are yet to come: the first ones */
    double scatter_s, gather_s;
    double gathered_bytes; /* of a parameter */
} around_t;

/* The row of a parameter. */
static size_t row_of(const around_t *around, double element)
{
    return (size_t)fmin((double)around->rows, floor(element / (double)around->cols));
}

static size_t bucket_begin(const around_t *around, size_t bucket)
{
    return around->rows * bucket / around->nbuckets;
}

static lap_plan_slice_t rows_of_bucket(const around_t *around, lap_plan_place_t place,
                                       size_t bucket)
{
    return (lap_plan_slice_t){place, bucket_begin(around, bucket),
                              bucket_begin(around, bucket + 1)};
}

static lap_plan_slice_t all_rows(const around_t *around, lap_plan_place_t place)
{
    return (lap_plan_slice_t){place, 0, around->rows};
}

static const lap_plan_slice_t no_rows = {LAP_PLAN_OF_GRADS, 0, 0};

static bool is_sharded(const around_t *around)
{
    return around->state->config->sharded_optimizer;
}

static void cut(around_t *around)
{
    const lap_plan_state_t *state = around->state;
    const lap_plan_config_t *config = state->config;
    const double weight = fmax(1, fmin(2, state->layer->weight_bytes));
    around->elements = lap_plan_rank_weights(state, 0);
    around->nbuckets =
        (size_t)fmin(BUCKETS_MOST, fmax(1, ceil(around->elements / bucket_elements(state))));
    around->left = around->nbuckets;
    around->cols = (size_t)fmax(
        1, fmin(COLS_MOST, floor(around->elements / LEAST_ROWS / (double)around->nbuckets)));
    around->rows = (size_t)fmax(LEAST_ROWS, floor(around->elements / (double)around->cols));
    around->gathered_bytes = is_sharded(around) ? weight : config->grad_bytes;
    const double bucket = around->elements / (double)around->nbuckets;
    around->scatter_s = collective_s(state, bucket * config->grad_bytes);
    around->gather_s = collective_s(state, bucket * around->gathered_bytes);
}

/* ---- buckets ---- */

/* Gradients of all rows from `row` on are there: the buckets that this completes go. */
static lap_status_t send_until(around_t *around, size_t row)
{
    while (around->left > 0 && bucket_begin(around, around->left - 1) >= row) {
        const size_t bucket = --around->left;
        const lap_plan_slice_t grads = rows_of_bucket(around, LAP_PLAN_OF_GRADS, bucket);
        const lap_plan_slice_t shard = rows_of_bucket(around, LAP_PLAN_OF_SHARD, bucket);
        LAP_TRY(lap_plan_add_scatter(&around->program, around->scatter_s, grads, shard));
        if (!is_sharded(around))
            LAP_TRY(lap_plan_add_gather(&around->program, around->gather_s, shard, grads));
    }
    return LAP_OK;
}

static lap_status_t gather_all(around_t *around)
{
    for (size_t bucket = 0; bucket < around->nbuckets && is_sharded(around); bucket++)
        LAP_TRY(lap_plan_add_gather(&around->program, around->gather_s,
                                    rows_of_bucket(around, LAP_PLAN_OF_SHARD, bucket),
                                    rows_of_bucket(around, LAP_PLAN_OF_WEIGHTS, bucket)));
    return LAP_OK;
}

/* ---- passes ---- */

/* A part of a pass with parameters of its own, which begin at `first`. */
static lap_status_t add_part(around_t *around, int pass, double seconds, double first, double count)
{
    const bool backward = pass == LAP_PLAN_BACKWARD, overlap = around->state->config->dp_overlap;
    const size_t begin = row_of(around, first);
    const size_t end =
        fmax(first + count, 1) >= around->elements ? around->rows : row_of(around, first + count);
    lap_plan_slice_t rows = {backward ? LAP_PLAN_OF_GRADS : LAP_PLAN_OF_WEIGHTS, begin, end};
    if (!overlap) /* the last backward, or the first forward, is of all */
        rows = all_rows(around, rows.place);
    LAP_TRY(lap_plan_add_kernel(&around->program, backward ? "backward" : "forward", seconds,
                                backward ? no_rows : rows, backward ? rows : no_rows));
    return backward && overlap ? send_until(around, begin) : LAP_OK;
}

/* A layer: its gradients, or the need for its weights, come with its GEMMs. */
static lap_status_t add_layer(around_t *around, int pass, double first)
{
    const lap_plan_layer_t *layer = around->state->layer;
    const double bucket = around->elements / (double)around->nbuckets;
    const size_t parts = (size_t)fmax(1, fmin(LAYER_GEMMS, ceil(layer->weights / bucket)));
    const double count = layer->weights / (double)parts;
    for (size_t i = 0; i < parts; i++) {
        const size_t part = pass == LAP_PLAN_FORWARD ? i : parts - 1 - i;
        LAP_TRY(add_part(around, pass, layer->layer[pass].seconds / (double)parts,
                         first + (double)part * count, count));
    }
    return LAP_OK;
}

/* A pass of a micro-batch through a stage, whose parameters begin at `first`. */
static lap_status_t add_stage(around_t *around, size_t stage, int pass, double first)
{
    const lap_plan_state_t *state = around->state;
    const lap_plan_layer_t *layer = state->layer;
    const double before = stage == 0 ? layer->embedding_weights : 0;
    const double layers = (double)state->layers[stage] * layer->weights;
    const double after = lap_plan_stage_weights(state, stage) - before - layers;
    const bool forward = pass == LAP_PLAN_FORWARD;
    const bool ends[2] = {stage == 0, stage + 1 == state->nstages};
    if (ends[forward ? 0 : 1])
        LAP_TRY(forward ? add_part(around, pass, layer->embedding[pass].seconds, first, before)
                        : add_part(around, pass, layer->head[pass].seconds, first + before + layers,
                                   after));
    for (size_t i = 0; i < state->layers[stage]; i++) {
        const size_t index = forward ? i : state->layers[stage] - 1 - i;
        LAP_TRY(add_layer(around, pass, first + before + (double)index * layer->weights));
    }
    if (!ends[forward ? 1 : 0])
        return LAP_OK;
    return forward
               ? add_part(around, pass, layer->head[pass].seconds, first + before + layers, after)
               : add_part(around, pass, layer->embedding[pass].seconds, first, before);
}

/*
 * The passes of a rank in which the last gradients, or the first weights, travel: its stages with as
 * many micro-batches each as the pipeline has ranks, but for those that come before all gradients or
 * after all weights.
 */
static lap_status_t add_passes(around_t *around, int pass)
{
    const lap_plan_state_t *state = around->state;
    const size_t pp = state->config->pp;
    const double turns = (double)(pp < state->micros ? pp : state->micros) - 1;
    const bool forward = pass == LAP_PLAN_FORWARD;
    double first = forward ? 0 : around->elements;
    size_t own = 0;
    for (size_t i = 0; i < state->nstages; i++) {
        const size_t stage = forward ? i : state->nstages - 1 - i;
        const double weights = lap_plan_stage_weights(state, stage);
        const double others = turns * lap_plan_stage_span(state, stage, pass).seconds;
        if (lap_plan_rank_of(state, stage) != 0)
            continue;
        first -= forward ? 0 : weights;
        if (!forward && own > 0 && others > 0)
            LAP_TRY(lap_plan_add_kernel(&around->program, "backward", others, no_rows, no_rows));
        LAP_TRY(add_stage(around, stage, pass, first));
        own++;
        first += forward ? weights : 0;
        if (forward && first < around->elements && others > 0)
            LAP_TRY(lap_plan_add_kernel(&around->program, "forward", others, no_rows, no_rows));
    }
    return LAP_OK;
}

static lap_status_t add_step(around_t *around)
{
    const lap_plan_place_t place = is_sharded(around) ? LAP_PLAN_OF_SHARD : LAP_PLAN_OF_GRADS;
    LAP_TRY(add_passes(around, LAP_PLAN_BACKWARD));
    LAP_TRY(send_until(around, 0));
    LAP_TRY(lap_plan_add_kernel(&around->program, "update", lap_plan_optimizer_s(around->state),
                                all_rows(around, place), all_rows(around, place)));
    LAP_TRY(gather_all(around));
    return add_passes(around, LAP_PLAN_FORWARD);
}

static lap_status_t add_exposed(lap_plan_buckets_t *program, double times,
                                lap_plan_result_t *result)
{
    double seconds;
    LAP_TRY(lap_plan_buckets_simulate(program, &seconds));
    const double exposed = fmax(0, seconds - program->kernels_s);
    result->exposed[LAP_PLAN_DP] += times * exposed;
    result->hidden[LAP_PLAN_DP] += times * fmax(0, program->wire_s - exposed);
    return LAP_OK;
}

static lap_status_t add_replicas(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    around_t around = {.state = state};
    cut(&around);
    result->bucket = around.elements / (double)around.nbuckets;
    result->larger_buckets = result->bucket > bucket_elements(state);
    lap_status_t status =
        lap_plan_buckets_init(&around.program, state->machine, around.rows, around.cols);
    if (status == LAP_OK)
        status = add_step(&around);
    if (status == LAP_OK)
        status = add_exposed(&around.program, 1, result);
    lap_plan_buckets_clear(&around.program);
    return status;
}

/* ---- weights that are sharded, too ---- */

/* A micro-batch with weights that are gathered layer by layer, into one of two buffers. */
typedef struct sharded {
    const lap_plan_state_t *state;
    lap_plan_buckets_t program;
    size_t layers, rows; /* and the rows of a layer */
} sharded_t;

static lap_plan_slice_t rows_of_turn(const sharded_t *sharded, lap_plan_place_t place, size_t turn)
{
    const size_t begin = sharded->state->config->dp_overlap ? turn % 2 * sharded->rows : 0;
    return (lap_plan_slice_t){place, begin, begin + sharded->rows};
}

static lap_status_t gather_layer(sharded_t *sharded, size_t turn)
{
    const double seconds = collective_s(sharded->state, 2 * sharded->state->layer->weights);
    if (turn == 2 * sharded->layers)
        return LAP_OK;
    return lap_plan_add_gather(&sharded->program, seconds,
                               rows_of_turn(sharded, LAP_PLAN_OF_SHARD, turn),
                               rows_of_turn(sharded, LAP_PLAN_OF_WEIGHTS, turn));
}

/*
 * The forward of all layers, and then their backward; the weights of the next are on their way, or,
 * without overlap, come into the one buffer when it is free.
 */
static lap_status_t add_turn(sharded_t *sharded, size_t turn)
{
    const lap_plan_layer_t *layer = sharded->state->layer;
    const bool backward = turn >= sharded->layers, overlap = sharded->state->config->dp_overlap;
    const double scatter =
        collective_s(sharded->state, sharded->state->config->grad_bytes * layer->weights);
    const lap_plan_slice_t grads = rows_of_turn(sharded, LAP_PLAN_OF_GRADS, turn);
    const lap_plan_slice_t shard = rows_of_turn(sharded, LAP_PLAN_OF_SHARD, turn);
    /* What the next gather takes is there after forward, where nothing may be on its way. */
    const lap_plan_slice_t writes = backward ? grads : overlap ? no_rows : shard;
    const int pass = backward ? LAP_PLAN_BACKWARD : LAP_PLAN_FORWARD;
    LAP_TRY(gather_layer(sharded, overlap ? turn + 1 : turn));
    LAP_TRY(lap_plan_add_kernel(&sharded->program, backward ? "backward" : "forward",
                                layer->layer[pass].seconds,
                                rows_of_turn(sharded, LAP_PLAN_OF_WEIGHTS, turn), writes));
    return backward ? lap_plan_add_scatter(&sharded->program, scatter, grads, shard) : LAP_OK;
}

static lap_status_t add_fsdp(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    const double cols = fmax(1, fmin(COLS_MOST, floor(state->layer->weights / LEAST_ROWS)));
    sharded_t sharded = {
        .state = state,
        .layers =
            (size_t)fmax(1, round((double)state->config->model.layers / (double)state->config->pp)),
        .rows = (size_t)fmax(LEAST_ROWS, floor(state->layer->weights / cols)),
    };
    lap_status_t status =
        lap_plan_buckets_init(&sharded.program, state->machine, 2 * sharded.rows, (size_t)cols);
    if (status == LAP_OK && state->config->dp_overlap)
        status = gather_layer(&sharded, 0);
    for (size_t turn = 0; turn < 2 * sharded.layers && status == LAP_OK; turn++)
        status = add_turn(&sharded, turn);
    if (status == LAP_OK)
        status = add_exposed(&sharded.program, (double)state->micros, result);
    lap_plan_buckets_clear(&sharded.program);
    return status;
}

lap_status_t lap_plan_add_replicas(const lap_plan_state_t *state, lap_plan_result_t *result)
{
    if (lap_plan_group_size(state) <= 1)
        return LAP_OK;
    return state->config->fsdp ? add_fsdp(state, result) : add_replicas(state, result);
}
