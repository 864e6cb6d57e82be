/* SPDX-License-Identifier: Apache-2.0 */
/* What the command asks of replicas beyond what programs need. */
#ifndef LAP_PARALLEL_DATA_PARALLEL_H
#define LAP_PARALLEL_DATA_PARALLEL_H

#include <stdint.h>

#include <lap/data_parallel.h>

#include "schedule/comm_times.h"

/*
 * What the exposed time of the latest step, as lap_dp_cost tells it, was for, and the bytes that
 * this rank has sent in it; adds to `times` when that was. After lap_dp_wait, while it is measured.
 * Collective over the replicas.
 */
lap_status_t lap_dp_find_causes(lap_dp_t *dp, lap_comm_times_t *times,
                                uint64_t cause_ns[LAP_CAUSES], double *bytes_p);

/* Where replicas share the optimizer: of the latest gather of a bucket's weights; NULL: not timed. */
lap_trace_t *lap_dp_weights_trace(const lap_dp_t *dp, size_t index);

#endif
