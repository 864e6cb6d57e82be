/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of `lap bench`: what was asked for (bench_options.c, bench_table.c, bench_methods.c), what
 * that means for a rank (bench_shape.c), its matrices (bench_data.c) and the truth about them
 * (bench_truth.c), the measuring that every rank takes part in (bench_measure.c, bench_latency.c), what
 * others than this library do instead (bench_mpi.c) and what rank 0 prints (bench_print.c,
 * bench_json.c, bench_sweep.c). bench.c starts the ranks.
 */
#ifndef LAP_CLI_BENCH_H
#define LAP_CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/lap.h>

#include "cli.h"
#include "core/environment.h"
#include "gpu_share.h"
#include "overlap/overlap.h"
#include "schedule/run.h"
#include "schedule/trace.h"
#include "stats.h"
#include "trace_file.h"
#include "util/json_write.h"

typedef enum lap_bench_mode {
    LAP_BENCH_OP,
    LAP_BENCH_LATENCY,
    LAP_BENCH_DEMO,
    LAP_BENCH_SWEEP,
} lap_bench_mode_t;

#define LAP_BENCH_CASES 24 /* most rows of a sweep */

/* A method with its knobs. */
typedef struct lap_bench_method {
    char label[LAP_LIST_TEXT]; /* as the user wrote it: "pipeline:num_splits=8" */
    lap_op_desc_t desc;        /* its method, or "auto", and the knobs that were turned */
    bool asked;                /* false: serial, measured as the yardstick only */
    bool optional;             /* another library's, of "all": left out where that refuses it */
} lap_bench_method_t;

/* An operator to measure. */
typedef struct lap_bench_case {
    lap_op_kind_t kind;
    size_t m, n, k;
    /* The first is serial; the baseline stands after the last. */
    lap_bench_method_t methods[LAP_LIST_MAX + 2];
    size_t nmethods; /* without the baseline */
    bool baseline;   /* there is one */
} lap_bench_case_t;

typedef struct lap_bench_baseline_ops lap_bench_baseline_ops_t;

typedef struct lap_bench {
    lap_bench_mode_t mode;
    lap_bench_case_t cases[LAP_BENCH_CASES];
    size_t ncases;
    int ranks; /* to start; when the ranks are there already: as given, or 0 */
    lap_op_desc_t
        desc; /* what the operators have in common; bulk and external ones have a layout */
    int iters, warmup;
    int calls;   /* of a timed round, in a row */
    int rest_ms; /* before all that is timed */
    lap_link_arg_t link;
    const char *link_text; /* as given; NULL: not given */
    const char *device;
    const char *transport;
    const lap_bench_baseline_ops_t *baseline; /* NULL: none */
    const char *timeline;                     /* NULL: no picture */
    /* Index in the methods of the first case; SIZE_MAX: the best that overlaps. */
    size_t timeline_method;
    const char *trace_path; /* NULL: no trace is written */
    lap_trace_format_t trace_format;
    bool trace_simulated;    /* and a simulated call next to the measured one */
    double least_efficiency; /* NAN: any will do */
    uint64_t seed;
    double timeout_s;
    lap_gpu_mode_t gpus; /* how the ranks to start share GPUs */
    bool json;
    bool trace; /* look at what goes on within a call; never in a sweep */
    bool quiet; /* no progress, and no remarks below tables */
    /* What is printed: the signal that interrupted it, and what had been asked for; 0: none. */
    int interrupted, asked_iters, last_rounds;
    size_t begun_cases, asked_cases;
    lap_args_t args; /* as they were given */
} lap_bench_t;

extern const lap_command_t lap_bench_command;

/*
 * Reads the command line. Returns LAP_CLI_GO, or the exit status after its sentence. `ranks_exist`:
 * see lap_bench_t.
 */
int lap_bench_parse(int argc, char **argv, bool ranks_exist, lap_bench_t *bench);

/*
 * Checks the request once the number of ranks is known. Returns as lap_bench_parse.
 */
int lap_bench_check(const lap_bench_t *bench, int nranks);

/* The bytes that a rank needs at least where its device has its memory. */
double lap_bench_device_bytes(const lap_bench_t *bench, int nranks);

/* ---- methods ---- */

/* Fills in the methods of a case from a list, serial first. Prints a sentence and returns false. */
bool lap_bench_parse_methods(lap_bench_case_t *it, const char *text);

/* Adds one: a name, then knobs after colons. The same. */
bool lap_bench_add_method(lap_bench_case_t *it, const char *item);

/* The knobs in --help, from their table. */
const char *lap_bench_knobs(void);

/* The method of a case that is auto; SIZE_MAX: none. */
size_t lap_bench_auto(const lap_bench_case_t *it);

/* Adds cublasmp where it can do the case; as lap_bench_add_method. */
bool lap_bench_add_foreign(const lap_bench_t *bench, lap_bench_case_t *it, unsigned can);

/* Leaves out what a transport that `can` cannot do, unless the user asked for it by name. */
void lap_bench_leave_out(lap_bench_case_t *it, unsigned can, const char *asked);

/* ---- what a case means for a rank ---- */

/* The description of the operator for one method, without its buffer. */
lap_op_desc_t lap_bench_desc(const lap_bench_t *bench, const lap_bench_case_t *it, size_t method);

/* That of the GEMM during which a kind without one of its own runs. */
lap_op_desc_t lap_bench_gemm_desc(const lap_bench_t *bench, const lap_bench_case_t *it);

/* A dimension of a whole matrix, and the part of it that is meant. */
typedef struct lap_bench_extent {
    size_t total, begin, count;
} lap_bench_extent_t;

/*
 * The GEMM of one rank is [rows, depth] times the transpose of [cols, depth], however these two are
 * stored; its operator is given `a_rows` of the first, and `d_rows` of the result are the rank's.
 */
typedef struct lap_bench_shape {
    lap_op_kind_t kind;
    bool baseline;
    int rank, nranks;
    lap_types_t types;
    lap_layout_t layout;
    lap_epilogue_t epilogue;
    bool sums; /* the result is a sum over the ranks */
    lap_bench_extent_t rows, cols, depth, a_rows, d_rows;
    lap_bench_extent_t x_rows, y_rows; /* of what moves during the GEMM */
    size_t moved;                      /* its columns; 0: nothing does */
} lap_bench_shape_t;

lap_status_t lap_bench_shape(const lap_bench_t *bench, const lap_bench_case_t *it, int rank,
                             int nranks, lap_bench_shape_t *shape_p);

/* Bytes of the matrices of a rank, which are where its device has its memory; */
double lap_bench_matrix_bytes(const lap_bench_shape_t *shape);
/* and those that it needs at most, with all that it measures and compares them with. */
double lap_bench_data_bytes(const lap_bench_shape_t *shape);

/* The bytes that the rank which sends most sends when nothing overlaps. */
double lap_bench_serial_bytes(const lap_bench_shape_t *shape);

/* ---- data ---- */

/* The matrices of one rank. Everything is packed. */
typedef struct lap_bench_data {
    const lap_device_ops_t *ops;
    lap_device_t *device;
    lap_bench_shape_t shape;
    uint64_t seed;
    void *memory;                     /* of all tensors, where the device has it, */
    void *near;                       /* and where this program has it: the same place, or a copy */
    size_t bytes;                     /* of it */
    lap_op_args_t args;               /* as this program sees them */
    lap_tensor_t gemm_a, gemm_d;      /* of the whole local GEMM, which has the same b */
    lap_finish_t gemm_finish;         /* of that GEMM, as the device wants it */
    size_t row_step;                  /* one row of d in so many is known and verified */
    float *product;                   /* what d should be before the epilogue, packed */
    float *sizes;                     /* of the ranks' parts of it, added up */
    double *row_norms, *column_norms; /* of the vectors whose products are the elements of d */
    float *moved;                     /* what y should be, packed; NULL: there is none */
} lap_bench_data_t;

/*
 * Makes the matrices, and the reference with the device `ref`. The caller clears the data, also
 * after a failure.
 */
lap_status_t lap_bench_data_init(lap_bench_data_t *data, const lap_bench_t *bench,
                                 const lap_bench_case_t *it, lap_group_t *group,
                                 lap_device_t *device);
void lap_bench_data_clear(lap_bench_data_t *data);

/* Where the device has what this program sees at `near`; NULL stays so. */
void *lap_bench_far(const lap_bench_data_t *data, const void *near);
/* The arguments as the operator wants them. */
lap_op_args_t lap_bench_far_args(const lap_bench_data_t *data);

/* Fills all results with values that no result has. */
lap_status_t lap_bench_data_spoil(lap_bench_data_t *data);
/* Brings the results to where this program sees them. */
lap_status_t lap_bench_data_fetch(lap_bench_data_t *data);

/* The random matrices. Those that every rank has of its own to be summed come last. */
typedef enum lap_bench_matrix {
    LAP_BENCH_A,
    LAP_BENCH_B,
    LAP_BENCH_BIAS,
    LAP_BENCH_AUX,
    LAP_BENCH_X, /* where it is reduced: LAP_BENCH_X + r is that of rank r */
} lap_bench_matrix_t;

/* Whose scale belongs to which elements: one rank's to all; or each rank's to its share. */
typedef enum lap_bench_owner {
    LAP_BENCH_ONE,
    LAP_BENCH_BY_ROWS,
    LAP_BENCH_BY_COLS
} lap_bench_owner_t;

/* A part of a random matrix of elements in [-0.5, 0.5). */
typedef struct lap_bench_part {
    int matrix;
    lap_dtype_t dtype; /* of the matrix: what its elements are rounded to */
    lap_bench_extent_t rows, cols;
    lap_bench_owner_t owner;
    int rank; /* LAP_BENCH_ONE: whose */
    bool transposed;
} lap_bench_part_t;

/* Writes a part to `out`, as it is stored, or widened and scaled to what it means in float32. */
void lap_bench_generate(const lap_bench_data_t *data, const lap_bench_part_t *part,
                        const lap_tensor_t *out);

/* Rows and depth of the first matrix of the product; columns and depth of the second. */
lap_bench_part_t lap_bench_a(const lap_bench_shape_t *shape, lap_bench_extent_t rows,
                             lap_bench_extent_t depth);
lap_bench_part_t lap_bench_b(const lap_bench_shape_t *shape, lap_bench_extent_t cols,
                             lap_bench_extent_t depth);

/* What moves: the rows of an all-gather, or of the summand of one rank. */
lap_bench_part_t lap_bench_x(const lap_bench_shape_t *shape, lap_bench_extent_t rows, int rank);

/* That of what a rank sends. */
float lap_bench_wire_scale(const lap_bench_shape_t *shape, int rank);

/* ---- the truth ---- */

/* Fills in all that verifying needs, from the random matrices as any rank can make them. */
lap_status_t lap_bench_truth_init(lap_bench_data_t *data);

/* The element that came nearest to its bound, or farthest beyond it. */
typedef struct lap_bench_verdict {
    double ratio; /* of error to bound; above 1, or not a number: wrong */
    double error, bound;
} lap_bench_verdict_t;

/* Compares all results with the truth. Writes the largest error of all elements. */
lap_bench_verdict_t lap_bench_data_judge(const lap_bench_data_t *data, double *max_err_p);

/* The same; returns whether every element is within its bound. */
bool lap_bench_data_verify(const lap_bench_data_t *data, double *max_err_p);

/* ---- the baseline ---- */

/* What the methods are compared with: the same operator, done by others. */
typedef struct lap_bench_baseline lap_bench_baseline_t;

struct lap_bench_baseline_ops {
    const char *name; /* of its row */
    /* Before the world is made, and after it has ended well. Collective over all ranks. */
    lap_status_t (*start)(const lap_environment_t *environment);
    void (*end)(void);
    /* Makes it for a case; the data outlive it. */
    lap_status_t (*create)(const lap_bench_case_t *it, const lap_bench_data_t *data,
                           lap_bench_baseline_t **baseline_p);
    void (*destroy)(lap_bench_baseline_t *baseline); /* takes NULL */
    /* Computes d once. Collective. */
    void (*run)(lap_bench_baseline_t *baseline);
};

/* MPI's collective and cblas_sgemm, one after the other; NULL in a build without MPI. */
extern const lap_bench_baseline_ops_t *const lap_bench_mpi;

/* How many rows a case has in the tables: its methods, and the baseline. */
static inline size_t lap_bench_rows(const lap_bench_case_t *it)
{
    return it->nmethods + (it->baseline ? 1 : 0);
}

/* ---- measuring ---- */

/* What a traced call was spent on: means of the ranks, in milliseconds. Known to rank 0. */
typedef struct lap_bench_traced {
    int calls; /* that were traced; 0: none, and nothing else is known */
    int call;  /* which of them this is, from 1: that of the median time */
    double total_ms;
    double comm_ms,
        hidden_ms;    /* something was on its way from a rank or to it; ... and it computed */
    double waited_ms; /* the rank did not compute, */
    double cause_ms[LAP_CAUSES]; /* for these, which add up to it */
    double bytes;                /* that a rank sends */
} lap_bench_traced_t;

typedef struct lap_bench_figure {
    double total_ms, noise_ms;
    double ect_ms, ect_noise_ms; /* less the GEMM of the same round */
    double efficiency_noise;     /* of the efficiencies of the rounds, as the others are noise */
    double host_us;              /* to issue a call in the order of a stream; 0: not measured */
    double max_err;
    lap_bench_verdict_t verdict; /* of the rank and the call that came nearest to their bound */
    bool ok;
    double predicted_ms;        /* 0: not predicted */
    char picked[LAP_LIST_TEXT]; /* the method that auto picked; "" for others */
    double *rounds_ms;          /* of each round */
    lap_bench_traced_t traced;
} lap_bench_figure_t;

typedef struct lap_bench_result {
    lap_bench_shape_t shape; /* of the rank */
    lap_link_t link;         /* in effect; both 0: none */
    int cores, local_ranks;  /* of this machine */
    size_t rounds;           /* that were timed */
    double gemm_ms, gemm_noise_ms;
    double *gemm_rounds_ms;                       /* two of each round */
    lap_bench_figure_t methods[LAP_LIST_MAX + 2]; /* and, after them, the baseline */
    int interrupted;                              /* the signal that ended them early; 0: none */
    bool undrawn;   /* the timeline could not be written, as was reported; known to rank 0 */
    size_t drawn;   /* the method that was drawn, if one was */
    bool unwritten; /* the trace could not be written, as was reported; known to rank 0 */
} lap_bench_result_t;

/* Frees what measuring has left in a result, also in one that is all zero. */
void lap_bench_result_clear(lap_bench_result_t *result);

/*
 * Measures one case. Collective over the world; the figures are the same on every rank. The caller
 * clears the result, also after a failure.
 */
lap_status_t lap_bench_measure(const lap_bench_t *bench, const lap_bench_case_t *it,
                               lap_world_t *world, lap_bench_result_t *result_p);
/* What the case that is being measured has so far, if that is anything; of rank 0, by who has lap_interrupt_lock. */
void lap_bench_measured(lap_bench_result_t *result);

/* A method whose calls are traced. */
typedef struct lap_bench_call {
    const lap_bench_t *bench;
    const lap_bench_case_t *it;
    lap_group_t *group;
    lap_engine_t *engine;
    lap_buffer_t *buffer;
    lap_op_t *op, *gemm; /* gemm: during which it ran, NULL: none */
    size_t method;
    bool shows; /* this rank shows its progress */
    /* Runs a call with a trace; *ns_p is the time of the slowest rank. Collective. */
    lap_status_t (*time)(void *context, size_t method, lap_trace_t *trace, double *ns_p);
    void *context;
    /* Of the call that is reported: */
    lap_trace_t *trace; /* gathered */
    const char *title;
} lap_bench_call_t;

/*
 * Traces a few calls of a method: what the median one was spent on is in the result afterwards, and in the
 * files that are asked for, if the method is result->drawn. Collective.
 */
lap_status_t lap_bench_trace_calls(lap_bench_call_t *call, lap_bench_result_t *result);

/*
 * Writes what --trace asks for; a file that cannot be written sets *unwritten_p, on rank 0,
 * after a sentence. Collective. The trace on rank 0 then has names and what the host did, for the file alone.
 */
lap_status_t lap_bench_write_trace(const lap_bench_call_t *call, bool *unwritten_p);

typedef struct lap_bench_latency {
    lap_stats_t trip_ns; /* there and back */
    double step_ns;
    int cores;
    bool own_core;
    int trips;       /* that were timed, */
    int interrupted; /* because of this signal; 0: all that were asked for */
} lap_bench_latency_t;

/* Measures signals and steps. Collective over the world; the result is valid on rank 0. */
lap_status_t lap_bench_latency(const lap_bench_t *bench, lap_world_t *world,
                               lap_bench_latency_t *result_p);

/* ---- printing ---- */

/* Why the efficiency of a method is not known. */
typedef enum lap_bench_lack {
    LAP_BENCH_KNOWN = 0, /* it has one */
    LAP_BENCH_SERIAL,    /* it is serial, or auto that picked serial: there is nothing to compare */
    LAP_BENCH_WRONG,     /* its result is wrong, or that of serial */
    LAP_BENCH_NO_COST,   /* what serial takes longer than the GEMM is within the noise */
    LAP_BENCH_NOISE,     /* the error bar is too wide for the value to mean anything */
    LAP_BENCH_LACKS
} lap_bench_lack_t;

/* Efficiency of a method and its error bar, which is NAN after a single round. */
lap_bench_lack_t lap_bench_efficiency(const lap_bench_result_t *result, size_t method,
                                      double *efficiency_p, double *noise_p);
/* "noise", for JSON; NULL when there is an efficiency. */
const char *lap_bench_lack_name(lap_bench_lack_t lack);

/* Floating-point operations of the GEMM of a rank; 1e12 of them a second when they take `ms`. */
double lap_bench_flops(const lap_bench_shape_t *shape);
double lap_bench_tflops(const lap_bench_shape_t *shape, double ms);

/* What a rank sends in a call, in GB for each second of its time; NAN: not known. */
double lap_bench_wire_gbps(const lap_bench_figure_t *figure);

/*
 * What is correct in the least time; SIZE_MAX: nothing is. Of all rows of the table, serial and the
 * baseline too, or of the methods asked for, the only ones that JSON lists.
 */
size_t lap_bench_fastest(const lap_bench_case_t *it, const lap_bench_result_t *result,
                         bool asked_only);

/* "8 ranks share 2 cores: ...", if they do, as a line. */
void lap_bench_print_cores(const char *device, int local_ranks, int cores);

#define LAP_BENCH_TYPES_TEXT 128

/* "float8_e4m3 to bfloat16, wire float8_e5m2, dgrad, bias,gelu": what is not as always. */
void lap_bench_types_text(const lap_bench_shape_t *shape, char *text, size_t bytes);

/* "emulated link 2.13 GB/s, 5 us", or "no emulated link". */
void lap_bench_link_text(const lap_link_t *link, char *text, size_t bytes);

/* What was measured where, in lines of a page; `sizes` follow the operator, `note` ends it. */
void lap_bench_print_request(const lap_bench_t *bench, const char *sizes,
                             const lap_bench_result_t *result, const char *note);

void lap_bench_print_table(const lap_bench_t *bench, const lap_bench_result_t *results);
void lap_bench_print_json(const lap_bench_t *bench, const lap_bench_result_t *result);
void lap_bench_print_sweep(const lap_bench_t *bench, const lap_bench_result_t *results);
void lap_bench_print_sweep_json(const lap_bench_t *bench, const lap_bench_result_t *results);

/* "Interrupted: 7 of 20 rounds.": a line below the table; nothing if it was not. */
void lap_bench_print_interrupted(const lap_bench_t *bench);
/* All there is to print where not even one round had ended. */
void lap_bench_print_nothing(const lap_bench_t *bench);

void lap_bench_json_types(lap_json_t *json, const lap_bench_shape_t *shape);
void lap_bench_json_link(lap_json_t *json, const lap_link_t *link);
/* A list of times. */
void lap_bench_json_rounds(lap_json_t *json, const char *key, const double *list, size_t count);
/* All that is known of a method, as an object; noise is null after a single round. */
void lap_bench_json_method(lap_json_t *json, const lap_bench_case_t *it,
                           const lap_bench_result_t *result, size_t method);
/* What was measured on which machine, with which version, whether to the end; and the end of the object. */
void lap_bench_json_end(lap_json_t *json, const lap_bench_t *bench,
                        const lap_bench_result_t *result);
void lap_bench_print_latency(const lap_bench_t *bench, const lap_bench_latency_t *result,
                             int nranks);

#endif
