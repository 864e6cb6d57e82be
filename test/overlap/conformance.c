/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite: what every operator, method, device and transport must get right, in
 * one type. See suite.h for how it is started, and flavours.c for types, layouts and epilogues,
 * and for bits and bounds.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "overlap/op.h"
#include "suite.h"
#include "tap.h"

/*
 * Ragged everything: rows, features and k that do not divide, fewer of each than ranks, capacity 1.
 */
static void test_shapes(lap_group_t *group)
{
    const size_t size = (size_t)lap_group_size(group);
    const test_flavour_t plain = test_plain();
    const test_shape_t shapes[] = {{8 * size, 4 * size, 16},
                                   {5 * size + 1, 2 * size + 1, 7},
                                   {2 * size - 1, 3, 2 * size + 3},
                                   {1, 1, 1},
                                   {size + 2, 20, 3}};
    char text[64];
    const size_t first = test_setting.quick ? 1 : 0; /* then only what is ragged and small */
    const size_t end = test_setting.quick ? 3 : sizeof(shapes) / sizeof(shapes[0]);
    for (size_t s = first; s < end; s++) {
        const test_shape_t *shape = &shapes[s];
        lap_buffer_t *buffer = test_buffer(group, &plain, 1, shape);
        for (int i = 0; i < TEST_METHODS && buffer; i++) {
            const test_method_t *v = &test_methods[i];
            if (!test_suits(v, &plain, (int)size))
                continue;
            lap_op_t *op = test_op(group, buffer, v, &plain, shape);
            if (!op)
                continue;
            const size_t actives[] = {shape->m, shape->m / 2, size - 1, 1, 0, shape->m};
            const size_t nactives = sizeof(actives) / sizeof(actives[0]);
            for (size_t a = 0; a < nactives; a += test_setting.quick ? 2 : 1) {
                size_t m = actives[a] > shape->m ? shape->m : actives[a];
                const uint64_t seed = 100 * s + a;
                double exact = test_run(op, test_call(group, v, &plain, shape, m, seed, true));
                double error = test_run(op, test_call(group, v, &plain, shape, m, seed, false));
                tap_ok(exact == 0 && error <= 1,
                       "%s m %zu of %zu, n %zu, k %zu: exact %g, random %g",
                       test_label(v, &plain, text, sizeof(text)), m, shape->m, shape->n, shape->k,
                       exact, error);
            }
            lap_op_destroy(op);
        }
        lap_buffer_destroy(buffer);
    }
}

/*
 * Many calls back to back, fresh data and another m each time, every result looked at. How calls
 * follow one another does not hang on the type: one of them gets most of the calls, and many ranks,
 * which are slow on few cores, get less.
 */
static void test_back_to_back(lap_group_t *group)
{
    const test_flavour_t plain = test_plain();
    const bool many = test_setting.dtype == LAP_FLOAT32 && lap_group_size(group) <= 8;
    const uint64_t calls = (uint64_t)test_times(many ? 300 : 60);
    const test_shape_t shape = {3 * (size_t)lap_group_size(group) + 2, 9, 6};
    char text[64];
    for (int i = 0; i < TEST_METHODS; i++) {
        const test_method_t *v = &test_methods[i];
        if (!test_suits(v, &plain, lap_group_size(group)))
            continue;
        lap_buffer_t *buffer = test_buffer(group, &plain, 1, &shape);
        lap_op_t *op = test_op(group, buffer, v, &plain, &shape);
        int wrong = 0;
        for (uint64_t call = 0; call < calls && op; call++) {
            const size_t m = call % 7 == 3 ? call % (shape.m + 1) : shape.m;
            wrong += test_run(op, test_call(group, v, &plain, &shape, m, 1000 + call, true)) != 0;
        }
        tap_ok(op && wrong == 0, "%s: %d calls back to back, %d wrong",
               test_label(v, &plain, text, sizeof(text)), (int)calls, wrong);
        lap_op_destroy(op);
        lap_buffer_destroy(buffer);
    }
}

/*
 * All operators on one buffer, called in a random order that all ranks share, with delays at random
 * steps.
 */
static void test_mixture(lap_group_t *group, uint64_t chaos, int calls)
{
    const test_flavour_t plain = test_plain();
    const test_shape_t shape = {2 * (size_t)lap_group_size(group) + 3, 12, 5};
    lap_buffer_t *buffer = test_buffer(group, &plain, 1, &shape);
    lap_op_t *ops[TEST_METHODS] = {NULL};
    for (int i = 0; i < TEST_METHODS && buffer; i++)
        if (test_suits(&test_methods[i], &plain, lap_group_size(group)))
            ops[i] = test_op(group, buffer, &test_methods[i], &plain, &shape);
    int wrong = 0, made = 0;
    for (int call = 0; call < calls; call++) {
        int i = (int)(tap_random(chaos + 7, (uint64_t)call) % TEST_METHODS);
        size_t m = tap_random(chaos + 8, (uint64_t)call) % (shape.m + 1);
        for (int tried = 0; tried < TEST_METHODS && !ops[i]; tried++)
            i = (i + 1) % TEST_METHODS;
        if (!ops[i])
            break;
        if (chaos)
            lap_op_set_chaos(ops[i], chaos + (uint64_t)lap_group_rank(group) * 977 + 1);
        wrong += test_run(ops[i], test_call(group, &test_methods[i], &plain, &shape, m,
                                            5000 + (uint64_t)call, true)) != 0;
        made++;
    }
    tap_ok(made == calls && wrong == 0, "a mixture of %d calls%s on one buffer, %d wrong", made,
           chaos ? " with random delays" : "", wrong);
    for (int i = 0; i < TEST_METHODS; i++)
        lap_op_destroy(ops[i]);
    lap_buffer_destroy(buffer);
}

/* Split-phase calls: two operators in flight at once, ended in either order. */
static void test_in_flight(lap_group_t *group)
{
    const test_flavour_t plain = test_plain();
    const test_shape_t shape = {4 * (size_t)lap_group_size(group) + 1, 8, 8};
    const test_method_t methods[2] = {{LAP_AG_GEMM, "ring", 0, 0, 0, 0},
                                      {LAP_GEMM_RS, "ring", 0, 0, 0, 0}};
    lap_buffer_t *buffer = test_buffer(group, &plain, 1, &shape);
    lap_op_t *ops[2] = {test_op(group, buffer, &methods[0], &plain, &shape),
                        test_op(group, buffer, &methods[1], &plain, &shape)};
    double worst = 0;
    for (uint64_t round = 0; round < 20 && ops[0] && ops[1]; round++) {
        test_call_t calls[2];
        for (int i = 0; i < 2; i++) {
            calls[i] = test_call(group, &methods[i], &plain, &shape, shape.m, 300 + round, true);
            test_call_init(&calls[i]);
            if (test_call_begin(ops[i], &calls[i]) != LAP_OK)
                worst = INFINITY;
        }
        if (lap_op_begin(ops[0], &calls[0].args) != LAP_ERR_BUSY)
            worst = INFINITY;
        for (int i = 0; i < 2; i++) {
            int which = round % 2 ? 1 - i : i;
            if (test_call_end(ops[which], &calls[which]) != LAP_OK)
                worst = INFINITY;
        }
        for (int i = 0; i < 2; i++) {
            worst = fmax(worst, test_call_error(&calls[i]));
            test_call_clear(&calls[i]);
        }
    }
    tap_ok(worst == 0, "two calls in flight on one buffer, ended in either order");
    lap_op_destroy(ops[0]);
    lap_op_destroy(ops[1]);
    lap_buffer_destroy(buffer);
}

/* Operators on subgroups, at the same time in all of them. */
static void test_groups(lap_group_t *world)
{
    lap_group_t *half = NULL;
    const int rank = lap_group_rank(world);
    if (!tap_success(lap_group_split(world, rank % 2, -rank, &half), "odd and even ranks part"))
        return;
    const test_flavour_t plain = test_plain();
    const test_shape_t shape = {11, 6, 4};
    double worst = 0;
    for (int i = 0; i < TEST_METHODS; i++) {
        const test_method_t *v = &test_methods[i];
        if (!test_suits(v, &plain, lap_group_size(half)))
            continue;
        lap_op_t *op = test_op(half, NULL, v, &plain, &shape);
        for (uint64_t call = 0; call < 3; call++)
            worst =
                fmax(worst,
                     op ? test_run(op, test_call(half, v, &plain, &shape, shape.m, 40 + call, true))
                        : INFINITY);
        lap_op_destroy(op);
    }
    tap_ok(worst == 0, "all methods in a group of %d of %d ranks", lap_group_size(half),
           lap_group_size(world));
    lap_group_destroy(half);
}

static void suite(lap_group_t *group)
{
    test_shapes(group);
    test_back_to_back(group);
    test_mixture(group, 0, test_times(200));
    test_mixture(group, 1 + (uint64_t)lap_group_size(group), test_times(60));
    test_in_flight(group);
    test_groups(group);
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
