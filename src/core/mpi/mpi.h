/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share. */
#ifndef LAP_CORE_MPI_MPI_H
#define LAP_CORE_MPI_MPI_H

#include "core/mpi/mpi_load.h"
#include "core/wire.h"
#include "core/world.h"

/* Turns what an MPI call returned into a status, with MPI's own words. `what` was being done. */
lap_status_t lap_mpi_status(int code, const char *what);

/*
 * A wire over `comm`, whose ranks are those of the world; on success it takes the communicator
 * over. `owns_mpi`: MPI is finalised with the wire. Needs the own heap in the world.
 */
lap_status_t lap_mpi_wire_open(lap_world_t *world, MPI_Comm comm, bool owns_mpi,
                               lap_wire_t **wire_p);

#endif
