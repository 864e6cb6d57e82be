/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls in the order of the caller's CUDA streams, for worlds whose device is "cuda". Needs no
 * header of CUDA: a stream is a cudaStream_t or a CUstream, which are the same type. lap.h does not
 * include it.
 *
 * On a world whose device is "cuda", the tensors of all operators are memory of this rank's GPU,
 * from cudaMalloc, cuMemAlloc or any other allocator; it is used in place. Pinned host memory works
 * too, slowly. The caller's current device and context are restored.
 */
#ifndef LAP_LAP_CUDA_H
#define LAP_LAP_CUDA_H

#include <lap/export.h>
#include <lap/op.h>
#include <lap/status.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

struct CUstream_st;
struct ncclComm;

/*
 * Tells which GPU this rank uses, by its number for cudaSetDevice and cuDeviceGet, so that the
 * caller's memory and streams are made there.
 * Local; opens the GPU, unless this world has opened it before. Writes *gpu_p on success. The ranks
 * of a host take its GPUs in turn: the r-th rank takes GPU r modulo their number, counted as
 * CUDA_VISIBLE_DEVICES leaves them. LAP_GPU, if set, names another. `lap run --gpu-share` sets it,
 * and LAP_GPU_PART where several ranks share a GPU. The number is then that of the GPU. The
 * operators use this rank's part of it only; the caller's kernels do not.
 * Returns LAP_ERR_INVALID (NULL, or a variable that makes no sense, named), LAP_ERR_UNSUPPORTED
 * (another device than "cuda", or no GPU here that it can use), LAP_ERR_NO_MEMORY, LAP_ERR_SYSTEM.
 */
LAP_API lap_status_t lap_world_gpu(lap_world_t *world, int *gpu_p);

/*
 * Lets the buffers of a group that are of the transport "nccl" use a communicator of the caller's,
 * an ncclComm_t of NCCL 2.30 or later, instead of one of their own.
 * Collective over the group, and before its first buffer. The communicator has the ranks of the
 * group, in their order, on their GPUs. It stays the caller's, who ends it after the group; until
 * then other threads do not use it. One that was made with blocking = 0 is watched while it is used;
 * with another, this and the making of buffers wait for a lost peer as long as NCCL does.
 * Returns LAP_ERR_INVALID (NULL, other ranks, too late), LAP_ERR_UNSUPPORTED (another device than
 * "cuda"; no NCCL of 2.30 or later here, or none that connects these GPUs), LAP_ERR_NO_MEMORY,
 * LAP_ERR_SYSTEM, or the failure of another rank.
 */
LAP_API lap_status_t lap_group_set_nccl(lap_group_t *group, struct ncclComm *comm);

/*
 * Runs an operator in stream order: after all work that the stream was given before, and before all
 * that it is given later. There is no lap_op_end: the call ends when the stream has passed it.
 * Collective, as lap_op_begin: the calls of a world come in the same order on all ranks. `stream`
 * is of this rank's GPU; NULL: the default stream of the current context. Does not block, except
 * where ranks are threads that share a GPU: there it returns when its peers have called it too. The
 * same operator may be called again at once. The memory in `args` belongs to the call until the
 * stream has passed it, `args` itself only until this returns; args.trace must be NULL. A call with
 * another m than the last 16 may wait for earlier calls.
 *
 * While the stream is being captured, the call becomes part of the graph and may run any number of
 * times. Every rank runs it equally often, with the memory and numbers of `args` at the capture.
 * All launches of such graphs and all other calls of the world must come one after the other, by
 * streams or events, in the same order on all ranks. No other call can be made until the capture
 * has ended.
 * The operator must live as long as the graph is launched. Call it once without a capture before:
 * that loads the libraries and kernels. Calls between threads that share a GPU cannot be captured,
 * nor those of the transport "nccl" between GPUs that NVLink does not connect.
 *
 * Returns LAP_ERR_INVALID (nothing was started or changed; a stream of another GPU, a capture that
 * has failed), LAP_ERR_UNSUPPORTED (another device than "cuda"; a capture that cannot be), LAP_ERR_BUSY when a call of lap_op_begin has not ended or another capture has
 * not, LAP_ERR_SYSTEM or LAP_ERR_NO_MEMORY, which break the group unless the stream is being
 * captured, or the failure that broke the group earlier, also in an enqueued call. The next
 * lap_world_synchronize, or call of an operator, returns later failures: a peer that is lost, calls
 * another operator or does not come within the timeout.
 */
LAP_API lap_status_t lap_op_enqueue(lap_op_t *op, const lap_op_args_t *args,
                                    struct CUstream_st *stream);

/*
 * Whether a call of the operator was captured: 1 or 0. The operator must then live as long as the
 * graph is launched, of whose end the library learns nothing. Local; does not block. 0 for NULL.
 */
LAP_API int lap_op_is_captured(const lap_op_t *op);

/*
 * Waits for all work of a stream, as cudaStreamSynchronize, and meanwhile watches the peers of the
 * calls in it, those in graphs included.
 * Local to the rank; blocks. The results of calls in that stream are sure to be right only after it
 * has returned LAP_OK.
 * For a caller that uses cudaStreamSynchronize instead, a thread of the library watches. (The
 * thread blocks all UNIX signals.) Such a caller waits a tenth of a second longer at most, but
 * learns of no failure: the stream runs on, and the next call of this function or of an operator
 * returns the failure. Where ranks are threads, or the thread could not be started, which is warned
 * of, the stream waits for a missing peer until a second after the timeout.
 * Returns LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT or LAP_ERR_MISMATCH with rank, operation, step and
 * signal: the groups of all operators that were enqueued are then broken; destroy everything made
 * from them. LAP_ERR_INVALID (a stream of another GPU, or one that is being captured),
 * LAP_ERR_UNSUPPORTED (another device than "cuda"), LAP_ERR_SYSTEM.
 */
LAP_API lap_status_t lap_world_synchronize(lap_world_t *world, struct CUstream_st *stream);

LAP_END_DECLS

#endif
