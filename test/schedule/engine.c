/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of the streams of an engine, without a device: of each stream it is known what is
 * behind it, so that a join that orders too little is seen, and what each join costs is counted.
 * Calls as in run.c: a join or none, taking the streams, work on them; now and then the end of a
 * call in the order of a caller's stream, work on COMPUTE directly behind a join, one engine that
 * follows another, and calls that are launched as graphs.
 */
#include <string.h>

#include "schedule/run.h"
#include "tap.h"

#define ENGINES 2
#define ALL (ENGINES * LAP_STREAMS)
#define SEQUENCES 300
#define MOVES 40

/* How much of each stream is behind a point. */
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
    lap_engine_t engines[ENGINES];
    lap_stream_t streams[ALL];
    lap_event_t joins[ALL], tails[ENGINES];
    past_t needed[ENGINES]; /* what must be behind whatever is issued, */
    past_t own[ALL];        /* and to that stream: graphs with work of it */
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
    for (int e = 0; e < ENGINES; e++) {
        lap_engine_t *engine = &world->engines[e];
        engine->device = &world->device;
        engine->enqueued_end = &world->tails[e];
        for (int s = 0; s < LAP_STREAMS; s++) {
            const int index = e * LAP_STREAMS + s;
            world->streams[index].index = index;
            engine->streams[s] = &world->streams[index];
            engine->joins[s] = &world->joins[index];
        }
    }
}

/* All that was issued to an engine so far. */
static past_t all_of(const world_t *world, int e)
{
    past_t past = {{0}};
    for (int s = 0; s < LAP_STREAMS; s++) {
        const lap_stream_t *stream = world->engines[e].streams[s];
        past.issued[stream->index] = stream->past.issued[stream->index];
    }
    return past;
}

/* Whether all that must be behind it is. */
static bool work(world_t *world, int e, int s)
{
    lap_stream_t *stream = world->engines[e].streams[s];
    bool ordered = true;
    for (int i = 0; i < ALL; i++)
        ordered = ordered && stream->past.issued[i] >= world->needed[e].issued[i] &&
                  stream->past.issued[i] >= world->own[stream->index].issued[i];
    stream->past.issued[stream->index]++;
    return ordered;
}

static void join(world_t *world, int e)
{
    const past_t all = all_of(world, e);
    meet(&world->needed[e], &all);
    (void)lap_engine_join(&world->engines[e]);
}

/* A call on some streams: on one of them last, if its end is a tail. */
static bool call(world_t *world, int e)
{
    lap_engine_t *engine = &world->engines[e];
    const unsigned streams = 1 + roll(world, (1u << LAP_STREAMS) - 1);
    const bool tails = roll(world, 4) == 0;
    bool ordered = true;
    int first = -1;
    if (roll(world, 3) > 0)
        join(world, e);
    (void)lap_engine_take(engine, streams);
    for (int s = LAP_STREAMS - 1; s >= 0; s--)
        if (streams >> s & 1) {
            ordered = work(world, e, s) && ordered;
            first = s;
        }
    if (!tails)
        return ordered;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (streams >> s & 1)
            meet(&engine->streams[first]->past, &engine->streams[s]->past);
    engine->enqueued_end->past = engine->streams[first]->past;
    lap_engine_enqueued(engine, first);
    meet(&world->needed[e], &engine->enqueued_end->past);
    return ordered;
}

/* A call on some streams that is launched on the first of them. */
static bool launch(world_t *world, int e)
{
    lap_engine_t *engine = &world->engines[e];
    const unsigned streams = 1 + roll(world, (1u << LAP_STREAMS) - 1);
    int first = 0;
    while (!(streams >> first & 1))
        first++;
    (void)lap_engine_take_graph(engine, streams);
    for (int s = first + 1; s < LAP_STREAMS; s++)
        if (streams >> s & 1) { /* what that stream has behind it, the graph must have */
            meet(&world->own[engine->streams[first]->index], &engine->streams[s]->past);
            meet(&world->own[engine->streams[first]->index],
                 &world->own[engine->streams[s]->index]);
        }
    const bool ordered = work(world, e, first);
    for (int s = first + 1; s < LAP_STREAMS; s++)
        if (streams >> s & 1)
            meet(&world->own[engine->streams[s]->index], &engine->streams[first]->past);
    return ordered;
}

static bool move(world_t *world)
{
    const int e = (int)roll(world, ENGINES);
    switch (roll(world, 8)) {
    case 0: { /* directly behind a join */
        join(world, e);
        return work(world, e, LAP_STREAM_COMPUTE);
    }
    case 1: {
        const past_t first = all_of(world, 1 - e);
        meet(&world->needed[e], &first);
        (void)lap_engine_follow(&world->engines[e], &world->engines[1 - e]);
        return true;
    }
    case 2:
    case 3:
        return launch(world, e);
    default:
        return call(world, e);
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
    tap_ok(wrong == 0, "whatever is issued has behind it what joins and ends of calls promise (%u)",
           wrong);
}

static unsigned cost(world_t *world, unsigned streams)
{
    calls = 0;
    (void)lap_engine_join(&world->engines[0]);
    (void)lap_engine_take(&world->engines[0], streams);
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
    lap_engine_enqueued(&world.engines[0], LAP_STREAM_COMPUTE);
    tap_ok(cost(&world, compute) == 0, "COMPUTE does not wait for its own end of a call");
}

int main(void)
{
    test_order();
    test_costs();
    return tap_done();
}
