/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks break a group at the same time, while others look: one sentence wins, and every
 * rank reads the same one, whole. That what it reads was written before is for a thread sanitizer
 * to see.
 *
 * broken processes: two processes of the world that the environment describes. One leaves a group
 * because it is broken, while the other looks for it: that one learns the cause.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/control.h"
#include "core/group.h"
#include "core/status.h"
#include "core/world.h"
#include "tap.h"

#define RANKS 4 /* the first two break the group */
#define ROUNDS 40

static char read_by[RANKS][LAP_ERROR_TEXT];
static lap_status_t found_by[RANKS];

static const lap_status_t statuses[2] = {LAP_ERR_MISMATCH, LAP_ERR_TIMEOUT};

static const char *sentence_of(int rank)
{
    static char sentences[2][LAP_ERROR_TEXT];
    char *sentence = sentences[rank];
    snprintf(sentence, LAP_ERROR_TEXT, "rank %d says ", rank);
    const size_t begin = strlen(sentence);
    memset(sentence + begin, 'a' + rank, LAP_ERROR_TEXT - 1 - begin);
    sentence[LAP_ERROR_TEXT - 1] = '\0';
    return sentence;
}

static void break_or_look(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_world_rank(world);
    char sentence[LAP_ERROR_TEXT];
    if (rank < 2)
        snprintf(sentence, sizeof(sentence), "%s", sentence_of(rank));
    if (lap_group_barrier(group) != LAP_OK && rank < 2)
        return; /* the other was quick */
    if (rank < 2)
        lap_group_fail(group, statuses[rank], sentence);
    while ((found_by[rank] = lap_group_broken(group)) == LAP_OK)
        ;
    snprintf(read_by[rank], LAP_ERROR_TEXT, "%s", lap_last_error());
}

/* The group of all while a rank looks: it meets the other in the midst of that, twice. */
static _Thread_local lap_group_t *looks_beside;

int __real_poll(struct pollfd *polls, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *polls, nfds_t count, int timeout_ms);

int __wrap_poll(struct pollfd *polls, nfds_t count, int timeout_ms)
{
    lap_group_t *all = looks_beside;
    looks_beside = NULL;
    if (all) {
        tap_success(lap_group_barrier(all), "the look has begun");
        tap_success(lap_group_barrier(all), "the other rank has left");
    }
    return __real_poll(polls, count, timeout_ms);
}

/* As if another rank had broken the group, and its packet to the rank that looks were slow. */
static void hear_failure(lap_group_t *group, const char *sentence)
{
    const lap_packet_t packet = {.kind = LAP_PACKET_FAILURE,
                                 .words = {(uint64_t)(int64_t)LAP_ERR_MISMATCH},
                                 .bytes = strlen(sentence) + 1};
    lap_control_deliver(group, &packet, sentence);
}

static void leave_while_looked_for(lap_group_t *all)
{
    const char *sentence = "rank 0 is in one call, rank 1 in another";
    lap_group_t *part;
    if (!tap_success(lap_group_split(all, 0, 0, &part), "a group"))
        return;
    if (lap_group_rank(all) == 0) {
        tap_success(lap_group_barrier(all), "the other rank looks");
        hear_failure(part, sentence);
        lap_group_destroy(part);
        tap_success(lap_group_barrier(all), "this one has left");
        return;
    }
    looks_beside = all;
    tap_failure(lap_group_look_for(part, 0), LAP_ERR_MISMATCH, sentence, NULL);
    tap_ok(!looks_beside, "the other rank left during the look");
    lap_group_destroy(part);
}

static int leave(void)
{
    lap_world_t *world;
    if (tap_success(lap_world_create(NULL, &world), "a world from the environment")) {
        leave_while_looked_for(lap_world_group(world));
        lap_world_destroy(world);
    }
    return tap_done();
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "processes") == 0)
        return leave();
    int whole = 0, alike = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memset(read_by, 0, sizeof(read_by));
        memset(found_by, 0, sizeof(found_by));
        tap_ranks(RANKS, NULL, break_or_look, NULL);
        const int winner = found_by[RANKS - 1] == statuses[0] ? 0 : 1;
        whole += strcmp(read_by[RANKS - 1], sentence_of(winner)) == 0 &&
                 found_by[RANKS - 1] == statuses[winner];
        int same = 0;
        for (int r = 0; r < RANKS; r++)
            same += found_by[r] == LAP_OK || strcmp(read_by[r], read_by[RANKS - 1]) == 0;
        alike += same == RANKS;
    }
    tap_ok(whole == ROUNDS, "the sentence of a broken group is whole (%d of %d; the last: '%.60s')",
           whole, ROUNDS, read_by[RANKS - 1]);
    tap_ok(alike == ROUNDS, "all ranks read the same one (%d of %d; rank 0: '%.60s')", alike,
           ROUNDS, read_by[0]);
    return tap_done();
}
