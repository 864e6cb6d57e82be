/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap check`: proves the schedules of every method for a range of group sizes, call after call and
 * in mixtures, and prints the verdicts as a table or as JSON. Nothing is run: the proofs need no
 * ranks.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lap/lap.h>

#include "about.h"
#include "check_guard.h"
#include "cli.h"
#include "interrupt.h"
#include "option_rows.h"
#include "overlap/knobs.h"
#include "progress.h"
#include "shared_options.h"
#include "util/clock.h"

#define REPORT_NS 3000000000u /* between two lines of progress */

enum { METHOD, RANKS, TARGET, M, N, K, DTYPE, WIRE_DTYPE, EPILOGUE, GUARD, JSON, NOPTIONS };
enum {
    MAX_RANKS = 64,
    MAX_ROWS = 48,
    MAX_CALLS = 5,
    SIZE_CHECKED = 1 << 20, /* at most */
    LABEL = 64,
    LABEL_WIDTH = 36,
    SENTENCE = 1024
};

/* A method with its knobs: a row of the table. The last row holds the mixtures. */
typedef struct row {
    const lap_builder_t *method;
    lap_op_desc_t desc; /* with the kind, the method and the knobs that do not depend on ranks */
    char label[LABEL];
} row_t;

typedef enum verdict { NOT_CHECKED, SAFE, UNSAFE } verdict_t;

typedef struct checks {
    bool kinds[LAP_KINDS]; /* which operators */
    size_t op;             /* the one asked for; LAP_KINDS: all */
    lap_list_t methods;
    int first, last; /* group sizes */
    const lap_target_t *target;
    size_t m, n, k;
    lap_dtype_t dtype, wire_dtype;
    lap_epilogue_t epilogue;
    bool json;
    row_t rows[MAX_ROWS];
    size_t nrows;
    verdict_t verdicts[MAX_ROWS + 1][MAX_RANKS + 1];
    char *sentences[MAX_ROWS + 1][MAX_RANKS + 1];
    size_t nschedules, nsequences, nfailures;
    int ranks;                /* that are being proved */
    uint64_t begin, reported; /* when it began, and when progress was printed last */
    bool interrupted;
} checks_t;

#define OPTIONS_OF checks_t
static const lap_option_t options[NOPTIONS] = {
    [METHOD] = {0, "method", "NAME,...", "methods to check, or all", "all", LAP_BY_CODE},
    [RANKS] = {'n', "ranks", "P|A:B", "group size, or a range of sizes", "1:16", LAP_BY_CODE},
    [TARGET] = {0, "target", "NAME", "prove what cpu, cuda or nccl is given", "cpu",
                TARGET_OF(target)},
    [M] = {0, "m", "M", "rows; the calls of a sequence use all, some and none of them", "100",
           SIZE(m, 1, SIZE_CHECKED)},
    [N] = {0, "n", "N", "output features", "37", SIZE(n, 1, SIZE_CHECKED)},
    [K] = {0, "k", "K", "reduction dimension", "29", SIZE(k, 1, SIZE_CHECKED)},
    [DTYPE] = {0, "dtype", "TYPE", "type of the matrices; the scales of FP8 are sent with them",
               "float32", TYPE(dtype)},
    [WIRE_DTYPE] = {0, "wire-dtype", "TYPE",
                    "type of the data sent, for all operators but ag (default: as in lap bench)",
                    NULL, TYPE(wire_dtype)},
    [EPILOGUE] = {0, "epilogue", "LIST",
                  "some of bias, gelu, dgelu and bias-grad, for the operators that can have them",
                  "none", EPILOGUE_OF(epilogue)},
    [GUARD] = {0, "guard", NULL, "by itself: lap check train --guard, of a list of trainings", NULL,
               LAP_BY_CODE},
    [JSON] = {LAP_OPTION_JSON, ON(json)},
};

static const lap_command_t command = {
    .name = "lap check",
    .usage = "ag|rs|ar|gemm|bulk-ag|bulk-rs|external-ag|external-rs|all|train|pipeline [OPTIONS]",
    .summary = "Proves that the schedules of AG+GEMM (ag), GEMM+RS (rs), GEMM+AR (ar), a GEMM\n"
               "(gemm), a collective during one (bulk-ag, bulk-rs), a collective by itself\n"
               "(external-ag, external-rs) or all of them cannot deadlock, that no two accesses\n"
               "to a range conflict without an order, and that every result is written exactly\n"
               "once, call after call.",
    .details =
        "Each method, with each of its variants, is checked in sequences of calls with\n"
        "different rows, and each two of them mixed on one buffer. What is proved is\n"
        "what the target is given, see lap show. A GPU is not needed to prove what one\n"
        "is given; methods that the target cannot do are left out. Where the table has a -\n"
        "there is nothing to prove: a knob needs other sizes, or a single method without\n"
        "knobs has no other to be mixed with.\n"
        "\n"
        "lap check train takes the options of lap train and proves forward, loss, backward\n"
        "and the optimizer's step, of all layers and of all ranks that share weights:\n"
        "operators, kernels and memory. It says the launches and the memory that a rank\n"
        "needs. lap check pipeline proves the table of a pipeline schedule. Both list their\n"
        "options, 'lap check train --help' and 'lap check pipeline --help'.",
    .exit_status = "  0        all schedules are safe\n"
                   "  1        a schedule is not; the sentence says why\n"
                   "  2        the command line is wrong\n"
                   "  128 + n  signal n ended it; what was proved until then is printed",
    .options = options,
    .noptions = NOPTIONS,
    .min_positionals = 1,
    .max_positionals = 1,
};

static bool selected(const checks_t *checks, const char *method)
{
    for (size_t i = 0; i < checks->methods.count; i++)
        if (strcmp(checks->methods.items[i], method) == 0 ||
            strcmp(checks->methods.items[i], "all") == 0)
            return true;
    return false;
}

/* Gives a knob the value of that number, of those that are proved, and the label its name. */
static void set_knob(row_t *row, const lap_op_field_t *knob, size_t number)
{
    lap_field_set(&knob->field, &row->desc, knob->proved[number]);
    lap_knob_label(knob, &row->desc, ' ', row->label, LABEL);
}

/* Adds a method with all values of its knobs, which are the digits of `variant`: 0 is the default. */
static void add_method(checks_t *checks, lap_op_kind_t kind, const lap_builder_t *method)
{
    for (size_t variant = 0, rest = 0; rest == 0; variant++) {
        row_t row = {.method = method, .desc = LAP_OP_DESC_INIT};
        row.desc.kind = kind;
        row.desc.method = method->name;
        snprintf(row.label, sizeof(row.label), "%s %s", lap_kind_words[kind].word, method->name);
        rest = variant;
        for (const lap_op_field_t *knob = lap_op_fields; knob->field.name; knob++) {
            size_t values = 0;
            while (!knob->in_parts && lap_knob_of(knob, method) && knob->proved[values])
                values++;
            if (rest % (values + 1) > 0)
                set_knob(&row, knob, rest % (values + 1) - 1);
            rest /= values + 1;
        }
        if (rest == 0 && checks->nrows < MAX_ROWS)
            checks->rows[checks->nrows++] = row;
    }
}

/* Fills the rows; false, with a sentence, when a name is no method of the operators asked for. */
static bool add_rows(checks_t *checks, const char *given)
{
    const char *names[MAX_ROWS + 2] = {"all"};
    size_t count = 1, unused;
    for (int kind = 0; kind < LAP_KINDS; kind++) {
        const lap_builder_t *method = lap_builders((lap_op_kind_t)kind);
        for (; checks->kinds[kind] && method->name; method++) {
            /* The operators share names; a sentence lists each once. */
            bool known = false;
            for (size_t j = 0; j < count; j++)
                known = known || strcmp(names[j], method->name) == 0;
            if (!known)
                names[count++] = method->name;
            if (selected(checks, method->name) && !(method->needs & ~checks->target->can))
                add_method(checks, (lap_op_kind_t)kind, method);
        }
    }
    for (size_t i = 0; i < checks->methods.count; i++)
        if (strcmp(checks->methods.items[i], LAP_FOREIGN_METHOD) == 0)
            return lap_args_wrong(&command,
                                  "--method is '" LAP_FOREIGN_METHOD
                                  "', which is another library's: nobody can look inside, "
                                  "to prove it");
    for (size_t i = 0; i < checks->methods.count; i++)
        if (!lap_arg_choice(&command, "--method", checks->methods.items[i], names, &unused))
            return false;
    if (checks->nrows > 0)
        return true;
    return lap_args_wrong(&command, "--method is '%s', --target is %s, which cannot do it", given,
                          checks->target->name);
}

/* Bulk GEMMs have the layouts of a backward pass; types and epilogue go where they can. */
static void describe_numbers(const checks_t *checks, lap_op_desc_t *desc)
{
    const lap_op_kind_t kind = desc->kind;
    desc->dtype = checks->dtype;
    desc->epilogue = checks->epilogue;
    if (kind != LAP_AG_GEMM && kind != LAP_GEMM)
        desc->wire_dtype = checks->wire_dtype;
    lap_kind_complete(desc);
}

static lap_op_desc_t describe(const checks_t *checks, const row_t *row, int ranks, bool narrow)
{
    lap_op_desc_t desc = row->desc;
    size_t few = ((size_t)ranks + 1) / 2;
    desc.m = checks->m;
    desc.n = narrow ? few : checks->n;
    desc.k = narrow ? few : checks->k;
    lap_knobs_clamp(&desc);
    describe_numbers(checks, &desc);
    for (const lap_op_field_t *knob = lap_op_fields; knob->field.name; knob++)
        if (knob->in_parts && lap_knob_of(knob, row->method))
            lap_field_set(&knob->field, &desc, lap_knob_value(knob, knob->proved[0], &desc, ranks));
    return desc;
}

/* On a terminal there is a line that prove_all rewrites; elsewhere, as in a file, a line now and then. */
static void report_progress(checks_t *checks)
{
    const uint64_t now = lap_now_ns();
    if (isatty(STDERR_FILENO) || now - checks->reported < REPORT_NS)
        return;
    checks->reported = now;
    lap_tell(command.name, "P = %d of %d to %d: %zu sequences proved in %.0f s", checks->ranks,
             checks->first, checks->last, checks->nsequences, (double)(now - checks->begin) * 1e-9);
}

/* Proves one sequence and keeps the verdict; the sentence of the first failure stays. */
static void prove(checks_t *checks, size_t row, int ranks, const lap_op_desc_t *descs,
                  size_t ncalls)
{
    size_t m = checks->m, p = (size_t)ranks;
    const size_t rows[MAX_CALLS] = {m, m - m / 3, p - 1 < m ? p - 1 : m, 0, m};
    lap_status_t status = lap_op_check_for(descs, rows, ncalls, ranks, checks->target);
    report_progress(checks);
    lap_interrupt_lock();
    checks->nsequences++;
    checks->nschedules += ncalls * p;
    if (checks->verdicts[row][ranks] != UNSAFE) {
        checks->verdicts[row][ranks] = status == LAP_OK ? SAFE : UNSAFE;
        if (status != LAP_OK)
            checks->sentences[row][ranks] = strndup(lap_last_error(), SENTENCE);
        checks->nfailures += status != LAP_OK;
    }
    lap_interrupt_unlock();
}

/*
 * A method by itself: as asked for, and with fewer features than ranks, so that some have nothing
 * to do.
 */
static void prove_row(checks_t *checks, size_t row, int ranks)
{
    for (int narrow = 0; narrow < 2; narrow++) {
        lap_op_desc_t desc = describe(checks, &checks->rows[row], ranks, narrow);
        prove(checks, row, ranks, (lap_op_desc_t[MAX_CALLS]){desc, desc, desc, desc, desc},
              MAX_CALLS);
    }
}

/* Every two rows in turn on one buffer: each follows the other. */
static void prove_mixtures(checks_t *checks, int ranks)
{
    for (size_t i = 0; i < checks->nrows; i++)
        for (size_t j = i + 1; j < checks->nrows; j++) {
            if (!lap_knobs_fit(&checks->rows[i].desc, ranks) ||
                !lap_knobs_fit(&checks->rows[j].desc, ranks))
                continue;
            lap_op_desc_t a = describe(checks, &checks->rows[i], ranks, false);
            lap_op_desc_t b = describe(checks, &checks->rows[j], ranks, false);
            prove(checks, checks->nrows, ranks, (lap_op_desc_t[]){a, b, a}, 3);
        }
}

static void prove_all(checks_t *checks)
{
    checks->begin = checks->reported = lap_now_ns();
    for (int ranks = checks->first; ranks <= checks->last; ranks++) {
        lap_interrupt_lock();
        checks->ranks = ranks;
        lap_interrupt_unlock();
        lap_progress(true, "checking P = %d ...", ranks);
        for (size_t row = 0; row < checks->nrows; row++)
            if (lap_knobs_fit(&checks->rows[row].desc, ranks))
                prove_row(checks, row, ranks);
        prove_mixtures(checks, ranks);
    }
    lap_progress_end(true);
}

static const char *row_label(const checks_t *checks, size_t row)
{
    return row < checks->nrows ? checks->rows[row].label : "mixtures";
}

static void print_table(const checks_t *checks, double seconds)
{
    static const char *const words[] = {"-", "ok", "FAIL"};
    int width = checks->nfailures ? 5 : 3;
    printf("%-*s", LABEL_WIDTH, "P");
    for (int ranks = checks->first; ranks <= checks->last; ranks++)
        printf(" %*d", width - 1, ranks);
    printf("\n");
    for (size_t row = 0; row <= checks->nrows; row++) {
        printf("%-*s", LABEL_WIDTH, row_label(checks, row));
        for (int ranks = checks->first; ranks <= checks->last; ranks++)
            printf("%*s", width, words[checks->verdicts[row][ranks]]);
        printf("\n");
    }
    for (size_t row = 0; row <= checks->nrows; row++)
        for (int ranks = checks->first; ranks <= checks->last; ranks++)
            if (checks->verdicts[row][ranks] == UNSAFE)
                printf("\n%s, P = %d: %s\n", row_label(checks, row), ranks,
                       checks->sentences[row][ranks] ? checks->sentences[row][ranks] : "");
    if (checks->nfailures)
        printf("\nnot safe: %zu of the entries above\n", checks->nfailures);
    if (checks->interrupted)
        printf("\nInterrupted at P = %d of %d to %d: %zu sequences were proved, and the others "
               "were not.\n",
               checks->ranks, checks->first, checks->last, checks->nsequences);
    else if (!checks->nfailures)
        printf("\n%zu schedules of %zu sequences proved safe in %.2f s\n", checks->nschedules,
               checks->nsequences, seconds);
}

static void print_json(const checks_t *checks, double seconds)
{
    const bool own_wire = checks->wire_dtype != LAP_DTYPE_DEFAULT;
    char epilogue[LAP_EPILOGUE_TEXT];
    lap_json_t json = {.file = stdout};
    lap_epilogue_text(checks->epilogue, epilogue, sizeof(epilogue));
    lap_json_put(
        &json, "{op:%s target:%s m:%zu n:%zu k:%zu dtype:%s wire_dtype:%s epilogue:%s checks:[",
        checks->op == LAP_KINDS ? "all" : lap_op_kind_name((lap_op_kind_t)checks->op),
        checks->target->name, checks->m, checks->n, checks->k, lap_dtype_name(checks->dtype),
        own_wire ? lap_dtype_name(checks->wire_dtype) : NULL, epilogue);
    for (size_t row = 0; row <= checks->nrows; row++)
        for (int ranks = checks->first; ranks <= checks->last; ranks++) {
            if (checks->verdicts[row][ranks] == NOT_CHECKED)
                continue;
            lap_json_put(&json, "{check:%s ranks:%d ok:%i error:%s}", row_label(checks, row), ranks,
                         checks->verdicts[row][ranks] == SAFE, checks->sentences[row][ranks]);
        }
    lap_json_put(&json, "] schedules:%zu sequences:%zu seconds:%.3f ok:%i", checks->nschedules,
                 checks->nsequences, seconds, !checks->nfailures && !checks->interrupted);
    if (checks->interrupted)
        lap_json_put(&json, "interrupted:true");
    lap_about_json(&json, "cpu");
    lap_json_put(&json, "}");
}

static void print(const checks_t *checks)
{
    const double seconds = (double)(lap_now_ns() - checks->begin) * 1e-9;
    (checks->json ? print_json : print_table)(checks, seconds);
}

/* What was proved until a signal came. */
static void print_interrupted(void *context, int signal)
{
    checks_t *checks = context;
    (void)signal;
    lap_progress_end(true);
    checks->interrupted = true;
    print(checks);
}

/* A group size at the beginning of a text; what follows is at *end_p. */
static bool parse_size(const char *text, const char **end_p, int *size_p)
{
    char *end;
    const long size = strtol(text, &end, 10);
    *end_p = end;
    *size_p = (int)size;
    return *text >= '0' && *text <= '9' && size >= 1 && size <= MAX_RANKS;
}

/* P, or A:B. */
static bool parse_ranks(const char *text, int *first_p, int *last_p)
{
    const char *end;
    bool right = parse_size(text, &end, first_p);
    *last_p = *first_p;
    if (right && *end == ':')
        right = parse_size(end + 1, &end, last_p);
    if (right && *end == '\0' && *first_p <= *last_p)
        return true;
    return lap_args_wrong(
        &command,
        "--ranks is '%s'; expected a group size P, or the first and the last as A:B with "
        "A at most B; 1 to %d",
        text, MAX_RANKS);
}

/* What an operator has no use for. All of them together take what each can. */
static bool check_sense(const lap_args_t *args, const checks_t *checks)
{
    const lap_op_kind_t kind = (lap_op_kind_t)checks->op;
    int useless = -1;
    if (checks->op == LAP_KINDS)
        return true;
    if (args->given[WIRE_DTYPE] && (kind == LAP_AG_GEMM || kind == LAP_GEMM))
        useless = WIRE_DTYPE;
    if (args->given[EPILOGUE] && !lap_kind_multiplies(kind))
        useless = EPILOGUE;
    if (args->given[N] && !lap_kind_multiplies(kind))
        useless = N;
    if (useless >= 0)
        return lap_args_wrong(&command, "%s has no option --%s", args->positionals[0],
                              options[useless].name);
    if (kind == LAP_BULK_RS && (checks->epilogue & ~(lap_epilogue_t)LAP_EPILOGUE_BIAS_GRAD))
        return lap_args_wrong(&command, "--epilogue is '%s'; bulk-rs can have bias-grad",
                              args->values[EPILOGUE]);
    return true;
}

static bool parse_what(const char *what, size_t *op_p)
{
    const char *words[LAP_KINDS + 4] = {NULL};
    for (size_t kind = 0; kind < LAP_KINDS; kind++)
        words[kind] = lap_kind_words[kind].word;
    words[LAP_KINDS] = "all";
    words[LAP_KINDS + 1] = "train";
    words[LAP_KINDS + 2] = "pipeline";
    return lap_arg_choice(&command, "what to check", what, words, op_p);
}

static bool parse(const lap_args_t *args, checks_t *checks)
{
    checks->wire_dtype = LAP_DTYPE_DEFAULT;
    if (args->given[GUARD])
        return lap_args_wrong(&command, "--guard is there by itself, or for lap check train");
    if (!parse_what(args->positionals[0], &checks->op))
        return false;
    if (checks->op > LAP_KINDS)
        return lap_args_wrong(&command, "%s comes after options; expected lap check %s [OPTIONS]",
                              args->positionals[0], args->positionals[0]);
    if (!lap_args_read(args, false, checks) ||
        !lap_arg_list(&command, "--method", args->values[METHOD], &checks->methods) ||
        !parse_ranks(args->values[RANKS], &checks->first, &checks->last) ||
        !check_sense(args, checks))
        return false;
    for (size_t kind = 0; kind < LAP_KINDS; kind++)
        checks->kinds[kind] = checks->op == LAP_KINDS || checks->op == kind;
    return add_rows(checks, args->values[METHOD]);
}

int lap_cli_check(int argc, char **argv)
{
    lap_args_t args;
    if (argc == 2 && strcmp(argv[1], "--guard") == 0)
        return lap_check_guard_all();
    if (argc > 1 && strcmp(argv[1], "train") == 0)
        return lap_cli_check_train(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "pipeline") == 0)
        return lap_cli_check_pipeline(argc - 1, argv + 1);
    size_t op; /* a wrong word comes before options that would be right with another */
    if (argc > 1 && argv[1][0] != '-' && !parse_what(argv[1], &op))
        return LAP_CLI_USAGE;
    int status = lap_args_parse(&command, argc, argv, &args);
    if (status != LAP_CLI_GO)
        return status;
    checks_t *checks = calloc(1, sizeof(*checks));
    if (!checks) {
        lap_tell("lap check", "no memory");
        return LAP_CLI_FAILED;
    }
    status = LAP_CLI_USAGE;
    if (parse(&args, checks)) {
        lap_interrupt_with(command.name, print_interrupted, checks);
        prove_all(checks);
        lap_interrupt_with_end();
        print(checks);
        status = checks->nfailures ? LAP_CLI_FAILED : LAP_CLI_OK;
    }
    for (size_t row = 0; row <= checks->nrows; row++)
        for (int ranks = 0; ranks <= MAX_RANKS; ranks++)
            free(checks->sentences[row][ranks]);
    free(checks);
    return status;
}
