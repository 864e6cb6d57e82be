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
 * Kernels of a layer above, which has a constant of this type for each fatbin. Its address is what
 * a device knows them by once it has loaded them.
 */
typedef struct lap_cuda_code {
    const unsigned char *fatbin;
    const struct lap_cuda_entry {
        const char *name;
        size_t shared; /* the most dynamic shared memory of a block, if that is more than 48 KiB */
    } * entries;
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

/* A time that the GPU writes and that belongs to someone. */
typedef struct lap_cuda_time {
    uint64_t *at; /* pinned; 0 until it has come */
    uint64_t *to;
    uint64_t asked; /* when the host launched it, or was about to: not later than it came */
    bool foretold;  /* of an arrival over a modelled link: the GPU writes it before it is */
    struct lap_cuda_time *same; /* which belongs to someone else, and is in no list */
    struct lap_cuda_time *next;
} lap_cuda_time_t;

/* Those that come whenever a graph runs. */
typedef struct lap_cuda_times {
    lap_cuda_time_t *first;
    bool awaited; /* launched, and not all have come: */
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
    void (*end)(struct lap_cuda_client *client);   /* ends its work; it is of no use any more */
    void (*close)(struct lap_cuda_client *client); /* before the device is closed: it leaves */
    struct lap_cuda_client *next;
} lap_cuda_client_t;

/* Multiprocessors for signals, see cuda_signal_ctx.c; no green context: there are none. */
typedef struct lap_cuda_signal_ctx {
    CUgreenCtx green;
    CUcontext context;
    CUfunction kernels[LAP_CUDA_KERNELS]; /* those that are signals */
    CUevent joint;                        /* as that of the device */
} lap_cuda_signal_ctx_t;

/* The work that held signals follow. */
typedef enum lap_cuda_held_work {
    LAP_CUDA_HELD_NOTHING = 0,
    LAP_CUDA_HELD_SPREAD,
    LAP_CUDA_HELD_SUM,
} lap_cuda_held_work_t;

/* The signals of a call that are over: so many of each word. */
typedef struct lap_cuda_counted {
    uint32_t *consumed, *calls;
    const uint32_t *raised;
    size_t n;
} lap_cuda_counted_t;

/*
 * Signals that were issued one after the other to one stream wait here to be launched as one, before
 * anything else is launched on any stream: see cuda_held.c.
 */
typedef struct lap_cuda_held {
    lap_stream_t *stream; /* NULL: none are held */
    bool paced, no_gemm_in_flight;
    lap_cuda_held_work_t work; /* comes before the signals, but for those that it has */
    size_t blocks;             /* of that work */
    lap_cuda_spread_t spread;
    lap_cuda_sum_t sum;
    lap_cuda_waits_t waits; /* none of them held back: its n is 0, and that of raises, too */
    lap_cuda_raises_t raises;
    lap_cuda_counted_t counted; /* by what is being launched, if its n is not 0 */
    lap_cuda_time_t *time;      /* which the last of them writes; NULL: none */
} lap_cuda_held_t;

/* Times on the GPU: see cuda_stamp.c. */
typedef struct lap_cuda_clock {
    uint64_t *stamps;       /* pinned */
    lap_cuda_time_t *times; /* one for each, in one of these lists or in a graph: */
    lap_cuda_time_t *unused, *awaited, *in_graphs;
    size_t nin_graphs;        /* in `in_graphs` and in graphs */
    lap_cuda_times_t *graphs; /* those that have been launched with times */
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
    bool crowded;     /* another rank may run kernels on the same multiprocessors */
    int sms;          /* multiprocessors of the context */
    int urgent, lazy; /* priorities */
} lap_cuda_share_t;

/* The caller's stream that is being worked with: see cuda_caller.c. */
typedef struct lap_cuda_caller {
    CUcontext context;
    lap_event_t event; /* in that context; no event yet: NULL */
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
    unsigned entered; /* so often, by the thread whose device it is: it is current */
    CUstreamCaptureMode capture_mode; /* what the thread's mode was before */
    bool capturing;                   /* a graph: times that are asked for are in it */
    bool dead; /* it did not end its work when it had to: nothing waits for it any more */
    CUlibrary library;
    CUfunction kernels[LAP_CUDA_KERNELS];
    lap_cuda_loaded_t *loaded; /* of layers above */
    int shared_most;           /* bytes of shared memory that a block may ask for */
    lap_cuda_board_t *board;   /* pinned */
    uint32_t *lost;            /* device memory: as in lap_cuda_waits_t; after it is a word for
                                  each slot of a stream, `arrived` of lap_cuda_signals_t */
    uint64_t limit_ns;         /* of waits on the GPU */
    CUstream side;             /* for what is not on a stream of the caller */
    CUevent joint;             /* with which streams fork and join */
    lap_stream_t *streams;     /* all of them */
    uint64_t slots_used;       /* bits: those of board->slots that streams have */
    lap_cuda_share_t share;
    lap_cuda_signal_ctx_t signal_ctx;
    lap_cuda_held_t held;
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
    CUstream signal_stream; /* its companion for signals; NULL: none */
    bool signals_apart; /* the companion was given something that the stream does not wait for, */
    bool noted;         /* or only times */
    lap_cuda_time_t *time; /* asked for, and launched with what comes next; NULL: none */
    unsigned slot;
    CUdeviceptr workspace;     /* of cuBLASLt; 0 until the first GEMM */
    unsigned small_workspaces; /* of those after it, taken by the graph that is being made */
    CUdeviceptr scratch;       /* fp32 results on their way to being finished */
    size_t scratch_bytes;
    CUdeviceptr outgrown[LAP_CUDA_OUTGROWN]; /* earlier ones: graphs may still use them */
    unsigned noutgrown;
    _Atomic int failure; /* a status: of a function that the stream called */
    struct lap_stream *next;
};

/* Makes a context current, and the one before it again; pop returns the status given, or its own. */
lap_status_t lap_cuda_push(const lap_cuda_device_t *device, CUcontext context);
lap_status_t lap_cuda_pop(const lap_cuda_device_t *device, lap_status_t status);

/*
 * The same with the context of the device, once for rows of calls inside one another; each enter is
 * followed by a leave. In between this thread may do what captures of the caller's forbid.
 */
lap_status_t lap_cuda_enter(lap_cuda_device_t *device);
/* Returns the status given, or what went wrong here. */
lap_status_t lap_cuda_leave(lap_cuda_device_t *device, lap_status_t status);

/* Between enter and leave: launches a kernel after what the stream has been given. */
lap_status_t lap_cuda_launch(lap_stream_t *stream, lap_cuda_kernel_t kernel, size_t grid_x,
                             size_t grid_y, unsigned block_x, unsigned block_y, const void *args);
/* The same in any stream of the driver, without the signals that are held back. */
lap_status_t lap_cuda_launch_raw(lap_cuda_device_t *device, CUstream stream,
                                 lap_cuda_kernel_t kernel, size_t grid_x, size_t grid_y,
                                 unsigned block_x, unsigned block_y, const void *args);
/*
 * Loads the kernels, unless the device has them: all of them, and now, for to load one when it is
 * first launched might mean to wait for those that run. They end with the device.
 */
lap_status_t lap_cuda_code_load(lap_cuda_device_t *device, const lap_cuda_code_t *code);
/* Launches entry `kernel` of kernels that are loaded; no blocks: nothing. Enters and leaves. */
lap_status_t lap_cuda_code_launch(lap_stream_t *stream, const lap_cuda_code_t *code, size_t kernel,
                                  lap_cuda_grid_t grid, const void *args);
/* The stream's memory for kernels that are loaded: code->stream_bytes. */
void *lap_cuda_code_memory(lap_stream_t *stream, const lap_cuda_code_t *code);
/* Between enter and leave: unloads all kernels of layers above. */
void lap_cuda_code_unload(lap_cuda_device_t *device);
/* The same with a signal, a kernel of one block, in the stream's companion where it has one. */
lap_status_t lap_cuda_launch_in_signal_ctx(lap_stream_t *stream, lap_cuda_kernel_t kernel,
                                           unsigned threads, const void *args);
/* The stream goes on when its companion has come to this point. */
lap_status_t lap_cuda_join_signals(lap_stream_t *stream);
/* Launches what is held back. */
lap_status_t lap_cuda_flush(lap_cuda_device_t *device);
/* Where the last signal that is held back for a stream writes a time; NULL: there is none. */
uint64_t **lap_cuda_held_place(lap_cuda_device_t *device, const lap_stream_t *stream);
/*
 * Between enter and leave: holds a sum back, or a copy, which goes with earlier ones of the same
 * rows, to be launched by so many blocks with the signals that follow.
 */
lap_status_t lap_cuda_hold_sum(lap_stream_t *stream, const lap_cuda_reduce_t *reduce,
                               size_t blocks);
lap_status_t lap_cuda_hold_copy(lap_stream_t *stream, const lap_cuda_copy_t *copy, size_t blocks);
/* The same, and the time that was asked for on this stream: before it is given something. */
lap_status_t lap_cuda_settle(lap_stream_t *stream);

/* A kernel of the device by its number. */
lap_status_t lap_cuda_kernel_find(lap_cuda_device_t *device, lap_cuda_kernel_t kernel,
                                  CUkernel *kernel_p);

/*
 * The multiprocessors that no part of the GPU has: chosen with the part, opened when the kernels
 * have been loaded; the companion of a stream. Where that fails there are none.
 */
void lap_cuda_signal_ctx_choose(lap_cuda_device_t *device, CUdevResource *rest);
void lap_cuda_signal_ctx_open(lap_cuda_device_t *device);
void lap_cuda_signal_ctx_close(lap_cuda_device_t *device);
void lap_cuda_signal_ctx_stream(lap_cuda_device_t *device, CUstream *stream_p);

/* A stream of the driver in the context of the device. */
lap_status_t lap_cuda_own_stream(lap_cuda_device_t *device, bool urgent, CUstream *stream_p);

/* Memory of the device: as alloc and free, which enter and leave, and zeroed. */
lap_status_t lap_cuda_memory(lap_cuda_device_t *device, size_t bytes, CUdeviceptr *memory_p);

/* Between enter and leave: pinned memory of the host, zeroed. */
lap_status_t lap_cuda_pin(lap_cuda_device_t *device, size_t bytes, void **memory_p);

/* Between enter and leave: zeroes memory; says how much of it was asked for in vain. */
lap_status_t lap_cuda_clear(lap_cuda_device_t *device, CUdeviceptr memory, size_t bytes);
lap_status_t lap_cuda_no_memory(lap_cuda_device_t *device, size_t bytes);

/*
 * The signals of a transport. Those of a stream that follow one another become one launch.
 * `no_gemm_in_flight`: no GEMM can delay their kernel.
 */
lap_status_t lap_cuda_stream_wait(lap_stream_t *stream, const lap_cuda_wait_t *wait,
                                  bool checks_tag, bool no_gemm_in_flight);
lap_status_t lap_cuda_stream_raise(lap_stream_t *stream, const lap_cuda_raise_t *raise, bool paced,
                                   bool no_gemm_in_flight);
lap_status_t lap_cuda_stream_advance(lap_stream_t *stream, uint32_t *consumed, uint32_t *calls,
                                     const uint32_t *raised, size_t n);

/* It did not end its work when it had to: nothing waits for it any more, nor does the process's exit. */
void lap_cuda_give_up(lap_cuda_device_t *device);

void lap_cuda_client_attach(lap_cuda_device_t *device, lap_cuda_client_t *client);
void lap_cuda_client_detach(lap_cuda_device_t *device, lap_cuda_client_t *client);

/* A copy that has ended when it returns, from and to memory of this host or of the device. */
lap_status_t lap_cuda_copy_now(lap_cuda_device_t *device, const lap_copy_t *copy);

/* Destroys the event on the caller's stream, if there is one. */
void lap_cuda_caller_close(lap_cuda_device_t *device);

/* Writes the GPU's time, in the order of the stream, into memory that the GPU reaches. */
lap_status_t lap_cuda_note(lap_stream_t *stream, uint64_t *at);
/* Where a raise is to write when it arrives over a modelled link: that belongs into *ns_p. */
lap_status_t lap_cuda_await_arrival(lap_cuda_device_t *device, uint64_t *ns_p, uint64_t **stamp_p);
/* Launches the time that was asked for on a stream, if there is one, and lets it forget it. */
lap_status_t lap_cuda_stamp_now(lap_stream_t *stream);
/* The same for the first of signals that are held back, which writes it instead. */
uint64_t *lap_cuda_stamp_before(lap_stream_t *stream);
/* Brings the times that have come to where they belong. */
void lap_cuda_read_stamps(lap_cuda_device_t *device);
/* After a failure: the same, and forgets the others, whose memory may end now. */
void lap_cuda_forget_stamps(lap_cuda_device_t *device);

/*
 * The times of graphs. Those that are asked for from `keep` on belong to a graph: those that it had
 * before are given back. They come after each launch; `launch` is called before it, when none of an
 * earlier one is on its way any more.
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
void lap_cuda_let_go(lap_device_t *device);
bool lap_cuda_gave_up(lap_device_t *device, lap_stall_t *stall_p);
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
lap_status_t lap_cuda_caller_begin(lap_device_t *device, void *caller, bool *keeps_p);
void lap_cuda_caller_end(lap_device_t *device);
lap_status_t lap_cuda_caller_record(lap_device_t *device, void *caller, lap_event_t **event_p);
lap_status_t lap_cuda_caller_wait_event(void *caller, lap_event_t *event);
bool lap_cuda_is_capturing(lap_stream_t *stream);

/* Between enter and leave: see cuda_clear.c. Changes a graph that has not been made executable yet. */
lap_status_t lap_cuda_clear_at_once(lap_cuda_device_t *device, CUgraph graph);

/* lap_finish_t for a kernel; `aux` is of the first row. */
lap_cuda_finish_t lap_cuda_finish_of(const lap_finish_t *finish, void *aux);

#endif
