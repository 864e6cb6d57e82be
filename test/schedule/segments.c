/* SPDX-License-Identifier: Apache-2.0 */
/* Where a program is cut into segments, each of which may be a graph. */
#include <string.h>

#include "schedule/segments.h"
#include "tap.h"

/* A set for each fragment (F, B, D: foreground, background, messages; -: none of this rank), and links: from, to. */
static const struct {
    const char *sets, *links, *begins, *why;
    bool goes_back;
} cases[] = {
    {"FFFF", "01 12 03", "1000", "one set is one segment", false},
    {"FFBFF", "02 12", "10110", "buckets take turns with layers that do not wait for them", false},
    {"FFBFF", "02 24", "11111", "layers that wait for buckets, and those that buckets wait for",
     true},
    {"FBBFFF", "12 15", "111101", "a link within a set cuts nothing; one to layers does", true},
    {"FFDFF", "02", "11110", "a message leaves after what it has, and not after all", false},
    {"DFFF", "02", "1110", "one that is waited for late", true},
    {"-FF-BF", "14", "010011", "what others do is in no segment", false},
    {"-FFF", "01", "0100", "and nobody waits for it", false},
};

static lap_stream_set_t set_of(char letter)
{
    return letter == 'B' ? LAP_BACKGROUND : letter == 'D' ? LAP_DOWNSTREAM : LAP_FOREGROUND;
}

static void try_case(size_t index)
{
    enum { MOST = 8 };
    const char *sets = cases[index].sets;
    const uint32_t count = (uint32_t)strlen(sets);
    lap_fragment_t fragments[MOST] = {{.stride = 1}};
    lap_link_dep_t links[MOST][MOST];
    bool begins[MOST + 1];
    char got[MOST + 1] = "";
    for (uint32_t f = 0; f < count; f++)
        fragments[f] = (lap_fragment_t){
            .schedule = {.set = set_of(sets[f]), .nsteps = sets[f] != '-'}, .links = links[f]};
    for (const char *link = cases[index].links; *link; link += link[2] ? 3 : 2) {
        lap_fragment_t *to = &fragments[link[1] - '0'];
        to->links[to->nlinks++] = (lap_link_dep_t){.fragment = (uint32_t)(link[0] - '0')};
    }
    const lap_linked_t linked = {.fragments = fragments, .nfragments = count};
    lap_linked_cut(&linked, begins);
    for (uint32_t f = 0; f < count; f++)
        got[f] = begins[f] ? '1' : '0';
    tap_ok(strcmp(got, cases[index].begins) == 0 &&
               lap_linked_goes_back(&linked) == cases[index].goes_back,
           "%s with links %s: %s", sets, cases[index].links, cases[index].why);
    if (strcmp(got, cases[index].begins) != 0)
        tap_note("segments begin at %s, expected %s", got, cases[index].begins);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        try_case(i);
    return tap_done();
}
