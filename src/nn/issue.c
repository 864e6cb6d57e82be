/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Issuing the kernels of layers: each is given the operands that it was linked and proved with, and the numbers of its
 * entry. What each comes after is no business of theirs.
 */
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
    if (nn->list.regions[region].memory != LAP_NN_EXTERNAL)
        tensor.rows = lap_nn_region_rows(&nn->list, region, nn->seq);
    return tensor;
}

/*
 * Where a memory of a program is. The caller's matrices were linked as packed ones; of a pipeline they are the tokens of
 * all micro-batches.
 */
lap_bound_place_t lap_nn_base(void *context, uint32_t memory)
{
    const lap_nn_t *nn = context;
    if (memory < LAP_NN_MEMORIES)
        return (lap_bound_place_t){.base = nn->memory[memory]};
    if (memory < LAP_NN_WIRE_MEMORY)
        return (lap_bound_place_t){.base = nn->scratch[memory - LAP_NN_SCRATCH_MEMORY].memory};
    if (memory < LAP_NN_TIED_MEMORY)
        return (lap_bound_place_t){.base = nn->background->memory[memory - LAP_NN_WIRE_MEMORY]};
    if (lap_nn_list_is_stage(&nn->list))
        return (lap_bound_place_t){.base = (char *)nn->tokens.ids};
    const lap_tensor_t *given = &nn->tensors[memory - LAP_NN_GIVEN_MEMORY];
    const lap_nn_region_t *region = &nn->list.regions[memory - LAP_NN_GIVEN_MEMORY];
    const size_t element = lap_dtype_size(region->dtype);
    return (lap_bound_place_t){.base = given->data,
                               .packed_stride = region->stride * element,
                               .stride = given->stride * element};
}

/* ---- streams ---- */

lap_status_t lap_nn_stream(lap_nn_t *nn, lap_stream_t **stream_p)
{
    LAP_TRY(lap_engine_join(nn->engine, LAP_FOREGROUND));
    *stream_p = nn->engine->streams[LAP_STREAM_COMPUTE];
    return LAP_OK;
}

/* ---- operators ---- */

lap_binding_t lap_nn_numbers(const lap_nn_t *nn, const lap_nn_entry_t *entry, size_t m)
{
    const lap_nn_call_t *call = &nn->calls[entry->index];
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = m;
    args.alpha = entry->alpha;
    args.beta = entry->beta;
    args.trace = nn->tracing ? call->trace : NULL;
    return lap_op_bind(call->op, &args);
}

/* ---- what devices do to matrices ---- */

const lap_arg_t *lap_nn_in(const lap_nn_issue_t *issue, uint32_t i)
{
    return lap_operand(issue->operands, i);
}

const lap_arg_t *lap_nn_out(const lap_nn_issue_t *issue, uint32_t i)
{
    return lap_operand(issue->operands, LAP_NN_READS + i);
}

/* dst = src, scaled and finished as the reduction of the entry says; both are packed. */
static lap_status_t issue_reduction(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_reduction_t *reduction = &nn->reductions[entry->index];
    const lap_arg_t *src = lap_nn_in(issue, 0);
    const lap_arg_t *dst = lap_nn_out(issue, 0);
    const lap_reduce_t reduce = {
        .from = src->dtype,
        .to = dst->dtype,
        .dst = dst->data,
        .dst_stride =
            entry->work == LAP_NN_CONVERT ? dst->pitch : src->cols * lap_dtype_size(dst->dtype),
        .srcs = (const void *const *)&src->data,
        .src_strides = &src->pitch,
        .scales = reduction->scale ? &reduction->scale : NULL,
        .nsrc = 1,
        .rows = src->rows,
        .cols = src->cols,
        .finish = &reduction->finish,
    };
    return nn->engine->device->ops->reduce(issue->stream, &reduce);
}

static lap_status_t issue_copy(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *src = lap_nn_in(issue, 0);
    const lap_arg_t *dst = lap_nn_out(issue, 0);
    const lap_copy_t copy = {
        .dst = dst->data,
        .src = src->data,
        .rows = src->rows,
        .row_bytes = src->cols * lap_dtype_size(src->dtype),
        .dst_stride = dst->pitch,
        .src_stride = src->pitch,
    };
    return nn->engine->device->ops->copy(issue->stream, &copy);
}

/*
 * Tokens of several ranks, which have their early half and then their late one, in the order of
 * positions: all early halves, and then the late ones from the last rank on. Or back.
 */
static lap_status_t issue_reorder(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const bool all = nn->list.regions[entry->reads[0]].extent == LAP_NN_SEQ_TOKENS;
    const size_t heads = desc->cp_a2a, width = all ? heads : 1;
    const size_t begin = all ? 0 : (size_t)nn->list.cp_rank / heads * heads;
    const lap_arg_t *src = lap_nn_in(issue, 0);
    const lap_arg_t *dst = lap_nn_out(issue, 0);
    const size_t row = src->pitch;
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
            const lap_copy_t copy = {.dst = (char *)dst->data + to * row,
                                     .src = (const char *)src->data + from * row,
                                     .rows = counts[half],
                                     .row_bytes = row,
                                     .dst_stride = row,
                                     .src_stride = row};
            if (counts[half] > 0)
                LAP_TRY(nn->engine->device->ops->copy(issue->stream, &copy));
            by_rank += counts[half];
        }
    }
    return LAP_OK;
}

/* Columns of a matrix of heads, and where they are in the part of a rank. */
static lap_status_t copy_heads(const lap_nn_issue_t *issue, const lap_arg_t *all, size_t col,
                               char *part, size_t part_col, size_t width, size_t cols, bool back)
{
    const size_t element = lap_dtype_size(all->dtype);
    char *heads = (char *)all->data + col * element, *own = part + part_col * element;
    const lap_copy_t copy = {
        .dst = back ? heads : own,
        .src = back ? own : heads,
        .rows = all->rows,
        .row_bytes = cols * element,
        .dst_stride = back ? all->pitch : width * element,
        .src_stride = back ? width * element : all->pitch,
    };
    return issue->nn->engine->device->ops->copy(issue->stream, &copy);
}

/* Queries, and with them keys and values if the matrix has them: of each rank its share of heads. */
static lap_status_t issue_pack(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const bool back = entry->index != 0;
    const lap_arg_t *all = back ? lap_nn_out(issue, 0) : lap_nn_in(issue, 0);
    const lap_arg_t *parts = back ? lap_nn_in(issue, 0) : lap_nn_out(issue, 0);
    const size_t ranks = desc->cp_a2a, nranks = (size_t)nn->list.plan.nranks;
    const size_t queries = desc->heads / nranks * desc->head_dim;
    const size_t keys = desc->kv_heads / nranks * desc->head_dim;
    const bool has_keys = all->cols > queries;
    for (size_t r = 0; r < ranks && all->rows > 0; r++) {
        char *part = (char *)parts->data + r * all->rows * parts->pitch;
        const size_t q = queries / ranks, k = keys / ranks;
        LAP_TRY(copy_heads(issue, all, r * q, part, 0, lap_arg_stride(parts), q, back));
        for (size_t i = 0; i < 2 && has_keys; i++)
            LAP_TRY(copy_heads(issue, all, queries + i * keys + r * k, part, q + i * k,
                               lap_arg_stride(parts), k, back));
    }
    return LAP_OK;
}

/* The copy of a matrix in another type, which is packed; the elements of a vector are one row. */
static lap_status_t issue_cast(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *src = lap_nn_in(issue, 0);
    const lap_arg_t *dst = lap_nn_out(issue, 0);
    const bool one_row = lap_arg_stride(src) == src->cols && !lap_dtype_is_fp8(dst->dtype);
    const size_t cols = one_row ? src->rows * src->cols : src->cols;
    const lap_cast_t cast = {
        .from = src->dtype,
        .to = dst->dtype,
        .src = src->data,
        .dst = dst->data,
        .src_stride = src->pitch,
        .dst_stride = cols * lap_dtype_size(dst->dtype),
        .rows = one_row ? 1 : src->rows,
        .cols = cols,
        .scale = lap_nn_in(issue, 1)->data,
        .amax = lap_nn_out(issue, 1)->data,
    };
    return nn->engine->device->ops->cast(issue->stream, &cast);
}

static lap_status_t issue_transpose(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *src = lap_nn_in(issue, 0), *dst = lap_nn_out(issue, 0);
    const lap_transpose_t transpose = {
        .src = src->data,
        .dst = dst->data,
        .rows = src->rows,
        .cols = src->cols,
        .src_stride = lap_arg_stride(src),
        .dst_stride = lap_arg_stride(dst),
    };
    return nn->engine->device->ops->transpose(issue->stream, &transpose);
}

/* See finite.c. */
static lap_status_t issue_look(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_amax_t look = {.src = lap_arg_tensor(lap_nn_in(issue, 0)),
                             .amax = &nn->looks[issue->entry->index]};
    return look.src.rows > 0 && look.src.cols > 0 ? nn->kernels->amax(issue->stream, &look)
                                                  : LAP_OK;
}

/* Of entries that are no kernels. */
static lap_status_t issue_nothing(const lap_nn_issue_t *issue)
{
    return lap_error(LAP_ERR_INVALID, "entry '%s' is no kernel: nothing can be issued for it",
                     issue->entry->name);
}

/* ---- of buckets ---- */

/* What this rank has of each weight of a bucket becomes FP8, by its scale. */
static lap_status_t pack_fp8(const lap_nn_t *nn, size_t index, const lap_operands_t *operands,
                             lap_stream_t *stream)
{
    const lap_nn_list_t *list = &nn->list;
    const lap_nn_buckets_t *buckets = nn->background->replicas.buckets;
    const lap_nn_bucket_t *bucket = &buckets->list[index];
    const float *masters = lap_operand(operands, LAP_NN_CAST_FROM)->data;
    const char *scales = lap_operand(operands, LAP_NN_CAST_SCALES)->data;
    uint8_t *packed = lap_operand(operands, LAP_NN_CAST_TO)->data;
    const size_t first = lap_nn_shard_begin(buckets, index, buckets->replica);
    size_t begin, offset;
    (void)lap_nn_bucket_shard(buckets, index, buckets->replica, &begin);
    for (uint32_t place = bucket->first; place <= bucket->last; place++) {
        const lap_nn_weight_t *weight = &list->weights[list->order[place]];
        const lap_nn_share_t own = lap_nn_own_share(list, weight);
        (void)lap_nn_region_root(list, list->regions[weight->copy].scale, &offset);
        const lap_cast_t cast = {.from = LAP_FLOAT32,
                                 .to = LAP_FLOAT8_E4M3,
                                 .src = masters + (own.at - first),
                                 .dst = packed + (own.begin - begin),
                                 .src_stride = own.count * sizeof(float),
                                 .dst_stride = own.count,
                                 .rows = 1,
                                 .cols = own.count,
                                 .scale = (const float *)(const void *)(scales + offset)};
        if (own.count > 0)
            LAP_TRY(nn->engine->device->ops->cast(stream, &cast));
    }
    return LAP_OK;
}

lap_status_t lap_nn_issue_cast(const lap_nn_t *nn, size_t index, int which,
                               const lap_operands_t *operands, lap_stream_t *stream)
{
    const lap_nn_bucket_t *bucket = &nn->background->replicas.buckets->list[index];
    const lap_arg_t *from = lap_operand(operands, LAP_NN_CAST_FROM);
    const lap_arg_t *to = lap_operand(operands, LAP_NN_CAST_TO);
    if (which == LAP_NN_BUCKET_PACK && lap_dtype_is_fp8(bucket->weights))
        return pack_fp8(nn, index, operands, stream);
    const lap_reduce_t cast = {.from = from->dtype,
                               .to = to->dtype,
                               .nsrc = 1,
                               .rows = from->rows,
                               .cols = from->cols,
                               .dst = to->data,
                               .dst_stride = to->pitch,
                               .srcs = (const void *const *)&from->data,
                               .src_strides = &from->pitch};
    return cast.rows > 0 ? nn->engine->device->ops->reduce(stream, &cast) : LAP_OK;
}

/* ---- all of them ---- */

static lap_status_t launch(const lap_nn_issue_t *issue, lap_kernel_id_t kernel)
{
    lap_kernel_args_t args;
    lap_kernel_take(kernel, issue->operands, &args);
    lap_nn_add_constants(issue, &args);
    return lap_kernel_launch(issue->nn->kernels, issue->stream, kernel, &args);
}

lap_status_t lap_nn_issue_entry(const lap_nn_t *nn, uint32_t entry, const lap_operands_t *operands,
                                lap_stream_t *stream)
{
    static lap_status_t (*const issuers[])(const lap_nn_issue_t *) = {
#define ISSUER(work, name, issuer) [LAP_NN_##work - LAP_KERNELS] = issue_##issuer,
        LAP_NN_OTHER_LIST(ISSUER)
#undef ISSUER
    };
    const lap_nn_issue_t issue = {nn, &nn->list.entries[entry], operands, stream};
    const unsigned work = issue.entry->work;
    return work < LAP_KERNELS ? launch(&issue, (lap_kernel_id_t)work)
                              : issuers[work - LAP_KERNELS](&issue);
}

lap_status_t lap_nn_issue_kernel(void *context, uint32_t origin, const lap_operands_t *operands,
                                 lap_stream_t *stream)
{
    const lap_nn_t *nn = context;
    size_t index;
    int which;
    return lap_nn_bucket_of(origin, &index, &which)
               ? lap_nn_issue_cast(nn, index, which, operands, stream)
               : lap_nn_issue_entry(nn, origin, operands, stream);
}
