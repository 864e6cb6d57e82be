/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting ranks: the place where they meet, the environment that ranks find one another by, fork
 * and exec. What happens to a rank once it runs is launch.c's business.
 */
#ifndef LAP_CLI_SPAWN_H
#define LAP_CLI_SPAWN_H

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "launch.h"
#include "place.h"

enum { LAP_SPAWN_OWN = 4 }; /* variables that differ from rank to rank */

/* What all ranks of a job are started with. */
typedef struct lap_spawn {
    const lap_launch_t *launch;
    lap_place_t place; /* where the ranks meet */
    const lap_gpu_share_t *gpus;
    char **environment; /* begins with rank_texts, of which a rank may get only the last ones */
    char rank_texts[LAP_SPAWN_OWN][64]; /* LAP_GPU_PART, LAP_GPU, LAP_RANK, LAP_STDERR */
    char texts[9][LAP_DIR_BYTES + 32];
    sigset_t mask;       /* of signals, for the ranks */
    struct rlimit files; /* for the ranks */
} lap_spawn_t;

#define LAP_SPAWN_WHY 512

/*
 * Makes the environment; `mask` and `files` are the caller's to set. On failure `why` is a sentence
 * without an end. `gpus` must live as long. lap_spawn_clear undoes it, also after a failure.
 */
bool lap_spawn_init(lap_spawn_t *spawn, const lap_launch_t *launch, const lap_gpu_share_t *gpus,
                    char why[LAP_SPAWN_WHY]);
void lap_spawn_clear(lap_spawn_t *spawn);

/*
 * Starts a rank in a process group of its own and returns when it runs the program. It writes to
 * output[0] and output[1], or, where these are -1, to the standard output and error of the caller.
 * Returns 0 with *pid_p; else the exit status for the job (127 and 126 as shells use them, 1 when
 * there is no process to be had) with `why`; *pid_p is then 0, and nothing is left of the rank.
 */
int lap_spawn_rank(lap_spawn_t *spawn, int rank, const int output[2], pid_t *pid_p,
                   char why[LAP_SPAWN_WHY]);

#endif
