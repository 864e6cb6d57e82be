/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU that is abandoned, because its work does not end. Kernels of cuBLASMp that wait for a rank
 * that has died cannot be ended: neither ncclCommRevoke nor ncclCommAbort does so. The CUDA runtime
 * inside that library waits for them at exit, for ever. So exit has a time limit from then on: exit
 * handlers have 3 s, and then the process ends with its exit status.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "device/cuda/cuda.h"
#include "util/clock.h"
#include "util/thread.h"

#define EXIT_NS 3000000000u

static void *end_process(void *status)
{
    lap_sleep_until_ns(lap_now_ns() + EXIT_NS);
    _exit((int)(intptr_t)status);
}

/* Buffered output is written here: the C library would do so only after all handlers. */
static void limit_exit(int status, void *unused)
{
    pthread_t thread;
    (void)unused;
    if (lap_thread_start(&thread, "lap-exit", end_process, (void *)(intptr_t)status) == 0)
        pthread_detach(thread);
    (void)fflush(NULL);
}

/* The library stays loaded: dlclose does not remove a handler of on_exit. */
static void stay_loaded(void)
{
    static const char here = 0;
    Dl_info info;
    if (dladdr(&here, &info) != 0)
        (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

void lap_cuda_abandon(lap_cuda_device_t *device)
{
    if (device->dead)
        return;
    device->dead = true;
    stay_loaded();
    (void)on_exit(limit_exit, NULL);
}
