/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU that is given up. Kernels of a foreign library, which wait for a rank that has died, cannot
 * be ended: neither ncclCommRevoke nor ncclCommAbort ends those of cuBLASMp. The CUDA runtime inside
 * such a library waits for them when the process exits, for ever. So an exit has a limit from then
 * on: exit handlers have some seconds, and the process ends with the status that it was given.
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

/* Output that is still buffered would be lost: the C library writes it after all handlers. */
static void limit_exit(int status, void *unused)
{
    pthread_t thread;
    (void)unused;
    if (lap_thread_start(&thread, "lap-exit", end_process, (void *)(intptr_t)status) == 0)
        pthread_detach(thread);
    (void)fflush(NULL);
}

/* The library stays loaded: a handler with a status belongs to no library that takes it along. */
static void stay_loaded(void)
{
    static const char here = 0;
    Dl_info info;
    if (dladdr(&here, &info) != 0)
        (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

void lap_cuda_give_up(lap_cuda_device_t *device)
{
    if (device->dead)
        return;
    device->dead = true;
    stay_loaded();
    (void)on_exit(limit_exit, NULL);
}
