/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guarded kernels. One at a time runs in the process: whoever guards it has the lock from the moment at which the memory of
 * devices is closed until it is open again.
 */
#include "device/host/host_guard.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/status.h"
#include "util/alloc.h"

#define ROUNDS 2 /* copies whose ends are at a boundary, and copies whose beginnings are */
#define MARGIN ((size_t)1 << 16) /* bytes out of reach on each side of a copy */
#define COVERED 4096u            /* most allocations of the devices of a process */
#define SENTENCE 256
#define NAME 64

/*
 * What a copy holds in rows that are only written, and around all rows: not the same in both rounds, and not the same as
 * one another, so that bytes which a kernel copies from where it may not read are known.
 */
static const unsigned char fillings[ROUNDS] = {0xff, 0x7b}, around[ROUNDS] = {0xfd, 0x7c};

/* An operand, or several with the same memory, and its copies. */
typedef struct box {
    lap_touch_t touch;
    size_t same;         /* the box that has its copies; its own number: it does */
    size_t extent, span; /* bytes from the first to the last of its rows; whole pages */
    char *map[ROUNDS], *data[ROUNDS];
} box_t;

typedef struct guarded {
    char name[NAME];
    char sentence[SENTENCE]; /* of the first touch that was wrong; "": none was */
    bool closed;             /* in this round */
    size_t count;
    box_t *boxes;
    void **data[ROUNDS];
    void *room[ROUNDS];
} guarded_t;

typedef struct covered {
    char *begin;
    size_t bytes;
} covered_t;

static struct {
    pthread_mutex_t lock;
    atomic_bool on;
    atomic_bool closed; /* memory is out of reach, but for `thread`, for which that is a failure */
    atomic_uint_fast64_t runs;
    size_t page;
    struct sigaction before;
    covered_t covered[COVERED];
    size_t ncovered;
    guarded_t *running;
    pthread_t thread;
    int round;
} guard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local bool issuing;

bool lap_host_guard_is_issuing(void)
{
    return issuing;
}

bool lap_host_guard_is_on(void)
{
    return atomic_load_explicit(&guard.on, memory_order_relaxed);
}

uint64_t lap_host_guard_count(void)
{
    return atomic_load_explicit(&guard.runs, memory_order_relaxed);
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + guard.page - 1) / guard.page * guard.page;
}

/* ---- touches that are wrong ---- */

static void open_page(const char *at)
{
    char *page = (char *)((uintptr_t)at / guard.page * guard.page);
    (void)mprotect(page, guard.page, PROT_READ | PROT_WRITE);
}

static bool holds(const char *begin, size_t bytes, const char *at)
{
    return at >= begin && at < begin + bytes;
}

static void say_beside(guarded_t *guarded, const box_t *box, const char *data, const char *at)
{
    const unsigned operand = box->touch.operand;
    if (at < data)
        snprintf(guarded->sentence, SENTENCE, "kernel %s touches %zu bytes before its operand %u",
                 guarded->name, (size_t)(data - at), operand);
    else if (at >= data + box->extent)
        snprintf(guarded->sentence, SENTENCE,
                 "kernel %s touches byte %zu of its operand %u, which has %zu bytes", guarded->name,
                 (size_t)(at - data), operand, box->extent);
    else
        snprintf(guarded->sentence, SENTENCE,
                 "kernel %s writes byte %zu of its operand %u, which it only reads", guarded->name,
                 (size_t)(at - data), operand);
}

static const covered_t *find_covered(const char *at)
{
    for (size_t i = 0; i < guard.ncovered; i++)
        if (holds(guard.covered[i].begin, guard.covered[i].bytes, at))
            return &guard.covered[i];
    return NULL;
}

static const box_t *find_box(const guarded_t *guarded, int round, const char *at)
{
    for (size_t i = 0; i < guarded->count; i++) {
        const box_t *box = &guarded->boxes[i];
        if (box->map[round] && holds(box->map[round], box->span + 2 * MARGIN, at))
            return box;
    }
    return NULL;
}

/*
 * A touch of the kernel that is guarded: noted, unless one was before, and let through, so that the kernel comes to its
 * end. False: it is no business of the guard.
 */
static bool note_touch(const char *at)
{
    guarded_t *guarded = guard.running;
    const box_t *box = find_box(guarded, guard.round, at);
    const covered_t *covered = find_covered(at);
    if (!box && !covered)
        return false;
    if (!*guarded->sentence && box)
        say_beside(guarded, box, box->data[guard.round], at);
    else if (!*guarded->sentence)
        snprintf(guarded->sentence, SENTENCE,
                 "kernel %s touches byte %zu of %zu bytes of memory that is none of its operands",
                 guarded->name, (size_t)(at - covered->begin), covered->bytes);
    open_page(at);
    return true;
}

/* The instruction that faulted runs again when this returns. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    (void)signal;
    (void)context;
    if (atomic_load(&guard.closed) && pthread_equal(guard.thread, pthread_self())) {
        if (note_touch(at))
            return;
    } else if (find_covered(at)) {
        while (atomic_load(&guard.closed))
            sched_yield();
        return;
    }
    sigaction(SIGSEGV, &guard.before, NULL);
}

lap_status_t lap_host_guard_start(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (lap_host_guard_is_on())
        return LAP_OK;
    guard.page = (size_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGSEGV, &action, &guard.before) != 0)
        return lap_error_errno("cannot catch touches of guarded memory");
    atomic_store(&guard.on, true);
    return LAP_OK;
}

/* ---- memory of devices ---- */

lap_status_t lap_host_guard_cover(void *memory, size_t bytes)
{
    lap_status_t status = LAP_OK;
    pthread_mutex_lock(&guard.lock);
    if (guard.ncovered < COVERED)
        guard.covered[guard.ncovered++] = (covered_t){memory, whole_pages(bytes)};
    else
        status =
            lap_error(LAP_ERR_NO_MEMORY, "no more than %u allocations can be guarded", COVERED);
    pthread_mutex_unlock(&guard.lock);
    return status;
}

/* Returns its bytes. */
static size_t uncover(void *memory)
{
    size_t bytes = 0;
    pthread_mutex_lock(&guard.lock);
    for (size_t i = 0; i < guard.ncovered && bytes == 0; i++)
        if (guard.covered[i].begin == memory) {
            bytes = guard.covered[i].bytes;
            guard.covered[i] = guard.covered[--guard.ncovered];
        }
    pthread_mutex_unlock(&guard.lock);
    return bytes;
}

void lap_host_guard_uncover(void *memory)
{
    (void)uncover(memory);
}

lap_status_t lap_host_guard_alloc(lap_device_t *device, size_t bytes, void **memory_p)
{
    const size_t whole = whole_pages(bytes ? bytes : 1);
    void *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu bytes on device %s", bytes,
                         device->ops->name);
    const lap_status_t status = lap_host_guard_cover(memory, whole);
    if (status == LAP_OK)
        *memory_p = memory;
    else
        (void)munmap(memory, whole);
    return status;
}

void lap_host_guard_free(lap_device_t *device, void *memory)
{
    (void)device;
    if (memory)
        (void)munmap(memory, uncover(memory));
}

static void protect_covered(int rights)
{
    for (size_t i = 0; i < guard.ncovered; i++)
        if (guard.covered[i].bytes > 0)
            (void)mprotect(guard.covered[i].begin, guard.covered[i].bytes, rights);
}

/* ---- copies ---- */

static size_t extent_of(const lap_touch_t *touch)
{
    return touch->data && touch->rows > 0 && touch->row_bytes > 0
               ? (touch->rows - 1) * touch->pitch + touch->row_bytes
               : 0;
}

/* Whether two operands have their rows in common, so that the kernel works in place. */
static bool is_same(const lap_touch_t *a, const lap_touch_t *b)
{
    return a->data == b->data && (a->pitch == b->pitch || a->rows <= 1 || b->rows <= 1);
}

static void merge(box_t *box, const lap_touch_t *touch)
{
    lap_touch_t *all = &box->touch;
    if (touch->rows > all->rows)
        all->pitch = touch->pitch;
    all->rows = touch->rows > all->rows ? touch->rows : all->rows;
    all->row_bytes = touch->row_bytes > all->row_bytes ? touch->row_bytes : all->row_bytes;
    all->reads = all->reads || touch->reads;
    all->writes = all->writes || touch->writes;
}

static void fill_boxes(guarded_t *guarded, const lap_host_guard_call_t *call)
{
    for (size_t i = 0; i < call->count; i++) {
        box_t *box = &guarded->boxes[i];
        *box = (box_t){.touch = call->touches[i], .same = i};
        for (size_t j = 0; j < i && box->same == i && extent_of(&box->touch) > 0; j++)
            if (guarded->boxes[j].same == j && is_same(&guarded->boxes[j].touch, &box->touch))
                box->same = j;
        if (box->same < i)
            merge(&guarded->boxes[box->same], &box->touch);
    }
}

static lap_status_t map_box(box_t *box)
{
    box->extent = extent_of(&box->touch);
    box->span = whole_pages(box->extent);
    for (int round = 0; round < ROUNDS; round++) {
        char *map =
            mmap(NULL, box->span + 2 * MARGIN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for a guarded copy of %zu bytes",
                             box->extent);
        box->map[round] = map;
        box->data[round] = map + MARGIN + (round == 0 ? box->span - box->extent : 0);
    }
    return LAP_OK;
}

static lap_status_t map_all(guarded_t *guarded)
{
    for (size_t i = 0; i < guarded->count; i++)
        if (guarded->boxes[i].touch.data && guarded->boxes[i].same == i)
            LAP_TRY(map_box(&guarded->boxes[i]));
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < guarded->count; i++)
            guarded->data[round][i] = guarded->boxes[guarded->boxes[i].same].data[round];
    return LAP_OK;
}

static void destroy(guarded_t *guarded)
{
    for (size_t i = 0; guarded->boxes && i < guarded->count; i++)
        for (int round = 0; round < ROUNDS; round++)
            if (guarded->boxes[i].map[round])
                (void)munmap(guarded->boxes[i].map[round], guarded->boxes[i].span + 2 * MARGIN);
    for (int round = 0; round < ROUNDS; round++) {
        lap_free(guarded->data[round]);
        lap_free(guarded->room[round]);
    }
    lap_free(guarded->boxes);
    lap_free(guarded);
}

static lap_status_t create(const lap_host_guard_call_t *call, guarded_t **guarded_p)
{
    guarded_t *guarded = lap_alloc(1, sizeof(*guarded));
    if (!guarded)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to guard kernel %s", call->name);
    guarded->count = call->count;
    snprintf(guarded->name, sizeof(guarded->name), "%s", call->name);
    guarded->boxes = lap_alloc(call->count + 1, sizeof(*guarded->boxes));
    bool there = guarded->boxes;
    for (int round = 0; round < ROUNDS; round++) {
        guarded->data[round] = lap_alloc(call->count + 1, sizeof(void *));
        guarded->room[round] = lap_alloc(1, call->room + 1);
        there = there && guarded->data[round] && guarded->room[round];
    }
    lap_status_t status =
        there ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory to guard kernel %s", call->name);
    if (status == LAP_OK) {
        fill_boxes(guarded, call);
        status = map_all(guarded);
    }
    if (status == LAP_OK)
        *guarded_p = guarded;
    else
        destroy(guarded);
    return status;
}

static lap_status_t open_box(const box_t *box, int round)
{
    char *begin = box->map[round] + MARGIN;
    const lap_touch_t *touch = &box->touch;
    if (box->span == 0)
        return LAP_OK;
    if (mprotect(begin, box->span, PROT_READ | PROT_WRITE) != 0)
        return lap_error_errno("cannot open a guarded copy");
    memset(begin, around[round], box->span);
    for (size_t row = 0; row < touch->rows; row++) {
        char *copy = box->data[round] + row * touch->pitch;
        if (touch->reads)
            memcpy(copy, (char *)touch->data + row * touch->pitch, touch->row_bytes);
        else
            memset(copy, fillings[round], touch->row_bytes);
    }
    if (!touch->writes && mprotect(begin, box->span, PROT_READ) != 0)
        return lap_error_errno("cannot close a guarded copy");
    return LAP_OK;
}

/* ---- results ---- */

/* Whether a byte of a copy is in one of its rows; `at`: from the first row on. */
static bool is_in_rows(const lap_touch_t *touch, size_t at)
{
    return touch->rows == 1 ? at < touch->row_bytes : at % touch->pitch < touch->row_bytes;
}

/* What lies around rows is as it was. */
static void look_around(guarded_t *guarded, const box_t *box, int round)
{
    const char *begin = box->map[round] + MARGIN, *data = box->data[round];
    const size_t first = (size_t)(data - begin);
    for (size_t i = 0; i < box->span && !*guarded->sentence; i++) {
        const bool inside = i >= first && i - first < box->extent;
        if ((unsigned char)begin[i] == around[round] ||
            (inside && is_in_rows(&box->touch, i - first)))
            continue;
        if (inside)
            snprintf(guarded->sentence, SENTENCE,
                     "kernel %s writes byte %zu of its operand %u, between two of its rows",
                     guarded->name, i - first, box->touch.operand);
        else
            say_beside(guarded, box, data, begin + i);
    }
}

/* Bytes that are filled as before in both rounds have not been written; others are the same in both. */
static void compare_row(guarded_t *guarded, const box_t *box, size_t at)
{
    const unsigned char *first = (const unsigned char *)box->data[0] + at;
    const unsigned char *second = (const unsigned char *)box->data[1] + at;
    for (size_t i = 0; i < box->touch.row_bytes; i++)
        if (first[i] != second[i] && (first[i] != fillings[0] || second[i] != fillings[1]) &&
            !*guarded->sentence)
            snprintf(guarded->sentence, SENTENCE,
                     "kernel %s writes byte %zu of its operand %u by what it does not declare to "
                     "read",
                     guarded->name, at + i, box->touch.operand);
}

static void take_row(guarded_t *guarded, const box_t *box, size_t at)
{
    const char *first = box->data[0] + at, *second = box->data[1] + at;
    char *to = (char *)box->touch.data + at;
    (void)guarded;
    for (size_t i = 0; i < box->touch.row_bytes; i++)
        if (first[i] == second[i])
            to[i] = first[i];
}

static void each_result(guarded_t *guarded, void (*look)(guarded_t *, const box_t *, size_t))
{
    for (size_t b = 0; b < guarded->count; b++) {
        const box_t *box = &guarded->boxes[b];
        for (size_t row = 0; box->touch.writes && box->extent > 0 && row < box->touch.rows; row++)
            look(guarded, box, row * box->touch.pitch);
    }
}

/* ---- a round ---- */

static lap_status_t enter(guarded_t *guarded, int round)
{
    lap_status_t status = LAP_OK;
    pthread_mutex_lock(&guard.lock);
    for (size_t i = 0; i < guarded->count && status == LAP_OK; i++)
        if (guarded->boxes[i].map[round])
            status = open_box(&guarded->boxes[i], round);
    if (status != LAP_OK) {
        pthread_mutex_unlock(&guard.lock);
        return status;
    }
    guard.running = guarded;
    guard.round = round;
    guard.thread = pthread_self();
    guarded->closed = true;
    atomic_store(&guard.closed, true);
    protect_covered(PROT_NONE);
    return LAP_OK;
}

/* Also where the kernel has failed, or has not run. */
static lap_status_t leave(guarded_t *guarded, int round)
{
    if (!guarded->closed)
        return LAP_OK;
    guarded->closed = false;
    protect_covered(PROT_READ | PROT_WRITE);
    atomic_store(&guard.closed, false);
    for (size_t i = 0; i < guarded->count; i++)
        if (guarded->boxes[i].map[round] && guarded->boxes[i].touch.writes)
            look_around(guarded, &guarded->boxes[i], round);
    if (round == ROUNDS - 1 && !*guarded->sentence)
        each_result(guarded, compare_row);
    if (round == ROUNDS - 1 && !*guarded->sentence)
        each_result(guarded, take_row);
    pthread_mutex_unlock(&guard.lock);
    if (*guarded->sentence)
        return lap_error(LAP_ERR_CHECK, "%s", guarded->sentence);
    atomic_fetch_add(&guard.runs, round == ROUNDS - 1);
    return LAP_OK;
}

lap_status_t lap_host_guard_run(const lap_host_guard_call_t *call)
{
    guarded_t *guarded;
    LAP_TRY(create(call, &guarded));
    lap_status_t status = LAP_OK;
    for (int round = 0; round < ROUNDS && status == LAP_OK; round++) {
        status = enter(guarded, round);
        if (status == LAP_OK)
            status = call->run(call->context, guarded->data[round], guarded->room[round]);
        const lap_status_t left = leave(guarded, round);
        status = status == LAP_OK ? left : status;
    }
    destroy(guarded);
    return status;
}

/* ---- on a stream ---- */

typedef struct round_task {
    guarded_t *guarded;
    int round;
} round_task_t;

static lap_status_t run_enter(void *arg)
{
    const round_task_t *task = arg;
    return enter(task->guarded, task->round);
}

static lap_status_t run_leave(void *arg)
{
    const round_task_t *task = arg;
    const lap_status_t status = leave(task->guarded, task->round);
    if (task->round == ROUNDS - 1)
        destroy(task->guarded);
    return status;
}

lap_status_t lap_host_guard_issue(lap_stream_t *stream, const lap_host_guard_call_t *call)
{
    guarded_t *guarded;
    LAP_TRY(create(call, &guarded));
    lap_status_t status = LAP_OK;
    for (int round = 0; round < ROUNDS; round++) {
        const round_task_t task = {guarded, round};
        if (status == LAP_OK)
            status = lap_host_stream_call(stream, run_enter, &task, sizeof(task));
        issuing = true;
        if (status == LAP_OK)
            status = call->run(call->context, guarded->data[round], guarded->room[round]);
        issuing = false;
        const lap_status_t left = lap_host_stream_always(stream, run_leave, &task, sizeof(task));
        status = status == LAP_OK ? left : status;
    }
    return status;
}
