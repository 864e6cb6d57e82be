/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flavours: types, layouts, epilogues and accumulation, crossed with every method of every kind.
 * See suite.h for how it is started, and conformance.c for what has nothing to do with them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "overlap/op.h"
#include "suite.h"
#include "tap.h"

#define F32 LAP_FLOAT32
#define F16 LAP_FLOAT16
#define BF16 LAP_BFLOAT16
#define E4M3 LAP_FLOAT8_E4M3
#define E5M2 LAP_FLOAT8_E5M2
#define SAME LAP_DTYPE_DEFAULT
#define BIAS LAP_EPILOGUE_BIAS
#define GELU LAP_EPILOGUE_GELU
#define DGELU LAP_EPILOGUE_DGELU
#define GRAD LAP_EPILOGUE_BIAS_GRAD

/*
 * Chosen so that every type is there in every role that it may have (a, b, d, what travels, y,
 * vectors, aux), every combination of epilogues, each with and without accumulation somewhere, and
 * each layout with wide and narrow types. test_roles counts.
 */
static const test_flavour_t flavours[] = {
    /* name, a, b, out, wire, y, layout, epilogue, accumulate, vector, aux, no_aux, moves */
    {"f32 bias", F32, F32, F32, BF16, F32, LAP_FORWARD, BIAS, false, F32, F32, false, true},
    {"f32 gelu", F32, F32, F32, F32, SAME, LAP_DGRAD, GELU, false, F32, BF16, false, false},
    {"f32 dgelu grad", F32, F32, BF16, F32, BF16, LAP_DGRAD, DGELU | GRAD, false, F32, F32, false,
     true},
    {"f32 all gelu", F32, F32, F16, F16, SAME, LAP_FORWARD, BIAS | GELU | GRAD, true, BF16, F32,
     false, false},
    {"f16 bias gelu", F16, F16, F16, E5M2, F16, LAP_FORWARD, BIAS | GELU, false, F16, F16, true,
     true},
    {"f16 grad", F16, F16, F32, F16, SAME, LAP_DGRAD, GRAD, true, F32, F32, false, false},
    {"f16 dgelu", F16, F16, F16, SAME, SAME, LAP_FORWARD, DGELU, true, F32, BF16, false, false},
    {"bf16 bias", BF16, BF16, E4M3, BF16, F32, LAP_FORWARD, BIAS, true, BF16, F32, false, true},
    {"bf16 bias dgelu", BF16, BF16, BF16, E4M3, SAME, LAP_DGRAD, BIAS | DGELU, false, F16, F16,
     false, true},
    {"bf16 all dgelu", BF16, SAME, E5M2, F32, SAME, LAP_FORWARD, BIAS | DGELU | GRAD, true, F16,
     BF16, false, false},
    {"bf16 plain", BF16, SAME, SAME, SAME, SAME, LAP_DGRAD, 0, true, F32, F32, false, false},
    {"e4m3 plain", E4M3, SAME, SAME, SAME, SAME, LAP_FORWARD, 0, false, F32, F32, false, true},
    {"e4m3 e5m2 gelu", E4M3, E5M2, F32, E4M3, F32, LAP_FORWARD, GELU, true, F32, F32, false, true},
    {"e4m3 gelu grad", E4M3, E4M3, E4M3, BF16, SAME, LAP_DGRAD, GELU | GRAD, false, BF16, F16,
     false, false},
    {"e5m2 e4m3 dgelu grad", E5M2, E4M3, E5M2, E5M2, BF16, LAP_DGRAD, DGELU | GRAD, true, BF16, F16,
     false, true},
    {"e5m2 bias grad", E5M2, SAME, F16, F16, SAME, LAP_FORWARD, BIAS | GRAD, true, F32, F32, false,
     true},
    {"f32 wgrad", F32, F32, F32, F16, F32, LAP_WGRAD, GRAD, true, F32, F32, false, true},
    {"bf16 wgrad", BF16, BF16, F32, BF16, BF16, LAP_WGRAD, GRAD, true, F32, F32, false, true},
    {"e5m2 e4m3 wgrad", E5M2, E4M3, BF16, E4M3, F16, LAP_WGRAD, GRAD, false, F16, F32, false, true},
    {"f16 wgrad", F16, F16, E5M2, E5M2, F32, LAP_WGRAD, 0, false, F32, F32, false, true},
};
enum { FLAVOURS = sizeof(flavours) / sizeof(flavours[0]) };

/* Choosing a method has tests of its own, and costs time. */
static bool suits(const test_method_t *method, const test_flavour_t *flavour, lap_group_t *group)
{
    return strcmp(method->method, "auto") != 0 &&
           test_suits(method, flavour, lap_group_size(group));
}

/* The same of pair number i, of which a quick suite takes one in four: others for each flavour. */
static bool is_taken(int i, lap_group_t *group)
{
    const int flavour = i / TEST_METHODS, method = i % TEST_METHODS;
    return (!test_setting.quick || (flavour + method) % 4 == 0) &&
           suits(&test_methods[method], &flavours[flavour], group);
}

/* What the table promises. */
static void test_roles(void)
{
    enum { ROLES = 7, TYPES = 5 };
    int count[ROLES][TYPES] = {{0}}, epilogues[16] = {0}, layouts[3] = {0}, missing = 0;
    for (int i = 0; i < FLAVOURS; i++) {
        const test_flavour_t *f = &flavours[i];
        const test_method_t rs = {LAP_BULK_RS, "serial", 0, 0, 0, 0};
        const test_shape_t shape = {1, 1, 1};
        const lap_op_desc_t desc = test_describe(&rs, f, &shape);
        const test_types_t types = test_types(&desc);
        const lap_dtype_t dtypes[ROLES] = {types.a,
                                           types.b,
                                           types.out,
                                           types.wire,
                                           f->moves ? types.y : types.a,
                                           f->epilogue & (BIAS | GRAD) ? f->vector : types.a,
                                           f->epilogue & (GELU | DGELU) ? f->aux : types.a};
        const int roles = ROLES;
        for (int role = 0; role < roles; role++)
            count[role][dtypes[role]]++;
        epilogues[f->epilogue]++;
        layouts[f->layout]++;
    }
    for (int role = 0; role < ROLES; role++)
        for (int type = 0; type < (role < 4 ? TYPES : TYPES - 2); type++)
            missing += count[role][type] == 0;
    for (lap_epilogue_t e = 0; e < 16; e++)
        missing += epilogues[e] == 0 && (e & (GELU | DGELU)) != (GELU | DGELU);
    missing += !layouts[LAP_FORWARD] || !layouts[LAP_DGRAD] || !layouts[LAP_WGRAD];
    tap_ok(missing == 0, "every type in every role and every epilogue are there: %d are not",
           missing);
}

/* All of it with several numbers of rows, ragged and fewer than ranks. */
static void test_space(lap_group_t *group)
{
    const size_t size = (size_t)lap_group_size(group);
    const test_shape_t shapes[] = {{3 * size + 1, 2 * size + 1, 7}, {2 * size - 1, 3, size + 9}};
    char text[128];
    for (size_t s = test_setting.quick ? 1 : 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        const test_shape_t *shape = &shapes[s];
        lap_buffer_t *buffer = test_buffer(group, flavours, FLAVOURS, shape);
        for (int i = 0; buffer && i < FLAVOURS * TEST_METHODS; i++) {
            const test_flavour_t *f = &flavours[i / TEST_METHODS];
            const test_method_t *v = &test_methods[i % TEST_METHODS];
            lap_op_t *op = is_taken(i, group) ? test_op(group, buffer, v, f, shape) : NULL;
            if (!op)
                continue;
            const size_t rows[] = {shape->m, size - 1, 0, 1, shape->m};
            double exact = 0, random = 0;
            for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
                const uint64_t seed = (uint64_t)i * 8 + r;
                const test_call_t call = test_call(group, v, f, shape, rows[r], seed, r % 2 == 0);
                double *worst = call.exact ? &exact : &random;
                *worst = fmax(*worst, test_run(op, call));
            }
            test_call_t call = test_call(group, v, f, shape, shape->m, (uint64_t)i, false);
            random = fmax(random, test_run(op, call));
            tap_ok(exact <= 1 && random <= 1, "%s [%zu, %zu, %zu]: exact %g, random %g",
                   test_label(v, f, text, sizeof(text)), shape->m, shape->n, shape->k, exact,
                   random);
            lap_op_destroy(op);
        }
        lap_buffer_destroy(buffer);
    }
}

/*
 * FP8 of sizes, strides and addresses that tensor cores take, on every rank: the shapes above are
 * too odd for them.
 */
static void test_tensor_cores(lap_group_t *group)
{
    const size_t size = (size_t)lap_group_size(group);
    const test_shape_t shape = {16 * size, 16 * size, 32 * size};
    double exact = 0, random = 0;
    int calls = 0;
    for (int i = 0; i < FLAVOURS * TEST_METHODS && test_device(group); i++) {
        const test_flavour_t *f = &flavours[i / TEST_METHODS];
        const test_method_t *v = &test_methods[i % TEST_METHODS];
        if (!lap_dtype_is_fp8(f->a) || i % 3 != 0 || !suits(v, f, group) ||
            v->kind == LAP_EXTERNAL_AG)
            continue;
        lap_op_t *op = test_op(group, NULL, v, f, &shape);
        for (uint64_t seed = 0; op && seed < 6; seed += 3) { /* multiples of 3 have no gaps */
            test_call_t call = test_call(group, v, f, &shape, shape.m, seed, seed == 0);
            double *worst = call.exact ? &exact : &random;
            *worst = fmax(*worst, test_run(op, call));
            calls++;
        }
        lap_op_destroy(op);
    }
    if (test_device(group))
        tap_ok(calls > 0 && exact <= 1 && random <= 1,
               "FP8 of sizes for tensor cores: %d calls, exact %g, random %g", calls, exact,
               random);
}

/* What is too large for an 8-bit type becomes its largest number, at d and on the way there. */
static void test_saturation(lap_group_t *group)
{
    const test_shape_t shape = {2 * (size_t)lap_group_size(group) + 1, 5, 9};
    double worst = 0;
    int calls = 0;
    for (int i = 0; i < FLAVOURS * TEST_METHODS; i++) {
        const test_flavour_t *f = &flavours[i / TEST_METHODS];
        const test_method_t *v = &test_methods[i % TEST_METHODS];
        if (!is_taken(i, group) || f->epilogue & (GELU | DGELU) ||
            !(lap_dtype_is_fp8(f->out) || lap_dtype_is_fp8(f->wire)))
            continue;
        lap_op_t *op = test_op(group, NULL, v, f, &shape);
        test_call_t call = test_call(group, v, f, &shape, shape.m, (uint64_t)i, true);
        call.loud = true;
        worst = fmax(worst, op ? test_run(op, call) : INFINITY);
        calls++;
        lap_op_destroy(op);
    }
    tap_ok(calls > 0 && worst == 0, "FP8 saturates: %d calls", calls);
}

/* The bounds are not empty: one element of any result just beyond its bound is found. */
static void test_bounds(lap_group_t *group)
{
    const test_shape_t shape = {2 * (size_t)lap_group_size(group) + 1, 11, 40};
    char text[128];
    for (int i = 0; i < FLAVOURS * TEST_METHODS; i++) {
        const test_flavour_t *f = &flavours[i / TEST_METHODS];
        const test_method_t *v = &test_methods[i % TEST_METHODS];
        if (!suits(v, f, group) || strcmp(v->method, "serial") != 0 || v->gather ||
            !test_multiplies(v->kind))
            continue;
        lap_op_t *op = test_op(group, NULL, v, f, &shape);
        test_call_t call = test_call(group, v, f, &shape, shape.m, (uint64_t)i, false);
        test_call_init(&call);
        const double before =
            op && test_call_run(op, &call) == LAP_OK ? test_call_error(&call) : INFINITY;
        double least = INFINITY;
        for (int which = TEST_RESULTS - 1; which >= 0; which--)
            if (test_call_spoil(&call, (test_result_t)which))
                least = fmin(least, test_result_error(&call, (test_result_t)which));
        tap_ok(before <= 1 && least > 1, "%s: an error of %g of the bound passes, one of %g fails",
               test_label(v, f, text, sizeof(text)), before, least);
        test_call_clear(&call);
        lap_op_destroy(op);
    }
}

/* The bytes of all results of a call, one after the other; the caller frees them. */
static unsigned char *bytes_of(const test_call_t *call, size_t *bytes_p)
{
    const lap_op_args_t *args = &call->args;
    const lap_tensor_t *const all[] = {&args->d, &args->aux, &args->bias_grad, &args->y};
    size_t bytes = 0;
    unsigned char *memory = NULL;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const size_t more = all[i]->rows * all[i]->stride * lap_dtype_size(all[i]->dtype);
        unsigned char *grown = more ? realloc(memory, bytes + more) : NULL;
        if (!grown)
            continue;
        memory = grown;
        memcpy(memory + bytes, all[i]->data, more);
        bytes += more;
    }
    *bytes_p = bytes;
    return memory;
}

/* Whether all ranks have the same bytes. */
static bool same_everywhere(lap_group_t *group, const unsigned char *bytes, size_t count)
{
    uint64_t sum = count, all[64];
    for (size_t i = 0; i < count; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    if (lap_group_allgather(group, &sum, sizeof(sum), all) != LAP_OK)
        return false;
    for (int r = 0; r < lap_group_size(group); r++)
        if (all[r] != sum)
            return false;
    return true;
}

/*
 * Every overlapped result has the bits of the serial one on a device that promises so, and an
 * all-reduce gives every rank the same bits on any.
 */
static void test_bits(lap_group_t *group)
{
    const test_shape_t shape = {3 * (size_t)lap_group_size(group) + 2, 13, 29};
    unsigned char *serial = NULL;
    size_t serial_bytes = 0;
    int differ = 0, wander = 0, compared = 0;
    char text[128];
    for (int i = 0; i < FLAVOURS * TEST_METHODS; i++) {
        const test_flavour_t *f = &flavours[i / TEST_METHODS];
        const test_method_t *v = &test_methods[i % TEST_METHODS];
        const bool ar = v->kind == LAP_GEMM_AR;
        if (!suits(v, f, group) || (!test_setting.bits_promised && !ar))
            continue;
        lap_op_t *op = test_op(group, NULL, v, f, &shape);
        test_call_t call = test_call(group, v, f, &shape, shape.m, 24, false);
        test_call_init(&call);
        size_t bytes = 0;
        unsigned char *result =
            op && test_call_run(op, &call) == LAP_OK ? bytes_of(&call, &bytes) : NULL;
        wander += ar && !same_everywhere(group, result, bytes);
        if (strcmp(v->method, "serial") == 0 && !v->gather) {
            free(serial);
            serial = result;
            serial_bytes = bytes;
        } else {
            const bool same =
                result && serial && bytes == serial_bytes && memcmp(result, serial, bytes) == 0;
            if (!same && test_setting.bits_promised && differ++ == 0)
                tap_note("%s differs", test_label(v, f, text, sizeof(text)));
            compared++;
            free(result);
        }
        test_call_clear(&call);
        lap_op_destroy(op);
    }
    free(serial);
    tap_ok(compared > 0 && differ == 0, "%d results, %d without the bits of serial", compared,
           differ);
    tap_ok(wander == 0, "all-reduce gives all ranks the same bits, but for %d", wander);
}

/* All flavours in turn on one buffer, each with random methods, with delays at random steps. */
static void test_mixture(lap_group_t *group, uint64_t chaos, int calls)
{
    const test_shape_t shape = {2 * (size_t)lap_group_size(group) + 3, 6, 5};
    enum { OPS = 40 };
    lap_op_t *ops[OPS] = {NULL};
    const test_method_t *methods[OPS];
    lap_buffer_t *buffer = test_buffer(group, flavours, FLAVOURS, &shape);
    for (int i = 0; i < OPS && buffer; i++) {
        const test_flavour_t *f = &flavours[i % FLAVOURS];
        uint64_t pick = tap_random(chaos + 1, (uint64_t)i);
        while (!suits(&test_methods[pick % TEST_METHODS], f, group))
            pick++;
        methods[i] = &test_methods[pick % TEST_METHODS];
        ops[i] = test_op(group, buffer, methods[i], f, &shape);
    }
    int wrong = 0, made = 0;
    for (int call = 0; call < calls; call++) {
        const int i = (int)(tap_random(chaos + 2, (uint64_t)call) % OPS);
        const size_t m = tap_random(chaos + 3, (uint64_t)call) % (shape.m + 1);
        if (!ops[i])
            continue;
        if (chaos)
            lap_op_set_chaos(ops[i], chaos + (uint64_t)lap_group_rank(group) * 977 + 1);
        wrong += test_run(ops[i], test_call(group, methods[i], &flavours[i % FLAVOURS], &shape, m,
                                            7000 + (uint64_t)call, call % 2)) > 1;
        made++;
    }
    tap_ok(made == calls && wrong == 0, "a mixture of %d calls%s on one buffer, %d wrong", made,
           chaos ? " with random delays" : "", wrong);
    for (int i = 0; i < OPS; i++)
        lap_op_destroy(ops[i]);
    lap_buffer_destroy(buffer);
}

/* Two calls in flight, ended in either order; whether they share a buffer. */
static double run_pair(lap_group_t *group, const test_method_t *const methods[2],
                       const test_flavour_t *const of[2], bool shared, uint64_t seed)
{
    const test_shape_t shape = {3 * (size_t)lap_group_size(group) + 1, 7, 8};
    lap_buffer_t *buffer = shared ? test_buffer(group, flavours, FLAVOURS, &shape) : NULL;
    lap_op_t *ops[2];
    test_call_t calls[2];
    double worst = 0;
    for (int i = 0; i < 2; i++) {
        ops[i] = test_op(group, buffer, methods[i], of[i], &shape);
        calls[i] = test_call(group, methods[i], of[i], &shape, shape.m, seed + (uint64_t)i, true);
        test_call_init(&calls[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (ops[i])
            lap_op_set_chaos(ops[i], seed + (uint64_t)lap_group_rank(group) * 31 + 1);
        if (!ops[i] || test_call_begin(ops[i], &calls[i]) != LAP_OK)
            worst = INFINITY;
    }
    for (int i = 0; i < 2; i++)
        if (test_call_end(ops[seed % 2 ? 1 - i : i], &calls[seed % 2 ? 1 - i : i]) != LAP_OK)
            worst = INFINITY;
    for (int i = 0; i < 2; i++) {
        worst = fmax(worst, test_call_error(&calls[i]));
        test_call_clear(&calls[i]);
        lap_op_destroy(ops[i]);
    }
    lap_buffer_destroy(buffer);
    return worst;
}

/* An all-gather during every kind of call that has begun, and any two kinds side by side. */
static void test_in_flight(lap_group_t *group)
{
    double external = 0, worst = 0;
    char texts[2][128];
    for (int i = 0; i < TEST_METHODS; i += test_setting.quick ? 5 : 1) {
        const test_flavour_t *f = &flavours[(i * 3) % FLAVOURS], *plain = &flavours[11];
        if (!suits(&test_methods[i], f, group))
            f = plain;
        if (!suits(&test_methods[i], f, group))
            continue;
        for (int j = 0; j < TEST_METHODS; j++) {
            const test_method_t *const pair[2] = {&test_methods[i], &test_methods[j]};
            const bool during = !test_multiplies(pair[1]->kind) && (i + j) % 2 == 0;
            if (!suits(pair[1], plain, group) || (!during && (i + 5 * j) % 13 != 0))
                continue;
            const test_flavour_t *const of[2] = {f, plain};
            const double error =
                run_pair(group, pair, of, j % 3 == 0, 50 * (uint64_t)i + (uint64_t)j);
            if (error > 1)
                tap_note("%s, then %s", test_label(pair[0], f, texts[0], sizeof(texts[0])),
                         test_label(pair[1], plain, texts[1], sizeof(texts[1])));
            external = fmax(external, during ? error : 0);
            worst = fmax(worst, error);
        }
    }
    tap_ok(external <= 1, "a collective during a call that has begun, on its buffer or another");
    tap_ok(worst <= 1, "two calls in flight on one buffer or two, ended in either order");
}

/* An operator in the background, or aside, on a buffer that others like it may share. */
static lap_op_t *other_op(lap_group_t *group, lap_buffer_t *buffer, const test_method_t *method,
                          const test_shape_t *shape, bool aside)
{
    lap_op_desc_t desc = test_describe(method, &flavours[11], shape);
    lap_op_t *op = NULL;
    desc.buffer = buffer;
    desc.background = !aside;
    desc.aside = aside;
    tap_success(lap_op_create(group, &desc, &op), "%s %s", lap_op_kind_name(method->kind),
                aside ? "aside" : "in the background");
    return op;
}

/*
 * Calls in the background, or aside, go on with those that are not, begun in turns and ended in another
 * order: first all that are like others.
 */
static void test_others(lap_group_t *group, bool aside)
{
    enum { OPS = 8, ROUNDS = 6 };
    static const test_method_t methods[OPS] = {
        {LAP_AG_GEMM, "ring", 0, 0, 0, 0},     {LAP_EXTERNAL_RS, "direct", 0, 0, 0, 0},
        {LAP_GEMM_RS, "pipeline", 0, 0, 0, 0}, {LAP_EXTERNAL_AG, "direct", 0, 0, 0, 0},
        {LAP_BULK_AG, "ring", 0, 0, 0, 0},     {LAP_EXTERNAL_RS, "direct", 0, 0, 0, 0},
        {LAP_BULK_RS, "direct", 0, 0, 0, 0},   {LAP_EXTERNAL_AG, "ring", 0, 0, 0, 0},
    };
    const test_shape_t shape = {3 * (size_t)lap_group_size(group) + 1, 7, 8};
    lap_buffer_t *buffers[2] = {test_buffer(group, flavours, FLAVOURS, &shape),
                                test_buffer(group, flavours, FLAVOURS, &shape)};
    lap_op_t *ops[OPS], *wrong = NULL;
    double worst = 0;
    for (int i = 0; i < OPS; i++)
        ops[i] = i % 2 ? other_op(group, buffers[1], &methods[i], &shape, aside)
                       : test_op(group, buffers[0], &methods[i], &flavours[11], &shape);
    for (int round = 0; round < ROUNDS; round++) {
        test_call_t calls[OPS];
        for (int i = 0; i < OPS; i++) {
            const uint64_t seed = 400 + (uint64_t)(round * OPS + i);
            calls[i] = test_call(group, &methods[i], &flavours[11], &shape, shape.m, seed, true);
            test_call_init(&calls[i]);
            lap_op_set_chaos(ops[i], round ? seed + (uint64_t)lap_group_rank(group) * 31 : 0);
            if (test_call_begin(ops[i], &calls[i]) != LAP_OK)
                worst = INFINITY;
        }
        for (int i = 0; i < OPS; i++) {
            const int at = i < OPS / 2 ? 2 * i : 2 * (i - OPS / 2) + 1;
            if (test_call_end(ops[at], &calls[at]) != LAP_OK)
                worst = INFINITY;
            worst = fmax(worst, test_call_error(&calls[at]));
            test_call_clear(&calls[at]);
        }
    }
    tap_ok(worst <= 1, "calls %s with those that are not", aside ? "aside" : "in the background");
    lap_op_desc_t desc = test_describe(&methods[0], &flavours[11], &shape);
    desc.buffer = buffers[1];
    desc.aside = aside;
    tap_failure(lap_op_create(group, &desc, &wrong), LAP_ERR_INVALID,
                aside ? "aside is 1" : "background is 0, expected 1", NULL);
    desc = test_describe(&methods[1], &flavours[11], &shape);
    desc.background = desc.aside = 1;
    tap_failure(lap_op_create(group, &desc, &wrong), LAP_ERR_INVALID,
                "aside is 1 in the background, expected 0", NULL);
    for (int i = 0; i < OPS; i++)
        lap_op_destroy(ops[i]);
    lap_buffer_destroy(buffers[0]);
    lap_buffer_destroy(buffers[1]);
}

static void suite(lap_group_t *group)
{
    test_roles();
    test_space(group);
    test_tensor_cores(group);
    test_saturation(group);
    test_bounds(group);
    test_bits(group);
    test_mixture(group, 0, test_times(200));
    test_mixture(group, 1 + (uint64_t)lap_group_size(group), test_times(60));
    test_in_flight(group);
    test_others(group, false);
    test_others(group, true);
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
