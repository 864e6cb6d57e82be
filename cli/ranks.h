/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subcommands that are a job of ranks: the process that the user starts reads the command line,
 * then starts itself once per rank, with the same arguments; or makes the ranks threads of its own.
 * Under lap run, mpirun and their like it is a rank already, and takes part in the world there is.
 */
#ifndef LAP_CLI_RANKS_H
#define LAP_CLI_RANKS_H

#include <stdbool.h>

#include <lap/world.h>

#include "cli.h"
#include "core/environment.h"
#include "gpu_share.h"

typedef struct lap_ranks {
    const char *name; /* begins every message: "lap bench" */
    int nranks;       /* to start; 0 where ranks exist: any number */
    double timeout_s; /* as in lap_world_options_t, */
    const char *device, *transport;
    lap_gpu_mode_t gpus;
    bool queues;   /* as in lap_launch_t */
    bool at_once;  /* a signal ends ranks at once: half of what they measure is of no use */
    double stop_s; /* the most that ranks may take to stop: see lap_interrupt_takes; 0: as ever */
    double device_bytes; /* that a rank needs at least where its device has its memory */
    lap_dtype_t dtype;   /* of what GEMMs multiply */
    unsigned reported;   /* bits: further exit statuses whose cause a rank has printed */
    /* Looks at the number of ranks before any starts: LAP_CLI_GO, or an exit status. */
    int (*check)(const void *context, int nranks);
    /* The work of one rank; its exit status. */
    int (*run)(const void *context, lap_world_t *world);
    /* (optional) Before a process makes its world, and after that has ended well. */
    lap_status_t (*start)(const void *context, const lap_environment_t *environment);
    void (*end)(const void *context);
    const void *context;    /* the struct of the options, */
    const lap_args_t *args; /* which the ranks compare in their first collective */
} lap_ranks_t;

/*
 * Runs a job to its end and returns the exit status. `argv` is as the subcommand was given it, with
 * its name first, before parsing re-ordered it (lap_ranks_arguments keeps it).
 */
int lap_ranks_run(const lap_ranks_t *job, char *const *argv);

/*
 * Whether ranks that there are, or are to be started, can use a transport; prints a sentence and
 * returns false if not. `given` is the value of --transport, or NULL.
 */
bool lap_ranks_suit(const lap_command_t *command, const char *given, const char *transport,
                    int nranks);

/*
 * How ranks share GPUs: by the value of --gpu-share, or, where that is NULL, as it is best for the device.
 * Prints a sentence and returns false for what it cannot mean there: without GPUs, or where the
 * ranks have been started already.
 */
bool lap_ranks_gpus(const lap_command_t *command, const char *given, const char *device,
                    lap_gpu_mode_t *mode_p);

/* How many of that many ranks this machine runs, or would. */
int lap_ranks_here(int nranks);

/* Whether the launcher has started ranks on several hosts. */
bool lap_ranks_span(void);

/*
 * The command line to start ranks with: "lap", and argv[0..argc). The caller frees it with
 * lap_free; NULL, after a sentence, when there is no memory.
 */
char **lap_ranks_arguments(const lap_command_t *command, int argc, char **argv);

/*
 * Frees it, at the end of the command. Where a launcher started this rank, and it has refused its command line or could
 * not begin, the other ranks learn why: they would wait for it. Returns the exit status.
 */
int lap_ranks_end(char **again, int status);

/*
 * Reports why a rank failed, with lap_last_error, for its launcher to print once for all ranks that report
 * the same, or prints it. Returns the exit status, with which the rank must end. `rank` is -1 when it
 * does not know its own.
 */
int lap_ranks_fail(const char *name, int rank, lap_status_t status);

/* Prints, at once, what has failed in a rank that goes on. */
void lap_ranks_warn(const char *name, int rank, lap_status_t status);

#endif
