/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake GPU for tests on machines without one: libcuda.so.1 whose streams are threads and whose
 * kernels are loops, libcublasLt.so.13 that can do nothing, so that the kernels multiply, and
 * libnccl.so.2. They run the host code of the device and of its transports, and check how they are
 * called. What they say nothing about: kernels.cu, cuBLASLt, NCCL itself, and time.
 */
#ifndef LAP_TEST_OVERLAP_FAKE_FAKE_H
#define LAP_TEST_OVERLAP_FAKE_FAKE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Addresses of device memory have a bit that no address of the host has: who reads or writes there
 * without the driver ends there and then. Pinned memory has none.
 */
#define FAKE_BIT ((uint64_t)1 << 52)

static inline void *fake_host(uint64_t address)
{
    return (void *)(uintptr_t)(address & ~FAKE_BIT);
}

/* kernels.c: how many bytes of arguments a kernel has; 0: there is no such kernel. Runs it. */
size_t fake_kernel_bytes(const char *name);
void fake_kernel_run(const char *name, const void *args);

void fake_nap(void);
uint64_t fake_now(void);

/* Says what was done wrong, and ends the process. */
_Noreturn void fake_wrong(const char *sentence);

#endif
