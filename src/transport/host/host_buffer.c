/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes and ends symmetric buffers in mapped memory. Per rank one region: [records | signal words |
 * data].
 */
#include <stdint.h>

#include "core/status.h"
#include "device/host/host_guard.h"
#include "transport/host/host.h"
#include "util/alloc.h"

#define DATA_ALIGNMENT 4096u

/* Where the parts of a region start; the records are at 0. */
typedef struct layout {
    size_t bank;
    size_t data;
    size_t bytes;
} layout_t;

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static lap_status_t lay_out(const lap_buffer_t *buffer, size_t bytes, layout_t *layout_p)
{
    layout_t layout;
    layout.bank = round_up(LAP_CALL_RECORDS * sizeof(lap_call_record_t), _Alignof(lap_bank_t));
    layout.data = round_up(layout.bank + lap_bank_bytes(buffer->nsignals), DATA_ALIGNMENT);
    if (bytes > SIZE_MAX / 2 - layout.data)
        return lap_error(LAP_ERR_NO_MEMORY,
                         "a symmetric buffer of %zu bytes is more than a process can address",
                         bytes);
    layout.bytes = layout.data + bytes;
    *layout_p = layout;
    return LAP_OK;
}

static lap_status_t alloc_tables(lap_buffer_t *buffer)
{
    const size_t size = (size_t)buffer->group->size;
    buffer->regions = lap_alloc(size, sizeof(*buffer->regions));
    buffer->data = lap_alloc(size, sizeof(*buffer->data));
    buffer->banks = lap_alloc(size, sizeof(*buffer->banks));
    buffer->records = lap_alloc(size, sizeof(*buffer->records));
    if (buffer->regions && buffer->data && buffer->banks && buffer->records)
        return LAP_OK;
    return lap_error(LAP_ERR_NO_MEMORY, "no memory for the tables of a buffer of %zu ranks", size);
}

static lap_status_t create_own(lap_buffer_t *buffer, size_t bytes, layout_t *layout_p)
{
    LAP_TRY(alloc_tables(buffer));
    LAP_TRY(lay_out(buffer, bytes, layout_p));
    return lap_region_create(buffer->group->world, layout_p->bytes, buffer->group->size,
                             &buffer->regions[buffer->group->rank]);
}

/* Whether the memory of a rank of the group is mapped. */
typedef bool (*maps_t)(const lap_buffer_t *buffer, int rank);

static lap_status_t map_peers(lap_buffer_t *buffer, maps_t maps, const layout_t *layout,
                              const uint64_t *handles)
{
    lap_group_t *group = buffer->group;
    for (int r = 0; r < group->size; r++) {
        if (r != group->rank && maps && !maps(buffer, r))
            continue;
        if (r != group->rank)
            LAP_TRY(lap_region_map(group->world, group->members[r], handles[r], layout->bytes,
                                   &buffer->regions[r]));
        char *base = buffer->regions[r].data;
        buffer->records[r] = (lap_call_record_t *)base;
        buffer->banks[r] = (lap_bank_t *)(base + layout->bank);
        buffer->data[r] = base + layout->data;
        if (lap_host_guard_is_on())
            LAP_TRY(lap_host_guard_cover(buffer->data[r], layout->bytes - layout->data));
    }
    return LAP_OK;
}

/*
 * Every rank takes part in every collective step, also when it has failed, so that none is left
 * waiting.
 */
static lap_status_t create_with(lap_buffer_t *buffer, size_t bytes, maps_t maps, uint64_t *handles)
{
    lap_group_t *group = buffer->group;
    layout_t layout = {0, 0, 0};
    lap_status_t status =
        handles ? create_own(buffer, bytes, &layout)
                : lap_error(LAP_ERR_NO_MEMORY, "no memory for %d region handles", group->size);
    LAP_TRY(lap_group_agree(group, status));
    LAP_TRY(lap_group_allgather(group, &buffer->regions[group->rank].handle, sizeof(uint64_t),
                                handles));
    return lap_group_agree(group, map_peers(buffer, maps, &layout, handles));
}

lap_status_t lap_host_buffer_create_some(lap_buffer_t *buffer, size_t bytes, maps_t maps)
{
    uint64_t *handles = lap_alloc((size_t)buffer->group->size, sizeof(*handles));
    lap_status_t status = create_with(buffer, bytes, maps, handles);
    lap_free(handles);
    if (status != LAP_OK)
        lap_host_buffer_destroy(buffer);
    return status;
}

lap_status_t lap_host_buffer_create(lap_buffer_t *buffer)
{
    return lap_host_buffer_create_some(buffer, buffer->bytes, NULL);
}

void lap_host_buffer_destroy(lap_buffer_t *buffer)
{
    for (int r = 0; lap_host_guard_is_on() && buffer->data && r < buffer->group->size; r++)
        lap_host_guard_uncover(buffer->data[r]);
    for (int r = 0; buffer->regions && r < buffer->group->size; r++)
        lap_region_unmap(buffer->group->world, &buffer->regions[r]);
    lap_free(buffer->records);
    lap_free(buffer->banks);
    lap_free(buffer->data);
    lap_free(buffer->regions);
    buffer->records = NULL;
    buffer->banks = NULL;
    buffer->data = NULL;
    buffer->regions = NULL;
}
