/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses and sentences, types, shards, allocation, clock and version: what needs no ranks. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "tap.h"
#include "util/alloc.h"
#include "util/clock.h"

static void *other_thread(void *arg)
{
    (void)arg;
    tap_ok(strcmp(lap_last_error(), "") == 0, "a new thread has no last error");
    lap_error(LAP_ERR_BUSY, "elsewhere");
    return NULL;
}

static void test_statuses(void)
{
    tap_ok(strcmp(lap_status_string(LAP_OK), "success") == 0, "LAP_OK means success");
    tap_ok(strcmp(lap_status_string(LAP_ERR_PEER_LOST), "peer lost") == 0, "peer lost says so");
    tap_ok(strcmp(lap_status_string((lap_status_t)-99), "unknown status") == 0,
           "a value that is no status has a text too");
    tap_ok(strcmp(lap_last_error(), "") == 0, "no error yet");
    tap_failure(lap_error(LAP_ERR_INVALID, "k is %d, expected %d", 3, 4), LAP_ERR_INVALID,
                "k is 3, expected 4", NULL);
    tap_failure(lap_error(LAP_ERR_TIMEOUT, "barrier: %s", lap_last_error()), LAP_ERR_TIMEOUT,
                "barrier: k is 3, expected 4", NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, other_thread, NULL);
    pthread_join(thread, NULL);
    tap_ok(strstr(lap_last_error(), "barrier"), "the error of another thread is not ours");
    errno = EBADF;
    tap_failure(lap_error_errno("reading %s", "x"), LAP_ERR_SYSTEM, "reading x: ", "descriptor",
                NULL);
    errno = ENOMEM;
    tap_failure(lap_error_errno("mapping"), LAP_ERR_NO_MEMORY, "mapping: ", NULL);
    char text[3000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    lap_error(LAP_ERR_INVALID, "%s", text);
    tap_ok(strlen(lap_last_error()) == LAP_ERROR_TEXT - 1, "a long sentence is cut, not more");
}

static void test_types(void)
{
    lap_dtype_t dtype = (lap_dtype_t)7;
    tap_ok(lap_dtype_size(LAP_FLOAT32) == 4 && lap_dtype_size(LAP_FLOAT16) == 2 &&
               lap_dtype_size(LAP_BFLOAT16) == 2 && lap_dtype_size((lap_dtype_t)99) == 0,
           "sizes of types");
    tap_ok(strcmp(lap_dtype_name(LAP_FLOAT32), "float32") == 0 && lap_dtype_name((lap_dtype_t)-1),
           "names of types");
    static const struct {
        const char *name;
        lap_dtype_t dtype;
    } names[] = {{"float32", LAP_FLOAT32}, {"fp32", LAP_FLOAT32},      {"f32", LAP_FLOAT32},
                 {"float", LAP_FLOAT32},   {"float16", LAP_FLOAT16},   {"fp16", LAP_FLOAT16},
                 {"f16", LAP_FLOAT16},     {"half", LAP_FLOAT16},      {"bfloat16", LAP_BFLOAT16},
                 {"bf16", LAP_BFLOAT16},   {"BFloat16", LAP_BFLOAT16}, {"FP16", LAP_FLOAT16}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        dtype = (lap_dtype_t)7;
        tap_ok(lap_dtype_parse(names[i].name, &dtype) == LAP_OK && dtype == names[i].dtype,
               "%s is %s", names[i].name, lap_dtype_name(names[i].dtype));
    }
    dtype = (lap_dtype_t)7;
    tap_failure(lap_dtype_parse("", &dtype), LAP_ERR_INVALID, "''", NULL);
    tap_failure(lap_dtype_parse("int3", &dtype), LAP_ERR_INVALID, "int3", "float32", "float16",
                "bfloat16", NULL);
    tap_ok(dtype == (lap_dtype_t)7, "nothing is written on failure");
    tap_failure(lap_dtype_parse(NULL, &dtype), LAP_ERR_INVALID, "NULL", NULL);
}

static void test_shards(void)
{
    bool right = true;
    for (size_t total = 0; total < 40; total++) {
        for (int size = 1; size <= 17; size++) {
            size_t next = 0;
            for (int rank = 0; rank < size; rank++) {
                size_t begin, rows = lap_shard(total, size, rank, &begin);
                size_t more = (size_t)rank < total % (size_t)size;
                right = right && begin == next && rows == total / (size_t)size + more;
                next += rows;
            }
            right = right && next == total;
        }
    }
    tap_ok(right, "shards follow each other, cover all, and the first ones have one row more");
    tap_ok(lap_shard(7, 2, 0, NULL) == 4, "begin_p may be NULL");
    size_t begin = 5;
    tap_ok(lap_shard(7, 2, 2, &begin) == 0 && lap_shard(7, 0, 0, &begin) == 0 &&
               lap_shard(7, 2, -1, &begin) == 0,
           "a rank that is none has no rows");
}

/* Independent of the rule: what users may count on. */
static void test_feature_shards(void)
{
    bool covered = true, even = true, aligned = true, fair = true, something = true, small = true;
    for (size_t total = 0; total < 9000; total += total < 300 ? 1 : 37) {
        for (int size = 1; size <= 17; size++) {
            const size_t mean = total / (size_t)size;
            size_t next = 0;
            for (int rank = 0; rank < size; rank++) {
                size_t begin, count = lap_shard_features(total, size, rank, &begin);
                covered = covered && begin == next;
                even = even && (total % (size_t)size != 0 || count == mean);
                aligned = aligned && (total % (size_t)size == 0 || mean < 128 || begin % 8 == 0);
                aligned = aligned && (total % (size_t)size == 0 || mean < 1024 || begin % 64 == 0);
                fair = fair && count <= mean + mean / 16 + 1;
                something = something && (count > 0 || total < (size_t)size);
                small = small && (mean >= 128 || count == lap_shard(total, size, rank, NULL));
                next += count;
            }
            covered = covered && next == total;
        }
    }
    tap_ok(covered, "shares of features follow each other and cover all");
    tap_ok(even, "they are equal where the number of ranks divides the features");
    tap_ok(aligned, "else they begin at multiples of 8 features, long ones at multiples of 64");
    tap_ok(fair, "no rank has more than a sixteenth more than the mean");
    tap_ok(something, "every rank has some where there is one for each");
    tap_ok(small, "small ones are shared as rows are");
    size_t begin;
    tap_ok(lap_shard_features(8192, 3, 0, NULL) == 43 * 64 &&
               lap_shard_features(8192, 3, 1, &begin) == 43 * 64 && begin == 43 * 64 &&
               lap_shard_features(8192, 3, 2, &begin) == 42 * 64,
           "8192 features are 43, 43 and 42 times 64 on 3 ranks");
    tap_ok(lap_shard_features(8190, 4, 3, &begin) == 32 * 64 - 2 && begin == 96 * 64,
           "the last rank has what is left");
    tap_ok(lap_shard_features(7, 2, 2, &begin) == 0 && begin == 0 &&
               lap_shard_features(7, 0, 0, NULL) == 0 && lap_shard_features(7, 2, -1, NULL) == 0,
           "a rank that is none has no features");
}

static void test_util(void)
{
    int *p = lap_alloc(4, sizeof(int));
    tap_ok(p && !p[0] && !p[3], "memory is zeroed");
    p[3] = 9;
    int *q = lap_realloc(p, 4, 1000, sizeof(int));
    tap_ok(q && q[3] == 9 && !q[4] && !q[999], "grown memory keeps the old and zeroes the new");
    tap_ok(!lap_realloc(q, 1000, SIZE_MAX / 2, sizeof(int)), "growth that overflows is refused");
    tap_ok(!lap_alloc(SIZE_MAX / 2, 4), "a size that overflows is refused");
    lap_free(q);
    void *nothing = lap_alloc(0, 8);
    tap_ok(nothing, "nothing is something");
    lap_free(nothing);
    lap_free(NULL);
    uint64_t start = lap_now_ns();
    lap_sleep_until_ns(start + 3000000);
    tap_ok(lap_now_ns() - start >= 3000000, "a sleep lasts as long as it should");
    char version[32];
    snprintf(version, sizeof(version), "%d.%d.%d", LAP_VERSION_MAJOR, LAP_VERSION_MINOR,
             LAP_VERSION_PATCH);
    tap_ok(strcmp(lap_version_string(), version) == 0, "the library has the header's version");
}

int main(void)
{
    test_statuses();
    test_types();
    test_shards();
    test_feature_shards();
    test_util();
    return tap_done();
}
