/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of nn_fields.h. What fields mean together is in plan.c and optimizer.c. */
#include "nn/nn_fields.h"

#include <lap/optimizer.h>

#include "overlap/overlap.h"

const char *const lap_nn_kind_names[] = {
    "linear", "layernorm_linear", "layernorm_mlp", "attention", "transformer", "model", NULL};
const char *const lap_positions_names[] = {"none", "learned", "rope", NULL};
const char *const lap_norm_names[] = {"layernorm", "rmsnorm", NULL};
const char *const lap_activation_names[] = {"gelu", "swiglu", NULL};
const char *const lap_recompute_names[] = {"none", "selective", "full", NULL};
const char *const lap_fp8_recipe_names[] = {"none", "delayed", "current", NULL};
const char *const lap_cp_comm_names[] = {"p2p", "all_gather", "a2a", "a2a+p2p", NULL};
const char *const lap_optimizer_names[] = {"sgd", "adamw", NULL};
const char *const lap_lr_decay_names[] = {"constant", "linear", "cosine", NULL};

#define NN(field, type) LAP_FIELD(lap_nn_desc_t, field, LAP_FIELD_##type)
#define WEIGHTS .marks = LAP_NN_OF_WEIGHTS
#define FUNCTION .marks = (LAP_NN_OF_WEIGHTS | LAP_NN_OF_FUNCTION)
#define SIZE .least = 1, .most = LAP_SIZE_MOST

const lap_field_t lap_nn_fields[] = {
    {NN(size, SKIPPED)},
    {NN(kind, CHOICE), .words = lap_nn_kind_names, .prefix = "LAP_NN_", FUNCTION},
    {NN(layers, UNSIGNED), SIZE, FUNCTION},
    {NN(seq, UNSIGNED), SIZE},
    {NN(batch, UNSIGNED), SIZE},
    {NN(hidden, UNSIGNED), SIZE, FUNCTION},
    {NN(features, UNSIGNED), FUNCTION},
    {NN(ffn, UNSIGNED), FUNCTION},
    {NN(heads, UNSIGNED), FUNCTION},
    {NN(kv_heads, UNSIGNED), FUNCTION},
    {NN(head_dim, UNSIGNED), FUNCTION},
    {NN(dtype, DTYPE), WEIGHTS},
    {NN(norm, CHOICE), .words = lap_norm_names, FUNCTION},
    {NN(activation, CHOICE), .words = lap_activation_names, FUNCTION},
    {NN(epsilon, POSITIVE), FUNCTION},
    {NN(bias, FLAG), FUNCTION},
    {NN(row_parallel, FLAG), WEIGHTS},
    {NN(sequence_parallel, FLAG)},
    {NN(recompute, CHOICE), .words = lap_recompute_names, .prefix = "LAP_RECOMPUTE_"},
    {NN(fp8, CHOICE), .words = lap_fp8_recipe_names, .prefix = "LAP_FP8_", WEIGHTS},
    {NN(amax_history, UNSIGNED), WEIGHTS},
    {NN(overlap, SKIPPED)}, /* each of its rules is compared */
    {NN(buffer, SKIPPED)},
    {NN(buffer_options, SKIPPED)}, /* a buffer compares them itself */
    {NN(seed, UNSIGNED), WEIGHTS},
    {NN(init_std, SINGLE), WEIGHTS},
    {NN(loss_scale, POSITIVE)},
    {NN(debug, SKIPPED)}, /* it changes nothing */
    {NN(vocab, UNSIGNED), FUNCTION},
    {NN(max_positions, UNSIGNED), FUNCTION},
    {NN(positions, CHOICE), .words = lap_positions_names, .prefix = "LAP_POSITIONS_", FUNCTION},
    {NN(tied, FLAG), FUNCTION},
    {NN(rope_theta, POSITIVE), FUNCTION},
    {NN(attention_dropout, SINGLE), .least = 0, .most = 1},
    {NN(hidden_dropout, SINGLE), .least = 0, .most = 1},
    {NN(cp, UNSIGNED)},
    {NN(cp_comm, CHOICE), .words = lap_cp_comm_names},
    {NN(cp_a2a, UNSIGNED)},
    {NN(cp_overlap, FLAG)},
    {NN(cp_group, SKIPPED)},
    {NN(rope_factor, POSITIVE), FUNCTION},
    {NN(rope_low_freq, POSITIVE), FUNCTION},
    {NN(rope_high_freq, POSITIVE), FUNCTION},
    {NN(rope_original, UNSIGNED), SIZE, FUNCTION},
    {NN(shards, UNSIGNED), WEIGHTS},
    {NN(shard_bucket, UNSIGNED), WEIGHTS},
    {NN(shard_group, SKIPPED)},
    {NN(shard_by_layer, FLAG), WEIGHTS},
    {NN(fp8_params, FLAG), WEIGHTS},
    {.name = NULL},
};

#define OPTIMIZER(field, type) LAP_FIELD(lap_optimizer_desc_t, field, LAP_FIELD_##type)

const lap_field_t lap_optimizer_fields[] = {
    {OPTIMIZER(size, SKIPPED)},
    {OPTIMIZER(kind, CHOICE), .words = lap_optimizer_names},
    {OPTIMIZER(lr, SINGLE)},
    {OPTIMIZER(momentum, SINGLE), .most = 1},
    {OPTIMIZER(beta1, SINGLE), .most = 1},
    {OPTIMIZER(beta2, SINGLE), .most = 1},
    {OPTIMIZER(epsilon, POSITIVE)},
    {OPTIMIZER(weight_decay, SINGLE)},
    {OPTIMIZER(clip_norm, SINGLE)},
    {OPTIMIZER(warmup, UNSIGNED)},
    {OPTIMIZER(lr_decay, CHOICE), .words = lap_lr_decay_names, .prefix = "LAP_LR_"},
    {OPTIMIZER(lr_decay_steps, UNSIGNED)},
    {OPTIMIZER(min_lr, SINGLE)},
    {.name = NULL},
};
