/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a linked program (link.h): a walk over its fragments without decisions. A step waits for
 * the steps that it is linked to, by events; everything else is the order of its stream. What comes
 * before the program comes before all of it, by one join of the engine's streams. Where the target
 * has graphs, a program that is issued again with the same memory is launched as a graph: what follows
 * one another in the foreground, or in the background, is one; all of it is, where the foreground waits
 * for the background and each stream can have a hardware queue, and it is then issued at once. Messages
 * of a pipeline are in no graph, but for those that are sent in the foreground: segments.h.
 */
#ifndef LAP_SCHEDULE_EXECUTE_H
#define LAP_SCHEDULE_EXECUTE_H

#include "schedule/bind.h"
#include "schedule/link.h"
#include "schedule/run.h"

/* Whose program it is: memory, numbers and kernels; `origin` is that of a fragment. */
typedef struct lap_exec_owner {
    lap_base_of_t base;
    /* The numbers and the buffer of a call with m rows, and places that are none of its operands. */
    lap_binding_t (*call)(void *context, uint32_t origin, size_t m);
    /* Issues a kernel to a stream. Its operands, whose memory is bound, live as long as the program. */
    lap_status_t (*kernel)(void *context, uint32_t origin, const lap_operands_t *operands,
                           lap_stream_t *stream);
    void *context;
} lap_exec_owner_t;

typedef struct lap_exec lap_exec_t;

/* What running needs of a fragment of the program. */
typedef struct lap_exec_fragment {
    uint32_t origin, buffer; /* as lap_fragment_t has them */
    lap_stream_set_t set;    /* whose streams it is on */
    int size;                /* ranks of its group */
    const char *kernel;      /* its name; NULL: a call */
    uint16_t stream;         /* of a kernel */
    uint32_t nlinks;
    lap_link_dep_t *links; /* in the order of steps */
} lap_exec_fragment_t;

/*
 * Makes a linked program ready to be bound. Takes over its schedules, and clears the rest, most of which only
 * linking and proofs need; also on failure.
 */
lap_status_t lap_exec_create(lap_engine_t *engine, lap_linked_t *linked,
                             const lap_exec_owner_t *owner, lap_exec_t **exec_p);
void lap_exec_destroy(lap_exec_t *exec);

/* The bytes of the host's memory that a fragment of a linked program takes when that is ready, without events. */
size_t lap_exec_fragment_bytes(const lap_linked_t *linked, const lap_fragment_t *fragment);

uint32_t lap_exec_nfragments(const lap_exec_t *exec);
const lap_exec_fragment_t *lap_exec_fragment(const lap_exec_t *exec, uint32_t fragment);
lap_runnable_t *lap_exec_runnable(lap_exec_t *exec, uint32_t fragment);
/* Whether the times of kernels are noted, from the next lap_exec_bind on; not, unless asked for. */
void lap_exec_time_kernels(lap_exec_t *exec, bool on);
/* Those of a kernel in the latest issue, which has ended; all 0 where they were not noted. */
const lap_span_t *lap_exec_kernel_span(const lap_exec_t *exec, uint32_t fragment);
lap_delays_t lap_exec_kernel_delays(const lap_exec_t *exec, uint32_t fragment);

/*
 * Asks the owner for the memory and the numbers of all fragments: before the first issue, and when they have changed.
 * Nothing of the program is in flight.
 */
lap_status_t lap_exec_bind(lap_exec_t *exec);

/* Begins to issue the program, after all that the engine was given before. */
lap_status_t lap_exec_begin(lap_exec_t *exec);

/* Issues fragments [first, end), which follow those issued before. Does not block. */
lap_status_t lap_exec_issue(lap_exec_t *exec, uint32_t first, uint32_t end);

/* All has been issued, or as much as there will be. */
lap_status_t lap_exec_end(lap_exec_t *exec);

/*
 * The numbers of the first and the last call on a buffer in their group, as lap_runnable_number; 0:
 * none counts.
 */
void lap_exec_numbers(const lap_exec_t *exec, uint32_t buffer, uint64_t *first_p, uint64_t *last_p);

/* Waits until what was issued to a set has run; returns its failure. */
lap_status_t lap_exec_wait(lap_exec_t *exec, lap_stream_set_t set);

#endif
