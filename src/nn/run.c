/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running passes, which pass_program.c makes. A pass is one thing in flight: checked, registered and ended
 * once. It is one part, or several.
 */
#include <stdio.h>

#include "core/status.h"
#include "nn/nn.h"
#include "nn/program.h"
#include "overlap/op.h"
#include "schedule/digest.h"
#include "schedule/flight.h"

/* ---- binding ---- */

/* The caller's matrices, and which of them the parts of a pass use. */
static const struct {
    const char *name;
    unsigned parts;
} all_given[LAP_NN_GIVEN] = {
    {"x", 1u << LAP_NN_FORWARD | 1u << LAP_NN_BACKWARD | 1u << LAP_NN_BACKWARD_MORE},
    {"y", 1u << LAP_NN_FORWARD | 1u << LAP_NN_LOSS_PART},
    {"target", 1u << LAP_NN_LOSS_PART},
    {"dy", 1u << LAP_NN_LOSS_PART | 1u << LAP_NN_BACKWARD | 1u << LAP_NN_BACKWARD_MORE},
    {"dx", 1u << LAP_NN_BACKWARD | 1u << LAP_NN_BACKWARD_MORE},
};

static uint32_t given_region(const lap_nn_list_t *list, int i)
{
    const uint32_t regions[LAP_NN_GIVEN] = {list->x, list->y, list->target, list->dy, list->dx};
    return regions[i];
}

static void list_given(const lap_nn_t *nn, unsigned parts, lap_tensor_t given[LAP_NN_GIVEN])
{
    const bool model = lap_nn_list_is_model(&nn->list);
    const lap_tensor_t none = {.data = NULL};
    for (int i = 0; i < LAP_NN_GIVEN; i++)
        given[i] =
            model || !(all_given[i].parts & parts) ? none : nn->tensors[given_region(&nn->list, i)];
}

static bool is_same(const lap_tensor_t *a, const lap_tensor_t *b)
{
    return a->data == b->data && a->rows == b->rows && a->cols == b->cols && a->stride == b->stride;
}

static lap_status_t check_memory(const lap_nn_t *nn, const lap_tensor_t *given)
{
    lap_device_t *device = nn->engine->device;
    for (int i = 0; i < LAP_NN_GIVEN; i++)
        if (given[i].rows > 0)
            LAP_TRY(device->ops->check_memory(device, all_given[i].name, given[i].data));
    return LAP_OK;
}

/* Nothing is bound anew while the same is given. */
static lap_status_t bind(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    lap_tensor_t given[LAP_NN_GIVEN];
    list_given(nn, pass->parts, given);
    const bool traced = pass->mode.replicas && nn->background->traced;
    const bool timed = nn->tracing && nn->timeline;
    bool same = pass->bound && pass->traced == nn->tracing && pass->given_looks == nn->looks &&
                pass->background_traced == traced && pass->timed == timed;
    for (int i = 0; i < LAP_NN_GIVEN; i++)
        same = same && is_same(&given[i], &pass->given[i]);
    if (same)
        return LAP_OK;
    pass->bound = false;
    LAP_TRY(check_memory(nn, given));
    lap_exec_time_kernels(pass->exec, timed);
    LAP_TRY(lap_exec_bind(pass->exec));
    for (int i = 0; i < LAP_NN_GIVEN; i++)
        pass->given[i] = given[i];
    pass->traced = nn->tracing;
    pass->background_traced = traced;
    pass->timed = timed;
    pass->given_looks = nn->looks;
    pass->bound = true;
    return LAP_OK;
}

/* ---- traces ---- */

static lap_status_t begin_traces(const lap_nn_t *nn, lap_exec_t *exec)
{
    for (uint32_t f = 0; f < lap_exec_nfragments(exec); f++) {
        lap_trace_t *trace;
        const lap_op_t *op = lap_nn_call_of(nn, lap_exec_fragment(exec, f)->origin, &trace);
        if (!op || !trace)
            continue;
        LAP_TRY(lap_op_begin_trace(op, lap_exec_runnable(exec, f), trace));
        lap_trace_start(trace);
    }
    return LAP_OK;
}

static void end_traces(const lap_nn_t *nn, lap_exec_t *exec, lap_stream_set_t set)
{
    for (uint32_t f = 0; f < lap_exec_nfragments(exec); f++) {
        const lap_exec_fragment_t *fragment = lap_exec_fragment(exec, f);
        lap_trace_t *trace = NULL;
        if (fragment->set != set)
            continue;
        const lap_op_t *op = lap_nn_call_of(nn, fragment->origin, &trace);
        if (op && trace)
            lap_op_end_trace(lap_exec_runnable(exec, f), trace);
        if (nn->tracing && nn->timeline && (!op || trace))
            lap_nn_add_to_timeline(nn, exec, f, op);
    }
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
    const uint32_t count = lap_exec_nfragments(pass->exec);
    const unsigned calls_back = 1u << LAP_NN_BACKWARD | 1u << LAP_NN_BACKWARD_MORE;
    const int part = lap_nn_first_part(pass->parts); /* what calls back is a pass by itself */
    uint32_t first = 0, next = 0;
    const bool ready = nn->ready && nn->held == 0 && pass->parts & calls_back;
    for (uint32_t i = list->parts[part]; ready && i < list->parts[part + 1]; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        if (entry->work == LAP_NN_READY) {
            LAP_TRY(lap_exec_issue(pass->exec, first, next));
            first = next;
            LAP_TRY(call_ready(nn, entry->index));
        }
        next += lap_nn_entry_runs(entry, pass->mode);
        while (next < count && lap_exec_fragment(pass->exec, next)->origin >= LAP_NN_BUCKET_ORIGIN)
            next++; /* the bucket that the entry has completed */
    }
    return lap_exec_issue(pass->exec, first, count);
}

static lap_status_t issue(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    if (pass->traced || pass->background_traced)
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

/* Those of a kind: both backwards are one. */
static unsigned kind_of(int part)
{
    const unsigned backwards = 1u << LAP_NN_BACKWARD | 1u << LAP_NN_BACKWARD_MORE;
    return 1u << part & backwards ? backwards : 1u << part;
}

/* What this rank is in, for sentences. */
static lap_flight_t flight_of(const lap_nn_t *nn, const lap_nn_pass_t *pass)
{
    static const char *const names[LAP_NN_LIST_PARTS] = {
        [LAP_NN_FORWARD] = "a forward of layers",
        [LAP_NN_LOSS_PART] = "a loss of layers",
        [LAP_NN_BACKWARD] = "a backward of layers",
        [LAP_NN_BACKWARD_MORE] = "a backward of layers",
        [LAP_NN_LOOK_GRADIENTS] = "a look of layers",
        [LAP_NN_SYNC] = "a sum of gradients of layers",
        [LAP_NN_REFRESH] = "a refresh of layers",
        [LAP_NN_STEP] = "a step of layers"};
    const int first = lap_nn_first_part(pass->parts);
    return (lap_flight_t){.engine = nn->engine,
                          .group = nn->group,
                          .what = pass->parts == 1u << first ? names[first] : "a pass of layers"};
}

/* The ranks and the memory of a group: see context.h. */
static lap_group_t *group_of(const lap_nn_t *nn, int group)
{
    return group == LAP_NN_BY_REPLICAS ? nn->background->group
           : group == LAP_NN_BY_NORM   ? nn->norm_group
                                       : nn->wires[group].group;
}

static lap_buffer_t *buffer_of(const lap_nn_t *nn, int group)
{
    return group == LAP_NN_BY_REPLICAS ? nn->background->buffer
           : group == LAP_NN_BY_NORM   ? nn->norm_buffer
                                       : nn->wires[group].buffer;
}

/* Whether a pass has calls of a group in a set of streams: those of replicas are in the background. */
static bool has_group(const lap_nn_t *nn, const lap_nn_pass_t *pass, int group,
                      lap_stream_set_t set)
{
    if (group == LAP_NN_BY_REPLICAS)
        return set == LAP_BACKGROUND && pass->mode.replicas;
    if (group == LAP_NN_BY_NORM)
        return set == LAP_FOREGROUND && lap_nn_has_part(pass->parts, LAP_NN_STEP) &&
               nn->norm_buffer;
    return set == LAP_FOREGROUND && nn->wires[group].group;
}

static bool has_any(const lap_nn_t *nn, const lap_nn_pass_t *pass, int group)
{
    return has_group(nn, pass, group, LAP_FOREGROUND) || has_group(nn, pass, group, LAP_BACKGROUND);
}

static lap_status_t check_usable(lap_nn_t *nn, const lap_nn_pass_t *pass)
{
    const lap_flight_t flight = flight_of(nn, pass);
    for (int i = 0; i < LAP_NN_GROUPS; i++)
        if (has_any(nn, pass, i))
            LAP_TRY(lap_flight_check_usable(&flight, group_of(nn, i), buffer_of(nn, i),
                                            "was about to begin"));
    return lap_engine_check_free(nn->engine);
}

/*
 * Gradients that are on their way to replicas are waited for apart from the pass that has sent them, unless a
 * step of the same pass has waited for them.
 */
static bool sends_gradients(const lap_nn_pass_t *pass)
{
    return pass->mode.sends && !lap_nn_has_part(pass->parts, LAP_NN_STEP);
}

static void enter_flight(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    for (int i = 0; i < LAP_NN_GROUPS; i++)
        if (has_any(nn, pass, i))
            lap_flight_enter(nn->engine, &pass->in_flight[i], group_of(nn, i), buffer_of(nn, i));
    pass->failures_before = nn->engine->failures;
    pass->is_in_flight = true;
    nn->passes.in_flight[nn->passes.nin_flight++] = pass;
    if (sends_gradients(pass))
        nn->passes.in_background = pass;
}

void lap_nn_break(const lap_nn_t *nn, lap_status_t status)
{
    lap_group_t *groups[LAP_NN_GROUPS + 5] = {nn->group, nn->context, nn->sharers, nn->replicas,
                                              nn->norm_group};
    lap_saved_error_t saved;
    lap_error_save(&saved);
    char text[LAP_ERROR_TEXT];
    snprintf(text, sizeof(text), "%s", lap_last_error());
    for (int i = 0; i < LAP_NN_GROUPS; i++)
        groups[5 + i] = nn->wires[i].group;
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        if (groups[i] && groups[i]->size > 1)
            lap_group_fail_here(groups[i], status, text);
    lap_error_restore(&saved);
}

/* A failure after a pass began leaves its signals uncounted. */
static lap_status_t break_set(lap_nn_t *nn, const lap_nn_pass_t *pass, lap_stream_set_t set,
                              lap_status_t status)
{
    for (int i = 0; i < LAP_NN_GROUPS; i++)
        if (has_group(nn, pass, i, set))
            (void)lap_flight_break(group_of(nn, i), buffer_of(nn, i), status);
    lap_nn_break(nn, status);
    return status;
}

/* As in lap_op_end: if the groups are whole now, nothing of this pass was touched. */
static lap_status_t check_set(const lap_nn_t *nn, const lap_nn_pass_t *pass, lap_stream_set_t set)
{
    const lap_flight_t flight = flight_of(nn, pass);
    for (int i = 0; i < LAP_NN_GROUPS; i++)
        if (has_group(nn, pass, i, set))
            LAP_TRY(lap_flight_check(&flight, group_of(nn, i), "was in"));
    return LAP_OK;
}

static lap_status_t end_set(lap_nn_t *nn, lap_nn_pass_t *pass, lap_stream_set_t set)
{
    const lap_flight_t flight = flight_of(nn, pass);
    lap_world_t *world = nn->group->world;
    const int group = set == LAP_BACKGROUND ? LAP_NN_BY_REPLICAS : LAP_NN_BY_LAYERS;
    uint64_t first, last;
    lap_exec_numbers(pass->exec, (uint32_t)group, &first, &last);
    lap_await_begin(world, buffer_of(nn, group), first, last);
    lap_status_t status = lap_flight_find_cause(&flight, lap_exec_wait(pass->exec, set));
    lap_await_end(world);
    if (status == LAP_OK && nn->engine->device->ops->waits_by_itself)
        status = check_set(nn, pass, set);
    if (status != LAP_OK)
        lap_engine_fail(nn->engine, status, NULL); /* for all calls in flight */
    for (int i = 0; i < LAP_NN_GROUPS; i++)
        if (has_group(nn, pass, i, set))
            lap_flight_leave(nn->engine, &pass->in_flight[i], buffer_of(nn, i));
    end_traces(nn, pass->exec, set);
    if (nn->engine->failures != pass->failures_before)
        return break_set(nn, pass, set, lap_error(nn->engine->status, "%s", nn->engine->text));
    return LAP_OK;
}

/* What it has sent to replicas may go on, unless a step of the same pass has waited for it. */
static lap_status_t end_pass(lap_nn_t *nn, lap_nn_pass_t *pass)
{
    lap_saved_error_t saved;
    pass->is_in_flight = pass == nn->passes.in_background;
    const lap_status_t status = end_set(nn, pass, LAP_FOREGROUND);
    if (!pass->mode.replicas || sends_gradients(pass))
        return status;
    lap_error_save(&saved);
    const lap_status_t ended = end_set(nn, pass, LAP_BACKGROUND);
    if (status != LAP_OK)
        lap_error_restore(&saved);
    return status == LAP_OK ? ended : status;
}

lap_status_t lap_nn_end_background(lap_nn_t *nn)
{
    lap_nn_pass_t *pass = nn->passes.in_background;
    if (!pass)
        return nn->end_stage ? nn->end_stage(nn->stage, true) : LAP_OK;
    nn->passes.in_background = NULL;
    pass->is_in_flight = false;
    for (size_t i = 0; i < nn->passes.nin_flight; i++)
        pass->is_in_flight = pass->is_in_flight || nn->passes.in_flight[i] == pass;
    return end_set(nn, pass, LAP_BACKGROUND);
}

/* The first `count` of those in flight. */
static lap_status_t end_first(lap_nn_t *nn, size_t count)
{
    lap_status_t status = LAP_OK;
    lap_saved_error_t saved;
    for (size_t i = 0; i < count; i++) {
        const lap_status_t ended = end_pass(nn, nn->passes.in_flight[i]);
        if (ended == LAP_OK || status != LAP_OK)
            continue;
        status = ended;
        lap_error_save(&saved);
    }
    for (size_t i = count; i < nn->passes.nin_flight; i++)
        nn->passes.in_flight[i - count] = nn->passes.in_flight[i];
    nn->passes.nin_flight -= count;
    if (status != LAP_OK)
        lap_error_restore(&saved);
    return status;
}

lap_status_t lap_nn_end_passes(lap_nn_t *nn)
{
    lap_saved_error_t saved;
    const lap_status_t status = nn->end_stage ? nn->end_stage(nn->stage, false) : LAP_OK;
    lap_error_save(&saved);
    const lap_status_t ended = end_first(nn, nn->passes.nin_flight);
    if (status == LAP_OK)
        return ended;
    lap_error_restore(&saved);
    return status;
}

/* What is in flight up to the last pass that has a part. */
static lap_status_t end_until(lap_nn_t *nn, int part)
{
    size_t count = nn->passes.nin_flight;
    while (count > 0 && !(nn->passes.in_flight[count - 1]->parts & kind_of(part)))
        count--;
    return end_first(nn, count);
}

lap_status_t lap_nn_end_part(lap_nn_t *nn, int part)
{
    return end_until(nn, part);
}

bool lap_nn_is_in_flight(const lap_nn_t *nn, int part)
{
    unsigned parts = 0;
    for (size_t i = 0; i < nn->passes.nin_flight; i++)
        parts |= nn->passes.in_flight[i]->parts;
    return parts & kind_of(part);
}

/* ---- all of it ---- */

/* Only delayed scaling tells the first pass from others. */
static bool is_first(const lap_nn_t *nn, int part)
{
    return nn->list.plan.desc.fp8 == LAP_FP8_DELAYED && !(nn->passes.seen & kind_of(part));
}

void lap_nn_get_seen(const lap_nn_t *nn, bool *forward_p, bool *backward_p)
{
    *forward_p = nn->passes.seen & 1u << LAP_NN_FORWARD;
    *backward_p = nn->passes.seen & kind_of(LAP_NN_BACKWARD);
}

void lap_nn_set_seen(lap_nn_t *nn, bool forward, bool backward)
{
    nn->passes.seen &= ~(1u << LAP_NN_FORWARD | kind_of(LAP_NN_BACKWARD));
    nn->passes.seen |= forward ? 1u << LAP_NN_FORWARD : 0;
    nn->passes.seen |= backward ? kind_of(LAP_NN_BACKWARD) : 0;
}

bool lap_nn_can_join(const lap_nn_t *nn, unsigned parts)
{
    bool joins = !nn->ready && !nn->looks;
    for (int part = 0; part < LAP_NN_LIST_PARTS; part++)
        joins = joins && !(lap_nn_has_part(parts, part) && is_first(nn, part));
    return joins;
}

/* Whether a pass gathers the weights of a shared optimizer, before its step. */
static bool gathers(const lap_nn_t *nn, unsigned parts)
{
    return nn->sharers && (lap_nn_has_part(parts, LAP_NN_REFRESH) ||
                           (lap_nn_has_part(parts, LAP_NN_FORWARD) && nn->stale));
}

/* Whether a pass sends gradients to replicas. */
static bool sends(const lap_nn_t *nn, unsigned parts)
{
    return lap_nn_has_part(parts, LAP_NN_SYNC) ||
           (parts & kind_of(LAP_NN_BACKWARD) && nn->background && nn->background->overlap &&
            nn->held == 0);
}

/* A step that is traced has other programs. */
static void note_digest(lap_nn_t *nn, unsigned parts, uint64_t digest)
{
    nn->digests = lap_digest_add(nn->digests, digest);
    if (!lap_nn_has_part(parts, LAP_NN_STEP))
        return;
    if (!nn->tracing)
        nn->digest = nn->digests;
    nn->digests = LAP_NO_DIGEST;
}

lap_status_t lap_nn_run(lap_nn_t *nn, unsigned parts)
{
    const int first = lap_nn_first_part(parts);
    const size_t seq = first >= LAP_NN_LOOK_GRADIENTS ? 0 : nn->seq;
    const bool sending = sends(nn, parts), gathering = gathers(nn, parts);
    const bool steps = nn->background && lap_nn_has_part(parts, LAP_NN_STEP);
    const bool starts = steps && nn->background->starts;
    const bool refreshes = steps && nn->sharers && !nn->background->ahead;
    const lap_nn_mode_t mode = {
        .looks = nn->looks != NULL,
        .first = first != LAP_NN_STEP && is_first(nn, first), /* all steps are alike */
        /* Of further micro-batches only delayed scaling has to know. */
        .more = first == LAP_NN_FORWARD && nn->begun && nn->list.plan.desc.fp8 == LAP_FP8_DELAYED,
        .replicas = sending || gathering || starts || refreshes ? &nn->background->replicas : NULL,
        .sends = sending,
        .gathers = gathering,
        .starts = starts,
        .refreshes = refreshes,
        .started = gathering && nn->started && lap_nn_has_part(parts, LAP_NN_FORWARD)};
    lap_nn_pass_t *pass;
    if (gathering)
        nn->stale = false;        /* once that has run; if it fails, the group is broken */
    if (gathering && nn->started) /* no program waits for what another one gathers */
        LAP_TRY(end_until(nn, LAP_NN_STEP));
    LAP_TRY(lap_nn_get_pass(nn, parts, seq, mode, &pass));
    LAP_TRY(check_usable(nn, pass));
    LAP_TRY(bind(nn, pass));
    enter_flight(nn, pass);
    lap_status_t status = issue(nn, pass);
    if (status == LAP_OK) {
        nn->passes.seen |= parts;
        note_digest(nn, parts, pass->digest);
        nn->started = starts || (nn->started && !gathering);
        return LAP_OK;
    }
    /* Steps that were issued may wait for peers: they are let go. */
    const lap_flight_t flight = flight_of(nn, pass);
    status = lap_flight_find_cause(&flight, status);
    for (int i = 0; i < LAP_STREAM_SETS; i++)
        (void)break_set(nn, pass, (lap_stream_set_t)i, status);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    lap_engine_fail(nn->engine, status, NULL);
    (void)lap_nn_end_background(nn);
    lap_error_restore(&saved);
    return status;
}
