/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/flight.h"

#include <stdio.h>

#include "core/status.h"

#define DOING_TEXT 160

/* "rank 1 was in ag_gemm (ring)". */
static const char *describe(const lap_flight_t *flight, const char *when, char text[DOING_TEXT])
{
    char name[LAP_RANK_TEXT];
    const char *method = flight->method;
    snprintf(text, DOING_TEXT, "%s %s %s%s%s%s",
             lap_group_name(flight->group, flight->group->rank, name), when, flight->what,
             method ? " (" : "", method ? method : "", method ? ")" : "");
    return text;
}

lap_status_t lap_flight_check(const lap_flight_t *flight, lap_group_t *group, const char *when)
{
    char sentence[LAP_ERROR_TEXT], doing[DOING_TEXT];
    const lap_status_t broken = lap_group_broken(group);
    if (broken == LAP_OK)
        return LAP_OK;
    snprintf(sentence, sizeof(sentence), "%s", lap_last_error());
    return lap_error(broken, "%s; %s", sentence, describe(flight, when, doing));
}

lap_status_t lap_flight_check_usable(const lap_flight_t *flight, lap_group_t *group,
                                     const lap_buffer_t *buffer, const char *when)
{
    LAP_TRY(lap_engine_check_group(flight->engine, group));
    LAP_TRY(lap_flight_check(flight, group, when));
    if (buffer
            ->broken) /* only when the control page could not be written: another rank died at it */
        return lap_error(LAP_ERR_PEER_LOST, "an earlier call on this buffer failed");
    return LAP_OK;
}

void lap_flight_enter(lap_engine_t *engine, lap_in_flight_t *in_flight, lap_group_t *group,
                      lap_buffer_t *buffer)
{
    *in_flight = (lap_in_flight_t){.group = group, .buffer = buffer};
    lap_engine_add_in_flight(engine, in_flight);
    buffer->in_flight++;
}

void lap_flight_leave(lap_engine_t *engine, lap_in_flight_t *in_flight, lap_buffer_t *buffer)
{
    lap_engine_remove_in_flight(engine, in_flight);
    buffer->in_flight--;
}

lap_status_t lap_flight_find_cause(const lap_flight_t *flight, lap_status_t status)
{
    char doing[DOING_TEXT];
    if (status == LAP_OK)
        return LAP_OK;
    return lap_engine_find_cause(flight->engine, status, describe(flight, "was in", doing));
}

lap_status_t lap_flight_break(lap_group_t *group, lap_buffer_t *buffer, lap_status_t status)
{
    lap_saved_error_t saved;
    lap_error_save(&saved);
    buffer->broken = true;
    lap_group_fail_here(group, status, lap_last_error());
    lap_error_restore(&saved);
    return status;
}
