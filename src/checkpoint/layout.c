/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors the files of a checkpoint have, from the parameters of layers, and which parts of them this
 * rank has. All ranks list the same tensors, at the same places of the files: those of the whole model,
 * also where it is cut into the stages of a pipeline.
 */
#include <stdio.h>

#include "checkpoint/checkpoint.h"
#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"

/* ---- tensors ---- */

/* Lists the tensors of a parameter in all sets, from number `at` of each on. Vectors have one dimension. */
static void name_tensors(const lap_ckpt_layout_t *layout, lap_ckpt_file_t *file,
                         const lap_nn_param_t *param, const lap_ckpt_tensors_t *tensors, size_t at)
{
    for (size_t set = 0; set < file->nsets; set++)
        for (size_t i = 0; i < tensors->count; i++) {
            lap_st_tensor_t *tensor = &file->tensors[set * layout->ntensors + at + i];
            snprintf(tensor->name, sizeof(tensor->name), "%s%s", tensors->names[i],
                     file->suffixes[set]);
            tensor->ndims = param->vector ? 1 : 2;
            tensor->dims[tensors->turned] = tensors->rows[i];
            tensor->dims[!tensors->turned] = param->all_cols;
        }
}

static lap_status_t init_file(lap_ckpt_layout_t *layout, const lap_nn_t *nn,
                              const lap_nn_list_t *whole, lap_ckpt_file_t *file)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    const size_t count = file->nsets * layout->ntensors;
    file->tensors = lap_alloc(count, sizeof(*file->tensors));
    if (!file->tensors)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the names of %zu tensors", count);
    size_t at = 0;
    for (size_t i = 0; i < whole->nweights; i++) {
        const lap_nn_param_t *param = &whole->weights[i].param;
        lap_ckpt_tensors_t tensors;
        lap_ckpt_names(nn, param, &tensors);
        name_tensors(layout, file, param, &tensors, at);
        at += tensors.count;
    }
    LAP_TRY(lap_st_header(file->tensors, count, metadata, &file->header, &file->header_bytes));
    file->bytes = count > 0 ? file->tensors[count - 1].end : file->header_bytes;
    return LAP_OK;
}

/* ---- pieces ---- */

/*
 * Which rank writes a parameter: the replicas take turns, and of one that all ranks of a replica have,
 * these do too. Of tied weights that two stages have, the first writes them.
 */
static bool is_mine(const lap_nn_t *nn, const lap_group_t *replicas, const lap_nn_weight_t *weight)
{
    const lap_nn_param_t *param = &weight->param;
    const size_t index = weight->tensor;
    const size_t nreplicas = replicas ? (size_t)replicas->size : 1;
    const size_t replica = replicas ? (size_t)replicas->rank : 0;
    const size_t sharers = (size_t)nn->group->size;
    if (weight->twin)
        return false;
    if (!param->replicated)
        return index % nreplicas == replica;
    return index % sharers == (size_t)nn->group->rank && index / sharers % nreplicas == replica;
}

/* `at`: where the parameter begins in lap_nn_masters; `tensor`: the number of its first. */
static void add_pieces(lap_ckpt_layout_t *layout, const lap_nn_param_t *param,
                       const lap_ckpt_tensors_t *tensors, size_t tensor, size_t at, bool counts)
{
    size_t before = 0; /* rows of the tensors before the one at hand */
    for (size_t p = 0; p < param->nparts; p++) {
        const size_t rows = param->part_rows[p], own = tensors->count > 1 ? p : 0;
        layout->pieces[layout->npieces++] = (lap_ckpt_piece_t){
            .tensor = tensor + own,
            .turned = tensors->turned,
            .counts = counts,
            .at = at,
            .rows = rows,
            .cols = param->cols,
            .first_row = param->global_row[p] - before,
            .first_col = param->global_col,
            .all_rows = tensors->rows[own],
            .all_cols = param->all_cols,
        };
        before += tensors->count > 1 ? tensors->rows[own] : 0;
        layout->most = rows > layout->most ? rows : layout->most;
        at += rows * param->cols;
    }
}

static size_t count_tensors(const lap_nn_t *nn, const lap_nn_param_t *param)
{
    lap_ckpt_tensors_t tensors;
    lap_ckpt_names(nn, param, &tensors);
    return tensors.count;
}

/* The parameters of a stage are in the order of the whole model, but for the twin of tied weights. */
static lap_status_t list_pieces(lap_ckpt_layout_t *layout, const lap_nn_t *nn,
                                const lap_nn_list_t *whole, const lap_group_t *replicas)
{
    const size_t nparams = lap_nn_params(nn);
    layout->pieces = lap_alloc(nparams * LAP_NN_PARTS, sizeof(*layout->pieces));
    if (!layout->pieces)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the parts of %zu tensors",
                         layout->ntensors);
    const float *gradients = lap_nn_tensor(nn, nn->list.grads).data; /* masters lie as they do */
    size_t tensor = 0;
    uint32_t next = 0; /* whose first tensor that is */
    for (size_t i = 0; i < nparams; i++) {
        const lap_nn_weight_t *weight = &nn->list.weights[i];
        for (; next < weight->tensor; next++)
            tensor += count_tensors(nn, &whole->weights[next].param);
        const lap_nn_param_t *param = &weight->param;
        const size_t at = (size_t)((float *)param->grad.data - gradients);
        lap_ckpt_tensors_t tensors;
        lap_ckpt_names(nn, param, &tensors);
        add_pieces(layout, param, &tensors, weight->twin ? 0 : tensor, at,
                   is_mine(nn, replicas, weight));
    }
    return LAP_OK;
}

static lap_status_t lay_out(lap_ckpt_layout_t *layout, const lap_nn_t *nn,
                            const lap_nn_list_t *whole, lap_optimizer_t *optimizer,
                            const lap_group_t *replicas)
{
    size_t count;
    for (uint32_t i = 0; i < whole->nweights; i++)
        layout->ntensors += count_tensors(nn, &whole->weights[i].param);
    layout->nfiles = optimizer ? 2 : 1;
    const bool two = optimizer && lap_optimizer_moments(optimizer, 1, &count);
    layout->narrays = optimizer ? 2 + two : 1;
    layout->files[LAP_CKPT_MODEL] =
        (lap_ckpt_file_t){.name = LAP_CKPT_MODEL_FILE, .nsets = 1, .suffixes = {""}};
    layout->files[LAP_CKPT_OPTIMIZER] = (lap_ckpt_file_t){
        .name = LAP_CKPT_OPTIMIZER_FILE,
        .nsets = 1 + (size_t)two,
        .first_array = 1,
        .suffixes = {two ? ".exp_avg" : ".momentum_buffer", ".exp_avg_sq"},
    };
    (void)lap_ckpt_config(nn, layout->config, sizeof(layout->config));
    for (size_t f = 0; f < layout->nfiles; f++)
        LAP_TRY(init_file(layout, nn, whole, &layout->files[f]));
    LAP_TRY(lap_ckpt_fp8_init(layout, nn, whole, replicas));
    return list_pieces(layout, nn, whole, replicas);
}

lap_status_t lap_ckpt_layout_init(lap_ckpt_layout_t *layout, const lap_nn_t *nn,
                                  lap_optimizer_t *optimizer, const lap_group_t *replicas)
{
    lap_nn_list_t whole = {.nregions = 0};
    lap_nn_plan_t plan = {.nranks = nn->list.plan.nranks};
    *layout = (lap_ckpt_layout_t){.ntensors = 0};
    if (!lap_nn_list_is_stage(&nn->list))
        return lay_out(layout, nn, &nn->list, optimizer, replicas);
    lap_nn_desc_t desc = nn->list.plan.desc;
    desc.overlap = NULL; /* that of whoever made the layers, which may be gone */
    desc.buffer_options = NULL;
    lap_status_t status = lap_nn_plan_init(&desc, plan.nranks, &plan);
    if (status == LAP_OK)
        status = lap_nn_list_init(&whole, &plan, nn->list.rank, nn->kernels);
    if (status == LAP_OK)
        status = lay_out(layout, nn, &whole, optimizer, replicas);
    lap_nn_list_clear(&whole);
    return status;
}

void lap_ckpt_layout_clear(lap_ckpt_layout_t *layout)
{
    for (size_t f = 0; f < LAP_CKPT_FILES; f++) {
        lap_free(layout->files[f].tensors);
        lap_free(layout->files[f].header);
    }
    lap_ckpt_fp8_clear(&layout->fp8);
    lap_free(layout->pieces);
    *layout = (lap_ckpt_layout_t){.ntensors = 0};
}

/* ---- runs ---- */

/* A column of the piece, which is a run of the file. */
static lap_status_t turned_run(const lap_ckpt_piece_t *piece, size_t col, float *floats,
                               float *room, bool reads, lap_ckpt_run_t run, void *context)
{
    const uint64_t first = (uint64_t)(piece->first_col + col) * piece->all_rows + piece->first_row;
    for (size_t r = 0; r < piece->rows && !reads; r++)
        room[r] = floats[r * piece->cols + col];
    LAP_TRY(run(context, first, room, piece->rows));
    for (size_t r = 0; r < piece->rows && reads; r++)
        floats[r * piece->cols + col] = room[r];
    return LAP_OK;
}

lap_status_t lap_ckpt_piece_runs(const lap_ckpt_piece_t *piece, float *floats, float *room,
                                 bool reads, lap_ckpt_run_t run, void *context)
{
    const uint64_t first = (uint64_t)piece->first_row * piece->all_cols + piece->first_col;
    if (piece->rows == 0 || piece->cols == 0)
        return LAP_OK;
    if (!piece->turned && piece->cols == piece->all_cols)
        return run(context, first, floats, piece->rows * piece->cols);
    for (size_t r = 0; !piece->turned && r < piece->rows; r++)
        LAP_TRY(run(context, first + r * piece->all_cols, floats + r * piece->cols, piece->cols));
    for (size_t c = 0; piece->turned && c < piece->cols; c++)
        LAP_TRY(turned_run(piece, c, floats, room, reads, run, context));
    return LAP_OK;
}
