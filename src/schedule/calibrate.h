/* SPDX-License-Identifier: Apache-2.0 */
/* The costs of a group's calls, measured through its device and its transport. */
#ifndef LAP_SCHEDULE_CALIBRATE_H
#define LAP_SCHEDULE_CALIBRATE_H

#include "schedule/run.h"
#include "schedule/simulate.h"

/*
 * The cost model for GEMMs of n columns and a sum over k, 0: for none, without an emulated link. Copies, sums,
 * signals, steps and the network, if the transport goes over one, are measured by the first call in
 * a group (and again for another transport), GEMMs by the first call for a type, n and k; the group
 * keeps both. All ranks measure at once and get the same figures.
 * Collective; every rank gives the same arguments. Takes a few tenths of a second at most, and next
 * to nothing when the figures are there. `transport` is the name of one; NULL: what fits.
 * LAP_ERR_NO_MEMORY and what a group's collectives return; when one rank fails, all do.
 */
lap_status_t lap_calibrate(lap_group_t *group, lap_engine_t *engine, const char *transport,
                           lap_dtype_t dtype, size_t n, size_t k, lap_cost_t *cost_p);

#endif
