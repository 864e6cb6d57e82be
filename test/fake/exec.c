/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs of the fake driver: see fake.h. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

void fake_drop_record(record_t *record)
{
    if (record && atomic_fetch_sub(&record->users, 1) == 1)
        free(record);
}

void fake_drop_graph(graph_t *graph)
{
    if (!graph || atomic_fetch_sub(&graph->users, 1) != 1)
        return;
    while (graph->first) {
        op_t *op = graph->first;
        graph->first = op->next;
        fake_drop_record(op->record);
        free(op);
    }
    fake_drop_added(graph);
    free(graph);
}

static CUresult cu_graph_destroy(CUgraph graph)
{
    fake_drop_graph((graph_t *)graph);
    return CUDA_SUCCESS;
}

typedef struct exec {
    graph_t *graph;
} exec_t;

static CUresult cu_graph_update(CUgraphExec handle, CUgraph graph,
                                CUgraphExecUpdateResultInfo *info)
{
    exec_t *exec = (exec_t *)handle;
    memset(info, 0, sizeof(*info));
    fake_count(FAKE_INSTANTIATED, 1);
    fake_drop_graph(exec->graph);
    exec->graph = (graph_t *)graph;
    atomic_fetch_add(&exec->graph->users, 1);
    if (exec->graph->added)
        fake_check_added(exec->graph);
    fake_tell_graph(exec->graph);
    return CUDA_SUCCESS;
}

static CUresult cu_graph_instantiate(CUgraphExec *exec_p, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    CUgraphExecUpdateResultInfo info;
    exec_t *exec = calloc(1, sizeof(*exec));
    *exec_p = (CUgraphExec)exec;
    return cu_graph_update(*exec_p, graph, &info);
}

static CUresult cu_graph_exec_destroy(CUgraphExec handle)
{
    fake_drop_graph(((exec_t *)handle)->graph);
    free(handle);
    return CUDA_SUCCESS;
}

static CUresult cu_graph_launch(CUgraphExec handle, CUstream of)
{
    fake_count(FAKE_LAUNCHED, 1);
    return fake_issue_graph(of, ((exec_t *)handle)->graph);
}

const fake_call_t fake_exec_calls[] = {
    FAKE_CALL("cuGraphDestroy", cu_graph_destroy),
    FAKE_CALL("cuGraphInstantiateWithFlags", cu_graph_instantiate),
    FAKE_CALL("cuGraphExecUpdate", cu_graph_update),
    FAKE_CALL("cuGraphExecDestroy", cu_graph_exec_destroy),
    FAKE_CALL("cuGraphLaunch", cu_graph_launch),
    {NULL, NULL},
};
