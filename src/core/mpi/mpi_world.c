/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a communicator become a world. Ranks that the launcher put on one host meet
 * there as processes without MPI do, so that they can share memory and watch each other; a wire
 * connects all. Every step that waits for others has the world's deadline, except that MPI splits a
 * communicator when all have come to it.
 */
#include <lap/lap_mpi.h>

#include <lap/version.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/bootstrap.h"
#include "core/group.h"
#include "core/job.h"
#include "core/make.h"
#include "core/mpi/mpi.h"
#include "core/private_dir.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/clock.h"

#define POLL_NS 50000u

/* What each rank tells the others. */
typedef struct card {
    char version[24];        /* of the library; always at the beginning */
    int32_t status;          /* a failure of one is a failure of all */
    int32_t wired;           /* its wire uses the communicator */
    char dir[LAP_DIR_BYTES]; /* where the ranks of its host meet, if it is the first of them */
    char text[LAP_ERROR_TEXT];
} card_t;

/* A world being made. */
typedef struct maker {
    const lap_settings_t *settings;
    lap_deadline_t deadline;
    bool owns_mpi;
    MPI_Comm comm; /* the library's own */
    int rank, size;
    int local_rank, local_size;
    int *locals;   /* the ranks of this host, in order */
    card_t *cards; /* of all ranks */
    card_t mine;
    lap_world_t *world;
    lap_world_t *host; /* the ranks of this host alone, to meet; NULL: there is one */
    bool pending;      /* MPI may still read and write what is in here */
    bool gathered;     /* the cards are of all ranks, as they are now */
} maker_t;

static lap_status_t await(maker_t *maker, MPI_Request *request, const char *what)
{
    maker->pending = true;
    for (;;) {
        int done = 0;
        LAP_TRY(lap_mpi_status(lap_mpi.MPI_Test(request, &done, MPI_STATUS_IGNORE), what));
        if (done) {
            maker->pending = false;
            return LAP_OK;
        }
        if (lap_deadline_passed(&maker->deadline))
            return lap_error(LAP_ERR_TIMEOUT, "%s: not all ranks have come within %g s", what,
                             (double)maker->settings->timeout_ns * 1e-9);
        lap_sleep_until_ns(lap_now_ns() + POLL_NS);
    }
}

/* Tells all how it went here; fails when it did not go well on some rank. */
static lap_status_t exchange(maker_t *maker, lap_status_t status)
{
    MPI_Request request;
    snprintf(maker->mine.version, sizeof(maker->mine.version), "%s", lap_version_string());
    maker->mine.status = status;
    maker->mine.wired = maker->world && maker->world->wire;
    if (status != LAP_OK)
        snprintf(maker->mine.text, sizeof(maker->mine.text), "%s", lap_last_error());
    lap_status_t met = lap_mpi_status(
        lap_mpi.MPI_Iallgather(&maker->mine, sizeof(card_t), lap_mpi.byte, maker->cards,
                               sizeof(card_t), lap_mpi.byte, maker->comm, &request),
        "gathering the ranks");
    if (met == LAP_OK)
        met = await(maker, &request, "gathering the ranks");
    maker->gathered = met == LAP_OK;
    /* What went wrong here says more than that the others did not come to hear of it. */
    if (status != LAP_OK)
        return lap_error(status, "%s", maker->mine.text);
    LAP_TRY(met);
    for (int rank = 1; rank < maker->size; rank++)
        if (strncmp(maker->cards[rank].version, maker->cards[0].version,
                    sizeof(maker->mine.version)) != 0)
            return lap_error(LAP_ERR_MISMATCH,
                             "rank 0 runs version %.*s of this library, rank %d version %.*s",
                             (int)sizeof(maker->mine.version), maker->cards[0].version, rank,
                             (int)sizeof(maker->mine.version), maker->cards[rank].version);
    for (int rank = 0; rank < maker->size; rank++)
        if (maker->cards[rank].status != LAP_OK)
            return lap_error((lap_status_t)maker->cards[rank].status, "rank %d: %s", rank,
                             maker->cards[rank].text);
    return LAP_OK;
}

/*
 * A communicator of the library's own. Errors on the way to it are those of the caller's, whose
 * handler by default ends the program: it has them returned meanwhile.
 */
static lap_status_t duplicate(maker_t *maker, MPI_Comm given)
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
static lap_status_t find_ranks(maker_t *maker, MPI_Comm given)
{
    MPI_Comm local;
    MPI_Group all_group, local_group;
    LAP_TRY(duplicate(maker, given));
    lap_mpi.MPI_Comm_rank(maker->comm, &maker->rank);
    lap_mpi.MPI_Comm_size(maker->comm, &maker->size);
    LAP_TRY(lap_mpi_status(lap_mpi.MPI_Comm_split_type(maker->comm, MPI_COMM_TYPE_SHARED, 0,
                                                       lap_mpi.info_null, &local),
                           "finding the ranks of this host"));
    lap_mpi.MPI_Comm_rank(local, &maker->local_rank);
    lap_mpi.MPI_Comm_size(local, &maker->local_size);
    maker->locals = lap_alloc((size_t)maker->local_size, sizeof(int));
    int *numbers = lap_alloc((size_t)maker->local_size, sizeof(int));
    maker->cards = lap_alloc((size_t)maker->size, sizeof(card_t));
    const bool room = maker->locals && numbers && maker->cards;
    for (int i = 0; room && i < maker->local_size; i++)
        numbers[i] = i;
    lap_mpi.MPI_Comm_group(maker->comm, &all_group);
    lap_mpi.MPI_Comm_group(local, &local_group);
    if (room)
        lap_mpi.MPI_Group_translate_ranks(local_group, maker->local_size, numbers, all_group,
                                          maker->locals);
    lap_mpi.MPI_Group_free(&local_group);
    lap_mpi.MPI_Group_free(&all_group);
    lap_mpi.MPI_Comm_free(&local);
    lap_free(numbers);
    if (!room)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", maker->size);
    return LAP_OK;
}

/*
 * The ranks of this host meet as if they were a world by themselves; what they learn of each other
 * goes into the real one.
 */
static lap_status_t meet_locals(maker_t *maker)
{
    lap_world_t *world = maker->world, *host = maker->host;
    lap_region_t board = {0};
    host->peers[maker->local_rank] = world->peers[maker->rank];
    lap_status_t status = lap_bootstrap_meet(host, maker->cards[maker->locals[0]].dir, &board);
    if (status == LAP_OK)
        lap_region_unmap(host, &board);
    for (int i = 0; i < maker->local_size; i++) {
        lap_peer_t *peer = &world->peers[maker->locals[i]];
        peer->heap_fd = host->peers[i].heap_fd;
        peer->pidfd = host->peers[i].pidfd;
        peer->pid = host->peers[i].pid;
        host->peers[i].heap_fd = host->peers[i].pidfd = -1;
    }
    world->heap_end = host->heap_end;
    return status;
}

/* The board is this rank's own: the packets of the others fill it in. */
static lap_status_t make_group(lap_world_t *world)
{
    lap_region_t board = {0};
    LAP_TRY(lap_region_create(world, lap_board_bytes(world->size), 1, &board));
    lap_status_t status = lap_group_create_world(world, &board, &world->group);
    if (status != LAP_OK)
        lap_region_unmap(world, &board);
    return status;
}

/*
 * What a rank does by itself. It comes before the first exchange, so that nobody waits at the
 * meeting for a rank that has no memory.
 */
static lap_status_t prepare_world(maker_t *maker, int *place_p)
{
    LAP_TRY(
        lap_world_alloc(LAP_WORLD_MPI, maker->rank, maker->size, maker->settings, &maker->world));
    lap_world_t *world = maker->world;
    world->peers[world->rank].pid = (int)getpid();
    LAP_TRY(lap_heap_open(&world->peers[world->rank].heap_fd));
    if (maker->local_size == 1)
        return LAP_OK;
    LAP_TRY(lap_world_alloc(LAP_WORLD_PROCESSES, maker->local_rank, maker->local_size,
                            maker->settings, &maker->host));
    return maker->local_rank == 0
               ? lap_meeting_place_make(maker->settings->note_place, maker->mine.dir, place_p)
               : LAP_OK;
}

static lap_status_t make_world(maker_t *maker)
{
    lap_world_t *world = maker->world;
    if (maker->host)
        LAP_TRY(meet_locals(maker));
    lap_world_set_local(world, maker->local_size);
    LAP_TRY(lap_mpi_wire_open(world, maker->comm, maker->owns_mpi, &world->wire));
    return make_group(world);
}

/* All ranks make the world, or none does. `status` is what went wrong here before. */
static lap_status_t gather(maker_t *maker, lap_status_t status)
{
    int place = -1;
    if (status == LAP_OK)
        status = prepare_world(maker, &place);
    status = exchange(maker, status);
    if (status == LAP_OK)
        status = exchange(maker, make_world(maker));
    lap_meeting_place_remove(maker->settings->note_place, maker->mine.dir, place);
    lap_world_destroy(maker->host);
    return status;
}

/* Takes a world down that not all ranks have: nobody is there to say goodbye to. */
static void give_up(lap_world_t *world)
{
    if (world && world->wire) {
        lap_group_release(world->group);
        world->group = NULL;
        world->wire->ops->close(world->wire, false);
        world->wire = NULL;
    }
    lap_world_destroy(world);
}

/*
 * Frees the communicator of a world that was not made. All ranks do so or none: they see the same
 * cards. A wire may still have packets under way and keeps it.
 */
static void free_comm(maker_t *maker)
{
    for (int rank = 0; rank < maker->size; rank++)
        if (maker->cards[rank].wired)
            return;
    lap_mpi.MPI_Comm_free(&maker->comm);
}

static lap_status_t create_over(MPI_Comm comm, lap_status_t status, const lap_settings_t *settings,
                                bool owns_mpi, lap_world_t **world_p)
{
    maker_t *maker = lap_alloc(1, sizeof(*maker));
    if (!maker)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to make a world over MPI");
    maker->settings = settings;
    maker->deadline = lap_deadline_after(settings->timeout_ns);
    maker->owns_mpi = owns_mpi;
    maker->comm = lap_mpi.comm_null;
    lap_status_t found = find_ranks(maker, comm);
    status = found == LAP_OK ? gather(maker, status) : found;
    if (status == LAP_OK)
        *world_p = maker->world;
    else
        give_up(maker->world);
    if (status != LAP_OK && maker->gathered)
        free_comm(maker);
    if (maker->pending)
        return status;
    lap_free(maker->locals);
    lap_free(maker->cards);
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
 * The time-out of a rank whose settings make no sense: the others hear of it, and need somebody to
 * tell them. Keeps the sentence of `status`.
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

static lap_status_t create_world(const lap_environment_t *environment,
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

/* To start MPI takes until all ranks do so: those that meet elsewhere are told that this one does not. */
lap_status_t lap_mpi_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p)
{
    const int note = environment->dir[0]
                         ? lap_job_announce(environment->dir, environment->rank, LAP_JOB_MPI)
                         : -1;
    const lap_status_t status = create_world(environment, settings, world_p);
    if (note >= 0)
        close(note);
    return status;
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
