/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GEMM on a GPU: by cuBLASLt, whose choice of a kernel is kept for each shape; sums are fp32 and
 * the same in every call. It writes d itself where it can. Where something is to be done to the
 * sums, or d has a type that it does not write, it writes fp32 into memory of the stream, and a
 * reduction of one source finishes them. What it cannot do at all, such as FP8 matrices with odd
 * sizes, a plain kernel does, slowly.
 *
 * cuBLASLt thinks in columns: d^T [n, rows] = op(b)^T op(a)^T, so that b is its first operand.
 */
#include <string.h>

#include "device/cuda/cuda.h"
#include "util/alloc.h"

#define WORKSPACE_BYTES ((size_t)32 << 20) /* what NVIDIA recommends for Hopper */
#define ALIGNMENT_MOST 256u

/* What a choice depends on. No padding: it is compared as bytes. */
typedef struct gemm_key {
    uint64_t rows, n, k, lda, ldb, ldd; /* in elements */
    int32_t a_dtype, b_dtype, d_dtype;
    uint32_t a_transposed, b_plain, accumulates, scaled;
    uint32_t align_a, align_b, align_d;
} gemm_key_t;

struct lap_cuda_plan {
    gemm_key_t key;
    bool found; /* cuBLASLt can do it */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

static cudaDataType_t type_of(lap_dtype_t dtype)
{
    static const cudaDataType_t types[] = {
        [LAP_FLOAT32] = CUDA_R_32F,         [LAP_FLOAT16] = CUDA_R_16F,
        [LAP_BFLOAT16] = CUDA_R_16BF,       [LAP_FLOAT8_E4M3] = CUDA_R_8F_E4M3,
        [LAP_FLOAT8_E5M2] = CUDA_R_8F_E5M2,
    };
    return types[dtype];
}

static uint32_t alignment_of(const void *pointer)
{
    const uintptr_t bits = (uintptr_t)pointer | ALIGNMENT_MOST;
    return (uint32_t)(bits & (~bits + 1));
}

/* ---- plans ---- */

static lap_status_t set(const lap_cuda_api_t *api, cublasLtMatmulDesc_t operation,
                        cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    return lap_cublas_check(api,
                            api->cublasLtMatmulDescSetAttribute(operation, attribute, value, bytes),
                            "cublasLtMatmulDescSetAttribute");
}

static lap_status_t layout(const lap_cuda_api_t *api, int32_t dtype, uint64_t rows, uint64_t cols,
                           uint64_t stride, cublasLtMatrixLayout_t *layout_p)
{
    /* A row-major matrix is its transpose, column by column. */
    return lap_cublas_check(api,
                            api->cublasLtMatrixLayoutCreate(layout_p, type_of((lap_dtype_t)dtype),
                                                            cols, rows, (int64_t)stride),
                            "cublasLtMatrixLayoutCreate");
}

static lap_status_t describe(const lap_cuda_device_t *device, lap_cuda_plan_t *plan)
{
    const lap_cuda_api_t *api = &device->api;
    const gemm_key_t *key = &plan->key;
    const int32_t first = key->b_plain ? CUBLAS_OP_N : CUBLAS_OP_T;
    const int32_t second = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t sms = device->sms;
    LAP_TRY(lap_cublas_check(
        api, api->cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate"));
    LAP_TRY(set(api, plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
    LAP_TRY(set(api, plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
    if (device->green)
        LAP_TRY(set(api, plan->operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof(sms)));
    LAP_TRY(layout(api, key->b_dtype, key->b_plain ? key->k : key->n,
                   key->b_plain ? key->n : key->k, key->ldb, &plan->b));
    LAP_TRY(layout(api, key->a_dtype, key->a_transposed ? key->k : key->rows,
                   key->a_transposed ? key->rows : key->k, key->lda, &plan->a));
    return layout(api, key->d_dtype, key->rows, key->n, key->ldd, &plan->d);
}

/* Partial sums of one element are added in fp32 and in one order, or there are none. */
static lap_status_t set_preference(const lap_cuda_api_t *api, const gemm_key_t *key,
                                   cublasLtMatmulPreference_t preference)
{
    const uint64_t workspace = WORKSPACE_BYTES;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } settings[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align_d, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_d, sizeof(uint32_t)},
    };
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        LAP_TRY(lap_cublas_check(
            api,
            api->cublasLtMatmulPreferenceSetAttribute(preference, settings[i].attribute,
                                                      settings[i].value, settings[i].bytes),
            "cublasLtMatmulPreferenceSetAttribute"));
    return LAP_OK;
}

static lap_status_t choose(const lap_cuda_device_t *device, lap_cuda_plan_t *plan)
{
    const lap_cuda_api_t *api = &device->api;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    int count = 0;
    LAP_TRY(lap_cublas_check(api, api->cublasLtMatmulPreferenceCreate(&preference),
                             "cublasLtMatmulPreferenceCreate"));
    lap_status_t status = set_preference(api, &plan->key, preference);
    if (status == LAP_OK) {
        const cublasStatus_t result =
            api->cublasLtMatmulAlgoGetHeuristic(device->blas, plan->operation, plan->b, plan->a,
                                                plan->d, plan->d, preference, 1, &best, &count);
        plan->found =
            result == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
        if (plan->found)
            plan->algorithm = best.algo;
    }
    (void)api->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static void plan_clear(const lap_cuda_api_t *api, lap_cuda_plan_t *plan)
{
    if (plan->operation)
        (void)api->cublasLtMatmulDescDestroy(plan->operation);
    if (plan->a)
        (void)api->cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b)
        (void)api->cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->d)
        (void)api->cublasLtMatrixLayoutDestroy(plan->d);
    memset(plan, 0, sizeof(*plan));
}

void lap_cuda_plans_free(lap_cuda_device_t *device)
{
    for (size_t i = 0; device->plans && i < LAP_CUDA_PLANS; i++)
        plan_clear(&device->api, &device->plans[i]);
    lap_free(device->plans);
    device->plans = NULL;
}

/* The plan of a key, made when first asked for; the one made longest ago makes room. */
static lap_status_t get_plan(lap_cuda_device_t *device, const gemm_key_t *key,
                             lap_cuda_plan_t **plan_p)
{
    if (!device->plans)
        device->plans = lap_alloc(LAP_CUDA_PLANS, sizeof(*device->plans));
    if (!device->plans)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the plans of GEMMs");
    for (size_t i = 0; i < LAP_CUDA_PLANS && i < device->nplans; i++) {
        if (memcmp(&device->plans[i].key, key, sizeof(*key)) == 0) {
            *plan_p = &device->plans[i];
            return LAP_OK;
        }
    }
    lap_cuda_plan_t *plan = &device->plans[device->nplans % LAP_CUDA_PLANS];
    plan_clear(&device->api, plan);
    plan->key = *key;
    lap_status_t status = describe(device, plan);
    if (status == LAP_OK)
        status = choose(device, plan);
    if (status != LAP_OK) {
        plan_clear(&device->api, plan);
        return status;
    }
    device->nplans++;
    *plan_p = plan;
    return LAP_OK;
}

/* ---- running ---- */

/* Where the sums go. */
typedef struct target {
    void *data;
    size_t stride; /* bytes */
    lap_dtype_t dtype;
} target_t;

/* The old one is kept: what was issued uses it, and to free it would mean to wait for that. */
static lap_status_t grow_scratch(lap_stream_t *stream, size_t wanted)
{
    CUdeviceptr memory;
    if (stream->scratch_bytes >= wanted)
        return LAP_OK;
    if (wanted < 2 * stream->scratch_bytes)
        wanted = 2 * stream->scratch_bytes;
    LAP_TRY(lap_cuda_memory(stream->device, wanted, &memory));
    if (stream->scratch)
        stream->outgrown[stream->noutgrown++] = stream->scratch;
    stream->scratch = memory;
    stream->scratch_bytes = wanted;
    return LAP_OK;
}

static gemm_key_t key_of(const lap_gemm_t *gemm, const lap_gemm_block_t *block,
                         const target_t *target, bool accumulates)
{
    gemm_key_t key;
    memset(&key, 0, sizeof(key));
    key.rows = block->rows;
    key.n = gemm->n;
    key.k = gemm->k;
    key.lda = block->a_stride / lap_dtype_size(gemm->a_dtype);
    key.ldb = gemm->b_stride / lap_dtype_size(gemm->b_dtype);
    key.ldd = target->stride / lap_dtype_size(target->dtype);
    key.a_dtype = (int32_t)gemm->a_dtype;
    key.b_dtype = (int32_t)gemm->b_dtype;
    key.d_dtype = (int32_t)target->dtype;
    key.a_transposed = gemm->a_transposed;
    key.b_plain = gemm->b_plain;
    key.accumulates = accumulates;
    key.scaled = block->a_scale != NULL;
    key.align_a = alignment_of(block->a);
    key.align_b = alignment_of(gemm->b);
    key.align_d = alignment_of(target->data);
    return key;
}

static lap_status_t multiply(lap_stream_t *stream, const lap_gemm_t *gemm,
                             const lap_gemm_block_t *block, const lap_cuda_plan_t *plan,
                             const target_t *target, float beta)
{
    lap_cuda_device_t *device = stream->device;
    const lap_cuda_api_t *api = &device->api;
    LAP_TRY(lap_cuda_flush(stream->device));
    if (!stream->workspace)
        LAP_TRY(lap_cuda_memory(device, WORKSPACE_BYTES, &stream->workspace));
    if (block->a_scale)
        LAP_TRY(set(api, plan->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &block->a_scale,
                    sizeof(block->a_scale)));
    return lap_cublas_check(
        api,
        api->cublasLtMatmul(device->blas, plan->operation, &gemm->scale, gemm->b, plan->b, block->a,
                            plan->a, &beta, target->data, plan->d, target->data, plan->d,
                            &plan->algorithm, (void *)(uintptr_t)stream->workspace, WORKSPACE_BYTES,
                            stream->stream),
        "cublasLtMatmul");
}

/* What cuBLASLt cannot do. */
static lap_status_t multiply_plainly(lap_stream_t *stream, const lap_gemm_t *gemm,
                                     const lap_gemm_block_t *block)
{
    const lap_cuda_multiply_t args = {
        .a_dtype = (int32_t)gemm->a_dtype,
        .b_dtype = (int32_t)gemm->b_dtype,
        .d_dtype = (int32_t)gemm->d_dtype,
        .a_transposed = gemm->a_transposed,
        .b_plain = gemm->b_plain,
        .a = block->a,
        .b = gemm->b,
        .d = block->d,
        .a_stride = block->a_stride,
        .b_stride = gemm->b_stride,
        .d_stride = block->d_stride,
        .rows = block->rows,
        .n = gemm->n,
        .k = gemm->k,
        .scale = gemm->scale,
        .a_scale = block->a_scale,
        .finish = lap_cuda_finish_of(gemm->finish, block->aux),
    };
    const size_t across = (gemm->n + LAP_CUDA_TILE - 1) / LAP_CUDA_TILE;
    const size_t down = (block->rows + LAP_CUDA_TILE - 1) / LAP_CUDA_TILE;
    if (down > 65535)
        return lap_error(LAP_ERR_UNSUPPORTED, "%zu rows of a GEMM that cuBLASLt cannot do",
                         block->rows);
    return lap_cuda_launch(stream, LAP_CUDA_KERNEL_multiply, across, down, LAP_CUDA_TILE,
                           LAP_CUDA_TILE, &args);
}

/* Whether cuBLASLt writes results of this type for these operands. */
static bool writes(lap_dtype_t from, lap_dtype_t to)
{
    return to == LAP_FLOAT32 || (to == from && !lap_dtype_is_fp8(to)) ||
           (lap_dtype_is_fp8(from) && !lap_dtype_is_fp8(to));
}

/* Sums into memory of the stream, which a reduction then finishes. */
static lap_status_t run_in_two(lap_stream_t *stream, const lap_gemm_t *gemm,
                               const lap_gemm_block_t *block)
{
    lap_cuda_plan_t *plan;
    const size_t stride = gemm->n * sizeof(float);
    LAP_TRY(grow_scratch(stream, block->rows * stride));
    const target_t target = {(void *)(uintptr_t)stream->scratch, stride, LAP_FLOAT32};
    const gemm_key_t key = key_of(gemm, block, &target, false);
    LAP_TRY(get_plan(stream->device, &key, &plan));
    if (!plan->found)
        return multiply_plainly(stream, gemm, block);
    LAP_TRY(multiply(stream, gemm, block, plan, &target, 0));
    const void *const src = target.data;
    const lap_reduce_t reduce = {
        .from = LAP_FLOAT32,
        .to = gemm->d_dtype,
        .dst = block->d,
        .dst_stride = block->d_stride,
        .srcs = &src,
        .src_strides = &stride,
        .nsrc = 1,
        .rows = block->rows,
        .cols = gemm->n,
        .finish = gemm->finish,
        .aux = block->aux,
    };
    return lap_cuda_reduce(stream, &reduce);
}

static lap_status_t run_block(lap_stream_t *stream, const lap_gemm_t *gemm,
                              const lap_gemm_block_t *block)
{
    lap_cuda_plan_t *plan;
    const lap_finish_t *finish = gemm->finish;
    const bool plain = !finish || (finish->epilogue == LAP_EPILOGUE_NONE && finish->scale == 1);
    if (block->rows == 0 || gemm->n == 0)
        return LAP_OK;
    /* cuBLASLt knows scales of FP8 only. */
    if (gemm->k == 0 || (block->a_scale && !lap_dtype_is_fp8(gemm->a_dtype)))
        return multiply_plainly(stream, gemm, block);
    if (!plain || !writes(gemm->a_dtype, gemm->d_dtype))
        return run_in_two(stream, gemm, block);
    const float beta = finish ? finish->beta : 0;
    const target_t target = {block->d, block->d_stride, gemm->d_dtype};
    const gemm_key_t key = key_of(gemm, block, &target, beta != 0);
    LAP_TRY(get_plan(stream->device, &key, &plan));
    if (!plan->found)
        return multiply_plainly(stream, gemm, block);
    return multiply(stream, gemm, block, plan, &target, beta);
}

lap_status_t lap_cuda_gemm(lap_stream_t *stream, const lap_gemm_t *gemm)
{
    LAP_TRY(lap_device_check_dtype("a GEMM with a", gemm->a_dtype));
    LAP_TRY(lap_device_check_dtype("a GEMM with b", gemm->b_dtype));
    LAP_TRY(lap_device_check_dtype("a GEMM with d", gemm->d_dtype));
    LAP_TRY(lap_cuda_enter(stream->device));
    lap_status_t status = LAP_OK;
    for (size_t i = 0; i < gemm->nblocks && status == LAP_OK; i++)
        status = run_block(stream, gemm, &gemm->blocks[i]);
    return lap_cuda_leave(stream->device, status);
}
