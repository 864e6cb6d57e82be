/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The baseline `mpi` of `lap bench`: what a program does that has MPI and a BLAS and nothing else.
 * A blocking collective and cblas_sgemm, one after the other, on the same data and with as many
 * threads as the methods have. All calls of MPI that the command makes itself are in this file.
 * MPI's own handler of errors stays in place: it prints what is wrong and ends all ranks.
 */
#include <limits.h>
#include <string.h>

#include "bench.h"
#include "core/mpi/mpi_load.h"
#include "core/status.h"
#include "device/cpu/cpu_blas.h"
#include "util/alloc.h"

struct lap_bench_baseline {
    const lap_bench_data_t *data;
    lap_op_kind_t kind;
    bool even;            /* all ranks have as many rows */
    int *counts, *starts; /* elements of the rows of each rank */
    float *gathered;      /* AG+GEMM: the whole of a, [m, k] */
};

/* ---- MPI itself ---- */

/* Who comes first, the command or the world, starts MPI; the world needs all of its threads. */
static lap_status_t lap_bench_mpi_start(const lap_environment_t *environment)
{
    int initialised = 0, level = 0, size = 0;
    LAP_TRY(lap_blas_load());
    LAP_TRY(lap_mpi_load());
    lap_mpi.MPI_Initialized(&initialised);
    if (initialised)
        lap_mpi.MPI_Query_thread(&level);
    else
        lap_mpi.MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (level < MPI_THREAD_MULTIPLE)
        return lap_error(LAP_ERR_UNSUPPORTED, "this MPI has no MPI_THREAD_MULTIPLE");
    lap_mpi.MPI_Comm_size(lap_mpi.comm_world, &size);
    if (size != environment->size)
        return lap_error(LAP_ERR_INVALID,
                         "%s started %d ranks, but MPI knows of %d: for --baseline mpi start them "
                         "with the mpirun of the MPI that lap was built with",
                         environment->launcher, environment->size, size);
    return LAP_OK;
}

static void lap_bench_mpi_end(void)
{
    lap_mpi.MPI_Finalize();
}

/* ---- an operator ---- */

/* MPI counts in int: an error where a matrix has more elements. */
static lap_status_t check_counts(const lap_bench_case_t *it)
{
    const size_t width = it->kind == LAP_AG_GEMM ? it->k : it->n;
    if (it->m <= (size_t)INT_MAX / width)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "the baseline mpi moves at most %d elements: %zu x %zu are more", INT_MAX,
                     it->m, width);
}

/* What each rank has of m rows: the shards of the operator. */
static lap_status_t share_rows(lap_bench_baseline_t *baseline, const lap_bench_case_t *it)
{
    int size;
    lap_mpi.MPI_Comm_size(lap_mpi.comm_world, &size);
    const size_t width = it->kind == LAP_AG_GEMM ? it->k : it->n;
    baseline->counts = lap_alloc((size_t)size, sizeof(int));
    baseline->starts = lap_alloc((size_t)size, sizeof(int));
    if (!baseline->counts || !baseline->starts)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the counts of %d ranks", size);
    for (int rank = 0; rank < size; rank++) {
        size_t first;
        baseline->counts[rank] = (int)(lap_shard(it->m, size, rank, &first) * width);
        baseline->starts[rank] = (int)(first * width);
    }
    baseline->even = it->m % (size_t)size == 0;
    return LAP_OK;
}

static void lap_bench_mpi_destroy(lap_bench_baseline_t *baseline)
{
    if (!baseline)
        return;
    if (baseline->gathered)
        baseline->data->ops->free(baseline->data->device, baseline->gathered);
    lap_free(baseline->starts);
    lap_free(baseline->counts);
    lap_free(baseline);
}

static lap_status_t lap_bench_mpi_create(const lap_bench_case_t *it, const lap_bench_data_t *data,
                                         lap_bench_baseline_t **baseline_p)
{
    LAP_TRY(check_counts(it));
    lap_bench_baseline_t *baseline = lap_alloc(1, sizeof(*baseline));
    if (!baseline)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the baseline mpi");
    *baseline = (lap_bench_baseline_t){.data = data, .kind = it->kind};
    lap_status_t status = share_rows(baseline, it);
    if (status == LAP_OK && it->kind == LAP_AG_GEMM) {
        const size_t bytes = it->m * it->k * sizeof(float);
        void *memory = NULL;
        status = data->ops->alloc(data->device, bytes, &memory);
        baseline->gathered = memory;
        if (status == LAP_OK) /* Not numbers, so that what is not gathered shows. */
            memset(memory, 0xff, bytes);
    }
    if (status == LAP_OK)
        *baseline_p = baseline;
    else
        lap_bench_mpi_destroy(baseline);
    return status;
}

/* d = a b^T. A rank may have no columns of d, or nothing to add up. */
static void multiply(const float *a, const lap_tensor_t *b, const lap_tensor_t *d)
{
    const size_t k = b->cols;
    if (d->rows == 0 || d->cols == 0)
        return;
    if (k == 0) {
        memset(d->data, 0, d->rows * d->cols * sizeof(float));
        return;
    }
    const lap_blas_gemm_t gemm = {.a_op = CblasNoTrans,
                                  .b_op = CblasTrans,
                                  .m = (blasint)d->rows,
                                  .n = (blasint)d->cols,
                                  .k = (blasint)k,
                                  .alpha = 1,
                                  .a = a,
                                  .b = b->data,
                                  .d = d->data,
                                  .lda = (blasint)k,
                                  .ldb = (blasint)k,
                                  .ldd = (blasint)d->cols};
    lap_blas_sgemm(&gemm);
}

static void gather(const lap_bench_baseline_t *baseline)
{
    const lap_tensor_t *a = &baseline->data->args.a;
    const int count = (int)(a->rows * a->cols);
    if (baseline->even)
        lap_mpi.MPI_Allgather(a->data, count, lap_mpi.float32, baseline->gathered, count,
                              lap_mpi.float32, lap_mpi.comm_world);
    else
        lap_mpi.MPI_Allgatherv(a->data, count, lap_mpi.float32, baseline->gathered,
                               baseline->counts, baseline->starts, lap_mpi.float32,
                               lap_mpi.comm_world);
}

static void lap_bench_mpi_run(lap_bench_baseline_t *baseline)
{
    const lap_bench_data_t *data = baseline->data;
    if (baseline->kind == LAP_AG_GEMM) {
        gather(baseline);
        multiply(baseline->gathered, &data->args.b, &data->args.d);
        return;
    }
    multiply(data->args.a.data, &data->args.b, &data->gemm_d);
    if (baseline->kind == LAP_GEMM_RS)
        lap_mpi.MPI_Reduce_scatter(data->gemm_d.data, data->args.d.data, baseline->counts,
                                   lap_mpi.float32, lap_mpi.sum, lap_mpi.comm_world);
    else
        lap_mpi.MPI_Allreduce(data->gemm_d.data, data->args.d.data,
                              (int)(data->args.d.rows * data->args.d.cols), lap_mpi.float32,
                              lap_mpi.sum, lap_mpi.comm_world);
}

static const lap_bench_baseline_ops_t ops = {
    .name = "mpi",
    .start = lap_bench_mpi_start,
    .end = lap_bench_mpi_end,
    .create = lap_bench_mpi_create,
    .destroy = lap_bench_mpi_destroy,
    .run = lap_bench_mpi_run,
};

const lap_bench_baseline_ops_t *const lap_bench_mpi = &ops;
