/* SPDX-License-Identifier: Apache-2.0 */
/* The grid of ranks: coordinates are the digits of a rank, and a slice keeps some of the digits. */
#include "parallel/grid.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"

const char *lap_axis_name(lap_axis_t axis)
{
    static const char *const names[LAP_AXES] = {"tp", "cp", "pp", "dp"};
    return names[axis];
}

int lap_grid_size(const lap_grid_t *grid, lap_axis_t axis)
{
    const int sizes[LAP_AXES] = {grid->tp, grid->cp, grid->pp, grid->dp};
    return sizes[axis];
}

static bool has(unsigned slice, int axis)
{
    return (slice >> axis & 1) != 0;
}

int64_t lap_grid_ranks(const lap_grid_t *grid, unsigned slice)
{
    int64_t ranks = 1;
    for (int a = 0; a < LAP_AXES; a++)
        if (has(slice, a) &&
            __builtin_mul_overflow(ranks, lap_grid_size(grid, (lap_axis_t)a), &ranks))
            return INT64_MAX;
    return ranks;
}

void lap_grid_text(const lap_grid_t *grid, char text[LAP_GRID_TEXT])
{
    size_t used = 0;
    for (int a = 0; a < LAP_AXES && used < LAP_GRID_TEXT; a++)
        used += (size_t)snprintf(text + used, LAP_GRID_TEXT - used, "%s%s %d", a ? ", " : "",
                                 lap_axis_name((lap_axis_t)a), lap_grid_size(grid, (lap_axis_t)a));
}

lap_status_t lap_grid_check(const lap_grid_t *grid, int nranks)
{
    char text[LAP_GRID_TEXT];
    lap_grid_text(grid, text);
    for (int a = 0; a < LAP_AXES; a++)
        if (lap_grid_size(grid, (lap_axis_t)a) < 1)
            return lap_error(LAP_ERR_INVALID, "the grid is %s; expected 1 or more for each", text);
    const int64_t ranks = lap_grid_ranks(grid, LAP_SLICE_WORLD);
    if (ranks == nranks)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "a grid of %s is %lld rank%s, but %d %s started", text,
                     (long long)ranks, ranks == 1 ? "" : "s", nranks,
                     nranks == 1 ? "rank was" : "ranks were");
}

int lap_grid_at(const lap_grid_t *grid, lap_axis_t axis, int rank)
{
    for (int a = 0; a < (int)axis; a++)
        rank /= lap_grid_size(grid, (lap_axis_t)a);
    return rank % lap_grid_size(grid, axis);
}

int lap_grid_index(const lap_grid_t *grid, unsigned slice, int rank)
{
    int index = 0;
    for (int a = LAP_AXES; a-- > 0;)
        if (has(slice, a))
            index =
                index * lap_grid_size(grid, (lap_axis_t)a) + lap_grid_at(grid, (lap_axis_t)a, rank);
    return index;
}

int lap_grid_group(const lap_grid_t *grid, unsigned slice, int rank)
{
    return lap_grid_index(grid, ~slice, rank);
}

/* ---- groups ---- */

/* The group gets the name of the slowest of the axes: that of replicas is "dp". */
static lap_status_t split(lap_grid_groups_t *groups, unsigned slice, lap_group_t **group_p)
{
    const int rank = lap_group_rank(groups->world);
    LAP_TRY(lap_group_split(groups->world, lap_grid_group(&groups->grid, slice, rank),
                            lap_grid_index(&groups->grid, slice, rank), group_p));
    for (int a = 0; a < LAP_AXES; a++)
        if (has(slice, a))
            (*group_p)->kind = lap_axis_name((lap_axis_t)a);
    return LAP_OK;
}

/* The groups of an axis; none where each would have one rank. */
static lap_status_t split_axis(lap_grid_groups_t *groups, lap_axis_t axis, lap_group_t **group_p)
{
    if (lap_grid_size(&groups->grid, axis) == 1)
        return LAP_OK;
    return split(groups, 1U << axis, group_p);
}

lap_status_t lap_grid_groups_init(lap_grid_groups_t *groups, const lap_grid_t *grid,
                                  lap_group_t *world)
{
    const int rank = lap_group_rank(world);
    *groups = (lap_grid_groups_t){.grid = *grid, .world = world};
    LAP_TRY(lap_grid_check(grid, lap_group_size(world)));
    groups->at = (lap_grid_t){.tp = lap_grid_at(grid, LAP_AXIS_TP, rank),
                              .cp = lap_grid_at(grid, LAP_AXIS_CP, rank),
                              .pp = lap_grid_at(grid, LAP_AXIS_PP, rank),
                              .dp = lap_grid_at(grid, LAP_AXIS_DP, rank)};
    LAP_TRY(split(groups, LAP_SLICE_TP, &groups->tp));
    LAP_TRY(split_axis(groups, LAP_AXIS_CP, &groups->cp));
    LAP_TRY(split_axis(groups, LAP_AXIS_PP, &groups->pp));
    LAP_TRY(split_axis(groups, LAP_AXIS_DP, &groups->dp));
    /* A slice of two axes, one of which has one rank, has the groups of the other. */
    groups->replicas = groups->cp ? groups->cp : groups->dp;
    groups->model = groups->tp;
    if (groups->cp && groups->dp) {
        groups->replicas = NULL;
        LAP_TRY(split(groups, LAP_SLICE_REPLICAS, &groups->replicas));
    }
    if (groups->pp) {
        groups->model = NULL;
        LAP_TRY(split(groups, LAP_SLICE_MODEL, &groups->model));
    }
    return LAP_OK;
}

void lap_grid_groups_clear(lap_grid_groups_t *groups)
{
    if (groups->replicas != groups->cp && groups->replicas != groups->dp)
        lap_group_destroy(groups->replicas);
    if (groups->model != groups->tp)
        lap_group_destroy(groups->model);
    lap_group_destroy(groups->dp);
    lap_group_destroy(groups->pp);
    lap_group_destroy(groups->cp);
    lap_group_destroy(groups->tp);
    memset(groups, 0, sizeof(*groups));
}
