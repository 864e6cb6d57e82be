/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a: a digest of bytes, to tell texts apart and to notice damage. It keeps nobody out. */
#ifndef LAP_UTIL_DIGEST_H
#define LAP_UTIL_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define LAP_DIGEST_INIT 0xcbf29ce484222325u

/* Goes on from a digest, or from LAP_DIGEST_INIT. */
static inline uint64_t lap_digest(uint64_t digest, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        digest = (digest ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return digest;
}

#endif
