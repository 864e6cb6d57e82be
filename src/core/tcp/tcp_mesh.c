/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between all ranks. Every rank listens before it tells the others where, so that one who
 * connects waits for nobody: each connects to the ranks before it, to all at once, and takes those
 * after it. Both sides say who they are; whoever comes without the key of this world is turned away.
 * Meanwhile all listen to the rendezvous: a rank that cannot connect says so there, and nobody waits for it.
 */
#include "core/tcp/tcp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "core/bootstrap.h"
#include "core/message.h"
#include "util/alloc.h"

#define MAGIC 0x4c61705769726531u
#define STRANGERS 64 /* more than there are ranks; one beyond that takes the place of the eldest */

/* What one who connects says, and is answered. */
typedef struct greeting {
    uint64_t magic;
    lap_key_t key;
    int32_t from, to;
} greeting_t;

/* A connection whose other end has not sent its greeting yet. */
typedef struct stranger {
    int fd;
    size_t got;
    greeting_t greeting;
} stranger_t;

typedef struct mesh {
    const lap_world_t *world;
    const lap_tcp_door_t *door;
    lap_tcp_rendezvous_t *rendezvous;
    int *fds;              /* to each rank, once both have sent a greeting; else -1 */
    stranger_t *calls;     /* to each rank before this one, until then */
    int calling, awaited;  /* ranks before this one, and after it, that are not connected */
    stranger_t *strangers; /* who has connected to this rank */
    int nstrangers, most;  /* of them, and how many there may be */
    bool *ready;           /* of rank 0: who waits there to be gathered */
    struct pollfd *polls;  /* room for the rendezvous, the calls, the listener and all strangers */
} mesh_t;

/* Reads more of a greeting: 1: it is whole; 0: not yet; -1: there will be no more, with an errno. */
static int hear_greeting(stranger_t *stranger)
{
    const ssize_t got = recv(stranger->fd, (char *)&stranger->greeting + stranger->got,
                             sizeof(greeting_t) - stranger->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got == 0)
        errno = ECONNRESET;
    stranger->got += got > 0 ? (size_t)got : 0;
    return got <= 0 ? -1 : stranger->got == sizeof(greeting_t);
}

/* It is the first that is sent over a connection, whose kernel has room for it. */
static bool say_greeting(const mesh_t *mesh, int fd, int to)
{
    const greeting_t greeting = {MAGIC, mesh->door->key, mesh->world->rank, to};
    return send(fd, &greeting, sizeof(greeting), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(greeting);
}

static bool is_of(const mesh_t *mesh, const greeting_t *greeting, int rank)
{
    return greeting->magic == MAGIC &&
           memcmp(&greeting->key, &mesh->door->key, sizeof(greeting->key)) == 0 &&
           greeting->to == mesh->world->rank && greeting->from == rank;
}

static void connected(mesh_t *mesh, int rank, int fd, int *missing)
{
    lap_tcp_prepare(fd, mesh->world->timeout_ns);
    mesh->fds[rank] = fd;
    --*missing;
}

/* ---- the ranks before this one ---- */

static lap_status_t call_failed(const mesh_t *mesh, int rank, lap_status_t status, const char *why)
{
    char name[LAP_TCP_TEXT];
    return lap_error(status,
                     "rank %d cannot reach rank %d at %s (%s): expected hosts whose ranks can "
                     "connect to each other at any port",
                     mesh->world->rank, rank, lap_tcp_name(&mesh->door->addresses[rank], name),
                     why);
}

static lap_status_t call(mesh_t *mesh, int rank)
{
    const lap_status_t status =
        lap_tcp_begin_connect(&mesh->door->addresses[rank], &mesh->calls[rank].fd);
    return status == LAP_ERR_PEER_LOST ? call_failed(mesh, rank, status, strerror(errno)) : status;
}

/* Something has become of a call: the other side has taken it, or has answered, or has not. */
static lap_status_t go_on(mesh_t *mesh, int rank, struct pollfd *poll)
{
    stranger_t *to = &mesh->calls[rank];
    if (poll->events == POLLOUT) {
        if (lap_tcp_end_connect(to->fd) != LAP_OK || !say_greeting(mesh, to->fd, rank))
            return call_failed(mesh, rank, LAP_ERR_PEER_LOST, strerror(errno));
        poll->events = POLLIN;
        return LAP_OK;
    }
    const int heard = hear_greeting(to);
    if (heard < 0)
        return call_failed(mesh, rank, LAP_ERR_PEER_LOST, strerror(errno));
    if (heard > 0 && !is_of(mesh, &to->greeting, rank))
        return call_failed(mesh, rank, LAP_ERR_PEER_LOST, "another process listens there");
    if (heard > 0) {
        connected(mesh, rank, to->fd, &mesh->calling);
        to->fd = -1;
    }
    return LAP_OK;
}

/* ---- the ranks after it ---- */

static stranger_t forget(mesh_t *mesh, int index)
{
    const stranger_t stranger = mesh->strangers[index];
    mesh->nstrangers--;
    memmove(&mesh->strangers[index], &mesh->strangers[index + 1],
            (size_t)(mesh->nstrangers - index) * sizeof(stranger_t));
    return stranger;
}

static void hear(mesh_t *mesh, int index)
{
    const int heard = hear_greeting(&mesh->strangers[index]);
    if (heard == 0)
        return;
    const stranger_t whole = forget(mesh, index);
    const int rank = whole.greeting.from;
    if (heard > 0 && rank > mesh->world->rank && rank < mesh->world->size && mesh->fds[rank] < 0 &&
        is_of(mesh, &whole.greeting, rank) && say_greeting(mesh, whole.fd, rank))
        connected(mesh, rank, whole.fd, &mesh->awaited);
    else
        close(whole.fd);
}

static lap_status_t let_in(mesh_t *mesh)
{
    lap_tcp_address_t from;
    int fd = -1;
    LAP_TRY(lap_tcp_accept(mesh->door->listener, mesh->world->rank, mesh->world->size, &fd, &from));
    if (fd < 0)
        return LAP_OK;
    if (mesh->nstrangers == mesh->most)
        close(forget(mesh, 0).fd);
    mesh->strangers[mesh->nstrangers++] = (stranger_t){.fd = fd};
    return LAP_OK;
}

/* ---- all ---- */

/* The time is up: for a rank that does not answer this one, or has not come to it. */
static lap_status_t late(const mesh_t *mesh)
{
    const lap_world_t *world = mesh->world;
    char within[LAP_LIMIT_TEXT];
    int rank = 0;
    while (rank == world->rank || mesh->fds[rank] >= 0)
        rank++;
    if (rank < world->rank)
        return call_failed(mesh, rank, LAP_ERR_TIMEOUT, strerror(ETIMEDOUT));
    return lap_error(LAP_ERR_TIMEOUT,
                     "rank %d has not connected to rank %d %s: expected hosts whose ranks "
                     "can connect to each other at any port",
                     rank, world->rank, lap_limit_in_time(&mesh->rendezvous->limit, within));
}

/* Waits for events and handles them, those of the rendezvous first. */
static lap_status_t step(mesh_t *mesh, lap_deadline_t *deadline)
{
    const int size = mesh->world->size, heard = mesh->nstrangers;
    struct pollfd *rendezvous = mesh->polls, *calls = &rendezvous[size],
                  *strangers = &calls[size + 1];
    for (int rank = 0; rank < size; rank++) {
        const short events = mesh->ready[rank] ? POLLRDHUP : POLLIN | POLLRDHUP;
        rendezvous[rank] = (struct pollfd){.fd = mesh->rendezvous->fds[rank], .events = events};
        calls[rank].fd = mesh->calls[rank].fd;
    }
    calls[size] = (struct pollfd){.fd = mesh->door->listener, .events = POLLIN};
    for (int i = 0; i < heard; i++)
        strangers[i] = (struct pollfd){.fd = mesh->strangers[i].fd, .events = POLLIN};
    const lap_status_t status = lap_wait_polls(rendezvous, 2 * size + 1 + heard, deadline);
    if (status != LAP_OK)
        return status == LAP_ERR_TIMEOUT ? late(mesh) : status;
    for (int rank = 0; rank < size; rank++)
        if (rendezvous[rank].revents)
            LAP_TRY(
                lap_tcp_hear(mesh->rendezvous, rank, rendezvous[rank].revents, &mesh->ready[rank]));
    for (int rank = 0; rank < size; rank++)
        if (calls[rank].revents)
            LAP_TRY(go_on(mesh, rank, &calls[rank]));
    for (int i = heard - 1; i >= 0; i--)
        if (strangers[i].revents)
            hear(mesh, i);
    return calls[size].revents ? let_in(mesh) : LAP_OK;
}

/* Until all ranks before this one, or after it, are connected; at most for so long. */
static lap_status_t await(mesh_t *mesh, const int *missing, uint64_t ns, lap_deadline_t *deadline)
{
    lap_status_t status = LAP_OK;
    lap_deadline_part_t part = lap_deadline_begin_part(deadline, ns);
    while (*missing > 0 && status == LAP_OK)
        status = step(mesh, &part.until);
    lap_deadline_end_part(deadline, &part);
    return status;
}

/*
 * Who cannot connect gives up before those who wait for it, and these before rank 0 does, which waits
 * for all: the first to give up knows the cause.
 */
static lap_status_t connect_all(mesh_t *mesh, lap_deadline_t *deadline)
{
    const uint64_t grace = mesh->world->rank == 0 ? 0 : LAP_BOOTSTRAP_GRACE_NS;
    const uint64_t left = lap_deadline_left(deadline), whole = left > grace ? left - grace : 0;
    for (int rank = 0; rank < mesh->world->rank; rank++)
        LAP_TRY(call(mesh, rank));
    LAP_TRY(await(mesh, &mesh->calling, whole - whole / 4, deadline));
    const uint64_t rest = lap_deadline_left(deadline), margin = grace + whole / 8;
    return await(mesh, &mesh->awaited, rest > margin ? rest - margin : 0, deadline);
}

static bool mesh_alloc(mesh_t *mesh)
{
    const size_t size = (size_t)mesh->world->size, most = size + STRANGERS;
    mesh->most = (int)most;
    mesh->fds = lap_alloc(size, sizeof(int));
    mesh->calls = lap_alloc(size, sizeof(stranger_t));
    mesh->strangers = lap_alloc(most, sizeof(stranger_t));
    mesh->ready = lap_alloc(size, sizeof(bool));
    mesh->polls = lap_alloc(2 * size + 1 + most, sizeof(struct pollfd));
    if (!mesh->fds || !mesh->calls || !mesh->strangers || !mesh->ready || !mesh->polls)
        return false;
    for (size_t rank = 0; rank < size; rank++) {
        mesh->fds[rank] = mesh->calls[rank].fd = -1;
        mesh->polls[size + rank].events = POLLOUT; /* of a call that nobody has taken yet */
    }
    return true;
}

static void mesh_free(mesh_t *mesh, bool made)
{
    for (int rank = 0; made && rank < mesh->world->size; rank++)
        if (mesh->calls[rank].fd >= 0)
            close(mesh->calls[rank].fd);
    for (int i = 0; i < mesh->nstrangers; i++)
        close(mesh->strangers[i].fd);
    lap_free(mesh->polls);
    lap_free(mesh->ready);
    lap_free(mesh->strangers);
    lap_free(mesh->calls);
}

lap_status_t lap_tcp_mesh(const lap_world_t *world, const lap_tcp_door_t *door,
                          lap_tcp_rendezvous_t *rendezvous, lap_deadline_t *deadline, int **fds_p)
{
    mesh_t mesh = {.world = world,
                   .door = door,
                   .rendezvous = rendezvous,
                   .calling = world->rank,
                   .awaited = world->size - 1 - world->rank};
    const bool made = mesh_alloc(&mesh);
    const lap_status_t status =
        made ? connect_all(&mesh, deadline)
             : lap_error(LAP_ERR_NO_MEMORY, "no memory to connect %d ranks", world->size);
    mesh_free(&mesh, made);
    if (status == LAP_OK) {
        *fds_p = mesh.fds;
        return LAP_OK;
    }
    for (int rank = 0; made && rank < world->size; rank++)
        if (mesh.fds[rank] >= 0)
            close(mesh.fds[rank]);
    lap_free(mesh.fds);
    return status;
}
