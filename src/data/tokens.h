/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tokens: their header, and reading a range of one. */
#ifndef LAP_DATA_TOKENS_H
#define LAP_DATA_TOKENS_H

#include <lap/data.h>

#include "core/status.h"

#define LAP_TOKENS_HEADER_BYTES ((size_t)1024)
#define LAP_TOKENS_MOST INT32_MAX /* tokens of a file: its header has no room for a larger number */

/* A kind of file. */
typedef struct lap_tokens_kind {
    uint32_t magic, version;
    uint32_t bytes; /* of a token */
} lap_tokens_kind_t;

/* The kinds there are; the last has the magic 0. The first is what bytes are written as. */
extern const lap_tokens_kind_t lap_tokens_kinds[];

/* A file of tokens, open. */
typedef struct lap_tokens {
    int fd;
    char *path;
    const lap_tokens_kind_t *kind;
    uint64_t count;
    uint64_t first; /* tokens of the files before it, where there are several */
} lap_tokens_t;

/* Opens one, as lap_data_open does; lap_tokens_close undoes it, also after a failure. */
lap_status_t lap_tokens_open(const char *path, lap_tokens_t *tokens_p);
void lap_tokens_close(lap_tokens_t *tokens);

/* Reads tokens from position `at` on; the file has as many. */
lap_status_t lap_tokens_read(const lap_tokens_t *tokens, uint64_t at, size_t count, uint32_t *out);

/* The bytes of a header. */
void lap_tokens_header(const lap_tokens_kind_t *kind, uint32_t count,
                       unsigned char header[LAP_TOKENS_HEADER_BYTES]);

#endif
