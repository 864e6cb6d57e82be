/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest of a checkpoint: JSON on one line, whose last field is the checksum of all before it, so that
 * no bit of it changes unnoticed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "core/file.h"
#include "core/output.h"
#include "util/digest.h"
#include "util/json.h"
#include "util/json_write.h"

/* 1 had neither layers nor training, 2 no file for FP8, which is still written without one. */
#define FORMAT 3
#define MOST_BYTES 16384

static lap_status_t path_of(const char *dir, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/" LAP_CKPT_MANIFEST, dir) < PATH_MAX)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "the path of the checkpoint is too long: '%.64s...'", dir);
}

/* ---- written ---- */

static void put_fields(lap_json_t *json, const char *key, const lap_ckpt_fields_t *fields)
{
    lap_json_put(json, "%s:{", key);
    for (size_t i = 0; i < fields->count; i++)
        lap_json_put(json, "%s:%s", fields->all[i].name, fields->all[i].value);
    lap_json_put(json, "}");
}

/* As 16 hexadecimal digits: numbers of JSON have 53 bits. */
static void put_sum(lap_json_t *json, const char *key, uint64_t sum)
{
    char text[20];
    snprintf(text, sizeof(text), "%016" PRIx64, sum);
    lap_json_put(json, "%s:%s", key, text);
}

/* The last checksum is of all bytes before its key, with the comma. */
static void put_all(lap_json_t *json, const lap_ckpt_manifest_t *manifest, const char *text)
{
    lap_json_put(json, "{lap_checkpoint:%d step:%lu samples:%lu optimizer_steps:%lu files:[",
                 manifest->nfiles == LAP_CKPT_FILES ? FORMAT : FORMAT - 1, manifest->step,
                 manifest->samples, manifest->optimizer_steps);
    for (size_t f = 0; f < manifest->nfiles; f++) {
        lap_json_put(json, "{name:%s bytes:%lu", manifest->files[f].name, manifest->files[f].bytes);
        put_sum(json, "header_checksum", manifest->files[f].header_sum);
        put_sum(json, "checksum", manifest->files[f].sum);
        lap_json_put(json, "}");
    }
    lap_json_put(json, "]");
    put_fields(json, "layers", &manifest->layers);
    put_fields(json, "training", &manifest->training);
    fflush(json->file);
    const uint64_t sum = lap_digest(LAP_DIGEST_INIT, text, (size_t)ftell(json->file));
    put_sum(json, "manifest_checksum", lap_digest(sum, ",", 1));
    lap_json_put(json, "}");
}

lap_status_t lap_ckpt_manifest_write(const char *dir, const lap_ckpt_manifest_t *manifest)
{
    char path[PATH_MAX], text[MOST_BYTES + 1] = "";
    lap_output_t output;
    lap_json_t json = {.file = fmemopen(text, MOST_BYTES, "w")};
    bool whole = json.file;
    if (json.file) {
        put_all(&json, manifest, text);
        whole = !ferror(json.file);
        whole = fclose(json.file) == 0 && whole;
    }
    if (!whole)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a manifest of %d bytes", MOST_BYTES);
    LAP_TRY(path_of(dir, path));
    LAP_TRY(lap_output_open("the manifest", path, &output));
    lap_status_t status = LAP_OK;
    if (fputs(text, output.file) < 0 || fflush(output.file) != 0 || fsync(output.fd) != 0)
        status = lap_error_errno("cannot write the manifest %s", path);
    return lap_output_close(&output, status);
}

/* ---- read ---- */

/* A number of 64 bits as 16 hexadecimal digits, in quotes. */
static bool take_sum(lap_json_reader_t *json, uint64_t *sum_p)
{
    char text[20];
    uint64_t sum = 0;
    if (!lap_json_take_string(json, text, sizeof(text)))
        return false;
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return lap_json_fail(json, "expected 16 hexadecimal digits");
    for (size_t i = 0; i < 16; i++)
        sum = sum << 4 | (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    *sum_p = sum;
    return true;
}

/* The key that comes next, which is known: only we write such files. */
static bool take_key(lap_json_reader_t *json, const char *key)
{
    char text[24];
    const size_t at = json->at;
    if (!lap_json_take_key(json, text, sizeof(text)))
        return false;
    if (strcmp(text, key) == 0)
        return true;
    json->at = at;
    return lap_json_fail(json, "expected another key");
}

static bool take_field(lap_json_reader_t *json, const char *key, uint64_t *number_p)
{
    return take_key(json, key) && lap_json_take_number(json, number_p);
}

static bool take_file(lap_json_reader_t *json, lap_ckpt_manifest_t *manifest)
{
    if (manifest->nfiles == LAP_CKPT_FILES)
        return lap_json_fail(json, "expected at most 3 files");
    const size_t f = manifest->nfiles++;
    char *name = manifest->files[f].name;
    if (!lap_json_open(json, '{') || !take_key(json, "name") ||
        !lap_json_take_string(json, name, sizeof(manifest->files[f].name)) ||
        !lap_json_next(json, '}') || !take_field(json, "bytes", &manifest->files[f].bytes) ||
        !lap_json_next(json, '}') || !take_key(json, "header_checksum") ||
        !take_sum(json, &manifest->files[f].header_sum) || !lap_json_next(json, '}') ||
        !take_key(json, "checksum") || !take_sum(json, &manifest->files[f].sum))
        return lap_json_fail(json, "expected a file");
    return !lap_json_next(json, '}') && !json->wrong;
}

static bool take_files(lap_json_reader_t *json, lap_ckpt_manifest_t *manifest)
{
    if (!take_key(json, "files"))
        return false;
    for (bool more = lap_json_open(json, '['); more; more = lap_json_next(json, ']'))
        if (!take_file(json, manifest))
            return false;
    return !json->wrong;
}

static bool take_fields(lap_json_reader_t *json, const char *key, lap_ckpt_fields_t *fields)
{
    if (!take_key(json, key))
        return false;
    for (bool more = lap_json_open(json, '{'); more; more = lap_json_next(json, '}')) {
        if (fields->count == LAP_CKPT_FIELDS)
            return lap_json_fail(json, "expected fewer fields");
        lap_ckpt_field_t *field = &fields->all[fields->count++];
        if (!lap_json_take_key(json, field->name, sizeof(field->name)) ||
            !lap_json_take_string(json, field->value, sizeof(field->value)))
            return false;
    }
    return !json->wrong;
}

static bool take_all(lap_json_reader_t *json, lap_ckpt_manifest_t *manifest)
{
    uint64_t format = 0, sum = 0;
    if (!lap_json_open(json, '{') || !take_field(json, "lap_checkpoint", &format))
        return false;
    if (format < 1)
        return lap_json_fail(json, "expected version 1 to 3 of checkpoints");
    if (!lap_json_next(json, '}') || !take_field(json, "step", &manifest->step) ||
        !lap_json_next(json, '}') || !take_field(json, "samples", &manifest->samples) ||
        !lap_json_next(json, '}') ||
        !take_field(json, "optimizer_steps", &manifest->optimizer_steps) ||
        !lap_json_next(json, '}') || !take_files(json, manifest) || !lap_json_next(json, '}'))
        return lap_json_fail(json, "expected another field");
    if (format > 1 &&
        (!take_fields(json, "layers", &manifest->layers) || !lap_json_next(json, '}') ||
         !take_fields(json, "training", &manifest->training) || !lap_json_next(json, '}')))
        return lap_json_fail(json, "expected the fields of layers and training");
    const size_t bytes = json->at;
    if (!take_key(json, "manifest_checksum") || !take_sum(json, &sum))
        return false;
    if (sum != lap_digest(LAP_DIGEST_INIT, json->text, bytes))
        return lap_json_fail(json, "expected the checksum of all before");
    return !lap_json_next(json, '}') && lap_json_end(json);
}

/* One of a newer version is not damaged. */
static lap_status_t check_version(const char *path, const char *text, size_t bytes)
{
    lap_json_reader_t json = {.text = text, .bytes = bytes};
    uint64_t format = 0;
    if (!lap_json_open(&json, '{') || !take_field(&json, "lap_checkpoint", &format) ||
        format <= FORMAT)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "'%s' is of version %" PRIu64 " of checkpoints, expected 1 to %d", path,
                     format, FORMAT);
}

lap_status_t lap_ckpt_manifest_parse(const char *path, const char *text, size_t bytes,
                                     lap_ckpt_manifest_t *manifest_p)
{
    lap_json_reader_t json = {.text = text, .bytes = bytes};
    lap_ckpt_manifest_t manifest = {.nfiles = 0};
    LAP_TRY(check_version(path, text, bytes));
    if (!take_all(&json, &manifest))
        return lap_error(LAP_ERR_INVALID, "'%s' is damaged at byte %zu: %s", path, json.at,
                         json.wrong ? json.wrong : "expected more");
    *manifest_p = manifest;
    return LAP_OK;
}

lap_status_t lap_ckpt_manifest_read(const char *dir, lap_ckpt_manifest_t *manifest_p)
{
    char path[PATH_MAX], text[MOST_BYTES];
    uint64_t bytes;
    int fd;
    LAP_TRY(path_of(dir, path));
    LAP_TRY(lap_file_open(path, &fd, &bytes));
    const size_t some = bytes < sizeof(text) ? (size_t)bytes : sizeof(text);
    const lap_status_t status = lap_file_read(fd, path, text, some, 0);
    close(fd);
    LAP_TRY(status);
    if (bytes == some)
        return lap_ckpt_manifest_parse(path, text, some, manifest_p);
    LAP_TRY(check_version(path, text, some));
    return lap_error(LAP_ERR_INVALID,
                     "'%s' is damaged: it has %" PRIu64 " bytes, expected at most %d", path, bytes,
                     MOST_BYTES);
}
