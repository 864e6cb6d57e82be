/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are calls of another library with a group of its own: cuBLASMp, which does a whole operator. */
#ifndef LAP_KERNEL_PLUGIN_PLUGIN_H
#define LAP_KERNEL_PLUGIN_PLUGIN_H

#include <lap/lap.h>

#include "device/device.h"

/* An operator that another library does, in one call; see overlap/foreign.c. */
typedef struct lap_foreign_shape {
    lap_op_kind_t kind;
    size_t m, n, k;              /* global */
    lap_dtype_t a, b, out, wire; /* as in lap_types_t */
    lap_epilogue_t epilogue;
    lap_algorithm_t algorithm;
    int num_sm; /* for communication; 0: the library's choice */
} lap_foreign_shape_t;

/* Matrices are packed and of the whole shape. */
typedef struct lap_foreign_args {
    const void *a, *b;
    void *d;
    float alpha;
    const float *a_scale, *b_scale; /* in memory of the device; NULL: 1 */
    void *bias, *aux;               /* in the type of d; NULL: none */
} lap_foreign_args_t;

typedef struct lap_foreign {
    /* In the order of a stream: d = epilogue(alpha * op(a) op(b)). */
    lap_status_t (*run)(struct lap_foreign *foreign, lap_stream_t *stream,
                        const lap_foreign_args_t *args);
    /* Which call is running now, as a number that no other call has had; 0: none. By any thread. */
    uint64_t (*running)(const struct lap_foreign *foreign);
    void (*destroy)(struct lap_foreign *foreign);
} lap_foreign_t;

/* Over a group that LAP_CAN_FOREIGN. Collective; a failure leaves nothing allocated. */
lap_status_t lap_cublasmp_create(lap_group_t *group, const lap_foreign_shape_t *shape,
                                 lap_foreign_t **foreign_p);

/*
 * The version of the cuBLASMp that can be loaded here: 1000 is 0.10.0. LAP_ERR_UNSUPPORTED, with a sentence, when there is
 * none, or an older one, or this build has no CUDA. It stays in the process.
 */
lap_status_t lap_cublasmp_version(int *version_p);

#endif
