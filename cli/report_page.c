/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `lap report`: traces are put where its marker is. */
#include <stdlib.h>
#include <string.h>

#include "core/output.h"
#include "gzip.h"
#include "lap_report.h"
#include "report.h"
#include "util/embed.h"

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
    const char *page = (const char *)lap_report_page;
    lap_output_t output;
    lap_status_t status = LAP_OK;
    LAP_TRY(lap_output_open("the report", path, &output));
    for (int m = 0; m < 2; m++) {
        const char *at = strstr(page, markers[m]);
        fwrite(page, 1, (size_t)(at - page), output.file);
        for (size_t i = 0; i < count && status == LAP_OK; i++)
            if (m == 0)
                lap_report_put_static(output.file, &traces[i]);
            else
                status = put_trace(output.file, &traces[i]);
        page = at + strlen(markers[m]);
    }
    fputs(page, output.file);
    return lap_output_close(&output, status);
}
