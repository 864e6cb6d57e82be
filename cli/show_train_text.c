/* SPDX-License-Identifier: Apache-2.0 */
/* The program of a pass as text: a line for each fragment, or all of its steps; and its memory. */
#include <stdio.h>
#include <string.h>

#include "show_train.h"
#include "table.h"

enum { FEW_REGIONS = 40, LINE = 600 };

/* Adds a word to a list of words; what does not fit is left out. */
static void append(char text[LINE], const char *separator, const char *word)
{
    const size_t used = strlen(text);
    snprintf(text + used, LINE - used, "%s%s", used ? separator : "", word);
}

/* ---- what a fragment uses ---- */

static void list_regions(const lap_show_train_t *show, const uint32_t *regions, int count,
                         char text[LINE])
{
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        if (regions[i] == LAP_NN_NONE)
            continue;
        append(text, ", ", show->linked->regions[regions[i]].name);
    }
}

/* The fragments that links of a fragment lead to. */
static void list_links(const lap_show_train_t *show, uint32_t f, char text[LINE])
{
    const lap_fragment_t *fragment = &show->linked->fragments[f];
    text[0] = '\0';
    for (uint32_t i = 0; i < fragment->nlinks; i++) {
        bool seen = false;
        for (uint32_t j = 0; j < i; j++)
            seen = seen || fragment->links[j].fragment == fragment->links[i].fragment;
        char number[16];
        snprintf(number, sizeof(number), "%u", (unsigned)fragment->links[i].fragment);
        if (!seen)
            append(text, ", ", number);
    }
}

static void print_fragment(const lap_show_train_t *show, const char *columns, uint32_t f)
{
    lap_show_regions_t regions;
    char does[LAP_SHOW_NAME], name[LAP_SHOW_NAME], reads[LINE], writes[LINE], links[LINE],
        layer[24] = "";
    lap_show_does(show, f, does);
    lap_show_name(show, f, name);
    lap_show_regions(show, f, &regions);
    list_regions(show, regions.reads, LAP_NN_READS, reads);
    list_regions(show, regions.writes, LAP_NN_WRITES, writes);
    list_links(show, f, links);
    if (lap_show_layer(show, f) >= 0)
        snprintf(layer, sizeof(layer), "%ld", lap_show_layer(show, f));
    const lap_fragment_span_t span = show->spans ? show->spans[f] : (lap_fragment_span_t){0};
    lap_table_row(columns, "%u\t%s\t%s\t%s\t%s\t%u\t%.3f\t%.3f\t%s -> %s%s%s%s", f,
                  lap_show_part(show, f), layer, name, does,
                  show->linked->fragments[f].schedule.nsteps, span.begin * 1e3,
                  (span.end - span.begin) * 1e3, reads, writes, *links ? "   [after " : "", links,
                  *links ? "]" : "");
}

/* ---- steps ---- */

static void print_steps(const lap_show_train_t *show, uint32_t f)
{
    const lap_fragment_t *fragment = &show->linked->fragments[f];
    const lap_show_view_t view = {
        .schedule = &fragment->schedule, .linked = show->linked, .fragment = fragment};
    uint32_t next = 0;
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++) {
        char links[LINE] = "";
        for (; next < fragment->nlinks && fragment->links[next].step == i; next++) {
            const lap_link_dep_t *link = &fragment->links[next];
            char why[LAP_SHOW_RANGE], text[LAP_SHOW_RANGE + 64];
            lap_show_why(show, f, link, why);
            snprintf(text, sizeof(text), "   [after fragment %u step %u, %s]",
                     (unsigned)link->fragment, (unsigned)link->dep, why);
            append(links, "", text);
        }
        lap_show_print_step(&view, i, 7, links);
    }
}

/* ---- memory ---- */

static const char lifetimes[] = "  %-28[activation]  %12[bytes]  %12[offset]  %-1[fragments]";

static void print_lifetime(const lap_show_train_t *show, const lap_lifetime_t *life)
{
    lap_table_row(lifetimes, "%s\t%zu\t%zu\t%5u .. %u%s", show->linked->regions[life->region].name,
                  life->bytes, life->offset, life->first, life->last,
                  life->lasts ? ", for backward, which may be repeated" : "");
}

static void print_memory(const lap_show_train_t *show)
{
    const lap_nn_list_t *list = show->list;
    const lap_nn_proof_t sums = lap_nn_programs_count(show->programs);
    size_t shown = 0, all = 0;
    for (size_t i = 0; i < show->nlifetimes; i++)
        all += show->lifetimes[i].bytes;
    printf("\nmemory, in bytes\n");
    printf(
        "  activations               %12zu  (%zu without sharing; most live in fragment %u: %zu)\n",
        list->bytes[LAP_NN_PRIVATE], all, (unsigned)show->most_at, show->most_alive);
    printf("  parameters and gradients  %12zu\n", list->bytes[LAP_NN_LASTING]);
    if (sums.state_bytes > 0)
        printf("  state of the optimizer    %12zu\n", sums.state_bytes);
    printf("  scratch of operators      %12zu\n", sums.scratch_bytes);
    printf("  symmetric buffer          %12zu\n", sums.symmetric_bytes);
    if (show->train->grid.dp > 1)
        printf("  buckets of gradients      %12zu\n", sums.bucket_bytes);
    printf("  this program, of the host %12zu\n", sums.program_bytes);
    printf("\n");
    lap_table_head(lifetimes);
    for (size_t i = 0; i < show->nlifetimes && (show->steps || shown < FEW_REGIONS); i++, shown++)
        print_lifetime(show, &show->lifetimes[i]);
    if (shown < show->nlifetimes)
        printf("  and %zu more (--all-steps lists all)\n", show->nlifetimes - shown);
}

/* ---- all of it ---- */

static void print_head(const lap_show_train_t *show)
{
    const lap_nn_desc_t *desc = &show->train->desc;
    const lap_linked_t *linked = show->linked;
    size_t steps = 0, links = 0, kernels = 0;
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        steps += linked->fragments[f].schedule.nsteps;
        links += linked->fragments[f].nlinks;
        kernels += lap_schedule_is_kernel(&linked->fragments[f].schedule);
    }
    char replicas[48] = "";
    if (show->train->grid.dp > 1)
        snprintf(replicas, sizeof(replicas), " in each of %d replicas", show->train->grid.dp);
    const int ranks = show->train->grid.tp * show->train->grid.pp;
    printf("%s, %zu layer%s, hidden %zu, seq %zu, batch %zu, %d rank%s%s, target %s: %s%s\n",
           lap_nn_kind_name(desc->kind), desc->layers, desc->layers == 1 ? "" : "s", desc->hidden,
           desc->seq, desc->batch, ranks, ranks == 1 ? "" : "s", replicas, show->target->name,
           show->pass    ? "after pass "
           : show->spans ? "as they run here"
                         : "operators as built",
           show->pass ? show->pass->name : "");
    if (show->pass)
        printf("%s: %s\n", show->pass->name, show->pass->summary);
    printf("\nrank %d: %u fragments (%zu operators, %zu kernels), %zu steps, %zu links\n",
           show->rank, (unsigned)linked->nfragments, linked->nfragments - kernels, kernels, steps,
           links);
    const size_t launches = lap_nn_programs_count(show->programs).launches;
    if (launches < linked->nfragments)
        printf("a pass that is repeated: %zu launch%s of graphs\n", launches,
               launches > 1 ? "es" : "");
}

void lap_show_train_print(const lap_show_train_t *show)
{
    print_head(show);
    const char *columns =
        show->spans ? "%5[frag]  %-8[part]  %5[layer]  %-22[name]  %-18[does]  %5[steps]  "
                      "%9[begin ms]  %8[ms]  %-1[reads -> writes]"
                    : "%5[frag]  %-8[part]  %5[layer]  %-22[name]  %-18[does]  %5[steps]  "
                      "%0[begin ms]  %0[ms]  %-1[reads -> writes]";
    lap_table_head(columns);
    for (uint32_t f = 0; f < show->linked->nfragments; f++) {
        print_fragment(show, columns, f);
        if (show->steps)
            print_steps(show, f);
    }
    if (show->spans)
        printf("\npredicted: %.3f ms, of which %.3f to begin and end the call\n",
               show->predicted * 1e3, show->call_s * 1e3);
    print_memory(show);
}
