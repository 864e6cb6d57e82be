/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers that are to prove what they run (`debug`) prove it with the replicas that lap_dp_create joins: gradients
 * during backward or after it, weights of a shared optimizer during forward or after the step. A plan that does not
 * go with the replicas is found before anything runs.
 */
#include <lap/data_parallel.h>

#include "nn/nn.h"
#include "nn/program.h"
#include "tap.h"

typedef struct scene {
    int debug, overlap, overlap_weights;
    size_t shards;
    bool spoiled; /* the plan is that of more ranks than there are */
} scene_t;

static void play(lap_world_t *world, void *arg)
{
    const scene_t *scene = arg;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_group_t *all = lap_world_group(world), *own = NULL;
    lap_nn_t *nn = NULL;
    lap_dp_t *dp = NULL;
    desc.kind = LAP_NN_LAYERNORM_MLP;
    desc.seq = 4;
    desc.hidden = desc.heads = 8;
    desc.debug = scene->debug;
    desc.shards = scene->shards;
    desc.shard_bucket = 100;
    desc.shard_group = scene->shards > 1 ? all : NULL;
    options.bucket = 100;
    options.overlap = scene->overlap;
    options.overlap_weights = scene->overlap_weights;
    tap_success(lap_group_split(all, lap_world_rank(world), 0, &own), "a group of one rank");
    tap_success(lap_nn_create(own, &desc, &nn), "layers");
    if (scene->spoiled)
        nn->list.plan.desc.shards = 3;
    const lap_status_t status = lap_dp_create(nn, all, &options, &dp);
    if (scene->spoiled && scene->debug)
        tap_ok(status == LAP_ERR_CHECK, "replicas that the plan does not have are found: %s",
               lap_last_error());
    else
        tap_success(status, "two replicas%s, debug %d", scene->shards > 1 ? " with shards" : "",
                    scene->debug);
    const lap_nn_replication_t proved = lap_nn_replication(nn);
    if (status == LAP_OK)
        tap_ok(proved.replicas == 2 && proved.bucket == 100 && proved.late == !scene->overlap &&
                   proved.ahead == (scene->shards > 1 && scene->overlap_weights),
               "what is proved has gradients %s backward, weights %s forward",
               proved.late ? "after" : "during", proved.ahead ? "during" : "before");
    lap_dp_destroy(dp);
    lap_nn_destroy(nn);
    lap_group_destroy(own);
}

int main(void)
{
    for (int i = 0; i < 8; i++) {
        scene_t scene = {1, i & 1, i >> 1 & 1, i & 4 ? 2 : 0, false};
        tap_ranks(2, NULL, play, &scene);
    }
    for (int debug = 0; debug < 2; debug++) {
        scene_t scene = {debug, 1, 1, 2, true};
        tap_ranks(2, NULL, play, &scene);
    }
    return tap_done();
}
