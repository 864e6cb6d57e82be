/* SPDX-License-Identifier: Apache-2.0 */
/* The program of a pass as JSON. */
#include <math.h>

#include "about.h"
#include "schedule/range.h"
#include "show_train.h"

static void put_names(lap_json_t *json, const lap_show_train_t *show, const char *key,
                      const uint32_t *regions, int count)
{
    lap_json_put(json, "%s:[", key);
    for (int i = 0; i < count; i++)
        if (regions[i] != LAP_NN_NONE)
            lap_json_put(json, "%s", show->linked->regions[regions[i]].name);
    lap_json_put(json, "]");
}

static void put_links(lap_json_t *json, const lap_show_train_t *show, uint32_t f)
{
    const lap_fragment_t *fragment = &show->linked->fragments[f];
    lap_json_put(json, "links:[");
    for (uint32_t i = 0; i < fragment->nlinks; i++) {
        const lap_link_dep_t *link = &fragment->links[i];
        char why[LAP_SHOW_RANGE];
        lap_show_why(show, f, link, why);
        lap_json_put(json, "{step:%u after_fragment:%u after_step:%u why:%s}", link->step,
                     link->fragment, link->dep, why);
    }
    lap_json_put(json, "]");
}

/* The number of a region; null: none. */
static double number_of(uint32_t region)
{
    return region == LAP_NO_REGION ? NAN : region;
}

/* Which regions the places of a call are. */
static void put_places(lap_json_t *json, const lap_fragment_t *fragment)
{
    lap_json_put(json, "places:{");
    for (int i = 0; i < LAP_PLACES; i++) {
        const lap_link_place_t *place = &fragment->places[i];
        if (place->region == LAP_NO_REGION)
            continue;
        lap_json_put(json, "%s:{region:%u offset:%zu row_bytes:%zu stride:%zu}",
                     lap_place_name((lap_place_t)i), place->region, place->offset, place->row_bytes,
                     place->stride);
    }
    lap_json_put(json, "}");
}

/* What steps use of regions: kernels all of it, and operators what their epilogue does. */
static void put_uses(lap_json_t *json, const lap_schedule_t *schedule, uint32_t step, uint32_t tile)
{
    const lap_step_t *of = &schedule->steps[step];
    const bool whole = tile == LAP_NO_STEP;
    const uint32_t first = whole ? of->first_use : schedule->tiles[tile].first_use;
    const uint32_t count = whole ? of->nuses : schedule->tiles[tile].nuses;
    for (uint32_t i = first; i < first + count; i++) {
        const lap_range_t *range = &schedule->uses[i].range;
        if ((uint32_t)range->place < LAP_PLACES || lap_range_bytes(range) == 0)
            continue;
        lap_json_put(json,
                     "{step:%u write:%i offset:%zu rows:%zu row_bytes:%zu stride:%zu block:%.0f "
                     "region:%.0f}",
                     step, schedule->uses[i].access == LAP_WRITE, range->offset, range->rows,
                     range->row_bytes, range->stride,
                     number_of(whole ? LAP_NO_REGION : tile - of->first_tile),
                     number_of((uint32_t)range->place - LAP_PLACES));
    }
}

static void put_accesses(lap_json_t *json, const lap_schedule_t *schedule)
{
    lap_json_put(json, "accesses:[");
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        for (uint32_t t = 0; t < step->ntiles; t++)
            put_uses(json, schedule, i, step->first_tile + t);
        put_uses(json, schedule, i, LAP_NO_STEP);
    }
    lap_json_put(json, "]");
}

static void put_numbers(lap_json_t *json, const char *key, const uint32_t *regions, int count)
{
    lap_json_put(json, "%s:[", key);
    for (int i = 0; i < count; i++)
        lap_json_put(json, "%.0f", number_of(regions[i]));
    lap_json_put(json, "]");
}

/* What the run is given for an entry of the list: regions by their places in it, and numbers. */
static void put_given(lap_json_t *json, const lap_show_train_t *show, uint32_t f)
{
    const lap_nn_entry_t *entry = lap_show_entry(show, f);
    if (!entry)
        return;
    lap_json_put(json, "given:{alpha:%.9g beta:%.9g index:%u when:%d weight_grad:%i",
                 (double)entry->alpha, (double)entry->beta, entry->index, (int)entry->when,
                 entry->weight_grad);
    put_numbers(json, "reads", entry->reads, LAP_NN_READS);
    put_numbers(json, "writes", entry->writes, LAP_NN_WRITES);
    lap_json_put(json, "keeps:%.0f}", number_of(entry->keeps));
}

/* Those of the list come first, and have types, sizes and scales. */
static void put_regions(lap_json_t *json, const lap_show_train_t *show)
{
    const lap_linked_t *linked = show->linked;
    lap_json_put(json, "regions:[");
    for (uint32_t i = 0; i < linked->nregions; i++) {
        const lap_link_region_t *region = &linked->regions[i];
        const lap_nn_region_t *matrix = i < show->list->nregions ? &show->list->regions[i] : NULL;
        lap_json_put(
            json,
            "{name:%s memory:%u base:%zu bytes:%zu root:%u filled:%i scope:%d lasts:%i writers:%u",
            region->name, region->memory, region->base, region->bytes, region->root, region->filled,
            (int)region->scope, region->lasts, region->writers);
        if (matrix)
            lap_json_put(json, "dtype:%s rows:%zu cols:%zu stride:%zu scale:%.0f amax:%.0f",
                         lap_dtype_name(matrix->dtype), matrix->rows, matrix->cols, matrix->stride,
                         number_of(matrix->scale), number_of(matrix->amax));
        lap_json_put(json, "}");
    }
    lap_json_put(json, "]");
}

static void put_fragment(lap_json_t *json, const lap_show_train_t *show, uint32_t f)
{
    const lap_fragment_t *fragment = &show->linked->fragments[f];
    const lap_schedule_t *schedule = &fragment->schedule;
    const bool kernel = lap_schedule_is_kernel(schedule);
    const long layer = lap_show_layer(show, f);
    lap_show_regions_t regions;
    char name[LAP_SHOW_NAME];
    lap_show_regions(show, f, &regions);
    lap_show_name(show, f, name);
    lap_json_put(json,
                 "{fragment:%u part:%s layer:%.0f name:%s op:%s method:%s kernel:%s buffer:%u "
                 "group:{first:%d stride:%d size:%d} graph:%i iteration:%u order:%u phase:%u "
                 "section:%u serial:%i neighbours:%d",
                 f, lap_show_part(show, f), layer < 0 ? NAN : (double)layer, name,
                 kernel ? NULL : lap_kind_words[schedule->kind].word,
                 kernel ? NULL : schedule->method, kernel ? schedule->steps[0].name : NULL,
                 fragment->buffer, fragment->base, fragment->stride, schedule->size,
                 schedule->graph, fragment->iteration, fragment->order, fragment->phase,
                 fragment->section, fragment->serial, fragment->neighbours);
    lap_show_json_call(json, schedule);
    if (show->spans)
        lap_json_put(json, "begin_ms:%.17g end_ms:%.17g", show->spans[f].begin * 1e3,
                     show->spans[f].end * 1e3);
    put_names(json, show, "reads", regions.reads, LAP_NN_READS);
    put_names(json, show, "writes", regions.writes, LAP_NN_WRITES);
    put_places(json, fragment);
    put_accesses(json, &fragment->schedule);
    put_given(json, show, f);
    put_links(json, show, f);
    lap_show_json_steps(json, &(lap_show_view_t){.schedule = schedule});
    lap_json_put(json, "}");
}

static void put_memory(lap_json_t *json, const lap_show_train_t *show, const lap_nn_proof_t *sums)
{
    lap_json_put(json,
                 "memory:{activation_bytes:%zu parameter_bytes:%zu scratch_bytes:%zu "
                 "symmetric_bytes:%zu optimizer_bytes:%zu bucket_bytes:%zu program_bytes:%zu "
                 "most_live_bytes:%zu most_live_at:%u} lifetimes:[",
                 show->list->bytes[LAP_NN_PRIVATE], show->list->bytes[LAP_NN_LASTING],
                 sums->scratch_bytes, sums->symmetric_bytes, sums->state_bytes, sums->bucket_bytes,
                 sums->program_bytes, show->most_alive, show->most_at);
    for (size_t i = 0; i < show->nlifetimes; i++) {
        const lap_lifetime_t *life = &show->lifetimes[i];
        lap_json_put(json, "{region:%s bytes:%zu offset:%zu first:%u last:%u for_backward:%i}",
                     show->linked->regions[life->region].name, life->bytes, life->offset,
                     life->first, life->last, life->lasts);
    }
    lap_json_put(json, "]");
}

void lap_show_train_json(const lap_show_train_t *show)
{
    const lap_nn_proof_t sums = lap_nn_programs_count(show->programs);
    const lap_nn_desc_t *desc = &show->train->desc;
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{layer:%s layers:%zu tp:%d target:%s after:%s rank:%d fragments:[",
                 lap_nn_kind_name(desc->kind), desc->layers, show->train->grid.tp,
                 show->target->name, show->pass ? show->pass->name : "build", show->rank);
    for (uint32_t f = 0; f < show->linked->nfragments; f++)
        put_fragment(&json, show, f);
    lap_json_put(&json, "]");
    put_regions(&json, show);
    lap_json_put(&json, "repeated_launches:%zu", sums.launches);
    if (show->spans)
        lap_json_put(&json, "predicted_ms:%.17g call_ms:%.17g", show->predicted * 1e3,
                     show->call_s * 1e3);
    put_memory(&json, show, &sums);
    lap_about_json(&json, "cpu");
    lap_json_put(&json, "}");
}
