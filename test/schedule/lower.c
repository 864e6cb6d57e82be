/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets and the passes that lower for them: every build knows the targets of GPUs, and what is
 * issued there is a function of the schedule.
 */
#include "sequence.h"

#include "core/status.h"
#include "schedule/lower.h"

static void test_targets(void)
{
    const lap_target_t *cpu, *cuda, *nccl;
    tap_success(lap_target_find("cpu", &cpu), "there is a target cpu");
    tap_success(lap_target_find("cuda", &cuda), "there is a target cuda");
    tap_success(lap_target_find("nccl", &nccl), "there is a target nccl");
    tap_ok(cpu->device.gemm_signals && !cpu->device.lanes && !cpu->device.graphs,
           "blocks of a GEMM on hosts signal by themselves");
    tap_ok(cuda->device.lanes && cuda->device.shares_queues && lap_target_is_one_sided(cuda),
           "GPUs of one host have lanes and put one-sidedly");
    tap_ok(nccl->device.lanes && !lap_target_is_one_sided(nccl), "messages of NCCL are matched");
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

int main(void)
{
    test_targets();
    test_passes();
    return tap_done();
}
