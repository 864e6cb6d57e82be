/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap tune`: the search. One unit after another, each candidate takes its place in the rules found so
 * far, and the whole layer is timed with it, in turns with those rules. So neighbours, which share
 * links and cores, count.
 */
#include "tune.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <lap/lap.h>

#include "core/output.h"
#include "core/status.h"
#include "core/world.h"
#include "heads.h"
#include "interrupt.h"
#include "nn/nn.h"
#include "nn/nn_fields.h"
#include "nn/tp_overlap.h"
#include "option_rows.h"
#include "progress.h"
#include "ranks.h"
#include "util/alloc.h"
#include "util/clock.h"

enum { OUTPUT, ROUNDS, CLEAR, NOPTIONS };

#define ROUNDS_MOST 1000
#define OPTIONS_OF lap_tune_t
static const lap_option_t own[NOPTIONS] = {
    [OUTPUT] = {'o', "output", "FILE.yaml", "the file to write, which must be given", NULL,
                TEXT(output)},
    [ROUNDS] = {0, "rounds", "COUNT", "timed rounds of each comparison, 3 to 1000", "9",
                INT(rounds, 3, ROUNDS_MOST)},
    [CLEAR] = {0, "clear-cache", NULL, "remove all results from the cache, and do nothing else",
               NULL, ON(clears)},
};

static lap_train_form_t form = {
    .command = {
        .name = "lap tune",
        .usage = "-o FILE.yaml [OPTIONS]",
        .summary = "Finds the overlap of each GEMM of a layer that makes the layer fastest here,\n"
                   "and writes it as a file for --tp-comm-overlap-cfg of lap train.",
        .details =
            "The options are those of lap train; of a model one layer is tuned. Where ranks\n"
            "cannot share its heads evenly, it has the nearest number of heads that they can\n"
            "share and that leaves all GEMMs as they are, and the file says so. The search begins\n"
            "with the rules of these options, or where that is faster without overlap. One GEMM "
            "after\n"
            "another, each method and its knobs are tried in the whole forward and backward, in\n"
            "turns with the best rules so far. Where the costs of GEMMs and copies are known,\n"
            "methods that a simulation finds 10 % slower are left out. A method is taken if it\n"
            "was faster in three quarters of the rounds, twice, and no longer timed once it "
            "cannot\n"
            "be; serial stays where overlap loses. At the end the rules are timed against the\n"
            "defaults, auto and serial, and the fastest is written. The file says what each GEMM\n"
            "gained.\n\n"
            "What was found is in FILE.yaml.part after each method: a search that was interrupted\n"
            "goes on there if it is started with the same options. Where auto had won, it chooses\n"
            "again then.\n\n"
            "Results are stored in a cache, by machine, layer, type and version: in the folder\n"
            "lap of XDG_CACHE_HOME, or else of ~/.cache. The same search is then not made again,\n"
            "unless it has more rounds or begins with other rules; and lap train --auto uses the\n"
            "rules. --no-cache measures, and stores nothing.",
        .exit_status = "  0        the file was written, or the cache emptied\n"
                       "  1        a rank failed, or the file could not be written\n"
                       "  2        the command line is wrong\n"
                       "  128 + n  signal n ended it; the same command goes on",
    }};

#define SLOWER 1.10 /* predicted, of a candidate that is left out */
#define TIE 0.99    /* of two times that count as equal at the end */

/* ---- the search ---- */

typedef struct search {
    lap_tune_t *tune;
    const lap_grid_groups_t *groups;
    lap_link_t link;
    lap_tp_overlap_t rules;    /* the best so far, */
    lap_tune_contender_t best; /* with its layer */
    double predicted;
    int left_out, tried, same;
    lap_tune_progress_t progress;
    int interrupted; /* the signal that ends it; 0: none has come */
} search_t;

/* auto would choose anew, and perhaps otherwise, wherever a file is read: its choice here becomes the rule. */
static lap_status_t settle(const lap_tune_contender_t *contender, lap_tp_overlap_t *rules)
{
    const lap_nn_t *nn = contender->model.trainer.nn;
    for (size_t i = 0; i < lap_nn_gemms(nn); i++) {
        lap_nn_gemm_t gemm;
        const char *picked;
        double seconds;
        LAP_TRY(lap_nn_gemm(nn, i, &gemm));
        if (rules->rules[gemm.gemm].method == LAP_TP_AUTO &&
            lap_op_prediction(lap_nn_gemm_op(nn, i), 0, &picked, &seconds) == LAP_OK)
            (void)lap_tp_rule_settle(rules, gemm.gemm, picked); /* else it stays auto */
    }
    return LAP_OK;
}

static lap_status_t adopt(search_t *search)
{
    lap_tune_leave(&search->best);
    LAP_TRY(
        lap_tune_enter(&search->best, search->tune, &search->rules, search->groups, search->link));
    LAP_TRY(settle(&search->best, &search->rules));
    return lap_tune_predict(&search->best, &search->predicted);
}

/* Whether auto has chosen what the best rules have: a difference would be luck. */
static bool is_best(const search_t *search, const lap_tp_overlap_t *rules)
{
    bool same = true;
    for (int u = 0; u < LAP_TUNE_UNITS; u++) {
        const lap_tune_unit_t *unit = &lap_tune_units[u];
        char one[LAP_TUNE_TEXT], other[LAP_TUNE_TEXT];
        lap_tune_words(unit, &rules->rules[unit->gemm], one);
        lap_tune_words(unit, &search->rules.rules[unit->gemm], other);
        same = same && strcmp(one, other) == 0;
    }
    return same;
}

/*
 * One candidate against the best so far: fills `ratio_p`, or leaves it out: *timed_p. Where it has auto, its rules
 * become those that auto has chosen.
 */
static lap_status_t try_candidate(search_t *search, lap_tp_overlap_t *rules, const char *what,
                                  lap_stats_t *ratio_p, bool *timed_p)
{
    search->progress.what = what;
    lap_tune_contender_t contender;
    double predicted = 0;
    lap_status_t status =
        lap_tune_enter(&contender, search->tune, rules, search->groups, search->link);
    if (status == LAP_OK)
        status = settle(&contender, rules);
    if (status == LAP_OK)
        status = lap_tune_predict(&contender, &predicted);
    *timed_p = !is_best(search, rules) &&
               (search->predicted <= 0 || predicted <= SLOWER * search->predicted);
    if (status == LAP_OK && *timed_p)
        status = lap_tune_compare(&contender, &search->best, search->tune->rounds,
                                  &search->progress, ratio_p, &search->interrupted);
    /* Once more: of many, some are lucky. */
    if (status == LAP_OK && *timed_p && !search->interrupted && ratio_p->q3 < 1) {
        search->progress.done++; /* one more trial than was counted */
        search->progress.of++;
        status = lap_tune_compare(&contender, &search->best, search->tune->rounds,
                                  &search->progress, ratio_p, &search->interrupted);
    }
    lap_tune_leave(&contender);
    search->progress.done++;
    return status;
}

/* The rules of a way that needs no search. */
static lap_status_t plain_rules(int tp, int way, lap_tp_overlap_t *rules_p)
{
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    LAP_TRY(lap_tp_overlap_init(tp, rules_p));
    switches.overlap = way != LAP_TUNE_SERIAL;
    switches.automatic = way == LAP_TUNE_AUTO;
    return lap_tp_overlap_switch(rules_p, &switches);
}

/* Writes what was found so far. Collective. */
static lap_status_t keep(const search_t *search)
{
    lap_group_t *world = search->groups->world;
    const bool writes = lap_group_rank(world) == 0;
    return lap_group_agree(world, writes ? lap_tune_keep(search->tune) : LAP_OK);
}

/* Where all overlap loses, the search begins without any. */
static lap_status_t decide_start(search_t *search)
{
    lap_tune_choice_t *choice = &search->tune->choices[LAP_TUNE_START];
    lap_tp_overlap_t rules;
    lap_stats_t ratio = {.median = 0};
    bool timed;
    LAP_TRY(plain_rules(search->rules.tp, LAP_TUNE_SERIAL, &rules));
    LAP_TRY(try_candidate(search, &rules, "no overlap", &ratio, &timed));
    if (search->interrupted)
        return LAP_OK;
    const bool wins = timed && ratio.q3 < 1;
    *choice = (lap_tune_choice_t){.decided = 1, .candidate = wins ? 0 : -1};
    LAP_TRY(keep(search));
    if (!wins)
        return LAP_OK;
    search->rules = rules;
    return adopt(search);
}

/* A candidate was timed: the choice is it, or as it was. `before` has what the rules have. */
static void weigh(lap_tune_choice_t *choice, int c, const lap_tune_candidate_t *candidate,
                  const char *before, const lap_stats_t *ratio)
{
    const bool wins = ratio->q3 < 1;
    if ((choice->candidate >= 0 && !(wins && ratio->median < choice->ratio)) ||
        (choice->candidate < 0 && !wins && choice->other[0] && ratio->median >= choice->ratio))
        return;
    choice->candidate = wins ? c : -1;
    choice->ratio = ratio->median;
    choice->least = ratio->q1;
    choice->most = ratio->q3;
    snprintf(choice->other, sizeof(choice->other), "%s", wins ? before : candidate->text);
}

/* All candidates of a unit, from the first that was not tried. What wins is the best from then on. */
static lap_status_t decide(search_t *search, int u)
{
    const lap_tune_unit_t *unit = &lap_tune_units[u];
    lap_tune_candidate_t candidates[LAP_TUNE_MOST];
    const int count = (int)lap_tune_candidates(unit, search->rules.tp, candidates);
    lap_tune_choice_t *choice = &search->tune->choices[u];
    char before[LAP_TUNE_TEXT];
    lap_tune_words(unit, &search->rules.rules[unit->gemm], before);
    if (choice->next == 0)
        choice->candidate = -1;
    for (int c = choice->next; c < count; c++) {
        lap_tp_overlap_t rules = search->rules;
        lap_stats_t ratio = {.median = 0};
        bool timed;
        char what[LAP_TUNE_TEXT * 2];
        if (lap_tune_has(&search->rules, unit, &candidates[c]))
            continue;
        snprintf(what, sizeof(what), "%s: %s", unit->name, candidates[c].text);
        lap_tune_take(&rules, unit, &candidates[c]);
        LAP_TRY(try_candidate(search, &rules, what, &ratio, &timed));
        if (search->interrupted)
            return LAP_OK;
        search->tried += timed;
        const bool same = is_best(search, &rules);
        search->same += same;
        search->left_out += !timed && !same;
        if (timed)
            weigh(choice, c, &candidates[c], before, &ratio);
        choice->next = c + 1;
        LAP_TRY(keep(search));
    }
    if (choice->candidate >= 0) {
        lap_tune_take(&search->rules, unit, &candidates[choice->candidate]);
        LAP_TRY(adopt(search));
    }
    choice->decided = 1;
    return keep(search);
}

#define JUDGED (LAP_TUNE_WAYS / 2) /* the end takes as long as so many trials */

/* How many trials there are to come, of which one of each unit is that which it has already. */
static int count_trials(const lap_tune_t *tune)
{
    lap_tune_candidate_t candidates[LAP_TUNE_MOST];
    int trials = JUDGED + !tune->choices[LAP_TUNE_START].decided;
    for (int u = 0; u < LAP_TUNE_UNITS; u++) {
        const int count =
            (int)lap_tune_candidates(&lap_tune_units[u], tune->start.tp, candidates) - 1;
        if (tune->has[u] && !tune->choices[u].decided && count > tune->choices[u].next)
            trials += count - tune->choices[u].next;
    }
    return trials;
}

/* Takes what an earlier search has decided. */
static lap_status_t replay(search_t *search)
{
    if (search->tune->choices[LAP_TUNE_START].candidate == 0 &&
        search->tune->choices[LAP_TUNE_START].decided)
        LAP_TRY(plain_rules(search->rules.tp, LAP_TUNE_SERIAL, &search->rules));
    for (int u = 0; u < LAP_TUNE_UNITS; u++) {
        const lap_tune_choice_t *choice = &search->tune->choices[u];
        lap_tune_candidate_t candidates[LAP_TUNE_MOST];
        lap_tune_candidates(&lap_tune_units[u], search->rules.tp, candidates);
        if (choice->decided && choice->candidate >= 0)
            lap_tune_take(&search->rules, &lap_tune_units[u], &candidates[choice->candidate]);
    }
    return LAP_OK;
}

static lap_status_t search_all(search_t *search)
{
    lap_tune_t *tune = search->tune;
    search->progress.of = count_trials(tune);
    search->progress.begin = lap_now_ns();
    if (!tune->choices[LAP_TUNE_START].decided)
        LAP_TRY(decide_start(search));
    for (int u = 0; u < LAP_TUNE_UNITS && !search->interrupted; u++)
        if (tune->has[u] && !tune->choices[u].decided)
            LAP_TRY(decide(search, u));
    return LAP_OK;
}

/* The rules of each way at the end. */
static lap_status_t rules_of(const search_t *search, int way, lap_tp_overlap_t *rules_p)
{
    *rules_p = search->rules;
    return way == LAP_TUNE_TUNED ? LAP_OK : plain_rules(search->rules.tp, way, rules_p);
}

/* Times what was found against what there is without a search; *rules_p are the fastest. */
static lap_status_t judge(search_t *search, lap_tune_end_t *end, lap_tp_overlap_t *rules_p)
{
    lap_tune_contender_t contenders[LAP_TUNE_WAYS], *list[LAP_TUNE_WAYS];
    const int rounds = search->tune->rounds;
    lap_status_t status = LAP_OK;
    double *seconds = lap_alloc(LAP_TUNE_WAYS * (size_t)rounds, sizeof(*seconds));
    if (!seconds)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %d rounds", rounds);
    status = lap_group_agree(search->groups->world, status);
    memset(contenders, 0, sizeof(contenders));
    search->progress.what = "the rules against defaults, auto and serial";
    lap_tune_leave(&search->best); /* its memory */
    for (int w = 0; w < LAP_TUNE_WAYS && status == LAP_OK; w++) {
        lap_tp_overlap_t rules;
        list[w] = &contenders[w];
        status = rules_of(search, w, &rules);
        if (status == LAP_OK)
            status =
                lap_tune_enter(&contenders[w], search->tune, &rules, search->groups, search->link);
    }
    if (status == LAP_OK)
        status = lap_tune_time(list, LAP_TUNE_WAYS, rounds, &search->progress, seconds,
                               &search->interrupted);
    for (int w = 0; w < LAP_TUNE_WAYS && status == LAP_OK; w++)
        end->seconds[w] = lap_stats(&seconds[(size_t)w * (size_t)rounds], (size_t)rounds).median;
    for (int w = 0; w < LAP_TUNE_WAYS && status == LAP_OK; w++)
        if (end->seconds[w] < end->seconds[end->best] * (end->best == LAP_TUNE_TUNED ? TIE : 1))
            end->best = w;
    if (status == LAP_OK)
        status = rules_of(search, end->best, rules_p);
    if (status == LAP_OK)
        status = settle(list[end->best], rules_p);
    for (int w = 0; w < LAP_TUNE_WAYS; w++)
        lap_tune_leave(&contenders[w]);
    lap_free(seconds);
    return status;
}

/* ---- the command ---- */

/* Which units the layer has. */
static lap_status_t find_units(search_t *search)
{
    const lap_nn_t *nn = search->best.model.trainer.nn;
    for (size_t i = 0; i < lap_nn_gemms(nn); i++) {
        lap_nn_gemm_t gemm;
        LAP_TRY(lap_nn_gemm(nn, i, &gemm));
        for (int u = 0; u < LAP_TUNE_UNITS; u++)
            if (lap_tune_units[u].gemm == gemm.gemm)
                search->tune->has[u] = true;
    }
    return LAP_OK;
}

static void report_other(const lap_tune_t *tune, const char *then)
{
    lap_tell("lap tune", "%s.part is of a search with other options, or damaged: %s", tune->output,
             then);
}

/* Rank 0 reads what there is, and all ranks take it. Collective. */
static lap_status_t go_on(search_t *search)
{
    lap_tune_t *tune = search->tune;
    lap_group_t *world = search->groups->world;
    int found = 0;
    bool other = false;
    const bool reads = lap_group_rank(world) == 0;
    LAP_TRY(lap_group_agree(world, reads ? lap_tune_read(tune, &found, &other) : LAP_OK));
    LAP_TRY(lap_group_broadcast(world, tune->choices, sizeof(tune->choices)));
    if (found > 0 && !tune->train.quiet)
        lap_tell("lap tune", "goes on after %d decision%s: %s.part", found, found == 1 ? "" : "s",
                 tune->output);
    if (other)
        report_other(tune, "the search begins anew, and replaces it");
    return replay(search);
}

/* What another search has found so far goes when the rules of this one are written. */
static void report_removed(const lap_tune_t *tune)
{
    lap_tune_t unused = *tune;
    int found;
    bool other = false;
    if (lap_tune_read(&unused, &found, &other) == LAP_OK && other)
        report_other(tune, "the cache has the end of this search, and it is removed");
}

/* Whether the cache has the end of this search: then there is nothing to be measured. Collective. */
static lap_status_t find_cached(search_t *search, lap_tune_entry_t *entry, bool *found_p)
{
    lap_tune_t *tune = search->tune;
    *found_p = false;
    if (!tune->train.cache)
        return LAP_OK;
    LAP_TRY(lap_tune_find(&tune->train, search->groups->world, entry));
    *found_p = entry->rounds >= tune->rounds && entry->start == lap_tune_rules_digest(&tune->start);
    for (int u = 0; u < LAP_TUNE_CHOICES && *found_p; u++) {
        tune->choices[u] = entry->choices[u];
        if (u < LAP_TUNE_UNITS)
            tune->has[u] = entry->choices[u].decided;
    }
    return LAP_OK;
}

/* The search, and what came of it; nothing, if a signal has interrupted it. */
static lap_status_t search_entry(search_t *search, lap_tune_entry_t *entry)
{
    const lap_tune_t *tune = search->tune;
    const time_t now = time(NULL);
    struct tm utc;
    *entry =
        (lap_tune_entry_t){.rounds = tune->rounds, .start = lap_tune_rules_digest(&tune->start)};
    LAP_TRY(lap_train_find_link(&search->tune->train, search->groups, &search->link));
    LAP_TRY(go_on(search));
    lap_progress(search->progress.speaks, "the costs of GEMMs and kernels, to predict passes");
    LAP_TRY(adopt(search));
    LAP_TRY(find_units(search));
    LAP_TRY(search_all(search));
    if (!search->interrupted)
        LAP_TRY(judge(search, &entry->end, &entry->rules));
    lap_progress_end(search->progress.speaks);
    memcpy(entry->choices, tune->choices, sizeof(entry->choices));
    gmtime_r(&now, &utc);
    strftime(entry->date, sizeof(entry->date), "%Y-%m-%d", &utc);
    return LAP_OK;
}

/* What was found until a signal came. */
static void report_interrupted(void *context, int signal)
{
    const search_t *search = context;
    const lap_tune_t *tune = search->tune;
    int decided = 0;
    (void)signal;
    for (int u = 0; u < LAP_TUNE_CHOICES; u++)
        decided += tune->choices[u].decided || tune->choices[u].next > 0;
    lap_progress_end(search->progress.speaks);
    if (decided == 0)
        lap_tell(form.command.name, "interrupted: nothing was decided yet");
    else
        lap_tell(form.command.name,
                 "interrupted: what was decided so far is in %s.part, and the same command goes on "
                 "from it",
                 tune->output);
}

static lap_status_t tune_all(search_t *search, int *end_p)
{
    const lap_tune_t *tune = search->tune;
    lap_group_t *world = search->groups->world;
    lap_tune_entry_t entry;
    bool cached;
    const bool first = lap_group_rank(world) == 0;
    if (first)
        lap_interrupt_prints(report_interrupted, search);
    if (search->progress.speaks && *tune->note)
        lap_tell(form.command.name, "%s", tune->note);
    LAP_TRY(find_cached(search, &entry, &cached));
    if (!cached)
        LAP_TRY(search_entry(search, &entry));
    if (first)
        lap_interrupt_prints(NULL, NULL);
    if (search->interrupted) {
        lap_interrupt_stops();
        if (first)
            report_interrupted(search, search->interrupted);
        *end_p = lap_interrupt_status(search->interrupted);
        return lap_group_barrier(world);
    }
    if (first && !cached && tune->train.cache)
        lap_tune_store(&tune->train, &entry);
    if (first && cached)
        report_removed(tune);
    LAP_TRY(lap_group_agree(world, first ? lap_tune_write(tune, &entry) : LAP_OK));
    const lap_tune_effort_t effort = {search->tried, search->left_out, search->same,
                                      search->progress.passes};
    if (first)
        lap_tune_print(tune, &entry, cached ? NULL : &effort);
    return LAP_OK;
}

static int run_rank(const void *context, lap_world_t *world)
{
    lap_tune_t tune = *(const lap_tune_t *)context; /* ranks may be threads */
    lap_grid_groups_t groups;
    search_t search = {.tune = &tune,
                       .groups = &groups,
                       .rules = tune.start,
                       .progress.speaks = lap_world_rank(world) == 0 && !tune.train.quiet};
    int end = LAP_CLI_OK;
    lap_status_t status = lap_grid_groups_init(&groups, &tune.train.grid, lap_world_group(world));
    if (status == LAP_OK)
        status = tune_all(&search, &end);
    const int result =
        status == LAP_OK ? end : lap_ranks_fail(form.command.name, lap_world_rank(world), status);
    lap_tune_leave(&search.best);
    lap_grid_groups_clear(&groups);
    return result;
}

/* "64 heads of 128 features, 8 for keys". */
static void put_heads(const lap_nn_desc_t *desc, bool features, char text[LAP_HEADS_TEXT])
{
    const bool grouped = desc->kv_heads && desc->kv_heads != desc->heads;
    char dim[40] = "", keys[40] = "";
    if (features)
        snprintf(dim, sizeof(dim), " of %zu features", desc->head_dim);
    if (grouped)
        snprintf(keys, sizeof(keys), ", %zu for keys", desc->kv_heads);
    snprintf(text, LAP_HEADS_TEXT, "%zu heads%.30s%.30s", desc->heads, dim, keys);
}

/*
 * Sizes of GEMMs are those of all heads together. Where ranks cannot share the heads of a model, others of the same width are
 * tuned: the rules are for its GEMMs.
 */
static void fit_heads(lap_tune_t *tune)
{
    lap_nn_desc_t *desc = &tune->train.desc;
    const size_t tp = (size_t)tune->train.grid.tp;
    const lap_nn_desc_t given = *desc;
    char advice[LAP_HEADS_TEXT], before[LAP_HEADS_TEXT], after[LAP_HEADS_TEXT];
    tune->heads = desc->heads;
    if (!lap_nn_has_attention(desc) || lap_heads_divide(desc, tp) || !lap_heads_fit(desc, tp))
        return;
    lap_heads_advise(&given, tp, 0, false, advice);
    put_heads(&given, false, before);
    put_heads(desc, true, after);
    snprintf(tune->note, sizeof(tune->note),
             "%zu ranks cannot share %s: the GEMMs are tuned with %s, which have the same sizes; "
             "lap train needs %s, too",
             tp, before, after, advice);
}

static int empty_cache(const lap_command_t *command)
{
    char path[PATH_MAX];
    int removed;
    const lap_status_t status = lap_tune_clear(path, sizeof(path), &removed);
    if (status != LAP_OK)
        return lap_args_refused(command, status, "");
    printf("%d results removed from %s\n", removed, path);
    return LAP_CLI_OK;
}

static int parse(const lap_command_t *command, int argc, char **argv, lap_tune_t *tune)
{
    const int parsed = lap_train_parse(command, true, argc, argv, &tune->train);
    if (parsed != LAP_CLI_GO)
        return parsed;
    const lap_train_t *train = &tune->train;
    bool right = true;
    if (tune->clears)
        return empty_cache(command);
    if (!tune->output)
        right = lap_args_wrong(command, "--output is missing, expected the file to write");
    else if (train->grid.tp < 2 || lap_train_ranks(train) != train->grid.tp)
        right = lap_args_wrong(command,
                               "--tp is %d of %d ranks, expected 2 or more tensor-parallel ranks, "
                               "and no others: they are what is tuned",
                               train->grid.tp, lap_train_ranks(train));
    if (!right)
        return LAP_CLI_USAGE;
    const lap_status_t status = lap_output_check("the rules", tune->output);
    if (status != LAP_OK)
        return lap_args_refused(command, status, "");
    fit_heads(tune);
    tune->start = train->rules;
    tune->train.model = NULL; /* of a model one layer is tuned */
    tune->train.micro = 1;
    lap_tune_layer(&tune->train.desc);
    return LAP_CLI_GO;
}

int lap_cli_tune(int argc, char **argv)
{
    const lap_command_t *command = lap_train_extend(&form, own, NOPTIONS);
    char **again = lap_ranks_arguments(command, argc, argv);
    if (!again)
        return LAP_CLI_FAILED;
    lap_tune_t tune = {.output = NULL};
    int result = parse(command, argc, argv, &tune);
    if (result == LAP_CLI_GO)
        result = lap_train_start(&tune.train, run_rank, &tune, again);
    return lap_ranks_end(again, result);
}
