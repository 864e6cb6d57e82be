/* SPDX-License-Identifier: Apache-2.0 */
/* What reading rules from a file needs to know of them. */
#ifndef LAP_NN_TP_OVERLAP_H
#define LAP_NN_TP_OVERLAP_H

#include <stdbool.h>

#include <lap/tp_overlap.h>

/* A field of a rule: an int from `least` to `most`. */
typedef struct lap_tp_field {
    const char *name;
    size_t offset;
    int least, most;
} lap_tp_field_t;

#define LAP_TP_FIELDS 12

/* All fields but the method, in their order, which is that of the bits of `given`. */
extern const lap_tp_field_t lap_tp_fields[LAP_TP_FIELDS];

static inline int lap_tp_field(const lap_tp_rule_t *rule, size_t field)
{
    return *(const int *)((const char *)rule + lap_tp_fields[field].offset);
}

static inline void lap_tp_set_field(lap_tp_rule_t *rule, size_t field, int value)
{
    *(int *)((char *)rule + lap_tp_fields[field].offset) = value;
}

/* The words for GEMMs and methods, in their order; NULL at the end. */
extern const char *const lap_tp_gemm_names[LAP_TP_GEMMS + 1];
extern const char *const lap_tp_method_names[];

/* The rule of a GEMM with a method, and all other fields at their defaults. */
lap_tp_rule_t lap_tp_rule_default(lap_tp_gemm_t gemm, lap_tp_method_t method, int tp);

/*
 * Whether a rule makes sense: LAP_OK, or LAP_ERR_INVALID with the field, its value and what was
 * expected.
 */
lap_status_t lap_tp_rule_check(lap_tp_gemm_t gemm, const lap_tp_rule_t *rule, int tp);

/* The wgrad of a dgrad that may reduce, so that it has nothing left to do beside wgrad. */
static inline bool lap_tp_is_beside(lap_tp_gemm_t gemm)
{
    return gemm == LAP_QKV_WGRAD || gemm == LAP_FC1_WGRAD;
}

#endif
