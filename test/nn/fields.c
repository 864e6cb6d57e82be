/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the fields of layers, optimizers and rules: a field that has no row fails here, and
 * each bound has a sentence.
 */
#include "fields.h"

#include <math.h>

#include <lap/optimizer.h>

#include "nn/nn_fields.h"
#include "nn/tp_overlap.h"

static lap_nn_desc_t describe(void)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.seq = 8;
    desc.hidden = 32;
    desc.heads = 4;
    return desc;
}

#define REFUSED(field, value, status, ...)                                                         \
    do {                                                                                           \
        lap_nn_desc_t desc = describe();                                                           \
        desc.field = (value);                                                                      \
        tap_failure(lap_nn_validate(&desc, 2), status, __VA_ARGS__, NULL);                         \
    } while (0)

static void test_bounds(void)
{
    const lap_nn_desc_t good = describe();
    tap_success(lap_nn_validate(&good, 2), "a good description");
    REFUSED(kind, (lap_nn_kind_t)6, LAP_ERR_INVALID, "kind is 6", "LAP_NN_LINEAR (0)",
            "LAP_NN_TRANSFORMER (4), LAP_NN_MODEL (5)");
    REFUSED(kind, LAP_NN_MODEL, LAP_ERR_INVALID, "vocab is 0, expected 1 to 2147483647");
    REFUSED(vocab, 9, LAP_ERR_INVALID, "vocab is 9 with transformer, expected 0");
    REFUSED(tied, 1, LAP_ERR_INVALID, "tied is 1 with transformer, expected 0");
    REFUSED(positions, LAP_POSITIONS_LEARNED, LAP_ERR_INVALID, "positions is learned with");
    REFUSED(max_positions, 3, LAP_ERR_INVALID,
            "max_positions is 3, expected 0 where positions are not learned");
    REFUSED(rope_factor, 0, LAP_ERR_INVALID, "rope_factor is 0, expected a finite number above 0");
    REFUSED(rope_low_freq, 4, LAP_ERR_INVALID, "rope_high_freq is 4, expected more than");
    REFUSED(rope_original, 0, LAP_ERR_INVALID, "rope_original is 0, expected 1 to");
    REFUSED(shards, SIZE_MAX, LAP_ERR_INVALID,
            "shards is 18446744073709551615, expected a multiple");
    REFUSED(fp8_params, 1, LAP_ERR_INVALID, "fp8_params is 1 with fp8 none, expected fp8");
    lap_nn_desc_t shared = good;
    shared.fp8_params = 1;
    shared.fp8 = LAP_FP8_DELAYED;
    tap_success(lap_nn_validate(&shared, 2), "fp8_params of one shard: no effect, as with more");
    REFUSED(hidden_dropout, 0.5f, LAP_ERR_INVALID, "hidden_dropout is 0.5 with transformer");
    REFUSED(hidden_dropout, -0.5f, LAP_ERR_INVALID, "hidden_dropout is -0.5");
    REFUSED(attention_dropout, 1, LAP_ERR_INVALID, "attention_dropout is 1, expected");
    REFUSED(rope_theta, 0, LAP_ERR_INVALID, "rope_theta is 0, expected a finite number above 0");
    REFUSED(norm, (lap_norm_t)2, LAP_ERR_INVALID,
            "norm is 2, expected one of LAP_LAYERNORM (0), LAP_RMSNORM (1)");
    REFUSED(recompute, (lap_recompute_t)-1, LAP_ERR_INVALID, "recompute is -1",
            "LAP_RECOMPUTE_NONE (0), LAP_RECOMPUTE_SELECTIVE (1), LAP_RECOMPUTE_FULL (2)");
    REFUSED(layers, 0, LAP_ERR_INVALID, "layers is 0, expected 1 to 2147483647");
    REFUSED(seq, SIZE_MAX, LAP_ERR_INVALID, "seq is 18446744073709551615, expected 1 to");
    REFUSED(dtype, (lap_dtype_t)77, LAP_ERR_UNSUPPORTED, "dtype is 77", "LAP_BFLOAT16");
    REFUSED(epsilon, 0, LAP_ERR_INVALID, "epsilon is 0, expected a finite number above 0");
    REFUSED(epsilon, (float)INFINITY, LAP_ERR_INVALID, "epsilon is inf");
    REFUSED(init_std, -1, LAP_ERR_INVALID, "init_std is -1, expected a finite number of 0 or more");
    REFUSED(init_std, (float)NAN, LAP_ERR_INVALID, "init_std is nan");
}

int main(void)
{
    fields_cover("lap_nn_desc_t", lap_nn_fields, sizeof(lap_field_t), sizeof(lap_nn_desc_t));
    fields_differ("lap_nn_desc_t", lap_nn_fields, sizeof(lap_field_t));
    fields_cover("lap_optimizer_desc_t", lap_optimizer_fields, sizeof(lap_field_t),
                 sizeof(lap_optimizer_desc_t));
    fields_differ("lap_optimizer_desc_t", lap_optimizer_fields, sizeof(lap_field_t));
    fields_differ("lap_tp_rule_t", lap_tp_fields, sizeof(lap_field_t));
    size_t count = 0;
    for (size_t at = offsetof(lap_tp_rule_t, method) + sizeof(lap_tp_method_t);
         count < LAP_TP_FIELDS && lap_tp_fields[count].offset == at; count++)
        at += lap_tp_fields[count].bytes;
    tap_ok(count == LAP_TP_FIELDS &&
               lap_tp_fields[count - 1].offset + sizeof(int) == offsetof(lap_tp_rule_t, given),
           "lap_tp_rule_t: every field between method and given has a row");
    test_bounds();
    return tap_done();
}
