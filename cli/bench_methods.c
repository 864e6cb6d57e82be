/* SPDX-License-Identifier: Apache-2.0 */
/* The value of --method of `lap bench`: names of methods with their knobs, all of them, or auto. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "core/environment.h"
#include "overlap/knobs.h"

bool lap_bench_add_method(lap_bench_case_t *it, const char *item)
{
    lap_bench_method_t method = {.desc = LAP_OP_DESC_INIT, .asked = true};
    method.desc.kind = it->kind;
    if (!lap_arg_method(&lap_bench_command, item, &method.desc))
        return false;
    snprintf(method.label, sizeof(method.label), "%s", item);
    for (size_t i = 0; i < it->nmethods; i++)
        if (it->methods[i].asked && strcmp(it->methods[i].label, item) == 0)
            return lap_args_wrong(&lap_bench_command, "--method names %s twice", item);
    if (strcmp(item, "serial") == 0) {
        it->methods[0].asked = true;
        return true;
    }
    if (it->nmethods > LAP_LIST_MAX) { /* "all" stands for several */
        return lap_args_wrong(&lap_bench_command, "--method names more than %d methods",
                              LAP_LIST_MAX);
    }
    it->methods[it->nmethods++] = method;
    return true;
}

static bool parse_all(lap_bench_case_t *it)
{
    const char *name;
    for (size_t i = 0; (name = lap_op_methods(it->kind, i, NULL)) != NULL; i++)
        if (!lap_bench_add_method(it, name))
            return false;
    return true;
}

bool lap_bench_parse_methods(lap_bench_case_t *it, const char *text)
{
    lap_list_t list;
    it->methods[0] = (lap_bench_method_t){.label = "serial", .desc = LAP_OP_DESC_INIT};
    it->methods[0].desc.method = "serial";
    it->nmethods = 1;
    if (!lap_arg_list(&lap_bench_command, "--method", text, &list))
        return false;
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.items[i], "all") == 0 ? !parse_all(it)
                                              : !lap_bench_add_method(it, list.items[i]))
            return false;
    return true;
}

/* Of "all" only what a library of others can do: whoever names it learns why it cannot. */
bool lap_bench_add_foreign(const lap_bench_t *bench, lap_bench_case_t *it, unsigned can)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    lap_environment_t environment;
    if (!lap_foreign_builder(it->kind) || bench->desc.epilogue & LAP_EPILOGUE_GELU)
        return true;
    if (lap_environment_read(&environment) != LAP_OK)
        return true; /* whoever makes the world reports it */
    lap_op_desc_t desc = lap_bench_desc(bench, it, 0);
    desc.method = LAP_FOREIGN_METHOD;
    const int size = bench->ranks > 0 ? bench->ranks : environment.size;
    if (lap_problem_init(&problem, &builder, &desc, size, can) != LAP_OK ||
        lap_foreign_check(&problem) != LAP_OK)
        return true;
    if (!lap_bench_add_method(it, LAP_FOREIGN_METHOD))
        return false;
    it->methods[it->nmethods - 1].optional = true;
    return true;
}

const char *lap_bench_knobs(void)
{
    static char text[1024];
    size_t used = (size_t)snprintf(
        text, sizeof(text), "Knobs follow a method after colons, as in pipeline:num_splits=8.\n");
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++) {
        char owners[LAP_OWNERS_TEXT];
        if (row->help && used < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "\n%-10s  %s (%s)",
                                     row->field.name, row->help,
                                     lap_knob_owners(row, LAP_ALL_KINDS, owners));
    }
    return text;
}

size_t lap_bench_auto(const lap_bench_case_t *it)
{
    for (size_t i = 0; i < it->nmethods; i++)
        if (strcmp(it->methods[i].desc.method, "auto") == 0)
            return i;
    return SIZE_MAX;
}

void lap_bench_leave_out(lap_bench_case_t *it, unsigned can, const char *asked)
{
    size_t count = 0;
    for (size_t i = 0; i < it->nmethods; i++) {
        const char *name = it->methods[i].desc.method;
        const lap_builder_t *builder = lap_builder_find(it->kind, name);
        const bool named = asked && strstr(asked, name);
        if (!builder || (builder->needs & ~can) == 0 || named)
            it->methods[count++] = it->methods[i];
    }
    it->nmethods = count;
}
