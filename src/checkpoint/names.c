/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of tensors: those that Hugging Face's transformers have for GPT-2 and Llama, where a model is one of
 * these; else those of the parameters. GPT-2's matrices are transposed there. Llama
 * has matrices of their own for queries, keys and values, and for the two halves of SwiGLU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "nn/nn.h"

typedef struct row {
    const char *ours; /* after "layer0.", if it is of a layer */
    bool of_layer, turned;
    const char *theirs[LAP_NN_PARTS]; /* with the number of the layer */
} row_t;

static const row_t gpt2[] = {
    {"embedding.weight", false, false, {"transformer.wte.weight"}},
    {"positions.weight", false, false, {"transformer.wpe.weight"}},
    {"norm1.weight", true, false, {"transformer.h.%zu.ln_1.weight"}},
    {"norm1.bias", true, false, {"transformer.h.%zu.ln_1.bias"}},
    {"qkv.weight", true, true, {"transformer.h.%zu.attn.c_attn.weight"}},
    {"qkv.bias", true, false, {"transformer.h.%zu.attn.c_attn.bias"}},
    {"proj.weight", true, true, {"transformer.h.%zu.attn.c_proj.weight"}},
    {"proj.bias", true, false, {"transformer.h.%zu.attn.c_proj.bias"}},
    {"norm2.weight", true, false, {"transformer.h.%zu.ln_2.weight"}},
    {"norm2.bias", true, false, {"transformer.h.%zu.ln_2.bias"}},
    {"fc1.weight", true, true, {"transformer.h.%zu.mlp.c_fc.weight"}},
    {"fc1.bias", true, false, {"transformer.h.%zu.mlp.c_fc.bias"}},
    {"fc2.weight", true, true, {"transformer.h.%zu.mlp.c_proj.weight"}},
    {"fc2.bias", true, false, {"transformer.h.%zu.mlp.c_proj.bias"}},
    {"final_norm.weight", false, false, {"transformer.ln_f.weight"}},
    {"final_norm.bias", false, false, {"transformer.ln_f.bias"}},
    {"head.weight", false, false, {"lm_head.weight"}},
    {.ours = NULL},
};

static const row_t llama[] = {
    {"embedding.weight", false, false, {"model.embed_tokens.weight"}},
    {"norm1.weight", true, false, {"model.layers.%zu.input_layernorm.weight"}},
    {"qkv.weight",
     true,
     false,
     {"model.layers.%zu.self_attn.q_proj.weight", "model.layers.%zu.self_attn.k_proj.weight",
      "model.layers.%zu.self_attn.v_proj.weight"}},
    {"proj.weight", true, false, {"model.layers.%zu.self_attn.o_proj.weight"}},
    {"norm2.weight", true, false, {"model.layers.%zu.post_attention_layernorm.weight"}},
    {"fc1.weight",
     true,
     false,
     {"model.layers.%zu.mlp.gate_proj.weight", "model.layers.%zu.mlp.up_proj.weight"}},
    {"fc2.weight", true, false, {"model.layers.%zu.mlp.down_proj.weight"}},
    {"final_norm.weight", false, false, {"model.norm.weight"}},
    {"head.weight", false, false, {"lm_head.weight"}},
    {.ours = NULL},
};

static bool is_gpt2(const lap_nn_desc_t *desc)
{
    return desc->kind == LAP_NN_MODEL && desc->positions == LAP_POSITIONS_LEARNED &&
           desc->norm == LAP_LAYERNORM && desc->activation == LAP_GELU && desc->bias &&
           desc->kv_heads == desc->heads;
}

static bool is_llama(const lap_nn_desc_t *desc)
{
    return desc->kind == LAP_NN_MODEL && desc->positions == LAP_POSITIONS_ROPE &&
           desc->norm == LAP_RMSNORM && desc->activation == LAP_SWIGLU && !desc->bias;
}

const char *lap_ckpt_model(const lap_nn_desc_t *desc)
{
    return is_gpt2(desc) ? "gpt2" : is_llama(desc) ? "llama" : NULL;
}

/* The row of a parameter; *layer_p: of which layer it is. */
static const row_t *find_row(const lap_nn_desc_t *desc, const char *name, size_t *layer_p)
{
    const row_t *row = is_gpt2(desc) ? gpt2 : is_llama(desc) ? llama : NULL;
    const size_t word = strlen("layer");
    const bool begins = strncmp(name, "layer", word) == 0;
    const size_t digits = begins ? strspn(name + word, "0123456789") : 0;
    const bool of_layer = digits > 0 && name[word + digits] == '.';
    const size_t prefix = of_layer ? word + digits + 1 : 0;
    *layer_p = of_layer ? strtoul(name + word, NULL, 10) : 0;
    for (; row && row->ours; row++)
        if (row->of_layer == of_layer && strcmp(row->ours, name + prefix) == 0)
            return row;
    return NULL;
}

/* How many rows of the whole each of a parameter's parts has. */
static void split_rows(const lap_nn_desc_t *desc, const lap_nn_param_t *param, size_t count,
                       size_t rows[LAP_NN_PARTS])
{
    const size_t dim = desc->head_dim;
    rows[0] = param->all_rows;
    if (count == 3) {
        rows[0] = desc->heads * dim;
        rows[1] = rows[2] = desc->kv_heads * dim;
    } else if (count == 2) {
        rows[0] = rows[1] = param->all_rows / 2;
    }
}

void lap_ckpt_names(const lap_nn_t *nn, const lap_nn_param_t *param, lap_ckpt_tensors_t *tensors_p)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    size_t layer = 0;
    const row_t *row = find_row(desc, param->name, &layer);
    *tensors_p = (lap_ckpt_tensors_t){.count = 1, .turned = row && row->turned};
    if (!row)
        snprintf(tensors_p->names[0], LAP_ST_NAME, "%s", param->name);
    for (size_t i = 0; row && i < LAP_NN_PARTS && row->theirs[i]; i++) {
        /* A row without a number has no use for it. */
        const char *number = strstr(row->theirs[i], "%zu");
        const int before = number ? (int)(number - row->theirs[i]) : (int)strlen(row->theirs[i]);
        if (number)
            snprintf(tensors_p->names[i], LAP_ST_NAME, "%.*s%zu%s", before, row->theirs[i], layer,
                     number + strlen("%zu"));
        else
            snprintf(tensors_p->names[i], LAP_ST_NAME, "%s", row->theirs[i]);
        tensors_p->count = i + 1;
    }
    split_rows(desc, param, tensors_p->count, tensors_p->rows);
}
