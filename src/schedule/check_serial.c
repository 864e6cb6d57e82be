/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last part of the checker: that what is not to be overlapped is not. A serial fragment comes after
 * all steps of its rank before it, and all steps after it come after it.
 */
#include "schedule/check.h"

#include "core/status.h"
#include "util/alloc.h"

/* Of each stream of each rank: its latest node, and the one that all nodes since have to follow. */
typedef struct fences {
    uint32_t *last, *fence;
    uint32_t *call; /* of each rank: of its latest node */
} fences_t;

static lap_status_t overlapped(const lap_check_t *check, uint32_t earlier, uint32_t later)
{
    char first[LAP_CHECK_TEXT], second[LAP_CHECK_TEXT];
    lap_check_describe(check, earlier, first, sizeof(first));
    lap_check_describe(check, later, second, sizeof(second));
    return lap_error(LAP_ERR_CHECK,
                     "overlap: %s may run before %s is over, and one of them is serial", second,
                     first);
}

static bool is_serial(const lap_check_t *check, uint32_t call, int rank)
{
    return call != LAP_CHECK_NONE && lap_check_fragment(check, call, rank)->serial;
}

static lap_status_t check_nodes(const lap_check_t *check, fences_t *fences)
{
    for (uint32_t i = 0; i < check->nnodes; i++) {
        const lap_node_t *node = &check->nodes[i];
        if (node->kind != LAP_NODE_STEP)
            continue;
        uint32_t *last = &fences->last[(size_t)node->rank * check->nstreams],
                 *fence = &fences->fence[(size_t)node->rank * check->nstreams],
                 *call = &fences->call[node->rank];
        const bool begins = *call != node->call && (is_serial(check, *call, node->rank) ||
                                                    is_serial(check, node->call, node->rank));
        for (uint32_t s = 0; s < check->nstreams; s++) {
            fence[s] = begins ? last[s] : fence[s];
            if (fence[s] != LAP_CHECK_NONE && !lap_check_before(check, fence[s], i))
                return overlapped(check, fence[s], i);
        }
        last[node->thread - (uint32_t)node->rank * check->nstreams] = i;
        *call = node->call;
    }
    return LAP_OK;
}

lap_status_t lap_check_serial(const lap_check_t *check)
{
    const size_t size = (size_t)check->size, count = size * check->nstreams;
    fences_t fences = {.last = lap_alloc(count, sizeof(uint32_t)),
                       .fence = lap_alloc(count, sizeof(uint32_t)),
                       .call = lap_alloc(size, sizeof(uint32_t))};
    lap_status_t status = LAP_OK;
    if (!fences.last || !fences.fence || !fences.call)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to check %zu streams", count);
    for (size_t i = 0; status == LAP_OK && i < count; i++)
        fences.last[i] = fences.fence[i] = LAP_CHECK_NONE;
    for (size_t i = 0; status == LAP_OK && i < size; i++)
        fences.call[i] = LAP_CHECK_NONE;
    if (status == LAP_OK)
        status = check_nodes(check, &fences);
    lap_free(fences.last);
    lap_free(fences.fence);
    lap_free(fences.call);
    return status;
}
