/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a description to a problem and its builder: every argument is looked at here, once, and
 * every default is filled in here. The builders take what they are given for granted.
 */
#include "overlap/overlap.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "transport/transport.h"

const lap_builder_t *lap_builders(lap_op_kind_t kind)
{
    return kind == LAP_GEMM_RS ? lap_gemm_rs_builders : lap_ag_gemm_builders;
}

const char *lap_op_kind_name(lap_op_kind_t kind)
{
    switch (kind) {
    case LAP_AG_GEMM:
        return "ag_gemm";
    case LAP_GEMM_RS:
        return "gemm_rs";
    }
    return "unknown operator";
}

static bool known_kind(lap_op_kind_t kind)
{
    return kind == LAP_AG_GEMM || kind == LAP_GEMM_RS;
}

const char *lap_op_methods(lap_op_kind_t kind, size_t index, const char **summary_p)
{
    if (!known_kind(kind))
        return NULL;
    const lap_builder_t *builder = lap_builders(kind);
    while (index > 0 && builder->name) {
        builder++;
        index--;
    }
    if (summary_p && builder->name)
        *summary_p = builder->summary;
    return builder->name;
}

/* "serial, ring, direct": the methods of a kind that a transport which `can` can do. */
static void list_methods(lap_op_kind_t kind, unsigned can, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (const lap_builder_t *builder = lap_builders(kind); builder->name; builder++)
        if ((builder->needs & ~can) == 0 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "",
                                     builder->name);
}

static lap_status_t find_builder(lap_op_kind_t kind, const char *method, unsigned can,
                                 const lap_builder_t **builder_p)
{
    const lap_builder_t *builder = lap_builders(kind);
    char names[128];
    if (!method) {
        /* The first one is serial; the first that overlaps comes after it. */
        for (builder++; builder->name && (builder->needs & ~can) != 0;)
            builder++;
        *builder_p = builder->name ? builder : lap_builders(kind);
        return LAP_OK;
    }
    while (builder->name && strcmp(builder->name, method) != 0)
        builder++;
    if (!builder->name) {
        list_methods(kind, ~0u, names, sizeof(names));
        return lap_error(LAP_ERR_INVALID, "method '%s' is none of %s: expected one of %s", method,
                         lap_op_kind_name(kind), names);
    }
    if ((builder->needs & ~can) != 0) {
        list_methods(kind, can, names, sizeof(names));
        return lap_error(
            LAP_ERR_UNSUPPORTED,
            "method '%s' of %s needs %s, which this transport does not have: it can do "
            "%s",
            method, lap_op_kind_name(kind),
            builder->needs & ~can & LAP_CAN_ADDRESS ? "peers' memory that compute can address"
                                                    : "one-sided puts",
            names[0] ? names : "none");
    }
    *builder_p = builder;
    return LAP_OK;
}

/* A size that must be there. */
static lap_status_t check_size(const char *name, size_t value)
{
    if (value > 0)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "%s is 0: expected at least 1", name);
}

/* A matrix that must be addressable; `ranks` rows may be added to it by rounding up to a shard. */
static lap_status_t check_matrix(const char *what, size_t rows, size_t cols, int ranks,
                                 size_t width)
{
    size_t bytes;
    if (__builtin_add_overflow(rows, (size_t)ranks, &rows) ||
        __builtin_mul_overflow(rows, cols, &bytes) || __builtin_mul_overflow(bytes, width, &bytes))
        return lap_error(LAP_ERR_INVALID,
                         "%s = %zu x %zu elements is more than memory can hold: expected at most "
                         "%zu bytes",
                         what, rows - (size_t)ranks, cols, SIZE_MAX);
    return LAP_OK;
}

static lap_status_t check_sizes(const lap_op_desc_t *desc, int size)
{
    size_t width = lap_dtype_size(desc->dtype);
    LAP_TRY(check_size("m", desc->m));
    LAP_TRY(check_size("n", desc->n));
    LAP_TRY(check_size("k", desc->k));
    LAP_TRY(check_matrix("m x n", desc->m, desc->n, size, width));
    LAP_TRY(check_matrix("m x k", desc->m, desc->k, size, width));
    return check_matrix("n x k", desc->n, desc->k, size, width);
}

static lap_status_t check_types(const lap_op_desc_t *desc)
{
    if (!known_kind(desc->kind))
        return lap_error(LAP_ERR_INVALID,
                         "kind is %d: expected LAP_AG_GEMM (%d) or LAP_GEMM_RS (%d)",
                         (int)desc->kind, (int)LAP_AG_GEMM, (int)LAP_GEMM_RS);
    if (desc->dtype != LAP_FLOAT32)
        return lap_error(LAP_ERR_UNSUPPORTED, "dtype is %d: expected LAP_FLOAT32 (%d)",
                         (int)desc->dtype, (int)LAP_FLOAT32);
    if (desc->epilogue != LAP_EPILOGUE_NONE)
        return lap_error(LAP_ERR_UNSUPPORTED, "epilogue is %d: expected LAP_EPILOGUE_NONE (%d)",
                         (int)desc->epilogue, (int)LAP_EPILOGUE_NONE);
    return LAP_OK;
}

/* A knob that only one method has: an error when it is turned on another one. */
static lap_status_t check_knob(const char *knob, size_t value, const char *owner,
                               const lap_op_desc_t *desc, const char *method)
{
    if (value == 0 || strcmp(method, owner) == 0)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "%s is %zu with method '%s' of %s: expected 0, only '%s' uses it", knob, value,
                     method, lap_op_kind_name(desc->kind), owner);
}

static lap_status_t check_knobs(const lap_op_desc_t *desc, const char *method, int size)
{
    bool gathers = desc->kind == LAP_AG_GEMM;
    if (desc->aggregate && !gathers)
        return lap_error(LAP_ERR_INVALID,
                         "aggregate is %d with gemm_rs: expected 0, only 'ring' of "
                         "ag_gemm uses it",
                         desc->aggregate);
    LAP_TRY(check_knob("aggregate", desc->aggregate != 0, "ring", desc, method));
    if (desc->aggregate && size > 1 && size % 2 != 0)
        return lap_error(LAP_ERR_INVALID, "aggregate needs an even group size, got %d", size);
    LAP_TRY(check_knob("num_splits", desc->num_splits, "pipeline", desc, method));
    if (desc->num_splits > desc->n)
        return lap_error(LAP_ERR_INVALID, "num_splits is %zu: expected at most n = %zu",
                         desc->num_splits, desc->n);
    LAP_TRY(check_knob("block_rows", desc->block_rows, "fused", desc, method));
    if (desc->gather_input && !gathers)
        return lap_error(LAP_ERR_INVALID,
                         "gather_input is %d with %s: expected 0, only ag_gemm "
                         "gathers",
                         desc->gather_input, lap_op_kind_name(desc->kind));
    return LAP_OK;
}

/*
 * Rows that travel together in the fused methods. More blocks overlap more finely, but a GEMM of
 * few rows runs below its full speed: a shard is cut into two to four, none of them short.
 */
static size_t default_block_rows(size_t capacity, int size)
{
    const size_t least = 128, good = 512;
    size_t shard = lap_shard(capacity, size, 0, NULL), parts = shard / good;
    parts = parts < 2 ? 2 : parts > 4 ? 4 : parts;
    size_t rows = (shard + parts - 1) / parts;
    return rows < least ? least : rows;
}

lap_status_t lap_problem_init(lap_problem_t *problem, const lap_builder_t **builder_p,
                              const lap_op_desc_t *desc, int size, unsigned can)
{
    const lap_builder_t *builder = NULL;
    if (!desc)
        return lap_error(LAP_ERR_INVALID, "desc is NULL: expected a description");
    if (desc->size != sizeof(*desc))
        return lap_error(LAP_ERR_INVALID,
                         "desc.size is %zu: expected %zu, as LAP_OP_DESC_INIT sets it", desc->size,
                         sizeof(*desc));
    if (size < 1)
        return lap_error(LAP_ERR_INVALID, "the group has %d ranks: expected at least 1", size);
    LAP_TRY(check_types(desc));
    LAP_TRY(check_sizes(desc, size));
    LAP_TRY(find_builder(desc->kind, desc->method, can, &builder));
    LAP_TRY(check_knobs(desc, builder->name, size));
    *problem = (lap_problem_t){
        .kind = desc->kind,
        .m = desc->m,
        .capacity = desc->m,
        .n = desc->n,
        .k = desc->k,
        .dtype = desc->dtype,
        .aggregate = desc->aggregate != 0,
        .num_splits = desc->num_splits ? desc->num_splits : (desc->n < 4 ? desc->n : 4),
        .block_rows = desc->block_rows ? desc->block_rows : default_block_rows(desc->m, size),
        .gather_input = desc->gather_input != 0,
        .rank = 0,
        .size = size,
    };
    *builder_p = builder;
    return LAP_OK;
}

lap_status_t lap_build(const lap_builder_t *builder, const lap_problem_t *problem,
                       lap_schedule_t *schedule)
{
    lap_schedule_init(schedule, problem, builder->name);
    builder->build(problem, schedule);
    return schedule->status;
}

lap_status_t lap_op_buffer_size(const lap_op_desc_t *desc, int nranks, size_t *bytes_p,
                                size_t *nsignals_p)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    lap_schedule_t schedule;
    if (!bytes_p || !nsignals_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL: expected where to write it",
                         bytes_p ? "nsignals_p" : "bytes_p");
    LAP_TRY(lap_problem_init(&problem, &builder, desc, nranks, ~0u));
    /*
     * The builder knows; what it needs at capacity is the same on every rank and enough for every
     * call.
     */
    lap_status_t status = lap_build(builder, &problem, &schedule);
    if (status == LAP_OK) {
        *bytes_p = schedule.symmetric_bytes;
        *nsignals_p = schedule.nsignals;
    }
    lap_schedule_clear(&schedule);
    return status;
}
