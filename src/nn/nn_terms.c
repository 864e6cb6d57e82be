/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks must have alike of layers and of their optimizers: every field of the descriptions,
 * with its defaults filled in. A field that is added there has its place here.
 */
#include <stdio.h>

#include "core/status.h"
#include "nn/nn.h"
#include "nn/tp_overlap.h"

/* What makes the weights. */
static void list_weights(const lap_nn_plan_t *plan, lap_terms_t *terms)
{
    const lap_nn_desc_t *desc = &plan->desc;
    lap_terms_text(terms, "kind", lap_nn_kind_name(desc->kind));
    lap_terms_number(terms, "layers", desc->layers);
    lap_terms_number(terms, "hidden", desc->hidden);
    lap_terms_number(terms, "features", desc->features);
    lap_terms_number(terms, "ffn", desc->ffn);
    lap_terms_number(terms, "heads", desc->heads);
    lap_terms_number(terms, "kv_heads", desc->kv_heads);
    lap_terms_number(terms, "head_dim", desc->head_dim);
    lap_terms_dtype(terms, "dtype", desc->dtype);
    lap_terms_number(terms, "norm", (uint64_t)desc->norm);
    lap_terms_number(terms, "activation", (uint64_t)desc->activation);
    lap_terms_single(terms, "epsilon", desc->epsilon);
    lap_terms_number(terms, "bias", desc->bias != 0);
    lap_terms_number(terms, "row_parallel", desc->row_parallel != 0);
    lap_terms_number(terms, "fp8", (uint64_t)desc->fp8);
    lap_terms_number(terms, "amax_history", desc->amax_history);
    lap_terms_number(terms, "seed", desc->seed);
    lap_terms_single(terms, "init_std", desc->init_std);
}

static void list_rules(const lap_tp_overlap_t *overlap, lap_terms_t *terms)
{
    for (int g = 0; g < LAP_TP_GEMMS; g++) {
        const lap_tp_rule_t *rule = &overlap->rules[g];
        char prefix[32];
        snprintf(prefix, sizeof(prefix), "%s.", lap_tp_gemm_name((lap_tp_gemm_t)g));
        terms->prefix = prefix;
        lap_terms_text(terms, "method", lap_tp_method_name(rule->method));
        for (size_t i = 0; i < LAP_TP_FIELDS; i++)
            lap_terms_signed(terms, lap_tp_fields[i].name, lap_tp_field(rule, i));
        terms->prefix = NULL;
    }
}

/* All but `debug`, which changes nothing, and the options of a buffer, which it compares itself. */
void lap_nn_list_terms(const lap_nn_plan_t *plan, lap_terms_t *terms)
{
    const lap_nn_desc_t *desc = &plan->desc;
    list_weights(plan, terms);
    lap_terms_number(terms, "seq", desc->seq);
    lap_terms_number(terms, "batch", desc->batch);
    lap_terms_number(terms, "sequence_parallel", desc->sequence_parallel != 0);
    lap_terms_number(terms, "recompute", (uint64_t)desc->recompute);
    lap_terms_single(terms, "loss_scale", desc->loss_scale);
    lap_terms_number(terms, "buffer", desc->buffer ? desc->buffer->id : 0);
    list_rules(&plan->overlap, terms);
}

static void list_optimizer(const lap_optimizer_desc_t *desc, lap_terms_t *terms)
{
    lap_terms_text(terms, "kind", desc->kind == LAP_SGD ? "sgd" : "adamw");
    lap_terms_single(terms, "lr", desc->lr);
    lap_terms_single(terms, "momentum", desc->momentum);
    lap_terms_single(terms, "beta1", desc->beta1);
    lap_terms_single(terms, "beta2", desc->beta2);
    lap_terms_single(terms, "epsilon", desc->epsilon);
    lap_terms_single(terms, "weight_decay", desc->weight_decay);
    lap_terms_single(terms, "clip_norm", desc->clip_norm);
    lap_terms_number(terms, "warmup", desc->warmup);
}

/* ---- replicas ---- */

lap_status_t lap_nn_compare_replicas(lap_nn_t *nn, lap_group_t *replicas, lap_terms_t *terms,
                                     lap_status_t mine)
{
    lap_terms_number(terms, "ranks that share weights", (uint64_t)nn->list.plan.nranks);
    list_weights(&nn->list.plan, terms);
    if (nn->has_optimizer) {
        terms->prefix = "optimizer.";
        list_optimizer(&nn->optimizer, terms);
        terms->prefix = NULL;
    }
    return lap_terms_agree(terms, replicas, mine);
}

lap_status_t lap_nn_take_optimizer(lap_nn_t *nn, lap_group_t *group,
                                   const lap_optimizer_desc_t *desc, lap_status_t mine)
{
    lap_terms_t terms = {.of = "lap_optimizer_create"};
    if (mine == LAP_OK)
        list_optimizer(desc, &terms);
    lap_status_t status = lap_terms_agree(&terms, group, mine);
    if (nn->replicas)
        status = lap_terms_agree(&terms, nn->replicas, status);
    lap_terms_clear(&terms);
    LAP_TRY(status);
    nn->optimizer = *desc;
    nn->has_optimizer = true;
    return LAP_OK;
}
