/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NVIDIA GPU, or a part of one, as a device. The parts of the device share this; so does the
 * transport over its memory.
 *
 * Whatever context the caller has current is so again after every call: lap_cuda_enter and
 * lap_cuda_leave stand around whatever calls the driver.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_H
#define LAP_DEVICE_CUDA_CUDA_H

#include <stdatomic.h>

#include "core/status.h"
#include "device/cuda/cuda_kernels.h"
#include "device/cuda/cuda_load.h"
#include "device/device.h"

#define LAP_CUDA_ENUM(name) LAP_CUDA_KERNEL_##name,
typedef enum lap_cuda_kernel {
    LAP_CUDA_KERNEL_LIST(LAP_CUDA_ENUM) LAP_CUDA_KERNELS
} lap_cuda_kernel_t;
#undef LAP_CUDA_ENUM

#define LAP_CUDA_OUTGROWN 64 /* each twice as large as the one before */
#define LAP_CUDA_PLANS 256   /* chains of GEMMs that a device remembers */

#define LAP_CUDA_STAMPS 131072      /* times on their way to the host, or stored for it */
#define LAP_CUDA_GRAPH_STAMPS 65536 /* of those, that graphs may have */

typedef struct lap_cuda_plan lap_cuda_plan_t; /* see cuda_plan.h */

/*
 * Kernels of a layer above, which has a constant of this type for each fatbin. A device finds the
 * kernels that it has loaded by the address of this constant.
 */
typedef struct lap_cuda_code {
    const unsigned char *fatbin;
    const struct lap_cuda_kernel_name {
        const char *name; /* of its function */
        size_t shared; /* the most dynamic shared memory of a block, if that is more than 48 KiB */
    } * kernels;
    size_t count;
    size_t stream_bytes; /* device memory that each stream has for them; zero at first */
} lap_cuda_code_t;

/* How a kernel is launched. */
typedef struct lap_cuda_grid {
    size_t x, y;      /* blocks; y 0 is 1 */
    unsigned threads; /* of a block */
    size_t shared;    /* dynamic shared memory of a block */
} lap_cuda_grid_t;

typedef struct lap_cuda_loaded lap_cuda_loaded_t; /* see cuda_code.c */

/* A timestamp that the GPU writes, and where the host copies it. */
typedef struct lap_cuda_time {
    uint64_t *at;   /* pinned, written by the GPU; 0 until then */
    uint64_t *to;   /* the caller's, written by the host */
    uint64_t asked; /* the host's time shortly before the launch: a lower bound of the timestamp */
    bool predicted; /* an arrival over an emulated link: the GPU writes its time in advance */
    struct lap_cuda_time *same; /* another destination of the same timestamp; it is in no list */
    struct lap_cuda_time *next;
} lap_cuda_time_t;

/* The timestamps of a graph, which each launch writes anew. */
typedef struct lap_cuda_times {
    lap_cuda_time_t *first;
    bool awaited; /* launched, and not all are written yet; then it is in a list by `next` */
    struct lap_cuda_times *next;
} lap_cuda_times_t;

struct lap_event {
    const lap_device_ops_t *ops;
    struct lap_cuda_device *device;
    CUevent event;
};

/*
 * A client of the device has streams of its own, which those of the device may wait for. Its
 * functions come first in its own struct.
 */
typedef struct lap_cuda_client {
    void (*end)(struct lap_cuda_client *client);   /* ends its work, for good */
    void (*close)(struct lap_cuda_client *client); /* before the device closes: it detaches */
    struct lap_cuda_client *next;
} lap_cuda_client_t;

/* The work that comes before pending signals in their launch. */
typedef enum lap_cuda_pending_work {
    LAP_CUDA_PENDING_NOTHING = 0,
    LAP_CUDA_PENDING_MULTICAST,
    LAP_CUDA_PENDING_SUM,
} lap_cuda_pending_work_t;

/* For CONSUME: how often each word was raised in the call, added to the totals of earlier calls. */
typedef struct lap_cuda_counted {
    uint32_t *consumed, *calls;
    const uint32_t *raised;
    size_t n;
} lap_cuda_counted_t;

/*
 * A launch that has been issued and not yet made: signals of one stream, and a copy or a sum before
 * them. It is launched before anything else is launched on any stream: see cuda_pending.c.
 */
typedef struct lap_cuda_pending {
    lap_stream_t *stream; /* NULL: nothing is pending */
    bool paced;
    lap_cuda_pending_work_t work; /* comes before the signals, but for those that it has */
    size_t blocks;                /* of that work */
    lap_cuda_multicast_t multicast;
    lap_cuda_sum_t sum;
    lap_cuda_waits_t waits; /* where nothing is pending, n is 0, as that of raises */
    lap_cuda_raises_t raises;
    lap_cuda_counted_t counted; /* what the launch counts at its end; its n is 0: nothing */
    lap_cuda_time_t *time;      /* which the last signal writes; NULL: none */
} lap_cuda_pending_t;

/* Timestamps of the GPU: see cuda_stamp.c. */
typedef struct lap_cuda_clock {
    uint64_t *stamps;       /* pinned */
    lap_cuda_time_t *times; /* one for each stamp; each is in one of these lists or in a graph: */
    lap_cuda_time_t *unused, *awaited, *in_graphs;
    size_t nin_graphs;        /* in `in_graphs` and in graphs */
    lap_cuda_times_t *graphs; /* of graphs in flight */
    int64_t offset;           /* lap_now_ns() less the GPU's clock */
} lap_cuda_clock_t;

/* GEMMs: see cuda_gemm.c, cuda_plan.c, cuda_tune.c. */
typedef struct lap_cuda_blas {
    cublasLtHandle_t handle;
    bool tunes;     /* finds the kernels of GEMMs by trial */
    bool fast_gelu; /* that of cuBLASLt */
    lap_cuda_plan_t *plans[LAP_CUDA_PLANS];
} lap_cuda_blas_t;

/* What this rank has of the GPU. */
typedef struct lap_cuda_share {
    CUgreenCtx green; /* a part of the GPU; NULL: all of it */
    int part, parts;  /* which one, of how many; 0 of 1: all of it */
    bool shares_sms;  /* another rank may run kernels on the same multiprocessors */
    int sms;          /* multiprocessors of the context */
    int urgent, lazy; /* priorities */
} lap_cuda_share_t;

/* The caller's stream that is being worked with: see cuda_caller.c. */
typedef struct lap_cuda_caller {
    CUcontext context;
    lap_event_t event; /* in that context; no event yet: NULL */
    CUdeviceptr word;  /* what waits of the caller's streams write; all of the GPU: 0, none */
} lap_cuda_caller_t;

typedef struct lap_cuda_device {
    lap_device_t base;
    lap_cuda_api_t api;
    CUdevice gpu;
    int ordinal;       /* of the GPU */
    int capability;    /* to compute: 90 is 9.0 */
    CUcontext context; /* where all of it runs: the primary one, or that of share.green */
    bool retained;     /* the primary context: */
    CUcontext primary;
    unsigned entered; /* enters without a leave yet, of the thread that owns the device */
    CUstreamCaptureMode capture_mode; /* what the thread's mode was before */
    bool capturing;                   /* a graph: timestamps that are asked for are part of it */
    bool dead;               /* its work did not end in time: nothing waits for it any more */
    void (*abandoned)(void); /* what lap_cuda_abandon does besides; NULL: nothing */
    CUlibrary library;
    CUfunction kernels[LAP_CUDA_KERNELS];
    lap_cuda_loaded_t *loaded;   /* of layers above */
    int shared_most;             /* bytes of shared memory that a block may ask for */
    lap_cuda_control_t *control; /* pinned */
    uint32_t *lost;              /* device memory: as in lap_cuda_waits_t; after it is a word for
                                  each slot of a stream, `arrived` of lap_cuda_signals_t */
    uint64_t limit_ns;           /* of waits on the GPU */
    CUstream internal;           /* for what is not on a stream of the caller */
    CUevent join_event;          /* with which streams fork and join */
    lap_stream_t *streams;       /* all of them */
    uint64_t slots_used;         /* bits: those of control->slots that streams have */
    lap_cuda_share_t share;
    lap_cuda_pending_t pending;
    lap_cuda_blas_t blas;
    lap_cuda_clock_t clock;
    lap_cuda_caller_t caller;
    lap_cuda_client_t *clients;
    /* Of the transport over this memory: what it still has to free, and how. */
    struct lap_cuda_deferred_free *deferred_frees;
    void (*run_deferred_frees)(struct lap_cuda_device *device, bool all);
} lap_cuda_device_t;

struct lap_stream {
    const lap_device_ops_t *ops;
    lap_cuda_device_t *device;
    CUstream stream;
    lap_cuda_time_t *time; /* asked for, and written by the next launch; NULL: none */
    unsigned slot;
    CUdeviceptr workspace;     /* of cuBLASLt; 0 until the first GEMM */
    unsigned small_workspaces; /* of those after it, taken by the graph that is being made */
    CUdeviceptr scratch;       /* fp32 results on their way to being finished */
    size_t scratch_bytes;
    CUdeviceptr outgrown[LAP_CUDA_OUTGROWN]; /* earlier ones: graphs may still use them */
    unsigned noutgrown;
    _Atomic int failure; /* the status of a host function of the stream that failed */
    struct lap_stream *next;
};

/* Makes a context current, and the one before it again; pop returns the status given, or its own. */
lap_status_t lap_cuda_push(const lap_cuda_device_t *device, CUcontext context);
lap_status_t lap_cuda_pop(const lap_cuda_device_t *device, lap_status_t status);

/*
 * The same with the context of the device. Enters nest: only the outermost one calls the driver, and
 * each is followed by a leave. In between this thread may make calls that a capture of the caller's
 * forbids, such as allocations.
 */
lap_status_t lap_cuda_enter(lap_cuda_device_t *device);
/* Returns the status given, or what went wrong here. */
lap_status_t lap_cuda_leave(lap_cuda_device_t *device, lap_status_t status);

/* Between enter and leave: launches a kernel after what the stream has been given. */
lap_status_t lap_cuda_launch(lap_stream_t *stream, lap_cuda_kernel_t kernel, size_t grid_x,
                             size_t grid_y, unsigned block_x, unsigned block_y, const void *args);
/* The same in any stream of the driver, and without launching what is pending first. */
lap_status_t lap_cuda_launch_raw(lap_cuda_device_t *device, CUstream stream,
                                 lap_cuda_kernel_t kernel, size_t grid_x, size_t grid_y,
                                 unsigned block_x, unsigned block_y, const void *args);
/*
 * Loads all kernels of a fatbin, unless the device has them. They are not loaded at their first
 * launch, because that might wait for kernels that run. The device unloads them when it closes.
 */
lap_status_t lap_cuda_code_load(lap_cuda_device_t *device, const lap_cuda_code_t *code);
/* Launches code->kernels[kernel], which is loaded; no blocks: nothing. Enters and leaves. */
lap_status_t lap_cuda_code_launch(lap_stream_t *stream, const lap_cuda_code_t *code, size_t kernel,
                                  lap_cuda_grid_t grid, const void *args);
/* The stream's memory for kernels that are loaded: code->stream_bytes. */
void *lap_cuda_code_memory(lap_stream_t *stream, const lap_cuda_code_t *code);
/* Between enter and leave: unloads all kernels of layers above. */
void lap_cuda_code_unload(lap_cuda_device_t *device);
/* Launches what is pending. */
lap_status_t lap_cuda_flush(lap_cuda_device_t *device);
/* Where the last pending signal of a stream is to write its time; NULL: it has none pending. */
uint64_t **lap_cuda_pending_stamp(lap_cuda_device_t *device, const lap_stream_t *stream);
/*
 * Between enter and leave: defers a sum, or a copy, so that the signals after it join its launch of
 * `blocks` blocks. A copy of the same rows as a pending one joins that.
 */
lap_status_t lap_cuda_defer_sum(lap_stream_t *stream, const lap_cuda_reduce_t *reduce,
                                size_t blocks);
lap_status_t lap_cuda_defer_copy(lap_stream_t *stream, const lap_cuda_copy_t *copy, size_t blocks);
/* Flushes, and then launches the timestamp asked for on this stream: before other work of it. */
lap_status_t lap_cuda_flush_stream(lap_stream_t *stream);

/* A kernel of the device by its number. */
lap_status_t lap_cuda_kernel_find(lap_cuda_device_t *device, lap_cuda_kernel_t kernel,
                                  CUkernel *kernel_p);

/* A stream of the driver in the context of the device. */
lap_status_t lap_cuda_own_stream(lap_cuda_device_t *device, bool urgent, CUstream *stream_p);

/* Memory of the device: as alloc and free, which enter and leave, and zeroed. */
lap_status_t lap_cuda_memory(lap_cuda_device_t *device, size_t bytes, CUdeviceptr *memory_p);

/* Between enter and leave: pinned memory of the host, zeroed. */
lap_status_t lap_cuda_pin(lap_cuda_device_t *device, size_t bytes, void **memory_p);

/* Between enter and leave: zeroes memory; says how much of it was asked for in vain. */
lap_status_t lap_cuda_clear(lap_cuda_device_t *device, CUdeviceptr memory, size_t bytes);
lap_status_t lap_cuda_no_memory(lap_cuda_device_t *device, size_t bytes);

/* The signals of a transport. Those of a stream that follow one another become one launch. */
lap_status_t lap_cuda_stream_wait(lap_stream_t *stream, const lap_cuda_wait_t *wait,
                                  bool checks_tag);
lap_status_t lap_cuda_stream_raise(lap_stream_t *stream, const lap_cuda_raise_t *raise, bool paced);
lap_status_t lap_cuda_stream_advance(lap_stream_t *stream, uint32_t *consumed, uint32_t *calls,
                                     const uint32_t *raised, size_t n);

/* The work of the device did not end in time: no call waits for it any more. */
void lap_cuda_abandon(lap_cuda_device_t *device);

void lap_cuda_client_attach(lap_cuda_device_t *device, lap_cuda_client_t *client);
void lap_cuda_client_detach(lap_cuda_device_t *device, lap_cuda_client_t *client);

/* A copy that has ended when it returns, from and to memory of this host or of the device. */
lap_status_t lap_cuda_copy_now(lap_cuda_device_t *device, const lap_copy_t *copy);

/* Between enter and leave: what waits of a caller's stream need; close frees it, and the event. */
lap_status_t lap_cuda_caller_open(lap_cuda_device_t *device);
void lap_cuda_caller_close(lap_cuda_device_t *device);

/* Writes the GPU's time into memory that the GPU reaches, in the order of the stream. */
lap_status_t lap_cuda_write_time(lap_stream_t *stream, uint64_t *at);
/* The stamp where a raise writes its arrival over an emulated link; the host copies it to *ns_p. */
lap_status_t lap_cuda_await_arrival(lap_cuda_device_t *device, uint64_t *ns_p, uint64_t **stamp_p);
/* Launches the timestamp asked for on a stream, if there is one; then none is asked for. */
lap_status_t lap_cuda_stamp_now(lap_stream_t *stream);
/* The same, but returns its place: the first pending signal writes it instead of a launch. */
uint64_t *lap_cuda_stamp_before(lap_stream_t *stream);
/* Copies timestamps that have been written to the callers' memory. */
void lap_cuda_read_stamps(lap_cuda_device_t *device);
/* After a failure: the same, and drops the others, as the callers may free their memory now. */
void lap_cuda_forget_stamps(lap_cuda_device_t *device);

/*
 * Timestamps of graphs. Those asked for after `capture` belong to the graph: `adopt` gives them to
 * it, and frees those that it had before. Each launch of the graph writes them; `launch` is called
 * before it, when no earlier launch of the graph is in flight.
 */
lap_status_t lap_cuda_times_open(lap_cuda_device_t *device);
lap_status_t lap_cuda_set_clock(lap_cuda_device_t *device);
void lap_cuda_times_capture(lap_cuda_device_t *device);
void lap_cuda_times_adopt(lap_cuda_device_t *device, lap_cuda_times_t *times);
void lap_cuda_times_drop(lap_cuda_device_t *device); /* instead: the graph was not made */
void lap_cuda_times_launch(lap_cuda_device_t *device, lap_cuda_times_t *times);
void lap_cuda_times_free(lap_cuda_device_t *device, lap_cuda_times_t *times);
void lap_cuda_plans_free(lap_cuda_device_t *device);

/* The slots of the table. */
lap_status_t lap_cuda_alloc(lap_device_t *device, size_t bytes, void **memory_p);
void lap_cuda_free(lap_device_t *device, void *memory);
lap_status_t lap_cuda_check_memory(lap_device_t *device, const char *name, const void *memory);
lap_status_t lap_cuda_alloc_shared(lap_device_t *device, size_t bytes, void **memory_p);
void lap_cuda_free_shared(lap_device_t *device, void *memory);
lap_status_t lap_cuda_stream_create(lap_device_t *device, bool urgent, lap_stream_t **stream_p);
void lap_cuda_stream_destroy(lap_stream_t *stream);
lap_status_t lap_cuda_stream_call(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg,
                                  size_t bytes);
lap_status_t lap_cuda_stream_synchronize(lap_stream_t *stream);
lap_status_t lap_cuda_event_create(lap_device_t *device, lap_event_t **event_p);
void lap_cuda_event_destroy(lap_event_t *event);
lap_status_t lap_cuda_event_record(lap_event_t *event, lap_stream_t *stream);
lap_status_t lap_cuda_stream_wait_event(lap_stream_t *stream, lap_event_t *event);
lap_status_t lap_cuda_event_synchronize(lap_event_t *event, const lap_watch_t *watch);
int lap_cuda_gpu(lap_device_t *device);
bool lap_cuda_stall(lap_stream_t *stream, lap_stall_t *stall_p);
void lap_cuda_abort_waits(lap_device_t *device);
bool lap_cuda_timed_out(lap_device_t *device, lap_stall_t *stall_p);
void lap_cuda_release(lap_device_t *device, lap_event_t *until);
lap_status_t lap_cuda_stamp(lap_stream_t *stream, uint64_t *ns_p);
lap_status_t lap_cuda_copy(lap_stream_t *stream, const lap_copy_t *copy);
lap_status_t lap_cuda_reduce(lap_stream_t *stream, const lap_reduce_t *reduce);
lap_status_t lap_cuda_column_sums(lap_stream_t *stream, const lap_column_sums_t *sums);
lap_status_t lap_cuda_cast(lap_stream_t *stream, const lap_cast_t *cast);
lap_status_t lap_cuda_transpose(lap_stream_t *stream, const lap_transpose_t *transpose);
/* The same, with zeros after the rows of src: the rows of dst get `padded` bytes. */
lap_status_t lap_cuda_transpose_padded(lap_stream_t *stream, const lap_transpose_t *transpose,
                                       size_t padded);
lap_status_t lap_cuda_gemm(lap_stream_t *stream, const lap_gemm_t *gemm);
lap_status_t lap_cuda_gemm_prepare(lap_stream_t *stream, const lap_gemm_t *gemm, bool tries);
lap_status_t lap_cuda_set(lap_stream_t *stream, float *memory, float value);
lap_status_t lap_cuda_fill(lap_stream_t *stream, lap_dtype_t dtype, void *memory, size_t count,
                           uint64_t seed);
lap_status_t lap_cuda_graph_begin(lap_stream_t *const *streams, size_t count);
lap_status_t lap_cuda_graph_end(lap_stream_t *const *streams, size_t count, lap_graph_t **graph_p);
lap_status_t lap_cuda_graph_launch(lap_graph_t *graph, lap_stream_t *stream);
void lap_cuda_graph_destroy(lap_graph_t *graph);
lap_status_t lap_cuda_caller_begin(lap_device_t *device, void *caller, bool *capturing_p);
void lap_cuda_caller_end(lap_device_t *device);
lap_status_t lap_cuda_caller_record(lap_device_t *device, void *caller, lap_event_t **event_p);
lap_status_t lap_cuda_caller_wait_event(void *caller, lap_event_t *event);
bool lap_cuda_is_capturing(lap_stream_t *stream);

/* Between enter and leave: see cuda_clear.c. Changes a graph that has not been made executable yet. */
lap_status_t lap_cuda_clear_at_once(lap_cuda_device_t *device, CUgraph graph);

/* lap_finish_t for a kernel; `aux` is of the first row. */
lap_cuda_finish_t lap_cuda_finish_of(const lap_finish_t *finish, void *aux);

#endif
