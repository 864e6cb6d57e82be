/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of `lap bench`: what is to be measured, checked as far as one process can, so
 * that a mistake costs a sentence and not a job of ranks that all stumble over it. The texts of the
 * options are in bench_table.c; what --method says is in bench_methods.c.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "bench_options.h"
#include "core/output.h"
#include "kernel/plugin/plugin.h"
#include "launch.h"
#include "overlap/knobs.h"
#include "ranks.h"
#include "shared_options.h"

#define CALLS_IN_ORDER 10 /* of a round, where a stream keeps their order */

/* The operators that can be measured, in the order of lap_op_kind_t, and what else there is. */
static const lap_op_kind_t kinds[] = {LAP_AG_GEMM, LAP_GEMM_RS,     LAP_GEMM_AR,    LAP_BULK_AG,
                                      LAP_BULK_RS, LAP_EXTERNAL_AG, LAP_EXTERNAL_RS};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };
static const char *const other_modes[] = {"latency", "demo", "sweep"};
enum { OTHERS = sizeof(other_modes) / sizeof(other_modes[0]) };

/* Their words, with NULL at the end. */
static void list_modes(const char *names[KINDS + OTHERS + 1], bool others)
{
    size_t count = 0;
    for (; count < KINDS; count++)
        names[count] = lap_kind_words[kinds[count]].word;
    for (size_t i = 0; others && i < OTHERS; i++)
        names[count++] = other_modes[i];
    names[count] = NULL;
}

/* The operator and its sizes, from the positionals. */
static bool parse_case(lap_bench_t *bench, const lap_args_t *args, lap_op_kind_t kind)
{
    static const char *const size_names[] = {"M", "N", "K"};
    lap_bench_case_t *it = &bench->cases[0];
    size_t *sizes[] = {&it->m, &it->n, &it->k};
    if (args->npositionals != 4)
        return lap_args_wrong(&lap_bench_command, "%s takes the three sizes M N K: got %zu of them",
                              args->positionals[0], args->npositionals - 1);
    for (size_t i = 0; i < 3; i++)
        if (!lap_arg_size(&lap_bench_command, size_names[i], args->positionals[i + 1], 1, SIZE_MAX,
                          sizes[i]))
            return false;
    it->kind = kind;
    bench->ncases = 1;
    return lap_bench_parse_methods(it, args->values[METHOD] ? args->values[METHOD] : "all");
}

/* "64:8192": the rows of the first and the last case. */
static bool parse_rows(const char *text, size_t *first_p, size_t *last_p)
{
    char first[32];
    const char *colon = strchr(text, ':');
    snprintf(first, sizeof(first), "%.*s", colon ? (int)(colon - text) : (int)strlen(text), text);
    if (!lap_arg_size(&lap_bench_command, "--m", first, 1, SIZE_MAX, first_p) ||
        !lap_arg_size(&lap_bench_command, "--m", colon ? colon + 1 : text, 1, SIZE_MAX, last_p))
        return false;
    if (*first_p <= *last_p && *last_p / *first_p < (size_t)1 << LAP_BENCH_CASES)
        return true;
    return lap_args_wrong(&lap_bench_command,
                          "--m %s: expected FROM:TO, FROM at most TO, and at most %d doublings",
                          text, LAP_BENCH_CASES - 1);
}

/* A case for each number of rows, with auto among the methods. */
static bool sweep_cases(lap_bench_t *bench, const lap_args_t *args)
{
    static const int needed[] = {SWEEP_M, SWEEP_N, SWEEP_K};
    for (size_t i = 0; i < sizeof(needed) / sizeof(int); i++)
        if (!args->given[needed[i]])
            return lap_args_wrong(&lap_bench_command, "sweep needs --%s",
                                  lap_bench_command.options[needed[i]].name);
    size_t kind, last = 0;
    const char *names[KINDS + OTHERS + 1];
    list_modes(names, false);
    if (args->npositionals != 2)
        return lap_args_wrong(&lap_bench_command,
                              "sweep takes one operator, such as ag: got %zu words",
                              args->npositionals - 1);
    lap_bench_case_t it = {0};
    if (!lap_arg_choice(&lap_bench_command, "what to sweep", args->positionals[1], names, &kind) ||
        !parse_rows(args->values[SWEEP_M], &it.m, &last) ||
        !lap_arg_size(&lap_bench_command, "--n", args->values[SWEEP_N], 1, SIZE_MAX, &it.n) ||
        !lap_arg_size(&lap_bench_command, "--k", args->values[SWEEP_K], 1, SIZE_MAX, &it.k))
        return false;
    it.kind = kinds[kind];
    if (!lap_bench_parse_methods(&it, args->values[METHOD] ? args->values[METHOD] : "all,auto") ||
        (lap_bench_auto(&it) == SIZE_MAX && !lap_bench_add_method(&it, "auto")))
        return false;
    for (; it.m <= last && bench->ncases < LAP_BENCH_CASES; it.m *= 2)
        bench->cases[bench->ncases++] = it;
    return true;
}

/*
 * Both operators on shapes that take seconds on two cores, on a link slow enough to be worth
 * hiding.
 */
static bool demo_cases(lap_bench_t *bench, const lap_args_t *args)
{
    bench->cases[0] = (lap_bench_case_t){.kind = LAP_AG_GEMM, .m = 1024, .n = 2048, .k = 1024};
    bench->cases[1] = (lap_bench_case_t){.kind = LAP_GEMM_RS, .m = 1024, .n = 1024, .k = 2048};
    bench->ncases = 2;
    if (!args->given[LINK])
        bench->link.ratio = 0.4;
    return lap_bench_parse_methods(&bench->cases[0], "all") &&
           lap_bench_parse_methods(&bench->cases[1], "all");
}

/* Options that another mode understands and this one would ignore are mistakes too. */
static const int *const refused[] = {
    [LAP_BENCH_OP] = (const int[]){SWEEP_M, SWEEP_N, SWEEP_K, NOPTIONS},
    [LAP_BENCH_LATENCY] = (const int[]){METHOD,       BASELINE,        TIMELINE_METHOD,
                                        LINK,         TIMELINE,        TRACE,
                                        TRACE_FORMAT, TRACE_SIMULATED, ASSERT_EFFICIENCY,
                                        DTYPE,        OUT_DTYPE,       WIRE_DTYPE,
                                        LAYOUT,       EPILOGUE,        SEED,
                                        NUM_SM,       SM_MARGIN,       CALLS,
                                        REST,         NO_TRACE,        SWEEP_M,
                                        SWEEP_N,      SWEEP_K,         NOPTIONS},
    [LAP_BENCH_DEMO] = (const int[]){METHOD, BASELINE, TIMELINE_METHOD, JSON, LAYOUT, SWEEP_M,
                                     SWEEP_N, SWEEP_K, NOPTIONS},
    [LAP_BENCH_SWEEP] = (const int[]){TIMELINE, TIMELINE_METHOD, TRACE, TRACE_FORMAT,
                                      TRACE_SIMULATED, NO_TRACE, NOPTIONS},
};

static bool refuse_others(const lap_bench_t *bench, const lap_args_t *args)
{
    for (const int *option = refused[bench->mode]; *option != NOPTIONS; option++)
        if (args->given[*option])
            return lap_args_wrong(&lap_bench_command, "%s has no option --%s", args->positionals[0],
                                  lap_bench_command.options[*option].name);
    return true;
}

static bool parse_mode(lap_bench_t *bench, const lap_args_t *args)
{
    static const lap_bench_mode_t modes[OTHERS] = {LAP_BENCH_LATENCY, LAP_BENCH_DEMO,
                                                   LAP_BENCH_SWEEP};
    const char *names[KINDS + OTHERS + 1];
    size_t index;
    list_modes(names, true);
    if (!lap_arg_choice(&lap_bench_command, "what to measure", args->positionals[0], names, &index))
        return false;
    bench->mode = index < KINDS ? LAP_BENCH_OP : modes[index - KINDS];
    if (!refuse_others(bench, args))
        return false;
    if (bench->mode == LAP_BENCH_OP)
        return parse_case(bench, args, kinds[index]);
    if (bench->mode == LAP_BENCH_SWEEP)
        return sweep_cases(bench, args);
    if (args->npositionals > 1)
        return lap_args_wrong(&lap_bench_command, "%s takes no sizes: got '%s'", names[index],
                              args->positionals[1]);
    return bench->mode == LAP_BENCH_LATENCY || demo_cases(bench, args);
}

static bool settle_counts(lap_bench_t *bench, const lap_args_t *args, bool ranks_exist)
{
    const bool latency = bench->mode == LAP_BENCH_LATENCY;
    const char *ranks = args->values[RANKS] ? args->values[RANKS] : latency ? "2" : "4";
    if (!lap_arg_int(&lap_bench_command, "--ranks", ranks, latency ? 2 : 1, LAP_LAUNCH_MAX,
                     &bench->ranks))
        return false;
    if (ranks_exist && !args->given[RANKS])
        bench->ranks = 0;
    if (!args->given[ITERS])
        bench->iters = latency ? 1000 : bench->mode == LAP_BENCH_DEMO ? 7 : 10;
    return true;
}

static bool check_layout(const lap_bench_t *bench, const lap_args_t *args)
{
    if (bench->desc.layout == LAP_WGRAD)
        return lap_args_wrong(&lap_bench_command, "--layout is 'wgrad'; expected forward or dgrad");
    if (bench->ncases == 0 || !args->given[LAYOUT] || !lap_kind_moves(bench->cases[0].kind))
        return true;
    return lap_args_wrong(&lap_bench_command, "--layout %s: %s has the layout of its backward pass",
                          args->values[LAYOUT], lap_kind_words[bench->cases[0].kind].word);
}

/* Multiprocessors may be counted where there are any. */
static bool check_num_sm(const lap_bench_t *bench)
{
    if (strcmp(bench->device, "cuda") == 0)
        return true;
    if (bench->desc.num_sm > 0)
        return lap_args_wrong(&lap_bench_command,
                              "--num-sm %d is for GPUs; expected --device cuda, or 0",
                              bench->desc.num_sm);
    const lap_bench_case_t *it = &bench->cases[0]; /* all have the same, or all there are */
    for (size_t i = 0; i < it->nmethods; i++)
        if (it->methods[i].desc.num_sm > 0)
            return lap_args_wrong(&lap_bench_command,
                                  "--method %s: num_sm is for GPUs; expected --device cuda",
                                  it->methods[i].label);
    return true;
}

/* Whether --method says "all", by itself or by being left out. */
static bool names_all(const char *text)
{
    lap_list_t list;
    bool all = !text;
    if (text && lap_arg_list(&lap_bench_command, "--method", text, &list))
        for (size_t i = 0; i < list.count; i++)
            all = all || strcmp(list.items[i], "all") == 0;
    return all;
}

/* Who asks for it wants to know why it is not there. */
static bool check_auto_foreign(lap_bench_t *bench, const lap_args_t *args, unsigned can)
{
    int version;
    if (!bench->desc.auto_foreign)
        return true;
    for (size_t i = 0; i < bench->ncases; i++)
        if (lap_bench_auto(&bench->cases[i]) == SIZE_MAX)
            return lap_args_wrong(&lap_bench_command,
                                  "--auto-foreign needs the method auto among those of --method");
    if (args->given[LINK])
        return lap_args_wrong(&lap_bench_command,
                              "--auto-foreign: cuBLASMp cannot be slowed down by --link %s: leave "
                              "one out",
                              args->values[LINK]);
    if (!(can & LAP_CAN_FOREIGN))
        return lap_args_wrong(&lap_bench_command,
                              "--auto-foreign needs transport nccl, whose communicator cuBLASMp "
                              "uses: --transport is %s",
                              bench->transport);
    return lap_cublasmp_version(&version) == LAP_OK ||
           lap_args_wrong(&lap_bench_command, "--auto-foreign: %s", lap_last_error());
}

static bool parse_backends(lap_bench_t *bench, const lap_args_t *args)
{
    const lap_device_ops_t *device;
    const lap_transport_ops_t *transport;
    if (!lap_arg_backends(&lap_bench_command, args->values[DEVICE], args->values[TRANSPORT],
                          &device, &transport))
        return false;
    bench->device = device->name;
    if (!args->given[CALLS])
        bench->calls = device->takes_streams ? CALLS_IN_ORDER : 1;
    if (!lap_ranks_gpus(&lap_bench_command, args->values[GPU_SHARE], bench->device, &bench->gpus))
        return false;
    if (!check_num_sm(bench))
        return false;
    if (bench->desc.set_sm_margin && bench->desc.num_sm == 0)
        return lap_args_wrong(&lap_bench_command, "--sm-margin needs --num-sm, of 1 or more");
    bench->transport = transport->name;
    const unsigned can = lap_ranks_span() ? transport->can : lap_transport_can(transport, NULL);
    int version;
    /* Ranks of other hosts may have another library, or none: there it is measured if it is named. */
    const bool foreign = can & LAP_CAN_FOREIGN && names_all(args->values[METHOD]) &&
                         !args->given[LINK] && !lap_ranks_span() &&
                         lap_cublasmp_version(&version) == LAP_OK;
    for (size_t i = 0; i < bench->ncases; i++) {
        if (foreign && !lap_bench_add_foreign(bench, &bench->cases[i], can))
            return false;
        lap_bench_leave_out(&bench->cases[i], can, args->values[METHOD]);
    }
    return check_auto_foreign(bench, args, can);
}

/* Adds the baseline to every case, after the methods. */
static bool parse_baseline(lap_bench_t *bench, const lap_args_t *args, bool ranks_exist)
{
    static const char *const names[] = {"mpi", NULL};
    const char *name = args->values[BASELINE];
    size_t unused;
    if (!name)
        return true;
    if (!lap_arg_choice(&lap_bench_command, "--baseline", name, names, &unused))
        return false;
    if (!lap_bench_mpi)
        return lap_args_wrong(&lap_bench_command,
                              "--baseline mpi needs MPI, and this build has none: install "
                              "libopenmpi-dev or libmpich-dev and build again");
    if (!ranks_exist)
        return lap_args_wrong(
            &lap_bench_command,
            "--baseline mpi needs ranks that mpirun started: mpirun -n %d lap bench ... "
            "--baseline mpi",
            bench->ranks);
    if (bench->ncases > 0 && lap_kind_moves(bench->cases[0].kind))
        return lap_args_wrong(&lap_bench_command, "--baseline mpi knows ag, rs and ar, not %s",
                              lap_kind_words[bench->cases[0].kind].word);
    static const int plain_only[] = {OUT_DTYPE, WIRE_DTYPE, LAYOUT, EPILOGUE};
    for (size_t i = 0; i < sizeof(plain_only) / sizeof(int); i++)
        if (args->given[plain_only[i]])
            return lap_args_wrong(
                &lap_bench_command, "--baseline mpi cannot do --%s %s: leave one out",
                lap_bench_command.options[plain_only[i]].name, args->values[plain_only[i]]);
    if (bench->desc.dtype != LAP_FLOAT32)
        return lap_args_wrong(&lap_bench_command, "--baseline mpi has float32 only: --dtype is %s",
                              lap_dtype_name(bench->desc.dtype));
    if (args->given[LINK])
        return lap_args_wrong(&lap_bench_command,
                              "--baseline mpi cannot be slowed down by --link %s: leave one out",
                              args->values[LINK]);
    bench->baseline = lap_bench_mpi;
    for (size_t i = 0; i < bench->ncases; i++) {
        lap_bench_case_t *it = &bench->cases[i];
        it->baseline = true;
        it->methods[it->nmethods].desc.method = bench->baseline->name;
        snprintf(it->methods[it->nmethods].label, LAP_LIST_TEXT, "%s", bench->baseline->name);
    }
    return true;
}

/*
 * Before the ranks spend their time: can the picture be written where it should go? It is tried;
 * a file that is there already keeps what it holds until there is something to put in its place.
 */
static int check_output(const char *option, const char *what, const char *path)
{
    struct stat about, table;
    char words[32];
    if (!path)
        return LAP_CLI_GO;
    const char *reason = NULL;
    if (!*path)
        reason = "the path is empty";
    else if (stat(path, &about) == 0 && S_ISREG(about.st_mode) &&
             fstat(STDOUT_FILENO, &table) == 0 && about.st_dev == table.st_dev &&
             about.st_ino == table.st_ino)
        reason = "standard output goes there";
    if (reason)
        return lap_args_fail(&lap_bench_command, "--%s %s cannot be written: %s", option, path,
                             reason);
    const lap_status_t status = lap_output_check(what, path);
    snprintf(words, sizeof(words), "--%s", option);
    return status == LAP_OK ? LAP_CLI_GO : lap_args_refused(&lap_bench_command, status, words);
}

static bool check_trace(const lap_bench_t *bench, const lap_args_t *args)
{
    if ((args->given[TRACE_FORMAT] || bench->trace_simulated) && !bench->trace_path)
        return lap_args_wrong(&lap_bench_command, "--%s needs --trace FILE.json",
                              args->given[TRACE_FORMAT] ? "trace-format" : "trace-simulated");
    if (bench->trace_simulated &&
        (strcmp(bench->device, "cuda") == 0 || !lap_kind_multiplies(bench->cases[0].kind)))
        return lap_args_wrong(&lap_bench_command,
                              "--trace-simulated is for operators with a GEMM, on CPUs");
    if (bench->trace_path && !bench->trace)
        return lap_args_wrong(&lap_bench_command,
                              "--trace writes a trace; expected no --no-trace with it");
    return true;
}

static bool parse_timeline(lap_bench_t *bench, const lap_args_t *args)
{
    const lap_bench_case_t *it = &bench->cases[0];
    const char *method = args->values[TIMELINE_METHOD], *labels[LAP_LIST_MAX + 2] = {NULL};
    for (size_t i = 0; i < it->nmethods; i++)
        labels[i] = it->methods[i].label;
    if (method && !bench->timeline && !args->given[TRACE])
        return lap_args_wrong(
            &lap_bench_command,
            "--timeline-method %s needs --timeline FILE.svg, or --trace FILE.json", method);
    if (method && !lap_arg_choice(&lap_bench_command, "--timeline-method", method, labels,
                                  &bench->timeline_method))
        return false;
    if (bench->timeline && !bench->trace)
        return lap_args_wrong(&lap_bench_command,
                              "--timeline draws a trace; expected no --no-trace with it");
    if (bench->timeline && args->values[TRACE] &&
        lap_output_same(bench->timeline, args->values[TRACE]))
        return lap_args_wrong(&lap_bench_command,
                              "--timeline and --trace are both %s; expected two files",
                              bench->timeline);
    return true;
}

int lap_bench_parse(int argc, char **argv, bool ranks_exist, lap_bench_t *bench)
{
    lap_args_t *args = &bench->args;
    memset(bench, 0, sizeof(*bench));
    int status = lap_args_parse(&lap_bench_command, argc, argv, args);
    if (status != LAP_CLI_GO)
        return status;
    bench->desc = (lap_op_desc_t)LAP_OP_DESC_INIT;
    bench->timeline_method = SIZE_MAX;
    bench->least_efficiency = NAN;
    bench->trace = true;
    bench->link_text = args->values[LINK];
    if (!parse_mode(bench, args) || !lap_args_read(args, false, bench) ||
        !settle_counts(bench, args, ranks_exist) || !check_layout(bench, args) ||
        !parse_backends(bench, args) || !parse_timeline(bench, args) || !check_trace(bench, args) ||
        !parse_baseline(bench, args, ranks_exist) ||
        !lap_ranks_suit(&lap_bench_command, args->values[TRANSPORT], bench->transport,
                        bench->ranks))
        return LAP_CLI_USAGE;
    status = check_output("timeline", "the timeline", bench->timeline);
    return status == LAP_CLI_GO ? check_output("trace", "the trace", bench->trace_path) : status;
}

/* ---- what depends on the number of ranks ---- */

static int check_case(const lap_bench_t *bench, const lap_bench_case_t *it, int nranks)
{
    const char *word = lap_kind_words[it->kind].word;
    char epilogue[64];
    lap_epilogue_text(bench->desc.epilogue, epilogue, sizeof(epilogue));
    if (lap_kind_sums_x(it->kind) && (bench->desc.epilogue & ~LAP_EPILOGUE_BIAS_GRAD) != 0)
        return lap_args_fail(
            &lap_bench_command,
            "--epilogue is %s; expected none or bias-grad with %s, whose GEMM is wgrad", epilogue,
            word);
    lap_bench_shape_t shape;
    lap_status_t status = lap_bench_shape(bench, it, 0, nranks, &shape);
    if (status != LAP_OK)
        return lap_args_refused(&lap_bench_command, status, word);
    double there = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double needed = lap_ranks_here(nranks) * lap_bench_data_bytes(&shape);
    if (needed > there)
        return lap_args_fail(&lap_bench_command,
                             "M N K = %zu %zu %zu on %d ranks needs about %.4g GiB of memory: this "
                             "machine has %.4g GiB",
                             it->m, it->n, it->k, nranks, needed / (1 << 30), there / (1 << 30));
    for (size_t i = 0; i < it->nmethods; i++) {
        size_t bytes, nsignals;
        lap_op_desc_t desc = lap_bench_desc(bench, it, i);
        char method[LAP_LIST_TEXT + 16];
        snprintf(method, sizeof(method), "method %s", it->methods[i].label);
        status = lap_op_buffer_size(&desc, nranks, &bytes, &nsignals);
        if (status != LAP_OK)
            return lap_args_refused(&lap_bench_command, status, method);
    }
    lap_op_desc_t gemm = lap_bench_gemm_desc(bench, it);
    size_t bytes, nsignals;
    if (!lap_kind_multiplies(it->kind))
        status = lap_op_buffer_size(&gemm, nranks, &bytes, &nsignals);
    char before[64];
    snprintf(before, sizeof(before), "the GEMM before %s", word);
    if (status != LAP_OK)
        return lap_args_refused(&lap_bench_command, status, before);
    return LAP_CLI_GO;
}

int lap_bench_check(const lap_bench_t *bench, int nranks)
{
    if (bench->ranks && bench->ranks != nranks)
        return lap_args_fail(&lap_bench_command,
                             "--ranks is %d, but %d %s started: leave it out or let them agree",
                             bench->ranks, nranks, nranks == 1 ? "rank was" : "ranks were");
    if (bench->mode == LAP_BENCH_LATENCY && nranks < 2)
        return lap_args_fail(&lap_bench_command, "latency needs 2 ranks: there is %d", nranks);
    if (bench->link_text && nranks < 2)
        return lap_args_fail(&lap_bench_command,
                             "--link %s is for ranks that communicate; expected 2 ranks or more",
                             bench->link_text);
    for (size_t i = 0; i < bench->ncases; i++) {
        int status = check_case(bench, &bench->cases[i], nranks);
        if (status != LAP_CLI_GO)
            return status;
    }
    return LAP_CLI_GO;
}

double lap_bench_device_bytes(const lap_bench_t *bench, int nranks)
{
    double most = 0;
    for (size_t i = 0; i < bench->ncases; i++) {
        lap_bench_shape_t shape;
        if (lap_bench_shape(bench, &bench->cases[i], 0, nranks, &shape) == LAP_OK &&
            lap_bench_matrix_bytes(&shape) > most)
            most = lap_bench_matrix_bytes(&shape);
    }
    return most;
}
