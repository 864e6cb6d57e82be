/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that reach nothing but their operands: lap check --guard. */
#ifndef LAP_CLI_CHECK_GUARD_H
#define LAP_CLI_CHECK_GUARD_H

#include "train.h"

/* Starts the ranks of a training, or is one of them; `again` is the command line, see lap_ranks_run. Returns the exit status. */
int lap_check_guarded(const lap_train_t *train, char *const *again);

/* Proves and runs each of a list of trainings. Returns the exit status. */
int lap_check_guard_all(void);

#endif
