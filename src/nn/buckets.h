/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: pieces of the array of all gradients, each of which travels to the other replicas as soon
 * as backward has completed it, in the background: a reduce-scatter and an all-gather. Pure: what
 * buckets there are, and the fragments that they add to the program of a backward.
 *
 * With a distributed optimizer each replica has its rows of every bucket: of the sums of gradients, of
 * masters and of moments. After the reduce-scatter nothing is gathered; the weights are, once the optimizer
 * has made them.
 */
#ifndef LAP_NN_BUCKETS_H
#define LAP_NN_BUCKETS_H

#include "nn/list.h"
#include "schedule/link.h"

/* A matrix does not care where its rows came from: a bucket is one, so that its rows can be shared. */
typedef struct lap_nn_bucket {
    uint32_t first, last; /* weights, by their places */
    size_t begin, count;  /* floats of all gradients */
    size_t rows, cols;
    lap_dtype_t weights; /* the type of all of them, where replicas share the optimizer */
    uint32_t updated; /* of the list's own: the entry of LAP_NN_STEP after those that update it */
} lap_nn_bucket_t;

/*
 * The fragments of a bucket. Casts are there where the type of the wire is not float32. Where replicas
 * share the optimizer UNCAST puts the own rows of the sum among the gradients; PACK takes those of
 * the masters, in the type of the weights, which GATHER gathers.
 */
enum {
    LAP_NN_BUCKET_CAST = 0,
    LAP_NN_BUCKET_SCATTER,
    LAP_NN_BUCKET_GATHER,
    LAP_NN_BUCKET_UNCAST,
    LAP_NN_BUCKET_PACK,
    LAP_NN_BUCKET_FRAGMENTS
};

/* The operands of the kernels among them; scales are those of FP8 weights. */
enum { LAP_NN_CAST_FROM = 0, LAP_NN_CAST_TO, LAP_NN_CAST_SCALES };

/* How gradients are summed over replicas. */
typedef struct lap_nn_buckets {
    int replicas, replica; /* how many there are, and which this is */
    size_t elements;       /* that a bucket was to have, at most; SIZE_MAX: any number */
    bool by_layer;         /* no bucket has weights of two layers */
    lap_dtype_t wire;      /* the type of gradients that travel */
    bool sharded;          /* replicas share the optimizer */
    lap_nn_bucket_t *list;
    size_t count;
    size_t most, most_own; /* elements of the largest bucket, and of this replica's rows of one */
} lap_nn_buckets_t;

#define LAP_NN_BUCKET_ELEMENTS ((size_t)4 << 20) /* of a bucket, unless it is given */

/*
 * Cuts the gradients of a list into buckets of about so many elements; 0: as above, or `by_layer` any number.
 * Where replicas share the optimizer, all weights of a bucket have one type. To be cleared.
 */
lap_status_t lap_nn_buckets_init(lap_nn_buckets_t *buckets, const lap_nn_list_t *list,
                                 size_t elements, bool by_layer, lap_dtype_t wire, int replicas,
                                 int replica);
void lap_nn_buckets_clear(lap_nn_buckets_t *buckets);

/* This replica's rows of a bucket. */
size_t lap_nn_bucket_rows(const lap_nn_buckets_t *buckets, size_t index);

/*
 * Where replicas share the optimizer: where the floats begin that a replica has of a bucket, and how many they are;
 * how many it has of all buckets; and where those of a bucket begin in an array that has only its own.
 */
size_t lap_nn_bucket_shard(const lap_nn_buckets_t *buckets, size_t index, int replica,
                           size_t *begin_p);
size_t lap_nn_shard_count(const lap_nn_buckets_t *buckets, int replica);
size_t lap_nn_shard_begin(const lap_nn_buckets_t *buckets, size_t index, int replica);

/* ... and what this rank has of a parameter: floats of all gradients, which lie from `at` on among its masters. */
typedef struct lap_nn_share {
    size_t begin, count, at;
} lap_nn_share_t;
lap_nn_share_t lap_nn_own_share(const lap_nn_list_t *list, const lap_nn_weight_t *weight);

/* ... and the weights of a bucket: bytes in their region. */
uint32_t lap_nn_bucket_weights(const lap_nn_list_t *list, const lap_nn_bucket_t *bucket,
                               size_t *offset_p);

/* The operator of a bucket, LAP_NN_BUCKET_SCATTER or _GATHER, without a buffer. */
lap_op_desc_t lap_nn_bucket_desc(const lap_nn_buckets_t *buckets, size_t index, int which);

/* The bucket that entry `entry` of a part completes, in the order of the list. False: none. */
bool lap_nn_bucket_completed(const lap_nn_buckets_t *buckets, const lap_nn_list_t *list, int part,
                             uint32_t entry, size_t *index_p);

/* Whether a bucket has a weight of the list. */
bool lap_nn_bucket_has_weight(const lap_nn_buckets_t *buckets, size_t index,
                              const lap_nn_list_t *list, uint32_t weight);

/* What linking needs to know of replicas. */
typedef struct lap_nn_replicas {
    const lap_nn_buckets_t *buckets;
    int base, stride; /* replica r of this rank is rank base + r * stride of the world */
    /* The schedule of an operator of a bucket, lowered. The caller clears it, also after a failure. */
    lap_status_t (*build)(void *context, size_t index, int which, lap_schedule_t *schedule_p);
    void *context;
} lap_nn_replicas_t;

/* Gives a program the memory in which buckets travel, after all regions of the list. */
void lap_nn_link_wire(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                      lap_linked_t *linked);

/* The regions that this adds: a bucket as it travels, and the rows of one that this replica sums. */
enum { LAP_NN_WIRE = 0, LAP_NN_SUM, LAP_NN_WIRE_REGIONS };

/*
 * Adds the fragments of a bucket: of its gradients, or where replicas share the optimizer of its weights.
 * Their origin is that of lap_nn_bucket_origin: no entry of a list.
 */
lap_status_t lap_nn_link_bucket(const lap_nn_list_t *list, const lap_nn_replicas_t *replicas,
                                size_t index, bool weights, lap_linked_t *linked);

/* Its fragments are expected once more: see lap_nn_expect_entry. */
void lap_nn_expect_bucket(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets, size_t index,
                          bool weights, lap_linked_t *linked);

#define LAP_NN_BUCKET_ORIGIN 0x80000000u

static inline uint32_t lap_nn_bucket_origin(size_t index, int which)
{
    return LAP_NN_BUCKET_ORIGIN + (uint32_t)index * LAP_NN_BUCKET_FRAGMENTS + (uint32_t)which;
}

/* The bucket and the fragment of it that an origin is; false: it is an entry of a list. */
static inline bool lap_nn_bucket_of(uint32_t origin, size_t *index_p, int *which_p)
{
    const uint32_t number = origin - LAP_NN_BUCKET_ORIGIN;
    if (origin < LAP_NN_BUCKET_ORIGIN)
        return false;
    *index_p = number / LAP_NN_BUCKET_FRAGMENTS;
    *which_p = (int)(number % LAP_NN_BUCKET_FRAGMENTS);
    return true;
}

#endif
