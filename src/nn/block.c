/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward and backward of one block: norm, column-parallel GEMM, middle, row-parallel GEMM. All is
 * issued in order and nothing waits: an operator or a kernel reads what those before it wrote.
 * Shapes are those of lap/nn.h; with sequence parallelism gradients take the way back through the
 * all-gather that mirrors each reduce-scatter.
 */
#include <math.h>

#include "core/status.h"
#include "nn/nn.h"

enum { FPROP, DGRAD, WGRAD };

/* This rank's part of what the column-parallel GEMM makes and of what the row-parallel one takes. */
static size_t pre_of(const lap_nn_t *nn, const lap_nn_block_t *block)
{
    return lap_nn_pre_share(&nn->plan, &block->shape, nn->group->rank);
}

static size_t mid_of(const lap_nn_t *nn, const lap_nn_block_t *block)
{
    return lap_nn_mid_share(&nn->plan, &block->shape, nn->group->rank);
}

static lap_tensor_t tensor(const lap_nn_t *nn, void *data, size_t rows, size_t cols)
{
    return lap_tensor(data, nn->plan.desc.dtype, rows, cols);
}

static lap_tensor_t pre_tensor(const lap_nn_t *nn, const lap_nn_block_t *block, void *data)
{
    return tensor(nn, data, lap_nn_rows(nn), pre_of(nn, block));
}

static lap_tensor_t mid_tensor(const lap_nn_t *nn, const lap_nn_block_t *block, void *data)
{
    return tensor(nn, data, lap_nn_rows(nn), mid_of(nn, block));
}

/* What the GEMMs of a block take: behind the norm, or x itself; FP8 copies of it are kept. */
static lap_tensor_t column_input(const lap_nn_t *nn, const lap_nn_block_t *block)
{
    if (!block->shape.norm)
        return block->x;
    return tensor(nn, block->norm_out, lap_nn_own_rows(nn), block->shape.width);
}

static lap_tensor_t row_input(const lap_nn_t *nn, const lap_nn_block_t *block)
{
    return block->shape.column ? mid_tensor(nn, block, block->mid) : block->x;
}

/* A column, as operators want it. */
static lap_tensor_t vector(lap_tensor_t column)
{
    return lap_tensor(column.data, column.dtype, 1, column.rows);
}

/* The two operands of a GEMM. */
static lap_op_args_t operands_of(lap_nn_operand_t a, lap_nn_operand_t b)
{
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.a = a.tensor;
    args.a_scale = a.scale;
    args.b = b.tensor;
    args.b_scale = b.scale;
    return args;
}

static lap_nn_operand_t weight_of(const lap_nn_t *nn, const lap_nn_weight_t *weight)
{
    return lap_nn_fp8_kept(nn, &weight->fp8, &weight->param.weight);
}

/* ---- forward ---- */

static lap_status_t normalize(lap_nn_t *nn, const lap_nn_block_t *block)
{
    const lap_norm_forward_t norm = {
        .kind = nn->plan.desc.norm,
        .dtype = nn->plan.desc.dtype,
        .rows = block->x.rows,
        .cols = block->x.cols,
        .x_stride = block->x.stride,
        .y_stride = block->x.cols,
        .x = block->x.data,
        .y = block->norm_out,
        .gamma = block->gamma->param.master.data,
        .beta = block->beta ? block->beta->param.master.data : NULL,
        .mean = block->mean,
        .rstd = block->rstd,
        .scratch = nn->scratch,
        .epsilon = nn->plan.desc.epsilon,
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->norm_forward(stream, &norm);
}

/* The column-parallel GEMM; `y` is where a block without a row-parallel one ends, else unused. */
static lap_status_t multiply_column(lap_nn_t *nn, const lap_nn_block_t *block, lap_nn_call_t *call,
                                    const lap_tensor_t *y)
{
    const lap_tensor_t input = column_input(nn, block);
    lap_op_args_t args =
        operands_of(lap_nn_fp8_kept(nn, &block->input8, &input), weight_of(nn, block->column));
    args.scales = nn->scales;
    args.d = block->shape.row ? pre_tensor(nn, block, block->pre) : *y;
    if (block->column_bias)
        args.bias = vector(block->column_bias->param.weight);
    if (block->shape.middle == LAP_MIDDLE_GELU) {
        args.aux = args.d;
        args.d = mid_tensor(nn, block, block->mid);
    }
    if (call->step.desc.gather_input)
        args.gathered = lap_tensor(block->full, args.a.dtype, lap_nn_rows(nn), block->shape.width);
    return lap_nn_begin(nn, call, &args);
}

static lap_attention_t attention_of(const lap_nn_t *nn, const lap_nn_block_t *block)
{
    const lap_nn_desc_t *desc = &nn->plan.desc;
    const size_t ranks = (size_t)nn->plan.nranks;
    return (lap_attention_t){
        .dtype = desc->dtype,
        .scale = (float)(1 / sqrt((double)desc->head_dim)),
        .seq = nn->seq,
        .batch = desc->batch,
        .heads = desc->heads / ranks,
        .kv_heads = desc->kv_heads / ranks,
        .dim = desc->head_dim,
        .qkv_stride = pre_of(nn, block),
        .out_stride = mid_of(nn, block),
        .qkv = block->pre,
        .out = block->mid,
        .lse = block->lse,
        .scratch = nn->scratch,
    };
}

static lap_swiglu_t swiglu_of(const lap_nn_t *nn, const lap_nn_block_t *block)
{
    return (lap_swiglu_t){
        .dtype = nn->plan.desc.dtype,
        .rows = lap_nn_rows(nn),
        .cols = mid_of(nn, block),
        .pre_stride = pre_of(nn, block),
        .out_stride = mid_of(nn, block),
        .pre = block->pre,
        .out = block->mid,
    };
}

/* What is between the GEMMs, but for GELU, which the first of them does. */
static lap_status_t middle_forward(lap_nn_t *nn, const lap_nn_block_t *block)
{
    const lap_nn_middle_t middle = block->shape.middle;
    lap_stream_t *stream;
    if (middle != LAP_MIDDLE_SWIGLU && middle != LAP_MIDDLE_ATTENTION)
        return LAP_OK;
    LAP_TRY(lap_nn_stream(nn, &stream));
    if (middle == LAP_MIDDLE_SWIGLU) {
        const lap_swiglu_t swiglu = swiglu_of(nn, block);
        return nn->kernels->swiglu_forward(stream, &swiglu);
    }
    const lap_attention_t attention = attention_of(nn, block);
    return nn->kernels->attention_forward(stream, &attention);
}

static lap_status_t copy(lap_nn_t *nn, const lap_tensor_t *src, const lap_tensor_t *dst)
{
    const size_t element = lap_dtype_size(src->dtype);
    const lap_copy_t copy = {
        .dst = dst->data,
        .src = src->data,
        .rows = src->rows,
        .row_bytes = src->cols * element,
        .dst_stride = dst->stride * element,
        .src_stride = src->stride * element,
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->engine->device->ops->copy(stream, &copy);
}

/* The row-parallel GEMM. Where x is to be added it is put into y first: it is rounded once. */
static lap_status_t multiply_row(lap_nn_t *nn, lap_nn_block_t *block, const lap_tensor_t *y)
{
    const lap_tensor_t input = row_input(nn, block);
    lap_nn_operand_t a;
    if (block->shape.residual)
        LAP_TRY(copy(nn, &block->x, y));
    LAP_TRY(lap_nn_fp8_take(nn, &block->mid8, &input, &a));
    lap_op_args_t args = operands_of(a, weight_of(nn, block->row));
    args.d = *y;
    args.beta = block->shape.residual ? 1.0f : 0.0f;
    if (block->row_bias)
        args.bias = vector(block->row_bias->param.weight);
    return lap_nn_begin(nn, block->row_calls[FPROP], &args);
}

lap_status_t lap_nn_block_forward(lap_nn_t *nn, lap_nn_block_t *block, const lap_tensor_t *x,
                                  const lap_tensor_t *y)
{
    block->x = *x;
    if (block->shape.norm)
        LAP_TRY(normalize(nn, block));
    if (block->shape.column) {
        const lap_tensor_t input = column_input(nn, block);
        lap_nn_operand_t operand;
        LAP_TRY(lap_nn_fp8_take(nn, &block->input8, &input, &operand));
        LAP_TRY(multiply_column(nn, block, block->column_calls[FPROP], y));
    }
    LAP_TRY(middle_forward(nn, block));
    return block->shape.row ? multiply_row(nn, block, y) : LAP_OK;
}

/* ---- backward ---- */

/* Makes again what forward did not keep. FP8 operands it did keep. */
static lap_status_t recompute(lap_nn_t *nn, lap_nn_block_t *block)
{
    const bool fp8 = nn->plan.desc.fp8 != LAP_FP8_NONE;
    if (nn->plan.desc.recompute == LAP_RECOMPUTE_NONE)
        return LAP_OK;
    if (block->shape.norm && !fp8)
        LAP_TRY(normalize(nn, block));
    if (block->again)
        LAP_TRY(multiply_column(nn, block, block->again, &block->x));
    else if (block->shape.middle == LAP_MIDDLE_GELU && !fp8)
        return lap_nn_reduce(nn, &block->gelu, nn->plan.desc.dtype, nn->plan.desc.dtype, block->mid,
                             lap_nn_rows(nn), mid_of(nn, block));
    return middle_forward(nn, block);
}

/*
 * Where backward puts the gradient of a vector: to be summed, scaled or added to the one before; or
 * right where it belongs, when there is nothing of that to do.
 */
static float *partial_of(const lap_nn_t *nn, const lap_nn_weight_t *weight)
{
    const bool done = nn->fresh && !weight->summed && nn->plan.desc.loss_scale == 1;
    return done ? weight->param.grad.data : weight->partial;
}

/* The gradient of a parameter is on its way. */
static lap_status_t ready(lap_nn_t *nn, lap_nn_weight_t *weight)
{
    if (!weight || weight->summed)
        return LAP_OK;
    if (weight->partial && partial_of(nn, weight) == weight->partial)
        LAP_TRY(lap_nn_add_partial(nn, weight));
    return lap_nn_tell_ready(nn, weight->index);
}

/* What the two wgrad GEMMs have in common: dw = dy^T x, and the sums of the rows of dy. */
static lap_op_args_t wgrad_args(const lap_nn_t *nn, const lap_nn_weight_t *weight,
                                const lap_nn_weight_t *bias, lap_nn_operand_t dy,
                                lap_nn_operand_t x)
{
    lap_op_args_t args = operands_of(dy, x);
    args.d = weight->param.grad;
    args.alpha = 1 / nn->plan.desc.loss_scale;
    args.beta = nn->fresh ? 0.0f : 1.0f;
    if (bias)
        args.bias_grad = lap_tensor(partial_of(nn, bias), LAP_FLOAT32, 1, bias->param.rows);
    return args;
}

/* Through the row-parallel GEMM to `d`, the gradient of what it took. */
static lap_status_t row_backward(lap_nn_t *nn, lap_nn_block_t *block, const lap_tensor_t *dy,
                                 lap_tensor_t d)
{
    const lap_tensor_t input = row_input(nn, block);
    lap_nn_call_t *dgrad = block->row_calls[DGRAD];
    lap_nn_operand_t gradient;
    LAP_TRY(lap_nn_fp8_take(nn, &block->dy8, dy, &gradient));
    lap_op_args_t args = operands_of(gradient, lap_nn_fp8_turned(nn, block->row));
    args.d = d;
    args.scales = nn->scales;
    if (block->shape.middle == LAP_MIDDLE_GELU)
        args.aux = pre_tensor(nn, block, block->pre);
    if (dgrad->step.desc.gather_input)
        gradient.tensor = args.gathered =
            lap_tensor(nn->dy_full, args.a.dtype, lap_nn_rows(nn), block->shape.out);
    LAP_TRY(lap_nn_begin(nn, dgrad, &args));
    args = wgrad_args(nn, block->row, block->row_bias, gradient,
                      lap_nn_fp8_kept(nn, &block->mid8, &input));
    LAP_TRY(lap_nn_begin(nn, block->row_calls[WGRAD], &args));
    LAP_TRY(ready(nn, block->row_bias));
    return ready(nn, block->row);
}

static lap_status_t middle_backward(lap_nn_t *nn, const lap_nn_block_t *block)
{
    lap_stream_t *stream;
    if (block->shape.middle == LAP_MIDDLE_GELU)
        return LAP_OK; /* the row-parallel GEMM has done it */
    LAP_TRY(lap_nn_stream(nn, &stream));
    if (block->shape.middle == LAP_MIDDLE_SWIGLU) {
        lap_swiglu_t swiglu = swiglu_of(nn, block);
        swiglu.dout = nn->dmid;
        swiglu.dpre = nn->dpre;
        return nn->kernels->swiglu_backward(stream, &swiglu);
    }
    lap_attention_t attention = attention_of(nn, block);
    attention.dout = nn->dmid;
    attention.dqkv = nn->dpre;
    return nn->kernels->attention_backward(stream, &attention);
}

/*
 * Through the column-parallel GEMM to `d`, the gradient of what it took. By default the input is
 * gathered beside dgrad and the gradient reduced beside wgrad; or dgrad reduces by itself, and the
 * whole input is there.
 */
static lap_status_t column_backward(lap_nn_t *nn, lap_nn_block_t *block, const lap_tensor_t *dpre,
                                    lap_tensor_t d)
{
    const size_t rows = lap_nn_rows(nn), width = block->shape.width;
    lap_nn_call_t *dgrad = block->column_calls[DGRAD], *wgrad = block->column_calls[WGRAD];
    const bool bulk = dgrad->step.desc.kind == LAP_BULK_AG;
    const lap_tensor_t own = column_input(nn, block), part = tensor(nn, nn->dx_part, rows, width);
    lap_nn_operand_t input = lap_nn_fp8_kept(nn, &block->input8, &own), gradient;
    LAP_TRY(lap_nn_fp8_take(nn, &block->dpre8, dpre, &gradient));
    lap_op_args_t args = operands_of(gradient, lap_nn_fp8_turned(nn, block->column));
    args.d = bulk ? part : d;
    args.scales = nn->scales;
    if (bulk) {
        args.x = input.tensor;
        args.wire_scale = input.scale;
    }
    if (nn->plan.desc.sequence_parallel)
        input.tensor = lap_tensor(block->full, input.tensor.dtype, rows, width);
    if (bulk)
        args.y = input.tensor;
    LAP_TRY(lap_nn_begin(nn, dgrad, &args));
    args = wgrad_args(nn, block->column, block->column_bias, gradient, input);
    if (bulk) {
        args.x = part;
        args.y = d;
    }
    LAP_TRY(lap_nn_begin(nn, wgrad, &args));
    LAP_TRY(ready(nn, block->column_bias));
    return ready(nn, block->column);
}

static lap_status_t norm_backward(lap_nn_t *nn, const lap_nn_block_t *block, const lap_tensor_t *dy,
                                  const lap_tensor_t *dx)
{
    const lap_norm_backward_t norm = {
        .kind = nn->plan.desc.norm,
        .dtype = nn->plan.desc.dtype,
        .rows = block->x.rows,
        .cols = block->x.cols,
        .x_stride = block->x.stride,
        .dy_stride = block->x.cols,
        .skip_stride = dy->stride,
        .dx_stride = dx->stride,
        .x = block->x.data,
        .dy = nn->dnorm,
        .skip = block->shape.residual ? dy->data : NULL,
        .dx = dx->data,
        .gamma = block->gamma->param.master.data,
        .mean = block->mean,
        .rstd = block->rstd,
        .dgamma = partial_of(nn, block->gamma),
        .dbeta = block->beta ? partial_of(nn, block->beta) : NULL,
        .scratch = nn->scratch,
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->norm_backward(stream, &norm);
}

lap_status_t lap_nn_block_backward(lap_nn_t *nn, lap_nn_block_t *block, const lap_tensor_t *dy,
                                   const lap_tensor_t *dx)
{
    const lap_nn_shape_t *shape = &block->shape;
    lap_tensor_t dpre = *dy, dnorm = *dx;
    LAP_TRY(recompute(nn, block));
    if (shape->row && !shape->column)
        return row_backward(nn, block, dy, *dx);
    if (shape->row) {
        const bool gelu = shape->middle == LAP_MIDDLE_GELU;
        dpre = pre_tensor(nn, block, nn->dpre);
        LAP_TRY(row_backward(nn, block, dy, gelu ? dpre : mid_tensor(nn, block, nn->dmid)));
        LAP_TRY(middle_backward(nn, block));
    }
    if (shape->norm)
        dnorm = tensor(nn, nn->dnorm, lap_nn_own_rows(nn), shape->width);
    LAP_TRY(column_backward(nn, block, &dpre, dnorm));
    if (!shape->norm)
        return LAP_OK;
    LAP_TRY(norm_backward(nn, block, dy, dx));
    LAP_TRY(ready(nn, block->beta));
    return ready(nn, block->gamma);
}
