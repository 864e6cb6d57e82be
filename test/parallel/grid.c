/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grid of ranks: coordinates and groups of many sizes, against the formula and by counting; the
 * groups that ranks make have these members; sizes that do not fit are refused with the numbers.
 */
#include "parallel/grid.h"

#include "tap.h"

enum { MOST = 4 };
static const unsigned slices[] = {LAP_SLICE_TP,       LAP_SLICE_CP,    LAP_SLICE_PP,   LAP_SLICE_DP,
                                  LAP_SLICE_REPLICAS, LAP_SLICE_MODEL, LAP_SLICE_WORLD};
enum { SLICES = sizeof(slices) / sizeof(slices[0]) };

/* Every rank is what the formula says of its coordinates. */
static size_t wrong_ranks(const lap_grid_t *grid)
{
    size_t wrong = 0;
    int rank = 0;
    for (int dp = 0; dp < grid->dp; dp++)
        for (int pp = 0; pp < grid->pp; pp++)
            for (int cp = 0; cp < grid->cp; cp++)
                for (int tp = 0; tp < grid->tp; tp++, rank++)
                    wrong += rank != ((dp * grid->pp + pp) * grid->cp + cp) * grid->tp + tp ||
                             lap_grid_at(grid, LAP_AXIS_TP, rank) != tp ||
                             lap_grid_at(grid, LAP_AXIS_CP, rank) != cp ||
                             lap_grid_at(grid, LAP_AXIS_PP, rank) != pp ||
                             lap_grid_at(grid, LAP_AXIS_DP, rank) != dp;
    return wrong + (lap_grid_ranks(grid, LAP_SLICE_WORLD) != rank);
}

/* Member `index` of group `number`: the inverse of what is tested. */
static int member_of(const lap_grid_t *grid, unsigned slice, int number, int index)
{
    int rank = 0, step = 1;
    for (int a = 0; a < LAP_AXES; a++) {
        int *digits = slice >> a & 1 ? &index : &number;
        rank += *digits % lap_grid_size(grid, (lap_axis_t)a) * step;
        *digits /= lap_grid_size(grid, (lap_axis_t)a);
        step *= lap_grid_size(grid, (lap_axis_t)a);
    }
    return rank;
}

/* Two ranks are of one group if, and only if, they differ in no other axis; members are in order. */
static size_t wrong_groups(const lap_grid_t *grid, unsigned slice)
{
    const int nranks = (int)lap_grid_ranks(grid, LAP_SLICE_WORLD);
    const int members = (int)lap_grid_ranks(grid, slice);
    size_t wrong = 0;
    for (int r = 0; r < nranks; r++) {
        const int group = lap_grid_group(grid, slice, r);
        int before = 0;
        for (int o = 0; o < nranks; o++) {
            bool same = true;
            for (int a = 0; a < LAP_AXES; a++)
                same = same && ((slice >> a & 1) || lap_grid_at(grid, (lap_axis_t)a, r) ==
                                                        lap_grid_at(grid, (lap_axis_t)a, o));
            wrong += same != (lap_grid_group(grid, slice, o) == group);
            before += same && o < r;
        }
        wrong += group < 0 || group >= nranks / members;
        wrong += lap_grid_index(grid, slice, r) != before;
        wrong += member_of(grid, slice, group, before) != r;
    }
    return wrong;
}

static void test_sizes(void)
{
    size_t wrong = 0, grids = 0;
    lap_grid_t grid;
    for (grid.tp = 1; grid.tp <= MOST; grid.tp++)
        for (grid.cp = 1; grid.cp <= MOST; grid.cp++)
            for (grid.pp = 1; grid.pp <= MOST; grid.pp++)
                for (grid.dp = 1; grid.dp <= MOST; grid.dp++, grids++) {
                    size_t here = wrong_ranks(&grid);
                    for (int s = 0; s < SLICES; s++)
                        here += wrong_groups(&grid, slices[s]);
                    tap_wrong(here > 0, "tp %d, cp %d, pp %d, dp %d", grid.tp, grid.cp, grid.pp,
                              grid.dp);
                    wrong += here;
                }
    tap_ok(wrong == 0, "ranks and groups of %zu grids are those of the formula", grids);
}

/* ---- groups of ranks ---- */

/* Whether a group has the members of its slice; a group of one rank may be missing. */
static bool is_slice(const lap_grid_groups_t *groups, const lap_group_t *group, unsigned slice)
{
    const lap_grid_t *grid = &groups->grid;
    const int rank = lap_group_rank(groups->world), size = (int)lap_grid_ranks(grid, slice);
    if (!group)
        return size == 1;
    if (lap_group_size(group) != size || lap_group_rank(group) != lap_grid_index(grid, slice, rank))
        return false;
    for (int i = 0; i < size; i++)
        if (lap_group_world_rank(group, i) !=
            member_of(grid, slice, lap_grid_group(grid, slice, rank), i))
            return false;
    return true;
}

static void make_groups(lap_world_t *world, void *arg)
{
    const lap_grid_t *grid = arg;
    lap_grid_groups_t groups;
    const lap_status_t status = lap_grid_groups_init(&groups, grid, lap_world_group(world));
    char text[LAP_GRID_TEXT];
    lap_grid_text(grid, text);
    const int rank = lap_world_rank(world);
    if (tap_success(status, "%s: rank %d makes its groups", text, rank)) {
        tap_ok(groups.tp && groups.model, "... and has those of its model");
        tap_ok(is_slice(&groups, groups.tp, LAP_SLICE_TP) &&
                   is_slice(&groups, groups.cp, LAP_SLICE_CP) &&
                   is_slice(&groups, groups.pp, LAP_SLICE_PP) &&
                   is_slice(&groups, groups.dp, LAP_SLICE_DP) &&
                   is_slice(&groups, groups.replicas, LAP_SLICE_REPLICAS) &&
                   is_slice(&groups, groups.model, LAP_SLICE_MODEL),
               "... with the members of their slices");
        tap_ok(((groups.at.dp * grid->pp + groups.at.pp) * grid->cp + groups.at.cp) * grid->tp +
                       groups.at.tp ==
                   rank,
               "... and knows where it is");
    }
    lap_grid_groups_clear(&groups);
}

static void test_groups(void)
{
    static lap_grid_t grids[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 2},
                                 {2, 3, 1, 1}, {1, 2, 1, 3}, {2, 1, 2, 1}, {2, 2, 2, 2}};
    for (size_t i = 0; i < sizeof(grids) / sizeof(grids[0]); i++)
        tap_ranks((int)lap_grid_ranks(&grids[i], LAP_SLICE_WORLD), NULL, make_groups, &grids[i]);
}

static void test_refused(void)
{
    const lap_grid_t six = {2, 1, 3, 1}, none = {2, 0, 1, 1}, many = {1 << 30, 1 << 30, 1 << 30, 1};
    tap_success(lap_grid_check(&six, 6), "sizes whose product is the number of ranks are fine");
    tap_failure(lap_grid_check(&six, 8), LAP_ERR_INVALID, "tp 2, cp 1, pp 3, dp 1 is 6 ranks",
                "8 ranks were started", NULL);
    tap_failure(lap_grid_check(&six, 1), LAP_ERR_INVALID, "is 6 ranks, but 1 rank was", NULL);
    tap_failure(lap_grid_check(&none, 0), LAP_ERR_INVALID, "cp 0", "expected 1 or more", NULL);
    tap_failure(lap_grid_check(&many, 1), LAP_ERR_INVALID, "tp 1073741824", NULL);
}

int main(void)
{
    test_sizes();
    test_groups();
    test_refused();
    return tap_done();
}
