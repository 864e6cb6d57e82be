/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What host code and kernels have in common: the arguments of each kernel, one structure by value,
 * and the memory that both sides of a wait look at. Plain C that is C++ as well.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_KERNELS_H
#define LAP_DEVICE_CUDA_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* The kernels, by the names of their functions in kernels.cu. */
#define LAP_CUDA_KERNEL_LIST(X)                                                                    \
    X(wait)                                                                                        \
    X(raise)                                                                                       \
    X(advance)                                                                                     \
    X(signal)                                                                                      \
    X(stamp)                                                                                       \
    X(multicast)                                                                                   \
    X(sum)                                                                                         \
    X(clear) X(reduce) X(column_sums) X(multiply) X(fill) X(copy) X(cast) X(transpose)

#define LAP_CUDA_BATCH 32          /* waits or raises of one launch: a thread of its warp each */
#define LAP_CUDA_FEW 16            /* waits, and raises, of a launch that has both, or other work */
#define LAP_CUDA_COUNTED 64        /* words that such a launch may count the signals of */
#define LAP_CUDA_CLEAR 64          /* words of one launch, */
#define LAP_CUDA_CLEARS 8          /* and of a launch that has signals */
#define LAP_CUDA_ADVANCE 256       /* words of one launch */
#define LAP_CUDA_SOURCES 64        /* of a reduction */
#define LAP_CUDA_SLOTS 64          /* streams of a device */
#define LAP_CUDA_VECTOR 8          /* elements that a thread takes at a time where it can */
#define LAP_CUDA_THREADS 256       /* of a block of the arithmetic that needs no other number */
#define LAP_CUDA_REDUCE_BLOCKS 3   /* blocks of lap_reduce that a multiprocessor has at a time */
#define LAP_CUDA_COPY_THREADS 1024 /* threads of a block of lap_copy: most of a multiprocessor */
#define LAP_CUDA_COPIES 16         /* that lap_multicast makes of what it reads once, */
#define LAP_CUDA_MULTICAST_THREADS 512 /* and threads of a block of it: two to a multiprocessor */
#define LAP_CUDA_PIECE 16384           /* bytes of a row that a warp of lap_copy moves in one go */
#define LAP_CUDA_STRIP 2048         /* elements of a row that a warp of lap_cast takes in one go */
#define LAP_CUDA_TILE 16            /* rows and columns of d of a block of lap_multiply */
#define LAP_CUDA_SUMS_THREADS 1024  /* threads of a block of lap_column_sums, */
#define LAP_CUDA_ACROSS 16          /* and vectors of a row that it takes, at most */
#define LAP_CUDA_TRANSPOSE_TILE 128 /* rows and columns of a block of lap_transpose */

/*
 * A signal word in device memory, with the tag of its latest raise; a cache line each. Over an
 * emulated link: when its latest raises are due, raise n at n modulo their number.
 */
#define LAP_CUDA_DUES 6
typedef struct lap_cuda_word {
    uint32_t value;
    uint32_t reserved;
    uint64_t tag;
    uint64_t due[LAP_CUDA_DUES];
} lap_cuda_word_t;

enum { LAP_CUDA_RUNS = 0, LAP_CUDA_STALLED = 1, LAP_CUDA_MISMATCH = 2 };

/* What a stream waits for, in pinned memory: written by the wait, read by the host. */
typedef struct lap_cuda_slot {
    uint64_t buffer, reason; /* as in lap_stall_t */
    int32_t peer;
    uint32_t signal, count, come;
    uint32_t number;
    uint32_t state; /* LAP_CUDA_..., written last */
    uint32_t reserved[2];
} lap_cuda_slot_t;

/* LAP_CUDA_ABORTED is written by the host, LAP_CUDA_TIMED_OUT by a wait; both end all waits. */
enum { LAP_CUDA_GO = 0, LAP_CUDA_ABORTED = 1, LAP_CUDA_TIMED_OUT = 2 };

/* The control block of a device, in pinned memory: host and waits tell each other about stalls. */
typedef struct lap_cuda_control {
    uint32_t abort; /* not LAP_CUDA_GO: waits end at once */
    uint32_t reserved[15];
    lap_cuda_slot_t late; /* of the first wait that timed out */
    lap_cuda_slot_t slots[LAP_CUDA_SLOTS];
} lap_cuda_control_t;

/* Where signals of one launch write times, in pinned memory; NULL: nobody asks. */
typedef struct lap_cuda_signal_times {
    uint64_t *before;                /* when they begin */
    uint64_t *after[LAP_CUDA_BATCH]; /* when each of them, and all before it, have come or gone */
} lap_cuda_signal_times_t;

typedef struct lap_cuda_wait {
    const lap_cuda_word_t *word;
    const uint32_t *consumed; /* raises of earlier calls, which lap_advance adds to */
    const uint32_t *calls;    /* as in lap_cuda_raise_t */
    uint64_t tag;
    uint64_t buffer, reason;
    int32_t peer;
    uint32_t signal, count;
    uint32_t paced; /* what came counts when it is due */
} lap_cuda_wait_t;

typedef struct lap_cuda_waits {
    lap_cuda_control_t *control;
    lap_cuda_slot_t *slot;
    uint32_t *lost;    /* device memory: set when a wait ends in vain; nothing is raised then */
    uint64_t limit_ns; /* how long one may last */
    uint32_t n, checks_tag;
    lap_cuda_signal_times_t times;
    lap_cuda_wait_t at[LAP_CUDA_BATCH];
} lap_cuda_waits_t;

/* The way of a transfer over an emulated link. */
typedef struct lap_cuda_transit {
    const uint64_t *issued; /* when it began; NULL: now */
    uint64_t *link_free;    /* when the last one so far leaves the link; NULL: carries nothing */
    uint64_t carry_ns, latency_ns;
    uint64_t *arrival; /* pinned: where to write when it comes; NULL: nobody asks */
} lap_cuda_transit_t;

/* The tag that goes with a signal is that of the call, and the number of calls before it. */
typedef struct lap_cuda_raise {
    lap_cuda_word_t *word;
    const uint32_t *calls; /* this rank's count, which lap_advance adds to */
    uint64_t tag;
    lap_cuda_transit_t transit; /* if it is paced */
} lap_cuda_raise_t;

typedef struct lap_cuda_raises {
    const uint32_t *lost; /* as in lap_cuda_waits_t */
    uint32_t n;
    uint32_t paced; /* all of them, or none */
    lap_cuda_signal_times_t times;
    lap_cuda_raise_t at[LAP_CUDA_BATCH];
} lap_cuda_raises_t;

typedef struct lap_cuda_few_times {
    uint64_t *before;
    uint64_t *after[LAP_CUDA_FEW];
} lap_cuda_few_times_t;

/*
 * Signals of one launch, by one warp: first all raises, none of them paced, then all waits, and then
 * the call may be counted. They may come after other work of the launch: then the last of its blocks
 * has them. Or they come before it: then its first block raises, and every block waits.
 */
typedef struct lap_cuda_signals {
    lap_cuda_control_t *control; /* of the waits, as in lap_cuda_waits_t */
    lap_cuda_slot_t *slot;
    uint32_t *lost;
    uint64_t limit_ns;
    uint32_t n, checks_tag, nraises;
    uint32_t ncounted; /* where these signals are the last of their call: as lap_advance */
    uint32_t *consumed, *calls;
    uint32_t *arrived; /* device memory: blocks of this launch that have begun, if there are signals
                          before their work, and those that have done it; 0 before and afterwards */
    uint32_t nclears, reserved;
    uint32_t *clears[LAP_CUDA_CLEARS]; /* words to be zero when the launch has ended */
    lap_cuda_few_times_t times, raise_times;
    lap_cuda_wait_t at[LAP_CUDA_FEW];
    struct {
        lap_cuda_word_t *word;
        const uint32_t *calls;
        uint64_t tag;
    } raises[LAP_CUDA_FEW];
    uint8_t raised[LAP_CUDA_COUNTED];
} lap_cuda_signals_t;

typedef struct lap_cuda_advance {
    uint32_t *consumed;
    uint32_t *calls; /* NULL: not in this launch */
    uint32_t n, reserved;
    uint32_t raised[LAP_CUDA_ADVANCE];
} lap_cuda_advance_t;

typedef struct lap_cuda_clear {
    uint32_t *words[LAP_CUDA_CLEAR];
    uint32_t n, reserved;
} lap_cuda_clear_t;

typedef struct lap_cuda_stamp {
    uint64_t *at; /* pinned or device memory */
} lap_cuda_stamp_t;

/* lap_finish_t; plain: only the rounding is left to do. */
typedef struct lap_cuda_finish {
    uint32_t plain, epilogue;
    float beta, scale; /* beta times scale; scale */
    int32_t bias_dtype, aux_dtype;
    const void *bias;
    void *aux;
    size_t aux_stride;
} lap_cuda_finish_t;

/*
 * How lap_reduce finishes vectors. Only LAP_CUDA_ANY is for all types: others are for float32 into
 * any type but FP8, or for one of those into itself; bias and aux, if there are any, are of the
 * result's type and aligned as it is, and the scale is 1. LAP_CUDA_LINEAR: beta or a bias.
 */
enum { LAP_CUDA_ANY, LAP_CUDA_PLAIN, LAP_CUDA_LINEAR, LAP_CUDA_GELU, LAP_CUDA_DGELU };

typedef struct lap_cuda_reduce {
    int32_t from, to;
    void *dst;
    size_t dst_stride, rows, cols;
    uint32_t nsrc, vector; /* elements of a thread: 1 or LAP_CUDA_VECTOR */
    uint32_t kind, reserved;
    lap_cuda_finish_t finish;
    const void *srcs[LAP_CUDA_SOURCES];
    size_t strides[LAP_CUDA_SOURCES];
    const float *scales[LAP_CUDA_SOURCES]; /* NULL: 1 */
} lap_cuda_reduce_t;

/* A reduction, and signals before and after it. */
typedef struct lap_cuda_sum {
    lap_cuda_reduce_t reduce;
    lap_cuda_signals_t before, signals;
} lap_cuda_sum_t;

typedef struct lap_cuda_column_sums {
    int32_t from, to;
    const void *src;
    size_t src_stride, rows, cols;
    float scale;
    const float *scaled_by;  /* NULL: 1 */
    uint32_t vector, across; /* elements of a thread; threads of a block side by side, 4 to 32 */
    void *dst;
} lap_cuda_column_sums_t;

/* A GEMM of any types and sizes, one element per thread: for what the library cannot do. */
typedef struct lap_cuda_multiply {
    int32_t a_dtype, b_dtype, d_dtype;
    uint32_t a_transposed, b_plain;
    const void *a, *b;
    void *d;
    size_t a_stride, b_stride, d_stride, rows, n, k;
    float scale;
    const float *a_scale, *b_scale; /* NULL: 1 */
    lap_cuda_finish_t finish;
} lap_cuda_multiply_t;

/* Rows of bytes. `vector` bytes are moved at a time: addresses and strides are multiples of it. */
typedef struct lap_cuda_copy {
    void *dst;
    const void *src;
    size_t rows, row_bytes, dst_stride, src_stride;
    uint32_t vector, reserved;
} lap_cuda_copy_t;

/*
 * Copies of rows of bytes, which are read once, and signals before and after them. `vector` bytes are
 * moved at a time: all sizes, addresses and strides are multiples of it.
 */
typedef struct lap_cuda_multicast {
    const void *src;
    size_t rows, row_bytes, dst_stride, src_stride;
    uint32_t vector, n;
    void *dst[LAP_CUDA_COPIES];
    lap_cuda_signals_t before, signals;
} lap_cuda_multicast_t;

typedef struct lap_cuda_cast {
    int32_t from, to;
    const void *src;
    void *dst;
    size_t src_stride, dst_stride, rows, cols;
    const float *scale;        /* NULL: 1 */
    float *amax;               /* NULL: none */
    uint32_t vector, reserved; /* elements of a thread: 1 or LAP_CUDA_VECTOR */
} lap_cuda_cast_t;

/*
 * Of bytes. Rows of dst get `padded` bytes, zeros after the `rows` of src. `vectors`: all but those
 * is in multiples of 16, addresses and strides too.
 */
typedef struct lap_cuda_transpose {
    const void *src;
    void *dst;
    size_t rows, cols, src_stride, dst_stride, padded;
    uint32_t vectors, reserved;
} lap_cuda_transpose_t;

typedef struct lap_cuda_fill {
    int32_t dtype;
    void *memory;
    size_t count;
    uint64_t seed;
} lap_cuda_fill_t;

#endif
