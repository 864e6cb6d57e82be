/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions and passes that make no sense: each is refused with a sentence that says why. */
#include <math.h>
#include <stdlib.h>

#include "tap.h"

static lap_nn_desc_t good(void)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.seq = 4;
    desc.hidden = 8;
    desc.heads = 4;
    return desc;
}

static void check_descriptions(void)
{
    lap_nn_desc_t desc = good();
    tap_success(lap_nn_validate(&desc, 2), "a good description");
    tap_failure(lap_nn_validate(NULL, 2), LAP_ERR_INVALID, "desc", "NULL", NULL);
    tap_failure(lap_nn_validate(&desc, 0), LAP_ERR_INVALID, "nranks", "0", NULL);
    tap_failure(lap_nn_validate(&desc, 3), LAP_ERR_INVALID, "heads", "4", "3 ranks", NULL);
    desc.seq = 0;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "seq", "0", NULL);
    desc = good();
    desc.batch = 0;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "batch", "0", NULL);
    desc.batch = desc.seq = 100000;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "100000", NULL);
    desc = good();
    desc.hidden = 9;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "hidden", "9", "head_dim", NULL);
    desc = good();
    desc.ffn = 7;
    tap_success(lap_nn_validate(&desc, 2), "features need not be a multiple of the ranks");
    desc.ffn = 1;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "ffn", "1", "2 ranks", NULL);
    desc = good();
    desc.heads = 12;
    desc.head_dim = 2;
    desc.kv_heads = 8;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "kv_heads", "8", "12", NULL);
    desc = good();
    desc.dtype = LAP_FLOAT8_E4M3;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_UNSUPPORTED, "dtype", "e4m3", NULL);
    desc = good();
    desc.epsilon = 0;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "epsilon", NULL);
    desc = good();
    desc.loss_scale = NAN;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "loss_scale", NULL);
    desc = good();
    desc.row_parallel = 1;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "row_parallel", "transformer", NULL);
    desc.kind = LAP_NN_LINEAR;
    desc.layers = 2;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "layers", "linear", NULL);
    desc = good();
    desc.kind = (lap_nn_kind_t)9;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "kind", "9", NULL);
    desc = good();
    lap_tp_overlap_t overlap;
    (void)lap_tp_overlap_init(4, &overlap);
    desc.overlap = &overlap;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "overlap.tp", "4", "2", NULL);
}

static void check_passes(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t desc = good();
    lap_nn_t *nn;
    (void)arg;
    if (!tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "layers"))
        return;
    const lap_nn_part_t part = lap_nn_input(nn, 0);
    float *memory = calloc(4 * part.rows * part.cols, sizeof(float));
    lap_tensor_t x = lap_tensor(memory, LAP_FLOAT32, part.rows, part.cols);
    lap_tensor_t y = lap_tensor(memory + part.rows * part.cols, LAP_FLOAT32, part.rows, part.cols);
    lap_tensor_t bad = x;
    tap_failure(lap_nn_backward(nn, &y, &x), LAP_ERR_INVALID, "no forward", NULL);
    double loss;
    tap_failure(lap_nn_loss_value(nn, &loss), LAP_ERR_INVALID, "no loss yet", NULL);
    bad.data = (char *)x.data + 2;
    tap_failure(lap_nn_forward(nn, 4, &bad, &y), LAP_ERR_INVALID, "x.data", "multiple of 4", NULL);
    bad = x;
    tap_failure(lap_nn_forward(nn, 5, &x, &y), LAP_ERR_INVALID, "seq", "5", "4", NULL);
    tap_failure(lap_nn_forward(nn, 4, NULL, &y), LAP_ERR_INVALID, "x is NULL", NULL);
    bad.rows++;
    tap_failure(lap_nn_forward(nn, 4, &bad, &y), LAP_ERR_INVALID, "x is [", NULL);
    bad = x;
    bad.dtype = LAP_BFLOAT16;
    tap_failure(lap_nn_forward(nn, 4, &bad, &y), LAP_ERR_INVALID, "bfloat16", NULL);
    bad = x;
    bad.data = NULL;
    tap_failure(lap_nn_forward(nn, 4, &x, &bad), LAP_ERR_INVALID, "y.data", NULL);
    tap_failure(lap_nn_forward(nn, 4, &x, &x), LAP_ERR_INVALID, "y", "x", NULL);
    tap_success(lap_nn_forward(nn, 4, &x, &y), "what was refused has changed nothing");
    tap_failure(lap_nn_backward(nn, &y, &y), LAP_ERR_INVALID, "dx overlaps dy", NULL);
    tap_failure(lap_nn_backward(nn, &y, &x), LAP_ERR_INVALID, "dx overlaps x", NULL);
    tap_success(lap_nn_wait(nn), "and it ends");
    lap_nn_destroy(nn);
    free(memory);
}

int main(void)
{
    check_descriptions();
    tap_ranks(1, NULL, check_passes, NULL);
    tap_ranks(2, NULL, check_passes, NULL);
    return tap_done();
}
