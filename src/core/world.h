/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of worlds and groups, for the layers above. */
#ifndef LAP_CORE_WORLD_H
#define LAP_CORE_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <lap/world.h>

#include "core/blocked.h"
#include "core/heap.h"
#include "core/signal.h"
#include "core/wire.h"

typedef struct lap_control lap_control_t; /* shared by the ranks of a group: see group.c */

typedef enum lap_world_kind {
    LAP_WORLD_PROCESSES, /* of one host */
    LAP_WORLD_THREADS,   /* of one process */
    LAP_WORLD_WIRED,     /* processes, with a wire between them, on one host or several */
} lap_world_kind_t;

typedef struct lap_peer {
    int heap_fd;       /* its memfd; -1 for threads and on another host */
    int pidfd;         /* readable when the process has ended; -1 also for this rank itself */
    int pid;           /* 0 for threads and on another host */
    _Atomic bool lost; /* the wire cannot reach it any more */
} lap_peer_t;

struct lap_world {
    int rank;
    int size;
    lap_world_kind_t kind;
    uint64_t timeout_ns;
    uint64_t spin_most_ns;              /* how long a wait may spin where each rank has a core, */
    uint64_t spin_ns;                   /* and how long it does: 0 when there are fewer cores */
    uint64_t step_spin_ns;              /* of steps; 0: GEMMs leave them no core */
    int local_size;                     /* ranks on this host, */
    int cores;                          /* and the cores that they share */
    char device_name[16];               /* which device the operators of this world use */
    char transport_name[16];            /* which transport its buffers use; "": what fits */
    int cpu_threads;                    /* as in the options */
    lap_peer_t *peers;                  /* size of them */
    uint64_t heap_end;                  /* where this rank's next region starts */
    lap_group_t *group;                 /* all ranks */
    void *device;                       /* opened when first needed: see device/device_of.c */
    void (*device_close)(void *device); /* called by lap_world_destroy when device is set */
    void *engine;                       /* made by the first operator: see schedule/engine.c */
    void (*engine_close)(void *engine); /* called before device_close when engine is set */
    lap_thread_heap_t *thread_heap;     /* shared by the ranks of a thread world; else NULL */
    lap_wire_t *wire;                   /* of LAP_WORLD_WIRED; else NULL */
    int job_fd; /* by which it is this rank of its job; -1: it has no name */

    const char *doing; /* the call of the caller's that collectives are part of; NULL: none */
    pthread_mutex_t calls_lock; /* of `groups`, their `places`, and what this rank says of itself */
    lap_group_t *groups;        /* all that this rank is in */
    _Atomic(const void *) awaited; /* the buffer of the call that the caller waits for, */
    _Atomic uint64_t first_awaited, last_awaited; /* and their numbers: see blocked.h */
    _Atomic bool is_blocked;                      /* this rank has reported so */
    lap_circle_t circle; /* of ranks that are, this one among them; with calls_lock */
};

struct lap_group {
    lap_world_t *world;
    int rank;
    int size;
    int *members; /* world rank of each */
    lap_region_t control_region;
    lap_control_t *control;
    uint64_t port;     /* with a wire: where packets for this rank's control page come in, */
    uint64_t *ports;   /* and for the others'; NULL in a world without a wire */
    bool ports_known;  /* the others have sent theirs */
    uint32_t round;    /* collectives called so far on this rank */
    uint32_t nbuffers; /* symmetric buffers made so far, to tell them apart */
    uint64_t id;       /* the same on all its ranks, another one for each group of the world */
    const char *kind;  /* what it is in a grid of ranks, such as "tp"; NULL: not known */
    uint64_t calls;    /* of operators begun so far on this rank, */
    bool uncounted;    /* which are counted no more: a graph of the caller's has some */
    lap_call_place_t *places; /* where ranks record them */
    lap_group_t *next;        /* of the world's groups */
    void *costs;              /* what calls cost here, once measured: see schedule/calibrate.c */
    void (*costs_free)(void *costs); /* called when the group ends and costs is set */
    void *choices; /* of methods, made for its operators so far: see overlap/choices.c */
    void (*choices_free)(void *choices); /* the same */
    void *channel; /* what a transport has for all buffers of the group: see transport/nccl */
    void (*channel_free)(void *channel); /* the same */
    size_t keepers;    /* what was made from it and is still there: see lap_group_keep */
    bool keeps_world;  /* it is one of those of the group of all ranks */
    bool is_destroyed; /* by lap_group_destroy */
    bool has_left;     /* the others know that this rank has left */
    _Atomic bool
        ended; /* it, or the world, was destroyed, though it has keepers: all calls are refused */
};

/*
 * Around the life of all that is made from a group: one that is destroyed before lives on until the
 * last of them lets go, and refuses all calls. The group of all ranks keeps the world. Local;
 * lap_group_keep returns the group, NULL is fine to let go of.
 */
lap_group_t *lap_group_keep(lap_group_t *group);
void lap_group_let_go(lap_group_t *group);

/*
 * The failure that broke the group, if any: LAP_OK, or its status with its sentence in
 * lap_last_error. Looks at the control page and at whether all processes of the group live; a death
 * found here is written on the control page, so that every rank gives the same sentence. Cheap
 * enough to call every LAP_WATCH_NS; never blocks.
 */
lap_status_t lap_group_look(lap_group_t *group);

/*
 * As lap_group_look, and LAP_ERR_PEER_LOST also when `rank` of the group has left. For a wait for
 * that rank.
 */
lap_status_t lap_group_look_for(lap_group_t *group, int rank);

/* Around all that a call of the caller's does with other ranks: which one it is. */
static inline const char *lap_enter(lap_world_t *world, const char *call)
{
    const char *before = world->doing;
    if (!before)
        world->doing = call;
    return before;
}
static inline void lap_leave(lap_world_t *world, const char *before)
{
    world->doing = before;
}

/*
 * Breaks the group: writes status and sentence on the control page unless one is there already, and
 * wakes the ranks that wait in group collectives. Waits elsewhere see it within LAP_WATCH_NS.
 */
void lap_group_fail(lap_group_t *group, lap_status_t status, const char *sentence);

/* The same for a failure of this rank only: its name comes before the sentence. */
void lap_group_fail_here(lap_group_t *group, lap_status_t status, const char *sentence);

/* The failure on the control page, if any: lap_group_look without a system call. */
lap_status_t lap_group_broken(const lap_group_t *group);

/*
 * For the sentence of a timeout: "; rank 2 (pid 123) is stopped" for each rank whose process is, or
 * "".
 */
void lap_group_list_stopped(const lap_group_t *group, char *text, size_t bytes);

/* "rank 2", or "rank 2 (rank 5 of the world)" where these differ. Returns the text. */
#define LAP_RANK_TEXT 56
const char *lap_group_name(const lap_group_t *group, int rank, char text[LAP_RANK_TEXT]);

/*
 * Ends what ranks do together, such as a set-up: every rank says how it went, and all learn it.
 * Collective. Returns `mine` with this thread's sentence unchanged when it is a failure; else, when
 * another rank failed, its status with a sentence that names the rank and repeats its own sentence;
 * else LAP_OK.
 */
lap_status_t lap_group_agree(lap_group_t *group, lap_status_t mine);

/*
 * lap_group_allgather into memory of its own: the caller frees *all_p with lap_free, and only after
 * success. Collective; when one rank has no memory for it, all fail.
 */
lap_status_t lap_group_collect(lap_group_t *group, const void *mine, size_t bytes, void **all_p);

/* Gives all ranks the data of rank 0. Collective. */
lap_status_t lap_group_broadcast(lap_group_t *group, void *data, size_t bytes);

/* The mean of each number over the ranks, in their order: the same bits on all. Collective. */
lap_status_t lap_group_mean(lap_group_t *group, double *numbers, size_t count);

/* The largest, or the smallest, of the ranks' numbers, in place. Collective. */
lap_status_t lap_group_max(lap_group_t *group, double *number);
lap_status_t lap_group_min(lap_group_t *group, double *number);

#endif
