/* SPDX-License-Identifier: Apache-2.0 */
/* Small layers whose programs tests prove. */
#ifndef LAP_TEST_NN_DESCRIBE_H
#define LAP_TEST_NN_DESCRIBE_H

#include <lap/nn.h>

static inline lap_nn_desc_t describe(lap_nn_kind_t kind)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = kind;
    desc.seq = 12;
    desc.batch = 2;
    desc.hidden = 48;
    desc.heads = 12;
    desc.dtype = LAP_BFLOAT16;
    if (kind == LAP_NN_MODEL) {
        desc.vocab = 50;
        desc.tied = 1;
        desc.positions = LAP_POSITIONS_ROPE;
    }
    return desc;
}

#endif
