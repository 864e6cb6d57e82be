/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before many of its kernels cuBLASLt clears a word of the workspace, in which their blocks count.
 * In a graph this is a node of its own between a wait and a GEMM, or between two GEMMs. It delays
 * the GEMM, and the host pays for it: the driver launches a chain of kernels in one go, but each
 * other node in it costs about a microsecond. As every GEMM has a word of its own, one kernel at the
 * beginning of the graph clears them all, and those nodes are taken out.
 */
#include "device/cuda/cuda.h"
#include "device/cuda/cuda_plan.h"
#include "util/alloc.h"

#define NEIGHBOURS 16 /* before a node, and fewer than that */

typedef struct clearing {
    const lap_cuda_device_t *device;
    CUgraph graph;
    CUgraphNode *nodes; /* all of them, as they were in the beginning */
    size_t count;
    lap_cuda_clear_t words;
} clearing_t;

/* Whether that is a small workspace, which no other kernel uses than one that clears it. */
static bool is_small_workspace(const lap_cuda_device_t *device, CUdeviceptr address)
{
    const size_t all = LAP_CUDA_SMALL_WORKSPACES * LAP_CUDA_SMALL_WORKSPACE;
    for (const lap_stream_t *stream = device->streams; stream; stream = stream->next) {
        const CUdeviceptr first = stream->workspace + LAP_CUDA_WORKSPACE;
        if (stream->workspace && address >= first && address - first < all)
            return true;
    }
    return false;
}

static bool is_known(const lap_cuda_clear_t *words, const uint32_t *word)
{
    for (uint32_t i = 0; i < words->n; i++)
        if (words->words[i] == word)
            return true;
    return false;
}

/* The word that a node clears, if that can be done before; NULL: it does something else. */
static uint32_t *word_of(const clearing_t *clearing, CUgraphNode node)
{
    const lap_cuda_api_t *api = &clearing->device->api;
    CUgraphNodeType type;
    CUDA_MEMSET_NODE_PARAMS params;
    if (api->cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_MEMSET ||
        api->cuGraphMemsetNodeGetParams(node, &params) != CUDA_SUCCESS)
        return NULL;
    uint32_t *word = (uint32_t *)(uintptr_t)params.dst;
    const bool clears = params.value == 0 && params.dst % sizeof(*word) == 0 &&
                        params.elementSize * params.width * params.height == sizeof(*word);
    return clears && is_small_workspace(clearing->device, params.dst) &&
                   !is_known(&clearing->words, word)
               ? word
               : NULL;
}

/*
 * Takes a node out of the graph: what comes behind it now comes behind those before it. Not if there
 * are too many of these, or if more comes behind it than a kernel that waits for nothing else.
 */
static lap_status_t take_out(const clearing_t *clearing, CUgraphNode node, bool *done_p)
{
    const lap_cuda_api_t *api = &clearing->device->api;
    CUgraphNode before[NEIGHBOURS], behind[2], others[2];
    size_t nbefore = NEIGHBOURS, nbehind = 2, nothers = 2;
    *done_p = api->cuGraphNodeGetDependencies(node, before, &nbefore) == CUDA_SUCCESS &&
              nbefore < NEIGHBOURS &&
              api->cuGraphNodeGetDependentNodes(node, behind, &nbehind) == CUDA_SUCCESS &&
              nbehind == 1 &&
              api->cuGraphNodeGetDependencies(behind[0], others, &nothers) == CUDA_SUCCESS &&
              nothers == 1;
    if (!*done_p)
        return LAP_OK;
    for (size_t i = 0; i < nbefore; i++)
        LAP_TRY(lap_cuda_check(api,
                               api->cuGraphAddDependencies(clearing->graph, &before[i], behind, 1),
                               "cuGraphAddDependencies"));
    return lap_cuda_check(api, api->cuGraphDestroyNode(node), "cuGraphDestroyNode");
}

static lap_status_t take_all_out(clearing_t *clearing)
{
    lap_cuda_clear_t *words = &clearing->words;
    for (size_t i = 0; i < clearing->count && words->n < LAP_CUDA_CLEAR; i++) {
        uint32_t *word = word_of(clearing, clearing->nodes[i]);
        bool done = false;
        if (word)
            LAP_TRY(take_out(clearing, clearing->nodes[i], &done));
        if (done)
            words->words[words->n++] = word;
    }
    return LAP_OK;
}

/* A kernel that clears the words, before anything else; nodes are used for those that are first. */
static lap_status_t put_in(clearing_t *clearing)
{
    const lap_cuda_api_t *api = &clearing->device->api;
    void *args[] = {&clearing->words};
    const CUDA_KERNEL_NODE_PARAMS params = {
        .func = clearing->device->kernels[LAP_CUDA_KERNEL_clear],
        .gridDimX = 1,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = LAP_CUDA_CLEAR,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = args,
    };
    CUgraphNode kernel;
    size_t count = clearing->count;
    LAP_TRY(lap_cuda_check(api, api->cuGraphGetRootNodes(clearing->graph, clearing->nodes, &count),
                           "cuGraphGetRootNodes"));
    LAP_TRY(lap_cuda_check(api,
                           api->cuGraphAddKernelNode(&kernel, clearing->graph, NULL, 0, &params),
                           "cuGraphAddKernelNode"));
    for (size_t i = 0; i < count; i++)
        LAP_TRY(lap_cuda_check(
            api, api->cuGraphAddDependencies(clearing->graph, &kernel, &clearing->nodes[i], 1),
            "cuGraphAddDependencies"));
    return LAP_OK;
}

lap_status_t lap_cuda_clear_at_once(lap_cuda_device_t *device, CUgraph graph)
{
    const lap_cuda_api_t *api = &device->api;
    clearing_t clearing = {.device = device, .graph = graph};
    LAP_TRY(
        lap_cuda_check(api, api->cuGraphGetNodes(graph, NULL, &clearing.count), "cuGraphGetNodes"));
    if (clearing.count == 0)
        return LAP_OK;
    clearing.nodes = lap_alloc(clearing.count, sizeof(CUgraphNode));
    if (!clearing.nodes)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the %zu nodes of a graph",
                         clearing.count);
    lap_status_t status = lap_cuda_check(
        api, api->cuGraphGetNodes(graph, clearing.nodes, &clearing.count), "cuGraphGetNodes");
    if (status == LAP_OK)
        status = take_all_out(&clearing);
    if (status == LAP_OK && clearing.words.n > 0)
        status = put_in(&clearing);
    lap_free(clearing.nodes);
    return status;
}
