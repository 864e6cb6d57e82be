/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that we write where the user says. They are written in the same folder and renamed when
 * they are complete: what was there stays until then. A link at their place is followed if it is
 * this user's or root's; somebody else's would let him choose which of our files is overwritten.
 */
#ifndef LAP_CORE_OUTPUT_H
#define LAP_CORE_OUTPUT_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/status.h"

typedef struct lap_output {
    FILE *file; /* without a descriptor of its own: that is fd */
    int fd;
    int error;               /* errno of the first write that failed; 0: none did */
    const char *what, *path; /* for sentences: as the user knows it */
    char place[PATH_MAX];    /* where the links have led to */
    char temporary[PATH_MAX];
} lap_output_t;

/*
 * Opens a file for writing. `what` says what it is: "the timeline". What is there already must be a
 * regular file that this user may write; the new one gets its mode. `what` and `path` must live
 * until lap_output_close, and the output itself stay where it is. LAP_ERR_INVALID: the path is
 * empty.
 */
lap_status_t lap_output_open(const char *what, const char *path, lap_output_t *output_p);

/* The same of a file that sentences have another name for, which must live as long. */
lap_status_t lap_output_open_as(const char *what, const char *name, const char *path,
                                lap_output_t *output_p);

/*
 * Ends it, when what was to be written came to `status`: puts the file in its place if that is
 * LAP_OK and all of it could be written. Returns the first failure, with its sentence.
 */
lap_status_t lap_output_close(lap_output_t *output, lap_status_t status);

/* Whether it could be written; nothing is changed. */
lap_status_t lap_output_check(const char *what, const char *path);

/* Whether two paths are one file, which need not be there yet. */
bool lap_output_same(const char *path, const char *other);

#endif
