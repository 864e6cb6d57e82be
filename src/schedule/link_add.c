/* SPDX-License-Identifier: Apache-2.0 */
/* Describing a program: its regions, its fragments, and what their steps use besides what they name. */
#include <stdio.h>

#include "core/status.h"
#include "schedule/link_uses.h"
#include "schedule/range.h"
#include "util/alloc.h"

void *lap_link_grow(lap_linked_t *linked, void *array, uint32_t count, size_t *room_p, size_t size)
{
    if (linked->status != LAP_OK)
        return NULL;
    void *grown = lap_grow(array, count, room_p, size);
    if (!grown)
        linked->status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a program of %u parts",
                                   (unsigned)count + 1);
    return grown;
}

uint32_t lap_link_add_region(lap_linked_t *linked, const char *name, uint32_t memory, size_t base,
                             size_t bytes, bool filled)
{
    lap_link_region_t *regions = lap_link_grow(linked, linked->regions, linked->nregions,
                                               &linked->regions_room, sizeof(*regions));
    if (!regions)
        return 0;
    linked->regions = regions;
    lap_link_region_t *region = &regions[linked->nregions];
    *region = (lap_link_region_t){
        .memory = memory, .base = base, .bytes = bytes, .filled = filled, .root = linked->nregions};
    snprintf(region->name, sizeof(region->name), "%s", name);
    return linked->nregions++;
}

lap_fragment_t *lap_link_fragment(lap_linked_t *linked)
{
    lap_fragment_t *fragments = lap_link_grow(linked, linked->fragments, linked->nfragments,
                                              &linked->fragments_room, sizeof(*fragments));
    if (!fragments)
        return NULL;
    linked->fragments = fragments;
    lap_fragment_t *fragment = &fragments[linked->nfragments++];
    *fragment = (lap_fragment_t){.stride = 1};
    for (int i = 0; i < LAP_CALL_OPERANDS; i++)
        fragment->places[i].region = LAP_NO_REGION;
    return fragment;
}

void lap_link_set_serial(lap_linked_t *linked, uint32_t first)
{
    for (uint32_t f = first; f < linked->nfragments; f++)
        linked->fragments[f].serial = true;
}

static void add_access(lap_linked_t *linked, const lap_access_t *access)
{
    if (linked->status != LAP_OK)
        return;
    lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    lap_access_t *accesses = lap_link_grow(linked, fragment->accesses, fragment->naccesses,
                                           &fragment->accesses_room, sizeof(*accesses));
    if (!accesses)
        return;
    fragment->accesses = accesses;
    accesses[fragment->naccesses++] = *access;
}

/* `rows` rows from the first of a place on. */
static lap_range_t range_of(const lap_linked_t *linked, const lap_link_place_t *place, size_t rows,
                            size_t row_bytes)
{
    return (lap_range_t){
        .place = (lap_place_t)(LAP_PLACES + place->region),
        .rank = linked->rank,
        .offset = place->offset,
        .rows = rows,
        .row_bytes = row_bytes,
        .stride = place->stride,
    };
}

lap_fragment_t *lap_link_kernel(lap_linked_t *linked, const lap_problem_t *problem,
                                const char *method, uint16_t stream, const char *name)
{
    lap_fragment_t *fragment = lap_link_fragment(linked);
    if (!fragment)
        return NULL;
    fragment->kernel = true;
    lap_schedule_init(&fragment->schedule, problem, method);
    (void)lap_add_kernel(&fragment->schedule, stream, name);
    linked->status = fragment->schedule.status;
    return linked->status == LAP_OK ? fragment : NULL;
}

void lap_link_operand(lap_linked_t *linked, uint32_t role, bool write,
                      const lap_link_place_t *place, size_t rows)
{
    add_access(linked, &(lap_access_t){.tile = LAP_NO_STEP,
                                       .write = write,
                                       .role = role,
                                       .dtype = place->dtype,
                                       .range = range_of(linked, place, rows, place->row_bytes)});
}

/* What a step of a call uses, or a tile of it. */
static void add_use(lap_linked_t *linked, uint32_t step, uint32_t tile, bool write,
                    lap_range_t range)
{
    if (lap_range_bytes(&range) > 0)
        add_access(linked,
                   &(lap_access_t){.step = step, .tile = tile, .write = write, .range = range});
}

/* What the epilogue uses for a range of d. */
static void add_epilogue(lap_linked_t *linked, uint32_t step, uint32_t tile, const lap_range_t *d,
                         bool writes_aux, bool reads_d)
{
    const lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    const lap_link_place_t *places = fragment->places;
    const size_t packed = places[LAP_OUTPUT].row_bytes;
    const size_t element = lap_dtype_size(fragment->schedule.types.out);
    const size_t row = d->offset / packed, col = d->offset % packed / element;
    const size_t cols = d->row_bytes / element;
    if (places[LAP_AUX].region != LAP_NO_REGION) {
        const size_t width = lap_dtype_size(places[LAP_AUX].dtype);
        lap_range_t aux = range_of(linked, &places[LAP_AUX], d->rows, cols * width);
        aux.offset += row * aux.stride + col * width;
        add_use(linked, step, tile, writes_aux, aux);
    }
    if (places[LAP_BIAS].region != LAP_NO_REGION) {
        const size_t width = lap_dtype_size(places[LAP_BIAS].dtype);
        lap_range_t bias = range_of(linked, &places[LAP_BIAS], 1, cols * width);
        bias.offset += col * width;
        add_use(linked, step, tile, false, bias);
    }
    if (reads_d)
        add_use(linked, step, tile, false, lap_link_resolve(linked, fragment, d));
}

/* The scales that a tile of a GEMM, or the sums of the columns of a, take: a float each. */
static void add_scale(lap_linked_t *linked, uint32_t step, uint32_t tile,
                      const lap_link_place_t *scale)
{
    if (scale->region != LAP_NO_REGION)
        add_use(linked, step, tile, false, range_of(linked, scale, 1, sizeof(float)));
}

void lap_link_epilogue(lap_linked_t *linked, bool writes_aux, bool reads_d)
{
    if (linked->status != LAP_OK)
        return;
    const lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    const lap_schedule_t *schedule = &fragment->schedule;
    const lap_link_place_t *a_scale = &fragment->places[LAP_A_SCALE],
                           *b_scale = &fragment->places[LAP_B_SCALE],
                           *bias_grad = &fragment->places[LAP_BIAS_GRAD];
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        for (uint32_t t = step->first_tile; t < step->first_tile + step->ntiles; t++) {
            const lap_range_t *tile_d = lap_tile_range(schedule, &schedule->tiles[t], LAP_ROLE_D);
            add_scale(linked, i, t, a_scale);
            add_scale(linked, i, t, b_scale);
            if (tile_d->place == LAP_OUTPUT)
                add_epilogue(linked, i, t, tile_d, writes_aux, reads_d);
        }
        const lap_range_t *a = lap_step_range(schedule, step, LAP_ROLE_A),
                          *d = lap_step_range(schedule, step, LAP_ROLE_D);
        if (step->kind == LAP_STEP_REDUCE && d->place == LAP_OUTPUT)
            add_epilogue(linked, i, LAP_NO_STEP, d, writes_aux, reads_d);
        if (step->kind == LAP_STEP_SUMS && a->place != LAP_OUTPUT)
            add_scale(linked, i, LAP_NO_STEP, a_scale);
        if (step->kind == LAP_STEP_SUMS && bias_grad->region != LAP_NO_REGION)
            add_use(linked, i, LAP_NO_STEP, true,
                    range_of(linked, bias_grad, 1, bias_grad->row_bytes));
    }
}

void lap_linked_clear(lap_linked_t *linked)
{
    for (uint32_t i = 0; i < linked->nfragments; i++) {
        lap_schedule_clear(&linked->fragments[i].schedule);
        lap_free(linked->fragments[i].accesses);
        lap_free(linked->fragments[i].links);
    }
    lap_free(linked->fragments);
    lap_free(linked->regions);
    *linked = (lap_linked_t){.rank = linked->rank};
}
