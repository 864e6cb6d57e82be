/* SPDX-License-Identifier: Apache-2.0 */
/* Binding the ranges of a schedule, and the operands of a program, to the memory and the numbers of one call. */
#include "schedule/bind.h"

#include "core/status.h"

/* The schedule thinks of packed matrices; the caller's rows may be further apart. */
char *lap_at(const lap_bound_place_t *place, size_t offset)
{
    if (place->packed_stride == 0 || place->packed_stride == place->stride)
        return place->base + offset;
    return place->base + offset / place->packed_stride * place->stride +
           offset % place->packed_stride;
}

char *lap_bind_range(const lap_binding_t *binding, const lap_range_t *range, size_t *stride_p)
{
    if (range->place == LAP_SYMMETRIC) {
        const lap_bound_place_t memory = {.base = binding->buffer->data[range->rank]};
        *stride_p = range->stride;
        return lap_at(&memory, range->offset);
    }
    const lap_bound_place_t *place = &binding->places[range->place];
    *stride_p = range->place == LAP_SCRATCH ? range->stride : place->stride;
    return lap_at(place, range->offset);
}

/* ---- operands of a program ---- */

static lap_arg_t arg_of(const lap_linked_t *linked, uint32_t role, lap_dtype_t dtype,
                        const lap_range_t *range)
{
    const lap_link_region_t *region = &linked->regions[(uint32_t)range->place - LAP_PLACES];
    return (lap_arg_t){.rows = range->rows,
                       .cols = range->row_bytes / lap_dtype_size(dtype),
                       .pitch = range->stride,
                       .dtype = dtype,
                       .role = role,
                       .memory = region->memory,
                       .offset = region->base + range->offset};
}

uint32_t lap_list_operands(const lap_linked_t *linked, const lap_fragment_t *fragment,
                           lap_arg_t *args)
{
    uint32_t count = 0;
    const lap_schedule_t *schedule = &fragment->schedule;
    for (uint32_t i = 0; fragment->kernel && i < schedule->nuses; i++) {
        const lap_use_t *use = &schedule->uses[i];
        lap_arg_t *arg = args;
        const uint32_t role = (uint32_t)use->role - LAP_ROLE_KERNEL;
        while (arg < args + count && arg->role != role)
            arg++;
        if (arg == args + count)
            args[count++] = arg_of(linked, role, use->dtype, &use->range);
        arg->reads = arg->reads || use->access == LAP_READ;
        arg->writes = arg->writes || use->access == LAP_WRITE;
    }
    for (uint32_t role = 0; !fragment->kernel && role < LAP_CALL_OPERANDS; role++) {
        const lap_link_place_t *place = &fragment->places[role];
        const lap_range_t range = {.place = (lap_place_t)(LAP_PLACES + place->region),
                                   .offset = place->offset,
                                   .row_bytes = place->row_bytes,
                                   .stride = place->stride};
        if (place->region != LAP_NO_REGION)
            args[count++] = arg_of(linked, role, place->dtype, &range);
    }
    return count;
}

void lap_bind_operands(lap_arg_t *args, uint32_t count, lap_base_of_t base_of, void *context)
{
    for (uint32_t i = 0; i < count; i++) {
        const lap_bound_place_t base = base_of(context, args[i].memory);
        args[i].data = lap_at(&base, args[i].offset);
        if (base.packed_stride)
            args[i].pitch = base.stride;
    }
}

void lap_bind_call(const lap_operands_t *operands, const lap_schedule_t *schedule,
                   lap_binding_t *binding)
{
    for (uint32_t i = 0; i < operands->n; i++) {
        const lap_arg_t *arg = &operands->at[i];
        if (arg->role < LAP_PLACES)
            binding->places[arg->role] =
                (lap_bound_place_t){arg->data, arg->cols * lap_dtype_size(arg->dtype), arg->pitch};
    }
    const float *sent = lap_operand(operands, LAP_SCALE)->data;
    const bool gathers = schedule->kind == LAP_AG_GEMM; /* the scale of a comes with it */
    binding->a_scale_ptr = gathers ? sent : lap_operand(operands, LAP_A_SCALE)->data;
    binding->b_scale_ptr = lap_operand(operands, LAP_B_SCALE)->data;
    binding->sets_scale = !sent;
    binding->aux = lap_arg_tensor(lap_operand(operands, LAP_AUX));
    binding->bias = lap_arg_tensor(lap_operand(operands, LAP_BIAS));
    binding->bias_grad = lap_arg_tensor(lap_operand(operands, LAP_BIAS_GRAD));
}

/* ---- steps of a call ---- */

lap_copy_t lap_bind_copy(const lap_binding_t *binding, const lap_schedule_t *schedule,
                         const lap_step_t *step)
{
    const lap_range_t *src = lap_step_range(schedule, step, LAP_ROLE_A);
    lap_copy_t copy = {.rows = src->rows, .row_bytes = src->row_bytes, .sms = binding->copy_sms};
    copy.src = lap_bind_range(binding, src, &copy.src_stride);
    copy.dst =
        lap_bind_range(binding, lap_step_range(schedule, step, LAP_ROLE_D), &copy.dst_stride);
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
