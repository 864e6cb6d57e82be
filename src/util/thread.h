/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library's own. */
#ifndef LAP_UTIL_THREAD_H
#define LAP_UTIL_THREAD_H

#include <pthread.h>

/*
 * Starts a thread with all signals blocked, so that the program's handlers run on its own threads,
 * and with the stack that it needs, whatever the limits of the process are.
 * 0, or an errno.
 */
int lap_thread_start(pthread_t *thread_p, const char *name, void *(*main)(void *context),
                     void *context);

/*
 * Lets the calling thread have a core as soon as it has something to do, before threads that
 * compute: of a real-time policy it takes the next priority, where the system permits it. For
 * threads that do little at a time.
 */
void lap_thread_be_urgent(void);

#endif
