/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap data`: files of tokens. `tokenize` writes one from text, a token for each byte; `info` reads some
 * and says what is in them, with the loss of a model that knows the frequencies of tokens and no more.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "core/output.h"
#include "core/status.h"
#include "data/tokens.h"
#include "interrupt.h"
#include "util/alloc.h"
#include "util/json_write.h"

enum { BYTES, OUTPUT, FORCE, JSON, NOPTIONS };

/* Tokens above are not counted one by one: no vocabulary is so large. */
#define COUNTED ((size_t)1 << 22)
#define PIECE 8192 /* bytes, or tokens, at a time */

static const lap_option_t options[NOPTIONS] = {
    [BYTES] =
        {0, "bytes", NULL,
         "tokenize: a token for each byte, a vocabulary of 256; needed, as there is no other way",
         NULL, LAP_BY_CODE},
    [OUTPUT] = {'o', "output", "FILE", "tokenize: the file to write", NULL, LAP_BY_CODE},
    [FORCE] = {0, "force", NULL, "tokenize: overwrite a file that is there", NULL, LAP_BY_CODE},
    [JSON] = {0, "json", NULL, "info: print one JSON object on one line", NULL, LAP_BY_CODE},
};

static const lap_command_t command = {
    .name = "lap data",
    .usage = "tokenize --bytes -o FILE TEXT...\n       lap data info FILE... [--json]",
    .summary =
        "Writes files of tokens from text, and says what files of tokens hold. Their format\n"
        "is that of llm.c.",
    .details = "The entropy of info is the loss, in nats, of a model that knows how frequent each\n"
               "token is and nothing else: training has to come below it.",
    .exit_status = "  0  it is done\n"
                   "  1  a file could not be read or written\n"
                   "  2  the command line is wrong, or a file is not one of tokens",
    .options = options,
    .noptions = NOPTIONS,
    .min_positionals = 1,
    .max_positionals = SIZE_MAX,
};

/* ---- tokenize ---- */

static lap_status_t write_failed(const lap_output_t *output)
{
    return lap_error_errno("cannot write %s %s", output->what, output->path);
}

/* Writes the bytes of a text as tokens. */
static lap_status_t append(FILE *text, const char *path, const lap_output_t *output,
                           uint64_t *count_p)
{
    unsigned char in[PIECE], out[2 * PIECE] = {0};
    size_t got;
    while ((got = fread(in, 1, sizeof(in), text)) > 0) {
        *count_p += got;
        if (*count_p > LAP_TOKENS_MOST)
            return lap_error(LAP_ERR_INVALID,
                             "'%s' makes more than %d tokens, expected fewer: that is all that a "
                             "file can hold. Write several: training takes them as one",
                             path, LAP_TOKENS_MOST);
        for (size_t i = 0; i < got; i++)
            out[2 * i] = in[i];
        if (fwrite(out, 2, got, output->file) != got)
            return write_failed(output);
    }
    return ferror(text) ? lap_error_errno("cannot read '%s'", path) : LAP_OK;
}

static lap_status_t append_file(const char *path, const lap_output_t *output, uint64_t *count_p)
{
    FILE *text = fopen(path, "re");
    if (!text)
        return lap_error_errno("cannot open '%s'", path);
    if (lap_output_same(path, output->place)) {
        fclose(text);
        return lap_error(LAP_ERR_INVALID, "'%s' is the text and the output, expected two files",
                         path);
    }
    const lap_status_t status = append(text, path, output, count_p);
    fclose(text);
    return status;
}

/* The header comes first, and is known last. */
static lap_status_t write_tokens(char *const *paths, const lap_output_t *output, uint64_t *count_p)
{
    unsigned char header[LAP_TOKENS_HEADER_BYTES] = {0};
    const char *first = paths[0];
    const bool several = paths[1];
    if (fwrite(header, 1, sizeof(header), output->file) != sizeof(header))
        return write_failed(output);
    for (; *paths; paths++)
        LAP_TRY(append_file(*paths, output, count_p));
    if (*count_p == 0)
        return lap_error(LAP_ERR_INVALID,
                         "'%s'%s no bytes, expected a text: a token is made of each byte", first,
                         several ? " and the files after it have" : " has");
    lap_tokens_header(&lap_tokens_kinds[0], (uint32_t)*count_p, header);
    if (fseek(output->file, 0, SEEK_SET) != 0 ||
        fwrite(header, 1, sizeof(header), output->file) != sizeof(header))
        return write_failed(output);
    return LAP_OK;
}

/* Whatever is there under the name of the output stays; half of the new one does not. */
static void report_interrupted(void *context, int signal)
{
    const lap_output_t *output = context;
    (void)signal;
    unlink(output->temporary);
    lap_tell(command.name, "interrupted: %s was not written", output->path);
}

static lap_status_t tokenize(const lap_args_t *args)
{
    lap_output_t output;
    uint64_t count = 0;
    LAP_TRY(lap_output_open("the tokens", args->values[OUTPUT], &output));
    lap_interrupt_with(command.name, report_interrupted, &output);
    lap_status_t status = write_tokens(args->positionals + 1, &output, &count);
    lap_interrupt_with_end();
    status = lap_output_close(&output, status);
    if (status == LAP_OK)
        printf("%s: %" PRIu64 " tokens of a vocabulary of 256\n", args->values[OUTPUT], count);
    return status;
}

static int run_tokenize(const lap_args_t *args)
{
    const char *path = args->values[OUTPUT];
    if (args->given[JSON])
        return lap_args_fail(&command, "--json is for info");
    if (!args->given[BYTES])
        return lap_args_fail(&command, "tokenize needs --bytes: a token for each byte is the only "
                                       "way there is; other tokens are read from files of llm.c");
    if (!path)
        return lap_args_fail(&command, "tokenize needs -o FILE: the file to write");
    if (!args->given[FORCE] && access(path, F_OK) == 0)
        return lap_args_fail(&command, "'%s' is there already; --force overwrites it", path);
    const lap_status_t status = tokenize(args);
    return status == LAP_OK ? LAP_CLI_OK : lap_args_refused(&command, status, "");
}

/* ---- info ---- */

/* What is in files, so far. */
typedef struct survey {
    uint64_t *counts; /* of each token below COUNTED */
    uint64_t tokens;
    uint64_t uncounted; /* tokens that are not below it */
    uint32_t largest;   /* of the latest file */
} survey_t;

static lap_status_t count_tokens(const lap_tokens_t *file, survey_t *survey)
{
    uint32_t piece[PIECE];
    survey->largest = 0;
    for (uint64_t at = 0; at < file->count; at += PIECE) {
        const size_t count = file->count - at < PIECE ? (size_t)(file->count - at) : PIECE;
        LAP_TRY(lap_tokens_read(file, at, count, piece));
        for (size_t i = 0; i < count; i++) {
            survey->largest = piece[i] > survey->largest ? piece[i] : survey->largest;
            if (piece[i] < COUNTED)
                survey->counts[piece[i]]++;
            else
                survey->uncounted++;
        }
    }
    survey->tokens += file->count;
    return LAP_OK;
}

/* A line, or an object. */
static void print_file(lap_json_t *json, const lap_tokens_t *file, const survey_t *survey)
{
    const lap_tokens_kind_t *kind = file->kind;
    if (json) {
        lap_json_put(json,
                     "{file:%s magic:%u version:%u bytes_per_token:%u tokens:%lu largest:%.0f}",
                     file->path, kind->magic, kind->version, kind->bytes, file->count,
                     file->count > 0 ? survey->largest : NAN);
        return;
    }
    printf("%s: magic %" PRIu32 ", version %" PRIu32 ", uint%" PRIu32 ", %" PRIu64 " tokens",
           file->path, kind->magic, kind->version, 8 * kind->bytes, file->count);
    if (file->count > 0)
        printf(", the largest %" PRIu32, survey->largest);
    printf("\n");
}

/* -sum p log p, in nats. */
static double entropy(const survey_t *survey, size_t *distinct_p)
{
    double sum = 0;
    *distinct_p = 0;
    for (size_t i = 0; i < COUNTED; i++) {
        const double part = (double)survey->counts[i] / (double)survey->tokens;
        *distinct_p += survey->counts[i] > 0;
        sum -= survey->counts[i] > 0 ? part * log(part) : 0;
    }
    return sum;
}

static void print_sum(lap_json_t *json, const survey_t *survey)
{
    size_t distinct;
    const double nats = entropy(survey, &distinct);
    const bool known = survey->tokens > 0 && survey->uncounted == 0;
    if (json)
        lap_json_put(json, "] tokens:%lu distinct:%.0f entropy:%.9g}", survey->tokens,
                     known ? (double)distinct : NAN, known ? nats : NAN);
    else if (known)
        printf("%" PRIu64 " tokens, %zu distinct, unigram entropy %.6f nats\n", survey->tokens,
               distinct, nats);
    else if (survey->tokens > 0)
        printf("%" PRIu64 " tokens, of which %" PRIu64 " are not below %zu: no entropy\n",
               survey->tokens, survey->uncounted, COUNTED);
}

/* Reads files and prints what is in them; json NULL: as text. */
static lap_status_t inform(lap_json_t *json, char *const *paths, survey_t *survey)
{
    for (; *paths; paths++) {
        lap_tokens_t file;
        lap_status_t status = lap_tokens_open(*paths, &file);
        if (status == LAP_OK)
            status = count_tokens(&file, survey);
        if (status == LAP_OK)
            print_file(json, &file, survey);
        lap_tokens_close(&file);
        LAP_TRY(status);
    }
    print_sum(json, survey);
    return LAP_OK;
}

/* One object, which is printed when it is known whole: a file that cannot be read would leave half of it. */
static lap_status_t inform_json(char *const *paths, survey_t *survey)
{
    char *text = NULL;
    size_t bytes = 0;
    lap_json_t json = {.file = open_memstream(&text, &bytes)};
    if (!json.file)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for what is in the files");
    lap_json_put(&json, "{files:[");
    lap_status_t status = inform(&json, paths, survey);
    if (fclose(json.file) != 0 && status == LAP_OK)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for what is in the files");
    if (status == LAP_OK)
        fputs(text, stdout);
    free(text);
    return status;
}

static int run_info(const lap_args_t *args)
{
    static const int others[] = {BYTES, OUTPUT, FORCE};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (args->given[others[i]])
            return lap_args_fail(&command, "--%s is for tokenize", options[others[i]].name);
    survey_t survey = {.counts = lap_alloc(COUNTED, sizeof(uint64_t))};
    lap_status_t status = survey.counts
                              ? LAP_OK
                              : lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu counters", COUNTED);
    if (status == LAP_OK && args->given[JSON])
        status = inform_json(args->positionals + 1, &survey);
    else if (status == LAP_OK)
        status = inform(NULL, args->positionals + 1, &survey);
    lap_free(survey.counts);
    return status == LAP_OK ? LAP_CLI_OK : lap_args_refused(&command, status, "");
}

int lap_cli_data(int argc, char **argv)
{
    static const char *const modes[] = {"tokenize", "info", NULL};
    lap_args_t args;
    size_t mode;
    const int status = lap_args_parse(&command, argc, argv, &args);
    if (status != LAP_CLI_GO)
        return status;
    if (!lap_arg_choice(&command, "what to do", args.positionals[0], modes, &mode))
        return LAP_CLI_USAGE;
    if (args.npositionals < 2)
        return lap_args_fail(&command, "%s needs files; usage: lap data %s", modes[mode],
                             mode == 0 ? "tokenize --bytes -o FILE TEXT..." : "info FILE...");
    return mode == 0 ? run_tokenize(&args) : run_info(&args);
}
