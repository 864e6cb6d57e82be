/* SPDX-License-Identifier: Apache-2.0 */
/* What `lap bench` prints for programs: one object of JSON on one line. */
#include <math.h>

#include "about.h"
#include "bench.h"

void lap_bench_json_types(lap_json_t *json, const lap_bench_shape_t *shape)
{
    static const char *const layouts[] = {"forward", "dgrad", "wgrad"};
    char epilogue[LAP_EPILOGUE_TEXT];
    lap_epilogue_text(shape->epilogue, epilogue, sizeof(epilogue));
    lap_json_put(json, "dtype:%s out_dtype:%s wire_dtype:%s layout:%s epilogue:%s",
                 lap_dtype_name(shape->types.a), lap_dtype_name(shape->types.out),
                 lap_dtype_name(shape->types.wire), layouts[shape->layout], epilogue);
}

void lap_bench_json_link(lap_json_t *json, const lap_link_t *link)
{
    if (link->bytes_per_s <= 0 && link->latency_s <= 0)
        lap_json_put(json, "link:null");
    else /* without a limit of the rate there is no number to give */
        lap_json_put(json, "link:{gbps:%.6g latency_us:%.6g emulated:true}",
                     link->bytes_per_s > 0 ? link->bytes_per_s * 1e-9 : NAN, link->latency_s * 1e6);
}

/* A single round has no noise. */
static double noise_pct(const lap_bench_result_t *result, double noise_ms, double ms)
{
    return result->rounds < 2 ? NAN : ms > 0 ? 100 * noise_ms / ms : 0;
}

void lap_bench_json_rounds(lap_json_t *json, const char *key, const double *list, size_t count)
{
    lap_json_put(json, "%s:[", key);
    for (size_t i = 0; i < count; i++)
        lap_json_put(json, "%.9g", list[i]);
    lap_json_put(json, "]");
}

static void json_traced(lap_json_t *json, const lap_bench_traced_t *traced)
{
    if (traced->calls == 0) {
        lap_json_put(json, "traced:null");
        return;
    }
    lap_json_put(json,
                 "traced:{calls:%d call:%d total_ms:%.6g comm_ms:%.6g hidden_ms:%.6g "
                 "exposed_ms:%.6g waited_ms:%.6g waited_wire_ms:%.9g waited_late_ms:%.9g "
                 "waited_core_ms:%.9g sent_bytes:%.0f}",
                 traced->calls, traced->call, traced->total_ms, traced->comm_ms, traced->hidden_ms,
                 traced->comm_ms - traced->hidden_ms, traced->waited_ms,
                 traced->cause_ms[LAP_CAUSE_WIRE], traced->cause_ms[LAP_CAUSE_LATE],
                 traced->cause_ms[LAP_CAUSE_CORE], traced->bytes);
}

void lap_bench_json_method(lap_json_t *json, const lap_bench_case_t *it,
                           const lap_bench_result_t *result, size_t method)
{
    const lap_bench_figure_t *figure = &result->methods[method];
    const bool noise = result->rounds > 1;
    double efficiency, efficiency_noise;
    const lap_bench_lack_t lack =
        lap_bench_efficiency(result, method, &efficiency, &efficiency_noise);
    lap_json_put(json,
                 "{method:%s total_ms:%.6g ect_ms:%.6g efficiency:%.6g max_err:%.6g ok:%i "
                 "noise_pct:%.6g predicted_ms:%.6g",
                 it->methods[method].label, figure->total_ms, figure->ect_ms,
                 lack == LAP_BENCH_KNOWN ? efficiency : NAN, figure->max_err, figure->ok,
                 noise_pct(result, figure->noise_ms, figure->total_ms),
                 figure->predicted_ms > 0 ? figure->predicted_ms : NAN);
    if (figure->host_us > 0)
        lap_json_put(json, "host_us:%.6g", figure->host_us);
    lap_json_put(json,
                 "picked:%s efficiency_noise:%.6g no_efficiency:%s noise_ms:%.6g ect_noise_ms:%.6g "
                 "error:%.6g tolerance:%.6g error_over_tolerance:%.6g tflops:%.6g wire_gbps:%.6g",
                 figure->picked[0] ? figure->picked : NULL,
                 lack == LAP_BENCH_SERIAL ? NAN : efficiency_noise, lap_bench_lack_name(lack),
                 noise ? figure->noise_ms : NAN, noise ? figure->ect_noise_ms : NAN,
                 figure->verdict.error, figure->verdict.bound, figure->verdict.ratio,
                 lap_bench_tflops(&result->shape, figure->total_ms), lap_bench_wire_gbps(figure));
    json_traced(json, &figure->traced);
    lap_bench_json_rounds(json, "rounds_ms", figure->rounds_ms, result->rounds);
    lap_json_put(json, "}");
}

void lap_bench_json_end(lap_json_t *json, const lap_bench_t *bench,
                        const lap_bench_result_t *result)
{
    lap_json_put(json, "seed:%lu cores:%d local_ranks:%d", bench->seed, result->cores,
                 result->local_ranks);
    lap_about_json(json, bench->device);
    if (bench->interrupted)
        lap_json_put(json, "interrupted:true");
    lap_json_put(json, "}");
}

void lap_bench_print_json(const lap_bench_t *bench, const lap_bench_result_t *result)
{
    const lap_bench_case_t *it = &bench->cases[0];
    const size_t best = lap_bench_fastest(it, result, true);
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{op:%s m:%zu n:%zu k:%zu", lap_op_kind_name(it->kind), it->m, it->n,
                 it->k);
    lap_bench_json_types(&json, &result->shape);
    lap_json_put(&json, "ranks:%d device:%s transport:%s", result->shape.nranks, bench->device,
                 bench->transport);
    lap_bench_json_link(&json, &result->link);
    lap_json_put(&json, "gemm_ms:%.6g serial_ms:%.6g methods:[", result->gemm_ms,
                 result->methods[0].total_ms);
    for (size_t i = 0; i < it->nmethods; i++)
        if (it->methods[i].asked)
            lap_bench_json_method(&json, it, result, i);
    lap_json_put(&json, "] best:%s rounds:%zu calls:%d rest_ms:%d gemm_noise_pct:%.6g",
                 best == SIZE_MAX ? NULL : it->methods[best].label, result->rounds, bench->calls,
                 bench->rest_ms, noise_pct(result, result->gemm_noise_ms, result->gemm_ms));
    if (it->baseline) {
        lap_json_put(&json, "baseline:");
        lap_bench_json_method(&json, it, result, it->nmethods);
    }
    lap_bench_json_rounds(&json, "gemm_rounds_ms", result->gemm_rounds_ms, 2 * result->rounds);
    lap_bench_json_rounds(&json, "serial_rounds_ms", result->methods[0].rounds_ms, result->rounds);
    lap_json_put(&json, "gemm_tflops:%.6g gemm_flops:%.6g trace:%s timeline:%s timeline_method:%s",
                 lap_bench_tflops(&result->shape, result->gemm_ms), lap_bench_flops(&result->shape),
                 result->unwritten ? NULL : bench->trace_path,
                 result->undrawn ? NULL : bench->timeline,
                 bench->timeline ? it->methods[result->drawn].label : NULL);
    lap_bench_json_end(&json, bench, result);
}
