/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step of an optimizer as a part of the list: sums of squares of all gradients and their sum
 * over ranks, the rates of the step, and the updates of masters and moments. The copies of weights
 * follow it: LAP_NN_REFRESH. Lists it all; runs nothing.
 */
#include "core/status.h"
#include "nn/list.h"

#define TOTAL_FLOATS 4u /* of a rank's sum on its way: a double, and as much to be aligned */

static const size_t double_floats = sizeof(double) / sizeof(float);

/* Memory of the optimizer; `made`: each step writes it before it is read. */
static uint32_t state(lap_nn_list_t *list, const char *name, size_t rows, size_t cols, bool made)
{
    const uint32_t region = lap_nn_add_region(list, name, LAP_NN_NONE, LAP_NN_STATE, LAP_NN_FIXED,
                                              LAP_FLOAT32, rows, cols);
    if (list->status == LAP_OK)
        list->regions[region].made = made;
    return region;
}

/* ---- the norm ---- */

lap_op_desc_t lap_nn_norm_desc(int nranks)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_EXTERNAL_AG;
    desc.method = "direct";
    desc.m = (size_t)nranks;
    desc.cols = TOTAL_FLOATS;
    return desc;
}

static uint32_t list_total(lap_nn_list_t *list, uint32_t numbers, const char *name)
{
    const uint32_t total = state(list, name, 1, TOTAL_FLOATS, true);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_TOTAL, "norm", LAP_NN_NONE);
    entry->reads[0] = numbers;
    entry->writes[0] = total;
    return total;
}

/* The sum of squares of each parameter, then of all of this rank, then of all ranks, in order. */
static uint32_t list_norm(lap_nn_list_t *list, int nranks)
{
    const uint32_t squares = state(list, "squares", list->nweights, double_floats, true);
    for (uint32_t i = 0; i < list->nweights && list->status == LAP_OK; i++) {
        const uint32_t sum = lap_nn_add_part(list, "squares", squares, i * sizeof(double), 1,
                                             double_floats, double_floats);
        lap_nn_entry_t *entry =
            lap_nn_add_entry(list, LAP_NN_SQUARES, list->weights[i].name, LAP_NN_NONE);
        entry->reads[0] = list->weights[i].grad;
        entry->writes[0] = sum;
        entry->index = i;
    }
    const uint32_t own = list_total(list, squares, "squares_r");
    if (nranks == 1)
        return own;
    const uint32_t all = state(list, "squares_ranks", (size_t)nranks, TOTAL_FLOATS, true);
    const lap_op_desc_t desc = lap_nn_norm_desc(nranks);
    lap_nn_entry_t *entry = lap_nn_add_call(list, "norm", LAP_NN_NONE, (lap_tp_gemm_t)0, &desc);
    entry->reads[LAP_NN_X] = own;
    entry->writes[LAP_NN_SECOND] = all;
    return list_total(list, all, "squares_all");
}

/* ---- updates ---- */

/* Elements [begin, begin + count) of an array of all weights. */
static uint32_t segment_of(lap_nn_list_t *list, uint32_t array, size_t begin, size_t count)
{
    if (array == LAP_NN_NONE || list->status != LAP_OK)
        return array;
    return lap_nn_add_part(list, list->regions[array].name, array, begin * sizeof(float), 1, count,
                           count);
}

static void list_update(lap_nn_list_t *list, size_t begin, size_t count, bool decays)
{
    const uint32_t grads = segment_of(list, list->grads, begin, count),
                   masters = segment_of(list, list->masters, begin, count),
                   first = segment_of(list, list->moments[0], begin, count),
                   second = segment_of(list, list->moments[1], begin, count);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_UPDATE, "update", LAP_NN_NONE);
    entry->index = decays;
    entry->reads[0] = grads;
    entry->reads[1] = list->rates;
    entry->reads[2] = entry->writes[0] = masters;
    entry->reads[3] = entry->writes[1] = first;
    entry->reads[4] = entry->writes[2] = second;
}

/* Parameters that lie one after the other and are treated alike are one, with the zeros between. */
static void list_updates(lap_nn_list_t *list)
{
    size_t begin = 0, end = 0;
    for (uint32_t i = 0; i < list->nweights && list->status == LAP_OK; i++) {
        const lap_nn_param_t *param = &list->weights[i].param;
        size_t at;
        (void)lap_nn_region_root(list, list->weights[i].master, &at);
        at /= sizeof(float);
        if (i > 0 && list->weights[i - 1].param.vector != param->vector) {
            list_update(list, begin, end - begin, param->vector);
            begin = at;
        }
        end = at + param->rows * param->cols;
    }
    list_update(list, begin, end - begin, !list->weights[list->nweights - 1].param.vector);
}

/* ---- all of it ---- */

lap_status_t lap_nn_list_step(lap_nn_list_t *list, const lap_optimizer_desc_t *desc, int nranks)
{
    const size_t count = list->regions[list->masters].cols;
    uint32_t total = LAP_NN_NONE;
    LAP_TRY(list->status);
    list->own_regions = list->nregions;
    list->own_steps = list->nsteps;
    list->moments[0] = state(list, "first_moments", 1, count, false);
    list->moments[1] =
        desc->kind == LAP_ADAMW ? state(list, "second_moments", 1, count, false) : LAP_NN_NONE;
    if (desc->clip_norm > 0)
        total = list_norm(list, nranks);
    list->rates = state(list, "rates", 1, sizeof(lap_rates_t) / sizeof(float), true);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_CLIP, "clip", LAP_NN_NONE);
    entry->reads[0] = total;
    entry->writes[0] = list->rates;
    list_updates(list);
    LAP_TRY(list->status);
    list->parts[LAP_NN_LIST_PARTS] = list->nentries;
    lap_nn_lay_out_state(list);
    return LAP_OK;
}

void lap_nn_list_drop_step(lap_nn_list_t *list)
{
    list->status = LAP_OK;
    list->nregions = list->own_regions;
    list->nsteps = list->own_steps;
    list->nentries = list->parts[LAP_NN_LIST_PARTS] = list->parts[LAP_NN_STEP];
    list->bytes[LAP_NN_STATE] = 0;
}
