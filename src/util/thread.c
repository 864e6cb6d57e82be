/* SPDX-License-Identifier: Apache-2.0 */
/* Starts threads that stay out of the program's way: see thread.h. Joining them is pthread_join. */
#include "util/thread.h"

#include <signal.h>

/* For GEMMs of the BLAS, calls of MPI and of the driver, and our own sentences. */
#define STACK_BYTES ((size_t)2 << 20)

int lap_thread_start(pthread_t *thread_p, const char *name, void *(*main)(void *context),
                     void *context)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread inherits the mask */
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error == 0) {
        /* Not what ulimit -s happens to say, which may be far too little, or without an end. */
        (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
        error = pthread_create(thread_p, &attributes, main, context);
        pthread_attr_destroy(&attributes);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_setname_np(*thread_p, name);
    return error;
}
