/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks break a group at the same time, while others look: one sentence wins, and every rank
 * reads the same one, whole. That what it reads was written before is for a thread sanitizer to see.
 */
#include <stdio.h>
#include <string.h>

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

int main(void)
{
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
