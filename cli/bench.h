/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of `lap bench`: what was asked for (bench_options.c), the matrices and the truth about
 * their product (bench_data.c), the measuring that every rank takes part in (bench_measure.c,
 * bench_latency.c) and what rank 0 prints (bench_print.c, bench_sweep.c). bench.c starts the ranks.
 */
#ifndef LAP_CLI_BENCH_H
#define LAP_CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/lap.h>

#include "cli.h"
#include "gpu_share.h"
#include "schedule/run.h"

typedef enum lap_bench_mode {
    LAP_BENCH_AG,
    LAP_BENCH_RS,
    LAP_BENCH_AR,
    LAP_BENCH_LATENCY,
    LAP_BENCH_DEMO,
    LAP_BENCH_SWEEP,
} lap_bench_mode_t;

#define LAP_BENCH_CASES 24 /* most rows of a sweep */

/* A method with its knobs. */
typedef struct lap_bench_method {
    char label[LAP_LIST_TEXT]; /* as the user wrote it: "pipeline:num_splits=8" */
    const char *name;          /* one of lap_op_methods, or "auto" */
    int aggregate;
    size_t num_splits, block_rows;
    bool asked; /* false: serial, measured as the yardstick only */
} lap_bench_method_t;

/* An operator to measure. */
typedef struct lap_bench_case {
    lap_op_kind_t kind;
    size_t m, n, k;
    lap_bench_method_t methods[LAP_LIST_MAX + 1]; /* the first is serial */
    size_t nmethods;
} lap_bench_case_t;

typedef struct lap_bench {
    lap_bench_mode_t mode;
    lap_bench_case_t cases[LAP_BENCH_CASES];
    size_t ncases;
    int ranks; /* to start; when the ranks are there already: as given, or 0 */
    lap_dtype_t dtype;
    int iters, warmup;
    lap_link_arg_t link;
    const char *device;
    const char *transport;
    bool can_span;        /* the transport is one of those whose ranks mpirun starts */
    const char *timeline; /* NULL: no picture */
    /* Index in the methods of the first case; SIZE_MAX: the best that overlaps. */
    size_t timeline_method;
    uint64_t seed;
    double timeout_s;
    lap_gpu_mode_t gpus; /* how the ranks to start share GPUs */
    bool json;
} lap_bench_t;

/*
 * Reads the command line. Returns LAP_CLI_GO, or the exit status after its sentence. `ranks_exist`:
 * see lap_bench_t.
 */
int lap_bench_parse(int argc, char **argv, bool ranks_exist, lap_bench_t *bench_p);

/*
 * What can be said about the request once the number of ranks is known. Returns as lap_bench_parse.
 */
int lap_bench_check(const lap_bench_t *bench, int nranks);

/* The description of an operator for one method, without its buffer. */
lap_op_desc_t lap_bench_desc(const lap_bench_t *bench, const lap_bench_case_t *it, size_t method);

/* ---- data ---- */

/* The matrices of one rank. Everything is packed. */
typedef struct lap_bench_data {
    const lap_device_ops_t *ops;
    lap_device_t *device;
    void *memory;                     /* of a, b, d, gemm_a and gemm_d */
    lap_tensor_t a, b, d;             /* as the operator wants them */
    lap_tensor_t gemm_a, gemm_d;      /* of the whole local GEMM, which has the same b */
    float *reference;                 /* what d should be, packed */
    double *row_norms, *column_norms; /* of the vectors whose products are the elements of d */
    double gamma, unit, tiny;         /* see bench_data.c */
    int partials;                     /* that are rounded before they are summed; 0: none */
} lap_bench_data_t;

/*
 * Makes the matrices, and the reference with the device `ref`. The caller clears the data, also
 * after a failure.
 */
lap_status_t lap_bench_data_init(lap_bench_data_t *data, const lap_bench_t *bench,
                                 const lap_bench_case_t *it, lap_group_t *group,
                                 lap_device_t *device);
void lap_bench_data_clear(lap_bench_data_t *data);

/* Bytes that one rank needs at most, for the check that they exist. */
double lap_bench_data_bytes(const lap_bench_t *bench, const lap_bench_case_t *it, int nranks);

/* Fills d with values that no result has. */
void lap_bench_data_spoil(lap_bench_data_t *data);

/*
 * Compares d with the reference. Writes the largest error and returns whether every element is
 * within its bound.
 */
bool lap_bench_data_verify(const lap_bench_data_t *data, double *max_err_p);

/* ---- measuring ---- */

/* Median and quartiles of some samples. */
typedef struct lap_bench_stats {
    double median, q1, q3;
} lap_bench_stats_t;

/* Sorts the samples. `count` is at least 1. */
lap_bench_stats_t lap_bench_stats(uint64_t *samples, size_t count);

typedef struct lap_bench_figure {
    double total_ms, noise_ms;
    double max_err;
    bool ok;
    double predicted_ms;        /* 0: not predicted */
    char picked[LAP_LIST_TEXT]; /* the method that auto picked; "" for others */
} lap_bench_figure_t;

typedef struct lap_bench_result {
    lap_link_t link; /* in effect; both 0: none */
    double gemm_ms, gemm_noise_ms;
    lap_bench_figure_t methods[LAP_LIST_MAX + 1];
    size_t best; /* the fastest correct one of the methods asked for; SIZE_MAX: none is correct */
} lap_bench_result_t;

/* Measures one case. Collective over the world; the result is the same on every rank. */
lap_status_t lap_bench_measure(const lap_bench_t *bench, const lap_bench_case_t *it,
                               lap_world_t *world, lap_bench_result_t *result_p);

typedef struct lap_bench_latency {
    lap_bench_stats_t trip_ns; /* there and back */
    double step_ns;
    int cores;
    bool own_core;
} lap_bench_latency_t;

/* Measures signals and steps. Collective over the world; the result is valid on rank 0. */
lap_status_t lap_bench_latency(const lap_bench_t *bench, lap_world_t *world,
                               lap_bench_latency_t *result_p);

/* ---- printing ---- */

/*
 * Rewrites the line on a terminal that says what is being done; does nothing when standard error is
 * none.
 */
void lap_bench_progress(bool speaks, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Removes it. */
void lap_bench_progress_end(bool speaks);

/* The method of a case that is auto; SIZE_MAX: none. */
size_t lap_bench_auto(const lap_bench_case_t *it);

/* Efficiency of a method; false when it has none: serial itself, or nothing to hide. */
bool lap_bench_efficiency(const lap_bench_result_t *result, size_t method, double *efficiency_p);

/* "emulated link 2.13 GB/s, 5 us", or "no emulated link". */
void lap_bench_link_text(const lap_link_t *link, char *text, size_t bytes);

void lap_bench_print_table(const lap_bench_t *bench, const lap_bench_result_t *results, int nranks);
void lap_bench_print_json(const lap_bench_t *bench, const lap_bench_result_t *result, int nranks);
void lap_bench_print_sweep(const lap_bench_t *bench, const lap_bench_result_t *results, int nranks);
void lap_bench_print_sweep_json(const lap_bench_t *bench, const lap_bench_result_t *results,
                                int nranks);

/* "key":value for JSON; null for what JSON has no number for. */
void lap_bench_json_number(const char *key, double value);
void lap_bench_json_link(const lap_link_t *link);
void lap_bench_print_latency(const lap_bench_t *bench, const lap_bench_latency_t *result,
                             int nranks);

#endif
