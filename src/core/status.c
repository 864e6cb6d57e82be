/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts of statuses and the sentence of the last failure of each thread. This is also the one
 * place where errno becomes a status.
 */
#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[LAP_ERROR_TEXT];

const char *lap_status_string(lap_status_t status)
{
#define STATUS_CASE(name, value, text)                                                             \
    case LAP_##name:                                                                               \
        return text;
    switch (status) {
        LAP_STATUS_LIST(STATUS_CASE)
    }
#undef STATUS_CASE
    return "unknown status";
}

const char *lap_last_error(void)
{
    return last_error;
}

lap_status_t lap_error(lap_status_t status, const char *format, ...)
{
    /* Not straight into last_error: the arguments may be lap_last_error() itself. */
    char text[LAP_ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    memcpy(last_error, text, sizeof(text));
    return status;
}

void lap_error_save(lap_saved_error_t *saved)
{
    memcpy(saved->text, last_error, sizeof(last_error));
}

void lap_error_restore(const lap_saved_error_t *saved)
{
    memcpy(last_error, saved->text, sizeof(last_error));
}

lap_status_t lap_error_errno(const char *format, ...)
{
    const int error = errno;
    char text[LAP_ERROR_TEXT], reason[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    lap_error(LAP_ERR_SYSTEM, "%s: %s%s", text, strerror_r(error, reason, sizeof(reason)),
              error == EMFILE ? " (ulimit -n)" : "");
    errno = error;
    return error == ENOMEM ? LAP_ERR_NO_MEMORY : LAP_ERR_SYSTEM;
}
