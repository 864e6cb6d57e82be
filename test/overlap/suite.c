/* SPDX-License-Identifier: Apache-2.0 */
/* What the suites of operators share: see suite.h. */
#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "overlap/overlap.h"
#include "tap.h"
#include "transport/transport.h"

test_setting_t test_setting = {.in_place = true};

test_flavour_t test_plain(void)
{
    const lap_dtype_t same = LAP_DTYPE_DEFAULT;
    return (test_flavour_t){.name = "",
                            .a = test_setting.dtype,
                            .b = same,
                            .out = same,
                            .wire = same,
                            .y = same,
                            .moves = true};
}

static bool moves(const test_method_t *method)
{
    return method->kind == LAP_BULK_AG || method->kind == LAP_BULK_RS ||
           !test_multiplies(method->kind);
}

bool test_suits(const test_method_t *method, const test_flavour_t *flavour, int size)
{
    if (method->aggregate && size % 2 != 0)
        return false;
    if (test_setting.quick && strcmp(method->method, "auto") == 0)
        return false;
    if (!test_setting.in_place &&
        (strcmp(method->method, "fused") == 0 || strcmp(method->method, "pull") == 0 ||
         strcmp(method->method, "oneshot") == 0))
        return false;
    if (flavour->layout == LAP_WGRAD && !test_is_local(method->kind) &&
        test_multiplies(method->kind))
        return false;
    if (method->kind == LAP_GEMM_AR && lap_dtype_is_fp8(flavour->out))
        return false;
    return flavour->moves || !moves(method);
}

const char *test_label(const test_method_t *method, const test_flavour_t *flavour, char *text,
                       size_t bytes)
{
    const size_t number = method->num_splits + method->block_rows; /* no method has both */
    char knob[32] = "";
    if (number > 0)
        snprintf(knob, sizeof(knob), "+%zu", number);
    snprintf(text, bytes, "%s/%s%s%s%s%s%s", lap_op_kind_name(method->kind), method->method,
             method->aggregate ? "+aggregate" : "", knob, method->gather ? "+gather" : "",
             flavour->name[0] ? " " : "", flavour->name);
    return text;
}

lap_op_desc_t test_describe(const test_method_t *method, const test_flavour_t *flavour,
                            const test_shape_t *shape)
{
    const lap_op_kind_t kind = method->kind;
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.dtype = flavour->a;
    desc.m = shape->m;
    desc.method = method->method;
    desc.aggregate = method->aggregate;
    desc.num_splits = method->num_splits > shape->n ? shape->n : method->num_splits;
    desc.block_rows = method->block_rows;
    if (method->num_splits || method->block_rows) { /* for those who have them */
        desc.num_sm = 3;
        desc.set_sm_margin = 1;
    }
    desc.gather_input = method->gather;
    if (kind != LAP_AG_GEMM && kind != LAP_GEMM)
        desc.wire_dtype = flavour->wire;
    if (test_sums_x(kind))
        desc.y_dtype = flavour->y;
    if (moves(method))
        desc.cols = shape->n + 2;
    if (!test_multiplies(kind))
        return desc;
    desc.n = shape->n;
    desc.k = shape->k;
    desc.b_dtype = flavour->b;
    desc.out_dtype = flavour->out;
    desc.layout = flavour->layout;
    desc.epilogue = flavour->epilogue;
    desc.accumulate = flavour->accumulate;
    return desc;
}

lap_buffer_t *test_buffer(lap_group_t *group, const test_flavour_t *flavours, size_t nflavours,
                          const test_shape_t *shape)
{
    const int size = lap_group_size(group);
    size_t most = 1, signals = 1;
    for (size_t f = 0; f < nflavours; f++)
        for (int i = 0; i < TEST_METHODS; i++) {
            size_t bytes = 0, nsignals = 0;
            if (!test_suits(&test_methods[i], &flavours[f], size))
                continue;
            lap_op_desc_t desc = test_describe(&test_methods[i], &flavours[f], shape);
            if (lap_op_buffer_size(&desc, size, &bytes, &nsignals) != LAP_OK)
                tap_ok(false, "the size of a buffer: %s", lap_last_error());
            most = bytes > most ? bytes : most;
            signals = nsignals > signals ? nsignals : signals;
        }
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.link = test_setting.link;
    lap_buffer_t *buffer = NULL;
    tap_success(lap_buffer_create(group, most, signals, &options, &buffer), "a buffer of %zu bytes",
                most);
    return buffer;
}

lap_op_t *test_op(lap_group_t *group, lap_buffer_t *buffer, const test_method_t *method,
                  const test_flavour_t *flavour, const test_shape_t *shape)
{
    char text[128];
    lap_op_desc_t desc = test_describe(method, flavour, shape);
    desc.buffer = buffer;
    lap_op_t *op = NULL;
    tap_doing("%s, m %zu, n %zu, k %zu", test_label(method, flavour, text, sizeof(text)), shape->m,
              shape->n, shape->k);
    lap_status_t status = lap_op_create(group, &desc, &op);
    if (status != LAP_OK)
        tap_success(status, "%s can be made", test_label(method, flavour, text, sizeof(text)));
    return op;
}

test_call_t test_call(lap_group_t *group, const test_method_t *method,
                      const test_flavour_t *flavour, const test_shape_t *shape, size_t m,
                      uint64_t seed, bool exact)
{
    return (test_call_t){.desc = test_describe(method, flavour, shape),
                         .m = m,
                         .rank = lap_group_rank(group),
                         .size = lap_group_size(group),
                         .seed = seed,
                         .exact = exact,
                         .stride_pad = seed % 3,
                         .vector_dtype = flavour->vector,
                         .aux_dtype = flavour->aux,
                         .no_aux = flavour->no_aux,
                         .device = test_device(group)};
}

double test_run(lap_op_t *op, test_call_t call)
{
    test_call_init(&call);
    lap_status_t status = test_call_run(op, &call);
    double error = INFINITY;
    if (status == LAP_OK)
        error = test_call_error(&call);
    else
        tap_note("%s", lap_last_error());
    test_call_clear(&call);
    return error;
}

/* Whoever adds a method to the library adds a row for it here. */
static void check_rows(void)
{
    for (lap_op_kind_t kind = LAP_AG_GEMM; kind <= LAP_EXTERNAL_RS; kind++)
        for (const lap_builder_t *b = lap_builders(kind); b->name; b++) {
            bool found = lap_builder_is_foreign(b); /* overlap/cublasmp has those */
            for (int i = 0; i < TEST_METHODS && !found; i++)
                found = test_methods[i].kind == kind && !strcmp(test_methods[i].method, b->name);
            if (!found)
                tap_ok(false, "method %s of %s has no row in test/overlap/methods.h", b->name,
                       lap_op_kind_name(kind));
        }
}

static void run_suite(lap_world_t *world, void *arg)
{
    void (*const *suite)(lap_group_t *) = arg;
    (*suite)(lap_world_group(world));
}

static bool can_address(lap_world_t *world)
{
    const lap_transport_ops_t *ops = NULL;
    return lap_transport_find(lap_transport_default(lap_world_group(world)), &ops) == LAP_OK &&
           (lap_transport_can(ops, lap_world_group(world)) & LAP_CAN_ADDRESS);
}

int test_suite(int argc, char **argv, void (*suite)(lap_group_t *group))
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    int threads = 0;
    options.device = "cpu";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0)
            options.device = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--dtype") == 0 &&
                 lap_dtype_parse(argv[i + 1], &test_setting.dtype) == LAP_OK)
            continue;
        else if (strcmp(argv[i], "--quick") == 0)
            test_setting.quick = atoi(argv[i + 1]) != 0;
        else if (strcmp(argv[i], "--link") == 0)
            test_setting.link = (lap_link_t){atof(argv[i + 1]) * 1e9, 20e-6};
        else
            return 2;
    }
    check_rows();
    test_setting.bits_promised = strcmp(options.device, "ref") == 0;
    if (threads) {
        tap_ranks(threads, &options, run_suite, &suite);
    } else {
        lap_world_t *world;
        if (tap_success(lap_world_create(&options, &world), "a world from the environment")) {
            test_setting.in_place = can_address(world);
            run_suite(world, &suite);
            lap_world_destroy(world);
        }
    }
    return tap_done();
}
