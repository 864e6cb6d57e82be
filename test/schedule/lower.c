/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets and the passes that lower for them: every build knows the targets of GPUs, and what is
 * issued there is a function of the schedule.
 */
#include "sequence.h"

static void test_targets(void)
{
    const lap_target_t *cpu, *cuda, *nccl;
    tap_success(lap_target_find("cpu", &cpu), "there is a target cpu");
    tap_success(lap_target_find("cuda", &cuda), "there is a target cuda");
    tap_success(lap_target_find("nccl", &nccl), "there is a target nccl");
    tap_ok(cpu->device.gemm_signals && !cpu->device.lanes && !cpu->device.graphs,
           "blocks of a GEMM on hosts signal by themselves");
    tap_ok(cuda->device.lanes && cuda->device.shares_queues && (cuda->can & LAP_CAN_ADDRESS),
           "GPUs of one host have lanes and address each other's memory");
    tap_ok(nccl->device.lanes && !(nccl->can & LAP_CAN_ADDRESS), "those of several hosts put");
    tap_failure(lap_target_find("abacus", &cpu), LAP_ERR_INVALID, "'abacus'", "cpu, cuda, nccl",
                NULL);
    tap_failure(lap_target_find(NULL, &cpu), LAP_ERR_INVALID, "cpu, cuda, nccl", NULL);
}

static void test_passes(void)
{
    const lap_target_t *cpu = lap_target_at(0);
    tap_ok(lap_pass_at(0) && lap_pass_at(0)->name && lap_pass_at(0)->summary, "there is a pass");
    tap_failure(lap_lower(NULL, 0, cpu, "polish"), LAP_ERR_INVALID, "'polish'", "waits", NULL);
    for (size_t i = 0; lap_pass_at(i); i++)
        tap_success(lap_lower(NULL, 0, cpu, lap_pass_at(i)->name), "one can stop after %s",
                    lap_pass_at(i)->name);
}

/* The blocks of the other ranks wait; block 0 is this rank's. */
static void build_fused(sequence_t *sequence, lap_op_kind_t kind)
{
    const size_t rows[1] = {64};
    const variant_t variant = {kind, "fused", 0, 0, 0, 8, LAP_FLOAT32, 0, LAP_FORWARD};
    const lap_op_desc_t desc = describe(&variant, 64, 12, 12);
    tap_success(sequence_build(sequence, &desc, rows, 1, 4, CAN_PLAIN), "a fused method");
}

static void test_blocks(void)
{
    static sequence_t sequence;
    const lap_schedule_t *s = sequence_at(&sequence, 0, 1);
    build_fused(&sequence, LAP_AG_GEMM);
    const uint32_t nblocks = s->ntiles, nsteps = s->nsteps, waits = 2 * 3; /* two of each shard */
    const uint32_t other = count_steps(s, LAP_STEP_WAIT, -1);
    tap_success(sequence_lower(&sequence, "cpu", NULL), "lowered for hosts");
    tap_ok(s->nsteps == nsteps && count_steps(s, LAP_STEP_GEMM, -1) == 1,
           "hosts are given the GEMM as it is");
    tap_success(sequence_lower(&sequence, "cuda", "blocks"), "lowered for a GPU, up to blocks");
    tap_ok(count_steps(s, LAP_STEP_GEMM, LAP_STREAM_COMPUTE) == nblocks &&
               count_steps(s, LAP_STEP_WAIT, -1) == other + waits,
           "a GPU is given %u GEMMs and %u waits for them", nblocks, waits);
    tap_success(sequence_check(&sequence), "they are safe");
    sequence_clear(&sequence);
    build_fused(&sequence, LAP_GEMM_RS);
    const uint32_t raises = count_steps(s, LAP_STEP_RAISE, -1);
    tap_success(sequence_lower(&sequence, "cuda", NULL), "blocks that raise");
    tap_ok(count_steps(s, LAP_STEP_RAISE, -1) == raises + 2 * 3 &&
               count_steps(s, LAP_STEP_GEMM, LAP_STREAM_LANE) == 0,
           "their raises are steps, and they stay in one lane");
    sequence_clear(&sequence);
}

/* Whether a step depends on another one. */
static bool depends(const lap_schedule_t *schedule, uint32_t index, uint32_t on)
{
    const lap_step_t *step = &schedule->steps[index];
    bool found = false;
    for (uint16_t d = 0; d < step->ndeps; d++)
        found = found || lap_step_dep(schedule, step, d) == on;
    return found;
}

static void test_lanes(void)
{
    static sequence_t sequence;
    const lap_schedule_t *s = sequence_at(&sequence, 0, 1);
    build_fused(&sequence, LAP_AG_GEMM);
    tap_success(sequence_lower(&sequence, "cuda", "lanes"), "lowered for a GPU, up to lanes");
    const uint32_t gemms = count_steps(s, LAP_STEP_GEMM, LAP_STREAM_COMPUTE);
    const uint32_t others = count_steps(s, LAP_STEP_GEMM, LAP_STREAM_LANE);
    tap_ok(others > 0 && (gemms == others || gemms == others + 1), "GEMMs take turns in two lanes");
    uint32_t last = LAP_NO_STEP, origin = 0;
    bool right = true;
    for (uint32_t i = 0; i < s->nsteps; i++) {
        const lap_step_t *step = &s->steps[i];
        if (step->kind == LAP_STEP_WAIT && step->origin == step[1].origin)
            right = right && step[1].kind == LAP_STEP_GEMM && step[1].stream == step->stream;
        if (step->stream == LAP_STREAM_LANE) {
            last = i;
            origin = step->origin;
        }
    }
    tap_ok(right, "a wait is in the lane of its GEMM");
    bool after = false; /* what came after the GEMM on its stream, or by a dependency */
    for (uint32_t i = last + 1; i < s->nsteps; i++)
        after = after || (s->steps[i].origin > origin && depends(s, i, last));
    tap_ok(after, "what came after the GEMM comes after the second lane");
    tap_success(sequence_check(&sequence), "they are safe");
    sequence_clear(&sequence);
}

/* With scales a GEMM has a block per shard, all after the waits of its stream. */
static void test_second_lane(void)
{
    static sequence_t sequence;
    const size_t rows[1] = {64};
    const variant_t variant = {LAP_AG_GEMM, "serial", 0, 0, 0, 0, FP8, 0, LAP_FORWARD};
    const lap_op_desc_t desc = describe(&variant, 64, 12, 12);
    const lap_schedule_t *s = sequence_at(&sequence, 0, 1);
    tap_success(sequence_build(&sequence, &desc, rows, 1, 4, CAN_PLAIN), "serial with scales");
    tap_success(sequence_lower(&sequence, "cuda", "lanes"), "lowered for a GPU, up to lanes");
    uint32_t before = LAP_NO_STEP, first = 0;
    for (; first < s->nsteps && s->steps[first].stream != LAP_STREAM_LANE; first++)
        if (s->steps[first].kind == LAP_STEP_WAIT)
            before = first;
    tap_ok(before != LAP_NO_STEP && first < s->nsteps && depends(s, first, before),
           "the second lane comes after what the GEMM came after");
    tap_success(sequence_check(&sequence), "they are safe");
    sequence_clear(&sequence);
}

static void test_consume(void)
{
    static sequence_t sequence;
    const lap_schedule_t *s = sequence_at(&sequence, 0, 1);
    build_fused(&sequence, LAP_AG_GEMM);
    tap_success(sequence_lower(&sequence, "cuda", NULL), "lowered for a GPU");
    tap_ok(count_steps(s, LAP_STEP_CONSUME, -1) == 1 && s->graph,
           "signals are consumed once, and repeated calls are a graph");
    tap_success(lap_check_consume(s), "after all of them");
    lap_step_t *step = s->steps;
    while (step[1].kind != LAP_STEP_CONSUME)
        step++;
    const lap_step_t last = step[0];
    step[0] = step[1];
    step[1] = last;
    tap_failure(lap_check_consume(s), LAP_ERR_CHECK, "consumes", "rank 1", NULL);
    sequence_clear(&sequence);
    build_fused(&sequence, LAP_AG_GEMM);
    tap_success(sequence_lower(&sequence, "cpu", NULL), "lowered for hosts");
    tap_ok(count_steps(s, LAP_STEP_CONSUME, -1) == 0 && !s->graph, "hosts count for themselves");
    sequence_clear(&sequence);
}

int main(void)
{
    test_targets();
    test_passes();
    test_blocks();
    test_lanes();
    test_second_lane();
    test_consume();
    return tap_done();
}
