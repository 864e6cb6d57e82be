/* SPDX-License-Identifier: Apache-2.0 */
/* Names of jobs that a user chose: each belongs to one rank 0 at a time, from its meeting to its end. */
#ifndef LAP_CORE_JOB_H
#define LAP_CORE_JOB_H

#include <lap/status.h>

/*
 * Takes the job whose ranks meet in `dir` for this process, until *fd_p is closed or the process
 * ends. LAP_ERR_MISMATCH, with the process that has it, when it is taken; it may be our own.
 * *fd_p is -1 after success where there is nothing to close.
 */
lap_status_t lap_job_take(const char *dir, int *fd_p);

#endif
