/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are blocked in calls. Every operator that a rank begins has a number in its group, and
 * so has every collective of the group. A rank whose caller cannot go on before a call has ended
 * says so, where all ranks of the world can see it, once that has lasted a moment. When two ranks
 * are blocked each in a call that the other has not begun, neither will ever begin it: they are in
 * different calls, and say so at once. So it is where more ranks wait in a circle: each also says
 * which ranks wait for it, by themselves or by way of others, and finds itself among them.
 */
#ifndef LAP_CORE_BLOCKED_H
#define LAP_CORE_BLOCKED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <lap/world.h>

#include "core/environment.h"

#define LAP_CALL_TEXT 56
#define LAP_WAITER_WORDS (LAP_RANKS_MAX / 64)
#define LAP_CALL_NAME 16

/*
 * What each rank says of an operator's call that it begins, for its peers to compare with theirs.
 */
typedef struct lap_call_record {
    _Atomic uint32_t call; /* number of the call on this buffer, from 1; written last */
    _Atomic uint32_t op;   /* which operator of the buffer */
    _Atomic uint64_t m;    /* its active rows */
    /* The number of the call in the group, from 1; 0 while what follows and `op` and `m` change. */
    _Atomic uint64_t number;
    _Atomic uint64_t name[LAP_CALL_NAME / 8]; /* "ag_gemm" */
} lap_call_record_t;

#define LAP_CALL_RECORDS 4 /* a peer that ends its calls is at most one ahead of who waits for it */
#define LAP_CALL_ANY UINT64_MAX /* as a number: the calls of this rank are not counted any more */

/* Records of all ranks of a group, of the calls on one buffer. */
typedef struct lap_call_place {
    lap_call_record_t **records; /* records[r]: LAP_CALL_RECORDS of rank r */
    struct lap_call_place *next;
} lap_call_place_t;

/* From now on its records are looked at, until it is removed. Local. */
void lap_call_place_add(lap_group_t *group, lap_call_place_t *place);
void lap_call_place_remove(lap_group_t *group, lap_call_place_t *place);

/* A call that this rank waits in. */
typedef struct lap_blocked {
    lap_group_t *group;
    bool collective;          /* one of the group's own; else an operator's */
    uint64_t number;          /* among those of its kind in the group */
    bool all;                 /* it cannot end before all ranks of the group have begun it; else */
    int peer;                 /* ... before this one has */
    char call[LAP_CALL_TEXT]; /* in words: "ag_gemm with m = 8" */
} lap_blocked_t;

/* A rank's word of it, for all ranks of the world. All zero: it is not blocked. */
typedef struct lap_blocked_record {
    _Alignas(64) _Atomic uint32_t version; /* counts changes; odd while it changes */
    _Atomic uint32_t flags;
    _Atomic uint32_t peer; /* rank of the world */
    _Atomic uint64_t number;
    _Atomic uint64_t group;
    _Atomic uint64_t call[LAP_CALL_TEXT / 8];
    _Atomic uint64_t waiters[LAP_WAITER_WORDS]; /* bits: ranks of the world that wait for it */
} lap_blocked_record_t;

/* The same as plain words, as a packet brings them. */
typedef struct lap_blocked_words {
    uint32_t flags, peer;
    uint64_t number, group;
    char call[LAP_CALL_TEXT];
    uint64_t waiters[LAP_WAITER_WORDS];
} lap_blocked_words_t;

/* A circle that a rank has found itself in. */
typedef struct lap_circle {
    uint64_t since;     /* in lap_now_ns() time; 0: there is none */
    lap_group_t *group; /* of the call of a rank that waits for this one */
    char text[400];
} lap_circle_t;

/* By one writer at a time. */
void lap_blocked_write(lap_blocked_record_t *record, const lap_blocked_words_t *words);

/*
 * While the thread that calls the library waits for the end of calls of operators on `buffer`, from
 * number `first` to `last`; and whether it does, of one of them.
 */
void lap_await_begin(lap_world_t *world, const void *buffer, uint64_t first, uint64_t last);
void lap_await_end(lap_world_t *world);
bool lap_await_is(const lap_world_t *world, const void *buffer, uint64_t number);

/*
 * A look of a wait that has lasted a while, and in which the caller is blocked: says so to all
 * ranks. LAP_ERR_MISMATCH, breaking the groups of both calls, when a rank that must begin this call
 * is blocked in another one, which this rank has not begun; or by way of others.
 */
lap_status_t lap_blocked_look(const lap_blocked_t *mine);

/*
 * The call has ended: takes back what lap_blocked_look has reported. Costs nothing if that was
 * nothing.
 */
void lap_blocked_end(lap_world_t *world);

/*
 * LAP_ERR_MISMATCH, breaking the group, when `rank` has begun another operator as the call of this
 * number than the one that is noted in `place` as operator `op`.
 */
lap_status_t lap_calls_compare(const lap_blocked_t *mine, int rank, const lap_call_place_t *place,
                               uint32_t op);

/*
 * For the sentence of a timeout: "; rank 1 has not begun it: it is in barrier" for the ranks that
 * have not; or "".
 */
void lap_blocked_describe(const lap_blocked_t *mine, char *text, size_t bytes);

/* The same of one rank that was waited for: where it is, as far as is known. */
void lap_blocked_describe_rank(const lap_group_t *group, int rank, char *text, size_t bytes);

#endif
