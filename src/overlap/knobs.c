/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the fields of an operator's description, and what walks it. What fields mean together,
 * such as types that fit each other, is in overlap.c.
 */
#include "overlap/knobs.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "transport/transport.h"
#include "util/join.h"

/* ---- what rows say beyond numbers ---- */

static bool has_pairs(int size)
{
    return size == 1 || size % 2 == 0;
}

static lap_status_t check_pairs(const lap_knob_view_t *v)
{
    if (!v->desc->aggregate || has_pairs(v->size))
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "aggregate needs an even group size, got %d", v->size);
}

static bool pairs_are_worth(const lap_knob_view_t *v)
{
    return v->size > 2 && v->size % 2 == 0;
}

/* Parts of n; or, where it is the peers that are taken in turn, one each. */
static size_t usual_splits(const lap_knob_view_t *v)
{
    if (v->builder->knobs & LAP_KNOB_ROUNDS)
        return v->size > 1 ? (size_t)v->size - 1 : 1;
    return v->desc->n < 4 ? v->desc->n : 4;
}

static lap_status_t check_splits(const lap_knob_view_t *v)
{
    if (!(v->builder->knobs & LAP_KNOB_NUM_SPLITS) || v->desc->num_splits <= v->desc->n)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "num_splits is %zu, expected at most n = %zu",
                     v->desc->num_splits, v->desc->n);
}

/* What is put in one part is serial. */
static bool splits_are_worth(const lap_knob_view_t *v)
{
    const size_t splits = v->desc->num_splits;
    if (v->builder->knobs & LAP_KNOB_ROUNDS)
        return splits <= 2 && splits + 1 < (size_t)v->size;
    return splits <= v->desc->n && (splits > 1 || v->builder->needs & LAP_CAN_ADDRESS);
}

/*
 * Rows that travel together in the fused methods. More blocks overlap more finely, but a GEMM of
 * few rows runs below its full speed: a shard is cut into two to four, none of them short, and
 * where GEMMs run side by side into none.
 */
static size_t usual_rows(const lap_knob_view_t *v)
{
    const size_t least = 128, good = 512;
    size_t shard = lap_shard(v->desc->m, v->size, 0, NULL), parts = shard / good;
    if (v->can & LAP_CAN_LANES)
        return shard > 0 ? shard : 1;
    parts = parts < 2 ? 2 : parts > 4 ? 4 : parts;
    size_t rows = (shard + parts - 1) / parts;
    return rows < least ? least : rows;
}

static lap_status_t check_rows(const lap_knob_view_t *v)
{
    const size_t shard = lap_shard(v->desc->m, v->size, 0, NULL), rows = v->desc->block_rows;
    if (rows == 0 || shard / rows <= LAP_BLOCKS_MOST)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "block_rows is %zu, expected at least %zu: a shard of %zu rows may have %d "
                     "blocks",
                     rows, shard / LAP_BLOCKS_MOST + 1, shard, LAP_BLOCKS_MOST);
}

/* While nothing else runs: with serial. */
static bool sms_are_worth(const lap_knob_view_t *v)
{
    return v->builder == lap_builders(v->desc->kind) && v->can & LAP_CAN_LANES;
}

/* ---- the table ---- */

enum {
    ALL_EPILOGUES =
        LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU | LAP_EPILOGUE_BIAS_GRAD,
    MULTIPLY = (1 << LAP_EXTERNAL_AG) - 1,
    MOVE = 1 << LAP_BULK_AG | 1 << LAP_BULK_RS | 1 << LAP_EXTERNAL_AG | 1 << LAP_EXTERNAL_RS,
};

const char *const lap_layout_names[] = {"forward", "dgrad", "wgrad", NULL};
static const char *const algorithms[] = {"default",    "split_p2p", "multicast",
                                         "no_overlap", "fused",     NULL};
static const char *const sharded[] = {"none", "n", "k", NULL};
static const char no_gemm[] = "this operator has no GEMM";

#define ROW(field_, type_) .field = {LAP_FIELD(lap_op_desc_t, field_, LAP_FIELD_##type_)}
#define BOUNDED(field_, type_, least_, most_)                                                      \
    .field = {LAP_FIELD(lap_op_desc_t, field_, LAP_FIELD_##type_), .least = (least_),              \
              .most = (most_)}
#define CHOICE(field_, words_, prefix_)                                                            \
    .field = {LAP_FIELD(lap_op_desc_t, field_, LAP_FIELD_CHOICE), .words = (words_),               \
              .prefix = (prefix_)}

const lap_op_field_t lap_op_fields[] = {
    {ROW(size, SKIPPED)},
    {CHOICE(kind, lap_op_kind_names, NULL)},
    {BOUNDED(m, UNSIGNED, 1, LAP_SIZE_MOST)},
    {BOUNDED(n, UNSIGNED, 1, LAP_SIZE_MOST), .kinds = MULTIPLY, .why = no_gemm},
    {BOUNDED(k, UNSIGNED, 1, LAP_SIZE_MOST), .kinds = MULTIPLY, .why = no_gemm},
    {ROW(dtype, DTYPE)},
    {BOUNDED(epilogue, BITS, 0, ALL_EPILOGUES), .kinds = MULTIPLY, .why = no_gemm},
    {ROW(method, TEXT)},
    {ROW(aggregate, FLAG), .knob = LAP_KNOB_AGGREGATE, .tried = {1}, .proved = {1},
     .help = "neighbours pair up, and pairs go round the ring", .check = check_pairs,
     .fits = has_pairs, .is_worth = pairs_are_worth},
    {BOUNDED(num_splits, UNSIGNED, 0, LAP_BLOCKS_MOST),
     .knob = LAP_KNOB_NUM_SPLITS | LAP_KNOB_ROUNDS, .tried = {1, 2, 8}, .proved = {1, 7},
     .help = "parts of N, one after the other; direct: GEMMs for all peers", .usual = usual_splits,
     .check = check_splits, .is_worth = splits_are_worth},
    {ROW(block_rows, UNSIGNED), .knob = LAP_KNOB_BLOCK_ROWS, .tried = {1}, .proved = {3},
     .in_parts = true, .help = "rows that are sent together", .usual = usual_rows,
     .check = check_rows},
    {ROW(gather_input, FLAG), .knob = LAP_KNOB_GATHER_INPUT, .proved = {1}},
    {ROW(buffer, SKIPPED)},
    {CHOICE(layout, lap_layout_names, NULL)},
    {ROW(b_dtype, DTYPE)},
    {ROW(out_dtype, DTYPE)},
    {ROW(wire_dtype, DTYPE)},
    {ROW(accumulate, FLAG), .kinds = MULTIPLY, .why = no_gemm},
    {BOUNDED(cols, UNSIGNED, 1, LAP_SIZE_MOST), .kinds = MOVE,
     .why = "only bulk and external operators have an x"},
    {ROW(y_dtype, DTYPE)},
    {BOUNDED(num_sm, INT, 0, LAP_SMS_MOST), .knob = LAP_KNOB_NUM_SM, .tried = {64},
     .help = "SMs that copy, as --num-sm", .is_worth = sms_are_worth},
    {ROW(set_sm_margin, FLAG)},
    {ROW(background, FLAG)},
    {CHOICE(sharded, sharded, "LAP_SHARDED_")},
    {ROW(shard_parts, UNSIGNED)},
    {ROW(alltoall, FLAG), .kinds = 1 << LAP_EXTERNAL_AG | 1 << LAP_EXTERNAL_RS,
     .why = "only external operators can be an all-to-all"},
    {CHOICE(algorithm, algorithms, "LAP_ALGORITHM_"), .knob = LAP_KNOB_ALGORITHM,
     .help = "of cuBLASMp: split_p2p, multicast, no_overlap or fused"},
    {ROW(auto_foreign, FLAG)},
    {ROW(aside, FLAG), .kinds = 1 << LAP_EXTERNAL_AG | 1 << LAP_EXTERNAL_RS,
     .why = "only external operators travel beside others"},
    {.field = {.name = NULL}},
};

/* ---- walking it ---- */

static bool is_turned(const lap_op_field_t *row, const lap_op_desc_t *desc)
{
    return row->knob && lap_field_number(&row->field, desc) != 0;
}

/* Whether a description turns the knob of a row that a method has not. */
static bool lacks(const lap_op_field_t *row, const lap_op_desc_t *desc,
                  const lap_builder_t *builder)
{
    return is_turned(row, desc) && !lap_knob_of(row, builder);
}

bool lap_knobs_suit(const lap_op_desc_t *desc, const lap_builder_t *builder)
{
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++)
        if (lacks(row, desc, builder))
            return false;
    return true;
}

bool lap_knobs_fit(const lap_op_desc_t *desc, int size)
{
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++)
        if (is_turned(row, desc) && row->fits && !row->fits(size))
            return false;
    return true;
}

void lap_knobs_clamp(lap_op_desc_t *desc)
{
    if (desc->num_splits > desc->n)
        desc->num_splits = desc->n;
}

size_t lap_knob_value(const lap_op_field_t *row, size_t listed, const lap_op_desc_t *desc, int size)
{
    const size_t shard = lap_shard(desc->m, size, 0, NULL);
    return row->in_parts ? (shard + listed - 1) / listed : listed;
}

void lap_knob_label(const lap_op_field_t *row, const lap_op_desc_t *desc, char before, char *label,
                    size_t bytes)
{
    char value[LAP_FIELD_TEXT_BYTES];
    const bool flag = row->field.type == LAP_FIELD_FLAG;
    const size_t used = strlen(label);
    snprintf(label + used, bytes - used, "%c%s%s%s", before, row->field.name, flag ? "" : "=",
             flag ? "" : lap_field_text(&row->field, desc, value));
}

const char *lap_knob_owners(const lap_op_field_t *row, lap_op_kind_t kind,
                            char text[LAP_OWNERS_TEXT])
{
    text[0] = '\0';
    if (row->knob == LAP_KNOB_ALGORITHM)
        lap_join(text, LAP_OWNERS_TEXT, LAP_FOREIGN_METHOD);
    for (int k = 0; k < (int)LAP_ALL_KINDS; k++)
        for (const lap_builder_t *builder = lap_builders((lap_op_kind_t)k); builder->name;
             builder++)
            if ((kind == LAP_ALL_KINDS || k == (int)kind) && lap_knob_of(row, builder) &&
                !strstr(text, builder->name))
                lap_join(text, LAP_OWNERS_TEXT, builder->name);
    return text;
}

lap_status_t lap_op_fields_check(const lap_op_desc_t *desc)
{
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++) {
        const lap_field_t *field = &row->field;
        char text[LAP_FIELD_TEXT_BYTES];
        if (row->kinds == 0 || row->kinds >> desc->kind & 1)
            LAP_TRY(lap_field_check(field, desc));
        else if (lap_field_number(field, desc) != 0)
            return lap_error(LAP_ERR_INVALID, "%s is %s with %s, expected 0: %s", field->name,
                             lap_field_text(field, desc, text), lap_op_kind_name(desc->kind),
                             row->why);
    }
    return LAP_OK;
}

/* A knob that is turned must be one that the method has. */
static lap_status_t refuse_knob(const lap_op_field_t *row, const lap_knob_view_t *v)
{
    char owners[LAP_OWNERS_TEXT], text[LAP_FIELD_TEXT_BYTES];
    lap_knob_owners(row, v->desc->kind, owners);
    return lap_error(LAP_ERR_INVALID, "%s is %s with method '%s' of %s, expected 0: %s%s has it",
                     row->field.name, lap_field_text(&row->field, v->desc, text), v->builder->name,
                     lap_op_kind_name(v->desc->kind), *owners ? "only " : "no method", owners);
}

/* "auto" takes a knob for the methods that have it: there must be one. */
static bool lacks_all(const lap_op_field_t *row, const lap_op_desc_t *desc,
                      const lap_builder_t *builder)
{
    char owners[LAP_OWNERS_TEXT];
    return is_turned(row, desc) && strcmp(builder->name, LAP_AUTO) == 0 &&
           !*lap_knob_owners(row, desc->kind, owners);
}

lap_status_t lap_knobs_complete(lap_op_desc_t *desc, const lap_builder_t *builder, int size,
                                unsigned can)
{
    const lap_knob_view_t view = {desc, builder, size, can};
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++) {
        const uint64_t value = lap_field_number(&row->field, desc);
        if (lacks(row, desc, builder) || lacks_all(row, desc, builder))
            return refuse_knob(row, &view);
        if (row->check)
            LAP_TRY(row->check(&view));
        if (row->usual && value == 0 && lap_knob_of(row, builder))
            lap_field_set(&row->field, desc, row->usual(&view));
        if (row->field.type == LAP_FIELD_FLAG)
            lap_field_set(&row->field, desc, value);
    }
    return LAP_OK;
}
