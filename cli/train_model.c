/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model that `lap train` trains: layers or a language model, its optimizer, its replicas, and
 * data that are a pure function of seed, iteration and sequence, whichever ranks they are on.
 */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "nn/nn.h"
#include "train.h"
#include "util/alloc.h"
#include "util/random.h"

/* ---- making one ---- */

/* Memory of a matrix, `count` times. */
static lap_status_t alloc_tensor(lap_train_model_t *model, lap_nn_part_t part, int count,
                                 lap_tensor_t *tensor)
{
    const lap_dtype_t dtype = model->train->desc.dtype;
    const size_t bytes = part.rows * part.cols * lap_dtype_size(dtype) * (size_t)count;
    void *memory;
    *tensor = lap_tensor(NULL, dtype, part.rows, part.cols);
    LAP_TRY(model->device->ops->alloc(model->device, bytes, &memory));
    tensor->data = memory;
    return LAP_OK;
}

static lap_status_t alloc_tensors(lap_train_model_t *model)
{
    const int micro = model->train->micro;
    const lap_nn_part_t in = lap_nn_input(model->nn, 0), out = lap_nn_output(model->nn, 0);
    LAP_TRY(alloc_tensor(model, in, micro, &model->x));
    LAP_TRY(alloc_tensor(model, in, 1, &model->dx));
    LAP_TRY(alloc_tensor(model, out, 1, &model->y));
    return alloc_tensor(model, out, micro, &model->target);
}

/* Tokens of a micro-batch, [batch, seq]. */
static size_t tokens_of(const lap_train_t *train)
{
    return train->desc.batch * train->desc.seq;
}

static lap_status_t alloc_tokens(lap_train_model_t *model)
{
    const size_t count = tokens_of(model->train) * (size_t)model->train->micro;
    model->tokens = lap_alloc(count, sizeof(*model->tokens));
    model->targets = lap_alloc(count, sizeof(*model->targets));
    if (!model->tokens || !model->targets)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu tokens", count);
    return model->train->data ? lap_train_data_open(model->train, &model->data) : LAP_OK;
}

static lap_status_t init_replicas(lap_train_model_t *model, bool overlap,
                                  const lap_buffer_options_t *buffer)
{
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    if (!model->groups.replicas)
        return LAP_OK;
    options.bucket = model->train->bucket;
    options.by_layer = model->train->by_layer;
    options.wire_dtype = model->train->grad_dtype;
    options.overlap = overlap && model->train->grad_overlap;
    options.overlap_weights = overlap && model->train->param_overlap;
    options.overlap_step = model->train->step_overlap;
    options.buffer_options = buffer;
    return lap_dp_create(model->nn, model->groups.replicas, &options, &model->dp);
}

lap_status_t lap_train_trace(lap_train_model_t *model, bool on)
{
    if (model->dp)
        LAP_TRY(lap_dp_measure(model->dp, on));
    return lap_nn_trace(model->nn, on);
}

/* Layers, or what this rank of a pipeline has of a model. */
static lap_status_t init_layers(lap_train_model_t *model, const lap_nn_desc_t *desc, bool overlap)
{
    const lap_grid_groups_t *groups = &model->groups;
    lap_pp_options_t options = lap_train_stages(model->train, overlap);
    if (model->train->grid.pp == 1)
        return lap_nn_create(groups->tp, desc, &model->nn);
    options.buffer_options = desc->buffer_options;
    LAP_TRY(lap_pp_create(groups->tp, groups->pp, desc, &options, &model->pp));
    model->nn = lap_pp_layers(model->pp);
    return LAP_OK;
}

lap_status_t lap_train_model_init(lap_train_model_t *model, const lap_train_t *train,
                                  const lap_grid_groups_t *groups, bool overlap, bool trace,
                                  lap_link_t link)
{
    lap_nn_desc_t desc = train->desc;
    lap_buffer_options_t buffer = LAP_BUFFER_OPTIONS_INIT;
    lap_optimizer_desc_t optimizer = train->optimizer;
    *model = (lap_train_model_t){.train = train,
                                 .groups = *groups,
                                 .shuffle = train->shuffle,
                                 .data_seed = train->data_seed,
                                 .scale = train->scale};
    if (train->dynamic && optimizer.clip_norm == 0)
        optimizer.clip_norm = FLT_MAX; /* the norm tells whether gradients are finite */
    buffer.transport = train->transport;
    buffer.link = link;
    desc.overlap = overlap ? &train->rules : &train->serial;
    desc.cp_overlap = overlap;
    desc.cp_group = groups->cp;
    desc.shard_group = desc.shards > 1 ? groups->replicas : NULL;
    desc.buffer_options = &buffer;
    LAP_TRY(lap_device_of(groups->world->world, &model->device));
    LAP_TRY(init_layers(model, &desc, overlap));
    LAP_TRY(lap_optimizer_create(model->nn, groups->model, &optimizer, &model->optimizer));
    LAP_TRY(init_replicas(model, overlap, &buffer));
    LAP_TRY(train->model ? alloc_tokens(model) : alloc_tensors(model));
    return lap_train_trace(model, trace);
}

void lap_train_model_clear(lap_train_model_t *model)
{
    const lap_tensor_t tensors[] = {model->x, model->y, model->target, model->dx};
    lap_dp_destroy(model->dp);
    lap_optimizer_destroy(model->optimizer);
    if (model->pp)
        lap_pp_destroy(model->pp);
    else
        lap_nn_destroy(model->nn);
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        if (tensors[i].data)
            model->device->ops->free(model->device, tensors[i].data);
    lap_data_close(model->data);
    lap_free(model->tokens);
    lap_free(model->targets);
    lap_train_times_reset(&model->times);
    memset(model, 0, sizeof(*model));
}

/* ---- data ---- */

/* Of x or the target, what belongs to a micro-batch. */
static lap_tensor_t part_of(lap_tensor_t matrix, int micro)
{
    const size_t bytes = matrix.rows * matrix.stride * lap_dtype_size(matrix.dtype);
    matrix.data = (char *)matrix.data + (size_t)micro * bytes;
    return matrix;
}

/* Of all sequences of an iteration, the first of a micro-batch of this replica. */
static size_t first_sequence(const lap_train_model_t *model, int micro)
{
    const size_t replica = (size_t)model->groups.at.dp;
    return (replica * (size_t)model->train->micro + (size_t)micro) * model->train->desc.batch;
}

/*
 * Fills the rows of each sequence that this rank has. Row s * batch + b of a micro-batch is token s
 * of its sequence b. A sequence is a tensor of its own, [seq, columns]: the sequences of an iteration
 * are dealt out to replicas in order, and those of a replica to its micro-batches.
 */
static lap_status_t fill(lap_train_model_t *model, const lap_tensor_t *matrix, lap_nn_part_t part,
                         int iteration, int micro, float std)
{
    const lap_nn_desc_t *desc = &model->train->desc;
    const size_t batch = desc->batch, before = first_sequence(model, micro);
    for (size_t b = 0; b < batch; b++) {
        const size_t skip = (b + batch - part.first_row % batch) % batch;
        if (skip >= part.rows)
            continue;
        lap_nn_part_t own = part;
        own.rows = (part.rows - skip + batch - 1) / batch;
        own.first_row = (part.first_row + skip) / batch;
        own.all_rows = desc->seq;
        lap_tensor_t rows = *matrix;
        rows.data = (char *)matrix->data + skip * matrix->stride * lap_dtype_size(matrix->dtype);
        rows.rows = own.rows;
        rows.stride = batch * matrix->stride;
        const uint64_t tensor = (uint64_t)(iteration + 1) << 32 | (before + b);
        LAP_TRY(lap_nn_fill(model->nn, &rows, &own, desc->seed, tensor, std));
    }
    return LAP_OK;
}

/*
 * A Markov chain over the first tokens of the vocabulary: mostly each is followed by one that it
 * determines, so that there is something to learn.
 */
enum { CHAIN = 64, SURE = 8 }; /* tokens, and of how many steps one is not determined */

static void fill_tokens(lap_train_model_t *model, int iteration, int micro)
{
    const lap_nn_desc_t *desc = &model->train->desc;
    const uint64_t size = desc->vocab < CHAIN ? desc->vocab : CHAIN;
    const size_t before = first_sequence(model, micro);
    for (size_t b = 0; b < desc->batch; b++) {
        const size_t at = (size_t)micro * tokens_of(model->train) + b * desc->seq;
        const uint64_t tensor = (uint64_t)(iteration + 1) << 32 | (before + b);
        uint64_t token = lap_random_u32x4(desc->seed, tensor, 0).word[0] % size;
        for (size_t s = 0; s < desc->seq; s++) {
            const uint64_t random = lap_random_u32x4(desc->seed, tensor, s + 1).word[0];
            const uint64_t next =
                random % SURE == 0 ? random / SURE % size : (5 * token + 7) % size;
            model->tokens[at + s] = (int32_t)token;
            model->targets[at + s] = (int32_t)next;
            token = next;
        }
    }
}

lap_status_t lap_train_generate(lap_train_model_t *model, int iteration)
{
    const lap_nn_desc_t *desc = &model->train->desc;
    for (int m = 0; m < model->train->micro && model->data; m++) {
        const size_t at = (size_t)m * tokens_of(model->train);
        LAP_TRY(lap_train_data_fill(model, model->sample + first_sequence(model, m), desc->batch,
                                    model->tokens + at, model->targets + at));
    }
    for (int m = 0; m < model->train->micro && model->tokens && !model->data; m++)
        fill_tokens(model, iteration, m);
    if (model->tokens)
        return LAP_OK;
    const lap_nn_part_t in = lap_nn_input(model->nn, 0), out = lap_nn_output(model->nn, 0);
    for (int m = 0; m < model->train->micro; m++) {
        const lap_tensor_t x = part_of(model->x, m), target = part_of(model->target, m);
        LAP_TRY(fill(model, &x, in, iteration, m, 1));
        LAP_TRY(fill(model, &target, out, iteration, m, -1));
    }
    return lap_nn_wait(model->nn);
}

/* ---- an iteration ---- */

bool lap_train_steps(const lap_train_t *train, bool traced)
{
    return train->grid.pp == 1 && !traced && train->optimizer.clip_norm > 0;
}

lap_status_t lap_train_join(lap_train_model_t *model, bool traced)
{
    model->steps = lap_train_steps(model->train, traced);
    return model->pp ? LAP_OK : lap_nn_defer(model->nn, !traced);
}

static lap_status_t begin_step(const lap_train_model_t *model)
{
    const double sharers = (double)model->train->grid.dp * model->train->micro;
    return lap_optimizer_step(model->optimizer, (float)(1 / (sharers * model->scale.scale)), NULL);
}

/* What was deferred is one program. */
static lap_status_t end_issue(const lap_train_model_t *model)
{
    if (model->steps && model->micro + 1 == model->train->micro)
        LAP_TRY(begin_step(model));
    return lap_nn_flush(model->nn);
}

/* The line of a part of the work, with its micro-batch where there are several. */
static void say_part(const lap_train_model_t *model, int micro, const char *what)
{
    const lap_train_t *train = model->train;
    if (train->micro == 1)
        lap_train_say(train, model->groups.tp, "|-- %s", what);
    else
        lap_train_say(train, model->groups.tp, "|-- %s, micro-batch %d of %d", what, micro + 1,
                      train->micro);
}

static lap_status_t begin_model(lap_train_model_t *model, int micro, bool says)
{
    const size_t at = (size_t)micro * tokens_of(model->train);
    if (says)
        say_part(model, micro, "Forward pass and loss");
    LAP_TRY(lap_model_samples(model->nn, model->sample + first_sequence(model, micro)));
    LAP_TRY(lap_model_forward(model->nn, model->train->desc.seq, model->tokens + at,
                              model->targets + at));
    if (says)
        say_part(model, micro, "Backward pass");
    LAP_TRY(lap_model_backward(model->nn));
    return end_issue(model);
}

lap_status_t lap_train_begin(lap_train_model_t *model, int micro, bool says)
{
    const lap_train_t *train = model->train;
    lap_train_forget(model);
    if (micro == 0) {
        lap_nn_zero_gradients(model->nn);
        LAP_TRY(lap_nn_scale_loss(model->nn, (float)model->scale.scale));
        model->loss = 0;
        model->not_finite = -1;
    }
    model->micro = micro;
    if (model->pp) {
        lap_train_say(train, says ? model->groups.tp : NULL, "|-- Pipeline of %d micro-batches",
                      train->micro);
        LAP_TRY(lap_model_samples(model->nn, model->sample + first_sequence(model, 0)));
        return lap_pp_step(model->pp, train->desc.seq, model->tokens, model->targets);
    }
    lap_nn_accumulate(model->nn, micro + 1 < train->micro);
    if (model->tokens)
        return begin_model(model, micro, says);
    const lap_tensor_t x = part_of(model->x, micro), target = part_of(model->target, micro);
    if (says)
        say_part(model, micro, "Forward pass");
    LAP_TRY(lap_nn_forward(model->nn, train->desc.seq, &x, &model->y));
    if (says)
        say_part(model, micro, "Compute loss");
    LAP_TRY(lap_nn_loss(model->nn, &model->y, &target, &model->y));
    if (says)
        say_part(model, micro, "Backward pass");
    LAP_TRY(lap_nn_backward(model->nn, &model->y, &model->dx));
    return end_issue(model);
}

lap_status_t lap_train_wait(lap_train_model_t *model)
{
    return model->pp ? lap_pp_wait(model->pp) : lap_nn_wait(model->nn);
}

lap_status_t lap_train_add_loss(lap_train_model_t *model)
{
    double loss;
    LAP_TRY(model->pp ? lap_pp_loss(model->pp, &loss) : lap_nn_loss_value(model->nn, &loss));
    model->loss += model->pp ? loss : loss / model->train->micro;
    if (!isfinite(loss) && model->not_finite < 0)
        model->not_finite = model->micro;
    return LAP_OK;
}

lap_status_t lap_train_sync(lap_train_model_t *model, double *loss_p)
{
    double loss = model->loss;
    if (model->dp && !model->steps)
        LAP_TRY(lap_dp_wait(model->dp));
    if (model->groups.replicas)
        LAP_TRY(lap_group_mean(model->groups.replicas, &loss, 1));
    *loss_p = isnan(loss) ? (double)NAN : loss; /* without a sign, which some processors give it */
    return LAP_OK;
}

lap_status_t lap_train_step(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    const lap_train_t *train = model->train;
    iteration->scale = model->scale.scale;
    if (!model->steps)
        LAP_TRY(begin_step(model));
    LAP_TRY(lap_optimizer_norm(model->optimizer, &iteration->norm));
    if (train->dynamic) {
        const bool made = isfinite(iteration->norm);
        const bool goes_on = lap_loss_scale_update(&model->scale, made);
        iteration->skipped = !made && goes_on;
    }
    iteration->skips = model->scale.skipped;
    return lap_nn_wait(model->nn);
}

/* ---- numbers that are not finite ---- */

/* Of this rank's replica, if its loss is not finite, or no loss is to blame. Collective. */
static lap_status_t find_not_finite(lap_train_model_t *model, double loss,
                                    lap_nn_not_finite_t *found)
{
    const int micro = model->not_finite < 0 ? 0 : model->not_finite;
    const lap_tensor_t x = part_of(model->x, micro);
    if ((!isfinite(loss) && model->not_finite < 0) || model->pp)
        return LAP_OK;
    if (model->tokens) /* it looks at the latest ones */
        LAP_TRY(lap_model_forward(model->nn, model->train->desc.seq,
                                  model->tokens + (size_t)micro * tokens_of(model->train), NULL));
    LAP_TRY(lap_nn_find_not_finite(model->nn, model->train->desc.seq, &x, &model->y, found));
    found->rank = lap_group_world_rank(model->groups.tp, found->rank);
    return LAP_OK;
}

lap_status_t lap_train_tell_not_finite(lap_train_model_t *model, int index, const char *way,
                                       double loss, double norm)
{
    static const char *const kinds[] = {"nothing", "parameter", "activation", "gradient of"};
    const lap_train_t *train = model->train;
    lap_nn_not_finite_t found = {.what = LAP_NN_ALL_FINITE};
    void *all;
    if (train->desc.shards > 1) /* by all: only replicas that look compute forward */
        LAP_TRY(lap_nn_refresh(model->nn));
    LAP_TRY(find_not_finite(model, loss, &found));
    LAP_TRY(lap_group_collect(model->groups.world, &found, sizeof(found), &all));
    for (int r = lap_group_size(model->groups.world); r-- > 0;)
        if (((lap_nn_not_finite_t *)all)[r].what != LAP_NN_ALL_FINITE)
            found = ((lap_nn_not_finite_t *)all)[r];
    lap_free(all);
    model->reported = true;
    if (lap_group_rank(model->groups.world) != 0)
        return LAP_OK;
    char where[160] = "all parameters, activations and gradients are finite";
    if (model->pp)
        snprintf(where, sizeof(where), "with --pp no tensor is looked for");
    if (found.what != LAP_NN_ALL_FINITE)
        snprintf(where, sizeof(where), "the first tensor that is not finite is %s %s, of rank %d",
                 kinds[found.what], found.name, found.rank);
    const bool of_loss = !isfinite(loss), scaled = !of_loss && model->scale.scale > 1;
    const double value = of_loss ? loss : norm;
    char why[PATH_MAX + 64];
    if (train->load && index == model->loaded)
        snprintf(why, sizeof(why), "%s --load %s",
                 found.what == LAP_NN_PARAMETER ? "no step was made since it came with"
                                                : "no step was made since",
                 train->load);
    else if (scaled) /* a dynamic scale has fallen as far as it may */
        snprintf(why, sizeof(why), "--%s, which is %g, or --lr, which is %g, may be too large",
                 train->dynamic ? "min-loss-scale" : "loss-scale", model->scale.scale,
                 (double)train->optimizer.lr);
    else
        snprintf(why, sizeof(why), "--lr, which is %g, may be too large",
                 (double)train->optimizer.lr);
    lap_tell(lap_train_command.name, "iteration %d%s: the %s is %g: %s; %s%s", index + 1, way,
             of_loss ? "loss" : "norm of the gradients", isnan(value) ? fabs(value) : value, where,
             why, train->goes_on ? "" : " (--continue-on-nan goes on)");
    return LAP_OK;
}
