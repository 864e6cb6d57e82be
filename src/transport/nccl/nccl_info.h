/* SPDX-License-Identifier: Apache-2.0 */
/* Which NCCL there is, for `lap info`. */
#ifndef LAP_TRANSPORT_NCCL_NCCL_INFO_H
#define LAP_TRANSPORT_NCCL_NCCL_INFO_H

#include <lap/status.h>

/*
 * The version of the NCCL that can be loaded here: 23003 is 2.30.3. LAP_ERR_UNSUPPORTED, with a
 * sentence, when there is none, or an older one, or this build has no CUDA. It stays in the
 * process.
 */
lap_status_t lap_nccl_version(int *version_p);

#endif
