/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults for `lap`: LAP_FAULT="WHAT RANK NUMBER MS" makes one happen in one rank, at the NUMBER-th call
 * of a function. WHAT is one of the functions below, which then fails, or
 *   exit    the process ends with status 7 instead of the GEMM,
 *   delay   the GEMM begins so many milliseconds late.
 * RANK -1 is any, for ranks that are threads. When it has happened, the file LAP_FAULT_MARK is made.
 * The functions are wrapped by the linker, so that only calls of our own code are counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "device/cpu/cpu_blas.h"

typedef struct fault {
    char what[32];
    int rank, number, ms;
    bool mine; /* it is for this process */
} fault_t;

static fault_t fault;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int calls;

static void read_fault(void)
{
    const char *text = getenv("LAP_FAULT"), *rank = getenv("LAP_RANK");
    if (!rank)
        rank = getenv("OMPI_COMM_WORLD_RANK");
    const size_t length = text ? strcspn(text, " ") : 0;
    if (length == 0 || length >= sizeof(fault.what))
        return;
    memcpy(fault.what, text, length);
    char *rest = (char *)text + length;
    fault.rank = (int)strtol(rest, &rest, 10);
    fault.number = (int)strtol(rest, &rest, 10);
    fault.ms = (int)strtol(rest, &rest, 10);
    fault.mine =
        *rest == '\0' && (fault.rank < 0 || (rank && strtol(rank, NULL, 10) == fault.rank));
}

/* Whether the fault `what` is due in this call of its function. */
static bool due(const char *what)
{
    pthread_once(&once, read_fault);
    if (!fault.mine || strcmp(fault.what, what) != 0 ||
        atomic_fetch_add(&calls, 1) + 1 != fault.number)
        return false;
    const char *mark = getenv("LAP_FAULT_MARK");
    const int fd = mark ? open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0)
        close(fd);
    return true;
}

static bool fails(const char *what, int error)
{
    if (!due(what))
        return false;
    errno = error;
    return true;
}

void *__real_lap_alloc(size_t count, size_t size);
void *__wrap_lap_alloc(size_t count, size_t size);
void *__wrap_lap_alloc(size_t count, size_t size)
{
    return due("lap_alloc") ? NULL : __real_lap_alloc(count, size);
}

void *__real_lap_realloc(void *old, size_t old_count, size_t count, size_t size);
void *__wrap_lap_realloc(void *old, size_t old_count, size_t count, size_t size);
void *__wrap_lap_realloc(void *old, size_t old_count, size_t count, size_t size)
{
    return due("lap_alloc") ? NULL : __real_lap_realloc(old, old_count, count, size);
}

void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return fails("mmap", ENOMEM) ? MAP_FAILED
                                 : __real_mmap(address, bytes, protection, flags, fd, offset);
}

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags)
{
    return fails("memfd_create", EMFILE) ? -1 : __real_memfd_create(name, flags);
}

int __real_ftruncate(int fd, off_t bytes);
int __wrap_ftruncate(int fd, off_t bytes);
int __wrap_ftruncate(int fd, off_t bytes)
{
    return fails("ftruncate", ENOSPC) ? -1 : __real_ftruncate(fd, bytes);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    return due("pthread_create") ? EAGAIN
                                 : __real_pthread_create(thread, attributes, start, argument);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    return fails("sendmsg", ENOBUFS) ? -1 : __real_sendmsg(fd, message, flags);
}

ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    return fails("recvmsg", ENOMEM) ? -1 : __real_recvmsg(fd, message, flags);
}

void __real_lap_blas_sgemm(const lap_blas_gemm_t *gemm);
void __wrap_lap_blas_sgemm(const lap_blas_gemm_t *gemm);
void __wrap_lap_blas_sgemm(const lap_blas_gemm_t *gemm)
{
    if (due("exit"))
        _exit(7);
    if (due("delay")) {
        const struct timespec time = {fault.ms / 1000, fault.ms % 1000 * 1000000L};
        nanosleep(&time, NULL);
    }
    __real_lap_blas_sgemm(gemm);
}
