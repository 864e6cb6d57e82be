/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running passes: a part of the list becomes a linked program, made when it is first needed and then
 * issued again and again. A pass is one thing in flight: checked, registered and ended once.
 */
#include <stdio.h>

#include "core/status.h"
#include "nn/nn.h"
#include "nn/program.h"
#include "overlap/op.h"
#include "util/alloc.h"

/* ---- making ---- */

/* As the operators of the layers have chosen their methods; the context is the layers. */
static lap_status_t build_chosen(void *context, const lap_nn_list_t *list, uint32_t step, size_t m,
                                 lap_schedule_t *schedule_p)
{
    const lap_nn_t *nn = context;
    return lap_op_schedule(nn->calls[step].op, m, list->rank, schedule_p);
}

lap_nn_source_t lap_nn_chosen(lap_nn_t *nn)
{
    return (lap_nn_source_t){build_chosen, nn};
}

lap_status_t lap_nn_prove_own(lap_nn_t *nn)
{
    const lap_nn_source_t source = lap_nn_chosen(nn);
    lap_nn_proof_t proof;
    return lap_nn_prove_source(&nn->list.plan, &nn->calls[0].op->target, &source, &proof);
}

/* The programs of the calls among the fragments; the others are kernels. */
static lap_status_t make_programs(lap_nn_t *nn, const lap_linked_t *linked,
                                  lap_program_t **programs)
{
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        const lap_nn_entry_t *entry = &nn->list.entries[linked->fragments[f].origin];
        if (entry->work != LAP_NN_OPERATOR)
            continue;
        lap_op_t *op = nn->calls[entry->index].op;
        const lap_schedule_t *schedule = &linked->fragments[f].schedule;
        LAP_TRY(lap_op_check_fits(op, schedule));
        LAP_TRY(lap_op_program(op, schedule->m, &programs[f]));
    }
    return LAP_OK;
}

static lap_status_t make_exec(lap_nn_t *nn, lap_linked_t *linked, lap_exec_t **exec_p)
{
    const uint32_t count = linked->nfragments;
    lap_program_t **programs = lap_alloc((size_t)count + 1, sizeof(*programs));
    lap_status_t status = LAP_OK;
    if (!programs)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a pass of %u fragments",
                         (unsigned)count);
    status = make_programs(nn, linked, programs);
    if (status == LAP_OK)
        status = lap_exec_create(nn->engine, linked, programs, lap_nn_issue_kernel, nn, exec_p);
    else
        for (uint32_t f = 0; f < count; f++)
            lap_program_destroy(programs[f]);
    lap_free(programs);
    return status;
}

static lap_status_t make_pass(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    const lap_nn_source_t source = lap_nn_chosen(nn);
    lap_linked_t linked = {.rank = nn->list.rank};
    lap_nn_link_regions(&nn->list, pass->mode.first, &linked);
    lap_status_t status =
        lap_nn_link_part(&nn->list, pass->part, pass->seq, pass->mode, &source, &linked);
    if (status == LAP_OK)
        status = lap_link(&linked);
    if (status == LAP_OK)
        status = make_exec(nn, &linked, &pass->exec);
    lap_linked_clear(&linked);
    return status;
}

static void free_pass(lap_nn_pass_t *pass)
{
    lap_exec_destroy(pass->exec);
    *pass = (lap_nn_pass_t){.exec = NULL};
}

void lap_nn_free_passes(lap_nn_t *nn)
{
    for (int i = 0; i < LAP_NN_PASSES; i++)
        free_pass(&nn->cache[i]);
}

static bool is_pass(const lap_nn_pass_t *pass, int part, size_t seq, lap_nn_mode_t mode)
{
    return pass->exec && pass->part == part && pass->seq == seq && pass->mode.looks == mode.looks &&
           pass->mode.first == mode.first;
}

lap_status_t lap_nn_get_pass(lap_nn_t *nn, int part, size_t seq, lap_nn_mode_t mode,
                             lap_nn_pass_t **pass_p)
{
    lap_nn_pass_t *found = NULL, *oldest = NULL;
    for (int i = 0; i < LAP_NN_PASSES && !found; i++) {
        lap_nn_pass_t *pass = &nn->cache[i];
        if (is_pass(pass, part, seq, mode))
            found = pass;
        else if (!pass->is_in_flight && (!oldest || pass->used < oldest->used))
            oldest = pass;
    }
    if (!found) {
        free_pass(oldest);
        oldest->part = part;
        oldest->seq = seq;
        oldest->mode = mode;
        LAP_TRY(make_pass(nn, oldest));
        found = oldest;
    }
    found->used = ++nn->npasses;
    *pass_p = found;
    return LAP_OK;
}

/* ---- binding ---- */

/* What the caller gives a pass: matrices of forward and backward. */
static void list_given(const lap_nn_t *nn, int part, lap_tensor_t given[LAP_NN_GIVEN])
{
    const lap_nn_list_t *list = &nn->list;
    const bool forward = part == LAP_NN_FORWARD;
    for (int i = 0; i < LAP_NN_GIVEN; i++)
        given[i] = (lap_tensor_t){.data = NULL};
    if (part == LAP_NN_REFRESH)
        return;
    given[0] = nn->tensors[list->x];
    given[1] = nn->tensors[forward ? list->y : list->dy];
    given[2] = forward ? given[0] : nn->tensors[list->dx];
}

static bool is_same(const lap_tensor_t *a, const lap_tensor_t *b)
{
    return a->data == b->data && a->rows == b->rows && a->cols == b->cols && a->stride == b->stride;
}

static lap_status_t check_memory(const lap_nn_t *nn, int part, const lap_tensor_t *given)
{
    static const char *const names[2][LAP_NN_GIVEN] = {{"x", "y", "x"}, {"x", "dy", "dx"}};
    lap_device_t *device = nn->engine->device;
    for (int i = 0; i < LAP_NN_GIVEN && device->ops->check_memory; i++)
        if (given[i].rows > 0)
            LAP_TRY(
                device->ops->check_memory(device, names[part != LAP_NN_FORWARD][i], given[i].data));
    return LAP_OK;
}

static void bind_operators(lap_nn_t *nn, lap_exec_t *exec)
{
    for (uint32_t f = 0; f < lap_exec_linked(exec)->nfragments; f++)
        if (lap_exec_program(exec, f))
            *lap_exec_binding(exec, f) = lap_nn_bind_operator(
                nn, &nn->list.entries[lap_exec_linked(exec)->fragments[f].origin]);
}

/* Nothing is bound anew while the same is given. */
static lap_status_t bind(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    lap_tensor_t given[LAP_NN_GIVEN];
    list_given(nn, pass->part, given);
    bool same = pass->bound && pass->traced == nn->tracing && pass->given_looks == nn->looks;
    for (int i = 0; i < LAP_NN_GIVEN; i++)
        same = same && is_same(&given[i], &pass->given[i]);
    if (same)
        return LAP_OK;
    pass->bound = false;
    LAP_TRY(check_memory(nn, pass->part, given));
    bind_operators(nn, pass->exec);
    LAP_TRY(lap_exec_rebound(pass->exec));
    for (int i = 0; i < LAP_NN_GIVEN; i++)
        pass->given[i] = given[i];
    pass->traced = nn->tracing;
    pass->given_looks = nn->looks;
    pass->bound = true;
    return LAP_OK;
}

/* ---- traces ---- */

static lap_trace_t *trace_of(const lap_nn_t *nn, lap_exec_t *exec, uint32_t f)
{
    if (!lap_exec_program(exec, f))
        return NULL;
    return nn->calls[nn->list.entries[lap_exec_linked(exec)->fragments[f].origin].index].trace;
}

static lap_status_t begin_traces(const lap_nn_t *nn, lap_exec_t *exec)
{
    const lap_linked_t *linked = lap_exec_linked(exec);
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        lap_trace_t *trace = trace_of(nn, exec, f);
        if (!trace)
            continue;
        const lap_nn_entry_t *entry = &nn->list.entries[linked->fragments[f].origin];
        LAP_TRY(lap_op_begin_trace(nn->calls[entry->index].op, lap_exec_program(exec, f), trace));
        lap_trace_start(trace);
    }
    return LAP_OK;
}

static void end_traces(const lap_nn_t *nn, lap_exec_t *exec)
{
    for (uint32_t f = 0; f < lap_exec_linked(exec)->nfragments; f++)
        if (trace_of(nn, exec, f))
            lap_op_end_trace(lap_exec_program(exec, f), trace_of(nn, exec, f));
}

/* ---- issuing ---- */

/* Not in the row of calls that backward is: what the caller does, it does as it likes. */
static lap_status_t call_ready(lap_nn_t *nn, size_t index)
{
    lap_engine_calls_end(nn->engine);
    const lap_status_t status = nn->ready(nn->ready_context, index);
    const lap_status_t again = lap_engine_calls_begin(nn->engine);
    return status == LAP_OK ? again : status;
}

/* A call of the caller's ends a segment: fragments [first, next) that have not been issued yet. */
static lap_status_t issue_entries(lap_nn_t *nn, const lap_nn_pass_t *pass)
{
    const lap_nn_list_t *list = &nn->list;
    uint32_t first = 0, next = 0;
    for (uint32_t i = list->parts[pass->part]; i < list->parts[pass->part + 1]; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        if (entry->work == LAP_NN_READY && nn->ready && nn->held == 0) {
            LAP_TRY(lap_exec_issue(pass->exec, first, next));
            first = next;
            LAP_TRY(call_ready(nn, entry->index));
        }
        next += lap_nn_entry_runs(entry, pass->mode);
    }
    return lap_exec_issue(pass->exec, first, next);
}

size_t lap_nn_segments(const lap_nn_list_t *list, int part, bool ready)
{
    const lap_nn_mode_t later = {.first = false};
    size_t segments = 0, length = 0;
    for (uint32_t i = list->parts[part]; i < list->parts[part + 1]; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        if (ready && entry->work == LAP_NN_READY) {
            segments += length > 0;
            length = 0;
        }
        length += lap_nn_entry_runs(entry, later);
    }
    return segments + (length > 0);
}

static lap_status_t issue(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    if (nn->tracing)
        LAP_TRY(begin_traces(nn, pass->exec));
    LAP_TRY(lap_engine_calls_begin(nn->engine));
    lap_status_t status = lap_exec_begin(pass->exec);
    if (status == LAP_OK)
        status = issue_entries(nn, pass);
    if (status == LAP_OK)
        status = lap_exec_end(pass->exec);
    lap_engine_calls_end(nn->engine);
    return status;
}

/* ---- in flight ---- */

/* The loss of a model is a part of its forward, and both backwards are one kind of pass. */
static int kind_of(int part)
{
    return part == LAP_NN_LOSS_PART       ? LAP_NN_FORWARD
           : part == LAP_NN_BACKWARD_MORE ? LAP_NN_BACKWARD
                                          : part;
}

static const char *name_of(const lap_nn_pass_t *pass)
{
    const int kind = kind_of(pass->part);
    return kind == LAP_NN_REFRESH ? "refresh" : kind == LAP_NN_FORWARD ? "forward" : "backward";
}

/* Whether the group is whole; `when` tells in the sentence what this rank did. */
static lap_status_t check_group(const lap_nn_t *nn, const lap_nn_pass_t *pass, const char *when)
{
    char sentence[LAP_ERROR_TEXT], name[LAP_RANK_TEXT];
    const lap_status_t broken = lap_group_broken(nn->group);
    if (broken == LAP_OK)
        return LAP_OK;
    snprintf(sentence, sizeof(sentence), "%s", lap_last_error());
    return lap_error(broken, "%s; %s %s a %s of layers", sentence,
                     lap_group_name(nn->group, nn->group->rank, name), when, name_of(pass));
}

/* The same of what this rank was in when something failed: see lap_engine_find_cause. */
static lap_status_t find_cause(const lap_nn_t *nn, const lap_nn_pass_t *pass, lap_status_t status)
{
    char doing[160], name[LAP_RANK_TEXT];
    if (status == LAP_OK)
        return LAP_OK;
    snprintf(doing, sizeof(doing), "%s was in a %s of layers",
             lap_group_name(nn->group, nn->group->rank, name), name_of(pass));
    return lap_engine_find_cause(nn->engine, status, doing);
}

static lap_status_t check_usable(lap_nn_t *nn, const lap_nn_pass_t *pass)
{
    LAP_TRY(lap_engine_check_group(nn->engine, nn->group));
    LAP_TRY(check_group(nn, pass, "was about to begin"));
    if (nn->buffer->broken) /* only when the board could not be written: another rank died at it */
        return lap_error(LAP_ERR_PEER_LOST, "an earlier call on the buffer of these layers failed");
    return lap_engine_check_free(nn->engine);
}

static void enter_flight(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    pass->in_flight = (lap_in_flight_t){.group = nn->group, .buffer = nn->buffer};
    lap_engine_add_in_flight(nn->engine, &pass->in_flight);
    nn->buffer->in_flight++;
    pass->failures_before = nn->engine->failures;
    pass->is_in_flight = true;
    nn->in_flight[nn->nin_flight++] = pass;
}

static void leave_flight(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    lap_engine_remove_in_flight(nn->engine, &pass->in_flight);
    nn->buffer->in_flight--;
    pass->is_in_flight = false;
}

/* A failure after a pass began leaves its signals uncounted. */
static lap_status_t break_all(lap_nn_t *nn, lap_status_t status)
{
    lap_saved_error_t saved;
    lap_error_save(&saved);
    nn->buffer->broken = true;
    lap_group_fail_here(nn->group, status, lap_last_error());
    lap_error_restore(&saved);
    return status;
}

static lap_status_t end_pass(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    lap_world_t *world = nn->group->world;
    uint64_t first, last;
    lap_exec_numbers(pass->exec, &first, &last);
    lap_await_begin(world, nn->buffer, first, last);
    lap_status_t status = find_cause(nn, pass, lap_exec_wait(pass->exec));
    lap_await_end(world);
    /* As in lap_op_end: if the group is whole now, nothing of this pass was touched. */
    if (status == LAP_OK && nn->engine->device->ops->release)
        status = check_group(nn, pass, "was in");
    if (status != LAP_OK)
        lap_engine_fail(nn->engine, status, NULL); /* for all calls in flight */
    leave_flight(nn, pass);
    if (pass->traced)
        end_traces(nn, pass->exec);
    if (nn->engine->failures != pass->failures_before)
        return break_all(nn, lap_error(nn->engine->status, "%s", nn->engine->text));
    return LAP_OK;
}

lap_status_t lap_nn_end_passes(lap_nn_t *nn)
{
    lap_status_t status = LAP_OK;
    lap_saved_error_t saved;
    for (size_t i = 0; i < nn->nin_flight; i++) {
        const lap_status_t ended = end_pass(nn, nn->in_flight[i]);
        if (ended == LAP_OK || status != LAP_OK)
            continue;
        status = ended;
        lap_error_save(&saved);
    }
    nn->nin_flight = 0;
    if (status != LAP_OK)
        lap_error_restore(&saved);
    return status;
}

bool lap_nn_is_in_flight(const lap_nn_t *nn, int part)
{
    for (size_t i = 0; i < nn->nin_flight; i++)
        if (kind_of(nn->in_flight[i]->part) == kind_of(part))
            return true;
    return false;
}

lap_status_t lap_nn_run(lap_nn_t *nn, int part)
{
    const size_t seq = part == LAP_NN_REFRESH ? 0 : nn->seq;
    bool *seen = &nn->seen[part == LAP_NN_BACKWARD_MORE ? LAP_NN_BACKWARD : part];
    /* Only delayed scaling tells the first pass from others. */
    const lap_nn_mode_t mode = {.looks = nn->looks != NULL,
                                .first = nn->list.plan.desc.fp8 == LAP_FP8_DELAYED && !*seen};
    lap_nn_pass_t *pass;
    LAP_TRY(lap_nn_get_pass(nn, part, seq, mode, &pass));
    LAP_TRY(check_usable(nn, pass));
    LAP_TRY(bind(nn, pass));
    enter_flight(nn, pass);
    lap_status_t status = issue(nn, pass);
    if (status == LAP_OK) {
        *seen = true;
        return LAP_OK;
    }
    /* Steps that were issued may wait for peers: they are let go. */
    status = break_all(nn, find_cause(nn, pass, status));
    lap_saved_error_t saved;
    lap_error_save(&saved);
    lap_engine_fail(nn->engine, status, NULL);
    lap_error_restore(&saved);
    return status;
}
