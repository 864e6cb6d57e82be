/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to any field of a struct. What fields mean together is not known here. */
#include "core/fields.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "util/join.h"

uint64_t lap_field_number(const lap_field_t *field, const void *of)
{
    const char *at = (const char *)of + field->offset;
    const bool is_signed = field->type != LAP_FIELD_UNSIGNED && field->type != LAP_FIELD_BITS;
    uint64_t wide;
    int32_t narrow;
    memcpy(&narrow, at, sizeof(narrow));
    if (field->type == LAP_FIELD_FLAG)
        return narrow != 0;
    if (field->bytes == sizeof(narrow))
        return is_signed ? (uint64_t)(int64_t)narrow : (uint32_t)narrow;
    memcpy(&wide, at, sizeof(wide));
    return wide;
}

void lap_field_set(const lap_field_t *field, void *of, uint64_t number)
{
    const uint32_t narrow = (uint32_t)number;
    const bool wide = field->bytes > sizeof(narrow);
    memcpy((char *)of + field->offset, wide ? (const void *)&number : &narrow, field->bytes);
}

static float single_of(const lap_field_t *field, const void *of)
{
    float value;
    memcpy(&value, (const char *)of + field->offset, sizeof(value));
    return value;
}

/* The word of a value of a choice, NULL past the last one. */
static const char *word_of(const lap_field_t *field, uint64_t value)
{
    if (field->type == LAP_FIELD_DTYPE)
        return lap_dtype_size((lap_dtype_t)value) > 0 ? lap_dtype_name((lap_dtype_t)value) : NULL;
    uint64_t i = 0;
    while (field->words && field->words[i] && i < value)
        i++;
    return field->words ? field->words[i] : NULL;
}

const char *lap_field_text(const lap_field_t *field, const void *of,
                           char text[LAP_FIELD_TEXT_BYTES])
{
    const unsigned long long number = lap_field_number(field, of);
    const char *word;
    if (field->type == LAP_FIELD_TEXT) {
        memcpy(&word, (const char *)of + field->offset, sizeof(word));
        return word ? word : "";
    }
    if (field->type == LAP_FIELD_SINGLE || field->type == LAP_FIELD_POSITIVE)
        word = lap_single_text(single_of(field, of), text);
    else
        word = word_of(field, number);
    if (!word && field->type == LAP_FIELD_BITS)
        snprintf(text, LAP_FIELD_TEXT_BYTES, "%#llx", number);
    else if (!word)
        snprintf(text, LAP_FIELD_TEXT_BYTES, field->type == LAP_FIELD_UNSIGNED ? "%llu" : "%lld",
                 number);
    return word ? word : text;
}

/* Names all values as C has them: "LAP_FORWARD (0), LAP_DGRAD (1)". */
static lap_status_t refuse_choice(const lap_field_t *field, const char *given)
{
    char all[256] = "", one[64];
    const char *word;
    for (unsigned i = 0; (word = word_of(field, i)) != NULL; i++) {
        snprintf(one, sizeof(one), "%s%s (%u)", field->prefix ? field->prefix : "LAP_", word, i);
        for (char *at = one; *at; at++)
            *at = (char)toupper((unsigned char)*at);
        lap_join(all, sizeof(all), one);
    }
    return lap_error(field->type == LAP_FIELD_DTYPE ? LAP_ERR_UNSUPPORTED : LAP_ERR_INVALID,
                     "%s is %s, expected one of %s", field->name, given, all);
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
    const uint64_t value = lap_field_number(field, of);
    const bool is_signed = field->type == LAP_FIELD_INT;
    const double number = is_signed ? (double)(int64_t)value : (double)value;
    char space[LAP_FIELD_TEXT_BYTES];
    const char *text = lap_field_text(field, of, space);
    if (field->type == LAP_FIELD_SINGLE || field->type == LAP_FIELD_POSITIVE)
        return check_single(field, single_of(field, of));
    if (field->type == LAP_FIELD_CHOICE || field->type == LAP_FIELD_DTYPE)
        return word_of(field, value) ? LAP_OK : refuse_choice(field, text);
    if (field->type == LAP_FIELD_BITS && (value & ~(uint64_t)field->most) != 0)
        return lap_error(LAP_ERR_UNSUPPORTED, "%s is %s, expected only bits of %#llx", field->name,
                         text, (unsigned long long)field->most);
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

void lap_field_term(const lap_field_t *field, const void *of, lap_terms_t *terms)
{
    char text[LAP_FIELD_TEXT_BYTES];
    if (field->type != LAP_FIELD_SKIPPED)
        lap_terms_text(terms, field->name, lap_field_text(field, of, text));
}

void lap_fields_terms(const lap_field_t *table, unsigned marks, const void *of, lap_terms_t *terms)
{
    for (const lap_field_t *field = table; field->name; field++)
        if ((field->marks & marks) == marks)
            lap_field_term(field, of, terms);
}
