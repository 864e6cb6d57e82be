/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arguments of a call: every one that the operator has a use for is looked at here, before
 * anything is started or changed.
 */
#include <assert.h>
#include <float.h>
#include <math.h>

#include "core/status.h"
#include "core/tensor.h"
#include "overlap/op.h"

/* Sizes of a matrix: the whole of a dimension, or this rank's share of it. */
typedef struct extent {
    size_t size;
    const char *name;
} extent_t;

/* What a tensor argument must look like. */
typedef struct expected {
    const char *name;
    lap_dtype_t dtype;
    extent_t rows, cols;
} expected_t;

static lap_status_t check_tensor(const lap_tensor_t *tensor, const expected_t *want)
{
    if (tensor->dtype != want->dtype)
        return lap_error(LAP_ERR_INVALID, "%s is %s, expected %s", want->name,
                         lap_dtype_name(tensor->dtype), lap_dtype_name(want->dtype));
    if (tensor->rows != want->rows.size)
        return lap_error(LAP_ERR_INVALID, "%s has %zu rows, expected %s = %zu", want->name,
                         tensor->rows, want->rows.name, want->rows.size);
    if (tensor->cols != want->cols.size)
        return lap_error(LAP_ERR_INVALID, "%s has %zu columns, expected %s = %zu", want->name,
                         tensor->cols, want->cols.name, want->cols.size);
    if (tensor->stride < tensor->cols)
        return lap_error(LAP_ERR_INVALID,
                         "%s has a stride of %zu, expected at least its %zu columns", want->name,
                         tensor->stride, tensor->cols);
    if (tensor->stride > LAP_SIZE_MOST)
        return lap_error(LAP_ERR_INVALID, "%s has a stride of %zu, expected at most %d", want->name,
                         tensor->stride, LAP_SIZE_MOST);
    if (!tensor->data && tensor->rows && tensor->cols)
        return lap_error(LAP_ERR_INVALID, "%s.data is NULL, expected [%zu, %zu] elements",
                         want->name, tensor->rows, tensor->cols);
    return lap_tensor_check_aligned(tensor, want->name);
}

/* The arguments of a call that its operator has a use for, with what is expected of each. */
enum { D, SECOND, AUX, BIAS_GRAD, RESULTS, A = RESULTS, B, X, BIAS, TENSORS };

typedef struct tensors {
    const lap_tensor_t *given[TENSORS]; /* NULL: not used by this operator */
    expected_t want[TENSORS];
} tensors_t;

static void expect(tensors_t *tensors, int which, const lap_tensor_t *given, const char *name,
                   lap_dtype_t dtype, extent_t rows, extent_t cols)
{
    tensors->given[which] = given;
    tensors->want[which] = (expected_t){name, dtype, rows, cols};
}

static void expect_product(const lap_problem_t *p, const lap_op_args_t *args, tensors_t *tensors)
{
    const bool ag = p->kind == LAP_AG_GEMM;
    const extent_t m = {args->m, "m"};
    const extent_t m_r = {lap_shard(args->m, p->size, p->rank, NULL), "this rank's share of m"};
    extent_t n = {lap_n_of(p, p->rank), "n"}, k = {lap_k_of(p, p->rank), "k"};
    if (p->desc.sharded == LAP_SHARDED_N)
        n.name = "this rank's share of n (lap_shard_features)";
    if (p->desc.sharded == LAP_SHARDED_K)
        k.name = "this rank's share of k (lap_shard_features)";
    const bool wgrad = p->layout == LAP_WGRAD, turned = p->layout == LAP_DGRAD;
    const extent_t d_rows = wgrad ? n : p->kind == LAP_GEMM_RS ? m_r : m, d_cols = wgrad ? k : n;
    const extent_t one = {1, "1"};
    expect(tensors, A, &args->a, "a", p->types.a, ag ? m_r : m, wgrad ? n : k);
    expect(tensors, B, &args->b, "b", p->types.b, wgrad ? m : turned ? k : n, turned ? n : k);
    expect(tensors, D, &args->d, "d", p->types.out, d_rows, d_cols);
    if (p->epilogue & LAP_EPILOGUE_BIAS)
        expect(tensors, BIAS, &args->bias, "bias", args->bias.dtype, one, d_cols);
    if ((p->epilogue & LAP_EPILOGUE_GELU && args->aux.data) || p->epilogue & LAP_EPILOGUE_DGELU)
        expect(tensors, AUX, &args->aux, "aux", args->aux.dtype, d_rows, d_cols);
    if (p->epilogue & LAP_EPILOGUE_BIAS_GRAD)
        expect(tensors, BIAS_GRAD, &args->bias_grad, "bias_grad", args->bias_grad.dtype, one,
               wgrad ? n : d_cols);
}

static tensors_t list_tensors(const lap_problem_t *p, const lap_op_args_t *args)
{
    const extent_t m = {args->m, "m"}, cols = {p->desc.cols, "cols"}, k = {p->k, "k"};
    const extent_t m_r = {lap_shard(args->m, p->size, p->rank, NULL), "this rank's share of m"};
    const bool rs = lap_kind_sums_x(p->kind);
    tensors_t tensors = {{NULL}, {{NULL, LAP_FLOAT32, {0, NULL}, {0, NULL}}}};
    if (lap_kind_multiplies(p->kind))
        expect_product(p, args, &tensors);
    if (p->kind == LAP_AG_GEMM && p->gather_input)
        expect(&tensors, SECOND, &args->gathered, "gathered", p->types.a, m, k);
    if (lap_kind_moves(p->kind)) {
        const extent_t parts = {(size_t)p->size * m_r.size, "this rank's share of m for each rank"};
        const extent_t own = p->desc.alltoall ? parts : m_r;
        expect(&tensors, X, &args->x, "x", p->types.wire, rs ? m : own, cols);
        expect(&tensors, SECOND, &args->y, "y", p->types.y, rs ? own : m, cols);
    }
    return tensors;
}

static_assert(TENSORS == LAP_ARGS_TENSORS, "op.h says how many there are");

size_t lap_args_shape(const lap_problem_t *p, lap_op_args_t *args, lap_tensor_t **tensors_p)
{
    const tensors_t tensors = list_tensors(p, args);
    size_t count = 0;
    for (int i = 0; i < TENSORS; i++) {
        const expected_t *want = &tensors.want[i];
        if (!tensors.given[i])
            continue;
        lap_tensor_t *tensor = (lap_tensor_t *)(uintptr_t)tensors.given[i]; /* one of args */
        tensor->dtype = want->dtype;
        tensor->rows = want->rows.size;
        tensor->cols = tensor->stride = want->cols.size;
        tensors_p[count++] = tensor;
    }
    return count;
}

/* Vectors and aux have whatever type the caller likes, but for FP8, which would need a scale. */
static lap_status_t check_free_dtype(const tensors_t *tensors, int which)
{
    const lap_tensor_t *tensor = tensors->given[which];
    if (!tensor || (lap_dtype_size(tensor->dtype) > 0 && !lap_dtype_is_fp8(tensor->dtype)))
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "%s is %s, expected float32, float16 or bfloat16",
                     tensors->want[which].name, lap_dtype_name(tensor->dtype));
}

static lap_status_t check_scale(const char *name, float scale, bool fp8)
{
    if (fp8 && !(scale > 0 && scale <= FLT_MAX))
        return lap_error(LAP_ERR_INVALID, "%s is %g, expected a finite number above 0", name,
                         (double)scale);
    if (!fp8 && scale != 1)
        return lap_error(LAP_ERR_INVALID,
                         "%s is %g, expected 1: the tensor that it scales is not FP8", name,
                         (double)scale);
    return LAP_OK;
}

#define LAP_SCALE_ALIGN 16 /* cuBLASLt takes scales at such addresses only */

/* A scale in memory of the device. */
static lap_status_t check_scale_ptr(const char *name, const float *scale, float number, bool scales)
{
    if (!scale)
        return LAP_OK;
    if (!scales)
        return lap_error(LAP_ERR_INVALID,
                         "%s_ptr is given, expected NULL: there is no FP8 matrix that it scales",
                         name);
    if (number != 1)
        return lap_error(LAP_ERR_INVALID, "%s is %g and %s_ptr is given, expected one of them",
                         name, (double)number, name);
    if ((uintptr_t)scale % LAP_SCALE_ALIGN != 0)
        return lap_error(LAP_ERR_INVALID, "%s_ptr is %p, expected a multiple of %d", name,
                         (const void *)scale, LAP_SCALE_ALIGN);
    return LAP_OK;
}

/* Whether what travels is FP8 with a scale of its own; a has one already. */
static bool has_wire_scale(const lap_problem_t *p)
{
    return p->kind != LAP_AG_GEMM && p->kind != LAP_GEMM && lap_dtype_is_fp8(p->types.wire);
}

/* Whether calls return the scales of what they gather. */
static bool returns_scales(const lap_problem_t *p)
{
    return p->gather_input && lap_dtype_is_fp8(p->types.wire);
}

static lap_status_t check_numbers(const lap_problem_t *p, const lap_op_args_t *args)
{
    const bool multiplies = lap_kind_multiplies(p->kind);
    LAP_TRY(check_scale("a_scale", args->a_scale, multiplies && lap_dtype_is_fp8(p->types.a)));
    LAP_TRY(check_scale("b_scale", args->b_scale, multiplies && lap_dtype_is_fp8(p->types.b)));
    LAP_TRY(check_scale("d_scale", args->d_scale, multiplies && lap_dtype_is_fp8(p->types.out)));
    LAP_TRY(check_scale("wire_scale", args->wire_scale, has_wire_scale(p)));
    const bool gathers_x = p->kind == LAP_BULK_AG || p->kind == LAP_EXTERNAL_AG;
    LAP_TRY(check_scale_ptr("a_scale", args->a_scale_ptr, args->a_scale,
                            multiplies && lap_dtype_is_fp8(p->types.a)));
    LAP_TRY(check_scale_ptr("b_scale", args->b_scale_ptr, args->b_scale,
                            multiplies && lap_dtype_is_fp8(p->types.b)));
    LAP_TRY(check_scale_ptr("wire_scale", args->wire_scale_ptr, args->wire_scale,
                            gathers_x && has_wire_scale(p)));
    const float product = args->alpha * args->a_scale * args->b_scale;
    if (isfinite(args->alpha) && !isfinite(product))
        return lap_error(LAP_ERR_INVALID,
                         "alpha, a_scale and b_scale are %g, %g and %g, expected a finite product",
                         (double)args->alpha, (double)args->a_scale, (double)args->b_scale);
    if (!isfinite(args->alpha))
        return lap_error(LAP_ERR_INVALID, "alpha is %g, expected a finite number",
                         (double)args->alpha);
    if (!isfinite(args->beta) || (args->beta != 0 && !p->desc.accumulate))
        return lap_error(LAP_ERR_INVALID, "beta is %g, expected %s", (double)args->beta,
                         p->desc.accumulate ? "a finite number"
                                            : "0: the operator was made without accumulate");
    if (returns_scales(p) && !args->scales)
        return lap_error(LAP_ERR_INVALID, "scales is NULL, expected room for %d floats", p->size);
    return LAP_OK;
}

/* The memory of a tensor, with its gaps: [begin, end). */
typedef struct memory {
    uintptr_t begin, end;
} memory_t;

static memory_t memory_of(const lap_tensor_t *tensor)
{
    if (!tensor || !tensor->rows || !tensor->cols)
        return (memory_t){0, 0};
    uintptr_t begin = (uintptr_t)tensor->data;
    size_t elements = (tensor->rows - 1) * tensor->stride + tensor->cols;
    return (memory_t){begin, begin + elements * lap_dtype_size(tensor->dtype)};
}

static bool overlap(memory_t x, memory_t y)
{
    return x.begin < x.end && y.begin < y.end && x.begin < y.end && y.begin < x.end;
}

/* No result may overlap another argument, and no argument the memory that the calls work in. */
static lap_status_t check_memory(const lap_buffer_t *buffer, const tensors_t *tensors)
{
    uintptr_t begin = (uintptr_t)buffer->data[buffer->group->rank];
    const memory_t symmetric = {begin, begin + buffer->reserved_bytes};
    for (int i = 0; i < TENSORS; i++) {
        const memory_t memory = memory_of(tensors->given[i]);
        if (overlap(memory, symmetric))
            return lap_error(LAP_ERR_INVALID,
                             "%s lies in the symmetric memory of operators, expected memory of "
                             "its own",
                             tensors->want[i].name);
        for (int j = i + 1; j < TENSORS && i < RESULTS; j++)
            if (overlap(memory, memory_of(tensors->given[j])))
                return lap_error(LAP_ERR_INVALID, "%s overlaps %s, expected memory of its own",
                                 tensors->want[i].name, tensors->want[j].name);
    }
    return LAP_OK;
}

/* Whether the device can use the memory. An address that was looked at is not looked at again. */
static lap_status_t check_address(lap_op_t *op, int which, const char *name, const void *memory)
{
    lap_device_t *device = op->engine->device;
    if (op->known[which] == memory)
        return LAP_OK;
    LAP_TRY(device->ops->check_memory(device, name, memory));
    op->known[which] = memory;
    return LAP_OK;
}

static lap_status_t check_addresses(lap_op_t *op, const tensors_t *tensors,
                                    const lap_op_args_t *args)
{
    for (int i = 0; i < TENSORS; i++) {
        const memory_t memory = memory_of(tensors->given[i]);
        if (memory.begin < memory.end)
            LAP_TRY(check_address(op, i, tensors->want[i].name, tensors->given[i]->data));
    }
    const struct {
        const char *name;
        const float *memory;
    } scales[] = {
        {"scales", returns_scales(&op->problem) ? args->scales : NULL},
        {"a_scale_ptr", args->a_scale_ptr},
        {"b_scale_ptr", args->b_scale_ptr},
        {"wire_scale_ptr", args->wire_scale_ptr},
    };
    _Static_assert(LAP_OP_ARGS == TENSORS + sizeof(scales) / sizeof(scales[0]),
                   "the tensors and the scales");
    for (int i = 0; i < LAP_OP_ARGS - TENSORS; i++)
        if (scales[i].memory)
            LAP_TRY(check_address(op, TENSORS + i, scales[i].name, scales[i].memory));
    return LAP_OK;
}

lap_status_t lap_args_check(lap_op_t *op, const lap_op_args_t *args)
{
    const lap_problem_t *p = &op->problem;
    if (args->m > p->capacity)
        return lap_error(LAP_ERR_INVALID, "m is %zu, expected at most the capacity %zu", args->m,
                         p->capacity);
    const tensors_t tensors = list_tensors(p, args);
    LAP_TRY(check_free_dtype(&tensors, BIAS));
    LAP_TRY(check_free_dtype(&tensors, AUX));
    LAP_TRY(check_free_dtype(&tensors, BIAS_GRAD));
    static const int order[] = {A, B, D, SECOND, X, BIAS, AUX, BIAS_GRAD};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        if (tensors.given[order[i]])
            LAP_TRY(check_tensor(tensors.given[order[i]], &tensors.want[order[i]]));
    LAP_TRY(check_numbers(p, args));
    LAP_TRY(check_memory(op->buffer, &tensors));
    if (op->foreign)
        LAP_TRY(lap_foreign_check_args(p, op->choice != NULL, args));
    return check_addresses(op, &tensors, args);
}

lap_op_args_t lap_args_usual(const lap_problem_t *p)
{
    void *const somewhere = (void *)(uintptr_t)4096;
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = p->capacity;
    args.bias.dtype = args.aux.dtype = args.bias_grad.dtype = lap_dtype_unscaled(p->types.out);
    args.aux.data = somewhere; /* what GELU keeps: training has a use for it */
    lap_tensor_t *tensors[TENSORS];
    const size_t count = lap_args_shape(p, &args, tensors);
    for (size_t i = 0; i < count; i++)
        tensors[i]->data = somewhere;
    return args;
}
