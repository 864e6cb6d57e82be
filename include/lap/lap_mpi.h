/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds over MPI, for programs that use MPI themselves. The only public header that needs mpi.h;
 * installed when the library was built with MPI. lap.h does not include it.
 */
#ifndef LAP_LAP_MPI_H
#define LAP_LAP_MPI_H

#include <mpi.h>

#include <lap/export.h>
#include <lap/status.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/*
 * Makes a world of the ranks of a communicator, on one host or many.
 * Collective over `comm`. The library duplicates `comm`, so that its messages never match one of
 * the caller's. MPI must have been started with MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...): a
 * thread of the library's own calls MPI until the world ends. `options` may be NULL. Writes
 * *world_p on success; the caller destroys it before MPI_Finalize.
 * Buffers are in shared memory (transport "shm") when all ranks are on one host, else in shared
 * memory inside a host and over MPI between hosts ("hosts"), unless the options or LAP_TRANSPORT
 * name another transport.
 * Blocks until every rank has come, at most the timeout. MPI's own search for the ranks of a host
 * has no deadline.
 * Returns LAP_ERR_INVALID (an option that makes no sense; MPI is not initialised, or finalised
 * already), LAP_ERR_UNSUPPORTED (MPI was started without MPI_THREAD_MULTIPLE), LAP_ERR_TIMEOUT,
 * LAP_ERR_PEER_LOST, LAP_ERR_MISMATCH, LAP_ERR_NO_MEMORY, LAP_ERR_SYSTEM. When one rank fails, all
 * do. Exceptions: a rank whose `comm`, `world_p` or MPI makes no sense, or that has no memory for
 * the exchange, returns by itself, and the others wait for it in vain.
 */
LAP_API lap_status_t lap_world_create_mpi(MPI_Comm comm, const lap_world_options_t *options,
                                          lap_world_t **world_p);

LAP_END_DECLS

#endif
