/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads JSON that its caller knows the shape of: strictly, and never past its end. The first
 * failure stays: all calls after it return false.
 *
 *     for (bool more = lap_json_open(json, '{'); more; more = lap_json_next(json, '}'))
 *         ok = lap_json_take_key(json, key, sizeof(key)) && lap_json_take_number(json, &value);
 *     if (!lap_json_end(json))
 *         printf("byte %zu: %s\n", json->at, json->wrong);
 */
#ifndef LAP_UTIL_JSON_H
#define LAP_UTIL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lap_json_reader {
    const char *text;
    size_t bytes;
    size_t at;         /* what is read next; after a failure where it is */
    const char *wrong; /* what was expected there; NULL: nothing has failed */
} lap_json_reader_t;

/* Begins an object or a list ('{' or '['). True: there is an element, which is next. */
bool lap_json_open(lap_json_reader_t *json, char bracket);

/* After an element: goes on to the next (true), or past the end of the object or list. */
bool lap_json_next(lap_json_reader_t *json, char bracket);

/* The key of an element of an object, with its colon; a string; a whole number. */
bool lap_json_take_key(lap_json_reader_t *json, char *key, size_t room);
bool lap_json_take_string(lap_json_reader_t *json, char *text, size_t room);
bool lap_json_take_number(lap_json_reader_t *json, uint64_t *number_p);

/* A member of an object: its key, and the function that takes its value. */
typedef struct lap_json_member {
    const char *key;
    bool (*take)(lap_json_reader_t *json, void *to);
    void *to;
} lap_json_member_t;

/*
 * An object of these members, whose list ends with a NULL; others are left out, and any may be
 * missing.
 */
bool lap_json_take_members(lap_json_reader_t *json, const lap_json_member_t *members);

/* Any value, which is looked at and left out; LAP_JSON_DEPTH objects and lists deep at most. */
#define LAP_JSON_DEPTH 64
bool lap_json_skip(lap_json_reader_t *json);

/* Fails with what was expected, at the place of what was read last. Returns false. */
bool lap_json_fail(lap_json_reader_t *json, const char *expected);

/* Whether all was well, and nothing but white space follows. */
bool lap_json_end(lap_json_reader_t *json);

#endif
