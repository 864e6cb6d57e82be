/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of transformer layers are given: their operands, in the order of their rows in kernels.def, and then
 * their constants. Matrices of one kernel have as many rows and columns, and one type, where nothing else is said; where one is
 * missing, it has no data. Plain C that is C++ as well: kernels for GPUs take these as they are.
 */
#ifndef LAP_KERNEL_PARAMS_H
#define LAP_KERNEL_PARAMS_H

#include <lap/nn.h>
#include <lap/optimizer.h>

#include "kernel/mask.h"

#ifdef __CUDACC__
#define LAP_ON_BOTH __host__ __device__
#else
#define LAP_ON_BOTH
#endif

/*
 * Where the tokens of a matrix are in their sequences: the first `split` of them at `first` and so on,
 * the others at `second` and so on. All 0: token s is at position s.
 */
typedef struct lap_halves {
    size_t split, first, second;
} lap_halves_t;

LAP_ON_BOTH static inline size_t lap_position(lap_halves_t halves, size_t token)
{
    return token < halves.split ? halves.first + token : halves.second + (token - halves.split);
}

/* Of `count` tokens, in the order of their positions, those at positions up to `last`. */
LAP_ON_BOTH static inline size_t lap_tokens_until(lap_halves_t halves, size_t count, size_t last)
{
    const size_t split = halves.split < count ? halves.split : count;
    const size_t early = last < halves.first ? 0 : last - halves.first + 1;
    const size_t late = last < halves.second ? 0 : last - halves.second + 1;
    return (early < split ? early : split) + (late < count - split ? late : count - split);
}

/*
 * y = (x - mean) rstd gamma + beta for each row, with its mean and rstd = 1 / sqrt(variance +
 * epsilon); LAP_RMSNORM: mean is 0 and there is no beta. Both are stored for backward.
 */
typedef struct lap_norm_forward {
    lap_tensor_t x;
    const float *gamma, *beta; /* [cols] */
    lap_tensor_t y;
    float *mean, *rstd; /* [rows] */
    void *scratch;      /* of norm_scratch bytes */
    lap_norm_t kind;
    float epsilon;
} lap_norm_forward_t;

/*
 * dx = the gradient of x, plus `skip` where there is one; dgamma and dbeta are overwritten with the
 * sums over these rows, which are taken in an order that does not change from call to call.
 */
typedef struct lap_norm_backward {
    lap_tensor_t x, dy, skip;
    const float *gamma, *mean, *rstd;
    lap_tensor_t dx;
    float *dgamma, *dbeta; /* [cols]; LAP_RMSNORM: dbeta is NULL */
    void *scratch;
    lap_norm_t kind;
} lap_norm_backward_t;

/*
 * Causal self-attention of `batch` sequences of `seq` tokens; row s * batch + b is token s of
 * sequence b. A row of qkv holds `heads` queries, then `kv_heads` keys, then as many values, each
 * of `dim` columns; query head i uses key and value head i / (heads / kv_heads). A row of out holds
 * the results of the heads. lse is [heads * batch, seq]: the logarithm of the sum of the
 * exponentials of each row of scores, for backward.
 *
 * With `keys` it is attention to a block of them, of which each query sees those up to its position.
 * The block has rows of its own, of kv_heads keys and then as many values. Forward makes a result in
 * float32 of these keys only, or, with `merges`, of these and those before: then out and lse have
 * the results of those. A query that sees no key leaves them as they are; without `merges` its result
 * is 0 and its lse is minus infinity. Backward takes lse and out of all keys, whose blocks then add
 * up: dqkv is the gradient of only the queries, in float32, and with `merges` it is added to what is
 * there; dkv is that of the block, in float32.
 */
typedef struct lap_attention {
    lap_dtype_t dtype;
    float scale; /* of the scores */
    size_t seq, batch, heads, kv_heads, dim;
    size_t qkv_stride, out_stride; /* also of their gradients */
    const void *qkv;
    void *out; /* backward: as forward has left it */
    float *lse;
    const void *dout; /* backward */
    void *dqkv;       /* backward: the result */
    void *scratch;    /* of attention_scratch bytes */
    /* Of probabilities: row (first_head + head) * mask_seq + query, column key, both by position. */
    lap_mask_t mask;
    size_t first_head;
    size_t mask_seq; /* tokens of the whole sequence; 0 without a block of keys: seq */
    /* Of a block of keys. */
    size_t keys; /* tokens of each sequence; 0: keys and values are those of qkv */
    lap_halves_t queries_at, keys_at;
    const void *kv;
    void *dkv;
    size_t kv_stride, dq_stride, dkv_stride;
    lap_dtype_t sum_dtype; /* of out, dqkv and dkv as they are written: LAP_FLOAT32 */
    int merges;
    int whole; /* lap_attention_as_block: the keys are all that there are */
} lap_attention_t;

/* All attention as attention to a block: that of qkv to itself is to one of all keys. */
static inline lap_attention_t lap_attention_as_block(const lap_attention_t *given)
{
    lap_attention_t block = *given;
    if (given->keys > 0)
        return block;
    const size_t skip = given->heads * given->dim * lap_dtype_size(given->dtype);
    block.keys = block.mask_seq = given->seq;
    block.kv = (const char *)given->qkv + skip;
    block.dkv = given->dqkv ? (char *)given->dqkv + skip : NULL;
    block.kv_stride = block.dq_stride = block.dkv_stride = given->qkv_stride;
    block.sum_dtype = given->dtype;
    block.whole = 1;
    return block;
}

/* The keys that a query sees: the first ones. */
static inline size_t lap_keys_seen(const lap_attention_t *block, size_t query)
{
    return lap_tokens_until(block->keys_at, block->keys, lap_position(block->queries_at, query));
}

/* The row of the mask of a query of a head. */
static inline size_t lap_mask_row(const lap_attention_t *block, size_t head, size_t query)
{
    return (block->first_head + head) * block->mask_seq + lap_position(block->queries_at, query);
}

/*
 * out = x times its mask, plus `skip` where there is one. Row i is token (first_row + i) / batch of
 * sequence (first_row + i) % batch; the token's position is the row of its mask. out may be x, with
 * its stride.
 */
typedef struct lap_dropout {
    lap_tensor_t x, skip, out;
    size_t batch, first_row;
    lap_mask_t mask;
    lap_halves_t at;
} lap_dropout_t;

/*
 * SwiGLU. A row of pre holds as many elements g as out has columns, then as many u; out = g / (1 + e^-g) u. Backward
 * makes dpre from dout.
 */
typedef struct lap_swiglu {
    lap_tensor_t pre, out;
} lap_swiglu_t;

typedef struct lap_swiglu_backward {
    lap_tensor_t pre, dout, dpre;
} lap_swiglu_backward_t;

/* *sum = the sum of the squares of y - target; dy = (y - target) scale. */
typedef struct lap_square_loss {
    lap_tensor_t y, target, dy; /* dy may be y */
    float scale;
    double *sum; /* shared memory of the device: alloc_shared */
} lap_square_loss_t;

/*
 * Row i of out = the row of `table` of its token, plus the row of `positions` of the position of
 * token i / batch where there are any, rounded once. `table` has rows [first, first + count) of the vocabulary: other tokens
 * give zeros.
 */
typedef struct lap_embedding {
    const int32_t *ids;
    const float *table, *positions; /* [count, cols], and perhaps NULL */
    lap_tensor_t out;
    size_t batch, first, count;
    lap_halves_t at;
} lap_embedding_t;

/*
 * grad = beta grad + alpha times the sums of the rows of dy that have the same token, in the order
 * of rows. beta 0: tokens that no row has get 0. Without ids row i has the number of the
 * position of token i / batch: the gradient of positions.
 */
typedef struct lap_embedding_backward {
    lap_tensor_t dy;
    const int32_t *ids; /* NULL: of positions */
    float *grad;        /* [count, cols] */
    size_t batch, first, count;
    float alpha, beta;
    lap_halves_t at;
} lap_embedding_backward_t;

/*
 * Rotates the first `heads` heads of each row, in place, by the angles of its position: with the
 * halves a and b of a head, a cos - b sin and b cos + a sin. Row i has the position of token i / batch; a row of
 * `table` has dim / 2 cosines and then as many sines. Backward turns the other way.
 */
typedef struct lap_rope {
    const float *table;
    lap_tensor_t x;
    size_t batch, heads, dim;
    int backward;
    lap_halves_t at;
} lap_rope_t;

/*
 * Cross-entropy of rows of logits, of which a rank has columns [first, first + cols). First each
 * rank finds three numbers for each row: its largest logit, the sum of e^(logit - that) and the
 * logit of the target, 0 where another rank has that. Once a rank has those of all ranks, it makes
 * the sum of the losses of all rows, the same bits on every rank, and turns its logits into their
 * gradients, times *scale. Rows with a target below 0 have no loss and no gradient.
 */
enum { LAP_LOGIT_MOST = 0, LAP_LOGIT_SUM, LAP_LOGIT_TARGET, LAP_LOGIT_STATS };

typedef struct lap_cross_entropy {
    lap_tensor_t logits; /* the columns after `cols` are 0, in logits and in their gradients */
    const int32_t *ids;
    float *stats; /* [rows, LAP_LOGIT_STATS], and then [ranks, rows, LAP_LOGIT_STATS] */
    size_t first, cols, ranks;
    const float *scale; /* shared memory of the device, as is sum */
    double *sum;        /* shared memory of the device */
} lap_cross_entropy_t;

/*
 * Element (i, j) = mean + std times normal number `first + i * row_step + j` of a tensor, as
 * util/random.h has them.
 */
typedef struct lap_fill_normal {
    lap_tensor_t out;
    float mean, std; /* std 0: all are mean */
    uint64_t seed, tensor, first, row_step;
} lap_fill_normal_t;

/* *amax = the largest magnitude in src; 0 for none. Not a number counts as infinite. */
typedef struct lap_amax {
    lap_tensor_t src;
    float *amax;
} lap_amax_t;

/* Floats from one scale to the next: operators take the address of one, a multiple of 16. */
#define LAP_FP8_SLOT 4u

/*
 * The scales of `count` FP8 matrices, from the largest magnitudes that all ranks have found in them,
 * or with a history from those of the latest calls; a scale of which the history knows nothing stays.
 * Not a number counts as infinite. See fp8_scale.h.
 */
typedef struct lap_fp8_scales {
    const float *found; /* [ranks, count] */
    float *scales;      /* [count, LAP_FP8_SLOT]: the first of each row */
    float *history;     /* [length, count], the latest first; NULL: none */
    float *amax;        /* [count]: becomes 0; may be `found`; NULL: none */
    size_t ranks, count, length;
    size_t narrow; /* so many of the first ones are e4m3, the others e5m2 */
} lap_fp8_scales_t;

/* *sum = the sum of the squares of src, in double, in an order that depends only on count. */
typedef struct lap_sum_squares {
    const float *src;
    double *sum; /* memory of the device, perhaps shared */
    size_t count;
} lap_sum_squares_t;

/* *total = the sum of `count` numbers, each `stride` after the one before, in their order. */
typedef struct lap_total {
    const double *src;
    double *total;
    size_t count, stride;
} lap_total_t;

/* What a step of an optimizer takes that is not the same in every step. */
typedef struct lap_rates {
    float scale; /* of the gradient */
    float lr;
    float correction1, correction2; /* 1 - beta1^t, 1 - beta2^t */
    double norm;                    /* of the scaled gradients; 0: it is not computed */
    int32_t made;                   /* 0: the norm is not finite, and nothing changes */
    int32_t reserved;
} lap_rates_t;

/*
 * *rates = *given, with a smaller scale where the norm is larger than `most`: see clip.h. The host
 * gives them and sees what came of them in memory that it shares with the device.
 */
typedef struct lap_clip {
    const double *squares; /* the sum over all gradients; NULL: no norm is computed */
    lap_rates_t *rates;
    lap_rates_t *result;      /* becomes the same as rates; in shared memory, */
    const lap_rates_t *given; /* ... as is this */
    float most;
} lap_clip_t;

/* A step of an optimizer on `count` weights; lap/optimizer.h has the formulas. */
typedef struct lap_update {
    const float *grad;
    const lap_rates_t *rates; /* memory of the device */
    float *master;
    float *first, *second; /* moments: v of LAP_SGD, m and v of LAP_ADAMW */
    size_t count;
    lap_optimizer_kind_t kind;
    float decay;
    float momentum, beta1, beta2, epsilon;
} lap_update_t;

#endif
