/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choices of methods that a group has made: the layers of a model are described alike, so that what
 * was measured for the first serves all. They go with the group, as what it has measured does.
 */
#include <string.h>

#include "core/status.h"
#include "overlap/auto.h"
#include "overlap/knobs.h"
#include "transport/transport.h"
#include "util/alloc.h"

typedef struct known {
    lap_op_desc_t desc;    /* its method is LAP_AUTO itself, its buffer NULL */
    const char *transport; /* its name: a link has a table of its own */
    lap_link_t link;
    lap_auto_t choice;
    struct known *next;
} known_t;

static void choices_free(void *context)
{
    for (known_t *known = context, *next; known; known = next) {
        next = known->next;
        lap_free(known);
    }
}

static bool is_same(const known_t *a, const known_t *b)
{
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++)
        if (row->field.type != LAP_FIELD_SKIPPED &&
            lap_field_number(&row->field, &a->desc) != lap_field_number(&row->field, &b->desc))
            return false;
    return strcmp(a->transport, b->transport) == 0 && a->link.latency_s == b->link.latency_s &&
           a->link.bytes_per_s == b->link.bytes_per_s;
}

lap_status_t lap_auto_get(lap_group_t *group, const lap_op_desc_t *desc,
                          const lap_transport_ops_t *transport, lap_auto_t **auto_p)
{
    known_t wanted = {.desc = *desc, .transport = transport->name, .next = group->choices};
    wanted.desc.buffer = NULL;
    if (desc->buffer)
        wanted.link = desc->buffer->link;
    known_t *known = group->choices;
    while (known && !is_same(known, &wanted))
        known = known->next;
    if (!known) {
        known = lap_alloc(1, sizeof(*known));
        if (!known)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for the choice of a method");
        *known = wanted;
        group->choices = known;
        group->choices_free = choices_free;
    }
    *auto_p = &known->choice;
    return LAP_OK;
}
