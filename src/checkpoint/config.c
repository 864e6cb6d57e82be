/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.json of Hugging Face's transformers, as it lies beside weights of GPT-2 and Llama: which fields of layers it
 * gives, and which of its keys ask for what no layers here have. Keys that shapes of tensors tell are not compared.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "core/fields.h"
#include "core/file.h"
#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"
#include "util/json.h"

#define MOST_BYTES (1 << 20)

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

/*
 * The value of a key in the object that a text begins with, not in those within it; "": it has no such key. `key` may
 * be NULL: then all of the object is looked at. *json_p tells what is wrong with it.
 */
static const char *look_up(const char *object, const char *key, lap_json_reader_t *json_p)
{
    char name[128];
    *json_p = (lap_json_reader_t){.text = object, .bytes = strlen(object)};
    for (bool more = lap_json_open(json_p, '{'); more; more = lap_json_next(json_p, '}')) {
        if (!lap_json_take_key(json_p, name, sizeof(name)))
            break;
        if (key && strcmp(name, key) == 0) {
            const char *value = object + json_p->at;
            return value + strspn(value, " \t\r\n");
        }
        if (!lap_json_skip(json_p))
            break;
    }
    return "";
}

static const char *find_key(const char *object, const char *key)
{
    lap_json_reader_t json;
    return look_up(object, key, &json);
}

static bool find_number(const char *object, const char *key, double *number_p)
{
    char *end;
    const char *at = find_key(object, key);
    *number_p = strtod(at, &end);
    return end > at;
}

static bool find_string(const char *object, const char *key, char string[32])
{
    return sscanf(find_key(object, key), "\"%31[^\"]\"", string) == 1;
}

/* "true" or "false"; NULL: neither is there. */
static const char *find_flag(const char *object, const char *key)
{
    const char *at = find_key(object, key);
    return strncmp(at, "true", 4) == 0 ? "true" : strncmp(at, "false", 5) == 0 ? "false" : NULL;
}

/* ---- read ---- */

/* Whether there is such a number. */
static bool add_number(lap_ckpt_fields_t *fields, const char *object, const char *key,
                       const char *name)
{
    char value[LAP_SINGLE_TEXT];
    double number;
    if (!find_number(object, key, &number))
        return false;
    lap_ckpt_add_field(fields, name, lap_single_text((float)number, value));
    return true;
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
    char type[32] = UNSCALED;
    const char *object = find_key(text, "rope_scaling");
    if (*object != '{')
        object = find_key(text, "rope_parameters"); /* of newer versions, with the base */
    if (!find_string(object, "rope_type", type))
        find_string(object, "type", type);
    add_scaling(fields, object, type);
    if (!add_number(fields, text, "rope_theta", "rope_theta") &&
        !add_number(fields, object, "rope_theta", "rope_theta"))
        lap_ckpt_add_field(fields, "rope_theta", "10000");
    if (!add_number(fields, text, "partial_rotary_factor", "partial_rotary_factor"))
        add_number(fields, object, "partial_rotary_factor", "partial_rotary_factor");
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

static void add_all(lap_ckpt_fields_t *fields_p, const char *text, size_t seq)
{
    static const char *const numbers[][2] = {
        {"n_head", "heads"},
        {"num_attention_heads", "heads"},
        {"num_key_value_heads", "kv_heads"},
        {"head_dim", "head_dim"},
        {"layer_norm_epsilon", "epsilon"},
        {"rms_norm_eps", "epsilon"},
    };
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

static lap_status_t parse(const char *path, const char *text, size_t seq,
                          lap_ckpt_fields_t *fields_p)
{
    lap_json_reader_t json;
    (void)look_up(text, NULL, &json);
    if (!lap_json_end(&json))
        return lap_error(LAP_ERR_INVALID, "'%s' is damaged at byte %zu: %s", path, json.at,
                         json.wrong ? json.wrong : "expected its end");
    add_all(fields_p, text, seq);
    return LAP_OK;
}

static lap_status_t read_and_parse(const char *path, int fd, uint64_t bytes, size_t seq,
                                   lap_ckpt_fields_t *fields_p)
{
    if (bytes > MOST_BYTES)
        return lap_error(LAP_ERR_INVALID, "'%s' has %" PRIu64 " bytes, expected at most %d", path,
                         bytes, MOST_BYTES);
    char *text = lap_alloc((size_t)bytes + 1, 1); /* ends with a 0 */
    if (!text)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for '%s'", path);
    lap_status_t status = lap_file_read(fd, path, text, (size_t)bytes, 0);
    if (status == LAP_OK)
        status = parse(path, text, seq, fields_p);
    lap_free(text);
    return status;
}

lap_status_t lap_ckpt_read_config(const char *dir, size_t seq, lap_ckpt_fields_t *fields_p,
                                  bool *there_p)
{
    char path[PATH_MAX];
    uint64_t bytes;
    int fd;
    *fields_p = (lap_ckpt_fields_t){.count = 0};
    *there_p = snprintf(path, sizeof(path), "%s/" LAP_CKPT_CONFIG, dir) < PATH_MAX &&
               access(path, F_OK) == 0;
    if (!*there_p)
        return LAP_OK;
    LAP_TRY(lap_file_open(path, &fd, &bytes));
    const lap_status_t status = read_and_parse(path, fd, bytes, seq, fields_p);
    close(fd);
    return status;
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
