/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When an iteration of `lap train` ran, computed and communicated. Calls of several groups are in flight
 * together, and a rank waits for several at once: by kind and in all that counts once.
 */
#include "train.h"

#include "core/status.h"
#include "util/clock.h"

void lap_train_times_reset(lap_train_times_t *times)
{
    for (size_t k = 0; k < sizeof(times->kinds) / sizeof(times->kinds[0]); k++)
        lap_comm_times_clear(&times->kinds[k]);
    lap_comm_times_clear(&times->messages);
    lap_intervals_clear(&times->bubbles);
    lap_intervals_clear(&times->busy);
    lap_intervals_clear(&times->step);
    times->ns = 0;
}

void lap_train_times_resume(lap_train_times_t *times)
{
    times->since = lap_now_ns();
}

void lap_train_times_pause(lap_train_times_t *times)
{
    const uint64_t now = lap_now_ns();
    lap_intervals_add(&times->step, times->since, now);
    times->ns += now - times->since;
}

lap_comm_times_t *lap_train_times_of(lap_train_times_t *times, const lap_train_call_t *call)
{
    return call->row == LAP_TRAIN_MESSAGES ? &times->messages : &times->kinds[call->kind];
}

/* The union in the place of what was added up; the bytes are a sum. */
static lap_status_t put(lap_train_times_t *times, const lap_comm_times_t *kind,
                        lap_train_comm_t *comm)
{
    lap_comm_sum_t sum;
    LAP_TRY(lap_comm_times_sum(kind, &times->busy, &times->bubbles, &times->step, &sum));
    comm->total = (double)sum.flight * 1e-9;
    comm->hidden = (double)sum.hidden * 1e-9;
    comm->exposed = (double)(sum.flight - sum.hidden) * 1e-9;
    comm->waited = (double)sum.waited * 1e-9;
    for (int c = 0; c < LAP_CAUSES; c++)
        comm->causes[c] = (double)sum.causes[c] * 1e-9;
    return LAP_OK;
}

lap_status_t lap_train_times_sum(lap_train_times_t *times, lap_train_iteration_t *iteration)
{
    lap_comm_times_t all = {.flight = {.list = NULL}};
    lap_status_t status = put(times, &times->messages, &iteration->rows[LAP_TRAIN_MESSAGES]);
    lap_comm_times_join(&times->kinds[LAP_AXIS_PP], &times->messages);
    for (int k = 0; k <= LAP_AXES && status == LAP_OK; k++) {
        lap_comm_times_join(&all, &times->kinds[k]);
        if (k < LAP_AXES)
            status = put(times, &times->kinds[k], &iteration->kinds[k]);
    }
    if (status == LAP_OK)
        status = put(times, &all, &iteration->rows[LAP_TRAIN_ALL]);
    lap_comm_times_clear(&all);
    return status;
}
