/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GEMM on a GPU: by cuBLASLt, whose choice of a kernel is cached for each shape. Sums are fp32 and
 * the same in every call. cuBLASLt writes d itself where it can, with beta and bias. Where more is to
 * be done to the sums, or d has a type that it does not write, it writes fp32 into scratch memory of
 * the stream, and a reduction of one source finishes them. It takes FP8 matrices only with k along
 * their rows. Others are transposed first, into scratch memory. Where both are, zeros make k a
 * multiple of 16, which it requires. A plain, slow kernel does what it cannot do at all, such as FP8
 * matrices with other odd sizes.
 *
 * Its own GELU is an approximation, used only with LAP_GPU_GELU=fast. With
 * a tanh that is off by 2^-11, as the GPU's is, 1 + tanh is off by more than bfloat16 rounds where x
 * is negative: by a fifth of itself at -3.
 *
 * cuBLASLt thinks in columns: d^T [n, rows] = op(b)^T op(a)^T, so that b is its first operand.
 */
#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda_plan.h"

#define ALIGNMENT_MOST 256u
#define FP8_DEPTH 16u /* k is to be a multiple of it */

static uint32_t alignment_of(const void *pointer)
{
    const uintptr_t bits = (uintptr_t)pointer | ALIGNMENT_MOST;
    return (uint32_t)(bits & (~bits + 1));
}

/* Where the sums go. */
typedef struct target {
    void *data;
    size_t stride; /* bytes */
    lap_dtype_t dtype;
} target_t;

/* The old one is not freed: work in flight uses it, and freeing would wait for that work. */
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

/* The multiprocessors that a GEMM may use; 0: no limit is set. See check_spare. */
static uint32_t sms_for(const lap_cuda_device_t *device, int spare)
{
    return spare == 0 && !device->share.green ? 0 : (uint32_t)(device->share.sms - spare);
}

/* Of a GEMM whose sums go to the target as they are. */
static lap_cuda_gemm_key_t key_of(const lap_cuda_device_t *device, const lap_gemm_t *gemm,
                                  const lap_gemm_block_t *block, const target_t *target)
{
    lap_cuda_gemm_key_t key;
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
    key.scaled = (block->a_scale ? LAP_CUDA_SCALED_A : 0) | (gemm->b_scale ? LAP_CUDA_SCALED_B : 0);
    key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    key.align_a = alignment_of(block->a);
    key.align_b = alignment_of(gemm->b);
    key.align_d = alignment_of(target->data);
    key.sms = sms_for(device, gemm->spare_sms);
    return key;
}

static lap_status_t get_workspace(lap_stream_t *stream)
{
    if (stream->workspace)
        return LAP_OK;
    return lap_cuda_memory(stream->device, LAP_CUDA_WORKSPACES, &stream->workspace);
}

/* The workspace of the next GEMM of the stream; in a graph that is being made, a small one is new. */
static void *take_workspace(lap_stream_t *stream, const lap_cuda_plan_t *plan, size_t *bytes_p)
{
    const unsigned number = stream->device->capturing ? stream->small_workspaces : 0;
    const bool small =
        plan->workspace <= LAP_CUDA_SMALL_WORKSPACE && number < LAP_CUDA_SMALL_WORKSPACES;
    CUdeviceptr workspace = stream->workspace;
    if (small) {
        workspace += LAP_CUDA_WORKSPACE + number * LAP_CUDA_SMALL_WORKSPACE;
        stream->small_workspaces = number + 1;
    }
    *bytes_p = small ? LAP_CUDA_SMALL_WORKSPACE : LAP_CUDA_WORKSPACE;
    return (void *)(uintptr_t)workspace;
}

/* Names the GEMM that failed. */
static lap_status_t check_matmul(const lap_cuda_api_t *api, const lap_cuda_gemm_key_t *key,
                                 cublasStatus_t result)
{
    char what[200];
    if (result == CUBLAS_STATUS_SUCCESS)
        return LAP_OK;
    snprintf(what, sizeof(what),
             "cublasLtMatmul of %s [%llu, %llu]%s and %s [%llu]%s to %s, epilogue %u%s%s",
             lap_dtype_name((lap_dtype_t)key->a_dtype), (unsigned long long)key->rows,
             (unsigned long long)key->k, key->a_transposed ? " transposed" : "",
             lap_dtype_name((lap_dtype_t)key->b_dtype), (unsigned long long)key->n,
             key->b_plain ? " plain" : "", lap_dtype_name((lap_dtype_t)key->d_dtype), key->epilogue,
             key->accumulates ? ", accumulating" : "", key->scaled ? ", scaled" : "");
    return lap_cublas_check(api, result, what);
}

static lap_status_t multiply(lap_stream_t *stream, const lap_gemm_t *gemm,
                             const lap_gemm_block_t *block, const lap_cuda_plan_t *plan, void *d,
                             float beta)
{
    lap_cuda_device_t *device = stream->device;
    const lap_cuda_api_t *api = &device->api;
    LAP_TRY(lap_cuda_flush_stream(stream));
    LAP_TRY(get_workspace(stream));
    const lap_cuda_pointers_t pointers = {
        .a_scale = block->a_scale,
        .b_scale = gemm->b_scale,
        .bias = gemm->finish ? gemm->finish->bias : NULL,
        .aux = block->aux,
    };
    LAP_TRY(lap_cuda_plan_point(plan, api, &pointers));
    size_t workspace_bytes;
    void *workspace = take_workspace(stream, plan, &workspace_bytes);
    return check_matmul(api, &plan->key,
                        api->cublasLtMatmul(device->blas.handle, plan->operation, &gemm->scale,
                                            gemm->b, plan->b, block->a, plan->a, &beta, d, plan->d,
                                            d, plan->d, &plan->algorithm, workspace,
                                            workspace_bytes, stream->stream));
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
        .b_scale = gemm->b_scale,
        .finish = lap_cuda_finish_of(gemm->finish, block->aux),
    };
    const size_t across = (gemm->n + LAP_CUDA_TILE - 1) / LAP_CUDA_TILE;
    const size_t down = (block->rows + LAP_CUDA_TILE - 1) / LAP_CUDA_TILE;
    if (down > 65535)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "a GEMM of %zu rows is too large where cuBLASLt has no kernel for it",
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

/* Whether it adds a bias of this type on the way to d. */
static bool adds_bias(const lap_gemm_t *gemm)
{
    const bool odd = lap_dtype_is_fp8(gemm->a_dtype) && gemm->d_dtype == LAP_FLOAT32;
    return gemm->finish->bias_dtype == (odd ? LAP_BFLOAT16 : gemm->d_dtype);
}

/* Whether it reads or writes this aux: of the type of d, and 16 bytes of it at a time. */
static bool keeps_aux(const lap_gemm_t *gemm, const lap_gemm_block_t *block)
{
    const size_t stride = gemm->finish->aux_stride;
    return gemm->finish->aux_dtype == gemm->d_dtype && (uintptr_t)block->aux % 16 == 0 &&
           stride % (8 * lap_dtype_size(gemm->d_dtype)) == 0;
}

/* The epilogue by which cuBLASLt finishes a block all by itself; 0: there is none. */
static uint32_t epilogue_of(const lap_cuda_device_t *device, const lap_gemm_t *gemm,
                            const lap_gemm_block_t *block)
{
    const lap_finish_t *finish = gemm->finish;
    const lap_epilogue_t work =
        finish ? finish->epilogue & ~(lap_epilogue_t)LAP_EPILOGUE_BIAS_GRAD : LAP_EPILOGUE_NONE;
    const bool aux = block->aux && work & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU);
    if (!writes(gemm->a_dtype, gemm->d_dtype) || (finish && finish->scale != 1) ||
        (work & LAP_EPILOGUE_BIAS && !adds_bias(gemm)) || (aux && !keeps_aux(gemm, block)) ||
        (work != LAP_EPILOGUE_NONE && finish->beta != 0) || /* some kernels round in between */
        (work > LAP_EPILOGUE_BIAS && !device->blas.fast_gelu))
        return 0;
    switch (work) {
    case LAP_EPILOGUE_NONE:
        return CUBLASLT_EPILOGUE_DEFAULT;
    case LAP_EPILOGUE_BIAS:
        return CUBLASLT_EPILOGUE_BIAS;
    case LAP_EPILOGUE_GELU:
        return aux ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
    case LAP_EPILOGUE_GELU | LAP_EPILOGUE_BIAS:
        return aux ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    case LAP_EPILOGUE_DGELU:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return 0;
    }
}

static void add_epilogue(lap_cuda_gemm_key_t *key, const lap_finish_t *finish, const void *aux,
                         uint32_t epilogue)
{
    key->epilogue = epilogue;
    key->accumulates = finish && finish->beta != 0;
    if (epilogue & LAP_CUDA_HAS_BIAS) {
        key->bias_dtype = (int32_t)finish->bias_dtype;
        key->align_bias = alignment_of(finish->bias);
    }
    if (epilogue & LAP_CUDA_HAS_AUX) {
        key->aux_dtype = (int32_t)finish->aux_dtype;
        key->ld_aux = finish->aux_stride / lap_dtype_size(finish->aux_dtype);
        key->align_aux = alignment_of(aux);
    }
}

/* How a block is done. */
typedef enum way {
    NOTHING,  /* there is nothing to do */
    PLAINLY,  /* by the plain kernel */
    DIRECTLY, /* cuBLASLt writes d */
    IN_TWO,   /* cuBLASLt writes sums into scratch, and a reduction finishes them */
} way_t;

/*
 * A block as cuBLASLt is to do it. Pointers to scratch memory are NULL, which is aligned as scratch
 * is, until place() sets them.
 */
typedef struct job {
    way_t way;
    lap_cuda_plan_t *plan;
    lap_gemm_t gemm;
    lap_gemm_block_t block;
    bool transposes_a, transposes_b;
    size_t b_at, sums_at, bytes; /* offsets in scratch, where the transposed a comes first */
    void *sums;
} job_t;

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT_MOST - 1) / ALIGNMENT_MOST * ALIGNMENT_MOST;
}

/*
 * Tensor cores take FP8 operands as [rows, k] and [n, k]; others are transposed. Where both are, as for
 * the gradient of a weight, k may be any number of tokens.
 */
static void transpose_operands(job_t *job)
{
    lap_gemm_t *gemm = &job->gemm;
    if (!lap_dtype_is_fp8(gemm->a_dtype) || !lap_dtype_is_fp8(gemm->b_dtype))
        return;
    job->transposes_a = gemm->a_transposed;
    job->transposes_b = gemm->b_plain;
    if (job->transposes_a && job->transposes_b)
        gemm->k = (gemm->k + FP8_DEPTH - 1) / FP8_DEPTH * FP8_DEPTH;
    if (job->transposes_a) {
        job->block.a = NULL;
        job->block.a_stride = gemm->k;
        job->bytes = aligned(job->block.rows * gemm->k);
    }
    job->b_at = job->bytes;
    if (job->transposes_b) {
        gemm->b = NULL;
        gemm->b_stride = gemm->k;
        job->bytes += aligned(gemm->n * gemm->k);
    }
    gemm->a_transposed = gemm->b_plain = false;
}

/* Asks cuBLASLt for a plan: first for the GEMM with its epilogue, then for the sums only. */
static lap_status_t find_plan(lap_cuda_device_t *device, bool timed, job_t *job)
{
    const lap_gemm_t *gemm = &job->gemm;
    const lap_gemm_block_t *block = &job->block;
    const uint32_t epilogue = epilogue_of(device, gemm, block);
    const target_t d = {block->d, block->d_stride, gemm->d_dtype};
    const target_t sums = {NULL, gemm->n * sizeof(float), LAP_FLOAT32};
    if (epilogue) {
        lap_cuda_gemm_key_t key = key_of(device, gemm, block, &d);
        add_epilogue(&key, gemm->finish, block->aux, epilogue);
        LAP_TRY(lap_cuda_plan_get(device, &key, timed, &job->plan));
        job->way = job->plan->found ? DIRECTLY : PLAINLY;
    }
    if (job->way == PLAINLY) {
        const lap_cuda_gemm_key_t key = key_of(device, gemm, block, &sums);
        LAP_TRY(lap_cuda_plan_get(device, &key, timed, &job->plan));
        job->way = job->plan->found ? IN_TWO : PLAINLY;
    }
    job->sums_at = job->bytes;
    if (job->way == IN_TWO)
        job->bytes += block->rows * sums.stride;
    return LAP_OK;
}

static lap_status_t find_way(lap_cuda_device_t *device, const lap_gemm_t *gemm,
                             const lap_gemm_block_t *block, bool timed, job_t *job_p)
{
    *job_p = (job_t){.way = PLAINLY, .gemm = *gemm, .block = *block};
    if (block->rows == 0 || gemm->n == 0)
        job_p->way = NOTHING;
    /* cuBLASLt knows scales of FP8 only. */
    if (job_p->way == NOTHING || gemm->k == 0 ||
        (block->a_scale && !lap_dtype_is_fp8(gemm->a_dtype)) ||
        (gemm->b_scale && !lap_dtype_is_fp8(gemm->b_dtype)))
        return LAP_OK;
    transpose_operands(job_p);
    return find_plan(device, timed, job_p);
}

/* Sets the job's pointers to scratch memory. */
static lap_status_t place(lap_stream_t *stream, job_t *job)
{
    LAP_TRY(grow_scratch(stream, job->bytes));
    char *scratch = (char *)(uintptr_t)stream->scratch;
    if (job->transposes_a)
        job->block.a = scratch;
    if (job->transposes_b)
        job->gemm.b = scratch + job->b_at;
    job->sums = scratch + job->sums_at;
    return LAP_OK;
}

/* Transposes operands from the caller's memory into scratch. */
static lap_status_t run_transposes(lap_stream_t *stream, const lap_gemm_t *gemm,
                                   const lap_gemm_block_t *block, const job_t *job)
{
    const size_t depth = job->gemm.k;
    const lap_transpose_t a = {.src = block->a,
                               .dst = (void *)job->block.a,
                               .rows = gemm->k,
                               .cols = block->rows,
                               .src_stride = block->a_stride,
                               .dst_stride = depth};
    const lap_transpose_t b = {.src = gemm->b,
                               .dst = (void *)job->gemm.b,
                               .rows = gemm->k,
                               .cols = gemm->n,
                               .src_stride = gemm->b_stride,
                               .dst_stride = depth};
    if (job->transposes_a)
        LAP_TRY(lap_cuda_transpose_padded(stream, &a, depth));
    return job->transposes_b ? lap_cuda_transpose_padded(stream, &b, depth) : LAP_OK;
}

static lap_status_t run_in_two(lap_stream_t *stream, const job_t *job)
{
    const lap_gemm_t *gemm = &job->gemm;
    const lap_gemm_block_t *block = &job->block;
    const size_t stride = gemm->n * sizeof(float);
    const void *const sums = job->sums;
    LAP_TRY(multiply(stream, gemm, block, job->plan, job->sums, 0));
    const lap_reduce_t reduce = {
        .from = LAP_FLOAT32,
        .to = gemm->d_dtype,
        .dst = block->d,
        .dst_stride = block->d_stride,
        .srcs = &sums,
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
    job_t job;
    LAP_TRY(find_way(stream->device, gemm, block, false, &job));
    if (job.way == NOTHING)
        return LAP_OK;
    if (job.way == PLAINLY)
        return multiply_plainly(stream, gemm, block);
    LAP_TRY(place(stream, &job));
    LAP_TRY(run_transposes(stream, gemm, block, &job));
    if (job.way == IN_TWO)
        return run_in_two(stream, &job);
    return multiply(stream, &job.gemm, &job.block, job.plan, block->d,
                    gemm->finish ? gemm->finish->beta : 0);
}

/* A GEMM needs at least one multiprocessor. */
static lap_status_t check_spare(const lap_cuda_device_t *device, int spare)
{
    if (spare < device->share.sms)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "num_sm is %d with set_sm_margin, expected at most %d: this rank has %d SMs "
                     "of GPU %d, and a GEMM needs one",
                     spare, device->share.sms - 1, device->share.sms, device->ordinal);
}

static lap_status_t check(const lap_cuda_device_t *device, const lap_gemm_t *gemm)
{
    LAP_TRY(check_spare(device, gemm->spare_sms));
    LAP_TRY(lap_device_check_dtype("a GEMM with a", gemm->a_dtype));
    LAP_TRY(lap_device_check_dtype("a GEMM with b", gemm->b_dtype));
    return lap_device_check_dtype("a GEMM with d", gemm->d_dtype);
}

lap_status_t lap_cuda_gemm(lap_stream_t *stream, const lap_gemm_t *gemm)
{
    LAP_TRY(check(stream->device, gemm));
    LAP_TRY(lap_cuda_enter(stream->device));
    lap_status_t status = LAP_OK;
    for (size_t i = 0; i < gemm->nblocks && status == LAP_OK; i++)
        status = run_block(stream, gemm, &gemm->blocks[i]);
    return lap_cuda_leave(stream->device, status);
}

/*
 * The driver loads a kernel at its first launch, and may wait until nothing runs any more. That is a
 * deadlock if a running kernel waits for a peer whose driver does the same. So the kernel is loaded
 * before, as part of a graph that is never launched. Where that fails, the launch will say why.
 */
static void load_kernel(lap_stream_t *stream, const job_t *job)
{
    const lap_cuda_device_t *device = stream->device;
    const lap_cuda_api_t *api = &device->api;
    lap_stream_t capturing = *stream;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    capturing.stream = device->internal;
    job->plan->loaded = true;
    if (api->cuStreamBeginCapture(device->internal, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS)
        return;
    (void)multiply(&capturing, &job->gemm, &job->block, job->plan,
                   job->way == IN_TWO ? job->sums : job->block.d,
                   job->plan->key.accumulates ? 1.0f : 0.0f);
    if (api->cuStreamEndCapture(device->internal, &graph) != CUDA_SUCCESS || !graph)
        return;
    if (api->cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS)
        (void)api->cuGraphExecDestroy(exec);
    (void)api->cuGraphDestroy(graph);
}

/* Allocates and loads what cannot be while streams may be waiting for peers. */
static lap_status_t prepare_block(lap_stream_t *stream, const lap_gemm_t *gemm,
                                  const lap_gemm_block_t *block, bool tries)
{
    job_t job;
    LAP_TRY(find_way(stream->device, gemm, block, tries, &job));
    if (job.way != DIRECTLY && job.way != IN_TWO)
        return LAP_OK;
    LAP_TRY(get_workspace(stream));
    LAP_TRY(place(stream, &job));
    if (!job.plan->loaded)
        load_kernel(stream, &job);
    return LAP_OK;
}

lap_status_t lap_cuda_gemm_prepare(lap_stream_t *stream, const lap_gemm_t *gemm, bool tries)
{
    LAP_TRY(check(stream->device, gemm));
    LAP_TRY(lap_cuda_enter(stream->device));
    lap_status_t status = LAP_OK;
    for (size_t i = 0; i < gemm->nblocks && status == LAP_OK; i++)
        status = prepare_block(stream, gemm, &gemm->blocks[i], tries);
    return lap_cuda_leave(stream->device, status);
}
