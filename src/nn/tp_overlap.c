/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of the twelve GEMMs: their defaults, what switches do to them, and the operators that
 * they ask for. Reading them from a file is left to tp_overlap_yaml.c.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/options.h"
#include "core/status.h"
#include "nn/tp_overlap.h"
#include "overlap/knobs.h"
#include "util/join.h"

const char *const lap_tp_gemm_names[] = {
    "qkv_fprop", "qkv_dgrad", "qkv_wgrad", "proj_fprop", "proj_dgrad", "proj_wgrad", "fc1_fprop",
    "fc1_dgrad", "fc1_wgrad", "fc2_fprop", "fc2_dgrad",  "fc2_wgrad",  NULL,
};

const char *const lap_tp_method_names[] = {
    [LAP_TP_SERIAL] = "serial",     [LAP_TP_RING_EXCHANGE] = "ring_exchange",
    [LAP_TP_PIPELINE] = "pipeline", [LAP_TP_BULK] = "bulk",
    [LAP_TP_EXTERNAL] = "external", [LAP_TP_AUTO] = "auto",
    [LAP_TP_AUTO + 1] = NULL,
};

enum {
    IS_REDUCE_SCATTER,
    NUM_SM,
    CGA_SIZE,
    SET_SM_MARGIN,
    NUM_SPLITS,
    AGGREGATE,
    ATOMIC_GEMM,
    USE_CE,
    FP8_BUF,
    COMM_PRIORITY,
    GEMM_PRIORITY,
    OVERLAP_FIRST_GEMM,
};

#define RULE(field, low, high)                                                                     \
    {                                                                                              \
        LAP_FIELD(lap_tp_rule_t, field, LAP_FIELD_INT), .least = (low), .most = (high)             \
    }

const lap_field_t lap_tp_fields[LAP_TP_FIELDS + 1] = {
    [IS_REDUCE_SCATTER] = RULE(is_reduce_scatter, 0, 1),
    [NUM_SM] = RULE(num_sm, 1, LAP_SMS_MOST),
    [CGA_SIZE] = RULE(cga_size, 1, 4),
    [SET_SM_MARGIN] = RULE(set_sm_margin, 0, 1),
    [NUM_SPLITS] = RULE(num_splits, 1, LAP_BLOCKS_MOST),
    [AGGREGATE] = RULE(aggregate, 0, 1),
    [ATOMIC_GEMM] = RULE(atomic_gemm, 0, 1),
    [USE_CE] = RULE(use_ce, 0, 1),
    [FP8_BUF] = RULE(fp8_buf, 0, 1),
    [COMM_PRIORITY] = RULE(comm_priority, -5, 0),
    [GEMM_PRIORITY] = RULE(gemm_priority, -5, 0),
    [OVERLAP_FIRST_GEMM] = RULE(pipeline_rs_overlap_first_gemm, 0, 1),
};

/* What a GEMM does besides multiplying, by its name. */
typedef enum role {
    GATHERS, /* AG+GEMM */
    REDUCES, /* GEMM+RS */
    EITHER,  /* a gather at the same time, or GEMM+RS */
    BULK_RS, /* a reduction at the same time, unless its dgrad reduces */
    NOTHING,
} role_t;

typedef struct facts {
    lap_layout_t layout;
    role_t role;
    lap_tp_method_t method; /* by default */
    unsigned methods;       /* that it may have besides serial and auto: 1 << method */
} facts_t;

enum {
    RING = 1 << LAP_TP_RING_EXCHANGE,
    PIPELINE = 1 << LAP_TP_PIPELINE,
    BULK = 1 << LAP_TP_BULK,
    EXTERNAL = 1 << LAP_TP_EXTERNAL,
};

/* fprop, dgrad and wgrad of column-parallel weights, and of row-parallel ones. */
static const facts_t facts[2][3] = {
    {
        {LAP_FORWARD, GATHERS, LAP_TP_RING_EXCHANGE, RING},
        {LAP_DGRAD, EITHER, LAP_TP_BULK, BULK | RING | PIPELINE},
        {LAP_WGRAD, BULK_RS, LAP_TP_BULK, BULK},
    },
    {
        {LAP_FORWARD, REDUCES, LAP_TP_PIPELINE, RING | PIPELINE},
        {LAP_DGRAD, GATHERS, LAP_TP_RING_EXCHANGE, RING},
        {LAP_WGRAD, NOTHING, LAP_TP_EXTERNAL, EXTERNAL},
    },
};

/* qkv, proj, fc1, fc2: every other one is row-parallel. */
static const facts_t *facts_of(lap_tp_gemm_t gemm)
{
    return &facts[gemm / 3 % 2][gemm % 3];
}

static bool known_gemm(lap_tp_gemm_t gemm)
{
    return (size_t)gemm < LAP_TP_GEMMS;
}

const char *lap_tp_gemm_name(lap_tp_gemm_t gemm)
{
    return known_gemm(gemm) ? lap_tp_gemm_names[gemm] : "unknown GEMM";
}

const char *lap_tp_method_name(lap_tp_method_t method)
{
    return (size_t)method <= LAP_TP_AUTO ? lap_tp_method_names[method] : "unknown method";
}

/* ---- rules ---- */

lap_tp_rule_t lap_tp_rule_default(lap_tp_gemm_t gemm, lap_tp_method_t method, int tp)
{
    const role_t role = facts_of(gemm)->role;
    const bool parts = method == LAP_TP_RING_EXCHANGE || method == LAP_TP_PIPELINE;
    const bool ring = method == LAP_TP_RING_EXCHANGE || method == LAP_TP_AUTO;
    const bool reduces = role == REDUCES || role == BULK_RS || (role == EITHER && parts);
    return (lap_tp_rule_t){
        .method = method,
        .is_reduce_scatter = reduces,
        .num_sm = ring ? 1 : 16,
        .cga_size = ring ? 1 : 2,
        .set_sm_margin = !ring,
        .num_splits = !ring                  ? 4
                      : tp < LAP_BLOCKS_MOST ? tp
                                             : LAP_BLOCKS_MOST,
        .use_ce = 1,
        .fp8_buf = !reduces,
        .comm_priority = -5,
    };
}

/* "serial, ring_exchange or auto": what a GEMM may have. */
static void list_methods(lap_tp_gemm_t gemm, char *text, size_t bytes)
{
    text[0] = '\0';
    for (unsigned method = 0; method < LAP_TP_AUTO; method++)
        if (method == LAP_TP_SERIAL || (facts_of(gemm)->methods >> method & 1) != 0)
            lap_join(text, bytes, lap_tp_method_names[method]);
    snprintf(text + strlen(text), bytes - strlen(text), " or auto");
}

static lap_status_t check_method(lap_tp_gemm_t gemm, const lap_tp_rule_t *rule)
{
    static const char *const whys[] = {
        [GATHERS] = ": this GEMM gathers its input",
        [REDUCES] = ": this GEMM reduces its output",
        [EITHER] = "",
        [BULK_RS] = ": this GEMM does not depend on the reduction that runs with it",
        [NOTHING] = ": this GEMM does not communicate",
    };
    const lap_tp_method_t method = rule->method;
    const bool known = (size_t)method <= LAP_TP_AUTO;
    if (method == LAP_TP_SERIAL || method == LAP_TP_AUTO ||
        (known && (facts_of(gemm)->methods >> method & 1) != 0))
        return LAP_OK;
    char names[80];
    list_methods(gemm, names, sizeof(names));
    return lap_error(LAP_ERR_INVALID, "method of %s is %s, expected %s%s", lap_tp_gemm_names[gemm],
                     lap_tp_method_name(method), names, whys[facts_of(gemm)->role]);
}

lap_status_t lap_tp_rule_check(lap_tp_gemm_t gemm, const lap_tp_rule_t *rule, int tp)
{
    const char *name = lap_tp_gemm_names[gemm];
    LAP_TRY(check_method(gemm, rule));
    for (size_t i = 0; i < LAP_TP_FIELDS; i++) {
        const lap_field_t *field = &lap_tp_fields[i];
        const int value = (int)lap_field_number(field, rule);
        if (value < field->least || value > field->most)
            return lap_error(LAP_ERR_INVALID, "%s of %s is %d, expected %.0f to %.0f", field->name,
                             name, value, field->least, field->most);
    }
    const lap_tp_rule_t usual = lap_tp_rule_default(gemm, rule->method, tp);
    const bool open = facts_of(gemm)->role == EITHER &&
                      (rule->method == LAP_TP_SERIAL || rule->method == LAP_TP_AUTO);
    if (!open && rule->is_reduce_scatter != usual.is_reduce_scatter)
        return lap_error(
            LAP_ERR_INVALID, "is_reduce_scatter of %s is %d with method %s, expected %d", name,
            rule->is_reduce_scatter, lap_tp_method_name(rule->method), usual.is_reduce_scatter);
    if (rule->aggregate && rule->method == LAP_TP_RING_EXCHANGE && tp > 1 && tp % 2 != 0)
        return lap_error(LAP_ERR_INVALID,
                         "aggregate of %s is 1 with %d ranks, expected 0: aggregate needs an even "
                         "number of ranks",
                         name, tp);
    return LAP_OK;
}

static lap_status_t check_overlap(const lap_tp_overlap_t *overlap)
{
    if (!overlap)
        return lap_error(LAP_ERR_INVALID, "overlap is NULL, expected rules");
    if (overlap->size != sizeof(*overlap))
        return lap_error(LAP_ERR_INVALID,
                         "overlap.size is %zu, expected %zu, as lap_tp_overlap_init sets it",
                         overlap->size, sizeof(*overlap));
    return LAP_OK;
}

lap_status_t lap_tp_overlap_init(int tp, lap_tp_overlap_t *overlap_p)
{
    if (!overlap_p)
        return lap_error(LAP_ERR_INVALID,
                         "overlap_p is NULL, expected a pointer to write the rules to");
    if (tp < 1 || tp > LAP_RANKS_MAX)
        return lap_error(LAP_ERR_INVALID, "tp is %d, expected 1 to %d ranks", tp, LAP_RANKS_MAX);
    lap_tp_overlap_t overlap = {.size = sizeof(overlap), .tp = tp};
    for (int g = 0; g < LAP_TP_GEMMS; g++)
        overlap.rules[g] =
            lap_tp_rule_default((lap_tp_gemm_t)g, facts_of((lap_tp_gemm_t)g)->method, tp);
    *overlap_p = overlap;
    return LAP_OK;
}

/* ---- switches ---- */

/* Whether the switches let a rule overlap. */
static bool is_on(const lap_tp_switches_t *on, role_t role, const lap_tp_rule_t *rule)
{
    switch (role) {
    case GATHERS:
        return on->overlap_ag;
    case REDUCES:
        return on->overlap_rs;
    case EITHER:
        return rule->is_reduce_scatter ? on->overlap_rs : on->bulk_dgrad;
    case BULK_RS:
        return on->bulk_wgrad;
    case NOTHING:
        break;
    }
    return true;
}

lap_status_t lap_tp_overlap_switch(lap_tp_overlap_t *overlap, const lap_tp_switches_t *switches)
{
    lap_tp_switches_t on = LAP_TP_SWITCHES_INIT;
    LAP_TRY(check_overlap(overlap));
    if (!switches)
        return lap_error(LAP_ERR_INVALID, "switches is NULL, expected switches");
    LAP_TRY(lap_read_options(&on, sizeof(on), switches, "LAP_TP_SWITCHES"));
    for (int g = 0; g < LAP_TP_GEMMS; g++) {
        lap_tp_rule_t *rule = &overlap->rules[g];
        const role_t role = facts_of((lap_tp_gemm_t)g)->role;
        if (role == EITHER && rule->method == LAP_TP_BULK && on.overlap_rs_dgrad)
            *rule = lap_tp_rule_default((lap_tp_gemm_t)g, LAP_TP_PIPELINE, overlap->tp);
        if (!on.overlap || !is_on(&on, role, rule))
            rule->method = LAP_TP_SERIAL;
        else if (on.automatic && rule->method != LAP_TP_SERIAL)
            rule->method = LAP_TP_AUTO;
    }
    return LAP_OK;
}

/* ---- operators ---- */

static lap_op_kind_t kind_of(const lap_tp_overlap_t *overlap, lap_tp_gemm_t gemm)
{
    switch (facts_of(gemm)->role) {
    case GATHERS:
        return LAP_AG_GEMM;
    case REDUCES:
        return LAP_GEMM_RS;
    case EITHER:
        return overlap->rules[gemm].is_reduce_scatter ? LAP_GEMM_RS : LAP_BULK_AG;
    case BULK_RS: /* its dgrad comes just before it */
        return overlap->rules[gemm - 1].is_reduce_scatter ? LAP_GEMM : LAP_BULK_RS;
    case NOTHING:
        break;
    }
    return LAP_GEMM;
}

static const char *method_of(const lap_tp_rule_t *rule, lap_op_kind_t kind)
{
    if (kind == LAP_GEMM)
        return NULL;
    switch (rule->method) {
    case LAP_TP_RING_EXCHANGE:
        return rule->atomic_gemm ? "fused" : "ring";
    case LAP_TP_PIPELINE:
        return rule->atomic_gemm ? "fused" : "pipeline";
    case LAP_TP_BULK:
        return "direct";
    case LAP_TP_AUTO:
        return LAP_AUTO;
    case LAP_TP_SERIAL:
    case LAP_TP_EXTERNAL:
        break;
    }
    return "serial";
}

/*
 * Turns the knobs of an operator that rules have fields of the same names for, but for num_sm, which
 * counts SMs of a kernel that there is not. Returns those that its method has: bits as in `given`.
 */
static unsigned turn_knobs(const lap_tp_rule_t *rule, lap_op_desc_t *desc)
{
    const lap_builder_t *builder = lap_builder_find(desc->kind, desc->method);
    unsigned turned = 0;
    for (unsigned i = 0; i < LAP_TP_FIELDS; i++)
        for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++) {
            const bool has = builder && (row->knob & builder->knobs) != 0;
            if (!row->knob || row->knob == LAP_KNOB_NUM_SM ||
                strcmp(row->field.name, lap_tp_fields[i].name) != 0)
                continue;
            lap_field_set(&row->field, desc, has ? lap_field_number(&lap_tp_fields[i], rule) : 0);
            turned |= (unsigned)has << i;
        }
    return turned;
}

lap_status_t lap_tp_overlap_describe(const lap_tp_overlap_t *overlap, lap_tp_gemm_t gemm,
                                     lap_op_desc_t *desc)
{
    LAP_TRY(check_overlap(overlap));
    if (!known_gemm(gemm))
        return lap_error(LAP_ERR_INVALID, "gemm is %d, expected 0 to %d", (int)gemm,
                         LAP_TP_GEMMS - 1);
    if (!desc)
        return lap_error(LAP_ERR_INVALID, "lap_tp_overlap_describe: desc is NULL");
    const lap_tp_rule_t *rule = &overlap->rules[gemm];
    LAP_TRY(lap_tp_rule_check(gemm, rule, overlap->tp));
    desc->kind = kind_of(overlap, gemm);
    desc->layout = facts_of(gemm)->layout;
    desc->method = method_of(rule, desc->kind);
    (void)turn_knobs(rule, desc);
    if (desc->n > 0 && desc->num_splits > desc->n)
        desc->num_splits = desc->n;
    return LAP_OK;
}

/* ---- the choice of auto as a rule ---- */

/* Gives a rule the knobs of a label, each ":num_splits=8", or of a flag ":aggregate". */
static bool take_knobs(const char *label, lap_tp_rule_t *rule)
{
    while (*label == ':') {
        const size_t length = strcspn(++label, ":=");
        size_t f = 0;
        while (f < LAP_TP_FIELDS && (strlen(lap_tp_fields[f].name) != length ||
                                     strncmp(label, lap_tp_fields[f].name, length) != 0))
            f++;
        if (f == LAP_TP_FIELDS)
            return false;
        label += length;
        const uint64_t value = *label == '=' ? strtoull(label + 1, NULL, 10) : 1;
        lap_field_set(&lap_tp_fields[f], rule, value);
        label += strcspn(label, ":");
    }
    return true;
}

bool lap_tp_rule_settle(lap_tp_overlap_t *overlap, lap_tp_gemm_t gemm, const char *picked)
{
    lap_tp_rule_t *rule = &overlap->rules[gemm];
    const lap_op_kind_t kind = kind_of(overlap, gemm);
    const size_t length = strcspn(picked, ":");
    for (int i = 0; i < 2 * LAP_TP_AUTO && rule->method == LAP_TP_AUTO; i++) {
        lap_tp_rule_t other = lap_tp_rule_default(gemm, (lap_tp_method_t)(i / 2), overlap->tp);
        other.is_reduce_scatter = rule->is_reduce_scatter;
        other.atomic_gemm = i % 2;
        other.set_sm_margin = 0; /* as auto has it */
        const char *name = method_of(&other, kind);
        if (name && strlen(name) == length && strncmp(name, picked, length) == 0 &&
            take_knobs(picked + length, &other) &&
            lap_tp_rule_check(gemm, &other, overlap->tp) == LAP_OK)
            *rule = other;
    }
    return rule->method != LAP_TP_AUTO;
}

/* ---- fields of a file that have no effect ---- */

/* The fields of a rule that its operator uses, or whose value is what the device does anyway. */
unsigned lap_tp_overlap_used(const lap_tp_overlap_t *overlap, lap_tp_gemm_t gemm,
                             const char *device)
{
    const bool cuda = device && strcmp(device, "cuda") == 0;
    const lap_tp_rule_t *rule = &overlap->rules[gemm];
    const bool pipeline = rule->method == LAP_TP_PIPELINE;
    const bool ring = rule->method == LAP_TP_RING_EXCHANGE;
    lap_op_desc_t desc = {.kind = kind_of(overlap, gemm)};
    unsigned used = 1u << IS_REDUCE_SCATTER;
    desc.method = method_of(rule, desc.kind);
    used |= turn_knobs(rule, &desc);
    if (pipeline || ring)
        used |= 1u << ATOMIC_GEMM;
    if (pipeline)
        used |= 1u << FP8_BUF;
    /* Copies are made by the driver, on streams that come before those of GEMMs. */
    if (cuda && rule->use_ce)
        used |= 1u << USE_CE;
    if (cuda && rule->comm_priority == -5)
        used |= 1u << COMM_PRIORITY;
    if (cuda && rule->gemm_priority == 0)
        used |= 1u << GEMM_PRIORITY;
    if (cuda && !rule->set_sm_margin)
        used |= 1u << SET_SM_MARGIN;
    return used;
}

size_t lap_tp_overlap_unused(const lap_tp_overlap_t *overlap, const char *device, char *text,
                             size_t bytes)
{
    unsigned unused = 0;
    size_t count = 0;
    if (check_overlap(overlap) != LAP_OK)
        return 0;
    for (int g = 0; g < LAP_TP_GEMMS; g++)
        unused |= overlap->rules[g].given & ~lap_tp_overlap_used(overlap, (lap_tp_gemm_t)g, device);
    if (bytes > 0)
        text[0] = '\0';
    for (size_t i = 0; i < LAP_TP_FIELDS; i++) {
        if ((unused >> i & 1) == 0)
            continue;
        if (bytes > 0)
            lap_join(text, bytes, lap_tp_fields[i].name);
        count++;
    }
    return count;
}
