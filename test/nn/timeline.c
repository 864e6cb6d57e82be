/* SPDX-License-Identifier: Apache-2.0 */
/* What a timeline says of memory: the activations that are live while an entry runs, of all entries at once as of each. */
#include <lap/model.h>
#include <lap/trace.h>

#include "nn/nn.h"
#include "nn/program.h"
#include "tap.h"

static void compare(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t *desc = arg;
    lap_nn_t *nn;
    lap_trace_t *trace;
    uint64_t most = 0;
    uint32_t wrong = 0;
    if (!tap_success(lap_nn_create(lap_world_group(world), desc, &nn), "layers") ||
        !tap_success(lap_trace_create(&trace), "a trace"))
        return;
    tap_success(lap_nn_set_timeline(nn, trace), "a timeline of it");
    const uint32_t count = nn->list.parts[LAP_NN_STEP];
    for (uint32_t i = 0; i < count; i++) {
        wrong += nn->live_bytes[i] != lap_nn_live_bytes(&nn->list, i);
        most = nn->live_bytes[i] > most ? nn->live_bytes[i] : most;
    }
    tap_ok(wrong == 0 && most > 0, "%u of %u entries have other bytes, of at most %zu",
           (unsigned)wrong, (unsigned)count, (size_t)most);
    tap_success(lap_nn_set_timeline(nn, NULL), "none");
    lap_nn_destroy(nn);
    lap_trace_destroy(trace);
}

int main(void)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.seq = 4;
    desc.hidden = 8;
    desc.heads = 4;
    desc.layers = 3;
    tap_ranks(1, NULL, compare, &desc);
    tap_ranks(2, NULL, compare, &desc);
    desc.recompute = LAP_RECOMPUTE_FULL;
    tap_ranks(2, NULL, compare, &desc);
    desc.fp8 = LAP_FP8_DELAYED;
    desc.recompute = LAP_RECOMPUTE_NONE;
    tap_ranks(2, NULL, compare, &desc);
    lap_nn_desc_t model = LAP_NN_DESC_INIT;
    tap_success(lap_model_preset("gpt", &model), "a model");
    tap_ranks(2, NULL, compare, &model);
    return tap_done();
}
