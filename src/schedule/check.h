/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the checker share: the schedules of all ranks and calls as one graph of
 * happens-before.
 *
 * A node is something that happens at once: a step, a tile of a GEMM, the beginning or the end of
 * a call. Time on a thread is counted in ticks; a thread is a stream of a rank, or one of the
 * tiles that a GEMM runs in any order and that raise a signal. The clock of a node holds, for each
 * thread, the last tick that happened before it.
 *
 * Linked programs are checked in the same way: a fragment is a call. But only the first call has a
 * begin: streams go on from one to the next. A call ends, with nobody waiting for it, where all its
 * waits are over. The point where the rank's symmetric memory is its own again is a node, too. Each rank numbers its
 * own calls: which of them are one is in calls.h.
 */
#ifndef LAP_SCHEDULE_CHECK_H
#define LAP_SCHEDULE_CHECK_H

#include "schedule/calls.h"
#include "schedule/range.h"
#include "schedule/schedule.h"

#define LAP_CHECK_NONE UINT32_MAX
#define LAP_CHECK_TEXT 224 /* room for a node in words */

typedef enum lap_node_kind {
    LAP_NODE_BEGIN, /* of a call */
    LAP_NODE_END,
    LAP_NODE_STEP,
    LAP_NODE_TILE,
} lap_node_kind_t;

typedef struct lap_node {
    lap_node_kind_t kind;
    uint32_t call;
    int rank;
    uint32_t step, tile; /* tile: index in the schedule's tiles */
    uint32_t thread, tick;
    /*
     * Who speaks for this node when asked what it happened before: itself, or the end of its step.
     */
    uint32_t voice;
    uint32_t first_pred, npreds;
    uint32_t pending;      /* predecessors and signals that have not come yet */
    uint32_t wait;         /* the moment it waits for, or LAP_CHECK_NONE */
    uint32_t next_waiter;  /* for the same moment */
    int raise_rank;        /* to which it puts or raises; else its own */
    uint32_t raise_call;   /* its call, as that rank counts */
    uint32_t raise_signal; /* LAP_NO_SIGNAL: none */
    uint32_t moment;       /* that of its raise, once it has run, or LAP_CHECK_NONE */
    uint32_t next_sent;    /* what its rank puts or raises there next, once that has run */
    bool done;
} lap_node_t;

/* One raise of a signal word, as the owner of the word counts them. */
typedef struct lap_moment {
    uint32_t raise;   /* the node that does it, or LAP_CHECK_NONE */
    uint32_t waiters; /* the first one */
    uint32_t call;    /* the call to which the owner accounts it */
} lap_moment_t;

typedef struct lap_check {
    const lap_schedule_t *const *schedules; /* [call * size + rank], of operators; */
    const lap_linked_t *const *programs;    /* or of each rank; NULL: calls of operators */
    const lap_calls_t *matched;             /* of programs */
    uint32_t ncalls;                        /* of operators, and the most of a rank of programs */
    int size;
    uint32_t nsignals;     /* words of a rank, of all its buffers */
    uint32_t buffer_words; /* of each buffer */
    bool in_line;          /* steps follow one another as they are listed, whatever their streams */
    bool shares_queues;    /* streams may, where the programs run */
    lap_status_t status;   /* the first failure */

    lap_node_t *nodes;
    uint32_t nnodes;
    size_t nodes_room;
    uint32_t *preds;
    uint32_t npreds;
    size_t preds_room;
    uint32_t *begins, *ends;       /* nodes of each call, [rank * ncalls + call] */
    uint32_t *frees;               /* of programs: its symmetric memory is the rank's own again */
    uint32_t *clocks;              /* [nnodes, nthreads] */
    uint32_t nthreads, nstreams;   /* all; streams of a rank that schedules use, */
    uint32_t streams[LAP_STREAMS]; /* ... and which of those each is */
    uint32_t *ticks;               /* per thread: how far it has been counted */
    uint32_t *sequence;            /* all nodes, in an order in which they can happen */
    uint32_t *tile_thread; /* per stream of each rank: the first thread of its raising tiles */

    lap_moment_t *moments;
    uint32_t *first_moment; /* per word, [rank * nsignals + signal], and one past the last */
    uint32_t *raised;       /* per word: raises so far */
} lap_check_t;

static inline const lap_schedule_t *lap_check_schedule(const lap_check_t *check, uint32_t call,
                                                       int rank)
{
    return check->programs ? &check->programs[rank]->fragments[call].schedule
                           : check->schedules[(size_t)call * (size_t)check->size + (size_t)rank];
}

/* How many calls a rank has; and the place of one among those of all ranks. */
static inline uint32_t lap_check_ncalls(const lap_check_t *check, int rank)
{
    return check->programs ? check->programs[rank]->nfragments : check->ncalls;
}

static inline size_t lap_check_at(const lap_check_t *check, uint32_t call, int rank)
{
    return (size_t)rank * check->ncalls + call;
}

static inline const lap_fragment_t *lap_check_fragment(const lap_check_t *check, uint32_t call,
                                                       int rank)
{
    return check->programs ? &check->programs[rank]->fragments[call] : NULL;
}

/* A rank of the group of a call, as a rank of all; and a signal of its buffer, among all words. */
static inline int lap_check_peer(const lap_check_t *check, uint32_t call, int rank, int peer)
{
    const lap_fragment_t *fragment = lap_check_fragment(check, call, rank);
    return fragment ? lap_fragment_rank(fragment, peer) : peer;
}

static inline uint32_t lap_check_signal(const lap_check_t *check, uint32_t call, int rank,
                                        uint32_t signal)
{
    const lap_fragment_t *fragment = lap_check_fragment(check, call, rank);
    return fragment && signal != LAP_NO_SIGNAL ? fragment->buffer * check->buffer_words + signal
                                               : signal;
}

/* A call of a rank, as rank `peer` of its group counts. */
static inline uint32_t lap_check_call(const lap_check_t *check, uint32_t call, int rank, int peer)
{
    return check->matched ? lap_calls_of(check->matched, rank, call, peer) : call;
}

/* How often a call raises a word of a rank, of all its words. */
static inline uint32_t lap_check_raised(const lap_check_t *check, uint32_t call, int rank,
                                        uint32_t word)
{
    const lap_schedule_t *schedule = lap_check_schedule(check, call, rank);
    const uint32_t signal = word - lap_check_signal(check, call, rank, 0);
    return signal < schedule->nsignals ? schedule->raised[signal] : 0;
}

/* "call 1 rank 0 step 7 PUT rows 8..15 of scratch -> rank 2". */
void lap_check_describe(const lap_check_t *check, uint32_t node, char *text, size_t bytes);

/*
 * Makes room for one more element of an array; NULL, with the failure in check->status, when there
 * is none.
 */
void *lap_check_grow(lap_check_t *check, void *array, uint32_t count, size_t *room_p,
                     size_t element);

/* Whether one node happens before another in every execution. Exact. */
bool lap_check_before(const lap_check_t *check, uint32_t earlier, uint32_t later);

/*
 * Whether what a put or a raise does at its peer happens before another node in every execution.
 * What a rank sends to another comes in the order of sending, but may come later than what it sends
 * to a third one, and than what that one sends on. So it has come for sure only when the peer has
 * waited for its own signal, or for one that the same rank raised after it. What a rank does to
 * itself, and every other node, comes at once.
 */
bool lap_check_arrived(const lap_check_t *check, uint32_t earlier, uint32_t later);

/* check_form.c: that every schedule makes sense by itself. */
lap_status_t lap_check_form(const lap_check_t *check);

/* check_graph.c: fills nodes, preds, moments. The caller clears the check, also after a failure. */
lap_status_t lap_check_graph(lap_check_t *check);

/* check_order.c: fills the clocks; that nothing deadlocks and that every signal means one thing. */
lap_status_t lap_check_order(lap_check_t *check);

/*
 * The same file: that every signal has come by the end of the call that accounts for it, so that
 * between calls none is under way, and that none comes again before the waits for it are over.
 */
lap_status_t lap_check_signals(const lap_check_t *check);

/*
 * check_access.c: that accesses have an order, and that of the list; reads have been written; results are whole, and
 * nothing of the list is left out.
 */
lap_status_t lap_check_access(lap_check_t *check);

/* check_queues.c: that no wait of a program can hold up what its graph sends before it in the list. */
lap_status_t lap_check_queues(const lap_check_t *check);

/* check_serial.c: that nothing of a rank runs at the same time as a serial fragment. */
lap_status_t lap_check_serial(const lap_check_t *check);

#endif
