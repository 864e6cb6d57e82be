/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Searching. All grids of all factors are walked through; those that cannot be are counted by the
 * reason. The costs of a layer depend on a few of the factors only, and are found once for each; so is
 * what a table of the pipeline holds. Those that fit are then planned in the order of the least that they
 * may take, until none is left that could be among the best: a long pipeline takes a second to plan.
 */
#include "plan/search.h"
#include "nn/nn_fields.h"

#include <stdlib.h>
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
    "slower than the best",
    "does not fit in memory",
    "its layers cannot be shared so",
    NULL};

typedef struct known_layer {
    size_t tp, cp, micro_batch;
    lap_plan_recompute_t recompute;
    lap_plan_layer_t layer;
} known_layer_t;

typedef struct known_table {
    lap_plan_table_t table;
    size_t most_live;
} known_table_t;

/* A configuration that fits. */
typedef struct candidate {
    lap_plan_config_t config;
    lap_plan_played_t played;
    uint32_t layer; /* of those that are known */
    uint32_t order;
    double least; /* seconds */
} candidate_t;

typedef struct search {
    const lap_plan_config_t *given;
    const lap_machine_t *machine;
    lap_plan_found_t *found;
    bool (*stops)(void); /* NULL: nothing ends it */
    known_layer_t *known;
    known_table_t *tables;
    candidate_t *candidates;
    uint32_t nknown, ntables, ncandidates;
    size_t room, tables_room, candidates_room;
} search_t;

/* ---- results ---- */

static void leave_out(search_t *search, const lap_plan_config_t *config, lap_plan_reason_t reason)
{
    if (search->found->left_out[reason]++ == 0)
        search->found->example[reason] = *config;
}

/* What does not fit is counted; the one that needs least is kept. */
static void leave_out_large(search_t *search, const lap_plan_choice_t *choice)
{
    lap_plan_found_t *found = search->found;
    leave_out(search, &choice->config, LAP_PLAN_LARGE);
    if (!found->any_nearest || choice->result.total_bytes < found->nearest.result.total_bytes)
        found->nearest = *choice;
    found->any_nearest = true;
}

static bool is_full(const lap_plan_found_t *found)
{
    return found->count == found->most;
}

/* Whether as many are faster as are to be found. */
static bool is_slow(const lap_plan_found_t *found, double seconds)
{
    return is_full(found) && seconds > found->best[found->count - 1].result.seconds;
}

static void add_choice(lap_plan_found_t *found, const lap_plan_choice_t *choice)
{
    size_t at = found->count;
    while (at > 0 && found->best[at - 1].result.seconds > choice->result.seconds)
        at--;
    if (at == found->most)
        return;
    if (!is_full(found))
        found->count++;
    for (size_t i = found->count - 1; i > at; i--)
        found->best[i] = found->best[i - 1];
    found->best[at] = *choice;
}

/* ---- layers ---- */

static lap_status_t find_layer(search_t *search, const lap_plan_config_t *config, uint32_t *layer_p)
{
    for (*layer_p = 0; *layer_p < search->nknown; ++*layer_p) {
        const known_layer_t *known = &search->known[*layer_p];
        if (known->tp == config->tp && known->cp == config->cp &&
            known->micro_batch == config->micro_batch && known->recompute == config->recompute)
            return LAP_OK;
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
    return LAP_OK;
}

/* Finds what a rank of the pipeline holds at most. */
static lap_status_t find_table(search_t *search, const lap_plan_config_t *config,
                               size_t *most_live_p)
{
    const lap_plan_table_t table = lap_plan_table(config);
    for (uint32_t i = 0; i < search->ntables; i++) {
        const lap_plan_table_t *known = &search->tables[i].table;
        *most_live_p = search->tables[i].most_live;
        if (strcmp(known->schedule, table.schedule) == 0 && known->pp == table.pp &&
            known->virtual_pp == table.virtual_pp && known->micros == table.micros)
            return LAP_OK;
    }
    known_table_t *grown =
        lap_grow(search->tables, search->ntables, &search->tables_room, sizeof(*grown));
    if (!grown)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %u tables", search->ntables + 1u);
    search->tables = grown;
    LAP_TRY(lap_plan_most_live(&table, most_live_p));
    grown[search->ntables++] = (known_table_t){table, *most_live_p};
    return LAP_OK;
}

/* Whether the caller has given all sizes of the grid: what is wrong with it is an error then. */
static bool is_one_grid(const lap_plan_config_t *given)
{
    return given->tp > 0 && given->pp > 0 && given->cp > 0;
}

static lap_status_t add_candidate(search_t *search, const candidate_t *candidate)
{
    candidate_t *grown =
        lap_grow(search->candidates, search->ncandidates, &search->candidates_room, sizeof(*grown));
    if (!grown)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %u grids", search->ncandidates + 1u);
    search->candidates = grown;
    grown[search->ncandidates++] = *candidate;
    return LAP_OK;
}

static lap_status_t try_it(search_t *search, const lap_plan_config_t *config)
{
    candidate_t candidate = {.config = *config, .order = search->ncandidates};
    lap_plan_choice_t choice = {.config = *config};
    if (search->stops && search->stops())
        return LAP_IN_PROGRESS;
    LAP_TRY(find_layer(search, config, &candidate.layer));
    search->found->tried++;
    LAP_TRY(find_table(search, config, &candidate.played.most_live));
    LAP_TRY(lap_plan_step_least(config, search->machine, &search->known[candidate.layer].layer,
                                &candidate.played, &choice.result));
    candidate.least = choice.result.seconds;
    if (choice.result.fits)
        return add_candidate(search, &candidate);
    leave_out_large(search, &choice);
    return LAP_OK;
}

/* What is wrong with a configuration, unless it was given. */
static lap_status_t excuse(search_t *search, const lap_plan_config_t *config, lap_status_t status)
{
    if (status != LAP_ERR_INVALID || is_one_grid(search->given))
        return status;
    leave_out(search, config, LAP_PLAN_SHARES);
    return LAP_OK;
}

static lap_status_t try_one(search_t *search, const lap_plan_config_t *config)
{
    return excuse(search, config, try_it(search, config));
}

/* Replicas add time, and take longer to plan than all else: what cannot be among the best needs none. */
static lap_status_t plan_candidate(search_t *search, candidate_t *candidate)
{
    const lap_plan_layer_t *layer = &search->known[candidate->layer].layer;
    lap_plan_choice_t choice = {.config = candidate->config};
    if (search->stops && search->stops())
        return LAP_IN_PROGRESS;
    LAP_TRY(lap_plan_step_local(&choice.config, search->machine, layer, &candidate->played,
                                &choice.result));
    if (is_slow(search->found, choice.result.seconds)) {
        leave_out(search, &choice.config, LAP_PLAN_SLOW);
        return LAP_OK;
    }
    LAP_TRY(lap_plan_step_played(&choice.config, search->machine, layer, &candidate->played,
                                 &choice.result));
    add_choice(search->found, &choice);
    return LAP_OK;
}

static int by_least(const void *left, const void *right)
{
    const candidate_t *a = left, *b = right;
    if (a->least != b->least)
        return a->least < b->least ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static lap_status_t plan_candidates(search_t *search)
{
    if (search->ncandidates > 0)
        qsort(search->candidates, search->ncandidates, sizeof(*search->candidates), by_least);
    for (uint32_t i = 0; i < search->ncandidates; i++) {
        candidate_t *candidate = &search->candidates[i];
        if (is_slow(search->found, candidate->least))
            leave_out(search, &candidate->config, LAP_PLAN_SLOW);
        else
            LAP_TRY(excuse(search, &candidate->config, plan_candidate(search, candidate)));
    }
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
    if (status == LAP_OK)
        status = plan_candidates(&search);
    found_p->stopped = status == LAP_IN_PROGRESS;
    if (found_p->stopped)
        status = LAP_OK;
    if (status == LAP_OK && !found_p->stopped && found_p->count == 0 && found_p->any_nearest)
        status = lap_plan_step(&found_p->nearest.config, machine, NULL, &found_p->nearest.result);
    lap_free(search.known);
    lap_free(search.tables);
    lap_free(search.candidates);
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
