/* SPDX-License-Identifier: Apache-2.0 */
/* The matrices of a call: see data.h. */
#include "data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "tap.h"

static bool moves(lap_op_kind_t kind)
{
    return kind == LAP_BULK_AG || kind == LAP_BULK_RS || !test_multiplies(kind);
}

static lap_dtype_t given_or(lap_dtype_t given, lap_dtype_t otherwise)
{
    return given == LAP_DTYPE_DEFAULT ? otherwise : given;
}

static lap_dtype_t wide(lap_dtype_t dtype)
{
    return lap_dtype_is_fp8(dtype) ? LAP_BFLOAT16 : dtype;
}

test_types_t test_types(const lap_op_desc_t *desc)
{
    test_types_t types = {.a = desc->dtype, .b = given_or(desc->b_dtype, desc->dtype)};
    types.out = given_or(desc->out_dtype, wide(types.a));
    types.wire = desc->kind == LAP_AG_GEMM
                     ? types.a
                     : given_or(desc->wire_dtype, moves(desc->kind) ? types.a : types.out);
    types.y = test_sums_x(desc->kind) ? given_or(desc->y_dtype, wide(types.wire)) : types.wire;
    return types;
}

static lap_dtype_t dtype_of(const test_call_t *call, test_matrix_t matrix)
{
    const test_types_t types = test_types(&call->desc);
    const lap_dtype_t dtypes[TEST_MATRICES] = {
        types.a, types.b, types.wire, call->vector_dtype, call->aux_dtype, types.out};
    return dtypes[matrix];
}

/*
 * The largest element: integers that every type has, larger ones for narrow types so that results
 * need rounding; or numbers that give every type something to do, and GELU its interesting part.
 */
static float largest(const test_call_t *call, test_matrix_t matrix)
{
    const lap_dtype_t dtype = dtype_of(call, matrix);
    if (call->exact)
        return dtype == LAP_FLOAT32 ? 4 : dtype == LAP_FLOAT8_E5M2 ? 8 : 16;
    if (matrix == TEST_MATRIX_AUX)
        return 3;
    return lap_dtype_is_fp8(dtype) ? 4 : matrix == TEST_MATRIX_BIAS ? 2 : 0.5f;
}

float test_element(const test_call_t *call, test_matrix_t matrix, int owner, size_t row, size_t col)
{
    const uint64_t stream = (call->seed * TEST_MATRICES + (uint64_t)matrix) * 64 + (uint64_t)owner;
    const uint64_t bits = tap_random(stream, row * 1000003u + col);
    const float most = largest(call, matrix);
    if (call->exact)
        return (float)(int)(bits % (2 * (uint64_t)most + 1)) - most;
    return tap_rounded(dtype_of(call, matrix), ((float)(bits >> 40) / 8388608.0f - 1) * most);
}

/* ---- scales ---- */

float test_a_scale(const test_call_t *call, int rank)
{
    if (!lap_dtype_is_fp8(test_types(&call->desc).a) || !test_multiplies(call->desc.kind))
        return 1;
    return call->exact ? ldexpf(1, rank % 3 - 1) : 0.37f * (float)(rank + 1);
}

float test_b_scale(const test_call_t *call, int rank)
{
    if (!lap_dtype_is_fp8(test_types(&call->desc).b) || !test_multiplies(call->desc.kind))
        return 1;
    return call->exact ? ldexpf(1, (rank + 1) % 2) : 0.61f / (float)(rank + 2);
}

static float size_of_alpha(const test_call_t *call)
{
    return call->desc.accumulate ? 1.5f : 1;
}

/* More than any partial result of a rank can be. */
static float largest_part(const test_call_t *call, int rank)
{
    const lap_op_desc_t *desc = &call->desc;
    const size_t depth = desc->layout == LAP_WGRAD ? call->m
                         : test_is_local(desc->kind) || desc->kind == LAP_AG_GEMM
                             ? desc->k
                             : lap_shard_features(desc->k, call->size, rank, NULL);
    float a_scale = test_a_scale(call, rank);
    for (int r = 0; desc->kind == LAP_AG_GEMM && r < call->size; r++)
        a_scale = fmaxf(a_scale, test_a_scale(call, r));
    return size_of_alpha(call) * a_scale * test_b_scale(call, rank) * (float)depth *
           largest(call, TEST_MATRIX_A) * largest(call, TEST_MATRIX_B);
}

/* A scale with which numbers of this size come near the largest of an 8-bit type, or far beyond. */
static float scale_for(const test_call_t *call, float size, int rank)
{
    const float scale = fmaxf(size, 0.25f) / 400 * (1 + 0.1f * (float)rank);
    int exponent;
    frexpf(scale, &exponent);
    return call->exact ? ldexpf(1, exponent - (call->loud ? 8 : 0)) : scale;
}

float test_wire_scale(const test_call_t *call, int rank)
{
    const lap_op_kind_t kind = call->desc.kind;
    if (!lap_dtype_is_fp8(test_types(&call->desc).wire) || kind == LAP_AG_GEMM || kind == LAP_GEMM)
        return 1;
    if (moves(kind))
        return call->exact ? ldexpf(1, rank % 4 - 2) : 0.29f * (float)(rank + 1);
    return scale_for(call, largest_part(call, rank), rank);
}

float test_d_scale(const test_call_t *call, int rank)
{
    float size = largest(call, TEST_MATRIX_BIAS);
    if (!lap_dtype_is_fp8(test_types(&call->desc).out) || !test_multiplies(call->desc.kind))
        return 1;
    if (call->desc.kind != LAP_GEMM_RS)
        return scale_for(call, size + largest_part(call, rank), rank);
    for (int r = 0; r < call->size; r++)
        size += largest_part(call, r);
    return scale_for(call, size, rank);
}

/* ---- memory ---- */

static void *address(const lap_tensor_t *tensor, size_t row, size_t col)
{
    return (char *)tensor->data + (row * tensor->stride + col) * lap_dtype_size(tensor->dtype);
}

void test_set(const lap_tensor_t *tensor, size_t row, size_t col, float value)
{
    lap_from_float(tensor->dtype, &value, address(tensor, row, col), 1);
}

float test_get(const lap_tensor_t *tensor, size_t row, size_t col)
{
    float value;
    lap_to_float(tensor->dtype, address(tensor, row, col), &value, 1);
    return value;
}

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    if (!memory) {
        printf("Bail out! no memory for %zu bytes\n", bytes);
        exit(1);
    }
    /* In every type an element of ones is NaN. */
    memset(memory, 0xff, bytes + 1);
    return memory;
}

static lap_tensor_t room(const test_call_t *call, lap_dtype_t dtype, size_t rows, size_t cols)
{
    const size_t stride = cols + call->stride_pad;
    return (lap_tensor_t){allocate(rows * stride * lap_dtype_size(dtype)), dtype, rows, cols,
                          stride};
}

/* A part of a matrix from (row, col) on; `turned`: stored the other way round. */
static lap_tensor_t part(const test_call_t *call, test_matrix_t matrix, int owner, size_t row,
                         size_t rows, size_t col, size_t cols, bool turned)
{
    lap_tensor_t tensor =
        room(call, dtype_of(call, matrix), turned ? cols : rows, turned ? rows : cols);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            test_set(&tensor, turned ? j : i, turned ? i : j,
                     test_element(call, matrix, owner, row + i, col + j));
    return tensor;
}

static void init_product(test_call_t *call, lap_op_args_t *args)
{
    const lap_op_desc_t *desc = &call->desc;
    const bool ag = desc->kind == LAP_AG_GEMM, turned = desc->layout == LAP_DGRAD;
    size_t m0, n0, k0;
    const size_t m_r = lap_shard(call->m, call->size, call->rank, &m0);
    const size_t n_r = lap_shard_features(desc->n, call->size, call->rank, &n0);
    const size_t k_r = lap_shard_features(desc->k, call->size, call->rank, &k0);
    const lap_dtype_t out = test_types(desc).out;
    if (desc->layout == LAP_WGRAD) {
        args->a = part(call, TEST_MATRIX_A, call->rank, 0, call->m, 0, desc->n, false);
        args->b = part(call, TEST_MATRIX_B, call->rank, 0, call->m, 0, desc->k, false);
        args->d = room(call, out, desc->n, desc->k);
    } else if (test_is_local(desc->kind)) {
        args->a = part(call, TEST_MATRIX_A, call->rank, 0, call->m, 0, desc->k, false);
        args->b = part(call, TEST_MATRIX_B, call->rank, 0, desc->n, 0, desc->k, turned);
        args->d = room(call, out, call->m, desc->n);
    } else if (ag) {
        args->a = part(call, TEST_MATRIX_A, 0, m0, m_r, 0, desc->k, false);
        args->b = part(call, TEST_MATRIX_B, 0, n0, n_r, 0, desc->k, turned);
        args->d = room(call, out, call->m, n_r);
    } else {
        args->a = part(call, TEST_MATRIX_A, 0, 0, call->m, k0, k_r, false);
        args->b = part(call, TEST_MATRIX_B, 0, 0, desc->n, k0, k_r, turned);
        args->d = room(call, out, desc->kind == LAP_GEMM_RS ? m_r : call->m, desc->n);
    }
    if (ag && desc->gather_input)
        args->gathered = room(call, args->a.dtype, call->m, desc->k);
}

/* What the epilogue needs. */
static void init_epilogue(test_call_t *call, lap_op_args_t *args)
{
    const lap_epilogue_t epilogue = call->desc.epilogue;
    const size_t rows = args->d.rows, cols = args->d.cols;
    const int owner = test_owner(call);
    if (call->desc.accumulate) {
        args->alpha = call->exact ? -1.5f : 0.7f;
        args->beta = call->seed % 4 == 3 ? 0 : call->exact ? 0.5f : -1.3f;
    }
    if (args->beta != 0) { /* else d stays NaN: nobody may look at it */
        free(args->d.data);
        args->d = part(call, TEST_MATRIX_BEFORE, owner, 0, rows, 0, cols, false);
    }
    if (epilogue & LAP_EPILOGUE_BIAS)
        args->bias = part(call, TEST_MATRIX_BIAS, owner, 0, 1, 0, cols, false);
    if (epilogue & LAP_EPILOGUE_DGELU)
        args->aux = part(call, TEST_MATRIX_AUX, owner, 0, rows, 0, cols, false);
    else if (epilogue & LAP_EPILOGUE_GELU && !call->no_aux)
        args->aux = room(call, call->aux_dtype, rows, cols);
    if (epilogue & LAP_EPILOGUE_BIAS_GRAD)
        args->bias_grad =
            room(call, call->vector_dtype, 1, call->desc.layout == LAP_WGRAD ? call->desc.n : cols);
}

static void init_moved(test_call_t *call, lap_op_args_t *args)
{
    const lap_op_desc_t *desc = &call->desc;
    const test_types_t types = test_types(desc);
    size_t m0;
    const size_t m_r = lap_shard(call->m, call->size, call->rank, &m0);
    if (test_sums_x(desc->kind)) {
        args->x = part(call, TEST_MATRIX_X, call->rank, 0, call->m, 0, desc->cols, false);
        args->y = room(call, types.y, m_r, desc->cols);
    } else {
        args->x = part(call, TEST_MATRIX_X, 0, m0, m_r, 0, desc->cols, false);
        args->y = room(call, types.y, call->m, desc->cols);
    }
}

/* Every other call has its scales in memory, behind the room for those of all ranks. */
static void move_scale(float *number, float *place, bool scales, const float **ptr_p)
{
    *place = *number;
    if (!scales)
        return;
    *number = 1;
    *ptr_p = place;
}

static void move_scales(const test_call_t *call, lap_op_args_t *args)
{
    const test_types_t types = test_types(&call->desc);
    const lap_op_kind_t kind = call->desc.kind;
    const bool moves_them = call->seed % 2 != 0, multiplies = test_multiplies(kind);
    move_scale(&args->a_scale, &args->scales[test_scale_at(call, 0)],
               moves_them && multiplies && lap_dtype_is_fp8(types.a), &args->a_scale_ptr);
    move_scale(&args->b_scale, &args->scales[test_scale_at(call, 1)],
               moves_them && multiplies && lap_dtype_is_fp8(types.b), &args->b_scale_ptr);
    move_scale(&args->wire_scale, &args->scales[test_scale_at(call, 2)],
               moves_them && lap_dtype_is_fp8(types.wire) &&
                   (kind == LAP_BULK_AG || kind == LAP_EXTERNAL_AG),
               &args->wire_scale_ptr);
}

void test_call_init(test_call_t *call)
{
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = call->m;
    args.a_scale = test_a_scale(call, call->rank);
    args.b_scale = test_b_scale(call, call->rank);
    args.d_scale = test_d_scale(call, call->rank);
    args.wire_scale = test_wire_scale(call, call->rank);
    args.scales = allocate(test_scales_bytes(call));
    move_scales(call, &args);
    if (test_multiplies(call->desc.kind)) {
        init_product(call, &args);
        init_epilogue(call, &args);
    }
    if (moves(call->desc.kind))
        init_moved(call, &args);
    call->args = args;
}

void test_call_clear(test_call_t *call)
{
    test_call_forget(call);
    lap_op_args_t *args = &call->args;
    void *const all[] = {args->a.data,    args->b.data,         args->d.data, args->gathered.data,
                         args->bias.data, args->bias_grad.data, args->x.data, args->y.data,
                         args->aux.data,  args->scales};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}
