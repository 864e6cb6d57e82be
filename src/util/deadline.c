/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines: see deadline.h. There is no clock that stands still while a process is stopped, but
 * who looks at short intervals knows that a long one was none of its own making.
 */
#include "util/deadline.h"

#include "util/clock.h"

/* Longer than load keeps a thread from running; shorter than any useful timeout. */
#define GAP_NS 500000000u

lap_deadline_t lap_deadline_after(uint64_t ns)
{
    const uint64_t now = lap_now_ns();
    return (lap_deadline_t){.at = ns < UINT64_MAX - now ? now + ns : UINT64_MAX, .seen = now};
}

uint64_t lap_deadline_left(lap_deadline_t *deadline)
{
    const uint64_t now = lap_now_ns(), gap = now - deadline->seen;
    if (gap > GAP_NS) {
        /* A look uses up a little all the same: a wait whose every look comes late ends, too. */
        const uint64_t stopped = gap - LAP_DEADLINE_LOOK_NS / 2;
        deadline->at = deadline->at < UINT64_MAX - stopped ? deadline->at + stopped : UINT64_MAX;
    }
    deadline->seen = now;
    return deadline->at > now ? deadline->at - now : 0;
}

bool lap_deadline_passed(lap_deadline_t *deadline)
{
    return lap_deadline_left(deadline) == 0;
}

void lap_deadline_shorten(lap_deadline_t *deadline, uint64_t ns)
{
    if (ns < lap_deadline_left(deadline))
        deadline->at = deadline->seen + ns;
}

lap_deadline_part_t lap_deadline_begin_part(lap_deadline_t *deadline, uint64_t ns)
{
    const uint64_t left = lap_deadline_left(deadline);
    const lap_deadline_t until = lap_deadline_after(left < ns ? left : ns);
    return (lap_deadline_part_t){until, until.at};
}

void lap_deadline_end_part(lap_deadline_t *deadline, const lap_deadline_part_t *part)
{
    const uint64_t stopped = part->until.at - part->at;
    deadline->at = deadline->at < UINT64_MAX - stopped ? deadline->at + stopped : UINT64_MAX;
    deadline->seen = part->until.seen;
}

int lap_deadline_poll_ms(lap_deadline_t *deadline)
{
    const uint64_t left = lap_deadline_left(deadline);
    const uint64_t ns = left < LAP_DEADLINE_LOOK_NS ? left : LAP_DEADLINE_LOOK_NS;
    return (int)((ns + 999999u) / 1000000u);
}
