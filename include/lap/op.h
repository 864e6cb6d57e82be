/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators: a GEMM with its communication laid behind it.
 *
 * P is the size of the group, r this rank, and row-major matrices are sharded by lap_shard: m_r is
 * this rank's share of m, and so on.
 *
 *   LAP_AG_GEMM   a is [m_r, k], b is [n_r, k]; d = (a of all ranks) b^T is [m, n_r].
 *   LAP_GEMM_RS   a is [m, k_r], b is [n, k_r]; d is [m_r, n], this rank's rows of the sum over all
 *                 ranks of a b^T.
 *   LAP_GEMM_AR   the same with the whole sum: d is [m, n], the same bits on every rank.
 *
 * All matrices of an operator, and what travels between ranks, have one type: float32, float16 or
 * bfloat16. Sums are taken in fp32, those over ranks in rank order, whatever arrived first. With a
 * 16-bit type each sum is rounded once, at its end, to nearest, ties to even: the GEMM of
 * LAP_AG_GEMM; for the other two every rank's partial result, so that it can travel, and the sum
 * over ranks. A group of one has nothing to send and rounds once. What is too large for float16
 * becomes infinity.
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

typedef struct lap_op lap_op_t;

typedef enum lap_op_kind {
    LAP_AG_GEMM = 0, /* all-gather, then GEMM */
    LAP_GEMM_RS = 1, /* GEMM, then reduce-scatter */
    LAP_GEMM_AR = 2, /* GEMM, then all-reduce */
} lap_op_kind_t;

typedef enum lap_epilogue {
    LAP_EPILOGUE_NONE = 0,
} lap_epilogue_t;

typedef struct lap_op_desc {
    size_t size; /* sizeof(lap_op_desc_t), set by LAP_OP_DESC_INIT */
    lap_op_kind_t kind;
    size_t m, n, k;    /* global sizes; m is the capacity: a call may use fewer rows */
    lap_dtype_t dtype; /* of a, b, d, gathered, and of what travels */
    lap_epilogue_t epilogue;
    const char *method;   /* one of lap_op_methods, or "auto"; NULL: the first that overlaps */
    int aggregate;        /* ring of LAP_AG_GEMM: neighbours pair up, pairs go round */
    size_t num_splits;    /* pipeline: parts of n; 0: 4, or n if that is less */
    size_t block_rows;    /* fused: rows that travel together; 0: chosen from m and P */
    int gather_input;     /* LAP_AG_GEMM: calls also return the gathered a: [m, k] */
    lap_buffer_t *buffer; /* to work in, shared with other operators; NULL: its own */
} lap_op_desc_t;

#define LAP_OP_DESC_INIT                                                                           \
    {                                                                                              \
        sizeof(lap_op_desc_t), LAP_AG_GEMM, 0, 0, 0, LAP_FLOAT32, LAP_EPILOGUE_NONE, NULL, 0, 0,   \
            0, 0, NULL                                                                             \
    }

/*
 * One call: the active rows and the caller's memory, which must stay valid and unchanged until the
 * call has ended.
 */
typedef struct lap_op_args {
    size_t size;           /* sizeof(lap_op_args_t), set by LAP_OP_ARGS_INIT */
    size_t m;              /* active rows, the same on every rank; 0 to desc.m */
    lap_tensor_t a, b, d;  /* as above, with this m; d overlaps no other, none the buffer */
    lap_tensor_t gathered; /* [m, k], with gather_input; else ignored */
    lap_trace_t *trace;    /* records when each step ran; NULL: no record */
} lap_op_args_t;

#define LAP_OP_ARGS_INIT                                                                           \
    {                                                                                              \
        sizeof(lap_op_args_t), 0, {NULL, LAP_FLOAT32, 0, 0, 0}, {NULL, LAP_FLOAT32, 0, 0, 0},      \
            {NULL, LAP_FLOAT32, 0, 0, 0}, {NULL, LAP_FLOAT32, 0, 0, 0}, NULL                       \
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
 * Writes *bytes_p and *nsignals_p on success. Returns LAP_ERR_INVALID.
 */
LAP_API lap_status_t lap_op_buffer_size(const lap_op_desc_t *desc, int nranks, size_t *bytes_p,
                                        size_t *nsignals_p);

/*
 * Makes an operator. Collective; every rank gives the same description.
 * Writes *op_p on success; the caller destroys it before its buffer and group. Blocks until every
 * rank has come.
 * The method "auto" is chosen here, the same on every rank: all methods that the transport can do,
 * serial among them, are simulated with costs that the ranks measure together, once per group
 * (under a second) and once per n and k (some tenths at most); serial is picked unless another one
 * is predicted to be faster by more than 2 %. Calls with a half, a quarter, ... of the rows may get
 * another method than those of the capacity. The knobs must be left at 0.
 * Returns LAP_ERR_INVALID (with the argument, its value and what was expected), LAP_ERR_MISMATCH
 * (naming two ranks and what each said), LAP_ERR_UNSUPPORTED (a type that there is not, or a method
 * that the transport cannot do), LAP_ERR_NO_MEMORY, LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT. When one
 * rank fails, all do, and the group stays usable except after the last two.
 */
LAP_API lap_status_t lap_op_create(lap_group_t *group, const lap_op_desc_t *desc, lap_op_t **op_p);

/* Ends an operator. Local, NULL is fine; a call still in progress is waited for. */
LAP_API void lap_op_destroy(lap_op_t *op);

/*
 * The method that runs, such as "ring"; "" for NULL. Local. The string is never freed. An operator
 * made with "auto" names the method picked for calls of its capacity.
 */
LAP_API const char *lap_op_method(const lap_op_t *op);

/*
 * Why "auto" picked what it did: the predicted time of a call of the capacity with each method,
 * where a method may be there several times with different knobs, as in "pipeline:num_splits=8".
 * Local. Index 0 is the one picked, the others follow from fast to slow. Writes *method_p, which
 * lives as long as the operator, and *seconds_p on success.
 * Returns LAP_ERR_INVALID past the last one and for an operator that was not made with "auto".
 */
LAP_API lap_status_t lap_op_prediction(const lap_op_t *op, size_t index, const char **method_p,
                                       double *seconds_p);

/*
 * The symmetric buffer that the operator works in. Local. It belongs to the operator, or to who
 * gave it.
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
 * Does not block on other ranks. The memory in `args` belongs to the call until lap_op_end. The
 * schedules of the last 16 values of m are kept; a call with another m builds one, and allocates.
 * Returns LAP_ERR_INVALID (nothing was started or changed), LAP_ERR_BUSY when the last call of this
 * operator has not ended, the failure that broke the group earlier, or LAP_ERR_NO_MEMORY, which
 * breaks the group.
 */
LAP_API lap_status_t lap_op_begin(lap_op_t *op, const lap_op_args_t *args);

/*
 * Waits for the call that lap_op_begin started, not for later ones. Local to the rank; blocks until
 * d is complete.
 * Returns LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT or LAP_ERR_MISMATCH with rank, operation, step and
 * signal, or another failure of a step; d is then not valid and the group is broken: destroy
 * everything made from it. LAP_ERR_INVALID when no call was begun.
 */
LAP_API lap_status_t lap_op_end(lap_op_t *op);

/*
 * Proves that a sequence of calls is safe: builds the schedules of all `nranks` ranks for
 * descs[0..ncalls), all on one symmetric buffer, and shows that they cannot deadlock, that no two
 * accesses to a range conflict without an order, and that every element of the output is written
 * exactly once per call.
 * Local; needs no world. Each desc.size must be that of this header. `rows[i]` is the active m of
 * call i; NULL: desc.m. `transport` is the name of the transport to build for; NULL: "shm".
 * Returns LAP_ERR_CHECK with the two steps, their ranks and the range in lap_last_error,
 * LAP_ERR_INVALID, LAP_ERR_UNSUPPORTED, LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_op_check(const lap_op_desc_t *descs, const size_t *rows, size_t ncalls,
                                  int nranks, const char *transport);

LAP_END_DECLS

#endif
