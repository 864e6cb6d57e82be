/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank gets which part of which GPU: see gpu_share.h. */
#include "gpu_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/cuda_ipc/cuda_ipc_kind.h"
#include "transport/nccl/nccl_info.h"

#define PART_SMS 8 /* SMs are handed out in groups of so many */

/* ---- the GPUs ---- */

/* What can be found out without a context; with a transport also whether ranks could use it. */
static lap_status_t find_out(const char *transport, lap_cuda_info_t *info_p)
{
    const lap_device_ops_t *device;
    lap_cuda_memory_t kind;
    bool chosen;
    int version;
    const lap_status_t status = lap_cuda_info(info_p);
    if (status != LAP_OK || !transport)
        return status;
    if (lap_device_find("cuda", &device) != LAP_OK || device->probe() != LAP_OK)
        return LAP_ERR_UNSUPPORTED;
    return strcmp(transport, "nccl") == 0 ? lap_nccl_version(&version)
                                          : lap_cuda_memory_chosen(&kind, &chosen);
}

static _Noreturn void write_answer(const char *transport, int fd)
{
    lap_gpu_answer_t answer = {0};
    answer.status = find_out(transport, &answer.info);
    if (answer.status != LAP_OK)
        snprintf(answer.why, sizeof(answer.why), "%s", lap_last_error());
    ssize_t written = write(fd, &answer, sizeof(answer));
    _exit(written == (ssize_t)sizeof(answer) ? 0 : 1);
}

/* The answer of a process of its own, so that the launcher stays free of the driver's threads. */
static bool read_answer(const char *transport, lap_gpu_answer_t *answer)
{
    int ends[2];
    size_t have = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    const pid_t pid = fork();
    if (pid == 0)
        write_answer(transport, ends[1]);
    close(ends[1]);
    for (ssize_t count = pid > 0; count > 0 && have < sizeof(*answer); have += (size_t)count) {
        count = read(ends[0], (char *)answer + have, sizeof(*answer) - have);
        count = count < 0 ? 0 : count;
    }
    close(ends[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    return have == sizeof(*answer);
}

/* Asks the driver. `transport`: see find_out. False, with a sentence, when it has no answer. */
static bool ask(const char *transport, lap_gpu_answer_t *answer, char why[LAP_GPU_WHY])
{
    errno = 0;
    if (read_answer(transport, answer))
        return true;
    snprintf(why, LAP_GPU_WHY, "the NVIDIA driver cannot be asked for its GPUs: %s",
             errno ? strerror(errno) : "the process that asked it died");
    return false;
}

/* ---- the plan ---- */

/* How many ranks a GPU has: those that come round to it. */
static int ranks_on(const lap_gpu_share_t *share, int gpu)
{
    return (share->nranks - (gpu - share->first) + share->ngpus - 1) / share->ngpus;
}

lap_gpu_place_t lap_gpu_place(const lap_gpu_share_t *share, int rank)
{
    const int gpu = share->first + rank % share->ngpus;
    return (lap_gpu_place_t){gpu, rank / share->ngpus, ranks_on(share, gpu)};
}

/* LAP_GPU chooses one of the GPUs for all ranks. */
static bool choose_gpus(lap_gpu_share_t *share, int count, char why[LAP_GPU_WHY])
{
    const char *text = getenv("LAP_GPU");
    char *end = NULL;
    share->first = 0;
    share->ngpus = count;
    if (!text || !*text)
        return true;
    errno = 0;
    const long gpu = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno || gpu < 0 || gpu >= count) {
        snprintf(why, LAP_GPU_WHY, "LAP_GPU is '%.64s', expected the number of a GPU, 0 to %d",
                 text, count - 1);
        return false;
    }
    share->first = (int)gpu;
    share->ngpus = 1;
    return true;
}

/* Ranks split a GPU evenly, in whole groups of SMs. */
static bool check_parts(const lap_gpu_share_t *share, const lap_cuda_info_t *info,
                        char why[LAP_GPU_WHY])
{
    for (int g = share->first; g < share->first + share->ngpus; g++) {
        const lap_cuda_gpu_t *gpu = &info->gpus[g];
        if (ranks_on(share, g) > 1 && ranks_on(share, g) > gpu->sms / PART_SMS) {
            snprintf(why, LAP_GPU_WHY,
                     "%d ranks are too many for GPU %d (%s): its %d SMs make at most %d part%s of "
                     "%d",
                     ranks_on(share, g), g, gpu->name, gpu->sms, gpu->sms / PART_SMS,
                     gpu->sms / PART_SMS == 1 ? "" : "s", PART_SMS);
            return false;
        }
    }
    return true;
}

static bool plan(lap_gpu_share_t *share, const lap_cuda_info_t *info, char why[LAP_GPU_WHY])
{
    return choose_gpus(share, info->count, why) && check_parts(share, info, why);
}

/* What others have on a GPU is not known here: a rank may find less free than there is. */
static bool check_memory(const lap_gpu_share_t *share, const lap_cuda_info_t *info,
                         double rank_bytes, char why[LAP_GPU_WHY])
{
    for (int g = share->first; g < share->first + share->ngpus; g++) {
        const lap_cuda_gpu_t *gpu = &info->gpus[g];
        const int ranks = ranks_on(share, g);
        const double gib = 1 << 30, needed = ranks * rank_bytes;
        if (needed > (double)gpu->memory) {
            snprintf(why, LAP_GPU_WHY,
                     "this needs at least %.3g GiB of memory for %d rank%s on GPU %d (%s), which "
                     "has %.3g GiB",
                     needed / gib, ranks, ranks == 1 ? "" : "s", g, gpu->name,
                     (double)gpu->memory / gib);
            return false;
        }
    }
    return true;
}

/* The device would report the same, once in every rank. */
static bool check_dtype(const lap_gpu_share_t *share, const lap_cuda_info_t *info,
                        lap_dtype_t dtype, char why[LAP_GPU_WHY])
{
    if (!lap_dtype_is_fp8(dtype))
        return true;
    for (int g = share->first; g < share->first + share->ngpus; g++) {
        const lap_cuda_gpu_t *gpu = &info->gpus[g];
        if (ranks_on(share, g) > 0 && 10 * gpu->major + gpu->minor < LAP_CUDA_FP8_FROM) {
            snprintf(why, LAP_GPU_WHY,
                     "products of %s need compute capability %d.%d or later; GPU %d has %d.%d",
                     lap_dtype_name(dtype), LAP_CUDA_FP8_FROM / 10, LAP_CUDA_FP8_FROM % 10, g,
                     gpu->major, gpu->minor);
            return false;
        }
    }
    return true;
}

bool lap_gpu_check(const lap_gpu_needs_t *needs, lap_gpu_answer_t *answer_p, char why[LAP_GPU_WHY])
{
    lap_gpu_share_t share = {.nranks = needs->nranks};
    if (!ask(needs->transport, answer_p, why))
        return false;
    if (answer_p->status != LAP_OK) {
        snprintf(why, LAP_GPU_WHY, "%s", answer_p->why);
        return false;
    }
    return choose_gpus(&share, answer_p->info.count, why) &&
           check_dtype(&share, &answer_p->info, needs->dtype, why) &&
           check_memory(&share, &answer_p->info, needs->rank_bytes, why);
}

bool lap_gpu_share_begin(lap_gpu_mode_t mode, int nranks, const lap_gpu_answer_t *known,
                         lap_gpu_share_t *share_p, char why[LAP_GPU_WHY])
{
    lap_gpu_answer_t answer = {0};
    lap_gpu_share_t share = {.nranks = nranks};
    *share_p = share;
    if (mode == LAP_GPU_OFF)
        return true;
    if (known)
        answer = *known;
    else if (!ask(NULL, &answer, why))
        return false;
    if (answer.status != LAP_OK) {
        /* Whoever needs a GPU reports it. */
        snprintf(why, LAP_GPU_WHY, "%s", answer.why);
        return mode == LAP_GPU_AUTO;
    }
    if (!plan(&share, &answer.info, why))
        return false;
    char mps_why[LAP_MPS_WHY];
    if (nranks > share.ngpus && !lap_mps_start(&share.mps, mps_why)) {
        snprintf(why, LAP_GPU_WHY, "%d ranks cannot share %d GPU%s: %s", nranks, share.ngpus,
                 share.ngpus == 1 ? "" : "s", mps_why);
        return false;
    }
    *share_p = share;
    return true;
}

bool lap_gpu_share_end(lap_gpu_share_t *share)
{
    return lap_mps_stop(&share->mps);
}

const char *const lap_gpu_modes[] = {"off", "auto", "on", NULL};

bool lap_arg_gpu_share(const lap_command_t *command, const char *text, lap_gpu_mode_t *mode_p)
{
    size_t index;
    if (!lap_arg_choice(command, "--gpu-share", *text ? text : "on", lap_gpu_modes, &index))
        return false;
    *mode_p = (lap_gpu_mode_t)index;
    return true;
}
