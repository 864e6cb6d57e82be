/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fastest of the kernels that cuBLASLt proposes for a GEMM, found by trial: its own estimates
 * are off by some per cent, more on a part of a GPU. They run on random numbers, since zeros are
 * faster. Each alternates with the first kernel that runs at all, and the ratio of their times counts.
 * A GPU that is busy for some 30 ms reaches its power limit, and is slower by a tenth from then on,
 * which is more than kernels differ by. How much slower depends on the kernel: one that moves more
 * data takes more power, and may lose there what it gains in a short trial. So kernels that are known
 * to move less come first, then the others as cuBLASLt proposes them, large tiles first; and a later
 * one replaces an earlier one only if it is faster by 3 %. Other ranks' use of the GPU during the
 * trial is not known here. The outcome of a trial changes no result: kernels that add in another order
 * than cuBLASLt's first proposal take no part.
 */
#include <math.h>
#include <string.h>

#include "device/cuda/cuda_plan.h"
#include "util/clock.h"
#include "util/sorted.h"

#define ROUNDS 7
#define ROUNDS_LEAST 3      /* to be chosen: fewer comparisons may be noise */
#define FINALISTS 3         /* after the first round: there is time for a few only */
#define BUDGET_NS 60000000u /* what one GEMM may be tried for, */
#define BUDGET_RUNS 96u     /* or the time of so many runs, if that is more */
#define ENOUGH_S 3e-4       /* of one measurement: several runs of a short GEMM */
#define RUNS_MOST 10
#define HOPELESS 1.1    /* times the best: not tried again */
#define BETTER 0.97     /* of the time of an earlier proposal: chosen instead */
#define HOPPER 90       /* compute capability 9.0 */
#define PART_OF_FREE 8u /* the trial takes at most a PART_OF_FREE-th of free memory */
#define FILL_BLOCKS_PER_SM 8u
#define FILL_THREADS 256u

typedef struct trial {
    double ratios[ROUNDS]; /* of its time to that of the first that runs, in order */
    int rounds;
} trial_t;

/* One GEMM at its trials. */
typedef struct tuning {
    lap_cuda_device_t *device;
    const lap_cuda_plan_t *plan;
    CUdeviceptr memory, workspace, a, b, d, bias, aux;
    CUevent begin, end;
} tuning_t;

/* ---- memory ---- */

/* The elements of a matrix as it is stored, with padding. */
static uint64_t elements(uint64_t rows, uint64_t cols, bool transposed, uint64_t stride)
{
    return (transposed ? cols : rows) * stride;
}

/* A matrix or vector of the trial: where it goes. */
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
    return lap_cuda_launch_raw(tuning->device, tuning->device->internal, LAP_CUDA_KERNEL_fill,
                               (size_t)tuning->device->share.sms * FILL_BLOCKS_PER_SM, 1,
                               FILL_THREADS, 1, &args);
}

/* Memory for the trial, if there is plenty: else tuning->memory stays 0. */
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
    size_t bytes = LAP_CUDA_WORKSPACE, free = 0, total = 0;
    for (size_t i = 0; i < count; i++)
        bytes += bytes_of(&pieces[i]);
    LAP_TRY(lap_cuda_check(api, api->cuMemGetInfo(&free, &total), "cuMemGetInfo"));
    if (bytes > free / PART_OF_FREE)
        return LAP_OK;
    const CUresult result = api->cuMemAlloc(&tuning->memory, bytes);
    if (result != CUDA_SUCCESS)
        tuning->memory = 0;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return LAP_OK;
    LAP_TRY(lap_cuda_check(api, result, "cuMemAlloc"));
    tuning->workspace = tuning->memory;
    CUdeviceptr at = tuning->memory + LAP_CUDA_WORKSPACE;
    for (size_t i = 0; i < count; i++) {
        *pieces[i].at = at;
        if (pieces[i].count > 0)
            LAP_TRY(fill(tuning, at, pieces[i].count, pieces[i].dtype));
        at += bytes_of(&pieces[i]);
    }
    return LAP_OK;
}

/* ---- power ---- */

/*
 * An instruction of Hopper multiplies 64 rows of a tile by at most 256 of its columns, and reads both
 * from shared memory. One by 256 reads a sixth less for each product than two by 128, and so does a
 * tile of 128x256 against one of 256x128, which is as fast in trials and as large.
 */
static bool moves_less(const lap_cuda_device_t *device, const cublasLtMatmulAlgo_t *algorithm)
{
    uint32_t tile = CUBLASLT_MATMUL_TILE_UNDEFINED;
    size_t written = 0;
    return device->capability == HOPPER &&
           device->api.cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID,
                                                            &tile, sizeof(tile),
                                                            &written) == CUBLAS_STATUS_SUCCESS &&
           tile == CUBLASLT_MATMUL_TILE_128x256;
}

/* Stable: kernels that move less come first, each group in its order. */
static void put_moves_less_first(const lap_cuda_device_t *device,
                                 cublasLtMatmulHeuristicResult_t *proposals, int count)
{
    int thrifty = 0;
    for (int i = 0; i < count; i++)
        if (moves_less(device, &proposals[i].algo)) {
            const cublasLtMatmulHeuristicResult_t found = proposals[i];
            memmove(&proposals[thrifty + 1], &proposals[thrifty],
                    (size_t)(i - thrifty) * sizeof(*proposals));
            proposals[thrifty++] = found;
        }
}

/* ---- bits ---- */

/* The order in which a kernel adds: its family, and the parts in which it splits a sum along k. */
typedef struct sums {
    int32_t family;
    uint32_t parts, scheme;
} sums_t;

static sums_t sums_of(const lap_cuda_device_t *device, const cublasLtMatmulAlgo_t *algorithm)
{
    sums_t sums = {0};
    const struct {
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        void *value;
    } asked[] = {
        {CUBLASLT_ALGO_CONFIG_ID, &sums.family},
        {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &sums.parts},
        {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &sums.scheme},
    };
    size_t written;
    /* An attribute that a kernel does not have stays 0. */
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
        (void)device->api.cublasLtMatmulAlgoConfigGetAttribute(
            algorithm, asked[i].attribute, asked[i].value, sizeof(uint32_t), &written);
    return sums;
}

/*
 * Keeps the proposals that give the same bits as the first, in their order, and says how many there
 * are. Tiles, stages and clusters leave the order of a sum as it is, its split along k does not.
 */
static int keep_same_bits(const lap_cuda_device_t *device,
                          cublasLtMatmulHeuristicResult_t *proposals, int count)
{
    const sums_t first = sums_of(device, &proposals[0].algo);
    int kept = 0;
    for (int i = 0; i < count; i++) {
        const sums_t sums = sums_of(device, &proposals[i].algo);
        if (sums.family == first.family && sums.parts == first.parts && sums.scheme == first.scheme)
            proposals[kept++] = proposals[i];
    }
    return kept;
}

/* ---- trials ---- */

static cublasStatus_t run(const tuning_t *tuning, const cublasLtMatmulAlgo_t *algorithm)
{
    const lap_cuda_device_t *device = tuning->device;
    const lap_cuda_plan_t *plan = tuning->plan;
    const float alpha = 1, beta = plan->key.accumulates ? 0.5f : 0;
    void *d = (void *)(uintptr_t)tuning->d;
    return device->api.cublasLtMatmul(
        device->blas.handle, plan->operation, &alpha, (const void *)(uintptr_t)tuning->b, plan->b,
        (const void *)(uintptr_t)tuning->a, plan->a, &beta, d, plan->d, d, plan->d, algorithm,
        (void *)(uintptr_t)tuning->workspace, LAP_CUDA_WORKSPACE, device->internal);
}

/* The seconds of a run, as the mean of `runs`; 0: it cannot be run. */
static lap_status_t time_runs(const tuning_t *tuning, const cublasLtMatmulAlgo_t *algorithm,
                              int runs, double *seconds_p)
{
    const lap_cuda_device_t *device = tuning->device;
    const lap_cuda_api_t *api = &device->api;
    float ms = 0;
    bool runs_at_all = true;
    LAP_TRY(
        lap_cuda_check(api, api->cuEventRecord(tuning->begin, device->internal), "cuEventRecord"));
    for (int i = 0; i < runs && runs_at_all; i++)
        runs_at_all = run(tuning, algorithm) == CUBLAS_STATUS_SUCCESS;
    LAP_TRY(
        lap_cuda_check(api, api->cuEventRecord(tuning->end, device->internal), "cuEventRecord"));
    LAP_TRY(lap_cuda_check(api, api->cuStreamSynchronize(device->internal), "the trial of a GEMM"));
    LAP_TRY(lap_cuda_check(api, api->cuEventElapsedTime(&ms, tuning->begin, tuning->end),
                           "cuEventElapsedTime"));
    *seconds_p = runs_at_all ? (double)ms * 1e-3 / runs : 0;
    return LAP_OK;
}

/* The seconds of a proposal; 0: it cannot be run. The first run loads the kernel. */
static lap_status_t load(const tuning_t *tuning, const cublasLtMatmulAlgo_t *algorithm,
                         double *seconds_p)
{
    LAP_TRY(time_runs(tuning, algorithm, 1, seconds_p));
    return *seconds_p > 0 ? time_runs(tuning, algorithm, 1, seconds_p) : LAP_OK;
}

/* One more comparison of a proposal with the first; which of them runs first takes turns. */
static lap_status_t compare(const tuning_t *tuning, const cublasLtMatmulAlgo_t *first,
                            const cublasLtMatmulAlgo_t *algorithm, int runs, trial_t *trial)
{
    const cublasLtMatmulAlgo_t *const both[] = {first, algorithm};
    const int turn = trial->rounds % 2;
    double seconds[2] = {0};
    LAP_TRY(time_runs(tuning, both[turn], runs, &seconds[turn]));
    LAP_TRY(time_runs(tuning, both[!turn], runs, &seconds[!turn]));
    if (seconds[0] > 0 && seconds[1] > 0)
        lap_sorted_add(trial->ratios, trial->rounds++, seconds[1] / seconds[0]);
    return LAP_OK;
}

/* Keeps the finalists: those whose first comparisons were the best. */
static void choose_finalists(trial_t *trials, int count)
{
    double firsts[LAP_CUDA_PROPOSALS];
    int n = 0;
    for (int i = 1; i < count; i++)
        if (trials[i].rounds > 0)
            lap_sorted_add(firsts, n++, trials[i].ratios[0]);
    if (n == 0)
        return;
    const double most =
        fmin(firsts[(n < FINALISTS ? n : FINALISTS) - 1], HOPELESS * fmin(firsts[0], 1));
    for (int i = 1; i < count; i++)
        if (trials[i].rounds > 0 && trials[i].ratios[0] > most)
            trials[i].rounds = 0;
}

/* All but the first in turn, and then the best of them again and again, until the time is up. */
static lap_status_t try_others(const tuning_t *tuning,
                               const cublasLtMatmulHeuristicResult_t *proposals, int count,
                               double first_s, trial_t *trials)
{
    const uint64_t begin = lap_now_ns();
    const double budget = fmax(BUDGET_NS, first_s * BUDGET_RUNS * 1e9);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 1; i < count; i++) {
            trial_t *trial = &trials[i];
            double seconds = first_s;
            if (trial->rounds < round)
                continue;
            if ((double)(lap_now_ns() - begin) > budget)
                return LAP_OK;
            if (round == 0)
                LAP_TRY(load(tuning, &proposals[i].algo, &seconds));
            const double runs = fmin(fmax(ENOUGH_S / fmax(first_s, seconds), 1), RUNS_MOST);
            if (seconds > 0)
                LAP_TRY(compare(tuning, &proposals[0].algo, &proposals[i].algo, (int)runs, trial));
        }
        if (round == 0)
            choose_finalists(trials, count);
    }
    return LAP_OK;
}

/* Finds the first that runs, and compares those after it with it. */
static lap_status_t try_all(const tuning_t *tuning,
                            const cublasLtMatmulHeuristicResult_t *proposals, int count,
                            trial_t *trials)
{
    double seconds = 0;
    int first = 0;
    for (; first < count; first++) {
        LAP_TRY(load(tuning, &proposals[first].algo, &seconds));
        if (seconds > 0)
            break;
    }
    if (first == count)
        return LAP_OK;
    trials[first] = (trial_t){.ratios = {1, 1, 1}, .rounds = ROUNDS_LEAST};
    return try_others(tuning, proposals + first, count - first, seconds, trials + first);
}

/* By the median, of an even number the lower one. */
static int fastest(const trial_t *trials, int count)
{
    int chosen = 0;
    double best = 0;
    for (int i = 0; i < count; i++) {
        if (trials[i].rounds < ROUNDS_LEAST)
            continue;
        const double median = trials[i].ratios[(trials[i].rounds - 1) / 2];
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
    LAP_TRY(
        lap_cuda_check(api, api->cuEventCreate(&tuning->begin, CU_EVENT_DEFAULT), "cuEventCreate"));
    LAP_TRY(
        lap_cuda_check(api, api->cuEventCreate(&tuning->end, CU_EVENT_DEFAULT), "cuEventCreate"));
    const lap_cuda_pointers_t pointers = {
        .a_scale = (const float *)(uintptr_t)tuning->bias, /* any number does */
        .b_scale = (const float *)(uintptr_t)tuning->bias,
        .bias = (const void *)(uintptr_t)tuning->bias,
        .aux = (void *)(uintptr_t)tuning->aux,
    };
    LAP_TRY(lap_cuda_plan_point(tuning->plan, api, &pointers));
    count = keep_same_bits(tuning->device, proposals, count);
    put_moves_less_first(tuning->device, proposals, count);
    LAP_TRY(try_all(tuning, proposals, count, trials));
    proposals[0] = proposals[fastest(trials, count)];
    return LAP_OK;
}

/*
 * Whether all streams are idle. A busy stream might wait for a peer, and freeing memory would then
 * block without noticing that the peer has died. A stream that has failed is not busy.
 */
static lap_status_t ask_idle(const lap_cuda_device_t *device, bool *idle_p)
{
    *idle_p = !device->pending.stream;
    for (const lap_stream_t *stream = device->streams; stream; stream = stream->next) {
        const CUresult result = device->api.cuStreamQuery(stream->stream);
        const bool busy = result == CUDA_ERROR_NOT_READY ||
                          result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* in a caller's graph */
        *idle_p = *idle_p && !busy;
        if (!busy)
            LAP_TRY(lap_cuda_check(&device->api, result, "what a stream of the GPU was given"));
    }
    return LAP_OK;
}

/* What was issued before something failed may still use it. */
static void free_memory(const tuning_t *tuning)
{
    const lap_cuda_api_t *api = &tuning->device->api;
    if (!tuning->memory)
        return;
    (void)api->cuStreamSynchronize(tuning->device->internal);
    (void)api->cuMemFree(tuning->memory);
}

lap_status_t lap_cuda_tune(lap_cuda_device_t *device, const lap_cuda_plan_t *plan,
                           cublasLtMatmulHeuristicResult_t *proposals, int count)
{
    const lap_cuda_api_t *api = &device->api;
    tuning_t tuning = {.device = device, .plan = plan};
    bool idle;
    LAP_TRY(ask_idle(device, &idle));
    if (!idle)
        return LAP_OK;
    const lap_status_t status = tune(&tuning, proposals, count);
    if (tuning.begin)
        (void)api->cuEventDestroy(tuning.begin);
    if (tuning.end)
        (void)api->cuEventDestroy(tuning.end);
    free_memory(&tuning);
    return status;
}
