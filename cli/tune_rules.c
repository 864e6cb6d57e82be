/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that `lap tune` tries for each GEMM. */
#include <stdio.h>
#include <string.h>

#include "nn/tp_overlap.h"
#include "tune.h"

const lap_tune_unit_t lap_tune_units[LAP_TUNE_UNITS] = {
    {"qkv_fprop", LAP_QKV_FPROP, false},   {"proj_fprop", LAP_PROJ_FPROP, false},
    {"fc1_fprop", LAP_FC1_FPROP, false},   {"fc2_fprop", LAP_FC2_FPROP, false},
    {"fc2_dgrad", LAP_FC2_DGRAD, false},   {"fc1_dgrad, fc1_wgrad", LAP_FC1_DGRAD, true},
    {"proj_dgrad", LAP_PROJ_DGRAD, false}, {"qkv_dgrad, qkv_wgrad", LAP_QKV_DGRAD, true},
};

/* One method for a unit: its rule, and with both that of wgrad. */
typedef struct shape {
    lap_tp_method_t method, wgrad;
    int num_splits, aggregate, atomic_gemm; /* 0: the default */
} shape_t;

static const shape_t gathers[] = {
    {.method = LAP_TP_SERIAL},
    {.method = LAP_TP_RING_EXCHANGE},
    {.method = LAP_TP_RING_EXCHANGE, .aggregate = 1},
    {.method = LAP_TP_RING_EXCHANGE, .atomic_gemm = 1},
    {.method = LAP_TP_AUTO},
};

static const shape_t reduces[] = {
    {.method = LAP_TP_SERIAL},
    {.method = LAP_TP_PIPELINE, .num_splits = 2},
    {.method = LAP_TP_PIPELINE, .num_splits = 4},
    {.method = LAP_TP_PIPELINE, .num_splits = 8},
    {.method = LAP_TP_PIPELINE, .atomic_gemm = 1},
    {.method = LAP_TP_RING_EXCHANGE},
    {.method = LAP_TP_AUTO},
};

static const shape_t backwards[] = {
    {.method = LAP_TP_SERIAL, .wgrad = LAP_TP_SERIAL},
    {.method = LAP_TP_BULK, .wgrad = LAP_TP_SERIAL},
    {.method = LAP_TP_SERIAL, .wgrad = LAP_TP_BULK},
    {.method = LAP_TP_BULK, .wgrad = LAP_TP_BULK},
    {.method = LAP_TP_RING_EXCHANGE},
    {.method = LAP_TP_PIPELINE, .num_splits = 2},
    {.method = LAP_TP_PIPELINE, .num_splits = 4},
    {.method = LAP_TP_AUTO, .wgrad = LAP_TP_AUTO},
};

/* Adds words for a rule. */
static void describe(const lap_tp_rule_t *rule, char text[LAP_TUNE_TEXT])
{
    const bool parts = rule->method == LAP_TP_PIPELINE && !rule->atomic_gemm;
    const size_t used = strlen(text);
    char splits[24] = "";
    if (parts)
        snprintf(splits, sizeof(splits), ", %d splits", rule->num_splits);
    snprintf(text + used, LAP_TUNE_TEXT - used, "%s%s%s%s", lap_tp_method_name(rule->method),
             splits, rule->aggregate ? ", aggregate" : "",
             rule->atomic_gemm ? ", atomic_gemm" : "");
}

void lap_tune_words(const lap_tune_unit_t *unit, const lap_tp_rule_t *rules,
                    char text[LAP_TUNE_TEXT])
{
    text[0] = '\0';
    describe(&rules[0], text);
    if (!unit->both || rules[0].is_reduce_scatter)
        return;
    snprintf(text + strlen(text), LAP_TUNE_TEXT - strlen(text), " and ");
    describe(&rules[1], text);
}

static lap_tune_candidate_t candidate_of(const lap_tune_unit_t *unit, const shape_t *shape, int tp)
{
    lap_tune_candidate_t made = {.text = ""};
    lap_tp_rule_t *rule = &made.rules[0];
    *rule = lap_tp_rule_default(unit->gemm, shape->method, tp);
    rule->aggregate = shape->aggregate;
    rule->atomic_gemm = shape->atomic_gemm;
    if (shape->num_splits > 0)
        rule->num_splits = shape->num_splits;
    if (unit->both) {
        const lap_tp_gemm_t wgrad = (lap_tp_gemm_t)(unit->gemm + 1);
        made.rules[1] =
            lap_tp_rule_default(wgrad, rule->is_reduce_scatter ? LAP_TP_BULK : shape->wgrad, tp);
    }
    lap_tune_words(unit, made.rules, made.text);
    return made;
}

size_t lap_tune_candidates(const lap_tune_unit_t *unit, int tp,
                           lap_tune_candidate_t candidates[LAP_TUNE_MOST])
{
    const bool column = unit->gemm / 3 % 2 == 0, forward = unit->gemm % 3 == 0;
    const shape_t *shapes = unit->both ? backwards : column == forward ? gathers : reduces;
    const size_t count = unit->both          ? sizeof(backwards) / sizeof(backwards[0])
                         : column == forward ? sizeof(gathers) / sizeof(gathers[0])
                                             : sizeof(reduces) / sizeof(reduces[0]);
    size_t made = 0;
    for (size_t i = 0; i < count; i++) {
        candidates[made] = candidate_of(unit, &shapes[i], tp);
        if (lap_tp_rule_check(unit->gemm, &candidates[made].rules[0], tp) == LAP_OK)
            made++; /* others make no sense with so many ranks */
    }
    return made;
}

static bool is_same(const lap_tp_rule_t *a, const lap_tp_rule_t *b)
{
    return a->method == b->method && a->is_reduce_scatter == b->is_reduce_scatter &&
           (a->method != LAP_TP_PIPELINE || a->num_splits == b->num_splits) &&
           a->aggregate == b->aggregate && a->atomic_gemm == b->atomic_gemm;
}

bool lap_tune_has(const lap_tp_overlap_t *rules, const lap_tune_unit_t *unit,
                  const lap_tune_candidate_t *candidate)
{
    const lap_tp_rule_t *rule = &rules->rules[unit->gemm];
    if (!is_same(rule, &candidate->rules[0]))
        return false;
    return !unit->both || rule->is_reduce_scatter || is_same(rule + 1, &candidate->rules[1]);
}

void lap_tune_take(lap_tp_overlap_t *rules, const lap_tune_unit_t *unit,
                   const lap_tune_candidate_t *candidate)
{
    memcpy(&rules->rules[unit->gemm], candidate->rules,
           (unit->both ? 2 : 1) * sizeof(candidate->rules[0]));
}
