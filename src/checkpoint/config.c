/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.json of Hugging Face's transformers, as it lies beside weights of GPT-2 and Llama: which fields of layers it
 * gives, and which of its keys ask for what no layers here have. Keys that shapes of tensors tell are not compared.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "core/fields.h"
#include "core/file.h"
#include "nn/nn.h"

#define LLAMA3 "llama3" /* the one way to stretch rotary positions that layers here have */
#define UNSCALED "default"

/* Keys that are true or false: what these models are here, where no field says it. */
static const struct {
    const char *key, *model, *here;
} flags[] = {
    {"attention_bias", "llama", "false"},
    {"mlp_bias", "llama", "false"},
    {"scale_attn_weights", "gpt2", "true"},
    {"scale_attn_by_inverse_layer_idx", "gpt2", "false"},
};
enum { NFLAGS = sizeof(flags) / sizeof(flags[0]) };

/* ---- written ---- */

size_t lap_ckpt_config(const lap_nn_t *nn, char *text, size_t room)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const char *model = lap_ckpt_model(desc);
    const char *tied = desc->tied ? "true" : "false";
    int used = 0;
    char scaling[200] = "";
    if (desc->rope_factor != 1)
        snprintf(
            scaling, sizeof(scaling),
            "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":%.9g,\"low_freq_factor\":%.9g,"
            "\"high_freq_factor\":%.9g,\"original_max_position_embeddings\":%zu},",
            (double)desc->rope_factor, (double)desc->rope_low_freq, (double)desc->rope_high_freq,
            desc->rope_original);
    text[0] = '\0';
    if (model && strcmp(model, "gpt2") == 0)
        used = snprintf(
            text, room,
            "{\"architectures\":[\"GPT2LMHeadModel\"],\"model_type\":\"gpt2\","
            "\"vocab_size\":%zu,\"n_positions\":%zu,\"n_embd\":%zu,\"n_layer\":%zu,"
            "\"n_head\":%zu,\"n_inner\":%zu,\"activation_function\":\"gelu_new\","
            "\"layer_norm_epsilon\":%.9g,\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,"
            "\"attn_pdrop\":0.0,\"tie_word_embeddings\":%s,\"torch_dtype\":\"float32\"}\n",
            desc->vocab, desc->max_positions ? desc->max_positions : desc->seq, desc->hidden,
            desc->layers, desc->heads, desc->ffn, (double)desc->epsilon, tied);
    else if (model)
        used = snprintf(text, room,
                        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                        "\"vocab_size\":%zu,\"max_position_embeddings\":%zu,\"hidden_size\":%zu,"
                        "\"num_hidden_layers\":%zu,\"num_attention_heads\":%zu,"
                        "\"num_key_value_heads\":%zu,\"head_dim\":%zu,\"intermediate_size\":%zu,"
                        "\"hidden_act\":\"silu\",\"rms_norm_eps\":%.9g,\"rope_theta\":%.9g,%s"
                        "\"attention_bias\":false,\"mlp_bias\":false,\"tie_word_embeddings\":%s,"
                        "\"torch_dtype\":\"float32\"}\n",
                        desc->vocab, desc->seq, desc->hidden, desc->layers, desc->heads,
                        desc->kv_heads, desc->head_dim, desc->ffn, (double)desc->epsilon,
                        (double)desc->rope_theta, scaling, tied);
    return (size_t)used;
}

/* ---- keys ---- */

/* What follows a key, wherever it is in a text of JSON; NULL: it is not there. */
static const char *find_key(const char *text, const char *key)
{
    char quoted[40];
    snprintf(quoted, sizeof(quoted), "\"%s\"", key);
    const char *at = strstr(text, quoted);
    if (!at)
        return NULL;
    at += strlen(quoted);
    return at + strspn(at, " \t\r\n:");
}

static bool find_number(const char *text, const char *key, double *number_p)
{
    char *end;
    const char *at = find_key(text, key);
    if (!at)
        return false;
    *number_p = strtod(at, &end);
    return end > at;
}

static bool find_string(const char *text, const char *key, char string[32])
{
    const char *at = find_key(text, key);
    return at && sscanf(at, "\"%31[^\"]\"", string) == 1;
}

/* "true" or "false"; NULL: neither is there. */
static const char *find_flag(const char *text, const char *key)
{
    const char *at = find_key(text, key);
    if (!at)
        return NULL;
    return strncmp(at, "true", 4) == 0 ? "true" : strncmp(at, "false", 5) == 0 ? "false" : NULL;
}

/* ---- read ---- */

static void add_number(lap_ckpt_fields_t *fields, const char *text, const char *key,
                       const char *name)
{
    char value[LAP_SINGLE_TEXT];
    double number;
    if (find_number(text, key, &number))
        lap_ckpt_add_field(fields, name, lap_single_text((float)number, value));
}

/* Hugging Face's "gelu" is that of the error function: ours is that of tanh, as GPT-2's. */
static void add_activation(lap_ckpt_fields_t *fields, const char *text, const char *key)
{
    static const char *const names[][2] = {
        {"gelu_new", "gelu"}, {"gelu_fast", "gelu"}, {"gelu_pytorch_tanh", "gelu"},
        {"silu", "swiglu"},   {"swish", "swiglu"},   {"gelu", "gelu with erf"},
    };
    char name[32] = "";
    if (!find_string(text, key, name))
        return;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i][0]) == 0) {
            lap_ckpt_add_field(fields, "activation", names[i][1]);
            return;
        }
    lap_ckpt_add_field(fields, "activation", name);
}

/* Other models have tensors of the same names, and compute something else. Mistral is a Llama with a window. */
static void add_model(lap_ckpt_fields_t *fields, const char *text)
{
    char name[32] = "";
    if (find_string(text, "model_type", name))
        lap_ckpt_add_field(fields, "model_type", strcmp(name, "mistral") == 0 ? "llama" : name);
}

/* How rotary positions are stretched. */
static void add_scaling(lap_ckpt_fields_t *fields, const char *object, const char *type)
{
    if (strcmp(type, LLAMA3) == 0) {
        add_number(fields, object, "factor", "rope_factor");
        add_number(fields, object, "low_freq_factor", "rope_low_freq");
        add_number(fields, object, "high_freq_factor", "rope_high_freq");
        add_number(fields, object, "original_max_position_embeddings", "rope_original");
    } else if (strcmp(type, UNSCALED) == 0) {
        lap_ckpt_add_field(fields, "rope_factor", "1");
    } else {
        lap_ckpt_add_field(fields, "rope_type", type);
    }
}

/* Llamas of the first versions have no keys for their angles: they are not stretched, and their base is 10000. */
static void add_rope(lap_ckpt_fields_t *fields, const char *text)
{
    char type[32] = UNSCALED, object[1024] = "";
    const char *at = find_key(text, "rope_scaling");
    if (!at || *at != '{')
        at = find_key(text, "rope_parameters"); /* of newer versions, with the base */
    if (at && *at == '{')
        snprintf(object, sizeof(object), "%.*s", (int)strcspn(at, "}"), at);
    if (!find_string(object, "rope_type", type))
        find_string(object, "type", type);
    add_scaling(fields, object, type);
    if (find_key(text, "rope_theta"))
        add_number(fields, text, "rope_theta", "rope_theta");
    else
        lap_ckpt_add_field(fields, "rope_theta", "10000");
    add_number(fields, text, "partial_rotary_factor", "partial_rotary_factor");
}

/* A window that all tokens of a sequence fit into is none. */
static void add_window(lap_ckpt_fields_t *fields, const char *text, size_t seq)
{
    const char *used = find_flag(text, "use_sliding_window");
    double window;
    if (find_number(text, "sliding_window", &window) && window < (double)seq &&
        (!used || strcmp(used, "true") == 0))
        add_number(fields, text, "sliding_window", "sliding_window");
}

void lap_ckpt_read_config(const char *dir, size_t seq, lap_ckpt_fields_t *fields_p)
{
    static const char *const numbers[][2] = {
        {"n_head", "heads"},
        {"num_attention_heads", "heads"},
        {"num_key_value_heads", "kv_heads"},
        {"head_dim", "head_dim"},
        {"layer_norm_epsilon", "epsilon"},
        {"rms_norm_eps", "epsilon"},
    };
    char path[PATH_MAX], text[16384];
    *fields_p = (lap_ckpt_fields_t){.count = 0};
    if (snprintf(path, sizeof(path), "%s/" LAP_CKPT_CONFIG, dir) >= PATH_MAX ||
        !lap_file_read_text(path, text, sizeof(text)))
        return;
    add_model(fields_p, text);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        add_number(fields_p, text, numbers[i][0], numbers[i][1]);
    add_activation(fields_p, text, "activation_function");
    add_activation(fields_p, text, "hidden_act");
    add_rope(fields_p, text);
    add_window(fields_p, text, seq);
    const char *tied = find_flag(text, "tie_word_embeddings");
    if (tied)
        lap_ckpt_add_field(fields_p, "tied", strcmp(tied, "true") == 0 ? "1" : "0");
    for (size_t i = 0; i < NFLAGS; i++) {
        const char *flag = find_flag(text, flags[i].key);
        if (flag)
            lap_ckpt_add_field(fields_p, flags[i].key, flag);
    }
}

void lap_ckpt_describe_config(const lap_nn_t *nn, lap_ckpt_fields_t *fields)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const char *model = lap_ckpt_model(desc);
    if (!model)
        return;
    lap_ckpt_add_field(fields, "model_type", model);
    lap_ckpt_add_field(fields, "sliding_window", "none");
    if (desc->positions == LAP_POSITIONS_ROPE) {
        lap_ckpt_add_field(fields, "partial_rotary_factor", "1");
        lap_ckpt_add_field(fields, "rope_type", desc->rope_factor != 1 ? LLAMA3 : UNSCALED);
    }
    for (size_t i = 0; i < NFLAGS; i++)
        if (strcmp(flags[i].model, model) == 0)
            lap_ckpt_add_field(fields, flags[i].key, flags[i].here);
}
