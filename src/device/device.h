/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device: memory, streams, events, GEMM and the numeric kernels, as a table that each device
 * fills. Everything with a stream argument is issued in the order of the stream and returns at
 * once. What a stream was given runs in order; after a failure it skips what follows until
 * lap_stream_synchronize has reported the failure.
 */
#ifndef LAP_DEVICE_DEVICE_H
#define LAP_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/op.h>

#include "core/signal.h"
#include "device/facts.h"

typedef struct lap_device lap_device_t;
typedef struct lap_stream lap_stream_t;
typedef struct lap_event lap_event_t;
typedef struct lap_graph lap_graph_t;
typedef struct lap_device_ops lap_device_ops_t;

/* What a device is opened for. */
typedef struct lap_device_options {
    int threads;    /* of one GEMM; 0 leaves the library's setting as it is */
    int rank, size; /* of this rank among those of its host, which may share devices; size 0: 1 */
    uint64_t timeout_ns; /* how long a wait on a stream of the device may last; 0: for ever */
    bool crowded; /* ranks of the host are more than its cores: a wait that spins takes another's */
} lap_device_options_t;

/*
 * A function that runs on a stream, in its order. `arg` is the stream's copy of what
 * lap_stream_call was given.
 */
typedef lap_status_t (*lap_stream_fn_t)(void *arg);

/*
 * When something ran, in lap_now_ns() time. `ready` is when it began to wait for what it needed;
 * else as begin.
 */
typedef struct lap_span {
    uint64_t ready, begin, end;
} lap_span_t;

/*
 * For how many nanoseconds the thread of a stream was ready to run and had no core: before `ready`
 * of a span, since it was asked last; and between begin and end. 0 where nobody tells.
 */
typedef struct lap_delays {
    uint64_t before, running;
} lap_delays_t;

/* Copies `rows` rows of `row_bytes` bytes. */
typedef struct lap_copy {
    void *dst;
    const void *src;
    size_t rows, row_bytes, dst_stride, src_stride; /* strides in bytes */
    /*
     * Of a GPU: the multiprocessors that do it; 0: as its driver likes, which can reach any
     * memory. The others have no such choice.
     */
    int sms;
    /*
     * A device that can may do it later, but before anything else than copies of the same rows that
     * are so, too, and signals: at once with them. Copies that go together have no order.
     */
    bool together;
} lap_copy_t;

/*
 * What becomes of a result x, which is fp32 or better, on its way to an element of d:
 *
 *   x += beta * scale * (the element as it was);       only when beta is not 0
 *   x += bias of the column;                           LAP_EPILOGUE_BIAS
 *   aux = x, if aux is not NULL; x = gelu(x);          LAP_EPILOGUE_GELU
 *   x *= gelu'(aux);                                   LAP_EPILOGUE_DGELU
 *   the element = x / scale, rounded once to its type.
 */
typedef struct lap_finish {
    lap_epilogue_t epilogue; /* LAP_EPILOGUE_BIAS_GRAD, a step of its own, does nothing here */
    float beta;
    float scale; /* 1 but for FP8 */
    lap_dtype_t bias_dtype, aux_dtype;
    const void *bias;  /* of the first column of d */
    size_t aux_stride; /* bytes */
} lap_finish_t;

/*
 * dst = sum of srcs[0..nsrc) in that order, each times its scale, in fp32, then finished. Each is
 * [rows, cols]; strides in bytes, multiples of the element's size.
 */
typedef struct lap_reduce {
    lap_dtype_t from, to; /* types of srcs and of dst */
    void *dst;
    size_t dst_stride;
    const void *const *srcs; /* must live until the reduction has run */
    const size_t *src_strides;
    const float *const *scales; /* NULL: all 1; read when the reduction runs */
    size_t nsrc;
    size_t rows, cols;
    const lap_finish_t *finish; /* NULL: only rounded; must live until it has run */
    void *aux;                  /* [rows, cols]; as in lap_finish_t */
    bool together;              /* as in lap_copy_t: with the signals that follow */
} lap_reduce_t;

/*
 * dst[c] = scale * *scaled_by times the sum over rows of src[.][c], summed in double in the order of
 * rows.
 */
typedef struct lap_column_sums {
    lap_dtype_t from, to;
    const void *src; /* [rows, cols] */
    size_t src_stride, rows, cols;
    float scale;
    const float *scaled_by; /* NULL: 1; read when the sum runs */
    void *dst;              /* [cols] */
} lap_column_sums_t;

/*
 * dst = src / *scale, divided in fp32 and rounded once to its type, and *amax at least as large as
 * all |src|: for the scale of the next FP8 matrix. What is not a number counts as larger than all
 * that are.
 */
typedef struct lap_cast {
    lap_dtype_t from, to;
    const void *src; /* [rows, cols] */
    void *dst;
    size_t src_stride, dst_stride, rows, cols; /* strides in bytes, multiples of an element's */
    const float *scale;                        /* NULL: 1; read when the cast runs */
    float *amax; /* NULL: not asked for; at least 0 before, and nobody else's meanwhile */
} lap_cast_t;

/* dst[j][i] = src[i][j], elements of one byte: for a GEMM that takes FP8 matrices one way only. */
typedef struct lap_transpose {
    const void *src; /* [rows, cols] */
    void *dst;       /* [cols, rows] */
    size_t rows, cols, src_stride, dst_stride;
} lap_transpose_t;

/*
 * What a stream of a device that waits for signals by itself is held up by. `buffer` and `reason`
 * are what the wait was issued with.
 */
typedef struct lap_stall {
    void *buffer;
    const void *reason;
    int peer;
    uint32_t signal;
    uint32_t count, come; /* in this call: raises that it waits for, and those that have come */
    uint32_t number;      /* of the wait on its stream */
    bool mismatch;        /* the signal came with the tag of another call; it waits for ever */
} lap_stall_t;

/* Whether all signals are there and an emulated link holds them back: no peer is missed then. */
static inline bool lap_stall_has_come(const lap_stall_t *stall)
{
    return !stall->mismatch && (int32_t)(stall->come - stall->count) >= 0;
}

/*
 * A block of rows of a GEMM: x = scale * b_scale * a_scale * op(a) op(b) for `rows` rows of d, summed in fp32
 * or better, then finished. With a wait it starts only when the signal has come; with a raise it
 * signals when it is done. A device whose kernel can wait and raise by itself uses `bank` and
 * `word` directly.
 */
typedef struct lap_gemm_block {
    const void *a; /* [rows, k]; transposed: [k, rows] */
    void *d;       /* [rows, n] */
    size_t rows;
    size_t a_stride, d_stride; /* bytes, multiples of the element's size */
    const float *a_scale;      /* NULL: 1; read when the block runs, after its wait */
    void *aux;                 /* [rows, n]; as in lap_finish_t */
    bool has_wait;
    lap_bank_wait_t wait; /* word of `wait_bank` */
    lap_span_t *span;     /* when not NULL: filled in when the block runs, */
    lap_delays_t *delays; /* and so is this, by devices whose GEMMs signal */
    void *raise_arg;      /* when not NULL: raise(context, raise_arg) when the block is done */
    bool done;            /* the device's own mark while it runs blocks in any order */
} lap_gemm_block_t;

typedef struct lap_gemm {
    lap_dtype_t a_dtype, b_dtype, d_dtype;
    bool a_transposed; /* a is [k, rows]: op(a) = a^T */
    bool b_plain;      /* b is [k, n]: op(b) = b; else b is [n, k]: op(b) = b^T */
    float scale;
    size_t n, k; /* k may be 0: then x = 0 */
    const void *b;
    size_t b_stride;
    const float *b_scale;       /* NULL: 1; as a_scale of a block */
    const lap_finish_t *finish; /* NULL: only rounded; must live until the GEMM has run */
    lap_gemm_block_t *blocks;   /* must live until the GEMM has run */
    size_t nblocks;
    bool any_order;           /* blocks run as their signals come; else in the order given */
    lap_bank_t *wait_bank;    /* this rank's signals; NULL when no block waits */
    const lap_watch_t *watch; /* for waits */
    /* Turns a wait that failed into a status with its sentence. */
    lap_status_t (*wait_failed)(void *context, size_t block, lap_status_t status);
    /* After a wait that succeeded, before the block reads anything: a last look at who sent it. */
    lap_status_t (*wait_passed)(void *context, size_t block);
    lap_status_t (*raise)(void *context, void *raise_arg);
    void *context;
    uint64_t shuffle; /* not 0: any_order takes a random block of those that are ready; for tests */
    int spare_sms;    /* of a GPU: multiprocessors to be left free for something else */
} lap_gemm_t;

struct lap_device_ops {
    const char *name;
    const char *summary; /* a line for `lap info` */
    /* The transport of its memory inside a host; NULL: it is memory of the host. */
    const char *transport;
    lap_device_facts_t facts; /* that decide what it is issued */

    /*
     * What a call costs is found by making it: between what such a device does at the same time
     * and what that does to it, no model of ours is good enough to choose a method.
     */
    bool tries_methods;

    /* Streams wait for signals by themselves, in words of the device. */
    bool waits_by_itself;
    /* (optional) It is of the host, and guards what it computes: see host/host_guard.h. */
    bool guards;
    /* Takes streams of the caller's, by their handles: the slots caller_... are there. */
    bool takes_streams;

    /*
     * Callers test no slot for NULL: what a device has no use for is one of those of no_slots.h, and
     * a fact or a bool above says which slots are there.
     */

    /* Why the device cannot be opened on this machine. */
    lap_status_t (*probe)(void);
    lap_status_t (*open)(const lap_device_options_t *options, lap_device_t **device_p);
    void (*close)(lap_device_t *device);
    /*
     * Between them the calling thread makes a row of the calls that follow
     * here: what each needs for itself is then done once. Rows may be parts of rows.
     */
    lap_status_t (*calls_begin)(lap_device_t *device);
    void (*calls_end)(lap_device_t *device);
    /*
     * LAP_ERR_UNSUPPORTED says what the device would need to multiply matrices of these types.
     */
    lap_status_t (*gemm_check)(lap_device_t *device, lap_dtype_t a, lap_dtype_t b);
    /* The cores that one GEMM keeps busy. */
    int (*gemm_threads)(lap_device_t *device);

    lap_status_t (*alloc)(lap_device_t *device, size_t bytes, void **memory_p);
    void (*free)(lap_device_t *device, void *memory);
    /*
     * LAP_ERR_INVALID, with the name in the sentence, when the device's streams cannot use memory at
     * this address.
     */
    lap_status_t (*check_memory)(lap_device_t *device, const char *name, const void *memory);
    /* Memory that the caller and the streams read and write alike. A few bytes, zeroed. */
    lap_status_t (*alloc_shared)(lap_device_t *device, size_t bytes, void **memory_p);
    void (*free_shared)(lap_device_t *device, void *memory);

    /* What an urgent stream is given comes before what the others are, where the device can. */
    lap_status_t (*stream_create)(lap_device_t *device, bool urgent, lap_stream_t **stream_p);
    void (*stream_destroy)(lap_stream_t *stream); /* after what it was given has run */
    /* Runs fn with a copy of the `bytes` bytes of arg (at most LAP_STREAM_ARG_BYTES). */
    lap_status_t (*stream_call)(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg,
                                size_t bytes);
    /*
     * Waits until all has run. Returns the first failure, with its sentence, and makes the stream
     * usable again.
     */
    lap_status_t (*stream_synchronize)(lap_stream_t *stream);

    lap_status_t (*event_create)(lap_device_t *device, lap_event_t **event_p);
    void (*event_destroy)(lap_event_t *event);
    /* The event happens when the stream gets here. */
    lap_status_t (*event_record)(lap_event_t *event, lap_stream_t *stream);
    /*
     * The stream goes on when the latest record of the event issued so far has happened; it fails
     * if that stream did.
     */
    lap_status_t (*stream_wait_event)(lap_stream_t *stream, lap_event_t *event);
    /*
     * Blocks until the latest record issued so far has happened; returns what its stream failed of.
     * A device whose streams wait for signals by themselves calls the look of the watch, which may
     * be NULL, every LAP_WATCH_NS: what it fails of is returned at once, and the caller ends the
     * waits with `release`.
     */
    lap_status_t (*event_synchronize)(lap_event_t *event, const lap_watch_t *watch);
    /*
     * (this and the next three: of a device that waits_by_itself) Whether a stream waits for a signal
     * now, or found another call's. For any thread.
     */
    bool (*stall)(lap_stream_t *stream, lap_stall_t *stall_p);
    /* For any thread: ends all waits of the device. Nothing is raised after an aborted wait. */
    void (*abort_waits)(lap_device_t *device);
    /*
     * Whether a wait has lasted longer than the device's limit, and has ended all waits of the device
     * without the host; which one. Nothing is raised then until `release`.
     */
    bool (*timed_out)(lap_device_t *device, lap_stall_t *stall_p);
    /*
     * Ends all waits of the device; returns when its streams have ended and the event, if not
     * NULL, has happened, and clears stalls. What was issued after the waits does run, on incomplete
     * data: so the caller breaks the group before, and no peer takes it for a result.
     */
    void (*release)(lap_device_t *device, lap_event_t *until);
    /* Writes the time at which the stream gets here. */
    lap_status_t (*stamp)(lap_stream_t *stream, uint64_t *ns_p);
    /*
     * Writes for how long the stream has had no core since it wrote that last, where that is known;
     * see lap_delays_t.
     */
    lap_status_t (*stamp_delay)(lap_stream_t *stream, uint64_t *ns_p);

    lap_status_t (*copy)(lap_stream_t *stream, const lap_copy_t *copy);
    lap_status_t (*reduce)(lap_stream_t *stream, const lap_reduce_t *reduce);
    lap_status_t (*column_sums)(lap_stream_t *stream, const lap_column_sums_t *sums);
    lap_status_t (*cast)(lap_stream_t *stream, const lap_cast_t *cast);
    lap_status_t (*transpose)(lap_stream_t *stream, const lap_transpose_t *transpose);
    lap_status_t (*gemm)(lap_stream_t *stream, const lap_gemm_t *gemm);
    /*
     * Finds a way to do a GEMM and keeps to it: later GEMMs that are like this one in sizes, types,
     * strides and alignment are done in that way. If it `tries`, it is the fastest, found by trial on
     * memory of its own; else one that the device knows. Makes
     * whatever else such a GEMM needs on this stream, so that to issue it blocks on nothing.
     * Blocks until it is found; reads and writes none of the memory, which need not be there.
     */
    lap_status_t (*gemm_prepare)(lap_stream_t *stream, const lap_gemm_t *gemm, bool tries);
    /* (where memory is not the host's) Writes a number into memory of `alloc`, in stream order. */
    lap_status_t (*set)(lap_stream_t *stream, float *memory, float value);
    /* Numbers of [-1, 1) that look random, the same for the same seed; for measurements. */
    lap_status_t (*fill)(lap_stream_t *stream, lap_dtype_t dtype, void *memory, size_t count,
                         uint64_t seed);

    /*
     * (where facts.graphs) What is issued to the streams between begin and end does not run but
     * is captured: a launch has ended when its first stream has. A graph that is there
     * already (*graph_p) is changed in place where that is possible. The memory that was given must
     * live as long as the graph. After a failure nothing is being captured any more.
     */
    lap_status_t (*graph_begin)(lap_stream_t *const *streams, size_t count);
    lap_status_t (*graph_end)(lap_stream_t *const *streams, size_t count, lap_graph_t **graph_p);
    lap_status_t (*graph_launch)(lap_graph_t *graph, lap_stream_t *stream);
    void (*graph_destroy)(lap_graph_t *graph);

    /* Which GPU it is, by its number, for callers that use it themselves; -1: none. */
    int (*gpu)(lap_device_t *device);
    /*
     * (where it takes_streams) Streams of the device that are the caller's, by their handles. What
     * the calling thread does with one is between begin and end. begin writes whether the caller
     * captures a graph from that stream. Then whatever waits for an event of `caller_record` becomes
     * part of the graph, until the capture ends.
     */
    lap_status_t (*caller_begin)(lap_device_t *device, void *caller, bool *capturing_p);
    void (*caller_end)(lap_device_t *device);
    /* An event of the device's own that happens when the stream gets here; good until the next. */
    lap_status_t (*caller_record)(lap_device_t *device, void *caller, lap_event_t **event_p);
    /* The caller's stream goes on when the event has happened. */
    lap_status_t (*caller_wait_event)(void *caller, lap_event_t *event);
    /* Whether what the stream is given now is part of a graph that the caller is keeping. */
    bool (*is_capturing)(lap_stream_t *stream);
};

#define LAP_STREAM_ARG_BYTES 320

/* A copy in the calling thread, between memories of this host. */
void lap_copy_now(const lap_copy_t *copy);

/* Every device, stream and event starts with its table. */
struct lap_device {
    const lap_device_ops_t *ops;
    unsigned queues;  /* that its streams share, see facts.shares_queues; 0: each has one */
    uint64_t spin_ns; /* that a wait for its work may spin before it sleeps: lap_device_spin_ns */
};

/*
 * `most`, or less where LAP_SPIN_US says so; 0 where not every rank has a core for itself: what spins
 * there keeps another rank from its work.
 */
uint64_t lap_device_spin_ns(const lap_device_options_t *options, uint64_t most);

/* LAP_ERR_UNSUPPORTED for a value that is no type; `what` is the sentence's first word. */
lap_status_t lap_device_check_dtype(const char *what, lap_dtype_t dtype);

/* The devices of this build, in the order in which they are listed; NULL past the last one. */
const lap_device_ops_t *lap_device_at(size_t index);

/*
 * The device of a world, opened when first asked for; it ends with the world. Local.
 */
lap_status_t lap_device_of(struct lap_world *world, lap_device_t **device_p);

/* The device of a name. LAP_ERR_INVALID names the devices there are. */
lap_status_t lap_device_find(const char *name, const lap_device_ops_t **ops_p);

#endif
