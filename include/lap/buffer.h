/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric buffers: memory of the same size on every rank of a group, into which every rank can
 * put, with signal words.
 */
#ifndef LAP_BUFFER_H
#define LAP_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include <lap/export.h>
#include <lap/status.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/*
 * A symmetric buffer. Operators made on it reserve its first bytes and its first signals, as many
 * as lap_op_buffer_size says: lap_buffer_put, _raise and _wait refuse those signals.
 */
typedef struct lap_buffer lap_buffer_t;

/* An emulated link: a transfer's signal comes when a link of this speed would have delivered it. */
typedef struct lap_link {
    double bytes_per_s; /* out of each rank, one transfer at a time; 0: no limit */
    double latency_s;   /* added to each signal */
} lap_link_t;

/* Options of lap_buffer_create. */
typedef struct lap_buffer_options {
    size_t size; /* sizeof(lap_buffer_options_t), set by LAP_BUFFER_OPTIONS_INIT */
    /*
     * "shm" (processes of a host), "self" (threads), "mpi" or "hosts" (MPI between hosts, shm
     * inside); NULL: that of the world, or else what fits.
     */
    const char *transport;
    lap_link_t link; /* both 0: not emulated */
} lap_buffer_options_t;

/* The options that are meant by NULL. */
#define LAP_BUFFER_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(lap_buffer_options_t), NULL,                                                        \
        {                                                                                          \
            0.0, 0.0                                                                               \
        }                                                                                          \
    }

/*
 * Makes a symmetric buffer of `bytes` bytes and `nsignals` signal words on every rank of the group,
 * all zero.
 * Collective; every rank gives the same sizes. `options` may be NULL. Writes *buffer_p on success;
 * the caller destroys it before the group. Blocks until every rank has come.
 * Returns LAP_ERR_INVALID, LAP_ERR_MISMATCH (naming what differs, two ranks and both values),
 * LAP_ERR_NO_MEMORY (with what was asked and what was there), LAP_ERR_UNSUPPORTED,
 * LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT. When one rank fails, all do.
 */
LAP_API lap_status_t lap_buffer_create(lap_group_t *group, size_t bytes, size_t nsignals,
                                       const lap_buffer_options_t *options,
                                       lap_buffer_t **buffer_p);

/*
 * Gives up this rank's part in a buffer. Local, never blocks, NULL is fine.
 * Peers that still use this rank's memory may do so: the last one out frees it. So do operators
 * that were made on it here.
 */
LAP_API void lap_buffer_destroy(lap_buffer_t *buffer);

/* Sizes as given at creation, and the name of the transport. Local. */
LAP_API size_t lap_buffer_bytes(const lap_buffer_t *buffer);
LAP_API const char *lap_buffer_transport(const lap_buffer_t *buffer);

/*
 * The memory of `rank` of the group as this process sees it.
 * Local. NULL when the transport cannot map it or there is no such rank. Valid until the buffer is
 * destroyed.
 */
LAP_API void *lap_buffer_data(lap_buffer_t *buffer, int rank);

/*
 * Copies `bytes` bytes from `source` into the memory of `rank` at `offset`, then adds one to its
 * word `signal`.
 * Local; blocks only while it copies, or over MPI until most of it is in flight. `source`
 * may be reused on return. Puts and raises of one rank to another arrive in the order of the calls.
 * Returns LAP_ERR_INVALID when the range or the signal is outside the buffer, or its group or world was destroyed, as
 * _raise and _wait do; over MPI also
 * LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT and LAP_ERR_NO_MEMORY, over an emulated link the last of them.
 */
LAP_API lap_status_t lap_buffer_put(lap_buffer_t *buffer, int rank, size_t offset,
                                    const void *source, size_t bytes, size_t signal);

/*
 * Adds one to the word `signal` of `rank`. Earlier writes of this thread are visible to a rank that
 * sees the new value.
 * Local, does not block. Returns LAP_ERR_INVALID; over MPI or an emulated link also
 * LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_buffer_raise(lap_buffer_t *buffer, int rank, size_t signal);

/*
 * Waits until this rank's word `signal` has been raised `count` more times than earlier waits on it
 * have consumed.
 * Local. `from` is the rank expected to raise it, for the error's sentence. Blocks: first spins,
 * then sleeps.
 * Returns LAP_ERR_PEER_LOST or LAP_ERR_TIMEOUT naming rank and signal, which break the group;
 * LAP_ERR_INVALID.
 */
LAP_API lap_status_t lap_buffer_wait(lap_buffer_t *buffer, int from, size_t signal, uint32_t count);

LAP_END_DECLS

#endif
