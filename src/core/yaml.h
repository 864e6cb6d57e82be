/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings in YAML: mappings of names to scalars, lists of scalars and further mappings, as a flat
 * list.
 */
#ifndef LAP_CORE_YAML_H
#define LAP_CORE_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

#define LAP_YAML_PATH 256
#define LAP_YAML_VALUE 256

typedef enum lap_yaml_kind {
    LAP_YAML_NULL,
    LAP_YAML_SCALAR,
    LAP_YAML_LIST,    /* of scalars: value has them, with commas */
    LAP_YAML_OTHER,   /* a list of more than scalars */
    LAP_YAML_ALIAS,   /* *name, which is not followed */
    LAP_YAML_MAPPING, /* it begins: its entries follow */
} lap_yaml_kind_t;

typedef struct lap_yaml_entry {
    char path[LAP_YAML_PATH]; /* "model.optim.lr"; a longer one is cut */
    const char *key;          /* its last name */
    lap_yaml_kind_t kind;
    char value[LAP_YAML_VALUE];
    bool whole; /* that is all of the value, as it was */
    size_t line;
    size_t section; /* the line of the key whose mapping it is in; 1: the whole file */
} lap_yaml_entry_t;

/*
 * Reads a file, and calls `each` with every entry, in their order. LAP_ERR_INVALID: it is no YAML,
 * or no mapping, with the line; LAP_ERR_SYSTEM: it cannot be read; LAP_ERR_UNSUPPORTED: this build
 * cannot read YAML; or what `each` returns.
 */
typedef lap_status_t (*lap_yaml_each_t)(void *context, const lap_yaml_entry_t *entry);
lap_status_t lap_yaml_read(const char *path, lap_yaml_each_t each, void *context);

/* The same of a text, which has a name in sentences. */
lap_status_t lap_yaml_parse(const char *name, const char *text, size_t bytes, lap_yaml_each_t each,
                            void *context);

#endif
