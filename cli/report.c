/* SPDX-License-Identifier: Apache-2.0 */
/* `lap report`: reads traces and writes a page of them. */
#include "report.h"

#include <stdio.h>
#include <unistd.h>

#include "cli.h"
#include "core/file.h"
#include "core/output.h"
#include "gzip.h"
#include "util/alloc.h"

#define TRACE_MOST ((size_t)1 << 30) /* bytes of a trace: no browser reads more */

enum { OUTPUT, NOPTIONS };

static const lap_option_t options[NOPTIONS] = {
    [OUTPUT] = {'o', "output", "FILE.html", "the page to write", "report.html", LAP_BY_CODE},
};

static const lap_command_t command = {
    .name = "lap report",
    .usage = "[OPTIONS] TRACE.json[.gz] ...",
    .summary = "Writes a page of HTML about traces, as --trace of lap bench and lap train makes\n"
               "them: what was hidden, what was exposed, and what to try. Two are compared.",
    .details =
        "The page is one file, and needs nothing from the network: a timeline to zoom into, with\n"
        "the lanes of every rank; communication by kind and by GEMM, total, hidden and exposed;\n"
        "who waited for whom; the critical path across ranks; how much slower GEMMs are while\n"
        "communication runs; what was predicted; the memory of activations over the step; the\n"
        "loss. At its top it says in words what cost most, and what to try. Without scripts it\n"
        "shows what each rank computed and communicated, as a picture and as a table.",
    .exit_status = "  0  the page was written\n"
                   "  1  there was no memory, or the page could not be written\n"
                   "  2  the command line is wrong, or a file is no trace",
    .options = options,
    .noptions = NOPTIONS,
    .min_positionals = 1,
    .max_positionals = LAP_REPORT_TRACES,
};

/* All of a file, with a 0 after it. */
static lap_status_t read_file(const char *path, char **data_p, size_t *bytes_p)
{
    int fd;
    uint64_t bytes;
    LAP_TRY(lap_file_open(path, &fd, &bytes));
    lap_status_t status = LAP_OK;
    char *data = NULL;
    if (bytes > TRACE_MOST)
        status = lap_error(LAP_ERR_INVALID, "%s has %llu bytes; expected a trace of at most %zu",
                           path, (unsigned long long)bytes, TRACE_MOST);
    else if (!(data = lap_alloc((size_t)bytes + 1, 1)))
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the %llu bytes of %s",
                           (unsigned long long)bytes, path);
    if (status == LAP_OK)
        status = lap_file_read(fd, path, data, (size_t)bytes, 0);
    close(fd);
    if (status != LAP_OK) {
        lap_free(data);
        return status;
    }
    *data_p = data;
    *bytes_p = (size_t)bytes;
    return LAP_OK;
}

/* Reads a trace, if it is one. */
static lap_status_t read_trace(const char *path, char **data_p, lap_report_trace_t *trace_p)
{
    size_t bytes = 0;
    LAP_TRY(read_file(path, data_p, &bytes));
    if (lap_is_gzip(*data_p, bytes)) {
        char *text;
        LAP_TRY(lap_gunzip(path, TRACE_MOST, &text, &bytes));
        lap_free(*data_p);
        *data_p = text;
    }
    return lap_report_read(path, *data_p, bytes, trace_p);
}

int lap_cli_report(int argc, char **argv)
{
    lap_args_t args;
    const int parsed = lap_args_parse(&command, argc, argv, &args);
    if (parsed != LAP_CLI_GO)
        return parsed;
    char *data[LAP_REPORT_TRACES] = {NULL};
    lap_report_trace_t traces[LAP_REPORT_TRACES] = {{.data = NULL}};
    lap_status_t status = LAP_OK;
    for (size_t i = 0; i < args.npositionals && status == LAP_OK; i++) {
        if (lap_output_same(args.positionals[i], args.values[OUTPUT]))
            status = lap_error(LAP_ERR_INVALID, "%s is a trace and the output; expected two files",
                               args.positionals[i]);
        else
            status = read_trace(args.positionals[i], &data[i], &traces[i]);
    }
    int result = LAP_CLI_OK;
    if (status != LAP_OK)
        result = lap_args_refused(&command, status, "");
    else if ((status = lap_report_check(args.values[OUTPUT])) != LAP_OK)
        result = lap_args_refused(&command, status, "--output");
    else if (lap_report_write(args.values[OUTPUT], traces, args.npositionals) != LAP_OK)
        result = lap_args_refused(&command, LAP_ERR_SYSTEM, "");
    else
        printf("%s\n", args.values[OUTPUT]);
    for (size_t i = 0; i < LAP_REPORT_TRACES; i++) {
        lap_report_clear(&traces[i]);
        lap_free(data[i]);
    }
    return result;
}
