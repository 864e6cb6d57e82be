/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from the records of a timeline: which put released which wait, what was hidden, and the
 * critical path across ranks. Sorting makes it quick: a step of many ranks has 10^5 records and more.
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

/* A word that is raised: of whom, by whom, in which call. */
typedef struct word {
    int32_t base, stride;
    uint32_t call;
    int32_t from, to;
    uint32_t signal;
} word_t;

static int compare_words(const word_t *a, const word_t *b)
{
    const int64_t x[] = {a->base, a->stride, a->call, a->from, a->to, a->signal};
    const int64_t y[] = {b->base, b->stride, b->call, b->from, b->to, b->signal};
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static word_t raised_word(const lap_trace_record_t *record)
{
    return (word_t){record->base, record->stride, record->call,
                    record->rank, record->peer,   record->signal};
}

static word_t awaited_word(const lap_trace_record_t *record)
{
    return (word_t){record->base, record->stride, record->call,
                    record->from, record->rank,   record->awaited};
}

static int by_word(const void *left, const void *right)
{
    const sorted_t *a = left, *b = right;
    const word_t one = raised_word(a->record), other = raised_word(b->record);
    int order = compare_words(&one, &other);
    if (order == 0)
        order = compare_numbers(lap_record_delivered(a->record), lap_record_delivered(b->record));
    return order ? order : compare_numbers(a->index, b->index);
}

/* All records that `wanted` says, sorted; NULL: no memory. */
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

/* ---- who released whom ---- */

static bool raises(const lap_trace_record_t *record)
{
    return record->signal != LAP_NO_SIGNAL && record->stride != 0 && record->peer >= 0 &&
           record->kind != LAP_STEP_WAIT;
}

static lap_status_t match_signals(lap_analysis_t *analysis)
{
    const lap_trace_t *timeline = analysis->timeline;
    size_t count;
    sorted_t *list = sort(timeline, raises, by_word, &count);
    if (!list)
        return no_memory(timeline);
    for (size_t i = 0; i < timeline->nrecords; i++) {
        const lap_trace_record_t *record = &timeline->records[i];
        analysis->released_by[i] = LAP_NO_STEP;
        if (record->count == 0 || record->stride == 0)
            continue;
        const word_t word = awaited_word(record);
        size_t low = 0, high = count;
        while (low < high) {
            const size_t middle = low + (high - low) / 2;
            const word_t other = raised_word(list[middle].record);
            if (compare_words(&other, &word) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        low += record->count - 1;
        const word_t found = low < count ? raised_word(list[low].record) : word;
        if (low < count && compare_words(&found, &word) == 0)
            analysis->released_by[i] = list[low].index;
    }
    lap_free(list);
    return LAP_OK;
}

/* ---- what was hidden ---- */

static lap_status_t find_times(lap_analysis_t *analysis)
{
    const lap_trace_t *timeline = analysis->timeline;
    for (size_t i = 0; i < timeline->nrecords; i++) { /* how many there are at most */
        const lap_trace_record_t *record = &timeline->records[i];
        analysis->ranks[record->rank].nbusy += lap_step_computes(record->kind, record->stream);
        analysis->ranks[record->rank].ncomm += record->flight.end != 0;
        if (record->flight.end && record->peer >= 0 && record->peer < timeline->size)
            analysis->ranks[record->peer].ncomm++;
    }
    for (int r = 0; r < timeline->size; r++) {
        lap_rank_times_t *times = &analysis->ranks[r];
        times->busy = lap_alloc(times->nbusy, sizeof(*times->busy));
        times->comm = lap_alloc(times->ncomm, sizeof(*times->comm));
        times->exposed = lap_alloc(times->nbusy + times->ncomm + 1, sizeof(*times->exposed));
        times->nbusy = times->ncomm = 0;
        if (!times->busy || !times->comm || !times->exposed)
            return no_memory(timeline);
    }
    for (size_t i = 0; i < timeline->nrecords; i++) {
        const lap_trace_record_t *record = &timeline->records[i];
        lap_rank_times_t *own = &analysis->ranks[record->rank];
        if (lap_step_computes(record->kind, record->stream))
            lap_intervals_add(own->busy, &own->nbusy, record->span.begin, record->span.end);
        if (record->flight.end && record->peer != record->rank) {
            lap_intervals_add(own->comm, &own->ncomm, record->flight.begin, record->flight.end);
            if (record->peer >= 0 && record->peer < timeline->size) {
                lap_rank_times_t *peer = &analysis->ranks[record->peer];
                lap_intervals_add(peer->comm, &peer->ncomm, record->flight.begin,
                                  record->flight.end);
            }
        }
    }
    for (int r = 0; r < timeline->size; r++) {
        lap_rank_times_t *times = &analysis->ranks[r];
        times->nbusy = lap_intervals_join(times->busy, times->nbusy);
        times->ncomm = lap_intervals_join(times->comm, times->ncomm);
        times->nexposed = lap_intervals_without(times->comm, times->ncomm, times->busy,
                                                times->nbusy, times->exposed);
        times->busy_ns = lap_intervals_length(times->busy, times->nbusy);
        times->comm_ns = lap_intervals_length(times->comm, times->ncomm);
        times->exposed_ns = lap_intervals_length(times->exposed, times->nexposed);
    }
    return LAP_OK;
}

double lap_analysis_hidden(const lap_analysis_t *analysis)
{
    double comm = 0, exposed = 0;
    for (int r = 0; r < analysis->timeline->size; r++) {
        comm += (double)analysis->ranks[r].comm_ns;
        exposed += (double)analysis->ranks[r].exposed_ns;
    }
    return comm > 0 ? 1 - exposed / comm : 1;
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
    if (analysis->npath == walk->room) {
        const size_t room = walk->room ? 2 * walk->room : 256;
        lap_path_piece_t *path = lap_realloc(analysis->path, walk->room, room, sizeof(*path));
        walk->failed = !path;
        if (!path)
            return;
        analysis->path = path;
        walk->room = room;
    }
    analysis->path[analysis->npath++] = (lap_path_piece_t){kind, rank, record, begin, walk->at};
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
    LAP_TRY(match_signals(analysis));
    LAP_TRY(find_times(analysis));
    return find_path(analysis);
}

void lap_analysis_clear(lap_analysis_t *analysis)
{
    for (int r = 0; analysis->ranks && r < analysis->timeline->size; r++) {
        lap_free(analysis->ranks[r].busy);
        lap_free(analysis->ranks[r].comm);
        lap_free(analysis->ranks[r].exposed);
    }
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
