/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the calls of `lap train` have cost, and why its ranks waited. The ranks of a group that call operators together, whatever
 * they share, exchange what they did in these calls and besides. Each then looks for what was in flight from it and to it,
 * for the pauses in its own calls, and for what had to end first. Groups come one after another, in the same order on every rank.
 */
#include <stdlib.h>

#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "parallel/data_parallel.h"
#include "train.h"
#include "util/alloc.h"

/* What ranks of a group have exchanged: first the calls of each in order, then what it did besides, as LAP_NO_CALL. */
typedef struct exchange {
    lap_train_model_t *model;
    lap_group_t *group;
    lap_trace_t *all;
    size_t ncalls; /* of this rank */
    lap_train_iteration_t *iteration;
} exchange_t;

static lap_status_t no_memory(const lap_trace_t *all)
{
    return lap_error(LAP_ERR_NO_MEMORY, "no memory for the calls of %zu records", all->nrecords);
}

/* ---- exchanging ---- */

static lap_status_t join_call(void *context, const lap_train_call_t *call)
{
    exchange_t *exchange = context;
    if (call->group != exchange->group)
        return LAP_OK;
    exchange->ncalls++;
    exchange->all->emulated = exchange->all->emulated || call->trace->emulated;
    return lap_trace_join(exchange->all, call->trace);
}

/* By which records of the timeline are distinguished from those of other groups. */
static uint64_t digest_of(const lap_group_t *group)
{
    lap_trace_group_t own = {.size = 0};
    for (int r = 0; r < group->size; r++)
        lap_trace_group_add(&own, group->members[r]);
    return own.digest;
}

/* What this rank computed in any call and kernel of the iteration, and when it waited in calls of other groups. */
static void add_work(const exchange_t *exchange)
{
    const lap_trace_t *timeline = exchange->model->timeline;
    const uint64_t own = digest_of(exchange->group);
    for (size_t i = 0; timeline && i < timeline->nrecords; i++) {
        lap_trace_record_t record = timeline->records[i];
        const bool waits = record.count > 0 && record.group.digest != own;
        record.rank = exchange->group->rank;
        record.call = LAP_NO_CALL;
        if (waits || lap_step_computes(record.kind, record.stream))
            lap_trace_add(exchange->all, &record);
    }
}

/* All calls in one trace: each exchange takes a while. */
static lap_status_t join_calls(exchange_t *exchange, lap_train_walk_t walk)
{
    LAP_TRY(lap_trace_create(&exchange->all));
    LAP_TRY(lap_trace_begin(exchange->all, LAP_AG_GEMM, "", exchange->group->size,
                            exchange->model->trainer.nn->list.plan.m, false, 0));
    return walk(exchange->model, join_call, exchange);
}

/* Collective over the group, after its calls were joined with this status. */
static lap_status_t share(exchange_t *exchange, lap_status_t status)
{
    LAP_TRY(lap_group_agree(exchange->group, status));
    add_work(exchange);
    return lap_trace_share(exchange->all, exchange->group);
}

/* ---- pauses ---- */

/*
 * The records of one call out of those of all, each rank's of which come in the order of the calls:
 * ends[r] is how far those of rank r have been taken.
 */
static void take_call(const lap_trace_t *all, uint32_t number, size_t *ends, lap_trace_t *call)
{
    call->nrecords = 0;
    for (int r = 0; r < all->size; r++)
        for (; ends[r] < all->nrecords && all->records[ends[r]].rank == r &&
               all->records[ends[r]].call == number;
             ends[r]++)
            call->records[call->nrecords++] = all->records[ends[r]];
}

/* Where the records of each rank begin. */
static void find_ranks(const lap_trace_t *all, size_t *ends)
{
    for (size_t i = all->nrecords; i-- > 0;)
        ends[all->records[i].rank] = i;
}

typedef struct explaining {
    const exchange_t *exchange;
    lap_trace_t call;
    size_t *ends;
    uint32_t number;
    lap_work_t besides;     /* what all ranks did */
    lap_intervals_t work;   /* of this rank, joined, */
    lap_intervals_t others; /* and pauses in which it waited for other groups */
    lap_intervals_t calls;  /* the time of those before, joined */
} explaining_t;

/* A wait that has ended: from when, until when, and whether in a call of the group. */
typedef struct ended {
    uint64_t begin, end;
    bool own;
} ended_t;

static int compare_ended(const void *left, const void *right)
{
    const ended_t *a = left, *b = right;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* Of the timeline, in the order of their ends; the caller frees them. NULL: no memory. */
static ended_t *list_ended(const exchange_t *exchange, size_t *count_p)
{
    const lap_trace_t *timeline = exchange->model->timeline;
    const size_t most = timeline ? timeline->nrecords : 0;
    const uint64_t own = digest_of(exchange->group);
    ended_t *list = lap_alloc(most, sizeof(*list));
    *count_p = 0;
    for (size_t i = 0; list && i < most; i++) {
        const lap_trace_record_t *record = &timeline->records[i];
        if (record->count > 0)
            list[(*count_p)++] =
                (ended_t){lap_record_start(record),
                          record->kind == LAP_STEP_WAIT ? record->span.end : record->span.begin,
                          record->group.digest == own};
    }
    if (list)
        qsort(list, *count_p, sizeof(*list), compare_ended);
    return list;
}

/*
 * A pause belongs to the group whose wait was the last to end before the rank went on; what was before that wait, to
 * the one whose wait was the last to end until then. Adds the parts of others. `count` waits end until `end`.
 */
static void add_others(lap_intervals_t *others, uint64_t begin, uint64_t end, const ended_t *list,
                       size_t count)
{
    for (; count > 0 && begin < end && list[count - 1].end > begin; count--) {
        const ended_t *last = &list[count - 1];
        const uint64_t from = last->begin > begin ? last->begin : begin;
        if (last->end > end || from >= end)
            continue;
        if (!last->own)
            lap_intervals_add(others, from, end);
        end = from;
    }
}

static lap_status_t find_others(explaining_t *explaining)
{
    const lap_intervals_t *work = &explaining->work;
    size_t count, until = 0;
    ended_t *list = list_ended(explaining->exchange, &count);
    for (size_t i = 0; list && i + 1 < work->count; i++) {
        const uint64_t begin = work->list[i].end, end = work->list[i + 1].begin;
        while (until < count && list[until].end <= end)
            until++;
        add_others(&explaining->others, begin, end, list, until);
    }
    const bool failed = !list || explaining->others.failed;
    lap_free(list);
    return failed ? no_memory(explaining->exchange->all) : LAP_OK;
}

/* Adds those of a list that overlap a call. */
static void add_within(lap_intervals_t *list, const lap_intervals_t *from,
                       const lap_trace_call_t *call)
{
    for (size_t i = 0; i < from->count; i++)
        if (from->list[i].end > call->begin && from->list[i].begin < call->end)
            lap_intervals_add(list, from->list[i].begin, from->list[i].end);
}

/*
 * What is no pause of a call: other work, pauses of other groups, the time of calls before it, and the bubbles of a
 * pipeline.
 */
static lap_intervals_t list_spent(const explaining_t *explaining, const lap_trace_call_t *own)
{
    lap_intervals_t spent = {.list = NULL};
    lap_intervals_append(&spent, &explaining->calls);
    add_within(&spent, &explaining->work, own);
    add_within(&spent, &explaining->others, own);
    /* A call may have raised its first signals before the bubble in which its input came. */
    lap_intervals_append(&spent, &explaining->exchange->model->times.bubbles);
    return spent;
}

static void add_view(const lap_trace_view_t *view, lap_comm_times_t *times, lap_train_comm_t *row)
{
    row->waited += (double)view->waited_ns * 1e-9;
    for (int c = 0; c < LAP_CAUSES; c++)
        row->causes[c] += (double)view->cause_ns[c] * 1e-9;
    lap_comm_times_explain(times, view);
}

/* What of these records was in flight from this rank or to it, and what of that while it computed, in whichever call or kernel. */
static lap_status_t add_flights(const explaining_t *explaining, lap_comm_times_t *times,
                                lap_train_comm_t *row)
{
    static const lap_interval_t always = {0, UINT64_MAX};
    const exchange_t *exchange = explaining->exchange;
    const int rank = exchange->group->rank;
    lap_rank_times_t own = {.busy_ns = 0};
    lap_status_t status = lap_trace_times(&explaining->call, rank, rank + 1, &always, NULL, &own);
    lap_intervals_t exposed = lap_intervals_without(&own.flight, &explaining->work);
    row->total += (double)own.flight_ns * 1e-9;
    row->exposed += (double)lap_intervals_length(&exposed) * 1e-9;
    row->hidden = row->total - row->exposed;
    lap_comm_times_fly(times, &own.flight);
    if (exposed.failed && status == LAP_OK)
        status = no_memory(exchange->all);
    lap_intervals_clear(&exposed);
    lap_rank_times_clear(&own);
    return status;
}

static void add_bytes(const exchange_t *exchange, const lap_trace_t *own, int row, int kind)
{
    const double bytes = lap_trace_bytes(own);
    exchange->iteration->rows[row].bytes += bytes;
    if (kind < LAP_AXES)
        exchange->iteration->kinds[kind].bytes += bytes;
}

/* Calls may be in flight together, and a pause counts once, for the first of them. */
static lap_status_t explain_call(void *context, const lap_train_call_t *call)
{
    explaining_t *explaining = context;
    const exchange_t *exchange = explaining->exchange;
    lap_trace_t *trace = &explaining->call;
    lap_train_times_t *all = &exchange->model->times;
    lap_comm_times_t *times =
        call->row == LAP_TRAIN_MESSAGES ? &all->messages : &all->kinds[call->kind];
    lap_train_comm_t *row = &exchange->iteration->rows[call->row];
    lap_trace_view_t view = {.pauses = NULL};
    if (call->group != exchange->group)
        return LAP_OK;
    take_call(exchange->all, explaining->number++, explaining->ends, trace);
    lap_trace_trim(trace);
    add_bytes(exchange, call->trace, call->row, call->kind);
    LAP_TRY(add_flights(explaining, times, row));
    lap_intervals_t spent = list_spent(explaining, &trace->calls[exchange->group->rank]);
    const lap_status_t status = spent.failed
                                    ? no_memory(exchange->all)
                                    : lap_trace_view(trace, exchange->group->rank, &spent, &view);
    lap_intervals_clear(&spent);
    LAP_TRY(status);
    add_view(&view, times, row);
    lap_intervals_add(&explaining->calls, view.call.begin, view.call.end);
    lap_intervals_join(&explaining->calls);
    lap_trace_view_clear(&view);
    return LAP_OK;
}

/* The most records that one call has: those of each rank follow one another. */
static size_t most_of_a_call(const lap_trace_t *all)
{
    size_t sum = 0, most = 0, count = 0;
    for (size_t i = 0; i < all->nrecords; i++) {
        const lap_trace_record_t *record = &all->records[i], *before = i > 0 ? record - 1 : record;
        if (record->rank != before->rank) {
            sum += most;
            most = 0;
        }
        count =
            i > 0 && record->rank == before->rank && record->call == before->call ? count + 1 : 1;
        if (record->call != LAP_NO_CALL && count > most)
            most = count;
    }
    return sum + most;
}

/* With room for a call of `most` records. */
static lap_status_t explaining_init(explaining_t *explaining, const exchange_t *exchange,
                                    size_t most)
{
    const lap_trace_t *all = exchange->all;
    const size_t size = (size_t)all->size;
    *explaining = (explaining_t){
        .exchange = exchange,
        .call = {.size = all->size, .emulated = all->emulated, .work = &explaining->besides}};
    explaining->call.records = lap_alloc(most, sizeof(*explaining->call.records));
    explaining->call.calls = lap_alloc(size, sizeof(*explaining->call.calls));
    explaining->ends = lap_alloc(size, sizeof(*explaining->ends));
    lap_train_add_work(all, exchange->group->rank, &explaining->work);
    lap_intervals_join(&explaining->work);
    if (!explaining->call.records || !explaining->call.calls || !explaining->ends ||
        explaining->work.failed)
        return no_memory(all);
    find_ranks(all, explaining->ends);
    return lap_work_init(&explaining->besides, all);
}

static void explaining_clear(explaining_t *explaining)
{
    lap_free(explaining->call.records);
    lap_free(explaining->call.calls);
    lap_free(explaining->ends);
    lap_work_clear(&explaining->besides);
    lap_intervals_clear(&explaining->work);
    lap_intervals_clear(&explaining->others);
    lap_intervals_clear(&explaining->calls);
}

lap_status_t lap_train_explain(lap_train_model_t *model, lap_train_walk_t walk, lap_group_t *group,
                               lap_train_iteration_t *iteration)
{
    exchange_t exchange = {.model = model, .group = group, .iteration = iteration};
    explaining_t explaining = {.exchange = NULL};
    lap_status_t status = share(&exchange, join_calls(&exchange, walk));
    if (status == LAP_OK)
        status = explaining_init(&explaining, &exchange, most_of_a_call(exchange.all));
    if (status == LAP_OK)
        status = find_others(&explaining);
    if (status == LAP_OK)
        status = walk(model, explain_call, &explaining);
    explaining_clear(&explaining);
    lap_trace_destroy(exchange.all);
    return status;
}

/* ---- gradients ---- */

/* Buckets go one after another through the same streams: they are looked at together, for the time of one wait. */
static lap_status_t explain_wait(const exchange_t *exchange, lap_interval_t *wait)
{
    explaining_t explaining;
    lap_comm_times_t *times = &exchange->model->times.kinds[LAP_AXIS_DP];
    lap_train_comm_t *row = &exchange->iteration->rows[LAP_TRAIN_GRADIENTS];
    lap_trace_view_t view = {.idle = {.list = wait, .count = wait->begin < wait->end},
                             .waited_ns = wait->end - wait->begin};
    lap_status_t status = explaining_init(&explaining, exchange, exchange->all->nrecords);
    lap_trace_t *trace = &explaining.call;
    for (size_t i = 0; status == LAP_OK && i < exchange->all->nrecords; i++)
        if (exchange->all->records[i].call != LAP_NO_CALL)
            trace->records[trace->nrecords++] = exchange->all->records[i];
    if (status == LAP_OK) {
        lap_trace_trim(trace);
        status = add_flights(&explaining, times, row);
    }
    if (status == LAP_OK)
        status = lap_trace_find_causes(trace, exchange->group->rank, &view);
    if (status == LAP_OK)
        add_view(&view, times, row);
    lap_free(view.pauses);
    explaining_clear(&explaining);
    return status;
}

lap_status_t lap_train_explain_gradients(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    exchange_t exchange = {
        .model = model, .group = model->trainer.groups.replicas, .iteration = iteration};
    lap_interval_t wait;
    lap_status_t status = lap_dp_gradients(model->trainer.dp, &exchange.all, &wait);
    if (status == LAP_OK)
        add_bytes(&exchange, exchange.all, LAP_TRAIN_GRADIENTS, LAP_AXIS_DP);
    status = share(&exchange, status);
    if (status == LAP_OK)
        status = explain_wait(&exchange, &wait);
    lap_trace_destroy(exchange.all);
    return status;
}
