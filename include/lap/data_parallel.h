/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallelism: replicas of layers, each with its own part of the data, add up the gradients of
 * their weights. Gradients are cut into buckets, in the reverse order of the parameters, in which
 * backward makes them. Each bucket is sent as soon as it is complete, while the rest of backward
 * runs. Sums are taken in fp32 in the order of ranks, and are the same bits on every rank. A step
 * of several backwards (lap_nn_accumulate) sends its gradients once, during the last of them.
 *
 * The distributed optimizer: layers that are made with `shards` of lap_nn_desc_t have a part of the fp32
 * masters and of the moments of the optimizer, and the other ranks of shard_group the rest. Buckets are then
 * only reduce-scattered: each rank has its rows of every sum. lap_optimizer_step makes its part of the
 * weights, and all ranks gather those of the others, in the type in which layers read them: in the
 * background of the next forward, a bucket ahead of the layers that need it, or with lap_nn_refresh at once.
 * The numbers
 * are those of replicas that share nothing; only the sum of squares for clip_norm is taken in another
 * order.
 */
#ifndef LAP_DATA_PARALLEL_H
#define LAP_DATA_PARALLEL_H

#include <stddef.h>

#include <lap/buffer.h>
#include <lap/export.h>
#include <lap/nn.h>
#include <lap/status.h>
#include <lap/tensor.h>
#include <lap/trace.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/* Layers joined with their replicas. */
typedef struct lap_dp lap_dp_t;

/* Options of lap_dp_create. */
typedef struct lap_dp_options {
    size_t size;   /* sizeof(lap_dp_options_t), set by LAP_DP_OPTIONS_INIT */
    size_t bucket; /* a bucket is closed when it has so many elements; 0: 4 Mi, or shard_bucket */
    lap_dtype_t wire_dtype; /* float32, or bfloat16: gradients and sums are rounded to it */
    int overlap;            /* 0: buckets are sent when backward has ended */
    const lap_buffer_options_t *buffer_options; /* of the buffer of its own; NULL: the defaults */
    int overlap_weights; /* 0: a shared optimizer gathers weights in its step, not in forward */
    int by_layer; /* 1, or shard_by_layer: also where a layer ends, and with bucket 0 only there */
    int overlap_step; /* 1, with overlap_weights: the weights that the first GEMM of forward waits for are
                         gathered while the step makes the others */
} lap_dp_options_t;

/* The options that are meant by NULL. */
#define LAP_DP_OPTIONS_INIT                                                                        \
    {                                                                                              \
        sizeof(lap_dp_options_t), 0, LAP_FLOAT32, 1, NULL, 1, 0, 0                                 \
    }

/*
 * Joins layers with their replicas on the other ranks of `group`. Of the ranks that share the
 * weights only this one is in `group`. With `overlap` the last backward of a step, and in a pipeline that of
 * each stage, sends gradients as it completes them, in the background. Layers with `shards` have no
 * forward before; `group` has the ranks of shard_group. With `overlap_weights` a step of a pipeline gathers the
 * weights of its stages as their first actions need them.
 * Collective over the group, and over the ranks that share the weights, each with its own group: where one fails, all do.
 * Every rank gives the same options, and layers whose weights, and whose
 * optimizer if they have one, are described alike: LAP_ERR_MISMATCH names the difference.
 * `options` may be NULL. Writes *dp_p on success; the caller destroys it before the layers and the
 * group. Blocks until every rank has come.
 * Returns LAP_ERR_INVALID, and as lap_op_create.
 */
LAP_API lap_status_t lap_dp_create(lap_nn_t *nn, lap_group_t *group,
                                   const lap_dp_options_t *options, lap_dp_t **dp_p);

/* Leaves the replicas. Local, NULL is fine. */
LAP_API void lap_dp_destroy(lap_dp_t *dp);

/*
 * Ends the reduction that the last lap_nn_backward of a step, or lap_pp_step, has begun, and waits for
 * it. On return, lap_nn_gradients has the sums over all replicas, not their mean. Where they share
 * the optimizer, it has this rank's rows of them. The next backward comes after lap_nn_zero_gradients: sums
 * are not summed again.
 * Collective over the group, once in every step; blocks.
 * Returns LAP_ERR_INVALID (no backward has sent gradients since the call before), and as
 * lap_op_end.
 */
LAP_API lap_status_t lap_dp_wait(lap_dp_t *dp);

/* The number of buckets, and the elements of one, from the first that is sent. Local. */
LAP_API size_t lap_dp_buckets(const lap_dp_t *dp);
LAP_API size_t lap_dp_bucket(const lap_dp_t *dp, size_t index);

/* From the next backward on the buckets are timed, or not (the default). LAP_ERR_NO_MEMORY. */
LAP_API lap_status_t lap_dp_measure(lap_dp_t *dp, int on);

/*
 * The cost of the latest step: for how long this rank's gradients were in flight, 0 when they were
 * not timed; and how long lap_dp_wait waited for them after all passes had ended. Local.
 * Both are 0 where dp is NULL, and either pointer may be NULL.
 */
LAP_API void lap_dp_cost(const lap_dp_t *dp, double *total_s_p, double *waited_s_p);

LAP_END_DECLS

#endif
