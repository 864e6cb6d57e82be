/* SPDX-License-Identifier: Apache-2.0 */
/* Starts threads that stay out of the program's way: see thread.h. Joining them is pthread_join. */
#include "util/thread.h"

#include <signal.h>

int lap_thread_start(pthread_t *thread_p, const char *name, void *(*main)(void *context),
                     void *context)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread inherits the mask */
    int error = pthread_create(thread_p, NULL, main, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_setname_np(*thread_p, name);
    return error;
}
