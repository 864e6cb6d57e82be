/* SPDX-License-Identifier: Apache-2.0 */
/* Who released whom: the raise that each wait of a trace has waited for. */
#include <stdlib.h>

#include "core/status.h"
#include "schedule/trace.h"
#include "util/alloc.h"

/* A word that is raised: of whom, by whom, in which call. */
typedef struct word {
    uint64_t group; /* its digest */
    uint32_t call;
    int32_t from, to;
    uint32_t signal;
} word_t;

static int compare_words(const word_t *a, const word_t *b)
{
    const uint64_t x[] = {a->group, a->call, (uint64_t)a->from, (uint64_t)a->to, a->signal};
    const uint64_t y[] = {b->group, b->call, (uint64_t)b->from, (uint64_t)b->to, b->signal};
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static word_t raised_word(const lap_trace_record_t *record)
{
    return (word_t){record->group.digest, record->call, record->rank, record->peer, record->signal};
}

static word_t awaited_word(const lap_trace_record_t *record)
{
    return (word_t){record->group.digest, record->call, record->from, record->rank,
                    record->awaited};
}

/* What is sorted points to records, whose places in memory are their order. */
static int by_word(const void *left, const void *right)
{
    const lap_trace_record_t *a = *(const lap_trace_record_t *const *)left;
    const lap_trace_record_t *b = *(const lap_trace_record_t *const *)right;
    const word_t one = raised_word(a), other = raised_word(b);
    const uint64_t came = lap_record_delivered(a), then = lap_record_delivered(b);
    const int order = compare_words(&one, &other);
    if (order != 0 || came != then)
        return order != 0 ? order : came < then ? -1 : 1;
    return a < b ? -1 : a > b;
}

static bool raises(const lap_trace_record_t *record)
{
    return record->signal != LAP_NO_SIGNAL && record->group.size > 1 &&
           record->call != LAP_NO_CALL && record->peer >= 0 && record->kind != LAP_STEP_WAIT &&
           lap_record_delivered(record) != 0;
}

/* How many of sorted raises are of words before this one. */
static size_t count_before(const lap_trace_record_t *const *list, size_t count, const word_t *word)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const word_t other = raised_word(list[middle]);
        if (compare_words(&other, word) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

lap_status_t lap_trace_match(const lap_trace_t *trace, uint32_t *released_by)
{
    const lap_trace_record_t **list = lap_alloc(trace->nrecords, sizeof(const void *));
    size_t count = 0;
    if (!list)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the signals of %zu records",
                         trace->nrecords);
    for (size_t i = 0; i < trace->nrecords; i++)
        if (raises(&trace->records[i]))
            list[count++] = &trace->records[i];
    qsort(list, count, sizeof(const void *), by_word);
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        const word_t word = awaited_word(record);
        released_by[i] = LAP_NO_STEP;
        if (record->count == 0 || record->group.size < 2 || record->call == LAP_NO_CALL)
            continue;
        const size_t at = count_before(list, count, &word) + record->count - 1;
        const word_t found = at < count ? raised_word(list[at]) : word;
        if (at < count && compare_words(&found, &word) == 0)
            released_by[i] = (uint32_t)(list[at] - trace->records);
    }
    lap_free(list);
    return LAP_OK;
}
