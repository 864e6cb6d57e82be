/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes safetensors: see safetensors.h. */
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lap/tensor.h>

#include "core/file.h"
#include "util/alloc.h"
#include "util/json.h"

#define HEADER_MOST ((uint64_t)100000000) /* as the reference implementation has it */
#define PIECE 4096                        /* elements read at once where they are converted */

uint64_t lap_st_sum(const void *words, size_t bytes, uint64_t at)
{
    uint64_t sum = 0, place = at / 4;
    for (size_t i = 0; i + 4 <= bytes; i += 4, place++) {
        uint32_t word;
        memcpy(&word, (const char *)words + i, 4);
        uint64_t x = place * 0x9e3779b97f4a7c15u + word;
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
        sum += x ^ x >> 32;
    }
    return sum;
}

/* ---- headers, read ---- */

typedef struct type_row {
    const char *name;
    lap_st_type_t type;
    uint32_t bytes;
} type_row_t;

static const type_row_t types[] = {
    {"F32", LAP_ST_F32, 4},    {"F16", LAP_ST_F16, 2},       {"BF16", LAP_ST_BF16, 2},
    {"F64", LAP_ST_F64, 8},    {"I64", LAP_ST_OTHER, 8},     {"U64", LAP_ST_OTHER, 8},
    {"I32", LAP_ST_OTHER, 4},  {"U32", LAP_ST_OTHER, 4},     {"I16", LAP_ST_OTHER, 2},
    {"U16", LAP_ST_OTHER, 2},  {"I8", LAP_ST_OTHER, 1},      {"U8", LAP_ST_OTHER, 1},
    {"BOOL", LAP_ST_OTHER, 1}, {"F8_E4M3", LAP_ST_OTHER, 1}, {"F8_E5M2", LAP_ST_OTHER, 1},
    {NULL, LAP_ST_OTHER, 0},
};

static bool read_type(lap_json_reader_t *json, lap_st_tensor_t *tensor)
{
    char name[16];
    const size_t at = json->at;
    if (!lap_json_take_string(json, name, sizeof(name)))
        return false;
    for (const type_row_t *row = types; row->name; row++) {
        if (strcmp(row->name, name) == 0) {
            tensor->type = row->type;
            tensor->element = row->bytes;
            return true;
        }
    }
    json->at = at;
    return lap_json_fail(json, "expected a type such as \"F32\"");
}

static bool read_dims(lap_json_reader_t *json, lap_st_tensor_t *tensor)
{
    for (bool more = lap_json_open(json, '['); more; more = lap_json_next(json, ']')) {
        if (tensor->ndims == LAP_ST_DIMS)
            return lap_json_fail(json, "expected at most 8 dimensions");
        if (!lap_json_take_number(json, &tensor->dims[tensor->ndims++]))
            return false;
    }
    return !json->wrong;
}

static bool read_offsets(lap_json_reader_t *json, lap_st_tensor_t *tensor)
{
    return lap_json_open(json, '[') && lap_json_take_number(json, &tensor->begin) &&
           lap_json_next(json, ']') && lap_json_take_number(json, &tensor->end) &&
           !lap_json_next(json, ']') && !json->wrong;
}

static bool read_tensor(lap_json_reader_t *json, lap_st_tensor_t *tensor)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    static bool (*const readers[])(lap_json_reader_t *, lap_st_tensor_t *) = {read_type, read_dims,
                                                                              read_offsets};
    unsigned seen = 0;
    char key[16];
    for (bool more = lap_json_open(json, '{'); more; more = lap_json_next(json, '}')) {
        unsigned k = 0;
        if (!lap_json_take_key(json, key, sizeof(key)))
            return false;
        while (k < 3 && strcmp(keys[k], key) != 0)
            k++;
        if (k == 3 || (seen >> k & 1) != 0)
            return lap_json_fail(json, "expected dtype, shape and data_offsets, each once");
        seen |= 1u << k;
        if (!readers[k](json, tensor))
            return false;
    }
    return !json->wrong &&
           (seen == 7 || lap_json_fail(json, "expected dtype, shape and data_offsets"));
}

static bool skip_metadata(lap_json_reader_t *json)
{
    static const size_t room = 65536;
    char *text = lap_alloc(room, 1);
    for (bool more = text && lap_json_open(json, '{'); more; more = lap_json_next(json, '}'))
        if (!lap_json_take_key(json, text, room) || !lap_json_take_string(json, text, room))
            break;
    if (!text)
        lap_json_fail(json, "no memory for the metadata");
    lap_free(text);
    return !json->wrong;
}

static lap_status_t read_tensors(lap_st_file_t *file)
{
    lap_json_reader_t json = {.text = file->header + 8, .bytes = file->data - 8};
    size_t room = 0;
    for (bool more = lap_json_open(&json, '{'); more; more = lap_json_next(&json, '}')) {
        lap_st_tensor_t tensor = {.ndims = 0};
        if (!lap_json_take_key(&json, tensor.name, sizeof(tensor.name)))
            break;
        if (strcmp(tensor.name, "__metadata__") == 0) {
            skip_metadata(&json);
            continue;
        }
        lap_st_tensor_t *all = lap_grow(file->tensors, file->count, &room, sizeof(*file->tensors));
        if (!all)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for the %zu tensors of '%s'",
                             file->count + 1, file->path);
        file->tensors = all;
        if (!read_tensor(&json, &tensor))
            break;
        file->tensors[file->count++] = tensor;
    }
    if (lap_json_end(&json))
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "'%s': byte %zu: %s", file->path, json.at + 8, json.wrong);
}

/* Whether a tensor has as many bytes as its shape and type say. */
static lap_status_t check_size(const lap_st_file_t *file, const lap_st_tensor_t *tensor)
{
    uint64_t bytes = tensor->element;
    bool fits = tensor->begin <= tensor->end && tensor->end <= file->bytes - file->data;
    for (size_t i = 0; i < tensor->ndims; i++)
        fits = fits && !__builtin_mul_overflow(bytes, tensor->dims[i], &bytes);
    if (fits && tensor->end - tensor->begin == bytes)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "'%s': tensor '%s' has data_offsets %" PRIu64 " to %" PRIu64
                     ", expected the bytes of its shape, within the %" PRIu64 " of the file's data",
                     file->path, tensor->name, tensor->begin, tensor->end,
                     file->bytes - file->data);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const lap_st_tensor_t *)a)->name, ((const lap_st_tensor_t *)b)->name);
}

static int compare_places(const void *a, const void *b)
{
    const lap_st_tensor_t *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return left->end < right->end ? -1 : left->end > right->end;
}

/* Tensors lie side by side, with no byte between them, and have different names. Sorts them by name. */
static lap_status_t check_tensors(lap_st_file_t *file)
{
    uint64_t at = 0;
    for (size_t i = 0; i < file->count; i++)
        LAP_TRY(check_size(file, &file->tensors[i]));
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof(*file->tensors), compare_places);
    for (size_t i = 0; i < file->count; i++) {
        lap_st_tensor_t *tensor = &file->tensors[i];
        if (tensor->begin != at)
            return lap_error(LAP_ERR_INVALID,
                             "'%s': tensor '%s' begins at %" PRIu64 ", expected %" PRIu64
                             ", where the one before it ends",
                             file->path, tensor->name, tensor->begin, at);
        at = tensor->end;
        tensor->begin += file->data;
        tensor->end += file->data;
    }
    if (at != file->bytes - file->data)
        return lap_error(LAP_ERR_INVALID,
                         "'%s' has %" PRIu64 " bytes of data, expected %" PRIu64 " for its tensors",
                         file->path, file->bytes - file->data, at);
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof(*file->tensors), compare_names);
    for (size_t i = 1; i < file->count; i++)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return lap_error(LAP_ERR_INVALID, "'%s' has tensor '%s' twice, expected it once",
                             file->path, file->tensors[i].name);
    return LAP_OK;
}

static lap_status_t read_header(lap_st_file_t *file)
{
    unsigned char start[8] = {0};
    uint64_t length = 0;
    if (file->bytes < sizeof(start))
        return lap_error(LAP_ERR_INVALID,
                         "'%s' is no file of safetensors: it has %" PRIu64
                         " bytes; expected the length of a header in the first 8",
                         file->path, file->bytes);
    LAP_TRY(lap_file_read(file->fd, file->path, start, sizeof(start), 0));
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)start[i] << 8 * i;
    /* What is no length is something else, such as text: its number would tell nothing. */
    if (length > HEADER_MOST)
        return lap_error(
            LAP_ERR_INVALID,
            "'%s' is no file of safetensors: its first 8 bytes are not the length of a "
            "header; expected weights as safetensors",
            file->path);
    if (length > file->bytes - 8)
        return lap_error(LAP_ERR_INVALID,
                         "'%s' is no whole file of safetensors: it has %" PRIu64
                         " bytes; expected a header of %" PRIu64 " and the data of tensors",
                         file->path, file->bytes, length);
    file->data = (size_t)length + 8;
    file->header = lap_alloc(file->data, 1);
    if (!file->header)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the header of '%s', %zu bytes",
                         file->path, file->data);
    return lap_file_read(file->fd, file->path, file->header, file->data, 0);
}

lap_status_t lap_st_open(const char *path, lap_st_file_t *file_p)
{
    *file_p = (lap_st_file_t){.fd = -1};
    file_p->path = lap_alloc(strlen(path) + 1, 1);
    if (!file_p->path)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the name of a file");
    memcpy(file_p->path, path, strlen(path) + 1);
    LAP_TRY(lap_file_open(path, &file_p->fd, &file_p->bytes));
    LAP_TRY(read_header(file_p));
    LAP_TRY(read_tensors(file_p));
    return check_tensors(file_p);
}

void lap_st_close(lap_st_file_t *file)
{
    if (file->path && file->fd >= 0)
        close(file->fd);
    lap_free(file->path);
    lap_free(file->header);
    lap_free(file->tensors);
    *file = (lap_st_file_t){.fd = -1};
}

const lap_st_tensor_t *lap_st_find(const lap_st_file_t *file, const char *name)
{
    size_t low = 0, high = file->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(file->tensors[middle].name, name);
        if (order == 0)
            return &file->tensors[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- elements ---- */

static lap_status_t convert(lap_st_type_t type, const unsigned char *bytes, size_t count,
                            float *out)
{
    if (type != LAP_ST_F64)
        return lap_dtype_to_float(type == LAP_ST_F16 ? LAP_FLOAT16 : LAP_BFLOAT16, bytes, out,
                                  count);
    for (size_t i = 0; i < count; i++) {
        double wide;
        memcpy(&wide, bytes + i * sizeof(wide), sizeof(wide));
        out[i] = (float)wide;
    }
    return LAP_OK;
}

lap_status_t lap_st_read(const lap_st_file_t *file, const lap_st_tensor_t *tensor, uint64_t first,
                         size_t count, float *out)
{
    unsigned char piece[8 * PIECE] = {0};
    uint64_t at = tensor->begin + first * tensor->element;
    if (tensor->type == LAP_ST_F32)
        return lap_file_read(file->fd, file->path, out, count * sizeof(float), at);
    if (tensor->type == LAP_ST_OTHER)
        return lap_error(LAP_ERR_INVALID,
                         "'%s': tensor '%s' has elements of %" PRIu32
                         " bytes, expected F32, F16, BF16 or F64",
                         file->path, tensor->name, tensor->element);
    while (count > 0) {
        const size_t now = count < PIECE ? count : PIECE;
        LAP_TRY(lap_file_read(file->fd, file->path, piece, now * tensor->element, at));
        LAP_TRY(convert(tensor->type, piece, now, out));
        at += now * tensor->element;
        out += now;
        count -= now;
    }
    return LAP_OK;
}

/* ---- headers, written ---- */

/* Text that grows; what does not fit is only counted. */
typedef struct writer {
    char *text;
    size_t used, room;
} writer_t;

static void put(writer_t *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer_t *writer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const size_t left = writer->room > writer->used ? writer->room - writer->used : 0;
    writer->used +=
        (size_t)vsnprintf(writer->text ? writer->text + writer->used : NULL, left, format, args);
    va_end(args);
}

static void put_header(writer_t *writer, const lap_st_tensor_t *tensors, size_t count,
                       const char *const *metadata)
{
    put(writer, "{\"__metadata__\":{");
    for (size_t i = 0; metadata[i]; i += 2)
        put(writer, "%s\"%s\":\"%s\"", i ? "," : "", metadata[i], metadata[i + 1]);
    put(writer, "}");
    for (size_t t = 0; t < count; t++) {
        const lap_st_tensor_t *tensor = &tensors[t];
        put(writer, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[", tensor->name);
        for (size_t i = 0; i < tensor->ndims; i++)
            put(writer, "%s%" PRIu64, i ? "," : "", tensor->dims[i]);
        put(writer, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", tensor->begin, tensor->end);
    }
    put(writer, "}");
}

lap_status_t lap_st_header(lap_st_tensor_t *tensors, size_t count, const char *const *metadata,
                           char **header_p, size_t *bytes_p)
{
    uint64_t at = 0;
    for (size_t t = 0; t < count; t++) {
        uint64_t bytes = sizeof(float);
        for (size_t i = 0; i < tensors[t].ndims; i++)
            bytes *= tensors[t].dims[i];
        tensors[t].type = LAP_ST_F32;
        tensors[t].element = sizeof(float);
        tensors[t].begin = at;
        tensors[t].end = at += bytes;
    }
    writer_t counter = {.text = NULL};
    put_header(&counter, tensors, count, metadata);
    const size_t length = (counter.used + 7) / 8 * 8; /* so that data are aligned */
    writer_t writer = {.room = length + 1};
    char *header = lap_alloc(8 + length + 1, 1);
    if (!header)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a header of %zu bytes", length);
    for (int i = 0; i < 8; i++)
        header[i] = (char)(unsigned char)(length >> 8 * i);
    writer.text = header + 8;
    put_header(&writer, tensors, count, metadata);
    memset(header + 8 + writer.used, ' ', length - writer.used);
    for (size_t t = 0; t < count; t++) {
        tensors[t].begin += 8 + length;
        tensors[t].end += 8 + length;
    }
    *header_p = header;
    *bytes_p = 8 + length;
    return LAP_OK;
}
