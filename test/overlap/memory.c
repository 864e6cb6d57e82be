/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on devices that have their own memory: what a call is given travels there before it, and
 * all of it back after it, so that whatever was written where nothing belongs is found.
 */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "data.h"
#include "device/device.h"
#include "tap.h"

#define ALIGNMENT 256u

enum { TENSORS = 9 };

/* The matrices of a call, in the order in which they lie in one piece of memory. */
static void list_tensors(lap_op_args_t *args, lap_tensor_t **tensors)
{
    lap_tensor_t *all[TENSORS] = {&args->a,         &args->b,    &args->d,
                                  &args->gathered,  &args->bias, &args->aux,
                                  &args->bias_grad, &args->x,    &args->y};
    memcpy(tensors, all, sizeof(all));
}

static size_t bytes_of(const lap_tensor_t *tensor)
{
    return tensor->data ? tensor->rows * tensor->stride * lap_dtype_size(tensor->dtype) : 0;
}

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static lap_status_t copy(lap_device_t *device, void *dst, const void *src, size_t bytes)
{
    const lap_copy_t all = {dst, src, 1, bytes, bytes, bytes, 0, false};
    lap_stream_t *stream;
    LAP_TRY(device->ops->stream_create(device, false, &stream));
    lap_status_t status = device->ops->copy(stream, &all);
    if (status == LAP_OK)
        status = device->ops->stream_synchronize(stream);
    device->ops->stream_destroy(stream);
    return status;
}

/* Copies the matrices to or from one piece of memory; returns its bytes. NULL: only counts. */
static size_t pack(test_call_t *call, char *memory, bool back)
{
    lap_tensor_t *tensors[TENSORS];
    size_t at = round_up(test_scales_bytes(call));
    list_tensors(&call->args, tensors);
    if (memory)
        memcpy(back ? (void *)call->args.scales : memory, back ? memory : (void *)call->args.scales,
               test_scales_bytes(call));
    for (int i = 0; i < TENSORS; i++) {
        const size_t bytes = bytes_of(tensors[i]);
        if (memory && bytes)
            memcpy(back ? tensors[i]->data : memory + at, back ? memory + at : tensors[i]->data,
                   bytes);
        at += round_up(bytes);
    }
    return at;
}

size_t test_call_bytes(test_call_t *call)
{
    return pack(call, NULL, false);
}

lap_status_t test_call_upload(test_call_t *call, void *there)
{
    const size_t bytes = pack(call, NULL, false);
    char *near = malloc(bytes);
    if (!near)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    pack(call, near, false);
    const lap_status_t status = copy(call->device, there, near, bytes);
    free(near);
    return status;
}

lap_status_t test_call_download(test_call_t *call, const void *there)
{
    const size_t bytes = pack(call, NULL, false);
    char *near = malloc(bytes);
    if (!near)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    const lap_status_t status = copy(call->device, near, there, bytes);
    if (status == LAP_OK)
        pack(call, near, true);
    free(near);
    return status;
}

lap_op_args_t test_call_args_at(test_call_t *call, void *there)
{
    lap_op_args_t args = call->args;
    lap_tensor_t *tensors[TENSORS];
    size_t at = round_up(test_scales_bytes(call));
    list_tensors(&args, tensors);
    args.scales = there;
    args.a_scale_ptr = args.a_scale_ptr ? &args.scales[test_scale_at(call, 0)] : NULL;
    args.b_scale_ptr = args.b_scale_ptr ? &args.scales[test_scale_at(call, 1)] : NULL;
    args.wire_scale_ptr = args.wire_scale_ptr ? &args.scales[test_scale_at(call, 2)] : NULL;
    for (int i = 0; i < TENSORS; i++) {
        const size_t bytes = bytes_of(tensors[i]);
        if (tensors[i]->data)
            tensors[i]->data = (char *)there + at;
        at += round_up(bytes);
    }
    return args;
}

lap_device_t *test_device(lap_group_t *group)
{
    lap_device_t *device;
    if (lap_device_of(group->world, &device) != LAP_OK || !device->ops->transport)
        return NULL;
    return device;
}

void test_call_forget(test_call_t *call)
{
    if (call->far)
        call->device->ops->free(call->device, call->far);
    call->far = NULL;
}

lap_status_t test_call_begin(lap_op_t *op, test_call_t *call)
{
    if (!call->device)
        return lap_op_begin(op, &call->args);
    if (!call->far)
        LAP_TRY(call->device->ops->alloc(call->device, test_call_bytes(call), &call->far));
    LAP_TRY(test_call_upload(call, call->far));
    const lap_op_args_t args = test_call_args_at(call, call->far);
    return lap_op_begin(op, &args);
}

lap_status_t test_call_end(lap_op_t *op, test_call_t *call)
{
    LAP_TRY(lap_op_end(op));
    return call->device ? test_call_download(call, call->far) : LAP_OK;
}

lap_status_t test_call_run(lap_op_t *op, test_call_t *call)
{
    LAP_TRY(test_call_begin(op, call));
    return test_call_end(op, call);
}

test_call_t test_exact_call(lap_group_t *group, const lap_op_desc_t *desc, size_t m, uint64_t seed)
{
    return (test_call_t){.desc = *desc,
                         .m = m,
                         .seed = seed,
                         .rank = lap_group_rank(group),
                         .size = lap_group_size(group),
                         .device = test_device(group),
                         .exact = true};
}

lap_status_t test_call_check(lap_op_t *op, test_call_t call)
{
    test_call_init(&call);
    lap_status_t status = test_call_run(op, &call);
    const double error = status == LAP_OK ? test_call_error(&call) : 0;
    if (!(error <= 1)) {
        tap_ok(false, "a call that succeeds is right: its error is %g of the bound", error);
        status = LAP_ERR_CHECK;
    }
    test_call_clear(&call);
    return status;
}
