/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that callers fill: of our version, of an older and of a newer one, and with no size. */
#include "core/options.h"

#include <string.h>

#include "tap.h"

/* A struct of three versions. The library that is tested here has the second. */
typedef struct first {
    size_t size;
    double time;
} first_t;

typedef struct second {
    size_t size;
    double time;
    const char *name;
} second_t;

typedef struct third {
    size_t size;
    double time;
    const char *name;
    double extra;
} third_t;

static const second_t defaults = {sizeof(second_t), 1.5, "default"};

static bool same(const second_t *a, const second_t *b)
{
    return a->size == b->size && a->time == b->time && a->name == b->name;
}

static lap_status_t read_second(const void *given, second_t *known_p)
{
    *known_p = defaults;
    return lap_read_options(known_p, sizeof(*known_p), given, "SECOND");
}

static void test_versions(void)
{
    second_t known;
    const second_t now = {sizeof(now), 2.5, "given"};
    tap_success(read_second(&now, &known), "a struct of this version");
    tap_ok(same(&known, &now), "all of its fields are read");

    const first_t old = {sizeof(old), 3.5};
    tap_success(read_second(&old, &known), "a struct of an older version");
    tap_ok(known.time == 3.5 && known.name == defaults.name, "what it lacks stays as it was");
    tap_ok(known.size == sizeof(known), "the size is that of this version");

    third_t new = {sizeof(new), 4.5, "newer", 0};
    tap_success(read_second(&new, &known), "a struct of a newer version, its new field not set");
    tap_ok(known.time == 4.5 && known.name == new.name &&known.size == sizeof(known),
           "the fields of this version are read");
    new.extra = 1;
    tap_failure(read_second(&new, &known), LAP_ERR_UNSUPPORTED, "SECOND.size is 32", "not know",
                "24", NULL);
    tap_ok(same(&known, &defaults), "nothing is read when an unknown field is set");
}

static void test_sizes(void)
{
    second_t known;
    first_t given = {0, 3.5};
    tap_failure(read_second(&given, &known), LAP_ERR_INVALID,
                "SECOND.size is 0, expected 24, as SECOND_INIT sets it", NULL);
    given.size = 3;
    tap_failure(read_second(&given, &known), LAP_ERR_INVALID, "SECOND.size is 3, expected 24",
                NULL);
    given.size = 4097;
    tap_failure(read_second(&given, &known), LAP_ERR_INVALID, "SECOND.size is 4097", NULL);
    given.size = SIZE_MAX;
    tap_failure(read_second(&given, &known), LAP_ERR_INVALID, "SECOND_INIT", NULL);
    tap_ok(same(&known, &defaults), "nothing is read from a struct without a proper size");
    given.size = sizeof(size_t);
    tap_success(read_second(&given, &known), "a struct of nothing but its size");
    tap_ok(same(&known, &defaults), "leaves all as it was");

    char longest[4096] = {0};
    memcpy(longest, &(size_t){sizeof(longest)}, sizeof(size_t));
    tap_success(read_second(longest, &known), "the longest struct");
    longest[4095] = 1;
    tap_failure(read_second(longest, &known), LAP_ERR_UNSUPPORTED, "byte 4095", NULL);
}

int main(void)
{
    test_versions();
    test_sizes();
    return tap_done();
}
