/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transformer layers under tensor parallelism, forward and backward. The communication of each GEMM
 * overlaps with it.
 *
 * Rows are tokens, sequence-major: row s * batch + b is token s of sequence b. m = seq * batch is
 * their number, h = hidden. Matrices of weights are [out, in]. The P ranks of the group share them
 * by whole heads, whose number must be a multiple of P, or by features, of which every rank must
 * have one: features_r, ffn_r and h_r are shares as lap_shard_features makes them. With sequence
 * parallelism (the default) the ranks share the rows of activations between layers as lap_shard
 * does it, and m_r is this rank's share of m. Without, every rank has all rows, and m_r below is m.
 *
 *   LAP_NN_LINEAR            y = x w^T + b. Column parallel: x is [m_r, h], y is [m, features_r].
 *                            With row_parallel: x is [m, h_r], y is [m_r, features].
 *   LAP_NN_LAYERNORM_LINEAR  y = norm(x) w^T + b; x is [m_r, h], y is [m, features_r].
 *   LAP_NN_LAYERNORM_MLP     y = act(norm(x) w1^T + b1) w2^T + b2; x and y are [m_r, h].
 *   LAP_NN_ATTENTION         q, k, v = norm(x) w^T + b; causal attention of each head, query heads
 *                            sharing key and value heads in groups; y = that times w2^T + b2; x
 *                            and y are [m_r, h].
 *   LAP_NN_TRANSFORMER       z = x + attention(x), y = z + mlp(z); x and y are [m_r, h].
 *   LAP_NN_MODEL             a language model: embedding of tokens, transformer layers, a norm, and
 *                            logits of the vocabulary; lap/model.h has its passes.
 *
 * Norms: LayerNorm with weight and bias, or RMSNorm with a weight. Activations: GELU as in
 * lap/op.h, or SwiGLU: silu(g) u, where w1 holds the features of g and then those of u; a rank has
 * its shares of both. With rotary positions queries and keys are rotated before attention.
 *
 * Activations and gradients of activations are of `dtype`. Each matrix of weights, and each bias of
 * a linear layer, has an fp32 master and a copy in `dtype`. Norms, sums and gradients of weights
 * are fp32. With `fp8` the operands of GEMMs are FP8, and everything else is of `dtype`.
 *
 * The numbers are the same up to rounding for any number of ranks: the weights that a seed gives do
 * not depend on P. On the device "cpu" in float32 they are the same bits for all methods of
 * overlap.
 */
#ifndef LAP_NN_H
#define LAP_NN_H

#include <stddef.h>
#include <stdint.h>

#include <lap/buffer.h>
#include <lap/export.h>
#include <lap/status.h>
#include <lap/tensor.h>
#include <lap/tp_overlap.h>
#include <lap/trace.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/* One or more layers of a kind, one after the other, seen from one rank of a group. */
typedef struct lap_nn lap_nn_t;

/* The kinds of layers, as above. */
typedef enum lap_nn_kind {
    LAP_NN_LINEAR = 0,
    LAP_NN_LAYERNORM_LINEAR = 1,
    LAP_NN_LAYERNORM_MLP = 2,
    LAP_NN_ATTENTION = 3,
    LAP_NN_TRANSFORMER = 4,
    LAP_NN_MODEL = 5,
} lap_nn_kind_t;

/* The norms of layers. */
typedef enum lap_norm {
    LAP_LAYERNORM = 0,
    LAP_RMSNORM = 1,
} lap_norm_t;

/* The activations of an MLP. */
typedef enum lap_activation {
    LAP_GELU = 0,
    LAP_SWIGLU = 1,
} lap_activation_t;

/* How a model knows where in its sequence a token is. */
typedef enum lap_positions {
    LAP_POSITIONS_NONE = 0,
    LAP_POSITIONS_LEARNED = 1, /* LAP_NN_MODEL: a row of a matrix is added to each embedding */
    /*
     * Halves of heads are rotated against each other: element i of the first half and element i of
     * the second are a pair, whose angle at token s is s / rope_theta^(2 i / head_dim).
     */
    LAP_POSITIONS_ROPE = 2,
} lap_positions_t;

/* What backward recomputes, to save memory. */
typedef enum lap_recompute {
    LAP_RECOMPUTE_NONE = 0,
    LAP_RECOMPUTE_SELECTIVE = 1, /* norms, activations and attention: no GEMM of a weight */
    LAP_RECOMPUTE_FULL = 2,      /* all but the input of each half of a layer, AG+GEMM overlapped */
} lap_recompute_t;

/* How FP8 operands of GEMMs get their scales: e4m3 forward, e5m2 for gradients. */
typedef enum lap_fp8_recipe {
    LAP_FP8_NONE = 0,
    /*
     * From the largest magnitudes of earlier steps: scales change in the first forward after a step, a refresh or
     * lap_nn_zero_gradients, and are the same for all micro-batches of a step.
     */
    LAP_FP8_DELAYED = 1,
    LAP_FP8_CURRENT = 2, /* from the matrix itself: ranks exchange a number before each such GEMM */
} lap_fp8_recipe_t;

/*
 * Context parallel: how the ranks that share a sequence attend to the tokens of each other. Rank r of
 * cp has the r-th and the r-th last of 2 cp chunks of each sequence, so that all have as much to do.
 */
typedef enum lap_cp_comm {
    LAP_CP_P2P = 0,        /* keys and values travel around a ring while attention runs */
    LAP_CP_ALL_GATHER = 1, /* those of all ranks are gathered before attention */
    LAP_CP_A2A = 2,        /* heads are exchanged against tokens: attention of some heads to all */
    LAP_CP_A2A_P2P = 3, /* heads among cp_a2a neighbours, keys and values around a ring of these */
} lap_cp_comm_t;

/* The description of layers: the same on every rank. */
typedef struct lap_nn_desc {
    size_t size; /* sizeof(lap_nn_desc_t), set by LAP_NN_DESC_INIT */
    lap_nn_kind_t kind;
    size_t layers;     /* how many; more than 1 only where x and y have the same shape */
    size_t seq, batch; /* seq is a capacity: a pass may use less */
    size_t hidden;     /* columns of the whole x */
    size_t features;   /* of the two linear kinds: columns of the whole y; 0: hidden */
    size_t ffn;        /* features between the GEMMs of an MLP; 0: 4 * hidden */
    size_t heads;      /* of attention */
    size_t kv_heads;   /* key and value heads, a divisor of heads; 0: heads */
    size_t head_dim;   /* 0: hidden / heads */
    lap_dtype_t dtype; /* float32, float16 or bfloat16 */
    lap_norm_t norm;
    lap_activation_t activation;
    float epsilon;         /* of norms */
    int bias;              /* linear layers have one */
    int row_parallel;      /* LAP_NN_LINEAR */
    int sequence_parallel; /* 0: rows are whole on every rank, and sums are all-reduced */
    lap_recompute_t recompute;
    lap_fp8_recipe_t fp8;
    size_t amax_history; /* LAP_FP8_DELAYED: steps looked back on; 0: 16 */
    /*
     * The overlap of each GEMM; NULL: the defaults. Without sequence parallelism all that counts is
     * whether a GEMM is serial, auto or neither.
     */
    const lap_tp_overlap_t *overlap;
    lap_buffer_t *buffer;                       /* to work in; NULL: its own, */
    const lap_buffer_options_t *buffer_options; /* made with these; NULL: the defaults */
    uint64_t seed;    /* of the weights; biases begin with 0, weights of norms with 1 */
    float init_std;   /* standard deviation of the weights */
    float loss_scale; /* gradients of activations are this much larger, those of weights are not */
    int debug;        /* proves a pass on this device when it is made: see lap_nn_check */
    size_t vocab;     /* LAP_NN_MODEL: tokens are 0 to vocab - 1; else 0 */
    size_t max_positions;      /* LAP_POSITIONS_LEARNED: rows of their matrix; 0: seq */
    lap_positions_t positions; /* of layers with attention */
    int tied;                  /* LAP_NN_MODEL: embeddings are the weights of the logits, too */
    float rope_theta;          /* LAP_POSITIONS_ROPE */
    /*
     * LAP_NN_MODEL, in forwards with targets: the part, from 0 to less than 1, of what becomes 0: of
     * the probabilities of attention; of embeddings, and of what attention and MLP add to them. The
     * masks are those of `seed` and of the sequences, on any ranks: see lap_model_samples.
     */
    float attention_dropout, hidden_dropout;
    size_t cp;             /* LAP_NN_MODEL: ranks that share each sequence; 0: 1 */
    lap_cp_comm_t cp_comm; /* how attention sees the tokens of all of them */
    size_t cp_a2a;         /* LAP_CP_A2A_P2P: of cp, those that exchange heads; 0: chosen */
    int cp_overlap;        /* 0: attention waits for all that travels */
    lap_group_t *cp_group; /* they, in the order of their parts of a sequence; cp 1: NULL */
    /*
     * LAP_POSITIONS_ROPE, as Llama 3.1 and 3.2 have it. Pairs whose angle turns less than rope_low_freq times
     * in rope_original tokens turn rope_factor times slower. Those with more than rope_high_freq turns are not
     * changed; between the two the angles are mixed. A factor of 1 changes nothing.
     */
    float rope_factor, rope_low_freq, rope_high_freq;
    size_t rope_original;
    /*
     * The distributed optimizer: `shards` ranks have the same weights, and each has a part of the fp32
     * masters and of the moments: see lap/data_parallel.h. `shard_group`: they, those that share sequences
     * next to each other.
     */
    size_t shards;            /* 0: 1, each rank has all of it */
    size_t shard_bucket;      /* elements of which each has a part; 0: 4 Mi, or with
                                 shard_by_layer those of a layer */
    lap_group_t *shard_group; /* shards 1: NULL */
    int shard_by_layer;       /* 1: no bucket has weights of two layers */
    int fp8_params;           /* 1: FP8 weights are made from these parts and gathered as FP8; 0:
                                 gathered as fp32, and then made. The same numbers. With shards 1
                                 it has no effect */
} lap_nn_desc_t;

/* A description in which seq, hidden and heads are still to be set. */
#define LAP_NN_DESC_INIT                                                                           \
    {                                                                                              \
        sizeof(lap_nn_desc_t), LAP_NN_TRANSFORMER, 1, 0, 1, 0, 0, 0, 0, 0, 0, LAP_FLOAT32,         \
            LAP_LAYERNORM, LAP_GELU, 1e-5f, 1, 0, 1, LAP_RECOMPUTE_NONE, LAP_FP8_NONE, 0, NULL,    \
            NULL, NULL, 1234, 0.023f, 1.0f, 0, 0, 0, LAP_POSITIONS_NONE, 0, 10000.0f, 0, 0, 0,     \
            LAP_CP_P2P, 0, 1, NULL, 1.0f, 1.0f, 4.0f, 8192, 0, 0, NULL, 0, 0                       \
    }

/* ---- making them ---- */

/* The name of a kind, such as "layernorm_mlp". Local. Never NULL. */
LAP_API const char *lap_nn_kind_name(lap_nn_kind_t kind);

/*
 * Whether a description makes sense for a group of `nranks` ranks, as far as that is known before
 * there are any ranks.
 * Local. Returns LAP_ERR_INVALID or LAP_ERR_UNSUPPORTED with the argument, its value and what was
 * expected.
 */
LAP_API lap_status_t lap_nn_validate(const lap_nn_desc_t *desc, int nranks);

/*
 * Proves that forward, loss and backward are safe: the calls on the one buffer that they share, as in
 * lap_op_check, and their kernels and memory. Two layers stand for more of them. Local; needs no
 * world. `transport` may be NULL. Rules that are "auto" are taken as serial.
 * Returns as lap_nn_validate, LAP_ERR_CHECK, LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_nn_check(const lap_nn_desc_t *desc, int nranks, const char *transport);

/*
 * The symmetric memory and signal words that the layers need, to size a buffer shared by several.
 * Local. Writes *bytes_p and *nsignals_p on success. Returns as lap_nn_validate.
 */
LAP_API lap_status_t lap_nn_buffer_size(const lap_nn_desc_t *desc, int nranks, size_t *bytes_p,
                                        size_t *nsignals_p);

/*
 * Makes layers on the device of the group's world, with weights of the seed and no gradients.
 * Collective; every rank gives the same description. Writes *nn_p on success; the caller destroys
 * it before its buffer and group. Blocks until every rank has come.
 * Returns as lap_nn_validate and lap_op_create. LAP_ERR_NO_MEMORY, on all ranks and before anything
 * is allocated, where the ranks of a host together need more of its memory than is available.
 */
LAP_API lap_status_t lap_nn_create(lap_group_t *group, const lap_nn_desc_t *desc, lap_nn_t **nn_p);

/*
 * Ends layers. Local, NULL is fine; passes in progress are waited for. Those that still have an
 * optimizer or replicas end with the last of them.
 */
LAP_API void lap_nn_destroy(lap_nn_t *nn);

/* This rank's part of a matrix: its size, where it begins in the whole, and the size of that. */
typedef struct lap_nn_part {
    size_t rows, cols;
    size_t first_row, first_col;
    size_t all_rows, all_cols;
} lap_nn_part_t;

/*
 * This rank's part of x, and of y, for `seq` active tokens of each sequence (0: the capacity). Of a
 * model: the tokens, and the logits. Local. Of NULL: nothing, all zeros.
 */
LAP_API lap_nn_part_t lap_nn_input(const lap_nn_t *nn, size_t seq);
LAP_API lap_nn_part_t lap_nn_output(const lap_nn_t *nn, size_t seq);

/* ---- passes ---- */

/*
 * Computes y from x, and stores what backward needs.
 * Collective. The first one after a step of a shared optimizer is so over shard_group too, unless
 * lap_nn_refresh was called. Every rank gives the same `seq`, the active tokens of each sequence: 1 to
 * desc.seq.
 * x and y are as lap_nn_input and lap_nn_output say, of desc.dtype, in the memory of the device. x
 * must not change until backward has ended, y until forward has; they do not overlap. Replaces the
 * state of the forward before.
 * Does not block on other ranks, except for passes of the same kind that have not ended. Nothing is
 * complete before lap_nn_wait.
 * Returns LAP_ERR_INVALID (nothing was started or changed), and as lap_op_begin, which breaks the
 * group; all passes in progress have ended then.
 */
LAP_API lap_status_t lap_nn_forward(lap_nn_t *nn, size_t seq, const lap_tensor_t *x,
                                    const lap_tensor_t *y);

/*
 * Computes the gradients of the weights, and dx, from the gradient dy of y: both as y and x, of the
 * latest forward. The gradients of weights are added to those of lap_nn_gradients, or replace them
 * after lap_nn_zero_gradients: see lap_nn_accumulate. dx overlaps neither dy nor x.
 * Collective. dy must not change until backward has ended. Blocks and returns as lap_nn_forward.
 */
LAP_API lap_status_t lap_nn_backward(lap_nn_t *nn, const lap_tensor_t *dy, const lap_tensor_t *dx);

/*
 * From the next loss on, gradients are `factor` times as large, those of weights too: lap_optimizer_step takes
 * the inverse as its scale. For float16, whose smallest gradients would be lost. 1 at first. Local; waits for nothing.
 * Returns LAP_ERR_INVALID (NULL, a factor that is not a finite number above 0).
 */
LAP_API lap_status_t lap_nn_scale_loss(lap_nn_t *nn, float factor);

/*
 * Half the mean square error of y to a target, and its gradient dy, times loss_scale. The mean is
 * over the whole y of all ranks. The three are alike, dy may be y.
 * Local: it is issued, as a pass is, after the forward that makes y. Blocks and returns as
 * lap_nn_forward; LAP_ERR_INVALID also without a forward before.
 */
LAP_API lap_status_t lap_nn_loss(lap_nn_t *nn, const lap_tensor_t *y, const lap_tensor_t *target,
                                 const lap_tensor_t *dy);

/*
 * Waits for all passes. Local to the rank; blocks. Their results are complete then.
 * Returns as lap_op_end.
 */
LAP_API lap_status_t lap_nn_wait(lap_nn_t *nn);

/*
 * The value of the latest loss, after lap_nn_wait: the same bits on every rank. Collective; blocks.
 * Writes *loss_p on success. Returns LAP_ERR_INVALID (also when there has been no lap_nn_loss, or
 * none of a model), else as lap_group_allgather.
 */
LAP_API lap_status_t lap_nn_loss_value(lap_nn_t *nn, double *loss_p);

/*
 * Fills this rank's part of a matrix with normal numbers of mean 0 and standard deviation `std`.
 * The element at row i and column j of the whole is the one of (seed, tensor, i * all_cols + j),
 * whatever the number of ranks. `matrix` is [part->rows, part->cols]. Tensor numbers from 2^32 on
 * are free for the caller: those below are of weights.
 * Local: it is issued. Returns LAP_ERR_INVALID.
 */
LAP_API lap_status_t lap_nn_fill(lap_nn_t *nn, const lap_tensor_t *matrix,
                                 const lap_nn_part_t *part, uint64_t seed, uint64_t tensor,
                                 float std);

/* ---- weights ---- */

#define LAP_NN_PARTS 3 /* most places of the whole matrix in which a shard's rows lie */

/*
 * This rank's part of a matrix or vector of weights. Row i of the shard is row
 * global_row[p] + i - (rows of the parts before) of the whole, where p is the part it lies in.
 */
typedef struct lap_nn_param {
    const char *name; /* such as "layer0.qkv.weight"; lives as long as the layers */
    size_t rows, cols;
    size_t all_rows, all_cols; /* of the whole */
    size_t nparts;
    size_t part_rows[LAP_NN_PARTS], global_row[LAP_NN_PARTS];
    size_t global_col;   /* of column 0 */
    int replicated;      /* the same on all ranks of the group, as is its gradient */
    int vector;          /* a bias, or of a norm; it has one column, as a matrix may have too */
    lap_tensor_t weight; /* what GEMMs read: of dtype, matrices perhaps FP8; the master where none
                            reads it, and where dtype is float32 */
    lap_tensor_t master; /* fp32; where ranks share masters: the weight */
    lap_tensor_t grad;   /* fp32 */
} lap_nn_param_t;

/* The number of parameters, and one of them, in the order of forward. Local. NULL past the last. */
LAP_API size_t lap_nn_params(const lap_nn_t *nn);
LAP_API const lap_nn_param_t *lap_nn_param(const lap_nn_t *nn, size_t index);

/*
 * All masters, and all gradients, as one array of *count_p floats each, parameters at multiples of 16 with zeros
 * between. Those whose gradients are complete only when backward ends (of norms, embeddings, positions) come
 * first, the others in order. Local. The memory is the device's. Where ranks share masters (shards), those that GEMMs do
 * not read lie before the others, and the masters are this rank's part only, bucket after bucket.
 * `count_p` may be NULL. NULL of NULL, without a count.
 */
LAP_API float *lap_nn_masters(lap_nn_t *nn, size_t *count_p);
LAP_API float *lap_nn_gradients(lap_nn_t *nn, size_t *count_p);

/*
 * The next backward starts new gradients: it is the first of a step. Accumulated gradients are
 * dropped. Local, touches no memory, NULL is fine.
 */
LAP_API void lap_nn_zero_gradients(lap_nn_t *nn);

/*
 * Sets whether the backwards from now on are followed by others of the same step (1), or each is
 * the last of its step (0, the default): gradient accumulation over micro-batches.
 *
 *     lap_nn_zero_gradients(nn);
 *     for (int i = 0; i < n; i++) {
 *         lap_nn_accumulate(nn, i < n - 1);
 *         lap_nn_forward(nn, seq, &x[i], &y);
 *         lap_nn_loss(nn, &y, &target[i], &y);
 *         lap_nn_backward(nn, &y, &dx);
 *     }
 *     lap_dp_wait(dp);
 *     lap_optimizer_step(optimizer, 1.0f / (float)(n * replicas), &norm);
 *
 * The gradients are then the sums over all backwards, and with lap_dp over all replicas. Only the
 * last backward sends them, when they are complete. Everything else is as in a step of one
 * backward: weights, and their copies in other types, change in lap_optimizer_step only; scales of
 * FP8 follow every forward. lap_nn_zero_gradients may drop the step before its last backward.
 * Calls that would give other sums return LAP_ERR_INVALID: lap_dp_wait or lap_optimizer_step after
 * a backward that is not the last. With lap_dp also a step before lap_dp_wait, and a backward
 * between the last one and lap_dp_wait, or between lap_dp_wait and lap_nn_zero_gradients.
 * Local, touches no memory, NULL is fine. Every rank passes the same value.
 */
LAP_API void lap_nn_accumulate(lap_nn_t *nn, int more);

/*
 * Called by the last lap_nn_backward of a step when all work that makes the gradient of parameter
 * `index` has been issued. Work that is issued to the streams of the world later, after a join of
 * them, sees the gradient. Parameters come in reverse order; those whose gradients the ranks must
 * add up come at the end. With replicas it may be on its way to them by then. A failure ends backward,
 * and backward returns it. NULL layers are fine.
 */
typedef lap_status_t (*lap_nn_ready_t)(void *context, size_t index);
LAP_API void lap_nn_on_gradient(lap_nn_t *nn, lap_nn_ready_t ready, void *context);

/*
 * Makes the copies of the weights that GEMMs read from their masters, after those have changed.
 * Where ranks share the optimizer (shards), gathers the weights that others have made, which the next
 * forward does otherwise: until then those of lap_nn_param are of the step before, but for this rank's.
 * Collective with FP8, whose scales are those of all ranks, and over shard_group with shards; else
 * local. It is issued, as a pass is: the masters must not change until it has ended. Blocks and returns as lap_nn_forward.
 */
LAP_API lap_status_t lap_nn_refresh(lap_nn_t *nn);

/* ---- inspection ---- */

/* One GEMM of one layer. */
typedef struct lap_nn_gemm {
    lap_tp_gemm_t gemm; /* of the linear kinds and logits: those of qkv, row parallel: proj */
    size_t layer;       /* of a model's logits: desc.layers */
    const char *kind;   /* of operator, such as "ag_gemm" */
    const char *method; /* such as "ring" */
    size_t m, n, k;     /* as in its description: n and k are those of all ranks together */
    size_t bytes;       /* of the symmetric buffer that it needs */
    lap_trace_t *trace; /* of the latest call; empty unless lap_nn_trace asked for it */
} lap_nn_gemm_t;

/*
 * The number of GEMMs, and one of them, in the order in which a forward and a backward begin them.
 * Local. Writes *gemm_p on success. Returns LAP_ERR_INVALID past the last.
 */
LAP_API size_t lap_nn_gemms(const lap_nn_t *nn);
LAP_API lap_status_t lap_nn_gemm(const lap_nn_t *nn, size_t index, lap_nn_gemm_t *gemm_p);

/* From the next pass on calls are traced, or not (the default). Local. Returns LAP_ERR_NO_MEMORY. */
LAP_API lap_status_t lap_nn_trace(lap_nn_t *nn, int on);

/* The first tensor with numbers that are not finite. */
typedef enum lap_nn_what {
    LAP_NN_ALL_FINITE = 0,
    LAP_NN_PARAMETER = 1,
    LAP_NN_ACTIVATION = 2,
    LAP_NN_GRADIENT = 3, /* of a parameter */
} lap_nn_what_t;

/* Where lap_nn_find_not_finite found it. */
typedef struct lap_nn_not_finite {
    lap_nn_what_t what;
    char name[64]; /* of the parameter, perhaps with the type of its copy, as in
                      "layer0.fc1.weight as float16"; "input"; or such as "layer1.gelu.output" */
    int rank;      /* of the group: the first that has it */
} lap_nn_not_finite_t;

/*
 * Looks for the first parameter, activation or gradient that is not finite. The order is that of a
 * step: x, then layer by layer the parameters and activations of forward, then the
 * gradients of lap_nn_gradients, from the last parameter to the first.
 * For use when a loss or a norm is not finite: it computes forward once more (which is collective as
 * lap_nn_forward is), from the x of that
 * loss and to y. Passes cost nothing for it.
 * Collective. x and y are as in lap_nn_forward; of a model they are ignored, and the tokens are those
 * of its latest forward. Waits for all earlier passes and for itself. Writes
 * *found_p on success, the same on every rank. Returns as lap_nn_forward and lap_nn_wait,
 * LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_nn_find_not_finite(lap_nn_t *nn, size_t seq, const lap_tensor_t *x,
                                            const lap_tensor_t *y, lap_nn_not_finite_t *found_p);

/* The symmetric buffer that the layers work in. Local. */
LAP_API lap_buffer_t *lap_nn_buffer(lap_nn_t *nn);

LAP_END_DECLS

#endif
