/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every transport must do, as functions that each rank of a world calls. A test of a transport
 * includes this, makes its ranks and its options, and calls transport_conformance.
 */
#ifndef LAP_TEST_TRANSPORT_CONFORMANCE_H
#define LAP_TEST_TRANSPORT_CONFORMANCE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "tap.h"
#include "transport/transport.h"
#include "util/clock.h"

#define SLOT 1000 /* bytes that each rank has for each other */

static void fill_slot(unsigned char *slot, int round, int from, int to)
{
    for (size_t i = 0; i < SLOT; i++)
        slot[i] = (unsigned char)tap_random((uint64_t)round, i + SLOT * (size_t)(from * 64 + to));
}

static bool check_slot(const unsigned char *slot, int round, int from, int to)
{
    unsigned char expected[SLOT];
    fill_slot(expected, round, from, to);
    return memcmp(slot, expected, SLOT) == 0;
}

static lap_buffer_t *new_buffer(lap_group_t *group, size_t bytes, size_t nsignals,
                                const lap_buffer_options_t *options)
{
    lap_buffer_t *buffer = NULL;
    if (!tap_success(lap_buffer_create(group, bytes, nsignals, options, &buffer),
                     "a buffer of %zu bytes and %zu signals", bytes, nsignals))
        exit(tap_done());
    return buffer;
}

static void check_new(lap_group_t *group, const lap_buffer_options_t *options, const char *name)
{
    lap_buffer_t *buffer = new_buffer(group, 10000, 3, options);
    bool zero = true;
    for (int r = 0; r < lap_group_size(group); r++) {
        const unsigned char *data = lap_buffer_data(buffer, r);
        if (!data && r != lap_group_rank(group) && !(lap_buffer_can(buffer) & LAP_CAN_ADDRESS))
            continue;
        for (size_t i = 0; i < 10000; i++)
            zero = zero && data[i] == 0;
        zero = zero && (uintptr_t)data % 4096 == 0;
    }
    tap_ok(zero, "all of it is zero, and aligned to a page");
    tap_ok(strcmp(lap_buffer_transport(buffer), name) == 0 && lap_buffer_bytes(buffer) == 10000,
           "it says %s and its size", name);
    tap_ok(!lap_buffer_data(buffer, -1) && !lap_buffer_data(buffer, lap_group_size(group)),
           "and has no memory for ranks that there are not");
    tap_success(lap_group_barrier(group), "all have looked");
    lap_buffer_destroy(buffer);
    buffer = new_buffer(group, 0, 0, options);
    lap_buffer_destroy(buffer);
}

static void check_arguments(lap_group_t *group, const lap_buffer_options_t *options)
{
    const int size = lap_group_size(group);
    char source[8] = {0};
    lap_buffer_t *buffer = new_buffer(group, 100, 2, options);
    tap_failure(lap_buffer_put(buffer, size, 0, source, 8, 0), LAP_ERR_INVALID, "rank = ", NULL);
    tap_failure(lap_buffer_put(buffer, 0, 93, source, 8, 0), LAP_ERR_INVALID, "offset = 93",
                "bytes = 8", "100", NULL);
    tap_failure(lap_buffer_put(buffer, 0, SIZE_MAX, source, 8, 0), LAP_ERR_INVALID, "offset", NULL);
    tap_failure(lap_buffer_put(buffer, 0, 0, NULL, 8, 0), LAP_ERR_INVALID, "source is NULL", NULL);
    tap_failure(lap_buffer_put(buffer, 0, 0, source, 8, 2), LAP_ERR_INVALID, "signal is 2", NULL);
    tap_failure(lap_buffer_put(NULL, 0, 0, source, 8, 0), LAP_ERR_INVALID, "buffer is NULL", NULL);
    tap_failure(lap_buffer_raise(buffer, -1, 0), LAP_ERR_INVALID, "rank = -1", NULL);
    tap_failure(lap_buffer_raise(NULL, 0, 0), LAP_ERR_INVALID, "NULL", NULL);
    tap_failure(lap_buffer_wait(buffer, 0, 7, 1), LAP_ERR_INVALID, "signal is 7", NULL);
    tap_failure(lap_buffer_wait(buffer, size, 0, 1), LAP_ERR_INVALID, "from = ", NULL);
    tap_failure(lap_buffer_wait(buffer, 0, 0, UINT32_MAX), LAP_ERR_INVALID, "count", NULL);
    tap_failure(lap_buffer_wait(NULL, 0, 0, 1), LAP_ERR_INVALID, "NULL", NULL);
    tap_success(lap_buffer_wait(buffer, 0, 0, 0), "waiting for nothing");
    lap_buffer_destroy(buffer);
    lap_buffer_destroy(NULL);
    buffer = NULL;
    tap_failure(lap_buffer_create(NULL, 1, 1, options, &buffer), LAP_ERR_INVALID, "group", NULL);
    tap_failure(lap_buffer_create(group, 1, 1, options, NULL), LAP_ERR_INVALID, "buffer_p", NULL);
    tap_ok(!buffer && !lap_buffer_data(NULL, 0) && lap_buffer_bytes(NULL) == 0, "NULL is nothing");
    tap_success(lap_group_barrier(group), "the ranks are still together");
}

/*
 * Every rank says something else in its turn; all get the same answer, and the group stays usable.
 */
static void check_mismatch(lap_group_t *group, const lap_buffer_options_t *options)
{
    const int size = lap_group_size(group), rank = lap_group_rank(group);
    const bool last = rank == size - 1;
    lap_buffer_options_t other = *options;
    lap_buffer_t *buffer = NULL;
    char name[32];
    snprintf(name, sizeof(name), "rank %d", size - 1);
    if (size > 1) {
        tap_failure(lap_buffer_create(group, last ? 513 : 512, 1, options, &buffer),
                    LAP_ERR_MISMATCH, "512", "513", "rank 0", name, NULL);
        tap_failure(lap_buffer_create(group, 512, last ? 4 : 3, options, &buffer), LAP_ERR_MISMATCH,
                    "nsignals = 3", "nsignals = 4", "rank 0", name, NULL);
        other.link.latency_s = last ? 0.25 : 0.5;
        tap_failure(lap_buffer_create(group, 512, 1, &other, &buffer), LAP_ERR_MISMATCH, "0.25",
                    "0.5", "rank 0", name, NULL);
    }
    /* What only one rank does wrong all get to hear; those who did right hear of whom. */
    other = *options;
    if (last)
        other.transport = "pigeon";
    tap_failure(lap_buffer_create(group, 512, 1, &other, &buffer), LAP_ERR_INVALID, "pigeon",
                "self", "shm", last ? NULL : name, NULL);
    other = *options;
    if (last)
        other.link.bytes_per_s = -1;
    tap_failure(lap_buffer_create(group, 512, 1, &other, &buffer), LAP_ERR_INVALID, "bytes_per_s",
                "-1", NULL);
    other = *options;
    other.link.latency_s = NAN;
    tap_failure(lap_buffer_create(group, 512, 1, &other, &buffer), LAP_ERR_INVALID, "latency_s",
                NULL);
    other = *options;
    other.size = 3;
    tap_failure(lap_buffer_create(group, 512, 1, &other, &buffer), LAP_ERR_INVALID, "size", NULL);
    tap_failure(lap_buffer_create(group, SIZE_MAX - 5000, 1, options, &buffer), LAP_ERR_NO_MEMORY,
                "bytes", NULL);
    tap_failure(lap_buffer_create(group, 8, UINT32_MAX, options, &buffer), LAP_ERR_INVALID,
                "nsignals", NULL);
    tap_ok(!buffer, "none of these made a buffer");
    tap_success(lap_group_barrier(group), "and the group is as good as before");
}

/*
 * Everybody sends to everybody, again and again: a slot is written again once its reader has given
 * it back.
 */
static void check_rounds(lap_group_t *group, const lap_buffer_options_t *options, int rounds)
{
    const int size = lap_group_size(group), rank = lap_group_rank(group);
    const size_t n = (size_t)size;
    lap_buffer_t *buffer = new_buffer(group, n * SLOT, 2 * n, options);
    unsigned char slot[SLOT];
    lap_status_t status = LAP_OK;
    bool good = true;
    for (int round = 0; round < rounds && status == LAP_OK; round++) {
        for (int r = 0; r < size && status == LAP_OK; r++) {
            if (round > 0)
                status = lap_buffer_wait(buffer, r, n + (size_t)r, 1);
            fill_slot(slot, round, rank, r);
            if (status == LAP_OK)
                status = lap_buffer_put(buffer, r, (size_t)rank * SLOT, slot, SLOT, (size_t)rank);
            memset(slot, 0, SLOT); /* it is ours again */
        }
        for (int i = 0; i < size && status == LAP_OK; i++) {
            int r = (rank + i) % size;
            status = lap_buffer_wait(buffer, r, (size_t)r, 1);
            good = good && check_slot((unsigned char *)lap_buffer_data(buffer, rank) + r * SLOT,
                                      round, r, rank);
            if (status == LAP_OK)
                status = lap_buffer_raise(buffer, r, n + (size_t)rank);
        }
    }
    tap_success(status, "%d rounds among %d ranks", rounds, size);
    tap_ok(good, "with the right bytes each time");
    lap_buffer_destroy(buffer);
}

typedef struct look_task {
    const unsigned char *slot;
    int round, from, to;
    bool *good;
} look_task_t;

static lap_status_t run_look(void *arg)
{
    const look_task_t *task = arg;
    *task->good = *task->good && check_slot(task->slot, task->round, task->from, task->to);
    return LAP_OK;
}

/*
 * The same in one direction by streams: a thread of its own sends, another one receives and looks.
 */
static void check_streams(lap_group_t *group, const lap_buffer_options_t *options,
                          const lap_device_ops_t *device, int rounds)
{
    const int size = lap_group_size(group), rank = lap_group_rank(group);
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    lap_device_t *handle;
    lap_stream_t *streams[2];
    lap_buffer_t *buffer = new_buffer(group, SLOT, 2, options);
    unsigned char *sources = malloc((size_t)rounds * SLOT);
    lap_span_t *spans = calloc((size_t)rounds, sizeof(*spans));
    const lap_wait_reason_t reason = {.op = "test", .method = "stream"};
    lap_status_t status = device->open(&(lap_device_options_t){.threads = 1}, &handle);
    for (int i = 0; i < 2 && status == LAP_OK; i++)
        status = device->stream_create(handle, false, &streams[i]);
    bool good = true;
    for (int round = 0; round < rounds && status == LAP_OK; round++) {
        unsigned char *source = sources + (size_t)round * SLOT;
        fill_slot(source, round, rank, to);
        const lap_put_t put = {.src = source,
                               .src_stride = SLOT / 4,
                               .dst_stride = SLOT / 4,
                               .rows = 4,
                               .row_bytes = SLOT / 4,
                               .peer = to,
                               .span = &spans[round]};
        const lap_wait_t credit = {.peer = to,
                                   .signal = 1,
                                   .target = (uint32_t)round,
                                   .reason = &reason,
                                   .count = (uint32_t)round};
        const lap_wait_t data = {.peer = from,
                                 .signal = 0,
                                 .target = (uint32_t)round + 1,
                                 .reason = &reason,
                                 .count = (uint32_t)round + 1};
        const lap_raise_t give_back = {.peer = from, .signal = 1};
        const look_task_t look = {lap_buffer_data(buffer, rank), round, from, rank, &good};
        buffer->ops->wait(buffer, device, streams[0], &credit);
        buffer->ops->put(buffer, device, streams[0], &put);
        buffer->ops->wait(buffer, device, streams[1], &data);
        device->stream_call(streams[1], run_look, &look, sizeof(look));
        buffer->ops->raise(buffer, device, streams[1], &give_back);
    }
    for (int i = 0; i < 2; i++)
        if (status == LAP_OK)
            status = device->stream_synchronize(streams[i]);
    tap_success(status, "%d rounds on streams of %s", rounds, device->name);
    for (int i = 0; i < rounds; i++)
        good = good && spans[i].ready > 0 && spans[i].ready <= spans[i].begin &&
               spans[i].begin <= spans[i].end;
    tap_ok(good, "with the right bytes and times");
    for (int i = 0; i < 2; i++)
        device->stream_destroy(streams[i]);
    device->close(handle);
    free(spans);
    free(sources);
    lap_buffer_destroy(buffer);
}

/* What a rank writes into a peer's memory by itself is there when the signal is. */
static void check_in_place(lap_group_t *group, const lap_buffer_options_t *options)
{
    const int size = lap_group_size(group), rank = lap_group_rank(group);
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    lap_buffer_t *buffer = new_buffer(group, sizeof(int), 2, options);
    if (!(lap_buffer_can(buffer) & LAP_CAN_ADDRESS)) {
        tap_skip("%s cannot address a peer's memory", lap_buffer_transport(buffer));
        lap_buffer_destroy(buffer);
        return;
    }
    bool good = true;
    for (int round = 1; round <= 300; round++) {
        *(int *)lap_buffer_data(buffer, to) = round * 100 + rank;
        good = good && lap_buffer_raise(buffer, to, 0) == LAP_OK &&
               lap_buffer_wait(buffer, from, 0, 1) == LAP_OK &&
               *(int *)lap_buffer_data(buffer, rank) == round * 100 + from &&
               lap_buffer_raise(buffer, from, 1) == LAP_OK &&
               lap_buffer_wait(buffer, to, 1, 1) == LAP_OK;
    }
    tap_ok(good, "300 signals carry what was written in place");
    lap_buffer_destroy(buffer);
}

/* What a rank sends in a round: bytes that begin again after so many. */
static void fill_large(unsigned char *to, size_t count, size_t seed)
{
    enum { PERIOD = 2048 };
    for (size_t i = 0; i < PERIOD && i < count; i++)
        to[i] = (unsigned char)((i * 7 + seed * 13) >> 3);
    for (size_t i = PERIOD; i < count; i += PERIOD)
        memcpy(to + i, to, count - i < PERIOD ? count - i : PERIOD);
}

static size_t differing(const unsigned char *got, const unsigned char *expected, size_t count)
{
    size_t wrong = 0;
    if (memcmp(got, expected, count) == 0) /* one look for a sanitizer, not one a byte */
        return 0;
    for (size_t i = 0; i < count; i++)
        wrong += got[i] != expected[i];
    return wrong;
}

/*
 * A put of more than the wire takes at once, with gaps between its rows on both sides, in the rows
 * of a larger matrix: `count` rows of `bytes` bytes. Its signal, and one that is raised right after
 * it, come when all of it is there; nothing comes into the gaps.
 */
static void check_large(lap_group_t *group, const lap_buffer_options_t *options, size_t count,
                        size_t bytes)
{
    const int size = lap_group_size(group), rank = lap_group_rank(group);
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    enum { GAP = 24 };
    const unsigned char nothing[GAP] = {0};
    const size_t stride = bytes + GAP, src_stride = bytes + 8;
    lap_buffer_t *buffer = new_buffer(group, count * stride + 16, 3, options);
    unsigned char *source = calloc(count, src_stride), *expected = calloc(count, src_stride);
    const unsigned char *data = lap_buffer_data(buffer, rank);
    size_t wrong = 0;
    for (int round = 0; round < 4; round++) {
        const size_t out = (size_t)round * 64 + (size_t)rank;
        const size_t in = (size_t)round * 64 + (size_t)from;
        fill_large(source, count * src_stride, out);
        fill_large(expected, count * src_stride, in);
        const lap_put_t put = {.src = source,
                               .src_stride = src_stride,
                               .offset = 16,
                               .dst_stride = stride,
                               .rows = count,
                               .row_bytes = bytes,
                               .peer = to,
                               .signal = 0};
        const lap_raise_t raise = {.peer = to, .signal = 1};
        lap_status_t status = buffer->ops->put_now(buffer, &put);
        memset(source, 0xee, count * src_stride); /* it is ours again */
        if (status == LAP_OK)
            status = buffer->ops->raise_now(buffer, &raise);
        if (status == LAP_OK)
            status = lap_buffer_wait(buffer, from, round % 2, 1); /* either of the two will do */
        for (size_t row = 0; row < count; row++) {
            const unsigned char *got = data + 16 + row * stride;
            wrong += differing(got, expected + row * src_stride, bytes);
            wrong += differing(got + bytes, nothing, GAP);
        }
        if (status == LAP_OK)
            status = lap_buffer_wait(buffer, from, 1 - round % 2, 1);
        if (status == LAP_OK)
            status = lap_buffer_raise(buffer, from, 2);
        if (status == LAP_OK)
            status = lap_buffer_wait(buffer, to, 2, 1);
        if (!tap_success(status, "a put of %zu rows of %zu bytes", count, bytes))
            break;
    }
    tap_ok(wrong == 0, "all of it has come before its signal and a later one, %zu bytes wrong",
           wrong);
    free(expected);
    free(source);
    lap_buffer_destroy(buffer);
}

static void name_signal(int size, uint32_t signal, char *text, size_t bytes)
{
    snprintf(text, bytes, "number %u of %d ranks", signal, size);
}

static lap_wait_reason_t reason_of(uint32_t call, uint64_t m)
{
    return (lap_wait_reason_t){.op = "ag_gemm",
                               .method = "ring",
                               .step = 7,
                               .call = call,
                               .op_index = 1,
                               .m = m,
                               .name_signal = name_signal,
                               .tag = lap_call_tag(call, 1, m)};
}

/*
 * Two ranks that are not in the same call find out, whether or not the signal comes. Breaks its
 * group.
 */
static void check_notes(lap_group_t *group, const lap_buffer_options_t *options, bool raise)
{
    const int rank = lap_group_rank(group), peer = rank ^ 1;
    lap_group_t *pair = NULL;
    if (!tap_success(lap_group_split(group, rank / 2, rank, &pair), "groups of two"))
        exit(tap_done());
    if (lap_group_size(pair) == 2) {
        lap_buffer_t *buffer = new_buffer(pair, 8, 4, options);
        lap_wait_reason_t reason = reason_of(6, 512);
        lap_wait_t wait = {.peer = peer % 2,
                           .signal = (uint32_t)peer % 2,
                           .target = 1,
                           .reason = &reason,
                           .count = 1};
        lap_raise_t signal = {.peer = peer % 2, .signal = (uint32_t)rank % 2, .tag = reason.tag};
        lap_buffer_announce(buffer, &reason);
        buffer->ops->raise_now(buffer, &signal);
        tap_success(buffer->ops->wait_now(buffer, &wait), "two ranks in the same call");
        tap_success(lap_group_barrier(pair), "the wait of the other is over too");
        reason = reason_of(7, 512 + (uint64_t)rank % 2);
        signal.tag = reason.tag;
        wait.target = 2;
        lap_buffer_announce(buffer, &reason);
        if (raise)
            buffer->ops->raise_now(buffer, &signal);
        tap_failure(buffer->ops->wait_now(buffer, &wait), LAP_ERR_MISMATCH, "rank 0", "operator 1",
                    "ag_gemm (ring)", "m = 512", "rank 1", "m = 513", "call 7", NULL);
        tap_failure(lap_group_barrier(pair), LAP_ERR_MISMATCH, "m = 512", "m = 513", NULL);
        lap_buffer_destroy(buffer);
    }
    lap_group_destroy(pair);
}

static void transport_conformance(lap_world_t *world, const lap_buffer_options_t *options,
                                  const char *name)
{
    lap_group_t *group = lap_world_group(world);
    check_new(group, options, name);
    check_arguments(group, options);
    check_mismatch(group, options);
    check_rounds(group, options, 300);
    check_in_place(group, options);
    check_large(group, options, 700, 1000);
    check_large(group, options, 3, 300000);
    for (size_t i = 0; lap_device_at(i); i++)
        if (!lap_device_at(i)->transport) /* else only that one is for its memory */
            check_streams(group, options, lap_device_at(i), 100);
    check_notes(group, options, false);
    check_notes(group, options, true);
}

#endif
