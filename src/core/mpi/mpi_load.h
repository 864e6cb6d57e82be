/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI as a table of functions and constants, found when a world over MPI is first asked for: who
 * never does is not held up by what MPI starts and maps when it is loaded.
 */
#ifndef LAP_CORE_MPI_MPI_LOAD_H
#define LAP_CORE_MPI_MPI_LOAD_H

#include <mpi.h>

#include <lap/status.h>

#define LAP_MPI_CALLS(X)                                                                           \
    X(MPI_Allgather)                                                                               \
    X(MPI_Allgatherv)                                                                              \
    X(MPI_Allreduce)                                                                               \
    X(MPI_Cancel)                                                                                  \
    X(MPI_Comm_free)                                                                               \
    X(MPI_Comm_get_errhandler)                                                                     \
    X(MPI_Comm_group)                                                                              \
    X(MPI_Comm_idup)                                                                               \
    X(MPI_Comm_rank)                                                                               \
    X(MPI_Comm_set_errhandler)                                                                     \
    X(MPI_Comm_size)                                                                               \
    X(MPI_Comm_split_type)                                                                         \
    X(MPI_Comm_test_inter)                                                                         \
    X(MPI_Errhandler_free)                                                                         \
    X(MPI_Error_string)                                                                            \
    X(MPI_Finalize)                                                                                \
    X(MPI_Finalized)                                                                               \
    X(MPI_Get_count)                                                                               \
    X(MPI_Get_library_version)                                                                     \
    X(MPI_Group_free)                                                                              \
    X(MPI_Group_translate_ranks)                                                                   \
    X(MPI_Iallgather)                                                                              \
    X(MPI_Ibarrier)                                                                                \
    X(MPI_Init_thread)                                                                             \
    X(MPI_Initialized)                                                                             \
    X(MPI_Irecv)                                                                                   \
    X(MPI_Isend)                                                                                   \
    X(MPI_Query_thread)                                                                            \
    X(MPI_Reduce_scatter)                                                                          \
    X(MPI_Test)

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a name of a field cannot stand in parentheses */
#define LAP_MPI_FIELD(name) __typeof__(&name) name;

typedef struct lap_mpi_api {
    LAP_MPI_CALLS(LAP_MPI_FIELD)
    /* Constants that are addresses in some MPIs. */
    MPI_Comm comm_world, comm_null;
    MPI_Datatype byte, float32;
    MPI_Errhandler errors_return;
    MPI_Info info_null;
    MPI_Op sum;
} lap_mpi_api_t;

#undef LAP_MPI_FIELD

/* Of the process. Filled in by lap_mpi_load, and only read afterwards. */
extern lap_mpi_api_t lap_mpi;

/*
 * The MPI that the process has already, else the one of the build. LAP_ERR_UNSUPPORTED says what is
 * missing. May be called again, and by several threads.
 */
lap_status_t lap_mpi_load(void);

#endif
