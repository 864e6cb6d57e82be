/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory is laid out by lifetimes, so that regions share bytes: what was written for one of them
 * is not to be read as another. Each lifetime is cut short, and the proof must find what that breaks.
 */
#include "layout.h"

static const struct {
    const char *name;
    lap_nn_kind_t kind;
    int nranks;
    lap_fp8_recipe_t fp8;
    lap_recompute_t recompute;
    lap_activation_t activation;
    size_t cp;
} cases[] = {
    {"an MLP", LAP_NN_LAYERNORM_MLP, 2, LAP_FP8_NONE, LAP_RECOMPUTE_NONE, LAP_GELU, 1},
    {"a layer", LAP_NN_TRANSFORMER, 2, LAP_FP8_NONE, LAP_RECOMPUTE_NONE, LAP_SWIGLU, 1},
    {"a layer in FP8", LAP_NN_TRANSFORMER, 1, LAP_FP8_CURRENT, LAP_RECOMPUTE_SELECTIVE, LAP_GELU,
     1},
    {"a model with context", LAP_NN_MODEL, 1, LAP_FP8_NONE, LAP_RECOMPUTE_FULL, LAP_GELU, 2},
    {"a model", LAP_NN_MODEL, 2, LAP_FP8_NONE, LAP_RECOMPUTE_FULL, LAP_SWIGLU, 1},
};

static void try_case(size_t i)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    const lap_nn_linking_t linking = {.target = lap_target_at(0), .more = i % 2 == 1};
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    desc.kind = cases[i].kind;
    desc.layers = desc.kind >= LAP_NN_TRANSFORMER ? 2 : 1;
    desc.seq = 4;
    desc.batch = 1;
    desc.hidden = 16;
    desc.heads = 4;
    desc.dtype = LAP_BFLOAT16;
    desc.fp8 = cases[i].fp8;
    desc.recompute = cases[i].recompute;
    desc.activation = cases[i].activation;
    desc.cp = cases[i].cp;
    if (desc.kind == LAP_NN_MODEL)
        desc.vocab = 12;
    tap_success(lap_nn_plan_init(&desc, cases[i].nranks, &plan), "%s", cases[i].name);
    tap_success(lap_nn_programs_init(&programs, &plan, &linking), "its programs");
    layout_mutate(&programs, programs.size - 1, cases[i].name);
    lap_nn_programs_clear(&programs);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        try_case(i);
    return tap_done();
}
