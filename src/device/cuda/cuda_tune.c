/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fastest of the kernels that cuBLASLt proposes for a GEMM, found by trial: its own estimates
 * are off by some per cent, more on a part of a GPU. They run on memory with random numbers, since
 * zeros are faster, and in turn, so that what disturbs one disturbs all. Several runs of one follow
 * each other in two streams, as the blocks of a GEMM do in use: the end of one run is not waited for
 * then, and kernels that are good at ending are not preferred. What others do with the GPU at that
 * moment is not known here.
 */
#include <math.h>
#include <string.h>

#include "device/cuda/cuda_plan.h"
#include "util/clock.h"
#include "util/sorted.h"

#define ROUNDS 5
#define BUDGET_NS 60000000u /* what one GEMM may be tried for, */
#define BUDGET_RUNS 48u     /* or the time of so many runs, if that is more */
#define ENOUGH_S 1.5e-3     /* what is timed at once: several runs, */
#define RUNS_LEAST 2        /* of a long GEMM, */
#define RUNS_MOST 10        /* and of a short one */
#define HOPELESS 1.1        /* over the best: not tried again */
#define BETTER 0.99         /* of the time of an earlier proposal: chosen instead */
#define PART_OF_FREE 8u     /* of the memory that is free, what may be taken for a while */
#define FILL_BLOCKS_PER_SM 8u
#define FILL_THREADS 256u

typedef struct trial {
    double seconds[ROUNDS]; /* in order */
    int rounds;
    bool failed;
} trial_t;

/* One GEMM at its trials. */
typedef struct tuning {
    lap_cuda_device_t *device;
    const lap_cuda_plan_t *plan;
    CUdeviceptr memory, workspaces[2], a, b, d, bias, aux;
    CUstream lanes[2]; /* the first is timed */
    CUevent begin, end, meets;
} tuning_t;

/* ---- memory ---- */

/* The elements of a matrix as it is stored, with its gaps. */
static uint64_t elements(uint64_t rows, uint64_t cols, bool turned, uint64_t stride)
{
    return (turned ? cols : rows) * stride;
}

/* What has to be there, and where. */
typedef struct piece {
    CUdeviceptr *at;
    uint64_t count;
    int32_t dtype;
} piece_t;

static size_t bytes_of(const piece_t *piece)
{
    return (piece->count * lap_dtype_size((lap_dtype_t)piece->dtype) + 255) / 256 * 256;
}

static lap_status_t fill(const tuning_t *tuning, CUdeviceptr memory, uint64_t count, int32_t dtype)
{
    const lap_cuda_fill_t args = {
        .dtype = dtype, .memory = (void *)(uintptr_t)memory, .count = count, .seed = memory};
    return lap_cuda_launch_raw(tuning->device, tuning->device->side, LAP_CUDA_KERNEL_fill,
                               (size_t)tuning->device->sms * FILL_BLOCKS_PER_SM, 1, FILL_THREADS, 1,
                               &args);
}

/* Memory for all of it, if there is plenty: else tuning->memory stays 0. */
static lap_status_t make_memory(tuning_t *tuning)
{
    const lap_cuda_api_t *api = &tuning->device->api;
    const lap_cuda_gemm_key_t *key = &tuning->plan->key;
    const piece_t pieces[] = {
        {&tuning->a, elements(key->rows, key->k, key->a_transposed, key->lda), key->a_dtype},
        {&tuning->b, elements(key->n, key->k, key->b_plain, key->ldb), key->b_dtype},
        {&tuning->d, key->rows * key->ldd, key->d_dtype},
        {&tuning->bias, key->epilogue & LAP_CUDA_HAS_BIAS ? key->n : 1, key->bias_dtype},
        {&tuning->aux, key->rows * key->ld_aux, key->aux_dtype},
    };
    const size_t count = sizeof(pieces) / sizeof(pieces[0]);
    size_t bytes = 2 * LAP_CUDA_WORKSPACE, free = 0, total = 0;
    for (size_t i = 0; i < count; i++)
        bytes += bytes_of(&pieces[i]);
    LAP_TRY(lap_cuda_check(api, api->cuMemGetInfo(&free, &total), "cuMemGetInfo"));
    if (bytes > free / PART_OF_FREE || api->cuMemAlloc(&tuning->memory, bytes) != CUDA_SUCCESS) {
        tuning->memory = 0;
        return LAP_OK;
    }
    tuning->workspaces[0] = tuning->memory;
    tuning->workspaces[1] = tuning->memory + LAP_CUDA_WORKSPACE;
    CUdeviceptr at = tuning->memory + 2 * LAP_CUDA_WORKSPACE;
    for (size_t i = 0; i < count; i++) {
        *pieces[i].at = at;
        if (pieces[i].count > 0)
            LAP_TRY(fill(tuning, at, pieces[i].count, pieces[i].dtype));
        at += bytes_of(&pieces[i]);
    }
    return LAP_OK;
}

/* ---- trials ---- */

static cublasStatus_t run(const tuning_t *tuning, const cublasLtMatmulAlgo_t *algorithm, int lane)
{
    const lap_cuda_device_t *device = tuning->device;
    const lap_cuda_plan_t *plan = tuning->plan;
    const float alpha = 1, beta = plan->key.accumulates ? 0.5f : 0;
    void *d = (void *)(uintptr_t)tuning->d;
    return device->api.cublasLtMatmul(
        device->blas, plan->operation, &alpha, (const void *)(uintptr_t)tuning->b, plan->b,
        (const void *)(uintptr_t)tuning->a, plan->a, &beta, d, plan->d, d, plan->d, algorithm,
        (void *)(uintptr_t)tuning->workspaces[lane], LAP_CUDA_WORKSPACE, tuning->lanes[lane]);
}

/* `to` goes on when `from` is here. */
static lap_status_t follow(const tuning_t *tuning, CUevent event, CUstream from, CUstream to)
{
    const lap_cuda_api_t *api = &tuning->device->api;
    LAP_TRY(lap_cuda_check(api, api->cuEventRecord(event, from), "cuEventRecord"));
    return lap_cuda_check(api, api->cuStreamWaitEvent(to, event, 0), "cuStreamWaitEvent");
}

/* The seconds of a run, as the mean of `runs`; 0: it cannot be run. */
static lap_status_t time_runs(const tuning_t *tuning, const cublasLtMatmulAlgo_t *algorithm,
                              int runs, double *seconds_p)
{
    const lap_cuda_api_t *api = &tuning->device->api;
    float ms = 0;
    bool runs_at_all = true;
    CUstream timed = tuning->lanes[0];
    LAP_TRY(follow(tuning, tuning->begin, timed, tuning->lanes[1]));
    for (int i = 0; i < runs && runs_at_all; i++)
        runs_at_all = run(tuning, algorithm, i % 2) == CUBLAS_STATUS_SUCCESS;
    LAP_TRY(follow(tuning, tuning->meets, tuning->lanes[1], timed));
    LAP_TRY(lap_cuda_check(api, api->cuEventRecord(tuning->end, timed), "cuEventRecord"));
    LAP_TRY(lap_cuda_check(api, api->cuStreamSynchronize(timed), "the trial of a GEMM"));
    LAP_TRY(lap_cuda_check(api, api->cuEventElapsedTime(&ms, tuning->begin, tuning->end),
                           "cuEventElapsedTime"));
    *seconds_p = runs_at_all ? (double)ms * 1e-3 / runs : 0;
    return LAP_OK;
}

/* One more time of a proposal. The first run ever loads the kernel, which does not count. */
static lap_status_t try_once(const tuning_t *tuning, const cublasLtMatmulAlgo_t *algorithm,
                             trial_t *trial)
{
    double seconds = 0;
    if (trial->rounds == 0) {
        LAP_TRY(time_runs(tuning, algorithm, 1, &seconds));
        trial->failed = seconds == 0;
        if (trial->failed)
            return LAP_OK;
    } else {
        seconds = trial->seconds[0];
    }
    const double runs = fmin(fmax(ENOUGH_S / seconds, RUNS_LEAST), RUNS_MOST);
    LAP_TRY(time_runs(tuning, algorithm, (int)runs, &seconds));
    lap_sorted_add(trial->seconds, trial->rounds++, seconds);
    return LAP_OK;
}

/* All in turn, until the time is up or enough is known; those that are far behind fall out. */
static lap_status_t try_all(const tuning_t *tuning,
                            const cublasLtMatmulHeuristicResult_t *proposals, int count,
                            trial_t *trials)
{
    const uint64_t begin = lap_now_ns();
    uint64_t budget = BUDGET_NS;
    double best = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            if (trials[i].failed || trials[i].rounds < round ||
                (round > 0 && trials[i].seconds[0] > HOPELESS * best))
                continue;
            if (best > 0 && lap_now_ns() - begin > budget)
                return LAP_OK;
            LAP_TRY(try_once(tuning, &proposals[i].algo, &trials[i]));
            if (trials[i].failed)
                continue;
            if (best == 0 && trials[i].seconds[0] * BUDGET_RUNS * 1e9 > BUDGET_NS)
                budget = (uint64_t)(trials[i].seconds[0] * BUDGET_RUNS * 1e9);
            if (best == 0 || trials[i].seconds[0] < best)
                best = trials[i].seconds[0];
        }
    return LAP_OK;
}

/* By the median, of two the lower one; an earlier proposal is not given up for a trifle. */
static int fastest(const trial_t *trials, int count)
{
    int chosen = 0;
    double best = 0;
    for (int i = 0; i < count; i++) {
        if (trials[i].rounds == 0)
            continue;
        const double median = trials[i].seconds[(trials[i].rounds - 1) / 2];
        if (best == 0 || median < BETTER * best) {
            chosen = i;
            best = median;
        }
    }
    return chosen;
}

static lap_status_t tune(tuning_t *tuning, cublasLtMatmulHeuristicResult_t *proposals, int count)
{
    const lap_cuda_api_t *api = &tuning->device->api;
    trial_t trials[LAP_CUDA_PROPOSALS];
    memset(trials, 0, sizeof(trials));
    LAP_TRY(make_memory(tuning));
    if (!tuning->memory)
        return LAP_OK;
    CUevent *const events[] = {&tuning->begin, &tuning->end, &tuning->meets};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        LAP_TRY(
            lap_cuda_check(api, api->cuEventCreate(events[i], CU_EVENT_DEFAULT), "cuEventCreate"));
    const lap_cuda_pointers_t pointers = {
        .a_scale = (const float *)(uintptr_t)tuning->bias, /* any number does */
        .bias = (const void *)(uintptr_t)tuning->bias,
        .aux = (void *)(uintptr_t)tuning->aux,
    };
    LAP_TRY(lap_cuda_plan_point(tuning->plan, api, &pointers));
    LAP_TRY(try_all(tuning, proposals, count, trials));
    proposals[0] = proposals[fastest(trials, count)];
    return LAP_OK;
}

/*
 * Whether no stream has anything to do. What a stream does might wait for a peer, and to free
 * memory would wait for that without looking at the peer.
 */
static bool is_idle(const lap_cuda_device_t *device)
{
    for (const lap_stream_t *stream = device->streams; stream; stream = stream->next)
        if (device->api.cuStreamQuery(stream->stream) != CUDA_SUCCESS)
            return false;
    return !device->held_for;
}

lap_status_t lap_cuda_tune(lap_cuda_device_t *device, const lap_cuda_plan_t *plan,
                           cublasLtMatmulHeuristicResult_t *proposals, int count)
{
    const lap_cuda_api_t *api = &device->api;
    tuning_t tuning = {
        .device = device,
        .plan = plan,
        .lanes = {device->side, device->streams ? device->streams->stream : device->side},
    };
    if (!is_idle(device))
        return LAP_OK;
    const lap_status_t status = tune(&tuning, proposals, count);
    const CUevent events[] = {tuning.begin, tuning.end, tuning.meets};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            (void)api->cuEventDestroy(events[i]);
    if (tuning.memory)
        (void)api->cuMemFree(tuning.memory);
    return status;
}
