/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: fragments of a program that follow one another in one set of streams. Where the target has
 * graphs, each is one; but for messages of a pipeline in sets of their own, which are issued step by step, and for
 * programs that go back, which are one graph where there are queues enough.
 */
#ifndef LAP_SCHEDULE_SEGMENTS_H
#define LAP_SCHEDULE_SEGMENTS_H

#include "schedule/link.h"

/* Whether a program has messages of a pipeline. */
bool lap_linked_has_messages(const lap_linked_t *linked);

/* Whether something in the foreground waits for another set. */
bool lap_linked_goes_back(const lap_linked_t *linked);

/*
 * begins[f]: a segment begins with fragment f; `begins` has room for all and one more. In a program with messages, or
 * one that goes back, one also begins where a fragment waits for another set, and ends where another set waits for a
 * fragment: a graph begins, and ends, as a whole, and is to hold up no more than it has to.
 */
void lap_linked_cut(const lap_linked_t *linked, bool *begins);

#endif
