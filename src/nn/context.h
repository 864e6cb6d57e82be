/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Context parallel: the ranks of a context share each sequence. A sequence is cut into twice as many
 * chunks as there are ranks; rank r has chunk r and the r-th from the end, so that all have as much
 * to attend to. Keys and values travel between the ranks, by one of these ways:
 *
 *   p2p         around a ring: attention to those that have come runs while the next are on their way
 *   all_gather  all of them, and then one attention
 *   a2a         ranks exchange heads against tokens: each has all tokens of some heads
 *   a2a+p2p     the second within groups of neighbours, the first between the groups
 *
 * A context is always both: cp = ring * heads, where `heads` neighbours exchange heads and `ring` such
 * groups are a ring; with p2p and all_gather the groups are single ranks, with a2a there is one group.
 * All of it is a function of the description and of the number of tokens. Runs nothing.
 */
#ifndef LAP_NN_CONTEXT_H
#define LAP_NN_CONTEXT_H

#include "nn/list.h"

/* The ranks of a ring, and those that exchange heads; 1 each without context parallel. */
static inline size_t lap_nn_ring(const lap_nn_desc_t *desc)
{
    return desc->cp / desc->cp_a2a;
}

/* Checks the fields of a description and fills in their defaults. */
lap_status_t lap_nn_context_check(lap_nn_desc_t *desc, int nranks);

/* The same of those of a distributed optimizer. */
lap_status_t lap_nn_shards_check(lap_nn_desc_t *desc);

/* Of `seq` tokens of each sequence: those of rank `rank` of the context, and of its group. */
size_t lap_nn_context_tokens(const lap_nn_desc_t *desc, size_t seq, size_t rank);
size_t lap_nn_group_tokens(const lap_nn_desc_t *desc, size_t seq, size_t group);

/* Where the tokens of ranks [rank, rank + count) are, in the order of their positions. */
lap_halves_t lap_nn_context_halves(const lap_nn_desc_t *desc, size_t seq, size_t rank,
                                   size_t count);

/* The same of this rank, and of its group. */
size_t lap_nn_tokens(const lap_nn_list_t *list, size_t seq);
lap_halves_t lap_nn_halves(const lap_nn_list_t *list, size_t seq);

/* The groups of ranks whose calls a list has, and the symmetric buffers that these work in. */
enum {
    LAP_NN_BY_LAYERS = 0, /* ranks that share weights */
    LAP_NN_BY_REPLICAS,   /* has no calls in a list: see buckets.h */
    LAP_NN_BY_RING,
    LAP_NN_BY_HEADS,
    LAP_NN_BY_SHARDS, /* ranks that share the optimizer: its norm; what else is theirs, replicas do */
    LAP_NN_BY_NORM,   /* over which an optimizer sums, where that is more than the first */
    LAP_NN_GROUPS
};

/* A group of a list: its size, this rank's place in it, and from one rank to the next in the world. */
typedef struct lap_nn_slice {
    int size, rank, stride;
} lap_nn_slice_t;
lap_nn_slice_t lap_nn_slice(const lap_nn_list_t *list, int group);

/* This rank among those of one replica: contexts are as many neighbours as share weights apart. */
int lap_nn_list_place(const lap_nn_list_t *list);

/* The rows of a region that an entry uses, and the first of them. */
size_t lap_nn_entry_rows(const lap_nn_list_t *list, const lap_nn_entry_t *entry, uint32_t region,
                         size_t seq, size_t *first_p);

/* ---- what block.c lists with it: attention of a block ---- */

/* The regions of block `b`; the keys of forward, or of backward; the two passes. */
void lap_nn_list_context_regions(lap_nn_list_t *list, uint32_t b, bool keeps);
void lap_nn_list_context_keys(lap_nn_list_t *list, uint32_t b, int when);
void lap_nn_list_context_forward(lap_nn_list_t *list, uint32_t b, int when);
void lap_nn_list_context_backward(lap_nn_list_t *list, uint32_t b, uint32_t dmid, uint32_t dpre);

#endif
