/* SPDX-License-Identifier: Apache-2.0 */
/* What streams of the fake driver were given, and graphs of it: for stream.c, exec.c and nodes.c. */
#ifndef LAP_TEST_FAKE_GRAPH_H
#define LAP_TEST_FAKE_GRAPH_H

#include <stdatomic.h>
#include <time.h>

#include "fake.h"

/* An event that was recorded once. The event has it, and whatever was issued with it. */
typedef struct record {
    atomic_int users, done;
    struct timespec when;
} record_t;

typedef struct op {
    enum { WORK, RECORD, AWAIT, GRAPH } kind;
    bool waits;
    fake_work_t work;
    record_t *record;
    struct graph *graph;
    struct stream *branch; /* in a graph: whose it is, */
    int mark;              /* and the record that it makes or waits for */
    struct op *before;     /* known to nodes.c: the one before it in its branch; NULL: none, */
    struct op *record_op;  /* and the one that makes the record that it waits for */
    struct op *next;
    _Alignas(16) unsigned char args[];
} op_t;

/* An order that the graph was given besides that of its streams. */
typedef struct edge {
    const op_t *from, *to;
    struct edge *next;
} edge_t;

/* What was captured. The driver's graph has it, its executable form, each launch, and events. */
typedef struct graph {
    atomic_int users;
    atomic_bool ended; /* nothing more is captured in it */
    op_t *first, *last;
    const op_t *known; /* the ops up to here have `before` */
    int marks;
    op_t *added;   /* a kernel that no stream was given; NULL: none */
    edge_t *edges; /* that were added */
} graph_t;

/* Ends the process unless a kernel that was added comes before all else. */
void fake_check_added(graph_t *graph);

/* Adds a line about a graph to the file FAKE_GRAPHS, if there is one. */
void fake_tell_graph(const graph_t *graph);
void fake_tell_launch(void);

/* Drops a use of a record, or of a graph; the last one frees it. NULL is fine. */
void fake_drop_record(record_t *record);
void fake_drop_graph(graph_t *graph);

/* Issues a launch of a graph. */
CUresult fake_issue_graph(CUstream of, graph_t *graph);

/* Frees what was added. */
void fake_drop_added(graph_t *graph);

#endif
