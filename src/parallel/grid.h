/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grid of ranks: tensor, context, pipeline and data parallel, of which tensor parallel ranks are
 * neighbours and so share a host:
 *
 *     rank = ((dp * PP + pp) * CP + cp) * TP + tp
 *
 * A group is a slice of the grid: the ranks that differ only in some of the axes. Everything here is a
 * function of the sizes, apart from lap_grid_groups_init.
 */
#ifndef LAP_PARALLEL_GRID_H
#define LAP_PARALLEL_GRID_H

#include <stdint.h>

#include <lap/world.h>

/* Axes, from that of neighbours on. */
typedef enum lap_axis { LAP_AXIS_TP, LAP_AXIS_CP, LAP_AXIS_PP, LAP_AXIS_DP, LAP_AXES } lap_axis_t;

/* "tp", "cp", "pp", "dp". */
const char *lap_axis_name(lap_axis_t axis);

/* The number of ranks along each axis. */
typedef struct lap_grid {
    int tp, cp, pp, dp;
} lap_grid_t;

#define LAP_GRID_INIT                                                                              \
    {                                                                                              \
        1, 1, 1, 1                                                                                 \
    }

int lap_grid_size(const lap_grid_t *grid, lap_axis_t axis);

/* Sets of axes, each of which makes groups. */
typedef enum lap_slice {
    LAP_SLICE_TP = 1 << LAP_AXIS_TP, /* ranks that share weights of a layer, */
    LAP_SLICE_CP = 1 << LAP_AXIS_CP, /* tokens of a sequence, */
    LAP_SLICE_PP = 1 << LAP_AXIS_PP, /* layers of a model, */
    LAP_SLICE_DP = 1 << LAP_AXIS_DP, /* sequences of a batch */
    /* Ranks with the same weights, over which their gradients are summed; */
    LAP_SLICE_REPLICAS = LAP_SLICE_DP | LAP_SLICE_CP,
    /* with other weights of the same model, over which the squares of gradients are summed. */
    LAP_SLICE_MODEL = LAP_SLICE_TP | LAP_SLICE_PP,
    LAP_SLICE_WORLD = LAP_SLICE_REPLICAS | LAP_SLICE_MODEL,
} lap_slice_t;

/* Ranks of a slice: those of the grid, for LAP_SLICE_WORLD. INT64_MAX where they are more. */
int64_t lap_grid_ranks(const lap_grid_t *grid, unsigned slice);

/* "tp 2, cp 1, pp 2, dp 1" */
#define LAP_GRID_TEXT 96
void lap_grid_text(const lap_grid_t *grid, char text[LAP_GRID_TEXT]);

/* LAP_ERR_INVALID with the numbers, unless the sizes are positive and their product is `nranks`. */
lap_status_t lap_grid_check(const lap_grid_t *grid, int nranks);

/* The coordinate of a rank along an axis. */
int lap_grid_at(const lap_grid_t *grid, lap_axis_t axis, int rank);

/* Which of the groups of a slice a rank is in, and which of its members; both count in the order of ranks. */
int lap_grid_group(const lap_grid_t *grid, unsigned slice, int rank);
int lap_grid_index(const lap_grid_t *grid, unsigned slice, int rank);

/* The groups that a rank is in. */
typedef struct lap_grid_groups {
    lap_grid_t grid, at;           /* its sizes, and where the rank is in it, each from 0 */
    lap_group_t *world;            /* the caller's */
    lap_group_t *tp;               /* of one axis each; */
    lap_group_t *cp, *pp, *dp;     /* NULL: it has one rank */
    lap_group_t *replicas, *model; /* as the slices of these names; replicas, NULL: one rank */
} lap_grid_groups_t;

/* Makes them. Collective over `world`; lap_grid_groups_clear undoes it, also after a failure. */
lap_status_t lap_grid_groups_init(lap_grid_groups_t *groups, const lap_grid_t *grid,
                                  lap_group_t *world);
void lap_grid_groups_clear(lap_grid_groups_t *groups);

#endif
