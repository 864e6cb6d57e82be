/* SPDX-License-Identifier: Apache-2.0 */
/* A table of GPUs: see peak.h. The numbers are those of NVIDIA's data sheets, without sparsity. */
#include "peak.h"

#include <stddef.h>
#include <string.h>

/* By words that the name has all of; the first row that fits counts, so longer names come first. */
typedef struct gpu {
    const char *words[2];
    double fp8, half, fp32;
} gpu_t;

static const gpu_t gpus[] = {
    {{"GB200", NULL}, 5000, 2500, 80},
    {{"B200", NULL}, 4500, 2250, 75},
    {{"GH200", NULL}, 1979, 989.4, 66.9},
    {{"H200", "NVL"}, 1671, 835.5, 60},
    {{"H200", NULL}, 1979, 989.4, 66.9},
    {{"H100", "PCIe"}, 1513, 756, 51.2},
    {{"H100", "NVL"}, 1671, 835.5, 60},
    {{"H100", NULL}, 1979, 989.4, 66.9},
    {{"H800", NULL}, 1979, 989.4, 66.9},
    {{"H20", NULL}, 296, 148, 44},
    {{"A100", NULL}, 0, 312, 19.5},
    {{"A800", NULL}, 0, 312, 19.5},
    {{"L40S", NULL}, 733, 362, 91.6},
    {{"L40", NULL}, 362, 181, 90.5},
    {{"L4", NULL}, 242, 121, 30.3},
    {{"A40", NULL}, 0, 149.7, 37.4},
    {{"A30", NULL}, 0, 165, 10.3},
    {{"A10", NULL}, 0, 125, 31.2},
    {{"RTX A6000", NULL}, 0, 154.8, 38.7},
    {{"RTX 4090", NULL}, 330.3, 165.2, 82.6},
    {{"RTX 3090", NULL}, 0, 71.2, 35.6},
    {{"V100", NULL}, 0, 125, 15.7},
    {{"T4", NULL}, 0, 65, 8.1},
};

/* Whether a name has a word, which no letter and no digit goes on. */
static int has_word(const char *name, const char *word)
{
    static const char more[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    for (const char *at = strstr(name, word); at; at = strstr(at + 1, word)) {
        const char after = at[strlen(word)];
        if ((at == name || !strchr(more, at[-1])) && (after == '\0' || !strchr(more, after)))
            return 1;
    }
    return 0;
}

double lap_peak_tflops(const char *name, lap_dtype_t dtype)
{
    for (size_t i = 0; i < sizeof(gpus) / sizeof(gpus[0]); i++) {
        const gpu_t *gpu = &gpus[i];
        if (!has_word(name, gpu->words[0]) || (gpu->words[1] && !has_word(name, gpu->words[1])))
            continue;
        return lap_dtype_is_fp8(dtype) ? gpu->fp8 : dtype == LAP_FLOAT32 ? gpu->fp32 : gpu->half;
    }
    return 0;
}
