/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that fail, are late or do not come where others wait for them inside NCCL or cuBLASMp: over
 * the fakes of test/fake, which fail where FAKE_FAILS and FAKE_LATE say so. Two ranks or three,
 * started by `lap run` with LAP_DEVICE=cuda and LAP_TRANSPORT=nccl.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lap/lap_cuda.h>

#include "caller_comm.h"
#include "data.h"
#include "overlap/op.h"
#include "tap.h"
#include "util/clock.h"

#define SOON_S 5.0 /* far less than the timeout of those tests, which is 12 s */

static double begin;

static void start(void)
{
    begin = (double)lap_now_ns() * 1e-9;
}

static void took_less(double seconds)
{
    const double took = (double)lap_now_ns() * 1e-9 - begin;
    tap_ok(took < seconds, "in less than %g s: %.1f s", seconds, took);
}

static lap_op_desc_t describe(const char *method, int size)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_GEMM_RS;
    desc.m = desc.n = desc.k = 8 * (size_t)size;
    desc.dtype = LAP_BFLOAT16;
    desc.method = method;
    return desc;
}

static lap_status_t call(lap_group_t *group, lap_op_t *op, const lap_op_desc_t *desc)
{
    return test_call_check(op, test_exact_call(group, desc, desc->m, 5));
}

/* On one rank only, the last. */
static void fail(const lap_group_t *group, const char *name)
{
    if (lap_group_rank(group) == lap_group_size(group) - 1)
        setenv("FAKE_FAILS", name, 1);
}

/* All learn what failed where, and only those others name the rank. */
static void expect(lap_group_t *group, lap_status_t got, lap_status_t expected, const char *name)
{
    const bool mine = lap_group_rank(group) == lap_group_size(group) - 1;
    char rank[32];
    snprintf(rank, sizeof(rank), "rank %d: ", lap_group_size(group) - 1);
    tap_failure(got, expected, name, NULL);
    tap_ok((strstr(lap_last_error(), rank) == NULL) == mine, "who failed: %s", lap_last_error());
}

/* The first operator of a group: its communicator, the first window, the first signal. */
static void test_first(lap_group_t *all, const char *method, const char *fails, lap_status_t status)
{
    char name[64];
    lap_group_t *group = NULL;
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe(method, lap_group_size(all));
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(fails, ":"), fails);
    tap_success(lap_group_split(all, 0, lap_group_rank(all), &group), "a group; %s", fails);
    fail(group, fails);
    start();
    expect(group, lap_op_create(group, &desc, &op), status, name);
    took_less(SOON_S);
    unsetenv("FAKE_FAILS");
    if (tap_success(lap_op_create(group, &desc, &op), "one after that is made"))
        tap_success(call(group, op, &desc), "... and right");
    lap_op_destroy(op);
    lap_group_destroy(group);
}

/* A communicator that has not made a window makes no other: what it has goes on. */
static void test_later(lap_group_t *all)
{
    lap_group_t *group = NULL;
    lap_op_t *first = NULL, *op = NULL;
    const lap_op_desc_t desc = describe("ring", lap_group_size(all));
    tap_success(lap_group_split(all, 0, lap_group_rank(all), &group), "a group");
    if (!tap_success(lap_op_create(group, &desc, &first), "an operator"))
        return;
    fail(group, "ncclCommWindowRegister");
    expect(group, lap_op_create(group, &desc, &op), LAP_ERR_SYSTEM, "ncclCommWindowRegister");
    unsetenv("FAKE_FAILS");
    tap_success(call(group, first, &desc), "the first goes on");
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_SYSTEM, "NCCL did not make a window",
                "destroyed first", NULL);
    lap_op_destroy(first);
    if (tap_success(lap_op_create(group, &desc, &op), "one after the end of the first"))
        tap_success(call(group, op, &desc), "... is right");
    lap_op_destroy(op);
    lap_group_destroy(group);
}

/* ---- communicators of the caller's ---- */

/* NCCL writes what it was asked for when the caller ends the communicator, after the group. */
static void test_given(lap_group_t *all)
{
    lap_nccl_api_t nccl;
    lap_group_t *group = NULL;
    if (!tap_success(lap_nccl_load(&nccl), "NCCL for the caller"))
        return;
    tap_success(lap_group_split(all, 0, lap_group_rank(all), &group), "a group");
    ncclComm_t comm = caller_comm(&nccl, group, lap_group_size(group));
    fail(group, "ncclCommWindowRegister");
    expect(group, lap_group_set_nccl(group, comm), LAP_ERR_SYSTEM, "ncclCommWindowRegister");
    unsetenv("FAKE_FAILS");
    lap_group_destroy(group);
    tap_ok(nccl.ncclCommAbort(comm) == ncclSuccess, "the caller ends the communicator");
}

/* Two GPUs, of which rank 1 has the second: the program had the first when it made its own. */
static void test_gpus(lap_group_t *all)
{
    lap_nccl_api_t nccl;
    if (!tap_success(lap_nccl_load(&nccl), "NCCL for the caller"))
        return;
    ncclComm_t comm = caller_comm(&nccl, all, lap_group_size(all));
    tap_failure(lap_group_set_nccl(all, comm), LAP_ERR_INVALID, "is on GPU 0", "GPU 1", NULL);
    (void)nccl.ncclCommAbort(comm);
}

/* A thread of NCCL goes on when nothing of the library is there any more. */
static void test_stays(lap_world_t *world)
{
    lap_buffer_t *buffer = NULL;
    tap_success(lap_buffer_create(lap_world_group(world), 64, 4, NULL, &buffer), "a buffer");
    lap_buffer_destroy(buffer);
    lap_world_destroy(world);
    usleep(200000);
    tap_ok(true, "this rank lives");
}

/* ---- cuBLASMp ---- */

/* auto does without what another rank has no memory for. */
static void test_auto(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = describe("auto", lap_group_size(group));
    desc.auto_foreign = 1;
    fail(group, "cublasMpMalloc:2");
    tap_success(lap_op_create(group, &desc, &op), "auto leaves cuBLASMp out");
    unsetenv("FAKE_FAILS");
    tap_success(call(group, op, &desc), "what it picked is right");
    lap_op_destroy(op);
}

/* A rank that never has a communicator for it: the thread that waits for that one stays. */
static void test_init(lap_group_t *group)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe("cublasmp", lap_group_size(group));
    fail(group, "ncclCommInitRankConfig");
    start();
    expect(group, lap_op_create(group, &desc, &op), LAP_ERR_SYSTEM, "ncclCommInitRankConfig");
    took_less(SOON_S);
    unsetenv("FAKE_FAILS");
    if (tap_success(lap_op_create(group, &desc, &op), "one after that is made"))
        tap_success(call(group, op, &desc), "... and right");
    lap_op_destroy(op);
}

/* Kernels that wait for those of a rank that has none do not end: that GPU is given up, and the group. */
static void test_kernels(lap_group_t *group)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe("cublasmp", lap_group_size(group));
    fail(group, "cublasMpMatmul:5");
    start();
    expect(group, lap_op_create(group, &desc, &op), LAP_ERR_UNSUPPORTED, "cublasMpMatmul");
    took_less(SOON_S);
    tap_failure(lap_group_barrier(group), LAP_ERR_UNSUPPORTED, ": cublasMpMatmul", NULL);
}

/* LAP_TIMEOUT_S is 1. The thread that waited comes back when the world has ended. */
static void test_late(lap_world_t *world)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe("cublasmp", 2);
    lap_op_t *own = NULL;
    const lap_op_desc_t ring = describe("ring", 2);
    tap_success(lap_op_create(lap_world_group(world), &ring, &own), "a communicator");
    if (lap_group_rank(lap_world_group(world)) == 1)
        setenv("FAKE_LATE", "ncclCommInitRankConfig:3000", 1);
    tap_failure(lap_op_create(lap_world_group(world), &desc, &op), LAP_ERR_TIMEOUT,
                "cuBLASMp did not make an operator within 1 s", NULL);
    lap_op_destroy(own);
    lap_world_destroy(world);
    usleep(3500000);
    tap_ok(true, "this rank lives");
}

/* LAP_TIMEOUT_S is 2: a trial of which a rank is late ends once, and not with each candidate. */
static void test_late_auto(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = describe("auto", lap_group_size(group));
    desc.auto_foreign = 1;
    if (lap_group_rank(group) == 1)
        setenv("FAKE_LATE", "cublasMpMatmul:20000", 1);
    start();
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_TIMEOUT, "cuBLASMp did not make", NULL);
    took_less(6);
}

/* LAP_TIMEOUT_S is 1: what cuBLASMp does not give back in time is left to it. */
static void test_end(lap_group_t *group)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe("cublasmp", lap_group_size(group));
    if (!tap_success(lap_op_create(group, &desc, &op), "an operator"))
        return;
    setenv("FAKE_LATE", "cublasMpBufferDeregister:30000", 1);
    start();
    lap_op_destroy(op);
    took_less(SOON_S);
    unsetenv("FAKE_LATE");
    if (tap_success(lap_op_create(group, &desc, &op), "the group goes on"))
        tap_success(call(group, op, &desc), "a call is right");
    lap_op_destroy(op);
}

static void test_ours(lap_group_t *group)
{
    test_first(group, "ring", "ncclCommInitRankConfig", LAP_ERR_SYSTEM);
    test_first(group, "ring", "ncclCommWindowRegister", LAP_ERR_SYSTEM);
    test_later(group);
    test_given(group);
}

static void test_far(lap_group_t *group)
{
    test_first(group, "ring", "ncclSignal", LAP_ERR_SYSTEM);
}

static void test_cublasmp(lap_group_t *group)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe("ring", lap_group_size(group));
    tap_success(lap_op_create(group, &desc, &op), "one that goes on");
    test_auto(group);
    test_first(group, "cublasmp", "cublasMpMalloc:2", LAP_ERR_NO_MEMORY);
    test_first(group, "cublasmp", "cublasMpBufferRegister:3", LAP_ERR_UNSUPPORTED);
    test_init(group);
    tap_success(call(group, op, &desc), "it does");
    lap_op_destroy(op);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*test)(lap_group_t *group);
        void (*ends)(lap_world_t *world); /* it ends the world, too */
    } tests[] = {{"ours", test_ours, NULL},
                 {"far", test_far, NULL},
                 {"gpus", test_gpus, NULL},
                 {"stays", NULL, test_stays},
                 {"cublasmp", test_cublasmp, NULL},
                 {"kernels", test_kernels, NULL},
                 {"late", NULL, test_late},
                 {"late-auto", test_late_auto, NULL},
                 {"end", test_end, NULL}};
    lap_world_t *world;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return tap_done();
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (argc < 2 || strcmp(argv[1], tests[i].name) != 0)
            continue;
        if (tests[i].ends)
            tests[i].ends(world);
        else
            tests[i].test(lap_world_group(world));
        if (!tests[i].ends)
            lap_world_destroy(world);
    }
    return tap_done();
}
