/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/stage_prove.h"

#include <inttypes.h>

#include "core/status.h"
#include "parallel/stage.h"
#include "schedule/digest.h"
#include "util/alloc.h"

/* ---- schedules ---- */

/* The operators of a rank. */
typedef struct step_source {
    const lap_stage_proving_t *proving;
    const lap_op_desc_t *chosen; /* NULL: as they are listed */
    int stage;                   /* the rank of the pipeline */
} step_source_t;

static lap_status_t build_step(void *context, const lap_nn_list_t *list, uint32_t step, size_t m,
                               lap_schedule_t *schedule_p)
{
    const step_source_t *source = context;
    const int tp = list->plan.nranks;
    const bool of_optimizer = source->proving->how.optimizer && step >= list->own_steps;
    lap_nn_slice_t slice = lap_nn_slice(list, list->steps[step].group);
    if (of_optimizer &&
        list->steps[step].group == LAP_NN_BY_LAYERS) /* over all stages: see stage_step.c */
        slice = (lap_nn_slice_t){tp * source->proving->pp, source->stage * tp + list->rank, 1};
    const lap_op_desc_t *desc =
        source->chosen && !of_optimizer ? &source->chosen[step] : &list->steps[step].desc;
    return lap_nn_build_described(&source->proving->how, desc, slice.size, slice.rank, m,
                                  schedule_p);
}

static lap_status_t build_tied(void *context, const lap_nn_list_t *list, int rank,
                               lap_stage_kind_t which, lap_schedule_t *schedule_p)
{
    const lap_op_desc_t desc = lap_stage_tied_desc(list, which);
    return lap_nn_build_described(context, &desc, 2, rank, desc.m, schedule_p);
}

/* The context of a bucket of a rank. */
typedef struct bucket_source {
    const lap_stage_proving_t *proving;
    const lap_nn_buckets_t *buckets;
} bucket_source_t;

static lap_status_t build_bucket(void *context, size_t index, int which, lap_schedule_t *schedule_p)
{
    const bucket_source_t *source = context;
    const lap_op_desc_t desc = lap_nn_bucket_desc(source->buckets, index, which);
    return lap_nn_build_described(&source->proving->how, &desc, source->buckets->replicas,
                                  source->buckets->replica, desc.m, schedule_p);
}

/* ---- all ranks ---- */

/* How many ranks share sequences; how many replicas there are; ranks of a stage. */
static int context_of(const lap_stage_proving_t *proving)
{
    return proving->desc->cp > 1 ? (int)proving->desc->cp : 1;
}

static int replicas_of(const lap_stage_proving_t *proving)
{
    return proving->how.replication.replicas > 1 ? proving->how.replication.replicas : 1;
}

static int sharers_of(const lap_stage_proving_t *proving)
{
    return replicas_of(proving) * context_of(proving) * proving->tp;
}

/* Whether a step gathers the weights of a shared optimizer. */
static bool gathers(const lap_stage_proving_t *proving)
{
    return proving->how.replication.ahead && proving->desc->shards > 1;
}

int lap_stage_number(const lap_stage_proving_t *proving, int rank)
{
    const int place = context_of(proving) * proving->tp;
    const int stage = rank / place % proving->pp;
    const int replica = rank / place / proving->pp % replicas_of(proving);
    return (stage * replicas_of(proving) + replica) * place + rank % place;
}

int lap_stage_world_rank(const lap_stage_proving_t *proving, int number)
{
    const int place = context_of(proving) * proving->tp;
    const int replica = number / place % replicas_of(proving);
    const int stage = number / place / replicas_of(proving);
    return (replica * proving->pp + stage) * place + number % place;
}

static lap_status_t alloc(lap_stage_programs_t *programs, size_t size)
{
    lap_nn_programs_t *all = &programs->all;
    all->lists = lap_alloc(size, sizeof(*all->lists));
    all->programs = lap_alloc(size, sizeof(*all->programs));
    all->list = lap_alloc(size, sizeof(*all->list));
    programs->programs = lap_alloc(size, sizeof(*programs->programs));
    if (!all->lists || !all->programs || !all->list || !programs->programs)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the programs of %zu ranks", size);
    return LAP_OK;
}

static lap_status_t make_lists(lap_stage_programs_t *programs, const lap_stage_proving_t *proving)
{
    const lap_kernels_t *kernels = NULL; /* those of cpu */
    const int sharers = sharers_of(proving), place = context_of(proving) * proving->tp;
    if (proving->how.target->device.graphs)
        LAP_TRY(lap_kernels_of_gpus(&kernels));
    for (int p = 0; p < proving->pp; p++) {
        lap_nn_plan_t plan = {.nranks = proving->tp};
        lap_nn_cut_t cut;
        LAP_TRY(lap_stages_cut(&programs->stages, (uint32_t)p, &cut));
        LAP_TRY(lap_nn_plan_stage(proving->desc, proving->tp, &cut, &plan));
        for (int i = 0; i < sharers; i++) {
            lap_nn_list_t *list = &programs->all.lists[p * sharers + i];
            LAP_TRY(lap_nn_list_init(list, &plan, plan.desc.shards > 1 ? i : i % place, kernels));
            if (proving->how.optimizer)
                LAP_TRY(lap_nn_list_step(list, proving->how.optimizer, proving->tp * proving->pp));
        }
    }
    return LAP_OK;
}

static lap_status_t make_buckets(lap_stage_programs_t *programs, const lap_stage_proving_t *proving)
{
    const lap_nn_replication_t *replication = &proving->how.replication;
    const int replicas = replicas_of(proving) * context_of(proving);
    const int size = programs->all.size, sharers = sharers_of(proving);
    if (replicas == 1 || (replication->late && !gathers(proving) && !proving->how.optimizer))
        return LAP_OK;
    programs->buckets = lap_alloc((size_t)size, sizeof(*programs->buckets));
    if (!programs->buckets)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the buckets of %d ranks", size);
    for (int rank = 0; rank < size; rank++)
        LAP_TRY(lap_nn_buckets_init(&programs->buckets[rank], &programs->all.lists[rank],
                                    replication->bucket, replication->by_layer, replication->wire,
                                    replicas, rank % sharers / proving->tp));
    return LAP_OK;
}

/* Origins of entries become their numbers, those of others come after. */
static void set_origins(const lap_stage_program_t *program, lap_linked_t *linked)
{
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        const lap_stage_item_t *item = &program->items[f];
        linked->fragments[f].origin =
            item->kind == LAP_STAGE_ENTRY ? item->entry : LAP_NN_BUCKET_ORIGIN + f;
    }
}

/* ---- what is expected of a program ---- */

/* A micro-batch in a stage of the rank: its entries, and the input and the gradient that it is sent. */
static void expect_micro(const lap_stage_linking_t *linking, uint32_t stage, uint32_t micro,
                         lap_linked_t *linked)
{
    const lap_stages_t *stages = linking->stages;
    const lap_nn_list_t *list = linking->list;
    const lap_nn_slot_t *slot = &list->slots[lap_stages_slot(stages, stage, micro)];
    const lap_nn_mode_t forward = {.first = linking->first &&
                                            lap_stages_first(stages, stage, true) == micro};
    const lap_nn_mode_t backward = {.first = linking->first &&
                                             lap_stages_first(stages, stage, false) == micro};
    lap_nn_expect_entries(list, slot->forward, slot->backward, linking->seq, forward, linked);
    lap_nn_expect_entries(list, slot->backward, slot->end, linking->seq, backward, linked);
    linked->regions[slot->x].writers += stage > 0;
    linked->regions[slot->dy].writers += stage + 1 < stages->stages;
}

/* Sums of tied gradients, in memory of their own, which has the last region, and where gradients are. */
static void expect_tied(const lap_stage_linking_t *linking, lap_linked_t *linked)
{
    const lap_nn_weight_t *tied = lap_stage_tied(linking->list);
    if (!tied)
        return;
    linked->regions[tied->grad].writers++;
    linked->regions[linked->nregions - 1].writers++;
}

static void expect_all(const lap_stage_linking_t *linking, lap_linked_t *linked)
{
    const lap_nn_list_t *list = linking->list;
    const lap_nn_buckets_t *buckets = linking->replicas ? linking->replicas->buckets : NULL;
    const lap_nn_buckets_t *shared = list->shards ? buckets : NULL;
    const size_t next = linking->starts ? lap_nn_prefetch_started(list, buckets) : 0;
    linked->counted = true;
    lap_nn_expect_entry(list, 0, linking->seq, linked); /* gradients become 0 */
    for (uint32_t e = 0; e < list->nrenew && !linking->first; e++)
        lap_nn_expect_entry(list, list->renew + e, linking->seq, linked);
    for (uint32_t s = 0; s < linking->stages->stages; s++)
        for (uint32_t m = 0; m < linking->stages->micros; m++)
            if (linking->stages->rank_of[s] == linking->rank)
                expect_micro(linking, s, m, linked);
    expect_tied(linking, linked);
    for (size_t i = 0; (linking->sends || linking->late) && i < buckets->count; i++)
        lap_nn_expect_bucket(list, buckets, i, false, linked);
    if (linking->gathers || linking->copies)
        lap_nn_expect_copies(list, shared, linking->started ? next : 0, linked);
    if (linking->steps)
        lap_nn_expect_step(list, buckets, next, linked);
    if (linking->steps && !linking->gathers && (shared || !list->shards))
        lap_nn_expect_copies(list, shared, 0, linked);
}

static lap_status_t link_rank(lap_stage_programs_t *programs, const lap_stage_proving_t *proving,
                              int rank)
{
    const int sharers = sharers_of(proving);
    lap_stage_proving_t known = *proving;
    step_source_t steps = {proving, proving->chosen ? proving->chosen[rank / sharers] : NULL,
                           rank / sharers};
    const lap_nn_source_t source = {build_step, &steps};
    const lap_nn_list_t *list = &programs->all.lists[rank];
    bucket_source_t bucket = {.proving = proving};
    if (programs->buckets)
        bucket.buckets = &programs->buckets[rank];
    const lap_nn_replicas_t replicas = {.buckets = bucket.buckets,
                                        .base = rank / sharers * sharers + rank % proving->tp,
                                        .stride = proving->tp,
                                        .build = build_bucket,
                                        .context = &bucket};
    const bool starts = programs->buckets && gathers(proving) && proving->how.replication.starts &&
                        proving->how.optimizer;
    const lap_stage_linking_t linking = {
        .stages = &programs->stages,
        .rank = (uint32_t)(rank / sharers),
        .list = list,
        .base = rank % sharers,
        .stride = sharers,
        .replicas = programs->buckets ? &replicas : NULL,
        .sends = programs->buckets && !proving->how.replication.late,
        .gathers = programs->buckets && gathers(proving),
        .starts = starts,
        .started = starts && !proving->how.first,
        .late = programs->buckets && proving->how.replication.late && proving->how.optimizer,
        .steps = proving->how.optimizer != NULL,
        .seq = list->plan.desc.seq,
        .first = proving->how.first,
        .copies = proving->how.first && (programs->buckets || list->plan.desc.shards <= 1),
        .overlap = proving->options->overlap != 0,
        .target = proving->how.as_built ? NULL : proving->how.target,
        .after = proving->how.after,
        .source = &source,
        .tied = build_tied,
        .context = &known.how,
    };
    lap_stage_program_t *program = &programs->programs[rank];
    const lap_status_t status = lap_stage_link(&linking, program);
    programs->all.programs[rank] = program->linked;
    program->linked = (lap_linked_t){.rank = rank};
    programs->all.list[rank] = &programs->all.programs[rank];
    if (status == LAP_OK) {
        set_origins(program, &programs->all.programs[rank]);
        expect_all(&linking, &programs->all.programs[rank]);
    }
    return status;
}

/* Before any of them is linked: that is what takes memory. */
static lap_status_t check_count(const lap_stage_programs_t *programs,
                                const lap_stage_proving_t *proving)
{
    const int sharers = sharers_of(proving);
    uint64_t count = 0;
    for (int p = 0; p < proving->pp; p++) {
        const int first = p * sharers;
        count += lap_stage_count(&programs->stages, (uint32_t)p, &programs->all.lists[first]);
    }
    count *= (uint64_t)sharers;
    if (proving->most == 0 || count <= proving->most)
        return LAP_OK;
    return lap_error(LAP_ERR_NO_MEMORY,
                     "a step has %" PRIu64
                     " kernels and operators on %d ranks; expected at most %" PRIu64,
                     count, programs->all.size, proving->most);
}

lap_status_t lap_stage_programs_init(lap_stage_programs_t *programs,
                                     const lap_stage_proving_t *proving)
{
    const int size = proving->pp * sharers_of(proving);
    lap_stage_proving_t known = *proving;
    lap_pp_options_t options;
    lap_nn_plan_t whole = {.nranks = proving->tp};
    *programs = (lap_stage_programs_t){.all = {.size = size,
                                               .separate_step = proving->how.separate_step,
                                               .late = proving->how.replication.late}};
    LAP_TRY(lap_stage_options(proving->options, &options));
    known.options = &options;
    LAP_TRY(lap_nn_plan_init(proving->desc, proving->tp, &whole));
    LAP_TRY(lap_stage_plan(&whole.desc, proving->pp, &options, &programs->stages));
    LAP_TRY(alloc(programs, (size_t)size));
    LAP_TRY(make_lists(programs, &known));
    LAP_TRY(check_count(programs, &known));
    LAP_TRY(make_buckets(programs, &known));
    for (int rank = 0; rank < size; rank++)
        LAP_TRY(link_rank(programs, &known, rank));
    return LAP_OK;
}

void lap_stage_programs_clear(lap_stage_programs_t *programs)
{
    for (int rank = 0; programs->programs && rank < programs->all.size; rank++)
        lap_stage_program_clear(&programs->programs[rank]);
    for (int rank = 0; programs->buckets && rank < programs->all.size; rank++)
        lap_nn_buckets_clear(&programs->buckets[rank]);
    lap_free(programs->buckets);
    lap_free(programs->programs);
    lap_nn_programs_clear(&programs->all);
    lap_stages_clear(&programs->stages);
    programs->programs = NULL;
    programs->buckets = NULL;
}

/* Of the step of each rank, in the order of the grid. */
static lap_status_t find_digest(const lap_stage_proving_t *proving,
                                const lap_stage_programs_t *programs, uint64_t *digest_p)
{
    uint64_t own, all = LAP_NO_DIGEST;
    for (int rank = 0; rank < programs->all.size; rank++) {
        LAP_TRY(lap_linked_digest(programs->all.list[lap_stage_number(proving, rank)], &own));
        all = lap_digest_add(all, lap_digest_add(LAP_NO_DIGEST, own));
    }
    *digest_p = all;
    return LAP_OK;
}

static lap_status_t prove(const lap_stage_proving_t *proving, bool first, lap_nn_proof_t *proof_p)
{
    lap_stage_proving_t known = *proving;
    lap_stage_programs_t programs;
    known.how.first = first;
    lap_status_t status = lap_stage_programs_init(&programs, &known);
    if (status == LAP_OK)
        status = lap_nn_programs_prove(&programs.all, proving->how.target);
    if (status == LAP_OK)
        *proof_p = lap_nn_programs_count(&programs.all);
    if (status == LAP_OK)
        status = find_digest(&known, &programs, &proof_p->digest);
    lap_stage_programs_clear(&programs);
    return status;
}

/* The first step is another one only where FP8 scales come from steps before. */
lap_status_t lap_stage_prove(const lap_stage_proving_t *proving, lap_nn_proof_t *proof_p)
{
    if (proving->desc->fp8 == LAP_FP8_DELAYED)
        LAP_TRY(prove(proving, true, proof_p));
    return prove(proving, false, proof_p);
}
