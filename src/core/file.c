/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of files, and small files of text: see file.h. */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

lap_status_t lap_file_read(int fd, const char *path, void *out, size_t bytes, uint64_t at)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return lap_error_errno("cannot read '%s' at byte %" PRIu64, path, at + done);
        if (got == 0)
            return lap_error(LAP_ERR_SYSTEM,
                             "'%s' ends at byte %" PRIu64 ", expected %zu bytes more: it was cut "
                             "while it was in use",
                             path, at + done, bytes - done);
        done += (size_t)got;
    }
    return LAP_OK;
}

lap_status_t lap_file_write(int fd, const char *path, const void *from, size_t bytes, uint64_t at)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t put = pwrite(fd, (const char *)from + done, bytes - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return lap_error_errno("cannot write '%s' at byte %" PRIu64, path, at + done);
        done += (size_t)put;
    }
    return LAP_OK;
}

lap_status_t lap_file_open(const char *path, int *fd_p, uint64_t *bytes_p)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return lap_error_errno("cannot open '%s'", path);
    lap_status_t status = LAP_OK;
    if (fstat(fd, &about) != 0)
        status = lap_error_errno("cannot look at '%s'", path);
    else if (!S_ISREG(about.st_mode))
        status = lap_error(LAP_ERR_INVALID, "'%s' is %snot a regular file, expected one", path,
                           S_ISDIR(about.st_mode) ? "a directory, " : "");
    if (status != LAP_OK) {
        close(fd);
        return status;
    }
    *fd_p = fd;
    *bytes_p = (uint64_t)about.st_size;
    return LAP_OK;
}

bool lap_file_read_text(const char *path, char *text, size_t bytes)
{
    size_t done = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && done < bytes - 1) {
        const ssize_t got = read(fd, text + done, bytes - 1 - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    if (fd >= 0)
        close(fd);
    text[done] = '\0';
    return done > 0;
}
