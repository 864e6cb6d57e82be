/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the NVIDIA driver of this machine offers: for `lap info`, and for the launcher, which
 * spreads ranks over GPUs. It only asks; no context is made. The device itself is elsewhere.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_INFO_H
#define LAP_DEVICE_CUDA_CUDA_INFO_H

#include <stdbool.h>
#include <stddef.h>

#include <lap/status.h>

#define LAP_CUDA_GPUS_MAX 32
#define LAP_CUDA_FP8_FROM 89 /* the compute capability, 8.9, that products of FP8 need */

typedef struct lap_cuda_gpu {
    char name[96];
    int sms;
    int major, minor; /* compute capability */
    size_t memory;    /* bytes */
    bool ipc;         /* cuIpcGetMemHandle */
    bool vmm;         /* cuMemCreate, with file descriptors for other processes */
} lap_cuda_gpu_t;

typedef struct lap_cuda_info {
    int version; /* of CUDA, that the driver offers: 13000 is 13.0 */
    int count;   /* at least 1; GPUs past LAP_CUDA_GPUS_MAX are left out */
    lap_cuda_gpu_t gpus[LAP_CUDA_GPUS_MAX];
} lap_cuda_info_t;

/*
 * Loads libcuda and asks it. CUDA_VISIBLE_DEVICES counts. LAP_ERR_UNSUPPORTED, with a sentence,
 * when there is no driver, no GPU, or no CUDA in this build. The driver stays in the process.
 */
lap_status_t lap_cuda_info(lap_cuda_info_t *info_p);

#endif
