/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/intervals.h"

#include <stdlib.h>

#include "util/alloc.h"

void lap_intervals_clear(lap_intervals_t *list)
{
    lap_free(list->list);
    *list = (lap_intervals_t){.list = NULL};
}

void lap_intervals_add(lap_intervals_t *list, uint64_t begin, uint64_t end)
{
    if (begin >= end || list->failed)
        return;
    lap_interval_t *grown = lap_grow(list->list, list->count, &list->room, sizeof(*grown));
    list->failed = !grown;
    if (!grown)
        return;
    list->list = grown;
    grown[list->count++] = (lap_interval_t){begin, end};
}

void lap_intervals_append(lap_intervals_t *list, const lap_intervals_t *other)
{
    list->failed = list->failed || other->failed;
    for (size_t i = 0; i < other->count; i++)
        lap_intervals_add(list, other->list[i].begin, other->list[i].end);
}

static int by_begin(const void *left, const void *right)
{
    const lap_interval_t *a = left, *b = right;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

void lap_intervals_join(lap_intervals_t *list)
{
    if (list->count == 0)
        return;
    qsort(list->list, list->count, sizeof(*list->list), by_begin);
    size_t last = 0;
    for (size_t i = 1; i < list->count; i++) {
        if (list->list[i].begin > list->list[last].end)
            list->list[++last] = list->list[i];
        else if (list->list[i].end > list->list[last].end)
            list->list[last].end = list->list[i].end;
    }
    list->count = last + 1;
}

lap_intervals_t lap_intervals_without(const lap_intervals_t *list, const lap_intervals_t *other)
{
    lap_intervals_t rest = {.failed = list->failed || other->failed};
    size_t first = 0;
    for (size_t i = 0; i < list->count; i++) {
        uint64_t at = list->list[i].begin;
        while (first < other->count && other->list[first].end <= at)
            first++;
        for (size_t j = first; j < other->count && other->list[j].begin < list->list[i].end; j++) {
            lap_intervals_add(&rest, at, other->list[j].begin);
            at = other->list[j].end;
        }
        lap_intervals_add(&rest, at, list->list[i].end);
    }
    return rest;
}

uint64_t lap_intervals_length(const lap_intervals_t *list)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < list->count; i++)
        sum += list->list[i].end - list->list[i].begin;
    return sum;
}
