/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the command line of `lap train` share. train_options.def has the options,
 * train_table.c the texts of the command; train_parse.c makes of their values what is to be done,
 * of those of the model in train_shape.c; train_checks.c refuses what makes no sense together. An
 * option is a row of the first, and more only where it depends on others.
 */
#ifndef LAP_CLI_TRAIN_OPTIONS_H
#define LAP_CLI_TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli.h"
#include "train.h"

enum {
#define OPTION(name, ...) name,
#include "train_options.def"
#undef OPTION
    NOPTIONS
};

/* In the order of the enum. */
extern const lap_option_t lap_train_options[NOPTIONS];

#define COUNT_MOST INT32_MAX
#define MICRO_MOST 65536
#define LAYERS_MOST 100000 /* each has calls that are planned before anything else is looked at */

/* ---- train_shape.c ---- */

/*
 * Readers of types of elements: FP8 is none for weights, and gradients are sent as float32 or
 * bfloat16.
 */
bool lap_train_read_dtype(const lap_args_t *args, int option, void *to);
bool lap_train_read_wire(const lap_args_t *args, int option, void *to);

/*
 * What is trained: layers or a model; how a model is cut into stages; and what sizes are that are
 * not given.
 */
bool lap_train_kind(lap_train_t *train);
bool lap_train_pipeline(lap_train_t *train);
bool lap_train_shape(lap_train_t *train);

/* ---- train_checks.c ---- */

/* Refuses options that say nothing with the others. `line`: those of the command line itself. */
bool lap_train_sense(const lap_train_t *train, const lap_args_t *args, const bool *line);

#endif
