/* SPDX-License-Identifier: Apache-2.0 */
/* Binding the ranges of a schedule to the memory and the numbers of one call. */
#include "schedule/bind.h"

char *lap_bind_range(const lap_binding_t *binding, const lap_range_t *range, size_t *stride_p)
{
    if (range->place == LAP_SYMMETRIC) {
        *stride_p = range->stride;
        return binding->buffer->data[range->rank] + range->offset;
    }
    const lap_bound_place_t *place = &binding->places[range->place];
    if (range->place == LAP_SCRATCH) {
        *stride_p = range->stride;
        return place->base + range->offset;
    }
    /* The schedule thinks of packed matrices; the caller's rows may be further apart. */
    *stride_p = place->stride;
    if (place->packed_stride == 0 || place->packed_stride == place->stride)
        return place->base + range->offset;
    return place->base + range->offset / place->packed_stride * place->stride +
           range->offset % place->packed_stride;
}

lap_copy_t lap_bind_copy(const lap_binding_t *binding, const lap_step_t *step)
{
    lap_copy_t copy = {
        .rows = step->src.rows, .row_bytes = step->src.row_bytes, .sms = binding->copy_sms};
    copy.src = lap_bind_range(binding, &step->src, &copy.src_stride);
    copy.dst = lap_bind_range(binding, &step->dst, &copy.dst_stride);
    return copy;
}

/* Where in d a range of LAP_OUTPUT begins. */
static void locate(const lap_binding_t *binding, const lap_schedule_t *schedule,
                   const lap_range_t *range, size_t *row_p, size_t *column_p)
{
    const size_t row_bytes = binding->places[LAP_OUTPUT].packed_stride;
    *row_p = row_bytes ? range->offset / row_bytes : 0;
    *column_p = row_bytes ? range->offset % row_bytes / lap_dtype_size(schedule->types.out) : 0;
}

void *lap_bind_aux(const lap_binding_t *binding, const lap_schedule_t *schedule,
                   const lap_range_t *d)
{
    const lap_tensor_t *aux = &binding->aux;
    size_t row, column;
    if (d->place != LAP_OUTPUT || !aux->data)
        return NULL;
    locate(binding, schedule, d, &row, &column);
    return (char *)aux->data + (row * aux->stride + column) * lap_dtype_size(aux->dtype);
}

const lap_finish_t *lap_bind_finish(const lap_binding_t *binding, const lap_schedule_t *schedule,
                                    const lap_range_t *dst, lap_dtype_t to, lap_finish_t *finish)
{
    const bool last = dst->place == LAP_OUTPUT;
    size_t row, column = 0;
    if (last)
        locate(binding, schedule, dst, &row, &column);
    *finish = (lap_finish_t){
        /* The gradient of a bias has a step of its own. */
        .epilogue =
            last ? schedule->epilogue & ~(lap_epilogue_t)LAP_EPILOGUE_BIAS_GRAD : LAP_EPILOGUE_NONE,
        .beta = last ? binding->beta : 0,
        .scale = !lap_dtype_is_fp8(to) ? 1
                 : last                ? binding->d_scale
                                       : binding->wire_scale,
        .bias_dtype = binding->bias.dtype,
        .aux_dtype = binding->aux.dtype,
        .aux_stride = binding->aux.stride * lap_dtype_size(binding->aux.dtype),
    };
    if (finish->epilogue & LAP_EPILOGUE_BIAS)
        finish->bias =
            (const char *)binding->bias.data + column * lap_dtype_size(finish->bias_dtype);
    const bool plain =
        finish->epilogue == LAP_EPILOGUE_NONE && finish->beta == 0 && finish->scale == 1;
    return plain ? NULL : finish;
}

static bool same_tensor(const lap_tensor_t *x, const lap_tensor_t *y)
{
    return x->data == y->data && x->dtype == y->dtype && x->rows == y->rows && x->cols == y->cols &&
           x->stride == y->stride;
}

bool lap_binding_same(const lap_binding_t *x, const lap_binding_t *y)
{
    if (x->sets_scale != y->sets_scale || x->a_scale_ptr != y->a_scale_ptr ||
        x->b_scale_ptr != y->b_scale_ptr)
        return false;
    for (int i = 0; i < LAP_PLACES; i++)
        if (x->places[i].base != y->places[i].base ||
            x->places[i].packed_stride != y->places[i].packed_stride ||
            x->places[i].stride != y->places[i].stride)
            return false;
    return x->scale == y->scale && x->beta == y->beta && x->a_scale == y->a_scale &&
           x->d_scale == y->d_scale && x->wire_scale == y->wire_scale &&
           x->sent_scale == y->sent_scale && x->buffer == y->buffer && x->op_index == y->op_index &&
           same_tensor(&x->bias, &y->bias) && same_tensor(&x->aux, &y->aux) &&
           same_tensor(&x->bias_grad, &y->bias_grad);
}
