/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes through language models: tokens are checked, put into the order of rows and sorted here,
 * so that kernels find them as they need them; and the kernels that only such models have are
 * issued. Which there are is in model.c.
 */
#include <lap/model.h>

#include <math.h>

#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"

/* ---- making ---- */

/* As LlamaRotaryEmbedding of Hugging Face's transformers does it for rope_type "llama3". */
double lap_nn_rope_rate(const lap_nn_desc_t *desc, size_t i)
{
    const double rate = pow((double)desc->rope_theta, -2.0 * (double)i / (double)desc->head_dim);
    const double low = (double)desc->rope_low_freq, high = (double)desc->rope_high_freq;
    const double turns = (double)desc->rope_original * rate / 6.283185307179586477;
    const double slow = rate / (double)desc->rope_factor;
    if (turns > high)
        return rate;
    if (turns < low)
        return slow;
    const double part = (turns - low) / (high - low);
    return (1 - part) * slow + part * rate;
}

/* Cosines and sines are computed here in double, and copied: they are the same on all devices. */
static lap_status_t fill_rope(lap_nn_t *nn, float *angles)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const lap_tensor_t table = nn->tensors[nn->list.rope];
    const size_t dim = desc->head_dim, half = dim / 2, bytes = desc->seq * dim * sizeof(float);
    const lap_copy_t copy = {.dst = table.data,
                             .src = angles,
                             .rows = 1,
                             .row_bytes = bytes,
                             .dst_stride = bytes,
                             .src_stride = bytes};
    lap_stream_t *stream;
    for (size_t i = 0; i < half; i++) {
        const double rate = lap_nn_rope_rate(desc, i);
        for (size_t s = 0; s < desc->seq; s++) {
            angles[s * dim + i] = (float)cos((double)s * rate);
            angles[s * dim + half + i] = (float)sin((double)s * rate);
        }
    }
    LAP_TRY(lap_nn_stream(nn, &stream));
    LAP_TRY(nn->engine->device->ops->copy(stream, &copy));
    return lap_nn_settle(nn);
}

lap_status_t lap_nn_model_start(lap_nn_t *nn)
{
    const lap_nn_list_t *list = &nn->list;
    lap_device_t *device = nn->engine->device;
    void *memory;
    if (lap_nn_list_is_model(list)) {
        const size_t micros = lap_nn_micros(list);
        LAP_TRY(device->ops->alloc_shared(
            device, micros * list->plan.m * LAP_ID_COLS * sizeof(int32_t), &memory));
        nn->tokens.ids = memory;
        LAP_TRY(device->ops->alloc_shared(device, micros * sizeof(*nn->tokens.entropy), &memory));
        nn->tokens.entropy = memory;
        nn->tokens.starts = lap_alloc(list->plan.desc.vocab + 1, sizeof(*nn->tokens.starts));
        if (!nn->tokens.starts)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for a vocabulary of %zu tokens",
                             list->plan.desc.vocab);
        nn->tensors[list->tokens].data = nn->tokens.ids;
    }
    if (list->rope == LAP_NN_NONE)
        return LAP_OK;
    const size_t count = list->plan.desc.seq * list->plan.desc.head_dim;
    LAP_TRY(device->ops->alloc_shared(device, count * sizeof(float), &memory));
    const lap_status_t status = fill_rope(nn, memory);
    device->ops->free_shared(device, memory);
    return status;
}

/* ---- tokens ---- */

/* All tokens are of the vocabulary, and some targets are. */
static lap_status_t check_tokens(const lap_nn_t *nn, size_t seq, const int32_t *tokens,
                                 const int32_t *targets, size_t *counted_p)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    size_t counted = 0;
    for (size_t i = 0; i < desc->batch * seq; i++) {
        const bool wrong = tokens[i] < 0 || (size_t)tokens[i] >= desc->vocab;
        if (wrong || (targets && targets[i] >= 0 && (size_t)targets[i] >= desc->vocab))
            return lap_error(LAP_ERR_INVALID,
                             "%s %zu of sequence %zu is %d, expected %s%zu, the last of the "
                             "vocabulary",
                             wrong ? "token" : "target", i % seq, i / seq,
                             (int)(wrong ? tokens[i] : targets[i]), wrong ? "0 to " : "at most ",
                             desc->vocab - 1);
        counted += targets && targets[i] >= 0;
    }
    if (targets && counted == 0)
        return lap_error(LAP_ERR_INVALID,
                         "all %zu targets are below 0, expected at least one that counts",
                         desc->batch * seq);
    *counted_p = counted;
    return LAP_OK;
}

/*
 * Row s * batch + b is token s of sequence b, of those that are here. LAP_ID_BY_TOKEN is a counting
 * sort of the tokens.
 */
static void put_tokens(lap_nn_t *nn, int32_t *all, size_t seq, const int32_t *tokens,
                       const int32_t *targets)
{
    const size_t batch = nn->list.plan.desc.batch, vocab = nn->list.plan.desc.vocab;
    const size_t rows = lap_nn_tokens(&nn->list, seq) * batch;
    const lap_halves_t halves = lap_nn_halves(&nn->list, seq);
    for (size_t token = 0; token <= vocab; token++)
        nn->tokens.starts[token] = 0;
    for (size_t row = 0; row < rows; row++) {
        const size_t from = row % batch * seq + lap_position(halves, row / batch);
        int32_t *ids = all + row * LAP_ID_COLS;
        ids[LAP_ID_TOKEN] = tokens[from];
        ids[LAP_ID_TARGET] = targets ? targets[from] : -1;
        ids[LAP_ID_SAMPLE] =
            targets ? (int32_t)((nn->sample + row % batch) & (uint64_t)INT32_MAX) : -1;
        nn->tokens.starts[tokens[from] + 1]++;
    }
    for (size_t token = 0; token < vocab; token++)
        nn->tokens.starts[token + 1] += nn->tokens.starts[token];
    for (size_t row = 0; row < rows; row++) {
        const size_t place = nn->tokens.starts[all[row * LAP_ID_COLS + LAP_ID_TOKEN]]++;
        all[place * LAP_ID_COLS + LAP_ID_BY_TOKEN] = (int32_t)row;
    }
    nn->sample += targets ? batch : 0;
}

lap_status_t lap_nn_put_micro(lap_nn_t *nn, uint32_t micro, size_t seq, const int32_t *tokens,
                              const int32_t *targets, size_t *counted_p)
{
    LAP_TRY(lap_nn_check_seq(nn, seq));
    LAP_TRY(check_tokens(nn, seq, tokens, targets, counted_p));
    put_tokens(nn, nn->tokens.ids + micro * nn->list.plan.m * LAP_ID_COLS, seq, tokens, targets);
    nn->tokens.entropy[micro] = lap_nn_loss_factor(nn) / (float)*counted_p;
    return LAP_OK;
}

/* ---- passes ---- */

static lap_status_t check_model(const lap_nn_t *nn, const char *caller)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "%s: nn is NULL", caller);
    if (!lap_nn_list_is_model(&nn->list))
        return lap_error(LAP_ERR_INVALID, "%s: the layers are of kind %s, expected a model", caller,
                         lap_nn_kind_name(nn->list.plan.desc.kind));
    return LAP_OK;
}

/* That has passes of its own. */
static lap_status_t check_whole(const lap_nn_t *nn, const char *caller)
{
    LAP_TRY(check_model(nn, caller));
    return lap_nn_list_is_stage(&nn->list)
               ? lap_error(LAP_ERR_INVALID,
                           "%s: this is a stage of a pipeline, expected lap_pp_step", caller)
               : LAP_OK;
}

static lap_status_t take_forward(lap_nn_t *nn, size_t seq, const int32_t *tokens,
                                 const int32_t *targets)
{
    size_t counted = 0;
    LAP_TRY(check_whole(nn, "lap_model_forward"));
    LAP_TRY(lap_nn_check_seq(nn, seq));
    if (!tokens)
        return lap_error(LAP_ERR_INVALID, "tokens is NULL, expected %zu of them",
                         seq * nn->list.plan.desc.batch);
    LAP_TRY(check_tokens(nn, seq, tokens, targets, &counted));
    LAP_TRY(lap_nn_begin_forward(nn, seq));
    put_tokens(nn, nn->tokens.ids, seq, tokens, targets);
    nn->loss_count = counted;
    *nn->tokens.entropy = counted > 0 ? lap_nn_loss_factor(nn) / (float)counted : 0;
    return LAP_OK;
}

lap_status_t lap_model_forward(lap_nn_t *nn, size_t seq, const int32_t *tokens,
                               const int32_t *targets)
{
    LAP_TRY(take_forward(nn, seq, tokens, targets));
    return lap_nn_run_forward(nn, targets ? LAP_NN_LOSS_PART : LAP_NN_FORWARD);
}

lap_status_t lap_model_micro(lap_nn_t *nn, size_t seq, const int32_t *tokens,
                             const int32_t *targets, bool steps)
{
    LAP_TRY(take_forward(nn, seq, tokens, targets));
    return lap_nn_run_micro(nn, steps);
}

lap_status_t lap_model_samples(lap_nn_t *nn, uint64_t first)
{
    LAP_TRY(check_model(nn, "lap_model_samples"));
    nn->sample = first;
    return LAP_OK;
}

lap_status_t lap_model_again(lap_nn_t *nn)
{
    if (nn->seq == 0)
        return lap_error(
            LAP_ERR_INVALID,
            "lap_nn_find_not_finite: there was no forward, expected lap_model_forward");
    nn->loss_count = 0; /* there are logits then, and no gradients of them */
    LAP_TRY(lap_nn_begin_forward(nn, nn->seq));
    return lap_nn_run_forward(nn, LAP_NN_FORWARD);
}

lap_status_t lap_model_backward(lap_nn_t *nn)
{
    LAP_TRY(check_whole(nn, "lap_model_backward"));
    if (nn->seq == 0 || nn->loss_count == 0)
        return lap_error(LAP_ERR_INVALID,
                         "lap_model_backward: expected a lap_model_forward with targets before");
    return lap_nn_run_backward(nn);
}

lap_status_t lap_model_logits(lap_nn_t *nn, lap_tensor_t *logits_p, size_t *first_p)
{
    LAP_TRY(check_whole(nn, "lap_model_logits"));
    if (!logits_p)
        return lap_error(LAP_ERR_INVALID, "lap_model_logits: logits_p is NULL");
    if (nn->seq == 0 || nn->loss_count > 0)
        return lap_error(LAP_ERR_INVALID,
                         "lap_model_logits: expected a lap_model_forward without targets before");
    *logits_p = lap_nn_tensor(nn, nn->list.y);
    logits_p->cols = lap_nn_vocab_share(&nn->list.plan, nn->list.rank, first_p);
    return LAP_OK;
}
