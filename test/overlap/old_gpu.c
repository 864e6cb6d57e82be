/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU that is too old for something: the error names what it has and what would be needed, on all
 * ranks, and whatever it can do works. The GPU is a fake, of the compute capability that
 * FAKE_CAPABILITY says: 75 is 7.5.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "tap.h"

static lap_op_desc_t describe(lap_op_kind_t kind, lap_dtype_t dtype, lap_dtype_t wire)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = 7;
    desc.dtype = dtype;
    desc.wire_dtype = wire;
    if (kind == LAP_EXTERNAL_AG) {
        desc.cols = 5;
    } else {
        desc.n = 6;
        desc.k = 8;
    }
    return desc;
}

static void check_works(lap_group_t *group, lap_op_desc_t desc, const char *what)
{
    lap_op_t *op = NULL;
    if (!tap_success(lap_op_create(group, &desc, &op), "%s can be made", what))
        return;
    tap_success(test_call_check(op, test_exact_call(group, &desc, desc.m, 3)), "%s is right", what);
    lap_op_destroy(op);
}

static void old_for_all(lap_world_t *world, void *arg)
{
    (void)arg;
    const lap_op_desc_t desc = describe(LAP_AG_GEMM, LAP_FLOAT32, LAP_DTYPE_DEFAULT);
    lap_op_t *op = NULL;
    tap_failure(lap_op_create(lap_world_group(world), &desc, &op), LAP_ERR_UNSUPPORTED,
                "compute capability 7.5", "expected 8.0 or later", NULL);
}

static void old_for_fp8(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    for (lap_dtype_t dtype = LAP_FLOAT8_E4M3; dtype <= LAP_FLOAT8_E5M2; dtype++) {
        const lap_op_desc_t desc = describe(LAP_AG_GEMM, dtype, LAP_DTYPE_DEFAULT);
        lap_op_t *op = NULL;
        tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_UNSUPPORTED, lap_dtype_name(dtype),
                    "8.9 or later", "GPU 0 has 8.0", NULL);
    }
    check_works(group, describe(LAP_AG_GEMM, LAP_BFLOAT16, LAP_DTYPE_DEFAULT), "bfloat16");
    check_works(group, describe(LAP_GEMM_RS, LAP_BFLOAT16, LAP_FLOAT8_E4M3), "FP8 on the wire");
    check_works(group, describe(LAP_EXTERNAL_AG, LAP_FLOAT32, LAP_FLOAT8_E5M2), "FP8 gathered");
}

int main(void)
{
    const char *capability = getenv("FAKE_CAPABILITY");
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = "cuda";
    if (!capability) {
        puts("1..0 # SKIP only a fake GPU is as old as it is set");
        return 77;
    }
    tap_ranks(2, &options, strcmp(capability, "75") == 0 ? old_for_all : old_for_fp8, NULL);
    return tap_done();
}
