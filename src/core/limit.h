/* SPDX-License-Identifier: Apache-2.0 */
/* How long the ranks of a world that is being made wait for one another, and by whose timeout. */
#ifndef LAP_CORE_LIMIT_H
#define LAP_CORE_LIMIT_H

#include <stdint.h>

#include "util/deadline.h"

/*
 * Only rank 0 knows which ranks have not come. Each rank sends it the time that it can wait, and
 * then waits this much longer: rank 0 is the first to give up, and all ranks fail with its
 * sentence.
 */
#define LAP_LIMIT_GRACE_NS 3000000000u

/*
 * After a failure rank 0 waits this long for ranks that have not come yet, so that they learn of
 * it.
 */
#define LAP_LIMIT_LINGER_NS 2000000000u

/*
 * The timeout that ends a rendezvous, of all those the one that is over first, and the rank that
 * has it.
 */
typedef struct lap_limit {
    uint64_t timeout_ns;
    int64_t rank;
} lap_limit_t;

/*
 * As lap_deadline_shorten, by the time that a rank has left of another limit. An equal one may keep
 * its rank.
 */
void lap_limit_shorten(lap_limit_t *limit, lap_deadline_t *deadline, uint64_t left_ns,
                       lap_limit_t other);

/*
 * Who was waited for in vain has not come "within 2 s", or "within 2 s (the timeout of rank 3)"
 * where this rank's own is another; or, where only a part of that time was left for it, "in time
 * (the timeout of rank 3 is 2 s)". Both return the text.
 */
#define LAP_LIMIT_TEXT 64
const char *lap_limit_within(const lap_limit_t *limit, uint64_t own_ns, char text[LAP_LIMIT_TEXT]);
const char *lap_limit_in_time(const lap_limit_t *limit, char text[LAP_LIMIT_TEXT]);

#endif
