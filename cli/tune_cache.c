/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `lap tune` has found on this machine, for `--auto`: a directory of this user with a file for each
 * search, named by the digest of what it depends on. A file is written whole, and its last line is the
 * checksum of all before it. What is damaged is named and ignored: it only costs another search.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/output.h"
#include "core/private_dir.h"
#include "core/status.h"
#include "core/world.h"
#include "tune.h"
#include "util/alloc.h"
#include "util/digest.h"

#define SUFFIX ".tune"
#define FILE_NAME "%016" PRIx64 SUFFIX /* of a key: its digest */
#define BYTES_MOST 65536
#define CHECKSUM "checksum "

/* ---- the directory ---- */

/* False: the environment names none. */
static bool find_dir(char path[PATH_MAX])
{
    const char *base = secure_getenv("XDG_CACHE_HOME"), *below = "";
    if (!base || base[0] != '/') { /* a relative path counts for nothing there */
        base = secure_getenv("HOME");
        below = "/.cache";
    }
    return base && base[0] == '/' && snprintf(path, PATH_MAX, "%s%s/lap", base, below) < PATH_MAX;
}

/* Makes the directories that it lies in. */
static lap_status_t make_parents(const char *path)
{
    char parent[PATH_MAX];
    snprintf(parent, sizeof(parent), "%s", path);
    for (char *slash = strchr(parent + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(parent, 0700) != 0 && errno != EEXIST && access(parent, X_OK) != 0)
            return lap_error_errno("making the directory '%s'", parent);
        *slash = '/';
    }
    return LAP_OK;
}

/* Opens it, and makes it if `makes`: nobody else can enter it. *fd_p is -1 where there is none. */
static lap_status_t open_dir(const char *path, bool makes, int *fd_p)
{
    *fd_p = -1;
    LAP_TRY(lap_private_dir_open(path, fd_p));
    if (*fd_p < 0 && makes) {
        LAP_TRY(make_parents(path));
        if (lap_private_dir_make(path, fd_p) != LAP_OK) /* or another process has, by now */
            LAP_TRY(lap_private_dir_open(path, fd_p));
    }
    return LAP_OK;
}

/*
 * The file of a key, by the descriptor of its directory: the path of that may lead elsewhere by now. No sentence has
 * this path, but that of name_in.
 */
static void path_in(int dir_fd, const lap_tune_key_t *key, char path[NAME_MAX])
{
    snprintf(path, NAME_MAX, "/proc/self/fd/%d/" FILE_NAME, dir_fd, key->digest);
}

static void name_in(const char *dir, const lap_tune_key_t *key, char name[PATH_MAX + 32])
{
    snprintf(name, PATH_MAX + 32, "%s/" FILE_NAME, dir, key->digest);
}

/* ---- read ---- */

/* Whether the last line is the checksum of the lines before it; *bytes_p: of those. */
static bool is_whole(char *text, size_t *bytes_p)
{
    char *last = strstr(text, "\n" CHECKSUM), *end;
    if (!last)
        return false;
    *bytes_p = (size_t)(last + 1 - text);
    const uint64_t sum = strtoull(last + strlen("\n" CHECKSUM), &end, 16);
    return strcmp(end, "\n") == 0 && sum == lap_digest(LAP_DIGEST_INIT, text, *bytes_p);
}

/* LAP_ERR_INVALID: damaged. The text ends with a zero. */
static lap_status_t read_text(const char *path, char *text)
{
    uint64_t bytes;
    int fd;
    if (lap_file_open(path, &fd, &bytes) != LAP_OK)
        return lap_error(LAP_ERR_INVALID, "it is no regular file, or cannot be read");
    lap_status_t status = LAP_OK;
    if (bytes == 0 || bytes >= BYTES_MOST)
        status = lap_error(LAP_ERR_INVALID, "it has %" PRIu64 " bytes, expected 1 to %d", bytes,
                           BYTES_MOST - 1);
    if (status == LAP_OK)
        status = lap_file_read(fd, path, text, (size_t)bytes, 0);
    text[status == LAP_OK ? bytes : 0] = '\0';
    close(fd);
    return status;
}

static lap_status_t read_entry(const char *path, const lap_tune_key_t *key, int tp, char *text,
                               lap_tune_entry_t *entry)
{
    size_t bytes = 0;
    LAP_TRY(read_text(path, text));
    if (!is_whole(text, &bytes))
        return lap_error(LAP_ERR_INVALID, "its checksum is missing or wrong");
    FILE *file = fmemopen(text, bytes, "r");
    if (!file)
        return lap_error(LAP_ERR_NO_MEMORY, "there is no memory to read it");
    const bool right = lap_tune_entry_read(file, key, tp, entry) && entry->date[0];
    fclose(file);
    return right ? LAP_OK : lap_error(LAP_ERR_INVALID, "it is not what its name says");
}

/* Of rank 0; false: there is none. Whatever is wrong is reported, and ignored. */
static bool look_up(const lap_train_t *train, lap_tune_entry_t *entry)
{
    char dir[PATH_MAX], path[NAME_MAX], name[PATH_MAX + 32];
    const char *command = train->args.command->name;
    lap_tune_key_t key = {.digest = 0};
    int fd = -1;
    if (!find_dir(dir))
        return false;
    lap_status_t status = open_dir(dir, false, &fd);
    if (status == LAP_OK && fd >= 0)
        status = lap_tune_key_init(train, &key);
    if (status != LAP_OK)
        lap_tell(command, "the cache is not used: %s", lap_last_error());
    if (status == LAP_OK && fd >= 0)
        path_in(fd, &key, path);
    const bool there = status == LAP_OK && fd >= 0 && access(path, F_OK) == 0;
    if (there) {
        char *text = lap_alloc(BYTES_MOST, 1);
        status = text ? read_entry(path, &key, train->grid.tp, text, entry)
                      : lap_error(LAP_ERR_NO_MEMORY, "there is no memory to read it");
        lap_free(text);
    }
    if (there && status != LAP_OK) {
        name_in(dir, &key, name);
        lap_tell(command, "%s is damaged and was ignored: %s; lap tune writes it anew", name,
                 lap_last_error());
    }
    if (fd >= 0)
        close(fd);
    return there && status == LAP_OK;
}

lap_status_t lap_tune_find(const lap_train_t *train, lap_group_t *world, lap_tune_entry_t *entry_p)
{
    lap_tune_entry_t entry = {.rounds = 0};
    if (!world) {
        *entry_p = look_up(train, &entry) ? entry : (lap_tune_entry_t){.rounds = 0};
        return LAP_OK;
    }
    if (lap_group_rank(world) == 0 && !look_up(train, &entry))
        entry = (lap_tune_entry_t){.rounds = 0};
    LAP_TRY(lap_group_broadcast(world, &entry, sizeof(entry)));
    *entry_p = entry;
    return LAP_OK;
}

lap_status_t lap_tune_use(lap_train_t *train, lap_group_t *world)
{
    lap_tune_entry_t entry;
    lap_tp_switches_t switches = train->switches;
    if (!switches.automatic || !switches.overlap || !train->cache || !train->overlap ||
        train->rules_path || train->grid.cp > 1)
        return LAP_OK;
    LAP_TRY(lap_tune_find(train, world, &entry));
    if (entry.rounds == 0)
        return LAP_OK;
    snprintf(train->tuned, sizeof(train->tuned), "%s", entry.date);
    train->rules = train->serial = entry.rules;
    switches.automatic = 0;
    LAP_TRY(lap_tp_overlap_switch(&train->rules, &switches));
    switches.overlap = 0;
    return lap_tp_overlap_switch(&train->serial, &switches);
}

/* ---- written ---- */

static lap_status_t write_text(const char *path, const char *name, const lap_tune_key_t *key,
                               const lap_tune_entry_t *entry)
{
    lap_output_t output;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return lap_error(LAP_ERR_NO_MEMORY, "there is no memory for it");
    lap_tune_entry_write(file, key, entry);
    const bool whole = fclose(file) == 0;
    lap_status_t status = whole ? lap_output_open_as("what was found", name, path, &output)
                                : lap_error(LAP_ERR_NO_MEMORY, "there is no memory for it");
    if (status == LAP_OK) {
        fwrite(text, 1, bytes, output.file);
        fprintf(output.file, CHECKSUM "%016" PRIx64 "\n", lap_digest(LAP_DIGEST_INIT, text, bytes));
        status = lap_output_close(&output, LAP_OK);
    }
    free(text); /* of open_memstream */
    return status;
}

void lap_tune_store(const lap_train_t *train, const lap_tune_entry_t *entry)
{
    char dir[PATH_MAX], path[NAME_MAX], name[PATH_MAX + 32];
    lap_tune_key_t key = {.digest = 0};
    int fd = -1;
    lap_status_t status =
        find_dir(dir) ? open_dir(dir, true, &fd)
                      : lap_error(LAP_ERR_SYSTEM, "neither XDG_CACHE_HOME nor HOME is a path");
    if (status == LAP_OK && fd < 0)
        status = lap_error(LAP_ERR_SYSTEM, "the directory '%s' was removed meanwhile", dir);
    if (status == LAP_OK)
        status = lap_tune_key_init(train, &key);
    if (status == LAP_OK) {
        path_in(fd, &key, path);
        name_in(dir, &key, name);
        status = write_text(path, name, &key, entry);
    }
    if (status != LAP_OK)
        lap_tell(train->args.command->name, "the cache does not have the result: %s",
                 lap_last_error());
    if (fd >= 0)
        close(fd);
}

/* ---- emptied ---- */

/* Whether a file is one of ours, or the beginning of one that was not ended. */
static bool is_ours(const char *name)
{
    const char *suffix = strstr(name, SUFFIX);
    return suffix && strspn(name, ".0123456789abcdef") >= (size_t)(suffix - name);
}

lap_status_t lap_tune_clear(char *path, size_t bytes, int *removed_p)
{
    char dir[PATH_MAX];
    int fd = -1;
    *removed_p = 0;
    if (!find_dir(dir))
        return lap_error(LAP_ERR_SYSTEM, "neither XDG_CACHE_HOME nor HOME is a path");
    snprintf(path, bytes, "%s", dir);
    LAP_TRY(lap_private_dir_open(dir, &fd));
    if (fd < 0)
        return LAP_OK;
    DIR *list = fdopendir(fd);
    if (!list) {
        const lap_status_t status = lap_error_errno("reading the directory '%s'", dir);
        close(fd);
        return status;
    }
    lap_status_t status = LAP_OK;
    for (const struct dirent *file = readdir(list); file; file = readdir(list)) {
        if (!is_ours(file->d_name))
            continue;
        if (unlinkat(fd, file->d_name, 0) == 0)
            ++*removed_p;
        else if (status == LAP_OK)
            status = lap_error_errno("removing '%s/%s'", dir, file->d_name);
    }
    closedir(list);
    return status;
}
