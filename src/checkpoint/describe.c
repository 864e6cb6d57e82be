/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layers compute with their weights, as fields of their description: heads, norms, positions and the
 * like are not to be seen in the shapes of tensors, and weights are wrong in layers that have others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "core/fields.h"
#include "core/file.h"
#include "nn/nn.h"
#include "nn/nn_fields.h"

/* Whether a field says something of layers of this kind. */
static bool matters(const lap_nn_desc_t *desc, const char *name)
{
    const bool model = desc->kind == LAP_NN_MODEL;
    const bool transformer = lap_nn_is_transformer(desc), attends = lap_nn_has_attention(desc);
    const bool mlp = transformer || desc->kind == LAP_NN_LAYERNORM_MLP;
    const bool norm = desc->kind != LAP_NN_LINEAR;
    const struct {
        const char *name;
        bool is;
    } rows[] = {
        {"features", !attends && !mlp},
        {"ffn", mlp},
        {"activation", mlp},
        {"heads", attends},
        {"kv_heads", attends},
        {"head_dim", attends},
        {"positions", attends},
        {"rope_theta", desc->positions == LAP_POSITIONS_ROPE},
        {"rope_factor", desc->positions == LAP_POSITIONS_ROPE},
        {"rope_low_freq", desc->rope_factor != 1},
        {"rope_high_freq", desc->rope_factor != 1},
        {"rope_original", desc->rope_factor != 1},
        {"max_positions", desc->positions == LAP_POSITIONS_LEARNED},
        {"norm", norm},
        {"epsilon", norm},
        {"vocab", model},
        {"tied", model},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].is;
    return true;
}

void lap_ckpt_add_field(lap_ckpt_fields_t *fields, const char *name, const char *value)
{
    const size_t length = strlen(value);
    if (fields->count == LAP_CKPT_FIELDS)
        return;
    lap_ckpt_field_t *to = &fields->all[fields->count++];
    snprintf(to->name, sizeof(to->name), "%s", name);
    snprintf(to->value, sizeof(to->value), "%s",
             value + (length < LAP_CKPT_VALUE ? 0 : length - LAP_CKPT_VALUE + 1));
    /* As a string of JSON, as it is. */
    for (char *at = to->value; *at; at++)
        if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\')
            *at = '?';
}

void lap_ckpt_describe(const lap_nn_t *nn, lap_ckpt_fields_t *fields_p)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    *fields_p = (lap_ckpt_fields_t){.count = 0};
    for (const lap_field_t *field = lap_nn_fields; field->name; field++) {
        char room[LAP_FIELD_TEXT_BYTES];
        if ((field->marks & LAP_NN_OF_FUNCTION) && matters(desc, field->name))
            lap_ckpt_add_field(fields_p, field->name, lap_field_text(field, desc, room));
    }
}

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

/* Hugging Face's "gelu" is that of the error function: ours is that of tanh, as GPT-2's. */
static void add_activation(lap_ckpt_fields_t *fields, const char *at)
{
    static const char *const names[][2] = {
        {"gelu_new", "gelu"}, {"gelu_fast", "gelu"}, {"gelu_pytorch_tanh", "gelu"},
        {"silu", "swiglu"},   {"swish", "swiglu"},   {"gelu", "gelu with erf"},
    };
    char name[32] = "";
    if (!at || sscanf(at, "\"%31[^\"]\"", name) != 1)
        return;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i][0]) == 0) {
            lap_ckpt_add_field(fields, "activation", names[i][1]);
            return;
        }
    lap_ckpt_add_field(fields, "activation", name);
}

void lap_ckpt_read_config(const char *dir, lap_ckpt_fields_t *fields_p)
{
    static const char *const keys[][2] = {
        {"n_head", "heads"},
        {"num_attention_heads", "heads"},
        {"num_key_value_heads", "kv_heads"},
        {"head_dim", "head_dim"},
        {"layer_norm_epsilon", "epsilon"},
        {"rms_norm_eps", "epsilon"},
        {"rope_theta", "rope_theta"},
        {"factor", "rope_factor"},
        {"low_freq_factor", "rope_low_freq"},
        {"high_freq_factor", "rope_high_freq"},
        {"original_max_position_embeddings", "rope_original"},
    };
    char path[PATH_MAX], text[16384], value[LAP_SINGLE_TEXT];
    double number;
    *fields_p = (lap_ckpt_fields_t){.count = 0};
    if (snprintf(path, sizeof(path), "%s/" LAP_CKPT_CONFIG, dir) >= PATH_MAX)
        return;
    lap_file_read_text(path, text, sizeof(text));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (find_number(text, keys[i][0], &number))
            lap_ckpt_add_field(fields_p, keys[i][1], lap_single_text((float)number, value));
    add_activation(fields_p, find_key(text, "activation_function"));
    add_activation(fields_p, find_key(text, "hidden_act"));
}

bool lap_ckpt_differs(const lap_ckpt_fields_t *theirs, const lap_ckpt_fields_t *ours, char *text,
                      size_t room)
{
    size_t used = 0;
    text[0] = '\0';
    /* A field that only one of the two has is of no use to the other because of one that both have. */
    for (size_t i = 0; i < ours->count; i++)
        for (size_t j = 0; j < theirs->count; j++) {
            const lap_ckpt_field_t *a = &theirs->all[j], *b = &ours->all[i];
            if (strcmp(a->name, b->name) == 0 && strcmp(a->value, b->value) != 0 && used < room)
                used += (size_t)snprintf(text + used, room - used,
                                         "%s%s is %s in the checkpoint and %s here",
                                         used ? ", " : "", a->name, a->value, b->value);
        }
    return used > 0;
}
