/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses NCCL by itself, beside the library: the communicator that it makes, for tests of
 * lap_group_set_nccl. The functions are those of the library's table, since both are of one NCCL.
 */
#ifndef LAP_TEST_OVERLAP_CALLER_COMM_H
#define LAP_TEST_OVERLAP_CALLER_COMM_H

#include "core/world.h"
#include "tap.h"
#include "transport/nccl/nccl_load.h"
#include "util/alloc.h"

/*
 * Collective. A communicator of all ranks of a group (`size` is their number), or one of each rank
 * alone (1).
 */
static inline ncclComm_t caller_comm(const lap_nccl_api_t *nccl, lap_group_t *group, int size)
{
    ncclUniqueId id = {{0}};
    ncclConfig_t config = LAP_NCCL_CONFIG;
    ncclComm_t comm = NULL;
    ncclResult_t state = ncclInProgress;
    void *ids;
    const int rank = size == 1 ? 0 : lap_group_rank(group);
    if (rank == 0)
        (void)nccl->ncclGetUniqueId(&id);
    tap_success(lap_group_collect(group, &id, sizeof(id), &ids), "ids");
    (void)nccl->ncclCommInitRankConfig(&comm, size, size == 1 ? id : *(const ncclUniqueId *)ids,
                                       rank, &config);
    while (state == ncclInProgress)
        (void)nccl->ncclCommGetAsyncError(comm, &state);
    lap_free(ids);
    return comm;
}

#endif
