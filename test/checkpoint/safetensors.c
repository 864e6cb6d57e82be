/* SPDX-License-Identifier: Apache-2.0 */
/* Files of safetensors: read as they are written, in all types of numbers; others are errors. */
#include "checkpoint/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"
#include "util/alloc.h"

static char path[] = "/tmp/lap-safetensors-XXXXXX";

/* A file of a header and `bytes` bytes of data, which count up. */
static void write_file(const char *header, size_t bytes)
{
    const uint64_t length = strlen(header);
    FILE *file = fopen(path, "w");
    fwrite(&length, 8, 1, file);
    fwrite(header, 1, length, file);
    for (size_t i = 0; i < bytes; i++)
        fputc((int)(i & 0x3f), file);
    fclose(file);
}

static void refuse(const char *header, size_t bytes, const char *first, const char *second)
{
    lap_st_file_t file;
    write_file(header, bytes);
    tap_failure(lap_st_open(path, &file), LAP_ERR_INVALID, path, first, second, NULL);
    lap_st_close(&file);
}

static void test_bad(void)
{
    refuse("", 0, "byte 8", "expected {");
    refuse("[]", 0, "byte 8", "expected {");
    refuse("{\"a\":{}}", 0, "expected dtype", "data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}} x", 4, "byte 63",
           "expected the end");
    refuse("{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "byte 22",
           "expected a type");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "byte",
           "expected a whole number");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, "byte",
           "expected a whole number");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "tensor 'a'",
           "0 to 4");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "tensor 'a'",
           "begins at 4, expected 0");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 8, "tensor 'a'",
           "4 to 0");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "tensor 'a'",
           "within the 3");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5,
           "has 5 bytes of data", "expected 4");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,0]}}",
           0, "tensor 'a'", "0 to 0");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
           "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
           8, "'a' twice", "expected it once");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
           "byte", "at most 8 dimensions");
    refuse("{\"a\\u0000\":{}}", 0, "byte", "printable");
    static const char other[] = "{\"model_type\":\"gpt2\"}";
    FILE *file = fopen(path, "w");
    fwrite(other, 1, sizeof(other) - 1, file);
    fclose(file);
    lap_st_file_t it;
    tap_failure(lap_st_open(path, &it), LAP_ERR_INVALID, path, "is no file of safetensors",
                "are not the length of a header; expected weights as safetensors", NULL);
    lap_st_close(&it);
    tap_ok(truncate(path, 5) == 0, "a file of 5 bytes");
    tap_failure(lap_st_open(path, &it), LAP_ERR_INVALID, path,
                "is no file of safetensors: it has 5 bytes", NULL);
    lap_st_close(&it);
    write_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    tap_ok(truncate(path, 30) == 0, "a file that was cut within its header");
    tap_failure(lap_st_open(path, &it), LAP_ERR_INVALID, path, "is no whole file of safetensors",
                "it has 30 bytes; expected a header of 54", NULL);
    lap_st_close(&it);
}

/* 1, -2 and 0.5 in each type. */
static void test_types(void)
{
    static const double wide[] = {1, -2, 0.5};
    static const uint16_t half[] = {0x3c00, 0xc000, 0x3800}, brain[] = {0x3f80, 0xc000, 0x3f00};
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"a\\\"b\":\"\\n\"},"
        "\"w\":{\"dtype\":\"F64\",\"shape\":[3],\"data_offsets\":[0,24]},"
        "\"h\":{\"data_offsets\":[24,30],\"shape\":[3,1],\"dtype\":\"F16\"},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[30,36]},"
        "\"i\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[36,40]},"
        "\"n\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[40,40]}}   ";
    lap_st_file_t file;
    float out[3];
    write_file(header, 0);
    FILE *more = fopen(path, "a");
    fwrite(wide, 1, 24, more);
    fwrite(half, 1, 6, more);
    fwrite(brain, 1, 6, more);
    fwrite("\0\0\0\0", 1, 4, more);
    fclose(more);
    tap_success(lap_st_open(path, &file), "a file of several types");
    for (const char *name = "whb"; *name; name++) {
        const char key[] = {*name, '\0'};
        const lap_st_tensor_t *tensor = lap_st_find(&file, key);
        tap_ok(tensor && lap_st_read(&file, tensor, 0, 3, out) == LAP_OK && out[0] == 1 &&
                   out[1] == -2 && out[2] == 0.5f,
               "%s: the numbers", key);
        tap_ok(tensor && lap_st_read(&file, tensor, 2, 1, out) == LAP_OK && out[0] == 0.5f,
               "%s: the last", key);
    }
    tap_failure(lap_st_read(&file, lap_st_find(&file, "i"), 0, 1, out), LAP_ERR_INVALID, path,
                "'i'", "expected F32", NULL);
    tap_ok(!lap_st_find(&file, "x") && !lap_st_find(&file, "__metadata__"), "no such tensor");
    lap_st_close(&file);
}

static void test_written(void)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    lap_st_tensor_t tensors[] = {{.name = "layer0.b", .ndims = 2, .dims = {2, 3}},
                                 {.name = "layer0.a", .ndims = 1, .dims = {5}}};
    float numbers[11], out[6];
    char *header;
    size_t bytes;
    lap_st_file_t file;
    for (int i = 0; i < 11; i++)
        numbers[i] = (float)i / 3;
    tap_success(lap_st_header(tensors, 2, metadata, &header, &bytes), "a header");
    tap_ok(bytes % 8 == 0 && tensors[0].begin == bytes && tensors[1].begin == bytes + 24,
           "data are aligned");
    FILE *to = fopen(path, "w");
    fwrite(header, 1, bytes, to);
    fwrite(numbers, 4, 11, to);
    fclose(to);
    tap_success(lap_st_open(path, &file), "it is read back");
    const lap_st_tensor_t *b = lap_st_find(&file, "layer0.b");
    tap_ok(b && b->ndims == 2 && b->dims[1] == 3 && lap_st_read(&file, b, 0, 6, out) == LAP_OK &&
               memcmp(out, numbers, sizeof(out)) == 0,
           "with all its bits");
    lap_st_close(&file);
    /* The sum of a file is that of its parts, in any order; a word that changes, or moves, changes it. */
    const uint64_t sum = lap_st_sum(numbers, 44, 64);
    tap_ok(sum == lap_st_sum(numbers + 4, 28, 80) + lap_st_sum(numbers, 16, 64), "sums add up");
    tap_ok(sum != lap_st_sum(numbers, 44, 68), "they depend on the place");
    numbers[3] = -numbers[3];
    tap_ok(sum != lap_st_sum(numbers, 44, 64), "... and on every word");
    lap_free(header);
}

int main(void)
{
    const int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    const int fds = tap_count_fds();
    test_bad();
    test_types();
    test_written();
    tap_ok(tap_count_fds() == fds, "no descriptor is left open");
    unlink(path);
    return tap_done();
}
