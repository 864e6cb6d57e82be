/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring the GEMMs that communication costs: a bucket of gradients is summed and gathered in the
 * background while a rank multiplies, as in a training with replicas. Copies and sums take cores of a
 * host, and SMs where ranks share a GPU.
 */
#include <lap/op.h>

#include <math.h>

#include "core/group.h"
#include "core/world.h"
#include "plan/measure.h"
#include "util/clock.h"

#define ROUNDS 8
#define COLS ((size_t)4096)
#define HOST_ROWS ((size_t)1 << 10)
#define FAR_ROWS ((size_t)16 << 10)
#define LONGEST_S 0.1 /* that a bucket is on the wire */
#define MOST_PART 1.0 /* of the GEMMs of a rank */
#define MOST_GEMMS 64

enum { SUM, GATHER, CALLS };

typedef struct beside {
    lap_group_t *group;
    lap_engine_t *engine;
    const lap_plan_load_t *load;
    lap_buffer_t *buffer;
    lap_op_t *ops[CALLS];
    lap_op_args_t args[CALLS];
    size_t rows;
    void *memory; /* the gradients of the bucket, and behind them this rank's share of it */
} beside_t;

/* ---- a bucket ---- */

/* A slow link has a smaller one, with a row for each rank at least; all ranks have the same. */
static lap_status_t choose_rows(beside_t *beside, const lap_machine_t *machine)
{
    const double size = beside->group->size;
    double rows = beside->engine->device->ops->transport ? FAR_ROWS : HOST_ROWS;
    rows = fmin(rows, LONGEST_S * lap_wire_rate(&machine->nvlink) / (COLS * sizeof(float)));
    rows = fmax(rows, size);
    LAP_TRY(lap_group_min(beside->group, &rows));
    beside->rows = (size_t)rows;
    return LAP_OK;
}

static lap_op_desc_t describe(const beside_t *beside, int call)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = call == SUM ? LAP_EXTERNAL_RS : LAP_EXTERNAL_AG;
    desc.m = beside->rows;
    desc.cols = COLS;
    desc.method = "direct";
    desc.background = 1;
    desc.buffer = beside->buffer;
    return desc;
}

static lap_status_t make_buffer(beside_t *beside, lap_link_t link)
{
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    size_t bytes = 0, nsignals = 0;
    for (int i = 0; i < CALLS; i++) {
        const lap_op_desc_t desc = describe(beside, i);
        size_t more, signals;
        LAP_TRY(lap_op_buffer_size(&desc, beside->group->size, &more, &signals));
        bytes = more > bytes ? more : bytes;
        nsignals = signals > nsignals ? signals : nsignals;
    }
    options.link = link;
    return lap_buffer_create(beside->group, bytes, nsignals, &options, &beside->buffer);
}

static lap_status_t place(beside_t *beside)
{
    lap_device_t *device = beside->engine->device;
    const size_t all = beside->rows * COLS;
    const size_t own = lap_shard(beside->rows, beside->group->size, beside->group->rank, NULL);
    const size_t count = all + own * COLS;
    LAP_TRY(device->ops->alloc(device, count * sizeof(float), &beside->memory));
    LAP_TRY(device->ops->fill(beside->load->stream, LAP_FLOAT32, beside->memory, count, 1));
    const lap_tensor_t grads = {beside->memory, LAP_FLOAT32, beside->rows, COLS, COLS};
    const lap_tensor_t share = {(float *)beside->memory + all, LAP_FLOAT32, own, COLS, COLS};
    for (int i = 0; i < CALLS; i++) {
        beside->args[i] = (lap_op_args_t)LAP_OP_ARGS_INIT;
        beside->args[i].m = beside->rows;
        beside->args[i].x = i == SUM ? grads : share;
        beside->args[i].y = i == SUM ? share : grads;
    }
    return device->ops->stream_synchronize(beside->load->stream);
}

static lap_status_t prepare(beside_t *beside, lap_link_t link)
{
    LAP_TRY(make_buffer(beside, link));
    for (int i = 0; i < CALLS; i++) {
        const lap_op_desc_t desc = describe(beside, i);
        LAP_TRY(lap_op_create(beside->group, &desc, &beside->ops[i]));
    }
    return lap_group_agree(beside->group, place(beside));
}

static void clear(beside_t *beside)
{
    for (int i = 0; i < CALLS; i++)
        lap_op_destroy(beside->ops[i]);
    lap_buffer_destroy(beside->buffer);
    if (beside->memory)
        beside->engine->device->ops->free(beside->engine->device, beside->memory);
}

/* ---- times ---- */

static double since(uint64_t begin)
{
    return (double)(lap_now_ns() - begin) * 1e-9;
}

/* Seconds of `gemms` GEMMs, and of the calls from `first` on beside them. Collective; when one rank fails, all do. */
static lap_status_t time_once(beside_t *beside, int gemms, int first, double seconds[2])
{
    const lap_device_ops_t *ops = beside->engine->device->ops;
    lap_status_t status = LAP_OK;
    LAP_TRY(lap_group_barrier(beside->group));
    const uint64_t begin = lap_now_ns();
    for (int i = first; i < CALLS && status == LAP_OK; i++)
        status = lap_op_begin(beside->ops[i], &beside->args[i]);
    for (int i = 0; i < gemms && status == LAP_OK; i++)
        status = ops->gemm(beside->load->stream, &beside->load->gemm);
    if (status == LAP_OK)
        status = ops->stream_synchronize(beside->load->stream);
    seconds[0] = fmin(seconds[0], since(begin));
    for (int i = first; i < CALLS && status == LAP_OK; i++)
        status = lap_op_end(beside->ops[i]);
    seconds[1] = fmin(seconds[1], since(begin));
    return lap_group_agree(beside->group, status);
}

/* GEMMs that last as long as all calls and longer, but no more than take a while: over a slow link, fewer. */
static lap_status_t count_gemms(beside_t *beside, int *gemms_p)
{
    double one[2] = {INFINITY, INFINITY}, calls[2] = {INFINITY, INFINITY};
    for (int i = 0; i < 2; i++) {
        LAP_TRY(time_once(beside, 1, CALLS, one));
        LAP_TRY(time_once(beside, 0, 0, calls));
    }
    double gemms = fmin(MOST_GEMMS, ceil(2 * calls[1] / one[0]));
    LAP_TRY(lap_group_min(beside->group, &gemms));
    *gemms_p = (int)gemms;
    return LAP_OK;
}

/*
 * What the calls from `first` on cost GEMMs, for each second that a wire of this rate is busy with the
 * bytes that go while they run. Alone and together in turns: the best of each, which nothing else disturbed.
 */
static lap_status_t measure(beside_t *beside, int gemms, int first, double rate, double *part_p)
{
    const double size = beside->group->size;
    const double bytes = (double)(beside->rows * COLS * sizeof(float)) * (size - 1) / size;
    double alone[2] = {INFINITY, INFINITY}, together[2] = {INFINITY, INFINITY};
    for (int i = 0; i < ROUNDS; i++) {
        LAP_TRY(time_once(beside, gemms, CALLS, alone));
        LAP_TRY(time_once(beside, gemms, first, together));
    }
    LAP_TRY(lap_group_min(beside->group, &alone[0]));
    LAP_TRY(lap_group_min(beside->group, &together[0]));
    LAP_TRY(lap_group_min(beside->group, &together[1]));
    const double lost = fmax(0, together[0] - alone[0]);
    const double sent = (CALLS - first) * bytes * fmin(1, together[0] / together[1]);
    *part_p = fmin(MOST_PART, lost / sent * rate);
    return LAP_OK;
}

static lap_status_t measure_both(beside_t *beside, lap_machine_t *machine)
{
    const double rate = lap_wire_rate(&machine->nvlink);
    int gemms;
    double puts, buckets;
    LAP_TRY(count_gemms(beside, &gemms));
    LAP_TRY(measure(beside, gemms, GATHER, rate, &puts));
    LAP_TRY(measure(beside, gemms, SUM, rate, &buckets));
    machine->nvlink.sms = puts * machine->sms;
    machine->network.sms = buckets * machine->sms;
    return LAP_OK;
}

lap_status_t lap_machine_measure_beside(lap_world_t *world, lap_link_t link,
                                        const lap_plan_load_t *load, lap_machine_t *machine)
{
    beside_t beside = {.group = lap_world_group(world), .load = load};
    LAP_TRY(lap_engine_get(world, &beside.engine));
    if (beside.group->size == 1)
        return LAP_OK;
    LAP_TRY(choose_rows(&beside, machine));
    lap_status_t status = prepare(&beside, link);
    if (status == LAP_OK)
        status = measure_both(&beside, machine);
    clear(&beside);
    return status;
}
