/* SPDX-License-Identifier: Apache-2.0 */
/* What attention.c and the kernels of attention have in common. Plain C that is C++ as well. */
#ifndef LAP_KERNEL_CUDA_ATTENTION_KERNELS_H
#define LAP_KERNEL_CUDA_ATTENTION_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/params.h"

#define LAP_CUDA_ATTENTION_THREADS 128 /* of a block of the kernels for tensor cores */
#define LAP_CUDA_ATTENTION_TILE 64     /* keys or queries that such a block takes at a time, */
#define LAP_CUDA_ATTENTION_ROWS 128    /* and the queries that are a block's own in forward */
#define LAP_CUDA_PLAIN_THREADS 256     /* the same of the plain kernels, for keys and queries */
#define LAP_CUDA_PLAIN_TILE 32
#define LAP_CUDA_PLAIN_DIM 256     /* columns of a head that they can do at most */
#define LAP_CUDA_DELTA_THREADS 256 /* of attention_delta */

/* The rows that are a block's own in backward. */
#define LAP_CUDA_BACKWARD_ROWS(dim) ((dim) == 64 ? 128 : 64)

/*
 * Shared memory of a block. On tensor cores: its own rows, of one matrix or in backward of two, two tiles that
 * come and two that are worked on; with keys of its own, two numbers for each query of the latter, too.
 */
#define LAP_CUDA_ATTENTION_SHARED(dim) ((size_t)12 * LAP_CUDA_ATTENTION_TILE * (dim))
#define LAP_CUDA_QUERIES_SHARED(dim)                                                               \
    ((size_t)(8 * LAP_CUDA_ATTENTION_TILE + 4 * LAP_CUDA_BACKWARD_ROWS(dim)) * (dim))
#define LAP_CUDA_KEYS_SHARED(dim)                                                                  \
    (LAP_CUDA_QUERIES_SHARED(dim) + (size_t)16 * LAP_CUDA_ATTENTION_TILE)
#define LAP_CUDA_PLAIN_SHARED(tiles, dim) ((size_t)4 * LAP_CUDA_PLAIN_TILE * (tiles) * ((dim) | 1))

/*
 * The kernels, by the names of their functions in attention.cu, and the most shared memory that
 * they take. Those with a type and a number of columns of a head use tensor cores, and are in the
 * order in which attention.c counts; those of `blocks` attend to a block of keys. The plain ones take
 * all that there is.
 */
#define LAP_CUDA_ATTENTION_LIST(X)                                                                 \
    X(attention_delta, 0)                                                                          \
    X(attention_forward_f16_64, LAP_CUDA_ATTENTION_SHARED(64))                                     \
    X(attention_forward_f16_128, LAP_CUDA_ATTENTION_SHARED(128))                                   \
    X(attention_forward_bf16_64, LAP_CUDA_ATTENTION_SHARED(64))                                    \
    X(attention_forward_bf16_128, LAP_CUDA_ATTENTION_SHARED(128))                                  \
    X(attention_keys_f16_64, LAP_CUDA_KEYS_SHARED(64))                                             \
    X(attention_keys_f16_128, LAP_CUDA_KEYS_SHARED(128))                                           \
    X(attention_keys_bf16_64, LAP_CUDA_KEYS_SHARED(64))                                            \
    X(attention_keys_bf16_128, LAP_CUDA_KEYS_SHARED(128))                                          \
    X(attention_queries_f16_64, LAP_CUDA_QUERIES_SHARED(64))                                       \
    X(attention_queries_f16_128, LAP_CUDA_QUERIES_SHARED(128))                                     \
    X(attention_queries_bf16_64, LAP_CUDA_QUERIES_SHARED(64))                                      \
    X(attention_queries_bf16_128, LAP_CUDA_QUERIES_SHARED(128))                                    \
    X(attention_forward_blocks_f16_64, LAP_CUDA_ATTENTION_SHARED(64))                              \
    X(attention_forward_blocks_f16_128, LAP_CUDA_ATTENTION_SHARED(128))                            \
    X(attention_forward_blocks_bf16_64, LAP_CUDA_ATTENTION_SHARED(64))                             \
    X(attention_forward_blocks_bf16_128, LAP_CUDA_ATTENTION_SHARED(128))                           \
    X(attention_keys_blocks_f16_64, LAP_CUDA_KEYS_SHARED(64))                                      \
    X(attention_keys_blocks_f16_128, LAP_CUDA_KEYS_SHARED(128))                                    \
    X(attention_keys_blocks_bf16_64, LAP_CUDA_KEYS_SHARED(64))                                     \
    X(attention_keys_blocks_bf16_128, LAP_CUDA_KEYS_SHARED(128))                                   \
    X(attention_queries_blocks_f16_64, LAP_CUDA_QUERIES_SHARED(64))                                \
    X(attention_queries_blocks_f16_128, LAP_CUDA_QUERIES_SHARED(128))                              \
    X(attention_queries_blocks_bf16_64, LAP_CUDA_QUERIES_SHARED(64))                               \
    X(attention_queries_blocks_bf16_128, LAP_CUDA_QUERIES_SHARED(128))                             \
    X(attention_plain_forward, LAP_CUDA_PLAIN_SHARED(3, LAP_CUDA_PLAIN_DIM))                       \
    X(attention_plain_keys, LAP_CUDA_PLAIN_SHARED(4, LAP_CUDA_PLAIN_DIM))                          \
    X(attention_plain_queries, LAP_CUDA_PLAIN_SHARED(4, LAP_CUDA_PLAIN_DIM))

/*
 * lap_attention_t as a block: see lap_attention_as_block. Strides are in elements, here too. Kernels for
 * tensor cores that are not of `blocks` take the keys of qkv.
 */
typedef struct lap_cuda_attention {
    const void *qkv;
    void *out;
    float *lse;
    const void *dout;
    void *dqkv;
    float *delta; /* as lse: the sums of dout out over the columns of a head */
    size_t qkv_stride, out_stride;
    float scale;
    int32_t dtype;
    int32_t seq, batch, heads, kv_heads, dim;
    int32_t vector; /* attention_delta: elements of a thread at a time, 1 or 8 */
    int32_t first_head;
    int32_t mask_seq;
    lap_mask_t mask; /* the plain kernels */
    int32_t keys, sum_dtype, merges;
    const void *kv;
    void *dkv;
    size_t kv_stride, dq_stride, dkv_stride;
    lap_halves_t queries_at, keys_at;
} lap_cuda_attention_t;

/* The keys that a query sees: none, where there is no such query. */
LAP_ON_BOTH static inline int32_t lap_cuda_keys_seen(const lap_cuda_attention_t *a, int32_t query)
{
    return query >= a->seq ? 0
                           : (int32_t)lap_tokens_until(a->keys_at, (size_t)a->keys,
                                                       lap_position(a->queries_at, (size_t)query));
}

/* What the mask of dropout multiplies the probability of a key for a query with. */
LAP_ON_BOTH static inline float lap_cuda_mask_at(const lap_cuda_attention_t *a, int32_t sample,
                                                 int32_t head, int32_t query, int32_t key)
{
    const size_t row = (size_t)(a->first_head + head) * (size_t)a->mask_seq;
    return lap_mask_at(&a->mask, sample, row + lap_position(a->queries_at, (size_t)query),
                       (size_t)a->mask_seq, lap_position(a->keys_at, (size_t)key));
}

#endif
