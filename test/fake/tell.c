/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fake driver tells of graphs, their launches and all that it was asked for, in the files FAKE_GRAPHS,
 * FAKE_LAUNCHES and FAKE_COUNTS: see fake.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "device/cuda/cuda_kernels.h"
#include "graph.h"

/* Whether a stream of a graph has reached what is after an op, or, backward, what is before it. */
typedef struct {
    const struct stream *branch;
    bool related;
} relation_t;

enum { RELATIONS = 64 };

static bool *relation_of(relation_t *relations, const struct stream *branch)
{
    int i = 0;
    while (relations[i].branch && relations[i].branch != branch)
        if (++i == RELATIONS)
            abort();
    relations[i].branch = branch;
    return &relations[i].related;
}

/* How much comes after ops[i], step 1, or before it, step -1. */
static int count_related(op_t *const *ops, int count, int i, int step, int marks)
{
    relation_t branches[RELATIONS] = {{NULL, false}};
    bool *marked = calloc((size_t)marks + 1, sizeof(*marked));
    int related = 0;
    const int from = step > 0 ? RECORD : AWAIT, to = step > 0 ? AWAIT : RECORD;
    *relation_of(branches, ops[i]->branch) = true;
    for (i += step; i >= 0 && i < count; i += step) {
        bool *has = relation_of(branches, ops[i]->branch);
        if ((int)ops[i]->kind == to)
            *has = *has || marked[ops[i]->mark];
        else if ((int)ops[i]->kind == from && *has)
            marked[ops[i]->mark] = true;
        related += *has && ops[i]->kind == WORK;
    }
    free(marked);
    return related;
}

static bool counts_calls(const op_t *op)
{
    const void *args = op->args;
    if (op->kind != WORK)
        return false;
    if (op->work == fake_kernel("lap_signal")->work)
        return ((const lap_cuda_signals_t *)args)->ncounted > 0;
    if (op->work == fake_kernel("lap_multicast")->work)
        return ((const lap_cuda_multicast_t *)args)->signals.ncounted > 0;
    if (op->work == fake_kernel("lap_sum")->work)
        return ((const lap_cuda_sum_t *)args)->signals.ncounted > 0;
    return op->work == fake_kernel("lap_advance")->work;
}

/* How much of a graph comes after the kernel that counts the call, and how much may run at the same time. */
static void relate(const graph_t *graph, int *behind_p, int *beside_p)
{
    int count = 0, at = -1, work = 0;
    for (const op_t *op = graph->first; op; op = op->next)
        count++;
    op_t **ops = calloc((size_t)count + 1, sizeof(op_t *));
    count = 0;
    for (op_t *op = graph->first; op; op = op->next) {
        at = counts_calls(op) ? count : at;
        work += op->kind == WORK;
        ops[count++] = op;
    }
    if (at >= 0) {
        *behind_p = count_related(ops, count, at, 1, graph->marks);
        *beside_p = work - 1 - *behind_p - count_related(ops, count, at, -1, graph->marks);
    }
    free(ops);
}

void fake_tell_graph(const graph_t *graph)
{
    static const char *const names[] = {"lap_wait", "lap_raise", "lap_stamp"};
    enum { NAMES = sizeof(names) / sizeof(names[0]) };
    int sets = 0, after = 0, parallel = 0;
    const char *path = getenv("FAKE_GRAPHS");
    FILE *file = path ? fopen(path, "ae") : NULL;
    int counts[NAMES + 1] = {0};
    if (!file)
        return;
    for (const op_t *op = graph->first; op; op = op->next) {
        int i = 0;
        while (i < NAMES && fake_kernel(names[i])->work != op->work)
            i++;
        counts[i] += op->kind == WORK && op->work != fake_memset;
        sets += op->kind == WORK && op->work == fake_memset;
    }
    counts[NAMES] += graph->added != NULL;
    relate(graph, &after, &parallel);
    fprintf(file, "%d %d %d %d %d %d %d\n", counts[0], counts[1], counts[2], counts[NAMES], sets,
            after, parallel);
    fclose(file);
}

void fake_tell_launch(void)
{
    const char *path = getenv("FAKE_LAUNCHES");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
}

static atomic_size_t counted[FAKE_COUNTS];

void fake_count(fake_count_t what, size_t amount)
{
    atomic_fetch_add(&counted[what], amount);
}

__attribute__((destructor)) static void tell_counts(void)
{
    static const char *const names[FAKE_COUNTS] = {
        [FAKE_WORK] = "work",          [FAKE_RECORDS] = "records", [FAKE_AWAITS] = "awaits",
        [FAKE_STREAMS] = "streams",    [FAKE_EVENTS] = "events",   [FAKE_INSTANTIATED] = "graphs",
        [FAKE_LAUNCHED] = "launches",  [FAKE_BLOCKS] = "blocks",   [FAKE_BYTES] = "bytes",
        [FAKE_PINNED] = "pinned_bytes"};
    const char *path = getenv("FAKE_COUNTS");
    FILE *file = path && counted[FAKE_STREAMS] > 0 ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    for (int i = 0; i < FAKE_COUNTS; i++)
        fprintf(file, "%s%s %zu", i ? " " : "", names[i], counted[i]);
    fprintf(file, "\n");
    fclose(file);
}
