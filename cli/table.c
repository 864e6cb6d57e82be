/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of tables: see table.h. */
#include "table.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096 };

/* A line as far as it is printed, and where its next column begins. */
typedef struct line {
    const char *columns; /* that are left */
    int at, column;
} line_t;

/* In UTF-8 a character is its first byte and those that go on with it. */
static int count_characters(const char *text, size_t bytes)
{
    int count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* The text of the next column, NULL: its title. Spaces are printed with what comes after them: no line ends with one. */
static void put(line_t *line, const char *text)
{
    const int gap = (int)strspn(line->columns, " ");
    char *title = (char *)line->columns + gap + 1;
    const bool unknown = *title == '?';
    const int signed_width = (int)strtol(title + unknown, &title, 10);
    size_t bytes = strcspn(++title, "]");
    line->columns = title + bytes + 1;
    if (signed_width == 0)
        return;
    if (text && unknown && strstr(text, "nan"))
        text = "-";
    if (text)
        bytes = strlen(text);
    else
        text = title;
    const int length = count_characters(text, bytes), width = abs(signed_width);
    int begin = line->column + gap;
    line->column = begin + width;
    if (signed_width > 0 && length < width)
        begin += width - length;
    if (begin < line->at + gap)
        begin = line->at + gap;
    if (length == 0)
        return;
    printf("%*s%.*s", begin - line->at, "", (int)bytes, text);
    line->at = begin + length;
}

void lap_table_head(const char *columns)
{
    line_t line = {.columns = columns};
    while (*line.columns)
        put(&line, NULL);
    printf("\n");
}

void lap_table_row(const char *columns, const char *format, ...)
{
    line_t line = {.columns = columns};
    char texts[LINE], *next = texts;
    va_list args;
    va_start(args, format);
    vsnprintf(texts, sizeof(texts), format, args);
    va_end(args);
    while (*line.columns && next) {
        char *text = next;
        next = strchr(text, '\t');
        if (next)
            *next++ = '\0';
        put(&line, text);
    }
    printf("\n");
}
