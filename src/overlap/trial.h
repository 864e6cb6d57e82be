/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a method by trying them all, for devices whose costs no model knows well enough. */
#ifndef LAP_OVERLAP_TRIAL_H
#define LAP_OVERLAP_TRIAL_H

#include "overlap/auto.h"

/* Memory to call an operator's methods with. */
typedef struct lap_trial lap_trial_t;

/*
 * Makes memory as large as calls of the capacity need, filled with numbers that look random. The
 * description has a symmetric buffer, on which the calls are made. Collective; when one rank fails, all do:
 * LAP_ERR_NO_MEMORY where there is not enough room for it in addition to the caller's own.
 */
lap_status_t lap_trial_begin(lap_group_t *group, lap_engine_t *engine, const lap_op_desc_t *desc,
                             lap_trial_t **trial_p);
void lap_trial_end(lap_trial_t *trial);

/*
 * Calls every candidate a few times with `m` rows, writes the seconds of a call, those of the
 * slowest rank, and picks: the fastest, but serial unless it is beaten by more than noise. Where
 * `among` is not NULL, only serial and the `most` fastest of that forecast, which is of the same
 * candidates, are tried; the others are given its seconds. Collective.
 */
lap_status_t lap_trial_run(lap_trial_t *trial, size_t m, const lap_forecast_t *among, size_t most,
                           lap_forecast_t *forecast);

/* What it picks, of a forecast with seconds. Pure. */
void lap_trial_pick(lap_forecast_t *forecast);

#endif
