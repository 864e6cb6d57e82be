/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of files of settings, for config.c alone: of which keys count, and which are of other tools. */
#ifndef LAP_CLI_CONFIG_SECTIONS_H
#define LAP_CLI_CONFIG_SECTIONS_H

#include "config_values.h"

/* The path of an entry without mappings that only wrap settings: Lightning's "optim.init_args.lr" is "optim.lr". */
void lap_config_unwrap(const lap_yaml_entry_t *entry, char path[LAP_YAML_PATH]);

/*
 * Whether an entry is in a section whose keys count, *read_p. `path` is its own without wraps, `key` whether that is one of a
 * value. LAP_ERR_INVALID: the section, or the entry as one, is unknown or no mapping, or an alias.
 */
lap_status_t lap_config_section(const lap_config_given_t *given, const lap_yaml_entry_t *entry,
                                const char *path, bool key, bool *read_p);

#endif
