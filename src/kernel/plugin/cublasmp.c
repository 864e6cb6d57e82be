/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLASMp, loaded when a method of that name is asked for: a whole operator in one call of it, over
 * a communicator of its own, since it expects one that blocks. Its streams are of the primary
 * context, as all of NCCL's are; a stream of the device goes on when it is done.
 *
 * Here are the life of an operator, the steps in which all ranks make it, and what becomes of it when
 * a peer fails there. What cuBLASMp is told of its product is in cublasmp_product.c.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel/plugin/cublasmp_product.h"
#include "transport/nccl/nccl_comm.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/thread.h"

#define EXIT_NS 3000000000u
#define TIMES 2 /* of the last call */
#define FIRST 5 /* matrices and vectors of a call */
#define NAP_NS 50000u

typedef struct multiplier {
    lap_foreign_t base; /* first */
    lap_cublasmp_product_t product;
    lap_nccl_comm_t *nccl;
    ncclComm_t comm; /* its own, which blocks */
    CUstream stream; /* of the primary context */
    lap_event_t *begun;
    CUevent done;
    volatile uint64_t *times; /* pinned: when the last call began, and when one ended; the GPU's */
    ncclUniqueId id;
    CUdeviceptr first[FIRST]; /* memory of the first call */
    struct task *left;        /* a step that this rank waits for no more: see run_step */
    _Atomic bool given_up;    /* for that step to see */
} multiplier_t;

/* ---- the end of the process ---- */

/*
 * Kernels that wait for a rank that has died cannot be ended: neither ncclCommRevoke nor ncclCommAbort does so. The CUDA runtime
 * inside cuBLASMp waits for them at exit, for ever. So exit has a time limit once a GPU is abandoned: exit handlers have 3 s,
 * and then the process ends with its exit status.
 */
static void *end_process(void *status)
{
    lap_sleep_until_ns(lap_now_ns() + EXIT_NS);
    _exit((int)(intptr_t)status);
}

/* Buffered output is written here: the C library would do so only after all handlers. */
static void limit_exit(int status, void *unused)
{
    pthread_t thread;
    (void)unused;
    if (lap_thread_start(&thread, "lap-exit", end_process, (void *)(intptr_t)status) == 0)
        pthread_detach(thread);
    (void)fflush(NULL);
}

/* The library stays loaded: dlclose does not remove a handler of on_exit. */
static void stay_loaded(void)
{
    static const char here = 0;
    Dl_info info;
    if (dladdr(&here, &info) != 0)
        (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static void abandoned(void)
{
    stay_loaded();
    (void)on_exit(limit_exit, NULL);
}

/* ---- ending ---- */

/* A step as those that make it: to take a buffer away may wait for peers, too. */
static lap_status_t free_inside(multiplier_t *it)
{
    const lap_cuda_api_t *cuda = &it->nccl->device->api;
    if (it->stream)
        (void)cuda->cuStreamSynchronize(it->stream);
    lap_cublasmp_product_destroy(&it->product);
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
        lap_free(it->product.host_memory);
        lap_free(it);
    }
    lap_error_restore(&saved);
}

/* ---- a call ---- */

static lap_status_t run_inside(multiplier_t *it, const lap_foreign_args_t *args)
{
    const lap_cuda_api_t *api = &it->nccl->device->api;
    LAP_TRY(lap_cuda_check(api, api->cuStreamWaitEvent(it->stream, it->begun->event, 0),
                           "cuStreamWaitEvent"));
    LAP_TRY(lap_cublasmp_product_multiply(&it->product, args));
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
    return lap_cublasmp_product_create(&it->product, it->stream, it->comm);
}

/* Local: a rank that has no room says so before others wait for it. */
static lap_status_t try_memory(multiplier_t *it)
{
    CUdeviceptr memory = 0;
    LAP_TRY(lap_cuda_memory(it->nccl->device, it->product.device_bytes, &memory));
    return lap_cuda_check(&it->nccl->device->api, it->nccl->device->api.cuMemFree(memory),
                          "cuMemFree");
}

static lap_status_t take_memory(multiplier_t *it)
{
    LAP_TRY(lap_cublasmp_product_alloc(&it->product));
    LAP_TRY(go_on(it));
    return lap_cublasmp_product_register(&it->product);
}

/* For a first call, on memory of no use: a graph could not hold what that makes. Local. */
static lap_status_t take_first(multiplier_t *it)
{
    const lap_foreign_shape_t *s = &it->product.shape;
    const size_t ranks = it->product.ranks;
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
    LAP_TRY(lap_cublasmp_product_multiply(&it->product, &args));
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
    size_t *most = &it->product.device_bytes;
    void *memory;
    LAP_TRY(lap_group_collect(it->nccl->group, most, sizeof(*most), &memory));
    for (int r = 0; r < it->nccl->group->size; r++) {
        const size_t bytes = ((const size_t *)memory)[r];
        *most = bytes > *most ? bytes : *most;
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
    if ((it->product.shape.epilogue & LAP_EPILOGUE_GELU) && !it->nccl->device->blas.fast_gelu)
        status = lap_error(LAP_ERR_UNSUPPORTED,
                           "the GELU of cuBLASMp is an approximation: expected LAP_GPU_GELU=fast");
    if (status == LAP_OK)
        status = lap_cublasmp_load(&it->product.api, &version);
    if (status == LAP_OK)
        status = lap_cuda_event_create(&it->nccl->device->base, &it->begun);
    if (status == LAP_OK)
        status = get_id(it->nccl, &it->id);
    it->nccl->device->abandoned = abandoned;
    LAP_TRY(lap_group_agree(group, status));
    LAP_TRY(lap_group_collect(group, &it->id, sizeof(it->id), &ids));
    memcpy(&it->id, ids, sizeof(it->id)); /* that of rank 0 */
    lap_free(ids);
    LAP_TRY(alone(it, take_stream)); /* before anybody waits for peers */
    LAP_TRY(together(it, open));
    LAP_TRY(agree_on_bytes(it));
    it->product.host_memory = lap_alloc(it->product.host_bytes + 1, 1);
    status = it->product.host_memory
                 ? LAP_OK
                 : lap_error(LAP_ERR_NO_MEMORY, "no memory for a workspace of cuBLASMp");
    LAP_TRY(lap_group_agree(group, status));
    LAP_TRY(alone(it, try_memory));
    LAP_TRY(together(it, take_memory));
    return warm_up(it);
}

lap_status_t lap_cublasmp_create(lap_group_t *group, const lap_foreign_shape_t *shape,
                                 lap_foreign_t **foreign_p)
{
    lap_nccl_comm_t *nccl;
    LAP_TRY(lap_nccl_comm_get(group, &nccl));
    multiplier_t *it = lap_alloc(1, sizeof(*it));
    lap_status_t status =
        it ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for an operator of cuBLASMp");
    if (it)
        *it = (multiplier_t){.base = {run, running, destroy},
                             .product = {.shape = *shape, .ranks = (size_t)group->size},
                             .nccl = nccl};
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
