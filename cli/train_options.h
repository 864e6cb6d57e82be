/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the command line of `lap train` share. train_table.c has the options and their texts; train_parse.c
 * reads them, those of the model in train_shape.c; train_checks.c refuses what makes no sense together. An option
 * is a line of the enum here, a row of the table, and a line of one of the others.
 */
#ifndef LAP_CLI_TRAIN_OPTIONS_H
#define LAP_CLI_TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli.h"
#include "train.h"

enum {
    LAYER,
    MODEL,
    VOCAB,
    POSITIONS,
    MAX_POSITIONS,
    ROPE_THETA,
    ROPE_FACTOR,
    ROPE_LOW,
    ROPE_HIGH,
    ROPE_ORIGINAL,
    TIED,
    TP,
    CP,
    CP_COMM,
    CP_A2A,
    PP,
    VIRTUAL_PP,
    SCHEDULE,
    STAGE_LAYERS,
    NO_OVERLAP_P2P,
    REPLICAS,
    ITERS,
    BATCH,
    BATCH_SIZE,
    MICRO,
    MICRO_SIZE,
    DATA,
    DATA_ENDS,
    SHUFFLE,
    DATA_SEED,
    SEQ,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    HIDDEN,
    FFN,
    EXPANSION,
    LAYERS,
    NORM,
    EPSILON,
    INIT_STD,
    ACTIVATION,
    RECOMPUTE,
    ATTENTION_DROPOUT,
    HIDDEN_DROPOUT,
    NO_SEQUENCE_PARALLEL,
    DTYPE,
    FP8,
    AMAX_HISTORY,
    OPTIMIZER,
    LR,
    WARMUP,
    WEIGHT_DECAY,
    CLIP,
    LOSS_SCALE,
    INITIAL_SCALE,
    SCALE_WINDOW,
    MIN_SCALE,
    HYSTERESIS,
    GRAD_DTYPE,
    BUCKET,
    BUCKET_BY,
    DISTRIBUTED,
    NO_OVERLAP_GRAD,
    NO_OVERLAP_PARAM,
    FP8_PARAMS,
    OVERLAP_STEP,
    LR_DECAY,
    LR_DECAY_ITERS,
    MIN_LR,
    BETA1,
    BETA2,
    ADAM_EPSILON,
    CONFIG,
    KEYS,
    SAVE,
    SAVE_EVERY,
    KEEP,
    LOAD,
    SEED,
    NO_OVERLAP,
    RULES,
    AUTO,
    NO_CACHE,
    NO_AG,
    NO_RS,
    RS_DGRAD,
    NO_BULK_DGRAD,
    NO_BULK_WGRAD,
    COMPARE,
    LINK,
    DEVICE,
    TRANSPORT,
    GPU_SHARE,
    TIMEOUT,
    CONTINUE,
    NO_TRACE,
    PEAK,
    TRACE,
    TRACE_FORMAT,
    TRACE_SIMULATED,
    REPORT,
    ASSERT_HIDDEN,
    NO_PREDICT,
    DEBUG,
    QUIET,
    LOG_INTERVAL,
    JSON,
    NOPTIONS
};

/* In the order of the enum. */
extern const lap_option_t lap_train_options[NOPTIONS];

/* ---- values: train_parse.c ---- */

#define COUNT_MOST INT32_MAX

/* A count, 1 to COUNT_MOST; `otherwise` is the default. They print their own sentence, as in cli.h. */
bool lap_train_count(const lap_args_t *args, int option, const char *otherwise, size_t *count_p);

/* A number that is not negative. */
bool lap_train_rate(const lap_args_t *args, int option, float otherwise, float *rate_p);

/* ---- train_shape.c ---- */

/* What is trained: layers or a model, and what they are made of; how a model is cut into stages; then its sizes. */
bool lap_train_kinds(lap_train_t *train, const lap_args_t *args);
bool lap_train_pipeline(lap_train_t *train, const lap_args_t *args);
bool lap_train_shape(lap_train_t *train, const lap_args_t *args);

/* ---- train_checks.c ---- */

/* Refuses options that say nothing with the others. `line`: those of the command line itself. */
bool lap_train_sense(const lap_train_t *train, const lap_args_t *args, const bool *line);

#endif
