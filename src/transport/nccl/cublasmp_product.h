/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product of ours as cuBLASMp is told of it: grids, descriptors, a workspace, and the call. Each
 * function may wait for peers; cublasmp.c gives it a thread that can be left, or looks at its calls.
 * The primary context is current.
 */
#ifndef LAP_TRANSPORT_NCCL_CUBLASMP_PRODUCT_H
#define LAP_TRANSPORT_NCCL_CUBLASMP_PRODUCT_H

#include "transport/nccl/cublasmp_load.h"
#include "transport/transport.h"

typedef struct lap_cublasmp_product {
    lap_cublasmp_api_t api; /* the first three are the caller's to set */
    lap_foreign_shape_t shape;
    size_t ranks;
    lap_cublasmp_t handle, column_grid, row_grid, matmul, a, b, d;
    void *device_memory, *host_memory; /* of each call; that of the host is the caller's */
    size_t device_bytes, host_bytes;   /* how much a call needs of them */
} lap_cublasmp_product_t;

/* All but the workspace. After a failure destroy ends what is there. */
lap_status_t lap_cublasmp_product_create(lap_cublasmp_product_t *it, CUstream stream,
                                         ncclComm_t comm);
void lap_cublasmp_product_destroy(lap_cublasmp_product_t *it);

/* The workspace on the GPU. Without the second step cuBLASMp would not overlap, and not say so. */
lap_status_t lap_cublasmp_product_alloc(lap_cublasmp_product_t *it);
lap_status_t lap_cublasmp_product_register(const lap_cublasmp_product_t *it);

lap_status_t lap_cublasmp_product_multiply(const lap_cublasmp_product_t *it,
                                           const lap_foreign_args_t *args);

#endif
