/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that ask a command at work to stop, and the thread that sees to it: see interrupt.h. */
#include "interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/status.h"
#include "core/world.h"
#include "ranks.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/thread.h"

#define LOST_NS                                                                                    \
    800000000u /* to notice by itself that a rank has died: its launcher ends it after a second */
#define LOOK_MS 100 /* between looks at a rank that has ended, until that is known to be well */

static const int numbers[] = {SIGINT, SIGTERM};
enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };

static _Atomic int asked;         /* the signal that did; atomic, for any thread may take it, */
static _Atomic uint64_t asked_ns; /* and when */
static bool caught[NUMBERS];

/* The thread, and what it is given. */
static struct {
    pthread_t thread;
    bool runs;
    _Atomic bool ends;
    const char *name;
    lap_world_t *world;
    struct pollfd *polls; /* of `wake`, then of all ranks */
    nfds_t npolls;
} watch;
static _Atomic int wake = -1; /* by which it learns of a signal, or that it ends */

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* of what follows, and of what is printed */
static void (*printer)(void *context, int signal);
static void *printed;
static bool stops;
static uint64_t stop_ns;
static const char
    *notice; /* where that is longer than usual; NULL: there is nothing to print, or it has been */

/* ---- signals ---- */

/* It does what it always does, once the handler has returned. */
static void end_by(int number)
{
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, number);
    sigaction(number, &standard, NULL);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &mask, NULL); /* of the thread that watches */
}

static void wake_watch(void)
{
    const uint64_t one = 1;
    const int fd = atomic_load(&wake);
    if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
        return; /* it is awake */
}

static void take(int number)
{
    const uint64_t now = lap_now_ns();
    uint64_t before = 0;
    if (atomic_compare_exchange_strong(&asked_ns, &before, now)) {
        atomic_store(&asked, number);
        wake_watch();
    } else if (now >= before + LAP_INTERRUPT_ONCE_NS) {
        end_by(number);
    }
}

void lap_interrupt_begin(void)
{
    const struct sigaction ours = {.sa_handler = take, .sa_flags = SA_RESTART};
    struct sigaction action;
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

/* ---- what is printed ---- */

void lap_interrupt_lock(void)
{
    pthread_mutex_lock(&lock);
}

void lap_interrupt_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void lap_interrupt_prints(void (*print)(void *context, int signal), void *context)
{
    lap_interrupt_lock();
    printer = print;
    printed = context;
    lap_interrupt_unlock();
}

void lap_interrupt_takes(double stop_s, const char *text)
{
    lap_interrupt_lock();
    stop_ns = (uint64_t)(stop_s * 1e9);
    notice = text;
    lap_interrupt_unlock();
}

void lap_interrupt_stops(void)
{
    lap_interrupt_lock();
    stops = true;
    lap_interrupt_unlock();
}

/* ---- the thread ---- */

/* The lock stays taken: nobody prints any more. */
static void end_process(lap_status_t lost)
{
    const int number = lap_interrupt_here();
    lap_interrupt_lock();
    if (stops) {
        lap_interrupt_unlock();
        return;
    }
    if (number && printer)
        printer(printed, number);
    if (!number) {
        const int rank = lap_world_rank(watch.world);
        lap_error(lost, "%s; rank %d was in a computation of its own", lap_last_error(), rank);
        stops = true; /* lap_ranks_fail does so, too, and must not wait here */
        lap_interrupt_unlock();
        lap_ranks_fail(watch.name, rank, lost);
    }
    fflush(stdout);
    if (number)
        end_by(number);
    _exit(LAP_CLI_FAILED);
}

/* How long it may still take, from the signal on; what is to be printed before that is, when it is due. */
static uint64_t due_ns(bool due)
{
    lap_interrupt_lock();
    if (due && notice && !stops && lap_world_rank(watch.world) <= 0)
        lap_tell(watch.name, "%s", notice);
    if (due)
        notice = NULL;
    const uint64_t ns = notice ? (uint64_t)(LAP_INTERRUPT_STOP_S * 1e9) : stop_ns;
    lap_interrupt_unlock();
    return atomic_load(&asked_ns) + ns;
}

/* Whether a process of the world has ended of which it is not known that this was well. */
static bool has_ended(void)
{
    bool ended = false;
    for (nfds_t i = 1; i < watch.npolls; i++)
        ended = ended || (watch.polls[i].fd >= 0 && watch.polls[i].revents != 0);
    return ended;
}

/* As poll has it: how long until then; never more than `most`, which is negative where there is no limit. */
static int wait_ms(uint64_t until, int most)
{
    const uint64_t now = lap_now_ns(), left = until > now ? (until - now) / 1000000 + 1 : 0;
    return until == UINT64_MAX || (most >= 0 && left > (uint64_t)most) ? most : (int)left;
}

static void *keep_watch(void *unused)
{
    (void)unused;
    uint64_t until = UINT64_MAX, woken;
    lap_status_t lost = LAP_OK;
    bool looks =
        false; /* at a process that has ended: it may have left properly, which takes a moment to be known */
    while (poll(watch.polls, watch.npolls, wait_ms(until, looks ? LOOK_MS : -1)) >= 0 ||
           !atomic_load(&watch.ends)) {
        if (atomic_load(&watch.ends))
            break;
        if (read(watch.polls[0].fd, &woken, sizeof(woken)) > 0 && lap_interrupt_here())
            until = due_ns(false);
        looks = looks || has_ended();
        for (nfds_t i = 1; i < watch.npolls; i++)
            if (watch.polls[i].revents != 0)
                watch.polls[i].fd = -1;
        if (looks) {
            lost = lap_group_look(lap_world_group(watch.world));
            looks = lost == LAP_OK;
            until = looks ? until : lap_now_ns() + LOST_NS;
        }
        if (lost != LAP_OK && lap_interrupt_here()) /* the ranks cannot agree any more */
            until = 0;
        if (lap_now_ns() < until)
            continue;
        const uint64_t later = lost == LAP_OK ? due_ns(true) : 0;
        if (lap_now_ns() >= later)
            end_process(lost);
        until = lap_now_ns() >= later ? UINT64_MAX : later;
    }
    return NULL;
}

static void free_watch(void)
{
    const int fd = atomic_exchange(&wake, -1);
    if (fd >= 0)
        close(fd);
    lap_free(watch.polls);
    watch.polls = NULL;
}

void lap_interrupt_watch(const char *name, lap_world_t *world)
{
    const nfds_t count = world ? (nfds_t)lap_world_size(world) : 0;
    watch.name = name;
    watch.world = world;
    lap_interrupt_takes(LAP_INTERRUPT_STOP_S, NULL);
    watch.npolls = count + 1;
    watch.polls = lap_alloc(count + 1, sizeof(*watch.polls));
    atomic_store(&watch.ends, false);
    atomic_store(&wake, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (watch.polls && atomic_load(&wake) >= 0) {
        watch.polls[0] = (struct pollfd){.fd = atomic_load(&wake), .events = POLLIN};
        for (nfds_t r = 0; r < count; r++)
            watch.polls[r + 1] = (struct pollfd){.fd = world->peers[r].pidfd, .events = POLLIN};
        watch.runs = lap_thread_start(&watch.thread, "lap-watch", keep_watch, NULL) == 0;
    }
    if (!watch.runs)
        free_watch();
    else if (lap_interrupt_here()) /* before there was a thread to see it */
        wake_watch();
}

void lap_interrupt_unwatch(void)
{
    if (!watch.runs)
        return;
    atomic_store(&watch.ends, true);
    wake_watch();
    pthread_join(watch.thread, NULL);
    watch.runs = false;
    free_watch();
}

void lap_interrupt_with(const char *name, void (*print)(void *context, int signal), void *context)
{
    lap_interrupt_begin();
    lap_interrupt_watch(name, NULL);
    lap_interrupt_takes(0, NULL);
    lap_interrupt_prints(print, context);
}

void lap_interrupt_with_end(void)
{
    lap_interrupt_stops();
    lap_interrupt_unwatch();
    lap_interrupt_end();
}
