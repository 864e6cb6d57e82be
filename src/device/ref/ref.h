/* SPDX-License-Identifier: Apache-2.0 */
/* What the reference device and its guarded form share. */
#ifndef LAP_DEVICE_REF_REF_H
#define LAP_DEVICE_REF_REF_H

#include "device/host/host.h"

/* A block of a GEMM: a lap_host_kernel_t. */
lap_status_t lap_ref_multiply(const lap_gemm_t *gemm, const lap_gemm_block_t *block,
                              void *workspace);

/* The numeric slots of a device in guard mode: see host_guard.h. Casts and transposes are parts of kernels. */
lap_status_t lap_ref_guarded_gemm(lap_stream_t *stream, const lap_gemm_t *gemm);
lap_status_t lap_ref_guarded_copy(lap_stream_t *stream, const lap_copy_t *copy);
lap_status_t lap_ref_guarded_reduce(lap_stream_t *stream, const lap_reduce_t *reduce);
lap_status_t lap_ref_guarded_column_sums(lap_stream_t *stream, const lap_column_sums_t *sums);

#endif
