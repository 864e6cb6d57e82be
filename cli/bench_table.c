/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the options of `lap bench` and the texts of its help. */
#include "bench.h"
#include "bench_options.h"
#include "option_rows.h"
#include "overlap/knobs.h"
#include "overlap/overlap.h"
#include "shared_options.h"

#define OPTIONS_OF lap_bench_t
static const lap_option_t options[NOPTIONS] = {
#define OPTION(name, ...) [name] = {__VA_ARGS__},
#include "bench_options.def"
#undef OPTION
};

const lap_command_t lap_bench_command = {
    .name = "lap bench",
    .usage = "ag|rs|ar|bulk-ag|bulk-rs|external-ag|external-rs M N K [OPTIONS]\n"
             "       lap bench sweep ag|rs|... --m FROM:TO --n N --k K [OPTIONS]\n"
             "       lap bench latency [OPTIONS]\n"
             "       lap bench demo [OPTIONS]",
    .summary =
        "Times AG+GEMM (ag), GEMM+RS (rs), GEMM+AR (ar) or a collective during a GEMM, as one\n"
        "operator (bulk-ag, bulk-rs) or as two (external-ag, external-rs). Compares every method\n"
        "with the GEMM alone, verifies each result, and says what communication still costs. M, N\n"
        "and K are the global sizes. sweep makes one table over many M; latency times signals and\n"
        "steps; demo measures ag and rs.",
    .details =
        "ag: A [M, K] is sharded by rows and B [N, K] by N; the result is [M, N/P] on each rank.\n"
        "rs: A [M, K] and B [N, K] are sharded by K; the result is [M/P, N] on each rank.\n"
        "ar: the same, and the result is [M, N] on every rank.\n"
        "\n"
        "The backward pass of a layer whose weight W [N, K] is sharded by N, with N/P on each "
        "rank:\n"
        "\n"
        "bulk-ag: dX = dY W, of [M, N/P] and [N/P, K], during the all-gather of X [M, K].\n"
        "bulk-rs: dW = dY^T X, of [M, N/P] and [M, K], during the reduce-scatter of dX [M, K].\n"
        "external-ag: bulk-ag as two operators: the all-gather is issued after the GEMM.\n"
        "external-rs: bulk-rs as two operators: the reduce-scatter is issued after the GEMM.\n"
        "\n"
        "FP8 matrices have a scale, a different one on each rank.\n"
        "serial is always measured, for comparison. auto picks a method by simulating all of\n"
        "them, on a GPU by calling them; its forecast for each is printed next to the time.\n"
        "\n"
        "total       the whole operator: slowest rank, median over the rounds\n"
        "ECT         total less the GEMM alone on the same data, in the same round: what\n"
        "            communication costs\n"
        "efficiency  1 - ECT / ECT of serial: 1 is fully hidden, below 0 is slower than serial.\n"
        "            Its error bar is half the distance of the quartiles over the rounds. It is\n"
        "            left out where the error bar is wider than the efficiency or than 0.5, where\n"
        "            ECT of serial is within its noise, and for auto where it picked serial\n"
        "TFLOP/s     of the GEMM of a rank, over the total; GB/s: sent by a rank, over the total\n"
        "tolerance   the largest error that the rounding of types and sums may cause; error and\n"
        "            tolerance are those of the element with the largest error / tolerance\n"
        "comm        communication: time in which data were on their way from a rank or to it.\n"
        "            hidden: the rank computed meanwhile; exposed, in JSON: it did not\n"
        "waited      time in which a rank in a call computed nothing: it waited for data on the\n"
        "            wire, for a rank that was late (it had not begun the call, or not computed\n"
        "            its data), or for a core (a thread that could go on was not running)\n"
        "\n"
        "Under `lap run`, mpirun, srun or torchrun each process is one of their ranks; all ranks\n"
        "need the same arguments.",
    .more = lap_bench_knobs,
    .exit_status = "  0        all results are right\n"
                   "  1        a result is wrong, a rank failed, or a file cannot be written\n"
                   "  4        the efficiency is not that of --assert-efficiency, or not known\n"
                   "  128 + n  signal n killed a rank, or asked lap bench to end\n"
                   "  2        the command line is wrong",
    .options = options,
    .noptions = NOPTIONS,
    .min_positionals = 1,
    .max_positionals = 4,
};
