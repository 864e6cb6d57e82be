/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of GEMMs: cuBLASLt's description of a GEMM and the kernel chosen for it. A plan is made
 * once and cached until the device closes, since another kernel might give other bits.
 */
#include "device/cuda/cuda_plan.h"

#include <string.h>

#include "util/alloc.h"

#define WORTHWHILE ((double)(1 << 26)) /* multiply-adds: a smaller GEMM is over before it matters */

static cudaDataType_t type_of(lap_dtype_t dtype)
{
    static const cudaDataType_t types[] = {
        [LAP_FLOAT32] = CUDA_R_32F,         [LAP_FLOAT16] = CUDA_R_16F,
        [LAP_BFLOAT16] = CUDA_R_16BF,       [LAP_FLOAT8_E4M3] = CUDA_R_8F_E4M3,
        [LAP_FLOAT8_E5M2] = CUDA_R_8F_E5M2,
    };
    return types[dtype];
}

static lap_status_t set(const lap_cuda_plan_t *plan, const lap_cuda_api_t *api,
                        cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    return lap_cublas_check(
        api, api->cublasLtMatmulDescSetAttribute(plan->operation, attribute, value, bytes),
        "cublasLtMatmulDescSetAttribute");
}

lap_status_t lap_cuda_plan_point(const lap_cuda_plan_t *plan, const lap_cuda_api_t *api,
                                 const lap_cuda_pointers_t *pointers)
{
    const size_t bytes = sizeof(void *);
    if (plan->key.scaled & LAP_CUDA_SCALED_A)
        LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &pointers->a_scale, bytes));
    if (plan->key.scaled & LAP_CUDA_SCALED_B)
        LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &pointers->b_scale, bytes));
    if (plan->key.epilogue & LAP_CUDA_HAS_BIAS)
        LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointers->bias, bytes));
    if (plan->key.epilogue & LAP_CUDA_HAS_AUX)
        LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pointers->aux, bytes));
    return LAP_OK;
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

static lap_status_t describe_epilogue(const lap_cuda_api_t *api, const lap_cuda_plan_t *plan)
{
    const lap_cuda_gemm_key_t *key = &plan->key;
    /* Proposals depend on how pointers are aligned; these are never followed. */
    const lap_cuda_pointers_t pointers = {
        .bias = (const void *)(uintptr_t)key->align_bias,
        .aux = (void *)(uintptr_t)key->align_aux,
    };
    const int64_t stride = (int64_t)key->ld_aux;
    LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_EPILOGUE, &key->epilogue, sizeof(key->epilogue)));
    if (key->epilogue & LAP_CUDA_HAS_BIAS) {
        const int32_t type = (int32_t)type_of((lap_dtype_t)key->bias_dtype);
        LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type)));
    }
    if (key->epilogue & LAP_CUDA_HAS_AUX) {
        const int32_t type = (int32_t)type_of((lap_dtype_t)key->aux_dtype);
        LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof(type)));
        LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &stride, sizeof(stride)));
    }
    return lap_cuda_plan_point(plan, api, &pointers);
}

static lap_status_t describe(const lap_cuda_device_t *device, lap_cuda_plan_t *plan)
{
    const lap_cuda_api_t *api = &device->api;
    const lap_cuda_gemm_key_t *key = &plan->key;
    const int32_t first = key->b_plain ? CUBLAS_OP_N : CUBLAS_OP_T;
    const int32_t second = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t sms = (int32_t)key->sms;
    LAP_TRY(lap_cublas_check(
        api, api->cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate"));
    LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
    LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
    if (sms > 0)
        LAP_TRY(set(plan, api, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof(sms)));
    LAP_TRY(describe_epilogue(api, plan));
    LAP_TRY(layout(api, key->b_dtype, key->b_plain ? key->k : key->n,
                   key->b_plain ? key->n : key->k, key->ldb, &plan->b));
    LAP_TRY(layout(api, key->a_dtype, key->a_transposed ? key->k : key->rows,
                   key->a_transposed ? key->rows : key->k, key->lda, &plan->a));
    return layout(api, key->d_dtype, key->rows, key->n, key->ldd, &plan->d);
}

/* Partial sums of one element are added in fp32 and in one order, or there are none. */
static lap_status_t set_preference(const lap_cuda_api_t *api, const lap_cuda_gemm_key_t *key,
                                   cublasLtMatmulPreference_t preference)
{
    const uint64_t workspace = LAP_CUDA_WORKSPACE;
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

/* The kernels that cuBLASLt proposes; none where it cannot do the GEMM. */
static lap_status_t propose(const lap_cuda_device_t *device, const lap_cuda_plan_t *plan, int most,
                            cublasLtMatmulHeuristicResult_t *proposals, int *count_p)
{
    const lap_cuda_api_t *api = &device->api;
    cublasLtMatmulPreference_t preference;
    int count = 0, good = 0;
    LAP_TRY(lap_cublas_check(api, api->cublasLtMatmulPreferenceCreate(&preference),
                             "cublasLtMatmulPreferenceCreate"));
    lap_status_t status = set_preference(api, &plan->key, preference);
    if (status == LAP_OK) {
        const cublasStatus_t result = api->cublasLtMatmulAlgoGetHeuristic(
            device->blas.handle, plan->operation, plan->b, plan->a, plan->d, plan->d, preference,
            most, proposals, &count);
        for (int i = 0; i < count && result == CUBLAS_STATUS_SUCCESS; i++)
            if (proposals[i].state == CUBLAS_STATUS_SUCCESS)
                proposals[good++] = proposals[i];
    }
    (void)api->cublasLtMatmulPreferenceDestroy(preference);
    *count_p = good;
    return status;
}

static lap_status_t choose(lap_cuda_device_t *device, lap_cuda_plan_t *plan, bool timed)
{
    cublasLtMatmulHeuristicResult_t proposals[LAP_CUDA_PROPOSALS];
    int count = 0;
    const lap_cuda_gemm_key_t *key = &plan->key;
    const double volume = (double)key->rows * (double)key->n * (double)key->k;
    const bool tries = timed && device->blas.tunes && volume >= WORTHWHILE;
    LAP_TRY(propose(device, plan, tries ? LAP_CUDA_PROPOSALS : 1, proposals, &count));
    if (tries && count > 1)
        LAP_TRY(lap_cuda_tune(device, plan, proposals, count));
    plan->found = count > 0;
    if (plan->found) {
        plan->algorithm = proposals[0].algo;
        plan->workspace = proposals[0].workspaceSize;
    }
    return LAP_OK;
}

static void plan_free(const lap_cuda_api_t *api, lap_cuda_plan_t *plan)
{
    if (plan->operation)
        (void)api->cublasLtMatmulDescDestroy(plan->operation);
    if (plan->a)
        (void)api->cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b)
        (void)api->cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->d)
        (void)api->cublasLtMatrixLayoutDestroy(plan->d);
    lap_free(plan);
}

void lap_cuda_plans_free(lap_cuda_device_t *device)
{
    for (size_t i = 0; i < LAP_CUDA_PLANS; i++)
        while (device->blas.plans[i]) {
            lap_cuda_plan_t *plan = device->blas.plans[i];
            device->blas.plans[i] = plan->next;
            plan_free(&device->api, plan);
        }
}

/* FNV-1a. */
static size_t hash(const lap_cuda_gemm_key_t *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < sizeof(*key); i++)
        sum = (sum ^ bytes[i]) * 16777619u;
    return sum % LAP_CUDA_PLANS;
}

static lap_status_t make_plan(lap_cuda_device_t *device, const lap_cuda_gemm_key_t *key, bool timed,
                              lap_cuda_plan_t **plan_p)
{
    lap_cuda_plan_t *plan = lap_alloc(1, sizeof(*plan));
    if (!plan)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the plan of a GEMM");
    plan->key = *key;
    lap_status_t status = describe(device, plan);
    if (status == LAP_OK)
        status = choose(device, plan, timed);
    if (status != LAP_OK) {
        plan_free(&device->api, plan);
        return status;
    }
    *plan_p = plan;
    return LAP_OK;
}

lap_status_t lap_cuda_plan_get(lap_cuda_device_t *device, const lap_cuda_gemm_key_t *key,
                               bool timed, lap_cuda_plan_t **plan_p)
{
    lap_cuda_plan_t **chain = &device->blas.plans[hash(key)];
    for (lap_cuda_plan_t *plan = *chain; plan; plan = plan->next)
        if (memcmp(&plan->key, key, sizeof(*key)) == 0) {
            *plan_p = plan;
            return LAP_OK;
        }
    LAP_TRY(make_plan(device, key, timed, plan_p));
    (*plan_p)->next = *chain;
    *chain = *plan_p;
    return LAP_OK;
}
