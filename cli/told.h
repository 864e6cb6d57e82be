/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why ranks have failed. A rank tells the launcher that has started it, and the launcher prints what
 * several of them say once, with the ranks that say so.
 */
#ifndef LAP_CLI_TOLD_H
#define LAP_CLI_TOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lines.h"

/* What one rank tells. */
typedef struct lap_told {
    int32_t rank;
    char name[32];   /* of its command: "lap bench" */
    char text[2048]; /* "peer lost: rank 1 has died; rank 0 waited in ..." */
} lap_told_t;

/*
 * A rank of which standard error goes elsewhere than where the launcher put it, such as into a file of its own, prints
 * there. Writes "LAP_STDERR=..." for the environment of a rank, of the standard error that it begins with.
 */
void lap_told_mark(char *text, size_t bytes);
/* Whether this rank has still that one. */
bool lap_told_is_marked(void);

/* Tells it to the launcher of the ranks that meet in `dir`. False: nobody hears it. */
bool lap_told_send(const char *dir, const lap_told_t *told);

/*
 * Tells the launcher of this rank, with options as they were typed. False: there is no launcher of ours, or it does not
 * hear, or its reader reads something else.
 */
bool lap_told_launcher(const char *name, const char *sentence);

/* What ranks have told. */
typedef struct lap_told_box {
    int fd;                   /* where it comes; -1: nowhere, and ranks print by themselves */
    size_t room;              /* as many as there are ranks */
    struct lap_told_in *list; /* that has not been printed, by rank */
    size_t count;             /* in it */
    uint64_t since_ns;        /* the first of it came then */
} lap_told_box_t;

void lap_told_open(lap_told_box_t *box, const char *dir, int nranks);
void lap_told_close(lap_told_box_t *box);

/* Takes what has come, as far as there is room. Whether there is something to print. */
bool lap_told_read(lap_told_box_t *box);

/* How long others may still tell the same, and no more than `most`; negative: no limit. */
int lap_told_wait_ms(const lap_told_box_t *box, int most);

/*
 * Writes the next line: what the first rank says, and all that say the same: "lap bench: ranks 0,
 * 2-4: ...". Where they differ only in their own names, these become "each". What a rank says of
 * itself and others repeat with its name is the same, too. Those that have the cause in common, which
 * is what comes before the first semicolon, and not the rest, have it in one line and the rest in the
 * next ones. False: nothing is left.
 */
#define LAP_TOLD_LINE 8192
bool lap_told_next(lap_told_box_t *box, char line[LAP_TOLD_LINE]);

/* Prints all that has come. Returns how many ranks have told it. */
size_t lap_told_print(lap_told_box_t *box, lap_outbox_t *outbox);

#endif
