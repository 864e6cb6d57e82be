/* SPDX-License-Identifier: Apache-2.0 */
/* How worlds are made, for the files that make them: world.c, maker.c, hub/ and mpi/. */
#ifndef LAP_CORE_MAKE_H
#define LAP_CORE_MAKE_H

#include "core/environment.h"
#include "core/world.h"

/* What the options, the environment and the defaults come to. */
typedef struct lap_settings {
    uint64_t timeout_ns;
    uint64_t spin_ns;
    char device_name[sizeof(((lap_world_t *)NULL)->device_name)];
    char transport_name[sizeof(((lap_world_t *)NULL)->transport_name)]; /* "": what fits */
    int cpu_threads;
    /* Why this rank takes no part, which it comes to report, and a failure; LAP_OK: it does. */
    lap_status_t declines;
    const char *why;
} lap_settings_t;

lap_status_t lap_settings_make(const lap_world_options_t *given, lap_settings_t *settings_p);

/*
 * Instead of lap_world_create: this rank cannot take part, for the reason in lap_last_error. It
 * goes where the others of the environment meet, and reports it to those that are there or come in
 * a moment, who fail with that sentence.
 */
void lap_world_decline(lap_status_t status);

/* A world without heap, peers' descriptors and group. lap_world_destroy ends it from here on. */
lap_status_t lap_world_alloc(lap_world_kind_t kind, int rank, int size,
                             const lap_settings_t *settings, lap_world_t **world_p);

/*
 * Tells a world how many of its ranks are on this host. Looks which cores they share, by the
 * processes that are known; or this one's.
 */
void lap_world_set_local(lap_world_t *world, int local_size);

/*
 * A world of the ranks of the environment, over MPI, which is initialised when nobody
 * has done so, and is then finalised with the world. LAP_ERR_UNSUPPORTED in a build without MPI.
 */
lap_status_t lap_mpi_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p);

/*
 * The same without MPI, where ranks meet at rank 0: those of one host, which share memory, in the
 * directory of the environment; those of several, which then talk through rank 0 over TCP, where
 * the environment says it is.
 */
lap_status_t lap_dir_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p);
lap_status_t lap_tcp_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p);

/*
 * Rank 0 listens, for others, to which its caller sends the place: all of *master_p is filled in.
 * The listener is the caller's, who closes it after lap_tcp_world_create.
 */
lap_status_t lap_tcp_master_open(lap_master_t *master_p);

/* What MPI this is, in a few words: "Open MPI v4.1.4". LAP_ERR_UNSUPPORTED: there is none. */
lap_status_t lap_mpi_describe(char *text, size_t bytes);

#endif
