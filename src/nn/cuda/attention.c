/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a GPU: it has none yet. */
#include "nn/cuda/nn_cuda.h"

lap_status_t lap_nn_cuda_attention_prepare(lap_cuda_device_t *device)
{
    (void)device;
    return LAP_OK;
}

size_t lap_nn_cuda_attention_scratch(const lap_attention_t *attention)
{
    (void)attention;
    return 1;
}

lap_status_t lap_nn_cuda_attention_forward(lap_stream_t *stream, const lap_attention_t *attention)
{
    (void)stream;
    (void)attention;
    return lap_error(LAP_ERR_UNSUPPORTED, "device cuda has no attention");
}

lap_status_t lap_nn_cuda_attention_backward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_nn_cuda_attention_forward(stream, attention);
}
