/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks that know where rank 0 is become a world (core/wired.c): they meet at rank 0, tell each
 * other their hosts, and go on to talk through it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/bootstrap.h"
#include "core/tcp/tcp.h"
#include "core/wired.h"
#include "util/alloc.h"

#define SPARE_FILES 8 /* of the wire and of the world itself */

/* What each rank tells the others first. */
typedef struct place {
    char host[sizeof(((lap_environment_t *)NULL)->host)];
    uint64_t left_ns;  /* how long it can still wait: nobody waits longer than rank 0 does, */
    lap_limit_t limit; /* by which timeout */
} place_t;

/* A world being made. */
typedef struct maker {
    lap_wired_t wired;
    lap_tcp_rendezvous_t rendezvous;
} maker_t;

static lap_status_t gather(lap_wired_t *wired, const void *mine, size_t bytes, void *all)
{
    maker_t *maker = (maker_t *)wired;
    return lap_tcp_gather(&maker->rendezvous, mine, bytes, all, &wired->deadline);
}

static lap_status_t report(lap_wired_t *wired, lap_status_t status)
{
    maker_t *maker = (maker_t *)wired;
    return lap_tcp_report(&maker->rendezvous, status, &wired->deadline);
}

static lap_status_t look(lap_wired_t *wired)
{
    maker_t *maker = (maker_t *)wired;
    return lap_tcp_look(&maker->rendezvous);
}

static lap_status_t open_wire(lap_wired_t *wired, lap_world_t *world, lap_wire_t **wire_p)
{
    const maker_t *maker = (const maker_t *)wired;
    return lap_tcp_wire_open(world, maker->rendezvous.fds, wire_p);
}

static const lap_wired_ops_t wired_ops = {
    .gather = gather,
    .report = report,
    .look = look,
    .open_wire = open_wire,
};

static void find_locals(lap_wired_t *wired, const place_t *places)
{
    for (int rank = 0; rank < wired->size; rank++) {
        if (memcmp(places[rank].host, places[wired->rank].host, sizeof(places->host)) != 0)
            continue;
        if (rank == wired->rank)
            wired->local_rank = wired->local_size;
        wired->locals[wired->local_size++] = rank;
    }
}

static lap_status_t find_ranks(maker_t *maker, const char *host)
{
    lap_wired_t *wired = &maker->wired;
    const size_t size = (size_t)wired->size;
    place_t mine = {.left_ns = lap_deadline_left(&wired->deadline),
                    .limit = maker->rendezvous.limit};
    snprintf(mine.host, sizeof(mine.host), "%s", host);
    place_t *places = lap_alloc(size, sizeof(*places));
    wired->locals = lap_alloc(size, sizeof(int));
    lap_status_t status = LAP_OK;
    if (!places || !wired->locals)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", wired->size);
    else
        status = gather(wired, &mine, sizeof(mine), places);
    if (status == LAP_OK && places) {
        find_locals(wired, places);
        if (wired->rank != 0 && places[0].left_ns < UINT64_MAX - LAP_BOOTSTRAP_GRACE_NS)
            lap_deadline_shorten(&wired->deadline, places[0].left_ns + LAP_BOOTSTRAP_GRACE_NS);
        wired->limit = maker->rendezvous.limit = places[0].limit;
    }
    lap_free(places);
    return status;
}

/*
 * Whether this process can open so many more files. It tries: a rank that finds that out while it
 * waits for others would leave them waiting for it.
 */
static lap_status_t check_files(const maker_t *maker, int expected)
{
    int *fds = lap_alloc((size_t)expected, sizeof(int)), count = 0, error = 0;
    if (!fds)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %d files", expected);
    while (count < expected && error == 0) {
        fds[count] = eventfd(0, EFD_CLOEXEC);
        error = fds[count] < 0 ? errno : 0;
        count += error == 0;
    }
    for (int i = 0; i < count; i++)
        close(fds[i]);
    lap_free(fds);
    errno = error;
    return error == 0
               ? LAP_OK
               : lap_error_errno("rank %d can open %d more files, expected %d for a world of "
                                 "%d ranks over TCP",
                                 maker->wired.rank, count, expected, maker->wired.size);
}

/* For the rendezvous, at which rank 0 has a connection to each rank, and to who may be one. */
static lap_status_t prepare(maker_t *maker)
{
    const lap_settings_t *settings = maker->wired.settings;
    if (settings->declines != LAP_OK)
        return lap_error(settings->declines, "%s", settings->why);
    lap_key_t nonce; /* as proofs take: nobody waits for a rank that will have none */
    LAP_TRY(lap_tcp_random(&nonce));
    return check_files(maker, maker->wired.rank == 0
                                  ? maker->wired.size + LAP_TCP_STRANGERS + SPARE_FILES
                                  : SPARE_FILES);
}

static lap_status_t make(maker_t *maker, const lap_environment_t *environment,
                         lap_world_t **world_p)
{
    LAP_TRY(lap_tcp_meet(&maker->rendezvous, prepare(maker), &maker->wired.deadline));
    LAP_TRY(find_ranks(maker, environment->host));
    /* A heap, a pidfd and a socket of each rank of the host. */
    const int files = 3 * maker->wired.local_size + SPARE_FILES;
    LAP_TRY(lap_wired_make(&maker->wired, check_files(maker, files), world_p));
    lap_tcp_wire_start((*world_p)->wire);
    lap_free(maker->rendezvous.fds);
    maker->rendezvous.fds = NULL;
    return LAP_OK;
}

lap_status_t lap_tcp_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p)
{
    maker_t maker = {.wired = {.ops = &wired_ops,
                               .settings = settings,
                               .deadline = lap_deadline_after(settings->timeout_ns),
                               .grace_ns = environment->rank ? LAP_BOOTSTRAP_GRACE_NS : 0,
                               .rank = environment->rank,
                               .size = environment->size},
                     .rendezvous = {.rank = environment->rank,
                                    .size = environment->size,
                                    .master = &environment->master,
                                    .timeout_ns = settings->timeout_ns}};
    const lap_status_t status = make(&maker, environment, world_p);
    lap_tcp_part(&maker.rendezvous);
    lap_wired_clear(&maker.wired);
    return status;
}

/* ---- without an environment ---- */

/* Adds an address to names with blanks between, if it leads here from other hosts, and fits. */
static void add_host(const struct ifaddrs *at, int family, char *hosts, size_t bytes)
{
    const size_t used = strlen(hosts);
    char name[INET6_ADDRSTRLEN] = "";
    if (!at->ifa_addr || at->ifa_addr->sa_family != family || !(at->ifa_flags & IFF_UP) ||
        (at->ifa_flags & IFF_LOOPBACK))
        return;
    const lap_tcp_address_t *address = (const lap_tcp_address_t *)(const void *)at->ifa_addr;
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr))
        return; /* it leads nowhere without the number of an interface */
    const void *number = family == AF_INET6 ? (const void *)&address->v6.sin6_addr
                                            : (const void *)&address->v4.sin_addr;
    if (inet_ntop(family, number, name, sizeof(name)) && used + 1 + strlen(name) < bytes)
        snprintf(hosts + used, bytes - used, "%s%s", used ? " " : "", name);
}

lap_status_t lap_tcp_master_open(lap_master_t *master_p)
{
    lap_master_t master = {.nports = 1, .listener = -1};
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return lap_error_errno("looking for the addresses of this host");
    for (int i = 0; i < 2; i++)
        for (const struct ifaddrs *at = all; at; at = at->ifa_next)
            add_host(at, i == 0 ? AF_INET : AF_INET6, master.hosts, sizeof(master.hosts));
    freeifaddrs(all);
    if (!master.hosts[0]) /* there is no network: all ranks are here */
        snprintf(master.hosts, sizeof(master.hosts), "127.0.0.1");
    LAP_TRY(lap_tcp_random(&master.key));
    LAP_TRY(lap_tcp_listen(0, &master.listener, &master.port));
    *master_p = master;
    return LAP_OK;
}
