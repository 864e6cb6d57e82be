/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of many ranks as whole lines. A lap_lines_t cuts what one pipe brings into lines and
 * puts a prefix before each; an outbox holds them, in order, until they can be written without
 * blocking.
 */
#ifndef LAP_CLI_LINES_H
#define LAP_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct lap_outbox_chunk;

/* Output for standard output and standard error. All zero is an empty one. */
typedef struct lap_outbox {
    struct lap_outbox_chunk *head, *tail;
    size_t pending;
    bool broken[3]; /* by descriptor: nobody reads it any more, what comes for it is dropped */
} lap_outbox_t;

/* Above this many pending bytes nothing more should be read: whoever prints has to wait. */
#define LAP_OUTBOX_FULL ((size_t)1 << 20)

/* Appends bytes for descriptor 1 or 2. False when there is no memory. */
bool lap_outbox_add(lap_outbox_t *outbox, int fd, const char *bytes, size_t count);

/* Appends a line for standard error, or writes it there when there is no memory. */
void lap_outbox_add_line(lap_outbox_t *outbox, const char *text);

/* The descriptor to write to next, or -1 when nothing is pending. */
int lap_outbox_fd(const lap_outbox_t *outbox);

/*
 * Writes some of what is pending, so little that it does not block after POLLOUT.
 * Returns 0, or the errno with which lap_outbox_fd broke; what was pending for it is dropped.
 */
int lap_outbox_write(lap_outbox_t *outbox);

/* Drops all that is pending. */
void lap_outbox_clear(lap_outbox_t *outbox);

typedef struct lap_lines {
    int fd;          /* what to read; -1 when it has ended */
    int to;          /* 1 or 2 */
    char prefix[16]; /* "[3] " */
    char *part;      /* a line that has not ended yet */
    size_t length, room;
    bool limited; /* only `left` more bytes are taken */
    size_t left;
} lap_lines_t;

/* Lines longer than this are broken into several. */
#define LAP_LINES_LONGEST ((size_t)64 << 10)

/* Reads once, and puts the lines that are complete into the outbox. False: no memory. */
bool lap_lines_read(lap_lines_t *lines, lap_outbox_t *outbox);

/* Takes only what the pipe holds at this moment, however many processes still have it open. */
bool lap_lines_limit(lap_lines_t *lines, lap_outbox_t *outbox);

/* Closes the pipe and frees the memory; a line without an end is not written any more. */
void lap_lines_clear(lap_lines_t *lines);

#endif
