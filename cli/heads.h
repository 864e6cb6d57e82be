/* SPDX-License-Identifier: Apache-2.0 */
/* Heads that tensor-parallel ranks cannot share evenly: which others would do. */
#ifndef LAP_CLI_HEADS_H
#define LAP_CLI_HEADS_H

#include <stdbool.h>
#include <stddef.h>

#include <lap/nn.h>

/* Whether a number of ranks can share the heads of a description, and those of its keys. */
bool lap_heads_divide(const lap_nn_desc_t *desc, size_t tp);

/*
 * Gives a description the number of heads nearest to its own that `tp` ranks can share. All heads together, and those of keys,
 * are as wide as before, so that every GEMM keeps its size. False: there is no such number.
 */
bool lap_heads_fit(lap_nn_desc_t *desc, size_t tp);

/*
 * What would do, such as "--tp 5 or --heads 20". `ranks`: what a number of tensor-parallel ranks must divide, or 0. `all`: these are
 * there, and must have something to do, so it says how many replicas there are then.
 */
#define LAP_HEADS_TEXT 128
void lap_heads_advise(const lap_nn_desc_t *desc, size_t tp, size_t ranks, bool all,
                      char text[LAP_HEADS_TEXT]);

#endif
