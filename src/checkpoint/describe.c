/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layers compute with their weights, as fields of their description: heads, norms, positions and the
 * like are not to be seen in the shapes of tensors, and weights are wrong in layers that have others.
 */
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "core/fields.h"
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

const char *lap_ckpt_find_field(const lap_ckpt_fields_t *fields, const char *name)
{
    for (size_t i = 0; i < fields->count; i++)
        if (strcmp(fields->all[i].name, name) == 0)
            return fields->all[i].value;
    return NULL;
}

const char *lap_ckpt_other(const lap_ckpt_fields_t *fields, const lap_ckpt_field_t *field)
{
    const char *value = lap_ckpt_find_field(fields, field->name);
    return value && strcmp(value, field->value) != 0 ? value : NULL;
}

bool lap_ckpt_differs(const lap_ckpt_fields_t *theirs, const lap_ckpt_fields_t *ours, char *text,
                      size_t room)
{
    size_t used = 0;
    text[0] = '\0';
    /* A field that only one of the two has is of no use to the other because of one that both have. */
    for (size_t i = 0; i < ours->count && used < room; i++) {
        const lap_ckpt_field_t *own = &ours->all[i];
        const char *other = lap_ckpt_other(theirs, own);
        if (other)
            used += (size_t)snprintf(text + used, room - used,
                                     "%s%s is %s in the checkpoint and %s here", used ? ", " : "",
                                     own->name, other, own->value);
    }
    return used > 0;
}
