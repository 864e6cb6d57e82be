/* SPDX-License-Identifier: Apache-2.0 */
/* How worlds make and end groups. Nothing above core needs it. */
#ifndef LAP_CORE_GROUP_H
#define LAP_CORE_GROUP_H

#include <stdbool.h>
#include <stddef.h>

#include "core/world.h"

/*
 * The bytes of the region that holds the control page of `size` ranks. All zero is a valid control
 * page.
 */
size_t lap_control_bytes(int size);

/*
 * Makes the group of all ranks of a world. On success the group owns the mapped control page and
 * *control is zeroed; on failure the caller still does.
 */
lap_status_t lap_group_create_world(lap_world_t *world, lap_region_t *control,
                                    lap_group_t **group_p);

/*
 * Whether all ranks are still there, or have left on purpose, so far as is known: none has died,
 * and none was waited for in vain.
 */
bool lap_group_all_here(lap_group_t *group);

/* Whether a rank has come to the collective of this number. */
bool lap_group_has_come(const lap_group_t *group, int rank, uint32_t round);

/*
 * Whether another rank has come with a failure to the lap_group_agree that this rank calls next:
 * who waits before it, for that rank, can give up. Local.
 */
bool lap_group_fails_ahead(const lap_group_t *group);

/* What a rank says of the call that it is blocked in; and says it of this rank to all others. */
lap_blocked_record_t *lap_group_blocked_record(const lap_group_t *group, int rank);
void lap_group_publish_blocked(lap_group_t *group, const lap_blocked_words_t *words);

/* For a world that is destroyed before what was made from it: its groups refuse all calls. */
void lap_group_end_all(lap_world_t *world);

/*
 * Says on the control page that this rank leaves, unmaps the control page and frees the group. NULL
 * is fine.
 */
void lap_group_release(lap_group_t *group);

#endif
