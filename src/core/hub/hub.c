/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks meet at rank 0. Rank 0 listens; each of the others sends a hello, rank 0 proves that it
 * has the key of the job, the other proves the same, and is welcomed. Then they gather bytes
 * through rank 0 as often as they like. Whatever goes wrong, rank 0 sends its sentence to all who
 * came. Who cannot prove it is no rank: it is turned away, is not believed, and does not disturb
 * the others. Where rank 0 is, and how streams to it are made, is of the kind: hub_dir.c and
 * hub_tcp.c.
 */
#include "core/hub/hub.h"

#include <lap/version.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/alloc.h"
#include "util/clock.h"

#define LOOK_NS 100000000u     /* between two looks for ranks that will not come */
#define WELCOME_NS 5000000000u /* for an answer of who may be somebody else */
#define PAUSE_LEAST_NS 1000000u

/* ---- rank 0 ---- */

/* One who has connected and not yet proved that it is a rank. */
typedef struct pending {
    int fd;
    int pid; /* 0: not known */
    char from[LAP_STREAM_TEXT];
    lap_key_t nonce; /* of rank 0, for this one alone */
    size_t got;      /* of its bytes: first the hello, and then, challenged, the proof */
    struct {
        lap_hub_hello_t hello;
        uint64_t proof;
    } received;
} pending_t;

typedef struct host {
    lap_hub_t *hub;
    lap_deadline_t *deadline;
    lap_hub_listener_t listener;
    int came;
    char (*from)[LAP_STREAM_TEXT]; /* of each rank that has come */
    bool *ready;                   /* who waits to be gathered */
    pending_t *pending;            /* the eldest first */
    int npending, most;            /* of them, and how many there may be */
    int others;                    /* who were of another job, or of none */
    struct pollfd *polls;          /* room for the listener, all ranks and all pending */
    lap_status_t failure;          /* the first one, with its sentence */
    char sentence[LAP_ERROR_TEXT];
} host_t;

/* None in a directory: there the kernel proves the user. */
static lap_key_t key_of(const lap_hub_t *hub)
{
    return hub->master ? hub->master->key : (lap_key_t){{0, 0}};
}

/* Whether a hello of this job makes sense. */
static lap_status_t check_hello(const host_t *host, const pending_t *pending)
{
    const lap_hub_t *hub = host->hub;
    const lap_hub_hello_t *hello = &pending->received.hello;
    const char *from = pending->from;
    if (strncmp(hello->version, lap_version_string(), sizeof(hello->version)) != 0)
        return lap_error(
            LAP_ERR_MISMATCH, "rank 0 runs version %s of this library, rank %d (%s) version %.*s",
            lap_version_string(), hello->rank, from, (int)sizeof(hello->version), hello->version);
    if (hello->size != hub->size || hello->rank < 1 || hello->rank >= hub->size)
        return lap_error(LAP_ERR_MISMATCH,
                         "%s says that it is rank %d of %d, expected ranks 1 to %d of %d", from,
                         hello->rank, hello->size, hub->size - 1, hub->size);
    if (pending->pid != 0 && hello->pid != pending->pid)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "rank %d has pid %lld but rank 0 sees it as pid %d: ranks in different "
                         "PID namespaces cannot watch each other",
                         hello->rank, (long long)hello->pid, pending->pid);
    if (hub->fds[hello->rank] >= 0)
        return lap_error(LAP_ERR_MISMATCH,
                         "%s and %s both say that they are rank %d: expected a rank for each "
                         "process, and a port or a LAP_JOB of its own for each job",
                         host->from[hello->rank], from, hello->rank);
    return LAP_OK;
}

/* Whether it has lost patience, and comes again. */
static bool is_gone(const pending_t *pending)
{
    struct pollfd gone = {.fd = pending->fd, .events = POLLRDHUP};
    return poll(&gone, 1, 0) > 0;
}

/* A proof has come: a rank is admitted, and welcomed. */
static lap_status_t admit(host_t *host, const pending_t *pending)
{
    lap_hub_t *hub = host->hub;
    const lap_hub_hello_t *hello = &pending->received.hello;
    const lap_key_t key = key_of(hub);
    const bool ours =
        pending->received.proof ==
        lap_hub_proof(&key, LAP_HUB_RANK, hello, &pending->nonce, host->listener.port);
    host->others += !ours;
    if (!ours || is_gone(pending)) {
        close(pending->fd);
        return LAP_OK;
    }
    const lap_status_t status = host->failure == LAP_OK
                                    ? check_hello(host, pending)
                                    : lap_error(host->failure, "%s", host->sentence);
    if (status != LAP_OK) {
        host->came += host->failure != LAP_OK;
        lap_hub_send_failure(pending->fd, status);
        close(pending->fd);
        return status;
    }
    hub->fds[hello->rank] = pending->fd;
    hub->pids[hello->rank] = pending->pid;
    memcpy(host->from[hello->rank], pending->from, LAP_STREAM_TEXT);
    host->came++;
    /* No rank waits longer than its hello says: the first timeout ends the rendezvous for all. */
    lap_limit_shorten(&hub->limit, host->deadline, hello->left_ns,
                      (lap_limit_t){hello->timeout_ns, hello->rank});
    (void)lap_hub_send_frame(pending->fd, LAP_OK, NULL, 0, host->deadline);
    return LAP_OK;
}

static pending_t forget(host_t *host, int index)
{
    const pending_t pending = host->pending[index];
    host->npending--;
    memmove(&host->pending[index], &host->pending[index + 1],
            (size_t)(host->npending - index) * sizeof(pending_t));
    return pending;
}

/* A hello has come: rank 0 proves that it is the one of its job, and asks for the same. */
static lap_status_t challenge(host_t *host, int index)
{
    pending_t *pending = &host->pending[index];
    lap_hub_challenge_t message = {.magic = LAP_HUB_CHALLENGE_MAGIC};
    const lap_key_t key = key_of(host->hub);
    LAP_TRY(lap_hub_random(&message.nonce));
    pending->nonce = message.nonce;
    message.proof = lap_hub_proof(&key, LAP_HUB_RANK_0, &pending->received.hello, &message.nonce,
                                  host->listener.port);
    if (is_gone(pending) || send(pending->fd, &message, sizeof(message),
                                 MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(message))
        close(forget(host, index).fd);
    return LAP_OK;
}

/* Reads what has come of one. One that ends at a proof does not take this for its rank 0. */
static lap_status_t receive(host_t *host, int index)
{
    pending_t *pending = &host->pending[index];
    const size_t hello = sizeof(pending->received.hello), whole = sizeof(pending->received);
    const bool challenged = pending->got >= hello;
    const ssize_t got = recv(pending->fd, (char *)&pending->received + pending->got,
                             (challenged ? whole : hello) - pending->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return LAP_OK;
    pending->got += got > 0 ? (size_t)got : 0;
    const bool other = challenged ? got <= 0
                                  : pending->got >= sizeof(uint64_t) &&
                                        pending->received.hello.magic != LAP_HUB_HELLO_MAGIC;
    host->others += other;
    if (got <= 0 || other) {
        close(forget(host, index).fd);
        return LAP_OK;
    }
    if (pending->got == hello)
        return challenge(host, index);
    if (pending->got < whole)
        return LAP_OK;
    const pending_t proved = forget(host, index);
    return admit(host, &proved);
}

/* Lets one in. Nobody waits for its hello: others may come meanwhile. */
static lap_status_t host_accept(host_t *host)
{
    pending_t pending = {.got = 0};
    LAP_TRY(host->hub->kind->accept(host->hub, &host->listener, &pending.fd, &pending.pid,
                                    pending.from));
    if (pending.fd < 0)
        return LAP_OK; /* it has gone again */
    if (host->npending == host->most)
        close(forget(host, 0).fd);
    host->pending[host->npending++] = pending;
    return LAP_OK;
}

/* Whether one of those that have not come is known not to; it counts as one that has. */
static lap_status_t host_look(host_t *host)
{
    const lap_hub_t *hub = host->hub;
    for (int rank = 1; rank < hub->size; rank++) {
        const lap_status_t status = hub->fds[rank] < 0 ? hub->kind->look(hub, rank) : LAP_OK;
        host->came += status != LAP_OK;
        LAP_TRY(status);
    }
    return LAP_OK;
}

/* Waits for an event, or until the next look. */
static lap_status_t host_wait(host_t *host, int count)
{
    lap_deadline_t look = lap_deadline_after(LOOK_NS);
    lap_deadline_t *next = lap_deadline_left(host->deadline) < LOOK_NS ? host->deadline : &look;
    const lap_status_t status = lap_wait_polls(host->polls, count, next);
    if (status == LAP_ERR_TIMEOUT && host->failure == LAP_OK)
        LAP_TRY(host_look(host));
    return status;
}

/* Waits for whatever comes, and takes it; finds those who fail, or go away. */
static lap_status_t host_step(host_t *host)
{
    lap_hub_t *hub = host->hub;
    struct pollfd *polls = host->polls, *pending = &polls[hub->size];
    const int before = host->npending;
    polls[0] = (struct pollfd){.fd = host->listener.fd, .events = POLLIN};
    for (int rank = 1; rank < hub->size; rank++)
        polls[rank] = (struct pollfd){.fd = hub->fds[rank],
                                      .events = host->ready[rank] ? POLLRDHUP : POLLIN | POLLRDHUP};
    for (int i = 0; i < before; i++)
        pending[i] = (struct pollfd){.fd = host->pending[i].fd, .events = POLLIN};
    LAP_TRY(host_wait(host, hub->size + before));
    for (int rank = 1; rank < hub->size; rank++) {
        if (!polls[rank].revents)
            continue;
        const lap_status_t status =
            lap_hub_check(hub, rank, polls[rank].revents, &host->ready[rank]);
        if (status == LAP_OK)
            continue;
        close(hub->fds[rank]);
        hub->fds[rank] = -1;
        return status;
    }
    for (int i = before - 1; i >= 0; i--)
        if (pending[i].revents)
            LAP_TRY(receive(host, i));
    return polls[0].revents ? host_accept(host) : LAP_OK;
}

static lap_status_t host_timeout(const host_t *host)
{
    const lap_hub_t *hub = host->hub;
    char missing[512] = "", place[LAP_HUB_PLACE_TEXT], silent[96] = "", others[96] = "";
    char within[LAP_LIMIT_TEXT];
    size_t used = 0;
    for (int rank = 1; rank < hub->size && used + 16 < sizeof(missing); rank++)
        if (hub->fds[rank] < 0)
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%d",
                                     used ? ", " : "", rank);
    if (host->npending > 0)
        snprintf(silent, sizeof(silent), "; %d connection%s sent nothing", host->npending,
                 host->npending == 1 ? " has" : "s have");
    if (host->others > 0)
        snprintf(others, sizeof(others), "; %d connection%s of no rank of this job", host->others,
                 host->others == 1 ? " was" : "s were");
    return lap_error(LAP_ERR_TIMEOUT, "of %d ranks these have not come to %s %s: %s%s%s", hub->size,
                     hub->kind->place(hub, place),
                     lap_limit_within(&hub->limit, hub->timeout_ns, within), missing, silent,
                     others);
}

/*
 * Keeps the first failure, of which all learn who have come, and leaves only a moment for ranks
 * that are still to come and learn of it.
 */
static void keep_failure(host_t *host, lap_status_t status)
{
    if (host->failure != LAP_OK)
        return;
    host->failure = status;
    snprintf(host->sentence, sizeof(host->sentence), "%s", lap_last_error());
    if (!host->hub->failed)
        lap_hub_fail_all(host->hub, status);
    lap_deadline_shorten(host->deadline, LAP_LIMIT_LINGER_NS);
}

static lap_status_t host_run(host_t *host, lap_status_t ready)
{
    if (ready != LAP_OK)
        keep_failure(host, ready);
    lap_status_t status = host->hub->kind->listen(host->hub, &host->listener);
    if (status != LAP_OK)
        keep_failure(host, status);
    while (status == LAP_OK && host->came < host->hub->size &&
           !lap_deadline_passed(host->deadline)) {
        const lap_status_t step = host_step(host);
        if (step != LAP_OK && step != LAP_ERR_TIMEOUT)
            keep_failure(host, step);
    }
    if (host->failure != LAP_OK)
        return lap_error(host->failure, "%s", host->sentence);
    return host->came < host->hub->size ? host_timeout(host) : LAP_OK;
}

static lap_status_t host_join(lap_hub_t *hub, lap_status_t ready, lap_deadline_t *deadline)
{
    const size_t size = (size_t)hub->size, most = size + LAP_HUB_PENDING;
    host_t host = {.hub = hub,
                   .deadline = deadline,
                   .listener = {.fd = -1, .dir_fd = -1},
                   .came = 1,
                   .most = (int)most,
                   .from = lap_alloc(size, LAP_STREAM_TEXT),
                   .ready = lap_alloc(size, sizeof(bool)),
                   .pending = lap_alloc(most, sizeof(pending_t)),
                   .polls = lap_alloc(size + most, sizeof(struct pollfd))};
    lap_status_t status = LAP_OK;
    hub->pids = lap_alloc(size, sizeof(int));
    if (!host.from || !host.ready || !host.pending || !host.polls || !hub->pids)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to meet %d ranks", hub->size);
    if (status == LAP_OK)
        status = host_run(&host, ready);
    /* Before anybody goes on: the next world of the same ranks may meet at the same place. */
    hub->kind->close(hub, &host.listener);
    if (status != LAP_OK && !hub->failed)
        lap_hub_fail_all(hub, status);
    for (int i = 0; i < host.npending; i++)
        close(host.pending[i].fd);
    lap_free(host.polls);
    lap_free(host.pending);
    lap_free(host.ready);
    lap_free(host.from);
    return status;
}

/* ---- the others ---- */

/* Rank 0 is to prove that it is the one of this job, and is shown the same then. */
static lap_status_t prove(lap_hub_attempt_t *attempt, int fd, int port, const char *name,
                          const lap_hub_hello_t *hello, lap_deadline_t *until)
{
    const lap_key_t key = key_of(attempt->hub);
    lap_hub_challenge_t theirs;
    LAP_TRY(lap_stream_write(fd, hello, sizeof(*hello), until));
    LAP_TRY(lap_stream_read(fd, &theirs, sizeof(theirs), until));
    if (theirs.magic != LAP_HUB_CHALLENGE_MAGIC)
        return LAP_ERR_PEER_LOST;
    if (theirs.proof != lap_hub_proof(&key, LAP_HUB_RANK_0, hello, &theirs.nonce, port)) {
        snprintf(attempt->other, sizeof(attempt->other),
                 "the ranks that meet at %s are of another job", name);
        return LAP_ERR_PEER_LOST;
    }
    const uint64_t proof = lap_hub_proof(&key, LAP_HUB_RANK, hello, &theirs.nonce, port);
    return lap_stream_write(fd, &proof, sizeof(proof), until);
}

static lap_status_t greet(lap_hub_attempt_t *attempt, int fd, int port, const char *name)
{
    const lap_hub_t *hub = attempt->hub;
    lap_hub_hello_t hello = {.magic = LAP_HUB_HELLO_MAGIC,
                             .rank = hub->rank,
                             .size = hub->size,
                             .pid = getpid(),
                             .left_ns = lap_deadline_left(attempt->deadline),
                             .timeout_ns = hub->timeout_ns};
    bool verdict = false;
    snprintf(hello.version, sizeof(hello.version), "%s", lap_version_string());
    LAP_TRY(lap_hub_random(&hello.nonce));
    lap_deadline_part_t part = lap_deadline_begin_part(attempt->deadline, WELCOME_NS);
    lap_status_t status = prove(attempt, fd, port, name, &hello, &part.until);
    if (status == LAP_OK)
        status = lap_hub_receive_frame(fd, NULL, 0, &verdict, &part.until);
    lap_deadline_end_part(attempt->deadline, &part);
    attempt->reached = status == LAP_OK || verdict;
    if (!attempt->reached)
        snprintf(attempt->last, sizeof(attempt->last),
                 "who listens at %s does not answer as rank 0 does", name);
    return status;
}

lap_status_t lap_hub_greet(lap_hub_attempt_t *attempt, int fd, int port, const char *name)
{
    const lap_status_t status = greet(attempt, fd, port, name);
    if (status == LAP_OK)
        attempt->hub->fds[0] = fd;
    else
        close(fd);
    return status;
}

static lap_status_t client_join(lap_hub_t *hub, lap_deadline_t *deadline)
{
    lap_hub_attempt_t attempt = {.hub = hub, .deadline = deadline};
    const uint64_t most = hub->kind->pause_most_ns;
    char within[LAP_LIMIT_TEXT];
    for (uint64_t pause = PAUSE_LEAST_NS;; pause = pause < most ? pause * 2 : pause) {
        LAP_TRY(hub->kind->connect(&attempt));
        if (attempt.reached)
            break;
        LAP_TRY(hub->kind->look(hub, 0));
        const uint64_t left = lap_deadline_left(deadline);
        if (left == 0)
            return hub->kind->absent(&attempt,
                                     lap_limit_within(&hub->limit, hub->timeout_ns, within));
        lap_sleep_until_ns(lap_now_ns() + (pause < left ? pause : left));
    }
    deadline->at += LAP_LIMIT_GRACE_NS;
    return LAP_OK;
}

/* ---- all ---- */

lap_status_t lap_hub_join(lap_hub_t *hub, lap_status_t ready, lap_deadline_t *deadline)
{
    hub->limit = (lap_limit_t){hub->timeout_ns, hub->rank};
    hub->fds = lap_alloc((size_t)hub->size, sizeof(int));
    if (!hub->fds)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to meet %d ranks", hub->size);
    for (int rank = 0; rank < hub->size; rank++)
        hub->fds[rank] = -1;
    if (hub->rank == 0)
        return host_join(hub, ready, deadline);
    if (ready == LAP_OK)
        return client_join(hub, deadline);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    const lap_status_t met = client_join(hub, deadline);
    lap_error_restore(&saved);
    return met == LAP_OK ? lap_hub_report(hub, ready, deadline) : ready;
}

void lap_hub_leave(lap_hub_t *hub)
{
    for (int rank = 0; hub->fds && rank < hub->size; rank++)
        if (hub->fds[rank] >= 0)
            close(hub->fds[rank]);
    lap_free(hub->fds);
    lap_free(hub->pids);
    hub->fds = hub->pids = NULL;
}
