/* SPDX-License-Identifier: Apache-2.0 */
/* The data of a step: tokens of the caller, or matrices made of seed, step and sequence. */
#include "train/trainer.h"

#include <inttypes.h>
#include <string.h>

#include "core/status.h"
#include "device/device.h"
#include "nn/nn.h"
#include "util/alloc.h"

/* ---- memory ---- */

static lap_status_t alloc_tokens(lap_trainer_t *trainer)
{
    const lap_nn_desc_t *model = &trainer->model;
    const size_t count = model->batch * model->seq * trainer->desc.micro_batches;
    trainer->tokens = lap_alloc(count, sizeof(*trainer->tokens));
    trainer->targets = lap_alloc(count, sizeof(*trainer->targets));
    return trainer->tokens && trainer->targets
               ? LAP_OK
               : lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu tokens", count);
}

/* A matrix, `count` times. */
static lap_status_t alloc_tensor(lap_trainer_t *trainer, lap_nn_part_t part, size_t count,
                                 lap_tensor_t *tensor)
{
    const lap_dtype_t dtype = trainer->model.dtype;
    void *memory;
    *tensor = lap_tensor(NULL, dtype, part.rows, part.cols);
    LAP_TRY(trainer->device->ops->alloc(
        trainer->device, part.rows * part.cols * lap_dtype_size(dtype) * count, &memory));
    tensor->data = memory;
    return LAP_OK;
}

lap_status_t lap_trainer_data_init(lap_trainer_t *trainer)
{
    const size_t micro = trainer->desc.micro_batches;
    if (trainer->model.kind == LAP_NN_MODEL)
        return alloc_tokens(trainer);
    const lap_nn_part_t in = lap_nn_input(trainer->nn, 0), out = lap_nn_output(trainer->nn, 0);
    LAP_TRY(alloc_tensor(trainer, in, micro, &trainer->x));
    LAP_TRY(alloc_tensor(trainer, in, 1, &trainer->dx));
    LAP_TRY(alloc_tensor(trainer, out, 1, &trainer->y));
    return alloc_tensor(trainer, out, micro, &trainer->target);
}

lap_tensor_t lap_trainer_part(lap_tensor_t matrix, size_t micro)
{
    const size_t bytes = matrix.rows * matrix.stride * lap_dtype_size(matrix.dtype);
    matrix.data = (char *)matrix.data + micro * bytes;
    return matrix;
}

/* ---- what is in it ---- */

uint64_t lap_trainer_first(const lap_trainer_t *trainer, size_t micro)
{
    const uint64_t before = (uint64_t)trainer->groups.at.dp * trainer->desc.micro_batches + micro;
    return before * trainer->model.batch;
}

/*
 * Fills the rows of each sequence that this rank has. Row s * batch + b of a micro-batch is token s
 * of its sequence b. A sequence is a tensor of its own, [seq, columns].
 */
static lap_status_t fill(lap_trainer_t *trainer, const lap_tensor_t *matrix, lap_nn_part_t part,
                         size_t micro, float std)
{
    const lap_nn_desc_t *desc = &trainer->model;
    const size_t batch = desc->batch;
    const uint64_t before = lap_trainer_first(trainer, micro);
    for (size_t b = 0; b < batch; b++) {
        const size_t skip = (b + batch - part.first_row % batch) % batch;
        if (skip >= part.rows)
            continue;
        lap_nn_part_t own = part;
        own.rows = (part.rows - skip + batch - 1) / batch;
        own.first_row = (part.first_row + skip) / batch;
        own.all_rows = desc->seq;
        lap_tensor_t rows = lap_trainer_part(*matrix, micro);
        rows.data = (char *)rows.data + skip * matrix->stride * lap_dtype_size(matrix->dtype);
        rows.rows = own.rows;
        rows.stride = batch * matrix->stride;
        const uint64_t tensor = (trainer->step + 1) << 32 | (before + b);
        LAP_TRY(lap_nn_fill(trainer->nn, &rows, &own, desc->seed, tensor, std));
    }
    return LAP_OK;
}

static lap_status_t fill_all(lap_trainer_t *trainer)
{
    const lap_nn_part_t in = lap_nn_input(trainer->nn, 0), out = lap_nn_output(trainer->nn, 0);
    for (size_t m = 0; m < trainer->desc.micro_batches; m++) {
        LAP_TRY(fill(trainer, &trainer->x, in, m, 1));
        LAP_TRY(fill(trainer, &trainer->target, out, m, -1));
    }
    return lap_nn_wait(trainer->nn);
}

lap_status_t lap_trainer_explain(lap_status_t status, const char *what, uint64_t step)
{
    if (status == LAP_OK || *lap_last_error())
        return status;
    const char *text = lap_status_string(status);
    const bool known = strcmp(text, lap_status_string((lap_status_t)INT32_MIN)) != 0;
    return lap_error(known ? status : LAP_ERR_INVALID,
                     "step %" PRIu64 ": the function of the description that %s returned %d (%s)%s",
                     step, what, (int)status, text,
                     known ? "" : ", expected a status of the library");
}

static lap_status_t call_back(const lap_trainer_t *trainer)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    (void)lap_error(LAP_OK, "%s", "");
    return lap_trainer_explain(desc->data(desc->context,
                                          trainer->samples + lap_trainer_first(trainer, 0),
                                          desc->micro_batches * trainer->model.batch,
                                          trainer->model.seq, trainer->tokens, trainer->targets),
                               "gives data", trainer->step + 1);
}

lap_status_t lap_trainer_read(lap_trainer_t *trainer)
{
    return lap_group_agree(trainer->groups.world,
                           trainer->tokens ? call_back(trainer) : fill_all(trainer));
}
