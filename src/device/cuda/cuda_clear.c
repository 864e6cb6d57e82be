/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before many of its kernels cuBLASLt clears a word of the workspace, in which their blocks count.
 * In a graph this is a node of its own between a wait and a GEMM, or between two GEMMs. It delays
 * the GEMM, and the host pays for it: the driver launches a chain of kernels in one go, but each
 * other node in it costs about a microsecond. As every GEMM has a word of its own, one kernel at
 * the beginning of the graph can clear all of them, and those nodes are removed. That is a kernel
 * of ours that is there anyway, if the whole graph comes after it, or else an additional one.
 */
#include <string.h>

#include "device/cuda/cuda.h"
#include "device/cuda/cuda_plan.h"
#include "util/alloc.h"

#define NEIGHBOURS 16 /* room for what is before a node, one to spare */

typedef struct clearing {
    const lap_cuda_device_t *device;
    CUgraph graph;
    CUgraphNode *nodes; /* all of them, as they were in the beginning, */
    uint32_t **clears;  /* and the word of a small workspace that each clears; NULL: none */
    size_t count;
    lap_cuda_clear_t words; /* that are no longer cleared by nodes of their own */
} clearing_t;

/* Small workspaces are of one GEMM of the graph. */
static bool is_in_small_workspace(const lap_cuda_device_t *device, CUdeviceptr address)
{
    const size_t all = LAP_CUDA_SMALL_WORKSPACES * LAP_CUDA_SMALL_WORKSPACE;
    for (const lap_stream_t *stream = device->streams; stream; stream = stream->next) {
        const CUdeviceptr first = stream->workspace + LAP_CUDA_WORKSPACE;
        if (stream->workspace && address >= first && address - first < all)
            return true;
    }
    return false;
}

static uint32_t *word_of(const lap_cuda_device_t *device, CUgraphNode node)
{
    const lap_cuda_api_t *api = &device->api;
    CUgraphNodeType type;
    CUDA_MEMSET_NODE_PARAMS params;
    if (api->cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_MEMSET ||
        api->cuGraphMemsetNodeGetParams(node, &params) != CUDA_SUCCESS)
        return NULL;
    const bool clears = params.value == 0 && params.dst % sizeof(uint32_t) == 0 &&
                        params.elementSize * params.width * params.height == sizeof(uint32_t);
    return clears && is_in_small_workspace(device, params.dst) ? (uint32_t *)(uintptr_t)params.dst
                                                               : NULL;
}

/* Whether no other node clears the word: it might do so between two kernels of the GEMM. */
static bool is_once(const clearing_t *clearing, const uint32_t *word)
{
    size_t count = 0;
    for (size_t i = 0; i < clearing->count; i++)
        count += clearing->clears[i] == word;
    return count == 1;
}

/*
 * Removes a node from the graph: its dependent then depends on its dependencies. A node stays if it
 * has too many dependencies, or if it is not the only dependency of its only dependent.
 */
static lap_status_t take_out(const clearing_t *clearing, CUgraphNode node, bool *done_p)
{
    const lap_cuda_api_t *api = &clearing->device->api;
    CUgraphNode before[NEIGHBOURS], after[2], others[2];
    size_t nbefore = NEIGHBOURS, nafter = 2, nothers = 2;
    *done_p =
        api->cuGraphNodeGetDependencies(node, before, &nbefore) == CUDA_SUCCESS &&
        nbefore < NEIGHBOURS &&
        api->cuGraphNodeGetDependentNodes(node, after, &nafter) == CUDA_SUCCESS && nafter == 1 &&
        api->cuGraphNodeGetDependencies(after[0], others, &nothers) == CUDA_SUCCESS && nothers == 1;
    if (!*done_p)
        return LAP_OK;
    for (size_t i = 0; i < nbefore; i++)
        LAP_TRY(lap_cuda_check(api,
                               api->cuGraphAddDependencies(clearing->graph, &before[i], after, 1),
                               "cuGraphAddDependencies"));
    return lap_cuda_check(api, api->cuGraphDestroyNode(node), "cuGraphDestroyNode");
}

static lap_status_t take_all_out(clearing_t *clearing)
{
    lap_cuda_clear_t *words = &clearing->words;
    for (size_t i = 0; i < clearing->count; i++)
        clearing->clears[i] = word_of(clearing->device, clearing->nodes[i]);
    for (size_t i = 0; i < clearing->count && words->n < LAP_CUDA_CLEAR; i++) {
        bool done = false;
        if (clearing->clears[i] && is_once(clearing, clearing->clears[i]))
            LAP_TRY(take_out(clearing, clearing->nodes[i], &done));
        if (done)
            words->words[words->n++] = clearing->clears[i];
    }
    return LAP_OK;
}

/* The kernel that clears the words. All waits for it, so that it is urgent. */
static lap_status_t add_kernel(clearing_t *clearing, CUgraphNode *kernel_p)
{
    const lap_cuda_device_t *device = clearing->device;
    const lap_cuda_api_t *api = &device->api;
    void *args[] = {&clearing->words};
    const CUDA_KERNEL_NODE_PARAMS params = {
        .func = device->kernels[LAP_CUDA_KERNEL_clear],
        .gridDimX = 1,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = LAP_CUDA_CLEAR,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = args,
    };
    const CUlaunchAttributeValue urgent = {.priority = device->share.urgent};
    LAP_TRY(lap_cuda_check(api,
                           api->cuGraphAddKernelNode(kernel_p, clearing->graph, NULL, 0, &params),
                           "cuGraphAddKernelNode"));
    return lap_cuda_check(
        api, api->cuGraphKernelNodeSetAttribute(*kernel_p, CU_LAUNCH_ATTRIBUTE_PRIORITY, &urgent),
        "cuGraphKernelNodeSetAttribute");
}

/* Inserts it before all root nodes, for which the list of nodes is used. */
static lap_status_t put_in(clearing_t *clearing)
{
    const lap_cuda_api_t *api = &clearing->device->api;
    CUgraphNode kernel;
    size_t count = clearing->count;
    LAP_TRY(lap_cuda_check(api, api->cuGraphGetRootNodes(clearing->graph, clearing->nodes, &count),
                           "cuGraphGetRootNodes"));
    LAP_TRY(add_kernel(clearing, &kernel));
    for (size_t i = 0; i < count; i++)
        LAP_TRY(lap_cuda_check(
            api, api->cuGraphAddDependencies(clearing->graph, &kernel, &clearing->nodes[i], 1),
            "cuGraphAddDependencies"));
    return LAP_OK;
}

/* The first node, if all else comes after it; else NULL. */
static CUgraphNode only_root(const clearing_t *clearing)
{
    CUgraphNode roots[2] = {NULL};
    size_t count = 2;
    const bool found =
        clearing->device->api.cuGraphGetRootNodes(clearing->graph, roots, &count) == CUDA_SUCCESS &&
        count == 1;
    return found ? roots[0] : NULL;
}

/* The arguments of a kernel that can also clear words. */
typedef union signalling {
    lap_cuda_signals_t signal;
    lap_cuda_multicast_t multicast;
} signalling_t;

static lap_cuda_signals_t *signals_of(const clearing_t *clearing,
                                      const CUDA_KERNEL_NODE_PARAMS *params, signalling_t *args)
{
    const CUfunction *kernels = clearing->device->kernels;
    if (params->func == kernels[LAP_CUDA_KERNEL_signal]) {
        memcpy(&args->signal, params->kernelParams[0], sizeof(args->signal));
        return &args->signal;
    }
    if (params->func == kernels[LAP_CUDA_KERNEL_multicast]) {
        memcpy(&args->multicast, params->kernelParams[0], sizeof(args->multicast));
        return &args->multicast.signals;
    }
    return NULL;
}

/* Gives the words to the kernel that the graph begins with. */
static lap_status_t put_in_first(clearing_t *clearing, bool *done_p)
{
    const lap_cuda_api_t *api = &clearing->device->api;
    const lap_cuda_clear_t *words = &clearing->words;
    CUgraphNode root = only_root(clearing);
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS params;
    signalling_t args;
    *done_p = false;
    if (!root || words->n > LAP_CUDA_CLEARS ||
        api->cuGraphNodeGetType(root, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_KERNEL ||
        api->cuGraphKernelNodeGetParams(root, &params) != CUDA_SUCCESS)
        return LAP_OK;
    lap_cuda_signals_t *signals = signals_of(clearing, &params, &args);
    if (!signals)
        return LAP_OK;
    void *given[] = {&args};
    signals->nclears = words->n;
    memcpy(signals->clears, words->words, words->n * sizeof(words->words[0]));
    params.kernelParams = given;
    params.extra = NULL;
    *done_p = true;
    return lap_cuda_check(api, api->cuGraphKernelNodeSetParams(root, &params),
                          "cuGraphKernelNodeSetParams");
}

static lap_status_t clear_at_once(clearing_t *clearing)
{
    const lap_cuda_api_t *api = &clearing->device->api;
    clearing->nodes = lap_alloc(clearing->count, sizeof(*clearing->nodes));
    clearing->clears = lap_alloc(clearing->count, sizeof(*clearing->clears));
    if (!clearing->nodes || !clearing->clears)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the %zu nodes of a graph",
                         clearing->count);
    LAP_TRY(lap_cuda_check(api,
                           api->cuGraphGetNodes(clearing->graph, clearing->nodes, &clearing->count),
                           "cuGraphGetNodes"));
    LAP_TRY(take_all_out(clearing));
    bool done = clearing->words.n == 0;
    if (!done)
        LAP_TRY(put_in_first(clearing, &done));
    return done ? LAP_OK : put_in(clearing);
}

lap_status_t lap_cuda_clear_at_once(lap_cuda_device_t *device, CUgraph graph)
{
    const lap_cuda_api_t *api = &device->api;
    clearing_t clearing = {.device = device, .graph = graph};
    LAP_TRY(
        lap_cuda_check(api, api->cuGraphGetNodes(graph, NULL, &clearing.count), "cuGraphGetNodes"));
    if (clearing.count == 0)
        return LAP_OK;
    const lap_status_t status = clear_at_once(&clearing);
    lap_free(clearing.nodes);
    lap_free(clearing.clears);
    return status;
}
