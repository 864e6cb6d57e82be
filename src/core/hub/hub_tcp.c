/* SPDX-License-Identifier: Apache-2.0 */
/* Streams over TCP, for ranks that know the addresses of rank 0 and have the key of their job. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/hub/hub.h"
#include "util/clock.h"

#define CONNECT_NS 3000000000u /* for one attempt: it may be the wrong address of several */

static const char *tcp_place(const lap_hub_t *hub, char text[LAP_HUB_PLACE_TEXT])
{
    const lap_master_t *master = hub->master;
    if (master->nports > 1)
        snprintf(text, LAP_HUB_PLACE_TEXT, "%s, ports %d to %d", master->hosts, master->port,
                 master->port + master->nports - 1);
    else if (strchr(master->hosts, ' '))
        snprintf(text, LAP_HUB_PLACE_TEXT, "port %d of %s", master->port, master->hosts);
    else
        snprintf(text, LAP_HUB_PLACE_TEXT, strchr(master->hosts, ':') ? "[%s]:%d" : "%s:%d",
                 master->hosts, master->port);
    return text;
}

/* ---- rank 0 ---- */

static lap_status_t tcp_listen(lap_hub_t *hub, lap_hub_listener_t *listener)
{
    const lap_master_t *master = hub->master;
    char place[LAP_HUB_PLACE_TEXT];
    if (master->listener >= 0) {
        listener->fd = master->listener;
        listener->port = master->port;
        return LAP_OK;
    }
    for (int i = 0; i < master->nports; i++) {
        const lap_status_t status =
            lap_tcp_listen(master->port + i, &listener->fd, &listener->port);
        if (status == LAP_OK || errno != EADDRINUSE)
            return status;
    }
    return lap_error(LAP_ERR_SYSTEM,
                     "rank 0 cannot listen at %s: another process of this host does; expected a "
                     "port of its own for each job, such as LAP_MASTER=host:port gives",
                     tcp_place(hub, place));
}

static void tcp_close(lap_hub_t *hub, lap_hub_listener_t *listener)
{
    if (listener->fd >= 0 && listener->fd != hub->master->listener)
        close(listener->fd);
}

static lap_status_t tcp_accept(lap_hub_t *hub, const lap_hub_listener_t *listener, int *fd_p,
                               int *pid_p, char from[LAP_STREAM_TEXT])
{
    lap_tcp_address_t address;
    LAP_TRY(lap_tcp_accept(listener->fd, 0, hub->size, fd_p, &address));
    *pid_p = 0;
    lap_tcp_name(&address, from);
    if (*fd_p >= 0)
        lap_tcp_prepare(*fd_p, hub->timeout_ns);
    return LAP_OK;
}

/* ---- the others ---- */

static lap_status_t try_address(lap_hub_attempt_t *attempt, const lap_tcp_address_t *address)
{
    char name[LAP_STREAM_TEXT];
    int fd = -1;
    lap_tcp_name(address, name);
    lap_deadline_part_t part = lap_deadline_begin_part(attempt->deadline, CONNECT_NS);
    lap_status_t status = lap_tcp_connect(address, &part.until, &fd);
    lap_deadline_end_part(attempt->deadline, &part);
    if (status == LAP_ERR_PEER_LOST || status == LAP_ERR_TIMEOUT) {
        snprintf(attempt->last, sizeof(attempt->last), "%s: %s", name, strerror(errno));
        return LAP_OK;
    }
    LAP_TRY(status);
    lap_tcp_prepare(fd, attempt->hub->timeout_ns);
    status = lap_hub_greet(attempt, fd, lap_tcp_port(address), name);
    const bool elsewhere = status == LAP_ERR_PEER_LOST || status == LAP_ERR_TIMEOUT;
    return elsewhere && !attempt->reached ? LAP_OK : status;
}

/* All ports at all addresses of one name. */
static lap_status_t try_host(lap_hub_attempt_t *attempt, const char *host)
{
    const lap_master_t *master = attempt->hub->master;
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

static lap_status_t tcp_connect(lap_hub_attempt_t *attempt)
{
    char hosts[sizeof(attempt->hub->master->hosts)], *rest = NULL;
    memcpy(hosts, attempt->hub->master->hosts, sizeof(hosts));
    for (char *host = strtok_r(hosts, " ", &rest); host && !attempt->reached;
         host = strtok_r(NULL, " ", &rest))
        LAP_TRY(try_host(attempt, host));
    return LAP_OK;
}

static lap_status_t tcp_absent(const lap_hub_attempt_t *attempt, const char *within)
{
    char place[LAP_HUB_PLACE_TEXT];
    return lap_error(LAP_ERR_TIMEOUT,
                     "rank %d has not found rank 0 at %s %s (%s); expected %s to "
                     "name the host of rank 0, and a port of it that is open",
                     attempt->hub->rank, tcp_place(attempt->hub, place), within,
                     attempt->other[0] ? attempt->other : attempt->last,
                     attempt->hub->master->source);
}

/* Between hosts only the timeout finds a rank that does not come. */
static lap_status_t tcp_look(const lap_hub_t *hub, int rank)
{
    (void)hub;
    (void)rank;
    return LAP_OK;
}

const lap_hub_kind_t lap_hub_tcp = {
    .pause_most_ns = 100000000u,
    .place = tcp_place,
    .listen = tcp_listen,
    .close = tcp_close,
    .accept = tcp_accept,
    .connect = tcp_connect,
    .absent = tcp_absent,
    .look = tcp_look,
};
