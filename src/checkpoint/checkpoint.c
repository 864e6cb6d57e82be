/* SPDX-License-Identifier: Apache-2.0 */
/* What saves and loads layers, and their copy in memory of the host: see lap/checkpoint.h. */
#include "checkpoint/checkpoint.h"

#include <string.h>

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
    (void)lap_nn_gradients(nn, &checkpoint->count);
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

lap_status_t lap_ckpt_copy_floats(lap_checkpoint_t *checkpoint, float *host, float *device,
                                  size_t count, bool to_host)
{
    lap_engine_t *engine = checkpoint->nn->engine;
    const size_t bytes = count * sizeof(float);
    const lap_copy_t copy = {.dst = to_host ? host : device,
                             .src = to_host ? device : host,
                             .rows = 1,
                             .row_bytes = bytes,
                             .dst_stride = bytes,
                             .src_stride = bytes};
    return count == 0 ? LAP_OK
                      : engine->device->ops->copy(engine->streams[LAP_STREAM_COMPUTE], &copy);
}

/* ---- where ranks share the optimizer ---- */

/* The own part of each bucket, between its place in the whole and that among the own ones. */
static lap_status_t copy_shards(lap_checkpoint_t *checkpoint, size_t array, bool to_host)
{
    const lap_nn_list_t *list = &checkpoint->nn->list;
    float *host = lap_ckpt_array(checkpoint, array), *device = device_array(checkpoint, array);
    for (size_t i = 0; i < list->shards->count; i++) {
        size_t begin;
        const size_t count = lap_nn_bucket_shard(list->shards, i, list->shard, &begin);
        const size_t at = lap_nn_shard_begin(list->shards, i, list->shard);
        LAP_TRY(lap_ckpt_copy_floats(checkpoint, host + begin, device + at, count, to_host));
    }
    return LAP_OK;
}

/* Each rank gets what the others have of a bucket. Collective over them. */
static lap_status_t collect_bucket(lap_checkpoint_t *checkpoint, float *host, size_t bucket)
{
    const lap_nn_t *nn = checkpoint->nn;
    const lap_nn_buckets_t *shards = nn->list.shards;
    size_t begin, most = lap_nn_bucket_shard(shards, bucket, 0, &begin); /* none has more */
    void *all = NULL;
    float *own = lap_alloc(most, sizeof(*own));
    lap_status_t status =
        own ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu weights of a bucket", most);
    status = lap_group_agree(nn->sharers, status);
    if (status == LAP_OK) {
        const size_t count = lap_nn_bucket_shard(shards, bucket, nn->list.shard, &begin);
        memcpy(own, host + begin, count * sizeof(float));
        status = lap_group_collect(nn->sharers, own, most * sizeof(float), &all);
    }
    for (int r = 0; r < shards->replicas && status == LAP_OK; r++) {
        const size_t count = lap_nn_bucket_shard(shards, bucket, r, &begin);
        memcpy(host + begin, (const float *)all + (size_t)r * most, count * sizeof(float));
    }
    lap_free(all);
    lap_free(own);
    return status;
}

lap_status_t lap_ckpt_collect(lap_checkpoint_t *checkpoint, lap_status_t mine)
{
    const lap_nn_t *nn = checkpoint->nn;
    if (!nn->sharers)
        return mine;
    LAP_TRY(lap_group_agree(nn->sharers, mine));
    for (size_t a = 0; a < checkpoint->layout.narrays; a++)
        for (size_t i = 0; i < nn->list.shards->count; i++)
            LAP_TRY(collect_bucket(checkpoint, lap_ckpt_array(checkpoint, a), i));
    return LAP_OK;
}

lap_status_t lap_ckpt_copy(lap_checkpoint_t *checkpoint, bool to_host)
{
    lap_nn_t *nn = checkpoint->nn;
    LAP_TRY(lap_nn_wait(nn));
    for (size_t a = 0; a < checkpoint->layout.narrays; a++)
        LAP_TRY(nn->sharers ? copy_shards(checkpoint, a, to_host)
                            : lap_ckpt_copy_floats(checkpoint, lap_ckpt_array(checkpoint, a),
                                                   device_array(checkpoint, a), checkpoint->count,
                                                   to_host));
    LAP_TRY(lap_ckpt_fp8_copy(checkpoint, to_host));
    return lap_nn_wait(nn);
}

lap_status_t lap_ckpt_reserve(lap_checkpoint_t *checkpoint)
{
    const size_t count = checkpoint->layout.narrays * checkpoint->count + checkpoint->layout.most;
    LAP_TRY(lap_ckpt_fp8_reserve(&checkpoint->layout.fp8));
    if (!checkpoint->host)
        checkpoint->host = lap_alloc(count, sizeof(float));
    return checkpoint->host ? LAP_OK
                            : lap_error(LAP_ERR_NO_MEMORY,
                                        "no memory for a copy of weights and moments, %zu bytes",
                                        count * sizeof(float));
}
