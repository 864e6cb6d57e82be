/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring a machine description: GEMMs, copies, sums and signals are those of lap_calibrate,
 * attention and the optimizer are timed here. Peaks are the best rates that were measured, so that the efficiency of
 * the fastest GEMM is 1. A GPU is brought to its power limit before, which it reaches in training.
 */
#include "plan/measure.h"

#include <math.h>
#include <unistd.h>

#include "core/group.h"
#include "core/world.h"
#include "device/cuda/cuda_info.h"
#include "kernel/kernel.h"
#include "nn/probe.h"
#include "schedule/calibrate.h"
#include "util/clock.h"

#define ROUNDS 3
#define LEAST_PART 1e-6 /* of a peak, that a description can have */
#define LOAD_CALLS 16
#define LOAD_NS 250000000u
#define UPDATE_ALIGN 256u

/* What is measured on a host, and on a device that has memory of its own. */
typedef struct extent {
    size_t gemms[LAP_COST_POINTS]; /* m = n = k */
    size_t
        tokens[LAP_COST_POINTS]; /* of a sequence; 0: no more. As many in all as the longest has */
    size_t heads, dim;
    lap_plan_type_t attention; /* the type of its elements */
    size_t update;             /* elements of a step of the optimizer: more than caches hold */
    int repeats;               /* of a pass, issued at once */
    size_t load;               /* m = n = k of lap_plan_load_t */
    bool has_limit;            /* of power, that a load brings it to */
} extent_t;

static const extent_t host = {.gemms = {64, 128, 256, 512, 1024},
                              .tokens = {64, 128, 256, 512},
                              .heads = 2,
                              .dim = 64,
                              .attention = LAP_PLAN_FP32,
                              .update = (size_t)4 << 20,
                              .repeats = 1,
                              .load = 512};
static const extent_t far = {.gemms = {512, 1024, 2048, 4096, 8192},
                             .tokens = {1024, 2048, 4096, 8192},
                             .heads = 16,
                             .dim = 128,
                             .attention = LAP_PLAN_BF16,
                             .update = (size_t)64 << 20,
                             .repeats = 8,
                             .load = 4096,
                             .has_limit = true};

typedef struct measuring {
    lap_group_t *group;
    lap_engine_t *engine;
    const extent_t *extent;
    lap_machine_t *machine;
    lap_link_t link;
    lap_plan_load_t *load;
} measuring_t;

static const lap_dtype_t dtypes[LAP_PLAN_TYPES] = {
    [LAP_PLAN_FP32] = LAP_FLOAT32,
    [LAP_PLAN_FP16] = LAP_FLOAT16,
    [LAP_PLAN_BF16] = LAP_BFLOAT16,
    [LAP_PLAN_FP8] = LAP_FLOAT8_E4M3,
};

/* ---- a load, and the power limit ---- */

static lap_status_t place_load(const measuring_t *measuring)
{
    lap_device_t *device = measuring->engine->device;
    lap_plan_load_t *load = measuring->load;
    const lap_dtype_t dtype = dtypes[measuring->extent->attention];
    const size_t size = measuring->extent->load;
    const size_t stride = size * lap_dtype_size(dtype), bytes = size * stride;
    void *memory;
    LAP_TRY(device->ops->stream_create(device, false, &load->stream));
    LAP_TRY(device->ops->alloc(device, 3 * bytes, &memory));
    load->memory = memory;
    LAP_TRY(device->ops->fill(load->stream, dtype, memory, 2 * size * size, 1));
    load->block = (lap_gemm_block_t){.rows = size,
                                     .a = load->memory,
                                     .a_stride = stride,
                                     .d = load->memory + 2 * bytes,
                                     .d_stride = stride};
    load->gemm = (lap_gemm_t){.a_dtype = dtype,
                              .b_dtype = dtype,
                              .d_dtype = dtype,
                              .scale = 1,
                              .n = size,
                              .k = size,
                              .b = load->memory + bytes,
                              .b_stride = stride,
                              .blocks = &load->block,
                              .nblocks = 1};
    LAP_TRY(device->ops->gemm_prepare(load->stream, &load->gemm, true));
    return device->ops->stream_synchronize(load->stream);
}

static void free_load(const measuring_t *measuring)
{
    lap_device_t *device = measuring->engine->device;
    const lap_plan_load_t *load = measuring->load;
    if (load->stream)
        device->ops->stream_destroy(load->stream);
    if (load->memory)
        device->ops->free(device, load->memory);
}

/*
 * A GPU that was idle is faster for some 30 ms, by a tenth and more, than in a training that keeps it
 * at its power limit. Collective.
 */
static lap_status_t heat(const measuring_t *measuring)
{
    const lap_plan_load_t *load = measuring->load;
    const lap_device_ops_t *ops = measuring->engine->device->ops;
    const uint64_t begin = lap_now_ns();
    lap_status_t status = LAP_OK;
    if (!measuring->extent->has_limit)
        return LAP_OK;
    while (status == LAP_OK && lap_now_ns() - begin < LOAD_NS) {
        for (int i = 0; i < LOAD_CALLS && status == LAP_OK; i++)
            status = ops->gemm(load->stream, &load->gemm);
        if (status == LAP_OK)
            status = ops->stream_synchronize(load->stream);
    }
    return lap_group_agree(measuring->group, status);
}

/* ---- GEMMs, and what comes with them ---- */

static void take_wires(const measuring_t *measuring, const lap_cost_t *cost)
{
    lap_machine_t *machine = measuring->machine;
    const lap_link_t *emulated = &measuring->link;
    double rate = cost->copy.values[cost->copy.count - 1];
    if (cost->link.bytes_per_s > 0)
        rate = fmin(rate, cost->link.bytes_per_s);
    if (emulated->bytes_per_s > 0)
        rate = fmin(rate, emulated->bytes_per_s);
    const lap_plan_wire_t wire = {.bytes_per_s = rate,
                                  .efficiency = 1,
                                  .latency_s =
                                      cost->signal_s + cost->link.latency_s + emulated->latency_s};
    machine->nvlink = machine->network = wire;
    machine->memory_bytes_per_s = cost->reduce;
    machine->memory_efficiency = 1;
    machine->kernel_s = cost->step_s;
}

static lap_status_t measure_gemms(const measuring_t *measuring, lap_plan_type_t type)
{
    lap_machine_t *machine = measuring->machine;
    lap_curve_t curve = {.count = LAP_COST_POINTS};
    double peak = 0;
    for (size_t i = 0; i < LAP_COST_POINTS; i++) {
        const size_t size = measuring->extent->gemms[i];
        lap_cost_t cost;
        LAP_TRY(heat(measuring));
        LAP_TRY(lap_calibrate(measuring->group, measuring->engine, NULL, dtypes[type], size, size,
                              &cost));
        const double flops = 2 * pow((double)size, 3);
        const double rate = 2 * lap_curve_at(&cost.gemm, (double)size);
        curve.sizes[i] = flops;
        curve.values[i] = rate;
        peak = fmax(peak, rate);
        take_wires(measuring, &cost);
    }
    for (size_t i = 0; i < curve.count; i++)
        curve.values[i] = fmax(LEAST_PART, curve.values[i] / peak);
    machine->peak[type] = peak;
    machine->gemm[type] = curve;
    return LAP_OK;
}

/* FP8 only where the device multiplies it; elsewhere it would be an emulation. */
static lap_status_t measure_types(const measuring_t *measuring)
{
    const lap_plan_type_t last =
        measuring->extent == &far && measuring->machine->peak[LAP_PLAN_FP8] > 0 ? LAP_PLAN_FP8
                                                                                : LAP_PLAN_BF16;
    for (int type = 0; type <= (int)last; type++)
        LAP_TRY(measure_gemms(measuring, (lap_plan_type_t)type));
    return LAP_OK;
}

/* ---- optimizer and attention ---- */

typedef struct attending {
    lap_device_t *device;
    const lap_kernels_t *kernels;
    lap_stream_t *stream;
    lap_attention_t attention;
    lap_update_t update; /* in place of attention, if it has a count */
    lap_sum_squares_t squares;
    lap_cast_t copy; /* of weights in the type of GEMMs, if that is not the masters' */
    char *memory;
} attending_t;

/* A step with the norm of the gradients. */
static lap_status_t step(const attending_t *attending)
{
    LAP_TRY(attending->kernels->sum_squares(attending->stream, &attending->squares));
    LAP_TRY(attending->kernels->update(attending->stream, &attending->update));
    return attending->copy.dst ? attending->device->ops->cast(attending->stream, &attending->copy)
                               : LAP_OK;
}

static lap_status_t attend(const attending_t *attending, bool backward)
{
    const lap_kernels_t *kernels = attending->kernels;
    if (attending->update.count > 0)
        return step(attending);
    return (backward ? kernels->attention_backward
                     : kernels->attention_forward)(attending->stream, &attending->attention);
}

/* Memory for all matrices of attention, with numbers in it. */
static lap_status_t place(const measuring_t *measuring, attending_t *attending, size_t tokens,
                          size_t batch)
{
    const extent_t *extent = measuring->extent;
    lap_device_t *device = measuring->engine->device;
    const lap_dtype_t dtype = dtypes[extent->attention];
    const size_t width = extent->heads * extent->dim, out = batch * tokens * width, qkv = 3 * out;
    lap_attention_t attention = {.dtype = dtype,
                                 .scale = 1.0f / sqrtf((float)extent->dim),
                                 .seq = tokens,
                                 .batch = batch,
                                 .heads = extent->heads,
                                 .kv_heads = extent->heads,
                                 .dim = extent->dim,
                                 .qkv_stride = 3 * width,
                                 .out_stride = width};
    const size_t element = lap_dtype_size(dtype),
                 lse = batch * extent->heads * tokens * sizeof(float);
    const size_t scratch = attending->kernels->attention_scratch(&attention);
    const size_t all = 2 * (qkv + out) * element;
    void *memory;
    LAP_TRY(device->ops->alloc(device, all + lse + scratch, &memory));
    attending->memory = memory;
    LAP_TRY(device->ops->fill(attending->stream, dtype, memory, 2 * (qkv + out), 1));
    attention.qkv = attending->memory;
    attention.dqkv = attending->memory + qkv * element;
    attention.out = attending->memory + 2 * qkv * element;
    attention.dout = attending->memory + (2 * qkv + out) * element;
    attention.lse = (float *)(void *)(attending->memory + all);
    attention.scratch = attending->memory + all + lse;
    attending->attention = attention;
    LAP_TRY(attend(attending, false));
    return device->ops->stream_synchronize(attending->stream);
}

/* The best of any rank, while all are at it. Collective, also after a failure of this rank. */
static lap_status_t time_pass(const measuring_t *measuring, const attending_t *attending,
                              bool backward, lap_status_t status, double *seconds_p)
{
    const int repeats = measuring->extent->repeats;
    double best = INFINITY;
    LAP_TRY(heat(measuring));
    for (int i = 0; i < ROUNDS; i++) {
        LAP_TRY(lap_group_barrier(measuring->group));
        const uint64_t begin = lap_now_ns();
        for (int j = 0; j < repeats && status == LAP_OK; j++)
            status = attend(attending, backward);
        if (status == LAP_OK)
            status = measuring->engine->device->ops->stream_synchronize(attending->stream);
        best = fmin(best, (double)(lap_now_ns() - begin) * 1e-9 / repeats);
    }
    LAP_TRY(lap_group_agree(measuring->group, status));
    LAP_TRY(lap_group_min(measuring->group, &best));
    *seconds_p = fmax(best, 1e-9);
    return LAP_OK;
}

/* One sequence of few tokens would leave most of a GPU idle. */
static size_t sequences(const extent_t *extent, size_t tokens)
{
    size_t most = tokens;
    for (size_t i = 0; i < LAP_COST_POINTS; i++)
        most = extent->tokens[i] > most ? extent->tokens[i] : most;
    return most / tokens;
}

/* FLOPs as the planner counts them: half of the scores, two products forward and five backward. */
static lap_status_t measure_tokens(const measuring_t *measuring, attending_t *attending,
                                   size_t index)
{
    const extent_t *extent = measuring->extent;
    lap_machine_t *machine = measuring->machine;
    lap_device_t *device = measuring->engine->device;
    const size_t tokens = extent->tokens[index];
    const size_t batch = sequences(extent, tokens);
    const double scores = (double)batch * (double)tokens * (double)tokens * (double)extent->heads;
    lap_status_t status = place(measuring, attending, tokens, batch);
    for (int backward = 0; backward < 2; backward++) {
        lap_curve_t *curve = backward ? &machine->attention_backward : &machine->attention_forward;
        const double flops = (backward ? 5 : 2) * scores * (double)extent->dim;
        double seconds = 1;
        const lap_status_t timed = time_pass(measuring, attending, backward, status, &seconds);
        status = status == LAP_OK ? timed : status;
        curve->count = index + 1;
        curve->sizes[index] = (double)tokens;
        curve->values[index] =
            fmin(1, fmax(LEAST_PART, flops / seconds / machine->peak[extent->attention]));
    }
    if (attending->memory)
        device->ops->free(device, attending->memory);
    attending->memory = NULL;
    return status;
}

static lap_status_t place_update(const measuring_t *measuring, attending_t *attending)
{
    lap_device_t *device = measuring->engine->device;
    const size_t count = measuring->extent->update, element = lap_dtype_size(LAP_BFLOAT16);
    const size_t own =
        (lap_nn_update_bytes(count) + UPDATE_ALIGN - 1) / UPDATE_ALIGN * UPDATE_ALIGN;
    void *memory;
    LAP_TRY(device->ops->alloc(device, own + count * element + sizeof(double), &memory));
    attending->memory = memory;
    attending->update = (lap_update_t){
        .kind = LAP_ADAMW, .count = count, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f};
    LAP_TRY(lap_nn_update_place(attending->kernels, device, attending->stream, memory,
                                &attending->update));
    char *copies = attending->memory + own;
    attending->squares = (lap_sum_squares_t){.src = attending->update.grad,
                                             .count = count,
                                             .sum = (double *)(void *)(copies + count * element)};
    if (measuring->extent->attention != LAP_PLAN_FP32)
        attending->copy = (lap_cast_t){.from = LAP_FLOAT32,
                                       .to = LAP_BFLOAT16,
                                       .src = attending->update.master,
                                       .dst = copies,
                                       .src_stride = count * sizeof(float),
                                       .dst_stride = count * element,
                                       .rows = 1,
                                       .cols = count};
    return LAP_OK;
}

static lap_status_t measure_update(const measuring_t *measuring, attending_t *attending)
{
    lap_machine_t *machine = measuring->machine;
    lap_device_t *device = measuring->engine->device;
    double seconds = 1;
    lap_status_t status = place_update(measuring, attending);
    const lap_status_t timed = time_pass(measuring, attending, false, status, &seconds);
    status = status == LAP_OK ? timed : status;
    const double rate = LAP_PLAN_OPTIMIZER_BYTES * (double)measuring->extent->update / seconds;
    /* Sums of a few MiB, as lap_calibrate has, do not show what memory can do, that of a GPU above all. */
    machine->memory_bytes_per_s = fmax(machine->memory_bytes_per_s, rate);
    machine->optimizer_efficiency = fmax(LEAST_PART, rate / machine->memory_bytes_per_s);
    if (attending->memory)
        device->ops->free(device, attending->memory);
    attending->memory = NULL;
    attending->update.count = 0;
    return status;
}

static lap_status_t measure_kernels(const measuring_t *measuring)
{
    lap_device_t *device = measuring->engine->device;
    attending_t attending = {.device = device, .memory = NULL};
    lap_status_t status = lap_kernels_of(device, &attending.kernels);
    if (status == LAP_OK)
        status = device->ops->stream_create(device, false, &attending.stream);
    LAP_TRY(lap_group_agree(measuring->group, status));
    status = measure_update(measuring, &attending);
    for (size_t i = 0; i < LAP_COST_POINTS && measuring->extent->tokens[i] && status == LAP_OK; i++)
        status = measure_tokens(measuring, &attending, i);
    device->ops->stream_destroy(attending.stream);
    return status;
}

/* ---- all of it ---- */

/* What no clock is needed for. */
static void take_facts(const measuring_t *measuring)
{
    lap_machine_t *machine = measuring->machine;
    const double ranks = (double)measuring->group->size;
    lap_cuda_info_t info;
    machine->gpus_per_node = ranks;
    machine->sms = 1;
    machine->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / ranks;
    if (measuring->extent != &far || lap_cuda_info(&info) != LAP_OK)
        return;
    const lap_cuda_gpu_t *gpu = &info.gpus[0];
    const double sharing = fmax(1, ceil(ranks / info.count));
    machine->sms = fmax(1, floor(gpu->sms / sharing));
    machine->memory_bytes = (double)gpu->memory / sharing;
    machine->peak[LAP_PLAN_FP8] = gpu->major * 10 + gpu->minor >= LAP_CUDA_FP8_FROM;
}

lap_status_t lap_machine_measure(lap_world_t *world, lap_link_t link, lap_machine_t *machine_p)
{
    lap_machine_t machine = {.name = ""};
    lap_plan_load_t load = {.memory = NULL};
    measuring_t measuring = {
        .group = lap_world_group(world), .machine = &machine, .link = link, .load = &load};
    LAP_TRY(lap_engine_get(world, &measuring.engine));
    const bool is_far = measuring.engine->device->ops->transport;
    measuring.extent = is_far ? &far : &host;
    take_facts(&measuring);
    lap_status_t status = lap_group_agree(measuring.group, place_load(&measuring));
    if (status == LAP_OK)
        status = measure_types(&measuring);
    if (status == LAP_OK)
        status = measure_kernels(&measuring);
    if (status == LAP_OK)
        status = heat(&measuring);
    if (status == LAP_OK)
        status = lap_machine_measure_beside(world, link, &load, &machine);
    free_load(&measuring);
    if (status == LAP_OK)
        status = lap_machine_measure_kernels(measuring.group, is_far, &machine);
    if (status == LAP_OK)
        *machine_p = machine;
    return status;
}
