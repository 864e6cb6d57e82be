/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `lap show train` share. */
#ifndef LAP_CLI_SHOW_TRAIN_H
#define LAP_CLI_SHOW_TRAIN_H

#include "nn/program.h"
#include "parallel/stage_prove.h"
#include "schedule/lower.h"
#include "schedule/simulate.h"
#include "show.h"
#include "train.h"

/* From its first use to its last one. */
typedef struct lap_lifetime {
    uint32_t region;      /* in the list of the rank */
    uint32_t first, last; /* fragments */
    bool lasts;           /* backward may be repeated: it stays until the next forward */
    size_t bytes, offset;
} lap_lifetime_t;

/* The program of a rank after a pass of lowering. */
typedef struct lap_show_train {
    const lap_train_t *train;
    const lap_target_t *target;
    const lap_pass_t *pass; /* that ran last; NULL: operators are as built */
    const lap_nn_programs_t *programs;
    int rank;
    bool steps; /* all of them, and all regions */
    /* of the rank: */
    const lap_nn_list_t *list;
    const lap_linked_t *linked;
    lap_lifetime_t *lifetimes; /* in the order of first uses */
    size_t nlifetimes;
    size_t most_alive;                /* bytes of regions that live at the same time, */
    uint32_t most_at;                 /* and the fragment at which there are most */
    const lap_stage_item_t *items;    /* of a pipeline: of each fragment; else NULL */
    double predicted;                 /* seconds; 0: not predicted */
    double call_s;                    /* of these, what no fragment has: to begin and end it */
    const lap_fragment_span_t *spans; /* of each fragment, if it is */
} lap_show_train_t;

/* Finds the lifetimes; the caller frees them. */
lap_status_t lap_show_lifetimes(lap_show_train_t *show);

#define LAP_SHOW_NAME 96

/* The entry that a fragment was made from; NULL: it is of a bucket of gradients, or a message. */
const lap_nn_entry_t *lap_show_entry(const lap_show_train_t *show, uint32_t fragment);
/* "forward", "loss", "backward" or "step". */
const char *lap_show_part(const lap_show_train_t *show, uint32_t fragment);
/* "qkv_fprop", or the name of a kernel's part: "norm1"; "bucket 2" of gradients. */
void lap_show_name(const lap_show_train_t *show, uint32_t fragment, char text[LAP_SHOW_NAME]);
/* What a fragment reads and writes; LAP_NN_NONE after the last. */
typedef struct lap_show_regions {
    uint32_t reads[LAP_NN_READS], writes[LAP_NN_WRITES];
} lap_show_regions_t;
void lap_show_regions(const lap_show_train_t *show, uint32_t fragment, lap_show_regions_t *regions);
/* "AG+GEMM ring" or "norm". */
void lap_show_does(const lap_show_train_t *show, uint32_t fragment, char text[LAP_SHOW_NAME]);
/* The layer of a fragment; -1: of none. */
long lap_show_layer(const lap_show_train_t *show, uint32_t fragment);
/* Why a link is there: "which writes block0.mid". */
void lap_show_why(const lap_show_train_t *show, uint32_t fragment, const lap_link_dep_t *link,
                  char text[LAP_SHOW_RANGE]);

/*
 * When the fragments of its rank would run on GPUs of a machine description: a name, or a file. The caller frees
 * the spans, also after a failure. As lap_show_predict fails.
 */
lap_status_t lap_show_predict_program(const char *machine, const lap_nn_programs_t *programs,
                                      lap_show_train_t *show, lap_fragment_span_t **spans_p);

/* On standard output. */
void lap_show_train_print(const lap_show_train_t *show);
void lap_show_train_json(const lap_show_train_t *show);
/* Into a file; a sentence in lap_last_error when it cannot be written. */
lap_status_t lap_show_train_svg(const lap_show_train_t *show, const char *path);

#endif
