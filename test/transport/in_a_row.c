/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many signals in a row on a stream. A device may hold them back and launch them together, so many
 * at a time: whatever their number, each is raised, waited for and counted. Every rank raises all
 * but one of them at its neighbour, and that one with its data, a while later: nobody may see the
 * data too early. That last one goes around: no rank has a wait on a stream while it has still to
 * send what the next waits for, since streams may share a queue, in which the wait would hold it up
 * for ever. The copy that waits goes alone, or may go together with the next, which has nothing to
 * wait for: a device may hold such work back with the waits before it, and must not lose them when
 * more comes.
 *
 * Ranks are the processes of the world that the environment describes. --link GB/s: an emulated
 * link carries them.
 */
#include <stdlib.h>
#include <string.h>

#include "../device/shared.h"
#include "core/status.h"
#include "core/world.h"
#include "device/device.h"
#include "tap.h"
#include "transport/transport.h"
#include "util/clock.h"

enum { SIGNALS = 300, LATE_NS = 5000000 };

typedef struct row {
    lap_buffer_t *buffer;
    const lap_device_ops_t *ops;
    lap_stream_t *sender, *receiver;
    int to, from;
    int *data, *got; /* what is sent and what has come: memory that the device reaches by itself */
    uint32_t counts[SIGNALS]; /* how often each was raised so far, */
    uint32_t before[SIGNALS]; /* and by calls that have ended */
    int mistimed;             /* transfers that were told to begin or to end too early */
} row_t;

static lap_status_t raise_others(row_t *row, uint32_t n, uint32_t late)
{
    for (uint32_t i = 0; i < n; i++) {
        const lap_raise_t raise = {.peer = row->to, .signal = i};
        row->counts[i]++;
        if (i != late)
            LAP_TRY(row->buffer->ops->raise(row->buffer, row->ops, row->sender, &raise));
    }
    return row->ops->stream_synchronize(row->sender);
}

static lap_status_t wait_for_all(row_t *row, uint32_t n, bool together)
{
    const int rank = row->buffer->group->rank;
    const lap_copy_t copy = {
        row->got, row->buffer->data[rank], 1, sizeof(int), sizeof(int), sizeof(int), 0, together};
    const lap_copy_t next = {row->got + 1, row->data,   1, sizeof(int),
                             sizeof(int),  sizeof(int), 0, together};
    for (uint32_t i = 0; i < n; i++) {
        const lap_wait_t wait = {.peer = row->from,
                                 .signal = i,
                                 .target = row->counts[i],
                                 .count = row->counts[i] - row->before[i]};
        LAP_TRY(row->buffer->ops->wait(row->buffer, row->ops, row->receiver, &wait));
    }
    LAP_TRY(row->ops->copy(row->receiver, &copy));
    LAP_TRY(row->ops->copy(row->receiver, &next));
    return row->ops->stream_synchronize(row->receiver);
}

static lap_status_t send_late(row_t *row, uint32_t late, const int *data)
{
    lap_span_t span = {0};
    const lap_put_t put = {.src = data,
                           .src_stride = sizeof(int),
                           .dst_stride = sizeof(int),
                           .rows = 1,
                           .row_bytes = sizeof(int),
                           .peer = row->to,
                           .signal = late,
                           .span = &span};
    lap_sleep_until_ns(lap_now_ns() + LATE_NS);
    const uint64_t before = lap_now_ns();
    const uint64_t latency = (uint64_t)(row->buffer->link.latency_s * 1e9);
    LAP_TRY(row->buffer->ops->put(row->buffer, row->ops, row->sender, &put));
    LAP_TRY(row->ops->stream_synchronize(row->sender));
    row->mistimed += span.begin < before || span.end < span.begin + latency;
    return LAP_OK;
}

static void try_copies(row_t *row, uint32_t n, uint32_t late, bool together)
{
    static int round;
    *row->data = ++round;
    row->got[0] = row->got[1] = -1;
    const bool first = row->buffer->group->rank == 0;
    lap_status_t status = raise_others(row, n, late);
    if (status == LAP_OK && first)
        status = send_late(row, late, row->data);
    if (status == LAP_OK)
        status = wait_for_all(row, n, together);
    if (status == LAP_OK && !first)
        status = send_late(row, late, row->data);
    if (tap_success(status, "%u signals in a row, number %u the last", n, late))
        tap_ok(row->got[0] == round && row->got[1] == round,
               "what came with it is there, copied %s: %d, then %d, expected %d",
               together ? "together with more" : "alone", row->got[0], row->got[1], round);
    if (lap_group_barrier(row->buffer->group) != LAP_OK)
        exit(tap_done());
}

static void try_row(row_t *row, uint32_t n, uint32_t late)
{
    try_copies(row, n, late, false);
    try_copies(row, n, late, true);
}

/* As at the end of a call: what comes from now on counts anew. */
static void end_call(row_t *row)
{
    uint32_t raised[SIGNALS];
    for (int i = 0; i < SIGNALS; i++)
        raised[i] = row->counts[i] - row->before[i];
    memcpy(row->before, row->counts, sizeof(row->before));
    if (!row->buffer->ops->end_signals)
        return;
    tap_success(
        row->buffer->ops->end_signals(row->buffer, row->ops, row->receiver, raised, SIGNALS),
        "the signals of a call end");
    tap_success(row->ops->stream_synchronize(row->receiver), "and the stream goes on");
}

static void try_rows(lap_world_t *world, double link)
{
    static const uint32_t lengths[] = {1, 2, 31, 32, 33, 34, 63, 64, 65, 66, 97};
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_group_rank(group), size = lap_group_size(group);
    row_t row = {.to = (rank + 1) % size, .from = (rank + size - 1) % size};
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    lap_device_t *device = NULL;
    options.link = (lap_link_t){link * 1e9, link > 0 ? 2e-3 : 0};
    if (!tap_success(lap_device_of(world, &device), "a device"))
        return;
    row.ops = device->ops;
    if (!tap_success(lap_buffer_create(group, 4096, SIGNALS, &options, &row.buffer), "a buffer"))
        return;
    if (!tap_success(row.ops->stream_create(device, true, &row.sender), "a stream") ||
        !tap_success(row.ops->stream_create(device, false, &row.receiver), "another"))
        exit(tap_done());
    row.data = new_shared(device, sizeof(int));
    row.got = new_shared(device, 2 * sizeof(int));
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const uint32_t n = lengths[i], places[] = {0, 31, 32, 33, 64, n - 1};
        for (size_t p = 0; p < sizeof(places) / sizeof(places[0]); p++)
            if (places[p] < n)
                try_row(&row, n, places[p]);
    }
    for (uint32_t late = 254; late < 258; late++) {
        try_row(&row, SIGNALS, late);
        end_call(&row);
        try_row(&row, SIGNALS, late);
    }
    tap_ok(row.mistimed == 0, "%d transfers began before they were issued, or ended too early",
           row.mistimed);
    row.ops->stream_destroy(row.receiver);
    row.ops->stream_destroy(row.sender);
    free_shared(device, row.got);
    free_shared(device, row.data);
    lap_buffer_destroy(row.buffer);
}

int main(int argc, char **argv)
{
    lap_world_t *world = NULL;
    const double link = argc == 3 && strcmp(argv[1], "--link") == 0 ? atof(argv[2]) : 0;
    if (!tap_success(lap_world_create(NULL, &world), "a world from the environment"))
        return tap_done();
    try_rows(world, link);
    lap_world_destroy(world);
    return tap_done();
}
