/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of what replicas do around their passes: kernels in a row, whose time is known, and buckets
 * of gradients and weights that travel in the background, built, lowered and linked as those of
 * lap_dp are. Replicas all do the same, so that two of them stand for all: the time of a bucket
 * on its way is that of all of them.
 */
#ifndef LAP_PLAN_BUCKETS_H
#define LAP_PLAN_BUCKETS_H

#include "plan/machine.h"
#include "schedule/link.h"
#include "schedule/target.h"

/* Memory of a replica, in rows of parameters: offsets are the same in all of them. */
typedef enum lap_plan_place {
    LAP_PLAN_OF_GRADS = 0,
    LAP_PLAN_OF_SHARD, /* its rows of each bucket */
    LAP_PLAN_OF_WEIGHTS,
    LAP_PLAN_PLACES
} lap_plan_place_t;

/* Rows [begin, end) of a place; none: of nothing. */
typedef struct lap_plan_slice {
    lap_plan_place_t place;
    size_t begin, end;
} lap_plan_slice_t;

enum { LAP_PLAN_TWO = 2 }; /* replicas that stand for all */

typedef struct lap_plan_buckets {
    const lap_machine_t *machine;
    const lap_target_t *target;
    size_t cols; /* of a row */
    lap_linked_t programs[LAP_PLAN_TWO];
    lap_fragment_cost_t *costs; /* of each fragment, with the costs of its steps */
    uint32_t ncosts;
    size_t costs_room;
    lap_cost_t cost;
    double kernels_s, wire_s; /* of all kernels, and of all buckets */
} lap_plan_buckets_t;

/* Rows of `cols` parameters. To be cleared, also after a failure. */
lap_status_t lap_plan_buckets_init(lap_plan_buckets_t *buckets, const lap_machine_t *machine,
                                   size_t rows, size_t cols);
void lap_plan_buckets_clear(lap_plan_buckets_t *buckets);

/* A kernel of so many seconds, which reads and writes these rows. */
lap_status_t lap_plan_add_kernel(lap_plan_buckets_t *buckets, const char *name, double seconds,
                                 lap_plan_slice_t reads, lap_plan_slice_t writes);

/* A bucket that is on its way for so many seconds: a reduce-scatter of `from`, or a gather into `to`. */
lap_status_t lap_plan_add_scatter(lap_plan_buckets_t *buckets, double seconds,
                                  lap_plan_slice_t from, lap_plan_slice_t to);
lap_status_t lap_plan_add_gather(lap_plan_buckets_t *buckets, double seconds, lap_plan_slice_t from,
                                 lap_plan_slice_t to);

/* Links and simulates it: the seconds of all, of which kernels_s are those of kernels. */
lap_status_t lap_plan_buckets_simulate(lap_plan_buckets_t *buckets, double *seconds_p);

#endif
