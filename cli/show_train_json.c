/* SPDX-License-Identifier: Apache-2.0 */
/* The program of a pass as JSON. */
#include <stdio.h>

#include "about.h"
#include "show_train.h"

static void json_names(const lap_show_train_t *show, const char *key, const uint32_t *regions,
                       int count)
{
    const char *comma = "";
    printf(",\"%s\":[", key);
    for (int i = 0; i < count; i++) {
        if (regions[i] == LAP_NN_NONE)
            continue;
        printf("%s", comma);
        lap_json_string(stdout, show->linked->regions[regions[i]].name);
        comma = ",";
    }
    printf("]");
}

static void json_links(const lap_show_train_t *show, uint32_t f)
{
    const lap_fragment_t *fragment = &show->linked->fragments[f];
    printf(",\"links\":[");
    for (uint32_t i = 0; i < fragment->nlinks; i++) {
        const lap_link_dep_t *link = &fragment->links[i];
        char why[LAP_SHOW_RANGE];
        lap_show_why(show, f, link, why);
        printf("%s{\"step\":%u,\"after_fragment\":%u,\"after_step\":%u,\"why\":", i ? "," : "",
               (unsigned)link->step, (unsigned)link->fragment, (unsigned)link->dep);
        lap_json_string(stdout, why);
        printf("}");
    }
    printf("]");
}

static void json_fragment(const lap_show_train_t *show, uint32_t f)
{
    const lap_fragment_t *fragment = &show->linked->fragments[f];
    lap_show_regions_t regions;
    char name[LAP_SHOW_NAME];
    lap_show_regions(show, f, &regions);
    lap_show_name(show, f, name);
    const bool kernel = lap_schedule_is_kernel(&fragment->schedule);
    printf("{\"fragment\":%u,\"part\":\"%s\",\"layer\":", (unsigned)f, lap_show_part(show, f));
    printf(lap_show_layer(show, f) < 0 ? "null" : "%ld", lap_show_layer(show, f));
    lap_json_text("name", name);
    lap_json_text("op", kernel ? NULL : lap_kind_words[fragment->schedule.kind].word);
    lap_json_text("method", kernel ? NULL : fragment->schedule.method);
    lap_json_text("kernel", kernel ? fragment->schedule.steps[0].name : NULL);
    printf(",\"buffer\":%u,\"group\":{\"first\":%d,\"stride\":%d,\"size\":%d},\"graph\":%s",
           (unsigned)fragment->buffer, fragment->base, fragment->stride, fragment->schedule.size,
           fragment->schedule.graph ? "true" : "false");
    if (show->spans)
        printf(",\"begin_ms\":%.6g,\"end_ms\":%.6g", show->spans[f].begin * 1e3,
               show->spans[f].end * 1e3);
    json_names(show, "reads", regions.reads, LAP_NN_READS);
    json_names(show, "writes", regions.writes, LAP_NN_WRITES);
    json_links(show, f);
    printf(",\"steps\":[");
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++) {
        printf("%s", i ? "," : "");
        lap_show_json_step(&(lap_show_view_t){.schedule = &fragment->schedule}, i);
    }
    printf("]}");
}

void lap_show_train_json(const lap_show_train_t *show)
{
    const lap_nn_proof_t sums = lap_nn_programs_count(show->programs);
    const lap_nn_desc_t *desc = &show->train->desc;
    printf("{\"layer\":\"%s\",\"layers\":%zu,\"tp\":%d,\"target\":\"%s\",\"after\":\"%s\","
           "\"rank\":%d,\"fragments\":[",
           lap_nn_kind_name(desc->kind), desc->layers, show->train->grid.tp, show->target->name,
           show->pass ? show->pass->name : "build", show->rank);
    for (uint32_t f = 0; f < show->linked->nfragments; f++) {
        printf("%s", f ? "," : "");
        json_fragment(show, f);
    }
    printf("],\"repeated_launches\":%zu", sums.launches);
    if (show->spans)
        printf(",\"predicted_ms\":%.6g,\"call_ms\":%.6g", show->predicted * 1e3,
               show->call_s * 1e3);
    printf(",\"memory\":{\"activation_bytes\":%zu,\"parameter_bytes\":%zu,\"scratch_bytes\":%zu,"
           "\"symmetric_bytes\":%zu,\"optimizer_bytes\":%zu,\"bucket_bytes\":%zu,"
           "\"program_bytes\":%zu,\"most_live_bytes\":%zu,\"most_live_at\":%u},\"lifetimes\":[",
           show->list->bytes[LAP_NN_PRIVATE], show->list->bytes[LAP_NN_LASTING], sums.scratch_bytes,
           sums.symmetric_bytes, sums.state_bytes, sums.bucket_bytes, sums.program_bytes,
           show->most_alive, (unsigned)show->most_at);
    for (size_t i = 0; i < show->nlifetimes; i++) {
        const lap_lifetime_t *life = &show->lifetimes[i];
        printf("%s{\"region\":", i ? "," : "");
        lap_json_string(stdout, show->linked->regions[life->region].name);
        printf(",\"bytes\":%zu,\"offset\":%zu,\"first\":%u,\"last\":%u,\"for_backward\":%s}",
               life->bytes, life->offset, (unsigned)life->first, (unsigned)life->last,
               life->lasts ? "true" : "false");
    }
    printf("]");
    lap_about_json("cpu");
    printf("}\n");
}
