/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes that keep somebody out, where util/digest.h does not: SHA-256 makes a key from a secret of
 * any length, and SipHash-2-4 of a key shows that who sends a message has that key.
 */
#ifndef LAP_UTIL_KEYED_HASH_H
#define LAP_UTIL_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct lap_key {
    uint64_t words[2];
} lap_key_t;

/* SHA-256 (FIPS 180-4). */
#define LAP_SHA256_BYTES 32
void lap_sha256(const void *data, size_t bytes, unsigned char hash[LAP_SHA256_BYTES]);

/* SipHash-2-4 with 64 bits (Aumasson and Bernstein, 2012). */
uint64_t lap_siphash(const lap_key_t *key, const void *data, size_t bytes);

#endif
