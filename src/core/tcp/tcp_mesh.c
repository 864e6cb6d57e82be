/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between all ranks. Every rank listens before it tells the others where, so that one who
 * connects waits for nobody: each connects to the ranks before it and takes those after it. Whoever
 * comes without the key of this world is turned away.
 */
#include "core/tcp/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/message.h"
#include "util/alloc.h"

#define MAGIC 0x4c61705769726531u
#define STRANGERS 64 /* more than there are ranks; one beyond that takes the place of the eldest */

/* What one who connects says. */
typedef struct greeting {
    uint64_t magic;
    lap_key_t key;
    int32_t from, to;
} greeting_t;

typedef struct stranger {
    int fd;
    size_t got;
    greeting_t greeting;
} stranger_t;

typedef struct mesh {
    const lap_world_t *world;
    const lap_tcp_door_t *door;
    lap_deadline_t *deadline;
    int *fds;
    int missing;           /* ranks after this one that have not come */
    stranger_t *strangers; /* who has connected and not yet said who it is */
    int nstrangers, most;  /* of them, and how many there may be */
    struct pollfd *polls;  /* room for the listener and all strangers */
} mesh_t;

static lap_status_t connect_to(mesh_t *mesh, int rank)
{
    const lap_world_t *world = mesh->world;
    const greeting_t greeting = {MAGIC, mesh->door->key, world->rank, rank};
    char name[LAP_TCP_TEXT];
    lap_status_t status =
        lap_tcp_connect(&mesh->door->addresses[rank], mesh->deadline, &mesh->fds[rank]);
    if (status == LAP_OK) {
        lap_tcp_prepare(mesh->fds[rank], world->timeout_ns);
        status = lap_tcp_write(mesh->fds[rank], &greeting, sizeof(greeting), mesh->deadline);
    }
    if (status != LAP_ERR_PEER_LOST && status != LAP_ERR_TIMEOUT)
        return status;
    return lap_error(status,
                     "rank %d cannot reach rank %d at %s (%s): expected hosts whose ranks can "
                     "connect to each other at any port",
                     world->rank, rank, lap_tcp_name(&mesh->door->addresses[rank], name),
                     strerror(errno));
}

static stranger_t forget(mesh_t *mesh, int index)
{
    const stranger_t stranger = mesh->strangers[index];
    mesh->nstrangers--;
    memmove(&mesh->strangers[index], &mesh->strangers[index + 1],
            (size_t)(mesh->nstrangers - index) * sizeof(stranger_t));
    return stranger;
}

/* Whether a greeting is that of a rank that is still to come. */
static bool is_awaited(const mesh_t *mesh, const greeting_t *greeting)
{
    return greeting->magic == MAGIC &&
           memcmp(&greeting->key, &mesh->door->key, sizeof(greeting->key)) == 0 &&
           greeting->to == mesh->world->rank && greeting->from > mesh->world->rank &&
           greeting->from < mesh->world->size && mesh->fds[greeting->from] < 0;
}

/* Reads what a stranger has said so far. */
static void hear(mesh_t *mesh, int index)
{
    stranger_t *stranger = &mesh->strangers[index];
    const ssize_t got = recv(stranger->fd, (char *)&stranger->greeting + stranger->got,
                             sizeof(greeting_t) - stranger->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    stranger->got += got > 0 ? (size_t)got : 0;
    if (got > 0 && stranger->got < sizeof(greeting_t))
        return;
    const stranger_t whole = forget(mesh, index);
    if (got <= 0 || !is_awaited(mesh, &whole.greeting)) {
        close(whole.fd);
        return;
    }
    lap_tcp_prepare(whole.fd, mesh->world->timeout_ns);
    mesh->fds[whole.greeting.from] = whole.fd;
    mesh->missing--;
}

static lap_status_t let_in(mesh_t *mesh)
{
    lap_tcp_address_t from;
    const int fd = lap_tcp_accept(mesh->door->listener, &from);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        return lap_error_errno("rank %d has no descriptors left for %d ranks; expected a larger "
                               "`ulimit -n`",
                               mesh->world->rank, mesh->world->size);
    if (fd < 0)
        return LAP_OK;
    if (mesh->nstrangers == mesh->most)
        close(forget(mesh, 0).fd);
    mesh->strangers[mesh->nstrangers++] = (stranger_t){.fd = fd};
    return LAP_OK;
}

static lap_status_t take_others(mesh_t *mesh)
{
    const lap_world_t *world = mesh->world;
    struct pollfd *polls = mesh->polls;
    while (mesh->missing > 0) {
        const int heard = mesh->nstrangers;
        polls[0] = (struct pollfd){.fd = mesh->door->listener, .events = POLLIN};
        for (int i = 0; i < heard; i++)
            polls[1 + i] = (struct pollfd){.fd = mesh->strangers[i].fd, .events = POLLIN};
        const lap_status_t status = lap_wait_polls(polls, 1 + heard, mesh->deadline);
        for (int rank = world->rank + 1; status == LAP_ERR_TIMEOUT && rank < world->size; rank++)
            if (mesh->fds[rank] < 0)
                return lap_error(status,
                                 "rank %d has not connected to rank %d within %g s: expected hosts "
                                 "whose ranks can connect to each other at any port",
                                 rank, world->rank, (double)world->timeout_ns * 1e-9);
        LAP_TRY(status);
        for (int i = heard - 1; i >= 0; i--)
            if (polls[1 + i].revents)
                hear(mesh, i);
        if (polls[0].revents)
            LAP_TRY(let_in(mesh));
    }
    return LAP_OK;
}

static lap_status_t connect_all(mesh_t *mesh)
{
    for (int rank = 0; rank < mesh->world->rank; rank++)
        LAP_TRY(connect_to(mesh, rank));
    return take_others(mesh);
}

lap_status_t lap_tcp_mesh(const lap_world_t *world, const lap_tcp_door_t *door,
                          lap_deadline_t *deadline, int **fds_p)
{
    const size_t size = (size_t)world->size, most = size + STRANGERS;
    mesh_t mesh = {.world = world,
                   .door = door,
                   .deadline = deadline,
                   .fds = lap_alloc(size, sizeof(int)),
                   .missing = world->size - 1 - world->rank,
                   .strangers = lap_alloc(most, sizeof(stranger_t)),
                   .most = (int)most,
                   .polls = lap_alloc(1 + most, sizeof(struct pollfd))};
    lap_status_t status = LAP_OK;
    if (!mesh.fds || !mesh.strangers || !mesh.polls)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to connect %d ranks", world->size);
    for (int rank = 0; mesh.fds && rank < world->size; rank++)
        mesh.fds[rank] = -1;
    if (status == LAP_OK)
        status = connect_all(&mesh);
    for (int i = 0; i < mesh.nstrangers; i++)
        close(mesh.strangers[i].fd);
    lap_free(mesh.polls);
    lap_free(mesh.strangers);
    if (status == LAP_OK) {
        *fds_p = mesh.fds;
        return LAP_OK;
    }
    for (int rank = 0; mesh.fds && rank < world->size; rank++)
        if (mesh.fds[rank] >= 0)
            close(mesh.fds[rank]);
    lap_free(mesh.fds);
    return status;
}
