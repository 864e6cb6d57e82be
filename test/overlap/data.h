/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Global matrices that any rank can make any part of, and the results to expect, for tests of
 * operators: of every kind, type, layout and epilogue.
 */
#ifndef LAP_TEST_OVERLAP_DATA_H
#define LAP_TEST_OVERLAP_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/lap.h>

/* The results of a call that are rounded; what is only moved must arrive as it was. */
typedef enum test_result {
    TEST_D,
    TEST_AUX,  /* that GELU keeps */
    TEST_GRAD, /* bias_grad */
    TEST_Y,    /* of a reduce-scatter */
    TEST_RESULTS
} test_result_t;

/*
 * One call seen from one rank. `stride_pad` elements lie between the rows of every matrix, to find
 * who ignores them.
 *
 * With exact data everything is an integer times a power of two: all sums are exact in any order,
 * and only the roundings that op.h describes may happen. Otherwise elements, scales, alpha and beta
 * are anything, and results have bounds. Scales differ from rank to rank.
 */
typedef struct test_call {
    lap_op_desc_t desc; /* what the operator was made with; m is not looked at */
    size_t m;           /* active rows */
    int rank, size;
    uint64_t seed;
    bool exact;
    bool loud; /* what is rounded to FP8 is mostly too large for it; for exact data */
    size_t stride_pad;
    lap_dtype_t vector_dtype, aux_dtype; /* of bias and bias_grad; of aux */
    bool no_aux;                         /* GELU keeps none */
    lap_op_args_t args;                  /* with memory */
    struct lap_device *device; /* that has its own memory; NULL: it works in that of args */
    void *far;                 /* memory there while the call runs */
    double *operands[2]; /* of a product, as far as truth.c has looked them up; NULL: nobody does */
} test_call_t;

/* In args.scales: room for a scale of each rank, then three of this rank's own, 16 bytes apart. */
static inline size_t test_scale_at(const test_call_t *call, size_t index)
{
    return ((size_t)call->size + 3) / 4 * 4 + 4 * index;
}

static inline size_t test_scales_bytes(const test_call_t *call)
{
    return test_scale_at(call, 3) * sizeof(float);
}

/*
 * Makes the rank's parts of all that is given from the seed, and room for the results, filled with
 * NaN. Exits without memory.
 */
void test_call_init(test_call_t *call);
void test_call_clear(test_call_t *call);

/* The device of a group's world if it has its own memory; else NULL. */
struct lap_device *test_device(lap_group_t *group);

/*
 * lap_op_begin, lap_op_end and lap_op_run with the args of the call, in the memory of its device;
 * results are back in args at the end.
 */
void test_call_forget(test_call_t *call); /* the memory there; test_call_clear does so */
lap_status_t test_call_begin(lap_op_t *op, test_call_t *call);
lap_status_t test_call_end(lap_op_t *op, test_call_t *call);
lap_status_t test_call_run(lap_op_t *op, test_call_t *call);

/* A call with exact data by this rank of a group, not yet initialised. */
test_call_t test_exact_call(lap_group_t *group, const lap_op_desc_t *desc, size_t m, uint64_t seed);

/* Makes its data, and runs it. If it succeeds and is not right, that is a failed check: LAP_ERR_CHECK. */
lap_status_t test_call_check(lap_op_t *op, test_call_t call);

/*
 * The same in pieces: how much memory all that belongs to a call takes, its way to the device and
 * back, and the args of a call whose memory is `there`.
 */
size_t test_call_bytes(test_call_t *call);
lap_status_t test_call_upload(test_call_t *call, void *there);
lap_status_t test_call_download(test_call_t *call, const void *there);
lap_op_args_t test_call_args_at(test_call_t *call, void *there);

/*
 * Moves one element of a result just beyond its bound, so that test_result_error must find it.
 * False when the call has no such result, or it has no elements.
 */
bool test_call_spoil(test_call_t *call, test_result_t which);

/*
 * The largest error of all results against sums in double precision, divided by the bound for their
 * types and k: at most 1 is right. With exact data the error is 0 or infinite, but for GELU and its
 * derivative, which have bounds also then. Infinite when a result was not written, memory between
 * rows was, or what was gathered is not what was sent.
 */
double test_call_error(const test_call_t *call);

/* The same of one result alone; 0 when the call has no such result. */
double test_result_error(const test_call_t *call, test_result_t which);

/* ---- what data.c and truth.c share ---- */

typedef enum test_matrix {
    TEST_MATRIX_A,
    TEST_MATRIX_B,
    TEST_MATRIX_X,
    TEST_MATRIX_BIAS,
    TEST_MATRIX_AUX,
    TEST_MATRIX_BEFORE, /* d before the call */
    TEST_MATRICES
} test_matrix_t;

/* The types of a description, with the defaults that op.h describes. */
typedef struct test_types {
    lap_dtype_t a, b, out, wire, y;
} test_types_t;
test_types_t test_types(const lap_op_desc_t *desc);

static inline bool test_is_local(lap_op_kind_t kind)
{
    return kind == LAP_GEMM || kind == LAP_BULK_AG || kind == LAP_BULK_RS;
}

static inline bool test_multiplies(lap_op_kind_t kind)
{
    return kind != LAP_EXTERNAL_AG && kind != LAP_EXTERNAL_RS;
}

static inline bool test_sums_x(lap_op_kind_t kind)
{
    return kind == LAP_BULK_RS || kind == LAP_EXTERNAL_RS;
}

/* Whose d before the call, bias and aux this rank has: in an all-reduce all have the same. */
static inline int test_owner(const test_call_t *call)
{
    return call->desc.kind == LAP_GEMM_AR ? 0 : call->rank;
}

/*
 * What an element of a matrix stands for before it is scaled. Indices are global: of a [m, k] and b
 * [n, k], in LAP_WGRAD a [m, n] and b [m, k], whatever their parts and the way they are stored; of
 * matrices that a rank has for itself, `owner` says whose.
 */
float test_element(const test_call_t *call, test_matrix_t matrix, int owner, size_t row,
                   size_t col);

/* The scales that a rank gives; 1 for what is not FP8. */
float test_a_scale(const test_call_t *call, int rank);
float test_b_scale(const test_call_t *call, int rank);
float test_wire_scale(const test_call_t *call, int rank);
float test_d_scale(const test_call_t *call, int rank);

/* One element, as it is stored. */
float test_get(const lap_tensor_t *tensor, size_t row, size_t col);
void test_set(const lap_tensor_t *tensor, size_t row, size_t col, float value);

#endif
