/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/stage_prove.h"

#include <string.h>

#include "core/status.h"
#include "overlap/overlap.h"
#include "parallel/stage.h"
#include "schedule/lower.h"
#include "util/alloc.h"

/* ---- schedules ---- */

static lap_status_t build(const lap_stage_proving_t *proving, const lap_op_desc_t *given, int size,
                          int rank, size_t m, lap_schedule_t *schedule_p)
{
    lap_op_desc_t desc = *given;
    lap_problem_t problem;
    const lap_builder_t *builder;
    if (desc.method && strcmp(desc.method, LAP_AUTO) == 0)
        desc.method = "serial";
    LAP_TRY(lap_problem_init(&problem, &builder, &desc, size, proving->target->can));
    problem.rank = rank;
    problem.m = m;
    LAP_TRY(lap_build(builder, &problem, schedule_p));
    return proving->as_built ? LAP_OK : lap_lower(schedule_p, 1, proving->target, proving->after);
}

static lap_status_t build_step(void *context, const lap_nn_list_t *list, uint32_t step, size_t m,
                               lap_schedule_t *schedule_p)
{
    return build(context, &list->steps[step].desc, list->plan.nranks, list->rank, m, schedule_p);
}

static lap_status_t build_tied(void *context, const lap_nn_list_t *list, int rank,
                               lap_stage_kind_t which, lap_schedule_t *schedule_p)
{
    const lap_op_desc_t desc = lap_stage_tied_desc(list, which);
    return build(context, &desc, 2, rank, desc.m, schedule_p);
}

/* ---- all ranks ---- */

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
    const lap_nn_kernels_t *kernels = lap_nn_kernels_for(proving->target);
    for (int p = 0; p < proving->pp; p++) {
        lap_nn_plan_t plan = {.nranks = proving->tp};
        lap_nn_cut_t cut;
        LAP_TRY(lap_stages_cut(&programs->stages, (uint32_t)p, &cut));
        LAP_TRY(lap_nn_plan_stage(proving->desc, proving->tp, &cut, &plan));
        for (int t = 0; t < proving->tp; t++)
            LAP_TRY(lap_nn_list_init(&programs->all.lists[p * proving->tp + t], &plan, t, kernels));
    }
    return LAP_OK;
}

/* Origins of entries become their numbers, those of others come behind. */
static void set_origins(const lap_stage_program_t *program, lap_linked_t *linked)
{
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        const lap_stage_item_t *item = &program->items[f];
        linked->fragments[f].origin =
            item->kind == LAP_STAGE_ENTRY ? item->entry : LAP_NN_BUCKET_ORIGIN + f;
    }
}

static lap_status_t link_rank(lap_stage_programs_t *programs, const lap_stage_proving_t *proving,
                              const lap_nn_list_t *const *lists, int rank)
{
    const int tp = proving->tp;
    lap_stage_proving_t known = *proving;
    const lap_nn_source_t source = {build_step, &known};
    const lap_nn_list_t *list = &programs->all.lists[rank];
    const lap_stage_linking_t linking = {
        .stages = &programs->stages,
        .rank = (uint32_t)(rank / tp),
        .list = list,
        .lists = proving->aligned ? lists : NULL,
        .base = rank % tp,
        .stride = tp,
        .layers_base = rank / tp * tp,
        .seq = list->plan.desc.seq,
        .overlap = proving->options->overlap != 0,
        .target = proving->as_built ? NULL : proving->target,
        .after = proving->after,
        .source = &source,
        .tied = build_tied,
        .context = &known,
    };
    lap_stage_program_t *program = &programs->programs[rank];
    const lap_status_t status = lap_stage_link(&linking, program);
    programs->all.programs[rank] = program->linked;
    program->linked = (lap_linked_t){.rank = rank};
    programs->all.list[rank] = &programs->all.programs[rank];
    if (status == LAP_OK)
        set_origins(program, &programs->all.programs[rank]);
    return status;
}

lap_status_t lap_stage_programs_init(lap_stage_programs_t *programs,
                                     const lap_stage_proving_t *proving)
{
    const int tp = proving->tp, size = tp * proving->pp;
    lap_stage_proving_t known = *proving;
    lap_pp_options_t options;
    lap_nn_plan_t whole = {.nranks = tp};
    *programs = (lap_stage_programs_t){.all.size = size};
    LAP_TRY(lap_stage_options(proving->options, &options));
    known.options = &options;
    LAP_TRY(lap_nn_plan_init(proving->desc, tp, &whole));
    LAP_TRY(lap_stage_plan(&whole.desc, proving->pp, &options, &programs->stages));
    LAP_TRY(alloc(programs, (size_t)size));
    LAP_TRY(make_lists(programs, &known));
    const lap_nn_list_t **lists = lap_alloc((size_t)proving->pp, sizeof(*lists));
    lap_status_t status = LAP_OK;
    if (!lists)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the lists of %d ranks", size);
    for (int rank = 0; rank < size && status == LAP_OK; rank++) {
        for (int p = 0; p < proving->pp; p++)
            lists[p] = &programs->all.lists[p * tp + rank % tp];
        status = link_rank(programs, &known, lists, rank);
    }
    lap_free(lists);
    return status;
}

void lap_stage_programs_clear(lap_stage_programs_t *programs)
{
    for (int rank = 0; programs->programs && rank < programs->all.size; rank++)
        lap_stage_program_clear(&programs->programs[rank]);
    lap_free(programs->programs);
    lap_nn_programs_clear(&programs->all);
    lap_stages_clear(&programs->stages);
    programs->programs = NULL;
}

lap_status_t lap_stage_prove(const lap_stage_proving_t *proving, lap_nn_proof_t *proof_p)
{
    lap_stage_proving_t known = *proving;
    lap_stage_programs_t programs;
    known.aligned = true;
    lap_status_t status = lap_stage_programs_init(&programs, &known);
    if (status == LAP_OK)
        status = lap_nn_programs_prove(&programs.all, proving->target);
    if (status == LAP_OK)
        *proof_p = lap_nn_programs_count(&programs.all);
    lap_stage_programs_clear(&programs);
    return status;
}
