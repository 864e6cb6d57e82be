/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric buffers as the caller sees them: arguments are checked here, agreed upon by all ranks,
 * and handed to the transport. What waits have in common, whatever the transport, is in wait.c.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "core/options.h"
#include "core/status.h"
#include "core/terms.h"
#include "transport/link/link.h"
#include "transport/transport.h"
#include "util/alloc.h"

static lap_status_t check_link(const char *name, double value)
{
    if (!isfinite(value) || value < 0)
        return lap_error(LAP_ERR_INVALID, "%s of the link = %g: expected 0 or more, finite", name,
                         value);
    return LAP_OK;
}

static lap_status_t read_options(const lap_buffer_options_t *given, lap_buffer_options_t *options_p)
{
    *options_p = (lap_buffer_options_t)LAP_BUFFER_OPTIONS_INIT;
    if (given)
        LAP_TRY(lap_read_options(options_p, sizeof(*options_p), given, "LAP_BUFFER_OPTIONS"));
    LAP_TRY(check_link("bytes_per_s", options_p->link.bytes_per_s));
    return check_link("latency_s", options_p->link.latency_s);
}

/* A transport over the memory of a device needs that device. */
static lap_status_t check_device(const lap_group_t *group, const lap_transport_ops_t *ops)
{
    if (!ops->device || strcmp(ops->device, group->world->device_name) == 0)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "transport %s cannot reach the memory of device %s",
                     ops->name, group->world->device_name);
}

/* Fills the buffer from the arguments, or says what is wrong with them. */
static lap_status_t fill(lap_buffer_t *buffer, const lap_buffer_options_t *given)
{
    lap_buffer_options_t options;
    LAP_TRY(read_options(given, &options));
    if (buffer->nsignals >= UINT32_MAX)
        return lap_error(LAP_ERR_INVALID, "nsignals = %zu: expected less than %u", buffer->nsignals,
                         UINT32_MAX);
    const char *name = options.transport;
    if (!name)
        name = lap_transport_default(buffer->group);
    LAP_TRY(lap_transport_find(name, &buffer->ops));
    LAP_TRY(check_device(buffer->group, buffer->ops));
    buffer->link = options.link;
    buffer->consumed = lap_alloc(buffer->nsignals, sizeof(*buffer->consumed));
    if (!buffer->consumed)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the counts of %zu signals",
                         buffer->nsignals);
    return LAP_OK;
}

/* What all ranks must ask for alike. */
static void list_terms(const lap_buffer_t *buffer, lap_terms_t *terms)
{
    lap_terms_number(terms, "bytes", buffer->bytes);
    lap_terms_number(terms, "nsignals", buffer->nsignals);
    lap_terms_text(terms, "transport", buffer->ops->name);
    lap_terms_real(terms, "link.bytes_per_s", buffer->link.bytes_per_s);
    lap_terms_real(terms, "link.latency_s", buffer->link.latency_s);
}

static lap_status_t wrap_in_link(lap_buffer_t *buffer)
{
    if (!lap_buffer_is_paced(buffer))
        return LAP_OK;
    lap_status_t status = buffer->ops->link_begin(buffer);
    status = lap_group_agree(buffer->group, status);
    if (status != LAP_OK)
        buffer->ops->buffer_destroy(buffer);
    return status;
}

static void buffer_free(lap_buffer_t *buffer)
{
    lap_group_t *group = buffer->group;
    lap_free(buffer->consumed);
    lap_free(buffer);
    lap_group_let_go(group);
}

static lap_status_t create(lap_group_t *group, size_t bytes, size_t nsignals,
                           const lap_buffer_options_t *options, lap_buffer_t **buffer_p)
{
    lap_buffer_t *buffer = lap_alloc(1, sizeof(*buffer));
    lap_status_t status = LAP_OK;
    if (buffer) {
        *buffer =
            (lap_buffer_t){.group = lap_group_keep(group), .bytes = bytes, .nsignals = nsignals};
        status = fill(buffer, options);
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the handle of a buffer");
    }
    /* A rank that cannot go on says so, instead of leaving the others to wait. */
    lap_terms_t terms = {.of = "lap_buffer_create"};
    if (status == LAP_OK)
        list_terms(buffer, &terms);
    status = lap_terms_agree(&terms, group, status);
    lap_terms_clear(&terms);
    if (status == LAP_OK)
        status = buffer->ops->buffer_create(buffer);
    if (status == LAP_OK)
        status = wrap_in_link(buffer);
    if (status != LAP_OK) {
        if (buffer)
            buffer_free(buffer);
        return status;
    }
    buffer->id = ++group->nbuffers;
    buffer->place.records = buffer->records;
    lap_call_place_add(group, &buffer->place);
    *buffer_p = buffer;
    return LAP_OK;
}

lap_status_t lap_buffer_create(lap_group_t *group, size_t bytes, size_t nsignals,
                               const lap_buffer_options_t *options, lap_buffer_t **buffer_p)
{
    if (!group || !buffer_p)
        return lap_error(LAP_ERR_INVALID, "%s of a buffer is NULL", group ? "buffer_p" : "group");
    const char *before = lap_enter(group->world, "lap_buffer_create");
    const lap_status_t status = create(group, bytes, nsignals, options, buffer_p);
    lap_leave(group->world, before);
    return status;
}

void lap_buffer_destroy(lap_buffer_t *buffer)
{
    lap_saved_error_t saved;
    if (!buffer)
        return;
    lap_error_save(&saved);
    buffer->is_destroyed = true;
    if (buffer->keepers == 0) {
        lap_call_place_remove(buffer->group, &buffer->place);
        buffer->ops->buffer_destroy(buffer);
        buffer_free(buffer);
    }
    lap_error_restore(&saved);
}

lap_buffer_t *lap_buffer_keep(lap_buffer_t *buffer)
{
    buffer->keepers++;
    return buffer;
}

void lap_buffer_let_go(lap_buffer_t *buffer)
{
    if (buffer && --buffer->keepers == 0 && buffer->is_destroyed)
        lap_buffer_destroy(buffer);
}

size_t lap_buffer_bytes(const lap_buffer_t *buffer)
{
    return buffer ? buffer->bytes : 0;
}

const char *lap_buffer_transport(const lap_buffer_t *buffer)
{
    return buffer ? buffer->ops->name : "";
}

void *lap_buffer_data(lap_buffer_t *buffer, int rank)
{
    if (!buffer || rank < 0 || rank >= buffer->group->size)
        return NULL;
    return buffer->data[rank];
}

/*
 * What calls between ranks have in common: there is such a rank and such a word, and the world goes
 * on.
 */
static lap_status_t check_call(const lap_buffer_t *buffer, const char *name, int rank,
                               size_t signal)
{
    if (!buffer)
        return lap_error(LAP_ERR_INVALID, "buffer is NULL");
    /* A wait would find out by itself, but only where it has to wait. */
    if (atomic_load(&buffer->group->ended))
        return lap_group_broken(buffer->group);
    if (rank < 0 || rank >= buffer->group->size)
        return lap_error(LAP_ERR_INVALID, "%s = %d: expected a rank of the group, 0 to %d", name,
                         rank, buffer->group->size - 1);
    if (signal >= buffer->nsignals)
        return lap_error(LAP_ERR_INVALID, "signal is %zu, expected less than the buffer's %zu",
                         signal, buffer->nsignals);
    if (signal < buffer->reserved)
        return lap_error(LAP_ERR_INVALID,
                         "signal is %zu, expected %zu or more: the others belong to the operators "
                         "on this buffer",
                         signal, buffer->reserved);
    return LAP_OK;
}

lap_status_t lap_buffer_put(lap_buffer_t *buffer, int rank, size_t offset, const void *source,
                            size_t bytes, size_t signal)
{
    LAP_TRY(check_call(buffer, "rank", rank, signal));
    if (!source && bytes > 0)
        return lap_error(LAP_ERR_INVALID, "source is NULL: expected %zu bytes", bytes);
    if (offset > buffer->bytes || bytes > buffer->bytes - offset)
        return lap_error(LAP_ERR_INVALID,
                         "offset = %zu and bytes = %zu: the buffer has %zu bytes per rank", offset,
                         bytes, buffer->bytes);
    const lap_put_t put = {
        .src = source,
        .src_stride = bytes,
        .offset = offset,
        .dst_stride = bytes,
        .rows = 1,
        .row_bytes = bytes,
        .peer = rank,
        .signal = (uint32_t)signal,
    };
    return buffer->ops->put_now(buffer, &put);
}

lap_status_t lap_buffer_raise(lap_buffer_t *buffer, int rank, size_t signal)
{
    LAP_TRY(check_call(buffer, "rank", rank, signal));
    const lap_raise_t raise = {.peer = rank, .signal = (uint32_t)signal};
    return buffer->ops->raise_now(buffer, &raise);
}

lap_status_t lap_buffer_wait(lap_buffer_t *buffer, int from, size_t signal, uint32_t count)
{
    LAP_TRY(check_call(buffer, "from", from, signal));
    if (count > INT32_MAX)
        return lap_error(LAP_ERR_INVALID, "count = %u: expected at most %d", count, INT32_MAX);
    const lap_wait_t wait = {
        .peer = from,
        .signal = (uint32_t)signal,
        .target = buffer->consumed[signal] + count,
    };
    LAP_TRY(buffer->ops->wait_now(buffer, &wait));
    buffer->consumed[signal] += count;
    return LAP_OK;
}
