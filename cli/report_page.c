/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `lap report`: traces are put where its marker is. */
#include <stdlib.h>
#include <string.h>

#include "core/output.h"
#include "gzip.h"
#include "lap_report.h"
#include "report.h"
#include "util/embed.h"
#include "util/json.h"

LAP_EMBED(lap_report_page, LAP_REPORT_PAGE);

extern const unsigned char lap_report_page[];

/* Where pictures for those without a script are put, and then traces. */
static const char *const markers[] = {"<!--LAPSTRAKE-STATIC-->", "<!--LAPSTRAKE-TRACES-->"};

static void put_base64(FILE *file, const unsigned char *data, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i += 3) {
        const size_t left = bytes - i;
        const unsigned group = (unsigned)data[i] << 16 |
                               (left > 1 ? (unsigned)data[i + 1] << 8 : 0) |
                               (left > 2 ? data[i + 2] : 0);
        putc(digits[group >> 18], file);
        putc(digits[group >> 12 & 63], file);
        putc(left > 1 ? digits[group >> 6 & 63] : '=', file);
        putc(left > 2 ? digits[group & 63] : '=', file);
    }
}

static lap_status_t put_trace(FILE *file, const lap_report_trace_t *trace)
{
    char *packed = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&packed, &bytes);
    lap_status_t status = memory ? lap_gzip(trace->data, trace->bytes, memory) : LAP_ERR_NO_MEMORY;
    const bool full = memory && ferror(memory);
    if (!memory || fclose(memory) != 0 || full)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to compress a trace");
    fputs("<script type=\"text/plain\" data-trace>", file);
    if (status == LAP_OK)
        put_base64(file, (const unsigned char *)packed, bytes);
    free(packed);
    fputs("</script>\n", file);
    return status;
}

lap_status_t lap_report_check(const char *path)
{
    if (!*path)
        return lap_error(LAP_ERR_INVALID, "the path is empty: expected the file to write");
    LAP_TRY(lap_gzip_check()); /* of its traces */
    return lap_output_check("the report", path);
}

lap_status_t lap_report_write(const char *path, const lap_report_trace_t *traces, size_t count)
{
    static lap_status_t (*const puts[])(FILE *, const lap_report_trace_t *) = {
        lap_report_put_static, put_trace};
    const char *page = (const char *)lap_report_page;
    lap_output_t output;
    lap_status_t status = LAP_OK;
    LAP_TRY(lap_output_open("the report", path, &output));
    for (int m = 0; m < 2; m++) {
        const char *at = strstr(page, markers[m]);
        fwrite(page, 1, (size_t)(at - page), output.file);
        for (size_t i = 0; i < count && status == LAP_OK; i++)
            status = puts[m](output.file, &traces[i]);
        page = at + strlen(markers[m]);
    }
    fputs(page, output.file);
    return lap_output_close(&output, status);
}

/* A number at hand, such as the time of an event. */
static bool take_time(lap_json_reader_t *json)
{
    const char *at = json->text + json->at;
    const char *end = json->text + json->bytes;
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r'))
        at++;
    if (at == end || *at < '0' || *at > '9')
        return lap_json_fail(json, "expected a number, 0 or above, of microseconds");
    return lap_json_skip(json);
}

/* An object, whose times are numbers; a slice has two. */
static bool take_event(lap_json_reader_t *json)
{
    char key[64], kind[8] = "";
    int times = 0;
    for (bool has = lap_json_open(json, '{'); has; has = lap_json_next(json, '}')) {
        if (!lap_json_take_key(json, key, sizeof(key)))
            return false;
        const bool time = strcmp(key, "ts") == 0 || strcmp(key, "dur") == 0;
        times += time;
        if (!(time                     ? take_time(json)
              : strcmp(key, "ph") == 0 ? lap_json_take_string(json, kind, sizeof(kind))
                                       : lap_json_skip(json)))
            return false;
    }
    if (!json->wrong && strcmp(kind, "X") == 0 && times < 2)
        return lap_json_fail(json, "expected ts and dur before the end of a slice");
    return !json->wrong;
}

static bool take_events(lap_json_reader_t *json)
{
    for (bool more = lap_json_open(json, '['); more; more = lap_json_next(json, ']'))
        if (!take_event(json))
            return false;
    return !json->wrong;
}

/* What we add: of a measured step, a simulated one, or both. */
static bool take_about(lap_json_reader_t *json, bool *steps_p)
{
    char key[64];
    for (bool more = lap_json_open(json, '{'); more; more = lap_json_next(json, '}')) {
        if (!lap_json_take_key(json, key, sizeof(key)) || !lap_json_skip(json))
            return false;
        *steps_p = *steps_p || strcmp(key, "measured") == 0 || strcmp(key, "simulated") == 0;
    }
    return !json->wrong;
}

/* A trace has a list of events, and what we add to it. */
lap_status_t lap_report_judge(const char *path, const char *text, size_t bytes)
{
    lap_json_reader_t json = {.text = text, .bytes = bytes};
    bool events = false, ours = false, steps = false;
    for (bool more = lap_json_open(&json, '{'); more; more = lap_json_next(&json, '}')) {
        char key[64];
        if (!lap_json_take_key(&json, key, sizeof(key)))
            break;
        const bool list = strcmp(key, "traceEvents") == 0, about = strcmp(key, "lapstrake") == 0;
        if (!(list ? take_events(&json) : about ? take_about(&json, &steps) : lap_json_skip(&json)))
            break;
        events = events || list;
        ours = ours || about;
    }
    if (!lap_json_end(&json))
        return lap_error(LAP_ERR_INVALID, "%s is no trace: byte %zu: %s", path, json.at,
                         json.wrong);
    if (!events || !ours)
        return lap_error(LAP_ERR_INVALID,
                         "%s is no trace of lap: it has no member \"%s\"; expected a file that "
                         "--trace has written, in the format perfetto",
                         path, events ? "lapstrake" : "traceEvents");
    if (!steps)
        return lap_error(LAP_ERR_INVALID,
                         "%s has no step: in \"lapstrake\" there is neither \"measured\" nor "
                         "\"simulated\"; expected a file as --trace has written it",
                         path);
    return LAP_OK;
}
