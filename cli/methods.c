/* SPDX-License-Identifier: Apache-2.0 */
/* What --method says of one method: its name, or auto, and knobs after colons. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "overlap/knobs.h"

#define METHODS_MAX 16
#define KNOBS_MAX 16

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
    const lap_builder_t *builder = lap_builder_find(desc->kind, desc->method);
    const lap_op_field_t *knob;
    char owners[LAP_OWNERS_TEXT], what[2 * LAP_LIST_TEXT];
    char *value = strchr(text, '=');
    if (value)
        *value++ = '\0';
    snprintf(what, sizeof(what), "knob of --method %s", label);
    if (!find_knob(command, what, text, &knob))
        return false;
    lap_knob_owners(knob, desc->kind, owners);
    if (!builder || !lap_knob_of(knob, builder))
        return lap_args_wrong(command, "--method %s: %s is a knob of %s%s", label, text,
                              *owners ? owners : "no method of ",
                              *owners ? "" : lap_kind_words[desc->kind].word);
    const uint64_t bit = UINT64_C(1) << (knob - lap_op_fields);
    if (*given & bit)
        return lap_args_wrong(command, "--method %s gives %s twice", label, text);
    *given |= bit;
    const bool flag = knob->field.type == LAP_FIELD_FLAG;
    snprintf(what, sizeof(what), "%s of --method %s", text, label);
    const char *number = flag ? "1" : "";
    return lap_arg_field(command, what, value ? value : number, &knob->field, flag ? 0 : 1, desc);
}

bool lap_arg_method(const lap_command_t *command, const char *item, lap_op_desc_t *desc)
{
    const char *names[METHODS_MAX + 3] = {NULL};
    size_t count = 0, index;
    while (count < METHODS_MAX && (names[count] = lap_op_methods(desc->kind, count, NULL)))
        count++;
    names[count++] = LAP_AUTO;
    if (lap_foreign_builder(desc->kind))
        names[count] = LAP_FOREIGN_METHOD;
    char text[LAP_LIST_TEXT];
    if (strlen(item) >= sizeof(text))
        return lap_args_wrong(
            command, "--method is '%s'; expected a name with knobs of less than %d letters", item,
            LAP_LIST_TEXT);
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
