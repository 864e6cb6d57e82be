/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a description to a problem and its builder: every argument is looked at here, once, and
 * every default is filled in here. The builders take what they are given for granted.
 */
#include "overlap/overlap.h"

#include <stdio.h>
#include <string.h>

#include "core/environment.h"
#include "core/options.h"
#include "core/status.h"
#include "schedule/range.h"
#include "transport/transport.h"

/* The operators, in the order of lap_op_kind_t. */
static const struct {
    const char *name;
    const lap_builder_t *builders;
} operators[] = {
    [LAP_AG_GEMM] = {"ag_gemm", lap_ag_gemm_builders},
    [LAP_GEMM_RS] = {"gemm_rs", lap_gemm_rs_builders},
    [LAP_GEMM_AR] = {"gemm_ar", lap_gemm_ar_builders},
    [LAP_GEMM] = {"gemm", lap_gemm_builders},
    [LAP_BULK_AG] = {"bulk_ag", lap_bulk_ag_builders},
    [LAP_BULK_RS] = {"bulk_rs", lap_bulk_rs_builders},
    [LAP_EXTERNAL_AG] = {"external_ag", lap_external_ag_builders},
    [LAP_EXTERNAL_RS] = {"external_rs", lap_external_rs_builders},
};

static bool known_kind(lap_op_kind_t kind)
{
    return (size_t)kind < sizeof(operators) / sizeof(operators[0]);
}

const lap_builder_t *lap_builders(lap_op_kind_t kind)
{
    return operators[kind].builders;
}

const char *lap_op_kind_name(lap_op_kind_t kind)
{
    return known_kind(kind) ? operators[kind].name : "unknown operator";
}

const char *lap_op_methods(lap_op_kind_t kind, size_t index, const char **summary_p)
{
    if (!known_kind(kind))
        return NULL;
    const lap_builder_t *builder = lap_builders(kind);
    while (index > 0 && builder->name) {
        builder++;
        index--;
    }
    if (summary_p && builder->name)
        *summary_p = builder->summary;
    return builder->name;
}

/*
 * Stands for the builder until an operator is made, when one is chosen (auto.c). It takes the knobs
 * that every method of the kind has.
 */
static const lap_builder_t automatic[] = {
    [LAP_AG_GEMM] = {LAP_AUTO, "", LAP_CAN_PUT, LAP_KNOB_GATHER_INPUT, NULL},
    [LAP_GEMM_RS] = {LAP_AUTO, "", LAP_CAN_PUT, 0, NULL},
    [LAP_GEMM_AR] = {LAP_AUTO, "", LAP_CAN_PUT, 0, NULL},
    [LAP_GEMM] = {LAP_AUTO, "", 0, 0, NULL},
    [LAP_BULK_AG] = {LAP_AUTO, "", LAP_CAN_PUT, 0, NULL},
    [LAP_BULK_RS] = {LAP_AUTO, "", LAP_CAN_PUT, 0, NULL},
    [LAP_EXTERNAL_AG] = {LAP_AUTO, "", LAP_CAN_PUT, 0, NULL},
    [LAP_EXTERNAL_RS] = {LAP_AUTO, "", LAP_CAN_PUT, 0, NULL},
};

/* "serial, ring, direct": the methods of a kind that a transport which `can` can do. */
static void list_methods(lap_op_kind_t kind, unsigned can, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (const lap_builder_t *builder = lap_builders(kind); builder->name; builder++)
        if ((builder->needs & ~can) == 0 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "",
                                     builder->name);
}

static lap_status_t find_builder(lap_op_kind_t kind, const char *method, unsigned can,
                                 const lap_builder_t **builder_p)
{
    const lap_builder_t *builder = lap_builders(kind);
    char names[128];
    if (!method) {
        /* The first one is serial; the first that overlaps comes after it. */
        for (builder++; builder->name && (builder->needs & ~can) != 0;)
            builder++;
        *builder_p = builder->name ? builder : lap_builders(kind);
        return LAP_OK;
    }
    if (strcmp(method, LAP_AUTO) == 0)
        builder = &automatic[kind];
    while (builder->name && strcmp(builder->name, method) != 0)
        builder++;
    if (!builder->name) {
        list_methods(kind, ~0u, names, sizeof(names));
        return lap_error(LAP_ERR_INVALID,
                         "method '%s' is not a method of %s, expected one of %s, %s", method,
                         lap_op_kind_name(kind), names, LAP_AUTO);
    }
    if ((builder->needs & ~can) != 0) {
        list_methods(kind, can, names, sizeof(names));
        return lap_error(
            LAP_ERR_UNSUPPORTED,
            "method '%s' of %s needs %s, which this transport does not have: it can do "
            "%s",
            method, lap_op_kind_name(kind),
            builder->needs & ~can & LAP_CAN_ADDRESS ? "peers' memory that compute can address"
                                                    : "one-sided puts",
            names[0] ? names : "none");
    }
    *builder_p = builder;
    return LAP_OK;
}

/* A size that must be there, and that GEMM libraries can count. */
static lap_status_t check_size(const char *name, size_t value)
{
    if (value > 0 && value <= LAP_SIZE_MOST)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "%s is %zu, expected 1 to %d", name, value, LAP_SIZE_MOST);
}

/* A matrix that must be addressable; `ranks` rows may be added to it by rounding up to a shard. */
static lap_status_t check_matrix(const char *what, size_t rows, size_t cols, int ranks,
                                 size_t width)
{
    size_t bytes;
    if (__builtin_add_overflow(rows, (size_t)ranks, &rows) ||
        __builtin_mul_overflow(rows, cols, &bytes) || __builtin_mul_overflow(bytes, width, &bytes))
        return lap_error(LAP_ERR_INVALID,
                         "%s = %zu x %zu elements is more than memory can hold, expected at most "
                         "%zu bytes",
                         what, rows - (size_t)ranks, cols, SIZE_MAX);
    return LAP_OK;
}

static lap_sharded_t sharded_of(const lap_op_desc_t *desc)
{
    if (lap_kind_is_local(desc->kind))
        return desc->sharded;
    return !lap_kind_multiplies(desc->kind) ? LAP_SHARDED_NONE
           : desc->kind == LAP_AG_GEMM      ? LAP_SHARDED_N
                                            : LAP_SHARDED_K;
}

static lap_status_t check_shards(const lap_op_desc_t *desc)
{
    const lap_sharded_t sharded = sharded_of(desc);
    if (desc->sharded != LAP_SHARDED_NONE && desc->sharded != LAP_SHARDED_N &&
        desc->sharded != LAP_SHARDED_K)
        return lap_error(
            LAP_ERR_INVALID,
            "sharded is %d, expected LAP_SHARDED_NONE (%d), LAP_SHARDED_N (%d) or LAP_SHARDED_K "
            "(%d)",
            (int)desc->sharded, (int)LAP_SHARDED_NONE, (int)LAP_SHARDED_N, (int)LAP_SHARDED_K);
    if (desc->sharded != LAP_SHARDED_NONE && desc->sharded != sharded)
        return lap_error(LAP_ERR_INVALID, "sharded is %d with %s, expected 0 or %d",
                         (int)desc->sharded, lap_op_kind_name(desc->kind), (int)sharded);
    const size_t total = sharded == LAP_SHARDED_N   ? desc->n
                         : sharded == LAP_SHARDED_K ? desc->k
                                                    : 1;
    if (desc->shard_parts > 1 && total % desc->shard_parts != 0)
        return lap_error(LAP_ERR_INVALID, "shard_parts is %zu, expected %s", desc->shard_parts,
                         sharded == LAP_SHARDED_NONE ? "0 or 1: neither n nor k is sharded"
                         : sharded == LAP_SHARDED_N  ? "a divisor of n"
                                                     : "a divisor of k");
    return LAP_OK;
}

static lap_status_t check_sizes(const lap_op_desc_t *desc, int size)
{
    const bool moves = lap_kind_moves(desc->kind), multiplies = lap_kind_multiplies(desc->kind);
    const size_t width = sizeof(float); /* of the widest type */
    LAP_TRY(check_size("m", desc->m));
    if (multiplies)
        LAP_TRY(check_size("n", desc->n));
    if (multiplies)
        LAP_TRY(check_size("k", desc->k));
    if (moves)
        LAP_TRY(check_size("cols", desc->cols));
    if (!moves && desc->cols != 0)
        return lap_error(
            LAP_ERR_INVALID,
            "cols is %zu with %s, expected 0: only bulk and external operators have an x",
            desc->cols, lap_op_kind_name(desc->kind));
    if (!multiplies && (desc->n != 0 || desc->k != 0))
        return lap_error(LAP_ERR_INVALID,
                         "n is %zu and k is %zu with %s, expected 0: this operator has no GEMM",
                         desc->n, desc->k, lap_op_kind_name(desc->kind));
    LAP_TRY(check_matrix("m x n", desc->m, desc->n, size, width));
    LAP_TRY(check_matrix("m x k", desc->m, desc->k, size, width));
    LAP_TRY(check_matrix("m x cols", desc->m, desc->cols, size, width));
    return check_matrix("n x k", desc->n, desc->k, size, width);
}

static lap_status_t check_kind(const lap_op_desc_t *desc)
{
    if (known_kind(desc->kind))
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "kind is %d, expected LAP_AG_GEMM (%d) to LAP_EXTERNAL_RS (%d)",
                     (int)desc->kind, (int)LAP_AG_GEMM, (int)LAP_EXTERNAL_RS);
}

static lap_status_t check_dtype(const char *name, lap_dtype_t dtype)
{
    if (lap_dtype_size(dtype) > 0)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "%s is %d, expected LAP_FLOAT32 (%d), LAP_FLOAT16 (%d), LAP_BFLOAT16 (%d), "
                     "LAP_FLOAT8_E4M3 (%d) or LAP_FLOAT8_E5M2 (%d)",
                     name, (int)dtype, (int)LAP_FLOAT32, (int)LAP_FLOAT16, (int)LAP_BFLOAT16,
                     (int)LAP_FLOAT8_E4M3, (int)LAP_FLOAT8_E5M2);
}

static lap_dtype_t given_or(lap_dtype_t given, lap_dtype_t otherwise)
{
    return given == LAP_DTYPE_DEFAULT ? otherwise : given;
}

/* What sums are rounded to when nothing is said: FP8 has too few bits for them. */
static lap_dtype_t result_type(lap_dtype_t dtype)
{
    return lap_dtype_is_fp8(dtype) ? LAP_BFLOAT16 : dtype;
}

/* Types that a kind has no use for must be left alone, or be what the others make them. */
static lap_status_t check_fixed(const lap_op_desc_t *desc, const char *name, lap_dtype_t dtype,
                                lap_dtype_t expected)
{
    if (dtype == expected)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "%s is %s with %s, expected %s", name,
                     lap_dtype_name(dtype), lap_op_kind_name(desc->kind), lap_dtype_name(expected));
}

static lap_status_t check_not_fp8(const lap_op_desc_t *desc, const char *name, lap_dtype_t dtype)
{
    if (!lap_dtype_is_fp8(dtype))
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "%s is %s with %s, expected float32, float16 or bfloat16",
                     name, lap_dtype_name(dtype), lap_op_kind_name(desc->kind));
}

static lap_status_t choose_types(const lap_op_desc_t *desc, lap_types_t *types_p)
{
    const bool ag = desc->kind == LAP_AG_GEMM, moves = lap_kind_moves(desc->kind);
    lap_types_t types = {.a = desc->dtype};
    LAP_TRY(check_dtype("dtype", types.a));
    types.b = given_or(desc->b_dtype, types.a);
    types.out = given_or(desc->out_dtype, result_type(types.a));
    types.wire = given_or(desc->wire_dtype, ag || moves ? types.a : types.out);
    types.y =
        given_or(desc->y_dtype, lap_kind_sums_x(desc->kind) ? result_type(types.wire) : types.wire);
    LAP_TRY(check_dtype("b_dtype", types.b));
    LAP_TRY(check_dtype("out_dtype", types.out));
    LAP_TRY(check_dtype("wire_dtype", types.wire));
    LAP_TRY(check_dtype("y_dtype", types.y));
    if (types.b != types.a && !(lap_dtype_is_fp8(types.a) && lap_dtype_is_fp8(types.b)))
        return lap_error(LAP_ERR_UNSUPPORTED, "b_dtype is %s with a dtype of %s, expected %s",
                         lap_dtype_name(types.b), lap_dtype_name(types.a),
                         lap_dtype_is_fp8(types.a) ? "float8_e4m3 or float8_e5m2" : "the same");
    if (ag || desc->kind == LAP_GEMM)
        LAP_TRY(check_fixed(desc, "wire_dtype", types.wire, ag ? types.a : types.out));
    if (lap_kind_sums_x(desc->kind))
        LAP_TRY(check_not_fp8(desc, "y_dtype", types.y));
    else
        LAP_TRY(check_fixed(desc, "y_dtype", types.y, types.wire));
    /* Every rank has its own scale for d, but all must end with the same bits. */
    if (desc->kind == LAP_GEMM_AR)
        LAP_TRY(check_not_fp8(desc, "out_dtype", types.out));
    *types_p = types;
    return LAP_OK;
}

static lap_status_t check_layout(const lap_op_desc_t *desc)
{
    if (desc->layout != LAP_FORWARD && desc->layout != LAP_DGRAD && desc->layout != LAP_WGRAD)
        return lap_error(
            LAP_ERR_INVALID,
            "layout is %d, expected LAP_FORWARD (%d), LAP_DGRAD (%d) or LAP_WGRAD (%d)",
            (int)desc->layout, (int)LAP_FORWARD, (int)LAP_DGRAD, (int)LAP_WGRAD);
    if (desc->layout == LAP_WGRAD && !lap_kind_is_local(desc->kind))
        return lap_error(
            LAP_ERR_UNSUPPORTED,
            "layout is LAP_WGRAD with %s, expected LAP_FORWARD or LAP_DGRAD: only gemm, bulk_ag "
            "and bulk_rs have LAP_WGRAD, with whole matrices on every rank",
            lap_op_kind_name(desc->kind));
    return LAP_OK;
}

static lap_status_t check_epilogue(const lap_op_desc_t *desc)
{
    const lap_epilogue_t all =
        LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU | LAP_EPILOGUE_BIAS_GRAD;
    const lap_epilogue_t both = LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU;
    if ((desc->epilogue & ~all) != 0)
        return lap_error(LAP_ERR_UNSUPPORTED, "epilogue is %#x, expected only bits of %#x",
                         desc->epilogue, all);
    if ((desc->epilogue & both) == both)
        return lap_error(LAP_ERR_INVALID, "epilogue is %#x, expected GELU or DGELU, not both",
                         desc->epilogue);
    if (desc->layout == LAP_WGRAD && (desc->epilogue & ~LAP_EPILOGUE_BIAS_GRAD) != 0)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "epilogue is %#x with LAP_WGRAD, expected none or "
                         "LAP_EPILOGUE_BIAS_GRAD (%#x)",
                         desc->epilogue, LAP_EPILOGUE_BIAS_GRAD);
    if (!lap_kind_multiplies(desc->kind) && (desc->epilogue != 0 || desc->accumulate))
        return lap_error(LAP_ERR_INVALID,
                         "%s is %#x with %s, expected 0: this operator has no GEMM",
                         desc->epilogue ? "epilogue" : "accumulate",
                         desc->epilogue ? desc->epilogue : 1, lap_op_kind_name(desc->kind));
    return LAP_OK;
}

/* A knob that is turned must be one that the method has. */
static lap_status_t check_knob(const lap_op_desc_t *desc, const lap_builder_t *builder,
                               unsigned knob, const char *name, size_t value)
{
    if (value == 0 || (builder->knobs & knob) != 0)
        return LAP_OK;
    char owners[128] = "";
    size_t used = 0;
    for (const lap_builder_t *other = lap_builders(desc->kind); other->name; other++)
        if ((other->knobs & knob) != 0 && used < sizeof(owners))
            used += (size_t)snprintf(owners + used, sizeof(owners) - used, "%s'%s'",
                                     used ? ", " : "", other->name);
    return lap_error(LAP_ERR_INVALID, "%s is %zu with method '%s' of %s, expected 0: %s%s has it",
                     name, value, builder->name, lap_op_kind_name(desc->kind),
                     used ? "only " : "no method", owners);
}

/* These are those of the device: every method has them, and hosts have no use for them. */
static lap_status_t check_sms(const lap_op_desc_t *desc)
{
    if (desc->num_sm < 0 || desc->num_sm > LAP_SMS_MOST)
        return lap_error(LAP_ERR_INVALID, "num_sm is %d, expected 0 to %d", desc->num_sm,
                         LAP_SMS_MOST);
    if (desc->set_sm_margin && desc->num_sm == 0)
        return lap_error(
            LAP_ERR_INVALID,
            "set_sm_margin is %d with num_sm = 0, expected 0: it leaves num_sm SMs free",
            desc->set_sm_margin);
    return LAP_OK;
}

static lap_status_t check_knobs(const lap_op_desc_t *desc, const lap_builder_t *builder, int size)
{
    LAP_TRY(check_knob(desc, builder, LAP_KNOB_AGGREGATE, "aggregate", desc->aggregate != 0));
    LAP_TRY(check_knob(desc, builder, LAP_KNOB_NUM_SPLITS | LAP_KNOB_ROUNDS, "num_splits",
                       desc->num_splits));
    LAP_TRY(check_knob(desc, builder, LAP_KNOB_BLOCK_ROWS, "block_rows", desc->block_rows));
    LAP_TRY(
        check_knob(desc, builder, LAP_KNOB_GATHER_INPUT, "gather_input", desc->gather_input != 0));
    if (desc->aggregate && size > 1 && size % 2 != 0)
        return lap_error(LAP_ERR_INVALID, "aggregate needs an even group size, got %d", size);
    const size_t shard = lap_shard(desc->m, size, 0, NULL);
    if (desc->block_rows && shard / desc->block_rows > LAP_BLOCKS_MOST)
        return lap_error(
            LAP_ERR_INVALID,
            "block_rows is %zu, expected at least %zu: a shard of %zu rows may have %d "
            "blocks",
            desc->block_rows, shard / LAP_BLOCKS_MOST + 1, shard, LAP_BLOCKS_MOST);
    if (desc->num_splits > LAP_BLOCKS_MOST)
        return lap_error(LAP_ERR_INVALID, "num_splits is %zu, expected at most %d",
                         desc->num_splits, LAP_BLOCKS_MOST);
    if (builder->knobs & LAP_KNOB_NUM_SPLITS && desc->num_splits > desc->n)
        return lap_error(LAP_ERR_INVALID, "num_splits is %zu, expected at most n = %zu",
                         desc->num_splits, desc->n);
    return LAP_OK;
}

/* Parts of n; or, where it is the peers that are taken in turn, one each. */
static size_t default_num_splits(const lap_op_desc_t *desc, const lap_builder_t *builder, int size)
{
    if (builder->knobs & LAP_KNOB_ROUNDS)
        return size > 1 ? (size_t)size - 1 : 1;
    return desc->n < 4 ? desc->n : 4;
}

/*
 * Rows that travel together in the fused methods. More blocks overlap more finely, but a GEMM of
 * few rows runs below its full speed: a shard is cut into two to four, none of them short, and
 * where GEMMs run side by side into none.
 */
static size_t default_block_rows(size_t capacity, int size, bool lanes)
{
    const size_t least = 128, good = 512;
    size_t shard = lap_shard(capacity, size, 0, NULL), parts = shard / good;
    if (lanes)
        return shard > 0 ? shard : 1;
    parts = parts < 2 ? 2 : parts > 4 ? 4 : parts;
    size_t rows = (shard + parts - 1) / parts;
    return rows < least ? least : rows;
}

lap_status_t lap_problem_init(lap_problem_t *problem, const lap_builder_t **builder_p,
                              const lap_op_desc_t *given, int size, unsigned can)
{
    const lap_builder_t *builder = NULL;
    lap_op_desc_t known = LAP_OP_DESC_INIT;
    const lap_op_desc_t *desc = &known;
    lap_types_t types;
    const bool lanes = (can & LAP_CAN_LANES) != 0;
    if (!given)
        return lap_error(LAP_ERR_INVALID, "desc is NULL, expected a description");
    LAP_TRY(lap_read_options(&known, sizeof(known), given, "LAP_OP_DESC"));
    if (size < 1 || size > LAP_RANKS_MAX)
        return lap_error(LAP_ERR_INVALID, "the group has %d ranks, expected 1 to %d", size,
                         LAP_RANKS_MAX);
    LAP_TRY(check_kind(desc));
    LAP_TRY(check_layout(desc));
    LAP_TRY(choose_types(desc, &types));
    LAP_TRY(check_epilogue(desc));
    LAP_TRY(check_sizes(desc, size));
    LAP_TRY(check_shards(desc));
    LAP_TRY(find_builder(desc->kind, desc->method, can, &builder));
    LAP_TRY(check_knobs(desc, builder, size));
    LAP_TRY(check_sms(desc));
    *problem = (lap_problem_t){
        .kind = desc->kind,
        .m = desc->m,
        .capacity = desc->m,
        .n = desc->n,
        .k = desc->k,
        .sharded = sharded_of(desc),
        .parts = desc->shard_parts ? desc->shard_parts : 1,
        .cols = desc->cols,
        .types = types,
        .layout = desc->layout,
        .epilogue = desc->epilogue,
        .accumulate = desc->accumulate != 0,
        .aggregate = desc->aggregate != 0,
        .num_splits = desc->num_splits ? desc->num_splits : default_num_splits(desc, builder, size),
        .block_rows =
            desc->block_rows ? desc->block_rows : default_block_rows(desc->m, size, lanes),
        .gather_input =
            desc->gather_input != 0 || desc->kind == LAP_BULK_AG || desc->kind == LAP_EXTERNAL_AG,
        .num_sm = desc->num_sm,
        .spare_sms = desc->set_sm_margin ? desc->num_sm : 0,
        .rank = 0,
        .lanes = lanes,
        .size = size,
    };
    *builder_p = builder;
    return LAP_OK;
}

static void await(lap_schedule_t *schedule, uint16_t stream, int peer, uint32_t signal)
{
    lap_add_wait(schedule, stream, peer, signal, 1);
    lap_expect(schedule, signal);
}

void lap_await_credit(const lap_problem_t *problem, lap_schedule_t *schedule, uint16_t stream,
                      int peer)
{
    await(schedule, stream, peer, lap_signal_credit(problem->size, peer));
}

void lap_await_done(const lap_problem_t *problem, lap_schedule_t *schedule, uint16_t stream,
                    int peer)
{
    await(schedule, stream, peer, lap_signal_done(problem->size, peer));
}

/* The last step of this stream that writes d, or the number of steps. */
static uint32_t last_output(const lap_schedule_t *schedule, uint16_t stream)
{
    for (uint32_t i = schedule->nsteps; i-- > 0;) {
        const lap_step_t *step = &schedule->steps[i];
        const bool gemm = step->kind == LAP_STEP_GEMM && step->count > 0;
        const lap_place_t place = gemm ? schedule->blocks[step->first].d.place : step->dst.place;
        const bool writes = gemm || step->kind == LAP_STEP_REDUCE || step->kind == LAP_STEP_COPY;
        if (step->stream == stream && writes && place == LAP_OUTPUT)
            return i;
    }
    return schedule->nsteps;
}

/* The gradient of the bias comes last, from all of d, so that its bits are those of any method. */
static void add_bias_grad(const lap_problem_t *problem, lap_schedule_t *schedule)
{
    const uint32_t none = schedule->nsteps;
    lap_range_t src = schedule->output;
    if (problem->layout == LAP_WGRAD)
        src = lap_range_packed(LAP_INPUT, problem->rank, 0, problem->m,
                               lap_n_of(problem, problem->rank) * lap_dtype_size(problem->types.a));
    const uint32_t sums = lap_add_sums(schedule, LAP_STREAM_COMPUTE, src);
    for (uint16_t stream = 0; stream < LAP_STREAMS && src.place == LAP_OUTPUT; stream++) {
        const uint32_t last = last_output(schedule, stream);
        if (stream != LAP_STREAM_COMPUTE && last < none)
            lap_add_dep(schedule, sums, last);
    }
}

lap_status_t lap_build(const lap_builder_t *builder, const lap_problem_t *problem,
                       lap_schedule_t *schedule)
{
    lap_schedule_init(schedule, problem, builder->name);
    if (!builder->build)
        return lap_error(
            LAP_ERR_UNSUPPORTED,
            "method '%s' is chosen by measuring when an operator is made: expected the "
            "name of a method",
            builder->name);
    builder->build(problem, schedule);
    if (problem->epilogue & LAP_EPILOGUE_BIAS_GRAD)
        add_bias_grad(problem, schedule);
    return schedule->status;
}

/*
 * The builder knows; what it needs at capacity is the same on every rank and enough for every call.
 */
static lap_status_t grow_buffer(const lap_builder_t *builder, const lap_problem_t *problem,
                                size_t *bytes, size_t *nsignals)
{
    lap_schedule_t schedule;
    lap_status_t status = lap_build(builder, problem, &schedule);
    if (status == LAP_OK) {
        *bytes = schedule.symmetric_bytes > *bytes ? schedule.symmetric_bytes : *bytes;
        *nsignals = schedule.nsignals > *nsignals ? schedule.nsignals : *nsignals;
    }
    lap_schedule_clear(&schedule);
    return status;
}

lap_status_t lap_op_buffer_size(const lap_op_desc_t *desc, int nranks, size_t *bytes_p,
                                size_t *nsignals_p)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    size_t bytes = 0, nsignals = 0;
    if (!bytes_p || !nsignals_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected a pointer to a size_t",
                         bytes_p ? "nsignals_p" : "bytes_p");
    LAP_TRY(lap_problem_init(&problem, &builder, desc, nranks, ~0u));
    if (builder->build)
        LAP_TRY(grow_buffer(builder, &problem, &bytes, &nsignals));
    /* Any method may be chosen; no setting of its knobs needs more than another. */
    for (const lap_builder_t *any = lap_builders(problem.kind); !builder->build && any->name; any++)
        LAP_TRY(grow_buffer(any, &problem, &bytes, &nsignals));
    *bytes_p = bytes;
    *nsignals_p = nsignals;
    return LAP_OK;
}
