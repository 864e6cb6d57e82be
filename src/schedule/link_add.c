/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Describing a program: its regions, its fragments, and what their steps use besides what their
 * builders know.
 */
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

/* What a step of the latest fragment uses, or a tile of it. */
static void add_use(lap_linked_t *linked, uint32_t step, uint32_t tile, const lap_use_t *use)
{
    if (linked->status != LAP_OK)
        return;
    lap_schedule_t *schedule = &linked->fragments[linked->nfragments - 1].schedule;
    lap_add_use(schedule, step, tile, use);
    linked->status = schedule->status;
}

void lap_link_operand(lap_linked_t *linked, uint32_t role, bool write,
                      const lap_link_place_t *place, size_t rows)
{
    const lap_use_t use = {.range = range_of(linked, place, rows, place->row_bytes),
                           .role = (uint8_t)(LAP_ROLE_KERNEL + role),
                           .access = write ? LAP_WRITE : LAP_READ,
                           .dtype = place->dtype};
    add_use(linked, 0, LAP_NO_STEP, &use);
}

/* A step of a call, or a tile of it, that uses more than its builder knows. */
typedef struct user {
    lap_linked_t *linked;
    uint32_t step, tile;
} user_t;

static void use_more(const user_t *user, bool write, lap_range_t range)
{
    const lap_use_t use = {
        .range = range, .role = LAP_ROLE_EPILOGUE, .access = write ? LAP_WRITE : LAP_READ};
    if (lap_range_bytes(&range) > 0)
        add_use(user->linked, user->step, user->tile, &use);
}

/* What the epilogue uses for a range of d. */
static void add_epilogue(const user_t *user, lap_range_t d, bool writes_aux, bool reads_d)
{
    const lap_linked_t *linked = user->linked;
    const lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    const lap_link_place_t *places = fragment->places;
    const size_t packed = places[LAP_OUTPUT].row_bytes;
    const size_t element = lap_dtype_size(fragment->schedule.types.out);
    const size_t row = d.offset / packed, col = d.offset % packed / element;
    const size_t cols = d.row_bytes / element;
    if (places[LAP_AUX].region != LAP_NO_REGION) {
        const size_t width = lap_dtype_size(places[LAP_AUX].dtype);
        lap_range_t aux = range_of(linked, &places[LAP_AUX], d.rows, cols * width);
        aux.offset += row * aux.stride + col * width;
        use_more(user, writes_aux, aux);
    }
    if (places[LAP_BIAS].region != LAP_NO_REGION) {
        const size_t width = lap_dtype_size(places[LAP_BIAS].dtype);
        lap_range_t bias = range_of(linked, &places[LAP_BIAS], 1, cols * width);
        bias.offset += col * width;
        use_more(user, false, bias);
    }
    if (reads_d)
        use_more(user, false, lap_link_resolve(linked, fragment, &d));
}

/* The scale that a tile of a GEMM, or the sums of the columns of a, take: a float. */
static void add_scale(const user_t *user, const lap_link_place_t *scale)
{
    if (scale->region != LAP_NO_REGION)
        use_more(user, false, range_of(user->linked, scale, 1, sizeof(float)));
}

static void add_sums(const user_t *user, const lap_link_place_t *places, lap_place_t summed)
{
    const lap_link_place_t *bias_grad = &places[LAP_BIAS_GRAD];
    if (summed != LAP_OUTPUT)
        add_scale(user, &places[LAP_A_SCALE]);
    if (bias_grad->region != LAP_NO_REGION)
        use_more(user, true, range_of(user->linked, bias_grad, 1, bias_grad->row_bytes));
}

void lap_link_epilogue(lap_linked_t *linked, bool writes_aux, bool reads_d)
{
    if (linked->status != LAP_OK)
        return;
    const lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    const lap_schedule_t *schedule = &fragment->schedule;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        for (uint32_t t = step->first_tile; t < step->first_tile + step->ntiles; t++) {
            const lap_range_t d = *lap_tile_range(schedule, &schedule->tiles[t], LAP_ROLE_D);
            const user_t user = {linked, i, t};
            add_scale(&user, &fragment->places[LAP_A_SCALE]);
            add_scale(&user, &fragment->places[LAP_B_SCALE]);
            if (d.place == LAP_OUTPUT)
                add_epilogue(&user, d, writes_aux, reads_d);
        }
        const user_t user = {linked, i, LAP_NO_STEP};
        const lap_range_t d = *lap_step_range(schedule, step, LAP_ROLE_D);
        if (step->kind == LAP_STEP_REDUCE && d.place == LAP_OUTPUT)
            add_epilogue(&user, d, writes_aux, reads_d);
        if (step->kind == LAP_STEP_SUMS)
            add_sums(&user, fragment->places, lap_step_range(schedule, step, LAP_ROLE_A)->place);
    }
}

void lap_linked_clear(lap_linked_t *linked)
{
    for (uint32_t i = 0; i < linked->nfragments; i++) {
        lap_schedule_clear(&linked->fragments[i].schedule);
        lap_free(linked->fragments[i].links);
    }
    lap_free(linked->fragments);
    lap_free(linked->regions);
    *linked = (lap_linked_t){.rank = linked->rank};
}
