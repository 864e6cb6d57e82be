/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a communicator become a world: MPI is what they talk through (core/maker.c), and
 * the launcher knows which of them are on one host. Every step that waits for others has the
 * world's deadline, except that MPI splits a communicator when all have come to it.
 */
#include <lap/lap_mpi.h>

#include <stdio.h>
#include <string.h>

#include "core/maker.h"
#include "core/mpi/mpi.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/clock.h"

#define POLL_NS 50000u

/* A world being made. */
typedef struct maker {
    lap_maker_t base;
    bool owns_mpi;
    MPI_Comm comm; /* the library's own */
    bool pending;  /* MPI may still read and write what is in here */
} mpi_maker_t;

static lap_status_t await(mpi_maker_t *maker, MPI_Request *request, const char *what)
{
    maker->pending = true;
    for (;;) {
        int done = 0;
        LAP_TRY(lap_mpi_status(lap_mpi.MPI_Test(request, &done, MPI_STATUS_IGNORE), what));
        if (done) {
            maker->pending = false;
            return LAP_OK;
        }
        if (lap_deadline_passed(&maker->base.deadline))
            return lap_error(LAP_ERR_TIMEOUT, "%s: not all ranks have come within %g s", what,
                             (double)maker->base.settings->timeout_ns * 1e-9);
        lap_sleep_until_ns(lap_now_ns() + POLL_NS);
    }
}

static lap_status_t gather(lap_maker_t *base, const void *mine, size_t bytes, void *all)
{
    mpi_maker_t *maker = (mpi_maker_t *)(void *)base;
    MPI_Request request;
    LAP_TRY(lap_mpi_status(lap_mpi.MPI_Iallgather(mine, (int)bytes, lap_mpi.byte, all, (int)bytes,
                                                  lap_mpi.byte, maker->comm, &request),
                           "gathering the ranks"));
    return await(maker, &request, "gathering the ranks");
}

static lap_status_t open_wire(lap_maker_t *base, lap_world_t *world, lap_wire_t **wire_p)
{
    const mpi_maker_t *maker = (const mpi_maker_t *)(const void *)base;
    return lap_mpi_wire_open(world, maker->comm, maker->owns_mpi, wire_p);
}

static const lap_maker_ops_t maker_ops = {
    .gather = gather,
    .report = lap_maker_report,
    .look = lap_maker_no_look,
    .open_wire = open_wire,
};

/*
 * A communicator of the library's own. Errors on the way to it are those of the caller's, whose
 * handler by default ends the program: it has them returned meanwhile.
 */
static lap_status_t duplicate(mpi_maker_t *maker, MPI_Comm given)
{
    MPI_Request request;
    MPI_Errhandler handler;
    const char *what = "duplicating the communicator";
    LAP_TRY(lap_mpi_status(lap_mpi.MPI_Comm_get_errhandler(given, &handler), what));
    lap_mpi.MPI_Comm_set_errhandler(given, lap_mpi.errors_return);
    lap_status_t status =
        lap_mpi_status(lap_mpi.MPI_Comm_idup(given, &maker->comm, &request), what);
    if (status == LAP_OK)
        status = await(maker, &request, what);
    lap_mpi.MPI_Comm_set_errhandler(given, handler);
    lap_mpi.MPI_Errhandler_free(&handler);
    if (status == LAP_OK)
        lap_mpi.MPI_Comm_set_errhandler(maker->comm, lap_mpi.errors_return);
    return status;
}

/* The communicator, and which of its ranks are on this host: the launcher knows. */
static lap_status_t find_ranks(mpi_maker_t *maker, MPI_Comm given)
{
    lap_maker_t *base = &maker->base;
    MPI_Comm local;
    MPI_Group all_group, local_group;
    LAP_TRY(duplicate(maker, given));
    lap_mpi.MPI_Comm_rank(maker->comm, &base->rank);
    lap_mpi.MPI_Comm_size(maker->comm, &base->size);
    LAP_TRY(lap_mpi_status(lap_mpi.MPI_Comm_split_type(maker->comm, MPI_COMM_TYPE_SHARED, 0,
                                                       lap_mpi.info_null, &local),
                           "finding the ranks of this host"));
    lap_mpi.MPI_Comm_rank(local, &base->local_rank);
    lap_mpi.MPI_Comm_size(local, &base->local_size);
    base->locals = lap_alloc((size_t)base->local_size, sizeof(int));
    int *numbers = lap_alloc((size_t)base->local_size, sizeof(int));
    const bool room = base->locals && numbers;
    for (int i = 0; room && i < base->local_size; i++)
        numbers[i] = i;
    lap_mpi.MPI_Comm_group(maker->comm, &all_group);
    lap_mpi.MPI_Comm_group(local, &local_group);
    if (room)
        lap_mpi.MPI_Group_translate_ranks(local_group, base->local_size, numbers, all_group,
                                          base->locals);
    lap_mpi.MPI_Group_free(&local_group);
    lap_mpi.MPI_Group_free(&all_group);
    lap_mpi.MPI_Comm_free(&local);
    lap_free(numbers);
    if (!room)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", base->size);
    return LAP_OK;
}

/*
 * The communicator of a world that was not made is freed by all ranks or by none: they see the same
 * records. A wire may still have packets under way and keeps it.
 */
static lap_status_t create_over(MPI_Comm comm, lap_status_t status, const lap_settings_t *settings,
                                bool owns_mpi, lap_world_t **world_p)
{
    mpi_maker_t *maker = lap_alloc(1, sizeof(*maker));
    if (!maker)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to make a world over MPI");
    lap_maker_t *base = &maker->base;
    base->ops = &maker_ops;
    base->settings = settings;
    base->socket = -1;
    base->deadline = lap_deadline_after(settings->timeout_ns);
    maker->owns_mpi = owns_mpi;
    maker->comm = lap_mpi.comm_null;
    lap_status_t found = find_ranks(maker, comm);
    base->limit = (lap_limit_t){settings->timeout_ns, base->rank};
    status = found == LAP_OK ? lap_maker_run(base, status, world_p) : found;
    if (status != LAP_OK && base->gathered && !lap_maker_any_wire(base))
        lap_mpi.MPI_Comm_free(&maker->comm);
    if (maker->pending)
        return status;
    lap_maker_clear(base);
    lap_free(maker);
    return status;
}

static lap_status_t check_level(int level)
{
    if (level < MPI_THREAD_MULTIPLE)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "MPI was started without MPI_THREAD_MULTIPLE, which a world over MPI "
                         "needs: call MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, "
                         "&provided) instead of MPI_Init");
    return LAP_OK;
}

/* Whether MPI can be used: running, and for several threads. */
static lap_status_t check_mpi(void)
{
    int initialised = 0, finalised = 0, level = 0;
    LAP_TRY(lap_mpi_load());
    lap_mpi.MPI_Initialized(&initialised);
    lap_mpi.MPI_Finalized(&finalised);
    if (finalised)
        return lap_error(LAP_ERR_INVALID, "MPI has been finalised, and cannot be started twice: "
                                          "call MPI_Finalize after the last world has ended");
    if (!initialised)
        return lap_error(LAP_ERR_INVALID, "MPI has not been initialised: call MPI_Init_thread("
                                          "&argc, &argv, MPI_THREAD_MULTIPLE, &provided) first");
    lap_mpi.MPI_Query_thread(&level);
    return check_level(level);
}

/*
 * The time-out of a rank whose settings make no sense: the others learn of it, and need somebody to
 * report it. Keeps the sentence of `status`.
 */
static uint64_t spare_timeout(lap_status_t status)
{
    char sentence[LAP_ERROR_TEXT];
    uint64_t ns = LAP_TIMEOUT_DEFAULT_NS; /* where LAP_TIMEOUT_S makes no sense either */
    snprintf(sentence, sizeof(sentence), "%s", lap_last_error());
    if (lap_environment_timeout(&ns) != LAP_OK)
        lap_error(status, "%s", sentence);
    return ns;
}

lap_status_t lap_world_create_mpi(MPI_Comm comm, const lap_world_options_t *options,
                                  lap_world_t **world_p)
{
    lap_settings_t settings = {.timeout_ns = 0};
    if (!world_p)
        return lap_error(LAP_ERR_INVALID, "world_p is NULL");
    LAP_TRY(check_mpi());
    if (comm == lap_mpi.comm_null)
        return lap_error(LAP_ERR_INVALID, "comm is MPI_COMM_NULL");
    int between_groups = 0;
    lap_mpi.MPI_Comm_test_inter(comm, &between_groups);
    if (between_groups)
        return lap_error(LAP_ERR_INVALID,
                         "comm is an intercommunicator, expected an intracommunicator");
    lap_status_t status = lap_settings_make(options, &settings);
    if (status != LAP_OK)
        settings.timeout_ns = spare_timeout(status);
    return create_over(comm, status, &settings, false, world_p);
}

/*
 * MPI as it is, or started here. When it is then of no use it is left as it is: MPI_Finalize waits
 * for ranks that may not come to it.
 */
static lap_status_t start_mpi(bool *started_p)
{
    int initialised = 0, finalised = 0, level = 0;
    LAP_TRY(lap_mpi_load());
    lap_mpi.MPI_Initialized(&initialised);
    lap_mpi.MPI_Finalized(&finalised);
    if (initialised || finalised)
        return check_mpi();
    /* Where it has not started it has no words for its errors either. */
    const int code = lap_mpi.MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (code != MPI_SUCCESS)
        return lap_error(LAP_ERR_SYSTEM, "starting MPI: MPI_Init_thread has failed with %d", code);
    LAP_TRY(check_level(level));
    *started_p = true;
    return LAP_OK;
}

lap_status_t lap_mpi_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p)
{
    bool started = false;
    int size = 0;
    LAP_TRY(start_mpi(&started));
    lap_mpi.MPI_Comm_size(lap_mpi.comm_world, &size);
    if (size != environment->size)
        return lap_error(LAP_ERR_INVALID,
                         "%s started %d ranks, but MPI knows of %d: start them with mpirun",
                         environment->launcher, environment->size, size);
    return create_over(lap_mpi.comm_world, LAP_OK, settings, started, world_p);
}

lap_status_t lap_mpi_describe(char *text, size_t bytes)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    LAP_TRY(lap_mpi_load());
    lap_mpi.MPI_Get_library_version(version, &length);
    /* Open MPI: a line with commas; MPICH: several lines with tabs. The beginning says it all. */
    version[strcspn(version, ",\n")] = '\0';
    for (char *c = version; *c; c++)
        *c = (char)(*c == '\t' ? ' ' : *c);
    snprintf(text, bytes, "%s", version);
    return LAP_OK;
}
