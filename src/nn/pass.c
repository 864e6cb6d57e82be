/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes: forward and backward through all blocks, the loss, and the wait for what was issued. What
 * they consist of is in the list (list.h); run.c runs it.
 */
#include <math.h>

#include "core/status.h"
#include "core/tensor.h"
#include "nn/nn.h"
#include "util/alloc.h"

/* ---- waiting ---- */

lap_status_t lap_nn_settle(lap_nn_t *nn)
{
    const lap_device_ops_t *ops = nn->engine->device->ops;
    LAP_TRY(ops->event_record(nn->end, nn->engine->streams[LAP_STREAM_COMPUTE]));
    const lap_status_t status = lap_engine_await(nn->engine, nn->end);
    if (status != LAP_OK)
        lap_engine_fail(nn->engine, status, NULL);
    return status;
}

lap_status_t lap_nn_wait(lap_nn_t *nn)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_wait: nn is NULL");
    const lap_status_t status = lap_nn_end_passes(nn);
    if (status == LAP_OK)
        return lap_nn_settle(nn);
    /* Nothing of a pass runs any more when it has failed: the caller may free its memory. */
    lap_saved_error_t saved;
    lap_error_save(&saved);
    (void)lap_nn_settle(nn);
    lap_error_restore(&saved);
    return status;
}

/*
 * A pass that could not be issued to its end leaves the peers without this rank's part: the groups
 * are broken, what was issued ends, and the failure is passed on.
 */
static lap_status_t finish(lap_nn_t *nn, lap_status_t status)
{
    if (status == LAP_OK)
        return LAP_OK;
    lap_saved_error_t saved;
    lap_error_save(&saved);
    lap_nn_break(nn, status);
    (void)lap_nn_wait(nn);
    lap_error_restore(&saved);
    return status;
}

/* ---- passes ---- */

static lap_status_t check_tensor(const lap_nn_t *nn, const char *name, const lap_tensor_t *tensor,
                                 const lap_nn_part_t *part)
{
    if (!tensor)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected a matrix", name);
    if (tensor->dtype != nn->list.plan.desc.dtype)
        return lap_error(LAP_ERR_INVALID, "%s is %s, expected %s", name,
                         lap_dtype_name(tensor->dtype), lap_dtype_name(nn->list.plan.desc.dtype));
    if (tensor->rows != part->rows || tensor->cols != part->cols)
        return lap_error(LAP_ERR_INVALID, "%s is [%zu, %zu], expected [%zu, %zu]", name,
                         tensor->rows, tensor->cols, part->rows, part->cols);
    if (tensor->stride < tensor->cols)
        return lap_error(LAP_ERR_INVALID, "%s has a stride of %zu, expected at least %zu", name,
                         tensor->stride, tensor->cols);
    if (!tensor->data && tensor->rows > 0)
        return lap_error(LAP_ERR_INVALID, "%s.data is NULL, expected [%zu, %zu] elements", name,
                         tensor->rows, tensor->cols);
    return lap_tensor_check_aligned(tensor, name);
}

/* What a pass writes is none of what it, or a later one, reads. */
static lap_status_t check_apart(const char *name, const lap_tensor_t *result, const char *other,
                                const lap_tensor_t *input)
{
    const size_t element = lap_dtype_size(result->dtype);
    const uintptr_t begin = (uintptr_t)result->data, from = (uintptr_t)input->data;
    if (result->rows == 0 || input->rows == 0)
        return LAP_OK;
    const uintptr_t end = begin + ((result->rows - 1) * result->stride + result->cols) * element;
    const uintptr_t to = from + ((input->rows - 1) * input->stride + input->cols) * element;
    if (begin < to && from < end)
        return lap_error(LAP_ERR_INVALID, "%s overlaps %s, expected memory of its own", name,
                         other);
    return LAP_OK;
}

lap_status_t lap_nn_check_seq(const lap_nn_t *nn, size_t seq)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    if (seq < desc->cp || seq > desc->seq)
        return lap_error(LAP_ERR_INVALID, "seq is %zu, expected %zu to the capacity %zu", seq,
                         desc->cp, desc->seq);
    return LAP_OK;
}

/* Models have passes of their own. */
static lap_status_t check_layers(const lap_nn_t *nn, const char *caller)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "%s: nn is NULL", caller);
    if (lap_nn_list_is_model(&nn->list))
        return lap_error(LAP_ERR_INVALID,
                         "%s: this is a model, expected lap_model_forward and lap_model_backward",
                         caller);
    return LAP_OK;
}

lap_status_t lap_nn_begin_forward(lap_nn_t *nn, size_t seq)
{
    if (nn->stale && !(nn->background && nn->background->ahead))
        return lap_error(LAP_ERR_INVALID,
                         "the ranks that share the optimizer have not gathered its weights: "
                         "expected lap_dp_create, which joins them, before the first forward");
    if (lap_nn_is_in_flight(nn, LAP_NN_FORWARD) || lap_nn_is_in_flight(nn, LAP_NN_LOSS_PART))
        LAP_TRY(lap_nn_wait(nn));
    nn->seq = seq;
    return LAP_OK;
}

lap_status_t lap_nn_run_forward(lap_nn_t *nn, int last)
{
    lap_status_t status = LAP_OK;
    for (int part = LAP_NN_FORWARD; part <= last && status == LAP_OK; part++)
        status = lap_nn_run(nn, 1u << part);
    return finish(nn, status);
}

static lap_status_t take_forward(lap_nn_t *nn, size_t seq, const lap_tensor_t *x,
                                 const lap_tensor_t *y)
{
    LAP_TRY(check_layers(nn, "lap_nn_forward"));
    LAP_TRY(lap_nn_check_seq(nn, seq));
    const lap_nn_part_t input = lap_nn_input(nn, seq), output = lap_nn_output(nn, seq);
    LAP_TRY(check_tensor(nn, "x", x, &input));
    LAP_TRY(check_tensor(nn, "y", y, &output));
    LAP_TRY(check_apart("y", y, "x", x));
    LAP_TRY(lap_nn_begin_forward(nn, seq));
    nn->tensors[nn->list.x] = *x;
    nn->tensors[nn->list.y] = *y;
    return LAP_OK;
}

lap_status_t lap_nn_forward(lap_nn_t *nn, size_t seq, const lap_tensor_t *x, const lap_tensor_t *y)
{
    LAP_TRY(take_forward(nn, seq, x, y));
    return lap_nn_run_forward(nn, LAP_NN_FORWARD);
}

lap_status_t lap_nn_refresh(lap_nn_t *nn)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_refresh: nn is NULL");
    nn->begun = false;
    if (nn->sharers)
        return lap_nn_gather_weights(nn);
    if (nn->list.parts[LAP_NN_REFRESH] == nn->list.parts[LAP_NN_REFRESH + 1])
        return LAP_OK;
    if (lap_nn_is_in_flight(nn, LAP_NN_REFRESH))
        LAP_TRY(lap_nn_wait(nn));
    return finish(nn, lap_nn_run(nn, 1u << LAP_NN_REFRESH));
}

lap_status_t lap_nn_send_all(lap_nn_t *nn)
{
    LAP_TRY(lap_nn_wait(nn));
    if (!nn->background->overlap)
        LAP_TRY(finish(nn, lap_nn_run(nn, 1u << LAP_NN_SYNC)));
    LAP_TRY(lap_nn_end_background(nn));
    LAP_TRY(lap_nn_end_part(nn, LAP_NN_SYNC));
    nn->sync = LAP_NN_SUMMED;
    return LAP_OK;
}

lap_status_t lap_nn_gather_weights(lap_nn_t *nn)
{
    if (!nn->background)
        return lap_error(LAP_ERR_INVALID,
                         "ranks share the optimizer of these layers: expected lap_dp_create, which "
                         "joins them, before weights are gathered");
    LAP_TRY(finish(nn, lap_nn_run(nn, 1u << LAP_NN_REFRESH)));
    return lap_nn_wait(nn);
}

void lap_nn_note_step(lap_nn_t *nn)
{
    nn->begun = false;
    nn->stale = nn->sharers && nn->background->ahead;
    nn->sync = nn->sync == LAP_NN_LEAVING ? LAP_NN_SUMMED : nn->sync;
}

lap_status_t lap_nn_run_step(lap_nn_t *nn)
{
    LAP_TRY(finish(nn, lap_nn_run(nn, 1u << LAP_NN_STEP)));
    lap_nn_note_step(nn);
    return nn->sharers && !nn->stale ? lap_nn_wait(nn)
                                     : LAP_OK; /* no forward waits for the gather */
}

/* ---- steps of several backwards ---- */

void lap_nn_accumulate(lap_nn_t *nn, int more)
{
    if (nn)
        nn->accumulates = more != 0;
}

void lap_nn_zero_gradients(lap_nn_t *nn)
{
    if (!nn)
        return;
    nn->fresh = true;
    nn->begun = false;
    nn->held = 0;
}

lap_status_t lap_nn_step_ended(const lap_nn_t *nn, const char *caller)
{
    if (nn->held == 0)
        return LAP_OK;
    return lap_error(
        LAP_ERR_INVALID,
        "%s: the gradients of %zu backward%s are accumulated, but the last backward of "
        "the step is missing: expected lap_nn_accumulate(nn, 0) and a backward before",
        caller, nn->held, nn->held > 1 ? "s" : "");
}

/* What was summed over replicas is not summed again, nor changed while it is. */
static lap_status_t check_replicas(const lap_nn_t *nn)
{
    if (!nn->joined)
        return LAP_OK;
    if (nn->sync == LAP_NN_LEAVING)
        return lap_error(LAP_ERR_INVALID,
                         "lap_nn_backward: gradients are on their way to other replicas: expected "
                         "lap_dp_wait before");
    if (nn->sync == LAP_NN_SUMMED && !nn->fresh)
        return lap_error(LAP_ERR_INVALID,
                         "lap_nn_backward: gradients are sums over replicas already: expected "
                         "lap_nn_zero_gradients before the first backward of a step, and "
                         "lap_nn_accumulate(nn, 1) before all but the last");
    return LAP_OK;
}

/* From here on backward counts, even if it fails. */
static void count_backward(lap_nn_t *nn)
{
    nn->held = nn->accumulates ? nn->held + 1 : 0;
    nn->sync = nn->accumulates ? LAP_NN_OWN : LAP_NN_LEAVING;
}

/* The bit of the next one. */
static unsigned backward_of(const lap_nn_t *nn)
{
    return 1u << (nn->fresh ? LAP_NN_BACKWARD : LAP_NN_BACKWARD_MORE);
}

lap_status_t lap_nn_run_backward(lap_nn_t *nn)
{
    LAP_TRY(check_replicas(nn));
    if (lap_nn_is_in_flight(nn, LAP_NN_BACKWARD))
        LAP_TRY(lap_nn_wait(nn));
    count_backward(nn);
    LAP_TRY(finish(nn, lap_nn_run(nn, backward_of(nn))));
    nn->fresh = false;
    nn->begun = true;
    return LAP_OK;
}

static lap_status_t take_backward(lap_nn_t *nn, const lap_tensor_t *dy, const lap_tensor_t *dx)
{
    LAP_TRY(check_layers(nn, "lap_nn_backward"));
    if (nn->seq == 0)
        return lap_error(LAP_ERR_INVALID, "lap_nn_backward: there was no forward");
    const lap_nn_part_t input = lap_nn_input(nn, nn->seq), output = lap_nn_output(nn, nn->seq);
    LAP_TRY(check_tensor(nn, "dy", dy, &output));
    LAP_TRY(check_tensor(nn, "dx", dx, &input));
    LAP_TRY(check_apart("dx", dx, "dy", dy));
    LAP_TRY(check_apart("dx", dx, "x", &nn->tensors[nn->list.x]));
    LAP_TRY(check_replicas(nn));
    nn->tensors[nn->list.dy] = *dy;
    nn->tensors[nn->list.dx] = *dx;
    return LAP_OK;
}

lap_status_t lap_nn_backward(lap_nn_t *nn, const lap_tensor_t *dy, const lap_tensor_t *dx)
{
    LAP_TRY(take_backward(nn, dy, dx));
    return lap_nn_run_backward(nn);
}

/* ---- the loss and data ---- */

lap_status_t lap_nn_scale_loss(lap_nn_t *nn, float factor)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_scale_loss: nn is NULL");
    if (!(factor > 0) || !isfinite(factor))
        return lap_error(LAP_ERR_INVALID, "factor is %g, expected a finite number above 0",
                         (double)factor);
    if (factor == nn->loss_factor)
        return LAP_OK;
    /* Models find it in memory; the loss of layers has it as a number, also where it is captured. */
    for (int i = 0; i < LAP_NN_PASSES; i++)
        if (lap_nn_has_part(nn->passes.cache[i].parts, LAP_NN_LOSS_PART))
            nn->passes.cache[i].bound = false;
    nn->loss_factor = factor;
    return LAP_OK;
}

static lap_status_t take_loss(lap_nn_t *nn, const lap_tensor_t *y, const lap_tensor_t *target,
                              const lap_tensor_t *dy)
{
    LAP_TRY(check_layers(nn, "lap_nn_loss"));
    if (nn->seq == 0)
        return lap_error(LAP_ERR_INVALID, "lap_nn_loss: there was no forward");
    const lap_nn_part_t output = lap_nn_output(nn, nn->seq);
    LAP_TRY(check_tensor(nn, "y", y, &output));
    LAP_TRY(check_tensor(nn, "target", target, &output));
    LAP_TRY(check_tensor(nn, "dy", dy, &output));
    if (lap_nn_is_in_flight(nn, LAP_NN_LOSS_PART))
        LAP_TRY(lap_nn_wait(nn));
    nn->loss_count = output.all_rows * output.all_cols;
    nn->tensors[nn->list.y] = *y;
    nn->tensors[nn->list.target] = *target;
    nn->tensors[nn->list.dy] = *dy;
    return LAP_OK;
}

lap_status_t lap_nn_loss(lap_nn_t *nn, const lap_tensor_t *y, const lap_tensor_t *target,
                         const lap_tensor_t *dy)
{
    LAP_TRY(take_loss(nn, y, target, dy));
    return finish(nn, lap_nn_run(nn, 1u << LAP_NN_LOSS_PART));
}

/* ---- a micro-batch of a step, as one program ---- */

lap_status_t lap_nn_run_micro(lap_nn_t *nn, bool steps)
{
    const unsigned passes = 1u << LAP_NN_FORWARD | 1u << LAP_NN_LOSS_PART | backward_of(nn);
    const bool late = nn->joined && !nn->background->overlap;
    const unsigned step = 1u << LAP_NN_STEP | (late ? 1u << LAP_NN_SYNC : 0);
    const bool together = lap_nn_can_join(nn, passes);
    const bool joins = steps && together && lap_nn_can_join(nn, 1u << LAP_NN_STEP);
    if (together) {
        LAP_TRY(check_replicas(nn));
        count_backward(nn);
        LAP_TRY(finish(nn, lap_nn_run(nn, passes | (joins ? step : 0))));
        nn->fresh = false;
        nn->begun = true;
    } else {
        LAP_TRY(lap_nn_run_forward(nn, LAP_NN_LOSS_PART));
        LAP_TRY(lap_nn_run_backward(nn));
    }
    if (steps && !joins) {
        if (nn->joined)
            LAP_TRY(lap_nn_send_all(nn));
        return lap_nn_run_step(nn);
    }
    if (joins)
        lap_nn_note_step(nn);
    return LAP_OK;
}

lap_status_t lap_nn_micro(lap_nn_t *nn, size_t seq, const lap_tensor_t *x, const lap_tensor_t *y,
                          const lap_tensor_t *target, const lap_tensor_t *dx, bool steps)
{
    LAP_TRY(take_forward(nn, seq, x, y));
    LAP_TRY(take_loss(nn, y, target, y));
    LAP_TRY(take_backward(nn, y, dx));
    return lap_nn_run_micro(nn, steps);
}

/* ---- ... and its numbers ---- */

/* The losses of all ranks that share sequences, in their order. Collective over them. */
lap_status_t lap_nn_add_contexts(lap_nn_t *nn, double *sum_p)
{
    void *memory;
    if (!nn->context)
        return LAP_OK;
    LAP_TRY(lap_group_collect(nn->context, sum_p, sizeof(*sum_p), &memory));
    const double *all = memory;
    *sum_p = all[0];
    for (int r = 1; r < nn->context->size; r++)
        *sum_p += all[r];
    lap_free(memory);
    return LAP_OK;
}

lap_status_t lap_nn_loss_value(lap_nn_t *nn, double *loss_p)
{
    if (!nn || !loss_p)
        return lap_error(LAP_ERR_INVALID, "lap_nn_loss_value: %s is NULL", nn ? "loss_p" : "nn");
    if (nn->loss_count == 0)
        return lap_error(LAP_ERR_INVALID,
                         "lap_nn_loss_value: there is no loss yet, expected lap_nn_loss, or "
                         "lap_model_forward with targets, before");
    const double mine = *nn->loss;
    const bool model = lap_nn_list_is_model(&nn->list);
    const bool whole =
        model || (!nn->list.plan.desc.sequence_parallel && nn->list.blocks[0].shape.row);
    void *memory;
    LAP_TRY(lap_group_collect(nn->group, &mine, sizeof(mine), &memory));
    const double *all = memory;
    double sum = all[0];
    for (int r = 1; r < nn->list.plan.nranks && !whole; r++)
        sum += all[r];
    lap_free(memory);
    LAP_TRY(lap_nn_add_contexts(nn, &sum));
    *loss_p = fabs((model ? 1 : 0.5) * sum / (double)nn->loss_count); /* no -nan of an x86 */
    return LAP_OK;
}

lap_status_t lap_nn_fill(lap_nn_t *nn, const lap_tensor_t *matrix, const lap_nn_part_t *part,
                         uint64_t seed, uint64_t tensor, float std)
{
    if (!nn || !part)
        return lap_error(LAP_ERR_INVALID, "lap_nn_fill: %s is NULL", nn ? "part" : "nn");
    LAP_TRY(check_tensor(nn, "matrix", matrix, part));
    const lap_fill_normal_t fill = {
        .out = *matrix,
        .std = std,
        .seed = seed,
        .tensor = tensor,
        .first = part->first_row * part->all_cols + part->first_col,
        .row_step = part->all_cols,
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->fill_normal(stream, &fill);
}
