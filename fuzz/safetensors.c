/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of safetensors, and manifests of checkpoints: the first byte chooses, the rest is the file. One that is
 * accepted has its tensors within it, side by side; a refusal has a sentence.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "fuzz.h"

static void read_tensors(const lap_st_file_t *file, size_t bytes)
{
    float out[16];
    uint64_t total = 0;
    for (size_t i = 0; i < file->count; i++) {
        const lap_st_tensor_t *tensor = &file->tensors[i];
        HOLDS(lap_st_find(file, tensor->name) == tensor);
        HOLDS(tensor->begin >= file->data && tensor->begin <= tensor->end && tensor->end <= bytes);
        const uint64_t count = (tensor->end - tensor->begin) / tensor->element;
        const size_t some = count < 16 ? (size_t)count : 16;
        if (lap_st_read(file, tensor, count - some, some, out) != LAP_OK)
            HOLDS(tensor->type == LAP_ST_OTHER && strlen(lap_last_error()) > 0);
        total += tensor->end - tensor->begin;
    }
    HOLDS(total + file->data == bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int fd = -1;
    char path[64];
    lap_ckpt_manifest_t manifest;
    lap_st_file_t file;
    if (bytes-- == 0)
        return 0;
    if (*data++ == 'm') {
        if (lap_ckpt_manifest_parse("manifest", (const char *)data, bytes, &manifest) == LAP_OK)
            HOLDS(manifest.nfiles <= LAP_CKPT_FILES);
        return 0;
    }
    if (fd < 0)
        fd = memfd_create("safetensors", MFD_CLOEXEC);
    HOLDS(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (lap_st_open(path, &file) == LAP_OK)
        read_tensors(&file, bytes);
    else
        HOLDS(strlen(lap_last_error()) > 0);
    lap_st_close(&file);
    return 0;
}
