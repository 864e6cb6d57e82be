/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: what streams are given between begin and end, captured by the driver and launched as one.
 * Urgent streams stay urgent in it.
 */
#include "device/cuda/cuda.h"
#include "util/alloc.h"

struct lap_graph {
    lap_cuda_device_t *device;
    CUgraphExec exec;
    lap_cuda_times_t times;
};

/* `to` goes on when `from` is here. */
static lap_status_t join(lap_stream_t *from, lap_stream_t *to)
{
    const lap_cuda_device_t *device = from->device;
    const lap_cuda_api_t *api = &device->api;
    LAP_TRY(lap_cuda_flush_stream(from));
    LAP_TRY(
        lap_cuda_check(api, api->cuEventRecord(device->join_event, from->stream), "cuEventRecord"));
    return lap_cuda_check(api, api->cuStreamWaitEvent(to->stream, device->join_event, 0),
                          "cuStreamWaitEvent");
}

/* Other calls of this thread meanwhile, such as allocations, are not part of the graph. */
static lap_status_t begin(lap_stream_t *const *streams, size_t count)
{
    const lap_cuda_api_t *api = &streams[0]->device->api;
    for (lap_stream_t *other = streams[0]->device->streams; other; other = other->next) {
        LAP_TRY(lap_cuda_flush_stream(other));
        other->small_workspaces = 0;
    }
    LAP_TRY(lap_cuda_check(
        api, api->cuStreamBeginCapture(streams[0]->stream, CU_STREAM_CAPTURE_MODE_RELAXED),
        "cuStreamBeginCapture"));
    lap_status_t status = LAP_OK;
    for (size_t i = 1; i < count && status == LAP_OK; i++)
        status = join(streams[0], streams[i]);
    if (status != LAP_OK) {
        CUgraph graph;
        if (api->cuStreamEndCapture(streams[0]->stream, &graph) == CUDA_SUCCESS && graph)
            (void)api->cuGraphDestroy(graph);
    }
    return status;
}

lap_status_t lap_cuda_graph_begin(lap_stream_t *const *streams, size_t count)
{
    LAP_TRY(lap_cuda_enter(streams[0]->device));
    LAP_TRY(lap_cuda_leave(streams[0]->device, begin(streams, count)));
    lap_cuda_times_capture(streams[0]->device);
    return LAP_OK;
}

/* Ends the capture, also after a failure. */
static lap_status_t end(lap_stream_t *const *streams, size_t count, CUgraph *captured_p)
{
    lap_cuda_device_t *device = streams[0]->device;
    const lap_cuda_api_t *api = &device->api;
    lap_status_t status = lap_cuda_flush_stream(streams[0]);
    for (size_t i = 1; i < count && status == LAP_OK; i++)
        status = join(streams[i], streams[0]);
    /* Streams with work in the graph have been joined, but perhaps not the timestamps after it. */
    for (lap_stream_t *other = device->streams; other && status == LAP_OK; other = other->next)
        if (other != streams[0] && other->time)
            status = join(other, streams[0]);
    CUgraph captured = NULL;
    const CUresult result = api->cuStreamEndCapture(streams[0]->stream, &captured);
    if (status == LAP_OK)
        status = lap_cuda_check(api, result, "cuStreamEndCapture");
    if (status != LAP_OK && captured)
        (void)api->cuGraphDestroy(captured);
    *captured_p = captured;
    return status;
}

/* Updates the executable graph, if the new one has the same form; else makes another. */
static lap_status_t update(lap_cuda_device_t *device, CUgraph captured, CUgraphExec *exec)
{
    const lap_cuda_api_t *api = &device->api;
    CUgraphExecUpdateResultInfo info;
    if (*exec && api->cuGraphExecUpdate(*exec, captured, &info) == CUDA_SUCCESS)
        return LAP_OK;
    if (*exec)
        (void)api->cuGraphExecDestroy(*exec);
    *exec = NULL;
    return lap_cuda_check(api,
                          api->cuGraphInstantiateWithFlags(
                              exec, captured, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY),
                          "cuGraphInstantiate");
}

static lap_status_t instantiate(lap_stream_t *const *streams, size_t count, lap_graph_t *graph)
{
    CUgraph captured;
    LAP_TRY(end(streams, count, &captured));
    lap_status_t status = lap_cuda_clear_at_once(graph->device, captured);
    if (status == LAP_OK)
        status = update(graph->device, captured, &graph->exec);
    (void)graph->device->api.cuGraphDestroy(captured);
    return status;
}

lap_status_t lap_cuda_graph_end(lap_stream_t *const *streams, size_t count, lap_graph_t **graph_p)
{
    lap_cuda_device_t *device = streams[0]->device;
    lap_graph_t none = {.device = device}, *graph = *graph_p ? *graph_p : &none;
    lap_status_t status = lap_cuda_enter(device);
    if (status == LAP_OK)
        status = lap_cuda_leave(device, instantiate(streams, count, graph));
    if (status == LAP_OK)
        lap_cuda_times_adopt(device, &graph->times);
    else
        lap_cuda_times_drop(device);
    if (status != LAP_OK || graph != &none)
        return status;
    graph = lap_alloc(1, sizeof(*graph));
    if (!graph) {
        (void)device->api.cuGraphExecDestroy(none.exec);
        lap_cuda_times_free(device, &none.times);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a graph");
    }
    *graph = none;
    *graph_p = graph;
    return LAP_OK;
}

static lap_status_t launch(lap_graph_t *graph, lap_stream_t *stream)
{
    const lap_cuda_api_t *api = &graph->device->api;
    LAP_TRY(lap_cuda_flush_stream(stream));
    lap_cuda_times_launch(graph->device, &graph->times);
    return lap_cuda_check(api, api->cuGraphLaunch(graph->exec, stream->stream), "cuGraphLaunch");
}

lap_status_t lap_cuda_graph_launch(lap_graph_t *graph, lap_stream_t *stream)
{
    LAP_TRY(lap_cuda_enter(graph->device));
    return lap_cuda_leave(graph->device, launch(graph, stream));
}

void lap_cuda_graph_destroy(lap_graph_t *graph)
{
    if (graph->exec && lap_cuda_enter(graph->device) == LAP_OK) {
        (void)graph->device->api.cuGraphExecDestroy(graph->exec);
        (void)lap_cuda_leave(graph->device, LAP_OK);
    }
    lap_cuda_times_free(graph->device, &graph->times);
    lap_free(graph);
}
