/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicting a pass: what its fragments cost by themselves is measured, and the simulator does the
 * rest. GEMMs, copies and signals are those of lap_calibrate. Kernels are issued as a pass issues
 * them, with the shapes of the pass, in memory of their own.
 */
#include "nn/predict.h"

#include <math.h>

#include "core/status.h"
#include "nn/program.h"
#include "overlap/auto.h"
#include "overlap/op.h"
#include "schedule/calibrate.h"
#include "util/alloc.h"
#include "util/clock.h"

#define ROUNDS 4
#define ROUND_S 1e-3 /* what a kernel is repeated for */
#define REPEATS_MOST 64
#define ALIGN 256u
#define FINISHED_ROWS 256u /* of the matrix that an epilogue is measured with */

/* A rank at its measurements. */
typedef struct probe {
    lap_nn_t *nn;
    lap_nn_t shadow; /* the layers with other memory */
    lap_stream_t *stream;
    char *memory;
    double *loss;      /* shared with the device */
    double *entries;   /* seconds of the kernel of each entry; negative: not known */
    lap_cost_t *costs; /* of each operator */
    double *finishes;  /* of each operator: seconds of the epilogue per byte of the result */
} probe_t;

/* ---- timing ---- */

/* Issues what is timed, once. */
typedef lap_status_t (*issue_t)(probe_t *probe, const void *what);

static lap_status_t time_repeats(probe_t *probe, issue_t issue, const void *what, int repeats,
                                 double *seconds_p)
{
    const lap_device_ops_t *ops = probe->nn->engine->device->ops;
    const uint64_t begin = lap_now_ns();
    for (int i = 0; i < repeats; i++)
        LAP_TRY(issue(probe, what));
    LAP_TRY(ops->stream_synchronize(probe->stream));
    *seconds_p = (double)(lap_now_ns() - begin) * 1e-9 / repeats;
    return LAP_OK;
}

/* The best of any rank, while all are at it. Collective, also after a failure of this rank. */
static lap_status_t time_work(probe_t *probe, issue_t issue, const void *what, lap_status_t status,
                              double *seconds_p)
{
    lap_group_t *group = probe->nn->group;
    double best = INFINITY, seconds = 0;
    if (status == LAP_OK)
        status = time_repeats(probe, issue, what, 1, &seconds);
    const int repeats = (int)fmax(1, fmin(REPEATS_MOST, ROUND_S / fmax(seconds, 1e-9)));
    for (int i = 0; i < ROUNDS; i++) {
        LAP_TRY(lap_group_barrier(group));
        if (status == LAP_OK)
            status = time_repeats(probe, issue, what, repeats, &seconds);
        best = fmin(best, seconds);
    }
    LAP_TRY(lap_group_agree(group, status));
    void *all;
    LAP_TRY(lap_group_collect(group, &best, sizeof(best), &all));
    for (int r = 0; r < group->size; r++)
        best = fmin(best, ((const double *)all)[r]);
    lap_free(all);
    *seconds_p = best;
    return LAP_OK;
}

/* ---- memory ---- */

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static lap_status_t get_memory(probe_t *probe, size_t bytes)
{
    lap_device_t *device = probe->nn->engine->device;
    void *memory;
    LAP_TRY(device->ops->alloc(device, bytes, &memory));
    probe->memory = memory;
    return LAP_OK;
}

static void free_memory(probe_t *probe)
{
    lap_device_t *device = probe->nn->engine->device;
    if (probe->memory)
        device->ops->free(device, probe->memory);
    probe->memory = NULL;
}

/* Numbers that look random: pages that nobody has written would be too fast. */
static lap_status_t fill(probe_t *probe, lap_dtype_t dtype, void *data, size_t count)
{
    const lap_device_ops_t *ops = probe->nn->engine->device->ops;
    LAP_TRY(ops->fill(probe->stream, dtype, data, count, 1));
    return ops->stream_synchronize(probe->stream);
}

/* ---- kernels ---- */

static uint32_t region_of(const lap_nn_entry_t *entry, int i)
{
    return i < LAP_NN_READS ? entry->reads[i] : entry->writes[i - LAP_NN_READS];
}

enum { REGIONS = LAP_NN_READS + LAP_NN_WRITES };

static size_t region_bytes(const lap_nn_list_t *list, uint32_t region)
{
    const lap_nn_region_t *matrix = &list->regions[region];
    return matrix->rows * matrix->stride * lap_dtype_size(matrix->dtype);
}

/* Gives the regions of an entry memory, which has numbers in it. */
static lap_status_t place_regions(probe_t *probe, const lap_nn_entry_t *entry)
{
    const lap_nn_list_t *list = &probe->nn->list;
    size_t bytes = 0, at = 0;
    for (int i = 0; i < REGIONS; i++)
        if (region_of(entry, i) != LAP_NN_NONE)
            bytes += padded(region_bytes(list, region_of(entry, i)));
    LAP_TRY(get_memory(probe, bytes));
    for (int i = 0; i < REGIONS; i++) {
        const uint32_t index = region_of(entry, i);
        if (index == LAP_NN_NONE)
            continue;
        const lap_nn_region_t *region = &list->regions[index];
        probe->shadow.tensors[index] = (lap_tensor_t){probe->memory + at, region->dtype,
                                                      region->rows, region->cols, region->stride};
        LAP_TRY(fill(probe, region->dtype, probe->memory + at, region->rows * region->stride));
        at += padded(region_bytes(list, index));
    }
    return LAP_OK;
}

/* As bind_reductions of nn.c. */
static void place_reduction(probe_t *probe, const lap_nn_entry_t *entry)
{
    const lap_tensor_t *src = &probe->shadow.tensors[entry->reads[0]];
    const bool add = entry->work == LAP_NN_ADD;
    probe->shadow.reductions[entry->index] = (lap_nn_reduction_t){
        .src = src->data,
        .src_stride = src->stride * lap_dtype_size(src->dtype),
        .scale = add ? probe->nn->grad_scale : NULL,
        .finish = {.epilogue = add ? LAP_EPILOGUE_NONE : LAP_EPILOGUE_GELU,
                   .scale = 1,
                   .beta = entry->beta},
    };
}

static lap_status_t issue_kernel(probe_t *probe, const void *what)
{
    const lap_nn_entry_t *entry = what;
    return lap_nn_issue_kernel(&probe->shadow, (uint32_t)(entry - probe->nn->list.entries),
                               probe->stream);
}

/* Kernels that need nothing but their regions; of the others the bytes count. */
static bool is_measured(lap_nn_work_t work)
{
    switch (work) {
    case LAP_NN_NORM:
    case LAP_NN_NORM_BACKWARD:
    case LAP_NN_ATTEND:
    case LAP_NN_ATTEND_BACKWARD:
    case LAP_NN_GATE:
    case LAP_NN_GATE_BACKWARD:
    case LAP_NN_ACTIVATE:
    case LAP_NN_ADD:
    case LAP_NN_COPY:
    case LAP_NN_LOSS:
    case LAP_NN_ROPE:
    case LAP_NN_ROPE_BACKWARD:
    case LAP_NN_DROPOUT:
    case LAP_NN_CAST:
    case LAP_NN_AMAX:
    case LAP_NN_TRANSPOSE:
        return true;
    default:
        return false;
    }
}

/* Whether two entries do the same with matrices of the same shapes. */
static bool is_alike(const lap_nn_list_t *list, const lap_nn_entry_t *a, const lap_nn_entry_t *b)
{
    bool alike = a->work == b->work && (a->beta != 0) == (b->beta != 0);
    for (int i = 0; i < REGIONS && alike; i++) {
        const uint32_t one = region_of(a, i), other = region_of(b, i);
        alike = (one == LAP_NN_NONE) == (other == LAP_NN_NONE);
        if (!alike || one == LAP_NN_NONE)
            continue;
        const lap_nn_region_t *x = &list->regions[one], *y = &list->regions[other];
        alike = x->rows == y->rows && x->cols == y->cols && x->stride == y->stride &&
                x->dtype == y->dtype;
    }
    return alike;
}

static lap_status_t measure_entry(probe_t *probe, const lap_nn_entry_t *entry, double *seconds_p)
{
    lap_status_t status = place_regions(probe, entry);
    if (status == LAP_OK && (entry->work == LAP_NN_ADD || entry->work == LAP_NN_ACTIVATE))
        place_reduction(probe, entry);
    status = time_work(probe, issue_kernel, entry, status, seconds_p);
    free_memory(probe);
    return status;
}

static lap_status_t measure_kernels(probe_t *probe)
{
    const lap_nn_list_t *list = &probe->nn->list;
    for (uint32_t i = 0; i < list->nentries; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        probe->entries[i] = -1;
        if (!is_measured(entry->work))
            continue;
        for (uint32_t j = 0; j < i && probe->entries[i] < 0; j++)
            if (probe->entries[j] >= 0 && is_alike(list, &list->entries[j], entry))
                probe->entries[i] = probe->entries[j];
        if (probe->entries[i] < 0)
            LAP_TRY(measure_entry(probe, entry, &probe->entries[i]));
    }
    return LAP_OK;
}

/* ---- operators ---- */

static lap_status_t issue_reduce(probe_t *probe, const void *what)
{
    return probe->nn->engine->device->ops->reduce(probe->stream, what);
}

/*
 * The epilogue as the last part of a sum of one matrix, which costs little more. The matrix, a bias
 * and an aux lie one after the other.
 */
static lap_status_t measure_finish(probe_t *probe, const lap_problem_t *problem, size_t cols,
                                   double *per_byte_p)
{
    const lap_dtype_t dtype = problem->types.out;
    const size_t row = cols * lap_dtype_size(dtype), bytes = FINISHED_ROWS * row;
    const void *src = NULL;
    lap_finish_t finish = {
        .epilogue = problem->epilogue, .scale = 1, .bias_dtype = dtype, .aux_dtype = dtype};
    lap_reduce_t reduce = {.from = dtype, .to = dtype, .nsrc = 1, .cols = cols, .finish = &finish};
    lap_status_t status = get_memory(probe, 3 * bytes);
    if (status == LAP_OK)
        status = fill(probe, dtype, probe->memory, 3 * bytes / lap_dtype_size(dtype));
    if (status == LAP_OK) {
        src = reduce.dst = probe->memory;
        finish.bias = probe->memory + bytes;
        reduce.aux = probe->memory + 2 * bytes;
        finish.aux_stride = reduce.dst_stride = row;
        reduce.srcs = &src;
        reduce.src_strides = &row;
        reduce.rows = FINISHED_ROWS;
    }
    double seconds = 0;
    status = time_work(probe, issue_reduce, &reduce, status, &seconds);
    free_memory(probe);
    *per_byte_p = seconds / (double)bytes;
    return status;
}

/* The epilogue of a call, unless an operator before has the same. */
static lap_status_t find_finish(probe_t *probe, uint32_t step)
{
    const lap_problem_t *own = &probe->nn->calls[step].op->problem;
    const unsigned finishes = LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU;
    probe->finishes[step] = 0;
    if ((own->epilogue & finishes) == 0)
        return LAP_OK;
    for (uint32_t i = 0; i < step; i++) {
        const lap_problem_t *other = &probe->nn->calls[i].op->problem;
        if ((other->epilogue & finishes) == (own->epilogue & finishes) &&
            other->types.out == own->types.out && other->n == own->n) {
            probe->finishes[step] = probe->finishes[i];
            return LAP_OK;
        }
    }
    return measure_finish(probe, own, own->n, &probe->finishes[step]);
}

static lap_status_t measure_operators(probe_t *probe)
{
    lap_nn_t *nn = probe->nn;
    for (uint32_t i = 0; i < nn->list.nsteps; i++) {
        const lap_op_desc_t *desc = &nn->calls[i].op->problem.desc;
        size_t n, k;
        LAP_TRY(lap_auto_gemm(desc, nn->group->size, lap_buffer_can(nn->buffer), &n, &k));
        LAP_TRY(lap_calibrate(nn->group, nn->engine, nn->buffer->ops->name, desc->dtype, n, k,
                              &probe->costs[i]));
        lap_cost_add_link(&probe->costs[i], &nn->buffer->link);
        LAP_TRY(find_finish(probe, i));
    }
    return LAP_OK;
}

/* ---- playing ---- */

/* What a kernel uses, by the rate of sums. */
static void add_bytes(void *context, const lap_range_t *range, bool write)
{
    (void)write;
    *(double *)context += (double)range->rows * (double)range->row_bytes;
}

static double estimate(const lap_linked_t *linked, uint32_t f, const lap_cost_t *cost)
{
    double bytes = 0;
    lap_link_each(linked, &linked->fragments[f], 0, LAP_NO_STEP, add_bytes, &bytes);
    return bytes / cost->reduce;
}

static lap_status_t play(const probe_t *probe, const lap_nn_programs_t *programs, double *seconds_p,
                         int rank, lap_fragment_span_t *spans)
{
    const lap_nn_list_t *list = &probe->nn->list;
    const lap_linked_t *own = &programs->programs[0];
    lap_fragment_cost_t *costs = lap_alloc(own->nfragments, sizeof(*costs));
    if (!costs)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %u fragments",
                         (unsigned)own->nfragments);
    for (uint32_t f = 0; f < own->nfragments; f++) {
        const uint32_t index = own->fragments[f].origin;
        const lap_nn_entry_t *entry = &list->entries[index];
        const bool call = entry->work == LAP_NN_OPERATOR;
        costs[f] = (lap_fragment_cost_t){.cost = &probe->costs[call ? entry->index : 0],
                                         .kernel_s = call ? 0 : probe->entries[index],
                                         .finish = call ? probe->finishes[entry->index] : 0};
        if (costs[f].kernel_s < 0)
            costs[f].kernel_s = estimate(own, f, costs[f].cost);
    }
    const lap_status_t status =
        lap_linked_simulate(programs->list, programs->size, costs, seconds_p, rank, spans);
    lap_free(costs);
    return status;
}

static lap_status_t play_variant(const probe_t *probe, bool more, double *seconds_p, int rank,
                                 lap_fragment_span_t *spans)
{
    const lap_nn_source_t source = lap_nn_chosen(probe->nn);
    const lap_nn_linking_t linking = {
        .target = &probe->nn->calls[0].op->target, .more = more, .source = &source};
    lap_nn_programs_t programs;
    lap_status_t status = lap_nn_programs_init(&programs, &probe->nn->list.plan, &linking);
    if (status == LAP_OK)
        status = play(probe, &programs, seconds_p, rank, spans);
    lap_nn_programs_clear(&programs);
    return status;
}

/* Rank 0 plays for all. */
static lap_status_t share(const probe_t *probe, lap_nn_prediction_t *prediction)
{
    lap_group_t *group = probe->nn->group;
    double seconds[2] = {0, 0};
    lap_status_t status = LAP_OK;
    if (group->rank == 0)
        status = play_variant(probe, false, &seconds[0], prediction->rank, prediction->spans);
    if (group->rank == 0 && status == LAP_OK)
        status = play_variant(probe, true, &seconds[1], 0, NULL);
    LAP_TRY(lap_group_agree(group, status));
    void *all;
    LAP_TRY(lap_group_collect(group, seconds, sizeof(seconds), &all));
    prediction->first = ((const double *)all)[0];
    prediction->more = ((const double *)all)[1];
    lap_free(all);
    return LAP_OK;
}

/* ---- all of it ---- */

static lap_status_t probe_init(probe_t *probe)
{
    lap_nn_t *nn = probe->nn;
    lap_device_t *device = nn->engine->device;
    const lap_nn_list_t *list = &nn->list;
    void *loss;
    probe->shadow = *nn;
    probe->shadow.tensors = lap_alloc(list->nregions, sizeof(*nn->tensors));
    probe->shadow.reductions = lap_alloc((size_t)list->nreductions + 1, sizeof(*nn->reductions));
    probe->entries = lap_alloc(list->nentries, sizeof(*probe->entries));
    probe->costs = lap_alloc((size_t)list->nsteps + 1, sizeof(*probe->costs));
    probe->finishes = lap_alloc((size_t)list->nsteps + 1, sizeof(*probe->finishes));
    if (!probe->shadow.tensors || !probe->shadow.reductions || !probe->entries || !probe->costs ||
        !probe->finishes)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to predict a pass of %u entries",
                         (unsigned)list->nentries);
    LAP_TRY(device->ops->alloc_shared(device, sizeof(*probe->loss), &loss));
    probe->loss = probe->shadow.loss = loss;
    probe->shadow.loss_count = 1;
    probe->shadow.seq = list->plan.desc.seq;
    return device->ops->stream_create(device, false, &probe->stream);
}

static void probe_clear(probe_t *probe)
{
    lap_device_t *device = probe->nn->engine->device;
    if (probe->stream)
        device->ops->stream_destroy(probe->stream);
    if (probe->loss)
        device->ops->free_shared(device, probe->loss);
    free_memory(probe);
    lap_free(probe->shadow.tensors);
    lap_free(probe->shadow.reductions);
    lap_free(probe->entries);
    lap_free(probe->costs);
    lap_free(probe->finishes);
}

lap_status_t lap_nn_predict(lap_nn_t *nn, lap_nn_prediction_t *prediction)
{
    probe_t probe = {.nn = nn};
    lap_status_t status = lap_group_agree(nn->group, probe_init(&probe));
    if (status == LAP_OK)
        status = measure_operators(&probe);
    if (status == LAP_OK)
        status = measure_kernels(&probe);
    if (status == LAP_OK)
        status = share(&probe, prediction);
    probe_clear(&probe);
    return status;
}
