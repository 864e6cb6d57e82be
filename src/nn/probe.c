/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring kernels and epilogues of a pass. GEMMs, copies and signals are those of lap_calibrate,
 * or, where the device wants it so, those of probe_steps.c.
 */
#include "nn/probe.h"

#include <math.h>
#include <string.h>

#include "core/status.h"
#include "overlap/auto.h"
#include "overlap/op.h"
#include "schedule/calibrate.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/sorted.h"

enum { ROUNDS = 5 };
#define ROUND_S 1e-3 /* what a kernel is repeated for */
#define REPEATS_MOST 64
#define CHAIN_MOST 16 /* kernels that follow one another */
#define ALIGN 256u
#define FINISHED_ROWS 256u /* of the matrix that an epilogue is measured with */
#define SETS_MOST 16       /* of memory, LAP_PROBE_BYTES in all, in which repeats take turns */

/* ---- all ranks at once ---- */

const lap_nn_background_t *lap_probe_replicas(const lap_probe_t *probe)
{
    return probe->nn->background;
}

static lap_status_t barrier(const lap_probe_t *probe)
{
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    LAP_TRY(lap_group_barrier(probe->nn->group));
    return replicas ? lap_group_barrier(replicas->group) : LAP_OK;
}

lap_status_t lap_probe_agree(const lap_probe_t *probe, lap_status_t status)
{
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    status = lap_group_agree(probe->nn->group, status);
    return replicas ? lap_group_agree(replicas->group, status) : status;
}

/* The largest, or the smallest, number of the ranks of all groups. Collective. */
static lap_status_t gather(const lap_probe_t *probe, bool least, double *number)
{
    lap_status_t (*pick)(lap_group_t *, double *) = least ? lap_group_min : lap_group_max;
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    LAP_TRY(pick(probe->nn->group, number));
    return replicas ? pick(replicas->group, number) : LAP_OK;
}

lap_status_t lap_probe_most(const lap_probe_t *probe, double *number)
{
    return gather(probe, false, number);
}

lap_status_t lap_probe_time(lap_probe_t *probe, lap_probe_run_t run, void *what,
                            lap_status_t status, double *seconds_p)
{
    const bool least = !probe->nn->engine->device->ops->tries_methods;
    double rounds[ROUNDS] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        LAP_TRY(barrier(probe));
        const uint64_t begin = lap_now_ns();
        if (status == LAP_OK)
            status = run(probe, what);
        lap_sorted_add(rounds, i, (double)(lap_now_ns() - begin) * 1e-9);
    }
    LAP_TRY(lap_probe_agree(probe, status));
    *seconds_p = rounds[least ? 0 : ROUNDS / 2];
    return gather(probe, least, seconds_p);
}

/* ---- repeats ---- */

/* Repeats in a row: as a graph, where the device has such, as in a pass. */
typedef struct repeats {
    lap_probe_issue_t issue;
    const void *what;
    int count;
    lap_graph_t *graph; /* NULL: none */
} repeats_t;

static lap_status_t issue_repeats(lap_probe_t *probe, const repeats_t *repeats)
{
    for (int i = 0; i < repeats->count; i++)
        LAP_TRY(repeats->issue(probe, repeats->what, i));
    return LAP_OK;
}

static lap_status_t run_repeats(lap_probe_t *probe, void *what)
{
    const lap_device_ops_t *ops = probe->nn->engine->device->ops;
    const repeats_t *repeats = what;
    if (repeats->graph)
        LAP_TRY(ops->graph_launch(repeats->graph, probe->stream));
    else
        LAP_TRY(issue_repeats(probe, repeats));
    return ops->stream_synchronize(probe->stream);
}

static lap_status_t capture(lap_probe_t *probe, repeats_t *repeats)
{
    const lap_device_ops_t *ops = probe->nn->engine->device->ops;
    lap_saved_error_t saved;
    LAP_TRY(ops->graph_begin(&probe->stream, 1));
    const lap_status_t status = issue_repeats(probe, repeats);
    lap_error_save(&saved);
    const lap_status_t ended = ops->graph_end(&probe->stream, 1, &repeats->graph);
    if (status == LAP_OK)
        return ended;
    lap_error_restore(&saved);
    return status;
}

/* What is not the repeats': to launch a graph, and to wait for it. */
static double overhead_of(const lap_probe_t *probe)
{
    return probe->nn->engine->device->ops->facts.graphs ? probe->costs[0].call_s : 0;
}

lap_status_t lap_probe_work(lap_probe_t *probe, lap_probe_issue_t issue, const void *what,
                            lap_status_t status, double *seconds_p)
{
    const lap_device_ops_t *ops = probe->nn->engine->device->ops;
    repeats_t repeats = {.issue = issue, .what = what, .count = 1};
    double one = 0;
    if (status == LAP_OK) /* what must be found or loaded */
        status = run_repeats(probe, &repeats);
    LAP_TRY(lap_probe_time(probe, run_repeats, &repeats, status, &one));
    repeats.count = (int)fmax(1, fmin(REPEATS_MOST, ROUND_S / fmax(one, 1e-9)));
    if (repeats.count == 1 && !ops->facts.graphs) { /* it would be measured the same way again */
        *seconds_p = one;
        return LAP_OK;
    }
    if (ops->facts.graphs)
        status = capture(probe, &repeats);
    status = lap_probe_time(probe, run_repeats, &repeats, status, seconds_p);
    if (repeats.graph)
        ops->graph_destroy(repeats.graph);
    *seconds_p = fmax(0, *seconds_p - overhead_of(probe)) / repeats.count;
    return status;
}

/* ---- memory ---- */

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/*
 * Between two passes nobody needs the memory of what passes compute: so layers that are measured take no
 * more than those that are not, unless a kernel has more weights than they have results.
 */
static size_t room_of(const lap_probe_t *probe)
{
    return probe->nn->list.bytes[LAP_NN_PRIVATE];
}

lap_status_t lap_probe_alloc(lap_probe_t *probe, size_t bytes)
{
    lap_device_t *device = probe->nn->engine->device;
    void *memory = probe->nn->memory[LAP_NN_PRIVATE];
    if (bytes > room_of(probe))
        LAP_TRY(device->ops->alloc(device, bytes, &memory));
    probe->memory = memory;
    return LAP_OK;
}

void lap_probe_free(lap_probe_t *probe)
{
    lap_device_t *device = probe->nn->engine->device;
    if (probe->memory && probe->memory != probe->nn->memory[LAP_NN_PRIVATE])
        device->ops->free(device, probe->memory);
    probe->memory = NULL;
}

/* Numbers that look random: pages that nobody has written would be too fast. */
static lap_status_t fill(lap_probe_t *probe, lap_dtype_t dtype, void *data, size_t count)
{
    const lap_device_ops_t *ops = probe->nn->engine->device->ops;
    LAP_TRY(ops->fill(probe->stream, dtype, data, count, 1));
    return ops->stream_synchronize(probe->stream);
}

/* ---- kernels ---- */

enum { OPERANDS = LAP_NN_READS + LAP_NN_WRITES };
_Static_assert(OPERANDS == LAP_PROBE_OPERANDS, "those of an entry");

static size_t entry_bytes(const lap_nn_list_t *list, const lap_nn_entry_t *entry)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < OPERANDS; i++)
        if (lap_nn_operand_region(entry, i) != LAP_NN_NONE)
            bytes += padded(lap_nn_region_bytes(&list->regions[lap_nn_operand_region(entry, i)]));
    return bytes;
}

/*
 * The sets of memory that the repeats of an entry take in turn: arguments are read when they run. Results that a cache
 * holds are there in a pass, too.
 */
static size_t count_sets(const lap_probe_t *probe, const lap_nn_entry_t *entry)
{
    const size_t bytes = entry_bytes(&probe->nn->list, entry);
    if (!probe->nn->engine->device->ops->facts.graphs || bytes == 0 || bytes > room_of(probe))
        return 1;
    const size_t sets = LAP_PROBE_BYTES / bytes + 1, room = room_of(probe) / bytes;
    const size_t most = room < SETS_MOST ? room : SETS_MOST;
    return sets < most ? sets : most;
}

/* Tokens are what they are in a pass; other numbers do not matter. */
static lap_status_t fill_region(lap_probe_t *probe, uint32_t index, char *data)
{
    const lap_nn_region_t *region = &probe->nn->list.regions[index];
    const size_t bytes = lap_nn_region_bytes(region);
    const lap_copy_t copy = {.dst = data,
                             .src = probe->ids,
                             .rows = 1,
                             .row_bytes = bytes,
                             .dst_stride = bytes,
                             .src_stride = bytes};
    const lap_device_ops_t *ops = probe->nn->engine->device->ops;
    const char *name = region->name; /* each slot of a pipeline has its own */
    const bool ids = strcmp(name, "tokens") == 0 || strcmp(name, "ids") == 0;
    if (!probe->ids || !ids)
        return fill(probe, region->dtype, data, region->rows * region->stride);
    LAP_TRY(ops->copy(probe->stream, &copy));
    return ops->stream_synchronize(probe->stream);
}

/* An operand in memory of its own, where the whole of its matrix is. */
static lap_arg_t arg_of(const lap_probe_t *probe, const lap_nn_entry_t *entry, uint32_t role)
{
    const lap_nn_list_t *list = &probe->nn->list;
    const lap_bound_place_t matrix = {.base = probe->at[role]};
    lap_link_place_t place = {.region = LAP_NO_REGION};
    size_t rows = 0, offset = 0;
    (void)lap_nn_operand(list, entry, role, list->plan.desc.seq, &place, &rows);
    (void)lap_nn_linked_region(list, lap_nn_operand_region(entry, role), &offset);
    return (lap_arg_t){.data = lap_at(&matrix, place.offset - offset),
                       .rows = rows,
                       .cols = place.row_bytes / lap_dtype_size(place.dtype),
                       .pitch = place.stride,
                       .dtype = place.dtype,
                       .role = role};
}

/* The matrices of an entry, one after the other. */
static void use_memory(lap_probe_t *probe, const lap_nn_entry_t *entry, char *at)
{
    const lap_nn_list_t *list = &probe->nn->list;
    uint32_t count = 0;
    for (uint32_t i = 0; i < OPERANDS; i++) {
        const uint32_t index = lap_nn_operand_region(entry, i);
        if (index == LAP_NN_NONE)
            continue;
        probe->at[i] = at;
        probe->args[count++] = arg_of(probe, entry, i);
        at += padded(lap_nn_region_bytes(&list->regions[index]));
    }
    probe->operands = (lap_operands_t){probe->args, count};
}

/* ... in a set of the memory. */
static void use_set(lap_probe_t *probe, const lap_nn_entry_t *entry, size_t set)
{
    use_memory(probe, entry, probe->memory + set * entry_bytes(&probe->nn->list, entry));
}

static lap_status_t fill_regions(lap_probe_t *probe, const lap_nn_entry_t *entry)
{
    for (uint32_t i = 0; i < OPERANDS; i++)
        if (lap_nn_operand_region(entry, i) != LAP_NN_NONE)
            LAP_TRY(fill_region(probe, lap_nn_operand_region(entry, i), probe->at[i]));
    return LAP_OK;
}

static lap_status_t place_sets(lap_probe_t *probe, const lap_nn_entry_t *entry, size_t sets)
{
    LAP_TRY(lap_probe_alloc(probe, sets * entry_bytes(&probe->nn->list, entry)));
    for (size_t set = sets; set-- > 0;) {
        use_set(probe, entry, set);
        LAP_TRY(fill_regions(probe, entry));
    }
    return LAP_OK;
}

lap_status_t lap_probe_place(lap_probe_t *probe, const lap_nn_entry_t *entry)
{
    return place_sets(probe, entry, 1);
}

static lap_status_t issue_kernel(lap_probe_t *probe, const void *what, int turn)
{
    const lap_nn_entry_t *entry = what;
    const size_t sets = count_sets(probe, entry);
    if (sets > 1)
        use_set(probe, entry, (size_t)turn % sets);
    return lap_nn_issue_entry(&probe->shadow, (uint32_t)(entry - probe->nn->list.entries),
                              &probe->operands, probe->stream);
}

/* Whether an entry is a kernel that a pass issues by itself. */
static bool is_measured(lap_nn_work_t work)
{
    return work != LAP_NN_OPERATOR && work != LAP_NN_READY && work != LAP_NN_LOOK &&
           work != LAP_NN_ZERO;
}

bool lap_probe_is_alike(const lap_nn_list_t *list, const lap_nn_entry_t *a, const lap_nn_entry_t *b)
{
    bool alike = a->work == b->work && (a->beta != 0) == (b->beta != 0);
    for (uint32_t i = 0; i < OPERANDS && alike; i++) {
        const uint32_t one = lap_nn_operand_region(a, i), other = lap_nn_operand_region(b, i);
        alike = (one == LAP_NN_NONE) == (other == LAP_NN_NONE);
        if (!alike || one == LAP_NN_NONE)
            continue;
        const lap_nn_region_t *x = &list->regions[one], *y = &list->regions[other];
        alike = x->rows == y->rows && x->cols == y->cols && x->stride == y->stride &&
                x->dtype == y->dtype;
    }
    return alike;
}

static lap_status_t measure_entry(lap_probe_t *probe, const lap_nn_entry_t *entry,
                                  double *seconds_p)
{
    lap_status_t status = place_sets(probe, entry, count_sets(probe, entry));
    status = lap_probe_work(probe, issue_kernel, entry, status, seconds_p);
    lap_probe_free(probe);
    return status;
}

static lap_status_t measure_kernels(lap_probe_t *probe)
{
    const lap_nn_list_t *list = &probe->nn->list;
    const bool graphs = probe->nn->engine->device->ops->facts.graphs;
    for (uint32_t i = 0; i < list->nentries; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        lap_step_cost_t *cost = &probe->kernels[i];
        *cost = (lap_step_cost_t){-1, 1};
        if (!is_measured(entry->work) || i >= list->parts[LAP_NN_LOOK_GRADIENTS])
            continue;
        for (uint32_t j = 0; j < i && cost->seconds < 0; j++)
            if (probe->kernels[j].seconds >= 0 &&
                lap_probe_is_alike(list, &list->entries[j], entry))
                *cost = probe->kernels[j];
        if (cost->seconds >= 0)
            continue;
        LAP_TRY(measure_entry(probe, entry, &cost->seconds));
        if (!graphs) /* a node of a graph includes what it takes to begin it */
            cost->seconds += probe->costs[0].step_s;
    }
    return LAP_OK;
}

/* ---- one kernel behind another ---- */

/* Kernels of a pass that differ, one after the other as in a pass, each with memory of its own. */
typedef struct chain {
    const lap_nn_entry_t *entries[CHAIN_MOST];
    size_t offsets[CHAIN_MOST], bytes;
    int count;
    double seconds; /* of all, each behind itself */
} chain_t;

/* As many as find room where passes compute. */
static void find_chain(const lap_probe_t *probe, chain_t *chain)
{
    const lap_nn_list_t *list = &probe->nn->list;
    for (uint32_t i = 0; i < list->nentries && chain->count < CHAIN_MOST; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        const size_t bytes = entry_bytes(list, entry);
        bool known = probe->kernels[i].seconds < 0 || chain->bytes + bytes > room_of(probe);
        for (int j = 0; j < chain->count && !known; j++)
            known = lap_probe_is_alike(list, chain->entries[j], entry);
        if (known)
            continue;
        chain->entries[chain->count] = entry;
        chain->offsets[chain->count++] = chain->bytes;
        chain->bytes += bytes;
        chain->seconds += probe->kernels[i].seconds;
    }
}

static lap_status_t place_chain(lap_probe_t *probe, const chain_t *chain)
{
    LAP_TRY(lap_probe_alloc(probe, chain->bytes));
    for (int i = 0; i < chain->count; i++) {
        use_memory(probe, chain->entries[i], probe->memory + chain->offsets[i]);
        LAP_TRY(fill_regions(probe, chain->entries[i]));
    }
    return LAP_OK;
}

static lap_status_t issue_chain(lap_probe_t *probe, const void *what, int turn)
{
    const chain_t *chain = what;
    const lap_nn_entry_t *entries = probe->nn->list.entries;
    (void)turn;
    for (int i = 0; i < chain->count; i++) {
        use_memory(probe, chain->entries[i], probe->memory + chain->offsets[i]);
        LAP_TRY(lap_nn_issue_entry(&probe->shadow, (uint32_t)(chain->entries[i] - entries),
                                   &probe->operands, probe->stream));
    }
    return LAP_OK;
}

/* What a launch takes longer in a pass than behind one of the same kernel, for all costs. Collective. */
static lap_status_t measure_launches(lap_probe_t *probe)
{
    chain_t chain = {.count = 0};
    double seconds = 0;
    if (!probe->nn->engine->device->ops->facts.graphs)
        return LAP_OK;
    find_chain(probe, &chain);
    lap_status_t status = place_chain(probe, &chain);
    status = lap_probe_work(probe, issue_chain, &chain, status, &seconds);
    lap_probe_free(probe);
    LAP_TRY(status);
    const double launch_s = fmax(0, seconds - chain.seconds) / fmax(1, chain.count);
    for (uint32_t i = 0; i <= probe->nn->list.nsteps; i++)
        probe->costs[i].launch_s = launch_s;
    probe->bucket_cost.launch_s = launch_s;
    return LAP_OK;
}

/* ---- operators ---- */

static lap_status_t issue_reduce(lap_probe_t *probe, const void *what, int turn)
{
    (void)turn;
    return probe->nn->engine->device->ops->reduce(probe->stream, what);
}

/*
 * The epilogue as the last part of a sum of one matrix, which costs little more. The matrix, a bias
 * and an aux lie one after the other.
 */
static lap_status_t measure_finish(lap_probe_t *probe, const lap_problem_t *problem, size_t cols,
                                   double *per_byte_p)
{
    const lap_dtype_t dtype = problem->types.out;
    const size_t row = cols * lap_dtype_size(dtype), bytes = FINISHED_ROWS * row;
    const void *src = NULL;
    lap_finish_t finish = {
        .epilogue = problem->epilogue, .scale = 1, .bias_dtype = dtype, .aux_dtype = dtype};
    lap_reduce_t reduce = {.from = dtype, .to = dtype, .nsrc = 1, .cols = cols, .finish = &finish};
    lap_status_t status = lap_probe_alloc(probe, 3 * bytes);
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
    status = lap_probe_work(probe, issue_reduce, &reduce, status, &seconds);
    lap_probe_free(probe);
    *per_byte_p = seconds / (double)bytes;
    return status;
}

/* The epilogue of a call, unless an operator before has the same. */
static lap_status_t find_finish(lap_probe_t *probe, uint32_t step)
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

/* All ranks of the grid have a part of the cores. */
lap_status_t lap_probe_calibrate(const lap_probe_t *probe, lap_group_t *group,
                                 const lap_buffer_t *buffer, lap_dtype_t dtype, size_t n, size_t k,
                                 lap_cost_t *cost_p)
{
    LAP_TRY(lap_calibrate(group, probe->nn->engine, buffer->ops->name, dtype, n, k, cost_p));
    lap_cost_add_link(cost_p, &buffer->link);
    cost_p->cores *= (double)probe->ranks / group->size;
    return LAP_OK;
}

static lap_status_t measure_operators(lap_probe_t *probe)
{
    const lap_nn_t *nn = probe->nn;
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    for (uint32_t i = 0; i < nn->list.nsteps; i++) {
        const lap_op_t *op = nn->calls[i].op;
        const lap_op_desc_t *desc = &op->problem.desc;
        size_t n, k;
        LAP_TRY(lap_auto_gemm(desc, op->group->size, lap_buffer_can(op->buffer), &n, &k));
        if (nn->engine->device->ops->tries_methods) /* its GEMMs are measured as they are */
            n = k = 0;
        LAP_TRY(
            lap_probe_calibrate(probe, op->group, op->buffer, desc->dtype, n, k, &probe->costs[i]));
        if (n > 0)
            LAP_TRY(find_finish(probe, i));
    }
    if (!replicas)
        return LAP_OK;
    return lap_probe_calibrate(probe, replicas->group, replicas->buffer, LAP_FLOAT32, 0, 0,
                               &probe->bucket_cost);
}

static lap_status_t issue_cast(lap_probe_t *probe, const void *what, int turn)
{
    (void)turn;
    return lap_nn_issue_cast(probe->nn, 0, LAP_NN_BUCKET_CAST, what, probe->stream);
}

/* Gradients to the type in which they travel: what is there stays. */
static lap_status_t measure_cast(lap_probe_t *probe)
{
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    const lap_nn_buckets_t *buckets = replicas ? replicas->replicas.buckets : NULL;
    lap_linked_t linked = {.rank = 0};
    lap_arg_t args[LAP_OPERANDS_MOST];
    lap_operands_t operands = {args, 0};
    double seconds;
    if (!replicas || buckets->wire == LAP_FLOAT32)
        return LAP_OK;
    lap_nn_link_regions(&probe->nn->list, false, &linked);
    lap_nn_link_wire(&probe->nn->list, &replicas->replicas, &linked);
    lap_status_t status =
        lap_nn_link_bucket(&probe->nn->list, &replicas->replicas, 0, false, &linked);
    if (status == LAP_OK) { /* the cast comes first */
        operands.n = lap_list_operands(&linked, &linked.fragments[0], args);
        lap_bind_operands(args, operands.n, lap_nn_base, probe->nn);
    }
    status = lap_probe_work(probe, issue_cast, &operands, status, &seconds);
    lap_linked_clear(&linked);
    LAP_TRY(status);
    probe->cast = seconds / (double)buckets->list[0].count;
    return LAP_OK;
}

/* ---- all of it ---- */

/* Tokens and targets at random, in the order of rows and sorted. */
static lap_status_t make_ids(lap_probe_t *probe)
{
    const lap_nn_desc_t *desc = &probe->nn->list.plan.desc;
    const size_t count = desc->seq * desc->batch; /* of which ranks of a context have some */
    lap_device_t *device = probe->nn->engine->device;
    size_t counted;
    void *memory;
    LAP_TRY(device->ops->alloc_shared(device, count * LAP_ID_COLS * sizeof(int32_t), &memory));
    probe->ids = probe->shadow.tokens.ids = memory;
    int32_t *tokens = lap_alloc(count, sizeof(*tokens));
    if (!tokens)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu tokens", count);
    for (size_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(i * 2654435761u % desc->vocab);
    const lap_status_t status =
        lap_nn_put_micro(&probe->shadow, 0, desc->seq, tokens, tokens, &counted);
    lap_free(tokens);
    return status;
}

lap_status_t lap_probe_init(lap_probe_t *probe, lap_nn_t *nn)
{
    lap_device_t *device = nn->engine->device;
    const lap_nn_list_t *list = &nn->list;
    const size_t calls = (size_t)list->nsteps + 1;
    void *loss;
    *probe = (lap_probe_t){.nn = nn, .shadow = *nn};
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    const size_t buckets = 2 * (replicas ? replicas->replicas.buckets->count : 0) + 1;
    probe->ranks = nn->group->size * (replicas ? replicas->group->size : 1);
    probe->shadow.tracing = false;
    probe->kernels = lap_alloc(list->nentries, sizeof(*probe->kernels));
    probe->costs = lap_alloc(calls, sizeof(*probe->costs));
    probe->finishes = lap_alloc(calls, sizeof(*probe->finishes));
    probe->calls = lap_alloc(calls, sizeof(*probe->calls));
    probe->buckets = lap_alloc(buckets, sizeof(*probe->buckets));
    if (!probe->kernels || !probe->costs || !probe->finishes || !probe->calls || !probe->buckets)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to predict a pass of %u entries",
                         (unsigned)list->nentries);
    LAP_TRY(device->ops->alloc_shared(device, sizeof(*probe->loss), &loss));
    probe->loss = probe->shadow.loss = loss;
    probe->shadow.loss_count = 1;
    probe->shadow.seq = list->plan.desc.seq;
    if (lap_nn_list_is_model(list))
        LAP_TRY(make_ids(probe));
    return device->ops->stream_create(device, false, &probe->stream);
}

void lap_probe_clear(lap_probe_t *probe)
{
    lap_device_t *device = probe->nn->engine->device;
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    if (probe->stream)
        device->ops->stream_destroy(probe->stream);
    if (probe->loss)
        device->ops->free_shared(device, probe->loss);
    if (probe->ids)
        device->ops->free_shared(device, probe->ids);
    lap_probe_free(probe);
    for (uint32_t i = 0; probe->calls && i < probe->nn->list.nsteps; i++)
        lap_free(probe->calls[i].shared ? NULL : probe->calls[i].steps);
    for (size_t i = 0; replicas && probe->buckets && i < 2 * replicas->replicas.buckets->count; i++)
        lap_free(probe->buckets[i].shared ? NULL : probe->buckets[i].steps);
    lap_free(probe->kernels);
    lap_free(probe->costs);
    lap_free(probe->finishes);
    lap_free(probe->calls);
    lap_free(probe->buckets);
}

lap_status_t lap_probe_kernels(lap_probe_t *probe)
{
    const lap_nn_t *nn = probe->nn;
    LAP_TRY(lap_probe_calibrate(probe, nn->group, nn->buffer, LAP_FLOAT32, 0, 0, &probe->costs[0]));
    for (uint32_t i = 0; i < nn->list.nsteps; i++)
        LAP_TRY(find_finish(probe, i));
    return measure_kernels(probe);
}

lap_status_t lap_probe_measure(lap_probe_t *probe, bool step)
{
    LAP_TRY(measure_operators(probe));
    LAP_TRY(lap_probe_update(probe, step));
    LAP_TRY(measure_kernels(probe));
    LAP_TRY(measure_launches(probe));
    LAP_TRY(measure_cast(probe));
    return probe->nn->engine->device->ops->tries_methods ? lap_probe_steps(probe) : LAP_OK;
}
