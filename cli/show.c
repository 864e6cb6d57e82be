/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap show`: prints the schedule of an operator, as it was built or after a pass of lowering, as
 * text, JSON or a picture. Nothing is run, and a target need not be there.
 */
#include "show.h"

#include <stdio.h>
#include <string.h>

#include <lap/lap.h>

#include "cli.h"
#include "core/status.h"
#include "option_rows.h"
#include "overlap/knobs.h"
#include "shared_options.h"
#include "util/alloc.h"

enum {
    METHOD,
    RANKS,
    RANK,
    TARGET,
    AFTER,
    EACH,
    PREDICT,
    DTYPE,
    WIRE_DTYPE,
    EPILOGUE,
    ROWS,
    FIELD,
    SVG,
    JSON,
    NOPTIONS
};
enum { MAX_NAMES = 16, FIELDS_MAX = 32 };

typedef struct request {
    lap_op_desc_t desc;
    size_t rows;
    const char *method; /* as the user wrote it */
    int ranks, rank;
    const lap_target_t *target;
    const char *after; /* NULL: all passes */
    bool each, json;
    const char *svg, *predict;
} request_t;

#define OPTIONS_OF request_t
static const lap_option_t options[NOPTIONS] = {
    [METHOD] =
        {0, "method", "NAME",
         "the method, with its knobs as in lap bench (default: the first that is not serial)", NULL,
         TEXT(method)},
    [RANKS] = {'n', "ranks", "P", "group size", "2", INT(ranks, 1, LAP_SHOW_RANKS)},
    [RANK] = {0, "rank", "R", "show the steps of this rank only (default: of all)", NULL,
              LAP_BY_CODE},
    [TARGET] = {0, "target", "NAME", "lower for cpu, cuda or nccl", "cpu", TARGET_OF(target)},
    [AFTER] = {LAP_OPTION_AFTER, AFTER_OF(after)},
    [EACH] = {LAP_OPTION_EACH, ON(each)},
    [PREDICT] = {0, "predict", "GPU",
                 "print when each step would run on such GPUs: a machine of lap plan --gpu, or "
                 "FILE.yaml; needs --target cuda or nccl",
                 NULL, TEXT(predict)},
    [DTYPE] = {0, "dtype", "TYPE", "type of the matrices", "float32", TYPE(desc.dtype)},
    [WIRE_DTYPE] = {0, "wire-dtype", "TYPE", "type of the data sent (default: as in lap bench)",
                    NULL, TYPE(desc.wire_dtype)},
    [EPILOGUE] = {0, "epilogue", "LIST", "some of bias, gelu, dgelu and bias-grad", "none",
                  EPILOGUE_OF(desc.epilogue)},
    [ROWS] = {0, "rows", "COUNT", "rows of this call, 0 to M (default: M)", NULL, LAP_BY_CODE},
    [FIELD] = {0, "field", "NAME=VALUE,...",
               "other fields of the operator, as lap/op.h has them: layout=dgrad", NULL,
               LAP_BY_CODE},
    [SVG] = {LAP_OPTION_SVG, TEXT(svg)},
    [JSON] = {LAP_OPTION_JSON, ON(json)},
};

static const lap_command_t command = {
    .name = "lap show",
    .usage = "ag|rs|ar|gemm|bulk-ag|bulk-rs|external-ag|external-rs M N K [OPTIONS]\n"
             "       lap show train [OPTIONS]\n"
             "       lap show pipeline [OPTIONS]",
    .summary = "Prints what each rank does in a call of an operator: its steps, their streams,\n"
               "the ranges they read and write, and what they wait for.",
    .details =
        "Passes of lowering turn the schedule that a method builds into what a target is\n"
        "given. A GPU is not needed to lower for one. Nothing is run: --predict simulates the\n"
        "call on GPUs that the files of lap plan describe; the time of a wait goes from its\n"
        "begin, that of a put to its arrival.\n"
        "\n"
        "lap show train takes the options of lap train and shows the program of one rank\n"
        "for forward, loss, backward and step: a line for each kernel and each call of\n"
        "an operator, what it reads and writes and what it comes after, and the memory\n"
        "of activations from their first use to their last. Its --all-steps shows all\n"
        "steps and the reason of each link between them, its --predict when each would\n"
        "run, by simulation with the costs of this machine. What else is its own\n"
        "(--rank, --target, --after, --each, --svg) is as above. lap bench --method NAME,auto\n"
        "predicts a call on this machine. lap show pipeline prints the table of a pipeline\n"
        "schedule. 'lap show train --help' and 'lap show pipeline --help' list their options.",
    .exit_status = "  0  the schedule was shown\n"
                   "  1  there was no memory, or the picture could not be written\n"
                   "  2  the command line is wrong, or the target cannot do the method",
    .options = options,
    .noptions = NOPTIONS,
    .min_positionals = 1,
    .max_positionals = 4,
};

/* ---- reading ---- */

static bool parse_what(const char *what, size_t *kind_p)
{
    const char *words[LAP_KINDS + 3] = {NULL};
    for (size_t i = 0; i < LAP_KINDS; i++)
        words[i] = lap_kind_words[i].word;
    words[LAP_KINDS] = "train";
    words[LAP_KINDS + 1] = "pipeline";
    return lap_arg_choice(&command, "what to show", what, words, kind_p);
}

static bool parse_kind(const lap_args_t *args, lap_op_kind_t *kind_p)
{
    size_t kind;
    if (!parse_what(args->positionals[0], &kind))
        return false;
    if (kind >= LAP_KINDS)
        return lap_args_wrong(&command, "%s comes after options; expected lap show %s [OPTIONS]",
                              args->positionals[0], args->positionals[0]);
    if (args->npositionals != 4)
        return lap_args_wrong(&command, "%s takes the three sizes M N K: got %zu of them",
                              args->positionals[0], args->npositionals - 1);
    *kind_p = (lap_op_kind_t)kind;
    return true;
}

bool lap_show_read_after(const lap_args_t *args, int option, void *to)
{
    const char *names[MAX_NAMES + 2] = {"build"};
    size_t index;
    for (size_t i = 0; i < MAX_NAMES && lap_pass_at(i); i++)
        names[i + 1] = lap_pass_at(i)->name;
    if (!lap_arg_choice(args->command, "--after", args->values[option], names, &index))
        return false;
    lap_option_put(args, option, &names[index], to);
    return true;
}

static bool parse_rank(const lap_args_t *args, request_t *request)
{
    request->rank = -1;
    return !args->values[RANK] || lap_arg_int(&command, "--rank", args->values[RANK], 0,
                                              request->ranks - 1, &request->rank);
}

bool lap_show_check_sense(const lap_command_t *of, const char *svg, bool json, bool each,
                          const char *after)
{
    if (svg && json)
        return lap_args_wrong(of, "--svg and --json: expected one of them");
    if (each && (after || svg || json))
        return lap_args_wrong(of, "--each prints text after every pass: expected no --after, "
                                  "--svg or --json");
    return true;
}

static bool parse_sizes(const lap_args_t *args, request_t *request)
{
    static const char *const names[] = {"M", "N", "K"};
    lap_op_desc_t *desc = &request->desc;
    size_t *const sizes[] = {&desc->m, &desc->n, &desc->k};
    for (size_t i = 0; i < 3; i++)
        if (!lap_arg_size(&command, names[i], args->positionals[i + 1], 1, LAP_SIZE_MOST, sizes[i]))
            return false;
    request->rows = desc->m;
    return !args->values[ROWS] ||
           lap_arg_size(&command, "--rows", args->values[ROWS], 0, desc->m, &request->rows);
}

/* One NAME=VALUE of --field. */
static bool parse_field(const char *item, lap_op_desc_t *desc)
{
    const lap_field_t *fields[FIELDS_MAX];
    const char *names[FIELDS_MAX + 1], *value = strchr(item, '=');
    char name[LAP_LIST_TEXT];
    size_t count = 0, index;
    for (const lap_op_field_t *row = lap_op_fields; row->field.name && count < FIELDS_MAX; row++)
        if (row->field.type != LAP_FIELD_SKIPPED && row->field.type != LAP_FIELD_TEXT) {
            fields[count] = &row->field;
            names[count++] = row->field.name;
        }
    names[count] = NULL;
    if (!value)
        return lap_args_wrong(&command, "--field is '%s'; expected NAME=VALUE", item);
    snprintf(name, sizeof(name), "%.*s", (int)(value - item), item);
    return lap_arg_choice(&command, "--field", name, names, &index) &&
           lap_arg_field(&command, name, value + 1, fields[index], 0, desc);
}

static bool parse_fields(const lap_args_t *args, lap_op_desc_t *desc)
{
    lap_list_t list = {.count = 0};
    if (args->values[FIELD] && !lap_arg_list(&command, "--field", args->values[FIELD], &list))
        return false;
    for (size_t i = 0; i < list.count; i++)
        if (!parse_field(list.items[i], desc))
            return false;
    return true;
}

static bool parse(const lap_args_t *args, request_t *request)
{
    lap_op_desc_t *desc = &request->desc;
    if (!parse_kind(args, &desc->kind) || !parse_sizes(args, request) ||
        !lap_args_read(args, false, request) || !parse_rank(args, request))
        return false;
    const char *usual = lap_builders(desc->kind)[1].name;
    if (!request->method)
        request->method = usual ? usual : "serial";
    if (!lap_arg_method(&command, request->method, desc))
        return false;
    lap_kind_complete(desc);
    if (!parse_fields(args, desc))
        return false;
    if (request->predict && !request->target->device.graphs)
        return lap_args_wrong(&command, "--predict is for GPUs: expected --target cuda or nccl");
    if (request->predict && request->svg)
        return lap_args_wrong(&command, "--predict prints times: expected no --svg");
    return lap_show_check_sense(&command, request->svg, request->json, request->each,
                                request->after);
}

/* ---- showing ---- */

static lap_status_t show(const request_t *request, const lap_problem_t *problem,
                         const lap_schedule_t *schedules, const lap_pass_t *pass)
{
    lap_show_t it = {.desc = &request->desc,
                     .problem = problem,
                     .label = request->method,
                     .target = request->target,
                     .pass = pass,
                     .schedules = schedules,
                     .size = request->ranks,
                     .rank = request->rank};
    if (request->svg)
        return lap_show_svg(&it, request->svg);
    if (request->predict)
        LAP_TRY(lap_show_predict(request->predict, schedules, request->ranks, &it.prediction));
    if (request->json)
        lap_show_json(&it);
    else
        lap_show_print(&it);
    lap_free(it.prediction.spans);
    return LAP_OK;
}

static lap_status_t build(const request_t *request, lap_problem_t *problem, lap_all_ranks_t *all)
{
    const lap_builder_t *builder;
    LAP_TRY(
        lap_problem_init(problem, &builder, &request->desc, request->ranks, request->target->can));
    problem->m = request->rows;
    LAP_TRY(lap_all_ranks_create(request->ranks, 1, all));
    return lap_all_ranks_build(all, 0, builder, problem);
}

/* The schedule as it is after `pass`, from the beginning; NULL: as built. */
static lap_status_t show_after(const void *context, const lap_pass_t *pass)
{
    const request_t *request = context;
    lap_all_ranks_t all = {.schedules = NULL};
    lap_problem_t problem;
    lap_status_t status = build(request, &problem, &all);
    if (status == LAP_OK && pass)
        status = lap_lower(all.schedules, all.size, request->target, pass->name);
    if (status == LAP_OK)
        status = show(request, &problem, all.schedules, pass);
    lap_all_ranks_clear(&all);
    return status;
}

const lap_pass_t *lap_show_find_pass(const lap_target_t *target, const char *name)
{
    const lap_pass_t *found = NULL;
    for (size_t i = 0; lap_pass_at(i); i++) {
        const lap_pass_t *pass = lap_pass_at(i);
        if (name ? strcmp(pass->name, name) == 0 : pass->applies(target))
            found = pass;
    }
    return found;
}

lap_status_t lap_show_each(const lap_target_t *target, lap_show_pass_t show, const void *context)
{
    LAP_TRY(show(context, NULL));
    for (size_t i = 0; lap_pass_at(i); i++) {
        if (!lap_pass_at(i)->applies(target))
            continue;
        printf("\n");
        LAP_TRY(show(context, lap_pass_at(i)));
    }
    return LAP_OK;
}

int lap_cli_show(int argc, char **argv)
{
    lap_args_t args;
    request_t request = {.desc = LAP_OP_DESC_INIT};
    if (argc > 1 && strcmp(argv[1], "pipeline") == 0)
        return lap_cli_show_pipeline(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "train") == 0)
        return lap_cli_show_train(argc - 1, argv + 1);
    size_t kind; /* a wrong word comes before options that would be right with another */
    if (argc > 1 && argv[1][0] != '-' && !parse_what(argv[1], &kind))
        return LAP_CLI_USAGE;
    const int parsed = lap_args_parse(&command, argc, argv, &args);
    if (parsed != LAP_CLI_GO)
        return parsed;
    if (!parse(&args, &request))
        return LAP_CLI_USAGE;
    const lap_status_t status =
        request.each ? lap_show_each(request.target, show_after, &request)
                     : show_after(&request, lap_show_find_pass(request.target, request.after));
    return status == LAP_OK ? LAP_CLI_OK : lap_args_refused(&command, status, "");
}
