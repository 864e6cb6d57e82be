/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/stage_choices.h"

#include <stdio.h>

#include "core/status.h"
#include "core/world.h"
#include "overlap/op.h"
#include "util/alloc.h"

#define METHOD 32

/* An operator, in memory that travels. */
typedef struct choice {
    lap_op_desc_t desc;
    char method[METHOD];
} choice_t;

/* Each rank tells as many operators as the rank with the most has. */
static lap_status_t collect(const lap_nn_t *nn, lap_group_t *pipeline, size_t most,
                            choice_t **all_p)
{
    const size_t calls = nn->list.nsteps;
    choice_t *own = lap_alloc(most, sizeof(*own));
    void *all = NULL;
    lap_status_t status =
        own ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu methods", most);
    status = lap_group_agree(pipeline, status);
    for (size_t i = 0; i < calls && status == LAP_OK; i++) {
        const size_t rows = lap_nn_step_rows(&nn->list, (uint32_t)i, nn->list.plan.desc.seq);
        own[i].desc = lap_op_chosen(nn->calls[i].op, rows);
        snprintf(own[i].method, METHOD, "%s", own[i].desc.method);
    }
    if (status == LAP_OK)
        status = lap_group_collect(pipeline, own, most * sizeof(*own), &all);
    lap_free(own);
    *all_p = status == LAP_OK ? all : NULL;
    return status;
}

lap_status_t lap_stage_choices_share(lap_stage_choices_t *choices, const lap_nn_t *nn,
                                     lap_group_t *pipeline)
{
    const size_t size = (size_t)pipeline->size;
    double most = nn->list.nsteps;
    choice_t *all = NULL;
    *choices = (lap_stage_choices_t){.all = NULL};
    LAP_TRY(lap_group_max(pipeline, &most));
    const size_t each = (size_t)most + 1;
    LAP_TRY(collect(nn, pipeline, each, &all));
    choices->all = all;
    choices->descs = lap_alloc(size * each, sizeof(*choices->descs));
    choices->of = lap_alloc(size, sizeof(*choices->of));
    for (size_t i = 0; choices->descs && choices->of && i < size * each; i++) {
        choices->descs[i] = all[i].desc;
        choices->descs[i].method = all[i].method;
        choices->descs[i].buffer = NULL; /* of another process */
        choices->of[i / each] = &choices->descs[i / each * each];
    }
    return lap_group_agree(
        pipeline,
        choices->descs && choices->of
            ? LAP_OK
            : lap_error(LAP_ERR_NO_MEMORY, "no memory for the methods of %zu stages", size));
}

void lap_stage_choices_clear(lap_stage_choices_t *choices)
{
    lap_free(choices->all);
    lap_free(choices->descs);
    lap_free(choices->of);
    *choices = (lap_stage_choices_t){.all = NULL};
}
