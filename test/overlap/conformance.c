/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite: what every operator, method, device and transport must get right. Ranks
 * are the processes of the world that the environment describes, or threads with --threads P;
 * --device, --dtype and --link choose the rest. A new backend gets all of it by one more line in
 * the list of tests.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "overlap/op.h"
#include "tap.h"
#include "transport/transport.h"

static lap_link_t link_options; /* these are set once in main */
static lap_dtype_t dtype;
static bool in_place = true; /* whether the transport has what the methods that need it need */

/* A method with its knobs. */
typedef struct variant {
    lap_op_kind_t kind;
    const char *method;
    int aggregate;
    size_t num_splits;
    size_t block_rows;
    int gather;
} variant_t;

static const variant_t variants[] = {
    {LAP_AG_GEMM, "serial", 0, 0, 0, 0},   {LAP_AG_GEMM, "ring", 0, 0, 0, 0},
    {LAP_AG_GEMM, "ring", 1, 0, 0, 0},     {LAP_AG_GEMM, "direct", 0, 0, 0, 0},
    {LAP_AG_GEMM, "fused", 0, 0, 0, 0},    {LAP_AG_GEMM, "fused", 0, 0, 3, 0},
    {LAP_AG_GEMM, "serial", 0, 0, 0, 1},   {LAP_AG_GEMM, "ring", 0, 0, 0, 1},
    {LAP_AG_GEMM, "ring", 1, 0, 0, 1},     {LAP_AG_GEMM, "direct", 0, 0, 0, 1},
    {LAP_AG_GEMM, "fused", 0, 0, 2, 1},    {LAP_AG_GEMM, "auto", 0, 0, 0, 0},
    {LAP_AG_GEMM, "auto", 0, 0, 0, 1},     {LAP_GEMM_RS, "serial", 0, 0, 0, 0},
    {LAP_GEMM_RS, "ring", 0, 0, 0, 0},     {LAP_GEMM_RS, "pipeline", 0, 0, 0, 0},
    {LAP_GEMM_RS, "pipeline", 0, 3, 0, 0}, {LAP_GEMM_RS, "fused", 0, 0, 0, 0},
    {LAP_GEMM_RS, "fused", 0, 0, 3, 0},    {LAP_GEMM_RS, "auto", 0, 0, 0, 0},
    {LAP_GEMM_AR, "serial", 0, 0, 0, 0},   {LAP_GEMM_AR, "pipeline", 0, 0, 0, 0},
    {LAP_GEMM_AR, "pipeline", 0, 3, 0, 0}, {LAP_GEMM_AR, "direct", 0, 0, 0, 0},
    {LAP_GEMM_AR, "fused", 0, 0, 0, 0},    {LAP_GEMM_AR, "fused", 0, 0, 3, 0},
    {LAP_GEMM_AR, "auto", 0, 0, 0, 0},
};
enum { VARIANTS = sizeof(variants) / sizeof(variants[0]) };

static bool applies(const variant_t *v, int size)
{
    if (strcmp(v->method, "fused") == 0 && !in_place)
        return false;
    return !v->aggregate || size % 2 == 0;
}

static const char *label(const variant_t *v, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s/%s%s%s%s", lap_op_kind_name(v->kind), v->method,
             v->aggregate ? "+aggregate" : "", v->num_splits || v->block_rows ? "+knob" : "",
             v->gather ? "+gather" : "");
    return text;
}

static lap_op_desc_t describe(const variant_t *v, size_t m, size_t n, size_t k)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = v->kind;
    desc.dtype = dtype;
    desc.m = m;
    desc.n = n;
    desc.k = k;
    desc.method = v->method;
    desc.aggregate = v->aggregate;
    desc.num_splits = v->num_splits;
    desc.block_rows = v->block_rows;
    desc.gather_input = v->gather;
    return desc;
}

/* A buffer large enough for every variant at this shape, with the suite's link. */
static lap_buffer_t *shared_buffer(lap_group_t *group, size_t m, size_t n, size_t k)
{
    const int size = lap_group_size(group);
    size_t most = 1, signals = 1;
    for (int i = 0; i < VARIANTS; i++) {
        size_t bytes, nsignals;
        lap_op_desc_t desc = describe(&variants[i], m, n, k);
        if (!applies(&variants[i], size) ||
            !(lap_op_buffer_size(&desc, size, &bytes, &nsignals) == LAP_OK))
            continue;
        most = bytes > most ? bytes : most;
        signals = nsignals > signals ? nsignals : signals;
    }
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.link = link_options;
    lap_buffer_t *buffer = NULL;
    tap_success(lap_buffer_create(group, most, signals, &options, &buffer), "a buffer of %zu bytes",
                most);
    return buffer;
}

static lap_op_t *make_op(lap_group_t *group, lap_buffer_t *buffer, const variant_t *v, size_t m,
                         size_t n, size_t k)
{
    char text[64];
    lap_op_desc_t desc = describe(v, m, n, k);
    desc.buffer = buffer;
    lap_op_t *op = NULL;
    lap_status_t status = lap_op_create(group, &desc, &op);
    if (status != LAP_OK)
        tap_success(status, "%s can be made", label(v, text, sizeof(text)));
    return op;
}

/* Runs once on fresh data and returns the error over its bound; infinity when the call fails. */
static double run_once(lap_op_t *op, lap_group_t *group, const variant_t *v, size_t m, size_t n,
                       size_t k, uint64_t seed, bool exact)
{
    test_call_t call = {
        .kind = v->kind,
        .dtype = dtype,
        .m = m,
        .n = n,
        .k = k,
        .rank = lap_group_rank(group),
        .size = lap_group_size(group),
        .seed = seed,
        .exact = exact,
        .stride_pad = seed % 3,
        .gather = v->gather,
    };
    test_call_init(&call);
    lap_status_t status = lap_op_run(op, &call.args);
    double error = INFINITY;
    if (status == LAP_OK)
        error = test_call_error(&call);
    else
        tap_note("%s", lap_last_error());
    test_call_clear(&call);
    return error;
}

typedef struct shape {
    size_t m, n, k;
} shape_t;

/*
 * Ragged everything: rows, features and k that do not divide, fewer of each than ranks, capacity 1.
 */
static void test_shapes(lap_group_t *group)
{
    const size_t size = (size_t)lap_group_size(group);
    const shape_t shapes[] = {{8 * size, 4 * size, 16},
                              {5 * size + 1, 2 * size + 1, 7},
                              {2 * size - 1, 3, 2 * size + 3},
                              {1, 1, 1},
                              {size + 2, 20, 3}};
    char text[64];
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        const shape_t shape = shapes[s];
        lap_buffer_t *buffer = shared_buffer(group, shape.m, shape.n, shape.k);
        for (int i = 0; i < VARIANTS && buffer; i++) {
            variant_t v = variants[i];
            v.num_splits = v.num_splits > shape.n ? shape.n : v.num_splits;
            if (!applies(&v, (int)size))
                continue;
            lap_op_t *op = make_op(group, buffer, &v, shape.m, shape.n, shape.k);
            if (!op)
                continue;
            const size_t actives[] = {shape.m, shape.m / 2, size - 1, 1, 0, shape.m};
            for (size_t a = 0; a < sizeof(actives) / sizeof(actives[0]); a++) {
                size_t m = actives[a] > shape.m ? shape.m : actives[a];
                double exact = run_once(op, group, &v, m, shape.n, shape.k, 100 * s + a, true);
                double error = run_once(op, group, &v, m, shape.n, shape.k, 100 * s + a, false);
                tap_ok(exact == 0 && error <= 1,
                       "%s m %zu of %zu, n %zu, k %zu: exact %g, random %g",
                       label(&v, text, sizeof(text)), m, shape.m, shape.n, shape.k, exact, error);
            }
            lap_op_destroy(op);
        }
        lap_buffer_destroy(buffer);
    }
}

/* Three hundred calls back to back, fresh data and another m each time, every result looked at. */
static void test_back_to_back(lap_group_t *group)
{
    const size_t m = 3 * (size_t)lap_group_size(group) + 2, n = 9, k = 6;
    char text[64];
    for (int i = 0; i < VARIANTS; i++) {
        if (!applies(&variants[i], lap_group_size(group)))
            continue;
        lap_buffer_t *buffer = shared_buffer(group, m, n, k);
        lap_op_t *op = make_op(group, buffer, &variants[i], m, n, k);
        int wrong = 0;
        for (uint64_t call = 0; call < 300 && op; call++)
            wrong += run_once(op, group, &variants[i], call % 7 == 3 ? call % (m + 1) : m, n, k,
                              1000 + call, true) != 0;
        tap_ok(op && wrong == 0, "%s: 300 calls back to back, %d wrong",
               label(&variants[i], text, sizeof(text)), wrong);
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
    const size_t m = 2 * (size_t)lap_group_size(group) + 3, n = 12, k = 5;
    lap_buffer_t *buffer = shared_buffer(group, m, n, k);
    lap_op_t *ops[VARIANTS] = {NULL};
    for (int i = 0; i < VARIANTS && buffer; i++)
        if (applies(&variants[i], lap_group_size(group)))
            ops[i] = make_op(group, buffer, &variants[i], m, n, k);
    int wrong = 0, made = 0;
    for (int call = 0; call < calls; call++) {
        int i = (int)(tap_random(chaos + 7, (uint64_t)call) % VARIANTS);
        size_t active = tap_random(chaos + 8, (uint64_t)call) % (m + 1);
        if (!ops[i])
            continue;
        if (chaos)
            lap_op_set_chaos(ops[i], chaos + (uint64_t)lap_group_rank(group) * 977 + 1);
        wrong +=
            run_once(ops[i], group, &variants[i], active, n, k, 5000 + (uint64_t)call, true) != 0;
        made++;
    }
    tap_ok(made > calls / 2 && wrong == 0, "a mixture of %d calls%s on one buffer, %d wrong", made,
           chaos ? " with random delays" : "", wrong);
    for (int i = 0; i < VARIANTS; i++)
        lap_op_destroy(ops[i]);
    lap_buffer_destroy(buffer);
}

static void *run_for_bits(lap_group_t *group, const variant_t *v, const shape_t *s, size_t *bytes_p)
{
    lap_op_t *op = make_op(group, NULL, v, s->m, s->n, s->k);
    if (!op)
        return NULL;
    test_call_t call = {.kind = v->kind,
                        .dtype = dtype,
                        .m = s->m,
                        .n = s->n,
                        .k = s->k,
                        .seed = 77,
                        .gather = v->gather,
                        .rank = lap_group_rank(group),
                        .size = lap_group_size(group)};
    test_call_init(&call);
    void *result = NULL;
    if (lap_op_run(op, &call.args) == LAP_OK) {
        *bytes_p = call.args.d.rows * call.args.d.cols * lap_dtype_size(dtype);
        result = call.args.d.data;
        call.args.d.data = NULL;
    }
    test_call_clear(&call);
    lap_op_destroy(op);
    return result;
}

/*
 * Every overlapped result has the bits of the serial one: promised for a device that computes an
 * element the same way however rows and columns are split, which `ref` does and OpenBLAS does not
 * promise.
 */
static void test_bits(lap_group_t *group, bool promised)
{
    const shape_t shape = {7 * (size_t)lap_group_size(group) + 3, 37, 61};
    char text[64];
    void *serial = NULL;
    size_t serial_bytes = 0;
    for (int i = 0; i < VARIANTS; i++) {
        const variant_t *v = &variants[i];
        if (!applies(v, lap_group_size(group)))
            continue;
        size_t bytes = 0;
        void *result = run_for_bits(group, v, &shape, &bytes);
        if (strcmp(v->method, "serial") == 0 && !v->gather) {
            free(serial);
            serial = result;
            serial_bytes = bytes;
            continue;
        }
        bool same = serial && result && bytes == serial_bytes && !memcmp(serial, result, bytes);
        if (promised || same)
            tap_ok(same, "%s has the bits of serial", label(v, text, sizeof(text)));
        else
            tap_skip("%s differs from serial in bits, which this device does not promise",
                     label(v, text, sizeof(text)));
        free(result);
    }
    free(serial);
}

/* The bounds are not empty: one element just beyond its bound is found. */
static void test_bounds(lap_group_t *group)
{
    const size_t m = 2 * (size_t)lap_group_size(group) + 1, n = 11, k = 40;
    char text[64];
    for (int i = 0; i < VARIANTS; i++) {
        const variant_t *v = &variants[i];
        lap_op_t *op = applies(v, lap_group_size(group)) ? make_op(group, NULL, v, m, n, k) : NULL;
        if (!op)
            continue;
        test_call_t call = {.kind = v->kind,
                            .dtype = dtype,
                            .m = m,
                            .n = n,
                            .k = k,
                            .seed = 900 + (uint64_t)i,
                            .gather = v->gather,
                            .rank = lap_group_rank(group),
                            .size = lap_group_size(group)};
        test_call_init(&call);
        bool ran = lap_op_run(op, &call.args) == LAP_OK;
        double before = ran ? test_call_error(&call) : INFINITY;
        double after = test_call_spoil(&call) ? test_call_error(&call) : INFINITY;
        tap_ok(before <= 1 && after > 1, "%s: an error of %g of the bound passes, one of %g fails",
               label(v, text, sizeof(text)), before, after);
        test_call_clear(&call);
        lap_op_destroy(op);
    }
}

/* Split-phase calls: two operators in flight at once, ended in either order. */
static void test_in_flight(lap_group_t *group)
{
    const size_t m = 4 * (size_t)lap_group_size(group) + 1, n = 8, k = 8;
    const variant_t ag = {LAP_AG_GEMM, "ring", 0, 0, 0, 0}, rs = {LAP_GEMM_RS, "ring", 0, 0, 0, 0};
    lap_buffer_t *buffer = shared_buffer(group, m, n, k);
    lap_op_t *ops[2] = {make_op(group, buffer, &ag, m, n, k), make_op(group, buffer, &rs, m, n, k)};
    double worst = 0;
    for (uint64_t round = 0; round < 20 && ops[0] && ops[1]; round++) {
        test_call_t calls[2];
        for (int i = 0; i < 2; i++) {
            calls[i] = (test_call_t){.kind = i ? LAP_GEMM_RS : LAP_AG_GEMM,
                                     .dtype = dtype,
                                     .m = m,
                                     .n = n,
                                     .k = k,
                                     .rank = lap_group_rank(group),
                                     .size = lap_group_size(group),
                                     .seed = 300 + round,
                                     .exact = true};
            test_call_init(&calls[i]);
            if (lap_op_begin(ops[i], &calls[i].args) != LAP_OK)
                worst = INFINITY;
        }
        if (lap_op_begin(ops[0], &calls[0].args) != LAP_ERR_BUSY)
            worst = INFINITY;
        for (int i = 0; i < 2; i++) {
            int which = round % 2 ? 1 - i : i;
            if (lap_op_end(ops[which]) != LAP_OK)
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
    const size_t m = 11, n = 6, k = 4;
    double worst = 0;
    for (int i = 0; i < VARIANTS; i++) {
        if (!applies(&variants[i], lap_group_size(half)))
            continue;
        lap_op_t *op = make_op(half, NULL, &variants[i], m, n, k);
        for (uint64_t call = 0; call < 3; call++)
            worst = fmax(worst, op ? run_once(op, half, &variants[i], m, n, k, 40 + call, true)
                                   : INFINITY);
        lap_op_destroy(op);
    }
    tap_ok(worst == 0, "all methods in a group of %d of %d ranks", lap_group_size(half),
           lap_group_size(world));
    lap_group_destroy(half);
}

static void suite(lap_world_t *world, void *arg)
{
    const bool bits_promised = *(const bool *)arg;
    lap_group_t *group = lap_world_group(world);
    test_shapes(group);
    test_back_to_back(group);
    test_mixture(group, 0, 200);
    test_mixture(group, 1 + (uint64_t)lap_world_size(world), 60);
    test_bits(group, bits_promised);
    test_bounds(group);
    test_in_flight(group);
    test_groups(group);
}

static bool can_address(const lap_world_t *world)
{
    const lap_transport_ops_t *ops = NULL;
    return lap_transport_find(lap_transport_default(world), &ops) == LAP_OK &&
           (ops->can & LAP_CAN_ADDRESS);
}

int main(int argc, char **argv)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    int threads = 0;
    options.device = "cpu";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0)
            options.device = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--dtype") == 0 && lap_dtype_parse(argv[i + 1], &dtype) == LAP_OK)
            continue;
        else if (strcmp(argv[i], "--link") == 0)
            link_options = (lap_link_t){atof(argv[i + 1]) * 1e9, 20e-6};
        else
            return 2;
    }
    bool bits_promised = strcmp(options.device, "ref") == 0;
    if (threads) {
        tap_ranks(threads, &options, suite, &bits_promised);
    } else {
        lap_world_t *world;
        if (tap_success(lap_world_create(&options, &world), "a world from the environment")) {
            in_place = can_address(world);
            suite(world, &bits_promised);
            lap_world_destroy(world);
        }
    }
    return tap_done();
}
