/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lengths of unions of times, against brute force: every nanosecond of small random intervals is
 * looked at.
 */
#include "schedule/comm_times.h"

#include "tap.h"

enum { SPACE = 160, TRIES = 3000, MOST = 7 };

/* Intervals that may touch, overlap or be empty, in any order; `in` says which nanoseconds they have. */
static void fill(lap_intervals_t *list, uint64_t seed, uint64_t longest, bool *in)
{
    const uint64_t count = tap_random(seed, 0) % MOST;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t begin = 1 + tap_random(seed, 2 * i + 1) % (SPACE - longest - 1);
        const uint64_t end = begin + tap_random(seed, 2 * i + 2) % longest;
        lap_intervals_add(list, begin, end);
        for (uint64_t t = begin; t < end; t++)
            in[t] = true;
    }
}

typedef struct moments {
    bool flight[SPACE], waited[LAP_CAUSES][SPACE], busy[SPACE], bubbles[SPACE], step[SPACE];
} moments_t;

/* Each nanosecond of the step once, for the first of its causes. */
static lap_comm_sum_t count(const moments_t *in)
{
    lap_comm_sum_t sum = {.flight = 0};
    for (int t = 0; t < SPACE; t++) {
        int cause = 0;
        while (cause < LAP_CAUSES && !in->waited[cause][t])
            cause++;
        const bool still = cause < LAP_CAUSES && !in->busy[t] && !in->bubbles[t];
        if (!in->step[t])
            continue;
        sum.flight += in->flight[t];
        sum.hidden += in->flight[t] && in->busy[t];
        sum.waited += still;
        if (still)
            sum.causes[cause]++;
    }
    return sum;
}

static bool agrees(uint64_t seed)
{
    moments_t in = {.flight = {false}};
    lap_comm_times_t times = {.flight = {.list = NULL}}, other = times, all = times;
    lap_intervals_t busy = {.list = NULL}, bubbles = {.list = NULL}, step = {.list = NULL};
    lap_comm_sum_t sum = {.flight = UINT64_MAX};
    fill(&times.flight, 10 * seed, 30, in.flight);
    fill(&other.flight, 10 * seed + 1, 30, in.flight);
    for (int c = 0; c < LAP_CAUSES; c++) {
        fill(&times.waited[c], 10 * seed + 2 + (uint64_t)c, 20, in.waited[c]);
        fill(&other.waited[c], 10 * seed + 5 + (uint64_t)c, 20, in.waited[c]);
    }
    fill(&busy, 10 * seed + 8, 25, in.busy);
    fill(&step, 10 * seed + 9, 120, in.step);
    fill(&bubbles, 10 * seed + 10 + TRIES * 10, 15, in.bubbles);
    lap_comm_times_join(&all, &times);
    lap_comm_times_join(&all, &other);
    const lap_status_t status = lap_comm_times_sum(&all, &busy, &bubbles, &step, &sum);
    const lap_comm_sum_t expected = count(&in);
    lap_comm_times_clear(&times);
    lap_comm_times_clear(&other);
    lap_comm_times_clear(&all);
    lap_intervals_clear(&busy);
    lap_intervals_clear(&bubbles);
    lap_intervals_clear(&step);
    bool same = status == LAP_OK && sum.flight == expected.flight &&
                sum.hidden == expected.hidden && sum.waited == expected.waited;
    for (int c = 0; c < LAP_CAUSES; c++)
        same = same && sum.causes[c] == expected.causes[c];
    return same;
}

static void test_views(void)
{
    lap_interval_t flights[] = {{10, 20}, {30, 40}};
    lap_pause_t pieces[] = {{.begin = 15, .end = 20, .cause = LAP_CAUSE_LATE},
                            {.begin = 20, .end = 24, .cause = LAP_CAUSE_CORE}};
    const lap_trace_view_t view = {
        .times.flight = {.list = flights, .count = 2}, .pauses = pieces, .npauses = 2};
    lap_comm_times_t times = {.flight = {.list = NULL}};
    lap_intervals_t busy = {.list = NULL}, bubbles = {.list = NULL}, step = {.list = NULL};
    lap_comm_sum_t sum;
    lap_intervals_add(&step, 1, 100);
    lap_intervals_add(&busy, 8, 15);
    lap_comm_times_fly(&times, &view.times.flight);
    lap_comm_times_explain(&times, &view);
    lap_comm_times_explain(NULL, &view);
    lap_comm_times_fly(NULL, &view.times.flight);
    tap_success(lap_comm_times_sum(&times, &busy, &bubbles, &step, &sum), "the times of a call");
    tap_ok(sum.flight == 20 && sum.hidden == 5 && sum.waited == 9 &&
               sum.causes[LAP_CAUSE_LATE] == 5 && sum.causes[LAP_CAUSE_CORE] == 4,
           "pieces of a view count for their causes");
    lap_comm_times_clear(&times);
    lap_intervals_clear(&busy);
    lap_intervals_clear(&step);
}

/* A list that had no memory for one of its intervals: no sum is made of it, whichever it is. */
static void test_failed(void)
{
    lap_comm_times_t times = {.flight = {.list = NULL}};
    lap_intervals_t busy = {.list = NULL}, bubbles = {.list = NULL}, step = {.list = NULL};
    lap_intervals_t *const lists[] = {&times.flight, &times.waited[LAP_CAUSE_LATE], &busy, &bubbles,
                                      &step};
    lap_comm_sum_t sum;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        lists[i]->failed = true;
        tap_failure(lap_comm_times_sum(&times, &busy, &bubbles, &step, &sum), LAP_ERR_NO_MEMORY,
                    "times", NULL);
        lists[i]->failed = false;
    }
}

int main(void)
{
    uint64_t wrong = 0, first = 0;
    for (uint64_t seed = 1; seed <= TRIES; seed++)
        if (!agrees(seed) && wrong++ == 0)
            first = seed;
    tap_ok(wrong == 0, "what happens at once counts once: %d tries, %d wrong, the first %d", TRIES,
           (int)wrong, (int)first);
    test_views();
    test_failed();
    return tap_done();
}
