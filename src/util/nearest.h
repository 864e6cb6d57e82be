/* SPDX-License-Identifier: Apache-2.0 */
/* Did you mean ...? */
#ifndef LAP_UTIL_NEAREST_H
#define LAP_UTIL_NEAREST_H

#include <stddef.h>

/*
 * The one of `names` (NULL at the end) nearest to `text`; NULL when none can be meant: up to a
 * third of a name may be wrong, or one `part` of it.
 */
const char *lap_nearest(const char *text, const char *const *names);
const char *lap_nearest_within(const char *text, const char *const *names, size_t part);

/* "; did you mean 'NAME'?" for the end of a sentence, or "" when none can be meant. */
enum { LAP_NEAREST_HINT = 64 };
const char *lap_nearest_hint(const char *text, const char *const *names,
                             char hint[LAP_NEAREST_HINT]);

#endif
