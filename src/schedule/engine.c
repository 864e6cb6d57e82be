/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a world: its device, opened when the first operator needs it, and the streams on
 * it.
 */
#include <stdio.h>

#include "schedule/run.h"
#include "util/alloc.h"
#include "util/clock.h"

#define OVERHEAD_ROUNDS 3 /* the first one warms up */

static void engine_close(void *context)
{
    lap_engine_t *engine = context;
    const lap_device_ops_t *ops = engine->device->ops;
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (engine->streams[s])
            ops->stream_destroy(engine->streams[s]);
        if (engine->joins[s])
            ops->event_destroy(engine->joins[s]);
    }
    ops->close(engine->device);
    lap_free(engine);
}

static lap_status_t engine_open(const char *device_name, int threads, lap_engine_t **engine_p)
{
    const lap_device_ops_t *ops;
    LAP_TRY(lap_device_find(device_name, &ops));
    lap_engine_t *engine = lap_alloc(1, sizeof(*engine));
    if (!engine)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the engine of a world");
    lap_status_t status = ops->open(threads, &engine->device);
    if (status != LAP_OK) {
        lap_free(engine);
        return status;
    }
    for (int s = 0; s < LAP_STREAMS && status == LAP_OK; s++) {
        status = ops->stream_create(engine->device, &engine->streams[s]);
        if (status == LAP_OK)
            status = ops->event_create(engine->device, &engine->joins[s]);
    }
    if (status != LAP_OK) {
        engine_close(engine);
        return status;
    }
    *engine_p = engine;
    return LAP_OK;
}

lap_status_t lap_engine_get(lap_world_t *world, lap_engine_t **engine_p)
{
    if (!world->device) {
        lap_engine_t *engine;
        LAP_TRY(engine_open(world->device_name, world->cpu_threads, &engine));
        world->device = engine;
        world->device_close = engine_close;
    }
    *engine_p = world->device;
    return LAP_OK;
}

void lap_engine_synchronize(lap_engine_t *engine)
{
    const lap_device_ops_t *ops = engine->device->ops;
    lap_status_t first = LAP_OK;
    for (int s = 0; s < LAP_STREAMS; s++) {
        lap_status_t status = ops->stream_synchronize(engine->streams[s]);
        if (status != LAP_OK && first == LAP_OK) {
            first = status;
            snprintf(engine->text, sizeof(engine->text), "%s", lap_last_error());
        }
    }
    if (first != LAP_OK) {
        engine->status = first;
        engine->failures++;
    }
}

/* Copies of one cache line within scratch memory, in turn on all streams. */
static void overhead_schedule(lap_schedule_t *schedule, uint32_t nsteps)
{
    const lap_problem_t problem = {.kind = LAP_AG_GEMM, .size = 1};
    lap_schedule_init(schedule, &problem, "overhead");
    for (uint32_t i = 0; i < nsteps; i++) {
        lap_range_t src = {.place = LAP_SCRATCH, .rows = 1, .row_bytes = 64, .stride = 64};
        lap_range_t dst = src;
        dst.offset = (size_t)64 * (1 + i % LAP_STREAMS);
        lap_add_copy(schedule, (uint16_t)(i % LAP_STREAMS), src, dst);
    }
}

lap_status_t lap_engine_overhead(lap_engine_t *engine, uint32_t nsteps, double *seconds_p)
{
    char scratch[64 * (1 + LAP_STREAMS)] = {0};
    lap_schedule_t schedule;
    overhead_schedule(&schedule, nsteps);
    lap_program_t *program;
    LAP_TRY(lap_program_create(engine, &schedule, &program));
    lap_binding_t binding = {.places[LAP_SCRATCH] = {scratch, 64, 64}};
    lap_status_t status = LAP_OK;
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < OVERHEAD_ROUNDS && status == LAP_OK; round++) {
        const uint64_t begin = lap_now_ns();
        status = lap_program_issue(program, &binding);
        lap_engine_synchronize(engine);
        const uint64_t spent = lap_now_ns() - begin;
        best = spent < best ? spent : best;
    }
    if (status == LAP_OK)
        *seconds_p = (double)best * 1e-9;
    lap_program_destroy(program);
    return status;
}

lap_status_t lap_run_overhead(const char *device, uint32_t nsteps, double *ns_per_step_p)
{
    lap_engine_t *engine;
    double seconds;
    LAP_TRY(engine_open(device, 0, &engine));
    lap_status_t status = lap_engine_overhead(engine, nsteps, &seconds);
    engine_close(engine);
    if (status == LAP_OK)
        *ns_per_step_p = seconds * 1e9 / nsteps;
    return status;
}
