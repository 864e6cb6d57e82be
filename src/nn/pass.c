/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes: forward and backward through all blocks, the loss, and the wait for what was issued.
 * Operators and kernels are issued in one order; each is ordered behind all before it, by the
 * operators themselves while they share a buffer, else by a join of the streams.
 */
#include "core/status.h"
#include "core/tensor.h"
#include "nn/nn.h"
#include "util/alloc.h"

/* ---- issuing ---- */

size_t lap_nn_rows(const lap_nn_t *nn)
{
    return nn->seq * nn->plan.desc.batch;
}

size_t lap_nn_own_rows(const lap_nn_t *nn)
{
    if (!nn->plan.desc.sequence_parallel)
        return lap_nn_rows(nn);
    return lap_shard(lap_nn_rows(nn), nn->plan.nranks, nn->group->rank, NULL);
}

lap_status_t lap_nn_stream(lap_nn_t *nn, lap_stream_t **stream_p)
{
    if (!nn->kernel_last)
        LAP_TRY(lap_engine_join(nn->engine));
    nn->kernel_last = true;
    *stream_p = nn->engine->streams[LAP_STREAM_COMPUTE];
    return LAP_OK;
}

lap_status_t lap_nn_begin(lap_nn_t *nn, lap_nn_call_t *call, lap_op_args_t *args)
{
    /* A call on a buffer that others are in flight on joins the streams itself. */
    if (nn->buffer->in_flight == 0)
        LAP_TRY(lap_engine_join(nn->engine));
    nn->kernel_last = false;
    args->m = call->step.block == LAP_NN_SUMS ? call->step.desc.m : lap_nn_rows(nn);
    args->trace = nn->tracing ? call->trace : NULL;
    LAP_TRY(lap_op_begin(call->op, args));
    nn->flight[nn->nflight++] = call;
    return LAP_OK;
}

lap_status_t lap_nn_cast(lap_nn_t *nn, const lap_tensor_t *src, lap_dtype_t to, void *dst,
                         const float *scale, float *amax)
{
    const lap_cast_t cast = {
        .from = src->dtype,
        .to = to,
        .src = src->data,
        .dst = dst,
        .src_stride = src->stride * lap_dtype_size(src->dtype),
        .dst_stride = src->cols * lap_dtype_size(to),
        .rows = src->rows,
        .cols = src->cols,
        .scale = scale,
        .amax = amax,
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->engine->device->ops->cast(stream, &cast);
}

lap_status_t lap_nn_reduce(lap_nn_t *nn, lap_nn_reduction_t *reduction, lap_dtype_t from,
                           lap_dtype_t to, void *dst, size_t rows, size_t cols)
{
    const lap_reduce_t reduce = {
        .from = from,
        .to = to,
        .dst = dst,
        .dst_stride = cols * lap_dtype_size(to),
        .srcs = &reduction->src,
        .src_strides = &reduction->src_stride,
        .scales = reduction->scale ? &reduction->scale : NULL,
        .nsrc = 1,
        .rows = rows,
        .cols = cols,
        .finish = &reduction->finish,
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->engine->device->ops->reduce(stream, &reduce);
}

/* ---- waiting ---- */

/* Ends all calls in flight, in their order; the first failure is that of all. */
static lap_status_t end_calls(lap_nn_t *nn)
{
    lap_status_t status = LAP_OK;
    lap_said_t said;
    for (size_t i = 0; i < nn->nflight; i++) {
        const lap_status_t ended = lap_op_end(nn->flight[i]->op);
        if (ended == LAP_OK || status != LAP_OK)
            continue;
        status = ended;
        lap_error_save(&said);
    }
    nn->nflight = 0;
    nn->in_forward = nn->in_backward = false;
    if (status != LAP_OK)
        lap_error_restore(&said);
    return status;
}

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
    const lap_status_t status = end_calls(nn);
    if (status == LAP_OK)
        return lap_nn_settle(nn);
    /* Nothing of a pass runs any more when it has failed: the caller may free its memory. */
    lap_said_t said;
    lap_error_save(&said);
    (void)lap_nn_settle(nn);
    lap_error_restore(&said);
    return status;
}

/*
 * A pass that could not be issued to its end leaves the peers without this rank's part: the group
 * is broken, what was issued ends, and the failure is passed on.
 */
static lap_status_t finish(lap_nn_t *nn, lap_status_t status)
{
    if (status == LAP_OK)
        return LAP_OK;
    lap_said_t said;
    lap_error_save(&said);
    lap_group_fail_here(nn->group, status, lap_last_error());
    (void)lap_nn_wait(nn);
    lap_error_restore(&said);
    return status;
}

/* ---- passes ---- */

static lap_status_t check_tensor(const lap_nn_t *nn, const char *name, const lap_tensor_t *tensor,
                                 const lap_nn_part_t *part)
{
    if (!tensor)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected a matrix", name);
    if (tensor->dtype != nn->plan.desc.dtype)
        return lap_error(LAP_ERR_INVALID, "%s is %s, expected %s", name,
                         lap_dtype_name(tensor->dtype), lap_dtype_name(nn->plan.desc.dtype));
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

/* Where block `b` puts its result, and finds its gradient: between blocks all are alike. */
static lap_tensor_t between(const lap_nn_t *nn, void *data)
{
    return lap_tensor(data, nn->plan.desc.dtype, lap_nn_own_rows(nn), nn->plan.desc.hidden);
}

static lap_status_t issue_forward(lap_nn_t *nn, const lap_tensor_t *x, const lap_tensor_t *y)
{
    lap_tensor_t in = *x;
    LAP_TRY(lap_nn_look_input(nn, x));
    for (size_t b = 0; b < nn->plan.nblocks; b++) {
        lap_nn_block_t *block = &nn->blocks[b];
        const lap_tensor_t out = block->y ? between(nn, block->y) : *y;
        LAP_TRY(lap_nn_block_forward(nn, block, &in, &out));
        LAP_TRY(lap_nn_look_block(nn, b, &out));
        in = out;
    }
    return LAP_OK;
}

lap_status_t lap_nn_forward(lap_nn_t *nn, size_t seq, const lap_tensor_t *x, const lap_tensor_t *y)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_forward: nn is NULL");
    if (seq < 1 || seq > nn->plan.desc.seq)
        return lap_error(LAP_ERR_INVALID, "seq is %zu, expected 1 to the capacity %zu", seq,
                         nn->plan.desc.seq);
    const lap_nn_part_t input = lap_nn_input(nn, seq), output = lap_nn_output(nn, seq);
    LAP_TRY(check_tensor(nn, "x", x, &input));
    LAP_TRY(check_tensor(nn, "y", y, &output));
    LAP_TRY(check_apart("y", y, "x", x));
    if (nn->in_forward)
        LAP_TRY(lap_nn_wait(nn));
    LAP_TRY(lap_nn_fp8_renew(nn));
    nn->seq = seq;
    nn->in_forward = true;
    nn->kernel_last = false; /* others may have issued something */
    LAP_TRY(lap_engine_calls_begin(nn->engine));
    const lap_status_t status = issue_forward(nn, x, y);
    lap_engine_calls_end(nn->engine);
    return finish(nn, status);
}

/* Not in the row of calls that backward is: what the caller does, it does as it likes. */
lap_status_t lap_nn_tell_ready(lap_nn_t *nn, size_t index)
{
    if (!nn->ready || nn->held > 0)
        return LAP_OK;
    lap_engine_calls_end(nn->engine);
    const lap_status_t status = nn->ready(nn->ready_context, index);
    const lap_status_t again = lap_engine_calls_begin(nn->engine);
    return status == LAP_OK ? again : status;
}

/* Sums over ranks what they hold in part, and adds it to the gradients. */
static lap_status_t sum_gradients(lap_nn_t *nn)
{
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    if (!nn->sum_calls[0])
        return LAP_OK;
    const size_t rows = nn->sum_calls[0]->step.desc.m;
    const size_t own = lap_shard(rows, nn->plan.nranks, nn->group->rank, NULL);
    args.x = lap_tensor(nn->sums, LAP_FLOAT32, rows, LAP_NN_SUM_COLS);
    args.y = lap_tensor(nn->sums_r, LAP_FLOAT32, own, LAP_NN_SUM_COLS);
    args.a = (lap_tensor_t){nn->sums, LAP_FLOAT32, rows, 1, LAP_NN_SUM_COLS};
    args.b = lap_tensor(nn->sums, LAP_FLOAT32, 1, 1);
    args.d = lap_tensor(nn->sums_rest, LAP_FLOAT32, rows, 1);
    LAP_TRY(lap_nn_begin(nn, nn->sum_calls[0], &args));
    args = (lap_op_args_t)LAP_OP_ARGS_INIT;
    args.x = lap_tensor(nn->sums_r, LAP_FLOAT32, own, LAP_NN_SUM_COLS);
    args.y = lap_tensor(nn->sums_all, LAP_FLOAT32, rows, LAP_NN_SUM_COLS);
    LAP_TRY(lap_nn_begin(nn, nn->sum_calls[1], &args));
    for (size_t i = nn->nweights; i-- > 0;) {
        if (!nn->weights[i].summed)
            continue;
        LAP_TRY(lap_nn_add_partial(nn, &nn->weights[i]));
        LAP_TRY(lap_nn_tell_ready(nn, i));
    }
    return LAP_OK;
}

static lap_status_t issue_backward(lap_nn_t *nn, const lap_tensor_t *dy, const lap_tensor_t *dx)
{
    lap_tensor_t in = *dy;
    for (size_t b = nn->plan.nblocks; b-- > 0;) {
        const lap_tensor_t out = b > 0 ? between(nn, nn->dx[b % 2]) : *dx;
        LAP_TRY(lap_nn_block_backward(nn, &nn->blocks[b], &in, &out));
        in = out;
    }
    return sum_gradients(nn);
}

/* ---- steps of several backwards ---- */

void lap_nn_accumulate(lap_nn_t *nn, int more)
{
    nn->accumulates = more != 0;
}

void lap_nn_zero_gradients(lap_nn_t *nn)
{
    nn->fresh = true;
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

lap_status_t lap_nn_backward(lap_nn_t *nn, const lap_tensor_t *dy, const lap_tensor_t *dx)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_backward: nn is NULL");
    if (nn->seq == 0)
        return lap_error(LAP_ERR_INVALID, "lap_nn_backward: there was no forward");
    const lap_nn_part_t input = lap_nn_input(nn, nn->seq), output = lap_nn_output(nn, nn->seq);
    LAP_TRY(check_tensor(nn, "dy", dy, &output));
    LAP_TRY(check_tensor(nn, "dx", dx, &input));
    LAP_TRY(check_apart("dx", dx, "dy", dy));
    LAP_TRY(check_apart("dx", dx, "x", &nn->blocks[0].x));
    LAP_TRY(check_replicas(nn));
    if (nn->in_backward)
        LAP_TRY(lap_nn_wait(nn));
    count_backward(nn);
    nn->in_backward = true;
    nn->kernel_last = false;
    LAP_TRY(lap_engine_calls_begin(nn->engine));
    const lap_status_t status = issue_backward(nn, dy, dx);
    lap_engine_calls_end(nn->engine);
    LAP_TRY(finish(nn, status));
    nn->fresh = false;
    return LAP_OK;
}

/* ---- the loss and data ---- */

lap_status_t lap_nn_loss(lap_nn_t *nn, const lap_tensor_t *y, const lap_tensor_t *target,
                         const lap_tensor_t *dy)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_loss: nn is NULL");
    const lap_nn_part_t output = lap_nn_output(nn, nn->seq);
    LAP_TRY(check_tensor(nn, "y", y, &output));
    LAP_TRY(check_tensor(nn, "target", target, &output));
    LAP_TRY(check_tensor(nn, "dy", dy, &output));
    nn->loss_count = output.all_rows * output.all_cols;
    const lap_square_loss_t loss = {
        .dtype = y->dtype,
        .rows = y->rows,
        .cols = y->cols,
        .y_stride = y->stride,
        .target_stride = target->stride,
        .dy_stride = dy->stride,
        .y = y->data,
        .target = target->data,
        .dy = dy->data,
        .scale = nn->plan.desc.loss_scale / (float)nn->loss_count,
        .sum = nn->loss,
    };
    lap_stream_t *stream;
    nn->kernel_last = false;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->square_loss(stream, &loss);
}

lap_status_t lap_nn_loss_value(lap_nn_t *nn, double *loss_p)
{
    if (!nn || !loss_p)
        return lap_error(LAP_ERR_INVALID, "lap_nn_loss_value: %s is NULL", nn ? "loss_p" : "nn");
    if (nn->loss_count == 0)
        return lap_error(LAP_ERR_INVALID,
                         "lap_nn_loss_value: there is no loss yet, expected lap_nn_loss before");
    const double mine = *nn->loss;
    const bool whole = !nn->plan.desc.sequence_parallel && nn->blocks[0].shape.row;
    void *memory;
    LAP_TRY(lap_group_collect(nn->group, &mine, sizeof(mine), &memory));
    const double *all = memory;
    double sum = all[0];
    for (int r = 1; r < nn->plan.nranks && !whole; r++)
        sum += all[r];
    lap_free(memory);
    *loss_p = 0.5 * sum / (double)nn->loss_count;
    return LAP_OK;
}

lap_status_t lap_nn_fill(lap_nn_t *nn, const lap_tensor_t *matrix, const lap_nn_part_t *part,
                         uint64_t seed, uint64_t tensor, float std)
{
    if (!nn || !part)
        return lap_error(LAP_ERR_INVALID, "lap_nn_fill: %s is NULL", nn ? "part" : "nn");
    LAP_TRY(check_tensor(nn, "matrix", matrix, part));
    const lap_fill_normal_t fill = {
        .dtype = matrix->dtype,
        .std = std,
        .rows = matrix->rows,
        .cols = matrix->cols,
        .stride = matrix->stride,
        .out = matrix->data,
        .seed = seed,
        .tensor = tensor,
        .first = part->first_row * part->all_cols + part->first_col,
        .row_step = part->all_cols,
    };
    lap_stream_t *stream;
    nn->kernel_last = false;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->fill_normal(stream, &fill);
}
