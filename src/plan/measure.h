/* SPDX-License-Identifier: Apache-2.0 */
/* The description of the machine that ranks run on, by measurement. */
#ifndef LAP_PLAN_MEASURE_H
#define LAP_PLAN_MEASURE_H

#include <lap/world.h>

#include "plan/machine.h"

/*
 * Measures GEMMs, attention, the optimizer, kernels, memory, copies between ranks and signals: GPUs
 * at their power limit, as in training. All ranks of a world do the same at the same time: a rank is what a
 * GPU is to the planner. The wires between hosts are taken to be those inside one where all ranks are on
 * one. Collective; takes seconds. Writes *machine_p on success, but for the name. Returns as
 * lap_calibrate.
 */
lap_status_t lap_machine_measure(lap_world_t *world, lap_machine_t *machine_p);

/* ---- measure_kernels.c ---- */

/* The rates of kernels and epilogues only, on a host or on a device that has memory of its own. Collective. */
lap_status_t lap_machine_measure_kernels(lap_group_t *group, bool is_far, lap_machine_t *machine);

#endif
