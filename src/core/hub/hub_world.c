/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks that know where rank 0 is become a world (core/maker.c): they meet there, make the
 * world over those streams, and part; or, on several hosts, go on to talk through rank 0.
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/hub/hub.h"
#include "core/job.h"
#include "core/maker.h"
#include "util/alloc.h"

/* A world being made. */
typedef struct hub_maker {
    lap_maker_t maker;
    lap_hub_t hub;
} hub_maker_t;

static lap_hub_t *hub_of(lap_maker_t *maker)
{
    return &((hub_maker_t *)(void *)maker)->hub;
}

static lap_status_t gather(lap_maker_t *maker, const void *mine, size_t bytes, void *all)
{
    return lap_hub_gather(hub_of(maker), mine, bytes, all, &maker->deadline);
}

static lap_status_t report(lap_maker_t *maker, lap_status_t status)
{
    return lap_hub_report(hub_of(maker), status, &maker->deadline);
}

static lap_status_t look(lap_maker_t *maker)
{
    return lap_hub_check_all(hub_of(maker));
}

static lap_status_t open_wire(lap_maker_t *maker, lap_world_t *world, lap_wire_t **wire_p)
{
    return lap_hub_wire_open(world, hub_of(maker)->fds, wire_p);
}

static const lap_maker_ops_t dir_ops = {.gather = gather, .report = report, .look = look};

static const lap_maker_ops_t tcp_ops = {
    .gather = gather,
    .report = report,
    .look = look,
    .open_wire = open_wire,
};

/* For the rendezvous, at which rank 0 has a connection to each rank, and to who may be one. */
static lap_status_t prepare(const lap_maker_t *maker)
{
    const lap_settings_t *settings = maker->settings;
    if (settings->declines != LAP_OK)
        return lap_error(settings->declines, "%s", settings->why);
    lap_key_t nonce; /* as proofs take: nobody waits for a rank that will have none */
    LAP_TRY(lap_hub_random(&nonce));
    return lap_maker_check_files(maker, maker->rank == 0
                                            ? maker->size + LAP_HUB_PENDING + LAP_SPARE_FILES
                                            : LAP_SPARE_FILES);
}

static lap_status_t run(hub_maker_t *self, lap_world_t **world_p)
{
    lap_maker_t *maker = &self->maker;
    if (maker->size > 1)
        LAP_TRY(lap_hub_join(&self->hub, prepare(maker), &maker->deadline));
    maker->limit = self->hub.limit;
    const lap_status_t status = lap_maker_run(maker, LAP_OK, world_p);
    if (status == LAP_OK && (*world_p)->wire) {
        lap_hub_wire_start((*world_p)->wire);
        lap_free(self->hub.fds);
        self->hub.fds = NULL;
    }
    return status;
}

static lap_status_t create(const lap_environment_t *environment, const lap_maker_ops_t *ops,
                           const lap_settings_t *settings, bool *no_files_p, lap_world_t **world_p)
{
    const bool wired = ops->open_wire != NULL;
    hub_maker_t self = {.maker = {.ops = ops,
                                  .settings = settings,
                                  .deadline = lap_deadline_after(settings->timeout_ns),
                                  .grace_ns = environment->rank ? LAP_LIMIT_GRACE_NS : 0,
                                  .rank = environment->rank,
                                  .size = environment->size,
                                  .host = wired ? environment->host : "",
                                  .socket = -1},
                        .hub = {.kind = wired ? &lap_hub_tcp : &lap_hub_dir,
                                .rank = environment->rank,
                                .size = environment->size,
                                .dir = environment->dir,
                                .master = wired ? &environment->master : NULL,
                                .timeout_ns = settings->timeout_ns}};
    const lap_status_t status = run(&self, world_p);
    *no_files_p = self.hub.no_files;
    lap_hub_leave(&self.hub);
    lap_maker_clear(&self.maker);
    return status;
}

lap_status_t lap_tcp_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p)
{
    bool no_files;
    return create(environment, &tcp_ops, settings, &no_files, world_p);
}

/*
 * A rank without a descriptor to come to the others announces that: they learn of it, at once if
 * they wait already. It takes a moment, and one descriptor: that of the job is closed for it.
 */
static void announce_no_files(const lap_environment_t *environment, int *job_fd)
{
    const int askers = environment->rank == 0 ? environment->size - 1 : 1; /* rank 0 sends it on */
    lap_saved_error_t saved;
    lap_error_save(&saved);
    if (*job_fd >= 0)
        close(*job_fd);
    *job_fd = -1;
    lap_job_announce_no_files(environment->dir, environment->rank, askers, LAP_LIMIT_LINGER_NS);
    lap_error_restore(&saved);
}

lap_status_t lap_dir_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p)
{
    int job_fd = -1;
    bool no_files = false;
    lap_status_t status = LAP_OK;
    if (environment->named) {
        status = lap_job_take(environment->dir, environment->rank, &job_fd);
        no_files = status == LAP_ERR_SYSTEM; /* it opens nothing else */
    }
    if (status == LAP_OK)
        status = create(environment, &dir_ops, settings, &no_files, world_p);
    if (status == LAP_OK) {
        (*world_p)->job_fd = job_fd;
        return LAP_OK;
    }
    if (no_files)
        announce_no_files(environment, &job_fd);
    if (job_fd >= 0)
        close(job_fd);
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
    LAP_TRY(lap_hub_random(&master.key));
    LAP_TRY(lap_tcp_listen(0, &master.listener, &master.port));
    *master_p = master;
    return LAP_OK;
}
