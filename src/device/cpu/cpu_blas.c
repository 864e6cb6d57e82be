/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads OpenBLAS, and keeps it from what it cannot do: go without memory. Each of its threads has a
 * buffer, each of ours that multiplies at the same time has one, and where mmap refuses one it tries
 * for ever. So memory is asked for before OpenBLAS does it: for its threads before they start, for
 * ours when more of them multiply at once than ever before. Where there is no more they take turns.
 *
 * And it takes care that an element has the same bits whichever rows and columns are multiplied with it:
 * an overlapped GEMM comes in pieces. It looks at what OpenBLAS does on this processor, and mends that.
 */
#include "device/cpu/cpu_blas.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "core/environment.h"
#include "core/library.h"
#include "core/status.h"
#include "lap_config.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/cores.h"
#include "util/thread.h"

#define MIB ((size_t)1 << 20)
#define LIBRARY_BYTES (48 * MIB) /* itself and what it needs */
#define BUFFER_BYTES (128 * MIB) /* its largest, which it has on x86-64; 32 MiB elsewhere */
#define TURN_NS 50000u           /* how long a thread without a buffer rests */
#define FIRST_SIZE 128           /* a GEMM that is not so small that it needs no buffer */
#define PART_FIRST 5             /* where a part of it begins that is multiplied by itself */
#define PART_SIZE 64             /* a part that is not small to it, either */
#define SMALL 1000000            /* m n k of up to so many are small to it */
#define PAD 64                   /* rows, columns and depth of a small one that is made larger */

#define KERNELS_VARIABLE "OPENBLAS_CORETYPE"
#ifdef __x86_64__
static const char *const even_kernels = "Sandybridge"; /* for AVX: whoever has AVX2 has it, too */
#define OLDEST_KERNELS "Prescott"
#else
static const char *const even_kernels = NULL; /* none is known to be needed */
#endif

static const lap_library_t library = {
    .title = "OpenBLAS",
    .variable = "LAP_OPENBLAS",
    .names = {LAP_OPENBLAS_FILE},
    .dir = LAP_OPENBLAS_DIR,
    .advice = "install libopenblas0",
};

#define CALLS(X)                                                                                   \
    X(cblas_sgemm)                                                                                 \
    X(openblas_get_config)                                                                         \
    X(openblas_get_num_threads)                                                                    \
    X(openblas_set_num_threads)

/* Which parts of a matrix are the same bits as in the whole, when they are multiplied by themselves. */
typedef enum evenness {
    EVEN,
    EVEN_IF_LARGE, /* on x86-64 with AVX-512 small ones have kernels of their own */
    UNEVEN,        /* on x86-64 with AVX2 the last rows and columns of a call round otherwise */
} evenness_t;

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a name of a field cannot stand in parentheses */
#define FIELD(name) __typeof__(&name) name;

static struct {
    pthread_mutex_t lock; /* of loading */
    bool loaded;
    atomic_int inside; /* threads that multiply */
    atomic_int most;   /* as many have done so at once */
    evenness_t evenness;
    CALLS(FIELD)
} blas = {.lock = PTHREAD_MUTEX_INITIALIZER};

#undef FIELD

/*
 * Whether the process may have as much memory more, at this moment. Not whether all of it could be
 * used: OpenBLAS touches little of its buffers.
 */
static bool has_room(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    munmap(memory, bytes);
    return true;
}

/* What a thread of OpenBLAS takes: a buffer and a stack. */
static size_t thread_bytes(void)
{
    pthread_attr_t attributes;
    size_t stack = 8 * MIB;
    if (pthread_attr_init(&attributes) == 0) {
        (void)pthread_attr_getstacksize(&attributes, &stack);
        pthread_attr_destroy(&attributes);
    }
    return BUFFER_BYTES + stack;
}

static lap_status_t check_room(size_t bytes, int threads)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    if (has_room(bytes))
        return LAP_OK;
    (void)getrlimit(RLIMIT_AS, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        return lap_error(LAP_ERR_NO_MEMORY,
                         "OpenBLAS with %d thread%s may need %zu MiB of address space, which this "
                         "process cannot have; OPENBLAS_NUM_THREADS says how many threads it has",
                         threads, threads == 1 ? "" : "s", bytes / MIB);
    return lap_error(LAP_ERR_NO_MEMORY,
                     "OpenBLAS with %d thread%s may need %zu MiB of address space, which this "
                     "process cannot have: ulimit -v is %zu KiB; OPENBLAS_NUM_THREADS says how "
                     "many threads it has",
                     threads, threads == 1 ? "" : "s", bytes / MIB, (size_t)limit.rlim_cur / 1024);
}

/* The threads with which it starts, by the variables that it reads. */
static int first_threads(void)
{
    static const char *const names[] = {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS",
                                        "OMP_NUM_THREADS"};
    const int cores = lap_cores();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = getenv(names[i]);
        const long threads = text ? strtol(text, NULL, 10) : 0;
        if (threads > 0)
            return threads < cores ? (int)threads : cores;
    }
    return cores;
}

/* Rows and columns of a square d = op(a) op(b): its first element and how many there are. */
typedef struct part {
    blasint row, col, rows, cols;
} part_t;

static void multiply_part(const float *a, int a_turned, const float *b, int b_turned, float *d,
                          part_t part)
{
    const blasint size = FIRST_SIZE;
    blas.cblas_sgemm(CblasRowMajor, a_turned ? CblasTrans : CblasNoTrans,
                     b_turned ? CblasTrans : CblasNoTrans, part.rows, part.cols, size, 1,
                     a + (size_t)part.row * (a_turned ? 1 : size), size,
                     b + (size_t)part.col * (b_turned ? size : 1), size, 0,
                     d + (size_t)part.row * size + part.col, size);
}

/* `d` holds the whole in its first square, the second is for the part. */
static bool same_bits(const float *a, int a_turned, const float *b, int b_turned, float *d,
                      part_t part)
{
    float *by_itself = d + (size_t)FIRST_SIZE * FIRST_SIZE;
    multiply_part(a, a_turned, b, b_turned, by_itself, part);
    for (blasint row = part.row; row < part.row + part.rows; row++) {
        const size_t first = (size_t)row * FIRST_SIZE + part.col;
        if (memcmp(d + first, by_itself + first, (size_t)part.cols * sizeof(float)) != 0)
            return false;
    }
    return true;
}

/* `a` and `b` are squares of FIRST_SIZE, `d` is two. */
static evenness_t find_evenness(float *a, float *b, float *d)
{
    static const part_t whole = {0, 0, FIRST_SIZE, FIRST_SIZE};
    static const part_t large[] = {{PART_FIRST, 0, PART_SIZE, FIRST_SIZE},
                                   {0, PART_FIRST, FIRST_SIZE, PART_SIZE}};
    static const part_t small = {0, 0, PART_FIRST, FIRST_SIZE};
    const size_t count = (size_t)FIRST_SIZE * FIRST_SIZE;
    evenness_t evenness = EVEN;
    for (size_t i = 0; i < count; i++) {
        a[i] = 1.0f / (float)(i % 1009 + 3);
        b[i] = 1.0f / (float)(i % 997 + 2);
    }
    for (int turned = 0; turned < 4; turned++) {
        const int a_turned = turned & 1, b_turned = turned & 2;
        multiply_part(a, a_turned, b, b_turned, d, whole);
        for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++)
            if (!same_bits(a, a_turned, b, b_turned, d, large[i]))
                return UNEVEN;
        if (!same_bits(a, a_turned, b, b_turned, d, small))
            evenness = EVEN_IF_LARGE;
    }
    return evenness;
}

/* In a thread with a stack that is large enough, whatever that of the caller is. */
static void *multiply_main(void *matrices)
{
    const size_t count = (size_t)FIRST_SIZE * FIRST_SIZE;
    float *a = matrices;
    blas.evenness = find_evenness(a, a + count, a + 2 * count);
    return NULL;
}

/* The buffer of the first thread that multiplies: from here on there is always one. */
static lap_status_t multiply_first(void)
{
    pthread_t thread;
    float *matrices = lap_alloc((size_t)4 * FIRST_SIZE * FIRST_SIZE, sizeof(float));
    if (!matrices)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the first GEMM of OpenBLAS");
    errno = lap_thread_start(&thread, "lap-blas", multiply_main, matrices);
    const lap_status_t status =
        errno == 0 ? LAP_OK : lap_error_errno("cannot start a thread for the first GEMM");
    if (status == LAP_OK)
        pthread_join(thread, NULL);
    lap_free(matrices);
    return status;
}

static lap_status_t open_and_try(void **handle_p)
{
    LAP_TRY(lap_library_open(&library, handle_p));
#define FIND(name) LAP_TRY(lap_library_find(&library, *handle_p, #name, &blas.name));
    CALLS(FIND)
#undef FIND
    return multiply_first();
}

/*
 * Loads it again, with the kernels named. It reads its variable only while it is loaded; the environment
 * is then as it was. Where others have it in the process already, all stays as it is.
 */
static lap_status_t reopen_as(const char *kernels, void **handle_p)
{
    const char *given = getenv(KERNELS_VARIABLE);
    char *before = given ? strdup(given) : NULL;
    if (given && !before)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the value of " KERNELS_VARIABLE);
    lap_library_close(*handle_p);
    setenv(KERNELS_VARIABLE, kernels, 1);
    const lap_status_t status = open_and_try(handle_p);
    if (before)
        setenv(KERNELS_VARIABLE, before, 1);
    else
        unsetenv(KERNELS_VARIABLE);
    free(before);
    return status;
}

/*
 * Whether this processor is newer than OpenBLAS, which then takes the kernels of the oldest one: they are many times
 * slower, and not even. Not where the user has named some.
 */
static bool is_newer(void)
{
#ifdef __x86_64__
    return !getenv(KERNELS_VARIABLE) && strstr(blas.openblas_get_config(), OLDEST_KERNELS) &&
           __builtin_cpu_supports("avx");
#else
    return false;
#endif
}

static lap_status_t load(void)
{
    void *handle;
    bool even;
    const int threads = first_threads();
    LAP_TRY(lap_environment_blas_even(&even));
    LAP_TRY(
        check_room(LIBRARY_BYTES + BUFFER_BYTES + (size_t)(threads - 1) * thread_bytes(), threads));
    LAP_TRY(open_and_try(&handle));
    if (even_kernels && (is_newer() || (blas.evenness == UNEVEN && even)))
        LAP_TRY(reopen_as(even_kernels, &handle));
    return LAP_OK;
}

lap_status_t lap_blas_load(void)
{
    lap_status_t status = LAP_OK;
    pthread_mutex_lock(&blas.lock);
    if (!blas.loaded)
        status = load();
    if (status == LAP_OK && !blas.loaded) {
        blas.most = 1;
        blas.loaded = true;
    }
    pthread_mutex_unlock(&blas.lock);
    return status;
}

int lap_blas_threads(void)
{
    return blas.openblas_get_num_threads();
}

lap_status_t lap_blas_set_threads(int threads)
{
    const int more = threads - blas.openblas_get_num_threads();
    if (more > 0)
        LAP_TRY(check_room((size_t)more * thread_bytes(), threads));
    blas.openblas_set_num_threads(threads);
    return LAP_OK;
}

const char *lap_blas_config(void)
{
    return blas.openblas_get_config();
}

/*
 * Kernels of OpenBLAS for AVX leave the upper halves of vector registers in use. Code without AVX, as ours is, then waits
 * each time that it and code with AVX take turns, as in a loop with expf: it took 40 times as long.
 */
#ifdef __x86_64__
__attribute__((target("avx"), noinline)) static void clear_upper_halves(void)
{
    __builtin_ia32_vzeroupper();
}

static void leave_avx(void)
{
    if (__builtin_cpu_supports("avx"))
        clear_upper_halves();
}
#else
static void leave_avx(void)
{
}
#endif

/* Comes in, when there is a buffer for it: with all that others hold, but the first. */
static void enter(void)
{
    for (;;) {
        const int inside = atomic_fetch_add(&blas.inside, 1) + 1;
        int most = atomic_load_explicit(&blas.most, memory_order_relaxed);
        if (inside <= most)
            return;
        if (has_room((size_t)(inside - 1) * BUFFER_BYTES)) {
            while (most < inside && !atomic_compare_exchange_weak(&blas.most, &most, inside))
                ;
            return;
        }
        atomic_fetch_sub(&blas.inside, 1);
        lap_sleep_until_ns(lap_now_ns() + TURN_NS);
    }
}

void lap_blas_sgemm(const lap_blas_gemm_t *gemm)
{
    enter();
    blas.cblas_sgemm(CblasRowMajor, gemm->a_op, gemm->b_op, gemm->m, gemm->n, gemm->k, gemm->alpha,
                     gemm->a, gemm->lda, gemm->b, gemm->ldb, gemm->beta, gemm->d, gemm->ldd);
    leave_avx();
    atomic_fetch_sub(&blas.inside, 1);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void copy(const float *from, blasint from_stride, float *to, blasint to_stride, blasint rows,
                 blasint cols)
{
    for (size_t i = 0; i < (size_t)rows; i++)
        memcpy(to + i * (size_t)to_stride, from + i * (size_t)from_stride,
               (size_t)cols * sizeof(float));
}

/* A small GEMM as a part of one that is not. */
static lap_status_t multiply_padded(const lap_blas_gemm_t *gemm)
{
    const size_t deep = larger((size_t)gemm->k, PAD), results = SMALL / deep + 1;
    const size_t cols = larger((size_t)gemm->n, results < PAD ? results : PAD);
    const size_t rows = larger((size_t)gemm->m, results / cols + 1);
    const bool a_turned = gemm->a_op == CblasTrans, b_turned = gemm->b_op == CblasTrans;
    /* At most some MiB, for each call anew: none of the memory whose lack is tried at every place. */
    float *room = calloc(rows * deep + deep * cols + rows * cols, sizeof(float));
    if (!room)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a GEMM of %zu x %zu x %zu",
                         (size_t)gemm->m, (size_t)gemm->n, (size_t)gemm->k);
    float *a = room, *b = a + rows * deep, *d = b + deep * cols;
    const lap_blas_gemm_t padded = {.a_op = gemm->a_op,
                                    .b_op = gemm->b_op,
                                    .m = (blasint)rows,
                                    .n = (blasint)cols,
                                    .k = (blasint)deep,
                                    .alpha = gemm->alpha,
                                    .beta = gemm->beta,
                                    .a = a,
                                    .b = b,
                                    .d = d,
                                    .lda = (blasint)(a_turned ? rows : deep),
                                    .ldb = (blasint)(b_turned ? deep : cols),
                                    .ldd = (blasint)cols};
    copy(gemm->a, gemm->lda, a, padded.lda, a_turned ? gemm->k : gemm->m,
         a_turned ? gemm->m : gemm->k);
    copy(gemm->b, gemm->ldb, b, padded.ldb, b_turned ? gemm->n : gemm->k,
         b_turned ? gemm->k : gemm->n);
    if (gemm->beta != 0)
        copy(gemm->d, gemm->ldd, d, padded.ldd, gemm->m, gemm->n);
    lap_blas_sgemm(&padded);
    copy(d, padded.ldd, gemm->d, gemm->ldd, gemm->m, gemm->n);
    free(room);
    return LAP_OK;
}

lap_status_t lap_blas_sgemm_even(const lap_blas_gemm_t *gemm)
{
    const blasint m = gemm->m, n = gemm->n, k = gemm->k;
    const bool small = m > 0 && n > 0 && k > 0 && (double)m * (double)n * (double)k <= SMALL;
    if (blas.evenness == EVEN_IF_LARGE && small) /* whatever LAP_BLAS_EVEN is: it costs little */
        return multiply_padded(gemm);
    lap_blas_sgemm(gemm);
    return LAP_OK;
}
