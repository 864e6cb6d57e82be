/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that other ranks of the host can map. Each process has one memfd, passed to all peers when
 * the world is made; regions are cut from it, never reused, and given back to the system by
 * punching a hole. Ranks that are threads use plain mappings. Either way a region counts its users,
 * and the last one out frees it: no rank waits for another.
 */
#ifndef LAP_CORE_HEAP_H
#define LAP_CORE_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include <lap/status.h>

struct lap_world;

/*
 * The bytes of memory of the host that can be taken now without driving the machine, or the cgroup
 * of this process, to its end: a sixteenth stays free.
 */
uint64_t lap_memory_room(void);

/* A region as this rank sees it. */
typedef struct lap_region {
    void *data;      /* page-aligned */
    size_t bytes;    /* as asked */
    uint64_t handle; /* names it among its owner's, for lap_region_map on another rank */
    int owner;       /* rank in the world */
} lap_region_t;

/*
 * A new empty heap: a memfd that never shrinks, so that what is mapped from it cannot go away under
 * a peer.
 */
lap_status_t lap_heap_open(int *fd_p);

/*
 * What the ranks of a thread world share instead: their regions, so that none is lost when a rank
 * leaves early.
 */
typedef struct lap_thread_heap lap_thread_heap_t;

/* `users` ranks each release it once; the last one frees it and every region still in it. */
lap_status_t lap_thread_heap_create(int users, lap_thread_heap_t **heap_p);
void lap_thread_heap_release(lap_thread_heap_t *heap);

/*
 * Cuts a region of `bytes` zeros from this rank's heap, for at most `users` ranks (this one
 * included) to map. LAP_ERR_NO_MEMORY says how much was asked and how much there is; memory is
 * really there on success, no page fault can fail later.
 */
lap_status_t lap_region_create(struct lap_world *world, size_t bytes, int users,
                               lap_region_t *region_p);

/*
 * Maps a region that `owner` created; `bytes` as given there. A region lives as long as somebody
 * holds it: its owner keeps it until every rank has mapped it or given up (lap_group_agree).
 * LAP_ERR_PEER_LOST when it is gone already.
 */
lap_status_t lap_region_map(struct lap_world *world, int owner, uint64_t handle, size_t bytes,
                            lap_region_t *region_p);

/* Unmaps; the last of its users frees it. A region that is all zero is fine. */
void lap_region_unmap(struct lap_world *world, lap_region_t *region);

#endif
