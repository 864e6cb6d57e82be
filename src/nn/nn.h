/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of layers: what nn.c makes, and block.c, param.c and pass.c use. */
#ifndef LAP_NN_NN_H
#define LAP_NN_NN_H

#include <lap/optimizer.h>

#include "core/terms.h"
#include "core/world.h"
#include "nn/kernels.h"
#include "nn/plan.h"
#include "schedule/run.h"

/* An operator of a pass, in the order in which a pass calls them. */
typedef struct lap_nn_call {
    lap_nn_step_t step;
    lap_op_t *op;
    lap_trace_t *trace; /* NULL until asked for */
    size_t bytes;       /* of symmetric memory */
} lap_nn_call_t;

/* The arguments of a reduction of one matrix, which must live until it has run. */
typedef struct lap_nn_reduction {
    const void *src;
    size_t src_stride;
    const float *scale;
    lap_finish_t finish;
} lap_nn_reduction_t;

/*
 * A matrix that GEMMs take in FP8: its copy, and the scale that all ranks have chosen for it from
 * the largest magnitude in it, or in those before it.
 */
typedef struct lap_nn_fp8 {
    lap_dtype_t dtype;
    void *data;   /* packed */
    size_t index; /* of its magnitudes */
    float scale;  /* 0: none yet */
} lap_nn_fp8_t;

/* What a GEMM takes, and its scale: 1 unless it is FP8. */
typedef struct lap_nn_operand {
    lap_tensor_t tensor;
    float scale;
} lap_nn_operand_t;

/*
 * A parameter. What GEMMs read, matrices and their biases, may have a copy in another type; vectors
 * have a gradient of one backward.
 */
typedef struct lap_nn_weight {
    lap_nn_param_t param;
    char name[48];
    size_t index;
    bool of_norm;
    float *partial; /* vectors: their gradient in the latest backward, times loss_scale */
    bool summed;    /* ranks hold it in part: it is among the sums */
    lap_nn_reduction_t reduction; /* of that */
    lap_nn_fp8_t fp8;             /* matrices, with FP8 */
    void *turned;                 /* the same, transposed: what dgrad takes */
} lap_nn_weight_t;

/* Memory of a block that only its own passes use, or that all blocks share: as recompute says. */
typedef struct lap_nn_block {
    lap_nn_shape_t shape;
    lap_nn_weight_t *gamma, *beta, *column, *column_bias, *row, *row_bias; /* NULL: none */
    lap_nn_call_t *column_calls[3], *row_calls[3];                         /* fprop, dgrad, wgrad */
    lap_nn_call_t *again; /* NULL: fprop is not called in backward */
    void *norm_out;       /* [m_r, width] */
    void *full;           /* [m, width]: x or norm_out of all ranks */
    void *pre;            /* [m, this rank's share of pre] */
    void *mid;            /* [m, this rank's share of mid] */
    void *y;              /* [m_r, out]; NULL: the caller's */
    float *mean, *rstd;   /* [m_r] */
    float *lse;           /* [heads / P * batch, seq] */
    lap_nn_reduction_t gelu;
    lap_nn_fp8_t input8, mid8; /* what the two fprops take */
    lap_nn_fp8_t dy8, dpre8;   /* what the two dgrads take */
    lap_tensor_t x;            /* of the latest forward */
} lap_nn_block_t;

/* Whose the gradients are, where lap_dp has joined the layers with replicas. */
typedef enum lap_nn_sync {
    LAP_NN_OWN = 0, /* this replica's */
    LAP_NN_LEAVING, /* the last backward of a step has begun to make them those of all */
    LAP_NN_SUMMED,  /* of all replicas */
} lap_nn_sync_t;

struct lap_nn {
    lap_nn_plan_t plan;
    lap_group_t *group;
    lap_engine_t *engine;
    const lap_nn_kernels_t *kernels;
    lap_buffer_t *buffer;
    bool owns_buffer;
    size_t keepers;    /* optimizers and replicas that were made for it and are still there */
    bool is_destroyed; /* by its owner: it goes with the last of them */

    lap_nn_call_t *calls;
    size_t ncalls;
    lap_nn_call_t *sum_calls[2]; /* NULL: nothing to sum */
    lap_nn_block_t *blocks;
    lap_nn_weight_t *weights;
    size_t nweights;
    float *masters, *grads; /* of all parameters */
    size_t nfloats;
    lap_nn_ready_t ready;
    void *ready_context;

    void **memory; /* all that was allocated on the device */
    size_t nmemory, memory_room;
    float *sums, *sums_r, *sums_all, *sums_rest; /* gradients of norms: here, own rows, of all */
    void *dy_full, *dmid, *dpre, *dx_part, *dnorm, *dx[2]; /* of the block in work */
    void *scratch;                                         /* of kernels */
    void *dy8, *dpre8;                                     /* of the block in work, with FP8 */
    float *scales;      /* P of them: where gathers put those of what they gather */
    size_t nfp8;        /* matrices that are FP8 */
    float *cast_scales; /* device memory: what casts divide each by, */
    float *cast_amax;   /* and the magnitudes that they have found since these were exchanged */
    float *amax;        /* shared memory: the magnitude of each in its latest use here, */
    float *found;       /* room for a copy of cast_amax, */
    float *history;     /* [nfp8, amax_history] and the magnitudes of all ranks before */
    size_t passes;      /* that have gone into it */
    double *loss;       /* shared memory: the sum of squares of the latest loss here, */
    size_t loss_count;  /* and how many elements the whole has */
    float *grad_scale;  /* shared memory: 1 / loss_scale */
    float
        *looks; /* shared memory: largest magnitudes of what finite.c looks at; NULL: it does not */

    lap_event_t *end;       /* of the compute stream, when all is waited for */
    lap_nn_call_t **flight; /* calls that have not ended */
    size_t nflight;
    bool in_forward, in_backward; /* some of them are of such a pass */
    bool kernel_last;             /* the latest work issued is a kernel's, not an operator's */
    bool tracing;
    bool fresh;         /* the next backward overwrites gradients */
    bool accumulates;   /* the next backward is not the last of its step */
    size_t held;        /* backwards of this step, if the latest was not its last; else 0 */
    bool joined;        /* with replicas: */
    lap_nn_sync_t sync; /* ... whose gradients are the sums */
    size_t seq;         /* of the latest forward; 0: none */

    lap_group_t *replicas; /* NULL: none have been joined */
    bool has_optimizer;
    lap_optimizer_desc_t optimizer;
};

/* Around the life of what is made for layers: those destroyed before go with the last of it. */
lap_nn_t *lap_nn_keep(lap_nn_t *nn);
void lap_nn_let_go(lap_nn_t *nn);

/* ---- nn_terms.c ---- */

/* Lists all of a description that the ranks of a group must have alike. */
void lap_nn_list_terms(const lap_nn_plan_t *plan, lap_terms_t *terms);

/*
 * Compares layers, and their optimizer if they have one, with their replicas, after the terms that
 * there are already. Collective over `replicas`; `mine` is as in lap_terms_agree.
 */
lap_status_t lap_nn_compare_replicas(lap_nn_t *nn, lap_group_t *replicas, lap_terms_t *terms,
                                     lap_status_t mine);

/*
 * Compares the optimizers of the ranks that share the weights, and those of replicas that there are.
 * Collective over both; `mine` is as in lap_terms_agree.
 */
lap_status_t lap_nn_take_optimizer(lap_nn_t *nn, lap_group_t *group,
                                   const lap_optimizer_desc_t *desc, lap_status_t mine);

/* ---- nn.c ---- */

/* Memory of the device that ends with the layers. */
lap_status_t lap_nn_alloc(lap_nn_t *nn, size_t bytes, void **memory_p);

/* ---- param.c ---- */

/* Lists the parameters, gives them memory, and issues what fills them. */
lap_status_t lap_nn_create_params(lap_nn_t *nn);

/* Issues the sum of a vector's gradient in this backward and of that before: grad += partial. */
lap_status_t lap_nn_add_partial(lap_nn_t *nn, lap_nn_weight_t *weight);

/* ---- fp8.c ---- */

/* Numbers a matrix that is to be FP8 and gives it memory for `count` elements, unless it has. */
lap_status_t lap_nn_fp8_add(lap_nn_t *nn, lap_nn_fp8_t *fp8, lap_dtype_t dtype, size_t count);

/* Makes room for the magnitudes, when all have been numbered. */
lap_status_t lap_nn_fp8_start(lap_nn_t *nn);

/* Before a forward: the magnitudes of the pass before become history. Collective; waits. */
lap_status_t lap_nn_fp8_renew(lap_nn_t *nn);

/*
 * The matrix as an operand: itself without FP8, else its FP8 copy, which is issued. Collective, and
 * waits, when the scale comes from the matrix itself: as the recipe says, and the first time.
 */
lap_status_t lap_nn_fp8_take(lap_nn_t *nn, lap_nn_fp8_t *fp8, const lap_tensor_t *matrix,
                             lap_nn_operand_t *operand_p);

/* Makes the copies of all weights, scaled by themselves. Collective; waits. */
lap_status_t lap_nn_fp8_weights(lap_nn_t *nn);

/* A weight as dgrad takes it: [out, in], with FP8 [in, out]. */
lap_nn_operand_t lap_nn_fp8_turned(const lap_nn_t *nn, const lap_nn_weight_t *weight);

/* The same operand again, with nothing issued. */
lap_nn_operand_t lap_nn_fp8_kept(const lap_nn_t *nn, const lap_nn_fp8_t *fp8,
                                 const lap_tensor_t *matrix);

/* ---- finite.c ---- */

/* In a forward that is looked at: issues the looks at x, or at a block and its y. */
lap_status_t lap_nn_look_input(lap_nn_t *nn, const lap_tensor_t *x);
lap_status_t lap_nn_look_block(lap_nn_t *nn, size_t b, const lap_tensor_t *y);

/* ---- pass.c ---- */

/* Waits for what was issued to the compute stream, and to all before it. Calls are not ended. */
lap_status_t lap_nn_settle(lap_nn_t *nn);

/* The compute stream, behind all operators issued so far; what is issued to it is a kernel. */
lap_status_t lap_nn_stream(lap_nn_t *nn, lap_stream_t **stream_p);

/* Begins an operator behind all kernels issued so far. args->m and args->trace are filled in. */
lap_status_t lap_nn_begin(lap_nn_t *nn, lap_nn_call_t *call, lap_op_args_t *args);

/*
 * dst = src, rounded to its type, which is packed. FP8 has a scale to be divided by, in memory of
 * the device, and perhaps a place for the largest magnitude; else both are NULL.
 */
lap_status_t lap_nn_cast(lap_nn_t *nn, const lap_tensor_t *src, lap_dtype_t to, void *dst,
                         const float *scale, float *amax);

/* dst = src, scaled and finished as the reduction says; both are packed [rows, cols]. */
lap_status_t lap_nn_reduce(lap_nn_t *nn, lap_nn_reduction_t *reduction, lap_dtype_t from,
                           lap_dtype_t to, void *dst, size_t rows, size_t cols);

/* Calls `ready`, if there is one, for the parameter of this index. */
lap_status_t lap_nn_tell_ready(lap_nn_t *nn, size_t index);

/* Whether the gradients are those of a whole step; `caller` is for the sentence. */
lap_status_t lap_nn_step_ended(const lap_nn_t *nn, const char *caller);

/* The active rows: all, and those of x and y between layers. */
size_t lap_nn_rows(const lap_nn_t *nn);
size_t lap_nn_own_rows(const lap_nn_t *nn);

/* ---- block.c ---- */

lap_status_t lap_nn_block_forward(lap_nn_t *nn, lap_nn_block_t *block, const lap_tensor_t *x,
                                  const lap_tensor_t *y);
lap_status_t lap_nn_block_backward(lap_nn_t *nn, lap_nn_block_t *block, const lap_tensor_t *dy,
                                   const lap_tensor_t *dx);

#endif
