/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of the rows of a table of options: what the value is, and which field of OPTIONS_OF takes it, the struct that the including
 * file names. An option without a value, given, makes its field 1 (ON) or 0 (OFF).
 */
#ifndef LAP_CLI_OPTION_ROWS_H
#define LAP_CLI_OPTION_ROWS_H

#include "cli.h"

/* clang-format off */
#define TO(member, ...)                                                                            \
    .field = {.name = #member, .offset = offsetof(OPTIONS_OF, member),                                 \
              .bytes = sizeof(((OPTIONS_OF *)0)->member), .type = __VA_ARGS__}
#define ON(member) TO(member, LAP_FIELD_FLAG)
#define OFF(member) TO(member, LAP_FIELD_FLAG), .off = true
#define YES(member) TO(member, LAP_FIELD_FLAG)                      /* of an option [=YES] */
#define TEXT(member) TO(member, LAP_FIELD_TEXT)
#define WORD(member, names) TO(member, LAP_FIELD_CHOICE, .words = (names))
#define TYPE(member) TO(member, LAP_FIELD_DTYPE)
#define INT(member, from, to) TO(member, LAP_FIELD_INT, .least = (from), .most = (to))
#define SIZE(member, from, to) TO(member, LAP_FIELD_UNSIGNED, .least = (from), .most = (to)) /* also 2K */
#define COUNT(member) SIZE(member, 1, INT32_MAX)
#define NUMBER(member) TO(member, LAP_FIELD_UNSIGNED), .read = lap_read_number   /* of 64 bits */
#define RATE(member) TO(member, LAP_FIELD_SINGLE)                   /* a float, 0 or more */
#define PART(member) TO(member, LAP_FIELD_SINGLE, .most = 1)        /* ... and less than 1 */
#define REAL(member, from, to) TO(member, LAP_FIELD_SKIPPED, .least = (from), .most = (to)), .read = lap_read_real /* a double */
#define TIMEOUT_OF(member) TO(member, LAP_FIELD_SKIPPED), .read = lap_read_timeout
#define TARGET_OF(member) TO(member, LAP_FIELD_SKIPPED), .read = lap_read_target
#define EPILOGUE_OF(member) TO(member, LAP_FIELD_SKIPPED), .read = lap_read_epilogue
#define LINK_OF(member) TO(member, LAP_FIELD_SKIPPED), .read = lap_read_link
/* clang-format on */

#endif
