/* SPDX-License-Identifier: Apache-2.0 */
/* What the command asks of replicas beyond what programs need. */
#ifndef LAP_PARALLEL_DATA_PARALLEL_H
#define LAP_PARALLEL_DATA_PARALLEL_H

#include <stdint.h>

#include <lap/data_parallel.h>

#include "schedule/trace.h"

/*
 * How the gradients of the latest step travelled, as one trace that the caller destroys, and when this rank waited for
 * them, as lap_dp_cost has it. After lap_dp_wait, while it is measured.
 */
lap_status_t lap_dp_gradients(const lap_dp_t *dp, lap_trace_t **trace_p, lap_interval_t *waited_p);

/* Where replicas share the optimizer: of the latest gather of a bucket's weights; NULL: not timed. */
lap_trace_t *lap_dp_weights_trace(const lap_dp_t *dp, size_t index);

#endif
