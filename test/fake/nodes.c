/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of the fake driver as nodes: how they depend on one another follows from the streams that
 * were captured. They can be changed in the ways that are used: a node is taken out after those
 * before and after it have been joined, and one kernel is added that waits for nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"

#define MOST 64 /* nodes that one depends on, and places to look for them */

typedef struct nodes {
    op_t *at[MOST];
    size_t count;
} nodes_t;

static void add(nodes_t *nodes, op_t *op)
{
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->at[i] == op)
            return;
    if (nodes->count == MOST) {
        fprintf(stderr, "fake: there are more than %d nodes before one, or places to look\n", MOST);
        abort();
    }
    nodes->at[nodes->count++] = op;
}

static op_t *record_of(const graph_t *graph, int mark)
{
    op_t *op = graph->first;
    while (op->kind != RECORD || op->mark != mark)
        op = op->next;
    return op;
}

/* The branches of a graph with the last op of each, while all are looked at. */
typedef struct branch_end {
    const struct stream *branch;
    op_t *last;
} branch_end_t;

/* Notes for all ops what is before them, once: graphs have thousands, and each is asked for. */
static void know(graph_t *graph)
{
    branch_end_t ends[MOST] = {{NULL, NULL}};
    if (graph->known == graph->last)
        return;
    for (op_t *op = graph->first; op; op = op->next) {
        size_t i = 0;
        while (i < MOST - 1 && ends[i].branch && ends[i].branch != op->branch)
            i++;
        op->before = ends[i].branch == op->branch ? ends[i].last : NULL;
        ends[i] = (branch_end_t){op->branch, op};
        op->record_op = op->kind == AWAIT ? record_of(graph, op->mark) : NULL;
    }
    graph->known = graph->last;
}

/*
 * What has to be done when its stream is there: the work before it there, and what is before the
 * records that were waited for since.
 */
static nodes_t before(graph_t *graph, const op_t *op)
{
    nodes_t work = {.count = 0}, places = {.count = 0};
    know(graph);
    if (op != graph->added)
        add(&places, (op_t *)(uintptr_t)op);
    for (size_t i = 0; i < places.count; i++) {
        op_t *at = places.at[i]->before;
        for (; at && at->kind != WORK; at = at->before)
            if (at->kind == AWAIT)
                add(&places, at->record_op);
        if (at)
            add(&work, at);
    }
    return work;
}

static bool has(const nodes_t *nodes, const op_t *op)
{
    size_t i = 0;
    while (i < nodes->count && nodes->at[i] != op)
        i++;
    return i < nodes->count;
}

static nodes_t after(graph_t *graph, const op_t *op)
{
    nodes_t nodes = {.count = 0};
    for (op_t *other = graph->first; other; other = other->next) {
        if (other->kind != WORK)
            continue;
        const nodes_t needs = before(graph, other);
        if (has(&needs, op))
            add(&nodes, other);
    }
    return nodes;
}

static bool has_edge(const graph_t *graph, const op_t *from, const op_t *to)
{
    const edge_t *edge = graph->edges;
    while (edge && (edge->from != from || edge->to != to))
        edge = edge->next;
    return edge;
}

void fake_check_added(graph_t *graph)
{
    for (const op_t *op = graph->first; op; op = op->next)
        if (op->kind == WORK && before(graph, op).count == 0 &&
            !has_edge(graph, graph->added, op)) {
            fprintf(stderr, "fake: a kernel was added to a graph, and not all waits for it\n");
            abort();
        }
}

void fake_drop_added(graph_t *graph)
{
    free(graph->added);
    while (graph->edges) {
        edge_t *edge = graph->edges;
        graph->edges = edge->next;
        free(edge);
    }
}

/* ---- calls ---- */

/* As the driver gives them: all that there is room for; without room it says how many. */
static CUresult give(const nodes_t *nodes, CUgraphNode *nodes_p, size_t *count_p)
{
    size_t count = nodes->count;
    if (nodes_p && *count_p < count)
        count = *count_p;
    for (size_t i = 0; nodes_p && i < *count_p; i++)
        nodes_p[i] = i < count ? (CUgraphNode)nodes->at[i] : NULL;
    *count_p = count;
    return CUDA_SUCCESS;
}

static CUresult get_nodes(CUgraph handle, CUgraphNode *nodes_p, size_t *count_p)
{
    const graph_t *graph = (graph_t *)handle;
    size_t count = 0;
    for (op_t *op = graph->first; op; op = op->next) {
        if (op->kind != WORK)
            continue;
        if (nodes_p && count < *count_p)
            nodes_p[count] = (CUgraphNode)op;
        count += !nodes_p || count < *count_p;
    }
    *count_p = count;
    return CUDA_SUCCESS;
}

static CUresult get_roots(CUgraph handle, CUgraphNode *nodes_p, size_t *count_p)
{
    graph_t *graph = (graph_t *)handle;
    nodes_t roots = {.count = 0};
    for (op_t *op = graph->first; op; op = op->next)
        if (op->kind == WORK && before(graph, op).count == 0)
            add(&roots, op);
    return give(&roots, nodes_p, count_p);
}

static CUresult get_before(CUgraphNode node, CUgraphNode *nodes_p, size_t *count_p)
{
    const op_t *op = (op_t *)node;
    const nodes_t nodes = before(op->graph, op);
    return give(&nodes, nodes_p, count_p);
}

static CUresult get_behind(CUgraphNode node, CUgraphNode *nodes_p, size_t *count_p)
{
    const op_t *op = (op_t *)node;
    const nodes_t nodes = after(op->graph, op);
    return give(&nodes, nodes_p, count_p);
}

/* Copies and calls of the host pass for kernels. */
static CUresult get_type(CUgraphNode node, CUgraphNodeType *type_p)
{
    *type_p =
        ((op_t *)node)->work == fake_memset ? CU_GRAPH_NODE_TYPE_MEMSET : CU_GRAPH_NODE_TYPE_KERNEL;
    return CUDA_SUCCESS;
}

static CUresult get_memset(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params_p)
{
    const op_t *op = (op_t *)node;
    if (op->work != fake_memset)
        return CUDA_ERROR_INVALID_VALUE;
    const fake_memset_t *set = (const fake_memset_t *)op->args;
    *params_p = (CUDA_MEMSET_NODE_PARAMS){.dst = set->dst,
                                          .value = set->value,
                                          .elementSize = (unsigned)set->width,
                                          .width = set->count,
                                          .height = 1};
    return CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *node_p, CUgraph handle, const CUgraphNode *nodes,
                           size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
    graph_t *graph = (graph_t *)handle;
    const fake_kernel_t *kernel = (fake_kernel_t *)params->func;
    (void)nodes;
    if (count > 0 || graph->added || !kernel->work)
        return CUDA_ERROR_NOT_SUPPORTED;
    op_t *op = calloc(1, sizeof(*op) + kernel->bytes);
    op->kind = WORK;
    op->work = kernel->work;
    op->graph = graph;
    memcpy(op->args, params->kernelParams[0], kernel->bytes);
    graph->added = op;
    *node_p = (CUgraphNode)op;
    return CUDA_SUCCESS;
}

static CUresult set_kernel(CUgraphNode node, CUkernelNodeAttrID attribute,
                           const CUkernelNodeAttrValue *value)
{
    const op_t *op = (op_t *)node;
    (void)value;
    return op == op->graph->added && attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

/* Of kernels of the library alone: their arguments are one structure. */
static CUresult get_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params_p)
{
    op_t *op = (op_t *)node;
    static _Thread_local void *args[1];
    args[0] = op->args;
    *params_p = (CUDA_KERNEL_NODE_PARAMS){.func = (CUfunction)(uintptr_t)fake_kernel_of(op->work),
                                          .kernelParams = args};
    return CUDA_SUCCESS;
}

static CUresult change_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
    op_t *op = (op_t *)node;
    const fake_kernel_t *kernel = (fake_kernel_t *)params->func;
    if (!kernel || kernel->work != op->work)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(op->args, params->kernelParams[0], kernel->bytes);
    return CUDA_SUCCESS;
}

static CUresult add_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                          size_t count)
{
    graph_t *graph = (graph_t *)handle;
    for (size_t i = 0; i < count; i++) {
        const op_t *first = (op_t *)from[i], *second = (op_t *)to[i];
        const nodes_t known = before(graph, second);
        if (has(&known, first) || has_edge(graph, first, second))
            return CUDA_ERROR_INVALID_VALUE;
        edge_t *edge = malloc(sizeof(*edge));
        *edge = (edge_t){first, second, graph->edges};
        graph->edges = edge;
    }
    return CUDA_SUCCESS;
}

/* The order of its stream joins those around it, so that nobody but this would miss an edge. */
static CUresult destroy(CUgraphNode node)
{
    op_t *gone = (op_t *)node;
    graph_t *graph = gone->graph;
    const nodes_t first = before(graph, gone), second = after(graph, gone);
    for (size_t i = 0; i < first.count; i++)
        for (size_t j = 0; j < second.count; j++)
            if (!has_edge(graph, first.at[i], second.at[j])) {
                fprintf(stderr, "fake: a node was taken out, and the order around it was lost\n");
                abort();
            }
    for (edge_t **link = &graph->edges; *link;) {
        edge_t *edge = *link;
        if (edge->from != gone && edge->to != gone) {
            link = &edge->next;
            continue;
        }
        *link = edge->next;
        free(edge);
    }
    op_t *last = NULL, **link = &graph->first;
    for (; *link != gone; link = &(*link)->next)
        last = *link;
    *link = gone->next;
    for (op_t *op = gone->next; op; op = op->next)
        if (op->before == gone)
            op->before = gone->before;
    if (graph->known == gone)
        graph->known = last;
    if (graph->last == gone)
        graph->last = last;
    free(gone);
    return CUDA_SUCCESS;
}

const fake_call_t fake_node_calls[] = {
    FAKE_CALL("cuGraphGetNodes", get_nodes),
    FAKE_CALL("cuGraphGetRootNodes", get_roots),
    FAKE_CALL("cuGraphNodeGetType", get_type),
    FAKE_CALL("cuGraphNodeGetDependencies", get_before),
    FAKE_CALL("cuGraphNodeGetDependentNodes", get_behind),
    FAKE_CALL("cuGraphMemsetNodeGetParams", get_memset),
    FAKE_CALL("cuGraphAddKernelNode", add_kernel),
    FAKE_CALL("cuGraphKernelNodeSetAttribute", set_kernel),
    FAKE_CALL("cuGraphKernelNodeGetParams", get_kernel),
    FAKE_CALL("cuGraphKernelNodeSetParams", change_kernel),
    FAKE_CALL("cuGraphAddDependencies", add_edges),
    FAKE_CALL("cuGraphDestroyNode", destroy),
    {NULL, NULL},
};
