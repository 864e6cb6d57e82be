/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors from rank to rank, for memory that is known by them. */
#ifndef LAP_CORE_PASS_H
#define LAP_CORE_PASS_H

#include "core/world.h"

/*
 * Every rank of a group, all of them processes of this host, gives a descriptor, or -1, and gets
 * its own copies of the others'. Collective; blocks. `fds` has room for lap_group_size descriptors:
 * filled on success, with -1 for this rank and for who gave none; the caller closes them. Its own
 * descriptor stays with each rank. When one rank fails, all do.
 */
lap_status_t lap_group_pass_fds(lap_group_t *group, int mine, int *fds);

#endif
