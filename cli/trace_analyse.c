/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from the records of a timeline besides what was hidden: the critical path across ranks, and
 * what a simulation predicts of each. Sorting makes it quick: a step of many ranks has 10^5 records and more.
 */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "trace_file.h"
#include "util/alloc.h"

/* How long after the one before on its stream something may begin and still count as next. */
#define NEXT_NS 20000

/* ---- sorting ---- */

/* qsort has no context: records and what to sort by are those of the analysis at work here. */
typedef struct sorted {
    const lap_trace_record_t *record;
    uint32_t index;
} sorted_t;

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_lane(const void *left, const void *right)
{
    const sorted_t *a = left, *b = right;
    int order = compare_numbers((uint64_t)a->record->rank, (uint64_t)b->record->rank);
    if (order == 0)
        order = compare_numbers(a->record->stream, b->record->stream);
    if (order == 0)
        order = compare_numbers(a->record->span.begin, b->record->span.begin);
    if (order == 0)
        order = compare_numbers(a->record->span.end, b->record->span.end);
    return order ? order : compare_numbers(a->index, b->index);
}

static int by_end(const void *left, const void *right)
{
    const sorted_t *a = left, *b = right;
    int order = compare_numbers((uint64_t)a->record->rank, (uint64_t)b->record->rank);
    if (order == 0)
        order = compare_numbers(a->record->span.end, b->record->span.end);
    if (order == 0)
        order = compare_numbers(a->record->span.begin, b->record->span.begin);
    return order ? order : compare_numbers(a->index, b->index);
}

/* All records that are `wanted`, sorted; NULL: no memory. */
static sorted_t *sort(const lap_trace_t *timeline, bool (*wanted)(const lap_trace_record_t *),
                      int (*compare)(const void *, const void *), size_t *count_p)
{
    sorted_t *list = lap_alloc(timeline->nrecords, sizeof(*list));
    size_t count = 0;
    for (size_t i = 0; list && i < timeline->nrecords; i++)
        if (!wanted || wanted(&timeline->records[i]))
            list[count++] = (sorted_t){&timeline->records[i], (uint32_t)i};
    if (list)
        qsort(list, count, sizeof(*list), compare);
    *count_p = count;
    return list;
}

static lap_status_t no_memory(const lap_trace_t *timeline)
{
    return lap_error(LAP_ERR_NO_MEMORY, "no memory for a timeline of %zu records",
                     timeline->nrecords);
}

static lap_status_t find_order(lap_analysis_t *analysis)
{
    const lap_trace_t *timeline = analysis->timeline;
    size_t count;
    sorted_t *list = sort(timeline, NULL, by_lane, &count);
    if (!list)
        return no_memory(timeline);
    int rank = 0;
    for (size_t i = 0; i < count; i++) {
        analysis->order[i] = list[i].index;
        for (; rank <= list[i].record->rank; rank++)
            analysis->first[rank] = (uint32_t)i;
    }
    for (; rank <= timeline->size; rank++)
        analysis->first[rank] = (uint32_t)count;
    lap_free(list);
    return LAP_OK;
}

/* ---- what was hidden ---- */

double lap_analysis_hidden(const lap_analysis_t *analysis)
{
    double comm = 0, hidden = 0;
    for (int r = 0; r < analysis->timeline->size; r++) {
        comm += (double)analysis->ranks[r].flight_ns;
        hidden += (double)analysis->ranks[r].hidden_ns;
    }
    return comm > 0 ? hidden / comm : 1;
}

/* ---- the critical path ---- */

typedef struct walk {
    lap_analysis_t *analysis;
    sorted_t *ends; /* records but those of the host, by rank and end */
    size_t *first;  /* of each rank in it; one more at the end */
    size_t room;
    uint64_t at; /* everything from here on is on the path */
    bool failed;
} walk_t;

static bool has_run(const lap_trace_record_t *record)
{
    return record->kind != LAP_TRACE_HOST && record->span.end != 0;
}

/* What was before what is on the path already; pieces come latest first. */
static void add_piece(walk_t *walk, lap_path_kind_t kind, int rank, uint32_t record, uint64_t begin)
{
    lap_analysis_t *analysis = walk->analysis;
    if (begin >= walk->at || walk->failed)
        return;
    lap_path_piece_t *last = analysis->npath > 0 ? &analysis->path[analysis->npath - 1] : NULL;
    if (last && last->kind == LAP_PATH_IDLE && kind == LAP_PATH_IDLE && last->rank == rank) {
        last->begin = walk->at = begin;
        return;
    }
    lap_path_piece_t *path = lap_grow(analysis->path, analysis->npath, &walk->room, sizeof(*path));
    walk->failed = !path;
    if (!path)
        return;
    analysis->path = path;
    path[analysis->npath++] = (lap_path_piece_t){kind, rank, record, begin, walk->at};
    walk->at = begin;
}

/* The last of a rank's records to end at or before a moment, on one stream or any; or none. */
static uint32_t last_until(const walk_t *walk, int rank, int stream, uint64_t when, uint32_t but)
{
    size_t low = walk->first[rank], high = walk->first[rank + 1];
    const size_t begin = low;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (walk->ends[middle].record->span.end <= when)
            low = middle + 1;
        else
            high = middle;
    }
    while (low-- > begin) {
        const sorted_t *it = &walk->ends[low];
        if (it->index == but || it->record->span.begin == it->record->span.end)
            continue; /* nothing of no length is on the path: no circle can be */
        if (stream >= 0 && when - it->record->span.end > NEXT_NS)
            break;
        if (stream < 0 || it->record->stream == (uint32_t)stream)
            return it->index;
    }
    return LAP_NO_STEP;
}

/* What a record came after: on its stream, if that has just ended; else what ended last. */
static uint32_t before(const walk_t *walk, uint32_t index)
{
    const lap_trace_record_t *record = &walk->analysis->timeline->records[index];
    const uint32_t own = last_until(walk, record->rank, (int)record->stream, walk->at, index);
    return own != LAP_NO_STEP ? own : last_until(walk, record->rank, -1, walk->at, index);
}

/* From a record to the one that it waited for; LAP_NO_STEP: it did not. */
static uint32_t follow_wait(walk_t *walk, uint32_t index)
{
    const lap_trace_record_t *records = walk->analysis->timeline->records;
    const lap_trace_record_t *record = &records[index];
    const uint32_t by = walk->analysis->released_by[index];
    if (by == LAP_NO_STEP || lap_record_delivered(&records[by]) <= record->span.ready)
        return LAP_NO_STEP;
    const lap_trace_record_t *sender = &records[by];
    add_piece(walk, LAP_PATH_IDLE, record->rank, index, lap_record_delivered(sender));
    /* What is in line for a link that is busy is on its way, too. */
    if (sender->flight.end)
        add_piece(walk, LAP_PATH_FLIGHT, sender->rank, by,
                  sender->flight.begin < sender->span.end ? sender->flight.begin
                                                          : sender->span.end);
    return by;
}

static void walk_path(walk_t *walk, uint32_t index)
{
    const lap_trace_record_t *records = walk->analysis->timeline->records;
    size_t left = 4 * walk->analysis->timeline->nrecords + 64; /* more would be a circle */
    while (index != LAP_NO_STEP && left-- > 0 && !walk->failed) {
        const lap_trace_record_t *record = &records[index];
        if (record->kind != LAP_STEP_WAIT)
            add_piece(walk, LAP_PATH_RUN, record->rank, index, record->span.begin);
        uint32_t next = follow_wait(walk, index);
        if (next != LAP_NO_STEP) {
            index = next;
            continue;
        }
        if (record->kind == LAP_STEP_WAIT)
            add_piece(walk, LAP_PATH_IDLE, record->rank, index, record->span.ready);
        next = before(walk, index);
        if (next != LAP_NO_STEP)
            add_piece(walk, LAP_PATH_IDLE, record->rank, LAP_NO_STEP, records[next].span.end);
        index = next;
    }
}

static lap_status_t find_path(lap_analysis_t *analysis)
{
    const lap_trace_t *timeline = analysis->timeline;
    walk_t walk = {.analysis = analysis};
    size_t count;
    walk.ends = sort(timeline, has_run, by_end, &count);
    walk.first = lap_alloc((size_t)timeline->size + 1, sizeof(*walk.first));
    uint32_t last = LAP_NO_STEP;
    lap_status_t status = walk.ends && walk.first ? LAP_OK : no_memory(timeline);
    int rank = 0;
    for (size_t i = 0; i < count && status == LAP_OK; i++) {
        for (; rank <= walk.ends[i].record->rank; rank++)
            walk.first[rank] = i;
        if (last == LAP_NO_STEP || walk.ends[i].record->span.end > timeline->records[last].span.end)
            last = walk.ends[i].index;
    }
    for (; rank <= timeline->size && status == LAP_OK; rank++)
        walk.first[rank] = count;
    if (status == LAP_OK && last != LAP_NO_STEP) {
        walk.at = timeline->records[last].span.end;
        walk_path(&walk, last);
        status = walk.failed ? no_memory(timeline) : LAP_OK;
    }
    for (size_t i = 0; i < analysis->npath / 2; i++) { /* latest first becomes first first */
        const lap_path_piece_t swap = analysis->path[i];
        analysis->path[i] = analysis->path[analysis->npath - 1 - i];
        analysis->path[analysis->npath - 1 - i] = swap;
    }
    lap_free(walk.ends);
    lap_free(walk.first);
    return status;
}

/* ---- all of it ---- */

lap_status_t lap_analyse(const lap_trace_t *timeline, lap_analysis_t *analysis)
{
    static const lap_interval_t always = {0, UINT64_MAX};
    const size_t size = (size_t)timeline->size;
    *analysis = (lap_analysis_t){.timeline = timeline, .begin = UINT64_MAX};
    analysis->order = lap_alloc(timeline->nrecords, sizeof(*analysis->order));
    analysis->first = lap_alloc(size + 1, sizeof(*analysis->first));
    analysis->released_by = lap_alloc(timeline->nrecords, sizeof(*analysis->released_by));
    analysis->ranks = lap_alloc(size, sizeof(*analysis->ranks));
    if (!analysis->order || !analysis->first || !analysis->released_by || !analysis->ranks)
        return no_memory(timeline);
    for (size_t i = 0; i < timeline->nrecords; i++) {
        const lap_trace_record_t *record = &timeline->records[i];
        const uint64_t begin = lap_record_start(record);
        analysis->begin = begin < analysis->begin ? begin : analysis->begin;
        analysis->end = record->span.end > analysis->end ? record->span.end : analysis->end;
        analysis->end = record->flight.end > analysis->end ? record->flight.end : analysis->end;
    }
    if (timeline->nrecords == 0)
        analysis->begin = 0;
    LAP_TRY(find_order(analysis));
    LAP_TRY(lap_trace_match(timeline, analysis->released_by));
    LAP_TRY(lap_trace_times(timeline, 0, timeline->size, &always, NULL, analysis->ranks));
    return find_path(analysis);
}

void lap_analysis_clear(lap_analysis_t *analysis)
{
    for (int r = 0; analysis->ranks && r < analysis->timeline->size; r++)
        lap_rank_times_clear(&analysis->ranks[r]);
    lap_free(analysis->order);
    lap_free(analysis->first);
    lap_free(analysis->released_by);
    lap_free(analysis->ranks);
    lap_free(analysis->path);
    *analysis = (lap_analysis_t){.timeline = NULL};
}

/* ---- predictions ---- */

/* The same thing in two timelines: but for the time. */
static int compare_what(const lap_trace_record_t *a, const lap_trace_record_t *b)
{
    int order = compare_numbers((uint64_t)a->rank, (uint64_t)b->rank);
    if (order == 0)
        order = a->layer < b->layer ? -1 : a->layer > b->layer;
    if (order == 0)
        order = strcmp(a->name, b->name);
    if (order == 0)
        order = strcmp(a->op, b->op);
    if (order == 0)
        order = compare_numbers(a->kind, b->kind);
    return order ? order : compare_numbers(a->step, b->step);
}

static int by_what(const void *left, const void *right)
{
    const sorted_t *a = left, *b = right;
    int order = compare_what(a->record, b->record);
    if (order == 0)
        order = compare_numbers(a->record->span.begin, b->record->span.begin);
    return order ? order : compare_numbers(a->index, b->index);
}

/* The first of those that are alike in one list is the first of those in the other. */
lap_status_t lap_trace_predict(lap_trace_t *measured, const lap_trace_t *simulated)
{
    size_t nreal, nplayed, j = 0, same = 0;
    sorted_t *real = sort(measured, NULL, by_what, &nreal);
    sorted_t *played = sort(simulated, NULL, by_what, &nplayed);
    const lap_status_t status = real && played ? LAP_OK : no_memory(measured);
    for (size_t i = 0; i < nreal && status == LAP_OK; i++) {
        const lap_trace_record_t *own = real[i].record;
        if (i > 0 && compare_what(real[i - 1].record, own) != 0)
            same = 0;
        while (j < nplayed && compare_what(played[j].record, own) < 0)
            j++;
        size_t at = j + same++;
        while (at > j && (at >= nplayed || compare_what(played[at].record, own) != 0))
            at--; /* more were measured than played: the last one stands for them */
        if (at < nplayed && compare_what(played[at].record, own) == 0)
            measured->records[real[i].index].predicted_us =
                (float)((double)(played[at].record->span.end - played[at].record->span.begin) *
                        1e-3);
    }
    lap_free(real);
    lap_free(played);
    return status;
}
