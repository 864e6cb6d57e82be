/* SPDX-License-Identifier: Apache-2.0 */
/* Reads settings in YAML, event by event, so that every entry has its line: see yaml.h. */
#include "core/yaml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/yaml_reader.h"

#define DEPTH 16

/* ---- events ---- */

lap_status_t lap_yaml_next(lap_yaml_reader_t *reader)
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

size_t lap_yaml_line(const lap_yaml_reader_t *reader)
{
    return reader->event.start_mark.line + 1;
}

bool lap_yaml_add_scalar(const lap_yaml_reader_t *reader, char *text, size_t room)
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

bool lap_yaml_is_plain(const lap_yaml_reader_t *reader)
{
    return reader->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

bool lap_yaml_is_null(const char *word)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < sizeof(nulls) / sizeof(nulls[0]); i++)
        if (strcmp(word, nulls[i]) == 0)
            return true;
    return false;
}

/* ---- documents ---- */

/* One document, which is a mapping. */
static lap_status_t read_stream(lap_yaml_reader_t *reader)
{
    LAP_TRY(lap_yaml_next(reader)); /* the start of the stream */
    LAP_TRY(lap_yaml_next(reader));
    if (reader->event.type == YAML_STREAM_END_EVENT)
        return reader->may_be_empty
                   ? LAP_OK
                   : lap_error(LAP_ERR_INVALID, "%s:1: the file is empty, expected %s",
                               reader->path, reader->expected);
    LAP_TRY(lap_yaml_next(reader));
    if (reader->event.type != YAML_MAPPING_START_EVENT)
        return lap_error(LAP_ERR_INVALID, "%s:%zu: this is not a mapping, expected %s",
                         reader->path, lap_yaml_line(reader), reader->expected);
    LAP_TRY(reader->body(reader));
    LAP_TRY(lap_yaml_next(reader)); /* the end of the document */
    LAP_TRY(lap_yaml_next(reader));
    if (reader->event.type == YAML_STREAM_END_EVENT)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "%s:%zu: a second YAML document begins, expected one document", reader->path,
                     lap_yaml_line(reader));
}

/* Reads a file, or a text where there is none. */
static lap_status_t read_input(lap_yaml_reader_t *reader, const char *path, FILE *file,
                               const char *text, size_t bytes)
{
    reader->path = path;
    if (!yaml_parser_initialize(&reader->parser))
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to read '%s'", path);
    if (file)
        yaml_parser_set_input_file(&reader->parser, file);
    else
        yaml_parser_set_input_string(&reader->parser, (const yaml_char_t *)text, bytes);
    const lap_status_t status = read_stream(reader);
    yaml_event_delete(&reader->event);
    yaml_parser_delete(&reader->parser);
    return status;
}

lap_status_t lap_yaml_read_file(lap_yaml_reader_t *reader, const char *path)
{
    int fd;
    uint64_t bytes;
    LAP_TRY(lap_file_open(path, &fd, &bytes)); /* not a pipe: each rank reads it again */
    FILE *file = fdopen(fd, "r");
    if (!file) {
        close(fd);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to read '%s'", path);
    }
    const lap_status_t status = read_input(reader, path, file, NULL, 0);
    fclose(file);
    return status;
}

lap_status_t lap_yaml_read_text(lap_yaml_reader_t *reader, const char *name, const char *text,
                                size_t bytes)
{
    return read_input(reader, name, NULL, text, bytes);
}

/* ---- a flat list of entries ---- */

typedef struct list {
    lap_yaml_each_t each;
    void *context;
    lap_yaml_entry_t entry;
} list_t;

static lap_yaml_entry_t *entry_of(const lap_yaml_reader_t *reader)
{
    list_t *list = reader->context;
    return &list->entry;
}

/* Reads past what the event at hand begins; it ends with its end. */
static lap_status_t skip(lap_yaml_reader_t *reader)
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
        if (depth > DEPTH) /* libyaml takes the square of the depth */
            return lap_error(
                LAP_ERR_INVALID,
                "%s:%zu: lists and mappings lie too deep in each other, expected at most %d",
                reader->path, lap_yaml_line(reader), DEPTH);
        LAP_TRY(lap_yaml_next(reader));
    }
}

static lap_status_t read_list(lap_yaml_reader_t *reader)
{
    lap_yaml_entry_t *entry = entry_of(reader);
    entry->kind = LAP_YAML_LIST;
    entry->whole = true;
    LAP_TRY(lap_yaml_next(reader));
    while (reader->event.type != YAML_SEQUENCE_END_EVENT) {
        const size_t used = strlen(entry->value);
        if (used > 0 && used + 1 < sizeof(entry->value))
            memcpy(entry->value + used, ",", 2);
        if (reader->event.type == YAML_SCALAR_EVENT)
            entry->whole =
                lap_yaml_add_scalar(reader, entry->value, sizeof(entry->value)) && entry->whole;
        else
            entry->kind = LAP_YAML_OTHER;
        LAP_TRY(skip(reader));
        LAP_TRY(lap_yaml_next(reader));
    }
    return LAP_OK;
}

/* The event at hand is the value of an entry; of a mapping it is its start. */
static lap_status_t read_value(lap_yaml_reader_t *reader)
{
    lap_yaml_entry_t *entry = entry_of(reader);
    entry->value[0] = '\0';
    entry->whole = false;
    entry->kind = LAP_YAML_OTHER;
    if (reader->event.type == YAML_SCALAR_EVENT) {
        entry->whole = lap_yaml_add_scalar(reader, entry->value, sizeof(entry->value));
        const bool null =
            lap_yaml_is_plain(reader) && entry->whole && lap_yaml_is_null(entry->value);
        entry->kind = null ? LAP_YAML_NULL : LAP_YAML_SCALAR;
    } else if (reader->event.type == YAML_SEQUENCE_START_EVENT) {
        LAP_TRY(read_list(reader));
    } else {
        entry->kind = reader->event.type == YAML_ALIAS_EVENT ? LAP_YAML_ALIAS : LAP_YAML_MAPPING;
    }
    const list_t *list = reader->context;
    return list->each(list->context, entry);
}

/* The entries of all mappings. The event at hand begins the outermost. */
static lap_status_t read_entries(lap_yaml_reader_t *reader)
{
    size_t lengths[DEPTH] = {0}, depth = 0; /* of the paths of mappings that are open, */
    size_t sections[DEPTH] = {1};           /* and the lines of their keys */
    lap_yaml_entry_t *entry = entry_of(reader);
    LAP_TRY(lap_yaml_next(reader));
    for (;;) {
        if (reader->event.type == YAML_MAPPING_END_EVENT) {
            if (depth-- == 0)
                return LAP_OK;
            LAP_TRY(lap_yaml_next(reader));
            continue;
        }
        if (reader->event.type != YAML_SCALAR_EVENT)
            return lap_error(LAP_ERR_INVALID, "%s:%zu: this key is no word", reader->path,
                             lap_yaml_line(reader));
        const size_t begin = lengths[depth];
        entry->path[begin] = '\0';
        lap_yaml_add_scalar(reader, entry->path, sizeof(entry->path));
        entry->key = entry->path + begin;
        entry->line = lap_yaml_line(reader);
        entry->section = sections[depth];
        LAP_TRY(lap_yaml_next(reader));
        const bool mapping = reader->event.type == YAML_MAPPING_START_EVENT;
        LAP_TRY(read_value(reader));
        if (mapping && (depth + 1 == DEPTH || strlen(entry->path) + 2 > sizeof(entry->path)))
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: mappings lie too deep in each other, expected at most %d",
                             reader->path, lap_yaml_line(reader), DEPTH);
        if (mapping) {
            const size_t length = strlen(entry->path);
            memcpy(entry->path + length, ".", 2);
            lengths[++depth] = length + 1;
            sections[depth] = entry->line;
        }
        LAP_TRY(lap_yaml_next(reader));
    }
}

static lap_status_t read_flat(const char *path, const char *text, size_t bytes,
                              lap_yaml_each_t each, void *context)
{
    list_t list = {.each = each, .context = context};
    lap_yaml_reader_t reader = {.expected = "names and values",
                                .may_be_empty = true,
                                .body = read_entries,
                                .context = &list};
    return text ? lap_yaml_read_text(&reader, path, text, bytes)
                : lap_yaml_read_file(&reader, path);
}

lap_status_t lap_yaml_read(const char *path, lap_yaml_each_t each, void *context)
{
    return read_flat(path, NULL, 0, each, context);
}

lap_status_t lap_yaml_parse(const char *name, const char *text, size_t bytes, lap_yaml_each_t each,
                            void *context)
{
    return read_flat(name, text, bytes, each, context);
}
