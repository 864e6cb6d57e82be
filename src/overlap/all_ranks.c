/* SPDX-License-Identifier: Apache-2.0 */
/* The schedules of all ranks, for who must know what the others do. Nothing is run here. */
#include "core/status.h"
#include "overlap/overlap.h"
#include "util/alloc.h"

lap_status_t lap_all_ranks_create(int size, size_t ncalls, lap_all_ranks_t *all_p)
{
    lap_all_ranks_t all = {.size = (size_t)size};
    if (__builtin_mul_overflow(ncalls, all.size, &all.count))
        return lap_error(LAP_ERR_INVALID, "%zu calls of %d ranks are too many", ncalls, size);
    all.schedules = lap_alloc(all.count, sizeof(*all.schedules));
    all.list = lap_alloc(all.count, sizeof(*all.list));
    if (!all.schedules || !all.list) {
        lap_all_ranks_clear(&all);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the schedules of %d ranks and %zu calls",
                         size, ncalls);
    }
    for (size_t i = 0; i < all.count; i++)
        all.list[i] = &all.schedules[i];
    *all_p = all;
    return LAP_OK;
}

lap_status_t lap_all_ranks_build(lap_all_ranks_t *all, size_t call, const lap_builder_t *builder,
                                 const lap_problem_t *given)
{
    lap_problem_t problem = *given;
    for (size_t rank = 0; rank < all->size; rank++) {
        problem.rank = (int)rank;
        LAP_TRY(lap_build(builder, &problem, &all->schedules[call * all->size + rank]));
    }
    return LAP_OK;
}

void lap_all_ranks_clear(lap_all_ranks_t *all)
{
    for (size_t i = 0; all->schedules && i < all->count; i++)
        lap_schedule_clear(&all->schedules[i]);
    lap_free(all->list);
    lap_free(all->schedules);
}
