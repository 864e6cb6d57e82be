/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of a context: a layer with the GEMMs of one tensor-parallel rank is listed, linked and lowered
 * for all ranks of a context, as training runs it, and simulated. What it takes longer than with
 * infinitely fast wires is exposed: keys and values, and their gradients, on their way.
 */
#include <math.h>

#include "core/status.h"
#include "plan/coster.h"

#define FEW 8 /* ranks; in its middle a ring repeats itself: of many steps only some are played */
#define MORE 16

/* Of a pass through the layer: not hidden, and on the wire. */
typedef struct ring {
    double exposed[LAP_PLAN_PASSES], wire_s[LAP_PLAN_PASSES];
} ring_t;

/* A rank of a tensor-parallel group by itself, in a context of so many such ranks. */
static lap_nn_desc_t describe(const lap_plan_config_t *config, const lap_nn_desc_t *layer,
                              size_t ranks, lap_tp_overlap_t *overlap)
{
    lap_nn_desc_t desc = *layer;
    const size_t vocab = layer->vocab / config->tp;
    desc.heads = layer->heads / config->tp;
    desc.kv_heads = layer->kv_heads / config->tp;
    desc.ffn = layer->ffn / config->tp;
    desc.vocab = vocab > 0 ? vocab : 1;
    desc.seq = layer->seq * ranks;
    desc.cp = ranks;
    desc.cp_comm = LAP_CP_P2P;
    desc.cp_overlap = config->cp_overlap;
    desc.sequence_parallel = 0;
    desc.overlap = overlap;
    if (desc.positions == LAP_POSITIONS_LEARNED)
        desc.max_positions = desc.seq;
    return desc;
}

/* What rank 0 took longer with the wires, by pass: all ranks have as much to do. */
static void share_time(const lap_plan_coster_t *coster, ring_t *ring)
{
    double ended[2] = {0, 0};
    for (uint32_t f = 0; f < coster->linked->nfragments; f++) {
        const bool backward =
            coster->linked->fragments[f].origin >= coster->list->parts[LAP_NN_BACKWARD];
        const int pass = backward ? LAP_PLAN_BACKWARD : LAP_PLAN_FORWARD;
        double took[2], puts;
        for (int fast = 0; fast < 2; fast++) {
            const double end = coster->spans[fast][f].end;
            took[fast] = end > ended[fast] ? end - ended[fast] : 0;
            ended[fast] += took[fast];
        }
        const double bytes = lap_plan_wire_bytes(coster, f, &puts);
        ring->exposed[pass] += took[0] - took[1];
        ring->wire_s[pass] += bytes / lap_wire_rate(coster->wire) + puts * coster->wire->latency_s;
    }
}

/* A ring of so many ranks, each with as many tokens as those of the context. */
static lap_status_t play(lap_plan_coster_t coster, const lap_nn_desc_t *layer, size_t ranks,
                         ring_t *ring_p)
{
    lap_tp_overlap_t overlap;
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    *ring_p = (ring_t){.wire_s = {0}};
    LAP_TRY(lap_tp_overlap_init(1, &overlap));
    const lap_nn_desc_t desc = describe(coster.config, layer, ranks, &overlap);
    LAP_TRY(lap_nn_plan_init(&desc, 1, &plan));
    const lap_status_t status = lap_plan_coster_play(&coster, &plan, &programs);
    if (status == LAP_OK)
        share_time(&coster, ring_p);
    lap_plan_coster_clear(&coster);
    lap_nn_programs_clear(&programs);
    return status;
}

static lap_status_t play_all(lap_plan_coster_t coster, const lap_nn_desc_t *layer, ring_t *ring_p)
{
    const size_t ranks = coster.config->cp;
    ring_t few;
    if (ranks <= MORE)
        return play(coster, layer, ranks, ring_p);
    LAP_TRY(play(coster, layer, FEW, &few));
    LAP_TRY(play(coster, layer, MORE, ring_p));
    const double times = (double)(ranks - MORE) / (MORE - FEW);
    for (int pass = 0; pass < LAP_PLAN_PASSES; pass++) {
        ring_p->exposed[pass] += times * (ring_p->exposed[pass] - few.exposed[pass]);
        ring_p->wire_s[pass] += times * (ring_p->wire_s[pass] - few.wire_s[pass]);
    }
    return LAP_OK;
}

lap_status_t lap_plan_add_ring(const lap_plan_config_t *config, const lap_machine_t *machine,
                               const lap_nn_desc_t *layer, lap_plan_span_t spans[LAP_PLAN_PASSES])
{
    const lap_plan_coster_t coster = {.config = config,
                                      .machine = machine,
                                      .wire = lap_machine_wire(machine, config->tp * config->cp)};
    ring_t ring;
    if (config->cp == 1)
        return LAP_OK;
    LAP_TRY(play_all(coster, layer, &ring));
    for (int pass = 0; pass < LAP_PLAN_PASSES; pass++) {
        /* Without overlap, what happens to be hidden all the same does not count. */
        ring.exposed[pass] = fmax(ring.exposed[pass], config->cp_overlap ? 0 : ring.wire_s[pass]);
        spans[pass].cp_s += ring.wire_s[pass];
        spans[pass].cp += ring.exposed[pass];
        spans[pass].seconds += ring.exposed[pass];
    }
    return LAP_OK;
}
