/* SPDX-License-Identifier: Apache-2.0 */
/* "a, b, c": lists of words in sentences. */
#ifndef LAP_UTIL_JOIN_H
#define LAP_UTIL_JOIN_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Adds a word to a list of words, which is "" at first; what does not fit is left out. */
static inline void lap_join(char *text, size_t bytes, const char *word)
{
    const size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", word);
}

#endif
