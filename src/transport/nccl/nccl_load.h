/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL as a table of functions, found when the first buffer over it is made. Nothing of it is
 * linked.
 */
#ifndef LAP_TRANSPORT_NCCL_NCCL_LOAD_H
#define LAP_TRANSPORT_NCCL_NCCL_LOAD_H

#include <nccl.h>

#include <lap/status.h>

#define LAP_NCCL_CALLS(X)                                                                          \
    X(ncclGetVersion)                                                                              \
    X(ncclGetUniqueId)                                                                             \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)                                                                            \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommAbort)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclSend)                                                                                    \
    X(ncclRecv)

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a name of a field cannot stand in parentheses */
#define LAP_NCCL_FIELD(name) __typeof__(&name) name;

typedef struct lap_nccl_api {
    void *library; /* of dlopen */
    LAP_NCCL_CALLS(LAP_NCCL_FIELD)
} lap_nccl_api_t;

#undef LAP_NCCL_FIELD

/* LAP_ERR_UNSUPPORTED says what is missing, and where it was looked for. */
lap_status_t lap_nccl_load(lap_nccl_api_t *api);
void lap_nccl_unload(lap_nccl_api_t *api);

/* What a call of NCCL returned: as a status, with `what` in its sentence. */
lap_status_t lap_nccl_check(const lap_nccl_api_t *api, ncclResult_t result, const char *what);

#endif
