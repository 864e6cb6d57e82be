/* SPDX-License-Identifier: Apache-2.0 */
/* What --method says of one method: its name, or auto, with knobs behind colons. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "overlap/knobs.h"

#define METHODS_MAX 16
#define KNOBS_MAX 16

/* "pipeline, pull": the methods of a kind that have a knob. */
static void list_owners(lap_op_kind_t kind, const lap_op_field_t *knob, char *text, size_t bytes)
{
    size_t used = 0;
    snprintf(text, bytes, "no method of %s", lap_kind_words[kind].word);
    for (const lap_builder_t *builder = lap_builders(kind); builder->name; builder++)
        if (lap_knob_of(knob, builder) && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "",
                                     builder->name);
}

/* Finds a knob by its name. */
static bool find_knob(const lap_command_t *command, const char *what, const char *name,
                      const lap_op_field_t **knob_p)
{
    const lap_op_field_t *knobs[KNOBS_MAX];
    const char *names[KNOBS_MAX + 1];
    size_t count = 0, index;
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++)
        if (row->help && count < KNOBS_MAX) {
            knobs[count] = row;
            names[count++] = row->field.name;
        }
    names[count] = NULL;
    if (!lap_arg_choice(command, what, name, names, &index))
        return false;
    *knob_p = knobs[index];
    return true;
}

/* One knob, "name" or "name=value". */
static bool parse_knob(const lap_command_t *command, const char *label, char *text,
                       lap_op_desc_t *desc, uint64_t *given)
{
    const lap_op_kind_t kind = desc->kind;
    const lap_builder_t *builder = lap_builder_find(kind, desc->method);
    const lap_op_field_t *knob;
    char owners[LAP_LIST_TEXT], what[2 * LAP_LIST_TEXT];
    char *value = strchr(text, '=');
    if (value)
        *value++ = '\0';
    snprintf(what, sizeof(what), "knob of --method %s", label);
    if (!find_knob(command, what, text, &knob))
        return false;
    if (!builder || !lap_knob_of(knob, builder)) {
        list_owners(kind, knob, owners, sizeof(owners));
        lap_args_fail(command, "--method %s: %s is a knob of %s", label, text, owners);
        return false;
    }
    const uint64_t bit = UINT64_C(1) << (knob - lap_op_fields);
    if (*given & bit) {
        lap_args_fail(command, "--method %s gives %s twice", label, text);
        return false;
    }
    *given |= bit;
    const bool flag = knob->field.type == LAP_FIELD_FLAG;
    snprintf(what, sizeof(what), "%s of --method %s", text, label);
    return lap_arg_field(command, what,
                         value  ? value
                         : flag ? "1"
                                : "",
                         &knob->field, flag ? 0 : 1, desc);
}

bool lap_arg_method(const lap_command_t *command, const char *item, lap_op_desc_t *desc)
{
    const char *names[METHODS_MAX + 2] = {NULL};
    size_t count = 0, index;
    while (count < METHODS_MAX && (names[count] = lap_op_methods(desc->kind, count, NULL)))
        count++;
    names[count] = LAP_AUTO;
    char text[LAP_LIST_TEXT];
    if (strlen(item) >= sizeof(text)) {
        lap_args_fail(command,
                      "--method is '%s'; expected a name with knobs of less than %d letters", item,
                      LAP_LIST_TEXT);
        return false;
    }
    snprintf(text, sizeof(text), "%s", item);
    char *rest = text, *name = strsep(&rest, ":");
    if (!lap_arg_choice(command, "--method", name, names, &index))
        return false;
    desc->method = names[index];
    uint64_t given = 0;
    while (rest)
        if (!parse_knob(command, item, strsep(&rest, ":"), desc, &given))
            return false;
    return true;
}
