/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds and groups: which ranks there are, and which of them work together. */
#ifndef LAP_WORLD_H
#define LAP_WORLD_H

#include <stddef.h>

#include <lap/export.h>
#include <lap/status.h>

LAP_BEGIN_DECLS

/*
 * All ranks of a job, seen from one of them. One thread at a time may use a world and the objects
 * made from it.
 */
typedef struct lap_world lap_world_t;

/* Some ranks of a world that call collectives together. */
typedef struct lap_group lap_group_t;

/* The colour of a rank that wants no group. */
#define LAP_NO_GROUP (-1)

/* Options of lap_world_create and its kin. */
typedef struct lap_world_options {
    size_t size; /* sizeof(lap_world_options_t), set by LAP_WORLD_OPTIONS_INIT */
    /*
     * How long any wait may last, in seconds; 0: LAP_TIMEOUT_S, or else 60. Time in which the
     * process that waits was stopped does not count, except where a GPU waits.
     */
    double timeout_s;
    /*
     * "cpu", "ref" or "cuda"; NULL: LAP_DEVICE of the environment, or else "cpu". A device that
     * there is not is refused when the first operator is made. With "cuda" all memory that
     * operators are given is that of the GPU, and symmetric buffers are there too.
     */
    const char *device;
    int cpu_threads; /* of one GEMM, set in OpenBLAS for all of the process; 0: as it is */
    /*
     * Of the buffers that do not ask for another: "shm", "self", "mpi" or "hosts"; NULL:
     * LAP_TRANSPORT of the environment, or else what fits. With "mpi" and "hosts"
     * lap_world_create makes a world over MPI or TCP. A transport that there is not is refused
     * when the first buffer is made. Worlds of threads know only "self".
     */
    const char *transport;
} lap_world_options_t;

/* The options that are meant by NULL. */
#define LAP_WORLD_OPTIONS_INIT                                                                     \
    {                                                                                              \
        sizeof(lap_world_options_t), 0.0, NULL, 0, NULL                                            \
    }

/*
 * Makes a world from the environment: `lap run`, or the variables of mpirun (Open MPI, MPICH),
 * torchrun or srun; a world of one rank when there are none of them. Ranks on several hosts meet
 * over TCP where they know where rank 0 is, from torchrun or LAP_MASTER=host:port; else over MPI.
 * Between hosts TCP is for control: data needs MPI, or GPUs and NCCL.
 * MPI is started with MPI_THREAD_MULTIPLE unless the program has done so, and then ends with the
 * world: a program that makes several worlds over MPI one after the other initialises MPI itself.
 * Collective over all ranks of the job. `options` may be NULL. Writes *world_p on success; the
 * caller destroys it.
 * Blocks until every rank has come, at most the timeout. MPI's own start, and its search for the
 * ranks of a host, have no deadline; nor has the system's search for the address of a host.
 * Returns LAP_ERR_INVALID (an option or a variable that makes no sense, named), LAP_ERR_TIMEOUT
 * (with the ranks that did not come), LAP_ERR_PEER_LOST, LAP_ERR_MISMATCH (ranks that do not fit
 * together; a LAP_JOB that another process has, which is named), LAP_ERR_UNSUPPORTED
 * (MPI is needed and this build has none, or it is there without MPI_THREAD_MULTIPLE; an option of
 * a newer version), LAP_ERR_NO_MEMORY, LAP_ERR_SYSTEM.
 */
LAP_API lap_status_t lap_world_create(const lap_world_options_t *options, lap_world_t **world_p);

/* Callbacks of a caller with ranks of its own: lap_world_create_with. Both return 0 on success. */
typedef struct lap_bootstrap {
    size_t size; /* sizeof(lap_bootstrap_t), set by LAP_BOOTSTRAP_INIT */
    int rank;
    int nranks;
    void *context;
    /*
     * Gathers `bytes` bytes of every rank, in rank order, into `all` (nranks * bytes) on every
     * rank.
     */
    int (*allgather)(void *context, const void *mine, size_t bytes, void *all);
    /* Returns when every rank has called it. */
    int (*barrier)(void *context);
} lap_bootstrap_t;

/* A bootstrap of one rank, without callbacks: the caller sets the rest. */
#define LAP_BOOTSTRAP_INIT                                                                         \
    {                                                                                              \
        sizeof(lap_bootstrap_t), 0, 1, NULL, NULL, NULL                                            \
    }

/*
 * Makes a world of ranks that are separate processes, with two callbacks of the caller's. Ranks of
 * several hosts are connected over TCP, for control; their data needs GPUs and NCCL.
 * Collective over all ranks. The callbacks are used only during this call, `allgather` once, or
 * twice with several hosts or the transport "hosts", and then `barrier` once, on success
 * and on failure. Only a rank whose `bootstrap` makes no sense, or
 * that has no memory for the result of `allgather`, returns before both. Writes *world_p on
 * success; the caller destroys it.
 * Blocks until every rank has come: as long as the callbacks do, and at most the timeout besides.
 * Returns as lap_world_create, and LAP_ERR_SYSTEM when a callback fails.
 */
LAP_API lap_status_t lap_world_create_with(const lap_bootstrap_t *bootstrap,
                                           const lap_world_options_t *options,
                                           lap_world_t **world_p);

/*
 * Makes a world whose `nranks` ranks are threads of this process.
 * Local: one thread makes all, then hands worlds_p[r] to the thread that is rank r, which destroys
 * it. `worlds_p` has room for nranks handles, written on success only.
 * Returns LAP_ERR_INVALID, LAP_ERR_UNSUPPORTED (an option of a newer version), LAP_ERR_NO_MEMORY,
 * LAP_ERR_SYSTEM.
 */
LAP_API lap_status_t lap_world_create_threads(int nranks, const lap_world_options_t *options,
                                              lap_world_t **worlds_p);

/*
 * Ends a world. Local, never blocks on other ranks, NULL is fine. Destroy the objects made from it
 * first: those that are left refuse all calls with LAP_ERR_INVALID, and keep the memory of the
 * world until they are destroyed. A rank that waits for one which has left gets LAP_ERR_PEER_LOST.
 * A world over MPI waits until the others end it too, at most the timeout, because MPI frees
 * communicators collectively; and so does rank 0 of one over TCP, through which the others talk. A world that started MPI then gives MPI_Finalize up to 5 s.
 */
LAP_API void lap_world_destroy(lap_world_t *world);

/* This rank, and the number of ranks, of a world. Local. */
LAP_API int lap_world_rank(const lap_world_t *world);
LAP_API int lap_world_size(const lap_world_t *world);

/* The group of all ranks of a world. Local. It belongs to the world and is not destroyed. */
LAP_API lap_group_t *lap_world_group(lap_world_t *world);

/*
 * Splits a group: ranks that give the same colour form a new group, ordered by key, then by rank.
 * Collective over `group`. A rank that gives LAP_NO_GROUP gets NULL. Writes *group_p on success;
 * the caller destroys it. Blocks until every rank of `group` has come.
 * Returns LAP_ERR_INVALID (NULL, or another negative colour on any rank), LAP_ERR_MISMATCH (another
 * rank called something else), LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT, LAP_ERR_NO_MEMORY,
 * LAP_ERR_SYSTEM. When one rank fails, all do.
 */
LAP_API lap_status_t lap_group_split(lap_group_t *group, int colour, int key,
                                     lap_group_t **group_p);

/*
 * Ends a group made by lap_group_split. Local, NULL is fine. Objects made from it that are left
 * behave as with lap_world_destroy.
 */
LAP_API void lap_group_destroy(lap_group_t *group);

/*
 * This rank, and the number of ranks, of a group; and the rank in the world of one of its members.
 * Local.
 */
LAP_API int lap_group_rank(const lap_group_t *group);
LAP_API int lap_group_size(const lap_group_t *group);
LAP_API int lap_group_world_rank(const lap_group_t *group, int rank);

/*
 * Returns when every rank of the group has called it.
 * Collective. Blocks.
 * Returns LAP_ERR_INVALID (NULL).
 * LAP_ERR_MISMATCH when another rank called something else. The group can go on if that was another
 * collective of the group. It is broken if that was an operator, or a call of another group that
 * needs this rank.
 * LAP_ERR_PEER_LOST or LAP_ERR_TIMEOUT, naming the rank that did not come. The group is then
 * broken: every later collective on it returns the same, as after a failed operation on the group.
 */
LAP_API lap_status_t lap_group_barrier(lap_group_t *group);

/*
 * Gathers `bytes` bytes of every rank, in rank order, into `all` (lap_group_size * bytes) on every
 * rank.
 * Collective; every rank gives the same `bytes`. `mine` and `all` must not overlap. Blocks. Meant
 * for set-up: it moves a few kilobytes at a time.
 * Returns LAP_ERR_MISMATCH also when the sizes differ, else as lap_group_barrier.
 */
LAP_API lap_status_t lap_group_allgather(lap_group_t *group, const void *mine, size_t bytes,
                                         void *all);

LAP_END_DECLS

#endif
