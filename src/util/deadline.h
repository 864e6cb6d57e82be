/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a wait may last, for every wait of the library and of the command. Time in which this
 * process did not run, because it was stopped (Ctrl-Z, a debugger, a frozen container), does not
 * count: whoever waits has seen nothing of it, and those it waits for were most likely stopped too.
 */
#ifndef LAP_UTIL_DEADLINE_H
#define LAP_UTIL_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Belongs to one thread, which looks at it at least every LAP_DEADLINE_LOOK_NS while it waits, and
 * does nothing between two looks that may last long: that would be taken for a stop.
 */
typedef struct lap_deadline {
    uint64_t at;   /* when it passes, in lap_now_ns(), if the process runs until then */
    uint64_t seen; /* when it was looked at last */
} lap_deadline_t;

#define LAP_DEADLINE_LOOK_NS 100000000u

/* From now on; UINT64_MAX is for ever. */
lap_deadline_t lap_deadline_after(uint64_t ns);

/* Looks: what is left of it, in nanoseconds; 0: it has passed. */
uint64_t lap_deadline_left(lap_deadline_t *deadline);
bool lap_deadline_passed(lap_deadline_t *deadline);

/* Brings it forward, so that it passes within `ns` from now. */
void lap_deadline_shorten(lap_deadline_t *deadline, uint64_t ns);

/*
 * A part of a wait, of at most `ns`, with a deadline of its own to look at. At its end the whole
 * deadline, which nobody has looked at meanwhile, is brought up to date: only where the part found
 * a stop was there one, the rest has been waited for.
 */
typedef struct lap_deadline_part {
    lap_deadline_t until;
    uint64_t at; /* when it was to pass at first */
} lap_deadline_part_t;

lap_deadline_part_t lap_deadline_begin_part(lap_deadline_t *deadline, uint64_t ns);
void lap_deadline_end_part(lap_deadline_t *deadline, const lap_deadline_part_t *part);

/* Looks, and returns how long poll() may wait until the next look, in milliseconds. */
int lap_deadline_poll_ms(lap_deadline_t *deadline);

#endif
