/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport: how symmetric buffers are made and how ranges and signals get into a peer's, as a
 * table that each transport fills. put, raise and wait are issued in the order of a stream and
 * return at once.
 */
#ifndef LAP_TRANSPORT_TRANSPORT_H
#define LAP_TRANSPORT_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include <lap/buffer.h>
#include <lap/op.h>

#include "core/world.h"
#include "device/device.h"
#include "transport/facts.h"

struct lap_buffer {
    const struct lap_transport_ops *ops;
    lap_group_t *group;
    size_t bytes;
    size_t nsignals;
    lap_region_t *regions; /* size of the group; regions[r] is rank r's memory */
    char **data;           /* data[r]: the bytes of rank r; NULL: cannot be addressed */
    lap_bank_t **banks;    /* banks[r]: the signal words of rank r; NULL: as above */
    lap_call_record_t *
        *records; /* records[r]: LAP_CALL_RECORDS of rank r, or its latest report of them */
    lap_call_place_t place; /* where they are looked for */
    uint32_t *consumed;     /* per word of this rank: raises that earlier calls used up */
    uint32_t calls;         /* calls begun on this buffer, */
    bool unnumbered;        /* which are counted no more: a graph of the caller's has some */
    unsigned in_flight;     /* of those, not yet ended */
    uint32_t id;            /* among the buffers of the group */
    uint32_t nops;          /* operators made on this buffer, */
    bool background;        /* all of which are in the background, or none */
    size_t reserved;        /* words from 0 that belong to its operators */
    size_t reserved_bytes;  /* and bytes */
    size_t keepers;         /* operators that were made on it and are still there */
    bool is_destroyed;      /* by its owner: it goes with the last of them */
    bool broken;            /* a call failed half-way: its signals can no longer be counted on */
    bool no_graphs;         /* every call must be issued step by step */
    lap_link_t link;
    struct lap_pacer *pacer; /* of the link */
    void *backend;           /* the transport's own */
    struct lap_slot *slot;   /* where packets of other hosts come in; NULL: nowhere */
};

/* Around the life of what is made on a buffer: one that is destroyed before goes with the last. */
lap_buffer_t *lap_buffer_keep(lap_buffer_t *buffer);
void lap_buffer_let_go(lap_buffer_t *buffer);

static inline bool lap_buffer_is_paced(const lap_buffer_t *buffer)
{
    return buffer->link.bytes_per_s > 0 || buffer->link.latency_s > 0;
}

/* For the sentence of a wait that fails: what was being done. */
typedef struct lap_wait_reason {
    const char *op;     /* "ag_gemm" */
    const char *method; /* "ring" */
    uint32_t step;      /* index in the schedule */
    uint32_t call;      /* number of the call on the buffer */
    uint32_t op_index;  /* which operator, and its active rows: the peer must have the same */
    uint64_t m;
    void (*name_signal)(int size, uint32_t signal, char *text, size_t bytes);
    uint64_t tag;    /* lap_call_tag of the three above: what the peer's signals must carry */
    uint64_t number; /* of the call among those of the group; 0: it is not counted */
    bool all;        /* no rank ends the call before all have begun it */
} lap_wait_reason_t;

/* One number for a call, so that two different ones differ. */
uint64_t lap_call_tag(uint32_t call, uint32_t op_index, uint64_t m);

/* Rows from this rank's memory into that of `peer`, where the first begins at `offset`. */
typedef struct lap_put {
    const void *src;
    size_t src_stride;
    size_t offset;
    size_t dst_stride;
    size_t rows, row_bytes;
    int peer;
    uint32_t signal;  /* LAP_NO_SIGNAL: the next signal to this peer speaks for this put too */
    uint64_t tag;     /* of the call, for the peer to compare with its own */
    lap_span_t *span; /* when not NULL: when the transfer began and was, or would be, delivered */
    int sms;          /* as in lap_copy_t, */
    bool together;    /* and this */
} lap_put_t;

typedef struct lap_raise {
    int peer;
    uint32_t signal;
    uint64_t tag;     /* as in lap_put_t */
    size_t bytes;     /* what the signal announces and a link must carry; 0 for a mere credit */
    lap_span_t *span; /* as in lap_put_t */
} lap_raise_t;

/* The signal of a put, as one of its own that announces so many bytes. */
static inline lap_raise_t lap_put_raise(const lap_put_t *put, size_t bytes)
{
    return (lap_raise_t){.peer = put->peer,
                         .signal = put->signal,
                         .tag = put->tag,
                         .bytes = bytes,
                         .span = put->span};
}

typedef struct lap_wait {
    int peer;                        /* who is expected to raise it */
    uint32_t signal;                 /* word of this rank */
    uint32_t target;                 /* absolute value, as consumed[] counts */
    const lap_wait_reason_t *reason; /* must live until the wait has ended */
    uint32_t count;                  /* target less consumed[]: raises of this call */
} lap_wait_t;

typedef struct lap_transport_ops {
    const char *name;
    const char *summary; /* a line for `lap info` */
    unsigned can;        /* LAP_CAN_... */
    const char *device;  /* whose memory it reaches, and no other; NULL: that of hosts */
    unsigned (*group_can)(const lap_group_t *group); /* (optional) more LAP_CAN_..., of a group */

    /*
     * Fills regions, data, banks and records. Collective over buffer->group; a failure
     * leaves nothing allocated.
     */
    lap_status_t (*buffer_create)(lap_buffer_t *buffer);
    void (*buffer_destroy)(lap_buffer_t *buffer);

    /* Brings this rank's record of a call to the ranks that cannot read it in place. */
    void (*send_record)(lap_buffer_t *buffer, const lap_wait_reason_t *reason);

    /*
     * What follows in the calling thread, for hosts that signal from within a GEMM and for callers
     * without a stream.
     */
    lap_status_t (*put_now)(lap_buffer_t *buffer, const lap_put_t *put);
    lap_status_t (*raise_now)(lap_buffer_t *buffer, const lap_raise_t *raise);
    lap_status_t (*wait_now)(lap_buffer_t *buffer, const lap_wait_t *wait);

    /* The same, in the order of a stream. */
    lap_status_t (*put)(lap_buffer_t *buffer, const lap_device_ops_t *device, lap_stream_t *stream,
                        const lap_put_t *put);
    lap_status_t (*raise)(lap_buffer_t *buffer, const lap_device_ops_t *device,
                          lap_stream_t *stream, const lap_raise_t *raise);
    lap_status_t (*wait)(lap_buffer_t *buffer, const lap_device_ops_t *device, lap_stream_t *stream,
                         const lap_wait_t *wait);

    /*
     * (of a device whose facts say that it counts_signals) Comes after all signals of a call on
     * the stream: word i was raised raised[i] times in it.
     */
    lap_status_t (*end_signals)(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                lap_stream_t *stream, const uint32_t *raised, size_t nsignals);
    /* Begins to emulate buffer->link: lap_link_begin, but where that cannot. See link.h. */
    lap_status_t (*link_begin)(lap_buffer_t *buffer);
} lap_transport_ops_t;

/* The transports of this build, in the order in which they are listed; NULL past the last one. */
const lap_transport_ops_t *lap_transport_at(size_t index);

/* Whether a transport reaches the memory of a device. */
bool lap_transport_fits(const lap_transport_ops_t *ops, const lap_device_ops_t *device);

/* What it can do between the ranks of a group: LAP_CAN_... */
unsigned lap_transport_can(const lap_transport_ops_t *ops, const lap_group_t *group);

static inline unsigned lap_buffer_can(const lap_buffer_t *buffer)
{
    return lap_transport_can(buffer->ops, buffer->group);
}

/* Whether ranks of a group are on several hosts. */
bool lap_transport_spans(const lap_group_t *group);

/*
 * The name of the transport that fits a group: the one given to its world, or by where its ranks
 * are.
 */
const char *lap_transport_default(const lap_group_t *group);

/* The transport of a name. LAP_ERR_INVALID names the transports there are. */
lap_status_t lap_transport_find(const char *name, const lap_transport_ops_t **ops_p);

/*
 * The watch of a wait for `peer` on this buffer. It points to itself: it is not copied while in
 * use.
 */
typedef struct lap_buffer_watch {
    lap_watch_t watch;
    lap_buffer_t *buffer;
    int peer;
    const lap_wait_reason_t *reason;
} lap_buffer_watch_t;

void lap_buffer_watch_init(lap_buffer_watch_t *watch, lap_buffer_t *buffer, int peer,
                           const lap_wait_reason_t *reason);

/*
 * Turns a failed wait into its status and sentence (rank, operation, step, signal, how far it had
 * come), and breaks the group, so that every other rank fails with the same sentence.
 */
lap_status_t lap_buffer_wait_failed(lap_buffer_t *buffer, const lap_wait_t *wait,
                                    lap_status_t status);

/* The same for a wait of a device, which knows itself how far it has come. */
lap_status_t lap_buffer_stall_failed(const lap_stall_t *stall, lap_status_t status);

/*
 * After a wait that passed, before anything that came with the signal is used: LAP_ERR_MISMATCH,
 * breaking the group, when the peer raised it in another call. Sure: the word cannot have been
 * raised again since, because a peer raises it in its next call only after this rank has gone on.
 */
lap_status_t lap_buffer_wait_passed(lap_buffer_t *buffer, const lap_wait_t *wait);

/*
 * While a wait lasts: LAP_ERR_MISMATCH, breaking the group, when the records of `peer` show that it
 * is in another operator or has other active rows in this call, so that the signal cannot come.
 */
lap_status_t lap_buffer_compare(lap_buffer_t *buffer, int peer, const lap_wait_reason_t *reason);

/*
 * A look of a wait in such a call: LAP_ERR_MISMATCH as above, also when the peer has begun another
 * operator as this call of the group, or is blocked in a call that this rank has not begun while it
 * is blocked here; LAP_ERR_PEER_LOST as lap_group_look_for.
 */
lap_status_t lap_buffer_look(lap_buffer_t *buffer, int peer, const lap_wait_reason_t *reason);

/* Writes a record, so that whoever reads it meanwhile notices. */
void lap_buffer_write_record(lap_call_record_t *records, uint32_t call, uint32_t op, uint64_t m);

/* Says to the peers which call this rank begins; before any signal of that call is raised. */
void lap_buffer_announce(lap_buffer_t *buffer, const lap_wait_reason_t *reason);

/*
 * Writes what reason->call and so on say into a record that lap_buffer_write_record does the rest
 * of.
 */
void lap_buffer_write_call(lap_call_record_t *records, const lap_wait_reason_t *reason);

#endif
