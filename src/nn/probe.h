/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fragments of a pass cost by themselves: a rank at its measurements, while all ranks are at
 * the same one. Kernels are issued as a pass issues them, with the shapes of the pass, in the memory of
 * its results.
 */
#ifndef LAP_NN_PROBE_H
#define LAP_NN_PROBE_H

#include "nn/nn.h"
#include "schedule/simulate.h"

/* The steps of an operator that were measured; NULL: they follow from the rates of its cost. */
typedef struct lap_probed {
    lap_step_cost_t *steps;
    uint32_t count;
    bool shared; /* the steps are those of another one */
} lap_probed_t;

#define LAP_PROBE_OPERANDS 12 /* of an entry, at most */

typedef struct lap_probe {
    lap_nn_t *nn;
    lap_nn_t shadow; /* the layers with other tokens and losses */
    int ranks; /* that are at it: those that share weights, and their replicas; may be set to more */
    lap_stream_t *stream;
    char *memory;
    char *at[LAP_PROBE_OPERANDS];       /* in it: the matrices of the entry that is measured, */
    lap_arg_t args[LAP_PROBE_OPERANDS]; /* ... and its operands */
    lap_operands_t operands;
    double *loss;             /* shared with the device */
    int32_t *ids;             /* the same: of a model, tokens as a pass has them; else NULL */
    lap_step_cost_t *kernels; /* of the kernel of each entry; negative: not known */
    lap_cost_t *costs;        /* of each operator */
    double *finishes;         /* of each operator: seconds of the epilogue per byte of the result */
    lap_probed_t *calls;      /* of each operator */
    lap_cost_t bucket_cost;   /* of the operators of buckets, */
    lap_probed_t *buckets;    /* of the two of each, */
    double cast;              /* and seconds per element that is cast */
    double update_rate;  /* of an optimizer: bytes that an update reads and writes per second, */
    double squares_rate; /* and that a sum of squares reads */
} lap_probe_t;

/* Local; to be cleared, also after a failure. */
lap_status_t lap_probe_init(lap_probe_t *probe, lap_nn_t *nn);
void lap_probe_clear(lap_probe_t *probe);

/*
 * Measures all that the passes of the layers consist of, and with `step` the step of an optimizer. Collective over the ranks that share weights
 * and their replicas; when one fails, all do.
 */
lap_status_t lap_probe_measure(lap_probe_t *probe, bool step);

/* The same of kernels and epilogues only. */
lap_status_t lap_probe_kernels(lap_probe_t *probe);

/* ---- for the files of the probe ---- */

/* The replicas whose buckets are part of backward; NULL: there are none. */
const lap_nn_background_t *lap_probe_replicas(const lap_probe_t *probe);

/*
 * The cost model for the calls of a group that go through a buffer, with its link and the cores that all
 * ranks share: see lap_calibrate. Collective over the group.
 */
lap_status_t lap_probe_calibrate(const lap_probe_t *probe, lap_group_t *group,
                                 const lap_buffer_t *buffer, lap_dtype_t dtype, size_t n, size_t k,
                                 lap_cost_t *cost_p);

/* The same on all ranks: the first failure of any of them. Collective. */
lap_status_t lap_probe_agree(const lap_probe_t *probe, lap_status_t status);

/* The largest of the numbers that the ranks have. Collective. */
lap_status_t lap_probe_most(const lap_probe_t *probe, double *number);

/*
 * The seconds of `run`, which runs what is timed and waits for it. On hosts it is the best of any
 * rank, since disturbances are no part of the cost. On other devices it is the median of the rounds,
 * of the slowest rank. `status` is what has failed so far. Collective.
 */
typedef lap_status_t (*lap_probe_run_t)(lap_probe_t *probe, void *what);
lap_status_t lap_probe_time(lap_probe_t *probe, lap_probe_run_t run, void *what,
                            lap_status_t status, double *seconds_p);

/*
 * The seconds of what `issue` issues for the turn-th time, by itself: repeats in a row, as a graph where
 * the device has such. Collective, also after a failure of this rank, which is `status`.
 */
typedef lap_status_t (*lap_probe_issue_t)(lap_probe_t *probe, const void *what, int turn);
lap_status_t lap_probe_work(lap_probe_t *probe, lap_probe_issue_t issue, const void *what,
                            lap_status_t status, double *seconds_p);

/* Gives the regions of an entry memory, which has numbers in it; lap_probe_free gives it back. */
lap_status_t lap_probe_place(lap_probe_t *probe, const lap_nn_entry_t *entry);
lap_status_t lap_probe_alloc(lap_probe_t *probe, size_t bytes);
void lap_probe_free(lap_probe_t *probe);

/* Whether two entries do the same with matrices of the same shapes. */
bool lap_probe_is_alike(const lap_nn_list_t *list, const lap_nn_entry_t *a,
                        const lap_nn_entry_t *b);

#define LAP_PROBE_BYTES ((size_t)1 << 27) /* of memory that no cache of a GPU holds */

/* ---- probe_update.c ---- */

/* The rates of the optimizer's kernels, with `step` and if the layers have one; else that of a sum. Collective. */
lap_status_t lap_probe_update(lap_probe_t *probe, bool step);

/*
 * An update of update->count weights in memory of lap_nn_update_bytes(count) bytes, to be measured: writes its
 * pointers, and numbers to where they point. `update` has all the rest.
 */
size_t lap_nn_update_bytes(size_t count);
lap_status_t lap_nn_update_place(const lap_kernels_t *kernels, lap_device_t *device,
                                 lap_stream_t *stream, void *memory, lap_update_t *update);

/* ---- probe_steps.c ---- */

/* Each step of each operator, and of those of buckets, as it is issued. Collective. */
lap_status_t lap_probe_steps(lap_probe_t *probe);

#endif
