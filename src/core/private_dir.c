/* SPDX-License-Identifier: Apache-2.0 */
/* Directories that nobody else can enter: see private_dir.h. */
#include "core/private_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"

#define SOCKET "s" /* its name: short, since a path in a socket's address is */

lap_status_t lap_private_dir_name(const char *prefix, size_t room, char dir[LAP_DIR_BYTES])
{
    uint64_t id;
    const char *base;
    char name[48];
    if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id))
        return lap_error_errno("asking for random numbers");
    const int length = snprintf(name, sizeof(name), "/%s%016llx", prefix, (unsigned long long)id);
    LAP_TRY(lap_environment_base((size_t)length + room, &base));
    snprintf(dir, LAP_DIR_BYTES, "%s%s", base, name);
    return LAP_OK;
}

/* Says what is wrong with what is at a path; `error` is why it could not be opened. */
static lap_status_t refuse(const char *dir, int error)
{
    struct stat about;
    if (lstat(dir, &about) != 0) {
        errno = error;
        return lap_error_errno("opening the directory '%s'", dir);
    }
    if (S_ISLNK(about.st_mode))
        return lap_error(LAP_ERR_SYSTEM, "'%s' is a symbolic link, expected a directory", dir);
    if (!S_ISDIR(about.st_mode))
        return lap_error(LAP_ERR_SYSTEM, "'%s' is not a directory", dir);
    if (about.st_uid != geteuid())
        return lap_error(LAP_ERR_SYSTEM,
                         "the directory '%s' belongs to user %lu, expected %lu: XDG_RUNTIME_DIR, "
                         "TMPDIR or XDG_CACHE_HOME may name a directory of your own",
                         dir, (unsigned long)about.st_uid, (unsigned long)geteuid());
    if (about.st_mode & 077)
        return lap_error(LAP_ERR_SYSTEM, "the directory '%s' has mode %03o, expected 700", dir,
                         (unsigned)(about.st_mode & 0777));
    errno = error;
    return lap_error_errno("opening the directory '%s'", dir);
}

int lap_private_dir_look(const char *dir)
{
    struct stat about;
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &about) == 0 && about.st_uid == geteuid() && (about.st_mode & 077) == 0)
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

lap_status_t lap_private_dir_open(const char *dir, int *fd_p)
{
    const int fd = lap_private_dir_look(dir);
    if (fd < 0 && errno != ENOENT)
        return refuse(dir, errno);
    *fd_p = fd;
    return LAP_OK;
}

lap_status_t lap_private_dir_make(const char *dir, int *fd_p)
{
    int fd = -1;
    if (mkdir(dir, 0700) != 0)
        return lap_error_errno("making the directory '%s'", dir);
    lap_status_t status = lap_private_dir_open(dir, &fd);
    if (status == LAP_OK && fd < 0)
        status = lap_error(LAP_ERR_SYSTEM, "the directory '%s' was removed right after it was made",
                           dir);
    if (status != LAP_OK)
        rmdir(dir);
    else
        *fd_p = fd;
    return status;
}

lap_status_t lap_rendezvous_dir_make(char dir[LAP_DIR_BYTES], int *fd_p)
{
    lap_status_t status = lap_private_dir_name("lap-", 1, dir);
    *fd_p = -1;
    if (status == LAP_OK)
        status = lap_private_dir_make(dir, fd_p);
    if (status != LAP_OK)
        dir[0] = '\0';
    return status;
}

void lap_rendezvous_dir_remove(const char *dir, int fd)
{
    if (fd < 0)
        return;
    lap_private_dir_remove_socket(fd);
    lap_private_dir_remove(dir, fd);
    close(fd);
}

struct sockaddr_un lap_private_dir_socket(int fd)
{
    /* There is no connectat; the kernel follows this link to the open directory itself. */
    static const char before[] = "/proc/self/fd/", after[] = "/" SOCKET;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char digits[16];
    size_t first = sizeof(digits), length = sizeof(before) - 1;
    do
        digits[--first] = (char)('0' + fd % 10);
    while ((fd /= 10) > 0);
    memcpy(address.sun_path, before, length);
    memcpy(address.sun_path + length, digits + first, sizeof(digits) - first);
    memcpy(address.sun_path + length + sizeof(digits) - first, after, sizeof(after));
    return address;
}

int lap_private_dir_open_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

bool lap_private_dir_has_socket(int fd)
{
    struct stat about;
    return fstatat(fd, SOCKET, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(about.st_mode) &&
           about.st_uid == geteuid();
}

bool lap_private_dir_remove_socket(int fd)
{
    return lap_private_dir_has_socket(fd) && unlinkat(fd, SOCKET, 0) == 0;
}

void lap_private_dir_remove(const char *dir, int fd)
{
    struct stat named, open;
    /* A directory takes a name of ours only if it is ours, and rmdir takes only an empty one. */
    if (lstat(dir, &named) == 0 && fstat(fd, &open) == 0 && named.st_dev == open.st_dev &&
        named.st_ino == open.st_ino)
        rmdir(dir);
}
