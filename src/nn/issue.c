/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the entries of a list are given: regions become tensors, calls of operators get their memory
 * and numbers, and kernels their arguments. What each comes after is no business of theirs.
 */
#include <math.h>

#include "core/status.h"
#include "nn/context.h"
#include "nn/nn.h"
#include "nn/program.h"
#include "overlap/op.h"

/* ---- tensors ---- */

lap_tensor_t lap_nn_tensor(const lap_nn_t *nn, uint32_t region)
{
    if (region == LAP_NN_NONE)
        return (lap_tensor_t){.data = NULL};
    lap_tensor_t tensor = nn->tensors[region];
    if (nn->list.regions[region].memory != LAP_NN_EXTERNAL || lap_nn_list_is_stage(&nn->list))
        tensor.rows = lap_nn_region_rows(&nn->list, region, nn->seq);
    if (nn->list.regions[region].memory == LAP_NN_EXTERNAL && lap_nn_list_is_stage(&nn->list))
        tensor.data =
            nn->tokens.ids + (size_t)nn->micro * nn->list.plan.m * LAP_ID_COLS; /* tokens */
    return tensor;
}

static void *data(const lap_nn_t *nn, uint32_t region)
{
    return region == LAP_NN_NONE ? NULL : nn->tensors[region].data;
}

/* What a GEMM takes, and the slot of its scale if it is FP8. */
static lap_tensor_t operand(const lap_nn_t *nn, uint32_t region, const float **scale_p)
{
    if (region != LAP_NN_NONE)
        *scale_p = data(nn, nn->list.regions[region].scale);
    return lap_nn_tensor(nn, region);
}

/* A vector, as operators want it. */
static lap_tensor_t vector(const lap_nn_t *nn, uint32_t region)
{
    const lap_tensor_t tensor = lap_nn_tensor(nn, region);
    return lap_tensor(tensor.data, tensor.dtype, 1, tensor.rows * tensor.cols);
}

/* ---- streams ---- */

lap_status_t lap_nn_stream(lap_nn_t *nn, lap_stream_t **stream_p)
{
    if (!nn->stream) {
        LAP_TRY(lap_nn_flush(nn));
        LAP_TRY(lap_engine_join(nn->engine, LAP_FOREGROUND));
    }
    *stream_p = nn->stream ? nn->stream : nn->engine->streams[LAP_STREAM_COMPUTE];
    return LAP_OK;
}

lap_status_t lap_nn_amax(lap_nn_t *nn, const lap_tensor_t *matrix, float *amax)
{
    const lap_amax_t measure = {
        .dtype = matrix->dtype,
        .rows = matrix->rows,
        .cols = matrix->cols,
        .stride = matrix->stride,
        .src = matrix->data,
        .amax = amax,
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->amax(stream, &measure);
}

/* ---- operators ---- */

lap_op_args_t lap_nn_args_of(const lap_nn_t *nn, const lap_nn_entry_t *entry)
{
    const lap_nn_call_t *call = &nn->calls[entry->index];
    const uint32_t *reads = entry->reads, *writes = entry->writes;
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = lap_nn_step_rows(&nn->list, entry->index, nn->seq);
    args.a = operand(nn, reads[LAP_NN_A], &args.a_scale_ptr);
    args.b = operand(nn, reads[LAP_NN_B], &args.b_scale_ptr);
    args.x = operand(nn, reads[LAP_NN_X], &args.wire_scale_ptr);
    args.d = lap_nn_tensor(nn, writes[LAP_NN_D]);
    args.gathered = args.y = lap_nn_tensor(nn, writes[LAP_NN_SECOND]);
    if (reads[LAP_NN_BIAS] != LAP_NN_NONE)
        args.bias = vector(nn, reads[LAP_NN_BIAS]);
    if (writes[LAP_NN_BIAS_GRAD] != LAP_NN_NONE)
        args.bias_grad = vector(nn, writes[LAP_NN_BIAS_GRAD]);
    if (reads[LAP_NN_AUX_IN] != LAP_NN_NONE)
        args.aux = lap_nn_tensor(nn, reads[LAP_NN_AUX_IN]);
    if (writes[LAP_NN_AUX_OUT] != LAP_NN_NONE)
        args.aux = lap_nn_tensor(nn, writes[LAP_NN_AUX_OUT]);
    args.scales = data(nn, writes[LAP_NN_SCALES]);
    args.alpha = entry->alpha;
    args.beta = entry->beta;
    args.trace = nn->tracing ? call->trace : NULL;
    return args;
}

/* ---- kernels ---- */

lap_mask_t lap_nn_mask_of(const lap_nn_t *nn, uint32_t site, uint32_t ids, float rate)
{
    return (lap_mask_t){
        .rate = rate, .site = site, .seed = nn->list.plan.desc.seed, .ids = data(nn, ids)};
}

/* Of the probabilities of attention; `ids` is none where nothing is dropped. */
static lap_mask_t attention_mask(const lap_nn_t *nn, const lap_nn_entry_t *entry, uint32_t ids)
{
    const lap_nn_plan_t *plan = &nn->list.plan;
    return lap_nn_mask_of(nn, LAP_MASK_ATTENTION(lap_nn_plan_block(plan, entry->block)), ids,
                          plan->desc.attention_dropout);
}

/* Of all heads, the first that is attended to here: those of a rank are shared by its neighbours. */
static size_t first_head(const lap_nn_t *nn)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const size_t here = desc->heads / (size_t)nn->list.plan.nranks;
    return here * (size_t)nn->list.rank +
           here / desc->cp_a2a * ((size_t)nn->list.cp_rank % desc->cp_a2a);
}

static lap_status_t issue_norm(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t x = lap_nn_tensor(nn, entry->reads[0]);
    const lap_norm_forward_t norm = {
        .kind = nn->list.plan.desc.norm,
        .dtype = x.dtype,
        .rows = x.rows,
        .cols = x.cols,
        .x_stride = x.stride,
        .y_stride = x.cols,
        .x = x.data,
        .y = data(nn, entry->writes[0]),
        .gamma = data(nn, entry->reads[1]),
        .beta = data(nn, entry->reads[2]),
        .mean = data(nn, entry->writes[1]),
        .rstd = data(nn, entry->writes[2]),
        .scratch = data(nn, entry->writes[3]),
        .epsilon = nn->list.plan.desc.epsilon,
    };
    return nn->kernels->norm_forward(stream, &norm);
}

static lap_status_t issue_norm_backward(lap_nn_t *nn, lap_stream_t *stream,
                                        const lap_nn_entry_t *entry)
{
    const lap_tensor_t x = lap_nn_tensor(nn, entry->reads[0]);
    const lap_tensor_t skip = lap_nn_tensor(nn, entry->reads[2]);
    const lap_tensor_t dx = lap_nn_tensor(nn, entry->writes[0]);
    const lap_norm_backward_t norm = {
        .kind = nn->list.plan.desc.norm,
        .dtype = x.dtype,
        .rows = x.rows,
        .cols = x.cols,
        .x_stride = x.stride,
        .dy_stride = x.cols,
        .skip_stride = skip.stride,
        .dx_stride = dx.stride,
        .x = x.data,
        .dy = data(nn, entry->reads[1]),
        .skip = skip.data,
        .dx = dx.data,
        .gamma = data(nn, entry->reads[3]),
        .mean = data(nn, entry->reads[4]),
        .rstd = data(nn, entry->reads[5]),
        .dgamma = data(nn, entry->writes[1]),
        .dbeta = data(nn, entry->writes[2]),
        .scratch = data(nn, entry->writes[3]),
    };
    return nn->kernels->norm_backward(stream, &norm);
}

static lap_status_t issue_attention(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const size_t ranks = (size_t)nn->list.plan.nranks * desc->cp_a2a; /* that share heads */
    const bool backward = entry->work == LAP_NN_ATTEND_BACKWARD;
    const lap_tensor_t out = lap_nn_tensor(nn, backward ? entry->reads[2] : entry->writes[0]);
    const lap_attention_t attention = {
        .dtype = desc->dtype,
        .scale = (float)(1 / sqrt((double)desc->head_dim)),
        .seq = nn->seq,
        .batch = desc->batch,
        .heads = desc->heads / ranks,
        .kv_heads = desc->kv_heads / ranks,
        .dim = desc->head_dim,
        .qkv_stride = nn->tensors[entry->reads[0]].stride,
        .out_stride = out.stride,
        .qkv = data(nn, entry->reads[0]),
        .out = out.data,
        .lse = data(nn, backward ? entry->reads[3] : entry->writes[1]),
        .dout = backward ? data(nn, entry->reads[1]) : NULL,
        .dqkv = backward ? data(nn, entry->writes[0]) : NULL,
        .scratch = data(nn, backward ? entry->writes[1] : entry->writes[2]),
        .mask = attention_mask(nn, entry, entry->reads[backward ? 4 : 1]),
        .first_head = first_head(nn),
    };
    return backward ? nn->kernels->attention_backward(stream, &attention)
                    : nn->kernels->attention_forward(stream, &attention);
}

/* Attention to the keys of one group of the context, or to all: see context.h. */
static lap_status_t issue_block(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const size_t shared = (size_t)nn->list.plan.nranks * desc->cp_a2a;
    const size_t ring = lap_nn_ring(desc), own = (size_t)nn->list.cp_rank / desc->cp_a2a;
    const bool backward = entry->work == LAP_NN_ATTEND_BLOCK_BACKWARD, all = entry->index == ring;
    const lap_tensor_t qkv = lap_nn_tensor(nn, entry->reads[0]);
    const lap_tensor_t out = lap_nn_tensor(nn, backward ? entry->reads[3] : entry->writes[0]);
    const lap_tensor_t sums = lap_nn_tensor(nn, entry->writes[0]);
    const size_t width = 2 * (desc->kv_heads / shared) * desc->head_dim;
    size_t first = 0;
    lap_attention_t block = {
        .dtype = desc->dtype,
        .scale = (float)(1 / sqrt((double)desc->head_dim)),
        .seq = lap_nn_group_tokens(desc, nn->seq, own),
        .batch = desc->batch,
        .heads = desc->heads / shared,
        .kv_heads = desc->kv_heads / shared,
        .dim = desc->head_dim,
        .qkv_stride = qkv.stride,
        .out_stride = out.stride,
        .qkv = qkv.data,
        .out = out.data,
        .lse = data(nn, backward ? entry->reads[4] : entry->writes[1]),
        .dout = backward ? data(nn, entry->reads[2]) : NULL,
        .dqkv = backward ? sums.data : NULL,
        .dq_stride = sums.stride,
        .scratch = data(nn, entry->writes[2]),
        .keys = all ? nn->seq : lap_shard(nn->seq, (int)ring, (int)entry->index, &first),
        .queries_at = lap_nn_context_halves(desc, nn->seq, own * desc->cp_a2a, desc->cp_a2a),
        .kv_stride = width,
        .dkv_stride = width,
        .merges = entry->beta != 0,
        .mask = attention_mask(nn, entry, entry->reads[backward ? 5 : 3]),
        .first_head = first_head(nn),
        .mask_seq = nn->seq,
    };
    const size_t skip = first * desc->batch * width;
    if (!all)
        block.keys_at =
            lap_nn_context_halves(desc, nn->seq, entry->index * desc->cp_a2a, desc->cp_a2a);
    if (entry->reads[1] != LAP_NN_NONE) {
        block.kv = (const char *)data(nn, entry->reads[1]) + skip * lap_dtype_size(desc->dtype);
    } else {
        block.kv =
            (const char *)qkv.data + block.heads * desc->head_dim * lap_dtype_size(desc->dtype);
        block.kv_stride = qkv.stride;
    }
    if (backward)
        block.dkv = (float *)data(nn, entry->writes[1]) + skip;
    return backward ? nn->kernels->attention_backward(stream, &block)
                    : nn->kernels->attention_forward(stream, &block);
}

static lap_status_t issue_swiglu(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const bool backward = entry->work == LAP_NN_GATE_BACKWARD;
    const lap_tensor_t out = lap_nn_tensor(nn, backward ? entry->reads[1] : entry->writes[0]);
    const lap_swiglu_t swiglu = {
        .dtype = out.dtype,
        .rows = out.rows,
        .cols = out.cols,
        .pre_stride = nn->tensors[entry->reads[0]].stride,
        .out_stride = out.stride,
        .pre = data(nn, entry->reads[0]),
        .out = backward ? NULL : out.data,
        .dout = backward ? out.data : NULL,
        .dpre = backward ? data(nn, entry->writes[0]) : NULL,
    };
    return backward ? nn->kernels->swiglu_backward(stream, &swiglu)
                    : nn->kernels->swiglu_forward(stream, &swiglu);
}

/* dst = src, scaled and finished as the reduction of the entry says; both are packed. */
static lap_status_t issue_reduction(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    lap_nn_reduction_t *reduction = &nn->reductions[entry->index];
    const lap_tensor_t src = lap_nn_tensor(nn, entry->reads[0]);
    const lap_tensor_t dst = lap_nn_tensor(nn, entry->writes[0]);
    const lap_reduce_t reduce = {
        .from = src.dtype,
        .to = dst.dtype,
        .dst = dst.data,
        .dst_stride =
            (entry->work == LAP_NN_CONVERT ? dst.stride : src.cols) * lap_dtype_size(dst.dtype),
        .srcs = &reduction->src,
        .src_strides = &reduction->src_stride,
        .scales = reduction->scale ? &reduction->scale : NULL,
        .nsrc = 1,
        .rows = src.rows,
        .cols = src.cols,
        .finish = &reduction->finish,
    };
    return nn->engine->device->ops->reduce(stream, &reduce);
}

static lap_status_t issue_copy(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t src = lap_nn_tensor(nn, entry->reads[0]);
    const lap_tensor_t dst = lap_nn_tensor(nn, entry->writes[0]);
    const size_t element = lap_dtype_size(src.dtype);
    const lap_copy_t copy = {
        .dst = dst.data,
        .src = src.data,
        .rows = src.rows,
        .row_bytes = src.cols * element,
        .dst_stride = dst.stride * element,
        .src_stride = src.stride * element,
    };
    return nn->engine->device->ops->copy(stream, &copy);
}

/*
 * Tokens of several ranks, which have their early half and then their late one, in the order of
 * positions: all early halves, and then the late ones from the last rank on. Or back.
 */
static lap_status_t issue_reorder(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const bool all = nn->list.regions[entry->reads[0]].extent == LAP_NN_SEQ_TOKENS;
    const size_t heads = desc->cp_a2a, width = all ? heads : 1;
    const size_t begin = all ? 0 : (size_t)nn->list.cp_rank / heads * heads;
    const lap_tensor_t src = lap_nn_tensor(nn, entry->reads[0]);
    const lap_tensor_t dst = lap_nn_tensor(nn, entry->writes[0]);
    const size_t row = src.stride * lap_dtype_size(src.dtype);
    const lap_halves_t group = lap_nn_context_halves(desc, nn->seq, begin, all ? desc->cp : heads);
    size_t by_rank = 0; /* tokens before */
    for (size_t r = begin; r < begin + (all ? desc->cp : heads); r += width) {
        const lap_halves_t own = lap_nn_context_halves(desc, nn->seq, r, width);
        const size_t count = all ? lap_nn_group_tokens(desc, nn->seq, r / heads)
                                 : lap_nn_context_tokens(desc, nn->seq, r);
        const size_t places[] = {own.first - group.first, own.second - group.second + group.split};
        const size_t counts[] = {own.split, count - own.split};
        for (int half = 0; half < 2; half++) {
            const size_t from = entry->index ? places[half] : by_rank;
            const size_t to = entry->index ? by_rank : places[half];
            const lap_copy_t copy = {.dst = (char *)dst.data + to * row,
                                     .src = (const char *)src.data + from * row,
                                     .rows = counts[half],
                                     .row_bytes = row,
                                     .dst_stride = row,
                                     .src_stride = row};
            if (counts[half] > 0)
                LAP_TRY(nn->engine->device->ops->copy(stream, &copy));
            by_rank += counts[half];
        }
    }
    return LAP_OK;
}

/* Columns of a matrix of heads, and where they are in the part of a rank. */
static lap_status_t copy_heads(lap_nn_t *nn, lap_stream_t *stream, const lap_tensor_t *all,
                               size_t col, char *part, size_t part_col, size_t width, size_t cols,
                               bool back)
{
    const size_t element = lap_dtype_size(all->dtype);
    char *heads = (char *)all->data + col * element, *own = part + part_col * element;
    const lap_copy_t copy = {
        .dst = back ? heads : own,
        .src = back ? own : heads,
        .rows = all->rows,
        .row_bytes = cols * element,
        .dst_stride = (back ? all->stride : width) * element,
        .src_stride = (back ? width : all->stride) * element,
    };
    return nn->engine->device->ops->copy(stream, &copy);
}

/* Queries, and with them keys and values if the matrix has them: of each rank its share of heads. */
static lap_status_t issue_pack(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const bool back = entry->index != 0;
    const lap_tensor_t all = lap_nn_tensor(nn, back ? entry->writes[0] : entry->reads[0]);
    const lap_tensor_t parts = lap_nn_tensor(nn, back ? entry->reads[0] : entry->writes[0]);
    const size_t ranks = desc->cp_a2a, nranks = (size_t)nn->list.plan.nranks;
    const size_t queries = desc->heads / nranks * desc->head_dim;
    const size_t keys = desc->kv_heads / nranks * desc->head_dim;
    const bool has_keys = all.cols > queries;
    for (size_t r = 0; r < ranks && all.rows > 0; r++) {
        char *part = (char *)parts.data + r * all.rows * parts.stride * lap_dtype_size(parts.dtype);
        const size_t q = queries / ranks, k = keys / ranks;
        LAP_TRY(copy_heads(nn, stream, &all, r * q, part, 0, parts.stride, q, back));
        for (size_t i = 0; i < 2 && has_keys; i++)
            LAP_TRY(copy_heads(nn, stream, &all, queries + i * keys + r * k, part, q + i * k,
                               parts.stride, k, back));
    }
    return LAP_OK;
}

/* The copy of a matrix in another type, which is packed; the elements of a vector are one row. */
static lap_status_t issue_cast(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t src = lap_nn_tensor(nn, entry->reads[0]);
    const lap_tensor_t dst = nn->tensors[entry->writes[0]];
    const bool one_row = src.stride == src.cols && !lap_dtype_is_fp8(dst.dtype);
    const size_t cols = one_row ? src.rows * src.cols : src.cols;
    const lap_cast_t cast = {
        .from = src.dtype,
        .to = dst.dtype,
        .src = src.data,
        .dst = dst.data,
        .src_stride = src.stride * lap_dtype_size(src.dtype),
        .dst_stride = cols * lap_dtype_size(dst.dtype),
        .rows = one_row ? 1 : src.rows,
        .cols = cols,
        .scale = data(nn, entry->reads[1]),
        .amax = data(nn, entry->writes[1]),
    };
    return nn->engine->device->ops->cast(stream, &cast);
}

static lap_status_t issue_scale(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t found = nn->tensors[entry->reads[0]];
    const lap_fp8_scales_t scales = {
        .ranks = found.rows,
        .count = found.cols,
        .narrow = entry->index,
        .found = found.data,
        .history = data(nn, entry->writes[1]),
        .length = nn->list.plan.desc.amax_history,
        .amax = data(nn, entry->writes[2]),
        .scales = data(nn, entry->writes[0]),
    };
    return nn->kernels->fp8_scales(stream, &scales);
}

static lap_status_t issue_transpose(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t src = nn->tensors[entry->reads[0]], dst = nn->tensors[entry->writes[0]];
    const lap_transpose_t transpose = {
        .src = src.data,
        .dst = dst.data,
        .rows = src.rows,
        .cols = src.cols,
        .src_stride = src.stride,
        .dst_stride = dst.stride,
    };
    return nn->engine->device->ops->transpose(stream, &transpose);
}

static lap_status_t issue_loss(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t y = lap_nn_tensor(nn, entry->reads[0]);
    const lap_tensor_t target = lap_nn_tensor(nn, entry->reads[1]);
    const lap_tensor_t dy = lap_nn_tensor(nn, entry->writes[0]);
    const lap_square_loss_t loss = {
        .dtype = y.dtype,
        .rows = y.rows,
        .cols = y.cols,
        .y_stride = y.stride,
        .target_stride = target.stride,
        .dy_stride = dy.stride,
        .y = y.data,
        .target = target.data,
        .dy = dy.data,
        .scale = lap_nn_loss_factor(nn) / (float)nn->loss_count,
        .sum = nn->loss,
    };
    return nn->kernels->square_loss(stream, &loss);
}

static lap_status_t issue_zero(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t all = lap_nn_tensor(nn, entry->writes[0]);
    const lap_fill_normal_t fill = {.dtype = all.dtype,
                                    .rows = all.rows,
                                    .cols = all.cols,
                                    .stride = all.stride,
                                    .out = all.data};
    return nn->kernels->fill_normal(stream, &fill);
}

/* ---- of an optimizer ---- */

/* What all ranks that share layers have is counted by the first, and what two stages have by one. */
static lap_status_t issue_squares(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_nn_weight_t *weight = &nn->list.weights[entry->index];
    const lap_nn_param_t *param = &weight->param;
    const uint32_t grad = entry->reads[0];
    const bool counts =
        (!param->replicated || nn->list.rank == 0) && !weight->twin && grad != LAP_NN_NONE;
    const size_t count = !counts                ? 0
                         : grad == weight->grad ? param->rows * param->cols
                                                : nn->tensors[grad].cols;
    const lap_sum_squares_t squares = {
        .src = data(nn, grad), .count = count, .sum = data(nn, entry->writes[0])};
    return nn->kernels->sum_squares(stream, &squares);
}

/* A row of the matrix begins with each number. */
static lap_status_t issue_total(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t numbers = lap_nn_tensor(nn, entry->reads[0]);
    const lap_total_t total = {.src = numbers.data,
                               .count = numbers.rows,
                               .stride = numbers.stride * sizeof(float) / sizeof(double),
                               .total = data(nn, entry->writes[0])};
    return nn->kernels->total(stream, &total);
}

static lap_status_t issue_clip(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_clip_t clip = {.given = &nn->rates[0],
                             .squares = data(nn, entry->reads[0]),
                             .most = nn->optimizer.clip_norm,
                             .rates = data(nn, entry->writes[0]),
                             .result = &nn->rates[1]};
    return nn->kernels->clip(stream, &clip);
}

static lap_status_t issue_update(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_optimizer_desc_t *desc = &nn->optimizer;
    const lap_update_t update = {.kind = desc->kind,
                                 .count = nn->tensors[entry->writes[0]].cols,
                                 .master = data(nn, entry->writes[0]),
                                 .grad = data(nn, entry->reads[0]),
                                 .first = data(nn, entry->writes[1]),
                                 .second = data(nn, entry->writes[2]),
                                 .rates = data(nn, entry->reads[1]),
                                 .decay = entry->index ? desc->weight_decay : 0,
                                 .momentum = desc->momentum,
                                 .beta1 = desc->beta1,
                                 .beta2 = desc->beta2,
                                 .epsilon = desc->epsilon};
    return update.count > 0 ? nn->kernels->update(stream, &update) : LAP_OK;
}

/* ---- entries ---- */

static lap_status_t issue_amax(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    const lap_tensor_t matrix = lap_nn_tensor(nn, entry->reads[0]);
    (void)stream;
    return lap_nn_amax(nn, &matrix, data(nn, entry->writes[0]));
}

static lap_status_t issue_look(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    (void)stream;
    return lap_nn_look(nn, entry);
}

static lap_status_t issue_tokens(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    return lap_nn_issue_tokens(nn, stream, entry);
}

/* Of entries that are no kernels. */
static lap_status_t issue_nothing(lap_nn_t *nn, lap_stream_t *stream, const lap_nn_entry_t *entry)
{
    (void)nn;
    (void)stream;
    return lap_error(LAP_ERR_INVALID, "entry '%s' is no kernel: nothing can be issued for it",
                     entry->name);
}

static lap_status_t issue_entry(lap_nn_t *nn, const lap_nn_entry_t *entry)
{
    static lap_status_t (*const issuers[])(lap_nn_t *, lap_stream_t *, const lap_nn_entry_t *) = {
#define ISSUER(work, name, issuer) issue_##issuer,
        LAP_NN_WORK_LIST(ISSUER)
#undef ISSUER
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return issuers[entry->work](nn, stream, entry);
}

lap_status_t lap_nn_issue_kernel(void *context, uint32_t entry, lap_stream_t *stream)
{
    lap_nn_t *nn = context;
    const lap_nn_background_t *background = nn->background;
    size_t index;
    int which;
    if (lap_nn_bucket_of(entry, &index, &which))
        return background->cast(background->context, index, which, stream);
    nn->stream = stream;
    const lap_status_t status = issue_entry(nn, &nn->list.entries[entry]);
    nn->stream = NULL;
    return status;
}
