/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of calls for the tests of the checker: built, kept, changed, and checked again. */
#ifndef LAP_TEST_SCHEDULE_SEQUENCE_H
#define LAP_TEST_SCHEDULE_SEQUENCE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "overlap/overlap.h"
#include "schedule/lower.h"
#include "tap.h"
#include "transport/transport.h"

enum { MAX_CALLS = 5, MAX_RANKS = 16, MAX_SCHEDULES = MAX_CALLS * MAX_RANKS };

typedef struct sequence {
    int size;
    uint32_t ncalls;
    lap_schedule_t schedules[MAX_SCHEDULES];
} sequence_t;

/* One method with its knobs, and what else changes its steps. */
typedef struct variant {
    lap_op_kind_t kind;
    const char *method;
    int aggregate, gather_input;
    size_t num_splits, block_rows;
    lap_dtype_t
        dtype; /* of a, and of what travels: FP8 has scales; bfloat16 is summed in float32 */
    lap_epilogue_t epilogue;
    lap_layout_t layout;
} variant_t;

#define GRAD LAP_EPILOGUE_BIAS_GRAD
#define BIAS LAP_EPILOGUE_BIAS
#define FP8 LAP_FLOAT8_E4M3

static const variant_t variants[] = {
    {LAP_AG_GEMM, "serial", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "serial", 0, 1, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "ring", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "ring", 0, 1, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "ring", 1, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "ring", 1, 1, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "direct", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "direct", 0, 1, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "direct", 0, 1, 1, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "direct", 0, 0, 2, 0, FP8, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "fused", 0, 0, 0, 2, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "fused", 0, 1, 0, 2, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "serial", 0, 1, 0, 0, FP8, GRAD, LAP_FORWARD},
    {LAP_AG_GEMM, "ring", 0, 0, 0, 0, FP8, 0, LAP_DGRAD},
    {LAP_AG_GEMM, "ring", 0, 1, 0, 0, FP8, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "ring", 1, 0, 0, 0, FP8, GRAD, LAP_FORWARD},
    {LAP_AG_GEMM, "ring", 1, 1, 0, 0, FP8, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "direct", 0, 1, 0, 0, FP8, 0, LAP_DGRAD},
    {LAP_AG_GEMM, "fused", 0, 0, 0, 2, FP8, 0, LAP_FORWARD},
    {LAP_AG_GEMM, "fused", 0, 1, 0, 2, FP8, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "serial", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "ring", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "pipeline", 0, 0, 1, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "pipeline", 0, 0, 2, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "pull", 0, 0, 1, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "pull", 0, 0, 3, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "pull", 0, 0, 2, 0, FP8, GRAD, LAP_DGRAD},
    {LAP_GEMM_RS, "fused", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "fused", 0, 0, 0, 2, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_RS, "serial", 0, 0, 0, 0, FP8, 0, LAP_DGRAD},
    {LAP_GEMM_RS, "ring", 0, 0, 0, 0, FP8, BIAS, LAP_DGRAD},
    {LAP_GEMM_RS, "pipeline", 0, 0, 2, 0, FP8, GRAD, LAP_DGRAD},
    {LAP_GEMM_RS, "fused", 0, 0, 0, 2, FP8, GRAD, LAP_FORWARD},
    {LAP_GEMM_AR, "serial", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_AR, "pipeline", 0, 0, 1, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_AR, "pipeline", 0, 0, 2, 0, LAP_FLOAT32, GRAD, LAP_FORWARD},
    {LAP_GEMM_AR, "pipeline", 0, 0, 4, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_AR, "direct", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_AR, "fused", 0, 0, 0, 2, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_GEMM_AR, "serial", 0, 0, 0, 0, FP8, BIAS, LAP_FORWARD},
    {LAP_GEMM_AR, "pipeline", 0, 0, 2, 0, FP8, BIAS | GRAD, LAP_DGRAD},
    {LAP_GEMM_AR, "pipeline", 0, 0, 3, 0, LAP_BFLOAT16, BIAS, LAP_DGRAD},
    {LAP_GEMM_AR, "direct", 0, 0, 0, 0, FP8, BIAS | GRAD, LAP_FORWARD},
    {LAP_GEMM_AR, "fused", 0, 0, 0, 2, FP8, BIAS, LAP_FORWARD},
    {LAP_GEMM, "serial", 0, 0, 0, 0, FP8, GRAD, LAP_DGRAD},
    {LAP_GEMM, "serial", 0, 0, 0, 0, LAP_FLOAT32, GRAD, LAP_WGRAD},
    {LAP_BULK_AG, "serial", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_BULK_AG, "ring", 0, 0, 0, 0, FP8, 0, LAP_DGRAD},
    {LAP_BULK_AG, "ring", 1, 0, 0, 0, FP8, 0, LAP_WGRAD},
    {LAP_BULK_AG, "direct", 0, 0, 0, 0, LAP_FLOAT32, GRAD, LAP_WGRAD},
    {LAP_BULK_AG, "fused", 0, 0, 0, 2, FP8, GRAD, LAP_FORWARD},
    {LAP_BULK_RS, "serial", 0, 0, 0, 0, FP8, 0, LAP_FORWARD},
    {LAP_BULK_RS, "direct", 0, 0, 0, 0, LAP_FLOAT32, GRAD, LAP_WGRAD},
    {LAP_BULK_RS, "direct", 0, 0, 0, 0, FP8, 0, LAP_DGRAD},
    {LAP_EXTERNAL_AG, "serial", 0, 0, 0, 0, FP8, 0, LAP_FORWARD},
    {LAP_EXTERNAL_AG, "ring", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_EXTERNAL_AG, "ring", 1, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_EXTERNAL_AG, "direct", 0, 0, 0, 0, FP8, 0, LAP_FORWARD},
    {LAP_EXTERNAL_AG, "fused", 0, 0, 0, 2, LAP_FLOAT32, 0, LAP_FORWARD},
    {LAP_EXTERNAL_RS, "serial", 0, 0, 0, 0, FP8, 0, LAP_FORWARD},
    {LAP_EXTERNAL_RS, "ring", 0, 0, 0, 0, FP8, 0, LAP_FORWARD},
    {LAP_EXTERNAL_RS, "direct", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD},
};
enum { NVARIANTS = sizeof(variants) / sizeof(variants[0]) };

/* A ring of pairs needs pairs. */
static inline bool fits(const variant_t *variant, int size)
{
    return !variant->aggregate || size == 1 || size % 2 == 0;
}

static inline void variant_name(const variant_t *variant, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s %s%s%s%s%s%s", lap_op_kind_name(variant->kind), variant->method,
             variant->aggregate ? " aggregate" : "", variant->gather_input ? " gather" : "",
             variant->dtype == FP8            ? " fp8"
             : variant->dtype == LAP_BFLOAT16 ? " bf16"
                                              : "",
             variant->epilogue & BIAS ? " bias" : "", variant->epilogue & GRAD ? " bias_grad" : "");
}

static inline lap_op_desc_t describe(const variant_t *variant, size_t m, size_t n, size_t k)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = variant->kind;
    desc.method = variant->method;
    desc.m = m;
    if (variant->kind < LAP_EXTERNAL_AG) {
        desc.n = n;
        desc.k = k;
    }
    if (variant->kind >= LAP_BULK_AG)
        desc.cols = n + 1;
    desc.dtype = variant->dtype;
    if (variant->kind == LAP_GEMM_RS || variant->kind == LAP_GEMM_AR)
        desc.wire_dtype = variant->dtype;
    if (variant->dtype == LAP_BFLOAT16)
        desc.out_dtype = LAP_FLOAT32;
    desc.epilogue = variant->epilogue;
    desc.layout = variant->layout;
    desc.aggregate = variant->aggregate;
    desc.gather_input = variant->gather_input;
    desc.num_splits = variant->num_splits > n ? n : variant->num_splits;
    desc.block_rows = variant->block_rows;
    return desc;
}

/* What a transport can that can do everything, with and without lanes. */
#define CAN_LANES ~0u
#define CAN_PLAIN (CAN_LANES & ~(unsigned)LAP_CAN_LANES)

/* Builds descs[0..ncalls) with rows[i] active rows for every rank. */
static inline lap_status_t sequence_build(sequence_t *sequence, const lap_op_desc_t *descs,
                                          const size_t *rows, uint32_t ncalls, int size,
                                          unsigned can)
{
    memset(sequence, 0, sizeof(*sequence));
    sequence->size = size;
    sequence->ncalls = ncalls;
    for (uint32_t call = 0; call < ncalls; call++) {
        lap_problem_t problem;
        const lap_builder_t *builder;
        lap_status_t status = lap_problem_init(&problem, &builder, &descs[call], size, can);
        if (status != LAP_OK)
            return status;
        problem.m = rows[call];
        for (problem.rank = 0; problem.rank < size; problem.rank++) {
            status =
                lap_build(builder, &problem,
                          &sequence->schedules[call * (uint32_t)size + (uint32_t)problem.rank]);
            if (status != LAP_OK)
                return status;
        }
    }
    return LAP_OK;
}

/* Whether a variant computes in lanes where it can. */
static inline bool has_lanes(const variant_t *variant, int size)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    lap_schedule_t schedule;
    const lap_op_desc_t desc = describe(variant, 40, 40, 40);
    bool found = false;
    if (lap_problem_init(&problem, &builder, &desc, size, CAN_LANES) != LAP_OK)
        return false;
    if (lap_build(builder, &problem, &schedule) == LAP_OK)
        for (uint32_t i = 0; i < schedule.nsteps; i++)
            found = found || schedule.steps[i].stream == LAP_STREAM_LANE;
    lap_schedule_clear(&schedule);
    return found;
}

static inline lap_schedule_t *sequence_at(sequence_t *sequence, uint32_t call, int rank)
{
    return &sequence->schedules[call * (uint32_t)sequence->size + (uint32_t)rank];
}

/* Lowers all calls for a target, up to a pass; NULL: all of them. */
static inline lap_status_t sequence_lower(sequence_t *sequence, const char *target,
                                          const char *after)
{
    const lap_target_t *found;
    lap_status_t status = lap_target_find(target, &found);
    for (uint32_t call = 0; call < sequence->ncalls && status == LAP_OK; call++)
        status = lap_lower(sequence_at(sequence, call, 0), (size_t)sequence->size, found, after);
    return status;
}

static inline lap_status_t sequence_check(const sequence_t *sequence)
{
    const lap_schedule_t *list[MAX_SCHEDULES];
    for (int i = 0; i < MAX_SCHEDULES; i++)
        list[i] = &sequence->schedules[i];
    return lap_schedule_check(list, sequence->ncalls, sequence->size);
}

/* Whether they get to their end when each rank runs one step at a time, as they are listed. */
static inline lap_status_t sequence_check_in_line(const sequence_t *sequence)
{
    const lap_schedule_t *list[MAX_SCHEDULES];
    for (int i = 0; i < MAX_SCHEDULES; i++)
        list[i] = &sequence->schedules[i];
    return lap_schedule_check_in_line(list, sequence->ncalls, sequence->size);
}

static inline void sequence_clear(sequence_t *sequence)
{
    for (int i = 0; i < MAX_SCHEDULES; i++)
        lap_schedule_clear(&sequence->schedules[i]);
}

/* Steps of a kind, on a stream or (-1) on any. */
static inline uint32_t count_steps(const lap_schedule_t *schedule, lap_step_kind_t kind, int stream)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        count +=
            schedule->steps[i].kind == kind && (stream < 0 || schedule->steps[i].stream == stream);
    return count;
}

#endif
