/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that ask a rank at work to stop: see interrupt.h. */
#include "interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/status.h"
#include "core/world.h"
#include "launch.h"
#include "util/alloc.h"
#include "util/clock.h"

static const int numbers[] = {SIGINT, SIGTERM};
enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };

static _Atomic int asked;         /* the signal that did; atomic, for any thread may take it, */
static _Atomic uint64_t asked_ns; /* and when */
static int caught[NUMBERS];

/* It does what it always does, once the handler has returned. */
static void end_by(int number)
{
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(number, &standard, NULL);
    raise(number);
}

static void take(int number)
{
    const uint64_t now = lap_now_ns();
    uint64_t before = 0;
    if (number == SIGALRM) {
        end_by(atomic_load(&asked));
    } else if (atomic_compare_exchange_strong(&asked_ns, &before, now)) {
        atomic_store(&asked, number);
        alarm((unsigned)LAP_LAUNCH_GRACE_S); /* whoever cannot stop within the grace is ended */
    } else if (now >= before + LAP_INTERRUPT_ONCE_NS) {
        end_by(number);
    }
}

void lap_interrupt_begin(void)
{
    const struct sigaction ours = {.sa_handler = take, .sa_flags = SA_RESTART};
    struct sigaction action;
    sigaction(SIGALRM, &ours, NULL);
    for (size_t i = 0; i < NUMBERS; i++)
        caught[i] = sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_DFL &&
                    sigaction(numbers[i], &ours, NULL) == 0;
}

void lap_interrupt_end(void)
{
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    for (size_t i = 0; i < NUMBERS; i++)
        if (caught[i])
            sigaction(numbers[i], &standard, NULL);
    alarm(0);
    sigaction(SIGALRM, &standard, NULL);
}

int lap_interrupt_here(void)
{
    return atomic_load_explicit(&asked, memory_order_relaxed);
}

void lap_interrupt_leave(void)
{
    const int number = lap_interrupt_here();
    if (number && lap_environment_launched())
        end_by(number);
}

lap_status_t lap_interrupt_agree(lap_group_t *group, int *signal_p)
{
    const int mine = lap_interrupt_here();
    int most = 0;
    void *all;
    LAP_TRY(lap_group_collect(group, &mine, sizeof(mine), &all));
    for (int rank = 0; rank < lap_group_size(group); rank++)
        most = ((const int *)all)[rank] > most ? ((const int *)all)[rank] : most;
    lap_free(all);
    *signal_p = most;
    return LAP_OK;
}
