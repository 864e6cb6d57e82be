/* SPDX-License-Identifier: Apache-2.0 */
/* How memory of a GPU gets from one process to another. */
#ifndef LAP_TRANSPORT_CUDA_IPC_CUDA_IPC_KIND_H
#define LAP_TRANSPORT_CUDA_IPC_CUDA_IPC_KIND_H

#include <stdbool.h>

#include <lap/status.h>

typedef enum lap_cuda_memory {
    LAP_CUDA_MEMORY_IPC,
    LAP_CUDA_MEMORY_VMM,
} lap_cuda_memory_t;

/*
 * What LAP_CUDA_MEMORY says, and whether it says anything; LAP_ERR_INVALID: nothing that is known.
 */
lap_status_t lap_cuda_memory_chosen(lap_cuda_memory_t *kind_p, bool *chosen_p);

#endif
