/* SPDX-License-Identifier: Apache-2.0 */
/* Golden files: matrices with names, as scripts/make_golden.py writes them, and layers that have them. */
#ifndef LAP_TEST_NN_GOLDEN_H
#define LAP_TEST_NN_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "tap.h"

#define NAMES 32

typedef struct matrix {
    char name[NAMES];
    uint32_t rows, cols;
    float *values;
} matrix_t;

typedef struct golden {
    matrix_t matrices[160];
    size_t count;
} golden_t;

static inline bool read_matrix(FILE *file, matrix_t *matrix)
{
    uint32_t size[2];
    if (fread(matrix->name, 1, NAMES, file) != NAMES || fread(size, 4, 2, file) != 2)
        return false;
    const size_t count = (size_t)size[0] * size[1];
    matrix->rows = size[0];
    matrix->cols = size[1];
    matrix->values = malloc(count * sizeof(float));
    return matrix->values && fread(matrix->values, sizeof(float), count, file) == count;
}

static inline bool read_golden(const char *name, golden_t *golden)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s.bin", GOLDEN_DIR, name);
    FILE *file = fopen(path, "rb");
    golden->count = 0;
    while (file && golden->count < 160 && read_matrix(file, &golden->matrices[golden->count]))
        golden->count++;
    if (file)
        fclose(file);
    return tap_ok(golden->count >= 4, "%s holds matrices", path);
}

static inline void free_golden(golden_t *golden)
{
    for (size_t i = 0; i < golden->count; i++)
        free(golden->matrices[i].values);
}

static inline const matrix_t *find(const golden_t *golden, const char *name, const char *suffix)
{
    char whole[96];
    snprintf(whole, sizeof(whole), "%s%s", name, suffix);
    for (size_t i = 0; i < golden->count; i++)
        if (strncmp(golden->matrices[i].name, whole, NAMES) == 0)
            return &golden->matrices[i];
    return NULL;
}

/* Row i of a shard is this row of the whole. */
static inline size_t whole_row(const lap_nn_param_t *param, size_t i)
{
    size_t p = 0;
    for (; i >= param->part_rows[p]; p++)
        i -= param->part_rows[p];
    return param->global_row[p] + i;
}

static inline bool load_params(lap_nn_t *nn, const golden_t *golden)
{
    bool found = true;
    size_t count;
    float *device = lap_nn_masters(nn, &count), *masters = calloc(count, sizeof(float));
    for (size_t p = 0; p < lap_nn_params(nn) && masters; p++) {
        const lap_nn_param_t *param = lap_nn_param(nn, p);
        const matrix_t *matrix = find(golden, param->name, "");
        if (!matrix || matrix->rows != param->all_rows || matrix->cols != param->all_cols) {
            tap_note("%s is not in the file, or of another size", param->name);
            found = false;
            continue;
        }
        float *shard = masters + ((float *)param->master.data - device);
        for (size_t i = 0; i < param->rows; i++)
            memcpy(shard + i * param->cols,
                   matrix->values + whole_row(param, i) * matrix->cols + param->global_col,
                   param->cols * sizeof(float));
    }
    found = masters && nn_copy(nn, device, masters, count * sizeof(float)) && found;
    free(masters);
    return found && lap_nn_refresh(nn) == LAP_OK;
}

#endif
