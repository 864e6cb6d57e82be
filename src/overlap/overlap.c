/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a description to a problem and its builder: every argument is looked at here, once, and
 * every default is filled in here. The builders take what they are given for granted.
 */
#include "overlap/overlap.h"

#include <string.h>

#include "core/environment.h"
#include "core/options.h"
#include "core/status.h"
#include "core/tensor.h"
#include "overlap/knobs.h"
#include "schedule/range.h"
#include "transport/transport.h"
#include "util/join.h"

const char *const lap_op_kind_names[] = {"ag_gemm", "gemm_rs",     "gemm_ar",     "gemm", "bulk_ag",
                                         "bulk_rs", "external_ag", "external_rs", NULL};

static const lap_builder_t *const builders[] = {
    lap_ag_gemm_builders, lap_gemm_rs_builders, lap_gemm_ar_builders,     lap_gemm_builders,
    lap_bulk_ag_builders, lap_bulk_rs_builders, lap_external_ag_builders, lap_external_rs_builders,
};

static bool known_kind(lap_op_kind_t kind)
{
    return (size_t)kind < sizeof(builders) / sizeof(builders[0]);
}

const lap_builder_t *lap_builders(lap_op_kind_t kind)
{
    return builders[kind];
}

const lap_builder_t *lap_builder_find(lap_op_kind_t kind, const char *method)
{
    for (const lap_builder_t *builder = lap_builders(kind); method && builder->name; builder++)
        if (strcmp(builder->name, method) == 0)
            return builder;
    return method && strcmp(method, LAP_FOREIGN_METHOD) == 0 ? lap_foreign_builder(kind) : NULL;
}

const char *lap_op_kind_name(lap_op_kind_t kind)
{
    return known_kind(kind) ? lap_op_kind_names[kind] : "unknown operator";
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
 * Stands for the builder until an operator is made, when one is chosen (auto.c). It takes the
 * knobs that change what a call returns; methods that lack one are then no candidates.
 */
static const lap_builder_t automatic = {LAP_AUTO, "", 0, LAP_KNOB_GATHER_INPUT, NULL};

/* "serial, ring, direct": the methods of a kind that a transport which `can` can do. */
static void list_methods(lap_op_kind_t kind, unsigned can, char *text, size_t bytes)
{
    text[0] = '\0';
    for (const lap_builder_t *builder = lap_builders(kind); builder->name; builder++)
        if ((builder->needs & ~can) == 0)
            lap_join(text, bytes, builder->name);
}

lap_status_t lap_builder_suits(const lap_builder_t *builder, lap_op_kind_t kind, unsigned can)
{
    char names[128];
    if ((builder->needs & ~can) == 0)
        return LAP_OK;
    list_methods(kind, can, names, sizeof(names));
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "method '%s' of %s needs %s, which this transport does not have: it can do %s",
                     builder->name, lap_op_kind_name(kind),
                     lap_builder_is_foreign(builder) ? "transport nccl, whose communicator it uses"
                     : builder->needs & ~can & LAP_CAN_ADDRESS
                         ? "peers' memory that compute can address"
                         : "one-sided puts",
                     names[0] ? names : "none");
}

static lap_status_t find_builder(lap_op_kind_t kind, const char *method, unsigned can,
                                 const lap_builder_t **builder_p)
{
    const lap_builder_t *builder = lap_builder_find(kind, method);
    char names[128];
    if (!method) {
        /* The first one is serial; the first that overlaps comes after it. */
        for (builder = lap_builders(kind) + 1; builder->name && (builder->needs & ~can) != 0;)
            builder++;
        *builder_p = builder->name ? builder : lap_builders(kind);
        return LAP_OK;
    }
    if (strcmp(method, LAP_AUTO) == 0)
        builder = &automatic;
    if (!builder) {
        list_methods(kind, ~0u, names, sizeof(names));
        return lap_error(LAP_ERR_INVALID,
                         "method '%s' is not a method of %s, expected one of %s, %s", method,
                         lap_op_kind_name(kind), names, LAP_AUTO);
    }
    LAP_TRY(lap_builder_suits(builder, kind, can));
    *builder_p = builder;
    return LAP_OK;
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
    const size_t width = sizeof(float); /* of the widest type */
    LAP_TRY(check_matrix("m x n", desc->m, desc->n, size, width));
    LAP_TRY(check_matrix("m x k", desc->m, desc->k, size, width));
    LAP_TRY(check_matrix("m x cols", desc->m, desc->cols, size, width));
    return check_matrix("n x k", desc->n, desc->k, size, width);
}

static lap_dtype_t given_or(lap_dtype_t given, lap_dtype_t otherwise)
{
    return given == LAP_DTYPE_DEFAULT ? otherwise : given;
}

/* Types that a kind has no use for must be unset, or be what the others make them. */
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

/* Types that were not given follow from the others. */
static void fill_types(lap_op_desc_t *desc)
{
    const bool moves_input = desc->kind == LAP_AG_GEMM || lap_kind_moves(desc->kind);
    desc->b_dtype = given_or(desc->b_dtype, desc->dtype);
    desc->out_dtype = given_or(desc->out_dtype, lap_dtype_unscaled(desc->dtype));
    desc->wire_dtype = given_or(desc->wire_dtype, moves_input ? desc->dtype : desc->out_dtype);
    desc->y_dtype =
        given_or(desc->y_dtype, lap_kind_sums_x(desc->kind) ? lap_dtype_unscaled(desc->wire_dtype)
                                                            : desc->wire_dtype);
}

static lap_status_t check_types(const lap_op_desc_t *desc)
{
    const lap_dtype_t a = desc->dtype, b = desc->b_dtype;
    const bool ag = desc->kind == LAP_AG_GEMM;
    if (b != a && !(lap_dtype_is_fp8(a) && lap_dtype_is_fp8(b)))
        return lap_error(LAP_ERR_UNSUPPORTED, "b_dtype is %s with a dtype of %s, expected %s",
                         lap_dtype_name(b), lap_dtype_name(a),
                         lap_dtype_is_fp8(a) ? "float8_e4m3 or float8_e5m2" : "the same");
    if (ag || desc->kind == LAP_GEMM)
        LAP_TRY(check_fixed(desc, "wire_dtype", desc->wire_dtype, ag ? a : desc->out_dtype));
    if (lap_kind_sums_x(desc->kind))
        LAP_TRY(check_not_fp8(desc, "y_dtype", desc->y_dtype));
    else
        LAP_TRY(check_fixed(desc, "y_dtype", desc->y_dtype, desc->wire_dtype));
    /* Every rank has its own scale for d, but all must end with the same bits. */
    return desc->kind == LAP_GEMM_AR ? check_not_fp8(desc, "out_dtype", desc->out_dtype) : LAP_OK;
}

static lap_status_t check_layout(const lap_op_desc_t *desc)
{
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
    const lap_epilogue_t both = LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU;
    if ((desc->epilogue & both) == both)
        return lap_error(LAP_ERR_INVALID, "epilogue is %#x, expected GELU or DGELU, not both",
                         desc->epilogue);
    if (desc->layout == LAP_WGRAD && (desc->epilogue & ~LAP_EPILOGUE_BIAS_GRAD) != 0)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "epilogue is %#x with LAP_WGRAD, expected none or "
                         "LAP_EPILOGUE_BIAS_GRAD (%#x)",
                         desc->epilogue, LAP_EPILOGUE_BIAS_GRAD);
    return LAP_OK;
}

static lap_status_t check_sms(const lap_op_desc_t *desc)
{
    if (!desc->set_sm_margin || desc->num_sm > 0)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "set_sm_margin is %d with num_sm = 0, expected 0: it leaves num_sm SMs free",
                     desc->set_sm_margin);
}

lap_status_t lap_problem_init(lap_problem_t *problem, const lap_builder_t **builder_p,
                              const lap_op_desc_t *given, int size, unsigned can)
{
    const lap_builder_t *builder = NULL;
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    if (!given)
        return lap_error(LAP_ERR_INVALID, "desc is NULL, expected a description");
    LAP_TRY(lap_read_options(&desc, sizeof(desc), given, "LAP_OP_DESC"));
    if (size < 1 || size > LAP_RANKS_MAX)
        return lap_error(LAP_ERR_INVALID, "the group has %d ranks, expected 1 to %d", size,
                         LAP_RANKS_MAX);
    fill_types(&desc);
    LAP_TRY(lap_op_fields_check(&desc));
    LAP_TRY(check_layout(&desc));
    LAP_TRY(check_types(&desc));
    LAP_TRY(check_epilogue(&desc));
    LAP_TRY(check_sizes(&desc, size));
    LAP_TRY(check_shards(&desc));
    LAP_TRY(check_sms(&desc));
    if (desc.alltoall) {
        LAP_TRY(check_not_fp8(&desc, "wire_dtype", desc.wire_dtype));
        LAP_TRY(check_fixed(&desc, "y_dtype", desc.y_dtype, desc.wire_dtype));
    }
    if (desc.aside && desc.background)
        return lap_error(LAP_ERR_INVALID,
                         "aside is %d in the background, expected 0: what is there "
                         "has streams of its own",
                         desc.aside);
    LAP_TRY(find_builder(desc.kind, desc.method, can, &builder));
    LAP_TRY(lap_knobs_complete(&desc, builder, size, can));
    desc.method = builder->name;
    desc.sharded = sharded_of(&desc);
    desc.shard_parts = desc.shard_parts ? desc.shard_parts : 1;
    *problem = (lap_problem_t){
        .kind = desc.kind,
        .m = desc.m,
        .capacity = desc.m,
        .n = desc.n,
        .k = desc.k,
        .types = {desc.dtype, desc.b_dtype, desc.out_dtype, desc.wire_dtype, desc.y_dtype},
        .layout = desc.layout,
        .epilogue = desc.epilogue,
        .gather_input =
            desc.gather_input || desc.kind == LAP_BULK_AG || desc.kind == LAP_EXTERNAL_AG,
        .rank = 0,
        .lanes = (can & LAP_CAN_LANES) != 0,
        .size = size,
        .desc = desc,
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
        const bool gemm = step->ntiles > 0;
        const lap_range_t *d =
            gemm ? lap_tile_range(schedule, &schedule->tiles[step->first_tile], LAP_ROLE_D)
                 : lap_step_range(schedule, step, LAP_ROLE_D);
        const bool writes = gemm || step->kind == LAP_STEP_REDUCE || step->kind == LAP_STEP_COPY;
        if (step->stream == stream && writes && d->place == LAP_OUTPUT)
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

/* The stream of a kind that a builder has named. */
static uint16_t place_on(const lap_problem_t *problem, const lap_schedule_t *schedule, int kind)
{
    if (problem->desc.aside && kind == LAP_STREAM_SEND)
        return LAP_STREAM_SEND2;
    if (problem->desc.aside && kind == LAP_STREAM_RECEIVE)
        return LAP_STREAM_RECEIVE2;
    return lap_stream_of(schedule->set, kind);
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
    if (problem->desc.alltoall)
        lap_build_alltoall(problem, schedule, builder == lap_builders(problem->kind));
    else
        builder->build(problem, schedule);
    if (problem->epilogue & LAP_EPILOGUE_BIAS_GRAD)
        add_bias_grad(problem, schedule);
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        schedule->steps[i].stream = place_on(problem, schedule, schedule->steps[i].stream);
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
    const lap_builder_t *builder, *same;
    size_t bytes = 0, nsignals = 0;
    if (!bytes_p || !nsignals_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected a pointer to a size_t",
                         bytes_p ? "nsignals_p" : "bytes_p");
    LAP_TRY(lap_problem_init(&problem, &builder, desc, nranks, ~0u));
    if (builder->build)
        LAP_TRY(grow_buffer(builder, &problem, &bytes, &nsignals));
    /* Any method may be chosen; no setting of its knobs needs more than another. */
    lap_op_desc_t each = problem.desc;
    for (const lap_builder_t *any = lap_builders(each.kind); !builder->build && any->name; any++) {
        each.method = any->name;
        if (!lap_knobs_suit(&each, any))
            continue;
        LAP_TRY(lap_problem_init(&problem, &same, &each, nranks, ~0u));
        LAP_TRY(grow_buffer(any, &problem, &bytes, &nsignals));
    }
    *bytes_p = bytes;
    *nsignals_p = nsignals;
    return LAP_OK;
}
