/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds: made from the environment, from a caller's own allgather, or as threads of one process,
 * and ended. How processes meet is in hub/ and mpi/, how they make a world in maker.c, and their
 * collectives are in group.c.
 */
#include "core/world.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/group.h"
#include "core/job.h"
#include "core/limit.h"
#include "core/make.h"
#include "core/options.h"
#include "core/private_dir.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/cores.h"

/* A name from the options, or else from the environment, or else `fallback`. */
static lap_status_t choose_name(const char *what, const char *given, const char *variable,
                                const char *fallback, char *name, size_t bytes)
{
    const char *text = given ? given : getenv(variable);
    text = text && *text ? text : fallback;
    if (strlen(text) >= bytes)
        return lap_error(LAP_ERR_INVALID, "%s is '%s', expected at most %zu characters", what, text,
                         bytes - 1);
    snprintf(name, bytes, "%s", text);
    return LAP_OK;
}

lap_status_t lap_settings_make(const lap_world_options_t *given, lap_settings_t *settings_p)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    lap_settings_t settings = {.declines = LAP_OK};
    if (given)
        LAP_TRY(lap_read_options(&options, sizeof(options), given, "LAP_WORLD_OPTIONS"));
    if (options.timeout_s != 0)
        LAP_TRY(lap_timeout_from_seconds("options->timeout_s", options.timeout_s,
                                         &settings.timeout_ns));
    else
        LAP_TRY(lap_environment_timeout(&settings.timeout_ns));
    LAP_TRY(lap_environment_spin(&settings.spin_ns));
    LAP_TRY(choose_name("device", options.device, "LAP_DEVICE", "cpu", settings.device_name,
                        sizeof(settings.device_name)));
    LAP_TRY(choose_name("transport", options.transport, "LAP_TRANSPORT", "",
                        settings.transport_name, sizeof(settings.transport_name)));
    if (options.cpu_threads < 0)
        return lap_error(LAP_ERR_INVALID, "options->cpu_threads is %d, expected 0 or more",
                         options.cpu_threads);
    settings.cpu_threads = options.cpu_threads;
    *settings_p = settings;
    return LAP_OK;
}

/* The cores that the processes of this host may use: launchers like to give each rank its own. */
static int shared_cores(const lap_world_t *world)
{
    cpu_set_t all, one;
    CPU_ZERO(&all);
    for (int rank = 0; rank < world->size; rank++)
        if (world->peers[rank].pid > 0 &&
            sched_getaffinity(world->peers[rank].pid, sizeof(one), &one) == 0)
            CPU_OR(&all, &all, &one);
    return CPU_COUNT(&all) > 0 ? CPU_COUNT(&all) : lap_cores();
}

void lap_world_set_local(lap_world_t *world, int local_size)
{
    world->local_size = local_size;
    world->cores = shared_cores(world);
    /* Spinning pays only while every rank has a core for itself. */
    world->spin_ns = local_size <= world->cores ? world->spin_most_ns : 0;
    /* A stream that waits while another one multiplies would take that core from it. */
    world->step_spin_ns = 2 * local_size <= world->cores ? world->spin_most_ns : 0;
}

lap_status_t lap_world_alloc(lap_world_kind_t kind, int rank, int size,
                             const lap_settings_t *settings, lap_world_t **world_p)
{
    lap_world_t *world = lap_alloc(1, sizeof(*world));
    if (world)
        world->peers = lap_alloc((size_t)size, sizeof(lap_peer_t));
    if (!world || !world->peers) {
        lap_free(world);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a world of %d ranks", size);
    }
    pthread_mutex_init(&world->calls_lock, NULL);
    world->rank = rank;
    world->size = size;
    world->kind = kind;
    world->job_fd = -1;
    world->timeout_ns = settings->timeout_ns;
    world->spin_most_ns = settings->spin_ns;
    lap_world_set_local(world, size);
    memcpy(world->device_name, settings->device_name, sizeof(world->device_name));
    memcpy(world->transport_name, settings->transport_name, sizeof(world->transport_name));
    world->cpu_threads = settings->cpu_threads;
    for (int peer = 0; peer < size; peer++)
        world->peers[peer] = (lap_peer_t){.heap_fd = -1, .pidfd = -1};
    *world_p = world;
    return LAP_OK;
}

void lap_world_destroy(lap_world_t *world)
{
    lap_saved_error_t saved;
    if (!world)
        return;
    lap_error_save(&saved);
    if (world->group && world->group->keepers > 0) {
        lap_group_end_all(world); /* the last keeper that lets go ends the world */
        lap_error_restore(&saved);
        return;
    }
    if (world->engine && world->engine_close)
        world->engine_close(world->engine);
    if (world->device && world->device_close)
        world->device_close(world->device);
    const bool well = world->wire && world->group && lap_group_all_here(world->group);
    lap_group_release(world->group);
    if (world->wire)
        world->wire->ops->close(world->wire, well);
    lap_thread_heap_release(world->thread_heap);
    for (int rank = 0; rank < world->size; rank++) {
        if (world->peers[rank].heap_fd >= 0)
            close(world->peers[rank].heap_fd);
        if (world->peers[rank].pidfd >= 0)
            close(world->peers[rank].pidfd);
    }
    if (world->job_fd >= 0)
        close(world->job_fd);
    pthread_mutex_destroy(&world->calls_lock);
    lap_free(world->peers);
    lap_free(world);
    lap_error_restore(&saved);
}

static lap_status_t take_page(lap_world_t *world, lap_region_t *control)
{
    lap_status_t status = lap_group_create_world(world, control, &world->group);
    if (status != LAP_OK)
        lap_region_unmap(world, control);
    return status;
}

/*
 * Ranks with a wire between them: over TCP, which carries no data, where they know where rank 0 is,
 * unless MPI is asked for by name; else over MPI.
 */
static lap_status_t wired_world_create(const lap_environment_t *environment,
                                       const lap_settings_t *settings, lap_world_t **world_p)
{
    if (environment->master.hosts[0] && strcmp(settings->transport_name, "mpi") != 0)
        return lap_tcp_world_create(environment, settings, world_p);
    return lap_mpi_world_create(environment, settings, world_p);
}

/* Announces in the directory, to ranks that meet there, that this one does not come. */
static lap_status_t wired_world_announce(const lap_environment_t *environment,
                                         const lap_settings_t *settings, lap_world_t **world_p)
{
    const int announced = environment->dir[0]
                              ? lap_job_announce(environment->dir, environment->rank, LAP_JOB_WIRED)
                              : -1;
    const lap_status_t status = wired_world_create(environment, settings, world_p);
    if (announced >= 0)
        close(announced);
    return status;
}

static bool needs_wire(const lap_environment_t *environment, const char *transport)
{
    return environment->hosts[0] || strcmp(transport, "mpi") == 0 ||
           strcmp(transport, "hosts") == 0;
}

lap_status_t lap_world_create(const lap_world_options_t *options, lap_world_t **world_p)
{
    lap_settings_t settings;
    lap_environment_t environment;
    if (!world_p)
        return lap_error(LAP_ERR_INVALID, "world_p is NULL");
    LAP_TRY(lap_settings_make(options, &settings));
    LAP_TRY(lap_environment_read(&environment));
    if (needs_wire(&environment, settings.transport_name))
        return wired_world_announce(&environment, &settings, world_p);
    return lap_dir_world_create(&environment, &settings, world_p);
}

/* Over MPI the launcher ends the others. */
void lap_world_decline(lap_status_t status)
{
    lap_settings_t settings;
    lap_environment_t environment;
    lap_world_t *world = NULL;
    char before[LAP_ERROR_TEXT], why[LAP_ERROR_TEXT + 32];
    snprintf(before, sizeof(before), "%s", lap_last_error());
    if (lap_settings_make(NULL, &settings) != LAP_OK ||
        lap_environment_read(&environment) != LAP_OK || environment.size < 2)
        return;
    /* The sentence of another rank is prefixed with its number where it is received. */
    snprintf(why, sizeof(why), "%s%s", environment.rank == 0 ? "rank 0: " : "", before);
    settings.declines = status;
    settings.why = why;
    settings.timeout_ns = LAP_LIMIT_LINGER_NS;
    if (!needs_wire(&environment, settings.transport_name))
        (void)lap_dir_world_create(&environment, &settings, &world);
    else if (environment.master.hosts[0])
        (void)lap_tcp_world_create(&environment, &settings, &world);
    lap_world_destroy(world);
}

/* Worlds with a caller's own ranks. */

/* The record of each rank in the caller's allgather. */
typedef struct record {
    int32_t rank, nranks;
    int32_t status; /* of what this rank did before; a failure of one is a failure of all */
    int32_t wired;  /* it asks for a transport that goes between hosts */
    int32_t port;   /* where rank 0 listens, */
    lap_key_t key;  /* for those that have this, */
    char hosts[sizeof(((lap_master_t *)NULL)->hosts)]; /* and its addresses: see lap_master_t */
    char host[sizeof(((lap_environment_t *)NULL)->host)];
    char dir[LAP_DIR_BYTES]; /* of rank 0 */
    char text[LAP_ERROR_TEXT];
} record_t;

/* Every rank sees the same records and comes to the same conclusion. */
static lap_status_t check_records(const record_t *records, int nranks)
{
    for (int rank = 0; rank < nranks; rank++) {
        const record_t *record = &records[rank];
        if (record->rank != rank || record->nranks != nranks)
            return lap_error(LAP_ERR_MISMATCH,
                             "the caller's allgather gave for rank %d the data of rank %d of %d, "
                             "expected rank %d of %d",
                             rank, record->rank, record->nranks, rank, nranks);
        if (record->status != LAP_OK)
            return lap_error((lap_status_t)record->status, "rank %d: %s", rank, record->text);
    }
    return LAP_OK;
}

/* Whether the ranks need a wire, as all of them know then. */
static bool are_wired(const record_t *records, int nranks)
{
    for (int rank = 0; rank < nranks; rank++)
        if (records[rank].wired ||
            strncmp(records[rank].host, records[0].host, sizeof(records->host)) != 0)
            return true;
    return false;
}

/* `status` is what went wrong here before, of which all learn. */
static lap_status_t exchange_records(const lap_bootstrap_t *bootstrap, lap_status_t status,
                                     record_t *mine, record_t *records)
{
    mine->status = status;
    if (status != LAP_OK)
        snprintf(mine->text, sizeof(mine->text), "%s", lap_last_error());
    int error = bootstrap->allgather(bootstrap->context, mine, sizeof(*mine), records);
    if (error != 0)
        return lap_error(LAP_ERR_SYSTEM, "the caller's allgather returned %d on rank %d", error,
                         bootstrap->rank);
    LAP_TRY(check_records(records, bootstrap->nranks));
    records[0].dir[LAP_DIR_BYTES - 1] = records[0].hosts[sizeof(records->hosts) - 1] = '\0';
    return LAP_OK;
}

/* Ranks of several hosts gather once more: where rank 0 listens, and with which key. */
static lap_status_t create_over_tcp(const lap_bootstrap_t *bootstrap, record_t *mine,
                                    record_t *records, const lap_settings_t *settings,
                                    lap_world_t **world_p)
{
    lap_environment_t environment = {.rank = mine->rank, .size = mine->nranks};
    lap_master_t *master = &environment.master;
    lap_status_t status = LAP_OK;
    *master = (lap_master_t){.listener = -1};
    if (mine->rank == 0)
        status = lap_tcp_master_open(master);
    mine->port = master->port;
    mine->key = master->key;
    memcpy(mine->hosts, master->hosts, sizeof(mine->hosts));
    status = exchange_records(bootstrap, status, mine, records);
    if (status == LAP_OK) {
        master->port = records[0].port;
        master->nports = 1;
        master->key = records[0].key;
        master->source = "the caller's allgather";
        memcpy(master->hosts, records[0].hosts, sizeof(master->hosts));
        memcpy(environment.host, mine->host, sizeof(environment.host));
        status = lap_tcp_world_create(&environment, settings, world_p);
    }
    if (master->listener >= 0)
        close(master->listener);
    return status;
}

static lap_status_t create_in_dir(const record_t *mine, const char *dir,
                                  const lap_settings_t *settings, lap_world_t **world_p)
{
    lap_environment_t environment = {.rank = mine->rank, .size = mine->nranks};
    memcpy(environment.dir, dir, sizeof(environment.dir));
    return lap_dir_world_create(&environment, settings, world_p);
}

/*
 * Whatever went wrong here before, as `status` says, and whatever goes wrong before the allgather
 * goes into the record, so that nobody is left waiting.
 */
static lap_status_t create_with_records(const lap_bootstrap_t *bootstrap, lap_status_t status,
                                        const lap_settings_t *settings, record_t *records,
                                        lap_world_t **world_p)
{
    record_t mine = {.rank = bootstrap->rank, .nranks = bootstrap->nranks};
    int made = -1;
    if (status == LAP_OK && mine.rank == 0)
        status = lap_rendezvous_dir_make(mine.dir, &made);
    /* By name; that over MPI is for lap_world_create and <lap/lap_mpi.h>. */
    mine.wired = status == LAP_OK && strcmp(settings->transport_name, "hosts") == 0;
    lap_environment_host(mine.host, sizeof(mine.host));
    status = exchange_records(bootstrap, status, &mine, records);
    if (status == LAP_OK)
        status = are_wired(records, mine.nranks)
                     ? create_over_tcp(bootstrap, &mine, records, settings, world_p)
                     : create_in_dir(&mine, records[0].dir, settings, world_p);
    lap_rendezvous_dir_remove(mine.dir, made);
    return status;
}

/* Several ranks. Without memory for the records this rank calls nothing and the others wait. */
static lap_status_t world_create_with_ranks(const lap_bootstrap_t *bootstrap, lap_status_t status,
                                            const lap_settings_t *settings, lap_world_t **world_p)
{
    record_t *records = lap_alloc((size_t)bootstrap->nranks, sizeof(record_t));
    if (!records)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", bootstrap->nranks);
    lap_world_t *world = NULL;
    status = create_with_records(bootstrap, status, settings, records, &world);
    lap_free(records);
    /*
     * Called on failure too: the caller's barrier may know no time limit, and others may be in it.
     */
    int error = bootstrap->barrier(bootstrap->context);
    if (status == LAP_OK && error != 0) {
        status = lap_error(LAP_ERR_SYSTEM, "the caller's barrier returned %d on rank %d", error,
                           bootstrap->rank);
        lap_world_destroy(world);
    }
    if (status == LAP_OK)
        *world_p = world;
    return status;
}

static lap_status_t check_bootstrap(const lap_bootstrap_t *bootstrap)
{
    if (bootstrap->nranks < 1 || bootstrap->nranks > LAP_RANKS_MAX)
        return lap_error(LAP_ERR_INVALID, "bootstrap->nranks is %d, expected 1 to %d",
                         bootstrap->nranks, LAP_RANKS_MAX);
    if (bootstrap->rank < 0 || bootstrap->rank >= bootstrap->nranks)
        return lap_error(LAP_ERR_INVALID, "bootstrap->rank is %d, expected 0 to %d",
                         bootstrap->rank, bootstrap->nranks - 1);
    if (!bootstrap->allgather || !bootstrap->barrier)
        return lap_error(LAP_ERR_INVALID, "bootstrap->%s is NULL",
                         bootstrap->allgather ? "barrier" : "allgather");
    return LAP_OK;
}

lap_status_t lap_world_create_with(const lap_bootstrap_t *bootstrap,
                                   const lap_world_options_t *options, lap_world_t **world_p)
{
    if (!bootstrap || !world_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL", bootstrap ? "world_p" : "bootstrap");
    lap_bootstrap_t known = LAP_BOOTSTRAP_INIT;
    LAP_TRY(lap_read_options(&known, sizeof(known), bootstrap, "LAP_BOOTSTRAP"));
    LAP_TRY(check_bootstrap(&known));
    lap_settings_t settings;
    lap_status_t status = lap_settings_make(options, &settings);
    if (known.nranks > 1)
        return world_create_with_ranks(&known, status, &settings, world_p);
    LAP_TRY(status);
    return lap_dir_world_create(&(lap_environment_t){.size = 1}, &settings, world_p);
}

/* Worlds of threads. */

/* Rank `rank` of a thread world. Rank 0 makes the control page, the others map it. */
static lap_status_t thread_world_create(int rank, int size, const lap_settings_t *settings,
                                        lap_thread_heap_t *heap, uint64_t control_handle,
                                        lap_world_t **world_p)
{
    lap_region_t control = {0};
    LAP_TRY(lap_world_alloc(LAP_WORLD_THREADS, rank, size, settings, world_p));
    lap_world_t *world = *world_p;
    world->thread_heap = heap;
    if (rank == 0)
        LAP_TRY(lap_region_create(world, lap_control_bytes(size), size, &control));
    else
        LAP_TRY(lap_region_map(world, 0, control_handle, lap_control_bytes(size), &control));
    return take_page(world, &control);
}

/* Fills worlds[0..nranks), or leaves the heap without users. */
static lap_status_t thread_worlds_create(int nranks, const lap_settings_t *settings,
                                         lap_thread_heap_t *heap, lap_world_t **worlds)
{
    lap_status_t status = LAP_OK;
    for (int rank = 0; rank < nranks && status == LAP_OK; rank++)
        status =
            thread_world_create(rank, nranks, settings, heap,
                                rank ? worlds[0]->group->control_region.handle : 0, &worlds[rank]);
    for (int rank = 0; rank < nranks && status != LAP_OK; rank++) {
        /* Each rank gives back its share of the heap, also those that were never made. */
        if (worlds[rank])
            lap_world_destroy(worlds[rank]);
        else
            lap_thread_heap_release(heap);
    }
    return status;
}

lap_status_t lap_world_create_threads(int nranks, const lap_world_options_t *options,
                                      lap_world_t **worlds_p)
{
    lap_settings_t settings;
    if (!worlds_p)
        return lap_error(LAP_ERR_INVALID, "worlds_p is NULL");
    if (nranks < 1 || nranks > LAP_RANKS_MAX)
        return lap_error(LAP_ERR_INVALID, "nranks is %d, expected 1 to %d", nranks, LAP_RANKS_MAX);
    LAP_TRY(lap_settings_make(options, &settings));
    lap_world_t **worlds = lap_alloc((size_t)nranks, sizeof(lap_world_t *));
    if (!worlds)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %d worlds", nranks);
    lap_thread_heap_t *heap = NULL;
    lap_status_t status = lap_thread_heap_create(nranks, &heap);
    if (status == LAP_OK)
        status = thread_worlds_create(nranks, &settings, heap, worlds);
    if (status == LAP_OK)
        memcpy(worlds_p, worlds, (size_t)nranks * sizeof(lap_world_t *));
    lap_free(worlds);
    return status;
}

int lap_world_rank(const lap_world_t *world)
{
    return world ? world->rank : -1;
}

int lap_world_size(const lap_world_t *world)
{
    return world ? world->size : 0;
}

lap_group_t *lap_world_group(lap_world_t *world)
{
    return world ? world->group : NULL;
}
