/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/segments.h"

static lap_stream_set_t set_of(const lap_linked_t *linked, uint32_t fragment)
{
    return linked->fragments[fragment].schedule.set;
}

bool lap_linked_has_messages(const lap_linked_t *linked)
{
    for (uint32_t f = 0; f < linked->nfragments; f++)
        if (set_of(linked, f) > LAP_BACKGROUND)
            return true;
    return false;
}

bool lap_linked_goes_back(const lap_linked_t *linked)
{
    for (uint32_t f = 0; f < linked->nfragments; f++)
        for (uint32_t i = 0; i < linked->fragments[f].nlinks && set_of(linked, f) == LAP_FOREGROUND;
             i++)
            if (set_of(linked, linked->fragments[f].links[i].fragment) != LAP_FOREGROUND)
                return true;
    return false;
}

static void cut_at_links(const lap_linked_t *linked, bool *begins)
{
    for (uint32_t f = 0; f < linked->nfragments; f++)
        for (uint32_t i = 0; i < linked->fragments[f].nlinks; i++) {
            const uint32_t earlier = linked->fragments[f].links[i].fragment;
            if (set_of(linked, earlier) != set_of(linked, f))
                begins[f] = begins[earlier + 1] = true;
        }
}

void lap_linked_cut(const lap_linked_t *linked, bool *begins)
{
    for (uint32_t f = 0; f <= linked->nfragments; f++)
        begins[f] = false;
    if (lap_linked_has_messages(linked) || lap_linked_goes_back(linked))
        cut_at_links(linked, begins);
    uint32_t last = LAP_NO_STEP; /* a call without rows has no steps, and is in no segment */
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        if (linked->fragments[f].schedule.nsteps == 0) {
            begins[f + 1] = begins[f + 1] || begins[f];
            begins[f] = false;
            continue;
        }
        begins[f] = begins[f] || last == LAP_NO_STEP || set_of(linked, last) != set_of(linked, f);
        last = f;
    }
}
