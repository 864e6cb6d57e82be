/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator on schedules whose times can be worked out by hand, and on those of all builders.
 * Nothing is measured. What "auto" makes of it is in simulate_auto.c.
 */
#include <math.h>

#include "costs.h"
#include "schedule/range.h"
#include "sequence.h"
#include "transport/transport.h"

enum { RANKS = 2 };

static lap_schedule_t pair[RANKS];

static void pair_init(void)
{
    for (int r = 0; r < RANKS; r++) {
        const lap_problem_t problem = {
            .types = {LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32},
            .rank = r,
            .size = RANKS};
        lap_schedule_init(&pair[r], &problem, "made by hand");
    }
}

/* Simulates the pair, clears it, and says whether the time is right. */
static void pair_takes(const lap_cost_t *cost, double seconds, const char *what)
{
    const lap_schedule_t *const list[RANKS] = {&pair[0], &pair[1]};
    double found = -1;
    lap_status_t status = lap_schedule_simulate(list, RANKS, cost, &found);
    if (status != LAP_OK)
        tap_note("%s", lap_last_error());
    tap_ok(status == LAP_OK && fabs(found - seconds) < 1e-9, "%s: %g s, expected %g", what, found,
           seconds);
    for (int r = 0; r < RANKS; r++)
        lap_schedule_clear(&pair[r]);
}

static lap_range_t bytes_of(lap_place_t place, int rank, size_t bytes)
{
    return lap_range_packed(place, rank, 0, 1, bytes);
}

static uint32_t add_copy(int rank, uint16_t stream, size_t bytes)
{
    return lap_add_copy(&pair[rank], stream, bytes_of(LAP_INPUT, rank, bytes),
                        bytes_of(LAP_OUTPUT, rank, bytes));
}

static void add_put(int rank, uint16_t stream, size_t bytes)
{
    const int peer = 1 - rank;
    lap_add_put(&pair[rank], stream, peer, lap_signal_data(rank), bytes_of(LAP_INPUT, rank, bytes),
                bytes_of(LAP_SYMMETRIC, peer, bytes));
    lap_expect(&pair[peer], lap_signal_data(rank));
}

static void add_wait(int rank, uint16_t stream, uint32_t count)
{
    lap_add_wait(&pair[rank], stream, 1 - rank, lap_signal_data(1 - rank), count);
}

/* A tile of `rows` multiply-adds. */
static lap_tile_t *add_tile(int rank, size_t rows)
{
    return lap_gemm_rows(&pair[rank], lap_range_packed(LAP_INPUT, rank, 0, rows, sizeof(float)),
                         lap_range_packed(LAP_OUTPUT, rank, 0, rows, sizeof(float)));
}

static void add_gemm(int rank, bool any_order)
{
    lap_add_gemm(&pair[rank], LAP_STREAM_COMPUTE, bytes_of(LAP_WEIGHT, rank, sizeof(float)),
                 any_order);
}

static void test_order(void)
{
    lap_cost_t cost = unit_cost();
    pair_init();
    pair_takes(&cost, 0, "nothing to do");

    pair_init();
    for (size_t i = 1; i <= 3; i++)
        add_copy(0, LAP_STREAM_COMPUTE, i);
    add_copy(1, LAP_STREAM_COMPUTE, 5);
    pair_takes(&cost, 6, "a chain on one rank, less on the other: the slowest counts");

    /* 2, then 3 and 7 side by side, then 1 after both. */
    pair_init();
    uint32_t fork = add_copy(0, LAP_STREAM_COMPUTE, 2);
    uint32_t left = add_copy(0, LAP_STREAM_SEND, 3);
    uint32_t right = add_copy(0, LAP_STREAM_RECEIVE, 7);
    lap_add_dep(&pair[0], left, fork);
    lap_add_dep(&pair[0], right, fork);
    uint32_t join = add_copy(0, LAP_STREAM_COMPUTE, 1);
    lap_add_dep(&pair[0], join, left);
    lap_add_dep(&pair[0], join, right);
    pair_takes(&cost, 10, "fork and join");

    cost.step_s = 0.5;
    cost.call_s = 4;
    pair_init();
    add_copy(0, LAP_STREAM_COMPUTE, 1);
    add_copy(0, LAP_STREAM_COMPUTE, 1);
    pair_takes(&cost, 7, "every step costs something, and so does the call");

    pair_init();
    lap_add_reduce(&pair[0], LAP_STREAM_COMPUTE, bytes_of(LAP_OUTPUT, 0, 4), LAP_FLOAT32);
    for (int i = 0; i < 3; i++)
        lap_reduce_source(&pair[0], bytes_of(LAP_SCRATCH, 0, 4), LAP_FLOAT32);
    cost = unit_cost();
    pair_takes(&cost, 16, "a sum reads its sources and writes its result");

    pair_init();
    lap_add_sums(&pair[0], LAP_STREAM_COMPUTE, bytes_of(LAP_OUTPUT, 0, 12));
    pair_takes(&cost, 12, "sums of columns read them");
}

static void test_cores(void)
{
    lap_cost_t cost = unit_cost();
    cost.cores = 1;
    pair_init();
    add_copy(0, LAP_STREAM_COMPUTE, 4);
    add_copy(0, LAP_STREAM_SEND, 2);
    pair_takes(&cost, 6, "two streams share one core");

    cost.cores = 2;
    cost.gemm_cores = 2;
    pair_init();
    add_gemm(0, false);
    add_tile(0, 4);
    add_copy(0, LAP_STREAM_SEND, 2);
    /* Demand 3 on 2 cores until the copy ends at 3; the GEMM has done 2 of 4 by then. */
    pair_takes(&cost, 5, "a copy takes time from a GEMM that wants all cores");

    cost = unit_cost();
    cost.rank_cores = 1;
    for (int alone = 0; alone < 2; alone++) {
        cost.copy_engines = alone;
        pair_init();
        for (int r = 0; r < RANKS; r++) {
            add_gemm(r, false);
            add_tile(r, 4);
        }
        add_copy(0, LAP_STREAM_SEND, 2);
        pair_takes(&cost, alone ? 4 : 6,
                   alone ? "what moves data by itself takes nothing from a GEMM"
                         : "the streams of a rank share what it has for itself");
    }
}

static void test_signals(void)
{
    lap_cost_t cost = unit_cost();
    pair_init();
    add_copy(0, LAP_STREAM_SEND, 3);
    add_put(0, LAP_STREAM_SEND, 2);
    add_wait(1, LAP_STREAM_COMPUTE, 1);
    add_copy(1, LAP_STREAM_COMPUTE, 4);
    pair_takes(&cost, 9, "a wait lasts until the put is there");

    cost.signal_s = 1;
    pair_init();
    add_put(0, LAP_STREAM_SEND, 2);
    add_put(0, LAP_STREAM_SEND, 2);
    add_wait(1, LAP_STREAM_COMPUTE, 2);
    add_copy(1, LAP_STREAM_COMPUTE, 4);
    pair_takes(&cost, 9, "a wait for the second raise, and the time of a signal");

    /* A put without a signal is a copy; the next one of its stream speaks for it. */
    pair_init();
    lap_add_put(&pair[0], LAP_STREAM_SEND, 1, LAP_NO_SIGNAL, bytes_of(LAP_SCALE, 0, 4),
                bytes_of(LAP_SYMMETRIC, 1, 4));
    add_put(0, LAP_STREAM_SEND, 2);
    add_wait(1, LAP_STREAM_COMPUTE, 1);
    pair_takes(&cost, 7, "a put without a signal comes before the one that has it");

    pair_init();
    add_put(0, LAP_STREAM_SEND, 2);
    add_copy(1, LAP_STREAM_COMPUTE, 20);
    add_wait(1, LAP_STREAM_COMPUTE, 1);
    pair_takes(&cost, 20, "a signal that has come costs nothing");

    const lap_schedule_t *const list[RANKS] = {&pair[0], &pair[1]};
    double seconds = -1;
    pair_init();
    add_wait(1, LAP_STREAM_COMPUTE, 1);
    tap_failure(lap_schedule_simulate(list, RANKS, &cost, &seconds), LAP_ERR_CHECK, "rank 1",
                "WAIT", NULL);
    tap_ok(seconds == -1, "... and nothing is written");
    for (int r = 0; r < RANKS; r++)
        lap_schedule_clear(&pair[r]);
}

/* A wait keeps a core busy for a while, which a copy of the same rank lacks. */
static void test_spin(void)
{
    lap_cost_t cost = unit_cost();
    cost.cores = 2;
    cost.spin_s = 4;
    pair_init();
    add_put(0, LAP_STREAM_SEND, 20);
    add_wait(1, LAP_STREAM_RECEIVE, 1);
    add_copy(1, LAP_STREAM_COMPUTE, 10);
    /* Three want two cores until 4, by which the put has done 8/3 of 20: it ends at 4 + 52/3. */
    pair_takes(&cost, 4 + 52.0 / 3, "a wait spins before it sleeps");
    cost.spin_s = 0;
    pair_init();
    add_put(0, LAP_STREAM_SEND, 20);
    add_wait(1, LAP_STREAM_RECEIVE, 1);
    add_copy(1, LAP_STREAM_COMPUTE, 10);
    pair_takes(&cost, 20, "a wait that sleeps takes no core");
}

/* ---- programs ---- */

enum { FRAGMENTS = 3 };

/*
 * Three fragments of each rank: a GEMM on the compute stream, a copy on another stream, a kernel. The
 * copy is linked to the GEMM or not; the kernel follows the GEMM by its stream.
 */
static const lap_step_cost_t *copy_cost; /* of the copy, if it was measured */
static lap_stream_set_t copy_set;        /* whose streams it is on */
static double event_s, call_s, launch_s;
static lap_simulated_t simulated;

static double play(bool linked, double finish, lap_fragment_span_t *spans)
{
    lap_cost_t cost = unit_cost();
    cost.event_s = event_s;
    cost.launch_s = launch_s;
    const lap_cost_t fast = {.gemm = flat(2),
                             .columns = flat(1),
                             .copy = flat(1),
                             .reduce = 1,
                             .cores = 1000,
                             .gemm_cores = 1,
                             .call_s = call_s};
    const lap_fragment_cost_t costs[FRAGMENTS] = {{.cost = &fast, .finish = finish},
                                                  {.cost = &cost, .steps = copy_cost, .nsteps = 1},
                                                  {.cost = &cost, .kernel_s = 5}};
    lap_linked_t programs[RANKS];
    const lap_linked_t *list[RANKS];
    double seconds = -1;
    for (int r = 0; r < RANKS; r++) {
        const lap_problem_t problem = {
            .types = {LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32},
            .rank = r,
            .size = RANKS};
        programs[r] = (lap_linked_t){.rank = r};
        list[r] = &programs[r];
        for (int f = 0; f < FRAGMENTS; f++)
            lap_schedule_init(&lap_link_fragment(&programs[r])->schedule, &problem, "by hand");
        lap_fragment_t *fragments = programs[r].fragments;
        lap_add_gemm(&fragments[0].schedule, LAP_STREAM_COMPUTE,
                     bytes_of(LAP_WEIGHT, r, sizeof(float)), false);
        lap_gemm_rows(&fragments[0].schedule, lap_range_packed(LAP_INPUT, r, 0, 8, sizeof(float)),
                      lap_range_packed(LAP_OUTPUT, r, 0, 8, sizeof(float)));
        fragments[1].schedule.set = copy_set;
        lap_add_copy(&fragments[1].schedule, lap_stream_of(copy_set, LAP_STREAM_SEND),
                     bytes_of(LAP_INPUT, r, 7), bytes_of(LAP_OUTPUT, r, 7));
        lap_add_kernel(&fragments[2].schedule, LAP_STREAM_COMPUTE, "norm");
        static lap_link_dep_t link = {.step = 0, .fragment = 0, .dep = 0};
        fragments[1].links = &link;
        fragments[1].nlinks = linked;
        if (r + 1 < RANKS)
            continue;
        if (lap_linked_simulate(list, RANKS, costs, &simulated, 1, spans) == LAP_OK)
            seconds = simulated.seconds;
        else
            tap_note("%s", lap_last_error());
    }
    for (int r = 0; r < RANKS; r++) {
        programs[r].fragments[1].links = NULL;
        programs[r].fragments[1].nlinks = 0;
        lap_linked_clear(&programs[r]);
    }
    return seconds;
}

static void test_programs(void)
{
    lap_fragment_span_t spans[FRAGMENTS];
    const double apart = play(false, 0, NULL), finished = play(true, 0.25, NULL);
    const double linked = play(true, 0, spans);
    tap_ok(apart == 9, "fragments on two streams: GEMM 4 and kernel 5, copy 7: %g s", apart);
    tap_ok(linked == 11, "a link lets the copy wait for the GEMM: %g s", linked);
    tap_ok(spans[0].begin == 0 && spans[0].end == 4 && spans[1].begin == 4 && spans[1].end == 11 &&
               spans[2].begin == 4 && spans[2].end == 9,
           "and says when each fragment runs");
    tap_ok(finished == 19, "an epilogue of 32 bytes takes 8 s more: %g s", finished);
    copy_set = LAP_BACKGROUND;
    const double background = play(true, 0, NULL);
    tap_ok(background == 11 && simulated.foreground == 9,
           "the foreground ends before the background: %g and %g s", simulated.foreground,
           background);
    copy_set = LAP_FOREGROUND;
    event_s = 0.5;
    const double noticed = play(true, 0, NULL);
    tap_ok(noticed == 11.5, "the end of a step is noticed by another stream: %g s", noticed);
    event_s = 0;
    call_s = 3;
    const double called = play(true, 0, spans);
    tap_ok(called == 14 && simulated.foreground == 14 && simulated.call == 3 && spans[1].end == 11,
           "a call begins and ends in no fragment: %g s, of which %g", called, simulated.call);
    call_s = 0;
    const lap_step_cost_t measured = {3, 0.5}, unknown = {-1, 1};
    copy_cost = &measured;
    const double known = play(true, 0, spans);
    tap_ok(known == 9 && spans[1].end == 7, "a step that was measured takes what it took: %g s",
           known);
    launch_s = 0.5;
    (void)play(true, 0, spans);
    tap_ok(spans[1].end == 7.5, "... and longer behind another kernel: until %g s", spans[1].end);
    const lap_step_cost_t moves = {3, 0};
    copy_cost = &moves;
    (void)play(true, 0, spans);
    tap_ok(spans[1].end == 7, "... unless nothing is launched for it: until %g s", spans[1].end);
    launch_s = 0;
    copy_cost = &unknown;
    tap_ok(play(true, 0, NULL) == 11, "and one that was not what the rates say");
    copy_cost = NULL;
}

/* Two fragments, each of which sends 10 bytes on a stream of its own, by a link of 2 B/s and a latency of 3 s. */
static double send_two(uint32_t second_buffer)
{
    static const uint16_t streams[] = {LAP_STREAM_SEND, LAP_STREAM_RECEIVE};
    lap_cost_t cost = unit_cost();
    cost.copy = flat(1e12);
    cost.link = (lap_link_t){2, 3};
    const lap_fragment_cost_t costs[] = {{.cost = &cost}, {.cost = &cost}};
    lap_linked_t programs[RANKS] = {{.rank = 0}, {.rank = 1}};
    const lap_linked_t *list[RANKS] = {&programs[0], &programs[1]};
    for (int f = 0; f < 2; f++) {
        pair_init();
        add_put(0, streams[f], 10);
        add_wait(1, streams[f], 1);
        for (int r = 0; r < RANKS; r++) {
            lap_fragment_t *fragment = lap_link_fragment(&programs[r]);
            fragment->schedule = pair[r];
            fragment->stride = 1;
            fragment->buffer = f == 0 ? 0 : second_buffer;
        }
    }
    simulated.seconds = -1;
    if (lap_linked_simulate(list, RANKS, costs, &simulated, 0, NULL) != LAP_OK)
        tap_note("%s", lap_last_error());
    for (int r = 0; r < RANKS; r++)
        lap_linked_clear(&programs[r]);
    return simulated.seconds;
}

/* As the emulated link does it: see src/transport/link. */
static void test_links_of_buffers(void)
{
    const double same = send_two(0), apart = send_two(3);
    tap_ok(fabs(same - 13) < 1e-9, "calls in one buffer share a link: %g s, expected 13", same);
    tap_ok(fabs(apart - 8) < 1e-9, "those in two have one each: %g s, expected 8", apart);
}

static void test_link(void)
{
    lap_cost_t cost = unit_cost();
    cost.copy = flat(1e12);
    cost.link = (lap_link_t){2, 3};
    pair_init();
    add_put(0, LAP_STREAM_SEND, 10);
    add_put(0, LAP_STREAM_RECEIVE, 10);
    add_wait(1, LAP_STREAM_COMPUTE, 2);
    pair_takes(&cost, 13, "one transfer at a time out of a rank, latency at the end");

    pair_init();
    add_put(0, LAP_STREAM_SEND, 10);
    add_put(1, LAP_STREAM_SEND, 10);
    add_wait(0, LAP_STREAM_COMPUTE, 1);
    add_wait(1, LAP_STREAM_COMPUTE, 1);
    pair_takes(&cost, 8, "ranks send at the same time");

    pair_init();
    add_put(0, LAP_STREAM_SEND, 10);
    lap_add_raise(&pair[0], LAP_STREAM_SEND, 1, lap_signal_credit(2, 0), 0);
    lap_expect(&pair[1], lap_signal_credit(2, 0));
    lap_add_wait(&pair[1], LAP_STREAM_COMPUTE, 0, lap_signal_credit(2, 0), 1);
    pair_takes(&cost, 3, "a credit overtakes data");

    cost.copy = flat(1);
    pair_init();
    add_put(0, LAP_STREAM_SEND, 10);
    add_wait(1, LAP_STREAM_COMPUTE, 1);
    pair_takes(&cost, 10, "a slow copy is not delivered before it is made");
}

/* Puts that keep a part of a GPU busy: a GEMM of 10 s beside bytes that are on their way for 5 s. */
static void test_put_cores(void)
{
    lap_cost_t cost = unit_cost();
    cost.copy = flat(1e12);
    cost.rank_cores = 1;
    cost.link = (lap_link_t){2, 0};
    for (int last = 0; last < 2; last++) {
        cost.put_cores = last ? 1 : 0.4;
        pair_init();
        add_gemm(0, false);
        add_tile(0, 10);
        add_put(0, LAP_STREAM_SEND, 10);
        add_wait(1, LAP_STREAM_COMPUTE, 1);
        add_copy(1, LAP_STREAM_COMPUTE, 0);
        pair_takes(&cost, last ? 15 : 12,
                   last ? "a put that takes all of a GPU stops its GEMM"
                        : "a put that takes 0.4 of a GPU costs its GEMM 0.4 of the time");
    }
    cost.put_cores = 0.4;
    pair_init();
    add_gemm(0, false);
    add_tile(0, 4);
    add_put(0, LAP_STREAM_SEND, 20);
    add_wait(1, LAP_STREAM_COMPUTE, 1);
    pair_takes(&cost, 10, "and a GEMM does not slow down the put");
}

/* A rank has one link to all others: what it sends to two of them goes one after the other. */
static void test_fan_out(void)
{
    enum { ALL = 3 };
    lap_schedule_t all[ALL];
    const lap_schedule_t *const list[ALL] = {&all[0], &all[1], &all[2]};
    lap_cost_t cost = unit_cost();
    double seconds = -1;
    cost.copy = flat(1e12);
    cost.link.bytes_per_s = 1;
    for (int r = 0; r < ALL; r++) {
        const lap_problem_t problem = {
            .types = {LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32},
            .rank = r,
            .size = ALL};
        lap_schedule_init(&all[r], &problem, "made by hand");
    }
    for (int peer = 1; peer < ALL; peer++) {
        lap_add_put(&all[0], LAP_STREAM_SEND, peer, lap_signal_data(0), bytes_of(LAP_INPUT, 0, 10),
                    bytes_of(LAP_SYMMETRIC, peer, 10));
        lap_expect(&all[peer], lap_signal_data(0));
        lap_add_wait(&all[peer], LAP_STREAM_COMPUTE, 0, lap_signal_data(0), 1);
    }
    const lap_status_t status = lap_schedule_simulate(list, ALL, &cost, &seconds);
    tap_ok(status == LAP_OK && fabs(seconds - 20) < 1e-6,
           "a rank that sends 10 bytes to each of two others: %g s, expected 20", seconds);
    for (int r = 0; r < ALL; r++)
        lap_schedule_clear(&all[r]);
}

/* A link in a row with that of the transport: the slower one counts, and both latencies. */
static void test_two_links(void)
{
    static const lap_link_t links[] = {{4, 1}, {2, 3}, {8, 0}, {0, 5}};
    lap_cost_t cost = unit_cost();
    cost.link = (lap_link_t){0, 0};
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
        lap_cost_add_link(&cost, &links[i]);
    tap_ok(cost.link.bytes_per_s == 2 && cost.link.latency_s == 9,
           "links in a row: %g B/s, expected 2, and %g s, expected 9", cost.link.bytes_per_s,
           cost.link.latency_s);
}

/* Blocks of 4 and of 1, the first of which waits until 6. */
static void test_blocks(bool any_order, double seconds)
{
    lap_cost_t cost = unit_cost();
    pair_init();
    add_put(0, LAP_STREAM_SEND, 6);
    add_gemm(1, any_order);
    add_tile(1, 4)->wait = (lap_signal_t){.word = lap_signal_data(0), .count = 1};
    add_tile(1, 1)->raise = (lap_signal_t){.word = lap_signal_open(2, 1), .bytes = sizeof(float)};
    lap_expect(&pair[0], lap_signal_open(2, 1));
    lap_add_wait(&pair[0], LAP_STREAM_COMPUTE, 1, lap_signal_open(2, 1), 1);
    add_copy(0, LAP_STREAM_COMPUTE, 9);
    pair_takes(&cost, seconds, any_order ? "blocks in any order" : "blocks in their order");
}

static void test_curve(void)
{
    const lap_curve_t curve = {3, {1, 4, 64}, {10, 20, 40}};
    tap_ok(lap_curve_at(&curve, 0.5) == 10 && lap_curve_at(&curve, 1) == 10 &&
               fabs(lap_curve_at(&curve, 2) - 15) < 1e-12 && lap_curve_at(&curve, 4) == 20 &&
               fabs(lap_curve_at(&curve, 16) - 30) < 1e-12 && lap_curve_at(&curve, 1e9) == 40,
           "a curve passes through its points and ends flat");
}

/* ---- builders ---- */

/* The time of a variant; negative when it fails. */
static double time_of(const variant_t *variant, int size, const lap_cost_t *cost)
{
    static sequence_t sequence;
    const size_t m = 7 * (size_t)size + 3;
    const lap_op_desc_t desc = describe(variant, m, 23, 17);
    const lap_schedule_t *list[MAX_RANKS];
    double seconds = -1;
    for (int r = 0; r < size; r++)
        list[r] = &sequence.schedules[r];
    if (sequence_build(&sequence, &desc, &m, 1, size, CAN_PLAIN) != LAP_OK ||
        lap_schedule_simulate(list, size, cost, &seconds) != LAP_OK)
        tap_note("%s", lap_last_error());
    sequence_clear(&sequence);
    return seconds;
}

static void test_builders(void)
{
    char name[64];
    for (int i = 0; i < NVARIANTS; i++) {
        bool ends = true, ordered = true;
        for (int size = 1; size <= 8; size++) {
            double before = INFINITY;
            for (int power = 5; power < 10 && fits(&variants[i], size); power++) {
                lap_cost_t cost = plain_cost(pow(10, power));
                const double seconds = time_of(&variants[i], size, &cost);
                ends = ends && seconds > 0;
                /* Methods that take blocks as they come may be unlucky, but not by much. */
                ordered = ordered && seconds <= before * 1.05;
                before = seconds;
            }
        }
        variant_name(&variants[i], name, sizeof(name));
        tap_ok(ends, "%s ends on 1 to 8 ranks", name);
        tap_ok(ordered, "%s is no slower on a faster link", name);
    }
}

int main(void)
{
    test_order();
    test_cores();
    test_signals();
    test_link();
    test_put_cores();
    test_fan_out();
    test_spin();
    test_programs();
    test_two_links();
    test_links_of_buffers();
    test_blocks(true, 10);
    test_blocks(false, 20);
    test_curve();
    test_builders();
    return tap_done();
}
