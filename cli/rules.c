/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of overlap from a file, or from standard input: see rules.h. */
#include "rules.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/status.h"

#define MOST_BYTES 65536 /* a variable of the environment may have twice as many */
#define VARIABLE "LAP_STDIN_RULES"

bool lap_rules_is_stdin(const char *path)
{
    return strcmp(path, "-") == 0;
}

/* Reads standard input to its end. */
static lap_status_t read_stdin(char *text, size_t *bytes_p)
{
    size_t bytes = 0;
    while (bytes <= MOST_BYTES) {
        const ssize_t count = read(STDIN_FILENO, text + bytes, MOST_BYTES + 1 - bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return lap_error_errno("standard input cannot be read");
        if (count == 0)
            break;
        bytes += (size_t)count;
    }
    if (bytes > MOST_BYTES)
        return lap_error(LAP_ERR_INVALID,
                         "standard input has more than %d bytes, expected rules in YAML",
                         MOST_BYTES);
    text[bytes] = '\0';
    *bytes_p = bytes;
    return LAP_OK;
}

/* The ranks that this process starts have no standard input that they could read again. */
static lap_status_t load_stdin(int tp, lap_tp_overlap_t *rules_p)
{
    static char text[MOST_BYTES + 2];
    const bool launched = lap_environment_launched();
    const char *given = launched ? getenv(VARIABLE) : NULL;
    size_t bytes = 0;
    if (given)
        return lap_tp_overlap_parse(LAP_RULES_STDIN, given, strlen(given), tp, rules_p);
    if (launched)
        return lap_error(LAP_ERR_INVALID,
                         "- is standard input, which ranks of a launcher cannot all read; expected "
                         "a file");
    LAP_TRY(read_stdin(text, &bytes));
    LAP_TRY(lap_tp_overlap_parse(LAP_RULES_STDIN, text, bytes, tp, rules_p));
    if (setenv(VARIABLE, text, 1) != 0)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to pass %zu bytes of rules on", bytes);
    return LAP_OK;
}

lap_status_t lap_rules_load(const char *path, int tp, lap_tp_overlap_t *rules_p)
{
    return lap_rules_is_stdin(path) ? load_stdin(tp, rules_p)
                                    : lap_tp_overlap_load(path, tp, rules_p);
}
