/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs whose streams share hardware queues. There a wait holds up whatever comes after it in its queue. Graphs come
 * to the queues in the order of their launches, but the branches of one in any order that its edges allow. So a wait must
 * come after all that its graph sends before it in the list. Then a rank that is held up has sent all that it would have
 * sent in the order of the list, and that this order does not deadlock is played by itself. lap_check_waits is the same
 * for a call alone.
 */
#include "core/status.h"
#include "schedule/check.h"
#include "schedule/segments.h"
#include "util/alloc.h"

typedef struct queues {
    const lap_check_t *check;
    bool *begins; /* a graph does with a call of a rank, [rank * (ncalls + 1) + call] */
    uint32_t
        *sent; /* by the graph of each rank, the latest on each stream; LAP_CHECK_NONE: nothing */
} queues_t;

static uint32_t *sent_by(const queues_t *queues, int rank)
{
    return &queues->sent[(size_t)rank * queues->check->nstreams];
}

/* Whether a node has happened when another may begin; what the other waits for does not count. */
static bool is_over(const lap_check_t *check, uint32_t earlier, const lap_node_t *node)
{
    for (uint32_t i = 0; i < node->npreds; i++)
        if (lap_check_before(check, earlier, check->preds[node->first_pred + i]))
            return true;
    return false;
}

static lap_status_t held_up(const lap_check_t *check, uint32_t send, uint32_t wait)
{
    char first[LAP_CHECK_TEXT], second[LAP_CHECK_TEXT];
    lap_check_describe(check, wait, first, sizeof(first));
    lap_check_describe(check, send, second, sizeof(second));
    return lap_error(LAP_ERR_CHECK,
                     "a wait that may hold up a shared queue: %s does not come after %s, which is "
                     "listed before it in the same graph",
                     first, second);
}

static lap_status_t check_node(const queues_t *queues, uint32_t index)
{
    const lap_check_t *check = queues->check;
    const lap_node_t *node = &check->nodes[index];
    uint32_t *sent = sent_by(queues, node->rank);
    for (uint32_t s = 0; s < check->nstreams && node->wait != LAP_CHECK_NONE; s++)
        if (sent[s] != LAP_CHECK_NONE && !is_over(check, sent[s], node))
            return held_up(check, sent[s], index);
    const lap_schedule_t *schedule = lap_check_schedule(check, node->call, node->rank);
    if (node->kind == LAP_NODE_STEP && lap_step_sends(schedule, node->step))
        sent[check->streams[schedule->steps[node->step].stream]] = index;
    return LAP_OK;
}

/* Nodes are in the order of calls, and of each call in that of ranks. */
static lap_status_t check_nodes(const queues_t *queues)
{
    const lap_check_t *check = queues->check;
    const lap_node_t *before = NULL;
    for (uint32_t i = 0; i < check->nnodes; i++) {
        const lap_node_t *node = &check->nodes[i];
        const bool fresh = !before || before->call != node->call || before->rank != node->rank;
        if (fresh && queues->begins[(size_t)node->rank * (check->ncalls + 1) + node->call])
            for (uint32_t s = 0; s < check->nstreams; s++)
                sent_by(queues, node->rank)[s] = LAP_CHECK_NONE;
        LAP_TRY(check_node(queues, i));
        before = node;
    }
    return LAP_OK;
}

lap_status_t lap_check_queues(const lap_check_t *check)
{
    const size_t count = (size_t)check->ncalls + 1, nsent = (size_t)check->size * check->nstreams;
    const queues_t queues = {check, lap_alloc((size_t)check->size * count, sizeof(bool)),
                             lap_alloc(nsent, sizeof(uint32_t))};
    lap_status_t status = LAP_OK;
    if (!queues.begins || !queues.sent)
        status =
            lap_error(LAP_ERR_NO_MEMORY, "no memory to check the graphs of %d ranks", check->size);
    for (size_t i = 0; i < nsent && status == LAP_OK; i++)
        queues.sent[i] = LAP_CHECK_NONE;
    for (int rank = 0; rank < check->size && status == LAP_OK; rank++)
        lap_linked_cut(check->programs[rank], &queues.begins[(size_t)rank * count]);
    if (status == LAP_OK)
        status = check_nodes(&queues);
    lap_free(queues.begins);
    lap_free(queues.sent);
    return status;
}
