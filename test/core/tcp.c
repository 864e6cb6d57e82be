/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who comes to a rendezvous over TCP and is no rank of the job, or listens where rank 0 is looked
 * for: it is played here, byte by byte. Ranks are threads.
 */
#include "core/hub/hub.h"

#include <lap/version.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/make.h"
#include "core/world.h"
#include "tap.h"
#include "util/clock.h"

#define SECOND 1000000000u
#define FRAME_MAGIC 0x4c61704d65657432u

static lap_master_t master; /* where the ranks of a test look for rank 0, and its key */

/* Once set, the kernel has no random numbers. */
static _Atomic bool no_random;

ssize_t __real_getrandom(void *data, size_t bytes, unsigned int flags);
ssize_t __wrap_getrandom(void *data, size_t bytes, unsigned int flags);

ssize_t __wrap_getrandom(void *data, size_t bytes, unsigned int flags)
{
    if (!atomic_load(&no_random))
        return __real_getrandom(data, bytes, flags);
    errno = ENOSYS;
    return -1;
}

/* A rank that meets the others, in a thread. */
typedef struct member {
    lap_hub_t hub;
    pthread_t thread;
    lap_status_t status;
    char sentence[LAP_ERROR_TEXT];
    uint64_t took_ns;
} member_t;

static void *meet_main(void *arg)
{
    member_t *member = arg;
    const uint64_t began = lap_now_ns();
    lap_deadline_t deadline = lap_deadline_after(member->hub.timeout_ns);
    member->status = lap_hub_join(&member->hub, LAP_OK, &deadline);
    member->took_ns = lap_now_ns() - began;
    if (member->status != LAP_OK)
        snprintf(member->sentence, sizeof(member->sentence), "%s", lap_last_error());
    return NULL;
}

static void start(member_t *member, int rank, int size, uint64_t timeout_ns)
{
    memset(member, 0, sizeof(*member));
    member->hub = (lap_hub_t){.kind = &lap_hub_tcp,
                              .rank = rank,
                              .size = size,
                              .master = &master,
                              .timeout_ns = timeout_ns};
    pthread_create(&member->thread, NULL, meet_main, member);
}

static void end(member_t *member)
{
    pthread_join(member->thread, NULL);
    lap_hub_leave(&member->hub);
    if (member->sentence[0])
        tap_note("rank %d: %s", member->hub.rank, member->sentence);
}

/* A listener, with the port after it free, too. */
static int listen_twice(void)
{
    for (int port = 20000 + (int)(getpid() % 6000) * 2;; port += 2) {
        int one = -1, two = -1, got;
        if (lap_tcp_listen(port, &one, &got) != LAP_OK)
            continue;
        if (lap_tcp_listen(port + 1, &two, &got) == LAP_OK) {
            close(two);
            master = (lap_master_t){.hosts = "127.0.0.1",
                                    .port = port,
                                    .nports = 1,
                                    .source = "a test",
                                    .listener = -1,
                                    .key = {{0x1122334455667788, 0x99aabbccddeeff00}}};
            return one;
        }
        close(one);
    }
}

static lap_tcp_address_t local_port(int port)
{
    lap_tcp_address_t address = {.v4 = {.sin_family = AF_INET}};
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    lap_tcp_set_port(&address, port);
    return address;
}

/* A connection to this host, once somebody listens there. */
static int connect_to(int port)
{
    const lap_tcp_address_t address = local_port(port);
    lap_deadline_t deadline = lap_deadline_after(20 * (uint64_t)SECOND);
    for (int fd; !lap_deadline_passed(&deadline); lap_sleep_until_ns(lap_now_ns() + 5000000u))
        if (lap_tcp_connect(&address, &deadline, &fd) == LAP_OK)
            return fd;
    return -1;
}

/* One who has connected; -1: nobody has. */
static int accept_now(int listener)
{
    lap_tcp_address_t from;
    int fd = -1;
    return lap_tcp_accept(listener, 0, 1, &fd, &from) == LAP_OK ? fd : -1;
}

static int accept_one(int listener)
{
    struct pollfd one = {.fd = listener, .events = POLLIN};
    return poll(&one, 1, 20000) == 1 ? accept_now(listener) : -1;
}

static bool sends(int fd, const void *data, size_t bytes)
{
    lap_deadline_t deadline = lap_deadline_after(20 * (uint64_t)SECOND);
    return lap_stream_write(fd, data, bytes, &deadline) == LAP_OK;
}

static bool hears(int fd, void *data, size_t bytes)
{
    lap_deadline_t deadline = lap_deadline_after(20 * (uint64_t)SECOND);
    return lap_stream_read(fd, data, bytes, &deadline) == LAP_OK;
}

/* The other side says no more, and closes. */
static bool hears_the_end(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    char byte;
    if (poll(&one, 1, 20000) != 1)
        return false;
    const ssize_t got = recv(fd, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

/* ---- who listens where rank 0 is looked for ---- */

static void check_given_up(member_t *member, const char *who)
{
    end(member);
    tap_ok(member->status == LAP_ERR_TIMEOUT && strstr(member->sentence, "within 1 s"),
           "%s: the rank does not find rank 0", who);
    /* Load may keep a thread from running for seconds, but not until a timeout of 60 s. */
    tap_ok(member->took_ns >= 9u * (SECOND / 10) && member->took_ns < 20u * (uint64_t)SECOND,
           "... and says so after its timeout of 1 s (%.2f s)", (double)member->took_ns * 1e-9);
}

static void test_silence(void)
{
    const int listener = listen_twice();
    member_t rank;
    start(&rank, 1, 2, SECOND);
    check_given_up(&rank, "a listener that says nothing");
    int asked = 0;
    for (int fd; (fd = accept_now(listener)) >= 0; asked++)
        close(fd);
    tap_ok(asked >= 1 && asked <= 4, "... which one wait of 1 s asks once or little more: %d",
           asked);
    /* The queue of one who never accepts is full: the kernel answers nobody any more. */
    int fillers[4];
    (void)listen(listener, 0);
    const lap_tcp_address_t address = local_port(master.port);
    for (int i = 0; i < 4; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(fillers[i], &address.any, sizeof(address.v4));
    }
    start(&rank, 1, 2, SECOND);
    check_given_up(&rank, "a host that answers nothing");
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close(listener);
}

/* A listener of IPv4 at one address, of which this host has many. */
static int listen_at(const char *host, int port)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    lap_tcp_address_t address = local_port(port);
    (void)inet_pton(AF_INET, host, &address.v4.sin_addr);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    tap_ok(bind(fd, &address.any, sizeof(address.v4)) == 0 && listen(fd, 8) == 0,
           "somebody listens at %s", host);
    return fd;
}

/* Rank 0 has several addresses, and at the first of them somebody else is found. */
static void test_addresses(void)
{
    close(listen_twice());
    const int silent = listen_at("127.0.0.2", master.port);
    const int listener = listen_at("127.0.0.1", master.port);
    member_t zero, rank;
    snprintf(master.hosts, sizeof(master.hosts), "127.0.0.2 127.0.0.1");
    master.listener = listener;
    start(&zero, 0, 2, 40 * (uint64_t)SECOND);
    start(&rank, 1, 2, 40 * (uint64_t)SECOND);
    end(&zero);
    end(&rank);
    tap_ok(zero.status == LAP_OK && rank.status == LAP_OK,
           "who says nothing at one address does not keep a rank from rank 0 at the next");
    close(listener);
    close(silent);
}

/* It says all that rank 0 would say, but cannot know the proof. */
static void test_impostor(void)
{
    const int listener = listen_twice();
    const lap_hub_challenge_t lie = {.magic = LAP_HUB_CHALLENGE_MAGIC, .proof = 7};
    const struct {
        uint64_t magic;
        int64_t status;
        uint64_t bytes;
        char text[LAP_ERROR_TEXT];
    } verdict = {FRAME_MAGIC, LAP_ERR_INVALID, LAP_ERROR_TEXT, "a lie"};
    lap_hub_hello_t hellos[2];
    member_t rank;
    bool heard = true, ended = true;
    start(&rank, 1, 2, SECOND);
    for (int i = 0; i < 2; i++) {
        const int fd = accept_one(listener);
        heard = heard && hears(fd, &hellos[i], sizeof(hellos[i])) &&
                hellos[i].magic == LAP_HUB_HELLO_MAGIC && sends(fd, &lie, sizeof(lie)) &&
                sends(fd, &verdict, sizeof(verdict));
        ended = ended && hears_the_end(fd);
        close(fd);
    }
    close(listener);
    check_given_up(&rank, "an impostor");
    tap_ok(heard && strstr(rank.sentence, "are of another job"), "... but an impostor");
    tap_ok(ended, "... which is shown no proof");
    tap_ok(!memmem(hellos, sizeof(hellos), &master.key.words[0], sizeof(uint64_t)) &&
               !memmem(hellos, sizeof(hellos), &master.key.words[1], sizeof(uint64_t)),
           "... nor the key");
    tap_ok(memcmp(&hellos[0].nonce, &hellos[1].nonce, sizeof(lap_key_t)) != 0,
           "... and is asked anew each time");
}

/* It has the first port, and passes on to rank 0, at the next, what a rank says, and back. */
static void test_relay(void)
{
    const int listener = listen_twice();
    lap_hub_hello_t hello;
    lap_hub_challenge_t challenge;
    member_t zero, rank;
    master.nports = 2;
    start(&zero, 0, 2, 20 * (uint64_t)SECOND);
    const int there = connect_to(master.port + 1);
    start(&rank, 1, 2, 20 * (uint64_t)SECOND);
    const int here = accept_one(listener);
    tap_ok(hears(here, &hello, sizeof(hello)) && sends(there, &hello, sizeof(hello)) &&
               hears(there, &challenge, sizeof(challenge)) &&
               sends(here, &challenge, sizeof(challenge)),
           "who listens before rank 0 does passes on what both say");
    tap_ok(hears_the_end(here), "... but the rank does not take it for rank 0");
    close(here);
    close(there);
    end(&zero);
    end(&rank);
    tap_ok(zero.status == LAP_OK && rank.status == LAP_OK, "... and finds rank 0");
    close(listener);
}

/* ---- who comes to rank 0 ---- */

static lap_hub_hello_t hello_of(int rank)
{
    lap_hub_hello_t hello = {.magic = LAP_HUB_HELLO_MAGIC,
                             .rank = rank,
                             .size = 3,
                             .left_ns = 20 * (uint64_t)SECOND,
                             .nonce = {{1, 2}}};
    snprintf(hello.version, sizeof(hello.version), "%s", lap_version_string());
    return hello;
}

/* Says hello, and takes the challenge. */
static int come(const lap_hub_hello_t *hello, lap_hub_challenge_t *challenge)
{
    const int fd = connect_to(master.port);
    if (!sends(fd, hello, sizeof(*hello)) || !hears(fd, challenge, sizeof(*challenge)))
        challenge->magic = 0;
    return fd;
}

static uint64_t proof_of(const lap_hub_hello_t *hello, const lap_hub_challenge_t *challenge)
{
    return lap_hub_proof(&master.key, LAP_HUB_RANK, hello, &challenge->nonce, master.port);
}

/* A rank of the test's own, which is welcomed; its proof. */
static uint64_t join_well(int rank, int *fd_p)
{
    const lap_hub_hello_t hello = hello_of(rank);
    lap_hub_challenge_t challenge;
    char welcome[24];
    *fd_p = come(&hello, &challenge);
    tap_ok(challenge.magic == LAP_HUB_CHALLENGE_MAGIC &&
               challenge.proof == lap_hub_proof(&master.key, LAP_HUB_RANK_0, &hello,
                                                &challenge.nonce, master.port),
           "rank 0 proves that it is rank 0 to rank %d", rank);
    const uint64_t proof = proof_of(&hello, &challenge);
    tap_ok(sends(*fd_p, &proof, sizeof(proof)) && hears(*fd_p, welcome, sizeof(welcome)),
           "a rank %d with a proof is welcomed", rank);
    return proof;
}

static void check_refused(const char *what, uint64_t proof, int fd)
{
    tap_ok(sends(fd, &proof, sizeof(proof)) && hears_the_end(fd), "rank 0 refuses %s", what);
    close(fd);
}

static void test_proofs(void)
{
    close(listen_twice());
    member_t zero;
    int one, two;
    lap_hub_challenge_t challenge;
    start(&zero, 0, 3, 20 * (uint64_t)SECOND);
    const uint64_t heard = join_well(1, &one);
    lap_hub_hello_t hello = hello_of(1);
    int fd = come(&hello, &challenge);
    check_refused("a proof that was heard before", heard, fd);
    hello = hello_of(2);
    fd = come(&hello, &challenge);
    check_refused("its own proof, sent back", challenge.proof, fd);
    fd = come(&hello, &challenge);
    const lap_hub_hello_t other = hello_of(1);
    check_refused("the proof of another rank", proof_of(&other, &challenge), fd);
    fd = come(&hello, &challenge);
    const lap_key_t wrong = {{master.key.words[0], master.key.words[1] ^ 1}};
    check_refused("a proof with another key",
                  lap_hub_proof(&wrong, LAP_HUB_RANK, &hello, &challenge.nonce, master.port), fd);
    lap_hub_hello_t nonsense = hello_of(7);
    nonsense.version[0] = 'x';
    fd = come(&nonsense, &challenge);
    check_refused("a hello that makes no sense, without failing by it", heard, fd);
    fd = come(&hello, &challenge); /* and says no more */
    (void)join_well(2, &two);
    end(&zero);
    tap_ok(zero.status == LAP_OK, "the ranks meet all the same");
    close(fd);
    close(one);
    close(two);
}

/* A rank that has proved who it is, but runs another version. */
static void test_version(void)
{
    close(listen_twice());
    member_t zero;
    lap_hub_challenge_t challenge;
    struct {
        uint64_t head[3];
        char text[LAP_ERROR_TEXT];
    } verdict;
    start(&zero, 0, 3, 20 * (uint64_t)SECOND);
    lap_hub_hello_t hello = hello_of(1);
    memset(hello.version, 0, sizeof(hello.version));
    snprintf(hello.version, sizeof(hello.version), "0.0-old");
    const int fd = come(&hello, &challenge);
    const uint64_t proof = proof_of(&hello, &challenge);
    tap_ok(sends(fd, &proof, sizeof(proof)) && hears(fd, &verdict, sizeof(verdict)) &&
               strstr(verdict.text, "version 0.0-old"),
           "a rank of another version receives the reason");
    end(&zero);
    tap_ok(zero.status == LAP_ERR_MISMATCH && strstr(zero.sentence, "version 0.0-old"),
           "... and rank 0 says so");
    close(fd);
}

/* Without random numbers nobody can be asked for a proof, and none is made without. */
static void test_no_random(void)
{
    const int listener = listen_twice();
    member_t member;
    atomic_store(&no_random, true);
    start(&member, 1, 2, 60 * (uint64_t)SECOND);
    end(&member);
    tap_ok(member.status == LAP_ERR_SYSTEM && strstr(member.sentence, "getrandom"),
           "a rank without random numbers says so");
    tap_ok(member.took_ns < 20 * (uint64_t)SECOND, "... and does not wait for its timeout of 60 s");
    close(listener);
    start(&member, 0, 3, 60 * (uint64_t)SECOND);
    const lap_hub_hello_t hello = hello_of(1);
    const int fd = connect_to(master.port);
    tap_ok(sends(fd, &hello, sizeof(hello)) && hears_the_end(fd), "rank 0 asks for no proof");
    end(&member);
    tap_ok(member.status == LAP_ERR_SYSTEM && strstr(member.sentence, "getrandom"),
           "... and says why");
    tap_ok(member.took_ns < 20 * (uint64_t)SECOND, "... and does not wait for its timeout of 60 s");
    close(fd);
    const lap_environment_t environment = {.size = 2, .master = master};
    const lap_settings_t settings = {.timeout_ns = 60 * (uint64_t)SECOND};
    lap_world_t *world = NULL;
    const uint64_t began = lap_now_ns();
    tap_ok(lap_tcp_world_create(&environment, &settings, &world) == LAP_ERR_SYSTEM &&
               strstr(lap_last_error(), "getrandom"),
           "no world is made");
    tap_ok(lap_now_ns() - began < 20 * (uint64_t)SECOND, "... and nobody is waited for");
    atomic_store(&no_random, false);
}

/* ---- who is stopped ---- */

/* Two ends of a connection, as ranks have them that give up after one second. */
static void make_pair(int fds[2])
{
    int listener = -1, port = 0;
    tap_success(lap_tcp_listen(0, &listener, &port), "a rank listens");
    fds[0] = connect_to(port);
    fds[1] = accept_one(listener);
    lap_tcp_prepare(fds[0], SECOND);
    lap_tcp_prepare(fds[1], SECOND);
    close(listener);
}

/*
 * A job that is stopped as a whole has packets on their way that nobody reads, for longer than its
 * timeout, which rests meanwhile. Kernels run on: they must not end the connection.
 */
static void test_stop(void)
{
    static char chunk[1 << 20];
    int fds[2];
    size_t sent = 0, got = 0;
    make_pair(fds);
    for (ssize_t now; (now = send(fds[0], chunk, sizeof(chunk), MSG_NOSIGNAL)) > 0;)
        sent += (size_t)now;
    tap_ok(errno == EAGAIN && sent > 0, "a rank sends until the kernels take no more: %zu", sent);
    lap_sleep_until_ns(lap_now_ns() + 5 * (uint64_t)SECOND / 2);
    for (size_t now; got < sent; got += now) {
        now = sent - got < sizeof(chunk) ? sent - got : sizeof(chunk);
        if (!hears(fds[1], chunk, now))
            break;
    }
    tap_ok(got == sent, "... and after 2.5 s of a stop all of it is read: %zu", got);
    tap_ok(sends(fds[0], chunk, 1) && hears(fds[1], chunk, 1), "... and more");
    close(fds[0]);
    close(fds[1]);
}

/* ---- what ranks that have met say ---- */

typedef struct frame {
    uint64_t magic;
    int64_t status;
    uint64_t bytes;
    char text[LAP_ERROR_TEXT];
} frame_t;

/* A status that is none, such as one that is LAP_OK where only half of it is looked at. */
static void test_statuses(void)
{
    static const int64_t wrong[] = {LAP_IN_PROGRESS, -1000, INT64_MIN, (int64_t)1 << 32,
                                    ((int64_t)1 << 32) + LAP_ERR_TIMEOUT};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const frame_t frame = {FRAME_MAGIC, wrong[i], LAP_ERROR_TEXT, "no sentence"};
        lap_deadline_t deadline = lap_deadline_after(20 * (uint64_t)SECOND);
        int fds[2];
        char data[8];
        bool verdict = true;
        make_pair(fds);
        const bool sent = sends(fds[0], &frame, sizeof(frame));
        const lap_status_t status =
            lap_hub_receive_frame(fds[1], data, sizeof(data), &verdict, &deadline);
        tap_ok(sent && status == LAP_ERR_PEER_LOST && errno == EPROTO && !verdict,
               "a frame with status %lld is refused", (long long)wrong[i]);
        close(fds[0]);
        close(fds[1]);
    }
}

/* Nothing can be sent to rank 2 of 4 any more, when rank 1 has been served and rank 3 has not. */
static void test_unserved(void)
{
    enum { SIZE = 4, BYTES = 8 };
    int pairs[SIZE][2] = {{-1, -1}}, fds[SIZE] = {-1};
    lap_hub_t hub = {.size = SIZE, .timeout_ns = 20 * (uint64_t)SECOND, .fds = fds};
    lap_deadline_t deadline = lap_deadline_after(20 * (uint64_t)SECOND);
    char mine[BYTES] = "0", all[SIZE * BYTES];
    frame_t verdict = {0};
    for (int rank = 1; rank < SIZE; rank++) {
        const uint64_t head[3] = {FRAME_MAGIC, LAP_OK, BYTES};
        make_pair(pairs[rank]);
        fds[rank] = pairs[rank][0];
        tap_ok(sends(pairs[rank][1], head, sizeof(head)) && sends(pairs[rank][1], mine, BYTES),
               "rank %d has sent its bytes", rank);
    }
    (void)shutdown(fds[2], SHUT_WR);
    tap_ok(lap_hub_gather(&hub, mine, BYTES, all, &deadline) == LAP_ERR_PEER_LOST &&
               strstr(lap_last_error(), "rank 2 went away"),
           "rank 0 names the rank that it cannot answer");
    tap_ok(hears(pairs[3][1], &verdict, sizeof(verdict)) && verdict.status == LAP_ERR_PEER_LOST &&
               strstr(verdict.text, "rank 2 went away"),
           "... and tells one that waits for an answer");
    tap_ok(hears(pairs[1][1], &verdict, 3 * sizeof(uint64_t) + sizeof(all)) &&
               verdict.status == LAP_OK && hears(pairs[1][1], &verdict, sizeof(verdict)) &&
               strstr(verdict.text, "rank 2 went away"),
           "... and one that has its answer, for the next time");
    tap_ok(hears_the_end(pairs[2][1]), "... and the lost one gets no sentence amid its bytes");
    for (int rank = 1; rank < SIZE; rank++) {
        close(pairs[rank][1]);
        if (fds[rank] >= 0)
            close(fds[rank]);
    }
}

/*
 * Rank 0 ends, then rank 1 because of it: rank 2, which sees only that rank 1 did, learns the
 * cause.
 */
static void check_report(lap_status_t status, const char *sentence, const char *expected)
{
    int ends[2] = {-1, -1}, fds[3] = {-1, -1, -1};
    lap_hub_t hub = {.rank = 2, .size = 3, .fds = fds};
    lap_deadline_t deadline = lap_deadline_after(20 * (uint64_t)SECOND);
    tap_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && close(ends[1]) == 0, "rank 0 ends");
    fds[0] = ends[0];
    lap_error(status, "%s", sentence);
    tap_failure(lap_hub_report(&hub, status, &deadline), status, expected, NULL);
    close(ends[0]);
}

static void test_rank_0_gone(void)
{
    check_report(LAP_ERR_PEER_LOST, "rank 1 has died", "rank 0 went away");
    check_report(LAP_ERR_NO_MEMORY, "no memory", "no memory");
}

int main(void)
{
    test_silence();
    test_addresses();
    test_impostor();
    test_relay();
    test_proofs();
    test_version();
    test_no_random();
    test_stop();
    test_statuses();
    test_unserved();
    test_rank_0_gone();
    return tap_done();
}
