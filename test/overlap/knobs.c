/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of an operator's fields: a field that has no row fails here, and what is filled in by
 * default is a description again that means the same.
 */
#include "overlap/knobs.h"

#include "fields.h"
#include "transport/transport.h"

/* Small sizes that every kind takes. */
static lap_op_desc_t describe(lap_op_kind_t kind, const char *method)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.method = method;
    desc.m = 64;
    desc.n = lap_kind_multiplies(kind) ? 32 : 0;
    desc.k = lap_kind_multiplies(kind) ? 16 : 0;
    desc.cols = lap_kind_moves(kind) ? 24 : 0;
    return desc;
}

/* All fields by their terms, since a description has padding. */
static bool same(const lap_op_desc_t *x, const lap_op_desc_t *y)
{
    lap_terms_t terms[2] = {{.of = NULL}, {.of = NULL}};
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++) {
        lap_field_term(&row->field, x, &terms[0]);
        lap_field_term(&row->field, y, &terms[1]);
    }
    const bool alike = terms[0].all && terms[1].all && terms[0].count == terms[1].count &&
                       memcmp(terms[0].all, terms[1].all, terms[0].count * sizeof(lap_term_t)) == 0;
    lap_terms_clear(&terms[0]);
    lap_terms_clear(&terms[1]);
    return alike;
}

static void test_settled(lap_op_kind_t kind, const char *method)
{
    const lap_op_desc_t desc = describe(kind, method);
    lap_problem_t once, twice;
    const lap_builder_t *builder;
    tap_ok(lap_problem_init(&once, &builder, &desc, 4, ~0u) == LAP_OK &&
               lap_problem_init(&twice, &builder, &once.desc, 4, ~0u) == LAP_OK &&
               same(&once.desc, &twice.desc),
           "%s %s: a description with its defaults is one that means the same",
           lap_op_kind_name(kind), method);
}

/* Every value that "auto" may try and `lap check` proves can be had. */
static void test_values(lap_op_kind_t kind, const lap_builder_t *method, const lap_op_field_t *row)
{
    const size_t *const lists[] = {row->tried, row->proved};
    for (size_t list = 0; list < 2; list++)
        for (size_t i = 0; i < LAP_KNOB_VALUES && lists[list][i]; i++) {
            lap_op_desc_t desc = describe(kind, method->name);
            lap_problem_t problem;
            const lap_builder_t *builder;
            const size_t value = lap_knob_value(row, lists[list][i], &desc, 4);
            lap_field_set(&row->field, &desc, value);
            tap_ok(lap_problem_init(&problem, &builder, &desc, 4, ~0u) == LAP_OK &&
                       lap_field_number(&row->field, &problem.desc) == value,
                   "%s %s: %s may be %zu", lap_op_kind_name(kind), method->name, row->field.name,
                   value);
        }
}

static void test_kind(lap_op_kind_t kind)
{
    test_settled(kind, LAP_AUTO);
    for (const lap_builder_t *method = lap_builders(kind); method->name; method++) {
        unsigned knobs = 0;
        test_settled(kind, method->name);
        for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++) {
            knobs |= row->knob;
            if (lap_knob_of(row, method))
                test_values(kind, method, row);
        }
        tap_ok((method->knobs & ~knobs) == 0, "%s %s: each of its knobs has a row",
               lap_op_kind_name(kind), method->name);
    }
}

/* A method without a knob that is turned is no candidate of "auto"; one with it is. */
static void test_suits(void)
{
    const lap_builder_t plain = {"plain", "", LAP_CAN_PUT, LAP_KNOB_AGGREGATE, NULL};
    const lap_builder_t gathers = {"gathers", "", LAP_CAN_PUT, LAP_KNOB_GATHER_INPUT, NULL};
    lap_op_desc_t desc = describe(LAP_AG_GEMM, LAP_AUTO);
    tap_ok(lap_knobs_suit(&desc, &plain) && lap_knobs_suit(&desc, &gathers),
           "no knob is turned: all methods suit");
    desc.gather_input = 1;
    tap_ok(!lap_knobs_suit(&desc, &plain) && lap_knobs_suit(&desc, &gathers),
           "gather_input is: only a method with that knob suits");
    size_t bytes = 0, nsignals = 0;
    desc = describe(LAP_GEMM_RS, LAP_AUTO);
    desc.gather_input = 1;
    tap_failure(lap_op_buffer_size(&desc, 2, &bytes, &nsignals), LAP_ERR_INVALID,
                "gather_input is 1 with method 'auto' of gemm_rs", "no method has it", NULL);
}

int main(void)
{
    test_suits();
    fields_cover("lap_op_desc_t", &lap_op_fields[0].field, sizeof(lap_op_fields[0]),
                 sizeof(lap_op_desc_t));
    fields_differ("lap_op_desc_t", &lap_op_fields[0].field, sizeof(lap_op_fields[0]));
    for (int kind = LAP_AG_GEMM; kind <= (int)LAP_EXTERNAL_RS; kind++)
        test_kind((lap_op_kind_t)kind);
    return tap_done();
}
