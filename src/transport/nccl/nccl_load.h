/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL as a table of functions, found when the first buffer over it is made. Nothing of it is
 * linked, nor is its header needed: what is used of it is declared here, as nccl.h of 2.30 has it.
 */
#ifndef LAP_TRANSPORT_NCCL_NCCL_LOAD_H
#define LAP_TRANSPORT_NCCL_NCCL_LOAD_H

#include <cuda.h>
#include <limits.h>
#include <stddef.h>

#include <lap/status.h>

#define LAP_NCCL_LEAST 23000 /* 2.30: what follows, and puts that can be repeated */

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;

typedef enum ncclResult {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

enum { ncclUint8 = 1 }; /* of ncclDataType_t */

#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

/* As of 2.17: NCCL takes its own defaults for what came later, and for numbers that are INT_MIN. */
typedef struct ncclConfig {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
} ncclConfig_t;

#define LAP_NCCL_CONFIG                                                                            \
    {                                                                                              \
        .size = sizeof(ncclConfig_t), .magic = 0xcafebeef, .version = 21700, .blocking = 0,        \
        .cgaClusterSize = INT_MIN, .minCTAs = INT_MIN, .maxCTAs = INT_MIN                          \
    }

#define LAP_NCCL_CALLS(X)                                                                          \
    X(ncclGetVersion, (int *version))                                                              \
    X(ncclGetUniqueId, (ncclUniqueId * id))                                                        \
    X(ncclCommInitRankConfig,                                                                      \
      (ncclComm_t * comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config))              \
    X(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * result))                             \
    X(ncclCommCount, (ncclComm_t comm, int *size))                                                 \
    X(ncclCommUserRank, (ncclComm_t comm, int *rank))                                              \
    X(ncclCommCuDevice, (ncclComm_t comm, int *device))                                            \
    X(ncclCommRevoke, (ncclComm_t comm, int flags))                                                \
    X(ncclCommAbort, (ncclComm_t comm))                                                            \
    X(ncclGroupStart, (void))                                                                      \
    X(ncclGroupEnd, (void))                                                                        \
    X(ncclMemAlloc, (void **memory, size_t bytes))                                                 \
    X(ncclMemFree, (void *memory))                                                                 \
    X(ncclCommWindowRegister,                                                                      \
      (ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int flags))              \
    X(ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))                            \
    X(ncclGetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void **address))    \
    X(ncclPutSignal,                                                                               \
      (const void *source, size_t count, int type, int peer, ncclWindow_t window, size_t offset,   \
       int signal, int context, unsigned flags, ncclComm_t comm, CUstream stream))                 \
    X(ncclSignal,                                                                                  \
      (int peer, int signal, int context, unsigned flags, ncclComm_t comm, CUstream stream))

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a name of a field cannot stand in parentheses */
#define LAP_NCCL_FIELD(name, args) ncclResult_t(*name) args;

typedef struct lap_nccl_api {
    void *library; /* of dlopen */
    LAP_NCCL_CALLS(LAP_NCCL_FIELD)
    const char *(*ncclGetErrorString)(ncclResult_t result);
    const char *(*ncclGetLastError)(ncclComm_t comm);
} lap_nccl_api_t;

#undef LAP_NCCL_FIELD

/*
 * LAP_ERR_UNSUPPORTED says what is missing, and where it was looked for, or which version there is
 * and which is needed. It stays in the process: NCCL has threads that nobody joins, such as the one
 * that ncclGetUniqueId starts, and their code must not go.
 */
lap_status_t lap_nccl_load(lap_nccl_api_t *api);

/* What a call of NCCL returned: as a status, with `what` in its sentence. */
lap_status_t lap_nccl_check(const lap_nccl_api_t *api, ncclResult_t result, const char *what);

#endif
