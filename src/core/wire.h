/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets between ranks that may have no memory in common. A wire brings packets to the ports of
 * other ranks; a thread of the receiver's own takes them, whatever its other threads do. The
 * packets of one rank to one other are taken in the order in which they were sent; packets to
 * different ranks have no order. A world that has a wire does over it whatever ranks with memory in
 * common do by writing into it. There are two: over MPI (core/mpi) and over TCP (core/hub). What
 * they have in common, ports and memory for packets, is lap_wire_base_t.
 */
#ifndef LAP_CORE_WIRE_H
#define LAP_CORE_WIRE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/status.h>

#include "core/heap.h"
#include "core/signal.h"

/* A packet with a body of at most LAP_WIRE_SMALL bytes is sent without waiting for anybody. */
#define LAP_WIRE_SMALL ((size_t)8 << 10)
/*
 * More goes into several packets. Below the 64 KiB from which MPI over TCP asks the receiver before
 * it sends: the answer would have to wait for whatever goes the other way.
 */
#define LAP_WIRE_BODY ((size_t)60 << 10)

/* It travels as bytes: all ranks are taken to be of one kind. */
typedef struct lap_packet {
    uint64_t port;     /* of the receiver, as its wire named it */
    uint32_t kind;     /* this and what follows is between the two ports */
    uint32_t from;     /* the sender, as the ports count ranks */
    uint64_t words[6]; /* what it says */
    uint64_t bytes;    /* of the body, which follows the packet in memory */
} lap_packet_t;

/* Takes a packet, in the thread of the wire, which it must not hold up. */
typedef void (*lap_port_take_t)(void *context, const lap_packet_t *packet, const char *body);

typedef struct lap_wire lap_wire_t;

typedef struct lap_wire_ops {
    const char *name;  /* "MPI" or "TCP" */
    bool carries_data; /* of callers; else only what ranks say to one another */

    /* Sends what lap_wire_begin gave; it belongs to the wire from then on. Does not block. */
    void (*send)(lap_wire_t *wire, lap_packet_t *packet);

    /* Somebody is about to wait for a packet. */
    void (*nudge)(lap_wire_t *wire);

    /* Sends what is still to be sent, as far as that goes, and ends the wire. Ports are closed. */
    void (*close)(lap_wire_t *wire, bool well);
} lap_wire_ops_t;

struct lap_wire {
    const lap_wire_ops_t *ops;
};

/*
 * Opens a port. The wire hurries while somebody sleeps on `bank`, which is what the packets of
 * the port bring about. A port that has been closed takes nothing any more, from then on;
 * packets that still come to it are dropped, and its number is not used again.
 */
lap_status_t lap_wire_port_open(lap_wire_t *wire, lap_port_take_t take, void *context,
                                const lap_bank_t *bank, uint64_t *port_p);
void lap_wire_port_close(lap_wire_t *wire, uint64_t port);

/*
 * A packet to rank `peer` of the world, to be filled in and sent. With a body of more than
 * LAP_WIRE_SMALL bytes this waits, as `watch` says, while too many are on their way to that
 * rank; returns as lap_bank_wait does.
 */
lap_status_t lap_wire_begin(lap_wire_t *wire, int peer, size_t bytes, const lap_watch_t *watch,
                            lap_packet_t **packet_p);

static inline char *lap_packet_body(lap_packet_t *packet)
{
    return (char *)(packet + 1);
}

/* ---- for the wires themselves ---- */

#define LAP_WIRE_BYE UINT64_MAX /* a port of the wire's own: its sender sends nothing more */

/* A packet to be sent, or on its way. */
typedef struct lap_out {
    struct lap_out *next;
    int peer;
    bool large;
    void *request;       /* room for an MPI_Request */
    lap_packet_t packet; /* its body follows */
} lap_out_t;

typedef struct lap_wire_port {
    lap_port_take_t take; /* NULL: closed */
    void *context;
    const lap_bank_t *bank;
} lap_wire_port_t;

/* What a wire has for one rank. */
typedef struct lap_wire_peer {
    lap_out_t *spare;          /* memory for large packets to it, */
    int made;                  /* and how much there is: who sends more waits */
    _Atomic int error;         /* see lap_wire_error */
    _Atomic uint64_t ended_ns; /* when its process was found to have ended; 0: it was not */
} lap_wire_peer_t;

/* What a wire has to begin with. */
typedef struct lap_wire_base {
    lap_wire_t wire;
    struct lap_world *world;
    lap_region_t bank_region;
    lap_bank_t *bank;     /* a word for the wire's own use, then one per rank */
    pthread_mutex_t lock; /* of what is spare */
    lap_out_t *spare;     /* small ones */
    lap_wire_peer_t *peers;
    pthread_mutex_t ports_lock; /* held while a packet is taken */
    lap_wire_port_t *ports;
    size_t nports, ports_room;
} lap_wire_base_t;

#define LAP_WIRE_WORD 0 /* of the bank: for the wire's own use */

/*
 * A wire that ends after a failure waits this long for packets that have not left: they report
 * the failure, but a rank that has died takes none.
 */
#define LAP_WIRE_LINGER_NS 1000000000u

/* `base` is zero but for what the wire has there already. After a failure it is freed, too. */
lap_status_t lap_wire_base_init(lap_wire_base_t *base, const lap_wire_ops_t *ops,
                                struct lap_world *world);
void lap_wire_base_free(lap_wire_base_t *base);

lap_out_t *lap_wire_out_of(lap_packet_t *packet);
void lap_wire_free_outs(lap_out_t *first);

/* Memory that has been sent, or will not be, is spare again. */
void lap_wire_put_back(lap_wire_base_t *base, lap_out_t *out);

/* Gives a packet to its port, if that is open. */
void lap_wire_deliver(lap_wire_base_t *base, const lap_packet_t *packet);

/* The wire cannot reach a rank any more. Whoever waits for it finds that out. */
void lap_wire_lose(lap_wire_base_t *base, int peer);

/* Sends every other rank a packet to LAP_WIRE_BYE. */
void lap_wire_send_bye(lap_wire_base_t *base, bool well);

#endif
