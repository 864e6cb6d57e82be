/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of several files of tokens, which are one sequence: see lap/data.h. */
#include <lap/data.h>

#include <inttypes.h>

#include "core/options.h"
#include "core/status.h"
#include "data/tokens.h"
#include "util/alloc.h"

struct lap_data {
    lap_data_options_t options;
    lap_tokens_t *files;
    size_t nfiles;
    uint64_t tokens, samples;
};

/* ---- opening ---- */

static lap_status_t read_options(const lap_data_options_t *given, lap_data_options_t *options_p)
{
    lap_data_options_t options = LAP_DATA_OPTIONS_INIT;
    if (!given)
        return lap_error(LAP_ERR_INVALID, "lap_data_open: options is NULL, expected options");
    LAP_TRY(lap_read_options(&options, sizeof(options), given, "LAP_DATA_OPTIONS"));
    if (options.seq < 1 || options.seq > UINT32_MAX)
        return lap_error(LAP_ERR_INVALID, "seq is %zu, expected 1 to %" PRIu32, options.seq,
                         UINT32_MAX);
    *options_p = options;
    return LAP_OK;
}

static lap_status_t open_files(lap_data_t *data, const char *const *paths, size_t npaths)
{
    data->files = lap_alloc(npaths, sizeof(*data->files));
    if (!data->files)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu files of tokens", npaths);
    for (size_t i = 0; i < npaths; i++) {
        lap_tokens_t *file = &data->files[data->nfiles++];
        if (!paths[i])
            return lap_error(LAP_ERR_INVALID, "paths[%zu] is NULL, expected a file of tokens", i);
        LAP_TRY(lap_tokens_open(paths[i], file));
        file->first = data->tokens;
        data->tokens += file->count;
    }
    const size_t seq = data->options.seq;
    if (data->tokens <= seq)
        return lap_error(LAP_ERR_INVALID,
                         "'%s'%s %" PRIu64 " tokens, expected at least %zu: a sample of seq %zu "
                         "and the target of its last token",
                         paths[0], npaths > 1 ? " and the files after it have" : " has",
                         data->tokens, seq + 1, seq);
    data->samples = (data->tokens - 1) / seq;
    return LAP_OK;
}

lap_status_t lap_data_open(const char *const *paths, size_t npaths,
                           const lap_data_options_t *options, lap_data_t **data_p)
{
    lap_data_options_t known;
    if (!data_p || !paths || npaths == 0)
        return lap_error(LAP_ERR_INVALID, "lap_data_open: %s",
                         !data_p  ? "data_p is NULL, expected a pointer to write it to"
                         : !paths ? "paths is NULL, expected names of files"
                                  : "npaths is 0, expected 1 file or more");
    LAP_TRY(read_options(options, &known));
    lap_data_t *data = lap_alloc(1, sizeof(*data));
    if (!data)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for files of tokens");
    data->options = known;
    const lap_status_t status = open_files(data, paths, npaths);
    if (status != LAP_OK) {
        lap_data_close(data);
        return status;
    }
    *data_p = data;
    return LAP_OK;
}

void lap_data_close(lap_data_t *data)
{
    if (!data)
        return;
    for (size_t i = 0; i < data->nfiles; i++)
        lap_tokens_close(&data->files[i]);
    lap_free(data->files);
    lap_free(data);
}

uint64_t lap_data_tokens(const lap_data_t *data)
{
    return data ? data->tokens : 0;
}

uint64_t lap_data_samples(const lap_data_t *data)
{
    return data ? data->samples : 0;
}

/* ---- samples ---- */

/* The last file that begins at a token or before it: the one that has it, as none after it has. */
static size_t find_file(const lap_data_t *data, uint64_t token)
{
    size_t low = 0, high = data->nfiles;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (data->files[middle].first <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static lap_status_t check_tokens(const lap_data_t *data, const lap_tokens_t *file, uint64_t at,
                                 const uint32_t *tokens, size_t count)
{
    for (size_t i = 0; data->options.vocab > 0 && i < count; i++)
        if (tokens[i] >= data->options.vocab)
            return lap_error(LAP_ERR_INVALID,
                             "'%s': token %" PRIu64 " (byte %" PRIu64 ") is %" PRIu32
                             ", expected less than %zu, the size of the vocabulary",
                             file->path, at + i,
                             LAP_TOKENS_HEADER_BYTES + (at + i) * file->kind->bytes, tokens[i],
                             data->options.vocab);
    return LAP_OK;
}

lap_status_t lap_data_sample(const lap_data_t *data, uint64_t sample, uint32_t *tokens)
{
    if (!data || !tokens)
        return lap_error(LAP_ERR_INVALID, "lap_data_sample: %s is NULL", data ? "tokens" : "data");
    if (sample >= data->samples && !data->options.wraps)
        return lap_error(LAP_ERR_INVALID,
                         "sample %" PRIu64 " is past the end: the files have %" PRIu64
                         " samples of %zu tokens",
                         sample, data->samples, data->options.seq);
    size_t count = data->options.seq + 1;
    uint64_t at = sample % data->samples * data->options.seq;
    while (count > 0) {
        const lap_tokens_t *file = &data->files[find_file(data, at)];
        const uint64_t own = at - file->first;
        const size_t now = count < file->count - own ? count : (size_t)(file->count - own);
        LAP_TRY(lap_tokens_read(file, own, now, tokens));
        LAP_TRY(check_tokens(data, file, own, tokens, now));
        tokens += now;
        at += now;
        count -= now;
    }
    return LAP_OK;
}
