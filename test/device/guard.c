/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guard mode (host_guard.h): kernels that touch what they have not declared are found, each with a sentence, and those that
 * keep to their operands make the results that they make without a guard.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/status.h"
#include "device/host/host_guard.h"
#include "tap.h"

enum { ROWS = 3, COLS = 5, PITCH = 7 };

static lap_device_t *device;
static lap_stream_t *stream;
static float *other; /* memory of the device that is nobody's operand */

/* y = 2 x, row by row; both are in one allocation of the device each. */
typedef struct twice {
    const float *x;
    float *y;
} twice_t;

static void run_twice(const twice_t *twice)
{
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < COLS; j++)
            twice->y[i * PITCH + j] = 2 * twice->x[i * PITCH + j];
}

/* ---- mistakes: each is made beside the right result ---- */

static volatile float kept;

static void right(const twice_t *twice)
{
    (void)twice;
}

static void read_behind(const twice_t *twice)
{
    kept = twice->x[(ROWS - 1) * PITCH + COLS];
}

static void read_before(const twice_t *twice)
{
    kept = twice->x[-1];
}

static void write_behind(const twice_t *twice)
{
    twice->y[(ROWS - 1) * PITCH + COLS] = 1;
}

static void write_before(const twice_t *twice)
{
    twice->y[-2] = 1;
}

static void write_between(const twice_t *twice)
{
    twice->y[COLS] = 1;
}

static void write_input(const twice_t *twice)
{
    ((float *)(uintptr_t)twice->x)[1] = 1;
}

static void read_between(const twice_t *twice)
{
    twice->y[0] = twice->x[COLS];
}

static void read_result(const twice_t *twice)
{
    twice->y[0] += kept;
    twice->y[1] = twice->y[PITCH + COLS]; /* between rows of what it only writes */
}

static void read_other(const twice_t *twice)
{
    (void)twice;
    kept = other[3];
}

static void write_other(const twice_t *twice)
{
    (void)twice;
    other[0] = 1;
}

static const struct {
    const char *what;
    void (*mistake)(const twice_t *twice);
    const char *sentence; /* a part of it; NULL: it is none */
} cases[] = {
    {"a kernel that keeps to its operands", right, NULL},
    {"one element read behind the last", read_behind, "touches byte 76 of its operand 4"},
    {"one element read before the first", read_before, "touches 4 bytes before its operand 4"},
    {"one element written behind the last", write_behind, "touches byte 76 of its operand 9"},
    {"one element written before the first", write_before, "touches 8 bytes before its operand 9"},
    {"one element written between rows", write_between, "byte 20 of its operand 9, between"},
    {"a write into what is only read", write_input,
     "writes byte 4 of its operand 4, which it only"},
    {"a result made of what lies between rows", read_between, "writes byte 0 of its operand 9 by"},
    {"a result made of what it only writes", read_result, "writes byte 4 of its operand 9 by"},
    {"a read of other memory", read_other, "touches byte 12 of 4096 bytes of memory that is none"},
    {"a write to other memory", write_other, "touches byte 0 of 4096 bytes of memory that is none"},
};

/* ---- running them ---- */

typedef struct task {
    twice_t twice;
    void (*mistake)(const twice_t *twice);
} task_t;

static lap_status_t run_task(void *arg)
{
    const task_t *task = arg;
    run_twice(&task->twice);
    task->mistake(&task->twice);
    return LAP_OK;
}

static lap_status_t issue(void *context, void *const *data, void *room)
{
    task_t task = {{data[0], data[1]}, *(void (**)(const twice_t *))context};
    (void)room;
    return lap_host_stream_call(stream, run_task, &task, sizeof(task));
}

static lap_status_t guard(float *x, float *y, void (*mistake)(const twice_t *))
{
    const size_t row = COLS * sizeof(float), pitch = PITCH * sizeof(float);
    const lap_touch_t touches[] = {{x, ROWS, row, pitch, 4, true, false},
                                   {y, ROWS, row, pitch, 9, false, true}};
    const lap_host_guard_call_t call = {
        .name = "twice", .touches = touches, .count = 2, .run = issue, .context = &mistake};
    LAP_TRY(lap_host_guard_issue(stream, &call));
    return device->ops->stream_synchronize(stream);
}

static float *new_floats(size_t count)
{
    void *memory;
    if (!tap_success(device->ops->alloc(device, count * sizeof(float), &memory), "memory"))
        _exit(1);
    return memory;
}

static void test_kernels(void)
{
    float *x = new_floats(ROWS * PITCH), *y = new_floats(ROWS * PITCH);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (size_t i = 0; i < ROWS * PITCH; i++) {
            x[i] = (float)i;
            y[i] = -1;
        }
        const lap_status_t status = guard(x, y, cases[c].mistake);
        if (cases[c].sentence)
            tap_failure(status, LAP_ERR_CHECK, "twice", cases[c].sentence, NULL);
        else
            tap_success(status, "%s", cases[c].what);
        size_t wrong = 0;
        for (size_t i = 0; i < ROWS * PITCH; i++)
            wrong += y[i] != (i % PITCH < COLS && !cases[c].sentence ? 2 * (float)i : -1);
        tap_ok(wrong == 0, "%s: the result is %s", cases[c].what,
               cases[c].sentence ? "not taken" : "there");
        tap_ok(other[0] == 0 || cases[c].mistake == write_other,
               "... and nothing else has changed");
        other[0] = 0;
    }
    /* In place. */
    tap_success(guard(x, x, right), "an operand that is read and written");
    tap_ok(x[1] == 2 && x[COLS] == COLS, "... is there");
    device->ops->free(device, x);
    device->ops->free(device, y);
}

/* ---- what the device computes by itself ---- */

static void test_slots(void)
{
    float *a = new_floats(4 * 6), *b = new_floats(5 * 6), *d = new_floats(4 * 5);
    for (size_t i = 0; i < 30; i++) {
        if (i < 24)
            a[i] = (float)(i % 5);
        b[i] = (float)(i % 3) - 1;
    }
    lap_gemm_block_t block = {.a = a, .d = d, .rows = 4, .a_stride = 24, .d_stride = 20};
    const lap_gemm_t gemm = {.a_dtype = LAP_FLOAT32,
                             .b_dtype = LAP_FLOAT32,
                             .d_dtype = LAP_FLOAT32,
                             .scale = 1,
                             .n = 5,
                             .k = 6,
                             .b = b,
                             .b_stride = 24,
                             .blocks = &block,
                             .nblocks = 1};
    const void *srcs[] = {d, d};
    const size_t strides[] = {20, 20};
    const lap_reduce_t reduce = {.from = LAP_FLOAT32,
                                 .to = LAP_FLOAT32,
                                 .dst = d,
                                 .dst_stride = 20,
                                 .srcs = srcs,
                                 .src_strides = strides,
                                 .nsrc = 2,
                                 .rows = 4,
                                 .cols = 5};
    const uint64_t before = lap_host_guard_count();
    tap_success(device->ops->gemm(stream, &gemm), "a GEMM");
    tap_success(device->ops->reduce(stream, &reduce), "a sum in place");
    tap_success(device->ops->stream_synchronize(stream), "both run");
    tap_ok(lap_host_guard_count() == before + 2, "... under guard");
    double wrong = 0;
    for (size_t i = 0; i < 20; i++) {
        float sum = 0;
        for (size_t k = 0; k < 6; k++)
            sum += a[i / 5 * 6 + k] * b[i % 5 * 6 + k];
        wrong += d[i] != 2 * sum;
    }
    tap_ok(wrong == 0, "... and right");
    device->ops->free(device, a);
    device->ops->free(device, b);
    device->ops->free(device, d);
}

int main(void)
{
    const lap_device_ops_t *ops;
    tap_success(lap_host_guard_start(), "guard mode begins");
    if (!tap_success(lap_device_find("ref", &ops), "ref is there") ||
        !tap_success(ops->open(&(lap_device_options_t){.threads = 1}, &device), "it opens") ||
        !tap_success(device->ops->stream_create(device, false, &stream), "a stream"))
        return tap_done();
    tap_ok(device->ops->guards && strcmp(device->ops->name, "ref") == 0, "it guards");
    other = new_floats(1024);
    test_kernels();
    test_slots();
    device->ops->free(device, other);
    device->ops->stream_destroy(stream);
    device->ops->close(device);
    return tap_done();
}
