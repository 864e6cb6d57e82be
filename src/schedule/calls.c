/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/calls.h"

#include "core/status.h"
#include "util/alloc.h"

#define NONE UINT32_MAX

/* A group of ranks, by the fragment of one of them, with a buffer. */
typedef struct channel {
    const lap_fragment_t *like;
    int first;         /* its first rank, of all */
    uint32_t next;     /* the next with the same first rank; NONE: there is none */
    uint32_t count;    /* of its calls */
    uint32_t *counted; /* of each of its ranks: calls so far */
    size_t begin;      /* where its calls begin in lap_calls_t.fragments */
} channel_t;

typedef struct matcher {
    lap_calls_t *calls;
    const lap_linked_t *const *programs;
    int size;
    channel_t *channels;
    uint32_t nchannels;
    size_t channels_room;
    uint32_t *heads; /* of each rank: the first channel whose first rank it is */
    uint32_t *of;    /* of each fragment: its channel; NONE: a call of one rank */
} matcher_t;

static bool same_group(const lap_fragment_t *a, const lap_fragment_t *b)
{
    bool same = a->schedule.size == b->schedule.size && a->buffer == b->buffer;
    for (int r = 0; same && r < a->schedule.size; r++)
        same = lap_fragment_rank(a, r) == lap_fragment_rank(b, r);
    return same;
}

/* A rank is in the groups of its fragments, and all their ranks are there. */
static lap_status_t check_place(const matcher_t *matcher, const lap_fragment_t *fragment, int rank,
                                uint32_t f)
{
    const lap_schedule_t *schedule = &fragment->schedule;
    for (int r = 0; r < schedule->size; r++) {
        const int peer = lap_fragment_rank(fragment, r);
        if (peer < 0 || peer >= matcher->size)
            return lap_error(LAP_ERR_CHECK, "fragment %u of rank %d has a peer %d of %d ranks",
                             (unsigned)f, rank, peer, matcher->size);
    }
    if (schedule->rank < 0 || schedule->rank >= schedule->size ||
        lap_fragment_rank(fragment, schedule->rank) != rank)
        return lap_error(
            LAP_ERR_CHECK,
            "fragment %u of rank %d is that of rank %d of a group of %d, which is rank %d "
            "of all",
            (unsigned)f, rank, schedule->rank, schedule->size,
            lap_fragment_rank(fragment, schedule->rank));
    return LAP_OK;
}

static lap_status_t add_channel(matcher_t *matcher, const lap_fragment_t *fragment, int first)
{
    channel_t *channels =
        lap_grow(matcher->channels, matcher->nchannels, &matcher->channels_room, sizeof(*channels));
    uint32_t *counted = lap_alloc((size_t)fragment->schedule.size, sizeof(*counted));
    if (channels)
        matcher->channels = channels;
    if (!channels || !counted) {
        lap_free(counted);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to match the calls of %d ranks",
                         matcher->size);
    }
    channels[matcher->nchannels] = (channel_t){
        .like = fragment, .first = first, .next = matcher->heads[first], .counted = counted};
    matcher->heads[first] = matcher->nchannels++;
    return LAP_OK;
}

static lap_status_t find_channel(matcher_t *matcher, const lap_fragment_t *fragment,
                                 uint32_t *channel_p)
{
    const int first = lap_fragment_rank(fragment, 0);
    uint32_t i = matcher->heads[first];
    while (i != NONE && !same_group(matcher->channels[i].like, fragment))
        i = matcher->channels[i].next;
    if (i == NONE) {
        LAP_TRY(add_channel(matcher, fragment, first));
        i = matcher->nchannels - 1;
    }
    *channel_p = i;
    return LAP_OK;
}

/* Every fragment gets its channel, and every rank of a channel is counted. */
static lap_status_t count_calls(matcher_t *matcher)
{
    for (int rank = 0; rank < matcher->size; rank++) {
        const lap_linked_t *linked = matcher->programs[rank];
        for (uint32_t f = 0; f < linked->nfragments; f++) {
            const lap_fragment_t *fragment = &linked->fragments[f];
            uint32_t *channel = &matcher->of[matcher->calls->first[rank] + f];
            LAP_TRY(check_place(matcher, fragment, rank, f));
            *channel = NONE;
            if (fragment->schedule.size == 1)
                continue;
            LAP_TRY(find_channel(matcher, fragment, channel));
            matcher->channels[*channel].counted[fragment->schedule.rank]++;
        }
    }
    return LAP_OK;
}

/* All ranks of a group have made the same number of calls. Leaves where those of each begin; returns where they end. */
static lap_status_t lay_out(matcher_t *matcher, size_t *end_p)
{
    for (uint32_t i = 0; i < matcher->nchannels; i++) {
        channel_t *channel = &matcher->channels[i];
        const lap_fragment_t *like = channel->like;
        channel->count = channel->counted[0];
        channel->begin = *end_p;
        for (int r = 0; r < like->schedule.size; r++) {
            if (channel->counted[r] != channel->count)
                return lap_error(
                    LAP_ERR_CHECK,
                    "rank %d has %u fragments for a group of %d ranks from rank %d on in "
                    "buffer %u, expected %u as rank %d has",
                    lap_fragment_rank(like, r), (unsigned)channel->counted[r], like->schedule.size,
                    channel->first, (unsigned)like->buffer, (unsigned)channel->count,
                    channel->first);
            channel->counted[r] = 0;
        }
        *end_p += (size_t)channel->count * (size_t)like->schedule.size;
    }
    return LAP_OK;
}

/* Calls of one rank come behind those of channels. */
static void fill(matcher_t *matcher, size_t end)
{
    lap_calls_t *calls = matcher->calls;
    for (int rank = 0; rank < matcher->size; rank++) {
        const lap_linked_t *linked = matcher->programs[rank];
        for (uint32_t f = 0; f < linked->nfragments; f++) {
            const lap_schedule_t *schedule = &linked->fragments[f].schedule;
            const size_t at = calls->first[rank] + f;
            if (matcher->of[at] == NONE) {
                calls->members[at] = end;
                calls->fragments[end++] = f;
                continue;
            }
            channel_t *channel = &matcher->channels[matcher->of[at]];
            const size_t number = channel->counted[schedule->rank]++;
            calls->members[at] = channel->begin + number * (size_t)schedule->size;
            calls->fragments[calls->members[at] + (size_t)schedule->rank] = f;
        }
    }
}

static lap_status_t match(matcher_t *matcher, size_t count)
{
    lap_calls_t *calls = matcher->calls;
    size_t end = 0;
    matcher->heads = lap_alloc((size_t)matcher->size, sizeof(*matcher->heads));
    matcher->of = lap_alloc(count + 1, sizeof(*matcher->of));
    calls->members = lap_alloc(count + 1, sizeof(*calls->members));
    calls->fragments = lap_alloc(count + 1, sizeof(*calls->fragments));
    if (!matcher->heads || !matcher->of || !calls->members || !calls->fragments)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to match %zu fragments", count);
    for (int rank = 0; rank < matcher->size; rank++)
        matcher->heads[rank] = NONE;
    LAP_TRY(count_calls(matcher));
    LAP_TRY(lay_out(matcher, &end));
    fill(matcher, end);
    return LAP_OK;
}

lap_status_t lap_calls_init(lap_calls_t *calls, const lap_linked_t *const *programs, int size)
{
    matcher_t matcher = {.calls = calls, .programs = programs, .size = size};
    *calls = (lap_calls_t){.first = lap_alloc((size_t)size + 1, sizeof(*calls->first))};
    if (!calls->first)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to match the calls of %d ranks", size);
    for (int rank = 0; rank < size; rank++)
        calls->first[rank + 1] = calls->first[rank] + programs[rank]->nfragments;
    const lap_status_t status = match(&matcher, calls->first[size]);
    for (uint32_t i = 0; i < matcher.nchannels; i++)
        lap_free(matcher.channels[i].counted);
    lap_free(matcher.channels);
    lap_free(matcher.heads);
    lap_free(matcher.of);
    return status;
}

void lap_calls_clear(lap_calls_t *calls)
{
    lap_free(calls->first);
    lap_free(calls->members);
    lap_free(calls->fragments);
    *calls = (lap_calls_t){NULL, NULL, NULL};
}
