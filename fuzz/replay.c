/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay FOLDER: gives the parser every file of a folder, as libFuzzer would, where there is no
 * libFuzzer. What the parser prints is of no interest. A promise that does not hold aborts.
 */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

#define MOST 65536 /* bytes of a file */

static size_t read_file(int folder, const char *name, uint8_t *data)
{
    const int fd = openat(folder, name, O_RDONLY);
    HOLDS(fd >= 0);
    const ssize_t bytes = read(fd, data, MOST);
    HOLDS(bytes >= 0);
    close(fd);
    return (size_t)bytes;
}

int main(int argc, char **argv)
{
    static uint8_t data[MOST];
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    FILE *out = fdopen(dup(STDOUT_FILENO), "w");
    if (!folder || !out || !freopen("/dev/null", "w", stdout) ||
        !freopen("/dev/null", "r", stdin)) {
        fprintf(stderr, "Usage: %s FOLDER: a folder of files to parse, which can be read\n",
                argv[0]);
        return 2;
    }
    size_t count = 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        const size_t bytes = read_file(dirfd(folder), entry->d_name, data);
        fprintf(out, "# %s\n", entry->d_name);
        fflush(out); /* the last line names the file that ended the program */
        LLVMFuzzerTestOneInput(data, bytes);
        count++;
    }
    closedir(folder);
    fprintf(out, "%s 1 - %zu files were parsed\n1..1\n", count > 0 ? "ok" : "not ok", count);
    return count == 0 || fclose(out) != 0;
}
