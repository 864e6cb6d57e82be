/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of options and of variables: sizes, seconds, links, lists, types, epilogues, methods
 * with knobs, and what launchers say. The first byte chooses the parser, the rest is the word. What
 * is accepted lies within the bounds that were asked for.
 */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "core/environment.h"
#include "fuzz.h"
#include "option_rows.h"

#define MOST_BYTES 512

typedef struct words {
    lap_epilogue_t epilogue;
} words_t;

#define OPTIONS_OF words_t
static const lap_option_t options[] = {{0, "x", "LIST", "", "none", EPILOGUE_OF(epilogue)}};
static const lap_command_t command = {
    .name = "lap fuzz", .usage = "", .summary = "", .options = options, .noptions = 1};

static void parse_numbers(const char *text)
{
    int number;
    size_t size;
    uint64_t any;
    double seconds;
    if (lap_arg_int(&command, "--x", text, -5, 1000, &number))
        HOLDS(number >= -5 && number <= 1000);
    if (lap_arg_size(&command, "--x", text, 3, 1 << 20, &size))
        HOLDS(size >= 3 && size <= 1 << 20);
    (void)lap_arg_number(&command, "--x", text, &any);
    if (lap_arg_seconds(&command, "--x", text, 0.5, 100, &seconds))
        HOLDS(seconds >= 0.5 && seconds <= 100);
    if (lap_arg_timeout(&command, text, &seconds))
        HOLDS(isfinite(seconds) && seconds > 0);
}

static void parse_link(const char *text)
{
    lap_link_arg_t link;
    if (lap_arg_link(&command, "--link", text, &link)) {
        HOLDS((link.ratio > 0) != (link.link.bytes_per_s > 0));
        HOLDS(isfinite(link.ratio) && isfinite((double)link.link.bytes_per_s));
    }
}

static void parse_lists(const char *text)
{
    lap_list_t list;
    words_t it;
    const lap_args_t args = {.command = &command, .values = {text}};
    lap_dtype_t dtype;
    if (lap_arg_list(&command, "--x", text, &list)) {
        HOLDS(list.count >= 1 && list.count <= LAP_LIST_MAX);
        for (size_t i = 0; i < list.count; i++)
            HOLDS(list.items[i][0] != '\0' && memchr(list.items[i], '\0', LAP_LIST_TEXT));
    }
    if (lap_read_epilogue(&args, 0, &it))
        HOLDS(it.epilogue < 1 << 4);
    if (lap_arg_dtype(&command, "--x", text, &dtype))
        HOLDS(lap_dtype_size(dtype) > 0);
}

static void parse_methods(const char *text)
{
    for (lap_op_kind_t kind = LAP_AG_GEMM; kind <= LAP_EXTERNAL_RS; kind++) {
        lap_bench_case_t it = {.kind = kind, .m = 64, .n = 64, .k = 64};
        if (lap_bench_parse_methods(&it, text))
            HOLDS(it.nmethods >= 1 && it.nmethods <= LAP_LIST_MAX + 2);
    }
}

/* Variables that launchers set, and ours: NAME=VALUE. */
static void parse_variable(char *text)
{
    static const char *const names[] = {"LAP_RANK",
                                        "LAP_SIZE",
                                        "LAP_DIR",
                                        "LAP_JOB",
                                        "LAP_TIMEOUT_S",
                                        "LAP_SPIN_US",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS"};
    lap_environment_t environment;
    uint64_t ns;
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *value = strchr(line, '=');
        for (size_t i = 0; value && i < sizeof(names) / sizeof(names[0]); i++)
            if ((size_t)(value - line) == strlen(names[i]) &&
                memcmp(line, names[i], strlen(names[i])) == 0)
                setenv(names[i], value + 1, 1);
    }
    if (lap_environment_read(&environment) == LAP_OK) {
        HOLDS(environment.size >= 1 && environment.size <= LAP_RANKS_MAX);
        HOLDS(environment.rank >= 0 && environment.rank < environment.size);
        HOLDS(memchr(environment.dir, '\0', sizeof(environment.dir)));
    }
    if (lap_environment_timeout(&ns) == LAP_OK)
        HOLDS(ns > 0);
    if (lap_environment_spin(&ns) == LAP_OK)
        HOLDS(ns <= 1000000000u);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char text[MOST_BYTES + 1];
    if (bytes < 1 || bytes > MOST_BYTES || memchr(data, '\0', bytes))
        return 0;
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    switch (data[0]) {
    case 'l':
        parse_link(text);
        break;
    case 'w':
        parse_lists(text);
        break;
    case 'm':
        parse_methods(text);
        break;
    case 'v':
        parse_variable(text);
        break;
    default:
        parse_numbers(text);
    }
    return 0;
}
