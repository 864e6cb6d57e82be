/* SPDX-License-Identifier: Apache-2.0 */
/* How the structs that callers fill are read, whatever version of the header they have. */
#ifndef LAP_CORE_OPTIONS_H
#define LAP_CORE_OPTIONS_H

#include <stddef.h>

#include <lap/status.h>

/*
 * Reads a caller's struct, which begins with its `size_t size`, over `known`, which holds the
 * defaults. A shorter struct comes from an older caller and leaves the fields after its end as
 * they are. A longer one comes from a newer caller: its fields that we do not know must be
 * zero. known->size is known_bytes afterwards. `name` is that of the type without its _t, in
 * capitals, as in NAME_INIT.
 * Returns LAP_ERR_INVALID for a size that is none, LAP_ERR_UNSUPPORTED for an unknown field that is
 * set; `known` is unchanged then.
 */
lap_status_t lap_read_options(void *known, size_t known_bytes, const void *given, const char *name);

#endif
