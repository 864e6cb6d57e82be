/* SPDX-License-Identifier: Apache-2.0 */
/* How functions of the library fail: a status, and for each thread the sentence that says why. */
#ifndef LAP_CORE_STATUS_H
#define LAP_CORE_STATUS_H

#include <lap/status.h>

/* Room for the sentence of lap_last_error, with its end. */
#define LAP_ERROR_TEXT 1024

/*
 * Keeps the sentence for lap_last_error and returns `status`, so that a failure is one line: return
 * lap_error(...).
 */
lap_status_t lap_error(lap_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* As lap_error, with ": " and what errno means at the end, and LAP_ERR_NO_MEMORY for ENOMEM. */
lap_status_t lap_error_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Around what may fail without a word of it being of use, as when things are ended after a failure:
 * the caller has yet to read why.
 */
typedef struct lap_saved_error {
    char text[LAP_ERROR_TEXT];
} lap_saved_error_t;
void lap_error_save(lap_saved_error_t *saved);
void lap_error_restore(const lap_saved_error_t *saved);

/* Passes a failure up. For calls after which there is nothing to undo. */
#define LAP_TRY(call)                                                                              \
    do {                                                                                           \
        lap_status_t lap_try_status = (call);                                                      \
        if (lap_try_status != LAP_OK)                                                              \
            return lap_try_status;                                                                 \
    } while (0)

#endif
