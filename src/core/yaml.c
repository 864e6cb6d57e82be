/* SPDX-License-Identifier: Apache-2.0 */
/* Reads settings in YAML, event by event, so that every entry has its line: see yaml.h. */
#include "core/yaml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "core/file.h"

#define DEPTH 16

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event;
    const char *path;
    lap_yaml_each_t each;
    void *context;
    lap_yaml_entry_t entry;
} reader_t;

static lap_status_t next(reader_t *reader)
{
    const yaml_parser_t *parser = &reader->parser;
    yaml_event_delete(&reader->event);
    memset(&reader->event, 0, sizeof(reader->event));
    if (yaml_parser_parse(&reader->parser, &reader->event))
        return LAP_OK;
    if (parser->error == YAML_MEMORY_ERROR)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to read '%s'", reader->path);
    const bool reading = parser->error == YAML_READER_ERROR;
    return lap_error(LAP_ERR_INVALID, "%s:%zu: this is not YAML: %s%s%s", reader->path,
                     reading ? parser->mark.line + 1 : parser->problem_mark.line + 1,
                     parser->context ? parser->context : "", parser->context ? ", " : "",
                     parser->problem ? parser->problem : "it cannot be read");
}

static size_t line_of(const reader_t *reader)
{
    return reader->event.start_mark.line + 1;
}

/* Adds the scalar at hand to a text of `room` bytes; false: it is cut, or not printable. */
static bool add_scalar(const reader_t *reader, char *text, size_t room)
{
    const size_t used = strlen(text), length = reader->event.data.scalar.length;
    bool whole = used + length < room;
    size_t i = 0;
    for (; i < length && used + i + 1 < room; i++) {
        const unsigned char c = reader->event.data.scalar.value[i];
        const bool prints = c >= 0x20 && c != 0x7f;
        text[used + i] = prints ? (char)c : '?';
        whole = whole && prints;
    }
    text[used + i] = '\0';
    return whole;
}

/* What null is in YAML 1.1. */
static bool is_null(const reader_t *reader)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    const char *value = (const char *)reader->event.data.scalar.value;
    if (reader->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    for (size_t i = 0; i < sizeof(nulls) / sizeof(nulls[0]); i++)
        if (strcmp(value, nulls[i]) == 0)
            return true;
    return false;
}

/* Reads past what the event at hand begins; it ends with its end. */
static lap_status_t skip(reader_t *reader)
{
    size_t depth = 0;
    for (;;) {
        const yaml_event_type_t type = reader->event.type;
        if (type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT)
            depth++;
        else if (type == YAML_MAPPING_END_EVENT || type == YAML_SEQUENCE_END_EVENT)
            depth--;
        if (depth == 0)
            return LAP_OK;
        LAP_TRY(next(reader));
    }
}

static lap_status_t read_list(reader_t *reader)
{
    lap_yaml_entry_t *entry = &reader->entry;
    entry->kind = LAP_YAML_LIST;
    entry->whole = true;
    LAP_TRY(next(reader));
    while (reader->event.type != YAML_SEQUENCE_END_EVENT) {
        const size_t used = strlen(entry->value);
        if (used > 0 && used + 1 < sizeof(entry->value))
            memcpy(entry->value + used, ",", 2);
        if (reader->event.type == YAML_SCALAR_EVENT)
            entry->whole = add_scalar(reader, entry->value, sizeof(entry->value)) && entry->whole;
        else
            entry->kind = LAP_YAML_OTHER;
        LAP_TRY(skip(reader));
        LAP_TRY(next(reader));
    }
    return LAP_OK;
}

/* The event at hand is the value of an entry, which is no mapping. */
static lap_status_t read_value(reader_t *reader)
{
    lap_yaml_entry_t *entry = &reader->entry;
    entry->value[0] = '\0';
    entry->whole = false;
    entry->kind = LAP_YAML_OTHER;
    if (reader->event.type == YAML_SCALAR_EVENT) {
        entry->kind = is_null(reader) ? LAP_YAML_NULL : LAP_YAML_SCALAR;
        entry->whole = add_scalar(reader, entry->value, sizeof(entry->value));
    } else if (reader->event.type == YAML_SEQUENCE_START_EVENT) {
        LAP_TRY(read_list(reader));
    }
    return reader->each(reader->context, entry);
}

/* The entries of all mappings. The event at hand is the first within the outermost. */
static lap_status_t read_entries(reader_t *reader)
{
    size_t lengths[DEPTH] = {0}, depth = 0; /* of the paths of mappings that are open */
    lap_yaml_entry_t *entry = &reader->entry;
    for (;;) {
        if (reader->event.type == YAML_MAPPING_END_EVENT) {
            if (depth-- == 0)
                return LAP_OK;
            LAP_TRY(next(reader));
            continue;
        }
        if (reader->event.type != YAML_SCALAR_EVENT)
            return lap_error(LAP_ERR_INVALID, "%s:%zu: this key is no word", reader->path,
                             line_of(reader));
        const size_t begin = lengths[depth];
        entry->path[begin] = '\0';
        add_scalar(reader, entry->path, sizeof(entry->path));
        entry->key = entry->path + begin;
        entry->line = line_of(reader);
        LAP_TRY(next(reader));
        if (reader->event.type != YAML_MAPPING_START_EVENT) {
            LAP_TRY(read_value(reader));
        } else if (depth + 1 == DEPTH || strlen(entry->path) + 2 > sizeof(entry->path)) {
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: mappings lie too deep in each other, expected at most %d",
                             reader->path, line_of(reader), DEPTH);
        } else {
            const size_t length = strlen(entry->path);
            memcpy(entry->path + length, ".", 2);
            lengths[++depth] = length + 1;
        }
        LAP_TRY(next(reader));
    }
}

static lap_status_t read_stream(reader_t *reader)
{
    LAP_TRY(next(reader)); /* the start of the stream */
    LAP_TRY(next(reader));
    if (reader->event.type == YAML_STREAM_END_EVENT)
        return LAP_OK;
    LAP_TRY(next(reader));
    if (reader->event.type != YAML_MAPPING_START_EVENT)
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: this is not a mapping, expected names and values", reader->path,
                         line_of(reader));
    LAP_TRY(next(reader));
    LAP_TRY(read_entries(reader));
    LAP_TRY(next(reader)); /* the end of the document */
    LAP_TRY(next(reader));
    if (reader->event.type == YAML_STREAM_END_EVENT)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "%s:%zu: a second YAML document begins, expected one",
                     reader->path, line_of(reader));
}

lap_status_t lap_yaml_read(const char *path, lap_yaml_each_t each, void *context)
{
    reader_t reader = {.path = path, .each = each, .context = context};
    uint64_t bytes;
    int fd;
    LAP_TRY(lap_file_open(path, &fd, &bytes));
    FILE *file = fdopen(fd, "r");
    if (!file || !yaml_parser_initialize(&reader.parser)) {
        if (file)
            fclose(file);
        else
            close(fd);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to read '%s'", path);
    }
    yaml_parser_set_input_file(&reader.parser, file);
    const lap_status_t status = read_stream(&reader);
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    fclose(file);
    return status;
}
