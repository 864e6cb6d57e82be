/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed, and the others destroy their operator: each looks for dead ranks then, and is done long before its
 * timeout. Started by `lap run` (see destroyed.sh), as
 *
 * destroyed begun    a call is in progress, which nobody has ended; the last rank dies in it
 * destroyed dead     the last rank is dead, and cuBLASMp would wait for it in what takes a buffer back
 * destroyed inside   ... it dies while the others are in there
 *
 * The fake cuBLASMp waits for nobody: FAKE_LATE makes it as late as if it did.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/group.h"
#include "core/world.h"
#include "data.h"
#include "tap.h"
#include "util/alloc.h"
#include "util/clock.h"

#define SOON_S 8.0 /* far less than the timeout, which is 20 s, and than FAKE_LATE */

static const struct {
    const char *name, *method;
    bool calls, dies_first;
} cases[] = {{"begun", "ring", true, false},
             {"dead", "cublasmp", false, true},
             {"inside", "cublasmp", false, false}};

static lap_op_desc_t describe(const char *method, int size)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_GEMM_RS;
    desc.m = desc.n = desc.k = 8 * (size_t)size;
    desc.dtype = LAP_BFLOAT16;
    desc.method = method;
    return desc;
}

static test_call_t call_of(lap_group_t *group, const lap_op_desc_t *desc)
{
    test_call_t call = {.desc = *desc,
                        .m = desc->m,
                        .seed = 5,
                        .rank = lap_group_rank(group),
                        .size = lap_group_size(group),
                        .device = test_device(group),
                        .exact = true};
    test_call_init(&call);
    return call;
}

/* In a call when all others wait in it; before they are inside cuBLASMp, which nobody sees, it is dead too soon, no more. */
static void die(const lap_group_t *group, size_t c)
{
    for (int r = 0; cases[c].calls && r < lap_group_rank(group); r++)
        while (atomic_load(&lap_group_blocked_record(group, r)->number) == 0)
            usleep(1000);
    usleep(cases[c].dies_first ? 0 : 300000);
    kill(getpid(), SIGKILL);
}

static void await_death(int pid)
{
    struct pollfd death = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    while (death.fd >= 0 && poll(&death, 1, -1) < 0 && errno == EINTR)
        continue;
    if (death.fd >= 0)
        close(death.fd);
}

/* Whether this process has a thread that is inside cuBLASMp. */
static bool is_inside(void)
{
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (file && fgets(name, sizeof(name), file))
            found = found || strncmp(name, "lap-cublasmp", strlen("lap-cublasmp")) == 0;
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return found;
}

static void destroy(lap_group_t *group, lap_op_t *op, size_t c, int victim_pid)
{
    const lap_op_desc_t desc = describe(cases[c].method, lap_group_size(group));
    test_call_t call = call_of(group, &desc);
    if (cases[c].calls)
        tap_success(test_call_begin(op, &call),
                    "a call begins, to which the last rank never comes");
    else
        setenv("FAKE_LATE", "cublasMpBufferDeregister:60000", 1);
    if (cases[c].dies_first)
        await_death(victim_pid);
    const uint64_t begin = lap_now_ns();
    lap_op_destroy(op);
    const double took = (double)(lap_now_ns() - begin) * 1e-9;
    tap_ok(took < SOON_S, "the operator is destroyed in %.3f s", took);
    tap_ok(!cases[c].dies_first || !is_inside(), "nothing is given back with a rank that is dead");
    tap_failure(lap_group_barrier(group), LAP_ERR_PEER_LOST, "has died", NULL);
    test_call_clear(&call);
}

static void play(lap_world_t *world, size_t c)
{
    lap_group_t *group = lap_world_group(world);
    const int size = lap_group_size(group), rank = lap_group_rank(group), pid = getpid();
    const lap_op_desc_t desc = describe(cases[c].method, size);
    lap_op_t *op = NULL;
    void *pids = NULL;
    if (!tap_success(lap_group_collect(group, &pid, sizeof(pid), &pids), "pids"))
        return;
    const int victim_pid = ((const int *)pids)[size - 1];
    lap_free(pids);
    if (!tap_success(lap_op_create(group, &desc, &op), "an operator"))
        return;
    test_call_t call = call_of(group, &desc);
    tap_ok(test_call_run(op, &call) == LAP_OK && test_call_error(&call) == 0, "a call is right");
    test_call_clear(&call);
    tap_success(lap_group_barrier(group), "all are here");
    if (rank == size - 1)
        die(group, c);
    destroy(group, op, c, victim_pid);
}

int main(int argc, char **argv)
{
    lap_world_t *world;
    size_t c = 0;
    while (argc == 2 && c < 3 && strcmp(argv[1], cases[c].name) != 0)
        c++;
    if (argc != 2 || c == 3)
        return 2;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return tap_done();
    play(world, c);
    lap_world_destroy(world);
    const int status = tap_done();
    if (status == 0)
        printf("survivor is well\n");
    return status;
}
