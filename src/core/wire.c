/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What wires have in common: ports, and memory for packets. A packet is copied into memory of the
 * wire's own by its sender and out of it by the receiver's thread: after a time-out nobody must go
 * on reading or writing memory that its owner thinks is free. The two copies are cheap compared
 * with a network.
 */
#include "core/wire.h"

#include <stdatomic.h>

#include "core/status.h"
#include "core/wire_error.h"
#include "core/world.h"
#include "util/alloc.h"
#include "util/clock.h"

#define LARGE_PER_PEER 16 /* large packets on their way to one rank; they pace who sends more */
#define LAST_PACKETS_NS 500000000u /* what they may take once the process of their rank has ended */

/* The word of the bank for large packets to a rank that got away. */
#define WORD_PEER(peer) (1 + (size_t)(peer))

static lap_wire_base_t *base_of(lap_wire_t *wire)
{
    return (lap_wire_base_t *)(void *)wire;
}

/* ---- ports ---- */

lap_status_t lap_wire_port_open(lap_wire_t *wire, lap_port_take_t take, void *context,
                                const lap_bank_t *bank, uint64_t *port_p)
{
    lap_wire_base_t *base = base_of(wire);
    lap_status_t status = LAP_OK;
    pthread_mutex_lock(&base->ports_lock);
    lap_wire_port_t *ports = lap_grow(base->ports, base->nports, &base->ports_room, sizeof(*ports));
    if (ports) {
        base->ports = ports;
        *port_p = base->nports;
        ports[base->nports++] = (lap_wire_port_t){take, context, bank};
    } else {
        status =
            lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu ports of a wire", base->nports + 1);
    }
    pthread_mutex_unlock(&base->ports_lock);
    return status;
}

void lap_wire_port_close(lap_wire_t *wire, uint64_t port)
{
    lap_wire_base_t *base = base_of(wire);
    pthread_mutex_lock(&base->ports_lock);
    base->ports[port] = (lap_wire_port_t){NULL, NULL, NULL};
    pthread_mutex_unlock(&base->ports_lock);
}

void lap_wire_deliver(lap_wire_base_t *base, const lap_packet_t *packet)
{
    pthread_mutex_lock(&base->ports_lock);
    if (packet->port < base->nports && base->ports[packet->port].take)
        base->ports[packet->port].take(base->ports[packet->port].context, packet,
                                       (const char *)(packet + 1));
    pthread_mutex_unlock(&base->ports_lock);
}

/* ---- memory for packets ---- */

/* An out of the pool `spare`, with the lock held; NULL when there is none. */
static lap_out_t *pop(lap_out_t **spare)
{
    lap_out_t *out = *spare;
    if (out)
        *spare = out->next;
    return out;
}

static lap_out_t *out_alloc(size_t room, int peer)
{
    lap_out_t *out = lap_alloc(1, sizeof(*out) + room);
    if (out)
        out->large = room > LAP_WIRE_SMALL;
    else
        lap_error(LAP_ERR_NO_MEMORY, "no memory for a message of %zu bytes to rank %d", room, peer);
    return out;
}

static lap_status_t begin_small(lap_wire_base_t *base, int peer, lap_out_t **out_p)
{
    pthread_mutex_lock(&base->lock);
    lap_out_t *out = pop(&base->spare);
    pthread_mutex_unlock(&base->lock);
    if (!out)
        out = out_alloc(LAP_WIRE_SMALL, peer);
    *out_p = out;
    return out ? LAP_OK : LAP_ERR_NO_MEMORY;
}

static lap_status_t begin_large(lap_wire_base_t *base, int peer, const lap_watch_t *watch,
                                lap_out_t **out_p)
{
    lap_wire_peer_t *its = &base->peers[peer];
    for (;;) {
        pthread_mutex_lock(&base->lock);
        lap_out_t *out = pop(&its->spare);
        const bool may_make = !out && its->made < LARGE_PER_PEER;
        its->made += may_make;
        /* Read with the lock held: whatever gets away from now on raises the word above this. */
        const uint32_t returned =
            atomic_load_explicit(&base->bank->words[WORD_PEER(peer)].value, memory_order_relaxed);
        pthread_mutex_unlock(&base->lock);
        if (may_make) {
            out = out_alloc(LAP_WIRE_BODY, peer);
            if (!out) {
                pthread_mutex_lock(&base->lock);
                its->made--;
                pthread_mutex_unlock(&base->lock);
                return LAP_ERR_NO_MEMORY;
            }
        }
        if (out) {
            *out_p = out;
            return LAP_OK;
        }
        LAP_TRY(lap_bank_wait(base->bank, WORD_PEER(peer), returned + 1, watch));
    }
}

lap_status_t lap_wire_begin(lap_wire_t *wire, int peer, size_t bytes, const lap_watch_t *watch,
                            lap_packet_t **packet_p)
{
    lap_wire_base_t *base = base_of(wire);
    lap_out_t *out = NULL;
    if (bytes <= LAP_WIRE_SMALL)
        LAP_TRY(begin_small(base, peer, &out));
    else
        LAP_TRY(begin_large(base, peer, watch, &out));
    out->next = NULL;
    out->peer = peer;
    out->packet = (lap_packet_t){.bytes = bytes};
    *packet_p = &out->packet;
    return LAP_OK;
}

lap_out_t *lap_wire_out_of(lap_packet_t *packet)
{
    return (lap_out_t *)(void *)((char *)packet - offsetof(lap_out_t, packet));
}

void lap_wire_put_back(lap_wire_base_t *base, lap_out_t *out)
{
    lap_out_t **spare = out->large ? &base->peers[out->peer].spare : &base->spare;
    pthread_mutex_lock(&base->lock);
    out->next = *spare;
    *spare = out;
    if (out->large)
        lap_bank_raise(base->bank, WORD_PEER(out->peer)); /* partner: begin_large */
    pthread_mutex_unlock(&base->lock);
}

void lap_wire_free_outs(lap_out_t *first)
{
    while (first) {
        lap_out_t *next = first->next;
        lap_free(first);
        first = next;
    }
}

/* ---- ranks that go ---- */

void lap_wire_lose(lap_wire_base_t *base, int peer)
{
    if (peer >= 0 && peer < base->world->size)
        atomic_store_explicit(&base->world->peers[peer].lost, true, memory_order_release);
}

void lap_wire_set_error(lap_wire_base_t *base, int peer, int error)
{
    /* lap_wire_lose makes it visible. */
    atomic_store_explicit(&base->peers[peer].error, error, memory_order_relaxed);
}

int lap_wire_error(const lap_wire_t *wire, int peer)
{
    const lap_wire_base_t *base = (const lap_wire_base_t *)(const void *)wire;
    return atomic_load_explicit(&base->peers[peer].error, memory_order_relaxed);
}

bool lap_wire_is_over(lap_wire_t *wire, int peer)
{
    lap_wire_base_t *base = base_of(wire);
    const uint64_t now = lap_now_ns();
    uint64_t first = 0;
    if (atomic_load_explicit(&base->world->peers[peer].lost, memory_order_acquire))
        return true;
    if (atomic_compare_exchange_strong(&base->peers[peer].ended_ns, &first, now))
        return false;
    return now > first + LAST_PACKETS_NS;
}

void lap_wire_send_bye(lap_wire_base_t *base, bool well)
{
    for (int peer = 0; peer < base->world->size; peer++) {
        lap_packet_t *packet = NULL;
        if (peer == base->world->rank ||
            lap_wire_begin(&base->wire, peer, 0, NULL, &packet) != LAP_OK)
            continue;
        packet->port = LAP_WIRE_BYE;
        packet->words[0] = well;
        base->wire.ops->send(&base->wire, packet);
    }
}

/* ---- the ends ---- */

lap_status_t lap_wire_base_init(lap_wire_base_t *base, const lap_wire_ops_t *ops,
                                lap_world_t *world)
{
    const size_t size = (size_t)world->size;
    base->wire.ops = ops;
    base->world = world;
    pthread_mutex_init(&base->lock, NULL);
    pthread_mutex_init(&base->ports_lock, NULL);
    LAP_TRY(lap_region_create(world, lap_bank_bytes(1 + size), 1, &base->bank_region));
    base->bank = base->bank_region.data;
    base->peers = lap_alloc(size, sizeof(*base->peers));
    if (!base->peers)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a wire to %zu ranks", size);
    return LAP_OK;
}

void lap_wire_base_free(lap_wire_base_t *base)
{
    lap_wire_free_outs(base->spare);
    for (int peer = 0; base->peers && peer < base->world->size; peer++)
        lap_wire_free_outs(base->peers[peer].spare);
    pthread_mutex_destroy(&base->ports_lock);
    pthread_mutex_destroy(&base->lock);
    lap_free(base->ports);
    lap_free(base->peers);
    lap_region_unmap(base->world, &base->bank_region);
}
