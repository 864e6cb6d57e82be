/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call, or a program, would cost: the schedules of all ranks played through by events, with a duration for
 * each step from a cost model. Nothing is run.
 *
 * Time is work over speed. Work is in seconds of a core, measured while all ranks are at it, so
 * that what they take from each other (memory bandwidth above all) is in the figures. Whatever is
 * at work shares the cores: with more demand than cores all of it slows down alike. So a copy that
 * competes with a GEMM for a core costs the GEMM that much time, and a rank that waits leaves its
 * core to others.
 */
#ifndef LAP_SCHEDULE_SIMULATE_H
#define LAP_SCHEDULE_SIMULATE_H

#include "schedule/calls.h"

#define LAP_COST_POINTS 5

/* A figure measured at a few sizes. Between them it is interpolated over the logarithm. */
typedef struct lap_curve {
    size_t count;
    double sizes[LAP_COST_POINTS]; /* ascending, above 0 */
    double values[LAP_COST_POINTS];
} lap_curve_t;

/* The value at a size; that of the nearest point outside them, 0 for a curve without any. */
double lap_curve_at(const lap_curve_t *curve, double size);

/* All figures are of one rank while every rank does the same. */
typedef struct lap_cost {
    lap_curve_t gemm;    /* multiply-adds per second of the GEMM's cores, by rows */
    lap_curve_t columns; /* what is left of that speed, by columns of the result; 1 for many */
    lap_curve_t copy;    /* bytes per second of a put or copy, by bytes */
    double reduce;       /* bytes read and written per second by a sum */
    double step_s;       /* of every step: issuing it and taking it from its queue */
    double signal_s;     /* until a raise is noticed */
    double event_s;      /* until the end of a step of another stream is noticed */
    double spin_s;       /* a wait for a signal keeps a core busy for so long before it sleeps */
    double call_s;       /* beginning and ending a call */
    /*
     * What a kernel that was measured takes longer behind another kernel than behind itself: a GPU that begins
     * it has to load its code and to divide its memory anew.
     */
    double launch_s;
    double cores;      /* that all ranks share, */
    double rank_cores; /* and that a rank has for itself, such as its part of a GPU: 1; 0: none */
    double gemm_cores; /* that one GEMM keeps busy */
    bool copy_engines; /* do copies and signals, which then need no core */
    /*
     * That a put takes from all else while its bytes are on the link, which has a rate then, or for as
     * long as its step was measured; 0: none.
     */
    double put_cores;
    lap_link_t link; /* out of each rank, a network or an emulated one; both 0: none */
} lap_cost_t;

/* A link that comes after the one in the model: the slower one counts, the latencies add up. */
void lap_cost_add_link(lap_cost_t *cost, const lap_link_t *link);

/* A step that was measured by itself, as it is issued. */
typedef struct lap_step_cost {
    double seconds; /* negative: it was not */
    double cores;   /* that it wants meanwhile */
} lap_step_cost_t;

/* What a fragment of a program costs. */
typedef struct lap_fragment_cost {
    const lap_cost_t *cost;       /* with the rates of its GEMMs; all have the same cores */
    const lap_step_cost_t *steps; /* of each of its steps; NULL: they follow from the rates */
    uint32_t nsteps;
    double kernel_s; /* a kernel */
    double finish;   /* seconds of its epilogue per byte of the result */
} lap_fragment_cost_t;

/* When a rank is at a fragment: from the beginning of its first step to the end of its last one. */
typedef struct lap_fragment_span {
    double begin, end;
} lap_fragment_span_t;

/* From the beginning on all ranks at once to the end of the slowest. */
typedef struct lap_simulated {
    double seconds;    /* of all, */
    double foreground; /* and of all but the fragments in the background; */
    double call;       /* of both, the beginning and the end of a call, which are in no fragment */
} lap_simulated_t;

/*
 * The time of the programs of all ranks of a world. costs[f] is of fragment f, which is alike on all ranks. Writes
 * *simulated_p on success, and the spans of all fragments of `rank`, unless `spans` is NULL. LAP_ERR_CHECK with a step
 * that would wait forever; LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_linked_simulate(const lap_linked_t *const *programs, int size,
                                 const lap_fragment_cost_t *costs, lap_simulated_t *simulated_p,
                                 int rank, lap_fragment_span_t *spans);

/* The same where ranks do different things: costs[r][f] is of fragment f of rank r. */
lap_status_t lap_linked_simulate_each(const lap_linked_t *const *programs, int size,
                                      const lap_fragment_cost_t *const *costs,
                                      lap_simulated_t *simulated_p, int rank,
                                      lap_fragment_span_t *spans);

/*
 * The time of one call, from its beginning on all ranks at once to the end of the slowest. Writes
 * *seconds_p on success. LAP_ERR_CHECK with a step that would wait forever; LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_schedule_simulate(const lap_schedule_t *const *schedules, int size,
                                   const lap_cost_t *cost, double *seconds_p);

/*
 * The same with costs of a fragment. `watch` gets the times of each step, or `play` (schedule/play.h), whose programs are
 * not given, has the timeline; either may be NULL.
 */
struct lap_play;
lap_status_t lap_schedule_play(const lap_schedule_t *const *schedules, int size,
                               const lap_fragment_cost_t *costs, const lap_step_watch_t *watch,
                               struct lap_play *play, double *seconds_p);

#endif
