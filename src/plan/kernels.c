/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/kernels.h"

#include "nn/context.h"

lap_plan_kernel_t lap_plan_kernel_of(lap_nn_work_t work)
{
    switch (work) {
    case LAP_NN_NORM:
        return LAP_PLAN_NORM;
    case LAP_NN_NORM_BACKWARD:
        return LAP_PLAN_NORM_BACKWARD;
    case LAP_NN_GATE:
        return LAP_PLAN_SWIGLU;
    case LAP_NN_GATE_BACKWARD:
        return LAP_PLAN_SWIGLU_BACKWARD;
    case LAP_NN_ROPE:
    case LAP_NN_ROPE_BACKWARD:
        return LAP_PLAN_ROPE;
    case LAP_NN_LOGIT_STATS:
        return LAP_PLAN_LOGIT_STATS;
    case LAP_NN_CROSS_ENTROPY:
        return LAP_PLAN_CROSS_ENTROPY;
    default:
        return LAP_PLAN_KERNELS;
    }
}

lap_plan_kernel_t lap_plan_epilogue_of(lap_epilogue_t epilogue)
{
    return epilogue & LAP_EPILOGUE_GELU    ? LAP_PLAN_GELU
           : epilogue & LAP_EPILOGUE_DGELU ? LAP_PLAN_GELU_BACKWARD
           : epilogue & LAP_EPILOGUE_BIAS  ? LAP_PLAN_BIAS
                                           : LAP_PLAN_KERNELS;
}

static double bytes_of(const lap_nn_list_t *list, const lap_nn_entry_t *entry, uint32_t index)
{
    size_t first;
    if (index == LAP_NN_NONE)
        return 0;
    const lap_nn_region_t *region = &list->regions[index];
    return (double)lap_nn_entry_rows(list, entry, index, list->plan.desc.seq, &first) *
           (double)region->cols * (double)lap_dtype_size(region->dtype);
}

double lap_plan_kernel_bytes(const lap_nn_list_t *list, const lap_nn_entry_t *entry)
{
    double bytes = entry->beta != 0 ? bytes_of(list, entry, entry->writes[0]) : 0;
    for (int i = 0; i < LAP_NN_READS; i++)
        bytes += bytes_of(list, entry, entry->reads[i]);
    for (int i = 0; i < LAP_NN_WRITES; i++)
        bytes += bytes_of(list, entry, entry->writes[i]);
    return bytes;
}
