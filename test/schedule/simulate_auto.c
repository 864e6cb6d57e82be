/* SPDX-License-Identifier: Apache-2.0 */
/* What "auto" makes of simulations with costs that leave no doubt. Nothing is measured. */
#include <string.h>

#include "costs.h"
#include "overlap/auto.h"
#include "sequence.h"
#include "transport/transport.h"

static lap_op_desc_t desc_of(lap_op_kind_t kind)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = 2048;
    desc.n = 2048;
    desc.k = 2048;
    desc.cols = kind == LAP_BULK_AG || kind == LAP_BULK_RS ? 4096 : 0;
    return desc;
}

static void test_choice(lap_op_kind_t kind)
{
    const char *op = lap_op_kind_name(kind);
    const lap_op_desc_t desc = desc_of(kind);
    lap_forecast_t forecast;
    lap_status_t status = lap_auto_list(&desc, 4, CAN_PLAIN, desc.m, &forecast);
    /* Nothing to hide: no time to move anything, and GEMMs that lose by being cut. */
    lap_cost_t cost = plain_cost(0);
    cost.copy = flat(1e15);
    cost.reduce = 1e15;
    cost.columns = (lap_curve_t){2, {64, 2048}, {0.5, 1}};
    if (status == LAP_OK)
        status = lap_auto_predict(&forecast, lap_target_at(0), &cost);
    tap_ok(status == LAP_OK && forecast.picked == 0 &&
               strcmp(forecast.candidates[0].label, "serial") == 0,
           "%s: serial when communication is free (%zu candidates)", op, forecast.count);
    /* A link on which moving takes about as long as multiplying. */
    cost = plain_cost(1e8);
    if (status == LAP_OK)
        status = lap_auto_predict(&forecast, lap_target_at(0), &cost);
    tap_ok(status == LAP_OK && forecast.picked != 0, "%s: %s on a slow link", op,
           forecast.candidates[forecast.picked].label);
    tap_ok(status == LAP_OK &&
               forecast.seconds[forecast.picked] < (1 - LAP_AUTO_MARGIN) * forecast.seconds[0],
           "... because it beats serial: %g s, %g s", forecast.seconds[forecast.picked],
           forecast.seconds[0]);
}

/* A buffer made for "auto" is large enough for every candidate and every number of rows. */
static void test_room(lap_op_kind_t kind, lap_dtype_t dtype, lap_epilogue_t epilogue)
{
    bool fits_all = true;
    for (int size = 1; size <= 8; size++) {
        lap_op_desc_t desc = desc_of(kind);
        desc.m = 300 + (size_t)size;
        desc.dtype = dtype;
        desc.epilogue = epilogue;
        if (kind == LAP_GEMM_RS || kind == LAP_GEMM_AR)
            desc.wire_dtype = dtype;
        desc.method = "auto";
        size_t bytes, nsignals;
        fits_all = fits_all && lap_op_buffer_size(&desc, size, &bytes, &nsignals) == LAP_OK;
        for (size_t m = desc.m; m > 0; m /= 2) {
            lap_forecast_t forecast;
            fits_all = fits_all && lap_auto_list(&desc, size, CAN_PLAIN, m, &forecast) == LAP_OK;
            for (size_t i = 0; fits_all && i < forecast.count; i++) {
                lap_schedule_t schedule;
                fits_all = lap_build(forecast.candidates[i].builder,
                                     &forecast.candidates[i].problem, &schedule) == LAP_OK &&
                           schedule.symmetric_bytes <= bytes && schedule.nsignals <= nsignals;
                lap_schedule_clear(&schedule);
            }
        }
    }
    tap_ok(fits_all, "%s of %s: a buffer for auto has room for whatever it picks",
           lap_op_kind_name(kind), lap_dtype_name(dtype));
}

static void test_limits(void)
{
    lap_op_desc_t desc = desc_of(LAP_AG_GEMM);
    lap_forecast_t forecast;
    tap_success(lap_auto_list(&desc, 4, LAP_CAN_PUT, desc.m, &forecast), "methods that only put");
    bool fused = false;
    for (size_t i = 0; i < forecast.count; i++)
        fused = fused || strcmp(forecast.candidates[i].builder->name, "fused") == 0;
    tap_ok(!fused, "what the transport cannot do is no candidate");
    tap_failure(lap_auto_list(&desc, 4, 0, desc.m, &forecast), LAP_ERR_UNSUPPORTED, "ag_gemm",
                NULL);
    desc.method = "auto";
    tap_failure(lap_op_check(&desc, NULL, 1, 4, NULL), LAP_ERR_UNSUPPORTED, "'auto'", NULL);
    desc.num_splits = 3;
    size_t bytes, nsignals;
    tap_failure(lap_op_buffer_size(&desc, 4, &bytes, &nsignals), LAP_ERR_INVALID, "num_splits",
                "'auto'", NULL);
}

int main(void)
{
    const lap_op_kind_t kinds[] = {LAP_AG_GEMM, LAP_GEMM_RS, LAP_GEMM_AR, LAP_BULK_AG, LAP_BULK_RS};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        test_choice(kinds[i]);
        test_room(kinds[i], LAP_FLOAT32, 0);
        test_room(kinds[i], FP8, LAP_EPILOGUE_BIAS);
    }
    test_limits();
    return tap_done();
}
