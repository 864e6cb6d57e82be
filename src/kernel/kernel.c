/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels by their rows: names, operands, launches; and the tables of this build, found by the name of their device. */
#include "kernel/kernel.h"

#include <string.h>

#include "core/status.h"
#include "kernel/cuda/cuda_sizes.h"
#include "kernel/host/host.h"
#include "lap_config.h"
#if LAP_HAVE_CUDA
#include "kernel/cuda/cuda_layers.h"
#endif

/* ---- rows ---- */

typedef struct row {
    const char *name, *reads, *writes;
} row_t;

static const row_t rows[] = {
#define KERNEL(id, slot, args_t, label, reads, writes) {label, reads, writes},
#define KERNEL_AS KERNEL
#include "kernel/kernels.def"
};

const char *lap_kernel_name(lap_kernel_id_t kernel)
{
    return rows[kernel].name;
}

const lap_arg_t *lap_operand(const lap_operands_t *operands, uint32_t role)
{
    static const lap_arg_t none = {.data = NULL};
    for (uint32_t i = 0; i < operands->n; i++)
        if (operands->at[i].role == role)
            return &operands->at[i];
    return &none;
}

/* Operands of these kinds, of which the first has the role, one after the other. Returns where they end. */
static char *take(const char *kinds, const lap_operands_t *operands, uint32_t role, char *at)
{
    for (; *kinds; kinds++, role++) {
        const lap_arg_t *arg = lap_operand(operands, role);
        const lap_tensor_t matrix = lap_arg_tensor(arg);
        const size_t bytes = *kinds == 'M' ? sizeof(matrix) : *kinds == 'p' ? sizeof(arg->data) : 0;
        memcpy(at, *kinds == 'M' ? (const void *)&matrix : &arg->data, bytes);
        at += bytes;
    }
    return at;
}

void lap_kernel_take(lap_kernel_id_t kernel, const lap_operands_t *operands,
                     lap_kernel_args_t *args)
{
    memset(args, 0, sizeof(*args));
    char *at = take(rows[kernel].reads, operands, 0, (char *)args);
    (void)take(rows[kernel].writes, operands, LAP_KERNEL_READS, at);
}

lap_status_t lap_kernel_launch(const lap_kernels_t *kernels, lap_stream_t *stream,
                               lap_kernel_id_t kernel, const lap_kernel_args_t *args)
{
    switch (kernel) {
#define KERNEL(id, slot, args_t, label, reads, writes)                                             \
    case LAP_KERNEL_##id:                                                                          \
        return kernels->slot(stream, &args->slot);
#define KERNEL_AS KERNEL
#include "kernel/kernels.def"
    default:
        return lap_error(LAP_ERR_INVALID, "there is no kernel %d", (int)kernel);
    }
}

/* ---- tables ---- */

static const lap_kernels_t *const tables[] = {
    &lap_ref_kernels,
    &lap_cpu_kernels,
#if LAP_HAVE_CUDA
    &lap_cuda_kernels,
#endif
};

static const lap_kernels_t *table_of(const char *device)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if (strcmp(tables[i]->device, device) == 0)
            return tables[i];
    return NULL;
}

lap_status_t lap_kernels_find(const char *device, const lap_kernels_t **kernels_p)
{
    *kernels_p = table_of(device);
    if (*kernels_p)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "device %s has no kernels for transformer layers",
                     device);
}

/* A kernel that another device has already. */
static lap_status_t check_slots(const lap_kernels_t *kernels)
{
    const struct {
        const char *name;
        bool filled;
    } slots[] = {
#define KERNEL(id, slot, args_t, label, reads, writes) {#slot, kernels->slot != NULL},
#include "kernel/kernels.def"
    };
    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++)
        if (!slots[i].filled)
            return lap_error(LAP_ERR_UNSUPPORTED, "device %s has no kernel %s", kernels->device,
                             slots[i].name);
    return LAP_OK;
}

lap_status_t lap_kernels_of_gpus(const lap_kernels_t **kernels_p)
{
    *kernels_p = table_of("cuda");
    if (*kernels_p)
        return check_slots(*kernels_p);
    *kernels_p = &lap_kernel_cuda_sizes;
    return LAP_OK;
}

lap_status_t lap_kernels_of(lap_device_t *device, const lap_kernels_t **kernels_p)
{
    LAP_TRY(lap_kernels_find(device->ops->name, kernels_p));
    LAP_TRY(check_slots(*kernels_p));
    return (*kernels_p)->prepare(device);
}
