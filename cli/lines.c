/* SPDX-License-Identifier: Apache-2.0 */
/* Whole lines of many ranks in one output: see lines.h. It knows nothing of processes. */
#include "lines.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "util/alloc.h"

typedef struct lap_outbox_chunk {
    struct lap_outbox_chunk *next;
    int fd;
    size_t begin, end;
    char bytes[32 << 10];
} chunk_t;

static chunk_t *chunk_append(lap_outbox_t *outbox, int fd)
{
    chunk_t *chunk = malloc(sizeof(*chunk));
    if (!chunk)
        return NULL;
    chunk->next = NULL;
    chunk->fd = fd;
    chunk->begin = chunk->end = 0;
    if (outbox->tail)
        outbox->tail->next = chunk;
    else
        outbox->head = chunk;
    outbox->tail = chunk;
    return chunk;
}

bool lap_outbox_add(lap_outbox_t *outbox, int fd, const char *bytes, size_t count)
{
    while (count > 0 && !outbox->broken[fd]) {
        chunk_t *chunk = outbox->tail;
        if (!chunk || chunk->fd != fd || chunk->end == sizeof(chunk->bytes))
            chunk = chunk_append(outbox, fd);
        if (!chunk)
            return false;
        size_t room = sizeof(chunk->bytes) - chunk->end;
        size_t part = count < room ? count : room;
        memcpy(chunk->bytes + chunk->end, bytes, part);
        chunk->end += part;
        outbox->pending += part;
        bytes += part;
        count -= part;
    }
    return true;
}

void lap_outbox_add_line(lap_outbox_t *outbox, const char *text)
{
    if (!lap_outbox_add(outbox, STDERR_FILENO, text, strlen(text)) ||
        !lap_outbox_add(outbox, STDERR_FILENO, "\n", 1))
        fprintf(stderr, "%s\n", text);
}

int lap_outbox_fd(const lap_outbox_t *outbox)
{
    return outbox->head ? outbox->head->fd : -1;
}

static void drop_head(lap_outbox_t *outbox)
{
    chunk_t *head = outbox->head;
    outbox->pending -= head->end - head->begin;
    outbox->head = head->next;
    if (!outbox->head)
        outbox->tail = NULL;
    free(head);
}

/* Drops the chunks of a descriptor that nobody reads; those of the other one stay. */
static void drop_broken(lap_outbox_t *outbox)
{
    lap_outbox_t rest = {0};
    while (outbox->head) {
        chunk_t *head = outbox->head;
        if (!outbox->broken[head->fd] &&
            !lap_outbox_add(&rest, head->fd, head->bytes + head->begin, head->end - head->begin))
            break;
        drop_head(outbox);
    }
    lap_outbox_clear(outbox);
    outbox->head = rest.head;
    outbox->tail = rest.tail;
    outbox->pending = rest.pending;
}

int lap_outbox_write(lap_outbox_t *outbox)
{
    chunk_t *head = outbox->head;
    if (!head)
        return 0;
    /* A pipe that polls writable takes PIPE_BUF bytes at once; more could block. */
    size_t count = head->end - head->begin;
    if (count > PIPE_BUF)
        count = PIPE_BUF;
    ssize_t written = write(head->fd, head->bytes + head->begin, count);
    if (written < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (written < 0) {
        int error = errno;
        outbox->broken[head->fd] = true;
        drop_broken(outbox);
        return error;
    }
    head->begin += (size_t)written;
    outbox->pending -= (size_t)written;
    if (head->begin == head->end)
        drop_head(outbox);
    return 0;
}

void lap_outbox_clear(lap_outbox_t *outbox)
{
    while (outbox->head)
        drop_head(outbox);
}

/* Writes prefix, the part of the line that is stored, `bytes`, and a newline. */
static bool emit(lap_lines_t *lines, lap_outbox_t *outbox, const char *bytes, size_t count)
{
    bool ok = lap_outbox_add(outbox, lines->to, lines->prefix, strlen(lines->prefix)) &&
              lap_outbox_add(outbox, lines->to, lines->part, lines->length) &&
              lap_outbox_add(outbox, lines->to, bytes, count) &&
              lap_outbox_add(outbox, lines->to, "\n", 1);
    lines->length = 0;
    return ok;
}

static bool keep(lap_lines_t *lines, const char *bytes, size_t count)
{
    char *part = lap_grow_by(lines->part, lines->length, count, &lines->room, 1);
    if (!part)
        return false;
    lines->part = part;
    memcpy(part + lines->length, bytes, count);
    lines->length += count;
    return true;
}

static bool split(lap_lines_t *lines, lap_outbox_t *outbox, const char *bytes, size_t count)
{
    while (count > 0) {
        size_t room = LAP_LINES_LONGEST - lines->length;
        size_t span = count < room ? count : room;
        const char *newline = memchr(bytes, '\n', span);
        bool ok;
        if (newline) {
            span = (size_t)(newline - bytes);
            ok = emit(lines, outbox, bytes, span++);
        } else if (span == room) {
            ok = emit(lines, outbox, bytes, span);
        } else {
            ok = keep(lines, bytes, span);
        }
        if (!ok)
            return false;
        bytes += span;
        count -= span;
    }
    return true;
}

/* Completes the last line and closes the pipe. */
static bool finish(lap_lines_t *lines, lap_outbox_t *outbox)
{
    bool ok = lines->length == 0 || emit(lines, outbox, NULL, 0);
    lap_lines_clear(lines);
    return ok;
}

bool lap_lines_read(lap_lines_t *lines, lap_outbox_t *outbox)
{
    char bytes[16 << 10];
    size_t room = sizeof(bytes);
    if (lines->limited && lines->left < room)
        room = lines->left;
    ssize_t count = read(lines->fd, bytes, room);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (count <= 0)
        return finish(lines, outbox);
    if (!split(lines, outbox, bytes, (size_t)count))
        return false;
    lines->left -= lines->limited ? (size_t)count : 0;
    return !lines->limited || lines->left > 0 || finish(lines, outbox);
}

bool lap_lines_limit(lap_lines_t *lines, lap_outbox_t *outbox)
{
    int there = 0;
    if (ioctl(lines->fd, FIONREAD, &there) != 0)
        there = 0;
    lines->limited = true;
    lines->left = (size_t)there;
    return there > 0 || finish(lines, outbox);
}

void lap_lines_clear(lap_lines_t *lines)
{
    if (lines->fd >= 0)
        close(lines->fd);
    lines->fd = -1;
    lap_free(lines->part);
    lines->part = NULL;
    lines->length = lines->room = 0;
}
