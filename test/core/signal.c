/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signal words: order, wrap, many raisers, several words at once, timeouts, looks, and words in
 * shared memory.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/signal.h"
#include "tap.h"
#include "util/clock.h"

#define MS 1000000u

static lap_bank_t *bank_new(size_t nwords)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, lap_bank_bytes(nwords)) != 0)
        abort();
    return memset(memory, 0, lap_bank_bytes(nwords));
}

static lap_watch_t patient(uint64_t spin_ns)
{
    return (lap_watch_t){.timeout_ns = 20000u * (uint64_t)MS, .spin_ns = spin_ns};
}

/*
 * Two threads pass a number back and forth through plain memory: each signal must bring the number
 * with it.
 */
typedef struct pingpong {
    lap_bank_t *bank;
    uint64_t spin_ns;
    long number;
    int rounds;
    bool right;
} pingpong_t;

static void *pong(void *arg)
{
    pingpong_t *game = arg;
    lap_watch_t watch = patient(game->spin_ns);
    for (int i = 1; i <= game->rounds; i++) {
        if (lap_bank_wait(game->bank, 0, (uint32_t)i, &watch) != LAP_OK ||
            game->number != 2L * i - 1) {
            game->right = false;
            break;
        }
        game->number++;
        lap_bank_raise(game->bank, 1);
    }
    return NULL;
}

static void test_pingpong(uint64_t spin_ns)
{
    pingpong_t game = {.bank = bank_new(2), .spin_ns = spin_ns, .rounds = 3000, .right = true};
    lap_watch_t watch = patient(spin_ns);
    pthread_t thread;
    pthread_create(&thread, NULL, pong, &game);
    lap_status_t status = LAP_OK;
    uint64_t start = lap_now_ns();
    for (int i = 1; i <= game.rounds && status == LAP_OK; i++) {
        game.number++;
        lap_bank_raise(game.bank, 0);
        status = lap_bank_wait(game.bank, 1, (uint32_t)i, &watch);
    }
    uint64_t ns = (lap_now_ns() - start) / (uint64_t)game.rounds;
    pthread_join(thread, NULL);
    tap_ok(status == LAP_OK && game.right && game.number == 2L * game.rounds,
           "%d signals to and fro carry the data with them, spinning %llu ns", game.rounds,
           (unsigned long long)spin_ns);
    tap_note("%llu ns there and back", (unsigned long long)ns);
    free(game.bank);
}

static void *raise_many(void *arg)
{
    for (int i = 0; i < 5000; i++)
        lap_bank_raise(arg, 0);
    return NULL;
}

static void test_many_raisers(void)
{
    lap_bank_t *bank = bank_new(1);
    lap_watch_t watch = patient(0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, raise_many, bank);
    tap_ok(lap_bank_wait(bank, 0, 20000, &watch) == LAP_OK, "four raisers are all counted");
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    tap_ok(!lap_bank_reached(bank, 0, 20001), "and not more than that");
    tap_ok(atomic_load(&bank->sleepers) == 0, "nobody sleeps any more");
    free(bank);
}

static void test_any_and_wrap(void)
{
    lap_bank_t *bank = bank_new(3);
    lap_watch_t watch = patient(0);
    size_t which = 9;
    const lap_bank_wait_t waits[] = {{0, 1}, {2, 1}, {1, 1}};
    lap_bank_raise(bank, 1);
    tap_ok(lap_bank_wait_any(bank, waits, 3, &watch, &which) == LAP_OK && which == 2,
           "any of three words: the one that came");
    lap_bank_raise(bank, 2);
    tap_ok(lap_bank_wait_any(bank, waits, 3, &watch, &which) == LAP_OK && which == 1,
           "any of three words: the first that has come");
    atomic_store(&bank->words[0].value, UINT32_MAX - 1);
    tap_ok(lap_bank_reached(bank, 0, UINT32_MAX - 1) && !lap_bank_reached(bank, 0, 0),
           "before the wrap, 0 is still to come");
    lap_bank_raise(bank, 0);
    lap_bank_raise(bank, 0);
    tap_ok(lap_bank_reached(bank, 0, UINT32_MAX) && lap_bank_reached(bank, 0, 0) &&
               !lap_bank_reached(bank, 0, 1),
           "after the wrap, 0 has been reached");
    free(bank);
}

typedef struct looker {
    lap_bank_t *bank;
    int looks;
    int fail_at;
    bool raise_then;
} looker_t;

static lap_status_t look(void *context)
{
    looker_t *looker = context;
    if (++looker->looks < looker->fail_at)
        return LAP_OK;
    if (looker->raise_then)
        lap_bank_raise(looker->bank, 0);
    return LAP_ERR_PEER_LOST;
}

static void *ring_often(void *arg)
{
    lap_bank_t *bank = arg;
    while (!lap_bank_reached(bank, 1, 1)) {
        lap_bank_ring(bank);
        usleep(100);
    }
    return NULL;
}

static void test_watch(void)
{
    lap_bank_t *bank = bank_new(2);
    lap_watch_t watch = {.timeout_ns = 50 * MS};
    uint64_t start = lap_now_ns();
    lap_status_t status = lap_bank_wait(bank, 0, 1, &watch);
    uint64_t took = lap_now_ns() - start;
    tap_ok(status == LAP_ERR_TIMEOUT && took >= 50 * MS,
           "a wait for nothing ends, not before its time (%llu us)",
           (unsigned long long)(took / 1000));

    looker_t looker = {.bank = bank, .fail_at = 3};
    watch = (lap_watch_t){.timeout_ns = 20000u * (uint64_t)MS, .look = look, .context = &looker};
    start = lap_now_ns();
    status = lap_bank_wait(bank, 0, 1, &watch);
    took = lap_now_ns() - start;
    tap_ok(status == LAP_ERR_PEER_LOST && looker.looks == 3, "what look says ends the wait");
    tap_ok(took >= 60 * MS, "look is called every 20 ms, not more often (3 in %llu us)",
           (unsigned long long)(took / 1000));

    pthread_t thread;
    pthread_create(&thread, NULL, ring_often, bank);
    looker = (looker_t){.bank = bank, .fail_at = 3};
    start = lap_now_ns();
    status = lap_bank_wait(bank, 0, 1, &watch);
    took = lap_now_ns() - start;
    lap_bank_raise(bank, 1);
    pthread_join(thread, NULL);
    tap_ok(status == LAP_ERR_PEER_LOST && took >= 55 * MS,
           "also when the bell rings all the time (3 in %llu us)",
           (unsigned long long)(took / 1000));

    looker = (looker_t){.bank = bank, .fail_at = 1, .raise_then = true};
    tap_ok(lap_bank_wait(bank, 0, 1, &watch) == LAP_OK && looker.looks == 1,
           "a word that came just before look failed wins");
    free(bank);
}

static void test_processes(void)
{
    const int rounds = 2000;
    lap_bank_t *bank = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    lap_watch_t watch = patient(20000);
    lap_status_t status = LAP_OK;
    pid_t child = fork();
    if (child == 0) {
        for (int i = 1; i <= rounds && status == LAP_OK; i++) {
            status = lap_bank_wait(bank, 0, (uint32_t)i, &watch);
            lap_bank_raise(bank, 1);
        }
        _exit(status != LAP_OK);
    }
    uint64_t start = lap_now_ns();
    for (int i = 1; i <= rounds && status == LAP_OK; i++) {
        lap_bank_raise(bank, 0);
        status = lap_bank_wait(bank, 1, (uint32_t)i, &watch);
    }
    uint64_t ns = (lap_now_ns() - start) / (uint64_t)rounds;
    int exited = 1;
    waitpid(child, &exited, 0);
    tap_ok(status == LAP_OK && exited == 0, "%d signals to another process and back", rounds);
    tap_note("%llu ns there and back", (unsigned long long)ns);
    munmap(bank, 4096);
}

int main(void)
{
    tap_ok(lap_bank_bytes(0) == 64 && lap_bank_bytes(3) == 4 * 64, "a cache line for each word");
    test_any_and_wrap();
    test_processes();
    test_pingpong(0);
    test_pingpong(20000);
    test_many_raisers();
    test_watch();
    return tap_done();
}
