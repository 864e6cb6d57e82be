/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How rank 0 and another rank prove to each other that they are of one job, without showing their
 * key to anybody: see hub.c for the order, and SECURITY.md for what holds.
 */
#include <sys/random.h>

#include "core/hub/hub.h"

lap_status_t lap_hub_random(lap_key_t *nonce_p)
{
    if (getrandom(nonce_p, sizeof(*nonce_p), 0) != (ssize_t)sizeof(*nonce_p))
        return lap_error_errno("no random number for ranks to meet (getrandom)");
    return LAP_OK;
}

uint64_t lap_hub_proof(const lap_key_t *key, lap_hub_side_t side, const lap_hub_hello_t *hello,
                       const lap_key_t *nonce, int port)
{
    const struct {
        uint64_t side, port;
        lap_hub_hello_t hello;
        lap_key_t nonce;
    } all = {(uint64_t)side, (uint64_t)port, *hello, *nonce};
    return lap_siphash(key, &all, sizeof(all));
}
