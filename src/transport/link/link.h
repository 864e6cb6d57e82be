/* SPDX-License-Identifier: Apache-2.0 */
/* An emulated link around the transport of a buffer. */
#ifndef LAP_TRANSPORT_LINK_LINK_H
#define LAP_TRANSPORT_LINK_LINK_H

#include "transport/transport.h"

/*
 * Puts a link of the speed in buffer->link around the buffer's transport, whose name and
 * capabilities stay. Local. Destroying the buffer takes it off again.
 */
lap_status_t lap_link_begin(lap_buffer_t *buffer);

#endif
