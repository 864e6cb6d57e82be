/* SPDX-License-Identifier: Apache-2.0 */
/* Results in TAP and ranks as threads: see tap.h. */
#include "tap.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/convert.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int checks, failures;
static _Thread_local char example[320]; /* of what is wrong in the next check */

/* What was checked last and what is being done, for when the time is up. */
static char latest[1600] = "none", doing[400];

static size_t append(char *text, size_t at, size_t bytes, const char *more)
{
    while (*more && at + 1 < bytes)
        text[at++] = *more++;
    text[at] = '\0';
    return at;
}

/* In a handler: what it prints may be half written, but is never more than its room. */
static void time_is_up(int number)
{
    char text[2400];
    size_t at = append(text, 0, sizeof(text), "not ok - the time is up; the last check was: ");
    (void)number;
    at = append(text, at, sizeof(text), latest);
    at = append(text, at, sizeof(text), *doing ? "\n# and what was being done: " : "");
    at = append(text, at, sizeof(text), doing);
    at = append(text, at, sizeof(text), "\n");
    if (write(STDOUT_FILENO, text, at) < 0)
        _exit(2);
    _exit(1);
}

/* A timer of the process, not a thread: programs fork. */
__attribute__((constructor)) static void limit_time(void)
{
    const char *limit = getenv("LAP_TEST_LIMIT_S");
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMAX - 1};
    struct sigaction action = {.sa_handler = time_is_up};
    struct itimerspec when = {.it_value = {.tv_sec = limit ? atoi(limit) : 0}};
    timer_t timer;
    if (when.it_value.tv_sec > 0 && sigaction(SIGRTMAX - 1, &action, NULL) == 0 &&
        timer_create(CLOCK_MONOTONIC, &event, &timer) == 0)
        timer_settime(timer, 0, &when, NULL);
}

void tap_doing(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    vsnprintf(doing, sizeof(doing), format, args);
    pthread_mutex_unlock(&lock);
    va_end(args);
}

static bool report(bool held, const char *detail, const char *format, va_list args)
{
    pthread_mutex_lock(&lock);
    checks++;
    failures += !held;
    vsnprintf(latest, sizeof(latest), format, args);
    printf("%s %d - %s\n", held ? "ok" : "not ok", checks, latest);
    if (!held && detail && *detail)
        printf("# %s\n", detail);
    if (!held && *example)
        printf("# for example: %s\n", example);
    *example = '\0';
    fflush(stdout);
    pthread_mutex_unlock(&lock);
    return held;
}

bool tap_ok(bool held, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report(held, NULL, format, args);
    va_end(args);
    return held;
}

bool tap_wrong(bool wrong, const char *format, ...)
{
    va_list args;
    if (!wrong || *example)
        return wrong;
    va_start(args, format);
    vsnprintf(example, sizeof(example), format, args);
    va_end(args);
    return true;
}

bool tap_success(lap_status_t status, const char *format, ...)
{
    char detail[1200] = "";
    if (status != LAP_OK)
        snprintf(detail, sizeof(detail), "%s: %s", lap_status_string(status), lap_last_error());
    va_list args;
    va_start(args, format);
    report(status == LAP_OK, detail, format, args);
    va_end(args);
    return status == LAP_OK;
}

bool tap_failure(lap_status_t status, lap_status_t expected, const char *first_word, ...)
{
    const char *missing = NULL;
    va_list words;
    va_start(words, first_word);
    for (const char *word = first_word; word; word = va_arg(words, const char *))
        if (!missing && !strstr(lap_last_error(), word))
            missing = word;
    va_end(words);
    bool held = status == expected && !missing;
    tap_ok(held, "it fails with '%s' and a sentence about %s", lap_status_string(expected),
           first_word ? first_word : "it");
    if (!held && status == LAP_OK) /* whatever lap_last_error says, it is about something else */
        tap_note("expected a failure, got '%s'", lap_status_string(status));
    else if (!held)
        tap_note("got '%s', expected '%s'; the sentence%s%s%s is: %s", lap_status_string(status),
                 lap_status_string(expected), missing ? ", in which '" : "", missing ? missing : "",
                 missing ? "' is missing," : "", lap_last_error());
    return held;
}

void tap_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    printf("ok %d # SKIP ", ++checks);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    pthread_mutex_unlock(&lock);
    va_end(args);
}

void tap_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    printf("# ");
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    pthread_mutex_unlock(&lock);
    va_end(args);
}

int tap_done(void)
{
    printf("1..%d\n", checks);
    if (failures)
        printf("# %d of %d failed\n", failures, checks);
    return failures || !checks;
}

typedef struct rank_thread {
    pthread_t thread;
    lap_world_t *world;
    void (*fn)(lap_world_t *world, void *arg);
    void *arg;
} rank_thread_t;

static void *rank_main(void *context)
{
    rank_thread_t *rank = context;
    rank->fn(rank->world, rank->arg);
    lap_world_destroy(rank->world);
    return NULL;
}

void tap_ranks_of(int nranks, lap_world_t *const *worlds, void (*fn)(lap_world_t *world, void *arg),
                  void *arg)
{
    rank_thread_t *ranks = calloc((size_t)nranks, sizeof(rank_thread_t));
    if (!ranks)
        exit(tap_done() | 1);
    for (int r = 0; r < nranks; r++) {
        ranks[r] = (rank_thread_t){.world = worlds[r], .fn = fn, .arg = arg};
        if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) != 0) {
            tap_ok(false, "thread of rank %d starts", r);
            exit(tap_done());
        }
    }
    for (int r = 0; r < nranks; r++)
        pthread_join(ranks[r].thread, NULL);
    free(ranks);
}

void tap_ranks(int nranks, const lap_world_options_t *options,
               void (*fn)(lap_world_t *world, void *arg), void *arg)
{
    lap_world_t **worlds = calloc((size_t)nranks, sizeof(lap_world_t *));
    if (!worlds || !tap_success(lap_world_create_threads(nranks, options, worlds),
                                "a world of %d threads", nranks))
        exit(tap_done() | 1);
    tap_ranks_of(nranks, worlds, fn, arg);
    free(worlds);
}

void tap_launched_ranks(int nranks, const lap_world_options_t *options,
                        void (*fn)(lap_world_t *world, void *arg), void *arg)
{
    const char *launched = getenv("LAP_SIZE");
    lap_world_t *world;
    if (!launched) {
        tap_ranks(nranks, options, fn, arg);
        return;
    }
    if (atoi(launched) != nranks)
        return;
    if (!tap_success(lap_world_create(options, &world), "a world of %d ranks", nranks))
        exit(tap_done());
    fn(world, arg);
    lap_world_destroy(world);
}

uint64_t tap_random(uint64_t seed, uint64_t index)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + index * 0xd1b54a32d192ed03u + 0x8cb92ba72f3d8dd7u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

double tap_half_unit(lap_dtype_t dtype, double value)
{
    static const struct {
        int bits, lowest; /* of precision; the numbers below 2^lowest are subnormal, or the first */
        double largest;   /* that does not saturate */
    } formats[] = {[LAP_FLOAT16] = {11, -13, INFINITY},
                   [LAP_BFLOAT16] = {8, -125, INFINITY},
                   [LAP_FLOAT8_E4M3] = {4, -5, 448},
                   [LAP_FLOAT8_E5M2] = {3, -13, 57344}};
    if (dtype == LAP_FLOAT32)
        return 0;
    const int bits = formats[dtype].bits, lowest = formats[dtype].lowest;
    int exponent; /* |value| < 2^exponent */
    frexp(value, &exponent);
    const double half = ldexp(0.5, (exponent > lowest ? exponent : lowest) - bits);
    return fmax(half, fabs(value) - formats[dtype].largest);
}

/*
 * An instruction of Ada and Hopper adds 32 products to a sum of 14 bits: it shifts all 33 numbers to
 * the exponent of the largest, cuts each off 13 bits below its leading one, and so the result. So it
 * loses up to 34 units of 2^-13 of the largest. As fast accumulation is off, cuBLASLt moves such sums
 * to fp32 every few instructions, so that they are sums of runs of products; what a run is, it does
 * not say, but none is larger than the range. k that is no multiple of 16 it leaves to our kernel,
 * which sums in fp32.
 */
double tap_fp8_loss(size_t k, double range)
{
    const size_t instructions = k / 32 + 1;
    return k % 16 == 0 ? (double)instructions * 34 * 0x1p-13 * range : 0;
}

float tap_rounded(lap_dtype_t dtype, float value)
{
    unsigned char code[sizeof(float)];
    lap_from_float(dtype, &value, code, 1);
    lap_to_float(dtype, code, &value, 1);
    return value;
}

int tap_count_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

size_t tap_shared_bytes(void)
{
    char line[512], permissions[8];
    size_t begin, end, bytes = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof(line), maps))
        if (sscanf(line, "%zx-%zx %7s", &begin, &end, permissions) == 3 && permissions[3] == 's')
            bytes += end - begin;
    if (maps)
        fclose(maps);
    return bytes;
}
