/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls in the order of a stream of the caller's, see lap_cuda.h: begun and ended by the stream,
 * with no call to wait for them. What became of them comes out of the next call that asks.
 */
#include <lap/lap_cuda.h>

#include "core/options.h"
#include "core/world.h"
#include "overlap/op.h"

static lap_status_t check_device(const lap_engine_t *engine)
{
    if (engine->device->ops->takes_streams)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "calls in stream order need device cuda; this world has device %s",
                     engine->device->ops->name);
}

lap_status_t lap_world_gpu(lap_world_t *world, int *gpu_p)
{
    lap_device_t *device;
    if (!world || !gpu_p)
        return lap_error(LAP_ERR_INVALID, "lap_world_gpu: %s is NULL", world ? "gpu_p" : "world");
    LAP_TRY(lap_device_of(world, &device));
    const int gpu = device->ops->gpu(device);
    if (gpu < 0)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "this world has device %s, which has no GPU: expected device cuda",
                         device->ops->name);
    *gpu_p = gpu;
    return LAP_OK;
}

/* A failure of a call that runs leaves the peers without this rank's part. */
static lap_status_t run(lap_op_t *op, const lap_op_args_t *args, void *stream)
{
    lap_op_cached_t *cached;
    lap_binding_t binding;
    lap_status_t status = lap_op_ready(op, args, &cached, &binding);
    if (status == LAP_OK)
        status = lap_runnable_enqueue(cached->runnable, &binding, stream);
    if (status == LAP_OK || status == LAP_ERR_BUSY)
        return status;
    status = lap_op_find_cause(op, status);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    lap_op_break(op, status);
    lap_engine_fail(op->engine, status, NULL);
    lap_error_restore(&saved);
    return status;
}

/* A failure of a call that is captured concerns the caller only. */
static lap_status_t capture(lap_op_t *op, const lap_op_args_t *args, void *stream)
{
    lap_op_cached_t *cached;
    lap_binding_t binding;
    LAP_TRY(lap_op_ready(op, args, &cached, &binding));
    binding.chaos = 0; /* functions on a stream are called once */
    const lap_status_t status = lap_runnable_enqueue_captured(cached->runnable, &binding, stream);
    /* What cannot be captured has left nothing in the graph; another failure may have. */
    cached->captured = cached->captured || status != LAP_ERR_UNSUPPORTED;
    return status;
}

int lap_op_is_captured(const lap_op_t *op)
{
    for (int i = 0; op && i < LAP_OP_PROGRAMS; i++)
        if (op->cache[i].captured)
            return 1;
    return 0;
}

lap_status_t lap_op_enqueue(lap_op_t *op, const lap_op_args_t *given, struct CUstream_st *stream)
{
    if (!op || !given)
        return lap_error(LAP_ERR_INVALID, "lap_op_enqueue: %s is NULL", op ? "args" : "op");
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    LAP_TRY(lap_read_options(&args, sizeof(args), given, "LAP_OP_ARGS"));
    LAP_TRY(check_device(op->engine));
    if (args.trace)
        return lap_error(LAP_ERR_INVALID, "trace is set, expected NULL: a call in stream order has "
                                          "no end at which its trace could be read");
    LAP_TRY(lap_op_check_usable(op));
    LAP_TRY(lap_args_check(op, &args));
    if (!op->stays_in_flight) {
        lap_engine_guard(op->engine, op->group);
        lap_op_enter_flight(op);
        op->stays_in_flight = true;
    }
    lap_device_t *device = op->engine->device;
    bool capturing;
    LAP_TRY(device->ops->caller_begin(device, stream, &capturing));
    const lap_status_t status = capturing ? capture(op, &args, stream) : run(op, &args, stream);
    device->ops->caller_end(device);
    return status;
}

lap_status_t lap_world_synchronize(lap_world_t *world, struct CUstream_st *stream)
{
    lap_engine_t *engine;
    if (!world)
        return lap_error(LAP_ERR_INVALID, "lap_world_synchronize: world is NULL");
    LAP_TRY(lap_engine_get(world, &engine));
    LAP_TRY(check_device(engine));
    return lap_engine_synchronize(engine, stream);
}
