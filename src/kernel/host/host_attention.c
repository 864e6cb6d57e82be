/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a stream of a host, head by head. What is done to a head is the device's. */
#include <assert.h>

#include "device/host/host.h"
#include "kernel/host/host.h"

typedef struct call {
    lap_attention_t attention;
    size_t heads;
    lap_host_head_t work;
} call_t;
static_assert(sizeof(call_t) <= LAP_STREAM_ARG_BYTES, "it is an argument of a stream call");

static lap_status_t run(void *arg)
{
    const call_t *call = arg;
    for (size_t b = 0; b < call->attention.batch; b++)
        for (size_t head = 0; head < call->heads; head++)
            call->work(&call->attention, b, head);
    return LAP_OK;
}

lap_status_t lap_host_attention(lap_stream_t *stream, const lap_attention_t *attention,
                                size_t heads, lap_host_head_t work)
{
    const call_t call = {lap_attention_as_block(attention), heads, work};
    return lap_host_stream_call(stream, run, &call, sizeof(call));
}
