/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `lap bench` and the texts of its help. */
#include "bench.h"
#include "bench_options.h"
#include "shared_options.h"

static const lap_option_t options[NOPTIONS] = {
    [RANKS] = {'n', "ranks", "P", "ranks to start (default 4; latency 2)", NULL},
    [DTYPE] =
        {0, "dtype", "TYPE",
         "type of the matrices: float32, float16, bfloat16, float8_e4m3 or float8_e5m2; short "
         "names such as half, bf16 and e4m3 will do",
         "float32"},
    [OUT_DTYPE] = {0, "out-dtype", "TYPE",
                   "type of the result (default: as --dtype, bfloat16 if that is FP8)", NULL},
    [WIRE_DTYPE] =
        {0, "wire-dtype", "TYPE",
         "type of the data sent: partial results of rs and ar (default: as the result), the "
         "matrix that the bulk and external operators send (default: as --dtype)",
         NULL},
    [LAYOUT] = {0, "layout", "NAME",
                "layout of b in ag, rs and ar: forward, d = a b^T with b [N, K]; or dgrad, d = a b "
                "with b [K, N]",
                "forward"},
    [EPILOGUE] =
        {0, "epilogue", "LIST",
         "epilogue of the GEMM: some of bias, gelu, dgelu and bias-grad, separated by commas",
         "none"},
    [ITERS] = {0, "iters", "COUNT", "timed rounds (default 10; latency 1000; demo 7)", NULL},
    [CALLS] = {0, "calls", "COUNT",
               "calls in each round, back to back: the time of a round is their mean (default 1; "
               "--device cuda: 10, in stream order)",
               NULL},
    [WARMUP] = {0, "warmup", "COUNT", "untimed rounds before the timed ones", "2"},
    [REST] = {0, "rest", "MS",
              "milliseconds to pause before each timed part, for machines that slow down at their "
              "power limit",
              "0"},
    [METHOD] = {0, "method", "LIST",
                "methods to measure: all, auto, or names with their knobs, as in ring:aggregate "
                "(default all; "
                "sweep: all,auto)",
                NULL},
    [AUTO_FOREIGN] = {0, "auto-foreign", NULL,
                      "auto may choose cublasmp, too, where cuBLASMp is there (--transport nccl)",
                      NULL},
    [BASELINE] = {0, "baseline", "NAME",
                  "also time a baseline in the same rounds: mpi, the collective of MPI and "
                  "cblas_sgemm one after the other (float32, under mpirun)",
                  NULL},
    [LINK] = {0, "link", "LINK",
              "emulate a link out of each rank: a rate such as 2GB/s, a rate with a latency as in "
              "2GB/s,5us, or ratio:0.4, the rate at which serial communication takes 0.4 of the "
              "time of the GEMM",
              NULL},
    [DEVICE] = LAP_OPTION_DEVICE,
    [TRANSPORT] = LAP_OPTION_TRANSPORT,
    [TIMELINE] = {0, "timeline", "FILE.svg", "draw one measured call", NULL},
    [TIMELINE_METHOD] = {0, "timeline-method", "NAME",
                         "the method to draw or to write (default: the best that overlaps)", NULL},
    [TRACE] = LAP_OPTION_TRACE("one measured call of each rank"),
    [TRACE_FORMAT] = LAP_OPTION_TRACE_FORMAT,
    [TRACE_SIMULATED] = {0, "trace-simulated", NULL,
                         "simulate the call that --trace writes, too: both are in the file", NULL},
    [ASSERT_EFFICIENCY] = {0, "assert-efficiency", "E",
                           "end with status 4 unless the best method that overlaps has an "
                           "efficiency of at least E, such as 0.9",
                           NULL},
    [SEED] = {0, "seed", "N", "seed of the random matrices", "1"},
    [TIMEOUT] = LAP_OPTION_TIMEOUT,
    [JSON] = LAP_OPTION_JSON,
    [QUIET] = {0, "quiet", NULL, "tables only: no progress, no explanations", NULL},
    [NO_TRACE] = {0, "no-trace", NULL,
                  "do not trace calls: no figures of what is hidden, exposed or sent", NULL},
    [GPU_SHARE] = LAP_OPTION_GPU_SHARE,
    [NUM_SM] = {0, "num-sm", "N", "SMs of a GPU that copy the data sent; 0: the driver copies",
                "0"},
    [SM_MARGIN] = {0, "sm-margin", NULL, "GEMMs leave the SMs of --num-sm free", NULL},
    [SWEEP_M] = {0, "m", "FROM:TO", "sweep: rows, doubled from FROM until they pass TO", NULL},
    [SWEEP_N] = {0, "n", "N", "sweep: output features", NULL},
    [SWEEP_K] = {0, "k", "K", "sweep: reduction dimension", NULL},
};

/* The number of ranks is compared with that of the launcher; whatever is printed is rank 0's. */
static const int own[] = {RANKS, TIMEOUT, JSON, QUIET, GPU_SHARE};

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
    .own = own,
    .nown = sizeof(own) / sizeof(own[0]),
    .min_positionals = 1,
    .max_positionals = 4,
};
