/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLASMp, loaded when a method of that name is asked for: a whole operator in one call of it, over
 * a communicator of its own, since it expects one that blocks. Its streams are of the primary
 * context, as all of NCCL's are; a stream of the device goes on when it is done.
 *
 * In its terms, which are column-major, the weight is A, the activations are B, and tokens are
 * columns: D = A^T B is [n of ours, m of ours]. Its grids are P x 1 and 1 x P.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "transport/nccl/cublasmp_load.h"
#include "transport/nccl/nccl_comm.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/thread.h"

#define TIMES 2 /* of the last call */
#define FIRST 5 /* matrices and vectors of a call */
#define NAP_NS 50000u

/* What is used of its header, as of 0.10; its functions are in cublasmp_load.h. */
enum { COLUMN_MAJOR = 0, ROW_MAJOR = 1 };
enum { TRANS_A = 0, TRANS_B = 1, ALGORITHM = 3, SM_COUNT = 4, EPILOGUE = 5, WIRE_TYPE = 27 };
enum { BIAS_AT = 6, BIAS_TYPE = 8, AUX_AT = 9, AUX_STRIDE = 10, AUX_TYPE = 12 };
enum { A_SCALE_AT = 16, B_SCALE_AT = 18 };
enum { COMPUTE_32F = 68 };
enum { ALL_REDUCE = 1, BIAS = 4, GELU = 32, AUX = 128 };

typedef struct multiplier {
    lap_foreign_t base; /* first */
    lap_cublasmp_api_t api;
    lap_nccl_comm_t *nccl;
    ncclComm_t comm; /* its own, which blocks */
    lap_foreign_shape_t shape;
    CUstream stream; /* of the primary context */
    lap_event_t *begun;
    CUevent done;
    volatile uint64_t *times; /* pinned: when the last call began, and when one ended; the GPU's */
    lap_cublasmp_t handle, column_grid, row_grid, matmul, a, b, d;
    void *device_memory, *host_memory; /* of each call */
    size_t device_bytes, host_bytes;
    ncclUniqueId id;
    CUdeviceptr first[FIRST]; /* memory of the first call */
    struct task *left;        /* a step that this rank waits for no more: see run_step */
    _Atomic bool given_up;    /* for that step to see */
} multiplier_t;

/* ---- ending ---- */

/* A step as those that make it: to take a buffer away may wait for peers, too. */
static lap_status_t free_inside(multiplier_t *it)
{
    const lap_cublasmp_api_t *api = &it->api;
    const lap_cuda_api_t *cuda = &it->nccl->device->api;
    if (it->stream)
        (void)cuda->cuStreamSynchronize(it->stream);
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
    if (it->comm)
        (void)it->nccl->api.ncclCommAbort(it->comm);
    if (it->times)
        (void)cuda->cuMemFreeHost((void *)(uintptr_t)it->times);
    if (it->done)
        (void)cuda->cuEventDestroy(it->done);
    if (it->stream)
        (void)cuda->cuStreamDestroy(it->stream);
    return LAP_OK;
}

/* ---- steps ---- */

/* In a thread of its own, since it may wait for a peer that has died. */
typedef struct task {
    multiplier_t *it;
    lap_status_t (*step)(multiplier_t *it);
    pthread_t thread;
    lap_status_t status;
    lap_saved_error_t error;
    _Atomic bool done;
} task_t;

/* Enter and leave are for the thread of the rank, which goes on if this one does not come back. */
static lap_status_t step_inside(const task_t *task)
{
    const lap_cuda_device_t *device = task->it->nccl->device;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    LAP_TRY(lap_cuda_push(device, device->primary));
    (void)device->api.cuThreadExchangeStreamCaptureMode(&mode);
    return lap_cuda_pop(device, task->step(task->it));
}

static void *task_main(void *context)
{
    task_t *task = context;
    task->status = step_inside(task);
    lap_error_save(&task->error);
    atomic_store(&task->done, true);
    return NULL;
}

/* After each call in a step that may have waited for peers. */
static lap_status_t go_on(const multiplier_t *it)
{
    return atomic_load(&it->given_up)
               ? lap_error(LAP_ERR_PEER_LOST, "this rank waits for cuBLASMp no more")
               : LAP_OK;
}

/* Until it has ended, a peer is lost or has failed, or the time is over. */
static lap_status_t await(const task_t *task)
{
    lap_group_t *group = task->it->nccl->group;
    lap_deadline_t deadline = lap_deadline_after(group->world->timeout_ns);
    uint64_t next_look = 0, lost_at = 0, failed_at = 0;
    while (!atomic_load(&task->done)) {
        const uint64_t now = lap_now_ns();
        if (now >= next_look) {
            const lap_status_t status = lap_group_look(group);
            if (status != LAP_OK && lost_at != 0 && now - lost_at > LAP_NCCL_LAST_NS)
                return status;
            lost_at = status == LAP_OK ? 0 : lost_at ? lost_at : now;
            if (task->step != free_inside)
                LAP_TRY(lap_nccl_look(group, now, &failed_at));
            next_look = now + LAP_WATCH_NS;
        }
        if (lap_deadline_passed(&deadline))
            return lap_error(LAP_ERR_TIMEOUT,
                             "cuBLASMp did not make an operator within %g s on rank %d",
                             (double)group->world->timeout_ns * 1e-9, group->rank);
        lap_sleep_until_ns(now + NAP_NS);
    }
    return LAP_OK;
}

static lap_status_t end_task(task_t *task)
{
    pthread_join(task->thread, NULL);
    const lap_status_t status = task->status;
    lap_error_restore(&task->error);
    lap_free(task);
    return status;
}

/* LAP_IN_PROGRESS: another rank has failed. A thread that does not come back is left to destroy. */
static lap_status_t run_step(multiplier_t *it, lap_status_t (*step)(multiplier_t *it))
{
    task_t *task = lap_alloc(1, sizeof(*task));
    if (!task)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to call cuBLASMp");
    *task = (task_t){.it = it, .step = step};
    errno = lap_thread_start(&task->thread, "lap-cublasmp", task_main, task);
    if (errno != 0) {
        lap_free(task);
        return lap_error_errno("cannot start the thread that calls cuBLASMp");
    }
    const lap_status_t status = await(task);
    if (status == LAP_OK)
        return end_task(task);
    it->left = task;
    atomic_store(&it->given_up, true);
    return status;
}

/* ---- the end of it ---- */

/* Whether no thread is in a step of it any more: those end that wait for a rank that has ended its own. */
static bool is_free(multiplier_t *it)
{
    const uint64_t deadline = lap_now_ns() + LAP_NCCL_LAST_NS;
    while (it->left && !atomic_load(&it->left->done)) {
        if (it->nccl->device->dead || lap_now_ns() > deadline)
            return false;
        lap_sleep_until_ns(lap_now_ns() + NAP_NS);
    }
    if (it->left)
        (void)end_task(it->left);
    it->left = NULL;
    return true;
}

/* For a thread that does not come back, all that it works with stays, up to the world. */
static void keep(const multiplier_t *it)
{
    pthread_detach(it->left->thread);
    it->nccl->users++;
    lap_group_keep(it->nccl->group);
}

/* Local. What a dead GPU, or one whose peers are gone, was given cannot be taken back. */
static void destroy(lap_foreign_t *foreign)
{
    multiplier_t *it = (multiplier_t *)foreign;
    lap_saved_error_t saved;
    lap_error_save(&saved);
    if (is_free(it) && lap_group_look(it->nccl->group) == LAP_OK)
        (void)run_step(it, free_inside);
    if (it->left) {
        keep(it);
    } else {
        if (it->begun)
            lap_cuda_event_destroy(it->begun);
        lap_free(it->host_memory);
        lap_free(it);
    }
    lap_error_restore(&saved);
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

static lap_status_t set_bytes(const multiplier_t *it, int attribute, const void *value,
                              size_t bytes)
{
    return lap_cublasmp_check(
        &it->api, it->api.cublasMpMatmulDescriptorSetAttribute(it->matmul, attribute, value, bytes),
        "cublasMpMatmulDescriptorSetAttribute");
}

static lap_status_t set(const multiplier_t *it, int attribute, int value)
{
    return set_bytes(it, attribute, &value, sizeof(value));
}

static lap_status_t set_address(const multiplier_t *it, int attribute, const void *memory)
{
    return set_bytes(it, attribute, &memory, sizeof(memory));
}

/* What GELU keeps has the strides of d. */
static lap_status_t set_epilogue(const multiplier_t *it, bool keeps)
{
    const lap_foreign_shape_t *s = &it->shape;
    const int64_t stride = (int64_t)(s->n / (size_t)it->nccl->group->size);
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

/* Those of one call. */
static lap_status_t set_args(const multiplier_t *it, const lap_foreign_args_t *args)
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

/* ---- a call ---- */

/* Between enter and leave. */
static lap_status_t multiply(multiplier_t *it, const lap_foreign_args_t *args)
{
    const lap_foreign_shape_t *s = &it->shape;
    const float beta = 0;
    LAP_TRY(set_args(it, args));
    return lap_cublasmp_check(
        &it->api,
        it->api.cublasMpMatmul(it->handle, it->matmul, (int64_t)s->n, (int64_t)s->m, (int64_t)s->k,
                               &args->alpha, args->b, 1, 1, it->a, args->a, 1, 1, it->b, &beta,
                               NULL, 1, 1, NULL, args->d, 1, 1, it->d, it->device_memory,
                               it->device_bytes, it->host_memory, it->host_bytes),
        "cublasMpMatmul");
}

static lap_status_t run_inside(multiplier_t *it, const lap_foreign_args_t *args)
{
    const lap_cuda_api_t *api = &it->nccl->device->api;
    LAP_TRY(lap_cuda_check(api, api->cuStreamWaitEvent(it->stream, it->begun->event, 0),
                           "cuStreamWaitEvent"));
    LAP_TRY(multiply(it, args));
    return lap_cuda_check(api, api->cuEventRecord(it->done, it->stream), "cuEventRecord");
}

/* The GPU writes when it begins and ends: see running. */
static lap_status_t run(lap_foreign_t *foreign, lap_stream_t *stream,
                        const lap_foreign_args_t *args)
{
    multiplier_t *it = (multiplier_t *)foreign;
    lap_cuda_device_t *device = it->nccl->device;
    LAP_TRY(lap_cuda_write_time(stream, (uint64_t *)(uintptr_t)&it->times[0]));
    LAP_TRY(lap_cuda_event_record(it->begun, stream));
    LAP_TRY(lap_nccl_enter(it->nccl));
    LAP_TRY(lap_nccl_leave(it->nccl, run_inside(it, args)));
    LAP_TRY(lap_cuda_enter(device));
    LAP_TRY(lap_cuda_leave(
        device,
        lap_cuda_check(&device->api, device->api.cuStreamWaitEvent(stream->stream, it->done, 0),
                       "cuStreamWaitEvent")));
    return lap_cuda_write_time(stream, (uint64_t *)(uintptr_t)&it->times[1]);
}

/* A call lasts longer than the GPU's clock ticks. */
static uint64_t running(const lap_foreign_t *foreign)
{
    const multiplier_t *it = (const multiplier_t *)foreign;
    const uint64_t begun = it->times[0];
    return begun >= it->times[1] ? begun : 0;
}

/* ---- making ---- */

static lap_status_t describe(const multiplier_t *it, size_t m, size_t n, size_t mb, size_t nb,
                             size_t lld, lap_dtype_t dtype, lap_cublasmp_t grid,
                             lap_cublasmp_t *matrix_p)
{
    return lap_cublasmp_check(
        &it->api,
        it->api.cublasMpMatrixDescriptorCreate((int64_t)m, (int64_t)n, (int64_t)mb, (int64_t)nb, 0,
                                               0, (int64_t)lld, cuda_type(dtype), grid, matrix_p),
        "cublasMpMatrixDescriptorCreate");
}

/* Where which rows and columns are: by that cuBLASMp knows what is to be gathered, or summed. */
static lap_status_t describe_matrices(multiplier_t *it)
{
    const lap_foreign_shape_t *s = &it->shape;
    const size_t ranks = (size_t)it->nccl->group->size;
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
static lap_status_t describe_product(multiplier_t *it)
{
    static const int algorithms[] = {0, 1, 2, 5, 6}; /* in the order of lap_op_fields */
    const lap_foreign_shape_t *s = &it->shape;
    LAP_TRY(lap_cublasmp_check(&it->api,
                               it->api.cublasMpMatmulDescriptorCreate(&it->matmul, COMPUTE_32F),
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

static lap_status_t size_memory(multiplier_t *it)
{
    const lap_foreign_shape_t *s = &it->shape;
    const float alpha = 1, beta = 0;
    return lap_cublasmp_check(
        &it->api,
        it->api.cublasMpMatmul_bufferSize(it->handle, it->matmul, (int64_t)s->n, (int64_t)s->m,
                                          (int64_t)s->k, &alpha, NULL, 1, 1, it->a, NULL, 1, 1,
                                          it->b, &beta, NULL, 1, 1, NULL, NULL, 1, 1, it->d,
                                          &it->device_bytes, &it->host_bytes),
        "cublasMpMatmul_bufferSize");
}

/* The steps of making it, each of which all ranks take before the next. This one waits for nobody. */
static lap_status_t take_stream(multiplier_t *it)
{
    const lap_cuda_api_t *api = &it->nccl->device->api;
    void *times;
    LAP_TRY(lap_cuda_check(api,
                           api->cuStreamCreateWithPriority(&it->stream, CU_STREAM_NON_BLOCKING,
                                                           it->nccl->device->share.urgent),
                           "cuStreamCreateWithPriority"));
    LAP_TRY(lap_cuda_check(api, api->cuEventCreate(&it->done, CU_EVENT_DISABLE_TIMING),
                           "cuEventCreate"));
    LAP_TRY(
        lap_cuda_check(api,
                       api->cuMemHostAlloc(&times, TIMES * sizeof(*it->times),
                                           CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                       "cuMemHostAlloc"));
    it->times = times;
    it->times[0] = 0;
    it->times[1] = 1; /* nothing runs */
    return LAP_OK;
}

/*
 * NCCL's kernels wait for those of other ranks. Where ranks share a GPU all of them must have room there at
 * once, beside a GEMM that is still to come, or none of them ends: so they have half of it.
 */
static lap_status_t open(multiplier_t *it)
{
    const int size = it->nccl->group->size;
    const lap_cuda_share_t *share = &it->nccl->device->share;
    ncclConfig_t config = LAP_NCCL_CONFIG;
    config.blocking = 1;
    if (share->parts > 1)
        config.maxCTAs = share->sms / 2;
    LAP_TRY(lap_nccl_check(&it->nccl->api,
                           it->nccl->api.ncclCommInitRankConfig(&it->comm, size, it->id,
                                                                it->nccl->group->rank, &config),
                           "ncclCommInitRankConfig"));
    LAP_TRY(go_on(it));
    LAP_TRY(lap_cublasmp_check(&it->api, it->api.cublasMpCreate(&it->handle, it->stream),
                               "cublasMpCreate"));
    LAP_TRY(lap_cublasmp_check(
        &it->api, it->api.cublasMpGridCreate(size, 1, COLUMN_MAJOR, it->comm, &it->column_grid),
        "cublasMpGridCreate"));
    LAP_TRY(lap_cublasmp_check(
        &it->api, it->api.cublasMpGridCreate(1, size, ROW_MAJOR, it->comm, &it->row_grid),
        "cublasMpGridCreate"));
    LAP_TRY(describe_matrices(it));
    LAP_TRY(describe_product(it));
    return size_memory(it);
}

/* Local: a rank that has no room says so before others wait for it. */
static lap_status_t try_memory(multiplier_t *it)
{
    CUdeviceptr memory = 0;
    LAP_TRY(lap_cuda_memory(it->nccl->device, it->device_bytes, &memory));
    return lap_cuda_check(&it->nccl->device->api, it->nccl->device->api.cuMemFree(memory),
                          "cuMemFree");
}

/* Registered: without that cuBLASMp would not overlap, and not say so. */
static lap_status_t take_memory(multiplier_t *it)
{
    LAP_TRY(lap_cublasmp_check(
        &it->api, it->api.cublasMpMalloc(it->column_grid, &it->device_memory, it->device_bytes),
        "cublasMpMalloc"));
    LAP_TRY(go_on(it));
    return lap_cublasmp_check(
        &it->api, it->api.cublasMpBufferRegister(it->row_grid, it->device_memory, it->device_bytes),
        "cublasMpBufferRegister");
}

/* For a first call, on memory of no use: a graph could not hold what that makes. Local. */
static lap_status_t take_first(multiplier_t *it)
{
    const lap_foreign_shape_t *s = &it->shape;
    const size_t ranks = (size_t)it->nccl->group->size;
    const size_t d = s->m * s->n / (s->kind == LAP_GEMM_AR ? 1 : ranks) * lap_dtype_size(s->out);
    const size_t bytes[FIRST] = {s->m * s->k / ranks * lap_dtype_size(s->a),
                                 s->n * s->k / ranks * lap_dtype_size(s->b), d,
                                 s->n * sizeof(float), d};
    for (size_t i = 0; i < FIRST; i++)
        LAP_TRY(lap_cuda_memory(it->nccl->device, bytes[i], &it->first[i]));
    return LAP_OK;
}

static void *first_at(const multiplier_t *it, int i)
{
    return (void *)(uintptr_t)it->first[i];
}

static lap_status_t call_first(multiplier_t *it)
{
    const lap_cuda_api_t *api = &it->nccl->device->api;
    const lap_foreign_args_t args = {.a = first_at(it, 0),
                                     .b = first_at(it, 1),
                                     .d = first_at(it, 2),
                                     .alpha = 1,
                                     .bias = first_at(it, 3),
                                     .aux = first_at(it, 4)};
    LAP_TRY(multiply(it, &args));
    LAP_TRY(go_on(it));
    return lap_cuda_check(api, api->cuStreamSynchronize(it->stream), "a first product of cuBLASMp");
}

/* Between enter and leave. */
static void free_first(multiplier_t *it)
{
    for (size_t i = 0; i < FIRST; i++)
        if (it->first[i])
            (void)it->nccl->device->api.cuMemFree(it->first[i]);
    memset(it->first, 0, sizeof(it->first));
}

/* What all ranks need is the most of any. */
static lap_status_t agree_on_bytes(multiplier_t *it)
{
    void *memory;
    LAP_TRY(
        lap_group_collect(it->nccl->group, &it->device_bytes, sizeof(it->device_bytes), &memory));
    for (int r = 0; r < it->nccl->group->size; r++) {
        const size_t bytes = ((const size_t *)memory)[r];
        it->device_bytes = bytes > it->device_bytes ? bytes : it->device_bytes;
    }
    lap_free(memory);
    return LAP_OK;
}

/* ---- steps that all ranks take ---- */

/* One that waits for nobody. */
static lap_status_t alone(multiplier_t *it, lap_status_t (*step)(multiplier_t *it))
{
    lap_status_t status = lap_nccl_enter(it->nccl);
    if (status == LAP_OK)
        status = lap_nccl_leave(it->nccl, step(it));
    return lap_group_agree(it->nccl->group, status);
}

/*
 * One in which a rank waits for others. Where one has failed, others leave the thread that waits for it,
 * and all go on without cuBLASMp. But kernels that wait on the GPU end no more: it is abandoned, as
 * when a rank is lost.
 */
static lap_status_t together(multiplier_t *it, lap_status_t (*step)(multiplier_t *it))
{
    lap_group_t *group = it->nccl->group;
    lap_status_t status = run_step(it, step);
    const bool dead = it->left && (status != LAP_IN_PROGRESS || step == call_first);
    if (dead)
        lap_cuda_abandon(it->nccl->device);
    if (dead && status != LAP_IN_PROGRESS)
        lap_group_fail(group, status, lap_last_error());
    status = lap_nccl_agree(group, status);
    if (dead)
        lap_group_fail(group, status, lap_last_error());
    return status;
}

static lap_status_t warm_up(multiplier_t *it)
{
    lap_status_t status = alone(it, take_first);
    if (status == LAP_OK)
        status = together(it, call_first);
    if (!it->left && lap_nccl_enter(it->nccl) == LAP_OK) {
        free_first(it);
        (void)lap_nccl_leave(it->nccl, LAP_OK);
    }
    return status;
}

/* ---- the whole of it ---- */

static lap_status_t get_id(lap_nccl_comm_t *nccl, ncclUniqueId *id)
{
    if (nccl->group->rank != 0)
        return LAP_OK;
    LAP_TRY(lap_nccl_enter(nccl));
    return lap_nccl_leave(
        nccl, lap_nccl_check(&nccl->api, nccl->api.ncclGetUniqueId(id), "ncclGetUniqueId"));
}

static lap_status_t make(multiplier_t *it)
{
    lap_group_t *group = it->nccl->group;
    void *ids;
    int version;
    lap_status_t status = LAP_OK;
    if ((it->shape.epilogue & LAP_EPILOGUE_GELU) && !it->nccl->device->blas.fast_gelu)
        status = lap_error(LAP_ERR_UNSUPPORTED,
                           "the GELU of cuBLASMp is an approximation: expected LAP_GPU_GELU=fast");
    if (status == LAP_OK)
        status = lap_cublasmp_load(&it->api, &version);
    if (status == LAP_OK)
        status = lap_cuda_event_create(&it->nccl->device->base, &it->begun);
    if (status == LAP_OK)
        status = get_id(it->nccl, &it->id);
    LAP_TRY(lap_group_agree(group, status));
    LAP_TRY(lap_group_collect(group, &it->id, sizeof(it->id), &ids));
    memcpy(&it->id, ids, sizeof(it->id)); /* that of rank 0 */
    lap_free(ids);
    LAP_TRY(alone(it, take_stream)); /* before anybody waits for peers */
    LAP_TRY(together(it, open));
    LAP_TRY(agree_on_bytes(it));
    it->host_memory = lap_alloc(it->host_bytes + 1, 1);
    status = it->host_memory
                 ? LAP_OK
                 : lap_error(LAP_ERR_NO_MEMORY, "no memory for a workspace of cuBLASMp");
    LAP_TRY(lap_group_agree(group, status));
    LAP_TRY(alone(it, try_memory));
    LAP_TRY(together(it, take_memory));
    return warm_up(it);
}

lap_status_t lap_nccl_foreign_create(lap_group_t *group, const lap_foreign_shape_t *shape,
                                     lap_foreign_t **foreign_p)
{
    lap_nccl_comm_t *nccl;
    LAP_TRY(lap_nccl_comm_get(group, &nccl));
    multiplier_t *it = lap_alloc(1, sizeof(*it));
    lap_status_t status =
        it ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for an operator of cuBLASMp");
    if (it)
        *it = (multiplier_t){.base = {run, running, destroy}, .nccl = nccl, .shape = *shape};
    status = lap_group_agree(group, status);
    if (status == LAP_OK)
        status = make(it);
    if (status != LAP_OK) {
        if (it)
            destroy(&it->base);
        return status;
    }
    *foreign_p = &it->base;
    return LAP_OK;
}
