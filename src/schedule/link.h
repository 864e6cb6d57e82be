/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linking: fragments and kernels become the program of one rank. A fragment is the schedule of an
 * operator, as it was built or lowered; a kernel is a schedule of one step. A program says for each
 * fragment which region of memory each of its places is, and to which group of ranks it belongs.
 * Nobody orders them by hand: the order is that of each stream, and where that is not enough links
 * follow from the ranges that steps read and write.
 *
 * On a symmetric buffer fragments follow the rule of schedule.h. Take a step that uses this rank's
 * symmetric memory, or lets a peer use it. It runs after all steps of the buffer's previous fragment
 * that use that memory, or that wait for a peer that does. Where streams count the signals of
 * a buffer, those of a fragment come after the CONSUME of the fragment before it. Where streams share
 * queues, a wait comes after all that fragments before it, in its set of streams, send: lower_waits.c.
 *
 * All ranks of a world have the same number of fragments; fragment i of all ranks is one call of the
 * groups that they form.
 */
#ifndef LAP_SCHEDULE_LINK_H
#define LAP_SCHEDULE_LINK_H

#include "schedule/schedule.h"

#define LAP_NO_REGION UINT32_MAX

/* How long a region has what was written there: who reads it later would read what is out of date. */
typedef enum lap_link_scope {
    LAP_SCOPE_PROGRAM = 0,
    LAP_SCOPE_ITERATION, /* of the fragment: a micro-batch, a bucket */
    LAP_SCOPE_CALL,      /* the fragment */
} lap_link_scope_t;

/* Memory with a name. Regions of one memory may share bytes at different times. */
typedef struct lap_link_region {
    char name[64];
    uint32_t memory;
    size_t base, bytes; /* in the memory */
    bool filled;        /* has contents before the program begins */
    uint32_t root; /* the region that it is part of: parts read what other parts wrote; or itself */
    lap_link_scope_t scope;
    bool lasts;       /* all iterations use it: see phases of fragments */
    uint32_t writers; /* of a program that is counted: the fragments that are to write it */
} lap_link_region_t;

/* What a place of a fragment is: a matrix in a region, which may have gaps between its rows. */
typedef struct lap_link_place {
    uint32_t region; /* LAP_NO_REGION: none of the program's */
    lap_dtype_t dtype;
    size_t offset;
    size_t row_bytes, stride;
} lap_link_place_t;

/* What a call uses besides places: matrices and vectors of its epilogue, and the scales of FP8 operands, a float each. */
enum { LAP_AUX = LAP_PLACES, LAP_BIAS, LAP_BIAS_GRAD, LAP_A_SCALE, LAP_B_SCALE, LAP_CALL_OPERANDS };

/* A step runs after a step of an earlier fragment, on another stream. */
typedef struct lap_link_dep {
    uint32_t step;
    uint32_t fragment, dep;
} lap_link_dep_t;

typedef struct lap_fragment {
    lap_schedule_t schedule;
    bool kernel; /* one step, which uses its operands; else the call of an operator, or a message */
    uint32_t origin;    /* what the caller made it from, by a number of the caller's */
    uint32_t buffer;    /* the symmetric buffer that it works in */
    uint32_t iteration; /* of what the program repeats: see lap_link_scope_t */
    /*
     * Its place in the list that the program is made from, and what it is for. What uses the same bytes of a region, and
     * does not only read, comes in the order of the list within an iteration and a phase; 0: any place. Iterations, and
     * sections of one, may add to a region that lasts in any order; but no fragment uses that after one of a later phase.
     */
    uint32_t order, phase;
    uint32_t section; /* of that list, such as a stage of a pipeline */
    bool serial;      /* not overlapped: nothing else of the program runs at the same time */
    /* Ranks of its group in the world: see lap_fragment_rank. */
    int base, stride;
    int neighbours; /* so many follow one another, and the next come `stride` on; 0: one */
    lap_link_place_t places[LAP_CALL_OPERANDS];
    lap_link_dep_t *links; /* in the order of steps */
    uint32_t nlinks;
    size_t links_room;
} lap_fragment_t;

/* Rank r of the group of a fragment, in the world. */
static inline int lap_fragment_rank(const lap_fragment_t *fragment, int r)
{
    const int neighbours = fragment->neighbours > 0 ? fragment->neighbours : 1;
    return fragment->base + r % neighbours + r / neighbours * fragment->stride;
}

/* When a simulated step, or a tile of a GEMM step, was: in seconds. */
typedef struct lap_step_times {
    double ready, begin, end; /* as in lap_span_t */
    double sent, came;        /* what it raised with bytes was on its way; both 0: nothing was */
} lap_step_times_t;

/* Called with each of them as it ends; tile: index in the schedule's tiles, or LAP_NO_STEP. */
typedef struct lap_step_watch {
    void (*step)(void *context, int rank, uint32_t fragment, uint32_t step, uint32_t tile,
                 const lap_step_times_t *times);
    void *context;
} lap_step_watch_t;

typedef struct lap_linked {
    int rank; /* in the world */
    lap_link_region_t *regions;
    uint32_t nregions;
    size_t regions_room;
    lap_fragment_t *fragments;
    uint32_t nfragments;
    size_t fragments_room;
    lap_status_t status; /* the first failure: nothing is added after it */
    bool counted;        /* regions say how many fragments are to write them */
    bool shares_queues;  /* streams may: a wait comes after all that its set sends before it */
    const lap_step_watch_t *watch; /* (optional) of a simulation of it */
} lap_linked_t;

/* A new region, part of no other, with LAP_SCOPE_PROGRAM; returns its index. */
uint32_t lap_link_add_region(lap_linked_t *linked, const char *name, uint32_t memory, size_t base,
                             size_t bytes, bool filled);

/* A new fragment without steps, with no place bound. NULL after a failure. */
lap_fragment_t *lap_link_fragment(lap_linked_t *linked);

/* The fragments from `first` on are not overlapped. */
void lap_link_set_serial(lap_linked_t *linked, uint32_t first);

/*
 * A new fragment that is a kernel, on a stream; `method` says in messages what it is for. Its operands follow. NULL after a
 * failure.
 */
lap_fragment_t *lap_link_kernel(lap_linked_t *linked, const lap_problem_t *problem,
                                const char *method, uint16_t stream, const char *name);

/* An operand of the latest fragment, a kernel: `rows` rows of a matrix. */
void lap_link_operand(lap_linked_t *linked, uint32_t role, bool write,
                      const lap_link_place_t *place, size_t rows);

/*
 * What the latest fragment, a call whose places are bound, uses besides them: its epilogue reads, or writes, matrices where
 * it finishes its result d. They are as large as d, but for vectors, of which each column of d has an
 * element. `reads_d`: it reads d, too.
 */
void lap_link_epilogue(lap_linked_t *linked, bool writes_aux, bool reads_d);

/* Finds the links of all fragments. Returns the first failure. */
lap_status_t lap_link(lap_linked_t *linked);

void lap_linked_clear(lap_linked_t *linked);

/* The range of a region, or of symmetric memory, that a range of a fragment is. */
lap_range_t lap_link_resolve(const lap_linked_t *linked, const lap_fragment_t *fragment,
                             const lap_range_t *range);

/* Calls `each` for all that a step, or a tile of it, reads and writes, resolved. */
typedef void (*lap_each_access_t)(void *context, const lap_range_t *range, bool write);
void lap_link_each(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t step,
                   uint32_t tile, lap_each_access_t each, void *context);

/* The same of a step and all its tiles. */
void lap_link_each_of_step(const lap_linked_t *linked, const lap_fragment_t *fragment,
                           uint32_t step, lap_each_access_t each, void *context);

/* The first of a fragment's links that is of a step or of one after it. */
uint32_t lap_link_first(const lap_fragment_t *fragment, uint32_t step);

/*
 * Whether a step uses this rank's symmetric memory, or waits for a peer that does: for data, or for
 * a peer that is done with reading.
 */
bool lap_link_occupies(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t step);

/* Whether a step raises or waits for signals, or counts them. */
bool lap_link_counts(const lap_schedule_t *schedule, uint32_t step);

/*
 * Proves the programs of all ranks of a world: see lap_schedule_check. A read of a region must find
 * what the program wrote there, within its scope, or what filled it before; and nothing that was
 * written since for another region in the same memory. Regions are used in the order of the list that the
 * program is made from, and, where that says so, written by as many fragments. `shares_queues`: and that they cannot
 * deadlock where streams share hardware queues and each segment (segments.h) is a graph. Run step by step in the order of
 * the list they do not: see lap_schedule_check_in_line. And a wait comes after all that its segment sends before it in
 * the list.
 */
lap_status_t lap_linked_check(const lap_linked_t *const *programs, int size, bool shares_queues);

#endif
