/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that ranks gather through rank 0; or the failure by which there are none. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/hub/hub.h"
#include "util/alloc.h"

#define FRAME_MAGIC 0x4c61704d65657432u
/* For the answer of rank 0 to a failure, and for the rest of a frame. */
#define VERDICT_NS 2000000000u

/* What precedes all bytes after the proofs. */
typedef struct frame {
    uint64_t magic;
    int64_t status; /* of the sender; not LAP_OK: the bytes are its sentence */
    uint64_t bytes;
} frame_t;

lap_status_t lap_hub_send_frame(int fd, lap_status_t status, const void *data, size_t bytes,
                                lap_deadline_t *deadline)
{
    const frame_t frame = {.magic = FRAME_MAGIC, .status = status, .bytes = bytes};
    LAP_TRY(lap_stream_write(fd, &frame, sizeof(frame), deadline));
    return lap_stream_write(fd, data, bytes, deadline);
}

/* Whether a number of the wire is LAP_OK or a failure that this library knows. */
static bool is_verdict(int64_t status)
{
    static const int64_t known[] = {
#define KNOWN(name, value, text) value,
        LAP_STATUS_LIST(KNOWN)
#undef KNOWN
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i] == status)
            return status <= LAP_OK; /* LAP_IN_PROGRESS is neither */
    return false;
}

lap_status_t lap_hub_receive_frame(int fd, void *data, size_t bytes, bool *verdict_p,
                                   lap_deadline_t *deadline)
{
    frame_t frame;
    char text[LAP_ERROR_TEXT] = "";
    *verdict_p = false;
    LAP_TRY(lap_stream_read(fd, &frame, sizeof(frame), deadline));
    if (frame.magic != FRAME_MAGIC || !is_verdict(frame.status) ||
        frame.bytes != (frame.status == LAP_OK ? bytes : sizeof(text))) {
        errno = EPROTO;
        return LAP_ERR_PEER_LOST;
    }
    if (frame.status == LAP_OK)
        return lap_stream_read(fd, data, bytes, deadline);
    LAP_TRY(lap_stream_read(fd, text, sizeof(text), deadline));
    text[sizeof(text) - 1] = '\0';
    *verdict_p = true;
    return lap_error((lap_status_t)frame.status, "%s", text);
}

static void send_failure(int fd, lap_status_t status, const char *text)
{
    struct {
        frame_t frame;
        char text[LAP_ERROR_TEXT];
    } message = {.frame = {.magic = FRAME_MAGIC, .status = status, .bytes = LAP_ERROR_TEXT}};
    snprintf(message.text, sizeof(message.text), "%s", text);
    (void)send(fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void lap_hub_send_failure(int fd, lap_status_t status)
{
    send_failure(fd, status, lap_last_error());
}

static void fail_all(lap_hub_t *hub, lap_status_t status, const char *text)
{
    hub->failed = true;
    for (int rank = 1; rank < hub->size; rank++)
        if (hub->fds[rank] >= 0)
            send_failure(hub->fds[rank], status, text);
}

void lap_hub_fail_all(lap_hub_t *hub, lap_status_t status)
{
    fail_all(hub, status, lap_last_error());
}

/* "rank 2", or "rank 2 (pid 123)" where rank 0 knows it. Returns the text. */
static const char *name_of(const lap_hub_t *hub, int rank, char text[LAP_STREAM_TEXT])
{
    const int pid = hub->pids ? hub->pids[rank] : 0;
    snprintf(text, LAP_STREAM_TEXT, pid ? "rank %d (pid %d)" : "rank %d", rank, pid);
    return text;
}

lap_status_t lap_hub_lost(const lap_hub_t *hub, int rank)
{
    char name[LAP_STREAM_TEXT];
    return lap_error(LAP_ERR_PEER_LOST, "%s went away while the ranks were meeting",
                     name_of(hub, rank, name));
}

/* Of a frame of `rank` that did not come, or did not get there. */
static lap_status_t frame_failed(const lap_hub_t *hub, int rank, lap_status_t status)
{
    char name[LAP_STREAM_TEXT], within[LAP_LIMIT_TEXT];
    if (status == LAP_ERR_PEER_LOST)
        return lap_hub_lost(hub, rank);
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "%s came to the others but has not answered %s",
                         name_of(hub, rank, name),
                         lap_limit_within(&hub->limit, hub->timeout_ns, within));
    return status;
}

/*
 * Takes the frames as they come: a rank that fails ends it for all, and so does one that goes away.
 * When all have come all were still there after the others had sent theirs: pidfds opened before
 * are of the right processes.
 */
static lap_status_t host_collect(const lap_hub_t *hub, struct pollfd *polls, size_t bytes,
                                 char *all, lap_deadline_t *deadline)
{
    const int size = hub->size;
    int missing = size - 1, first = 1;
    polls[0] = (struct pollfd){.fd = -1};
    for (int rank = 1; rank < size; rank++)
        polls[rank] = (struct pollfd){.fd = hub->fds[rank], .events = POLLIN | POLLRDHUP};
    while (missing > 0) {
        lap_status_t status = lap_wait_polls(polls, size, deadline);
        while (!(polls[first].events & POLLIN))
            first++;
        if (status != LAP_OK)
            return frame_failed(hub, first, status);
        for (int rank = 1; rank < size; rank++) {
            bool verdict = false;
            if (!polls[rank].revents)
                continue;
            status = LAP_ERR_PEER_LOST;
            if (polls[rank].events & POLLIN)
                status = lap_hub_receive_frame(hub->fds[rank], all + (size_t)rank * bytes, bytes,
                                               &verdict, deadline);
            if (status != LAP_OK)
                return verdict ? status : frame_failed(hub, rank, status);
            polls[rank].events = POLLRDHUP;
            missing--;
        }
    }
    return LAP_OK;
}

static lap_status_t host_gather(lap_hub_t *hub, size_t bytes, char *all, lap_deadline_t *deadline)
{
    struct pollfd *polls = lap_alloc((size_t)hub->size, sizeof(*polls));
    lap_status_t status =
        polls ? host_collect(hub, polls, bytes, all, deadline)
              : lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", hub->size);
    lap_free(polls);
    if (status != LAP_OK) {
        lap_hub_fail_all(hub, status);
        return status;
    }
    for (int rank = 1; rank < hub->size; rank++) {
        status =
            lap_hub_send_frame(hub->fds[rank], LAP_OK, all, (size_t)hub->size * bytes, deadline);
        if (status == LAP_OK)
            continue;
        status = frame_failed(hub, rank, status);
        /* It may have a part of the frame, and would take the sentence for the rest. */
        close(hub->fds[rank]);
        hub->fds[rank] = -1;
        lap_hub_fail_all(hub, status);
        return status;
    }
    return LAP_OK;
}

lap_status_t lap_hub_gather(lap_hub_t *hub, const void *mine, size_t bytes, void *all,
                            lap_deadline_t *deadline)
{
    if (hub->rank == 0) {
        memcpy(all, mine, bytes);
        return host_gather(hub, bytes, all, deadline);
    }
    /*
     * What cannot be sent because rank 0 is gone is no failure yet: it may have left its sentence.
     */
    bool verdict = false;
    lap_status_t status = lap_hub_send_frame(hub->fds[0], LAP_OK, mine, bytes, deadline);
    if (status == LAP_OK || status == LAP_ERR_PEER_LOST)
        status =
            lap_hub_receive_frame(hub->fds[0], all, (size_t)hub->size * bytes, &verdict, deadline);
    return status == LAP_OK || verdict ? status : frame_failed(hub, 0, status);
}

lap_status_t lap_hub_report(lap_hub_t *hub, lap_status_t status, lap_deadline_t *deadline)
{
    char mine[LAP_ERROR_TEXT], text[LAP_ERROR_TEXT];
    bool verdict = false;
    if (hub->failed) /* all have learned of it */
        return status;
    hub->failed = true;
    snprintf(mine, sizeof(mine), "%s", lap_last_error());
    snprintf(text, sizeof(text), "rank %d: %.*s", hub->rank, LAP_ERROR_TEXT - 24, mine);
    if (hub->rank == 0) {
        fail_all(hub, status, text);
        return status;
    }
    send_failure(hub->fds[0], status, text);
    lap_deadline_part_t part = lap_deadline_begin_part(deadline, VERDICT_NS);
    const lap_status_t first = lap_hub_receive_frame(hub->fds[0], NULL, 0, &verdict, &part.until);
    lap_deadline_end_part(deadline, &part);
    if (verdict && strcmp(lap_last_error(), text) != 0)
        return first;
    /* Another rank that this one has lost may have ended because rank 0 did. */
    if (!verdict && first == LAP_ERR_PEER_LOST && status == LAP_ERR_PEER_LOST)
        return frame_failed(hub, 0, first);
    return lap_error(status, "%s", mine);
}

lap_status_t lap_hub_check(lap_hub_t *hub, int rank, int revents, bool *ready_p)
{
    const int fd = hub->fds[rank];
    const bool gone = revents & (POLLRDHUP | POLLHUP | POLLERR);
    lap_status_t status = LAP_ERR_PEER_LOST;
    bool verdict = false;
    frame_t frame;
    const ssize_t got = recv(fd, &frame, sizeof(frame), MSG_PEEK | MSG_DONTWAIT);
    const bool whole = got == sizeof(frame);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return LAP_OK;
    if (!gone && got > 0 && !whole)
        return LAP_OK; /* more will come */
    *ready_p = !gone && whole && frame.status == LAP_OK && hub->rank == 0;
    if (*ready_p)
        return LAP_OK;
    lap_deadline_t deadline = lap_deadline_after(VERDICT_NS);
    if (whole && frame.status != LAP_OK)
        status = lap_hub_receive_frame(fd, NULL, 0, &verdict, &deadline);
    if (!verdict)
        status = frame_failed(hub, rank, LAP_ERR_PEER_LOST);
    hub->failed = true;
    if (hub->rank == 0)
        lap_hub_fail_all(hub, status);
    return status;
}

lap_status_t lap_hub_check_all(lap_hub_t *hub)
{
    for (int rank = 0; rank < hub->size; rank++) {
        struct pollfd one = {.fd = hub->fds[rank], .events = POLLIN | POLLRDHUP};
        bool ready;
        if (poll(&one, 1, 0) > 0)
            LAP_TRY(lap_hub_check(hub, rank, one.revents, &ready));
    }
    return LAP_OK;
}
