/* SPDX-License-Identifier: Apache-2.0 */
/* What must be true of every table of fields: it has all of its struct, and tells values apart. */
#ifndef LAP_TEST_FIELDS_H
#define LAP_TEST_FIELDS_H

#include <string.h>

#include "core/fields.h"
#include "tap.h"

/* The next row; rows lie `stride` bytes apart. */
static inline const lap_field_t *fields_next(const lap_field_t *field, size_t stride)
{
    return (const lap_field_t *)(const void *)((const char *)field + stride);
}

/* Between rows there is room for padding only, and a field does not begin on a boundary of less. */
static inline void fields_cover(const char *what, const lap_field_t *table, size_t stride,
                                size_t bytes)
{
    size_t at = 0;
    for (const lap_field_t *field = table; field->name; field = fields_next(field, stride)) {
        const size_t padded = (at + field->bytes - 1) / field->bytes * field->bytes;
        if (field->bytes <= 8 && field->offset != padded) {
            tap_ok(false, "%s: the row of %s follows that of the field before it", what,
                   field->name);
            return;
        }
        at = field->offset + field->bytes;
    }
    tap_ok((at + 7) / 8 * 8 == bytes, "%s: every field has a row", what);
}

/* A field of another value is another term, and no field is two. */
static inline void fields_differ(const char *what, const lap_field_t *table, size_t stride)
{
    size_t same = 0, skipped = 0, count = 0;
    for (const lap_field_t *field = table; field->name; field = fields_next(field, stride)) {
        char one[1024] = {0}, other[1024] = {0};
        const char *text = "other";
        const float half = 0.5f;
        lap_terms_t terms[2] = {{.of = NULL}, {.of = NULL}};
        count++;
        if (field->type == LAP_FIELD_SKIPPED) {
            skipped++;
            continue;
        }
        lap_field_set(field, other, 1);
        if (field->type == LAP_FIELD_TEXT)
            memcpy(other + field->offset, &text, sizeof(text));
        if (field->type == LAP_FIELD_SINGLE || field->type == LAP_FIELD_POSITIVE)
            memcpy(other + field->offset, &half, sizeof(half));
        lap_field_term(field, one, &terms[0]);
        lap_field_term(field, other, &terms[1]);
        if (terms[0].count != 1 || terms[1].count != 1 ||
            strcmp(terms[0].all[0].name, field->name) != 0 ||
            strcmp(terms[0].all[0].value, terms[1].all[0].value) == 0) {
            tap_ok(false, "%s: another %s is another term", what, field->name);
            same++;
        }
        lap_terms_clear(&terms[0]);
        lap_terms_clear(&terms[1]);
    }
    tap_ok(same == 0 && skipped < count, "%s: of %zu fields all but %zu are terms", what, count,
           skipped);
}

#endif
