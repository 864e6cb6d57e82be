/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numeric slots of the reference device in guard mode: what each may touch follows from its arguments. A GEMM
 * guards each block by itself, once its signal has come: blocks wait for one another's peers, and only one kernel of a
 * process can be guarded at a time.
 */
#include "device/ref/ref.h"

#include <stdint.h>

#include "core/status.h"
#include "device/host/host_guard.h"
#include "util/alloc.h"

/* ---- copies and sums of columns ---- */

typedef struct copy_issue {
    lap_stream_t *stream;
    const lap_copy_t *copy;
} copy_issue_t;

static lap_status_t issue_copy(void *context, void *const *data, void *room)
{
    const copy_issue_t *issue = context;
    lap_copy_t copy = *issue->copy;
    (void)room;
    copy.src = data[0];
    copy.dst = data[1];
    return lap_host_copy(issue->stream, &copy);
}

lap_status_t lap_ref_guarded_copy(lap_stream_t *stream, const lap_copy_t *copy)
{
    copy_issue_t issue = {stream, copy};
    const lap_touch_t touches[] = {
        {(void *)(uintptr_t)copy->src, copy->rows, copy->row_bytes, copy->src_stride, 0, true,
         false},
        {copy->dst, copy->rows, copy->row_bytes, copy->dst_stride, 1, false, true},
    };
    if (lap_host_guard_is_issuing())
        return lap_host_copy(stream, copy);
    return lap_host_guard_issue(
        stream,
        &(lap_host_guard_call_t){
            .name = "COPY", .touches = touches, .count = 2, .run = issue_copy, .context = &issue});
}

typedef struct sums_issue {
    lap_stream_t *stream;
    const lap_column_sums_t *sums;
} sums_issue_t;

static lap_status_t issue_sums(void *context, void *const *data, void *room)
{
    const sums_issue_t *issue = context;
    lap_column_sums_t sums = *issue->sums;
    (void)room;
    sums.src = data[0];
    sums.dst = data[1];
    sums.scaled_by = data[2];
    return lap_host_column_sums(issue->stream, &sums);
}

static lap_touch_t number(const float *at, uint32_t operand)
{
    return (lap_touch_t){(void *)(uintptr_t)at, 1, sizeof(*at), sizeof(*at), operand, true, false};
}

lap_status_t lap_ref_guarded_column_sums(lap_stream_t *stream, const lap_column_sums_t *sums)
{
    sums_issue_t issue = {stream, sums};
    const size_t row = sums->cols * lap_dtype_size(sums->from);
    const size_t result = sums->cols * lap_dtype_size(sums->to);
    const lap_touch_t touches[] = {
        {(void *)(uintptr_t)sums->src, sums->rows, row, sums->src_stride, 0, true, false},
        {sums->dst, 1, result, result, 1, false, true},
        number(sums->scaled_by, 2),
    };
    if (lap_host_guard_is_issuing())
        return lap_host_column_sums(stream, sums);
    return lap_host_guard_issue(
        stream,
        &(lap_host_guard_call_t){
            .name = "SUMS", .touches = touches, .count = 3, .run = issue_sums, .context = &issue});
}

/* ---- what a result is finished with ---- */

enum { FINISH_BIAS, FINISH_AUX, FINISH_TOUCHES };

/* Bias and aux of `cols` columns of d, as operands from `operand` on. */
static void touch_finish(const lap_finish_t *finish, size_t rows, size_t cols, void *aux,
                         uint32_t operand, lap_touch_t touches[FINISH_TOUCHES])
{
    const lap_epilogue_t epilogue = finish ? finish->epilogue : LAP_EPILOGUE_NONE;
    const size_t bias = finish ? cols * lap_dtype_size(finish->bias_dtype) : 0;
    const size_t row = finish ? cols * lap_dtype_size(finish->aux_dtype) : 0;
    touches[FINISH_BIAS] =
        (lap_touch_t){epilogue & LAP_EPILOGUE_BIAS ? (void *)(uintptr_t)finish->bias : NULL,
                      1,
                      bias,
                      bias,
                      operand,
                      true,
                      false};
    touches[FINISH_AUX] =
        (lap_touch_t){epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU) ? aux : NULL,
                      rows,
                      row,
                      finish ? finish->aux_stride : 0,
                      operand + 1,
                      (epilogue & LAP_EPILOGUE_DGELU) != 0,
                      (epilogue & LAP_EPILOGUE_GELU) != 0};
}

static bool adds_to(const lap_finish_t *finish)
{
    return finish && finish->beta != 0;
}

/* ---- sums of matrices ---- */

typedef struct reduce_issue {
    lap_stream_t *stream;
    const lap_reduce_t *reduce;
} reduce_issue_t;

/* What must live until the reduction has run; its sources and scales follow. */
typedef struct reduce_room {
    lap_finish_t finish;
    const void *addresses[];
} reduce_room_t;

enum { REDUCE_DST = FINISH_TOUCHES, REDUCE_SRCS };

static lap_status_t issue_reduce(void *context, void *const *data, void *room)
{
    const reduce_issue_t *issue = context;
    reduce_room_t *kept = room;
    lap_reduce_t reduce = *issue->reduce;
    for (size_t i = 0; i < (reduce.scales ? 2 : 1) * reduce.nsrc; i++)
        kept->addresses[i] = data[REDUCE_SRCS + i];
    if (reduce.finish)
        kept->finish = *reduce.finish;
    kept->finish.bias = data[FINISH_BIAS];
    reduce.finish = reduce.finish ? &kept->finish : NULL;
    reduce.srcs = kept->addresses;
    if (reduce.scales)
        reduce.scales = (const float *const *)(const void *)&kept->addresses[reduce.nsrc];
    reduce.dst = data[REDUCE_DST];
    reduce.aux = data[FINISH_AUX];
    return lap_host_reduce(issue->stream, &reduce);
}

lap_status_t lap_ref_guarded_reduce(lap_stream_t *stream, const lap_reduce_t *reduce)
{
    const size_t count = REDUCE_SRCS + 2 * reduce->nsrc;
    const size_t to = reduce->cols * lap_dtype_size(reduce->to);
    reduce_issue_t issue = {stream, reduce};
    if (lap_host_guard_is_issuing())
        return lap_host_reduce(stream, reduce);
    lap_touch_t *touches = lap_alloc(count, sizeof(*touches));
    if (!touches)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to guard a reduction");
    touch_finish(reduce->finish, reduce->rows, reduce->cols, reduce->aux, 1, touches);
    touches[REDUCE_DST] = (lap_touch_t){
        reduce->dst, reduce->rows, to, reduce->dst_stride, 0, adds_to(reduce->finish), true};
    for (uint32_t i = 0; i < reduce->nsrc; i++) {
        touches[REDUCE_SRCS + i] = (lap_touch_t){(void *)(uintptr_t)reduce->srcs[i],
                                                 reduce->rows,
                                                 reduce->cols * lap_dtype_size(reduce->from),
                                                 reduce->src_strides[i],
                                                 REDUCE_SRCS + i,
                                                 true,
                                                 false};
        touches[REDUCE_SRCS + reduce->nsrc + i] = number(reduce->scales ? reduce->scales[i] : NULL,
                                                         REDUCE_SRCS + (uint32_t)reduce->nsrc + i);
    }
    const lap_status_t status = lap_host_guard_issue(
        stream,
        &(lap_host_guard_call_t){.name = "REDUCE",
                                 .touches = touches,
                                 .count = count,
                                 .room = sizeof(reduce_room_t) + 2 * reduce->nsrc * sizeof(void *),
                                 .run = issue_reduce,
                                 .context = &issue});
    lap_free(touches);
    return status;
}

/* ---- GEMMs ---- */

typedef struct block_run {
    const lap_gemm_t *gemm;
    const lap_gemm_block_t *block;
} block_run_t;

enum { GEMM_D = FINISH_TOUCHES, GEMM_A, GEMM_B, GEMM_A_SCALE, GEMM_B_SCALE, GEMM_TOUCHES };

static lap_status_t run_block(void *context, void *const *data, void *room)
{
    const block_run_t *run = context;
    lap_gemm_t gemm = *run->gemm;
    lap_gemm_block_t block = *run->block;
    lap_finish_t finish = gemm.finish ? *gemm.finish : (lap_finish_t){.scale = 1};
    (void)room;
    finish.bias = data[FINISH_BIAS];
    gemm.finish = gemm.finish ? &finish : NULL;
    gemm.b = data[GEMM_B];
    gemm.b_scale = data[GEMM_B_SCALE];
    block.a = data[GEMM_A];
    block.d = data[GEMM_D];
    block.a_scale = data[GEMM_A_SCALE];
    block.aux = data[FINISH_AUX];
    return lap_ref_multiply(&gemm, &block, NULL);
}

static lap_status_t guard_block(const lap_gemm_t *gemm, const lap_gemm_block_t *block,
                                void *workspace)
{
    block_run_t run = {gemm, block};
    lap_touch_t touches[GEMM_TOUCHES];
    const size_t a = lap_dtype_size(gemm->a_dtype), b = lap_dtype_size(gemm->b_dtype);
    (void)workspace;
    touch_finish(gemm->finish, block->rows, gemm->n, block->aux, 3, touches);
    touches[GEMM_A] = (lap_touch_t){(void *)(uintptr_t)block->a,
                                    gemm->a_transposed ? gemm->k : block->rows,
                                    (gemm->a_transposed ? block->rows : gemm->k) * a,
                                    block->a_stride,
                                    0,
                                    true,
                                    false};
    touches[GEMM_B] = (lap_touch_t){(void *)(uintptr_t)gemm->b,
                                    gemm->b_plain ? gemm->k : gemm->n,
                                    (gemm->b_plain ? gemm->n : gemm->k) * b,
                                    gemm->b_stride,
                                    1,
                                    true,
                                    false};
    touches[GEMM_D] = (lap_touch_t){block->d,
                                    block->rows,
                                    gemm->n * lap_dtype_size(gemm->d_dtype),
                                    block->d_stride,
                                    2,
                                    adds_to(gemm->finish),
                                    true};
    touches[GEMM_A_SCALE] = number(block->a_scale, 5);
    touches[GEMM_B_SCALE] = number(gemm->b_scale, 6);
    return lap_host_guard_run(&(lap_host_guard_call_t){.name = "GEMM",
                                                       .touches = touches,
                                                       .count = GEMM_TOUCHES,
                                                       .run = run_block,
                                                       .context = &run});
}

lap_status_t lap_ref_guarded_gemm(lap_stream_t *stream, const lap_gemm_t *gemm)
{
    return lap_host_gemm(stream, gemm, guard_block, 0);
}
