/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warnings: the only thing the library prints by itself, for calls that return void. LAP_LOG=quiet
 * silences them.
 */
#ifndef LAP_UTIL_LOG_H
#define LAP_UTIL_LOG_H

void lap_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
