/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of files, read and written whole or not at all, and small files of text. */
#ifndef LAP_CORE_FILE_H
#define LAP_CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Reads or writes a range, or fails with the name of the file and the byte. */
lap_status_t lap_file_read(int fd, const char *path, void *out, size_t bytes, uint64_t at);
lap_status_t lap_file_write(int fd, const char *path, const void *from, size_t bytes, uint64_t at);

/*
 * Opens a regular file for reading and writes its size: LAP_ERR_INVALID for what is none, without
 * waiting for the other end of a FIFO. The caller closes it.
 */
lap_status_t lap_file_open(const char *path, int *fd_p, uint64_t *bytes_p);

/*
 * Reads a small file as a string, also one of /proc or /sys, which has no size: the first `bytes` -
 * 1 bytes of a longer one. False, and an empty string, when there is nothing to read.
 */
bool lap_file_read_text(const char *path, char *text, size_t bytes);

#endif
