/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines: they pass in time, also under an eye that looks often, and the time in which the
 * process was stopped does not count. Linked with --wrap=lap_now_ns, for looks that come exactly so
 * late.
 */
#include "util/deadline.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"
#include "util/clock.h"

#define MS 1000000ull

static uint64_t script_ns; /* what time it is; 0: as everywhere */

uint64_t __real_lap_now_ns(void);
uint64_t __wrap_lap_now_ns(void);

uint64_t __wrap_lap_now_ns(void)
{
    return script_ns ? script_ns : __real_lap_now_ns();
}

/* Waits as the library does, and tells how long that took, in milliseconds. */
static int wait_for(lap_deadline_t deadline)
{
    const uint64_t begin = lap_now_ns();
    while (!lap_deadline_passed(&deadline))
        lap_sleep_until_ns(lap_now_ns() + 20 * MS);
    return (int)((lap_now_ns() - begin) / MS);
}

static void passes_in_time(void)
{
    const int took = wait_for(lap_deadline_after(300 * MS));
    tap_ok(took >= 300, "a deadline of 300 ms passes after %d ms", took);
    lap_deadline_t forever = lap_deadline_after(UINT64_MAX);
    tap_ok(lap_deadline_left(&forever) > UINT64_MAX / 2, "one without an end does not");
    lap_deadline_t soon = lap_deadline_after(1000000 * MS);
    lap_deadline_shorten(&soon, 5 * MS);
    tap_ok(lap_deadline_left(&soon) <= 5 * MS, "it can be brought forward");
    lap_deadline_shorten(&soon, 1000000 * MS);
    tap_ok(lap_deadline_left(&soon) <= 5 * MS, "but not put off");
    lap_deadline_t poll = lap_deadline_after(3600000 * MS);
    tap_ok(lap_deadline_poll_ms(&poll) == LAP_DEADLINE_LOOK_NS / MS,
           "poll() waits until the next look");
    lap_deadline_t none = lap_deadline_after(0);
    tap_ok(lap_deadline_poll_ms(&none) == 0, "and not at all when it has passed");
}

/* A child that has 1.5 s stops itself as it begins to wait, and is let go on after 3 s. */
static void stops_do_not_count(void)
{
    int pipe_ends[2];
    tap_ok(pipe(pipe_ends) == 0, "a pipe");
    const uint64_t begin = lap_now_ns();
    const pid_t child = fork();
    if (child == 0) {
        const lap_deadline_t deadline = lap_deadline_after(1500 * MS);
        raise(SIGSTOP);
        wait_for(deadline);
        const int took = (int)((lap_now_ns() - begin) / MS);
        _exit(write(pipe_ends[1], &took, sizeof(took)) == sizeof(took) ? 0 : 1);
    }
    int took = -1, status = -1;
    waitpid(child, &status, WUNTRACED);
    tap_ok(WIFSTOPPED(status), "a child is stopped");
    lap_sleep_until_ns(lap_now_ns() + 3000 * MS);
    kill(child, SIGCONT);
    tap_ok(read(pipe_ends[0], &took, sizeof(took)) == sizeof(took), "and goes on");
    tap_ok(took >= 4400, "a wait of 1.5 s with a stop of 3 s took %d ms", took);
    waitpid(child, &status, 0);
    tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "and ends well");
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

/* On a machine that is so busy that every look comes late, no deadline is put off for ever. */
static void late_looks_count(void)
{
    script_ns = 1000000 * MS;
    lap_deadline_t deadline = lap_deadline_after(120 * MS);
    int looks = 0;
    while (looks < 10 && !lap_deadline_passed(&deadline)) {
        script_ns += 600 * MS;
        looks++;
    }
    tap_ok(looks == 3, "of 120 ms each look that comes late uses 50: %d looks, expected 3", looks);
    deadline = lap_deadline_after(1000 * MS);
    script_ns += 500 * MS;
    tap_ok(lap_deadline_left(&deadline) == 500 * MS, "a look within half a second is not late");
    script_ns = 0;
}

int main(void)
{
    passes_in_time();
    late_looks_count();
    stops_do_not_count();
    return tap_done();
}
