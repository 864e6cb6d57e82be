/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads from the environment who started this process: `lap run`, mpirun, torchrun or srun. Ranks
 * of one job derive the same directory to meet in from what their launcher gives all of them;
 * nothing is created here.
 */
#include "core/environment.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/status.h"
#include "util/digest.h"

#define TIMEOUT_MIN_S 0.001
#define TIMEOUT_MAX_S 1e9
#define MASTER_PORTS 16 /* after that of torchrun, of which one should be free */
#define SPIN_US 50
#define SPIN_MAX_US 1000000
#define TIMEOUT_DIGITS 40 /* more say nothing that a double can hold */

/*
 * Which variables a launcher sets. All that are set in `identity` together name the job among those
 * of this host.
 */
typedef struct launcher {
    const char *name;
    const char *rank, *size;
    const char *local_size; /* ranks on this host; NULL: not known */
    const char *hosts;      /* NULL: not known */
    const char *node;       /* which of them this one is; NULL: not known */
    const char *identity[5];
} launcher_t;

static const launcher_t launchers[] = {
    {
        .name = "lap run",
        .rank = "LAP_RANK",
        .size = "LAP_SIZE",
        .node = "LAP_NODE",
        .identity = {"LAP_JOB"},
    },
    {
        .name = "mpirun of Open MPI",
        .rank = "OMPI_COMM_WORLD_RANK",
        .size = "OMPI_COMM_WORLD_SIZE",
        .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
        .identity = {"PMIX_NAMESPACE", "PMIX_SERVER_URI2", "PMIX_SERVER_URI21",
                     "OMPI_MCA_orte_hnp_uri"},
    },
    {
        .name = "mpirun of MPICH",
        .rank = "PMI_RANK",
        .size = "PMI_SIZE",
        .local_size = "MPI_LOCALNRANKS",
        .identity = {"PMI_PORT"},
    },
    {
        .name = "torchrun",
        .rank = "RANK",
        .size = "WORLD_SIZE",
        .local_size = "LOCAL_WORLD_SIZE",
        .node = "GROUP_RANK",
        .identity = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                     "TORCHELASTIC_RESTART_COUNT"},
    },
    {
        .name = "srun",
        .rank = "SLURM_PROCID",
        .size = "SLURM_STEP_NUM_TASKS",
        .hosts = "SLURM_STEP_NUM_NODES",
        .node = "SLURM_NODEID",
        .identity = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
    },
};

#define TORCHRUN 3

#define LAUNCHERS (sizeof(launchers) / sizeof(launchers[0]))

/* A decimal number from `least` to `most`, and nothing else. */
static lap_status_t read_int(const char *name, long least, long most, int *value_p)
{
    const char *text = getenv(name);
    if (!text)
        return lap_error(LAP_ERR_INVALID, "%s is not set, expected a number from %ld to %ld", name,
                         least, most);
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno || value < least || value > most)
        return lap_error(LAP_ERR_INVALID, "%s is '%s', expected a number from %ld to %ld", name,
                         text, least, most);
    *value_p = (int)value;
    return LAP_OK;
}

/* Digits with at most one point. strtod would ask the locale what a point looks like. */
static bool parse_decimal(const char *text, double *value_p)
{
    double value = 0, unit = 1;
    bool point = false, digits = false;
    for (; *text; text++) {
        if (*text == '.' && !point) {
            point = true;
        } else if (isdigit((unsigned char)*text)) {
            digits = true;
            unit = point ? unit / 10 : unit;
            value = point ? value + (*text - '0') * unit : value * 10 + (*text - '0');
        } else {
            return false;
        }
    }
    *value_p = value;
    return digits;
}

lap_status_t lap_timeout_from_seconds(const char *name, double seconds, uint64_t *ns_p)
{
    if (!(seconds >= TIMEOUT_MIN_S && seconds <= TIMEOUT_MAX_S))
        return lap_error(LAP_ERR_INVALID,
                         "%s is %.12g, expected a number of seconds, %.12g to %.12g", name, seconds,
                         TIMEOUT_MIN_S, TIMEOUT_MAX_S);
    *ns_p = (uint64_t)(seconds * 1e9);
    return LAP_OK;
}

lap_status_t lap_timeout_parse(const char *name, const char *text, double *seconds_p)
{
    double seconds;
    uint64_t ns;
    if (strlen(text) > TIMEOUT_DIGITS)
        return lap_error(LAP_ERR_INVALID,
                         "%s is '%.*s...' of %zu characters, expected a number of seconds in at "
                         "most %d characters, %.12g to %.12g",
                         name, TIMEOUT_DIGITS, text, strlen(text), TIMEOUT_DIGITS, TIMEOUT_MIN_S,
                         TIMEOUT_MAX_S);
    if (!parse_decimal(text, &seconds))
        return lap_error(LAP_ERR_INVALID,
                         "%s is '%s', expected a number of seconds, %.12g to %.12g", name, text,
                         TIMEOUT_MIN_S, TIMEOUT_MAX_S);
    LAP_TRY(lap_timeout_from_seconds(name, seconds, &ns));
    *seconds_p = seconds;
    return LAP_OK;
}

lap_status_t lap_environment_timeout(uint64_t *ns_p)
{
    const char *name = "LAP_TIMEOUT_S", *text = getenv(name);
    if (!text || !*text) {
        *ns_p = LAP_TIMEOUT_DEFAULT_NS;
        return LAP_OK;
    }
    double seconds;
    LAP_TRY(lap_timeout_parse(name, text, &seconds));
    return lap_timeout_from_seconds(name, seconds, ns_p);
}

lap_status_t lap_environment_spin(uint64_t *ns_p)
{
    const char *name = "LAP_SPIN_US", *text = getenv(name);
    int us = SPIN_US;
    if (text && *text)
        LAP_TRY(read_int(name, 0, SPIN_MAX_US, &us));
    *ns_p = (uint64_t)us * 1000;
    return LAP_OK;
}

lap_status_t lap_environment_blas_even(bool *even_p)
{
    const char *name = "LAP_BLAS_EVEN", *text = getenv(name);
    int even = 1;
    if (text && *text)
        LAP_TRY(read_int(name, 0, 1, &even));
    *even_p = even != 0;
    return LAP_OK;
}

/* The user that the kernel shows in the place of those who are not in our user namespace. */
static unsigned long overflow_user(void)
{
    char text[32];
    const bool known = lap_file_read_text("/proc/sys/kernel/overflowuid", text, sizeof(text));
    return known ? strtoul(text, NULL, 10) : 65534;
}

/* Whether our user namespace knows root, as those of some containers do not. */
static bool root_is_known(void)
{
    char line[128];
    bool known = false;
    FILE *file = fopen("/proc/self/uid_map", "re");
    if (!file)
        return true;
    /* Each line is a range: its first user, who that is outside, and how many there are. */
    while (fgets(line, sizeof(line), file))
        known = known || strtoul(line, NULL, 10) == 0;
    fclose(file);
    return known;
}

static bool may_be_root(uid_t uid)
{
    return uid == 0 || (uid == overflow_user() && !root_is_known());
}

/* Whether a file that we make in this directory stays ours, whatever other users do. */
static bool is_safe(const struct stat *about)
{
    const bool trusted = about->st_uid == geteuid() || may_be_root(about->st_uid);
    return trusted && ((about->st_mode & 022) == 0 || (about->st_mode & S_ISVTX) != 0);
}

lap_status_t lap_environment_base(size_t room, const char **base_p)
{
    const char *const names[] = {"XDG_RUNTIME_DIR", "TMPDIR"};
    struct stat about;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *base = secure_getenv(names[i]);
        /* Ranks of one host and user come to the same answer here, so they still meet. */
        if (base && base[0] == '/' && strlen(base) + room <= LAP_DIR_BYTES &&
            access(base, W_OK | X_OK) == 0 && stat(base, &about) == 0 && is_safe(&about)) {
            *base_p = base;
            return LAP_OK;
        }
    }
    if (stat("/tmp", &about) == 0 && !is_safe(&about))
        return lap_error(LAP_ERR_SYSTEM,
                         "/tmp belongs to user %lu and has mode %04o, expected user root and mode "
                         "1777: other users could replace files in it; XDG_RUNTIME_DIR or TMPDIR "
                         "may name a directory of your own",
                         (unsigned long)about.st_uid, (unsigned)(about.st_mode & 07777));
    *base_p = "/tmp";
    return LAP_OK;
}

/* The digest of a string with its end, so that "a", "bc" and "ab", "c" differ. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    return lap_digest(hash, text, strlen(text) + 1);
}

static lap_status_t derive_dir(const launcher_t *launcher, char *dir)
{
    uint64_t hash = hash_text(LAP_DIGEST_INIT, launcher->name);
    bool named = false;
    for (size_t i = 0; i < 5 && launcher->identity[i]; i++) {
        const char *value = getenv(launcher->identity[i]);
        if (!value)
            continue;
        named = true;
        hash = hash_text(hash_text(hash, launcher->identity[i]), value);
    }
    if (!named) {
        /* The launcher itself is the parent of all of its ranks on this host. */
        char parent[32];
        snprintf(parent, sizeof(parent), "%ld", (long)getppid());
        hash = hash_text(hash, parent);
    }
    char name[48];
    int length = snprintf(name, sizeof(name), "/lap-%lu-%016llx", (unsigned long)getuid(),
                          (unsigned long long)hash);
    const char *base;
    LAP_TRY(lap_environment_base((size_t)length + 1, &base));
    snprintf(dir, LAP_DIR_BYTES, "%s%s", base, name);
    return LAP_OK;
}

/* LAP_DIR, or a directory derived from LAP_JOB, which all ranks of the job must have in common. */
static lap_status_t choose_dir(const launcher_t *launcher, char *dir, bool *named_p)
{
    const char *given = getenv("LAP_DIR");
    if (launcher != &launchers[0]) {
        return derive_dir(launcher, dir);
    } else if (given) {
        if (given[0] != '/' || strlen(given) >= LAP_DIR_BYTES)
            return lap_error(LAP_ERR_INVALID,
                             "LAP_DIR is '%s', expected an absolute path of less than %d bytes",
                             given, LAP_DIR_BYTES);
        snprintf(dir, LAP_DIR_BYTES, "%s", given);
    } else if (getenv("LAP_JOB")) {
        *named_p = true;
        return derive_dir(launcher, dir);
    } else {
        return lap_error(LAP_ERR_INVALID, "LAP_RANK and LAP_SIZE are set, but neither LAP_DIR nor "
                                          "LAP_JOB says where the ranks meet");
    }
    return LAP_OK;
}

/* Finds out whether all ranks are on this host, as far as the launcher says. */
static lap_status_t read_hosts(const launcher_t *launcher, int size, int *local_p, char *why,
                               size_t bytes)
{
    int local = size, hosts = 1;
    if (launcher->local_size && getenv(launcher->local_size))
        LAP_TRY(read_int(launcher->local_size, 1, INT_MAX, &local));
    if (launcher->hosts && getenv(launcher->hosts))
        LAP_TRY(read_int(launcher->hosts, 1, INT_MAX, &hosts));
    const char *name = local != size ? launcher->local_size : launcher->hosts;
    if (local != size || hosts != 1)
        snprintf(why, bytes, "%s is '%d'", name, local != size ? local : hosts);
    *local_p = local;
    return LAP_OK;
}

/* ---- over TCP ---- */

static void read_namespace(const char *path, char *text, size_t bytes)
{
    const ssize_t length = readlink(path, text, bytes - 1);
    text[length > 0 ? length : 0] = '\0';
}

void lap_environment_host(char *text, size_t bytes)
{
    const char *node = getenv("LAP_NODE");
    if (node && *node) {
        snprintf(text, bytes, "LAP_NODE %s", node);
        return;
    }
    char boot[64], pids[32], network[32];
    lap_file_read_text("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
    boot[strcspn(boot, "\n")] = '\0';
    if (!boot[0] && gethostname(boot, sizeof(boot) - 1) != 0)
        boot[0] = '\0';
    read_namespace("/proc/self/ns/pid", pids, sizeof(pids));
    read_namespace("/proc/self/ns/net", network, sizeof(network));
    snprintf(text, bytes, "%s %s %s", boot, pids, network);
}

/* "host:port", or "[address]:port" where the address has colons. */
static lap_status_t parse_master(const char *text, lap_master_t *master)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    const bool brackets = text[0] == '[' && colon && colon > text + 2 && colon[-1] == ']';
    const char *host = text + brackets;
    const size_t length = colon ? (size_t)(colon - text) - (brackets ? 2 : 0) : 0;
    const long port = colon && isdigit((unsigned char)colon[1]) ? strtol(colon + 1, &end, 10) : 0;
    if (length == 0 || length >= sizeof(master->hosts) || port < 1 || port > 65535 ||
        *end != '\0' || memchr(host, ' ', length) || (!brackets && memchr(host, ':', length)))
        return lap_error(LAP_ERR_INVALID,
                         "LAP_MASTER is '%.200s', expected the host of rank 0 and a port from 1 to "
                         "65535, such as gpu1:29501 or [fd00::1]:29501",
                         text);
    snprintf(master->hosts, sizeof(master->hosts), "%.*s", (int)length, host);
    master->port = (int)port;
    return LAP_OK;
}

/*
 * The key of a job, by a hash that nobody can turn around: a LAP_JOB that is secret stays so.
 * Names of one host may differ from rank to rank, so they are no part of it; nor is the count of
 * restarts, which every agent of torchrun keeps for itself.
 */
static lap_key_t make_key(const char *job, const char *id, int port)
{
    struct {
        unsigned char job[LAP_SHA256_BYTES], id[LAP_SHA256_BYTES];
        uint64_t port;
    } parts = {.port = (uint64_t)port};
    unsigned char hash[LAP_SHA256_BYTES];
    lap_key_t key;
    lap_sha256(job, strlen(job), parts.job);
    lap_sha256(id, strlen(id), parts.id);
    lap_sha256(&parts, sizeof(parts), hash);
    memcpy(&key, hash, sizeof(key));
    return key;
}

/* The port of torchrun is its own: its store listens there. Ranks take one of those that follow. */
static lap_status_t read_master(const launcher_t *launcher, lap_master_t *master)
{
    const char *given = getenv("LAP_MASTER"), *job = getenv("LAP_JOB");
    const char *host = getenv("MASTER_ADDR"), *id = getenv("TORCHELASTIC_RUN_ID");
    *master = (lap_master_t){.nports = 1, .source = "LAP_MASTER", .listener = -1};
    master->key = make_key(job ? job : "", "", 0);
    if (given && *given) {
        master->given = true;
        return parse_master(given, master);
    }
    if (launcher != &launchers[TORCHRUN] || !host || !*host || !getenv("MASTER_PORT"))
        return LAP_OK;
    LAP_TRY(read_int("MASTER_PORT", 1, 65535, &master->port));
    if (strlen(host) >= sizeof(master->hosts) || strchr(host, ' '))
        return lap_error(LAP_ERR_INVALID, "MASTER_ADDR is '%.200s', expected the name of a host",
                         host);
    snprintf(master->hosts, sizeof(master->hosts), "%s", host);
    master->source = "MASTER_ADDR and MASTER_PORT";
    master->key = make_key(job ? job : "", id ? id : "", master->port);
    master->nports = MASTER_PORTS;
    master->port += master->port + MASTER_PORTS <= 65535 ? 1 : -MASTER_PORTS;
    return LAP_OK;
}

/*
 * Ranks that torchrun starts on several hosts meet where its variables say. Without them MPI would
 * be looked for, of which its users have none; who asks for it by name has it.
 */
static lap_status_t check_master(const launcher_t *launcher, const lap_environment_t *found)
{
    const char *host = getenv("MASTER_ADDR"), *transport = getenv("LAP_TRANSPORT");
    if (launcher != &launchers[TORCHRUN] || found->size == 1 || !found->hosts[0] ||
        found->master.hosts[0] || (transport && strcmp(transport, "mpi") == 0))
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "%s is not set, and ranks are on several hosts (%s): expected MASTER_ADDR and "
                     "MASTER_PORT, which torchrun sets, or LAP_MASTER=host:port in all ranks",
                     host && *host ? "MASTER_PORT" : "MASTER_ADDR", found->hosts);
}

/*
 * The launcher's number of the host, where it has one: two agents of torchrun may share a machine.
 */
static void read_host(const launcher_t *launcher, char *text, size_t bytes)
{
    const char *node = launcher->node ? getenv(launcher->node) : NULL;
    if (node && *node)
        snprintf(text, bytes, "%s %s", launcher->node, node);
    else
        lap_environment_host(text, bytes);
}

/*
 * The launcher whose variables are set, or NULL. One of ours without the other is a mistake, not an
 * absence.
 */
static const launcher_t *find_launcher(void)
{
    if (getenv("LAP_RANK") || getenv("LAP_SIZE"))
        return &launchers[0];
    for (size_t i = 1; i < LAUNCHERS; i++) {
        if (getenv(launchers[i].rank) && getenv(launchers[i].size))
            return &launchers[i];
    }
    return NULL;
}

bool lap_environment_launched(void)
{
    return find_launcher() != NULL;
}

lap_status_t lap_environment_read(lap_environment_t *environment_p)
{
    lap_environment_t found = {.rank = 0, .size = 1, .local_size = 1, .launcher = "nobody"};
    const launcher_t *launcher = find_launcher();
    if (launcher) {
        LAP_TRY(read_int(launcher->size, 1, LAP_RANKS_MAX, &found.size));
        LAP_TRY(read_int(launcher->rank, 0, found.size - 1, &found.rank));
        LAP_TRY(
            read_hosts(launcher, found.size, &found.local_size, found.hosts, sizeof(found.hosts)));
        found.launcher = launcher->name;
        LAP_TRY(read_master(launcher, &found.master));
        LAP_TRY(check_master(launcher, &found));
        read_host(launcher, found.host, sizeof(found.host));
        if (found.master.given && found.size > 1) /* there is no other reason to give it */
            snprintf(found.hosts, sizeof(found.hosts), "LAP_MASTER is '%.70s'",
                     getenv("LAP_MASTER"));
    }
    if (found.size > 1 && !found.hosts[0])
        LAP_TRY(choose_dir(launcher, found.dir, &found.named));
    *environment_p = found;
    return LAP_OK;
}
