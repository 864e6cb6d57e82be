/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of the rows of a table of options: what the value is, and which field of OPTIONS_OF takes
 * it, the struct that the including file names. An option without a value, given, makes its field 1
 * (ON) or 0 (OFF).
 */
#ifndef LAP_CLI_OPTION_ROWS_H
#define LAP_CLI_OPTION_ROWS_H

#include "cli.h"

#define TO(member, ...)                                                                            \
    .field = {.name = #member,                                                                     \
              .offset = offsetof(OPTIONS_OF, member),                                              \
              .bytes = sizeof(((OPTIONS_OF *)0)->member),                                          \
              .type = __VA_ARGS__}
#define READ_BY(reader, member) TO(member, LAP_FIELD_SKIPPED), .read = (reader)

/* Without a value; and with one that may be left out, "[=YES]". */
#define ON(member) TO(member, LAP_FIELD_FLAG)
#define OFF(member) TO(member, LAP_FIELD_FLAG), .off = true
#define YES(member) TO(member, LAP_FIELD_FLAG)

#define TEXT(member) TO(member, LAP_FIELD_TEXT)
#define WORD(member, names) TO(member, LAP_FIELD_CHOICE, .words = (names))
#define TYPE(member) TO(member, LAP_FIELD_DTYPE)

/* Whole numbers. A size may be written as 2K; a number has 64 bits. */
#define INT(member, from, to) TO(member, LAP_FIELD_INT, .least = (from), .most = (to))
#define SIZE(member, from, to) TO(member, LAP_FIELD_UNSIGNED, .least = (from), .most = (to))
#define COUNT(member) SIZE(member, 1, INT32_MAX)
#define NUMBER(member) TO(member, LAP_FIELD_UNSIGNED), .read = lap_read_number

/* Floats of 0 or more, a part less than 1; and a double. */
#define RATE(member) TO(member, LAP_FIELD_SINGLE)
#define PART(member) TO(member, LAP_FIELD_SINGLE, .most = 1)
#define REAL(member, from, to)                                                                     \
    TO(member, LAP_FIELD_SKIPPED, .least = (from), .most = (to)), .read = lap_read_real

#define TIMEOUT_OF(member) READ_BY(lap_read_timeout, member)
#define TARGET_OF(member) READ_BY(lap_read_target, member)
#define EPILOGUE_OF(member) READ_BY(lap_read_epilogue, member)
#define LINK_OF(member) READ_BY(lap_read_link, member)

#endif
