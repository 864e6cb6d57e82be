/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of overlap rules. The first byte is the number of ranks, the rest is the file. Rules that
 * were read make sense to the library; a failure has a sentence and changes nothing.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lap/status.h>
#include <lap/tp_overlap.h>

#include "fuzz.h"

static void check_rules(const lap_tp_overlap_t *overlap)
{
    for (int gemm = 0; gemm < LAP_TP_GEMMS; gemm++) {
        const lap_tp_rule_t *rule = &overlap->rules[gemm];
        lap_op_desc_t desc = LAP_OP_DESC_INIT;
        desc.m = desc.n = desc.k = 64;
        HOLDS(rule->num_sm >= 0 && rule->num_sm <= 1024 && rule->num_splits <= 1024);
        HOLDS(rule->method >= LAP_TP_SERIAL && rule->method <= LAP_TP_AUTO);
        HOLDS(lap_tp_overlap_describe(overlap, (lap_tp_gemm_t)gemm, &desc) == LAP_OK);
        size_t bytes, nsignals;
        const lap_status_t status = lap_op_buffer_size(&desc, overlap->tp, &bytes, &nsignals);
        HOLDS(status == LAP_OK || *lap_last_error());
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int file = -1;
    char path[64];
    if (bytes == 0)
        return 0;
    if (file < 0)
        file = memfd_create("rules", MFD_CLOEXEC);
    HOLDS(file >= 0 && ftruncate(file, 0) == 0);
    HOLDS(pwrite(file, data + 1, bytes - 1, 0) == (ssize_t)(bytes - 1));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    lap_tp_overlap_t overlap, before;
    memset(&before, 0x5a, sizeof(before));
    overlap = before;
    if (lap_tp_overlap_load(path, 1 + data[0] % 16, &overlap) == LAP_OK) {
        check_rules(&overlap);
    } else {
        HOLDS(memcmp(&overlap, &before, sizeof(before)) == 0);
        HOLDS(strlen(lap_last_error()) > 0);
    }
    return 0;
}
