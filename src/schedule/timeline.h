/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline: what ranks did in a step, over all calls, kernels and the host, as one list of records.
 * Each rank fills its own and rank 0 gathers them; a simulation fills one of all ranks. Ranks are
 * those of the world, and times are in nanoseconds.
 */
#ifndef LAP_SCHEDULE_TIMELINE_H
#define LAP_SCHEDULE_TIMELINE_H

#include "schedule/gather_records.h"
#include "schedule/trace.h"

#define LAP_TIMELINE_MOST 1000000 /* records of all ranks together that a file should have */
#define LAP_TIMELINE_GROUPS 16    /* groups of ranks that a rank calls operators in */

/* What communication is for. */
typedef enum lap_traffic {
    LAP_TRAFFIC_NONE = 0,
    LAP_TRAFFIC_TP,
    LAP_TRAFFIC_PP,
    LAP_TRAFFIC_CP,
    LAP_TRAFFIC_DP,
    LAP_TRAFFICS
} lap_traffic_t;

/* "none", "tp", "pp", "cp" or "dp". */
const char *lap_traffic_name(lap_traffic_t traffic);

enum {
    LAP_TIMELINE_HOST = LAP_STEP_KINDS, /* kind of a record: what the host did */
    LAP_TIMELINE_HOST_STREAM = LAP_STREAMS,
    LAP_TIMELINE_LANES
};

typedef struct lap_timeline_record {
    int32_t rank;
    uint32_t kind;   /* lap_step_kind_t, or LAP_TIMELINE_HOST */
    uint32_t stream; /* below LAP_TIMELINE_LANES */
    uint32_t step;   /* of its call */
    uint32_t call;   /* which of the calls of its group; all ranks of the group count alike */
    int32_t base,
        stride;          /* its group: rank r of it is rank base + r * stride; stride 0: no group */
    int32_t peer;        /* put, raise, wait: see lap_trace_record_t; -1: none */
    uint32_t signal;     /* that it raises; LAP_NO_SIGNAL: none */
    int32_t from;        /* whose signal it waits for, */
    uint32_t awaited;    /* which, */
    uint32_t count;      /* and how often that was raised then; 0: it does not wait */
    uint32_t m, n, k;    /* GEMM: of this block; else 0 */
    int32_t layer;       /* -1: of none */
    uint32_t traffic;    /* lap_traffic_t */
    float predicted_us;  /* 0: not predicted */
    uint64_t bytes;      /* put, raise */
    uint64_t live_bytes; /* of activations while it runs; 0: not known */
    uint64_t ready, begin, end; /* as in lap_span_t */
    uint64_t sent, came;        /* put, raise with bytes: on their way; came 0: none were */
    char name[24];              /* of the fragment: "qkv_fprop" */
    char op[32];                /* "ag_gemm ring", or the kernel */
} lap_timeline_record_t;

typedef struct lap_timeline {
    int size;    /* ranks of the world */
    size_t most; /* records: what does not fit is counted and left out */
    size_t nrecords, room;
    size_t dropped;
    lap_timeline_record_t *records;
    bool emulated; /* a link was emulated */
    struct {
        int base, stride;
        uint32_t calls;
    } groups[LAP_TIMELINE_GROUPS];
    size_t ngroups;
    lap_clock_offset_t *clocks; /* of each rank, once gathered; else NULL */
} lap_timeline_t;

/* Forgets all records, not their memory: for the next step. */
void lap_timeline_reset(lap_timeline_t *timeline);
void lap_timeline_clear(lap_timeline_t *timeline);

/* Adds a record, or counts it among those that had no room. */
void lap_timeline_add(lap_timeline_t *timeline, const lap_timeline_record_t *record);

/* A call, for the names of its records. */
typedef struct lap_timeline_call {
    const char *name; /* of the fragment */
    int layer;
    int base, stride; /* its group; stride 0: rank r is rank base, and nobody else is in it */
    lap_traffic_t traffic;
    uint64_t live_bytes;
    float predicted_us; /* of all of it; 0: not predicted */
} lap_timeline_call_t;

/*
 * Adds the records of a call that has ended, of the rank of the schedule. Every rank of a group adds
 * the calls of that group in the same order.
 */
void lap_timeline_add_call(lap_timeline_t *timeline, const lap_timeline_call_t *call,
                           const lap_schedule_t *schedule, const lap_trace_record_t *records,
                           size_t nrecords);

/* The number of the next call of a group, which is then taken. */
uint32_t lap_timeline_number(lap_timeline_t *timeline, int base, int stride);

/* All of a record that follows from a step, or a block of a GEMM step (LAP_NO_STEP: of none). */
lap_timeline_record_t lap_timeline_describe(const lap_timeline_call_t *call, uint32_t number,
                                            const lap_schedule_t *schedule, uint32_t step,
                                            uint32_t block);

/* A kernel, or what the host did: one span. */
void lap_timeline_add_span(lap_timeline_t *timeline, int rank, uint32_t kind, uint32_t stream,
                           const lap_timeline_call_t *call, const char *op, const lap_span_t *span);

/*
 * Brings the records of all ranks of the world to rank 0, by its clock; the others' are forgotten. What
 * was dropped anywhere is in `dropped`. Collective. Returns as lap_trace_gather.
 */
lap_status_t lap_timeline_gather(lap_timeline_t *timeline, lap_group_t *world);

#endif
