/* SPDX-License-Identifier: Apache-2.0 */
/* A cuBLASLt that finds no way to multiply: GEMMs are left to the kernels. */
#include <cublasLt.h>
#include <stdlib.h>

/* Handles are never looked into. */
static cublasStatus_t make(void **handle)
{
    *handle = malloc(1);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t end(void *handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return make((void **)handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return end((void *)handle);
}

size_t cublasLtGetVersion(void)
{
    return 0;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    (void)status;
    return "the fake cuBLASLt cannot do that";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t type)
{
    (void)compute;
    (void)type;
    return make((void **)desc);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return end((void *)desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    (void)desc;
    (void)attribute;
    (void)value;
    (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride)
{
    (void)type;
    (void)cols;
    if (stride < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    return make((void **)layout);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return end((void *)layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    return make((void **)preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return end((void *)preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    (void)preference;
    (void)attribute;
    (void)value;
    (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
    (void)handle;
    (void)desc;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)preference;
    (void)most;
    (void)results;
    *count = 0;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t bytes, cudaStream_t stream)
{
    (void)handle;
    (void)desc;
    (void)alpha;
    (void)a;
    (void)a_layout;
    (void)b;
    (void)b_layout;
    (void)beta;
    (void)c;
    (void)c_layout;
    (void)d;
    (void)d_layout;
    (void)algo;
    (void)workspace;
    (void)bytes;
    (void)stream;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
