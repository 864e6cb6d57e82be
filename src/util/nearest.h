/* SPDX-License-Identifier: Apache-2.0 */
/* Did you mean ...? */
#ifndef LAP_UTIL_NEAREST_H
#define LAP_UTIL_NEAREST_H

/* The one of `names` (NULL at the end) nearest to `text`; NULL when none can be meant. */
const char *lap_nearest(const char *text, const char *const *names);

#endif
