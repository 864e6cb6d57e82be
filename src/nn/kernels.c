/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of kernels of this build, found by the name of their device. */
#include "nn/kernels.h"

#include <string.h>

#include "core/status.h"
#include "lap_config.h"
#include "nn/cuda/nn_cuda_sizes.h"
#include "nn/host/host.h"
#if LAP_HAVE_CUDA
#include "nn/cuda/nn_cuda.h"
#endif

static const lap_nn_kernels_t *const tables[] = {
    &lap_nn_ref_kernels,
    &lap_nn_cpu_kernels,
#if LAP_HAVE_CUDA
    &lap_nn_cuda_kernels,
#endif
};

static const lap_nn_kernels_t *table_of(const char *device)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if (strcmp(tables[i]->device, device) == 0)
            return tables[i];
    return NULL;
}

lap_status_t lap_nn_kernels_find(const char *device, const lap_nn_kernels_t **kernels_p)
{
    *kernels_p = table_of(device);
    if (*kernels_p)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "device %s has no kernels for transformer layers",
                     device);
}

/* A kernel that another device has already. */
static lap_status_t check_slots(const lap_nn_kernels_t *kernels)
{
    const struct {
        const char *name;
        bool filled;
    } slots[] = {
#define SLOT(name, args_t) {#name, kernels->name != NULL},
        LAP_NN_SLOT_LIST(SLOT)
#undef SLOT
    };
    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++)
        if (!slots[i].filled)
            return lap_error(LAP_ERR_UNSUPPORTED, "device %s has no kernel %s", kernels->device,
                             slots[i].name);
    return LAP_OK;
}

lap_status_t lap_nn_kernels_for(const lap_target_t *target, const lap_nn_kernels_t **kernels_p)
{
    *kernels_p = target->device.graphs ? table_of("cuda") : NULL;
    if (*kernels_p)
        return check_slots(*kernels_p);
    *kernels_p = target->device.graphs ? &lap_nn_cuda_sizes : NULL;
    return LAP_OK;
}

lap_status_t lap_nn_kernels_of(lap_device_t *device, const lap_nn_kernels_t **kernels_p)
{
    LAP_TRY(lap_nn_kernels_find(device->ops->name, kernels_p));
    LAP_TRY(check_slots(*kernels_p));
    return (*kernels_p)->prepare(device);
}
