/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher: starts the ranks of a job on this machine, watches over them, and ends them
 * together. The ranks find one another through the environment that it gives them: LAP_RANK,
 * LAP_SIZE, LAP_JOB, and LAP_DIR, a directory of the job's own in which rank 0 makes its socket;
 * and their GPUs by what gpu_share.h has.
 */
#ifndef LAP_CLI_LAUNCH_H
#define LAP_CLI_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

#include "core/environment.h"
#include "gpu_share.h"

typedef struct lap_launch {
    const char *name;    /* begins every message: "lap run" */
    int nranks;          /* 1 to LAP_LAUNCH_MAX */
    const char *program; /* the file to run; NULL: argv[0], looked up in PATH */
    char *const *argv;   /* of each rank; ends with NULL */
    bool prefix;         /* write whole lines of the ranks with "[rank] " before them */
    double grace_s;      /* how long ranks may take to end after a failure or a signal; negative: */
    double stop_s; /* ... LAP_LAUNCH_GRACE_S after a failure; after a signal this, or, where it */
                   /* is 0, LAP_LAUNCH_STOP_S */
    const char *timeout; /* LAP_TIMEOUT_S of the ranks, in seconds; NULL: the environment's */
    lap_gpu_mode_t gpus; /* how ranks get their GPUs, or parts of one */
    const lap_gpu_answer_t *gpu_answer; /* of the driver; NULL: it has not been asked yet */
    bool queues;       /* ranks want as many hardware queues of their GPUs as they can have */
    unsigned reported; /* bits: exit statuses whose cause the ranks have printed themselves */
    bool needs_reader; /* without a reader of standard output the job ends, as by SIGPIPE */
} lap_launch_t;

#define LAP_LAUNCH_MAX 1024
/* A job has ended within 2 s of a failure; who is only asked to stop may have something to put away. */
#define LAP_LAUNCH_GRACE_S 1.0
#define LAP_LAUNCH_STOP_S 3.0

/*
 * Runs a job to its end. Standard input goes to rank 0, unless it is a terminal. Returns the exit
 * status for the launching process: 0 when every rank ended well; that of the first rank that
 * failed (128 + n when signal n killed it); 128 + n when signal n asked the launcher itself to end;
 * 127 or 126 when the program cannot be run; 1 when a rank cannot be started or output not written.
 * No rank, no descendant in its process group, no daemon and no directory outlives the call.
 */
int lap_launch(const lap_launch_t *job);

#endif
