/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory where the ranks of a job meet. The launcher makes it and keeps it, open, for the
 * whole job, so that nobody else can have its name meanwhile. A guardian, a process of its own,
 * removes it if the launcher is killed.
 */
#ifndef LAP_CLI_PLACE_H
#define LAP_CLI_PLACE_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/environment.h"

typedef struct lap_place {
    char dir[LAP_DIR_BYTES]; /* "": there is none */
    int fd;                  /* of the directory */
    int hold;                /* the guardian acts when this end of a pipe is closed */
    pid_t guardian;
} lap_place_t;

/*
 * Makes the directory. False, with a sentence in lap_last_error and with nothing left, when that
 * cannot be done.
 */
bool lap_place_make(lap_place_t *place_p);

/*
 * Removes the directory and a socket that a rank may have left there. What ranks have put there
 * themselves stays, and then so does the directory. Does nothing for a zeroed struct.
 */
void lap_place_remove(lap_place_t *place);

#endif
