/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events of every device: order, growth, failures and how they spread, and copies.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "core/status.h"
#include "device/device.h"
#include "shared.h"
#include "tap.h"
#include "util/clock.h"

#define MANY 5000

static const lap_device_ops_t *ops;
static lap_device_t *device;

/* A gate that a task waits at until the test opens it. */
static _Atomic bool gate_open;

static lap_status_t wait_at_gate(void *arg)
{
    (void)arg;
    while (!gate_open)
        lap_sleep_until_ns(lap_now_ns() + 100000);
    return LAP_OK;
}

typedef struct note {
    int *list; /* list[0] counts the rest */
    int value;
} note_t;

static lap_status_t take_note(void *arg)
{
    const note_t *note = arg;
    note->list[++note->list[0]] = note->value;
    return LAP_OK;
}

static lap_status_t fail(void *arg)
{
    return lap_error(LAP_ERR_PEER_LOST, "rank %d of the test is lost", *(int *)arg);
}

static lap_stream_t *new_stream(void)
{
    lap_stream_t *stream = NULL;
    if (!tap_success(ops->stream_create(device, false, &stream), "%s: a stream", ops->name))
        exit(tap_done());
    return stream;
}

static lap_event_t *new_event(void)
{
    lap_event_t *event = NULL;
    if (!tap_success(ops->event_create(device, &event), "%s: an event", ops->name))
        exit(tap_done());
    return event;
}

static lap_status_t add_note(lap_stream_t *stream, int *list, int value)
{
    const note_t note = {list, value};
    return ops->stream_call(stream, take_note, &note, sizeof(note));
}

/*
 * While its first task is held up, a stream takes any number of others and then runs them in order.
 */
static void test_order_and_growth(void)
{
    int *list = calloc(MANY + 1, sizeof(int));
    lap_stream_t *stream = new_stream();
    for (int i = 0; i < 37; i++) /* so that the ring is not at its beginning when it grows */
        add_note(stream, list, i);
    ops->stream_synchronize(stream);
    list[0] = 0;
    gate_open = false;
    bool issued = ops->stream_call(stream, wait_at_gate, NULL, 0) == LAP_OK;
    for (int i = 0; i < MANY; i++)
        issued = issued && add_note(stream, list, i) == LAP_OK;
    tap_ok(issued, "%s: %d calls are taken while the first one runs", ops->name, MANY);
    gate_open = true;
    tap_success(ops->stream_synchronize(stream), "%s: synchronises", ops->name);
    bool ordered = list[0] == MANY;
    for (int i = 0; ordered && i < MANY; i++)
        ordered = list[i + 1] == i;
    tap_ok(ordered, "%s: all have run, in order", ops->name);
    for (int round = 0; round < 300; round++) {
        list[0] = 0;
        add_note(stream, list, round);
        if (ops->stream_synchronize(stream) != LAP_OK || list[0] != 1 || list[1] != round)
            tap_ok(false, "%s: round %d of a call and a synchronisation", ops->name, round);
    }
    list[0] = 0;
    for (int i = 0; i < 100; i++)
        add_note(stream, list, i);
    ops->stream_destroy(stream);
    tap_ok(list[0] == 100, "%s: what a stream was given runs before it ends", ops->name);
    free(list);
}

/* An argument of any size: its number and its bytes say what is right. */
typedef struct sized {
    int *right; /* so many arguments came as they were given, in order */
    int value, bytes;
    unsigned char rest[LAP_STREAM_ARG_BYTES - 16];
} sized_t;

static lap_status_t compare_sized(void *arg)
{
    const sized_t *sized = arg;
    bool same = *sized->right == sized->value;
    for (int i = 0; i < sized->bytes; i++)
        same = same && sized->rest[i] == (unsigned char)(sized->value + i);
    *sized->right += same;
    return LAP_OK;
}

/* Tasks of all sizes follow one another, over the end of the ring and while it grows. */
static void test_sizes(void)
{
    int right = 0, given = 0;
    lap_stream_t *stream = new_stream();
    for (int round = 0; round < 3; round++) {
        gate_open = false;
        bool issued = ops->stream_call(stream, wait_at_gate, NULL, 0) == LAP_OK;
        for (int i = 0; i < MANY / 5; i++) {
            sized_t sized = {.right = &right, .value = given++};
            sized.bytes = (int)((size_t)given * 37 % (sizeof(sized.rest) + 1));
            for (int b = 0; b < sized.bytes; b++)
                sized.rest[b] = (unsigned char)(sized.value + b);
            issued =
                issued && ops->stream_call(stream, compare_sized, &sized,
                                           offsetof(sized_t, rest) + (size_t)sized.bytes) == LAP_OK;
        }
        gate_open = true;
        tap_success(ops->stream_synchronize(stream), "%s: synchronises", ops->name);
        tap_ok(issued && right == given, "%s: %d arguments of all sizes, of %d, are right",
               ops->name, right, given);
    }
    ops->stream_destroy(stream);
}

static void test_arguments(void)
{
    char arg[LAP_STREAM_ARG_BYTES + 1] = {0}, has[24], most[24];
    snprintf(has, sizeof(has), "%zu", sizeof(arg));
    snprintf(most, sizeof(most), "%zu", sizeof(arg) - 1);
    lap_stream_t *stream = new_stream();
    tap_failure(ops->stream_call(stream, fail, arg, sizeof(arg)), LAP_ERR_INVALID, has, most, NULL);
    for (int i = 0; i < 3; i++) {
        lap_gemm_t gemm = {.a_dtype = LAP_FLOAT32};
        lap_dtype_t *const types[] = {&gemm.a_dtype, &gemm.b_dtype, &gemm.d_dtype};
        const char *const names[] = {"with a", "with b", "with d"};
        *types[i] = (lap_dtype_t)7;
        tap_failure(ops->gemm(stream, &gemm), LAP_ERR_UNSUPPORTED, "dtype 7", names[i], "bfloat16",
                    "float8_e5m2", NULL);
    }
    lap_reduce_t reduce = {.from = (lap_dtype_t)7};
    tap_failure(ops->reduce(stream, &reduce), LAP_ERR_UNSUPPORTED, "dtype 7", "bfloat16", NULL);
    reduce = (lap_reduce_t){.to = LAP_DTYPE_DEFAULT};
    tap_failure(ops->reduce(stream, &reduce), LAP_ERR_UNSUPPORTED, "dtype -1", "result", NULL);
    lap_column_sums_t sums = {.from = (lap_dtype_t)7};
    tap_failure(ops->column_sums(stream, &sums), LAP_ERR_UNSUPPORTED, "dtype 7", "rows", NULL);
    sums = (lap_column_sums_t){.to = (lap_dtype_t)7};
    tap_failure(ops->column_sums(stream, &sums), LAP_ERR_UNSUPPORTED, "dtype 7", "result", NULL);
    const lap_reduce_t nothing = {.from = LAP_FLOAT32};
    tap_failure(ops->reduce(stream, &nothing), LAP_ERR_INVALID, "0 sources", NULL);
    lap_device_t *none = NULL;
    tap_failure(ops->open(&(lap_device_options_t){.threads = -1}, &none), LAP_ERR_INVALID, "-1",
                NULL);
    ops->stream_destroy(stream);
}

/* A second stream goes on only when the first has got to the record. */
static void test_event_order(void)
{
    int list[8] = {0};
    lap_stream_t *first = new_stream(), *second = new_stream();
    lap_event_t *event = new_event();
    gate_open = false;
    tap_success(ops->stream_wait_event(second, event), "%s: an event never recorded", ops->name);
    tap_success(ops->stream_synchronize(second), "%s: holds nobody up", ops->name);
    ops->stream_call(first, wait_at_gate, NULL, 0);
    add_note(first, list, 1);
    ops->event_record(event, first);
    ops->stream_wait_event(second, event);
    add_note(second, list, 2);
    lap_sleep_until_ns(lap_now_ns() + 2000000);
    gate_open = true;
    tap_success(ops->stream_synchronize(second), "%s: the waiting stream ends", ops->name);
    tap_ok(list[0] == 2 && list[1] == 1 && list[2] == 2, "%s: after what it waited for", ops->name);
    ops->stream_destroy(first);
    ops->stream_destroy(second);
    ops->event_destroy(event);
}

/* Two streams take turns, with the same two events recorded again and again. */
static void test_events_again(void)
{
    const int rounds = 1000;
    int *list = calloc(2 * (size_t)rounds + 1, sizeof(int));
    lap_stream_t *streams[2] = {new_stream(), new_stream()};
    lap_event_t *events[2] = {new_event(), new_event()};
    for (int i = 0; i < 2 * rounds; i++) {
        if (i > 0)
            ops->stream_wait_event(streams[i % 2], events[(i + 1) % 2]);
        add_note(streams[i % 2], list, i);
        ops->event_record(events[i % 2], streams[i % 2]);
    }
    ops->stream_synchronize(streams[0]);
    ops->stream_synchronize(streams[1]);
    bool ordered = list[0] == 2 * rounds;
    for (int i = 0; ordered && i < 2 * rounds; i++)
        ordered = list[i + 1] == i;
    tap_ok(ordered, "%s: two streams take %d turns by two events", ops->name, 2 * rounds);
    for (int i = 0; i < 2; i++) {
        ops->stream_destroy(streams[i]);
        ops->event_destroy(events[i]);
    }
    free(list);
}

static void test_failures(void)
{
    int list[8] = {0};
    const int seven = 7, eight = 8;
    lap_stream_t *first = new_stream(), *second = new_stream();
    lap_event_t *event = new_event();
    ops->stream_call(first, fail, &seven, sizeof(seven));
    ops->stream_call(first, fail, &eight, sizeof(eight));
    add_note(first, list, 1);
    ops->event_record(event, first);
    ops->stream_wait_event(second, event);
    add_note(second, list, 2);
    tap_failure(ops->stream_synchronize(second), LAP_ERR_PEER_LOST, "rank 7 of the test", NULL);
    tap_failure(ops->stream_synchronize(first), LAP_ERR_PEER_LOST, "rank 7 of the test", NULL);
    tap_ok(list[0] == 0, "%s: after a failure nothing runs", ops->name);
    add_note(first, list, 3);
    tap_success(ops->stream_synchronize(first), "%s: a reported failure is over", ops->name);
    ops->event_record(event, first);
    ops->stream_wait_event(second, event);
    add_note(second, list, 4);
    tap_success(ops->stream_synchronize(second), "%s: for who waits as well", ops->name);
    tap_ok(list[0] == 2 && list[1] == 3 && list[2] == 4, "%s: and work goes on", ops->name);
    ops->stream_destroy(first);
    ops->stream_destroy(second);
    ops->event_destroy(event);
}

static void test_stamps(void)
{
    uint64_t times[2] = {0, 0};
    const uint64_t before = lap_now_ns();
    lap_stream_t *stream = new_stream();
    ops->stamp(stream, &times[0]);
    gate_open = true;
    ops->stream_call(stream, wait_at_gate, NULL, 0);
    ops->stamp(stream, &times[1]);
    ops->stream_synchronize(stream);
    tap_ok(before <= times[0] && times[0] <= times[1] && times[1] <= lap_now_ns(),
           "%s: stamps are the times at which the stream got there", ops->name);
    ops->stream_destroy(stream);
}

/*
 * A graph of many stamps, made again and again: each launch brings its own times, whoever looks for
 * them in between, and no graph keeps more than its own.
 */
static void test_stamps_of_graphs(void)
{
    enum { STAMPS = 200, GRAPHS = 340 }; /* more than there is room for at once */
    uint64_t *times = calloc(STAMPS, sizeof(*times)), last = 0;
    lap_stream_t *stream = new_stream();
    lap_event_t *event = new_event();
    lap_graph_t *graph = NULL;
    int wrong = 0;
    lap_status_t status = ops->event_record(event, stream);
    for (int i = 0; i < GRAPHS && status == LAP_OK; i++) {
        status = ops->graph_begin(&stream, 1);
        for (int j = 0; j < STAMPS && status == LAP_OK; j++)
            status = ops->stamp(stream, &times[j]);
        const lap_status_t ended = ops->graph_end(&stream, 1, &graph);
        status = status == LAP_OK ? ended : status;
        for (int call = 0; call < 2 && status == LAP_OK; call++) {
            gate_open = false;
            ops->stream_call(stream, wait_at_gate, NULL, 0);
            ops->graph_launch(graph, stream);
            ops->event_synchronize(event, NULL); /* of long ago */
            gate_open = true;
            status = ops->stream_synchronize(stream);
            wrong += times[0] == 0 || times[0] < last;
            for (int j = 1; j < STAMPS; j++)
                wrong += times[j] < times[j - 1];
            last = times[STAMPS - 1];
        }
        if (i % 2 && graph) { /* else it is changed in place */
            ops->graph_destroy(graph);
            graph = NULL;
        }
    }
    tap_success(status, "%s: %d graphs of %d stamps, each launched twice", ops->name, GRAPHS,
                STAMPS);
    tap_ok(wrong == 0, "%s: %d of their times are of another launch", ops->name, wrong);
    ops->event_destroy(event);
    ops->stream_destroy(stream);
    free(times);
}

/* 3 rows of 5 bytes out of rows of 9 into rows of 7, and packed. */
static void test_copy(void)
{
    enum { SRC = 27, DST = 22 };
    char *src = new_shared(device, SRC), *dst = new_shared(device, DST);
    char *packed = new_shared(device, SRC);
    lap_stream_t *stream = new_stream();
    for (int i = 0; i < 27; i++)
        src[i] = (char)(i + 1);
    const lap_copy_t copy = {dst, src, 3, 5, 7, 9, 0, false};
    const lap_copy_t whole = {packed, src, 3, 9, 9, 9, 0, false};
    const lap_copy_t none = {NULL, NULL, 0, 5, 7, 9, 0, false};
    ops->copy(stream, &copy);
    ops->copy(stream, &whole);
    ops->copy(stream, &none);
    tap_success(ops->stream_synchronize(stream), "%s: copies", ops->name);
    bool good = memcmp(packed, src, SRC) == 0;
    for (int row = 0; row < 3; row++)
        for (int i = 0; i < 7; i++)
            good = good && dst[row * 7 + i] == (i < 5 ? row * 9 + i + 1 : 0);
    tap_ok(good && dst[21] == 0, "%s: rows are copied, and nothing between them", ops->name);
    free_shared(device, src);
    free_shared(device, dst);
    free_shared(device, packed);
    ops->stream_destroy(stream);
}

/*
 * Rows at odd addresses, shorter and longer than what is moved at once, by as many multiprocessors
 * as there are and by more, where the device has any.
 */
static void test_copy_by_sms(void)
{
    static const size_t cases[][4] = {/* rows, bytes of a row, offset, gap */
                                      {1, 100000, 0, 0}, {1, 70001, 3, 0},  {3, 33000, 0, 0},
                                      {5, 16, 8, 16},    {4, 40007, 4, 25}, {7, 5003, 1, 2},
                                      {70, 48, 0, 16},   {2, 16390, 2, 6},  {90, 3, 0, 1}};
    enum { MOST = 400000 };
    unsigned char *src = new_shared(device, MOST), *dst = new_shared(device, MOST);
    lap_stream_t *stream = new_stream();
    size_t wrong = 0;
    for (size_t i = 0; i < MOST; i++)
        src[i] = (unsigned char)tap_random(5, i);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int sms = 1; sms <= 1000; sms += 333) {
            const size_t rows = cases[i][0], bytes = cases[i][1], at = cases[i][2];
            const size_t stride = bytes + cases[i][3];
            const lap_copy_t copy = {dst + at, src + at, rows, bytes, stride, stride, sms, false};
            memset(dst, 0, MOST);
            ops->copy(stream, &copy);
            wrong += ops->stream_synchronize(stream) != LAP_OK;
            for (size_t j = 0; j < MOST; j++) {
                const bool in = j >= at && (j - at) / stride < rows && (j - at) % stride < bytes;
                wrong += tap_wrong(dst[j] != (in ? src[j] : 0),
                                   "%zu rows of %zu bytes by %d multiprocessors: byte %zu is %d, "
                                   "expected %d",
                                   rows, bytes, sms, j, dst[j], in ? src[j] : 0);
            }
        }
    tap_ok(wrong == 0, "%s: copies by multiprocessors: %zu bytes wrong", ops->name, wrong);
    free_shared(device, src);
    free_shared(device, dst);
    ops->stream_destroy(stream);
}

static void test_memory(void)
{
    void *memory = NULL;
    tap_success(ops->alloc(device, 0, &memory), "%s: no bytes", ops->name);
    ops->free(device, memory);
    tap_success(ops->alloc(device, 1000, &memory), "%s: a thousand bytes", ops->name);
    ops->free(device, memory);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tap_skip("%s: too much memory: sanitizers end the process", ops->name);
#else
    void *none = memory;
    tap_failure(ops->alloc(device, SIZE_MAX / 2, &none), LAP_ERR_NO_MEMORY, ops->name, "bytes",
                NULL);
    tap_ok(none == memory, "%s: which leaves the output alone", ops->name);
#endif
}

int main(void)
{
    const lap_device_ops_t *found = NULL;
    tap_failure(lap_device_find("abacus", &found), LAP_ERR_INVALID, "abacus", "ref", "cpu", NULL);
    tap_failure(lap_device_find(NULL, &found), LAP_ERR_INVALID, "NULL", NULL);
    for (size_t i = 0; lap_device_at(i); i++) {
        tap_success(lap_device_find(lap_device_at(i)->name, &ops), "device %s is found",
                    lap_device_at(i)->name);
        if (ops->probe() != LAP_OK) {
            tap_failure(ops->open(&(lap_device_options_t){.threads = 1}, &device),
                        LAP_ERR_UNSUPPORTED, lap_last_error(), NULL);
            continue;
        }
        tap_success(ops->open(&(lap_device_options_t){.threads = 1}, &device), "%s opens",
                    ops->name);
        test_order_and_growth();
        test_sizes();
        test_arguments();
        test_event_order();
        test_events_again();
        if (ops->facts.gemm_signals) /* elsewhere a function that fails does not stop its stream */
            test_failures();
        test_stamps();
        if (ops->facts.graphs)
            test_stamps_of_graphs();
        test_copy();
        test_copy_by_sms();
        test_memory();
        ops->close(device);
    }
    return tap_done();
}
