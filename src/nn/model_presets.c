/* SPDX-License-Identifier: Apache-2.0 */
/* Language models by their names: a row each. */
#include <lap/model.h>

#include <stdbool.h>
#include <string.h>

#include "core/status.h"
#include "util/join.h"
#include "util/nearest.h"

typedef struct preset {
    const char *name, *summary;
    bool llama; /* RMSNorm, SwiGLU, rotary positions, no biases; else as GPT-2 is made */
    size_t layers, hidden, heads, kv_heads, ffn, vocab, seq;
    int tied;
    float theta;
} preset_t;

#define GPT2(name, summary, layers, hidden, heads)                                                 \
    {                                                                                              \
        name, summary, false, layers, hidden, heads, heads, (size_t)4 * (hidden), 50257, 1024, 1,  \
            10000                                                                                  \
    }
#define LLAMA3(name, summary, layers, hidden, heads, ffn, tied)                                    \
    {                                                                                              \
        name, summary, true, layers, hidden, heads, 8, ffn, 128256, 8192, tied, 500000             \
    }

static const preset_t presets[] = {
    GPT2("gpt2-124m", "GPT-2", 12, 768, 12),
    GPT2("gpt2-350m", "GPT-2 medium", 24, 1024, 16),
    GPT2("gpt2-774m", "GPT-2 large", 36, 1280, 20),
    GPT2("gpt2-1.5b", "GPT-2 XL", 48, 1600, 25),
    {"llama-tiny", "a Llama for bytes", true, 4, 128, 8, 4, 352, 256, 256, 0, 10000},
    LLAMA3("llama-1b", "Llama 3.2 1B, without its scaling of long positions", 16, 2048, 32, 8192,
           1),
    LLAMA3("llama-8b", "Llama 3 8B", 32, 4096, 32, 14336, 0),
    LLAMA3("llama-70b", "Llama 3 70B", 80, 8192, 64, 28672, 0),
    LLAMA3("llama-405b", "Llama 3.1 405B, without its scaling of long positions", 126, 16384, 128,
           53248, 0),
    {"gpt3-175b", "GPT-3 175B", false, 96, 12288, 96, 96, 49152, 50257, 2048, 1, 10000},
    {"gpt", "a GPT-2 for bytes", false, 4, 128, 8, 8, 512, 256, 256, 1, 10000},
    {"llama", "the same as llama-tiny", true, 4, 128, 8, 4, 352, 256, 256, 0, 10000},
};
#define PRESETS (sizeof(presets) / sizeof(presets[0]))

const char *lap_model_presets(size_t index, const char **summary_p)
{
    if (index >= PRESETS)
        return NULL;
    if (summary_p)
        *summary_p = presets[index].summary;
    return presets[index].name;
}

static lap_status_t refuse(const char *name)
{
    const char *names[PRESETS + 1] = {NULL};
    char list[256] = "";
    for (size_t i = 0; i < PRESETS; i++) {
        names[i] = presets[i].name;
        lap_join(list, sizeof(list), presets[i].name);
    }
    const char *nearest = lap_nearest(name, names);
    return lap_error(LAP_ERR_INVALID, "there is no model '%s'; expected one of %s%s%s%s", name,
                     list, nearest ? " (did you mean " : "", nearest ? nearest : "",
                     nearest ? "?)" : "");
}

lap_status_t lap_model_preset(const char *name, lap_nn_desc_t *desc)
{
    const preset_t *preset = presets;
    if (!name || !desc)
        return lap_error(LAP_ERR_INVALID, "lap_model_preset: %s is NULL", name ? "desc" : "name");
    if (desc->size < sizeof(*desc))
        return lap_error(LAP_ERR_INVALID,
                         "desc.size is %zu, expected %zu, as LAP_NN_DESC_INIT sets it", desc->size,
                         sizeof(*desc));
    while (preset < presets + PRESETS && strcmp(preset->name, name) != 0)
        preset++;
    if (preset == presets + PRESETS)
        return refuse(name);
    desc->kind = LAP_NN_MODEL;
    desc->layers = preset->layers;
    desc->seq = preset->seq;
    desc->hidden = preset->hidden;
    desc->ffn = preset->ffn;
    desc->heads = preset->heads;
    desc->kv_heads = preset->kv_heads;
    desc->head_dim = preset->hidden / preset->heads;
    desc->norm = preset->llama ? LAP_RMSNORM : LAP_LAYERNORM;
    desc->activation = preset->llama ? LAP_SWIGLU : LAP_GELU;
    desc->epsilon = 1e-5f;
    desc->bias = !preset->llama;
    desc->vocab = preset->vocab;
    desc->positions = preset->llama ? LAP_POSITIONS_ROPE : LAP_POSITIONS_LEARNED;
    desc->max_positions = preset->llama ? 0 : preset->seq;
    desc->tied = preset->tied;
    desc->rope_theta = preset->theta;
    desc->init_std = 0.02f;
    return LAP_OK;
}
