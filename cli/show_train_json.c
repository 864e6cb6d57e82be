/* SPDX-License-Identifier: Apache-2.0 */
/* The program of a pass as JSON. */
#include <stdio.h>

#include "about.h"
#include "schedule/range.h"
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

/* The number of a region; null: none. */
static void json_region(const char *before, uint32_t region)
{
    printf(region == LAP_NO_REGION ? "%snull" : "%s%u", before, (unsigned)region);
}

/* Which regions the places of a call are. */
static void json_places(const lap_fragment_t *fragment)
{
    const char *comma = "";
    printf(",\"places\":{");
    for (int i = 0; i < LAP_PLACES; i++) {
        const lap_link_place_t *place = &fragment->places[i];
        if (place->region == LAP_NO_REGION)
            continue;
        printf("%s\"%s\":{\"region\":%u,\"offset\":%zu,\"row_bytes\":%zu,\"stride\":%zu}", comma,
               lap_place_name((lap_place_t)i), (unsigned)place->region, place->offset,
               place->row_bytes, place->stride);
        comma = ",";
    }
    printf("}");
}

/* What steps use besides: kernels all of it, and operators what their epilogue does. */
static void json_accesses(const lap_fragment_t *fragment)
{
    const char *comma = "";
    printf(",\"accesses\":[");
    for (uint32_t i = 0; i < fragment->naccesses; i++) {
        const lap_access_t *access = &fragment->accesses[i];
        const lap_range_t *range = &access->range;
        if (lap_range_bytes(range) == 0)
            continue;
        printf("%s{\"step\":%u,\"write\":%s,\"offset\":%zu,\"rows\":%zu,\"row_bytes\":%zu,"
               "\"stride\":%zu",
               comma, (unsigned)access->step, access->write ? "true" : "false", range->offset,
               range->rows, range->row_bytes, range->stride);
        json_region(",\"block\":",
                    access->block == LAP_NO_STEP
                        ? LAP_NO_REGION
                        : access->block - fragment->schedule.steps[access->step].first);
        json_region(",\"region\":", (uint32_t)range->place - LAP_PLACES);
        printf("}");
        comma = ",";
    }
    printf("]");
}

/* What the run is given for an entry of the list: regions by their places in it, and numbers. */
static void json_given(const lap_show_train_t *show, uint32_t f)
{
    const lap_nn_entry_t *entry = lap_show_entry(show, f);
    if (!entry)
        return;
    printf(",\"given\":{\"alpha\":%.9g,\"beta\":%.9g,\"index\":%u,\"when\":%d,\"weight_grad\":%s,"
           "\"reads\":[",
           (double)entry->alpha, (double)entry->beta, (unsigned)entry->index, (int)entry->when,
           entry->weight_grad ? "true" : "false");
    for (int i = 0; i < LAP_NN_READS; i++)
        json_region(i ? "," : "", entry->reads[i]);
    printf("],\"writes\":[");
    for (int i = 0; i < LAP_NN_WRITES; i++)
        json_region(i ? "," : "", entry->writes[i]);
    json_region("],\"keeps\":", entry->keeps);
    printf("}");
}

/* Those of the list come first, and have types, sizes and scales. */
static void json_regions(const lap_show_train_t *show)
{
    const lap_linked_t *linked = show->linked;
    printf(",\"regions\":[");
    for (uint32_t i = 0; i < linked->nregions; i++) {
        const lap_link_region_t *region = &linked->regions[i];
        const lap_nn_region_t *matrix = i < show->list->nregions ? &show->list->regions[i] : NULL;
        printf("%s{\"name\":", i ? "," : "");
        lap_json_string(stdout, region->name);
        printf(",\"memory\":%u,\"base\":%zu,\"bytes\":%zu,\"root\":%u,\"filled\":%s,\"scope\":%d,"
               "\"lasts\":%s,\"writers\":%u",
               (unsigned)region->memory, region->base, region->bytes, (unsigned)region->root,
               region->filled ? "true" : "false", (int)region->scope,
               region->lasts ? "true" : "false", (unsigned)region->writers);
        if (matrix) {
            printf(",\"dtype\":\"%s\",\"rows\":%zu,\"cols\":%zu,\"stride\":%zu",
                   lap_dtype_name(matrix->dtype), matrix->rows, matrix->cols, matrix->stride);
            json_region(",\"scale\":", matrix->scale);
            json_region(",\"amax\":", matrix->amax);
        }
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
    printf(",\"iteration\":%u,\"order\":%u,\"phase\":%u,\"section\":%u,\"serial\":%s,"
           "\"neighbours\":%d",
           (unsigned)fragment->iteration, (unsigned)fragment->order, (unsigned)fragment->phase,
           (unsigned)fragment->section, fragment->serial ? "true" : "false", fragment->neighbours);
    lap_show_json_call(&fragment->schedule);
    if (show->spans)
        printf(",\"begin_ms\":%.17g,\"end_ms\":%.17g", show->spans[f].begin * 1e3,
               show->spans[f].end * 1e3);
    json_names(show, "reads", regions.reads, LAP_NN_READS);
    json_names(show, "writes", regions.writes, LAP_NN_WRITES);
    json_places(fragment);
    json_accesses(fragment);
    json_given(show, f);
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
    printf("]");
    json_regions(show);
    printf(",\"repeated_launches\":%zu", sums.launches);
    if (show->spans)
        printf(",\"predicted_ms\":%.17g,\"call_ms\":%.17g", show->predicted * 1e3,
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
