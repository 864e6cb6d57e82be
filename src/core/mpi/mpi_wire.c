/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets over MPI. One thread per world makes all of its MPI calls: it sends what other threads
 * have put into the queue, takes what has come, and rests in between, because MPI has no wait that
 * does not spin. A packet is one message.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "core/mpi/mpi.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define TAG 1
#define RECEIVES 16  /* messages that MPI has a place for before they come */
#define FINALISE_S 5 /* how long MPI may take to end when all ranks are there */

/* Rests between two looks at MPI: while somebody waits for a packet, and while nobody does. */
#define REST_LEAST_NS 20000u
#define REST_WAITED_NS 100000u
#define REST_UNWAITED_NS 800000u /* a look costs some microseconds of a core that multiplies */
#define REST_MOST_NS 1000000u

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a packet has room for a request");

/* A place for a message that is to come. */
typedef struct in {
    bool posted;
    MPI_Request request;
    lap_packet_t *packet; /* with room for LAP_WIRE_BODY after it */
} in_t;

typedef struct mpi_wire {
    lap_wire_base_t base; /* the word of its own counts packets to send and nudges */
    MPI_Comm comm;
    bool owns_mpi;
    pthread_t thread;
    _Atomic uint64_t stop_ns;   /* 0: not yet; else how long the thread still has for the rest */
    _Atomic uint64_t nudged_at; /* when a caller last announced a wait */
    bool awaits_byes;           /* set before stop_ns: the end waits for those of all */
    bool drained;               /* of the thread, at its end: nothing was left */
    lap_out_t *first, **last;   /* the queue, with the lock of the base */

    /* Used only by the thread. */
    lap_out_t *sending, **sending_last;
    in_t ins[RECEIVES]; /* a ring: MPI fills them in the order in which they were posted */
    unsigned in_first;
    uint64_t round;     /* of finish_sends, */
    uint64_t *held_in;  /* and that in which a packet to a rank was found not to have got away */
    uint32_t handled;   /* LAP_WIRE_WORD when the queue was last emptied */
    uint64_t last_busy; /* when something was last done */
    bool spins;         /* there are cores to spare for a moment's polling */
    _Atomic int byes;   /* ranks that have ended, */
    _Atomic int unwell; /* and how many of them will not finalise MPI */
} mpi_wire_t;

lap_status_t lap_mpi_status(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return LAP_OK;
    lap_mpi.MPI_Error_string(code, text, &length);
    return lap_error(LAP_ERR_SYSTEM, "%s: MPI says: %s", what, text);
}

static mpi_wire_t *self_of(lap_wire_t *wire)
{
    return (mpi_wire_t *)(void *)wire;
}

static MPI_Request *request_of(lap_out_t *out)
{
    return (MPI_Request *)(void *)&out->request;
}

/* ---- what other threads call ---- */

static void lap_mpi_send(lap_wire_t *wire, lap_packet_t *packet)
{
    mpi_wire_t *self = self_of(wire);
    lap_out_t *out = lap_wire_out_of(packet);
    pthread_mutex_lock(&self->base.lock);
    *self->last = out;
    self->last = &out->next;
    pthread_mutex_unlock(&self->base.lock);
    lap_bank_raise(self->base.bank, LAP_WIRE_WORD);
}

static void lap_mpi_nudge(lap_wire_t *wire)
{
    mpi_wire_t *self = self_of(wire);
    atomic_store_explicit(&self->nudged_at, lap_now_ns(), memory_order_relaxed);
    lap_bank_raise(self->base.bank, LAP_WIRE_WORD); /* ends the thread's rest */
}

/* ---- the thread ---- */

/* Hands the packets of the queue to MPI. */
static bool send_queue(mpi_wire_t *self)
{
    /* Before the queue is looked at: what comes into it from now on ends the next rest. */
    self->handled =
        atomic_load_explicit(&self->base.bank->words[LAP_WIRE_WORD].value, memory_order_acquire);
    pthread_mutex_lock(&self->base.lock);
    lap_out_t *out = self->first;
    self->first = NULL;
    self->last = &self->first;
    pthread_mutex_unlock(&self->base.lock);
    const bool busy = out != NULL;
    while (out) {
        lap_out_t *next = out->next;
        out->next = NULL;
        const int bytes = (int)(sizeof(out->packet) + out->packet.bytes);
        if (lap_mpi.MPI_Isend(&out->packet, bytes, lap_mpi.byte, out->peer, TAG, self->comm,
                              request_of(out)) == MPI_SUCCESS) {
            *self->sending_last = out;
            self->sending_last = &out->next;
        } else {
            lap_wire_lose(&self->base, out->peer);
            lap_wire_put_back(&self->base, out);
        }
        out = next;
    }
    return busy;
}

/*
 * Takes back what has got away. Packets to one rank get away in their order, more or less: when one
 * has not, those after it are not looked at, because every look costs as much as all of MPI's work.
 */
static bool finish_sends(mpi_wire_t *self)
{
    bool busy = false;
    lap_out_t **at = &self->sending;
    self->round++;
    while (*at) {
        lap_out_t *out = *at;
        int done = 0;
        if (self->held_in[out->peer] == self->round) {
            at = &out->next;
            continue;
        }
        const int code = lap_mpi.MPI_Test(request_of(out), &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            lap_wire_lose(&self->base, out->peer);
        if (code == MPI_SUCCESS && !done) {
            self->held_in[out->peer] = self->round;
            at = &out->next;
            continue;
        }
        *at = out->next;
        lap_wire_put_back(&self->base, out);
        busy = true;
    }
    self->sending_last = at;
    return busy;
}

static void post(mpi_wire_t *self, in_t *in)
{
    in->posted =
        lap_mpi.MPI_Irecv(in->packet, (int)(sizeof(lap_packet_t) + LAP_WIRE_BODY), lap_mpi.byte,
                          MPI_ANY_SOURCE, TAG, self->comm, &in->request) == MPI_SUCCESS;
    for (int peer = 0; !in->posted && peer < self->base.world->size; peer++)
        lap_wire_lose(&self->base, peer); /* nothing can be received any more */
}

static void take(mpi_wire_t *self, const lap_packet_t *packet, int source, size_t bytes)
{
    if (bytes < sizeof(*packet) || bytes - sizeof(*packet) != packet->bytes) {
        lap_wire_lose(&self->base,
                      source); /* no packet of ours: what else it sends cannot be trusted */
        return;
    }
    if (packet->port == LAP_WIRE_BYE) {
        atomic_fetch_add_explicit(&self->unwell, packet->words[0] == 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&self->byes, 1, memory_order_relaxed);
        return;
    }
    lap_wire_deliver(&self->base, packet);
}

/*
 * Takes the packets that have come. Those of one rank fill the places in the order of sending, so
 * taking them in the order of the places keeps that order.
 */
static bool finish_receives(mpi_wire_t *self)
{
    for (unsigned count = 0; count < RECEIVES; count++) {
        in_t *in = &self->ins[self->in_first];
        MPI_Status status = {.MPI_SOURCE = -1};
        int done = 0, bytes = 0;
        if (!in->posted)
            return count > 0;
        const int code = lap_mpi.MPI_Test(&in->request, &done, &status);
        if (code == MPI_SUCCESS && !done)
            return count > 0;
        if (code == MPI_SUCCESS &&
            lap_mpi.MPI_Get_count(&status, lap_mpi.byte, &bytes) == MPI_SUCCESS && bytes >= 0)
            take(self, in->packet, status.MPI_SOURCE, (size_t)bytes);
        else
            lap_wire_lose(&self->base, status.MPI_SOURCE);
        post(self, in);
        self->in_first = (self->in_first + 1) % RECEIVES;
    }
    return true;
}

/*
 * Whether somebody sleeps until a packet comes; or is about to, and spins for a moment first. Who
 * waits until a packet has got away does not count: there are enough of them out to keep a network
 * of 10 Gbit/s busy during a rest.
 */
static bool somebody_waits(mpi_wire_t *self)
{
    const uint64_t nudged_at = atomic_load_explicit(&self->nudged_at, memory_order_relaxed);
    bool waits = lap_now_ns() - nudged_at < REST_WAITED_NS;
    pthread_mutex_lock(&self->base.ports_lock);
    for (size_t i = 0; i < self->base.nports && !waits; i++) {
        const lap_bank_t *bank = self->base.ports[i].bank;
        waits = bank && atomic_load_explicit(&bank->sleepers, memory_order_relaxed) > 0;
    }
    pthread_mutex_unlock(&self->base.ports_lock);
    return waits;
}

/*
 * Between two rounds in which nothing was to be done. The longer it has been quiet, the longer the
 * rest; a packet to be sent ends it.
 */
static void rest(mpi_wire_t *self)
{
    const uint64_t quiet = lap_now_ns() - self->last_busy;
    if (self->spins && quiet < self->base.world->spin_ns) {
        sched_yield();
        return;
    }
    const bool waited = somebody_waits(self);
    const uint64_t least = waited ? REST_LEAST_NS : REST_UNWAITED_NS;
    const uint64_t most = waited ? REST_WAITED_NS : REST_MOST_NS;
    uint64_t ns = quiet / 2 > least ? quiet / 2 : least;
    const lap_watch_t watch = {.timeout_ns = ns < most ? ns : most};
    lap_bank_wait(self->base.bank, LAP_WIRE_WORD, self->handled + 1, &watch);
}

static bool all_done(const mpi_wire_t *self)
{
    /* Packets are put into the queue before stop_ns is set, and not after. */
    return !self->sending && !self->first &&
           (!self->awaits_byes ||
            atomic_load_explicit(&self->byes, memory_order_relaxed) == self->base.world->size - 1);
}

static void *wire_main(void *context)
{
    mpi_wire_t *self = context;
    lap_thread_be_urgent();
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); /* rests are shorter than the default slack */
    for (int i = 0; i < RECEIVES; i++)
        post(self, &self->ins[i]);
    lap_deadline_t end = lap_deadline_after(UINT64_MAX);
    for (uint64_t known = 0;;) {
        bool busy = send_queue(self);
        busy = finish_sends(self) || busy;
        busy = finish_receives(self) || busy;
        const uint64_t stop_ns = atomic_load_explicit(&self->stop_ns, memory_order_acquire);
        if (stop_ns != known)
            end = lap_deadline_after(known = stop_ns);
        self->drained = stop_ns && all_done(self);
        if (self->drained || (stop_ns && lap_deadline_passed(&end)))
            return NULL;
        if (busy)
            self->last_busy = lap_now_ns();
        else
            rest(self);
    }
}

/* ---- the ends ---- */

/* What MPI still sends or receives is left to it. */
static void wire_free(mpi_wire_t *self)
{
    lap_wire_free_outs(self->first);
    for (int i = 0; i < RECEIVES; i++)
        if (!self->ins[i].posted)
            lap_free(self->ins[i].packet);
    lap_free(self->held_in);
    lap_wire_base_free(&self->base);
    lap_free(self);
}

/* Takes back the places for messages that do not come any more. */
static void cancel_receives(mpi_wire_t *self)
{
    for (int i = 0; i < RECEIVES; i++) {
        in_t *in = &self->ins[i];
        int done = 0;
        if (in->posted && lap_mpi.MPI_Cancel(&in->request) == MPI_SUCCESS &&
            lap_mpi.MPI_Test(&in->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done)
            in->posted = false;
    }
}

/* Whether a process of this host has ended: then there is nothing to wait for. */
static bool somebody_died(const lap_world_t *world)
{
    for (int rank = 0; rank < world->size; rank++) {
        struct pollfd poll_one = {.fd = world->peers[rank].pidfd, .events = POLLIN};
        if (atomic_load_explicit(&world->peers[rank].lost, memory_order_acquire) ||
            poll(&poll_one, 1, 0) > 0)
            return true;
    }
    return false;
}

/*
 * Waits until all have sent their goodbye, unless somebody cannot any more. Only then may the
 * communicator be freed: a packet that comes later would meet one that MPI gives the same number.
 */
static void await_byes(mpi_wire_t *self, lap_deadline_t *deadline)
{
    while (!lap_deadline_passed(deadline) &&
           atomic_load_explicit(&self->byes, memory_order_relaxed) < self->base.world->size - 1) {
        if (somebody_died(self->base.world)) {
            atomic_store_explicit(&self->stop_ns, LAP_WIRE_LINGER_NS / 10, memory_order_release);
            return;
        }
        lap_sleep_until_ns(lap_now_ns() + REST_MOST_NS);
    }
}

/*
 * Gets all ranks to the same place before MPI ends: some MPIs end their connections one by one, and
 * need the other side to be at it too.
 */
static bool end_together(mpi_wire_t *self, lap_deadline_t *deadline)
{
    MPI_Request request;
    int done = 0;
    if (lap_mpi.MPI_Ibarrier(self->comm, &request) != MPI_SUCCESS)
        return false;
    while (!done && !lap_deadline_passed(deadline) && !somebody_died(self->base.world)) {
        if (lap_mpi.MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
        if (!done)
            lap_sleep_until_ns(lap_now_ns() + REST_LEAST_NS);
    }
    return done;
}

static void *finalise_main(void *context)
{
    (void)context;
    lap_mpi.MPI_Finalize();
    return NULL;
}

/*
 * In a thread of its own, because it may not come back though all ranks are there: MPICH up to 4.1
 * over UCX and TCP does not, when one rank still ends its connections and the other no longer
 * listens. The thread then ends with the process.
 */
static void finalise(void)
{
    pthread_t thread;
    struct timespec until;
    if (lap_thread_start(&thread, "lap-mpi-end", finalise_main, NULL) != 0) {
        lap_warn("cannot start a thread for MPI_Finalize: MPI is not finalised");
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FINALISE_S;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
        return;
    lap_warn("MPI_Finalize has not returned within %d s: the process goes on without it",
             FINALISE_S);
    pthread_detach(thread);
}

/*
 * MPI_Finalize waits for all ranks, and would wait forever for one that has died: it is called by
 * all when all have reported that they are well, and else by none.
 */
static void lap_mpi_close(lap_wire_t *wire, bool well)
{
    mpi_wire_t *self = self_of(wire);
    const uint64_t stop_ns = well ? self->base.world->timeout_ns : LAP_WIRE_LINGER_NS;
    lap_deadline_t deadline = lap_deadline_after(stop_ns);
    lap_wire_send_bye(&self->base, well);
    self->awaits_byes = well;
    atomic_store_explicit(&self->stop_ns, stop_ns, memory_order_release);
    if (well)
        await_byes(self, &deadline);
    pthread_join(self->thread, NULL);
    cancel_receives(self);
    if (self->drained && well && atomic_load_explicit(&self->unwell, memory_order_relaxed) == 0 &&
        end_together(self, &deadline)) {
        lap_mpi.MPI_Comm_free(&self->comm);
        if (self->owns_mpi)
            finalise();
    }
    wire_free(self);
}

static const lap_wire_ops_t wire_ops = {
    .name = "MPI",
    .carries_data = true,
    .send = lap_mpi_send,
    .nudge = lap_mpi_nudge,
    .close = lap_mpi_close,
};

static lap_status_t wire_init(mpi_wire_t *self, lap_world_t *world)
{
    bool room = true;
    self->last = &self->first;
    self->sending_last = &self->sending;
    self->spins = world->spin_ns > 0 && 2 * world->local_size <= world->cores;
    LAP_TRY(lap_wire_base_init(&self->base, &wire_ops, world));
    self->held_in = lap_alloc((size_t)world->size, sizeof(*self->held_in));
    for (int i = 0; i < RECEIVES; i++) {
        self->ins[i].packet = lap_alloc(1, sizeof(lap_packet_t) + LAP_WIRE_BODY);
        room = room && self->ins[i].packet;
    }
    if (!room || !self->held_in)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a wire to %d ranks", world->size);
    errno = lap_thread_start(&self->thread, "lap-mpi", wire_main, self);
    if (errno != 0)
        return lap_error_errno("cannot start the thread that calls MPI");
    return LAP_OK;
}

lap_status_t lap_mpi_wire_open(lap_world_t *world, MPI_Comm comm, bool owns_mpi,
                               lap_wire_t **wire_p)
{
    mpi_wire_t *self = lap_alloc(1, sizeof(*self));
    if (!self)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a wire");
    self->comm = comm;
    self->owns_mpi = owns_mpi;
    self->last_busy = lap_now_ns();
    lap_status_t status = wire_init(self, world);
    if (status != LAP_OK) {
        wire_free(self);
        return status;
    }
    *wire_p = &self->base.wire;
    return LAP_OK;
}
