/* SPDX-License-Identifier: Apache-2.0 */
/* The list of passes, and the walk through it. */
#include "schedule/lower.h"

#include <string.h>

#include "core/status.h"
#include "util/join.h"

static bool splits_gemms(const lap_target_t *target)
{
    return !target->device.gemm_signals;
}

static bool has_lanes(const lap_target_t *target)
{
    return target->device.lanes;
}

static bool orders_waits(const lap_target_t *target)
{
    return target->device.shares_queues;
}

static bool counts_signals(const lap_target_t *target)
{
    return target->device.counts_signals;
}

static bool has_graphs(const lap_target_t *target)
{
    return target->device.graphs;
}

/* All of the call: no step needs the host. */
static lap_status_t lower_graph(lap_schedule_t *schedule, const lap_target_t *target)
{
    (void)target;
    schedule->graph = true;
    return LAP_OK;
}

static const lap_pass_t passes[] = {
    {"blocks", "a block of a GEMM, its wait and its raise are steps of their own", splits_gemms,
     lap_lower_blocks},
    {"lanes", "blocks that need nothing of each other take turns in two lanes", has_lanes,
     lap_lower_lanes},
    {"waits", "a wait comes after all that is sent before it in the list", orders_waits,
     lap_lower_waits},
    {"signals", "the signals of the call are consumed after the last of them", counts_signals,
     lap_lower_signals},
    {"graph", "a call that is repeated is launched as one graph", has_graphs, lower_graph},
};

const lap_pass_t *lap_pass_at(size_t index)
{
    return index < sizeof(passes) / sizeof(passes[0]) ? &passes[index] : NULL;
}

/* How many passes run up to the one named. */
static lap_status_t count_passes(const char *name, size_t *count_p)
{
    char names[128] = "";
    for (*count_p = 0; lap_pass_at(*count_p);) {
        const lap_pass_t *pass = lap_pass_at((*count_p)++);
        if (name && strcmp(pass->name, name) == 0)
            return LAP_OK;
        lap_join(names, sizeof(names), pass->name);
    }
    if (!name)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "there is no pass '%s'; there are: %s", name, names);
}

lap_status_t lap_lower(lap_schedule_t *schedules, size_t count, const lap_target_t *target,
                       const char *after)
{
    size_t npasses;
    LAP_TRY(count_passes(after, &npasses));
    for (size_t s = 0; s < count; s++)
        for (uint32_t i = 0; i < schedules[s].nsteps; i++)
            schedules[s].steps[i].origin = i;
    for (size_t p = 0; p < npasses; p++)
        for (size_t s = 0; s < count && passes[p].applies(target); s++)
            LAP_TRY(passes[p].lower(&schedules[s], target));
    return LAP_OK;
}

lap_status_t lap_lowered_check(const lap_schedule_t *const *schedules, uint32_t ncalls, int size,
                               const lap_target_t *target)
{
    LAP_TRY(lap_schedule_check(schedules, ncalls, size));
    for (size_t i = 0; i < (size_t)ncalls * (size_t)size && counts_signals(target); i++)
        LAP_TRY(lap_check_consume(schedules[i]));
    if (!orders_waits(target))
        return LAP_OK;
    for (size_t i = 0; i < (size_t)ncalls * (size_t)size; i++)
        LAP_TRY(lap_check_waits(schedules[i]));
    return lap_schedule_check_in_line(schedules, ncalls, size);
}
