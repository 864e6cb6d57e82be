/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `nccl` over the GPU and the NCCL of test/fake: what differs where NCCL gives the
 * addresses of peers' memory, and where it does not (far), which it may say only when it is asked. Two ranks, started by `lap run` with
 * LAP_DEVICE=cuda and LAP_TRANSPORT=nccl.
 */
#include <stdio.h>
#include <string.h>

#include <lap/lap_cuda.h>

#include "caller_comm.h"
#include "data.h"
#include "overlap/op.h"
#include "tap.h"

enum { M = 12, N = 8, K = 16 };

static lap_op_desc_t describe(lap_op_kind_t kind, const char *method)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = M;
    desc.n = N;
    desc.k = K;
    desc.method = method;
    return desc;
}

static lap_status_t call(lap_group_t *group, lap_op_t *op, const lap_op_desc_t *desc, size_t m)
{
    return test_call_check(op, test_exact_call(group, desc, m, 5));
}

/* A method that reads or writes peers' memory in place. */
static void test_in_place(lap_group_t *group, lap_op_kind_t kind, const char *method, bool far)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe(kind, method);
    const lap_status_t status = lap_op_create(group, &desc, &op);
    if (far) {
        char quoted[32];
        snprintf(quoted, sizeof(quoted), "'%s'", method);
        tap_failure(status, LAP_ERR_UNSUPPORTED, quoted, "serial, ring", NULL);
        return;
    }
    if (!tap_success(status, "%s", method))
        return;
    for (int i = 0; i < 4; i++)
        tap_success(call(group, op, &desc, M), "%s, call %d", method, i);
    lap_op_destroy(op);
}

/* As the first operator of a group, when nobody knows yet who has whose addresses. */
static void test_auto(lap_group_t *all, bool far)
{
    lap_group_t *group = NULL;
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe(LAP_GEMM_RS, "auto");
    const char *name;
    double seconds;
    bool in_place = false;
    tap_success(lap_group_split(all, 0, lap_group_rank(all), &group), "a group of its own");
    if (!tap_success(lap_op_create(group, &desc, &op), "an operator that chooses"))
        return;
    for (size_t i = 0; lap_op_prediction(op, i, &name, &seconds) == LAP_OK; i++)
        in_place = in_place || strncmp(name, "fused", 5) == 0;
    tap_ok(in_place == !far, "auto %s fused", far ? "does not try" : "tries");
    tap_success(call(group, op, &desc, M), "a call of what it picked");
    lap_op_destroy(op);
    lap_group_destroy(group);
}

/* Calls that are repeated become a graph, but not where each put is NCCL's. */
static void test_graphs(lap_group_t *group, bool far)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe(LAP_AG_GEMM, "ring");
    if (!tap_success(lap_op_create(group, &desc, &op), "an operator"))
        return;
    tap_ok(op->target.device.graphs == !far && op->buffer->no_graphs == far, "calls are %s",
           far ? "issued anew" : "graphs");
    for (int i = 0; i < 4; i++)
        tap_success(call(group, op, &desc, M - (size_t)i % 2), "call %d", i);
    lap_op_destroy(op);
}

/* By the host, without an operator. */
static void test_buffer(lap_group_t *group, bool far)
{
    lap_buffer_t *buffer = NULL;
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    const int rank = lap_group_rank(group), peer = 1 - rank;
    const uint64_t word = 7 + (uint64_t)rank;
    options.link.latency_s = 1e-4;
    if (far) {
        tap_failure(lap_buffer_create(group, 64, 4, &options, &buffer), LAP_ERR_UNSUPPORTED, "nccl",
                    "link", "hosts", NULL);
        options = (lap_buffer_options_t)LAP_BUFFER_OPTIONS_INIT;
    }
    if (!tap_success(lap_buffer_create(group, 64, 4, &options, &buffer), "a buffer"))
        return;
    tap_ok(strcmp(lap_buffer_transport(buffer), "nccl") == 0, "its transport is nccl");
    tap_ok((lap_buffer_data(buffer, peer) == NULL) == far, "the memory of a peer has %s address",
           far ? "no" : "an");
    tap_success(lap_buffer_put(buffer, peer, 16, &word, sizeof(word), 0), "a put");
    tap_success(lap_buffer_wait(buffer, peer, 0, 1), "its signal comes");
    uint64_t got = 0;
    lap_device_t *device = NULL;
    lap_stream_t *stream = NULL;
    tap_success(lap_device_of(group->world, &device), "the device");
    tap_success(device->ops->stream_create(device, false, &stream), "a stream");
    const lap_copy_t copy = {.dst = &got,
                             .src = (char *)lap_buffer_data(buffer, rank) + 16,
                             .rows = 1,
                             .row_bytes = sizeof(got),
                             .dst_stride = sizeof(got),
                             .src_stride = sizeof(got)};
    tap_success(device->ops->copy(stream, &copy), "a copy");
    tap_success(device->ops->stream_synchronize(stream), "of what came");
    tap_ok(got == 7 + (uint64_t)peer, "the peer's number came: %d", (int)got);
    device->ops->stream_destroy(stream);
    lap_buffer_destroy(buffer);
}

/* The ranks call different operators, whose messages are alike, or one with different rows. */
static void test_mismatch(lap_group_t *all, bool operators)
{
    lap_group_t *group = NULL;
    lap_buffer_t *buffer = NULL;
    lap_op_t *ops[2] = {NULL, NULL};
    size_t bytes, nsignals;
    lap_op_desc_t desc = describe(LAP_AG_GEMM, "ring");
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
    lap_op_destroy(ops[0]);
    lap_op_destroy(ops[1]);
    lap_buffer_destroy(buffer);
    lap_group_destroy(group);
}

/* A communicator of the caller's serves, and stays the caller's. */
static void test_given(lap_group_t *all)
{
    lap_nccl_api_t nccl;
    lap_group_t *group = NULL;
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe(LAP_AG_GEMM, "ring");
    if (!tap_success(lap_nccl_load(&nccl), "NCCL for the caller"))
        return;
    tap_success(lap_group_split(all, 0, lap_group_rank(all), &group), "a group of its own");
    ncclComm_t comm = caller_comm(&nccl, group, 2), alone = caller_comm(&nccl, group, 1);
    tap_failure(lap_group_set_nccl(NULL, comm), LAP_ERR_INVALID, "group is NULL", NULL);
    tap_failure(lap_group_set_nccl(group, NULL), LAP_ERR_INVALID, "comm is NULL", NULL);
    tap_failure(lap_group_set_nccl(group, alone), LAP_ERR_INVALID, "1 ranks", "2 ranks", NULL);
    tap_success(lap_group_set_nccl(group, comm), "a communicator of the caller's");
    tap_success(lap_op_create(group, &desc, &op), "an operator over it");
    tap_success(call(group, op, &desc, M), "a call");
    tap_failure(lap_group_set_nccl(group, comm), LAP_ERR_INVALID, "already", NULL);
    test_mismatch(all, false);
    tap_success(call(group, op, &desc, M), "a failure in another group does no harm to it");
    lap_op_destroy(op);
    lap_group_destroy(group);
    ncclResult_t state = ncclInProgress;
    tap_ok(nccl.ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess,
           "it is still there when the group has ended");
    (void)nccl.ncclCommAbort(comm);
    (void)nccl.ncclCommAbort(alone);
}

/* nccl [far] */
int main(int argc, char **argv)
{
    const bool far = argc > 1 && strcmp(argv[1], "far") == 0;
    lap_world_t *world;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return tap_done();
    lap_group_t *group = lap_world_group(world);
    test_in_place(group, LAP_AG_GEMM, "fused", far);
    test_in_place(group, LAP_GEMM_RS, "pull", far);
    test_auto(group, far);
    test_graphs(group, far);
    test_buffer(group, far);
    test_given(group);
    test_mismatch(group, true);
    test_mismatch(group, false);
    lap_world_destroy(world);
    return tap_done();
}
