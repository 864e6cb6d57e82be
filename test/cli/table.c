/* SPDX-License-Identifier: Apache-2.0 */
/* Tables: where texts stand, which columns there are, and that no line ends with spaces. */
#include "table.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"

/* What a call prints on standard output. */
#define PRINTED(text, call)                                                                        \
    do {                                                                                           \
        FILE *file = tmpfile();                                                                    \
        fflush(stdout);                                                                            \
        const int before = dup(STDOUT_FILENO);                                                     \
        dup2(fileno(file), STDOUT_FILENO);                                                         \
        call;                                                                                      \
        fflush(stdout);                                                                            \
        dup2(before, STDOUT_FILENO);                                                               \
        close(before);                                                                             \
        rewind(file);                                                                              \
        (text)[fread(text, 1, sizeof(text) - 1, file)] = '\0';                                     \
        fclose(file);                                                                              \
    } while (0)

#define CHECK(expected, what, call)                                                                \
    do {                                                                                           \
        char text[256];                                                                            \
        PRINTED(text, call);                                                                       \
        if (!tap_ok(strcmp(text, expected "\n") == 0, "%s", what))                                 \
            printf("# '%s'\n", text);                                                              \
    } while (0)

int main(void)
{
    static const char columns[] = "  %-6[method] %8[ms, all]  %?6[noise] %0[hidden] %-1[why]";
    CHECK("  method  ms, all   noise why", "titles", lap_table_head(columns));
    CHECK("  ring      1.500   \xc2\xb1"
          "2.0% slow",
          "a character of two bytes takes one column",
          lap_table_row(columns, "%s\t%.3f\t\xc2\xb1%.1f%%\t%d\t%s", "ring", 1.5, 2.0, 7, "slow"));
    CHECK("  ring      1.500       - slow", "a number that is not known",
          lap_table_row(columns, "ring\t1.500\t%.1f%%\t\tslow", 0.0 / 0.0));
    CHECK("  ring      1.500", "no spaces at the end, and fewer texts than columns",
          lap_table_row(columns, "ring\t1.500\t"));
    CHECK("  pipeline  1.500     2.0",
          "what is too wide moves what comes after it no further than it must",
          lap_table_row(columns, "pipeline\t1.500\t2.0"));
    CHECK("  pipeline 123456789  123456", "... and does not touch it",
          lap_table_row(columns, "pipeline\t123456789\t123456"));
    CHECK("  nano        nan", "only columns that say so have a - for nan",
          lap_table_row(columns, "nano\tnan"));
    return tap_done();
}
