/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records by which a rank finds out that a peer is in another call, under stress: one rank
 * writes records of call after call, over and over in the same few places, and the other compares
 * while that goes on. What it reads is either the record of the call it asks for, whole, or not
 * that call's: it never finds a difference that is none, nor misses one that is there. On a busy
 * machine two threads seldom run at the same time, so that a timer also interrupts the writer,
 * wherever it is, to compare.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/time.h>

#include "tap.h"
#include "transport/transport.h"

#define CALLS 3000000u
#define INTERRUPTS 150

static _Atomic uint32_t written; /* the latest call whose record is there */
static _Atomic bool over;

/* What call `call` says: each part tells the call, so that parts of two calls do not match. */
static uint32_t op_of(uint32_t call)
{
    return call * 7 + 1;
}

static uint64_t m_of(uint32_t call)
{
    return (uint64_t)call << 20 | 5;
}

static void write_notes(lap_buffer_t *buffer)
{
    for (uint32_t call = 1; call <= CALLS && !atomic_load(&over); call++) {
        lap_buffer_write_record(buffer->records[0], call, op_of(call), m_of(call));
        atomic_store_explicit(&written, call, memory_order_release);
    }
    atomic_store(&over, true);
}

/* Asks for the oldest call whose record may still be there: it is the next to be written over. */
static void compare_notes(lap_buffer_t *buffer)
{
    lap_wait_reason_t reason = {.op = "test", .method = "none"};
    lap_status_t status = LAP_OK;
    size_t looks = 0;
    while (!atomic_load_explicit(&over, memory_order_relaxed) && status == LAP_OK) {
        const uint32_t latest = atomic_load_explicit(&written, memory_order_acquire);
        if (latest < LAP_CALL_RECORDS)
            continue;
        reason.call = latest - LAP_CALL_RECORDS + 1;
        reason.op_index = op_of(reason.call);
        reason.m = m_of(reason.call);
        for (int i = 0; i < 64 && status == LAP_OK; i++, looks++)
            status = lap_buffer_compare(buffer, 0, &reason);
    }
    atomic_store(&over, true);
    tap_success(status, "no difference is found where there is none (%zu looks)", looks);
}

static void test_stress(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_buffer_t *buffer;
    if (!tap_success(lap_buffer_create(lap_world_group(world), 8, 1, NULL, &buffer), "a buffer"))
        exit(tap_done());
    if (lap_world_rank(world) == 0)
        write_notes(buffer);
    else
        compare_notes(buffer);
    lap_buffer_destroy(buffer);
}

static lap_buffer_t *interrupted_buffer;
static volatile sig_atomic_t interrupts, differences;

/* In the midst of writing: the call that is written over is the oldest, or the one before it. */
static void compare_inside(int signal)
{
    (void)signal;
    const int saved = errno;
    const uint32_t latest = atomic_load_explicit(&written, memory_order_relaxed);
    if (latest < LAP_CALL_RECORDS || !interrupted_buffer)
        return;
    const uint32_t call = latest - LAP_CALL_RECORDS + 1;
    const lap_wait_reason_t reason = {
        .op = "test", .method = "none", .call = call, .op_index = op_of(call), .m = m_of(call)};
    interrupts++;
    differences += lap_buffer_compare(interrupted_buffer, 0, &reason) != LAP_OK;
    errno = saved;
}

/* Whether SIGPROF interrupts this thread, and those that it starts from now on. */
static void let_interrupt(bool yes)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_sigmask(yes ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL);
}

static void test_interrupted(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_buffer_t *buffer;
    struct sigaction action = {.sa_handler = compare_inside, .sa_flags = SA_RESTART};
    const struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    if (!tap_success(lap_buffer_create(lap_world_group(world), 8, 1, NULL, &buffer), "a buffer"))
        exit(tap_done());
    atomic_store(&written, 0);
    interrupted_buffer = buffer;
    sigaction(SIGPROF, &action, NULL);
    let_interrupt(true);
    setitimer(ITIMER_PROF, &often, NULL);
    for (uint32_t call = 1; interrupts < INTERRUPTS && !differences; call++) {
        lap_buffer_write_record(buffer->records[0], call, op_of(call), m_of(call));
        atomic_store_explicit(&written, call, memory_order_relaxed);
    }
    setitimer(ITIMER_PROF, &never, NULL);
    tap_ok(differences == 0, "none is found in the midst of writing either (%d looks): %s",
           (int)interrupts, differences ? lap_last_error() : "right");
    interrupted_buffer = NULL;
    lap_buffer_destroy(buffer);
}

/* Each part of a record counts. */
static void test_differences(lap_world_t *world, void *arg)
{
    const int which = *(const int *)arg;
    lap_group_t *group = lap_world_group(world);
    lap_buffer_t *buffer;
    if (!tap_success(lap_buffer_create(group, 8, 1, NULL, &buffer), "a buffer"))
        exit(tap_done());
    if (lap_world_rank(world) == 0)
        lap_buffer_write_record(buffer->records[0], 5, 2, 300);
    lap_group_barrier(group);
    if (lap_world_rank(world) == 1) {
        lap_wait_reason_t reason = {.op = "test", .method = "none", .call = 5, .op_index = 2};
        reason.m = 300;
        tap_success(lap_buffer_compare(buffer, 0, &reason), "the same call");
        reason.call = 9; /* in the same place, and still to come */
        reason.op_index = 3;
        tap_success(lap_buffer_compare(buffer, 0, &reason), "a call that is still to come");
        reason.call = 5;
        reason.op_index = which == 0 ? 3 : 2;
        reason.m = which == 1 ? 301 : 300;
        tap_failure(lap_buffer_compare(buffer, 0, &reason), LAP_ERR_MISMATCH,
                    which == 0 ? "operator 3" : "m = 301", "operator 2", "m = 300", NULL);
    }
    lap_buffer_destroy(buffer);
}

int main(void)
{
    for (int which = 0; which < 2; which++)
        tap_ranks(2, NULL, test_differences, &which);
    tap_ranks(2, NULL, test_stress, NULL);
    let_interrupt(false); /* a signal of a process goes to any thread that lets it: to the writer */
    tap_ranks(1, NULL, test_interrupted, NULL);
    return tap_done();
}
