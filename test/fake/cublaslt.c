/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of cuBLASLt as the device `cuda` uses, on the streams of the fake driver: see fake.h.
 * Matrices are column by column, sums are fp32. What it can do is what NVIDIA documents for the
 * real one: FP8 needs the first operand transposed, the second not, and multiples of 16 bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cublasLt.h>

#include "core/convert.h"
#include "fake.h"

#define FP8_BYTES 16u

struct operation {
    int32_t turned[2];     /* the operands: a cublasOperation_t */
    const float *scale[2]; /* in the memory of the GPU; NULL: 1 */
    uint32_t epilogue;     /* of the bits that follow */
    int32_t bias_type;     /* for each row of d; -1: as d */
    const void *bias;
    int32_t aux_type; /* -1: as d */
    int64_t aux_stride;
    void *aux;
};

/* Bits of a cublasLtEpilogue_t. CUBLASLT_EPILOGUE_DGELU has one of its own, and reads an aux. */
enum { BIAS = 4, GELU = 32, DGELU = 64, AUX = 128 };

struct layout {
    lap_dtype_t dtype;
    uint64_t rows, cols;
    int64_t stride;
};

typedef struct matmul {
    struct operation operation;
    struct layout a, b, c, d;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    float alpha, beta;
    uint32_t *counter; /* in the workspace: 0 before the kernel, not 0 after it */
    int algorithm;
} matmul_t;

/* ---- handles ---- */

/* What a handle stands for, in memory of its own. */
static void *keep(const void *object, size_t bytes)
{
    void *copy = malloc(bytes);
    memcpy(copy, object, bytes);
    return copy;
}

#define EXPORT(type) FAKE_EXPORT type CUBLASWINAPI

EXPORT(cublasStatus_t) cublasLtCreate(cublasLtHandle_t *handle_p)
{
    if (fake_failure("cublasLtCreate"))
        return (cublasStatus_t)fake_failure("cublasLtCreate");
    *handle_p = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT(cublasStatus_t) cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT(size_t) cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

EXPORT(const char *) cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported by a fake" : "a fake failure";
}

EXPORT(cublasStatus_t)
cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc_p, cublasComputeType_t compute,
                         cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const struct operation operation = {.turned = {CUBLAS_OP_N, CUBLAS_OP_N},
                                        .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                        .bias_type = -1,
                                        .aux_type = -1};
    *desc_p = keep(&operation, sizeof(operation));
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT(cublasStatus_t) cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT(cublasStatus_t)
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                               const void *value, size_t bytes)
{
    struct operation *operation = (struct operation *)desc;
    switch ((int)attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB:
        memcpy(&operation->turned[attribute == CUBLASLT_MATMUL_DESC_TRANSB], value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        memcpy(&operation->scale[attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER], value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        memcpy(&operation->epilogue, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        memcpy(&operation->bias, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        memcpy(&operation->bias_type, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        memcpy(&operation->aux, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        memcpy(&operation->aux_stride, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        memcpy(&operation->aux_type, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: /* neither changes what comes out here */
        return CUBLAS_STATUS_SUCCESS;
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

static bool find_dtype(cudaDataType_t type, lap_dtype_t *dtype_p)
{
    static const cudaDataType_t types[] = {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3,
                                           CUDA_R_8F_E5M2};
    static const lap_dtype_t dtypes[] = {LAP_FLOAT32, LAP_FLOAT16, LAP_BFLOAT16, LAP_FLOAT8_E4M3,
                                         LAP_FLOAT8_E5M2};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i] == type) {
            *dtype_p = dtypes[i];
            return true;
        }
    return false;
}

EXPORT(cublasStatus_t)
cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout_p, cudaDataType_t type, uint64_t rows,
                           uint64_t cols, int64_t stride)
{
    struct layout layout = {LAP_FLOAT32, rows, cols, stride};
    if (stride < (int64_t)rows || !find_dtype(type, &layout.dtype))
        return CUBLAS_STATUS_INVALID_VALUE;
    *layout_p = keep(&layout, sizeof(layout));
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT(cublasStatus_t) cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

/* The least alignment of a, b, c and d, in the order of the attributes. */
struct preference {
    uint32_t alignment[4];
};

EXPORT(cublasStatus_t) cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference_p)
{
    *preference_p = keep(&(struct preference){{0}}, sizeof(struct preference));
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT(cublasStatus_t) cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT(cublasStatus_t)
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                     cublasLtMatmulPreferenceAttributes_t attribute,
                                     const void *value, size_t bytes)
{
    struct preference *preference = (struct preference *)handle;
    const int which = (int)attribute - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (which >= 0 && which < 4)
        memcpy(&preference->alignment[which], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- what it can do ---- */

static bool is_multiple(const struct layout *layout, uint32_t alignment)
{
    const size_t bytes = lap_dtype_size(layout->dtype);
    return layout->rows * bytes % FP8_BYTES == 0 &&
           (size_t)layout->stride * bytes % FP8_BYTES == 0 && alignment % FP8_BYTES == 0;
}

static bool knows(const struct operation *operation)
{
    switch (operation->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
        return true;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
        return operation->aux_stride % 8 == 0 && (uintptr_t)operation->aux % 16 == 0;
    default:
        return false;
    }
}

static bool can(const struct operation *operation, const struct layout *a, const struct layout *b,
                const struct layout *d, const uint32_t *alignment)
{
    if (fake_number("FAKE_NO_LT", 0) || !knows(operation))
        return false;
    if (!lap_dtype_is_fp8(a->dtype))
        return a->dtype == b->dtype && (d->dtype == a->dtype || d->dtype == LAP_FLOAT32) &&
               !operation->scale[0] && !operation->scale[1];
    return lap_dtype_is_fp8(b->dtype) &&
           (a->dtype == LAP_FLOAT8_E4M3 || b->dtype == LAP_FLOAT8_E4M3) &&
           operation->turned[0] == CUBLAS_OP_T && operation->turned[1] == CUBLAS_OP_N &&
           !lap_dtype_is_fp8(d->dtype) && is_multiple(a, alignment[0]) &&
           is_multiple(b, alignment[1]) && is_multiple(d, alignment[3]);
}

/* What is proposed: two that do it, one that is not meant, and one that refuses when it comes to it. */
enum { NONE, GOOD, WRONG, REFUSES, ALSO_GOOD, PROPOSALS };
#define FAMILY 66 /* that of the real one's kernels for Hopper */

/* Most of those of the real one need no more than a word. */
static size_t workspace_of(int algorithm)
{
    return algorithm == ALSO_GOOD ? 65536 : 2 * sizeof(uint32_t);
}

EXPORT(cublasStatus_t)
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t preference, int wanted,
                               cublasLtMatmulHeuristicResult_t *results, int *count_p)
{
    (void)handle, (void)c;
    *count_p = 0;
    if (wanted < 1 || !can((struct operation *)desc, (struct layout *)a, (struct layout *)b,
                           (struct layout *)d, ((struct preference *)preference)->alignment))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = GOOD; i < PROPOSALS && *count_p < wanted; i++) {
        cublasLtMatmulHeuristicResult_t *result = &results[(*count_p)++];
        memset(result, 0, sizeof(*result));
        result->algo.data[0] = (uint64_t)i;
        result->workspaceSize = workspace_of(i);
        result->state = i == WRONG ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static uint32_t tile_of(int algorithm)
{
    return algorithm == ALSO_GOOD ? CUBLASLT_MATMUL_TILE_128x256 : CUBLASLT_MATMUL_TILE_256x128;
}

EXPORT(cublasStatus_t)
cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                     cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                     size_t bytes, size_t *written)
{
    const int which = (int)algorithm->data[0];
    const bool is_other = which == ALSO_GOOD;
    uint32_t found;
    switch ((int)attribute) {
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
        found = tile_of(which);
        break;
    case CUBLASLT_ALGO_CONFIG_ID:
        found = is_other ? (uint32_t)fake_number("FAKE_OTHER_ID", FAMILY) : FAMILY;
        break;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
        found = is_other ? (uint32_t)fake_number("FAKE_OTHER_SPLIT", 1) : 1;
        break;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
        found = is_other ? (uint32_t)fake_number("FAKE_OTHER_SCHEME", 0) : 0;
        break;
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (bytes != sizeof(found))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &found, sizeof(found));
    *written = sizeof(found);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- doing it ---- */

static void tell(int algorithm)
{
    FILE *file = getenv("FAKE_GEMMS") ? fopen(getenv("FAKE_GEMMS"), "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s\n",
            tile_of(algorithm) == CUBLASLT_MATMUL_TILE_128x256 ? "128x256" : "256x128");
    (void)fclose(file);
}

/* Whether it is only to take its time. */
static bool passes(int algorithm)
{
    const char *seconds = getenv("FAKE_GEMM_S");
    char *rest;
    if (!seconds)
        return false;
    const long first = strtol(seconds, &rest, 10), other = strtol(rest, NULL, 10);
    fake_pass((int)(algorithm == ALSO_GOOD ? other : first));
    return true;
}

/* A matrix as fp32, packed: [rows, cols] column by column, or turned. */
static float *widen(const struct layout *layout, const void *data, bool turned)
{
    const char *x = fake_at(data);
    const size_t bytes = lap_dtype_size(layout->dtype);
    float *wide = calloc(layout->rows * layout->cols + 1, sizeof(float));
    float *column = malloc((layout->rows + 1) * sizeof(float));
    for (uint64_t col = 0; col < layout->cols; col++) {
        lap_to_float(layout->dtype, x + col * (uint64_t)layout->stride * bytes, column,
                     layout->rows);
        for (uint64_t row = 0; row < layout->rows; row++)
            wide[turned ? row * layout->cols + col : col * layout->rows + row] = column[row];
    }
    free(column);
    return wide;
}

/* That of an attribute, or else of d. */
static lap_dtype_t type_or_d(const matmul_t *m, int32_t type)
{
    lap_dtype_t dtype = m->d.dtype;
    if (type >= 0)
        (void)find_dtype((cudaDataType_t)type, &dtype);
    return dtype;
}

/* What the epilogue makes of a column of sums. */
static void finish(const matmul_t *m, uint64_t col, float *sums)
{
    const struct operation *o = &m->operation;
    const uint64_t rows = m->d.rows;
    const lap_dtype_t dtype = type_or_d(m, o->aux_type);
    char *aux = fake_at(o->aux);
    float *vector = calloc(rows + 1, sizeof(float));
    if (o->epilogue & AUX)
        aux += col * (uint64_t)o->aux_stride * lap_dtype_size(dtype);
    if (o->epilogue & BIAS) {
        lap_to_float(type_or_d(m, o->bias_type), fake_at(o->bias), vector, rows);
        for (uint64_t row = 0; row < rows; row++)
            sums[row] += vector[row];
    }
    if (o->epilogue & DGELU) {
        lap_to_float(dtype, aux, vector, rows);
        for (uint64_t row = 0; row < rows; row++)
            sums[row] *= (float)fake_gelu_slope((double)vector[row]);
    } else if (o->epilogue & AUX) {
        lap_from_float(dtype, sums, aux, rows);
    }
    for (uint64_t row = 0; row < rows && o->epilogue & GELU; row++)
        sums[row] = (float)fake_gelu((double)sums[row]);
    free(vector);
}

/* op(a) is [rows of d, depth], op(b) [depth, columns of d]; sums are in the order of depth. */
static void run(void *args)
{
    const matmul_t *m = args;
    tell(m->algorithm);
    (void)usleep((unsigned)fake_number("FAKE_SLOW_MS", 0) * 1000);
    if (passes(m->algorithm))
        return;
    const bool turned[2] = {m->operation.turned[0] == CUBLAS_OP_T,
                            m->operation.turned[1] == CUBLAS_OP_T};
    const uint64_t depth = turned[0] ? m->a.rows : m->a.cols, rows = m->d.rows;
    float *a = widen(&m->a, m->a_data, turned[0]), *b = widen(&m->b, m->b_data, turned[1]);
    float *c = m->beta != 0 ? widen(&m->c, m->c_data, false) : NULL;
    float *sums = malloc((rows + 1) * sizeof(float)), alpha = m->alpha;
    char *d = fake_at(m->d_data);
    uint32_t *counter = fake_at(m->counter);
    if (*counter != 0) /* blocks would leave tiles out */
        alpha = NAN;
    *counter = 1;
    for (int i = 0; i < 2; i++)
        alpha *= m->operation.scale[i] ? *(const float *)fake_at(m->operation.scale[i]) : 1;
    for (uint64_t col = 0; col < m->d.cols; col++) {
        memset(sums, 0, rows * sizeof(float));
        for (uint64_t k = 0; k < depth; k++)
            for (uint64_t row = 0; row < rows; row++)
                sums[row] += a[k * rows + row] * b[col * depth + k];
        for (uint64_t row = 0; row < rows; row++)
            sums[row] = sums[row] * alpha + (c ? m->beta * c[col * rows + row] : 0);
        finish(m, col, sums);
        lap_from_float(m->d.dtype, sums,
                       d + col * (uint64_t)m->d.stride * lap_dtype_size(m->d.dtype), rows);
    }
    free(a);
    free(b);
    free(c);
    free(sums);
}

EXPORT(cublasStatus_t)
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
               const void *a_data, cublasLtMatrixLayout_t a, const void *b_data,
               cublasLtMatrixLayout_t b, const void *beta, const void *c_data,
               cublasLtMatrixLayout_t c, void *d_data, cublasLtMatrixLayout_t d,
               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
               cudaStream_t stream)
{
    (void)handle;
    const struct operation *operation = (struct operation *)desc;
    /* The real one takes scales at such addresses only. */
    if (algorithm->data[0] == REFUSES ||
        ((uintptr_t)operation->scale[0] | (uintptr_t)operation->scale[1]) % 16 != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((algorithm->data[0] != GOOD && algorithm->data[0] != ALSO_GOOD) ||
        workspace_bytes < workspace_of((int)algorithm->data[0]) || (uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    const matmul_t matmul = {
        .operation = *operation,
        .a = *(struct layout *)a,
        .b = *(struct layout *)b,
        .c = *(struct layout *)c,
        .d = *(struct layout *)d,
        .a_data = a_data,
        .b_data = b_data,
        .c_data = c_data,
        .d_data = d_data,
        .alpha = *(const float *)alpha,
        .beta = *(const float *)beta,
        .counter = workspace,
        .algorithm = (int)algorithm->data[0],
    };
    /* The kernel for a single row has two words. */
    const fake_memset_t clear = {(CUdeviceptr)(uintptr_t)workspace,
                                 (matmul.d.cols == 1 ? 2 : 1) * sizeof(uint32_t), 1, 0};
    if (fake_issue((CUstream)stream, fake_memset, &clear, sizeof(clear), false) != CUDA_SUCCESS)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    return fake_issue((CUstream)stream, run, &matmul, sizeof(matmul), false) == CUDA_SUCCESS
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
