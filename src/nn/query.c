/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked about layers: the shares of their input and output, their GEMMs, and traces of these. */
#include "core/status.h"
#include "nn/nn.h"

/* Rows that are whole here, or this rank's share of them. */
static lap_nn_part_t part_of(const lap_nn_t *nn, size_t seq, bool own_rows, size_t cols,
                             bool own_cols)
{
    const size_t m =
        lap_nn_tokens(&nn->list, seq ? seq : nn->list.plan.desc.seq) * nn->list.plan.desc.batch;
    lap_nn_part_t part = {.rows = m, .cols = cols, .all_rows = m, .all_cols = cols};
    if (own_rows && nn->list.plan.desc.sequence_parallel)
        part.rows = lap_shard(m, nn->list.plan.nranks, nn->group->rank, &part.first_row);
    if (own_cols)
        part.cols =
            lap_shard_features(cols, nn->list.plan.nranks, nn->group->rank, &part.first_col);
    return part;
}

lap_nn_part_t lap_nn_input(const lap_nn_t *nn, size_t seq)
{
    if (!nn)
        return (lap_nn_part_t){.rows = 0};
    const lap_nn_shape_t *shape = &nn->list.blocks[0].shape;
    if (lap_nn_list_is_model(&nn->list))
        return part_of(nn, seq, false, 1, false);
    return part_of(nn, seq, shape->column, shape->width, !shape->column);
}

lap_nn_part_t lap_nn_output(const lap_nn_t *nn, size_t seq)
{
    if (!nn)
        return (lap_nn_part_t){.rows = 0};
    const lap_nn_shape_t *shape = &nn->list.blocks[nn->list.plan.nblocks - 1].shape;
    if (shape->head) {
        lap_nn_part_t logits = part_of(nn, seq, false, nn->list.plan.desc.vocab, false);
        logits.cols = lap_nn_vocab_share(&nn->list.plan, nn->list.rank, &logits.first_col);
        return logits;
    }
    return part_of(nn, seq, shape->row, shape->row ? shape->out : shape->pre, !shape->row);
}

size_t lap_nn_gemms(const lap_nn_t *nn)
{
    size_t count = 0;
    for (size_t i = 0; nn && i < nn->ncalls; i++)
        count += nn->list.steps[i].block != LAP_NN_NONE;
    return count;
}

/* The call of GEMM `index`. */
static size_t find_gemm(const lap_nn_t *nn, size_t index)
{
    size_t call = 0;
    while (nn->list.steps[call].block == LAP_NN_NONE || index-- > 0)
        call++;
    return call;
}

lap_status_t lap_nn_gemm(const lap_nn_t *nn, size_t index, lap_nn_gemm_t *gemm_p)
{
    if (!nn || !gemm_p)
        return lap_error(LAP_ERR_INVALID, "lap_nn_gemm: %s is NULL", nn ? "gemm_p" : "nn");
    if (index >= lap_nn_gemms(nn))
        return lap_error(LAP_ERR_INVALID, "index is %zu, expected less than %zu", index,
                         lap_nn_gemms(nn));
    const size_t found = find_gemm(nn, index);
    const lap_nn_call_t *call = &nn->calls[found];
    const lap_nn_step_t *step = &nn->list.steps[found];
    const lap_op_desc_t *desc = &step->desc;
    *gemm_p = (lap_nn_gemm_t){
        .gemm = step->gemm,
        .layer = nn->list.blocks[step->block].shape.layer,
        .kind = lap_op_kind_name(desc->kind),
        .method = lap_op_method(call->op),
        .m = desc->m,
        .n = desc->n,
        .k = desc->k,
        .bytes = call->bytes,
        .trace = call->trace,
    };
    return LAP_OK;
}

const lap_op_t *lap_nn_gemm_op(const lap_nn_t *nn, size_t index)
{
    return nn->calls[find_gemm(nn, index)].op;
}

lap_status_t lap_nn_trace(lap_nn_t *nn, int on)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_trace: nn is NULL");
    for (size_t i = 0; on && i < nn->ncalls; i++)
        if (!nn->calls[i].trace)
            LAP_TRY(lap_trace_create(&nn->calls[i].trace));
    nn->tracing = on != 0;
    return LAP_OK;
}

lap_buffer_t *lap_nn_buffer(lap_nn_t *nn)
{
    return nn ? nn->buffer : NULL;
}
