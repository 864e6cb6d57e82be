/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of several names somebody may have meant. It counts letters, of which small and capital
 * ones are the same, and knows one word; names of 32 letters and more are not compared.
 */
#include "util/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* The number of insertions, deletions, replacements and swaps that make one name of another. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { MOST = 32 };
    size_t n = strlen(a), m = strlen(b);
    if (n >= MOST || m >= MOST)
        return SIZE_MAX;
    size_t d[MOST][MOST];
    for (size_t i = 0; i <= n; i++) {
        for (size_t j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            size_t best = d[i - 1][j - 1] + !is_same(a[i - 1], b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            bool swap =
                i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) && is_same(a[i - 2], b[j - 1]);
            if (swap && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *lap_nearest(const char *text, const char *const *names)
{
    return lap_nearest_within(text, names, 3);
}

const char *lap_nearest_within(const char *text, const char *const *names, size_t part)
{
    /* A name cut short is always recognised. */
    const char *nearest = NULL;
    size_t best = SIZE_MAX, length = strlen(text);
    if (strcasecmp(text, "gpu") == 0) /* by its letters it would be cpu */
        text = "cuda", length = 4;
    for (; *names; names++) {
        size_t longer = length > strlen(*names) ? length : strlen(*names);
        size_t distance = edit_distance(text, *names);
        if (length >= 2 && distance > 1 && strncasecmp(text, *names, length) == 0)
            distance = 1;
        if (distance <= (longer + part - 1) / part && distance < best) {
            best = distance;
            nearest = *names;
        }
    }
    return nearest;
}

const char *lap_nearest_hint(const char *text, const char *const *names,
                             char hint[LAP_NEAREST_HINT])
{
    const char *nearest = lap_nearest(text, names);
    hint[0] = '\0';
    if (nearest)
        snprintf(hint, LAP_NEAREST_HINT, "; did you mean '%s'?", nearest);
    return hint;
}
