/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The costs of a layer: a model with one layer is listed and linked for a tensor-parallel group, as
 * it is to run it, and simulated with the rates of a machine. It is played twice, with the wires
 * that there are and with infinitely fast ones: the difference is exposed communication.
 */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "plan/coster.h"
#include "plan/kernels.h"
#include "schedule/range.h"
#include "util/alloc.h"

const char *const lap_plan_recompute_names[LAP_PLAN_RECOMPUTES + 1] = {"none", "selective", "full",
                                                                       "layer", NULL};

typedef lap_plan_coster_t coster_t;

/* ---- the description of what is listed ---- */

static lap_fp8_recipe_t recipe_of(lap_plan_type_t type)
{
    return type >= LAP_PLAN_FP8 ? LAP_FP8_DELAYED : LAP_FP8_NONE;
}

static lap_dtype_t dtype_of(lap_plan_type_t type)
{
    return type == LAP_PLAN_FP32 ? LAP_FLOAT32 : type == LAP_PLAN_FP16 ? LAP_FLOAT16 : LAP_BFLOAT16;
}

static lap_status_t choose_overlap(const lap_plan_config_t *config, lap_tp_overlap_t *overlap_p)
{
    LAP_TRY(lap_tp_overlap_init((int)config->tp, overlap_p));
    for (int i = 0; i < LAP_TP_GEMMS && !config->tp_overlap; i++)
        overlap_p->rules[i].method = LAP_TP_SERIAL;
    return LAP_OK;
}

static lap_status_t describe(const lap_plan_config_t *config, lap_tp_overlap_t *overlap,
                             lap_nn_plan_t *plan_p)
{
    lap_nn_desc_t desc = config->model;
    LAP_TRY(choose_overlap(config, overlap));
    desc.kind = LAP_NN_MODEL;
    desc.layers = 1;
    desc.seq = config->model.seq / config->cp;
    desc.batch = config->micro_batch;
    desc.dtype = dtype_of(config->type);
    desc.fp8 = recipe_of(config->type);
    desc.sequence_parallel = config->sequence_parallel && config->tp > 1;
    desc.recompute = config->recompute == LAP_PLAN_RECOMPUTE_LAYER
                         ? LAP_RECOMPUTE_NONE
                         : (lap_recompute_t)config->recompute;
    desc.overlap = overlap;
    if (desc.positions == LAP_POSITIONS_LEARNED)
        desc.max_positions = config->model.seq;
    return lap_nn_plan_init(&desc, (int)config->tp, plan_p);
}

/* ---- kernels ---- */

static double region_bytes(const lap_nn_region_t *region)
{
    return (double)region->rows * (double)region->cols * (double)lap_dtype_size(region->dtype);
}

/* Scores of a rank's heads and tokens, of which a causal mask leaves half. */
static double scores_of(const coster_t *coster)
{
    const lap_plan_config_t *config = coster->config;
    const lap_nn_desc_t *desc = &config->model;
    const double seq = (double)desc->seq;
    return seq * seq / (double)config->cp * (double)desc->heads / (double)config->tp *
           (double)config->micro_batch;
}

static double head_dim_of(const coster_t *coster)
{
    return (double)coster->list->plan.desc.head_dim;
}

/* Bytes of a score that unfused attention moves: products, mask and softmax, dropout, products. */
#define SCORE_BYTES_FORWARD 13.0
#define SCORE_BYTES_BACKWARD 21.0

static double unfused_s(const coster_t *coster, bool backward)
{
    const lap_plan_config_t *config = coster->config;
    const lap_machine_t *machine = coster->machine;
    const lap_plan_type_t type = dtype_of(config->type) == LAP_FLOAT16   ? LAP_PLAN_FP16
                                 : dtype_of(config->type) == LAP_FLOAT32 ? LAP_PLAN_FP32
                                                                         : LAP_PLAN_BF16;
    const double flops = 2 * scores_of(coster) * head_dim_of(coster); /* of one of its GEMMs */
    const double gemms = backward ? 4 : 2;
    return gemms * lap_machine_gemm_s(machine, type, flops) +
           scores_of(coster) * (backward ? SCORE_BYTES_BACKWARD : SCORE_BYTES_FORWARD) /
               lap_machine_memory_rate(machine);
}

/* Fused attention: two products forward, five backward, of half of the scores. */
static double attention_s(const coster_t *coster, bool backward)
{
    const lap_plan_config_t *config = coster->config;
    const lap_machine_t *machine = coster->machine;
    if (config->unfused_attention)
        return unfused_s(coster, backward);
    const double flops = (backward ? 5 : 2) * scores_of(coster) * head_dim_of(coster);
    const lap_curve_t *curve =
        backward ? &machine->attention_backward : &machine->attention_forward;
    const lap_plan_type_t type = config->type == LAP_PLAN_FP32 ? LAP_PLAN_FP32 : LAP_PLAN_BF16;
    const double tokens = (double)config->model.seq / (double)config->cp;
    return flops / (machine->peak[type] * lap_curve_at(curve, tokens));
}

/* Bytes per second of a kernel. */
static double kernel_rate(const lap_machine_t *machine, lap_plan_kernel_t kernel)
{
    const double rate = kernel < LAP_PLAN_KERNELS ? machine->kernels[kernel] : 0;
    return rate > 0 ? rate : lap_machine_memory_rate(machine);
}

/* A kernel of an entry. Embeddings read the rows of tokens, not the table. */
static double kernel_s(const coster_t *coster, const lap_nn_entry_t *entry)
{
    const lap_nn_region_t *regions = coster->list->regions;
    switch (entry->work) {
    case LAP_NN_ATTEND:
        return attention_s(coster, false);
    case LAP_NN_ATTEND_BACKWARD:
        return attention_s(coster, true);
    case LAP_NN_ATTEND_BLOCK: /* of a context: all have as many scores */
        return attention_s(coster, false) / (double)coster->config->cp;
    case LAP_NN_ATTEND_BLOCK_BACKWARD:
        return attention_s(coster, true) / (double)coster->config->cp;
    case LAP_NN_EMBED:
    case LAP_NN_EMBED_BACKWARD: {
        const uint32_t x = entry->work == LAP_NN_EMBED ? entry->writes[0] : entry->reads[0];
        const lap_nn_region_t *rows = &regions[x];
        return 3.0 * (double)rows->rows * (double)rows->cols * (double)lap_dtype_size(rows->dtype) /
               lap_machine_memory_rate(coster->machine);
    }
    case LAP_NN_ACTIVATE: /* a GELU that no GEMM ends with */
        return lap_plan_kernel_bytes(coster->list, entry) /
                   lap_machine_memory_rate(coster->machine) +
               region_bytes(&regions[entry->writes[0]]) *
                   lap_machine_finish(coster->machine, LAP_EPILOGUE_GELU);
    default:
        return lap_plan_kernel_bytes(coster->list, entry) /
               kernel_rate(coster->machine, lap_plan_kernel_of(entry->work));
    }
}

/* ---- operators ---- */

static lap_plan_type_t type_of(const coster_t *coster, const lap_schedule_t *schedule)
{
    const lap_plan_type_t wide = coster->config->type;
    if (lap_dtype_is_fp8(schedule->types.a))
        return wide;
    return wide >= LAP_PLAN_FP8 ? LAP_PLAN_BF16 : wide;
}

static lap_cost_t cost_of(const coster_t *coster, uint32_t f, bool fast)
{
    const lap_schedule_t *schedule = &coster->linked->fragments[f].schedule;
    return lap_machine_cost(coster->machine, fast ? NULL : coster->wire, type_of(coster, schedule),
                            schedule, coster->ranks);
}

double lap_plan_wire_bytes(const lap_plan_coster_t *coster, uint32_t f, double *puts_p)
{
    const lap_schedule_t *schedule = &coster->linked->fragments[f].schedule;
    double bytes = 0;
    *puts_p = 0;
    for (uint32_t s = 0; s < schedule->nsteps && schedule->size > 1; s++) {
        const lap_step_t *step = &schedule->steps[s];
        /* Of a put without a signal the raise after it counts. */
        if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE)
            bytes += (double)step->signal.bytes;
        *puts_p += step->kind == LAP_STEP_PUT;
    }
    return bytes;
}

/* ---- playing ---- */

static void set_costs(coster_t *coster, bool fast)
{
    for (uint32_t f = 0; f < coster->linked->nfragments; f++) {
        const lap_nn_entry_t *entry = &coster->list->entries[coster->linked->fragments[f].origin];
        coster->costs[f] = cost_of(coster, f, fast);
        coster->fragments[f] = (lap_fragment_cost_t){
            .cost = &coster->costs[f],
            .kernel_s = entry->work == LAP_NN_OPERATOR ? 0 : kernel_s(coster, entry),
            .finish = lap_machine_finish(coster->machine,
                                         coster->linked->fragments[f].schedule.epilogue)};
    }
}

static lap_status_t play(coster_t *coster, const lap_nn_programs_t *programs)
{
    const size_t count = coster->linked->nfragments;
    lap_simulated_t simulated;
    coster->costs = lap_alloc(count, sizeof(*coster->costs));
    coster->fragments = lap_alloc(count, sizeof(*coster->fragments));
    coster->spans[0] = lap_alloc(count, sizeof(*coster->spans[0]));
    coster->spans[1] = lap_alloc(count, sizeof(*coster->spans[1]));
    if (!coster->costs || !coster->fragments || !coster->spans[0] || !coster->spans[1])
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %zu fragments", count);
    for (int fast = 0; fast < 2; fast++) {
        set_costs(coster, fast);
        LAP_TRY(lap_linked_simulate(programs->list, programs->size, coster->fragments, &simulated,
                                    0, coster->spans[fast]));
    }
    return LAP_OK;
}

lap_status_t lap_plan_coster_play(lap_plan_coster_t *coster, const lap_nn_plan_t *plan,
                                  lap_nn_programs_t *programs)
{
    const lap_target_t *target;
    lap_nn_linking_t linking = {.more = true};
    LAP_TRY(lap_target_find("cuda", &target));
    linking.target = target;
    LAP_TRY(lap_nn_programs_init(programs, plan, &linking));
    coster->list = &programs->lists[0];
    coster->linked = &programs->programs[0];
    coster->ranks = programs->size;
    return play(coster, programs);
}

void lap_plan_coster_clear(lap_plan_coster_t *coster)
{
    lap_free(coster->costs);
    lap_free(coster->fragments);
    lap_free(coster->spans[0]);
    lap_free(coster->spans[1]);
}

/* ---- whose time it is ---- */

/* What a fragment belongs to; vectors' gradients and sums follow what was before them. */
static lap_plan_span_t *owner_of(const coster_t *coster, uint32_t f, lap_plan_span_t *before,
                                 lap_plan_layer_t *layer)
{
    const uint32_t index = coster->linked->fragments[f].origin;
    const lap_nn_entry_t *entry = &coster->list->entries[index];
    const int pass =
        index >= coster->list->parts[LAP_NN_BACKWARD] ? LAP_PLAN_BACKWARD : LAP_PLAN_FORWARD;
    const uint32_t head = (uint32_t)coster->list->plan.nblocks - 1;
    const bool of_none = entry->block == LAP_NN_NONE;
    if (entry->work == LAP_NN_EMBED || entry->work == LAP_NN_EMBED_BACKWARD ||
        (of_none && strcmp(entry->name, "embedding") == 0)) /* the gather of its gradient */
        return &layer->embedding[pass];
    if (index >= coster->list->parts[LAP_NN_LOSS_PART] && pass == LAP_PLAN_FORWARD)
        return &layer->head[pass];
    if (of_none)
        return before ? before : &layer->embedding[pass];
    return entry->block == head ? &layer->head[pass] : &layer->layer[pass];
}

static bool is_weight_grad(const coster_t *coster, uint32_t f)
{
    const lap_nn_entry_t *entry = &coster->list->entries[coster->linked->fragments[f].origin];
    return entry->work == LAP_NN_OPERATOR && entry->block < 2 &&
           coster->list->steps[entry->index].gemm % 3 == 2;
}

/* The time from when all fragments before have ended to its own end is a fragment's owner's. */
static void share_time(const coster_t *coster, lap_plan_layer_t *layer)
{
    const uint32_t count = coster->linked->nfragments;
    lap_plan_span_t *owner = NULL;
    double ended[2] = {0, 0}, puts;
    for (uint32_t f = 0; f < count; f++) {
        double took[2];
        owner = owner_of(coster, f, owner, layer);
        for (int fast = 0; fast < 2; fast++) {
            const double end = fmax(ended[fast], coster->spans[fast][f].end);
            took[fast] = end - ended[fast];
            ended[fast] = end;
        }
        owner->seconds += took[0];
        owner->compute += took[1];
        owner->tp += took[0] - took[1];
        owner->tp_s += lap_plan_wire_bytes(coster, f, &puts) / lap_wire_rate(coster->wire);
        if (is_weight_grad(coster, f))
            layer->weight_grad += took[1];
    }
}

/*
 * Without overlap nothing is computed while data travel: what a call itself issues meanwhile hides nothing, and the layer takes
 * as long.
 */
static void expose(lap_plan_span_t spans[LAP_PLAN_PASSES])
{
    for (int pass = 0; pass < LAP_PLAN_PASSES; pass++) {
        lap_plan_span_t *span = &spans[pass];
        const double hidden = fmax(0, fmin(span->tp_s - span->tp, span->compute));
        span->tp += hidden;
        span->compute -= hidden;
    }
}

/* ---- memory ---- */

/* What forward makes and backward uses. */
static bool is_saved(const lap_nn_list_t *list, const lap_nn_region_t *region)
{
    return region->memory == LAP_NN_PRIVATE && region->part_of == LAP_NN_NONE &&
           region->first < list->parts[LAP_NN_LOSS_PART] &&
           region->last == list->parts[LAP_NN_LOOK_GRADIENTS];
}

static void count_memory(const coster_t *coster, lap_plan_layer_t *layer)
{
    const lap_nn_list_t *list = coster->list;
    const uint32_t head = (uint32_t)list->plan.nblocks - 1;
    double copies = 0;
    for (uint32_t i = 0; i < list->nregions; i++) {
        const lap_nn_region_t *region = &list->regions[i];
        if (is_saved(list, region) && region->block < head)
            layer->saved_bytes += region_bytes(region);
        else if (is_saved(list, region))
            layer->head_bytes += region_bytes(region);
    }
    layer->work_bytes = fmax(0, (double)list->bytes[LAP_NN_PRIVATE] - layer->saved_bytes);
    if (coster->config->recompute == LAP_PLAN_RECOMPUTE_LAYER) {
        layer->work_bytes += layer->saved_bytes;
        layer->saved_bytes = region_bytes(&list->regions[list->blocks[0].x]);
    }
    for (uint32_t i = 0; i < list->nweights; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        const double count = (double)weight->param.rows * (double)weight->param.cols;
        const bool of_layer = weight->layer < list->plan.desc.layers;
        const bool of_embedding = weight == list->embedding || weight == list->positions;
        *(of_layer       ? &layer->weights
          : of_embedding ? &layer->embedding_weights
                         : &layer->head_weights) += count;
        if (!of_layer)
            continue;
        copies += weight->copy != weight->master ? region_bytes(&list->regions[weight->copy]) : 0;
        copies += weight->turned != weight->copy && !weight->plain
                      ? region_bytes(&list->regions[weight->turned])
                      : 0;
    }
    layer->weight_bytes = copies / layer->weights;
}

/* ---- all of it ---- */

static void recompute_layer(lap_plan_layer_t *layer)
{
    const lap_plan_span_t *forward = &layer->layer[LAP_PLAN_FORWARD];
    lap_plan_span_t *backward = &layer->layer[LAP_PLAN_BACKWARD];
    backward->seconds += forward->seconds;
    backward->compute += forward->compute;
    backward->tp += forward->tp;
    backward->tp_s += forward->tp_s;
    backward->cp += forward->cp;
    backward->cp_s += forward->cp_s;
}

lap_status_t lap_plan_layer(const lap_plan_config_t *config, const lap_machine_t *machine,
                            lap_plan_layer_t *layer_p)
{
    coster_t coster = {
        .config = config, .machine = machine, .wire = lap_machine_wire(machine, config->tp)};
    lap_plan_layer_t layer = {.weights = 0};
    lap_nn_programs_t programs = {.size = 0};
    lap_tp_overlap_t overlap;
    lap_nn_plan_t plan = {.nranks = 1};
    LAP_TRY(lap_plan_check(config, machine));
    LAP_TRY(describe(config, &overlap, &plan));
    lap_status_t status = lap_plan_coster_play(&coster, &plan, &programs);
    if (status == LAP_OK) {
        share_time(&coster, &layer);
        if (!config->tp_overlap) {
            expose(layer.layer);
            expose(layer.embedding);
            expose(layer.head);
        }
        count_memory(&coster, &layer);
    }
    lap_plan_coster_clear(&coster);
    lap_nn_programs_clear(&programs);
    if (status == LAP_OK)
        status = lap_plan_add_ring(config, machine, &plan.desc, layer.layer);
    if (status != LAP_OK)
        return status;
    if (config->recompute == LAP_PLAN_RECOMPUTE_LAYER)
        recompute_layer(&layer);
    *layer_p = layer;
    return LAP_OK;
}
