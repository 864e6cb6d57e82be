/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel of a program has declared, as the touches of a guarded call. */
#include "schedule/guarded.h"

#include <string.h>

#include "device/host/host_guard.h"

typedef struct kernel_issue {
    const lap_exec_owner_t *owner;
    uint32_t origin;
    const lap_operands_t *operands;
    lap_stream_t *stream;
} kernel_issue_t;

static lap_status_t issue_kernel(void *context, void *const *data, void *room)
{
    const kernel_issue_t *issue = context;
    const lap_operands_t copies = {room, issue->operands->n};
    lap_arg_t *args = room;
    memcpy(args, issue->operands->at, copies.n * sizeof(*args));
    for (uint32_t i = 0; i < copies.n; i++)
        args[i].data = data[i];
    return issue->owner->kernel(issue->owner->context, issue->origin, &copies, issue->stream);
}

lap_status_t lap_exec_issue_guarded(const lap_exec_owner_t *owner,
                                    const lap_exec_fragment_t *fragment,
                                    const lap_operands_t *operands, lap_stream_t *stream)
{
    lap_touch_t touches[LAP_OPERANDS_MOST];
    kernel_issue_t issue = {owner, fragment->origin, operands, stream};
    for (uint32_t i = 0; i < operands->n; i++) {
        const lap_arg_t *arg = &operands->at[i];
        touches[i] = (lap_touch_t){arg->data,  arg->rows, arg->cols * lap_dtype_size(arg->dtype),
                                   arg->pitch, arg->role, arg->reads,
                                   arg->writes};
    }
    return lap_host_guard_issue(
        stream, &(lap_host_guard_call_t){.name = fragment->kernel,
                                         .touches = touches,
                                         .count = operands->n,
                                         .room = operands->n * sizeof(*operands->at),
                                         .run = issue_kernel,
                                         .context = &issue});
}
