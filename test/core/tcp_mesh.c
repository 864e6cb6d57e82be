/* SPDX-License-Identifier: Apache-2.0 */
/* Connections between all ranks: many ranks, and who comes or listens there and is none. The others are played here. */
#include "core/tcp/tcp.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/world.h"
#include "tap.h"
#include "util/alloc.h"

#define SECOND ((uint64_t)1000000000)
#define GREETING_MAGIC 0x4c61705769726531u
#define RANKS 200 /* of a mesh: more than 64 */

typedef struct greeting {
    uint64_t magic;
    lap_key_t key;
    int32_t from, to;
} greeting_t;

static const lap_key_t key = {{3, 4}};

/* A rank that connects to the others, in a thread. */
typedef struct opener {
    lap_world_t world;
    lap_tcp_door_t door;
    lap_tcp_rendezvous_t rendezvous;
    int nobody[RANKS]; /* is at the rendezvous */
    lap_tcp_address_t addresses[RANKS];
    int port;
    int *fds;
    pthread_t thread;
    lap_status_t status;
    char sentence[LAP_ERROR_TEXT];
} opener_t;

static void *mesh_main(void *arg)
{
    opener_t *opener = arg;
    lap_deadline_t deadline = lap_deadline_after(20 * SECOND);
    opener->status =
        lap_tcp_mesh(&opener->world, &opener->door, &opener->rendezvous, &deadline, &opener->fds);
    if (opener->status != LAP_OK)
        snprintf(opener->sentence, sizeof(opener->sentence), "%s", lap_last_error());
    return NULL;
}

static void prepare(opener_t *opener, int rank, int size)
{
    memset(opener, 0, sizeof(*opener));
    opener->world = (lap_world_t){.rank = rank, .size = size, .timeout_ns = 20 * SECOND};
    opener->rendezvous = (lap_tcp_rendezvous_t){.rank = rank, .size = size, .fds = opener->nobody};
    opener->door = (lap_tcp_door_t){.key = key, .addresses = opener->addresses};
    for (int i = 0; i < size; i++)
        opener->nobody[i] = -1;
    tap_success(lap_tcp_listen(0, &opener->door.listener, &opener->port), "rank %d listens", rank);
}

static void end(opener_t *opener)
{
    pthread_join(opener->thread, NULL);
    for (int i = 0; opener->status == LAP_OK && i < opener->world.size; i++)
        if (opener->fds[i] >= 0)
            close(opener->fds[i]);
    lap_free(opener->fds);
    close(opener->door.listener);
}

static lap_tcp_address_t local_port(int port)
{
    lap_tcp_address_t address = {.v4 = {.sin_family = AF_INET}};
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    lap_tcp_set_port(&address, port);
    return address;
}

static int connect_to(int port)
{
    const lap_tcp_address_t address = local_port(port);
    lap_deadline_t deadline = lap_deadline_after(20 * SECOND);
    int fd = -1;
    return lap_tcp_connect(&address, &deadline, &fd) == LAP_OK ? fd : -1;
}

static bool sends(int fd, const void *data, size_t bytes)
{
    lap_deadline_t deadline = lap_deadline_after(20 * SECOND);
    return lap_tcp_write(fd, data, bytes, &deadline) == LAP_OK;
}

static bool hears(int fd, void *data, size_t bytes)
{
    lap_deadline_t deadline = lap_deadline_after(20 * SECOND);
    return lap_tcp_read(fd, data, bytes, &deadline) == LAP_OK;
}

/* The other side says no more, and closes. */
static bool hears_the_end(int fd)
{
    char byte;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    if (poll(&one, 1, 20000) != 1)
        return false;
    const ssize_t got = recv(fd, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

/* All ranks connect before one of them says who it is. */
static void test_many(void)
{
    static opener_t opener;
    const greeting_t no_rank = {.magic = GREETING_MAGIC, .key = {{5, 6}}, .from = 1};
    int fds[RANKS], sent = 0, answered = 0;
    prepare(&opener, 0, RANKS);
    for (int rank = 1; rank < RANKS; rank++)
        fds[rank] = connect_to(opener.port);
    const int last = connect_to(opener.port);
    pthread_create(&opener.thread, NULL, mesh_main, &opener);
    tap_ok(sends(last, &no_rank, sizeof(no_rank)) && hears_the_end(last),
           "who comes last, without the key, is turned away");
    close(last);
    for (int rank = 1; rank < RANKS; rank++) {
        const greeting_t greeting = {GREETING_MAGIC, key, rank, 0};
        sent += sends(fds[rank], &greeting, sizeof(greeting));
    }
    for (int rank = 1; rank < RANKS; rank++) {
        greeting_t answer;
        answered += hears(fds[rank], &answer, sizeof(answer)) && answer.magic == GREETING_MAGIC &&
                    answer.from == 0 && answer.to == rank &&
                    memcmp(&answer.key, &key, sizeof(key)) == 0;
    }
    end(&opener);
    tap_ok(sent == RANKS - 1, "all ranks before it are still heard: %d", sent);
    tap_ok(answered == RANKS - 1, "... and answered: %d", answered);
    tap_success(opener.status, "%d ranks are connected", RANKS);
    for (int rank = 1; rank < RANKS; rank++)
        close(fds[rank]);
}

/* Who is at the address of rank 0 hears the greeting of rank 1, and is not rank 0. */
static void check_other(const char *what, const greeting_t *answer, const char *why)
{
    static opener_t opener;
    lap_tcp_address_t from;
    greeting_t heard;
    int listener = -1, port = 0, fd = -1;
    prepare(&opener, 1, 2);
    tap_success(lap_tcp_listen(0, &listener, &port), "somebody listens");
    opener.addresses[0] = local_port(port);
    pthread_create(&opener.thread, NULL, mesh_main, &opener);
    struct pollfd one = {.fd = listener, .events = POLLIN};
    if (poll(&one, 1, 20000) == 1)
        (void)lap_tcp_accept(listener, 0, 2, &fd, &from);
    const bool spoke = hears(fd, &heard, sizeof(heard)) && heard.from == 1 && heard.to == 0 &&
                       (!answer || sends(fd, answer, sizeof(*answer)));
    close(fd);
    end(&opener);
    tap_ok(spoke && opener.status == LAP_ERR_PEER_LOST &&
               strstr(opener.sentence, "rank 1 cannot reach rank 0 at 127.0.0.1:") &&
               strstr(opener.sentence, why),
           "%s is not taken for rank 0: %s", what, opener.sentence);
    close(listener);
}

static void test_others(void)
{
    const greeting_t wrong_key = {GREETING_MAGIC, {{3, 5}}, 0, 1};
    const greeting_t wrong_rank = {GREETING_MAGIC, key, 2, 1};
    const greeting_t wrong_magic = {7, key, 0, 1};
    check_other("one who says nothing and goes", NULL, "Connection reset by peer");
    check_other("one without the key", &wrong_key, "another process listens there");
    check_other("another rank", &wrong_rank, "another process listens there");
    check_other("one of another kind", &wrong_magic, "another process listens there");
}

/* Rank 0 ends, then rank 1 because of it: rank 2, which sees only that rank 1 did, learns the cause. */
static void check_report(lap_status_t status, const char *sentence, const char *expected)
{
    int ends[2] = {-1, -1}, fds[3] = {-1, -1, -1};
    lap_tcp_rendezvous_t rendezvous = {.rank = 2, .size = 3, .fds = fds};
    lap_deadline_t deadline = lap_deadline_after(20 * SECOND);
    tap_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && close(ends[1]) == 0, "rank 0 ends");
    fds[0] = ends[0];
    lap_error(status, "%s", sentence);
    tap_failure(lap_tcp_report(&rendezvous, status, &deadline), status, expected, NULL);
    close(ends[0]);
}

static void test_rank_0_gone(void)
{
    check_report(LAP_ERR_PEER_LOST, "rank 2 cannot reach rank 1", "rank 0 went away");
    check_report(LAP_ERR_NO_MEMORY, "no memory", "no memory");
}

int main(void)
{
    test_many();
    test_others();
    test_rank_0_gone();
    return tap_done();
}
