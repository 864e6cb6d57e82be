/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are not in step, and operators used side by side: nothing may hang, and no call may
 * return success with data of another one. Each scenario has a world of its own, because most of
 * them break it.
 *
 * misuse [DEVICE [processes]]: two ranks on that device, threads or the processes of the world that
 * the environment describes.
 */
#include <string.h>

#include <lap/lap_cuda.h>

#include "data.h"
#include "tap.h"

enum { M = 8, N = 6, K = 4 };

static lap_op_desc_t describe(lap_op_kind_t kind)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = M;
    desc.n = N;
    desc.k = K;
    return desc;
}

static lap_op_t *make(lap_group_t *group, lap_op_kind_t kind, const char *method,
                      lap_buffer_t *buffer)
{
    lap_op_desc_t desc = describe(kind);
    desc.method = method;
    desc.buffer = buffer;
    lap_op_t *op = NULL;
    tap_success(lap_op_create(group, &desc, &op), "an operator");
    return op;
}

static test_call_t call_of(lap_group_t *group, lap_op_kind_t kind, size_t m, uint64_t seed)
{
    const lap_op_desc_t desc = describe(kind);
    test_call_t call = test_exact_call(group, &desc, m, seed);
    test_call_init(&call);
    return call;
}

/* Runs one call; a success must come with the right data. */
static lap_status_t run(lap_op_t *op, lap_group_t *group, lap_op_kind_t kind, size_t m,
                        uint64_t seed)
{
    const lap_op_desc_t desc = describe(kind);
    return test_call_check(op, test_exact_call(group, &desc, m, seed));
}

/*
 * Calls without rows exchange nothing, so a rank may be far ahead in them; the rows of its later
 * call must not be taken for those of an earlier one.
 */
static void out_of_step(lap_world_t *world, void *arg)
{
    lap_group_t *group = lap_world_group(world);
    lap_op_t *op = make(group, LAP_AG_GEMM, arg, NULL);
    const int full = lap_group_rank(group) == 0 ? 0 : 4; /* which of its calls has rows */
    lap_status_t last = LAP_OK;
    for (int call = 0; call < 5 && last == LAP_OK; call++)
        last = run(op, group, LAP_AG_GEMM, call == full ? M : 0, (uint64_t)call);
    tap_failure(last, LAP_ERR_MISMATCH, "rank 0", "m = 8 (call 1)", "rank 1", NULL);
    lap_op_destroy(op);
}

/*
 * Each rank calls another of two operators of one buffer, which differ in nothing but their data:
 * the signals of the one must not be taken for those of the other.
 */
static void other_operator(lap_world_t *world, void *arg)
{
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_group_rank(group);
    lap_op_desc_t desc = describe(LAP_AG_GEMM);
    lap_buffer_t *buffer = NULL;
    size_t bytes, nsignals;
    tap_success(lap_op_buffer_size(&desc, 2, &bytes, &nsignals), "the size of a buffer");
    tap_success(lap_buffer_create(group, bytes, nsignals, NULL, &buffer), "a buffer");
    lap_op_t *ops[2] = {make(group, LAP_AG_GEMM, arg, buffer),
                        make(group, LAP_AG_GEMM, arg, buffer)};
    tap_failure(run(ops[rank], group, LAP_AG_GEMM, M, (uint64_t)rank), LAP_ERR_MISMATCH, "operator",
                NULL);
    lap_op_destroy(ops[0]);
    lap_op_destroy(ops[1]);
    lap_buffer_destroy(buffer);
}

/* One rank has no rows and leaves: the other learns of the mismatch, not only of the leaving. */
static void no_rows_and_left(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_op_t *op = make(group, LAP_AG_GEMM, "ring", NULL);
    lap_status_t status = run(op, group, LAP_AG_GEMM, lap_group_rank(group) == 0 ? M : 0, 1);
    if (lap_group_rank(group) == 0)
        tap_failure(status, LAP_ERR_MISMATCH, "m = 8", "m = 0", "rank 1", NULL);
    lap_op_destroy(op);
}

/* Ending a call does not wait for calls that were begun after it. */
static void end_the_first(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_op_t *first = make(group, LAP_AG_GEMM, "ring", NULL);
    lap_op_t *second = make(group, LAP_GEMM_RS, "ring", NULL);
    test_call_t one = call_of(group, LAP_AG_GEMM, M, 1), two = call_of(group, LAP_GEMM_RS, M, 2);
    bool eager = lap_group_rank(group) == 0;
    tap_success(test_call_begin(first, &one), "the first call begins");
    if (eager)
        tap_success(test_call_begin(second, &two), "the second begins too");
    tap_success(test_call_end(first, &one), "the first call ends while the second cannot");
    tap_success(lap_group_barrier(group), "only now the other rank begins the second");
    if (!eager)
        tap_success(test_call_begin(second, &two), "the second begins");
    tap_success(test_call_end(second, &two), "the second call ends");
    tap_ok(test_call_error(&one) == 0 && test_call_error(&two) == 0, "both are right");
    test_call_clear(&one);
    test_call_clear(&two);
    lap_op_destroy(first);
    lap_op_destroy(second);
}

/* What broke the group breaks every operator of it. */
static void broken_for_all(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_op_t *op = make(group, LAP_AG_GEMM, "direct", NULL);
    lap_op_t *other = make(group, LAP_GEMM_RS, "ring", NULL);
    size_t m = M - (size_t)lap_group_rank(group);
    tap_failure(run(op, group, LAP_AG_GEMM, m, 1), LAP_ERR_MISMATCH, "m = 7", "m = 8", NULL);
    tap_failure(run(other, group, LAP_GEMM_RS, M, 2), LAP_ERR_MISMATCH, "m = 7", "m = 8", NULL);
    lap_op_destroy(op);
    lap_op_destroy(other);
}

/* Every rank gives a buffer, but not the same one. */
static void other_buffer(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_buffer_t *buffers[2] = {NULL, NULL};
    lap_op_desc_t desc = describe(LAP_AG_GEMM);
    size_t bytes, nsignals;
    tap_success(lap_op_buffer_size(&desc, 2, &bytes, &nsignals), "the size of a buffer");
    for (int i = 0; i < 2; i++)
        tap_success(lap_buffer_create(group, bytes, nsignals, NULL, &buffers[i]), "a buffer");
    desc.buffer = buffers[lap_group_rank(group)];
    lap_op_t *op = NULL;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_MISMATCH, "buffer = 1", "buffer = 2",
                NULL);
    desc.buffer = buffers[1];
    tap_success(lap_op_create(group, &desc, &op), "the same buffer on all ranks is fine");
    tap_success(run(op, group, LAP_AG_GEMM, M, 3), "and works");
    lap_op_destroy(op);
    lap_buffer_destroy(buffers[0]);
    lap_buffer_destroy(buffers[1]);
}

/* The signals and the memory of an operator are its own. */
static void hands_off(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    size_t bytes, nsignals;
    const lap_op_desc_t desc = describe(LAP_AG_GEMM);
    lap_buffer_t *buffer = NULL;
    tap_success(lap_op_buffer_size(&desc, 2, &bytes, &nsignals), "the size of a buffer");
    tap_success(lap_buffer_create(group, bytes + 4096, nsignals + 1, NULL, &buffer), "a buffer");
    lap_op_t *op = make(group, LAP_AG_GEMM, "serial", buffer);
    tap_failure(lap_buffer_raise(buffer, 1, nsignals - 1), LAP_ERR_INVALID, "operators", NULL);
    tap_failure(lap_buffer_wait(buffer, 1, 0, 1), LAP_ERR_INVALID, "operators", NULL);
    int peer = 1 - lap_group_rank(group);
    tap_success(lap_buffer_raise(buffer, peer, nsignals), "the words after them are the caller's");
    tap_success(lap_buffer_wait(buffer, peer, nsignals, 1), "for waits too");
    test_call_t call = call_of(group, LAP_AG_GEMM, M, 5);
    lap_op_args_t args = call.args;
    args.a.data = lap_buffer_data(buffer, lap_group_rank(group));
    tap_failure(lap_op_run(op, &args), LAP_ERR_INVALID, "a lies in the symmetric memory", NULL);
    args = call.args;
    args.d.data = lap_buffer_data(buffer, lap_group_rank(group));
    tap_failure(lap_op_run(op, &args), LAP_ERR_INVALID, "d lies in the symmetric memory", NULL);
    tap_success(test_call_run(op, &call), "the operator works after all this");
    tap_ok(test_call_error(&call) == 0, "and is right");
    test_call_clear(&call);
    lap_op_destroy(op);
    lap_buffer_destroy(buffer);
}

/* Streams of the caller's are for GPUs; to ask for one breaks nothing. */
static void on_a_stream(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_op_t *op = make(group, LAP_AG_GEMM, "ring", NULL);
    test_call_t call = call_of(group, LAP_AG_GEMM, M, 1);
    tap_failure(lap_op_enqueue(op, &call.args, NULL), LAP_ERR_UNSUPPORTED, "device cuda", "cpu",
                NULL);
    tap_failure(lap_world_synchronize(world, NULL), LAP_ERR_UNSUPPORTED, "device cuda", "cpu",
                NULL);
    tap_failure(lap_op_enqueue(NULL, &call.args, NULL), LAP_ERR_INVALID, "op is NULL", NULL);
    tap_failure(lap_op_enqueue(op, NULL, NULL), LAP_ERR_INVALID, "args is NULL", NULL);
    tap_failure(lap_world_synchronize(NULL, NULL), LAP_ERR_INVALID, "world is NULL", NULL);
    int gpu = -1;
    tap_failure(lap_world_gpu(world, &gpu), LAP_ERR_UNSUPPORTED, "device cuda", "cpu", NULL);
    tap_failure(lap_world_gpu(NULL, &gpu), LAP_ERR_INVALID, "world is NULL", NULL);
    tap_failure(lap_world_gpu(world, NULL), LAP_ERR_INVALID, "gpu_p is NULL", NULL);
    tap_ok(gpu == -1, "nothing was written");
    tap_success(run(op, group, LAP_AG_GEMM, M, 2), "a call after those");
    test_call_clear(&call);
    lap_op_destroy(op);
}

/* A GEMM that leaves all multiprocessors to copies would have none; copies take what there are. */
static void leave_all_sms(lap_world_t *world, void *method)
{
    lap_group_t *group = lap_world_group(world);
    lap_op_desc_t desc = describe(LAP_AG_GEMM);
    lap_op_t *op = NULL;
    desc.method = method;
    desc.num_sm = 1024;
    desc.set_sm_margin = 1;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID,
                "num_sm is 1024 with set_sm_margin, expected at most ", "SMs of GPU", NULL);
    desc.set_sm_margin = 0;
    if (tap_success(lap_op_create(group, &desc, &op), "an operator that leaves none free"))
        tap_success(run(op, group, LAP_AG_GEMM, M, 1), "a call of it");
    lap_op_destroy(op);
}

static lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
static bool processes;

static void play(void (*scenario)(lap_world_t *world, void *arg), void *arg)
{
    lap_world_t *world;
    if (!processes) {
        tap_ranks(2, &options, scenario, arg);
    } else if (tap_success(lap_world_create(&options, &world), "a world from the environment")) {
        scenario(world, arg);
        lap_world_destroy(world);
    }
}

int main(int argc, char **argv)
{
    static const char *const methods[] = {"serial", "ring", "direct", "fused"};
    options.timeout_s = 30;
    options.device = argc > 1 ? argv[1] : "cpu";
    processes = argc > 2 && strcmp(argv[2], "processes") == 0;
    for (int i = 0; i < 4; i++)
        play(out_of_step, (void *)methods[i]);
    for (int i = 0; i < 4; i++)
        play(other_operator, (void *)methods[i]);
    play(no_rows_and_left, NULL);
    /* Threads that share a GPU take turns: there a call begins when the others begin it too. */
    if (processes || strcmp(options.device, "cuda") != 0)
        play(end_the_first, NULL);
    play(broken_for_all, NULL);
    play(other_buffer, NULL);
    play(hands_off, NULL);
    if (strcmp(options.device, "cuda") != 0) {
        play(on_a_stream, NULL);
    } else {
        play(leave_all_sms, "ring");
        play(leave_all_sms, "auto");
    }
    return tap_done();
}
