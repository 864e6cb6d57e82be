/* SPDX-License-Identifier: Apache-2.0 */
/* The list of passes, and the walk through it. */
#include "schedule/lower.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"

/* A wait for a round of matched messages does not keep a queue busy. */
static bool orders_waits(const lap_target_t *target)
{
    return target->device.shares_queues && lap_target_is_one_sided(target);
}

static lap_status_t waits(lap_schedule_t *schedules, size_t count, const lap_target_t *target)
{
    (void)target;
    for (size_t i = 0; i < count; i++)
        LAP_TRY(lap_lower_waits(&schedules[i]));
    return LAP_OK;
}

static const lap_pass_t passes[] = {
    {"waits", "a wait comes after all that is sent before it in the list", orders_waits, waits},
};

const lap_pass_t *lap_pass_at(size_t index)
{
    return index < sizeof(passes) / sizeof(passes[0]) ? &passes[index] : NULL;
}

static lap_status_t find_pass(const char *name, size_t *end_p)
{
    char names[128] = "";
    size_t used = 0;
    for (size_t i = 0; lap_pass_at(i); i++) {
        *end_p = i + 1;
        if (name && strcmp(lap_pass_at(i)->name, name) == 0)
            return LAP_OK;
        if (used < sizeof(names))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "",
                                     lap_pass_at(i)->name);
    }
    if (!name)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "there is no pass '%s'; there are: %s", name, names);
}

lap_status_t lap_lower(lap_schedule_t *schedules, size_t count, const lap_target_t *target,
                       const char *after)
{
    size_t end = 0;
    LAP_TRY(find_pass(after, &end));
    for (size_t i = 0; i < end; i++)
        if (passes[i].applies(target))
            LAP_TRY(passes[i].lower(schedules, count, target));
    return LAP_OK;
}
