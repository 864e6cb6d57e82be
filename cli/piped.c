/* SPDX-License-Identifier: Apache-2.0 */
/* Text from standard input or from a pipe: see piped.h. */
#include "piped.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/environment.h"

#define MOST_BYTES 65536 /* a variable of the environment may have twice as many */
#define PATIENCE_MS 60000

static bool is_stdin(const char *path)
{
    return strcmp(path, "-") == 0;
}

bool lap_piped_is(const char *path)
{
    static const char opened[] =
        "/dev/fd/"; /* which the process before the ranks may alone have had */
    struct stat about;
    if (is_stdin(path))
        return true;
    if (stat(path, &about) != 0)
        return lap_environment_launched() && strncmp(path, opened, strlen(opened)) == 0;
    return S_ISFIFO(about.st_mode);
}

const char *lap_piped_name(const char *path)
{
    return is_stdin(path) ? "standard input" : path;
}

/* Reads to the end; a pipe that nobody opens for writing has none. */
static lap_status_t read_all(int fd, const char *path, const char *expected, char *text)
{
    struct pollfd waits = {.fd = fd, .events = POLLIN};
    const char *name = lap_piped_name(path);
    size_t bytes = 0;
    while (bytes <= MOST_BYTES) {
        if (poll(&waits, 1, is_stdin(path) ? -1 : PATIENCE_MS) == 0)
            return lap_error(LAP_ERR_INVALID, "nothing came through %s for %d s, expected %s", name,
                             PATIENCE_MS / 1000, expected);
        const ssize_t count = read(fd, text + bytes, MOST_BYTES + 1 - bytes);
        if (count < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (count < 0)
            return lap_error_errno("%s cannot be read", name);
        if (count == 0)
            break;
        bytes += (size_t)count;
    }
    text[bytes] = '\0';
    if (bytes > MOST_BYTES)
        return lap_error(LAP_ERR_INVALID, "%s has more than %d bytes, expected %s", name,
                         MOST_BYTES, expected);
    if (strlen(text) < bytes)
        return lap_error(LAP_ERR_INVALID, "%s has a zero byte, expected %s", name, expected);
    return LAP_OK;
}

lap_status_t lap_piped_read(const char *path, const char *variable, const char *expected,
                            const char **text_p)
{
    static char text[MOST_BYTES + 2];
    const bool launched = lap_environment_launched();
    *text_p = launched ? getenv(variable) : NULL;
    if (*text_p)
        return LAP_OK;
    if (launched)
        return lap_error(LAP_ERR_INVALID,
                         "%s is %s, which ranks of a launcher cannot all read; expected a file",
                         path, is_stdin(path) ? "standard input" : "a pipe");
    const int fd = is_stdin(path) ? STDIN_FILENO : open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return lap_error_errno("cannot open '%s'", path);
    const lap_status_t status = read_all(fd, path, expected, text);
    if (!is_stdin(path))
        close(fd);
    LAP_TRY(status);
    if (setenv(variable, text, 1) != 0)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to pass %zu bytes of %s on", strlen(text),
                         path);
    *text_p = getenv(variable);
    return LAP_OK;
}
