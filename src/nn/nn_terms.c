/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks must have alike of layers and of their optimizers: every field of the descriptions,
 * with its defaults filled in.
 */
#include <stdio.h>

#include "core/status.h"
#include "nn/nn.h"
#include "nn/nn_fields.h"
#include "nn/tp_overlap.h"

static void list_rules(const lap_tp_overlap_t *overlap, lap_terms_t *terms)
{
    for (int g = 0; g < LAP_TP_GEMMS; g++) {
        const lap_tp_rule_t *rule = &overlap->rules[g];
        char prefix[32];
        snprintf(prefix, sizeof(prefix), "%s.", lap_tp_gemm_name((lap_tp_gemm_t)g));
        terms->prefix = prefix;
        lap_terms_text(terms, "method", lap_tp_method_name(rule->method));
        lap_fields_terms(lap_tp_fields, 0, rule, terms);
        terms->prefix = NULL;
    }
}

void lap_nn_list_terms(const lap_nn_plan_t *plan, lap_terms_t *terms)
{
    const lap_buffer_t *buffer = plan->desc.buffer;
    lap_fields_terms(lap_nn_fields, 0, &plan->desc, terms);
    lap_terms_number(terms, "buffer", buffer ? buffer->id : 0);
    list_rules(&plan->overlap, terms);
}

/* ---- replicas ---- */

lap_status_t lap_nn_compare_replicas(lap_nn_t *nn, lap_group_t *replicas, lap_terms_t *terms,
                                     lap_status_t mine)
{
    lap_terms_number(terms, "ranks that share weights", (uint64_t)nn->list.plan.nranks);
    lap_fields_terms(lap_nn_fields, LAP_NN_OF_WEIGHTS, &nn->list.plan.desc, terms);
    if (nn->has_optimizer) {
        terms->prefix = "optimizer.";
        lap_fields_terms(lap_optimizer_fields, 0, &nn->optimizer, terms);
        terms->prefix = NULL;
    }
    return lap_terms_agree(terms, replicas, mine);
}

lap_status_t lap_nn_take_optimizer(lap_nn_t *nn, lap_group_t *group,
                                   const lap_optimizer_desc_t *desc, lap_status_t mine)
{
    lap_terms_t terms = {.of = "lap_optimizer_create"};
    if (mine == LAP_OK)
        lap_fields_terms(lap_optimizer_fields, 0, desc, &terms);
    lap_status_t status = lap_terms_agree(&terms, group, mine);
    lap_group_t *replicas = nn->replicas ? nn->replicas : nn->sharers;
    if (replicas) /* what these fail of fails those of other replicas, too, that are in the group */
        status = lap_group_agree(group, lap_terms_agree(&terms, replicas, status));
    lap_terms_clear(&terms);
    LAP_TRY(status);
    nn->optimizer = *desc;
    nn->has_optimizer = true;
    return LAP_OK;
}
