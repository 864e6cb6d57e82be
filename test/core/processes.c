/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds of processes, good luck and bad: worlds that are made and used, that lose a rank, and that
 * a caller makes by callbacks of its own. How ranks fail to meet is in meeting.c.
 */
#include "core/forked.h"

static void again_and_again(void)
{
    for (int i = 0; i < 10; i++) {
        lap_world_t *world = join();
        expect(lap_group_barrier(lap_world_group(world)) == LAP_OK, "barrier");
        lap_world_destroy(world);
    }
    lap_world_t *first = join(), *second = join();
    use(second);
    use(first);
    lap_world_destroy(first);
    use(second);
    lap_world_destroy(second);
}

static void slow_start(void)
{
    usleep((useconds_t)(tap_random((uint64_t)getpid(), 0) % 150000));
    good();
}

/* Ranks that go away. */

/*
 * The others return before their timeout, with a sentence about who and what; afterwards everything
 * can be destroyed.
 */
static void mourn(lap_world_t *world, lap_status_t expected, const char *word)
{
    lap_group_t *all = lap_world_group(world);
    char name[64];
    snprintf(name, sizeof(name), "rank 2 (pid %d)", world->peers[2].pid);
    expect_failure(lap_group_barrier(all), expected, name, word);
    expect(strncmp(lap_last_error(), "barrier: ", 9) == 0, "the name of the call");
    expect_failure(lap_group_look(all), expected, name, word);
    char all_bytes[RANKS_MAX];
    expect_failure(lap_group_allgather(all, "x", 1, all_bytes), expected, name, word);
    lap_group_t *part = NULL;
    expect_failure(lap_group_split(all, 0, 0, &part), expected, name, word);
    lap_world_destroy(world);
}

static void killed(void)
{
    lap_world_t *world = join();
    use(world);
    if (lap_world_rank(world) == 2) {
        usleep(100000); /* by now the others most likely wait; if not, they hear it as well */
        raise(SIGKILL);
    }
    mourn(world, LAP_ERR_PEER_LOST, "died");
}

static void stopped(void)
{
    lap_world_t *world = join();
    use(world);
    if (lap_world_rank(world) == 2)
        raise(SIGSTOP);
    mourn(world, LAP_ERR_TIMEOUT, "3 s");
}

static void exited(void)
{
    lap_world_t *world = join();
    if (lap_world_rank(world) == 2)
        _exit(1); /* without lap_world_destroy */
    mourn(world, LAP_ERR_PEER_LOST, "died");
}

static int own_barrier(void *context);

static void left(void)
{
    lap_world_t *world = join();
    if (lap_world_rank(world) == 2) {
        lap_world_destroy(world);
        own_barrier(NULL);
        return;
    }
    /* Whether or not its process has ended: it has left, and has not died. */
    while (lap_group_look_for(lap_world_group(world), 2) == LAP_OK)
        usleep(1000);
    expect(lap_group_look(lap_world_group(world)) == LAP_OK, "no failure while nobody waits");
    own_barrier(NULL); /* the first that waits for it makes the group fail for all */
    mourn(world, LAP_ERR_PEER_LOST, "left");
}

static void killed_in_part(void)
{
    lap_world_t *world = join();
    lap_group_t *part = NULL;
    const int rank = lap_world_rank(world);
    expect(lap_group_split(lap_world_group(world), rank % 2, 0, &part) == LAP_OK, "split");
    if (rank == 3)
        raise(SIGKILL);
    if (rank == 1)
        expect_failure(lap_group_barrier(part), LAP_ERR_PEER_LOST, "rank 1 (rank 3 of the world",
                       "died");
    else
        expect(lap_group_barrier(part) == LAP_OK, "a part without it to go on");
    lap_group_destroy(part);
    lap_world_destroy(world);
}

/* Worlds with a caller's own ranks. */

/* A barrier over the shared memory; every rank calls it in the same order. */
static int own_barrier(void *context)
{
    (void)context;
    const int generation = atomic_load(&shared->generation);
    if (atomic_fetch_add(&shared->arrived, 1) == my_size - 1) {
        atomic_store(&shared->arrived, 0);
        atomic_fetch_add(&shared->generation, 1);
    }
    while (atomic_load(&shared->generation) == generation)
        usleep(100);
    return 0;
}

static int own_allgather(void *context, const void *mine, size_t bytes, void *all)
{
    const int rank = my_rank, size = my_size;
    if (bytes > sizeof(shared->records[0]))
        return -1;
    memcpy(shared->records[rank], mine, bytes);
    own_barrier(context);
    for (int r = 0; r < size; r++)
        memcpy((char *)all + (size_t)r * bytes, shared->records[r], bytes);
    return own_barrier(context);
}

static int broken_barrier(void *context)
{
    own_barrier(context);
    return 17;
}

static int broken_allgather(void *context, const void *mine, size_t bytes, void *all)
{
    own_allgather(context, mine, bytes, all);
    return 18;
}

/* Makes the records of the last rank say that it runs on another machine. */
static int far_allgather(void *context, const void *mine, size_t bytes, void *all)
{
    const int rank = my_rank, size = my_size;
    char record[4096], name[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    expect(file && fgets(name, sizeof(name), file), "a boot id");
    fclose(file);
    name[strcspn(name, "\n")] = '\0';
    memcpy(record, mine, bytes);
    char *id = memmem(record, bytes, name, strlen(name));
    expect(id != NULL, "the boot id in the record");
    if (rank == size - 1)
        id[0] = 'x';
    return own_allgather(context, record, bytes, all);
}

static lap_bootstrap_t own_bootstrap(void)
{
    lap_bootstrap_t bootstrap = LAP_BOOTSTRAP_INIT;
    unsetenv("LAP_DIR");
    setenv("XDG_RUNTIME_DIR", base, 1);
    bootstrap.rank = my_rank;
    bootstrap.nranks = my_size;
    bootstrap.allgather = own_allgather;
    bootstrap.barrier = own_barrier;
    return bootstrap;
}

static void with_callbacks(void)
{
    lap_bootstrap_t bootstrap = own_bootstrap();
    lap_world_t *world = NULL;
    for (int i = 0; i < 3; i++) {
        expect(lap_world_create_with(&bootstrap, NULL, &world) == LAP_OK, "a world by callbacks");
        use(world);
        use_regions(world);
        lap_world_destroy(world);
    }
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.transport = my_rank == 0 ? "hosts" : NULL;
    for (int i = 0; i < 2; i++) {
        bootstrap.allgather = i == 0 ? own_allgather : far_allgather;
        expect(lap_world_create_with(&bootstrap, i == 0 ? &options : NULL, &world) == LAP_OK,
               "a world by callbacks over TCP");
        expect(my_size == 1 || world->wire, "with a wire");
        use(world);
        lap_world_destroy(world);
    }
}

static void with_bad_callbacks(void)
{
    lap_bootstrap_t bootstrap = own_bootstrap();
    lap_world_t *world = NULL;
    bootstrap.barrier = broken_barrier;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_SYSTEM, "barrier",
                   "17");
    bootstrap = own_bootstrap();
    bootstrap.allgather = broken_allgather;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_SYSTEM, "allgather",
                   "18");
    bootstrap = own_bootstrap();
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.timeout_s = bootstrap.rank == 1 ? -4 : 0;
    expect_failure(lap_world_create_with(&bootstrap, &options, &world), LAP_ERR_INVALID,
                   "timeout_s", "-4");
    bootstrap.nranks = 0;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_INVALID, "nranks", "0");
    bootstrap = own_bootstrap();
    bootstrap.rank = 9;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_INVALID, "rank", "9");
    bootstrap = own_bootstrap();
    bootstrap.barrier = NULL;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_INVALID, "barrier",
                   "NULL");
    bootstrap.size = 3;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_INVALID, "size", "3");
    expect(!world, "nothing written on failure");
}

/* Cases that need something of their own. */

static void test_two_jobs(void)
{
    char dirs[2][96];
    pid_t pids[6];
    meeting_dir(dirs[0], sizeof(dirs[0]), "job-a");
    meeting_dir(dirs[1], sizeof(dirs[1]), "job-b");
    for (int i = 0; i < 6; i++)
        pids[i] = start_rank(i / 2, 3, dirs[i % 2], "20", slow_start);
    bool well = true;
    for (int i = 0; i < 6; i++)
        well = ended_well(pids[i]) && well;
    tap_ok(well, "two jobs at once do not meet");
    tap_ok(count_entries(base) == 2, "nothing is left of them");
}

int main(void)
{
    if (!forked_begin())
        return 1;
    const int sizes[] = {1, 2, 3, 16};
    for (int i = 0; i < 4; i++)
        run_case("a world", 0, sizes[i], "20", -1, good);
    run_case("ranks that come late", 0, 5, "20", -1, slow_start);
    run_case("worlds one after another", 0, 3, "20", -1, again_and_again);
    test_two_jobs();
    run_case("a rank killed in a barrier", 0, 4, "20", 2, killed);
    run_case("a rank stopped in a barrier", 0, 4, "3", 2, stopped);
    run_case("a rank that exits", 0, 4, "20", 2, exited);
    run_case("a rank that leaves", 0, 4, "20", -1, left);
    run_case("a rank killed in a part of the world", 0, 4, "20", 3, killed_in_part);
    run_case("a world by callbacks", 0, 3, "20", -1, with_callbacks);
    run_case("a world of one by callbacks", 0, 1, "20", -1, with_callbacks);
    run_case("callbacks that fail", 0, 3, "20", -1, with_bad_callbacks);
    return forked_end();
}
