/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU as a device: GEMM by OpenBLAS, everything else as every host does it. OpenBLAS has one
 * number of threads for the whole process; which bits a row gets depends on the shape it was
 * computed in.
 */
#include <cblas.h>
#include <limits.h>

#include "core/status.h"
#include "device/host/host.h"

static lap_status_t check_size(const char *name, size_t value)
{
    if (value > INT_MAX)
        return lap_error(LAP_ERR_UNSUPPORTED, "%s = %zu of a GEMM: OpenBLAS takes at most %d", name,
                         value, INT_MAX);
    return LAP_OK;
}

/* d [rows, n] = a [rows, k] times b [n, k] transposed. */
static lap_status_t multiply(const lap_gemm_t *gemm, const lap_gemm_block_t *block)
{
    const size_t lda = block->a_stride / sizeof(float);
    const size_t ldb = gemm->b_stride / sizeof(float);
    const size_t ldd = block->d_stride / sizeof(float);
    LAP_TRY(check_size("rows", block->rows));
    LAP_TRY(check_size("n", gemm->n));
    LAP_TRY(check_size("k", gemm->k));
    LAP_TRY(check_size("row stride of a", lda));
    LAP_TRY(check_size("row stride of b", ldb));
    LAP_TRY(check_size("row stride of d", ldd));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)block->rows, (blasint)gemm->n,
                (blasint)gemm->k, 1.0f, block->a, (blasint)lda, gemm->b, (blasint)ldb, 0.0f,
                block->d, (blasint)ldd);
    return LAP_OK;
}

static lap_status_t lap_cpu_gemm(lap_stream_t *stream, const lap_gemm_t *gemm)
{
    return lap_host_gemm(stream, gemm, multiply);
}

extern const lap_device_ops_t lap_cpu_ops;

static lap_status_t lap_cpu_open(int threads, lap_device_t **device_p)
{
    if (threads < 0)
        return lap_error(LAP_ERR_INVALID, "threads = %d: expected 0 or more", threads);
    LAP_TRY(lap_host_open(&lap_cpu_ops, device_p));
    if (threads > 0)
        openblas_set_num_threads(threads);
    return LAP_OK;
}

const lap_device_ops_t lap_cpu_ops = {
    .name = "cpu",
    .summary = "GEMM by OpenBLAS; streams are worker threads",
    .open = lap_cpu_open,
    .close = lap_host_close,
    .alloc = lap_host_alloc,
    .free = lap_host_free,
    .stream_create = lap_host_stream_create,
    .stream_destroy = lap_host_stream_destroy,
    .stream_call = lap_host_stream_call,
    .stream_synchronize = lap_host_stream_synchronize,
    .event_create = lap_host_event_create,
    .event_destroy = lap_host_event_destroy,
    .event_record = lap_host_event_record,
    .stream_wait_event = lap_host_stream_wait_event,
    .event_synchronize = lap_host_event_synchronize,
    .stamp = lap_host_stamp,
    .copy = lap_host_copy,
    .reduce = lap_host_reduce,
    .gemm = lap_cpu_gemm,
};
