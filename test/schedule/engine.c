/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of the streams of an engine, without a device: of each stream it is known what is
 * behind it, so that a join that orders too little is seen, and what each join costs is counted.
 * Calls as in run.c: a join or none, taking the streams, work on them; now and then the end of a
 * call in the order of a caller's stream, work on COMPUTE directly after a join, and calls that are
 * launched as graphs; all of it in the foreground and in the background, which joins put after the
 * foreground.
 */
#include <string.h>

#include "schedule/run.h"
#include "tap.h"

#define SETS LAP_STREAM_SETS
#define ALL LAP_STREAMS
#define SEQUENCES 300
#define MOVES 40

/* How much of each stream is before a point. */
typedef struct past {
    unsigned issued[ALL];
} past_t;

struct lap_stream {
    int index;
    past_t past;
};

struct lap_event {
    past_t past;
};

static unsigned calls; /* of the device */

static void meet(past_t *past, const past_t *other)
{
    for (int i = 0; i < ALL; i++)
        if (past->issued[i] < other->issued[i])
            past->issued[i] = other->issued[i];
}

static lap_status_t record(lap_event_t *event, lap_stream_t *stream)
{
    calls++;
    event->past = stream->past;
    return LAP_OK;
}

static lap_status_t await(lap_stream_t *stream, lap_event_t *event)
{
    calls++;
    meet(&stream->past, &event->past);
    return LAP_OK;
}

static const lap_device_ops_t counted = {.event_record = record, .stream_wait_event = await};

typedef struct world {
    lap_device_t device;
    lap_engine_t engine;
    lap_stream_t streams[ALL];
    lap_event_t joins[ALL], tails[SETS];
    past_t needed[SETS]; /* of each set: what must be before whatever is issued, */
    past_t own[ALL];     /* and to that stream: graphs with work of it */
    uint64_t seed, dice;
} world_t;

static unsigned roll(world_t *world, unsigned sides)
{
    return (unsigned)(tap_random(world->seed, world->dice++) % sides);
}

static void begin(world_t *world, uint64_t seed)
{
    memset(world, 0, sizeof(*world));
    world->device.ops = &counted;
    world->seed = seed;
    lap_engine_t *engine = &world->engine;
    engine->device = &world->device;
    for (int set = 0; set < SETS; set++)
        engine->enqueued_end[set] = &world->tails[set];
    for (int s = 0; s < ALL; s++) {
        world->streams[s].index = s;
        engine->streams[s] = &world->streams[s];
        engine->joins[s] = &world->joins[s];
    }
}

/* The streams of a set, by number: its kinds, and of the foreground the second pair. */
static int count_of(lap_stream_set_t set)
{
    return LAP_STREAM_KINDS + (set == LAP_FOREGROUND ? 2 : 0);
}

static int index_of(lap_stream_set_t set, int number)
{
    return number < LAP_STREAM_KINDS ? lap_stream_of(set, number)
                                     : LAP_STREAM_SEND2 + number - LAP_STREAM_KINDS;
}

static lap_stream_t *stream_of(world_t *world, lap_stream_set_t set, int number)
{
    return &world->streams[index_of(set, number)];
}

/* All that was issued to a set so far. */
static past_t all_of(world_t *world, lap_stream_set_t set)
{
    past_t past = {{0}};
    for (int k = 0; k < count_of(set); k++) {
        const lap_stream_t *stream = stream_of(world, set, k);
        past.issued[stream->index] = stream->past.issued[stream->index];
    }
    return past;
}

/* Whether all that must be before it is. */
static bool work(world_t *world, lap_stream_set_t set, int kind)
{
    lap_stream_t *stream = stream_of(world, set, kind);
    bool ordered = true;
    for (int i = 0; i < ALL; i++)
        ordered = ordered && stream->past.issued[i] >= world->needed[set].issued[i] &&
                  stream->past.issued[i] >= world->own[stream->index].issued[i];
    stream->past.issued[stream->index]++;
    return ordered;
}

static void join(world_t *world, lap_stream_set_t set)
{
    const past_t own = all_of(world, set), foreground = all_of(world, LAP_FOREGROUND);
    meet(&world->needed[set], &own);
    meet(&world->needed[set], &foreground); /* which all other sets come after, too */
    (void)lap_engine_join(&world->engine, set);
}

/* Some streams of a set, by their numbers. */
static unsigned roll_streams(world_t *world, lap_stream_set_t set)
{
    return 1 + roll(world, (1u << count_of(set)) - 1);
}

static unsigned bits_of(lap_stream_set_t set, unsigned numbers)
{
    unsigned bits = 0;
    for (int k = 0; k < count_of(set); k++)
        bits |= (numbers >> k & 1) << index_of(set, k);
    return bits;
}

/* A call on some streams: on one of them last, if its end is a tail. */
static bool call(world_t *world, lap_stream_set_t set)
{
    lap_engine_t *engine = &world->engine;
    const unsigned kinds = roll_streams(world, set);
    const bool tails = roll(world, 4) == 0;
    bool ordered = true;
    int first = -1;
    if (roll(world, 3) > 0)
        join(world, set);
    (void)lap_engine_take(engine, bits_of(set, kinds));
    for (int k = count_of(set) - 1; k >= 0; k--)
        if (kinds >> k & 1) {
            ordered = work(world, set, k) && ordered;
            first = k;
        }
    if (!tails)
        return ordered;
    lap_stream_t *stream = stream_of(world, set, first);
    for (int k = 0; k < count_of(set); k++)
        if (kinds >> k & 1)
            meet(&stream->past, &stream_of(world, set, k)->past);
    engine->enqueued_end[set]->past = stream->past;
    lap_engine_enqueued(engine, stream->index);
    meet(&world->needed[set], &stream->past);
    return ordered;
}

/* A call on some streams that is launched on the first of them. */
static bool launch(world_t *world, lap_stream_set_t set)
{
    const unsigned kinds = roll_streams(world, set);
    int first = 0;
    while (!(kinds >> first & 1))
        first++;
    lap_stream_t *stream = stream_of(world, set, first);
    (void)lap_engine_take_graph(&world->engine, bits_of(set, kinds));
    for (int k = first + 1; k < count_of(set); k++)
        if (kinds >> k & 1) { /* what that stream comes after, the graph must come after */
            const lap_stream_t *other = stream_of(world, set, k);
            meet(&world->own[stream->index], &other->past);
            meet(&world->own[stream->index], &world->own[other->index]);
        }
    const bool ordered = work(world, set, first);
    for (int k = first + 1; k < count_of(set); k++)
        if (kinds >> k & 1)
            meet(&world->own[index_of(set, k)], &stream->past);
    return ordered;
}

static bool move(world_t *world)
{
    const lap_stream_set_t set = (lap_stream_set_t)roll(world, SETS);
    switch (roll(world, 8)) {
    case 0: /* directly after a join */
        join(world, set);
        return work(world, set, LAP_STREAM_COMPUTE);
    case 1:
    case 2:
        return launch(world, set);
    default:
        return call(world, set);
    }
}

static void test_order(void)
{
    static world_t world;
    unsigned wrong = 0;
    for (uint64_t seed = 0; seed < SEQUENCES; seed++) {
        begin(&world, seed);
        for (int i = 0; i < MOVES; i++)
            wrong += !move(&world);
    }
    tap_ok(wrong == 0, "whatever is issued comes after what joins and ends of calls promise (%u)",
           wrong);
}

static unsigned cost(world_t *world, unsigned streams)
{
    calls = 0;
    (void)lap_engine_join(&world->engine, LAP_FOREGROUND);
    (void)lap_engine_take(&world->engine, streams);
    return calls;
}

static void test_costs(void)
{
    static world_t world;
    const unsigned compute = 1u << LAP_STREAM_COMPUTE, send = 1u << LAP_STREAM_SEND;
    begin(&world, 0);
    cost(&world, compute);
    tap_ok(cost(&world, compute) == 0, "calls on COMPUTE alone are in order by themselves");
    tap_ok(cost(&world, compute | send) == 2, "SEND waits for COMPUTE");
    tap_ok(cost(&world, compute) == 2, "COMPUTE waits for SEND");
    tap_ok(cost(&world, compute) == 0, "and once is enough");
    lap_engine_enqueued(&world.engine, LAP_STREAM_COMPUTE);
    tap_ok(cost(&world, compute) == 0, "COMPUTE does not wait for its own end of a call");
    (void)lap_engine_join(&world.engine, LAP_BACKGROUND);
    (void)lap_engine_take(&world.engine, lap_stream_bits(LAP_BACKGROUND));
    tap_ok(cost(&world, compute) == 0, "and nothing waits for the background");
}

int main(void)
{
    test_order();
    test_costs();
    return tap_done();
}
