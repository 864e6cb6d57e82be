/* SPDX-License-Identifier: Apache-2.0 */
/* The description of the machine that ranks run on, by measurement. */
#ifndef LAP_PLAN_MEASURE_H
#define LAP_PLAN_MEASURE_H

#include <lap/buffer.h>
#include <lap/world.h>

#include "plan/machine.h"
#include "schedule/run.h"

/*
 * Measures GEMMs, attention, the optimizer, kernels, memory, copies between ranks and signals: GPUs
 * at their power limit, as in training. All ranks of a world do the same at the same time: a rank is what a
 * GPU is to the planner. The wires between hosts are taken to be those inside one where all ranks are on
 * one; `link` out of each rank is emulated, all zero: none. Collective; takes seconds. Writes *machine_p on
 * success, but for the name. Returns as lap_calibrate.
 */
lap_status_t lap_machine_measure(lap_world_t *world, lap_link_t link, lap_machine_t *machine_p);

/* The GEMM that brings a GPU to its power limit, and that others run beside. */
typedef struct lap_plan_load {
    lap_stream_t *stream;
    char *memory;
    lap_gemm_block_t block;
    lap_gemm_t gemm;
} lap_plan_load_t;

/* ---- measure_kernels.c ---- */

/* The rates of kernels and epilogues only, on a host or on a device that has memory of its own. Collective. */
lap_status_t lap_machine_measure_kernels(lap_group_t *group, bool is_far, lap_machine_t *machine);

/* ---- measure_beside.c ---- */

/*
 * The GEMMs of a rank that communication costs while it runs, as SMs: puts for nvlink.sms, buckets with their
 * sums for network.sms. Needs the rates of wires. Collective; when one rank fails, all do.
 */
lap_status_t lap_machine_measure_beside(lap_world_t *world, lap_link_t link,
                                        const lap_plan_load_t *load, lap_machine_t *machine);

#endif
