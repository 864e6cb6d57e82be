/* SPDX-License-Identifier: Apache-2.0 */
/* What reading rules from a file needs to know of them. */
#ifndef LAP_NN_TP_OVERLAP_H
#define LAP_NN_TP_OVERLAP_H

#include <stdbool.h>

#include <lap/tp_overlap.h>

#include "core/fields.h"

#define LAP_TP_FIELDS 12

/*
 * All fields but the method, in their order, which is that of the bits of `given`: ints with bounds.
 * The row after the last has no name.
 */
extern const lap_field_t lap_tp_fields[LAP_TP_FIELDS + 1];

/* The words for GEMMs and methods, in their order; NULL at the end. */
extern const char *const lap_tp_gemm_names[LAP_TP_GEMMS + 1];
extern const char *const lap_tp_method_names[];

/* The fields of a rule that have an effect on a device, a bit each in the order of lap_tp_fields. */
unsigned lap_tp_overlap_used(const lap_tp_overlap_t *overlap, lap_tp_gemm_t gemm,
                             const char *device);

/* The rule of a GEMM with a method, and all other fields at their defaults. */
lap_tp_rule_t lap_tp_rule_default(lap_tp_gemm_t gemm, lap_tp_method_t method, int tp);

/*
 * Makes a rule that is auto the one whose operator has the method that auto has picked, and its knobs: `picked` as
 * lap_op_prediction names them, "pipeline:num_splits=8". false: no rule names them, and it stays.
 */
bool lap_tp_rule_settle(lap_tp_overlap_t *overlap, lap_tp_gemm_t gemm, const char *picked);

/*
 * Whether a rule makes sense: LAP_OK, or LAP_ERR_INVALID with the field, its value and what was
 * expected.
 */
lap_status_t lap_tp_rule_check(lap_tp_gemm_t gemm, const lap_tp_rule_t *rule, int tp);

/* The wgrad of a dgrad that may reduce, so that nothing is left to do at the same time as wgrad. */
static inline bool lap_tp_is_paired_wgrad(lap_tp_gemm_t gemm)
{
    return gemm == LAP_QKV_WGRAD || gemm == LAP_FC1_WGRAD;
}

#endif
