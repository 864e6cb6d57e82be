/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counter-based generator: the known answers that its authors publish with Random123, that
 * elements do not depend on how they are asked for, and the moments of the normal numbers.
 */
#include "util/random.h"

#include <string.h>

#include "tap.h"

enum { COUNT = 1 << 18 };

typedef struct answer {
    lap_u32x4_t counter;
    uint32_t key[2];
    lap_u32x4_t expected;
} answer_t;

static const answer_t answers[] = {
    {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     {0xffffffff, 0xffffffff},
     {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     {0xa4093822, 0x299f31d0},
     {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

static void known_answers(void)
{
    for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++) {
        const answer_t *a = &answers[i];
        const lap_u32x4_t got = lap_philox(a->counter, a->key[0], a->key[1]);
        tap_ok(memcmp(&got, &a->expected, sizeof(got)) == 0, "known answer %zu of Random123", i);
        const uint64_t index = a->counter.word[0] | (uint64_t)a->counter.word[1] << 32;
        const uint64_t tensor = a->counter.word[2] | (uint64_t)a->counter.word[3] << 32;
        const lap_u32x4_t named =
            lap_random_u32x4(a->key[0] | (uint64_t)a->key[1] << 32, tensor, index);
        tap_ok(memcmp(&got, &named, sizeof(got)) == 0, "seed, tensor and index use all bits");
    }
}

static void one_by_one(void)
{
    bool same = true;
    for (uint64_t block = 0; block < 1000; block++) {
        const lap_u32x4_t words = lap_random_u32x4(7, 3, block);
        float four[4];
        lap_random_box_muller(words.word[0], words.word[1], four);
        lap_random_box_muller(words.word[2], words.word[3], four + 2);
        for (uint64_t i = 0; i < 4; i++)
            same = same && four[i] == lap_random_normal(7, 3, 4 * block + i);
    }
    tap_ok(same, "four elements come from each block, in its order");
    tap_ok(lap_random_normal(7, 3, 0) != lap_random_normal(8, 3, 0), "another seed is another");
    tap_ok(lap_random_normal(7, 3, 0) != lap_random_normal(7, 4, 0), "another tensor is another");
}

/* Five standard deviations of each estimate: they hold for this seed, and for nearly any other. */
static void moments(void)
{
    double sum[5] = {0}, product = 0;
    float last = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        const float x = lap_random_normal(1234, 1, i);
        for (int k = 0; k < 5; k++)
            sum[k] += pow(x, k);
        product += (double)x * last;
        last = x;
    }
    const double unit = 5 / sqrt(COUNT);
    tap_ok(fabs(sum[1] / COUNT) < unit, "the mean is 0: %g", sum[1] / COUNT);
    tap_ok(fabs(sum[2] / COUNT - 1) < unit * sqrt(2), "the variance is 1: %g", sum[2] / COUNT);
    tap_ok(fabs(sum[3] / COUNT) < unit * sqrt(15), "the third moment is 0: %g", sum[3] / COUNT);
    tap_ok(fabs(sum[4] / COUNT - 3) < unit * sqrt(96), "the fourth is 3: %g", sum[4] / COUNT);
    tap_ok(fabs(product / COUNT) < unit, "neighbours are not correlated: %g", product / COUNT);
}

static void ends(void)
{
    float normal[2];
    lap_random_box_muller(0, 0, normal);
    tap_ok(normal[0] > 6.6f && normal[0] < 6.7f && normal[1] == 0, "the rarest word is finite");
    lap_random_box_muller(0xffffffff, 0x40000000, normal);
    tap_ok(normal[0] == 0 && normal[1] == 0, "the largest word is 0");
}

int main(void)
{
    known_answers();
    one_by_one();
    moments();
    ends();
    return tap_done();
}
