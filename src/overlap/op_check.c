/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lap_op_check: builds what every rank would do in every call of a sequence, and has it proved.
 * Runs nothing.
 */
#include "core/status.h"
#include "overlap/overlap.h"
#include "transport/transport.h"
#include "util/alloc.h"

/* Builds the schedules of all ranks for one call. */
static lap_status_t build_call(const lap_op_desc_t *desc, size_t rows, int nranks, unsigned can,
                               lap_schedule_t *schedules)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    LAP_TRY(lap_problem_init(&problem, &builder, desc, nranks, can));
    if (desc->size != sizeof(*desc)) /* an array of them is read with the stride of this version */
        return lap_error(LAP_ERR_INVALID, "desc.size is %zu, expected %zu", desc->size,
                         sizeof(*desc));
    if (rows > desc->m)
        return lap_error(LAP_ERR_INVALID, "rows is %zu, expected at most the capacity m = %zu",
                         rows, desc->m);
    problem.m = rows;
    for (int rank = 0; rank < nranks; rank++) {
        problem.rank = rank;
        LAP_TRY(lap_build(builder, &problem, &schedules[rank]));
    }
    return LAP_OK;
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

lap_status_t lap_op_check(const lap_op_desc_t *descs, const size_t *rows, size_t ncalls, int nranks,
                          const char *transport)
{
    const lap_transport_ops_t *ops;
    size_t count, size = (size_t)nranks;
    LAP_TRY(check_arguments(descs, ncalls, nranks));
    LAP_TRY(lap_transport_find(transport ? transport : "shm", &ops));
    if (__builtin_mul_overflow(ncalls, size, &count))
        return lap_error(LAP_ERR_INVALID, "%zu calls of %d ranks are too many", ncalls, nranks);
    lap_schedule_t *schedules = lap_alloc(count, sizeof(*schedules));
    const lap_schedule_t **list = lap_alloc(count, sizeof(*list));
    lap_status_t status = LAP_OK;
    if (!schedules || !list)
        status = lap_error(LAP_ERR_NO_MEMORY,
                           "no memory for the schedules of %d ranks and %zu calls", nranks, ncalls);
    for (size_t call = 0; status == LAP_OK && call < ncalls; call++)
        status = build_call(&descs[call], rows ? rows[call] : descs[call].m, nranks, ops->can,
                            &schedules[call * size]);
    for (size_t i = 0; status == LAP_OK && i < count; i++)
        list[i] = &schedules[i];
    if (status == LAP_OK)
        status = lap_schedule_check(list, (uint32_t)ncalls, nranks);
    for (size_t i = 0; schedules && i < count; i++)
        lap_schedule_clear(&schedules[i]);
    lap_free(list);
    lap_free(schedules);
    return status;
}
