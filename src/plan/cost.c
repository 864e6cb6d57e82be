/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model of a schedule with the rates of a machine description. */
#include <math.h>

#include "plan/kernels.h"
#include "plan/machine.h"
#include "schedule/range.h"

#define NO_TIME 1e-12
#define FAST 1e30 /* bytes per second */

double lap_machine_memory_rate(const lap_machine_t *machine)
{
    return machine->memory_bytes_per_s * machine->memory_efficiency;
}

double lap_machine_finish(const lap_machine_t *machine, lap_epilogue_t epilogue)
{
    const lap_plan_kernel_t kernel = lap_plan_epilogue_of(epilogue);
    const double rate = kernel < LAP_PLAN_KERNELS ? machine->kernels[kernel] : 0;
    return rate > 0 ? 1 / rate : 0;
}

/* The rates of a GEMM by the rows of a piece of it: smaller ones are slower. */
static void set_gemm(const lap_machine_t *machine, lap_plan_type_t type,
                     const lap_schedule_t *schedule, lap_cost_t *cost)
{
    lap_gemm_shape_t shape = {0, 0, 0};
    size_t most = 0;
    for (uint32_t s = 0; s < schedule->nsteps; s++) {
        const lap_step_t *step = &schedule->steps[s];
        size_t rows = 0;
        for (uint32_t t = 0; t < step->ntiles; t++) {
            shape = lap_tile_shape(schedule, step, &schedule->tiles[step->first_tile + t]);
            rows = shape.rows > rows ? shape.rows : rows;
        }
        most = rows > most ? rows : most;
    }
    cost->gemm = (lap_curve_t){.count = LAP_COST_POINTS};
    for (size_t i = 0; i < LAP_COST_POINTS; i++) {
        const double rows = fmax((double)most, 1) / (double)(1u << (LAP_COST_POINTS - 1 - i));
        const double work = rows * fmax((double)shape.n, 1) * fmax((double)shape.k, 1);
        cost->gemm.sizes[i] = rows;
        cost->gemm.values[i] = work / lap_machine_gemm_s(machine, type, 2 * work);
    }
}

/* A GPU is a core that its GEMMs and kernels share; puts take the part of it that the wire keeps busy. */
lap_cost_t lap_machine_cost(const lap_machine_t *machine, const lap_plan_wire_t *wire,
                            lap_plan_type_t type, const lap_schedule_t *schedule, int ranks)
{
    lap_cost_t cost = {
        .columns = {.count = 1, .sizes = {1}, .values = {1}},
        .copy = {.count = 1, .sizes = {1}, .values = {FAST}},
        .reduce = lap_machine_memory_rate(machine),
        .step_s = machine->kernel_s,
        .signal_s = NO_TIME,
        .event_s = NO_TIME,
        .cores = (double)LAP_STREAMS * ranks,
        .rank_cores = 1,
        .gemm_cores = 1,
        .put_cores = wire ? wire->sms / machine->sms : 0,
        .link = {.bytes_per_s = wire ? lap_wire_rate(wire) : FAST,
                 .latency_s = wire ? wire->latency_s : 0},
    };
    set_gemm(machine, type, schedule, &cost);
    return cost;
}
