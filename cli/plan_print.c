/* SPDX-License-Identifier: Apache-2.0 */
/* Prints plans: tables for people, JSON for programs. */
#include <stdio.h>

#include "about.h"
#include "cli.h"
#include "plan.h"
#include "table.h"

#define GB 1e9

static void print_heading(const lap_plan_request_t *request)
{
    const lap_plan_config_t *config = &request->config;
    printf("%s on %zu x %s, %s, %zu tokens x %zu sequences a step%s\n", request->model,
           config->gpus, request->machine.name, lap_plan_type_names[config->type],
           config->model.seq, config->global_batch, config->fsdp ? ", FSDP" : "");
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* "tp 8, pp 4, cp 2, dp 16" */
static void print_grid(const lap_plan_config_t *config)
{
    printf("tp %zu, pp %zu, cp %zu, dp %zu", config->tp, config->pp, config->cp, config->dp);
}

/* ---- what it costs ---- */

/* Of a GPU: without --power its own limit, if the description has it; 0: not known. */
static double watts(const lap_plan_request_t *request)
{
    return request->power_w > 0 ? request->power_w : request->machine.power_w;
}

static double energy_j(const lap_plan_request_t *request, const lap_plan_result_t *result)
{
    return watts(request) * (double)request->config.gpus * result->seconds;
}

static double money(const lap_plan_request_t *request, const lap_plan_result_t *result)
{
    return request->price * (double)request->config.gpus * result->seconds / 3600;
}

static void print_costs(const lap_plan_request_t *request, const lap_plan_result_t *result)
{
    const double tokens = result->tokens_per_s * result->seconds;
    if (request->price > 0)
        printf("cost      %.2f a step, %.2f a billion tokens\n", money(request, result),
               money(request, result) / tokens * 1e9);
    if (watts(request) > 0)
        printf("energy    %.2f kWh a step, %.1f kWh a billion tokens%s\n",
               energy_j(request, result) / 3.6e6, energy_j(request, result) / 3.6e6 / tokens * 1e9,
               request->power_w > 0 ? "" : ", of GPUs alone at their limit");
}

/* ---- the table ---- */

static const char choices[] =
    "%4[tp] %4[pp] %4[cp] %6[dp] %4[vpp] %6[micro]  %-11[schedule]  %-9[recompute]  %9[step s]  "
    "%11[tokens/s]  %5[MFU %]  %7[GB/GPU]  %7[bubble %]";

static void print_choice(const lap_plan_choice_t *choice)
{
    const lap_plan_config_t *config = &choice->config;
    const lap_plan_result_t *result = &choice->result;
    lap_table_row(choices, "%zu\t%zu\t%zu\t%zu\t%zu\t%zu\t%s\t%s\t%.3f\t%.0f\t%.1f\t%.1f\t%.1f",
                  config->tp, config->pp, config->cp, config->dp, config->virtual_pp,
                  config->micro_batch, config->schedule,
                  lap_plan_recompute_names[config->recompute], result->seconds,
                  result->tokens_per_s, 100 * result->mfu, result->total_bytes / GB,
                  percent(result->exposed[LAP_PLAN_BUBBLE], result->seconds));
}

static void print_left_out(const lap_plan_found_t *found)
{
    size_t all = 0;
    for (int i = 0; i < LAP_PLAN_REASONS; i++)
        all += found->left_out[i];
    if (all > 0)
        printf("left out:\n");
    for (int i = 0; i < LAP_PLAN_REASONS; i++) {
        if (found->left_out[i] == 0)
            continue;
        printf("%8zu  %s, as ", found->left_out[i], lap_plan_reason_names[i]);
        print_grid(&found->example[i]);
        printf("\n");
    }
}

void lap_plan_print_found(const lap_plan_request_t *request, const lap_plan_found_t *found)
{
    print_heading(request);
    if (found->count > 0)
        lap_table_head(choices);
    for (size_t i = 0; i < found->count; i++)
        print_choice(&found->best[i]);
    if (found->count > 0)
        print_costs(request, &found->best[0].result);
    if (found->count == 0 && found->any_nearest) {
        printf("nothing fits in %.1f GB: the least needs %.1f GB, with ",
               request->machine.memory_bytes / GB, found->nearest.result.total_bytes / GB);
        print_grid(&found->nearest.config);
        printf("\n");
    } else if (found->count == 0) {
        printf("this model has no such grid on so many GPUs\n");
    }
    print_left_out(found);
}

/* ---- one grid ---- */

static bool has_even_stages(const lap_plan_config_t *config)
{
    bool even = true;
    for (size_t s = 1; s < lap_plan_stages(config); s++)
        even = even && lap_plan_stage_layers(config, s) == lap_plan_stage_layers(config, 0);
    return even;
}

/* "1,2,2,1" */
static void print_layers(const lap_plan_config_t *config)
{
    for (size_t s = 0; s < lap_plan_stages(config); s++)
        printf("%s%zu", s ? "," : "", lap_plan_stage_layers(config, s));
}

void lap_plan_print_one(const lap_plan_request_t *request, const lap_plan_choice_t *choice)
{
    const lap_plan_config_t *config = &choice->config;
    const lap_plan_result_t *result = &choice->result;
    print_heading(request);
    print_grid(config);
    printf("; %s, %zu stage%s a rank, %zu micro-batch%s of %zu, recompute %s\n\n", config->schedule,
           config->virtual_pp, config->virtual_pp == 1 ? "" : "s", result->micro_batches,
           result->micro_batches == 1 ? "" : "es", config->micro_batch,
           lap_plan_recompute_names[config->recompute]);
    printf("step      %.3f s: %.0f tokens/s, %.0f a GPU\n", result->seconds, result->tokens_per_s,
           result->tokens_per_s / (double)config->gpus);
    printf("MFU       %.1f %% of the %s peak, attention counted causal (%.1f %% counted whole); no "
           "recomputation counted\n",
           100 * result->mfu, lap_plan_type_names[config->type], 100 * result->mfu_full);
    if (!has_even_stages(config)) {
        printf("stages    --layers-per-stage ");
        print_layers(config);
        printf(" of lap train\n");
    }
    print_costs(request, result);
    static const char times[] = "%-11[time] %10[exposed s]  %5[%] %10[hidden s]";
    printf("\n");
    lap_table_head(times);
    for (int i = 0; i < LAP_PLAN_KINDS; i++)
        lap_table_row(times, "%s\t%.4f\t%.1f\t%.4f", lap_plan_kind_names[i], result->exposed[i],
                      percent(result->exposed[i], result->seconds), result->hidden[i]);
    if (result->larger_buckets)
        printf(
            "dp: planned with buckets of %.1f million parameters: there are too many smaller ones "
            "to simulate\n",
            result->bucket / 1e6);
    static const char memory[] = "%-15[memory of a GPU] %6[GB] %-1[]";
    printf("\n");
    lap_table_head(memory);
    for (int i = 0; i < LAP_PLAN_MEMORIES; i++)
        lap_table_row(memory, "%s\t%.2f", lap_plan_memory_names[i], result->bytes[i] / GB);
    lap_table_row(memory, "all\t%.2f\tof %.1f: it %s", result->total_bytes / GB,
                  request->machine.memory_bytes / GB, result->fits ? "fits" : "does not fit");
}

/* ---- JSON ---- */

static void json_choice(lap_json_t *json, const lap_plan_request_t *request,
                        const lap_plan_choice_t *choice)
{
    const lap_plan_config_t *config = &choice->config;
    const lap_plan_result_t *result = &choice->result;
    lap_json_put(json,
                 "{tp:%zu pp:%zu cp:%zu dp:%zu virtual_pp:%zu micro_batch:%zu schedule:%s "
                 "recompute:%s layers_per_stage:[",
                 config->tp, config->pp, config->cp, config->dp, config->virtual_pp,
                 config->micro_batch, config->schedule,
                 lap_plan_recompute_names[config->recompute]);
    for (size_t s = 0; s < lap_plan_stages(config); s++)
        lap_json_put(json, "%zu", lap_plan_stage_layers(config, s));
    lap_json_put(json,
                 "] micro_batches:%zu step_s:%.9g tokens_per_s:%.9g mfu:%.6g "
                 "mfu_full_attention:%.6g fits:%i memory_bytes:%.0f",
                 result->micro_batches, result->seconds, result->tokens_per_s, result->mfu,
                 result->mfu_full, result->fits, result->total_bytes);
    lap_json_put(json, "exposed_s:{");
    for (int i = 0; i < LAP_PLAN_KINDS; i++)
        lap_json_put(json, "%s:%.9g", lap_plan_kind_names[i], result->exposed[i]);
    lap_json_put(json, "} hidden_s:{");
    for (int i = 0; i < LAP_PLAN_KINDS; i++)
        lap_json_put(json, "%s:%.9g", lap_plan_kind_names[i], result->hidden[i]);
    lap_json_put(json, "} memory:{");
    for (int i = 0; i < LAP_PLAN_MEMORIES; i++)
        lap_json_put(json, "%s:%.0f", lap_plan_memory_names[i], result->bytes[i]);
    lap_json_put(json, "}");
    if (result->bucket > 0)
        lap_json_put(json, "bucket_parameters:%.0f larger_buckets:%i", result->bucket,
                     result->larger_buckets);
    if (request->price > 0)
        lap_json_put(json, "cost:%.9g", money(request, result));
    if (watts(request) > 0)
        lap_json_put(json, "energy_j:%.9g", energy_j(request, result));
    lap_json_put(json, "}");
}

static void json_begin(lap_json_t *json, const lap_plan_request_t *request)
{
    const lap_plan_config_t *config = &request->config;
    lap_json_put(json, "{gpus:%zu seq:%zu global_batch:%zu model:%s machine:%s precision:%s",
                 config->gpus, config->model.seq, config->global_batch, request->model,
                 request->machine.name, lap_plan_type_names[config->type]);
}

static void json_end(lap_json_t *json)
{
    lap_about_json(json, "cpu");
    lap_json_put(json, "}");
}

void lap_plan_json_one(const lap_plan_request_t *request, const lap_plan_choice_t *choice)
{
    lap_json_t json = {.file = stdout};
    json_begin(&json, request);
    lap_json_put(&json, "plan:");
    json_choice(&json, request, choice);
    json_end(&json);
}

void lap_plan_json_found(const lap_plan_request_t *request, const lap_plan_found_t *found)
{
    lap_json_t json = {.file = stdout};
    json_begin(&json, request);
    lap_json_put(&json, "tried:%zu plans:[", found->tried);
    for (size_t i = 0; i < found->count; i++)
        json_choice(&json, request, &found->best[i]);
    lap_json_put(&json, "]");
    if (found->count == 0 && found->any_nearest) {
        lap_json_put(&json, "nearest:"); /* what needs the least memory, of all that do not fit */
        json_choice(&json, request, &found->nearest);
    }
    lap_json_put(&json, "left_out:{");
    for (int i = 0; i < LAP_PLAN_REASONS; i++)
        if (found->left_out[i] > 0)
            lap_json_put(&json, "%s:%zu", lap_plan_reason_names[i], found->left_out[i]);
    lap_json_put(&json, "}");
    json_end(&json);
}
