/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks that know the address of rank 0 meet there. Rank 0 listens; each of the others says who
 * it is, rank 0 proves that it has the key of the job, the other proves the same, and is welcomed.
 * Then they gather bytes through rank 0 as often as they like. Whatever goes wrong, rank 0 tells its
 * sentence to all who came. Who cannot prove it is no rank: it is turned away, is not believed, and
 * does not disturb the others.
 */
#include "core/tcp/tcp.h"

#include <lap/version.h>

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/bootstrap.h"
#include "core/message.h"
#include "util/alloc.h"
#include "util/clock.h"

#define HELLO_MAGIC 0x4c61704d65657431u /* also tells the order of bytes */
#define CHALLENGE_MAGIC 0x4c61704d65657433u
#define CONNECT_NS 3000000000u /* for one attempt: it may be the wrong address of several */
#define WELCOME_NS 5000000000u /* the same, for an answer of who may be somebody else */
#define PAUSE_MOST_NS 100000000u

/* "gpu1:29501", "gpu1, ports 29501 to 29516", or "port 29501 of 10.0.0.1 fd00::1" */
#define PLACE_TEXT 320
static const char *place_of(const lap_tcp_rendezvous_t *rendezvous, char text[PLACE_TEXT])
{
    const lap_master_t *master = rendezvous->master;
    if (master->nports > 1)
        snprintf(text, PLACE_TEXT, "%s, ports %d to %d", master->hosts, master->port,
                 master->port + master->nports - 1);
    else if (strchr(master->hosts, ' '))
        snprintf(text, PLACE_TEXT, "port %d of %s", master->port, master->hosts);
    else
        snprintf(text, PLACE_TEXT, strchr(master->hosts, ':') ? "[%s]:%d" : "%s:%d", master->hosts,
                 master->port);
    return text;
}

/* ---- rank 0 ---- */

typedef struct stranger {
    int fd;
    lap_tcp_address_t from;
    lap_key_t nonce; /* of rank 0, for this one alone */
    size_t got;      /* of what it says: first the hello, and then, challenged, the proof */
    struct {
        lap_tcp_hello_t hello;
        uint64_t proof;
    } received;
} stranger_t;

typedef struct host {
    lap_tcp_rendezvous_t *rendezvous;
    lap_deadline_t *deadline;
    int listener, port;
    int came;
    lap_tcp_address_t *from; /* of each rank that has come */
    bool *ready;             /* who waits to be gathered */
    stranger_t *strangers;   /* who has connected and not yet proved it, the eldest first */
    int nstrangers, most;    /* of them, and how many there may be */
    int others;              /* who were of another job, or of none */
    struct pollfd *polls;    /* room for the listener, all ranks and all strangers */
    lap_status_t failure;    /* the first one, with its sentence */
    char sentence[LAP_ERROR_TEXT];
} host_t;

static lap_status_t host_listen(host_t *host)
{
    const lap_master_t *master = host->rendezvous->master;
    char place[PLACE_TEXT];
    if (master->listener >= 0) {
        host->listener = master->listener;
        host->port = master->port;
        return LAP_OK;
    }
    for (int i = 0; i < master->nports; i++) {
        const lap_status_t status = lap_tcp_listen(master->port + i, &host->listener, &host->port);
        if (status == LAP_OK || errno != EADDRINUSE)
            return status;
    }
    return lap_error(LAP_ERR_SYSTEM,
                     "rank 0 cannot listen at %s: another process of this host does; expected a "
                     "port of its own for each job, such as LAP_MASTER=host:port gives",
                     place_of(host->rendezvous, place));
}

/* Whether a hello of this job makes sense. */
static lap_status_t check_hello(const host_t *host, const stranger_t *stranger)
{
    const lap_tcp_rendezvous_t *rendezvous = host->rendezvous;
    const lap_tcp_hello_t *hello = &stranger->received.hello;
    char from[LAP_TCP_TEXT], before[LAP_TCP_TEXT];
    lap_tcp_name(&stranger->from, from);
    if (strncmp(hello->version, lap_version_string(), sizeof(hello->version)) != 0)
        return lap_error(
            LAP_ERR_MISMATCH, "rank 0 runs version %s of this library, rank %d (%s) version %.*s",
            lap_version_string(), hello->rank, from, (int)sizeof(hello->version), hello->version);
    if (hello->size != rendezvous->size || hello->rank < 1 || hello->rank >= rendezvous->size)
        return lap_error(LAP_ERR_MISMATCH,
                         "%s says that it is rank %d of %d, expected ranks 1 to %d of %d", from,
                         hello->rank, hello->size, rendezvous->size - 1, rendezvous->size);
    if (rendezvous->fds[hello->rank] >= 0)
        return lap_error(LAP_ERR_MISMATCH,
                         "%s and %s both say that they are rank %d: expected a rank for each "
                         "process, and a port or a LAP_JOB of its own for each job",
                         lap_tcp_name(&host->from[hello->rank], before), from, hello->rank);
    return LAP_OK;
}

/* Whether it has lost patience, and comes again. */
static bool is_gone(const stranger_t *stranger)
{
    struct pollfd gone = {.fd = stranger->fd, .events = POLLRDHUP};
    return poll(&gone, 1, 0) > 0;
}

/* A proof has come: a rank is admitted, and welcomed. */
static lap_status_t admit(host_t *host, const stranger_t *stranger)
{
    const lap_tcp_hello_t *hello = &stranger->received.hello;
    const bool ours =
        stranger->received.proof == lap_tcp_proof(&host->rendezvous->master->key, LAP_TCP_RANK,
                                                  hello, &stranger->nonce, host->port);
    host->others += !ours;
    if (!ours || is_gone(stranger)) {
        close(stranger->fd);
        return LAP_OK;
    }
    const lap_status_t status = host->failure == LAP_OK
                                    ? check_hello(host, stranger)
                                    : lap_error(host->failure, "%s", host->sentence);
    if (status != LAP_OK) {
        host->came += host->failure != LAP_OK;
        lap_tcp_tell(stranger->fd, status);
        close(stranger->fd);
        return status;
    }
    host->rendezvous->fds[hello->rank] = stranger->fd;
    host->from[hello->rank] = stranger->from;
    host->came++;
    lap_tcp_prepare(stranger->fd, host->rendezvous->timeout_ns);
    /* No rank waits longer than its hello says: the first timeout ends the rendezvous for all. */
    lap_limit_shorten(&host->rendezvous->limit, host->deadline, hello->left_ns,
                      (lap_limit_t){hello->timeout_ns, hello->rank});
    (void)lap_tcp_send_frame(stranger->fd, LAP_OK, NULL, 0, host->deadline);
    return LAP_OK;
}

static stranger_t forget(host_t *host, int index)
{
    const stranger_t stranger = host->strangers[index];
    host->nstrangers--;
    memmove(&host->strangers[index], &host->strangers[index + 1],
            (size_t)(host->nstrangers - index) * sizeof(stranger_t));
    return stranger;
}

/* A hello has come: rank 0 proves that it is the one of its job, and asks for the same. */
static lap_status_t challenge(host_t *host, int index)
{
    stranger_t *stranger = &host->strangers[index];
    lap_tcp_challenge_t message = {.magic = CHALLENGE_MAGIC};
    LAP_TRY(lap_tcp_random(&message.nonce));
    stranger->nonce = message.nonce;
    message.proof = lap_tcp_proof(&host->rendezvous->master->key, LAP_TCP_RANK_0,
                                  &stranger->received.hello, &message.nonce, host->port);
    if (is_gone(stranger) || send(stranger->fd, &message, sizeof(message),
                                  MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(message))
        close(forget(host, index).fd);
    return LAP_OK;
}

/* Reads what a stranger has sent so far. One that ends at a proof does not take this for its rank 0. */
static lap_status_t hear(host_t *host, int index)
{
    stranger_t *stranger = &host->strangers[index];
    const size_t hello = sizeof(stranger->received.hello), whole = sizeof(stranger->received);
    const bool challenged = stranger->got >= hello;
    const ssize_t got = recv(stranger->fd, (char *)&stranger->received + stranger->got,
                             (challenged ? whole : hello) - stranger->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return LAP_OK;
    stranger->got += got > 0 ? (size_t)got : 0;
    const bool other = challenged ? got <= 0
                                  : stranger->got >= sizeof(uint64_t) &&
                                        stranger->received.hello.magic != HELLO_MAGIC;
    host->others += other;
    if (got <= 0 || other) {
        close(forget(host, index).fd);
        return LAP_OK;
    }
    if (stranger->got == hello)
        return challenge(host, index);
    if (stranger->got < whole)
        return LAP_OK;
    const stranger_t proved = forget(host, index);
    return admit(host, &proved);
}

/* Lets one in. Nobody waits for what it says: others may come meanwhile. */
static lap_status_t host_accept(host_t *host)
{
    stranger_t stranger = {.got = 0};
    LAP_TRY(
        lap_tcp_accept(host->listener, 0, host->rendezvous->size, &stranger.fd, &stranger.from));
    if (stranger.fd < 0)
        return LAP_OK; /* it has gone again */
    if (host->nstrangers == host->most)
        close(forget(host, 0).fd);
    host->strangers[host->nstrangers++] = stranger;
    return LAP_OK;
}

/* Waits for whatever comes, and hears it; finds those who fail, or go away. */
static lap_status_t host_step(host_t *host)
{
    const lap_tcp_rendezvous_t *rendezvous = host->rendezvous;
    struct pollfd *polls = host->polls, *strangers = &polls[rendezvous->size];
    const int heard = host->nstrangers;
    polls[0] = (struct pollfd){.fd = host->listener, .events = POLLIN};
    for (int rank = 1; rank < rendezvous->size; rank++)
        polls[rank] = (struct pollfd){.fd = rendezvous->fds[rank],
                                      .events = host->ready[rank] ? POLLRDHUP : POLLIN | POLLRDHUP};
    for (int i = 0; i < heard; i++)
        strangers[i] = (struct pollfd){.fd = host->strangers[i].fd, .events = POLLIN};
    LAP_TRY(lap_wait_polls(polls, rendezvous->size + heard, host->deadline));
    for (int rank = 1; rank < rendezvous->size; rank++) {
        if (!polls[rank].revents)
            continue;
        const lap_status_t status =
            lap_tcp_hear(host->rendezvous, rank, polls[rank].revents, &host->ready[rank]);
        if (status == LAP_OK)
            continue;
        close(rendezvous->fds[rank]);
        rendezvous->fds[rank] = -1;
        return status;
    }
    for (int i = heard - 1; i >= 0; i--)
        if (strangers[i].revents)
            LAP_TRY(hear(host, i));
    return polls[0].revents ? host_accept(host) : LAP_OK;
}

static lap_status_t host_timeout(const host_t *host)
{
    const lap_tcp_rendezvous_t *rendezvous = host->rendezvous;
    char missing[256] = "", place[PLACE_TEXT], silent[96] = "", others[96] = "";
    char within[LAP_LIMIT_TEXT];
    size_t used = 0;
    for (int rank = 1; rank < rendezvous->size && used + 16 < sizeof(missing); rank++)
        if (rendezvous->fds[rank] < 0)
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%d",
                                     used ? ", " : "", rank);
    if (host->nstrangers > 0)
        snprintf(silent, sizeof(silent), "; %d connection%s sent nothing", host->nstrangers,
                 host->nstrangers == 1 ? " has" : "s have");
    if (host->others > 0)
        snprintf(others, sizeof(others), "; %d connection%s of no rank of this job", host->others,
                 host->others == 1 ? " was" : "s were");
    return lap_error(LAP_ERR_TIMEOUT, "of %d ranks these have not come to %s %s: %s%s%s",
                     rendezvous->size, place_of(rendezvous, place),
                     lap_tcp_within(rendezvous, within), missing, silent, others);
}

/*
 * Keeps the first failure, of which all hear who have come, and leaves only a moment for ranks that are still to
 * come and hear of it.
 */
static void note_failure(host_t *host, lap_status_t status)
{
    if (host->failure != LAP_OK)
        return;
    host->failure = status;
    snprintf(host->sentence, sizeof(host->sentence), "%s", lap_last_error());
    if (!host->rendezvous->failed)
        lap_tcp_tell_all(host->rendezvous, status);
    lap_deadline_shorten(host->deadline, LAP_BOOTSTRAP_LINGER_NS);
}

static lap_status_t host_run(host_t *host, lap_status_t ready)
{
    if (ready != LAP_OK)
        note_failure(host, ready);
    lap_status_t status = host_listen(host);
    if (status != LAP_OK)
        note_failure(host, status);
    while (host->listener >= 0 && host->came < host->rendezvous->size &&
           !lap_deadline_passed(host->deadline)) {
        status = host_step(host);
        if (status != LAP_OK && status != LAP_ERR_TIMEOUT)
            note_failure(host, status);
    }
    if (host->failure != LAP_OK)
        return lap_error(host->failure, "%s", host->sentence);
    return host->came < host->rendezvous->size ? host_timeout(host) : LAP_OK;
}

static lap_status_t host_meet(lap_tcp_rendezvous_t *rendezvous, lap_status_t ready,
                              lap_deadline_t *deadline)
{
    const size_t size = (size_t)rendezvous->size, most = size + LAP_TCP_STRANGERS;
    host_t host = {.rendezvous = rendezvous,
                   .deadline = deadline,
                   .listener = -1,
                   .came = 1,
                   .most = (int)most,
                   .from = lap_alloc(size, sizeof(lap_tcp_address_t)),
                   .ready = lap_alloc(size, sizeof(bool)),
                   .strangers = lap_alloc(most, sizeof(stranger_t)),
                   .polls = lap_alloc(size + most, sizeof(struct pollfd))};
    lap_status_t status = LAP_OK;
    if (!host.from || !host.ready || !host.strangers || !host.polls)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to meet %d ranks", rendezvous->size);
    if (status == LAP_OK)
        status = host_run(&host, ready);
    /* Before anybody goes on: the next world of the same ranks may meet at the same place. */
    if (host.listener >= 0 && host.listener != rendezvous->master->listener)
        close(host.listener);
    if (status != LAP_OK && !rendezvous->failed)
        lap_tcp_tell_all(rendezvous, status);
    for (int i = 0; i < host.nstrangers; i++)
        close(host.strangers[i].fd);
    lap_free(host.polls);
    lap_free(host.strangers);
    lap_free(host.ready);
    lap_free(host.from);
    return status;
}

/* ---- the others ---- */

/* One attempt to reach rank 0, and what came of it. */
typedef struct attempt {
    lap_tcp_rendezvous_t *rendezvous;
    lap_deadline_t *deadline;
    bool reached;    /* it was rank 0, with its verdict */
    char last[256];  /* why the latest did not reach it, */
    char other[128]; /* and that one came to another job */
} attempt_t;

/* Rank 0 is to prove that it is the one of this job, and is shown the same then. */
static lap_status_t prove(attempt_t *attempt, int fd, const lap_tcp_address_t *address,
                          const lap_tcp_hello_t *hello, lap_deadline_t *until)
{
    const lap_key_t *key = &attempt->rendezvous->master->key;
    const int port = lap_tcp_port(address);
    char name[LAP_TCP_TEXT];
    lap_tcp_challenge_t theirs;
    LAP_TRY(lap_tcp_write(fd, hello, sizeof(*hello), until));
    LAP_TRY(lap_tcp_read(fd, &theirs, sizeof(theirs), until));
    if (theirs.magic != CHALLENGE_MAGIC)
        return LAP_ERR_PEER_LOST;
    if (theirs.proof != lap_tcp_proof(key, LAP_TCP_RANK_0, hello, &theirs.nonce, port)) {
        snprintf(attempt->other, sizeof(attempt->other),
                 "the ranks that meet at %s are of another job", lap_tcp_name(address, name));
        return LAP_ERR_PEER_LOST;
    }
    const uint64_t proof = lap_tcp_proof(key, LAP_TCP_RANK, hello, &theirs.nonce, port);
    return lap_tcp_write(fd, &proof, sizeof(proof), until);
}

/* Says hello to who listens there, which may be somebody else: nothing is believed before its proof. */
static lap_status_t greet(attempt_t *attempt, int fd, const lap_tcp_address_t *address)
{
    lap_tcp_rendezvous_t *rendezvous = attempt->rendezvous;
    lap_tcp_hello_t hello = {.magic = HELLO_MAGIC,
                             .rank = rendezvous->rank,
                             .size = rendezvous->size,
                             .left_ns = lap_deadline_left(attempt->deadline),
                             .timeout_ns = rendezvous->timeout_ns};
    char name[LAP_TCP_TEXT];
    bool verdict = false;
    snprintf(hello.version, sizeof(hello.version), "%s", lap_version_string());
    LAP_TRY(lap_tcp_random(&hello.nonce));
    lap_deadline_part_t part = lap_deadline_begin_part(attempt->deadline, WELCOME_NS);
    lap_status_t status = prove(attempt, fd, address, &hello, &part.until);
    if (status == LAP_OK)
        status = lap_tcp_receive_frame(fd, NULL, 0, &verdict, &part.until);
    lap_deadline_end_part(attempt->deadline, &part);
    attempt->reached = status == LAP_OK || verdict;
    if (!attempt->reached)
        snprintf(attempt->last, sizeof(attempt->last),
                 "who listens at %s does not answer as rank 0 does", lap_tcp_name(address, name));
    return status;
}

static lap_status_t try_address(attempt_t *attempt, const lap_tcp_address_t *address)
{
    char name[LAP_TCP_TEXT];
    int fd = -1;
    lap_deadline_part_t part = lap_deadline_begin_part(attempt->deadline, CONNECT_NS);
    lap_status_t status = lap_tcp_connect(address, &part.until, &fd);
    lap_deadline_end_part(attempt->deadline, &part);
    if (status == LAP_ERR_PEER_LOST || status == LAP_ERR_TIMEOUT) {
        snprintf(attempt->last, sizeof(attempt->last), "%s: %s", lap_tcp_name(address, name),
                 strerror(errno));
        return LAP_OK;
    }
    LAP_TRY(status);
    status = greet(attempt, fd, address);
    if (status == LAP_OK) {
        attempt->rendezvous->fds[0] = fd;
        lap_tcp_prepare(fd, attempt->rendezvous->timeout_ns);
        return LAP_OK;
    }
    close(fd);
    const bool elsewhere = status == LAP_ERR_PEER_LOST || status == LAP_ERR_TIMEOUT;
    return elsewhere && !attempt->reached ? LAP_OK : status;
}

/* All ports at all addresses of one name. */
static lap_status_t try_host(attempt_t *attempt, const char *host)
{
    const lap_master_t *master = attempt->rendezvous->master;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const int error = getaddrinfo(host, NULL, &hints, &found);
    attempt->deadline->seen = lap_now_ns(); /* a name server that is slow is no stop */
    if (error != 0) {
        snprintf(attempt->last, sizeof(attempt->last), "%s: %s", host, gai_strerror(error));
        return LAP_OK;
    }
    lap_status_t status = LAP_OK;
    for (int i = 0; i < master->nports && status == LAP_OK && !attempt->reached; i++)
        for (struct addrinfo *at = found; at && status == LAP_OK && !attempt->reached;
             at = at->ai_next) {
            lap_tcp_address_t address = {.any.sa_family = AF_UNSPEC};
            if (at->ai_addrlen > sizeof(address))
                continue;
            memcpy(&address, at->ai_addr, at->ai_addrlen);
            lap_tcp_set_port(&address, master->port + i);
            status = try_address(attempt, &address);
        }
    freeaddrinfo(found);
    return status;
}

static lap_status_t try_hosts(attempt_t *attempt)
{
    char hosts[sizeof(attempt->rendezvous->master->hosts)], *rest = NULL;
    memcpy(hosts, attempt->rendezvous->master->hosts, sizeof(hosts));
    for (char *host = strtok_r(hosts, " ", &rest); host && !attempt->reached;
         host = strtok_r(NULL, " ", &rest))
        LAP_TRY(try_host(attempt, host));
    return LAP_OK;
}

static lap_status_t client_meet(lap_tcp_rendezvous_t *rendezvous, lap_deadline_t *deadline)
{
    attempt_t attempt = {.rendezvous = rendezvous, .deadline = deadline};
    char place[PLACE_TEXT], within[LAP_LIMIT_TEXT];
    for (uint64_t pause = 2000000u;; pause = pause < PAUSE_MOST_NS ? pause * 2 : pause) {
        LAP_TRY(try_hosts(&attempt));
        if (attempt.reached)
            break;
        const uint64_t left = lap_deadline_left(deadline);
        if (left == 0)
            return lap_error(
                LAP_ERR_TIMEOUT,
                "rank %d has not found rank 0 at %s %s (%s); expected %s to "
                "name the host of rank 0, and a port of it that is open",
                rendezvous->rank, place_of(rendezvous, place), lap_tcp_within(rendezvous, within),
                attempt.other[0] ? attempt.other : attempt.last, rendezvous->master->source);
        lap_sleep_until_ns(lap_now_ns() + (pause < left ? pause : left));
    }
    deadline->at += LAP_BOOTSTRAP_GRACE_NS;
    return LAP_OK;
}

/* ---- all ---- */

const char *lap_tcp_within(const lap_tcp_rendezvous_t *rendezvous, char text[LAP_LIMIT_TEXT])
{
    return lap_limit_within(&rendezvous->limit, rendezvous->timeout_ns, text);
}

lap_status_t lap_tcp_meet(lap_tcp_rendezvous_t *rendezvous, lap_status_t ready,
                          lap_deadline_t *deadline)
{
    rendezvous->limit = (lap_limit_t){rendezvous->timeout_ns, rendezvous->rank};
    rendezvous->fds = lap_alloc((size_t)rendezvous->size, sizeof(int));
    if (!rendezvous->fds)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to meet %d ranks", rendezvous->size);
    for (int rank = 0; rank < rendezvous->size; rank++)
        rendezvous->fds[rank] = -1;
    if (rendezvous->rank == 0)
        return host_meet(rendezvous, ready, deadline);
    if (ready == LAP_OK)
        return client_meet(rendezvous, deadline);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    const lap_status_t met = client_meet(rendezvous, deadline);
    lap_error_restore(&saved);
    return met == LAP_OK ? lap_tcp_report(rendezvous, ready, deadline) : ready;
}

void lap_tcp_part(lap_tcp_rendezvous_t *rendezvous)
{
    for (int rank = 0; rendezvous->fds && rank < rendezvous->size; rank++)
        if (rendezvous->fds[rank] >= 0)
            close(rendezvous->fds[rank]);
    lap_free(rendezvous->fds);
    rendezvous->fds = NULL;
}
