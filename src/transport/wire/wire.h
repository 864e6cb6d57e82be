/* SPDX-License-Identifier: Apache-2.0 */
/* What other transports use of those over a wire: they work in a world without one, too. */
#ifndef LAP_TRANSPORT_WIRE_WIRE_H
#define LAP_TRANSPORT_WIRE_WIRE_H

#include "transport/transport.h"

/* A buffer with `bytes` of data per rank, mapped by all inside a host. Needs a wire. */
lap_status_t lap_hosts_buffer_create_some(lap_buffer_t *buffer, size_t bytes);
void lap_wire_buffer_destroy(lap_buffer_t *buffer);

void lap_wire_send_record(lap_buffer_t *buffer, const lap_wait_reason_t *reason);
lap_status_t lap_wire_raise_now(lap_buffer_t *buffer, const lap_raise_t *raise);
lap_status_t lap_wire_wait_now(lap_buffer_t *buffer, const lap_wait_t *wait);

#endif
