/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated link: transfers take at least their time, one after another; signals without data
 * overtake them, but never on the same word; the end of a buffer sends what is on its way. Only
 * lower bounds are checked: how late a signal may be depends on the machine. Linked with
 * --wrap=lap_now_ns: what is sent while a thread's clock stands still is sent at once.
 */
#include <stdlib.h>

#include "tap.h"
#include "transport/transport.h"
#include "util/clock.h"

#define MS 1000000u
#define SAME_DUE 5 /* raises of one word, all due when a transfer to it is over */

static _Thread_local uint64_t stands_at; /* this thread's clock; 0: it runs */

uint64_t __real_lap_now_ns(void);
uint64_t __wrap_lap_now_ns(void);

uint64_t __wrap_lap_now_ns(void)
{
    return stands_at ? stands_at : __real_lap_now_ns();
}

static lap_buffer_options_t link_of(double bytes_per_s, double latency_s)
{
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.link = (lap_link_t){bytes_per_s, latency_s};
    return options;
}

static lap_buffer_t *new_buffer(lap_world_t *world, size_t bytes, size_t nsignals,
                                lap_buffer_options_t options)
{
    lap_buffer_t *buffer = NULL;
    if (!tap_success(lap_buffer_create(lap_world_group(world), bytes, nsignals, &options, &buffer),
                     "a buffer on a link of %g B/s and %g s", options.link.bytes_per_s,
                     options.link.latency_s))
        exit(tap_done());
    return buffer;
}

static lap_put_t put_of(const char *source, size_t bytes, uint32_t signal, lap_span_t *span)
{
    return (lap_put_t){.src = source,
                       .src_stride = bytes,
                       .dst_stride = bytes,
                       .rows = 1,
                       .row_bytes = bytes,
                       .peer = 1,
                       .signal = signal,
                       .span = span};
}

/* 1 MB/s and 5 ms: two puts of 20 kB take 25 and 45 ms. The threads share a clock. */
static void test_pace(lap_world_t *world, void *arg)
{
    static uint64_t issued;
    static char source[20000];
    (void)arg;
    lap_buffer_t *buffer = new_buffer(world, 20000, 2, link_of(1e6, 5e-3));
    if (lap_world_rank(world) == 0)
        issued = lap_now_ns();
    lap_group_barrier(lap_world_group(world));
    if (lap_world_rank(world) == 0) {
        lap_span_t spans[2] = {{0, 0, 0}, {0, 0, 0}};
        stands_at = lap_now_ns();
        for (int i = 0; i < 2; i++) {
            const lap_put_t put = put_of(source, 20000, 0, &spans[i]);
            tap_success(buffer->ops->put_now(buffer, &put), "a put on a link");
        }
        stands_at = 0;
        tap_ok(spans[0].end - spans[0].begin == 25 * MS && spans[1].end - spans[1].begin == 25 * MS,
               "each takes as long as the link takes");
        tap_ok(spans[1].ready < spans[0].end && spans[1].begin == spans[0].end - 5 * MS,
               "and begins when the one before has left");
    } else {
        tap_success(lap_buffer_wait(buffer, 0, 0, 1), "the first one comes");
        tap_ok(lap_now_ns() - issued >= 25 * MS, "not before 25 ms");
        tap_success(lap_buffer_wait(buffer, 0, 0, 1), "the second one comes");
        tap_ok(lap_now_ns() - issued >= 45 * MS, "not before 45 ms");
    }
    lap_group_barrier(lap_world_group(world));
    lap_buffer_destroy(buffer);
}

/*
 * A transfer of eleven days, then a credit: it overtakes. A raise to the word of the transfer does
 * not. When the sender gives the buffer up, both are delivered: nobody waits eleven days.
 */
static void test_overtaking(lap_world_t *world, void *arg)
{
    static char source[1000000];
    (void)arg;
    lap_buffer_t *buffer = new_buffer(world, sizeof(source), 2, link_of(1, 1e-3));
    if (lap_world_rank(world) == 0) {
        lap_span_t spans[3] = {{0}};
        const lap_put_t put = put_of(source, sizeof(source), 0, &spans[0]);
        const lap_raise_t credit = {.peer = 1, .signal = 1, .span = &spans[1]};
        lap_raise_t same = {.peer = 1, .span = &spans[2]};
        buffer->ops->put_now(buffer, &put);
        buffer->ops->raise_now(buffer, &credit);
        for (same.tag = 1; same.tag <= SAME_DUE; same.tag++)
            buffer->ops->raise_now(buffer, &same);
        tap_ok(spans[1].end - spans[1].begin == MS, "a credit takes the latency");
        tap_ok(spans[2].end == spans[0].end, "but longer on the word of a transfer");
        lap_group_barrier(lap_world_group(world));
    } else {
        tap_success(lap_buffer_wait(buffer, 0, 1, 1), "the credit comes");
        tap_ok(!lap_bank_reached(buffer->banks[1], 0, 1), "and nothing else yet");
        lap_group_barrier(lap_world_group(world));
        tap_success(lap_buffer_wait(buffer, 0, 0, 1 + SAME_DUE),
                    "the rest when its sender gives up");
        const uint64_t tag = lap_bank_tag(buffer->banks[1], 0);
        tap_ok(tag == SAME_DUE,
               "raises of one word that are due together come in their order "
               "(the last has tag %llu, expected %d)",
               (unsigned long long)tag, SAME_DUE);
    }
    lap_buffer_destroy(buffer);
}

/* Data that a peer reads in place travels all the same. */
static void test_in_place(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_buffer_t *buffer = new_buffer(world, 8, 2, link_of(1e9, 0));
    if (lap_world_rank(world) == 0) {
        lap_span_t spans[3] = {{0}};
        const lap_raise_t big = {.peer = 1, .bytes = 10000000, .span = &spans[0]};
        const lap_raise_t credit = {.peer = 1, .signal = 1, .span = &spans[1]};
        const lap_raise_t own = {.peer = 0, .bytes = 10000000, .span = &spans[2]};
        buffer->ops->raise_now(buffer, &big);
        buffer->ops->raise_now(buffer, &credit);
        buffer->ops->raise_now(buffer, &own);
        tap_ok(spans[0].end - spans[0].begin == 10 * MS, "ten megabytes in place take 10 ms");
        tap_ok(spans[1].end == spans[1].ready, "without latency a credit comes at once");
        tap_ok(lap_bank_reached(buffer->banks[0], 0, 1), "to itself a rank needs no link");
    } else {
        tap_success(lap_buffer_wait(buffer, 0, 1, 1), "the credit comes");
        tap_success(lap_buffer_wait(buffer, 0, 0, 1), "the signal comes");
    }
    lap_group_barrier(lap_world_group(world));
    lap_buffer_destroy(buffer);
}

/* Far more on its way than the queue has room for at first, from both sides. */
static void test_many(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_buffer_t *buffer = new_buffer(world, 8, 4, link_of(0, 20e-3));
    const int rank = lap_world_rank(world), peer = 1 - rank;
    lap_status_t status = LAP_OK;
    static const uint32_t counts[3] = {12, 250, 250}; /* of each word; the first few fit */
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 4 * counts[round] && status == LAP_OK; i++)
            status = lap_buffer_raise(buffer, peer, i % 4);
        for (size_t i = 0; i < 4 && status == LAP_OK; i++)
            status = lap_buffer_wait(buffer, peer, i, counts[round]);
    }
    tap_success(status, "a thousand signals on their way, both ways");
    lap_buffer_destroy(buffer);
}

/* A wait for several raises uses up all of them: the next one is for what comes later. */
static void test_counts(lap_world_t *world, void *arg)
{
    static _Atomic int sent;
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_buffer_t *buffer = new_buffer(world, 8, 1, link_of(0, 0));
    if (lap_world_rank(world) == 0) {
        for (sent = 0; sent < 3; sent++)
            lap_buffer_raise(buffer, 1, 0);
        lap_group_barrier(group);
        lap_sleep_until_ns(lap_now_ns() + 50 * MS);
        sent = 4;
        lap_buffer_raise(buffer, 1, 0);
    } else {
        lap_group_barrier(group);
        tap_success(lap_buffer_wait(buffer, 0, 0, 3), "three raises");
        tap_success(lap_buffer_wait(buffer, 0, 0, 1), "and one more");
        tap_ok(sent == 4, "which is waited for (%d were sent)", sent);
    }
    lap_group_barrier(group);
    lap_buffer_destroy(buffer);
}

int main(void)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.timeout_s = 30;
    tap_ranks(2, &options, test_pace, NULL);
    tap_ranks(2, &options, test_overtaking, NULL);
    tap_ranks(2, &options, test_in_place, NULL);
    tap_ranks(2, &options, test_many, NULL);
    tap_ranks(2, &options, test_counts, NULL);
    return tap_done();
}
