/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of gzip, so that a trace is a tenth as long. zlib is loaded when the first one is read or
 * written: LAP_ERR_UNSUPPORTED where there is none.
 */
#ifndef LAP_CLI_GZIP_H
#define LAP_CLI_GZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <lap/status.h>

/* Whether bytes are the beginning of such a file; and whether a path ends with ".gz". */
bool lap_is_gzip(const void *data, size_t bytes);
bool lap_has_gzip_name(const char *path);

/* Whether files can be compressed: before work whose result will be. */
lap_status_t lap_gzip_check(void);

/* Writes bytes compressed. Failures to write are the file's. */
lap_status_t lap_gzip(const void *data, size_t bytes, FILE *file);

/*
 * What such a file holds, in memory that the caller frees with lap_free; one more byte, 0, follows it.
 * LAP_ERR_INVALID: it is damaged, or holds more than `most` bytes. LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_gunzip(const char *path, size_t most, char **text_p, size_t *length_p);

#endif
