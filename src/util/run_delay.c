/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/thread-self/schedstat: "time on a core, time without one, turns", in nanoseconds. */
#include "util/run_delay.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int lap_run_delay_open(void)
{
    return open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

uint64_t lap_run_delay_read(int fd)
{
    char text[96];
    const ssize_t bytes = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
    if (bytes <= 0)
        return 0;
    text[bytes] = '\0';
    char *second;
    (void)strtoull(text, &second, 10);
    return strtoull(second, NULL, 10);
}

uint64_t lap_run_delay_ns(void)
{
    const int fd = lap_run_delay_open();
    const uint64_t ns = lap_run_delay_read(fd);
    if (fd >= 0)
        close(fd);
    return ns;
}
