/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of the descriptions of layers and optimizers, and of rules: a row each. */
#ifndef LAP_NN_NN_FIELDS_H
#define LAP_NN_NN_FIELDS_H

#include <stdbool.h>

#include <lap/nn.h>

#include "core/fields.h"

#define LAP_NN_OF_WEIGHTS 1u  /* a mark: it says what the weights are, which replicas have alike */
#define LAP_NN_OF_FUNCTION 2u /* a mark: it says what layers compute with them */

/* The words of some of them, by value; NULL at the end. */
extern const char *const lap_nn_kind_names[];
extern const char *const lap_cp_comm_names[];
extern const char *const lap_norm_names[];
extern const char *const lap_activation_names[];
extern const char *const lap_recompute_names[];
extern const char *const lap_positions_names[];
extern const char *const lap_fp8_recipe_names[];
extern const char *const lap_optimizer_names[];
extern const char *const lap_lr_decay_names[];

/* In the order of lap_nn_desc_t and lap_optimizer_desc_t; the last rows have no name. */
extern const lap_field_t lap_nn_fields[];
extern const lap_field_t lap_optimizer_fields[];

/* Heads of keys: as many as there are heads, unless a description says how many. */
static inline size_t lap_nn_kv_heads(const lap_nn_desc_t *desc)
{
    return desc->kv_heads ? desc->kv_heads : desc->heads;
}

/* Features between the GEMMs of an MLP: four times as wide as the layer, unless a description says how wide. */
static inline size_t lap_nn_ffn(const lap_nn_desc_t *desc)
{
    return desc->ffn ? desc->ffn : 4 * desc->hidden;
}

/* Layers of two blocks. */
static inline bool lap_nn_is_transformer(const lap_nn_desc_t *desc)
{
    return desc->kind == LAP_NN_TRANSFORMER || desc->kind == LAP_NN_MODEL;
}

static inline bool lap_nn_has_attention(const lap_nn_desc_t *desc)
{
    return desc->kind == LAP_NN_ATTENTION || lap_nn_is_transformer(desc);
}

#endif
