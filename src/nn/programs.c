/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs of all ranks that share weights: linked from a plan, counted and proved. Runs nothing.
 * What a program is made of is in program.c.
 */

#include "core/status.h"
#include "nn/context.h"
#include "nn/program.h"
#include "overlap/op.h"
#include "overlap/overlap.h"
#include "schedule/digest.h"
#include "schedule/execute.h"
#include "schedule/lower.h"
#include "schedule/segments.h"
#include "util/alloc.h"

lap_status_t lap_nn_build_described(const lap_nn_linking_t *how, const lap_op_desc_t *given,
                                    int size, int rank, size_t m, lap_schedule_t *schedule_p)
{
    lap_op_desc_t desc = *given;
    lap_problem_t problem;
    const lap_builder_t *builder;
    if (lap_op_is_automatic(&desc))
        desc.method = "serial";
    LAP_TRY(lap_problem_init(&problem, &builder, &desc, size, how->target->can));
    problem.rank = rank;
    problem.m = m;
    LAP_TRY(lap_build(builder, &problem, schedule_p));
    return how->as_built ? LAP_OK : lap_lower(schedule_p, 1, how->target, how->after);
}

/* The context is how operators are linked. */
static lap_status_t build_described(void *context, const lap_nn_list_t *list, uint32_t step,
                                    size_t m, lap_schedule_t *schedule_p)
{
    const lap_nn_slice_t slice = lap_nn_slice(list, list->steps[step].group);
    return lap_nn_build_described(context, &list->steps[step].desc, slice.size, slice.rank, m,
                                  schedule_p);
}

/* How the buckets of a replica are built from their descriptions. */
typedef struct bucket_source {
    const lap_nn_linking_t *linking;
    lap_nn_buckets_t buckets;
} bucket_source_t;

static lap_status_t build_bucket(void *context, size_t index, int which, lap_schedule_t *schedule_p)
{
    const bucket_source_t *source = context;
    const lap_op_desc_t desc = lap_nn_bucket_desc(&source->buckets, index, which);
    return lap_nn_build_described(source->linking, &desc, source->buckets.replicas,
                                  source->buckets.replica, desc.m, schedule_p);
}

static lap_status_t link_parts(const lap_nn_list_t *list, const lap_nn_linking_t *linking,
                               const lap_nn_source_t *source, const lap_nn_replicas_t *replicas,
                               lap_linked_t *linked)
{
    const size_t seq = list->plan.desc.seq;
    lap_nn_mode_t mode = {
        .first = linking->first, .more = linking->more, .started = lap_nn_is_started(linking)};
    lap_nn_link_regions(list, linking->first, linked);
    if (replicas)
        lap_nn_link_wire(list, replicas, linked);
    const bool ahead = list->shards && replicas && linking->replication.ahead;
    mode.replicas = replicas;
    if (linking->first && !ahead)
        LAP_TRY(lap_nn_link_part(list, LAP_NN_REFRESH, seq, mode, source, linked));
    mode.replicas = ahead && !linking->more ? replicas : NULL; /* the first of a step gathers */
    LAP_TRY(lap_nn_link_part(list, LAP_NN_FORWARD, seq, mode, source, linked));
    mode.replicas = NULL;
    LAP_TRY(lap_nn_link_part(list, LAP_NN_LOSS_PART, seq, mode, source, linked));
    const bool late = linking->replication.late, held = linking->replication.held;
    mode.replicas = late || held ? NULL : replicas;
    LAP_TRY(lap_nn_link_part(list, linking->more ? LAP_NN_BACKWARD_MORE : LAP_NN_BACKWARD, seq,
                             mode, source, linked));
    mode.replicas = replicas;
    if (replicas && late && !held)
        LAP_TRY(lap_nn_link_part(list, LAP_NN_SYNC, seq, mode, source, linked));
    if (linking->optimizer && !held)
        LAP_TRY(ahead && linking->replication.starts
                    ? lap_nn_link_step_start(list, source, replicas, linked)
                    : lap_nn_link_step(list, source, ahead ? NULL : replicas, linked));
    lap_nn_expect(list, linking, replicas ? replicas->buckets : NULL, linked);
    return lap_link(linked);
}

static lap_status_t link_rank(const lap_nn_list_t *list, const lap_nn_linking_t *linking,
                              const lap_nn_source_t *source, lap_linked_t *linked)
{
    const lap_nn_replication_t *replication = &linking->replication;
    const int nranks = list->plan.nranks;
    bucket_source_t buckets = {.linking = linking};
    const lap_nn_replicas_t replicas = {.buckets = &buckets.buckets,
                                        .base = list->rank,
                                        .stride = nranks,
                                        .build = build_bucket,
                                        .context = &buckets};
    const int sharers = replication->replicas * (int)list->plan.desc.cp;
    if (sharers <= 1)
        return link_parts(list, linking, source, NULL, linked);
    lap_status_t status =
        lap_nn_buckets_init(&buckets.buckets, list, replication->bucket, replication->by_layer,
                            replication->wire, sharers, linked->rank / nranks);
    if (status == LAP_OK)
        status = link_parts(list, linking, source, &replicas, linked);
    lap_nn_buckets_clear(&buckets.buckets);
    return status;
}

lap_status_t lap_nn_programs_init(lap_nn_programs_t *programs, const lap_nn_plan_t *plan,
                                  const lap_nn_linking_t *linking)
{
    const lap_kernels_t *kernels = NULL; /* those of cpu */
    lap_nn_linking_t known = *linking;
    const lap_nn_source_t described = {build_described, &known};
    const lap_nn_source_t *source = linking->source ? linking->source : &described;
    const int replicas = linking->replication.replicas > 1 ? linking->replication.replicas : 1;
    const int place = plan->nranks * (int)plan->desc.cp; /* ranks of a replica */
    const size_t size = (size_t)place * (size_t)replicas;
    *programs = (lap_nn_programs_t){.size = (int)size,
                                    .separate_step = linking->separate_step,
                                    .late = linking->replication.late};
    programs->lists = lap_alloc(size, sizeof(*programs->lists));
    programs->programs = lap_alloc(size, sizeof(*programs->programs));
    programs->list = lap_alloc(size, sizeof(*programs->list));
    if (!programs->lists || !programs->programs || !programs->list)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the programs of %zu ranks", size);
    if (linking->target->device.graphs)
        LAP_TRY(lap_kernels_of_gpus(&kernels));
    for (int rank = 0; rank < programs->size; rank++) {
        lap_nn_list_t *list = &programs->lists[rank];
        lap_linked_t *linked = &programs->programs[rank];
        linked->rank = rank;
        linked->shares_queues = !linking->as_built && linking->target->device.shares_queues;
        programs->list[rank] = linked;
        LAP_TRY(lap_nn_list_init(list, plan, plan->desc.shards > 1 ? rank : rank % place, kernels));
        if (linking->optimizer)
            LAP_TRY(lap_nn_list_step(list, linking->optimizer, plan->nranks));
        LAP_TRY(link_rank(list, linking, source, linked));
    }
    return LAP_OK;
}

void lap_nn_programs_clear(lap_nn_programs_t *programs)
{
    for (int rank = 0; rank < programs->size; rank++) {
        if (programs->programs)
            lap_linked_clear(&programs->programs[rank]);
        if (programs->lists)
            lap_nn_list_clear(&programs->lists[rank]);
    }
    lap_free(programs->lists);
    lap_free(programs->programs);
    lap_free(programs->list);
    *programs = (lap_nn_programs_t){.size = 0};
}

static size_t larger(size_t x, size_t y)
{
    return x > y ? x : y;
}

static size_t given_bytes(const lap_nn_list_t *list)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < list->nregions; i++)
        bytes += lap_nn_is_given(list, i) ? lap_nn_region_bytes(&list->regions[i]) : 0;
    return bytes;
}

/* dy takes the place of y. */
static size_t made_bytes(const lap_nn_list_t *list)
{
    const lap_nn_region_t *y = &list->regions[list->y], *dx = &list->regions[list->dx];
    return y->memory == LAP_NN_EXTERNAL ? lap_nn_region_bytes(y) + lap_nn_region_bytes(dx) : 0;
}

/* What is issued at once: all of a step, or where the host comes in between, these by themselves. */
enum { RUN_PASS, RUN_SYNC, RUN_STEP, RUNS };

static int run_of(const lap_nn_programs_t *programs, const lap_fragment_t *fragment)
{
    if (!programs->separate_step)
        return RUN_PASS;
    return fragment->phase >= LAP_NN_PHASE_STEP                     ? RUN_STEP
           : programs->late && fragment->phase == LAP_NN_PHASE_SYNC ? RUN_SYNC
                                                                    : RUN_PASS;
}

static bool is_in_background(const lap_linked_t *linked, uint32_t f)
{
    return linked->fragments[f].schedule.set == LAP_BACKGROUND;
}

/*
 * A program is a graph. Where the background takes turns with the rest and no step of the program waits
 * for it, there are several. In a pipeline there is one for each segment, but messages are issued step by step.
 */
static size_t count_graphs(const lap_nn_programs_t *programs, const lap_linked_t *linked,
                           const bool *begins)
{
    const bool messages = lap_linked_has_messages(linked);
    size_t turns[RUNS] = {0}, count = 0;
    bool waits[RUNS] = {false};
    uint32_t last = LAP_NO_STEP, first = 0; /* the fragment before, and the first of the same run */
    int before = RUNS;
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        const lap_fragment_t *fragment = &linked->fragments[f];
        const int run = run_of(programs, fragment);
        const bool cut = messages && run == RUN_PASS;
        first = run == before ? first : f;
        turns[run] +=
            cut ? begins[f] && fragment->schedule.set <= LAP_BACKGROUND
                : run != before || is_in_background(linked, f) != is_in_background(linked, last);
        for (uint32_t i = 0; i < fragment->nlinks && !cut && !is_in_background(linked, f); i++)
            waits[run] = waits[run] || (fragment->links[i].fragment >= first &&
                                        is_in_background(linked, fragment->links[i].fragment));
        before = run;
        last = f;
    }
    for (int run = 0; run < RUNS; run++)
        count += waits[run] ? 1 : turns[run];
    return count;
}

static size_t count_launches(const lap_nn_programs_t *programs, const lap_linked_t *linked)
{
    bool *begins = lap_alloc((size_t)linked->nfragments + 1, sizeof(*begins));
    if (!begins)
        return linked->nfragments;
    lap_linked_cut(linked, begins);
    const size_t count = count_graphs(programs, linked, begins);
    lap_free(begins);
    return count;
}

/* What layers keep of a list besides its programs: with its operators, and the tasks of a step in flight. */
static size_t list_bytes(const lap_nn_list_t *list, size_t steps)
{
    return list->regions_room * sizeof(*list->regions) +
           list->entries_room * sizeof(*list->entries) + list->steps_room * sizeof(*list->steps) +
           list->nregions * sizeof(lap_tensor_t) +
           list->nsteps * (sizeof(lap_op_t) + sizeof(lap_trace_t)) + steps * LAP_STREAM_ARG_BYTES;
}

/* Whether an entry is a call of an operator that runs with a method that `auto` chooses. */
static bool is_automatic(const lap_nn_list_t *list, uint32_t origin)
{
    return origin < list->nentries && list->entries[origin].work == LAP_NN_OPERATOR &&
           lap_op_is_automatic(&list->steps[list->entries[origin].index].desc);
}

lap_nn_proof_t lap_nn_programs_count(const lap_nn_programs_t *programs)
{
    lap_nn_proof_t most = {.steps = 0};
    for (int rank = 0; rank < programs->size; rank++) {
        const lap_linked_t *linked = &programs->programs[rank];
        const lap_nn_list_t *list = &programs->lists[rank];
        lap_nn_proof_t own = {.fragments = linked->nfragments};
        bool graphs = true;
        size_t bytes[LAP_NN_GROUPS] = {0}, scratch[LAP_NN_SCRATCHES] = {0};
        for (uint32_t f = 0; f < linked->nfragments; f++) {
            const lap_schedule_t *schedule = &linked->fragments[f].schedule;
            const bool kernel = lap_schedule_is_kernel(schedule);
            own.kernels += kernel;
            graphs = graphs && (kernel || schedule->graph);
            own.steps += schedule->nsteps;
            own.links += linked->fragments[f].nlinks;
            own.program_bytes += lap_exec_fragment_bytes(linked, &linked->fragments[f]);
            own.records += lap_schedule_records(schedule);
            own.shared_records +=
                kernel || schedule->size == 1 ? 0 : lap_schedule_records(schedule);
            own.automatic += is_automatic(list, linked->fragments[f].origin);
            if (linked->fragments[f].origin < list->nentries) {
                size_t *room =
                    &scratch[list->entries[linked->fragments[f].origin].index % LAP_NN_SCRATCHES];
                *room = larger(*room, schedule->scratch_bytes);
            }
            const uint32_t buffer = linked->fragments[f].buffer; /* or one of a pipeline */
            size_t *most_bytes = &bytes[buffer < LAP_NN_GROUPS ? buffer : LAP_NN_BY_LAYERS];
            *most_bytes = larger(*most_bytes, schedule->symmetric_bytes);
        }
        size_t bucket_bytes = bytes[LAP_NN_BY_REPLICAS];
        most.symmetric_bytes =
            larger(most.symmetric_bytes, bytes[LAP_NN_BY_LAYERS] + bytes[LAP_NN_BY_RING] +
                                             bytes[LAP_NN_BY_HEADS] + bytes[LAP_NN_BY_SHARDS] +
                                             bytes[LAP_NN_BY_NORM]);
        for (uint32_t i = list->nregions + list->nsteps; i < linked->nregions; i++)
            bucket_bytes += linked->regions[i].bytes;
        most.bucket_bytes = larger(most.bucket_bytes, bucket_bytes);
        most.fragments = larger(most.fragments, own.fragments);
        most.kernels = larger(most.kernels, own.kernels);
        most.automatic = larger(most.automatic, own.automatic);
        own.launches = own.fragments;
        if (graphs)
            own.launches = count_launches(programs, linked);
        most.launches = larger(most.launches, own.launches);
        most.steps = larger(most.steps, own.steps);
        most.links = larger(most.links, own.links);
        most.program_bytes =
            larger(most.program_bytes, own.program_bytes + list_bytes(list, own.steps));
        most.records = larger(most.records, own.records);
        most.shared_records = larger(most.shared_records, own.shared_records);
        most.private_bytes = larger(most.private_bytes, list->bytes[LAP_NN_PRIVATE]);
        most.lasting_bytes = larger(most.lasting_bytes, list->bytes[LAP_NN_LASTING]);
        for (unsigned i = 0; i < LAP_NN_SCRATCHES; i++)
            own.scratch_bytes += scratch[i];
        most.scratch_bytes = larger(most.scratch_bytes, own.scratch_bytes);
        most.given_bytes = larger(most.given_bytes, given_bytes(list));
        most.made_bytes = larger(most.made_bytes, made_bytes(list));
        most.weights = larger(most.weights, lap_nn_optimized(list));
        most.state_bytes = larger(most.state_bytes, list->bytes[LAP_NN_STATE]);
    }
    return most;
}

/* ---- proofs ---- */

/*
 * Each call by itself, for what the target demands of what it is given. Without a pipeline, those of other replicas
 * are no others than those of the first.
 */
static lap_status_t prove_calls(const lap_nn_programs_t *programs, const lap_target_t *target,
                                const lap_calls_t *calls, const lap_schedule_t **group)
{
    const int ranks = lap_nn_list_is_stage(&programs->lists[0]) ? programs->size : 1;
    for (int first = 0; first < ranks; first++)
        for (uint32_t f = 0; f < programs->programs[first].nfragments; f++) {
            const lap_fragment_t *fragment = &programs->programs[first].fragments[f];
            const int size = fragment->schedule.size;
            if (fragment->schedule.rank > 0 || lap_schedule_is_kernel(&fragment->schedule))
                continue;
            for (int r = 0; r < size; r++)
                group[r] = &programs->programs[lap_fragment_rank(fragment, r)]
                                .fragments[lap_calls_of(calls, first, f, r)]
                                .schedule;
            LAP_TRY(lap_lowered_check(group, 1, size, target));
        }
    return LAP_OK;
}

lap_status_t lap_nn_programs_prove(const lap_nn_programs_t *programs, const lap_target_t *target)
{
    const lap_schedule_t **group = lap_alloc((size_t)programs->size, sizeof(*group));
    lap_calls_t calls = {NULL, NULL, NULL};
    lap_status_t status = LAP_OK;
    if (!group)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to check %d ranks", programs->size);
    if (status == LAP_OK)
        status = lap_calls_init(&calls, programs->list, programs->size);
    if (status == LAP_OK)
        status = prove_calls(programs, target, &calls, group);
    lap_free(group);
    lap_calls_clear(&calls);
    LAP_TRY(status);
    return lap_linked_check(programs->list, programs->size, target->device.shares_queues);
}

/*
 * Whether layers keep a fragment of the first pass, or of one that adds to gradients, besides that of the pass that is
 * counted: delayed scaling has other forwards there, and another first backward; steps are alike.
 */
static bool is_kept(const lap_nn_list_t *list, const lap_nn_linking_t *linking,
                    const lap_fragment_t *fragment)
{
    const bool delayed = list->plan.desc.fp8 == LAP_FP8_DELAYED;
    const bool forward = fragment->origin < list->parts[LAP_NN_BACKWARD];
    if (fragment->phase >= LAP_NN_PHASE_STEP)
        return false;
    return linking->first ? delayed : linking->micros > 1 && (delayed || !forward);
}

static size_t kept_bytes(const lap_nn_programs_t *programs, const lap_nn_linking_t *linking)
{
    size_t most = 0;
    for (int rank = 0; rank < programs->size; rank++) {
        const lap_linked_t *linked = &programs->programs[rank];
        size_t bytes = 0;
        for (uint32_t f = 0; f < linked->nfragments; f++)
            if (is_kept(&programs->lists[rank], linking, &linked->fragments[f]))
                bytes += lap_exec_fragment_bytes(linked, &linked->fragments[f]);
        most = larger(most, bytes);
    }
    return most;
}

/* The programs of a step; and of micro-batches before its last one, which sends and updates nothing. */
typedef enum variant { FIRST, SETS, ADDS, SETS_HELD, ADDS_HELD, VARIANTS } variant_t;

static lap_nn_linking_t linking_of(const lap_nn_linking_t *how, variant_t variant)
{
    lap_nn_linking_t linking = *how;
    linking.first = variant == FIRST;
    linking.more = variant == ADDS || variant == ADDS_HELD;
    linking.replication.held = variant >= SETS_HELD;
    return linking;
}

/* Links, proves and counts a variant; writes the digest of each rank. */
static lap_status_t prove_variant(const lap_nn_plan_t *plan, const lap_nn_linking_t *how,
                                  variant_t variant, lap_nn_proof_t *proof, size_t *kept,
                                  uint64_t *digests)
{
    const lap_nn_linking_t linking = linking_of(how, variant);
    lap_nn_programs_t programs;
    lap_status_t status = lap_nn_programs_init(&programs, plan, &linking);
    if (status == LAP_OK)
        status = lap_nn_programs_prove(&programs, how->target);
    if (status == LAP_OK && variant == SETS)
        *proof = lap_nn_programs_count(&programs);
    else if (status == LAP_OK && variant < SETS_HELD)
        *kept += kept_bytes(&programs, &linking);
    for (int rank = 0; rank < programs.size && status == LAP_OK; rank++)
        status = lap_linked_digest(programs.list[rank], &digests[rank]);
    lap_nn_programs_clear(&programs);
    return status;
}

/* Of all ranks, the programs of a step one after the other. */
static uint64_t digest_of(const uint64_t *digests, size_t size, size_t micros)
{
    uint64_t all = LAP_NO_DIGEST;
    for (size_t rank = 0; rank < size; rank++) {
        uint64_t step = LAP_NO_DIGEST;
        for (size_t m = 0; m < micros; m++) {
            const variant_t variant = m + 1 < micros ? m > 0 ? ADDS_HELD : SETS_HELD
                                      : m > 0        ? ADDS
                                                     : SETS;
            step = lap_digest_add(step, digests[variant * size + rank]);
        }
        all = lap_digest_add(all, step);
    }
    return all;
}

lap_status_t lap_nn_prove_linking(const lap_nn_plan_t *plan, const lap_nn_linking_t *how,
                                  lap_nn_proof_t *proof_p)
{
    const size_t micros = how->micros > 1 ? how->micros : 1;
    const size_t replicas = how->replication.replicas > 1 ? (size_t)how->replication.replicas : 1;
    const size_t size = (size_t)plan->nranks * plan->desc.cp * replicas;
    size_t kept = 0;
    lap_status_t status = LAP_OK;
    uint64_t *digests = lap_alloc(VARIANTS * size, sizeof(*digests));
    if (!digests)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the digests of %zu ranks", size);
    for (int variant = FIRST; variant < VARIANTS && status == LAP_OK; variant++)
        if (variant < SETS_HELD || micros > (variant == SETS_HELD ? 1u : 2u))
            status = prove_variant(plan, how, (variant_t)variant, proof_p, &kept,
                                   digests + (size_t)variant * size);
    if (status == LAP_OK) {
        proof_p->program_bytes += kept;
        proof_p->digest = digest_of(digests, size, micros);
    }
    lap_free(digests);
    return status;
}

lap_status_t lap_nn_prove(const lap_nn_plan_t *plan, const lap_target_t *target,
                          lap_nn_proof_t *proof_p)
{
    const lap_nn_linking_t how = {.target = target};
    return lap_nn_prove_linking(plan, &how, proof_p);
}

/* Layers of a kind repeat the same calls: two of them show all neighbours that calls can have. */
lap_status_t lap_nn_check(const lap_nn_desc_t *desc, int nranks, const char *transport)
{
    lap_nn_plan_t plan = {.nranks = nranks};
    lap_nn_proof_t proof;
    const lap_transport_ops_t *ops;
    const lap_device_ops_t *device;
    LAP_TRY(lap_nn_plan_init(desc, nranks, &plan));
    LAP_TRY(lap_transport_find(transport ? transport : "shm", &ops));
    LAP_TRY(lap_device_find(ops->device ? ops->device : "cpu", &device));
    const lap_target_t target = lap_target_of(device, ops);
    if (plan.desc.layers > 2)
        lap_nn_plan_cut(&plan, 2);
    return lap_nn_prove(&plan, &target, &proof);
}
