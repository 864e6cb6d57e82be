/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of the twelve GEMMs: their defaults, what the switches do to them, and that what they
 * ask for is an operator that can be made.
 */
#include <lap/tp_overlap.h>

#include <stdio.h>
#include <string.h>

#include "nn/tp_overlap.h"
#include "tap.h"

typedef struct expectation {
    const char *name;
    lap_tp_method_t method;
    int num_sm, cga_size, set_sm_margin, num_splits, fp8_buf;
    lap_op_kind_t kind;
    const char *op_method;
} expectation_t;

/* The documented defaults, with 8 ranks. */
static const expectation_t defaults[LAP_TP_GEMMS] = {
    {"qkv_fprop", LAP_TP_RING_EXCHANGE, 1, 1, 0, 8, 1, LAP_AG_GEMM, "ring"},
    {"qkv_dgrad", LAP_TP_BULK, 16, 2, 1, 4, 1, LAP_BULK_AG, "direct"},
    {"qkv_wgrad", LAP_TP_BULK, 16, 2, 1, 4, 0, LAP_BULK_RS, "direct"},
    {"proj_fprop", LAP_TP_PIPELINE, 16, 2, 1, 4, 0, LAP_GEMM_RS, "pipeline"},
    {"proj_dgrad", LAP_TP_RING_EXCHANGE, 1, 1, 0, 8, 1, LAP_AG_GEMM, "ring"},
    {"proj_wgrad", LAP_TP_EXTERNAL, 16, 2, 1, 4, 1, LAP_GEMM, NULL},
    {"fc1_fprop", LAP_TP_RING_EXCHANGE, 1, 1, 0, 8, 1, LAP_AG_GEMM, "ring"},
    {"fc1_dgrad", LAP_TP_BULK, 16, 2, 1, 4, 1, LAP_BULK_AG, "direct"},
    {"fc1_wgrad", LAP_TP_BULK, 16, 2, 1, 4, 0, LAP_BULK_RS, "direct"},
    {"fc2_fprop", LAP_TP_PIPELINE, 16, 2, 1, 4, 0, LAP_GEMM_RS, "pipeline"},
    {"fc2_dgrad", LAP_TP_RING_EXCHANGE, 1, 1, 0, 8, 1, LAP_AG_GEMM, "ring"},
    {"fc2_wgrad", LAP_TP_EXTERNAL, 16, 2, 1, 4, 1, LAP_GEMM, NULL},
};

/* A description with sizes for whatever kind it has become. */
static lap_status_t describe(const lap_tp_overlap_t *overlap, int gemm, lap_op_desc_t *desc)
{
    lap_op_desc_t known = LAP_OP_DESC_INIT;
    known.m = 24;
    known.n = 32;
    known.k = 40;
    lap_status_t status = lap_tp_overlap_describe(overlap, (lap_tp_gemm_t)gemm, &known);
    if (known.kind == LAP_BULK_AG || known.kind == LAP_BULK_RS)
        known.cols = 16;
    *desc = known;
    return status;
}

static bool same_method(const char *a, const char *b)
{
    return (!a && !b) || (a && b && strcmp(a, b) == 0);
}

static void check_defaults(void)
{
    lap_tp_overlap_t overlap;
    tap_success(lap_tp_overlap_init(8, &overlap), "default rules");
    for (int g = 0; g < LAP_TP_GEMMS; g++) {
        const expectation_t *e = &defaults[g];
        const lap_tp_rule_t *rule = &overlap.rules[g];
        lap_op_desc_t desc;
        tap_ok(strcmp(lap_tp_gemm_name((lap_tp_gemm_t)g), e->name) == 0, "%s is number %d", e->name,
               g);
        tap_ok(rule->method == e->method && rule->num_sm == e->num_sm &&
                   rule->cga_size == e->cga_size && rule->set_sm_margin == e->set_sm_margin &&
                   rule->num_splits == e->num_splits && rule->fp8_buf == e->fp8_buf,
               "%s has its documented defaults", e->name);
        tap_ok(!rule->aggregate && !rule->atomic_gemm && rule->use_ce &&
                   rule->comm_priority == -5 && rule->gemm_priority == 0 && !rule->given,
               "%s has those that all share", e->name);
        tap_success(describe(&overlap, g, &desc), "%s asks for an operator", e->name);
        tap_ok(desc.kind == e->kind && same_method(desc.method, e->op_method) &&
                   (int)desc.layout == g % 3,
               "%s is %s, method %s", e->name, lap_op_kind_name(desc.kind), desc.method);
    }
}

/* Every rule that can be had asks for an operator that its builders accept. */
static void check_operators(int tp, const lap_tp_switches_t *switches, const char *what)
{
    lap_tp_overlap_t overlap;
    tap_success(lap_tp_overlap_init(tp, &overlap), "rules for %d ranks", tp);
    tap_success(lap_tp_overlap_switch(&overlap, switches), "%s", what);
    for (int g = 0; g < LAP_TP_GEMMS; g++) {
        lap_op_desc_t desc;
        size_t bytes, nsignals;
        lap_status_t status = describe(&overlap, g, &desc);
        if (status == LAP_OK)
            status = lap_op_buffer_size(&desc, tp, &bytes, &nsignals);
        tap_success(status, "%s of %d ranks, %s, is an operator",
                    lap_tp_gemm_name((lap_tp_gemm_t)g), tp, what);
    }
}

static const char *method_after(const lap_tp_switches_t *switches, lap_tp_gemm_t gemm,
                                lap_op_kind_t *kind_p)
{
    static const char failed[] = "failed";
    lap_tp_overlap_t overlap;
    lap_op_desc_t desc;
    if (lap_tp_overlap_init(4, &overlap) != LAP_OK ||
        lap_tp_overlap_switch(&overlap, switches) != LAP_OK ||
        describe(&overlap, (int)gemm, &desc) != LAP_OK)
        return failed;
    *kind_p = desc.kind;
    return desc.method ? desc.method : "none";
}

/* After these switches a GEMM should be that kind with that method. */
static void expect(const lap_tp_switches_t *switches, const char *what, lap_tp_gemm_t gemm,
                   lap_op_kind_t kind, const char *method)
{
    lap_op_kind_t got_kind = LAP_GEMM;
    const char *got = method_after(switches, gemm, &got_kind);
    tap_ok(strcmp(got, method) == 0 && got_kind == kind, "%s: %s is %s, %s", what,
           lap_tp_gemm_name(gemm), lap_op_kind_name(got_kind), got);
}

static void check_switches(void)
{
    lap_tp_switches_t on = LAP_TP_SWITCHES_INIT;
    expect(&on, "as they are", LAP_QKV_FPROP, LAP_AG_GEMM, "ring");
    on.overlap_ag = 0;
    expect(&on, "no overlap_ag", LAP_QKV_FPROP, LAP_AG_GEMM, "serial");
    expect(&on, "no overlap_ag", LAP_FC2_DGRAD, LAP_AG_GEMM, "serial");
    expect(&on, "no overlap_ag", LAP_FC2_FPROP, LAP_GEMM_RS, "pipeline");
    expect(&on, "no overlap_ag", LAP_FC1_DGRAD, LAP_BULK_AG, "direct");
    on = (lap_tp_switches_t)LAP_TP_SWITCHES_INIT;
    on.overlap_rs = 0;
    expect(&on, "no overlap_rs", LAP_PROJ_FPROP, LAP_GEMM_RS, "serial");
    expect(&on, "no overlap_rs", LAP_FC1_FPROP, LAP_AG_GEMM, "ring");
    on = (lap_tp_switches_t)LAP_TP_SWITCHES_INIT;
    on.bulk_dgrad = 0;
    expect(&on, "no bulk_dgrad", LAP_QKV_DGRAD, LAP_BULK_AG, "serial");
    expect(&on, "no bulk_dgrad", LAP_QKV_WGRAD, LAP_BULK_RS, "direct");
    on = (lap_tp_switches_t)LAP_TP_SWITCHES_INIT;
    on.bulk_wgrad = 0;
    expect(&on, "no bulk_wgrad", LAP_QKV_DGRAD, LAP_BULK_AG, "direct");
    expect(&on, "no bulk_wgrad", LAP_QKV_WGRAD, LAP_BULK_RS, "serial");
    on = (lap_tp_switches_t)LAP_TP_SWITCHES_INIT;
    on.overlap_rs_dgrad = 1;
    expect(&on, "rs_dgrad", LAP_FC1_DGRAD, LAP_GEMM_RS, "pipeline");
    expect(&on, "rs_dgrad", LAP_FC1_WGRAD, LAP_GEMM, "none");
    expect(&on, "rs_dgrad", LAP_FC2_DGRAD, LAP_AG_GEMM, "ring");
    on.overlap = 0;
    expect(&on, "rs_dgrad, switched off", LAP_FC1_DGRAD, LAP_GEMM_RS, "serial");
    expect(&on, "rs_dgrad, switched off", LAP_FC1_WGRAD, LAP_GEMM, "none");
    on = (lap_tp_switches_t)LAP_TP_SWITCHES_INIT;
    on.automatic = 1;
    on.bulk_wgrad = 0;
    expect(&on, "auto", LAP_QKV_FPROP, LAP_AG_GEMM, "auto");
    expect(&on, "auto", LAP_QKV_DGRAD, LAP_BULK_AG, "auto");
    expect(&on, "auto", LAP_QKV_WGRAD, LAP_BULK_RS, "serial");
    expect(&on, "auto", LAP_PROJ_WGRAD, LAP_GEMM, "none");
}

static void check_all_operators(void)
{
    for (int tp = 1; tp <= 4; tp++) {
        lap_tp_switches_t on = LAP_TP_SWITCHES_INIT;
        check_operators(tp, &on, "as they are");
        on.overlap_rs_dgrad = 1;
        check_operators(tp, &on, "with rs_dgrad");
        on.automatic = 1;
        check_operators(tp, &on, "automatic");
        on.overlap = 0;
        check_operators(tp, &on, "switched off");
    }
}

static void check_knobs(void)
{
    lap_tp_overlap_t overlap;
    lap_op_desc_t desc;
    lap_tp_overlap_init(4, &overlap);
    overlap.rules[LAP_QKV_FPROP].aggregate = 1;
    describe(&overlap, LAP_QKV_FPROP, &desc);
    tap_ok(desc.aggregate == 1, "aggregate goes to the ring of an AG");
    overlap.rules[LAP_QKV_FPROP].atomic_gemm = 1;
    describe(&overlap, LAP_QKV_FPROP, &desc);
    tap_ok(same_method(desc.method, "fused") && desc.aggregate == 0, "atomic_gemm is fused");
    overlap.rules[LAP_PROJ_FPROP].num_splits = 7;
    describe(&overlap, LAP_PROJ_FPROP, &desc);
    tap_ok(desc.num_splits == 7, "num_splits goes to the pipeline");
    overlap.rules[LAP_PROJ_FPROP].num_splits = 33;
    describe(&overlap, LAP_PROJ_FPROP, &desc);
    tap_ok(desc.num_splits == 32, "no more splits than columns");
    overlap.rules[LAP_PROJ_FPROP] = overlap.rules[LAP_QKV_FPROP];
    overlap.rules[LAP_PROJ_FPROP].is_reduce_scatter = 1;
    overlap.rules[LAP_PROJ_FPROP].atomic_gemm = 0;
    describe(&overlap, LAP_PROJ_FPROP, &desc);
    tap_ok(same_method(desc.method, "ring") && desc.aggregate == 0 && desc.num_splits == 0,
           "a ring of RS has no aggregate and no splits");
}

static void check_mistakes(void)
{
    lap_tp_overlap_t overlap, untouched;
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    lap_tp_switches_t on = LAP_TP_SWITCHES_INIT;
    memset(&untouched, 0x5a, sizeof(untouched));
    overlap = untouched;
    tap_failure(lap_tp_overlap_init(0, &overlap), LAP_ERR_INVALID, "tp is 0", "1 to", NULL);
    tap_ok(memcmp(&overlap, &untouched, sizeof(overlap)) == 0, "which writes nothing");
    tap_failure(lap_tp_overlap_init(2, NULL), LAP_ERR_INVALID, "NULL", NULL);
    tap_failure(lap_tp_overlap_switch(&overlap, &on), LAP_ERR_INVALID, "overlap.size", NULL);
    lap_tp_overlap_init(3, &overlap);
    tap_failure(lap_tp_overlap_describe(&overlap, (lap_tp_gemm_t)12, &desc), LAP_ERR_INVALID,
                "gemm is 12, expected 0 to 11", NULL);
    tap_failure(lap_tp_overlap_describe(&overlap, LAP_FC1_FPROP, NULL), LAP_ERR_INVALID,
                "desc is NULL", NULL);
    overlap.rules[LAP_FC1_FPROP].method = LAP_TP_PIPELINE;
    tap_failure(lap_tp_overlap_describe(&overlap, LAP_FC1_FPROP, &desc), LAP_ERR_INVALID,
                "method of fc1_fprop is pipeline", "serial, ring_exchange or auto", NULL);
    overlap.rules[LAP_FC1_FPROP].method = (lap_tp_method_t)77;
    tap_failure(lap_tp_overlap_describe(&overlap, LAP_FC1_FPROP, &desc), LAP_ERR_INVALID,
                "unknown method", NULL);
    overlap.rules[LAP_QKV_FPROP].aggregate = 1;
    tap_failure(lap_tp_overlap_describe(&overlap, LAP_QKV_FPROP, &desc), LAP_ERR_INVALID,
                "aggregate of qkv_fprop", "3 ranks", NULL);
    overlap.rules[LAP_FC2_FPROP].num_splits = 0;
    tap_failure(lap_tp_overlap_describe(&overlap, LAP_FC2_FPROP, &desc), LAP_ERR_INVALID,
                "num_splits of fc2_fprop is 0", "1 to 1024", NULL);
    overlap.rules[LAP_QKV_DGRAD].is_reduce_scatter = 1;
    tap_failure(lap_tp_overlap_describe(&overlap, LAP_QKV_DGRAD, &desc), LAP_ERR_INVALID,
                "is_reduce_scatter of qkv_dgrad is 1 with method bulk", NULL);
    on.size = 3;
    tap_failure(lap_tp_overlap_switch(&overlap, &on), LAP_ERR_INVALID, "LAP_TP_SWITCHES", NULL);
}

/* What auto has picked, and the rule for it; with method auto: there is none. */
typedef struct settled {
    lap_tp_gemm_t gemm;
    const char *picked;
    lap_tp_method_t method;
} settled_t;

static void check_settled(void)
{
    static const settled_t list[] = {
        {LAP_QKV_FPROP, "serial", LAP_TP_SERIAL},
        {LAP_QKV_FPROP, "ring", LAP_TP_RING_EXCHANGE},
        {LAP_FC1_FPROP, "ring:aggregate", LAP_TP_RING_EXCHANGE},
        {LAP_PROJ_DGRAD, "fused", LAP_TP_RING_EXCHANGE},
        {LAP_FC2_FPROP, "pipeline:num_splits=8", LAP_TP_PIPELINE},
        {LAP_PROJ_FPROP, "pipeline", LAP_TP_PIPELINE},
        {LAP_PROJ_FPROP, "ring", LAP_TP_RING_EXCHANGE},
        {LAP_FC1_DGRAD, "direct", LAP_TP_BULK},
        {LAP_FC1_DGRAD, "serial", LAP_TP_SERIAL},
        {LAP_QKV_WGRAD, "direct", LAP_TP_BULK},
        {LAP_QKV_FPROP, "direct", LAP_TP_AUTO},
        {LAP_QKV_FPROP, "pull:num_splits=2", LAP_TP_AUTO},
        {LAP_QKV_FPROP, "rin", LAP_TP_AUTO},
        {LAP_FC1_DGRAD, "ring", LAP_TP_AUTO},
        {LAP_QKV_FPROP, "fused:block_rows=64", LAP_TP_AUTO},
    };
    lap_tp_switches_t automatic = LAP_TP_SWITCHES_INIT;
    automatic.automatic = 1;
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        lap_tp_overlap_t overlap;
        lap_op_desc_t desc;
        char label[64];
        lap_tp_overlap_init(4, &overlap);
        lap_tp_overlap_switch(&overlap, &automatic);
        const bool settled = lap_tp_rule_settle(&overlap, list[i].gemm, list[i].picked);
        tap_ok(overlap.rules[list[i].gemm].method == list[i].method &&
                   settled == (list[i].method != LAP_TP_AUTO),
               "%s of %s becomes %s: %s", list[i].picked, lap_tp_gemm_name(list[i].gemm),
               lap_tp_method_name(list[i].method),
               lap_tp_method_name(overlap.rules[list[i].gemm].method));
        if (!settled)
            continue;
        describe(&overlap, list[i].gemm, &desc);
        snprintf(label, sizeof(label), "%s%s", desc.method, desc.aggregate ? ":aggregate" : "");
        if (strchr(list[i].picked, '='))
            snprintf(label + strlen(label), sizeof(label) - strlen(label), ":num_splits=%zu",
                     desc.num_splits);
        tap_ok(strcmp(label, list[i].picked) == 0 && !desc.set_sm_margin,
               "... and its operator is the one that was picked: %s", label);
    }
}

int main(void)
{
    check_defaults();
    check_switches();
    check_all_operators();
    check_knobs();
    check_mistakes();
    check_settled();
    return tap_done();
}
