/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict reader of JSON: see json.h. Of fractions, true, false and null it only knows what they
 * look like.
 */
#include "util/json.h"

#include <string.h>

bool lap_json_fail(lap_json_reader_t *json, const char *expected)
{
    if (!json->wrong)
        json->wrong = expected;
    return false;
}

static void skip_space(lap_json_reader_t *json)
{
    static const char spaces[] = {' ', '\t', '\r', '\n'};
    while (json->at < json->bytes && memchr(spaces, json->text[json->at], sizeof(spaces)))
        json->at++;
}

/* Whether a character is next; if so it is taken. */
static bool take(lap_json_reader_t *json, char character)
{
    skip_space(json);
    if (json->wrong || json->at == json->bytes || json->text[json->at] != character)
        return false;
    json->at++;
    return true;
}

bool lap_json_open(lap_json_reader_t *json, char bracket)
{
    const bool object = bracket == '{';
    if (!take(json, bracket))
        return lap_json_fail(json, object ? "expected {" : "expected [");
    return !take(json, object ? '}' : ']');
}

bool lap_json_next(lap_json_reader_t *json, char bracket)
{
    if (take(json, bracket))
        return false;
    return take(json, ',') ||
           lap_json_fail(json, bracket == '}' ? "expected , or }" : "expected , or ]");
}

/* Four hexadecimal digits; -1: they are none. */
static int take_hex(lap_json_reader_t *json)
{
    int value = 0;
    if (json->bytes - json->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char c = json->text[json->at++];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/*
 * What follows a backslash, as one byte; -1: not that. Names of tensors are ASCII: characters
 * beyond come as they are, in UTF-8, or are refused.
 */
static int take_escape(lap_json_reader_t *json)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (json->at == json->bytes)
        return -1;
    const char c = json->text[json->at++];
    if (c == 'u') {
        const int value = take_hex(json);
        return value > 0 && value < 0x80 ? value : -1;
    }
    const char *found = c ? strchr(from, c) : NULL;
    return found ? (unsigned char)to[found - from] : -1;
}

bool lap_json_take_string(lap_json_reader_t *json, char *text, size_t room)
{
    size_t length = 0;
    if (!take(json, '"'))
        return lap_json_fail(json, "expected a string");
    while (json->at < json->bytes && json->text[json->at] != '"') {
        int c = (unsigned char)json->text[json->at++];
        if (c == '\\')
            c = take_escape(json);
        else if (c < 0x20)
            c = -1;
        if (c < 0)
            return lap_json_fail(json, "expected a string of printable characters");
        if (length + 1 >= room)
            return lap_json_fail(json, "expected a shorter string");
        text[length++] = (char)c;
    }
    text[length] = '\0';
    if (json->at == json->bytes)
        return lap_json_fail(json, "expected the end of a string");
    json->at++;
    return true;
}

bool lap_json_take_key(lap_json_reader_t *json, char *key, size_t room)
{
    if (!lap_json_take_string(json, key, room))
        return false;
    return take(json, ':') || lap_json_fail(json, "expected :");
}

bool lap_json_take_number(lap_json_reader_t *json, uint64_t *number_p)
{
    uint64_t number = 0;
    skip_space(json);
    const size_t begin = json->at;
    if (json->wrong)
        return false;
    while (json->at < json->bytes && json->text[json->at] >= '0' && json->text[json->at] <= '9') {
        const unsigned digit = (unsigned)(json->text[json->at++] - '0');
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, digit, &number))
            return lap_json_fail(json, "expected a whole number below 2^64");
    }
    if (json->at == begin || (json->text[begin] == '0' && json->at > begin + 1))
        return lap_json_fail(json, "expected a whole number");
    *number_p = number;
    return true;
}

/* ---- values that nobody wants ---- */

static bool skip_string(lap_json_reader_t *json)
{
    for (json->at++; json->at < json->bytes && json->text[json->at] != '"'; json->at++) {
        if ((unsigned char)json->text[json->at] < 0x20)
            return lap_json_fail(json, "expected a string of printable characters");
        json->at += json->text[json->at] == '\\' && json->at + 1 < json->bytes;
    }
    if (json->at == json->bytes)
        return lap_json_fail(json, "expected the end of a string");
    json->at++;
    return true;
}

static bool skip_digits(lap_json_reader_t *json)
{
    const size_t begin = json->at;
    while (json->at < json->bytes && json->text[json->at] >= '0' && json->text[json->at] <= '9')
        json->at++;
    return json->at > begin || lap_json_fail(json, "expected a digit");
}

static bool take_one(lap_json_reader_t *json, const char *characters)
{
    const bool found =
        json->at < json->bytes && json->text[json->at] && strchr(characters, json->text[json->at]);
    json->at += found;
    return found;
}

/* A number, or one of three words. */
static bool skip_plain(lap_json_reader_t *json)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const size_t length = strlen(words[i]);
        if (json->bytes - json->at >= length &&
            memcmp(json->text + json->at, words[i], length) == 0) {
            json->at += length;
            return true;
        }
    }
    (void)take_one(json, "-");
    if (json->at == json->bytes || json->text[json->at] < '0' || json->text[json->at] > '9')
        return lap_json_fail(json, "expected a value");
    (void)skip_digits(json);
    if (take_one(json, ".") && !skip_digits(json))
        return false;
    if (!take_one(json, "eE"))
        return true;
    (void)take_one(json, "+-");
    return skip_digits(json);
}

/* Into the next value: what it opens is on the stack. False: a failure. */
static bool skip_into(lap_json_reader_t *json, char *stack, size_t *depth)
{
    skip_space(json);
    const char c = json->at < json->bytes ? json->text[json->at] : '\0';
    if (c != '{' && c != '[')
        return c == '"' ? skip_string(json) : skip_plain(json);
    if (*depth == LAP_JSON_DEPTH)
        return lap_json_fail(json, "expected objects and lists that are not so deep");
    const char end = c == '{' ? '}' : ']';
    if (lap_json_open(json, c))
        stack[(*depth)++] = end;
    return !json->wrong;
}

static bool skip_key(lap_json_reader_t *json)
{
    skip_space(json);
    if (json->at == json->bytes || json->text[json->at] != '"')
        return lap_json_fail(json, "expected a string");
    return skip_string(json) && (take(json, ':') || lap_json_fail(json, "expected :"));
}

/* A key stands before each value of an object. */
bool lap_json_skip(lap_json_reader_t *json)
{
    char stack[LAP_JSON_DEPTH];
    size_t depth = 0;
    if (json->wrong || !skip_into(json, stack, &depth))
        return false;
    bool fresh = depth > 0; /* what is on top of the stack has just been opened */
    while (depth > 0) {
        const char end = stack[depth - 1];
        if (!fresh && !lap_json_next(json, end)) {
            if (json->wrong)
                return false;
            depth--;
            continue;
        }
        const size_t before = depth;
        if ((end == '}' && !skip_key(json)) || !skip_into(json, stack, &depth))
            return false;
        fresh = depth > before;
    }
    return true;
}

bool lap_json_take_members(lap_json_reader_t *json, const lap_json_member_t *members)
{
    char key[64];
    for (bool more = lap_json_open(json, '{'); more; more = lap_json_next(json, '}')) {
        const lap_json_member_t *member = members;
        if (!lap_json_take_key(json, key, sizeof(key)))
            return false;
        while (member->key && strcmp(member->key, key) != 0)
            member++;
        if (!(member->key ? member->take(json, member->to) : lap_json_skip(json)))
            return false;
    }
    return !json->wrong;
}

bool lap_json_end(lap_json_reader_t *json)
{
    skip_space(json);
    if (!json->wrong && json->at < json->bytes)
        json->wrong = "expected the end";
    return !json->wrong;
}
