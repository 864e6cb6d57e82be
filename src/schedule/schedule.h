/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule: what one rank does in one call of an operator, as a flat array of steps. Each step is
 * on a numbered stream and may depend on earlier steps of other streams. Memory is named by place
 * and range, so that a schedule is built once and bound to pointers at each call. It is run
 * (run.c), proved (check.c), simulated (simulate.c) and, with times, drawn (draw.c).
 *
 * The rule that makes any mixture of calls on one symmetric buffer safe: between calls a rank's
 * symmetric memory is its own. A peer may touch it only after this rank has raised a signal to that
 * peer in the same call, and this rank ends the call only when it knows that all such accesses are
 * over. The checker proves the rule's consequences; it does not assume the rule.
 */
#ifndef LAP_SCHEDULE_SCHEDULE_H
#define LAP_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/op.h>

#include "core/signal.h"

/* Memory that steps read and write. All but LAP_SYMMETRIC are private to the rank. */
typedef enum lap_place {
    LAP_INPUT = 0, /* a */
    LAP_WEIGHT,    /* b */
    LAP_MOVED,     /* x */
    LAP_SCALE,     /* one float: of what this rank sends, when that is FP8 */
    LAP_OUTPUT,    /* d */
    LAP_GATHERED,  /* the second result: the gathered a, when asked for, or y */
    LAP_SCALES,    /* a float per rank: the scales of the shards in it; empty shards have none */
    LAP_SCRATCH,   /* local memory of the operator */
    LAP_SYMMETRIC, /* the symmetric buffer of `rank` */
    LAP_PLACES
} lap_place_t;

/* Whether the caller gives what is there: nobody may write it. */
static inline bool lap_place_is_input(lap_place_t place)
{
    return place <= LAP_SCALE;
}

/*
 * Rows of bytes: `rows` pieces of `row_bytes` at offset, offset + stride, ... In places that the
 * caller owns (all but scratch and symmetric) offsets and strides are those of a packed matrix;
 * binding puts the caller's stride in.
 */
typedef struct lap_range {
    lap_place_t place; /* in a program also LAP_PLACES + a region */
    int rank;          /* whose memory; the schedule's own rank but for LAP_SYMMETRIC */
    size_t offset;
    size_t rows;
    size_t row_bytes;
    size_t stride;
} lap_range_t;

typedef enum lap_step_kind {
    LAP_STEP_GEMM = 0, /* the d of each tile = its a times b */
    LAP_STEP_PUT,      /* copy a to d in the peer's symmetric memory, then raise signal there */
    LAP_STEP_RAISE,  /* raise peer's signal: a credit, or its bytes are there to be read in place */
    LAP_STEP_WAIT,   /* until this rank's signal has been raised `count` times in this call */
    LAP_STEP_REDUCE, /* d = the sum of all a, in their order */
    LAP_STEP_COPY,   /* copy a to d, both this rank's */
    LAP_STEP_SUMS,   /* the caller's bias_grad = the sums of the columns of a */
    LAP_STEP_KERNEL, /* of a program: the kernel `name`; see link.h for what it uses */
    LAP_STEP_CONSUME, /* lowered: the signals of the call are used up, the next counts from there */
    LAP_STEP_KINDS
} lap_step_kind_t;

#define LAP_NO_STEP UINT32_MAX /* where an index may be none */
/*
 * The second lane of computing is there where the target has lanes. Calls in the background have a set
 * of streams of their own, of the same kinds; and so have the messages of a pipeline, each way. The
 * foreground has a second pair of streams to send and to receive, for calls that travel beside others.
 */
enum {
    LAP_STREAM_COMPUTE = 0,
    LAP_STREAM_SEND,
    LAP_STREAM_RECEIVE,
    LAP_STREAM_LANE,
    LAP_STREAM_KINDS
};
typedef enum lap_stream_set {
    LAP_FOREGROUND = 0,
    LAP_BACKGROUND,
    LAP_DOWNSTREAM, /* activations, to the next stage */
    LAP_UPSTREAM,   /* their gradients, to the stage before */
    LAP_STREAM_SETS
} lap_stream_set_t;
enum {
    LAP_STREAM_SEND2 = LAP_STREAM_SETS * LAP_STREAM_KINDS + LAP_STREAM_SEND,
    LAP_STREAM_RECEIVE2 = LAP_STREAM_SETS * LAP_STREAM_KINDS + LAP_STREAM_RECEIVE,
    LAP_STREAMS = (LAP_STREAM_SETS + 1) * LAP_STREAM_KINDS
};
#define LAP_SECOND_BITS (1u << LAP_STREAM_SEND2 | 1u << LAP_STREAM_RECEIVE2)

/* A stream of a set; and, as bits, all of them. */
static inline uint16_t lap_stream_of(lap_stream_set_t set, int kind)
{
    return (uint16_t)((int)set * LAP_STREAM_KINDS + kind);
}

static inline unsigned lap_stream_bits(lap_stream_set_t set)
{
    const unsigned bits = ((1u << LAP_STREAM_KINDS) - 1) << lap_stream_of(set, 0);
    return set == LAP_FOREGROUND ? bits | LAP_SECOND_BITS : bits;
}

/*
 * The types of the matrices of an operator. A GEMM multiplies `a` by `b`; what it writes is `out`
 * in LAP_OUTPUT and `wire` elsewhere.
 */
typedef struct lap_types {
    lap_dtype_t a, b, out, wire, y;
} lap_types_t;

/* Which operand of its step it is. */
typedef enum lap_role {
    LAP_ROLE_A = 0,    /* what is read: of a GEMM a; of a sum each of its parts, in their order */
    LAP_ROLE_B,        /* of a GEMM: the part of the weight that gives the columns of d */
    LAP_ROLE_SCALE,    /* of each a that has one, a float: in their order */
    LAP_ROLE_D,        /* what is written */
    LAP_ROLE_EPILOGUE, /* linked: what a call uses besides places, in regions of its program */
    LAP_ROLE_KERNEL, /* this and those after it: operands of a kernel as its caller numbers them */
} lap_role_t;

enum { LAP_READ = 1, LAP_WRITE = 2 };

/* An operand: memory that a step, or a tile of it, reads or writes. */
typedef struct lap_use {
    lap_range_t range;
    uint8_t role, access; /* lap_role_t; LAP_READ or LAP_WRITE */
    lap_dtype_t dtype;    /* what puts and copies move has none */
} lap_use_t;

typedef struct lap_signal {
    int peer;       /* who raises it, or whose it is */
    uint32_t word;  /* a wait: of this rank; else of the peer. LAP_NO_SIGNAL: none */
    uint32_t count; /* a wait: for so many raises within this call */
    size_t bytes;   /* else: what comes with it */
} lap_signal_t;

/* No signal, from nobody. */
#define LAP_SIGNAL_NONE ((lap_signal_t){.peer = -1, .word = LAP_NO_SIGNAL})

/* Rows of a GEMM step, which may wait for a signal of their own, or raise one. */
typedef struct lap_tile {
    uint32_t first_use, nuses; /* besides those of the step, which all tiles use */
    lap_signal_t wait, raise;
} lap_tile_t;

/*
 * GEMM and REDUCE steps that write LAP_OUTPUT end with the epilogue of the operator; no other step
 * writes there if there is one. Dependencies, uses and tiles lie in the tables of the schedule.
 */
typedef struct lap_step {
    lap_step_kind_t kind;
    uint16_t stream;
    uint16_t ndeps;
    uint32_t first_dep;          /* earlier steps, on other streams */
    uint32_t origin;             /* lowered: the step of the builder that it was made from */
    uint32_t first_use, nuses;   /* those of a role follow one another */
    uint32_t first_tile, ntiles; /* gemm */
    bool any_order;              /* gemm: tiles run as their signals come */
    bool together;               /* put, copy, reduce: a device may do it at once with what follows
                                    on its stream: puts and copies that are so, too, which then
                                    have no order, and the signals after them */
    lap_signal_t signal;         /* put, raise, wait */
    const char *name;            /* kernel */
} lap_step_t;

typedef struct lap_schedule {
    lap_op_kind_t kind;
    const char *method;
    int rank;
    int size;
    size_t m; /* active rows */
    lap_types_t types;
    lap_layout_t layout;
    lap_epilogue_t epilogue;
    lap_status_t status; /* the first failure: the adders below do nothing after it */

    lap_step_t *steps;
    uint32_t nsteps;
    size_t steps_room;
    uint32_t *deps; /* of all steps */
    uint32_t ndeps;
    size_t deps_room;
    lap_use_t *uses; /* of all steps and tiles */
    uint32_t nuses;
    size_t uses_room;
    lap_tile_t *tiles; /* of all GEMMs */
    uint32_t ntiles;
    size_t tiles_room;

    uint32_t *raised; /* per signal word of this rank: how often a call raises it */
    uint32_t nsignals;
    size_t scratch_bytes;
    size_t symmetric_bytes;
    lap_range_t output;   /* what the call must write exactly once; rows 0 when nothing */
    lap_range_t gathered; /* the same for the second result */
    lap_range_t scales;   /* and for its scales */
    lap_stream_set_t set; /* whose streams it is on */
    bool graph;           /* lowered: a call that is repeated is launched as a graph */
    lap_tile_t spare;     /* what lap_gemm_rows returns after a failure */
} lap_schedule_t;

/* The first use of a role among those of a step, or of a tile, and how many there are; never NULL. */
const lap_use_t *lap_step_uses(const lap_schedule_t *schedule, const lap_step_t *step,
                               lap_role_t role, uint32_t *count_p);
const lap_use_t *lap_tile_uses(const lap_schedule_t *schedule, const lap_tile_t *tile,
                               lap_role_t role, uint32_t *count_p);

/* The range of the first one; without rows where there is none. */
static inline const lap_range_t *lap_step_range(const lap_schedule_t *schedule,
                                                const lap_step_t *step, lap_role_t role)
{
    uint32_t count;
    return &lap_step_uses(schedule, step, role, &count)->range;
}

static inline const lap_range_t *lap_tile_range(const lap_schedule_t *schedule,
                                                const lap_tile_t *tile, lap_role_t role)
{
    uint32_t count;
    return &lap_tile_uses(schedule, tile, role, &count)->range;
}

/* The i-th of the steps that a step comes after. */
static inline uint32_t lap_step_dep(const lap_schedule_t *schedule, const lap_step_t *step,
                                    uint32_t i)
{
    return schedule->deps[step->first_dep + i];
}

/* Whether it is a single kernel, as those of a program are, or the call of another library. */
static inline bool lap_schedule_is_kernel(const lap_schedule_t *schedule)
{
    return schedule->nsteps == 1 && schedule->steps[0].kind == LAP_STEP_KERNEL;
}

/*
 * Signal words of a rank in a group of `size`. Each other rank raises four of them. Data: it has
 * put data here. Credit: this rank may write into its memory. Open: its memory may be read in place.
 * Done: it has read this rank's. They are separate, because a
 * word must not be raised in a later call before the waits for it in an earlier one are over,
 * whatever the two calls are.
 */
static inline uint32_t lap_signal_data(int source)
{
    return (uint32_t)source;
}

static inline uint32_t lap_signal_credit(int size, int source)
{
    return (uint32_t)(size + source);
}

static inline uint32_t lap_signal_open(int size, int source)
{
    return (uint32_t)(2 * size + source);
}

static inline uint32_t lap_signal_done(int size, int source)
{
    return (uint32_t)(3 * size + source);
}

static inline uint32_t lap_signal_count(int size)
{
    return 4u * (uint32_t)size;
}

/* "data[3]", "credit[3]", "open[3]" or "done[3]". */
void lap_signal_name(int size, uint32_t signal, char *text, size_t bytes);

/*
 * What a builder is given: the operator's description with all defaults filled in, one rank's view.
 */
typedef struct lap_problem {
    lap_op_kind_t kind;
    size_t m;        /* active rows */
    size_t capacity; /* most rows of any call */
    size_t n, k;     /* global, but for what is not sharded */
    lap_types_t types;
    lap_layout_t layout;
    lap_epilogue_t epilogue;
    bool gather_input; /* calls return what they gather */
    bool lanes;        /* GEMMs that do not need each other run side by side */
    int rank;
    int size;
    lap_op_desc_t desc; /* with its defaults: the knobs that the method has, and the rest of it */
} lap_problem_t;

/* What can be turned on a method: lap_op_fields (overlap/knobs.h) says what each is. */
enum {
    LAP_KNOB_AGGREGATE = 1 << 0,
    LAP_KNOB_NUM_SPLITS = 1 << 1,
    LAP_KNOB_BLOCK_ROWS = 1 << 2,
    LAP_KNOB_GATHER_INPUT = 1 << 3,
    LAP_KNOB_ROUNDS = 1 << 4, /* num_splits, too: not of n, but of the peers */
    LAP_KNOB_NUM_SM = 1 << 5, /* of all methods, on devices that have lanes */
    LAP_KNOB_ALGORITHM = 1 << 6,
};

/* A method of an operator: a pure function from a problem to a schedule. */
typedef struct lap_builder {
    const char *name;
    const char *summary;
    unsigned needs; /* LAP_CAN_... of the transport */
    unsigned knobs; /* LAP_KNOB_... that it has */
    void (*build)(const lap_problem_t *problem, lap_schedule_t *schedule);
} lap_builder_t;

/* Begins an empty schedule for a problem. */
void lap_schedule_init(lap_schedule_t *schedule, const lap_problem_t *problem, const char *method);
void lap_schedule_clear(lap_schedule_t *schedule);

/*
 * The adders append a step and return its index. When memory runs out or a step is impossible they
 * note it in schedule->status and return 0, so that builders read as lists of steps and check once.
 */
/* Any step, as it is, with its uses and tiles, but without dependencies: those follow with lap_add_dep. */
uint32_t lap_add_step(lap_schedule_t *schedule, const lap_step_t *step);
uint32_t lap_add_put(lap_schedule_t *schedule, uint16_t stream, int peer, uint32_t signal,
                     lap_range_t src, lap_range_t dst);
uint32_t lap_add_raise(lap_schedule_t *schedule, uint16_t stream, int peer, uint32_t signal,
                       size_t bytes);
uint32_t lap_add_wait(lap_schedule_t *schedule, uint16_t stream, int peer, uint32_t signal,
                      uint32_t count);
uint32_t lap_add_copy(lap_schedule_t *schedule, uint16_t stream, lap_range_t src, lap_range_t dst);
uint32_t lap_add_sums(lap_schedule_t *schedule, uint16_t stream, lap_range_t src);
uint32_t lap_add_kernel(lap_schedule_t *schedule, uint16_t stream, const char *name);
/*
 * The parts of the sum follow with lap_reduce_source, in the order of the sum; then, if they have
 * scales, those of all of them with lap_reduce_scale.
 */
uint32_t lap_add_reduce(lap_schedule_t *schedule, uint16_t stream, lap_range_t dst, lap_dtype_t to);
void lap_reduce_source(lap_schedule_t *schedule, lap_range_t src, lap_dtype_t from);
void lap_reduce_scale(lap_schedule_t *schedule, lap_range_t scale);
/* The tiles of the GEMM follow with lap_gemm_rows, each perhaps with its lap_gemm_scale. */
uint32_t lap_add_gemm(lap_schedule_t *schedule, uint16_t stream, lap_range_t b, bool any_order);
lap_tile_t *lap_gemm_rows(lap_schedule_t *schedule, lap_range_t a, lap_range_t d); /* never NULL */
void lap_gemm_scale(lap_schedule_t *schedule, lap_range_t scale);
/* One more use of a step, or of a tile of it: else LAP_NO_STEP. Ranges of the others may move. */
void lap_add_use(lap_schedule_t *schedule, uint32_t step, uint32_t tile, const lap_use_t *use);
/* The puts, copies and sums from step `first` on may be done together with what follows each. */
void lap_go_together(lap_schedule_t *schedule, uint32_t first);
/* `step` starts only after `dep`, an earlier one, has ended. */
void lap_add_dep(lap_schedule_t *schedule, uint32_t step, uint32_t dep);
/* This rank's word `signal` is raised once more in this call. Every raise by a peer needs one. */
void lap_expect(lap_schedule_t *schedule, uint32_t signal);

/* The GEMM of a tile: op(a) is [rows, k], op(b) is [k, n]. */
typedef struct lap_gemm_shape {
    size_t rows, n, k;
} lap_gemm_shape_t;
lap_gemm_shape_t lap_tile_shape(const lap_schedule_t *schedule, const lap_step_t *step,
                                const lap_tile_t *tile);

/*
 * A one-line description of a step, such as "step 7 PUT rows 8..15 -> rank 2", for messages and
 * pictures.
 */
void lap_step_describe(const lap_schedule_t *schedule, uint32_t step, char *text, size_t bytes);
/* Whether a step, or a tile of it, waits for a peer; and whether it puts or raises something. */
bool lap_step_waits(const lap_schedule_t *schedule, uint32_t step);
bool lap_step_sends(const lap_schedule_t *schedule, uint32_t step);
const char *lap_step_kind_name(lap_step_kind_t kind);
/*
 * Whether a rank computes while a step of this kind runs on this stream: it makes numbers, or moves its own, in
 * line with its GEMMs. What is in flight meanwhile is hidden; nothing else hides it.
 */
bool lap_step_computes(uint32_t kind, uint32_t stream);
/* "compute", "send", "receive", "compute2", "send2" or "receive2"; of the background, "background compute" and so on. */
const char *lap_stream_name(uint16_t stream);
/* "scratch", "symmetric buffer", ...: for messages. */
const char *lap_place_name(lap_place_t place);
/* "symmetric buffer of rank 2, bytes 4096..8191", for messages. */
void lap_range_describe(const lap_range_t *range, char *text, size_t bytes);

/*
 * Proves the schedules of `size` ranks, schedules[call * size + rank], called back to back. LAP_OK,
 * or LAP_ERR_CHECK with the two steps, their ranks and calls, and the range, in lap_last_error.
 */
lap_status_t lap_schedule_check(const lap_schedule_t *const *schedules, uint32_t ncalls, int size);

/*
 * Proves that they cannot deadlock even if each rank runs its steps one after the other, as they are
 * listed, whatever their streams. Where streams share queues, a wait may hold up what was issued
 * after it. Devices with such streams cannot deadlock either if they issue steps in that order.
 * LAP_ERR_CHECK as above.
 */
lap_status_t lap_schedule_check_in_line(const lap_schedule_t *const *schedules, uint32_t ncalls,
                                        int size);

#endif
