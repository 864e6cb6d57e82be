/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks and GPUs: which GPU each rank of a job gets, and, where several ranks share one, which part
 * of it. The ranks learn it from LAP_GPU and LAP_GPU_PART ("1/4": the second of four parts) and
 * take their parts themselves; here is the daemon without which they would take turns.
 */
#ifndef LAP_CLI_GPU_SHARE_H
#define LAP_CLI_GPU_SHARE_H

#include "cli.h"
#include "device/cuda/cuda_info.h"
#include "mps.h"

typedef enum lap_gpu_mode {
    LAP_GPU_OFF,  /* the ranks choose their GPUs by themselves, and may take turns */
    LAP_GPU_AUTO, /* as ON where that can be; else as OFF */
    LAP_GPU_ON,   /* every rank has a GPU, or a part of one, to itself */
} lap_gpu_mode_t;

typedef struct lap_gpu_share {
    int nranks;
    int first, ngpus; /* the GPUs that ranks are spread over; 0: the ranks choose */
    lap_mps_t mps;    /* when a GPU is shared */
} lap_gpu_share_t;

/* Where a rank belongs. */
typedef struct lap_gpu_place {
    int gpu;
    int part, nparts; /* 1 part: the GPU is the rank's own */
} lap_gpu_place_t;

#define LAP_GPU_WHY 1024

/* The GPUs that the driver knows, or why it has no answer. To ask it takes a process, and time. */
typedef struct lap_gpu_answer {
    lap_status_t status;
    char why[LAP_GPU_WHY / 2];
    lap_cuda_info_t info;
} lap_gpu_answer_t;

/* What ranks on the device cuda need. */
typedef struct lap_gpu_needs {
    const char *transport;
    int nranks;
    double rank_bytes; /* of memory, each of them */
    lap_dtype_t dtype; /* of what their GEMMs multiply */
} lap_gpu_needs_t;

/*
 * Whether ranks have what they need: there is a driver, a GPU, cuBLASLt and NCCL if they use it,
 * LAP_GPU is a GPU, and no GPU has less memory than its ranks need, or is too old for their type.
 * False, with a sentence without an end, if not. The answer, which it begins as zeros, is for
 * lap_gpu_share_begin.
 */
bool lap_gpu_check(const lap_gpu_needs_t *needs, lap_gpu_answer_t *answer_p, char why[LAP_GPU_WHY]);

/*
 * Looks for GPUs, unless the answer of the driver is `known`, and starts the daemon if it is needed.
 * LAP_GPU in our own environment puts all ranks on that GPU. False, with a sentence without an end,
 * when the ranks cannot have what was asked for; the ranks then choose by themselves, if the caller
 * goes on. lap_gpu_share_end undoes it, also after a failure; false when the daemon had to be
 * killed.
 */
bool lap_gpu_share_begin(lap_gpu_mode_t mode, int nranks, const lap_gpu_answer_t *known,
                         lap_gpu_share_t *share_p, char why[LAP_GPU_WHY]);
bool lap_gpu_share_end(lap_gpu_share_t *share);

/* Where a rank belongs; valid when ngpus is not 0. */
lap_gpu_place_t lap_gpu_place(const lap_gpu_share_t *share, int rank);

/* The words for lap_gpu_mode_t; NULL at the end. */
extern const char *const lap_gpu_modes[];

/* The value of --gpu-share; "" is on. Prints a sentence and returns false for what it cannot mean. */
bool lap_arg_gpu_share(const lap_command_t *command, const char *text, lap_gpu_mode_t *mode_p);

#endif
