/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of every tensor that a caller gives. */
#ifndef LAP_CORE_TENSOR_H
#define LAP_CORE_TENSOR_H

#include <lap/status.h>
#include <lap/tensor.h>

/* LAP_ERR_INVALID, with `name` and the address, where elements would not lie on their boundaries. */
lap_status_t lap_tensor_check_aligned(const lap_tensor_t *tensor, const char *name);

#endif
