/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap show train`: links the pass of a `lap train` with the same options and prints the program of a
 * rank: its fragments, what they read and write, why they wait for each other, and its memory.
 */
#include "show_train.h"

#include <stdio.h>
#include <string.h>

#include <lap/lap.h>

#include "core/status.h"
#include "shared_options.h"
#include "util/alloc.h"

enum { RANK, TARGET, AFTER, EACH, STEPS, SVG, NOPTIONS };

static const lap_option_t own[NOPTIONS] = {
    [RANK] = {0, "rank", "R", "show the program of this rank", "0"},
    [TARGET] = LAP_OPTION_TARGET_OF_DEVICE,
    [AFTER] = LAP_OPTION_AFTER,
    [EACH] = LAP_OPTION_EACH,
    [STEPS] = {0, "steps", NULL, "show all steps of all fragments, and all activations", NULL},
    [SVG] = LAP_OPTION_SVG,
};

static lap_train_form_t form = {
    .command = {
        .name = "lap show train",
        .usage = "[OPTIONS]",
        .summary = "Prints the program of a rank for forward, loss and backward of a lap train\n"
                   "with the same options: fragments, links between them, and memory.",
        .details =
            "A fragment is a kernel or the call of an operator. A link lets a step wait for\n"
            "a step of an earlier fragment on another stream. Activations share memory where\n"
            "they do not live at the same time. Nothing is run, and a target need not be there.",
        .exit_status = "  0  the program was shown\n"
                       "  1  there was no memory, or the picture could not be written\n"
                       "  2  the command line is wrong, or the target cannot do a method",
    }};

typedef struct request {
    lap_train_t train;
    lap_nn_plan_t plan;
    const lap_target_t *target;
    const char *after; /* NULL: all passes */
    int rank;
    bool each, steps;
    const char *svg;
} request_t;

static lap_status_t show_after(const request_t *request, const lap_pass_t *pass)
{
    const lap_nn_linking_t linking = {
        .target = request->target, .as_built = !pass, .after = pass ? pass->name : NULL};
    lap_nn_programs_t programs;
    lap_show_train_t show = {.train = &request->train,
                             .target = request->target,
                             .pass = pass,
                             .programs = &programs,
                             .rank = request->rank,
                             .steps = request->steps};
    lap_status_t status = lap_nn_programs_init(&programs, &request->plan, &linking);
    if (status == LAP_OK) {
        show.list = &programs.lists[request->rank];
        show.linked = &programs.programs[request->rank];
        status = lap_show_lifetimes(&show);
    }
    if (status == LAP_OK && request->svg)
        status = lap_show_train_svg(&show, request->svg);
    else if (status == LAP_OK)
        (request->train.json ? lap_show_train_json : lap_show_train_print)(&show);
    lap_free(show.lifetimes);
    lap_nn_programs_clear(&programs);
    return status;
}

static lap_status_t show_each(const request_t *request)
{
    LAP_TRY(show_after(request, NULL));
    for (size_t i = 0; lap_pass_at(i); i++) {
        if (!lap_pass_at(i)->applies(request->target))
            continue;
        printf("\n");
        LAP_TRY(show_after(request, lap_pass_at(i)));
    }
    return LAP_OK;
}

static bool parse(const lap_command_t *command, request_t *request)
{
    const lap_train_t *train = &request->train;
    const char *target = lap_train_own(train, TARGET);
    request->each = lap_train_own(train, EACH) != NULL;
    request->steps = lap_train_own(train, STEPS) != NULL;
    request->svg = lap_train_own(train, SVG);
    return lap_arg_int(command, "--rank", lap_train_own(train, RANK), 0, train->tp - 1,
                       &request->rank) &&
           (!target || lap_arg_target(command, target, &request->target)) &&
           lap_show_parse_after(command, lap_train_own(train, AFTER), &request->after) &&
           lap_show_check_sense(command, request->svg, train->json, request->each, request->after);
}

int lap_cli_show_train(int argc, char **argv)
{
    request_t request = {.rank = 0};
    const lap_command_t *command = lap_train_extend(&form, own, NOPTIONS);
    const int parsed = lap_train_parse(command, argc, argv, &request.train);
    if (parsed != LAP_CLI_GO)
        return parsed;
    lap_nn_desc_t desc = request.train.desc;
    desc.overlap = request.train.overlap ? &request.train.rules : &request.train.serial;
    lap_status_t status = lap_train_target(&request.train, NULL, &request.target);
    if (status == LAP_OK && !parse(command, &request))
        return LAP_CLI_USAGE;
    if (status == LAP_OK)
        status = lap_nn_plan_init(&desc, request.train.tp, &request.plan);
    if (status == LAP_OK)
        status = request.each
                     ? show_each(&request)
                     : show_after(&request, lap_show_find_pass(request.target, request.after));
    return status == LAP_OK ? LAP_CLI_OK : lap_args_refused(command, status, "");
}
