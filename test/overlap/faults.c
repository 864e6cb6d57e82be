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
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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
    test_call_t call = test_exact_call(group, &desc, desc.m, seed);
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

/* ---- how late a failure is ---- */

/* What a survivor knows of the victim. Other programs may keep the victim from dying, and this rank from its cores. */
typedef struct witness {
    _Atomic uint64_t *clock; /* when it was about to end, and its pid */
    _Atomic uint64_t death;  /* 0: it lives, for all that is known */
    uint64_t starved;        /* by then, see starved_ns */
    pthread_t thread;
} witness_t;

/* For how long threads of this process have been ready to run and had no core; 0 where Linux does not tell. */
static uint64_t starved_ns(void)
{
    unsigned long long sum = 0, ran, waited;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300];
        snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (file && fscanf(file, "%llu %llu", &ran, &waited) == 2)
            sum += waited;
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return sum;
}

static void *await_death(void *arg)
{
    witness_t *witness = arg;
    while (atomic_load(&witness->clock[1]) == 0)
        usleep(1000);
    struct pollfd death = {.fd = (int)syscall(SYS_pidfd_open, atomic_load(&witness->clock[1]), 0),
                           .events = POLLIN};
    while (death.fd >= 0 && poll(&death, 1, -1) < 0 && errno == EINTR)
        continue;
    if (death.fd >= 0)
        close(death.fd);
    witness->starved = starved_ns();
    atomic_store(&witness->death, lap_now_ns());
    return NULL;
}

/* Seconds from the fault to now in which this rank could have noticed. */
static double time_since_fault(witness_t *witness, bool stopped)
{
    const uint64_t now = lap_now_ns(), starved = starved_ns();
    if (stopped)
        return (double)(now - atomic_load(witness->clock)) * 1e-9;
    pthread_join(witness->thread, NULL);
    const uint64_t death = witness->death;
    if (death >= now)
        return 0;
    const uint64_t waited = starved > witness->starved ? starved - witness->starved : 0;
    return now - death > waited ? (double)(now - death - waited) * 1e-9 : 0;
}

static void check_failure(lap_status_t status, witness_t *witness, int victim, bool hosts)
{
    const bool stopped = strcmp(plan.fault, "stop") == 0;
    lap_saved_error_t saved;
    lap_error_save(&saved);
    const double late = time_since_fault(witness, stopped), limit = hosts ? 2 : 5;
    lap_error_restore(&saved);
    const uint64_t fault_ns = atomic_load(witness->clock);
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
    witness_t witness = {.clock = when};
    plan.calls_first = test_device(group) ? 2 : 0;
    if (rank == plan.victim) {
        atomic_store(&when[1], (uint64_t)getpid());
        pthread_create(&witness.thread, NULL, end_myself, (void *)when);
    } else if (strcmp(plan.fault, "stop") != 0) {
        pthread_create(&witness.thread, NULL, await_death, &witness);
    }
    lap_status_t status = call_until_failure(op, group);
    if (rank != plan.victim) {
        check_failure(status, &witness, plan.victim, !test_device(group));
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
