/* SPDX-License-Identifier: Apache-2.0 */
/* What saves and loads layers, and their copy in memory of the host: see lap/checkpoint.h. */
#include "checkpoint/checkpoint.h"

#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"

lap_status_t lap_checkpoint_create(lap_group_t *group, lap_nn_t *nn, lap_optimizer_t *optimizer,
                                   lap_checkpoint_t **checkpoint_p)
{
    if (!group || !nn || !checkpoint_p)
        return lap_error(LAP_ERR_INVALID, "lap_checkpoint_create: %s is NULL",
                         !group ? "group"
                         : !nn  ? "nn"
                                : "checkpoint_p");
    lap_checkpoint_t *checkpoint = lap_alloc(1, sizeof(*checkpoint));
    if (!checkpoint)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for checkpoints");
    checkpoint->group = lap_group_keep(group);
    checkpoint->nn = lap_nn_keep(nn);
    checkpoint->optimizer = optimizer;
    (void)lap_nn_masters(nn, &checkpoint->count);
    const lap_status_t status =
        lap_ckpt_layout_init(&checkpoint->layout, nn, optimizer, nn->replicas);
    if (status != LAP_OK) {
        lap_checkpoint_destroy(checkpoint);
        return status;
    }
    *checkpoint_p = checkpoint;
    return LAP_OK;
}

void lap_checkpoint_destroy(lap_checkpoint_t *checkpoint)
{
    lap_saved_error_t saved;
    if (!checkpoint)
        return;
    lap_error_save(&saved);
    if (checkpoint->saving && !checkpoint->joined)
        pthread_join(checkpoint->thread, NULL);
    lap_ckpt_layout_clear(&checkpoint->layout);
    lap_free(checkpoint->host);
    lap_nn_let_go(checkpoint->nn);
    lap_group_t *group = checkpoint->group;
    lap_free(checkpoint);
    lap_group_let_go(group);
    lap_error_restore(&saved);
}

/* The array of the device. */
static float *device_array(lap_checkpoint_t *checkpoint, size_t array)
{
    size_t count;
    return array == 0 ? lap_nn_masters(checkpoint->nn, &count)
                      : lap_optimizer_moments(checkpoint->optimizer, array - 1, &count);
}

lap_status_t lap_ckpt_copy(lap_checkpoint_t *checkpoint, bool to_host)
{
    const lap_ckpt_layout_t *layout = &checkpoint->layout;
    const size_t count = checkpoint->count, bytes = count * sizeof(float);
    lap_engine_t *engine = checkpoint->nn->engine;
    LAP_TRY(lap_nn_wait(checkpoint->nn));
    for (size_t a = 0; a < layout->narrays; a++) {
        float *host = lap_ckpt_array(checkpoint, a), *device = device_array(checkpoint, a);
        const lap_copy_t copy = {.dst = to_host ? host : device,
                                 .src = to_host ? device : host,
                                 .rows = 1,
                                 .row_bytes = bytes,
                                 .dst_stride = bytes,
                                 .src_stride = bytes};
        LAP_TRY(engine->device->ops->copy(engine->streams[LAP_STREAM_COMPUTE], &copy));
    }
    return lap_nn_wait(checkpoint->nn);
}

lap_status_t lap_ckpt_reserve(lap_checkpoint_t *checkpoint)
{
    const size_t count = checkpoint->layout.narrays * checkpoint->count + checkpoint->layout.most;
    if (!checkpoint->host)
        checkpoint->host = lap_alloc(count, sizeof(float));
    return checkpoint->host ? LAP_OK
                            : lap_error(LAP_ERR_NO_MEMORY,
                                        "no memory for a copy of weights and moments, %zu bytes",
                                        count * sizeof(float));
}
