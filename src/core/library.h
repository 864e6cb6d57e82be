/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of others that are loaded when they are first used, and linked by nobody. */
#ifndef LAP_CORE_LIBRARY_H
#define LAP_CORE_LIBRARY_H

#include <stdbool.h>

#include <lap/status.h>

typedef struct lap_library {
    const char *title;
    const char *variable; /* of the environment, which may name its file */
    const char *names[4]; /* of files, NULL after the last */
    const char *dir;      /* where the build found it */
    const char *least;    /* the version that has all that is used; NULL: any */
    const char *advice;   /* what to do where there is none; NULL: nothing is known */
    bool
        global; /* its symbols are for all: its own plugins want them, and tools may replace them */
} lap_library_t;

/*
 * Opens what the variable names and nothing else; without it, what the program's own search path
 * leads to, then what is where the build found it. It stays in the process for as long as nobody
 * closes it. LAP_ERR_UNSUPPORTED says what is missing, and where it was looked for.
 */
lap_status_t lap_library_open(const lap_library_t *library, void **handle_p);

/* Takes it out of the process, unless others use it. Only for a library that can be taken out. */
void lap_library_close(void *handle);

/* Writes the address of a symbol to the pointer at `field`. LAP_ERR_UNSUPPORTED: there is none. */
lap_status_t lap_library_find(const lap_library_t *library, void *handle, const char *name,
                              void *field);

#endif
