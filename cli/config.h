/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of NeMo and Megatron in YAML, as options of `lap train` and of `lap plan`. */
#ifndef LAP_CLI_CONFIG_H
#define LAP_CLI_CONFIG_H

#include <lap/nn.h>

#include "cli.h"

/* What another command makes of an option of `lap train`. */
typedef struct lap_config_word {
    const char *option; /* "batch"; or "dtype=bfloat16", of which that is the value */
    const char *own;    /* its own for it; NULL: it has none, and nobody needs to be told */
} lap_config_word_t;

/* How a command takes such files. */
typedef struct lap_config_use {
    size_t option; /* --config, by its index, */
    size_t keys;   /* and --config-keys */
    /* Two options for the same, by their indices: that of the command line counts more than that of a file. */
    const size_t (*pairs)[2];
    size_t npairs;
    const lap_config_word_t *words; /* up to {NULL, NULL}; NULL: it has the options of lap train */
} lap_config_use_t;

/*
 * lap_args_parse, and what the file of --config says of options that the command line has not. `given`: those that it has.
 * *unused_p names the keys that nothing comes of; "" when there are none. All of it lives until the next call.
 */
int lap_config_parse(const lap_command_t *command, const lap_config_use_t *use, int argc,
                     char **argv, lap_args_t *args_p, bool given[LAP_OPTIONS_MAX],
                     const char **unused_p);

/*
 * Whether a model is what the last file that was read says of biases, and a model or layers with attention are what it says
 * of windows; else it says why not.
 */
bool lap_config_fits(const lap_command_t *command, const lap_nn_desc_t *desc);

#endif
