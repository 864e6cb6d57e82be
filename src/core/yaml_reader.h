/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading YAML event by event, so that every mistake has a line. Only for files that are built with
 * libyaml.
 */
#ifndef LAP_CORE_YAML_READER_H
#define LAP_CORE_YAML_READER_H

#include <stdbool.h>
#include <stddef.h>

#include <yaml.h>

#include "core/status.h"

typedef struct lap_yaml_reader {
    yaml_parser_t parser;
    yaml_event_t event;   /* the latest; empty before the first */
    const char *path;     /* for sentences */
    const char *expected; /* what a file has: "names and values" */
    bool may_be_empty;
    /* Reads the mapping that a document is: its start is at hand before, and its end afterwards. */
    lap_status_t (*body)(struct lap_yaml_reader *reader);
    void *context; /* of the body */
} lap_yaml_reader_t;

/*
 * Reads a file, or a text, with the last four fields filled: one document, which is a mapping.
 * LAP_ERR_INVALID: it is none, with the line; LAP_ERR_SYSTEM: it cannot be read; or what the body
 * returns.
 */
lap_status_t lap_yaml_read_file(lap_yaml_reader_t *reader, const char *path);
lap_status_t lap_yaml_read_text(lap_yaml_reader_t *reader, const char *name, const char *text,
                                size_t bytes);

/* Goes on to the next event. */
lap_status_t lap_yaml_next(lap_yaml_reader_t *reader);

/* The line of the event at hand. */
size_t lap_yaml_line(const lap_yaml_reader_t *reader);

/* Adds the scalar at hand to a text of `room` bytes; false: it is cut, or not printable. */
bool lap_yaml_add_scalar(const lap_yaml_reader_t *reader, char *text, size_t room);

/*
 * Whether the scalar at hand has no quotes; and whether a word without them is what YAML 1.1 has
 * for null.
 */
bool lap_yaml_is_plain(const lap_yaml_reader_t *reader);
bool lap_yaml_is_null(const char *word);

#endif
