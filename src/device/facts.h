/* SPDX-License-Identifier: Apache-2.0 */
/* What decides which steps a device is issued: its part of a target, see schedule/target.h. */
#ifndef LAP_DEVICE_FACTS_H
#define LAP_DEVICE_FACTS_H

#include <stdbool.h>

typedef struct lap_device_facts {
    /*
     * Blocks of a GEMM wait and raise by themselves. Where they do not, and signals are words of
     * the device, a block has neither: the wait before and the raise after it are steps.
     */
    bool gemm_signals;
    /*
     * Streams may share a queue, where a wait for a signal holds up whatever was issued after it:
     * a wait then depends on all that peers may need to raise it.
     */
    bool shares_queues;
    /* It is worth while to give it two GEMMs at a time: it has a second stream for them. */
    bool lanes;
    /* A repeated call is captured as a graph and launched. */
    bool graphs;
    /* The raises of a call are counted where streams run, by a step of the call. */
    bool counts_signals;
    /* Matrices lie in memory of its own, and not in that of the host, where programs lie. */
    bool own_memory;
} lap_device_facts_t;

#define LAP_HOST_FACTS                                                                             \
    {                                                                                              \
        .gemm_signals = true                                                                       \
    }

#endif
