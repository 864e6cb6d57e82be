/* SPDX-License-Identifier: Apache-2.0 */
/* What decides about issuing on a GPU; it needs no CUDA, so that one can lower for it anywhere. */
#ifndef LAP_DEVICE_CUDA_CUDA_FACTS_H
#define LAP_DEVICE_CUDA_CUDA_FACTS_H

#include "device/facts.h"

#define LAP_CUDA_FACTS                                                                             \
    {                                                                                              \
        .shares_queues = true, .lanes = true, .graphs = true, .counts_signals = true,              \
        .own_memory = true                                                                         \
    }

/* The most hardware queues that CUDA knows to be asked for, by CUDA_DEVICE_MAX_CONNECTIONS. */
#define LAP_CUDA_QUEUES_MOST 32

#endif
