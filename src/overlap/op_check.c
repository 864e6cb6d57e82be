/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lap_op_check: builds what every rank would do in every call of a sequence, lowers it for the
 * target, and has that proved. Runs nothing.
 */
#include "core/status.h"
#include "overlap/overlap.h"
#include "schedule/lower.h"

/* Builds the schedules of all ranks for one call. */
static lap_status_t build_call(const lap_op_desc_t *desc, size_t rows, unsigned can, size_t call,
                               lap_all_ranks_t *all)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    LAP_TRY(lap_problem_init(&problem, &builder, desc, (int)all->size, can));
    if (lap_builder_is_foreign(builder))
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "method '%s' is another library's: nobody can look inside, to prove it",
                         builder->name);
    if (desc->size != sizeof(*desc)) /* an array of them is read with the stride of this version */
        return lap_error(LAP_ERR_INVALID, "desc.size is %zu, expected %zu", desc->size,
                         sizeof(*desc));
    if (rows > desc->m)
        return lap_error(LAP_ERR_INVALID, "rows is %zu, expected at most the capacity m = %zu",
                         rows, desc->m);
    problem.m = rows;
    return lap_all_ranks_build(all, call, builder, &problem);
}

static lap_status_t check_arguments(const lap_op_desc_t *descs, size_t ncalls, int nranks)
{
    if (!descs)
        return lap_error(LAP_ERR_INVALID, "descs is NULL, expected %zu descriptions", ncalls);
    if (ncalls < 1 || ncalls > UINT32_MAX)
        return lap_error(LAP_ERR_INVALID, "ncalls is %zu, expected at least 1", ncalls);
    if (nranks < 1)
        return lap_error(LAP_ERR_INVALID, "nranks is %d, expected at least 1", nranks);
    return LAP_OK;
}

lap_status_t lap_op_check_for(const lap_op_desc_t *descs, const size_t *rows, size_t ncalls,
                              int nranks, const lap_target_t *target)
{
    lap_all_ranks_t all;
    LAP_TRY(check_arguments(descs, ncalls, nranks));
    LAP_TRY(lap_all_ranks_create(nranks, ncalls, &all));
    lap_status_t status = LAP_OK;
    for (size_t call = 0; status == LAP_OK && call < ncalls; call++) {
        status =
            build_call(&descs[call], rows ? rows[call] : descs[call].m, target->can, call, &all);
        if (status == LAP_OK)
            status = lap_lower(&all.schedules[call * all.size], all.size, target, NULL);
    }
    if (status == LAP_OK)
        status = lap_lowered_check(all.list, (uint32_t)ncalls, nranks, target);
    lap_all_ranks_clear(&all);
    return status;
}

lap_status_t lap_op_check(const lap_op_desc_t *descs, const size_t *rows, size_t ncalls, int nranks,
                          const char *transport)
{
    const lap_transport_ops_t *ops;
    const lap_device_ops_t *device;
    LAP_TRY(check_arguments(descs, ncalls, nranks));
    LAP_TRY(lap_transport_find(transport ? transport : "shm", &ops));
    LAP_TRY(lap_device_find(ops->device ? ops->device : "cpu", &device));
    const lap_target_t target = lap_target_of(device, ops);
    return lap_op_check_for(descs, rows, ncalls, nranks, &target);
}
