/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pause is put down to: traces of two and three ranks whose times are known, in which a rank
 * begins late, computes, copies, has no core, or is woken late, are explained to the nanosecond, and
 * the causes are always as long as the pauses.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/trace.h"
#include "tap.h"

#define START 7000000000u
#define ROOM 12

static lap_trace_t *trace;

/* An empty trace of a call that all ranks are in from 0 to 1000. */
static void begin(int size, bool emulated)
{
    static lap_trace_call_t calls[3];
    trace->calls = NULL; /* which are not its own */
    tap_success(lap_trace_begin(trace, LAP_AG_GEMM, "direct", size, 64, emulated, ROOM), "a trace");
    trace->nrecords = 0;
    trace->begin = START;
    trace->end = START + 1000;
    for (int r = 0; r < size; r++)
        calls[r] = (lap_trace_call_t){START, START + 1000, 0};
    trace->calls = calls;
}

static lap_trace_record_t *add(int rank, lap_step_kind_t kind, int stream, uint64_t from,
                               uint64_t to)
{
    lap_trace_record_t *record = &trace->records[trace->nrecords];
    memset(record, 0, sizeof(*record));
    record->rank = rank;
    record->kind = (uint32_t)kind;
    record->stream = (uint32_t)stream;
    record->step = (uint32_t)trace->nrecords++;
    record->peer = record->from = -1;
    record->signal = LAP_NO_SIGNAL;
    record->group.size = 2;
    record->span = (lap_span_t){START + from, START + from, START + to};
    return record;
}

/* A put of a rank to another; what it sends is on its way until `came`. */
static lap_trace_record_t *add_put(int rank, int peer, uint64_t from, uint64_t to, uint64_t came)
{
    lap_trace_record_t *put = add(rank, LAP_STEP_PUT, LAP_STREAM_SEND, from, to);
    put->peer = peer;
    put->signal = lap_signal_data(rank);
    put->flight = (lap_span_t){START + from, START + from, START + came};
    return put;
}

/* A GEMM that waits for a rank's data from `ready` on. */
static lap_trace_record_t *add_gemm(int rank, int source, uint64_t ready, uint64_t from,
                                    uint64_t to)
{
    lap_trace_record_t *gemm = add(rank, LAP_STEP_GEMM, LAP_STREAM_COMPUTE, from, to);
    gemm->span.ready = START + ready;
    if (source < 0)
        return gemm;
    gemm->from = source;
    gemm->awaited = lap_signal_data(source);
    gemm->count = 1;
    return gemm;
}

/* Rank 0 is explained by these, and its longest piece by `who` and by the signal of `from`. */
static void expect(const char *what, uint64_t wire, uint64_t late, uint64_t core, int who, int from)
{
    lap_trace_view_t view;
    if (!tap_success(lap_trace_view(trace, 0, NULL, &view), "%s: a view", what))
        return;
    uint64_t sum = 0;
    const lap_pause_t *longest = NULL;
    bool ordered = true;
    for (size_t i = 0; i < view.npauses; i++) {
        const lap_pause_t *piece = &view.pauses[i];
        sum += piece->end - piece->begin;
        ordered = ordered && (i == 0 || view.pauses[i - 1].end <= piece->begin);
        if (!longest || piece->end - piece->begin > longest->end - longest->begin)
            longest = piece;
    }
    tap_ok(view.cause_ns[LAP_CAUSE_WIRE] == wire && view.cause_ns[LAP_CAUSE_LATE] == late &&
               view.cause_ns[LAP_CAUSE_CORE] == core,
           "%s: wire %" PRIu64 ", late %" PRIu64 ", core %" PRIu64 "; expected %" PRIu64
           ", %" PRIu64 ", %" PRIu64,
           what, view.cause_ns[LAP_CAUSE_WIRE], view.cause_ns[LAP_CAUSE_LATE],
           view.cause_ns[LAP_CAUSE_CORE], wire, late, core);
    tap_ok(sum == view.waited_ns && ordered && sum == wire + late + core,
           "%s: the pieces are the pauses", what);
    tap_ok(longest && longest->who == who && longest->from == from,
           "%s: rank %d, signal of rank %d; expected %d, %d", what, longest ? longest->who : -2,
           longest ? longest->from : -2, who, from);
    lap_trace_view_clear(&view);
}

/* Rank 0 computes from 0 to 100 and from 900 to 1000; between the two it waits for rank 1. */
static lap_trace_record_t *wait_for(uint64_t from, uint64_t to, uint64_t came)
{
    add_gemm(0, -1, 0, 0, 100);
    add_gemm(0, 1, 100, 900, 1000);
    return add_put(1, 0, from, to, came);
}

static void depend(lap_trace_record_t *record, const lap_trace_record_t *on)
{
    record->deps[record->ndeps++] = on->step;
}

static void test_wire(void)
{
    begin(2, true);
    wait_for(50, 60, 900);
    expect("a slow link", 800, 0, 0, 1, 1);
    begin(2, false);
    wait_for(50, 900, 900)->delays.running = 850;
    expect("a copy that has no core", 0, 0, 800, 1, 1);
}

static void test_late(void)
{
    begin(2, false);
    wait_for(800, 850, 850);
    trace->calls[1].begin = START + 800;
    expect("a rank that begins late", 50, 700, 50, 1, 1);
    begin(2, false);
    wait_for(800, 850, 850);
    trace->calls[1].begin = START + 800;
    trace->calls[1].delay = 650;
    expect("a rank that has no core to begin", 50, 50, 700, 1, 1);
    begin(2, false);
    lap_trace_record_t *gemm = add_gemm(1, -1, 0, 0, 800);
    depend(wait_for(800, 850, 850), gemm);
    expect("a rank that computes", 50, 700, 50, 1, 1);
    gemm->delays.running = 400; /* of 800: half of the 700 that were waited for */
    expect("a rank that computes and has half a core", 50, 350, 400, 1, 1);
}

/* As expect, where ranks also did what is in `besides`. */
static void expect_besides(const lap_trace_t *besides, const char *what, uint64_t wire,
                           uint64_t late, uint64_t core)
{
    lap_work_t work;
    if (tap_success(lap_work_init(&work, besides), "%s: the work", what)) {
        trace->work = &work;
        expect(what, wire, late, core, 1, 1);
    }
    trace->work = NULL;
    lap_work_clear(&work);
}

/* What ranks did besides the call, of which rank 1 has begun and not sent: a kernel, or a wait in another call. */
static void test_besides(void)
{
    lap_trace_record_t other = {.rank = 1, .kind = LAP_STEP_KERNEL, .call = LAP_NO_CALL};
    const lap_trace_t besides = {.size = 2, .records = &other, .nrecords = 1};
    other.span = (lap_span_t){START, START, START + 700};
    begin(2, false);
    lap_trace_record_t *put = wait_for(800, 850, 850);
    expect("a rank that has begun and not sent", 50, 0, 750, 1, 1);
    expect_besides(&besides, "... since a kernel ran", 50, 600, 150);
    other.delays.running = 350;
    expect_besides(&besides, "... on half a core", 50, 300, 450);
    other.delays.running = 0;
    other.kind = LAP_STEP_WAIT;
    expect_besides(&besides, "... that was no kernel", 50, 0, 750);
    other.count = 1;
    expect_besides(&besides, "a rank that waits in another call", 50, 600, 150);
    other.call = 0;
    expect_besides(&besides, "... which is the same", 50, 0, 750);
    other.call = LAP_NO_CALL;
    other.rank = 0;
    expect_besides(&besides, "... or of somebody else", 50, 0, 750);
    other.rank = 1;
    add(1, LAP_STEP_RAISE, LAP_STREAM_SEND, 100, 110);
    put->delays.before = 200; /* of the 690 between the two steps */
    expect_besides(&besides, "between two steps it had no core", 60, 490, 250);
}

/* Several things at once, in any order: rank 1 is busy from 200 to 600, from 650 to 700 and over the end of the pause. */
static void test_several(void)
{
    static const uint64_t spans[][2] = {{790, 990}, {810, 820}, {200, 600},
                                        {0, 90},    {650, 700}, {300, 400}};
    enum { COUNT = sizeof(spans) / sizeof(spans[0]) };
    lap_trace_record_t others[COUNT + 1] = {{.rank = 0}};
    const lap_trace_t besides = {.size = 2, .records = others, .nrecords = COUNT + 1};
    for (int i = 0; i <= COUNT; i++) {
        const uint64_t *span = i < COUNT ? spans[i] : (const uint64_t[]){100, 790};
        others[i] =
            (lap_trace_record_t){.rank = i < COUNT, .kind = LAP_STEP_KERNEL, .call = LAP_NO_CALL};
        others[i].span = (lap_span_t){START + span[0], START + span[0], START + span[1]};
    }
    begin(2, false);
    wait_for(800, 850, 850);
    expect_besides(&besides, "a rank that did several things", 50, 460, 290);
}

/* A step has as many: each is looked up, and not looked for among all. */
static void test_many(void)
{
    enum { MANY = 400000, EACH = 2 };
    lap_trace_record_t *others = calloc(MANY, sizeof(*others));
    const lap_trace_t besides = {.size = 2, .records = others, .nrecords = MANY};
    begin(2, false);
    wait_for(EACH * MANY, EACH * MANY, EACH * MANY);
    trace->records[1].span.begin = trace->records[1].span.end = START + EACH * MANY;
    trace->end = trace->calls[0].end = trace->calls[1].end = START + EACH * MANY;
    for (uint64_t i = 0; others && i < MANY; i++)
        others[i] = (lap_trace_record_t){
            .rank = 1,
            .kind = LAP_STEP_KERNEL,
            .call = LAP_NO_CALL,
            .span = {START + EACH * i, START + EACH * i, START + EACH * i + 1}};
    expect_besides(&besides, "many small kernels", 0, MANY - 50, MANY - 50);
    free(others);
}

static void test_core(void)
{
    begin(2, false);
    wait_for(50, 100, 100);
    expect("a rank that is woken late", 0, 0, 800, 0, 1);
    begin(2, false);
    add_gemm(0, -1, 0, 100, 500);
    expect("nobody is waited for", 0, 0, 600, 0, -1);
}

/* What rank 1 hands on comes from rank 2, which begins late. */
static void test_chain(void)
{
    begin(3, false);
    lap_trace_record_t *wait = add(1, LAP_STEP_WAIT, LAP_STREAM_SEND, 0, 850);
    wait->from = 2;
    wait->awaited = lap_signal_data(2);
    wait->count = 1;
    wait_for(850, 900, 900);
    add_put(2, 1, 750, 800, 800);
    trace->calls[2].begin = START + 700;
    /* Rank 2 is late until 700 and begins at 750; 50 on the wire; rank 1 wakes at 850 and copies. */
    expect("late at second hand", 100, 600, 100, 2, 1);
}

/* A word that is raised twice: the second wait is for the second raise. */
static void test_count(void)
{
    begin(2, false);
    const lap_trace_record_t *gemm = add_gemm(1, -1, 100, 100, 700);
    wait_for(50, 100, 100);
    trace->records[2].count = 2;
    depend(add_put(1, 0, 700, 800, 800), gemm);
    expect("the second of two raises", 100, 600, 100, 1, 1);
}

int main(void)
{
    if (!tap_success(lap_trace_create(&trace), "a trace is made"))
        return tap_done();
    test_wire();
    test_late();
    test_besides();
    test_several();
    test_many();
    test_core();
    test_chain();
    test_count();
    trace->calls = NULL;
    lap_trace_destroy(trace);
    return tap_done();
}
