/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A private MPS daemon, without which processes that share a GPU would take turns on it. A
 * guardian, a process of its own, starts the daemon and takes it down when the launcher asks for it
 * or is no more, even after kill -9: everything that MPS starts becomes the guardian's child, and
 * the guardian ends last. The machine's other daemons are not touched.
 */
#ifndef LAP_CLI_MPS_H
#define LAP_CLI_MPS_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "core/environment.h"

/* The program that starts and steers the daemon; it comes with the driver. */
#define LAP_MPS_CONTROL "nvidia-cuda-mps-control"

typedef struct lap_mps {
    char dir[LAP_DIR_BYTES];  /* private to the job, with the two below in it; "": no daemon */
    char pipe[LAP_DIR_BYTES]; /* CUDA_MPS_PIPE_DIRECTORY of the daemon and its clients */
    char log[LAP_DIR_BYTES];  /* CUDA_MPS_LOG_DIRECTORY */
    pid_t guardian;
    int hold; /* the guardian acts when this end of a pipe is closed */
} lap_mps_t;

#define LAP_MPS_WHY 512

/* Where the control program is; false: not in PATH. */
bool lap_mps_find(char path[PATH_MAX]);

/*
 * Starts the daemon and returns when it answers. False, with a sentence without an end, and with
 * nothing left, when it does not.
 */
bool lap_mps_start(lap_mps_t *mps_p, char why[LAP_MPS_WHY]);

/*
 * Takes the daemon down and removes its directory; within some seconds. False when it had to be
 * killed. Does nothing for a zeroed struct.
 */
bool lap_mps_stop(lap_mps_t *mps);

#endif
