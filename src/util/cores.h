/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of this machine. */
#ifndef LAP_UTIL_CORES_H
#define LAP_UTIL_CORES_H

/* How many cores this process may use; at least 1. */
int lap_cores(void);

#endif
