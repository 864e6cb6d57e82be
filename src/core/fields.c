/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to any field of a struct, whatever struct it is. What fields mean together is not known here. */
#include "core/fields.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"

#define FEW_WORDS 5 /* that a sentence names one by one */

uint64_t lap_field_number(const lap_field_t *field, const void *of)
{
    const char *at = (const char *)of + field->offset;
    uint64_t wide;
    int32_t narrow;
    memcpy(&narrow, at, sizeof(narrow));
    if (field->type == LAP_FIELD_FLAG)
        return narrow != 0;
    if (field->bytes == sizeof(narrow))
        return field->type == LAP_FIELD_UNSIGNED || field->type == LAP_FIELD_BITS
                   ? (uint32_t)narrow
                   : (uint64_t)(int64_t)narrow;
    memcpy(&wide, at, sizeof(wide));
    return wide;
}

void lap_field_set(const lap_field_t *field, void *of, uint64_t number)
{
    char *at = (char *)of + field->offset;
    const uint32_t narrow = (uint32_t)number;
    if (field->bytes == sizeof(narrow))
        memcpy(at, &narrow, sizeof(narrow));
    else
        memcpy(at, &number, sizeof(number));
}

const char *lap_field_text(const lap_field_t *field, const void *of,
                           char text[LAP_FIELD_TEXT_BYTES])
{
    const unsigned long long number = lap_field_number(field, of);
    const char *format = field->type == LAP_FIELD_BITS       ? "%#llx"
                         : field->type == LAP_FIELD_UNSIGNED ? "%llu"
                                                             : "%lld";
    snprintf(text, LAP_FIELD_TEXT_BYTES, format, number);
    return text;
}

static float single_of(const lap_field_t *field, const void *of)
{
    float value;
    memcpy(&value, (const char *)of + field->offset, sizeof(value));
    return value;
}

/* ---- bounds ---- */

/* The word of a value, NULL past the last one. */
static const char *word_of(const lap_field_t *field, uint64_t value)
{
    if (field->type == LAP_FIELD_DTYPE)
        return lap_dtype_size((lap_dtype_t)value) > 0 ? lap_dtype_name((lap_dtype_t)value) : NULL;
    for (uint64_t i = 0; i < value; i++)
        if (!field->words[i])
            return NULL;
    return field->words[value];
}

/* "LAP_FORWARD (0)": a value as C has it. */
static size_t add_constant(const lap_field_t *field, uint64_t value, char *text, size_t bytes)
{
    const int length = snprintf(text, bytes, "%s%s", field->prefix ? field->prefix : "LAP_",
                                word_of(field, value));
    for (char *at = text; *at; at++)
        *at = (char)toupper((unsigned char)*at);
    return (size_t)length +
           (size_t)snprintf(text + length, bytes - (size_t)length, " (%d)", (int)value);
}

/* All values, or where there are many the first and the last. */
static lap_status_t refuse_choice(const lap_field_t *field, const char *given)
{
    char all[256] = "";
    size_t used = 0, count = 0;
    while (word_of(field, count))
        count++;
    for (size_t i = 0; i<count; i += count> FEW_WORDS ? count - 1 : 1) {
        const char *before = i == 0              ? ""
                             : count > FEW_WORDS ? " to "
                             : i + 1 < count     ? ", "
                                                 : " or ";
        used += (size_t)snprintf(all + used, sizeof(all) - used, "%s", before);
        used += add_constant(field, i, all + used, sizeof(all) - used);
    }
    return lap_error(field->type == LAP_FIELD_DTYPE ? LAP_ERR_UNSUPPORTED : LAP_ERR_INVALID,
                     "%s is %s, expected %s", field->name, given, all);
}

static lap_status_t check_single(const lap_field_t *field, float value)
{
    const bool above = field->type == LAP_FIELD_POSITIVE;
    const double most = field->most > field->least ? field->most : INFINITY;
    if ((above ? value > 0 : (double)value >= field->least) && (double)value < most)
        return LAP_OK;
    if (isfinite(most))
        return lap_error(LAP_ERR_INVALID, "%s is %g, expected at least %g and less than %g",
                         field->name, (double)value, field->least, most);
    return lap_error(LAP_ERR_INVALID, "%s is %g, expected a finite number %s", field->name,
                     (double)value, above ? "above 0" : "of 0 or more");
}

lap_status_t lap_field_check(const lap_field_t *field, const void *of)
{
    if (field->type == LAP_FIELD_TEXT || field->type == LAP_FIELD_SKIPPED)
        return LAP_OK;
    if (field->type == LAP_FIELD_SINGLE || field->type == LAP_FIELD_POSITIVE)
        return check_single(field, single_of(field, of));
    const uint64_t value = lap_field_number(field, of);
    char text[LAP_FIELD_TEXT_BYTES];
    lap_field_text(field, of, text);
    if (field->type == LAP_FIELD_CHOICE || field->type == LAP_FIELD_DTYPE)
        return word_of(field, value) ? LAP_OK : refuse_choice(field, text);
    if (field->type == LAP_FIELD_BITS && (value & ~(uint64_t)field->most) != 0)
        return lap_error(LAP_ERR_UNSUPPORTED, "%s is %s, expected only bits of %#llx", field->name,
                         text, (unsigned long long)field->most);
    const bool is_signed = field->type == LAP_FIELD_INT;
    const double number = is_signed ? (double)(int64_t)value : (double)value;
    if (field->least == field->most || (number >= field->least && number <= field->most))
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "%s is %s, expected %.0f to %.0f", field->name, text,
                     field->least, field->most);
}

lap_status_t lap_fields_check(const lap_field_t *table, const void *of)
{
    for (const lap_field_t *field = table; field->name; field++)
        LAP_TRY(lap_field_check(field, of));
    return LAP_OK;
}

/* ---- terms ---- */

void lap_field_term(const lap_field_t *field, const void *of, lap_terms_t *terms)
{
    const char *text = NULL;
    char number[LAP_FIELD_TEXT_BYTES];
    switch (field->type) {
    case LAP_FIELD_SKIPPED:
        break;
    case LAP_FIELD_TEXT:
        memcpy(&text, (const char *)of + field->offset, sizeof(text));
        lap_terms_text(terms, field->name, text);
        break;
    case LAP_FIELD_CHOICE:
    case LAP_FIELD_DTYPE:
        lap_terms_text(terms, field->name, word_of(field, lap_field_number(field, of)));
        break;
    case LAP_FIELD_SINGLE:
    case LAP_FIELD_POSITIVE:
        lap_terms_single(terms, field->name, single_of(field, of));
        break;
    case LAP_FIELD_UNSIGNED:
    case LAP_FIELD_INT:
    case LAP_FIELD_FLAG:
    case LAP_FIELD_BITS:
        lap_terms_text(terms, field->name, lap_field_text(field, of, number));
        break;
    }
}

void lap_fields_terms(const lap_field_t *table, unsigned marks, const void *of, lap_terms_t *terms)
{
    for (const lap_field_t *field = table; field->name; field++)
        if ((field->marks & marks) == marks)
            lap_field_term(field, of, terms);
}
