/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where numbers stop being finite: forward is computed once more, and every parameter, activation and
 * gradient is looked at in the order in which a step makes them. That is done when something went
 * wrong, so that a pass pays nothing for it: what recomputation and FP8 do not keep is there again.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"

/* What a look has looked at. */
static lap_nn_not_finite_t name(const lap_nn_list_t *list, const lap_nn_entry_t *look, int rank)
{
    lap_nn_not_finite_t found = {.what = LAP_NN_ACTIVATION, .name = "input", .rank = rank};
    const uint32_t region = look->reads[0];
    for (uint32_t i = 0; i < list->nweights; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        const bool copy = region == weight->copy && region != weight->master;
        if (region != weight->grad && region != weight->master && !copy)
            continue;
        found.what = region == weight->grad ? LAP_NN_GRADIENT : LAP_NN_PARAMETER;
        snprintf(found.name, sizeof(found.name), "%s%s%s", weight->name, copy ? " as " : "",
                 copy ? lap_dtype_name(list->regions[region].dtype) : "");
        return found;
    }
    const lap_nn_shape_t *shape =
        look->block == LAP_NN_NONE ? NULL : &list->blocks[look->block].shape;
    if (shape && !shape->head)
        snprintf(found.name, sizeof(found.name), "layer%zu.%s.output", shape->layer, look->name);
    else if (lap_nn_list_is_model(list))
        snprintf(found.name, sizeof(found.name), "%s.output", look->name);
    return found;
}

static const lap_nn_entry_t *find_look(const lap_nn_list_t *list, size_t index)
{
    const lap_nn_entry_t *entry = list->entries;
    while (entry->work != LAP_NN_LOOK || entry->index != index)
        entry++;
    return entry;
}

/* ---- all of it ---- */

/* The first of all ranks, and who has it. Collective. */
static lap_status_t agree(lap_nn_t *nn, size_t first, lap_nn_not_finite_t *found_p)
{
    void *memory;
    lap_nn_not_finite_t found = {.what = LAP_NN_ALL_FINITE};
    LAP_TRY(lap_group_collect(nn->group, &first, sizeof(first), &memory));
    const size_t *all = memory;
    int least = 0;
    for (int r = 1; r < nn->list.plan.nranks; r++)
        least = all[r] < all[least] ? r : least;
    if (all[least] < nn->list.nlooks)
        found = name(&nn->list, find_look(&nn->list, all[least]), least);
    lap_free(memory);
    *found_p = found;
    return LAP_OK;
}

static lap_status_t look_at_all(lap_nn_t *nn, size_t seq, const lap_tensor_t *x,
                                const lap_tensor_t *y, size_t *first_p)
{
    const size_t count = nn->list.nlooks;
    if (lap_nn_list_is_model(&nn->list))
        LAP_TRY(lap_model_again(nn));
    else
        LAP_TRY(lap_nn_forward(nn, seq, x, y));
    LAP_TRY(lap_nn_run(nn, 1u << LAP_NN_LOOK_GRADIENTS));
    LAP_TRY(lap_nn_wait(nn));
    size_t first = 0;
    while (first < count && isfinite(nn->looks[first]))
        first++;
    *first_p = first;
    return LAP_OK;
}

lap_status_t lap_nn_find_not_finite(lap_nn_t *nn, size_t seq, const lap_tensor_t *x,
                                    const lap_tensor_t *y, lap_nn_not_finite_t *found_p)
{
    if (!nn || !found_p)
        return lap_error(LAP_ERR_INVALID, "lap_nn_find_not_finite: %s is NULL",
                         nn ? "found_p" : "nn");
    lap_device_t *device = nn->engine->device;
    const size_t bytes = nn->list.nlooks * sizeof(*nn->looks);
    void *memory = NULL;
    size_t first;
    LAP_TRY(lap_nn_wait(nn));
    /* A rank that has no memory for it leaves nobody waiting. */
    lap_status_t status =
        lap_group_agree(nn->group, device->ops->alloc_shared(device, bytes, &memory));
    if (status == LAP_OK) {
        nn->looks = memset(memory, 0, bytes);
        status = look_at_all(nn, seq, x, y, &first);
        nn->looks = NULL;
    }
    if (status == LAP_OK)
        status = agree(nn, first, found_p);
    if (memory)
        device->ops->free_shared(device, memory);
    return status;
}
