/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same call again and again, in the same memory: where a device keeps calls as graphs, all but
 * the first two are replays. The same data give the same bits every time; other data give their own
 * results every time. See suite.h for how it is started.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite.h"
#include "tap.h"

enum { CALLS = 100, RESULTS = 4 };

/* The results of a call, as one list. */
static void list_results(lap_op_args_t *args, lap_tensor_t **tensors)
{
    lap_tensor_t *all[RESULTS] = {&args->d, &args->gathered, &args->bias_grad, &args->y};
    memcpy(tensors, all, sizeof(all));
}

static size_t bytes_of(const lap_tensor_t *tensor)
{
    return tensor->data ? tensor->rows * tensor->stride * lap_dtype_size(tensor->dtype) : 0;
}

/*
 * Compares the results with those that are saved, or saves them if none are, and writes NaN over
 * them, so that the next call must write them all. Returns whether they are the same.
 */
static bool compare(lap_op_args_t *args, void **saved)
{
    lap_tensor_t *tensors[RESULTS];
    bool same = true;
    list_results(args, tensors);
    for (int i = 0; i < RESULTS; i++) {
        const size_t bytes = bytes_of(tensors[i]);
        if (bytes == 0)
            continue;
        if (saved[i]) {
            same = same && memcmp(saved[i], tensors[i]->data, bytes) == 0;
        } else {
            saved[i] = malloc(bytes);
            memcpy(saved[i], tensors[i]->data, bytes);
        }
        for (size_t row = 0; row < tensors[i]->rows; row++)
            for (size_t col = 0; col < tensors[i]->cols; col++)
                test_set(tensors[i], row, col, NAN);
    }
    return same;
}

/* How many of the calls gave other bits than the first one, which must be right. */
static int count_other_bits(lap_op_t *op, test_call_t call)
{
    void *saved[RESULTS] = {NULL};
    int others = 0;
    test_call_init(&call);
    for (int i = 0; i < CALLS; i++) {
        const bool ran = test_call_run(op, &call) == LAP_OK;
        if (!ran || (i == 0 && test_call_error(&call) > 1))
            others++;
        if (!ran)
            break;
        others += !compare(&call.args, saved);
    }
    test_call_clear(&call);
    for (int i = 0; i < RESULTS; i++)
        free(saved[i]);
    return others;
}

/* How many calls with data of their own were wrong. */
static int count_wrong(lap_op_t *op, test_call_t first)
{
    void *far = NULL;
    int wrong = 0;
    for (int i = 0; i < CALLS && wrong == 0; i++) {
        test_call_t call = first;
        call.seed = 4000 + (uint64_t)i * 3;
        call.exact = i % 4 != 3;
        call.far = far;
        test_call_init(&call);
        const bool ran = test_call_run(op, &call) == LAP_OK;
        wrong += !ran || test_call_error(&call) > (call.exact ? 0 : 1);
        far = call.far;
        call.far = i == CALLS - 1 || wrong ? far : NULL;
        test_call_clear(&call);
    }
    return wrong;
}

static void try_often(lap_group_t *group, const test_method_t *v, const test_flavour_t *flavour,
                      const test_shape_t *shape)
{
    char text[64];
    lap_op_t *op = test_op(group, NULL, v, flavour, shape);
    if (!op)
        return;
    /* Strides are the same for seeds that are, modulo 3. */
    const test_call_t call = test_call(group, v, flavour, shape, shape->m, 4000, false);
    const int others = count_other_bits(op, call);
    const int wrong = count_wrong(op, call);
    tap_ok(others == 0 && wrong == 0,
           "%s, %d times: %d without the bits of the first; with other data each time: %d wrong",
           test_label(v, flavour, text, sizeof(text)), CALLS, others, wrong);
    lap_op_destroy(op);
}

/* Every method, and a GEMM of operands that a GPU turns for its tensor cores. */
static void suite(lap_group_t *group)
{
    const test_flavour_t plain = test_plain();
    const test_flavour_t turned = {.name = "e5m2 e4m3 wgrad",
                                   .a = LAP_FLOAT8_E5M2,
                                   .b = LAP_FLOAT8_E4M3,
                                   .out = LAP_FLOAT32,
                                   .wire = LAP_DTYPE_DEFAULT,
                                   .y = LAP_DTYPE_DEFAULT,
                                   .layout = LAP_WGRAD,
                                   .epilogue = LAP_EPILOGUE_BIAS_GRAD};
    const test_shape_t shape = {5 * (size_t)lap_group_size(group) + 2, 19, 33};
    const test_shape_t even = {16 * (size_t)lap_group_size(group), 32, 48};
    for (int i = 0; i < TEST_METHODS; i++) {
        const test_method_t *v = &test_methods[i];
        if (test_suits(v, &plain, lap_group_size(group)) && (!test_setting.quick || i % 3 == 1))
            try_often(group, v, &plain, &shape);
        if (v->kind == LAP_GEMM && test_suits(v, &turned, lap_group_size(group)))
            try_often(group, v, &turned, &even);
    }
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
