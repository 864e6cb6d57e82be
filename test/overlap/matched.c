/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is refused, or found out, where messages are matched: the transport `nccl`, over the GPU and the
 * NCCL of test/fake. Two ranks, started by `lap run` with LAP_DEVICE=cuda and LAP_TRANSPORT=nccl.
 */
#include <string.h>

#include <lap/lap_cuda.h>

#include "data.h"
#include "tap.h"
#include "util/clock.h"

enum { M = 12, N = 8, K = 16 };

#define LATE_NS 1500000000u

static lap_op_desc_t describe(const char *method)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_AG_GEMM;
    desc.m = M;
    desc.n = N;
    desc.k = K;
    desc.method = method;
    return desc;
}

static void test_refusals(lap_group_t *group)
{
    lap_buffer_t *buffer = NULL;
    lap_op_t *op = NULL;
    const lap_op_desc_t fused = describe("fused");
    tap_failure(lap_op_create(group, &fused, &op), LAP_ERR_UNSUPPORTED, "'fused'", "serial, ring",
                NULL);
    lap_op_desc_t pull = describe("pull");
    pull.kind = LAP_GEMM_RS;
    tap_failure(lap_op_create(group, &pull, &op), LAP_ERR_UNSUPPORTED, "'pull'", "serial, ring",
                NULL);
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.link.latency_s = 1e-3;
    tap_failure(lap_buffer_create(group, 64, 4, &options, &buffer), LAP_ERR_UNSUPPORTED, "nccl",
                "link", NULL);
    if (!tap_success(lap_buffer_create(group, 64, 4, NULL, &buffer), "a buffer"))
        return;
    tap_ok(strcmp(lap_buffer_transport(buffer), "nccl") == 0, "its transport is nccl");
    const int rank = lap_group_rank(group), peer = 1 - rank;
    const uint64_t word = 7;
    tap_failure(lap_buffer_put(buffer, peer, 0, &word, sizeof(word), 0), LAP_ERR_UNSUPPORTED,
                "alone", NULL);
    tap_success(lap_buffer_put(buffer, rank, 0, &word, sizeof(word), 1), "a put to oneself");
    tap_success(lap_buffer_wait(buffer, rank, 1, 1), "and its signal");
    tap_success(lap_buffer_raise(buffer, peer, 0), "a signal alone");
    tap_success(lap_buffer_wait(buffer, peer, 0, 1), "comes");
    tap_ok(lap_buffer_data(buffer, peer) == NULL, "the memory of a peer cannot be addressed");
    lap_buffer_destroy(buffer);
}

static lap_status_t call(lap_group_t *group, lap_op_t *op, const lap_op_desc_t *desc, size_t m)
{
    test_call_t call = {.desc = *desc,
                        .m = m,
                        .seed = 5,
                        .rank = lap_group_rank(group),
                        .size = lap_group_size(group),
                        .device = test_device(group),
                        .exact = true};
    test_call_init(&call);
    lap_status_t status = test_call_run(op, &call);
    if (status == LAP_OK && test_call_error(&call) != 0)
        status = LAP_ERR_CHECK;
    test_call_clear(&call);
    return status;
}

/* Where nobody waits for a call, nobody ends it when a peer is lost. */
static void test_enqueue(lap_group_t *group)
{
    const lap_op_desc_t desc = describe("ring");
    const lap_op_args_t args = LAP_OP_ARGS_INIT;
    lap_op_t *op = NULL;
    if (!tap_success(lap_op_create(group, &desc, &op), "an operator"))
        return;
    tap_failure(lap_op_enqueue(op, &args, NULL), LAP_ERR_UNSUPPORTED, "nccl", "lap_op_begin", NULL);
    lap_op_destroy(op);
}

/* The ranks call different operators, whose messages are alike, or one with different rows. */
static void test_mismatch(lap_group_t *all, bool operators)
{
    lap_group_t *group = NULL;
    lap_buffer_t *buffer = NULL;
    lap_op_t *ops[2] = {NULL, NULL};
    size_t bytes, nsignals;
    lap_op_desc_t desc = describe("ring");
    const int rank = lap_group_rank(all);
    tap_success(lap_group_split(all, 0, rank, &group), "a group of its own");
    tap_success(lap_op_buffer_size(&desc, 2, &bytes, &nsignals), "how large a buffer must be");
    tap_success(lap_buffer_create(group, bytes, nsignals, NULL, &buffer), "a buffer");
    desc.buffer = buffer;
    tap_success(lap_op_create(group, &desc, &ops[0]), "an operator");
    tap_success(lap_op_create(group, &desc, &ops[1]), "and another one like it");
    tap_success(call(group, ops[0], &desc, M), "both ranks call the first");
    lap_op_t *op = ops[operators ? rank : 0];
    tap_failure(call(group, op, &desc, operators ? M : M - 2 * (size_t)rank), LAP_ERR_MISMATCH,
                operators ? "operator 2" : "m = 10", "rank 0", "rank 1", NULL);
    tap_note("%s", lap_last_error());
    lap_op_destroy(ops[0]);
    lap_op_destroy(ops[1]);
    lap_buffer_destroy(buffer);
    lap_group_destroy(group);
}

/*
 * Rank 1 does not come to a call whose first round is the second raise of a signal: the sentence
 * counts the rounds of the call, and none of them has come.
 */
static void test_late(lap_group_t *all)
{
    lap_group_t *group = NULL;
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe("ring");
    tap_success(lap_group_split(all, 0, lap_group_rank(all), &group), "a group of its own");
    tap_success(lap_op_create(group, &desc, &op), "an operator");
    tap_success(call(group, op, &desc, M), "both ranks call it");
    if (lap_group_rank(all) == 0)
        tap_failure(call(group, op, &desc, M), LAP_ERR_TIMEOUT, "number 1 of rank 1",
                    "has not come", NULL);
    else
        lap_sleep_until_ns(lap_now_ns() + LATE_NS);
    lap_op_destroy(op);
    lap_group_destroy(group);
    tap_success(lap_group_barrier(all), "the others are none the worse");
}

/* met [late]: with a timeout of a second. */
int main(int argc, char **argv)
{
    lap_world_t *world;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return tap_done();
    if (argc > 1 && strcmp(argv[1], "late") == 0) {
        test_late(lap_world_group(world));
        lap_world_destroy(world);
        return tap_done();
    }
    test_refusals(lap_world_group(world));
    test_enqueue(lap_world_group(world));
    test_mismatch(lap_world_group(world), true);
    test_mismatch(lap_world_group(world), false);
    lap_world_destroy(world);
    return tap_done();
}
