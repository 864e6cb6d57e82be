/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of NeMo and Megatron in YAML, as options of `lap train`. */
#ifndef LAP_CLI_CONFIG_H
#define LAP_CLI_CONFIG_H

#include <lap/nn.h>

#include "cli.h"

/*
 * Reads a file and makes options of it: *argv_p is `argv` with these in front of its arguments, so that what the command line
 * says counts more; *argc_p is their number. *unused_p names the keys that nothing comes of; "" when there are none. All of
 * it lives until the next call. Returns as lap_args_parse.
 */
int lap_config_read(const lap_command_t *command, const char *path, int argc, char **argv,
                    int *argc_p, char ***argv_p, const char **unused_p);

/* The key of the file that an option was made of, and its line; or NULL. */
const char *lap_config_key(const char *option, size_t *line_p);

/*
 * Whether a model is what the last file that was read says of biases, and a model or layers with attention are what it says
 * of windows; else it says why not.
 */
bool lap_config_fits(const lap_command_t *command, const lap_nn_desc_t *desc);

#endif
