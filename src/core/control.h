/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control page of a group: a region of shared memory that the group's rank 0 allocates. It has
 * two slots per rank, a signal word per rank that counts its arrivals, and the failure that broke
 * the group. In a world with a wire every rank has a control page of its own. Whatever a rank
 * writes on its control page it also sends, in a packet, to the control pages of the others. The
 * control page is for small messages of set-up; the data of operators never goes through it.
 */
#ifndef LAP_CORE_CONTROL_H
#define LAP_CORE_CONTROL_H

#include "core/blocked.h"
#include "core/status.h"
#include "core/wire.h"
#include "core/world.h"

#define LAP_SLOT_BYTES 4096
#define LAP_DOING_BYTES 24

typedef struct lap_control_slot {
    uint32_t call;               /* the collective that the sender is in */
    uint64_t bytes;              /* of the whole call, which may take several rounds */
    char doing[LAP_DOING_BYTES]; /* the call of the API that it is part of; "": none */
    char data[LAP_SLOT_BYTES];
} lap_control_slot_t;

/*
 * In round n a rank writes its slot n mod 2, arrives, waits until all have arrived, and reads
 * all slots n mod 2. One wait per round is enough. The slot is written again in round n + 2,
 * after all have arrived in round n + 1. A rank arrives there only when it has read what it
 * wanted of round n.
 */
typedef struct lap_control_rank {
    _Alignas(64) _Atomic uint32_t left; /* 1: it has left the group properly */
    lap_control_slot_t slots[2];
} lap_control_rank_t;

struct lap_control {
    _Alignas(64) _Atomic uint32_t failure; /* FAILURE_SET, stored last, releases the two below */
    int32_t status;
    char sentence[LAP_ERROR_TEXT];
    /*
     * One per rank; the bank with one word per rank follows, and a lap_blocked_record_t for each.
     */
    lap_control_rank_t ranks[];
};

/* What a packet writes on the control page: see lap_control_deliver. */
enum { LAP_PACKET_ROUND, LAP_PACKET_FAILURE, LAP_PACKET_LEFT, LAP_PACKET_BLOCKED };

/* The bank with the word of each rank. */
lap_bank_t *lap_control_bank(const lap_group_t *group);

/* What a rank has written in the latest round. */
lap_control_slot_t *lap_control_slot(const lap_group_t *group, int rank);

/*
 * Sends a packet to the control pages of all other ranks; does nothing in a world without a wire.
 */
lap_status_t lap_control_publish(const lap_group_t *group, const lap_packet_t *what,
                                 const void *body);

/*
 * Writes on this rank's control page what another rank has written on its own; `context` is the
 * group.
 */
void lap_control_deliver(void *context, const lap_packet_t *packet, const char *body);

/* Says, once, that this rank leaves the group. */
void lap_control_leave(lap_group_t *group);

/* "rank 2 (pid 123)", with what is known and adds something. */
const char *lap_group_describe(const lap_group_t *group, int rank, char *text, size_t bytes);

#endif
