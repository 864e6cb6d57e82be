/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that is killed or stopped in the middle of an operation. Started by `lap run` or mpirun
 * (see faults.sh and mpi_faults.sh): every rank calls an operator over and over; rank VICTIM kills
 * or stops itself after a while, from a thread of its own, so that it hits any step. The survivors
 * check what their call returned, how soon, and that everything can be taken down afterwards. On a
 * device it waits for two calls besides, of which the first finds and loads what it needs.
 *
 * faults ag|rs|ar METHOD kill|stop|exit VICTIM AFTER_MS [calm]
 *
 * Where ranks have no memory in common, FAULT_CLOCK names a file of 64 bytes for the time.
 *
 * LAP_DEVICE chooses the device. Calls delay random steps, unless calm: then a device that can keeps
 * the call as a graph, and the fault hits replays of it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "data.h"
#include "overlap/op.h"
#include "tap.h"
#include "util/clock.h"

static _Atomic uint64_t calls_ended; /* of this rank */

static struct {
    lap_op_kind_t kind;
    const char *method;
    const char *fault;
    int victim;
    int after_ms;
    bool calm;
    uint64_t calls_first; /* which the victim lives to see the end of */
} plan;

/* The end of the victim. It first writes the time into memory that the others can see. */
static void *end_myself(void *arg)
{
    _Atomic uint64_t *when = arg;
    while (atomic_load(&calls_ended) < plan.calls_first)
        usleep(1000);
    usleep((useconds_t)plan.after_ms * 1000);
    atomic_store(when, lap_now_ns());
    if (strcmp(plan.fault, "exit") == 0)
        _exit(3);
    kill(getpid(), strcmp(plan.fault, "stop") == 0 ? SIGSTOP : SIGKILL);
    return NULL;
}

static lap_op_desc_t describe(void)
{
    const bool whole = strcmp(plan.method, "cublasmp") == 0; /* it cannot do a few rows more */
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = plan.kind;
    desc.m = whole ? 32 : 37;
    desc.n = 24;
    desc.k = 16;
    desc.dtype = whole ? LAP_BFLOAT16 : LAP_FLOAT32;
    desc.method = plan.method;
    return desc;
}

static test_call_t call_of(lap_group_t *group, uint64_t seed)
{
    const lap_op_desc_t desc = describe();
    test_call_t call = {.desc = desc,
                        .m = desc.m,
                        .seed = seed,
                        .rank = lap_group_rank(group),
                        .size = lap_group_size(group),
                        .device = test_device(group),
                        .exact = true};
    test_call_init(&call);
    return call;
}

/*
 * What a call returns that is refused. Where there is memory on a device, it is given, without data.
 */
static lap_status_t call_again(lap_op_t *op, lap_group_t *group, void *far)
{
    test_call_t call = call_of(group, 0);
    const lap_op_args_t args = far ? test_call_args_at(&call, far) : call.args;
    const lap_status_t status = lap_op_run(op, &args);
    test_call_clear(&call);
    return status;
}

/*
 * Calls until one fails. A call that succeeds must be right: no wrong data before the failure
 * either. All calls have the same memory on a device.
 */
static lap_status_t call_until_failure(lap_op_t *op, lap_group_t *group)
{
    void *far = NULL;
    for (uint64_t seed = 0;; seed++) {
        test_call_t call = call_of(group, seed);
        call.far = far;
        lap_status_t status = test_call_run(op, &call);
        lap_saved_error_t saved;
        lap_error_save(&saved);
        if (status == LAP_OK && test_call_error(&call) != 0)
            tap_ok(false, "call %llu is right", (unsigned long long)seed);
        far = call.far;
        call.far = NULL;
        test_call_clear(&call);
        /* A GPU that fails of the fault may do so while we copy: then the operator tells the cause. */
        if (status == LAP_ERR_SYSTEM) {
            status = call_again(op, group, far);
            lap_error_save(&saved);
        }
        atomic_fetch_add(&calls_ended, 1);
        if (status == LAP_OK)
            continue;
        call = (test_call_t){.device = test_device(group), .far = far};
        test_call_forget(&call);
        lap_error_restore(&saved); /* a GPU that is given up says so of each call */
        return status;
    }
}

/* What a sentence tells: at which signal it was found out, or just before, or by the device. */
static const char *way_found(void)
{
    static const char *const ways[] = {"was about to call", "was in", "waited in"};
    for (int i = 0; i < 2; i++)
        if (strstr(lap_last_error(), ways[i]))
            return ways[i];
    return ways[2];
}

static void check_failure(lap_status_t status, uint64_t fault_ns, int victim, bool hosts)
{
    const bool stopped = strcmp(plan.fault, "stop") == 0;
    const double late = (double)(lap_now_ns() - fault_ns) * 1e-9, limit = hosts ? 2 : 5;
    char rank[32] = "rank ";
    /* Nobody sees the processes of another host: who is stopped there, those who wait can but guess. */
    const bool seen = !getenv("FAULT_CLOCK");
    if (seen || !stopped)
        snprintf(rank, sizeof(rank), seen ? "rank %d (pid" : "rank %d", victim);
    tap_ok(fault_ns != 0 && late < (stopped ? 10 : limit), "the call failed %.3f s after the fault",
           late);
    const char *way = way_found();
    const bool waited = strcmp(way, "waited in") == 0;
    tap_failure(status, stopped ? LAP_ERR_TIMEOUT : LAP_ERR_PEER_LOST, lap_op_kind_name(plan.kind),
                plan.method, way, waited ? "step" : rank, waited ? "signal" : rank, rank,
                !stopped ? "has died"
                : seen   ? "is stopped"
                         : "timeout after",
                NULL);
    tap_note("%s", lap_last_error());
}

/*
 * Memory that all ranks see, for the time at which the victim ends: it must be readable, whatever
 * the operator goes over.
 */
static _Atomic uint64_t *map_clock(lap_group_t *group, lap_buffer_t **clock_p)
{
    const char *path = getenv("FAULT_CLOCK");
    lap_buffer_options_t mapped = LAP_BUFFER_OPTIONS_INIT;
    mapped.transport = "shm";
    if (!path)
        return tap_success(lap_buffer_create(group, 64, 0, &mapped, clock_p),
                           "a buffer for the time")
                   ? lap_buffer_data(*clock_p, plan.victim)
                   : NULL;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    void *memory = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return tap_ok(memory != MAP_FAILED, "a file for the time") ? memory : NULL;
}

static void survive(lap_world_t *world)
{
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_world_rank(world);
    lap_buffer_t *clock = NULL;
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe();
    _Atomic uint64_t *when = map_clock(group, &clock);
    if (!when || !tap_success(lap_op_create(group, &desc, &op), "the operator"))
        return;
    if (!plan.calm)
        lap_op_set_chaos(op, 1234567u + (uint64_t)rank);
    pthread_t thread;
    plan.calls_first = test_device(group) ? 2 : 0;
    if (rank == plan.victim)
        pthread_create(&thread, NULL, end_myself, (void *)when);
    lap_status_t status = call_until_failure(op, group);
    if (rank != plan.victim) {
        check_failure(status, atomic_load(when), plan.victim, !test_device(group));
        tap_ok(call_again(op, group, NULL) == status, "a later call fails in the same way");
        tap_ok(lap_group_barrier(group) == status, "so does a barrier");
    }
    lap_op_destroy(op);
    lap_buffer_destroy(clock);
}

int main(int argc, char **argv)
{
    if (argc != 6 && !(argc == 7 && strcmp(argv[6], "calm") == 0))
        return 2;
    plan.kind = strcmp(argv[1], "ag") == 0   ? LAP_AG_GEMM
                : strcmp(argv[1], "rs") == 0 ? LAP_GEMM_RS
                                             : LAP_GEMM_AR;
    plan.method = argv[2];
    plan.fault = argv[3];
    plan.victim = atoi(argv[4]);
    plan.after_ms = atoi(argv[5]);
    plan.calm = argc == 7;
    const int fds = tap_count_fds();
    lap_world_t *world;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return tap_done();
    survive(world);
    const bool survivor = lap_world_rank(world) != plan.victim;
    const bool hosts = test_device(lap_world_group(world)) == NULL;
    lap_world_destroy(world);
    /* The driver of a GPU, and MPI, which cannot be ended without all ranks, keep some. */
    if (hosts && !getenv("LAP_TRANSPORT"))
        tap_ok(tap_count_fds() == fds, "no file descriptor is left open");
    int status = tap_done();
    if (status == 0 && survivor)
        printf("survivor is well\n");
    /* A stopped rank never ends by itself: a survivor that fails makes `lap run` end it. */
    return status == 0 && strcmp(plan.fault, "stop") == 0 ? 4 : status;
}
