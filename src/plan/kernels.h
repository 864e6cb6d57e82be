/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of a list as machine descriptions have them. The planner takes their rates by these
 * rules, and the calibration measures them by the same ones.
 */
#ifndef LAP_PLAN_KERNELS_H
#define LAP_PLAN_KERNELS_H

#include "nn/list.h"
#include "plan/machine.h"

/* The kernel of an entry, or that an epilogue is; LAP_PLAN_KERNELS: none that descriptions have. */
lap_plan_kernel_t lap_plan_kernel_of(lap_nn_work_t work);
lap_plan_kernel_t lap_plan_epilogue_of(lap_epilogue_t epilogue);

/* What an entry reads and writes, in bytes; those of an epilogue are the bytes of its result. */
double lap_plan_kernel_bytes(const lap_nn_list_t *list, const lap_nn_entry_t *entry);

#endif
