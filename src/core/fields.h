/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields of the structs that callers fill. Each is declared once, in a row of its struct's table;
 * bounds and their sentences, the comparison of ranks, and readers of knobs by name walk the table.
 */
#ifndef LAP_CORE_FIELDS_H
#define LAP_CORE_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "core/terms.h"

typedef enum lap_field_type {
    LAP_FIELD_UNSIGNED, /* of 4 or 8 bytes */
    LAP_FIELD_INT,
    LAP_FIELD_FLAG,   /* an int: 0, or anything else for 1 */
    LAP_FIELD_BITS,   /* unsigned: any of the bits of `most` */
    LAP_FIELD_CHOICE, /* an enum that counts from 0 */
    LAP_FIELD_DTYPE,
    LAP_FIELD_SINGLE,   /* a float: at least `least`, less than `most` */
    LAP_FIELD_POSITIVE, /* a float above 0, finite */
    LAP_FIELD_TEXT,
    LAP_FIELD_SKIPPED, /* neither bounded nor compared by its table */
} lap_field_type_t;

typedef struct lap_field {
    const char *name; /* NULL: the end of the table */
    size_t offset, bytes;
    lap_field_type_t type;
    double least, most;       /* of a number; equal: whatever it can hold */
    const char *const *words; /* of a choice: the names of its values, NULL at the end; */
    const char *prefix;       /* how their constants begin: "LAP_SHARDED_"; NULL: "LAP_" */
    unsigned marks;           /* of its table */
} lap_field_t;

/* The beginning of a row. */
#define LAP_FIELD(struct_type, field, field_type)                                                  \
    .name = #field, .offset = offsetof(struct_type, field),                                        \
    .bytes = sizeof(((struct_type *)0)->field), .type = (field_type)

/* The number that a field of `of` holds: sign-extended; 0 or 1 of a flag. */
uint64_t lap_field_number(const lap_field_t *field, const void *of);
void lap_field_set(const lap_field_t *field, void *of, uint64_t number);

/*
 * The value as sentences have it: of a choice its word. Returns the text, which may be elsewhere.
 */
#define LAP_FIELD_TEXT_BYTES LAP_SINGLE_TEXT
const char *lap_field_text(const lap_field_t *field, const void *of,
                           char text[LAP_FIELD_TEXT_BYTES]);

/*
 * Whether the value is within its bounds: LAP_OK, LAP_ERR_INVALID, or for a type or a bit that
 * there is not LAP_ERR_UNSUPPORTED, with the name, the value and what was expected.
 */
lap_status_t lap_field_check(const lap_field_t *field, const void *of);

/* The same of all rows of a plain table. */
lap_status_t lap_fields_check(const lap_field_t *table, const void *of);

/* Adds the field to what ranks must have alike. */
void lap_field_term(const lap_field_t *field, const void *of, lap_terms_t *terms);

/* The same of all rows that have all of some marks. */
void lap_fields_terms(const lap_field_t *table, unsigned marks, const void *of, lap_terms_t *terms);

#endif
