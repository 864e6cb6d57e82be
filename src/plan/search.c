/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Searching. All grids of all factors are walked through; those that cannot be are counted by the
 * reason. The costs of a layer depend on a few of the factors only, and are found once for each.
 */
#include "plan/search.h"
#include "nn/nn_fields.h"

#include <string.h>

#include "util/alloc.h"

#define LEAST_TOKENS 512 /* of a sequence on a rank of context parallelism, in a search */

const char *const lap_plan_reason_names[LAP_PLAN_REASONS + 1] = {
    "heads, or those of keys, are no multiple of tp",
    "tp is larger than a node",
    "tokens of a sequence are no multiple of 2 * cp, or too few for it",
    "layers do not divide by the stages",
    "virtual stages need a pipeline",
    "the global batch is no multiple of dp * micro-batch",
    "interleaved wants a multiple of pp micro-batches",
    "slower than the best even without bubbles",
    "does not fit in memory",
    "its layers cannot be shared so",
    NULL};

typedef struct known_layer {
    size_t tp, cp, micro_batch;
    lap_plan_recompute_t recompute;
    lap_plan_layer_t layer;
} known_layer_t;

typedef struct search {
    const lap_plan_config_t *given;
    const lap_machine_t *machine;
    lap_plan_found_t *found;
    bool (*stops)(void); /* NULL: nothing ends it */
    known_layer_t *known;
    uint32_t nknown;
    size_t room;
} search_t;

/* ---- results ---- */

static void leave_out(search_t *search, const lap_plan_config_t *config, lap_plan_reason_t reason)
{
    if (search->found->left_out[reason]++ == 0)
        search->found->example[reason] = *config;
}

static void add_choice(search_t *search, const lap_plan_choice_t *choice)
{
    lap_plan_found_t *found = search->found;
    if (!choice->result.fits) {
        leave_out(search, &choice->config, LAP_PLAN_LARGE);
        if (!found->any_nearest || choice->result.total_bytes < found->nearest.result.total_bytes)
            found->nearest = *choice;
        found->any_nearest = true;
        return;
    }
    size_t at = found->count;
    while (at > 0 && found->best[at - 1].result.seconds > choice->result.seconds)
        at--;
    if (at == found->most)
        return;
    if (found->count < found->most)
        found->count++;
    for (size_t i = found->count - 1; i > at; i--)
        found->best[i] = found->best[i - 1];
    found->best[at] = *choice;
}

/* ---- layers ---- */

static lap_status_t find_layer(search_t *search, const lap_plan_config_t *config,
                               const lap_plan_layer_t **layer_p)
{
    for (uint32_t i = 0; i < search->nknown; i++) {
        const known_layer_t *known = &search->known[i];
        if (known->tp == config->tp && known->cp == config->cp &&
            known->micro_batch == config->micro_batch && known->recompute == config->recompute) {
            *layer_p = &known->layer;
            return LAP_OK;
        }
    }
    known_layer_t *grown =
        lap_grow(search->known, search->nknown, &search->room, sizeof(*search->known));
    if (!grown)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %u layers", search->nknown + 1u);
    search->known = grown;
    known_layer_t *added = &grown[search->nknown];
    *added = (known_layer_t){config->tp, config->cp, config->micro_batch, config->recompute,
                             .layer = {.weights = 0}};
    LAP_TRY(lap_plan_layer(config, search->machine, &added->layer));
    search->nknown++;
    *layer_p = &added->layer;
    return LAP_OK;
}

/* The work of a rank, without bubbles, messages and what comes after the last backward. */
static double least_seconds(const lap_plan_config_t *config, const lap_plan_layer_t *layer)
{
    const double micros =
        (double)config->global_batch / (double)config->dp / (double)config->micro_batch;
    return micros * (double)config->model.layers / (double)config->pp *
           (layer->layer[LAP_PLAN_FORWARD].seconds + layer->layer[LAP_PLAN_BACKWARD].seconds);
}

/* Whether the caller has given all sizes of the grid: what is wrong with it is an error then. */
static bool is_one_grid(const lap_plan_config_t *given)
{
    return given->tp > 0 && given->pp > 0 && given->cp > 0;
}

static lap_status_t try_it(search_t *search, const lap_plan_config_t *config)
{
    const lap_plan_found_t *found = search->found;
    const lap_plan_layer_t *layer = NULL;
    lap_plan_choice_t choice = {.config = *config};
    if (search->stops && search->stops())
        return LAP_IN_PROGRESS;
    LAP_TRY(find_layer(search, config, &layer));
    search->found->tried++;
    if (found->count == found->most &&
        least_seconds(config, layer) > found->best[found->count - 1].result.seconds) {
        leave_out(search, config, LAP_PLAN_SLOW);
        return LAP_OK;
    }
    /* Replicas add time, and no memory: what cannot be among the best needs none of it. */
    LAP_TRY(lap_plan_step_local(config, search->machine, layer, &choice.result));
    const bool full = found->count == found->most;
    if (choice.result.fits &&
        !(full && choice.result.seconds > found->best[found->count - 1].result.seconds))
        LAP_TRY(lap_plan_step(config, search->machine, layer, &choice.result));
    add_choice(search, &choice);
    return LAP_OK;
}

static lap_status_t try_one(search_t *search, const lap_plan_config_t *config)
{
    const lap_status_t status = try_it(search, config);
    if (status != LAP_ERR_INVALID || is_one_grid(search->given))
        return status;
    leave_out(search, config, LAP_PLAN_SHARES);
    return LAP_OK;
}

/* ---- factors ---- */

static bool divides(size_t value, size_t divisor)
{
    return divisor > 0 && value % divisor == 0;
}

/*
 * Stages have the same layers, or would if embedding and head were one each; and a schedule that is
 * given has so many of them.
 */
static bool stages_divide(const lap_plan_config_t *config, const char *schedule)
{
    const bool v = schedule && strcmp(schedule, "zb-v") == 0;
    const size_t stages = config->pp * (v ? 2 : config->virtual_pp), layers = config->model.layers;
    if (schedule && (strcmp(schedule, "interleaved") == 0) != (config->virtual_pp > 1))
        return false;
    return stages <= layers + 2 && (divides(layers, stages) || divides(layers + 2, stages));
}

static lap_status_t try_schedules(search_t *search, lap_plan_config_t config)
{
    const char *given = search->given->schedule;
    const size_t micros = config.global_batch / config.dp / config.micro_batch;
    config.schedule = given ? given : config.virtual_pp > 1 ? "interleaved" : "1f1b";
    if (strcmp(config.schedule, "interleaved") == 0 && !divides(micros, config.pp)) {
        leave_out(search, &config, LAP_PLAN_MICROS);
        return LAP_OK;
    }
    if (given || config.virtual_pp > 1)
        return try_one(search, &config);
    LAP_TRY(try_one(search, &config));
    config.schedule = "zb-h1";
    return config.pp > 1 ? try_one(search, &config) : LAP_OK;
}

/* Virtual stages: what is given, or all that divide. The grid itself is one, or it was given. */
static lap_status_t try_stages(search_t *search, lap_plan_config_t config)
{
    const size_t given = search->given->virtual_pp;
    const size_t most = config.pp > 1 ? config.model.layers / config.pp + 1 : 1;
    if (given > 1 && config.pp == 1) {
        config.virtual_pp = given;
        leave_out(search, &config, LAP_PLAN_VIRTUAL);
        return LAP_OK;
    }
    if (given > 0) {
        config.virtual_pp = given;
        return try_schedules(search, config);
    }
    bool any = false;
    for (config.virtual_pp = 1; config.virtual_pp <= most; config.virtual_pp++)
        if (stages_divide(&config, search->given->schedule)) {
            any = true;
            LAP_TRY(try_schedules(search, config));
        }
    config.virtual_pp = 1;
    if (any)
        return LAP_OK;
    if (search->given->pp > 0) /* some stages have a layer more */
        return try_schedules(search, config);
    leave_out(search, &config, LAP_PLAN_STAGES);
    return LAP_OK;
}

static lap_status_t try_recomputes(search_t *search, lap_plan_config_t config)
{
    static const lap_plan_recompute_t all[] = {LAP_PLAN_RECOMPUTE_NONE,
                                               LAP_PLAN_RECOMPUTE_SELECTIVE,
                                               LAP_PLAN_RECOMPUTE_FULL, LAP_PLAN_RECOMPUTE_LAYER};
    if (search->given->recompute != LAP_PLAN_ANY_RECOMPUTE)
        return try_stages(search, config);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        config.recompute = all[i];
        LAP_TRY(try_stages(search, config));
    }
    return LAP_OK;
}

static lap_status_t try_micro_batches(search_t *search, lap_plan_config_t config)
{
    const size_t given = search->given->micro_batch;
    config.micro_batch = given > 0 ? given : 1;
    if (!divides(config.global_batch, config.dp * config.micro_batch)) {
        leave_out(search, &config, LAP_PLAN_BATCH);
        return LAP_OK;
    }
    if (given > 0)
        return try_recomputes(search, config);
    for (; divides(config.global_batch, config.dp * config.micro_batch) && config.micro_batch <= 8;
         config.micro_batch *= 2)
        LAP_TRY(try_recomputes(search, config));
    return LAP_OK;
}

/* ---- grids ---- */

static lap_status_t try_grid(search_t *search, lap_plan_config_t config)
{
    const lap_nn_desc_t *model = &config.model;
    const size_t kv_heads = lap_nn_kv_heads(model);
    const lap_plan_config_t *given = search->given;
    lap_plan_reason_t reason = LAP_PLAN_REASONS;
    if (!divides(model->heads, config.tp) || !divides(kv_heads, config.tp))
        reason = LAP_PLAN_HEADS;
    else if (given->tp == 0 && (double)config.tp > search->machine->gpus_per_node)
        reason = LAP_PLAN_NODE;
    else if (config.cp > 1 && (!divides(model->seq, 2 * config.cp) ||
                               (given->cp == 0 && model->seq / config.cp < LEAST_TOKENS)))
        reason = LAP_PLAN_SEQ;
    else if (config.pp > model->layers)
        reason = LAP_PLAN_STAGES;
    if (reason != LAP_PLAN_REASONS) {
        leave_out(search, &config, reason);
        return LAP_OK;
    }
    return try_micro_batches(search, config);
}

/* The next of the divisors of a number, or what is given and no other; 0: there is none left. */
static size_t next_factor(size_t number, size_t given, size_t before)
{
    if (given > 0)
        return before == 0 && divides(number, given) ? given : 0;
    for (size_t factor = before + 1; factor <= number; factor++)
        if (number % factor == 0)
            return factor;
    return 0;
}

static lap_status_t try_all(search_t *search)
{
    const lap_plan_config_t *given = search->given;
    lap_plan_config_t config = *given;
    for (size_t tp = 0; (tp = next_factor(given->gpus, given->tp, tp)) > 0;)
        for (size_t cp = 0; (cp = next_factor(given->gpus / tp, given->cp, cp)) > 0;)
            for (size_t pp = 0; (pp = next_factor(given->gpus / tp / cp, given->pp, pp)) > 0;) {
                config.tp = tp;
                config.cp = cp;
                config.pp = pp;
                config.dp = given->gpus / tp / cp / pp;
                if (given->dp == 0 || given->dp == config.dp)
                    LAP_TRY(try_grid(search, config));
            }
    return LAP_OK;
}

/* What is given leaves a whole number of GPUs for the rest. */
static lap_status_t check_given(const lap_plan_config_t *given)
{
    const size_t sizes[] = {given->tp, given->pp, given->cp, given->dp};
    char grid[LAP_PLAN_GRID_TEXT];
    size_t left = given->gpus;
    lap_plan_grid_text(given, grid);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i] > 0 && left % sizes[i] != 0)
            return lap_error(LAP_ERR_INVALID,
                             "the grid is to have %s, expected sizes whose product divides the %zu "
                             "GPUs",
                             grid, given->gpus);
        left /= sizes[i] > 0 ? sizes[i] : 1;
    }
    return LAP_OK;
}

lap_status_t lap_plan_search(const lap_plan_config_t *given, const lap_machine_t *machine,
                             size_t most, bool (*stops)(void), lap_plan_found_t *found_p)
{
    *found_p = (lap_plan_found_t){.most = most < LAP_PLAN_BEST_MOST ? most : LAP_PLAN_BEST_MOST};
    search_t search = {.given = given, .machine = machine, .found = found_p, .stops = stops};
    LAP_TRY(lap_plan_check_sizes(given));
    LAP_TRY(lap_plan_check_type(given, machine));
    LAP_TRY(check_given(given));
    lap_status_t status = try_all(&search);
    found_p->stopped = status == LAP_IN_PROGRESS;
    if (found_p->stopped)
        status = LAP_OK;
    if (status == LAP_OK && !found_p->stopped && found_p->count == 0 && found_p->any_nearest)
        status = lap_plan_step(&found_p->nearest.config, machine, NULL, &found_p->nearest.result);
    lap_free(search.known);
    return status;
}

lap_status_t lap_plan_complete(lap_plan_config_t *config, const lap_machine_t *machine,
                               lap_plan_result_t *result_p)
{
    lap_plan_config_t given = *config;
    lap_plan_found_t *found;
    if (given.virtual_pp > 0)
        given.schedule = given.virtual_pp > 1 ? "interleaved" : "1f1b";
    if (given.virtual_pp > 0 && given.micro_batch > 0) {
        *config = given;
        return lap_plan_step(config, machine, NULL, result_p);
    }
    if (given.virtual_pp == 0)
        given.schedule = NULL;
    if (!(found = lap_alloc(1, sizeof(*found))))
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to search");
    lap_status_t status = lap_plan_search(&given, machine, 1, NULL, found);
    if (status == LAP_OK && found->count == 0 && !found->any_nearest)
        status = lap_error(LAP_ERR_INVALID, "no micro-batch and no virtual stages make it a grid");
    if (status == LAP_OK) {
        const lap_plan_choice_t *chosen = found->count ? &found->best[0] : &found->nearest;
        *config = chosen->config;
        *result_p = chosen->result;
    }
    lap_free(found);
    return status;
}
