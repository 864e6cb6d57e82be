/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that are urgent go before those that compute, where a policy is real-time. */
#include <sched.h>
#include <stddef.h>

#include "tap.h"
#include "util/thread.h"

/* The priority of a thread that was made urgent, and its policy. */
static void *be_urgent(void *context)
{
    int *found = context;
    struct sched_param param;
    lap_thread_be_urgent();
    (void)pthread_getschedparam(pthread_self(), &found[0], &param);
    found[1] = param.sched_priority;
    return NULL;
}

static void expect(int policy, int priority, const char *what)
{
    int found[2] = {-1, -1};
    pthread_t thread;
    tap_ok(lap_thread_start(&thread, "urgent", be_urgent, found) == 0, "a thread starts");
    pthread_join(thread, NULL);
    tap_ok(found[0] == policy && found[1] == priority,
           "%s: policy %d with priority %d, expected %d and %d", what, found[0], found[1], policy,
           priority);
}

int main(void)
{
    const struct sched_param none = {.sched_priority = 0}, some = {.sched_priority = 3};
    int policy;
    struct sched_param before;
    (void)pthread_getschedparam(pthread_self(), &policy, &before);
    const bool may = pthread_setschedparam(pthread_self(), SCHED_OTHER, &none) == 0;
    if (may)
        expect(SCHED_OTHER, 0, "without a real-time policy nothing changes");
    else
        expect(policy, before.sched_priority, "what may not change does not");
    /* A user without rights for it cannot have this policy, and then has nothing to be urgent with. */
    if (pthread_setschedparam(pthread_self(), SCHED_RR, &some) == 0) {
        expect(SCHED_RR, 4, "a real-time thread takes the next priority");
        const struct sched_param most = {.sched_priority = sched_get_priority_max(SCHED_FIFO)};
        (void)pthread_setschedparam(pthread_self(), SCHED_FIFO, &most);
        expect(SCHED_FIFO, most.sched_priority, "above the highest there is none");
    }
    return tap_done();
}
