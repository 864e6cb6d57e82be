/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment of each launcher comes to, and the errors about variables that make no
 * sense.
 */
#include "core/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/world.h"
#include "tap.h"

/* Forgets what was set before and sets pairs of name and value, NULL at the end. */
static void set_only(const char *const *pairs)
{
    clearenv();
    for (; *pairs; pairs += 2)
        setenv(pairs[0], pairs[1], 1);
}

#define SET_ONLY(...) set_only((const char *const[]){__VA_ARGS__, NULL})

static lap_environment_t found;

static bool is(int rank, int size)
{
    memset(&found, 0, sizeof(found));
    return lap_environment_read(&found) == LAP_OK && found.rank == rank && found.size == size;
}

static lap_status_t read_it(void)
{
    return lap_environment_read(&found);
}

/* Where ranks of several hosts meet: found.master. */
static void test_torchrun_hosts(void)
{
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    setenv("MASTER_PORT", "29500", 1);
    setenv("GROUP_RANK", "1", 1);
    tap_ok(is(1, 2) && !found.dir[0] && strcmp(found.master.hosts, "a") == 0 &&
               found.master.port == 29501 && found.master.nports == 16 &&
               strcmp(found.host, "GROUP_RANK 1") == 0,
           "torchrun on several hosts: the ports after its own, and its number of the host");
    const lap_key_t key = found.master.key;
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "7", 1);
    tap_ok(is(1, 2) && memcmp(&key, &found.master.key, sizeof(key)) == 0,
           "names of hosts and restarts tell no jobs apart");
    setenv("TORCHELASTIC_RUN_ID", "x", 1);
    tap_ok(is(1, 2) && memcmp(&key, &found.master.key, sizeof(key)) != 0, "the id of a run does");
    unsetenv("TORCHELASTIC_RUN_ID");
    setenv("LAP_JOB", "y", 1);
    tap_ok(is(1, 2) && memcmp(&key, &found.master.key, sizeof(key)) != 0, "LAP_JOB does");
    unsetenv("LAP_JOB");
    setenv("MASTER_PORT", "65530", 1);
    tap_ok(is(1, 2) && found.master.port == 65514, "near the last port those before it");
    setenv("LAP_MASTER", "[fe80::1]:77", 1);
    tap_ok(is(1, 2) && strcmp(found.master.hosts, "fe80::1") == 0 && found.master.port == 77 &&
               found.master.nports == 1 && strstr(found.hosts, "LAP_MASTER"),
           "LAP_MASTER comes first");
    unsetenv("LAP_MASTER");
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_PORT", "1", 1);
}

static void test_lap_run(void)
{
    clearenv();
    tap_ok(is(0, 1) && !found.dir[0], "nothing set: a world of one");
    tap_ok(!lap_environment_launched(), "and nobody has launched it");
    SET_ONLY("LAP_RANK", "2", "LAP_SIZE", "4", "LAP_DIR", "/tmp/a", "RANK", "0", "WORLD_SIZE", "9");
    tap_ok(is(2, 4) && strcmp(found.dir, "/tmp/a") == 0, "lap run comes before all others");
    SET_ONLY("LAP_RANK", "0", "LAP_SIZE", "1");
    tap_ok(is(0, 1) && lap_environment_launched(), "one rank needs no directory");
    SET_ONLY("LAP_RANK", "foo", "LAP_SIZE", "4", "LAP_DIR", "/tmp/a");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_RANK", "foo", NULL);
    SET_ONLY("LAP_RANK", "4", "LAP_SIZE", "4", "LAP_DIR", "/tmp/a");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_RANK", "'4'", "0 to 3", NULL);
    SET_ONLY("LAP_RANK", "-1", "LAP_SIZE", "4", "LAP_DIR", "/tmp/a");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_RANK", "-1", NULL);
    SET_ONLY("LAP_RANK", "1", "LAP_SIZE", "4x", "LAP_DIR", "/tmp/a");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_SIZE", "4x", NULL);
    SET_ONLY("LAP_RANK", "1", "LAP_SIZE", "99999999999999999999", "LAP_DIR", "/tmp/a");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_SIZE", "9999999", NULL);
    SET_ONLY("LAP_RANK", "", "LAP_SIZE", "4", "LAP_DIR", "/tmp/a");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_RANK", "''", NULL);
    SET_ONLY("LAP_SIZE", "4", "LAP_DIR", "/tmp/a");
    tap_ok(lap_environment_launched(), "LAP_SIZE alone is a mistake, not an absence");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_RANK", "not set", NULL);
    SET_ONLY("LAP_RANK", "1", "LAP_DIR", "/tmp/a");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_SIZE", "not set", NULL);
    SET_ONLY("LAP_RANK", "1", "LAP_SIZE", "4");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_DIR", "LAP_JOB", NULL);
    SET_ONLY("LAP_RANK", "1", "LAP_SIZE", "4", "LAP_DIR", "here");
    tap_failure(read_it(), LAP_ERR_INVALID, "LAP_DIR", "here", "absolute", NULL);
    SET_ONLY("LAP_RANK", "1", "LAP_SIZE", "4", "LAP_JOB", "x", "TMPDIR", "/var/tmp");
    tap_ok(is(1, 4) && strncmp(found.dir, "/var/tmp/lap-", 13) == 0, "LAP_JOB is enough");
}

static void test_launchers(void)
{
    char first[LAP_DIR_BYTES];
    SET_ONLY("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "3", "OMPI_COMM_WORLD_LOCAL_SIZE",
             "3", "PMIX_NAMESPACE", "job-1", "RANK", "8", "WORLD_SIZE", "9");
    tap_ok(is(1, 3), "Open MPI, before torchrun");
    memcpy(first, found.dir, sizeof(first));
    char expected[64];
    snprintf(expected, sizeof(expected), "/tmp/lap-%lu-", (unsigned long)getuid());
    tap_ok(strncmp(first, expected, strlen(expected)) == 0 &&
               strlen(first) == strlen(expected) + 16,
           "a directory with the user and 16 digits: %s", first);
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    tap_ok(is(2, 3) && strcmp(first, found.dir) == 0, "another rank meets in the same directory");
    setenv("PMIX_NAMESPACE", "job-2", 1);
    tap_ok(is(2, 3) && strcmp(first, found.dir) != 0, "another job does not");
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    tap_ok(is(2, 3) && !found.dir[0] && strstr(found.hosts, "LOCAL_SIZE is '2'"),
           "ranks on several hosts, by their number on this one: %s", found.hosts);

    SET_ONLY("PMI_RANK", "0", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "2");
    tap_ok(is(0, 2) && found.dir[0], "MPICH, by the parent when there is no PMI_PORT");
    memcpy(first, found.dir, sizeof(first));
    setenv("PMI_PORT", "host:1234", 1);
    tap_ok(is(0, 2) && strcmp(first, found.dir) != 0, "and by PMI_PORT when there is one");
    setenv("MPI_LOCALNRANKS", "1", 1);
    tap_ok(is(0, 2) && strstr(found.hosts, "MPI_LOCALNRANKS is '1'"), "the same of MPICH");

    SET_ONLY("RANK", "1", "WORLD_SIZE", "2", "LOCAL_WORLD_SIZE", "2", "MASTER_ADDR", "a",
             "MASTER_PORT", "1", "TORCHELASTIC_RESTART_COUNT", "0");
    tap_ok(is(1, 2), "torchrun");
    memcpy(first, found.dir, sizeof(first));
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    tap_ok(is(1, 2) && strcmp(first, found.dir) != 0, "a restart meets elsewhere");
    test_torchrun_hosts();
    setenv("RANK", "two", 1);
    tap_failure(read_it(), LAP_ERR_INVALID, "RANK", "two", NULL);
    tap_ok(lap_environment_launched(), "a rank, though its number makes no sense");
    SET_ONLY("RANK", "1");
    tap_ok(is(0, 1) && !lap_environment_launched(), "RANK alone means nothing");

    SET_ONLY("SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2", "SLURM_STEP_NUM_NODES", "1",
             "SLURM_JOB_ID", "5", "SLURM_STEP_ID", "0");
    tap_ok(is(1, 2), "srun");
    setenv("SLURM_STEP_NUM_NODES", "2", 1);
    tap_ok(is(1, 2) && strstr(found.hosts, "NUM_NODES is '2'"), "and of srun, by the nodes");
    SET_ONLY("SLURM_PROCID", "0");
    tap_ok(is(0, 1), "a batch script without srun is a world of one");
}

static void test_settings(void)
{
    uint64_t ns = 0;
    clearenv();
    tap_ok(lap_environment_timeout(&ns) == LAP_OK && ns == 60000000000u, "60 s by default");
    setenv("LAP_TIMEOUT_S", "1.25", 1);
    tap_ok(lap_environment_timeout(&ns) == LAP_OK && ns == 1250000000u, "1.25 s");
    const char *bad[] = {"0", "-1", "soon", "1s", ".", "nan", "inf", "1,5", "99999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv("LAP_TIMEOUT_S", bad[i], 1);
        tap_failure(lap_environment_timeout(&ns), LAP_ERR_INVALID, "LAP_TIMEOUT_S", NULL);
    }
    tap_ok(ns == 1250000000u, "nothing is written on failure");
    lap_world_t *world = NULL;
    tap_failure(lap_world_create(NULL, &world), LAP_ERR_INVALID, "LAP_TIMEOUT_S", "99999999999",
                NULL);
    tap_failure(lap_world_create(NULL, NULL), LAP_ERR_INVALID, "world_p", NULL);
}

static void test_spin(void)
{
    uint64_t ns = 0;
    lap_world_t *world = NULL;
    clearenv();
    tap_ok(lap_environment_spin(&ns) == LAP_OK && ns == 50000, "a wait spins for 50 us");
    setenv("LAP_SPIN_US", "1000000", 1);
    tap_ok(lap_environment_spin(&ns) == LAP_OK && ns == 1000000000u, "LAP_SPIN_US: a second");
    setenv("LAP_SPIN_US", "7", 1);
    if (tap_success(lap_world_create(NULL, &world), "a world with LAP_SPIN_US"))
        tap_ok(world->spin_ns == 7000, "its waits spin for 7 us");
    lap_world_destroy(world);
    setenv("LAP_SPIN_US", "0", 1);
    tap_ok(lap_environment_spin(&ns) == LAP_OK && ns == 0, "not at all");
    const char *bad[] = {"-1", "1000001", "0.5", "no", "5us", "99999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv("LAP_SPIN_US", bad[i], 1);
        tap_failure(lap_environment_spin(&ns), LAP_ERR_INVALID, "LAP_SPIN_US", bad[i], "1000000",
                    NULL);
    }
    world = NULL;
    tap_failure(lap_world_create(NULL, &world), LAP_ERR_INVALID, "LAP_SPIN_US", NULL);
}

static bool base_is(size_t room, const char *expected)
{
    const char *base = "";
    const lap_status_t status = lap_environment_base(room, &base);
    if (status != LAP_OK || strcmp(base, expected) != 0)
        tap_note("the base is '%s': %s", base, status == LAP_OK ? "" : lap_last_error());
    return status == LAP_OK && strcmp(base, expected) == 0;
}

static void test_base(void)
{
    clearenv();
    tap_ok(base_is(40, "/tmp"), "/tmp when nothing is printed");
    setenv("XDG_RUNTIME_DIR", "/var/tmp", 1);
    tap_ok(base_is(40, "/var/tmp"), "XDG_RUNTIME_DIR");
    tap_ok(base_is(100, "/tmp"), "unless the path becomes too long");
    setenv("XDG_RUNTIME_DIR", "/no/such/folder", 1);
    setenv("TMPDIR", "/var/tmp", 1);
    tap_ok(base_is(40, "/var/tmp"), "TMPDIR when there is no such folder");
}

/* A directory where others could replace what is ours is none for us. */
static void test_unsafe_base(void)
{
    static const struct {
        mode_t mode;
        bool safe;
    } cases[] = {{0700, true}, {0755, true}, {01777, true}, {0777, false}, {0775, false}};
    char dir[] = "/tmp/lap-test-XXXXXX";
    clearenv();
    if (!tap_ok(mkdtemp(dir) != NULL, "a directory"))
        return;
    setenv("TMPDIR", dir, 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tap_ok(chmod(dir, cases[i].mode) == 0 && base_is(40, cases[i].safe ? dir : "/tmp"),
               "a directory of mode %04o is %s", (unsigned)cases[i].mode,
               cases[i].safe ? "taken" : "not taken");
    }
    if (geteuid() == 0)
        tap_ok(chmod(dir, 01777) == 0 && chown(dir, 65534, 65534) == 0 && base_is(40, "/tmp"),
               "one of another user is not taken");
    else
        tap_skip("only root can make a directory of another user");
    rmdir(dir);
}

int main(void)
{
    test_lap_run();
    test_launchers();
    test_settings();
    test_spin();
    test_base();
    test_unsafe_base();
    return tap_done();
}
