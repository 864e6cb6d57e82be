/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring kernels and epilogues: those of a layer of a GPT and of a Llama, as a prediction of
 * lap_nn_predict measures them.
 */
#include <lap/model.h>

#include "core/group.h"
#include "nn/probe.h"
#include "plan/kernels.h"
#include "plan/measure.h"

/* Sizes of a layer whose matrices do not fit into the cache of a core, or of a GPU. */
typedef struct extent {
    lap_dtype_t dtype;
    size_t heads, dim, vocab, seq;
} extent_t;

static const extent_t host = {LAP_FLOAT32, 8, 64, 2048, 256};
static const extent_t far = {LAP_BFLOAT16, 32, 128, 8192, 2048};

/* A layer of a model that any number of ranks can share. */
static lap_status_t describe(const char *preset, const extent_t *extent, size_t ranks,
                             lap_nn_desc_t *desc_p)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    const size_t heads = (extent->heads + ranks - 1) / ranks * ranks;
    LAP_TRY(lap_model_preset(preset, &desc));
    desc.dtype = extent->dtype;
    desc.layers = 1;
    desc.heads = desc.kv_heads = heads;
    desc.head_dim = heads <= 64 ? extent->dim : 8;
    desc.hidden = heads * desc.head_dim;
    desc.ffn = 4 * desc.hidden;
    desc.vocab = extent->vocab;
    desc.seq = extent->seq;
    desc.max_positions = 0; /* seq */
    desc.batch = 2;
    *desc_p = desc;
    return LAP_OK;
}

/* Each kernel has the rate of its first entry. */
static void take_rates(const lap_probe_t *probe, lap_machine_t *machine)
{
    const lap_nn_list_t *list = &probe->nn->list;
    double *rates = machine->kernels;
    for (uint32_t i = 0; i < list->nentries; i++) {
        const lap_plan_kernel_t kernel = lap_plan_kernel_of(list->entries[i].work);
        const double seconds = probe->kernels[i].seconds;
        if (kernel < LAP_PLAN_KERNELS && rates[kernel] == 0 && seconds > 0)
            rates[kernel] = lap_plan_kernel_bytes(list, &list->entries[i]) / seconds;
    }
    for (uint32_t i = 0; i < list->nsteps; i++) {
        const lap_plan_kernel_t kernel = lap_plan_epilogue_of(list->steps[i].desc.epilogue);
        if (kernel < LAP_PLAN_KERNELS && rates[kernel] == 0 && probe->finishes[i] > 0)
            rates[kernel] = 1 / probe->finishes[i];
    }
}

static lap_status_t measure_layer(lap_group_t *group, const char *preset, const extent_t *extent,
                                  lap_machine_t *machine)
{
    lap_nn_desc_t desc;
    lap_probe_t probe;
    lap_nn_t *nn;
    LAP_TRY(describe(preset, extent, (size_t)group->size, &desc));
    LAP_TRY(lap_nn_create(group, &desc, &nn));
    lap_status_t status = lap_probe_init(&probe, nn);
    status = lap_probe_agree(&probe, status);
    if (status == LAP_OK)
        status = lap_probe_kernels(&probe);
    if (status == LAP_OK)
        take_rates(&probe, machine);
    lap_probe_clear(&probe);
    lap_nn_destroy(nn);
    return status;
}

lap_status_t lap_machine_measure_kernels(lap_group_t *group, bool is_far, lap_machine_t *machine)
{
    const extent_t *extent = is_far ? &far : &host;
    LAP_TRY(measure_layer(group, "gpt", extent, machine));
    return measure_layer(group, "llama", extent, machine);
}
