/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of every tensor that a caller gives. */
#ifndef LAP_CORE_TENSOR_H
#define LAP_CORE_TENSOR_H

#include <lap/status.h>
#include <lap/tensor.h>

/*
 * LAP_ERR_INVALID, with `name` and the address, where elements would not lie on their boundaries.
 */
lap_status_t lap_tensor_check_aligned(const lap_tensor_t *tensor, const char *name);

/*
 * A type that needs no scale and has bits enough for sums: the given one, bfloat16 in the place of
 * FP8.
 */
static inline lap_dtype_t lap_dtype_unscaled(lap_dtype_t dtype)
{
    return lap_dtype_is_fp8(dtype) ? LAP_BFLOAT16 : dtype;
}

#endif
