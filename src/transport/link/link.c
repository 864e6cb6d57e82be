/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An emulated link: data goes to the peer at once, but its signal comes only when a link of the
 * given bandwidth and latency would have delivered the data. Each rank sends one transfer at a
 * time; signals without data overtake them. A thread per buffer and rank, the pacer, raises what is
 * due later. What a rank sends to itself needs no link.
 */
#include "transport/link/link.h"

#include <errno.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>

#include "core/status.h"
#include "transport/host/host.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define FIRST_ROOM 64u /* a power of two, as all sizes of the queue */
#define NS_PER_S 1000000000u
#define LONGEST_NS 1e18 /* thirty years: keeps sums of times from wrapping */

/* A signal on its way. */
typedef struct delivery {
    uint64_t due;
    uint64_t tag;
    int peer;
    uint32_t signal;
} delivery_t;

struct lap_pacer {
    lap_transport_ops_t ops;          /* the buffer's table while the link is around it */
    const lap_transport_ops_t *inner; /* the table below */
    lap_buffer_t *buffer;
    pthread_t thread;
    pthread_mutex_t lock; /* of all below; held while a signal is raised, so that none overtakes */
    pthread_cond_t changed;
    bool stop;
    uint64_t link_free; /* when the last transfer so far leaves the link */
    uint64_t *word_due; /* [peer][signal]: when the last signal to that word is due */
    delivery_t *queue;  /* a ring in the order of `due`; equal ones in the order of sending */
    size_t room, count;
    uint64_t first; /* its number; delivery i lies in queue[i % room] */
};

static delivery_t *queue_at(struct lap_pacer *pacer, size_t index)
{
    return &pacer->queue[(pacer->first + index) % pacer->room];
}

static lap_status_t queue_grow(struct lap_pacer *pacer)
{
    delivery_t *queue = lap_ring_grow(pacer->queue, pacer->first, pacer->first + pacer->count,
                                      &pacer->room, sizeof(*queue));
    if (!queue)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu signals on a link", 2 * pacer->room);
    pacer->queue = queue;
    return LAP_OK;
}

/* Most signals go to the end, so that this looks at one or two others only. */
static lap_status_t queue_insert(struct lap_pacer *pacer, const delivery_t *delivery)
{
    if (pacer->count == pacer->room)
        LAP_TRY(queue_grow(pacer));
    size_t i = pacer->count++;
    for (; i > 0 && queue_at(pacer, i - 1)->due > delivery->due; i--)
        *queue_at(pacer, i) = *queue_at(pacer, i - 1);
    *queue_at(pacer, i) = *delivery;
    if (i == 0)
        pthread_cond_signal(&pacer->changed);
    return LAP_OK;
}

static lap_status_t deliver(struct lap_pacer *pacer, const delivery_t *delivery)
{
    const lap_raise_t raise = {
        .peer = delivery->peer, .signal = delivery->signal, .tag = delivery->tag};
    return pacer->inner->raise_now(pacer->buffer, &raise);
}

static void deliver_first(struct lap_pacer *pacer)
{
    if (deliver(pacer, queue_at(pacer, 0)) != LAP_OK)
        lap_warn("a delayed signal to rank %d failed: %s", queue_at(pacer, 0)->peer,
                 lap_last_error());
    pacer->first++;
    pacer->count--;
}

/*
 * At the end, what is still on its way comes at once: a peer may wait for it, and nobody shall wait
 * for the link.
 */
static void *pacer_main(void *context)
{
    struct lap_pacer *pacer = context;
    lap_thread_be_urgent();
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); /* the default is to be up to 50 us late */
    pthread_mutex_lock(&pacer->lock);
    while (pacer->count > 0 || !pacer->stop) {
        if (pacer->count == 0) {
            pthread_cond_wait(&pacer->changed, &pacer->lock);
        } else if (pacer->stop || queue_at(pacer, 0)->due <= lap_now_ns()) {
            deliver_first(pacer);
        } else {
            const uint64_t due = queue_at(pacer, 0)->due;
            const struct timespec when = {(time_t)(due / NS_PER_S), (long)(due % NS_PER_S)};
            pthread_cond_timedwait(&pacer->changed, &pacer->lock, &when);
        }
    }
    pthread_mutex_unlock(&pacer->lock);
    return NULL;
}

static uint64_t to_ns(double seconds)
{
    const double ns = seconds * 1e9;
    return (uint64_t)(ns < LONGEST_NS ? ns : LONGEST_NS);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/*
 * Books a transfer of `bytes` bytes issued at `now` and sees to it that its signal is raised when
 * it is over.
 */
static lap_status_t book(struct lap_pacer *pacer, const lap_raise_t *raise, uint64_t now)
{
    const size_t bytes = raise->bytes;
    const lap_buffer_t *buffer = pacer->buffer;
    const lap_link_t *link = &buffer->link;
    uint64_t *word_due = &pacer->word_due[(size_t)raise->peer * buffer->nsignals + raise->signal];
    pthread_mutex_lock(&pacer->lock);
    uint64_t begin = now, end = now;
    if (bytes > 0) {
        begin = later(now, pacer->link_free);
        end = begin;
        if (link->bytes_per_s > 0)
            end += to_ns((double)bytes / link->bytes_per_s);
        pacer->link_free = end;
    }
    const delivery_t delivery = {later(end + to_ns(link->latency_s), *word_due), raise->tag,
                                 raise->peer, raise->signal};
    *word_due = delivery.due;
    if (raise->span)
        *raise->span = (lap_span_t){now, begin, delivery.due};
    /* The pacer may be late with others that are due; those come first. */
    const uint64_t present = lap_now_ns();
    const bool none_due = pacer->count == 0 || queue_at(pacer, 0)->due > present;
    lap_status_t status = delivery.due <= present && none_due ? deliver(pacer, &delivery)
                                                              : queue_insert(pacer, &delivery);
    pthread_mutex_unlock(&pacer->lock);
    return status;
}

static lap_status_t lap_link_put_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    /*
     * What has no signal of its own is a few bytes, and comes with the signal that speaks for it.
     */
    if (put->peer == buffer->group->rank || put->signal == LAP_NO_SIGNAL)
        return buffer->pacer->inner->put_now(buffer, put);
    const uint64_t now = lap_now_ns();
    lap_put_t data = *put;
    data.signal = LAP_NO_SIGNAL;
    data.span = NULL;
    LAP_TRY(buffer->pacer->inner->put_now(buffer, &data));
    const lap_raise_t raise = lap_put_raise(put, put->rows * put->row_bytes);
    return book(buffer->pacer, &raise, now);
}

static lap_status_t lap_link_raise_now(lap_buffer_t *buffer, const lap_raise_t *raise)
{
    if (raise->peer == buffer->group->rank)
        return buffer->pacer->inner->raise_now(buffer, raise);
    return book(buffer->pacer, raise, lap_now_ns());
}

static void pacer_free(struct lap_pacer *pacer)
{
    pthread_cond_destroy(&pacer->changed);
    pthread_mutex_destroy(&pacer->lock);
    lap_free(pacer->queue);
    lap_free(pacer->word_due);
    lap_free(pacer);
}

static void lap_link_buffer_destroy(lap_buffer_t *buffer)
{
    struct lap_pacer *pacer = buffer->pacer;
    pthread_mutex_lock(&pacer->lock);
    pacer->stop = true;
    pthread_cond_signal(&pacer->changed);
    pthread_mutex_unlock(&pacer->lock);
    pthread_join(pacer->thread, NULL);
    buffer->ops = pacer->inner;
    buffer->pacer = NULL;
    pacer_free(pacer);
    buffer->ops->buffer_destroy(buffer);
}

static void pacer_init(struct lap_pacer *pacer, lap_buffer_t *buffer)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the clock of lap_now_ns */
    pthread_cond_init(&pacer->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&pacer->lock, NULL);
    pacer->buffer = buffer;
    pacer->inner = buffer->ops;
    pacer->ops = *buffer->ops;
    pacer->ops.buffer_destroy = lap_link_buffer_destroy;
    pacer->ops.put_now = lap_link_put_now;
    pacer->ops.raise_now = lap_link_raise_now;
    pacer->ops.put = lap_host_put;
    pacer->ops.raise = lap_host_raise;
    pacer->room = FIRST_ROOM;
    pacer->queue = lap_alloc(pacer->room, sizeof(*pacer->queue));
    pacer->word_due =
        lap_alloc((size_t)buffer->group->size * buffer->nsignals, sizeof(*pacer->word_due));
}

lap_status_t lap_link_begin(lap_buffer_t *buffer)
{
    struct lap_pacer *pacer = lap_alloc(1, sizeof(*pacer));
    if (!pacer)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for an emulated link");
    pacer_init(pacer, buffer);
    if (!pacer->queue || !pacer->word_due) {
        pacer_free(pacer);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for an emulated link of %d ranks, %zu words",
                         buffer->group->size, buffer->nsignals);
    }
    int error = lap_thread_start(&pacer->thread, "lap-link", pacer_main, pacer);
    if (error != 0) {
        pacer_free(pacer);
        errno = error;
        return lap_error_errno("cannot start the thread of an emulated link");
    }
    buffer->pacer = pacer;
    buffer->ops = &pacer->ops;
    return LAP_OK;
}
