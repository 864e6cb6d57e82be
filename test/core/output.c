/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output files: one that could not be written whole is not put in its place, and the sentence says
 * why.
 */
#include "core/output.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tap.h"

enum { LIMIT = 4096 };

/* A file may have so many bytes and no more; afterwards, as many as before. */
static struct rlimit limit_files(rlim_t bytes)
{
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    const struct rlimit limit = {.rlim_cur = bytes, .rlim_max = old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    return old;
}

/* An early error is reported with its own sentence, not with that of the last one. */
static void test_late(const char *path)
{
    lap_output_t output;
    tap_success(lap_output_open("the list", path, &output), "a file is opened");
    setvbuf(output.file, NULL, _IONBF, 0); /* nothing is left for the end to write */
    const struct rlimit old = limit_files(LIMIT);
    for (int i = 0; i < LIMIT; i++)
        fputs("four", output.file);
    setrlimit(RLIMIT_FSIZE, &old);
    errno = ENOENT;
    const lap_status_t status = lap_output_close(&output, LAP_OK);
    tap_failure(status, LAP_ERR_SYSTEM, "cannot write the list", path, strerror(EFBIG), NULL);
    tap_ok(access(path, F_OK) != 0, "there is no such file");
}

/* What goes wrong at the end is reported. */
static void test_end(const char *path)
{
    lap_output_t output;
    tap_success(lap_output_open("the list", path, &output), "a file is opened");
    const struct rlimit old = limit_files(0);
    fputs("four", output.file);
    const lap_status_t status = lap_output_close(&output, LAP_OK);
    setrlimit(RLIMIT_FSIZE, &old);
    tap_failure(status, LAP_ERR_SYSTEM, "cannot write the list", path, strerror(EFBIG), NULL);
    tap_ok(access(path, F_OK) != 0, "there is no such file");
}

static void test_whole(const char *path)
{
    lap_output_t output;
    char text[8] = "";
    tap_success(lap_output_open("the list", path, &output), "a file is opened");
    fputs("four", output.file);
    tap_success(lap_output_close(&output, LAP_OK), "and closed");
    FILE *file = fopen(path, "r");
    tap_ok(file && fgets(text, sizeof(text), file) && strcmp(text, "four") == 0,
           "it has what was written: '%s'", text);
    if (file)
        fclose(file);
}

/* The new file would be in the folder of the program, and its renaming fail at the end. */
static void test_empty(void)
{
    lap_output_t output;
    tap_failure(lap_output_open("the list", "", &output), LAP_ERR_INVALID,
                "the path is empty: expected the file to write", NULL);
    tap_failure(lap_output_check("the list", ""), LAP_ERR_INVALID, "the path is empty", NULL);
}

int main(void)
{
    char dir[] = "/tmp/lap-output-XXXXXX", path[64];
    signal(SIGXFSZ, SIG_IGN);
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof(path), "%s/list", dir);
    test_late(path);
    test_end(path);
    test_whole(path);
    test_empty();
    unlink(path);
    tap_ok(rmdir(dir) == 0, "nothing else is left in %s", dir);
    return tap_done();
}
