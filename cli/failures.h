/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why ranks have failed. A rank reports it to the launcher that has started it, and the launcher prints the sentence of
 * several ranks once, with their numbers.
 */
#ifndef LAP_CLI_FAILURES_H
#define LAP_CLI_FAILURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lines.h"

/* The failure of a rank. */
typedef struct lap_failure {
    int32_t rank;
    char name[32];   /* of its command: "lap bench" */
    char text[2048]; /* "peer lost: rank 1 has died; rank 0 waited in ..." */
} lap_failure_t;

/*
 * A rank of which standard error goes elsewhere than where the launcher put it, such as into a file of its own, prints
 * there. Writes "LAP_STDERR=..." for the environment of a rank, of the standard error that it begins with.
 */
void lap_failure_mark(char *text, size_t bytes);

/* Sends it to the launcher of the ranks that meet in `dir`. False: nobody listens. */
bool lap_failure_send(const char *dir, const lap_failure_t *failure);

/*
 * Sends one of this rank to its launcher, with options as they were typed. False: there is no launcher of ours, or it
 * does not listen, or its reader reads something else.
 */
bool lap_failure_report(const char *name, const char *sentence);

/* Failures that the launcher has received. */
typedef struct lap_failures {
    int fd;                    /* where they come; -1: nowhere, and ranks print by themselves */
    size_t room;               /* as many as there are ranks */
    struct lap_received *list; /* that has not been printed, by rank */
    size_t count;              /* in it */
    uint64_t since_ns;         /* the first of it came then */
} lap_failures_t;

void lap_failures_open(lap_failures_t *box, const char *dir, int nranks);
void lap_failures_close(lap_failures_t *box);

/* Takes what has come, as far as there is room. Whether there is something to print. */
bool lap_failures_read(lap_failures_t *box);

/* How long other ranks may still report the same, and no more than `most`; negative: no limit. */
int lap_failures_wait_ms(const lap_failures_t *box, int most);

/*
 * Writes the next line: the sentence of the first rank and of all that have the same: "lap bench: ranks 0,
 * 2-4: ...". Where they differ only in their own names, these become "each". What a rank reports of
 * itself and others repeat with its name is the same, too. Those that have the cause in common, which
 * is what comes before the first semicolon, and not the rest, have it in one line and the rest in the
 * next ones. False: nothing is left.
 */
#define LAP_FAILURES_LINE 8192
bool lap_failures_next(lap_failures_t *box, char line[LAP_FAILURES_LINE]);

/* Prints all that has come. Returns the number of its ranks. */
size_t lap_failures_print(lap_failures_t *box, lap_outbox_t *outbox);

#endif
