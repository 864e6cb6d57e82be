/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transports share whose ranks map each other's memory: a region per rank holds its call
 * records, its signal words and its data; a put is a copy; a signal is an atomic addition.
 */
#ifndef LAP_TRANSPORT_HOST_HOST_H
#define LAP_TRANSPORT_HOST_HOST_H

#include "transport/link/link.h"
#include "transport/transport.h"

/*
 * With `bytes` of data per rank. Maps the memory of the ranks for which `maps` says so; NULL: of
 * all.
 */
lap_status_t lap_host_buffer_create_some(lap_buffer_t *buffer, size_t bytes,
                                         bool (*maps)(const lap_buffer_t *buffer, int rank));
lap_status_t lap_host_buffer_create(lap_buffer_t *buffer);
void lap_host_buffer_destroy(lap_buffer_t *buffer);

/* What a put copies, into the memory of its peer that this rank has mapped. */
static inline lap_copy_t lap_put_copy(const lap_buffer_t *buffer, const lap_put_t *put)
{
    return (lap_copy_t){.dst = buffer->data[put->peer] + put->offset,
                        .src = put->src,
                        .rows = put->rows,
                        .row_bytes = put->row_bytes,
                        .dst_stride = put->dst_stride,
                        .src_stride = put->src_stride};
}

void lap_host_send_record(lap_buffer_t *buffer, const lap_wait_reason_t *reason);
lap_status_t lap_host_put_now(lap_buffer_t *buffer, const lap_put_t *put);
lap_status_t lap_host_raise_now(lap_buffer_t *buffer, const lap_raise_t *raise);
lap_status_t lap_host_wait_now(lap_buffer_t *buffer, const lap_wait_t *wait);

/*
 * These run the ..._now slots of the buffer's table on a stream, so that they serve any table that
 * has those.
 */
lap_status_t lap_host_put(lap_buffer_t *buffer, const lap_device_ops_t *device,
                          lap_stream_t *stream, const lap_put_t *put);
lap_status_t lap_host_raise(lap_buffer_t *buffer, const lap_device_ops_t *device,
                            lap_stream_t *stream, const lap_raise_t *raise);
lap_status_t lap_host_wait(lap_buffer_t *buffer, const lap_device_ops_t *device,
                           lap_stream_t *stream, const lap_wait_t *wait);

/*
 * The slots of a transport over mapped memory, but for buffer_create, which checks who the ranks
 * are.
 */
#define LAP_MAPPED_SLOTS                                                                           \
    .buffer_destroy = lap_host_buffer_destroy, .send_record = lap_host_send_record,                \
    .link_begin = lap_link_begin, .put_now = lap_host_put_now, .raise_now = lap_host_raise_now,    \
    .wait_now = lap_host_wait_now, .put = lap_host_put, .raise = lap_host_raise,                   \
    .wait = lap_host_wait

#endif
