/* SPDX-License-Identifier: Apache-2.0 */
/* What values of settings of NeMo and Megatron give, for config.c alone. */
#ifndef LAP_CLI_CONFIG_VALUES_H
#define LAP_CLI_CONFIG_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "config_rows.h"
#include "core/yaml.h"

enum { LAP_CONFIG_ARGUMENTS = 2 * ROWS, LAP_CONFIG_ARGUMENT = 320 };

/* What the values of a file have given so far. */
typedef struct lap_config_given {
    const char *path; /* of the file */
    char arguments[LAP_CONFIG_ARGUMENTS][LAP_CONFIG_ARGUMENT];
    size_t count;
    /* The rest is no option by itself: what the model is, or other keys, are asked, too. */
    uint64_t constant_steps;
    struct {
        const char *key, *value; /* NULL: the file does not say */
        size_t line;
    } bias[2]; /* of all matrices, and of query, key and value */
    struct {
        uint64_t tokens; /* with the one that attends to them; 0: all, or the file does not say */
        const char *key;
        size_t line;
        char text[48]; /* as the file has it */
    } window;
} lap_config_given_t;

/* Takes the value of an entry as its row says; "${...}" is refused, as other wrong values are. */
lap_status_t lap_config_take(lap_config_given_t *given, const lap_yaml_entry_t *entry,
                             const row_t *row);

/* LAP_ERR_INVALID: "FILE:LINE: KEY is VALUE, expected ...". */
lap_status_t lap_config_refuse(const lap_config_given_t *given, const lap_yaml_entry_t *entry,
                               const char *expected);

/* Adds an option; `value` is NULL for one that has none. */
void lap_config_give(lap_config_given_t *given, const char *option, const char *value);

#endif
