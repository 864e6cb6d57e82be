/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tokens: every sample is where it should be, whatever the shards; bad files are named. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/tokens.h"
#include "tap.h"

enum { TOKENS = 100, SEQ = 7, SAMPLES = (TOKENS - 1) / SEQ };

static char dir[] = "/tmp/lap-samples-XXXXXX";

/* The path of a file of the test; a few are there at the same time. */
static const char *path_of(const char *name)
{
    static char paths[8][64];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

/* Tokens `first` to `first` + `count` - 1, each its own number. */
static const char *write_file(const char *name, size_t kind, uint32_t first, uint32_t count)
{
    unsigned char header[LAP_TOKENS_HEADER_BYTES];
    const char *path = path_of(name);
    FILE *file = fopen(path, "w");
    lap_tokens_header(&lap_tokens_kinds[kind], count, header);
    fwrite(header, 1, sizeof(header), file);
    for (uint32_t i = first; i < first + count; i++)
        fwrite(&i, lap_tokens_kinds[kind].bytes, 1, file);
    fclose(file);
    return path;
}

/* Changes one 32-bit word of a file. */
static void patch(const char *path, long at, uint32_t value)
{
    FILE *file = fopen(path, "r+");
    fseek(file, at, SEEK_SET);
    fwrite(&value, sizeof(value), 1, file);
    fclose(file);
}

static lap_status_t open_some(const char *const *paths, size_t count, size_t vocab, int wraps,
                              lap_data_t **data_p)
{
    lap_data_options_t options = LAP_DATA_OPTIONS_INIT;
    options.seq = SEQ;
    options.vocab = vocab;
    options.wraps = wraps;
    *data_p = NULL;
    return lap_data_open(paths, count, &options, data_p);
}

/* Whether sample i has the tokens from i * SEQ on, after the last of which come the first. */
static bool is_right(const lap_data_t *data, uint64_t sample)
{
    uint32_t tokens[SEQ + 1];
    bool right = lap_data_sample(data, sample, tokens) == LAP_OK;
    for (uint32_t t = 0; right && t <= SEQ; t++)
        right = !tap_wrong(tokens[t] != sample % SAMPLES * SEQ + t, "token %u of sample %u is %u",
                           t, (unsigned)sample, tokens[t]);
    return right;
}

static void check_samples(const char *const *paths, size_t count, const char *what)
{
    lap_data_t *data;
    size_t wrong = 0;
    if (!tap_success(open_some(paths, count, TOKENS, 1, &data), "%s: opened", what))
        return;
    tap_ok(lap_data_tokens(data) == TOKENS && lap_data_samples(data) == SAMPLES,
           "%s: %d tokens, %d samples", what, TOKENS, SAMPLES);
    for (uint64_t i = 0; i < 3 * SAMPLES; i++)
        wrong += !is_right(data, i);
    tap_ok(wrong == 0, "%s: the tokens of all samples, twice wrapped", what);
    lap_data_close(data);
}

static void test_shards(void)
{
    const char *one[] = {write_file("one", 0, 0, TOKENS)};
    check_samples(one, 1, "one file");
    const char *wide[] = {write_file("wide", 1, 0, TOKENS)};
    check_samples(wide, 1, "one file of uint32");
    const char *shards[] = {write_file("a", 0, 0, 3), write_file("empty", 0, 0, 0),
                            write_file("b", 1, 3, 50), write_file("c", 0, 53, 47),
                            path_of("empty")};
    check_samples(shards, 5, "shards that samples span, some of another kind or empty");
}

/* A sample needs the target of its last token. */
static void test_last_target(void)
{
    const char *paths[] = {write_file("even", 0, 0, 2 * SEQ)};
    lap_data_t *data;
    tap_success(open_some(paths, 1, 0, 1, &data), "tokens of two samples, less a target");
    tap_ok(lap_data_samples(data) == 1, "... are one sample");
    lap_data_close(data);
}

static void test_end(void)
{
    const char *paths[] = {path_of("one")};
    uint32_t tokens[SEQ + 1];
    lap_data_t *data;
    tap_success(open_some(paths, 1, 0, 0, &data), "a file that does not wrap");
    tap_success(lap_data_sample(data, SAMPLES - 1, tokens), "... has its last sample");
    tap_failure(lap_data_sample(data, SAMPLES, tokens), LAP_ERR_INVALID, "sample 14",
                "past the end", "14 samples", NULL);
    tap_ok(truncate(paths[0], 1024 + 20) == 0, "it is cut while it is in use");
    tap_success(lap_data_sample(data, 0, tokens), "... what is left can be read");
    tap_failure(lap_data_sample(data, 2, tokens), LAP_ERR_SYSTEM, paths[0], "byte 1052", "cut",
                NULL);
    lap_data_close(data);
}

static void test_vocabulary(void)
{
    const char *paths[] = {write_file("v0", 0, 0, 50), write_file("v1", 1, 50, 50)};
    uint32_t tokens[SEQ + 1];
    lap_data_t *data;
    tap_success(open_some(paths, 2, 60, 1, &data), "a file with tokens beyond the vocabulary");
    tap_success(lap_data_sample(data, 7, tokens), "... of which samples before can be read");
    tap_failure(lap_data_sample(data, 8, tokens), LAP_ERR_INVALID, paths[1], "token 10",
                "byte 1064", "is 60", "less than 60", NULL);
    lap_data_close(data);
}

/* One file, which should be refused. */
static void refuse(const char *path, lap_status_t status, const char *first, const char *second)
{
    lap_data_t *data;
    tap_failure(open_some(&path, 1, 0, 1, &data), status, path, first, second, NULL);
    tap_ok(data == NULL, "... and nothing is written");
}

static void test_bad(void)
{
    const char *path = write_file("bad", 0, 0, TOKENS);
    patch(path, 0, 20240522);
    refuse(path, LAP_ERR_INVALID, "magic", "20240522, expected 20240520 or 20240801");
    patch(path, 0, 20240801);
    refuse(path, LAP_ERR_INVALID, "version 1 at byte 4", "expected 7");
    path = write_file("bad", 0, 0, TOKENS);
    patch(path, 8, TOKENS + 1);
    refuse(path, LAP_ERR_INVALID, "has 1224 bytes, expected 1226", "it was cut");
    patch(path, 8, TOKENS - 1);
    refuse(path, LAP_ERR_INVALID, "expected 1222", "too long");
    patch(path, 8, 0xfffffffe);
    refuse(path, LAP_ERR_INVALID, "negative", "-2");
    tap_ok(truncate(path, 1000) == 0, "a file without a whole header");
    refuse(path, LAP_ERR_INVALID, "it has 1000 bytes", "header of 1024");
    refuse(write_file("few", 0, 0, SEQ), LAP_ERR_INVALID, "has 7 tokens", "at least 8");
    refuse(path_of("none"), LAP_ERR_SYSTEM, "cannot open", "No such file");
    refuse(dir, LAP_ERR_INVALID, "not a regular file", "expected");
}

static void test_arguments(void)
{
    const char *paths[] = {path_of("wide")};
    lap_data_options_t options = LAP_DATA_OPTIONS_INIT;
    lap_data_t *data = NULL;
    tap_failure(lap_data_open(paths, 1, &options, &data), LAP_ERR_INVALID, "seq is 0", NULL);
    options.seq = 1;
    tap_failure(lap_data_open(paths, 0, &options, &data), LAP_ERR_INVALID, "npaths", NULL);
    tap_failure(lap_data_open(NULL, 1, &options, &data), LAP_ERR_INVALID, "paths", NULL);
    tap_failure(lap_data_open(paths, 1, NULL, &data), LAP_ERR_INVALID, "options", NULL);
    tap_failure(lap_data_open(paths, 1, &options, NULL), LAP_ERR_INVALID, "data_p", NULL);
    tap_failure(lap_data_sample(NULL, 0, NULL), LAP_ERR_INVALID, "data is NULL", NULL);
}

int main(void)
{
    static const char *const names[] = {"one", "wide", "a",  "b",     "c",   "bad",
                                        "few", "v0",   "v1", "empty", "even"};
    if (!mkdtemp(dir))
        return 1;
    const int fds = tap_count_fds();
    test_shards();
    test_last_target();
    test_end();
    test_vocabulary();
    test_bad();
    test_arguments();
    tap_ok(tap_count_fds() == fds, "no descriptor is left open");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlink(path_of(names[i]));
    tap_ok(rmdir(dir) == 0, "nothing else is left in %s", dir);
    return tap_done();
}
