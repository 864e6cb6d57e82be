/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kinds of work of the entries of a list, a row each: the constant LAP_NN_..., the name in proofs
 * and pictures, and who issues it: the function issue_... of issue.c.
 */
#ifndef LAP_NN_WORK_H
#define LAP_NN_WORK_H

#define LAP_NN_WORK_LIST(X)                                                                        \
    X(OPERATOR, "operator", nothing) /* a call: the executor issues it */                          \
    X(NORM, "norm", norm)                                                                          \
    X(NORM_BACKWARD, "norm_backward", norm_backward)                                               \
    X(ATTEND, "attention", attention)                                                              \
    X(ATTEND_BACKWARD, "attention_backward", attention)                                            \
    X(ATTEND_BLOCK, "attention_block", block) /* to the keys of a group: see context.h */          \
    X(ATTEND_BLOCK_BACKWARD, "attention_block_backward", block)                                    \
    X(REORDER, "reorder", reorder)   /* tokens in the order of ranks: by position, or back */      \
    X(CONVERT, "convert", reduction) /* to another type */                                         \
    X(PACK, "pack", pack)            /* heads, a matrix for each rank that swaps them, or back */  \
    X(GATE, "swiglu", swiglu)                                                                      \
    X(GATE_BACKWARD, "swiglu_backward", swiglu)                                                    \
    X(ACTIVATE, "gelu", reduction) /* where no GEMM does it */                                     \
    X(COPY, "copy", copy)                                                                          \
    X(CAST, "cast", cast) /* to FP8 */                                                             \
    X(AMAX, "amax", amax) /* the largest magnitude of a matrix, for its scale */                   \
    X(SCALE, "scale", scale)                                                                       \
    X(TRANSPOSE, "transpose", transpose) /* the FP8 copy of a weight */                            \
    X(ADD, "add", reduction)             /* grad += a gradient of one backward, or = */            \
    X(LOSS, "loss", loss)                                                                          \
    X(SQUARES, "sum_squares", squares) /* of a gradient */                                         \
    X(TOTAL, "total", total)           /* of several sums: one */                                  \
    X(CLIP, "clip", clip)              /* the rates of a step, by the norm of all gradients */     \
    X(UPDATE, "update", update)                                                                    \
    X(EMBED, "embedding", tokens)                                                                  \
    X(EMBED_BACKWARD, "embedding_backward", tokens)                                                \
    X(ROPE, "rope", tokens)                                                                        \
    X(ROPE_BACKWARD, "rope_backward", tokens)                                                      \
    X(DROPOUT, "dropout", tokens)                                                                  \
    X(LOGIT_STATS, "logit_stats", tokens)                                                          \
    X(CROSS_ENTROPY, "cross_entropy", tokens)                                                      \
    X(READY, "ready", nothing) /* a gradient is complete: calls what lap_nn_on_gradient has */     \
    X(LOOK, "amax", look)      /* finds the largest magnitude, when asked to: see finite.c */      \
    X(ZERO, "zero", zero)      /* of a pipeline: all gradients begin with it */

typedef enum lap_nn_work {
#define WORK(work, name, issuer) LAP_NN_##work,
    LAP_NN_WORK_LIST(WORK)
#undef WORK
        LAP_NN_WORKS
} lap_nn_work_t;

#endif
