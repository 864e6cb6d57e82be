/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT and SIGTERM to a rank at work. The first asks it to stop where all ranks can, so that what
 * was measured until then is printed. The second ends it at once, and so does the end of a grace period. What
 * comes right after the first is no second one: timeout and batch systems signal a process, and then its
 * group or all processes of a job.
 */
#ifndef LAP_CLI_INTERRUPT_H
#define LAP_CLI_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

#include <lap/world.h>

#define LAP_INTERRUPT_ONCE_NS ((uint64_t)100 * 1000 * 1000) /* so long after the first */

/* From here on the two signals are caught, unless they are ignored or somebody else's. */
void lap_interrupt_begin(void);
void lap_interrupt_end(void);

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
