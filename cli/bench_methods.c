/* SPDX-License-Identifier: Apache-2.0 */
/* What --method of `lap bench` says: names of methods with their knobs, all of them, or auto. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

#define METHODS_MAX 16

/* The names of the methods of an operator, with NULL at the end. */
static void list_methods(lap_op_kind_t kind, const char *names[METHODS_MAX + 1])
{
    size_t count = 0;
    for (const char *name; count < METHODS_MAX && (name = lap_op_methods(kind, count, NULL));)
        names[count++] = name;
    names[count] = NULL;
}

#define EVERY_METHOD 0u /* knobs: that which all have */

static bool has_one(const lap_builder_t *builder, unsigned knobs)
{
    return knobs == EVERY_METHOD || builder->knobs & knobs;
}

/* "pipeline, pull": the methods of a kind that have one of these knobs. */
static void list_owners(lap_op_kind_t kind, unsigned knobs, char *text, size_t bytes)
{
    size_t used = 0;
    snprintf(text, bytes, "no method of %s", lap_kind_words[kind].word);
    for (const lap_builder_t *builder = lap_builders(kind); builder->name; builder++)
        if (has_one(builder, knobs) && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "",
                                     builder->name);
}

static bool has_knob(lap_op_kind_t kind, const char *method, unsigned knobs)
{
    const lap_builder_t *builder = lap_builders(kind);
    while (builder->name && strcmp(builder->name, method) != 0)
        builder++;
    return builder->name && has_one(builder, knobs);
}

/* One knob, "name" or "name=value"; `given` has a bit for each that came before. */
static bool parse_knob(lap_op_kind_t kind, lap_bench_method_t *method, unsigned *given, char *knob)
{
    enum { AGGREGATE, NUM_SPLITS, BLOCK_ROWS, NUM_SM };
    static const char *const names[] = {"aggregate", "num_splits", "block_rows", "num_sm", NULL};
    static const unsigned knobs[] = {LAP_KNOB_AGGREGATE, LAP_KNOB_NUM_SPLITS | LAP_KNOB_ROUNDS,
                                     LAP_KNOB_BLOCK_ROWS, EVERY_METHOD};
    char owners[LAP_LIST_TEXT];
    char what[2 * LAP_LIST_TEXT];
    char *value = strchr(knob, '=');
    if (value)
        *value++ = '\0';
    size_t index;
    snprintf(what, sizeof(what), "knob of --method %s", method->label);
    if (!lap_arg_choice(&lap_bench_command, what, knob, names, &index))
        return false;
    if (!has_knob(kind, method->name, knobs[index])) {
        list_owners(kind, knobs[index], owners, sizeof(owners));
        lap_args_fail(&lap_bench_command, "--method %s: %s is a knob of %s", method->label, knob,
                      owners);
        return false;
    }
    if (*given >> index & 1) {
        lap_args_fail(&lap_bench_command, "--method %s gives %s twice", method->label, knob);
        return false;
    }
    *given |= 1u << index;
    snprintf(what, sizeof(what), "%s of --method %s", names[index], method->label);
    if (index == AGGREGATE)
        return lap_arg_int(&lap_bench_command, what, value ? value : "1", 0, 1, &method->aggregate);
    if (index == NUM_SM)
        return lap_arg_int(&lap_bench_command, what, value ? value : "", 1, LAP_SMS_MOST,
                           &method->num_sm);
    return lap_arg_size(&lap_bench_command, what, value ? value : "", 1, SIZE_MAX,
                        index == NUM_SPLITS ? &method->num_splits : &method->block_rows);
}

static void add_name(const char **names, const char *name)
{
    while (*names)
        names++;
    names[0] = name;
    names[1] = NULL;
}

bool lap_bench_add_method(lap_bench_case_t *it, const char *item)
{
    const char *names[METHODS_MAX + 2];
    list_methods(it->kind, names);
    add_name(names, "auto");
    char text[LAP_LIST_TEXT];
    snprintf(text, sizeof(text), "%s", item);
    char *rest = text, *name = strsep(&rest, ":");
    size_t index;
    if (!lap_arg_choice(&lap_bench_command, "--method", name, names, &index))
        return false;
    lap_bench_method_t method = {.name = names[index], .asked = true};
    snprintf(method.label, sizeof(method.label), "%s", item);
    unsigned given = 0;
    while (rest)
        if (!parse_knob(it->kind, &method, &given, strsep(&rest, ":")))
            return false;
    for (size_t i = 0; i < it->nmethods; i++)
        if (it->methods[i].asked && strcmp(it->methods[i].label, item) == 0) {
            lap_args_fail(&lap_bench_command, "--method names %s twice", item);
            return false;
        }
    if (strcmp(item, "serial") == 0) {
        it->methods[0].asked = true;
        return true;
    }
    if (it->nmethods > LAP_LIST_MAX) { /* "all" stands for several */
        lap_args_fail(&lap_bench_command, "--method names more than %d methods", LAP_LIST_MAX);
        return false;
    }
    it->methods[it->nmethods++] = method;
    return true;
}

static bool parse_all(lap_bench_case_t *it)
{
    const char *names[METHODS_MAX + 1];
    list_methods(it->kind, names);
    for (size_t i = 0; names[i]; i++)
        if (!lap_bench_add_method(it, names[i]))
            return false;
    return true;
}

bool lap_bench_parse_methods(lap_bench_case_t *it, const char *text)
{
    lap_list_t list;
    it->methods[0] = (lap_bench_method_t){.label = "serial", .name = "serial"};
    it->nmethods = 1;
    if (!lap_arg_list(&lap_bench_command, "--method", text, &list))
        return false;
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.items[i], "all") == 0 ? !parse_all(it)
                                              : !lap_bench_add_method(it, list.items[i]))
            return false;
    return true;
}

size_t lap_bench_auto(const lap_bench_case_t *it)
{
    for (size_t i = 0; i < it->nmethods; i++)
        if (strcmp(it->methods[i].name, "auto") == 0)
            return i;
    return SIZE_MAX;
}

void lap_bench_leave_out(lap_bench_case_t *it, unsigned can, const char *asked)
{
    size_t kept = 0;
    for (size_t i = 0; i < it->nmethods; i++) {
        const lap_builder_t *builder = lap_builders(it->kind);
        while (builder->name && strcmp(builder->name, it->methods[i].name) != 0)
            builder++;
        const bool named = asked && strstr(asked, it->methods[i].name);
        if (!builder->name || (builder->needs & ~can) == 0 || named)
            it->methods[kept++] = it->methods[i];
    }
    it->nmethods = kept;
}
