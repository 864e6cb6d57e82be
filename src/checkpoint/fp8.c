/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The magnitudes of delayed FP8 scaling, in a file of their own. A matrix whose scale comes from earlier passes is
 * a tensor [replicas, contexts, 1 + history]: the magnitude since scales were last renewed, and then the history,
 * the newest first. The ranks that share weights have one matrix together: what is written is the largest of
 * their magnitudes. Replicas, and ranks that share sequences, have matrices of their own, and a row each. On a grid
 * with as many of both a rank reads its row; on another one the largest of all rows. Scales follow from
 * magnitudes. A last tensor says which passes there were: the first one of a kind has no history.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "core/file.h"
#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"

#define PASSES "passes" /* [forward, backward]: 1 if there was one */
enum { NPASSES = 2 };

static size_t replicas_of(const lap_group_t *replicas)
{
    return replicas ? (size_t)replicas->size : 1;
}

/* What is not a number is larger than all others, as for scales. */
static void merge(float *most, const float *others, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (others[i] > most[i] || isnan(others[i]))
            most[i] = others[i];
}

/* ---- layout ---- */

static void name_matrix(const lap_nn_list_t *list, size_t i, char name[LAP_ST_NAME])
{
    char matrix[LAP_ST_NAME - 16];
    lap_nn_fp8_name(list, i, matrix, sizeof(matrix));
    snprintf(name, LAP_ST_NAME, "%s.amax_history", matrix);
}

/* Where the matrices of this rank are among those of the model. */
static lap_status_t find_own(lap_ckpt_fp8_t *fp8, const lap_nn_list_t *list)
{
    fp8->tensors = lap_alloc(fp8->count, sizeof(*fp8->tensors));
    if (!fp8->tensors)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu matrices of FP8", fp8->count);
    for (size_t i = 0; i < fp8->count; i++) {
        char name[LAP_ST_NAME];
        name_matrix(list, i, name);
        size_t t = 0;
        while (t < fp8->all && strcmp(fp8->file->tensors[t].name, name) != 0)
            t++;
        if (t == fp8->all)
            return lap_error(LAP_ERR_INTERNAL, "%s is no matrix of the model", name);
        fp8->tensors[i] = t;
    }
    return LAP_OK;
}

lap_status_t lap_ckpt_fp8_init(lap_ckpt_layout_t *layout, const lap_nn_t *nn,
                               const lap_nn_list_t *whole, const lap_group_t *replicas)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    lap_ckpt_fp8_t *fp8 = &layout->fp8;
    if (desc->fp8 != LAP_FP8_DELAYED)
        return LAP_OK;
    lap_ckpt_file_t *file = &layout->files[layout->nfiles++];
    *file = (lap_ckpt_file_t){.name = LAP_CKPT_FP8_FILE};
    *fp8 = (lap_ckpt_fp8_t){.file = file,
                            .count = lap_nn_fp8_delayed(&nn->list),
                            .all = lap_nn_fp8_delayed(whole),
                            .length = 1 + desc->amax_history,
                            .replica = replicas ? (size_t)replicas->rank : 0,
                            .contexts = desc->cp};
    fp8->replicas = replicas_of(replicas) / fp8->contexts;
    file->tensors = lap_alloc(fp8->all + 1, sizeof(*file->tensors));
    if (!file->tensors)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu matrices of FP8", fp8->all);
    for (size_t i = 0; i < fp8->all; i++) {
        lap_st_tensor_t *tensor = &file->tensors[i];
        name_matrix(whole, i, tensor->name);
        tensor->ndims = 3;
        tensor->dims[0] = fp8->replicas;
        tensor->dims[1] = fp8->contexts;
        tensor->dims[2] = fp8->length;
    }
    lap_st_tensor_t *passes = &file->tensors[fp8->all];
    snprintf(passes->name, sizeof(passes->name), PASSES);
    passes->ndims = 1;
    passes->dims[0] = NPASSES;
    LAP_TRY(
        lap_st_header(file->tensors, fp8->all + 1, metadata, &file->header, &file->header_bytes));
    file->bytes = passes->end;
    return find_own(fp8, &nn->list);
}

lap_status_t lap_ckpt_fp8_reserve(lap_ckpt_fp8_t *fp8)
{
    const size_t count = fp8->count * fp8->length;
    if (!fp8->file || fp8->own)
        return LAP_OK;
    /* The same twice: as in the file, and as on the device. */
    fp8->own = lap_alloc(2 * count + 1, sizeof(float));
    return fp8->own ? LAP_OK
                    : lap_error(LAP_ERR_NO_MEMORY,
                                "no memory for a copy of %zu magnitudes of FP8 matrices", count);
}

void lap_ckpt_fp8_clear(lap_ckpt_fp8_t *fp8)
{
    lap_free(fp8->tensors);
    lap_free(fp8->own);
    *fp8 = (lap_ckpt_fp8_t){.file = NULL};
}

/* ---- the device ---- */

/* Magnitude `age` of matrix i in the copy of the device: since scales were renewed, then the history. */
static float *on_device(const lap_ckpt_fp8_t *fp8, const lap_nn_list_t *list, size_t i, size_t age)
{
    float *device = fp8->own + fp8->count * fp8->length;
    return age == 0 ? &device[i] : &device[fp8->count + lap_nn_fp8_history(list, i, age - 1)];
}

static lap_status_t copy_all(lap_checkpoint_t *checkpoint, bool to_host)
{
    const lap_ckpt_fp8_t *fp8 = &checkpoint->layout.fp8;
    lap_nn_t *nn = checkpoint->nn;
    float *host = fp8->own + fp8->count * fp8->length;
    float *amax = lap_nn_tensor(nn, nn->list.fp8_amax).data;
    float *history = lap_nn_tensor(nn, nn->list.fp8_history).data;
    LAP_TRY(
        lap_ckpt_copy_floats(checkpoint, host, amax + nn->list.nfp8_weights, fp8->count, to_host));
    return lap_ckpt_copy_floats(checkpoint, host + fp8->count, history,
                                fp8->count * (fp8->length - 1), to_host);
}

lap_status_t lap_ckpt_fp8_copy(lap_checkpoint_t *checkpoint, bool to_host)
{
    lap_ckpt_fp8_t *fp8 = &checkpoint->layout.fp8;
    lap_nn_t *nn = checkpoint->nn;
    if (!fp8->file)
        return LAP_OK;
    if (to_host) {
        LAP_TRY(copy_all(checkpoint, true));
        LAP_TRY(lap_nn_wait(nn));
        lap_nn_get_seen(nn, &fp8->seen[0], &fp8->seen[1]);
    }
    for (size_t i = 0; i < fp8->count; i++)
        for (size_t age = 0; age < fp8->length; age++) {
            float *device = on_device(fp8, &nn->list, i, age);
            float *file = &fp8->own[i * fp8->length + age];
            *(to_host ? file : device) = *(to_host ? device : file);
        }
    if (to_host)
        return LAP_OK;
    lap_nn_set_seen(nn, fp8->seen[0], fp8->seen[1]);
    return copy_all(checkpoint, false);
}

/* What a rank has found since scales were renewed is no more than its part of a matrix. */
lap_status_t lap_ckpt_fp8_collect(lap_checkpoint_t *checkpoint, lap_status_t mine)
{
    lap_ckpt_fp8_t *fp8 = &checkpoint->layout.fp8;
    lap_group_t *group = checkpoint->nn->group;
    void *all;
    if (!fp8->file || group->size == 1)
        return mine;
    LAP_TRY(lap_group_agree(group, mine));
    LAP_TRY(lap_group_collect(group, fp8->own, fp8->count * fp8->length * sizeof(float), &all));
    for (int r = 0; r < group->size; r++)
        merge(fp8->own, (const float *)all + (size_t)r * fp8->count * fp8->length,
              fp8->count * fp8->length);
    lap_free(all);
    return LAP_OK;
}

/* ---- the file ---- */

static lap_status_t write_floats(int fd, const char *path, const float *floats, size_t count,
                                 uint64_t at, uint64_t *sum_p)
{
    *sum_p += lap_st_sum(floats, count * sizeof(float), at);
    return lap_file_write(fd, path, floats, count * sizeof(float), at);
}

lap_status_t lap_ckpt_fp8_write(const lap_checkpoint_t *checkpoint, int fd, const char *path,
                                uint64_t *sum_p)
{
    const lap_ckpt_fp8_t *fp8 = &checkpoint->layout.fp8;
    const lap_st_tensor_t *tensors = fp8->file->tensors;
    const uint64_t row = fp8->replica * fp8->length * sizeof(float);
    const bool writes = checkpoint->nn->group->rank == 0;
    for (size_t i = 0; writes && i < fp8->count; i++)
        LAP_TRY(write_floats(fd, path, &fp8->own[i * fp8->length], fp8->length,
                             tensors[fp8->tensors[i]].begin + row, sum_p));
    const float passes[NPASSES] = {fp8->seen[0], fp8->seen[1]};
    return checkpoint->group->rank == 0
               ? write_floats(fd, path, passes, NPASSES, tensors[fp8->all].begin, sum_p)
               : LAP_OK;
}

static lap_status_t find(const lap_st_file_t *file, const lap_st_tensor_t *wanted,
                         const lap_st_tensor_t **found_p)
{
    const lap_st_tensor_t *found = lap_st_find(file, wanted->name);
    if (found && found->ndims == wanted->ndims && found->dims[0] > 0 &&
        (found->ndims > 1 ? found->dims[1] > 0 && found->dims[2] > 0 : found->dims[0] == NPASSES)) {
        *found_p = found;
        return LAP_OK;
    }
    return lap_error(LAP_ERR_INVALID, "'%s' has no tensor '%s'%s, which these layers have",
                     file->path, wanted->name,
                     wanted->ndims > 1 ? " of three dimensions" : " of two numbers");
}

/* Reads all rows; what `own` has is those of this rank, or the largest of all. */
static lap_status_t read_matrix(const lap_ckpt_fp8_t *fp8, const lap_st_file_t *file,
                                const lap_st_tensor_t *tensor, float *row, float *own,
                                uint64_t *sum_p)
{
    const size_t length = (size_t)tensor->dims[2];
    const size_t both = length < fp8->length ? length : fp8->length;
    const bool same = tensor->dims[0] == fp8->replicas && tensor->dims[1] == fp8->contexts;
    memset(own, 0, fp8->length * sizeof(float));
    for (uint64_t r = 0; r < tensor->dims[0] * tensor->dims[1]; r++) {
        LAP_TRY(lap_st_read(file, tensor, r * length, length, row));
        *sum_p +=
            lap_st_sum(row, length * sizeof(float), tensor->begin + r * length * sizeof(float));
        if (!same || r == fp8->replica)
            merge(own, row, both);
    }
    return LAP_OK;
}

static size_t longest(const lap_st_file_t *file)
{
    size_t most = 1;
    for (size_t i = 0; i < file->count; i++)
        if (file->tensors[i].ndims == 3 && file->tensors[i].dims[2] > most)
            most = (size_t)file->tensors[i].dims[2];
    return most;
}

static lap_status_t read_all(lap_checkpoint_t *checkpoint, const lap_st_file_t *file, float *row,
                             uint64_t *sum_p)
{
    lap_ckpt_fp8_t *fp8 = &checkpoint->layout.fp8;
    const lap_st_tensor_t *wanted = fp8->file->tensors, *tensor = NULL;
    const bool counts = checkpoint->nn->group->rank == 0 && fp8->replica == 0;
    float passes[NPASSES];
    uint64_t sum = 0;
    for (size_t i = 0; i < fp8->count; i++) {
        LAP_TRY(find(file, &wanted[fp8->tensors[i]], &tensor));
        LAP_TRY(read_matrix(fp8, file, tensor, row, &fp8->own[i * fp8->length], &sum));
    }
    *sum_p = counts ? sum : 0;
    LAP_TRY(find(file, &wanted[fp8->all], &tensor));
    LAP_TRY(lap_st_read(file, tensor, 0, NPASSES, passes));
    if (checkpoint->group->rank == 0)
        *sum_p += lap_st_sum(passes, sizeof(passes), tensor->begin);
    fp8->seen[0] = passes[0] > 0;
    fp8->seen[1] = passes[1] > 0;
    return LAP_OK;
}

lap_status_t lap_ckpt_fp8_read(lap_checkpoint_t *checkpoint, const lap_st_file_t *file,
                               uint64_t *sum_p)
{
    const size_t most = longest(file);
    if (file->count != checkpoint->layout.fp8.all + 1)
        return lap_error(LAP_ERR_INVALID, "'%s' has %zu tensors, expected %zu for these layers",
                         file->path, file->count, checkpoint->layout.fp8.all + 1);
    float *row = lap_alloc(most, sizeof(*row));
    if (!row)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu magnitudes of an FP8 matrix", most);
    const lap_status_t status = read_all(checkpoint, file, row, sum_p);
    lap_free(row);
    return status;
}

void lap_ckpt_fp8_reset(lap_ckpt_fp8_t *fp8)
{
    if (fp8->file)
        memset(fp8->own, 0, fp8->count * fp8->length * sizeof(float));
    fp8->seen[0] = fp8->seen[1] = false;
}
