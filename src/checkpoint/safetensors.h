/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of safetensors: 8 bytes with the length of a header, the header in JSON, then the data of its
 * tensors, side by side. Nothing of a file is believed that its size does not bear out.
 */
#ifndef LAP_CHECKPOINT_SAFETENSORS_H
#define LAP_CHECKPOINT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define LAP_ST_NAME 128 /* bytes of a name, with its end */
#define LAP_ST_DIMS 8

/* Types of elements, with those that we can read as numbers first. */
typedef enum lap_st_type {
    LAP_ST_F32,
    LAP_ST_F16,
    LAP_ST_BF16,
    LAP_ST_F64,
    LAP_ST_OTHER, /* of another type, whose size is right */
} lap_st_type_t;

typedef struct lap_st_tensor {
    char name[LAP_ST_NAME];
    lap_st_type_t type;
    uint32_t element; /* bytes */
    size_t ndims;
    uint64_t dims[LAP_ST_DIMS];
    uint64_t begin, end; /* bytes, from the beginning of the file */
} lap_st_tensor_t;

typedef struct lap_st_file {
    int fd;
    char *path;
    uint64_t bytes; /* of the file */
    char *header;   /* with the 8 bytes before it; */
    size_t data;    /* how many bytes that are: where the data begin */
    lap_st_tensor_t *tensors;
    size_t count;
} lap_st_file_t;

/*
 * Opens a file and reads its header. LAP_ERR_INVALID names the file, the byte or tensor, and what was
 * expected; LAP_ERR_SYSTEM: it cannot be read. lap_st_close undoes it, also after a failure.
 */
lap_status_t lap_st_open(const char *path, lap_st_file_t *file_p);
void lap_st_close(lap_st_file_t *file);

/* The tensor of a name, or NULL. */
const lap_st_tensor_t *lap_st_find(const lap_st_file_t *file, const char *name);

/*
 * Reads elements from the `first` of a tensor on, as floats; they are in it. The bits of F32 are not
 * changed.
 */
lap_status_t lap_st_read(const lap_st_file_t *file, const lap_st_tensor_t *tensor, uint64_t first,
                         size_t count, float *out);

/*
 * The header of a file of F32 tensors, with the 8 bytes before it: sets begin and end of all. The
 * caller frees *header_p with lap_free. `metadata` is pairs of key and value, NULL at the end.
 */
lap_status_t lap_st_header(lap_st_tensor_t *tensors, size_t count, const char *const *metadata,
                           char **header_p, size_t *bytes_p);

/*
 * The sum of a file is that of its words of 4 bytes, each mixed with its place: the sums of parts that
 * different ranks write or read add up to that of the whole, in any order. `at` is a multiple of 4.
 */
uint64_t lap_st_sum(const void *words, size_t bytes, uint64_t at);

#endif
