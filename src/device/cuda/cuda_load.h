/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NVIDIA driver and cuBLASLt as tables of functions, found when a device is opened. Nothing of
 * them is linked: the same library runs where neither is installed.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_LOAD_H
#define LAP_DEVICE_CUDA_CUDA_LOAD_H

#include <cublasLt.h>
#include <cudaTypedefs.h>

#include <lap/status.h>

/* Functions of the driver, each with the version of the interface that it is called by. */
#define LAP_CUDA_CALLS(X)                                                                          \
    X(cuInit, 2000)                                                                                \
    X(cuDriverGetVersion, 2020)                                                                    \
    X(cuGetErrorName, 6000)                                                                        \
    X(cuGetErrorString, 6000)                                                                      \
    X(cuDeviceGet, 2000)                                                                           \
    X(cuDeviceGetCount, 2000)                                                                      \
    X(cuDeviceGetName, 2000)                                                                       \
    X(cuDeviceGetAttribute, 2000)                                                                  \
    X(cuDeviceCanAccessPeer, 4000)                                                                 \
    X(cuDevicePrimaryCtxRetain, 7000)                                                              \
    X(cuDevicePrimaryCtxRelease, 11000)                                                            \
    X(cuCtxPushCurrent, 4000)                                                                      \
    X(cuCtxPopCurrent, 4000)                                                                       \
    X(cuCtxGetDevice, 2000)                                                                        \
    X(cuCtxEnablePeerAccess, 4000)                                                                 \
    X(cuCtxGetStreamPriorityRange, 5050)                                                           \
    X(cuDeviceGetDevResource, 12040)                                                               \
    X(cuDevSmResourceSplitByCount, 12040)                                                          \
    X(cuDevResourceGenerateDesc, 12040)                                                            \
    X(cuGreenCtxCreate, 12040)                                                                     \
    X(cuGreenCtxDestroy, 12040)                                                                    \
    X(cuGreenCtxStreamCreate, 12050)                                                               \
    X(cuCtxFromGreenCtx, 12040)                                                                    \
    X(cuMemAlloc, 3020)                                                                            \
    X(cuMemFree, 3020)                                                                             \
    X(cuMemGetInfo, 3020)                                                                          \
    X(cuPointerGetAttribute, 4000)                                                                 \
    X(cuMemHostAlloc, 2020)                                                                        \
    X(cuMemFreeHost, 2000)                                                                         \
    X(cuMemsetD8Async, 3020)                                                                       \
    X(cuMemsetD32Async, 3020)                                                                      \
    X(cuMemcpyAsync, 4000)                                                                         \
    X(cuMemcpy2DAsync, 3020)                                                                       \
    X(cuMemAddressReserve, 10020)                                                                  \
    X(cuMemAddressFree, 10020)                                                                     \
    X(cuMemCreate, 10020)                                                                          \
    X(cuMemRelease, 10020)                                                                         \
    X(cuMemMap, 10020)                                                                             \
    X(cuMemUnmap, 10020)                                                                           \
    X(cuMemSetAccess, 10020)                                                                       \
    X(cuMemGetAllocationGranularity, 10020)                                                        \
    X(cuMemExportToShareableHandle, 10020)                                                         \
    X(cuMemImportFromShareableHandle, 10020)                                                       \
    X(cuIpcGetMemHandle, 4010)                                                                     \
    X(cuIpcOpenMemHandle, 11000)                                                                   \
    X(cuIpcCloseMemHandle, 4010)                                                                   \
    X(cuStreamCreateWithPriority, 5050)                                                            \
    X(cuStreamDestroy, 4000)                                                                       \
    X(cuStreamQuery, 2000)                                                                         \
    X(cuStreamSynchronize, 2000)                                                                   \
    X(cuStreamWaitEvent, 3020)                                                                     \
    X(cuStreamBeginCapture, 10010)                                                                 \
    X(cuStreamEndCapture, 10000)                                                                   \
    X(cuStreamIsCapturing, 10000)                                                                  \
    X(cuStreamGetCtx, 12050)                                                                       \
    X(cuThreadExchangeStreamCaptureMode, 10010)                                                    \
    X(cuEventCreate, 2000)                                                                         \
    X(cuEventDestroy, 4000)                                                                        \
    X(cuEventRecord, 2000)                                                                         \
    X(cuEventQuery, 2000)                                                                          \
    X(cuEventElapsedTime, 2000)                                                                    \
    X(cuLaunchKernel, 4000)                                                                        \
    X(cuLaunchHostFunc, 10000)                                                                     \
    X(cuLibraryLoadData, 12000)                                                                    \
    X(cuLibraryUnload, 12000)                                                                      \
    X(cuLibraryGetKernel, 12000)                                                                   \
    X(cuKernelGetFunction, 12000)                                                                  \
    X(cuFuncLoad, 12040)                                                                           \
    X(cuFuncSetAttribute, 9000)                                                                    \
    X(cuGraphGetNodes, 10000)                                                                      \
    X(cuGraphGetRootNodes, 10000)                                                                  \
    X(cuGraphNodeGetType, 10000)                                                                   \
    X(cuGraphNodeGetDependencies, 10000)                                                           \
    X(cuGraphNodeGetDependentNodes, 10000)                                                         \
    X(cuGraphMemsetNodeGetParams, 10000)                                                           \
    X(cuGraphAddKernelNode, 12000)                                                                 \
    X(cuGraphKernelNodeSetAttribute, 11000)                                                        \
    X(cuGraphKernelNodeGetParams, 12000)                                                           \
    X(cuGraphKernelNodeSetParams, 12000)                                                           \
    X(cuGraphAddDependencies, 10000)                                                               \
    X(cuGraphDestroyNode, 10000)                                                                   \
    X(cuGraphDestroy, 10000)                                                                       \
    X(cuGraphInstantiateWithFlags, 11040)                                                          \
    X(cuGraphExecUpdate, 12000)                                                                    \
    X(cuGraphExecDestroy, 10000)                                                                   \
    X(cuGraphLaunch, 10000)

#define LAP_CUBLAS_CALLS(X)                                                                        \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmul)

/* NOLINTBEGIN(bugprone-macro-parentheses): a name of a field cannot stand in parentheses */
#define LAP_CUDA_FIELD(name, version) PFN_##name##_v##version name;
#define LAP_CUBLAS_FIELD(name) __typeof__(&name) name;
/* NOLINTEND(bugprone-macro-parentheses) */

typedef struct lap_cuda_api {
    void *driver, *blas; /* of dlopen */
    LAP_CUDA_CALLS(LAP_CUDA_FIELD)
    LAP_CUBLAS_CALLS(LAP_CUBLAS_FIELD)
} lap_cuda_api_t;

#undef LAP_CUDA_FIELD
#undef LAP_CUBLAS_FIELD

/* LAP_ERR_UNSUPPORTED says what is missing, and where it was looked for. */
lap_status_t lap_cuda_load(lap_cuda_api_t *api);
void lap_cuda_unload(lap_cuda_api_t *api);

/*
 * Turns the result of a call of the driver, or of cuBLASLt, into a status. The sentence begins with
 * `what`; where memory is short, it ends with how much is free.
 */
lap_status_t lap_cuda_check(const lap_cuda_api_t *api, CUresult result, const char *what);
lap_status_t lap_cublas_check(const lap_cuda_api_t *api, cublasStatus_t result, const char *what);

#endif
