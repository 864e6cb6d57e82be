/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline of a simulation: what all ranks do, as if it had been measured. */
#ifndef LAP_SCHEDULE_PLAY_H
#define LAP_SCHEDULE_PLAY_H

#include "schedule/link.h"
#include "schedule/trace.h"

typedef struct lap_played_call lap_played_call_t;

typedef struct lap_play {
    lap_trace_t *timeline;
    lap_linked_t *programs; /* of all ranks */
    int size;
    /*
     * What a fragment of a rank is, which has steps: fills in the label but for its name, which goes into
     * `name`, what it runs, and its group.
     */
    void (*describe)(void *context, int rank, uint32_t fragment, lap_trace_label_t *label,
                     char *name, size_t bytes);
    /* The number of a rank in the world of the timeline; NULL: the same. */
    int (*world_rank)(const void *context, int rank);
    void *context;
    /* Not given: */
    lap_played_call_t *calls; /* [rank * most + fragment] */
    uint32_t most;            /* fragments of a rank */
    lap_step_watch_t watch;
} lap_play_t;

/*
 * From now on, simulating these programs adds to the timeline. Calls are numbered as ranks that run them
 * do. The caller clears it after the simulation, also after a failure.
 */
lap_status_t lap_play_init(lap_play_t *play);
void lap_play_clear(lap_play_t *play);

#endif
