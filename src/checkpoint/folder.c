/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of checkpoints: made with room for all that will be written, listed, and removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "core/file.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/join.h"

#define PREFIX "step-"

lap_status_t lap_ckpt_path(const char *dir, uint64_t step, const char *suffix, char path[PATH_MAX])
{
    /* With room for the names of files in it. */
    if (snprintf(path, PATH_MAX, "%s/" PREFIX "%08" PRIu64 "%s", dir, step, suffix) < PATH_MAX - 64)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "the path of the checkpoint is too long: '%.64s...'", dir);
}

static void name_file(char path[PATH_MAX], const char *dir, const char *name)
{
    if (snprintf(path, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        path[0] = '\0';
}

/* ---- made ---- */

/*
 * Gives a file all blocks that it will need, so that a disk without them fails before training has gone
 * on. A file system that cannot only gets the size.
 */
static lap_status_t reserve(int fd, const char *path, uint64_t bytes)
{
    struct rlimit limit;
    int error = 0;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur)
        error = EFBIG; /* beyond it there is a signal, which would end the program */
    else if (fallocate(fd, 0, 0, (off_t)bytes) != 0)
        error = errno;
    if (error == EOPNOTSUPP)
        error = ftruncate(fd, (off_t)bytes) == 0 ? 0 : errno;
    if (error == 0)
        return LAP_OK;
    errno = error;
    return lap_error_errno("cannot write the %" PRIu64 " bytes of '%s'", bytes, path);
}

static lap_status_t make_file(const char *dir, const lap_ckpt_file_t *file)
{
    char path[PATH_MAX];
    name_file(path, dir, file->name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return lap_error_errno("cannot write '%s'", path);
    lap_status_t status = reserve(fd, path, file->bytes);
    if (status == LAP_OK)
        status = lap_file_write(fd, path, file->header, file->header_bytes, 0);
    close(fd);
    return status;
}

/* For programs that know the model by it; we do not read it. */
static lap_status_t make_config(const char *dir, const char *config)
{
    char path[PATH_MAX];
    if (!*config)
        return LAP_OK;
    name_file(path, dir, LAP_CKPT_CONFIG);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return lap_error_errno("cannot write '%s'", path);
    const lap_status_t status = lap_file_write(fd, path, config, strlen(config), 0);
    close(fd);
    return status;
}

/* Whether it has no manifest. One that cannot be looked at may be there. */
static bool is_unfinished(const char *path)
{
    char manifest[PATH_MAX];
    struct stat about;
    name_file(manifest, path, LAP_CKPT_MANIFEST);
    return lstat(manifest, &about) != 0 && errno == ENOENT;
}

/* Whether it was read, and is not what we have written. Whatever else fails says nothing of what is written there. */
static bool is_damaged(const char *path, lap_status_t read)
{
    char manifest[PATH_MAX];
    struct stat about;
    name_file(manifest, path, LAP_CKPT_MANIFEST);
    return read == LAP_ERR_INVALID && stat(manifest, &about) == 0 && S_ISREG(about.st_mode);
}

/* A checkpoint that cannot be read may be whole to others: another user, a newer version, a disk that is mended. */
static lap_status_t refuse_unread(const char *path, lap_status_t status)
{
    char why[LAP_ERROR_TEXT];
    snprintf(why, sizeof(why), "%s", lap_last_error());
    return lap_error(status == LAP_ERR_UNSUPPORTED ? LAP_ERR_INVALID : status,
                     "'%s' stays, as it cannot be read: %.700s; expected to replace a checkpoint "
                     "that can be",
                     path, why);
}

/*
 * What is there already stays, under another name, until the new one is whole. Only what was not finished goes at once. One
 * that is damaged takes no place of an older one, which may be whole.
 */
static lap_status_t make_way(const char *path)
{
    lap_ckpt_manifest_t unused;
    char old[PATH_MAX + sizeof(LAP_CKPT_OLD)];
    struct stat about;
    if (lstat(path, &about) != 0)
        return LAP_OK;
    if (is_unfinished(path)) {
        lap_ckpt_folder_remove(path);
        return LAP_OK;
    }
    const lap_status_t status = lap_ckpt_manifest_read(path, &unused);
    if (status != LAP_OK && !is_damaged(path, status))
        return refuse_unread(path, status);
    snprintf(old, sizeof(old), "%s" LAP_CKPT_OLD, path);
    if (status == LAP_OK || is_unfinished(old))
        lap_ckpt_folder_remove(old);
    return rename(path, old) == 0 ? LAP_OK
                                  : lap_error_errno("cannot rename '%s' to '%s'", path, old);
}

static lap_status_t fill(const char *path, const lap_ckpt_layout_t *layout)
{
    if (mkdir(path, 0777) != 0)
        return lap_error_errno("cannot make the folder '%s'", path);
    for (size_t f = 0; f < layout->nfiles; f++)
        LAP_TRY(make_file(path, &layout->files[f]));
    return make_config(path, layout->config);
}

lap_status_t lap_ckpt_folder_make(const char *dir, const char *path,
                                  const lap_ckpt_layout_t *layout)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return lap_error_errno("cannot make the folder '%s'", dir);
    LAP_TRY(make_way(path)); /* what it refuses to move is not ours to undo */
    const lap_status_t status = fill(path, layout);
    if (status != LAP_OK) {
        lap_saved_error_t saved;
        lap_error_save(&saved);
        lap_ckpt_folder_undo(path);
        lap_error_restore(&saved);
    }
    return status;
}

lap_status_t lap_ckpt_folder_lock(const char *dir, int *lock_p)
{
    char probe[PATH_MAX];
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return lap_error_errno("cannot make the folder '%s'", dir);
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return lap_error_errno("cannot open the folder '%s'", dir);
    /* A file system without locks has none to ask. */
    lap_status_t status = LAP_OK;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        status =
            lap_error(LAP_ERR_INVALID,
                      "another training saves into the folder '%s'; expected one of its own", dir);
    if (status == LAP_OK && snprintf(probe, sizeof(probe), "%s/.lap-XXXXXX", dir) >= PATH_MAX)
        status = lap_error(LAP_ERR_INVALID, "the path of the folder is too long: '%.64s...'", dir);
    if (status == LAP_OK && (!mkdtemp(probe) || rmdir(probe) != 0))
        status = lap_error_errno("cannot make folders in '%s'", dir);
    if (status == LAP_OK)
        *lock_p = fd;
    else
        close(fd);
    return status;
}

void lap_ckpt_folder_remove(const char *path)
{
    static const char *const names[] = {LAP_CKPT_MANIFEST, LAP_CKPT_MODEL_FILE,
                                        LAP_CKPT_OPTIMIZER_FILE, LAP_CKPT_FP8_FILE,
                                        LAP_CKPT_CONFIG};
    char file[PATH_MAX];
    /* The manifest goes first: what is left is no checkpoint. */
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        name_file(file, path, names[i]);
        unlink(file);
    }
    rmdir(path);
}

void lap_ckpt_folder_undo(const char *path)
{
    char old[PATH_MAX + sizeof(LAP_CKPT_OLD)];
    lap_ckpt_folder_remove(path);
    snprintf(old, sizeof(old), "%s" LAP_CKPT_OLD, path);
    (void)rename(old, path);
}

lap_status_t lap_ckpt_folder_sync(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return lap_error_errno("cannot open the folder '%s'", path);
    /* Some file systems have no such thing for folders. */
    const bool synced = fsync(fd) == 0 || errno == EINVAL;
    const lap_status_t status =
        synced ? LAP_OK : lap_error_errno("cannot write the folder '%s'", path);
    close(fd);
    return status;
}

/* ---- listed ---- */

/* step-N, or step-N.old. */
static bool parse_name(const char *name, lap_ckpt_name_t *name_p)
{
    const size_t prefix = strlen(PREFIX);
    const size_t digits =
        strncmp(name, PREFIX, prefix) == 0 ? strspn(name + prefix, "0123456789") : 0;
    if (digits < 8 || digits > 19)
        return false;
    const char *end = name + prefix + digits;
    if (*end != '\0' && strcmp(end, LAP_CKPT_OLD) != 0)
        return false;
    snprintf(name_p->name, sizeof(name_p->name), "%s", name);
    name_p->step = strtoull(name + prefix, NULL, 10);
    return true;
}

/* The newest first; of the same step what is not old. */
static int compare(const void *a, const void *b)
{
    const lap_ckpt_name_t *left = a, *right = b;
    if (left->step != right->step)
        return left->step > right->step ? -1 : 1;
    return strcmp(left->name, right->name);
}

lap_status_t lap_ckpt_folder_list(const char *dir, lap_ckpt_name_t **names_p, size_t *count_p)
{
    lap_ckpt_name_t *names = NULL, name;
    uint32_t count = 0;
    size_t room = 0;
    DIR *folder = opendir(dir);
    if (!folder)
        return lap_error_errno("cannot open the folder '%s'", dir);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (!parse_name(entry->d_name, &name))
            continue;
        lap_ckpt_name_t *grown = lap_grow(names, count, &room, sizeof(*names));
        if (!grown) {
            lap_free(names);
            closedir(folder);
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for the checkpoints of '%s'", dir);
        }
        names = grown;
        names[count++] = name;
    }
    closedir(folder);
    if (count > 0)
        qsort(names, count, sizeof(*names), compare);
    *names_p = names;
    *count_p = count;
    return LAP_OK;
}

size_t lap_ckpt_folder_names(const char *dir, uint64_t least, uint64_t most, char *text,
                             size_t room)
{
    lap_ckpt_name_t *names = NULL;
    lap_ckpt_manifest_t unused;
    size_t count = 0, found = 0;
    char path[PATH_MAX];
    text[0] = '\0';
    if (lap_ckpt_folder_list(dir, &names, &count) != LAP_OK)
        return 0;
    for (size_t i = 0; i < count; i++) {
        name_file(path, dir, names[i].name);
        if (names[i].step < least || names[i].step > most ||
            lap_ckpt_manifest_read(path, &unused) != LAP_OK)
            continue;
        lap_join(text, room, names[i].name);
        found++;
    }
    lap_free(names);
    return found;
}

bool lap_ckpt_is_safetensors(const char *name)
{
    static const char end[] = ".safetensors";
    const size_t length = strlen(name);
    return length > strlen(end) && strcmp(name + length - strlen(end), end) == 0;
}

/* Whether a folder has the name of a checkpoint's, whatever way leads to it. */
static bool is_named(const char *dir)
{
    lap_ckpt_name_t unused;
    char *path = realpath(dir, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    const bool named = slash && parse_name(slash + 1, &unused);
    free(path);
    return named;
}

lap_status_t lap_ckpt_folder_not_remains(const char *dir)
{
    static const char *const names[] = {LAP_CKPT_OPTIMIZER_FILE, LAP_CKPT_FP8_FILE};
    const char *sign = is_named(dir) ? "the name of a checkpoint" : NULL;
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        name_file(path, dir, names[i]);
        if (access(path, F_OK) == 0)
            sign = names[i];
    }
    if (!sign)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "'%s' has %s and no " LAP_CKPT_MANIFEST
                     ": a checkpoint that was not finished, or has lost it; expected a "
                     "whole one, or '%s/" LAP_CKPT_MODEL_FILE "' for its weights alone",
                     dir, sign, dir);
}

bool lap_ckpt_folder_has_any(const char *dir)
{
    bool found = false;
    char path[PATH_MAX], inner[PATH_MAX];
    lap_ckpt_name_t unused;
    DIR *folder = opendir(dir);
    if (!folder)
        return errno != ENOENT;
    for (const struct dirent *entry; !found && (entry = readdir(folder)) != NULL;) {
        const char *name = entry->d_name;
        found = strcmp(name, LAP_CKPT_MANIFEST) == 0 || lap_ckpt_is_safetensors(name);
        if (found || !parse_name(name, &unused))
            continue;
        name_file(path, dir, name);
        name_file(inner, path, LAP_CKPT_MANIFEST);
        /* One that cannot be looked at may be whole. */
        found = access(inner, F_OK) == 0 || errno != ENOENT;
    }
    closedir(folder);
    return found;
}
