/* SPDX-License-Identifier: Apache-2.0 */
/* The writer of JSON: commas, lines, escapes and numbers, and that a full file is not silent. */
#include "util/json_write.h"

#include <math.h>
#include <string.h>

#include "tap.h"

enum { ROOM = 512 };

/* A writer whose text is in a buffer when it is closed. */
static lap_json_t begin(char text[ROOM])
{
    memset(text, 0, ROOM);
    return (lap_json_t){.file = fmemopen(text, ROOM, "w")};
}

static void check(lap_json_t *json, const char *text, const char *expected, const char *what)
{
    fclose(json->file);
    if (!tap_ok(strcmp(text, expected) == 0, "%s", what))
        printf("# %s\n", text);
}

static void check_structure(void)
{
    char text[ROOM];
    lap_json_t json = begin(text);
    lap_json_put(&json, "{");
    lap_json_put(&json, "empty:{} none:[]");
    lap_json_put(&json, "a:%d list:[", 1);
    for (int i = 0; i < 3; i++)
        lap_json_put(&json, "%d", i);
    lap_json_put(&json, "] %s:{b:%d c:%d} objects:[{d:%d} {e:%d}]}", "of \"two\"", 2, 3, 4, 5);
    check(&json, text,
          "{\"empty\":{},\"none\":[],\"a\":1,\"list\":[0,1,2],\"of \\\"two\\\"\":{\"b\":2,\"c\":3},"
          "\"objects\":[{\"d\":4},{\"e\":5}]}\n",
          "commas stand between, in pieces and in one");
    json = begin(text);
    lap_json_put(&json, "{key:");
    lap_json_put(&json, "%d}", 1);
    lap_json_put(&json, "[%d [%d]]", 2, 3);
    check(&json, text, "{\"key\":1}\n[2,[3]]\n", "a key before its value; a line for each text");
    json = begin(text);
    lap_json_put(&json, "{list:[\n{a:%d} {b:[%d %d]}", 1, 2, 3);
    lap_json_put(&json, "%d] more:[%d %d] none:[\n]}", 4, 5, 6);
    check(&json, text,
          "{\"list\":[\n{\"a\":1},\n{\"b\":[2,3]},\n4\n],\"more\":[5,6],\"none\":[\n]}\n",
          "elements with a line of their own");
}

static void check_values(void)
{
    char text[ROOM];
    const char *volatile none = NULL; /* gcc warns of what it sees to be NULL */
    lap_json_t json = begin(text);
    lap_json_put(&json, "[%d %u %ld %lu %zu", -1, 4294967295u, -5000000000L, 1UL << 63, (size_t)7);
    lap_json_put(&json, "%g %.3g %.17g %.2f %.0f %f]", 0.1, 1e10, 0.1, 2.345678, 1e15, 0.5);
    check(&json, text,
          "[-1,4294967295,-5000000000,9223372036854775808,7,"
          "0.1,1e+10,0.10000000000000001,2.35,1000000000000000,0.500000]\n",
          "numbers");
    json = begin(text);
    lap_json_put(&json, "{nan:%.9g inf:%.3f text:%s %s:%s", NAN, -INFINITY, none, "k", "v");
    lap_json_put(&json, "yes:%i no:%i plain:true also:null one:-1.5 last:'it is'}", 1 == 1, 1 == 2);
    check(&json, text,
          "{\"nan\":null,\"inf\":null,\"text\":null,\"k\":\"v\",\"yes\":true,\"no\":false,"
          "\"plain\":true,\"also\":null,\"one\":-1.5,\"last\":\"it is\"}\n",
          "null, truth and what stands in the template");
}

static void check_string(const char *given, const char *expected)
{
    char text[ROOM];
    lap_json_t json = begin(text);
    lap_json_put(&json, "%s", given);
    check(&json, text, expected, "a string");
}

static void check_strings(void)
{
    check_string("a\"b\\c\n\x01\xc3\xa9", "\"a\\\"b\\\\c\\u000a\\u0001\xc3\xa9\"");
    /* What is no UTF-8: bytes of Latin-1, one that is cut, one that is written too long, a half of a pair, one too large. */
    check_string("\xff"
                 "b",
                 "\"\\ufffdb\"");
    check_string("\xe9t\xe9", "\"\\ufffdt\\ufffd\"");
    check_string("x\xe2\x82", "\"x\\ufffd\\ufffd\"");
    check_string("\xc0\xaf", "\"\\ufffd\\ufffd\"");
    check_string("\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"");
    check_string("\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
    check_string("\xe2\x82\xac \xf0\x9f\x9a\xa2 \xed\x9f\xbf \xf4\x8f\xbf\xbf",
                 "\"\xe2\x82\xac \xf0\x9f\x9a\xa2 \xed\x9f\xbf \xf4\x8f\xbf\xbf\"");
}

static void check_full(void)
{
    lap_json_t json = {.file = fopen("/dev/full", "we")};
    for (int i = 0; i < 100; i++)
        lap_json_put(&json, "{a:%d}", i);
    fflush(json.file);
    tap_ok(ferror(json.file), "a file that is full");
    fclose(json.file);
}

int main(void)
{
    check_structure();
    check_values();
    check_strings();
    check_full();
    return tap_done();
}
