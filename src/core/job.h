/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs by the directory in which their ranks meet: which process is which rank, and what a process
 * announces of a rank to those that wait for it there. All of it is gone with that process.
 */
#ifndef LAP_CORE_JOB_H
#define LAP_CORE_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/status.h>

/* What can be announced of a rank. */
typedef enum lap_job_word {
    LAP_JOB_TAKEN,    /* this process is the rank */
    LAP_JOB_WIRED,    /* the rank makes a world with a wire, and does not come to the directory */
    LAP_JOB_ENDED,    /* the rank has ended with status 0; its launcher says so */
    LAP_JOB_LAUNCHER, /* where the launcher receives why ranks fail; of no rank */
    LAP_JOB_NO_FILES, /* the rank cannot open what it takes to come to the directory */
} lap_job_word_t;

/*
 * Takes a rank of the job whose ranks meet in `dir` for this process, until *fd_p is closed or the
 * process ends. LAP_ERR_MISMATCH, with the process that has it, when it is taken; it may be our
 * own. *fd_p is -1 after success where there is nothing to close.
 */
lap_status_t lap_job_take(const char *dir, int rank, int *fd_p);

/* Announces it until the descriptor is closed or the process ends. -1: that is not possible. */
int lap_job_announce(const char *dir, int rank, lap_job_word_t word);

/*
 * Announces for so long, or until as many processes have seen it, that the rank has no files left.
 * Needs one: where there is none, and the hard limit is higher than the soft one, that is raised
 * for a moment.
 */
void lap_job_announce_no_files(const char *dir, int rank, int askers, uint64_t ns);

/*
 * A failure when `rank`, for which `self` waits in `dir`, is known not to come.
 */
lap_status_t lap_job_look(const char *dir, int self, int rank);

/*
 * Messages of ranks to their launcher. It listens until it closes the descriptor; -1: it cannot. A
 * rank sends, and waits a while if the launcher has no time: false, when nobody receives it, or
 * only somebody of another user, who takes no notice. Hearing takes the next message of this user
 * and returns its bytes; -1: none has come.
 */
int lap_job_listen(const char *dir);
bool lap_job_send(const char *dir, const void *bytes, size_t count);
ptrdiff_t lap_job_receive(int fd, void *bytes, size_t room);

#endif
