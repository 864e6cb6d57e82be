/* SPDX-License-Identifier: Apache-2.0 */
/* Starts threads that stay out of the program's way: see thread.h. Joining them is pthread_join. */
#include "util/thread.h"

#include <sched.h>
#include <signal.h>

/* For GEMMs of the BLAS, calls of MPI and of the driver, and our own sentences. */
#define STACK_BYTES ((size_t)2 << 20)

int lap_thread_start(pthread_t *thread_p, const char *name, void *(*main)(void *context),
                     void *context)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV); /* a fault of the thread itself: see host_guard.h */
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

/*
 * Of a real-time policy a thread keeps its core for as long as it likes: what wakes up meanwhile
 * with the same priority waits until it sleeps. Other policies let threads that sleep much go
 * first.
 */
void lap_thread_be_urgent(void)
{
    struct sched_param own;
    int policy;
    if (pthread_getschedparam(pthread_self(), &policy, &own) != 0 ||
        (policy != SCHED_FIFO && policy != SCHED_RR))
        return;
    own.sched_priority++;
    (void)pthread_setschedparam(pthread_self(), policy, &own);
}
