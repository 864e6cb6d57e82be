/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `lap train` prints of each step as it is made: the line of a model, for people or as JSON, and
 * a line on a terminal that shows how far it is.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/world.h"
#include "device/cuda/cuda_info.h"
#include "peak.h"
#include "progress.h"
#include "train.h"

/* ---- figures ---- */

/* Whether there is communication of a kind. */
static bool has_kind(const lap_train_t *train, const lap_train_iteration_t *it, int axis)
{
    return it->traced && (lap_grid_size(&train->grid, (lap_axis_t)axis) > 1 ||
                          it->kinds[axis].total > 0 || it->kinds[axis].waited > 0);
}

/* Where there are several, they overlap, and do not add up to all. */
static bool has_several(const lap_train_t *train, const lap_train_iteration_t *it)
{
    int kinds = 0;
    for (int a = 0; a < LAP_AXES; a++)
        kinds += has_kind(train, it, a);
    return kinds > 1;
}

/* Of this rank: what its process had at most so far, or on a GPU what it needs there. */
static double memory_mib(const lap_train_t *train)
{
    struct rusage usage;
    double bytes = 0;
    if (strcmp(train->device, "cuda") == 0)
        return lap_train_device_bytes(train, &bytes) == LAP_OK ? bytes / (1 << 20) : NAN;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss / 1024 : NAN;
}

double lap_train_peak(const lap_train_t *train, int local_ranks)
{
    lap_cuda_info_t info;
    if (train->peak_tflops > 0)
        return train->peak_tflops * 1e12;
    if (strcmp(train->device, "cuda") != 0 || lap_cuda_info(&info) != LAP_OK)
        return 0;
    const lap_dtype_t dtype = train->desc.fp8 == LAP_FP8_NONE ? train->desc.dtype : LAP_FLOAT8_E4M3;
    const double part = local_ranks > info.count ? (double)info.count / local_ranks : 1;
    return lap_peak_tflops(info.gpus[0].name, dtype) * 1e12 * part;
}

/* Causal attention of a rank in an iteration: two products forward, four backward, half of each. */
static double attention_flops(const lap_train_t *train)
{
    const lap_nn_desc_t *desc = &train->desc;
    if (desc->kind != LAP_NN_ATTENTION && desc->kind != LAP_NN_TRANSFORMER && !train->model)
        return 0;
    const double scores = (double)desc->seq * (double)(desc->seq + 1) / 2;
    const double heads = (double)(desc->heads * desc->batch * desc->layers) * train->micro;
    return 6 * 2 * scores * (double)desc->head_dim * heads / train->grid.tp / train->grid.cp /
           train->grid.pp;
}

double lap_train_mfu(const lap_train_t *train, const lap_train_result_t *result, double seconds)
{
    if (result->peak <= 0 || seconds <= 0)
        return NAN;
    return (result->flops + attention_flops(train)) / seconds / result->peak;
}

/* ---- lines ---- */

/* Adds ", tp 5 ms (4 hidden, 1 exposed)". */
static void add_text(char *text, size_t bytes, const char *name, const lap_train_comm_t *comm)
{
    const size_t used = strlen(text);
    snprintf(text + used, bytes - used, ", %s %.3g ms (%.3g hidden, %.3g exposed)", name,
             comm->total * 1e3, comm->hidden * 1e3, comm->exposed * 1e3);
}

static void print_json(const lap_train_t *train, const lap_train_result_t *result, int step,
                       const lap_train_iteration_t *it)
{
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{step:%d loss:%.17g grad_norm:%.17g lr:%.9g", step, it->loss,
                 lap_train_has_norm(train) ? it->norm : NAN,
                 lap_optimizer_rate(&train->optimizer, (size_t)step));
    if (train->dynamic)
        lap_json_put(&json, "loss_scale:%.17g skipped:%lu", it->scale, it->skips);
    lap_json_put(&json, "ms:%.6g tokens_per_s:%.6g tflops:%.6g mfu:%.6g memory_mib:%.6g",
                 it->seconds * 1e3, lap_train_tokens(train) / it->seconds,
                 result->flops / it->seconds * 1e-12, lap_train_mfu(train, result, it->seconds),
                 memory_mib(train));
    lap_train_json_comm(&json, &it->rows[LAP_TRAIN_ALL], it->traced);
    lap_json_put(&json, "comm:{");
    for (int a = 0; a < LAP_AXES; a++) {
        if (!has_kind(train, it, a))
            continue;
        lap_json_put(&json, "%s:{", lap_axis_name((lap_axis_t)a));
        lap_train_json_comm(&json, &it->kinds[a], true);
        if (a == LAP_AXIS_PP)
            lap_json_put(&json, "bubble_ms:%.6g", it->bubble * 1e3);
        lap_json_put(&json, "}");
    }
    lap_json_put(&json, "}}");
    fflush(stdout);
}

void lap_train_log_step(const lap_train_t *train, const lap_group_t *world,
                        const lap_train_result_t *result, int step, const char *way,
                        const lap_train_iteration_t *it)
{
    char comm[400] = "", mfu[32] = "", norm[32] = "", scale[64] = "";
    if (lap_group_rank(world) != 0)
        return;
    lap_train_progress_end(train, world);
    if (train->json && !train->compare)
        print_json(train, result, step, it);
    for (int a = 0; a < LAP_AXES; a++)
        if (has_kind(train, it, a))
            add_text(comm, sizeof(comm), lap_axis_name((lap_axis_t)a), &it->kinds[a]);
    if (has_several(train, it))
        add_text(comm, sizeof(comm), "all", &it->rows[LAP_TRAIN_ALL]);
    if (result->peak > 0)
        snprintf(mfu, sizeof(mfu), ", MFU %.1f %%",
                 100 * lap_train_mfu(train, result, it->seconds));
    if (lap_train_has_norm(train))
        snprintf(norm, sizeof(norm), ", norm %.4g", it->norm);
    if (train->dynamic)
        snprintf(scale, sizeof(scale), ", scale %g%s (%" PRIu64 " skipped)", it->scale,
                 it->skipped ? " was too large" : "", it->skips);
    lap_train_log(train, world,
                  "Step %d/%d%s: loss %.6f%s, lr %.4g%s, %.4g ms, %.0f tokens/s, "
                  "%.3g TFLOP/s%s, %.0f MiB%s",
                  step, train->iters, way, it->loss, norm,
                  lap_optimizer_rate(&train->optimizer, (size_t)step), scale, it->seconds * 1e3,
                  lap_train_tokens(train) / it->seconds, result->flops / it->seconds * 1e-12, mfu,
                  memory_mib(train), comm);
}

/* ---- on a terminal ---- */

/* "1 h 5 min", "3 min 20 s", "8 s" */
static void write_time(double seconds, char *text, size_t bytes)
{
    const long all = lround(seconds);
    if (all >= 3600)
        snprintf(text, bytes, "%ld h %ld min", all / 3600, all % 3600 / 60);
    else if (all >= 60)
        snprintf(text, bytes, "%ld min %ld s", all / 60, all % 60);
    else
        snprintf(text, bytes, "%ld s", all);
}

static bool shows_progress(const lap_train_t *train, const lap_group_t *world)
{
    return !train->quiet && lap_group_rank(world) == 0;
}

void lap_train_progress(const lap_train_t *train, const lap_group_t *world, int done, int of,
                        double loss, double seconds)
{
    char left[48];
    write_time(done > 0 ? seconds / done * (of - done) : 0, left, sizeof(left));
    lap_progress(shows_progress(train, world) && done > 0 && done < of,
                 "%d of %d iterations, loss %.4f, %s left", done, of, loss, left);
}

void lap_train_progress_end(const lap_train_t *train, const lap_group_t *world)
{
    lap_progress_end(shows_progress(train, world));
}
