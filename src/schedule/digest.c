/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a program: over a stream of numbers and names, never over memory. Fields come in a fixed order, eight bytes
 * each, the least significant first; regions are numbered by their first use, with what they are.
 */
#include "schedule/digest.h"

#include <string.h>

#include "core/status.h"
#include "util/alloc.h"

typedef struct stream {
    uint64_t hash;
    uint32_t *numbers; /* of regions: 0, or one more than how many were used before */
    uint32_t nused;
} stream_t;

/* FNV-1a. */
static void add(stream_t *stream, uint64_t value)
{
    for (int i = 0; i < 8; i++, value >>= 8) {
        stream->hash ^= value & 0xff;
        stream->hash *= UINT64_C(1099511628211);
    }
}

static void add_text(stream_t *stream, const char *text)
{
    add(stream, text ? strlen(text) : 0);
    for (; text && *text; text++)
        add(stream, (unsigned char)*text);
}

static void add_region(stream_t *stream, const lap_linked_t *linked, uint32_t index)
{
    if (index == LAP_NO_REGION) {
        add(stream, UINT64_MAX);
        return;
    }
    const bool known = stream->numbers[index] > 0;
    if (!known)
        stream->numbers[index] = ++stream->nused;
    add(stream, stream->numbers[index]);
    if (known)
        return;
    const lap_link_region_t *region = &linked->regions[index];
    add_text(stream, region->name);
    add(stream, region->memory);
    add(stream, region->base);
    add(stream, region->bytes);
}

static void add_range(stream_t *stream, const lap_linked_t *linked, const lap_range_t *range)
{
    add(stream, range->rows);
    add(stream, range->row_bytes);
    if (range->rows == 0 || range->row_bytes == 0)
        return;
    if (range->place >= LAP_PLACES)
        add_region(stream, linked, (uint32_t)range->place - LAP_PLACES);
    else
        add(stream, range->place);
    add(stream, range->place == LAP_SYMMETRIC ? (uint64_t)range->rank : 0);
    add(stream, range->offset);
    add(stream, range->stride);
}

static void add_uses(stream_t *stream, const lap_linked_t *linked, const lap_schedule_t *schedule,
                     uint32_t first, uint32_t count)
{
    add(stream, count);
    for (uint32_t i = first; i < first + count; i++) {
        const lap_use_t *use = &schedule->uses[i];
        add(stream, (uint64_t)use->role | (uint64_t)use->access << 8);
        add(stream, use->dtype);
        add_range(stream, linked, &use->range);
    }
}

static void add_signal(stream_t *stream, const lap_signal_t *signal)
{
    add(stream, (uint64_t)(int64_t)signal->peer);
    add(stream, signal->word);
    add(stream, signal->count);
    add(stream, signal->bytes);
}

static void add_step(stream_t *stream, const lap_linked_t *linked, const lap_schedule_t *schedule,
                     const lap_step_t *step)
{
    add(stream, step->kind);
    add(stream, step->stream);
    add(stream, step->ndeps);
    for (uint16_t i = 0; i < step->ndeps; i++)
        add(stream, lap_step_dep(schedule, step, i));
    add_signal(stream, &step->signal);
    add(stream, (uint64_t)step->any_order | (uint64_t)step->together << 1);
    add_text(stream, step->name);
    add_uses(stream, linked, schedule, step->first_use, step->nuses);
    add(stream, step->ntiles);
    for (uint32_t t = 0; t < step->ntiles; t++) {
        const lap_tile_t *tile = &schedule->tiles[step->first_tile + t];
        add_uses(stream, linked, schedule, tile->first_use, tile->nuses);
        add_signal(stream, &tile->wait);
        add_signal(stream, &tile->raise);
    }
}

static void add_schedule(stream_t *stream, const lap_linked_t *linked,
                         const lap_schedule_t *schedule)
{
    add(stream, schedule->kind);
    add_text(stream, schedule->method);
    add(stream, (uint64_t)schedule->rank);
    add(stream, (uint64_t)schedule->size);
    add(stream, schedule->m);
    add(stream, schedule->types.a);
    add(stream, schedule->types.b);
    add(stream, schedule->types.out);
    add(stream, schedule->types.wire);
    add(stream, schedule->types.y);
    add(stream, schedule->layout);
    add(stream, schedule->epilogue);
    add(stream, schedule->set);
    add(stream, schedule->nsteps);
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        add_step(stream, linked, schedule, &schedule->steps[i]);
    add(stream, schedule->nsignals);
    for (uint32_t i = 0; i < schedule->nsignals; i++)
        add(stream, schedule->raised[i]);
}

static void add_fragment(stream_t *stream, const lap_linked_t *linked, uint32_t index)
{
    const lap_fragment_t *fragment = &linked->fragments[index];
    add(stream, fragment->kernel);
    add(stream, fragment->buffer);
    add(stream, fragment->iteration);
    for (int r = 0; r < fragment->schedule.size && !fragment->kernel; r++)
        add(stream, (uint64_t)lap_fragment_rank(fragment, r));
    for (int i = 0; i < LAP_CALL_OPERANDS && !fragment->kernel; i++) {
        const lap_link_place_t *place = &fragment->places[i];
        add_region(stream, linked, place->region);
        if (place->region == LAP_NO_REGION)
            continue;
        add(stream, place->dtype);
        add(stream, place->offset);
        add(stream, place->row_bytes);
        add(stream, place->stride);
    }
    add_schedule(stream, linked, &fragment->schedule);
    add(stream, fragment->nlinks);
    for (uint32_t i = 0; i < fragment->nlinks; i++) {
        add(stream, fragment->links[i].step);
        add(stream, index - fragment->links[i].fragment);
        add(stream, fragment->links[i].dep);
    }
}

lap_status_t lap_linked_digest(const lap_linked_t *linked, uint64_t *digest_p)
{
    stream_t stream = {.hash = LAP_NO_DIGEST,
                       .numbers = lap_alloc((size_t)linked->nregions + 1, sizeof(uint32_t))};
    if (!stream.numbers)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the digest of a program of %u regions",
                         (unsigned)linked->nregions);
    add(&stream, (uint64_t)linked->rank);
    add(&stream, linked->nfragments);
    for (uint32_t f = 0; f < linked->nfragments; f++)
        add_fragment(&stream, linked, f);
    lap_free(stream.numbers);
    *digest_p = stream.hash;
    return LAP_OK;
}

uint64_t lap_digest_add(uint64_t digests, uint64_t digest)
{
    stream_t stream = {.hash = digests};
    add(&stream, digest);
    return stream.hash;
}
