/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators: a GEMM whose communication runs at the same time.
 *
 * P is the size of the group, r this rank. Row-major matrices are sharded by rows and by features:
 * m_r is this rank's share of m (lap_shard), n_r and k_r are those of n and k (lap_shard_features).
 * In the layout LAP_FORWARD:
 *
 *   LAP_AG_GEMM      a is [m_r, k], b is [n_r, k]; d = (a of all ranks) b^T is [m, n_r].
 *   LAP_GEMM_RS      a is [m, k_r], b is [n, k_r]; d is [m_r, n], this rank's rows of the sum over
 *                    all ranks of a b^T.
 *   LAP_GEMM_AR      the same with the whole sum: d is [m, n], the same bits on every rank.
 *   LAP_GEMM         no communication: a is [m, k], b is [n, k]; d = a b^T is [m, n]. With `sharded`
 *                    the ranks share n or k here, too, and the GEMM is that of n_r or k_r.
 *   LAP_BULK_AG      LAP_GEMM and, at the same time, an all-gather of another matrix: x is
 *                    [m_r, cols], y is [m, cols].
 *   LAP_BULK_RS      LAP_GEMM and, at the same time, a reduce-scatter: x is [m, cols]; y is
 *                    [m_r, cols], this rank's rows of the sum of x over all ranks.
 *   LAP_EXTERNAL_AG  only the all-gather, to overlap a GEMM already begun with lap_op_begin.
 *   LAP_EXTERNAL_RS  only the reduce-scatter, likewise.
 *
 * In LAP_DGRAD b is stored the other way round, [k, n] with the same shares: d = a b. In LAP_WGRAD,
 * for those kinds whose GEMM is local, a is [m, n], b is [m, k], and d = a^T b is [n, k].
 *
 * Types: a is `dtype`, b is `b_dtype`, d is `out_dtype`, and the data sent is `wire_dtype`: a
 * itself for LAP_AG_GEMM, the partial results of each rank for LAP_GEMM_RS and LAP_GEMM_AR, x for
 * the last four. The sums of LAP_GEMM_AR are sent in out_dtype.
 *
 * Rounding: sums are taken in fp32, those over ranks in rank order, whatever arrived first. Each
 * sum is rounded once at its end, to nearest, ties to even. Partial results are rounded to the
 * wire's type, the rank's own too; a group of one sends nothing and does not round them. Values
 * that are too large for float16 become infinity; FP8 saturates. One exception: on a GPU, tensor
 * cores add up the products of FP8 matrices in runs with 14 bits, and only the runs in fp32.
 *
 * An FP8 matrix has one scale: the value of an element is the stored number times the scale. Each
 * rank gives its own, in lap_op_args_t. The scale of a matrix that is sent is sent with it.
 *
 * The epilogue: with x = alpha op(a) op(b), summed over ranks where the kind does so,
 *
 *   x += beta d        with `accumulate`; d as it was before
 *   x += bias          LAP_EPILOGUE_BIAS: one element per column of d
 *   aux = x            LAP_EPILOGUE_GELU, when the caller gives aux
 *   x = gelu(x)        LAP_EPILOGUE_GELU: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 *   x = x gelu'(aux)   LAP_EPILOGUE_DGELU: the same aux
 *   d = x, rounded
 *   bias_grad = the sum of the rows of d that this rank has   LAP_EPILOGUE_BIAS_GRAD
 *
 * In LAP_WGRAD bias_grad is the sum of the rows of a instead: of the gradient that d is the
 * weight's for; and it is the only epilogue. LAP_GEMM_AR rounds x to out_dtype before the epilogue,
 * so that it can travel, when there is more than one rank.
 */
#ifndef LAP_OP_H
#define LAP_OP_H

#include <stddef.h>

#include <lap/buffer.h>
#include <lap/export.h>
#include <lap/status.h>
#include <lap/tensor.h>
#include <lap/trace.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/* An operator: made once of a description, and called any number of times. */
typedef struct lap_op lap_op_t;

/* The kinds of operators, as above. */
typedef enum lap_op_kind {
    LAP_AG_GEMM = 0, /* all-gather, then GEMM */
    LAP_GEMM_RS = 1, /* GEMM, then reduce-scatter */
    LAP_GEMM_AR = 2, /* GEMM, then all-reduce */
    LAP_GEMM = 3,
    LAP_BULK_AG = 4,     /* GEMM and an all-gather that have nothing to do with each other */
    LAP_BULK_RS = 5,     /* GEMM and a reduce-scatter */
    LAP_EXTERNAL_AG = 6, /* only the all-gather */
    LAP_EXTERNAL_RS = 7, /* only the reduce-scatter */
} lap_op_kind_t;

/* Which matrices of a GEMM are transposed: for a layer y = x w^T and its gradients. */
typedef enum lap_layout {
    LAP_FORWARD = 0, /* y = x w^T */
    LAP_DGRAD = 1,   /* dx = dy w */
    LAP_WGRAD = 2,   /* dw = dy^T x */
} lap_layout_t;

/* Which size of a GEMM without communication is the sum of all ranks' shares. */
typedef enum lap_sharded {
    LAP_SHARDED_NONE = 0,
    LAP_SHARDED_N = 1,
    LAP_SHARDED_K = 2,
} lap_sharded_t;

/* How the method "cublasmp" overlaps: the algorithms of cuBLASMp, which knows what each needs. */
typedef enum lap_algorithm {
    LAP_ALGORITHM_DEFAULT = 0,
    LAP_ALGORITHM_SPLIT_P2P = 1,
    LAP_ALGORITHM_MULTICAST = 2,
    LAP_ALGORITHM_NO_OVERLAP = 3,
    LAP_ALGORITHM_FUSED = 4,
} lap_algorithm_t;

/*
 * The epilogue: changes to the result of a GEMM before it becomes d. Any of these, but not GELU
 * and DGELU together.
 */
typedef unsigned lap_epilogue_t;
enum {
    LAP_EPILOGUE_NONE = 0,
    LAP_EPILOGUE_BIAS = 1 << 0,
    LAP_EPILOGUE_GELU = 1 << 1,
    LAP_EPILOGUE_DGELU = 1 << 2,
    LAP_EPILOGUE_BIAS_GRAD = 1 << 3,
};

/* The description of an operator: the same on every rank. */
typedef struct lap_op_desc {
    size_t size; /* sizeof(lap_op_desc_t), set by LAP_OP_DESC_INIT */
    lap_op_kind_t kind;
    size_t m, n, k;    /* global sizes; m is the capacity: a call may use fewer rows */
    lap_dtype_t dtype; /* of a */
    lap_epilogue_t epilogue;
    const char *method;     /* one of lap_op_methods, "auto" or "cublasmp"; NULL: the first that
                               overlaps */
    int aggregate;          /* ring: neighbours pair up, pairs go round */
    size_t num_splits;      /* pipeline, pull: parts of n; 0: 4, or n if that is less. direct of
                               LAP_AG_GEMM: GEMMs for all the peers' shards; 0: one each */
    size_t block_rows;      /* fused: rows that are sent together; 0: chosen from m and P */
    int gather_input;       /* LAP_AG_GEMM: calls also return the gathered a: [m, k] */
    lap_buffer_t *buffer;   /* to work in, shared with other operators; NULL: its own */
    lap_layout_t layout;    /* LAP_WGRAD: only with a local GEMM */
    lap_dtype_t b_dtype;    /* as dtype; of two FP8 types also the other */
    lap_dtype_t out_dtype;  /* of d; default: dtype, bfloat16 if that is FP8 */
    lap_dtype_t wire_dtype; /* default: LAP_AG_GEMM: dtype, and nothing else; RS, AR: out_dtype;
                               x: dtype */
    int accumulate;         /* calls may give a beta */
    size_t cols;            /* of x and y; 0 for the kinds that have none */
    lap_dtype_t y_dtype;    /* bulk or external RS; default: wire_dtype, bfloat16 if FP8 */
    int num_sm;             /* GPU: SMs that copy the data sent; 0: the driver copies */
    int set_sm_margin;      /* GPU: GEMMs leave num_sm SMs free for that, fewer than there are */
    int background;         /* calls have streams of their own. They begin after all calls that
                               were begun before, and only lap_op_end waits for them. All operators
                               of a buffer are background operators, or none is */
    lap_sharded_t sharded;  /* of the kinds whose GEMM is local; others: as the kind has it */
    size_t shard_parts;     /* the sharded n or k is so many matrices side by side, each with shares
                               of its own, as the two halves of SwiGLU are; 0: 1 */
    int alltoall;           /* external: each rank has rows of its own for every other. AG: x is
                               [P m_r, cols], rows c m_r and so on are for rank c. RS, the way back:
                               y is [P m_r, cols], the parts of all ranks and not their sum */
    lap_algorithm_t algorithm; /* cublasmp */
    int auto_foreign; /* "auto" on a GPU may choose cublasmp, too, for calls of m rows, where
                                  its library is there and can do what is described */
    int aside; /* external, not in the background: sends and receives on streams that no other
                  call has, so that calls after it do not wait for what it receives; not on a GPU,
                  where streams may share a hardware queue */
} lap_op_desc_t;

/* A description in which all but kind, m, n and k can stay as it is. */
#define LAP_OP_DESC_INIT                                                                           \
    {                                                                                              \
        sizeof(lap_op_desc_t), LAP_AG_GEMM, 0, 0, 0, LAP_FLOAT32, LAP_EPILOGUE_NONE, NULL, 0, 0,   \
            0, 0, NULL, LAP_FORWARD, LAP_DTYPE_DEFAULT, LAP_DTYPE_DEFAULT, LAP_DTYPE_DEFAULT, 0,   \
            0, LAP_DTYPE_DEFAULT, 0, 0, 0, LAP_SHARDED_NONE, 0, 0, LAP_ALGORITHM_DEFAULT, 0, 0     \
    }

/*
 * One call: the active rows and the caller's memory. The memory must stay valid and unchanged until
 * the call has ended. Fields that the description does not ask for are ignored.
 */
typedef struct lap_op_args {
    size_t size;           /* sizeof(lap_op_args_t), set by LAP_OP_ARGS_INIT */
    size_t m;              /* active rows, the same on every rank; 0 to desc.m */
    lap_tensor_t a, b, d;  /* as above, with this m; d overlaps no other, none the buffer */
    lap_tensor_t gathered; /* [m, k], with gather_input */
    lap_trace_t *trace;    /* records when each step ran; NULL: no record */
    float alpha, beta;
    float a_scale, b_scale, d_scale; /* of FP8 matrices; else 1 */
    float wire_scale; /* RS, AR, x: of the data that this rank sends, if FP8; else 1 */
    float *scales; /* P of them: of the shards of a gathered FP8 matrix; empty ones are left out */
    lap_tensor_t bias;      /* [1, columns of d]; these three in any type but FP8 */
    lap_tensor_t aux;       /* as d; GELU: data may be NULL */
    lap_tensor_t bias_grad; /* [1, columns of d]; LAP_WGRAD: [1, n] */
    lap_tensor_t x, y;      /* x is wire_dtype; y is y_dtype, or as x when it is gathered */
    /*
     * Scales in memory of the device, read when the call runs: a kernel before it may write them.
     * Each stands for the number above of its name, which is 1 then; NULL: the number counts.
     * wire_scale_ptr is that of an x that is gathered. Addresses are multiples of 16, as cuBLASLt
     * wants them.
     */
    const float *a_scale_ptr, *b_scale_ptr, *wire_scale_ptr;
} lap_op_args_t;

/* Arguments in which m and the tensors are still to be set. */
#define LAP_OP_ARGS_INIT                                                                           \
    {                                                                                              \
        sizeof(lap_op_args_t), 0, {NULL, LAP_FLOAT32, 0, 0, 0}, {NULL, LAP_FLOAT32, 0, 0, 0},      \
            {NULL, LAP_FLOAT32, 0, 0, 0}, {NULL, LAP_FLOAT32, 0, 0, 0}, NULL, 1.0f, 0.0f, 1.0f,    \
            1.0f, 1.0f, 1.0f, NULL, {NULL, LAP_FLOAT32, 0, 0, 0}, {NULL, LAP_FLOAT32, 0, 0, 0},    \
            {NULL, LAP_FLOAT32, 0, 0, 0}, {NULL, LAP_FLOAT32, 0, 0, 0},                            \
            {NULL, LAP_FLOAT32, 0, 0, 0}, NULL, NULL, NULL                                         \
    }

/* The name of a kind of operator, such as "ag_gemm". Local. Never NULL. */
LAP_API const char *lap_op_kind_name(lap_op_kind_t kind);

/*
 * The name of method `index` of a kind, and a line about it (may be NULL). Local. NULL past the
 * last one.
 */
LAP_API const char *lap_op_methods(lap_op_kind_t kind, size_t index, const char **summary_p);

/*
 * The symmetric memory and signal words that an operator needs, to size a buffer shared by several.
 * Local. `nranks` is the size of the group. With the method "auto" it is enough for all methods.
 * Writes *bytes_p and *nsignals_p on success. Returns LAP_ERR_INVALID, LAP_ERR_UNSUPPORTED (an
 * unknown type or epilogue) or LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_op_buffer_size(const lap_op_desc_t *desc, int nranks, size_t *bytes_p,
                                        size_t *nsignals_p);

/*
 * Makes an operator. Collective; every rank gives the same description.
 * Writes *op_p on success; the caller destroys it before its buffer and group. Blocks until every
 * rank has come. On a GPU trials find the fastest kernels for calls of the capacity here (some
 * tenths of a second at most, once per shape).
 *
 * The method "auto" is chosen here, the same on every rank. All methods that the transport can do,
 * serial among them, are simulated. The ranks measure the costs together, once per group (under a
 * second) and once per n and k (some tenths at most). serial is picked unless another method is
 * predicted to be faster by more than 2 %, and then is, where serial takes at most 20 ms, also when both
 * are called in turns. On a GPU all methods are called instead, on memory as
 * large as calls of the capacity need (some seconds for large sizes), and simulated only where
 * there is no room for that. Calls with a half, a quarter, ... of the rows may get another method
 * than those of the capacity. The knobs must be left at 0. The group keeps the choice: operators of the
 * same description, on buffers of the same transport and link, take it without a measurement.
 *
 * Returns LAP_ERR_INVALID (with the argument, its value and what was expected), LAP_ERR_MISMATCH
 * (naming two ranks and both values), LAP_ERR_UNSUPPORTED (an unknown type, or a method that the
 * transport cannot do), LAP_ERR_NO_MEMORY, LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT. When one rank fails,
 * all do, and the group stays usable except after the last two.
 */
LAP_API lap_status_t lap_op_create(lap_group_t *group, const lap_op_desc_t *desc, lap_op_t **op_p);

/*
 * Ends an operator. Local, NULL is fine; a call still in progress is waited for, no longer than lap_op_end would: a rank that
 * has died is noticed.
 */
LAP_API void lap_op_destroy(lap_op_t *op);

/*
 * The method that runs, such as "ring"; "" for NULL. Local. The string is never freed. An operator
 * made with "auto" names the method picked for calls of its capacity.
 */
LAP_API const char *lap_op_method(const lap_op_t *op);

/*
 * The times on which "auto" based its choice: the predicted time of a call of the capacity with
 * each method, or on a GPU the measured one. A method may be there several times with different
 * knobs, as in "pipeline:num_splits=8".
 * Local. Index 0 is the one picked, the others follow from fast to slow. Writes *method_p, which
 * lives as long as the operator, and *seconds_p on success.
 * Returns LAP_ERR_INVALID past the last one and for an operator that was not made with "auto".
 */
LAP_API lap_status_t lap_op_prediction(const lap_op_t *op, size_t index, const char **method_p,
                                       double *seconds_p);

/*
 * The symmetric buffer that the operator works in. Local. It belongs to the operator, or to the
 * caller that gave it.
 */
LAP_API lap_buffer_t *lap_op_buffer(lap_op_t *op);

/*
 * Runs the operator once and returns when d is complete on this rank: lap_op_begin, then
 * lap_op_end.
 * Collective. Returns as these two.
 */
LAP_API lap_status_t lap_op_run(lap_op_t *op, const lap_op_args_t *args);

/*
 * Starts a call. Collective; the calls of a world begin in the same order on all ranks that take
 * part in them, whatever their operators, groups and buffers: they share the rank's streams.
 * Does not block on other ranks, except where ranks are threads that share a GPU. There it may wait
 * until the others begin the same call, and may return that call's timeouts and failures. The
 * memory in `args` belongs to the call until lap_op_end. The schedules of the last 16 values of m
 * are cached; a call with another m builds one, and allocates.
 * Returns LAP_ERR_INVALID (nothing was started or changed), LAP_ERR_BUSY when the last call of this
 * operator has not ended, the failure that broke the group earlier, or LAP_ERR_NO_MEMORY, which
 * breaks the group.
 */
LAP_API lap_status_t lap_op_begin(lap_op_t *op, const lap_op_args_t *args);

/*
 * Waits for the call that lap_op_begin started, not for later ones. Local to the rank; blocks until
 * d is complete.
 * Returns LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT or LAP_ERR_MISMATCH with rank, operation, step and
 * signal, or another failure of a step. d is then not valid, and the group is broken. So are the
 * groups of all other calls that this rank has in flight, and these calls fail as well: destroy
 * everything made from them. LAP_ERR_INVALID when no call was begun.
 */
LAP_API lap_status_t lap_op_end(lap_op_t *op);

/*
 * Proves that a sequence of calls is safe. Builds the schedules of all `nranks` ranks for
 * descs[0..ncalls), all on one symmetric buffer. Shows that they cannot deadlock, that no two
 * accesses to a range conflict without an order, and that every element of the output is written
 * exactly once per call.
 * Local; needs no world. Each desc.size must be that of this header. `rows[i]` is the active m of
 * call i; NULL: desc.m. `transport` is the name of the transport to build for; NULL: "shm". What is
 * proved is what its device is given.
 * Returns LAP_ERR_CHECK with the two steps, their ranks and the range in lap_last_error,
 * LAP_ERR_INVALID, LAP_ERR_UNSUPPORTED, LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_op_check(const lap_op_desc_t *descs, const size_t *rows, size_t ncalls,
                                  int nranks, const char *transport);

LAP_END_DECLS

#endif
