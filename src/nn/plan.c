/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a description of layers to their blocks and to the operators of a pass. Runs nothing and
 * needs no ranks.
 */
#include "nn/plan.h"

#include <string.h>

#include "core/options.h"
#include "core/status.h"
#include "nn/context.h"
#include "nn/nn_fields.h"
#include "overlap/knobs.h"
#include "overlap/overlap.h"

#define SWIGLU_PARTS 2   /* g and u, each with shares of its own */
#define VOCAB_LEAST 1024 /* vocabularies from this on are padded for GEMMs, */
#define VOCAB_ALIGN 64   /* to multiples of this */

const char *lap_nn_kind_name(lap_nn_kind_t kind)
{
    return kind <= LAP_NN_MODEL ? lap_nn_kind_names[kind] : "?";
}

/* ---- checking ---- */

static bool has_mlp(const lap_nn_desc_t *desc)
{
    return desc->kind == LAP_NN_LAYERNORM_MLP || lap_nn_is_transformer(desc);
}

static bool is_linear(const lap_nn_desc_t *desc)
{
    return desc->kind == LAP_NN_LINEAR || desc->kind == LAP_NN_LAYERNORM_LINEAR;
}

static lap_status_t check_size(const char *name, size_t value)
{
    if (value < 1 || value > LAP_SIZE_MOST)
        return lap_error(LAP_ERR_INVALID, "%s is %zu, expected 1 to %d", name, value,
                         LAP_SIZE_MOST);
    return LAP_OK;
}

/* Every rank has some of what is sharded by features. */
static lap_status_t check_shared(const char *name, size_t value, int nranks)
{
    LAP_TRY(check_size(name, value));
    if (value < (size_t)nranks)
        return lap_error(LAP_ERR_INVALID,
                         "%s is %zu, expected at least one for each of %d tensor-parallel ranks",
                         name, value, nranks);
    return LAP_OK;
}

/* Heads are shared evenly. */
static lap_status_t check_even(const char *name, size_t value, int nranks)
{
    LAP_TRY(check_size(name, value));
    if (value % (size_t)nranks != 0)
        return lap_error(LAP_ERR_INVALID,
                         "%s is %zu, expected a multiple of the %d tensor-parallel ranks", name,
                         value, nranks);
    return LAP_OK;
}

static void fill_defaults(lap_nn_desc_t *desc)
{
    if (desc->features == 0)
        desc->features = desc->hidden;
    desc->ffn = lap_nn_ffn(desc);
    desc->kv_heads = lap_nn_kv_heads(desc);
    if (desc->head_dim == 0 && desc->heads > 0)
        desc->head_dim = desc->hidden / desc->heads;
    if (desc->positions == LAP_POSITIONS_LEARNED && desc->max_positions == 0)
        desc->max_positions = desc->seq;
    if (desc->amax_history == 0)
        desc->amax_history = 16;
}

static lap_status_t check_kinds(const lap_nn_desc_t *desc)
{
    if (desc->dtype != LAP_FLOAT32 && desc->dtype != LAP_FLOAT16 && desc->dtype != LAP_BFLOAT16)
        return lap_error(LAP_ERR_UNSUPPORTED, "dtype is %s, expected float32, float16 or bfloat16",
                         lap_dtype_name(desc->dtype));
    if (desc->row_parallel && desc->kind != LAP_NN_LINEAR)
        return lap_error(
            LAP_ERR_INVALID,
            "row_parallel is %d with %s, expected 0: only linear layers can be row-parallel",
            desc->row_parallel, lap_nn_kind_name(desc->kind));
    return LAP_OK;
}

static lap_status_t check_heads(const lap_nn_desc_t *desc, const lap_nn_desc_t *given, int nranks)
{
    LAP_TRY(check_even("heads", desc->heads, nranks));
    if (given->head_dim == 0 && desc->hidden % desc->heads != 0)
        return lap_error(
            LAP_ERR_INVALID,
            "hidden is %zu, expected a multiple of the %zu heads, or head_dim set as well",
            desc->hidden, desc->heads);
    LAP_TRY(check_size("head_dim", desc->head_dim));
    LAP_TRY(check_even("kv_heads", desc->kv_heads, nranks));
    if (desc->heads % desc->kv_heads != 0)
        return lap_error(LAP_ERR_INVALID, "kv_heads is %zu, expected a divisor of the %zu heads",
                         desc->kv_heads, desc->heads);
    return LAP_OK;
}

static lap_status_t check_positions(const lap_nn_desc_t *desc)
{
    const bool learned = desc->positions == LAP_POSITIONS_LEARNED;
    const bool model = desc->kind == LAP_NN_MODEL;
    if ((learned && !model) ||
        (desc->positions == LAP_POSITIONS_ROPE && !lap_nn_has_attention(desc)))
        return lap_error(LAP_ERR_INVALID,
                         "positions is %s with %s, expected none%s: only models learn them, only "
                         "attention rotates",
                         lap_positions_names[desc->positions], lap_nn_kind_name(desc->kind),
                         lap_nn_has_attention(desc) ? " or rope" : "");
    if (learned) {
        LAP_TRY(check_size("max_positions", desc->max_positions));
        if (desc->seq > desc->max_positions)
            return lap_error(LAP_ERR_INVALID,
                             "seq is %zu, expected at most the %zu of max_positions", desc->seq,
                             desc->max_positions);
    } else if (desc->max_positions != 0) {
        return lap_error(LAP_ERR_INVALID,
                         "max_positions is %zu, expected 0 where positions are not learned",
                         desc->max_positions);
    }
    if (!(desc->rope_high_freq > desc->rope_low_freq))
        return lap_error(LAP_ERR_INVALID,
                         "rope_high_freq is %g, expected more than rope_low_freq, %g",
                         (double)desc->rope_high_freq, (double)desc->rope_low_freq);
    if (desc->positions == LAP_POSITIONS_ROPE && desc->head_dim % 2 != 0)
        return lap_error(LAP_ERR_INVALID, "head_dim is %zu, expected an even number with rope",
                         desc->head_dim);
    return LAP_OK;
}

/* What only language models have. */
static lap_status_t check_model(const lap_nn_desc_t *desc, int nranks)
{
    LAP_TRY(check_positions(desc));
    if (desc->kind == LAP_NN_MODEL)
        return check_shared("vocab", desc->vocab, nranks);
    if (desc->attention_dropout != 0 || desc->hidden_dropout != 0)
        return lap_error(
            LAP_ERR_INVALID, "%s is %g with %s, expected 0: only models have it",
            desc->attention_dropout != 0 ? "attention_dropout" : "hidden_dropout",
            (double)(desc->attention_dropout != 0 ? desc->attention_dropout : desc->hidden_dropout),
            lap_nn_kind_name(desc->kind));
    if (desc->vocab != 0 || desc->tied)
        return lap_error(LAP_ERR_INVALID, "%s is %zu with %s, expected 0: only models have it",
                         desc->vocab ? "vocab" : "tied", desc->vocab ? desc->vocab : 1,
                         lap_nn_kind_name(desc->kind));
    return LAP_OK;
}

static lap_status_t check_sizes(const lap_nn_desc_t *desc, const lap_nn_desc_t *given, int nranks)
{
    if (desc->batch > LAP_SIZE_MOST / desc->seq)
        return lap_error(LAP_ERR_INVALID, "seq times batch is %zu times %zu, expected at most %d",
                         desc->seq, desc->batch, LAP_SIZE_MOST);
    if (desc->layers > 1 && is_linear(desc))
        return lap_error(LAP_ERR_INVALID,
                         "layers is %zu with %s, expected 1: the output of such a layer cannot be "
                         "the input of another",
                         desc->layers, lap_nn_kind_name(desc->kind));
    if (lap_nn_has_attention(desc))
        LAP_TRY(check_heads(desc, given, nranks));
    if (has_mlp(desc))
        LAP_TRY(check_shared("ffn", desc->ffn, nranks));
    if (is_linear(desc) && desc->row_parallel) {
        LAP_TRY(check_size("features", desc->features));
        return check_shared("hidden", desc->hidden, nranks);
    }
    return is_linear(desc) ? check_shared("features", desc->features, nranks) : LAP_OK;
}

static lap_status_t choose_overlap(lap_nn_plan_t *plan)
{
    const lap_tp_overlap_t *given = plan->desc.overlap;
    if (!given)
        return lap_tp_overlap_init(plan->nranks, &plan->overlap);
    LAP_TRY(lap_read_options(&plan->overlap, sizeof(plan->overlap), given, "LAP_TP_OVERLAP"));
    if (given->tp != plan->nranks)
        return lap_error(LAP_ERR_INVALID, "overlap.tp is %d, expected the %d ranks of the group",
                         given->tp, plan->nranks);
    return LAP_OK;
}

lap_status_t lap_nn_plan_init(const lap_nn_desc_t *given, int nranks, lap_nn_plan_t *plan_p)
{
    lap_nn_plan_t plan = {.desc = LAP_NN_DESC_INIT, .nranks = nranks};
    lap_nn_desc_t read = LAP_NN_DESC_INIT;
    if (!given)
        return lap_error(LAP_ERR_INVALID, "desc is NULL, expected a description of layers");
    if (nranks < 1)
        return lap_error(LAP_ERR_INVALID, "nranks is %d, expected at least 1", nranks);
    LAP_TRY(lap_read_options(&read, sizeof(read), given, "LAP_NN_DESC"));
    plan.desc = read;
    fill_defaults(&plan.desc);
    LAP_TRY(lap_fields_check(lap_nn_fields, &plan.desc));
    LAP_TRY(check_kinds(&plan.desc));
    LAP_TRY(check_sizes(&plan.desc, &read, nranks));
    LAP_TRY(check_model(&plan.desc, nranks));
    LAP_TRY(lap_nn_context_check(&plan.desc, nranks));
    LAP_TRY(lap_nn_shards_check(&plan.desc));
    LAP_TRY(choose_overlap(&plan));
    plan.m = lap_nn_context_tokens(&plan.desc, plan.desc.seq, 0) * plan.desc.batch;
    lap_nn_plan_cut(&plan, plan.desc.layers);
    *plan_p = plan;
    return LAP_OK;
}

void lap_nn_plan_cut(lap_nn_plan_t *plan, size_t layers)
{
    plan->desc.layers = layers;
    plan->nblocks = layers * (lap_nn_is_transformer(&plan->desc) ? 2 : 1) +
                    (plan->desc.kind == LAP_NN_MODEL ? 1 : 0);
}

static size_t blocks_of(const lap_nn_plan_t *plan, size_t layers)
{
    return layers * (lap_nn_is_transformer(&plan->desc) ? 2 : 1);
}

/*
 * Where backward is split, gradients of inputs must not wait for a GEMM of weights: dgrad reduces by
 * itself.
 */
lap_status_t lap_nn_plan_stage(const lap_nn_desc_t *given, int nranks, const lap_nn_cut_t *cut,
                               lap_nn_plan_t *plan_p)
{
    lap_nn_plan_t plan = {.nranks = nranks};
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    LAP_TRY(lap_nn_plan_init(given, nranks, &plan));
    if (plan.desc.kind != LAP_NN_MODEL)
        return lap_error(LAP_ERR_INVALID,
                         "the layers are of kind %s, expected a model: only "
                         "models are cut into the stages of a pipeline",
                         lap_nn_kind_name(plan.desc.kind));
    switches.overlap_rs_dgrad = cut->split;
    if (cut->split) {
        LAP_TRY(lap_tp_overlap_switch(&plan.overlap, &switches));
        plan.overlap.rules[LAP_QKV_DGRAD].is_reduce_scatter = 1; /* those that are serial, too */
        plan.overlap.rules[LAP_FC1_DGRAD].is_reduce_scatter = 1;
    }
    plan.cut = *cut;
    plan.nblocks = lap_nn_plan_begin(&plan, cut->nchunks);
    *plan_p = plan;
    return LAP_OK;
}

uint32_t lap_nn_plan_chunks(const lap_nn_plan_t *plan)
{
    return plan->cut.nchunks ? plan->cut.nchunks : 1;
}

lap_nn_chunk_t lap_nn_plan_chunk(const lap_nn_plan_t *plan, uint32_t chunk)
{
    const bool model = plan->desc.kind == LAP_NN_MODEL;
    const lap_nn_chunk_t whole = {
        .layers = plan->desc.layers, .embedding = model, .head = model, .slots = 1};
    return plan->cut.nchunks ? plan->cut.chunks[chunk] : whole;
}

size_t lap_nn_plan_begin(const lap_nn_plan_t *plan, uint32_t chunk)
{
    size_t begin = 0;
    for (uint32_t c = 0; c < chunk; c++) {
        const lap_nn_chunk_t own = lap_nn_plan_chunk(plan, c);
        begin += blocks_of(plan, own.layers) + own.head;
    }
    return begin;
}

size_t lap_nn_plan_total(const lap_nn_plan_t *plan)
{
    return blocks_of(plan, plan->desc.layers) + (plan->desc.kind == LAP_NN_MODEL);
}

size_t lap_nn_plan_block(const lap_nn_plan_t *plan, size_t own)
{
    uint32_t chunk = 0;
    while (own >= lap_nn_plan_begin(plan, chunk + 1))
        chunk++;
    return blocks_of(plan, lap_nn_plan_chunk(plan, chunk).first) + own -
           lap_nn_plan_begin(plan, chunk);
}

bool lap_nn_plan_has(const lap_nn_plan_t *plan, size_t block, size_t *own_p)
{
    size_t own = 0;
    while (own < plan->nblocks && lap_nn_plan_block(plan, own) != block)
        own++;
    *own_p = own;
    return own < plan->nblocks;
}

size_t lap_nn_plan_params(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape)
{
    const size_t norms = plan->desc.norm == LAP_LAYERNORM ? 2 : 1;
    const size_t gemm = shape->bias ? 2 : 1;
    const bool tied = shape->head && plan->desc.tied;
    return (shape->norm ? norms : 0) + (shape->column && !tied ? gemm : 0) +
           (shape->row ? gemm : 0);
}

/* All GEMMs can be described. */
lap_status_t lap_nn_validate(const lap_nn_desc_t *desc, int nranks)
{
    lap_nn_plan_t plan = {.nranks = nranks};
    lap_op_desc_t gemm;
    LAP_TRY(lap_nn_plan_init(desc, nranks, &plan));
    if (plan.desc.layers > 1)
        lap_nn_plan_cut(&plan, 1);
    for (size_t b = 0; b < plan.nblocks; b++) {
        const lap_nn_shape_t shape = lap_nn_plan_shape(&plan, b);
        for (unsigned i = 0; i < 3 && shape.column; i++)
            LAP_TRY(
                lap_nn_plan_describe(&plan, &shape, (lap_tp_gemm_t)(shape.column_gemm + i), &gemm));
        for (unsigned i = 0; i < 3 && shape.row; i++)
            LAP_TRY(
                lap_nn_plan_describe(&plan, &shape, (lap_tp_gemm_t)(shape.row_gemm + i), &gemm));
    }
    return LAP_OK;
}

/* ---- blocks ---- */

static lap_nn_shape_t linear_shape(const lap_nn_desc_t *desc)
{
    const bool row = desc->row_parallel != 0;
    return (lap_nn_shape_t){
        .norm = desc->kind == LAP_NN_LAYERNORM_LINEAR,
        .column = !row,
        .row = row,
        .width = desc->hidden,
        .pre = desc->features,
        .mid = desc->hidden,
        .out = desc->features,
        .column_gemm = LAP_QKV_FPROP,
        .row_gemm = LAP_PROJ_FPROP,
        .column_name = "linear",
        .row_name = "linear",
        .norm_name = "norm",
    };
}

static lap_nn_shape_t attention_shape(const lap_nn_desc_t *desc)
{
    return (lap_nn_shape_t){
        .norm = true,
        .column = true,
        .row = true,
        .middle = LAP_MIDDLE_ATTENTION,
        .width = desc->hidden,
        .pre = (desc->heads + 2 * desc->kv_heads) * desc->head_dim,
        .mid = desc->heads * desc->head_dim,
        .out = desc->hidden,
        .column_gemm = LAP_QKV_FPROP,
        .row_gemm = LAP_PROJ_FPROP,
        .column_name = "qkv",
        .row_name = "proj",
        .norm_name = "norm1",
    };
}

static lap_nn_shape_t mlp_shape(const lap_nn_desc_t *desc)
{
    const bool swiglu = desc->activation == LAP_SWIGLU;
    return (lap_nn_shape_t){
        .norm = true,
        .column = true,
        .row = true,
        .middle = swiglu ? LAP_MIDDLE_SWIGLU : LAP_MIDDLE_GELU,
        .width = desc->hidden,
        .pre = (swiglu ? SWIGLU_PARTS : 1) * desc->ffn,
        .mid = desc->ffn,
        .out = desc->hidden,
        .column_gemm = LAP_FC1_FPROP,
        .row_gemm = LAP_FC2_FPROP,
        .column_name = "fc1",
        .row_name = "fc2",
        .norm_name = "norm2",
    };
}

/*
 * Of a language model: norm and logits. GEMMs of a GPU whose n or k is no multiple of 8 are several
 * times slower. Logits are not FP8: they are what the loss sees.
 */
static lap_nn_shape_t head_shape(const lap_nn_desc_t *desc)
{
    const size_t align = desc->vocab < VOCAB_LEAST ? 1 : VOCAB_ALIGN;
    return (lap_nn_shape_t){
        .norm = true,
        .column = true,
        .head = true,
        .layer = desc->layers,
        .width = desc->hidden,
        .pre = (desc->vocab + align - 1) / align * align,
        .column_gemm = LAP_QKV_FPROP,
        .column_name = "head",
        .norm_name = "final_norm",
    };
}

/* Of a block of the whole model. */
static lap_nn_shape_t shape_of(const lap_nn_plan_t *plan, size_t block)
{
    const lap_nn_desc_t *desc = &plan->desc;
    const bool transformer = lap_nn_is_transformer(desc);
    lap_nn_shape_t shape;
    if (desc->kind == LAP_NN_MODEL && block + 1 == lap_nn_plan_total(plan))
        return head_shape(desc);
    if (is_linear(desc))
        shape = linear_shape(desc);
    else if (desc->kind == LAP_NN_ATTENTION || (transformer && block % 2 == 0))
        shape = attention_shape(desc);
    else
        shape = mlp_shape(desc);
    shape.layer = transformer ? block / 2 : block;
    shape.residual = transformer;
    shape.bias = desc->bias != 0;
    shape.fp8 = desc->fp8 != LAP_FP8_NONE;
    return shape;
}

lap_nn_shape_t lap_nn_plan_shape(const lap_nn_plan_t *plan, size_t block)
{
    return shape_of(plan, lap_nn_plan_block(plan, block));
}

static size_t pre_parts(const lap_nn_shape_t *shape)
{
    return shape->middle == LAP_MIDDLE_SWIGLU ? SWIGLU_PARTS : 1;
}

size_t lap_nn_pre_share(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape, int rank)
{
    const size_t parts = pre_parts(shape);
    return parts * lap_shard_features(shape->pre / parts, plan->nranks, rank, NULL);
}

size_t lap_nn_mid_share(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape, int rank)
{
    return lap_shard_features(shape->mid, plan->nranks, rank, NULL);
}

size_t lap_nn_vocab_share(const lap_nn_plan_t *plan, int rank, size_t *first_p)
{
    const size_t vocab = plan->desc.vocab;
    size_t first;
    const size_t share =
        lap_shard_features(head_shape(&plan->desc).pre, plan->nranks, rank, &first);
    if (first_p)
        *first_p = first;
    return first >= vocab ? 0 : first + share > vocab ? vocab - first : share;
}

size_t lap_nn_logits_share(const lap_nn_plan_t *plan, int rank)
{
    return lap_shard_features(head_shape(&plan->desc).pre, plan->nranks, rank, NULL);
}

size_t lap_nn_plan_sums(const lap_nn_plan_t *plan, size_t nblocks)
{
    const lap_nn_desc_t *desc = &plan->desc;
    const size_t vectors = desc->norm == LAP_LAYERNORM ? 2 : 1;
    if (!desc->sequence_parallel || !lap_nn_plan_shape(plan, 0).norm)
        return 0;
    const size_t padded = (desc->hidden + LAP_NN_SUM_COLS - 1) / LAP_NN_SUM_COLS * LAP_NN_SUM_COLS;
    return nblocks * vectors * padded;
}

/* ---- operators ---- */

static bool is_column(const lap_nn_shape_t *shape, lap_tp_gemm_t gemm)
{
    return shape->column && gemm >= shape->column_gemm && gemm < shape->column_gemm + 3;
}

/* Without sequence parallelism nothing is gathered, and what is summed is summed everywhere. */
static void drop_sequence(bool column, lap_op_desc_t *desc)
{
    const bool sums = desc->layout == LAP_FORWARD ? !column : desc->layout == LAP_DGRAD && column;
    const bool serial = desc->method && strcmp(desc->method, "serial") == 0;
    const bool automatic = lap_op_is_automatic(desc);
    desc->kind = sums ? LAP_GEMM_AR : LAP_GEMM;
    desc->method = sums && automatic ? LAP_AUTO : sums && !serial ? NULL : "serial";
    desc->aggregate = 0;
    desc->num_splits = 0;
}

bool lap_nn_plan_keeps_input(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    const lap_tp_gemm_t dgrad = (lap_tp_gemm_t)(shape->column_gemm + 1);
    return plan->desc.sequence_parallel &&
           lap_tp_overlap_describe(&plan->overlap, dgrad, &desc) == LAP_OK &&
           desc.kind == LAP_GEMM_RS;
}

/* The sizes of y = x w^T with w [out, in]: as the layout and the kind of the operator have them. */
static void set_sizes(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape, bool column,
                      lap_op_desc_t *desc)
{
    const size_t out = column ? shape->pre : shape->out, in = column ? shape->width : shape->mid;
    const bool turned = desc->layout == LAP_DGRAD;
    desc->m = plan->m;
    desc->n = turned ? in : out;
    desc->k = turned ? out : in;
    if (lap_kind_is_local(desc->kind))
        desc->sharded = column != turned ? LAP_SHARDED_N : LAP_SHARDED_K;
    if (column)
        desc->shard_parts = pre_parts(shape);
    if (lap_kind_moves(desc->kind))
        desc->cols = shape->width;
}

static void set_epilogue(const lap_nn_shape_t *shape, bool column, lap_op_desc_t *desc)
{
    const bool bias = shape->bias, gelu = shape->middle == LAP_MIDDLE_GELU;
    if (desc->layout == LAP_FORWARD) {
        desc->epilogue =
            (bias ? LAP_EPILOGUE_BIAS : 0u) | (column && gelu ? LAP_EPILOGUE_GELU : 0u);
        desc->accumulate = !column && shape->residual;
    } else if (desc->layout == LAP_DGRAD) {
        desc->epilogue = !column && gelu ? LAP_EPILOGUE_DGELU : LAP_EPILOGUE_NONE;
    } else {
        desc->epilogue = bias ? LAP_EPILOGUE_BIAS_GRAD : LAP_EPILOGUE_NONE;
        desc->accumulate = 1;
        desc->out_dtype = LAP_FLOAT32;
    }
}

/*
 * Operands are of the layers' type, or in FP8 what travels as an operand is so too; sums over ranks
 * are not. What multiplies FP8 wants k along the rows of both: weights have a copy that is turned,
 * so that dgrad takes it as fprop takes the other.
 */
static void set_types(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape, lap_op_desc_t *desc)
{
    desc->dtype = plan->desc.dtype;
    if (!shape->fp8)
        return;
    desc->dtype = desc->layout == LAP_FORWARD ? LAP_FLOAT8_E4M3 : LAP_FLOAT8_E5M2;
    desc->b_dtype = LAP_FLOAT8_E4M3;
    if (desc->layout != LAP_WGRAD)
        desc->out_dtype = plan->desc.dtype;
    if (desc->kind == LAP_BULK_AG)
        desc->wire_dtype = LAP_FLOAT8_E4M3;
    if (desc->kind == LAP_BULK_RS)
        desc->wire_dtype = plan->desc.dtype;
}

lap_status_t lap_nn_plan_describe(const lap_nn_plan_t *plan, const lap_nn_shape_t *shape,
                                  lap_tp_gemm_t gemm, lap_op_desc_t *desc_p)
{
    const bool column = is_column(shape, gemm);
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    LAP_TRY(lap_tp_overlap_describe(&plan->overlap, gemm, &desc));
    if (!plan->desc.sequence_parallel)
        drop_sequence(column, &desc);
    set_sizes(plan, shape, column, &desc);
    lap_knobs_clamp(&desc);
    set_types(plan, shape, &desc);
    set_epilogue(shape, column, &desc);
    if (shape->fp8 && desc.layout == LAP_DGRAD)
        desc.layout = LAP_FORWARD;
    if (desc.kind == LAP_AG_GEMM)
        desc.gather_input = !column || lap_nn_plan_keeps_input(plan, shape);
    *desc_p = desc;
    return LAP_OK;
}
