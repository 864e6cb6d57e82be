/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of commands.h. Options are in the files of the subcommands. */
#include "commands.h"

#include <string.h>

const lap_subcommand_t lap_subcommands[] = {
    {
        .name = "run",
        .brief = "start the ranks of a program on this machine",
        .run = lap_cli_run,
        .files = "$XDG_RUNTIME_DIR/lap-*  where the ranks of a job find each other: a directory\n"
                 "                        that is removed with the job. Without that variable it\n"
                 "                        is in $TMPDIR, or else in /tmp",
        .examples =
            {
                {"lap run -n 4 sh -c 'echo rank $LAP_RANK of $LAP_SIZE'",
                 "Starts four ranks. Each line of output begins with the rank that wrote it."},
                {"lap run -n 2 --timeout 10 lap bench ag 256 256 256 --iters 2",
                 "The command itself is such a program: two ranks measure AG+GEMM. One that\n"
                 "waits for the other for more than 10 seconds fails."},
            },
    },
    {
        .name = "bench",
        .parts = {"sweep"},
        .brief = "time an operator with every method, and verify the results",
        .run = lap_cli_bench,
        .files = "FILE.svg  the picture of --timeline; it is written whole or not at all",
        .examples =
            {
                {"lap bench ag 256 512 256 --ranks 2", "Times AG+GEMM with every method."},
                {"lap bench rs 256 256 512 --ranks 2 --link ratio:0.4 --timeline rs.svg",
                 "Times GEMM+RS over a link that is emulated, and draws the best method."},
                {"lap bench ag 256 512 256 --ranks 2 --method ring:aggregate,auto --json",
                 "Measures two methods, and serial for comparison, and prints JSON."},
                {"lap bench sweep ag --m 64:256 --n 256 --k 128 --ranks 2 --iters 3",
                 "One table over 64, 128 and 256 rows."},
            },
    },
    {
        .name = "train",
        .brief = "train layers with their communication hidden, and say what it cost",
        .run = lap_cli_train,
        .files = "share/doc/lap/examples/overlap/*.yaml  files for --tp-comm-overlap-cfg\n"
                 "FILE.json                              the timeline of --trace\n"
                 "FILE.html                              the page of --report",
        .examples =
            {
                {"lap train --tp 2 --heads 4 --seq 64 --iters 3",
                 "Trains a transformer layer of four heads, its weights sharded over two ranks."},
                {"lap train --tp 2 --num-replicas 2 --heads 4 --seq 64 --iters 3 --compare",
                 "The same with two replicas of the layer, with overlap and then without."},
                {"echo '{fc2_fprop: {method: pipeline, num_splits: 2}}' |\n"
                 "    lap train --tp 2 --heads 4 --seq 64 --iters 2 --tp-comm-overlap-cfg -",
                 "Reads the method of a GEMM from standard input."},
            },
    },
    {
        .name = "check",
        .parts = {"train", "pipeline"},
        .brief = "prove that the schedules of an operator are safe",
        .run = lap_cli_check,
        .examples =
            {
                {"lap check all --ranks 1:4", "All operators, in groups of one to four ranks."},
                {"lap check ag --method ring --ranks 3 --json",
                 "One method of AG+GEMM in a group of three; prints JSON."},
            },
    },
    {
        .name = "show",
        .parts = {"train", "pipeline"},
        .brief = "print the steps of an operator, or the program of a pass of training",
        .run = lap_cli_show,
        .files = "FILE.svg  the picture of --svg; it is written whole or not at all",
        .examples =
            {
                {"lap show ag 8 8 8 --ranks 2 --method ring",
                 "What two ranks do in a ring: each step with its ranges and signals."},
                {"lap show ag 8 8 8 --ranks 4 --target cuda --each --rank 0",
                 "What rank 0 of four is given on a GPU, as built and after each pass."},
                {"lap show rs 8 8 8 --ranks 2 --svg rs.svg", "The same as a picture."},
                {"lap show pipeline --pp 4 --micro-batches 8 --schedule zb-v --svg zb-v.svg",
                 "A pipeline schedule: what each rank does, and how long it idles."},
                {"lap show train --tp 2 --heads 4 --seq 64",
                 "The program of a whole pass: kernels, calls, links between them and memory."},
            },
    },
    {
        .name = "plan",
        .brief = "say how to run a model on a cluster, how long a step takes and whether it fits",
        .run = lap_cli_plan,
        .files = "share/lap/machines/*.yaml  machine descriptions for --gpu",
        .examples =
            {
                {"lap plan --model llama-8b --gpus 16 --gpu h100-sxm --global-batch 128 --top 3",
                 "The three fastest grids of 16 GPUs, and why others were left out."},
                {"lap plan --model llama-70b --gpus 64 --tp 4 --pp 4 --cp 2 --virtual-pp 5 "
                 "--explain",
                 "One grid: where the time of a step goes, and the memory of a GPU."},
            },
    },
    {
        .name = "tune",
        .brief = "find the overlap of each GEMM that makes a layer fastest here",
        .run = lap_cli_tune,
        .files = "FILE.yaml       rules for --tp-comm-overlap-cfg; written whole or not at all\n"
                 "FILE.yaml.part  what was found so far, until FILE.yaml is there\n"
                 "$XDG_CACHE_HOME/lap/*.tune  results by machine, layer, type and version, which\n"
                 "                lap train --auto uses; ~/.cache/lap unless that is set",
        .examples =
            {
                {"lap tune -o overlap.yaml --tp 2 --heads 4 --seq 64 --rounds 3 &&\n"
                 "    lap train --tp 2 --heads 4 --seq 64 --iters 2 --tp-comm-overlap-cfg "
                 "overlap.yaml",
                 "Tunes a layer of four heads on two ranks, and trains it with the rules found."},
                {"lap tune -o mlp.yaml --layer layernorm_mlp --tp 2 --heads 4 --seq 64 --rounds 3 "
                 "--json",
                 "The same for an MLP; prints JSON."},
            },
    },
    {
        .name = "calibrate",
        .brief = "write the machine description of this machine for lap plan, by measurement",
        .run = lap_cli_calibrate,
        .files = "FILE.yaml  the description; it is written whole or not at all",
        .examples =
            {
                {"lap calibrate --ranks 2 -o this.yaml",
                 "Measures two ranks at once, each with its share of the cores."},
                {"lap calibrate --ranks 1 --name laptop", "Prints the description."},
            },
    },
    {
        .name = "data",
        .parts = {"tokenize", "info"},
        .brief = "write files of tokens from text, and say what such files hold",
        .run = lap_cli_data,
        .files = "FILE.bin  tokens in the format of llm.c; it is written whole or not at all",
        .examples =
            {
                {"echo 'to be or not to be' >text.txt\n"
                 "    lap data tokenize --bytes -o corpus.bin --force text.txt",
                 "Writes a token for each byte of the text."},
                {"printf 'to be' | lap data tokenize --bytes -o corpus.bin --force /dev/stdin &&\n"
                 "    lap data info corpus.bin",
                 "Says how many tokens a file holds, and how much their frequencies tell."},
            },
    },
    {
        .name = "report",
        .brief = "make a page of what overlapped, and what did not, from traces",
        .run = lap_cli_report,
        .files = "FILE.html  the page; it is written whole or not at all",
        .examples =
            {
                {"lap train --tp 2 --heads 4 --seq 64 --iters 3 --trace a.json.gz &&\n"
                 "    lap report -o a.html a.json.gz",
                 "A page about the last iteration of a training."},
                {"lap bench ag 256 512 256 --ranks 2 --iters 2 --quiet --method ring --trace "
                 "b.json &&\n"
                 "    lap bench ag 256 512 256 --ranks 2 --iters 2 --quiet --method direct --trace "
                 "c.json &&\n"
                 "    lap report -o bc.html b.json c.json",
                 "Compares two methods."},
            },
    },
    {
        .name = "info",
        .brief = "show what was built in, and what this machine offers",
        .run = lap_cli_info,
        .examples =
            {
                {"lap info", "What to say with a report of a mistake."},
                {"lap info --json", "The same for programs."},
            },
    },
    {.name = NULL},
};

static const lap_option_t options[] = {
    {0, "version", NULL, "show the version and stop", NULL, LAP_BY_CODE},
};

const lap_command_t lap_command = {
    .name = "lap",
    .usage = "COMMAND [ARGUMENTS]",
    .summary = "Communication hidden behind computation in transformer training.",
    .details = "'lap COMMAND --help' or 'lap help COMMAND' tells more about a command.",
    .exit_status = "  0      it is done\n"
                   "  1      the work failed\n"
                   "  2      the command line is wrong\n"
                   "  other  see the command",
    .options = options,
    .noptions = sizeof(options) / sizeof(options[0]),
};

const lap_subcommand_t lap_itself = {
    .name = "",
    .brief = "communication hidden behind computation in transformer training",
    .files = "share/doc/lap  documents, examples in C and rules of overlap, of the installed tree",
    .examples =
        {
            {"lap help bench", "What lap bench does, and its options."},
            {"lap train --tp 2 --heads 4 --seq 64 --iters 3",
             "Trains a layer on two ranks of this machine, and says what communication cost."},
        },
};

const lap_variable_t lap_variables[] = {
    {"LAP_DEVICE", "the device, where no option names one: cpu, ref or cuda",
     "bench train tune calibrate"},
    {"LAP_TRANSPORT", "the transport, likewise: shm, self, mpi, hosts, cuda_ipc or nccl",
     "bench train tune calibrate"},
    {"LAP_TIMEOUT_S", "seconds that a rank waits for another, 60 unless set",
     "run bench train tune calibrate"},
    {"LAP_SPIN_US",
     "microseconds that a wait keeps its core busy before it sleeps, 50 unless set; 0 where other "
     "programs want the cores as well",
     "run bench train tune calibrate"},
    {"LAP_LOG", "quiet: no warnings on standard error; errors are reported as always", NULL},
    {"LAP_RANK, LAP_SIZE",
     "the number of this rank, and how many ranks there are. lap run sets them for its ranks; "
     "the variables of mpirun, srun and torchrun will do instead",
     "run bench train tune calibrate"},
    {"LAP_DIR",
     "a directory in which the ranks of a job find each other, for them alone (mode 700). lap run "
     "sets it for its ranks",
     "run bench train tune calibrate"},
    {"LAP_STDERR",
     "lap run sets it for its ranks, so that one whose standard error goes to a file prints its "
     "errors there, and not through lap run",
     "run bench train tune calibrate"},
    {"LAP_JOB", "instead of LAP_DIR: a name that no other running job has",
     "run bench train tune calibrate"},
    {"LAP_MASTER",
     "host:port at which rank 0 can be reached: ranks on several hosts meet there over TCP. The "
     "variables of torchrun will do instead",
     "bench train tune calibrate"},
    {"LAP_NODE",
     "the number of the host of a rank; where it is not set, ranks that can share memory are on "
     "one",
     "bench train tune calibrate"},
    {"OPENBLAS_NUM_THREADS, OMP_NUM_THREADS",
     "threads of a rank; where they are not set, ranks get their share of the cores",
     "run bench train tune calibrate"},
    {"XDG_RUNTIME_DIR, TMPDIR", "where directories of jobs are made",
     "run bench train tune calibrate"},
    {"XDG_CACHE_HOME", "where lap tune stores its results, ~/.cache unless set",
     "train tune check show"},
    {"LAP_GPU", "the GPU of a rank; set for the launcher, the GPU of all ranks",
     "run bench train tune calibrate"},
    {"LAP_GPU_PART", "which part of how many of that GPU a rank has, counted from 0: 1/4",
     "run bench train tune calibrate"},
    {"LAP_GPU_TUNE",
     "0: GEMMs are done by the kernel that cuBLASLt proposes first, not by the fastest of a few",
     "bench train tune calibrate"},
    {"LAP_GPU_GELU",
     "fast: GELU is done by cuBLASLt inside the GEMM where it can, which approximates it; exact "
     "unless set",
     "bench train tune calibrate"},
    {"LAP_CUDA_MEMORY", "how ranks map each other's memory on GPUs: ipc or vmm",
     "bench train tune calibrate"},
    {"LAP_BLAS_EVEN",
     "0: on the device cpu OpenBLAS's fastest kernels, also where their bits depend on the "
     "schedule (x86-64 with AVX2 and without AVX-512)",
     "bench train tune info calibrate"},
    {"LAP_OPENBLAS, LAP_MPI, LAP_CUBLASLT, LAP_NCCL, LAP_CUBLASMP",
     "the file of that library, and no other", "bench train tune info calibrate"},
    {"LAP_ZLIB", "the file of zlib, and no other; files that end in .gz, and pages, need it",
     "bench train report plan"},
    {"LAP_NCCL_ADDRESSES",
     "0: NCCL reaches all ranks as it reaches those of other hosts; for tests",
     "bench train tune calibrate"},
    {"CUDA_VISIBLE_DEVICES", "which GPUs there are", "run bench train tune info calibrate"},
    {"CUDA_DEVICE_MAX_CONNECTIONS",
     "hardware queues of a rank's GPU, 1 to 32 (with replicas, a context or a pipeline: 64 divided "
     "by "
     "the ranks of a GPU)",
     "train"},
    {NULL, NULL, NULL},
};

const lap_subcommand_t *lap_subcommand_find(const char *name)
{
    const lap_subcommand_t *subcommand = lap_subcommands;
    while (subcommand->name && strcmp(subcommand->name, name) != 0)
        subcommand++;
    return subcommand->name ? subcommand : NULL;
}
