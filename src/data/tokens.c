/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tokens in the format of llm.c. A file is believed only as far as its size bears it out:
 * what its header says is compared with that before anything is read.
 */
#include "data/tokens.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "util/alloc.h"

#define PIECE_BYTES 16384 /* read at once */

const lap_tokens_kind_t lap_tokens_kinds[] = {
    {.magic = 20240520, .version = 1, .bytes = 2},
    {.magic = 20240801, .version = 7, .bytes = 4},
    {.magic = 0},
};

static uint32_t read_le(const unsigned char *bytes, uint32_t count)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < count; i++)
        value |= (uint32_t)bytes[i] << 8 * i;
    return value;
}

static void write_le(unsigned char *bytes, uint32_t value)
{
    for (uint32_t i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
}

void lap_tokens_header(const lap_tokens_kind_t *kind, uint32_t count,
                       unsigned char header[LAP_TOKENS_HEADER_BYTES])
{
    memset(header, 0, LAP_TOKENS_HEADER_BYTES);
    write_le(header, kind->magic);
    write_le(header + 4, kind->version);
    write_le(header + 8, count);
}

/* The kind of a file from its magic and version. */
static lap_status_t find_kind(lap_tokens_t *tokens, const unsigned char *header)
{
    const uint32_t magic = read_le(header, 4), version = read_le(header + 4, 4);
    const lap_tokens_kind_t *kind = lap_tokens_kinds;
    while (kind->magic != 0 && kind->magic != magic)
        kind++;
    if (kind->magic == 0)
        return lap_error(LAP_ERR_INVALID,
                         "'%s' is not a file of tokens: its magic at byte 0 is %" PRIu32
                         ", expected %" PRIu32 " or %" PRIu32
                         ", as in files of llm.c and those that lap data tokenize makes of text",
                         tokens->path, magic, lap_tokens_kinds[0].magic, lap_tokens_kinds[1].magic);
    if (kind->version != version)
        return lap_error(LAP_ERR_INVALID,
                         "'%s' has version %" PRIu32 " at byte 4, expected %" PRIu32
                         " for magic %" PRIu32,
                         tokens->path, version, kind->version, magic);
    tokens->kind = kind;
    return LAP_OK;
}

static lap_status_t read_header(lap_tokens_t *tokens, uint64_t bytes)
{
    unsigned char header[LAP_TOKENS_HEADER_BYTES];
    if (bytes < LAP_TOKENS_HEADER_BYTES)
        return lap_error(LAP_ERR_INVALID,
                         "'%s' is not a file of tokens: it has %" PRIu64
                         " bytes, expected a header of %zu",
                         tokens->path, bytes, LAP_TOKENS_HEADER_BYTES);
    LAP_TRY(lap_file_read(tokens->fd, tokens->path, header, sizeof(header), 0));
    LAP_TRY(find_kind(tokens, header));
    tokens->count = read_le(header + 8, 4);
    if (tokens->count > LAP_TOKENS_MOST)
        return lap_error(LAP_ERR_INVALID,
                         "'%s' has a negative number of tokens at byte 8: %" PRId32
                         ", expected 0 or more",
                         tokens->path, (int32_t)(uint32_t)tokens->count);
    const uint64_t expected = LAP_TOKENS_HEADER_BYTES + tokens->count * tokens->kind->bytes;
    if (bytes == expected)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "'%s' has %" PRIu64 " bytes, expected %" PRIu64 " for the %" PRIu64
                     " tokens of its header: %s",
                     tokens->path, bytes, expected, tokens->count,
                     bytes < expected ? "it was cut" : "it is too long");
}

lap_status_t lap_tokens_open(const char *path, lap_tokens_t *tokens_p)
{
    uint64_t bytes;
    *tokens_p = (lap_tokens_t){.fd = -1};
    tokens_p->path = lap_alloc(strlen(path) + 1, 1);
    if (!tokens_p->path)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the name of a file of tokens");
    memcpy(tokens_p->path, path, strlen(path) + 1);
    LAP_TRY(lap_file_open(path, &tokens_p->fd, &bytes));
    return read_header(tokens_p, bytes);
}

void lap_tokens_close(lap_tokens_t *tokens)
{
    if (tokens->path && tokens->fd >= 0)
        close(tokens->fd);
    lap_free(tokens->path);
    *tokens = (lap_tokens_t){.fd = -1};
}

lap_status_t lap_tokens_read(const lap_tokens_t *tokens, uint64_t at, size_t count, uint32_t *out)
{
    unsigned char piece[PIECE_BYTES] = {0};
    const uint32_t bytes = tokens->kind->bytes;
    while (count > 0) {
        const size_t now = count < sizeof(piece) / bytes ? count : sizeof(piece) / bytes;
        LAP_TRY(lap_file_read(tokens->fd, tokens->path, piece, now * bytes,
                              LAP_TOKENS_HEADER_BYTES + at * bytes));
        for (size_t i = 0; i < now; i++)
            out[i] = read_le(piece + i * bytes, bytes);
        at += now;
        out += now;
        count -= now;
    }
    return LAP_OK;
}
