/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds of a program that uses MPI itself. Run under mpirun: mpi [single]. The program's own
 * messages go on beside the library's; what is wrong with MPI is one sentence.
 */
#include <lap/lap_mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

/*
 * The library's calls of MPI come by here on their way: how many communicators it has, and who
 * handles the errors of the one that it duplicates.
 */
static int communicators;
static bool returns_errors;

int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *new_p, MPI_Request *request)
{
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(comm, &handler);
    returns_errors = handler == MPI_ERRORS_RETURN;
    MPI_Errhandler_free(&handler);
    communicators++;
    return PMPI_Comm_idup(comm, new_p, request);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *new_p)
{
    communicators++;
    return PMPI_Comm_split_type(comm, type, key, info, new_p);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    communicators--;
    return PMPI_Comm_free(comm);
}

/* The ranks of a communicator that is neither all ranks nor in their order. */
static void check_world(MPI_Comm comm)
{
    lap_world_t *world = NULL;
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (!tap_success(lap_world_create_mpi(comm, NULL, &world), "a world of a communicator"))
        return;
    tap_ok(lap_world_rank(world) == rank && lap_world_size(world) == size,
           "it has the communicator's ranks");
    lap_group_t *group = lap_world_group(world);
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.transport = "mpi";
    lap_buffer_t *buffer = NULL;
    if (tap_success(lap_buffer_create(group, 64, 1, &options, &buffer), "a buffer")) {
        const int to = (rank + 1) % size, from = (rank + size - 1) % size;
        int mine = 100 + rank, theirs = -1;
        tap_success(lap_buffer_put(buffer, to, 8, &mine, sizeof(mine), 0), "a put");
        /* The caller's own messages use the same communicator, and any tag. */
        MPI_Sendrecv(&mine, 1, MPI_INT, to, 1, &theirs, 1, MPI_INT, from, 1, comm,
                     MPI_STATUS_IGNORE);
        tap_ok(theirs == 100 + from, "the program's own messages are its own");
        tap_success(lap_buffer_wait(buffer, from, 0, 1), "and the library's the library's");
        memcpy(&theirs, (char *)lap_buffer_data(buffer, rank) + 8, sizeof(theirs));
        tap_ok(theirs == 100 + from, "with what was put");
        tap_ok(size == 1 || !lap_buffer_data(buffer, to), "a peer's memory cannot be addressed");
    }
    tap_success(lap_group_barrier(group), "all are done");
    lap_buffer_destroy(buffer);
    lap_world_destroy(world);
    tap_ok(communicators == 0, "no communicator is left");
}

static void check_mistakes(MPI_Comm comm)
{
    lap_world_t *world = NULL;
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    tap_failure(lap_world_create_mpi(comm, NULL, NULL), LAP_ERR_INVALID, "world_p", NULL);
    tap_failure(lap_world_create_mpi(MPI_COMM_NULL, NULL, &world), LAP_ERR_INVALID, "MPI_COMM_NULL",
                NULL);
    /* One rank's mistake is reported to all. */
    options.timeout_s = rank == size - 1 ? -1 : 0;
    tap_failure(lap_world_create_mpi(comm, &options, &world), LAP_ERR_INVALID, "timeout_s", "-1",
                NULL);
    /* The first of several, also where LAP_TIMEOUT_S cannot say how long to wait for the others. */
    if (rank == size - 1)
        setenv("LAP_TIMEOUT_S", "soon", 1);
    tap_failure(lap_world_create_mpi(comm, &options, &world), LAP_ERR_INVALID, "timeout_s", "-1",
                NULL);
    tap_failure(lap_world_create_mpi(comm, NULL, &world), LAP_ERR_INVALID, "LAP_TIMEOUT_S", "soon",
                NULL);
    unsetenv("LAP_TIMEOUT_S");
    tap_ok(!world, "nothing is written on failure");
    tap_ok(communicators == 0, "and no communicator is left");
}

static const char *other_version; /* NULL: the right one */

const char *__wrap_lap_version_string(void);
const char *__real_lap_version_string(void);
const char *__wrap_lap_version_string(void)
{
    return other_version ? other_version : __real_lap_version_string();
}

static void check_versions(MPI_Comm comm)
{
    lap_world_t *world = NULL;
    char words[64];
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (size == 1)
        return;
    if (rank == size - 1)
        other_version = "9.8.7";
    snprintf(words, sizeof(words), "of this library, rank %d version 9.8.7", size - 1);
    tap_failure(lap_world_create_mpi(comm, NULL, &world), LAP_ERR_MISMATCH, "rank 0 runs version ",
                words, NULL);
    tap_ok(!world && communicators == 0, "nothing is left of it");
    other_version = NULL;
}

/* Errors of the caller's communicator end the program by default, but not inside the library. */
static void check_handler(MPI_Comm comm)
{
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(comm, &handler);
    tap_ok(returns_errors, "errors are returned while a communicator is duplicated");
    tap_ok(handler == MPI_ERRORS_ARE_FATAL, "and are the caller's again afterwards");
    MPI_Errhandler_free(&handler);
}

int main(int argc, char **argv)
{
    const bool single = argc > 1 && strcmp(argv[1], "single") == 0;
    int level = 0, rank, size;
    lap_world_t *world = NULL;
    tap_failure(lap_world_create_mpi(MPI_COMM_WORLD, NULL, &world), LAP_ERR_INVALID,
                "not been initialised", "MPI_Init_thread", "MPI_THREAD_MULTIPLE", NULL);
    MPI_Init_thread(&argc, &argv, single ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (single && level < MPI_THREAD_MULTIPLE) {
        tap_failure(lap_world_create_mpi(MPI_COMM_WORLD, NULL, &world), LAP_ERR_UNSUPPORTED,
                    "without MPI_THREAD_MULTIPLE", "MPI_Init_thread", NULL);
    } else {
        MPI_Comm part;
        check_mistakes(MPI_COMM_WORLD);
        check_versions(MPI_COMM_WORLD);
        check_world(MPI_COMM_WORLD);
        check_handler(MPI_COMM_WORLD);
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
        check_world(part);
        PMPI_Comm_free(&part);
    }
    MPI_Finalize();
    tap_failure(lap_world_create_mpi(MPI_COMM_WORLD, NULL, &world), LAP_ERR_INVALID, "finalised",
                NULL);
    return tap_done();
}
