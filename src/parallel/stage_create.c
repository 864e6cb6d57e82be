/* SPDX-License-Identifier: Apache-2.0 */
/* Making a rank of a pipeline: its layers, and the groups and buffers of its messages; and its end. */
#include <stdio.h>

#include "core/status.h"
#include "core/world.h"
#include "overlap/op.h"
#include "parallel/stage.h"
#include "parallel/stage_run.h"
#include "util/alloc.h"

/* ---- making ---- */

/* Local: all that needs no other rank. */
static lap_status_t plan(lap_pp_t *pp, lap_group_t *group, const lap_nn_desc_t *desc,
                         const lap_pp_options_t *given, lap_nn_cut_t *cut_p, lap_terms_t *terms)
{
    lap_nn_plan_t whole = {.nranks = group->size};
    LAP_TRY(lap_stage_options(given, &pp->options));
    LAP_TRY(lap_nn_plan_init(desc, group->size, &whole));
    LAP_TRY(lap_stage_plan(&whole.desc, pp->pipeline->size, &pp->options, &pp->stages));
    LAP_TRY(lap_stages_cut(&pp->stages, (uint32_t)pp->pipeline->rank, cut_p));
    pp->peers = lap_alloc(pp->stages.npairs + 1, sizeof(*pp->peers));
    pp->counted = lap_alloc(pp->stages.micros, sizeof(*pp->counted));
    if (!pp->peers || !pp->counted)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a pipeline of %d ranks",
                         pp->pipeline->size);
    lap_terms_text(terms, "schedule", pp->options.schedule);
    lap_terms_number(terms, "micro_batches", pp->options.micro_batches);
    lap_terms_number(terms, "stages", pp->stages.stages);
    lap_terms_number(terms, "overlap", pp->options.overlap != 0);
    for (uint32_t s = 0; s < pp->stages.stages; s++) {
        char name[40];
        snprintf(name, sizeof(name), "layers of stage %u", (unsigned)s);
        lap_terms_number(terms, name, pp->stages.layers[s]);
    }
    lap_terms_number(terms, "ranks that share layers", (uint64_t)group->size);
    lap_nn_list_terms(&whole, terms);
    return LAP_OK;
}

/* The groups of two ranks. Collective over the pipeline. */
static lap_status_t split_pairs(lap_pp_t *pp)
{
    for (uint32_t i = 0; i < pp->stages.npairs; i++) {
        const uint32_t *ranks = pp->stages.pairs[i].ranks, own = (uint32_t)pp->pipeline->rank;
        const bool in = ranks[0] == own || ranks[1] == own;
        LAP_TRY(lap_group_split(pp->pipeline, in ? 0 : LAP_NO_GROUP, pp->pipeline->rank,
                                &pp->peers[i].group));
    }
    return LAP_OK;
}

static size_t message_bytes(const lap_pp_t *pp)
{
    const lap_nn_list_t *list = &pp->nn->list;
    const lap_nn_region_t *x = &list->regions[list->slots[0].x];
    return x->rows * x->cols * lap_dtype_size(x->dtype);
}

/* Collective over both ranks of a pair. */
static lap_status_t make_buffers(lap_pp_t *pp, lap_stage_peer_t *peer)
{
    for (uint32_t b = 0; b < LAP_STAGE_BUFFERS; b++) {
        LAP_TRY(lap_buffer_create(peer->group, message_bytes(pp), lap_signal_count(2),
                                  pp->options.buffer_options, &peer->buffers[b]));
        lap_target_t target = lap_target_of(pp->nn->engine->device->ops, peer->buffers[b]->ops);
        target.device.graphs = target.device.graphs && !peer->buffers[b]->no_graphs &&
                               (!pp->target.name || pp->target.device.graphs); /* of all */
        pp->target = target;
    }
    return LAP_OK;
}

static const lap_stage_kind_t tied_calls[] = {LAP_STAGE_SCATTER, LAP_STAGE_GATHER};

static lap_status_t tied_buffer_size(const lap_pp_t *pp, size_t *bytes_p, size_t *nsignals_p)
{
    *bytes_p = *nsignals_p = 0;
    for (int k = 0; k < 2; k++) {
        const lap_op_desc_t desc = lap_stage_tied_desc(&pp->nn->list, tied_calls[k]);
        size_t bytes, nsignals;
        LAP_TRY(lap_op_buffer_size(&desc, 2, &bytes, &nsignals));
        *bytes_p = bytes > *bytes_p ? bytes : *bytes_p;
        *nsignals_p = nsignals > *nsignals_p ? nsignals : *nsignals_p;
    }
    return LAP_OK;
}

/* Collective over the two ranks that have tied weights. */
static lap_status_t make_tied(lap_pp_t *pp, lap_stage_peer_t *peer)
{
    const lap_nn_weight_t *weight = lap_stage_tied(&pp->nn->list);
    lap_device_t *device = pp->nn->engine->device;
    size_t bytes, nsignals;
    LAP_TRY(lap_group_agree(peer->group, tied_buffer_size(pp, &bytes, &nsignals)));
    LAP_TRY(lap_buffer_create(peer->group, bytes, nsignals, pp->options.buffer_options,
                              &peer->buffers[0]));
    for (int k = 0; k < 2; k++) {
        lap_op_desc_t desc = lap_stage_tied_desc(&pp->nn->list, tied_calls[k]);
        desc.buffer = peer->buffers[0];
        LAP_TRY(lap_op_create(peer->group, &desc, &pp->tied[k]));
        lap_op_drop_runnables(pp->tied[k]);
    }
    return device->ops->alloc(device, weight->rows * weight->param.cols * sizeof(float), &pp->sum);
}

/*
 * What each pair needs, one after the other: a rank of two pairs that fails with one of its peers does not leave the
 * other to wait. Collective over the pipeline.
 */
static lap_status_t make_pairs(lap_pp_t *pp)
{
    for (uint32_t i = 0; i < pp->stages.npairs; i++) {
        lap_stage_peer_t *peer = &pp->peers[i];
        lap_status_t status = LAP_OK;
        if (peer->group)
            status = pp->stages.pairs[i].tied ? make_tied(pp, peer) : make_buffers(pp, peer);
        LAP_TRY(lap_group_agree(pp->pipeline, status));
    }
    return LAP_OK;
}

/* ---- create, destroy ---- */

static lap_status_t fill(lap_pp_t *pp, lap_group_t *group, const lap_nn_desc_t *desc,
                         const lap_nn_cut_t *cut)
{
    LAP_TRY(lap_group_agree(pp->pipeline, lap_nn_create_stage(group, desc, cut, &pp->nn)));
    pp->nn->end_stage = lap_stage_end;
    pp->nn->prove_stage = lap_stage_prove_own;
    pp->nn->stage = pp;
    LAP_TRY(split_pairs(pp));
    LAP_TRY(make_pairs(pp));
    LAP_TRY(lap_stage_choices_share(&pp->choices, pp->nn, pp->pipeline));
    LAP_TRY(lap_group_agree(pp->pipeline, desc->debug ? lap_stage_prove_own(pp) : LAP_OK));
    return lap_group_agree(pp->pipeline,
                           lap_stage_get_program(pp, pp->nn->list.plan.desc.seq, false));
}

lap_status_t lap_pp_create(lap_group_t *group, lap_group_t *pipeline, const lap_nn_desc_t *desc,
                           const lap_pp_options_t *options, lap_pp_t **pp_p)
{
    if (!group || !pipeline || !pp_p)
        return lap_error(LAP_ERR_INVALID, "lap_pp_create: %s is NULL",
                         !group      ? "group"
                         : !pipeline ? "pipeline"
                                     : "pp_p");
    lap_pp_t *pp = lap_alloc(1, sizeof(*pp));
    lap_terms_t terms = {.of = "lap_pp_create"};
    lap_nn_cut_t cut;
    lap_status_t status = LAP_OK;
    const char *before = lap_enter(group->world, "lap_pp_create");
    if (pp) {
        pp->pipeline = lap_group_keep(pipeline);
        status = plan(pp, group, desc, options, &cut, &terms);
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a pipeline");
    }
    /* What a pipeline fails of fails those, too, that share layers with its ranks. */
    status = lap_group_agree(group, lap_terms_agree(&terms, pipeline, status));
    lap_terms_clear(&terms);
    if (status == LAP_OK)
        status = lap_group_agree(group, fill(pp, group, desc, &cut));
    lap_leave(group->world, before);
    if (status != LAP_OK) {
        lap_pp_destroy(pp);
        return status;
    }
    *pp_p = pp;
    return LAP_OK;
}

void lap_pp_destroy(lap_pp_t *pp)
{
    lap_saved_error_t saved;
    if (!pp)
        return;
    lap_error_save(&saved);
    if (pp->nn)
        (void)lap_stage_end(pp, true);
    lap_exec_destroy(pp->exec);
    lap_stage_program_clear(&pp->program);
    lap_op_destroy(pp->tied[0]);
    lap_op_destroy(pp->tied[1]);
    if (pp->sum)
        pp->nn->engine->device->ops->free(pp->nn->engine->device, pp->sum);
    for (uint32_t i = 0; pp->peers && i < pp->stages.npairs; i++) {
        for (uint32_t b = 0; b < LAP_STAGE_BUFFERS; b++)
            lap_buffer_destroy(pp->peers[i].buffers[b]);
        lap_group_destroy(pp->peers[i].group);
    }
    if (pp->nn) { /* what was made for the layers may still be there */
        pp->nn->end_stage = NULL;
        pp->nn->prove_stage = NULL;
    }
    lap_nn_destroy(pp->nn);
    lap_stage_choices_clear(&pp->choices);
    lap_stages_clear(&pp->stages);
    lap_group_t *pipeline = pp->pipeline;
    lap_free(pp->peers);
    lap_free(pp->counted);
    lap_free(pp->clocks);
    lap_free(pp);
    lap_group_let_go(pipeline);
    lap_error_restore(&saved);
}

lap_nn_t *lap_pp_layers(lap_pp_t *pp)
{
    return pp ? pp->nn : NULL;
}
