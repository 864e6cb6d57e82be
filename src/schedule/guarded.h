/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of programs on a device that guards what it computes: see device/host/host_guard.h. */
#ifndef LAP_SCHEDULE_GUARDED_H
#define LAP_SCHEDULE_GUARDED_H

#include "schedule/execute.h"

/* As owner->kernel, with copies of the operands that were linked and proved. */
lap_status_t lap_exec_issue_guarded(const lap_exec_owner_t *owner,
                                    const lap_exec_fragment_t *fragment,
                                    const lap_operands_t *operands, lap_stream_t *stream);

#endif
