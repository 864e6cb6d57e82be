/* SPDX-License-Identifier: Apache-2.0 */
/* A writer of JSON: see json_write.h. */
#include "util/json_write.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of the character that a text begins with, in UTF-8; 0: it begins with none. */
static size_t utf8_bytes(const char *text)
{
    const unsigned char first = (unsigned char)text[0], second = first ? (unsigned char)text[1] : 0;
    const size_t bytes = first < 0x80                    ? 1
                         : first >= 0xc2 && first < 0xe0 ? 2
                         : first >= 0xe0 && first < 0xf0 ? 3
                         : first >= 0xf0 && first < 0xf5 ? 4
                                                         : 0;
    /* Those that are written too long, halves of pairs of UTF-16, and those behind the last. */
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90))
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

/* The first bytes of a text, or as many as it has, in quotes. */
static void put_string(FILE *file, const char *text, size_t most)
{
    const char *end = text + strnlen(text, most);
    fputc('"', file);
    while (text < end) {
        const unsigned char c = (unsigned char)*text;
        const size_t bytes = utf8_bytes(text);
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else if (bytes == 0) /* names of files need not be UTF-8, and JSON has to be */
            fputs("\\ufffd", file);
        else
            fwrite(text, 1, bytes, file);
        text += bytes ? bytes : 1;
    }
    fputc('"', file);
}

/* Before a key or a value: what parts it from the one before. */
static void separate(lap_json_t *json)
{
    if (json->comma)
        fputc(',', json->file);
    if (json->lines > 0 && json->depth == json->lines)
        fputc('\n', json->file);
    json->comma = true;
}

static void put_close(lap_json_t *json, char bracket)
{
    assert(json->depth > 0);
    if (json->depth == json->lines) {
        fputc('\n', json->file);
        json->lines = 0;
    }
    fputc(bracket, json->file);
    json->comma = --json->depth > 0;
    if (json->depth == 0)
        fputc('\n', json->file);
}

/* A number, or null where JSON has none. */
static void put_real(FILE *file, char conversion, int digits, double value)
{
    if (!isfinite(value))
        fputs("null", file);
    else
        fprintf(file, conversion == 'g' ? "%.*g" : "%.*f", digits, value);
}

/* A value by its conversion, which is at `format`. Returns what follows that. */
static const char *put_value(FILE *file, const char *format, va_list *args)
{
    char *at = (char *)format + 1;
    const int digits = *at == '.' ? (int)strtol(at + 1, &at, 10) : -1;
    const bool wide = *at == 'l' || *at == 'z';
    at += wide;
    if (*at == 's') {
        const char *text = va_arg(*args, const char *);
        if (text)
            put_string(file, text, SIZE_MAX);
        else
            fputs("null", file);
    } else if (*at == 'i') {
        fputs(va_arg(*args, int) ? "true" : "false", file);
    } else if (*at == 'g' || *at == 'f') {
        put_real(file, *at, digits, va_arg(*args, double));
    } else if (*at == 'd') {
        fprintf(file, "%ld", wide ? va_arg(*args, long) : va_arg(*args, int));
    } else {
        assert(*at == 'u');
        fprintf(file, "%lu", wide ? va_arg(*args, unsigned long) : va_arg(*args, unsigned));
    }
    return at + 1;
}

/* Writes what begins at `at`, and returns what follows it. */
static const char *put_piece(lap_json_t *json, const char *at, va_list *args)
{
    size_t bytes;
    switch (*at) {
    case ' ':
        return at + 1;
    case ':':
        fputc(':', json->file);
        json->comma = false;
        return at + 1;
    case '}':
    case ']':
        put_close(json, *at);
        return at + 1;
    case '{':
    case '[':
        separate(json);
        fputc(*at, json->file);
        json->comma = false;
        json->depth++;
        if (at[1] != '\n')
            return at + 1;
        json->lines = json->depth;
        return at + 2;
    case '%':
        separate(json);
        return put_value(json->file, at, args);
    case '\'':
        bytes = strcspn(at + 1, "'");
        separate(json);
        put_string(json->file, at + 1, bytes);
        assert(at[1 + bytes]);
        return at + bytes + 2;
    default:
        bytes = strcspn(at, ": }]");
        separate(json);
        if (at[bytes] == ':')
            put_string(json->file, at, bytes);
        else
            fwrite(at, 1, bytes, json->file);
        return at + bytes;
    }
}

void lap_json_put(lap_json_t *json, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    while (*format)
        format = put_piece(json, format, &args);
    va_end(args);
}
