/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows become configurations. What a row does not say follows from the software of its source, by
 * the rules of a table here: which overlap it had, whether attention was fused, how it counted
 * FLOPs. Micro-batches and virtual stages that were not published are those that are fastest.
 */
#include "plan/validate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <lap/status.h>

#include "nn/nn_fields.h"
#include "plan/search.h"
#include "util/alloc.h"

const char *const lap_plan_class_names[LAP_PLAN_CLASSES + 1] = {"counted", "fsdp", "other",
                                                                "refused", NULL};

/* How a source counts the FLOPs that it publishes. */
typedef enum counting {
    CAUSAL = 0, /* attention sees half of its scores */
    FULL,       /* all of them */
    HARDWARE,   /* all of them, and recomputation as well */
} counting_t;

typedef struct software {
    const char *source; /* part of its name */
    counting_t counting;
    bool counted;
    bool early; /* Megatron of 2021 and 2022: no overlap, unfused attention */
    bool fsdp;  /* shards weights over replicas */
} software_t;

/* The first that fits; what is not known shards no weights, unless its note says so. */
static const software_t softwares[] = {
    {"2104.04473", HARDWARE, .counted = true, .early = true},
    {"2205.05198", FULL, .counted = true, .early = true},
    {"tables.tex", HARDWARE, .counted = true, .early = true},
    {"Megatron-Bridge", CAUSAL, .counted = true},
    {"Megatron-LM", FULL, .counted = true},
    {"NeMo", FULL, .counted = true},
    {"dgxc", FULL, .counted = true},
    {"llm-foundry", FULL, .fsdp = true},
    {"torchtitan", FULL, .fsdp = true},
    {"Llama 3 paper", FULL, .fsdp = true},
    {"", FULL, .counted = false},
};

/* The machines by what a row calls its GPU: the first that fits. Cards have other peaks and links: none. */
static const char *const gpus[][2] = {
    {"GB300", "gb300"},   {"GB200", "gb200"}, /* an NVL72 is of these */
    {"PCIe", NULL},       {"NVL", NULL},        {"B200", "b200"},
    {"H200", "h200-sxm"}, {"H100", "h100-sxm"}, {"A100", "a100-sxm"}};

/* Whether a row's name of a GPU has these letters and digits, small or large. */
static bool has_name(const lap_plan_row_t *row, const char *name)
{
    const char *text = row->texts[LAP_ROW_GPU];
    while (*text && strncasecmp(text, name, strlen(name)) != 0)
        text++;
    return *text != '\0';
}

static const software_t *software_of(const lap_plan_row_t *row)
{
    const software_t *software = softwares;
    while (!strstr(row->texts[LAP_ROW_SOURCE], software->source))
        software++;
    return software;
}

static bool notes(const lap_plan_row_t *row, const char *words)
{
    return strstr(row->texts[LAP_ROW_NOTE], words) != NULL;
}

/* Megatron on an A100 is that of 2021, too. */
static bool is_early(const lap_plan_row_t *row)
{
    const software_t *software = software_of(row);
    return software->early ||
           (has_name(row, "A100") && strcmp(software->source, "Megatron-LM") == 0);
}

/* Whether a note has a word, and one that begins with `what` soon after it. */
static bool notes_near(const lap_plan_row_t *row, const char *word, const char *what)
{
    enum { NEAR = 32 };
    const char *at = row->texts[LAP_ROW_NOTE];
    while ((at = strstr(at, word)) != NULL) {
        const char *then = strstr(at, what);
        if (then && then - at < NEAR)
            return true;
        at++;
    }
    return false;
}

static lap_plan_recompute_t recompute_of(const lap_plan_row_t *row)
{
    if (notes_near(row, "elective", "recomput") || notes_near(row, "elective", "AC"))
        return LAP_PLAN_RECOMPUTE_SELECTIVE;
    if (notes_near(row, "full", "recomput") || notes_near(row, "Full", "recomput") ||
        notes_near(row, "full", "AC") || notes_near(row, "Full", "AC") ||
        notes_near(row, "checkpointing", "True") || is_early(row))
        return LAP_PLAN_RECOMPUTE_LAYER;
    return LAP_PLAN_RECOMPUTE_NONE;
}

/* Sequence parallelism came to Megatron with selective recomputation. */
static bool is_sequence_parallel(const lap_plan_row_t *row)
{
    if (!is_early(row))
        return true;
    if (notes_near(row, "no", "sequence parallel") ||
        notes_near(row, "without", "sequence parallel"))
        return false;
    return notes(row, "sequence parallel") || recompute_of(row) == LAP_PLAN_RECOMPUTE_SELECTIVE;
}

/* ---- the model ---- */

static size_t number(const lap_plan_row_t *row, int which)
{
    return (size_t)row->numbers[which];
}

/* Three matrices of an MLP make a model larger than two: which is nearer to its published size? */
static bool is_gated(const lap_plan_row_t *row)
{
    const double h = row->numbers[LAP_ROW_HIDDEN], ffn = row->numbers[LAP_ROW_FFN];
    const double heads = row->numbers[LAP_ROW_HEADS], kv_heads = row->numbers[LAP_ROW_KV_HEADS];
    const double kv = kv_heads > 0 ? kv_heads / fmax(heads, 1) : 1;
    const double layers = row->numbers[LAP_ROW_LAYERS];
    const double params = row->numbers[LAP_ROW_PARAMS_B] * 1e9;
    const double rest = h * row->numbers[LAP_ROW_VOCAB] + layers * h * h * (2 + 2 * kv);
    const double two = rest + layers * 2 * h * ffn, three = rest + layers * 3 * h * ffn;
    if (params > 0 && fabs(three - two) > 0.05 * params)
        return fabs(three - params) < fabs(two - params);
    return strstr(row->texts[LAP_ROW_MODEL], "lama") || strstr(row->texts[LAP_ROW_MODEL], "LLAMA");
}

static lap_nn_desc_t model_of(const lap_plan_row_t *row)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    const bool gated = is_gated(row);
    desc.kind = LAP_NN_MODEL;
    desc.layers = number(row, LAP_ROW_LAYERS);
    desc.hidden = number(row, LAP_ROW_HIDDEN);
    desc.ffn = number(row, LAP_ROW_FFN);
    desc.ffn = lap_nn_ffn(&desc);
    desc.heads = number(row, LAP_ROW_HEADS);
    desc.kv_heads = number(row, LAP_ROW_KV_HEADS);
    desc.kv_heads = lap_nn_kv_heads(&desc);
    desc.head_dim = desc.heads && desc.hidden % desc.heads == 0 ? desc.hidden / desc.heads : 0;
    desc.vocab = number(row, LAP_ROW_VOCAB);
    desc.seq = number(row, LAP_ROW_SEQ);
    desc.norm = gated ? LAP_RMSNORM : LAP_LAYERNORM;
    desc.activation = gated ? LAP_SWIGLU : LAP_GELU;
    desc.bias = !gated && desc.kv_heads == desc.heads;
    desc.positions =
        gated || desc.kv_heads < desc.heads ? LAP_POSITIONS_ROPE : LAP_POSITIONS_LEARNED;
    desc.tied = desc.positions == LAP_POSITIONS_LEARNED;
    return desc;
}

/* ---- the grid ---- */

static bool find_type(const char *text, lap_plan_type_t *type_p)
{
    static const struct {
        const char *name;
        lap_plan_type_t type;
    } names[] = {
        {"fp16", LAP_PLAN_FP16},    {"bf16", LAP_PLAN_BF16},     {"amp_bf16", LAP_PLAN_BF16},
        {"fp8", LAP_PLAN_FP8},      {"fp8-cs", LAP_PLAN_FP8},    {"amp_fp8", LAP_PLAN_FP8},
        {"mxfp8", LAP_PLAN_MXFP8},  {"fp8-mx", LAP_PLAN_MXFP8},  {"nvfp4", LAP_PLAN_FP4},
        {"float16", LAP_PLAN_FP16}, {"bfloat16", LAP_PLAN_BF16},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcasecmp(names[i].name, text) == 0) {
            *type_p = names[i].type;
            return true;
        }
    return false;
}

static lap_plan_config_t config_of(const lap_plan_row_t *row)
{
    const software_t *software = software_of(row);
    const bool early = is_early(row);
    const lap_nn_desc_t model = model_of(row);
    lap_plan_config_t config = lap_plan_config(&model);
    config.gpus = number(row, LAP_ROW_GPUS);
    config.tp = number(row, LAP_ROW_TP);
    config.pp = number(row, LAP_ROW_PP);
    config.cp = number(row, LAP_ROW_CP) ? number(row, LAP_ROW_CP) : 1;
    config.dp = number(row, LAP_ROW_DP);
    const size_t group = config.tp * config.pp * config.cp;
    if (config.dp == 0 && group > 0)
        config.dp = config.gpus / group;
    config.virtual_pp = number(row, LAP_ROW_VP);
    config.micro_batch = number(row, LAP_ROW_MBS);
    config.global_batch = number(row, LAP_ROW_GBS);
    config.fsdp = notes(row, "FSDP") || software->fsdp;
    config.unfused_attention = early;
    config.tp_overlap = config.dp_overlap = config.sharded_optimizer = !early;
    config.pp_overlap = !early && config.virtual_pp != 1; /* Megatron overlaps interleaved ones */
    config.sequence_parallel = is_sequence_parallel(row);
    config.recompute = recompute_of(row);
    return config;
}

/* ---- what was published ---- */

/* Seconds of a step, from the best of the figures that a row has. */
static double published_s(const lap_plan_row_t *row, const lap_plan_config_t *config)
{
    const double tokens = (double)config->global_batch * (double)config->model.seq;
    const double gpus_ = (double)config->gpus;
    if (row->numbers[LAP_ROW_STEP_S] > 0)
        return row->numbers[LAP_ROW_STEP_S];
    if (row->numbers[LAP_ROW_TOKENS] > 0)
        return tokens / (row->numbers[LAP_ROW_TOKENS] * gpus_);
    const counting_t counting = software_of(row)->counting;
    double flops = lap_plan_flops(config, counting == CAUSAL);
    if (counting == HARDWARE && config->recompute == LAP_PLAN_RECOMPUTE_LAYER)
        flops = flops * 4 / 3;
    return row->numbers[LAP_ROW_TFLOPS] > 0 ? flops / (row->numbers[LAP_ROW_TFLOPS] * 1e12 * gpus_)
                                            : 0;
}

static lap_plan_class_t class_of(const lap_plan_row_t *row, const lap_plan_config_t *config)
{
    if (config->fsdp)
        return LAP_PLAN_SHARDED;
    const bool known = has_name(row, "A100") || has_name(row, "H100");
    return software_of(row)->counted && known && config->type <= LAP_PLAN_FP8 ? LAP_PLAN_COUNTED
                                                                              : LAP_PLAN_OTHER;
}

/* ---- a row ---- */

static lap_status_t refuse(lap_plan_verdict_t *verdict, const char *why)
{
    verdict->class = LAP_PLAN_REFUSED;
    snprintf(verdict->why, sizeof(verdict->why), "%s", why);
    return LAP_OK;
}

static lap_status_t judge(const lap_plan_row_t *row, const lap_machine_t *machine,
                          lap_plan_verdict_t *verdict)
{
    lap_plan_config_t config = config_of(row);
    for (int i = LAP_ROW_LAYERS; i <= LAP_ROW_CP; i++)
        if (row->numbers[i] == 0 && i != LAP_ROW_MBS && i != LAP_ROW_VP && i != LAP_ROW_CP &&
            i != LAP_ROW_FFN && i != LAP_ROW_KV_HEADS)
            return refuse(verdict, "a size of the model or of the grid was not published");
    if (!find_type(row->texts[LAP_ROW_PRECISION], &config.type))
        return refuse(verdict, "its type of elements is not known");
    verdict->class = class_of(row, &config);
    const lap_status_t status = lap_plan_complete(&config, machine, &verdict->result);
    if (status == LAP_ERR_NO_MEMORY)
        return status;
    if (status != LAP_OK)
        return refuse(verdict, lap_last_error());
    verdict->config = config;
    verdict->published = published_s(row, &config);
    if (verdict->published <= 0)
        return refuse(verdict, "neither a time nor a rate was published");
    verdict->error = verdict->result.seconds / verdict->published - 1;
    return LAP_OK;
}

lap_status_t lap_plan_validate(const lap_plan_rows_t *rows, const char *machine,
                               lap_plan_verdict_t *verdicts)
{
    enum { GPUS = sizeof(gpus) / sizeof(gpus[0]) };
    lap_machine_t machines[GPUS];
    bool read[GPUS] = {false};
    for (size_t i = 0; i < rows->count; i++) {
        const lap_plan_row_t *row = &rows->list[i];
        size_t gpu = 0;
        verdicts[i] = (lap_plan_verdict_t){.class = LAP_PLAN_REFUSED};
        while (gpu < GPUS && !machine && !has_name(row, gpus[gpu][0]))
            gpu++;
        if (gpu == GPUS || (!machine && !gpus[gpu][1])) {
            LAP_TRY(refuse(&verdicts[i], "there is no description of its GPU"));
            continue;
        }
        if (!read[gpu])
            LAP_TRY(lap_machine_load(machine ? machine : gpus[gpu][1], &machines[gpu]));
        read[gpu] = true;
        LAP_TRY(judge(row, &machines[gpu], &verdicts[i]));
    }
    return LAP_OK;
}

/* ---- errors ---- */

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Between the two that are nearest. */
static double quantile(const double *sorted, size_t count, double part)
{
    const double at = part * (double)(count - 1);
    const size_t below = (size_t)at, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

lap_plan_errors_t lap_plan_errors(const lap_plan_verdict_t *verdicts, size_t count,
                                  lap_plan_class_t class)
{
    lap_plan_errors_t errors = {.rows = 0};
    double *sorted = lap_alloc(count + 1, sizeof(*sorted));
    size_t within = 0;
    for (size_t i = 0; sorted && i < count; i++) {
        if (verdicts[i].class != class)
            continue;
        sorted[errors.rows] = fabs(verdicts[i].error);
        within += sorted[errors.rows] <= 0.2;
        errors.rows++;
    }
    if (errors.rows > 0) {
        qsort(sorted, errors.rows, sizeof(*sorted), compare);
        errors.median = quantile(sorted, errors.rows, 0.5);
        errors.p90 = quantile(sorted, errors.rows, 0.9);
        errors.within = (double)within / (double)errors.rows;
    }
    lap_free(sorted);
    return errors;
}
