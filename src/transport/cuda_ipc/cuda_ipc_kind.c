/* SPDX-License-Identifier: Apache-2.0 */
/* The environment's choice; it needs no CUDA, so that it can be looked at before ranks start. */
#include "transport/cuda_ipc/cuda_ipc_kind.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

lap_status_t lap_cuda_memory_chosen(lap_cuda_memory_t *kind_p, bool *chosen_p)
{
    static const char *const names[] = {"ipc", "vmm"};
    const char *given = getenv("LAP_CUDA_MEMORY");
    int kind = LAP_CUDA_MEMORY_IPC;
    *chosen_p = given && *given;
    while (*chosen_p && kind <= LAP_CUDA_MEMORY_VMM && strcmp(given, names[kind]) != 0)
        kind++;
    if (kind > LAP_CUDA_MEMORY_VMM)
        return lap_error(LAP_ERR_INVALID, "LAP_CUDA_MEMORY is '%s', expected ipc or vmm", given);
    *kind_p = (lap_cuda_memory_t)kind;
    return LAP_OK;
}
