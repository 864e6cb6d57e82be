/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptions that one rank alone gives otherwise: of operators, layers, rules, optimizers, replicas
 * and pipelines, each field by itself. All ranks learn at once which field it is, of which rank, and both
 * values; and the group can still be used. A field that no test changes fails the test.
 */
#include <stdio.h>
#include <string.h>

#include <lap/data_parallel.h>
#include <lap/optimizer.h>
#include <lap/pipeline.h>

#include "tap.h"

enum { OTHER = 1 }; /* the rank that says something else */

/* A field, and what the other rank says of it. */
typedef struct change {
    const char *name;
    size_t offset, bytes;
    const void *value;
    const char *words; /* that the sentence has besides: the values; NULL: the name is enough */
    int base;          /* which description it is changed in */
} change_t;

#define SIZE_OF(type, field) sizeof(((type *)0)->field)
#define TO(type, field, base, words, ...)                                                          \
    {                                                                                              \
#field, offsetof(type, field), SIZE_OF(type, field),                                       \
            &(const __typeof__(((type *)0)->field)){__VA_ARGS__ }, words, base                     \
    }
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Says it on the other rank. */
static void apply(const change_t *change, const lap_group_t *group, void *description)
{
    if (lap_group_rank(group) == OTHER)
        memcpy((char *)description + change->offset, change->value, change->bytes);
}

static void expect(lap_status_t status, const char *what, const change_t *change)
{
    char both[160];
    snprintf(both, sizeof(both), "says %s = ", change->name);
    tap_failure(status, LAP_ERR_MISMATCH, what, "rank 0 says", "rank 1 says", both,
                change->words ? change->words : both, NULL);
}

/* Between fields that are changed, or left out on purpose, there is room for padding only. */
static void covers(const char *what, const change_t *changes, size_t count, const change_t *rest,
                   size_t nrest, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        const change_t *next = NULL;
        for (size_t i = 0; i < count + nrest; i++) {
            const change_t *it = i < count ? &changes[i] : &rest[i - count];
            if (it->offset + it->bytes > at && (!next || it->offset < next->offset))
                next = it;
        }
        const size_t begin = next ? next->offset : bytes, width = next ? next->bytes : 8;
        if (begin > at && begin - at >= (width < 8 ? width : 8)) {
            tap_ok(false, "%s: every field is tried, but not the one at byte %zu", what, at);
            return;
        }
        at = next ? next->offset + next->bytes : bytes;
    }
    tap_ok(true, "%s: every field is tried", what);
}

/* ---- operators ---- */

enum { AG, PIPELINE, RING, FUSED, BULK, SMS, EXTERNAL, BASES };

static lap_op_desc_t op_base(int base)
{
    static const char *const methods[BASES] = {"serial", "pipeline", "ring",  "fused",
                                               "serial", "serial",   "serial"};
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = base == PIPELINE   ? LAP_GEMM_RS
                : base == BULK     ? LAP_BULK_RS
                : base == EXTERNAL ? LAP_EXTERNAL_AG
                                   : LAP_AG_GEMM;
    desc.m = 16;
    desc.n = base == EXTERNAL ? 0 : 12;
    desc.k = base == EXTERNAL ? 0 : 8;
    desc.cols = base == BULK || base == EXTERNAL ? 5 : 0;
    desc.dtype = base == BULK ? LAP_FLOAT8_E4M3 : LAP_FLOAT32;
    desc.method = methods[base];
    desc.num_sm = base == SMS ? 4 : 0;
    return desc;
}

#define OP(field, base, words, ...) TO(lap_op_desc_t, field, base, words, __VA_ARGS__)

static const change_t op_changes[] = {
    OP(kind, AG, "rank 1 says kind = gemm_rs", LAP_GEMM_RS),
    OP(m, AG, "rank 0 says m = 16, rank 1 says m = 17", 17),
    OP(n, AG, "rank 1 says n = 13", 13),
    OP(k, AG, "rank 1 says k = 9", 9),
    OP(dtype, AG, "rank 0 says dtype = float32, rank 1 says dtype = bfloat16", LAP_BFLOAT16),
    OP(epilogue, AG, NULL, LAP_EPILOGUE_BIAS),
    OP(method, AG, "rank 0 says method = serial, rank 1 says method = direct", "direct"),
    OP(aggregate, RING, NULL, 1),
    OP(num_splits, PIPELINE, "rank 1 says num_splits = 3", 3),
    OP(block_rows, FUSED, "rank 1 says block_rows = 2", 2),
    OP(gather_input, AG, NULL, 1),
    OP(layout, AG, "rank 0 says layout = forward, rank 1 says layout = dgrad", LAP_DGRAD),
    OP(b_dtype, BULK, "rank 1 says b_dtype = float8_e5m2", LAP_FLOAT8_E5M2),
    OP(out_dtype, BULK, "rank 1 says out_dtype = float32", LAP_FLOAT32),
    OP(wire_dtype, BULK, "rank 1 says wire_dtype = float32", LAP_FLOAT32),
    OP(accumulate, AG, NULL, 1),
    OP(cols, BULK, "rank 0 says cols = 5, rank 1 says cols = 6", 6),
    OP(y_dtype, BULK, "rank 1 says y_dtype = float32", LAP_FLOAT32),
    OP(num_sm, SMS, "rank 0 says num_sm = 4, rank 1 says num_sm = 5", 5),
    OP(set_sm_margin, SMS, NULL, 1),
    OP(sharded, BULK, "rank 0 says sharded = none, rank 1 says sharded = n", LAP_SHARDED_N),
    OP(shard_parts, AG, "rank 1 says shard_parts = 2", 2),
    OP(alltoall, EXTERNAL, NULL, 1),
    OP(auto_foreign, AG, NULL, 1),
    OP(aside, EXTERNAL, NULL, 1),
    OP(background, AG, "rank 0 says background = 0, rank 1 says background = 1", 1),
};

static void try_operators(lap_group_t *group)
{
    const change_t rest[] = {OP(size, AG, NULL, 0), OP(buffer, AG, NULL, NULL),
                             OP(algorithm, AG, NULL, LAP_ALGORITHM_DEFAULT)};
    covers("lap_op_desc_t", op_changes, COUNT(op_changes), rest, COUNT(rest),
           sizeof(lap_op_desc_t));
    for (size_t i = 0; i < COUNT(op_changes); i++) {
        lap_op_t *op = NULL;
        lap_op_desc_t desc = op_base(op_changes[i].base);
        apply(&op_changes[i], group, &desc);
        expect(lap_op_create(group, &desc, &op), "lap_op_create", &op_changes[i]);
    }
    lap_buffer_t *buffers[2];
    lap_op_t *op = NULL;
    for (int i = 0; i < 2; i++)
        tap_success(lap_buffer_create(group, 4096, 64, NULL, &buffers[i]), "a buffer");
    lap_op_desc_t desc = op_base(AG);
    desc.buffer = buffers[lap_group_rank(group) == OTHER];
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_MISMATCH, "rank 0 says buffer = 1",
                "rank 1 says buffer = 2", NULL);
    for (int i = 0; i < 2; i++)
        lap_buffer_destroy(buffers[i]);
}

/* ---- buffers ---- */

static void try_buffers(lap_group_t *group)
{
    const bool other = lap_group_rank(group) == OTHER;
    lap_buffer_t *buffer = NULL;
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    tap_failure(lap_buffer_create(group, other ? 128 : 64, 4, NULL, &buffer), LAP_ERR_MISMATCH,
                "lap_buffer_create: rank 0 says bytes = 64, rank 1 says bytes = 128", NULL);
    tap_failure(lap_buffer_create(group, 64, other ? 5 : 4, NULL, &buffer), LAP_ERR_MISMATCH,
                "rank 0 says nsignals = 4, rank 1 says nsignals = 5", NULL);
    options.link.bytes_per_s = other ? 2e9 : 1e9;
    tap_failure(lap_buffer_create(group, 64, 4, &options, &buffer), LAP_ERR_MISMATCH,
                "link.bytes_per_s = 1e+09", "link.bytes_per_s = 2e+09", NULL);
    options.link.bytes_per_s = 1e9;
    options.link.latency_s = other ? 1e-6 : 0;
    tap_failure(lap_buffer_create(group, 64, 4, &options, &buffer), LAP_ERR_MISMATCH,
                "rank 0 says link.latency_s = 0, rank 1 says link.latency_s = 1e-06", NULL);
}

/* ---- layers ---- */

static lap_nn_desc_t nn_base(int base)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = (lap_nn_kind_t)base;
    desc.seq = 8;
    desc.batch = 2;
    desc.hidden = 32;
    desc.heads = 8;
    if (desc.kind == LAP_NN_MODEL) {
        desc.vocab = 40;
        desc.positions = LAP_POSITIONS_LEARNED;
    }
    return desc;
}

#define ALL LAP_NN_TRANSFORMER
#define NN(field, base, words, ...) TO(lap_nn_desc_t, field, base, words, __VA_ARGS__)

static const change_t nn_changes[] = {
    NN(kind, ALL, "rank 0 says kind = transformer, rank 1 says kind = attention", LAP_NN_ATTENTION),
    NN(layers, ALL, "rank 1 says layers = 2", 2),
    NN(seq, ALL, "rank 0 says seq = 8, rank 1 says seq = 12", 12),
    NN(batch, ALL, "rank 1 says batch = 3", 3),
    NN(hidden, ALL, "rank 0 says hidden = 32, rank 1 says hidden = 64", 64),
    NN(features, LAP_NN_LINEAR, "rank 1 says features = 64", 64),
    NN(ffn, ALL, "rank 1 says ffn = 64", 64),
    NN(heads, ALL, "rank 0 says heads = 8, rank 1 says heads = 16", 16),
    NN(kv_heads, ALL, "rank 0 says kv_heads = 8, rank 1 says kv_heads = 4", 4),
    NN(head_dim, ALL, "rank 0 says head_dim = 4, rank 1 says head_dim = 8", 8),
    NN(dtype, ALL, "rank 1 says dtype = bfloat16", LAP_BFLOAT16),
    NN(norm, ALL, NULL, LAP_RMSNORM),
    NN(activation, ALL, NULL, LAP_SWIGLU),
    NN(epsilon, ALL, "rank 0 says epsilon = 1e-05, rank 1 says epsilon = 0.001", 1e-3f),
    NN(bias, ALL, NULL, 0),
    NN(row_parallel, LAP_NN_LINEAR, NULL, 1),
    NN(sequence_parallel, ALL, NULL, 0),
    NN(recompute, ALL, NULL, LAP_RECOMPUTE_FULL),
    NN(fp8, ALL, NULL, LAP_FP8_CURRENT),
    NN(amax_history, ALL, "rank 0 says amax_history = 16, rank 1 says amax_history = 4", 4),
    NN(seed, ALL, "rank 0 says seed = 1234, rank 1 says seed = 1235", 1235),
    NN(init_std, ALL, "rank 0 says init_std = 0.023, rank 1 says init_std = 0.0230001", 0.0230001f),
    NN(loss_scale, ALL, "rank 1 says loss_scale = 2", 2.0f),
    NN(vocab, LAP_NN_MODEL, "rank 0 says vocab = 40, rank 1 says vocab = 41", 41),
    NN(max_positions, LAP_NN_MODEL, "rank 0 says max_positions = 8, rank 1 says max_positions = 9",
       9),
    NN(positions, ALL, "rank 0 says positions = none, rank 1 says positions = rope",
       LAP_POSITIONS_ROPE),
    NN(tied, LAP_NN_MODEL, "rank 0 says tied = 0, rank 1 says tied = 1", 1),
    NN(attention_dropout, LAP_NN_MODEL, "rank 1 says attention_dropout = 0.5", 0.5f),
    NN(hidden_dropout, LAP_NN_MODEL, "rank 1 says hidden_dropout = 0.25", 0.25f),
    NN(rope_factor, ALL, "rank 1 says rope_factor = 8", 8.0f),
    NN(rope_low_freq, ALL, "rank 1 says rope_low_freq = 2", 2.0f),
    NN(rope_high_freq, ALL, "rank 1 says rope_high_freq = 5", 5.0f),
    NN(rope_original, ALL, "rank 1 says rope_original = 16", 16),
    NN(rope_theta, ALL, "rank 1 says rope_theta = 500000", 500000.0f),
    NN(cp_comm, ALL, "rank 0 says cp_comm = p2p, rank 1 says cp_comm = a2a", LAP_CP_A2A),
    NN(cp_overlap, ALL, "rank 0 says cp_overlap = 1, rank 1 says cp_overlap = 0", 0),
    NN(shard_bucket, ALL, "rank 0 says shard_bucket = 0, rank 1 says shard_bucket = 7", 7),
    NN(shard_by_layer, ALL, "rank 0 says shard_by_layer = 0, rank 1 says shard_by_layer = 1", 1),
};

static void try_layers(lap_group_t *group)
{
    const change_t rest[] = {
        NN(size, ALL, NULL, 0),
        NN(overlap, ALL, NULL, NULL),        /* try_rules */
        NN(buffer, ALL, NULL, NULL),         /* as that of an operator */
        NN(buffer_options, ALL, NULL, NULL), /* try_buffers */
        NN(debug, ALL, NULL, 0),             /* changes nothing */
        NN(cp, ALL, NULL, 0),                /* each rank holds it against its cp_group */
        NN(shards, ALL, NULL, 0),            /* ... and its shard_group */
        NN(shard_group, ALL, NULL, NULL),
        NN(fp8_params, ALL, NULL, 0), /* ... and with shards only */
        NN(cp_a2a, ALL, NULL, 0),     /* without a context it is 1 */
        NN(cp_group, ALL, NULL, NULL),
    };
    covers("lap_nn_desc_t", nn_changes, COUNT(nn_changes), rest, COUNT(rest),
           sizeof(lap_nn_desc_t));
    for (size_t i = 0; i < COUNT(nn_changes); i++) {
        lap_nn_t *nn = NULL;
        lap_nn_desc_t desc = nn_base(nn_changes[i].base);
        apply(&nn_changes[i], group, &desc);
        expect(lap_nn_create(group, &desc, &nn), "lap_nn_create", &nn_changes[i]);
    }
}

/* Of some rule each field, by what it is called in a file. */
static void try_rules(lap_group_t *group)
{
    static const struct {
        lap_tp_gemm_t gemm;
        const char *words;
        size_t offset;
        int value;
    } rules[] = {
        {LAP_QKV_FPROP, "qkv_fprop.method = serial", offsetof(lap_tp_rule_t, method),
         LAP_TP_SERIAL},
        {LAP_QKV_FPROP, "qkv_fprop.aggregate = 1", offsetof(lap_tp_rule_t, aggregate), 1},
        {LAP_QKV_FPROP, "qkv_fprop.comm_priority = -4", offsetof(lap_tp_rule_t, comm_priority), -4},
        {LAP_QKV_FPROP, "qkv_fprop.gemm_priority = -1", offsetof(lap_tp_rule_t, gemm_priority), -1},
        {LAP_QKV_FPROP, "qkv_fprop.use_ce = 0", offsetof(lap_tp_rule_t, use_ce), 0},
        {LAP_QKV_FPROP, "qkv_fprop.fp8_buf = 0", offsetof(lap_tp_rule_t, fp8_buf), 0},
        {LAP_FC1_DGRAD, "fc1_dgrad.is_reduce_scatter = 1",
         offsetof(lap_tp_rule_t, is_reduce_scatter), 1},
        {LAP_FC2_FPROP, "fc2_fprop.num_sm = 7", offsetof(lap_tp_rule_t, num_sm), 7},
        {LAP_FC2_FPROP, "fc2_fprop.cga_size = 1", offsetof(lap_tp_rule_t, cga_size), 1},
        {LAP_FC2_FPROP, "fc2_fprop.set_sm_margin = 0", offsetof(lap_tp_rule_t, set_sm_margin), 0},
        {LAP_FC2_FPROP, "fc2_fprop.num_splits = 2", offsetof(lap_tp_rule_t, num_splits), 2},
        {LAP_FC2_FPROP, "fc2_fprop.atomic_gemm = 1", offsetof(lap_tp_rule_t, atomic_gemm), 1},
        {LAP_FC2_FPROP, "fc2_fprop.pipeline_rs_overlap_first_gemm = 1",
         offsetof(lap_tp_rule_t, pipeline_rs_overlap_first_gemm), 1},
    };
    for (size_t i = 0; i < COUNT(rules); i++) {
        lap_tp_overlap_t overlap;
        lap_nn_t *nn = NULL;
        tap_success(lap_tp_overlap_init(lap_group_size(group), &overlap), "rules");
        lap_tp_rule_t *rule = &overlap.rules[rules[i].gemm];
        if (rules[i].gemm == LAP_FC1_DGRAD)
            rule->method = LAP_TP_SERIAL;
        if (lap_group_rank(group) == OTHER)
            *(int *)(void *)((char *)rule + rules[i].offset) = rules[i].value;
        lap_nn_desc_t desc = nn_base(ALL);
        desc.overlap = &overlap;
        tap_failure(lap_nn_create(group, &desc, &nn), LAP_ERR_MISMATCH, "lap_nn_create: rank 0",
                    "rank 1 says", rules[i].words, NULL);
    }
}

/* ---- optimizers ---- */

#define OPTIMIZER(field, words, ...) TO(lap_optimizer_desc_t, field, 0, words, __VA_ARGS__)

static const change_t optimizer_changes[] = {
    OPTIMIZER(kind, "rank 0 says kind = adamw, rank 1 says kind = sgd", LAP_SGD),
    OPTIMIZER(lr, "rank 0 says lr = 0.001, rank 1 says lr = 0.0011", 0.0011f),
    OPTIMIZER(momentum, "rank 1 says momentum = 0.5", 0.5f),
    OPTIMIZER(beta1, "rank 0 says beta1 = 0.9, rank 1 says beta1 = 0.8", 0.8f),
    OPTIMIZER(beta2, "rank 0 says beta2 = 0.999, rank 1 says beta2 = 0.99", 0.99f),
    OPTIMIZER(epsilon, "rank 1 says epsilon = 1e-06", 1e-6f),
    OPTIMIZER(weight_decay, "rank 0 says weight_decay = 0.01, rank 1 says weight_decay = 0", 0.0f),
    OPTIMIZER(clip_norm, "rank 0 says clip_norm = 0, rank 1 says clip_norm = 1", 1.0f),
    OPTIMIZER(warmup, "rank 0 says warmup = 0, rank 1 says warmup = 3", 3),
    OPTIMIZER(lr_decay, "rank 0 says lr_decay = constant, rank 1 says lr_decay = linear",
              LAP_LR_LINEAR),
    OPTIMIZER(lr_decay_steps, "rank 0 says lr_decay_steps = 0, rank 1 says lr_decay_steps = 9", 9),
    OPTIMIZER(min_lr, "rank 0 says min_lr = 0, rank 1 says min_lr = 0.25", 0.25f),
};

static void try_optimizers(lap_group_t *group)
{
    const change_t rest[] = {OPTIMIZER(size, NULL, 0)};
    lap_nn_t *nn = NULL;
    const lap_nn_desc_t layers = nn_base(ALL);
    covers("lap_optimizer_desc_t", optimizer_changes, COUNT(optimizer_changes), rest, COUNT(rest),
           sizeof(lap_optimizer_desc_t));
    if (!tap_success(lap_nn_create(group, &layers, &nn), "layers"))
        return;
    lap_optimizer_t *optimizer = NULL;
    for (size_t i = 0; i < COUNT(optimizer_changes); i++) {
        lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
        apply(&optimizer_changes[i], group, &desc);
        expect(lap_optimizer_create(nn, group, &desc, &optimizer), "lap_optimizer_create",
               &optimizer_changes[i]);
    }
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    if (lap_group_rank(group) == OTHER)
        desc.lr = -1;
    tap_failure(lap_optimizer_create(nn, group, &desc, &optimizer), LAP_ERR_INVALID, "lr is -1",
                NULL);
    tap_ok(!optimizer, "nothing was made");
    lap_nn_destroy(nn);
}

/* ---- replicas ---- */

#define DP(field, words, ...) TO(lap_dp_options_t, field, 0, words, __VA_ARGS__)

static const change_t dp_changes[] = {
    DP(bucket, "rank 1 says bucket = 1000", 1000),
    DP(wire_dtype, "rank 0 says wire_dtype = float32, rank 1 says wire_dtype = bfloat16",
       LAP_BFLOAT16),
    DP(overlap, "rank 0 says overlap = 1, rank 1 says overlap = 0", 0),
    DP(overlap_weights, "rank 0 says overlap_weights = 1, rank 1 says overlap_weights = 0", 0),
    DP(overlap_step, "rank 0 says overlap_step = 0, rank 1 says overlap_step = 1", 1),
    DP(by_layer, "rank 0 says by_layer = 0, rank 1 says by_layer = 1", 1),
};

/* `weights` is of this rank alone, all others are replicas. */
static lap_status_t replicate(lap_group_t *weights, lap_group_t *group, const lap_nn_desc_t *layers,
                              const lap_optimizer_desc_t *how, bool first,
                              const lap_dp_options_t *options)
{
    lap_nn_t *nn = NULL;
    lap_dp_t *dp = NULL;
    lap_optimizer_t *optimizer = NULL;
    if (!tap_success(lap_nn_create(weights, layers, &nn), "layers"))
        return LAP_ERR_INTERNAL;
    if (first)
        tap_success(lap_optimizer_create(nn, weights, how, &optimizer), "an optimizer");
    lap_status_t status = lap_dp_create(nn, group, options, &dp);
    if (status == LAP_OK && !first)
        status = lap_optimizer_create(nn, weights, how, &optimizer);
    lap_dp_destroy(dp);
    lap_optimizer_destroy(optimizer);
    lap_nn_destroy(nn);
    return status;
}

static void try_replicas(lap_group_t *group)
{
    const change_t rest[] = {DP(size, NULL, 0), DP(buffer_options, NULL, NULL)};
    const bool other = lap_group_rank(group) == OTHER;
    const lap_nn_desc_t layers = nn_base(LAP_NN_LINEAR);
    const lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_group_t *weights = NULL;
    if (!tap_success(lap_group_split(group, lap_group_rank(group), 0, &weights), "a group of one"))
        return;
    covers("lap_dp_options_t", dp_changes, COUNT(dp_changes), rest, COUNT(rest),
           sizeof(lap_dp_options_t));
    for (size_t i = 0; i < COUNT(dp_changes); i++) {
        options = (lap_dp_options_t)LAP_DP_OPTIONS_INIT;
        apply(&dp_changes[i], group, &options);
        expect(replicate(weights, group, &layers, &how, true, &options), "lap_dp_create",
               &dp_changes[i]);
    }
    lap_nn_desc_t seeded = layers;
    seeded.seed += other;
    tap_failure(replicate(weights, group, &seeded, &how, true, NULL), LAP_ERR_MISMATCH,
                "lap_dp_create: rank 0 says seed = 1234, rank 1 says seed = 1235", NULL);
    lap_optimizer_desc_t faster = how;
    faster.lr = other ? 0.002f : 0.001f;
    tap_failure(replicate(weights, group, &layers, &faster, true, NULL), LAP_ERR_MISMATCH,
                "lap_dp_create: rank 0 says optimizer.lr = 0.001, rank 1 says optimizer.lr = 0.002",
                NULL);
    tap_failure(replicate(weights, group, &layers, &faster, false, NULL), LAP_ERR_MISMATCH,
                "lap_optimizer_create: rank 0 says lr = 0.001, rank 1 says lr = 0.002", NULL);
    tap_success(replicate(weights, group, &layers, &how, false, NULL), "what agrees is made");
    lap_group_destroy(weights);
}

/* ---- pipelines ---- */

#define PP(field, words, ...) TO(lap_pp_options_t, field, 0, words, __VA_ARGS__)

static const change_t pp_changes[] = {
    PP(schedule, "rank 0 says schedule = 1f1b, rank 1 says schedule = zb-h1", "zb-h1"),
    PP(micro_batches, "rank 0 says micro_batches = 1, rank 1 says micro_batches = 2", 2),
    PP(overlap, "rank 0 says overlap = 1, rank 1 says overlap = 0", 0),
};

/* Where nothing of a rank was made yet, too. */
static void try_pipelines(lap_group_t *group)
{
    lap_nn_desc_t model = nn_base(LAP_NN_MODEL);
    lap_pp_options_t options;
    lap_group_t *layers = NULL;
    lap_pp_t *pp = NULL;
    model.layers = 4;
    if (!tap_success(lap_group_split(group, lap_group_rank(group), 0, &layers), "a group of one"))
        return;
    for (size_t i = 0; i < COUNT(pp_changes); i++) {
        options = (lap_pp_options_t)LAP_PP_OPTIONS_INIT;
        apply(&pp_changes[i], group, &options);
        expect(lap_pp_create(layers, group, &model, &options, &pp), "lap_pp_create",
               &pp_changes[i]);
    }
    options = (lap_pp_options_t)LAP_PP_OPTIONS_INIT;
    if (lap_group_rank(group) == OTHER)
        options.schedule = "1f2b";
    tap_failure(lap_pp_create(layers, group, &model, &options, &pp), LAP_ERR_INVALID,
                "no pipeline schedule '1f2b'", NULL);
    tap_ok(!pp, "nothing was made");
    lap_group_destroy(layers);
}

static void try_all(lap_world_t *world, void *arg)
{
    lap_group_t *group = lap_world_group(world);
    (void)arg;
    try_operators(group);
    try_buffers(group);
    try_layers(group);
    try_rules(group);
    try_optimizers(group);
    try_replicas(group);
    try_pipelines(group);
    tap_success(lap_group_barrier(group), "the group works after all this");
}

int main(void)
{
    tap_ranks(4, NULL, try_all, NULL);
    return tap_done();
}
