/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product in cuBLASMp's terms: see cublasmp_product.h.
 *
 * In its terms, which are column-major, the weight is A, the activations are B, and tokens are
 * columns: D = A^T B is [n of ours, m of ours]. Its grids are P x 1 and 1 x P.
 */
#include "kernel/plugin/cublasmp_product.h"

#include "core/library.h"
#include "core/status.h"
#include "lap_config.h"

/* What is used of its header, as of 0.10. */
enum { COLUMN_MAJOR = 0, ROW_MAJOR = 1 };
enum { TRANS_A = 0, TRANS_B = 1, ALGORITHM = 3, SM_COUNT = 4, EPILOGUE = 5, WIRE_TYPE = 27 };
enum { BIAS_AT = 6, BIAS_TYPE = 8, AUX_AT = 9, AUX_STRIDE = 10, AUX_TYPE = 12 };
enum { A_SCALE_AT = 16, B_SCALE_AT = 18 };
enum { COMPUTE_32F = 68 };
enum { ALL_REDUCE = 1, BIAS = 4, GELU = 32, AUX = 128 };

/* ---- the library ---- */

#define LEAST 800 /* 0.8, which has no need of NVSHMEM */

enum { ALLOCATION_FAILED = 2 }; /* of cublasMpStatus_t */

static const lap_library_t library = {
    .title = "cuBLASMp",
    .variable = "LAP_CUBLASMP",
    .names = {"libcublasmp.so.0"},
    .dir = LAP_CUDA_LIBRARY_DIR,
    .least = "0.8 or later",
};

static lap_status_t check(const lap_cublasmp_api_t *api, int status, const char *what)
{
    if (status == 0)
        return LAP_OK;
    return lap_error(status == ALLOCATION_FAILED ? LAP_ERR_NO_MEMORY : LAP_ERR_UNSUPPORTED,
                     "%s of cuBLASMp failed: %s", what, api->cublasMpGetStatusString(status));
}

lap_status_t lap_cublasmp_load(lap_cublasmp_api_t *api, int *version_p)
{
    LAP_TRY(lap_library_open(&library, &api->library));
#define FIND(name, args) LAP_TRY(lap_library_find(&library, api->library, #name, &api->name));
    FIND(cublasMpGetStatusString, )
    LAP_CUBLASMP_CALLS(FIND)
#undef FIND
    LAP_TRY(check(api, api->cublasMpGetVersion(version_p), "cublasMpGetVersion"));
    if (*version_p >= LEAST)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "cuBLASMp here is %d.%d.%d, expected 0.8 or later",
                     *version_p / 10000, *version_p / 100 % 100, *version_p % 100);
}

/* It is linked against NCCL, and shall find the one that is used here. */
lap_status_t lap_cublasmp_version(int *version_p)
{
    lap_cublasmp_api_t api;
    lap_nccl_api_t nccl;
    LAP_TRY(lap_nccl_load(&nccl));
    return lap_cublasmp_load(&api, version_p);
}

/* ---- attributes ---- */

/* CUDA_R_32F, _16F, _16BF, _8F_E4M3, _8F_E5M2 */
static int cuda_type(lap_dtype_t dtype)
{
    switch (dtype) {
    case LAP_FLOAT32:
        return 0;
    case LAP_FLOAT16:
        return 2;
    case LAP_FLOAT8_E4M3:
        return 28;
    case LAP_FLOAT8_E5M2:
        return 29;
    default:
        return 14;
    }
}

static lap_status_t set_bytes(const lap_cublasmp_product_t *it, int attribute, const void *value,
                              size_t bytes)
{
    return check(&it->api,
                 it->api.cublasMpMatmulDescriptorSetAttribute(it->matmul, attribute, value, bytes),
                 "cublasMpMatmulDescriptorSetAttribute");
}

static lap_status_t set(const lap_cublasmp_product_t *it, int attribute, int value)
{
    return set_bytes(it, attribute, &value, sizeof(value));
}

static lap_status_t set_address(const lap_cublasmp_product_t *it, int attribute, const void *memory)
{
    return set_bytes(it, attribute, &memory, sizeof(memory));
}

/* What GELU keeps has the strides of d. */
static lap_status_t set_epilogue(const lap_cublasmp_product_t *it, bool keeps)
{
    const lap_foreign_shape_t *s = &it->shape;
    const int64_t stride = (int64_t)(s->n / it->ranks);
    const int gelu = s->epilogue & LAP_EPILOGUE_GELU ? GELU | (keeps ? AUX : 0) : 0;
    const int all = s->kind == LAP_GEMM_AR ? ALL_REDUCE : 0;
    LAP_TRY(set(it, EPILOGUE, all | gelu | (s->epilogue & LAP_EPILOGUE_BIAS ? BIAS : 0)));
    if (s->epilogue & LAP_EPILOGUE_BIAS)
        LAP_TRY(set(it, BIAS_TYPE, cuda_type(s->out)));
    if (!(gelu & AUX))
        return LAP_OK;
    LAP_TRY(set(it, AUX_TYPE, cuda_type(s->out)));
    return set_bytes(it, AUX_STRIDE, &stride, sizeof(stride));
}

/* ---- making ---- */

static lap_status_t describe(const lap_cublasmp_product_t *it, size_t m, size_t n, size_t mb,
                             size_t nb, size_t lld, lap_dtype_t dtype, lap_cublasmp_t grid,
                             lap_cublasmp_t *matrix_p)
{
    return check(&it->api,
                 it->api.cublasMpMatrixDescriptorCreate((int64_t)m, (int64_t)n, (int64_t)mb,
                                                        (int64_t)nb, 0, 0, (int64_t)lld,
                                                        cuda_type(dtype), grid, matrix_p),
                 "cublasMpMatrixDescriptorCreate");
}

/* Where which rows and columns are: by that cuBLASMp knows what is to be gathered, or summed. */
static lap_status_t describe_matrices(lap_cublasmp_product_t *it)
{
    const lap_foreign_shape_t *s = &it->shape;
    const size_t ranks = it->ranks;
    if (s->kind == LAP_AG_GEMM) {
        LAP_TRY(describe(it, s->k, s->n, s->k, s->n / ranks, s->k, s->b, it->row_grid, &it->a));
        LAP_TRY(describe(it, s->k, s->m, s->k, s->m / ranks, s->k, s->a, it->row_grid, &it->b));
        return describe(it, s->n, s->m, s->n / ranks, s->m / ranks, s->n / ranks, s->out,
                        it->column_grid, &it->d);
    }
    const bool all = s->kind == LAP_GEMM_AR;
    const size_t k = s->k / ranks, rows = all ? s->m : s->m / ranks;
    LAP_TRY(describe(it, s->k, s->n, k, s->n, k, s->b, it->column_grid, &it->a));
    LAP_TRY(describe(it, s->k, s->m, k, rows, k, s->a, it->column_grid, &it->b));
    return describe(it, s->n, all ? s->m * ranks : s->m, s->n, rows, s->n, s->out, it->row_grid,
                    &it->d);
}

/* By default cuBLASMp would send sums as float32. */
static lap_status_t describe_product(lap_cublasmp_product_t *it)
{
    static const int algorithms[] = {0, 1, 2, 5, 6}; /* in the order of lap_op_fields */
    const lap_foreign_shape_t *s = &it->shape;
    LAP_TRY(check(&it->api, it->api.cublasMpMatmulDescriptorCreate(&it->matmul, COMPUTE_32F),
                  "cublasMpMatmulDescriptorCreate"));
    LAP_TRY(set(it, TRANS_A, 1));
    LAP_TRY(set(it, TRANS_B, 0));
    LAP_TRY(set(it, ALGORITHM, algorithms[s->algorithm]));
    if (s->num_sm > 0)
        LAP_TRY(set(it, SM_COUNT, s->num_sm));
    if (s->kind != LAP_AG_GEMM)
        LAP_TRY(set(it, WIRE_TYPE, cuda_type(s->wire)));
    return set_epilogue(it, true);
}

static lap_status_t size_memory(lap_cublasmp_product_t *it)
{
    const lap_foreign_shape_t *s = &it->shape;
    const float alpha = 1, beta = 0;
    return check(&it->api,
                 it->api.cublasMpMatmul_bufferSize(
                     it->handle, it->matmul, (int64_t)s->n, (int64_t)s->m, (int64_t)s->k, &alpha,
                     NULL, 1, 1, it->a, NULL, 1, 1, it->b, &beta, NULL, 1, 1, NULL, NULL, 1, 1,
                     it->d, &it->device_bytes, &it->host_bytes),
                 "cublasMpMatmul_bufferSize");
}

lap_status_t lap_cublasmp_product_create(lap_cublasmp_product_t *it, CUstream stream,
                                         ncclComm_t comm)
{
    const lap_cublasmp_api_t *api = &it->api;
    const int64_t ranks = (int64_t)it->ranks;
    LAP_TRY(check(api, api->cublasMpCreate(&it->handle, stream), "cublasMpCreate"));
    LAP_TRY(check(api, api->cublasMpGridCreate(ranks, 1, COLUMN_MAJOR, comm, &it->column_grid),
                  "cublasMpGridCreate"));
    LAP_TRY(check(api, api->cublasMpGridCreate(1, ranks, ROW_MAJOR, comm, &it->row_grid),
                  "cublasMpGridCreate"));
    LAP_TRY(describe_matrices(it));
    LAP_TRY(describe_product(it));
    return size_memory(it);
}

lap_status_t lap_cublasmp_product_alloc(lap_cublasmp_product_t *it)
{
    return check(&it->api,
                 it->api.cublasMpMalloc(it->column_grid, &it->device_memory, it->device_bytes),
                 "cublasMpMalloc");
}

lap_status_t lap_cublasmp_product_register(const lap_cublasmp_product_t *it)
{
    return check(&it->api,
                 it->api.cublasMpBufferRegister(it->row_grid, it->device_memory, it->device_bytes),
                 "cublasMpBufferRegister");
}

void lap_cublasmp_product_destroy(lap_cublasmp_product_t *it)
{
    const lap_cublasmp_api_t *api = &it->api;
    if (it->device_memory) {
        (void)api->cublasMpBufferDeregister(it->row_grid, it->device_memory);
        (void)api->cublasMpFree(it->column_grid, it->device_memory);
    }
    const lap_cublasmp_t matrices[] = {it->a, it->b, it->d};
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
        if (matrices[i])
            (void)api->cublasMpMatrixDescriptorDestroy(matrices[i]);
    if (it->matmul)
        (void)api->cublasMpMatmulDescriptorDestroy(it->matmul);
    if (it->row_grid)
        (void)api->cublasMpGridDestroy(it->row_grid);
    if (it->column_grid)
        (void)api->cublasMpGridDestroy(it->column_grid);
    if (it->handle)
        (void)api->cublasMpDestroy(it->handle);
}

/* ---- a call ---- */

static lap_status_t set_args(const lap_cublasmp_product_t *it, const lap_foreign_args_t *args)
{
    const lap_epilogue_t epilogue = it->shape.epilogue;
    if (epilogue & LAP_EPILOGUE_GELU) {
        LAP_TRY(set_epilogue(it, args->aux != NULL));
        LAP_TRY(set_address(it, AUX_AT, args->aux));
    }
    if (epilogue & LAP_EPILOGUE_BIAS)
        LAP_TRY(set_address(it, BIAS_AT, args->bias));
    if (!lap_dtype_is_fp8(it->shape.a))
        return LAP_OK;
    LAP_TRY(set_address(it, A_SCALE_AT, args->b_scale));
    return set_address(it, B_SCALE_AT, args->a_scale);
}

lap_status_t lap_cublasmp_product_multiply(const lap_cublasmp_product_t *it,
                                           const lap_foreign_args_t *args)
{
    const lap_foreign_shape_t *s = &it->shape;
    const float beta = 0;
    LAP_TRY(set_args(it, args));
    return check(&it->api,
                 it->api.cublasMpMatmul(it->handle, it->matmul, (int64_t)s->n, (int64_t)s->m,
                                        (int64_t)s->k, &args->alpha, args->b, 1, 1, it->a, args->a,
                                        1, 1, it->b, &beta, NULL, 1, 1, NULL, args->d, 1, 1, it->d,
                                        it->device_memory, it->device_bytes, it->host_memory,
                                        it->host_bytes),
                 "cublasMpMatmul");
}
