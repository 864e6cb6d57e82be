/* SPDX-License-Identifier: Apache-2.0 */
/* A planned step as a timeline. */
#ifndef LAP_PLAN_STEP_TRACE_H
#define LAP_PLAN_STEP_TRACE_H

#include "plan/plan.h"
#include "schedule/trace.h"

/*
 * Fills a timeline whose size is config->pp with a step that was planned. The caller clears it, also
 * after a failure.
 */
lap_status_t lap_plan_timeline(const lap_plan_config_t *config, const lap_machine_t *machine,
                               const lap_plan_result_t *result, lap_trace_t *timeline);

#endif
