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
#include "core/world.h"
#include "nn/predict.h"
#include "option_rows.h"
#include "parallel/stage_run.h"
#include "ranks.h"
#include "shared_options.h"
#include "tune.h"
#include "util/alloc.h"

enum { RANK, TARGET, AFTER, EACH, STEPS, PREDICT, SVG, NOPTIONS };

typedef struct request {
    lap_train_t train; /* first: see lap_train_start */
    lap_nn_plan_t plan;
    const lap_target_t *target;
    const char *after; /* NULL: all passes */
    const char *rank_text, *predict;
    int rank;
    bool each, steps, predicts;
    const char *svg, *machine;
} request_t;

#define OPTIONS_OF request_t
static const lap_option_t own[NOPTIONS] = {
    [RANK] = {0, "rank", "R", "show the program of this rank", "0", TEXT(rank_text)},
    [TARGET] = {LAP_OPTION_TARGET_OF_DEVICE, TARGET_OF(target)},
    [AFTER] = {LAP_OPTION_AFTER, AFTER_OF(after)},
    [EACH] = {LAP_OPTION_EACH, ON(each)},
    [STEPS] = {0, "all-steps", NULL, "show all steps of all fragments, and all activations", NULL,
               ON(steps)},
    [PREDICT] = {0, "predict", "[=GPU]",
                 "start the ranks, measure what GEMMs, kernels, copies and signals cost by "
                 "themselves, and say when each fragment would run; =GPU: start nothing, simulate "
                 "such GPUs, as in lap show --predict",
                 NULL, TEXT(predict)},
    [SVG] = {LAP_OPTION_SVG, TEXT(svg)},
};

static lap_train_form_t form = {
    .command = {
        .name = "lap show train",
        .usage = "[OPTIONS]",
        .summary = "Prints the program of a rank for forward, loss, backward and step of a\n"
                   "lap train with the same options: fragments, links between them, and memory.",
        .details =
            "A fragment is a kernel or the call of an operator. A link lets a step wait for\n"
            "a step of an earlier fragment on another stream. Activations share memory where\n"
            "they do not live at the same time. Nothing is run, but for --predict, and a target\n"
            "need not be there.",
        .exit_status = "  0  the program was shown\n"
                       "  1  there was no memory, or the picture could not be written\n"
                       "  2  the command line is wrong, or the target cannot do a method",
    }};

/*
 * Of one pass; with replicas, of the last of a step, in which gradients go to them. Collective, also
 * after a failure of this rank: `status`.
 */
static lap_status_t predict(lap_nn_t *nn, lap_status_t status, lap_show_train_t *show,
                            lap_fragment_span_t **spans_p)
{
    if (status == LAP_OK) {
        *spans_p = lap_alloc(show->linked->nfragments, sizeof(**spans_p));
        if (!*spans_p)
            status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %u fragments",
                               (unsigned)show->linked->nfragments);
    }
    LAP_TRY(lap_group_agree(nn->group, status));
    lap_nn_prediction_t prediction = {.spans = *spans_p, .rank = show->rank, .last = true};
    LAP_TRY(lap_nn_predict(nn, &prediction));
    show->predicted = prediction.seconds[0][1];
    show->call_s = prediction.call_s;
    show->spans = *spans_p;
    return LAP_OK;
}

/* The program of the rank, with what is known of it; show->lifetimes and *spans_p are the caller's to free. */
static lap_status_t complete(const request_t *request, lap_show_train_t *show,
                             lap_fragment_span_t **spans_p)
{
    show->list = &show->programs->lists[show->rank];
    show->linked = &show->programs->programs[show->rank];
    LAP_TRY(lap_show_lifetimes(show));
    return request->machine
               ? lap_show_predict_program(request->machine, show->programs, show, spans_p)
               : LAP_OK;
}

static lap_status_t put(const request_t *request, const lap_show_train_t *show)
{
    if (request->svg)
        return lap_show_train_svg(show, request->svg);
    (request->train.json ? lap_show_train_json : lap_show_train_print)(show);
    return LAP_OK;
}

/*
 * The program after `pass`; NULL: with operators as built. Of layers that there are: predicted, with
 * the methods that they have chosen; rank 0 of the world shows it.
 */
static lap_status_t show_after(const request_t *request, const lap_pass_t *pass, lap_nn_t *nn)
{
    lap_nn_source_t source;
    lap_nn_linking_t linking = {.target = request->target,
                                .as_built = !pass && !nn,
                                .after = pass ? pass->name : NULL,
                                .replication =
                                    lap_train_replication(&request->train, request->train.grid.dp),
                                .optimizer = nn ? NULL : &request->train.optimizer,
                                .separate_step = !lap_train_joins(&request->train, false)};
    if (nn) {
        source = lap_nn_chosen(nn);
        linking.source = &source;
        linking.replication = (lap_nn_replication_t){.held = true};
        if (nn->background)
            linking.replication = lap_nn_replication(nn);
    }
    lap_nn_programs_t programs;
    lap_show_train_t show = {.train = &request->train,
                             .target = request->target,
                             .pass = pass,
                             .programs = &programs,
                             .rank = request->rank,
                             .steps = request->steps};
    lap_status_t status =
        lap_nn_programs_init(&programs, nn ? &nn->list.plan : &request->plan, &linking);
    lap_fragment_span_t *spans = NULL;
    if (status == LAP_OK)
        status = complete(request, &show, &spans);
    if (nn)
        status = predict(nn, status, &show, &spans);
    if (status == LAP_OK && (!nn || lap_world_rank(nn->group->world) == 0))
        status = put(request, &show);
    lap_free(spans);
    lap_free(show.lifetimes);
    lap_nn_programs_clear(&programs);
    return status;
}

/* The same of a step of a pipeline; `spans`: when the rank is at each fragment, or NULL. */
static lap_status_t show_linked(const request_t *request, const lap_stage_proving_t *proving,
                                const lap_pass_t *pass, const lap_fragment_span_t *spans,
                                uint32_t count, double seconds, double call_s)
{
    const lap_train_t *train = &request->train;
    const int rank = lap_stage_number(proving, request->rank);
    lap_stage_programs_t programs;
    lap_show_train_t show = {.train = train,
                             .target = request->target,
                             .pass = pass,
                             .programs = &programs.all,
                             .rank = rank,
                             .steps = request->steps,
                             .predicted = seconds,
                             .call_s = call_s,
                             .spans = spans};
    lap_status_t status = lap_stage_programs_init(&programs, proving);
    lap_fragment_span_t *simulated = NULL;
    if (status == LAP_OK) {
        show.items = programs.programs[rank].items;
        status = complete(request, &show, &simulated);
    }
    if (status == LAP_OK && spans && count != show.linked->nfragments)
        status = lap_error(LAP_ERR_CHECK, "%u fragments were simulated, expected the %u of rank %d",
                           (unsigned)count, (unsigned)show.linked->nfragments, request->rank);
    if (status == LAP_OK)
        status = put(request, &show);
    lap_free(simulated);
    lap_free(show.lifetimes);
    lap_stage_programs_clear(&programs);
    return status;
}

static lap_status_t view_stage(void *context, const lap_stage_proving_t *proving,
                               const lap_fragment_span_t *spans, uint32_t count, double seconds,
                               double call_s)
{
    return show_linked(context, proving, NULL, spans, count, seconds, call_s);
}

static lap_status_t show_stage(const request_t *request, const lap_pass_t *pass)
{
    const lap_train_t *train = &request->train;
    const lap_pp_options_t options = lap_train_stages(train, train->overlap);
    const lap_nn_desc_t desc = lap_train_layers(train, train->overlap);
    const lap_stage_proving_t proving = {.desc = &desc,
                                         .tp = train->grid.tp,
                                         .pp = train->grid.pp,
                                         .how.replication =
                                             lap_train_replication(train, train->grid.dp),
                                         .options = &options,
                                         .how.optimizer = &train->optimizer,
                                         .how.separate_step = !lap_train_joins(train, false),
                                         .how.target = request->target,
                                         .how.as_built = !pass,
                                         .how.after = pass ? pass->name : NULL};
    return show_linked(request, &proving, pass, NULL, 0, 0, 0);
}

static lap_status_t show_pass(const void *context, const lap_pass_t *pass)
{
    const request_t *request = context;
    return request->train.grid.pp > 1 ? show_stage(request, pass) : show_after(request, pass, NULL);
}

static bool parse(const lap_command_t *command, request_t *request)
{
    const lap_train_t *train = &request->train;
    const bool target = request->target != NULL;
    request->predicts = request->predict && !*request->predict;
    request->machine = request->predicts ? NULL : request->predict;
    if (request->machine && (request->after || request->each))
        return lap_args_wrong(command,
                              "--predict=GPU is of what runs: expected no --after or --each");
    if (!target && lap_train_target(train, &request->target) != LAP_OK)
        return lap_args_wrong(command, "%s", lap_last_error());
    if (request->machine && !request->target->device.graphs)
        return lap_args_wrong(command, "--predict=GPU is for GPUs: expected --target cuda or nccl");
    if (request->predicts && (target || request->after || request->each || request->svg))
        return lap_args_wrong(command, "--predict is for what runs here: expected no --target, "
                                       "--after, --each or --svg");
    return lap_arg_int(command, "--rank", request->rank_text, 0, lap_train_ranks(train) - 1,
                       &request->rank) &&
           lap_show_check_sense(command, request->svg, train->json, request->each, request->after);
}

/* ---- the command ---- */

/* Collective. */
static lap_status_t predict_model(request_t *request, lap_train_model_t *model)
{
    lap_group_t *world = model->trainer.groups.world;
    const lap_stage_viewer_t viewer = {
        .view = view_stage, .context = request, .rank = request->rank};
    double seconds;
    if (!model->trainer.pp)
        return show_after(request, NULL, model->trainer.nn);
    return lap_stage_predict(model->trainer.pp, world, false, NULL,
                             lap_group_rank(world) == 0 ? &viewer : NULL, &seconds);
}

/* One rank of --predict. */
static int predict_rank(const void *context, lap_world_t *world)
{
    request_t own_request = *(const request_t *)context, *request = &own_request;
    lap_grid_groups_t groups;
    lap_train_model_t model = {.train = NULL};
    lap_link_t link;
    lap_status_t status =
        lap_grid_groups_init(&groups, &request->train.grid, lap_world_group(world));
    if (status == LAP_OK)
        status = lap_tune_use(&request->train, groups.world);
    if (status == LAP_OK)
        status = lap_train_find_link(&request->train, &groups, &link);
    if (status == LAP_OK)
        status = lap_train_model_init(&model, &request->train, &groups, request->train.overlap,
                                      false, link);
    if (status == LAP_OK)
        status = predict_model(request, &model);
    const int result = status == LAP_OK ? LAP_CLI_OK
                                        : lap_ranks_fail(request->train.args.command->name,
                                                         lap_world_rank(world), status);
    lap_train_model_clear(&model);
    lap_grid_groups_clear(&groups);
    return result;
}

static lap_status_t show_plan(request_t *request)
{
    LAP_TRY(lap_tune_use(&request->train, NULL));
    const lap_nn_desc_t desc = lap_train_layers(&request->train, request->train.overlap);
    LAP_TRY(lap_nn_plan_init(&desc, request->train.grid.tp, &request->plan));
    if (request->each)
        return lap_show_each(request->target, show_pass, request);
    return show_pass(request, lap_show_find_pass(request->target, request->after));
}

static int run(const lap_command_t *command, int argc, char **argv, char *const *again)
{
    request_t request = {.rank = 0};
    const int parsed = lap_train_parse(command, false, argc, argv, &request.train);
    if (parsed != LAP_CLI_GO)
        return parsed;
    if (!parse(command, &request))
        return LAP_CLI_USAGE;
    if (request.predicts)
        return lap_train_start(&request.train, predict_rank, &request, again);
    const lap_status_t status = show_plan(&request);
    return status == LAP_OK ? LAP_CLI_OK : lap_train_refuse(&request.train, status);
}

/* argv[-1] is "show": ranks are started with both words. */
int lap_cli_show_train(int argc, char **argv)
{
    const lap_command_t *command = lap_train_extend(&form, own, NOPTIONS);
    char **again = lap_ranks_arguments(command, argc + 1, argv - 1);
    if (!again)
        return LAP_CLI_FAILED;
    const int result = run(command, argc, argv, again);
    lap_free(again);
    return result;
}
