/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks that have met become a world. They exchange whether all is well; those of one host pass
 * their memory to one another, and watch each other; on several hosts a wire connects all. Then
 * they exchange whether all is well again. Every step that waits for others has the world's
 * deadline.
 */
#include "core/maker.h"

#include <lap/version.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/group.h"
#include "core/pass.h"
#include "util/alloc.h"
#include "util/clock.h"

/* What each rank sends the others. */
struct lap_maker_record {
    char version[24]; /* of the library; always at the beginning */
    int32_t status;   /* a failure of one is a failure of all */
    int32_t wired;    /* it has its wire */
    int32_t pid;      /* of its process, */
    char host[sizeof(((lap_environment_t *)NULL)->host)]; /* where that is, */
    lap_pass_name_t socket;                               /* and where it takes descriptors */
    uint64_t control;  /* of rank 0, without a wire: the handle of its control page */
    uint64_t left_ns;  /* how long it can still wait: nobody waits longer than rank 0 does, */
    lap_limit_t limit; /* by which timeout */
    char text[LAP_ERROR_TEXT];
};

static lap_maker_record_t *mine_of(const lap_maker_t *maker)
{
    return &maker->records[maker->size];
}

/* ---- whether all is well ---- */

static lap_status_t gather_records(lap_maker_t *maker)
{
    const lap_maker_record_t *mine = mine_of(maker);
    const lap_status_t met = maker->ops->gather(maker, mine, sizeof(*mine), maker->records);
    maker->gathered = met == LAP_OK;
    return met;
}

lap_status_t lap_maker_report(lap_maker_t *maker, lap_status_t status)
{
    if (!maker->records) /* the others learn of it from who has started them */
        return status;
    (void)gather_records(maker);
    /* The failure of this rank says more than that the others did not come to learn of it. */
    return lap_error(status, "%s", mine_of(maker)->text);
}

/* Sends all how it went here; fails when it did not go well on some rank. */
static lap_status_t exchange(lap_maker_t *maker, lap_status_t status)
{
    lap_maker_record_t *mine = mine_of(maker);
    const lap_maker_record_t *records = maker->records;
    const int length = (int)sizeof(mine->version);
    snprintf(mine->version, sizeof(mine->version), "%s", lap_version_string());
    mine->status = status;
    mine->wired = maker->world && maker->world->wire;
    mine->left_ns = lap_deadline_left(&maker->deadline);
    mine->limit = maker->limit;
    if (status != LAP_OK) {
        snprintf(mine->text, sizeof(mine->text), "%s", lap_last_error());
        return maker->ops->report(maker, status);
    }
    LAP_TRY(gather_records(maker));
    for (int rank = 1; rank < maker->size; rank++)
        if (strncmp(records[rank].version, records[0].version, sizeof(mine->version)) != 0)
            return lap_error(LAP_ERR_MISMATCH,
                             "rank 0 runs version %.*s of this library, rank %d version %.*s",
                             length, records[0].version, rank, length, records[rank].version);
    for (int rank = 0; rank < maker->size; rank++)
        if (records[rank].status != LAP_OK)
            return lap_error((lap_status_t)records[rank].status, "rank %d: %.*s", rank,
                             LAP_ERROR_TEXT - 1, records[rank].text);
    return LAP_OK;
}

lap_status_t lap_maker_no_look(lap_maker_t *maker)
{
    (void)maker;
    return LAP_OK;
}

lap_status_t lap_maker_check_files(const lap_maker_t *maker, int expected)
{
    int *fds = lap_alloc((size_t)expected, sizeof(int)), count = 0, error = 0;
    if (!fds)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %d files", expected);
    while (count < expected && error == 0) {
        fds[count] = eventfd(0, EFD_CLOEXEC);
        error = fds[count] < 0 ? errno : 0;
        count += error == 0;
    }
    for (int i = 0; i < count; i++)
        close(fds[i]);
    lap_free(fds);
    errno = error;
    return error == 0
               ? LAP_OK
               : lap_error_errno("rank %d can open %d more files, expected %d for a world of "
                                 "%d ranks",
                                 maker->rank, count, expected, maker->size);
}

/* ---- the ranks of one host ---- */

/* By their records, where nobody else knows them. All wait as long as rank 0 from now on. */
static void find_locals(lap_maker_t *maker)
{
    const lap_maker_record_t *records = maker->records;
    for (int rank = 0; rank < maker->size; rank++) {
        if (memcmp(records[rank].host, mine_of(maker)->host, sizeof(records->host)) != 0)
            continue;
        if (rank == maker->rank)
            maker->local_rank = maker->local_size;
        maker->locals[maker->local_size++] = rank;
    }
    if (maker->rank != 0 && records[0].left_ns < UINT64_MAX - maker->grace_ns)
        lap_deadline_shorten(&maker->deadline, records[0].left_ns + maker->grace_ns);
    maker->limit = records[0].limit;
}

/* A descriptor for each other process of this host that is readable when it has ended. */
static lap_status_t watch_locals(lap_maker_t *maker)
{
    for (int i = 0; i < maker->local_size; i++) {
        const int rank = maker->locals[i];
        lap_peer_t *peer = &maker->world->peers[rank];
        if (rank == maker->rank)
            continue;
        peer->pid = maker->records[rank].pid;
        peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0); /* close-on-exec by itself */
        if (peer->pidfd < 0 && errno == ESRCH)
            return lap_error(LAP_ERR_PEER_LOST, "rank %d (pid %d) has died", rank, peer->pid);
        if (peer->pidfd < 0)
            return lap_error_errno("watching rank %d (pid %d)", rank, peer->pid);
    }
    return LAP_OK;
}

/* A reported failure comes before the end of its rank. */
static lap_status_t look(void *context)
{
    lap_maker_t *maker = context;
    LAP_TRY(maker->ops->look(maker));
    for (int i = 0; i < maker->local_size; i++) {
        const lap_peer_t *peer = &maker->world->peers[maker->locals[i]];
        struct pollfd death = {.fd = peer->pidfd, .events = POLLIN};
        if (poll(&death, 1, 0) > 0)
            return lap_error(LAP_ERR_PEER_LOST, "rank %d (pid %d) has died", maker->locals[i],
                             peer->pid);
    }
    return LAP_OK;
}

static lap_status_t pass_timeout(const lap_maker_t *maker, bool all)
{
    char missing[512] = "", time[LAP_LIMIT_TEXT];
    size_t used = 0;
    for (int i = 0; i < maker->local_size && used + 24 < sizeof(missing); i++)
        if (!maker->peers[i].came)
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%srank %d",
                                     used ? ", " : "", maker->locals[i]);
    return lap_error(LAP_ERR_TIMEOUT,
                     "of %d ranks of one host these have not passed their memory %s: %s",
                     maker->local_size,
                     all ? lap_limit_within(&maker->limit, maker->settings->timeout_ns, time)
                         : lap_limit_in_time(&maker->limit, time),
                     missing);
}

/*
 * The ranks of this host pass their heaps to one another. Where there are other hosts, those wait
 * for them: who waits here gives up first, since it alone knows which rank has not come.
 */
static lap_status_t pass_heaps(lap_maker_t *maker)
{
    const uint64_t left = lap_deadline_left(&maker->deadline), grace = maker->grace_ns;
    const uint64_t half = left > grace ? (left - grace) / 2 : 0;
    const bool all = maker->local_size == maker->size;
    lap_deadline_t deadline = lap_deadline_after(all ? left : half);
    lap_pass_t pass = {.socket = maker->socket,
                       .rank = maker->local_rank,
                       .size = maker->local_size,
                       .mine = maker->world->peers[maker->rank].heap_fd,
                       .peers = maker->peers,
                       .look = look,
                       .context = maker};
    for (int i = 0; i < maker->local_size; i++) {
        const lap_maker_record_t *record = &maker->records[maker->locals[i]];
        maker->peers[i] = lap_pass_peer(maker->locals[i], &record->socket, record->pid);
    }
    lap_status_t status = lap_pass_run(&pass, &deadline);
    maker->deadline.seen = lap_now_ns(); /* that was no stop */
    if (pass.timed_out)
        status = pass_timeout(maker, all);
    for (int i = 0; i < maker->local_size; i++)
        if (i != maker->local_rank)
            maker->world->peers[maker->locals[i]].heap_fd = maker->peers[i].fd;
    return status;
}

/* ---- the world ---- */

/*
 * What a rank does by itself. It comes before the first exchange, so that nobody waits for a rank
 * that has no memory.
 */
static lap_status_t prepare_world(lap_maker_t *maker)
{
    const bool wired = maker->ops->open_wire != NULL;
    lap_maker_record_t *mine = mine_of(maker);
    LAP_TRY(lap_world_alloc(wired ? LAP_WORLD_WIRED : LAP_WORLD_PROCESSES, maker->rank, maker->size,
                            maker->settings, &maker->world));
    lap_world_t *world = maker->world;
    mine->pid = world->peers[world->rank].pid = (int)getpid();
    snprintf(mine->host, sizeof(mine->host), "%s", maker->host ? maker->host : "");
    LAP_TRY(lap_heap_open(&world->peers[world->rank].heap_fd));
    if (maker->size > 1)
        LAP_TRY(lap_pass_open(&maker->socket, &mine->socket));
    if (!wired && maker->rank == 0)
        LAP_TRY(
            lap_region_create(world, lap_control_bytes(maker->size), maker->size, &maker->control));
    mine->control = maker->control.handle;
    return LAP_OK;
}

/* With a wire it is this rank's own: the packets of the others fill it in. */
static lap_status_t make_page(lap_maker_t *maker)
{
    const size_t bytes = lap_control_bytes(maker->size);
    if (maker->world->wire)
        return lap_region_create(maker->world, bytes, 1, &maker->control);
    return maker->rank == 0
               ? LAP_OK
               : lap_region_map(maker->world, 0, maker->records[0].control, bytes, &maker->control);
}

static lap_status_t make_world(lap_maker_t *maker)
{
    lap_world_t *world = maker->world;
    if (maker->host)
        find_locals(maker);
    LAP_TRY(lap_maker_check_files(maker, 2 * maker->local_size + LAP_SPARE_FILES));
    if (maker->local_size > 1) {
        LAP_TRY(watch_locals(maker));
        LAP_TRY(pass_heaps(maker));
    }
    lap_world_set_local(world, maker->local_size);
    if (maker->ops->open_wire)
        LAP_TRY(maker->ops->open_wire(maker, world, &world->wire));
    LAP_TRY(make_page(maker));
    return lap_group_create_world(world, &maker->control, &world->group);
}

/* Takes a world down that not all ranks have: nobody is there to say goodbye to. */
static void give_up(lap_maker_t *maker)
{
    lap_world_t *world = maker->world;
    if (world && world->wire) {
        lap_group_release(world->group);
        world->group = NULL;
        world->wire->ops->close(world->wire, false);
        world->wire = NULL;
    }
    if (world)
        lap_region_unmap(world, &maker->control);
    lap_world_destroy(world);
    maker->world = NULL;
}

lap_status_t lap_maker_run(lap_maker_t *maker, lap_status_t status, lap_world_t **world_p)
{
    const size_t size = (size_t)maker->size;
    maker->records = lap_alloc(size + 1, sizeof(*maker->records));
    maker->peers = lap_alloc(size, sizeof(*maker->peers));
    if (!maker->locals)
        maker->locals = lap_alloc(size, sizeof(int));
    if (!maker->records || !maker->peers || !maker->locals)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", maker->size);
    if (!maker->records) /* in which it would say so */
        return maker->ops->report(maker, status);
    if (status == LAP_OK)
        status = prepare_world(maker);
    status = exchange(maker, status);
    if (status == LAP_OK)
        status = exchange(maker, make_world(maker));
    if (status == LAP_OK)
        *world_p = maker->world;
    else
        give_up(maker);
    return status;
}

bool lap_maker_any_wire(const lap_maker_t *maker)
{
    for (int rank = 0; rank < maker->size; rank++)
        if (maker->records[rank].wired)
            return true;
    return false;
}

void lap_maker_clear(lap_maker_t *maker)
{
    if (maker->socket >= 0)
        close(maker->socket);
    lap_free(maker->peers);
    lap_free(maker->locals);
    lap_free(maker->records);
}
