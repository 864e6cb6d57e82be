/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap tune`: finds the rule of each GEMM of a layer by measuring the whole layer, and writes them as
 * a file for --tp-comm-overlap-cfg. The candidates are in tune_rules.c, files in tune_file.c,
 * the cache in tune_cache.c, the search in tune.c, timing in tune_time.c, what it prints in tune_print.c.
 */
#ifndef LAP_CLI_TUNE_H
#define LAP_CLI_TUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <lap/tp_overlap.h>

#include "stats.h"
#include "train.h"

/*
 * What is chosen at once: the rule of a GEMM; or of a dgrad with its wgrad, since the one decides what
 * is left for the other.
 */
#define LAP_TUNE_UNITS 8
typedef struct lap_tune_unit {
    const char *name;
    lap_tp_gemm_t gemm;
    bool both; /* its wgrad, which is the next GEMM, too */
} lap_tune_unit_t;
extern const lap_tune_unit_t lap_tune_units[LAP_TUNE_UNITS];

#define LAP_TUNE_TEXT 64
#define LAP_TUNE_NOTE 512
#define LAP_TUNE_MOST 12 /* candidates of a unit */

/* Rules for a unit, and words for them. */
typedef struct lap_tune_candidate {
    lap_tp_rule_t rules[2];
    char text[LAP_TUNE_TEXT];
} lap_tune_candidate_t;

/* The candidates of a unit for `tp` ranks; returns how many. The first is serial. */
size_t lap_tune_candidates(const lap_tune_unit_t *unit, int tp,
                           lap_tune_candidate_t candidates[LAP_TUNE_MOST]);

/* Words for the rule of a unit, and for that of its wgrad behind it. */
void lap_tune_words(const lap_tune_unit_t *unit, const lap_tp_rule_t *rules,
                    char text[LAP_TUNE_TEXT]);

/* Whether rules have this candidate; and gives it to them. */
bool lap_tune_has(const lap_tp_overlap_t *rules, const lap_tune_unit_t *unit,
                  const lap_tune_candidate_t *candidate);
void lap_tune_take(lap_tp_overlap_t *rules, const lap_tune_unit_t *unit,
                   const lap_tune_candidate_t *candidate);

/* What was found for a unit. Its time is that of the layer, over the time with the rules before. */
typedef struct lap_tune_choice {
    int decided;               /* 1: it was; 0: not yet, */
    int next;                  /* but the candidates before this one were tried */
    int candidate;             /* -1: that before stays */
    double ratio, least, most; /* median and quartiles; of the one that came nearest, if none won */
    char other[LAP_TUNE_TEXT]; /* that one; "": nothing else was measured */
} lap_tune_choice_t;

/* The last choice is the beginning: candidate 0, all serial, or -1, the rules that were given. */
enum { LAP_TUNE_START = LAP_TUNE_UNITS, LAP_TUNE_CHOICES };

typedef struct lap_tune {
    lap_train_t train; /* first: see lap_train_start */
    const char *output;
    int rounds;
    bool clears; /* the cache, and does nothing else */
    size_t
        heads; /* that were asked for; those of `train` are others where ranks cannot share them, */
    char note[LAP_TUNE_NOTE]; /* and this is the sentence about it; "": they are the same */
    lap_tp_overlap_t start;   /* the rules that were given */
    bool has[LAP_TUNE_UNITS];
    lap_tune_choice_t choices[LAP_TUNE_CHOICES];
} lap_tune_t;

/* Seconds of the layer at the end, as medians of the same rounds. */
enum { LAP_TUNE_TUNED, LAP_TUNE_DEFAULT, LAP_TUNE_AUTO, LAP_TUNE_SERIAL, LAP_TUNE_WAYS };
extern const char *const lap_tune_way_names[LAP_TUNE_WAYS];
typedef struct lap_tune_end {
    double seconds[LAP_TUNE_WAYS];
    int best; /* what the file has */
} lap_tune_end_t;

/* ---- timing: tune_time.c ---- */

/* Rules with the layer that has them. */
typedef struct lap_tune_contender {
    lap_train_t train; /* with these rules */
    lap_train_model_t model;
    int warmed; /* by so many passes */
} lap_tune_contender_t;

/* Collective. lap_tune_leave undoes it, also after a failure and of one that is all zero. */
lap_status_t lap_tune_enter(lap_tune_contender_t *contender, const lap_tune_t *tune,
                            const lap_tp_overlap_t *rules, const lap_grid_groups_t *groups,
                            lap_link_t link);
void lap_tune_leave(lap_tune_contender_t *contender);

/* What a pass should take; 0: that is not known here. Collective. */
lap_status_t lap_tune_predict(lap_tune_contender_t *contender, double *seconds_p);

/* How far a search is. */
typedef struct lap_tune_progress {
    bool speaks;
    const char *what; /* is timed */
    uint64_t begin;
    double done, of; /* trials */
    int passes;      /* so far */
} lap_tune_progress_t;

/*
 * Times all of them in turns: seconds[w * rounds + i]. *interrupted_p: a signal, and not all were.
 * Collective.
 */
lap_status_t lap_tune_time(lap_tune_contender_t *const *contenders, int count, int rounds,
                           lap_tune_progress_t *progress, double *seconds, int *interrupted_p);

/*
 * The time of one over that of another, in as many rounds as are needed to know whether its third quartile is
 * below 1. Likewise.
 */
lap_status_t lap_tune_compare(lap_tune_contender_t *one, lap_tune_contender_t *other, int rounds,
                              lap_tune_progress_t *progress, lap_stats_t *ratio_p,
                              int *interrupted_p);

/* ---- a search as text: tune_entry.c ---- */

/* Machine, layer, type and version: a line each. */
typedef struct lap_tune_key {
    char text[4096];
    uint64_t digest;
} lap_tune_key_t;
lap_status_t lap_tune_key_init(const lap_train_t *train, lap_tune_key_t *key);

/* What was found, and how. */
typedef struct lap_tune_entry {
    int rounds;     /* 0: nothing was found */
    uint64_t start; /* lap_tune_rules_digest of the rules that the search began with */
    lap_tune_choice_t choices[LAP_TUNE_CHOICES];
    /* Of a search that has ended: */
    char date[16]; /* "": it has not */
    lap_tune_end_t end;
    lap_tp_overlap_t rules;
} lap_tune_entry_t;

uint64_t lap_tune_rules_digest(const lap_tp_overlap_t *rules);
void lap_tune_entry_write(FILE *file, const lap_tune_key_t *key, const lap_tune_entry_t *entry);

/* False: it is of another key, or not as it was written. */
bool lap_tune_entry_read(FILE *file, const lap_tune_key_t *key, int tp, lap_tune_entry_t *entry);

/* Makes one layer of a description: what is tuned. */
void lap_tune_layer(lap_nn_desc_t *desc);

/* ---- the cache of this user: tune_cache.c ---- */

/*
 * Looks for what was found for a layer like this one: rounds is 0 where there is nothing. Rank 0 looks,
 * and all ranks have its answer. Collective; or with NULL for one process. What is damaged is named on
 * standard error, and ignored.
 */
lap_status_t lap_tune_find(const lap_train_t *train, lap_group_t *world, lap_tune_entry_t *entry_p);

/* With --auto the rules that were found take the place of auto. Likewise. */
lap_status_t lap_tune_use(lap_train_t *train, lap_group_t *world);

/* Stores what was found; where that cannot be, standard error says why. */
void lap_tune_store(const lap_train_t *train, const lap_tune_entry_t *entry);

/* Removes all of it. Writes where that was, and how many. */
lap_status_t lap_tune_clear(char *path, size_t bytes, int *removed_p);

/* ---- tune_print.c ---- */

/* What a search took. */
typedef struct lap_tune_effort {
    int timed, left_out; /* candidates, */
    int same;            /* and those for which auto chose what the best rules had */
    int passes;          /* through the layer */
} lap_tune_effort_t;

/* What was found; `effort` is NULL where it was not now. */
void lap_tune_print(const lap_tune_t *tune, const lap_tune_entry_t *entry,
                    const lap_tune_effort_t *effort);

/* ---- tune_file.c; on rank 0 ---- */

/*
 * Fills `choices` with those that an interrupted search of the same description left next to the output. *other_p: what
 * is there is of another search, or damaged.
 */
lap_status_t lap_tune_read(lap_tune_t *tune, int *found_p, bool *other_p);

/* Writes what was found so far there. */
lap_status_t lap_tune_keep(const lap_tune_t *tune);

/* Writes the rules, and removes what was found so far. */
lap_status_t lap_tune_write(const lap_tune_t *tune, const lap_tune_entry_t *entry);

#endif
