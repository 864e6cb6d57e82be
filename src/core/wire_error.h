/* SPDX-License-Identifier: Apache-2.0 */
/* Why a wire has lost a rank, where it knows that it was the network. */
#ifndef LAP_CORE_WIRE_ERROR_H
#define LAP_CORE_WIRE_ERROR_H

#include "core/wire.h"

/* Before lap_wire_lose: the network failed with this errno. */
void lap_wire_set_error(lap_wire_base_t *base, int peer, int error);

/* Instead of an errno: the rank was reached through rank 0, to which the connection has ended. */
#define LAP_WIRE_NO_HUB (-1)

/* Of a rank that the wire has lost: that errno; 0: its process has ended, so far as is known. */
int lap_wire_error(const lap_wire_t *wire, int peer);

/*
 * The process of a rank of this host has ended, but its last packets may still have to be taken, of
 * which one may say that it left in order. True once the wire has seen the end of its connection,
 * or a moment after the first call: a process that the rank has forked may hold the connection
 * open.
 */
bool lap_wire_is_over(lap_wire_t *wire, int peer);

#endif
