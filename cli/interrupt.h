/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT and SIGTERM to a command at work. The first asks it to stop where all ranks can, so that what
 * was measured until then is printed. The second ends it at once. What
 * comes right after the first is no second one: timeout and batch systems signal a process, and then its
 * group or all processes of a job.
 *
 * In a long computation nobody looks whether to stop, or whether the other ranks live. So a thread
 * watches, which ends the process when that lasts too long.
 */
#ifndef LAP_CLI_INTERRUPT_H
#define LAP_CLI_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

#include <lap/world.h>

#define LAP_INTERRUPT_ONCE_NS ((uint64_t)100 * 1000 * 1000) /* so long after the first */
#define LAP_INTERRUPT_STOP_S 0.7 /* in which ranks stop by themselves, or are ended */

/* From here on the two signals are caught, unless they are ignored or somebody else's. */
void lap_interrupt_begin(void);
void lap_interrupt_end(void);

/*
 * From here on a thread ends this process where it has not stopped soon after the signal that asked it to, as by that
 * signal, once it has printed what there is. It also ends a rank of `world`, which is NULL where there are no processes
 * to watch, that has not noticed the death of another one of its host within a second, with a sentence from `name`.
 * Without such a thread nothing is watched.
 */
void lap_interrupt_watch(const char *name, lap_world_t *world);
void lap_interrupt_unwatch(void);

/* From here on stopping may take longer than LAP_INTERRUPT_STOP_S: where it does, rank 0 prints `notice`. */
void lap_interrupt_takes(double stop_s, const char *notice);

/*
 * What the thread prints, with the lock: `print` is given the signal, too. From lap_interrupt_stops on the process
 * prints by itself, or has reported why it fails, and is not ended any more.
 */
void lap_interrupt_prints(void (*print)(void *context, int signal), void *context);
void lap_interrupt_stops(void);

/*
 * All of it for a command without ranks, which a signal ends at once: the thread prints what there is, or what
 * becomes of it, and the process ends by the signal. lap_interrupt_with_end undoes it.
 */
void lap_interrupt_with(const char *name, void (*print)(void *context, int signal), void *context);
void lap_interrupt_with_end(void);

/* Around changes of what is printed. */
void lap_interrupt_lock(void);
void lap_interrupt_unlock(void);

/* The signal that asked this process to stop; 0: none. */
int lap_interrupt_here(void);

/* The same for all ranks of a group, which come to the same answer. Collective. */
lap_status_t lap_interrupt_agree(lap_group_t *group, int *signal_p);

/*
 * Ends a rank by the signal that asked it to stop, once it has nothing more to do: its launcher names it then, and not another
 * rank, all of which have stopped with the same status. Returns where there was none, or no launcher.
 */
void lap_interrupt_leave(void);

/* The exit status of a command that a signal interrupted, in this rank or in another one. */
static inline int lap_interrupt_status(int signal)
{
    return 128 + signal;
}
static inline bool lap_interrupt_is_status(int status)
{
    return status > 128;
}

#endif
