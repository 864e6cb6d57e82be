/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layers consist of, as a pure function of their description and the number of ranks: blocks,
 * and the operators that they call. The order of the calls is in list.h.
 *
 * A block is: norm, column-parallel GEMM, something in the middle, row-parallel GEMM, with any of
 * these left out, and perhaps the sum with its input. A transformer layer is two of them. The last
 * block of a language model is its head: a norm and the column-parallel GEMM that makes logits.
 */
#ifndef LAP_NN_PLAN_H
#define LAP_NN_PLAN_H

#include <stdbool.h>

#include <lap/nn.h>

typedef enum lap_nn_middle {
    LAP_MIDDLE_NONE = 0,
    LAP_MIDDLE_GELU,
    LAP_MIDDLE_SWIGLU,
    LAP_MIDDLE_ATTENTION,
} lap_nn_middle_t;

/* The column-parallel weight is [pre, width], the row-parallel one [out, mid]. */
typedef struct lap_nn_shape {
    size_t layer;
    bool norm, column, row, residual, bias;
    bool fp8;  /* its GEMMs take FP8 */
    bool head; /* of a language model; `layer` is then the number of layers */
    lap_nn_middle_t middle;
    size_t width, pre, mid, out;
    lap_tp_gemm_t column_gemm, row_gemm; /* their fprop; dgrad and wgrad follow it */
    const char *column_name, *row_name, *norm_name;
} lap_nn_shape_t;

/* Consecutive layers of a model that are a stage of a pipeline; the first and the last have more. */
typedef struct lap_nn_chunk {
    size_t first, layers;
    bool embedding, head;
    uint32_t slots; /* micro-batches whose activations are there at once */
} lap_nn_chunk_t;

/* What a rank of a pipeline has of a model. A chunk has a layer or more: few models have so many. */
#define LAP_NN_CHUNKS 128
typedef struct lap_nn_cut {
    uint32_t nchunks; /* 0: all of it, and no pipeline */
    lap_nn_chunk_t chunks[LAP_NN_CHUNKS];
    uint32_t micros; /* micro-batches of a step */
    bool split;      /* gradients of weights are a part of backward by themselves */
} lap_nn_cut_t;

typedef struct lap_nn_plan {
    lap_nn_desc_t desc; /* with its defaults filled in */
    lap_tp_overlap_t overlap;
    int nranks;
    size_t m;       /* the capacity: rows of seq * batch that a rank has at most */
    size_t nblocks; /* all layers', or those of the chunks, one chunk after the other */
    lap_nn_cut_t cut;
} lap_nn_plan_t;

#define LAP_NN_SUM_COLS 16u /* gradients to be summed over ranks are seen as rows of so many */

/* Checks a description and fills in its defaults: see lap_nn_validate. */
lap_status_t lap_nn_plan_init(const lap_nn_desc_t *given, int nranks, lap_nn_plan_t *plan_p);

/* The same for a rank of a pipeline. */
lap_status_t lap_nn_plan_stage(const lap_nn_desc_t *given, int nranks, const lap_nn_cut_t *cut,
                               lap_nn_plan_t *plan_p);

/* Leaves `layers` of its layers. */
void lap_nn_plan_cut(lap_nn_plan_t *plan, size_t layers);

/* The number of chunks, at least 1; where the blocks of a chunk begin; what a chunk has. */
uint32_t lap_nn_plan_chunks(const lap_nn_plan_t *plan);
size_t lap_nn_plan_begin(const lap_nn_plan_t *plan, uint32_t chunk);
lap_nn_chunk_t lap_nn_plan_chunk(const lap_nn_plan_t *plan, uint32_t chunk);

/* The block of the whole model that a block of the plan is. */
size_t lap_nn_plan_block(const lap_nn_plan_t *plan, size_t own);

lap_nn_shape_t lap_nn_plan_shape(const lap_nn_plan_t *plan, size_t block);

/* The parameters that a block of the whole model adds to those before; and whether a rank has it. */
size_t lap_nn_plan_params(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape);
size_t lap_nn_plan_total(const lap_nn_plan_t *plan);
bool lap_nn_plan_has(const lap_nn_plan_t *plan, size_t block, size_t *own_p);

/* What a rank has of the features that the column-parallel GEMM makes and the row-parallel takes. */
size_t lap_nn_pre_share(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape, int rank);
size_t lap_nn_mid_share(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape, int rank);

/*
 * The rows of the vocabulary that a rank has, and the first of them. GEMMs of the head may have
 * more columns than these, up to lap_nn_pre_share: zeros, so that they are fast.
 */
size_t lap_nn_vocab_share(const lap_nn_plan_t *plan, int rank, size_t *first_p);

/* The same with these zeros. */
size_t lap_nn_logits_share(const lap_nn_plan_t *plan, int rank);

/* The floats of norms' gradients that ranks hold in part, with padding, of so many blocks; 0: none. */
size_t lap_nn_plan_sums(const lap_nn_plan_t *plan, size_t nblocks);

/* Whether forward stores the whole input of a column-parallel GEMM for backward. */
bool lap_nn_plan_keeps_input(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape);

/* The operator of a GEMM of a block, without a buffer. */
lap_status_t lap_nn_plan_describe(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape,
                                  lap_tp_gemm_t gemm, lap_op_desc_t *desc_p);

#endif
