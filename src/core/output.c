/* SPDX-License-Identifier: Apache-2.0 */
/* Files that we write where the user says: see output.h. */
#include "core/output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MAX 40 /* as in the kernel */

static lap_status_t refuse(const lap_output_t *output, int error)
{
    errno = error;
    return lap_error_errno("cannot write %s %s", output->what, output->path);
}

/* Puts where a link leads to in its place: relative to its directory, unless it is absolute. */
static bool replace_by_target(char place[PATH_MAX], const char *target)
{
    char *slash = strrchr(place, '/');
    const size_t folder = target[0] == '/' || !slash ? 0 : (size_t)(slash + 1 - place);
    if (folder + strlen(target) >= PATH_MAX)
        return false;
    memcpy(place + folder, target, strlen(target) + 1);
    return true;
}

/* Follows the links that the path ends in. Those on the way to its directory are the kernel's. */
static lap_status_t follow_links(lap_output_t *output)
{
    struct stat about;
    char target[PATH_MAX];
    for (int i = 0; i < LINKS_MAX; i++) {
        /* It is opened, so that its owner and its target are of the same link. */
        const int fd = open(output->place, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return errno == ENOENT ? LAP_OK : refuse(output, errno);
        ssize_t length = fstat(fd, &about) != 0   ? -1
                         : S_ISLNK(about.st_mode) ? readlinkat(fd, "", target, sizeof(target))
                                                  : 0;
        const int error = errno;
        close(fd);
        if (length == 0)
            return LAP_OK;
        if (length < 0)
            return refuse(output, error);
        if (about.st_uid != geteuid() && about.st_uid != 0)
            return lap_error(LAP_ERR_SYSTEM,
                             "cannot write %s %s: '%s' is a symbolic link of user %lu, expected a "
                             "link of this user or of root",
                             output->what, output->path, output->place,
                             (unsigned long)about.st_uid);
        if (length == (ssize_t)sizeof(target))
            return refuse(output, ENAMETOOLONG);
        target[length] = '\0';
        if (!replace_by_target(output->place, target))
            return refuse(output, ENAMETOOLONG);
    }
    return refuse(output, ELOOP);
}

/* Whether the kernel will let us replace a file: not another user's in a sticky directory. */
static bool may_replace(const lap_output_t *output, const struct stat *old)
{
    char parent[PATH_MAX];
    struct stat about;
    memcpy(parent, output->place, sizeof(parent));
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = '\0';
    if (stat(slash ? parent : ".", &about) != 0 || !(about.st_mode & S_ISVTX))
        return true;
    return geteuid() == 0 || old->st_uid == geteuid() || about.st_uid == geteuid();
}

/* The new file has the mode and the group of the old one, and its owner, if we are root. */
static void take_mode(int fd, const struct stat *old)
{
    mode_t mode = old->st_mode & 0777;
    const uid_t owner = geteuid() == 0 ? old->st_uid : (uid_t)-1;
    if (fchown(fd, owner, old->st_gid) != 0)
        mode &= ~(mode_t)070; /* these were for another group */
    fchmod(fd, mode);
}

/* Opens a new file in the directory of the place. */
static lap_status_t open_new(lap_output_t *output, const struct stat *old)
{
    int fd = -1, error = EEXIST;
    for (unsigned i = 0; i < 100 && error == EEXIST; i++) {
        const int length = snprintf(output->temporary, sizeof(output->temporary), "%s.%d-%u.tmp",
                                    output->place, (int)gettid(), i);
        if (length >= (int)sizeof(output->temporary))
            return refuse(output, ENAMETOOLONG);
        fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, old ? 0600 : 0666);
        error = fd < 0 ? errno : 0;
    }
    if (fd < 0)
        return refuse(output, error);
    if (old)
        take_mode(fd, old);
    output->fd = fd;
    return LAP_OK;
}

/* The first failure is the one that the sentence is about: what follows may be its consequence. */
static void note_error(lap_output_t *output)
{
    if (output->error == 0)
        output->error = errno;
}

/* A stream only reports that a write failed; so the writes of ours are made here. */
static ssize_t write_all(void *cookie, const char *data, size_t bytes)
{
    lap_output_t *output = cookie;
    size_t written = 0;
    while (written < bytes) {
        const ssize_t count = write(output->fd, data + written, bytes - written);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0) {
            errno = count < 0 ? errno : ENOSPC;
            note_error(output);
            break;
        }
        written += (size_t)count;
    }
    return (ssize_t)written;
}

static int seek_to(void *cookie, off64_t *offset, int whence)
{
    lap_output_t *output = cookie;
    *offset = lseek(output->fd, *offset, whence);
    return *offset < 0 ? -1 : 0;
}

lap_status_t lap_output_open(const char *what, const char *path, lap_output_t *output_p)
{
    return lap_output_open_as(what, path, path, output_p);
}

lap_status_t lap_output_open_as(const char *what, const char *name, const char *path,
                                lap_output_t *output_p)
{
    lap_output_t *output = output_p;
    struct stat about;
    output->error = 0;
    output->what = what;
    output->path = name;
    /* Else it is the folder that a file beside it, such as the new one, could be made in. */
    if (!*path)
        return lap_error(LAP_ERR_INVALID, "the path is empty: expected the file to write");
    if (strlen(path) >= sizeof(output->place))
        return refuse(output, ENAMETOOLONG);
    memcpy(output->place, path, strlen(path) + 1);
    /* A device or a folder is refused: the renaming at the end would replace it. */
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return lap_error(LAP_ERR_SYSTEM, "cannot write %s %s: it is not a regular file", what,
                         name);
    LAP_TRY(follow_links(output));
    const bool there = lstat(output->place, &about) == 0;
    if (there && faccessat(AT_FDCWD, output->place, W_OK, AT_EACCESS) != 0)
        return refuse(output, errno);
    if (there && !may_replace(output, &about))
        return refuse(output, EPERM);
    LAP_TRY(open_new(output, there ? &about : NULL));
    output->file =
        fopencookie(output, "w", (cookie_io_functions_t){.write = write_all, .seek = seek_to});
    if (output->file)
        return LAP_OK;
    const lap_status_t status = refuse(output, errno);
    close(output->fd);
    unlink(output->temporary);
    return status;
}

lap_status_t lap_output_close(lap_output_t *output, lap_status_t status)
{
    /*
     * What the stream still holds is written here; some file systems report a full disk at last.
     * The stream may have failed before it wrote, and does not say why.
     */
    const bool failed = ferror(output->file);
    errno = 0;
    if (fclose(output->file) != 0 || failed) {
        errno = errno ? errno : EIO;
        note_error(output);
    }
    if (close(output->fd) != 0)
        note_error(output);
    if (status == LAP_OK && (output->error != 0 || rename(output->temporary, output->place) != 0))
        status = refuse(output, output->error ? output->error : errno);
    if (status != LAP_OK)
        unlink(output->temporary);
    output->file = NULL;
    return status;
}

lap_status_t lap_output_check(const char *what, const char *path)
{
    lap_output_t output;
    LAP_TRY(lap_output_open(what, path, &output));
    lap_output_close(&output, LAP_IN_PROGRESS); /* it stays as it is */
    return LAP_OK;
}

static bool are_one(const char *path, const char *other)
{
    struct stat its, others;
    return stat(path, &its) == 0 && stat(other, &others) == 0 && its.st_dev == others.st_dev &&
           its.st_ino == others.st_ino;
}

/* Writes the folder of a file that is not there, and returns its name in it. */
static const char *split(const char *path, char folder[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    snprintf(folder, PATH_MAX, "%.*s", slash ? (int)(name - path) : 1, slash ? path : ".");
    return name;
}

bool lap_output_same(const char *path, const char *other)
{
    char folder[PATH_MAX], others_folder[PATH_MAX];
    struct stat about;
    if (stat(path, &about) == 0 || stat(other, &about) == 0)
        return are_one(path, other);
    const char *name = split(path, folder), *others_name = split(other, others_folder);
    return strcmp(name, others_name) == 0 && are_one(folder, others_folder);
}
