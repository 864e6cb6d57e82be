/* SPDX-License-Identifier: Apache-2.0 */
/* Rendezvous directory, environment, fork and exec of the ranks: see spawn.h. */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cuda/cuda_facts.h"
#include "failures.h"
#include "util/cores.h"

#define GPU_QUEUES 64 /* hardware queues of a GPU for all of its ranks; 128 were refused */

/* Sets a variable, in the place of one the user has; unless `replace`, then the user's stays. */
static void set_variable(lap_spawn_t *spawn, size_t slot, bool replace, const char *name,
                         const char *value)
{
    char *text = spawn->texts[slot];
    if (value == NULL || (!replace && getenv(name)))
        return;
    snprintf(text, sizeof(spawn->texts[slot]), "%s=%s", name, value);
    size_t length = strlen(name) + 1;
    char **entry = spawn->environment;
    while (*entry && strncmp(*entry, text, length) != 0)
        entry++;
    *entry = text;
}

/* Whether a variable of ours is not for the ranks. */
static bool is_dropped(const lap_spawn_t *spawn, const char *entry)
{
    /* The last ones concern GPUs. A thread percentage would keep ranks from taking their parts. */
    static const char *const names[] = {"LAP_RANK=", "LAP_STDERR=", "LAP_GPU=", "LAP_GPU_PART=",
                                        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="};
    const size_t count = spawn->gpus->ngpus ? sizeof(names) / sizeof(names[0]) : 2;
    for (size_t i = 0; i < count; i++)
        if (strncmp(entry, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Copies our environment, with the ranks' own first and room for what set_variable adds. */
static bool copy_environment(lap_spawn_t *spawn)
{
    size_t count = 0, used = 0;
    size_t ours = LAP_SPAWN_OWN + sizeof(spawn->texts) / sizeof(spawn->texts[0]);
    while (environ[count])
        count++;
    spawn->environment = calloc(count + ours + 1, sizeof(char *));
    if (!spawn->environment)
        return false;
    while (used < LAP_SPAWN_OWN) {
        spawn->environment[used] = spawn->rank_texts[used];
        used++;
    }
    for (size_t i = 0; i < count; i++)
        if (!is_dropped(spawn, environ[i]))
            spawn->environment[used++] = environ[i];
    return true;
}

/* The environment of a rank: all begin with what is its own, so far as it has that. */
static char **rank_environment(lap_spawn_t *spawn, int rank)
{
    const size_t bytes = sizeof(spawn->rank_texts[0]);
    lap_failure_mark(spawn->rank_texts[3], bytes);
    snprintf(spawn->rank_texts[2], bytes, "LAP_RANK=%d", rank);
    if (spawn->gpus->ngpus == 0)
        return spawn->environment + 2;
    const lap_gpu_place_t place = lap_gpu_place(spawn->gpus, rank);
    snprintf(spawn->rank_texts[1], bytes, "LAP_GPU=%d", place.gpu);
    if (place.nparts == 1)
        return spawn->environment + 1;
    snprintf(spawn->rank_texts[0], bytes, "LAP_GPU_PART=%d/%d", place.part, place.nparts);
    return spawn->environment;
}

/*
 * The hardware queues of a rank, of which those that share a GPU have only a few by themselves. Streams
 * that share one wait for each other: gradients and messages on their way would hold up the layers.
 */
static const char *queues_of(const lap_spawn_t *spawn, char text[8])
{
    if (!spawn->launch->queues || spawn->gpus->ngpus == 0)
        return NULL;
    const int shared = GPU_QUEUES / lap_gpu_place(spawn->gpus, 0).nparts;
    const int most = shared < LAP_CUDA_QUEUES_MOST ? shared : LAP_CUDA_QUEUES_MOST;
    snprintf(text, 8, "%d", most > 1 ? most : 1);
    return text;
}

static bool make_environment(lap_spawn_t *spawn)
{
    uint64_t id;
    if (!copy_environment(spawn) || getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id))
        return false;
    char size[16], name[24], threads[16], queues[8];
    int nranks = spawn->launch->nranks, cores = lap_cores();
    snprintf(size, sizeof(size), "%d", nranks);
    snprintf(name, sizeof(name), "%016llx", (unsigned long long)id);
    snprintf(threads, sizeof(threads), "%d", cores > nranks ? cores / nranks : 1);
    set_variable(spawn, 0, true, "LAP_SIZE", size);
    set_variable(spawn, 1, true, "LAP_DIR", spawn->place.dir);
    set_variable(spawn, 2, true, "LAP_JOB", name);
    set_variable(spawn, 3, true, "LAP_TIMEOUT_S", spawn->launch->timeout);
    /* As torchrun does: ranks that each use all cores would only be in one another's way. */
    set_variable(spawn, 4, false, "OPENBLAS_NUM_THREADS", threads);
    set_variable(spawn, 5, false, "OMP_NUM_THREADS", threads);
    /* All ranks are clients of the daemon, also a single one on its GPU: they share memory. */
    const lap_mps_t *mps = &spawn->gpus->mps;
    set_variable(spawn, 6, true, "CUDA_MPS_PIPE_DIRECTORY", mps->dir[0] ? mps->pipe : NULL);
    set_variable(spawn, 7, true, "CUDA_MPS_LOG_DIRECTORY", mps->dir[0] ? mps->log : NULL);
    set_variable(spawn, 8, false, "CUDA_DEVICE_MAX_CONNECTIONS", queues_of(spawn, queues));
    return true;
}

bool lap_spawn_init(lap_spawn_t *spawn, const lap_launch_t *launch, const lap_gpu_share_t *gpus,
                    char why[LAP_SPAWN_WHY])
{
    *spawn = (lap_spawn_t){.launch = launch, .gpus = gpus};
    if (!lap_place_make(&spawn->place)) {
        snprintf(why, LAP_SPAWN_WHY, "there is no place for the ranks to meet: %.400s",
                 lap_last_error());
        return false;
    }
    if (!make_environment(spawn)) {
        snprintf(why, LAP_SPAWN_WHY, "cannot make the environment of the ranks: %s",
                 strerror(errno));
        return false;
    }
    return true;
}

void lap_spawn_clear(lap_spawn_t *spawn)
{
    lap_place_remove(&spawn->place);
    free(spawn->environment);
    *spawn = (lap_spawn_t){0};
}

/* What keeps a child from becoming a rank. */
typedef struct child_error {
    bool in_exec;
    int error;
} child_error_t;

/* Turns the child of a fork into a rank, up to exec. False with errno when something fails. */
static bool become_rank(lap_spawn_t *spawn, int rank, pid_t parent, const int output[2])
{
    setpgid(0, 0);
    /* If the launcher is gone already, the signal of its death has been missed. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        return false;
    if (rank != 0 || isatty(STDIN_FILENO)) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null < 0 || dup2(null, STDIN_FILENO) < 0)
            return false;
    }
    if ((output[0] >= 0 && dup2(output[0], STDOUT_FILENO) < 0) ||
        (output[1] >= 0 && dup2(output[1], STDERR_FILENO) < 0))
        return false;
    /* Also what our own caller left open; an old kernel refuses, and then that stays open. */
    close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    setrlimit(RLIMIT_NOFILE, &spawn->files);
    /* Where the launcher ends the job when nobody reads, no rank need die of it before. */
    struct sigaction pipe = {.sa_handler = spawn->launch->needs_reader ? SIG_IGN : SIG_DFL};
    sigaction(SIGPIPE, &pipe, NULL);
    signal(SIGXFSZ, SIG_DFL); /* see lap.c */
    return sigprocmask(SIG_SETMASK, &spawn->mask, NULL) == 0;
}

static const char *program_name(const lap_launch_t *launch)
{
    return launch->program ? launch->program : launch->argv[0];
}

static _Noreturn void run_child(lap_spawn_t *spawn, int rank, pid_t parent, const int output[2],
                                int report)
{
    child_error_t error = {false, 0};
    if (become_rank(spawn, rank, parent, output)) {
        execvpe(program_name(spawn->launch), spawn->launch->argv, rank_environment(spawn, rank));
        error.in_exec = true;
    }
    error.error = errno;
    ssize_t written = write(report, &error, sizeof(error));
    _exit(written == (ssize_t)sizeof(error) ? 127 : 126);
}

/* Waits until the child runs the program: exec closes its end of the pipe. Otherwise reaps it. */
static int await_exec(lap_spawn_t *spawn, int rank, pid_t pid, int report, char why[LAP_SPAWN_WHY])
{
    child_error_t error;
    ssize_t count;
    do {
        count = read(report, &error, sizeof(error));
    } while (count < 0 && errno == EINTR);
    if (count != (ssize_t)sizeof(error))
        return 0;
    waitpid(pid, NULL, 0);
    if (!error.in_exec) {
        snprintf(why, LAP_SPAWN_WHY, "cannot start rank %d: %s", rank, strerror(error.error));
        return 1;
    }
    snprintf(why, LAP_SPAWN_WHY, "cannot run '%.300s': %s", program_name(spawn->launch),
             strerror(error.error));
    return error.error == ENOENT ? 127 : 126;
}

int lap_spawn_rank(lap_spawn_t *spawn, int rank, const int output[2], pid_t *pid_p,
                   char why[LAP_SPAWN_WHY])
{
    int report[2];
    *pid_p = 0;
    if (pipe2(report, O_CLOEXEC) != 0) {
        snprintf(why, LAP_SPAWN_WHY, "cannot start rank %d: %s", rank, strerror(errno));
        return 1;
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        run_child(spawn, rank, parent, output, report[1]);
    int result = 1;
    if (pid < 0)
        snprintf(why, LAP_SPAWN_WHY, "cannot start rank %d: %s", rank, strerror(errno));
    close(report[1]);
    if (pid > 0)
        result = await_exec(spawn, rank, pid, report[0], why);
    close(report[0]);
    if (result == 0)
        *pid_p = pid;
    return result;
}
