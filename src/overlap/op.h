/* SPDX-License-Identifier: Apache-2.0 */
/* What tests may do to an operator that callers may not. */
#ifndef LAP_OVERLAP_OP_H
#define LAP_OVERLAP_OP_H

#include <stdint.h>

#include <lap/op.h>

/* From now on calls delay random steps and take ready blocks in random order; 0 ends it. Local. */
void lap_op_set_chaos(lap_op_t *op, uint64_t seed);

#endif
