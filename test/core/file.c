/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of text: whole, cut to the caller's memory, empty, and none. */
#include "core/file.h"

#include <string.h>

#include "tap.h"

static void test_text(void)
{
    char text[64], start[5];
    memset(text, 'x', sizeof(text));
    memset(start, 'x', sizeof(start));
    tap_ok(lap_file_read_text("/proc/sys/kernel/ostype", text, sizeof(text)) &&
               strcmp(text, "Linux\n") == 0,
           "a file of /proc is read as a string");
    tap_ok(lap_file_read_text("/proc/sys/kernel/ostype", start, sizeof(start)) &&
               strcmp(start, "Linu") == 0,
           "of a longer file its start, with the end of a string");
    tap_ok(!lap_file_read_text("/dev/null", text, sizeof(text)) && text[0] == '\0',
           "an empty file is an empty string");
    memset(text, 'x', sizeof(text));
    tap_ok(!lap_file_read_text("/proc/no-such-file", text, sizeof(text)) && text[0] == '\0',
           "a file that does not exist is an empty string");
}

int main(void)
{
    test_text();
    return tap_done();
}
