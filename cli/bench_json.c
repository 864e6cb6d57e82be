/* SPDX-License-Identifier: Apache-2.0 */
/* What `lap bench` prints for programs: one object of JSON on one line. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "about.h"
#include "bench.h"

void lap_bench_json_number(const char *key, double value)
{
    if (isfinite(value))
        printf("\"%s\":%.6g", key, value);
    else
        printf("\"%s\":null", key);
}

void lap_bench_json_types(const lap_bench_shape_t *shape)
{
    static const char *const layouts[] = {"forward", "dgrad", "wgrad"};
    char epilogue[LAP_EPILOGUE_TEXT];
    lap_epilogue_text(shape->epilogue, epilogue, sizeof(epilogue));
    printf("\"dtype\":\"%s\",\"out_dtype\":\"%s\",\"wire_dtype\":\"%s\",\"layout\":\"%s\","
           "\"epilogue\":\"%s\"",
           lap_dtype_name(shape->types.a), lap_dtype_name(shape->types.out),
           lap_dtype_name(shape->types.wire), layouts[shape->layout], epilogue);
}

void lap_bench_json_link(const lap_link_t *link)
{
    if (link->bytes_per_s <= 0 && link->latency_s <= 0) {
        printf("\"link\":null");
        return;
    }
    /* Without a limit of the rate there is no number to give. */
    printf("\"link\":{");
    lap_bench_json_number("gbps", link->bytes_per_s > 0 ? link->bytes_per_s * 1e-9 : INFINITY);
    printf(",");
    lap_bench_json_number("latency_us", link->latency_s * 1e6);
    printf(",\"emulated\":true}");
}

/* A single round has no noise to tell. */
static double noise_pct(const lap_bench_result_t *result, double noise_ms, double ms)
{
    return result->rounds < 2 ? NAN : ms > 0 ? 100 * noise_ms / ms : 0;
}

void lap_bench_json_field(const char *key, double value)
{
    printf(",");
    lap_bench_json_number(key, value);
}

void lap_bench_json_rounds(const char *key, const double *list, size_t count)
{
    printf(",\"%s\":[", key);
    for (size_t i = 0; i < count; i++)
        printf("%s%.9g", i ? "," : "", list[i]);
    printf("]");
}

static void json_traced(const lap_bench_traced_t *traced)
{
    if (traced->calls == 0) {
        printf(",\"traced\":null");
        return;
    }
    printf(",\"traced\":{\"calls\":%d,\"call\":%d", traced->calls, traced->call);
    lap_bench_json_field("total_ms", traced->total_ms);
    lap_bench_json_field("comm_ms", traced->comm_ms);
    lap_bench_json_field("hidden_ms", traced->hidden_ms);
    lap_bench_json_field("exposed_ms", traced->comm_ms - traced->hidden_ms);
    lap_bench_json_field("waited_ms", traced->waited_ms);
    for (int c = 0; c < LAP_CAUSES; c++)
        printf(",\"waited_%s_ms\":%.9g", lap_cause_name((lap_cause_t)c), traced->cause_ms[c]);
    printf(",\"sent_bytes\":%.0f}", traced->bytes);
}

void lap_bench_json_method(const lap_bench_case_t *it, const lap_bench_result_t *result,
                           size_t method)
{
    const lap_bench_figure_t *figure = &result->methods[method];
    double efficiency, noise;
    const lap_bench_lack_t lack = lap_bench_efficiency(result, method, &efficiency, &noise);
    printf("{\"method\":");
    lap_json_string(stdout, it->methods[method].label);
    lap_bench_json_field("total_ms", figure->total_ms);
    lap_bench_json_field("ect_ms", figure->ect_ms);
    lap_bench_json_field("efficiency", lack == LAP_BENCH_TELLS ? efficiency : NAN);
    lap_bench_json_field("max_err", figure->max_err);
    printf(",\"ok\":%s", figure->ok ? "true" : "false");
    lap_bench_json_field("noise_pct", noise_pct(result, figure->noise_ms, figure->total_ms));
    lap_bench_json_field("predicted_ms", figure->predicted_ms > 0 ? figure->predicted_ms : NAN);
    if (figure->host_us > 0)
        lap_bench_json_field("host_us", figure->host_us);
    lap_json_text("picked", figure->picked[0] ? figure->picked : NULL);
    lap_bench_json_field("efficiency_noise", lack == LAP_BENCH_SERIAL ? NAN : noise);
    lap_json_text("no_efficiency", lap_bench_lack_name(lack));
    lap_bench_json_field("noise_ms", result->rounds > 1 ? figure->noise_ms : NAN);
    lap_bench_json_field("ect_noise_ms", result->rounds > 1 ? figure->ect_noise_ms : NAN);
    lap_bench_json_field("error", figure->verdict.error);
    lap_bench_json_field("tolerance", figure->verdict.bound);
    lap_bench_json_field("error_over_tolerance", figure->verdict.ratio);
    lap_bench_json_field("tflops", lap_bench_tflops(&result->shape, figure->total_ms));
    lap_bench_json_field("wire_gbps", lap_bench_wire_gbps(figure));
    json_traced(&figure->traced);
    lap_bench_json_rounds("rounds_ms", figure->rounds_ms, result->rounds);
    printf("}");
}

void lap_bench_json_about(const lap_bench_t *bench, const lap_bench_result_t *result)
{
    printf(",\"seed\":%" PRIu64 ",\"cores\":%d,\"local_ranks\":%d", bench->seed, result->cores,
           result->local_ranks);
    lap_about_json(bench->device);
}

void lap_bench_print_json(const lap_bench_t *bench, const lap_bench_result_t *result)
{
    const lap_bench_case_t *it = &bench->cases[0];
    printf("{\"op\":\"%s\",\"m\":%zu,\"n\":%zu,\"k\":%zu,", lap_op_kind_name(it->kind), it->m,
           it->n, it->k);
    lap_bench_json_types(&result->shape);
    printf(",\"ranks\":%d,\"device\":\"%s\",\"transport\":\"%s\",", result->shape.nranks,
           bench->device, bench->transport);
    lap_bench_json_link(&result->link);
    lap_bench_json_field("gemm_ms", result->gemm_ms);
    lap_bench_json_field("serial_ms", result->methods[0].total_ms);
    printf(",\"methods\":[");
    const char *comma = "";
    for (size_t i = 0; i < it->nmethods; i++) {
        if (!it->methods[i].asked)
            continue;
        fputs(comma, stdout);
        lap_bench_json_method(it, result, i);
        comma = ",";
    }
    const size_t best = lap_bench_fastest(it, result, true);
    printf("]");
    lap_json_text("best", best == SIZE_MAX ? NULL : it->methods[best].label);
    printf(",\"rounds\":%zu,\"calls\":%d,\"rest_ms\":%d,", result->rounds, bench->calls,
           bench->rest_ms);
    lap_bench_json_number("gemm_noise_pct",
                          noise_pct(result, result->gemm_noise_ms, result->gemm_ms));
    if (it->baseline) {
        printf(",\"baseline\":");
        lap_bench_json_method(it, result, it->nmethods);
    }
    lap_bench_json_rounds("gemm_rounds_ms", result->gemm_rounds_ms, 2 * result->rounds);
    lap_bench_json_rounds("serial_rounds_ms", result->methods[0].rounds_ms, result->rounds);
    lap_bench_json_field("gemm_tflops", lap_bench_tflops(&result->shape, result->gemm_ms));
    lap_bench_json_field("gemm_flops", lap_bench_flops(&result->shape));
    lap_json_text("trace", result->unwritten ? NULL : bench->trace_path);
    lap_json_text("timeline", result->undrawn ? NULL : bench->timeline);
    lap_json_text("timeline_method", bench->timeline ? it->methods[result->drawn].label : NULL);
    lap_bench_json_about(bench, result);
    lap_bench_json_interrupted(bench->interrupted != 0);
    printf("}\n");
}
